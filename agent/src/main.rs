//! `kedge`: reads the command line, runs one command, prints why it failed. Nothing else.

use kedge::flags::{self, Command};
use kedge::{cli, doctor, images, run, slot};
use std::fmt::Display;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match flags::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => return fail(2, &error),
    };
    let done = match command {
        Command::Agent(options) => {
            return run::run(*options).unwrap_or_else(|error| fail(error.exit_code(), &error));
        }
        Command::RecordExit(places) => cli::record_exit_of_agent(&places),
        Command::CopyExitRecord(places) => cli::copy_exit_record(&places),
        Command::Status(places, output) => cli::status(&places, output),
        Command::Doctor(options, output) => {
            return if doctor::run(&options, output) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Command::DoctorWrite(places) => return doctor::write_to_disk(&places),
        Command::ConfigShow(options, output) => cli::config_show(&options, output),
        Command::ConfigStatus(options, output) => cli::config_status(&options, output),
        Command::ConfigHistory(places, output) => cli::config_history(&places, output),
        Command::ConfigCheck(options, output) => cli::config_check(&options, output),
        Command::ConfigForgive(places, uid) => cli::config_forgive(&places, &uid),
        Command::ConfigReset(places) => cli::config_reset(&places),
        Command::Shim(bundle) => cli::shim(&bundle),
        Command::Pause(root) => cli::pause(&root),
        Command::Images(options, output) => images::command::run(&options, output),
        Command::Unpack(arguments) => images::command::unpack(&arguments),
        Command::SlotHealth(places) => slot::health(&places),
        Command::SlotWorks(places, before) => {
            slot::works(&places, &before);
            Ok(())
        }
        Command::SlotAdmit(manifest) => slot::admission::admit(&manifest),
        Command::SlotStatus => {
            slot::admission::status();
            Ok(())
        }
        Command::Version(output) => {
            cli::version(output);
            Ok(())
        }
        Command::Help(text) => {
            cli::print(text.trim_end());
            Ok(())
        }
    };
    done.map_or_else(|error| fail(1, &error), |()| ExitCode::SUCCESS)
}

fn fail(code: u8, error: &dyn Display) -> ExitCode {
    eprintln!("kedge: {error}");
    ExitCode::from(code)
}
