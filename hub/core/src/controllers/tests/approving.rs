//! Requests for certificates from their creation to their approval, also with the hub killed between any two
//! writes.

use std::collections::VecDeque;

use kedge_api::NODE_SIGNER;
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};

use super::super::approving::{AWAITING, Approving, EXPIRED_MAY_RENEW};
use super::super::controller::Controller;
use super::Hub;
use crate::identity::bootstrap_token::{BootstrapToken, Names, RANDOM_BYTES};
use crate::identity::certificate_request::tests::node_pem;
use crate::identity::credential::{Newest, Record, key_id};
use crate::identity::{EXPIRED_SINCE, ISSUE_NUMBER, Identity, PUBLIC_KEY};
use crate::kinds::certificate_request::stamp_requester;
use crate::kinds::{CERTIFICATE_REQUEST, CREDENTIAL, EVENT, NAMESPACE, NODE, SECRET, schema};
use crate::requests::Propagation;
use crate::value::condition;

struct Stage {
    hub: Hub,
    controller: Approving,
    requests: u32,
}

/// Time of the certificates' expiry, a day before the hub's clock.
const EXPIRED: i64 = 1_795_176_000 - 86_400;

impl Stage {
    fn new() -> Stage {
        let mut hub = Hub::new();
        hub.create(&NAMESPACE, json!({"metadata": {"name": "kube-system"}}));
        hub.create(&NAMESPACE, json!({"metadata": {"name": "default"}}));
        Stage { hub, controller: Approving::new(EXPIRED_MAY_RENEW), requests: 0 }
    }

    /// Beside an API server that has no table of credentials.
    fn elsewhere() -> Stage {
        Stage { controller: Approving::elsewhere(), ..Stage::new() }
    }

    /// A token; returns the identity that it proves, and the name of its Secret.
    fn token(&mut self, names: &str, uses: Option<u32>, approve: bool) -> (Identity, String) {
        self.requests += 1;
        let mut random = [0; RANDOM_BYTES];
        random.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
        random[0] = u8::try_from(self.requests).unwrap();
        let mut token = BootstrapToken::new(&random, Names::parse(names).unwrap()).unwrap();
        (token.uses, token.approve) = (uses, approve);
        self.hub.create(&SECRET, token.to_secret());
        (token.identity(), crate::identity::bootstrap_token::secret_name(&token.id))
    }

    fn uses(&self, secret: &str) -> Option<u32> {
        BootstrapToken::from_secret(&self.hub.value(&SECRET, "kube-system", secret)).unwrap().uses
    }

    fn ask(&mut self, by: &Identity, node: &str, key: &KeyPair) -> String {
        self.requests += 1;
        let name = format!("r-{}", self.requests);
        let request = schema::base64_encode(node_pem(node, key).as_bytes());
        let mut value = json!({"metadata": {"name": name}, "spec": {"request": request, "signerName": NODE_SIGNER,
            "usages": ["client auth", "digital signature"]}});
        stamp_requester(&mut value, by);
        self.hub.create(&CERTIFICATE_REQUEST, value);
        name
    }

    fn run(&mut self) {
        self.hub.run(&mut self.controller);
    }

    /// `Approved Joins`, `AwaitingApproval NameTaken`, or nothing.
    fn shown(&self, request: &str) -> String {
        let value = self.hub.value(&CERTIFICATE_REQUEST, "", request);
        let of = |sort| {
            let condition = condition(&value["status"], sort)?;
            Some(format!("{sort} {}", condition["reason"].as_str().unwrap()))
        };
        [of("Approved"), of(AWAITING)].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn record(&self, node: &str) -> Record {
        Record::read(&self.hub.value(&CREDENTIAL, "", node))
    }

    /// As the signing controller does.
    fn issue(&mut self, node: &str, key: &KeyPair, issue: u64, not_after: i64) {
        let mut record = self.record(node);
        record.take(Newest { issue, not_after, key: id(key) });
        if self.hub.value(&CREDENTIAL, "", node).is_null() {
            self.hub.create(&CREDENTIAL, json!({"metadata": {"name": node}}));
        }
        self.hub.edit(&CREDENTIAL, "", node, |stored| record.write(stored));
    }

    fn events(&self) -> Vec<String> {
        let events = self.hub.names(&EVENT);
        let events =
            events.iter().map(|name| self.hub.value(&EVENT, "default", name.trim_start_matches("default/")));
        events
            .map(|event| format!("{} {}", event["involvedObject"]["name"], event["reason"]).replace('"', ""))
            .collect()
    }
}

fn id(key: &KeyPair) -> String {
    key_id(&key.subject_public_key_info())
}

fn key() -> KeyPair {
    KeyPair::generate().unwrap()
}

/// A node with a certificate of this key and number.
fn node(name: &str, key: &KeyPair, issue: u64) -> Identity {
    let node = Identity::new(&format!("system:node:{name}"), &["system:nodes", "system:authenticated"]);
    Identity { key: id(key).into(), issue, not_after: Some(EXPIRED), ..node }
}

#[test]
fn token_joins_its_node_once() {
    let mut stage = Stage::new();
    let (token, secret) = stage.token("a", Some(1), false);
    let (first, second) = (key(), key());
    let asked = stage.ask(&token, "a", &first);
    stage.run();
    assert_eq!((&*stage.shown(&asked), stage.uses(&secret)), ("Approved Joins", Some(0)));
    let record = stage.record("a");
    assert_eq!((record.newest, record.pending), (None, id(&first)));
    assert_eq!(token.bootstrap_token(), Some(&*record.payment.token));
    // the same key, before the certificate was signed and after that
    for round in 0..2 {
        let again = stage.ask(&token, "a", &first);
        stage.run();
        let expect = if round == 0 { "Approved Joins" } else { "Approved SameKey" };
        assert_eq!((&*stage.shown(&again), stage.uses(&secret)), (expect, Some(0)));
        stage.issue("a", &first, 5, i64::MAX);
    }
    // a thief of the token
    let other = stage.ask(&token, "a", &second);
    let foreign = stage.ask(&token, "b", &second);
    stage.run();
    assert_eq!(stage.shown(&other), "AwaitingApproval NameTaken");
    assert_eq!(stage.shown(&foreign), "AwaitingApproval OtherName");
    assert_eq!(stage.events(), ["a NameTaken"]);
    let revision = stage.hub.index.revision();
    stage.run();
    assert_eq!(stage.hub.index.revision(), revision, "it is marked once");
}

#[test]
fn only_the_first_key_gets_a_name() {
    let mut stage = Stage::new();
    let tokens = [stage.token("a", Some(1), false), stage.token("a*", None, true)];
    let asked: Vec<String> = tokens.iter().map(|(token, _)| stage.ask(token, "a", &key())).collect();
    stage.run();
    let shown: Vec<String> = asked.iter().map(|name| stage.shown(name)).collect();
    assert_eq!(shown, ["Approved Joins", "AwaitingApproval NameTaken"]);
}

#[test]
fn token_counts_each_node_and_stops_at_its_uses() {
    let mut stage = Stage::new();
    let (token, secret) = stage.token("edge-*", Some(2), true);
    let asked: Vec<String> =
        (1..4).map(|number| stage.ask(&token, &format!("edge-{number}"), &key())).collect();
    stage.run();
    let shown: Vec<String> = asked.iter().map(|name| stage.shown(name)).collect();
    assert_eq!(shown, ["Approved Joins", "Approved Joins", "AwaitingApproval TokenSpent"]);
    assert_eq!(stage.uses(&secret), Some(0));
    let (token, _) = stage.token("*", None, false);
    let asked = stage.ask(&token, "x", &key());
    stage.run();
    assert_eq!(stage.shown(&asked), "AwaitingApproval TokenNeedsPerson");
}

/// A holder of a token for one machine requests many names at once: it reserves only the one that it pays
/// for.
#[test]
fn spent_token_holds_no_name_that_it_did_not_pay_for() {
    let mut stage = Stage::new();
    let (thief, _) = stage.token("edge-*", Some(1), true);
    let names = ["edge-1", "edge-2", "edge-3"];
    let asked = names.map(|name| stage.ask(&thief, name, &key()));
    stage.run();
    let shown = asked.clone().map(|name| stage.shown(&name));
    let held = shown.iter().position(|shown| shown == "Approved Joins").unwrap();
    assert_eq!(shown.iter().filter(|shown| *shown == "AwaitingApproval TokenSpent").count(), 2, "{shown:?}");
    for (place, name) in names.iter().enumerate() {
        let (token, _) = stage.token(name, Some(1), false);
        let own = stage.ask(&token, name, &key());
        stage.run();
        let expect = if place == held { "AwaitingApproval NameTaken" } else { "Approved Joins" };
        assert_eq!(stage.shown(&own), expect, "{name}");
        // and the key of the first token gets it no more
        stage.run();
        if place != held {
            assert_eq!(stage.shown(&asked[place]), "AwaitingApproval NameTaken", "{name}");
        }
    }
}

#[test]
fn approval_by_a_person_uses_the_token() {
    let mut stage = Stage::new();
    let (token, secret) = stage.token("edge-*", Some(2), false);
    let asked = ["edge-1", "edge-2", "edge-3"].map(|name| stage.ask(&token, name, &key()));
    stage.run();
    for (request, left) in asked.iter().zip([1, 0, 0]) {
        let approval = json!({"type": "Approved", "status": "True", "reason": "Seen"});
        stage.hub.edit(&CERTIFICATE_REQUEST, "", request, |found| {
            found["status"]["conditions"] = json!([approval]);
        });
        for _ in 0..2 {
            stage.run();
            assert_eq!(stage.uses(&secret), Some(left), "{request}");
        }
    }
    // one that needs no person is not counted here: the key has been paid for
    let (token, secret) = stage.token("a", Some(5), false);
    let own = key();
    stage.ask(&token, "a", &own);
    stage.run();
    stage.issue("a", &own, 5, i64::MAX);
    let again = stage.ask(&token, "a", &own);
    stage.run();
    assert_eq!((&*stage.shown(&again), stage.uses(&secret)), ("Approved SameKey", Some(4)));
}

/// A caller that may impersonate users takes on a token's name, without its group.
#[test]
fn name_of_a_token_without_its_group_is_no_token() {
    let mut stage = Stage::new();
    let (token, secret) = stage.token("a", Some(1), false);
    let asked = stage.ask(&Identity::new(&token.user, &["system:authenticated"]), "a", &key());
    stage.run();
    assert_eq!((&*stage.shown(&asked), stage.uses(&secret)), ("AwaitingApproval NotByItself", Some(1)));
}

#[test]
fn live_node_renews_and_expired_one_returns() {
    let mut stage = Stage::new();
    let (old, newest) = (key(), key());
    stage.hub.create(&NODE, json!({"metadata": {"name": "a"}}));
    stage.issue("a", &newest, 7, EXPIRED);
    let live = stage.ask(&node("a", &old, 6), "a", &key());
    stage.run();
    assert_eq!(stage.shown(&live), "Approved Renews");
    let returning = |key: &KeyPair, issue: u64| node("a", key, issue).returning().unwrap();
    assert!(returning(&old, 6).extra().contains_key(EXPIRED_SINCE));
    for (by, key, expect) in [
        (returning(&old, 6), &old, "AwaitingApproval ReturnedWithOlderKey"),
        (returning(&old, 6), &newest, "AwaitingApproval ReturnedWithOlderKey"),
        // a certificate that nobody knows of: an older copy of the hub's directory
        (returning(&old, 8), &old, "AwaitingApproval ReturnedWithOlderKey"),
        (returning(&newest, 7), &old, "AwaitingApproval ReturnedWithNewKey"),
        (returning(&newest, 7), &newest, "Approved ReturnedAfter"),
    ] {
        let asked = stage.ask(&by, "a", key);
        stage.run();
        assert_eq!(stage.shown(&asked), expect, "{by:?}");
    }
    let mut events = stage.events();
    events.dedup();
    assert!(
        events.contains(&"a ReturnedAfter".to_owned())
            && events.contains(&"a ReturnedWithOlderKey".to_owned())
    );
    for by in [node("a", &newest, 7), returning(&newest, 7)] {
        let other = stage.ask(&by, "b", &newest);
        stage.run();
        assert_eq!(stage.shown(&other), "AwaitingApproval OtherName");
    }
    assert_eq!(node("a", &old, 6).extra()[PUBLIC_KEY], [id(&old)]);
    assert_eq!(node("a", &old, 6).extra()[ISSUE_NUMBER], ["6"]);
}

#[test]
fn age_counts_only_while_the_clock_is_right() {
    let mut stage = Stage::new();
    let key = key();
    stage.hub.create(&NODE, json!({"metadata": {"name": "a"}}));
    stage.issue("a", &key, 7, EXPIRED);
    stage.hub.wall += EXPIRED_MAY_RENEW + time::Duration::DAY;
    let late = stage.ask(&node("a", &key, 7).returning().unwrap(), "a", &key);
    stage.run();
    assert_eq!(stage.shown(&late), "AwaitingApproval ExpiredTooLong");
    // the clock turns out to be wrong
    let now = super::Now { right: false, ages: false, ..stage.hub.now(1) };
    stage.controller.sweep(&stage.hub.index);
    let mut tasks = VecDeque::from(stage.controller.reconcile(&stage.hub.index, now).tasks);
    while let Some(task) = tasks.pop_front() {
        tasks.extend(stage.hub.act(&mut stage.controller, task, now));
    }
    assert_eq!(stage.shown(&late), "Approved ReturnedAfter");
}

#[test]
fn denied_or_unknown_requester_waits_for_a_person() {
    let mut stage = Stage::new();
    let key = key();
    let list =
        json!({"metadata": {"name": "kedge-denied", "namespace": "kube-system"}, "data": {"node.a": ""}});
    stage.hub.create(&crate::kinds::CONFIG_MAP, list);
    let (token, secret) = stage.token("a", Some(1), false);
    for by in [token, node("a", &key, 1), node("a", &key, 1).returning().unwrap()] {
        let asked = stage.ask(&by, "a", &key);
        stage.run();
        assert_eq!(stage.shown(&asked), "AwaitingApproval Denied", "{by:?}");
    }
    assert_eq!(stage.uses(&secret), Some(1));
    let admin = stage.ask(&Identity::new("admin", &["system:masters"]), "b", &key);
    stage.run();
    assert_eq!(stage.shown(&admin), "AwaitingApproval NotByItself");
}

/// Whatever it was doing: the same request is approved by its use, and no other one.
#[test]
fn killed_hub_uses_a_token_once() {
    for killed_after in 0..4 {
        let mut stage = Stage::new();
        let (token, secret) = stage.token("edge-*", Some(2), true);
        let asked = stage.ask(&token, "edge-1", &key());
        let now = stage.hub.now(0);
        stage.controller.sweep(&stage.hub.index);
        let mut tasks = VecDeque::from(stage.controller.reconcile(&stage.hub.index, now).tasks);
        for _ in 0..killed_after {
            if let Some(task) = tasks.pop_front() {
                tasks.extend(stage.hub.act(&mut stage.controller, task, now));
            }
        }
        stage.controller = Approving::new(EXPIRED_MAY_RENEW);
        stage.run();
        assert_eq!(
            (&*stage.shown(&asked), stage.uses(&secret)),
            ("Approved Joins", Some(1)),
            "killed after {killed_after} writes"
        );
    }
}

/// The rows that another API server has the data for, and each time the process is killed in between.
#[test]
fn approved_requests_stand_for_the_table_elsewhere() {
    for killed_after in 0..4 {
        let mut stage = Stage::elsewhere();
        let (token, secret) = stage.token("edge-*", Some(2), true);
        let (first, second) = (key(), key());
        let asked = stage.ask(&token, "edge-1", &first);
        let now = stage.hub.now(0);
        stage.controller.sweep(&stage.hub.index);
        let mut tasks = VecDeque::from(stage.controller.reconcile(&stage.hub.index, now).tasks);
        for _ in 0..killed_after {
            if let Some(task) = tasks.pop_front() {
                tasks.extend(stage.hub.act(&mut stage.controller, task, now));
            }
        }
        stage.controller = Approving::elsewhere();
        stage.run();
        assert_eq!((&*stage.shown(&asked), stage.uses(&secret)), ("Approved Joins", Some(1)));
        assert!(stage.hub.names(&CREDENTIAL).is_empty(), "there is no such kind elsewhere");
        // the same key again, another key, and the name of another node
        for (node, key, expect, left) in [
            ("edge-1", &first, "Approved SameKey", 1),
            ("edge-1", &second, "AwaitingApproval NameTaken", 1),
            ("other", &second, "AwaitingApproval OtherName", 1),
            ("edge-2", &second, "Approved Joins", 0),
            ("edge-3", &second, "AwaitingApproval TokenSpent", 0),
        ] {
            let asked = stage.ask(&token, node, key);
            stage.run();
            assert_eq!((&*stage.shown(&asked), stage.uses(&secret)), (expect, Some(left)), "{node}");
        }
        // the API server removes old requests: then the Node holds the name
        for name in stage.hub.names(&CERTIFICATE_REQUEST) {
            stage.hub.delete(&CERTIFICATE_REQUEST, "", name.trim_start_matches('/'), Propagation::Background);
        }
        let (token, _) = stage.token("edge-1", None, false);
        stage.hub.create(&NODE, json!({"metadata": {"name": "edge-1"}}));
        let asked =
            [stage.ask(&token, "edge-1", &first), stage.ask(&node("edge-1", &first, 0), "edge-1", &second)];
        stage.run();
        assert_eq!(asked.map(|name| stage.shown(&name)), ["AwaitingApproval NameTaken", "Approved Renews"]);
    }
}

/// Two machines with one token that counts nothing ask for one name before a Node has it.
#[test]
fn only_the_first_key_gets_a_name_elsewhere() {
    let mut stage = Stage::elsewhere();
    let (token, _) = stage.token("a", None, false);
    let asked: Vec<String> = (0..3).map(|_| stage.ask(&token, "a", &key())).collect();
    stage.run();
    let shown: Vec<String> = asked.iter().map(|name| stage.shown(name)).collect();
    assert_eq!(shown, ["Approved Joins", "AwaitingApproval NameTaken", "AwaitingApproval NameTaken"]);
    // a key that a person approved holds the name, too
    let byhand = stage.ask(&Identity::new("someone", &["system:authenticated"]), "b", &key());
    let approval = json!({"type": "Approved", "status": "True", "reason": "Seen"});
    stage.hub.edit(&CERTIFICATE_REQUEST, "", &byhand, |found| {
        found["status"]["conditions"] = json!([approval]);
    });
    let (token, _) = stage.token("b", Some(1), false);
    let late = stage.ask(&token, "b", &key());
    stage.run();
    assert_eq!(stage.shown(&late), "AwaitingApproval NameTaken");
}

/// Another request for the same name, by a token, comes in at each moment.
#[test]
fn second_key_never_gets_the_name_by_a_race() {
    for writes in 0..4 {
        let mut stage = Stage::new();
        let (token, _) = stage.token("edge-*", None, true);
        let asked = [stage.ask(&token, "edge-1", &key())];
        let now = stage.hub.now(0);
        stage.controller.sweep(&stage.hub.index);
        let mut tasks = VecDeque::from(stage.controller.reconcile(&stage.hub.index, now).tasks);
        for _ in 0..writes {
            if let Some(task) = tasks.pop_front() {
                tasks.extend(stage.hub.act(&mut stage.controller, task, now));
            }
        }
        let second = stage.ask(&token, "edge-1", &key());
        stage.run();
        while let Some(task) = tasks.pop_front() {
            tasks.extend(stage.hub.act(&mut stage.controller, task, now));
        }
        stage.run();
        let approved = [&asked[0], &second].map(|name| stage.shown(name).starts_with("Approved"));
        assert_eq!(approved.into_iter().filter(|is| *is).count(), 1, "after {writes} writes: {approved:?}");
    }
}

#[test]
fn decision_is_not_made_on_a_state_of_before() {
    let mut stage = Stage::new();
    let (token, secret) = stage.token("a", Some(1), false);
    let asked = stage.ask(&token, "a", &key());
    let now = stage.hub.now(0);
    stage.controller.sweep(&stage.hub.index);
    let mut tasks = VecDeque::from(stage.controller.reconcile(&stage.hub.index, now).tasks);
    // the node is denied between the decision and its first write
    let list =
        json!({"metadata": {"name": "kedge-denied", "namespace": "kube-system"}, "data": {"node.a": ""}});
    stage.hub.create(&crate::kinds::CONFIG_MAP, list);
    while let Some(task) = tasks.pop_front() {
        tasks.extend(stage.hub.act(&mut stage.controller, task, now));
    }
    stage.run();
    assert_eq!((&*stage.shown(&asked), stage.uses(&secret)), ("AwaitingApproval Denied", Some(1)));
    assert_eq!(stage.hub.value(&CREDENTIAL, "", "a"), Value::Null);
}

/// A fleet that was flashed in one week renews in one day; some requests come twice.
#[test]
fn thousand_nodes_renew_in_a_day() {
    let mut stage = Stage::new();
    let key = key();
    let mut asked = Vec::new();
    for number in 0..1000 {
        let name = format!("edge-{number}");
        stage.issue(&name, &key, 7, i64::MAX);
        asked.push(stage.ask(&node(&name, &key, 7), &name, &key));
        // a burst of two hours
        if number % 84 == 83 || number == 999 {
            stage.hub.wall += time::Duration::hours(2);
            stage.run();
        }
    }
    let waiting: Vec<&String> = asked.iter().filter(|name| stage.shown(name) != "Approved Renews").collect();
    assert_eq!(waiting, Vec::<&String>::new());
    // as many at once are judged in several steps
    let asked: Vec<String> = (0..100)
        .map(|number| {
            let name = format!("edge-{number}");
            stage.ask(&node(&name, &key, 7), &name, &key)
        })
        .collect();
    let now = stage.hub.now(0);
    stage.controller.sweep(&stage.hub.index);
    let first = stage.controller.reconcile(&stage.hub.index, now);
    assert!(first.more && first.tasks.len() == 64, "{}", first.tasks.len());
    drop(first);
    stage.run();
    assert!(asked.iter().all(|name| stage.shown(name) == "Approved Renews"));
}
