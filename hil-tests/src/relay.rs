//! `kedge-hil relay ADDRESS`: standard input and output as a TCP connection; QEMU starts one for each
//! connection that the guest opens.
//!
//! Always holds: it ends when either side ends, so that the guest notices when the hub is gone.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::error::HilError;

/// The path of this program at the first call: a build during a run replaces the file there.
pub(crate) fn program() -> Result<PathBuf, HilError> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = PROGRAM.get() {
        return Ok(path.clone());
    }
    let path = std::env::current_exe()
        .map_err(|source| HilError::Io { tried: "find this program".into(), source })?;
    Ok(PROGRAM.get_or_init(|| path).clone())
}

/// Runs until one side closes.
pub(crate) fn run(address: &str) -> Result<(), HilError> {
    let failed = |source| HilError::Io { tried: format!("connect to {address}"), source };
    let stream = TcpStream::connect(address).map_err(failed)?;
    let _ = stream.set_nodelay(true);
    let up = stream.try_clone().map_err(failed)?;
    std::thread::spawn(move || {
        pump(io::stdin().lock(), &up);
        let _ = up.shutdown(Shutdown::Write);
    });
    pump(&stream, io::stdout().lock());
    Ok(())
}

fn pump(mut from: impl Read, mut to: impl Write) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 || to.write_all(&buffer[..length]).is_err() || to.flush().is_err() {
            return;
        }
    }
}
