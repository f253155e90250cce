//! One manifest with every field that a node serves, and one with those that it refuses, with a real hub, a
//! real agent, CNI plugins and crun: `whole.yaml`, which booted images run, too.

use crate::pods::{NODE, Setup, put_network};
use crate::setup::{LIMIT, isolated_network};
use serde_json::{Value, json};
use std::fs;
use std::time::Instant;

const MANIFEST: &str = include_str!("whole.yaml");

/// The report of the pod's main container; in its second run with the ConfigMap's other word.
fn report(word: &str) -> String {
    format!(
        "env: plain whole {word} hidden 250 plain-hidden {word} hidden\n\
         files: {word}{word}hiddenhiddenwhole64{word}\n\
         tokens, authority, host's file\n\
         identity: 1000 3000 2000 4000, 1\n\
         names: 1 1 whole-host\n\
         sysctl: 0\n\
         root: read-only\n\
         image: data only\n\
         own: mine\n"
    )
}

fn status(setup: &Setup, name: &str) -> Value {
    setup.cluster.kubectl().json(&["get", "pod", name]).unwrap_or_default()["status"].take()
}

fn ready(status: &Value) -> (Value, Value) {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready").cloned().unwrap_or_default();
    (ready["status"].clone(), ready["reason"].clone())
}

/// The texts of a run's log.
fn log(attempt: u32) -> String {
    let mut pods = fs::read_dir("/var/log/pods").unwrap().flatten().map(|entry| entry.path());
    let path = pods.find(|path| path.display().to_string().contains("/default_whole_"));
    let text =
        fs::read_to_string(path.unwrap_or_default().join(format!("main/{attempt}.log"))).unwrap_or_default();
    text.lines().map(|line| format!("{}\n", line.splitn(4, ' ').nth(3).unwrap_or_default())).collect()
}

/// Waits for all lines of a run: the container is ready before it has written the last of them.
fn has_reported(setup: &Setup, attempt: u32, word: &str) {
    let expected = report(word);
    kedge_rig::scratch::poll(LIMIT, || {
        (log(attempt).lines().count() >= expected.lines().count()).then_some(())
    });
    assert_eq!(log(attempt), expected, "{}", status(setup, "whole"));
}

/// A DaemonSet that the hub admits and places, and whose pods the node refuses.
fn refused_set() -> Value {
    let labels = json!({"app": "refused"});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "refused"}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "hostNetwork": true, "containers": [{"name": "main", "image": "web:1", "resources": {"limits": {"kedge.dev/absent": 1}}}]}}}})
}

/// How many pods of a DaemonSet were made, by its Events.
fn made_of(setup: &Setup, set: &str) -> u64 {
    let events = setup.cluster.kubectl().json(&["get", "events"]).unwrap_or_default();
    let is_its =
        |event: &&Value| event["reason"] == "SuccessfulCreate" && event["involvedObject"]["name"] == set;
    let all = events["items"].as_array().into_iter().flatten().filter(is_its);
    all.map(|event| event["count"].as_u64().unwrap_or(1)).sum()
}

#[test]
fn manifest_with_everything_runs_as_it_says() {
    isolated_network("whole::manifest_with_everything_runs_as_it_says", || {
        let setup = Setup::with_runtime();
        put_network();
        let kubectl = setup.cluster.kubectl();
        let manifest = MANIFEST.replace("@node@", NODE).replace("@image@", "web:1");
        kubectl.feed(&["apply", "-f", "-"], &manifest).unwrap();
        kubectl.feed(&["apply", "-f", "-"], &refused_set().to_string()).unwrap();
        let begin = Instant::now();

        // a field that is not served is refused, and the message names it
        setup.shows("the refused pods", || {
            let (refused, device) = (status(&setup, "whole-refused"), status(&setup, "whole-device"));
            let message = refused["message"].as_str().unwrap_or_default();
            let names_all = message.contains("spec.hostUsers: ")
                && message.contains("spec.volumes[0].persistentVolumeClaim: ");
            names_all && refused["phase"] == "Failed" && device["reason"] == "UnexpectedAdmissionError"
        });

        setup.shows(&format!("a pod that waits for its gate: {}", status(&setup, "whole")), || {
            ready(&status(&setup, "whole")) == (json!("False"), json!("ReadinessGatesNotReady"))
        });
        has_reported(&setup, 0, "first");
        let gate = json!({"status": {"conditions": [{"type": "kedge.dev/checked", "status": "True"}]}});
        kubectl.run(&["patch", "pod", "whole", "--subresource=status", "-p", &gate.to_string()]).unwrap();
        setup.shows("the pod Ready", || ready(&status(&setup, "whole")).0 == "True");
        let begun = status(&setup, "whole");
        assert!(begun["podIP"].as_str().is_some_and(|it| it.starts_with("10.85.")), "{begun}");
        let [first, side] = &begun["initContainerStatuses"].as_array().unwrap()[..] else {
            panic!("{begun}")
        };
        assert_eq!(first["state"]["terminated"]["reason"], "Completed");
        assert!(side["started"] == true && side["ready"] == true, "{side}");

        // an edit of the ConfigMap makes it sick: the liveness probe fails, its hook ends it, and it starts
        // anew with the edit
        let edit = json!({"data": {"word": "second"}}).to_string();
        kubectl.run(&["patch", "configmap", "whole", "-p", &edit]).unwrap();
        let containers = |status: &Value| status["containerStatuses"].as_array().cloned().unwrap_or_default();
        setup.shows("another run of the container", || {
            let status = status(&setup, "whole");
            containers(&status).first().is_some_and(|main| main["restartCount"] == 1)
                && ready(&status).0 == "True"
        });
        let status = status(&setup, "whole");
        let [main, more] = &containers(&status)[..] else { panic!("{status}") };
        let ended = &main["lastState"]["terminated"];
        assert_eq!(
            (&ended["exitCode"], &ended["message"]),
            (&json!(3), &json!("ended: preStop\n")),
            "{ended}"
        );
        assert_eq!((&more["restartCount"], &more["ready"]), (&json!(0), &json!(true)), "{more}");
        has_reported(&setup, 1, "second");

        // the controller has replaced the pods that the node refused, each after a longer wait than the one
        // before
        let made = || made_of(&setup, "refused");
        setup.shows("others in place of a refused pod", || made() >= 3);
        let most = 3 + u64::from(begin.elapsed().as_secs().max(1).ilog2());
        assert!(made() <= most, "{} pods, expected at most {most}", made());
        let events = kubectl.run(&["get", "events", "-o", "wide"]).unwrap();
        assert!(events.contains("FailedDaemonPod") && events.contains("kedge.dev/absent"), "{events}");
        kubectl.run(&["delete", "daemonset", "refused", "--timeout=60s"]).unwrap();
        setup.shows("no pod of it", || {
            kubectl
                .run(&["get", "pods", "-l", "app=refused", "-o", "name"])
                .is_ok_and(|names| names.is_empty())
        });

        kubectl.run(&["delete", "pod", "whole", "whole-refused", "whole-device", "--timeout=60s"]).unwrap();
        let reserved = fs::read_dir("/etc/cni/addresses/kedge").unwrap().flatten();
        let reserved = reserved.filter(|entry| entry.file_name().to_string_lossy().starts_with("10."));
        assert_eq!(reserved.count(), 0, "no address of a pod that is gone");
    });
}
