//! A pod asks the API server as its service account: with the address, the authority and the token that it
//! finds in its container, as client-go does.

use crate::pods::{NODE, REACHED, Setup, layout_with, pids, put_network};
use crate::setup::{LIMIT, isolated_network, kill};
use kedge_rig::scratch::wait_until;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Where clients look.
const PLACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn manifest(host_network: bool) -> String {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let script = format!(
        "echo \"host=$KUBERNETES_SERVICE_HOST\"; [ -z \"$KUBERNETES_SERVICE_HOST\" ] || curl -sS --cacert {PLACE}/ca.crt \
         -H \"Authorization: Bearer $(cat {PLACE}/token)\" -H 'Content-Type: application/json' -d '{review}' \
         https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/apis/authentication.k8s.io/v1/selfsubjectreviews; \
         exec sleep 86321"
    );
    // the volume that an API server adds to each pod
    let sources = json!([{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": NODE, "hostNetwork": host_network, "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false, "serviceAccountName": "default",
        "volumes": [{"name": "api", "projected": {"sources": sources}}],
        "containers": [{"name": "main", "image": "tools:1", "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "api", "mountPath": PLACE, "readOnly": true}],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}]}})
    .to_string()
}

#[test]
fn pod_asks_the_api_as_its_service_account() {
    isolated_network("identity::pod_asks_the_api_as_its_service_account", || {
        let mut setup = Setup::reached_by_pods();
        let layout = layout_with(&setup.cluster.scratch().join("tools"), &["/usr/bin/curl"]);
        let imported = ["images", "import", layout.to_str().unwrap(), "--name", "tools:1"];
        let (code, _, why) = setup.cluster.agent(NODE).kedge(&imported).unwrap();
        assert_eq!(code, 0, "{why}");
        let kubectl = setup.cluster.kubectl();
        let mut seen = Vec::new();
        for has_network in [false, true] {
            if has_network {
                put_network();
            }
            kubectl.feed(&["apply", "-f", "-"], &manifest(!has_network)).unwrap();
            setup.shows("an answer of the API server", || setup.log(0).contains("SelfSubjectReview"));
            let log = setup.log(0);
            assert!(log.contains(&format!("host={REACHED}\n")), "{log}");
            assert!(log.contains("\"system:serviceaccount:default:default\""), "{log}");
            assert!(log.contains("authentication.kubernetes.io/pod-name"), "bound to the pod: {log}");
            seen.push(kubectl.run(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"]).unwrap());
            kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
        }
        assert!(!seen[0].starts_with("10.85.") && seen[1].starts_with("10.85."), "{seen:?}");

        // the node reaches the hub by a tunnel to its loopback, which a pod with a network of its own cannot
        // use: an Event says so, and the pod runs
        let tunnel = Tunnel::to(setup.cluster.hub().address());
        let agent = setup.cluster.agent(NODE);
        let kubeconfig = fs::read_to_string(agent.kubeconfig()).unwrap();
        agent
            .replace_kubeconfig(&kubeconfig.replace(setup.cluster.hub().address(), &tunnel.address))
            .unwrap();
        let before = agent.babysitter().state();
        kill(before.pid.unwrap().into());
        agent
            .babysitter()
            .wait_until("another agent", LIMIT, |state| state.runs > before.runs && state.is_ready())
            .unwrap();
        kubectl.feed(&["apply", "-f", "-"], &manifest(false)).unwrap();
        setup.shows("the pod on its own network", || setup.runs_with(0));
        setup.shows("its line", || setup.log(0).ends_with("host=\n"));
        setup.shows("an Event that says why", || {
            let events = kubectl.run(&["get", "events", "-o", "wide"]).unwrap_or_default();
            events.contains("APIServerOnLoopback") && events.contains("at 127.0.0.1:")
        });
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
    });
}

/// A port of the loopback that leads to a server, as with ssh: each connection has threads that end with it.
struct Tunnel {
    address: String,
}

impl Tunnel {
    fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = server.to_owned();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&server) else { continue };
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)]
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self { address }
    }
}

/// A token's expiry, from its own text; `None` if it is incomplete.
fn end_of(token: &str) -> Option<u64> {
    use base64::Engine as _;
    let parts: Vec<&str> = token.split('.').collect();
    let [_, claims, signature] = parts[..] else { return None };
    // of a key on P-256
    if signature.len() != 86 {
        return None;
    }
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice::<serde_json::Value>(&claims).ok()?["exp"].as_u64()
}

#[test]
fn token_is_whole_while_agents_are_killed_as_they_renew_it() {
    isolated_network("identity::token_is_whole_while_agents_are_killed_as_they_renew_it", || {
        // more tokens than the node would hold for its pods
        const KILLS: usize = 10;
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        // each agent that starts requests the token anew, and replaces the present one
        kubectl.feed(&["apply", "-f", "-"], &manifest(true).replace("tools:1", "web:1")).unwrap();
        setup.shows("the pod", || setup.runs_with(0));
        let [pid] = pids()[..] else { panic!("one process: {:?}", pids()) };
        let place = format!("/proc/{pid}/root{PLACE}");
        let names = || {
            let entries = fs::read_dir(&place).unwrap().flatten();
            entries.map(|entry| entry.file_name()).collect::<BTreeSet<_>>()
        };
        let ends = AtomicBool::new(false);
        let mut seen = BTreeSet::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = BTreeSet::new();
                while !ends.load(Ordering::Relaxed) {
                    // a reader whose path goes through `..data` while that is replaced may find the old set
                    // gone, as with upstream's layout, and has only to look again
                    let read = || fs::read_to_string(format!("{place}/token"));
                    let token = (0..20).find_map(|_| read().ok());
                    let token = token.unwrap_or_else(|| panic!("a pod without a token: {:?}", read()));
                    let end = end_of(&token).unwrap_or_else(|| panic!("no whole token: {token:?}"));
                    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
                    assert!(now < end, "it ended {} s ago", now - end);
                    seen.insert(token);
                }
                seen
            });
            let agent = setup.cluster.agent(NODE);
            for kill_number in 0..KILLS {
                let has_agent = || {
                    agent
                        .babysitter()
                        .state()
                        .pid
                        .is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
                };
                wait_until("an agent", LIMIT, has_agent);
                kill(agent.babysitter().state().pid.unwrap().into());
                let (known, begin) = (names(), Instant::now());
                // at the first thing that the next one changes there; now and then some later
                while names() == known && begin.elapsed() < LIMIT && !reader.is_finished() {}
                std::thread::sleep(Duration::from_micros(200) * u32::try_from(kill_number % 4).unwrap());
                assert!(
                    names() != known || kill_number % 4 > 0 || reader.is_finished(),
                    "a set that is being made"
                );
            }
            setup.shows("an agent", || agent.babysitter().state().is_ready());
            setup.shows("one set of files", || {
                let sets =
                    names().into_iter().filter(|name| name.to_string_lossy().starts_with("..2")).count();
                sets == 1 && !names().contains(std::ffi::OsStr::new("..data_tmp"))
            });
            ends.store(true, Ordering::Relaxed);
            seen = reader.join().unwrap();
        });
        assert!(seen.len() > KILLS / 3, "{} tokens", seen.len());
        assert_eq!(pids(), [pid], "the pod went on");
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
    });
}
