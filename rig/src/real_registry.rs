//! Debian's `docker-registry`, as sites run it: over TLS with an authority of its own, and with a password.
//!
//! Always holds: images are put into its storage as files, so that nothing of ours pushes what ours pulls; the process ends with its
//! [`RealRegistry`], and with the program that started it.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::error::RigError;
use crate::scratch::poll;

/// Who may read.
pub const USER: &str = "edge";
/// By this password.
pub const PASSWORD: &str = "s3cret";
/// The same by bcrypt, in the form of htpasswd.
const HTPASSWD: &str = "edge:$2y$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK\n";
/// Longest that it takes to listen.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The registry on a port of loopback.
pub struct RealRegistry {
    process: Child,
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the program is installed.
#[must_use]
pub fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join("docker-registry").exists())
}

impl RealRegistry {
    /// Makes in `directory` an authority, and a certificate from it for these names and addresses; returns the authority in PEM.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn certify(directory: &Path, names: &[&str]) -> Result<String, RigError> {
        let bad = |error: rcgen::Error| RigError::BadAnswer {
            command: format!("make a certificate for {names:?}"),
            problem: error.to_string(),
        };
        let authority_key = KeyPair::generate().map_err(bad)?;
        let mut params = CertificateParams::new(Vec::new()).map_err(bad)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).map_err(bad)?.pem();
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().map_err(bad)?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let leaf = CertificateParams::new(names.clone()).and_then(|params| params.signed_by(&key, &issuer));
        let leaf = leaf.map_err(|error| RigError::BadAnswer {
            command: format!("make a certificate for {names:?}"),
            problem: error.to_string(),
        })?;
        write(&directory.join("ca.pem"), authority.as_bytes())?;
        write(&directory.join("leaf.pem"), leaf.pem().as_bytes())?;
        write(&directory.join("leaf.key"), key.serialize_pem().as_bytes())?;
        Ok(authority)
    }

    /// Starts it with what [`RealRegistry::certify`] and [`store`] left in `directory`, and waits until it listens.
    ///
    /// # Errors
    /// The program is not there, or does not listen; its log is in the error.
    pub fn start(directory: &Path, port: u16) -> Result<RealRegistry, RigError> {
        let shown = directory.display();
        let config = json!({
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": format!("{shown}/storage")}},
            "auth": {"htpasswd": {"realm": "site", "path": format!("{shown}/htpasswd")}},
            "http": {"addr": format!("127.0.0.1:{port}"),
                "tls": {"certificate": format!("{shown}/leaf.pem"), "key": format!("{shown}/leaf.key")}},
        });
        write(&directory.join("htpasswd"), HTPASSWD.as_bytes())?;
        // JSON is YAML
        let path = directory.join("config.yml");
        write(&path, config.to_string().as_bytes())?;
        let log = directory.join("registry.log");
        let output = fs::File::create(&log).map_err(RigError::io("create", &log))?;
        let errors = output.try_clone().map_err(RigError::io("open", &log))?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "docker-registry", "serve"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(RigError::io("start docker-registry with", &path))?;
        let mut registry = RealRegistry { process };
        // one that has ended never will
        let listens = poll(START_LIMIT, || match registry.process.try_wait() {
            Ok(Some(_)) => Some(false),
            _ => TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(true),
        });
        match listens {
            Some(true) => Ok(registry),
            _ => Err(RigError::TimedOut {
                awaited: format!("docker-registry on port {port} of loopback"),
                found: fs::read_to_string(&log).unwrap_or_default(),
            }),
        }
    }
}

/// Puts a manifest of any sort, and the blobs that it names, into the storage of the registry's own file driver; returns its digest.
/// Without a tag it is found by that alone.
///
/// # Errors
/// The files cannot be written.
pub fn store(
    directory: &Path,
    repository: &str,
    tag: Option<&str>,
    manifest: &[u8],
    blobs: &[&[u8]],
) -> Result<String, RigError> {
    let storage = Storage(directory.join("storage/docker/registry/v2"));
    for bytes in blobs {
        let hex = storage.blob(bytes)?;
        storage.link(&format!("repositories/{repository}/_layers/sha256/{hex}/link"), &hex)?;
    }
    let hex = storage.blob(manifest)?;
    let manifests = format!("repositories/{repository}/_manifests");
    storage.link(&format!("{manifests}/revisions/sha256/{hex}/link"), &hex)?;
    if let Some(tag) = tag {
        storage.link(&format!("{manifests}/tags/{tag}/current/link"), &hex)?;
        storage.link(&format!("{manifests}/tags/{tag}/index/sha256/{hex}/link"), &hex)?;
    }
    Ok(format!("sha256:{hex}"))
}

/// The SHA-256 sum of these bytes, as registries write it.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Storage(PathBuf);

impl Storage {
    fn blob(&self, bytes: &[u8]) -> Result<String, RigError> {
        let hex = hex(bytes);
        write(&self.0.join(format!("blobs/sha256/{}/{hex}/data", &hex[..2])), bytes)?;
        Ok(hex)
    }

    fn link(&self, path: &str, hex: &str) -> Result<(), RigError> {
        write(&self.0.join(path), format!("sha256:{hex}").as_bytes())
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), RigError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(RigError::io("create directory", parent))?;
    fs::write(path, bytes).map_err(RigError::io("write", path))
}
