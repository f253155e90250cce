//! How the agent of a run ends: exits, crashes, power cuts, and the effects of a config.

use super::*;

impl Simulation {
    pub(crate) fn may_cut(&self) -> bool {
        !self.settling && (self.mode == Mode::All || self.cuts_left > 0)
    }

    /// The board's record shows that the config in use runs in this boot. A run that could not be recorded
    /// leaves no trace: its crash counts only if it happens in the same boot as the last recorded run.
    pub(super) fn open(&self) -> bool {
        let config = self.model.run.as_ref().and_then(|run| run.config);
        config.is_some_and(|config| self.is_open(&self.world.startups(), config))
    }

    /// Whether the counts show that this config runs in this boot.
    pub(crate) fn is_open(&self, startups: &Value, config: Config) -> bool {
        startups["records"][config.payload.to_string()]["open"] == json!(self.world.boot_id())
    }

    pub(super) fn leave(&mut self, crashed: bool) {
        let open = self.open();
        let startups = self.world.startups();
        let records = startups["records"].as_object().into_iter().flatten();
        let left_open = records.filter(|(_, record)| record["open"].is_string());
        let left_open: Vec<Digest> = left_open.filter_map(|(name, _)| Digest::parse(name)).collect();
        self.model.ends(self.world.mono(), &self.designs, crashed, open, &left_open);
        self.late = None;
        if let Some(process) = &mut self.world.process {
            self.orphans.append(&mut process.requests);
            self.orphans.truncate(4);
        }
    }

    pub(super) fn cut(&mut self) {
        if !self.may_cut() {
            return;
        }
        self.cuts_left = self.cuts_left.saturating_sub(1);
        self.hit("end", "power cut");
        self.cut_power();
        self.trace(|| "POWER CUT".into());
    }

    /// A power cut while a transition is under way.
    pub(super) fn cut_within(&mut self) {
        if let Some(transition) = self.under_way {
            self.hit("cut within", transition);
        }
        self.cut();
    }

    /// The power fails and comes back: a part of the unsynced data is lost.
    pub(super) fn power_goes(&mut self) {
        if self.world.board.previous_run().kernel_panic {
            // the kernel's record stays until an agent notes that it has seen it
            self.model.evidence_stays();
        }
        let told = std::mem::take(&mut self.model.told_last);
        let before: BTreeMap<&String, Option<Vec<u8>>> =
            told.keys().map(|path| (path, self.world.disk.content(path))).collect();
        let startups = StateFile::Startups.path(&self.world.version);
        let counts = self.world.disk.content(&startups);
        let losses = self.world.power_cut_with(Loss::Chance(self.random.number()));
        for (name, count) in [
            ("lost names", losses.renames_lost),
            ("names that nobody acknowledged", losses.renames_kept),
            ("torn files", losses.files_torn),
        ] {
            if count > 0 {
                self.hit("after a cut", name);
                self.trace(|| format!("  after the cut: {count} {name}"));
            }
        }
        if !self.world.disk.is(&startups, counts.as_deref()) {
            // an unacknowledged write is gone, and with it the record that the crashed run was open
            self.model.doubt_last_crash();
        }
        for (path, told) in &told {
            let left = self.world.disk.content(path);
            // an unacknowledged write may have replaced the content that the agent knows
            if left != *told && left != before[path] {
                let under_a_write = if before[path] == *told { "" } else { " (under its next write)" };
                self.taken_back.push(format!("{path}{under_a_write}"));
            }
        }
        if !self.has_clock {
            self.world.board.set_wall(0);
            self.hit("fault", "boot without a clock");
        }
    }

    pub(super) fn cut_power(&mut self) {
        self.leave(false);
        self.power_goes();
        match self.mutant {
            Some(Mutant::CutResetsRunning) => {
                let mut record = self.world.startups();
                if record.is_object() {
                    for counts in
                        record["records"].as_object_mut().into_iter().flat_map(|all| all.values_mut())
                    {
                        counts["ran_ms"] = json!(0);
                    }
                    let path = StateFile::Startups.path(&self.world.version);
                    self.world.disk.put(&path, record.to_string().as_bytes());
                }
            }
            Some(Mutant::CutCountsAsCrash) => self.world.board.hardware_reset(),
            _ => {}
        }
    }

    pub(crate) fn exit(&mut self) {
        let why = self.world.process.as_ref().and_then(|process| process.exit.clone()).unwrap_or_default();
        self.trace(|| format!("EXIT: {why}"));
        self.hit("end", "exit");
        self.leave(false);
        self.world.exit();
    }

    /// The process ends in a way that counts.
    pub(super) fn crash(&mut self, how: &'static str) {
        self.hit("end", how);
        self.leave(true);
        let ending = |world: &World, result: &str| world.ending(result);
        match how {
            "unrecorded" => self.world.die_unrecorded(),
            "exit code" => self.world.crash(),
            "signal" => self.world.end(Exit { exit_status: "SEGV".into(), ..ending(&self.world, "signal") }),
            "core dump" => {
                self.world.end(Exit { exit_status: "ABRT".into(), ..ending(&self.world, "core-dump") })
            }
            "out of memory" => self.world.end(ending(&self.world, "oom-kill")),
            "watchdog" => {
                self.world.end(Exit { stalled: vec!["renew".into()], ..ending(&self.world, "watchdog") });
            }
            "start timeout" => {
                self.world.end(Exit { was_ready: false, stop_asked: true, ..ending(&self.world, "timeout") })
            }
            "crash, then reboot" => {
                self.world.crash();
                self.power_goes();
            }
            "hardware reset" => {
                self.power_goes();
                self.world.board.consume_evidence();
                self.world.board.hardware_reset();
            }
            "kernel panic" => {
                self.power_goes();
                self.world.board.consume_evidence();
                self.world.board.kernel_panic();
            }
            other => panic!("no such end: {other}"),
        }
        // a clean end in the supervisor's record hides the crash from the next start
        if self.mutant == Some(Mutant::CrashNotCounted) {
            let boot = self.world.counts()["open"].as_str().unwrap_or_default().to_owned();
            let exit = Exit { boot_id: boot, stop_asked: true, ..ending(&self.world, "success") };
            self.world.board.record_exit(exit);
        }
        self.trace(|| format!("END: {how}"));
    }

    pub(super) fn die_by_chance(&mut self) {
        let ends =
            ["unrecorded", "exit code", "signal", "core dump", "out of memory", "watchdog", "start timeout"];
        let how = *self.random.pick(&ends);
        self.crash(how);
    }

    /// The agent ends for its own reasons or for those of the world.
    pub(super) fn end_by_chance(&mut self) -> Check {
        match self.random.below(8) {
            0..=2 => {
                self.trace(|| "asked to STOP".into());
                self.world.process.as_mut().expect("it runs").stop_asked = true;
                self.handle("Stop", Event::Stop("asked to stop".into()));
                if self.random.percent(50) {
                    self.hit("end", "stop");
                    self.observe()?;
                    self.prompt(Duration::ZERO, false)?;
                } else if self.random.percent(30) && self.mode == Mode::All {
                    self.hit("end", "stop killed at its time limit");
                    self.leave(false);
                    self.world.end(Exit { stop_asked: true, ..self.world.ending("timeout") });
                }
            }
            3 | 4 => self.cut(),
            5 if self.mode == Mode::All => {
                self.hit("end", "watchdog, only the disk");
                self.trace(|| "END: the disk stood still".into());
                self.leave(false);
                self.world.end(Exit { stalled: vec!["disk".into()], ..self.world.ending("watchdog") });
            }
            6 if self.mode == Mode::All => self.crash("crash, then reboot"),
            _ if self.mode == Mode::All => self.die_by_chance(),
            _ => {}
        }
        self.observe()
    }

    /// The immediate effect of the config in use on the agent.
    pub(super) fn apply_nature(&mut self) {
        self.spared = false;
        match self.nature() {
            Nature::Good | Nature::LosesContact | Nature::Unparsable | Nature::Invalid => {}
            Nature::CrashesAtOnce => {
                let how = *self.random.pick(&["exit code", "signal", "core dump", "unrecorded"]);
                self.crash(how);
            }
            Nature::CrashesAfter(tenths) => {
                let used = self.world.process.as_ref().and_then(|process| process.used);
                let design = used.and_then(|pods| with_pods(&self.designs, pods));
                let settled = Duration::from_millis(design.map_or(0, Design::settled_ms));
                self.late = Some(self.world.mono() + settled * tenths / 10);
            }
            Nature::Hangs => self.crash("watchdog"),
            Nature::EatsMemory => self.crash("out of memory"),
            Nature::ResetsBoard => self.crash("hardware reset"),
            Nature::Panics => self.crash("kernel panic"),
            Nature::RebootsSilently => {
                self.hit("end", "silent reboot");
                let config = self.model.run.as_ref().and_then(|run| run.config);
                self.spared = self.settling && config.is_some_and(|config| self.is_proven(config));
                self.cut_power();
                self.trace(|| "END: a silent reboot".into());
            }
        }
    }
}
