//! Transitions as straight programs: a sequence of reads and durable writes that reads top to bottom,
//! although each step is performed outside of core and may be the last before the power fails.
//!
//! A program is a function over `Steps`. A step whose outcome is not known yet suspends it (`?`); when the
//! outcome arrives, the function runs again from its top over all outcomes so far. So a program must be a
//! pure function of its inputs and these outcomes, and all its other effects are part of its result.

use crate::config::records::{Read, StateFile};

/// Whether a write, or a setting aside, is durable; the text is the reason if not.
pub(crate) type Durable = Result<(), String>;

/// The result of a program, unless it waits for a step.
pub(crate) type Suspendable<T> = Result<T, Suspend>;

/// The program waits for this step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspend(pub Step);

/// The outcomes so far, which a program reads from its first step on.
pub(crate) struct Steps<'a> {
    outcomes: std::slice::Iter<'a, Outcome>,
}

impl<'a> Steps<'a> {
    /// For one run of the program.
    pub(crate) fn over(outcomes: &'a [Outcome]) -> Self {
        Self { outcomes: outcomes.iter() }
    }

    /// Reads a file.
    pub(crate) fn read(&mut self, file: StateFile) -> Suspendable<Read> {
        match self.outcomes.next() {
            Some(Outcome::Read(read)) => Ok(read.clone()),
            Some(Outcome::Done(_)) => Ok(Read::Unreadable("the outcome is of another kind of step".into())),
            None => Err(Suspend(Step::Read(file))),
        }
    }

    /// Writes a file; the inner result says whether it is durable.
    pub(crate) fn write(&mut self, file: StateFile, content: Vec<u8>) -> Suspendable<Durable> {
        self.done(|| Step::Write(file, content))
    }

    /// Sets a file aside.
    pub(crate) fn set_aside(&mut self, file: StateFile) -> Suspendable<Durable> {
        self.done(|| Step::SetAside(file))
    }

    fn done(&mut self, step: impl FnOnce() -> Step) -> Suspendable<Durable> {
        match self.outcomes.next() {
            Some(Outcome::Done(done)) => Ok(done.clone()),
            Some(Outcome::Read(_)) => Ok(Err("the outcome is of another kind of step".into())),
            None => Err(Suspend(step())),
        }
    }
}

/// One step on disk, performed outside of core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read a file.
    Read(StateFile),
    /// Write it durably: temp file, fsync, rename, fsync of the directory.
    Write(StateFile, Vec<u8>),
    /// Rename it to `<name>.corrupt-<n>`. The list of bad configs also keeps its name until it is replaced: a
    /// missing list means that somebody removed it.
    SetAside(StateFile),
}

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The result of reading.
    Read(Read),
    /// Whether a write or a setting aside is durable; the text is the reason if not.
    Done(Result<(), String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(steps: &mut Steps) -> Suspendable<&'static str> {
        if steps.read(StateFile::Current)? == Read::Absent {
            return Ok("nothing there");
        }
        Ok(if steps.write(StateFile::Startups, b"x".to_vec())?.is_ok() { "written" } else { "not written" })
    }

    #[test]
    fn program_suspends_at_each_step_and_resumes() {
        let mut outcomes = vec![];
        let run = |outcomes: &[Outcome]| program(&mut Steps::over(outcomes));
        assert_eq!(run(&outcomes), Err(Suspend(Step::Read(StateFile::Current))));
        assert_eq!(run(&[Outcome::Read(Read::Absent)]), Ok("nothing there"));
        outcomes.push(Outcome::Read(Read::Content(vec![])));
        assert_eq!(run(&outcomes), Err(Suspend(Step::Write(StateFile::Startups, b"x".to_vec()))));
        outcomes.push(Outcome::Done(Err("disk full".into())));
        assert_eq!(run(&outcomes), Ok("not written"));
    }
}
