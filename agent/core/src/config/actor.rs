//! The configuration as an actor of core: follows the object that the Node names, passes its changes to the
//! decisions (`running`), and their outcomes to the disk and to people.
//!
//! Always holds: at most one file step is under way; only the ConfigMap that this server's Node names is
//! watched; evidence is consumed only after its consequences are on disk; after the exit was ordered only log
//! lines follow, unless the exit is delayed: then everything continues as before, except for the
//! configuration, whose next step is that exit, or a stop. Leaves to others: the Node itself
//! (`node::object`), how a condition reaches the server (`node::heartbeat`).

use crate::answer::Level;
use crate::config::condition::{self, ConfigOk};
use crate::config::disk::AssignedNow;
use crate::config::records::{BadConfigs, Read, Verdict};
use crate::config::requested::Object;
use crate::config::running::{Configuration, Forgiveness, Next, Notice, explained};
use crate::config::source::{self, requested_source};
use crate::config::standing::Obstacle;
use crate::config::start::{Facts, Started};
use crate::event::Action;
use crate::kubelet::Config;
use crate::node::events::NodeEvents;
use crate::reflector::{Reflector, Shown};
use crate::turn::Turn;
use crate::watching::{ObjectVersion, Watched};
use crate::writes::Outcome;
use kedge_api::{self as api, excerpt};
use std::rc::Rc;

#[derive(Clone)]
pub(crate) struct ConfigActor {
    pub(crate) configuration: Configuration,
    pub(crate) reflector: Reflector,
    /// Namespace and name of the watched ConfigMap.
    watched: Option<(String, String)>,
    /// The collection must be listed again.
    must_relist: bool,
    /// Whether this server's Node names the source that the configuration knows. Until then no ConfigMap of
    /// this server is read: another server may have another object under the name that was watched there.
    is_source_of_this_server: bool,
    /// The condition that was last logged.
    config_ok: ConfigOk,
    ending: Ending,
    evidence_consumed: bool,
}

/// The progress of the end of this run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ending {
    No,
    /// The exit is ordered, for this reason.
    Ordered(String),
    /// It was ordered for this reason, and cannot happen yet.
    HeldUp(String),
}

/// The start's reports to people.
struct StartNews {
    findings: Vec<String>,
    ended: Option<String>,
    held: Option<String>,
    changed: Option<String>,
    condemned: Vec<Verdict>,
    report: Option<String>,
    rolled_back: Option<String>,
}

impl StartNews {
    fn take_from(started: &mut Started) -> Self {
        Self {
            findings: std::mem::take(&mut started.findings),
            ended: started.ended.take(),
            held: started.held.take(),
            changed: started.changed.take(),
            condemned: std::mem::take(&mut started.condemned),
            report: started.report.take(),
            rolled_back: started.rolled_back.take(),
        }
    }
}

impl ConfigActor {
    /// A config was chosen: it is in use from here on.
    pub(crate) fn new(mut started: Started, facts: Facts, events: &mut NodeEvents, turn: &mut Turn) -> Self {
        let news = StartNews::take_from(&mut started);
        let configuration = Configuration::new(started, facts, turn.now);
        let config_ok = condition::config_ok(&configuration.view());
        let lists_only = !configuration.effective().config.watch;
        let mut actor = Self {
            configuration,
            reflector: Reflector::new(Watched::ConfigMap, "", lists_only),
            watched: None,
            must_relist: false,
            is_source_of_this_server: true,
            config_ok,
            ending: Ending::No,
            evidence_consumed: false,
        };
        actor.publish_start(news, events, turn);
        let effective = actor.configuration.effective().clone();
        if !effective.without_effect.is_empty() {
            let fields = effective.without_effect.join(", ");
            turn.log(Level::Info, format!("set but without effect here: {fields}"));
        }
        for held in &effective.held {
            turn.log(Level::Warn, held.to_string());
        }
        turn.act(Action::Use(Box::new(effective.as_ref().clone())));
        actor.consume_evidence(turn);
        turn.act(Action::Sweep { keep: actor.configuration.checkpoints_to_keep() });
        actor
    }

    fn publish_start(&self, news: StartNews, events: &mut NodeEvents, turn: &mut Turn) {
        for finding in news.findings {
            events.publish(warning("StateSetAside", finding), turn);
        }
        if let Some(how) = news.ended {
            let message = format!("the previous run of the agent did not end cleanly: {how}");
            events.publish(warning("UncleanExit", message), turn);
        }
        if let Some(why) = news.rolled_back {
            events.publish(warning("SystemRolledBack", why), turn);
        }
        if let Some(why) = news.held {
            events.publish(warning("ProvenConfigCrashes", why), turn);
        }
        if let Some(mut message) = news.changed {
            // the trial ends with ConfigPromoted or ConfigRolledBack: kubectl shows the trial under way
            // between the two
            if let Some(left) = self.configuration.trial_left(turn.now).filter(|left| !left.is_zero()) {
                message.push_str(&format!("; on trial for {} s", left.as_secs_f64().ceil()));
            }
            events.publish(Notice { warning: false, reason: "KubeletConfigChanged", message }, turn);
        }
        // the Event of a roll back has the whole text of the condition, unless there is another fault besides
        let mut is_said = news.condemned.iter().any(|verdict| verdict.reason == self.config_ok.reason);
        let not_used = self.not_used(&news.condemned);
        for verdict in news.condemned {
            let why = explained("", &verdict.reason, &verdict);
            let message = format!("{why}; {}", self.config_ok.message);
            events.publish(warning("ConfigRolledBack", message), turn);
        }
        if let Some(notice) = not_used {
            is_said = true;
            events.publish(notice, turn);
        }
        if let Some(report) = news.report {
            turn.log(Level::Warn, format!("further problems:\n{report}"));
        }
        if !is_said {
            self.log_condition(turn);
        }
    }

    /// Each start that does not run the assigned config reports which config that is and why, once: in the
    /// Event of the verdict, if it was given now, or else here. An earlier Event may be gone, or was about
    /// another assignment.
    fn not_used(&self, condemned: &[Verdict]) -> Option<Notice> {
        let view = self.configuration.view();
        let obstacle = view.standing.obstacle()?;
        let AssignedNow::Config(config, _) = view.disk.assigned() else { return None };
        let (reason, verdict) = match obstacle {
            Obstacle::Marked { verdict, .. } if condemned.contains(verdict) => return None,
            Obstacle::Marked { verdict, .. } => ("ConfigKnownBad", Some(verdict)),
            // it was an Event when it was recorded, and no config is at fault
            Obstacle::SourceInvalid(_) => return None,
            _ => ("ConfigNotUsed", None),
        };
        let why = match verdict {
            Some(verdict) => explained(&config.named(), &self.config_ok.reason, verdict),
            None => format!("{}: {}", config.named(), self.config_ok.reason),
        };
        Some(warning(reason, format!("{why}; {}", self.config_ok.message)))
    }

    /// The config in use.
    pub(crate) fn config(&self) -> &Config {
        &self.configuration.effective().config
    }

    pub(crate) fn config_ok(&self) -> &ConfigOk {
        &self.config_ok
    }

    /// `status.config`.
    pub(crate) fn config_status(&self) -> api::NodeConfigStatus {
        condition::config_status(&self.configuration.view())
    }

    /// The version of the watched ConfigMap that has a whole copy on disk.
    pub(crate) fn held(&self) -> Option<ObjectVersion> {
        let (uid, resource_version) = self.configuration.held()?;
        Some((uid.to_owned(), resource_version.to_owned()))
    }

    pub(crate) fn is_exiting(&self) -> bool {
        matches!(self.ending, Ending::Ordered(_))
    }

    /// The ordered exit is delayed, for this reason; `None` if it can happen now. A requested stop waits for
    /// nothing, and is not delayed.
    pub(crate) fn end_held_up(&mut self, held_up: Option<String>, turn: &mut Turn) {
        match (std::mem::replace(&mut self.ending, Ending::No), held_up) {
            (Ending::Ordered(exit) | Ending::HeldUp(exit), Some(why)) => {
                self.configuration.hold_up_end(Some(why));
                self.ending = Ending::HeldUp(exit);
            }
            (Ending::HeldUp(why), None) => {
                self.configuration.hold_up_end(None);
                self.ending = Ending::Ordered(why.clone());
                turn.act(Action::Exit { why, start_again: !self.configuration.is_stop_asked() });
            }
            (ending, _) => self.ending = ending,
        }
    }

    // ------------------------------------------------------------------------------------------ what happens

    pub(crate) fn step_done(&mut self, outcome: Outcome, turn: &mut Turn) {
        let next = self.configuration.done(turn.now, outcome);
        self.perform(next, turn);
    }

    /// False for the object that was watched before.
    pub(crate) fn is_watched(&self, namespace: &str, name: &str) -> bool {
        self.watched
            .as_ref()
            .is_some_and(|watched| (watched.0.as_str(), watched.1.as_str()) == (namespace, name))
    }

    pub(crate) fn shown(&mut self, namespace: &str, name: &str, shown: Shown) {
        let object = match shown {
            Shown::All(mut objects) => {
                objects.pop().map_or(Object::Missing, |object| Object::Here(Rc::new(object)))
            }
            Shown::One(object) => Object::Here(Rc::new(object)),
            Shown::Gone(_) => Object::Missing,
            Shown::Unchanged((uid, resource_version)) => Object::Unchanged { uid, resource_version },
            Shown::TooMuch { why, .. } => Object::Unreadable(why),
            Shown::Replaced(_) => return,
        };
        self.configuration.object_seen(namespace, name, object);
    }

    pub(crate) fn unreadable(&mut self, why: String) {
        if let Some((namespace, name)) = &self.watched {
            self.configuration.object_seen(namespace, name, Object::Unreadable(why));
        }
    }

    /// Has the watched object listed in this turn: the watch has not shown a change that the server
    /// announced, or its Node is another one, perhaps of a server that was set up again: a watch from a
    /// version of the old one would get no events.
    pub(crate) fn relist(&mut self) {
        self.must_relist = true;
    }

    pub(crate) fn server_changed(&mut self, turn: &mut Turn) {
        self.configuration.server_changed();
        self.is_source_of_this_server = false;
        self.reflector.stop();
        if self.watched.take().is_some() {
            turn.act(Action::EndConfigMapWatch);
        }
    }

    pub(crate) fn bad_configs_read(&mut self, read: &Read) {
        self.configuration.bad_configs_edited(BadConfigs::read(read));
    }

    pub(crate) fn forgive(&mut self, uid: &str, turn: &mut Turn) {
        let answer = self.configuration.forgive(uid);
        let level = match answer {
            Forgiveness::Taken | Forgiveness::NothingKnown => Level::Info,
            Forgiveness::TooMany | Forgiveness::Exiting | Forgiveness::SwitchedOff => Level::Warn,
        };
        turn.log(level, format!("asked to forgive UID {}: {answer}", excerpt(uid)));
    }

    // ------------------------------------------------------------------------------------------ what is due

    /// Decides, once it is known whether our hub serves the Node.
    pub(crate) fn decide(
        &mut self,
        node: Option<&api::Node>,
        is_hub: Option<bool>,
        events: &mut NodeEvents,
        turn: &mut Turn,
    ) {
        if !self.is_exiting() {
            if let (Some(node), Some(is_hub)) = (node, is_hub) {
                self.judge_source(node, is_hub);
            }
            // everything that the exit needs is written: only a stop may come before it
            if self.ending == Ending::No || self.configuration.is_stop_asked() {
                let next = self.configuration.next(turn.now);
                self.perform(next, turn);
            }
        }
        for notice in self.configuration.take_notices() {
            events.publish(notice, turn);
        }
        if !self.is_exiting() {
            self.consume_evidence(turn);
            self.note_condition(turn);
        }
    }

    fn judge_source(&mut self, node: &api::Node, is_hub: bool) {
        let annotation = node.metadata.annotations.get(api::CONFIG_SOURCE_ANNOTATION).map(String::as_str);
        let requested = requested_source(node.spec.config_source.as_ref(), annotation, is_hub);
        self.configuration.node_seen(&node.metadata.uid, requested, source::place(is_hub));
        let asked = node.metadata.annotations.get(api::FORGIVE_ANNOTATION).map(String::as_str);
        self.configuration.asked_to_forgive(asked);
        let holds_promotion = node.metadata.annotations.contains_key(api::HOLD_PROMOTION_ANNOTATION);
        self.configuration.promotion_asked(holds_promotion);
        self.is_source_of_this_server = true;
    }

    fn perform(&mut self, next: Option<Next>, turn: &mut Turn) {
        let exits = matches!(next, Some(Next::Exit(_)));
        // before the next write, which may be a checkpoint that no record names yet
        if let Some(keep) = self.configuration.take_sweep().filter(|_| !exits) {
            turn.act(Action::Sweep { keep });
        }
        match next {
            Some(Next::Step(step)) => turn.act(Action::Step(step)),
            Some(Next::Exit(why)) => {
                self.ending = Ending::Ordered(why.clone());
                let start_again = !self.configuration.is_stop_asked();
                turn.act(Action::Exit { why, start_again });
            }
            None => {}
        }
    }

    /// Once, and only when all its consequences are on disk: until then the evidence is the only proof.
    fn consume_evidence(&mut self, turn: &mut Turn) {
        if !self.evidence_consumed && self.configuration.evidence_is_recorded() {
            self.evidence_consumed = true;
            turn.act(Action::ConsumeEvidence);
        }
    }

    fn note_condition(&mut self, turn: &mut Turn) {
        let config_ok = condition::config_ok(&self.configuration.view());
        if config_ok != self.config_ok {
            self.config_ok = config_ok;
            self.log_condition(turn);
        }
    }

    fn log_condition(&self, turn: &mut Turn) {
        let ConfigOk { status, message, reason, .. } = &self.config_ok;
        turn.log(Level::Info, format!("ConfigOK={status}: {message} ({reason})"));
    }

    /// `is_node_known`: while the Node is unknown, the ConfigMap stays watched.
    pub(crate) fn update_watch(&mut self, is_node_known: bool, turn: &mut Turn) {
        if !self.is_source_of_this_server {
            return;
        }
        let wanted = match self.configuration.requested_object() {
            Some((namespace, name)) => Some((namespace.to_owned(), name.to_owned())),
            None if is_node_known => None,
            None => return,
        };
        let anew = self.configuration.take_must_read() | std::mem::take(&mut self.must_relist);
        let is_another = wanted != self.watched;
        self.watched = wanted;
        let Some((namespace, name)) = self.watched.clone() else {
            if is_another {
                self.reflector.stop();
                turn.act(Action::EndConfigMapWatch);
            }
            return;
        };
        let held = self.held();
        let order = match (is_another, anew) {
            (true, _) => Some(self.reflector.list_another(&name, held)),
            (false, true) => Some(self.reflector.watching.list(held)),
            (false, false) => self.reflector.watching.poll(turn.now, held),
        };
        if let Some(order) = order {
            turn.act(Action::WatchConfigMap { namespace, name, order });
        }
    }
}

fn warning(reason: &'static str, message: String) -> Notice {
    Notice { warning: true, reason, message }
}
