//! Random histories of revocations, readmissions, certificates, assignments, backups and restores, by a hub
//! whose clock shows anything.
//!
//! Always holds, in each history and after a restore of each of its backups: no revoked credential is valid
//! again, and one that was issued after a readmission is valid. No node is moved to an older configuration
//! without a person. The model knows the credentials themselves; the product only what it wrote down.

use kedge_hub_core::identity::Identity;
use kedge_hub_core::identity::denied::{self, Change, DenyList};
use kedge_hub_core::restored::{self, Finding};
use serde_json::{Value, json};

const HISTORIES: u64 = 400;
const ACTS: usize = 50;
const NODES: [&str; 3] = ["edge-1", "edge-2", "edge-3"];
/// The times that the hub's clock may show at each read: now, 1970, a day behind, two years ahead, 2099.
const CLOCKS: [(i64, &str); 5] = [
    (1_796_000_000, "2026-11-30T00:00:00Z"),
    (7, "1970-01-01T00:00:07Z"),
    (1_795_900_000, "2026-11-29T00:00:00Z"),
    (1_859_000_000, "2028-11-28T00:00:00Z"),
    (4_080_000_000, "2099-04-16T00:00:00Z"),
];
/// As a restore raises the counter.
const RAISE: u64 = 1 << 32;

struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }
}

/// A credential, as the model knows it.
struct Credential {
    identity: Identity,
    node: usize,
    /// It was revoked, and no readmission changes that.
    is_dead: bool,
}

/// The content of the hub's directory.
#[derive(Clone)]
struct Directory {
    list: Value,
    counter: u64,
    /// The resourceVersion of each node's configuration.
    versions: [u64; 3],
}

struct World {
    random: Random,
    directory: Directory,
    credentials: Vec<Credential>,
    /// Whether each node is let in with new credentials.
    is_admitted: [bool; 3],
    /// The versions that the nodes run.
    runs: [u64; 3],
    next_version: u64,
    backups: Vec<Directory>,
}

impl World {
    fn new(seed: u64) -> World {
        let directory = Directory { list: denied::empty_list(), counter: 0, versions: [1; 3] };
        World {
            random: Random(seed),
            directory,
            credentials: Vec::new(),
            is_admitted: [true; 3],
            runs: [1; 3],
            next_version: 2,
            backups: Vec::new(),
        }
    }

    fn act(&mut self) {
        let node = self.random.below(NODES.len());
        let (seconds, time) = CLOCKS[self.random.below(CLOCKS.len())];
        match self.random.below(12) {
            0..=3 => self.issue(node, seconds),
            4 | 5 => {
                self.change(node, time, |change, list, node| change.revoke(list, node));
                self.is_admitted[node] = false;
                self.kill(node);
            }
            6 if !self.is_admitted[node] => {
                self.change(node, time, |change, list, node| change.readmit(list, node));
                self.is_admitted[node] = true;
            }
            7 if !self.is_admitted[node] => {
                self.change(node, time, |change, list, node| {
                    assert!(denied::lift(list, &format!("node.{node}"), change).is_some());
                });
                self.is_admitted[node] = true;
            }
            8 => {
                self.change(node, time, |change, list, node| change.decommission(list, node));
                self.is_admitted[node] = true;
                self.kill(node);
            }
            9 => {
                self.directory.versions[node] = self.next_version;
                self.runs[node] = self.next_version;
                self.next_version += 1;
            }
            10 => self.backups.push(self.directory.clone()),
            11 if !self.backups.is_empty() => {
                let chosen = self.random.below(self.backups.len());
                let restored = self.restored(&self.backups[chosen]);
                self.directory = restored;
                self.check_assignments();
                // a person accepts
                self.runs = self.directory.versions;
                self.next_version += 1_000;
            }
            _ => {}
        }
    }

    fn issue(&mut self, node: usize, seconds: i64) {
        self.directory.counter += 1;
        let user = format!("system:node:{}", NODES[node]);
        let issued = Some(seconds * 1_000_000);
        let identity =
            Identity { issue: self.directory.counter, issued, ..Identity::new(&user, &["system:nodes"]) };
        self.credentials.push(Credential { identity, node, is_dead: !self.is_admitted[node] });
    }

    fn change(&mut self, node: usize, time: &str, act: fn(&Change<'_>, &mut Value, &str)) {
        self.directory.counter += 1;
        let change = Change { by: "admin", time, issue: self.directory.counter, reason: "" };
        act(&change, &mut self.directory.list, NODES[node]);
    }

    fn kill(&mut self, node: usize) {
        for credential in self.credentials.iter_mut().filter(|credential| credential.node == node) {
            credential.is_dead = true;
        }
    }

    /// The directory after a restore of this backup.
    fn restored(&self, backup: &Directory) -> Directory {
        let mut list = backup.list.clone();
        denied::unite(&mut list, &self.directory.list);
        let counter = self.directory.counter.max(backup.counter) + RAISE;
        Directory { list, counter, versions: backup.versions }
    }

    fn check_credentials(&self, directory: &Directory, what: &str) {
        let list = DenyList::read(&directory.list);
        for Credential { identity, node, is_dead } in &self.credentials {
            let refusal = list.refusal(identity);
            let expect = *is_dead || !self.is_admitted[*node];
            assert_eq!(refusal.is_some(), expect, "{what}: {identity:?}: {refusal:?}\n{}", directory.list);
        }
    }

    /// No node takes an older configuration unasked.
    fn check_assignments(&self) {
        for (node, name) in NODES.iter().enumerate() {
            let source = json!({"namespace": "default", "name": name});
            let mut object =
                json!({"metadata": {"name": name}, "spec": {"configSource": {"configMap": source}}});
            assert!(restored::mark(&mut object, 1));
            let (runs, stored) = (self.runs[node], self.directory.versions[node]);
            assert_eq!(restored::judge(&object, None), Finding::Unknown);
            object["status"]["config"]["assigned"]["configMap"] = json!({"namespace": "default", "name": name, "uid": "u",
                "resourceVersion": runs.to_string()});
            let config_map = json!({"metadata": {"uid": "u", "resourceVersion": stored.to_string()}});
            let finding = restored::judge(&object, Some(&config_map));
            assert_eq!(matches!(finding, Finding::Conflict(_)), runs > stored, "{name}: {finding:?}");
        }
    }
}

#[test]
fn no_restore_makes_a_revoked_credential_valid() {
    let (mut restores, mut dead) = (0, 0);
    for seed in 0..HISTORIES {
        let mut world = World::new(seed);
        for step in 0..ACTS {
            world.act();
            world.check_credentials(&world.directory, &format!("seed {seed}, act {step}"));
        }
        for (number, backup) in world.backups.iter().enumerate() {
            let restored = world.restored(backup);
            world.check_credentials(&restored, &format!("seed {seed}, backup {number}"));
            restores += 1;
        }
        dead += world.credentials.iter().filter(|credential| credential.is_dead).count();
    }
    assert!(restores > 100 && dead > 100, "the histories must have something to check: {restores}, {dead}");
}
