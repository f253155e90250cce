//! One registry, by the OCI distribution API: manifests, blobs, authentication, redirects.
//!
//! Always holds: every wait has a limit and every answer a size; a password is sent to the registry it
//! belongs to, or to the token server that this registry named, never to the target of a redirect; a redirect
//! never leads from TLS to plain HTTP; credentials are tried in kubelet's order, anonymously only where there
//! are none. Left to others: the meaning of the bytes, their destination, when to try again.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use kedge_api::excerpt_of;
use kedge_core::images::challenge::{self, Challenge, MAX_TOKEN_BYTES};
use kedge_core::images::credentials::Credential;
use kedge_core::images::manifest::{ACCEPT, Blob, MAX_MANIFEST_BYTES};
use kedge_core::images::settings::{Endpoint, Registries};
use kedge_core::images::{BlobDigest, Reference, signature};
use kedge_core::sorted::SortedMap;
use rustls::RootCertStore;
use ureq::Agent;
use ureq::config::AutoHeaderValue;
use ureq::http::{self, HeaderMap, StatusCode, Uri, header};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::TcpConnector;

use super::error::{PullError, Sort};
use super::roots::{roots, system_roots};
use super::source::{BlobStream, Fetched, Source};
use crate::net::links::Links;
use crate::net::proxy::{ProxyEnvironment, split_host_port};
use crate::net::transport::{
    BUFFER_BYTES, Cancel, DialError, Dialler, Lookup, NoResolver, Route, WallClock, plain,
};

/// From a request to the head of its answer: a registry may have to fetch the image itself.
const OPEN: Duration = Duration::from_secs(30);
/// Between two pieces of a body; the download is continued after it.
const IDLE: Duration = Duration::from_secs(30);
/// For the whole of a manifest, a token or a refusal: a pull that waits for one delays those behind it.
pub(super) const BODY: Duration = Duration::from_secs(60);
/// Servers whose connections are kept: the registry, its token server, its store of blobs, one more.
const MAX_AGENTS: usize = 4;
/// Most redirects followed for one answer; registries use one.
const MAX_REDIRECTS: usize = 5;
/// Longest URL that is followed: signed ones of object stores have about 2 KiB.
const MAX_URL_BYTES: usize = 8 * 1024;
/// Most bytes read of a refusal.
const MAX_REFUSAL_BYTES: u64 = 16 * 1024;
/// Most characters of a registry's own words that an error carries on.
const SHOWN_CHARS: usize = 300;

/// The means by which all registries are reached.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) lookup: Arc<Lookup>,
    pub(super) links: Arc<Links>,
    pub(super) cancel: Cancel,
    pub(super) clock: WallClock,
    pub(super) proxies: ProxyEnvironment,
}

/// A server with its scheme: a password belongs to one of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Site {
    is_plain: bool,
    host: String,
    port: u16,
}

/// One registry, and one repository in it.
pub(super) struct Registry<'a> {
    network: &'a Network,
    registries: &'a Registries,
    endpoint: Endpoint,
    image: Reference,
    credentials: Vec<Credential>,
    /// How many of the credentials were refused.
    refused: usize,
    authorization: Option<String>,
    /// Whether the present authorization was accepted before: then a 401 means that it has expired.
    has_served: bool,
    /// At most [`MAX_AGENTS`], whatever names the registry redirects to.
    agents: SortedMap<Site, Agent>,
    /// The authorities of the system, read once for a pull.
    system_roots: Option<Arc<RootCertStore>>,
}

impl<'a> Registry<'a> {
    pub(super) fn new(
        network: &'a Network,
        registries: &'a Registries,
        endpoint: Endpoint,
        image: &Reference,
        credentials: Vec<Credential>,
    ) -> Self {
        let image = endpoint.localized(image);
        Self {
            network,
            registries,
            endpoint,
            image,
            credentials,
            refused: 0,
            authorization: None,
            has_served: false,
            agents: SortedMap::new(),
            system_roots: None,
        }
    }

    fn url(&self, path: &str) -> String {
        let Endpoint { server, .. } = &self.endpoint;
        format!("{}://{server}/v2/{}/{path}", self.endpoint.scheme(), self.image.repository)
    }

    /// The answer to a request, after authentication and redirects; its status is 200 or 206, or 416 to a
    /// range.
    fn get(&mut self, path: &str, accept: Option<&str>, from: u64) -> Result<Answer, PullError> {
        let range = (from > 0).then_some((from, None));
        self.get_from(&self.url(path), accept, range)
    }

    fn get_from(
        &mut self,
        url: &str,
        accept: Option<&str>,
        range: Option<ByteRange>,
    ) -> Result<Answer, PullError> {
        // tries each credential once, an expired token, and the anonymous first request
        for _ in 0..self.credentials.len() + 3 {
            let (answered, answer) = self.follow(url, accept, range)?;
            // the target of a redirect may not ask for this registry's password
            let is_registry = site_of(&answered)? == site_of(url)?;
            match answer.status().as_u16() {
                200 | 206 => {
                    self.has_served = true;
                    return Ok(answer);
                }
                416 if range.is_some() => return Ok(answer),
                401 if is_registry => self.authenticate(url, answer)?,
                403 if is_registry && self.refused + 1 < self.credentials.len() => self.refuse(),
                _ => return Err(refusal(&answered, answer)),
            }
        }
        Err(PullError::new(
            Sort::Denied,
            format!("GET {url}: the registry asks for authentication again and again"),
        ))
    }

    fn refuse(&mut self) {
        self.refused += 1;
        self.authorization = None;
        self.has_served = false;
    }

    /// Sends a request and follows redirects; returns the URL that answered, too.
    fn follow(
        &mut self,
        url: &str,
        accept: Option<&str>,
        range: Option<ByteRange>,
    ) -> Result<(String, Answer), PullError> {
        let own = site_of(url)?;
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let site = site_of(&url)?;
            // only the registry itself gets its password
            let authorization = if site == own { self.authorization.clone() } else { None };
            let answer = self.send(&site, &url, accept, authorization.as_deref(), range)?;
            if !answer.status().is_redirection() {
                return Ok((url, answer));
            }
            url = self.redirected(&site, &url, &answer)?;
        }
        let url = without_query(&url);
        Err(PullError::new(Sort::Bad, format!("GET {url}: more than {MAX_REDIRECTS} redirects")))
    }

    /// Whether a server has TLS, or is trusted without it.
    fn may_be_reached(&self, site: &Site) -> bool {
        !site.is_plain || names_of(site).iter().any(|name| self.registries.is_insecure(name))
    }

    fn redirected(&self, site: &Site, url: &str, answer: &Answer) -> Result<String, PullError> {
        let bad = |why: &str| PullError::new(Sort::Bad, format!("GET {}: {why}", without_query(url)));
        let location = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
        let location = location
            .filter(|text| text.len() <= MAX_URL_BYTES)
            .ok_or_else(|| bad("a redirect to nowhere"))?;
        let next = match location.strip_prefix('/') {
            Some(_) if !location.starts_with("//") => format!("{}{location}", origin_of(url)),
            _ => location.to_owned(),
        };
        let to = site_of(&next)?;
        if to.is_plain && !site.is_plain {
            return Err(bad("a redirect from TLS to plain HTTP"));
        }
        if to != *site && !self.may_be_reached(&to) {
            let to = shown_site(&to);
            return Err(bad(&format!(
                "a redirect to {to} without TLS, which insecureRegistries does not name"
            )));
        }
        Ok(next)
    }

    fn send(
        &mut self,
        site: &Site,
        url: &str,
        accept: Option<&str>,
        authorization: Option<&str>,
        range: Option<ByteRange>,
    ) -> Result<Answer, PullError> {
        if self.network.cancel.is_cancelled() {
            return Err(PullError::new(Sort::Cancelled, "cancelled"));
        }
        let agent = self
            .agent(site)
            .map_err(|why| PullError::new(Sort::Unreachable, format!("GET {}: {why}", without_query(url))))?;
        let request = || {
            let mut request = agent.get(url);
            if let Some(accept) = accept {
                request = request.header(header::ACCEPT, accept);
            }
            if let Some(authorization) = authorization {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            if let Some((from, to)) = range {
                let to = to.map(|to| to.to_string()).unwrap_or_default();
                request = request.header(header::RANGE, format!("bytes={from}-{to}"));
            }
            request.call()
        };
        let mut outcome = request();
        // the registry has closed a kept connection meanwhile; reading twice is harmless
        if matches!(&outcome, Err(ureq::Error::Io(error)) if error.kind() != io::ErrorKind::TimedOut) {
            outcome = request();
        }
        outcome.map_err(|error| self.failed(url, &error))
    }

    fn failed(&self, url: &str, error: &ureq::Error) -> PullError {
        if self.network.cancel.is_cancelled() {
            return PullError::new(Sort::Cancelled, "cancelled");
        }
        let why = match error {
            ureq::Error::Other(inner) => match inner.downcast_ref::<DialError>() {
                Some(DialError::Tls { peer, error: rustls::Error::InvalidMessage(invalid) })
                    if *invalid == rustls::InvalidMessage::InvalidContentType =>
                {
                    let name = site_of(url).map(|site| shown_site(&site)).unwrap_or_default();
                    format!("{peer} answers in plain HTTP: list {name} under kedge.images.insecureRegistries")
                }
                Some(DialError::Handshake { error, .. }) if ended(error) => {
                    let name = site_of(url).map(|site| shown_site(&site)).unwrap_or_default();
                    let dial = inner.to_string();
                    format!("{dial}; if it has no TLS, list {name} under kedge.images.insecureRegistries")
                }
                Some(dial) => dial.to_string(),
                None => inner.to_string(),
            },
            ureq::Error::Io(error) => plain(error),
            ureq::Error::Timeout(_) => "no answer in time".to_owned(),
            ureq::Error::Protocol(error) if url.starts_with("http:") => format!("{error}; {HAS_TLS}"),
            other => other.to_string(),
        };
        PullError::new(Sort::Unreachable, format!("GET {}: {why}", without_query(url)))
    }

    /// The connections to a server.
    fn agent(&mut self, site: &Site) -> Result<Agent, String> {
        if let Some(agent) = self.agents.get(site) {
            return Ok(agent.clone());
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(AutoHeaderValue::Provided(Arc::new(
                concat!("kedge/", env!("CARGO_PKG_VERSION")).to_owned(),
            )))
            .accept(AutoHeaderValue::None)
            .accept_encoding(AutoHeaderValue::None)
            .max_response_header_size(BUFFER_BYTES / 2)
            .input_buffer_size(BUFFER_BYTES)
            .output_buffer_size(BUFFER_BYTES)
            .max_idle_connections(1)
            .max_idle_connections_per_host(1)
            .timeout_connect(Some(OPEN))
            .timeout_send_request(Some(OPEN))
            .timeout_recv_response(Some(OPEN))
            .timeout_per_read(Some(IDLE))
            .build();
        let agent = if site.is_plain {
            Agent::with_parts(config, TcpConnector::default(), DefaultResolver::default())
        } else {
            Agent::with_parts(config, self.dialler(site)?, NoResolver)
        };
        if self.agents.len() >= MAX_AGENTS {
            let own = site_of(&self.url("")).ok();
            self.agents.retain(|known, _| Some(known) == own.as_ref());
        }
        self.agents.insert(site.clone(), agent.clone());
        Ok(agent)
    }

    fn dialler(&mut self, site: &Site) -> Result<Dialler, String> {
        let system = Arc::clone(self.system_roots.get_or_insert_with(|| Arc::new(system_roots())));
        let names = names_of(site);
        let roots = roots(system, names.iter().find_map(|name| self.registries.authority(name)))?;
        let proxy = self.network.proxies.proxy_for(&site.host, site.port)?;
        let clock = Arc::clone(&self.network.clock);
        let route = Route::to_stranger((&site.host, site.port), roots, proxy, clock);
        Ok(Dialler {
            route: Arc::new(route.map_err(|error| error.to_string())?),
            lookup: Arc::clone(&self.network.lookup),
            links: Arc::clone(&self.network.links),
            cancel: self.network.cancel.clone(),
            dialled: Arc::new(AtomicU64::new(0)),
            connected: Arc::default(),
            user_agent: concat!("kedge/", env!("CARGO_PKG_VERSION")).into(),
            // a registry learns nothing of the machine
            boot_line: "".into(),
        })
    }

    /// Answers the challenge of a 401, or reports that it cannot.
    fn authenticate(&mut self, url: &str, answer: Answer) -> Result<(), PullError> {
        if self.authorization.is_some() && !self.has_served {
            self.refuse();
        }
        self.has_served = false;
        self.authorization = None;
        let url = without_query(url);
        let denied = |why: &str| PullError::new(Sort::Denied, format!("GET {url}: unauthorized: {why}"));
        let headers = answer.headers().get_all(header::WWW_AUTHENTICATE);
        let challenge = Challenge::choose(headers.iter().filter_map(|value| value.to_str().ok()))
            .map_err(|why| denied(&why))?;
        if self.credentials.is_empty() && self.refused > 0 {
            return Err(denied("there are no credentials for this registry"));
        }
        loop {
            let credential = self.credentials.get(self.refused).cloned();
            if credential.is_none() && !self.credentials.is_empty() {
                let registry = &self.image.registry;
                return Err(denied(&format!("the credentials for {registry} are not accepted")));
            }
            match challenge.token_url(&self.image.repository) {
                None => {
                    let credential =
                        credential.ok_or_else(|| denied("there are no credentials for this registry"))?;
                    self.authorization = Some(credential.basic());
                    return Ok(());
                }
                Some(token_url) => match self.token(&token_url, credential.as_ref())? {
                    Some(token) => {
                        self.authorization = Some(format!("Bearer {token}"));
                        return Ok(());
                    }
                    None if credential.is_some() => self.refused += 1,
                    None => return Err(denied("there are no credentials for this registry")),
                },
            }
        }
    }

    /// A token from another server; `None`: that server does not accept the credential.
    fn token(&mut self, url: &str, credential: Option<&Credential>) -> Result<Option<String>, PullError> {
        let site = site_of(url)?;
        if !self.may_be_reached(&site) {
            let why = "the registry sends us for a token to a server without TLS, which insecureRegistries does not name";
            return Err(PullError::new(Sort::Denied, format!("GET {}: {why}", without_query(url))));
        }
        let basic = credential.map(Credential::basic);
        let answer = self.send(&site, url, None, basic.as_deref(), None)?;
        match answer.status().as_u16() {
            200 => {
                let bytes = body(url, answer, 4 * MAX_TOKEN_BYTES)?;
                let token = challenge::token(&bytes);
                token
                    .map(Some)
                    .map_err(|why| PullError::new(Sort::Bad, format!("GET {}: {why}", without_query(url))))
            }
            401 | 403 => Ok(None),
            _ => Err(refusal(url, answer)),
        }
    }
}

impl Registry<'_> {
    /// The bytes of a blob, or of a file of a web server by its URL, from `from` to `to`, which is included;
    /// `None`: it answers with another part.
    /// The second value: the answer is of the whole, because the server knows no ranges.
    pub(super) fn part(
        &mut self,
        name: &str,
        from: u64,
        to: u64,
    ) -> Result<Option<(BlobStream, bool)>, PullError> {
        let url = if name.contains("://") { name.to_owned() } else { self.url(&format!("blobs/{name}")) };
        let answer = self.get_from(&url, None, Some((from, Some(to))))?;
        let is_whole = answer.status() == StatusCode::OK;
        Ok(stream_of(answer, from).map(|stream| (stream, is_whole)))
    }
}

type Answer = http::Response<ureq::Body>;

/// The first byte, and the last one if there is a limit.
type ByteRange = (u64, Option<u64>);

/// The body of an answer to a request for the bytes from some offset on.
fn stream_of(answer: Answer, from: u64) -> Option<BlobStream> {
    let starts_at = match answer.status() {
        StatusCode::RANGE_NOT_SATISFIABLE => return None,
        StatusCode::PARTIAL_CONTENT => {
            let range = text_of(answer.headers(), &header::CONTENT_RANGE).unwrap_or_default();
            // another part than the requested one is useless
            range_start(&range).filter(|start| *start == from)?
        }
        _ => 0,
    };
    let reader = answer.into_body().into_with_config().limit(u64::MAX).reader();
    Some(BlobStream { starts_at, reader: Box::new(reader) })
}

impl Source for Registry<'_> {
    fn manifest(&mut self, name: &str) -> Result<Fetched, PullError> {
        let path = format!("manifests/{name}");
        let answer = self.get(&path, Some(ACCEPT), 0)?;
        let content_type = text_of(answer.headers(), &header::CONTENT_TYPE);
        let bytes = body(&self.url(&path), answer, MAX_MANIFEST_BYTES)?;
        Ok(Fetched { bytes, content_type })
    }

    fn blob(&mut self, blob: &Blob, from: u64) -> Result<Option<BlobStream>, PullError> {
        let answer = self.get(&format!("blobs/{}", blob.digest), None, from)?;
        Ok(stream_of(answer, from))
    }

    fn signatures(&mut self, manifest: &BlobDigest) -> Result<Vec<Vec<u8>>, PullError> {
        Ok(vec![self.manifest(&signature::tag(manifest))?.bytes])
    }

    fn is_at_hand(&self) -> bool {
        false
    }

    fn shown(&self) -> String {
        format!("{}://{}", self.endpoint.scheme(), self.endpoint.server)
    }
}

/// Checks that a registry answers with the configured protocol: this needs neither an image's name nor a
/// password.
///
/// # Errors
/// Why it does not, in words for an operator.
pub(crate) fn ping(
    registries: &Registries,
    endpoint: Endpoint,
    clock: WallClock,
    proxies: ProxyEnvironment,
) -> Result<(), String> {
    let network = Network {
        lookup: Arc::new(Lookup::system()),
        links: Arc::default(),
        cancel: Cancel::default(),
        clock,
        proxies,
    };
    let url = format!("{}://{}/v2/", endpoint.scheme(), endpoint.server);
    let image = Reference::parse("x")?;
    let mut registry = Registry::new(&network, registries, endpoint, &image, Vec::new());
    let answer = site_of(&url).and_then(|site| registry.send(&site, &url, None, None, None));
    let answer = answer.map_err(|error| error.text)?;
    match answer.status().as_u16() {
        // a registry that wants a password answers 401 here
        200 | 401 => Ok(()),
        _ => Err(refusal(&url, answer).text),
    }
}

/// The first byte of `bytes 500-999/1000`.
fn range_start(text: &str) -> Option<u64> {
    text.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn text_of(headers: &HeaderMap, name: &header::HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// A whole body of at most `limit` bytes.
fn body(url: &str, answer: Answer, limit: usize) -> Result<Vec<u8>, PullError> {
    let reader = answer.into_body().into_with_config().limit(u64::MAX).reader();
    let (bytes, read) = read_within(BODY, reader.take(limit as u64 + 1));
    let url = without_query(url);
    read.map_err(|error| {
        PullError::new(Sort::Unreachable, format!("GET {url}: the answer broke off: {}", plain(&error)))
    })?;
    if bytes.len() > limit {
        return Err(PullError::new(Sort::Bad, format!("GET {url}: the answer has more than {limit} bytes")));
    }
    Ok(bytes)
}

/// Everything, or the bytes that arrived within the time: the limit of a single read does not end a body that
/// arrives byte by byte.
pub(super) fn read_within(limit: Duration, mut source: impl Read) -> (Vec<u8>, io::Result<()>) {
    let end = Instant::now() + limit;
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return (bytes, Ok(())),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (bytes, Err(error)),
        }
        if Instant::now() >= end {
            let why = format!("not whole within {} s", limit.as_secs());
            return (bytes, Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
    }
}

/// The peer closed the connection, as some servers do that do not understand the request.
fn ended(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

/// Advice for a registry that is contacted without TLS and wants it.
const HAS_TLS: &str = "it seems to answer with TLS alone: take it out of kedge.images.insecureRegistries, and name its CA in kedge.images.certificateAuthorities";

/// The error for a refusal, in the registry's own words.
fn refusal(url: &str, answer: Answer) -> PullError {
    let status = answer.status();
    let sort = match status.as_u16() {
        401 | 403 | 404 => Sort::Denied,
        429 | 500..=599 => Sort::Unreachable,
        _ => Sort::Bad,
    };
    let reader = answer.into_body().into_with_config().limit(u64::MAX).reader();
    // the bytes that could be read are enough
    let (bytes, _) = read_within(BODY, reader.take(MAX_REFUSAL_BYTES));
    let said = serde_json::from_slice::<serde_json::Value>(&bytes).ok().and_then(|value| {
        let first = value.pointer("/errors/0")?;
        let text = |key: &str| first.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        Some(format!("{}: {}", text("code"), text("message")))
    });
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(&bytes).trim().to_owned());
    let said: String =
        excerpt_of(&said, SHOWN_CHARS).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let separator = if said.is_empty() { "" } else { ": " };
    // Go's servers and nginx report this in words
    let asks_for_tls =
        url.starts_with("http:") && status == StatusCode::BAD_REQUEST && said.contains("HTTPS");
    let advice = if asks_for_tls { format!("; {HAS_TLS}") } else { String::new() };
    PullError::new(sort, format!("GET {}: {status}{separator}{said}{advice}", without_query(url)))
}

/// A query may contain a signature that serves as a password for a while.
fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

fn site_of(url: &str) -> Result<Site, PullError> {
    let bad = || {
        PullError::new(
            Sort::Bad,
            format!("{:?} is no URL of HTTP", excerpt_of(without_query(url), SHOWN_CHARS)),
        )
    };
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let is_plain = match uri.scheme_str() {
        Some("https") => false,
        Some("http") => true,
        _ => return Err(bad()),
    };
    let authority = uri.authority().map(|authority| authority.as_str()).ok_or_else(bad)?;
    if authority.contains('@') {
        return Err(bad());
    }
    let (host, port) = split_host_port(authority, if is_plain { 80 } else { 443 }).map_err(|_| bad())?;
    Ok(Site { is_plain, host, port })
}

/// `scheme://authority` of a URL that was read before.
fn origin_of(url: &str) -> &str {
    let after = url.find("://").map_or(0, |at| at + 3);
    let end = url[after..].find(['/', '?']).map_or(url.len(), |at| after + at);
    &url[..end]
}

fn shown_site(site: &Site) -> String {
    names_of(site).swap_remove(0)
}

/// The names that the configuration may use for a server, the shortest first: without the port if it is the
/// scheme's own, and with it.
fn names_of(site: &Site) -> Vec<String> {
    let host = if site.host.contains(':') { format!("[{}]", site.host) } else { site.host.clone() };
    let with_port = format!("{host}:{}", site.port);
    match (site.is_plain, site.port) {
        (true, 80) | (false, 443) => vec![host, with_port],
        _ => vec![with_port],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let site = |url: &str| site_of(url).map(|site| (site.is_plain, shown_site(&site)));
        assert_eq!(site("https://r.lan/v2/?a"), Ok((false, "r.lan".into())));
        assert_eq!(site("https://r.lan:5000"), Ok((false, "r.lan:5000".into())));
        assert_eq!(site("http://[fd00::1]:80/x"), Ok((true, "[fd00::1]".into())));
        for url in ["ftp://x/", "r.lan/x", "https://", "https://u:p@r.lan/", "https://r.lan:x/", "//r.lan/x"]
        {
            assert_eq!(site(url).unwrap_err().sort, Sort::Bad, "{url}");
        }
        assert!(!site_of("gopher://x/?token=secret").unwrap_err().text.contains("secret"));
        assert_eq!(origin_of("https://r.lan:5/v2/x?y"), "https://r.lan:5");
        assert_eq!(origin_of("https://r.lan?y"), "https://r.lan");
        let names = |url: &str| names_of(&site_of(url).unwrap());
        assert_eq!(names("https://[fd00::1]:5000/v2/"), ["[fd00::1]:5000"]);
        assert_eq!(names("https://r.lan/v2/"), ["r.lan", "r.lan:443"]);
        assert_eq!(names("http://r.lan:443/v2/"), ["r.lan:443"]);
    }

    /// Bytes one by one, without end.
    struct Dripping(usize);

    impl Read for Dripping {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            assert!(self.0 < 1000, "it is read without end");
            buffer[0] = b'x';
            Ok(1)
        }
    }

    #[test]
    fn body_that_drips_is_given_up() {
        let (bytes, read) = read_within(Duration::ZERO, Dripping(0));
        assert_eq!((bytes.len(), read.unwrap_err().kind()), (1, io::ErrorKind::TimedOut));
        let (bytes, read) = read_within(BODY, &b"whole"[..]);
        assert_eq!((bytes.as_slice(), read.is_ok()), (&b"whole"[..], true));
    }

    #[test]
    fn range_start_is_read() {
        assert_eq!(range_start("bytes 500-999/1000"), Some(500));
        for text in ["", "bytes */1000", "items 5-6/7", "bytes -5"] {
            assert_eq!(range_start(text), None, "{text}");
        }
    }
}
