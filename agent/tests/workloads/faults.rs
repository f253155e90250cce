//! Steps that fail half way: nothing of them is left.

use crate::setup::{LIMIT, Machine, isolated, kill, processes, wanted};
use kedge_platform::workloads::{Cgroups, ContainerState, WorkloadError, Workloads};
use kedge_rig::scratch::wait_until;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Limit for a step of crun, which takes some ms: on a machine that starves it the other steps must still
/// finish in time.
const SHORT: Duration = Duration::from_secs(2);
const SLEEPER: &str = "while :; do sleep 1000; done";

/// crun fails or hangs: the container does not begin, says why, and can be removed.
fn check_crun(script: &str, part: &str) {
    let machine = Machine::new().with_crun(script, SHORT);
    let mut runtime = machine.open();
    let container = wanted("web", SLEEPER);
    let exit = runtime.run_to_end(&container);
    let error = exit.error.unwrap_or_default();
    assert!(error.contains(part), "{script}: {error}");
    assert_eq!(exit.started_at, None);
    runtime.clean_up(&[container.id]);
}

#[test]
fn crun_that_fails_leaves_nothing() {
    isolated("faults::crun_that_fails_leaves_nothing", || {
        check_crun("exit 1", "crun create: it wrote no error");
        check_crun(
            "[ $STEP != create ] || { echo 'no such thing' >\"$5\"; exit 1; }\nexec $REAL \"$@\"",
            "crun create: no such thing",
        );
        check_crun("[ $STEP != start ] || exit 1\nexec $REAL \"$@\"", "crun start: ");
    });
}

#[test]
fn crun_that_hangs_is_ended_at_its_limit() {
    isolated("faults::crun_that_hangs_is_ended_at_its_limit", || {
        check_crun(
            "[ $STEP = delete ] || sleep 1000\nexec $REAL \"$@\"",
            "create was not done after 2000 ms",
        );
        check_crun("[ $STEP != start ] || sleep 1000\nexec $REAL \"$@\"", "start was not done after 2000 ms");
        assert!(!processes("sleep").iter().any(|line| line.contains("1000")), "{:?}", processes("sleep"));
    });
}

#[test]
fn crun_that_does_not_forget_keeps_nothing() {
    isolated("faults::crun_that_does_not_forget_keeps_nothing", || {
        let script = "[ $STEP != delete ] || sleep 1000\nexec $REAL \"$@\"";
        let machine = Machine::new().with_crun(script, SHORT);
        let mut runtime = machine.open();
        let container = wanted("web", "exit 3");
        assert_eq!(runtime.run_to_end(&container).exit_code, 3);
        runtime.clean_up(&[container.id]);
    });
}

/// The disk becomes read-only, as one with errors does: running containers are still watched, and can be
/// stopped.
#[test]
fn read_only_disk_lets_containers_stop() {
    isolated("faults::read_only_disk_lets_containers_stop", || {
        let machine = Machine::new();
        let container = wanted("web", SLEEPER);
        let ContainerState::Running { .. } = machine.open().run(&container) else { panic!() };
        let root = machine.settings.data.parent().unwrap().to_str().unwrap().to_owned();
        let mount = |options: &[&str]| {
            assert!(Command::new("mount").args(options).status().unwrap().success(), "{options:?}");
        };
        mount(&["--bind", &root, &root]);
        mount(&["-o", "remount,bind,ro", &root]);
        let mut runtime = machine.open();
        runtime.await_state(&container.id, |state| matches!(state, ContainerState::Running { .. }));
        runtime.workloads.stop_container(&container.id, 15, Duration::ZERO).unwrap();
        assert_eq!(runtime.await_end(&container.id).exit_code, 137);
        assert!(Command::new("umount").arg(&root).status().unwrap().success());
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn missing_program_is_named_and_start_can_be_tried_again() {
    isolated("faults::missing_program_is_named_and_start_can_be_tried_again", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let container = wanted("web", "exit 6");
        let shell = machine.scratch.join("image/bin/sh");
        std::fs::rename(&shell, machine.scratch.join("sh")).unwrap();
        let exit = runtime.run_to_end(&container);
        assert!(exit.error.as_ref().is_some_and(|error| error.contains("/bin/sh")), "{exit:?}");
        std::fs::rename(machine.scratch.join("sh"), &shell).unwrap();
        // an overlay need not notice a change of its layers: made anew
        runtime.workloads.remove_container(&container.id).unwrap();
        let exit = runtime.run_to_end(&container);
        assert_eq!((exit.exit_code, exit.error), (6, None));
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn killed_shim_ends_its_container() {
    isolated("faults::killed_shim_ends_its_container", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let container = wanted("web", SLEEPER);
        assert!(matches!(runtime.run(&container), ContainerState::Running { .. }));
        let Err(WorkloadError::Busy(_)) = runtime.workloads.remove_container(&container.id) else {
            panic!("it runs")
        };
        kill(runtime.record(&container.id, "shim.json")["shim"]["pid"].as_i64().unwrap());
        let exit = runtime.await_end(&container.id);
        assert!(exit.lost && exit.started_at.is_some(), "{exit:?}");
        assert_eq!(processes("busybox"), Vec::<String>::new());
        assert_eq!(machine.open().await_end(&container.id), exit, "the next start reads the same");
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn container_that_cannot_be_read_is_ended_once() {
    isolated("faults::container_that_cannot_be_read_is_ended_once", || {
        for order in ["{\"version\":9}", "{"] {
            let machine = Machine::new();
            let mut runtime = machine.open();
            let container = wanted("web", SLEEPER);
            assert!(matches!(runtime.run(&container), ContainerState::Running { .. }));
            std::fs::write(runtime.bundle(&container.id).join("order.json"), order).unwrap();
            drop(runtime);
            let mut next = machine.open();
            assert!(next.workloads.has_containers("uid-1"), "it is not forgotten");
            let exit = next.await_end(&container.id);
            assert_eq!((exit.exit_code, exit.error), (137, None));
            assert_eq!(processes("busybox"), Vec::<String>::new());
            next.clean_up(&[container.id]);
        }
    });
}

/// A process that SIGKILL does not end, as one that waits for a dead disk; until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    /// Version 1's freezer holds a process against every signal; in the unified tree nothing does.
    fn within(group: &str, machine: &Machine, command_line: &str) -> Option<Self> {
        let Cgroups::V1(trees) = machine.cgroups() else { return None };
        let (_, tree) = trees.into_iter().find(|(name, _)| name == "freezer")?;
        let directory = tree.join(&group[1..]).join("frozen");
        std::fs::create_dir_all(&directory).unwrap();
        let is_it = |pid: &String| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").trim() == command_line
        };
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pid = pids.filter_map(|entry| entry.file_name().into_string().ok()).find(is_it).unwrap();
        std::fs::write(directory.join("cgroup.procs"), pid).unwrap();
        std::fs::write(directory.join("freezer.state"), "FROZEN").unwrap();
        wait_until("a frozen process", LIMIT, || {
            std::fs::read_to_string(directory.join("freezer.state")).unwrap().trim() == "FROZEN"
        });
        Some(Self(directory))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
    }
}

#[test]
fn container_has_not_ended_while_a_process_is_left() {
    isolated("faults::container_has_not_ended_while_a_process_is_left", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut container = wanted("web", "mkfifo /go; sleep 1000 & echo ready; read x </go; exit 5");
        // otherwise the end of the first process waits for all others
        container.shares_processes = true;
        let ContainerState::Running { pid, .. } = runtime.run(&container) else { panic!() };
        wait_until("its line", LIMIT, || !machine.logged(&container.id).is_empty());
        wait_until("its process", LIMIT, || {
            processes("sleep").iter().any(|line| line.trim() == "sleep 1000")
        });
        let group = format!("{}/burstable/poduid-1/web-0", machine.settings.pods_group);
        let frozen = Frozen::within(&group, &machine, "sleep 1000");
        std::fs::write(runtime.root(&container.id).join("go"), "x\n").unwrap();
        if let Some(frozen) = frozen {
            wait_until("its first process to end", LIMIT, || !Path::new(&format!("/proc/{pid}")).exists());
            // longer than processes may take to leave their group before they are killed again
            std::thread::sleep(Duration::from_secs(3));
            assert!(!runtime.bundle(&container.id).join("exit.json").exists());
            drop(frozen);
        }
        assert_eq!(runtime.await_end(&container.id).exit_code, 5);
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn start_while_the_lock_is_copied_is_answered() {
    isolated("faults::start_while_the_lock_is_copied_is_answered", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let container = wanted("web", "exit 3");
        runtime.create(&container).unwrap();
        // a child that another thread just forked has it open, too
        let copy = std::fs::File::create(runtime.bundle(&container.id).join("lock")).unwrap();
        copy.lock().unwrap();
        runtime.workloads.start_container(&container.id).unwrap();
        drop(copy);
        let exit = runtime.await_end(&container.id);
        assert!(exit.error.is_some(), "{exit:?}");
        runtime.workloads.start_container(&container.id).unwrap();
        assert_eq!(runtime.await_end(&container.id).exit_code, 3);
        runtime.clean_up(&[container.id]);
    });
}

/// The shim is killed while crun is held at a step; the next agent removes whatever exists of the container.
fn check_shim_killed_at(script: &str, mark: &str) {
    let machine = Machine::new();
    let mark = machine.scratch.join(mark);
    let script = script.replace("MARK", mark.to_str().unwrap());
    let machine = machine.with_crun(&script, LIMIT);
    let mut runtime = machine.open();
    let container = wanted("web", SLEEPER);
    runtime.create(&container).unwrap();
    runtime.workloads.start_container(&container.id).unwrap();
    wait_until("crun at its step", LIMIT, || mark.exists());
    kill(runtime.record(&container.id, "shim.json")["shim"]["pid"].as_i64().unwrap());
    drop(runtime);
    let mut next = machine.open();
    let exit = next.await_end(&container.id);
    assert!(exit.lost, "{exit:?}");
    next.clean_up(&[container.id]);
}

#[test]
fn shim_killed_at_each_step_of_crun_leaves_nothing() {
    isolated("faults::shim_killed_at_each_step_of_crun_leaves_nothing", || {
        for (name, script) in [
            ("before-create", "[ $STEP != create ] || { touch MARK; sleep 1000; }\nexec $REAL \"$@\""),
            ("after-create", "[ $STEP = create ] || exec $REAL \"$@\"\n$REAL \"$@\"; touch MARK; sleep 1000"),
            ("before-start", "[ $STEP != start ] || { touch MARK; sleep 1000; }\nexec $REAL \"$@\""),
            ("after-start", "[ $STEP = start ] || exec $REAL \"$@\"\n$REAL \"$@\"; touch MARK; sleep 1000"),
        ] {
            check_shim_killed_at(script, name);
        }
    });
}

#[test]
fn failed_creation_leaves_nothing() {
    isolated("faults::failed_creation_leaves_nothing", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut container = wanted("web", SLEEPER);
        container.user = "nobody";
        let error = runtime.create(&container).unwrap_err().to_string();
        assert!(error.contains("\"nobody\" is not in the image's /etc/passwd"), "{error}");
        runtime.clean_up(&[]);
    });
}

#[test]
fn after_a_reboot_nothing_of_before_is_left() {
    isolated("faults::after_a_reboot_nothing_of_before_is_left", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let container = wanted("web", "echo x >/file; while :; do sleep 1000; done");
        assert!(matches!(runtime.run(&container), ContainerState::Running { .. }));
        // a reboot keeps the disk; here even the processes from before are alive
        kill(runtime.record(&container.id, "shim.json")["shim"]["pid"].as_i64().unwrap());
        let run = machine.settings.run.clone();
        let unmount = std::process::Command::new("umount").arg(runtime.root(&container.id)).status().unwrap();
        let shared = ["shm", "ipc", "files"].map(|name| run.join("pods/uid-1").join(name));
        let shared = std::process::Command::new("umount").args(shared).status().unwrap();
        assert!(unmount.success() && shared.success());
        drop(runtime);
        std::fs::remove_dir_all(&run).unwrap();
        let mut next = machine.open();
        assert!(next.workloads.observe(Duration::ZERO).is_empty());
        machine.assert_nothing_is_left();
    });
}
