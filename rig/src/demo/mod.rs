//! The chapters of `make try`, with three real agents and a real hub. The configurations are a good one, one
//! that does not parse, one that does not validate, one that would do harm, one under which the agent
//! crashes, and the repair. Then come two variants in one ConfigMap, a move to another hub, and a rollout
//! that stops. Meanwhile each node runs a pod (`pods`), where this machine can run containers.
//!
//! Owns the order of events and the results expected in each chapter. Always holds: a chapter ends only when
//! the API server shows its expected result; a late heartbeat at any time before the move is a failure. It
//! changes the cluster only with kubectl, and shows each command.

mod pods;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::pods::Pods;
use crate::agent::{Agent, AgentOptions};
use crate::babysitter::ServiceResult;
use crate::cluster::{Cluster, HEADER, PATIENCE, Source, borrowed, create_arguments, uid_of};
use crate::console::{Console, Tone, clock};
use crate::error::RigError;
use crate::hub::Hub;
use crate::kubectl::{Kubectl, shown};
use crate::programs;
use crate::scratch::poll;
use crate::signals::StopSignal;
use crate::view::{ConfigStatus, Fact, FactKind, View, World};

/// The nodes. The first one gets the configuration that does not parse, and so on.
const NODES: [&str; 3] = ["edge-1", "edge-2", "edge-3"];
/// The nodes of the rollout: those that stay when the first one has moved.
const ROLLED_OUT: [&str; 2] = ["edge-2", "edge-3"];
const ROLLOUT: &str = "
apiVersion: fleet.kedge.dev/v1
kind: ConfigRollout
metadata: {name: shops}
spec:
  selector: {matchLabels: {fleet.kedge.dev/group: shops}}
  source: {name: shop-settings}
  strategy:
    completeAfter: 2s
    batches:
    - selector: {matchLabels: {fleet.kedge.dev/ring: canary}}
";
/// `configTrialDuration` of every configuration in the demo. The default is ten minutes.
const TRIAL: Duration = Duration::from_secs(15);
/// `crashLoopThreshold` in the demo. The default is ten.
const CRASH_LOOP_THRESHOLD: usize = 2;
/// As in [`crate::agent::RIG_DROP_IN`]: if a Lease is not renewed for this long, a heartbeat was lost.
const LEASE_DURATION: Duration = Duration::from_secs(12);
/// How often the agents are queried for the rest of their trial.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often that is printed if the output is not a terminal.
const PRINT_EVERY: Duration = Duration::from_secs(5);
/// Lines of each log that are shown after a failure.
const LOG_TAIL_LINES: usize = 15;

/// Three nodes, a hub, and the view of its API.
pub struct Demo {
    console: Console,
    stop: Receiver<StopSignal>,
    cluster: Cluster,
    names: Vec<(String, String)>,
    printed_facts: usize,
    printed_ends: Vec<u64>,
    trials: Vec<Option<Duration>>,
    asked: Option<Instant>,
    printed_trials: Option<Instant>,
    ready_since: Option<Instant>,
    elsewhere: Option<Elsewhere>,
    /// `Err`: the reason why no pods run here.
    pods: Result<Pods, String>,
}

/// Another hub, to which a node moves, and the view of its API.
struct Elsewhere {
    // in this order, because the first one is dropped first
    view: View,
    printed_facts: usize,
    hub: Hub,
}

impl Demo {
    /// Starts hub and agents.
    pub fn open(mut console: Console, stop: Receiver<StopSignal>) -> Result<Demo, RigError> {
        console.chapter("A hub and three nodes on this machine");
        let mut cluster = Cluster::start("try")?;
        console.say(
            Tone::Plain,
            &format!("kedge-hub listens on https://{}, with its own authority", cluster.hub().address()),
        );
        let program = programs::agent_with_faults()?;
        let mut pods = Pods::new(&cluster.scratch().join("pods"));
        if let Ok(pods) = &mut pods {
            pods.start_registry()?;
        }
        for name in NODES {
            console.say(
                Tone::Plain,
                &format!("as on a server: kedge-hub node-kubeconfig {name} --out {name}.kubeconfig"),
            );
            let mut options = AgentOptions::new(&program);
            if let Ok(pods) = &pods {
                pods.options(name, &mut options);
            }
            let agent = cluster.add(name, options)?;
            pods.as_ref().map_or(Ok(()), |pods| pods.configure(agent))?;
        }
        Ok(Demo {
            trials: vec![None; NODES.len()],
            console,
            stop,
            cluster,
            names: Vec::new(),
            printed_facts: 0,
            printed_ends: vec![0; NODES.len()],
            asked: None,
            printed_trials: None,
            ready_since: None,
            elsewhere: None,
            pods,
        })
    }

    /// Runs all chapters.
    pub fn run(&mut self) -> Result<(), RigError> {
        self.nodes_join()?;
        let good = self.a_good_config()?;
        self.a_pod_on_each_node()?;
        self.a_config_that_does_not_parse(&good)?;
        self.a_config_that_does_not_validate(&good)?;
        self.a_config_that_keeps_silent(&good)?;
        self.a_config_that_crashes(&good)?;
        let fixed = self.the_repair()?;
        self.two_keys_of_one_config_map()?;
        self.the_heartbeats()?;
        self.the_pods_all_the_while()?;
        self.what_containers_survive()?;
        self.the_move(&fixed)?;
        self.a_rollout_that_stops()?;
        self.what_you_saw();
        Ok(())
    }

    fn what_you_saw(&mut self) {
        self.console.chapter("What you saw");
        let mut lines = vec![
            "a good configuration ran on trial, and became last-known-good",
            "one that does not parse, and one that does not validate, did not run: line and value were named",
            "one that would have kept a node silent for a day was refused",
            "one that crashed the agent was rolled back after three crashes, and is remembered",
            "a corrected one ran at once",
            "of two variants in one ConfigMap only the bad one was condemned",
            "no heartbeat was late meanwhile",
        ];
        if self.pods.is_ok() {
            lines.extend([
                "no container ended for any of this, nor for a killed agent",
                "a node booted and ran its pod while the hub was off",
                "an update that failed stopped after one node, and was undone by one command",
            ]);
        }
        lines.push("a node moved to another hub, and kept what it ran until it got something else");
        lines.push("a rollout reached one node after the other, and stopped when the first one refused");
        for (number, line) in lines.iter().enumerate() {
            self.console.say(Tone::Good, &format!("{:>2}. {line}", number + 1));
        }
        if !self.console.is_terminal() {
            let line =
                "It ends here, because the output is no terminal. In a terminal it would keep running.";
            self.console.say(Tone::Plain, line);
        }
    }

    fn nodes_join(&mut self) -> Result<(), RigError> {
        for name in NODES {
            let line = format!("as on a device: kedge agent --kubeconfig {name}.kubeconfig ...");
            self.console.say(Tone::Plain, &line);
            self.cluster.agent_mut(name).launch()?;
        }
        self.gloss(&[
            "Ready: the node works, and renews its Lease every few seconds. Each renewal is a heartbeat.",
            "ConfigOK: whether the node runs the configuration that you assigned.",
            "init, local: the configuration in the node's own files. It runs while you assign none.",
        ]);
        self.until("all nodes Ready, with a Lease, running their local config", PATIENCE, |world| {
            NODES.iter().all(|node| {
                status_is(world, node, "Ready", "True")
                    && status_is(world, node, "ConfigOK", "True")
                    && world.config(node).active.is_none()
                    && world.renewal_count(node) > 0
            })
        })?;
        self.ready_since = Some(Instant::now());
        Ok(())
    }

    fn a_good_config(&mut self) -> Result<String, RigError> {
        self.console.chapter("A good configuration for all three");
        self.gloss(&[
            "assigned: what you asked for. active: what the node runs.",
            "last-known-good: what it goes back to. A configuration becomes that by a trial, here of 15 seconds.",
            "In messages the names of ConfigMaps stand in place of their UIDs.",
        ]);
        let uid = self.create_config("edge-good", &payload("nodeStatusReportFrequency: 1m\n"))?;
        for node in NODES {
            self.assign(node, "edge-good")?;
        }
        self.adopted_and_promoted(&NODES, &uid)?;
        Ok(uid)
    }

    fn a_config_that_does_not_parse(&mut self, good: &str) -> Result<(), RigError> {
        self.console.chapter("One that does not parse, for edge-1");
        let uid = self.create_config("edge-typo", &payload("nodeStatusReportFrequency: [1m\n"))?;
        self.assign("edge-1", "edge-typo")?;
        self.rolled_back("edge-1", &uid, good, "parse", PATIENCE)?;
        self.others_run(good, &["edge-2", "edge-3"])
    }

    fn a_config_that_does_not_validate(&mut self, good: &str) -> Result<(), RigError> {
        self.console.chapter("One that parses and makes no sense, for edge-2");
        let nonsense = payload("").replace("crashLoopThreshold: 2", "crashLoopThreshold: 200");
        let uid = self.create_config("edge-nonsense", &nonsense)?;
        self.assign("edge-2", "edge-nonsense")?;
        self.rolled_back("edge-2", &uid, good, "validate", PATIENCE)?;
        self.others_run(good, &["edge-3"])
    }

    fn a_config_that_keeps_silent(&mut self, good: &str) -> Result<(), RigError> {
        self.console.chapter("A valid one with which edge-2 would be silent for a day");
        let silent = payload("nodeStatusReportFrequency: 24h\n");
        let uid = self.create_config("edge-silent", &silent)?;
        self.assign("edge-2", "edge-silent")?;
        self.rolled_back("edge-2", &uid, good, "validate", PATIENCE)?;
        self.others_run(good, &["edge-3"])
    }

    fn a_config_that_crashes(&mut self, good: &str) -> Result<(), RigError> {
        self.console.chapter("One under which the agent crashes, again and again, for edge-3");
        let uid =
            self.create_config("edge-crash", &payload("kedge:\n  faultInjection:\n    crashAfter: 1s\n"))?;
        let before = self.unclean_ends("edge-3");
        self.assign("edge-3", "edge-crash")?;
        self.rolled_back("edge-3", &uid, good, "crash loop", PATIENCE * 2)?;
        let crashes = self.unclean_ends("edge-3") - before;
        let expected = CRASH_LOOP_THRESHOLD + 1;
        self.console.say(
            Tone::Plain,
            &format!(
                "edge-3: the process crashed {crashes} times; crashLoopThreshold is {CRASH_LOOP_THRESHOLD}"
            ),
        );
        match crashes == expected {
            true => Ok(()),
            false => Err(RigError::TimedOut {
                awaited: format!("exactly {expected} crashes of edge-3"),
                found: format!("{crashes}"),
            }),
        }
    }

    fn the_repair(&mut self) -> Result<String, RigError> {
        self.console.chapter("The repair: a corrected configuration for edge-1");
        let uid = self.create_config("edge-fixed", &payload("nodeStatusReportFrequency: 2m\n"))?;
        self.assign("edge-1", "edge-fixed")?;
        self.adopted_and_promoted(&["edge-1"], &uid)?;
        Ok(uid)
    }

    /// One key is one configuration: banning the bad variant does not ban the good one, although both have
    /// the same UID.
    fn two_keys_of_one_config_map(&mut self) -> Result<(), RigError> {
        self.console
            .chapter("Two variants in one ConfigMap, for edge-2: the bad one does not condemn the good one");
        let day = payload("nodeStatusReportFrequency: 90s\n");
        let uid =
            self.create_keys("edge-variants", &[("day", &day), ("night", &payload("maxPods: none\n"))])?;
        self.follow("edge-2", "edge-variants", "day")?;
        self.adopted_and_promoted(&["edge-2"], &uid)?;
        self.follow("edge-2", "edge-variants", "night")?;
        self.rolled_back("edge-2", &uid, &uid, "parse", PATIENCE)?;
        let keys = |world: &World| {
            ["assigned", "active", "lastKnownGood"].map(|which| {
                let path = format!("/status/config/{which}/configMap/kubeletConfigKey");
                let key = world.node("edge-2").and_then(|node| node.pointer(&path)).and_then(Value::as_str);
                key.unwrap_or_default().to_owned()
            })
        };
        self.until("the key night as assigned, and day as active", PATIENCE, |world| {
            keys(world) == ["night", "day", "day"]
        })?;
        let line = "edge-2: assigned is the key night, active and last-known-good the key day";
        self.console.say(Tone::Good, line);
        Ok(())
    }

    /// Another server's objects are different objects, whatever their names: the node keeps its configuration
    /// until another one is assigned.
    fn the_move(&mut self, running: &str) -> Result<(), RigError> {
        self.console.chapter(
            "A move: edge-1 gets the credentials of another hub, which has a ConfigMap edge-fixed, too",
        );
        let hub = Hub::start(&self.cluster.scratch().path().join("hub-2"), &[])?;
        self.console.say(
            Tone::Plain,
            &format!("another kedge-hub listens on https://{}; below, kubectl speaks to it", hub.address()),
        );
        let view = View::open(hub.kubectl())?;
        let path = self.cluster.payload_file("edge-fixed-2", &payload("nodeStatusReportFrequency: 3m\n"))?;
        self.kubectl_of(hub.kubectl(), &create_arguments("edge-fixed", &[("kubelet", &path)]))?;
        let uid = uid_of(hub.kubectl(), "edge-fixed")?;
        self.names.push((uid.clone(), "edge-fixed (of the other hub)".to_owned()));
        let line = "as on that server: kedge-hub node-kubeconfig edge-1 --out edge-1.kubeconfig";
        self.console.say(Tone::Plain, line);
        self.cluster.agent("edge-1").replace_kubeconfig(&hub.node_kubeconfig("edge-1")?)?;
        self.elsewhere = Some(Elsewhere { view, printed_facts: 0, hub });
        self.until_elsewhere("edge-1 to be Ready there, and to run what it ran", |world| {
            status_is(world, "edge-1", "Ready", "True")
                && status_is(world, "edge-1", "ConfigOK", "Unknown")
                && world.renewal_count("edge-1") > 0
                && world.config("edge-1").active.as_deref() == Some(running)
        })?;
        let assign = Source::Following { name: "edge-fixed".to_owned() };
        let kubectl = self.elsewhere.as_ref().map(|there| there.hub.kubectl().clone());
        self.kubectl_of(&kubectl.expect("it was started above"), &assign.assign_arguments("edge-1"))?;
        self.until_elsewhere("edge-1 to run what is assigned there", |world| {
            status_is(world, "edge-1", "ConfigOK", "True")
                && world.config("edge-1").active.as_deref() == Some(&*uid)
        })
    }

    /// An edit of one ConfigMap reaches the canary alone; a bad one stops there.
    fn a_rollout_that_stops(&mut self) -> Result<(), RigError> {
        self.console
            .chapter("A rollout: one ConfigMap for edge-2 and edge-3, batch by batch, until it harms");
        for node in ROLLED_OUT {
            let none = r#"{"spec":{"configSource":null}}"#;
            self.kubectl(&["patch", "node", node, "-p", none].map(str::to_owned))?;
        }
        self.kubectl(&["create", "namespace", "kedge-fleet"].map(str::to_owned))?;
        let group = ["label", "node", "edge-2", "edge-3", "fleet.kedge.dev/group=shops"];
        self.kubectl(&group.map(str::to_owned))?;
        self.kubectl(&["label", "node", "edge-2", "fleet.kedge.dev/ring=canary"].map(str::to_owned))?;
        self.push("nodeStatusReportFrequency: 1m\n")?;
        let path = self.cluster.payload_file("shops", ROLLOUT.trim_start())?;
        self.console.say(Tone::Plain, &format!("{}:", path.display()));
        self.say_numbered(ROLLOUT.trim_start());
        self.kubectl(&["apply", "-f", &path.display().to_string()].map(str::to_owned))?;
        let revision = |world: &World, node: &str, which: &str| {
            let path = format!("{which}/configMap/name");
            let name = world.node(node).and_then(|node| node.pointer(&path)).and_then(Value::as_str);
            name.unwrap_or_default().to_owned()
        };
        let (assigned, good) = ("/spec/configSource", "/status/config/lastKnownGood");
        self.until("the first revision on both nodes, the canary first", PATIENCE + 3 * TRIAL, |world| {
            ROLLED_OUT.iter().all(|node| {
                let name = revision(world, node, good);
                name.starts_with("shops-") && revision(world, node, assigned) == name
            })
        })?;
        let first = self.cluster.view().look(|world| revision(world, "edge-3", assigned));
        self.push("maxPods: many\n")?;
        self.until("edge-2 to refuse the second one", PATIENCE + TRIAL, |world| {
            revision(world, "edge-2", assigned) != first && status_is(world, "edge-2", "ConfigOK", "False")
        })?;
        let stopped = poll(PATIENCE, || {
            let rollout = self.cluster.kubectl().json(&["get", "cro", "shops", "-o", "json"]).ok()?;
            let conditions = rollout["status"]["conditions"].as_array()?;
            let stop = conditions.iter().find(|one| one["type"] == "Stopped" && one["status"] == "True")?;
            stop["message"].as_str().map(str::to_owned)
        });
        let Some(message) = stopped else {
            let awaited = "the rollout to stop".to_owned();
            return Err(RigError::TimedOut { awaited, found: "no condition Stopped".to_owned() });
        };
        self.console.say(Tone::Good, &message);
        self.until("edge-3 to keep the first one", PATIENCE, |world| {
            revision(world, "edge-3", assigned) == first && status_is(world, "edge-3", "ConfigOK", "True")
        })
    }

    /// Writes the source of the rollout.
    fn push(&mut self, fields: &str) -> Result<(), RigError> {
        let text = payload(fields);
        let path = self.cluster.payload_file("shop-settings", &text)?;
        self.console.say(Tone::Plain, &format!("{}:", path.display()));
        self.say_numbered(&text);
        let file = format!("--from-file=kubelet={}", path.display());
        let make = [
            "create",
            "configmap",
            "shop-settings",
            "-n",
            "kedge-fleet",
            &file,
            "--dry-run=client",
            "-o",
            "yaml",
        ];
        self.console.say(Tone::Command, &format!("{} | kubectl apply -f -", shown(&make)));
        let manifest = self.cluster.kubectl().run(&make)?;
        self.cluster.kubectl().feed(&["apply", "-f", "-"], &manifest)?;
        Ok(())
    }

    /// No Lease was late, and every node was always Ready.
    fn the_heartbeats(&mut self) -> Result<(), RigError> {
        self.console.chapter("The heartbeats, all the while");
        let since = self.ready_since.unwrap_or_else(Instant::now);
        let mut late = Vec::new();
        for node in NODES {
            let (count, silence, lapse) = self.cluster.view().look(|world| {
                (
                    world.renewal_count(node),
                    world.longest_silence(node, since),
                    ready_lapse(world, node, since),
                )
            });
            let line =
                format!("{node}: {count} renewals seen, longest silence {:.1} s", silence.as_secs_f64());
            let is_late = silence > LEASE_DURATION || lapse.is_some();
            self.console.say(if is_late { Tone::Bad } else { Tone::Good }, &line);
            if is_late {
                late.push(format!("{line}{}", lapse.map(|what| format!(", {what}")).unwrap_or_default()));
            }
        }
        match late.is_empty() {
            true => Ok(()),
            false => Err(RigError::TimedOut {
                awaited: format!("Ready nodes and no silence above {} s", LEASE_DURATION.as_secs()),
                found: late.join("; "),
            }),
        }
    }

    fn adopted_and_promoted(&mut self, nodes: &[&str], uid: &str) -> Result<(), RigError> {
        let was_in_trial = |world: &World, node: &str| {
            world.facts().0.iter().any(|fact| {
                matches!(&fact.kind, FactKind::Config(config) if fact.node == node
                    && config.active.as_deref() == Some(uid)
                    && config.last_known_good.as_deref() != Some(uid))
            })
        };
        self.until("it to be adopted and in its trial", PATIENCE, |world| {
            nodes.iter().all(|node| {
                was_in_trial(world, node)
                    && status_is(world, node, "ConfigOK", "True")
                    && condition_names(world, node, uid)
                    && world.saw_event(node, "KubeletConfigChanged", uid)
            })
        })?;
        self.until("its promotion to last-known-good", TRIAL + PATIENCE, |world| {
            nodes.iter().all(|node| {
                let config = world.config(node);
                config.last_known_good.as_deref() == Some(uid)
                    && config.active.as_deref() == Some(uid)
                    && world.saw_event(node, "ConfigPromoted", uid)
            })
        })
    }

    fn rolled_back(
        &mut self,
        node: &str,
        bad: &str,
        good: &str,
        why: &str,
        limit: Duration,
    ) -> Result<(), RigError> {
        self.until(&format!("{node} to roll back ({why})"), limit, |world| {
            let config = world.config(node);
            let Some((status, message, reason)) = world.condition(node, "ConfigOK") else {
                return false;
            };
            status == "False"
                && message.contains(good)
                && reason.contains(bad)
                && reason.contains(why)
                && config.assigned.as_deref() == Some(bad)
                && config.active.as_deref() == Some(good)
                && config.last_known_good.as_deref() == Some(good)
                && world.saw_event(node, "ConfigRolledBack", bad)
        })
    }

    fn others_run(&mut self, uid: &str, nodes: &[&str]) -> Result<(), RigError> {
        self.until("the other nodes to be untouched", PATIENCE, |world| {
            nodes.iter().all(|node| {
                status_is(world, node, "ConfigOK", "True")
                    && status_is(world, node, "Ready", "True")
                    && world.config(node).active.as_deref() == Some(uid)
            })
        })
    }

    fn unclean_ends(&self, node: &str) -> usize {
        let ends = self.cluster.agent(node).babysitter().state().ends;
        ends.iter().filter(|ended| ended.result != ServiceResult::Success).count()
    }

    /// Creates a ConfigMap as a user would, and returns its UID.
    fn create_config(&mut self, name: &str, payload: &str) -> Result<String, RigError> {
        self.create_keys(name, &[("kubelet", payload)])
    }

    /// The same with a payload for each of these keys.
    fn create_keys(&mut self, name: &str, payloads: &[(&str, &str)]) -> Result<String, RigError> {
        let mut files = Vec::new();
        for (key, payload) in payloads {
            let path = self.cluster.payload_file(&format!("{name}-{key}"), payload)?;
            self.console.say(Tone::Plain, &format!("{}:", path.display()));
            self.say_numbered(payload);
            files.push((*key, path));
        }
        let files: Vec<(&str, &Path)> = files.iter().map(|(key, path)| (*key, path.as_path())).collect();
        self.kubectl(&create_arguments(name, &files))?;
        let uid = self.cluster.uid_of(name)?;
        self.names.push((uid.clone(), name.to_owned()));
        Ok(uid)
    }

    /// A file with the numbers of its lines, which errors name.
    fn say_numbered(&mut self, text: &str) {
        for (number, line) in text.lines().enumerate() {
            self.console.say(Tone::Plain, &format!("  {:>3} | {line}", number + 1));
        }
    }

    /// The meaning of words, where they first appear.
    fn gloss(&mut self, lines: &[&str]) {
        for line in lines {
            self.console.say(Tone::Plain, &format!("({line})"));
        }
    }

    fn assign(&mut self, node: &str, name: &str) -> Result<(), RigError> {
        self.kubectl(&Source::Following { name: name.to_owned() }.assign_arguments(node))
    }

    /// Assigns a key of a ConfigMap that has several.
    fn follow(&mut self, node: &str, name: &str, key: &str) -> Result<(), RigError> {
        let map = json!({"namespace": "default", "name": name, "kubeletConfigKey": key});
        let source = Source::Raw(json!({"configMap": map}));
        self.kubectl(&source.assign_arguments(node))
    }

    fn kubectl(&mut self, arguments: &[String]) -> Result<(), RigError> {
        let kubectl = self.cluster.kubectl().clone();
        self.kubectl_of(&kubectl, arguments)
    }

    fn kubectl_of(&mut self, kubectl: &Kubectl, arguments: &[String]) -> Result<(), RigError> {
        let arguments = borrowed(arguments);
        self.console.say(Tone::Command, &shown(&arguments));
        kubectl.run(&arguments).map(|_| ())
    }

    /// [`Demo::until`] for the other hub.
    fn until_elsewhere(&mut self, awaited: &str, is_so: impl Fn(&World) -> bool) -> Result<(), RigError> {
        let Demo { console, stop, names, elsewhere, .. } = self;
        let there = elsewhere.as_mut().expect("the other hub was started");
        let on_look = |world: &World| {
            if !matches!(stop.try_recv(), Err(TryRecvError::Empty)) {
                return Err(RigError::Interrupted);
            }
            print_facts(console, world, names, &mut there.printed_facts);
            Ok(())
        };
        there.view.wait(awaited, PATIENCE, on_look, is_so)
    }

    /// Waits, and prints new facts from the API meanwhile.
    fn until(
        &mut self,
        awaited: &str,
        limit: Duration,
        is_so: impl Fn(&World) -> bool,
    ) -> Result<(), RigError> {
        let Demo {
            console,
            stop,
            cluster,
            names,
            printed_facts,
            printed_ends,
            trials,
            asked,
            printed_trials,
            ..
        } = self;
        let start = Instant::now();
        loop {
            if asked.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
                // without the view's lock, because a process is started for each node
                *trials = cluster.agents().iter().map(trial_left).collect();
                *asked = Some(Instant::now());
            }
            let left = limit.saturating_sub(start.elapsed());
            let on_look = |world: &World| {
                if !matches!(stop.try_recv(), Err(TryRecvError::Empty)) {
                    return Err(RigError::Interrupted);
                }
                print_ends(console, cluster.agents(), printed_ends);
                print_facts(console, world, names, printed_facts);
                print_live(console, world, cluster.agents(), trials, printed_trials);
                Ok(())
            };
            match cluster.view().wait(awaited, left.min(ASK_EVERY), on_look, &is_so) {
                Err(RigError::TimedOut { found, .. }) if left <= ASK_EVERY => {
                    return Err(RigError::TimedOut {
                        awaited: format!("{awaited} ({} s)", limit.as_secs()),
                        found,
                    });
                }
                Err(RigError::TimedOut { .. }) => {}
                other => return other,
            }
        }
    }

    /// Leaves everything running and continues to report until a signal arrives.
    pub fn keep_running(&mut self) -> Result<(), RigError> {
        self.console.chapter("Now you");
        for line in self.invitation() {
            self.console.say(Tone::Plain, &line);
        }
        loop {
            match self.until("a signal", Duration::from_secs(3600), |_| false) {
                Err(RigError::Interrupted) => return Ok(()),
                Err(RigError::TimedOut { .. }) => {}
                other => return other,
            }
        }
    }

    fn invitation(&mut self) -> Vec<String> {
        let dir = self.cluster.scratch().path().to_owned();
        let elsewhere =
            self.elsewhere.as_ref().map(|there| there.hub.kubectl().kubeconfig().display().to_string());
        let kubectl = self.cluster.kubectl();
        let mut lines = vec![
            "The hub and the nodes keep running until you press Ctrl-C. In another terminal:".to_owned(),
            String::new(),
            format!("  export KUBECONFIG={}", kubectl.kubeconfig().display()),
            format!("  alias kubectl={}", kubectl.program().display()),
            "  kubectl get nodes".to_owned(),
            "  kubectl describe node edge-3".to_owned(),
            "  kubectl get pods -o wide             # if there are pods".to_owned(),
            "  kubectl get events --field-selector involvedObject.name=edge-3".to_owned(),
            "  kubectl get leases -n kube-node-lease --watch".to_owned(),
            format!(
                "  kubectl --kubeconfig {} describe node edge-1     # on the other hub",
                elsewhere.unwrap_or_default()
            ),
            "  kubectl edit configmap edge-good     # the nodes that have it follow the edit".to_owned(),
            format!("  {}", shown(&["patch", "node", "edge-3", "-p", r#"{"spec":{"configSource":null}}"#])),
            String::new(),
            format!("Everything the nodes keep on disk: {}/edge-*/root", dir.display()),
        ];
        if kubectl.run(&["get", "--raw", "/fleet"]).is_ok() {
            let page = "  kubectl proxy                        # then open http://127.0.0.1:8001/fleet";
            lines.insert(5, page.to_owned());
        }
        lines
    }

    /// Stops all processes properly.
    pub fn close(mut self) -> Result<(), RigError> {
        self.console.say(Tone::Plain, "stopping the nodes, their containers and the hubs");
        self.cluster.stop_agents()?;
        // before the directory that contains their mount points
        self.pods.as_mut().map_or(Ok(()), Pods::clear)?;
        self.cluster.close()?;
        self.elsewhere.as_mut().map_or(Ok(()), |there| there.hub.stop())
    }

    /// Prints the ends of the logs, and keeps the files.
    pub fn print_failure(&mut self, error: &RigError) {
        self.console.chapter("The demonstration failed");
        self.console.say(Tone::Bad, &error.to_string());
        let logs: Vec<(String, PathBuf)> = self
            .cluster
            .agents()
            .iter()
            .map(|agent| (agent.name().to_owned(), agent.log()))
            .chain([("hub".to_owned(), self.cluster.hub().log().to_owned())])
            .chain(self.elsewhere.as_ref().map(|there| ("hub-2".to_owned(), there.hub.log().to_owned())))
            .collect();
        for (name, path) in logs {
            self.console.say(Tone::Plain, &format!("the end of {name}'s log, {}:", path.display()));
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..] {
                self.console.say(Tone::Plain, &format!("  {line}"));
            }
        }
        self.cluster.scratch().keep();
    }
}

fn payload(fields: &str) -> String {
    let trial = TRIAL.as_secs();
    format!("{HEADER}configTrialDuration: {trial}s\ncrashLoopThreshold: {CRASH_LOOP_THRESHOLD}\n{fields}")
}

fn status_is(world: &World, node: &str, condition: &str, expect: &str) -> bool {
    world.condition(node, condition).is_some_and(|(status, ..)| status == expect)
}

fn condition_names(world: &World, node: &str, uid: &str) -> bool {
    world.condition(node, "ConfigOK").is_some_and(|(_, message, _)| message.contains(uid))
}

/// The first time after `since` at which the node was not Ready.
fn ready_lapse(world: &World, node: &str, since: Instant) -> Option<String> {
    world.facts().0.iter().filter(|fact| fact.node == node && fact.at > since).find_map(|fact| {
        match &fact.kind {
            FactKind::Condition { name, status, reason, .. } if name == "Ready" && status != "True" => {
                Some(format!("Ready={status} ({reason})"))
            }
            _ => None,
        }
    })
}

/// Queries the node itself: the API does not show the remaining time of a trial.
fn trial_left(agent: &Agent) -> Option<Duration> {
    let status = agent.is_started().then(|| agent.kedge_json(&["status"]).ok())??;
    let config = status.get("config")?;
    let secs = config.get("trialRemainingSeconds").and_then(Value::as_f64)?;
    (config.get("state").and_then(Value::as_str) == Some("trial"))
        .then(|| Duration::try_from_secs_f64(secs).ok())
        .flatten()
}

/// Not through the API: only to show a reader the events behind the API's messages.
fn print_ends(console: &mut Console, agents: &[Agent], printed: &mut [u64]) {
    for (agent, printed) in agents.iter().zip(printed).filter(|(agent, _)| agent.is_started()) {
        let before = *printed;
        for ended in agent.babysitter().state().ends.iter().filter(|ended| ended.run > before) {
            let is_clean = ended.result == ServiceResult::Success;
            let tone = if is_clean { Tone::Plain } else { Tone::Bad };
            let what = if is_clean { "restarts itself" } else { "crashed" };
            console.say(tone, &format!("{}  the agent {what}: {ended}", agent.name()));
            *printed = ended.run;
        }
    }
}

fn print_facts(console: &mut Console, world: &World, names: &[(String, String)], printed: &mut usize) {
    let (facts, dropped) = world.facts();
    for fact in &facts[printed.saturating_sub(dropped).min(facts.len())..] {
        if let Some((tone, line)) = fact_line(fact) {
            let named = names.iter().fold(line, |line, (uid, name)| line.replace(uid, name));
            console.say(tone, &named);
        }
    }
    *printed = dropped + facts.len();
}

fn fact_line(fact: &Fact) -> Option<(Tone, String)> {
    let node = &fact.node;
    match &fact.kind {
        FactKind::Condition { name, status, message, reason } if name == "ConfigOK" => {
            Some((tone(status), format!("{node}  ConfigOK={status}: {message}; {reason}")))
        }
        FactKind::Condition { name, status, reason, .. } if name == "Ready" => {
            Some((tone(status), format!("{node}  Ready={status} ({reason})")))
        }
        FactKind::Condition { .. } => None,
        FactKind::Event { reason, message } if reason.contains("Config") => {
            Some((Tone::Plain, format!("{node}  event {reason}: {message}")))
        }
        FactKind::Event { .. } => None,
        FactKind::Config(config) => Some((Tone::Plain, format!("{node}  {}", config_line(config)))),
    }
}

fn tone(status: &str) -> Tone {
    match status {
        "True" => Tone::Good,
        "False" => Tone::Bad,
        _ => Tone::Open,
    }
}

fn config_line(config: &ConfigStatus) -> String {
    let name = |uid: &Option<String>| uid.clone().unwrap_or_else(|| "local".to_owned());
    format!(
        "assigned {}, active {}, last-known-good {}",
        name(&config.assigned),
        name(&config.active),
        name(&config.last_known_good)
    )
}

fn print_live(
    console: &mut Console,
    world: &World,
    agents: &[Agent],
    trials: &[Option<Duration>],
    printed: &mut Option<Instant>,
) {
    let parts: Vec<String> = agents
        .iter()
        .zip(trials)
        .map(|(agent, trial)| {
            let left = trial.map(|left| format!(" in trial, {} left,", clock(left))).unwrap_or_default();
            format!("{}{left} {} renewals", agent.name(), world.renewal_count(agent.name()))
        })
        .collect();
    let line = parts.join(" | ");
    if console.is_terminal() {
        console.live(&format!("  {line}"));
    } else if trials.iter().any(Option::is_some) && printed.is_none_or(|at| at.elapsed() >= PRINT_EVERY) {
        console.say(Tone::Plain, &line);
        *printed = Some(Instant::now());
    }
}
