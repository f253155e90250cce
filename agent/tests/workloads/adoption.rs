//! Agents come and go, containers stay.

use crate::setup::{LIMIT, Machine, isolated, wanted};
use kedge_platform::workloads::{ContainerState, Workloads};
use kedge_rig::scratch::wait_until;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the agent's process below finds its machine.
const MACHINE: &str = "KEDGE_TEST_MACHINE";
const LIVES: usize = 20;
const SCRIPT: &str = "echo begin; mkfifo /go; exec 3<>/go; i=0; while read x <&3; do i=$((i+1)); echo $i; [ $i -lt 20 ] || exit 7; done";

/// Not a test of its own: the process that is killed. It starts its container in whatever state that is, and
/// prints a line after each step. It brings its container to run, whatever it finds, and prints a line after
/// each step.
#[test]
fn agent_process() {
    let Some(scratch) = std::env::var_os(MACHINE) else { return };
    let machine = Machine::existing(Path::new(&scratch));
    let container = wanted("web", SCRIPT);
    let mut runtime = machine.open();
    println!("step opened");
    runtime.prepare(&container);
    println!("step prepared");
    runtime.create(&container).unwrap();
    println!("step created");
    runtime.workloads.start_container(&container.id).unwrap();
    println!("step started");
    loop {
        for observation in runtime.workloads.observe(LIMIT) {
            match observation.state {
                ContainerState::Running { pid, .. } => println!("step running {pid}"),
                ContainerState::Exited(exit) => println!("step exited {}", exit.exit_code),
                ContainerState::Lost(_) => println!("step lost"),
                ContainerState::Created | ContainerState::Starting => {}
            }
        }
    }
}

#[test]
fn container_survives_twenty_killed_agents() {
    isolated("adoption::container_survives_twenty_killed_agents", || {
        let machine = Machine::new();
        let container = wanted("web", SCRIPT);
        let mut pids = Vec::new();
        for life in 0..=LIVES {
            let mut agent = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "adoption::agent_process", "--nocapture", "--test-threads=1"])
                .env(MACHINE, machine.scratch.path())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // each life is cut after another step; the last one sees the container's end
            let steps = if life == LIVES { usize::MAX } else { life % 6 };
            let mut lines = BufReader::new(agent.stdout.take().unwrap()).lines().map_while(Result::ok);
            let mut has_exited = false;
            let mut lines = lines.by_ref().filter_map(|line| Some(line.split_once("step ")?.1.to_owned()));
            let mut taken = 0;
            while taken < steps && !has_exited {
                let Some(line) = lines.next() else {
                    panic!("agent {life} ended by itself after {taken} steps")
                };
                taken += 1;
                has_exited = line.starts_with("exited");
                match line.split_once(' ') {
                    Some(("running", pid)) => pids.push(pid.to_owned()),
                    Some(("exited", code)) => assert_eq!(code, "7"),
                    _ => assert_ne!(line, "lost", "life {life}"),
                }
            }
            agent.kill().unwrap();
            agent.wait().unwrap();
            // a line from the container while no agent lives
            let root = machine.settings.run.join("pods/uid-1/c/web-0/rootfs/go");
            if life > 5 && life < LIVES {
                wait_until("the container's pipe", LIMIT, || root.exists());
                std::fs::write(&root, "x\n").unwrap();
                wait_until("its line", LIMIT, || machine.logged(&container.id).len() > life - 5);
            }
            if life == LIVES - 1 {
                while machine.logged(&container.id).len() < 21 {
                    let before = machine.logged(&container.id).len();
                    std::fs::write(&root, "x\n").unwrap();
                    wait_until("its line", LIMIT, || machine.logged(&container.id).len() > before);
                }
            }
        }
        pids.dedup();
        assert_eq!(pids.len(), 1, "one process for all agents: {pids:?}");
        let expect: Vec<String> =
            std::iter::once("begin".into()).chain((1..=20).map(|number| number.to_string())).collect();
        assert_eq!(machine.logged(&container.id), expect);
        machine.open().clean_up(&[container.id]);
    });
}

#[test]
fn container_ends_while_no_agent_lives() {
    isolated("adoption::container_ends_while_no_agent_lives", || {
        let machine = Machine::new();
        let container = wanted("web", "mkfifo /go; read x </go; exit 9");
        let mut runtime = machine.open();
        assert!(matches!(runtime.run(&container), ContainerState::Running { .. }));
        let root = runtime.root(&container.id);
        let bundle = runtime.bundle(&container.id);
        drop(runtime);
        wait_until("the container's pipe", LIMIT, || root.join("go").exists());
        std::fs::write(root.join("go"), "x\n").unwrap();
        wait_until("its record", LIMIT, || bundle.join("exit.json").exists());
        let mut next = machine.open();
        assert_eq!(next.await_end(&container.id).exit_code, 9);
        let found = next.workloads.pods();
        assert_eq!(found[0].order.as_ref().unwrap().notes["name"], "web-0");
        assert_eq!(next.workloads.notes(&container.id)["image"], "busybox");
        next.clean_up(&[container.id]);
    });
}

/// KiB of memory that a process has written to, except of files: a debug build has nearly a mebibyte of
/// relocations, the static one has no relocations.
fn written_kib(pid: i64) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut sum, mut is_of_file) = (0, false);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next().unwrap_or_default() {
            "Private_Dirty:" if !is_of_file => sum += words.next().unwrap().parse::<u64>().unwrap(),
            field if field.ends_with(':') => {}
            // address, permissions, offset, device, inode, and a path if it has one
            _ => is_of_file = words.nth(4).is_some_and(|path| path.starts_with('/')),
        }
    }
    sum
}

/// The cost of a second shim: memory that no other process shares.
#[test]
fn shim_has_little_memory_of_its_own() {
    isolated("adoption::shim_has_little_memory_of_its_own", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let both =
            ["one", "two"].map(|name| wanted(name, "seq 1 2000; echo done; while :; do sleep 1000; done"));
        for container in &both {
            runtime.run(container);
            wait_until("all lines", LIMIT, || machine.logged(&container.id).len() == 2001);
        }
        for container in &both {
            let pid = runtime.record(&container.id, "shim.json")["shim"]["pid"].as_i64().unwrap();
            // the log's buffer shrinks once it has been written
            wait_until("512 KiB of private memory at most", LIMIT, || written_kib(pid) <= 512);
            runtime.workloads.kill_container(&container.id).unwrap();
            runtime.await_end(&container.id);
        }
        runtime.clean_up(&both.map(|container| container.id));
    });
}
