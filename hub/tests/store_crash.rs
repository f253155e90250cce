//! The hub killed in the middle of writes, again and again: nothing acknowledged is lost, no version goes
//! back.
//!
//! Four clients create and update ConfigMaps over TLS and note every answer; the process is killed without
//! warning and started again on the same directory. A renewal of a Lease alone may be lost, but never its
//! Lease. A directory of an older hub, whose first start under this one is killed at various moments, still
//! has all its objects unchanged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod server;

use std::collections::HashMap;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Client, Hub, scratch};

/// Kills in one run; each costs about a third of a second.
const KILLS: usize = 6;
const CLIENTS: usize = 4;
/// Time between start and kill.
const ALIVE: Duration = Duration::from_millis(250);

/// The last acknowledged content and version of each object.
type Acknowledged = HashMap<String, (u64, u64)>;

fn version(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Writes one step of a client's own objects; the answer is noted only if it was read completely.
fn step(client: &mut Client, name: &str, count: u64, known: bool) -> Option<u64> {
    let value = json!({"metadata": {"name": name}, "data": {"count": count.to_string()}});
    let json = [("content-type", "application/json")];
    let body = value.to_string();
    let reply = match known {
        false => client.try_send("POST", MAPS, &json, body.as_bytes()),
        true => client.try_send("PUT", &format!("{MAPS}/{name}"), &json, body.as_bytes()),
    };
    let reply = reply.ok()?;
    assert!(matches!(reply.code, 200 | 201 | 409 | 503), "{}", String::from_utf8_lossy(&reply.body));
    // a create of the previous run may have been made although its answer was lost
    if reply.code > 201 { None } else { Some(version(&reply.json())) }
}

fn run_client(
    mut client: Client,
    own: usize,
    acknowledged: &Mutex<Acknowledged>,
    stop: &AtomicBool,
    round: usize,
) {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let name = format!("c{own}-r{round}-{}", count % 5);
        let known = acknowledged.lock().unwrap().contains_key(&name);
        match step(&mut client, &name, count, known) {
            Some(version) => drop(acknowledged.lock().unwrap().insert(name, (count, version))),
            None => return,
        }
    }
}

fn check(hub: &Hub, acknowledged: &Acknowledged) -> u64 {
    let list = hub.admin().get(MAPS).expect(200);
    let found: HashMap<&str, &Value> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["metadata"]["name"].as_str().unwrap(), item))
        .collect();
    for (name, (count, at)) in acknowledged {
        let item =
            found.get(name.as_str()).unwrap_or_else(|| panic!("{name} was acknowledged at {at} and is gone"));
        let stored: u64 = item["data"]["count"].as_str().unwrap().parse().unwrap();
        // one write may have been made whose answer never arrived
        assert!(stored == *count || stored == count + 5, "{name}: acknowledged {count}, found {stored}");
        assert!(version(item) >= *at, "{name}: acknowledged version {at}, found {}", version(item));
    }
    version(&list)
}

#[test]
fn killed_hub_loses_nothing_acknowledged() {
    let folder = scratch();
    let acknowledged = Arc::new(Mutex::new(Acknowledged::new()));
    let mut highest = 0;
    for round in 0..KILLS {
        let hub = Hub::start(folder.path());
        let now = check(&hub, &acknowledged.lock().unwrap());
        assert!(now >= highest, "the list's version went back from {highest} to {now}");
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|own| {
                let (client, acknowledged, stop) = (hub.admin(), acknowledged.clone(), stop.clone());
                std::thread::spawn(move || run_client(client, own, &acknowledged, &stop, round))
            })
            .collect();
        let until = Instant::now() + ALIVE;
        while Instant::now() < until {
            std::thread::yield_now();
        }
        hub.kill();
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
        let acknowledged = acknowledged.lock().unwrap();
        highest = acknowledged.values().map(|(_, version)| *version).max().unwrap_or(highest).max(highest);
        assert!(acknowledged.len() > round, "no write was acknowledged in round {round}");
    }
    check(&Hub::start(folder.path()), &acknowledged.lock().unwrap());
}

#[test]
fn lost_renewal_keeps_lease_and_versions() {
    let folder = scratch();
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
    let lease = |renewed: u32, version: &str| {
        json!({"metadata": {"name": "n", "resourceVersion": version},
            "spec": {"holderIdentity": "n", "renewTime": format!("2026-01-01T00:00:{renewed:02}.000000Z")}})
    };
    let hub = Hub::start(folder.path());
    let mut client = hub.admin();
    let mut last = client.put(path, &lease(0, "")).expect(201);
    for renewed in 1..20 {
        let now = last["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        last = client.put(path, &lease(renewed, &now)).expect(200);
    }
    hub.kill();
    let hub = Hub::start(folder.path());
    let mut client = hub.admin();
    let found = client.get(path).expect(200);
    assert_eq!(found["spec"]["holderIdentity"], "n");
    let now = found["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let renewed = client.put(path, &lease(30, &now)).expect(200);
    assert!(version(&renewed) > version(&last), "a version was handed out twice");
    // a clean stop loses nothing at all
    hub.terminate();
    let found = Hub::start(folder.path()).admin().get(path).expect(200);
    assert_eq!(found["spec"]["renewTime"], "2026-01-01T00:00:30.000000Z");
    assert_eq!(version(&found), version(&renewed));
}

/// Converts the store back to version 1, with that version's own statements.
fn turn_back(data_dir: &std::path::Path) {
    let store = rusqlite::Connection::open(data_dir.join("state.db")).unwrap();
    let statements = "BEGIN; ALTER TABLE objects RENAME TO present;
        CREATE TABLE objects (
            resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
            revision INTEGER NOT NULL, json BLOB NOT NULL,
            PRIMARY KEY (resource, namespace, name)
        ) WITHOUT ROWID;
        INSERT INTO objects SELECT resource, namespace, name, revision, json FROM present;
        DROP TABLE present; DELETE FROM meta WHERE key LIKE 'lease-%' OR key = 'id';
        UPDATE meta SET value = 1 WHERE key = 'schema'; COMMIT;";
    store.execute_batch(statements).unwrap();
    forget_marker(data_dir);
}

/// Hubs of those versions had no marker.
fn forget_marker(data_dir: &std::path::Path) {
    std::fs::remove_file(data_dir.join("pki/store-marker")).unwrap();
}

/// The same for version 2, in which all kinds shared one space of revisions.
fn turn_back_to_2(store: &std::path::Path) {
    let content = std::fs::read(store).unwrap();
    if let Some(end) = content.windows(6).rposition(|window| window == b"sha256") {
        // removes the last line of a backup, which that version did not have
        std::fs::write(store, &content[..end - "\nkedge-hub backup ".len()]).unwrap();
    }
    let store = rusqlite::Connection::open(store).unwrap();
    let statements = "BEGIN;
        UPDATE meta SET value = (SELECT max(value) FROM meta WHERE key LIKE '%reserved') WHERE key = 'reserved';
        DELETE FROM meta WHERE key LIKE 'lease-%' OR key IN ('clean', 'id');
        ALTER TABLE objects DROP COLUMN sum;
        UPDATE meta SET value = 2 WHERE key = 'schema'; COMMIT;";
    store.execute_batch(statements).unwrap();
}

#[test]
fn store_and_backup_of_version_2_go_on() {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let folder = scratch();
    let [data, empty, backup] = ["data", "empty", "backup"].map(|name| folder.path().join(name));
    let hub = Hub::start(&data);
    let mut client = hub.admin();
    client.post(MAPS, &json!({"metadata": {"name": "m"}, "data": {"a": "b"}})).expect(201);
    let lease = json!({"metadata": {"name": "n"}, "spec": {"holderIdentity": "n"}});
    client.post(LEASES, &lease).expect(201);
    let before = [MAPS, LEASES].map(|kind| client.get(kind).expect(200));
    drop(client);
    assert_eq!(hub.command(&["backup", backup.to_str().unwrap()]).code, Some(0));
    hub.kill();
    turn_back_to_2(&data.join("state.db"));
    forget_marker(&data);
    turn_back_to_2(&backup);
    let mut restore = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
    restore.arg("restore").arg(&backup).arg("--data-dir").arg(&empty);
    let restored = server::run(restore, "");
    assert_eq!(restored.code, Some(0), "{}", restored.err);
    let reserved = |data: &std::path::Path| {
        let store = rusqlite::Connection::open(data.join("state.db")).unwrap();
        let sql = "SELECT value FROM meta WHERE key = 'reserved'";
        store.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap().cast_unsigned()
    };
    for data in [&data, &empty] {
        let reserved = reserved(data);
        let hub = Hub::start(data);
        let mut client = hub.admin();
        for (kind, before) in [MAPS, LEASES].into_iter().zip(&before) {
            let after = client.get(kind).expect(200);
            assert_eq!(after["items"], before["items"], "{kind} in {}", data.display());
            // it is unknown which of the versions below were handed out, in either space
            assert!(version(&after) >= reserved, "{kind} in {}", data.display());
        }
        let renewal = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
        assert!(version(&client.patch("merge", &format!("{LEASES}/n"), &renewal).expect(200)) > reserved);
        assert!(
            version(&client.put(&format!("{MAPS}/m"), &json!({"metadata": {"name": "m"}})).expect(200))
                > reserved
        );
    }
}

#[test]
fn upgrade_survives_killed_first_starts() {
    let folder = scratch();
    let hub = Hub::start(folder.path());
    let mut client = hub.admin();
    for number in 0..100 {
        let text = "x".repeat(if number % 10 == 0 { 20_000 } else { 100 + number });
        let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"text": text}});
        client.post(MAPS, &map).expect(201);
    }
    let before = client.get(MAPS).expect(200);
    drop(client);
    hub.kill();
    turn_back(folder.path());
    for kill in 0..KILLS {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut starting = command.spawn().unwrap();
        // at any point of the upgrade: each state in between has a unit test of the store
        let until = Instant::now() + Duration::from_millis(15 * kill as u64);
        while Instant::now() < until {
            std::thread::yield_now();
        }
        starting.kill().unwrap();
        starting.wait().unwrap();
    }
    let hub = Hub::start(folder.path());
    let mut client = hub.admin();
    let after = client.get(MAPS).expect(200);
    assert_eq!(after["items"], before["items"]);
    assert!(version(&after) >= version(&before), "the list's version went back");
    let made = client.post(MAPS, &json!({"metadata": {"name": "new"}})).expect(201);
    assert!(version(&made) > version(&before), "a version was handed out twice");
}

#[test]
fn long_start_extends_the_systemd_timeout() {
    let folder = scratch();
    Hub::start(folder.path()).terminate();
    let name = format!("kedge-store-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let messages_of_a_start = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path());
        command.env("NOTIFY_SOCKET", format!("@{name}"));
        let hub = Hub::spawn(command, folder.path());
        let mut messages = Vec::new();
        while !messages.last().is_some_and(|last: &String| last.contains("READY=1")) {
            let mut buffer = [0; 256];
            let length = socket.recv(&mut buffer).unwrap();
            messages.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        hub.kill();
        messages
    };
    let asked = |seconds: u64| {
        let messages = messages_of_a_start();
        let expect = format!("EXTEND_TIMEOUT_USEC={seconds}000000");
        assert_eq!((messages.len(), messages[0].trim_end()), (2, &*expect), "{messages:?}");
    };
    assert_eq!(messages_of_a_start().len(), 1);
    turn_back(folder.path());
    asked(120);
    assert_eq!(messages_of_a_start().len(), 1);
    let store = || rusqlite::Connection::open(folder.path().join("state.db")).unwrap();
    let filled =
        |mib: usize| format!("CREATE TABLE x (y); INSERT INTO x VALUES (zeroblob({mib} * 1048576));");
    // unused pages to be given back
    store().execute_batch(&format!("{} DROP TABLE x;", filled(20))).unwrap();
    asked(120 + 20);
    assert_eq!(messages_of_a_start().len(), 1);
    // much data to read
    store().execute_batch(&filled(66)).unwrap();
    asked(120 + 33);
}
