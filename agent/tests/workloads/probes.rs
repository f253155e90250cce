//! Programs beside a container's own, and probes from `kubectl apply` to a restart.

use crate::pods::{NODE, Setup, pids};
use crate::setup::{LIMIT, Machine, id, isolated, isolated_network, processes, wanted};
use kedge_platform::workloads::{ContainerId, Exec, ExecEnd, Session, SessionOrder, Workloads};
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::os::fd::AsFd as _;
use std::time::Duration;

fn run(machine: &Machine, id: &ContainerId, script: &str, limit: Duration) -> Result<ExecEnd, String> {
    let command = ["/bin/sh", "-c", script].map(String::from);
    let exec = Exec { id, command: &command, limit, output_bytes: 100, stop: None };
    exec.run(&machine.settings).map(|(end, _)| end).map_err(|error| error.to_string())
}

#[test]
fn program_runs_as_the_container_does() {
    isolated("probes::program_runs_as_the_container_does", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut order = wanted("a", "exec sleep 1000");
        order.user = "web";
        runtime.run(&order);
        let a = id("a", 0);
        let ended = |code, output: &str| Ok(ExecEnd::Ended { code, output: output.into() });
        let own = "id -u; readlink /proc/1/exe; echo why >&2; exit 3";
        assert_eq!(run(&machine, &a, own, LIMIT), ended(3, "100\n/bin/busybox\nwhy\n"));
        assert_eq!(run(&machine, &a, "kill -9 $$", LIMIT), ended(137, ""));
        let long = run(&machine, &a, "seq 100000", LIMIT);
        assert!(matches!(&long, Ok(ExecEnd::Ended { code: 0, output }) if output.len() == 100), "{long:?}");

        // a program that could not be run proves nothing about the container
        let none = ["/bin/none".to_owned()];
        let missing = Exec { id: &a, command: &none, limit: LIMIT, output_bytes: 100, stop: None };
        let error = missing.run(&machine.settings).unwrap_err().to_string();
        assert!(error.contains("crun exec ended with") && error.contains("none"), "{error}");
        assert!(run(&machine, &id("b", 0), "true", LIMIT).is_err());

        // a program that takes too long is killed together with its children
        let hung = run(&machine, &a, "sleep 77001 & sleep 77002", Duration::from_millis(500));
        assert_eq!(hung, Ok(ExecEnd::TimedOut));
        let is_left = |process: &String| process.contains("7700");
        wait_until("the end of its processes", LIMIT, || !processes("sleep").iter().any(is_left));

        // and so is a program that is stopped
        let (stop, goes_on) = std::io::pipe().unwrap();
        let command = ["/bin/sh", "-c", "sleep 77004 & sleep 77005"].map(String::from);
        let stop = Some(stop.as_fd());
        let long = Exec { id: &a, command: &command, limit: 1000 * LIMIT, output_bytes: 100, stop };
        let stopped = std::thread::scope(|scope| {
            let ran = scope.spawn(|| long.run(&machine.settings).map_err(|error| error.to_string()));
            wait_until("its processes", LIMIT, || {
                processes("sleep").iter().filter(|it| is_left(it)).count() >= 2
            });
            drop(goes_on);
            ran.join().unwrap()
        });
        assert!(matches!(stopped, Ok((ExecEnd::Stopped, None))), "{stopped:?}");
        wait_until("the end of its processes", LIMIT, || !processes("sleep").iter().any(is_left));

        // nothing waits for a child that continues in the background
        assert_eq!(run(&machine, &a, "sleep 77003 & exit 0", LIMIT), ended(0, ""));
        let files = fs::read_dir(runtime.bundle(&a)).unwrap().flatten();
        let left = files.filter(|file| file.file_name().to_string_lossy().starts_with("exec-"));
        assert_eq!(left.count(), 0, "no file of a program that ended");
    });
}

/// A dead program whose parent is outside the container keeps the container's PID namespace, and so the
/// container, from ending.
#[test]
fn container_ends_after_programs_were_killed_in_it() {
    isolated("probes::container_ends_after_programs_were_killed_in_it", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let order = wanted("a", "exec sleep 1000");
        runtime.run(&order);
        for _ in 0..10 {
            let hung = run(&machine, &order.id, "sleep 1000 & sleep 1000", Duration::from_millis(200));
            assert_eq!(hung, Ok(ExecEnd::TimedOut));
        }
        // a child with a session of its own, too
        let hung = run(
            &machine,
            &order.id,
            "/bin/busybox setsid sh -c 'sleep 86413; :' & sleep 1000",
            Duration::from_millis(500),
        );
        assert_eq!((hung, processes("86413")), (Ok(ExecEnd::TimedOut), Vec::new()));
        let command = ["/bin/sh", "-c", "sleep 1000 & sleep 1000"].map(String::from);
        for _ in 0..10 {
            let order = SessionOrder {
                id: &order.id,
                command: &command,
                stdin: false,
                stdout: false,
                stderr: false,
                terminal: None,
            };
            let mut session = Session::start(&order, &machine.settings).unwrap();
            session.kill();
        }
        runtime.workloads.kill_container(&order.id).unwrap();
        assert_eq!(runtime.await_end(&order.id).exit_code, 137);
        runtime.clean_up(&[order.id]);
    });
}

/// The pod's only container, as its status has it, and its condition `Ready`.
fn shown(setup: &Setup) -> (Value, Value) {
    let status = setup.cluster.kubectl().json(&["get", "pod", "web"]).unwrap_or_default()["status"].take();
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap_or_default();
    (status["containerStatuses"][0].clone(), ready)
}

fn has_event(setup: &Setup, text: &str) -> bool {
    setup.cluster.kubectl().run(&["get", "events"]).is_ok_and(|events| events.contains(text))
}

/// A file in the container.
fn inside(path: &str) -> String {
    let pid = pids().first().copied().unwrap_or_default();
    format!("/proc/{pid}/root{path}")
}

#[test]
fn probes_decide_on_readiness_and_restarts() {
    isolated_network("probes::probes_decide_on_readiness_and_restarts", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        let script = "echo ok >/tmp/live; /bin/busybox httpd -p 127.0.0.1:18080 -h /tmp; exec sleep 86321";
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
            "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [{
                "name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script],
                "ports": [{"name": "health", "containerPort": 18080}],
                "startupProbe": {"tcpSocket": {"host": "127.0.0.1", "port": "health"}, "periodSeconds": 1},
                "livenessProbe": {"httpGet": {"host": "127.0.0.1", "port": "health", "path": "/live"},
                    "periodSeconds": 1, "failureThreshold": 2},
                "readinessProbe": {"exec": {"command": ["cat", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 30}}]}});
        kubectl.feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
        setup.shows("a container that has started, and is not ready", || {
            let (container, ready) = shown(&setup);
            container["started"] == true && container["ready"] == false && ready["status"] == "False"
        });
        setup.shows("a probe that failed", || {
            has_event(&setup, "Readiness probe failed: cat: can't open '/tmp/ready'")
        });
        fs::write(inside("/tmp/ready"), "").unwrap();
        setup.shows("a pod that is ready", || {
            let (container, ready) = shown(&setup);
            container["ready"] == true && ready["status"] == "True"
        });

        // another agent: it was ready, and is
        let since = shown(&setup).1["lastTransitionTime"].clone();
        setup.replace_the_agent();
        assert_eq!(shown(&setup).1["lastTransitionTime"], since);
        fs::remove_file(inside("/tmp/ready")).unwrap();
        setup.shows("another agent that probes", || shown(&setup).1["status"] == "False");
        fs::write(inside("/tmp/ready"), "").unwrap();
        setup.shows("a pod that is ready again", || shown(&setup).1["status"] == "True");
        assert_ne!(shown(&setup).1["lastTransitionTime"], since);

        fs::remove_file(inside("/tmp/live")).unwrap();
        setup.shows("another run", || {
            let (container, _) = shown(&setup);
            container["restartCount"] == 1 && container["started"] == true && container["ready"] == false
        });
        for text in [
            "Liveness probe failed: HTTP probe failed with statuscode: 404",
            "Container main failed liveness probe, will be restarted",
        ] {
            setup.shows(text, || has_event(&setup, text));
        }
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
        assert_eq!(pids(), [0; 0]);
    });
}

/// Four pods whose programs never end, sixteen of them, which is as many as run at once; and one more pod.
#[test]
fn probe_runs_beside_pods_whose_probes_hang() {
    isolated_network("probes::probe_runs_beside_pods_whose_probes_hang", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        let pod = |name: &str, containers: Vec<Value>| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": NODE,
                "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": containers}})
        };
        let container = |name: &str| json!({"name": name, "image": "web:1", "command": ["/bin/sh", "-c", "exec sleep 86321"]});
        let hangs =
            json!({"exec": {"command": ["sleep", "77123"]}, "periodSeconds": 1, "timeoutSeconds": 1_000_000});
        let hung = |name: &str| {
            let mut container = container(name);
            container["livenessProbe"] = hangs.clone();
            container["readinessProbe"] = hangs.clone();
            container
        };
        let names = ["hung-0", "hung-1", "hung-2", "hung-3"];
        for name in names {
            kubectl.feed(&["apply", "-f", "-"], &pod(name, vec![hung("a"), hung("b")]).to_string()).unwrap();
        }
        let programs = || processes("sleep").iter().filter(|process| process.contains("77123")).count();
        setup.shows("programs in all places", || programs() == 16);

        let mut web = container("main");
        web["readinessProbe"] =
            json!({"exec": {"command": ["/bin/sh", "-c", "true"]}, "periodSeconds": 1, "timeoutSeconds": 30});
        kubectl.feed(&["apply", "-f", "-"], &pod("web", vec![web]).to_string()).unwrap();
        setup.shows("a pod that is ready beside them", || shown(&setup).1["status"] == "True");
        setup.shows("why a program of others was stopped", || {
            has_event(&setup, "probe errored and resulted in unknown state: it was stopped to make room for those of other pods")
        });
        wait_until("the end of that program", LIMIT, || programs() == 15);
        for name in names {
            let status = kubectl.json(&["get", "pod", name]).unwrap()["status"].take();
            for container in status["containerStatuses"].as_array().unwrap() {
                assert_eq!(
                    (&container["restartCount"], &container["ready"]),
                    (&json!(0), &json!(false)),
                    "{status}"
                );
            }
        }
        // a container ends although programs in it were stopped
        let all = [&names[..], &["web"]].concat();
        kubectl.run(&[&["delete", "pod", "--timeout=120s"], &all[..]].concat()).unwrap();
        assert_eq!((pids(), programs()), (vec![], 0));
    });
}

#[test]
fn hooks_run_after_the_start_and_before_the_stop() {
    isolated_network("probes::hooks_run_after_the_start_and_before_the_stop", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        let told = setup.cluster.payload_file("told", "").unwrap();
        let directory = told.parent().unwrap().to_str().unwrap();
        let told = told.with_extension("");
        let say =
            |text: &str| json!({"exec": {"command": ["/bin/sh", "-c", format!("echo {text} >>/told/told")]}});
        let second =
            "echo main >>/told/told; trap 'echo signal >>/told/told; exit 0' TERM; sleep 86321 & wait";
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
            "nodeName": NODE, "hostNetwork": true, "restartPolicy": "Never",
            "volumes": [{"name": "told", "hostPath": {"path": directory}}],
            "containers": [
                {"name": "first", "image": "web:1", "command": ["sleep", "86321"],
                    "volumeMounts": [{"name": "told", "mountPath": "/told"}],
                    "lifecycle": {"postStart": {"exec": {"command": ["/bin/sh", "-c", "sleep 1; echo started >>/told/told"]}}}},
                {"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", second],
                    "volumeMounts": [{"name": "told", "mountPath": "/told"}],
                    "lifecycle": {"preStop": say("stopping")}}]}});
        kubectl.feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
        let heard = || fs::read_to_string(&told).unwrap_or_default();
        setup.shows("the second container, behind the first one's hook", || heard() == "started\nmain\n");
        setup.shows("a pod that is ready", || shown(&setup).1["status"] == "True");
        kubectl.run(&["delete", "pod", "web", "--grace-period=5", "--timeout=60s"]).unwrap();
        assert_eq!(heard(), "started\nmain\nstopping\nsignal\n");
        assert_eq!(pids(), [0; 0]);

        // a container whose hook fails is ended, and the event omits the hook's output
        let mut failing = pod.clone();
        failing["spec"]["containers"] = json!([{"name": "main", "image": "web:1", "command": ["sleep", "86321"],
            "lifecycle": {"postStart": {"exec": {"command": ["/bin/sh", "-c", "echo secret; exit 1"]}}}}]);
        failing["spec"]["terminationGracePeriodSeconds"] = json!(1);
        kubectl.feed(&["apply", "-f", "-"], &failing.to_string()).unwrap();
        setup.shows("a pod that failed", || {
            kubectl.json(&["get", "pod", "web"]).unwrap_or_default()["status"]["phase"] == "Failed"
        });
        setup.shows("the Event", || has_event(&setup, "PostStartHook failed"));
        assert!(!has_event(&setup, "secret"));
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
        fs::remove_file(&told).unwrap();
        requests_and_sleeps_are_performed(&setup, directory);
    });
}

/// Seconds since the boot, as containers see them, too.
fn uptime(text: &str) -> f64 {
    text.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{text:?}"))
}

/// Hooks that ask a sidecar, and one that sleeps; and the ends of containers in their order: sidecars last,
/// the last of them first.
fn requests_and_sleeps_are_performed(setup: &Setup, directory: &str) {
    let kubectl = setup.cluster.kubectl();
    let told = || fs::read_to_string(format!("{directory}/told")).unwrap_or_default();
    let until_term = |name: &str, more: &str| {
        let script = format!(
            "trap '{more} echo {name} >>/told/told; exit 0' TERM; echo {name} begins >>/told/told; while :; do sleep 0.1; done"
        );
        json!(["/bin/sh", "-c", script])
    };
    let serve = "/bin/busybox mkdir -p /tmp/www/cgi-bin; \
        printf '#!/bin/sh\necho asked $QUERY_STRING >>/told/told; echo Content-Type: text/plain; echo\n' >/tmp/www/cgi-bin/say; \
        /bin/busybox chmod 755 /tmp/www/cgi-bin/say; /bin/busybox httpd -p 127.0.0.1:18083 -h /tmp/www; \
        trap 'echo server >>/told/told; exit 0' TERM; while :; do sleep 0.1; done";
    let ask = |what: &str| json!({"httpGet": {"host": "127.0.0.1", "port": 18083, "path": format!("/cgi-bin/say?{what}")}});
    let container = |name: &str, command: Value| {
        json!({"name": name, "image": "web:1", "command": command,
            "volumeMounts": [{"name": "told", "mountPath": "/told"}]})
    };
    let mut server = container("server", json!(["/bin/sh", "-c", serve]));
    server["restartPolicy"] = json!("Always");
    server["startupProbe"] = json!({"tcpSocket": {"host": "127.0.0.1", "port": 18083}, "periodSeconds": 1, "failureThreshold": 60});
    let mut side = container("side", until_term("side", ""));
    side["restartPolicy"] = json!("Always");
    let mut main = container("main", until_term("main", ""));
    main["lifecycle"] = json!({"postStart": ask("post"), "preStop": ask("pre")});
    let mut slow = container("slow", until_term("slow", "cat /proc/uptime >/told/slow;"));
    slow["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 3}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 60,
        "volumes": [{"name": "told", "hostPath": {"path": directory}}],
        "initContainers": [server, side], "containers": [main, slow]}});
    kubectl.feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
    setup.shows("a pod that is ready", || shown(setup).1["status"] == "True");
    setup.shows("all of them", || told().contains("slow begins"));
    let begun = told();
    let at = |text: &str, line: &str| {
        text.lines().position(|found| found == line).unwrap_or_else(|| panic!("no {line:?}: {text}"))
    };
    // the container behind the one with the hook waits for its end
    assert!(at(&begun, "side begins") < at(&begun, "asked post"), "{begun}");
    assert!(at(&begun, "asked post") < at(&begun, "slow begins"), "{begun}");

    let before = uptime(&fs::read_to_string("/proc/uptime").unwrap());
    kubectl.run(&["delete", "pod", "web", "--timeout=120s"]).unwrap();
    let all = told();
    let waited = uptime(&fs::read_to_string(format!("{directory}/slow")).unwrap()) - before;
    assert!((3.0..60.0).contains(&waited), "the signal came after {waited} s: {all}");
    assert!(at(&all, "asked pre") < at(&all, "main"), "{all}");
    assert!(at(&all, "main").max(at(&all, "slow")) < at(&all, "side"), "{all}");
    assert!(at(&all, "side") < at(&all, "server"), "{all}");
    assert_eq!(all.matches("asked ").count(), 2, "each hook once: {all}");
}
