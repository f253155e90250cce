//! `kedge-babysitter`: runs the agent on a machine without systemd as `kedge.service` would.
//!
//! Owns the command line and the console lines; the work is [`kedge_rig::babysitter`]'s.
//! Ends when it is asked to (SIGTERM, SIGINT), after the service has been stopped and its end recorded.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use kedge_rig::babysitter::{Babysitter, Unit};
use kedge_rig::service::Phase;
use kedge_rig::signals;

const HELP: &str = "\
kedge-babysitter [OPTIONS] -- PROGRAM [ARGUMENTS...]

Runs a service as systemd would run kedge.service: notify socket, watchdog, restart, a record of every end.
For machines without systemd.

  --watchdog SECONDS      longest silence between two pings; 0: no watchdog (default 30)
  --restart-sec SECONDS   pause before a restart (default 2)
  --start-sec SECONDS     time to become ready (default 90)
  --stop-sec SECONDS      time to stop, before SIGKILL (default 20)
  --run-dir DIR           becomes $RUNTIME_DIRECTORY; made if missing
  --state-dir DIR         becomes $STATE_DIRECTORY; made if missing
  --record-with COMMAND   run by sh after every end with $SERVICE_RESULT, $EXIT_CODE and $EXIT_STATUS
                          (default: PROGRAM record-exit)
  --no-record             run nothing after an end
  --name NAME             for messages (default: the program's file name)
  --help                  this text
";

/// How often the console is told what ended.
const REPORT_EVERY: Duration = Duration::from_millis(500);

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
    let Some(unit) = parse(lexopt::Parser::from_env())? else {
        print!("{HELP}");
        return Ok(());
    };
    let stop_limit = unit.limits.stop * 3 + Duration::from_secs(5);
    let stop_asked = signals::listen()?;
    let babysitter = Babysitter::start(unit)?;
    let mut told = 0;
    loop {
        let asked = stop_asked.recv_timeout(REPORT_EVERY);
        told = tell_ends(&babysitter, told);
        match asked {
            Ok(_) => break,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("the signal listener ended".into()),
        }
    }
    babysitter.stop();
    babysitter.wait_until("its stop", stop_limit, |state| state.phase == Phase::Stopped)?;
    tell_ends(&babysitter, told);
    Ok(())
}

fn tell_ends(babysitter: &Babysitter, told: u64) -> u64 {
    let state = babysitter.state();
    for ended in state.ends.iter().filter(|ended| ended.run > told) {
        eprintln!("kedge-babysitter: {}: {ended}", babysitter.name());
    }
    state.ends.back().map_or(told, |ended| ended.run)
}

fn parse(mut parser: lexopt::Parser) -> Result<Option<Unit>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut unit = Unit::new("", Vec::new());
    unit.inherit_environment = true;
    let mut record: Option<OsString> = None;
    let mut no_record = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("watchdog") => {
                unit.limits.watchdog = Some(seconds(&mut parser)?).filter(|period| !period.is_zero());
            }
            Long("restart-sec") => unit.limits.restart_after = seconds(&mut parser)?,
            Long("start-sec") => unit.limits.start = seconds(&mut parser)?,
            Long("stop-sec") => {
                unit.limits.stop = seconds(&mut parser)?;
                unit.limits.abort = unit.limits.stop;
            }
            Long("run-dir") => unit.run_dir = Some(PathBuf::from(parser.value()?)),
            Long("state-dir") => unit.state_dir = Some(PathBuf::from(parser.value()?)),
            Long("record-with") => record = Some(parser.value()?),
            Long("no-record") => no_record = true,
            Long("name") => unit.name = parser.value()?.string()?,
            Long("help") | Short('h') => return Ok(None),
            Value(program) => {
                unit.command.push(program);
                unit.command.extend(parser.raw_args()?);
            }
            other => return Err(other.unexpected()),
        }
    }
    let Some(program) = unit.command.first().cloned() else {
        return Err("no program given; see --help".into());
    };
    if unit.name.is_empty() {
        unit.name = PathBuf::from(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    }
    unit.record_command = match (no_record, record) {
        (true, _) => None,
        (false, Some(line)) => Some(vec!["/bin/sh".into(), "-c".into(), line]),
        (false, None) => Some(vec![program, "record-exit".into()]),
    };
    Ok(Some(unit))
}

fn seconds(parser: &mut lexopt::Parser) -> Result<Duration, lexopt::Error> {
    use lexopt::prelude::*;
    let value = parser.value()?;
    value.parse_with(|text| {
        text.parse::<f64>()
            .map_err(|_| ())
            .and_then(|secs| Duration::try_from_secs_f64(secs).map_err(|_| ()))
            .map_err(|()| "expected a number of seconds")
    })
}
