//! `kedge exec` and `kedge attach` with containers of the real crun: streams, codes, terminals, and what is
//! left of a session whose client is gone.

use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, Machine, id, isolated, isolated_network, processes, wanted};
use kedge::flags;
use kedge::kubelet_api::node::Node;
use kedge::kubelet_api::serve;
use kedge_platform::workloads::{
    AttachOrder, Attachment, Console, Session, SessionOrder, WindowSize, Workloads,
};
use kedge_rig::programs;
use kedge_rig::scratch::wait_until;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use tungstenite::protocol::Role;
use tungstenite::{Error, Message, WebSocket};

/// How much goes through a pipe in each direction.
const BULK_BYTES: usize = 8 << 20;
/// With `KEDGE_CRASH_FULL=1`, through kubectl.
const FULL_BULK_BYTES: usize = 100 << 20;

fn command(machine: &Machine, line: &str) -> Command {
    let mut command = Command::new(&machine.settings.program);
    let (flags, rest) = line.split_once(" -- ").unwrap();
    command.arg("exec").args(flags.split_whitespace()).args(["--environment-file", ""]);
    command.arg("--run-dir").arg(machine.settings.run.parent().unwrap());
    command.arg("--root-dir").arg(machine.settings.data.parent().unwrap());
    command.args(["--", "/bin/sh", "-c", rest]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(machine: &Machine, line: &str) -> Child {
    command(machine, line).spawn().unwrap()
}

/// Runs the command to its end; returns code, output, errors.
fn exec(machine: &Machine, line: &str, input: &str) -> (i32, String, String) {
    let mut child = start(machine, line);
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Whether the `sleep` itself runs, not only the process that will start it.
fn is_running(seconds: &str) -> bool {
    processes("sleep").iter().any(|line| line.starts_with(&format!("sleep {seconds}")))
}

#[test]
fn program_has_streams_code_and_rights() {
    isolated("sessions::program_has_streams_code_and_rights", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut order = wanted("a", "exec sleep 1000");
        order.user = "web";
        runtime.run(&order);
        let check = |line: &str, input: &str, expect: (i32, &str, &str)| {
            let (code, output, errors) = exec(&machine, line, input);
            assert_eq!((code, output.as_str(), errors.as_str()), expect, "{line}");
        };
        let group = runtime.record(&id("a", 0), "order.json")["group"].as_str().unwrap().to_owned();
        check("prod/web-0 -- id -u; echo why >&2; exit 3", "", (3, "100\n", "why\n"));
        check("prod/web-0 -c a -- cat", "unasked", (0, "", ""));
        check("-i prod/web-0 -- cat; exit 7", "one\ntwo", (7, "one\ntwo", ""));
        check("prod/web-0 -- kill -9 $$", "", (137, "", ""));
        // outputs can be opened again, by a user who is not root, too
        check("prod/web-0 -- echo x >/dev/stderr", "", (0, "", "x\n"));
        let (_, groups, _) = exec(&machine, "prod/web-0 -- cat /proc/self/cgroup", "");
        assert!(groups.contains(&group), "{groups}: not in {group}");
        // a process in the background is not waited for, and keeps running
        check("prod/web-0 -- sleep 77101 & echo done", "", (0, "done\n", ""));
        wait_until("what goes on", LIMIT, || is_running("77101"));

        let missing = command(&machine, "prod/web-0 -- x").arg("y").output().unwrap();
        assert_eq!(missing.status.code(), Some(127), "a shell that finds no x");
        let (code, _, error) = exec(&machine, "prod/db -- true", "");
        assert!(code == 1 && error.contains("pods \"db\" not found in namespace \"prod\""), "{error}");
        let absent = [id("a", 0).name, "/bin/none".to_owned()];
        let session = SessionOrder {
            id: &id("a", 0),
            command: &absent[1..],
            stdin: false,
            stdout: true,
            stderr: true,
            terminal: None,
        };
        let mut session = Session::start(&session, &machine.settings).unwrap();
        let mut error = None;
        wait_until("the end of crun", LIMIT, || match session.ended() {
            Ok(code) => code.is_some(),
            Err(why) => error.replace(why.to_string()).is_none(),
        });
        assert!(error.as_ref().is_some_and(|error| error.contains("/bin/none")), "{error:?}");
        drop(session);
        let left = fs::read_dir(runtime.bundle(&id("a", 0))).unwrap().flatten();
        let left: Vec<_> = left.map(|file| file.file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("exec-")), "{left:?}");
    });
}

#[test]
fn bulk_passes_whole_in_both_directions() {
    isolated("sessions::bulk_passes_whole_in_both_directions", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        runtime.run(&wanted("a", "exec sleep 1000"));
        let sent: Vec<u8> = (0..BULK_BYTES).map(|at| (at * at / 7) as u8).collect();
        let mut child = start(&machine, "-i prod/web-0 -- cat; echo end >&2");
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let to_send = sent.clone();
        let writer = thread::spawn(move || stdin.write_all(&to_send).unwrap());
        let mut received = Vec::new();
        stdout.read_to_end(&mut received).unwrap();
        writer.join().unwrap();
        assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
        assert!(child.wait_with_output().unwrap().status.success());
    });
}

#[test]
fn session_ends_with_its_client() {
    isolated("sessions::session_ends_with_its_client", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        runtime.run(&wanted("a", "exec sleep 1000"));
        for signal in ["INT", "TERM", "HUP"] {
            let child = start(&machine, "prod/web-0 -- (sleep 77201; true) & sleep 77202");
            wait_until("its processes", LIMIT, || is_running("77201") && is_running("77202"));
            let pid = child.id().to_string();
            assert!(
                Command::new("/usr/bin/env")
                    .args(["kill", &format!("-{signal}"), &pid])
                    .status()
                    .unwrap()
                    .success()
            );
            let number = match signal {
                "INT" => 2,
                "TERM" => 15,
                _ => 1,
            };
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(128 + number), "{signal}: {output:?}");
            assert!(!is_running("7720"), "{signal}: {:?}", processes("sleep"));
        }
        // a client whose output nobody reads any more
        let mut child = start(&machine, "prod/web-0 -- while true; do seq 1000; done");
        drop(child.stdout.take());
        child.wait().unwrap();
        assert_eq!(processes("seq"), [""; 0]);
        // the container itself is untouched
        assert!(is_running("1000"));
    });
}

#[test]
fn container_that_ends_takes_its_sessions_along() {
    isolated("sessions::container_that_ends_takes_its_sessions_along", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        runtime.run(&wanted("a", "exec sleep 1000"));
        let child = start(&machine, "prod/web-0 -- echo on; sleep 77301");
        wait_until("its process", LIMIT, || is_running("77301"));
        kedge_platform::workloads::Workloads::kill_container(&mut runtime.workloads, &id("a", 0)).unwrap();
        runtime.await_end(&id("a", 0));
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(137), b"on\n".as_slice()));
    });
}

/// More programs at once than the machine has processors, for a time.
struct Busy(Vec<std::process::Child>);

impl Busy {
    fn new() -> Self {
        let count = 2 * std::thread::available_parallelism().unwrap().get();
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Self((0..count).map(|_| spin()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn terminal_has_its_size_before_the_program_looks() {
    isolated("sessions::terminal_has_its_size_before_the_program_looks", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        runtime.run(&wanted("a", "exec sleep 1000"));
        let _busy = Busy::new();
        let command = ["busybox", "stty", "size"].map(String::from);
        let mut sizes: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..40 {
            let order = SessionOrder {
                id: &id("a", 0),
                command: &command,
                stdin: false,
                stdout: true,
                stderr: false,
                terminal: Some(WindowSize { rows: 33, columns: 99 }),
            };
            let mut session = Session::start(&order, &machine.settings).unwrap();
            wait_until("its end", LIMIT, || session.ended().unwrap().is_some());
            let mut seen = [0; 100];
            let count = session.streams.stdout.as_mut().unwrap().read(&mut seen).unwrap_or(0);
            *sizes.entry(String::from_utf8_lossy(&seen[..count]).into_owned()).or_default() += 1;
        }
        assert_eq!(sizes, BTreeMap::from([("33 99\r\n".to_owned(), 40)]));
    });
}

#[test]
fn program_runs_in_its_turn_and_so_does_crun() {
    isolated("sessions::program_runs_in_its_turn_and_so_does_crun", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        runtime.run(&wanted("a", "exec sleep 1000"));
        let command = ["/bin/sh", "-c", "exec sleep 77409"].map(String::from);
        let order = SessionOrder {
            id: &id("a", 0),
            command: &command,
            stdin: false,
            stdout: true,
            stderr: false,
            terminal: Some(WindowSize { rows: 33, columns: 99 }),
        };
        let session = Session::start(&order, &machine.settings).unwrap();
        wait_until("the program", LIMIT, || is_running("77409"));
        // the policy is field 41, the 39th behind the name; 0: in its turn, 1: before others
        let policy =
            |stat: &str| stat.rsplit_once(')').unwrap().1.split_whitespace().nth(38).unwrap().to_owned();
        for name in ["sleep", "busybox", "crun"] {
            for entry in fs::read_dir("/proc").unwrap().flatten() {
                let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
                if stat.contains(&format!("({name})")) {
                    assert_eq!(policy(&stat), "0", "{stat}");
                }
            }
        }
        drop(session);
    });
}

#[test]
fn terminal_has_size_and_one_stream() {
    isolated("sessions::terminal_has_size_and_one_stream", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        runtime.run(&wanted("a", "exec sleep 1000"));
        let script = "-t prod/web-0 -- tty; busybox stty size; echo $TERM; echo e >&2; exit 5";
        let (code, output, errors) = exec(&machine, script, "");
        assert_eq!(
            (code, output.as_str(), errors.as_str()),
            (5, "/dev/pts/0\r\n24 80\r\nxterm\r\ne\r\n", "")
        );

        let shell = ["/bin/sh", "-c", "read x; busybox stty size; sleep 77401"].map(String::from);
        let order = SessionOrder {
            id: &id("a", 0),
            command: &shell,
            stdin: true,
            stdout: true,
            stderr: false,
            terminal: Some(WindowSize { rows: 5, columns: 6 }),
        };
        let mut session = Session::start(&order, &machine.settings).unwrap();
        session.resize(WindowSize { rows: 33, columns: 99 }).unwrap();
        session.streams.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut seen = Vec::new();
        wait_until("the new size", LIMIT, || {
            let mut some = [0; 100];
            let count = session.streams.stdout.as_mut().unwrap().read(&mut some).unwrap_or(0);
            seen.extend_from_slice(&some[..count]);
            String::from_utf8_lossy(&seen).contains("33 99")
        });
        drop(session);
        assert!(!is_running("77401"));
    });
}

/// A client of the kubelet's API, as kubectl is.
struct Remote {
    socket: WebSocket<UnixStream>,
    serving: thread::JoinHandle<()>,
}

impl Remote {
    fn open(machine: &Machine, protocol: &str, query: &str, script: &str) -> Self {
        let script = kedge_api::percent_encoded(script);
        let path = format!("/exec/prod/web-0/a?command=/bin/sh&command=-c&command={script}&{query}");
        Self::asking(machine, protocol, &path).unwrap()
    }

    /// The error is an answer without an upgrade.
    fn asking(machine: &Machine, protocol: &str, path: &str) -> Result<Self, String> {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(LIMIT)).unwrap();
        ours.set_write_timeout(Some(LIMIT)).unwrap();
        let places = [machine.settings.run.parent().unwrap(), machine.settings.data.parent().unwrap()];
        let [run, root] = places.map(|path| path.to_str().unwrap().to_owned());
        let words = ["kedge", "agent", "--run-dir", &run, "--root-dir", &root].map(OsString::from);
        let Ok(flags::Command::Agent(agent)) = flags::parse(words) else { panic!() };
        let serving = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                theirs.set_nonblocking(true).unwrap();
                let stream = tokio::net::UnixStream::from_std(theirs).unwrap();
                // a client that breaks off is an error of the stream
                let _ = serve(Box::new(stream), Arc::new(Node { agent: *agent })).await;
            });
        });
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        ours.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n\r\n") && ours.read(&mut byte).unwrap() > 0 {
            answer.push(byte[0]);
        }
        let mut answer = String::from_utf8(answer).unwrap();
        if !answer.starts_with("HTTP/1.1 101 ") {
            ours.read_to_string(&mut answer).unwrap();
            serving.join().unwrap();
            return Err(answer);
        }
        assert!(answer.contains(protocol), "{answer}");
        assert!(answer.contains("HSmrc0sMlYUkAGmm5OPpG2HaGWk="), "{answer}");
        Ok(Self { socket: WebSocket::from_raw_socket(ours, Role::Client, None), serving })
    }

    fn say(&mut self, channel: u8, bytes: &[u8]) {
        self.socket.send(Message::binary([&[channel], bytes].concat())).unwrap();
    }

    /// All that comes on the three channels until the end.
    fn hear(mut self) -> [String; 3] {
        let mut heard = [Vec::new(), Vec::new(), Vec::new()];
        loop {
            match self.socket.read() {
                Ok(Message::Binary(bytes)) => heard[usize::from(bytes[0]) - 1].extend_from_slice(&bytes[1..]),
                Ok(Message::Close(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(Error::ConnectionClosed) => break,
                Err(error) => panic!("{error}"),
            }
        }
        drop(self.socket);
        self.serving.join().unwrap();
        heard.map(|bytes| String::from_utf8(bytes).unwrap())
    }
}

const V4: &str = "v4.channel.k8s.io";
const V5: &str = "v5.channel.k8s.io";

#[test]
fn websocket_carries_streams_size_and_code() {
    isolated("sessions::websocket_carries_streams_size_and_code", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        runtime.run(&wanted("a", "exec sleep 1000"));
        let mut remote = Remote::open(&machine, V5, "input=1&output=1&error=1", "cat; echo why >&2; exit 3");
        remote.say(0, b"one ");
        remote.say(0, b"two");
        remote.say(255, &[0]);
        let [output, errors, status] = remote.hear();
        assert_eq!((output.as_str(), errors.as_str()), ("one two", "why\n"));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["details"]["causes"][0]["message"], "3", "{status}");

        let [output, _, status] = Remote::open(&machine, V4, "stdout=true", "echo x >&2; echo y").hear();
        assert_eq!(output, "y\n");
        assert!(status.contains("Success"), "{status}");

        let mut remote =
            Remote::open(&machine, V5, "input=1&output=1&error=1&tty=1", "read x; busybox stty size; read x");
        remote.say(4, br#"{"Width":99,"Height":33}"#);
        remote.say(0, b"\r\r");
        let [output, ..] = remote.hear();
        assert!(output.contains("33 99\r\n"), "{output}");
    });
}

#[test]
fn websocket_passes_bulk_and_ends_with_its_client() {
    isolated("sessions::websocket_passes_bulk_and_ends_with_its_client", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        runtime.run(&wanted("a", "exec sleep 1000"));
        let remote = Remote::open(&machine, V5, "input=1&output=1", "cat");
        let sent: Vec<u8> = (0..BULK_BYTES).map(|at| b'a' + (at * at / 7 % 26) as u8).collect();
        let mut writer = Remote {
            socket: WebSocket::from_raw_socket(
                remote.socket.get_ref().try_clone().unwrap(),
                Role::Client,
                None,
            ),
            serving: thread::spawn(|| {}),
        };
        let to_send = sent.clone();
        let writing = thread::spawn(move || {
            to_send.chunks(32 * 1024).for_each(|chunk| writer.say(0, chunk));
            writer.say(255, &[0]);
        });
        let [received, ..] = remote.hear();
        writing.join().unwrap();
        assert!(received.as_bytes() == sent, "{} of {} bytes", received.len(), sent.len());

        // one that goes away, one that breaks the protocol, one that never reads
        for channel in [None, Some(9)] {
            let mut remote =
                Remote::open(&machine, V5, "input=1&output=1", "sleep 77501 & seq 1000000; sleep 77502");
            wait_until("its process", LIMIT, || is_running("77501"));
            if let Some(channel) = channel {
                remote.say(channel, b"x");
            }
            let serving = remote.serving;
            drop(remote.socket);
            serving.join().unwrap();
            assert!(!is_running("7750"), "{:?}", processes("sleep"));
        }
    });
}

/// A node with the pod `web`, which sleeps.
fn with_pod() -> Setup {
    let setup = Setup::with_runtime();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "image": "web:1", "command": ["sleep", "86321"]}]}});
    setup.cluster.kubectl().feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
    setup.shows("a pod that runs", || setup.runs_with(0));
    setup
}

/// How much goes through kubectl and the hub in each direction.
fn bulk_bytes() -> usize {
    if std::env::var_os("KEDGE_CRASH_FULL").is_some() { FULL_BULK_BYTES } else { BULK_BYTES }
}

#[test]
fn kubectl_runs_programs_through_the_hub() {
    isolated_network("sessions::kubectl_runs_programs_through_the_hub", || {
        let setup = with_pod();
        let kubectl = setup.cluster.kubectl();
        let start = |line: &[&str]| {
            let mut command = Command::new(kubectl.program());
            command.arg("--kubeconfig").arg(kubectl.kubeconfig()).arg("exec").args(line);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let run = |line: &[&str], input: &[u8]| {
            let mut child = start(line);
            let mut stdin = child.stdin.take().unwrap();
            let input = input.to_vec();
            let writing = thread::spawn(move || {
                let _ = stdin.write_all(&input);
            });
            let output = child.wait_with_output().unwrap();
            writing.join().unwrap();
            output
        };
        let output = run(&["web", "--", "/bin/sh", "-c", "echo one; echo two >&2; exit 7"], b"");
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert_eq!(output.stdout, b"one\n");
        assert!(output.stderr.starts_with(b"two\n"), "{output:?}");
        let sent: Vec<u8> = (0..bulk_bytes()).map(|at| (at * at / 7) as u8).collect();
        let output = run(&["-i", "web", "--", "cat"], &sent);
        assert!(output.status.success() && output.stdout == sent, "{} bytes", output.stdout.len());
        let output = run(&["web", "--", "/bin/none"], b"");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains("error executing command in container"),
            "{error}"
        );

        // the agent is killed, and another takes its place: the session survives, because no agent is its
        // parent
        let mut child = start(&["-i", "web", "--", "cat"]);
        let mut output = child.stdout.take().unwrap();
        let (heard, hears) = mpsc::channel();
        thread::spawn(move || {
            let mut some = [0; 100];
            while let Ok(count @ 1..) = output.read(&mut some) {
                let _ = heard.send(some[..count].to_vec());
            }
        });
        let mut input = child.stdin.take().unwrap();
        let mut echoed = |line: &[u8]| {
            input.write_all(line).unwrap();
            assert_eq!(hears.recv_timeout(LIMIT).unwrap(), line);
        };
        echoed(b"before\n");
        setup.replace_the_agent();
        echoed(b"after\n");
        drop(input);
        assert!(child.wait().unwrap().success());
    });
}

/// A kubectl of one version with this command line; `None`: it was not fetched.
fn kubectl_of(setup: &Setup, version: &str, line: &[&str]) -> Option<Command> {
    let program = match programs::kubectl_of(version) {
        Ok(program) => program,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            kedge_rig::power_cut::print_past_test_runner(&format!("SKIPPED: {error}"));
            return None;
        }
    };
    let mut command = Command::new(program);
    command.arg("--kubeconfig").arg(setup.cluster.kubectl().kubeconfig()).args(line);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

/// Copies to and from the container, by the `tar` in it.
fn check_copies(setup: &Setup, version: &str) {
    let scratch = kedge_rig::Scratch::new("kubectl-cp").unwrap();
    let sent: Vec<u8> = (0..1 << 20).map(|at: usize| (at * at / 5) as u8).collect();
    let file = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    fs::write(file("sent"), &sent).unwrap();
    let there = format!("web:/tmp/{version}");
    for line in [["cp", &file("sent"), &there], ["cp", &there, &file("back")]] {
        let Some(mut command) = kubectl_of(setup, version, &line) else { return };
        let output = command.output().unwrap();
        assert!(output.status.success(), "{version}: {line:?}: {output:?}");
    }
    assert!(fs::read(file("back")).unwrap() == sent, "{version}: the file came back changed");
}

/// A terminal whose size changes while a program runs in it.
fn check_terminal(setup: &Setup, version: &str) {
    let is =
        |size: &str| format!("until [ \"$(busybox stty size)\" = '{size}' ]; do busybox usleep 50000; done");
    // the output does not occur in the command's own words, which the terminal's log begins with
    let script = format!("{}; echo $((33 * 3)) was first; {}; exit 5", is("33 99"), is("44 88"));
    let Some(command) = kubectl_of(setup, version, &["exec", "-it", "web", "--", "/bin/sh", "-c", &script])
    else {
        return;
    };
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''"));
    let words: Vec<String> =
        [command.get_program()].into_iter().chain(command.get_args()).map(quoted).collect();
    let scratch = kedge_rig::Scratch::new("kubectl-tty").unwrap();
    let log = scratch.path().join("log").to_str().unwrap().to_owned();
    let resizes =
        format!("until grep -q '^99 was first' {log}; do sleep 0.1; done; stty rows 44 cols 88 </dev/tty");
    let line = format!("stty rows 33 cols 99; ({resizes}) & {}", words.join(" "));
    let mut command = Command::new("script");
    command.args(["-qfec", &line, &log]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    // its end would be typed
    let _open = child.stdin.take();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(5), "{version}: {}", fs::read_to_string(&log).unwrap());
}

/// A terminal that has no size: the program's has the usual one.
fn check_terminal_without_size(setup: &Setup, version: &str) {
    // where the kernel lets crun not go first, a program that looks at once may see none
    let script = "busybox usleep 300000; busybox stty size";
    let Some(command) = kubectl_of(setup, version, &["exec", "-it", "web", "--", "/bin/sh", "-c", script])
    else {
        return;
    };
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
    let words: Vec<String> =
        [command.get_program()].into_iter().chain(command.get_args()).map(quoted).collect();
    let mut command = Command::new("script");
    command.args(["-qfec", &format!("stty rows 0 cols 0; {}", words.join(" ")), "/dev/null"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // its end would be typed
    let _open = child.stdin.take();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert_eq!(said, "24 80\r\n", "{version}");
}

#[test]
fn kubectls_copy_resize_and_know_codes() {
    isolated_network("sessions::kubectls_copy_resize_and_know_codes", || {
        let setup = with_pod();
        for version in ["1.32", "1.36"] {
            let run = |line: &[&str], input: Stdio| {
                let command = kubectl_of(&setup, version, line);
                command.map(|mut command| command.stdin(input).output().unwrap())
            };
            for code in [0, 1, 9, 255] {
                let line = ["exec", "web", "--", "/bin/sh", "-c", &format!("exit {code}")];
                let Some(output) = run(&line, Stdio::null()) else { break };
                assert_eq!(output.status.code(), Some(code), "{version}: {output:?}");
            }
            // the program ends before its input does
            let zeros = fs::File::open("/dev/zero").unwrap();
            let line = ["exec", "-i", "web", "--", "busybox", "head", "-c", "3"];
            if let Some(output) = run(&line, zeros.into()) {
                assert!(output.status.success() && output.stdout == [0; 3], "{version}: {output:?}");
            }
            check_copies(&setup, version);
            check_terminal(&setup, version);
            check_terminal_without_size(&setup, version);
        }
    });
}

/// Waits until the process stops reading.
fn await_stall(child: &Child) {
    let path = format!("/proc/{}/io", child.id());
    let mut before = String::new();
    wait_until("a client that is kept waiting", LIMIT, || {
        thread::sleep(std::time::Duration::from_millis(500));
        let counts = fs::read_to_string(&path).unwrap();
        // its first line, `rchar`, has all that was read
        let now = counts.lines().next().unwrap_or_default().to_owned();
        let is_stalled = now == before;
        before = now;
        is_stalled
    });
}

#[test]
fn program_that_takes_no_input_ends_with_kubectl() {
    isolated_network("sessions::program_that_takes_no_input_ends_with_kubectl", || {
        let setup = with_pod();
        let kubectl = setup.cluster.kubectl();
        let mut command = Command::new(kubectl.program());
        command.arg("--kubeconfig").arg(kubectl.kubeconfig());
        command.args(["exec", "-i", "web", "--", "sleep", "77601"]);
        let zeros = fs::File::open("/dev/zero").unwrap();
        let mut child = command.stdin(zeros).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the program", LIMIT, || is_running("77601"));
        await_stall(&child);
        child.kill().unwrap();
        child.wait().unwrap();
        // the end of the client cannot arrive behind the unread input: probes find it, at the hub and then at
        // the node
        wait_until("the end of the program", LIMIT, || !is_running("77601"));
        wait_until("the end of its session", LIMIT, || processes("session").is_empty());
        assert!(is_running("86321"), "the container is untouched");
    });
}

const PIPES: Console = Console { stdin: true, stdin_once: false, tty: false };

/// `kedge attach` with these flags.
fn attach_command(machine: &Machine, flags: &str) -> Child {
    let mut command = Command::new(&machine.settings.program);
    command.arg("attach").args(flags.split_whitespace()).args(["--environment-file", ""]);
    command.arg("--run-dir").arg(machine.settings.run.parent().unwrap());
    command.arg("--root-dir").arg(machine.settings.data.parent().unwrap());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// A client of container `a` that the test reads and writes itself.
fn attach(machine: &Machine, stdin: bool) -> Attachment {
    let order = AttachOrder { id: &id("a", 0), stdin, stdout: true, stderr: true };
    Attachment::open(order, &machine.settings).unwrap()
}

fn write(attachment: &mut Attachment, text: &str) {
    attachment.streams.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
}

/// Reads its output until this is part of it.
#[track_caller]
fn await_output(attachment: &mut Attachment, expect: &str) -> String {
    let mut seen = Vec::new();
    wait_until(expect, LIMIT, || {
        let mut some = [0; 4096];
        let count = attachment.streams.stdout.as_mut().unwrap().read(&mut some).unwrap_or(0);
        seen.extend_from_slice(&some[..count]);
        String::from_utf8_lossy(&seen).contains(expect)
    });
    String::from_utf8(seen).unwrap()
}

fn await_code(attachment: &mut Attachment) -> i32 {
    let mut code = None;
    wait_until("the end of the container", LIMIT, || {
        code = attachment.ended().unwrap();
        code.is_some()
    });
    code.unwrap()
}

#[test]
fn several_clients_are_attached_and_outlive_the_agent() {
    isolated("sessions::several_clients_are_attached_and_outlive_the_agent", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut order = wanted(
            "a",
            "while read x; do echo got $x; [ $x = e ] && echo why >&2; done; echo end; exec sleep 1000",
        );
        order.console = PIPES;
        runtime.run(&order);
        let (mut writer, mut reader) = (attach(&machine, true), attach(&machine, false));
        write(&mut writer, "one\n");
        assert_eq!(await_output(&mut writer, "\n"), "got one\n");
        assert_eq!(await_output(&mut reader, "\n"), "got one\n");
        // a client that leaves ends nothing, and neither does an agent
        drop(writer);
        drop(runtime);
        let mut writer = attach(&machine, true);
        write(&mut writer, "two\n");
        assert_eq!(await_output(&mut reader, "\n"), "got two\n");
        let mut runtime = machine.open();
        write(&mut writer, "e\n");
        assert_eq!(await_output(&mut reader, "\n"), "got e\n");
        let mut errors = [0; 10];
        wait_until("errors apart from output", LIMIT, || {
            reader
                .streams
                .stderr
                .as_mut()
                .unwrap()
                .read(&mut errors)
                .is_ok_and(|count| &errors[..count] == b"why\n")
        });
        // input from a client that does not read the program's output
        let mut child = attach_command(&machine, "-i prod/web-0");
        child.stdin.take().unwrap().write_all(b"three\n").unwrap();
        await_output(&mut reader, "got three\n");
        let has_logged =
            || machine.logged(&id("a", 0)) == ["got one", "got two", "got e", "why", "got three"];
        wait_until("the log", LIMIT, has_logged);
        runtime.workloads.kill_container(&id("a", 0)).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(137));
        assert_eq!((await_code(&mut reader), await_code(&mut writer)), (137, 137));
        runtime.await_end(&id("a", 0));
        let order = AttachOrder { id: &id("a", 0), stdin: false, stdout: true, stderr: true };
        let error = Attachment::open(order, &machine.settings).unwrap_err().to_string();
        assert!(error.contains("it has ended"), "{error}");
    });
}

#[test]
fn input_given_once_ends_with_its_client() {
    isolated("sessions::input_given_once_ends_with_its_client", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut order = wanted("a", "cat; echo end; exit 3");
        order.console = Console { stdin_once: true, ..PIPES };
        runtime.run(&order);
        // a client without input does not count
        drop(attach(&machine, false));
        let sent: String = (0..20_000).map(|number| format!("{number}\n")).collect();
        let mut child = attach_command(&machine, "-i prod/web-0");
        let (mut stdin, text) = (child.stdin.take().unwrap(), sent.clone());
        let writing = thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(output.stdout == format!("{sent}end\n").as_bytes(), "{} bytes", output.stdout.len());
        runtime.await_end(&id("a", 0));
        assert_eq!(machine.logged(&id("a", 0)).len(), 20_001);
    });
}

#[test]
fn terminal_of_a_container_is_logged_and_resized() {
    isolated("sessions::terminal_of_a_container_is_logged_and_resized", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut order = wanted("a", "echo $TERM; tty; while read x; do busybox stty size; done; exit 5");
        order.console = Console { tty: true, ..PIPES };
        runtime.run(&order);
        wait_until("the log", LIMIT, || machine.logged(&id("a", 0)) == ["xterm", "/dev/pts/0"]);
        let mut attachment = attach(&machine, true);
        assert!(attachment.has_terminal());
        attachment.resize(WindowSize { rows: 33, columns: 99 });
        // the size takes another channel than the input
        wait_until("the new size", LIMIT, || {
            write(&mut attachment, "\r");
            await_output(&mut attachment, "\r\n").contains("33 99")
                || await_output(&mut attachment, "\r\n").contains("33 99")
        });
        write(&mut attachment, "\x04");
        assert_eq!(await_code(&mut attachment), 5);
        assert_eq!(runtime.await_end(&id("a", 0)).exit_code, 5);
        assert!(!runtime.bundle(&id("a", 0)).join("console.sock").exists());
    });
}

#[test]
fn client_that_does_not_read_is_dropped() {
    isolated("sessions::client_that_does_not_read_is_dropped", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut order = wanted("a", "read x; seq 1 50000; echo done; read x; echo $x; exec sleep 1000");
        order.console = PIPES;
        runtime.run(&order);
        let (mut idle, mut reader) = (attach(&machine, true), attach(&machine, false));
        write(&mut idle, "\n");
        // the container waits a bounded time for it, and no line is missing in the log or for other clients
        let seen = await_output(&mut reader, "done\n");
        assert!(seen.starts_with("1\n2\n") && seen.ends_with("49999\n50000\ndone\n"), "{} bytes", seen.len());
        let error = idle.ended().unwrap_err().to_string();
        assert!(error.contains("took no output for 5 s"), "{error}");
        wait_until("the log", LIMIT, || machine.logged(&id("a", 0)).len() == 50_001);
        drop(idle);
        write(&mut attach(&machine, true), "again\n");
        await_output(&mut reader, "again\n");
    });
}

#[test]
fn websocket_attaches_to_a_container() {
    isolated("sessions::websocket_attaches_to_a_container", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut order = wanted("a", "cat; echo why >&2; exit 3");
        order.console = Console { stdin_once: true, ..PIPES };
        runtime.run(&order);
        let path = "/attach/prod/web-0/a?input=1&output=1&error=1";
        let mut remote = Remote::asking(&machine, V5, path).unwrap();
        remote.say(0, b"one");
        remote.say(255, &[0]);
        let [output, errors, status] = remote.hear();
        assert_eq!((output.as_str(), errors.as_str()), ("one", "why\n"));
        assert!(status.contains("Success"), "as upstream the code is in the pod's status: {status}");
        runtime.await_end(&id("a", 0));

        // a shim of an earlier release has no socket
        runtime.run(&wanted("b", "exec sleep 1000"));
        fs::remove_file(runtime.bundle(&id("b", 0)).join("attach.sock")).unwrap();
        let refused = Remote::asking(&machine, V5, "/attach/prod/web-0/b?output=1").err().unwrap();
        assert!(
            refused.starts_with("HTTP/1.1 409 ") && refused.contains("did not serve attach"),
            "{refused}"
        );
        // its shell may not have become the program yet
        wait_until("the container's program", LIMIT, || is_running("1000"));
    });
}
