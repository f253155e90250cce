//! A container's view of its pod, and of the machine.

use crate::setup::{INSIDE, LIMIT, Machine, isolated, processes, wanted};
use kedge_platform::workloads::{ContainerState, Workloads};
use kedge_rig::scratch::wait_until;

#[test]
fn pod_has_network_hostname_and_files_of_its_own() {
    isolated("sharing::pod_has_network_hostname_and_files_of_its_own", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut first = wanted(
            "first",
            "hostname; ip link | cat; readlink /proc/self/ns/net; cat /etc/hosts /proc/self/mounts",
        );
        first.host_network = false;
        let mut second = wanted("second", "readlink /proc/self/ns/net; id -u; id -G");
        second.host_network = false;
        second.user = "web";
        assert_eq!(runtime.run_to_end(&first).exit_code, 0);
        assert_eq!(runtime.run_to_end(&second).exit_code, 0);
        let (one, two) = (machine.logged(&first.id).join("\n"), machine.logged(&second.id).join("\n"));
        assert!(one.starts_with("web-0\n1: lo: <LOOPBACK,UP,LOWER_UP>"), "{one}");
        assert!(!one.contains("\n2: eth0") && one.contains("127.0.0.1\tlocalhost"), "{one}");
        for place in [" /dev/shm ", " /etc/hosts "] {
            let mount = one.lines().find(|line| line.contains(place)).unwrap();
            assert!(mount.contains("nosuid,nodev,noexec"), "{mount}");
        }
        let network = one.lines().find(|line| line.starts_with("net:")).unwrap();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert_ne!(network, own.to_str().unwrap());
        assert_eq!(two, format!("{network}\n100\n101 4"));
        runtime.clean_up(&[first.id, second.id]);
    });
}

#[test]
fn image_with_the_most_layers_is_whole() {
    isolated("sharing::image_with_the_most_layers_is_whole", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let before = std::env::current_dir().unwrap();
        let mut container =
            wanted("web", "set -- /f*; echo $#; cat /f000 /f125 /same; ls -d /volume/of/image");
        // with names as long as layers have; the topmost first
        container.above = (1..127)
            .map(|number| {
                let layer = machine.scratch.join(format!("{number:024}"));
                std::fs::create_dir(&layer).unwrap();
                for name in [format!("f{:03}", 126 - number), "same".to_owned()] {
                    std::fs::write(layer.join(name), format!("{number}\n")).unwrap();
                }
                layer
            })
            .collect();
        assert_eq!(runtime.run_to_end(&container).exit_code, 0);
        assert_eq!(machine.logged(&container.id), ["126", "126", "1", "1", "/volume/of/image"]);
        assert_eq!(std::env::current_dir().unwrap(), before);
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn container_on_the_host_network_cannot_change_the_machine() {
    isolated("sharing::container_on_the_host_network_cannot_change_the_machine", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let container = wanted(
            "web",
            "readlink /proc/self/ns/net; for f in /sys/kernel/uevent_seqnum /sys/fs/cgroup/memory/x /sys/fs/cgroup/*/cgroup.procs \
             /proc/sys/kernel/hostname /proc/sysrq-trigger /proc/irq/x; do echo h 2>/dev/null >$f && echo wrote $f; done; echo end",
        );
        runtime.run_to_end(&container);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert_eq!(machine.logged(&container.id), [own.to_str().unwrap(), "end"]);
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn full_hosts_file_harms_no_other_container() {
    isolated("sharing::full_hosts_file_harms_no_other_container", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let script = "for f in hosts hostname resolv.conf; do cat /dev/zero >/etc/$f; done 2>/dev/null; echo full; sleep 1000";
        let filler = wanted("filler", script);
        runtime.run(&filler);
        wait_until("full files", LIMIT, || !machine.logged(&filler.id).is_empty());
        let files = machine.settings.run.join("pods/uid-1/files");
        let bytes: u64 = ["hosts", "hostname", "resolv.conf"]
            .map(|name| std::fs::metadata(files.join(name)).unwrap().len())
            .iter()
            .sum();
        assert!((1 << 19..=1 << 20).contains(&bytes), "{bytes}");
        // its pod is prepared again with it
        let other = wanted("other", "exit 4");
        let exit = runtime.run_to_end(&other);
        assert_eq!((exit.exit_code, exit.error), (4, None));
        runtime.workloads.kill_container(&filler.id).unwrap();
        runtime.await_end(&filler.id);
        runtime.clean_up(&[filler.id, other.id]);
    });
}

#[test]
fn container_inherits_nothing_from_the_service() {
    isolated("sharing::container_inherits_nothing_from_the_service", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let container = wanted("web", "umask; env | sort; ls /proc/self/fd | cat");
        assert_eq!(runtime.run_to_end(&container).exit_code, 0);
        let seen = machine.logged(&container.id).join("\n");
        let expect = "0022\nHOME=/\nHOSTNAME=web-0\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPWD=/\nSHLVL=1\n";
        assert!(seen.starts_with(expect), "{seen}");
        assert_eq!(&seen[expect.len()..], "0\n1\n2\n3", "and the directory that is read: {seen}");
        runtime.clean_up(&[container.id]);
    });
}

#[test]
fn shared_processes_have_a_reaping_parent_without_rights() {
    isolated("sharing::shared_processes_have_a_reaping_parent_without_rights", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut first = wanted("first", "while :; do sleep 1000; done");
        first.shares_processes = true;
        let script = "ps | cat; ls /proc/1/root/ 2>&1; (sleep 0.1 & exec true); cat /proc/1/status | cat";
        let mut second = wanted("second", script);
        second.shares_processes = true;
        assert!(matches!(runtime.run(&first), ContainerState::Running { .. }));
        assert_eq!(runtime.run_to_end(&second).exit_code, 0);
        let seen = machine.logged(&second.id).join("\n");
        assert!(seen.contains("pause"), "{seen}");
        assert!(
            seen.contains("sleep 1000") || seen.contains("while :"),
            "the other container is seen: {seen}"
        );
        assert!(seen.contains("ermission denied"), "{seen}");
        assert!(seen.contains("CapEff:\t0000000000000000") && seen.contains("NoNewPrivs:\t1"), "{seen}");
        // preparing again keeps the same parent
        let before = processes("pause");
        runtime.prepare(&first);
        assert_eq!((before.len(), processes("pause")), (1, before));
        runtime.workloads.kill_container(&first.id).unwrap();
        runtime.await_end(&first.id);
        wait_until("only the parent", LIMIT, || processes("busybox").is_empty());
        runtime.clean_up(&[first.id, second.id]);
        assert_eq!(processes("pause"), Vec::<String>::new());
    });
}

/// Programs that may trace the parent process, or read what the kernel shows of it to everybody, find nothing
/// of the machine.
#[test]
fn parent_of_shared_processes_shows_no_machine() {
    isolated("sharing::parent_of_shared_processes_shows_no_machine", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let script = "cat /proc/1/net/dev | tail -n +3; ls /proc/1/fd/ /proc/1/root/ | cat; cat /proc/1/mountinfo; \
            for kind in net uts ipc; do for pid in 1 self; do readlink /proc/$pid/ns/$kind; done; done";
        let mut container = wanted("web", script);
        (container.shares_processes, container.host_network) = (true, false);
        container.security.capabilities.push("CAP_SYS_PTRACE".into());
        assert_eq!(runtime.run_to_end(&container).exit_code, 0);
        let seen = machine.logged(&container.id);
        let lines: Vec<&str> = seen.iter().map(|line| line.trim()).collect();
        let [lo, "/proc/1/fd/:", "", "/proc/1/root/:", mount, namespaces @ ..] = &lines[..] else {
            panic!("{seen:#?}")
        };
        assert!(lo.starts_with("lo: ") && mount.contains("/empty / ro,"), "{seen:#?}");
        assert_eq!(namespaces.len(), 6, "{seen:#?}");
        for pair in namespaces.chunks(2) {
            assert_eq!(pair[0], pair[1], "the parent is in the pod's own: {seen:#?}");
        }
        // the network is made anew, with another parent
        runtime.workloads.remove_container(&container.id).unwrap();
        let before = processes("pause");
        runtime.workloads.drop_network("uid-1").unwrap();
        assert_eq!(processes("pause"), Vec::<String>::new(), "it would keep the network");
        runtime.prepare(&container);
        assert_eq!(processes("pause"), before);
        runtime.clean_up(&[]);
    });
}

#[test]
fn sysctl_is_set_in_the_namespace_of_the_pod() {
    isolated("sharing::sysctl_is_set_in_the_namespace_of_the_pod", || {
        let name = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
        let before = std::fs::read_to_string(name).unwrap();
        let machine = Machine::new();
        let mut runtime = machine.open();
        let mut container = wanted("web", &format!("cat {name} /proc/sys/kernel/shm_rmid_forced"));
        container.host_network = false;
        container.security.sysctls =
            [("net.ipv4.ip_unprivileged_port_start", "77"), ("kernel.shm_rmid_forced", "1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        assert_eq!(runtime.run_to_end(&container).exit_code, 0);
        assert_eq!(machine.logged(&container.id), ["77", "1"]);
        assert_eq!(std::fs::read_to_string(name).unwrap(), before);
        runtime.clean_up(&[container.id]);
    });
}

/// The operator's group (`--cgroup-root`) has the share that the operator gave it.
#[test]
fn group_above_pods_and_shims_keeps_its_share() {
    isolated("sharing::group_above_pods_and_shims_keeps_its_share", || {
        let machine = Machine::new();
        let mut runtime = machine.open();
        let wanted = wanted("web", "exit 0");
        runtime.run_to_end(&wanted);
        let above = std::env::var(INSIDE).unwrap();
        let share_of = |group: &str| {
            let files = [
                format!("/sys/fs/cgroup/cpu{group}/cpu.shares"),
                format!("/sys/fs/cgroup{group}/cpu.weight"),
            ];
            let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
            text.expect("a machine that shares its processors").trim().to_owned()
        };
        let is_one_of = |group: &str, shares: [&str; 2]| {
            let share = share_of(group);
            assert!(shares.contains(&share.as_str()), "{group}: {share}");
        };
        is_one_of(&above, ["1024", "100"]);
        is_one_of(&machine.settings.shims_group, ["256", "10"]);
        runtime.clean_up(&[wanted.id]);
    });
}
