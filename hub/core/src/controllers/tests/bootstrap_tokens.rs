//! Bootstrap tokens and `cluster-info` on a store: signing, correcting and removing.

use std::collections::BTreeMap;

use super::super::bootstrap_tokens::{BootstrapTokens, Purpose};
use super::super::controller::RETRY;
use super::*;
use crate::identity::CLUSTER_INFO;
use crate::identity::bootstrap_token::{BootstrapToken, NAMESPACE, Names, RANDOM_BYTES};
use crate::kinds::{CERTIFICATE_REQUEST, NAMESPACE as NAMESPACES, SECRET};

/// The hub's time in these tests.
const NOW: OffsetDateTime = datetime!(2026-11-21 12:00:00 UTC);

fn hub() -> Hub {
    let mut hub = Hub::new();
    for name in [NAMESPACE, CLUSTER_INFO.0] {
        hub.create(&NAMESPACES, json!({"metadata": {"name": name}}));
    }
    hub
}

fn token(random: u8, expiration: Option<OffsetDateTime>) -> BootstrapToken {
    let names = Names::Prefix(String::new());
    let mut made = BootstrapToken::new(&[random; RANDOM_BYTES], names).unwrap();
    made.expiration = expiration;
    made
}

fn run(hub: &mut Hub) -> BTreeMap<String, String> {
    hub.run(&mut BootstrapTokens::new("text".to_owned()));
    data(hub)
}

fn data(hub: &Hub) -> BTreeMap<String, String> {
    let found = hub.index.get(&CONFIG_MAP, CLUSTER_INFO.0, CLUSTER_INFO.1).unwrap().value();
    let entries = found["data"].as_object().unwrap().iter();
    entries.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

#[test]
fn cluster_info_is_signed_by_each_token_that_signs() {
    let mut hub = hub();
    let mut silent = token(1, None);
    silent.signs = false;
    let (lasting, over) = (token(0, Some(NOW + time::Duration::SECOND)), token(2, Some(NOW)));
    for made in [&lasting, &silent, &over] {
        hub.create(&SECRET, made.to_secret());
    }
    let expect = |text: &str| {
        BTreeMap::from([
            ("kubeconfig".to_owned(), text.to_owned()),
            ("jws-kubeconfig-000000".to_owned(), lasting.sign(text)),
        ])
    };
    assert_eq!(run(&mut hub), expect("text"));
    // another authority or address
    hub.run(&mut BootstrapTokens::new("other".to_owned()));
    assert_eq!(data(&hub), expect("other"));
    hub.delete(&SECRET, NAMESPACE, "bootstrap-token-000000", Default::default());
    assert_eq!(run(&mut hub).into_keys().collect::<Vec<_>>(), ["kubeconfig"]);
}

#[test]
fn wrong_entries_are_corrected_and_others_stay() {
    let mut hub = hub();
    hub.create(&SECRET, token(0, None).to_secret());
    let written = json!({"metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": "forged", "jws-kubeconfig-000000": "x", "jws-kubeconfig-zzzzzz": "y", "own": "z"}});
    hub.create(&CONFIG_MAP, written);
    let found = run(&mut hub);
    assert_eq!(found["kubeconfig"], "text");
    assert_eq!(found["jws-kubeconfig-000000"], token(0, None).sign("text"));
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["jws-kubeconfig-000000", "kubeconfig", "own"]);
    hub.delete(&CONFIG_MAP, "kube-public", "cluster-info", Default::default());
    assert_eq!(run(&mut hub).len(), 2, "made again");
}

#[test]
fn expired_token_is_removed_while_the_clock_is_right() {
    let mut hub = hub();
    let second = time::Duration::SECOND;
    for (random, end) in [(0, None), (1, Some(NOW)), (2, Some(NOW + second)), (3, Some(NOW - second))] {
        hub.create(&SECRET, token(random, end).to_secret());
    }
    let mut unreadable = token(4, None).to_secret();
    unreadable["metadata"]["name"] = "bootstrap-token-444444".into();
    unreadable["data"]["expiration"] = "eA==".into();
    unreadable["type"] = "Opaque".into();
    hub.create(&SECRET, unreadable);
    let mut controller = BootstrapTokens::new("text".to_owned());
    controller.sweep(&hub.index);
    let removed = |controller: &mut BootstrapTokens, hub: &mut Hub, ages: bool| {
        let now = Now { ages, ..hub.now(0) };
        let decision = controller.reconcile(&hub.index, now);
        let ids = decision.tasks.into_iter().filter_map(|task| match task.purpose {
            Purpose::Remove(id) => Some(id),
            Purpose::Write | Purpose::Forget(_) => None,
        });
        (ids.collect::<Vec<_>>(), decision.next)
    };
    // the next one is due in a second, and looked at no sooner than `RETRY`
    let next = Some(RETRY);
    assert_eq!(removed(&mut controller, &mut hub, false), (Vec::new(), next));
    let ids = ["111111", "333333"].map(str::to_owned).to_vec();
    assert_eq!(removed(&mut controller, &mut hub, true), (ids, next));
    hub.run(&mut BootstrapTokens::new("text".to_owned()));
    let names = ["000000", "222222", "444444"].map(|id| format!("kube-system/bootstrap-token-{id}"));
    assert_eq!(hub.names(&SECRET), names);
}

#[test]
fn token_that_got_more_time_is_not_removed() {
    let mut hub = hub();
    hub.create(&SECRET, token(0, Some(NOW)).to_secret());
    let mut controller = BootstrapTokens::new("text".to_owned());
    controller.sweep(&hub.index);
    let now = hub.now(0);
    let decision = controller.reconcile(&hub.index, now);
    hub.delete(&SECRET, NAMESPACE, "bootstrap-token-000000", Default::default());
    hub.create(&SECRET, token(0, Some(NOW + time::Duration::HOUR)).to_secret());
    for task in decision.tasks {
        hub.act(&mut controller, task, now);
    }
    assert_eq!(hub.names(&SECRET), ["kube-system/bootstrap-token-000000"]);
}

#[test]
fn fleet_joins_by_one_token_without_an_end() {
    let mut hub = hub();
    let pem = crate::identity::certificate_request::tests::pem("system:node:a", &["system:nodes"], &[]);
    let create = |hub: &mut Hub, user: &str, name: String, answered: bool| {
        let spec = json!({"request": crate::kinds::schema::base64_encode(pem.as_bytes()), "username": user,
            "signerName": kedge_api::NODE_SIGNER, "usages": ["client auth"]});
        hub.create(&CERTIFICATE_REQUEST, json!({"metadata": {"name": name}, "spec": spec}));
        let edit: Edit = Box::new(move |value, _| {
            if answered {
                value["status"]["certificate"] = "eA==".into();
            }
            true
        });
        let (kind, namespace, requires) = (&CERTIFICATE_REQUEST, String::new(), Vec::new());
        hub.perform(Action::Update { kind, namespace, name, edit, requires }).unwrap();
    };
    for number in 0..20 {
        create(&mut hub, "system:bootstrap:000000", format!("pending-{number:03}"), false);
        create(&mut hub, "system:node:a", format!("renewal-{number:03}"), true);
    }
    for number in 0..130 {
        create(&mut hub, "system:bootstrap:000000", format!("joined-{number:03}"), true);
    }
    run(&mut hub);
    let names = hub.names(&CERTIFICATE_REQUEST);
    let count = |beginning: &str| names.iter().filter(|name| name.starts_with(beginning)).count();
    assert_eq!(["/joined", "/pending", "/renewal"].map(count), [128, 20, 20], "{names:?}");
    assert!(!names.contains(&"/joined-001".to_owned()) && names.contains(&"/joined-002".to_owned()));
}
