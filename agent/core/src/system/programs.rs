//! The programs of a machine without slots, seen as slots: the running one, and the one beside it.
//!
//! Always holds: the packaged program takes the part of the factory's system. No update brought it, so it has
//! a name in place of a digest; whichever version a person installs, it is the way back from the first
//! program of an update. Leaves to others: which program a start runs (`starter`), and the files.

use super::starter::{Chosen, Record};
use super::{By, Entry, Failure, Kind, Slot, Slots};
use crate::config::digest::Digest;

/// The packaged program.
#[must_use]
pub fn packaged() -> Digest {
    Digest::of(b"packaged")
}

/// The programs by the record of the starter. `chosen`: the digest of the program that runs, if that is not
/// the packaged one. `place` is the processor, and `version` that of the running program.
#[must_use]
pub fn slots(record: &Record, chosen: Option<&str>, place: &str, version: &str) -> Slots {
    let slot = |digest: Option<Digest>, entry| Slot { digest, entry, ..Slot::default() };
    let of = |found: Option<Chosen>, entry| slot(found.as_ref().and_then(Chosen::manifest), entry);
    let tried = record.tried();
    let runs_tried = chosen.is_some() && tried.as_ref().map(|tried| tried.digest.as_str()) == chosen;
    let given_up = |found: Chosen, is_silence: bool, why: &str| Slot {
        failure: Some(Failure { is_silence, text: why.to_owned() }),
        ..of(Some(found), Entry::Counted { left: 0, is_good: false })
    };
    // the program before the one that runs: it needs no entry to start
    let before = |entry| slot(record.used().map_or_else(|| Some(packaged()), |used| used.manifest()), entry);
    let runs_used = chosen.is_some_and(|runs| record.used().is_some_and(|used| used.digest == runs));
    let other = if runs_tried {
        match record.held() {
            // unseen, it would be fetched and installed for ever
            Some(held) if record.is_good() => of(Some(held), Entry::Absent),
            _ => before(Entry::Uncounted),
        }
    } else if tried.is_some() {
        of(tried, Entry::Counted { left: record.tries_left(), is_good: record.is_good() })
    } else if let Some(held) = record.held() {
        of(Some(held), Entry::Absent)
    } else if let Some((failed, reason)) = record.failed() {
        match reason {
            // the file's fault, which is fetched again
            "gone" | "damaged" => Slot::default(),
            // perhaps the network or the power was away
            "silent" => given_up(failed, true, "its tries ended without contact"),
            _ => given_up(failed, false, reason),
        }
    } else if let Some(overruled) = record.overruled() {
        given_up(overruled, false, "another package was installed")
    } else if chosen.is_some() && !runs_used {
        // the trial of the program that runs was left
        Slot { by: By::Revert, ..before(Entry::Counted { left: 1, is_good: true }) }
    } else {
        Slot::default()
    };
    let digest = match chosen {
        Some(chosen) => Digest::parse(chosen),
        None => Some(packaged()),
    };
    Slots {
        kind: Kind::Agent,
        place: place.to_owned(),
        running: Slot { version: version.to_owned(), ..slot(digest, Entry::Uncounted) },
        other,
        is_on_trial: runs_tried && !record.is_good(),
    }
}

impl Record {
    /// The program with this digest is started from the next start on; `package` is the SHA-256 of the
    /// packaged one.
    ///
    /// # Errors
    /// It is not installed.
    pub fn arm(&mut self, digest: Digest, package: &str) -> Result<(), String> {
        let is_it = |chosen: &Chosen| chosen.manifest() == Some(digest);
        let is_before = self.used().map_or(digest == packaged(), |used| is_it(&used));
        match self.held().filter(is_it) {
            Some(held) => self.try_it(&held, package),
            None if is_before => self.leave_trial(),
            None => return Err(format!("program {digest} is not installed")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::starter::Reason;
    use super::*;

    #[test]
    fn programs_are_reported_as_slots() {
        let chosen = |name: char| Chosen {
            program: name.to_string().repeat(64),
            digest: Digest::of(name.to_string().as_bytes()).to_string(),
        };
        let (used, tried) = (chosen('a'), chosen('b'));
        let digest = |chosen: &Chosen| Digest::parse(&chosen.digest);
        let check =
            |record: &Record, runs: Option<&Chosen>, other: Option<&Chosen>, entry: Entry, on_trial: bool| {
                let found = slots(record, runs.map(|runs| runs.digest.as_str()), "armv7", "2");
                assert_eq!(found.running.digest, runs.map_or_else(|| Some(packaged()), digest));
                let beside = match entry {
                    Entry::Uncounted => Some(other.map_or_else(packaged, |other| digest(other).unwrap())),
                    _ => other.and_then(digest),
                };
                assert_eq!((found.other.digest, found.other.entry), (beside, entry));
                assert_eq!(found.is_on_trial, on_trial);
                found.other.failure.map(|failure| failure.text)
            };
        let mut record = Record::default();
        assert_eq!(check(&record, None, None, Entry::Absent, false), None);
        record.hold(&used);
        check(&record, None, Some(&used), Entry::Absent, false);
        record.try_it(&used, "package");
        check(&record, None, Some(&used), Entry::Counted { left: 3, is_good: false }, false);
        check(&record, Some(&used), None, Entry::Uncounted, true);
        record.note_good();
        check(&record, Some(&used), None, Entry::Uncounted, false);
        let mut beside = record.clone();
        beside.hold(&tried);
        check(&beside, Some(&used), Some(&tried), Entry::Absent, false);
        record.promote(digest(&used).unwrap());
        check(&record, Some(&used), None, Entry::Absent, false);
        record.try_it(&tried, "package");
        check(&record, Some(&tried), Some(&used), Entry::Uncounted, true);
        record.fail(&tried, Reason::Crash);
        let failed = Entry::Counted { left: 0, is_good: false };
        assert_eq!(check(&record, Some(&used), Some(&tried), failed, false).as_deref(), Some("crash"));
        record.fail(&tried, Reason::Silent);
        let silent = check(&record, Some(&used), Some(&tried), failed, false);
        assert_eq!(silent.as_deref(), Some("its tries ended without contact"));
        assert!(slots(&record, None, "armv7", "2").other.failure.is_some_and(|failure| failure.is_silence));
        record.fail(&tried, Reason::Damaged);
        check(&record, Some(&used), None, Entry::Absent, false);
    }

    #[test]
    fn armed_program_is_the_ordered_one() {
        let chosen = |name: char| Chosen {
            program: name.to_string().repeat(64),
            digest: Digest::of(name.to_string().as_bytes()).to_string(),
        };
        let (used, tried) = (chosen('a'), chosen('b'));
        let digest = |chosen: &Chosen| Digest::parse(&chosen.digest).unwrap();
        let mut record = Record::default();
        record.try_it(&used, "package");
        record.note_good();
        record.promote(digest(&used));
        record.hold(&tried);
        assert!(record.arm(Digest::of(b"another"), "package").is_err());
        assert_eq!((record.held(), record.tried()), (Some(tried.clone()), None));
        record.arm(digest(&tried), "package").unwrap();
        assert_eq!((record.held(), record.tried()), (None, Some(tried.clone())));
        record.note_good();
        // the way back
        record.arm(digest(&used), "package").unwrap();
        assert_eq!((record.used(), record.tried(), record.is_good()), (Some(used.clone()), None, false));
        let other = slots(&record, Some(&tried.digest), "armv7", "2").other;
        assert_eq!((other.digest, other.by), (Some(digest(&used)), By::Revert));
        assert_eq!(other.entry, Entry::Counted { left: 1, is_good: true }, "it needs a restart alone");
        assert_eq!(slots(&record, Some(&used.digest), "armv7", "2").other, Slot::default(), "after that");
    }

    #[test]
    fn packaged_program_is_the_way_back_from_the_first_one() {
        let tried = Chosen { program: "b".repeat(64), digest: Digest::of(b"b").to_string() };
        let mut record = Record::default();
        record.hold(&tried);
        record.arm(Digest::of(b"b"), "package").unwrap();
        assert!(record.arm(Digest::of(b"c"), "package").is_err());
        record.note_good();
        record.arm(packaged(), "package").unwrap();
        assert_eq!((record.used(), record.tried()), (None, None));
        let other = slots(&record, Some(&tried.digest), "armv7", "2").other;
        let entry = Entry::Counted { left: 1, is_good: true };
        assert_eq!((other.digest, other.by, other.entry), (Some(packaged()), By::Revert, entry));
        let after = slots(&record, None, "armv7", "2");
        assert_eq!((after.running.digest, after.other), (Some(packaged()), Slot::default()));
    }
}
