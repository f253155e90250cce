//! One read from a server of which nothing is known but its address, and perhaps an authority: the first step
//! of `kedge join`.
//!
//! Always holds: no credential is sent; the server's signature in the handshake is checked even if its
//! certificate is not; the answer is bounded. An answer under an unverified certificate proves nothing; the
//! caller (`join::discovery`) judges it.

use super::client::{MAX_STATUS_BYTES, describe, is_untrusted, refusal};
use super::error::NetError;
use super::kubeconfig::{MAX_PEM_BYTES, ServerAddress};
use super::proxy::ProxyEnvironment;
use super::transport::{BUFFER_BYTES, Cancel, Dialler, Lookup, NoResolver, Route, WallClock, plain};
use crate::net::tls;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::config::AutoHeaderValue;
use ureq::http;

/// The ConfigMap with a cluster's address and authorities, which anybody may read.
pub(crate) const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
/// Its most bytes: a kubeconfig and a signature for each of some hundred tokens.
pub(crate) const CLUSTER_INFO_BYTES: usize = 2 * MAX_PEM_BYTES;
/// Longest time for one read.
const DEADLINE: Duration = Duration::from_secs(15);

/// The server's certificate is verified against these authorities, or not at all.
#[derive(Clone, Copy)]
pub(crate) enum Trust<'a> {
    Anything,
    Only(&'a [CertificateDer<'static>]),
}

/// Reads a path of the server without a credential; at most `limit` bytes.
///
/// # Errors
/// No whole answer with status 200.
pub(crate) fn get(
    server: &ServerAddress,
    path: &str,
    limit: usize,
    trust: Trust<'_>,
    (clock, proxies): (WallClock, &ProxyEnvironment),
) -> Result<Vec<u8>, NetError> {
    let request = format!("GET {}{path}", server.url());
    let unsendable = |why: String| NetError::Unsendable { request: request.clone(), why };
    let proxy = proxies.proxy_for(&server.host, server.port).map_err(unsendable)?;
    let address = (server.host.as_str(), server.port);
    let route = match trust {
        Trust::Anything => Route::judged_by(Arc::new(AnyCertificate), address, proxy, clock),
        Trust::Only(authorities) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(authorities.iter().cloned());
            Route::to_stranger(address, Arc::new(roots), proxy, clock)
        }
    };
    let dialler = Dialler {
        route: Arc::new(route.map_err(|error| unsendable(error.to_string()))?),
        lookup: Arc::new(Lookup::system()),
        cancel: Cancel::new(),
        dialled: Arc::default(),
        connected: Arc::default(),
        links: Arc::default(),
        boot_line: "".into(),
        user_agent: concat!("kedge/", env!("CARGO_PKG_VERSION")).into(),
    };
    let config = Agent::config_builder()
        .https_only(true)
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .user_agent(AutoHeaderValue::None)
        .accept(AutoHeaderValue::None)
        .accept_encoding(AutoHeaderValue::None)
        .max_response_header_size(BUFFER_BYTES / 2)
        .input_buffer_size(BUFFER_BYTES)
        .output_buffer_size(BUFFER_BYTES)
        .timeout_global(Some(DEADLINE))
        .build();
    let agent = Agent::with_parts(config, dialler, NoResolver);
    let head = http::Request::get(format!("{}{path}", server.url())).body(());
    let answer = agent.run(head.map_err(|error| unsendable(error.to_string()))?).map_err(|error| {
        let (request, why) = (request.clone(), describe(&error));
        match &error {
            ureq::Error::Other(inner) if is_untrusted(inner.as_ref()) => NetError::Untrusted { request, why },
            _ => NetError::Unreachable { request, why },
        }
    })?;
    let status = answer.status().as_u16();
    let mut body = Vec::new();
    let most = if status == 200 { limit } else { MAX_STATUS_BYTES };
    let reader = answer.into_body().into_with_config().limit(u64::MAX).reader();
    let read = reader.take(most as u64 + 1).read_to_end(&mut body);
    if status != 200 {
        return Err(refusal(request, status, &body, None));
    }
    if let Err(error) = read {
        let why = format!("the answer broke off: {}", plain(&error));
        return Err(NetError::Unreachable { request, why });
    }
    match body.len() > limit {
        true => Err(NetError::TooLarge { request, status, limit }),
        false => Ok(body),
    }
}

/// Accepts every certificate, but only from a server that has its key.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &tls::SIGNATURES)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &tls::SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        tls::SIGNATURES.supported_schemes()
    }
}
