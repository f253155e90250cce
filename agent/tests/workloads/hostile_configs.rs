//! Images with nonsense configs, on a real agent with crun: a refused one is reported, at the import or in
//! the pod's status, and one that another runtime would accept runs as it would there. A pod beside them
//! keeps running.

use crate::hostile_pods::{pod, shows, state};
use crate::pods::{NODE, Setup, layout_of};
use crate::setup::isolated_network;
use serde_json::{Value, json};

/// The outcome of a config.
enum Then {
    /// It is not imported, for this reason.
    NotTaken(&'static str),
    /// Its container waits for this reason, and its message has this.
    Waits(&'static str, &'static str),
    /// Its program cannot begin: the container waits, or ended at once, and its message or log has this.
    Fails(&'static str),
    /// Its container runs the shell to its end, and its log has this line.
    Runs(&'static str),
}

use Then::{Fails, NotTaken, Runs, Waits};

/// The command of each of them, unless the case sets its own.
const SCRIPT: &str = "pwd; echo $(id -u):$(id -g); echo A=$A NOTHING=${NOTHING-unset} PATH=$PATH";

fn cases() -> Vec<(&'static str, Value, Then)> {
    let cmd = || json!(["/bin/sh", "-c", SCRIPT]);
    let with = |more: Value| {
        let mut config = json!({"Cmd": cmd()});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let user = |user: &str| with(json!({"User": user}));
    let many =
        |count: usize| (0..count).map(|at| format!("V{at}=some text that takes room")).collect::<Vec<_>>();
    vec![
        (
            "env-odd",
            with(json!({"Env": ["NOTHING", "A=1=2", "", "B"]})),
            Runs("A=1=2 NOTHING=unset PATH=/usr/local/sbin:"),
        ),
        ("env-nameless", with(json!({"Env": ["=x", "A=3"]})), Runs("A=3 ")),
        ("env-twice", with(json!({"Env": ["A=1", "A=2", "PATH=/bin"]})), Runs("A=2 NOTHING=unset PATH=/bin")),
        ("env-many", with(json!({"Env": many(5000)})), Runs("0:0")),
        ("env-too-many", with(json!({"Env": many(100_000)})), NotTaken("expected at most 10000")),
        (
            "env-large",
            with(json!({"Env": [format!("BIG={}", "x".repeat(1 << 20))]})),
            Fails("rgument list too long"),
        ),
        ("env-text", with(json!({"Env": "A=1"})), NotTaken("not the JSON that is expected")),
        ("program-nul", json!({"Entrypoint": ["/bin/sh\u{0}x"]}), NotTaken("has a NUL")),
        ("program-none", json!({}), Waits("CreateContainerConfigError", "no command specified")),
        (
            "program-empty",
            json!({"Entrypoint": [""]}),
            Waits("CreateContainerConfigError", "no command specified"),
        ),
        ("program-text", json!({"Cmd": "/bin/sh"}), NotTaken("not the JSON that is expected")),
        ("program-lines", json!({"Cmd": ["/bin/sh\n\u{1b}[2J"]}), Fails("not found")),
        ("directory-up", with(json!({"WorkingDir": "../.."})), Runs("/\n0:0")),
        ("directory-up-from-root", with(json!({"WorkingDir": "/../../tmp/../made"})), Runs("/made")),
        ("directory-nul", with(json!({"WorkingDir": "/a\u{0}b"})), NotTaken("has a NUL")),
        (
            "user-three",
            user("0:0:0"),
            Waits("CreateContainerConfigError", "group \"0:0\" is not in the image's /etc/group"),
        ),
        (
            "user-unknown",
            user("nobody:users"),
            Waits("CreateContainerConfigError", "user \"nobody\" is not in the image's /etc/passwd"),
        ),
        (
            "user-group",
            user("1:users"),
            Waits("CreateContainerConfigError", "group \"users\" is not in the image's /etc/group"),
        ),
        ("user-negative", user("-1"), Waits("CreateContainerConfigError", "user \"-1\" is not in")),
        (
            "user-all-ones",
            user("4294967295"),
            Waits("CreateContainerConfigError", "user \"4294967295\" is not in"),
        ),
        (
            "user-endless",
            user(&"9".repeat(1000)),
            Waits("CreateContainerConfigError", "is not in the image's /etc/passwd"),
        ),
        ("user-highest", user("2147483647:2147483647"), Runs("2147483647:2147483647")),
        ("user-none", user(":"), Runs("0:0")),
        ("ports", with(json!({"ExposedPorts": {"abc/xyz": {}, "99999999/tcp": {}, "": 7}})), Runs("0:0")),
        ("ports-list", with(json!({"ExposedPorts": ["80"]})), Runs("0:0")),
        ("labels", with(json!({"Labels": {"long": "x".repeat(3 << 20)}})), Runs("0:0")),
        (
            "labels-too-long",
            with(json!({"Labels": {"long": "x".repeat(10 << 20)}})),
            NotTaken("expected at most 4194304"),
        ),
        ("labels-odd", with(json!({"Labels": [1, {"a": null}]})), Runs("0:0")),
        ("signal-unknown", with(json!({"StopSignal": "SIGFOO"})), Runs("0:0")),
        ("volumes-list", with(json!({"Volumes": ["/data"]})), NotTaken("not the JSON that is expected")),
        ("nothing", Value::Null, Waits("CreateContainerConfigError", "no command specified")),
    ]
}

/// Imports it; returns false if that was refused, as it should be.
#[track_caller]
fn is_taken(setup: &mut Setup, name: &str, config: &Value, then: &Then) -> bool {
    let at = setup.cluster.scratch().join(format!("layout-{name}"));
    let layout = layout_of(&at, config, |_| ());
    let words = ["images", "import", layout.to_str().unwrap(), "--name", &format!("{name}:1")];
    let (code, _, why) = setup.cluster.agent(NODE).kedge(&words).unwrap();
    std::fs::remove_dir_all(at).unwrap();
    match then {
        NotTaken(expect) => {
            assert!(code != 0 && why.contains(expect) && why.len() < 2000, "{name}: {code} {why}")
        }
        _ => assert_eq!(code, 0, "{name}: {why}"),
    }
    code == 0
}

#[test]
fn nonsense_in_the_config_of_an_image_is_refused_by_name() {
    isolated_network("hostile_configs::nonsense_in_the_config_of_an_image_is_refused_by_name", || {
        let mut setup = Setup::before_the_agent();
        let cases = cases();
        let taken: Vec<_> =
            cases.iter().filter(|(name, config, then)| is_taken(&mut setup, name, config, then)).collect();
        // they do not end by the signal that their image names
        let stays = "trap 'exit 0' TERM; sleep 86321 & wait";
        let signals = ["SIGFOO", "999", "-9", "SIGKILL; reboot"];
        for (at, signal) in signals.iter().enumerate() {
            let config = json!({"Cmd": ["/bin/sh", "-c", stays], "StopSignal": signal});
            assert!(is_taken(&mut setup, &format!("signal-{at}"), &config, &Runs("")), "{signal}");
        }
        setup.await_pods();
        let kubectl = setup.cluster.kubectl();
        let staying = (0..signals.len()).map(|at| format!("signal-{at}"));
        let of = |name: &str| {
            pod(name, &json!({"image": format!("{name}:1")}), &json!({"terminationGracePeriodSeconds": 600}))
        };
        let pods: Vec<Value> =
            taken.iter().map(|(name, ..)| of(name)).chain(staying.clone().map(|name| of(&name))).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
        kubectl.feed(&["create", "-f", "-"], &list.to_string()).unwrap();
        let mut wrong = vec![];
        for (name, _, then) in &taken {
            shows(&setup, &format!("the end of {name}"), name, || state(&setup, name).is_some());
            let state = state(&setup, name).unwrap();
            let log = kubectl.run(&["logs", name]).unwrap_or_default();
            let (code, waiting) = (state["terminated"]["exitCode"].as_i64(), &state["waiting"]);
            let told = waiting.get("message").unwrap_or(&state["terminated"]["message"]);
            let message = told.as_str().unwrap_or_default();
            let is_so = match then {
                Waits(reason, said) => waiting["reason"] == *reason && message.contains(said),
                Fails(said) => code != Some(0) && (log.contains(said) || message.contains(said)),
                Runs(line) => code == Some(0) && log.contains(line),
                NotTaken(_) => unreachable!("it was taken"),
            };
            if !is_so || message.len() > 4096 || message.contains(|it: char| it.is_control()) {
                wrong.push(format!("{name}: {state} {log}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        // they run beside the others, and end as if the config had no stop signal
        for name in staying {
            let phase =
                || kubectl.run(&["get", "pod", &name, "-o", "jsonpath={.status.phase}"]).unwrap_or_default();
            shows(&setup, &format!("{name} running"), &name, || phase() == "Running");
            kubectl.run(&["delete", "pod", &name, "--wait=false"]).unwrap();
            setup.shows(&format!("the end of {name}"), || phase().is_empty());
        }
        let log = setup.cluster.agent(NODE).log_text();
        assert!(!log.contains("panicked"), "{log}");
    });
}
