//! The keys that this device believes, and `kedge slot keys`.
//!
//! Always holds: of the lists in the image, on the EFI partition and in the agent's directory the highest one
//! counts. So neither an older image nor an emptied `/var` brings back a key or lowers a floor. A list is on
//! the EFI partition before it is in the directory. A list that is there and cannot be read is an error, not
//! an absence. Leaves to others: which list follows which (`kedge_core::slot::keys`); signatures
//! (`signature`).

use super::signature::{check, public_keys};
use super::steps;
use crate::options::Places;
use crate::output::{self, CommandError};
use crate::slot::host::{self, LOCK};
use kedge_core::slot::keys::{self, KeyList, LIST_BYTES, Proposed, Trust};
use kedge_core::slot::list::Step;
use kedge_platform::linux::slots::{EFI, LinuxSlots, lock};
use kedge_platform::linux::{self, Roots, is_root};
use kedge_platform::slots::Slots;
use kedge_platform::{Files, ReadError};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A list's name, in the image, on the EFI partition, and below the agent's directory.
const NAME: &str = "keys";
/// Below the agent's directory.
const FOLDER: &str = "system";
/// On the EFI partition, in this order: FAT may lose a name that is being replaced, and then the other has
/// the list.
const ON_EFI: [&str; 2] = ["kedge/keys-next", "kedge/keys"];
/// In the image's file `release`: it was built to take unsigned updates.
const UNSIGNED: &str = "UPDATES=allow-unsigned";

/// Where lists and keys are.
pub(crate) struct Sources {
    /// The list of the image, or of the package; beside it `update-keys` and `release`.
    own: PathBuf,
    /// Lists that were kept.
    kept: Vec<PathBuf>,
    /// A list that is about to be the first of them.
    next: Option<PathBuf>,
}

impl Sources {
    /// Those of a disk image.
    pub(crate) fn of_image(roots: &Roots, efi: &Path, root_dir: &Path) -> Self {
        Self {
            own: roots.usr_lib.join("kedge-image").join(NAME),
            kept: vec![efi.join(ON_EFI[1]), root_dir.join(FOLDER).join(NAME)],
            next: Some(efi.join(ON_EFI[0])),
        }
    }

    /// Those of an installation without slots, with keys in this folder.
    pub(crate) fn of_package(own: &Path, root_dir: &Path) -> Self {
        Self { own: own.join(NAME), kept: vec![root_dir.join(FOLDER).join(NAME)], next: None }
    }

    /// The keys that count.
    ///
    /// # Errors
    /// A key or a list is unreadable.
    pub(crate) fn trust(&self) -> Result<Trust, String> {
        if let Some(list) = self.list()? {
            return Ok(Trust::List(list));
        }
        let keys = public_keys(&self.own.with_file_name("update-keys"))?;
        let is_unsigned =
            || host::read(&self.own.with_file_name("release")).lines().any(|line| line == UNSIGNED);
        Ok(match () {
            () if !keys.is_empty() => Trust::Keys(keys),
            () if is_unsigned() => Trust::Unsigned,
            () => Trust::Nothing,
        })
    }

    /// The list in force.
    fn list(&self) -> Result<Option<KeyList>, String> {
        let mut kept: Vec<_> = self.kept.iter().map(|file| read(file)).collect();
        // a half written list does not count, and the one that it follows is whole
        kept.extend(self.next.iter().map(|file| read(file)).filter(Result::is_ok));
        let is_readable = kept.iter().any(|found| matches!(found, Ok(Some(_))));
        // one good copy is enough
        let kept = match is_readable {
            true => kept.into_iter().filter_map(|found| found.ok().flatten()).collect(),
            false => kept.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?,
        };
        Ok(keys::in_force(read(&self.own)?, kept, &check))
    }

    /// The list in force, if a place for kept lists lacks it.
    pub(super) fn not_kept(&self) -> Result<Option<KeyList>, String> {
        let list = self.list()?;
        Ok(list.filter(|list| self.kept.iter().any(|file| read(file).ok().flatten().as_ref() != Some(list))))
    }

    /// The list that an offered one has to follow. A damaged list is replaced by hand, and the image's counts
    /// then.
    fn before(&self) -> Result<Option<KeyList>, String> {
        self.list().or_else(|_| read(&self.own))
    }
}

/// The list in a file, if there is one.
fn read(file: &Path) -> Result<Option<KeyList>, String> {
    let shown = |why: &dyn std::fmt::Display| format!("cannot use {}: {why}", file.display());
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return Ok(None) };
    match linux::files(folder).read(Path::new(name), LIST_BYTES) {
        Err(ReadError::NotFound { .. }) => Ok(None),
        Err(error) => Err(shown(&crate::errors::chain(&error))),
        Ok(bytes) => KeyList::read(&bytes, &check).map(Some).map_err(|why| shown(&why)),
    }
}

/// Keeps a list for good: on the EFI partition (of a disk image), and then in the agent's directory.
///
/// # Errors
/// It is not in both places; the older list still is.
pub(crate) fn keep<S: Slots>(slots: Option<&S>, root_dir: &Path, list: &KeyList) -> Result<(), String> {
    if let Some(slots) = slots {
        let [next, own] = ON_EFI;
        let put = |place: &str| Step::Put(place.to_owned(), list.bytes().to_vec());
        let all = [put(next), Step::Settle, put(own), Step::Settle, Step::Drop(next.to_owned())];
        steps::perform(slots, &all, &mut io::empty())?;
    }
    let files = linux::files(root_dir.join(FOLDER));
    files.write_durably(Path::new(NAME), list.bytes()).map_err(|error| crate::errors::chain(&error))
}

/// `kedge slot keys`: shows the keys that count.
///
/// # Errors
/// A list or a key is unreadable.
pub fn show(places: &Places) -> Result<(), CommandError> {
    let trust = sources(places).trust().map_err(CommandError::new)?;
    match trust {
        Trust::List(list) => list.lines().into_iter().for_each(output::print),
        Trust::Keys(keys) => {
            keys.iter()
                .for_each(|(name, key)| output::print(format_args!("release {} {name}", keys::id(key))));
        }
        Trust::Unsigned => output::print("no key: updates need no signature"),
        Trust::Nothing => output::print("no key: no update is taken"),
    }
    Ok(())
}

/// `kedge slot keys FILE`: takes a list.
///
/// # Errors
/// It is refused, or cannot be kept.
pub fn take(places: &Places, file: &str) -> Result<(), CommandError> {
    let unchanged =
        |why: &dyn std::fmt::Display| CommandError::new(format_args!("{why}; nothing was changed"));
    if !is_root() {
        return Err(unchanged(&"a list of keys needs root"));
    }
    let _lock = lock(Path::new(LOCK), true)
        .map_err(|error| unchanged(&format_args!("cannot lock {LOCK}: {error}")))?;
    let bytes = bytes(file).map_err(|error| unchanged(&format_args!("cannot read {file}: {error}")))?;
    let list = propose(&sources(places), &bytes).map_err(|why| unchanged(&why))?;
    let slots = host::is_image(&Roots::default()).then(|| LinuxSlots::new(&Roots::default(), EFI));
    keep(slots.as_ref(), &places.root_dir, &list).map_err(CommandError::new)?;
    list.lines().into_iter().for_each(output::print);
    Ok(())
}

/// The list to keep: an offered one that follows, or the one in force, to write its copies once more.
fn propose(sources: &Sources, bytes: &[u8]) -> Result<KeyList, String> {
    let before = sources.before()?;
    match keys::propose(before.as_ref(), bytes, true, &check)? {
        Proposed::New(list) => Ok(list),
        Proposed::Known => KeyList::read(bytes, &check),
    }
}

fn sources(places: &Places) -> Sources {
    let roots = Roots::default();
    match host::is_image(&roots) {
        true => Sources::of_image(&roots, Path::new(EFI), &places.root_dir),
        false => Sources::of_package(&package(&roots), &places.root_dir),
    }
}

/// Where a machine without slots has its keys: a person's, or else the package's.
fn package(roots: &Roots) -> PathBuf {
    let own = roots.etc.join("kedge");
    match [NAME, "update-keys"].iter().any(|name| own.join(name).exists()) {
        true => own,
        false => roots.usr_lib.join("kedge"),
    }
}

fn bytes(file: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // one more than a list may have, so that it is refused
    let most = LIST_BYTES as u64 + 1;
    match file {
        "-" => io::stdin().lock().take(most).read_to_end(&mut bytes)?,
        file => File::open(file)?.take(most).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::signature::tests::KEY;
    use super::*;
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use kedge_core::slot::manifest::{MANIFEST_BYTES, Terms, verify};
    use kedge_platform::fake::{FakeDisk, FakeSlots, Loss};
    use kedge_rig::Scratch;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    /// A list of one root and one release key, signed by these roots.
    fn list(version: u64, root: u8, by: &[u8]) -> Vec<u8> {
        let pair = |seed: u8| Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        let public = |seed| -> keys::Key { pair(seed).public_key().as_ref().try_into().unwrap() };
        let text = format!(
            "kedge-keys 1\nversion {version}\nroots-needed 1\nroot {}\nrelease {} r\nfloor toaster {version}\n",
            BASE64_STANDARD.encode(public(root)),
            BASE64_STANDARD.encode(public(99))
        );
        let line = |seed: &u8| {
            let signature = BASE64_STANDARD.encode(pair(*seed).sign(text.as_bytes()));
            format!("signature {} {signature}\n", keys::id(&public(*seed)))
        };
        [text.clone(), by.iter().map(line).collect()].concat().into_bytes()
    }

    /// A device with these files.
    fn device(files: &[(&str, &[u8])]) -> (Scratch, Sources) {
        let scratch = Scratch::new("key-lists").unwrap();
        for (path, content) in files {
            scratch.write(path, content);
        }
        let roots = Roots { usr_lib: scratch.join("lib"), ..Roots::default() };
        let sources = Sources::of_image(&roots, &scratch.join("efi"), &scratch.join("state"));
        (scratch, sources)
    }

    #[track_caller]
    fn check_trust(files: &[(&str, &[u8])], expected: &str) {
        let (_scratch, sources) = device(files);
        let found = match sources.trust() {
            Ok(Trust::List(list)) => format!("list {}", list.version),
            Ok(Trust::Keys(keys)) => keys.into_iter().map(|(name, _)| name).collect(),
            Ok(other) => format!("{other:?}"),
            Err(why) => why,
        };
        assert!(found.contains(expected), "{found}, expected {expected}");
    }

    const IMAGE: &str = "lib/kedge-image/keys";
    const PEM: &str = "lib/kedge-image/update-keys/2026.pem";
    const RELEASE: &str = "lib/kedge-image/release";
    const EFI_COPY: &str = "efi/kedge/keys";
    const NEXT_COPY: &str = "efi/kedge/keys-next";
    const COPY: &str = "state/system/keys";

    /// Files that `images/keys sign` and `images/build` made, with openssl.
    const LIST: &str = "kedge-keys 1\n\
         version 1\n\
         roots-needed 1\n\
         root mE3NHIhmU8PCQkWvNc4E2xSF3c5CxvAdm+x6+dLaJaQ=\n\
         release rKZM1Vq3dCdqEsDHb3EIpb4ehY17t8U1BUHj2GfjCCY= builder\n\
         floor x86_64-uefi 0.1.0~\n\
         signature fa5a6ef07913f15c teKuWgUN0uDyKbodOTWMaioG0cvjd77PGa5aD8WBoo5GHZM371ZvxCVXA8Dv68s5OZMZAEFZvr91tPUiIL1hBg==\n\
         ";
    const BLOCK: &str = "kedge-update 2\n\
         board x86_64-uefi\n\
         version 0.1.0~git20261201000312.759bd347b1.dirty+p20261127.2637224\n\
         options console=tty0 console=ttyS0,115200 no_timer_check panic=10 oops=panic gpt net.ifnames=0 rootfstype=squashfs ro quiet\n\
         index 90659 593088445bc1a65a5ff6c9a747a10702fd03e2e56aea3ca8d8a3cb2dcd0c33ae\n\
         vmlinuz 8247232 85667e6c72245133bd7e3e80bac7d16b26fda15c0a3c68faa4b713850ea526cd\n\
         initrd 2460754 bb0fd777689f2fed56cf5e9739c1ffe5ff8b248770ad72855d018f2c524078a9\n\
         root 49598464 70f04305d181230a89f580dc9f16900087d23e2ec16edef2cbfdf8ea345bb1cb\n\
         floor-of 1\n\
         signature baf4af81601127cd Sh+d66LXZIaQ+Ito8HVuxv5ovGOLFizGuh0fJz5GCQptXQqz9Q30nayVj+83VdwoNHTyt215zspGyA41hnkwCg==";

    #[test]
    fn list_of_the_builder_verifies_its_update() {
        let (_scratch, sources) = device(&[(IMAGE, LIST.as_bytes())]);
        let trust = sources.trust().unwrap();
        let mut block = BLOCK.as_bytes().to_vec();
        block.resize(MANIFEST_BYTES, b'\n');
        let terms = Terms {
            board: "x86_64-uefi",
            running: "9",
            trust: &trust,
            allows_older: false,
            below_floor: false,
        };
        let manifest = verify(&block, None, &terms, &check).unwrap();
        assert_eq!(manifest.signer.as_deref(), Some("builder"));
        assert_eq!(manifest.bytes(), MANIFEST_BYTES as u64 + 90_659 + 8_247_232 + 2_460_754 + 49_598_464);
    }

    #[test]
    fn highest_list_counts_wherever_it_is() {
        let (one, two, three) = (list(1, 7, &[7]), list(2, 7, &[7]), list(3, 7, &[7]));
        let pem = KEY.as_bytes();
        check_trust(&[(IMAGE, &one), (PEM, pem)], "list 1");
        check_trust(&[(IMAGE, &one), (EFI_COPY, &two), (COPY, &two)], "list 2");
        // an older image, after a newer one; an emptied /var; a cut between the two copies
        check_trust(&[(PEM, pem), (EFI_COPY, &two), (COPY, &two)], "list 2");
        check_trust(&[(IMAGE, &one), (EFI_COPY, &two)], "list 2");
        check_trust(&[(IMAGE, &one), (EFI_COPY, &three), (COPY, &two)], "list 3");
        check_trust(&[(IMAGE, &three), (EFI_COPY, &two), (COPY, &two)], "list 3");
        check_trust(&[(IMAGE, &list(9, 8, &[8])), (EFI_COPY, &two)], "list 2");
        check_trust(&[(IMAGE, &one), (NEXT_COPY, &two)], "list 2");
        check_trust(&[(IMAGE, &one), (NEXT_COPY, b"")], "list 1");
    }

    #[test]
    fn list_of_a_good_image_is_kept_once() {
        let (one, two) = (list(1, 7, &[7]), list(2, 7, &[7]));
        let kept = |files: &[(&str, &[u8])]| {
            let (_scratch, sources) = device(files);
            sources.not_kept().unwrap().map(|list| list.version)
        };
        assert_eq!(kept(&[(PEM, KEY.as_bytes())]), None);
        assert_eq!(kept(&[(IMAGE, &one)]), Some(1));
        assert_eq!(kept(&[(IMAGE, &one), (EFI_COPY, &one)]), Some(1));
        assert_eq!(kept(&[(IMAGE, &two), (EFI_COPY, &one), (COPY, &one)]), Some(2));
        assert_eq!(kept(&[(IMAGE, &one), (EFI_COPY, &two), (COPY, &two)]), None);
    }

    #[test]
    fn damaged_list_is_no_absence_of_a_list() {
        let (one, two) = (list(1, 7, &[7]), list(2, 7, &[7]));
        let mut rotten = two.clone();
        rotten[40] ^= 1;
        check_trust(&[(IMAGE, &one), (EFI_COPY, &rotten), (COPY, &two)], "list 2");
        check_trust(&[(IMAGE, &one), (EFI_COPY, &rotten)], "efi/kedge/keys: ");
        check_trust(&[(IMAGE, &one), (COPY, b"")], "state/system/keys: ");
        check_trust(&[(IMAGE, &rotten), (PEM, KEY.as_bytes())], "lib/kedge-image/keys: ");
        // by hand, a list that follows the image's mends it
        let (_scratch, sources) = device(&[(IMAGE, &one), (EFI_COPY, &rotten)]);
        assert_eq!(propose(&sources, &two).unwrap().version, 2);
        assert!(propose(&sources, &list(2, 8, &[8])).is_err());
    }

    #[test]
    fn image_without_keys_takes_updates_only_if_it_says_so() {
        check_trust(&[(RELEASE, b"BOARD=toaster\n")], "Nothing");
        check_trust(&[(RELEASE, b"BOARD=toaster\nUPDATES=allow-unsigned\n")], "Unsigned");
        check_trust(&[(RELEASE, b"UPDATES=allow-unsigned\n"), (PEM, KEY.as_bytes())], "2026.pem");
        let list = list(1, 7, &[7]);
        check_trust(&[(RELEASE, b"UPDATES=allow-unsigned\n"), (EFI_COPY, &list)], "list 1");
        check_trust(&[(PEM, b"")], "is no Ed25519 public key in PEM");
    }

    #[test]
    fn list_is_on_the_efi_partition_first() {
        let old = KeyList::read(&list(1, 7, &[7]), &check).unwrap();
        let new = KeyList::read(&list(2, 7, &[7]), &check).unwrap();
        let whole = FakeDisk::new();
        let scratch = Scratch::in_memory("kept").unwrap();
        keep(Some(&FakeSlots::new(&whole)), scratch.path(), &new).unwrap();
        assert!(whole.holds(ON_EFI[1], new.bytes()) && whole.content(ON_EFI[0]).is_none());
        for cut in 0..=whole.operations() {
            for loss in Loss::all(8) {
                let disk = FakeDisk::new();
                let state = Scratch::in_memory("kept").unwrap();
                keep(Some(&FakeSlots::new(&disk)), state.path(), &old).unwrap();
                disk.sync_all().unwrap();
                disk.cut_power_after(cut);
                let done = keep(Some(&FakeSlots::new(&disk)), state.path(), &new);
                disk.cut_power();
                disk.reboot(loss);
                let version = |bytes: &[u8]| KeyList::read(bytes, &check).ok().map(|list| list.version);
                let on_efi = ON_EFI.iter().filter_map(|name| version(&disk.content(name)?)).max();
                let kept = read(&state.join(FOLDER).join(NAME)).unwrap().unwrap().version;
                let when = format!("cut {cut}, {loss:?}: {on_efi:?} on the EFI partition, {kept} in /var");
                assert!(on_efi >= Some(kept) && kept == if done.is_ok() { 2 } else { 1 }, "{when}");
            }
        }
    }
}
