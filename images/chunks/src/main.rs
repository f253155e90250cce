//! `kedge-chunks FILE >INDEX`: `images/build` runs it for the root of an update.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: kedge-chunks FILE >INDEX");
        return ExitCode::from(2);
    };
    let done =
        std::fs::read(&file).and_then(|root| std::io::stdout().lock().write_all(&kedge_chunks::index(&root)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kedge-chunks: {}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}
