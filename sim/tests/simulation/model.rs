//! The true history, as the simulation sees it from outside, for the invariants that compare it with the
//! agent's acts, reports and writes.
//!
//! Always holds: nothing here uses the agent's own counts; running time, contact and crashes are those of the
//! simulated world. Where the rules allow the agent to forget (a new assignment, a damaged record, another
//! version), the model forgets, too.

use crate::configs::Design;
use kedge_core::{ConfigId, Digest};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A configuration as the agent counts it, and the design of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    /// Digest of the ConfigMap's UID: a verdict is about one object.
    pub(crate) object: Digest,
    /// The payload with the present drop-ins: verdicts on a text are about that.
    pub(crate) id: ConfigId,
    /// Counts, and verdicts on deeds, are about the payload.
    pub(crate) payload: Digest,
    pub(crate) max_pods: u32,
}

/// The history of a configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Past {
    /// Running time since the last crash.
    pub(crate) ran: Duration,
    /// How long it had run when the API server last accepted a renewal.
    pub(crate) renewed: Option<Duration>,
    /// Crashes of recorded runs since it last ran for a whole trial.
    pub(crate) crashes: u32,
    /// Running time last written durably, while nothing allows the agent to forget it.
    pub(crate) saved_ms: Option<u64>,
}

/// The run under way.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// The running config; `None` is the local one.
    pub(crate) config: Option<Config>,
    pub(crate) since: Duration,
    /// Its start is on disk.
    pub(crate) recorded: bool,
    /// Another config was assigned meanwhile: its counts will replace those of this run, however the run
    /// ends.
    pub(crate) superseded: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) past: BTreeMap<Digest, Past>,
    /// The same under the other agent versions: each version judges by itself.
    elsewhere: BTreeMap<String, BTreeMap<Digest, Past>>,
    /// The config that ran last and its drop-ins, as the current start read them; `None` if it could not read
    /// that.
    pub(crate) read_last: Option<(Digest, Option<ConfigId>)>,
    /// Final verdicts that were durable, per agent version.
    pub(crate) condemned: BTreeSet<(String, Judged)>,
    pub(crate) run: Option<Run>,
    /// The agent's knowledge of its files in this run: read, or reported written.
    pub(crate) told: BTreeMap<String, Option<Vec<u8>>>,
    /// The same at the end of the last run.
    pub(crate) told_last: BTreeMap<String, Option<Vec<u8>>>,
    /// The same before the transition under way.
    pub(crate) told_before: BTreeMap<String, Option<Vec<u8>>>,
    /// Files were changed behind the agent's back in this run.
    pub(crate) tampered: bool,
    pub(crate) writes: u64,
    /// Bytes of these writes.
    pub(crate) bytes_written: u64,
    /// The config in use has just begun to run.
    pub(crate) fresh: bool,
    /// The last crash if no record on disk shows it yet, and the config's history before it. Then the record
    /// of the run's end is the only proof, and the next end replaces it: the crash may remain uncounted.
    last_crash: Option<(Digest, Past)>,
    /// Crashes that only a verdict proves, and the configs' history before them: the counts on disk do not
    /// contain them yet, so removing the verdict by hand removes the proof.
    judged: BTreeMap<Digest, Past>,
    /// Ends that count, under any config.
    ends: u64,
    /// Counted startups, as last acknowledged or read, and the number of ends at that time.
    counted: BTreeMap<Option<Digest>, (u64, u64)>,
    /// Contents for which somebody asked forgiveness.
    pub(crate) forgiving: BTreeSet<Judged>,
    /// Contents whose verdicts are gone from the disk, and that had no chance to fail since.
    pub(crate) forgiven: BTreeSet<Judged>,
    /// How often an excuse applied to something that could otherwise be required of an agent.
    pub(crate) excuses: BTreeMap<&'static str, u64>,
}

/// The subject of a verdict: a content of an object, given by the digest of its UID, or every object with
/// this payload.
pub(crate) type Judged = (Digest, About);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    Text(ConfigId),
    Deeds(Digest),
}

impl Config {
    /// Every possible verdict about it.
    pub(crate) fn judged(self) -> [Judged; 2] {
        [(self.object, About::Text(self.id)), (self.object, About::Deeds(self.payload))]
    }

    /// Whether one of these verdicts is about it.
    pub(crate) fn is_among(self, verdicts: &[Judged]) -> bool {
        self.judged().iter().any(|judged| verdicts.contains(judged))
    }
}

impl Model {
    /// A config begins to run.
    pub(crate) fn begins(&mut self, now: Duration, config: Option<Config>, recorded: bool) {
        if let Some(config) = config {
            self.past.entry(config.payload).or_default();
            for judged in config.judged() {
                self.forgiven.remove(&judged);
            }
        }
        self.run = Some(Run { config, since: now, recorded, superseded: false });
        self.fresh = true;
    }

    /// This config is about to run: with other drop-ins, or if another config ran meanwhile, its time starts
    /// from zero.
    pub(crate) fn starts(&mut self, config: Config) {
        if self.begins_anew(config.payload, Some(config.id)) {
            let past = self.past.entry(config.payload).or_default();
            (past.ran, past.renewed, past.saved_ms) = (Duration::ZERO, None, past.saved_ms.map(|_| 0));
        }
    }

    /// Whether the running time of a starting config starts from zero, by the records that the start has
    /// read.
    fn begins_anew(&self, payload: Digest, id: Option<ConfigId>) -> bool {
        self.read_last != Some((payload, id))
    }

    /// Counts the time up to now for the running config.
    pub(crate) fn ran(&mut self, now: Duration, designs: &[Design]) {
        let Some(run) = &mut self.run else { return };
        let time = now.saturating_sub(run.since);
        run.since = now;
        let Some(config) = run.config else { return };
        let past = self.past.entry(config.payload).or_default();
        past.ran += time;
        let design = designs.iter().find(|design| design.max_pods == config.max_pods);
        if design.is_some_and(|design| past.ran >= Duration::from_millis(design.settled_ms())) {
            past.crashes = 0;
        }
    }

    /// The API server accepted a renewal.
    pub(crate) fn renewed(&mut self, now: Duration, designs: &[Design]) {
        self.ran(now, designs);
        if let Some(config) = self.run.as_ref().and_then(|run| run.config) {
            let past = self.past.entry(config.payload).or_default();
            past.renewed = Some(past.ran);
        }
    }

    /// The run ended. `crashed`: in a way that counts; `open`: whether the disk shows that it was running.
    /// `left_open`: the configs whose records on disk are open, whichever one runs.
    pub(crate) fn ends(
        &mut self,
        now: Duration,
        designs: &[Design],
        crashed: bool,
        open: bool,
        left_open: &[Digest],
    ) {
        self.ran(now, designs);
        self.ends += u64::from(crashed);
        let run = self.run.take();
        self.forgiving.clear();
        if crashed {
            // perhaps its start crashed
            self.forgiven.clear();
        }
        // after a write that failed half-way, or a change by hand, it is unknown what remains after a cut
        self.told_last = std::mem::take(&mut self.told);
        if std::mem::take(&mut self.tampered) {
            self.told_last.clear();
        }
        self.doubt_last_crash();
        if crashed && run.as_ref().is_none_or(|run| !run.recorded) {
            // It died at its start, or its run could not be recorded: all that is known of this end is its
            // boot, so it counts against the record that is still open there. The record of a condemned
            // config is still open if the disk refused its verdict and the closing of its record.
            for payload in left_open {
                if let Some(past) = self.past.get_mut(payload) {
                    past.saved_ms = None;
                }
            }
        }
        let Some(run) = run else { return };
        let Some(config) = run.config else { return };
        let past = self.past.entry(config.payload).or_default();
        let counts = run.recorded && !run.superseded;
        if crashed && open {
            self.last_crash = Some((config.payload, past.clone()));
            past.ran = Duration::ZERO;
            past.renewed = None;
            past.saved_ms = None;
            past.crashes += u32::from(counts);
        }
    }

    /// No transition is under way.
    pub(crate) fn rests(&mut self) {
        if self.told != self.told_before {
            self.told_before.clone_from(&self.told);
        }
    }

    /// Counts are durable, and by them this config ran last: any other starts its time from zero. A start
    /// writes the counts that it read, brought up to date: they may not shrink.
    pub(crate) fn saved(&mut self, last: Option<(Digest, Option<ConfigId>)>, ran_ms: Option<u64>) {
        let starting = self.run.is_none();
        self.counts_are_of(last.map(|(payload, _)| payload));
        let Some((payload, id)) = last else { return };
        let goes_on = starting && !self.begins_anew(payload, id);
        let past = self.past.entry(payload).or_default();
        past.saved_ms = if goes_on { ran_ms.max(past.saved_ms) } else { ran_ms };
    }

    /// By the counts on disk this config ran last: the saved running time of any other no longer counts.
    pub(crate) fn counts_are_of(&mut self, last: Option<Digest>) {
        for (_, past) in self.past.iter_mut().filter(|(other, _)| Some(**other) != last) {
            past.saved_ms = None;
        }
    }

    /// Counts were written: the crashes that led to them are now recorded for good.
    pub(crate) fn proven_by_counts(&mut self) {
        self.last_crash = None;
        self.judged.clear();
    }

    /// Verdicts were written: the last crash is recorded for as long as they stay.
    pub(crate) fn proven_by_verdict(&mut self) {
        self.judged.extend(self.last_crash.take());
    }

    /// The proofs of the crashes behind verdicts may be gone from the disk: the crashes may remain uncounted
    /// from now on.
    fn doubt_judged(&mut self) {
        for (id, before) in std::mem::take(&mut self.judged) {
            self.past.insert(id, Past { saved_ms: None, ..before });
        }
    }

    /// These counts of startups of each config (`None`: the local one) are durable. Returns the configs with
    /// more startups than ends, each end counted once.
    pub(crate) fn startups_written(
        &mut self,
        counts: &[(Option<Digest>, u64)],
    ) -> Vec<(Option<Digest>, u64, u64)> {
        let before = std::mem::take(&mut self.counted);
        let mut wrong = Vec::new();
        for (of, count) in counts {
            let most = before.get(of).map_or(*count, |(count, ends)| count + self.ends - ends);
            if *count > most {
                wrong.push((*of, *count, most));
            }
            self.counted.insert(*of, (*count, self.ends));
        }
        wrong
    }

    /// These counts of startups of each config were read. Unacknowledged writes do not change which counts
    /// are possible.
    pub(crate) fn startups_read(&mut self, counts: &[(Option<Digest>, u64)]) {
        let before = std::mem::take(&mut self.counted);
        for (of, count) in counts {
            // perhaps the last end is not among them
            let known = before.get(of).copied().unwrap_or((*count, self.ends.saturating_sub(1)));
            self.counted.insert(*of, known);
        }
    }

    /// Evidence that was already used may be used once more.
    pub(crate) fn evidence_stays(&mut self) {
        self.ends += 1;
    }

    /// The last crash may remain uncounted; or it is counted and the running time is zero, which is right,
    /// too.
    pub(crate) fn doubt_last_crash(&mut self) {
        if let Some((id, before)) = self.last_crash.take() {
            self.past.insert(id, Past { saved_ms: None, ..before });
            self.excuse("last crash doubted");
        }
    }

    fn excuse(&mut self, why: &'static str) {
        *self.excuses.entry(why).or_default() += 1;
    }

    /// Another agent version begins.
    pub(crate) fn upgraded(&mut self, from: &str, to: &str) {
        self.doubt_last_crash();
        self.doubt_judged();
        self.forgiven.clear();
        self.counted.clear();
        let past = std::mem::take(&mut self.past);
        self.elsewhere.insert(from.to_owned(), past);
        self.past = self.elsewhere.remove(to).unwrap_or_default();
    }

    /// The configs that these verdicts allow to be tried again start without counts.
    pub(crate) fn tried_again(&mut self, bad: &Value) {
        let contents = bad.as_object().into_iter().flatten();
        let contents = contents.filter_map(|(_, entry)| entry["contents"].as_object()).flatten();
        for (_, verdict) in contents.filter(|(_, verdict)| verdict["retry"] == true) {
            let payload = verdict["payload"].as_str().and_then(Digest::parse);
            if let Some(past) = payload.and_then(|payload| self.past.get_mut(&payload)) {
                (past.crashes, past.saved_ms) = (0, None);
            }
        }
    }

    /// Somebody acted in a way after which earlier crashes need not be remembered.
    pub(crate) fn forget_crashes(&mut self) {
        self.excuse("crashes forgotten");
        let doubted = self.last_crash.iter_mut().map(|(_, past)| past).chain(self.judged.values_mut());
        for past in self.past.values_mut().chain(doubted) {
            past.crashes = 0;
            past.saved_ms = None;
        }
    }

    /// The counts on disk, or the config that they belong to, changed behind the agent's back.
    pub(crate) fn forget_all(&mut self) {
        self.excuse("everything forgotten");
        self.forget_crashes();
        self.doubt_judged();
        self.counted.clear();
        self.condemned.clear();
        (self.forgiving, self.forgiven) = (BTreeSet::new(), BTreeSet::new());
    }
}

/// A field of a JSON text, as text.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Final verdicts in a `bad-configs.json`: those that are never tried again, not just set aside for a while.
pub(crate) fn final_verdicts(bad: &Value) -> Vec<Judged> {
    verdicts(bad, |verdict| match text(verdict, "/kind") {
        "contact" | "proven" => false,
        "cuts" => verdict["tries"].as_u64() >= Some(2),
        _ => true,
    })
}

/// Contents that are banned now, suspicions included.
pub(crate) fn banned(bad: &Value) -> Vec<Judged> {
    verdicts(bad, |_| true)
}

pub(crate) fn verdicts(bad: &Value, wanted: impl Fn(&Value) -> bool) -> Vec<Judged> {
    let of_object = |(uid, entry): (&String, &Value)| {
        let object = Digest::of(uid.as_bytes());
        let contents = entry["contents"].as_object().cloned().unwrap_or_default();
        let wanted = contents.into_iter().filter(|(_, verdict)| verdict["retry"] != true && wanted(verdict));
        wanted.filter_map(|(id, verdict)| Some((object, about(&id, &verdict)?))).collect::<Vec<_>>()
    };
    bad.as_object().into_iter().flatten().flat_map(of_object).collect()
}

/// The subject of a verdict with this id.
pub(crate) fn about(id: &str, verdict: &Value) -> Option<About> {
    match text(verdict, "/kind") {
        "parse" | "validate" => ConfigId::parse(id).map(About::Text),
        _ => Digest::parse(text(verdict, "/payload")).map(About::Deeds),
    }
}

/// The config that ran last by the counts on disk, and its drop-ins.
pub(crate) fn last_of(startups: &Value) -> Option<(Digest, Option<ConfigId>)> {
    let last = text(startups, "/last");
    Some((Digest::parse(last)?, ConfigId::parse(text(&startups["records"][last], "/id"))))
}

/// How many startups are counted against each config (None: the local one).
pub(crate) fn startups_in(startups: &Value) -> Vec<(Option<Digest>, u64)> {
    let records = startups["records"].as_object().into_iter().flatten();
    let count = |record: &Value| record["startups"].as_array().map_or(0, |startups| startups.len() as u64);
    records.map(|(name, record)| (Digest::parse(name), count(record))).collect()
}

/// The path of a record's checkpoint.
pub(crate) fn checkpoint_path(record: &Value) -> String {
    format!("checkpoints/{}/{}", text(record, "/checkpoint"), text(record, "/sha256"))
}
