//! `/exec`: a program in a container, for a client that speaks WebSocket.
//!
//! Always holds: the program runs on a thread of its own and ends with its client; between client and program stand only
//! buffers of bounded size. Leaves to others: channels and Status (`sessions`).

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use kedge_platform::workloads::{Session, SessionOrder, Settings};
use tokio::io::copy_bidirectional;

use super::{Exchange, Node, Request};
use crate::sessions::USUAL_SIZE;
use crate::sessions::place::Place;
use crate::sessions::relay::{Output, relay};
use crate::sessions::websocket::{self, Remote};

/// What is wanted of a program.
struct Wanted {
    command: Vec<String>,
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Wanted {
    /// # Errors
    /// The kubelet's words for what is missing.
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
        if wanted.command.is_empty() {
            return Err("you must specify at least one command");
        }
        if !(wanted.stdin || wanted.stdout || wanted.stderr) {
            return Err("you must specify at least 1 of stdin, stdout, stderr");
        }
        Ok(wanted)
    }
}

/// What the 101 must say, for who asks for a protocol of ours.
///
/// # Errors
/// What is served instead.
fn upgrade(request: &Request) -> Result<(&'static str, String), String> {
    let is_websocket =
        request.header("upgrade").is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"));
    let key = request.header("sec-websocket-key").filter(|key| !key.is_empty());
    let (true, Some(key)) = (is_websocket, key) else {
        let asked = request.header("upgrade").unwrap_or("no upgrade");
        return Err(format!(
            "unable to upgrade: the request asks for {asked}, and this node serves WebSocket ({}), which kubectl speaks from 1.30 on",
            websocket::protocols()
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
    Ok((protocol, websocket::accept(key)))
}

/// `/exec/NAMESPACE/POD/[UID/]CONTAINER`.
pub(super) async fn exec(
    request: &Request,
    exchange: Exchange,
    node: Arc<Node>,
    (namespace, pod, uid, container): (&str, &str, Option<&str>, &str),
) -> io::Result<()> {
    let wanted = match Wanted::of(request) {
        Ok(wanted) => wanted,
        Err(why) => return exchange.refuse(400, why).await,
    };
    let (protocol, accept) = match upgrade(request) {
        Ok(found) => found,
        Err(why) => return exchange.refuse(400, &why).await,
    };
    let Some(settings) = node.agent.runtime.settings(&node.agent.places) else {
        return exchange.refuse(503, "no containers run on this node").await;
    };
    let place = match Place::of(&settings, (namespace, pod, uid), Some(container)) {
        Ok(place) => place,
        Err(why) => return exchange.refuse(404, &why).await,
    };
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut ours = tokio::net::UnixStream::from_std(ours)?;
    let headers =
        [("Upgrade", "websocket"), ("Sec-WebSocket-Accept", &accept), ("Sec-WebSocket-Protocol", protocol)];
    let mut stream = exchange.take_over(&headers).await?;
    let talk = tokio::task::spawn_blocking(move || talk(theirs, protocol, &place, &wanted, &settings));
    let copied = copy_bidirectional(&mut stream, &mut ours).await;
    // the program hears of a client that broke off by this
    drop(ours);
    talk.await??;
    copied.map(drop)
}

/// The session, on the thread that its program belongs to.
fn talk(
    stream: UnixStream,
    protocol: &str,
    place: &Place,
    wanted: &Wanted,
    settings: &Settings,
) -> io::Result<()> {
    let first = if wanted.stdout || !wanted.stderr { Output::Stdout } else { Output::Stderr };
    let mut client = Remote::new(stream, protocol, first)?;
    let order = SessionOrder {
        id: &place.id,
        command: &wanted.command,
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
        terminal: wanted.tty.then_some(USUAL_SIZE),
    };
    let end = match Session::start(&order, settings) {
        Ok(mut session) => relay(&mut session, &mut client),
        Err(error) => Err(error.to_string()),
    };
    client.finish(&end);
    Ok(())
}
