//! The authorities for a registry's certificate: those of the system, and one more for single registries.
//!
//! Always holds: a system without a file of authorities has none, and an error says so; an unreadable
//! certificate of the system is skipped, an unreadable one of the configuration is an error.

use std::path::Path;
use std::sync::Arc;

use kedge_core::images::settings::Authority;
use kedge_platform::linux::read_named_file;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::errors::chain;

/// The paths of distributions, in the order of Go's crypto/x509.
const SYSTEM: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Longest file of authorities; Mozilla's list is 220 KiB.
const MAX_BYTES: usize = 4 << 20;

/// The authorities of the system.
pub(super) fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    if let Some(bytes) = SYSTEM.iter().find_map(|path| read_named_file(Path::new(path), MAX_BYTES).ok()) {
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    }
    roots
}

/// The authorities for one registry: the system's, shared, and perhaps one more.
///
/// # Errors
/// The authority that the configuration names cannot be used.
pub(super) fn roots(
    system: Arc<RootCertStore>,
    authority: Option<&Authority>,
) -> Result<Arc<RootCertStore>, String> {
    let (name, bytes) = match authority {
        None => return Ok(system),
        Some(Authority::Pem(text)) => ("kedge.images.certificateAuthorities", text.clone().into_bytes()),
        Some(Authority::File(path)) => {
            let read = read_named_file(Path::new(path), MAX_BYTES).map_err(|error| chain(&error))?;
            (path.as_str(), read)
        }
    };
    let (mut roots, mut count) = ((*system).clone(), 0);
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|error| format!("{name}: not certificates in PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("{name}: {error}"))?;
        count += 1;
    }
    if count == 0 { Err(format!("{name}: holds no certificate")) } else { Ok(Arc::new(roots)) }
}
