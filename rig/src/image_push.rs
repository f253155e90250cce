//! Pushes an OCI layout to a registry over plain HTTP, by the distribution API: each blob, then the manifest
//! under its tag.
//!
//! Always holds: exactly the bytes of the layout are pushed; any answer of the registry other than success is
//! an error. It is for `make try`, which must not depend on skopeo; it is not part of the agent, which
//! only pulls.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::error::RigError;

/// Pushes the layout's first manifest to `repository:tag` of the registry at `server` (host:port).
///
/// # Errors
/// The layout cannot be read, or the registry refused.
pub fn push(layout: &Path, server: &str, repository: &str, tag: &str) -> Result<(), RigError> {
    let index = json(&layout.join("index.json"))?;
    let described = &index["manifests"][0];
    let (_, manifest) = blob(layout, described)?;
    let parsed: Value = serde_json::from_slice(&manifest).map_err(|error| RigError::BadAnswer {
        command: format!("the manifest of {}", layout.display()),
        problem: error.to_string(),
    })?;
    let base = format!("http://{server}/v2/{repository}");
    let layers = parsed["layers"].as_array().map_or(&[][..], Vec::as_slice);
    for described in layers.iter().chain([&parsed["config"]]) {
        let (digest, bytes) = blob(layout, described)?;
        let place = begin_upload(server, &format!("{base}/blobs/uploads/"))?;
        let question = if place.contains('?') { '&' } else { '?' };
        put(&format!("{place}{question}digest={digest}"), "application/octet-stream", &bytes)?;
    }
    let media = described["mediaType"].as_str().unwrap_or_default();
    put(&format!("{base}/manifests/{tag}"), media, &manifest)
}

fn json(path: &Path) -> Result<Value, RigError> {
    let bytes = fs::read(path).map_err(RigError::io("read", path))?;
    serde_json::from_slice(&bytes).map_err(|error| RigError::BadAnswer {
        command: format!("read {}", path.display()),
        problem: error.to_string(),
    })
}

/// The digest in a descriptor, and the layout's blob of that digest.
fn blob(layout: &Path, described: &Value) -> Result<(String, Vec<u8>), RigError> {
    let digest = described["digest"].as_str().unwrap_or_default();
    let path = layout.join("blobs").join(digest.replace(':', "/"));
    Ok((digest.to_owned(), fs::read(&path).map_err(RigError::io("read", &path))?))
}

/// The URL to which the registry wants the bytes, from its own answer.
fn begin_upload(server: &str, url: &str) -> Result<String, RigError> {
    let answer = ureq::post(url).send_empty().map_err(|error| failed("POST", url, &error))?;
    let place = answer.headers().get("location").and_then(|place| place.to_str().ok()).unwrap_or_default();
    Ok(if place.starts_with('/') { format!("http://{server}{place}") } else { place.to_owned() })
}

fn put(url: &str, media: &str, bytes: &[u8]) -> Result<(), RigError> {
    let answer = ureq::put(url).content_type(media).send(bytes);
    answer.map(drop).map_err(|error| failed("PUT", url, &error))
}

fn failed(method: &str, url: &str, error: &ureq::Error) -> RigError {
    RigError::Failed {
        command: format!("{method} {url}"),
        status: "refused".to_owned(),
        said: error.to_string(),
    }
}
