//! File steps of a run: performed, refused, stopped in the middle, or falsified by a mutant.

use super::*;

impl Simulation {
    pub(super) fn do_step(&mut self) -> Check {
        let Some(step) = self.world.process.as_ref().and_then(|process| process.step.clone()) else {
            return Ok(());
        };
        let is_write = matches!(step, Step::Write(..));
        let changes = !matches!(step, Step::Read(_));
        let about = about(&step);
        let faulty = self.mode == Mode::All && !self.settling;
        // rare transitions are cut often, because otherwise their cuts would never be tested
        let rare = self.under_way.is_some_and(|transition| RARE.contains(&transition));
        let chance = if rare && self.random.percent(20) {
            *self.random.pick(&[2, 3, 7])
        } else {
            self.random.below(100)
        };
        let chance = self.mutants_chance(&step).unwrap_or(chance);
        match chance {
            0 if faulty => {
                self.trace(|| format!("  about to {about}"));
                self.hit("fault", "crash before a step");
                self.die_by_chance();
                return self.observe();
            }
            1 if faulty => {
                self.trace(|| format!("  {about}, not answered yet"));
                self.hit("fault", "crash after a step");
                self.perform(&step);
                self.die_by_chance();
                return self.observe();
            }
            2 if self.may_cut() => {
                self.trace(|| format!("  about to {about}"));
                self.hit("fault", "cut before a step");
                self.cut_within();
                return self.observe();
            }
            3 if self.may_cut() => {
                self.trace(|| format!("  {about}, not answered yet"));
                self.hit("fault", "cut after a step");
                self.perform(&step);
                self.cut_within();
                return self.observe();
            }
            4 | 5 if faulty && changes => {
                self.hit("fault", "write error");
                self.trace(|| format!("  {about}: fails"));
                return self.step_done(step, Outcome::Done(Err("input/output error".into())));
            }
            6 if faulty && is_write => {
                self.hit("fault", "error though written");
                self.trace(|| format!("  {about}: done, but its name could not be made durable"));
                self.write_until(Operation::Rename, &step);
                self.model.tampered = true;
                return self.step_done(step, Outcome::Done(Err("input/output error".into())));
            }
            7 | 8 if self.may_cut() && is_write => {
                let stage = *self.random.pick(&WITHIN_A_WRITE);
                self.trace(|| format!("  in the middle of: {about} ({stage:?})"));
                self.hit("fault", "cut in the middle of a write");
                self.write_until(stage, &step);
                self.cut_within();
                return self.observe();
            }
            9 if faulty && is_write => {
                let stage = *self.random.pick(&WITHIN_A_WRITE);
                let stage =
                    if self.mutant == Some(Mutant::NamesNotSettled) { Operation::Rename } else { stage };
                self.trace(|| format!("  in the middle of: {about} ({stage:?})"));
                self.hit("fault", "crash in the middle of a write");
                self.write_until(stage, &step);
                self.die_by_chance();
                return self.observe();
            }
            _ => {}
        }
        let outcome = self.perform(&step);
        self.trace(|| format!("  {about}: {}", short(&outcome)));
        self.step_done(step, outcome)
    }

    pub(super) fn chance_of_a_stall(&self) -> u64 {
        if self.mutant == Some(Mutant::StallSilences) { 100 } else { 20 }
    }

    /// The disk does not respond for an hour, and then late, with an error, or after a power cut; everything
    /// else is prompt. If the process dies meanwhile, its end is recorded outside the disk, and lost with the
    /// power.
    pub(super) fn stall(&mut self) -> Check {
        self.hit("fault", "disk stalled for an hour");
        self.trace(|| "THE DISK STALLS".into());
        let is_heard =
            self.link() && self.world.process.as_ref().is_some_and(|process| process.used.is_some());
        (self.stalled, self.network) = (true, Network::Fine);
        self.world.list_again();
        self.prompt(STALL_NOTICED, false)?;
        self.handle("DiskStalled", Event::DiskStalled(true));
        self.observe()?;
        self.prompt(LONG_FAULT, false)?;
        self.stalled = false;
        if self.world.exited() {
            return Ok(());
        }
        if is_heard && self.link() && self.world.hub.node().is_some() {
            self.invariant_a_stalled_disk_silences_nothing()?;
        }
        if self.random.percent(20) {
            self.hit("fault", "disk stalled while an end was recorded");
            self.die_by_chance();
            // its end was recorded outside the disk, and the power cut removes that record
            self.world.board.forget_exit();
            self.model.doubt_last_crash();
            self.cut();
            return self.observe();
        }
        self.handle("DiskStalled", Event::DiskStalled(false));
        self.observe()?;
        let Some(step) = self.world.process.as_ref().and_then(|process| process.step.clone()) else {
            return Ok(());
        };
        match self.random.below(4) {
            0 if !matches!(step, Step::Read(_)) => {
                self.step_done(step, Outcome::Done(Err("input/output error".into())))
            }
            1 => {
                let stage = *self.random.pick(&WITHIN_A_WRITE);
                self.write_until(stage, &step);
                self.cut_within();
                self.observe()
            }
            _ => self.do_step(),
        }
    }

    /// The events by which a mutant is noticed would be rare by chance.
    pub(super) fn mutants_chance(&mut self, step: &Step) -> Option<u64> {
        match (self.mutant?, step) {
            // a start is recorded, and the power fails before the evidence is consumed
            (Mutant::RunsNotCounted, Step::Write(StateFile::Startups, _)) if self.model.run.is_none() => {
                self.random.percent(20).then_some(3)
            }
            // a process is killed between a rename and its sync, and the next one loses power after it has
            // read
            (Mutant::NamesNotSettled, Step::Write(..)) => self.random.percent(10).then_some(9),
            (Mutant::NamesNotSettled, Step::Read(_)) => self.random.percent(10).then_some(3),
            _ => None,
        }
    }

    pub(super) fn step_done(&mut self, step: Step, outcome: Outcome) -> Check {
        self.world.process.as_mut().expect("it runs").step = None;
        self.world.seen.push(Seen::Performed(step, outcome.clone()));
        self.handle("StepDone", Event::StepDone(outcome));
        self.observe()
    }

    /// A durable write that is stopped at this operation.
    pub(super) fn write_until(&mut self, stage: Operation, step: &Step) {
        if let Step::Write(file, bytes) = step {
            let path = file.path(&self.world.version);
            self.world.disk.write_until(stage, file, &path, bytes);
        }
    }

    pub(super) fn handle(&mut self, name: &'static str, event: Event) {
        self.hit("event", name);
        self.events += 1;
        self.world.handle(event);
    }

    /// Performs a step on the disk, correctly or as the mutant does.
    pub(super) fn perform(&mut self, step: &Step) -> Outcome {
        let starting = self.model.run.is_none();
        let lost = match (self.mutant, step) {
            (Some(Mutant::StartNotRecorded), Step::Write(StateFile::Startups, _)) => starting,
            (Some(Mutant::VerdictNotWritten), Step::Write(StateFile::BadConfigs, _)) => true,
            (Some(Mutant::AssignmentNotWritten), Step::Write(StateFile::Current, _)) => true,
            (Some(Mutant::CheckpointNotWritten), Step::Write(StateFile::Checkpoint(_), _)) => true,
            (Some(Mutant::PromotionNotWritten), Step::Write(StateFile::LastKnownGood, _)) => true,
            (Some(Mutant::ProgressNotWritten), Step::Write(StateFile::Startups, _)) => !starting,
            _ => false,
        };
        if lost && self.world.disk.fault == WriteFault::None {
            return Outcome::Done(Ok(()));
        }
        let outcome = self.world.perform(step);
        if self.settling
            && let (Some(Mutant::SavesFail), Step::Write(StateFile::Startups, bytes)) = (self.mutant, step)
        {
            // the bytes reached the flash
            self.model.writes += 1;
            self.model.bytes_written += bytes.len() as u64;
            self.model.tampered = true;
            return Outcome::Done(Err("input/output error".into()));
        }
        match (self.mutant, step, &outcome) {
            (Some(Mutant::VerdictsForgotten), Step::Read(StateFile::BadConfigs), _) => {
                Outcome::Read(Read::Absent)
            }
            (Some(Mutant::CurrentIsWhatIsActive), Step::Read(StateFile::Current), _)
                if self.world.bad_configs().as_object().is_some_and(|bad| !bad.is_empty()) =>
            {
                let good = self.world.disk.read("last-known-good");
                if matches!(good, Read::Content(_)) { Outcome::Read(good) } else { outcome }
            }
            (
                Some(Mutant::CountsWithoutOwner),
                Step::Read(StateFile::Startups),
                Outcome::Read(Read::Content(bytes)),
            ) => {
                let assigned = self.recorded("current");
                let mut record: Value = serde_json::from_slice(bytes).unwrap_or_default();
                let last = text(&record, "/last").to_owned();
                if let (Some(config), true) = (assigned, record["records"][&last].is_object()) {
                    let mut counts = record["records"][&last].take();
                    counts["id"] = json!(config.id.to_string());
                    let payload = config.payload.to_string();
                    record["records"] = json!({payload.clone(): counts});
                    record["last"] = json!(payload);
                }
                Outcome::Read(Read::Content(record.to_string().into_bytes()))
            }
            (Some(Mutant::NeverForgiven), Step::Read(StateFile::Startups), _) => {
                self.returning.take().map_or(outcome, |bytes| Outcome::Read(Read::Content(bytes)))
            }
            _ => outcome,
        }
    }
}
