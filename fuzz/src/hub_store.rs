//! The hub's data directory at a start: a damaged store, and records that the hub never wrote.
//!
//! The first byte chooses. `f`: the files of a good store with some bytes changed, cut or added: the store is
//! refused with advice, or it opens, every object can be read, and it opens again. `r`: records of any kind,
//! place and text, and any marks: a hub with them answers lists, watches and writes, and its versions are
//! never below a stored one.

use crate::Target;
use crate::input::{Input, sections};
use kedge_hub::Hub;
use kedge_hub::store::sqlite::Sqlite;
use kedge_hub::store::{Change, Marks, OpenError, Record, Spaces, Store, StoreError};
use kedge_hub_core::kinds::{CONFIG_MAP, KINDS};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

pub(crate) const TARGET: Target =
    Target { name: "hub_store", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 100 };

const WORDS: &[&str] = &[
    "configmaps",
    "nodes",
    "namespaces",
    "leases.coordination.k8s.io",
    "daemonsets.apps",
    "{\"metadata\":{\"name\":\"a\"}}",
    "\"namespace\":\"default\"",
    "\"resourceVersion\":\"7\"",
    "\"ownerReferences\":[{\"uid\":\"u\"}]",
    "\"deletionTimestamp\":\"2026-11-21T01:35:58Z\"",
    "\"finalizers\":[\"a/b\"]",
    "\"managedFields\":[{\"manager\":\"m\"}]",
    "\"labels\":{",
    "SQLite format 3\0",
    "\u{1e}",
];

/// The store's file and its log.
const FILES: [&str; 2] = ["state.db", "state.db-wal"];

fn seeds() -> Vec<Vec<u8>> {
    let records = |text: &str| [&[b'r', 7, 0, 0, 0, 9, 0, 0, 0][..], text.as_bytes()].concat();
    let node = "nodes\u{1e}\u{1e}edge-1\u{1e}\u{5}\u{1e}{\"metadata\":{\"name\":\"edge-1\"},\"spec\":{\"unschedulable\":true}}";
    let map = "configmaps\u{1e}default\u{1e}a\u{1e}\u{6}\u{1e}{\"metadata\":{\"name\":\"a\",\"namespace\":\"default\"},\"data\":{\"k\":\"v\"}}";
    vec![
        b"f".to_vec(),
        // one byte of the first page, and one of the log
        b"f\0\0\x12\x34\xff\x01\0\x20\x01\xee".to_vec(),
        // cut, and grown
        b"f\x02\0\x40\0\0\x03\0\0\0\0".to_vec(),
        b"f\0\0\0\0\0\0\0\0\x12\x63".to_vec(),
        records(node),
        records(map),
        records(&format!("{node}\n{map}")),
        records("nosuch\u{1e}\u{1e}a\u{1e}\u{1}\u{1e}{}"),
        records("nodes\u{1e}\u{1e}a\u{1e}\u{1}\u{1e}[]"),
    ]
}

fn run(data: &[u8]) {
    match data.split_first() {
        Some((b'r', rest)) => records(rest),
        Some((_, rest)) => files(rest),
        None => {}
    }
}

/// The files of a store with some objects after a crash: a part of them is in the log.
struct Template([Vec<u8>; 2]);

thread_local! {
    static TEMPLATE: Template = Template::new();
}

impl Template {
    fn new() -> Self {
        let folder = crate::scratch("hub-store-template");
        let mut store = Sqlite::open(folder.path()).expect("an empty folder is a place for a store");
        let put = |store: &mut Sqlite, resource: &str, namespace: &str, name: &str, revision: u64| {
            let object = json!({"metadata": {"name": name, "namespace": namespace, "uid": name,
                "resourceVersion": revision.to_string()}, "data": {"k": "v".repeat(200)}});
            let (json, namespace) = (object.to_string().into_bytes(), namespace);
            store
                .commit(
                    &[Change::Put { resource, namespace, name, revision, json: &json }],
                    Some(Spaces::both(1000)),
                )
                .expect("the scratch folder is ours");
        };
        for number in 0..20 {
            put(&mut store, "configmaps", "default", &format!("m{number}"), number + 2);
        }
        drop(store);
        let mut store = Sqlite::open(folder.path()).expect("it was made a moment ago");
        for number in 0..5 {
            put(&mut store, "nodes", "", &format!("n{number}"), number + 100);
        }
        // copied while it is open: the log has not been copied back into the file
        Self(FILES.map(|name| std::fs::read(folder.path().join(name)).expect("a store has both files")))
    }
}

fn files(data: &[u8]) {
    let folder = crate::scratch("hub-store");
    TEMPLATE.with(|template| {
        let mut contents = template.0.clone();
        let mut input = Input::new(data);
        while !input.is_empty() {
            let change = input.choice(4);
            let place = u32::from_be_bytes([0, input.byte(), input.byte(), input.byte()]) as usize;
            let with = input.byte();
            let content = &mut contents[usize::from(change & 1)];
            match change {
                0 | 1 => {
                    let place = place % content.len().max(1);
                    if let Some(byte) = content.get_mut(place) {
                        *byte ^= with;
                    }
                }
                2 => content.truncate(place),
                _ => content.resize((content.len() + usize::from(with) * 64).min(1 << 20), with),
            }
        }
        for (name, content) in FILES.iter().zip(&contents) {
            std::fs::write(folder.path().join(name), content).expect("the scratch folder is ours");
        }
    });
    let Some(first) = opened(folder.path()) else { return };
    let again = opened(folder.path()).expect("a store that opened and was closed in order opens again");
    assert!(again >= first, "versions went back from {first} to {again}");
}

/// Opens the store, reads every object, writes one and closes; the version after that. `None` if it was
/// refused.
fn opened(folder: &Path) -> Option<u64> {
    match Hub::open(folder) {
        Ok(hub) => Some(used(&hub)),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("store"), "{text}");
            assert!(!matches!(error, OpenError::Locked(_)), "{text}");
            None
        }
    }
}

/// Reads everything and writes once; the write must get a version above all stored ones.
fn used(hub: &Arc<Hub>) -> u64 {
    let mut highest = 0;
    for kind in KINDS {
        for object in hub.list(kind, "") {
            assert!(object.revision <= hub.revision(kind), "{} is newer than the list", object.revision);
            if !kind.is_renewed() {
                highest = highest.max(object.revision);
            }
            let value = object.value();
            (kind.cells)(&value, time::OffsetDateTime::UNIX_EPOCH);
            assert!(hub.get(kind, &object.namespace, &object.name).is_some(), "{value}");
        }
        drop(hub.subscribe(kind));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let map = json!({"metadata": {"name": "fuzz-made", "namespace": "default"}});
    let made = runtime.expect("a runtime needs only descriptors").block_on(hub.create(&CONFIG_MAP, map));
    // it may exist from the first call
    if let Ok(made) = made {
        assert!(made.revision > highest, "{} after {highest}", made.revision);
    }
    let revision = hub.revision(&CONFIG_MAP);
    assert!(revision >= highest, "{revision} is below {highest}");
    hub.close();
    revision
}

/// A store in memory with these records; it forgets all writes.
#[derive(Default)]
pub(crate) struct Preset {
    records: Vec<Record>,
    marks: Spaces<Marks>,
}

impl Store for Preset {
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Spaces<Marks>, StoreError> {
        self.records.drain(..).for_each(each);
        Ok(self.marks)
    }

    fn commit(&mut self, _: &[Change<'_>], _: Option<Spaces<u64>>) -> Result<(), StoreError> {
        Ok(())
    }

    fn close(&mut self, _: Spaces<u64>) -> Result<(), StoreError> {
        Ok(())
    }
}

fn records(data: &[u8]) {
    let mut input = Input::new(data);
    let mut mark =
        || u64::from_le_bytes([input.byte(), input.byte(), 0, 0, 0, 0, input.byte(), input.byte()]);
    let marks = Spaces::both(Marks { reserved: mark(), clean: Some(mark()).filter(|clean| *clean > 0) });
    let records = input
        .remainder()
        .split(|byte| *byte == b'\n')
        .map(|line| {
            let [resource, namespace, name, revision, json] = sections::<5>(line);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let revision = revision.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            Record {
                resource: text(resource),
                namespace: text(namespace),
                name: text(name),
                revision,
                json: json.to_vec(),
            }
        })
        .collect();
    match Hub::open_with(Box::new(Preset { records, marks })) {
        Ok(hub) => drop(used(&hub)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
