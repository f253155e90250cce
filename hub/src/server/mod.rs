//! HTTP over TLS: connections, their limits, and the path of a request through route, authorization and handler.
//!
//! HTTP/1.1 only: every client falls back to it, and an idle watch stays small (`detached_watch`). Always holds: no connection is served without
//! TLS; a request ends in exactly one answer, and every refusal is a `Status` object; a panic in one request answers 500 and
//! affects no other request. Everything that a client can make grow has a limit with a name.

mod authentication;
mod context;
mod delete_options;
mod detached_watch;
mod discovery;
mod handlers;
mod health;
mod limits;
mod node_streams;
mod openapi;
mod request;
mod respond;
mod reviews;
mod route;
mod shared;
mod stream;
mod subresources;
mod watch;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch as signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::Hub;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::Identity;

use respond::Body;
use shared::{Counters, Server};

/// Open connections. Further ones wait in the kernel's queue: a reconnecting fleet gets in as others finish.
const MAX_CONNECTIONS: usize = 16_384;
/// Deadline of a TLS handshake. Slow links need seconds, not minutes.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// A request's headers must be complete in this time, counted from when the connection becomes idle: so it is also how
/// long an unused connection is kept. Agents renew every ten seconds or so, and status may come only every five minutes.
const HEADER_TIMEOUT: Duration = Duration::from_secs(400);
/// Largest request head. Long selectors and client certificates' names fit many times over.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Most headers of one request.
const MAX_HEADERS: usize = 64;
/// Time for requests in flight after a stop was requested.
const DRAIN: Duration = Duration::from_secs(10);
/// Wait after a failed accept (no file descriptors), so that the loop does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Why serving ended without a stop request.
#[derive(Debug)]
pub enum ServeError {
    /// The store's thread ended: nothing can be written any more, and only a restart helps.
    StoreEnded,
}

impl fmt::Display for ServeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the store has stopped unexpectedly; see the log above, then start the hub again")
    }
}

impl std::error::Error for ServeError {}

/// Serves until `shutdown` resolves, then stops accepting, ends all watches, lets requests in flight finish, writes what is
/// only in memory and closes the store. Starts no controllers: see [`crate::controllers::start`].
///
/// # Errors
/// Only when the store's thread has ended by itself.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    hub: Arc<Hub>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let server = Arc::new(Server { hub: hub.clone(), counters: Counters::default(), limits: Arc::default() });
    let (stop, stopped) = signal::channel(false);
    let accepting = accept(listener, TlsAcceptor::from(tls), server.clone(), stopped);
    let outcome = tokio::select! {
        () = accepting => Ok(()),
        () = shutdown => Ok(()),
        () = hub.writer().ended() => Err(ServeError::StoreEnded),
    };
    log::info!("stopping: {} connections", server.counters.connections.load(Ordering::Relaxed));
    // the listener is gone with the accepting future
    hub.memory().close();
    let _ = stop.send(true);
    let drained = async {
        while server.counters.connections.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        log::warn!("{} connections did not finish", server.counters.connections.load(Ordering::Relaxed));
    }
    let closed = tokio::task::spawn_blocking(move || hub.close()).await;
    if closed.is_err() {
        log::error!("closing the store failed");
    }
    outcome
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    server: Arc<Server>,
    stopped: signal::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut failing = false;
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((socket, peer)) => {
                failing = false;
                let (tls, server, stopped) = (tls.clone(), server.clone(), stopped.clone());
                tokio::spawn(async move {
                    server.counters.connections.fetch_add(1, Ordering::AcqRel);
                    let _guard = DecrementOnDrop(&server.counters.connections);
                    if let Err(error) = connection(socket, peer.ip(), tls, &server, stopped).await {
                        log::debug!("connection from {peer}: {error}");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                // logged once, not ten times a second
                if !std::mem::replace(&mut failing, true) {
                    log::warn!("cannot accept connections: {error}");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Counts down when dropped, also by a panic.
struct DecrementOnDrop<'a>(&'a AtomicUsize);

impl Drop for DecrementOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// Serves one caller over any stream of this process, as a connection is served after TLS, without sockets and certificates. Ends
/// when the caller leaves. For fuzzing.
///
/// # Errors
/// The stream broke, or did not carry HTTP.
pub async fn serve_one<S>(
    hub: Arc<Hub>,
    identity: Option<Identity>,
    stream: S,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let server = Arc::new(Server { hub, counters: Counters::default(), limits: Arc::default() });
    let (_stop, stopped) = signal::channel(false);
    let caller = Caller { identity: Arc::new(identity), from: IpAddr::V4(Ipv4Addr::LOCALHOST) };
    serve_requests(detached_watch::Link::new(stream), &server, caller, stopped).await
}

async fn connection(
    socket: TcpStream,
    from: IpAddr,
    tls: TlsAcceptor,
    server: &Arc<Server>,
    stopped: signal::Receiver<bool>,
) -> Result<(), ConnectionError> {
    // answers are small and complete: do not delay them to fill packets
    socket.set_nodelay(true)?;
    // boxed: the handshake's state is not kept with the connection
    let socket = Box::pin(accept_tls(socket, from, tls, server)).await?;
    let certificate = socket.stream().get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let identity = Arc::new(certificate.and_then(|der| Identity::from_client_certificate(der)));
    serve_requests(socket, server, Caller { identity, from }, stopped).await
}

/// The client of a connection.
#[derive(Debug, Clone)]
struct Caller {
    /// Of the certificate that TLS verified; `None` without one. Whether it is still valid is judged for each request.
    identity: Arc<Option<Identity>>,
    from: IpAddr,
}

/// Serves all requests of one connection.
async fn serve_requests<S>(
    mut link: detached_watch::Link<S>,
    server: &Arc<Server>,
    caller: Caller,
    mut stopped: signal::Receiver<bool>,
) -> Result<(), ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    // the refusal is an HTTP answer, so that the caller learns the reason
    let admitted = server.limits.connect((*caller.identity).as_ref(), caller.from);
    let refusal = admitted.as_ref().err();
    loop {
        // boxed for the same reason as the handshake: it is not kept during a watch
        let next = Box::pin(requests(link, server, &caller, refusal, &mut stopped)).await?;
        let Some((given_back, answer)) = next else { return Ok(()) };
        link = given_back;
        if !link.write_watch(answer).await? {
            return Ok(());
        }
        if *stopped.borrow() {
            return Ok(link.shut_down().await?);
        }
    }
}

async fn accept_tls(
    socket: TcpStream,
    from: IpAddr,
    tls: TlsAcceptor,
    server: &Server,
) -> Result<detached_watch::Link<TlsStream<stream::Stalling>>, ConnectionError> {
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream::Stalling::new(socket))).await;
    let refused = match handshake {
        Ok(Ok(socket)) => return Ok(detached_watch::Link::new(socket)),
        Ok(Err(error)) => {
            tell_of_refused(&error, from, server);
            error.into()
        }
        Err(_) => "the TLS handshake took too long".into(),
    };
    server.counters.refused_handshakes.fetch_add(1, Ordering::Relaxed);
    Err(refused)
}

/// Logs a failed handshake, so that an operator can see why a node cannot join. Only errors of TLS itself: a probe of the open port is
/// not logged.
fn tell_of_refused(error: &std::io::Error, from: IpAddr, server: &Server) {
    if error.kind() != std::io::ErrorKind::InvalidData {
        return;
    }
    let lines = &server.counters.handshake_lines;
    let before = lines.lock().unwrap_or_else(PoisonError::into_inner).one_more(Instant::now());
    match before {
        Some(0) => log::warn!("TLS handshake with {from} failed: {error}"),
        Some(before) => {
            log::warn!("TLS handshake with {from} failed: {error}; {before} more since the last line")
        }
        None => {}
    }
}

/// Answers requests until the connection ends, or until one of them is a watch that can be detached.
async fn requests<S>(
    link: detached_watch::Link<S>,
    server: &Arc<Server>,
    caller: &Caller,
    refusal: Option<&ApiError>,
    stopped: &mut signal::Receiver<bool>,
) -> Result<Option<(detached_watch::Link<S>, detached_watch::Answer)>, ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let waiting = Arc::new(detached_watch::Waiting::default());
    let unread = Arc::new(AtomicBool::new(false));
    let clean = link.clean();
    let service = service_fn(|request: Request<Incoming>| {
        let (server, caller, waiting, unread) =
            (server.clone(), caller.clone(), waiting.clone(), unread.clone());
        let refused = refusal.map(|error| respond::hang_up(respond::error(error)));
        let manner = detached_watch::manner(&request).filter(|_| clean.is_clean());
        async move {
            if let Some(refused) = refused {
                unread.store(!request.body().is_end_stream(), Ordering::Relaxed);
                return Ok::<_, Infallible>(refused);
            }
            let response = match guarded(server, caller, request).await {
                (response, Sent::Read) => response,
                (response, Sent::Unread) => {
                    unread.store(true, Ordering::Relaxed);
                    respond::hang_up(response)
                }
            };
            let Some(manner) = manner else { return Ok(response) };
            match waiting.keep(response, manner) {
                Some(other) => Ok(other),
                // the connection was detached
                None => std::future::pending().await,
            }
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        // every byte counts on a metered link, and clients do not use our date
        .auto_date_header(false);
    let mut serving = builder.serve_connection(TokioIo::new(link), service);
    let mut stop = std::pin::pin!(async {
        // an error means that the sender is gone, which is a stop, too
        drop(stopped.wait_for(|stopped| *stopped).await);
    });
    let mut stopping = false;
    let answer = loop {
        let served = std::future::poll_fn(|context| match Pin::new(&mut serving).poll(context) {
            Poll::Ready(ended) => Poll::Ready(Served::Ended(ended)),
            Poll::Pending => {
                waiting.take().map_or(Poll::Pending, |answer| Poll::Ready(Served::Watch(answer)))
            }
        });
        tokio::select! {
            served = served => match served {
                Served::Ended(ended) => {
                    ended?;
                    break None;
                }
                Served::Watch(answer) => break Some(answer),
            },
            () = stop.as_mut(), if !stopping => {
                stopping = true;
                Pin::new(&mut serving).graceful_shutdown();
            }
        }
    };
    let parts = serving.into_parts();
    let mut link = parts.io.into_inner();
    if let Some(answer) = answer {
        link.give_back(&parts.read_buf);
        return Ok(Some((link, answer)));
    }
    if unread.load(Ordering::Relaxed) && !stopping {
        tokio::select! {
            () = stream::linger(&mut link) => {}
            () = stop => {}
        }
    }
    Ok(None)
}

/// The state of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// It was received completely.
    Read,
    /// Some of it may still arrive: the connection cannot be reused, and must not be closed before that.
    Unread,
}

/// How the HTTP library returns a connection.
enum Served {
    Ended(hyper::Result<()>),
    Watch(detached_watch::Answer),
}

/// Runs a request in a task of its own, so that a panic in it is a 500 for one client.
async fn guarded(server: Arc<Server>, caller: Caller, request: Request<Incoming>) -> (Response<Body>, Sent) {
    let line = format!("{} {}", request.method(), request.uri().path());
    let counting = server.clone();
    counting.counters.in_flight.fetch_add(1, Ordering::AcqRel);
    let _guard = DecrementOnDrop(&counting.counters.in_flight);
    let answered = tokio::spawn(answered(server, caller, request)).await;
    let (response, sent) = answered.unwrap_or_else(|error| {
        counting.counters.panics.fetch_add(1, Ordering::Relaxed);
        log::error!("{line}: {error}");
        let error = ApiError::internal("an error on the server has prevented the request from succeeding");
        (respond::error(&error), Sent::Unread)
    });
    let class = usize::from(response.status().as_u16() / 100).min(5);
    counting.counters.answers[class].fetch_add(1, Ordering::Relaxed);
    log::debug!("{line} {}", response.status().as_u16());
    (response, sent)
}

/// Answers a request, or refuses it by the limits. It drains the rest of a short body first: closing while the client is sending would
/// reset the connection before the client reads the answer.
async fn answered(server: Arc<Server>, caller: Caller, request: Request<Incoming>) -> (Response<Body>, Sent) {
    let (parts, mut body) = request.into_parts();
    let response = match server.limits.request((*caller.identity).as_ref(), caller.from, Instant::now()) {
        Ok(_taken) => match authentication::of_request(&server, &caller) {
            Ok(identity) => handlers::handle(&server, identity, &parts, &mut body).await,
            Err(error) => respond::hang_up(respond::error(&error)),
        },
        Err(error) => respond::error(&error),
    };
    let sent = if request::drain(&parts.headers, &mut body).await { Sent::Read } else { Sent::Unread };
    (response, sent)
}

#[cfg(test)]
mod tests {

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    /// A pipe that holds an answer, and no body.
    const PIPE_BYTES: usize = 4096;

    /// A server without sockets.
    struct Stage {
        // removed after the hub is closed
        _data_dir: kedge_rig::Scratch,
        server: Arc<Server>,
        stop: signal::Sender<bool>,
    }

    impl Drop for Stage {
        fn drop(&mut self) {
            self.server.hub.close();
        }
    }

    fn admin() -> Option<Identity> {
        Some(Identity::new("admin", &["system:masters"]))
    }

    impl Stage {
        fn new(name: &str) -> Stage {
            let data_dir = kedge_rig::Scratch::new(&format!("hub-server-{name}")).unwrap();
            let hub = Hub::open(&data_dir).unwrap();
            let server = Arc::new(Server { hub, counters: Counters::default(), limits: Arc::default() });
            Stage { _data_dir: data_dir, server, stop: signal::channel(false).0 }
        }

        fn connect(&self, identity: Option<Identity>) -> DuplexStream {
            let (client, ours) = tokio::io::duplex(PIPE_BYTES);
            let (server, stopped) = (self.server.clone(), self.stop.subscribe());
            let caller = Caller { identity: Arc::new(identity), from: HERE };
            tokio::spawn(async move {
                serve_requests(detached_watch::Link::new(ours), &server, caller, stopped).await
            });
            client
        }
    }

    fn head(method: &str, path: &str, fields: &str) -> Vec<u8> {
        format!("{method} {path} HTTP/1.1\r\nhost: h\r\n{fields}\r\n").into_bytes()
    }

    /// The status of the next answer, and whether it is the connection's last.
    async fn answer(client: &mut DuplexStream) -> (u16, bool) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let mut body = vec![0; field("content-length: ").unwrap().parse().unwrap()];
        client.read_exact(&mut body).await.unwrap();
        (head[9..12].parse().unwrap(), field("connection: close").is_some())
    }

    /// Sends a whole request before it reads, as simple clients do, then sends another.
    async fn check(
        stage: &Stage,
        identity: Option<Identity>,
        fields: &str,
        body: &[u8],
        expect: (u16, bool),
    ) {
        let mut client = stage.connect(identity);
        client.write_all(&head("POST", MAPS, fields)).await.unwrap();
        client.write_all(body).await.expect("the hub does not close before the body is sent");
        assert_eq!(answer(&mut client).await, expect, "{fields}");
        if expect.1 {
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "{fields}");
        } else {
            client.write_all(&head("GET", "/healthz", "")).await.unwrap();
            answer(&mut client).await;
        }
    }

    #[tokio::test]
    async fn client_refused_while_sending_gets_the_answer() {
        let stage = Stage::new("refused");
        let length = |bytes: usize| format!("content-length: {bytes}\r\n");
        let (little, much) = (vec![b'x'; 100_000], vec![b'x'; 5_000_000]);
        let chunked = [b"4c4b40\r\n".as_slice(), &much, b"\r\n0\r\n\r\n"].concat();
        // too large for anybody, announced in advance or only noticed
        check(&stage, admin(), &length(much.len()), &much, (413, true)).await;
        check(&stage, admin(), "transfer-encoding: chunked\r\n", &chunked, (413, true)).await;
        // forbidden
        check(&stage, None, &length(little.len()), &little, (401, false)).await;
        check(&stage, None, &length(much.len()), &much, (401, true)).await;
        // rate limited; in an hour, so that the bucket does not refill before the next request
        let hasty = Identity::new("hasty", &["others"]);
        let later = Instant::now() + Duration::from_secs(3600);
        while stage.server.limits.request(Some(&hasty), HERE, later).is_ok() {}
        check(&stage, Some(hasty.clone()), &length(little.len()), &little, (429, false)).await;
        check(&stage, Some(hasty), &length(much.len()), &much, (429, true)).await;
        // the hub's limit of concurrent requests is reached
        let limits = &stage.server.limits;
        let mut held = Vec::new();
        while let Ok(request) = limits.request(admin().as_ref(), HERE, later) {
            held.push(request);
        }
        check(&stage, admin(), &length(little.len()), &little, (503, false)).await;
        check(&stage, admin(), &length(much.len()), &much, (503, true)).await;
        drop(held);
        // too many connections
        let mut held = Vec::new();
        while let Ok(connection) = limits.connect(None, HERE) {
            held.push(connection);
        }
        check(&stage, None, &length(much.len()), &much, (429, true)).await;
    }

    #[tokio::test]
    async fn expect_continue_of_a_refused_request_gets_no_continue() {
        let stage = Stage::new("expect");
        let mut client = stage.connect(None);
        let fields = "content-length: 10\r\nexpect: 100-continue\r\n";
        client.write_all(&head("POST", MAPS, fields)).await.unwrap();
        assert_eq!(answer(&mut client).await, (401, true));
    }
}
