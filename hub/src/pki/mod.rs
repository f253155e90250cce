//! The hub's keys: its certificate authority, its serving certificate, its clients' credentials.
//!
//! Always holds: a CA is created at the first start of an empty data directory and never again. A missing or
//! damaged CA is an error with advice, because a silent new one would lock out every device at once. All
//! others can be issued again from the CA, so a damaged serving certificate or admin credential is replaced,
//! which is logged. The CA is durable before anything is signed with it; other files are flushed later by the
//! system. TLS requests a client certificate but does not require one. Left to others: permissions
//! (`identity`).
//!
//! On disk, below the data directory:
//! - `pki/ca.pem` (key and certificate, authoritative) and the files that `authorities` names
//! - `ca.crt` (the trusted certificates for anyone to copy)
//! - `pki/serving.pem`, `pki/admin.pem`, `pki/tokens.pem`, `admin.kubeconfig`
//! - `server-url` (the URL in node credentials), `node-certificate-life` (how long those live)
//! - `pki/issue-number` (the counter of certificates, revocations and readmissions)

mod authorities;
mod authority;
mod client_verifier;
mod error;
#[cfg(test)]
mod handshakes;
pub mod issue_numbers;
mod kubeconfig;
mod pkcs12;
mod tickets;
mod tokens;

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use kedge_api::NODE_USER_PREFIX;
use kedge_hub_core::controllers::certificates::LONGEST;
use kedge_hub_core::identity::certificate_request::Request;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::audit::{ObjectRef, append_line, certificate_notes};
use crate::files::{self, Flush};
use crate::store::sort_of;
use authorities::Authorities;
use authority::{Authority, Credential};
use client_verifier::ClientVerifier;
use tickets::Tickets;

pub use authorities::{Known, Role, StepError, digest};
pub(crate) use authorities::{check as check_authorities, is_key_file, key_files, united};
pub use authority::{ADMIN_USER, PROBE_USER, issuer_name};
pub use error::PkiError;
pub use issue_numbers::IssueNumbers;
pub use kubeconfig::{is_dns_subdomain, is_host, server_url};
pub use tokens::Tokens;

/// A serving certificate with less than this left is replaced: once a year, decades before it would expire.
const SERVING_RENEWED_BELOW: Duration = Duration::days(24 * 365);
/// The administrator's certificate is replaced when less than this is left, half way through its validity.
const ADMIN_RENEWED_BELOW: Duration = Duration::days(5 * 365);
/// Tickets per TLS 1.3 handshake. Every reconnect uses one and receives one; each costs bytes on a metered
/// link.
const TICKETS_PER_HANDSHAKE: usize = 1;
/// The life of nodes' certificates in seconds.
const NODE_LIFE: &str = "node-certificate-life";
/// This file exists if the URL in node credentials was guessed.
const GUESS: &str = "server-url.guess";

/// The hub's keys while it runs.
pub struct Pki {
    data_dir: PathBuf,
    authorities: Authorities,
    names: Vec<String>,
    serving: Arc<Serving>,
    numbers: IssueNumbers,
    tickets: Arc<Tickets>,
}

/// The certificate for handshakes; replaced as a whole, so open connections are not affected.
struct Serving {
    current: RwLock<Arc<CertifiedKey>>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Serving")
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // one certificate for all names: most devices connect to an address and send no server name
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Pki {
    /// Opens the keys in `data_dir`, creating missing ones: the CA only in a directory that never had one.
    /// The serving certificate names at least `names` (host names and IP addresses). The caller must have
    /// locked the data directory.
    pub fn open(data_dir: &Path, names: &[String], now: OffsetDateTime) -> Result<Pki, PkiError> {
        let directory = data_dir.join("pki");
        files::make_private_directory(&directory)
            .map_err(|source| PkiError::Unwritable { path: directory.clone(), source })?;
        let mut authorities = open_authorities(data_dir)?;
        let numbers = IssueNumbers::open(data_dir).map_err(|source| PkiError::NoNumber { source })?;
        if_the_disk_lets(authorities.note_start(numbers.highest()))?;
        let authority = authorities.signing();
        let public = data_dir.join("ca.crt");
        update(&public, &authorities.bundle(), files::PUBLIC)?;
        let credential = open_credential(
            &directory.join("serving.pem"),
            |credential| serving_fault(authority, credential, names, now),
            || authority.issue_serving(names, now),
        )?;
        let certified = certified(&credential, authorities.chain())?;
        let serving = Arc::new(Serving { current: RwLock::new(Arc::new(certified)) });
        let tickets = Arc::new(Tickets::new().map_err(PkiError::Tls)?);
        let data_dir = data_dir.to_owned();
        Ok(Pki { data_dir, authorities, names: names.to_vec(), serving, numbers, tickets })
    }

    /// TLS for the server: 1.2 and 1.3, HTTP/1.1 only, resumption. Client certificates of our own CA are
    /// accepted but not required; so are expired ones, because the server judges them by request. The
    /// configuration follows later renewals by itself.
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut authorities = roots(&self.authorities)?;
        // the server treats a certificate by a retired authority as expired
        for retired in self.authorities.retired() {
            authorities.add(retired).map_err(PkiError::Tls)?;
        }
        let clients = ClientVerifier::new(authorities, &provider)?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_client_cert_verifier(Arc::new(clients))
            .with_cert_resolver(Arc::clone(&self.serving) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = Arc::clone(&self.tickets) as Arc<dyn rustls::server::ProducesTickets>;
        config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
        // sessions are resumed by tickets alone, which end at a revocation
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    /// Ends all TLS sessions that clients could resume: after a revocation.
    pub fn end_sessions(&self) {
        if let Err(error) = self.tickets.end() {
            log::warn!("TLS sessions stay resumable, each with its certificate: {error}");
        }
    }

    /// TLS for the hub's requests to itself: it shows the probe's certificate and trusts only the hub's own
    /// CA.
    pub fn client_config(&self, now: OffsetDateTime) -> Result<Arc<rustls::ClientConfig>, PkiError> {
        client_config(&self.authorities, &self.authorities.signing().issue_probe(now)?)
    }

    /// A client certificate (PEM) for a request that was checked, valid for `life` from `now` on, with the
    /// next issue number. Blocks for the disk.
    /// `enciphers`: its key may also encipher keys, which RSA key exchange in old TLS needs.
    pub fn sign_client(
        &self,
        asked: &Request,
        enciphers: bool,
        now: OffsetDateTime,
        life: Duration,
    ) -> Result<String, PkiError> {
        let number = self.numbers.take().map_err(|source| PkiError::NoNumber { source })?;
        self.authorities.signing().sign_client(asked, enciphers, number, now, life)
    }

    /// Replaces the serving certificate when it is due; returns whether it did. Cheap: call it every hour.
    /// The new certificate is served even if it cannot be written, which is an error.
    pub fn renew(&self, now: OffsetDateTime) -> Result<bool, PkiError> {
        let path = self.data_dir.join("pki/serving.pem");
        let kept = Credential::load(&path).is_ok_and(|credential| {
            serving_fault(self.authorities.signing(), &credential, &self.names, now).is_none()
        });
        if kept {
            return Ok(false);
        }
        let credential = self.authorities.signing().issue_serving(&self.names, now)?;
        let certified = Arc::new(certified(&credential, self.authorities.chain())?);
        *self.serving.current.write().unwrap_or_else(PoisonError::into_inner) = certified;
        credential.save(&path, Flush::Now)?;
        Ok(true)
    }

    /// Brings `admin.kubeconfig` (mode 0600) up to date and remembers `node_url` for `node_kubeconfig`.
    /// Nothing is written when nothing changed. Returns the kubeconfig's path.
    pub fn publish(&self, admin_url: &str, node_url: &str, now: OffsetDateTime) -> Result<PathBuf, PkiError> {
        update(&self.data_dir.join("server-url"), &format!("{node_url}\n"), files::PUBLIC)?;
        let admin = open_credential(
            &self.data_dir.join("pki/admin.pem"),
            |credential| admin_fault(self.authorities.signing(), credential, now),
            || self.authorities.signing().issue_admin(self.number_if_the_disk_lets()?, now),
        )?;
        let text = kubeconfig::text(
            admin_url,
            &self.authorities.bundle(),
            ADMIN_USER,
            &admin.certificate_pem(),
            &admin.key_pem(),
        );
        let path = self.data_dir.join("admin.kubeconfig");
        update(&path, &text, files::SECRET)?;
        Ok(path)
    }

    /// The next issue number; 0 if the disk takes none: a hub starts on such a disk.
    fn number_if_the_disk_lets(&self) -> Result<u64, PkiError> {
        match self.numbers.take() {
            Err(source) if sort_of(&source).is_some() => {
                log::error!("the administrator's certificate gets no issue number: {source}");
                Ok(0)
            }
            outcome => outcome.map_err(|source| PkiError::NoNumber { source }),
        }
    }

    /// Remembers how long nodes' certificates live, for `node_kubeconfig`.
    pub fn publish_node_life(&self, life: Duration) -> Result<(), PkiError> {
        update(&self.data_dir.join(NODE_LIFE), &format!("{}\n", life.whole_seconds()), files::PUBLIC)
    }

    /// The certificates of the trusted authorities, in PEM, the signing one first.
    pub fn ca_text(&self) -> String {
        self.authorities.bundle()
    }

    /// The authorities that this hub has opened.
    pub fn authorities(&self) -> Vec<Known> {
        self.authorities.list()
    }

    /// The short name of the set of trusted authorities, which a node reports once it trusts them.
    pub fn bundle_digest(&self) -> String {
        digest(&self.authorities.trusted())
    }

    /// The kubeconfig for `kube-public/cluster-info`, which names the hub at `url`.
    pub fn cluster_info(&self, url: &str) -> String {
        kubeconfig::cluster_info(url, &self.ca_text())
    }

    /// The key of service account tokens; `url` is where the documents of the issuer are served.
    pub fn tokens(&self, url: &str) -> Result<Tokens, PkiError> {
        Tokens::open(&self.data_dir.join("pki/tokens.pem"), url)
    }

    /// The path of the CA's certificate, for anyone to copy.
    pub fn ca_path(&self) -> PathBuf {
        self.data_dir.join("ca.crt")
    }
}

/// The access of an administrator's command on this machine to the running hub: the URL that the hub last
/// published, and TLS with the administrator's certificate.
pub fn admin_access(data_dir: &Path) -> Result<(String, Arc<rustls::ClientConfig>), PkiError> {
    let path = data_dir.join("admin.kubeconfig");
    if !exists(&path)? {
        return Err(PkiError::NoServerUrl { data_dir: data_dir.to_owned() });
    }
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| PkiError::Unreadable { path, source }
    };
    let text = String::from_utf8_lossy(&files::read(&path).map_err(unreadable(&path))?).into_owned();
    let server = text.lines().find_map(|line| line.trim().strip_prefix("server: \"")?.strip_suffix('"'));
    let Some(url) = server.map(str::to_owned) else {
        let why = "it names no server".to_owned();
        return Err(PkiError::Corrupt { path, why });
    };
    let admin = Credential::load(&data_dir.join("pki/admin.pem"))?;
    Ok((url, client_config(&Authorities::load(data_dir)?, &admin)?))
}

/// The trusted authorities, for a handshake.
fn roots(authorities: &Authorities) -> Result<rustls::RootCertStore, PkiError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in authorities.trusted() {
        roots.add(certificate).map_err(PkiError::Tls)?;
    }
    Ok(roots)
}

/// A step of the command `ca`; the running hub takes it at its next start. Returns the authority's number.
///
/// # Errors
/// The step does not fit the present state, and nothing was changed; or a file cannot be read or written.
pub fn step(data_dir: &Path, step: Step) -> Result<u8, StepError> {
    let path = data_dir.join("pki/ca.pem");
    if !exists(&path)? {
        return Err(PkiError::NoAuthority { data_dir: data_dir.to_owned() }.into());
    }
    let authorities = Authorities::load(data_dir)?;
    match step {
        Step::New => authorities.make_next(),
        Step::Switch { back } => authorities.sign_with(back),
        Step::Retire(number) => authorities.retire(number, OffsetDateTime::now_utc()).map(|()| number),
    }
}

/// The authorities on disk, which the running hub may not have opened so far.
///
/// # Errors
/// A file is missing or damaged.
pub fn on_disk(data_dir: &Path) -> Result<Vec<Known>, PkiError> {
    Ok(Authorities::load(data_dir)?.list())
}

/// A step by which one authority replaces another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Make the next authority: it is trusted, and signs nothing.
    New,
    /// Let the next one sign, or with `back` the former one.
    Switch { back: bool },
    /// End the trust in the one of this number and erase its key.
    Retire(u8),
}

/// TLS that shows this certificate and trusts the hub's authorities alone.
fn client_config(authorities: &Authorities, own: &Credential) -> Result<Arc<rustls::ClientConfig>, PkiError> {
    let roots = roots(authorities)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            config
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![own.certificate.clone()], own.private_key())
        })
        .map_err(PkiError::Tls)?;
    Ok(Arc::new(config))
}

/// Makes the hub's data directory, for its owner only, and missing parents; leaves an existing one as it is.
pub fn make_data_dir(path: &Path) -> Result<(), PkiError> {
    files::make_private_directory(path)
        .map_err(|source| PkiError::Unwritable { path: path.to_owned(), source })
}

/// Makes a kubeconfig with fresh credentials for the node `name`, from the CA in `data_dir`; works with or
/// without a running hub. Always holds: credentials are returned only after the audit log has a line about
/// them. `url`: the hub's address for the node, else the one that the hub last published. `life`: of its
/// certificate, else that of the certificates that the hub signs.
pub fn node_kubeconfig(
    data_dir: &Path,
    name: &str,
    url: Option<String>,
    life: Option<Duration>,
    now: OffsetDateTime,
) -> Result<String, PkiError> {
    let (authorities, url) = opened(data_dir, url)?;
    let number = taken_number(data_dir)?;
    let node =
        authorities.signing().issue_node(name, number, now, life.unwrap_or_else(|| node_life(data_dir)))?;
    let object = ObjectRef { version: "v1", resource: "nodes", name, ..ObjectRef::default() };
    append_line(data_dir, "issue", object, &certificate_notes(&node.certificate))
        .map_err(|source| PkiError::Unrecorded { name: name.to_owned(), source })?;
    let user = format!("{NODE_USER_PREFIX}{name}");
    Ok(kubeconfig::text(&url, &authorities.bundle(), &user, &node.certificate_pem(), &node.key_pem()))
}

/// The credentials of a person.
#[derive(Debug)]
pub struct UserCredentials {
    pub kubeconfig: String,
    own: Credential,
    name: String,
}

impl UserCredentials {
    /// The same certificate and key as a PKCS#12 file, and its passphrase, which nothing keeps.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn pkcs12(&self) -> Result<(Vec<u8>, String), String> {
        let random = ring::rand::SystemRandom::new();
        let made = pkcs12::passphrase(&random).and_then(|passphrase| {
            let key = self.own.private_key();
            let file =
                pkcs12::file(&self.name, &self.own.certificate, key.secret_der(), &passphrase, &random)?;
            Ok((file, passphrase))
        });
        made.map_err(|_| "the system has no random numbers".to_owned())
    }
}

/// As [`node_kubeconfig`], for a person: the certificate has this name, and no group.
pub fn user_credentials(
    data_dir: &Path,
    name: &str,
    url: Option<String>,
    life: Duration,
    now: OffsetDateTime,
) -> Result<UserCredentials, PkiError> {
    let (authorities, url) = opened(data_dir, url)?;
    let user = authorities.signing().issue_user(name, taken_number(data_dir)?, now, life)?;
    let object = ObjectRef { version: "v1", resource: "users", name, ..ObjectRef::default() };
    append_line(data_dir, "issue", object, &certificate_notes(&user.certificate))
        .map_err(|source| PkiError::Unrecorded { name: name.to_owned(), source })?;
    let kubeconfig =
        kubeconfig::text(&url, &authorities.bundle(), name, &user.certificate_pem(), &user.key_pem());
    Ok(UserCredentials { kubeconfig, own: user, name: name.to_owned() })
}

/// The administrator's kubeconfig for another machine: the same credentials, and the address by which others
/// reach the hub.
pub fn admin_kubeconfig(data_dir: &Path, url: Option<String>) -> Result<String, PkiError> {
    let (authorities, url) = opened(data_dir, url)?;
    let admin = Credential::load(&data_dir.join("pki/admin.pem"))?;
    Ok(kubeconfig::text(&url, &authorities.bundle(), ADMIN_USER, &admin.certificate_pem(), &admin.key_pem()))
}

/// The authorities of a hub's directory, and the hub's address: this one, else the one that it last
/// published.
fn opened(data_dir: &Path, url: Option<String>) -> Result<(Authorities, String), PkiError> {
    let path = data_dir.join("pki/ca.pem");
    if !exists(&path)? && !exists(&data_dir.join("ca.crt"))? {
        return Err(PkiError::NoAuthority { data_dir: data_dir.to_owned() });
    }
    let authorities = Authorities::load(data_dir)?;
    let url = match url {
        Some(url) => url,
        None => published_url(data_dir)?,
    };
    Ok((authorities, url))
}

/// The next issue number, beside a running hub or without it.
fn taken_number(data_dir: &Path) -> Result<u64, PkiError> {
    let number = IssueNumbers::open(data_dir).and_then(|numbers| numbers.take());
    number.map_err(|source| PkiError::NoNumber { source })
}

/// The facts that a machine needs besides a token to join a hub: the hub's address and its authorities.
#[derive(Debug)]
pub struct Meeting {
    /// `https://HOST:PORT`.
    pub url: String,
    bundle: String,
    /// `sha256:` and the SHA-256 of the public key (DER of `SubjectPublicKeyInfo`) in hexadecimal, of each
    /// trusted authority, with commas between; one of them is kubeadm's `--discovery-token-ca-cert-hash`.
    /// All, so that the line for a device still works after another authority has replaced the signing one.
    pub pins: String,
}

impl Meeting {
    /// Reads it from a hub's directory; `url`: the hub's address for the machine, else the one that the hub
    /// last published.
    ///
    /// # Errors
    /// The directory is not that of a hub that was started once.
    pub fn read(data_dir: &Path, url: Option<String>) -> Result<Meeting, PkiError> {
        let (authorities, url) = opened(data_dir, url)?;
        let pins: Vec<String> = authorities.trusted().iter().filter_map(|der| pin(der)).collect();
        Ok(Meeting { url, bundle: authorities.bundle(), pins: pins.join(",") })
    }

    /// The kubeconfig by which the node `name` asks for its first certificate.
    pub fn bootstrap_kubeconfig(&self, name: &str, token: &str) -> String {
        kubeconfig::bootstrap(&self.url, &self.bundle, &format!("{NODE_USER_PREFIX}{name}"), token)
    }
}

/// The pin of a certificate's public key: see [`Meeting::pins`].
fn pin(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate.public_key().raw);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("sha256:{hex}"))
}

/// Writes a file for its owner alone, durably.
///
/// # Errors
/// It cannot be written; the text names it.
pub fn write_secret(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    let bare = path.parent().is_some_and(|parent| parent.as_os_str().is_empty());
    let named = if bare { Path::new(".").join(path) } else { path.to_owned() };
    files::write(&named, content, files::SECRET, Flush::Now)
        .map_err(|source| PkiError::Unwritable { path: path.to_owned(), source })
}

/// Remembers whether the URL in node credentials is a guess, from this machine's name.
///
/// # Errors
/// The mark cannot be written or removed.
pub fn note_guess(data_dir: &Path, is_guess: bool) -> Result<(), PkiError> {
    let path = data_dir.join(GUESS);
    if is_guess {
        return update(&path, "server-url is this machine's name: no --advertise was given\n", files::PUBLIC);
    }
    match fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            if_the_disk_lets(Err(PkiError::Unwritable { path, source }))
        }
        _ => Ok(()),
    }
}

/// The URL that the hub last published, if it is a guess.
pub fn guessed_url(data_dir: &Path) -> Option<String> {
    data_dir.join(GUESS).exists().then(|| published_url(data_dir).ok()).flatten()
}

/// How long the certificates live that the hub signs for nodes, as it last published it.
fn node_life(data_dir: &Path) -> Duration {
    let text = files::read(&data_dir.join(NODE_LIFE)).unwrap_or_default();
    let secs = String::from_utf8_lossy(&text).trim().parse::<u32>();
    secs.map_or(LONGEST, |secs| Duration::seconds(secs.into()))
}

fn published_url(data_dir: &Path) -> Result<String, PkiError> {
    let path = data_dir.join("server-url");
    if !exists(&path)? {
        return Err(PkiError::NoServerUrl { data_dir: data_dir.to_owned() });
    }
    let bytes = files::read(&path).map_err(|source| PkiError::Unreadable { path: path.clone(), source })?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-[]/".contains(&byte);
    if !text.starts_with("https://") || !text.bytes().all(plain) {
        return Err(PkiError::Corrupt { path, why: format!("found {text:?}, expected https://HOST:PORT") });
    }
    Ok(text)
}

/// Writes a file that can be made again, unless its content is already the same.
fn update(path: &Path, content: &str, mode: u32) -> Result<(), PkiError> {
    let written = files::write_if_changed(path, content.as_bytes(), mode);
    if_the_disk_lets(
        written.map(drop).map_err(|source| PkiError::Unwritable { path: path.to_owned(), source }),
    )
}

/// Ignores a write that failed because of the disk: a file that a later start can make again must not keep
/// the hub from starting.
fn if_the_disk_lets(written: Result<(), PkiError>) -> Result<(), PkiError> {
    match written {
        Err(PkiError::Unwritable { path, source }) if sort_of(&source).is_some() => {
            log::error!("cannot write {}: {source}; it stays as it is", path.display());
            Ok(())
        }
        outcome => outcome,
    }
}

/// The authorities; the first is made if this directory never had one. `ca.crt` is written after `ca.pem`:
/// `ca.crt` alone means that the CA was lost. A retirement that a power cut ended is completed.
fn open_authorities(data_dir: &Path) -> Result<Authorities, PkiError> {
    let path = data_dir.join("pki/ca.pem");
    if exists(&path)? {
        let authorities = Authorities::load(data_dir)?;
        for number in authorities.unfinished() {
            match authorities.retire(number, OffsetDateTime::now_utc()) {
                Ok(()) => log::info!("authority {number} is retired: its key is erased"),
                Err(error) => {
                    log::error!("the key of the retired authority {number} cannot be erased: {error}")
                }
            }
        }
        return Ok(authorities);
    }
    if exists(&data_dir.join("ca.crt"))? {
        return Err(PkiError::Authority { path, why: "missing, but its ca.crt is there".to_owned() });
    }
    let authority = Authority::make()?;
    authority.save(&path)?;
    log::info!("made a certificate authority: {}", path.display());
    Authorities::load(data_dir)
}

fn load_authority(path: &Path) -> Result<Authority, PkiError> {
    if let Ok(metadata) = fs::metadata(path)
        && metadata.permissions().mode() & 0o077 != 0
    {
        let mode = metadata.permissions().mode() & 0o777;
        log::warn!(
            "{} has mode {mode:04o}, expected 0600: any reader of it can act as anyone",
            path.display()
        );
    }
    Authority::load(path).map_err(|error| match error {
        PkiError::Corrupt { path, why } => PkiError::Authority { path, why },
        PkiError::Unreadable { path, source } => PkiError::Authority { path, why: source.to_string() },
        other => other,
    })
}

/// A credential that can be issued again: the stored one unless it is missing or has a fault.
fn open_credential(
    path: &Path,
    fault: impl Fn(&Credential) -> Option<String>,
    issue: impl Fn() -> Result<Credential, PkiError>,
) -> Result<Credential, PkiError> {
    if exists(path)? {
        let fault = match Credential::load(path) {
            Ok(credential) => match fault(&credential) {
                None => return Ok(credential),
                Some(fault) => fault,
            },
            Err(error) => error.to_string(),
        };
        log::info!("{} is issued anew: {fault}", path.display());
    }
    let credential = issue()?;
    // a damaged file is noticed by this function at the next start
    if_the_disk_lets(credential.save(path, Flush::Later))?;
    Ok(credential)
}

fn serving_fault(
    authority: &Authority,
    credential: &Credential,
    names: &[String],
    now: OffsetDateTime,
) -> Option<String> {
    common_fault(authority, credential, now, SERVING_RENEWED_BELOW).or_else(|| {
        match credential.covers(names) {
            Ok(true) => None,
            Ok(false) => Some(format!("it does not name all of {}", names.join(", "))),
            Err(error) => Some(error),
        }
    })
}

fn admin_fault(authority: &Authority, credential: &Credential, now: OffsetDateTime) -> Option<String> {
    common_fault(authority, credential, now, ADMIN_RENEWED_BELOW)
}

fn common_fault(
    authority: &Authority,
    credential: &Credential,
    now: OffsetDateTime,
    renewed_below: Duration,
) -> Option<String> {
    match authority.signed(credential) {
        Ok(true) => {}
        Ok(false) => return Some("another authority signed it".to_owned()),
        Err(error) => return Some(error),
    }
    match credential.remaining(now) {
        Ok(left) if left >= renewed_below => None,
        Ok(left) => Some(format!("{} days are left of it", left.whole_days())),
        Err(error) => Some(error),
    }
}

fn certified(
    credential: &Credential,
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
) -> Result<CertifiedKey, PkiError> {
    let key =
        rustls::crypto::ring::sign::any_supported_type(&credential.private_key()).map_err(PkiError::Tls)?;
    let own = std::iter::once(credential.certificate.clone());
    Ok(CertifiedKey::new(own.chain(chain).collect(), key))
}

/// True if a file exists; a permission error is returned as an error: a CA that cannot be read must not look
/// like a first start.
fn exists(path: &Path) -> Result<bool, PkiError> {
    path.try_exists().map_err(|source| PkiError::Unreadable { path: path.to_owned(), source })
}

/// An empty directory for one test.
#[cfg(test)]
fn test_directory(name: &str) -> kedge_rig::Scratch {
    kedge_rig::Scratch::new(&format!("hub-{name}")).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2027-01-01 00:00:00 UTC);
    const URL: &str = "https://127.0.0.1:6443";

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn read(path: PathBuf) -> String {
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn mode(path: PathBuf) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn second_start_keeps_every_file() {
        let data = test_directory("second-start");
        let open = || Pki::open(&data, &names(&["localhost"]), NOW).unwrap().publish(URL, URL, NOW).unwrap();
        open();
        let files =
            ["pki/ca.pem", "pki/serving.pem", "pki/admin.pem", "ca.crt", "admin.kubeconfig", "server-url"];
        let first: Vec<String> = files.iter().map(|file| read(data.join(file))).collect();
        open();
        let second: Vec<String> = files.iter().map(|file| read(data.join(file))).collect();
        assert_eq!(first, second);
        for secret in ["pki/ca.pem", "pki/serving.pem", "pki/admin.pem", "admin.kubeconfig"] {
            assert_eq!(mode(data.join(secret)), 0o600, "{secret}");
        }
        assert_eq!(mode(data.join("pki")), 0o700);
        assert_eq!(mode(data.join("ca.crt")), 0o644);
    }

    #[test]
    fn damaged_or_lost_authority_is_never_replaced() {
        let check = |name: &str, spoil: &dyn Fn(&Path), expect: &str| {
            let data = test_directory(name);
            Pki::open(&data, &names(&["localhost"]), NOW).unwrap();
            spoil(&data.join("pki/ca.pem"));
            let before = fs::read(data.join("pki/ca.pem")).ok();
            let error = Pki::open(&data, &names(&["localhost"]), NOW).err().expect("refused").to_string();
            assert!(error.contains(expect) && error.contains("restore"), "{error}");
            assert_eq!(fs::read(data.join("pki/ca.pem")).ok(), before, "left as found");
        };
        check("ca-lost", &|path| fs::remove_file(path).unwrap(), "missing");
        check("ca-empty", &|path| fs::write(path, "").unwrap(), "expected a PEM certificate");
        check("ca-cut", &|path| fs::write(path, &fs::read(path).unwrap()[..200]).unwrap(), "expected a PEM");
        let other_key = |path: &Path| {
            let (own, other) = (read(path.to_owned()), Authority::make().unwrap());
            let start = own.find("-----BEGIN CERTIFICATE").unwrap();
            let key = {
                let file = path.with_file_name("other.pem");
                other.save(&file).unwrap();
                let text = read(file);
                text[..text.find("-----BEGIN CERTIFICATE").unwrap()].to_owned()
            };
            fs::write(path, key + &own[start..]).unwrap();
        };
        check("ca-other-key", &other_key, "the key does not belong to the certificate");
        let a_leaf = |path: &Path| {
            fs::copy(path.with_file_name("serving.pem"), path).unwrap();
        };
        check("ca-leaf", &a_leaf, "no CA");
    }

    #[test]
    fn files_damaged_by_a_power_cut_are_recreated() {
        let made_anew = ["pki/serving.pem", "pki/admin.pem", "ca.crt", "admin.kubeconfig", "server-url"];
        for content in ["", "nonsense", "\0\0\0\0"] {
            let data = test_directory("spoilt");
            let open =
                || Pki::open(&data, &names(&["localhost"]), NOW).unwrap().publish(URL, URL, NOW).unwrap();
            open();
            let authority = read(data.join("pki/ca.pem"));
            for file in made_anew {
                fs::write(data.join(file), content).unwrap();
            }
            open();
            Credential::load(&data.join("pki/serving.pem")).unwrap();
            let admin = Credential::load(&data.join("pki/admin.pem")).unwrap();
            assert!(read(data.join("admin.kubeconfig")).contains("client-certificate-data: "), "{content:?}");
            assert!(Authority::load(&data.join("pki/ca.pem")).unwrap().signed(&admin).unwrap());
            assert_eq!(read(data.join("pki/ca.pem")), authority);
            assert!(authority.contains(&read(data.join("ca.crt"))));
            assert_eq!(read(data.join("server-url")), format!("{URL}\n"));
        }
    }

    #[test]
    fn serving_certificate_is_reissued_only_for_new_names() {
        let data = test_directory("names");
        let open = |list: &[&str]| {
            Pki::open(&data, &names(list), NOW).unwrap();
            read(data.join("pki/serving.pem"))
        };
        let one = open(&["localhost"]);
        let two = open(&["localhost", "hub.example"]);
        assert_ne!(one, two);
        assert_eq!(open(&["localhost"]), two);
    }

    #[test]
    fn serving_certificate_is_renewed_while_running() {
        let data = test_directory("renew");
        let pki = Pki::open(&data, &names(&["localhost"]), NOW).unwrap();
        let served = || pki.serving.current.read().unwrap().cert[0].clone();
        let first = served();
        assert!(!pki.renew(NOW + Duration::days(364)).unwrap());
        assert_eq!(served(), first);
        assert!(pki.renew(NOW + Duration::days(366)).unwrap());
        assert_ne!(served(), first);
        assert!(!pki.renew(NOW + Duration::days(367)).unwrap());
        let stored = Credential::load(&data.join("pki/serving.pem")).unwrap();
        assert_eq!(stored.certificate, served());
    }

    #[test]
    fn clock_reset_to_1970_renews_nothing() {
        let data = test_directory("fall-back");
        let pki = Pki::open(&data, &names(&["localhost"]), NOW).unwrap();
        assert!(!pki.renew(datetime!(1970-01-01 00:00:10 UTC)).unwrap());
    }

    #[test]
    fn admin_kubeconfig_follows_the_address_and_keeps_its_key() {
        let data = test_directory("admin");
        let pki = Pki::open(&data, &names(&["localhost"]), NOW).unwrap();
        let key = |text: &str| text.lines().find(|line| line.contains("client-key-data")).unwrap().to_owned();
        let first = read(pki.publish(URL, URL, NOW).unwrap());
        let second = read(pki.publish("https://[::1]:7", URL, NOW).unwrap());
        assert!(first.contains("server: \"https://127.0.0.1:6443\""));
        assert!(second.contains("server: \"https://[::1]:7\""));
        assert_eq!(key(&first), key(&second));
        let later = read(pki.publish(URL, URL, NOW + Duration::days(6 * 365)).unwrap());
        assert_ne!(key(&first), key(&later), "renewed half way through its life");
    }

    #[test]
    fn node_kubeconfig_needs_a_hub_that_was_started_once() {
        let data = test_directory("node");
        let make = |url: Option<&str>| node_kubeconfig(&data, "edge-1", url.map(str::to_owned), None, NOW);
        assert!(matches!(make(Some(URL)), Err(PkiError::NoAuthority { .. })));
        let pki = Pki::open(&data, &names(&["localhost"]), NOW).unwrap();
        assert!(matches!(make(None), Err(PkiError::NoServerUrl { .. })));
        assert!(make(Some("https://hub.example:1")).unwrap().contains("\"https://hub.example:1\""));
        pki.publish(URL, "https://hub.example:6443", NOW).unwrap();
        let text = make(None).unwrap();
        assert!(
            text.contains("server: \"https://hub.example:6443\"") && text.contains("\"system:node:edge-1\"")
        );
        // the administrator has the first number
        let issued = |text: &str| {
            let field = text.lines().find_map(|line| line.trim().strip_prefix("client-certificate-data: "));
            let pem = kedge_hub_core::kinds::schema::base64_decode(field.unwrap().trim_matches('"')).unwrap();
            let (_, parsed) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
            kedge_hub_core::identity::Identity::from_client_certificate(&parsed.contents).unwrap().issue
        };
        assert_eq!((issued(&read(data.join("admin.kubeconfig"))), issued(&text)), (2, 3));
        assert_eq!(issued(&make(None).unwrap()), 4);
        fs::write(data.join("server-url"), "https://x\"\ninjected: 1").unwrap();
        assert!(matches!(make(None), Err(PkiError::Corrupt { .. })));
    }

    #[test]
    fn signed_certificate_holds_what_was_asked_and_nothing_more() {
        use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
        let now = datetime!(2026-11-21 12:00:00 UTC);
        let directory = kedge_rig::Scratch::new("hub-signer").unwrap();
        let pki = Pki::open(&directory, &["localhost".to_owned()], now).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:a");
        let key = KeyPair::generate().unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let asked = Request::from_pem(pem.as_bytes()).unwrap();
        let issued = pki.sign_client(&asked, false, now, Duration::days(365)).unwrap();
        let (_, parsed) = x509_parser::pem::parse_x509_pem(issued.as_bytes()).unwrap();
        let identity = kedge_hub_core::identity::Identity::from_client_certificate(&parsed.contents).unwrap();
        assert_eq!((identity.node(), identity.is_admin()), (Some("a"), false));
        let certificate = parsed.parse_x509().unwrap();
        assert_eq!(certificate.validity().not_after.to_datetime(), now + Duration::days(365));
        assert!(!certificate.is_ca());
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth && !usage.any);
    }
}
