//! A join and a renewal on a disk whose power is cut at every operation, at an API server that signs.

use super::store::{Store, issued};
use crate::net::kubeconfig;
use kedge_core::identity::{By, Found, IdentityEvent, Key, Plan, Situation, Step, plan};
use kedge_platform::DurableFiles;
use kedge_platform::fake::{FakeDisk, Loss};
use kedge_rig::Scratch;
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const NODE: &str = "edge-1";
/// More steps than a join takes.
const MOST_STEPS: usize = 40;

/// Signs each request once, and keeps the certificates by the requests' names.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    issued: BTreeMap<String, String>,
    keys: Vec<Vec<u8>>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem, issued: BTreeMap::new(), keys: Vec::new() }
    }

    fn ask(&mut self, name: &str, request: &str) -> String {
        if let Some(pem) = self.issued.get(name) {
            return pem.clone();
        }
        let mut asked = CertificateSigningRequestParams::from_pem(request).unwrap();
        let number = u8::try_from(self.issued.len()).unwrap() + 1;
        asked.params.serial_number = Some(vec![number].into());
        asked.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let pem = asked.signed_by(&self.issuer).unwrap().pem();
        self.keys.push(rcgen::PublicKeyData::der_bytes(&asked.public_key).to_vec());
        self.issued.insert(name.to_owned(), pem.clone());
        pem
    }

    fn kubeconfig(&self, user: &str) -> String {
        use base64::Engine as _;
        let authority = base64::prelude::BASE64_STANDARD.encode(&self.pem);
        format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, cluster: {{server: \
             'https://hub:6443', proxy-url: 'http://me:a%40b@proxy:3128', certificate-authority-data: {authority}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    }
}

/// A node: its disk, and its facts.
struct Board {
    scratch: Scratch,
    disk: FakeDisk,
    authority: Authority,
    now: Situation,
    first: First,
}

/// The state of a board's first certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Valid,
    Due,
    Refused,
}

impl Board {
    fn new() -> Self {
        let authority = Authority::new();
        let scratch = Scratch::new("identity").unwrap();
        scratch.write("bootstrap", authority.kubeconfig("token: abcdef.0123456789abcdef"));
        let now = Situation { is_accepted: true, rotates: true, ..Situation::default() };
        Self { scratch, disk: FakeDisk::new(), authority, now, first: First::Valid }
    }

    fn store(&self) -> Store {
        Store {
            files: Arc::new(DurableFiles::tagged(self.disk.clone(), 1)),
            kubeconfig: Some(self.scratch.join("kubeconfig")),
            bootstrap: Some(self.scratch.join("bootstrap")),
            node_name: NODE.into(),
            renamed: None,
        }
    }

    fn look(&self) -> Found {
        let IdentityEvent::Found(found) = self.store().perform(Step::Look) else { panic!("it looks") };
        *found
    }

    /// Goes on as core does until there is nothing to do, or the power is cut. Returns the steps.
    fn run(&mut self) -> Vec<String> {
        let (store, mut steps) = (self.store(), Vec::new());
        self.now.issued = None;
        while !self.disk.is_off() {
            assert!(steps.len() < MOST_STEPS, "it comes to no end: {steps:?}");
            let IdentityEvent::Found(found) = store.perform(Step::Look) else { panic!("it looks") };
            if self.disk.is_off() {
                break;
            }
            assert_eq!(found.unread, None);
            let is_first = found.current.as_ref().is_none_or(|current| current.serial == "01");
            let first = if is_first { self.first } else { First::Valid };
            self.now.ran = if first == First::Due { u64::MAX } else { 0 };
            self.now.is_refused = first == First::Refused;
            match plan(&found, &self.now) {
                Plan::Step(step) => {
                    steps.push(
                        format!("{step:?}").chars().take_while(|char| char.is_alphanumeric()).collect(),
                    );
                    let IdentityEvent::Done(done) = store.perform(step) else { panic!("it writes") };
                    assert!(done.is_ok() || self.disk.is_off(), "{done:?}");
                }
                Plan::Ask(key, by) => {
                    steps.push(format!("Ask {key:?} by {by:?}"));
                    let IdentityEvent::Prepared(prepared) = store.perform(Step::Prepare(key, by)) else {
                        panic!("it prepares")
                    };
                    let Ok((name, request)) = prepared else { break };
                    let pem = self.authority.ask(&name, &request).into_bytes();
                    self.now.issued = Some((key, issued(&pem).unwrap(), pem));
                }
                _ => break,
            }
        }
        steps
    }

    fn check_at_rest(&self, certificates: usize) {
        let found = self.look();
        assert_eq!(found.damaged, [], "nothing is damaged by a cut");
        let current = found.current.expect("there is a certificate");
        let newest = self.authority.issued.len();
        assert_eq!(current.serial, format!("{newest:02x}"), "the newest is current");
        assert_eq!(found.next, None);
        assert_eq!(found.kept.len(), certificates);
        assert!(found.has_generated);
    }
}

/// Cuts the power at every operation of what `again` does, with every loss, and lets the node go on.
#[track_caller]
fn cut_everywhere(again: impl Fn(&mut Board), certificates: usize, keys: usize) {
    for at in 0.. {
        let mut is_over = false;
        for loss in Loss::all(3) {
            let mut board = Board::new();
            again(&mut board);
            let before = board.authority.keys.len();
            board.disk.cut_power_after(at);
            board.run();
            is_over = !board.disk.is_off();
            board.disk.reboot(loss);
            board.disk.heal();
            board.run();
            board.check_at_rest(certificates);
            let asked = board.authority.keys.len() - before;
            assert!(asked <= keys, "cut after {at} operations, {loss:?}: {asked} keys were asked about");
        }
        if is_over {
            assert!(at > 10, "there were operations to cut at");
            return;
        }
    }
}

#[test]
fn join_survives_a_cut_at_every_operation() {
    cut_everywhere(|_| {}, 1, 1);
}

#[test]
fn renewal_survives_a_cut_at_every_operation() {
    let due = |board: &mut Board| {
        board.run();
        board.first = First::Due;
    };
    cut_everywhere(due, 2, 1);
}

#[test]
fn return_survives_a_cut_at_every_operation() {
    let refused = |board: &mut Board| {
        board.run();
        board.first = First::Refused;
    };
    cut_everywhere(refused, 2, 1);
}

#[test]
fn refused_certificate_is_renewed_for_its_own_key() {
    let mut board = Board::new();
    board.run();
    board.first = First::Refused;
    assert_eq!(board.run(), ["Ask Current by Own", "Keep", "Point"]);
    assert_eq!(board.authority.keys[0], board.authority.keys[1]);
    board.check_at_rest(2);
}

#[test]
fn steps_of_a_join_are_in_their_order() {
    let mut board = Board::new();
    let steps = ["MakeKey", "Ask Next by Bootstrap", "WriteKubeconfig", "Keep", "Point", "RemoveKey"];
    assert_eq!(board.run(), steps);
    board.check_at_rest(1);
    assert!(board.run().is_empty(), "at rest");
    // the generated kubeconfig is one that can be used
    let files = board.store().files;
    let loaded =
        kubeconfig::load_with(Path::new("pki/kubeconfig"), &move |path, limit| files.read(path, limit));
    let loaded = loaded.unwrap();
    assert_eq!(loaded.server.url(), "https://hub:6443");
    assert_eq!(crate::node_name::of_kubeconfig(&loaded).as_deref(), Some(NODE));
    assert_eq!(loaded.proxy.unwrap().url(), "http://me:a%40b@proxy:3128");
}

#[test]
fn damaged_files_are_set_aside() {
    for name in ["next.key", "current", "kubeconfig", "node-01.pem", "running"] {
        let mut board = Board::new();
        board.run();
        let store = board.store();
        assert_eq!(store.perform(Step::SaveRunning("01".into(), 7)), IdentityEvent::Done(Ok(())));
        assert_eq!(board.look().running, Some(("01".into(), 7)));
        if name == "next.key" {
            store.perform(Step::MakeKey);
        }
        let path = Path::new("pki").join(name);
        assert!(board.disk.damage(&path, |content| *content.last_mut().unwrap() ^= 1), "{name}");
        let steps = board.run();
        assert_eq!(steps.first().map(String::as_str), Some("SetAside"), "{name}");
        let found = board.look();
        assert_eq!(found.damaged, [], "{name}");
        assert!(found.current.is_some() && found.has_generated, "{name}: {steps:?}");
        assert!(board.disk.paths().contains(&Path::new("pki").join(format!("{name}.corrupt-1"))), "{name}");
    }
}

#[test]
fn same_request_has_the_same_name() {
    let board = Board::new();
    let store = board.store();
    store.perform(Step::MakeKey);
    let name = |by| match store.perform(Step::Prepare(Key::Next, by)) {
        IdentityEvent::Prepared(Ok((name, _))) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(name(By::Bootstrap), name(By::Bootstrap));
    assert_eq!(name(By::Bootstrap).len(), "node-csr-".len() + 40);
    // a request of another requester is another one
    assert_ne!(name(By::Bootstrap), name(By::Own));
}

#[test]
fn certificate_of_another_node_is_not_used() {
    let mut board = Board::new();
    board.run();
    let other = Store { node_name: "edge-2".into(), ..board.store() };
    let IdentityEvent::Found(found) = other.perform(Step::Look) else { panic!("it looks") };
    assert_eq!(found.current, None);
}
