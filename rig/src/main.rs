//! `kedge-try`: the program that `make try` runs after building.
//!
//! With a terminal it shows everything, leaves it running, and ends with Ctrl-C. Without one it runs once and
//! exits with 0 only if every step was confirmed through the API. The steps are [`kedge_rig::demo`]'s.

use std::process::ExitCode;

use kedge_rig::console::Console;
use kedge_rig::demo::Demo;
use kedge_rig::error::RigError;
use kedge_rig::signals;

const HELP: &str = "\
kedge-try [--once]

Starts a hub and three nodes on this machine and shows what good and bad configurations do to them; as root, with a
DaemonSet, what its containers survive, and an update that fails.
With a terminal everything is left running until Ctrl-C; --once ends after the last step, as without a terminal.
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
        Err(RigError::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("kedge-try: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(once: bool) -> Result<(), RigError> {
    let stop = signals::listen()
        .map_err(|source| RigError::Io { tried: "listen for SIGINT and SIGTERM".into(), source })?;
    let console = Console::new();
    let keep_running = console.is_terminal() && !once;
    let mut demo = Demo::open(console, stop)?;
    let mut printed = demo.run();
    if printed.is_ok() && keep_running {
        printed = demo.keep_running();
    }
    match printed {
        Err(error) if !matches!(error, RigError::Interrupted) => {
            demo.print_failure(&error);
            Err(error)
        }
        printed => demo.close().and(printed),
    }
}
