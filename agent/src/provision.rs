//! `kedge provision`, for `kedge-provision.service` of the disk images: installs this device's identity
//! before the agent starts.
//!
//! Reads the handed-over files, from systemd credentials (SMBIOS, fw_cfg, the kernel's command line) or from
//! the EFI partition, and the device's own files; performs the decisions of `kedge_core::provision`, durably;
//! and sets the host's name. Always holds: nothing here can keep the agent from starting; at any time a file
//! is the old one or the new one.

use crate::{output, slot};
use kedge_core::provision::{self, Act, Own, Part};
use kedge_platform::files::Operations;
use kedge_platform::linux::slots::EFI;
use kedge_platform::linux::{Roots, files, read_named_file};
use kedge_platform::{DurableFiles, Files, Kind};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the device's own files are.
const OWN: &str = "/etc/kedge";
/// A kubeconfig has some KiB; a larger drop-in is ignored.
const LIMIT: usize = 1 << 20;
/// A digest, an inode and a time.
const NOTE_LIMIT: usize = 1024;
/// Entries of a directory of drop-ins, and their depth: more than a person writes.
const ENTRIES: usize = 10_000;
const DEPTH: usize = 16;
/// Most leftovers removed of writes that a power cut ended: there is at most one for each file.
const SWEPT: usize = 10_000;

/// Installs handed-over files, guards the present ones, and sets the host's name.
pub fn provision() {
    let (credentials, efi) = (env::var_os("CREDENTIALS_DIRECTORY"), Path::new(EFI).join("kedge"));
    let handed = |part: Part| handed(part, credentials.as_ref().map(Path::new), &efi);
    let device = Device { files: &*files(OWN), tell: &|text| say(text) };
    if let Some(name) = device.start(handed)
        && let Err(error) = fs::write(Roots::default().proc.join("sys/kernel/hostname"), name)
    {
        say(format_args!("cannot set the host's name: {error}"));
    }
}

fn say(text: impl std::fmt::Display) {
    output::print(format_args!("provision: {text}"));
}

/// A handed-over file and its path; a credential takes precedence over a file.
fn handed(part: Part, credentials: Option<&Path>, efi: &Path) -> Option<(Vec<u8>, PathBuf)> {
    let credential = credentials.map(|folder| folder.join(format!("kedge.{}", part.name())));
    let places = credential.into_iter().chain([efi.join(part.name())]);
    let mut found = places.filter_map(|path| match read_named_file(&path, LIMIT) {
        Ok(content) => Some((content, path)),
        Err(kedge_platform::ReadError::NotFound { .. }) => None,
        Err(error) => {
            say(crate::errors::chain(&error));
            None
        }
    });
    found.find(|(content, _)| !content.is_empty())
}

/// The device's own files.
struct Device<'a, D> {
    files: &'a DurableFiles<D>,
    /// Writes a line to the journal.
    tell: &'a dyn Fn(&dyn std::fmt::Display),
}

impl<D: Operations> Device<'_, D> {
    fn say(&self, text: impl std::fmt::Display) {
        (self.tell)(&text);
    }

    /// Returns the new host name.
    fn start(&self, handed: impl Fn(Part) -> Option<(Vec<u8>, PathBuf)>) -> Option<String> {
        self.files.sweep_root(SWEPT);
        Part::ALL.into_iter().for_each(|part| self.provide(part, handed(part)));
        self.guard("default");
        self.guard_below(Path::new("config.d"), DEPTH);
        let is_missing = |part: Part| self.own(part.name()).content.is_none_or(|content| content.is_empty());
        if is_missing(Part::Kubeconfig)
            && is_missing(Part::BootstrapKubeconfig)
            && self.line(&used_note(Part::BootstrapKubeconfig)).is_none()
        {
            self.say("no kubeconfig yet: the agent runs its local configuration until one is handed over");
        }
        let name = provision::node_name(&self.own(Part::NodeName.name()).content?)?;
        if !name.is_empty() && !provision::is_name(&name) {
            self.say(format_args!(
                "the node name {name:?} is invalid, expected small letters, digits, - and ."
            ));
        }
        Some(name).filter(|name| provision::is_name(name))
    }

    fn provide(&self, part: Part, handed: Option<(Vec<u8>, PathBuf)>) {
        let (name, note) = (part.name(), handed_note(part));
        let used = self.line(&used_note(part));
        let handed = handed.filter(|(content, _)| !provision::is_used(content, used.as_deref()));
        let from = handed.as_ref().map(|(_, path)| path.display().to_string()).unwrap_or_default();
        let handed = handed.as_ref().map(|(content, _)| (content.as_slice(), from.as_str()));
        let dealt_with = self.line(&note);
        for act in provision::provide(part, handed, &self.own(name), dealt_with.as_deref()) {
            self.perform(name, &note, act);
        }
    }

    fn perform(&self, path: &str, handed_note: &str, act: Act) {
        match act {
            Act::SetAside => self.set_aside(path),
            Act::Install { content, from, note } => match self.files.write_durably(Path::new(path), &content)
            {
                Ok(()) => {
                    self.say(format_args!("{OWN}/{path} is from {from}"));
                    self.note(handed_note, &note);
                }
                Err(error) => self.say(format_args!("{OWN}: {}", crate::errors::chain(&error))),
            },
            Act::NoteHandover(text) => self.note(handed_note, &text),
            Act::Remember => {
                if let Some(text) = self.own(path).new_note() {
                    self.note(&provision::note_name(path), &text);
                }
            }
            Act::Say(text) => self.say(text),
        }
    }

    fn own(&self, path: &str) -> Own {
        let disk = self.files.disk();
        let is_file = disk.kind(Path::new(path)).is_ok_and(|kind| kind == Kind::File);
        Own {
            content: self.files.read(Path::new(path), LIMIT).ok(),
            last_write: if is_file { disk.last_write(Path::new(path)).ok() } else { None },
            note: self.line(&provision::note_name(path)),
        }
    }

    fn line(&self, path: &str) -> Option<String> {
        let content = self.files.read(Path::new(path), NOTE_LIMIT).ok()?;
        Some(String::from_utf8_lossy(&content).trim_end_matches('\n').to_owned())
    }

    /// Writes a note, if it has changed.
    fn note(&self, path: &str, text: &str) {
        if self.line(path).as_deref() == Some(text) {
            return;
        }
        if let Err(error) = self.files.write_durably(Path::new(path), format!("{text}\n").as_bytes()) {
            self.say(format_args!("{OWN}: {}", crate::errors::chain(&error)));
        }
    }

    fn set_aside(&self, path: &str) {
        let aside = format!("{path}.damaged");
        let disk = self.files.disk();
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        let renamed =
            disk.rename(Path::new(path), Path::new(&aside)).and_then(|()| disk.sync_directory(folder));
        match renamed {
            Ok(()) => self.say(format_args!(
                "{OWN}/{path} was damaged on the disk: renamed to {OWN}/{aside} and not used"
            )),
            Err(error) => {
                self.say(format_args!("{OWN}/{path} was damaged on the disk and cannot be renamed: {error}"))
            }
        }
    }

    fn guard(&self, path: &str) {
        let own = self.own(path);
        // an unreadable file, and one that is too large, has no note
        if own.last_write.is_some() {
            self.perform(path, "", provision::guard(&own));
        }
    }

    /// All files `*.conf` below the folder, as the agent reads them; links are not followed.
    fn guard_below(&self, folder: &Path, depth: usize) {
        let Ok(listing) = self.files.list(folder, ENTRIES) else { return };
        for entry in listing.entries {
            let path = folder.join(entry.name);
            match (entry.kind, path.to_str()) {
                (Kind::Directory, _) if depth > 0 => self.guard_below(&path, depth - 1),
                (Kind::File, Some(name)) if name.ends_with(".conf") => self.guard(name),
                _ => {}
            }
        }
    }
}

/// Path of the note about the latest handled file of this part.
fn handed_note(part: Part) -> String {
    format!(".handed-{}", part.name())
}

/// Path of the note about the latest handover of this part that has led to a certificate.
fn used_note(part: Part) -> String {
    format!(".used-{}", part.name())
}

/// Removes a bootstrap kubeconfig whose token has led to a certificate, and its copy on the EFI partition if
/// it was handed over there. If a copy cannot be removed, a note keeps it from being installed again. May be
/// called again, and after any power cut. Blocks as long as the disk does.
pub fn forget_bootstrap(path: &Path) {
    let efi = slot::host::is_image(&Roots::default()).then(|| Path::new(EFI).join("kedge"));
    if let Err(error) = forget(path, efi.as_deref()) {
        log::warn!("remove {}: {error}", path.display());
    }
}

/// The file itself goes last: while it is there, not everything is done.
fn forget(path: &Path, efi: Option<&Path>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let content = match read_named_file(path, LIMIT) {
        Ok(content) => content,
        Err(kedge_platform::ReadError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    if let Some(efi) = efi {
        let note = format!("{}\n", provision::used_note(&content));
        let noted =
            files(folder).write_durably(Path::new(&used_note(Part::BootstrapKubeconfig)), note.as_bytes());
        noted.map_err(io::Error::other)?;
        let copy = efi.join(Part::BootstrapKubeconfig.name());
        if read_named_file(&copy, LIMIT).is_ok_and(|other| other == content) {
            remove(&copy, efi)?;
        }
    }
    remove(path, folder)
}

fn remove(path: &Path, folder: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_platform::fake::{self, FakeDisk, Loss};

    const SEEDS: u64 = 4;
    const EIO: i32 = 5;

    /// A device, and the files handed over to it.
    struct Board {
        disk: FakeDisk,
        kubeconfig: Option<Vec<u8>>,
        node_name: Option<Vec<u8>>,
        bootstrap: Option<Vec<u8>>,
    }

    impl Board {
        fn new() -> Self {
            let (kubeconfig, node_name) = (Some(b"clusters: factory".to_vec()), Some(b"edge-7\n".to_vec()));
            Self { disk: FakeDisk::new(), kubeconfig, node_name, bootstrap: None }
        }

        fn start(&self) -> Option<String> {
            let handed = |part| {
                let content = match part {
                    Part::Kubeconfig => &self.kubeconfig,
                    Part::NodeName => &self.node_name,
                    Part::BootstrapKubeconfig => &self.bootstrap,
                };
                Some((content.clone()?, PathBuf::from("/efi/kedge").join(part.name())))
            };
            Device { files: &fake::files(&self.disk), tell: &|_| () }.start(handed)
        }

        /// Boots, and checks that the kubeconfig is this one afterwards.
        #[track_caller]
        fn boots(&self, expected: &str, when: &str) {
            let name = self.start();
            let found = String::from_utf8(self.disk.content("kubeconfig").unwrap_or_default()).unwrap();
            assert_eq!(found, format!("clusters: {expected}"), "{when}");
            assert_eq!(name.as_deref(), Some("edge-7"), "{when}");
        }

        /// Writes as the owner or the agent does.
        fn write(&self, path: &str, content: &str) {
            fake::files(&self.disk).write_durably(Path::new(path), content.as_bytes()).unwrap();
        }

        /// Flips a bit, as a failing disk does.
        fn damage(&self, path: &str) {
            assert!(self.disk.damage(path, |content| content[0] ^= 1), "{path} is there");
        }

        fn damaged(&self) -> String {
            let all = self.disk.paths().into_iter().map(|path| path.display().to_string());
            all.filter(|path| path.ends_with(".damaged")).collect::<Vec<_>>().join(" ")
        }
    }

    fn renewed() -> Board {
        let board = Board::new();
        board.boots("factory", "at the first boot");
        board.write("kubeconfig", "clusters: renewed");
        board.boots("renewed", "after it was renewed on the device");
        board
    }

    #[test]
    fn renewed_kubeconfig_stays_until_it_is_damaged_or_replaced() {
        let mut board = renewed();
        board.boots("renewed", "a boot later");
        board.write(".handed-kubeconfig", "random\n");
        board.boots("renewed", "after the note of the last handover was damaged");
        board.damage("kubeconfig");
        board.boots("factory", "after it was damaged");
        assert!(board.disk.holds("kubeconfig.damaged", b"blusters: renewed"));
        board.disk.remove("kubeconfig");
        board.boots("factory", "after it was lost");
        board.kubeconfig = Some(b"clusters: other".to_vec());
        board.boots("other", "after another one was handed over");
        (board.kubeconfig, board.node_name) = (Some(vec![7; 300]), Some(vec![0xf3; 300]));
        board.boots("other", "after the handed files became random");
        assert!(board.disk.holds("node-name", b"edge-7\n"));
        board.kubeconfig = Some(b"clusters: other".to_vec());
        board.boots("other", "after it was handed over as before");
        board.write("kubeconfig", &"\0".repeat(300));
        board.boots("other", "after a power cut that left only zeros of it");
        (board.kubeconfig, board.node_name) = (None, None);
        board.write("kubeconfig", "clusters: other");
        board.boots("other", "with nothing handed over");
        board.disk.damage("kubeconfig", |content| content[10] ^= 1);
        board.boots("nther", "after it was damaged, with nothing handed over: it stays in use");
    }

    #[test]
    fn damaged_drop_in_is_set_aside() {
        let board = renewed();
        let files = [
            "default",
            "config.d/10-slow.conf",
            "config.d/a b/c/d.conf",
            "config.d/a b/c-d.conf",
            "config.d/a b-c-d.conf",
        ];
        files.iter().for_each(|path| board.write(path, path));
        board.write("config.d/notes.txt", "");
        board.disk.put_kind("config.d/link.conf", Kind::Symlink);
        board.boots("renewed", "beside drop-ins");
        board.boots("renewed", "beside drop-ins, a boot later");
        assert_eq!(board.damaged(), "");
        board.write("config.d/a b/c-d.conf", "written anew");
        files.iter().filter(|path| !path.ends_with("c-d.conf")).for_each(|path| board.damage(path));
        board.boots("renewed", "beside damaged drop-ins");
        assert_eq!(
            board.damaged(),
            "config.d/10-slow.conf.damaged config.d/a b/c/d.conf.damaged default.damaged"
        );
    }

    #[test]
    fn settled_device_writes_nothing() {
        let board = renewed();
        board.disk.take_trace();
        board.boots("renewed", "once more");
        let trace = board.disk.take_trace();
        assert!(trace.iter().all(|line| line.starts_with("SyncDirectory")), "{trace:?}");
    }

    #[test]
    fn invalid_name_names_no_host() {
        let mut board = Board::new();
        board.node_name = None;
        assert_eq!(board.start(), None);
        board.write("node-name", "Edge 7");
        assert_eq!(board.start(), None);
        board.write("node-name", "edge-8");
        assert_eq!(board.start().as_deref(), Some("edge-8"));
    }

    /// The event, the device before a boot, and the kubeconfig that it must have after it.
    type Case = (&'static str, fn() -> Board, &'static str);

    fn cases() -> [Case; 6] {
        [
            ("the first boot", Board::new, "factory"),
            ("a renewed kubeconfig", renewed, "renewed"),
            (
                "a damaged note of the handover",
                || {
                    let board = renewed();
                    board.write(".handed-kubeconfig", "random\n");
                    board
                },
                "renewed",
            ),
            (
                "a damaged kubeconfig",
                || {
                    let board = renewed();
                    board.damage("kubeconfig");
                    board
                },
                "factory",
            ),
            (
                "a lost kubeconfig",
                || {
                    let board = renewed();
                    board.disk.remove("kubeconfig");
                    board
                },
                "factory",
            ),
            (
                "another handover",
                || Board { kubeconfig: Some(b"clusters: other".to_vec()), ..renewed() },
                "other",
            ),
        ]
    }

    #[test]
    fn power_cut_loses_no_identity() {
        let mut disks = 0;
        for (when, board, expected) in cases() {
            let whole = board();
            let before = whole.disk.operations();
            whole.boots(expected, when);
            for cut in 0..=whole.disk.operations() - before {
                for loss in Loss::all(SEEDS) {
                    disks += 1;
                    let board = board();
                    board.disk.reboot(Loss::Nothing);
                    board.disk.cut_power_after(cut);
                    board.start();
                    board.disk.cut_power();
                    board.disk.reboot(loss);
                    board.boots(expected, &format!("{when}, cut {cut}, {loss:?}"));
                    board.boots(expected, &format!("{when}, cut {cut}, {loss:?}, a boot later"));
                }
            }
        }
        assert!(disks > 400, "only {disks} disks: too little was done");
    }

    #[test]
    fn disk_that_fails_leaves_the_old_file_or_the_new() {
        for (when, board, expected) in cases() {
            let whole = board();
            let before = whole.disk.operations();
            whole.start();
            for operation in 0..whole.disk.operations() - before {
                let board = board();
                board.disk.fail_after(operation, EIO);
                board.start();
                board.disk.heal();
                board.boots(expected, &format!("{when}, operation {operation} failed"));
            }
        }
    }

    #[test]
    fn read_only_disk_ends_without_a_change() {
        let board = renewed();
        board.damage("kubeconfig");
        board.disk.set_read_only(true);
        assert_eq!(board.start().as_deref(), Some("edge-7"));
        assert!(board.disk.holds("kubeconfig", b"blusters: renewed"));
    }

    #[test]
    fn used_token_is_not_installed_again() {
        let mut board =
            Board { kubeconfig: None, bootstrap: Some(b"clusters: token".to_vec()), ..Board::new() };
        let installed = |board: &Board| {
            board.start();
            board.disk.content("bootstrap-kubeconfig").map(|content| String::from_utf8(content).unwrap())
        };
        assert_eq!(installed(&board).as_deref(), Some("clusters: token"));
        board.disk.remove("bootstrap-kubeconfig");
        assert_eq!(installed(&board).as_deref(), Some("clusters: token"), "lost before it was used");
        board.write(".used-bootstrap-kubeconfig", &format!("{}\n", provision::used_note(b"clusters: token")));
        board.disk.remove("bootstrap-kubeconfig");
        assert_eq!(installed(&board), None);
        board.bootstrap = Some(b"clusters: another token".to_vec());
        assert_eq!(installed(&board).as_deref(), Some("clusters: another token"));
    }

    #[test]
    fn forgotten_token_is_gone_from_both_places() {
        let scratch = kedge_rig::Scratch::new("forgotten").unwrap();
        let own = scratch.write("etc/bootstrap-kubeconfig", "clusters: token");
        let copy = scratch.write("efi/bootstrap-kubeconfig", "clusters: another token");
        let efi = scratch.join("efi");
        let note = || fs::read_to_string(scratch.join("etc/.used-bootstrap-kubeconfig")).ok();
        forget(&own, Some(&efi)).unwrap();
        assert!(!own.exists() && copy.exists(), "another one stays");
        assert!(note().is_some_and(|note| provision::is_used(b"clusters: token", Some(note.trim_end()))));
        scratch.write("etc/bootstrap-kubeconfig", "clusters: another token");
        forget(&own, Some(&efi)).unwrap();
        forget(&own, Some(&efi)).unwrap();
        assert!(!own.exists() && !copy.exists());
        // where no firmware hands anything over, nothing is noted
        fs::remove_file(scratch.join("etc/.used-bootstrap-kubeconfig")).unwrap();
        scratch.write("etc/bootstrap-kubeconfig", "clusters: token");
        forget(&own, None).unwrap();
        assert!(!own.exists() && note().is_none());
    }

    #[test]
    fn credential_goes_before_a_file() {
        let scratch = kedge_rig::Scratch::new("handed").unwrap();
        let (credentials, efi) = (scratch.path().join("credentials"), scratch.path().join("efi"));
        let found = || {
            let (content, path) = handed(Part::NodeName, Some(&credentials), &efi)?;
            Some((String::from_utf8(content).unwrap(), path))
        };
        assert_eq!(found(), None);
        scratch.write("efi/node-name", "edge-1");
        assert_eq!(found(), Some(("edge-1".to_owned(), efi.join("node-name"))));
        scratch.write("credentials/kedge.node-name", "");
        assert_eq!(found(), Some(("edge-1".to_owned(), efi.join("node-name"))));
        scratch.write("credentials/kedge.node-name", "edge-2");
        assert_eq!(found(), Some(("edge-2".to_owned(), credentials.join("kedge.node-name"))));
    }
}
