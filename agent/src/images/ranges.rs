//! Parts of a system or a program from the source in the configuration: a file of a web server, or the blobs
//! of an artifact in a registry.
//!
//! Always holds: the connections, limits, authorities, mirrors and credentials are those of images. Blobs are
//! requested by the digests in the verified manifest, so the artifact's own manifest is not needed. Leaves to
//! others: which parts, and whether they are the right ones (`crate::system::fetch`).

use super::error::{PullError, Sort};
use super::registry::{Network, Registry};
use crate::errors::chain;
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::{Cancel, Lookup, WallClock};
use kedge_core::images::Reference;
use kedge_core::images::credentials::{self, Keyring};
use kedge_core::images::settings::{Endpoint, Registries};
use kedge_platform::linux::read_named_file;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The way to all servers.
pub(crate) struct Web {
    network: Network,
    registries: Registries,
}

/// One server that has all parts.
pub(crate) struct Remote<'a> {
    registry: Registry<'a>,
    /// Of a file; `None`: blobs.
    url: Option<String>,
}

impl Web {
    pub(crate) fn new(registries: Registries, clock: WallClock, cancel: Cancel) -> Self {
        let network = Network {
            lookup: Arc::new(Lookup::system()),
            links: Arc::default(),
            cancel,
            clock,
            proxies: ProxyEnvironment::of_process(),
        };
        Self { network, registries }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.network.cancel.is_cancelled()
    }

    /// The server of a file.
    pub(crate) fn file(&self, url: &str) -> Result<Remote<'_>, PullError> {
        let bad = |why: String| PullError::new(Sort::Name, format!("{url}: {why}"));
        // it names no repository, and has no password
        let image = Reference::parse("x").map_err(|why| bad(why.to_string()))?;
        let is_plain = url.starts_with("http://");
        let server = url.split('/').nth(2).unwrap_or_default().to_owned();
        if is_plain && !self.registries.is_insecure(&server) {
            return Err(bad("it has no TLS, and insecureRegistries does not name its server".to_owned()));
        }
        let endpoint = Endpoint { server, is_plain, prefix: String::new() };
        let registry = Registry::new(&self.network, &self.registries, endpoint, &image, Vec::new());
        Ok(Remote { registry, url: Some(url.to_owned()) })
    }

    /// The registries of an artifact, in the order in which they are tried.
    pub(crate) fn registries(&self, image: &str) -> Result<Vec<Remote<'_>>, PullError> {
        let bad = |why: String| PullError::new(Sort::Name, format!("{image}: {why}"));
        let reference = Reference::parse(image).map_err(|why| bad(why.to_string()))?;
        let mut keyring = Keyring::default();
        if let Some(path) = &self.registries.credentials_file {
            let read = read_named_file(Path::new(path), credentials::MAX_BYTES);
            let added = read.map_err(|error| chain(&error)).and_then(|bytes| keyring.add(&bytes));
            added.map_err(|why| PullError::new(Sort::Denied, format!("{path}: {why}")))?;
        }
        let remote = |endpoint: Endpoint| {
            let there = endpoint.localized(&reference);
            let credentials = keyring.for_image(&there).into_iter().cloned().collect();
            let registry = Registry::new(&self.network, &self.registries, endpoint, &reference, credentials);
            Remote { registry, url: None }
        };
        Ok(self.registries.endpoints(&reference).into_iter().map(remote).collect())
    }
}

/// An answer's body.
pub(crate) struct Stream {
    /// Where it begins.
    pub(crate) at: u64,
    /// Whether it reaches to the end of the file or blob: the server knows no ranges.
    pub(crate) is_whole: bool,
    pub(crate) body: Box<dyn Read>,
}

impl Remote<'_> {
    /// Whether all parts lie in one file, one behind the other.
    pub(crate) fn is_file(&self) -> bool {
        self.url.is_some()
    }

    /// The bytes from `from` to `to`, which is included, of the file, or of the blob with this digest.
    /// `None`: the server answers with others.
    pub(crate) fn open(&mut self, digest: &str, from: u64, to: u64) -> Result<Option<Stream>, PullError> {
        let name = self.url.clone().unwrap_or_else(|| format!("sha256:{digest}"));
        let found = self.registry.part(&name, from, to)?;
        Ok(found.map(|(found, is_whole)| Stream { at: found.starts_at, is_whole, body: found.reader }))
    }
}
