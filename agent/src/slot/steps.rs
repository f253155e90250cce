//! Performs the steps of an update and of a blessing, in their order, until one fails.
//!
//! Always holds: it performs the steps and nothing else. A member of an update counts as written when the
//! disk's content has its digest. Leaves to others: the order (`kedge_core::slot::list`), and the
//! consequences of a failed step (`update`, `bless`).

use kedge_core::slot::list::{Part, Place, Step};
use kedge_platform::slots::{LIST, Slots};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Where an entry or another small file is written before it gets its name. A process that can create this
/// file can write the partition.
pub(super) const NEW: &str = "kedge/entry.new";
/// How much of an update is held in memory.
const CHUNK: u64 = 1 << 20;

/// Performs all steps, with the update that they copy from.
///
/// # Errors
/// The action of the failed step, for people; the steps after it were not begun.
pub(crate) fn perform<S: Slots>(slots: &S, steps: &[Step], update: &mut impl Read) -> Result<(), String> {
    steps.iter().try_for_each(|step| one(slots, step, update))
}

fn one<S: Slots>(slots: &S, step: &Step, update: &mut impl Read) -> Result<(), String> {
    match step {
        Step::Settle => slots.settle().map_err(failed("settle", "the EFI partition")),
        Step::Remove(name) => remove(slots, &entry(name)).map_err(failed("remove the boot entry", name)),
        Step::Enter(name, text) => {
            put(slots, &entry(name), text.as_bytes()).map_err(failed("write the boot entry", name))
        }
        Step::Drop(path) => remove(slots, Path::new(path)).map_err(failed("remove", path)),
        Step::Put(path, bytes) => put(slots, Path::new(path), bytes).map_err(failed("write", path)),
        Step::Copy(part) => copy(slots, part, update),
    }
}

fn entry(name: &str) -> PathBuf {
    Path::new(LIST).join(name)
}

fn failed(what: &str, which: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot {what} {which}: {error}")
}

fn remove<S: Slots>(slots: &S, path: &Path) -> io::Result<()> {
    match slots.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn put<S: Slots>(slots: &S, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut target = slots.create(Path::new(NEW))?;
    write_all(slots, &mut target, bytes)?;
    slots.sync(&target)?;
    slots.settle()?;
    slots.rename(Path::new(NEW), path)
}

fn write_all<S: Slots>(slots: &S, target: &mut S::Target, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match slots.write(target, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn copy<S: Slots>(slots: &S, part: &Part, update: &mut impl Read) -> Result<(), String> {
    let Part { key, place, bytes, digest } = part;
    let (target, shown) = match place {
        Place::File(path) => (slots.create(Path::new(path)), path),
        Place::Device(device) => (slots.partition(Path::new(device)), device),
    };
    let mut target = target.map_err(failed("open", shown))?;
    let mut chunk = Vec::new();
    let mut left = *bytes;
    while left > 0 {
        chunk.clear();
        let read = update.by_ref().take(left.min(CHUNK)).read_to_end(&mut chunk);
        read.map_err(failed("read", "the update"))?;
        if chunk.is_empty() {
            return Err(format!("{key} is damaged: the update ends {left} bytes before its end"));
        }
        write_all(slots, &mut target, &chunk).map_err(failed("write", shown))?;
        left = left.saturating_sub(chunk.len() as u64);
    }
    slots.sync(&target).map_err(failed("write", shown))?;
    let found = slots.digest(&mut target, *bytes).map_err(failed("read", shown))?;
    match found == *digest {
        true => Ok(()),
        false => Err(format!("{key} is damaged, in the update or on the disk")),
    }
}
