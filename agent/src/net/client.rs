//! Requests to the API server, and the meaning of their outcomes.
//!
//! Owns the credentials in use (reloaded when their files change), the headers we send, deadlines, the size
//! limits of answers, and the classification of every outcome by what happens next ([`NetError`]). Always
//! holds: a request ends within its deadline; a connection on which one timed out or broke off is never used
//! again; only idempotent requests are repeated, and only because a kept connection turned out dead.
//!
//! An [`Api`] is one server as a kubeconfig names it. A [`Client`] is one stream to it: one kept connection,
//! used by one thread at a time (more threads would each open a connection). Streams share names, credentials
//! and TLS sessions. Left to others: paths, bodies, schedules and back-off.

use crate::locks::locked;
use crate::net::credentials::ApiOptions;
use crate::net::date::parse_http_date;
use crate::net::error::{NetError, OpenError};
use std::error;
use std::fmt;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kedge_api::{BOOT_HEADER, RENEWAL_MEDIA};
use kedge_core::pods::ApiServer;
use kedge_platform::Clocks;
use kedge_platform::linux::{LinuxClocks, Roots, read_named_file};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::config::AutoHeaderValue;
use ureq::http::{self, HeaderMap, HeaderValue, header};

use super::credentials::{Access, Credentials};
use super::kubeconfig::ReadFile;
use super::links::Links;
use super::outcomes::{self, OpenWatch, Outcomes};
use super::servers::Servers;
use super::transport::{
    BUFFER_BYTES, Cancel, DialError, Dialler, Lookup, LookupFn, NoResolver, Route, STACK_BYTES, plain,
    tls_words,
};

/// Most bytes read of a refusal: a `Status` object with its causes.
pub const MAX_STATUS_BYTES: usize = 64 * 1024;

/// Most bytes of the head of an answer. A Kubernetes API server sends about 330, with warnings up to 4 KiB
/// more. Below the size of the buffer: ureq takes a full buffer for an end of the connection.
const MAX_HEAD_BYTES: usize = BUFFER_BYTES / 2;

/// How long the connection of renewals stays with the certificate before, when there is a new one.
const LEASE_IS_LAST: Duration = Duration::from_secs(10 * 60);

/// Longest that an idle connection is kept. Status goes out every 5 minutes, and the kernel's keepalive (104
/// bytes each 75 s) costs less than a resumed handshake (over 1 KB).
const MAX_IDLE: Duration = Duration::from_secs(10 * 60);

/// How long a server may take to show that it answers, lookup and connection included.
const LOOK: Duration = Duration::from_secs(5);

/// Most warnings kept of one answer, and most bytes of each (upstream's server stops at 4 KiB in all).
const MAX_WARNINGS: usize = 8;
const MAX_WARNING_BYTES: usize = 512;

/// Longest `Retry-After` that is respected; a server that sends more is wrong or gone by then.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10 * 60);

/// Most bytes of a server's own words in an error.
const MAX_MESSAGE_BYTES: usize = 1024;

/// The operation on the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// Create.
    Post,
    /// Replace.
    Put,
    /// Change in part.
    Patch,
    /// Remove.
    Delete,
}

impl Method {
    fn http(self) -> http::Method {
        match self {
            Self::Get => http::Method::GET,
            Self::Post => http::Method::POST,
            Self::Put => http::Method::PUT,
            Self::Patch => http::Method::PATCH,
            Self::Delete => http::Method::DELETE,
        }
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    /// Absolute path with its query, percent-encoded, such as `/api/v1/nodes/edge-1`.
    pub path_and_query: String,
    /// Media type of the body; needed with one.
    pub content_type: Option<&'static str>,
    /// The `Accept` header; `None` by default: servers answer in JSON then, and the header costs bytes.
    pub accept: Option<&'static str>,
    /// Whether to send `Prefer: return=minimal`, which our hub honours.
    pub prefer_minimal: bool,
    /// Whether to send `User-Agent`, which names this agent in a server's logs and in other servers'
    /// `managedFields`.
    pub names_agent: bool,
    /// It is sent every few seconds, so not each one needs a look at the credentials' files.
    pub is_routine: bool,
    pub body: Option<Vec<u8>>,
    /// Longest time for all of it: lookup, connection, request, answer.
    pub deadline: Duration,
    /// Most bytes of a successful answer's body.
    pub response_limit_bytes: usize,
    /// Whether it may be sent once more when a kept connection turns out dead: sending it twice has the same
    /// effect as once.
    pub is_repeatable: bool,
    /// The part of the object that it is about, for `kedge status`, where requests about different parts of
    /// one object have separate outcomes.
    pub part: &'static str,
}

/// Media type of a JSON merge patch (RFC 7386).
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// Media type of Kubernetes' strategic merge patch.
pub const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
/// Media type of JSON.
pub const JSON: &str = "application/json";
/// `Accept` for an answer of metadata only: the smallest that upstream's servers give for a write.
pub const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same for an answer that nobody reads: two thirds of the bytes. Upstream's servers send refusals in
/// JSON all the same.
pub const METADATA_UNREAD: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Size limit of an answer unless the request says otherwise: an object in etcd has at most 1.5 MiB.
pub const DEFAULT_RESPONSE_LIMIT_BYTES: usize = 2 * 1024 * 1024;

impl Request {
    fn new(method: Method, path_and_query: impl Into<String>, deadline: Duration) -> Self {
        Self {
            method,
            path_and_query: path_and_query.into(),
            content_type: None,
            accept: None,
            prefer_minimal: false,
            names_agent: true,
            is_routine: false,
            body: None,
            deadline,
            response_limit_bytes: DEFAULT_RESPONSE_LIMIT_BYTES,
            is_repeatable: method != Method::Post,
            part: "",
        }
    }

    /// Reads a resource.
    #[must_use]
    pub fn get(path_and_query: impl Into<String>, deadline: Duration) -> Self {
        Self::new(Method::Get, path_and_query, deadline)
    }

    /// Creates a resource from JSON. Not repeated: the second one would find the first one's object.
    #[must_use]
    pub fn post(path_and_query: impl Into<String>, body: Vec<u8>, deadline: Duration) -> Self {
        Self::new(Method::Post, path_and_query, deadline).with_body(JSON, body)
    }

    /// Replaces a resource with JSON.
    #[must_use]
    pub fn put(path_and_query: impl Into<String>, body: Vec<u8>, deadline: Duration) -> Self {
        Self::new(Method::Put, path_and_query, deadline).with_body(JSON, body)
    }

    /// Patches a resource; `content_type` is the kind of patch of `body`. Repeated where needed: merge
    /// patches and strategic merge patches without list operations have the same effect twice as once.
    #[must_use]
    pub fn patch(
        path_and_query: impl Into<String>,
        content_type: &'static str,
        body: Vec<u8>,
        deadline: Duration,
    ) -> Self {
        Self::new(Method::Patch, path_and_query, deadline).with_body(content_type, body)
    }

    /// Deletes a resource.
    #[must_use]
    pub fn delete(path_and_query: impl Into<String>, deadline: Duration) -> Self {
        Self::new(Method::Delete, path_and_query, deadline)
    }

    /// Deletes a resource by these `DeleteOptions`, in JSON.
    #[must_use]
    pub fn delete_with(path_and_query: impl Into<String>, options: Vec<u8>, deadline: Duration) -> Self {
        Self::delete(path_and_query, deadline).with_body(JSON, options)
    }

    fn with_body(mut self, content_type: &'static str, body: Vec<u8>) -> Self {
        self.content_type = Some(content_type);
        self.body = Some(body);
        self
    }

    /// Requests the smallest answer, in the way of both our hub and upstream.
    #[must_use]
    pub fn with_smallest_answer(mut self) -> Self {
        self.prefer_minimal = true;
        self.accept = Some(METADATA_ONLY);
        self
    }
}

/// A successful answer (2xx).
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// The body, whole; empty after `Prefer: return=minimal`.
    pub body: Vec<u8>,
    /// The server's `Date`, in seconds since 1970. It shows how far this node's clock is off; nothing else
    /// may depend on it.
    pub date_unix_secs: Option<u64>,
    /// Texts of the server's `Warning` headers.
    pub warnings: Vec<String>,
    /// Our hub's answer to a renewal: the latest change that concerns the node.
    pub desired: Option<u64>,
    /// Our hub's answer to a renewal: ids of calls that wait for the node.
    pub calls: Vec<String>,
    /// The server offers to accept a renewal as its time alone, [`RENEWAL_MEDIA`].
    pub takes_time_alone: bool,
    /// The request, for messages: `GET https://hub:6443/api/v1/nodes/edge-1`.
    pub request: String,
}

impl Response {
    /// The body as JSON.
    ///
    /// # Errors
    /// [`NetError::Garbled`] if it is something else.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, NetError> {
        kedge_api::read::from_slice(&self.body).map_err(|error| NetError::Garbled {
            request: self.request.clone(),
            status: Some(self.status),
            // the error repeats the value, which may be the whole answer
            why: format!("the answer is not the JSON that is expected: {}", shortened(&error.to_string())),
        })
    }
}

/// Whether an outcome is *contact*: verified TLS and any answer but 401. (Nothing is
/// sent without verified TLS, so any HTTP status implies it.)
#[must_use]
pub fn is_contact<T>(outcome: &Result<T, NetError>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(error) => error.is_contact(),
    }
}

/// One API server, as a kubeconfig names it.
pub struct Api {
    lookup: Arc<Lookup>,
    links: Arc<Links>,
    user_agent: Arc<str>,
    boot_line: Arc<str>,
    credentials: Credentials,
    outcomes: Arc<Outcomes>,
}

impl Api {
    /// Loads the kubeconfig. Opens no connection.
    ///
    /// # Errors
    /// If something in it cannot be used. Worth trying again later: it may be half written.
    pub fn open(options: ApiOptions) -> Result<Arc<Self>, OpenError> {
        Self::open_with(options, Lookup::system(), Arc::new(read_named_file), Servers::default())
    }

    /// Like [`Api::open`], with the caller's own name lookup instead of the system's.
    ///
    /// # Errors
    /// Those of [`Api::open`].
    pub fn open_with_lookup(options: ApiOptions, resolve: LookupFn) -> Result<Arc<Self>, OpenError> {
        Self::open_with(options, Lookup::with(resolve), Arc::new(read_named_file), Servers::default())
    }

    /// Like [`Api::open`], with the caller's own way to read the kubeconfig and the files it names.
    ///
    /// # Errors
    /// Those of [`Api::open`].
    pub fn open_with_files(options: ApiOptions, read: Arc<ReadFile>) -> Result<Arc<Self>, OpenError> {
        Self::open_with(options, Lookup::system(), read, Servers::default())
    }

    /// Like [`Api::open_with_files`], for the first of these servers that answers.
    ///
    /// # Errors
    /// Those of [`Api::open`].
    pub(crate) fn open_choosing(
        options: ApiOptions,
        read: Arc<ReadFile>,
        servers: Servers,
    ) -> Result<Arc<Self>, OpenError> {
        Self::open_with(options, Lookup::system(), read, servers)
    }

    /// Like [`Api::open`], for the first of these servers that answers, or else the kubeconfig's.
    ///
    /// # Errors
    /// Those of [`Api::open`].
    pub fn open_with_servers(options: ApiOptions, servers: &[ApiServer]) -> Result<Arc<Self>, OpenError> {
        let chosen = Servers::default();
        chosen.set(servers);
        Self::open_choosing(options, Arc::new(read_named_file), chosen)
    }

    fn open_with(
        options: ApiOptions,
        lookup: Lookup,
        read: Arc<ReadFile>,
        servers: Servers,
    ) -> Result<Arc<Self>, OpenError> {
        Ok(Arc::new(Self {
            lookup: Arc::new(lookup),
            links: Arc::default(),
            user_agent: concat!("kedge/", env!("CARGO_PKG_VERSION")).into(),
            boot_line: boot_line(LinuxClocks::new(&Roots::default()).boot_id()).into(),
            credentials: Credentials::load(options, read, servers)?,
            outcomes: Arc::default(),
        }))
    }

    /// A new stream: its own connection, its own [`Cancel`].
    #[must_use]
    pub fn stream(self: &Arc<Self>, name: &'static str) -> Client {
        let stream = Stream {
            api: Arc::clone(self),
            name,
            cancel: Cancel::new(),
            dialled: Arc::default(),
            connected: Arc::default(),
            agent: Mutex::new(None),
        };
        Client(Arc::new(stream), None)
    }

    /// The server's URL, for messages.
    #[must_use]
    pub fn url(&self) -> String {
        self.credentials.loaded().url.clone()
    }

    /// The node that the credential is for, if it is a node's.
    #[must_use]
    pub fn node(&self) -> Option<String> {
        self.credentials.loaded().node.clone()
    }

    /// The latest outcomes of requests to it.
    #[must_use]
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// Loads the kubeconfig anew if a file behind it has changed since; returns the number of the loading in
    /// use. Waits for unresponsive files only briefly: then the previous loading stays in use.
    pub fn refresh(&self) -> u64 {
        self.credentials.latest().generation
    }

    /// Looks, on a thread of its own, for an earlier server that answers, or, after a failure, for any. The
    /// request is of the kind that every node makes, with its credential.
    fn look_for_server(self: &Arc<Self>, has_failed: bool) {
        let access = self.credentials.loaded();
        let servers = &self.credentials.servers;
        let Some(count) = servers.begin_look(&access.own.server, has_failed, Instant::now()) else { return };
        let api = Arc::clone(self);
        let thread = std::thread::Builder::new().name("servers".to_owned()).stack_size(STACK_BYTES);
        let begun = thread.spawn(move || {
            let servers = &api.credentials.servers;
            let in_use = servers.chosen(&access.own.server).0;
            if let Some(found) = (0..count).find(|at| api.answers(*at))
                && found != in_use
                && let Some(url) = api.credentials.move_to(found)
            {
                log::info!("{url} answers this node and is used from now on");
            }
            servers.end_look();
        });
        if begun.is_err() {
            servers.end_look();
        }
    }

    /// Whether the server at this place in the order answers for this node's Node. With a credential that is
    /// not a node's, any answer counts.
    fn answers(self: &Arc<Self>, at: usize) -> bool {
        let Some(access) = self.credentials.access_to(at) else { return false };
        let path = access.node.as_ref().map_or("/version".to_owned(), |node| format!("/api/v1/nodes/{node}"));
        let request = Request { accept: Some(METADATA_ONLY), ..Request::get(path, LOOK) };
        let asked = format!("GET {}{}", access.url, request.path_and_query);
        self.stream("servers").exchange(&access, &request, asked).is_ok()
    }

    /// The number of the server in use, without a look at the files: the servers that the kubeconfig has
    /// named are counted from 0. A new certificate or token for the same server is not another server.
    pub fn server(&self) -> u64 {
        self.credentials.loaded().server
    }
}

/// The header line with the first eight bytes of this boot's id; empty without one.
fn boot_line(boot_id: &str) -> String {
    let digits: String = boot_id.chars().filter(|letter| *letter != '-').take(16).collect();
    let is_id = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_id { format!("{BOOT_HEADER}: {digits}\r\n") } else { String::new() }
}

/// A connection to the server before TLS, and everything that TLS and a request on it need.
pub(crate) struct Dialled {
    pub(crate) socket: std::net::TcpStream,
    pub(crate) route: Arc<Route>,
    /// The server's URL.
    pub(crate) url: String,
    /// The header, if there is a credential besides a certificate.
    pub(crate) authorization: Option<HeaderValue>,
}

/// One stream of requests to the server. A clone is the same stream.
#[derive(Clone)]
pub struct Client(Arc<Stream>, Option<u64>);

struct Stream {
    api: Arc<Api>,
    name: &'static str,
    cancel: Cancel,
    dialled: Arc<AtomicU64>,
    connected: Arc<Mutex<Option<SocketAddr>>>,
    agent: Mutex<Option<(u64, Agent)>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.0.name)
    }
}

/// How long a streamed answer may take at each of its stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    /// From the call to the head of the answer.
    pub(crate) open: Duration,
    /// Between any two pieces of the body.
    pub(crate) idle: Duration,
}

impl Client {
    /// Another stream to the same server: its own connection and [`Cancel`], the same credentials and TLS
    /// sessions.
    #[must_use]
    pub fn for_stream(&self, name: &'static str) -> Self {
        self.0.api.stream(name)
    }

    /// The same stream, for the server of this number: a request composed for that server is not sent to
    /// another.
    #[must_use]
    pub fn for_server(&self, number: u64) -> Self {
        Self(Arc::clone(&self.0), Some(number))
    }

    /// The credentials for a request, unless it is meant for another server.
    fn access(
        &self,
        access: Arc<Access>,
        method: &http::Method,
        path_and_query: &str,
    ) -> Result<(Arc<Access>, String), NetError> {
        let asked = format!("{method} {}{path_and_query}", access.url);
        if self.1.is_some_and(|number| number != access.server) {
            let why = "not sent: the kubeconfig names another API server now".to_owned();
            return Err(NetError::Unreachable { request: asked, why });
        }
        Ok((access, asked))
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    #[must_use]
    pub fn api(&self) -> &Arc<Api> {
        &self.0.api
    }

    /// The switch that ends this stream's calls, now and for ever; a new stream takes its place.
    #[must_use]
    pub fn cancel_handle(&self) -> Cancel {
        self.0.cancel.clone()
    }

    /// How many connections this stream has dialled.
    #[must_use]
    pub fn dialled(&self) -> u64 {
        self.0.dialled.load(Ordering::Relaxed)
    }

    /// Opens a connection that carries no request of ours but the caller's own. Blocks, at most for `limit`.
    ///
    /// # Errors
    /// The server cannot be reached, or there is no credential.
    pub(crate) fn dial(&self, limit: Duration) -> Result<Dialled, String> {
        let access = self.0.api.credentials.latest();
        let dialler = self.dialler(&access);
        let socket = dialler.open(Instant::now() + limit).map_err(|error| error.to_string())?;
        let authorization = access.authorization()?;
        Ok(Dialled { socket, route: Arc::clone(&access.route), url: access.url.clone(), authorization })
    }

    /// Sends a request and reads the whole answer. Blocks, at most for the request's deadline.
    ///
    /// # Errors
    /// Anything but a whole answer with a status below 300; see [`NetError`].
    pub fn request(&self, request: &Request) -> Result<Response, NetError> {
        let credentials = &self.0.api.credentials;
        let access = if request.is_routine { credentials.recent() } else { credentials.latest() };
        let (access, asked) = self.access(access, &request.method.http(), &request.path_and_query)?;
        let outcome = self.exchange(&access, request, asked);
        if outcome.is_err() {
            credentials.doubt();
        }
        let is_unheard = !is_contact(&outcome) && !self.0.cancel.is_cancelled();
        if request.is_routine || is_unheard {
            self.0.api.look_for_server(is_unheard || (request.is_routine && outcome.is_err()));
        }
        let mut key = outcomes::key(self.0.name, request.method.http().as_str(), &request.path_and_query);
        key.1.push_str(request.part);
        self.0.api.outcomes.note(&access.url, key, &outcome);
        outcome
    }

    fn exchange(&self, access: &Access, request: &Request, asked: String) -> Result<Response, NetError> {
        let begun = Instant::now();
        let limits = Limits { global: Some(request.deadline), open: None, idle: None };
        let mut outcome = self.send(access, request, &asked, limits);
        let left = request.deadline.saturating_sub(begun.elapsed());
        if outcome.as_ref().is_err_and(|failure| failure.is_dead_connection)
            && request.is_repeatable
            && !left.is_zero()
            && !self.0.cancel.is_cancelled()
        {
            outcome = self.send(access, request, &asked, Limits { global: Some(left), ..limits });
        }
        let answer = outcome.map_err(|failure| failure.error)?;
        self.whole(access, request, asked, answer)
    }

    /// Opens an answer whose body arrives in pieces for a long time.
    pub(crate) fn open_stream(
        &self,
        path_and_query: &str,
        accept: Option<&'static str>,
        limits: StreamLimits,
    ) -> Result<StreamedBody, NetError> {
        let access = self.0.api.credentials.latest();
        let (access, asked) = self.access(access, &http::Method::GET, path_and_query)?;
        let key = outcomes::watch_key(self.0.name, path_and_query);
        let (api, url) = (&self.0.api, &access.url);
        match self.open_body(&access, path_and_query, accept, asked, limits) {
            Ok((reader, asked, date_unix_secs)) => {
                let open = api.outcomes.opened(url, key.clone());
                let (api, server, cancel) = (Arc::clone(api), url.clone(), self.0.cancel.clone());
                Ok(StreamedBody { reader, asked, cancel, date_unix_secs, api, server, key, _open: open })
            }
            Err(error) => {
                let outcome: Result<(), _> = Err(error.clone());
                api.outcomes.note(url, key, &outcome);
                Err(error)
            }
        }
    }

    /// The body of a streamed answer, the request for messages, and the server's `Date`.
    fn open_body(
        &self,
        access: &Access,
        path_and_query: &str,
        accept: Option<&'static str>,
        asked: String,
        limits: StreamLimits,
    ) -> Result<(ureq::BodyReader<'static>, String, Option<u64>), NetError> {
        let request = Request { accept, ..Request::get(path_and_query, limits.open) };
        let at_once = Limits { global: None, open: Some(limits.open), idle: Some(limits.idle) };
        let mut outcome = self.send(access, &request, &asked, at_once);
        if outcome.as_ref().is_err_and(|failure| failure.is_dead_connection) && !self.0.cancel.is_cancelled()
        {
            outcome = self.send(access, &request, &asked, at_once);
        }
        let answer = outcome.map_err(|failure| failure.error)?;
        if answer.status() != 200 {
            return self.whole(access, &request, asked, answer).and_then(|response| {
                Err(NetError::Garbled {
                    request: response.request,
                    status: Some(response.status),
                    why: format!("status is {}, expected 200", response.status),
                })
            });
        }
        let date_unix_secs = date_of(answer.headers());
        let reader = answer.into_body().into_with_config().limit(u64::MAX).reader();
        Ok((reader, asked, date_unix_secs))
    }

    /// `may_wait`: a connection with the previous credential is accepted.
    fn agent(&self, access: &Access, may_wait: bool) -> Agent {
        let mut kept = locked(&self.0.agent);
        match kept.as_ref() {
            Some((generation, agent)) if *generation == access.generation => agent.clone(),
            // a renewed certificate is tried on the other streams first
            Some((generation, agent))
                if may_wait
                    && *generation + 1 == access.generation
                    && access.renewed.is_some_and(|renewed| renewed.elapsed() < LEASE_IS_LAST) =>
            {
                agent.clone()
            }
            _ => {
                let agent = self.new_agent(access);
                *kept = Some((access.generation, agent.clone()));
                agent
            }
        }
    }

    fn new_agent(&self, access: &Access) -> Agent {
        let config = Agent::config_builder()
            .https_only(true)
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            // each request that sets `names_agent` sends it: ureq keeps no connection for requests that
            // differ in it
            .user_agent(AutoHeaderValue::None)
            .accept(AutoHeaderValue::None)
            .accept_encoding(AutoHeaderValue::None)
            .max_response_header_size(MAX_HEAD_BYTES)
            .input_buffer_size(BUFFER_BYTES)
            .output_buffer_size(BUFFER_BYTES)
            .max_idle_connections(1)
            .max_idle_connections_per_host(1)
            .max_idle_age(MAX_IDLE)
            .build();
        Agent::with_parts(config, self.dialler(access), NoResolver)
    }

    fn dialler(&self, access: &Access) -> Dialler {
        Dialler {
            route: Arc::clone(&access.route),
            lookup: Arc::clone(&self.0.api.lookup),
            cancel: self.0.cancel.clone(),
            dialled: Arc::clone(&self.0.dialled),
            connected: Arc::clone(&self.0.connected),
            links: Arc::clone(&self.0.api.links),
            user_agent: Arc::clone(&self.0.api.user_agent),
            boot_line: Arc::clone(&self.0.api.boot_line),
        }
    }

    /// Sends a request and reads the head of the answer.
    fn send(
        &self,
        access: &Access,
        request: &Request,
        asked: &str,
        limits: Limits,
    ) -> Result<http::Response<ureq::Body>, Failure> {
        if self.0.cancel.is_cancelled() {
            return Err(NetError::Cancelled.into());
        }
        let unsendable = |why: String| NetError::Unsendable { request: asked.to_owned(), why };
        let head = head_of(access, request, &self.0.api.user_agent).map_err(unsendable)?;
        let agent = self.agent(access, request.is_routine);
        let dialled_before = self.dialled();
        let begun = Instant::now();
        *locked(&self.0.connected) = None;
        let outcome = match &request.body {
            Some(body) => head.body(body.as_slice()).map(|request| run(&agent, request, limits)),
            None => head.body(()).map(|request| run(&agent, request, limits)),
        };
        let sent = outcome.map_err(|error| unsendable(error.to_string()))?;
        sent.map_err(|error| {
            let is_dead_connection = self.dialled() == dialled_before && is_lost_connection(&error);
            if is_dead_connection {
                self.0.api.links.proved_dead(begun);
            }
            if let Some(address) = locked(&self.0.connected).take() {
                // it accepted the connection and does not serve: the next connection goes to another address,
                // if the name has one
                self.0.api.links.avoid(address);
            }
            Failure { is_dead_connection, error: self.net_error(asked, &error, None) }
        })
    }

    /// Reads the body of an answer and classifies it.
    fn whole(
        &self,
        access: &Access,
        request: &Request,
        asked: String,
        answer: http::Response<ureq::Body>,
    ) -> Result<Response, NetError> {
        let status = answer.status().as_u16();
        let is_success = (200..300).contains(&status);
        let limit = if is_success { request.response_limit_bytes } else { MAX_STATUS_BYTES };
        let date_unix_secs = date_of(answer.headers());
        let warnings = warnings_of(answer.headers());
        let desired = desired_of(answer.headers());
        let calls = calls_of(answer.headers());
        let takes_time_alone = takes_time_alone(answer.headers());
        let retry_after = answer.headers().get(header::RETRY_AFTER).cloned();
        let mut body = Vec::new();
        let unlimited = answer.into_body().into_with_config().limit(u64::MAX).reader();
        // a refused stream has no deadline of its own
        let bounded = Until { reader: unlimited, end: Instant::now() + request.deadline };
        let read = bounded.take(limit as u64 + 1).read_to_end(&mut body);
        if is_success {
            if let Err(error) = read {
                return Err(self.net_error(&asked, &ureq::Error::from(error), Some(status)));
            }
            if body.len() > limit {
                return Err(NetError::TooLarge { request: asked, status, limit });
            }
            let request = asked;
            return Ok(Response {
                status,
                body,
                date_unix_secs,
                warnings,
                desired,
                calls,
                takes_time_alone,
                request,
            });
        }
        if status == 401 {
            access.forget_token();
            // perhaps because of the certificate that its connection was made with
            locked(&self.0.agent).take_if(|(generation, _)| *generation != access.generation);
        }
        Err(refusal(asked, status, &body, retry_after.as_ref()))
    }

    /// Classifies an error of ureq, or of our transport below it. `status` is set once the head was read.
    fn net_error(&self, asked: &str, error: &ureq::Error, status: Option<u16>) -> NetError {
        if self.0.cancel.is_cancelled() {
            return NetError::Cancelled;
        }
        let request = asked.to_owned();
        let why = describe(error);
        match error {
            _ if status.is_some() => {
                NetError::Garbled { request, status, why: format!("the answer broke off: {why}") }
            }
            ureq::Error::Other(inner) if is_untrusted(inner.as_ref()) => NetError::Untrusted { request, why },
            ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => {
                NetError::Garbled { request, status: None, why: format!("the answer is not HTTP: {why}") }
            }
            ureq::Error::Http(_) | ureq::Error::BadUri(_) | ureq::Error::BodyExceedsLimit(_) => {
                NetError::Unsendable { request, why }
            }
            _ => NetError::Unreachable { request, why },
        }
    }
}

/// Time limits of one request in ureq's terms.
#[derive(Clone, Copy)]
struct Limits {
    global: Option<Duration>,
    open: Option<Duration>,
    idle: Option<Duration>,
}

/// Why the head of an answer could not be read.
struct Failure {
    error: NetError,
    /// The request went out on a kept connection, which proved dead before any answer came.
    is_dead_connection: bool,
}

impl From<NetError> for Failure {
    fn from(error: NetError) -> Self {
        Self { error, is_dead_connection: false }
    }
}

fn run(
    agent: &Agent,
    request: http::Request<impl ureq::AsSendBody>,
    limits: Limits,
) -> Result<http::Response<ureq::Body>, ureq::Error> {
    let request = agent
        .configure_request(request)
        .timeout_global(limits.global)
        .timeout_connect(limits.open)
        .timeout_send_request(limits.open)
        .timeout_recv_response(limits.open)
        .timeout_per_read(limits.idle)
        .build();
    agent.run(request)
}

fn head_of(access: &Access, request: &Request, agent: &str) -> Result<http::request::Builder, String> {
    if !request.path_and_query.starts_with('/') {
        return Err(format!("path is \"{}\", expected a / first", request.path_and_query));
    }
    let mut head = http::Request::builder()
        .method(request.method.http())
        .uri(format!("{}{}", access.url, request.path_and_query));
    if request.names_agent {
        head = head.header(header::USER_AGENT, agent);
    }
    if let Some(accept) = request.accept {
        head = head.header(header::ACCEPT, accept);
    }
    if let Some(content_type) = request.content_type {
        head = head.header(header::CONTENT_TYPE, content_type);
    }
    if request.prefer_minimal {
        head = head.header("prefer", "return=minimal");
    }
    if let Some(authorization) = access.authorization()? {
        head = head.header(header::AUTHORIZATION, authorization);
    }
    Ok(head)
}

/// Whether the connection was gone before the answer began.
fn is_lost_connection(error: &ureq::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable, NotConnected,
        TimedOut, UnexpectedEof,
    };
    // the last three are the kernel's, when an acknowledgement is overdue
    matches!(error, ureq::Error::Io(error) if matches!(error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof
        | HostUnreachable | NetworkUnreachable | TimedOut))
}

pub(super) fn is_untrusted(error: &(dyn error::Error + Send + Sync + 'static)) -> bool {
    let dial = error.downcast_ref::<DialError>();
    matches!(
        dial,
        Some(DialError::Tls {
            error: rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented,
            ..
        })
    )
}

/// The error, in words for an operator.
pub(super) fn describe(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Other(inner) => match inner.downcast_ref::<DialError>() {
            Some(DialError::Tls { peer, error }) => describe_tls(peer, error),
            _ => inner.to_string(),
        },
        ureq::Error::Io(error) => plain(error),
        ureq::Error::Timeout(ureq::Timeout::PerRead) => "silent for too long".to_owned(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        other => other.to_string(),
    }
}

fn describe_tls(peer: &str, error: &rustls::Error) -> String {
    use rustls::CertificateError::{NotValidYet, NotValidYetContext};
    let hint = match error {
        rustls::Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. }) => {
            " (this node's clock may be wrong)"
        }
        rustls::Error::AlertReceived(alert) if is_about_our_certificate(*alert) => {
            " (the server does not accept our client certificate)"
        }
        _ => "",
    };
    format!("TLS with {peer}: {}{hint}", tls_words(error))
}

fn is_about_our_certificate(alert: rustls::AlertDescription) -> bool {
    use rustls::AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
            | Alert::DecryptError
    )
}

/// An answer of 300 and above as an error.
pub(super) fn refusal(
    request: String,
    status: u16,
    body: &[u8],
    retry_after: Option<&HeaderValue>,
) -> NetError {
    let object = serde_json::from_slice::<Value>(body).ok();
    let text_of = |key: &str| object.as_ref().and_then(|object| object.get(key)).and_then(Value::as_str);
    let message = match text_of("message") {
        Some(message) => shortened(message),
        None => shortened(String::from_utf8_lossy(body).trim()),
    };
    if status == 401 {
        return NetError::Unauthorized { request, message };
    }
    let in_object = object.as_ref().and_then(|object| object.pointer("/details/retryAfterSeconds")?.as_u64());
    let in_header = retry_after.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    NetError::Refused {
        request,
        status,
        reason: text_of("reason").map(shortened).unwrap_or_default(),
        message,
        retry_after: in_header.or(in_object).map(|secs| Duration::from_secs(secs).min(MAX_RETRY_AFTER)),
    }
}

/// The beginning of a text from outside, on one line.
pub(super) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if short.len() > MAX_MESSAGE_BYTES {
        short.truncate(short.floor_char_boundary(MAX_MESSAGE_BYTES));
        short.push_str("...");
    }
    short
}

/// The texts of `Warning: 299 - "text"` headers (RFC 7234 section 5.5, as Kubernetes uses them).
fn warnings_of(headers: &HeaderMap) -> Vec<String> {
    let texts = headers.get_all(header::WARNING).iter().filter_map(|value| value.to_str().ok());
    let unquoted = texts.filter_map(|value| {
        let quoted = value.splitn(3, ' ').nth(2)?;
        let inner = quoted.strip_prefix('"')?.rsplit_once('"')?.0;
        let mut text = inner.replace("\\\"", "\"").replace("\\\\", "\\");
        text.truncate(text.floor_char_boundary(MAX_WARNING_BYTES));
        Some(text)
    });
    unquoted.take(MAX_WARNINGS).collect()
}

fn desired_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(kedge_api::DESIRED_HEADER)?.to_str().ok()?.parse().ok()
}

fn calls_of(headers: &HeaderMap) -> Vec<String> {
    let told = headers.get(kedge_api::CALLS_HEADER).and_then(|value| value.to_str().ok());
    told.map(ids_of).unwrap_or_default()
}

/// Whether `Accept-Patch` (RFC 5789 section 3.1) lists the type.
fn takes_time_alone(headers: &HeaderMap) -> bool {
    let types = headers.get_all("accept-patch").iter().filter_map(|value| value.to_str().ok());
    types.flat_map(|types| types.split(',')).any(|media| media.trim() == RENEWAL_MEDIA)
}

fn date_of(headers: &HeaderMap) -> Option<u64> {
    parse_http_date(headers.get(header::DATE)?.to_str().ok()?)
}

/// Reads that end at a time, give or take one read.
struct Until<R> {
    reader: R,
    end: Instant,
}

impl<R: Read> Read for Until<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if Instant::now() >= self.end { Err(io::ErrorKind::TimedOut.into()) } else { self.reader.read(bytes) }
    }
}

/// The body of a streamed answer. Dropping it closes the connection.
pub(crate) struct StreamedBody {
    reader: ureq::BodyReader<'static>,
    asked: String,
    cancel: Cancel,
    /// The server's `Date`.
    pub(crate) date_unix_secs: Option<u64>,
    api: Arc<Api>,
    server: String,
    key: outcomes::Key,
    _open: OpenWatch,
}

impl StreamedBody {
    /// The request, for messages.
    pub(crate) fn asked(&self) -> &str {
        &self.asked
    }

    /// Reads available bytes; 0 is the orderly end.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Result<usize, NetError> {
        let read = self.reader.read(bytes).map_err(|error| match self.cancel.is_cancelled() {
            true => NetError::Cancelled,
            false => NetError::Unreachable {
                request: self.asked.clone(),
                why: describe(&ureq::Error::from(error)),
            },
        });
        match &read {
            Ok(_) => self.api.outcomes.heard(),
            Err(_) => self.api.outcomes.note(&self.server, self.key.clone(), &read),
        }
        read
    }
}

/// The ids in a comma-separated list, up to the limit.
pub(crate) fn ids_of(list: &str) -> Vec<String> {
    list.split(',').filter(|id| !id.is_empty()).take(MAX_CALLS).map(str::to_owned).collect()
}

/// Most calls that one bookmark announces: more than a hub lets wait for one node.
pub(crate) const MAX_CALLS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_header_becomes_seconds() {
        let check = |text: &str, expect: Option<u64>| assert_eq!(parse_http_date(text), expect, "{text}");
        check("Thu, 01 Jan 1970 00:00:00 GMT", Some(0));
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777));
        check("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199));
        check("Sat, 21 Nov 2026 02:00:00 GMT", Some(1_795_226_400));
        check("Sat, 21 Nov 2026 02:00:00 CET", None);
        check("Sat, 21 Nov 0026 02:00:00 GMT", None);
        check("Sat, 21 Foo 2026 02:00:00 GMT", None);
        check("Sunday, 06-Nov-94 08:49:37 GMT", None);
        check("", None);
    }

    #[test]
    fn refusal_carries_the_status_of_the_server() {
        let check = |status: u16, body: &str, header: Option<&str>, expect: &str, wait_secs: Option<u64>| {
            let header = header.map(|text| HeaderValue::from_str(text).unwrap());
            let found = refusal("GET /x".into(), status, body.as_bytes(), header.as_ref());
            assert_eq!(found.to_string(), expect);
            assert_eq!(found.is_contact(), status != 401, "{expect}");
            let found_wait = match found {
                NetError::Refused { retry_after, .. } => retry_after.map(|wait| wait.as_secs()),
                _ => None,
            };
            assert_eq!(found_wait, wait_secs, "{expect}");
        };
        let status = r#"{"kind":"Status","reason":"NotFound","message":"nodes \"e\" not found","code":404}"#;
        check(404, status, None, "GET /x: refused (404 NotFound): nodes \"e\" not found", None);
        let status = r#"{"message":"slow down","details":{"retryAfterSeconds":7}}"#;
        check(429, status, None, "GET /x: refused (429): slow down", Some(7));
        check(429, status, Some("3"), "GET /x: refused (429): slow down", Some(3));
        check(503, "", Some("999999"), "GET /x: refused (503): ", Some(600));
        check(503, "", Some("Sun, 06 Nov 1994 08:49:37 GMT"), "GET /x: refused (503): ", None);
        check(302, "<html>\r\nlogin", None, "GET /x: refused (302): <html>  login", None);
        let text = "GET /x: the server does not accept our credentials (401): Unauthorized";
        check(401, r#"{"message":"Unauthorized"}"#, None, text, None);
        check(500, &"ä".repeat(2000), None, &format!("GET /x: refused (500): {}...", "ä".repeat(512)), None);
    }

    #[test]
    fn warnings_are_unquoted_and_bounded() {
        let mut headers = HeaderMap::new();
        let mut add = |text: &str| headers.append(header::WARNING, HeaderValue::from_str(text).unwrap());
        add(r#"299 - "spec.configSource: \"x\" is old""#);
        add("garbage");
        add(&format!("299 - \"{}\"", "y".repeat(2000)));
        let found = warnings_of(&headers);
        assert_eq!(found, [r#"spec.configSource: "x" is old"#.to_owned(), "y".repeat(MAX_WARNING_BYTES)]);
    }
}
