//! Keys, requests and certificates of this node: what the port's certificate and the node's own have in
//! common, and the node's own on the disk and at the API server.
//!
//! Always holds: a private key never leaves the device. Leaves to others: what to do when
//! (`kedge_core::identity`), verification (rustls), connections (`net`).

pub(crate) mod certificate;
pub(crate) mod files;
pub(crate) mod in_use;
pub(crate) mod request;
pub(crate) mod store;
#[cfg(test)]
mod tests;
pub(crate) mod trust;
pub(crate) mod x509;

use crate::net::kubeconfig::MAX_CERTIFICATES;
use crate::net::tls;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate, those that lead to its authority, and its key.
pub(crate) type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A certificate and its key.
pub(crate) fn of_pem(certificate: &[u8], key: &[u8]) -> Result<Chain, String> {
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("has no key in PEM: {error}"))?;
    // while a certificate and its key are being replaced, they do not match for a moment
    rustls::sign::CertifiedKey::from_der(chain.clone(), key.clone_key(), &tls::provider())
        .map_err(|error| format!("and its key are no pair: {error}"))?;
    Ok((chain, key))
}

pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem).take(MAX_CERTIFICATES).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("is not certificates in PEM: {error}"))?;
    if found.is_empty() { Err("holds no certificate".to_owned()) } else { Ok(found) }
}
