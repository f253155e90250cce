//! The certificate authorities that this node trusts, while a hub replaces its own: `pki/authorities` takes
//! the place of the kubeconfig's.
//!
//! Always holds: a set is taken only if the server whose certificate is good under the present set sends it,
//! has announced it, and is good under the new set, too; a kubeconfig with other authorities of its own ends
//! it. Blocks for the network and the disk. Leaves to others: when (core), the use for connections (`net`).

use super::certificates;
use super::in_use;
use super::store::{opened, sealed};
use super::x509::{self, hex};
use crate::errors::chain;
use crate::net::kubeconfig::{ServerAddress, certificate_authority};
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::WallClock;
use crate::net::unknown_server::{self, CLUSTER_INFO, CLUSTER_INFO_BYTES, Trust};
use kedge_platform::Files;
use kedge_platform::linux::read_named_file;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file in `pki/`.
pub(crate) const AUTHORITIES: &str = "authorities";
/// Begins the line with the name of the set that the kubeconfig has.
const REPLACES: &str = "# replaces ";

/// The short name of a set: the first eight digits of the SHA-256 over the sorted SHA-256 of each certificate.
/// The hub names the set that it announces in the same way.
pub(crate) fn name_of(authorities: &[CertificateDer<'_>]) -> String {
    let each = authorities.iter().map(|authority| digest(&SHA256, authority).as_ref().to_vec());
    let mut each: Vec<Vec<u8>> = each.collect();
    each.sort_unstable();
    hex(&digest(&SHA256, &each.concat()).as_ref()[..4])
}

/// The set in a file of this node, if it takes the place of this one.
pub(super) fn in_place_of(
    given: &[CertificateDer<'_>],
    content: &[u8],
) -> Option<Vec<CertificateDer<'static>>> {
    let content = opened(content).ok()?;
    let end = content.iter().position(|byte| *byte == b'\n')?;
    let replaced = core::str::from_utf8(&content[..end]).ok()?.strip_prefix(REPLACES)?;
    (replaced == name_of(given)).then(|| certificates(&content[end..]).ok()).flatten()
}

/// What taking a set needs.
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
        let path = Path::new(in_use::FOLDER).join(AUTHORITIES);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn authorities(count: u8) -> Vec<CertificateDer<'static>> {
        (0..count)
            .map(|_| {
                let key = rcgen::KeyPair::generate().unwrap();
                rcgen::CertificateParams::default().self_signed(&key).unwrap().der().clone()
            })
            .collect()
    }

    #[test]
    fn order_does_not_change_the_name_of_a_set() {
        let mut set = authorities(3);
        let name = name_of(&set);
        set.rotate_left(1);
        assert_eq!((name_of(&set), name.len()), (name.clone(), 8));
        set.pop();
        assert_ne!(name_of(&set), name);
    }

    #[test]
    fn set_takes_the_place_of_one_other_set_alone() {
        let (given, new) = (authorities(1), authorities(2));
        let pem: String = new.iter().map(|authority| x509::pem("CERTIFICATE", authority)).collect();
        let file = sealed(format!("{REPLACES}{}\n{pem}", name_of(&given)).as_bytes());
        assert_eq!(in_place_of(&given, &file), Some(new.clone()));
        assert_eq!(in_place_of(&new, &file), None, "the kubeconfig was replaced");
        let mut spoilt = file.clone();
        spoilt[120] ^= 1;
        assert_eq!(in_place_of(&given, &spoilt), None);
        assert_eq!(in_place_of(&given, b""), None);
    }
}
