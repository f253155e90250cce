//! kubectl with a node that is far away: on a long line, and behind two routers that translate addresses.

use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated, isolated_network, processes};
use kedge_rig::cluster::{HEADER, Source};
use kedge_rig::lossy_line::{self, LossyLine, Quality};
use kedge_rig::nat::{self, Nat};
use kedge_rig::scratch::wait_until;
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often a measurement on a busy machine is repeated; the best counts.
const TRIES: usize = 5;

/// The pod `web` in the network of its node, which runs this.
fn runs(setup: &Setup, script: &str) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script],
            "ports": [{"containerPort": 8080}]}]}});
    setup.cluster.kubectl().feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
    setup.shows("a pod that runs", || setup.runs_with(0));
}

/// A process that ends with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kubectl(setup: &Setup, line: &[&str]) -> Command {
    let kubectl = setup.cluster.kubectl();
    let mut command = Command::new(kubectl.program());
    command.arg("--kubeconfig").arg(kubectl.kubeconfig()).args(line);
    command
}

/// The bytes that it prints, as they come.
fn heard(mut output: ChildStdout) -> Receiver<u8> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut byte = [0];
        while output.read_exact(&mut byte).is_ok() && sender.send(byte[0]).is_ok() {}
    });
    receiver
}

#[track_caller]
fn awaits(heard: &Receiver<u8>, end: &str) {
    let mut all = Vec::new();
    while !all.ends_with(end.as_bytes()) {
        let byte = heard.recv_timeout(LIMIT);
        all.push(byte.unwrap_or_else(|_| panic!("no {end:?} in {}", String::from_utf8_lossy(&all))));
    }
}

/// The best time of several.
fn best(work: impl Fn()) -> Duration {
    let took = |_| {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    (0..TRIES).map(took).min().unwrap()
}

/// A node at the end of a line, with a pod.
fn on_a_line(round_trip: Duration) -> (Setup, LossyLine) {
    lossy_line::own_network().unwrap();
    let line = LossyLine::open(1, Quality { delay: round_trip / 2, loss_percent: 0 }).unwrap();
    let setup = Setup::far_away(|agent| line.at_node(|| agent.start()).unwrap());
    runs(&setup, "exec sleep 1000");
    (setup, line)
}

/// The node dials (TCP, TLS, the call), and the program is started on the way back; its streams and its end
/// are a last one.
#[test]
fn exec_on_a_long_line_takes_six_round_trips_at_most() {
    isolated("far_away::exec_on_a_long_line_takes_six_round_trips_at_most", || {
        // long enough that a busy machine's own delays are small beside it: starting a program, with a debug
        // build
        let round_trip = Duration::from_millis(600);
        let (setup, _line) = on_a_line(round_trip);
        let run = |line: &[&str]| {
            let output = kubectl(&setup, line).stdin(Stdio::null()).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        let exec = best(|| run(&["exec", "web", "--", "/bin/busybox", "true"]));
        let own = best(|| run(&["get", "--raw", "/healthz"]));
        let count = exec.saturating_sub(own).as_secs_f64() / round_trip.as_secs_f64();
        println!(
            "measured: kubectl exec -- true on a line of {round_trip:?} there and back: {exec:?}, of which kubectl's own {own:?}: \
             {count:.1} round trips"
        );
        assert!(count <= 6.0, "{count:.2} round trips: {exec:?}, of which kubectl's own {own:?}");
    });
}

/// A keystroke and its echo meet no timer on their way.
#[test]
fn key_on_a_long_line_has_its_echo_after_a_round_trip() {
    isolated("far_away::key_on_a_long_line_has_its_echo_after_a_round_trip", || {
        let round_trip = Duration::from_millis(300);
        let (setup, _line) = on_a_line(round_trip);
        let words = kubectl(&setup, &["exec", "-it", "web", "--", "/bin/sh", "-c", "echo ready; exec cat"]);
        let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
        let words: Vec<String> =
            [words.get_program()].into_iter().chain(words.get_args()).map(quoted).collect();
        // gives the program a terminal
        let mut script = Command::new("script");
        script.args(["-qfec", &words.join(" "), "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = Running(script.spawn().unwrap());
        let output = heard(script.0.stdout.take().unwrap());
        let mut keys = script.0.stdin.take().unwrap();
        awaits(&output, "ready\r\n");
        let mut times = Vec::new();
        for key in "kedgeKEDGE".chars() {
            let begun = Instant::now();
            keys.write_all(key.to_string().as_bytes()).unwrap();
            awaits(&output, &key.to_string());
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        let (least, middle) = (times[0], times[times.len() / 2]);
        println!(
            "measured: a key's echo on a line of {round_trip:?} there and back: {least:?} at least, {middle:?} in the median"
        );
        // several at once take no longer than one
        let begun = Instant::now();
        keys.write_all(b"typed ahead.").unwrap();
        awaits(&output, "ahead.");
        let ahead = begun.elapsed();
        assert!(least >= round_trip, "{least:?}: it passes the line");
        assert!(least <= round_trip * 3 / 2, "{least:?}");
        assert!(ahead <= round_trip * 2, "{ahead:?}");
    });
}

/// Sends while it reads, and compares.
fn echoes(mut stream: TcpStream) {
    let sent: Vec<u8> = (0..200_000_u64).map(|at| (at * at / 7) as u8).collect();
    let (mut writer, to_send) = (stream.try_clone().unwrap(), sent.clone());
    let writing = thread::spawn(move || {
        writer.write_all(&to_send).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut heard = Vec::new();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.read_to_end(&mut heard).unwrap();
    writing.join().unwrap();
    assert!(heard == sent, "{} of {} bytes", heard.len(), sent.len());
}

/// The node notices by its next renewal, which nobody acknowledges, and then reconnects that stream and every
/// other one: no stream waits for a further renewal to tell it.
#[test]
fn connections_that_a_router_forgot_cost_one_renewal() {
    isolated_network("far_away::connections_that_a_router_forgot_cost_one_renewal", || {
        lossy_line::own_network().unwrap();
        let nat = Nat::open().unwrap();
        let setup = Setup::far_away(|agent| {
            // the default, not the rig's own
            let lease = format!("{HEADER}nodeLeaseDurationSeconds: 40\n");
            agent.write_drop_in("20-lease.conf", &lease).unwrap();
            nat.at_node(|| agent.start()).unwrap();
        });
        runs(&setup, "exec sleep 1000");
        let renewals = || setup.cluster.view().look(|world| world.renewal_count(NODE));
        // every stream has a connection, and the watches have been open for a while
        let forget = |last| {
            let before = renewals();
            setup.shows("a renewal", || renewals() > before);
            nat.forget(last).unwrap();
            (renewals(), Instant::now())
        };
        let check = |what: &str, (before, begun): (usize, Instant), is_seen: &dyn Fn() -> bool| {
            setup.shows(what, is_seen);
            let count = renewals() - before;
            println!(
                "measured: {what}: {:.1?} and {count} renewals after a router forgot all",
                begun.elapsed()
            );
            assert!(count <= 2, "{what}: {count} renewals\n{}", setup.cluster.agent(NODE).log_text());
        };

        let forgotten = forget(3);
        let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": {
            "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [{
                "name": "main", "image": "web:1", "command": ["/bin/sh", "-c", "exec sleep 1000"]}]}});
        setup.cluster.kubectl().feed(&["apply", "-f", "-"], &other.to_string()).unwrap();
        check("a pod runs", forgotten, &|| {
            let phase =
                setup.cluster.kubectl().run(&["get", "pod", "other", "-o", "jsonpath={.status.phase}"]);
            phase.is_ok_and(|phase| phase == "Running")
        });

        let uid =
            setup.cluster.create_config("pushed", &format!("{HEADER}logging: {{verbosity: 3}}\n")).unwrap();
        let forgotten = forget(4);
        setup.cluster.assign(NODE, &Source::Pinned { name: "pushed".into(), uid: uid.clone() }).unwrap();
        check("a push is taken up", forgotten, &|| {
            let config = setup.cluster.kubectl().json(&["get", "node", NODE]).unwrap_or_default();
            config["status"]["config"]["assigned"]["configMap"]["uid"] == uid.as_str()
        });
    });
}

#[test]
fn node_behind_two_routers_answers_kubectl() {
    isolated_network("far_away::node_behind_two_routers_answers_kubectl", || {
        lossy_line::own_network().unwrap();
        let nat = Nat::open().unwrap();
        let setup = Setup::far_away(|agent| nat.at_node(|| agent.start()).unwrap());
        runs(
            &setup,
            "echo first; mkdir /www; echo page > /www/index.html; busybox nc -ll -p 81 -e /bin/cat & \
             exec busybox httpd -f -p 8080 -h /www",
        );
        // nobody dials it
        assert!(TcpStream::connect_timeout(&(nat::NODE, 8080).into(), Duration::from_secs(5)).is_err());
        assert!(TcpStream::connect_timeout(&(nat::SEEN, 8080).into(), Duration::from_secs(5)).is_err());
        let kubectl_of = |line: &[&str]| kubectl(&setup, line);
        let run = |line: &[&str]| {
            let output = kubectl_of(line).output().unwrap();
            assert!(output.status.success(), "{line:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        setup.shows("the log", || run(&["logs", "web"]) == "first\n");
        let output = kubectl_of(&["exec", "web", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7"])
            .output()
            .unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), &b"out\n"[..]), "{output:?}");
        assert_eq!(run(&["get", "--raw", "/api/v1/namespaces/default/pods/web/proxy/"]), "page\n");
        assert!(run(&["top", "node", NODE]).contains(NODE));

        let scratch = kedge_rig::Scratch::new("far-away").unwrap();
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let content: Vec<u8> = (0..1_000_000_u64).map(|at| (at * at / 7) as u8).collect();
        fs::write(path("sent"), &content).unwrap();
        run(&["cp", &path("sent"), "web:/copied"]);
        run(&["cp", "web:/copied", &path("received")]);
        assert!(fs::read(path("received")).unwrap() == content, "it comes back as it went");

        let mut forwarding = kubectl_of(&["port-forward", "pod/web", ":81", "--address=127.0.0.1"]);
        let mut forwarding = Running(forwarding.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(forwarding.0.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        // kubectl keeps printing, and would block on a full pipe
        thread::spawn(move || lines.lines().count());
        let port: u16 =
            line["Forwarding from 127.0.0.1:".len()..].split(' ').next().unwrap().parse().unwrap();
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| echoes(TcpStream::connect(("127.0.0.1", port)).unwrap()));
            }
        });
        drop(forwarding);

        // a log that is followed, by a client that leaves
        let mut follower =
            Running(kubectl_of(&["logs", "-f", "web"]).stdout(Stdio::piped()).spawn().unwrap());
        awaits(&heard(follower.0.stdout.take().unwrap()), "first\n");
        drop(follower);
        wait_until("the sessions to end", LIMIT, || processes("session").is_empty());
    });
}
