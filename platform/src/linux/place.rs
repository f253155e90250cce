//! The directories in which the agent keeps its state, cleared of obstacles that a damaged disk left in their
//! place.
//!
//! Always holds: a directory stays, also one that a link leads to, and so does a path that cannot be
//! examined; anything else is renamed, never removed; of two programs that clear the same place only one
//! does.
//!
//! Leaves to others: making the directory, and the consequences of its loss.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::claim::{lock, open_directory};
use super::files;
use crate::files::{Displaced, SET_ASIDE_KEPT, WriteError, aside_name, clear_for_directory};

/// Makes way for a directory that only this program makes: renames, durably, a file, a device, or a link that
/// does not lead to a directory.
///
/// # Errors
/// It could not be renamed: it is still there.
pub fn make_way(directory: &Path) -> Result<Option<Displaced>, WriteError> {
    let Some((parent, name)) = located(directory) else { return Ok(None) };
    let directory = parent.join(&name);
    if may_be_directory(&directory) {
        return Ok(None);
    }
    let displaced = clear_for_directory(&*files(&parent), &name)?;
    Ok(displaced.map(|it| Displaced { path: directory, now: parent.join(it.now), ..it }))
}

/// Makes way for a directory that other programs may also make: without the lock, a directory made between
/// the check and the rename would be renamed. It does nothing while another process holds the parent's lock.
///
/// # Errors
/// It could not be renamed: it is still there.
pub fn make_way_alone(directory: &Path) -> Result<Option<Displaced>, WriteError> {
    let Some((parent, _)) = located(directory) else { return Ok(None) };
    let held = open_directory(&parent).and_then(|file| Ok(lock(&file)?.then_some(file)));
    match held {
        Ok(Some(_held)) => make_way(directory),
        _ => Ok(None),
    }
}

/// The things that [`make_way`] renamed, now or in earlier runs, if they still exist.
pub fn set_aside_from(directory: &Path) -> Vec<PathBuf> {
    let Some((parent, name)) = located(directory) else { return Vec::new() };
    let names = (1..=SET_ASIDE_KEPT + 1).map(|number| parent.join(aside_name(&name, number)));
    names.filter(|path| fs::symlink_metadata(path).is_ok()).collect()
}

/// For a link, its target is examined. A disk that does not answer proves nothing.
fn may_be_directory(path: &Path) -> bool {
    match path.metadata() {
        Ok(found) => found.is_dir(),
        Err(error) => {
            let is_gone = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind())
                || error.raw_os_error() == Some(nix::errno::Errno::ELOOP as i32);
            !is_gone
        }
    }
}

fn located(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let parent = directory.parent()?;
    let parent = if parent == Path::new("") { Path::new(".") } else { parent };
    Some((parent.to_path_buf(), directory.file_name()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Kind;
    use kedge_rig::Scratch;
    use std::os::unix::fs::symlink;

    /// Puts something in place of the directory `state`, and checks what happens to it.
    #[track_caller]
    fn check(put: impl Fn(&Path, &Path), expect: Option<Kind>) {
        let scratch = Scratch::new("place").unwrap();
        let state = scratch.join("state");
        put(scratch.path(), &state);
        let is_there = state.is_dir();
        let displaced = make_way_alone(&state).unwrap();
        assert_eq!(displaced.as_ref().map(|it| it.kind), expect, "{displaced:?}");
        let now: Vec<_> = displaced.into_iter().map(|it| it.now).collect();
        assert_eq!(set_aside_from(&state), now);
        assert_eq!(state.is_dir(), is_there, "a directory stays");
        fs::create_dir_all(&state).unwrap();
        assert_eq!(make_way(&state).unwrap(), None);
    }

    #[test]
    fn place_of_a_directory_is_cleared_of_all_else() {
        check(|_, state| fs::write(state, "x").unwrap(), Some(Kind::File));
        check(|_, state| symlink("nowhere/at/all", state).unwrap(), Some(Kind::Symlink));
        check(|_, state| symlink("state", state).unwrap(), Some(Kind::Symlink));
        check(|_, state| symlink("/dev/null", state).unwrap(), Some(Kind::Symlink));
        let fifo =
            |_: &Path, state: &Path| nix::unistd::mkfifo(state, nix::sys::stat::Mode::S_IRWXU).unwrap();
        check(fifo, Some(Kind::Fifo));
        let listen = |_: &Path, state: &Path| drop(std::os::unix::net::UnixListener::bind(state).unwrap());
        check(listen, Some(Kind::Socket));
    }

    #[test]
    fn directory_stays_also_behind_a_link() {
        check(|_, state| fs::create_dir(state).unwrap(), None);
        check(|_, _| {}, None);
        let linked = |scratch: &Path, state: &Path| {
            fs::create_dir(scratch.join("data")).unwrap();
            symlink("data", state).unwrap();
        };
        check(linked, None);
    }

    #[test]
    fn place_that_another_program_clears_is_left_to_it() {
        let scratch = Scratch::new("place-held").unwrap();
        fs::write(scratch.join("state"), "x").unwrap();
        let held = open_directory(scratch.path()).unwrap();
        assert!(lock(&held).unwrap());
        assert_eq!(make_way_alone(&scratch.join("state")).unwrap(), None);
        drop(held);
        let displaced = make_way_alone(&scratch.join("state/")).unwrap().unwrap();
        let at = |name: &str| scratch.join(name).display().to_string();
        let expect =
            format!("{} was a file, expected a directory; renamed to {}", at("state"), at("state.corrupt-1"));
        assert_eq!(displaced.to_string(), expect);
    }

    #[test]
    fn file_in_place_of_the_parent_is_left() {
        let scratch = Scratch::new("place-parent").unwrap();
        fs::write(scratch.join("lib"), "x").unwrap();
        assert_eq!(make_way_alone(&scratch.join("lib/state")).unwrap(), None);
        assert_eq!(make_way_alone(Path::new("/")).unwrap(), None);
    }
}
