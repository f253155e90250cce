//! Debian's `docker-registry`, as sites run it: over TLS with an authority of its own, and with a password or
//! with tokens.
//!
//! Always holds: images are put into its storage as files, so that no code of ours pushes the images that
//! ours pulls; the process ends with its [`RealRegistry`], and with the program that started it.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SigningKey as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::RigError;
use crate::scratch::poll;

/// The user that may read.
pub const USER: &str = "edge";
/// The password of that user.
pub const PASSWORD: &str = "s3cret";
/// The password as a bcrypt hash, in the format of htpasswd.
const HTPASSWD: &str = "edge:$2y$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK\n";
/// Longest time until it listens.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The issuer of tokens, and their audience.
const ISSUER: &str = "site";
/// How much longer than stated the registry accepts a token.
const LEEWAY_SECS: u64 = 60;

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

/// True if the program is installed.
#[must_use]
pub fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join("docker-registry").exists())
}

impl RealRegistry {
    /// Makes in `directory` an authority, and a certificate from it for these names and addresses; returns
    /// the authority in PEM.
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
        let leaf = CertificateParams::new(names.clone()).and_then(|mut params| {
            // another name than the authority's, or OpenSSL takes it for a certificate that signed itself
            params.distinguished_name.push(DnType::CommonName, "registry");
            params.signed_by(&key, &issuer)
        });
        let leaf = leaf.map_err(|error| RigError::BadAnswer {
            command: format!("make a certificate for {names:?}"),
            problem: error.to_string(),
        })?;
        write(&directory.join("ca.pem"), authority.as_bytes())?;
        write(&directory.join("leaf.pem"), leaf.pem().as_bytes())?;
        write(&directory.join("leaf.key"), key.serialize_pem().as_bytes())?;
        Ok(authority)
    }

    /// Starts it with the files that [`RealRegistry::certify`] and [`store`] made in `directory`, and waits
    /// until it listens.
    ///
    /// # Errors
    /// The program is missing, or does not listen; its log is in the error.
    pub fn start(directory: &Path, port: u16) -> Result<RealRegistry, RigError> {
        Self::start_with(directory, port, &json!({}))
    }

    /// The same, with access by tokens that a server at this URL issues: see [`token`].
    ///
    /// # Errors
    /// As [`RealRegistry::start`].
    pub fn start_with_tokens(directory: &Path, port: u16, realm: &str) -> Result<RealRegistry, RigError> {
        let authority = directory.join("ca.pem");
        let token = json!({"realm": realm, "service": ISSUER, "issuer": ISSUER, "rootcertbundle": authority});
        Self::start_with(directory, port, &json!({"auth": {"token": token}}))
    }

    /// The same, redirecting requests for blobs to files below this URL.
    ///
    /// # Errors
    /// As [`RealRegistry::start`].
    pub fn start_redirecting(directory: &Path, port: u16, to: &str) -> Result<RealRegistry, RigError> {
        let redirect = json!({"name": "redirect", "options": {"baseurl": to}});
        Self::start_with(directory, port, &json!({"middleware": {"storage": [redirect]}}))
    }

    /// With additional parts of its configuration.
    fn start_with(directory: &Path, port: u16, parts: &Value) -> Result<RealRegistry, RigError> {
        let shown = directory.display();
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": format!("{shown}/storage")}},
            "auth": {"htpasswd": {"realm": "site", "path": format!("{shown}/htpasswd")}},
            "http": {"addr": format!("127.0.0.1:{port}"),
                "tls": {"certificate": format!("{shown}/leaf.pem"), "key": format!("{shown}/leaf.key")}},
        });
        for (name, part) in parts.as_object().into_iter().flatten() {
            config[name] = part.clone();
        }
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
        // a registry that has ended will never listen
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

/// A token with which the registry whose key [`RealRegistry::certify`] made lets its bearer read a
/// repository, for this many seconds.
///
/// # Errors
/// The key cannot be read.
pub fn token(directory: &Path, repository: &str, secs: u64) -> Result<String, RigError> {
    let read = |name: &str| {
        let path = directory.join(name);
        fs::read_to_string(&path).map_err(RigError::io("read", &path))
    };
    let bad = |error: rcgen::Error| RigError::BadAnswer {
        command: "sign a token".to_owned(),
        problem: error.to_string(),
    };
    let key = KeyPair::from_pem(&read("leaf.key")?).map_err(bad)?;
    let leaf = read("leaf.pem")?;
    let certificate: String = leaf.lines().filter(|line| !line.starts_with("-----")).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let header = json!({"typ": "JWT", "alg": "ES256", "x5c": [certificate]});
    let claims = json!({
        "iss": ISSUER, "sub": USER, "aud": ISSUER, "jti": now.to_string(),
        // the registry accepts a token for a minute more
        "nbf": now - LEEWAY_SECS, "iat": now - LEEWAY_SECS, "exp": now + secs - LEEWAY_SECS,
        "access": [{"type": "repository", "name": repository, "actions": ["pull"]}],
    });
    let encoded = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encoded(&header), encoded(&claims));
    let signature = plain_signature(&key.sign(signed.as_bytes()).map_err(bad)?);
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// The two numbers of a P-256 signature as a token contains them, of 32 bytes each, extracted from ASN.1.
fn plain_signature(der: &[u8]) -> Vec<u8> {
    let mut numbers = der.get(2..).unwrap_or_default();
    let mut plain = Vec::new();
    for _ in 0..2 {
        let length = numbers.get(1).copied().map_or(0, usize::from);
        let number = numbers.get(2..2 + length).unwrap_or_default();
        let number = &number[number.len().saturating_sub(32)..];
        plain.resize(plain.len() + 32 - number.len(), 0);
        plain.extend(number);
        numbers = numbers.get(2 + length..).unwrap_or_default();
    }
    plain
}

/// `user:password` as in Docker's file of credentials.
#[must_use]
pub fn docker_auth() -> String {
    BASE64_STANDARD.encode(format!("{USER}:{PASSWORD}"))
}

/// The path of a blob that [`store`] wrote, below `storage`.
#[must_use]
pub fn path_of_blob(digest: &str) -> PathBuf {
    let hex = digest.trim_start_matches("sha256:");
    Path::new("docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
}

/// Puts a manifest of any type, and the blobs that it refers to, into the storage of the registry's own file
/// driver; returns its digest. Without a tag it can only be found by its digest.
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

/// The SHA-256 digest of these bytes, in the notation of registries.
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
