//! The invariants of every state and every act, by name. Liveness is judged on the fault-free future of every
//! state.
//!
//! Always holds: an invariant reads files and the running config, never the agent's own counts; a case in
//! which nothing can be required is an excuse; excuses and judgements are counted, and an invariant that is
//! never judged fails a search of `ENOUGH` states (fewer may contain no case of it). Leaves to others: pods,
//! which these states do not have. `sim/tests/pods` and the scenarios test that held pods are released, and
//! that the acts of pods ban no config.

use crate::acts::{Done, Stage, node_uid};
use crate::cast::{Config, DAY_TICKS, INVALID_SOURCE, LAYERS, LOCAL, Nature};
use crate::future::{Future, Futures, RARELY_UP, UP};
use crate::scenarios::Scenario;
use crate::state::{Records, State};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Starts of a proven config that are counted before its pods are held, or before its fallback runs.
const PROVEN_STARTS: usize = 11;
/// Cuts in a row that a config survives.
const CUTS: usize = 28;
/// Very short power-ons after which a working config must run.
const POWER_ONS: usize = 60;
/// Ticks before the end of a trial within which the last renewal must have been accepted.
const RECENT: u8 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    RunsOnlyWhatIsValid,
    TrueMeansThatTheAssignedRuns,
    CrashLoopEnds,
    HeartbeatResumes,
    ChangesAreRare,
    PromotedOnARenewal,
    CutOffIsNotPromoted,
    BannedStaysBanned,
    ProvenIsNeverBanned,
    RunsWhatAStartChooses,
    GoodConfigWins,
    GoodConfigWinsOverARareLink,
    ProvenRunsInShortPowerOns,
    OutageCondemnsNothing,
    /// A config that alone puts the node under memory pressure never becomes last-known-good.
    PressureIsNotPromoted,
    ObeysOnlyItsServer,
    NothingPanics,
}

pub(crate) const BASE: &[Invariant] = &[
    Invariant::NothingPanics,
    Invariant::RunsOnlyWhatIsValid,
    Invariant::TrueMeansThatTheAssignedRuns,
    Invariant::CrashLoopEnds,
    Invariant::HeartbeatResumes,
    Invariant::ChangesAreRare,
    Invariant::PromotedOnARenewal,
    Invariant::CutOffIsNotPromoted,
    Invariant::BannedStaysBanned,
    Invariant::ProvenIsNeverBanned,
    Invariant::RunsWhatAStartChooses,
    Invariant::ObeysOnlyItsServer,
];

/// Invariants that are judged where records may be lost or unwritten: a crash loop may begin again there, and
/// a promotion may stay unknown.
pub(crate) const ROUGH: &[Invariant] = &[
    Invariant::NothingPanics,
    Invariant::RunsOnlyWhatIsValid,
    Invariant::TrueMeansThatTheAssignedRuns,
    Invariant::HeartbeatResumes,
    Invariant::ChangesAreRare,
    Invariant::ProvenIsNeverBanned,
];

/// The state of the judge during a search.
pub(crate) struct Judge<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) futures: Futures,
    powered: HashSet<u64>,
    pub(crate) excuses: BTreeMap<Invariant, u64>,
    pub(crate) judged: BTreeMap<Invariant, u64>,
}

/// `None` if there is nothing to judge here. An error describes the broken promise.
type Judged = Option<Result<(), String>>;

fn broken_if(is_broken: bool, how: impl FnOnce() -> String) -> Judged {
    Some(if is_broken { Err(how()) } else { Ok(()) })
}

impl<'a> Judge<'a> {
    pub(crate) fn new(stage: &'a Stage) -> Self {
        let (excuses, judged) = Default::default();
        Self { stage, futures: Futures::default(), powered: HashSet::new(), excuses, judged }
    }

    fn scenario(&self) -> &'static Scenario {
        self.stage.scenario
    }

    /// The broken promise, if there is one.
    fn count(&mut self, invariant: Invariant, judged: Judged) -> Option<String> {
        let judged = judged?;
        *self.judged.entry(invariant).or_default() += 1;
        judged.err()
    }

    fn excuse(&mut self, invariant: Invariant) -> Judged {
        *self.excuses.entry(invariant).or_default() += 1;
        None
    }

    /// Judges a state.
    pub(crate) fn state(&mut self, invariant: Invariant, state: &State, records: &Records) -> Option<String> {
        let judged = self.judge_state(invariant, state, records);
        self.count(invariant, judged)
    }

    fn judge_state(&mut self, invariant: Invariant, state: &State, records: &Records) -> Judged {
        match invariant {
            Invariant::RunsOnlyWhatIsValid => self.runs_only_what_is_valid(state),
            Invariant::TrueMeansThatTheAssignedRuns => self.true_means_that_the_assigned_runs(state, records),
            Invariant::CrashLoopEnds => self.crash_loop_ends(state, records),
            Invariant::HeartbeatResumes => {
                self.with_future(state, UP, |judge, future| judge.heartbeat_resumes(future))
            }
            Invariant::ChangesAreRare => {
                self.with_future(state, UP, |judge, future| judge.changes_are_rare(future))
            }
            Invariant::RunsWhatAStartChooses => self.runs_what_a_start_chooses(state, records),
            Invariant::GoodConfigWins => self.good_config_wins(invariant, state, records, UP),
            Invariant::GoodConfigWinsOverARareLink => {
                self.good_config_wins(invariant, state, records, RARELY_UP)
            }
            Invariant::ProvenRunsInShortPowerOns => self.proven_runs_in_short_power_ons(state, records),
            Invariant::OutageCondemnsNothing => {
                let banned = records.banned();
                broken_if(!banned.is_empty(), || format!("{banned:?} is banned for good"))
            }
            _ => None,
        }
    }

    /// Judges an act.
    pub(crate) fn act(
        &mut self,
        invariant: Invariant,
        (state, records): (&State, &Records),
        (next, after): (&State, &Records),
        done: &Done,
    ) -> Option<String> {
        let judged = self.judge_act(invariant, (state, records), (next, after), done);
        self.count(invariant, judged)
    }

    fn judge_act(
        &mut self,
        invariant: Invariant,
        (state, records): (&State, &Records),
        (next, after): (&State, &Records),
        done: &Done,
    ) -> Judged {
        let cast = &self.stage.cast;
        let promoted = (records.last_known_good != after.last_known_good && after.last_known_good != LOCAL)
            .then_some(after.last_known_good);
        match invariant {
            Invariant::PromotedOnARenewal => {
                let quiet = next.ghost.quiet.get(&promoted?).copied().unwrap_or(9);
                broken_if(quiet > RECENT, || {
                    format!("{promoted:?} is promoted {quiet} ticks after its last renewal")
                })
            }
            Invariant::PressureIsNotPromoted => {
                let promoted = promoted?;
                if next.ghost.was_pressed {
                    return self.excuse(invariant);
                }
                let presses = cast.nature(promoted, next.layer) == Nature::Presses;
                broken_if(presses, || {
                    format!("{promoted} is promoted, and the node is short of memory by it alone")
                })
            }
            Invariant::CutOffIsNotPromoted => {
                let promoted = promoted?;
                // a trial is the sum of its runs: a config that has contact at the beginning of each run, and
                // loses it hours later, passes a trial that a cut divides
                let is_heard_at_first = cast.nature(promoted, next.layer) == Nature::LostLater;
                if is_heard_at_first && next.ghost.cuts > 0 {
                    return self.excuse(invariant);
                }
                self.with_future(next, UP, |_, future| {
                    let is_heard = future.cycle.steps.iter().any(|step| step.heard);
                    let runs = |step: &crate::future::Step| step.config == Some(promoted);
                    let is_cut_off = !is_heard && future.cycle.steps.iter().any(runs);
                    broken_if(is_cut_off, || {
                        format!("{promoted} is promoted, runs, and is never heard again")
                    })
                })
            }
            Invariant::BannedStaysBanned => {
                let runs = next.running(cast).filter(|runs| state.running(cast) != Some(*runs))?;
                let judged = (next.running_uid()?, runs);
                broken_if(state.ghost.banned.contains(&judged), || format!("{judged:?} was banned, and runs"))
            }
            Invariant::ProvenIsNeverBanned => {
                // the other version's list may contain a verdict from before the config was proven
                if state.node.version != next.node.version {
                    return None;
                }
                let is_proven = |config: Config| records.is_proven(config) && after.is_proven(config);
                let new: Vec<_> = after
                    .finals()
                    .difference(&records.finals())
                    .filter(|(_, config)| is_proven(*config))
                    .cloned()
                    .collect();
                broken_if(!new.is_empty(), || format!("{new:?} is proven, and banned for good"))
            }
            Invariant::ObeysOnlyItsServer => self.obeys_only_its_server(state, records, after, done),
            _ => None,
        }
    }

    fn with_future(
        &mut self,
        state: &State,
        link: &[bool],
        judge: impl FnOnce(&mut Self, &Future) -> Judged,
    ) -> Judged {
        match self.futures.of(self.stage, state, link) {
            Ok(future) => judge(self, &future),
            Err(endless) => Some(Err(endless)),
        }
    }

    // ------------------------------------------------------------------------------------------ at any
    // moment

    fn runs_only_what_is_valid(&self, state: &State) -> Judged {
        let runs = state.running(&self.stage.cast)?;
        let is_valid = runs == LOCAL || self.stage.cast.nature(runs, state.layer).is_valid();
        broken_if(!is_valid, || format!("{runs} runs"))
    }

    fn true_means_that_the_assigned_runs(&self, state: &State, records: &Records) -> Judged {
        let runs = state.running(&self.stage.cast)?;
        let (status, _) = state.condition()?;
        let is_another = records.assigned.is_some_and(|assigned| assigned != runs);
        broken_if(status == "True" && is_another, || format!("ConfigOK is True, and {runs} runs"))
    }

    /// The starts of an unproven config that ends its runs are bounded, between two acts of an operator.
    fn crash_loop_ends(&self, state: &State, records: &Records) -> Judged {
        let threshold = usize::from(self.scenario().threshold);
        let cuts = usize::from(state.ghost.cuts).min(CUTS + 1);
        for (config, starts) in &state.ghost.starts {
            let nature = self.stage.cast.nature(*config, state.layer);
            if records.is_proven(*config) || !nature.ends_runs() {
                continue;
            }
            // to the board a silent reset is a power cut
            let most = match nature {
                Nature::Resets => 2 * (CUTS + 2),
                _ => (threshold + 2) * 2 * (cuts + 1),
            };
            if usize::from(*starts) > most {
                return Some(Err(format!("{config} was started {starts} times (bound {most})")));
            }
        }
        Some(Ok(()))
    }

    /// A run obeys only the server that it talks to: it assigns only the source in that server's Node, and a
    /// Node that never had a source removes nothing.
    fn obeys_only_its_server(
        &self,
        state: &State,
        records: &Records,
        after: &Records,
        done: &Done,
    ) -> Judged {
        if after.assigned == records.assigned || after.assigned.is_none() || records.assigned.is_none() {
            return None;
        }
        if after.assigned != state.wants() {
            return Some(Err(format!(
                "{:?} is assigned, the Node asks for {}: {}",
                after.assigned,
                state.asks(),
                done.text
            )));
        }
        let is_stranger = !state.ghost.asked.contains(&(state.server as u64));
        broken_if(after.assigned == Some(LOCAL) && is_stranger, || {
            "a Node that never asked for anything took the config away".to_owned()
        })
    }

    /// The running config is the one that a start would choose, unless the run ends by itself.
    fn runs_what_a_start_chooses(&mut self, state: &State, records: &Records) -> Judged {
        let runs = state.running(&self.stage.cast).filter(|_| state.is_old)?;
        let (_, reason) = state.condition()?;
        let is_unknown =
            records.bad.is_none() || records.assigned.is_none() || reason.contains("not be recorded");
        if self.stage.nature_ends_runs(state) {
            return None;
        }
        if is_unknown || records.is_source_invalid {
            return self.excuse(Invariant::RunsWhatAStartChooses);
        }
        let chosen = self.stage.would_start(state)?;
        if chosen == runs {
            return Some(Ok(()));
        }
        self.with_future(state, UP, |judge, future| {
            let ends_with = future.cycle.state.running(&judge.stage.cast);
            broken_if(future.cycle.runs().is_empty() && ends_with == Some(runs), || {
                format!("{runs} runs for good, a start would choose {chosen}")
            })
        })
    }

    // ------------------------------------------------------------------------------------------ in the
    // future

    /// Whether the board can be reached under this config, with any of its drop-ins.
    fn works(&self, records: &Records, layer: usize, config: Config) -> bool {
        let mut layers = if self.scenario().drifts { 0..LAYERS } else { layer..layer + 1 };
        layers.all(|layer| self.stage.cast.nature(config, layer) == Nature::Good)
            && (config == LOCAL || records.checkpoints.contains(&config))
    }

    /// Whether a start may choose a config that works.
    fn has_one_that_works(&self, state: &State) -> bool {
        let records = Records::of(state, &self.stage.cast);
        let banned = records.banned();
        let mut chain = records.chain().into_iter().filter(|config| !banned.contains(config));
        chain.any(|config| self.works(&records, state.layer, config))
    }

    /// While the chain contains a config that works, renewals resume within a bound of starts and of silent
    /// ticks.
    fn heartbeat_resumes(&mut self, future: &Future) -> Judged {
        if self.is_nobodys_to_judge(future) || !self.has_one_that_works(&future.cycle.state) {
            return self.excuse(Invariant::HeartbeatResumes);
        }
        if !future.cycle.steps.iter().any(|step| step.heard) {
            return Some(Err(format!("it never renews again: {:?}", &future.cycle.runs())));
        }
        let threshold = usize::from(self.scenario().threshold);
        let most_starts = 4 * (threshold + 2) + 8 * (PROVEN_STARTS + 1) + 4 * (CUTS + 2) + 6;
        let most_ticks = 3 * DAY_TICKS.max(self.scenario().trial_ticks);
        if usize::from(future.most_starts) > most_starts {
            let starts = future.most_starts;
            return Some(Err(format!("{starts} starts without a renewal (bound {most_starts})")));
        }
        broken_if(usize::from(future.most_ticks) > most_ticks, || {
            format!("{} ticks without a renewal (bound {most_ticks})", future.most_ticks)
        })
    }

    /// In the long run a config is tried again at most once a day of running time.
    fn changes_are_rare(&mut self, future: &Future) -> Judged {
        let cycle = &future.cycle;
        let records = Records::of(&cycle.state, &self.stage.cast);
        let is_valid = |config: Config, layer: usize| self.stage.cast.nature(config, layer).is_valid();
        let turns =
            |config: &Config| (1..LAYERS).any(|layer| is_valid(*config, layer) != is_valid(*config, 0));
        let drop_ins_turn = self.scenario().drifts && records.chain().iter().any(turns);
        if drop_ins_turn || self.is_nobodys_to_judge(future) || !self.has_one_that_works(&cycle.state) {
            return self.excuse(Invariant::ChangesAreRare);
        }
        let runs = cycle.runs();
        let changes = runs.iter().zip(runs.iter().cycle().skip(1)).filter(|(one, next)| one != next).count();
        let kinds = runs.iter().collect::<BTreeSet<_>>().len();
        let least = (DAY_TICKS - 1) * changes / 2 / kinds.saturating_sub(1).max(1);
        broken_if(changes > 0 && cycle.ticks() < least, || {
            format!("{changes} changes of config in {} ticks, for ever: {runs:?}", cycle.ticks())
        })
    }

    /// A proven config that falls silent, or under which the board resets without a trace, cannot be judged:
    /// rules d and f spare it.
    fn is_nobodys_to_judge(&self, future: &Future) -> bool {
        let records = Records::of(&future.cycle.state, &self.stage.cast);
        let spared = |config: Config| {
            (0..LAYERS).any(|layer| {
                let nature = self.stage.cast.nature(config, layer);
                matches!(nature, Nature::Lost | Nature::LostLater | Nature::Resets)
            })
        };
        [records.last_known_good, records.before].into_iter().any(spared)
    }

    /// A good assigned config that nobody banned becomes the running one, and last-known-good.
    fn good_config_wins(
        &mut self,
        invariant: Invariant,
        state: &State,
        records: &Records,
        link: &[bool],
    ) -> Judged {
        let wanted = state.wants().filter(|_| state.asks() != INVALID_SOURCE)?;
        // a Node without a source withdraws only its own assignment
        let is_strangers = wanted == LOCAL && records.assigned_by != node_uid(state.server);
        let is_held =
            records.bad.is_none() || records.doubted == Some(wanted) || records.banned().contains(&wanted);
        // the running config has no contact, so it cannot hear of the assignment
        let is_deaf = records.assigned != Some(wanted)
            && !records.chain().iter().any(|config| self.works(records, state.layer, *config));
        // after a change of the server's objects over a rarely available link, or of drop-ins, it counts as
        // another config
        let is_good = |layer: usize| self.stage.cast.nature(wanted, layer) == Nature::Good;
        let drifts = self.scenario().drifts;
        let is_good = if drifts { (0..LAYERS).all(is_good) } else { is_good(state.layer) };
        if is_strangers || !is_good {
            return None;
        }
        if is_held || is_deaf {
            return self.excuse(invariant);
        }
        let future = match self.futures.of(self.stage, state, link) {
            Ok(future) => future,
            Err(endless) => return Some(Err(endless)),
        };
        let cycle = &future.cycle;
        let end = Records::of(&cycle.state, &self.stage.cast);
        let is_banned = end.banned().contains(&wanted) && !records.is_proven(wanted);
        // its run just ended badly, and it tolerates no further bad end
        let is_end_counted = state.node.process.is_none() && state.end != crate::state::End::Clean;
        let is_banned_fairly = is_banned && (records.assigned != Some(wanted) || is_end_counted);
        if end.doubted == Some(wanted) || is_banned_fairly {
            return self.excuse(invariant);
        }
        let others: BTreeSet<_> =
            cycle.steps.iter().filter_map(|step| step.config).filter(|config| *config != wanted).collect();
        let is_known_good = end.last_known_good == wanted;
        broken_if(!others.is_empty() || !is_known_good, || {
            let reason = cycle.state.condition().map(|(_, reason)| reason).unwrap_or_default();
            format!(
                "{wanted} is good; it ends with {others:?}, last-known-good {}: {reason}",
                end.last_known_good
            )
        })
    }

    /// Power-ons of one tick each: a proven, working, assigned config runs again after some of them.
    fn proven_runs_in_short_power_ons(&mut self, state: &State, records: &Records) -> Judged {
        let wanted = state.wants()?;
        let is_asked = records.assigned == Some(wanted) && records.is_proven(wanted) && wanted != LOCAL;
        let is_good = self.stage.cast.nature(wanted, state.layer) == Nature::Good;
        if !is_asked || !is_good || state.node.process.is_none() {
            return None;
        }
        if records.bad.is_none() {
            return self.excuse(Invariant::ProvenRunsInShortPowerOns);
        }
        let mut now = state.fork_in_peace();
        let mut mine = Vec::new();
        for _ in 0..3 * POWER_ONS {
            let key = now.key();
            if now.running(&self.stage.cast) == Some(wanted) || self.powered.contains(&key) {
                self.powered.extend(mine);
                return Some(Ok(()));
            }
            mine.push(key);
            self.stage.short_power_on(&mut now);
        }
        Some(Err(format!("{wanted} is proven and works, and short power-ons keep another one running")))
    }
}
