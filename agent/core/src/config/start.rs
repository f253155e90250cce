//! The decision at start (ARCHITECTURE.md, "Start"): which config runs, and what is written before it runs.
//!
//! Always holds: some config runs, the local one if nothing else can; the start of a config is recorded before its payload
//! is parsed; a verdict that could not be written leaves the counts that prove it untouched; every prefix of the writes is
//! a state this same program can start from. Nothing here waits for the network.

use crate::config::digest::ConfigId;
use crate::config::disk::{AssignedNow, Content, Disk, Identity, load};
use crate::config::judge::{self, Ended, PreviousRun, Role, Terms};
use crate::config::records::{
    BadConfigs, BadKind, ConfigRecord, Known, RanAs, Startups, Verdict, shortened_detail,
};
use crate::kubelet::{self, ConfigError, Effective, ErrorKind, LocalLayers};
use crate::writes::{Steps, Suspendable};
use kedge_api::Timestamp;
use std::rc::Rc;

/// The inputs of a start besides the records.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// `--config`, drop-ins and flags, valid as a whole.
    pub(crate) local: Rc<LocalLayers>,
    /// The local config they give.
    pub(crate) local_effective: Rc<Effective>,
    /// Canonical drop-ins and flags: part of every config's id.
    pub(crate) overrides: Rc<Vec<u8>>,
    /// `--dynamic-config`.
    pub(crate) dynamic: bool,
    /// This boot.
    pub(crate) boot_id: String,
    /// How the previous run ended, as far as anybody recorded it.
    pub(crate) previous: PreviousRun,
    /// For stamps only.
    pub(crate) wall: Timestamp,
}

impl Facts {
    /// Whether `--config` or drop-ins were given: the proposal's "init config".
    pub(crate) fn has_init(&self) -> bool {
        self.local.base.is_some() || !self.local.drop_ins.is_empty()
    }
}

/// Which config runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Active {
    /// The local one.
    Local,
    /// The one assigned.
    Assigned,
    /// The last-known-good, because the assigned one cannot.
    LastKnownGood,
    /// The previous assignment: the new one could be recorded in `current`, but its start could not.
    Superseded,
}

/// Why a config that should run does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It has a verdict. `recorded` is false if that could not be written.
    Marked { verdict: Verdict, recorded: bool },
    /// Its content is not at hand.
    Missing(String),
    /// Which config is assigned is not known.
    AssignmentUnknown(String),
    /// Earlier verdicts cannot be read, so it may be a bad config.
    VerdictsUnknown(String),
    /// Its start could not be recorded, and a trial that is not recorded is not made.
    NotRecorded(String),
    /// The source was invalid when it was last read.
    SourceInvalid(String),
}

/// The config in use.
#[derive(Debug, Clone)]
pub(crate) struct InUse {
    pub(crate) active: Active,
    pub(crate) effective: Rc<Effective>,
    /// Its record, and which content it is; None for local.
    pub(crate) config: Option<(ConfigRecord, Identity)>,
    /// Its counts, whether or not they could be recorded.
    pub(crate) startups: Startups,
    pub(crate) terms: Terms,
}

/// How a start ended: with some config in use.
#[derive(Debug, Clone)]
pub(crate) struct Started {
    pub(crate) in_use: InUse,
    pub(crate) disk: Disk,
    /// What is assigned, if its content is at hand.
    pub(crate) assigned: Option<Identity>,
    /// The last-known-good, if its content is at hand.
    pub(crate) last_known_good: Option<Identity>,
    /// Why the assigned config is not the one in use.
    pub(crate) obstacle: Option<Obstacle>,
    /// Why the last-known-good is not, either.
    pub(crate) fallback_obstacle: Option<Obstacle>,
    /// Records that were set aside or left alone, for condition and event.
    pub(crate) findings: Vec<String>,
    /// The parser's and validator's full report on the assigned config, if it was condemned now.
    pub(crate) report: Option<String>,
    /// How the run before ended, if it was counted or cut.
    pub(crate) ended: Option<String>,
    /// Set at the first start with a newly assigned config, or with the local one after it: the text of the event.
    pub(crate) changed: Option<String>,
    /// New verdicts.
    pub(crate) condemned: Vec<Verdict>,
    /// The counts of the assigned config brought up to date, recorded or not.
    pub(crate) assigned_counts: Option<Startups>,
    /// The end of the previous run proved something that could not be recorded: the evidence must stay.
    pub(crate) evidence_unrecorded: bool,
}

/// Results of parsing, as what is proven or not, so that a program that runs again from its top parses once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parsed(Vec<((ConfigId, bool), ParseResult)>);

type ParseResult = Result<Rc<Effective>, ConfigError>;

impl Parsed {
    fn effective(&mut self, content: &Content, local: &LocalLayers, is_proven: bool) -> ParseResult {
        let key = (content.is.id, is_proven);
        if let Some((_, result)) = self.0.iter().find(|(parsed, _)| *parsed == key) {
            return result.clone();
        }
        // bounds that came with a later release take no proven config away
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

/// Runs the decision. The caller performs each step it suspends on.
pub(crate) fn start(steps: &mut Steps, facts: &Facts, parsed: &mut Parsed) -> Suspendable<Started> {
    let mut findings = Vec::new();
    // off means untouched: not even a damaged record is set aside
    let disk = if facts.dynamic { Disk::read(steps, &mut findings)? } else { Disk::empty() };
    let local = InUse {
        active: Active::Local,
        effective: facts.local_effective.clone(),
        config: None,
        startups: Startups::fresh(RanAs::Local),
        terms: Terms::default(),
    };
    let started = Started {
        in_use: local,
        disk,
        assigned: None,
        last_known_good: None,
        obstacle: None,
        fallback_obstacle: None,
        findings,
        report: None,
        ended: None,
        changed: None,
        condemned: Vec::new(),
        assigned_counts: None,
        // with dynamic config off, evidence is not counted, so it is not consumed
        evidence_unrecorded: !facts.dynamic,
    };
    if !facts.dynamic {
        return Ok(started);
    }
    match started.disk.assigned() {
        AssignedNow::Local => start_local(steps, started),
        AssignedNow::Config(config, downloaded) => {
            start_assigned(steps, facts, parsed, started, config, downloaded)
        }
        AssignedNow::Unknown(why) => {
            let started = Started { obstacle: Some(Obstacle::AssignmentUnknown(why)), ..started };
            fall_back(steps, facts, parsed, started, None, true)
        }
    }
}

/// (2) Nothing assigned: the local config is its own last-known-good.
fn start_local(steps: &mut Steps, mut started: Started) -> Suspendable<Started> {
    // a write that fails here changes nothing about what runs, and the next start tries again
    if started.disk.last_known_good != Known::Absent {
        let before = started.disk.last_known_good.clone();
        let _ = started.disk.put_last_known_good(steps, None)?;
        let changed = started.disk.last_known_good != before;
        started.changed = changed.then(|| "kedge restarted to use local config".to_owned());
    }
    close_startups(steps, &mut started)?;
    started.obstacle = started.disk.invalid_source().map(|why| Obstacle::SourceInvalid(why.to_owned()));
    Ok(started)
}

/// `startups.json` is about the config that runs; under local there is nothing to count, so a missing file stays missing.
fn close_startups(steps: &mut Steps, started: &mut Started) -> Suspendable<()> {
    if started.disk.startups != Known::Absent {
        let _ = started.disk.put_startups(steps, Startups::fresh(RanAs::Local))?;
    }
    Ok(())
}

/// (3) Something is assigned: run it if it is usable, else fall back.
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
    if let Some(is) = &started.assigned {
        started.disk.take_over_ids(&config.uid, is);
    }
    let fallback = load_fallback(steps, facts, &mut started, &config, content.as_ref().ok())?;
    let same = started.assigned.is_some()
        && started.assigned.map(|is| is.id) == started.last_known_good.map(|is| is.id);

    if let Some(why) = started.disk.invalid_source() {
        started.obstacle = Some(Obstacle::SourceInvalid(why.to_owned()));
        return fall_back(steps, facts, parsed, started, fallback, true);
    }
    let role = Role { assigned: true, downloaded, last_known_good: same };
    let candidate = Candidate { config, content, role, what: "current" };
    match try_to_run(steps, facts, parsed, &mut started, candidate, true)? {
        Ok(in_use) => Ok(Started { in_use, ..started }),
        Err(obstacle) => {
            let may_write = match &obstacle {
                // the counts on disk prove the verdict that could not be written; counts that could not be written stay as well
                Obstacle::Marked { recorded, .. } => *recorded,
                Obstacle::NotRecorded(_) => false,
                _ => true,
            };
            started.obstacle = Some(obstacle);
            let fallback = fallback.filter(|_| !same);
            fall_back(steps, facts, parsed, started, fallback, may_write)
        }
    }
}

/// The last-known-good: its record, and its content or why it is unavailable.
type Fallback = (ConfigRecord, Result<Content, String>);

/// Reads the last-known-good's content, unless it is the assigned config itself, and warns if it is unusable.
fn load_fallback(
    steps: &mut Steps,
    facts: &Facts,
    started: &mut Started,
    assigned: &ConfigRecord,
    content: Option<&Content>,
) -> Suspendable<Option<Fallback>> {
    let Some(config) = started.disk.fallback().cloned() else { return Ok(None) };
    // by payload: one object may hold several configs, each under a key of its own, and several objects the same one
    let same = match (config.payload(), assigned.payload()) {
        (Some(good), Some(assigned)) => good == assigned,
        _ => config == *assigned,
    };
    let loaded = match content {
        Some(content) if same => Ok(content.clone()),
        _ => load(steps, &config, &facts.overrides)?,
    };
    note_last_known_good(started, &config, &loaded);
    if let (false, Err(why)) = (same, &loaded) {
        // reported while all is well: when it is needed it is too late
        let finding = format!("last-known-good (UID: {}) could not be fallen back to: {why}", config.uid);
        started.findings.push(finding);
    }
    Ok(Some((config, loaded)))
}

fn note_last_known_good(started: &mut Started, config: &ConfigRecord, loaded: &Result<Content, String>) {
    started.last_known_good = loaded.as_ref().ok().map(|content| content.is);
    if let Some(is) = &started.last_known_good {
        started.disk.take_over_ids(&config.uid, is);
    }
}

/// (4) and (5): last-known-good if it is another config and usable, else local.
fn fall_back(
    steps: &mut Steps,
    facts: &Facts,
    parsed: &mut Parsed,
    mut started: Started,
    fallback: Option<Fallback>,
    may_write: bool,
) -> Suspendable<Started> {
    let fallback = match (fallback, &started.obstacle) {
        (None, Some(Obstacle::AssignmentUnknown(_))) => match started.disk.fallback().cloned() {
            Some(config) => {
                let content = load(steps, &config, &facts.overrides)?;
                note_last_known_good(&mut started, &config, &content);
                Some((config, content))
            }
            None => None,
        },
        (fallback, _) => fallback,
    };
    if let Some((config, content)) = fallback {
        let role = Role { assigned: false, downloaded: true, last_known_good: true };
        let candidate = Candidate { config, content, role, what: "last-known-good" };
        match try_to_run(steps, facts, parsed, &mut started, candidate, may_write)? {
            Ok(in_use) => return Ok(Started { in_use, ..started }),
            Err(obstacle) => {
                let is_proven_by_counts = matches!(obstacle, Obstacle::Marked { recorded: false, .. });
                started.fallback_obstacle = Some(obstacle);
                if is_proven_by_counts {
                    return Ok(started);
                }
            }
        }
    } else if let Some(why) = started.disk.last_known_good.unknown() {
        started.fallback_obstacle = Some(Obstacle::Missing(format!("the record of it is unreadable: {why}")));
    }
    if may_write {
        close_startups(steps, &mut started)?;
    }
    Ok(started)
}

struct Candidate {
    config: ConfigRecord,
    content: Result<Content, String>,
    role: Role,
    what: &'static str,
}

/// Rules a to f, first match, with the start recorded between rules d and e. `may_write` is false while the records must stay
/// as they are because they prove something.
fn try_to_run(
    steps: &mut Steps,
    facts: &Facts,
    parsed: &mut Parsed,
    started: &mut Started,
    candidate: Candidate,
    may_write: bool,
) -> Suspendable<Result<InUse, Obstacle>> {
    let Candidate { config, content, role, what } = candidate;
    let id = content.as_ref().ok().map(|content| content.is.id);
    let entry = match &started.disk.bad_configs {
        Known::Is(bad) => bad.verdict(&config.uid, id),
        Known::Absent => None,
        // it may be in the list that cannot be read; a last-known-good was proven, and something must run
        Known::Unknown { why, .. } if role.assigned && !role.last_known_good => {
            return Ok(Err(Obstacle::VerdictsUnknown(why.clone())));
        }
        Known::Unknown { .. } => None,
    };
    // rule a: banned
    if let Some(verdict) = entry.as_ref().filter(|verdict| !verdict.retry) {
        return Ok(Err(Obstacle::Marked { verdict: verdict.clone(), recorded: true }));
    }
    // rule b: missing
    let content = match content {
        Ok(content) => content,
        Err(why) => return Ok(Err(Obstacle::Missing(why))),
    };
    let startups = counts(facts, started, content.is.id);
    if role.assigned {
        let recorded = started.disk.startups.known();
        let first =
            recorded.is_some_and(|recorded| *recorded == Startups::fresh(RanAs::Config(content.is.id)));
        started.changed = first.then(|| format!("kedge restarted to use {}", config.describe()));
        started.assigned_counts = Some(startups.clone());
    }
    let mut start_verdict = StartVerdict {
        facts,
        config: &config,
        id: content.is.id,
        what,
        entry,
        detail: String::new(),
        opened: None,
    };
    // rule c: crash loop, and rule d: cuts, with the terms recorded when it was last parsed
    if let Some(kind) = judge::condemned_by_counts(&startups, Terms::remembered(&startups)) {
        return start_verdict.condemn(steps, started, kind).map(Err);
    }
    // recorded before the payload is parsed: a payload that kills its parser must be counted. A start on trial that cannot be
    // recorded is not made, for nothing would end its crash loop; a proven config runs even unrecorded
    if may_write && let Err(why) = started.disk.put_startups(steps, startups.clone())? {
        started.evidence_unrecorded = true;
        let in_trial = startups.ran_ms < Terms::remembered(&startups).settled_after_ms();
        if role.assigned && !role.last_known_good && in_trial {
            return Ok(Err(Obstacle::NotRecorded(why)));
        }
    } else if may_write {
        start_verdict.opened = Some(startups.clone());
    }
    // rule e: invalid
    let effective = match parsed.effective(&content, &facts.local, role.last_known_good) {
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
    let trial = &effective.config.trial;
    let terms = Terms {
        trial_ms: u64::try_from(trial.duration.as_millis()).unwrap_or(u64::MAX),
        threshold: trial.crash_loop_threshold,
    };
    // rules c and d again, with the terms it sets itself; rule f: contact
    let patience_ms = judge::patience_ms(terms, start_verdict.entry.as_ref());
    let lost = || judge::lost_contact(&startups, patience_ms, role).then_some(BadKind::Contact);
    if let Some(kind) = judge::condemned_by_counts(&startups, terms).or_else(lost) {
        return start_verdict.condemn(steps, started, kind).map(Err);
    }
    let startups = Startups { threshold: Some(terms.threshold), trial_ms: Some(terms.trial_ms), ..startups };
    let active = if role.assigned { Active::Assigned } else { Active::LastKnownGood };
    Ok(Ok(InUse { active, effective, config: Some((config, content.is)), startups, terms }))
}

/// The counts of a config brought up to date; those of another config say nothing about it.
fn counts(facts: &Facts, started: &mut Started, id: ConfigId) -> Startups {
    let ran_as = RanAs::Config(id);
    let startups = started.disk.startups.known().filter(|startups| startups.ran_as == ran_as).cloned();
    let startups = startups.unwrap_or_else(|| Startups::fresh(ran_as));
    let ended = Ended::read(&startups, &facts.boot_id, &facts.previous);
    if started.ended.is_none() {
        started.ended = match &ended {
            Ended::Clean => None,
            Ended::Counted(how) => Some(how.clone()),
            Ended::Cut => Some("the power failed, or the disk stalled".into()),
        };
    }
    judge::counted(startups, &ended, &facts.boot_id, facts.previous.runs, facts.wall)
}

struct StartVerdict<'a> {
    facts: &'a Facts,
    config: &'a ConfigRecord,
    id: ConfigId,
    what: &'static str,
    entry: Option<Verdict>,
    detail: String,
    /// The record of its start, if this start made it.
    opened: Option<Startups>,
}

impl StartVerdict<'_> {
    /// Writes the verdict; whether or not that worked, the config does not run.
    fn condemn(&mut self, steps: &mut Steps, started: &mut Started, kind: BadKind) -> Suspendable<Obstacle> {
        let uid = &self.config.uid;
        let verdict = judge::verdict(kind, self.what, uid, self.facts.wall, self.entry.as_ref());
        let verdict = Verdict { detail: std::mem::take(&mut self.detail), ..verdict };
        started.condemned.push(verdict.clone());
        let mut bad = match &started.disk.bad_configs {
            Known::Is(bad) => bad.clone(),
            Known::Absent => BadConfigs::default(),
            // writing this verdict alone would drop all those in a list that could not be read
            Known::Unknown { .. } => {
                started.evidence_unrecorded = true;
                self.close_opened(steps, started)?;
                return Ok(Obstacle::Marked { verdict, recorded: false });
            }
        };
        let in_use = started.disk.uids_in_use();
        let in_use: Vec<&str> = in_use.iter().map(String::as_str).collect();
        bad.mark(uid, self.id, verdict.clone(), &in_use);
        let recorded = started.disk.put_bad_configs(steps, bad)?.is_ok();
        started.evidence_unrecorded |= !recorded;
        if !recorded {
            self.close_opened(steps, started)?;
        }
        Ok(Obstacle::Marked { verdict, recorded })
    }

    /// Closes the record of a start that ended in a verdict which could not be written: left open, the end of the fallback that
    /// runs instead would be counted against this config. The counts stay, for they prove the verdict.
    fn close_opened(&mut self, steps: &mut Steps, started: &mut Started) -> Suspendable<()> {
        if let Some(startups) = self.opened.take() {
            let _ = started.disk.put_startups(steps, Startups { open: None, ..startups })?;
        }
        Ok(())
    }
}
