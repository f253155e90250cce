//! A `kedge-hub` process for tests and `make try`.
//!
//! Owns its data directory and its process. Always holds: it listens on one address, by default 127.0.0.1, on
//! a port that the system chose at the first start; every later start uses the same port, so nodes find it
//! again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;

use crate::babysitter::{Babysitter, Unit};
use crate::error::RigError;
use crate::kubectl::Kubectl;
use crate::programs;

/// Longest wait for the hub's start: it makes keys and a database.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for its proper stop.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A hub and the administrator's kubectl for it.
pub struct Hub {
    data_dir: PathBuf,
    log: PathBuf,
    program: PathBuf,
    flags: Vec<String>,
    address: String,
    babysitter: Option<Babysitter>,
    kubectl: Kubectl,
}

impl Hub {
    /// Starts a hub whose data, log and credentials are below `dir`. `flags` are added to its command line.
    pub fn start(dir: &Path, flags: &[&str]) -> Result<Hub, RigError> {
        Hub::start_program(dir, flags, programs::built("kedge-hub")?)
    }

    /// The same on another address of this machine, and a port that the system chooses.
    pub fn start_at(dir: &Path, address: IpAddr) -> Result<Hub, RigError> {
        Hub::open(dir, &[], programs::built("kedge-hub")?, address)
    }

    /// The same with a program that replaces `kedge-hub`.
    pub fn start_program(dir: &Path, flags: &[&str], program: PathBuf) -> Result<Hub, RigError> {
        Hub::open(dir, flags, program, Ipv4Addr::LOCALHOST.into())
    }

    fn open(dir: &Path, flags: &[&str], program: PathBuf, address: IpAddr) -> Result<Hub, RigError> {
        std::fs::create_dir_all(dir).map_err(RigError::io("create directory", dir))?;
        let data_dir = dir.join("data");
        let kubeconfig = data_dir.join("admin.kubeconfig");
        let mut hub = Hub {
            log: dir.join("log"),
            program,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            address: SocketAddr::new(address, 0).to_string(),
            babysitter: None,
            kubectl: Kubectl::new(&kubeconfig)?,
            data_dir,
        };
        hub.start_again()?;
        hub.address = hub.chosen_address()?;
        Ok(hub)
    }

    /// Starts it after [`Hub::stop`] or [`Hub::kill`], and waits until it answers.
    pub fn start_again(&mut self) -> Result<(), RigError> {
        let mut command = vec![
            self.program.clone().into(),
            "serve".into(),
            "--data-dir".into(),
            self.data_dir.clone().into(),
            "--listen".into(),
            self.address.clone().into(),
        ];
        command.extend(self.flags.iter().map(Into::into));
        let mut unit = Unit::new("hub", command);
        unit.log = Some(self.log.clone());
        // as in kedge-hub.service
        unit.limits.watchdog = None;
        unit.restart = false;
        let babysitter = Babysitter::start(unit)?;
        babysitter.wait_ready(START_LIMIT)?;
        self.babysitter = Some(babysitter);
        Ok(())
    }

    /// Stops it properly.
    pub fn stop(&mut self) -> Result<(), RigError> {
        match self.babysitter.take() {
            Some(babysitter) => Ok(babysitter.stop_and_wait(STOP_LIMIT)?),
            None => Ok(()),
        }
    }

    /// Kills it with SIGKILL, as a power cut would end it.
    pub fn kill(&mut self) {
        self.babysitter = None;
    }

    /// True while the process runs.
    pub fn is_running(&self) -> bool {
        self.babysitter.as_ref().is_some_and(|babysitter| babysitter.state().is_ready())
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.babysitter.as_ref()?.state().pid
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// HOST:PORT on which it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The hub's log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// A kubeconfig for the node of this name, as an operator would make it.
    pub fn node_kubeconfig(&self, node: &str) -> Result<String, RigError> {
        self.command(&["node-kubeconfig", node])
    }

    /// A bootstrap kubeconfig for the node of this name, as an operator would make it.
    pub fn node_bootstrap(&self, node: &str) -> Result<String, RigError> {
        self.command(&["node-bootstrap", node])
    }

    /// Runs a command of `kedge-hub` that must succeed; returns what it printed.
    pub fn command(&self, words: &[&str]) -> Result<String, RigError> {
        let output = Command::new(&self.program)
            .args(words)
            .arg("--data-dir")
            .arg(&self.data_dir)
            .output()
            .map_err(RigError::io("run", &self.program))?;
        if !output.status.success() {
            return Err(RigError::Failed {
                command: format!("kedge-hub {}", words.join(" ")),
                status: output.status.to_string(),
                said: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A node's credential (certificate and key in one PEM) as it would be long after: the same key and the
    /// same number, and it ended yesterday.
    pub fn expired(&self, node: &str, credential: &str) -> Result<String, RigError> {
        let bad = |problem: String| RigError::BadAnswer {
            command: format!("make an expired certificate of {node}"),
            problem,
        };
        let made = || -> Result<String, Box<dyn std::error::Error>> {
            let der = CertificateDer::from_pem_slice(credential.as_bytes())?;
            // the mark of a serial number, which has 20 bytes
            let mark = der.windows(4).position(|bytes| bytes == b"kdgn").ok_or("it has no number")?;
            let serial = der.get(mark..mark + 20).ok_or("its number is cut")?;
            let mut params = CertificateParams::default();
            params.serial_number = Some(serial.to_vec().into());
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
            params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            params.not_before = SystemTime::UNIX_EPOCH.into();
            params.not_after = (SystemTime::now() - Duration::from_secs(86_400)).into();
            let file = |name: &str| std::fs::read_to_string(self.data_dir.join(name));
            let authority = KeyPair::from_pem(&file("pki/ca.pem")?)?;
            let issuer = Issuer::from_ca_cert_pem(&file("ca.crt")?, authority)?;
            let key = credential.find("-----BEGIN PRIVATE KEY-----").ok_or("it has no key")?;
            let key = KeyPair::from_pem(credential.get(key..).unwrap_or_default())?;
            Ok(params.signed_by(&key, &issuer)?.pem() + &key.serialize_pem())
        };
        made().map_err(|error| bad(error.to_string()))
    }

    /// What `kedge-hub rollout SET --watch` prints until it ends, and whether the update is complete then.
    pub fn watch_rollout(&self, set: &str) -> Result<(bool, String), RigError> {
        self.ask_rollout(&["rollout", set, "--watch", "--data-dir"])
    }

    /// What `kedge-hub rollout SET` prints, and whether there is such a set.
    pub fn rollout(&self, set: &str) -> Result<(bool, String), RigError> {
        self.ask_rollout(&["rollout", set, "--data-dir"])
    }

    fn ask_rollout(&self, arguments: &[&str]) -> Result<(bool, String), RigError> {
        let output = Command::new(&self.program)
            .args(arguments)
            .arg(&self.data_dir)
            .output()
            .map_err(RigError::io("run", &self.program))?;
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        Ok((output.status.success(), said.concat()))
    }

    fn chosen_address(&self) -> Result<String, RigError> {
        let config = self.kubectl.json(&["config", "view", "--raw"])?;
        let server = config.pointer("/clusters/0/cluster/server").and_then(Value::as_str).unwrap_or_default();
        match server.strip_prefix("https://").map(|rest| rest.trim_end_matches('/')) {
            Some(address) if address.contains(':') => Ok(address.to_owned()),
            _ => Err(RigError::BadAnswer {
                command: format!("read {}", self.kubectl.kubeconfig().display()),
                problem: format!("the cluster's server is {server:?}, expected https://HOST:PORT"),
            }),
        }
    }
}
