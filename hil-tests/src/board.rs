//! A board, read from its file in `hil-tests/boards`: how to start it, and how to give it an identity.
//!
//! Always holds: every key is known and given at most once. The stories are the same for every board; they
//! check here for abilities that a board lacks (a hardware watchdog, a boot loader that counts tries). Only
//! QEMU's machines are supported so far: a real board needs a way to switch its power and to reach its serial
//! console, as further keys here and another [`crate::machine`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::HilError;

/// How a credential reaches systemd on this board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// SMBIOS strings of type 11.
    Smbios,
    /// Files on the EFI partition, put there before the disk is first used; and, for the rescue shell, the
    /// kernel's command line. Only if the kernel is started directly.
    Partition,
}

/// One board.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    /// Its name: that of its file.
    pub(crate) name: String,
    /// The board of `images/boards` whose image it boots.
    pub(crate) image: String,
    /// The emulator and its machine, as words.
    pub(crate) qemu: Vec<String>,
    /// Memory, in MiB.
    pub(crate) memory_mib: u32,
    /// The smallest memory in MiB with which its image is tested: 64, or as much as its kernel needs to
    /// unpack itself and leave that much.
    pub(crate) small_memory_mib: u32,
    /// UEFI code and the template of its variables; `None`: the kernel is started directly.
    pub(crate) firmware: Option<(PathBuf, PathBuf)>,
    /// QEMU's name of its hardware watchdog; `chipset` if the machine itself has one.
    pub(crate) watchdog: Option<String>,
    /// How a credential reaches it.
    pub(crate) credentials: Credentials,
    /// True if the kernel's record of a panic survives a reset in the firmware's variables.
    pub(crate) keeps_panics: bool,
}

impl Board {
    /// Reads the file of this name in `folder`.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Board, HilError> {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).map_err(HilError::io("read the board", &path))?;
        Board::parse(name, &text)
            .map_err(|problem| HilError::Garbled(format!("board {}: {problem}", path.display())))
    }

    fn parse(name: &str, text: &str) -> Result<Board, String> {
        let mut keys = BTreeMap::new();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let (key, value) = line.split_once('=').ok_or(format!("{line:?} is not KEY = VALUE"))?;
            if keys.insert(key.trim(), value.trim()).is_some() {
                return Err(format!("{} stands there twice", key.trim()));
            }
        }
        let mut take = |key: &str| keys.remove(key);
        let needed = |key: &str, value: Option<&str>| value.map(str::to_owned).ok_or(format!("no {key}"));
        let image = take("image");
        let qemu = take("qemu");
        let memory = take("memory_mib");
        let small_memory = take("small_memory_mib");
        let firmware = take("firmware");
        let watchdog = take("watchdog").map(str::to_owned);
        let keeps_panics = match take("pstore") {
            None => false,
            Some("efi") if firmware.is_some() => true,
            Some(other) => {
                return Err(format!("pstore is {other:?}, expected efi, on a board with firmware"));
            }
        };
        let credentials = match take("credentials") {
            Some("smbios") => Credentials::Smbios,
            Some("partition") if firmware.is_none() => Credentials::Partition,
            other => {
                return Err(format!(
                    "credentials is {other:?}, expected smbios, or partition without firmware"
                ));
            }
        };
        let firmware = match firmware.map(|files| files.split_whitespace().collect::<Vec<_>>()) {
            None => None,
            Some(files) if files.len() == 2 => Some((files[0].into(), files[1].into())),
            Some(files) => {
                return Err(format!("firmware names {} files, expected code and variables", files.len()));
            }
        };
        // every known key has been taken by now
        if let Some(key) = keys.keys().next() {
            return Err(format!("unknown key {key}"));
        }
        let mib = |key: &str, value: Option<&str>| {
            needed(key, value)?.parse::<u32>().map_err(|error| format!("{key}: {error}"))
        };
        Ok(Board {
            name: name.to_owned(),
            image: needed("image", image)?,
            qemu: needed("qemu", qemu)?.split_whitespace().map(str::to_owned).collect(),
            memory_mib: mib("memory_mib", memory)?,
            small_memory_mib: mib("small_memory_mib", small_memory)?,
            firmware,
            watchdog,
            credentials,
            keeps_panics,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_boards_are_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("boards");
        let names: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.len() >= 3, "{names:?}");
        for name in names {
            Board::read(&folder, name.to_str().unwrap()).unwrap();
        }
    }

    #[test]
    fn invalid_board_files_are_rejected() {
        let check = |text: &str, expect: &str| {
            let problem = Board::parse("b", text).unwrap_err();
            assert!(problem.contains(expect), "{problem}");
        };
        let good =
            "image = i\nqemu = q -M m\nmemory_mib = 64\nsmall_memory_mib = 32\ncredentials = partition\n";
        Board::parse("b", good).unwrap();
        check("image", "not KEY = VALUE");
        check(&format!("{good}image = j"), "twice");
        check(&format!("{good}colour = red"), "unknown key colour");
        check("qemu = q\nmemory_mib = 64\ncredentials = partition", "no image");
        check("image = i\nqemu = q\nmemory_mib = 64\ncredentials = partition", "no small_memory_mib");
        check("image = i\nqemu = q\nmemory_mib = much\ncredentials = partition", "memory_mib");
        check(&format!("{good}firmware = a b"), "expected smbios");
        check(&format!("{good}pstore = efi"), "on a board with firmware");
    }
}
