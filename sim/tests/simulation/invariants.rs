//! The invariants after every step of every run, each under a name: the ten of the bounded model from which
//! the rules came, and those of later issues.
//!
//! Always holds: an invariant reads the world and the model; of the agent it uses only public reports, to
//! compare them with the truth.

use crate::configs::{Design, Nature, with_pods};
use crate::model::{Config, banned, checkpoint_path, startups_in, text, verdicts};
use crate::mutants::Mutant;
use crate::run::{CALM, Check, Mode, Simulation};
use kedge_core::config::records::{BAD_CONTENTS, BAD_UIDS, COUNTED_CONFIGS, Read, STARTUPS, StateFile};
use kedge_core::{Digest, Report, Step};
use serde_json::{Value, json};
use std::time::Duration;

/// Assigned, last-known-good and the one before it, and one that a transition no longer needs.
const MOST_CHECKPOINTS: usize = 4;
/// Bytes of all files: the payloads of a run are small, and so is a list of verdicts.
const MOST_BYTES: usize = 64 * 1024;
/// Eight reports of the status in a calm stretch; if it begins with a new server or after an outage, one
/// request of each other kind and a status for each change of the condition.
const MOST_REQUESTS: u32 = 24;

/// A watch stays open; without watches an object is read every five minutes, and once more after a push or a
/// change of the server.
const MOST_ROUNDS: u32 = 24;
/// Two watches, each opened at most twice a minute, and eight quick tries of each.
const MOST_ROUNDS_IN_VAIN: u32 = 2 * (3600 / 30 + 8);
/// The writes of the start itself, its quarters of a trial, a verdict, a promotion, a wait.
const WRITES_OF_A_START: u64 = 16;
/// Average size of a write: counts of four configs, and a list with verdicts on a few.
const BYTES_OF_A_WRITE: u64 = 8 * 1024;

macro_rules! hold {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

impl Simulation {
    /// Checks after every step.
    pub(crate) fn check(&self) -> Check {
        self.invariant_some_config_always_runs()?;
        self.invariant_a_cut_takes_nothing_back()?;
        self.invariant_the_agent_knows_its_disk()
    }

    /// A start waits only for its disk: not for the network, not for time.
    fn invariant_some_config_always_runs(&self) -> Check {
        let Some(process) = &self.world.process else { return Ok(()) };
        hold!(
            process.used.is_some() || process.step.is_some(),
            "invariant_some_config_always_runs: the agent waits for something before it runs any config"
        );
        Ok(())
    }

    /// A file that a start has read, or whose write was reported as done, survives any power cut.
    fn invariant_a_cut_takes_nothing_back(&self) -> Check {
        hold!(
            self.taken_back.is_empty(),
            "invariant_a_cut_takes_nothing_back: an agent acted on {:?} as it was before the last power cut",
            self.taken_back
        );
        Ok(())
    }

    /// The agent's knowledge of its records matches the disk: it promises nothing that is not durable.
    fn invariant_the_agent_knows_its_disk(&self) -> Check {
        let running = self.world.process.as_ref().is_some_and(|process| process.step.is_none());
        // a mutant reports false things about the disk: their effect must be noticed, not the report itself
        let lied_to = self.mutant.is_some_and(|mutant| mutant != Mutant::ProgressNotWritten);
        if !running || self.model.tampered || lied_to {
            return Ok(());
        }
        for (path, told) in &self.model.told {
            if path.starts_with("checkpoints/") {
                continue;
            }
            let matches = self.world.disk.is(path, told.as_deref());
            let there = (!matches).then(|| self.world.disk.content(path)).flatten();
            hold!(
                matches,
                "invariant_the_agent_knows_its_disk: {path} is {:?}, the agent was told {:?}",
                there.as_deref().map(String::from_utf8_lossy),
                told.as_ref().map(|bytes| String::from_utf8_lossy(bytes))
            );
        }
        Ok(())
    }

    /// Checks when a config is about to be used.
    pub(crate) fn invariants_of_a_start(&self, config: Option<Config>, report: &Report) -> Check {
        let used = self.world.used();
        hold!(
            config.map_or(kedge_sim::DEFAULT_PODS, |config| config.max_pods) == used,
            "invariant_what_runs_is_what_is_said: {used} runs, {config:?} is said"
        );
        self.invariant_true_means_that_current_runs(report)?;
        let Some(config) = config else { return Ok(()) };
        let design = with_pods(&self.designs, config.max_pods).expect("it is no local config");
        let valid = design.nature(self.drop_in).is_valid() && self.mutant != Some(Mutant::EverythingInvalid);
        hold!(valid, "invariant_what_runs_is_valid (i1): {config:?} runs, {:?}", design.nature(self.drop_in));
        self.invariant_a_bad_config_is_not_tried_again(config)?;
        self.invariant_a_crash_loop_ends(config, design)?;
        self.invariant_a_trial_is_recorded_before_it_begins(config, report)?;
        self.invariant_running_time_is_real(config, report)
    }

    /// i3.
    fn invariant_a_bad_config_is_not_tried_again(&self, config: Config) -> Check {
        let is_condemned = config
            .judged()
            .iter()
            .any(|judged| self.model.condemned.contains(&(self.world.version.clone(), *judged)));
        hold!(
            !is_condemned || self.is_proven(config),
            "invariant_a_bad_config_is_not_tried_again (i3): {config:?} was condemned, and runs"
        );
        // as the agent read it: perhaps it could not
        let path = StateFile::BadConfigs.path(&self.world.version);
        let told = self.model.told.get(&path).and_then(Option::as_ref);
        let bad = told.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or(Value::Null);
        hold!(
            !config.is_among(&banned(&bad)),
            "invariant_a_bad_config_is_not_tried_again (i3): {config:?} has a bad entry, and runs"
        );
        Ok(())
    }

    /// Whether the config is or was last-known-good: nothing bans it.
    pub(crate) fn is_proven(&self, config: Config) -> bool {
        let good = self.world.file("last-known-good").unwrap_or_default();
        [&good, &good["previous"]]
            .iter()
            .any(|record| self.named(record).is_some_and(|good| good.payload == config.payload))
    }

    /// i4: N + 1 crashes without a whole trial between them, and no further ones. Of a proven config eleven,
    /// and eleven more while pods are held.
    fn invariant_a_crash_loop_ends(&self, config: Config, design: &Design) -> Check {
        let crashes = self.model.past.get(&config.payload).map_or(0, |past| past.crashes);
        let most = if self.is_proven(config) { 2 * STARTUPS as u32 - 1 } else { design.threshold.into() };
        hold!(
            crashes <= most,
            "invariant_a_crash_loop_ends (i4): {config:?} crashed {crashes} times, it may {most} times, and it runs"
        );
        Ok(())
    }

    fn invariant_a_trial_is_recorded_before_it_begins(&self, config: Config, report: &Report) -> Check {
        let startups = self.world.startups();
        let recorded = self.is_open(&startups, config);
        // a config that ran for its whole trial but could not be promoted yet counts as known
        let survived = self.survived_a_trial(config, report);
        hold!(
            recorded || report.config.state != "trial" || survived,
            "invariant_a_trial_is_recorded_before_it_begins: {config:?} is tried, startups.json says {startups}"
        );
        Ok(())
    }

    fn survived_a_trial(&self, config: Config, report: &Report) -> bool {
        let design = with_pods(&self.designs, config.max_pods);
        design.is_some_and(|design| report.config.ran_seconds * 1000 >= design.settled_ms())
    }

    /// The agent reports no more running time than there was, and a cut loses no more than the time since the
    /// last save.
    fn invariant_running_time_is_real(&self, config: Config, report: &Report) -> Check {
        let Some(past) = self.model.past.get(&config.payload) else { return Ok(()) };
        let claimed = Duration::from_secs(report.config.ran_seconds);
        hold!(
            claimed <= past.ran,
            "invariant_running_time_is_real: {config:?} is said to have run {claimed:?}, it ran {:?}",
            past.ran
        );
        let saved = Duration::from_millis(past.saved_ms.unwrap_or_default());
        hold!(
            claimed + Duration::from_secs(1) > saved,
            "invariant_a_cut_never_resets_running_time: {config:?} is said to have run {claimed:?}, {saved:?} were saved"
        );
        Ok(())
    }

    /// i8.
    fn invariant_true_means_that_current_runs(&self, report: &Report) -> Check {
        let status = &report.config.status;
        hold!(
            report.config.condition.status != "True"
                || !self.world.dynamic
                || status.active == status.assigned,
            "invariant_true_means_that_current_runs (i8): ConfigOK is True, assigned {:?}, active {:?}",
            status.assigned,
            status.active
        );
        Ok(())
    }

    /// i2, when the record is written.
    pub(crate) fn invariant_last_known_good_survived_a_trial(&self, record: &Value) -> Check {
        if record["local"] == true {
            return Ok(());
        }
        let path = checkpoint_path(record);
        let Some(config) = self.named(record) else {
            hold!(
                self.model.tampered,
                "invariant_records_name_checkpoints: last-known-good names {path}, nothing is there"
            );
            return Ok(());
        };
        let past = self.model.past.get(&config.payload).cloned().unwrap_or_default();
        let design = with_pods(&self.designs, config.max_pods).expect("it is no local config");
        hold!(
            past.renewed >= Some(Duration::from_millis(design.trial_ms)),
            "invariant_last_known_good_survived_a_trial (i2): {config:?} ran {:?} of {} ms, last renewed at {:?}",
            past.ran,
            design.trial_ms,
            past.renewed
        );
        Ok(())
    }

    /// Checks `status.config` and the condition when they are sent.
    pub(crate) fn invariant_status_never_claims_what_is_not_on_disk(&self, sent: &Value) -> Check {
        let report = self.report().expect("a config is in use");
        self.invariant_true_means_that_current_runs(&report)?;
        for (part, path) in [("assigned", "current"), ("lastKnownGood", "last-known-good")] {
            let Some(claimed) = sent.get(part).filter(|claimed| !claimed.is_null()) else { continue };
            // in the middle of a transition it may still have its previous content
            let tellings = [self.model.told.get(path), self.model.told_before.get(path)];
            let records = tellings.map(|told| {
                let told = told.and_then(Option::as_ref);
                told.and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok()).unwrap_or_default()
            });
            let matches = records.iter().any(|record| {
                text(record, "/uid") == text(claimed, "/configMap/uid")
                    && (text(record, "/resourceVersion") == text(claimed, "/configMap/resourceVersion")
                        || self.has_recorded_payload(claimed, record))
            });
            hold!(
                matches,
                "invariant_status_never_claims_what_is_not_on_disk: {part} is {claimed}, {path} is {}",
                records[0]
            );
        }
        Ok(())
    }

    /// Whether a later version of the reported object has the recorded payload: such a version is not
    /// recorded.
    fn has_recorded_payload(&self, claimed: &Value, record: &Value) -> bool {
        let now = self.world.hub.config_map(text(claimed, "/configMap/name"));
        let mut versions = self.old_maps.iter().map(|(_, map)| map).chain(&now);
        versions.any(|map| {
            ["uid", "resourceVersion"]
                .iter()
                .all(|part| map["metadata"][*part] == claimed["configMap"][*part])
                && map["data"].as_object().into_iter().flatten().any(|(_, value)| {
                    let payload = value.as_str().unwrap_or_default();
                    Digest::of(payload.as_bytes()).to_string() == text(record, "/sha256")
                })
        })
    }

    /// Checks verdicts when they are written: bounded, and in a good world none (i5), or only suspicions
    /// (i10).
    pub(crate) fn invariants_of_verdicts(&self, bad: &Value) -> Check {
        let entries = bad.as_object().map_or(0, |bad| bad.len());
        hold!(entries <= BAD_UIDS, "invariant_records_are_bounded: {entries} UIDs in bad-configs.json");
        for (uid, entry) in bad.as_object().into_iter().flatten() {
            let contents = entry["contents"].as_object().map_or(0, |contents| contents.len());
            hold!(contents <= BAD_CONTENTS, "invariant_records_are_bounded: {contents} contents of {uid}");
        }
        match self.mode {
            Mode::All => Ok(()),
            Mode::CutsOnly => {
                hold!(banned(bad).is_empty(), "invariant_power_cuts_condemn_no_good_config (i5): {bad}");
                Ok(())
            }
            Mode::OneOutage => {
                // one outage causes one suspicion, which the next contact lifts
                let twice =
                    |verdict: &Value| verdict["kind"] != "contact" || verdict["tries"].as_u64() >= Some(2);
                hold!(verdicts(bad, twice).is_empty(), "invariant_one_outage_condemns_nothing (i10): {bad}");
                Ok(())
            }
        }
    }

    pub(crate) fn invariant_startups_are_bounded(&self, record: &Value) -> Check {
        let counts = startups_in(record);
        hold!(
            counts.len() <= COUNTED_CONFIGS && counts.iter().all(|(_, count)| *count <= STARTUPS as u64),
            "invariant_records_are_bounded: startups {counts:?}"
        );
        Ok(())
    }

    /// Checks startups when they are written: never more of them than ends that count.
    pub(crate) fn invariant_an_end_counts_once(&mut self, record: &Value) -> Check {
        let wrong = self.model.startups_written(&startups_in(record));
        hold!(
            wrong.is_empty(),
            "invariant_an_end_counts_once: (config, startups counted, there can be) {wrong:?}"
        );
        Ok(())
    }

    /// Checks a record when it is set aside: only damage can make it unreadable, never an interrupted write.
    pub(crate) fn invariant_no_record_is_torn(&self, file: &StateFile) -> Check {
        let path = file.path(&self.world.version);
        hold!(
            self.damaged.contains(&path)
                || self.mutant.is_some_and(|mutant| mutant != Mutant::ContentsNotSynced),
            "invariant_no_record_is_torn: {path} cannot be read, and nobody damaged it: {:?}",
            self.world.disk.content(&path).as_deref().map(String::from_utf8_lossy)
        );
        Ok(())
    }

    /// Checks verdicts when they are written: a forgiven config is not condemned because of its past.
    pub(crate) fn invariant_a_forgiven_config_is_tried(&mut self, bad: &Value) -> Check {
        let counted = ["crashLoop", "cuts"];
        for judged in verdicts(bad, |verdict| counted.contains(&text(verdict, "/kind"))) {
            hold!(
                !self.model.forgiven.contains(&judged),
                "invariant_a_forgiven_config_is_tried: {judged:?} was forgiven and did not run since, now: {bad}"
            );
        }
        let banned = banned(bad);
        let gone = self.model.forgiving.iter().filter(|id| !banned.contains(id)).copied();
        let gone: Vec<_> = gone.collect();
        for id in gone {
            self.model.forgiving.remove(&id);
            self.model.forgiven.insert(id);
        }
        Ok(())
    }

    // ------------------------------------------------------------------------------------------ at rest

    /// After the faults, when nothing has happened for hours.
    pub(crate) fn invariants_at_rest(&self) -> Check {
        let report = self.report().expect("a config is in use");
        self.invariant_the_disk_does_not_fill()?;
        if self.link() {
            self.invariant_a_node_at_rest_asks_rarely()?;
            self.invariant_the_heartbeat_resumes(&report)?;
            self.invariant_the_last_word_arrived(&report)?;
        }
        self.invariant_a_trial_ends(&report)
    }

    /// After any number of pushes the disk has the assigned config, its fallbacks, and small records.
    fn invariant_the_disk_does_not_fill(&self) -> Check {
        // if a record cannot be read, no checkpoint is known to be useless
        let is_unknown = |path: &str| self.world.disk.read(path) == Read::SetAside;
        if self.model.tampered || is_unknown("current") || is_unknown("last-known-good") {
            return Ok(());
        }
        let files = self.world.disk.contents();
        let checkpoints = files.keys().filter(|path| path.starts_with("checkpoints/")).count();
        let bytes: usize = files.values().map(Vec::len).sum();
        hold!(
            checkpoints <= MOST_CHECKPOINTS && bytes <= MOST_BYTES,
            "invariant_the_disk_does_not_fill: {checkpoints} checkpoints, {bytes} bytes in {:?}",
            files.keys()
        );
        Ok(())
    }

    /// In a stretch of forty minutes without a start or a write: the status every five minutes, and delayed
    /// requests.
    fn invariant_a_node_at_rest_asks_rarely(&self) -> Check {
        let requests = &self.requests;
        hold!(
            requests.values().sum::<u32>() <= MOST_REQUESTS,
            "invariant_a_node_at_rest_asks_rarely: {requests:?} in {} s",
            CALM.as_secs()
        );
        hold!(
            self.rounds <= MOST_ROUNDS,
            "invariant_a_node_at_rest_asks_rarely: {} rounds of watches in {} s",
            self.rounds,
            CALM.as_secs()
        );
        Ok(())
    }

    /// In an hour in which every watch ends at once: each of two watches is opened twice a minute at most,
    /// after a few quick tries.
    pub(crate) fn invariant_a_watch_in_vain_is_opened_rarely(&self) -> Check {
        let rounds = self.rounds;
        hold!(
            rounds <= MOST_ROUNDS_IN_VAIN,
            "invariant_a_node_at_rest_asks_rarely: {rounds} rounds of watches that end at once in an hour"
        );
        Ok(())
    }

    /// In a stretch of forty minutes: starts, writes and bytes before it. A start and its trial write a few
    /// records; a node without anything new to record must not write every minute.
    pub(crate) fn invariant_flash_is_spared(&self, (starts, writes, bytes): (u64, u64, u64)) -> Check {
        let starts = self.world.starts - starts;
        let (writes, bytes) = (self.model.writes - writes, self.model.bytes_written - bytes);
        let most = WRITES_OF_A_START * (starts + 1);
        hold!(
            writes <= most && bytes <= most * BYTES_OF_A_WRITE,
            "invariant_flash_is_spared: {writes} writes of {bytes} bytes with {starts} starts in {} s",
            CALM.as_secs()
        );
        Ok(())
    }

    /// Renewals continue while a disk does not respond for an hour.
    pub(crate) fn invariant_a_stalled_disk_silences_nothing(&self) -> Check {
        let there = (self.world.time - self.renewed_at).as_secs();
        hold!(
            there <= 160,
            "invariant_a_stalled_disk_silences_nothing: the lease is due every 150 s, it is {there} s old"
        );
        Ok(())
    }

    /// Flash wears by writes, and labels may change every minute for years.
    pub(crate) fn invariant_metadata_edits_write_nothing(&self, before: (u64, u64)) -> Check {
        let after = (self.world.starts, self.model.writes);
        hold!(
            after == before,
            "invariant_metadata_edits_write_nothing: {before:?} starts and writes, now {after:?}"
        );
        Ok(())
    }

    /// On the API server, and in the agent's report.
    fn invariant_the_heartbeat_resumes(&self, report: &Report) -> Check {
        let there = (self.world.time - self.renewed_at).as_secs();
        let said = report.lease.seconds_since_renewal;
        hold!(
            there <= 160 && said.is_some_and(|said| said <= 160),
            "invariant_the_heartbeat_resumes: the lease is due every 150 s, it is {there} s old, the agent says {said:?}"
        );
        let ready = self.world.hub.condition("Ready").map(|ready| ready["status"].clone());
        hold!(ready == Some(json!("True")), "invariant_the_heartbeat_resumes: Ready is {ready:?}");
        Ok(())
    }

    /// The API server has the agent's latest report.
    fn invariant_the_last_word_arrived(&self, report: &Report) -> Check {
        let said = &report.config.condition;
        let there = self.world.hub.condition("ConfigOK").unwrap_or_default();
        hold!(
            [&there["status"], &there["reason"], &there["message"]]
                == [&json!(said.status), &json!(said.reason), &json!(said.message)],
            "invariant_the_last_word_arrived: the condition is {there}, the agent says {said:?}"
        );
        let node = self.world.hub.node().unwrap_or_default();
        let annotation = text(&node, "/metadata/annotations/kedge.dev~1config-status");
        let status = match self.world.hub.flavour {
            kedge_sim::hub::Flavour::Kedge => node["status"]["config"].clone(),
            kedge_sim::hub::Flavour::Kubernetes => serde_json::from_str(annotation).unwrap_or_default(),
        };
        let said = json!(report.config.status);
        hold!(
            status == said || (status.is_null() && said == json!({})),
            "invariant_the_last_word_arrived: status.config is {status}, the agent says {said}"
        );
        Ok(())
    }

    /// A list was lost, and its successor doubts the assigned config; or an entry without contents bans a
    /// whole object.
    pub(crate) fn has_unclear_verdicts(&self) -> bool {
        let bad = self.world.bad_configs();
        bad.as_object().is_some_and(|bad| bad.values().any(|entry| entry.get("contents").is_none()))
    }

    /// i4 (settle), i9: a good config becomes active and last-known-good, a bad one is condemned, and the
    /// report shows it.
    fn invariant_a_trial_ends(&self, report: &Report) -> Check {
        let state = report.config.state;
        hold!(
            self.world
                .process
                .as_ref()
                .is_some_and(|process| process.step.is_none() || matches!(process.step, Some(Step::Read(_)))),
            "invariant_everything_comes_to_rest: a step is still under way"
        );
        if self.model.tampered && !self.knows("current") {
            // a failed write changed the record without the agent's knowledge; the next start will read it
            return Ok(());
        }
        let Some(assigned) = self.recorded("current") else {
            hold!(state != "trial", "invariant_a_trial_ends: nothing is assigned, the state is {state}");
            return Ok(());
        };
        let design = with_pods(&self.designs, assigned.max_pods).expect("it is no local config");
        let nature = design.nature(self.drop_in);
        let active = self.model.run.as_ref().and_then(|run| run.config);
        let condition = &report.config.condition;
        let bad = assigned.is_among(&banned(&self.world.bad_configs()));
        if self.has_unclear_verdicts() {
            return Ok(());
        }
        if state == "trial" {
            return Err(format!(
                "invariant_a_trial_ends: {assigned:?} ({nature:?}) is still in trial, contact {}",
                report.config.contact
            ));
        }
        if active == Some(assigned) && state == "known-good" {
            let good = self.recorded("last-known-good");
            hold!(
                // it may be recorded as another object with the same payload
                self.model.tampered || good.map(|good| good.payload) == Some(assigned.payload),
                "invariant_a_good_config_wins (i9): {assigned:?} runs, last-known-good is {good:?}"
            );
            return Ok(());
        }
        hold!(
            condition.status != "True",
            "invariant_true_means_that_current_runs (i8): {assigned:?} does not run: {condition:?}"
        );
        if self.model.tampered {
            // the next start reads files that were changed under a running agent
            return Ok(());
        }
        let unclear = condition.status == "Unknown";
        // after an unreadable list of verdicts none can be written: then the counts on disk act as the
        // verdict
        let path = StateFile::BadConfigs.path(&self.world.version);
        let list_unknown = self.world.disk.read(&path) == Read::SetAside;
        hold!(
            bad || unclear || list_unknown,
            "invariant_a_good_config_wins (i9): {assigned:?} ({nature:?}) is not bad and does not run: {condition:?}"
        );
        hold!(
            !unclear || self.unclear_for_a_reason(&condition.reason),
            "invariant_a_good_config_wins (i9): {assigned:?} ({nature:?}) does not run: {condition:?}"
        );
        hold!(
            nature != Nature::Good || self.mode == Mode::All || !bad,
            "invariant_power_cuts_condemn_no_good_config (i5): {assigned:?}"
        );
        Ok(())
    }

    /// Whether the agent knows this record's present content.
    fn knows(&self, path: &str) -> bool {
        let told = self.model.told.get(path).and_then(Option::as_deref);
        self.world.disk.is(path, told)
    }

    /// Whether the source on the API server explains an unclear assignment.
    fn unclear_for_a_reason(&self, reason: &str) -> bool {
        if reason.contains("the list of bad configs is unknown") {
            return true;
        }
        let node = self.world.hub.node().unwrap_or_default();
        let annotation = text(&node, "/metadata/annotations/kedge.dev~1config-source");
        let source = match self.world.hub.flavour {
            kedge_sim::hub::Flavour::Kedge => node["spec"]["configSource"].clone(),
            kedge_sim::hub::Flavour::Kubernetes => serde_json::from_str(annotation).unwrap_or_default(),
        };
        let (pinned, followed) = (&source["configMapRef"], &source["configMap"]);
        if source.is_null() || pinned.is_null() == followed.is_null() {
            return true;
        }
        let named = if pinned.is_null() { followed } else { pinned };
        let Some(map) = self.world.hub.config_map(text(named, "/name")) else { return true };
        let other = !pinned.is_null() && text(pinned, "/uid") != text(&map, "/metadata/uid");
        let key = Some(text(named, "/kubeletConfigKey")).filter(|key| !key.is_empty()).unwrap_or("kubelet");
        other || map["data"].get(key).is_none() || reason.starts_with("earlier verdicts on current were lost")
    }
}
