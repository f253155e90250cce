//! The end of a backup: a line with the SHA-256 of all bytes before it.
//!
//! Always holds: a backup is sealed and flushed before it gets its name, so a named one is complete. SQLite
//! ignores bytes after the size that its header gives, so an older hub and other tools open the file as
//! before.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use ring::digest::{Context, SHA256};

/// The version of stores from which on every backup has one.
pub(super) const SINCE: i64 = 4;
const HEAD: &str = "\nkedge-hub backup sha256 ";
const DIGEST_CHARS: usize = 64;
/// Including the line's end.
const BYTES: usize = HEAD.len() + DIGEST_CHARS + 1;

/// The digest that a sealed file states, and that of its bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sealed {
    pub(super) told: String,
    pub(super) found: String,
    /// Without the last line.
    pub(super) content_bytes: u64,
}

/// Adds the line to a file, durably; returns the digest.
pub(super) fn seal(path: &Path) -> io::Result<String> {
    let mut file = File::options().read(true).append(true).open(path)?;
    let digest = digest(&mut &file)?;
    file.write_all(format!("{HEAD}{digest}\n").as_bytes())?;
    file.sync_all()?;
    Ok(digest)
}

/// Reads a file; `None` if it has no such line.
pub(super) fn read(mut file: &File) -> io::Result<Option<Sealed>> {
    let length = file.metadata()?.len();
    let Some(content_bytes) = length.checked_sub(BYTES as u64) else { return Ok(None) };
    file.seek(SeekFrom::Start(content_bytes))?;
    let mut line = [0; BYTES];
    file.read_exact(&mut line)?;
    let Some(told) = line.strip_prefix(HEAD.as_bytes()).and_then(|rest| rest.strip_suffix(b"\n")) else {
        return Ok(None);
    };
    let told = String::from_utf8_lossy(told).into_owned();
    file.seek(SeekFrom::Start(0))?;
    let found = digest(&mut file.take(content_bytes))?;
    Ok(Some(Sealed { told, found, content_bytes }))
}

fn digest(content: &mut impl Read) -> io::Result<String> {
    let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; 64 * 1024]);
    loop {
        match content.read(&mut buffer)? {
            0 => break,
            count => context.update(&buffer[..count]),
        }
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}
