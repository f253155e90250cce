//! The TLS side of the port: this node's certificate, and the authorities for client certificates.
//!
//! Always holds: the files are read when the port is first used, and again when they have changed, so a
//! certificate can be replaced at any time; an unusable file is logged, and never admits more callers:
//! without a readable list of authorities no client certificate is accepted, without a certificate of the
//! owner's the node shows its own. The node's own, self-signed, is durable, so that it can be recognised.
//! Leaves to others: the rights of callers.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kedge_core::kubelet::{CertificateFiles, ServerSettings};
use kedge_platform::Files as _;
use kedge_platform::linux::{self, read_named_file};
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};

use crate::errors::chain;
use crate::identity::{Chain, certificates, of_pem, x509};
use crate::net::kubeconfig::{MAX_PEM_BYTES, Stamp};
use crate::net::tls;
use crate::net::transport::{CertificateClock, WallClock};

/// The node's own certificate and its key, below `--root-dir`.
const SELF_SIGNED: &str = "serving/self-signed.pem";
/// How often the files are checked, at most.
const LOOK: Duration = Duration::from_secs(10);
/// Sessions that can be resumed: an API server has a few connections.
const SESSIONS: usize = 32;

/// Where the files are.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) settings: ServerSettings,
    pub(super) node_name: String,
    pub(super) root_dir: PathBuf,
    pub(super) clock: WallClock,
}

/// The configuration in use.
pub(super) struct Identity {
    source: Source,
    current: RefCell<Loaded>,
    looked: RefCell<Instant>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    stamps: Vec<Option<Stamp>>,
}

impl Identity {
    /// Reads everything for the first time.
    ///
    /// # Errors
    /// This node cannot even show a certificate of its own.
    pub(super) fn open(source: Source) -> Result<Self, String> {
        let current = RefCell::new(source.load()?);
        Ok(Self { source, current, looked: RefCell::new(Instant::now()) })
    }

    /// The TLS configuration for a handshake that begins now.
    pub(super) async fn current(&self) -> Arc<ServerConfig> {
        if self.looked.borrow().elapsed() >= LOOK {
            *self.looked.borrow_mut() = Instant::now();
            let (source, before) = (self.source.clone(), self.current.borrow().stamps.clone());
            let load = move || (source.stamps() != before).then(|| source.load());
            match tokio::task::spawn_blocking(load).await {
                Ok(Some(Ok(loaded))) => {
                    log::info!("port {}: certificates loaded anew", self.source.settings.address);
                    *self.current.borrow_mut() = loaded;
                }
                Ok(Some(Err(why))) => {
                    log::warn!(
                        "port {}: {why}; what was loaded before stays in use",
                        self.source.settings.address
                    );
                }
                Ok(None) | Err(_) => {}
            }
        }
        Arc::clone(&self.current.borrow().config)
    }
}

impl Source {
    fn stamps(&self) -> Vec<Option<Stamp>> {
        let certificate = self.settings.certificate.iter().flat_map(|files| [&files.certificate, &files.key]);
        let files = certificate.chain(&self.settings.client_ca_file);
        let signed = self.settings.requests_certificate.then(|| self.root_dir.join(SIGNED));
        files.map(PathBuf::from).chain(signed).map(|path| Stamp::of(&path)).collect()
    }

    fn load(&self) -> Result<Loaded, String> {
        let stamps = self.stamps();
        let port = self.settings.address;
        let (chain, key) = match self.settings.certificate.as_ref().map(of_files) {
            Some(Ok(found)) => found,
            Some(Err(why)) => {
                log::warn!("port {port}: {why}; showing a self-signed certificate instead");
                self.own()?
            }
            None => self.signed().map_or_else(|| self.own(), Ok)?,
        };
        let provider = Arc::new(tls::provider());
        let versions: &[&rustls::SupportedProtocolVersion] =
            if self.settings.only_tls_13 { &[&TLS13] } else { &[&TLS13, &TLS12] };
        let clock = Arc::new(CertificateClock(self.clock.clone()));
        let failed = |error: rustls::Error| format!("set up TLS: {error}");
        let builder = ServerConfig::builder_with_details(provider.clone(), clock)
            .with_protocol_versions(versions)
            .map_err(failed)?;
        let authorities = self.settings.client_ca_file.as_deref().map(authorities);
        let builder = match authorities {
            Some(Ok(roots)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| format!("set up the verification of client certificates: {error}"))?;
                builder.with_client_cert_verifier(verifier)
            }
            Some(Err(why)) => {
                log::warn!(
                    "port {port}: authentication.x509.clientCAFile {why}; accepting no client certificate"
                );
                builder.with_no_client_auth()
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(failed)?;
        // an API server prefers HTTP/2, and accepts this as well
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
        config.send_tls13_tickets = 1;
        Ok(Loaded { config: Arc::new(config), stamps })
    }

    /// The certificate that the cluster has signed, if there is one.
    fn signed(&self) -> Option<Chain> {
        let is_asked = self.settings.requests_certificate;
        let pem =
            is_asked.then(|| linux::files(&self.root_dir).read(Path::new(SIGNED), MAX_PEM_BYTES).ok())??;
        of_pem(&pem, &pem).ok()
    }

    /// The node's own certificate; makes a new one if it has none for this name.
    fn own(&self) -> Result<Chain, String> {
        let files = linux::files(&self.root_dir);
        let place = Path::new(SELF_SIGNED);
        let kept = files.read(place, MAX_PEM_BYTES).ok().and_then(|pem| of_pem(&pem, &pem).ok());
        let is_ours = |(chain, _): &Chain| {
            chain
                .first()
                .and_then(|der| x509::subject(der))
                .is_some_and(|subject| subject.name == self.node_name)
        };
        if let Some(kept) = kept.filter(is_ours) {
            return Ok(kept);
        }
        let pem = x509::self_signed(&self.node_name)
            .map_err(|_| "make a self-signed certificate: the machine gives no randomness".to_owned())?;
        if let Err(error) = files.write_durably(place, pem.as_bytes()) {
            let why = chain(&error);
            log::warn!(
                "keep the self-signed certificate in {SELF_SIGNED}: {why}; it holds until this process ends"
            );
        }
        of_pem(pem.as_bytes(), pem.as_bytes()).map_err(|why| format!("the certificate just made {why}"))
    }
}

fn of_files(files: &CertificateFiles) -> Result<Chain, String> {
    let read = |field: &str, path: &str| {
        read_named_file(Path::new(path), MAX_PEM_BYTES).map_err(|error| format!("{field}: {}", chain(&error)))
    };
    let (certificate, key) =
        (read("tlsCertFile", &files.certificate)?, read("tlsPrivateKeyFile", &files.key)?);
    of_pem(&certificate, &key).map_err(|why| format!("tlsCertFile {} {why}", files.certificate))
}

fn authorities(path: &str) -> Result<RootCertStore, String> {
    let pem = read_named_file(Path::new(path), MAX_PEM_BYTES).map_err(|error| chain(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&pem).map_err(|why| format!("{path} {why}"))? {
        roots.add(certificate).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(roots)
}

/// The certificate with its key, below `--root-dir`; and the key of a pending request.
pub(crate) const SIGNED: &str = "serving/cluster.pem";

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;

    #[test]
    fn own_certificate_is_kept_and_made_anew_for_another_name() {
        let scratch = Scratch::new("port-identity").unwrap();
        let text = r#"{"address":"127.0.0.1:10250","client_ca_file":"/nowhere","takes_tokens":true,
            "token_ttl":{"secs":1,"nanos":0},"allowed_ttl":{"secs":1,"nanos":0},"refused_ttl":{"secs":1,"nanos":0},
            "certificate":{"certificate":"/nowhere","key":"/nowhere"},"requests_certificate":true,"only_tls_13":false,"has_debugging":true}"#;
        let source = |name: &str| Source {
            settings: serde_json::from_str(text).unwrap(),
            node_name: name.to_owned(),
            root_dir: scratch.join("state"),
            clock: crate::net::transport::system_clock(),
        };
        let certificate = |name: &str| source(name).own().unwrap().0;
        let first = certificate("edge-1");
        assert_eq!(certificate("edge-1"), first);
        assert_ne!(certificate("edge-2"), first);
        // no missing file keeps the port from being served
        assert!(source("edge-2").load().is_ok());
        std::fs::remove_dir_all(scratch.join("state")).unwrap();
        std::fs::write(scratch.join("state"), "no directory").unwrap();
        certificate("edge-3");
    }
}
