//! Volumes that are images, with real mounts and crun: the files that a container sees of them, and the
//! accesses that are refused.

use crate::messages::{POD, order, run_to_end};
use crate::network::{Agent, sandbox};
use crate::setup::{Machine, isolated};
use kedge_core::pods::{Mount, PodAction, PodEvent, PodSandbox, Volume, VolumeSource};

fn mount(path: &str, sub_path: &str) -> Mount {
    Mount {
        volume: "image".into(),
        path: path.into(),
        read_only: true,
        no_exec: true,
        follows_host: false,
        sub_path: sub_path.into(),
    }
}

#[test]
fn image_volume_is_read_only_and_runs_nothing() {
    isolated("image_volumes::image_volume_is_read_only_and_runs_nothing", || {
        let machine = Machine::new();
        let mut agent = Agent::of(&machine);
        let source = VolumeSource::Image { id: "any".into() };
        let image = Volume { name: "image".into(), source, group: Some(2000) };
        let pod = PodSandbox { host_network: true, volumes: vec![image], ..sandbox(POD, None) };
        let prepare = PodAction::PreparePod(Box::new(pod));
        // the second time as after an agent that was killed in the middle of it
        for _ in 0..2 {
            let events = agent.0.perform(&prepare).unwrap();
            agent.awaits(events, |event| matches!(event, PodEvent::PodPrepared { .. }).then_some(()));
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert_eq!(mounts.matches("/memory/uid-a/image ").count(), 1, "{mounts}");
        let script = "[ \"$(cat /image/etc/passwd)\" = \"$(cat /etc/passwd)\" ] || exit 11; \
            [ \"$(cat /part/passwd)\" = \"$(cat /etc/passwd)\" ] || exit 12; \
            (echo x >/image/etc/x) 2>/dev/null && exit 13; (echo x >/part/x) 2>/dev/null && exit 14; \
            /image/bin/busybox true; [ $? = 126 ] || exit 15; \
            echo fine >/dev/termination-log";
        let mut container = order("main", script, "/dev/termination-log", false);
        container.mounts = vec![mount("/image", ""), mount("/part", "etc")];
        let exit = run_to_end(&mut agent, container);
        assert_eq!((exit.code, exit.message.as_str()), (0, "fine\n"));
        agent.remove(POD);
        machine.assert_nothing_is_left();
        assert!(!machine.scratch.join("memory").join(POD).exists());
        assert!(!machine.scratch.join("image/etc/x").exists());
    });
}
