//! A real hub on a disk that is full, read-only, failing or stalled, judged by the effects on its callers.
//!
//! The disk is `kedge_rig::bad_disk`: deterministic, without privileges, changed while the hub runs. No wait
//! is timed: a step ends when its condition is met. Left to others: cuts of power (`power_cuts`), random
//! kills (`history`), and each rule by itself (unit tests of `store`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod server;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kedge_hub::store::sqlite::checksum;
use kedge_rig::Scratch;
use kedge_rig::bad_disk::BadDisk;
use kedge_rig::small_machine;
use serde_json::{Value, json};
use server::{Client, Hub, Reply, scratch};

const HUB: &str = env!("CARGO_BIN_EXE_kedge-hub");
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// A little more than the silence after which a node is lost.
const LOST: Duration = Duration::from_secs(53);
/// A little more than the interval at which the controller marks nodes.
const PASS: Duration = Duration::from_secs(6);
/// Renewals of each node where only the hub's state differs, because another test makes a thousand.
const A_FEW: usize = 5;
/// Longest wait for a hub to notice something: its own longest pause, several times.
const LIMIT: Duration = Duration::from_secs(120);

/// A machine with a disk of its own for the hub.
struct Board {
    disk: BadDisk,
    data: PathBuf,
    scratch: Scratch,
}

impl Board {
    fn new() -> Board {
        let scratch = scratch();
        let data = scratch.path().join("data");
        let disk = BadDisk::new(scratch.path(), Path::new(HUB), &data).unwrap();
        Board { disk, data, scratch }
    }

    fn start(&self) -> Hub {
        Hub::spawn(self.command(), &self.data)
    }

    fn command(&self) -> Command {
        let log = File::options().append(true).create(true).open(self.scratch.path().join("log")).unwrap();
        let mut command = Command::new(self.disk.program());
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&self.data).stderr(log);
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("log")).unwrap()
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the hub's log\n{}", self.log());
        }
    }
}

fn map(name: &str, bytes: usize) -> Value {
    json!({"metadata": {"name": name}, "data": {"text": "x".repeat(bytes)}})
}

fn message(reply: Reply) -> String {
    String::from_utf8(reply.body).unwrap()
}

/// Repeats a step until it returns something.
fn wait_for<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the hub has made the writes that follow its start: its roles, its namespaces' objects.
fn until_quiet(client: &mut Client) {
    let mut seen = Vec::new();
    wait_for("a hub that writes nothing by itself", || {
        let list = client.get(MAPS).expect(200);
        seen.push(list["metadata"]["resourceVersion"].clone());
        let last = seen.iter().rev().take(10);
        (seen.len() >= 10 && last.clone().all(|version| Some(version) == seen.last())).then_some(())
    });
}

/// Repeats a change that is refused until the hub has noticed that its disk works; returns the object.
fn until_made(client: &mut Client, name: &str) -> Value {
    wait_for("a change on a disk that works again", || {
        let reply = client.post(MAPS, &map(name, 10));
        match reply.code {
            201 => Some(reply.json()),
            _ => {
                refused(reply);
                None
            }
        }
    })
}

/// Expects a 503 with a reason and a time; returns the message.
#[track_caller]
fn refused(reply: Reply) -> String {
    assert_eq!(reply.code, 503, "{reply:?}");
    assert_eq!(reply.header("retry-after").len(), 1, "{}", reply.head());
    let text = reply.json()["message"].as_str().unwrap().to_owned();
    assert!(text.contains("not made"), "{text}");
    text
}

/// The failing checks of `/readyz`; `/livez` must not fail.
fn unready(client: &mut Client) -> String {
    assert_eq!(message(client.get("/livez")), "ok", "a restart would not help");
    let reply = client.get("/readyz");
    assert!(matches!(reply.code, 200 | 500));
    let (good, text) = (reply.code == 200, message(reply));
    let failed: Vec<_> = text.lines().filter(|line| line.starts_with("[-]")).collect();
    assert_eq!(good, failed.is_empty(), "{text}");
    assert!(!text.contains('/'), "a path is shown to anybody: {text}");
    failed.join("\n")
}

fn metric(client: &mut Client, name: &str) -> u64 {
    let text = message(client.get("/metrics"));
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing in {text}")).parse().unwrap()
}

/// Nodes that renew their Leases.
struct Nodes(Vec<Client>);

impl Nodes {
    const NODES: usize = 4;

    /// Makes their Leases, if they are missing.
    fn new(hub: &Hub) -> Nodes {
        let mut client = hub.admin();
        for node in 0..Nodes::NODES {
            let lease = json!({"metadata": {"name": format!("n{node}")},
                "spec": {"holderIdentity": "n", "renewTime": "2026-01-01T00:00:00.000000Z"}});
            let code = client.post(LEASES, &lease).code;
            assert!(matches!(code, 201 | 409 | 503), "{code}");
        }
        Nodes((0..Nodes::NODES).map(|_| client.another()).collect())
    }

    /// Makes their Node objects, ready.
    fn register(hub: &Hub) {
        let mut client = hub.admin();
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        for node in 0..Nodes::NODES {
            client.post(NODES, &json!({"metadata": {"name": format!("n{node}")}})).expect(201);
            client.patch("merge", &format!("{NODES}/n{node}/status"), &ready).expect(200);
        }
    }

    /// The states of their conditions Ready.
    fn ready(client: &mut Client) -> Vec<String> {
        let list = client.get(NODES).expect(200);
        let state = |node: &Value| {
            let conditions = node["status"]["conditions"].as_array().unwrap();
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready").unwrap();
            ready["status"].as_str().unwrap().to_owned()
        };
        list["items"].as_array().unwrap().iter().map(state).collect()
    }

    /// A thousand renewals must be accepted whatever the disk does, with rising versions.
    fn renew(&mut self) {
        self.renew_each(1000 / Nodes::NODES);
    }

    /// The same with so many renewals of each node.
    fn renew_each(&mut self, times: usize) {
        thread::scope(|scope| {
            for (node, client) in self.0.iter_mut().enumerate() {
                let path = format!("{LEASES}/n{node}");
                scope.spawn(move || {
                    let mut last = 0_u64;
                    for count in 0..times {
                        let time = format!("2026-01-01T00:00:00.{count:06}Z");
                        let lease =
                            client.patch("merge", &path, &json!({"spec": {"renewTime": time}})).expect(200);
                        assert_eq!(lease["spec"]["renewTime"], time);
                        let version = lease["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                        assert!(version > last, "version {version} after {last}");
                        last = version;
                    }
                });
            }
        });
    }
}

/// Fills the disk with maps; returns their names.
fn fill(client: &mut Client, bytes: usize) -> Vec<String> {
    let mut made = Vec::new();
    loop {
        let name = format!("fill-{}", made.len());
        let reply = client.post(MAPS, &map(&name, bytes));
        match reply.code {
            201 => made.push(name),
            _ => {
                let text = refused(reply);
                assert!(text.contains("full"), "{text}");
                return made;
            }
        }
        assert!(made.len() < 1000, "the disk is never full");
    }
}

fn names(client: &mut Client) -> Vec<String> {
    let list = client.get(MAPS).expect(200);
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(name).filter(|name| name != "kube-root-ca.crt").collect()
}

#[test]
fn full_disk_takes_deletions_and_recovers_without_restart() {
    let board = Board::new();
    let hub = board.start();
    let (mut client, mut nodes) = (hub.admin(), Nodes::new(&hub));
    assert!(board.data.join("reserve").exists());
    board.disk.leave_room(Some(1024 * 1024));
    let made = fill(&mut client, 100_000);
    assert!(!made.is_empty());
    assert!(unready(&mut client).starts_with("[-]store-writable failed: full: since "));

    // changes of all others, and renewals: they hardly reach the disk
    let (failed, logged) = (board.disk.refused(), board.log().len());
    for number in 0..300 {
        let text = refused(client.post(MAPS, &map(&format!("more-{number}"), 100_000)));
        assert!(text.contains("the store is full: ") || text.contains("disk is full"), "{text}");
    }
    nodes.renew();
    let (failed, logged) = (board.disk.refused() - failed, board.log().len() - logged);
    // one probe a second at first, with a few calls each; the machine may be slow
    assert!(failed < 100 && logged < 8000, "{failed} failed calls and {logged} bytes of log for 300 changes");
    assert_eq!(metric(&mut client, "kedge_hub_store_writable"), 0);
    assert!(metric(&mut client, "kedge_hub_store_failures_total{sort=\"full\"}") > 0);
    // all except those after a pause, each of which is longer than the one before
    assert!(metric(&mut client, "kedge_hub_store_refused_total") > 250);

    // another program takes the remaining space: only the hub's own reserve is left
    board.disk.leave_room(Some(0));
    // a full disk must not keep a thief's access
    for node in ["edge-1", "edge-2"] {
        let revoked = hub.command(&["node", "revoke", node, "--force"]);
        assert_eq!(revoked.code, Some(0), "{}", revoked.err);
    }
    let audited = || fs::metadata(board.data.join("audit.log")).unwrap().len();
    let before = audited();
    client.delete(&format!("{MAPS}/{}", made[0])).expect(200);
    client.send("DELETE", MAPS, &[], b"").expect(200);
    assert_eq!(names(&mut client), [""; 0]);
    assert_eq!(audited(), before, "the audit log took the room of deletions");

    // the store now has unused pages, although the disk is full
    until_made(&mut client, "after");
    assert_eq!(unready(&mut client), "");
    board.disk.leave_room(None);
    until_made(&mut client, "room");
    wait_for("the lines of the audit log", || (audited() > before).then_some(()));
    let log = fs::read_to_string(board.data.join("audit.log")).unwrap();
    assert!(log.contains("deletecollection"), "the deletion on the full disk is not in the audit log");
    hub.kill();
    assert_eq!(names(&mut board.start().admin()), ["after", "room"]);
}

#[test]
fn large_object_without_room_stops_no_small_one() {
    let board = Board::new();
    let hub = board.start();
    let (mut client, mut other) = (hub.admin(), hub.admin());
    board.disk.leave_room(Some(512 * 1024));
    let (mut made, failed) = (0, board.disk.refused());
    for number in 0..10 {
        // each retries as soon as it was refused
        let text = refused(client.post(MAPS, &map("large", 900_000)));
        assert!(text.contains("full"), "{text}");
        other.post(MAPS, &map(&format!("small-{number}"), 10)).expect(201);
        made += 1;
    }
    assert_eq!(names(&mut client).len(), made);
    // one attempt whenever a pause has ended, with a few calls
    let failed = board.disk.refused() - failed;
    assert!(failed < 30, "{failed} failed calls");
    let seen = unready(&mut client);
    assert!(seen.starts_with("[-]store-writable failed: full: ") && seen.contains("large objects"), "{seen}");
    board.disk.leave_room(None);
    wait_for("the large one", || (client.post(MAPS, &map("large", 900_000)).code == 201).then_some(()));
    assert_eq!(unready(&mut client), "");
}

#[test]
fn ending_objects_cannot_use_up_the_room_for_deletions() {
    let board = Board::new();
    let hub = board.start();
    let mut client = hub.admin();
    let mut ending = map("ending", 10);
    ending["metadata"]["finalizers"] = json!(["kedge.dev/test"]);
    client.post(MAPS, &ending).expect(201);
    let place = format!("{MAPS}/ending");
    client.delete(&place).expect(200);
    board.disk.leave_room(Some(1024 * 1024));
    fill(&mut client, 50_000);
    board.disk.leave_room(Some(0));
    let mut grown = 0;
    let text = loop {
        let data = json!({"data": {(grown.to_string()): "x".repeat(3500)}});
        let reply = client.patch("merge", &place, &data);
        match reply.code {
            200 => grown += 1,
            _ => break refused(reply),
        }
        assert!(grown < 1000, "it grows for ever");
    };
    assert!(text.contains("have grown") && grown > 10, "{grown} changes, then {text}");
    client.patch("merge", &place, &json!({"metadata": {"finalizers": null}})).expect(200);
    client.send("DELETE", MAPS, &[], b"").expect(200);
    assert_eq!(names(&mut client), [""; 0]);
}

#[test]
fn full_disk_recovers_if_deletions_fit_without_the_reserve() {
    let board = Board::new();
    let hub = board.start();
    let mut client = hub.admin();
    board.disk.leave_room(Some(1024 * 1024));
    fill(&mut client, 100_000);
    board.disk.leave_room(Some(512 * 1024));
    client.send("DELETE", MAPS, &[], b"").expect(200);
    assert!(board.data.join("reserve").exists(), "the reserve was used, which shows nothing here");
    // the content of the log does not fit into the file
    board.disk.leave_room(Some(0));
    until_made(&mut client, "after");
    assert_eq!(unready(&mut client), "");
}

#[test]
fn full_disk_still_starts() {
    let board = Board::new();
    let hub = board.start();
    board.disk.leave_room(Some(3 * 1024 * 1024));
    Nodes::new(&hub);
    let made = fill(&mut hub.admin(), 300_000);
    hub.kill();
    // with the reserve it starts so that objects can be deleted
    board.disk.leave_room(Some(0));
    let hub = board.start();
    let mut client = hub.admin();
    assert_eq!(names(&mut client), made);
    client.delete(&format!("{MAPS}/{}", made[0])).expect(200);
    hub.kill();
    // without it, it starts so that they can be read
    board.disk.leave_room(Some(0));
    let _ = fs::remove_file(board.data.join("reserve"));
    let _ = fs::remove_file(board.data.join("state.db-shm"));
    let hub = board.start();
    let mut client = hub.admin();
    assert_eq!(names(&mut client), made[1..]);
    assert!(unready(&mut client).starts_with("[-]store-writable failed: full-at-start: "));
    refused(client.delete(&format!("{MAPS}/{}", made[1])));
    assert!(board.log().contains("starting without writes"), "the store was opened for writing");
    refused(client.post(MAPS, &map("new", 10)));
    Nodes::new(&hub).renew_each(A_FEW);
    board.disk.leave_room(None);
    until_made(&mut client, "new");
    hub.kill();
    assert_eq!(names(&mut board.start().admin()).len(), made.len());
}

#[test]
fn read_only_disk_still_starts_and_recovers_without_restart() {
    let board = Board::new();
    let hub = board.start();
    hub.admin().post(MAPS, &map("kept", 10)).expect(201);
    Nodes::new(&hub);
    hub.kill();
    let key = board.data.join("pki/tokens.pem");
    for clean in [false, true] {
        // like a directory of an older hub, which had no key
        fs::remove_file(&key).unwrap();
        if clean {
            // or a store of one, which had fewer namespaces and accounts
            let store = rusqlite::Connection::open(board.data.join("state.db")).unwrap();
            let gone = "DELETE FROM objects WHERE namespace IN ('kube-public', 'kube-node-lease')
                AND resource <> 'leases.coordination.k8s.io' OR name = 'kube-public'";
            assert_eq!(store.execute(gone, []).unwrap(), 6);
        }
        // after a kill the log holds everything, after a stop nothing
        let before: Vec<_> = files(&board.data);
        board.disk.read_only(true);
        let hub = board.start();
        let mut client = hub.admin();
        assert!(names(&mut client).contains(&"kept".to_owned()));
        assert!(unready(&mut client).starts_with("[-]store-writable failed: read-only: "));
        refused(client.post(MAPS, &map("new", 10)));
        refused(client.delete(&format!("{MAPS}/kept")));
        Nodes::new(&hub).renew_each(A_FEW);
        let copy = board.scratch.path().join(format!("backup-{clean}"));
        let mut backup = Command::new(board.disk.program());
        backup.arg("backup").arg(&copy).arg("--data-dir").arg(&board.data);
        let made = server::run(backup, "");
        assert_eq!(made.code, Some(0), "no backup of a read-only store: {}", made.err);
        let mut watch = client.watch(&format!("{MAPS}?watch=true"));
        assert_eq!(files(&board.data), before, "something was written to a read-only disk");
        assert!(!key.exists(), "it is only in memory");
        client.get("/openid/v1/jwks").expect(200);
        board.disk.read_only(false);
        let name = format!("new-{clean}");
        until_made(&mut client, &name);
        assert_eq!(unready(&mut client), "");
        while watch.event() != format!("ADDED {name}") {}
        for own in
            ["kube-public", "kube-public/serviceaccounts/default", "kube-node-lease/serviceaccounts/default"]
        {
            let path = format!("/api/v1/namespaces/{own}");
            wait_for(own, || (client.get(&path).code == 200).then_some(()));
        }
        match clean {
            false => hub.terminate(),
            true => hub.kill(),
        }
        board.start().terminate();
        assert!(key.exists(), "made when the disk takes writes");
    }
    assert_eq!(names(&mut board.start().admin()), ["kept", "new-false", "new-true"]);
}

/// Names and sizes.
fn files(data: &Path) -> Vec<(PathBuf, u64)> {
    let entries = fs::read_dir(data).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect();
    files.sort();
    files
}

#[test]
fn disk_that_turns_bad_refuses_changes_and_recovers() {
    type Fault = fn(&BadDisk, bool);
    let faults: [(&str, Fault); 2] =
        [("read-only", |disk, is| disk.read_only(is)), ("io-error", |disk, is| disk.fail_writes(is))];
    let board = Board::new();
    let hub = board.start();
    let (mut client, mut nodes) = (hub.admin(), Nodes::new(&hub));
    for (sort, fault) in faults {
        let name = format!("kept-{sort}");
        client.post(MAPS, &map(&name, 10)).expect(201);
        fault(&board.disk, true);
        // it is unknown whether the first one was made, and the answer does not claim to know
        let first = client.post(MAPS, &map(&format!("open-{sort}"), 10)).expect(500);
        assert!(first["message"].as_str().unwrap().contains("may or may not"), "{first}");
        refused(client.delete(&format!("{MAPS}/{name}")));
        nodes.renew();
        assert!(unready(&mut client).starts_with(&format!("[-]store-writable failed: {sort}: ")));
        fault(&board.disk, false);
        until_made(&mut client, &format!("after-{sort}"));
        assert_eq!(unready(&mut client), "");
    }
    let seen = names(&mut client);
    hub.kill();
    assert_eq!(names(&mut board.start().admin()), seen);
}

/// The verdict of a connection that met a failed read is not to be trusted: it may call a sound store
/// damaged, for ever.
#[test]
fn reads_that_failed_for_a_while_are_no_damage() {
    let board = Board::new();
    let hub = board.start();
    let (mut client, mut nodes) = (hub.admin(), Nodes::new(&hub));
    board.disk.fail_reads(7);
    // the log is folded back into the file when it has 4 MiB, which reads it
    let mut made = 0;
    while client.post(MAPS, &map(&format!("large-{made}"), 900_000)).code == 201 {
        made += 1;
        assert!(made < 40, "no read failed");
    }
    nodes.renew();
    let failed = || metric(&mut hub.admin(), "kedge_hub_store_failures_total{sort=\"io-error\"}");
    let before = failed();
    wait_for("two probes more", || (failed() >= before + 2).then_some(()));
    let seen = unready(&mut client);
    assert!(seen.starts_with("[-]store-writable failed: io-error: "), "{seen}");
    board.disk.fail_reads(0);
    until_made(&mut client, "after");
    assert_eq!(unready(&mut client), "");
    assert_eq!(metric(&mut client, "kedge_hub_store_failures_total{sort=\"damaged\"}"), 0);
    let seen = names(&mut client);
    hub.kill();
    assert_eq!(names(&mut board.start().admin()), seen);
}

#[test]
fn failed_flush_ends_in_a_restart_that_finds_one_of_two_states() {
    const WRITERS: usize = 4;
    let board = Board::new();
    let mut known = vec![0; WRITERS];
    let place = |writer: usize| format!("{MAPS}/w{writer}");
    for round in 1..=5 {
        let mut hub = board.start();
        // otherwise the write in doubt may be one that the hub makes at a start
        until_quiet(&mut hub.admin());
        let clients: Vec<_> = (0..WRITERS).map(|_| hub.admin()).collect();
        board.disk.fail_syncs(None);
        // all write at once; collects the answer of each
        let told: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = clients
                .into_iter()
                .zip(known.clone())
                .enumerate()
                .map(|(writer, (mut client, known))| {
                    let value = json!({"metadata": {"name": format!("w{writer}")}, "data": {"round": round.to_string()}});
                    let body = value.to_string();
                    let json = [("content-type", "application/json")];
                    scope.spawn(move || {
                        let reply = match known {
                            0 => client.try_send("POST", MAPS, &json, body.as_bytes()),
                            _ => client.try_send("PUT", &place(writer), &json, body.as_bytes()),
                        };
                        reply.map(|reply| (reply.code, message(reply))).ok()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let open =
            told.iter().flatten().filter(|(code, text)| *code == 500 && text.contains("may or may not"));
        assert!(open.count() >= 1, "round {round}: {told:?}");
        assert!(told.iter().flatten().all(|(code, _)| matches!(code, 500 | 503)), "round {round}: {told:?}");
        assert_eq!(hub.wait(), Some(1), "round {round}");
        let log = board.log();
        let last = log.lines().last().unwrap();
        assert!(last.contains("disk I/O error") && last.contains("start the hub again"), "{last}");
        board.disk.fail_syncs(Some(0));
        let again = board.start();
        let mut client = again.admin();
        for (writer, known) in known.iter_mut().enumerate() {
            let found = client.get(&place(writer));
            let now = match found.code {
                404 => 0,
                _ => found.json()["data"]["round"].as_str().unwrap().parse().unwrap(),
            };
            let certain = told[writer].as_ref().is_some_and(|(code, _)| *code == 503);
            assert!(now == *known || (now == round && !certain), "round {round}: {now} after {known}");
            *known = now;
        }
        client.post(MAPS, &map(&format!("after-{round}"), 10)).expect(201);
        again.kill();
    }
}

#[test]
fn failing_flush_at_the_start_serves_reads() {
    let board = Board::new();
    let hub = board.start();
    hub.admin().post(MAPS, &map("kept", 10)).expect(201);
    Nodes::new(&hub);
    hub.terminate();
    board.disk.fail_syncs(None);
    let hub = board.start();
    let mut client = hub.admin();
    assert_eq!(names(&mut client), ["kept"]);
    refused(client.post(MAPS, &map("new", 10)));
    Nodes::new(&hub).renew();
    assert!(!unready(&mut client).is_empty());
    assert!(board.log().contains("starting without writes"), "the store was opened for writing");
    board.disk.fail_syncs(Some(0));
    until_made(&mut client, "new");
}

#[test]
fn change_that_waits_behind_a_revocation_is_refused() {
    const WAITING: usize = 8;
    let board = Board::new();
    let hub = board.start();
    let mut client = hub.admin();
    client.post(MAPS, &map("shared", 10)).expect(201);
    let who = client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).expect(201);
    let id = who["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0].clone();
    let key = id.as_str().unwrap().replace("X509SHA256=", "certificate.");
    board.disk.hang_syncs(true);
    let in_progress =
        |client: &mut Client, wanted| metric(client, "apiserver_current_inflight_requests") >= wanted;
    let begin = |client: &Client, method: &'static str, path: String, body: Value| {
        let mut client = client.another();
        let content = (
            "content-type",
            if method == "POST" { "application/json" } else { "application/merge-patch+json" },
        );
        thread::spawn(move || client.send(method, &path, &[content], body.to_string().as_bytes()).code)
    };
    let first = begin(&client, "POST", MAPS.to_owned(), map("first", 10));
    wait_for("the stall", || (board.disk.hanging() > 0).then_some(()));
    let denied = json!({"metadata": {"name": "kedge-denied"}, "data": {key: ""}});
    let revocation = begin(&client, "POST", MAPS.replace("default", "kube-system"), denied);
    // including the request for the figure itself
    wait_for("the revocation", || in_progress(&mut client, 3).then_some(()));
    // one of these can be made as it was decided; the others meet its change and must decide again
    let changes: Vec<_> = (0..WAITING)
        .map(|number| {
            begin(&client, "PATCH", format!("{MAPS}/shared"), json!({"data": {"text": number.to_string()}}))
        })
        .collect();
    // a thief revokes another node
    let revokes = begin(&client, "POST", "/kedge/nodes/edge-1/revoke".to_owned(), json!({}));
    wait_for("the changes", || in_progress(&mut client, 4 + WAITING as u64).then_some(()));
    board.disk.hang_syncs(false);
    assert_eq!((first.join().unwrap(), revocation.join().unwrap()), (201, 201));
    let codes: Vec<u16> = changes.into_iter().map(|change| change.join().unwrap()).collect();
    let of = |code: u16| codes.iter().filter(|found| **found == code).count();
    // 503: the machine is so slow that the stall was noticed first
    let revokes = revokes.join().unwrap();
    assert!(matches!(revokes, 401 | 503), "{revokes}");
    assert!(of(200) <= 1 && of(200) + of(401) + of(503) == WAITING, "{codes:?}");
}

#[test]
fn stalled_disk_refuses_changes_and_loses_nothing() {
    let board = Board::new();
    let hub = board.start();
    let (mut client, mut nodes) = (hub.admin(), Nodes::new(&hub));
    client.post(MAPS, &map("kept", 10)).expect(201);
    board.disk.hang_syncs(true);
    let mut other = client.another();
    let stuck = thread::spawn(move || {
        let json = [("content-type", "application/json")];
        other
            .try_send("POST", MAPS, &json, map("stuck", 10).to_string().as_bytes())
            .map(|reply| reply.code)
            .ok()
    });
    wait_for("the stall", || (board.disk.hanging() > 0).then_some(()));
    assert_eq!(names(&mut client), ["kept"], "an unacknowledged change is shown");
    nodes.renew();
    let seen = wait_for("the check", || Some(unready(&mut client)).filter(|failed| !failed.is_empty()));
    assert!(seen.starts_with("[-]store-commits failed: stalled: "), "{seen}");
    for number in 0..100 {
        let text = refused(client.post(MAPS, &map(&format!("more-{number}"), 10)));
        assert!(text.contains("the disk has not finished a commit for "), "{text}");
    }
    assert!(metric(&mut client, "kedge_hub_store_oldest_unfinished_commit_seconds") >= 5);
    // the page for people stays up, and shows the fault
    let page = client.get("/fleet");
    assert_eq!(page.code, 200);
    let page = String::from_utf8(page.body).unwrap();
    assert!(page.contains("ready: no") && page.contains("store-commits: stalled: "), "{page}");
    hub.kill();
    assert_eq!(stuck.join().unwrap(), None, "a change was acknowledged that is not on the disk");
    board.disk.hang_syncs(false);
    let hub = board.start();
    let mut client = hub.admin();
    let found = names(&mut client);
    assert!(found == ["kept"] || found == ["kept", "stuck"], "{found:?}");
    // a finished stall leaves no traces
    let mut one_more = hub.node("a");
    one_more.post("/api/v1/nodes", &json!({"metadata": {"name": "a"}})).expect(201);
    let mut waiting: Vec<Client> = (0..32).map(|_| one_more.another()).collect();
    waiting.iter_mut().for_each(|node| drop(node.get("/version").expect(200)));
    let event = |number: usize| {
        let body = json!({"metadata": {"name": format!("a.{number}")}, "reason": "R", "type": "Normal", "message": "m",
            "involvedObject": {"kind": "Node", "name": "a", "uid": "a"}, "source": {"component": "kedge", "host": "a"}}).to_string();
        let length = body.len();
        let head =
            "POST /api/v1/namespaces/default/events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
        format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    };
    board.disk.hang_syncs(true);
    let mut other = client.another();
    let slow = thread::spawn(move || other.post(MAPS, &map("slow", 10)).code);
    wait_for("the stall", || (board.disk.hanging() > 0).then_some(()));
    // a node's requests wait for it, 32 at a time, and so do others'
    for (number, node) in waiting.iter_mut().enumerate() {
        node.write_raw(&event(number)).unwrap();
    }
    let in_progress = |client: &mut Client| metric(client, "apiserver_current_inflight_requests");
    wait_for("the node's requests", || (in_progress(&mut client) >= 2 + 32).then_some(()));
    one_more.write_raw(&event(32)).unwrap();
    assert_eq!(one_more.read_reply().unwrap().code, 429);
    board.disk.hang_syncs(false);
    assert_eq!(slow.join().unwrap(), 201);
    assert!(waiting.iter_mut().all(|node| node.read_reply().unwrap().code == 201));
    assert_eq!(unready(&mut client), "");
}

/// A machine with 40 MiB of memory: the store gets half, of which 4 MiB are for deletions; connections a
/// quarter, and so on.
#[test]
fn small_machine_gets_a_small_store() {
    const MIB: u64 = 1024 * 1024;
    const PAGE: u64 = 4096;
    let scratch = scratch();
    let data = scratch.path().join("data");
    let program = small_machine::program(scratch.path(), Path::new(HUB), 40 * MIB).unwrap();
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data).stderr(Stdio::null());
    let hub = Hub::spawn(command, &data);
    let (mut client, mut nodes) = (hub.admin(), Nodes::new(&hub));
    let mut size = |pool: &str| metric(&mut client, &format!("kedge_hub_pool_size{{pool=\"{pool}\"}}"));
    assert_eq!(size("connections"), 10 * MIB / (24 * 1024));
    assert_eq!((size("body_bytes"), size("watch_backlog_bytes")), (16 * MIB, 16 * MIB));
    let made = fill(&mut client, 1_000_000);
    let store = rusqlite::Connection::open(data.join("state.db")).unwrap();
    let pages: u32 = store.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    let limit = 16 * MIB;
    assert!(
        (limit - MIB..=limit).contains(&(u64::from(pages) * PAGE)),
        "{} maps in {pages} pages",
        made.len()
    );
    nodes.renew_each(A_FEW);
    for name in &made[..2] {
        client.delete(&format!("{MAPS}/{name}")).expect(200);
    }
    until_made(&mut client, "after");
    // an eighth of the connections is for all anonymous callers together, wherever they come from
    let anonymous = hub.anonymous();
    let mut open: Vec<Client> = (1..=60).map(|from| anonymous.from(from)).collect();
    let codes: Vec<u16> = open.iter_mut().map(|client| client.get("/livez").code).collect();
    let served = codes.iter().filter(|code| **code == 200).count() as u64;
    assert_eq!(served, 10 * MIB / (24 * 1024) / 8, "{codes:?}");
    nodes.renew_each(A_FEW);
}

/// The number of pages that each commit wrote to the write-ahead log, in order.
fn commits(data: &Path) -> Vec<usize> {
    const HEADER: usize = 32;
    const FRAME: usize = 24 + 4096;
    let log = fs::read(data.join("state.db-wal")).unwrap();
    let (header, frames) = log.split_at(HEADER);
    // frames of an older log have other salts
    let current = frames.chunks_exact(FRAME).take_while(|frame| frame[8..16] == header[16..24]);
    let mut commits = vec![0];
    for frame in current {
        *commits.last_mut().unwrap() += 1;
        // the size of the file after a commit
        if frame[4..8] != [0; 4] {
            commits.push(0);
        }
    }
    commits.pop();
    commits
}

/// Changes wait while the disk hangs: afterwards they are committed in pieces of 2 MiB and one object.
#[test]
fn changes_that_waited_are_committed_in_pieces() {
    const BYTES: usize = 900_000;
    const WAITING: u64 = 4;
    let board = Board::new();
    let hub = board.start();
    let mut client = hub.admin();
    let mut round = 0;
    let made = wait_for("a machine that decodes them before the stall is noticed", || {
        round += 1;
        // everything except the last byte of each has arrived before the disk hangs
        let mut waiting: Vec<Client> = (0..WAITING).map(|_| hub.admin()).collect();
        for (number, client) in waiting.iter_mut().enumerate() {
            let body = map(&format!("m{round}-{number}"), BYTES).to_string();
            let head = format!(
                "POST {MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            client.write_raw(format!("{head}{}", body.strip_suffix('}').unwrap()).as_bytes()).unwrap();
        }
        let before = metric(&mut client, "kedge_hub_store_commits_total");
        board.disk.hang_syncs(true);
        let mut first = hub.admin();
        let first = thread::spawn(move || first.post(MAPS, &map(&format!("first-{round}"), 10)).code);
        wait_for("the stall", || (board.disk.hanging() > 0).then_some(()));
        waiting.iter_mut().for_each(|client| client.write_raw(b"}").unwrap());
        // including the first and the request for the figure itself
        let all = |client: &mut Client| metric(client, "apiserver_current_inflight_requests") >= WAITING + 2;
        let noticed = |client: &mut Client| !unready(client).is_empty();
        wait_for("the changes", || (all(&mut client) || noticed(&mut client)).then_some(()));
        board.disk.hang_syncs(false);
        let codes: Vec<u16> = waiting.iter_mut().map(|client| client.read_reply().unwrap().code).collect();
        let first = first.join().unwrap();
        wait_for("the end of the stall", || unready(&mut client).is_empty().then_some(()));
        let made = metric(&mut client, "kedge_hub_store_commits_total") - before;
        codes.iter().all(|code| (*code, first) == (201, 201)).then_some(made)
    });
    // the one that hung, three objects, and one; more if some were decoded late
    assert!((3..=1 + WAITING).contains(&made), "{made} commits");
}

/// Renewals are written at a stop: at most 2000 of them, or 2 MiB and one Lease, at a time. On a slow machine
/// some were written before.
#[test]
fn renewals_are_written_in_pieces() {
    const PIECE: usize = 2000;
    const LARGE: usize = 250_000;
    let board = Board::new();
    let open = || rusqlite::Connection::open(board.data.join("state.db")).unwrap();
    let spec = json!({"holderIdentity": "n", "renewTime": "2026-01-01T00:00:00.000000Z"});
    let hub = board.start();
    let mut client = hub.admin();
    for number in 0..10 {
        let text = json!({"text": "x".repeat(LARGE)});
        let meta = json!({"name": format!("large-{number}"), "annotations": text});
        client.post(LEASES, &json!({"metadata": meta, "spec": spec})).expect(201);
    }
    let small = client.post(LEASES, &json!({"metadata": {"name": "small"}, "spec": spec})).expect(201);
    hub.terminate();
    // more than a test could make in time
    let mut store = open();
    let changes = store.transaction().unwrap();
    let lease = "SELECT resource, namespace, revision FROM objects WHERE name = 'small'";
    let (resource, namespace, revision): (String, String, i64) =
        changes.query_row(lease, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    for number in 0..=PIECE {
        let (name, mut lease) = (format!("small-{number}"), small.clone());
        lease["metadata"]["name"] = name.clone().into();
        lease["metadata"]["uid"] = format!("{number:08}-0000-4000-8000-000000000000").into();
        let lease = lease.to_string().into_bytes();
        let sum = checksum([&resource, &namespace, &name], revision, &lease);
        let row = "INSERT INTO objects (resource, namespace, name, revision, sum, json) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        changes.execute(row, (&resource, &namespace, name, revision, sum, lease)).unwrap();
    }
    changes.commit().unwrap();
    drop(store);
    // pages of each commit after the renewals of so many Leases
    let written = |name: &str, count: usize| {
        let hub = board.start();
        let mut client = hub.admin();
        // the log is not folded back while another connection reads the store
        let store = open();
        store.execute_batch("BEGIN; SELECT count(*) FROM objects").unwrap();
        let before = commits(&board.data).len();
        for number in 0..count {
            let renewal = json!({"spec": {"renewTime": "2026-01-01T00:00:01.000000Z"}});
            client.patch("merge", &format!("{LEASES}/{name}-{number}"), &renewal).expect(200);
        }
        hub.terminate();
        let mut commits = commits(&board.data).split_off(before);
        assert_eq!(commits.pop(), Some(1), "the end of the store's use");
        commits
    };
    let found = written("large", 10);
    let limit = 10 * (LARGE / 4096);
    assert!((2..10).contains(&found.len()) && found.iter().all(|pages| *pages < limit), "{found:?}");
    let found = written("small", PIECE + 1);
    assert!((2..10).contains(&found.len()), "{found:?}");
}

/// One hub is stopped for longer than the grace period of its nodes, and the disk of another stalls for as
/// long. Runs for a minute but idles; its name begins with `all` so that libtest starts it early.
#[test]
fn all_nodes_stay_ready_over_a_long_stall() {
    let (frozen, slow) = (Board::new(), Board::new());
    let (hub, other) = (frozen.start(), slow.start());
    let nodes = [&hub, &other].map(|hub| {
        let nodes = Nodes::new(hub);
        Nodes::register(hub);
        nodes
    });
    let [mut frozen_nodes, mut nodes] = nodes;
    let [mut client, mut slow_client] = [&hub, &other].map(Hub::admin);
    client.post(MAPS, &map("kept", 10)).expect(201);
    slow.disk.hang_syncs(true);
    let mut stuck = slow_client.another();
    let stuck = thread::spawn(move || stuck.post(MAPS, &map("stuck", 10)).code);
    wait_for("the stall", || (slow.disk.hanging() > 0).then_some(()));
    hub.signal("STOP");
    for _ in 0..2 {
        nodes.renew_each(A_FEW);
        thread::sleep(LOST / 2);
        assert_eq!(Nodes::ready(&mut slow_client), ["True"; Nodes::NODES], "marked while they renew");
    }
    hub.signal("CONT");
    slow.disk.hang_syncs(false);
    // its nodes were not heard, because the hub itself was stopped
    wait_for("the line about it", || frozen.log().contains("the hub stood still for ").then_some(()));
    assert_eq!(Nodes::ready(&mut client), ["True"; Nodes::NODES], "marked by a hub that stood still");
    frozen_nodes.renew_each(A_FEW);
    nodes.renew_each(A_FEW);
    thread::sleep(PASS);
    for client in [&mut client, &mut slow_client] {
        assert_eq!(Nodes::ready(client), ["True"; Nodes::NODES], "marked after the stall");
    }
    // the request gave up after 30 s, and its change was made all the same
    assert_eq!(stuck.join().unwrap(), 504);
    assert_eq!(names(&mut slow_client), ["stuck"]);
    hub.kill();
    other.kill();
    assert_eq!(names(&mut frozen.start().admin()), ["kept"]);
    assert_eq!(names(&mut slow.start().admin()), ["stuck"]);
}
