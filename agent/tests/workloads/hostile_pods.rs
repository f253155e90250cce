//! Pods and images that try to get out of their containers, on a real agent: by links in paths that the agent
//! or crun resolves for them, by the machine's programs that run inside, by other programs' use of files that
//! they leave behind; and a pod that forks without end beside one that must keep running. A container's own
//! system calls are tested in `escapes`.

use crate::pods::{NODE, Setup, layout_of};
use crate::setup::{LIMIT, add_program, isolated_network, isolated_network_alone, kill};
use kedge_rig::scratch::poll;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Nobody inside may see or change this directory: the mount namespace of a test has an `/etc` of its own.
const OUTSIDE: &str = "/etc/outside";
const SECRET: &str = "what the machine keeps to itself";
/// From the deepest place to above the root.
const UP: &str = "../../../../../../../../../../../..";

struct Outside;

impl Outside {
    fn new() -> Self {
        fs::create_dir_all(OUTSIDE).unwrap();
        fs::write(Path::new(OUTSIDE).join("secret"), SECRET).unwrap();
        Self
    }

    #[track_caller]
    fn assert_untouched(&self) {
        let names: Vec<_> = fs::read_dir(OUTSIDE).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"], "something was made outside");
        assert_eq!(fs::read_to_string(Path::new(OUTSIDE).join("secret")).unwrap(), SECRET);
    }
}

/// An image with ways out in its files and its config.
fn hostile_image(setup: &mut Setup) {
    let at = setup.cluster.scratch().join("hostile");
    let volumes = json!({"Volumes": {"/straight": {}, "/link/volume": {}, "/up/volume": {}, "/all": {}}});
    let layout = layout_of(&at, &volumes, |image| {
        // the targets of the links when they are resolved inside the image
        fs::create_dir_all(image.join(OUTSIDE.trim_start_matches('/'))).unwrap();
        symlink(OUTSIDE, image.join("link")).unwrap();
        symlink(format!("{UP}{OUTSIDE}"), image.join("up")).unwrap();
        symlink(format!("{OUTSIDE}/secret"), image.join("leak")).unwrap();
        symlink("/", image.join("all")).unwrap();
        symlink("/proc/self/exe", image.join("bin/itself")).unwrap();
        fs::copy("/bin/busybox", image.join("bin/raised")).unwrap();
        add_program(image, "/usr/bin/perl");
        let made = Command::new("sh")
            .args(["-c", "mknod $0/kmsg c 1 11 && chmod 666 $0/kmsg && chmod 4755 $0/bin/raised"])
            .arg(image)
            .status()
            .unwrap();
        assert!(made.success());
    });
    let agent = setup.cluster.agent(NODE);
    let (code, _, why) =
        agent.kedge(&["images", "import", layout.to_str().unwrap(), "--name", "hostile:1"]).unwrap();
    assert_eq!(code, 0, "{why}");
}

pub(crate) fn pod(name: &str, container: &Value, spec: &Value) -> Value {
    let mut main = json!({"name": "main", "image": "hostile:1"});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false}});
    for (key, value) in container.as_object().unwrap() {
        main[key] = value.clone();
    }
    pod["spec"]["containers"] = json!([main]);
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// The outcome of the container: its end, or its error while it waits.
pub(crate) fn state(setup: &Setup, name: &str) -> Option<Value> {
    let pod = setup.cluster.kubectl().json(&["get", "pod", name]).ok()?;
    if pod["status"]["reason"].is_string() {
        return Some(pod["status"].clone());
    }
    let all = pod["status"]["containerStatuses"].as_array()?.iter();
    let init = pod["status"]["initContainerStatuses"].as_array().into_iter().flatten();
    let mut states = all.chain(init).map(|container| &container["state"]);
    let is_over = |state: &&Value| {
        state["terminated"].is_object()
            || ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"]
                .iter()
                .any(|reason| state["waiting"]["reason"] == *reason)
    };
    states.find(is_over).cloned()
}

/// Waits for it, and shows the pod's state if it does not happen.
#[track_caller]
pub(crate) fn shows(setup: &Setup, awaited: &str, pod: &str, is_so: impl Fn() -> bool) {
    shows_within(LIMIT, setup, awaited, pod, is_so);
}

#[track_caller]
fn shows_within(limit: Duration, setup: &Setup, awaited: &str, pod: &str, is_so: impl Fn() -> bool) {
    let reached = poll(limit, || is_so().then_some(()));
    let kubectl = setup.cluster.kubectl();
    let read = |line: &[&str]| kubectl.run(line).unwrap_or_else(|error| error.to_string());
    let status = || read(&["get", "pod", pod, "-o", "jsonpath={.status}"]);
    assert!(
        reached.is_some(),
        "waited in vain for {awaited}: {} {}",
        status(),
        read(&["logs", "--tail=20", pod])
    );
}

fn outcome(setup: &Setup, pod: &Value) -> (Value, String) {
    let kubectl = setup.cluster.kubectl();
    kubectl.feed(&["create", "-f", "-"], &pod.to_string()).unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap();
    shows(setup, &format!("the end of {name}"), name, || state(setup, name).is_some());
    let state = state(setup, name).unwrap();
    let log = kubectl.run(&["logs", name]).unwrap_or_default();
    assert!(!log.contains(SECRET), "{name}: {log}");
    kubectl.run(&["delete", "pod", name, "--wait=false"]).unwrap();
    (state, log)
}

fn node(make: impl FnOnce(&mut Setup)) -> Setup {
    let mut setup = Setup::before_the_agent();
    hostile_image(&mut setup);
    make(&mut setup);
    setup.await_pods();
    setup
}

#[test]
fn links_of_an_image_lead_nowhere_outside() {
    isolated_network("hostile_pods::links_of_an_image_lead_nowhere_outside", || {
        let outside = Outside::new();
        let setup = node(|_| ());
        let shell = |script: &str| json!(["/bin/sh", "-c", script]);
        let ended = |state: &Value, code: i64| state["terminated"]["exitCode"] == code;

        // a working directory through a link is the container's own
        for (name, directory) in [("work-link", "/link/work"), ("work-up", "/up/work")] {
            let container =
                json!({"workingDir": directory, "command": shell("pwd; cat secret ../secret; true")});
            let (state, log) = outcome(&setup, &pod(name, &container, &json!({})));
            assert!(ended(&state, 0) && log.starts_with("/"), "{state} {log}");
            outside.assert_untouched();
        }
        // descriptors that crun or a shim has open give no way out, nor do the links in the machine's /proc
        let out = format!("cat {UP}{OUTSIDE}/secret; ls {UP}; readlink /proc/self/cwd; true");
        let open = (3..20)
            .map(|fd| format!("/proc/self/fd/{fd}"))
            .chain(["/proc/1/root".into(), "/proc/self/cwd".into()]);
        for (at, directory) in open.enumerate() {
            let container = json!({"workingDir": directory, "command": shell(&out)});
            let (state, log) = outcome(&setup, &pod(&format!("work-open-{at}"), &container, &json!({})));
            let is_inside = !log.contains("var\n") || log.contains("kmsg");
            assert!(is_inside, "{directory}: {state} {log}");
            outside.assert_untouched();
        }

        // a mount onto a link stays inside
        let volumes = json!({"volumes": [{"name": "data", "emptyDir": {}}]});
        for (name, place) in
            [("mount-link", "/link/data"), ("mount-up", "/up/data"), ("mount-itself", "/link")]
        {
            let script = format!("echo inside >{place}/made; cat {place}/made /leak");
            let container =
                json!({"command": shell(&script), "volumeMounts": [{"name": "data", "mountPath": place}]});
            let (state, log) = outcome(&setup, &pod(name, &container, &volumes));
            assert!(log.starts_with("inside\n") || state["waiting"].is_object(), "{name}: {state} {log}");
            outside.assert_untouched();
        }
        // so do termination messages, and the agent reads none from outside
        for (name, path) in
            [("message-link", "/link/message"), ("message-up", "/up/message"), ("message-leak", "/leak")]
        {
            let script = format!("rm {path}; ln -s {OUTSIDE}/secret {path}; echo own >{path}; true");
            let container = json!({"terminationMessagePath": path, "command": shell(&script)});
            let (state, _) = outcome(&setup, &pod(name, &container, &json!({})));
            assert!(!state.to_string().contains(SECRET), "{state}");
            outside.assert_untouched();
        }
        // and the image's own volumes, which are mounted where the root is read-only
        let container = json!({"securityContext": {"readOnlyRootFilesystem": true}, "command": shell(
            "for at in /straight /link/volume /up/volume; do echo own >$at/made && cat $at/made; done; echo x >/made; echo x >/all/made; cat /leak; true")});
        let (state, log) = outcome(&setup, &pod("volumes", &container, &json!({})));
        assert!(ended(&state, 0), "{state} {log}");
        assert_eq!(log.matches("own\n").count(), 3, "its volumes are writable: {log}");
        assert_eq!(log.matches("Read-only file system").count(), 2, "all else is not: {log}");
        outside.assert_untouched();
    });
}

/// The machine's log: no container has it by itself.
const DEVICES: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nkedge: {devices: {log: [/dev/kmsg]}}\n";
/// Allows everything but this call, with an error number that no kernel returns.
const NO_MKDIR: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}]}"#;

/// A device opens where the node's configuration has it and the pod requests it by name; a device node alone,
/// made inside or brought by `hostPath`, opens for no container that was not given the device.
fn devices_are_those_that_are_given(setup: &Setup) {
    let script = |at: &str| {
        json!(["/bin/sh", "-c", format!("dd if={at} of=/dev/null bs=8192 count=1 && echo opened")])
    };
    let asks = json!({"limits": {"kedge.dev/log": 1}});
    let volumes =
        json!({"volumes": [{"name": "log", "hostPath": {"path": "/dev/kmsg", "type": "CharDevice"}}]});
    let mounts = json!([{"name": "log", "mountPath": "/log"}]);
    let may = json!({"capabilities": {"add": ["SYSLOG", "MKNOD"]}});
    let made = json!([
        "/bin/sh",
        "-c",
        "/bin/busybox mknod /tmp/log c 1 11 && dd if=/tmp/log of=/dev/null bs=8192 count=1 && echo opened"
    ]);
    let all = [
        (
            "given",
            json!({"command": script("/dev/kmsg"), "resources": asks, "securityContext": may}),
            json!({}),
            true,
        ),
        ("not-given", json!({"command": script("/dev/kmsg"), "securityContext": may}), json!({}), false),
        ("made", json!({"command": made, "securityContext": may}), json!({}), false),
        (
            "path",
            json!({"command": script("/log"), "volumeMounts": mounts, "securityContext": may}),
            volumes.clone(),
            false,
        ),
        (
            "path-given",
            json!({"command": script("/log"), "volumeMounts": mounts, "resources": asks, "securityContext": may}),
            volumes,
            true,
        ),
    ];
    for (name, container, spec, opens) in all {
        let (state, log) = outcome(setup, &pod(&format!("device-{name}"), &container, &spec));
        assert_eq!(log.contains("opened"), opens, "{name}: {state} {log}");
        let refused = log.contains("Operation not permitted") || log.contains("No such file");
        assert!(opens || refused, "{name}: {state} {log}");
        // one pod at a time has the device
        let is_gone = || setup.cluster.kubectl().run(&["get", "pod", &format!("device-{name}")]).is_err();
        shows(setup, "its end", &format!("device-{name}"), is_gone);
    }
    let other = json!({"command": script("/dev/kmsg"), "resources": {"limits": {"kedge.dev/other": 1}}});
    let (state, _) = outcome(setup, &pod("device-other", &other, &json!({})));
    assert_eq!(state["reason"], "UnexpectedAdmissionError", "{state}");
}

/// A `Localhost` profile, seen from inside: the calls that it forbids fail, all else works; without its file
/// nothing runs.
fn profile_of_the_node_is_enforced(setup: &Setup) {
    let script = "/bin/busybox mkdir /tmp/made 2>&1; echo x >/tmp/file && cat /tmp/file; /bin/busybox grep Seccomp: /proc/self/status";
    let with = |profile: &str| {
        json!({"command": ["/bin/sh", "-c", script],
            "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": profile}}})
    };
    let (state, log) = outcome(setup, &pod("profile", &with("no-mkdir.json"), &json!({})));
    assert!(log.contains("can't create directory '/tmp/made': Operation not supported"), "{state} {log}");
    assert!(log.ends_with("x\nSeccomp:\t2\n"), "{log}");
    let (state, log) = outcome(setup, &pod("no-profile", &with("absent.json"), &json!({})));
    assert_eq!((&state["waiting"]["reason"], log.as_str()), (&json!("CreateContainerError"), ""), "{state}");
    let (_, log) =
        outcome(setup, &pod("other-profile", &json!({"command": ["/bin/sh", "-c", script]}), &json!({})));
    assert_eq!(log, "x\nSeccomp:\t0\n", "it is the profile that forbids it");
}

#[test]
fn paths_of_volumes_lead_nowhere_outside() {
    isolated_network("hostile_pods::paths_of_volumes_lead_nowhere_outside", || {
        let outside = Outside::new();
        let mut setup = node(|setup| {
            let agent = setup.cluster.agent(NODE);
            agent.write_drop_in("20-devices.conf", DEVICES).unwrap();
            let profiles = agent.root_dir().join("seccomp");
            fs::create_dir_all(&profiles).unwrap();
            fs::write(profiles.join("no-mkdir.json"), NO_MKDIR).unwrap();
        });
        devices_are_those_that_are_given(&setup);
        profile_of_the_node_is_enforced(&setup);
        let kubectl = setup.cluster.kubectl();
        let shell = |script: &str| json!(["/bin/sh", "-c", script]);
        let look = format!("ls -a /v; cat /v/secret /v{OUTSIDE}/secret /v/{UP}{OUTSIDE}/secret; true");

        // a `subPath` that a variable names
        let volumes = json!({"volumes": [{"name": "data", "emptyDir": {}}]});
        let beyond = ["/", "..", "../..", "a/../..", "/etc", &format!("{UP}{OUTSIDE}")[..]];
        for (at, value) in beyond.iter().enumerate() {
            let container = json!({"command": shell(&look), "env": [{"name": "X", "value": value}],
                "volumeMounts": [{"name": "data", "mountPath": "/v", "subPathExpr": "$(X)"}]});
            let (state, log) = outcome(&setup, &pod(&format!("expr-{at}"), &container, &volumes));
            assert!(state["waiting"].is_object(), "{value:?} is refused: {state} {log}");
            outside.assert_untouched();
        }
        // a `subPath` that an earlier container replaced by a link
        for (at, target) in [OUTSIDE, &format!("{UP}{OUTSIDE}")[..], "/proc/1/root/etc"].iter().enumerate() {
            let make = json!({"name": "make", "image": "hostile:1", "command": shell(&format!("busybox ln -s {target} /v/part")),
                "volumeMounts": [{"name": "data", "mountPath": "/v"}]});
            let container = json!({"command": shell(&look),
                "volumeMounts": [{"name": "data", "mountPath": "/v", "subPath": "part"}]});
            let mut spec = volumes.clone();
            spec["initContainers"] = json!([make]);
            let name = format!("part-{at}");
            kubectl.feed(&["create", "-f", "-"], &pod(&name, &container, &spec).to_string()).unwrap();
            setup.shows("a part that is refused", || {
                let pod = kubectl.json(&["get", "pod", &name]).unwrap_or_default();
                pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
                    == "CreateContainerConfigError"
            });
            kubectl.run(&["delete", "pod", &name, "--wait=false"]).unwrap();
            outside.assert_untouched();
        }

        // an image as a volume: its links are resolved inside, its devices and set-user-ID bits have no
        // effect
        let volumes = json!({"volumes": [{"name": "data", "image": {"reference": "hostile:1"}}]});
        let script = "cat /v/leak; cat /v/up/secret; cat /v/link/secret; busybox dd if=/v/kmsg bs=1 count=1; /v/bin/raised id; \
            /v/bin/busybox id; echo x >/v/made; /bin/busybox stat -c %a /v/bin/raised; true";
        let container = json!({"command": shell(script), "volumeMounts": [{"name": "data", "mountPath": "/v"}],
            "securityContext": {"capabilities": {"add": ["SYSLOG", "MKNOD"]}}});
        let (state, log) = outcome(&setup, &pod("image", &container, &volumes));
        assert_eq!(state["terminated"]["exitCode"], 0, "{state} {log}");
        assert_eq!(log.matches("Permission denied").count(), 3, "device and programs: {log}");
        assert!(
            log.contains("4755") && log.contains("Read-only file system") && !log.contains("uid="),
            "{log}"
        );
        for (at, part) in ["link", "up", "leak"].iter().enumerate() {
            let container = json!({"command": shell(&look),
                "volumeMounts": [{"name": "data", "mountPath": "/v", "subPath": part}]});
            let (state, log) = outcome(&setup, &pod(&format!("image-{at}"), &container, &volumes));
            assert!(state["waiting"].is_object(), "{part} is refused: {state} {log}");
        }
        outside.assert_untouched();

        // a path of the machine with steps back: the API refuses it, and so does a node whose file has it
        let volumes = json!({"volumes": [{"name": "data", "hostPath": {"path": "/tmp/../etc/outside"}}]});
        let container =
            json!({"command": shell(&look), "volumeMounts": [{"name": "data", "mountPath": "/v"}]});
        let steps_back = pod("steps-back", &container, &volumes);
        let refused = kubectl.feed(&["create", "-f", "-"], &steps_back.to_string()).unwrap_err().to_string();
        assert!(refused.contains("must not contain '..'"), "{refused}");
        let directory = setup.cluster.scratch().join("manifests");
        fs::create_dir_all(&directory).unwrap();
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfileCheckFrequency: 1s\nstaticPodPath: {}\n",
            directory.display()
        );
        let agent = setup.cluster.agent_mut(NODE);
        agent.write_drop_in("10-static.conf", &config).unwrap();
        fs::write(directory.join("pod.json"), steps_back.to_string()).unwrap();
        agent.stop().unwrap();
        agent.start().unwrap();
        setup.shows("a file that is refused", || {
            let log = setup.cluster.agent(NODE).log_text();
            log.contains("is rejected") && log.contains("hostPath.path is not absolute, or has ..")
        });
        outside.assert_untouched();
    });
}

#[test]
fn crun_is_not_changed_by_what_it_runs() {
    isolated_network("hostile_pods::crun_is_not_changed_by_what_it_runs", || {
        let mut before = Vec::new();
        let setup = node(|setup| {
            // a copy: if crun is changed, then not the machine's
            let copy = setup.cluster.scratch().join("crun");
            fs::copy("/usr/bin/crun", &copy).unwrap();
            let bound = Command::new("mount").arg("--bind").arg(&copy).arg("/usr/bin/crun").status().unwrap();
            assert!(bound.success());
            before = fs::read("/usr/bin/crun").unwrap();
        });
        // each probe runs crun inside, and so does a program that is a link to itself
        let script = r#"$| = 1; while (1) { opendir(my $all, "/proc"); for (grep { /^\d+$/ } readdir $all) {
            my $exe = "/proc/$_/exe"; my $name = readlink($exe) // "nothing: $!"; print "saw $name\n" unless $known{$name}++;
            next if $name =~ /perl|busybox|nothing/; print "tries $name\n";
            if (open(my $file, "+<", $exe)) { print "opened\n"; print "wrote\n" if syswrite($file, "changed") }
            open(my $read, "<", $exe) or next; my $again = "/proc/self/fd/" . fileno($read);
            if (open(my $file, "+<", $again)) { print "opened again\n"; print "wrote\n" if syswrite($file, "changed") } } }"#;
        let mut watching = pod(
            "watching",
            &json!({"command": ["/usr/bin/perl", "-e", script], "livenessProbe": {"exec": {"command": ["/bin/itself"]},
                "periodSeconds": 1, "failureThreshold": 1000}}),
            &json!({}),
        );
        watching["spec"]["containers"][0]["securityContext"] =
            json!({"capabilities": {"add": ["SYS_PTRACE"]}});
        let kubectl = setup.cluster.kubectl();
        kubectl.feed(&["create", "-f", "-"], &watching.to_string()).unwrap();
        let log = || kubectl.run(&["logs", "watching"]).unwrap_or_default();
        shows(&setup, "tries at crun", "watching", || log().matches("tries ").count() >= 3);
        let itself = pod("itself", &json!({"command": ["/bin/itself", "--version"]}), &json!({}));
        let (state, _) = outcome(&setup, &itself);
        assert!(state["terminated"]["exitCode"] != 0 || state["waiting"].is_object(), "{state}");
        assert!(fs::read("/usr/bin/crun").unwrap() == before && !log().contains("wrote"), "{}", log());
        let another = json!({"command": ["/bin/sh", "-c", "echo whole"]});
        assert_eq!(outcome(&setup, &pod("another", &another, &json!({}))).1, "whole\n");
    });
}

#[test]
fn link_in_place_of_a_log_is_not_read() {
    isolated_network("hostile_pods::link_in_place_of_a_log_is_not_read", || {
        let outside = Outside::new();
        let setup = node(|_| ());
        let kubectl = setup.cluster.kubectl();
        // the known attack: write access to the machine's logs gave read access to all its files
        let script = format!(
            "echo begun; cd /logs/default_links_*/main; until [ -s 0.log ]; do sleep 0.1; done; rm 0.log; \
             busybox ln -s {OUTSIDE}/secret 0.log; busybox ln -s {OUTSIDE}/secret 0.log.1; busybox ln -s {OUTSIDE} /logs/out; \
             cd ..; busybox ln -s {OUTSIDE} other; echo x >/done/done; exec sleep 86321"
        );
        let mounts = json!([{"name": "logs", "mountPath": "/logs"}, {"name": "done", "mountPath": "/done"}]);
        let container = json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts});
        let volumes = json!({"volumes": [{"name": "logs", "hostPath": {"path": "/var/log/pods"}},
            {"name": "done", "hostPath": {"path": "/etc/done", "type": "DirectoryOrCreate"}}]});
        kubectl.feed(&["create", "-f", "-"], &pod("links", &container, &volumes).to_string()).unwrap();
        shows(&setup, "the links", "links", || Path::new("/etc/done/done").exists());
        let node = format!("/api/v1/nodes/{NODE}/proxy/logs/pods/out/secret");
        for line in [
            &["logs", "links"][..],
            &["logs", "links", "--tail=10"],
            &["logs", "-p", "links"],
            &["get", "--raw", &node],
        ] {
            let read = match kubectl.run(line) {
                Ok(text) => text,
                Err(error) => error.to_string(),
            };
            assert!(!read.contains(SECRET), "{line:?}: {read}");
        }
        let (_, text, why) = setup.cluster.agent(NODE).kedge(&["logs", "links"]).unwrap();
        assert!(!format!("{text}{why}").contains(SECRET), "{text}{why}");
        kubectl.run(&["delete", "pod", "links", "--timeout=60s"]).unwrap();
        outside.assert_untouched();
    });
}

#[test]
fn fork_bomb_ends_at_its_limit_and_harms_no_other() {
    isolated_network_alone("hostile_pods::fork_bomb_ends_at_its_limit_and_harms_no_other", || {
        const MOST: usize = 200;
        let setup = node(|setup| {
            let config = format!(
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodPidsLimit: {MOST}\n"
            );
            setup.cluster.agent(NODE).write_drop_in("20-pids.conf", &config).unwrap();
        });
        let kubectl = setup.cluster.kubectl();
        let probe = json!({"exec": {"command": ["/bin/true-here"]}, "periodSeconds": 1, "timeoutSeconds": 20, "failureThreshold": 1});
        let witness = json!({"command": ["/bin/sh", "-c", "busybox cp /bin/busybox /bin/true-here; busybox ln -sf busybox /bin/true; \
            busybox printf '#!/bin/sh\nbusybox date +%%s >>/tmp/probed\n' >/bin/true-here; exec sleep 86321"], "livenessProbe": probe});
        let mut witness = pod("witness", &witness, &json!({"restartPolicy": "Always"}));
        witness["spec"]["containers"][0]["livenessProbe"]["initialDelaySeconds"] = json!(2);
        kubectl.feed(&["create", "-f", "-"], &witness.to_string()).unwrap();
        let probes = || {
            kubectl.run(&["exec", "witness", "--", "busybox", "wc", "-l", "/tmp/probed"]).unwrap_or_default()
        };
        let count =
            || probes().split_whitespace().next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
        shows(&setup, "a probe", "witness", || count() > 0);
        let lease = || {
            let path = ["-n", "kube-node-lease", "get", "lease", NODE, "-o", "jsonpath={.spec.renewTime}"];
            kubectl.run(&path).unwrap_or_default()
        };
        let agent = || setup.cluster.agent(NODE).babysitter().state();
        let before = (agent().pid, lease());
        // each process keeps forking, also after a fork failed
        let bomb = json!({"command": ["/usr/bin/perl", "-e", "while (1) { fork }"],
            "resources": {"limits": {"cpu": "500m"}}});
        kubectl.feed(&["create", "-f", "-"], &pod("bomb", &bomb, &json!({})).to_string()).unwrap();
        let processes = || {
            let entries = fs::read_dir("/proc").unwrap().flatten();
            let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
            lines.filter(|line| line.ends_with(b"while (1) { fork }\0")).count()
        };
        shows(&setup, "a bomb at its limit", "bomb", || processes() >= MOST - 1);
        let (probed, renewed) = (count(), lease());
        std::thread::sleep(Duration::from_secs(5));
        assert!(processes() <= MOST, "{}", processes());
        setup.shows("another probe of the witness", || count() > probed);
        setup.shows("another renewal", || lease() != renewed);
        let status = kubectl.json(&["get", "pod", "witness"]).unwrap()["status"].take();
        let container = &status["containerStatuses"][0];
        assert_eq!((&container["restartCount"], &container["ready"]), (&json!(0), &json!(true)), "{status}");
        assert_eq!(agent().pid, before.0, "the agent goes on");
        kubectl.run(&["delete", "pod", "bomb", "--timeout=120s"]).unwrap();
        assert_eq!(processes(), 0);
    });
}

#[test]
fn large_pods_of_one_namespace_hide_no_news_of_others() {
    isolated_network("hostile_pods::large_pods_of_one_namespace_hide_no_news_of_others", || {
        let setup = node(|_| ());
        let kubectl = setup.cluster.kubectl();
        let web = pod("web", &json!({"command": ["/bin/sleep", "86322"]}), &json!({}));
        kubectl.feed(&["create", "-f", "-"], &web.to_string()).unwrap();
        let phase = |name: &str| {
            let read =
                kubectl.json(&["get", "pods", "-A", "--field-selector", &format!("metadata.name={name}")]);
            read.unwrap_or_default()["items"][0]["status"]["phase"].as_str().unwrap_or_default().to_owned()
        };
        setup.shows("the pod Running", || phase("web") == "Running");
        // 20 MB of pods that the node must reject, first in the order of the list; each report about one
        // costs the node one of its 50 requests a second
        kubectl.run(&["create", "namespace", "a-hog"]).unwrap();
        for name in (0..16).map(|index| format!("hog-{index}")) {
            let large = json!({"env": [{"name": "LARGE", "value": "x".repeat(1_300_000)}]});
            let large = pod(&name, &large, &json!({"nodeSelector": {"nowhere": "yes"}}));
            kubectl.feed(&["-n", "a-hog", "create", "-f", "-"], &large.to_string()).unwrap();
        }
        let log = || setup.cluster.agent(NODE).log_text();
        setup.shows("that some are left out", || log().contains("PodsLeftOut: pods of namespace a-hog"));
        for name in ["web", "next"] {
            // another pod is bound and this one deleted: seen by the watch, then by the list of another agent
            kubectl.run(&["delete", "pod", name, "--timeout=50s"]).unwrap();
            let mut next = web.clone();
            next["metadata"]["name"] = json!(if name == "web" { "next" } else { "last" });
            kubectl.feed(&["create", "-f", "-"], &next.to_string()).unwrap();
            setup.shows("the next pod Running", || {
                phase(next["metadata"]["name"].as_str().unwrap()) == "Running"
            });
            if name == "web" {
                let agent = setup.cluster.agent(NODE).babysitter();
                let before = agent.state();
                kill(before.pid.unwrap().into());
                agent
                    .wait_until("another agent", LIMIT, |state| state.runs > before.runs && state.is_ready())
                    .unwrap();
            }
        }
    });
}

#[test]
fn namespaces_of_the_machine_are_shared_on_request() {
    isolated_network("hostile_pods::namespaces_of_the_machine_are_shared_on_request", || {
        const KINDS: [&str; 4] = ["ipc", "net", "pid", "uts"];
        let setup = node(|_| ());
        let own = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string();
        let script = format!(
            "for kind in {}; do readlink /proc/self/ns/$kind; done; exec sleep 86321",
            KINDS.join(" ")
        );
        let run = json!({"command": ["/bin/sh", "-c", script]});
        let shared = |spec: &Value| -> Vec<&str> {
            let name = format!(
                "p{}",
                spec.as_object().unwrap().keys().map(|key| key.to_lowercase()).collect::<Vec<_>>().join("-")
            );
            let mut pod = pod(&name, &run, spec);
            pod["spec"]["hostNetwork"] = spec.get("hostNetwork").cloned().unwrap_or(json!(false));
            setup.cluster.kubectl().feed(&["create", "-f", "-"], &pod.to_string()).unwrap();
            let log = || setup.cluster.kubectl().run(&["logs", &name]).unwrap_or_default();
            shows(&setup, "its namespaces", &name, || log().lines().count() == KINDS.len());
            let log = log();
            KINDS
                .into_iter()
                .zip(log.lines())
                .filter(|(kind, found)| *found == own(kind))
                .map(|(kind, _)| kind)
                .collect()
        };
        assert_eq!(shared(&json!({"hostNetwork": true})), ["net", "uts"]);
        assert_eq!(shared(&json!({"hostNetwork": true, "hostPID": true})), ["net", "pid", "uts"]);
        assert_eq!(shared(&json!({"hostNetwork": true, "hostIPC": true})), ["ipc", "net", "uts"]);
        // the processes of such a pod end with it, and no others
        let other = Command::new("sleep").arg("86322").spawn();
        let mut other = other.unwrap();
        let kubectl = setup.cluster.kubectl();
        kubectl.run(&["delete", "pods", "--all", "--timeout=60s"]).unwrap();
        assert!(crate::pods::pids().is_empty());
        assert!(other.try_wait().unwrap().is_none(), "a process of the machine goes on");
        other.kill().unwrap();
        other.wait().unwrap();
    });
}

/// Swaps a directory of a volume with links to targets outside, each by one call, until there is a file
/// `stop`; then prints how often.
const SWAPS: &str = r#"
mkdir "/data/part"; open(my $own, ">", "/data/part/own"); close $own;
symlink("OUTSIDE", "/data/far"); symlink("UPOUTSIDE", "/data/up");
my ($part, @links) = ("/data/part", "/data/far", "/data/up");
open(my $begun, ">", "/data/begun"); close $begun;
until (-e "/data/stop") {
    for my $link (@links) { for (1 .. 2) { syscall(CALL, -100, $part, -100, $link, 2); $count++ } }
}
$| = 1; print $count;
sleep 86400;
"#;
#[cfg(target_arch = "x86_64")]
const RENAMEAT2: &str = "316";
#[cfg(not(target_arch = "x86_64"))]
const RENAMEAT2: &str = "276";
const STARTS: usize = 24;
/// Two dozen containers start on a busy machine; each refused one is tried again after a pause.
const ALL_TRIES: Duration = Duration::from_secs(300);

/// Containers with a `subPath`, beside one that keeps swapping that path.
#[test]
fn link_swapped_by_a_container_leads_no_other_outside() {
    isolated_network("hostile_pods::link_swapped_by_a_container_leads_no_other_outside", || {
        let outside = Outside::new();
        let setup = node(|_| ());
        let kubectl = setup.cluster.kubectl();
        let swaps = SWAPS.replace("UPOUTSIDE", &format!("{UP}{OUTSIDE}")).replace("OUTSIDE", OUTSIDE);
        let data =
            |path: &str, part: Option<&str>| json!([{"name": "data", "mountPath": path, "subPath": part}]);
        let swapper = json!({"name": "swapper", "image": "hostile:1", "restartPolicy": "Always", "resources": {"limits": {"cpu": "300m"}},
            "command": ["perl", "-e", swaps.replace("CALL", RENAMEAT2)], "volumeMounts": data("/data", None),
            "startupProbe": {"exec": {"command": ["cat", "/data/begun"]}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 60}});
        let start = |number: usize| {
            let part = if number.is_multiple_of(2) { "part" } else { "part/deeper" };
            json!({"name": format!("c{number}"), "image": "hostile:1", "volumeMounts": data("/v", Some(part)),
                "command": ["/bin/sh", "-c", "ls -a /v; cat /v/secret 2>/dev/null; echo x >/v/made; rm -f /v/made; echo end"]})
        };
        let mut pod = pod("race", &json!({}), &json!({"volumes": [{"name": "data", "emptyDir": {}}]}));
        pod["spec"]["initContainers"] = json!([swapper]);
        pod["spec"]["containers"] = (0..STARTS).map(start).collect();
        kubectl.feed(&["create", "-f", "-"], &pod.to_string()).unwrap();
        let states = || -> Vec<Value> {
            let pod = kubectl.json(&["get", "pod", "race"]).unwrap_or_default();
            let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
            all.into_iter().map(|mut container| container["state"].take()).collect()
        };
        let is_refused = |state: &Value| {
            let reason = state["waiting"]["reason"].as_str().unwrap_or_default();
            ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"].contains(&reason)
        };
        let has_ended = |state: &Value| state["terminated"].is_object();
        let count = |is_so: &dyn Fn(&Value) -> bool| states().iter().filter(|state| is_so(state)).count();
        let log = |container: &str| kubectl.run(&["logs", "race", "-c", container]).unwrap_or_default();
        shows_within(ALL_TRIES, &setup, "a try of each", "race", || {
            count(&|state| is_refused(state) || has_ended(state)) == STARTS && count(&has_ended) > 0
        });
        let (inside, refused) = (count(&has_ended), count(&is_refused));
        assert!(refused > 0, "it met the directory and the links: {:?}", states());
        kubectl.run(&["exec", "race", "-c", "swapper", "--", "/bin/sh", "-c", "echo >/data/stop"]).unwrap();
        // a refused start is tried again, with pauses
        shows_within(ALL_TRIES, &setup, "all of them, once nothing is swapped", "race", || {
            count(&has_ended) == STARTS
        });
        for number in 0..STARTS {
            let log = log(&format!("c{number}"));
            assert!(
                log.ends_with("end\n") && !log.contains(SECRET) && !log.contains("secret\n"),
                "c{number}: {log}"
            );
        }
        let swapped = log("swapper");
        println!(
            "measured: {inside} of {STARTS} containers began beside {swapped} swaps, {refused} were refused"
        );
        outside.assert_untouched();
    });
}

/// Numbers of `add_key`, `request_key` and `keyctl`.
#[cfg(target_arch = "x86_64")]
const KEY_CALLS: [&str; 3] = ["248", "249", "250"];
#[cfg(not(target_arch = "x86_64"))]
const KEY_CALLS: [&str; 3] = ["217", "218", "219"];

/// The keys that a program has in its session keyring, and those that it can reach in another one, whose
/// numbers are its arguments. No call needs a right.
const KEYS: &str = r#"
$| = 1; my $user = "user"; my @names = (NAMES);
sub keyctl { return syscall(KEYCTL, @_) }
sub said { my ($what, $done) = @_; print "$what ", ($done == -1 ? "no" : "done"), "\n" }
sub has { my ($what, $key) = @_; my $text = "\0" x 20; said("$what", keyctl(11, $key, $text, 20)) }
my ($own, $secret) = ("NAME", "SECRET"); my $key = syscall(ADD, $user, $own, $secret, length $secret, -3);
my $ring = keyctl(0, -3, 0); my $about = "\0" x 200; keyctl(6, $ring, $about, 200); $about =~ s/\0.*//s;
print "ring $ring $key $about\n"; has("own", $key);
while (my ($ring, $key, $name) = splice @ARGV, 0, 3) {
    $ring += 0; $key += 0;
    said("seen", keyctl(6, $key, my $line = "\0" x 200, 200)); has("read", $key);
    said("search", keyctl(10, -3, $user, $name, 0)); said("request", syscall(REQUEST, $user, $name, 0, 0));
    said("link", keyctl(8, $ring, -3)); has("linked", $key);
    said("list", keyctl(11, $ring, my $keys = "\0" x 40, 40)); said("clear", keyctl(7, $ring)); said("revoke", keyctl(3, $key));
    for my $name (@names) { keyctl(1, $name); has("joined", $key); said("found", keyctl(10, -3, $user, $name, 0)) }
}
open(my $all, "<", "/proc/keys"); print "listed $_" while <$all>;
print "end\n"; sleep 86400 if WAITS;
"#;

fn keys(name: &str, names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let [add, request, keyctl] = KEY_CALLS;
    KEYS.replace("KEYCTL", keyctl)
        .replace("ADD", add)
        .replace("REQUEST", request)
        .replace("SECRET", SECRET)
        .replace("NAMES", &names.join(", "))
        .replace("NAME", name)
        .replace("WAITS", if names.is_empty() { "1" } else { "0" })
}

/// The keys of the agent and of a container, tried by another container without a profile, and by a program
/// beside both.
#[test]
fn keys_of_others_are_out_of_reach_without_a_profile() {
    isolated_network("hostile_pods::keys_of_others_are_out_of_reach_without_a_profile", || {
        let scratch = kedge_rig::Scratch::new("keys").unwrap();
        let (program, told) = (scratch.join("agent"), scratch.join("told"));
        // an agent that has keys, as if inherited from the process that started it
        let [add, _, keyctl] = KEY_CALLS;
        let script = format!(
            "#!/usr/bin/perl\nif ($ARGV[0] eq \"agent\") {{\n my ($user, $name, $text) = (\"user\", \"agents\", \"{SECRET}\");\n \
             my $ring = syscall({keyctl}, 1, 0);\n my $key = syscall({add}, $user, $name, $text, length $text, -3);\n \
             open(my $told, \">\", \"{}\"); print $told \"$ring $key\"; close $told;\n}}\nexec \"{}\", @ARGV;\n",
            told.display(),
            env!("CARGO_BIN_EXE_kedge")
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut setup = Setup::before_an_agent(&program, |_| ());
        hostile_image(&mut setup);
        setup.await_pods();
        let kubectl = setup.cluster.kubectl();
        let agents = fs::read_to_string(&told).unwrap();
        let container = |script: String, more: &[String]| {
            let command = [&["perl".to_owned(), "-e".to_owned(), script], more].concat();
            json!({"command": command, "securityContext": {"seccompProfile": {"type": "Unconfined"}}})
        };
        kubectl
            .feed(
                &["create", "-f", "-"],
                &pod("owner", &container(keys("owners", &[]), &[]), &json!({})).to_string(),
            )
            .unwrap();
        let log = |name: &str| kubectl.run(&["logs", name]).unwrap_or_default();
        shows(&setup, "its keys", "owner", || log("owner").ends_with("end\n"));
        let owners = log("owner");
        let ring = |text: &str| -> Vec<String> {
            let line =
                text.lines().find_map(|line| line.strip_prefix("ring ")).unwrap_or_else(|| panic!("{text}"));
            line.split(' ').map(String::from).collect()
        };
        let owner = ring(&owners);
        assert!(owners.contains("own done\n"), "it has its own: {owners}");
        let agents: Vec<String> = agents.split(' ').map(String::from).collect();
        assert_ne!(owner[0], agents[0], "a keyring of its own");

        let uid = kubectl.run(&["get", "pod", "owner", "-o", "jsonpath={.metadata.uid}"]).unwrap();
        let names = [
            format!("{uid}.main-0"),
            "_ses".into(),
            "_ses.0".into(),
            owner[2].rsplit(';').next().unwrap().into(),
        ];
        let others = [&agents[..2], &["agents".into()], &owner[..2], &["owners".into()]].concat();
        let tries = |name: &str| container(keys(name, &names), &others);
        let (state, found) = outcome(&setup, &pod("thief", &tries("thiefs"), &json!({})));
        assert_eq!(state["terminated"]["exitCode"], 0, "{state} {found}");
        // programs that are run in containers have neither the agent's keys nor, as crun does it, their
        // container's
        let run = |pod: &str| {
            let command = tries("programs")["command"].take();
            let words: Vec<String> =
                command.as_array().unwrap().iter().map(|word| word.as_str().unwrap().into()).collect();
            let words = words.iter().map(String::as_str);
            kubectl.run(&["exec", pod, "--"].into_iter().chain(words).collect::<Vec<_>>()).unwrap()
        };
        for (who, found) in [("another container", found), ("a program beside", run("owner"))] {
            let mine = ring(&found);
            assert!(mine[0] != owner[0] && mine[0] != agents[0], "{who} has their keyring: {found}");
            assert!(found.contains("own done\n"), "{who} has its own: {found}");
            // that a key exists is not secret, nor are the numbers of a keyring's keys: the program gets them
            // as arguments
            assert_eq!(found.matches("seen done\n").count(), 2, "{found}");
            let is_fine = |line: &&str| {
                ["own done", "seen done", "list done", "end"].contains(line)
                    || line.ends_with(" no")
                    || line.starts_with("ring ")
            };
            let wrong: Vec<&str> = found.lines().filter(|line| !is_fine(line)).collect();
            assert!(wrong.is_empty(), "{who} could do {wrong:?}: {found}");
            assert_eq!(found.matches("joined no\n").count(), 2 * names.len(), "{found}");
        }
        assert!(log("owner").ends_with("end\n") && setup.cluster.agent(NODE).babysitter().state().is_ready());
    });
}
