//! `/exec`: a program in a container, and `/attach`: the container's own, for a client that uses WebSocket or
//! SPDY.
//!
//! Always holds: the program of `/exec` runs on a thread of its own and ends with its client, even while it
//! does not read its input, the container's own does not end; only buffers of bounded size are between client
//! and program. Leaves to others: channels and Status (`sessions`).

use crate::kubelet_api::node::Node;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use kedge_platform::workloads::{AttachOrder, Attachment, Session, SessionOrder, Settings};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::{Exchange, Peer, Request};
use crate::sessions::place::Place;
use crate::sessions::relay::Client;
use crate::sessions::relay::{End, Output, first_size, relay};
use crate::sessions::{USUAL_SIZE, longest_silence};
use crate::sessions::{spdy_remote, websocket};

/// Bytes read at once.
const PIECE_BYTES: usize = 8 * 1024;
/// How long the rest may take once a client has ended its half, or left. A test does not wait for it.
const LINGER: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(10) };

/// How long a program with a terminal waits for its client to send the terminal's size, so that the program
/// has it from its start. kubectl sends it first of all, so it arrives one round trip after the 101; a client
/// that sends something else first has no size.
const SIZE_WITHIN: Duration = Duration::from_secs(1);

/// Which program the client wants to talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Exec,
    Attach,
}

/// The session, once the client's stream is there.
type Task = Box<dyn FnOnce(UnixStream) -> io::Result<()> + Send>;

/// The client's wishes about a program.
struct Wanted {
    command: Vec<String>,
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Wanted {
    /// # Errors
    /// The missing part, in the kubelet's words.
    fn of(request: &Request) -> Result<Self, &'static str> {
        // the kubelet's names of the parameters, and the API server's
        let flag = |names: [&str; 2]| names.iter().any(|name| request.flag(name));
        let tty = request.flag("tty");
        let wanted = Self {
            command: request.params("command").map(str::to_owned).collect(),
            stdin: flag(["input", "stdin"]),
            stdout: flag(["output", "stdout"]),
            // a terminal has one output
            stderr: flag(["error", "stderr"]) && !tty,
            tty,
        };
        if !(wanted.stdin || wanted.stdout || wanted.stderr) {
            return Err("you must specify at least 1 of stdin, stdout, stderr");
        }
        Ok(wanted)
    }

    /// The output that the client may wait for.
    fn first(&self) -> Output {
        if self.stdout || !self.stderr { Output::Stdout } else { Output::Stderr }
    }
}

/// The protocol that the client and this node use after the 101.
#[derive(Debug)]
enum Upgrade {
    WebSocket { protocol: &'static str, accept: String },
    Spdy,
}

impl Upgrade {
    /// # Errors
    /// The protocols that are served.
    fn of(request: &Request) -> Result<Self, String> {
        let asked = request.header("upgrade").unwrap_or("no upgrade");
        if asked.eq_ignore_ascii_case("spdy/3.1") {
            let all = request.headers.iter().filter(|(name, _)| name == "x-stream-protocol-version");
            let mut offered = all.flat_map(|(_, value)| value.split(',')).map(str::trim);
            return if offered.any(|offered| offered == spdy_remote::PROTOCOL) {
                Ok(Self::Spdy)
            } else {
                Err(format!(
                    "unable to upgrade: over SPDY/3.1 this node supports only {}, which the request does not offer",
                    spdy_remote::PROTOCOL
                ))
            };
        }
        let key = request.header("sec-websocket-key").filter(|key| !key.is_empty());
        let (true, Some(key)) = (asked.eq_ignore_ascii_case("websocket"), key) else {
            return Err(format!(
                "unable to upgrade: the request asks for {asked}, and this node serves WebSocket ({}) and SPDY/3.1 ({})",
                websocket::protocols(),
                spdy_remote::PROTOCOL
            ));
        };
        if request.header("sec-websocket-version") != Some("13") {
            return Err("unable to upgrade: this node serves version 13 of the WebSocket protocol".into());
        }
        let offered = request.header("sec-websocket-protocol").unwrap_or_default();
        let protocol = websocket::protocol(offered).ok_or_else(|| {
            format!(
                "unable to upgrade: the request offers {offered:?}, and this node serves {}",
                websocket::protocols()
            )
        })?;
        Ok(Self::WebSocket { protocol, accept: websocket::accept(key) })
    }

    /// Headers of the 101.
    fn headers(&self) -> Vec<(&str, &str)> {
        match self {
            Self::WebSocket { protocol, accept } => vec![
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Accept", accept),
                ("Sec-WebSocket-Protocol", protocol),
            ],
            Self::Spdy => {
                vec![("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", spdy_remote::PROTOCOL)]
            }
        }
    }

    /// The client behind this stream, after the 101.
    fn client(&self, stream: UnixStream, wanted: &Wanted) -> io::Result<Remote> {
        match self {
            Self::WebSocket { protocol, .. } => {
                let remote = websocket::Remote::new(stream, protocol, wanted.first())?;
                Ok(Remote::WebSocket(remote.into()))
            }
            Self::Spdy => {
                let Wanted { stdin, stdout, stderr, tty: resize, .. } = *wanted;
                let wanted = spdy_remote::Wanted { stdin, stdout, stderr, resize };
                Ok(Remote::Spdy(spdy_remote::Remote::new(stream, wanted)?.into()))
            }
        }
    }
}

/// A client of either sort.
enum Remote {
    WebSocket(Box<websocket::Remote>),
    Spdy(Box<spdy_remote::Remote>),
}

impl Remote {
    fn client(&mut self) -> &mut dyn Client {
        match self {
            Self::WebSocket(remote) => &mut **remote,
            Self::Spdy(remote) => &mut **remote,
        }
    }

    fn finish(self, end: &Result<End, String>, task: &str) {
        match self {
            Self::WebSocket(remote) => remote.finish(end, task),
            Self::Spdy(remote) => remote.finish(end, task),
        }
    }
}

/// `/exec/NAMESPACE/POD/[UID/]CONTAINER`, and the same with `/attach`.
pub(super) async fn serve(
    verb: Verb,
    request: &Request,
    mut exchange: Exchange,
    node: Arc<Node>,
    (namespace, pod, uid, container): (&str, &str, Option<&str>, &str),
) -> io::Result<()> {
    let wanted = match Wanted::of(request) {
        Ok(wanted) => wanted,
        Err(why) => return exchange.refuse(400, why).await,
    };
    if verb == Verb::Exec && wanted.command.is_empty() {
        return exchange.refuse(400, "you must specify at least one command").await;
    }
    let upgrade = match Upgrade::of(request) {
        Ok(upgrade) => Arc::new(upgrade),
        Err(why) => return exchange.refuse(400, &why).await,
    };
    let Some(settings) = node.agent.runtime.settings(&node.agent.places) else {
        return exchange.refuse(503, "no containers run on this node").await;
    };
    let place = match Place::of(&settings, (namespace, pod, uid), Some(container)) {
        Ok(place) => place,
        Err(why) => return exchange.refuse(404, &why).await,
    };
    let silence = {
        let node = Arc::clone(&node);
        tokio::task::spawn_blocking(move || longest_silence(&node.agent)).await?
    };
    let speech = Arc::clone(&upgrade);
    let task: Task = match verb {
        Verb::Exec => Box::new(move |stream| talk(stream, &speech, &place, &wanted, silence, &settings)),
        Verb::Attach => {
            // before the 101: a client then shows best why there is nothing to attach to
            let (stdin, stdout, stderr) = (wanted.stdin, wanted.stdout, wanted.stderr);
            let opened = tokio::task::spawn_blocking(move || {
                Attachment::open(AttachOrder { id: &place.id, stdin, stdout, stderr }, &settings)
            });
            match opened.await? {
                Ok(attachment) => {
                    Box::new(move |stream| listen(stream, &speech, &wanted, silence, attachment))
                }
                Err(why) => return exchange.refuse(409, &why.to_string()).await,
            }
        }
    };
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = tokio::net::UnixStream::from_std(ours)?;
    let peer = exchange.peer.take();
    let stream = exchange.take_over(&upgrade.headers()).await?;
    let talk = tokio::task::spawn_blocking(move || task(theirs));
    // `pass` drops its end of the pair, from which the program sees that the client broke off
    let passed = pass(stream, ours, peer).await;
    talk.await??;
    passed
}

/// Passes bytes between a client and its session, or a program, until that has ended, or the client has left.
pub(super) async fn pass<C, S>(client: C, session: S, peer: Option<Peer>) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = tokio::io::split(client);
    let (from_session, to_session) = tokio::io::split(session);
    let forth = copy(from_client, to_session);
    let back = copy(from_session, to_client);
    let left = async {
        match &peer {
            // leaves time to read everything that the client sent before it left
            Some(peer) => peer.left_for(LINGER).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(forth, back);
    tokio::select! {
        done = &mut back => {
            done?;
            // reads until the client hangs up: closed earlier, the connection would be reset, and the
            // session's last bytes lost
            let _ = timeout(LINGER, forth).await;
            Ok(())
        }
        done = &mut forth => {
            done?;
            timeout(LINGER, back).await.unwrap_or(Ok(()))
        }
        () = left => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client left while the program took no input")),
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let amount = from.read(&mut piece).await?;
        if amount == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..amount]).await?;
        to.flush().await?;
    }
}

/// The session, on the thread that its program belongs to.
fn talk(
    stream: UnixStream,
    upgrade: &Upgrade,
    place: &Place,
    wanted: &Wanted,
    silence: Duration,
    settings: &Settings,
) -> io::Result<()> {
    let mut client = upgrade.client(stream, wanted)?;
    let (size, mut begun) =
        first_size(client.client(), if wanted.tty { SIZE_WITHIN } else { Duration::ZERO });
    let order = SessionOrder {
        id: &place.id,
        command: &wanted.command,
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
        terminal: wanted.tty.then(|| size.unwrap_or(USUAL_SIZE)),
    };
    let end = match Session::start(&order, settings) {
        Ok(mut session) => relay(&mut session, &mut begun, Some(silence)),
        Err(error) => Err(error.to_string()),
    };
    client.finish(&end, "executing command in");
    Ok(())
}

/// The session with a container's own program, which keeps running afterwards.
fn listen(
    stream: UnixStream,
    upgrade: &Upgrade,
    wanted: &Wanted,
    silence: Duration,
    mut attachment: Attachment,
) -> io::Result<()> {
    let mut client = upgrade.client(stream, wanted)?;
    // as upstream: the exit code is in the pod's status
    let end = relay(&mut attachment, client.client(), Some(silence)).map(|end| match end {
        End::Code(_) => End::Code(0),
        End::Gone => End::Gone,
    });
    drop(attachment);
    client.finish(&end, "attaching to");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    /// More than fits between a client and its session here, less than a connection holds.
    const MORE_BYTES: usize = 32 * 1024;

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (dialled, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn client_that_left_is_noticed_behind_its_input() {
        let (mut client, ours) = connected().await;
        let peer = Peer::of(&ours).unwrap();
        let (session, _takes_nothing) = tokio::io::duplex(1024);
        client.write_all(&[b'x'; MORE_BYTES]).await.unwrap();
        drop(client);
        let passed = timeout(Duration::from_secs(60), pass(ours, session, Some(peer))).await;
        assert_eq!(passed.expect("it ends").unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn client_that_stays_is_served_to_the_end() {
        let (mut client, ours) = connected().await;
        let peer = Peer::of(&ours).unwrap();
        let (session, mut program) = tokio::io::duplex(1024);
        let story = async {
            let mut input = vec![0; MORE_BYTES];
            client.write_all(&input).await.unwrap();
            // longer than the wait for a client that has left
            tokio::time::sleep(3 * LINGER).await;
            program.read_exact(&mut input).await.unwrap();
            program.write_all(b"the end").await.unwrap();
            drop(program);
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "the end");
        };
        let (passed, ()) = tokio::join!(pass(ours, session, Some(peer)), story);
        passed.unwrap();
    }
}
