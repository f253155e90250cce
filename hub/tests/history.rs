//! Clients that read, write, patch, delete, list and watch at random while the hub is killed at random;
//! afterwards `history_check` judges their observations.
//!
//! Every run has some kills; `KEDGE_HISTORY_KILLS=120` is the long form, and `KEDGE_HISTORY_SEED` repeats a
//! run's choices (not its timing). The negative control is the same run over deliberately broken stores,
//! behind the same server: each must be caught, or the check proves nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod history_check;
mod server;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use history_check::{Record, violations};
use kedge_hub::store::sqlite::Sqlite;
use kedge_hub::store::{Change, Marks, Record as Stored, Spaces, Store, StoreError};
use kedge_rig::Random;
use kedge_rig::bad_disk::BadDisk;
use serde_json::{Value, json};
use server::{Client, Hub, scratch};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLIENTS: u64 = 4;
const WATCHERS: u64 = 2;
/// Objects that all clients write.
const SHARED: u64 = 5;
/// Kills, unless the environment sets another number; each costs about a fifth of a second.
const KILLS: u64 = 30;
/// Runs that end by a failed flush.
const FAILED_FLUSHES: u64 = 6;
/// Least number of records between start and kill; a random number is added.
const LEAST_RECORDS: usize = 40;
const MORE_RECORDS: u64 = 200;
/// Far longer than a run takes on a busy machine.
const LONGEST_RUN: Duration = Duration::from_secs(120);
/// The store that the child process runs on; not set in the test itself.
const BROKEN: &str = "KEDGE_HISTORY_STORE";
const DIRECTORY: &str = "KEDGE_HISTORY_DIRECTORY";

/// The observations of all clients, and the counter that orders them.
#[derive(Default)]
struct Notes {
    clock: AtomicU64,
    segments: AtomicU64,
    records: Mutex<Vec<Record>>,
    stop: AtomicBool,
}

impl Notes {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn add(&self, record: Record) {
        self.records.lock().unwrap().push(record);
    }

    fn count(&self) -> usize {
        self.records.lock().unwrap().len()
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

fn version(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Makes one request; `None` when the connection broke or the hub is stopping.
fn ask(client: &mut Client, method: &str, path: &str, media: &str, body: &Value) -> Option<(u16, Value)> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let reply = client.try_send(method, path, &[("content-type", media)], text.as_bytes()).ok()?;
    assert!(
        matches!(reply.code, 200 | 201 | 404 | 409 | 410 | 500 | 503 | 504),
        "{method} {path}: {reply:?}"
    );
    let value = reply.json();
    let open = value["message"].as_str().is_some_and(|text| text.contains("may or may not have been made"));
    assert!(reply.code != 500 || open, "{method} {path}: {value}");
    Some((reply.code, value)).filter(|(code, _)| !matches!(code, 500 | 503 | 504))
}

const JSON: &str = "application/json";

/// One random step of a client; `None` ends it.
fn step(
    client: &mut Client,
    random: &mut Random,
    notes: &Notes,
    own: &mut Vec<String>,
    id: &str,
) -> Option<()> {
    let name = format!("shared-{}", random.below(SHARED));
    let path = format!("{MAPS}/{name}");
    let started = notes.now();
    let wrote = |name: String, base: Option<u64>, answer: &Value| {
        notes.add(Record::Write { name, base, version: version(answer), started, ended: notes.now() });
    };
    match random.below(10) {
        0..=2 => {
            let (code, mut found) = ask(client, "GET", &path, JSON, &Value::Null)?;
            let seen = (code == 200).then(|| version(&found));
            notes.add(Record::Read { name: name.clone(), version: seen, started });
            let base = seen?;
            found["data"]["by"] = format!("{id}-{started}").into();
            let started = notes.now();
            let (code, answer) = ask(client, "PUT", &path, JSON, &found)?;
            if code == 200 {
                let ended = notes.now();
                notes.add(Record::Write {
                    name,
                    base: Some(base),
                    version: version(&answer),
                    started,
                    ended,
                });
            }
        }
        3..=5 => {
            let patch = json!({"data": {id: started.to_string()}});
            let (code, answer) = ask(client, "PATCH", &path, "application/merge-patch+json", &patch)?;
            assert_eq!(code, 200, "a patch that names no version meets no conflict: {answer}");
            wrote(name, None, &answer);
        }
        6 => {
            let name = format!("own-{id}-{started}");
            let (code, answer) = ask(client, "POST", MAPS, JSON, &json!({"metadata": {"name": name}}))?;
            if code == 201 {
                wrote(name.clone(), None, &answer);
                own.push(name);
            }
        }
        7 if !own.is_empty() => {
            let name = own.swap_remove(usize::try_from(random.below(own.len() as u64)).unwrap());
            let outcome = ask(client, "DELETE", &format!("{MAPS}/{name}"), JSON, &Value::Null);
            // without an answer it is unknown whether the object is gone: from now on nothing is claimed
            // about it
            let ended = if outcome.is_some() { notes.now() } else { u64::MAX };
            notes.add(Record::Deleted { name, started, ended });
            outcome?;
        }
        8 => {
            let (_, list) = ask(client, "GET", MAPS, JSON, &Value::Null)?;
            notes.add(listed(&list, started));
        }
        _ => {
            let (code, found) = ask(client, "GET", &path, JSON, &Value::Null)?;
            let version = (code == 200).then(|| version(&found));
            notes.add(Record::Read { name, version, started });
        }
    }
    Some(())
}

fn listed(list: &Value, started: u64) -> Record {
    let items = list["items"].as_array().unwrap();
    let item = |item: &Value| (item["metadata"]["name"].as_str().unwrap().to_owned(), version(item));
    Record::List { version: version(list), items: items.iter().map(item).collect(), started }
}

/// Watches from `resume` (version and segment), or lists first. Returns the point from which the next run
/// resumes.
fn watch(client: &mut Client, notes: &Notes, resume: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let (mut at, segment) = match resume {
        Some(resume) => resume,
        None => {
            let started = notes.now();
            let (_, list) = ask(client, "GET", MAPS, JSON, &Value::Null)?;
            notes.add(listed(&list, started));
            let segment = notes.segments.fetch_add(1, Ordering::SeqCst);
            notes.add(Record::WatchFrom { segment, version: version(&list) });
            (version(&list), segment)
        }
    };
    let path = format!("{MAPS}?watch=true&resourceVersion={at}");
    let mut watch = match client.try_watch(&path) {
        Ok(watch) => watch,
        Err(_) => return Some((at, segment)),
    };
    while notes.goes_on() {
        let Some(event) = watch.next() else { return Some((at, segment)) };
        // the hub has forgotten the changes in between: list again
        if event["type"] == "ERROR" {
            return None;
        }
        at = version(&event["object"]);
        let name = event["object"]["metadata"]["name"].as_str().unwrap().to_owned();
        notes.add(Record::Watched { segment, name, version: at });
    }
    Some((at, segment))
}

/// One run of the hub, ended by a kill or by `end`.
fn run_once(
    hub: Hub,
    end: &dyn Fn(Hub),
    random: &mut Random,
    notes: &Arc<Notes>,
    round: u64,
    resume: &mut Vec<Option<(u64, u64)>>,
) {
    notes.stop.store(false, Ordering::SeqCst);
    let mut admin = hub.admin();
    for number in 0..SHARED {
        let (name, started) = (format!("shared-{number}"), notes.now());
        let answer = ask(&mut admin, "POST", MAPS, JSON, &json!({"metadata": {"name": name}}));
        if let Some((201, answer)) = answer {
            notes.add(Record::Write {
                name,
                base: None,
                version: version(&answer),
                started,
                ended: notes.now(),
            });
        }
    }
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (mut client, notes) = (admin.another(), notes.clone());
            let mut random = Random::new(random.number());
            std::thread::spawn(move || {
                let (mut own, id) = (Vec::new(), format!("c{number}-r{round}"));
                while notes.goes_on() {
                    if step(&mut client, &mut random, &notes, &mut own, &id).is_none() {
                        // a broken connection, or an object that does not exist: the next step finds out
                        client = client.another();
                    }
                }
            })
        })
        .collect();
    let watchers: Vec<_> = std::mem::take(resume)
        .into_iter()
        .map(|resume| {
            let (mut client, notes) = (admin.another(), notes.clone());
            std::thread::spawn(move || {
                let mut resume = resume;
                while notes.goes_on() {
                    resume = watch(&mut client.another(), &notes, resume);
                    client = client.another();
                }
                resume
            })
        })
        .collect();
    // enough to happen in a run, however slow the machine is
    let enough = notes.count() + LEAST_RECORDS + usize::try_from(random.below(MORE_RECORDS)).unwrap();
    let until = Instant::now() + LONGEST_RUN;
    while notes.count() < enough {
        assert!(Instant::now() < until, "the hub hardly answers");
        std::thread::sleep(Duration::from_millis(2));
    }
    end(hub);
    notes.stop.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().unwrap());
    *resume = watchers.into_iter().map(|watcher| watcher.join().unwrap()).collect();
}

/// Runs hubs until `kills` hubs were killed; stops earlier when `caught`, called after each run, returns
/// true.
fn run(
    kills: u64,
    seed: u64,
    start: impl Fn() -> Hub,
    end: &dyn Fn(Hub),
    caught: impl Fn(&[Record]) -> bool,
) -> Vec<Record> {
    let notes = Arc::new(Notes::default());
    let mut random = Random::new(seed);
    let mut resume = vec![None; usize::try_from(WATCHERS).unwrap()];
    for round in 0..kills {
        run_once(start(), end, &mut random, &notes, round, &mut resume);
        let hub = start();
        let mut client = hub.admin();
        let started = notes.now();
        let list = client.get(MAPS).expect(200);
        notes.add(listed(&list, started));
        if caught(&notes.records.lock().unwrap()) {
            break;
        }
    }
    std::mem::take(&mut *notes.records.lock().unwrap())
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number in the environment"))
}

fn seed() -> u64 {
    let drawn = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64);
    number("KEDGE_HISTORY_SEED").unwrap_or_else(drawn)
}

#[test]
fn randomly_killed_hub_keeps_every_promise() {
    let (folder, seed) = (scratch(), seed());
    let kills = number("KEDGE_HISTORY_KILLS").unwrap_or(KILLS);
    let history = run(kills, seed, || Hub::start(folder.path()), &Hub::kill, |_| false);
    let count = |of: fn(&Record) -> bool| history.iter().filter(|record| of(record)).count();
    let writes = count(|record| matches!(record, Record::Write { .. }));
    let watched = count(|record| matches!(record, Record::Watched { .. }));
    println!(
        "seed {seed}: {kills} kills, {} records, {writes} acknowledged writes, {watched} watched",
        history.len()
    );
    assert!(writes as u64 > kills * 10 && watched as u64 > kills, "too little happened to prove anything");
    let found = violations(&history);
    assert!(
        found.is_empty(),
        "seed {seed}: {} violations, the first: {:#?}",
        found.len(),
        &found[..found.len().min(9)]
    );
}

/// The hub ends by itself because a flush failed, while its clients write; the answers that they got are
/// still true after its next start.
#[test]
fn failed_flushes_keep_every_promise() {
    let (folder, seed) = (scratch(), seed());
    let data = folder.path().join("data");
    let disk = BadDisk::new(folder.path(), Path::new(env!("CARGO_BIN_EXE_kedge-hub")), &data).unwrap();
    let start = || {
        let mut command = Command::new(disk.program());
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
        Hub::spawn(command, &data)
    };
    let end = |mut hub: Hub| {
        disk.fail_syncs(None);
        assert_eq!(hub.wait(), Some(1), "seed {seed}");
        disk.fail_syncs(Some(0));
    };
    let history = run(FAILED_FLUSHES, seed, start, &end, |_| false);
    let writes = history.iter().filter(|record| matches!(record, Record::Write { .. })).count();
    assert!(writes as u64 > FAILED_FLUSHES * 10, "{writes} writes prove nothing");
    let found = violations(&history);
    assert!(found.is_empty(), "seed {seed}: {} violations, for example {:#?}", found.len(), found.first());
}

/// A store that does not keep its promises.
struct BrokenStore {
    real: Sqlite,
    how: String,
    commits: u64,
}

impl Store for BrokenStore {
    fn load(&mut self, each: &mut dyn FnMut(Stored)) -> Result<Spaces<Marks>, StoreError> {
        if self.how != "goes-back" {
            return self.real.load(each);
        }
        let mut highest: u64 = 0;
        self.real.load(&mut |record| highest = highest.max(record.revision))?;
        // like a store that reserves nothing and loses the last revisions: it continues from the remaining
        // ones
        let found = highest.saturating_sub(20);
        self.real.load(&mut |record| each(Stored { revision: record.revision.min(found), ..record }))?;
        Ok(Spaces::both(Marks { reserved: found, clean: None }))
    }

    fn commit(&mut self, changes: &[Change<'_>], reserved: Option<Spaces<u64>>) -> Result<(), StoreError> {
        self.commits += 1;
        // like a disk that loses a flush now and then
        let forgets = self.how == "forgets" && self.commits > 12 && self.commits.is_multiple_of(5);
        let kept = if forgets { &[][..] } else { changes };
        self.real.commit(kept, reserved)
    }

    fn close(&mut self, revisions: Spaces<u64>) -> Result<(), StoreError> {
        self.real.close(revisions)
    }
}

/// Not a test: the hub over a broken store, in a process of its own so that it can be killed.
#[test]
#[ignore = "run by the negative control"]
fn broken_hub() {
    let (Ok(how), Some(directory)) = (std::env::var(BROKEN), std::env::var_os(DIRECTORY)) else { return };
    let directory = std::path::PathBuf::from(directory);
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(
        async {
            kedge_hub::pki::make_data_dir(&directory).unwrap();
            let store = BrokenStore { real: Sqlite::open(&directory).unwrap(), how, commits: 0 };
            let hub = kedge_hub::Hub::open_with(Box::new(store)).unwrap();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("https://{}", listener.local_addr().unwrap());
            let now = time::OffsetDateTime::now_utc();
            let pki = kedge_hub::pki::Pki::open(&directory, &["127.0.0.1".to_owned()], now).unwrap();
            let kubeconfig = pki.publish(&url, &url, now).unwrap();
            let tls = pki.server_config().unwrap();
            let machine = kedge_hub::capacity::Machine::read();
            let capacity = kedge_hub::capacity::Capacity::of(&machine);
            println!("\nlistening: {url}\nkubeconfig: {}", kubeconfig.display());
            let served = kedge_hub::server::serve(listener, tls, hub, capacity, std::future::pending()).await;
            served.unwrap();
        },
    );
}

#[test]
fn broken_store_is_caught() {
    for (how, promise) in [("forgets", "lost"), ("goes-back", "went back")] {
        let folder = scratch();
        let start = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["broken_hub", "--exact", "--ignored", "--nocapture"]);
            command.env(BROKEN, how).env(DIRECTORY, folder.path());
            Hub::spawn(command, folder.path())
        };
        let found =
            violations(&run(12, seed(), start, &Hub::kill, |history| !violations(history).is_empty()));
        println!("{how}: {} violations, for example {:?}", found.len(), found.first());
        assert!(!found.is_empty(), "a store that {how} was not caught: no {promise:?}");
    }
}
