//! One connection after its handshake: its requests, one after the other.
//!
//! Always holds: a request ends in exactly one answer; a panic in one answers 500 and affects no other;
//! between requests the connection holds no buffers (`link`). Large requests run on threads of their own
//! (`large`). Left to others: the limits on connections (`limits`), the meaning of requests (`handlers`),
//! watches after their head (`detached_watch`).

use crate::server::caller::{Caller, ConnectionError, LEASES, STRANGER_IDLE};
use crate::server::link::Sending;
use crate::server::request_body::RequestBody;
use crate::server::{authentication, trail};
use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::{Method, Request, Response, header};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::{Identity, Standing};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch as signal;

use super::detached_watch;
use super::large::LARGE_BYTES;
use super::link::{Link, Next};
use super::pieces::Held;
use super::request::wants_minimal;
use super::respond::{self, Body};
use super::shared::Server;
use super::{audited, calls, handlers, head, renewals};

/// Most headers of one request.
const MAX_HEADERS: usize = 64;
/// Most connections over their caller's limit that get an answer with the reason. Further ones are closed
/// without an answer.
const MAX_TURNED_AWAY: usize = 256;
/// Pause before a caller is refused for making too many requests: so each of its connections gets one refusal
/// a second, which costs little.
const PAUSE: Duration = Duration::from_secs(1);

/// Decrements the count when dropped, also by a panic.
struct DecrementOnDrop<'a>(&'a AtomicUsize);

impl Drop for DecrementOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves all requests of one connection.
pub(super) async fn serve_requests<S>(
    mut link: Link<S>,
    server: &Arc<Server>,
    caller: Caller,
    stopped: signal::Receiver<bool>,
) -> Result<(), ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let _connected = match caller.slot.connect() {
        Ok(connected) => connected,
        // boxed, as below, so that it takes no room in the connection
        Err(error) => return Box::pin(turn_away(link, server, &error)).await,
    };
    let identity = Arc::clone(&caller.identity);
    // a credential that becomes invalid ends the connection, but a request that has already arrived is
    // answered with 401
    let mut ended = pin!(server.credentials.ended((*identity).as_ref()));
    loop {
        let next = tokio::select! {
            biased;
            next = link.next_request(caller.idle()) => Some(next?),
            () = stop(stopped.clone()) => None,
            () = ended.as_mut() => None,
        };
        let Some(next) = next else { return Ok(link.shut_down().await?) };
        let chunks = match next {
            Next::Request { chunks } => chunks,
            Next::Refused(error) => return Ok(Box::pin(link.refuse(&error)).await?),
            Next::Gone => return Ok(()),
        };
        if !chunks && renewals::begins_like_one(link.early()) {
            tokio::select! {
                biased;
                received = link.receive_rest(renewals::MOST_BYTES, renewals::REST) => received?,
                () = stop(stopped.clone()) => {}
            }
            let answer = link.whole_request().and_then(|request| renewals::answer(server, &caller, request));
            if let Some(answer) = answer {
                link.skip_request();
                link.write(answer.text()).await?;
                continue;
            }
        }
        let _looking = calls::begins_like_one(link.early()).then(|| caller.patience.look(link.eye()));
        // boxed: the state of the library and of the request is freed while the connection is idle
        link = match Box::pin(one_request(link, chunks, server, &caller, stopped.clone())).await? {
            Served::Ended => return Ok(()),
            Served::Answered(link) => link,
            Served::Relay(mut link, kept) => {
                caller.patience.of_session();
                let relaying = Box::pin(async move { link.relay(kept).await });
                return tokio::select! {
                    relayed = relaying => Ok(relayed?),
                    // earlier bytes may still reach the node for a moment; after that its session must free
                    // its place
                    () = caller.patience.left_for(calls::LINGER) => Ok(()),
                    () = ended.as_mut() => Ok(()),
                    () = stop(stopped.clone()) => Ok(()),
                };
            }
            Served::Watch(mut link, answer) => {
                // boxed as well: a connection that only renews has no watch
                let watching = Box::pin(async move {
                    let goes_on = link.write_watch(answer).await?;
                    Ok::<_, ConnectionError>(goes_on.then_some(link))
                });
                let left = tokio::select! {
                    left = watching => left?,
                    // the mark of a complete answer is omitted, so the client sees that it was cut off
                    () = ended.as_mut() => None,
                };
                let Some(link) = left else { return Ok(()) };
                link
            }
        };
    }
}

/// Resolves when the hub stops.
async fn stop(mut stopped: signal::Receiver<bool>) {
    // an error means that the sender is gone, which is a stop as well
    drop(stopped.wait_for(|stopped| *stopped).await);
}

/// Answers the first request of a connection over the limit, so that the client learns the reason.
async fn turn_away<S>(mut link: Link<S>, server: &Server, error: &ApiError) -> Result<(), ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let before = server.counters.turned_away.fetch_add(1, Ordering::AcqRel);
    let _guard = DecrementOnDrop(&server.counters.turned_away);
    if before < MAX_TURNED_AWAY {
        let refused = async {
            link.next_request(STRANGER_IDLE).await?;
            link.refuse(error).await
        };
        // a client that sends no request is closed
        drop(tokio::time::timeout(PAUSE * 10, refused).await);
    }
    Ok(())
}

/// The state of the connection after a request.
enum Served<S> {
    /// The connection has ended, too.
    Ended,
    /// The connection can be used again.
    Answered(Link<S>),
    /// The request is a watch, and takes over the connection.
    Watch(Link<S>, detached_watch::Answer),
    /// The request is a session, and takes over the connection.
    Relay(Link<S>, calls::Kept),
}

/// Facts about a request that its service reports to the connection.
#[derive(Default)]
struct Exchange {
    watch: detached_watch::Waiting,
    relay: calls::Waiting,
    /// The library will close the connection.
    closes: AtomicBool,
    /// Some of the request may still arrive: the connection must not be closed before that.
    unread: AtomicBool,
    /// The bytes that the answer takes from its caller's limits until it is sent.
    held: OnceLock<Held>,
}

/// The result of passing a request to the library.
enum Step {
    Ended(hyper::Result<()>),
    /// The library is done with the connection.
    Detached,
    /// Its client reads too slowly, and the caller's budget for waiting bytes is exhausted.
    TooSlow,
}

/// Answers one request through the HTTP library.
async fn one_request<S>(
    link: Link<S>,
    in_chunks: bool,
    server: &Arc<Server>,
    caller: &Caller,
    stopped: signal::Receiver<bool>,
) -> Result<Served<S>, ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let progress = &link.progress();
    let exchange = Exchange::default();
    let exchange = &exchange;
    let service = service_fn(|request: Request<Incoming>| async move {
        let chunks = request.version() == http::Version::HTTP_11;
        let closes = in_chunks || !keeps_alive(&request);
        let (mut response, sent) = guarded(server, caller, request).await;
        if let Some(held) = response.extensions_mut().remove() {
            // set once, because the exchange has one answer
            let _ = exchange.held.set(held);
        }
        exchange.unread.store(sent == Sent::Unread, Ordering::Relaxed);
        let closes = closes || sent == Sent::Unread || response.headers().contains_key(header::CONNECTION);
        let manner = detached_watch::Manner { chunks, closes };
        let kept = exchange.relay.keep(response, manner);
        let Some(response) = kept.and_then(|response| exchange.watch.keep(response, manner)) else {
            // the connection was detached
            return std::future::pending().await;
        };
        exchange.closes.fetch_or(closes, Ordering::Relaxed);
        let response = if closes { respond::hang_up(response) } else { response };
        Ok::<_, Infallible>(response.map(|body| Sending::new(body, progress.clone())))
    });
    let mut serving = http1::Builder::new()
        // no timeout is needed, because `link` has received the whole head
        .header_read_timeout(None)
        .max_buf_size(head::MAX_HEAD_BYTES + 1)
        .max_headers(MAX_HEADERS)
        // `answered` adds the date where it is useful
        .auto_date_header(false)
        .serve_connection(TokioIo::new(link), service);
    let mut stop = pin!(stop(stopped));
    let mut stopping = false;
    let answer = loop {
        let served = std::future::poll_fn(|context| match Pin::new(&mut serving).poll(context) {
            Poll::Ready(ended) => Poll::Ready(Step::Ended(ended)),
            Poll::Pending if exchange.watch.is_kept() || exchange.relay.is_kept() => {
                Poll::Ready(Step::Detached)
            }
            // the library flushes last, so its buffers hold no more of the answer
            Poll::Pending if progress.is_over() && !exchange.closes.load(Ordering::Relaxed) => {
                Poll::Ready(Step::Detached)
            }
            Poll::Pending => match exchange.held.get() {
                Some(held) => held.poll_over(context).map(|()| Step::TooSlow),
                None => Poll::Pending,
            },
        });
        tokio::select! {
            served = served => match served {
                Step::Ended(ended) => {
                    ended?;
                    break None;
                }
                Step::Detached => break Some(exchange.watch.take()),
                Step::TooSlow => return Ok(Served::Ended),
            },
            () = stop.as_mut(), if !stopping => {
                stopping = true;
                exchange.closes.store(true, Ordering::Relaxed);
                Pin::new(&mut serving).graceful_shutdown();
            }
        }
    };
    let mut link = serving.into_parts().io.into_inner();
    if let Some(kept) = exchange.relay.take() {
        return Ok(Served::Relay(link, kept));
    }
    match answer {
        Some(Some(watch)) => return Ok(Served::Watch(link, watch)),
        Some(None) => return Ok(Served::Answered(link)),
        None => {}
    }
    if exchange.unread.load(Ordering::Relaxed) && !stopping {
        tokio::select! {
            () = link.linger() => {}
            () = stop => {}
        }
    }
    Ok(Served::Ended)
}

/// True if the client wants to send further requests on the connection. HTTP/1.0 clients that ask for it are
/// closed all the same.
fn keeps_alive<B>(request: &Request<B>) -> bool {
    let connection = request.headers().get(header::CONNECTION);
    request.version() == http::Version::HTTP_11
        && connection.is_none_or(|value| value.as_bytes().eq_ignore_ascii_case(b"keep-alive"))
}

/// How much of a request's body was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// All of it.
    Read,
    /// Some of it may still arrive: the connection cannot be reused, and must not be closed before that.
    Unread,
}

/// Answers a request; a panic in it is a 500 for one client.
async fn guarded(
    server: &Arc<Server>,
    caller: &Caller,
    request: Request<Incoming>,
) -> (Response<Body>, Sent) {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let counters = &server.counters;
    let is_large = is_large(&request);
    let answering = answered(Arc::clone(server), caller.clone(), request);
    let answered = match is_large {
        true => server.large.spawn(answering).await.map_err(|error| error.to_string()),
        false => caught(answering).await,
    };
    let (response, sent) = answered.unwrap_or_else(|why| {
        counters.panics.fetch_add(1, Ordering::Relaxed);
        log::error!("{method} {}: {why}", uri.path());
        let error = ApiError::internal("an error on the server has prevented the request from succeeding");
        (respond::error(&error), Sent::Unread)
    });
    let class = usize::from(response.status().as_u16() / 100).min(5);
    counters.answers[class].fetch_add(1, Ordering::Relaxed);
    log::debug!("{method} {} {}", uri.path(), response.status().as_u16());
    (response, sent)
}

/// Whether a request may have a large body.
fn is_large(request: &Request<Incoming>) -> bool {
    request.body().size_hint().exact().is_none_or(|bytes| bytes > LARGE_BYTES as u64)
}

/// The output of a future, or the message that it panicked.
async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        // state that it shares with others is behind locks and atomics, which are valid after a panic
        match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err("the request panicked".to_owned())),
        }
    })
    .await
}

/// Answers a request, or refuses it by the limits. It drains the rest of a short body first: closing while
/// the client is sending would reset the connection before the client reads the answer.
async fn answered(server: Arc<Server>, caller: Caller, request: Request<Incoming>) -> (Response<Body>, Sent) {
    let (parts, incoming) = request.into_parts();
    let presented = Arc::new(authentication::Presented::new(Arc::clone(&server), caller.clone(), &parts));
    let identity = presented.first_identity();
    let slot = match &identity {
        Ok(identity) if Arc::ptr_eq(identity, &caller.identity) => Arc::clone(&caller.slot),
        Ok(identity) => server.limits.slot((**identity).as_ref(), caller.from, Instant::now()),
        // the credential may have become invalid since the connection began
        Err(_) => server.limits.slot(None, caller.from, Instant::now()),
    };
    caller.note(identity.as_deref().ok().and_then(Option::as_ref));
    let is_own = identity.as_ref().is_ok_and(|identity| Arc::ptr_eq(identity, &caller.identity));
    if let Some(node) = (*caller.identity).as_ref().filter(|_| is_own).and_then(Identity::node) {
        caller.boot.note(&server.machines, node, &parts.headers);
    }
    // an expired node is no node for the limits
    let live = identity.as_deref().ok().and_then(Option::as_ref);
    let live = live.filter(|identity| identity.standing == Standing::Live);
    let renews = is_renewal(&parts, live);
    let now = Instant::now();
    let paced = match live {
        _ if renews && renewals::costs_little(&parts, incoming.size_hint().exact()) => {
            slot.pace_renewal(now).map(drop)
        }
        Some(identity) if calls::is_first_try(&server, identity, parts.uri.path()) => Ok(()),
        _ => slot.pace(now),
    };
    let mut body = RequestBody::new(incoming, Arc::clone(&slot), renews, presented);
    let mut handled = false;
    let mut response = match (identity, paced) {
        (_, Err(error)) => {
            tokio::time::sleep(PAUSE).await;
            respond::error(&error)
        }
        (Err(error), Ok(())) => respond::hang_up(respond::error(&error)),
        (Ok(identity), Ok(())) => match body.begin() {
            Ok(()) => {
                handled = true;
                let trail = trail::Trail::new(caller.from);
                handlers::handle(&server, identity, &slot, &trail, &parts, &mut body).await
            }
            Err(error) => respond::error(&error),
        },
    };
    // answers to renewals and to clients that want short answers have no date: every byte counts on a metered
    // link
    if !wants_minimal(&parts.headers) || response.status().is_client_error() {
        respond::date(&mut response);
    }
    if renews && is_own && response.status().is_success() {
        caller.renewed(&server);
    }
    let of_connection = (*caller.identity).as_ref();
    audited::count(&server, caller.from, of_connection, response.status().as_u16(), handled);
    let sent = if body.drain(&parts.headers).await { Sent::Read } else { Sent::Unread };
    (response, sent)
}

/// Whether a request is a node's renewal of its own Lease.
fn is_renewal(parts: &http::request::Parts, identity: Option<&Identity>) -> bool {
    let Some(node) = identity.and_then(Identity::node) else { return false };
    matches!(parts.method, Method::PATCH | Method::PUT)
        && parts.uri.path().strip_prefix(LEASES).is_some_and(|name| name == node)
}

#[cfg(test)]
mod tests {

    use crate::server::authentication::Standing;
    use crate::server::caller::IDLE;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use std::net::{IpAddr, Ipv4Addr};

    use kedge_api::DESIRED_HEADER;
    use kedge_hub_core::identity::token::{Grant, ISSUER};
    use kedge_hub_core::kinds::{CONFIG_MAP, EVENT, LEASE, NODE, SERVICE_ACCOUNT};
    use kedge_hub_core::selector::Selection;
    use serde_json::{Value, json};

    use super::*;
    use crate::Hub;
    use crate::capacity::{Capacity, Machine};
    use crate::server::limits::{Paid, Resource, Slot, Taken, Work};
    use crate::server::request::{Form, Parameters};
    use crate::server::watch::{self, Line, WatchStream};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    /// The size of a pipe that holds an answer without a body.
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
            let machine = Machine { memory_bytes: 1 << 30, descriptors: 65_536, processors: 2 };
            let server = Arc::new(Server::new(hub, Capacity::of(&machine)));
            Stage { _data_dir: data_dir, server, stop: signal::channel(false).0 }
        }

        fn connect(&self, identity: Option<Identity>) -> DuplexStream {
            let (client, ours) = tokio::io::duplex(PIPE_BYTES);
            let (server, stopped) = (self.server.clone(), self.stop.subscribe());
            let caller = Caller::new(&server, identity, HERE);
            tokio::spawn(async move { serve_requests(Link::new(ours), &server, caller, stopped).await });
            client
        }

        fn slot(&self, identity: Option<&Identity>) -> Arc<Slot> {
            self.server.limits.slot(identity, HERE, Instant::now())
        }

        /// Requests whose answers are being made.
        fn in_progress(&self) -> usize {
            self.server.limits.level(Resource::Requests).0
        }
    }

    fn head(method: &str, path: &str, fields: &str) -> Vec<u8> {
        format!("{method} {path} HTTP/1.1\r\nhost: h\r\n{fields}\r\n").into_bytes()
    }

    /// The head of the next answer.
    async fn answer_head(client: &mut DuplexStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    /// The status of the next answer, and true if it is the connection's last.
    async fn answer(client: &mut DuplexStream) -> (u16, bool) {
        let head = answer_head(client).await;
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let mut body = vec![0; field("content-length: ").map_or(0, |length| length.parse().unwrap())];
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

    /// The next piece of a watch; `None` if it has ended.
    async fn piece(watch: &mut WatchStream) -> Option<Vec<u8>> {
        std::future::poll_fn(|context| watch.poll_next(context)).await.map(Line::text)
    }

    #[tokio::test]
    async fn watch_ends_with_the_token_that_began_it() {
        let stage = Stage::new("token-watch");
        let hub = &stage.server.hub;
        let followed = Arc::clone(&stage.server);
        tokio::spawn(async move { followed.credentials.follow().await });
        let account = json!({"metadata": {"namespace": "default", "name": "reader"}});
        let map = |namespace: &str, name: &str, data: Value| json!({"metadata": {"namespace": namespace, "name": name}, "data": data});
        let begin = async || {
            let made = hub.create(&SERVICE_ACCOUNT, account.clone()).await.unwrap();
            let audiences = [ISSUER.to_owned()];
            let grant = Grant {
                namespace: "default",
                account: ("reader", &made.uid),
                audiences: &audiences,
                bound: &[],
                id: "1",
                issue: 1,
            };
            let claims = grant.claims(time::OffsetDateTime::now_utc().unix_timestamp(), 3600);
            let parameters =
                Parameters::parse("sendInitialEvents=false&resourceVersionMatch=NotOlderThan").unwrap();
            let (selection, slot) = (Selection::default(), stage.slot(None));
            let watch =
                watch::start(hub.memory(), &CONFIG_MAP, selection, &parameters, Form::Whole, slot).unwrap();
            watch.while_standing(Standing::new(Arc::clone(&stage.server), claims))
        };
        let mut watch = begin().await;
        hub.create(&CONFIG_MAP, map("default", "one", json!({}))).await.unwrap();
        assert!(piece(&mut watch).await.is_some(), "it stands");
        hub.delete(&SERVICE_ACCOUNT, "default", "reader").await.unwrap();
        hub.create(&CONFIG_MAP, map("default", "two", json!({}))).await.unwrap();
        assert_eq!(piece(&mut watch).await, None, "its account is gone");
        let mut watch = begin().await;
        hub.create(&CONFIG_MAP, map("default", "three", json!({}))).await.unwrap();
        assert!(piece(&mut watch).await.is_some(), "it stands");
        let key = kedge_hub_core::identity::denied::user_key("system:serviceaccount:default:reader");
        hub.create(&CONFIG_MAP, map("kube-system", "kedge-denied", json!({key: ""}))).await.unwrap();
        assert_eq!(piece(&mut watch).await, None, "denied");
        assert_eq!(piece(&mut watch).await, None, "ended for good");
    }

    fn renewal(node: &str, time: &str) -> Vec<u8> {
        let body = format!("{{\"spec\":{{\"renewTime\":\"{time}\"}}}}");
        let fields = format!(
            "content-type: application/merge-patch+json\r\nprefer: return=minimal\r\ncontent-length: {}\r\n",
            body.len()
        );
        [head("PATCH", &format!("{LEASES}{node}"), &fields), body.into_bytes()].concat()
    }

    #[tokio::test]
    async fn second_machine_of_a_node_renews_and_reports_nothing() {
        let stage = Stage::new("machines");
        let hub = &stage.server.hub;
        let lease = json!({"metadata": {"name": "n", "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": "n", "leaseDurationSeconds": 40, "renewTime": "2026-11-21T00:00:00.000000Z"}});
        hub.create(&LEASE, lease).await.unwrap();
        hub.create(&NODE, json!({"metadata": {"name": "n"}})).await.unwrap();
        let node = || Some(Identity::new("system:node:n", &["system:nodes"]));
        let with_boot = |request: Vec<u8>, boot: &str| {
            let request = String::from_utf8(request).unwrap();
            request.replacen("\r\n", &format!("\r\n{boot}"), 1).into_bytes()
        };
        let status = |fields: &str| {
            let body = format!("{{\"status\":{fields}}}");
            let fields =
                format!("content-type: application/merge-patch+json\r\ncontent-length: {}\r\n", body.len());
            [head("PATCH", "/api/v1/nodes/n/status", &fields), body.into_bytes()].concat()
        };
        let boots = ["kedge-boot: 00000000000000aa\r\n", "kedge-boot: 00000000000000bb\r\n"];
        let mut first = stage.connect(node());
        first.write_all(&with_boot(renewal("n", "2026-11-21T00:00:01.000000Z"), boots[0])).await.unwrap();
        assert_eq!(answer(&mut first).await, (204, false));
        let mut second = stage.connect(node());
        second.write_all(&with_boot(renewal("n", "2026-11-21T00:00:02.000000Z"), boots[1])).await.unwrap();
        assert_eq!(answer(&mut second).await, (204, false));
        // the later one came with the first renewal after which both renewed twice
        for round in 3..5 {
            for client in [&mut first, &mut second] {
                client
                    .write_all(&renewal("n", &format!("2026-11-21T00:00:{round:02}.000000Z")))
                    .await
                    .unwrap();
                assert_eq!(answer(client).await, (204, false), "a renewal is never refused for it");
            }
        }
        // statuses have connections of their own
        let info = r#"{"nodeInfo":{"machineID":"77aa"}}"#;
        for (boot, code) in [(boots[1], 409), (boots[0], 200), ("", 200)] {
            let mut client = stage.connect(node());
            client.write_all(&with_boot(status(info), boot)).await.unwrap();
            assert_eq!(answer(&mut client).await.0, code, "{boot}");
        }
        second.write_all(&renewal("n", "2026-11-21T00:00:05.000000Z")).await.unwrap();
        assert_eq!(answer(&mut second).await, (204, false));
        let found = || {
            let node = hub.get(&NODE, "", "n").unwrap().value();
            let found =
                kedge_hub_core::value::condition(&node["status"], kedge_api::DUPLICATE_IDENTITY).cloned();
            found.filter(|found| found["message"].as_str().is_some_and(|message| message.contains("77aa")))
        };
        while found().is_none_or(|found| found["status"] != "True") {
            tokio::task::yield_now().await;
        }
        while !hub.list(&EVENT, "default").iter().any(|event| event.value()["reason"] == "DuplicateIdentity")
        {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn renewals_keep_order_identity_and_limits() {
        let stage = Stage::new("renewals");
        let hub = &stage.server.hub;
        let time = |second: usize| format!("2026-11-21T00:00:{second:02}.000000Z");
        for name in ["n", "revoked"] {
            let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": time(0)}});
            hub.create(&LEASE, lease).await.unwrap();
        }
        let renewed = |name: &str| {
            let lease = hub.get(&LEASE, "kube-node-lease", name).unwrap().value();
            lease["spec"]["renewTime"].as_str().unwrap().to_owned()
        };
        let node = |name: &str| Some(Identity::new(&format!("system:node:{name}"), &["system:nodes"]));
        let mut client = stage.connect(node("n"));
        // with another request between them, and one renewal in two parts
        let together = [renewal("n", &time(1)), head("GET", "/version", ""), renewal("n", &time(2))];
        client.write_all(&together.concat()).await.unwrap();
        for code in [204, 200, 204] {
            assert_eq!(answer(&mut client).await, (code, false));
        }
        let request = renewal("n", &time(3));
        let (first, rest) = request.split_at(request.len() - 10);
        client.write_all(first).await.unwrap();
        tokio::task::yield_now().await;
        client.write_all(rest).await.unwrap();
        assert_eq!(answer(&mut client).await, (204, false));
        assert_eq!(renewed("n"), time(3));
        // a renewal without a Lease is handled in the general way, and counted once: there is one token
        let later = Instant::now() + Duration::from_secs(3600);
        let slot = stage.slot(node("unknown").as_ref());
        while slot.pace_renewal(later).is_ok_and(|paid| paid == Paid::Renewal) {}
        (2..1000).for_each(|_| slot.pace(later).unwrap());
        let mut other = stage.connect(node("unknown"));
        other.write_all(&renewal("unknown", &time(4))).await.unwrap();
        assert_eq!(answer(&mut other).await, (404, false));
        // a request that is not exactly a renewal is handled as before
        for (request, code) in [
            (renewal("revoked", &time(4)), 403),
            (renewal("n", "now"), 422),
            ([b"X".as_slice(), &renewal("n", &time(4))].concat(), 405),
        ] {
            client.write_all(&request).await.unwrap();
            assert_eq!(answer(&mut client).await, (code, false), "{}", String::from_utf8_lossy(&request));
        }
        // a revoked credential, and one with too many requests
        let mut revoked = stage.connect(node("revoked"));
        revoked.write_all(&renewal("revoked", &time(5))).await.unwrap();
        assert_eq!(answer(&mut revoked).await, (204, false));
        let denied = json!({"data": {"node.revoked": ""}, "metadata": {"name": "kedge-denied", "namespace": "kube-system"}});
        hub.create(&CONFIG_MAP, denied).await.unwrap();
        revoked.write_all(&renewal("revoked", &time(6))).await.unwrap();
        assert_eq!(answer(&mut revoked).await, (401, true));
        // renewals have a rate of their own, whatever else the node requested: in the short way and in the
        // general one
        let later = Instant::now() + Duration::from_secs(3600);
        while stage.slot(node("n").as_ref()).pace(later).is_ok() {}
        client.write_all(&renewal("n", &time(7))).await.unwrap();
        assert_eq!(answer(&mut client).await, (204, false));
        let general = String::from_utf8(renewal("n", &time(8))).unwrap();
        let general = general.replace("prefer: return=minimal\r\n", "");
        client.write_all(general.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut client).await, (200, false));
        // a renewal that may be expensive is counted like other requests
        let costly = general.replace("merge-patch", "json-patch");
        client.write_all(costly.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut client).await, (429, false));
        while stage.slot(node("n").as_ref()).pace_renewal(later).is_ok() {}
        client.write_all(&renewal("n", &time(9))).await.unwrap();
        assert_eq!(answer(&mut client).await, (429, false));
        assert_eq!([renewed("n"), renewed("revoked")], [time(8), time(5)]);
    }

    #[tokio::test]
    async fn client_refused_while_sending_gets_the_answer() {
        let stage = Stage::new("refused");
        let length = |bytes: usize| format!("content-length: {bytes}\r\n");
        let (little, much) = (vec![b'x'; 100_000], vec![b'x'; 5_000_000]);
        let chunked = [b"4c4b40\r\n".as_slice(), &much, b"\r\n0\r\n\r\n"].concat();
        // too large for any caller, whether announced or noticed later
        check(&stage, admin(), &length(much.len()), &much, (413, true)).await;
        check(&stage, admin(), "transfer-encoding: chunked\r\n", &chunked, (413, true)).await;
        // forbidden
        check(&stage, None, &length(little.len()), &little, (401, false)).await;
        check(&stage, None, &length(much.len()), &much, (401, true)).await;
        // no more than this is read to keep the connection
        for (bytes, ends) in [(256 * 1024, false), (256 * 1024 + 1, true)] {
            check(&stage, None, &length(bytes), &much[..bytes], (401, ends)).await;
        }
        // rate limited; an hour later, so that the bucket does not refill before the next request
        let hasty = Identity::new("hasty", &["others"]);
        let later = Instant::now() + Duration::from_secs(3600);
        while stage.slot(Some(&hasty)).pace(later).is_ok() {}
        check(&stage, Some(hasty.clone()), &length(little.len()), &little, (429, false)).await;
        check(&stage, Some(hasty), &length(much.len()), &much, (429, true)).await;
        // the hub's limit of concurrent requests is reached
        let held: Vec<Taken> = (0..50)
            .map(|number| stage.slot(Some(&Identity::new(&number.to_string(), &["system:masters"]))))
            .flat_map(|slot| std::iter::from_fn(move || slot.take(Resource::Requests, 1).ok()))
            .collect();
        assert_eq!(held.len(), 2048, "fifty administrators can take all");
        check(&stage, admin(), &length(little.len()), &little, (503, false)).await;
        check(&stage, admin(), "content-length: 9\r\n", b"{\"data\":1", (503, false)).await;
        // a request without a body counts from its beginning
        let mut client = stage.connect(admin());
        client.write_all(&head("GET", MAPS, "")).await.unwrap();
        assert_eq!(answer(&mut client).await, (503, false));
        drop(held);
        // too many connections
        let slot = stage.slot(None);
        let held: Vec<_> = std::iter::from_fn(|| slot.connect().ok()).collect();
        assert_eq!(held.len(), 256);
        check(&stage, None, &length(much.len()), &much, (429, true)).await;
    }

    #[tokio::test]
    async fn answers_on_their_way_are_their_callers_bytes() {
        let stage = Stage::new("unread");
        let node = |name: &str| Some(Identity::new(&format!("system:node:{name}"), &["system:nodes"]));
        let notes = json!({"a": "x".repeat(200_000)});
        let object = json!({"metadata": {"name": "n", "annotations": notes}});
        stage.server.hub.create(&kedge_hub_core::kinds::NODE, object).await.unwrap();
        let get = head("GET", "/api/v1/nodes/n", "");
        let mut unread = Vec::new();
        for _ in 0..20 {
            let mut client = stage.connect(node("n"));
            client.write_all(&get).await.unwrap();
            // its answer has begun
            assert_eq!(client.read_u8().await.unwrap(), b'H');
            unread.push(client);
        }
        let held = || stage.server.limits.level(Resource::BodyBytes).0;
        assert_eq!(held(), 20 * 64 * 1024);
        let mut client = stage.connect(node("n"));
        let slot = stage.slot(node("n").as_ref());
        let rest: Vec<_> = std::iter::from_fn(|| slot.take(Resource::BodyBytes, 64 * 1024).ok()).collect();
        assert_eq!(20 + rest.len(), 8 * 16, "8 MiB");
        client.write_all(&get).await.unwrap();
        assert_eq!(answer(&mut client).await, (429, false));
        drop((rest, unread));
        while held() > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// A refused client repeats its change, which has been made.
    #[tokio::test]
    async fn answer_to_a_change_is_never_refused() {
        let stage = Stage::new("changed");
        let hub = Arc::clone(&stage.server.hub);
        let notes = json!({"a": "x".repeat(20_000)});
        let node = json!({"metadata": {"name": "n", "annotations": notes}});
        hub.create(&kedge_hub_core::kinds::NODE, node).await.unwrap();
        let admins = (0..50).map(|number| Identity::new(&number.to_string(), &["system:masters"]));
        let take_all = |amount| {
            let slots = admins.clone().map(|admin| stage.slot(Some(&admin)));
            let all =
                |slot: Arc<Slot>| std::iter::from_fn(move || slot.take(Resource::BodyBytes, amount).ok());
            slots.flat_map(all).collect::<Vec<_>>()
        };
        let held = [take_all(64 * 1024), take_all(8 * 1024)];
        let mut client = stage.connect(Some(Identity::new("system:node:n", &["system:nodes"])));
        let get = head("GET", "/api/v1/nodes/n", "");
        client.write_all(&get).await.unwrap();
        assert_eq!(answer(&mut client).await, (503, false), "others hold all bytes");
        let before = hub.get(&kedge_hub_core::kinds::NODE, "", "n").unwrap().revision;
        let body = r#"{"metadata":{"labels":{"l":"v"}}}"#;
        let fields =
            format!("content-type: application/merge-patch+json\r\ncontent-length: {}\r\n", body.len());
        client.write_all(&head("PATCH", "/api/v1/nodes/n", &fields)).await.unwrap();
        client.write_all(body.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut client).await, (200, false));
        assert_eq!(hub.get(&kedge_hub_core::kinds::NODE, "", "n").unwrap().revision, before + 1);
        let fields = format!("prefer: return=minimal\r\n{fields}");
        client.write_all(&head("PATCH", "/api/v1/nodes/n", &fields)).await.unwrap();
        client.write_all(body.as_bytes()).await.unwrap();
        let changed = answer_head(&mut client).await;
        assert!(changed.starts_with("HTTP/1.1 204"), "{changed}");
        assert!(!changed.contains(DESIRED_HEADER), "only renewals ask for it: {changed}");
        drop(held);
        client.write_all(&get).await.unwrap();
        assert_eq!(answer(&mut client).await, (200, false));
    }

    #[tokio::test]
    async fn work_for_an_answer_is_paid_for_by_its_caller() {
        let stage = Stage::new("work");
        // an hour later, so that no bucket refills meanwhile
        let later = Instant::now() + Duration::from_secs(3600);
        let notes = "x".repeat(60_000);
        for name in ["plain", "table", "indented", "patch"] {
            let node = serde_json::json!({"metadata": {"name": name, "annotations": {"a": notes}}});
            stage.server.hub.create(&kedge_hub_core::kinds::NODE, node).await.unwrap();
        }
        // the remaining tokens of a burst of 1000 requests
        let check =
            async |name: &str, method: &str, fields: &str, body: &str, expect: std::ops::Range<usize>| {
                let node = Identity::new(&format!("system:node:{name}"), &["system:nodes"]);
                let slot = stage.slot(Some(&node));
                slot.charge(Work::Parsed(0), later);
                let mut client = stage.connect(Some(node));
                let length = format!("{fields}content-length: {}\r\n", body.len());
                client.write_all(&head(method, &format!("/api/v1/nodes/{name}"), &length)).await.unwrap();
                client.write_all(body.as_bytes()).await.unwrap();
                assert_eq!(answer(&mut client).await, (200, false), "{name}");
                let left = std::iter::from_fn(|| slot.pace(later).ok()).count();
                assert!(expect.contains(&(1000 - left)), "{name}: {}", 1000 - left);
            };
        check("plain", "GET", "", "", 2..3).await;
        check("table", "GET", "accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n", "", 15..25).await;
        check("indented", "GET", "user-agent: curl/8\r\n", "", 15..25).await;
        // a small change of a large object
        let fields = "content-type: application/merge-patch+json\r\n";
        check("patch", "PATCH", fields, r#"{"metadata":{"labels":{"l":"v"}}}"#, 15..40).await;
    }

    #[tokio::test]
    async fn body_that_is_not_complete_counts_for_nobody_else() {
        let stage = Stage::new("slow-bodies");
        let user = |number: usize| {
            let name = format!("system:serviceaccount:default:u{number}");
            Some(Identity::new(&name, &["system:authenticated"]))
        };
        let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let post = |length: usize| {
            let fields = format!("content-length: {length}\r\ncontent-type: application/json\r\n");
            head("POST", review, &fields)
        };
        let mut clients = Vec::new();
        for (length, each) in [(100, 20), (1_000_000, 8)] {
            for _ in 0..each {
                let mut client = stage.connect(user(0));
                client.write_all(&post(length)).await.unwrap();
                client.write_all(b"{").await.unwrap();
                clients.push(client);
            }
        }
        while stage.server.limits.level(Resource::Bodies).0 < 8 {
            tokio::task::yield_now().await;
        }
        assert_eq!(stage.in_progress(), 0);
        // the caller's places for large bodies are taken; other callers, and small bodies, are not affected
        let rows = [(0, 100_000, 429), (1, 100_000, 201), (0, 100, 201), (0, 4096, 201), (0, 4097, 429)];
        for (number, length, expect) in rows {
            let mut client = stage.connect(user(number));
            client.write_all(&post(length)).await.unwrap();
            client.write_all(&[b"{}", " ".repeat(length - 2).as_bytes()].concat()).await.unwrap();
            assert_eq!(answer(&mut client).await.0, expect, "{number} {length}");
        }
        assert_eq!(stage.server.limits.level(Resource::Bodies).0, 8);
        drop(clients);
        while stage.server.limits.level(Resource::BodyBytes).0 > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn refused_body_in_pieces_is_paid_for() {
        let stage = Stage::new("pieces");
        let later = Instant::now() + Duration::from_secs(3600);
        let other = Identity::new("system:serviceaccount:default:other", &["others"]);
        let slot = stage.slot(Some(&other));
        slot.charge(Work::Parsed(0), later);
        let body = format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(1280));
        let mut client = stage.connect(Some(other));
        client.write_all(&head("POST", MAPS, "transfer-encoding: chunked\r\n")).await.unwrap();
        client.write_all(body.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut client).await, (403, true));
        let left = std::iter::from_fn(|| slot.pace(later).ok()).count();
        // the answer, and time beyond that of an ordinary request, may cost a few more
        assert!((11..40).contains(&(1000 - left)), "{}", 1000 - left);
    }

    #[tokio::test]
    async fn body_at_its_limit_is_read() {
        let stage = Stage::new("full-bodies");
        let limit = 3 * 1024 * 1024;
        for (bytes, expect) in [(limit, (400, false)), (limit + 1, (413, true))] {
            let body = vec![b'x'; bytes];
            check(&stage, admin(), &format!("content-length: {bytes}\r\n"), &body, expect).await;
        }
        for (bytes, expect) in [(limit, (400, true)), (limit + 1, (413, true))] {
            let chunk = format!("{bytes:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(bytes));
            check(&stage, admin(), "transfer-encoding: chunked\r\n", chunk.as_bytes(), expect).await;
        }
    }

    #[tokio::test]
    async fn body_of_64_kib_waits_for_no_large_one() {
        let stage = Stage::new("turns");
        let slot = stage.slot(admin().as_ref());
        let large_one = slot.turn().await;
        let body = vec![b'x'; LARGE_BYTES];
        check(&stage, admin(), &format!("content-length: {LARGE_BYTES}\r\n"), &body, (400, false)).await;
        drop(large_one);
    }

    #[tokio::test]
    async fn ambiguous_requests_end_their_connection() {
        let stage = Stage::new("ambiguous");
        for request in [
            "GET /version HTTP/1.1\nhost: h\r\n\r\n",
            "GET /version HTTP/1.1\r\n\r\n",
            "GET /version HTTP/1.1\r\nhost: h\r\nhost: i\r\n\r\n",
        ] {
            let mut client = stage.connect(admin());
            client.write_all(&head("GET", "/version", "")).await.unwrap();
            assert_eq!(answer(&mut client).await, (200, false));
            client.write_all(request.as_bytes()).await.unwrap();
            assert_eq!(answer(&mut client).await, (400, true), "{request:?}");
        }
    }

    #[tokio::test]
    async fn idle_connection_goes_on_after_each_kind_of_answer() {
        let stage = Stage::new("idle");
        let mut client = stage.connect(admin());
        let map = "{\"metadata\":{\"name\":\"a\"}}";
        let fields = format!("content-type: application/json\r\ncontent-length: {}\r\n", map.len());
        for code in [201, 409, 409] {
            client.write_all(&head("POST", MAPS, &fields)).await.unwrap();
            client.write_all(map.as_bytes()).await.unwrap();
            assert_eq!(answer(&mut client).await, (code, false));
            client.write_all(&head("GET", &format!("{MAPS}/a"), "")).await.unwrap();
            assert_eq!(answer(&mut client).await, (200, false));
        }
        // several at once are answered in order
        let mut together = Vec::new();
        for path in ["/version", "/nowhere", "/livez"] {
            together.extend(head("GET", path, ""));
        }
        client.write_all(&together).await.unwrap();
        for code in [200, 404, 200] {
            assert_eq!(answer(&mut client).await, (code, false));
        }
        for fields in ["connection: close\r\n", "connection: upgrade\r\nupgrade: x\r\n"] {
            let mut client = stage.connect(admin());
            client.write_all(&head("GET", "/version", fields)).await.unwrap();
            assert_eq!(answer(&mut client).await, (200, true), "{fields}");
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        }
    }

    #[test]
    fn stranger_keeps_a_connection_only_for_a_moment() {
        let stage = Stage::new("strangers");
        let caller = |identity| Caller::new(&stage.server, identity, HERE);
        assert_eq!(caller(admin()).idle(), IDLE);
        let stranger = caller(None);
        stranger.note(None);
        assert_eq!(stranger.idle(), STRANGER_IDLE);
        // a token with a request; each request gets a clone of the caller
        stranger.clone().note(admin().as_ref());
        assert_eq!(stranger.idle(), IDLE);
    }

    #[test]
    fn connection_goes_on_unless_the_client_says_otherwise() {
        let check = |version: http::Version, value: &str, expect: bool| {
            let mut request = Request::new(());
            *request.version_mut() = version;
            if !value.is_empty() {
                request.headers_mut().insert(header::CONNECTION, value.parse().unwrap());
            }
            assert_eq!(keeps_alive(&request), expect, "{version:?} {value}");
        };
        check(http::Version::HTTP_11, "", true);
        check(http::Version::HTTP_11, "Keep-Alive", true);
        check(http::Version::HTTP_11, "Close", false);
        check(http::Version::HTTP_11, "upgrade", false);
        check(http::Version::HTTP_10, "", false);
        check(http::Version::HTTP_10, "keep-alive", false);
    }

    #[tokio::test]
    async fn panic_is_caught_as_an_error() {
        assert_eq!(caught(async { 1 }).await, Ok(1));
        assert!(caught(async { panic!("on purpose") }).await.is_err());
    }

    #[tokio::test]
    async fn expired_credential_is_refused_and_ends_what_stands() {
        let stage = Stage::new("expired");
        let now = || time::OffsetDateTime::now_utc().unix_timestamp();
        let admin = |not_after| Identity { not_after: Some(not_after), ..admin().unwrap() };
        let mut client = stage.connect(Some(admin(now() - 1)));
        client.write_all(&head("GET", MAPS, "")).await.unwrap();
        assert_eq!(answer(&mut client).await, (401, true));
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        // valid for one or two seconds more: a watch and an unused connection
        let end = now() + 2;
        let (mut watching, mut idle) = (stage.connect(Some(admin(end))), stage.connect(Some(admin(end))));
        watching.write_all(&head("GET", &format!("{MAPS}?watch=true"), "")).await.unwrap();
        let mut read = Vec::new();
        watching.read_to_end(&mut read).await.unwrap();
        assert!(read.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&read));
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
        assert!(now() >= end, "neither ended before");
    }

    #[tokio::test]
    async fn refused_credential_uses_nothing_of_its_identity() {
        let stage = Stage::new("refused-credential");
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        let node = |not_after| {
            let node = Identity::new("system:node:edge-1", &["system:nodes"]);
            Some(Identity { not_after: Some(not_after), ..node })
        };
        let (good, expired) = (node(now + 3600), node(now - 1));
        let (owner, thief) =
            (Caller::new(&stage.server, good.clone(), HERE), Caller::new(&stage.server, expired, HERE));
        assert!(Arc::ptr_eq(&owner.slot, &stage.slot(good.as_ref())));
        assert!(Arc::ptr_eq(&thief.slot, &stage.slot(None)), "as any stranger of its address");
        assert!(thief.seen.is_none());
        let seen = stage.server.credentials.seen("edge-1").and_then(|seen| seen.not_after);
        assert_eq!(seen, Some(now + 3600), "the owner's is still shown");
        // a credential that is revoked while its connection is open; the bucket of the node is empty for an
        // hour
        let mut client = stage.connect(good.clone());
        client.write_all(&head("GET", "/version", "")).await.unwrap();
        assert_eq!(answer(&mut client).await.0, 200);
        let later = Instant::now() + Duration::from_secs(3600);
        while stage.slot(good.as_ref()).pace(later).is_ok() {}
        let denied = serde_json::json!({"data": {"node.edge-1": ""},
            "metadata": {"name": "kedge-denied", "namespace": "kube-system"}});
        stage.server.hub.create(&kedge_hub_core::kinds::CONFIG_MAP, denied).await.unwrap();
        client.write_all(&head("GET", "/version", "")).await.unwrap();
        assert_eq!(answer(&mut client).await, (401, true));
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
