//! The node's own key and certificate on the disk, `pki/` below `--root-dir`: performs core's steps.
//!
//! Always holds: each step is one durable change. Every file begins with a digest of the rest, so a changed
//! bit makes it unusable rather than wrong. A certificate is written only beside its own key. Blocks as long
//! as the disk does. Leaves to others: which step comes next (core).

use super::certificate::facts;
use super::files::{CURRENT, FOLDER, KUBECONFIG, REPLACES, opened, replaces, sealed};
use super::x509::{self, hex};
use super::{certificates, of_pem};
use crate::errors::chain;
use crate::net::kubeconfig::{
    self, Kubeconfig, KubeconfigError, MAX_KUBECONFIG_BYTES, MAX_PEM_BYTES, TokenSource,
};
use crate::node_name;
use crate::provision::forget_bootstrap;
use crate::service::BOOTSTRAP_KUBECONFIG;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kedge_api::{NODE_GROUP, NODE_USER_PREFIX};
use kedge_core::identity::{By, Certificate, Found, Given, IdentityEvent, Key, Source, Step};
use kedge_platform::{Files, ReadError};
use ring::digest::{SHA256, digest};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Notify;

/// The key whose certificate is awaited.
const NEXT: &str = "next.key";
const RUNNING: &str = "running";
/// Parts of a certificate's file name: before the serial number, and after it.
const KEPT: (&str, &str) = ("node-", ".pem");
/// Most names that are read of the folder, and most digits of a serial number (RFC 5280: 20 bytes).
const LISTED: usize = 1000;
const SERIAL_DIGITS: usize = 42;

/// The parts of the store.
pub(crate) struct Store {
    /// `--root-dir`.
    pub(crate) files: Arc<dyn Files>,
    /// `--kubeconfig`; `None` if it is the store's own.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// `--bootstrap-kubeconfig`.
    pub(crate) bootstrap: Option<PathBuf>,
    pub(crate) node_name: String,
    /// Notified when the bootstrap kubeconfig is for another node; `None` if a flag gave this name.
    pub(crate) renamed: Option<Arc<Notify>>,
}

impl Store {
    pub(crate) fn perform(&self, step: Step) -> IdentityEvent {
        let done = match step {
            Step::Look => return IdentityEvent::Found(Box::new(self.look())),
            Step::Prepare(key, by) => return IdentityEvent::Prepared(self.prepare(key, by)),
            Step::MakeKey => x509::new_key()
                .map_err(|_| "the machine gives no randomness".to_owned())
                .and_then(|key| self.write(NEXT, key.as_bytes())),
            Step::WriteKubeconfig => self.write_kubeconfig(),
            Step::Keep { key, serial, pem } => self.keep(key, &serial, &pem),
            Step::Point(serial) => self.read(&kept_name(&serial)).and_then(|pem| self.write(CURRENT, &pem)),
            Step::RemoveKey => self.remove(NEXT),
            Step::Remove(serial) => self.remove(&kept_name(&serial)),
            Step::RemoveToken => {
                self.bootstrap.iter().for_each(|path| forget_bootstrap(path));
                Ok(())
            }
            Step::SetAside(name, _) => {
                self.files.set_aside(&below(&name)).map(drop).map_err(|error| chain(&error))
            }
            Step::SaveRunning(serial, secs) => self.write(RUNNING, format!("{serial} {secs}\n").as_bytes()),
        };
        IdentityEvent::Done(done)
    }

    // ------------------------------------------------------------------------------------------ reading

    fn look(&self) -> Found {
        let mut found = Found::default();
        let next = self.found(NEXT, &mut found, |pem| {
            let key = private_key(pem)?;
            let public = x509::public_key_of(&key).ok_or("holds no key that can be used")?;
            Ok(hex(digest(&SHA256, &public).as_ref()))
        });
        let current = self.found(CURRENT, &mut found, |pem| self.certificate(pem));
        let names = match self.files.list(Path::new(FOLDER), LISTED) {
            Ok(listing) => listing.entries,
            Err(ReadError::NotFound { .. } | ReadError::NotAFile { .. }) => Vec::new(),
            Err(error) => {
                found.unread = Some(chain(&error));
                Vec::new()
            }
        };
        let names = names.iter().filter_map(|entry| entry.name.to_str());
        for name in names.filter(|name| serial_of(name).is_some()) {
            let kept = self.found(name, &mut found, |pem| self.certificate(pem));
            found.kept.extend(kept);
        }
        let running = self.found(RUNNING, &mut found, |text| {
            let text = core::str::from_utf8(text).ok().and_then(|text| text.trim_end().split_once(' '));
            let (serial, secs) = text.ok_or("holds no running time")?;
            Ok((serial.to_owned(), secs.parse().map_err(|_| "holds no running time")?))
        });
        let generated = self.found(KUBECONFIG, &mut found, |text| Ok(!text.is_empty()));
        (found.next, found.current, found.running) = (next, current, running);
        found.has_generated = generated == Some(true);
        found.given = self.given();
        match self.bootstrap.as_deref().map(kubeconfig::load) {
            Some(Ok(bootstrap)) => {
                found.can_join = bootstrap.token != TokenSource::None;
                // it may have come after this run began
                if let (Some(name), Some(renamed)) = (node_name::of_kubeconfig(&bootstrap), &self.renamed)
                    && name != self.node_name
                    && found.can_join
                    && found.in_use().is_none()
                {
                    renamed.notify_one();
                }
            }
            Some(Err(error)) if !is_missing(&error) && found.given == Given::Nothing => {
                found.given = Given::Unusable(chain(&error));
            }
            _ => {}
        }
        let bootstrap = self.bootstrap.as_deref();
        found.has_leftover_token =
            bootstrap.is_some_and(|path| path == Path::new(BOOTSTRAP_KUBECONFIG) && path.exists());
        found
    }

    /// A file's content as `read` takes it; an unusable one is noted as damaged.
    fn found<T>(
        &self,
        name: &str,
        found: &mut Found,
        read: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Option<T> {
        let why = match self.files.read(&below(name), MAX_KUBECONFIG_BYTES) {
            Ok(content) => match opened(&content).and_then(read) {
                Ok(value) => return Some(value),
                Err(why) => why,
            },
            Err(ReadError::NotFound { .. }) => return None,
            Err(error @ ReadError::Io { .. }) => {
                found.unread = Some(chain(&error));
                return None;
            }
            Err(error) => chain(&error),
        };
        found.damaged.push((name.to_owned(), why));
        None
    }

    /// A certificate of this node, in a file with its key.
    fn certificate(&self, pem: &[u8]) -> Result<Certificate, String> {
        let (chain, _) = of_pem(pem, pem)?;
        let leaf = chain.first().ok_or("holds no certificate")?;
        let own = self.own(leaf).ok_or_else(|| format!("is no certificate of node {}", self.node_name))?;
        Ok(Certificate { replaces: replaces(pem), ..own })
    }

    /// The fields of a certificate, if it is this node's.
    fn own(&self, der: &[u8]) -> Option<Certificate> {
        let subject = x509::subject(der)?;
        let is_ours = subject.name.strip_prefix(NODE_USER_PREFIX) == Some(&self.node_name)
            && subject.groups.iter().any(|group| group == NODE_GROUP);
        facts(der).filter(|_| is_ours)
    }

    fn given(&self) -> Given {
        let Some(path) = &self.kubeconfig else { return Given::Nothing };
        let loaded = match kubeconfig::load(path) {
            Ok(loaded) => loaded,
            Err(error) if is_missing(&error) => return Given::Nothing,
            Err(error) => return Given::Unusable(chain(&error)),
        };
        let leaf = loaded.client_certificate.as_ref().and_then(|certificate| certificate.chain.first());
        leaf.and_then(|leaf| self.own(leaf)).map_or(Given::Other, Given::Certificate)
    }

    fn prepare(&self, key: Key, by: By) -> Result<(String, String), String> {
        let salt = match by {
            By::Own => self.look().in_use().map(|(certificate, _)| certificate.serial.clone()),
            By::Bootstrap => Some(self.token_id()),
        };
        let key = match key {
            Key::Next => private_key(&self.read(NEXT)?)?,
            Key::Current => self.current_key()?,
        };
        x509::client_request(&self.node_name, &key, &salt.unwrap_or_default())
            .ok_or_else(|| "the key is none that this node could have made (ECDSA P-256)".to_owned())
    }

    /// The first part of the bootstrap token, which is no secret.
    fn token_id(&self) -> String {
        let loaded = self.bootstrap.as_deref().and_then(|path| kubeconfig::load(path).ok());
        match loaded.map(|loaded| loaded.token) {
            Some(TokenSource::Fixed(token)) => {
                token.split_once('.').map(|(id, _)| id.to_owned()).unwrap_or_default()
            }
            _ => String::new(),
        }
    }

    /// The key of the certificate in use.
    fn current_key(&self) -> Result<PrivateKeyDer<'static>, String> {
        let is_own = self.look().in_use().is_some_and(|(_, source)| source == Source::Own);
        if is_own {
            return private_key(&self.read(CURRENT)?);
        }
        let path = self.kubeconfig.as_deref().ok_or("there is no certificate")?;
        let loaded = kubeconfig::load(path).map_err(|error| chain(&error))?;
        loaded.client_certificate.map(|found| found.key).ok_or_else(|| "there is no certificate".to_owned())
    }

    /// The content of one of our files.
    fn read(&self, name: &str) -> Result<Vec<u8>, String> {
        let content = self.files.read(&below(name), MAX_PEM_BYTES).map_err(|error| chain(&error))?;
        opened(&content).map(<[u8]>::to_vec).map_err(|why| format!("pki/{name} {why}"))
    }

    // ------------------------------------------------------------------------------------------ writing

    fn write(&self, name: &str, content: &[u8]) -> Result<(), String> {
        self.files.write_durably(&below(name), &sealed(content)).map_err(|error| chain(&error))
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        self.files.remove(&below(name)).map_err(|error| chain(&error))
    }

    fn keep(&self, key: Key, serial: &str, pem: &[u8]) -> Result<(), String> {
        let key = match key {
            Key::Next => self.read(NEXT)?,
            Key::Current => match self.current_key()? {
                PrivateKeyDer::Pkcs8(key) => x509::pem("PRIVATE KEY", key.secret_pkcs8_der()).into_bytes(),
                _ => return Err("the key is none that this node could have made".to_owned()),
            },
        };
        of_pem(pem, &key).map_err(|why| format!("the certificate that was issued {why}"))?;
        let replaced = match self.given() {
            Given::Certificate(given) => format!("{REPLACES}{}\n", given.id),
            _ => String::new(),
        };
        self.write(&kept_name(serial), &[replaced.as_bytes(), pem, b"\n", &key].concat())
    }

    /// The kubeconfig of a node that has joined: the server of the bootstrap kubeconfig, and `current`.
    fn write_kubeconfig(&self) -> Result<(), String> {
        let path = self.bootstrap.as_deref().ok_or("there is no bootstrap kubeconfig")?;
        let bootstrap = kubeconfig::load(path).map_err(|error| chain(&error))?;
        self.write(KUBECONFIG, generated(&bootstrap, &self.node_name).as_bytes())
    }
}

/// The fields of a certificate that was just issued.
pub(crate) fn issued(pem: &[u8]) -> Result<Certificate, String> {
    let chain = certificates(pem)?;
    let facts = chain.first().and_then(|leaf| facts(leaf));
    facts.filter(|facts| facts.serial.len() <= SERIAL_DIGITS).ok_or_else(|| "cannot be read".to_owned())
}

/// In JSON, which is YAML.
fn generated(bootstrap: &Kubeconfig, node_name: &str) -> String {
    let roots: String = bootstrap.roots.iter().map(|root| x509::pem("CERTIFICATE", root)).collect();
    let user = format!("{NODE_USER_PREFIX}{node_name}");
    let mut cluster = json!({
        "server": bootstrap.server.url(),
        "certificate-authority-data": BASE64_STANDARD.encode(roots),
        "tls-server-name": bootstrap.server_name.to_str(),
    });
    if let Some(proxy) = &bootstrap.proxy {
        cluster["proxy-url"] = json!(proxy.url());
    }
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": user,
        "contexts": [{"name": user, "context": {"cluster": "kedge", "user": user}}],
        "clusters": [{"name": "kedge", "cluster": cluster}],
        "users": [{"name": user, "user": {"client-certificate": CURRENT, "client-key": CURRENT}}],
    });
    format!("{kubeconfig}\n")
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("has no key in PEM: {error}"))
}

fn is_missing(error: &KubeconfigError) -> bool {
    matches!(error, KubeconfigError::Read(ReadError::NotFound { .. }))
}

fn below(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn kept_name(serial: &str) -> String {
    format!("{}{serial}{}", KEPT.0, KEPT.1)
}

/// The serial number in the name of a file.
fn serial_of(name: &str) -> Option<&str> {
    let serial = name.strip_prefix(KEPT.0)?.strip_suffix(KEPT.1)?;
    serial.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(serial)
}
