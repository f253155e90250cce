//! The check of clients' certificates in TLS.
//!
//! Always holds: a certificate passes if an authority of the hub signed it for clients, whether or not it has
//! expired. One with any other fault is refused, and so is an expired one with another fault. The server
//! judges and answers the holder of an expired certificate by request, where TLS could only hang up. Left to
//! others: what an expired certificate is good for (`server::authentication`, `kedge_hub_core::identity`).

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::PkiError;

/// See the module.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
}

impl ClientVerifier {
    /// Accepts certificates of these authorities, and clients without one.
    pub(super) fn new(
        authorities: RootCertStore,
        provider: &Arc<CryptoProvider>,
    ) -> Result<ClientVerifier, PkiError> {
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| PkiError::Tls(Error::General(error.to_string())))?;
        Ok(ClientVerifier { inner })
    }
}

/// The last second in which a certificate was valid.
fn last_second(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let end = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(end)))
}

impl ClientCertVerifier for ClientVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // an authority signs every client's certificate itself: so its issuer's name tells which one it was
        let verified = self.inner.verify_client_cert(end_entity, &[], now);
        let is_expired = matches!(
            verified,
            Err(Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. }
            ))
        );
        // expiry is checked before the signature: all of it again, at a time when it had not expired
        match last_second(end_entity).filter(|_| is_expired) {
            Some(then) => self.inner.verify_client_cert(end_entity, &[], then),
            None => verified,
        }
    }

    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
