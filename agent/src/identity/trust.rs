//! The certificate authorities that this node trusts, while a hub replaces its own: `pki/authorities` takes
//! the place of the kubeconfig's.
//!
//! Always holds: three checks precede a new set. The server that sends it has a good certificate under the
//! present set, has announced the new set, and has a good certificate under that, too. A kubeconfig with
//! other authorities of its own ends the set. Blocks for the network and the disk. Leaves to others: when to
//! take a set (core), its use for connections (`net`).

use super::certificates;
use super::files::{AUTHORITIES, FOLDER, REPLACES, name_of, sealed};
use super::in_use;
use super::x509;
use crate::errors::chain;
use crate::net::kubeconfig::{ServerAddress, certificate_authority};
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::WallClock;
use crate::net::unknown_server::{self, CLUSTER_INFO, CLUSTER_INFO_BYTES, Trust};
use kedge_platform::Files;
use kedge_platform::linux::read_named_file;
use rustls::pki_types::CertificateDer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The inputs for taking a set.
pub(crate) struct Taking {
    /// `--root-dir`.
    pub(crate) files: Arc<dyn Files>,
    /// The folder with this node's own files, below it.
    pub(crate) own: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    /// The server in use, if it is not the kubeconfig's.
    pub(crate) server: Option<ServerAddress>,
    pub(crate) clock: WallClock,
}

impl Taking {
    /// Reads the set of this name from the server and writes it.
    ///
    /// # Errors
    /// A check failed, or there was no answer; nothing was written.
    pub(crate) fn take(&self, wanted: &str) -> Result<(), String> {
        let present = in_use::load(&self.kubeconfig, Some(&self.own), &read_named_file);
        let present = present.map_err(|error| chain(&error))?;
        let given = in_use::load_given(&self.kubeconfig, &self.own, &read_named_file)
            .map_err(|error| chain(&error))?;
        let server = self.server.as_ref().unwrap_or(&present.server);
        let proxies = ProxyEnvironment::of_process();
        let read = |authorities: &[CertificateDer<'static>]| {
            let parts = (self.clock.clone(), &proxies);
            unknown_server::get(server, CLUSTER_INFO, CLUSTER_INFO_BYTES, Trust::Only(authorities), parts)
        };
        let new = offered(&read(&present.roots).map_err(|error| chain(&error))?)?;
        if name_of(&new) != wanted {
            return Err(format!("the server offers the set {}", name_of(&new)));
        }
        read(&new).map_err(|error| format!("the server is not good under it: {}", chain(&error)))?;
        let pem: String = new.iter().map(|authority| x509::pem("CERTIFICATE", authority)).collect();
        let content = format!("{REPLACES}{}\n{pem}", name_of(&given.roots));
        let path = Path::new(FOLDER).join(AUTHORITIES);
        self.files.write_durably(&path, &sealed(content.as_bytes())).map_err(|error| chain(&error))
    }
}

/// The authorities in a ConfigMap `cluster-info`.
fn offered(config_map: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let value: serde_json::Value = kedge_api::read::from_slice(config_map)
        .map_err(|error| format!("cluster-info is not the JSON of a ConfigMap: {error}"))?;
    let kubeconfig = value["data"]["kubeconfig"].as_str().ok_or("cluster-info has no kubeconfig")?;
    let pem = certificate_authority(kubeconfig).ok_or("cluster-info has no certificate-authority-data")?;
    certificates(&pem).map_err(|why| format!("cluster-info {why}"))
}
