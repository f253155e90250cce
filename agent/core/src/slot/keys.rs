//! The list of keys whose signatures an update needs. Its roots sign it and its successor.
//!
//! Always holds: a list follows the one in force only with a higher version, and with the signatures that the
//! roots of the list in force ask for. It carries as many of its own roots, so a copy that the disk altered
//! shows itself, and no list is taken that no list could follow. The keys of releases sign updates; only the
//! roots set the floor, so a stolen release key cannot lock devices out. Nothing here expires: a device may
//! have no clock. Leaves to others: reading and keeping lists (`agent/src/slot/keys.rs`); the arithmetic of a
//! signature (`Check`); updates (`manifest`).

use super::version::is_version;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Largest list.
pub const LIST_BYTES: usize = 8192;
/// The first line.
const FORMAT: &str = "kedge-keys 1";
/// Begin of a signature's line.
pub(super) const SIGNATURE: &str = "signature ";
/// Most signatures of a list or of an update; each one checked costs time.
pub(super) const SIGNATURES: usize = 8;
/// Most keys of one kind.
const KEYS: usize = 16;
/// Most revoked keys, and most floors.
const LINES: usize = 64;
/// Longest name of a key or of a board.
const NAME_BYTES: usize = 64;

/// An Ed25519 public key.
pub type Key = [u8; 32];
/// Whether a signature is this key's over these bytes: key, bytes, signature.
pub type Check<'a> = &'a dyn Fn(&Key, &[u8], &[u8]) -> bool;

/// The id of a key: the first 16 hexadecimal digits of its SHA-256.
pub fn id(key: &Key) -> String {
    hex(&Sha256::digest(key)[..8])
}

/// Lower case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The keys that count on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// A list is in force; its release keys count, and no others.
    List(KeyList),
    /// The keys in the image, each with a name.
    Keys(Vec<(String, Key)>),
    /// The image has no key, and was built to take updates without a signature.
    Unsigned,
    /// The image has no key, and takes no update.
    Nothing,
}

impl Trust {
    /// The keys that may sign an update, each with its name.
    pub(super) fn keys(&self) -> Vec<(&str, &Key)> {
        match self {
            Self::List(list) => list.live().collect(),
            Self::Keys(keys) => keys.iter().map(|(name, key)| (name.as_str(), key)).collect(),
            Self::Unsigned | Self::Nothing => Vec::new(),
        }
    }
}

/// A list that its own roots have signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyList {
    /// Rises with each list.
    pub version: u64,
    roots: Vec<Key>,
    roots_needed: usize,
    releases: Vec<(Key, String)>,
    revoked: Vec<String>,
    floors: Vec<(String, String)>,
    bytes: Vec<u8>,
}

impl KeyList {
    /// Reads a list, and checks the signatures of its own roots.
    ///
    /// # Errors
    /// It is not a list, or too few of its roots signed it.
    pub fn read(bytes: &[u8], check: Check<'_>) -> Result<Self, String> {
        let list = Self::parse(bytes)?;
        list.is_signed_by(&list, "its own", check).map(|()| list)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > LIST_BYTES {
            return Err(format!("the list of keys has more than {LIST_BYTES} bytes"));
        }
        let signed = Signed::split(bytes).ok_or("the list of keys carries no signature")?;
        let mut lines = signed.text.lines();
        if lines.next() != Some(FORMAT) {
            return Err(format!("the file is no list of keys: its first line is not {FORMAT:?}"));
        }
        let mut list = Self {
            version: 0,
            roots: Vec::new(),
            roots_needed: 0,
            releases: Vec::new(),
            revoked: Vec::new(),
            floors: Vec::new(),
            bytes: bytes.to_vec(),
        };
        for line in lines {
            list.add(line).ok_or_else(|| format!("the list of keys has an invalid line {line:?}"))?;
        }
        match () {
            () if list.version == 0 => Err("the list of keys has no version".to_owned()),
            () if !(1..=list.roots.len()).contains(&list.roots_needed) => {
                let (needed, all) = (list.roots_needed, list.roots.len());
                Err(format!("the list of keys needs {needed} of {all} roots: no list could follow it"))
            }
            () => Ok(list),
        }
    }

    /// Takes a line; `None` if it is invalid. An unknown word is invalid, because a misspelt "revoked" must
    /// not be overlooked.
    fn add(&mut self, line: &str) -> Option<()> {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["version", version] if self.version == 0 => {
                self.version = version.parse().ok().filter(|version| *version > 0)?;
            }
            ["roots-needed", needed] if self.roots_needed == 0 => self.roots_needed = needed.parse().ok()?,
            ["root", root] => {
                let root = key(root).filter(|root| !self.roots.contains(root))?;
                (self.roots.len() < KEYS).then(|| self.roots.push(root))?;
            }
            ["release", release, name] if is_name(name) => {
                let release = key(release)?;
                (self.releases.len() < KEYS).then(|| self.releases.push((release, name.to_owned())))?;
            }
            ["revoked", id] if id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                (self.revoked.len() < LINES).then(|| self.revoked.push(id.to_ascii_lowercase()))?;
            }
            ["floor", board, version]
                if is_name(board) && is_version(version) && self.floor(board).is_none() =>
            {
                (self.floors.len() < LINES)
                    .then(|| self.floors.push((board.to_owned(), version.to_owned())))?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Whether enough roots of `signers` have signed this list.
    fn is_signed_by(&self, signers: &Self, whose: &str, check: Check<'_>) -> Result<(), String> {
        let signed = Signed::split(&self.bytes).ok_or("the list of keys carries no signature")?;
        let has_signed = |root: &&Key| signed.is_by(root, check);
        let count = signers.roots.iter().filter(has_signed).count();
        match count >= signers.roots_needed {
            true => Ok(()),
            false => Err(format!(
                "list {} of keys is signed by {count} of {whose} roots, expected {}",
                self.version, signers.roots_needed
            )),
        }
    }

    /// The keys of releases that are not revoked, with their names.
    pub fn live(&self) -> impl Iterator<Item = (&str, &Key)> {
        let is_live = |(key, _): &&(Key, String)| !self.revoked.contains(&id(key));
        self.releases.iter().filter(is_live).map(|(key, name)| (name.as_str(), key))
    }

    /// The oldest version that a board may be given.
    pub fn floor(&self, board: &str) -> Option<&str> {
        self.floors.iter().find(|(of, _)| of == board).map(|(_, version)| version.as_str())
    }

    /// The list as it was read.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// For people: the version, the keys that count, and the floors.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("list {}", self.version)];
        lines.extend(self.live().map(|(name, key)| format!("release {} {name}", id(key))));
        lines.extend(self.floors.iter().map(|(board, version)| format!("floor {board} {version}")));
        lines
    }
}

/// A list that was offered.
#[derive(Debug, PartialEq, Eq)]
pub enum Proposed {
    /// It follows the one in force.
    New(KeyList),
    /// It is in force already.
    Known,
}

/// Judges an offered list. Without a list in force only a person on the device may bring the first one, and
/// the image: a configuration that could would choose the roots.
///
/// # Errors
/// Why it is refused.
pub fn propose(
    in_force: Option<&KeyList>,
    bytes: &[u8],
    first_by_hand: bool,
    check: Check<'_>,
) -> Result<Proposed, String> {
    let list = KeyList::read(bytes, check)?;
    let Some(old) = in_force else {
        let why = "this device has no list of keys: the first one comes with an image";
        return if first_by_hand { Ok(Proposed::New(list)) } else { Err(why.to_owned()) };
    };
    if list.bytes == old.bytes {
        return Ok(Proposed::Known);
    }
    if list.version <= old.version {
        return Err(format!(
            "list {} of keys is not newer than list {}, which is in force",
            list.version, old.version
        ));
    }
    list.is_signed_by(old, &format!("list {}'s", old.version), check).map(|()| Proposed::New(list))
}

/// The list in force: the highest one that was ever kept, or the image's if that follows it.
pub fn in_force(
    image: Option<KeyList>,
    kept: impl IntoIterator<Item = KeyList>,
    check: Check<'_>,
) -> Option<KeyList> {
    let kept = kept.into_iter().max_by_key(|list| list.version);
    match (kept, image) {
        (Some(kept), Some(image)) => match propose(Some(&kept), &image.bytes, false, check) {
            Ok(Proposed::New(image)) => Some(image),
            _ => Some(kept),
        },
        (kept, image) => kept.or(image),
    }
}

/// A text, and the signatures in the lines at its end: `signature KEYID BASE64`, followed by newlines only.
pub(super) struct Signed<'a> {
    pub(super) text: &'a str,
    signatures: Vec<(&'a str, Vec<u8>)>,
}

impl<'a> Signed<'a> {
    /// `None` without a signature, or if anything else follows the first one.
    pub(super) fn split(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        // with the newline that ends it
        let begin = text.find("\nsignature ")?.checked_add(1)?;
        let (text, end) = text.split_at(begin);
        let lines = end.trim_end_matches('\n').split('\n').map(|line| {
            let (id, signature) = line.strip_prefix(SIGNATURE)?.split_once(' ')?;
            Some((id, BASE64_STANDARD.decode(signature).ok()?))
        });
        let signatures: Vec<_> = lines.collect::<Option<_>>()?;
        (signatures.len() <= SIGNATURES).then_some(Self { text, signatures })
    }

    /// Whether one of the signatures is this key's.
    pub(super) fn is_by(&self, key: &Key, check: Check<'_>) -> bool {
        let own = id(key);
        self.signatures
            .iter()
            .any(|(id, signature)| *id == own && check(key, self.text.as_bytes(), signature))
    }
}

fn key(text: &str) -> Option<Key> {
    BASE64_STANDARD.decode(text).ok()?.try_into().ok()
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// In place of Ed25519: the public key is enough to sign. These tests are about which keys count.
    pub(in super::super) fn sign(key: &Key, bytes: &[u8]) -> Vec<u8> {
        Sha256::digest([&key[..], bytes].concat()).to_vec()
    }

    pub(in super::super) fn check_of(key: &Key, bytes: &[u8], signature: &[u8]) -> bool {
        sign(key, bytes) == signature
    }

    /// A key for each letter.
    pub(in super::super) fn named(letter: char) -> Key {
        [letter as u8; 32]
    }

    fn public(letter: char) -> String {
        BASE64_STANDARD.encode(named(letter))
    }

    /// The text with a signature of each of these keys.
    pub(in super::super) fn signed(text: &str, by: &str) -> Vec<u8> {
        let line = |letter| {
            let signature = BASE64_STANDARD.encode(sign(&named(letter), text.as_bytes()));
            format!("{SIGNATURE}{} {signature}\n", id(&named(letter)))
        };
        (text.to_owned() + &by.chars().map(line).collect::<String>()).into_bytes()
    }

    /// A list of this version, with these roots and release keys (a letter each), and more lines.
    fn text(version: u64, needed: usize, roots: &str, releases: &str, more: &str) -> String {
        let roots: String = roots.chars().map(|root| format!("root {}\n", public(root))).collect();
        let release = |key| format!("release {} key-{key}\n", public(key));
        let releases: String = releases.chars().map(release).collect();
        format!("{FORMAT}\nversion {version}\nroots-needed {needed}\n{roots}{releases}{more}")
    }

    pub(in super::super) fn list(version: u64, releases: &str, more: &str) -> KeyList {
        KeyList::read(&signed(&text(version, 2, "ABC", releases, more), "AB"), &check_of).unwrap()
    }

    #[track_caller]
    fn judge(in_force: Option<&KeyList>, offered: &[u8], expected: &str) {
        let found = match propose(in_force, offered, false, &check_of) {
            Ok(Proposed::New(list)) => format!("list {}", list.version),
            Ok(Proposed::Known) => "known".to_owned(),
            Err(why) => why,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn list_follows_by_signatures_of_the_last_roots() {
        let old = list(3, "r", "");
        let offer = |version, needed, roots, by| signed(&text(version, needed, roots, "s", ""), by);
        judge(Some(&old), &offer(4, 2, "ABC", "BC"), "list 4");
        judge(Some(&old), &offer(9, 1, "D", "DAC"), "list 9");
        judge(Some(&old), old.bytes(), "known");
        judge(
            Some(&old),
            &offer(3, 2, "ABC", "ABC"),
            "list 3 of keys is not newer than list 3, which is in force",
        );
        judge(
            Some(&old),
            &offer(2, 2, "ABC", "ABC"),
            "list 2 of keys is not newer than list 3, which is in force",
        );
        // new roots cannot replace the old ones alone, nor one root twice
        judge(
            Some(&old),
            &offer(4, 1, "D", "DA"),
            "list 4 of keys is signed by 1 of list 3's roots, expected 2",
        );
        judge(
            Some(&old),
            &offer(4, 1, "DA", "DAA"),
            "list 4 of keys is signed by 1 of list 3's roots, expected 2",
        );
        judge(
            Some(&old),
            &offer(4, 2, "DE", "DAB"),
            "list 4 of keys is signed by 1 of its own roots, expected 2",
        );
        // a release key signs no list
        judge(
            Some(&old),
            &offer(4, 2, "ABC", "rA"),
            "list 4 of keys is signed by 1 of its own roots, expected 2",
        );
    }

    #[test]
    fn first_list_comes_with_the_image_or_by_hand() {
        let first = signed(&text(1, 1, "A", "r", ""), "A");
        judge(None, &first, "this device has no list of keys: the first one comes with an image");
        assert!(matches!(propose(None, &first, true, &check_of), Ok(Proposed::New(_))));
        let forged = signed(&text(1, 1, "A", "r", ""), "D");
        assert!(propose(None, &forged, true, &check_of).is_err());
    }

    #[test]
    fn highest_list_ever_kept_counts() {
        let version = |image, kept: &[u64]| {
            let kept = kept.iter().map(|version| list(*version, "r", ""));
            in_force(image, kept, &check_of).map(|list| list.version)
        };
        assert_eq!(version(None, &[]), None);
        assert_eq!(version(Some(list(1, "r", "")), &[]), Some(1));
        assert_eq!(version(Some(list(1, "r", "")), &[2, 7]), Some(7));
        assert_eq!(version(Some(list(8, "r", "")), &[7, 2]), Some(8));
        // an image with other roots changes nothing
        let foreign = KeyList::read(&signed(&text(99, 1, "D", "r", ""), "D"), &check_of).unwrap();
        assert_eq!(version(Some(foreign), &[7]), Some(7));
    }

    #[test]
    fn revoked_key_does_not_count() {
        let names =
            |list: &KeyList| list.live().map(|(name, _)| name.to_owned()).collect::<Vec<_>>().join(" ");
        assert_eq!(names(&list(1, "rs", "")), "key-r key-s");
        let revoked = list(1, "rs", &format!("revoked {}\nfloor toaster 1.4\n", id(&named('r'))));
        assert_eq!(names(&revoked), "key-s");
        assert_eq!(revoked.floor("toaster"), Some("1.4"));
        assert_eq!(revoked.floor("kettle"), None);
        assert_eq!(
            revoked.lines(),
            ["list 1", &format!("release {} key-s", id(&named('s'))), "floor toaster 1.4"]
        );
    }

    #[test]
    fn invalid_list_is_refused() {
        let check = |text: &str, by: &str, expected: &str| {
            let why = KeyList::read(&signed(text, by), &check_of).unwrap_err();
            assert!(why.contains(expected), "{why}, expected {expected}");
        };
        let whole = text(1, 1, "A", "r", "");
        check(&whole, "", "carries no signature");
        check(&whole, "B", "signed by 0 of its own roots");
        check(&whole, "AAAAAAAAA", "carries no signature");
        check(&whole.replace("keys 1", "keys 2"), "A", "its first line is not");
        check(&whole.replace("version 1", "version 0"), "A", "invalid line \"version 0\"");
        check(&whole.replace("version 1\n", ""), "A", "has no version");
        check(&text(1, 2, "A", "", ""), "A", "needs 2 of 1 roots: no list could follow it");
        check(&text(1, 0, "A", "", ""), "A", "needs 0 of 1 roots");
        for line in [
            "version 2",
            "revokd 0123456789abcdef",
            "revoked 0123",
            "floor toaster",
            "floor toaster 1:2",
            "release short name",
            "",
            "root A",
            &format!("root {}", public('A')),
            "floor toaster 1\nfloor toaster 2",
        ] {
            check(&text(1, 1, "A", "r", &format!("{line}\n")), "A", "has an invalid line");
        }
        check(&text(1, 1, "A", "rrrrrrrrrrrrrrrrr", ""), "A", "has an invalid line \"release ");
        check(
            &text(1, 1, "A", "", &"revoked 0123456789abcdef\n".repeat(400)),
            "A",
            "has more than 8192 bytes",
        );
    }

    #[test]
    fn altered_list_is_refused() {
        let whole = signed(&text(1, 1, "A", "r", "floor toaster 1.4\n"), "A");
        for at in 0..whole.len() - 1 {
            let mut altered = whole.clone();
            altered[at] ^= 1;
            assert!(KeyList::read(&altered, &check_of).is_err(), "byte {at}");
        }
        let more = [&whole[..], b"floor toaster 0.1\n"].concat();
        assert!(KeyList::read(&more, &check_of).is_err());
    }
}
