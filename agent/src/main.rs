//! `kedge`: reads the command line, runs one command, prints why it failed. Nothing else.

use kedge::flags::{self, Command, NO_PODS, PodCommand};
use kedge::output::CommandError;
use kedge::{
    calls, cli, doctor, images, join, kubelet_api, logs, output, provision, run, sessions, slot, state,
    system,
};
use kedge_core::WithPods;
use std::fmt::Display;
use std::process::ExitCode;

pub(crate) fn main() -> ExitCode {
    system::starter::begin();
    let command = match flags::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => return fail(2, &error),
    };
    // without `apart`: processes that live long, and commands that need little stack
    let done = match command {
        Command::Agent(options) => {
            return run::run(*options).unwrap_or_else(|error| fail(error.exit_code(), &error));
        }
        Command::RecordExit(places) => apart(|| cli::record_exit_of_agent(&places)),
        Command::CopyExitRecord(places) => apart(|| cli::copy_exit_record(&places)),
        Command::Join(options) => apart(|| join::run(&options)),
        Command::Status(places, output) => apart(|| cli::status(&places, output)),
        Command::Doctor(options, output) => {
            return if apart(|| doctor::run(&options, output)) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
        Command::DoctorWrite(places) => return apart(|| doctor::write_to_disk(&places)),
        Command::ConfigShow(options, output) => apart(|| cli::config_show(&options, output)),
        Command::ConfigStatus(options, output) => apart(|| cli::config_status(&options, output)),
        Command::ConfigHistory(places, output) => apart(|| cli::config_history(&places, output)),
        Command::ConfigCheck(options, output) => apart(|| cli::config_check(&options, output)),
        Command::ConfigForgive(places, uid) => apart(|| cli::config_forgive(&places, &uid)),
        Command::ConfigReset(places) => apart(|| cli::config_reset(&places)),
        Command::OfPods(_, command) => match pod_command(command) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::SlotHealth(places) => apart(|| slot::health(&places)),
        Command::SlotUpdate(places, options) => apart(|| slot::update::update(&places, &options)),
        Command::SlotBless(places) => apart(|| slot::bless::bless(&places)),
        Command::SlotKeys(places, None) => apart(|| slot::keys::show(&places)),
        Command::SlotKeys(places, Some(file)) => apart(|| slot::keys::take(&places, &file)),
        Command::SlotStatus => apart(slot::admission::status),
        Command::SystemStatus(places) => apart(|| slot::wanted::status(&places)),
        Command::SlotHoldsRoot(disk) => apart(|| slot::holds_root(&disk)),
        Command::StateOpen => apart(state::open),
        Command::Provision => {
            apart(provision::provision);
            Ok(())
        }
        Command::Version(output) => {
            cli::version(output);
            Ok(())
        }
        Command::Help(page) => {
            output::print(page.concat().trim_end());
            if WithPods::built().is_none() {
                output::print(format_args!("\n{NO_PODS}"));
            }
            Ok(())
        }
    };
    done.map_or_else(|error| fail(1, &error), |()| ExitCode::SUCCESS)
}

/// What only an agent with pods can do.
fn pod_command(command: PodCommand) -> Result<ExitCode, CommandError> {
    match command {
        PodCommand::List(places, output) => apart(|| cli::pods(&places, output)),
        PodCommand::Release(places, pod) => apart(|| cli::pods_release(&places, pod.as_deref())),
        PodCommand::Logs(options) => apart(|| logs::run(&options)),
        PodCommand::Exec(options) => return apart(|| sessions::exec(&options)).map(exit_code),
        PodCommand::Attach(options) => return apart(|| sessions::attach(&options)).map(exit_code),
        PodCommand::Session(options) => apart(|| calls::run(*options)),
        PodCommand::KubeletPort(options) => apart(|| kubelet_api::server::run(*options)),
        PodCommand::Shim(bundle) => cli::shim(&bundle),
        PodCommand::Pause(root) => cli::pause(&root),
        PodCommand::Look => cli::look(),
        PodCommand::Images(options, output) => apart(|| images::command::run(&options, output)),
        PodCommand::Unpack(arguments) => apart(|| images::command::unpack(&arguments)),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A command that ends by itself; not inlined, because its stack would be part of `main`'s frame in the agent
/// and in each shim as long as they live, 56 KiB of memory.
#[inline(never)]
fn apart<T>(command: impl FnOnce() -> T) -> T {
    command()
}

/// Keeps the last eight bits of a code, as a shell does.
fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(code.to_le_bytes()[0])
}

fn fail(code: u8, error: &dyn Display) -> ExitCode {
    eprintln!("kedge: {error}");
    ExitCode::from(code)
}
