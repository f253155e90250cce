//! How containers end, and what their logs hold then.

use crate::setup::{Machine, isolated, kill, wanted};
use kedge_platform::workloads::{Cgroups, ContainerState, Workloads};
use std::time::Duration;

#[test]
fn exit_code_times_and_output_are_known() {
    isolated("ends::exit_code_times_and_output_are_known", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let container = wanted("web", "echo out; echo err >&2; echo -n last; exit 3");
        let exit = runtime.run_to_end(&container);
        assert_eq!((exit.exit_code, exit.signal, exit.oom_killed, exit.lost), (3, None, false, false));
        assert!(exit.started_at.unwrap() <= exit.finished_at);
        assert_eq!(exit.error, None);
        let mut logged = machine.logged(&container.id);
        logged.sort();
        assert_eq!(logged, ["err", "last", "out"]);
        runtime.clean_up(&[container.id]);
        let text = std::fs::read_to_string(machine.log(&wanted("web", "").id)).unwrap();
        assert!(text.contains(" stderr F err\n") && text.contains(" stdout F last\n"), "{text}");
    });
}

#[test]
fn stop_gives_grace_then_kills() {
    isolated("ends::stop_gives_grace_then_kills", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let polite = wanted("polite", "trap 'exit 5' TERM; echo ready; while :; do sleep 1; done");
        // a first process without a handler ignores SIGTERM
        let stubborn = wanted("stubborn", "echo ready; while :; do sleep 1000; done");
        for container in [&polite, &stubborn] {
            assert!(matches!(runtime.run(container), ContainerState::Running { .. }));
            kedge_rig::scratch::wait_until("the trap", crate::setup::LIMIT, || {
                !machine.logged(&container.id).is_empty()
            });
        }
        runtime.workloads.stop_container(&polite.id, 15, Duration::from_secs(50)).unwrap();
        assert_eq!(runtime.await_end(&polite.id).exit_code, 5);
        runtime.workloads.stop_container(&stubborn.id, 15, Duration::from_millis(200)).unwrap();
        let exit = runtime.await_end(&stubborn.id);
        assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (137, Some(9), false));
        // a container that has ended reports its end again, and is not started again
        runtime.workloads.start_container(&stubborn.id).unwrap();
        assert_eq!(runtime.await_end(&stubborn.id), exit);
        runtime.clean_up(&[polite.id, stubborn.id]);
    });
}

#[test]
fn shorter_grace_ends_a_longer_one() {
    isolated("ends::shorter_grace_ends_a_longer_one", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let container = wanted("web", "while :; do sleep 1000; done");
        runtime.run(&container);
        runtime.workloads.stop_container(&container.id, 15, Duration::from_secs(u64::MAX)).unwrap();
        runtime.workloads.kill_container(&container.id).unwrap();
        assert_eq!(runtime.await_end(&container.id).exit_code, 137);
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn end_for_want_of_memory_is_told_from_a_kill() {
    isolated("ends::end_for_want_of_memory_is_told_from_a_kill", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut hungry = wanted("hungry", "exec dd if=/dev/zero of=/dev/null bs=100M count=1");
        hungry.memory = Some(16 << 20);
        let exit = runtime.run_to_end(&hungry);
        assert_eq!(
            (exit.exit_code, exit.signal, exit.oom_killed),
            (137, Some(9), true),
            "{:?}",
            machine.logged(&hungry.id)
        );
        // a helper runs out of memory; the first process survives it and then exits by itself
        let mut parent = wanted("parent", "dd if=/dev/zero of=/dev/null bs=100M count=1; echo $?; exit 4");
        parent.memory = Some(16 << 20);
        let exit = runtime.run_to_end(&parent);
        // in a unified tree all of the container is killed at once
        if matches!(machine.cgroups(), Cgroups::V1(_)) {
            assert_eq!((exit.exit_code, exit.oom_killed), (4, false));
            assert!(machine.logged(&parent.id).contains(&"137".to_owned()));
        }
        let victim = wanted("victim", "while :; do sleep 1000; done");
        let ContainerState::Running { pid, .. } = runtime.run(&victim) else { panic!() };
        kill(pid.into());
        let exit = runtime.await_end(&victim.id);
        assert_eq!((exit.signal, exit.oom_killed), (Some(9), false));
        runtime.clean_up(&[hungry.id, parent.id, victim.id]);
    });
}

#[test]
fn fifty_thousand_lines_rotate_without_loss() {
    isolated("ends::fifty_thousand_lines_rotate_without_loss", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut container = wanted("web", "seq 1 50000");
        container.log_bytes = 256 << 10;
        container.log_files = 100;
        let exit = runtime.run_to_end(&container);
        assert_eq!((exit.exit_code, exit.dropped_lines), (0, 0));
        let logged = machine.logged(&container.id);
        assert_eq!(logged.len(), 50_000);
        assert!(logged.iter().zip(1..).all(|(line, number)| *line == number.to_string()));
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn full_log_disk_delays_no_container() {
    isolated("ends::full_log_disk_delays_no_container", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let small = machine.scratch.join("small");
        std::fs::create_dir(&small).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=64k", "small", small.to_str().unwrap()];
        assert!(std::process::Command::new("mount").args(mount).status().unwrap().success());
        let mut container = wanted("web", "seq 1 20000");
        container.log = Some(small.join("0.log"));
        let exit = runtime.run_to_end(&container);
        assert_eq!(exit.exit_code, 0);
        let written = std::fs::read_to_string(small.join("0.log")).unwrap();
        // but for the notices, which small as they are may find room
        let kept = written.lines().filter(|line| !line.contains(" stderr F kedge: ")).count() as u64;
        assert_eq!(kept + exit.dropped_lines, 20_000, "what is not written is counted");
        assert!(exit.dropped_lines > 10_000 && written.ends_with('\n'));
        assert!(std::process::Command::new("umount").arg(&small).status().unwrap().success());
        runtime.clean_up(&[container.id]);
    });
}
