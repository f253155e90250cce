//! The first block of an update: its members, its board, its version, and the signatures over all of that.
//!
//! Always holds: nothing of a block is read before its digest (where one is wanted) and its signature are
//! right. A version below the floor that the roots of the key list have set is refused. Where they set none
//! for this board, a version older than the running one is refused. A manifest becomes a boot entry word for
//! word, so it has one line per key and no control characters. Two formats: 1 has one signature without a
//! key's name and no index; agents before the second one read no other. Leaves to others: which keys count
//! (`keys`); whether a slot may be written (`admission`).

use super::keys;
use super::keys::{Check, Signed, Trust, hex};
use super::version::{is_version, order};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

/// The manifest's size: one block of lines "KEY VALUE", filled up with newlines.
pub const MANIFEST_BYTES: usize = 4096;
/// The first line.
const FORMATS: [&str; 2] = ["kedge-update 1", "kedge-update 2"];
/// The files of a slot that its boot entry names, as in the manifest and in `kedge/SLOT` on the EFI
/// partition.
pub const FILES: [&str; 2] = ["vmlinuz", "initrd"];
/// The index of the root's chunks.
pub const INDEX: &str = "index";
/// The root file system.
pub const ROOT: &str = "root";
/// The agent's program, of an update that has nothing else.
pub const PROGRAM: &str = "program";
/// The members, in the order of their bytes behind the manifest.
const MEMBERS: [&str; 5] = [INDEX, FILES[0], FILES[1], ROOT, PROGRAM];
/// The place of the slot's root, and the demands of its trial, or the mark that it passed one.
const OWN_OPTIONS: [&str; 2] = ["root=", "kedge."];

/// A verified manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// SHA-256 of the block.
    pub digest: String,
    /// For which board it is.
    pub board: String,
    /// For people, and for the order of updates.
    pub version: String,
    /// For the kernel's command line.
    pub options: String,
    /// In the order of their bytes.
    pub members: Vec<Member>,
    /// The name of the key that signed it; `None` if no signature is required.
    pub signer: Option<String>,
}

/// A part of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its word in the manifest.
    pub key: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in lower case.
    pub digest: String,
}

/// Why an update is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub text: String,
}

/// The kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is not the requested block: a server's fault.
    WrongDigest,
    /// No key that counts has signed it.
    NoSignature,
    /// This image has no key, and was not built to do without.
    UnsignedSystem,
    /// It cannot be read.
    Invalid,
    /// It is for another board.
    NotForThisBoard,
    /// Its version is below the floor, or older than the one that runs.
    Older,
}

impl Reason {
    /// The word in a condition.
    pub const fn word(self) -> &'static str {
        match self {
            Self::WrongDigest => "WrongDigest",
            Self::NoSignature => "NoSignature",
            Self::UnsignedSystem => "UnsignedSystem",
            Self::Invalid => "Invalid",
            Self::NotForThisBoard => "NotForThisBoard",
            Self::Older => "Older",
        }
    }

    fn because<T>(self, text: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal { reason: self, text: text.into() })
    }
}

/// The facts that decide about an update.
#[derive(Debug)]
pub struct Terms<'a> {
    /// The board of this device.
    pub board: &'a str,
    /// The version that runs; empty if it is unknown.
    pub running: &'a str,
    /// The keys that count.
    pub trust: &'a Trust,
    /// Takes a version older than the one that runs: for a person on the device.
    pub allows_older: bool,
    /// Takes a version below the floor: for the way back to a system that ran before.
    pub below_floor: bool,
}

/// The name of a system: the SHA-256 of its block.
pub fn digest_of(block: &[u8]) -> String {
    hex(&Sha256::digest(block))
}

/// Judges the block at the beginning of an update, and reads it.
///
/// # Errors
/// Why the update is refused.
pub fn verify(
    block: &[u8],
    wanted: Option<&str>,
    terms: &Terms<'_>,
    check: Check<'_>,
) -> Result<Manifest, Refusal> {
    let digest = digest_of(block);
    if wanted.is_some_and(|wanted| wanted != digest) {
        return Reason::WrongDigest
            .because(format!("the manifest has the digest {digest}, expected another"));
    }
    let signer = signer(block, terms.trust, check)?;
    let parsed = Manifest::parse(block, digest, signer);
    let manifest = parsed.or_else(|why| Reason::Invalid.because(why))?;
    let (board, version) = (&manifest.board, &manifest.version);
    if board != terms.board {
        return Reason::NotForThisBoard
            .because(format!("the update is for the board {board:?}, this is {:?}", terms.board));
    }
    is_recent(board, version, terms).or_else(|why| Reason::Older.because(why))?;
    Ok(manifest)
}

/// The roots' floor counts for every device. It also replaces the limit of the running version. If a stolen
/// key has signed a version that no later one can reach, the roots bring the devices back by a floor.
fn is_recent(board: &str, version: &str, terms: &Terms<'_>) -> Result<(), String> {
    let floor = if let Trust::List(list) = terms.trust { list.floor(board) } else { None };
    let anyway = "--allow-older takes it all the same";
    match floor {
        _ if terms.below_floor => Ok(()),
        Some(floor) if order(version, floor).is_lt() => Err(format!(
            "the update has version {version}, which is below {floor}, the floor of the list of keys"
        )),
        Some(_) => Ok(()),
        None if terms.allows_older => Ok(()),
        None if terms.running.is_empty() => Err(format!(
            "the update has version {version}, and that of the running image cannot be read; {anyway}"
        )),
        None if order(version, terms.running).is_lt() => Err(format!(
            "the update has version {version}, which is older than {}, which runs; {anyway}",
            terms.running
        )),
        None => Ok(()),
    }
}

/// The name of the key that signed the block.
fn signer(block: &[u8], trust: &Trust, check: Check<'_>) -> Result<Option<String>, Refusal> {
    match trust {
        Trust::Unsigned => return Ok(None),
        Trust::Nothing => {
            let why = "this image was built without a key, so it takes no update";
            return Reason::UnsignedSystem.because(why);
        }
        Trust::List(_) | Trust::Keys(_) => {}
    }
    let (keys, wanted) =
        (trust.keys(), "and this image takes only updates that are signed by one of its keys");
    let is_second =
        block.strip_prefix(FORMATS[1].as_bytes()).is_some_and(|rest| rest.first() == Some(&b'\n'));
    let found = match is_second {
        true => Signed::split(block).map(|signed| keys.iter().find(|(_, key)| signed.is_by(key, check))),
        false => split_first(block)
            .map(|(signed, signature)| keys.iter().find(|(_, key)| check(key, signed, &signature))),
    };
    match found {
        Some(Some((name, _))) => Ok(Some((*name).to_owned())),
        Some(None) => {
            let names = keys.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            let text = format!("the update's signature is of none of this image's keys ({names}), {wanted}");
            Reason::NoSignature.because(text)
        }
        None => Reason::NoSignature.because(format!("the update carries no signature, {wanted}")),
    }
}

/// Of the first format, the signed part, and the signature: the last line, followed by newlines only.
fn split_first(block: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let text = std::str::from_utf8(block).ok()?.trim_end_matches('\n');
    let (begin, last) = text.rsplit_once('\n')?;
    let signature = BASE64_STANDARD.decode(last.strip_prefix(keys::SIGNATURE)?).ok()?;
    // with the newline that ends it
    block.get(..=begin.len()).map(|signed| (signed, signature))
}

impl Manifest {
    fn parse(block: &[u8], digest: String, signer: Option<String>) -> Result<Self, String> {
        let text = std::str::from_utf8(block).ok();
        let text = text.filter(|text| text.lines().next().is_some_and(|line| FORMATS.contains(&line)));
        let text = text.ok_or("the file is no update, or its format is unknown to this image")?;
        if text.chars().any(|char| char.is_control() && char != '\n') {
            return Err("the manifest has control characters".to_owned());
        }
        let all = |key: &str| text.lines().filter_map(|line| value(line, key)).collect::<Vec<_>>();
        let one = |key: &str| match all(key)[..] {
            [value] => Ok(value),
            ref values => Err(format!("the manifest has {} lines {key:?}, expected one", values.len())),
        };
        let is_program = !all(PROGRAM).is_empty();
        let is_member = |key: &&str| match *key {
            PROGRAM => is_program,
            INDEX => !all(INDEX).is_empty(),
            _ => !is_program,
        };
        let member = |key| Member::parse(key, one(key)?);
        let members = MEMBERS.into_iter().filter(is_member).map(member).collect::<Result<_, _>>()?;
        let version = one("version")?;
        if !is_version(version) {
            return Err(format!("the manifest's version is {version:?}, expected letters, digits and .+~-_"));
        }
        let options = if is_program { "" } else { one("options")? };
        // of several values of a word the last one wins, and these are the update's
        if let Some(word) =
            options.split_whitespace().find(|word| OWN_OPTIONS.iter().any(|own| word.starts_with(own)))
        {
            return Err(format!("the manifest's options set {word:?}, which is this node's to set"));
        }
        Ok(Self {
            digest,
            board: one("board")?.to_owned(),
            version: version.to_owned(),
            options: options.to_owned(),
            members,
            signer,
        })
    }

    /// A member of it.
    pub fn member(&self, key: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.key == key)
    }

    /// Where a member begins in the update.
    pub fn offset(&self, key: &str) -> Option<u64> {
        let at = self.members.iter().position(|member| member.key == key)?;
        let before = self.members.iter().take(at);
        Some(before.fold(MANIFEST_BYTES as u64, |sum, member| sum.saturating_add(member.bytes)))
    }

    /// The size of the whole update.
    pub fn bytes(&self) -> u64 {
        self.members.iter().fold(MANIFEST_BYTES as u64, |sum, member| sum.saturating_add(member.bytes))
    }
}

impl Member {
    /// Two words, SIZE SHA256.
    fn parse(key: &'static str, value: &str) -> Result<Self, String> {
        let parsed = value.split_once(' ').and_then(|(size, digest)| {
            let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            let bytes = size.parse::<u64>().ok().filter(|bytes| is_digest && *bytes > 0)?;
            Some(Self { key, bytes, digest: digest.to_ascii_lowercase() })
        });
        parsed.ok_or_else(|| format!("the manifest's line {key:?} is not SIZE SHA256"))
    }
}

/// The rest of a line that begins with a key.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix(' ')
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::keys::tests::{check_of, list, named, sign, signed};
    use super::*;
    use std::fmt::Write;

    const SIZES: [(&str, u64); 4] =
        [("index", 500), ("vmlinuz", 100_000), ("initrd", 20_000), ("root", 3000)];

    /// The lines of a manifest for the board "toaster".
    pub(in super::super) fn text(format: &str, version: &str) -> String {
        let digest = "0123456789abcdef".repeat(4);
        let mut text = format!("{format}\nboard toaster\nversion {version}\noptions quiet\n");
        for (key, bytes) in SIZES.into_iter().filter(|(key, _)| format != FORMATS[0] || *key != INDEX) {
            let _ = writeln!(text, "{key} {bytes} {digest}");
        }
        text
    }

    pub(in super::super) fn block(text: impl Into<Vec<u8>>) -> Vec<u8> {
        let mut block = text.into();
        block.resize(MANIFEST_BYTES, b'\n');
        block
    }

    pub(in super::super) const ANYBODY: Terms<'_> = Terms {
        board: "toaster",
        running: "2",
        trust: &Trust::Unsigned,
        allows_older: false,
        below_floor: false,
    };

    fn judged(block: &[u8], terms: &Terms<'_>) -> String {
        match verify(block, None, terms, &check_of) {
            Ok(Manifest { version, signer, .. }) => format!("{version} by {signer:?}").replace('"', ""),
            Err(Refusal { reason, text }) => format!("{}: {text}", reason.word()),
        }
    }

    #[track_caller]
    fn check(block: &[u8], terms: &Terms<'_>, expected: &str) {
        let found = judged(block, terms);
        assert!(found.contains(expected), "{found}, expected {expected}");
    }

    fn of_keys(keys: &str) -> Trust {
        Trust::Keys(keys.chars().map(|key| (format!("{key}.pem"), named(key))).collect())
    }

    fn first(text: &str, key: char) -> Vec<u8> {
        let signature = BASE64_STANDARD.encode(sign(&named(key), text.as_bytes()));
        block(format!("{text}{}{signature}\n", keys::SIGNATURE))
    }

    #[test]
    fn members_follow_the_manifest_in_order() {
        let manifest = verify(&block(text(FORMATS[1], "2")), None, &ANYBODY, &check_of).unwrap();
        let places: Vec<_> = manifest
            .members
            .iter()
            .map(|member| (member.key, manifest.offset(member.key).unwrap()))
            .collect();
        assert_eq!(places, [("index", 4096), ("vmlinuz", 4596), ("initrd", 104_596), ("root", 124_596)]);
        assert_eq!(manifest.bytes(), 127_596);
        assert_eq!((manifest.member("root").unwrap().bytes, manifest.member("program")), (3000, None));
        let first = verify(&block(text(FORMATS[0], "2")), None, &ANYBODY, &check_of).unwrap();
        assert_eq!((first.offset("index"), first.offset("vmlinuz")), (None, Some(4096)));
        let digest = "0123456789abcdef".repeat(4);
        let program = block(format!("{}\nboard toaster\nversion 2\nprogram 7 {digest}\n", FORMATS[1]));
        let program = verify(&program, None, &ANYBODY, &check_of).unwrap();
        assert_eq!(
            (program.offset("program"), program.bytes(), program.options.as_str()),
            (Some(4096), 4103, "")
        );
    }

    #[test]
    fn update_is_signed_by_a_key_that_counts() {
        let text = text(FORMATS[1], "2");
        let trust = Trust::List(list(1, "rs", &format!("revoked {}\n", keys::id(&named('r')))));
        let terms = Terms { trust: &trust, ..ANYBODY };
        check(&block(signed(&text, "s")), &terms, "2 by Some(key-s)");
        check(&block(signed(&text, "xrs")), &terms, "2 by Some(key-s)");
        check(
            &block(signed(&text, "r")),
            &terms,
            "NoSignature: the update's signature is of none of this image's keys (key-s)",
        );
        check(&block(signed(&text, "A")), &terms, "NoSignature: the update's signature is of none");
        check(&block(&*text), &terms, "NoSignature: the update carries no signature");
        check(&block(signed(&text, "sssssssss")), &terms, "NoSignature: the update carries no signature");
        let terms = Terms { trust: &of_keys("ab"), ..ANYBODY };
        check(&block(signed(&text, "b")), &terms, "2 by Some(b.pem)");
        check(&block(signed(&text, "c")), &terms, "NoSignature");
    }

    #[test]
    fn first_format_has_one_signature() {
        let text = text(FORMATS[0], "2");
        let terms = Terms { trust: &of_keys("ab"), ..ANYBODY };
        check(&first(&text, 'b'), &terms, "2 by Some(b.pem)");
        check(
            &first(&text, 'c'),
            &terms,
            "NoSignature: the update's signature is of none of this image's keys (a.pem, b.pem)",
        );
        let revoked = Trust::List(list(1, "rs", &format!("revoked {}\n", keys::id(&named('r')))));
        check(&first(&text, 's'), &Terms { trust: &revoked, ..ANYBODY }, "2 by Some(key-s)");
        check(&first(&text, 'r'), &Terms { trust: &revoked, ..ANYBODY }, "NoSignature");
    }

    #[test]
    fn altered_update_is_refused() {
        let (text, trust) = (text(FORMATS[1], "2"), of_keys("a"));
        let terms = Terms { trust: &trust, ..ANYBODY };
        for whole in [signed(&text, "a"), first(&text.replace("update 2", "update 1"), 'a')] {
            let whole = String::from_utf8(whole).unwrap().trim_end().to_owned();
            for at in 0..whole.len() {
                let mut altered = block(whole.clone());
                altered[at] ^= 1;
                assert!(judged(&altered, &terms).starts_with("NoSignature"), "byte {at}");
            }
            check(&block(format!("{whole}\noptions init=/bin/sh\n")), &terms, "NoSignature");
            check(&block(format!("options init=/bin/sh\n{whole}\n")), &terms, "NoSignature");
        }
    }

    #[test]
    fn unsigned_update_needs_an_image_that_says_so() {
        let whole = block(text(FORMATS[1], "2"));
        check(&whole, &ANYBODY, "2 by None");
        check(
            &whole,
            &Terms { trust: &Trust::Nothing, ..ANYBODY },
            "UnsignedSystem: this image was built without a key",
        );
        check(&block(signed(&text(FORMATS[1], "2"), "a")), &ANYBODY, "2 by None");
    }

    #[test]
    fn only_the_wanted_digest_is_read() {
        let whole = block(text(FORMATS[1], "2"));
        let digest = hex(&Sha256::digest(&whole));
        let manifest = verify(&whole, Some(&digest), &ANYBODY, &check_of).unwrap();
        assert_eq!(manifest.digest, digest);
        let other = verify(&whole[1..], Some(&digest), &ANYBODY, &check_of).unwrap_err();
        assert_eq!(other.reason, Reason::WrongDigest);
    }

    #[test]
    fn floor_counts_for_everybody() {
        let update = |version: &str| block(signed(&text(FORMATS[1], version), "r"));
        let trust = Trust::List(list(1, "r", "floor toaster 1.4\nfloor kettle 7\n"));
        let terms = Terms { trust: &trust, running: "99", ..ANYBODY };
        check(&update("1.4"), &terms, "1.4 by");
        let why = "Older: the update has version 1.4~rc1, which is below 1.4, the floor of the list of keys";
        check(&update("1.4~rc1"), &terms, why);
        check(&update("1.4~rc1"), &Terms { allows_older: true, ..terms }, why);
        check(&update("1.4~rc1"), &Terms { below_floor: true, ..terms }, "1.4~rc1 by");
        // a floor of another board leaves the running version as the limit
        let trust = Trust::List(list(1, "r", "floor kettle 7\n"));
        let terms = Terms { trust: &trust, running: "99", ..ANYBODY };
        check(
            &update("1.4"),
            &terms,
            "Older: the update has version 1.4, which is older than 99, which runs",
        );
    }

    #[test]
    fn older_update_must_be_asked_for() {
        let newer = block(text(FORMATS[0], "0.2.0~git20261124000000.0123456789"));
        let runs = |running| Terms { running, ..ANYBODY };
        check(&newer, &runs("0.2.0~git20261123000000.fedcba9876"), "0.2.0~git2026");
        check(&newer, &runs("0.2.0~git20261124000000.0123456789"), "0.2.0~git2026");
        check(
            &newer,
            &runs("0.2.0"),
            "which is older than 0.2.0, which runs; --allow-older takes it all the same",
        );
        check(&newer, &runs(""), "that of the running image cannot be read; --allow-older");
        for running in ["0.2.0", ""] {
            check(&newer, &Terms { running, allows_older: true, ..ANYBODY }, "0.2.0~git2026");
        }
    }

    #[test]
    fn invalid_manifest_is_rejected() {
        let changed = |change: &str, to: &str| {
            let text = text(FORMATS[1], "2");
            assert!(text.contains(change), "{change}");
            block(text.replacen(change, to, 1))
        };
        let board = "NotForThisBoard: the update is for the board \"kettle\", this is \"toaster\"";
        check(&changed("board toaster", "board kettle"), &ANYBODY, board);
        check(
            &changed("update 2", "update 3"),
            &ANYBODY,
            "Invalid: the file is no update, or its format is unknown",
        );
        check(b"nonsense", &ANYBODY, "no update");
        check(&[0xff; MANIFEST_BYTES], &ANYBODY, "no update");
        check(&changed("version 2", "version \u{1b}[2J"), &ANYBODY, "control characters");
        check(&changed("options quiet\n", ""), &ANYBODY, "has 0 lines \"options\"");
        check(&changed("vmlinuz 1", "vmlinux 1"), &ANYBODY, "has 0 lines \"vmlinuz\"");
        check(&changed("options quiet", "options quiet\nboard toaster"), &ANYBODY, "has 2 lines \"board\"");
        check(&changed("index 500", "index 500 0\nindex"), &ANYBODY, "has 2 lines \"index\"");
        check(&changed("root 3000 0", "root 3000 "), &ANYBODY, "line \"root\" is not SIZE SHA256");
        check(&changed("initrd 20000", "initrd 0"), &ANYBODY, "line \"initrd\" is not SIZE SHA256");
        check(&changed("vmlinuz 100000", "vmlinuz 1e5"), &ANYBODY, "line \"vmlinuz\" is not SIZE SHA256");
        check(
            &changed("version 2", "version 2 kedge.slot=good"),
            &ANYBODY,
            "version is \"2 kedge.slot=good\"",
        );
    }

    #[test]
    fn update_sets_no_option_of_the_node() {
        let options = |words: &str| {
            block(text(FORMATS[1], "2").replace("options quiet", &format!("options quiet {words}")))
        };
        check(&options("kedge.slot=good"), &ANYBODY, "options set \"kedge.slot=good\", which is this node's");
        check(&options("kedge.demands="), &ANYBODY, "options set \"kedge.demands=\"");
        check(&options("root=PARTLABEL=root-a"), &ANYBODY, "options set \"root=PARTLABEL=root-a\"");
        check(&options("rootfstype=squashfs"), &ANYBODY, "2 by None");
    }
}
