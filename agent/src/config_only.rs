//! `kedge-config`: `kedge` without pods (feature `pods`), under a name of its own so that one build does not
//! replace the other. Nothing else.

use std::process::ExitCode;

#[path = "main.rs"]
mod kedge_program;

fn main() -> ExitCode {
    kedge_program::main()
}
