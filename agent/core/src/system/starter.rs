//! Which program of the agent runs on a machine without slots: the packaged one, or one that the
//! configuration asked for. The packaged program decides it at each start, before anything else.
//!
//! Always holds: a start of a program on trial is counted before it begins, so three starts that end without
//! its report bring back the program before it. Each way ends at the packaged program, which nothing here
//! changes. Another package installed by a person ends all other choices. Fields of the record that this
//! version does not know are kept, because the packaged program may be years older than the one it starts.
//!
//! Leaves to others: reading, checking and starting the files (`agent/src/system/starter.rs`); when a program
//! is good, and what becomes of one that failed (the actor).

use crate::config::digest::Digest;
use crate::config::judge::{Exit, PreviousRun};
use serde_json::{Map, Value, json};

/// Starts of a program on trial, as many as a new slot has tries.
const TRIES: u64 = 3;
/// Starts in a row that a good program may end before it is ready, as a good slot's.
const GOOD_TRIES: u64 = 5;
const VERSION: &str = "kedge.dev/system-v1";
/// Exit codes by which an agent itself refuses to start: another program would refuse as well.
const REFUSALS: [&str; 2] = ["1", "78"];

/// The record `system/agent`, below `--root-dir`.
pub const RECORD: &str = "system/agent";
/// Most bytes of it.
pub const RECORD_BYTES: usize = 4096;

/// Why a program is not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Each of its tries ended by a crash, or it crashed five times in a row before it was ready.
    Crash,
    /// Its tries are used up, and not each has left evidence of a crash.
    Silent,
    /// Its file is not there.
    Gone,
    /// Its file has another content.
    Damaged,
    /// The kernel does not start it.
    Exec,
    /// Its start cannot be counted, because the record cannot be written.
    Unrecorded,
}

impl Reason {
    /// The word in the record.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Silent => "silent",
            Self::Gone => "gone",
            Self::Damaged => "damaged",
            Self::Exec => "exec",
            Self::Unrecorded => "unrecorded",
        }
    }
}

/// A program other than the packaged one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The SHA-256 of its file, in hexadecimal digits: it is also the name of its directory.
    pub program: String,
    /// The digest of the manifest that brought it, as the configuration names it.
    pub digest: String,
}

impl Chosen {
    /// The digest of its manifest.
    pub(super) fn manifest(&self) -> Option<Digest> {
        Digest::parse(&self.digest)
    }

    fn of(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        let chosen = Self { program: text("program")?, digest: text("digest").unwrap_or_default() };
        // it becomes a path
        let is_digest = chosen.program.len() == 64
            && chosen.program.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_digest.then_some(chosen)
    }

    fn value(&self) -> Value {
        json!({ "program": self.program, "digest": self.digest })
    }
}

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record(Map<String, Value>);

impl Record {
    /// # Errors
    /// The content is not a record, or has a later format.
    pub fn read(content: &[u8]) -> Result<Self, String> {
        let value: Value = kedge_api::read::from_slice(content).map_err(|error| error.to_string())?;
        match value {
            Value::Object(fields) if fields.get("apiVersion").is_some_and(|found| found == VERSION) => {
                Ok(Self(fields))
            }
            _ => Err("it is no record of agents in the known format".to_owned()),
        }
    }

    /// As it is written.
    pub fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(&self.0).unwrap_or_default();
        text.push(b'\n');
        text
    }

    fn chosen(&self, key: &str) -> Option<Chosen> {
        self.0.get(key).and_then(Chosen::of)
    }

    /// The program that was promoted; `None`: the packaged one.
    pub fn used(&self) -> Option<Chosen> {
        self.chosen("use")
    }

    /// The program on trial, or after it, until it is promoted.
    pub fn tried(&self) -> Option<Chosen> {
        self.chosen("try")
    }

    /// Whether the program on trial has been called good.
    pub fn is_good(&self) -> bool {
        self.0.get("good").is_some_and(|good| *good == true)
    }

    /// The program that is not used any more, and the word for the reason.
    pub fn failed(&self) -> Option<(Chosen, &str)> {
        let failed = self.0.get("failed")?;
        Some((Chosen::of(failed)?, failed.get("reason")?.as_str()?))
    }

    /// The program that ran when a person installed another package.
    pub fn overruled(&self) -> Option<Chosen> {
        self.chosen("overruled")
    }

    /// The program that is installed, and neither tried nor used.
    pub fn held(&self) -> Option<Chosen> {
        self.chosen("held")
    }

    /// How many starts the program on trial has left.
    pub fn tries_left(&self) -> u8 {
        u8::try_from(TRIES.saturating_sub(self.number("starts"))).unwrap_or_default()
    }

    /// This program is installed.
    pub fn hold(&mut self, chosen: &Chosen) {
        self.set("held", chosen.value());
    }

    /// From the next start on this program is tried; `packaged` is the digest of the packaged one.
    pub fn try_it(&mut self, chosen: &Chosen, packaged: &str) {
        self.clear(&["held", "good", "failed", "overruled", "starts", "crashes", "early"]);
        self.set("packaged", packaged.into());
        self.set("try", chosen.value());
    }

    /// The program on trial is good: its starts are not counted any more.
    pub fn note_good(&mut self) {
        self.clear(&["starts", "crashes", "early"]);
        self.set("good", true.into());
    }

    /// The program that this manifest brought was on trial, and takes the place of the one before. Another
    /// one, which may be armed by now, goes on as it is.
    pub fn promote(&mut self, digest: Digest) {
        let tried = self.tried().filter(|tried| tried.manifest() == Some(digest) && self.is_good());
        if let Some(tried) = tried {
            self.clear(&["try", "good", "starts", "crashes", "early"]);
            self.set("use", tried.value());
        }
    }

    /// The program before the one on trial runs from the next start on. That one has no verdict.
    pub fn leave_trial(&mut self) {
        self.clear(&["held", "try", "good", "starts", "crashes", "early"]);
    }

    /// Ends the trial without a verdict, or allows a program again that failed or was overruled. It stays
    /// installed, unless its file was unusable.
    pub fn disarm(&mut self) {
        let unusable = [Reason::Gone, Reason::Damaged, Reason::Exec];
        let failed = self.failed().filter(|(_, reason)| unusable.iter().all(|why| why.word() != *reason));
        let held = self.tried().or(failed.map(|(chosen, _)| chosen)).or_else(|| self.overruled());
        self.clear(&["try", "good", "starts", "crashes", "early", "failed", "overruled"]);
        if let Some(held) = held {
            self.hold(&held);
        }
    }

    fn set(&mut self, key: &str, value: Value) {
        self.0.insert("apiVersion".to_owned(), VERSION.into());
        self.0.insert(key.to_owned(), value);
    }

    fn clear(&mut self, keys: &[&str]) {
        for key in keys {
            self.0.remove(*key);
        }
    }

    fn number(&self, key: &str) -> u64 {
        self.0.get(key).and_then(Value::as_u64).unwrap_or_default()
    }

    fn add(&mut self, key: &str) {
        let number = self.number(key).saturating_add(1);
        self.set(key, number.into());
    }

    /// Counts the end of the previous run, and notes another package. Once for each start, before
    /// [`Self::choose`].
    pub fn begin(&mut self, packaged: &str, boot: &str, previous: &PreviousRun) {
        if self.used().is_none() && self.tried().is_none() {
            return;
        }
        if self.0.get("packaged").and_then(Value::as_str) != Some(packaged) {
            let ran = self.tried().or_else(|| self.used());
            self.clear(&["use", "try", "good", "starts", "crashes", "early", "ran", "failed"]);
            self.set("packaged", packaged.into());
            if let Some(ran) = ran {
                self.set("overruled", ran.value());
            }
            return;
        }
        let runs = self.first().map(|(chosen, _)| chosen.program);
        if runs.is_none() || self.0.get("ran").and_then(Value::as_str) != runs.as_deref() {
            return;
        }
        let exit = previous.exit.as_ref().filter(|exit| exit.boot_id == boot);
        if previous.hardware_reset || previous.kernel_panic || exit.is_some_and(is_crash) {
            self.add("crashes");
        }
        match exit {
            Some(exit) if !exit.was_ready && is_crash(exit) => self.add("early"),
            Some(exit) if exit.was_ready => self.clear(&["early"]),
            _ => {}
        }
    }

    /// The program for this start, which is counted if it is on trial; `None`: the packaged one. Write the
    /// record before the program is started.
    pub fn choose(&mut self, boot: &str) -> Option<Chosen> {
        while let Some((chosen, is_counted)) = self.first() {
            let is_used_up = match is_counted {
                true => self.number("starts") >= TRIES,
                false => self.number("early") >= GOOD_TRIES,
            };
            if is_used_up {
                let is_crash = !is_counted || self.number("crashes") >= TRIES;
                self.fail(&chosen, if is_crash { Reason::Crash } else { Reason::Silent });
                continue;
            }
            if is_counted {
                self.add("starts");
                self.set("boot", boot.into());
            }
            self.set("ran", chosen.program.clone().into());
            return Some(chosen);
        }
        None
    }

    /// The first choice, and whether its starts are counted.
    fn first(&self) -> Option<(Chosen, bool)> {
        let tried = self.tried().map(|tried| (tried, !self.is_good()));
        tried.or_else(|| self.used().map(|used| (used, false)))
    }

    /// This program is not used any more.
    pub fn fail(&mut self, chosen: &Chosen, reason: Reason) {
        let mut failed = chosen.value();
        failed["reason"] = reason.word().into();
        failed["starts"] = self.number("starts").into();
        self.set("failed", failed);
        let key = if self.tried().as_ref() == Some(chosen) { "try" } else { "use" };
        self.clear(&[key, "good", "starts", "crashes", "early", "ran"]);
    }
}

/// Whether a run ended by itself, and not because the agent found that it cannot run here.
fn is_crash(exit: &Exit) -> bool {
    let is_refusal = exit.result == "exit-code" && REFUSALS.contains(&exit.exit_status.as_str());
    !exit.stop_asked && exit.result != "success" && !is_refusal
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGED: &str = "package 1";

    fn chosen(name: char) -> Chosen {
        Chosen { program: name.to_string().repeat(64), digest: manifest(name).to_string() }
    }

    fn manifest(name: char) -> Digest {
        Digest::of(format!("manifest {name}").as_bytes())
    }

    fn ended(result: &str, was_ready: bool) -> PreviousRun {
        let exit =
            Exit { boot_id: "boot".to_owned(), result: result.to_owned(), was_ready, ..Exit::default() };
        PreviousRun { exit: Some(exit), ..PreviousRun::default() }
    }

    fn reset() -> PreviousRun {
        PreviousRun { hardware_reset: true, ..PreviousRun::default() }
    }

    /// One start, with a power cut at its end: the record is read as it was written.
    fn start(record: &mut Record, previous: &PreviousRun) -> String {
        start_with(record, previous, PACKAGED)
    }

    fn start_with(record: &mut Record, previous: &PreviousRun, packaged: &str) -> String {
        record.begin(packaged, "boot", previous);
        let found = record.choose("boot");
        *record = Record::read(&record.text()).unwrap();
        found.map_or_else(String::new, |found| found.program[..1].to_owned())
    }

    /// `a` is used, `b` is tried.
    fn trial() -> Record {
        let mut record = Record::default();
        record.try_it(&chosen('a'), PACKAGED);
        record.note_good();
        record.promote(manifest('a'));
        record.try_it(&chosen('b'), PACKAGED);
        record
    }

    fn failure(record: &Record) -> String {
        record
            .failed()
            .map_or_else(String::new, |(failed, reason)| format!("{} {reason}", &failed.program[..1]))
    }

    /// The programs of some starts after runs that ended so, and the failure then.
    #[track_caller]
    fn check(mut record: Record, ends: &[PreviousRun], programs: &str, failed: &str) {
        let started: Vec<_> = ends.iter().map(|end| start(&mut record, end)).collect();
        assert_eq!((started.join(" ").as_str(), failure(&record).as_str()), (programs, failed));
    }

    #[test]
    fn without_a_choice_the_packaged_program_runs() {
        let mut record = Record::default();
        record.begin(PACKAGED, "boot", &ended("signal", false));
        assert_eq!((record.choose("boot"), record), (None, Record::default()));
    }

    #[test]
    fn trial_ends_after_three_starts() {
        let (none, early, late, asked) = (
            PreviousRun::default(),
            ended("core-dump", false),
            ended("watchdog", true),
            ended("success", true),
        );
        let all = |end: &PreviousRun| [asked.clone(), end.clone(), end.clone(), end.clone()];
        check(trial(), &all(&early), "b b b a", "b crash");
        check(trial(), &all(&late), "b b b a", "b crash");
        check(trial(), &all(&reset()), "b b b a", "b crash");
        check(trial(), &all(&none), "b b b a", "b silent");
        check(trial(), &all(&asked), "b b b a", "b silent");
        check(trial(), &[none, early.clone(), early, asked], "b b b a", "b silent");
    }

    #[test]
    fn end_of_the_program_before_counts_for_no_other() {
        let early = ended("signal", false);
        let mut record = trial();
        start(&mut record, &early);
        assert_eq!((record.number("starts"), record.number("crashes")), (1, 0));
    }

    #[test]
    fn end_in_another_boot_is_no_word() {
        let mut record = trial();
        let mut early = ended("signal", false);
        if let Some(exit) = &mut early.exit {
            exit.boot_id = "an earlier boot".to_owned();
        }
        for program in ["b", "b", "b", "a"] {
            assert_eq!(start(&mut record, &early), program);
        }
        assert_eq!(failure(&record), "b silent");
    }

    #[test]
    fn good_program_ends_by_five_early_ends_in_a_row() {
        let good = || {
            let mut record = trial();
            assert_eq!(start(&mut record, &PreviousRun::default()), "b");
            record.note_good();
            record
        };
        let (early, late) = (ended("signal", false), ended("signal", true));
        let (none, refused) = (PreviousRun::default(), {
            let mut refused = ended("exit-code", false);
            if let Some(exit) = &mut refused.exit {
                exit.exit_status = "78".to_owned();
            }
            refused
        });
        let times = |end: &PreviousRun, times: usize| vec![end.clone(); times];
        check(good(), &times(&early, 5), "b b b b a", "b crash");
        for harmless in [late, none, refused] {
            check(good(), &times(&harmless, 9), "b b b b b b b b b", "");
        }
        let mixed = [times(&early, 4), times(&ended("success", true), 1), times(&early, 4)].concat();
        check(good(), &mixed, "b b b b b b b b b", "");
        let mut used = good();
        used.promote(manifest('b'));
        check(used, &times(&early, 5), "b b b b ", "b crash");
    }

    #[test]
    fn good_program_costs_no_writes() {
        let mut record = trial();
        record.note_good();
        record.promote(manifest('b'));
        start(&mut record, &PreviousRun::default());
        let before = record.clone();
        start(&mut record, &ended("success", true));
        assert_eq!(record, before);
    }

    #[test]
    fn newly_installed_package_runs() {
        for is_good in [false, true] {
            let mut record = trial();
            if is_good {
                record.note_good();
            }
            assert_eq!(start_with(&mut record, &PreviousRun::default(), "package 2"), "");
            assert_eq!(record.overruled(), Some(chosen('b')));
            assert_eq!((record.used(), record.tried(), record.failed()), (None, None, None));
            let before = record.clone();
            assert_eq!(start_with(&mut record, &PreviousRun::default(), PACKAGED), "");
            assert_eq!(record, before, "a choice ends for good");
        }
    }

    #[test]
    fn unusable_file_brings_back_the_one_before() {
        for reason in [Reason::Gone, Reason::Damaged, Reason::Exec] {
            let mut record = trial();
            assert_eq!(start(&mut record, &PreviousRun::default()), "b");
            record.fail(&chosen('b'), reason);
            assert_eq!(record.choose("boot"), Some(chosen('a')));
            assert_eq!(failure(&record), format!("b {}", reason.word()));
            record.fail(&chosen('a'), reason);
            assert_eq!(record.choose("boot"), None);
        }
    }

    #[test]
    fn promotion_uses_the_tried_program() {
        let mut record = trial();
        record.note_good();
        record.promote(manifest('b'));
        assert_eq!((record.used(), record.tried(), record.is_good()), (Some(chosen('b')), None, false));
        record.promote(manifest('b'));
        assert_eq!(record.used(), Some(chosen('b')), "again, after a power cut");
    }

    #[test]
    fn promotion_leaves_another_program_on_trial() {
        let mut record = trial();
        let before = record.clone();
        record.promote(manifest('a'));
        assert_eq!(record, before, "the armed program has not run yet");
        record.promote(manifest('b'));
        assert_eq!(record, before, "nothing has called it good yet");
    }

    #[test]
    fn left_trial_brings_back_the_one_before() {
        let mut record = trial();
        assert_eq!(start(&mut record, &PreviousRun::default()), "b");
        record.note_good();
        record.leave_trial();
        assert_eq!(start(&mut record, &ended("success", true)), "a");
        assert_eq!((record.tried(), record.is_good(), record.failed()), (None, false, None));
    }

    #[test]
    fn disarmed_program_stays_installed() {
        let mut record = trial();
        record.disarm();
        assert_eq!(
            (record.used(), record.tried(), record.held()),
            (Some(chosen('a')), None, Some(chosen('b')))
        );
        record.try_it(&chosen('b'), PACKAGED);
        assert_eq!((record.held(), record.tries_left()), (None, 3));
        start(&mut record, &PreviousRun::default());
        assert_eq!(record.tries_left(), 2);
        for (reason, held) in [(Reason::Silent, Some(chosen('b'))), (Reason::Gone, None)] {
            let mut record = trial();
            record.fail(&chosen('b'), reason);
            record.disarm();
            assert_eq!((record.held(), record.failed()), (held, None));
        }
    }

    #[test]
    fn record_has_the_known_form() {
        let mut record = trial();
        start(&mut record, &PreviousRun::default());
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let text = format!(
            r#"{{"apiVersion":"kedge.dev/system-v1","boot":"boot","packaged":"package 1","ran":"{b}","starts":1,"try":{{"digest":"{}","program":"{b}"}},"use":{{"digest":"{}","program":"{a}"}}}}"#,
            manifest('b'),
            manifest('a')
        );
        let expected: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&record.text()).unwrap(), expected);
    }

    #[test]
    fn unknown_fields_are_kept() {
        let text = r#"{"apiVersion":"kedge.dev/system-v1","later":[1]}"#;
        let mut record = Record::read(text.as_bytes()).unwrap();
        record.try_it(&chosen('a'), PACKAGED);
        let kept: Value = serde_json::from_slice(&record.text()).unwrap();
        assert_eq!(kept["later"], json!([1]));
    }

    #[test]
    fn unreadable_record_chooses_nothing() {
        for text in ["", "[]", "{}", r#"{"apiVersion":"kedge.dev/system-v2"}"#, "\0"] {
            assert!(Record::read(text.as_bytes()).is_err(), "{text}");
        }
        for program in ["../../../tmp", "", "A"] {
            let text = json!({ "apiVersion": VERSION, "packaged": PACKAGED, "try": { "program": program } });
            let mut record = Record::read(text.to_string().as_bytes()).unwrap();
            record.begin(PACKAGED, "boot", &PreviousRun::default());
            assert_eq!(record.choose("boot"), None, "{program}");
        }
    }
}
