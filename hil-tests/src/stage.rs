//! One story's stage: a hub on this machine, a node that is a whole booted image, and the vocabulary of the
//! stories.
//!
//! Always holds: changes are made with kubectl; a story waits for the API to show a state, unless it is about
//! the node's behaviour without the API; every wait has a limit that a busy machine does not reach.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kedge_rig::console::{Console, Tone};
use kedge_rig::hub::Hub;
use kedge_rig::logged_disk::Unflushed;
use serde_json::{Value, json};

use crate::error::HilError;
use crate::machine::{Machine, Start};

/// ConfigOK's message while nothing is assigned.
pub(crate) const LOCAL: &str = "using current (default)";
/// The node's name.
pub(crate) const NODE: &str = "edge-1";
/// Longest wait for any event, unless `KEDGE_HIL_PATIENCE_SECS` sets another: a boot takes 15 to 90 s under
/// emulation, the watchdog's and the agent's own limits together under two minutes, and all of it several
/// times that on a busy machine: with a load of 30 on two cores boots took 400 s. Only an event that never
/// occurs takes that long.
const PATIENCE_SECS: u64 = 900;
/// Interval of checks during a wait; it grows, because each check starts kubectl, which slows the emulated
/// machine if there are few processors.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(5);
/// The first lines of every payload.
const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// The ends of runs under the active config, as counted in `startups.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Crashes.
    pub(crate) startups: usize,
    /// Power cuts in a row.
    pub(crate) cuts: u64,
}

/// A hub and a node.
pub(crate) struct Stage<'a> {
    /// The hub.
    pub(crate) hub: &'a mut Hub,
    /// The node's machine.
    pub(crate) machine: Machine,
    /// Prints the story.
    pub(crate) teller: &'a mut Console,
    /// A folder of this story on this machine.
    pub(crate) folder: PathBuf,
    /// A program for each processor, see `hil-tests/platform.c`.
    pub(crate) programs: Option<PathBuf>,
    /// The agent that supports fault injection, on this machine.
    pub(crate) faults: Option<PathBuf>,
    /// The port of loopback at which the node's connections to [`crate::machine::REGISTRY_IN_GUEST`] arrive;
    /// nothing listens there until the story does.
    pub(crate) registry_port: u16,
    /// A command that runs on the node after each boot, only to make a story fail, see [`crate::sabotage`].
    pub(crate) after_each_boot: Option<String>,
    /// A command that runs in [`Stage::folder`], also only to make a story fail.
    pub(crate) in_folder: Option<String>,
}

/// When the running story must have ended: one runs at a time in this process.
static END: Mutex<Option<Instant>> = Mutex::new(None);

/// Sets when the story that begins must have ended, if at all: no wait lasts longer, so a story that hangs
/// fails by itself.
pub(crate) fn end_by(end: Option<Instant>) {
    *END.lock().unwrap_or_else(PoisonError::into_inner) = end;
}

/// Longest wait for any event.
pub(crate) fn patience() -> Duration {
    let secs = std::env::var("KEDGE_HIL_PATIENCE_SECS").ok().and_then(|secs| secs.parse().ok());
    let patience = Duration::from_secs(secs.unwrap_or(PATIENCE_SECS));
    let end = *END.lock().unwrap_or_else(PoisonError::into_inner);
    end.map_or(patience, |end| patience.min(end.saturating_duration_since(Instant::now())))
}

/// A payload with these trial rules.
pub(crate) fn payload(trial: &str, threshold: u32, fields: &str) -> String {
    format!("{HEADER}configTrialDuration: {trial}\ncrashLoopThreshold: {threshold}\n{fields}")
}

impl<'a> Stage<'a> {
    /// A stage with this machine, without sabotage and without files of the story.
    pub(crate) fn new(hub: &'a mut Hub, machine: Machine, teller: &'a mut Console) -> Stage<'a> {
        let (folder, registry_port) = (machine.dir().to_owned(), machine.registry_port());
        Stage {
            hub,
            machine,
            teller,
            folder,
            programs: None,
            faults: None,
            registry_port,
            after_each_boot: None,
            in_folder: None,
        }
    }
}

impl Stage<'_> {
    /// Prints one line of the story.
    pub(crate) fn say(&mut self, text: &str) {
        self.teller.say(Tone::Plain, text);
    }

    /// Runs the sabotage of the files in the story's folder, if any.
    pub(crate) fn sabotage_folder(&self) -> Result<(), HilError> {
        let Some(command) = &self.in_folder else { return Ok(()) };
        let status = Command::new("sh").args(["-c", command]).current_dir(&self.folder).status();
        let status = status.map_err(HilError::io("run the sabotage in", &self.folder))?;
        match status.success() {
            true => Ok(()),
            false => Err(HilError::Garbled(format!("sabotage {command:?}: {status}"))),
        }
    }

    /// Repeats `look` until it returns something.
    pub(crate) fn wait<T>(
        &mut self,
        awaited: &str,
        limit: Duration,
        mut look: impl FnMut(&mut Self) -> Result<Result<T, String>, HilError>,
    ) -> Result<T, HilError> {
        let start = Instant::now();
        loop {
            match look(self)? {
                Ok(found) => return Ok(found),
                Err(found) if start.elapsed() > limit => {
                    return Err(HilError::Never { awaited: format!("{awaited} within {limit:?}"), found });
                }
                Err(_) => std::thread::sleep((start.elapsed() / 30).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY)),
            }
        }
    }

    /// Runs a command in the guest; returns its exit code and output.
    pub(crate) fn ask(&mut self, command: &str) -> Result<(i32, String), HilError> {
        self.machine.run(command, patience())
    }

    /// Runs a command in the guest that must succeed; returns its output.
    pub(crate) fn guest(&mut self, command: &str) -> Result<String, HilError> {
        match self.ask(command)? {
            (0, output) => Ok(output),
            (code, output) => Err(HilError::Guest {
                command: command.to_owned(),
                output: format!("exit code {code}: {output}"),
            }),
        }
    }

    /// The guest's own clock since its boot, which does not depend on the host's load.
    pub(crate) fn uptime(&mut self) -> Result<Duration, HilError> {
        let text = self.guest("cut -d ' ' -f 1 /proc/uptime")?;
        seconds(&text).ok_or_else(|| HilError::Garbled(format!("/proc/uptime: {text}")))
    }

    /// When the unit's journal of this boot got its last line with these words, by the guest's own clock.
    pub(crate) fn logged_at(&mut self, unit: &str, words: &str) -> Result<Duration, HilError> {
        let log = self.guest(&format!("journalctl -b -u {unit} -o short-monotonic --no-pager"))?;
        let line = log.lines().rfind(|line| line.contains(words));
        let time = line.and_then(|line| line.strip_prefix('[')?.split_once(']'));
        time.and_then(|(time, _)| seconds(time))
            .ok_or_else(|| HilError::Wrong(format!("{words:?} in the journal of {unit}: {log}")))
    }

    /// Fails the story unless the time is in this range.
    pub(crate) fn took(
        &mut self,
        what: &str,
        took: Duration,
        range: std::ops::Range<u64>,
    ) -> Result<(), HilError> {
        match range.contains(&took.as_secs()) {
            true => {
                self.say(&format!("{what}: {} s", took.as_secs()));
                Ok(())
            }
            false => Err(HilError::Wrong(format!("{what}: {} s, expected {range:?}", took.as_secs()))),
        }
    }

    /// The Node in the API.
    pub(crate) fn node(&self) -> Result<Value, HilError> {
        Ok(self.hub.kubectl().json(&["get", "node", NODE])?)
    }

    /// The node's last renewal in the API; `None` without a Lease.
    pub(crate) fn renewed(&self) -> Result<Option<String>, HilError> {
        let path = [
            "get",
            "lease",
            NODE,
            "-n",
            "kube-node-lease",
            "--ignore-not-found",
            "-o",
            "jsonpath={.spec.renewTime}",
        ];
        let text = self.hub.kubectl().run(&path)?;
        Ok((!text.is_empty()).then_some(text))
    }

    /// Waits for a renewal after now: the node has contact.
    pub(crate) fn renews(&mut self) -> Result<(), HilError> {
        let before = self.renewed()?;
        self.wait("a renewal of the Lease", patience(), |stage| {
            let now = stage.renewed()?;
            Ok(if now.is_some() && now != before { Ok(()) } else { Err(format!("{now:?}")) })
        })
    }

    /// Stops the agent, for a snapshot: its connections do not survive one, and an idle watch would notice
    /// only by TCP keepalive, after 75 s.
    pub(crate) fn sleeps(&mut self) -> Result<(), HilError> {
        self.guest("systemctl stop kedge").map(|_| ())
    }

    /// Starts the agent after [`Stage::sleeps`].
    pub(crate) fn wakes(&mut self) -> Result<(), HilError> {
        self.guest("systemctl start kedge")?;
        self.renews()
    }

    /// Waits until the node is Ready in the API.
    pub(crate) fn ready(&mut self) -> Result<(), HilError> {
        self.wait("a Ready node", patience(), |stage| {
            let nodes = stage.hub.kubectl().json(&["get", "nodes"])?;
            let node = nodes["items"]
                .as_array()
                .and_then(|items| items.iter().find(|node| node["metadata"]["name"] == NODE));
            let Some(node) = node else { return Ok(Err("no Node".into())) };
            let (status, message, reason) = condition(node, "Ready");
            Ok(if status == "True" { Ok(()) } else { Err(format!("Ready {status}: {message} ({reason})")) })
        })
    }

    /// Makes a ConfigMap; returns its UID.
    pub(crate) fn make(&mut self, name: &str, payload: &str) -> Result<String, HilError> {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"kubelet": payload}});
        self.hub.kubectl().feed(&["create", "-f", "-"], &map.to_string())?;
        let object = self.hub.kubectl().json(&["get", "configmap", name])?;
        Ok(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    }

    /// Assigns a ConfigMap.
    pub(crate) fn assign_map(&mut self, name: &str, uid: &str) -> Result<(), HilError> {
        self.assign(
            &json!({"configMapRef": {"namespace": "default", "name": name, "uid": uid}, "configMap": null}),
        )
    }

    /// Makes a ConfigMap and assigns it; returns its UID.
    pub(crate) fn push(&mut self, name: &str, payload: &str) -> Result<String, HilError> {
        let uid = self.make(name, payload)?;
        self.assign_map(name, &uid)?;
        Ok(uid)
    }

    /// Sets `spec.configSource`.
    pub(crate) fn assign(&mut self, source: &Value) -> Result<(), HilError> {
        let patch = json!({"spec": {"configSource": source}}).to_string();
        self.hub.kubectl().run(&["patch", "node", NODE, "--type=merge", "-p", &patch])?;
        Ok(())
    }

    /// Waits until the API shows this condition ConfigOK.
    pub(crate) fn config_ok(&mut self, status: &str, message: &str, reason: &str) -> Result<(), HilError> {
        let expected = (status.to_owned(), message.to_owned(), reason.to_owned());
        self.wait(&format!("ConfigOK {expected:?}"), patience(), |stage| {
            let found = condition(&stage.node()?, "ConfigOK");
            Ok(if found == expected { Ok(()) } else { Err(format!("{found:?}")) })
        })
    }

    /// Waits until the API shows this ConfigMap as active without problems.
    pub(crate) fn runs(&mut self, uid: &str) -> Result<(), HilError> {
        self.config_ok("True", &format!("using current (UID: {uid})"), "all checks passed")
    }

    /// Waits until the API shows this ConfigMap as last-known-good.
    pub(crate) fn promotes(&mut self, uid: &str) -> Result<(), HilError> {
        self.wait("the promotion", patience(), |stage| {
            let config = stage.node()?["status"]["config"].clone();
            let known = config.pointer("/lastKnownGood/configMap/uid").and_then(Value::as_str);
            Ok(if known == Some(uid) { Ok(()) } else { Err(config.to_string()) })
        })
    }

    /// Waits until the agent reports on its own machine that it runs this; the API need not be reachable.
    pub(crate) fn says_it_runs(&mut self, message: &str) -> Result<(), HilError> {
        self.wait(&format!("the agent's own {message:?}"), patience(), |stage| {
            let (code, text) = stage.ask("kedge config status --output json")?;
            if code != 0 {
                return Ok(Err(text));
            }
            let status: Value = serde_json::from_str(&text).unwrap_or_default();
            Ok(if status["condition"]["message"] == message {
                Ok(())
            } else {
                Err(status["condition"].to_string())
            })
        })
    }

    /// The counts against the active config.
    pub(crate) fn counted(&mut self) -> Result<Counted, HilError> {
        let text = self.guest("cat /var/lib/kedge/config/*/startups.json")?;
        let record: Value = serde_json::from_str(&text)
            .map_err(|error| HilError::Garbled(format!("startups.json: {error}: {text}")))?;
        let counts = &record["records"][record["last"].as_str().unwrap_or_default()];
        let startups = counts["startups"].as_array().map(Vec::len);
        let cuts = counts["cuts"].as_u64();
        let (Some(startups), Some(cuts)) = (startups, cuts) else {
            return Err(HilError::Garbled(format!("startups.json has no counts: {text}")));
        };
        Ok(Counted { startups, cuts })
    }

    /// The agent's process; `None` until one is ready.
    pub(crate) fn process(&mut self) -> Result<Option<u32>, HilError> {
        let text = self.guest("systemctl show -P ActiveState -P MainPID kedge")?;
        let words: Vec<_> = text.split_whitespace().collect();
        let number = words.iter().find_map(|word| word.parse().ok());
        Ok(number.filter(|number| *number != 0 && words.contains(&"active")))
    }

    /// Waits until a process of the agent other than this one is ready.
    pub(crate) fn restarted(&mut self, old: u32) -> Result<u32, HilError> {
        self.wait("a new process of the agent", patience(), |stage| {
            let now = stage.process()?;
            Ok(now.filter(|now| *now != old).ok_or(format!("process {now:?}")))
        })
    }

    /// The agent's process, once it is ready.
    pub(crate) fn running(&mut self) -> Result<u32, HilError> {
        self.restarted(0)
    }

    /// The kernel's name for this boot.
    pub(crate) fn boot_id(&mut self) -> Result<String, HilError> {
        self.machine.run("cat /proc/sys/kernel/random/boot_id", patience()).map(|(_, id)| id)
    }

    /// Waits for the next boot after the machine was reset, and for its agent.
    pub(crate) fn comes_back(&mut self, old_boot: &str) -> Result<(), HilError> {
        self.machine.was_reset();
        let boot = self.boot_id()?;
        if boot == old_boot {
            return Err(HilError::Wrong(format!(
                "expected a reset, and the machine is still in boot {boot}"
            )));
        }
        self.comes_up()
    }

    /// Waits for the agent, after a boot has begun.
    fn comes_up(&mut self) -> Result<(), HilError> {
        if let Some(command) = self.after_each_boot.clone() {
            self.guest(&command)?;
        }
        self.running().map(|_| ())
    }

    /// Makes an orderly reboot.
    pub(crate) fn reboot(&mut self) -> Result<(), HilError> {
        let boot = self.boot_id()?;
        self.machine.run_last("systemctl reboot")?;
        self.machine.wait_reset(patience())?;
        self.comes_back(&boot)
    }

    /// Switches on after a cut, and waits for the agent.
    pub(crate) fn power_on(&mut self, start: &Start) -> Result<(), HilError> {
        self.machine.start(start)?;
        self.comes_up()
    }

    /// Cuts the power.
    pub(crate) fn cut(&mut self) -> Result<(), HilError> {
        let Unflushed { kept, lost } = self.machine.cut()?;
        self.say(&format!(
            "power cut: of {} sectors that were written and not flushed {lost} are lost",
            kept + lost
        ));
        Ok(())
    }

    /// Cuts the power and switches it on again.
    pub(crate) fn power_cut(&mut self) -> Result<(), HilError> {
        self.comes_back_as(&Start::default())
    }

    /// Cuts the power and starts the machine in other surroundings.
    pub(crate) fn comes_back_as(&mut self, start: &Start) -> Result<(), HilError> {
        self.cut()?;
        self.power_on(start)
    }

    /// Fails the story unless both are the same.
    pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        found: T,
        expected: T,
    ) -> Result<(), HilError> {
        match found == expected {
            true => Ok(()),
            false => Err(HilError::Wrong(format!("{what}: {found:?}, expected {expected:?}"))),
        }
    }
}

/// A number of seconds with a fraction.
fn seconds(text: &str) -> Option<Duration> {
    text.trim().parse().ok().and_then(|secs| Duration::try_from_secs_f64(secs).ok())
}

/// Status, message and reason of a condition; empty texts without it.
pub(crate) fn condition(node: &Value, name: &str) -> (String, String, String) {
    let conditions = node["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == name));
    let text = |key: &str| found.and_then(|found| found[key].as_str()).unwrap_or_default().to_owned();
    (text("status"), text("message"), text("reason"))
}
