//! `kedge-try`: what `make try` runs after everything is built.
//!
//! With a terminal it tells the story, leaves everything running, and ends with Ctrl-C. Without one it tells the story once and
//! exits with 0 only if every step was seen through the API. The story itself is [`kedge_rig::story`]'s.

use std::process::ExitCode;

use kedge_rig::error::KitError;
use kedge_rig::signals;
use kedge_rig::story::Story;
use kedge_rig::teller::Teller;

const HELP: &str = "\
kedge-try [--once]

Starts a hub and three nodes on this machine and shows what good and bad configurations do to them.
With a terminal everything is left running until Ctrl-C; --once ends after the story, as without a terminal.
";

fn main() -> ExitCode {
    let once = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--once") => true,
        Some("--help" | "-h") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            eprintln!("kedge-try: {other} is no option; see --help");
            return ExitCode::from(2);
        }
    };
    match run(once) {
        Ok(()) => ExitCode::SUCCESS,
        Err(KitError::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("kedge-try: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(once: bool) -> Result<(), KitError> {
    let stop = signals::listen()
        .map_err(|source| KitError::Io { tried: "listen for SIGINT and SIGTERM".into(), source })?;
    let teller = Teller::new();
    let play_on = teller.is_terminal() && !once;
    let mut story = Story::open(teller, stop)?;
    let mut told = story.tell();
    if told.is_ok() && play_on {
        told = story.play_on();
    }
    match told {
        Err(error) if !matches!(error, KitError::Interrupted) => {
            story.tell_failure(&error);
            Err(error)
        }
        told => story.close().and(told),
    }
}
