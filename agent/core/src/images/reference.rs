//! References: from a pod's `image:` to registry, repository, tag and digest.
//!
//! Always holds: references are read like docker's and containerd's (github.com/distribution/reference):
//! `docker.io` and `library/` where they are left out, `latest` where neither tag nor digest is given;
//! references that those refuse are refused. The parts have no character that would need escaping in a URL's
//! path. Leaves to others: the server of a registry's name (`settings`).

use std::fmt;

use kedge_api::excerpt;

use super::digest::BlobDigest;

/// The registry of a reference without one.
pub const DEFAULT_REGISTRY: &str = "docker.io";
/// The server behind [`DEFAULT_REGISTRY`].
pub const DEFAULT_SERVER: &str = "registry-1.docker.io";
/// An older name of [`DEFAULT_REGISTRY`].
pub(super) const LEGACY_REGISTRY: &str = "index.docker.io";
const OFFICIAL: &str = "library/";
/// The tag of a reference with neither tag nor digest.
pub const DEFAULT_TAG: &str = "latest";

/// Longest path of a repository, upstream's.
const MAX_REPOSITORY_BYTES: usize = 255;
/// Longest tag, upstream's.
const MAX_TAG_BYTES: usize = 128;
/// Longest reference: registry, repository, tag and digest at their longest. A longer one is refused unread.
pub const MAX_REFERENCE_BYTES: usize = 255 + MAX_REPOSITORY_BYTES + MAX_TAG_BYTES + 80;

/// The name of an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The registry's name, with its port if one is given.
    pub registry: String,
    /// The path of the repository.
    pub repository: String,
    /// The tag; `None` only with a digest.
    pub tag: Option<String>,
    /// The digest of the manifest; it decides when both are given.
    pub digest: Option<BlobDigest>,
}

impl Reference {
    /// Reads a reference as a pod has it.
    ///
    /// # Errors
    /// The fault, in one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("image reference {:?}: {why}", excerpt(text));
        if text.is_empty() || text.len() > MAX_REFERENCE_BYTES {
            return Err(wrong(&format!("it has {} bytes, expected 1 to {MAX_REFERENCE_BYTES}", text.len())));
        }
        if text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(wrong("64 hexadecimal digits name no repository"));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(BlobDigest::parse(digest).map_err(|why| wrong(&why))?)),
            None => (text, None),
        };
        let (registry, rest) = split_registry(name);
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        if !is_registry(registry) {
            return Err(wrong(&format!("registry is {:?}, expected host or host:port", excerpt(registry))));
        }
        let is_official = registry == DEFAULT_REGISTRY && !repository.contains('/');
        let repository = if is_official { format!("{OFFICIAL}{repository}") } else { repository.to_owned() };
        if !is_repository(&repository) {
            let expected = "expected lower case letters, digits and single separators (. _ - /)";
            return Err(wrong(&format!("repository is {:?}, {expected}", excerpt(&repository))));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("its tag is not letters, digits, \"_\", \".\" and \"-\", at most 128"));
        }
        let tag = match (tag, digest) {
            (None, None) => Some(DEFAULT_TAG.to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Self { registry: registry.to_owned(), repository, tag, digest })
    }

    /// `registry/repository`, by which credentials are looked up.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The part of a request's path after `/manifests/`: the digest, or else the tag.
    #[must_use]
    pub fn manifest_name(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }

    /// `registry/repository@digest`, in the form of a container's `imageID`.
    #[must_use]
    pub fn with_digest(&self, digest: &BlobDigest) -> String {
        format!("{}@{digest}", self.name())
    }

    /// `registry/repository:tag` without the digest; `None` without a tag.
    #[must_use]
    pub fn tagged(&self) -> Option<String> {
        self.tag.as_ref().map(|tag| format!("{}:{tag}", self.name()))
    }

    /// The host that serves this registry, with its port if one is given.
    #[must_use]
    pub fn server(&self) -> &str {
        if self.registry == DEFAULT_REGISTRY { DEFAULT_SERVER } else { &self.registry }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// The first part is a registry if it could not be part of a repository, or is `localhost`.
fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|byte| byte.is_ascii_uppercase()) =>
        {
            (if first == LEGACY_REGISTRY { DEFAULT_REGISTRY } else { first }, rest)
        }
        _ => (DEFAULT_REGISTRY, name),
    }
}

/// Host and port of a registry, the host a name, an IPv4 address or an IPv6 address in brackets.
#[must_use]
pub fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) if !address.is_empty() => {
            if !address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':') {
                return false;
            }
            ("v6", rest)
        }
        Some(_) => return false,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_port = match port.strip_prefix(':') {
        Some(digits) => digits.parse::<u16>().is_ok() && digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    is_port && text.len() <= 255 && host.split('.').all(is_label)
}

pub(super) fn is_repository(text: &str) -> bool {
    text.len() <= MAX_REPOSITORY_BYTES && text.split('/').all(is_component)
}

/// Lower case letters and digits in runs, with one separator between two runs: `.`, `_`, `__` or any number
/// of `-`.
fn is_component(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let separators = text.split(|c: char| c.is_ascii() && is_plain(c as u8)).filter(|run| !run.is_empty());
    let are_separators =
        separators.clone().all(|run| matches!(run, "." | "_" | "__") || run.bytes().all(|byte| byte == b'-'));
    are_separators
        && text.bytes().next().is_some_and(is_plain)
        && text.bytes().next_back().is_some_and(is_plain)
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= MAX_TAG_BYTES
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let found = Reference::parse(text).unwrap();
        assert_eq!(found.to_string(), expect);
        assert_eq!(Reference::parse(expect).as_ref(), Ok(&found), "its text is read as itself");
    }

    #[test]
    fn defaults_are_filled_in_as_docker_does() {
        let hex = "0123456789abcdef".repeat(4);
        check("nginx", "docker.io/library/nginx:latest");
        check("nginx:1.27", "docker.io/library/nginx:1.27");
        check("team/app", "docker.io/team/app:latest");
        check("docker.io/nginx", "docker.io/library/nginx:latest");
        check("index.docker.io/library/nginx", "docker.io/library/nginx:latest");
        check("localhost/app", "localhost/app:latest");
        check("localhost:5000/app:v1", "localhost:5000/app:v1");
        check("Registry/app", "Registry/app:latest");
        check("registry.lan/a/b/c:v1.2-3_4", "registry.lan/a/b/c:v1.2-3_4");
        check("10.0.0.1:5000/app", "10.0.0.1:5000/app:latest");
        check("[fd00::1]:5000/app:x", "[fd00::1]:5000/app:x");
        check(&format!("nginx@sha256:{hex}"), &format!("docker.io/library/nginx@sha256:{hex}"));
        check(&format!("r.lan/x:v1@sha256:{hex}"), &format!("r.lan/x:v1@sha256:{hex}"));
        check("a__b/c--d.e_f", "docker.io/a__b/c--d.e_f:latest");
    }

    #[test]
    fn malformed_reference_is_refused() {
        let long = "a".repeat(300);
        for text in [
            "",
            "Nginx",
            "nginx:",
            "nginx:-x",
            ":v1",
            "/nginx",
            "nginx/",
            "a//b",
            "a/../b",
            "a..b",
            "a___b",
            "-a",
            "a-",
            "nginx@sha256:abc",
            "nginx@md5:d41d8cd98f00b204e9800998ecf8427e",
            "registry.lan:x/app",
            "registry.lan:70000/app",
            "-r.lan/app",
            "r..lan/app",
            "[fd00::1/app",
            "[]:1/app",
            "[fd00::g]:1/app",
            "https://r.lan/app",
            "r.lan/app?x=1",
            "r.lan/app v1",
            "r.lan/\u{e4}",
            "user@r.lan/app",
            &"0123456789abcdef".repeat(4),
            &long,
        ] {
            assert!(Reference::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn digest_decides_over_the_tag() {
        let hex = "0123456789abcdef".repeat(4);
        let found = Reference::parse(&format!("r.lan/x:v1@sha256:{hex}")).unwrap();
        assert_eq!(found.manifest_name(), format!("sha256:{hex}"));
        assert_eq!(found.tagged().as_deref(), Some("r.lan/x:v1"));
        assert_eq!(Reference::parse("nginx").unwrap().server(), DEFAULT_SERVER);
    }
}
