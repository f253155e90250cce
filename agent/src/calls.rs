//! `kedge session CALL`: accepts a call, and serves the kubelet's API to the hub on the connection that this
//! node dials for it.
//!
//! One process for each session, which the agent starts and forgets: so a session outlives agents, and an
//! agent without sessions pays nothing. Always holds: nothing is served before the hub has proven itself by
//! TLS; one connection, one call, one request, then the process ends. Left to others: the content
//! (`kubelet_api`), which calls are accepted (core), where the process runs (`kedge_platform::workloads`).

use crate::http1;
use crate::identity::files;
use crate::kubelet_api::node::{Node, Stream};
use crate::net::credentials::ApiOptions;
use crate::options::{AgentOptions, Places, SessionOptions};
use crate::output::CommandError;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use kedge_api::SESSION_UPGRADE;
use kedge_core::pods::ApiServer;
use kedge_platform::Clocks as _;
use kedge_platform::linux::{LinuxClocks, Roots, probe_idle_peer};
use kedge_platform::workloads;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::kubelet_api::{self, Peer};
use crate::net::client::Api;
use crate::net::proxy::ProxyEnvironment;

/// Time for name lookup and connection.
const DIAL: Duration = Duration::from_secs(15);
/// Time for TLS and the hub's answer, over a slow link.
const TAKE: Duration = Duration::from_secs(15);
/// Most bytes of the head of that answer.
const HEAD_BYTES: usize = 16 * 1024;
/// After this long without a byte the kernel probes the hub, at this interval, until this many probes had no
/// answer. Later than the hub probes the node (75 s): while both are there, only one of them probes.
const PROBE_AFTER: Duration = Duration::from_secs(100);
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
const PROBES: u32 = 5;
/// Stack of a thread that reads files or waits for a program.
const STACK_BYTES: usize = 256 * 1024;
/// Sessions that may be starting at once: a start takes a millisecond, unless the program's disk hangs.
const MOST_STARTING: usize = 8;
/// Sessions that may wait to start: a hub lets fewer calls wait for one node.
const MOST_WAITING: usize = 64;

/// The words with which an agent with these options starts a session, without the call's id; `None` if it has
/// no server.
pub(crate) fn words(options: &AgentOptions, node_name: &str) -> Option<Vec<OsString>> {
    let kubeconfig = options.kubeconfig.as_ref()?;
    let Places { root_dir, run_dir, .. } = &options.places;
    let absolute = |path: &std::path::Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut words = vec!["session".into()];
    let mut flag = |name: &str, value: OsString| {
        words.push(name.into());
        words.push(value);
    };
    flag("--kubeconfig", absolute(kubeconfig).into());
    flag("--hostname-override", node_name.into());
    flag("--root-dir", absolute(root_dir).into());
    flag("--run-dir", absolute(run_dir).into());
    flag("--crun", absolute(&options.runtime.crun).into());
    flag("--cgroup-root", options.runtime.cgroup_root.clone().into());
    Some(words)
}

/// Starts a session that accepts a call, at this server or at the kubeconfig's.
pub(crate) fn start(words: Option<&[OsString]>, call: &str, server: Option<ApiServer>) {
    let Some(words) = words else { return };
    let mut words = words.to_vec();
    let call = server.map_or_else(|| call.to_owned(), |server| format!("{call}@{}", server.url()));
    words.insert(1, call.into());
    static STARTER: Starter = Starter::new(workloads::start_session);
    STARTER.start(words);
}

/// Starts processes on threads of its own, because starting a program from a disk that hangs blocks.
struct Starter {
    run: fn(&[OsString]) -> io::Result<()>,
    state: Mutex<Starting>,
}

#[derive(Debug)]
struct Starting {
    threads: usize,
    /// The words of sessions that wait for a thread.
    waiting: VecDeque<Vec<OsString>>,
}

impl Starter {
    const fn new(run: fn(&[OsString]) -> io::Result<()>) -> Self {
        Self { run, state: Mutex::new(Starting { threads: 0, waiting: VecDeque::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, Starting> {
        // no code under the lock can panic half way
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&'static self, words: Vec<OsString>) {
        let mut state = self.state();
        if state.waiting.len() >= MOST_WAITING {
            log::warn!(
                "the hub calls, and {MOST_STARTING} processes are being started for calls before, while {MOST_WAITING} wait: the \
                 disk hangs?"
            );
            return;
        }
        state.waiting.push_back(words);
        if state.threads >= MOST_STARTING {
            return;
        }
        state.threads += 1;
        let thread = thread::Builder::new().name("call".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(|| self.run()) {
            state.threads -= 1;
            state.waiting.pop_back();
            log::warn!("the hub calls, and no thread can be started for it: {error}");
        }
    }

    fn run(&self) {
        loop {
            let words = {
                let mut state = self.state();
                let Some(words) = state.waiting.pop_front() else {
                    state.threads -= 1;
                    return;
                };
                words
            };
            match (self.run)(&words) {
                Ok(()) => log::info!("the hub calls: a session takes the call"),
                Err(error) => log::warn!("the hub calls, and no process can be started for it: {error}"),
            }
        }
    }
}

/// `kedge session`.
///
/// # Errors
/// The call could not be accepted, or the session broke off.
pub fn run(options: SessionOptions) -> Result<(), CommandError> {
    workloads::stand_apart(options.agent.runtime.settings(&options.agent.places).as_ref());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()
        .map_err(|error| failed("start the runtime", error))?;
    let served = runtime.block_on(serve(options));
    // a thread that waits for a disk ends with the process
    runtime.shutdown_background();
    served
}

fn failed(tried: &str, error: impl std::fmt::Display) -> CommandError {
    CommandError::new(format_args!("session: {tried}: {error}"))
}

async fn serve(options: SessionOptions) -> Result<(), CommandError> {
    let SessionOptions { agent, call } = options;
    let node_name = agent.node_name.clone().unwrap_or_default();
    let kubeconfig = agent.kubeconfig.clone().unwrap_or_default();
    let (call, server) =
        call.split_once('@').map_or((&*call, None), |(call, url)| (call, ApiServer::of_url(url)));
    let path = format!("/apis/kedge.dev/v1/nodes/{node_name}/calls/{call}");
    let own = files::folder(&agent.places.root_dir);
    let (stream, peer) = take((kubeconfig, own), server.as_slice(), &path).await?;
    let node = Arc::new(Node { agent });
    kubelet_api::serve_seen(stream, peer, node).await.map_err(|error| failed("serve the hub", error))
}

/// Dials the hub and accepts the call: from then on the hub sends the request.
async fn take(
    (kubeconfig, own): (std::path::PathBuf, std::path::PathBuf),
    servers: &[ApiServer],
    path: &str,
) -> Result<(Box<dyn Stream>, Option<Peer>), CommandError> {
    let clocks = LinuxClocks::new(&Roots::default());
    // the same clock as the agent's for certificates
    let clock = Arc::new(move || {
        let wall = clocks.wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        wall.max(kedge_api::EARLIEST_NOW)
    });
    let options = ApiOptions { kubeconfig, own: Some(own), clock, proxies: ProxyEnvironment::of_process() };
    let api = Api::open_with_servers(options, servers)
        .map_err(|error| failed("read the kubeconfig", crate::errors::chain(&error)))?;
    let dialled = tokio::task::spawn_blocking(move || api.stream("session").dial(DIAL)).await;
    let dialled = dialled.map_err(|error| failed("dial", error))?.map_err(|error| failed("dial", error))?;
    let (url, route) = (dialled.url, dialled.route);
    let upgrading = async {
        dialled.socket.set_nonblocking(true)?;
        // a write notices a hub that is cut off; these two settings make an idle connection notice it, too
        let _ = probe_idle_peer(&dialled.socket, PROBE_AFTER, PROBE_INTERVAL, PROBES);
        let peer = Peer::of(&dialled.socket).ok();
        let socket = tokio::net::TcpStream::from_std(dialled.socket)?;
        let tls = TlsConnector::from(route.tls.clone());
        let mut stream = tls.connect(route.server_name.clone(), socket).await?;
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: {SESSION_UPGRADE}\r\nContent-Length: 0\r\n",
            route.host
        );
        if let Some(token) = dialled.authorization.as_ref().and_then(|token| token.to_str().ok()) {
            head.push_str(&format!("Authorization: {token}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        let early = upgraded(&mut stream).await?;
        Ok::<_, io::Error>((kubelet_api::rewound(early, Box::new(stream)), peer))
    };
    let tried = format!("take the call, POST {url}{path}");
    match timeout(TAKE, upgrading).await {
        Ok(upgraded) => upgraded.map_err(|error| failed(&tried, error)),
        Err(_) => Err(failed(&tried, format_args!("not done within {} s", TAKE.as_secs()))),
    }
}

/// Waits for the 101; returns the bytes after its head.
async fn upgraded(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        match http1::response(&bytes, 32) {
            Ok(Some((101, head))) => return Ok(bytes.split_off(head.bytes)),
            Ok(Some((status, head))) => {
                let text = kedge_api::excerpt(&String::from_utf8_lossy(&bytes[head.bytes..]));
                return Err(io::Error::other(format!("the answer is {status}, expected 101: {text}")));
            }
            Ok(None) if bytes.len() < HEAD_BYTES => {}
            Ok(None) => {
                return Err(io::Error::other(format!(
                    "the head of the answer has more than {HEAD_BYTES} bytes"
                )));
            }
            Err(error) => return Err(io::Error::other(format!("the answer is not HTTP: {error}"))),
        }
        let mut piece = [0; 2048];
        match stream.read(&mut piece).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            amount => bytes.extend_from_slice(&piece[..amount]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Condvar;

    /// Processes that are being started, those that were, and whether starts can finish.
    struct Disk(Mutex<(usize, usize, bool)>, Condvar);

    static DISK: Disk = Disk(Mutex::new((0, 0, false)), Condvar::new());

    fn slow(_: &[OsString]) -> io::Result<()> {
        let mut state = DISK.0.lock().unwrap();
        state.0 += 1;
        DISK.1.notify_all();
        let mut state = DISK.1.wait_while(state, |(_, _, works)| !*works).unwrap();
        state.1 += 1;
        DISK.1.notify_all();
        Ok(())
    }

    #[test]
    fn calls_beyond_those_that_start_wait_and_are_all_started() {
        static STARTER: Starter = Starter::new(slow);
        (0..100).for_each(|_| STARTER.start(Vec::new()));
        let state = DISK.1.wait_while(DISK.0.lock().unwrap(), |(begun, ..)| *begun < MOST_STARTING).unwrap();
        drop(state);
        assert_eq!(STARTER.state().threads, MOST_STARTING);
        DISK.0.lock().unwrap().2 = true;
        DISK.1.notify_all();
        let most = MOST_STARTING + MOST_WAITING;
        let state = DISK.1.wait_while(DISK.0.lock().unwrap(), |(_, done, _)| *done < MOST_WAITING).unwrap();
        // those that took a thread before the rest arrived may be more
        assert!(state.0 <= most, "{} of {most}", state.0);
        drop(state);
        STARTER.start(Vec::new());
        let state = DISK.1.wait_while(DISK.0.lock().unwrap(), |(_, done, _)| *done <= MOST_WAITING).unwrap();
        assert!(state.1 > MOST_WAITING, "one that comes later is started, too");
    }
}
