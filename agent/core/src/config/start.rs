//! The decision at start (RULES.md, "Start"): which config runs, and what is written before it runs.
//!
//! Always holds: some config runs, the local one if no other can; the start of a config is recorded before
//! its payload is parsed; a verdict that could not be written leaves the counts that prove it in their
//! record; every prefix of the writes is a state this same program can start from. Nothing here waits for the
//! network.

use crate::config::digest::{ConfigId, Identity};
use crate::config::disk::{AssignedNow, Content, Disk, load};
use crate::config::judge::{self, Ended, PreviousRun, Role, Terms, Weighed};
use crate::config::records::{
    BadConfigs, BadKind, ConfigRecord, Counts, Known, LastKnownGood, RanAs, Startups, Verdict,
    shortened_detail,
};
use crate::config::standing::{Obstacle, Rank, Standing};
use crate::config::system::{self, Asked, GoBack};
use crate::kubelet::error::{ConfigError, ErrorKind};
use crate::kubelet::{self, Config, Effective, Eviction, LocalLayers};
use crate::system::Slots;
use crate::writes::{Durable, Steps, Suspendable};
use kedge_api::Timestamp;
use std::rc::Rc;

/// The inputs of a start besides the records.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// `--config`, drop-ins and flags, valid as a whole.
    pub(crate) local: Rc<LocalLayers>,
    /// The local config that results from them.
    pub(crate) local_effective: Rc<Effective>,
    /// Canonical drop-ins and flags: part of every config's id.
    pub(crate) overrides: Rc<Vec<u8>>,
    /// `--dynamic-config`.
    pub(crate) dynamic: bool,
    /// The slots of this machine, if it has some.
    pub(crate) slots: Option<Slots>,
    /// This boot.
    pub(crate) boot_id: String,
    /// How the previous run ended, as far as it was recorded.
    pub(crate) previous: PreviousRun,
    /// For stamps only.
    pub(crate) wall: Timestamp,
}

impl Facts {
    /// Whether `--config` or drop-ins were given: the proposal's "init config".
    pub(crate) fn has_init(&self) -> bool {
        self.local.base.is_some() || !self.local.drop_ins.is_empty()
    }

    /// The content id of the local config.
    pub(crate) fn local_id(&self) -> ConfigId {
        let base = self.local.base.as_ref().map_or(&[][..], |base| &base.text);
        ConfigId::of(base, &self.overrides)
    }
}

/// The config in use.
#[derive(Debug, Clone)]
pub(crate) struct InUse {
    pub(crate) effective: Rc<Effective>,
    /// Its record, and its content; `None` for local.
    pub(crate) config: Option<(ConfigRecord, Identity)>,
    /// Its counts, recorded or not.
    pub(crate) counts: Counts,
    pub(crate) terms: Terms,
}

impl InUse {
    /// The owner of its counts.
    pub(crate) fn ran_as(&self) -> RanAs {
        self.config.as_ref().map_or(RanAs::Local, |(_, is)| RanAs::Payload(is.payload))
    }
}

/// The result of a start: some config is in use.
#[derive(Debug, Clone)]
pub(crate) struct Started {
    pub(crate) in_use: InUse,
    pub(crate) disk: Disk,
    /// The assigned config, if its content is available.
    pub(crate) assigned: Option<Identity>,
    /// The last-known-good, if its content is available.
    pub(crate) last_known_good: Option<Identity>,
    /// The one before that, if its content is available.
    pub(crate) previous: Option<Identity>,
    /// The relation of the config in use to the one that should run.
    pub(crate) standing: Standing,
    /// Records that were set aside or left alone, for condition and event.
    pub(crate) findings: Vec<String>,
    /// The parser's and validator's full report on the assigned config, if it was condemned now.
    pub(crate) report: Option<String>,
    /// How the run before ended, if that was counted or a cut.
    pub(crate) ended: Option<String>,
    /// Set at the first start with a newly assigned config, or with the local one after it: the text of the
    /// event.
    pub(crate) changed: Option<String>,
    /// While a config is on trial: the last-known-good's limits for pods.
    pub(crate) floor: Option<Floor>,
    /// New verdicts.
    pub(crate) condemned: Vec<Verdict>,
    /// Why pods are held since this start.
    pub(crate) held: Option<String>,
    /// All updated counts, recorded or not.
    pub(crate) startups: Startups,
    /// The end of the previous run has a consequence that could not be recorded: the evidence must stay.
    pub(crate) evidence_unrecorded: bool,
    /// There was no list of bad configs yet: this version of the agent is new here, or has condemned nothing.
    pub(crate) began_list: bool,
    /// The system that the assigned payload wants for this machine.
    pub(crate) asked: Asked,
    /// Why the machine goes back to the system of last-known-good, or has just come back.
    pub(crate) rolled_back: Option<String>,
    /// A proven config failed on this system.
    go_back: Option<GoBack>,
}

/// Results of parsing, each by the config and whether it was judged as a proven one: a program that runs
/// again from its top parses once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parsed(Vec<((ConfigId, bool), ParseResult)>);

type ParseResult = Result<Rc<Effective>, ConfigError>;

impl Parsed {
    fn effective(&mut self, content: &Content, local: &LocalLayers, is_proven: bool) -> ParseResult {
        let key = (content.is.id, is_proven);
        if let Some((_, result)) = self.0.iter().find(|(parsed, _)| *parsed == key) {
            return result.clone();
        }
        // limits of a later release do not make a proven config invalid
        let result = if is_proven {
            kubelet::effective_of_proven(local, &content.payload)
        } else {
            kubelet::effective(local, Some(&content.payload))
        };
        let result = result.map(Rc::new);
        self.0.push((key, result.clone()));
        result
    }
}

/// Runs the decision. The caller performs each step that it suspends on.
pub(crate) fn start(steps: &mut Steps, facts: &Facts, parsed: &mut Parsed) -> Suspendable<Started> {
    let mut findings = Vec::new();
    // off means untouched: not even a damaged record is set aside
    let disk = if facts.dynamic { Disk::read(steps, &mut findings)? } else { Disk::empty() };
    let local = InUse {
        effective: facts.local_effective.clone(),
        config: None,
        counts: Counts::default(),
        terms: Terms::default(),
    };
    let started = Started {
        in_use: local,
        startups: disk.startups.known().cloned().unwrap_or_default(),
        began_list: disk.bad_configs == Known::Absent,
        disk,
        assigned: None,
        last_known_good: None,
        previous: None,
        standing: Standing::Local,
        findings,
        report: None,
        ended: None,
        changed: None,
        floor: None,
        condemned: Vec::new(),
        held: None,
        // with dynamic config off, evidence is not counted, so it is not consumed
        evidence_unrecorded: !facts.dynamic,
        asked: Asked::default(),
        rolled_back: None,
        go_back: None,
    };
    if !facts.dynamic {
        return Ok(started);
    }
    let mut started = started;
    if facts.slots.is_some() {
        started.disk.read_systems(steps, &mut started.findings)?;
        started.read_list(steps, facts)?;
    }
    match started.disk.assigned() {
        AssignedNow::Local => {
            started.disk.settle_verdicts(steps, &AssignedNow::Local, None)?;
            start_local(steps, facts, started)
        }
        AssignedNow::Config(config, downloaded) => {
            start_assigned(steps, facts, parsed, started, config, downloaded)
        }
        AssignedNow::Unknown(why) => {
            let fallbacks = fallbacks(steps, facts, &mut started, None)?;
            run_first(steps, facts, parsed, started, fallbacks, Some(Obstacle::AssignmentUnknown(why)))
        }
    }
}

/// (2) Nothing assigned: the local config is its own last-known-good. After a reset the last-known-good stays
/// until a Node was seen. Its starts are counted like any other's: crashes of the agent that a pod causes
/// must show on a node that was never pushed a config.
fn start_local(steps: &mut Steps, facts: &Facts, mut started: Started) -> Suspendable<Started> {
    // a failed write here does not change which config runs, and the next start tries again
    let before = (started.disk.last_known_good.clone(), started.disk.startups.clone());
    if started.disk.current.known().is_some_and(|current| current.reset) {
        fallbacks(steps, facts, &mut started, None)?;
    } else if started.disk.last_known_good != Known::Absent {
        // the machine's way back stays
        let good = LastKnownGood { system: started.disk.way_back(), ..LastKnownGood::default() };
        let _ = started.disk.put_last_known_good(steps, good)?;
    }
    let ran_config = |startups: &Startups| matches!(startups.last, Some(RanAs::Payload(_)));
    if ran_config(&started.startups) {
        // the config is not assigned any more, which ended its run
        started.startups.close();
    }
    started.account(facts);
    started.in_use.terms = terms_of(&started.in_use.effective);
    let was_config = before.1.known().is_some_and(ran_config);
    let obstacle = started.disk.invalid_source().map(|why| Obstacle::SourceInvalid(why.to_owned()));
    started.standing = Standing::local_for(obstacle, Vec::new());
    let counts = started.startups.of_next(RanAs::Local, facts.local_id());
    let weighed = judge::by_counts(&counts, started.startups.hold, started.in_use.terms, true);
    let mut started = use_local(steps, facts, started, counts, weighed)?;
    started.leave_system(steps, facts, None)?;
    let is_recorded = started.disk.startups != before.1;
    let is_another = was_config && is_recorded || started.disk.last_known_good != before.0;
    started.changed = is_another.then(|| "kedge restarted to use local config".to_owned());
    Ok(started)
}

/// (3) Something is assigned: run it if it is usable, or else fall back.
fn start_assigned(
    steps: &mut Steps,
    facts: &Facts,
    parsed: &mut Parsed,
    mut started: Started,
    config: ConfigRecord,
    downloaded: bool,
) -> Suspendable<Started> {
    let content = load(steps, &config, &facts.overrides)?;
    started.assigned = content.as_ref().ok().map(|content| content.is);
    if let Some(is) = started.assigned {
        started.take_over(&config.uid, &is);
    }
    let is = started.assigned;
    started.disk.settle_verdicts(steps, &AssignedNow::Config(config.clone(), downloaded), is.as_ref())?;
    let mut chain = fallbacks(steps, facts, &mut started, Some((&config, &content)))?;
    if let Some(why) = started.disk.invalid_source() {
        let obstacle = Obstacle::SourceInvalid(why.to_owned());
        return run_first(steps, facts, parsed, started, chain, Some(obstacle));
    }
    let payload = content.as_ref().ok().map(|content| content.is.payload);
    let is = |other: Option<Identity>| payload.is_some() && payload == other.map(|other| other.payload);
    let (last_known_good, is_previous) = (is(started.last_known_good), is(started.previous));
    chain.retain(|fallback| match fallback.rank {
        Rank::LastKnownGood => !last_known_good,
        Rank::Assigned | Rank::Previous => !is_previous,
    });
    let role = Role { assigned: true, downloaded, last_known_good, proven: last_known_good || is_previous };
    chain.insert(0, Candidate { config, content, role, rank: Rank::Assigned });
    run_first(steps, facts, parsed, started, chain, None)
}

/// (4) and (5): last-known-good and the one before it, each with its content or why that is unavailable.
fn fallbacks(
    steps: &mut Steps,
    facts: &Facts,
    started: &mut Started,
    assigned: Option<(&ConfigRecord, &Result<Content, String>)>,
) -> Suspendable<Vec<Candidate>> {
    let ranks = [(Rank::LastKnownGood, started.disk.fallback()), (Rank::Previous, started.disk.previous())];
    let records = ranks.map(|(rank, config)| (rank, config.cloned()));
    let mut found = Vec::new();
    for (rank, config) in records {
        let Some(config) = config else { continue };
        let content = match assigned {
            // by payload: one object may have several configs, each under a key of its own, and several
            // objects the same one
            Some((other, Ok(content))) if config.is_same_payload(other) => Ok(content.clone()),
            _ => load(steps, &config, &facts.overrides)?,
        };
        let is = content.as_ref().ok().map(|content| content.is);
        if let Some(is) = &is {
            started.take_over(&config.uid, is);
        }
        match rank {
            Rank::Previous => started.previous = is,
            Rank::Assigned | Rank::LastKnownGood => started.last_known_good = is,
        }
        if let (Rank::LastKnownGood, Some((other, _)), Err(why)) = (rank, assigned, &content)
            && !config.is_same_payload(other)
        {
            // reported while all is well: when the fallback is needed it is too late
            let finding = format!("last-known-good (UID: {}) could not be fallen back to: {why}", config.uid);
            started.findings.push(finding);
        }
        let role = Role {
            assigned: false,
            downloaded: true,
            last_known_good: rank == Rank::LastKnownGood,
            proven: true,
        };
        found.push(Candidate { config, content, role, rank });
    }
    Ok(found)
}

impl Started {
    /// Moves the records of earlier releases about a content to its present id.
    fn take_over(&mut self, uid: &str, is: &Identity) {
        self.disk.take_over_verdicts(uid, is);
        self.startups.take_over(is);
    }

    /// Updates all counts with how the previous run ended, and drops those of configs that no record names.
    fn account(&mut self, facts: &Facts) {
        let named = self.named();
        let startups = &mut self.startups;
        // their config is unknown, and no available content matched
        startups.older = None;
        startups.records.retain(|ran_as, _| named.as_ref().is_none_or(|named| named.contains(ran_as)));
        for counts in startups.records.values_mut() {
            let ended = Ended::read(counts, &facts.boot_id, &facts.previous);
            if ended == Ended::Clean && counts.open.as_deref() == Some(facts.boot_id.as_str()) {
                // its end could not be recorded; if it runs again the record needs no write, perhaps on a
                // full disk
                continue;
            }
            *counts = judge::counted(std::mem::take(counts), &ended, facts.wall);
            let how = match ended {
                Ended::Clean => continue,
                Ended::Counted(how) => how,
                Ended::Cut => "the power failed, or the disk stalled".into(),
            };
            // one config ran; the records of the others, which ended cleanly long ago, are irrelevant
            self.ended.get_or_insert(how);
            counts.open = None;
        }
    }

    /// The configs that a record names, and local; `None` while an unreadable record may name more, or a
    /// record names a config whose payload neither it nor the content shows.
    fn named(&self) -> Option<Vec<RanAs>> {
        if self.disk.current.known().is_none() || self.disk.last_known_good.unknown().is_some() {
            return None;
        }
        let assigned = match self.disk.assigned() {
            AssignedNow::Config(config, _) => Some(config),
            _ => None,
        };
        let configs = [
            (assigned.as_ref(), self.assigned),
            (self.disk.fallback(), self.last_known_good),
            (self.disk.previous(), self.previous),
        ];
        let mut named = vec![RanAs::Local];
        for (config, is) in configs {
            match is.map(|is| is.payload).or_else(|| config?.payload()) {
                Some(payload) => named.push(RanAs::Payload(payload)),
                // any of them may be this config's
                None if config.is_some() => return None,
                None => {}
            }
        }
        Some(named)
    }

    /// Records all counts. A running config has its counts in its record from then on.
    fn record(&mut self, steps: &mut Steps) -> Suspendable<Durable> {
        let done = self.disk.put_startups(steps, self.startups.clone())?;
        self.evidence_unrecorded = done.is_err();
        Ok(done)
    }
}

/// Runs the first usable one of the chain, or else local (6). If local crash-loops too, as the last resort,
/// all waiting configs are tried again, in the same order. `obstacle` is why the assigned config is not in
/// the chain.
fn run_first(
    steps: &mut Steps,
    facts: &Facts,
    parsed: &mut Parsed,
    mut started: Started,
    chain: Vec<Candidate>,
    obstacle: Option<Obstacle>,
) -> Suspendable<Started> {
    started.account(facts);
    started.in_use.terms = terms_of(&started.in_use.effective);
    for is_last in [false, true] {
        let mut obstacle = obstacle.clone();
        let mut passed_over = Vec::new();
        for candidate in &chain {
            match (try_to_run(steps, facts, parsed, &mut started, candidate)?, candidate.rank) {
                (Ok(in_use), rank) => {
                    let is_good = candidate.role.last_known_good;
                    started.floor =
                        (rank == Rank::Assigned && !is_good).then(|| floor(facts, parsed, &chain));
                    let standing = Standing::of(rank, is_good, obstacle, passed_over);
                    let mut started = Started { in_use, standing, ..started };
                    let content = candidate.content.as_ref().ok();
                    started.leave_system(steps, facts, content.filter(|_| rank == Rank::LastKnownGood))?;
                    return Ok(started);
                }
                (Err(why), Rank::Assigned) => obstacle = Some(why),
                (Err(why), rank) => passed_over.push((rank, candidate.config.uid.clone(), why)),
            }
        }
        if let Some(why) = started.disk.last_known_good.unknown() {
            let obstacle = Obstacle::Missing(format!("the record of it is unreadable: {why}"));
            passed_over.push((Rank::LastKnownGood, "unknown".into(), obstacle));
        }
        let counts = started.startups.of_next(RanAs::Local, facts.local_id());
        let weighed = judge::by_counts(&counts, started.startups.hold, started.in_use.terms, true);
        let is_last_resort = matches!(weighed, Weighed::Bad(_)) && !is_last;
        if !(is_last_resort && end_waits(steps, &mut started, &chain)?) {
            started.standing = Standing::local_for(obstacle, passed_over);
            let mut started = use_local(steps, facts, started, counts, weighed)?;
            started.leave_system(steps, facts, None)?;
            return Ok(started);
        }
        // pods are not the cause: they are released
        started.startups.hold = false;
        started.startups.set(RanAs::Local, judge::emptied(counts));
    }
    unreachable!("the second time local runs, if nothing else does")
}

/// The limits for pods of the config to fall back to: last-known-good, or local if that is unavailable now.
fn floor(facts: &Facts, parsed: &mut Parsed, chain: &[Candidate]) -> Floor {
    let good = chain.iter().find(|candidate| candidate.rank == Rank::LastKnownGood);
    let content = good.and_then(|good| good.content.as_ref().ok());
    let good = content.and_then(|content| parsed.effective(content, &facts.local, true).ok());
    Floor::of(&good.as_ref().unwrap_or(&facts.local_effective).config)
}

/// (2) and (6): local runs, and its start is recorded.
fn use_local(
    steps: &mut Steps,
    facts: &Facts,
    mut started: Started,
    counts: Counts,
    weighed: Weighed,
) -> Suspendable<Started> {
    let counts = match weighed {
        weighed if started.suspects_system(facts, &counts, weighed) => judge::emptied(counts).unsuspected(),
        Weighed::GoesOn => counts,
        Weighed::HoldsPods => started.hold_pods(counts, "the local config"),
        // no waiting config could be tried instead: local continues
        Weighed::Bad(_) => judge::emptied(counts),
    };
    let Terms { trial_ms, threshold, .. } = started.in_use.terms;
    let counts = Counts { threshold: Some(threshold), trial_ms: Some(trial_ms), ..counts };
    started.begin(facts, RanAs::Local, counts);
    started.in_use.counts = started.startups.records[&RanAs::Local].clone();
    let _ = started.record(steps)?;
    Ok(started)
}

/// The last resort crash-loops: every waiting config of the chain may be tried again. Returns whether there
/// was one, and it is recorded.
fn end_waits(steps: &mut Steps, started: &mut Started, chain: &[Candidate]) -> Suspendable<bool> {
    let Some(mut bad) = started.disk.bad_configs.known().cloned() else { return Ok(false) };
    let in_use = started.disk.in_use();
    let mut any = false;
    for candidate in chain {
        let Ok(content) = &candidate.content else { continue };
        let uid = &candidate.config.uid;
        let verdict = started.disk.verdict(uid, Some(&content.is), candidate.role.proven);
        let waits = |verdict: &Verdict| !verdict.retry && judge::wait_ms(verdict, Terms::default()).is_some();
        if let Some(verdict) = verdict.filter(waits) {
            bad.mark(uid, &content.is, Verdict { retry: true, ..verdict }, &in_use);
            any = true;
        }
    }
    Ok(any && started.disk.put_bad_configs(steps, bad)?.is_ok())
}

/// Limits for a config on trial: it must not end a pod, or refuse one for good, that the last-known-good
/// would have let run. A roll back could not undo that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Floor {
    pub(crate) eviction: Eviction,
    pub(crate) max_pods: u32,
}

impl Floor {
    fn of(config: &Config) -> Self {
        Self { eviction: config.eviction.clone(), max_pods: config.max_pods }
    }
}

struct Candidate {
    config: ConfigRecord,
    content: Result<Content, String>,
    role: Role,
    rank: Rank,
}

/// Rules a to f, first match, with the start recorded between rules d and e.
fn try_to_run(
    steps: &mut Steps,
    facts: &Facts,
    parsed: &mut Parsed,
    started: &mut Started,
    candidate: &Candidate,
) -> Suspendable<Result<InUse, Obstacle>> {
    let Candidate { config, content, role, rank } = candidate;
    let (role, what) = (*role, rank.name());
    let is = content.as_ref().ok().map(|content| content.is);
    let entry = match &started.disk.bad_configs {
        // the unreadable list may have it; a last-known-good was proven, and some config must run
        Known::Unknown { why, .. } if role.assigned && !role.last_known_good => {
            return Ok(Err(Obstacle::VerdictsUnknown(why.clone())));
        }
        _ => started.disk.verdict(&config.uid, is.as_ref(), role.proven),
    };
    // rule a: banned
    if let Some(verdict) = entry.as_ref().filter(|verdict| !verdict.retry) {
        return Ok(Err(Obstacle::Marked { verdict: verdict.clone(), recorded: true }));
    }
    if role.assigned && !role.last_known_good && is.is_some_and(|is| started.disk.is_doubted(&is)) {
        return Ok(Err(Obstacle::VerdictsUnknown("it could not be read, and was set aside".into())));
    }
    // rule b: missing
    let content = match content {
        Ok(content) => content,
        Err(why) => return Ok(Err(Obstacle::Missing(why.clone()))),
    };
    let ran_as = RanAs::Payload(content.is.payload);
    if role.assigned {
        let first = started.disk.startups.known().is_some_and(|startups| startups.is_new(ran_as));
        started.changed = first.then(|| format!("kedge restarted to use {}", config.describe()));
    }
    let mut counts = started.startups.of_next(ran_as, content.is.id);
    if let Some(before) = started.startups.records.get(&ran_as) {
        let patience_ms = judge::patience_ms(Terms::remembered(before), entry.as_ref());
        if judge::lost_contact(before, patience_ms, Terms::remembered(before), role) {
            // these counts prove a verdict that no disk accepted, whatever config ran since
            let Counts { silent_ms, lost_ms, worse, .. } = *before;
            counts = Counts { silent_ms, lost_ms, worse, ..counts };
        }
    }
    started.startups.set(ran_as, counts.clone());
    let mut start_verdict =
        StartVerdict { facts, config, is: content.is, what, entry, detail: String::new() };
    // rule c: crash loop, and rule d: cuts, with the terms recorded when it was last parsed
    let terms = Terms::remembered(&counts);
    let counts = match judge::by_counts(&counts, started.startups.hold, terms, role.proven) {
        weighed if role.proven && started.suspects_system(facts, &counts, weighed) => {
            judge::emptied(counts).unsuspected()
        }
        Weighed::GoesOn => counts,
        Weighed::HoldsPods => started.hold_pods(counts, &format!("{what} (UID: {})", config.uid)),
        Weighed::Bad(kind) => return start_verdict.condemn(steps, started, kind).map(Err),
    };
    let slots = facts.slots.as_ref().filter(|_| role.assigned);
    if let Some(slots) = slots
        && let Some(wish) = started.remembered(content.is.payload)
    {
        // it waits, and is neither counted nor read again
        let obstacle = system::judge(slots, &started.disk, content.is.payload, Some(&wish));
        started.asked = Asked { wish: Some(wish), is_elsewhere: false };
        if let Some(obstacle) = obstacle.filter(|_| !role.last_known_good) {
            return Ok(Err(obstacle));
        }
    }
    // recorded before the payload is parsed: a payload that kills its parser must be counted. A start on
    // trial that cannot be recorded does not happen, because nothing would end its crash loop; a proven
    // config runs even unrecorded
    let in_trial = role.assigned && !role.last_known_good && counts.ran_ms < terms.settled_after_ms();
    let before = started.startups.clone();
    started.begin(facts, ran_as, counts);
    if let Err(why) = started.record(steps)?
        && in_trial
    {
        started.startups = before;
        return Ok(Err(Obstacle::NotRecorded(why)));
    }
    // rule s: another system, and rule g: bad system
    if let Some(slots) = slots {
        started.asked = system::asked(facts, &content.payload);
        let wish = started.asked.wish.as_ref();
        let obstacle = system::judge(slots, &started.disk, content.is.payload, wish);
        if let Some(obstacle) = obstacle.filter(|_| !role.last_known_good) {
            started.startups.close();
            return Ok(Err(obstacle));
        }
    }
    // rule e: invalid
    let effective = match parsed.effective(content, &facts.local, role.proven) {
        Ok(effective) => effective,
        Err(error) => {
            if role.assigned {
                started.report = error.further();
            }
            start_verdict.detail = shortened_detail(&error.to_string());
            let kind = match error.kind {
                ErrorKind::Parse => BadKind::Parse,
                ErrorKind::Validate => BadKind::Validate,
            };
            return start_verdict.condemn(steps, started, kind).map(Err);
        }
    };
    let terms = terms_of(&effective);
    let counts = started.startups.records[&ran_as].clone();
    // rules c and d again, with the terms it sets itself; rule f: contact
    let patience_ms = judge::patience_ms(terms, start_verdict.entry.as_ref());
    let kind = match judge::by_counts(&counts, started.startups.hold, terms, role.proven) {
        Weighed::Bad(kind) => Some(kind),
        _ => judge::lost_contact(&counts, patience_ms, terms, role).then_some(BadKind::Contact),
    };
    if let Some(kind) = kind {
        return start_verdict.condemn(steps, started, kind).map(Err);
    }
    let counts = Counts { threshold: Some(terms.threshold), trial_ms: Some(terms.trial_ms), ..counts };
    started.startups.set(ran_as, counts.clone());
    let config = Some((config.clone(), content.is));
    Ok(Ok(InUse { effective, config, counts, terms }))
}

fn terms_of(effective: &Effective) -> Terms {
    let (trial, transition) = (&effective.config.trial, effective.config.eviction_pressure_transition_period);
    Terms {
        trial_ms: u64::try_from(trial.duration.as_millis()).unwrap_or(u64::MAX),
        threshold: trial.crash_loop_threshold,
        transition_ms: u64::try_from(transition.as_millis()).unwrap_or(u64::MAX),
    }
}

impl Started {
    /// Probation: a proven config that crash-loops or is silent on a system that is not last-known-good's is
    /// not at fault, if the machine can go back.
    fn suspects_system(&mut self, facts: &Facts, counts: &Counts, weighed: Weighed) -> bool {
        if self.disk.can_go_back(facts.slots.as_ref()).is_none() {
            return false;
        }
        let terms = Terms::remembered(counts);
        self.go_back = match weighed {
            Weighed::GoesOn if counts.silent_ms < terms.settled_after_ms() => return false,
            Weighed::GoesOn => Some(GoBack::Silence),
            // a power cut is not the fault of a config or a system
            Weighed::HoldsPods if counts.startups.len() <= judge::PROVEN_THRESHOLD => return false,
            Weighed::HoldsPods | Weighed::Bad(_) => Some(GoBack::Crashes),
        };
        true
    }

    /// Goes back to the system of last-known-good, if there is a reason. `content` is that of
    /// last-known-good, if it runs.
    fn leave_system(
        &mut self,
        steps: &mut Steps,
        facts: &Facts,
        content: Option<&Content>,
    ) -> Suspendable<()> {
        let asks = content
            .filter(|_| self.disk.can_go_back(facts.slots.as_ref()).is_some())
            .and_then(|content| system::asked(facts, &content.payload).wish)
            .map(|wish| wish.pinned.digest);
        match self.go_back.take().or_else(|| self.failed_with_system(facts, asks)) {
            Some(why) => self.go_back(steps, facts, why),
            None => Ok(()),
        }
    }

    /// Pods are held from now on: the config that crashes is proven, so it continues with empty counts, and
    /// the time of the hold begins.
    fn hold_pods(&mut self, counts: Counts, what: &str) -> Counts {
        if !self.startups.hold {
            self.held = Some(format!(
                "{what} ended {} times by a crash and {} times by a power cut without a whole trial between them; it is \
                 proven and goes on, its counts begin anew, and pods are held",
                counts.startups.len(),
                counts.cuts
            ));
        }
        self.startups.hold = true;
        Counts { ran_ms: 0, ..judge::emptied(counts) }
    }

    /// This config runs from now on.
    fn begin(&mut self, facts: &Facts, ran_as: RanAs, counts: Counts) {
        let counts = judge::opened(counts, &facts.boot_id, facts.previous.runs);
        self.startups.begin(ran_as, counts);
    }
}

struct StartVerdict<'a> {
    facts: &'a Facts,
    config: &'a ConfigRecord,
    is: Identity,
    what: &'static str,
    entry: Option<Verdict>,
    detail: String,
}

impl StartVerdict<'_> {
    /// Writes the verdict; whether or not that worked, the config does not run. A verdict that could not be
    /// written leaves the counts that prove it.
    fn condemn(&mut self, steps: &mut Steps, started: &mut Started, kind: BadKind) -> Suspendable<Obstacle> {
        // how the fallback that runs instead ends is irrelevant for it
        started.startups.close();
        let uid = &self.config.uid;
        let verdict = judge::verdict(kind, self.what, uid, self.facts.wall, self.entry.as_ref());
        let (detail, source) = (std::mem::take(&mut self.detail), self.config.named());
        let mut verdict = Verdict { detail, source, ..verdict };
        let ran_as = RanAs::Payload(self.is.payload);
        let counts = started.startups.records.get(&ran_as).filter(|_| kind == BadKind::Contact);
        if let Some(counts) =
            counts.filter(|counts| counts.lost_ms > 0 && counts.silent_ms == 0 || !counts.worse.is_empty())
        {
            verdict = judge::blaming(verdict, counts.worse, self.what, uid);
        }
        started.condemned.push(verdict.clone());
        let mut bad = match &started.disk.bad_configs {
            Known::Is(bad) => bad.clone(),
            Known::Absent => BadConfigs::default(),
            // writing this verdict alone would drop all those in an unreadable list
            Known::Unknown { .. } => return Ok(Obstacle::Marked { verdict, recorded: false }),
        };
        bad.mark(uid, &self.is, verdict.clone(), &started.disk.in_use());
        let recorded = started.disk.put_bad_configs(steps, bad)?.is_ok();
        if recorded
            && !kind.is_of_text()
            && let Some(counts) = started.startups.records.get_mut(&ran_as)
        {
            *counts = judge::emptied(std::mem::take(counts)).unsuspected();
        }
        Ok(Obstacle::Marked { verdict, recorded })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::answer::Now;
    use crate::config::digest::Digest;
    use crate::config::records::{Assigned, CheckpointName, Current, Read, Recorded, StateFile};
    use crate::config::source::Source;
    use crate::writes::{Outcome, Step, Suspend};
    use std::time::Duration;

    const PAYLOAD: &str =
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\n";

    /// The facts of a node without local files.
    pub(in crate::config) fn facts() -> Facts {
        let local = LocalLayers::default();
        let local_effective = Rc::new(kubelet::effective(&local, None).expect("defaults are valid"));
        Facts {
            local: Rc::new(local),
            local_effective,
            overrides: Rc::default(),
            dynamic: true,
            slots: None,
            boot_id: "boot-1".into(),
            previous: PreviousRun::default(),
            wall: Timestamp::from_micros(0),
        }
    }

    /// A disk on which a config with [`PAYLOAD`] is assigned.
    fn read(file: &StateFile) -> Read {
        let digest = Digest::of(PAYLOAD.as_bytes());
        let checkpoint = CheckpointName::of("u-1", digest).expect("file names");
        let config = ConfigRecord {
            source: Source::Pinned { namespace: "n".into(), name: "m".into(), uid: "u-1".into() },
            uid: "u-1".into(),
            resource_version: "7".into(),
            checkpoint: checkpoint.clone(),
            digest: Recorded::Payload(digest),
        };
        let assigned = Some(Assigned { config, since: None, downloaded: true });
        let current = Current { assigned, ..Current::local("node-1") };
        let object = serde_json::json!({"metadata": {"uid": "u-1"}, "data": {"kubelet": PAYLOAD}});
        match file {
            StateFile::Current => Read::Content(current.to_bytes()),
            StateFile::Checkpoint(name) if *name == checkpoint => {
                Read::Content(object.to_string().into_bytes())
            }
            _ => Read::Absent,
        }
    }

    /// A parser that ends the process leaves only durable writes: the counted start must be one.
    #[test]
    fn nothing_is_parsed_before_its_start_is_recorded() {
        let (facts, mut parsed, mut outcomes) = (facts(), Parsed::default(), Vec::new());
        let mut is_recorded = false;
        let started = loop {
            let step = match start(&mut Steps::over(&outcomes), &facts, &mut parsed) {
                Ok(started) => break started,
                Err(Suspend(step)) => step,
            };
            assert!(is_recorded || parsed.0.is_empty(), "parsed before {step:?} was answered");
            is_recorded |= matches!(step, Step::Write(StateFile::Startups, _));
            outcomes.push(match step {
                Step::Read(file) => Outcome::Read(read(&file)),
                Step::Write(..) | Step::SetAside(_) => Outcome::Done(Ok(())),
            });
        };
        assert!(is_recorded && started.standing.is_assigned() && !parsed.0.is_empty());
    }

    /// A start on this disk, and its writes.
    fn start_on(disk: &dyn Fn(&StateFile) -> Read) -> (Started, Vec<(StateFile, Vec<u8>)>) {
        let (facts, mut parsed, mut outcomes, mut written) =
            (facts(), Parsed::default(), Vec::new(), Vec::new());
        loop {
            let step = match start(&mut Steps::over(&outcomes), &facts, &mut parsed) {
                Ok(started) => return (started, written),
                Err(Suspend(step)) => step,
            };
            outcomes.push(match step {
                Step::Read(file) => Outcome::Read(disk(&file)),
                Step::Write(file, bytes) => {
                    written.push((file, bytes.to_vec()));
                    Outcome::Done(Ok(()))
                }
                Step::SetAside(_) => Outcome::Done(Ok(())),
            });
        }
    }

    #[test]
    fn no_number_of_a_record_stops_a_start() {
        // the payload is invalid, so that there is a verdict
        let bad = |file: &StateFile| match (file, read(file)) {
            (StateFile::Checkpoint(_), Read::Content(bytes)) => Read::Content(
                String::from_utf8(bytes).unwrap().replace("maxPods: 7", "maxPods: x").into_bytes(),
            ),
            (_, found) => found,
        };
        let (_, good_writes) = start_on(&read);
        let (_, bad_writes) = start_on(&bad);
        let mut tried = 0;
        for (file, bytes) in good_writes.iter().chain(&bad_writes) {
            let Ok(record) = serde_json::from_slice(bytes) else { continue };
            for (what, other) in crate::extremes::with_other_numbers(&record) {
                let disk = |asked: &StateFile| match asked == file {
                    true => Read::Content(other.to_string().into_bytes()),
                    false => read(asked),
                };
                let (started, _) = start_on(&disk);
                for mono in [Duration::ZERO, Duration::from_secs(1 << 33)] {
                    let now = Now { mono, wall: Timestamp::from_micros(i64::MAX) };
                    let configuration =
                        crate::config::running::Configuration::new(started.clone(), facts(), now);
                    let _ = configuration.next_deadline(now);
                }
                tried += 1;
                assert!(!what.is_empty());
            }
        }
        assert!(tried > 50, "{tried} numbers");
    }
}
