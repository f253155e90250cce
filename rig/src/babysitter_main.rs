//! `kedge-babysitter`: runs the agent on a machine without systemd as `kedge.service` would.
//!
//! Owns the command line; the work is [`kedge_rig::babysitter`]'s. Ends on a signal (SIGTERM, SIGINT), after
//! the service was stopped and its end recorded.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kedge_rig::babysitter::{Babysitter, Phase, Unit};
use kedge_rig::signals;

const HELP: &str = "\
kedge-babysitter [OPTIONS] -- PROGRAM [ARGUMENTS...]

Runs a service as systemd would run kedge.service: notify socket, watchdog, restart, and after every end
PROGRAM record-exit. For machines without systemd.

  --watchdog SECONDS  longest silence between two pings; 0: no watchdog (default 30)
  --run-dir DIR       becomes $RUNTIME_DIRECTORY; made if missing
  --state-dir DIR     becomes $STATE_DIRECTORY; made if missing
  --no-record         run nothing after an end
  --version           print the version
";

const VERSION: &str = kedge_platform::program_version!();

/// What a command line asks for.
enum Asked {
    Text(String),
    Run(Box<Unit>),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kedge-babysitter: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let unit = match parse(lexopt::Parser::from_env())? {
        Asked::Text(text) => {
            print!("{text}");
            return Ok(());
        }
        Asked::Run(unit) => *unit,
    };
    eprintln!("kedge-babysitter {VERSION}");
    let stop_limit = unit.limits.stop * 3;
    let asked_to_stop = signals::listen()?;
    let babysitter = Babysitter::start(unit)?;
    asked_to_stop.recv()?;
    babysitter.stop();
    babysitter.wait_until("its stop", stop_limit, |state| state.phase == Phase::Stopped)?;
    Ok(())
}

fn parse(mut parser: lexopt::Parser) -> Result<Asked, lexopt::Error> {
    use lexopt::prelude::*;
    let mut unit = Unit::new("service", Vec::new());
    unit.inherit_environment = true;
    let mut is_recording = true;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("watchdog") => {
                let secs = parser.value()?.parse()?;
                unit.limits.watchdog = (secs > 0).then(|| Duration::from_secs(secs));
            }
            Long("run-dir") => unit.run_dir = Some(PathBuf::from(parser.value()?)),
            Long("state-dir") => unit.state_dir = Some(PathBuf::from(parser.value()?)),
            Long("no-record") => is_recording = false,
            Long("help") | Short('h') => return Ok(Asked::Text(HELP.into())),
            Long("version") | Short('V') => return Ok(Asked::Text(format!("kedge-babysitter {VERSION}\n"))),
            Value(program) => {
                unit.record_command = is_recording.then(|| vec![program.clone(), "record-exit".into()]);
                unit.command.push(program);
                unit.command.extend(parser.raw_args()?);
            }
            other => return Err(other.unexpected()),
        }
    }
    if unit.command.is_empty() {
        return Err("no program given; see --help".into());
    }
    Ok(Asked::Run(Box::new(unit)))
}
