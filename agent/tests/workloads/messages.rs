//! Messages in which containers say why they ended, as Kubernetes' conformance tests have them, and from a
//! hostile container.

use crate::network::{Agent, container, sandbox};
use crate::setup::{LIMIT, Machine, isolated};
use kedge_core::pods::{
    ContainerOrder, ContainerState, Exit, Observation, PodAction, PodEvent, PodSandbox, Security,
    TerminationMessage,
};
use kedge_rig::scratch::wait_until;

pub(crate) const POD: &str = "uid-a";

pub(crate) fn order(name: &str, script: &str, path: &str, falls_back_to_logs: bool) -> ContainerOrder {
    let mut order = container(POD, script);
    order.key.container = name.into();
    order.termination_message = TerminationMessage { path: path.into(), falls_back_to_logs };
    order
}

fn prepared(machine: &Machine) -> Agent {
    let mut agent = Agent::of(machine);
    let pod = PodSandbox { host_network: true, ..sandbox(POD, None) };
    let events = agent.0.perform(&PodAction::PreparePod(Box::new(pod))).unwrap();
    agent.awaits(events, |event| matches!(event, PodEvent::PodPrepared { .. }).then_some(()));
    agent
}

fn start(agent: &mut Agent, order: ContainerOrder) -> Vec<PodEvent> {
    let key = order.key.clone();
    let events = agent.0.perform(&PodAction::CreateContainer(Box::new(order))).unwrap();
    agent.awaits(events, |event| matches!(event, PodEvent::Observed(_)).then_some(()));
    agent.0.perform(&PodAction::StartContainer(key)).unwrap()
}

fn end_of(observation: &Observation) -> Option<Exit> {
    match &observation.state {
        ContainerState::Exited(exit) => Some(exit.clone()),
        _ => None,
    }
}

pub(crate) fn run_to_end(agent: &mut Agent, order: ContainerOrder) -> Exit {
    let key = order.key.clone();
    let events = start(agent, order);
    let exit = agent.awaits(events, |event| match event {
        PodEvent::Observed(observation) if observation.container == key => end_of(observation),
        _ => None,
    });
    agent.0.perform(&PodAction::RemoveContainer(key)).unwrap();
    exit
}

#[test]
fn message_comes_from_the_file_or_the_log() {
    isolated("messages::message_comes_from_the_file_or_the_log", || {
        let machine = Machine::new();
        let mut agent = prepared(&machine);
        let default = "/dev/termination-log";
        let mut custom = order("custom", "echo -n DONE > /dev/other-log", "/dev/other-log", false);
        custom.security = Security { user: Some(1000), ..Security::default() };
        let logs = order("logs", "echo -n DONE; exit 1", default, true);
        let both = order("both", "echo -n OK > /dev/termination-log; echo DONE", default, true);
        let fine = order("fine", "echo DONE", default, true);
        let file_only = order("file", "echo DONE; exit 1", default, false);
        for (order, code, expect) in
            [(custom, 0, "DONE"), (logs, 1, "DONE"), (both, 0, "OK"), (fine, 0, ""), (file_only, 1, "")]
        {
            let name = order.key.container.clone();
            let exit = run_to_end(&mut agent, order);
            assert_eq!((exit.code, exit.message.as_str()), (code, expect), "{name}");
        }
        agent.remove(POD);
        machine.assert_nothing_is_left();
        assert!(!machine.scratch.join("volumes").join(POD).exists());
    });
}

#[test]
fn hostile_container_neither_replaces_nor_fills_it() {
    isolated("messages::hostile_container_neither_replaces_nor_fills_it", || {
        let machine = Machine::new();
        let mut agent = prepared(&machine);
        let script = "cd /dev; seq 1 200000 > termination-log; /bin/busybox rm -f termination-log; \
            mkfifo termination-log; /bin/busybox ln -sf /etc/passwd termination-log; exit 3";
        let exit = run_to_end(&mut agent, order("main", script, "/dev/termination-log", false));
        assert_eq!((exit.code, exit.message.len()), (3, 4096));
        assert!(exit.message.ends_with("199999\n200000\n"), "{:?}", &exit.message[4000..]);
        agent.remove(POD);
        machine.assert_nothing_is_left();
    });
}

#[test]
fn message_of_an_unwatched_end_is_read_by_the_next_agent() {
    isolated("messages::message_of_an_unwatched_end_is_read_by_the_next_agent", || {
        let machine = Machine::new();
        let mut agent = prepared(&machine);
        let order = order("main", "echo why > /dev/termination-log; exit 3", "/dev/termination-log", false);
        let key = order.key.clone();
        start(&mut agent, order);
        drop(agent);
        let record = machine.settings.run.join("pods").join(POD).join("c/main-0/exit.json");
        wait_until("the record of the end", LIMIT, || record.exists());
        let mut next = Agent::of(&machine);
        let PodEvent::Inventory(inventory) = next.0.inventory() else { panic!("no inventory") };
        let ends: Vec<Exit> = inventory.containers.iter().filter_map(end_of).collect();
        assert_eq!(ends.iter().map(|end| end.message.as_str()).collect::<Vec<_>>(), ["why\n"]);
        next.0.perform(&PodAction::RemoveContainer(key)).unwrap();
        next.remove(POD);
        machine.assert_nothing_is_left();
    });
}
