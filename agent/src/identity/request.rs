//! A CertificateSigningRequest at the API server: made once, and read until it is decided.
//!
//! Always holds: a request that exists is not made again, because its name is derived from its key. Blocks.
//! Leaves to others: how often to ask, and what becomes of the certificate.

use crate::net::client::{Client, Request};
use crate::net::error::NetError;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kedge_api::{Timestamp, excerpt, excerpt_of};
use serde_json::{Value, json};
use std::time::Duration;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// The condition by which our hub says that it leaves the decision to a person.
const AWAITS_APPROVAL: &str = "AwaitingApproval";

/// The state of a request.
pub(crate) enum State {
    /// It was made just now.
    Made,
    /// It waits: for how many seconds, by the server's clock, and why, if the server says so.
    Waits(u64, Option<String>),
    /// It will not be signed: `Denied: message`.
    Refused(String),
    /// The certificate in PEM.
    Signed(Vec<u8>),
}

/// The wanted certificate.
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    /// In PEM.
    pub(crate) request: &'a str,
    pub(crate) signer: &'a str,
    pub(crate) usages: [&'a str; 2],
}

/// Reads the request, or makes it.
///
/// # Errors
/// The server cannot be reached, refuses, or gives an answer that makes no sense.
pub(crate) fn ask(client: &Client, wanted: &Wanted<'_>) -> Result<State, NetError> {
    let path = format!("{REQUESTS}/{}", wanted.name);
    match client.request(&Request::get(path, DEADLINE)) {
        Ok(answer) => {
            let (found, date) = (answer.json()?, answer.date_unix_secs);
            state(&found, date).map_err(|why| NetError::Garbled {
                request: answer.request,
                status: Some(answer.status),
                why,
            })
        }
        // our hub does not reveal whether a request exists that this node has not made
        Err(error) if matches!(error.status(), Some(401 | 403 | 404)) => {
            let body = json!({
                "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                "metadata": {"name": wanted.name},
                "spec": {
                    "request": BASE64_STANDARD.encode(wanted.request), "signerName": wanted.signer,
                    "usages": wanted.usages,
                },
            });
            match client.request(&Request::post(REQUESTS, body.to_string().into_bytes(), DEADLINE)) {
                // the name belongs to somebody else's request
                Err(made) if made.status() == Some(409) => Err(error),
                made => made.map(|_| State::Made),
            }
        }
        Err(error) => Err(error),
    }
}

fn state(found: &Value, date: Option<u64>) -> Result<State, String> {
    let conditions = found["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |sort: &str| conditions.iter().find(|one| one["type"] == sort);
    let text = |one: &Value, field: &str| excerpt(one[field].as_str().unwrap_or_default());
    if let Some(refused) = of("Denied").or_else(|| of("Failed")) {
        return Ok(State::Refused(format!("{}: {}", text(refused, "type"), text(refused, "message"))));
    }
    let signed = found["status"]["certificate"].as_str().unwrap_or_default();
    if signed.is_empty() {
        let created = found["metadata"]["creationTimestamp"].as_str();
        let created = created.and_then(|text| Timestamp::parse(text).ok());
        let created = created.and_then(|time| u64::try_from(time.micros() / 1_000_000).ok());
        let age = date.zip(created).map_or(0, |(date, created)| date.saturating_sub(created));
        let why = of(AWAITS_APPROVAL).map(|one| format!("{}: {}", text(one, "reason"), text(one, "message")));
        return Ok(State::Waits(age, why));
    }
    let pem = BASE64_STANDARD.decode(signed);
    pem.map(State::Signed).map_err(|error| format!("the certificate is not base64: {error}"))
}

/// An error as text for a report.
pub(crate) fn shown(error: &NetError) -> String {
    excerpt_of(&error.to_string(), 1000)
}
