//! Observation of a run: all orders and their results go to the model, and the invariants are checked.

use super::*;

impl Simulation {
    pub(crate) fn hit(&mut self, kind: &'static str, name: &'static str) {
        self.coverage.hit(kind, name);
    }

    /// Passes new orders and results to the model, then checks the invariants.
    pub(crate) fn observe(&mut self) -> Check {
        for seen in std::mem::take(&mut self.world.seen) {
            match seen {
                Seen::Asked(action) => self.asked(&action)?,
                Seen::Performed(step, outcome) => self.performed(&step, &outcome)?,
            }
        }
        for line in std::mem::take(&mut self.world.log) {
            self.trace(|| format!("    | {line}"));
        }
        self.note_transition();
        if self.world.process.as_ref().is_some_and(|process| process.step.is_none()) {
            self.model.rests();
        }
        self.check()
    }

    pub(super) fn asked(&mut self, action: &Action) -> Check {
        let what = match action {
            Action::Step(Step::Read(_)) => "Read",
            Action::Step(Step::Write(..)) => "Write",
            Action::Step(Step::SetAside(_)) => "SetAside",
            Action::Use(_) => "Use",
            Action::ConsumeEvidence => "ConsumeEvidence",
            Action::Sweep { .. } => "Sweep",
            Action::ReadHostFacts => "ReadHostFacts",
            Action::Request(Request::Version) => "Version",
            Action::Request(Request::Register(_)) => "Register",
            Action::Request(Request::PatchStatus(_)) => "PatchStatus",
            Action::Request(Request::PatchLabels(_)) => "PatchLabels",
            Action::Request(Request::PatchNode(_)) => "PatchNode",
            Action::Request(Request::PostEvent(_)) => "PostEvent",
            Action::Renew { .. } => "Renew",
            Action::WatchNode(_) => "WatchNode",
            Action::WatchConfigMap { .. } => "WatchConfigMap",
            Action::EndConfigMapWatch => "EndConfigMapWatch",
            Action::Request(Request::Pods { .. } | Request::RejectPods)
            | Action::WatchPods(_)
            | Action::EndPodsWatch
            | Action::Pods(_)
            | Action::TakeCall(_)
            | Action::TakeAuthorities(_)
            | Action::Identity(_)
            | Action::System(_)
            | Action::NeedImages { .. } => unreachable!("simulated nodes have no runtime"),
            Action::NoteDecommission(_) | Action::RemoveState => unreachable!("nobody decommissions it"),
            Action::Exit { .. } => "Exit",
            Action::Log(..) => "Log",
        };
        self.hit("action", what);
        self.rounds += u32::from(matches!(action, Action::WatchNode(_) | Action::WatchConfigMap { .. }));
        match action {
            Action::Use(_) => self.used(),
            Action::Step(Step::SetAside(file)) => self.invariant_no_record_is_torn(file),
            Action::WatchConfigMap { name, .. } if name == ANOTHERS_MAP => {
                Err("invariant_only_its_own_node_is_obeyed: it watches what another node's Node names".into())
            }
            Action::Request(Request::PatchStatus(body)) => {
                // our hub gets the configuration in the status, other servers in an annotation
                let mut sent = body["status"]["config"].clone();
                if self.mutant == Some(Mutant::StatusClaims) && !sent["assigned"].is_null() {
                    sent["assigned"]["configMap"]["resourceVersion"] = json!("1");
                }
                self.invariant_status_never_claims_what_is_not_on_disk(&sent)
            }
            Action::Request(Request::PatchNode(body)) => {
                let annotation = text(body, "/metadata/annotations/kedge.dev~1config-status");
                let status = serde_json::from_str(annotation).unwrap_or(Value::Null);
                self.invariant_status_never_claims_what_is_not_on_disk(&status)
            }
            _ => Ok(()),
        }
    }

    /// The agent's report, or the mutant's version of it; `None` before the first one.
    pub(crate) fn report(&self) -> Option<Report> {
        let mut report = self.world.process.as_ref()?.node.report(self.world.now())?;
        if self.mutant == Some(Mutant::AlwaysTrue) {
            report.config.condition.status = "True";
        }
        Some(report)
    }

    /// A config is in use from now on.
    pub(super) fn used(&mut self) -> Check {
        if let (Some(Mutant::AnotherConfigRuns), Some(process)) = (self.mutant, &mut self.world.process) {
            process.used = Some(kedge_sim::DEFAULT_PODS);
        }
        let Some(report) = self.report() else {
            // an order to stop came before it began, and it has ended already
            self.model.begins(self.world.mono(), None, false);
            return Ok(());
        };
        let active = report.config.status.active.clone().and_then(|source| source.config_map);
        let config = match &active {
            None => None,
            Some(source) => {
                let record = self.record_of(&source.uid, &source.resource_version).ok_or_else(|| {
                    format!("invariant_what_runs_is_on_disk: no record names {source:?}, which runs")
                })?;
                let path = checkpoint_path(&record);
                if self.mutant == Some(Mutant::CheckpointVanishes) {
                    self.world.disk.remove(&path);
                    self.model.told.remove(&path);
                }
                Some(self.named(&record).ok_or_else(|| {
                    format!("invariant_what_runs_is_on_disk: {path} runs and has no checkpoint")
                })?)
            }
        };
        let startups = self.world.startups();
        let recorded = config.is_some_and(|config| self.is_open(&startups, config));
        self.trace(|| {
            format!(
                "  USES {:?}, {}, recorded: {recorded}",
                config.map(|config| config.max_pods),
                report.config.state
            )
        });
        if let Some(config) = config {
            self.model.starts(config);
        }
        self.invariants_of_a_start(config, &report)?;
        self.model.begins(self.world.mono(), config, recorded);
        let obstacle = report.config.obstacle;
        if let Some(obstacle) = obstacle {
            self.hit("obstacle", obstacle);
            match obstacle {
                "marked" if !self.verdict_now => self.hit("rule", "a"),
                "missing" => self.hit("rule", "b"),
                _ => {}
            }
        }
        let fallback = report.config.state == "fallback";
        self.hit(
            "start case",
            match (config, fallback) {
                (None, false) => "2 local",
                (Some(_), false) => "3 assigned",
                (Some(_), true) => "4 last-known-good",
                (None, true) => "5 local instead",
            },
        );
        Ok(())
    }

    /// The config that a record names, computed by the test itself.
    pub(crate) fn named(&self, record: &Value) -> Option<Config> {
        let path = checkpoint_path(record);
        // the content that the agent read, if it did: the file may have been damaged since
        let told = self.model.told.get(&path).and_then(Option::as_ref);
        let there = if told.is_none() { self.world.disk.content(&path) } else { None };
        let object: Value = serde_json::from_slice(told.or(there.as_ref())?).ok()?;
        // under any key: the record identifies the text by its digest
        let mut texts = object["data"].as_object()?.values().filter_map(Value::as_str);
        let payload =
            texts.find(|found| Digest::of(found.as_bytes()).to_string() == text(record, "/sha256"))?;
        let design = self.designs.iter().find(|design| design.payload == payload)?;
        let id = ConfigId::of(payload.as_bytes(), &self.overrides);
        let object = Digest::of(text(record, "/uid").as_bytes());
        let payload = Digest::of(payload.as_bytes());
        Some(Config { object, id, payload, max_pods: design.max_pods })
    }

    /// The config that a record on disk names.
    pub(crate) fn recorded(&self, path: &str) -> Option<Config> {
        self.named(&self.world.file(path)?)
    }

    /// The record of this version of a ConfigMap, as the agent read or wrote it.
    fn record_of(&self, uid: &str, version: &str) -> Option<Value> {
        let told = ["current", "last-known-good"].map(|path| self.model.told.get(path)?.as_deref());
        let records =
            told.into_iter().flatten().filter_map(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        let mut records = records.flat_map(|record| [record["previous"].clone(), record]);
        records.find(|record| text(record, "/uid") == uid && text(record, "/resourceVersion") == version)
    }

    pub(super) fn performed(&mut self, step: &Step, outcome: &Outcome) -> Check {
        let path = |file: &StateFile| file.path(&self.world.version);
        match (step, outcome) {
            (Step::Read(file), Outcome::Read(read)) => {
                let checkpoint_is_gone = matches!(file, StateFile::Checkpoint(_)) && *read == Read::Absent;
                if matches!(read, Read::Unreadable(_) | Read::SetAside) || checkpoint_is_gone {
                    // its content is lost now, however long ago it was damaged; and without it the counts
                    // belong to no known config
                    self.model.forget_all();
                }
                if let (StateFile::Current, Read::Content(bytes)) = (file, read)
                    && self.assigned.as_ref() != Some(bytes)
                {
                    // an unacknowledged adoption was made, or taken back
                    self.assigned = Some(bytes.clone());
                    self.model.forget_crashes();
                }
                if let (StateFile::Startups, Read::Content(bytes)) = (file, read) {
                    // an unacknowledged write may have been made
                    let record: Value = serde_json::from_slice(bytes).unwrap_or_default();
                    self.model.read_last = last_of(&record);
                    self.model.counts_are_of(self.model.read_last.map(|(payload, _)| payload));
                    self.model.startups_read(&startups_in(&record));
                } else if *file == StateFile::Startups {
                    self.model.read_last = None;
                }
                match read {
                    Read::Content(bytes) => self.model.told.insert(path(file), Some(bytes.clone())),
                    Read::Absent | Read::SetAside => self.model.told.insert(path(file), None),
                    Read::Unreadable(_) => self.model.told.remove(&path(file)),
                };
                Ok(())
            }
            (Step::Write(file, bytes), Outcome::Done(Ok(()))) => {
                self.model.told.insert(path(file), Some(bytes.clone()));
                self.model.writes += 1;
                self.model.bytes_written += bytes.len() as u64;
                self.wrote(file, bytes)
            }
            (Step::Write(StateFile::Startups | StateFile::BadConfigs, _), Outcome::Done(Err(_))) => {
                // if a crash cannot be recorded now, it may never be
                self.model.doubt_last_crash();
                // nor can forgiveness
                self.model.forgiven.clear();
                Ok(())
            }
            (Step::SetAside(file), Outcome::Done(Ok(()))) => {
                self.model.forget_all();
                if *file == StateFile::BadConfigs {
                    // it stays in place until it is replaced
                    self.model.told.remove(&path(file));
                } else {
                    self.model.told.insert(path(file), None);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn wrote(&mut self, file: &StateFile, bytes: &[u8]) -> Check {
        let mut record: Value = serde_json::from_slice(bytes).unwrap_or_default();
        self.damaged.remove(&file.path(&self.world.version));
        if let (Some(Mutant::RecordsGrow), StateFile::Startups) = (self.mutant, file) {
            record["records"]["local"]["startups"] = json!(vec!["2026-11-21T01:00:00Z"; STARTUPS + 1]);
        }
        match file {
            StateFile::BadConfigs => {
                self.model.proven_by_verdict();
                if self.under_way == Some("wait-over") {
                    // a config that is tried again starts without counts
                    self.model.tried_again(&record);
                }
                self.verdict_now = true;
                let before = std::mem::replace(&mut self.noted, record["forgiven"].clone());
                if self.under_way == Some("forgive") && before != self.noted {
                    // as the Node asked at some time
                    self.model.forget_all();
                    self.hit("fault", "forgiven from afar");
                }
                self.invariant_a_forgiven_config_is_tried(&record)?;
                self.note_verdicts(&record);
                self.invariants_of_verdicts(&record)
            }
            StateFile::SystemWanted | StateFile::SystemBad => unreachable!("simulated nodes have no slots"),
            StateFile::Startups => {
                let last = last_of(&record);
                self.model.proven_by_counts();
                self.model.saved(last, record["records"][text(&record, "/last")]["ran_ms"].as_u64());
                self.invariant_startups_are_bounded(&record)?;
                self.invariant_an_end_counts_once(&record)
            }
            StateFile::LastKnownGood => {
                if self.mutant == Some(Mutant::CheckpointSwept) {
                    self.world.disk.retain(|path| !path.starts_with("checkpoints/"));
                    self.model.told.retain(|path, _| !path.starts_with("checkpoints/"));
                }
                self.model.ran(self.world.mono(), &self.designs);
                self.invariant_last_known_good_survived_a_trial(&record)
            }
            StateFile::Current => {
                let before = self.assigned.replace(bytes.to_vec());
                let before =
                    before.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Value::Null);
                let is_another = text(&before, "/uid") != text(&record, "/uid");
                if self.under_way == Some("adopt") || is_another && self.may_try_renamed(&record) {
                    // the next config to run replaces the present counts, however long ago it was assigned
                    self.model.forget_crashes();
                    if let Some(run) = &mut self.model.run {
                        run.superseded = true;
                    }
                }
                self.renamed(&record);
                Ok(())
            }
            StateFile::Checkpoint(_) => Ok(()),
        }
    }

    /// A fallback runs, and the assigned payload now belongs to another object, which nothing bans: it is
    /// tried next, even if the fallback crashes before that.
    fn may_try_renamed(&self, record: &Value) -> bool {
        let assigned = self.named(record);
        let running = self.model.run.as_ref().and_then(|run| run.config).map(|config| config.payload);
        let is_banned = |config: Config| config.is_among(&crate::model::banned(&self.world.bad_configs()));
        self.under_way == Some("note-source")
            && assigned.is_some_and(|config| running != Some(config.payload) && !is_banned(config))
    }

    /// The same payload under another object keeps its history, but not its verdicts.
    fn renamed(&mut self, record: &Value) {
        let Some(config) = self.named(record) else { return };
        let running = self.model.run.as_mut().and_then(|run| run.config.as_mut());
        if let Some(running) = running.filter(|running| running.payload == config.payload) {
            running.object = config.object;
        }
    }

    /// The contents of this UID are about to be forgiven.
    pub(super) fn forgiven_ids(&mut self, bad: &Value, uid: &str) {
        let object = Digest::of(uid.as_bytes());
        let contents = bad[uid]["contents"].as_object().into_iter().flatten();
        self.model
            .forgiving
            .extend(contents.filter_map(|(id, verdict)| Some((object, about_of(id, verdict)?))));
        if self.mutant == Some(Mutant::NeverForgiven) {
            // counts that condemn are back without a cause
            let forgiving = self.model.forgiving.iter();
            let mut payloads = forgiving.filter_map(|(_, about)| match about {
                About::Deeds(payload) => Some(payload.to_string()),
                About::Text(_) => None,
            });
            let Some(payload) = payloads.next() else { return };
            let stamps = vec!["2026-11-21T01:00:00Z"; STARTUPS];
            let counts = json!({
                "ran_ms": 0, "heard": false, "startups": stamps, "cuts": 0, "open": null, "threshold": 1,
                "trial_ms": 60_000,
            });
            let record = json!({"last": payload.clone(), "records": {payload: counts}});
            self.returning = Some(record.to_string().into_bytes());
        }
    }

    pub(super) fn note_verdicts(&mut self, record: &Value) {
        let version = self.world.version.clone();
        for id in crate::model::final_verdicts(record) {
            self.model.condemned.insert((version.clone(), id));
        }
        let entries = record.as_object().into_iter().flatten();
        let kinds: Vec<String> = entries
            .filter_map(|(_, entry)| entry["contents"].as_object())
            .flat_map(|contents| contents.values())
            .filter_map(|verdict| verdict["kind"].as_str())
            .map(str::to_owned)
            .collect();
        for kind in kinds {
            let rule = match kind.as_str() {
                "crashLoop" => "c",
                "cuts" => "d",
                "parse" => "e parse",
                "validate" => "e validate",
                "contact" => "f",
                "proven" => "proven",
                _ => "verdicts lost",
            };
            self.hit("rule", rule);
        }
    }

    pub(super) fn note_transition(&mut self) {
        let Some(process) = &self.world.process else { return };
        if process.step.is_some() && process.used.is_some() {
            let report = self.world.report();
            if report.config.transition != self.under_way {
                self.under_way = report.config.transition;
                if let Some(transition) = self.under_way {
                    self.hit("transition", transition);
                }
            }
            self.hit("state", report.config.state);
        } else if process.step.is_none() {
            self.under_way = None;
        }
        let used_now = self.model.run.as_ref().is_some_and(|run| run.since == self.world.mono());
        if used_now && self.late.is_none() && self.nature() != Nature::Good && self.model.fresh {
            self.model.fresh = false;
            self.apply_nature();
        }
    }
}
