//! `kedge slot status`, and the facts that an update checks before it writes.
//!
//! Always holds: nothing is changed; a fact that cannot be seen counts as false, so it admits no update.
//! Decides nothing: `kedge_core::slot::admission` does.

use crate::output;
use crate::output::CommandError;
use crate::slot::host;
use crate::slot::host::{COUNTING, read};
use kedge_core::ImageState;
use kedge_core::slot::admission::Facts;
use kedge_core::slot::manifest::FILES;
use kedge_core::sorted::SortedMap;
use kedge_platform::linux::Roots;
use kedge_platform::linux::slots::{self, EFI, LinuxSlots};
use kedge_platform::slots::Slots;
use std::fs;
use std::path::Path;

/// systemd-boot sets it at every boot.
const LOADER: &str = "firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// `kedge slot status`: prints the running slot, and the boot loader's list.
///
/// # Errors
/// This machine runs no disk image, so there is nothing to show.
pub fn status() -> Result<(), CommandError> {
    if !host::is_image(&Roots::default()) {
        let why = "this machine runs no disk image with slots: /usr/lib/kedge-image/release is not there (docs/guides/images.md)";
        return Err(CommandError::new(why));
    }
    for line in facts(&Roots::default(), Path::new(EFI), Path::new("/")).status() {
        output::print(line);
    }
    Ok(())
}

/// The image's part of the Node; only for a node that runs one.
pub(crate) fn image() -> ImageState {
    image_on(&Roots::default(), Path::new(EFI), Path::new("/"))
}

fn image_on(roots: &Roots, efi: &Path, root: &Path) -> ImageState {
    let found = facts(roots, efi, root);
    let unreadable = || LinuxSlots::new(roots, efi).entries().err().filter(|_| found.entries.is_empty());
    match found.image() {
        ImageState::NotAsked => ImageState::NotAsked,
        // a boot loader started this from an entry, so an empty list is wrong
        state => {
            unreadable().map_or(state, |error| ImageState::Unknown(format!("{}: {error}", efi.display())))
        }
    }
}

pub(crate) fn facts(roots: &Roots, efi: &Path, root: &Path) -> Facts {
    let disk = slots::disk_of(&roots.sys, root).ok();
    let release = read(&roots.usr_lib.join("kedge-image/release"));
    let named = |name| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .unwrap_or_default()
            .to_owned()
    };
    Facts {
        command_line: read(&roots.proc.join("cmdline")),
        has_variables: roots.sys.join(LOADER).exists(),
        is_counted: roots.sys.join(COUNTING).exists(),
        entries: LinuxSlots::new(roots, efi).entries().unwrap_or_default(),
        files: files(&efi.join("kedge")),
        free_bytes: slots::free_bytes(efi).unwrap_or_default(),
        is_own_efi: disk.is_some() && slots::disk_of(&roots.sys, efi).ok() == disk,
        roots: disk.as_deref().map(slots::partitions).unwrap_or_default(),
        board: named("BOARD"),
        version: named("VERSION"),
    }
}

fn files(folder: &Path) -> SortedMap<String, u64> {
    let names = ["a", "b"].into_iter().flat_map(|slot| FILES.map(|name| format!("{slot}/{name}")));
    names.filter_map(|name| Some((name.clone(), fs::metadata(folder.join(name)).ok()?.len()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_those_of_the_machine() {
        let scratch = kedge_rig::Scratch::new("admission").unwrap();
        for (path, text) in [
            ("proc/cmdline", "root=PARTLABEL=root-b"),
            ("sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f", ""),
            ("lib/kedge-image/release", "BOARD=toaster\nVERSION=1\n"),
            ("efi/loader/entries/kedge-b+5.conf", "version 2\n"),
            ("efi/loader/entries/other.conf", "version 3\n"),
            ("efi/kedge/b/vmlinuz", "12345"),
        ] {
            scratch.write(path, text);
        }
        let at = |name| scratch.path().join(name);
        let roots = Roots { proc: at("proc"), sys: at("sys"), usr_lib: at("lib"), ..Roots::default() };
        let found = facts(&roots, &at("efi"), scratch.path());
        assert_eq!((found.command_line.as_str(), found.board.as_str()), ("root=PARTLABEL=root-b", "toaster"));
        assert_eq!(found.version, "1");
        assert_eq!((found.has_variables, found.is_counted, found.is_own_efi), (true, false, false));
        assert_eq!(found.entries, [("kedge-b+5.conf".to_owned(), "version 2".to_owned())].into());
        assert_eq!(found.files, [("b/vmlinuz".to_owned(), 5)].into());
        assert!(found.free_bytes > 0 && found.roots.is_empty());
        assert_eq!(image_on(&roots, &at("efi"), scratch.path()), ImageState::Good("b"));
        std::fs::remove_dir_all(at("efi/loader")).unwrap();
        let unknown = image_on(&roots, &at("efi"), scratch.path());
        assert!(matches!(&unknown, ImageState::Unknown(why) if why.contains("No such file")), "{unknown:?}");
    }
}
