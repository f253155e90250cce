//! The files in `pki/` below `--root-dir`: their names, and the form that all of them have.
//!
//! Always holds: a file begins with a digest of the rest. Leaves to others: their content (`store`, `trust`)
//! and use (`in_use`).

use super::certificates;
use super::x509::hex;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use std::path::{Path, PathBuf};

/// The folder of the node's own files below `--root-dir`.
pub(crate) const FOLDER: &str = "pki";
/// The certificate in use, with its key.
pub(crate) const CURRENT: &str = "current";
/// The kubeconfig that the node made when it joined.
pub(crate) const KUBECONFIG: &str = "kubeconfig";
/// The authorities in place of the kubeconfig's.
pub(crate) const AUTHORITIES: &str = "authorities";
/// Begins a file: a digest of the rest follows.
const SEAL: &str = "# sha256 ";
/// Begins the line that names what the content took the place of: a certificate of the kubeconfig, or its set
/// of authorities.
pub(super) const REPLACES: &str = "# replaces ";

/// The path of the folder.
pub(crate) fn folder(root_dir: &Path) -> PathBuf {
    root_dir.join(FOLDER)
}

/// A content behind its digest.
pub(super) fn sealed(content: &[u8]) -> Vec<u8> {
    [seal(content).as_bytes(), content].concat()
}

fn seal(content: &[u8]) -> String {
    format!("{SEAL}{}\n", hex(digest(&SHA256, content).as_ref()))
}

/// The content behind a digest.
pub(crate) fn opened(content: &[u8]) -> Result<&[u8], String> {
    let end = content.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let (first, rest) = content.split_at(end);
    match first == seal(rest).as_bytes() {
        true => Ok(rest),
        false => Err("does not have the digest that it begins with".to_owned()),
    }
}

/// The certificate that this one took the place of.
pub(crate) fn replaces(pem: &[u8]) -> Option<String> {
    let line = pem.split(|byte| *byte == b'\n').next()?;
    core::str::from_utf8(line).ok()?.strip_prefix(REPLACES).map(str::to_owned)
}

/// The short name of a set: the first eight digits of the SHA-256 over the sorted SHA-256 of each
/// certificate. The hub names the set that it announces in the same way.
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

#[cfg(test)]
mod tests {
    use super::super::x509;
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
