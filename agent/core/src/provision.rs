//! The identity of a node on a disk image: the handling of a kubeconfig and a node name that were handed over
//! at a boot, and of files that the disk has changed.
//!
//! Always holds: a handover is installed once, so that a kubeconfig that was renewed on the device stays; a
//! file that the disk lost, or changed without a write, is replaced by the handover, or else stays in use if
//! it is part of the identity. An invalid handover is ignored, because FAT has no checksums. Notes are beside
//! the files, in a format that older images read. Leaves to others: reading the files, and performing
//! (`agent/src/provision.rs`).

use sha2::{Digest, Sha256};

/// A part of the identity; its file has the same name everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Address and credentials.
    Kubeconfig,
    /// Address, and a token for a first certificate.
    BootstrapKubeconfig,
    /// The Node's name, and the host's.
    NodeName,
}

impl Part {
    /// All.
    pub const ALL: [Self; 3] = [Self::Kubeconfig, Self::BootstrapKubeconfig, Self::NodeName];

    /// The name of its file, and after `kedge.` that of its credential.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubeconfig => "kubeconfig",
            Self::BootstrapKubeconfig => "bootstrap-kubeconfig",
            Self::NodeName => "node-name",
        }
    }

    /// Whether it can be that part at all: FAT has no checksums.
    pub fn is_plausible(self, content: &[u8]) -> bool {
        let is_text = content.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..));
        is_text
            && match self {
                Self::Kubeconfig | Self::BootstrapKubeconfig => {
                    content.windows(8).any(|words| words == b"clusters")
                }
                Self::NodeName => node_name(content).is_some_and(|name| is_name(&name)),
            }
    }
}

/// One of the device's own files, as it was found.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// Its content; `None` if it is missing or unreadable.
    pub content: Option<Vec<u8>>,
    /// A stamp that every write changes, and that bits lost by the flash do not; `None` if the file is
    /// missing.
    pub last_write: Option<String>,
    /// The note about it from an earlier boot.
    pub note: Option<String>,
}

impl Own {
    fn is_there(&self) -> bool {
        self.last_write.is_some() && self.content.as_ref().is_none_or(|content| !content.is_empty())
    }

    /// Whether the file's content has changed since the note, without a write.
    fn is_damaged(&self) -> bool {
        let (Some(note), Some(last)) = (self.note.as_deref(), self.last_write.as_deref()) else {
            return false;
        };
        note.split_once("- ").is_some_and(|(_, noted)| noted == last)
            && self.new_note().as_deref() != Some(note)
    }

    /// The note for the next boot; `None` if there is no file.
    pub fn new_note(&self) -> Option<String> {
        let content = self.content.as_ref().filter(|content| !content.is_empty())?;
        Some(format!("{} {}", digest(content), self.last_write.as_ref()?))
    }
}

/// One complete action on an own file. A failure is reported, and later actions are performed all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Renamed to `NAME.damaged`, and not used.
    SetAside,
    /// Replaced, durably; only then the handover is recorded.
    Install {
        /// The handover.
        content: Vec<u8>,
        /// Its origin.
        from: String,
        /// The same as for `NoteHandover`.
        note: String,
    },
    /// Record, durably, that this handover was handled: if a power cut lost that, the next boot would undo a
    /// renewal.
    NoteHandover(String),
    /// Record the file's present state, for the next boot.
    Remember,
    /// For the log.
    Say(String),
}

/// The actions for a part of the identity: `handed` is the handover and its origin, `own` the own file,
/// `dealt_with` the last handled handover.
pub fn provide(part: Part, handed: Option<(&[u8], &str)>, own: &Own, dealt_with: Option<&str>) -> Vec<Act> {
    let name = part.name();
    let mut acts = Vec::new();
    let valid = handed.filter(|(content, _)| part.is_plausible(content));
    if let (Some((_, from)), None) = (handed, valid) {
        acts.push(Act::Say(format!("{from} is not a valid {name}: ignored")));
    }
    let Some((content, from)) = valid else {
        acts.push(match own.is_damaged() {
            true => Act::Say(format!(
                "{name} was damaged on the disk, and no other one was handed over: it stays in use"
            )),
            false => Act::Remember,
        });
        return acts;
    };
    let is_bad = |content: &Vec<u8>| !part.is_plausible(content);
    let is_unusable = own.is_there() && own.content.as_ref().is_none_or(is_bad);
    let mut is_there = own.is_there();
    if own.is_damaged() || is_unusable {
        acts.push(Act::SetAside);
        is_there = false;
    }
    let handover = digest(content);
    let mut known = dealt_with.filter(|known| is_handover(known));
    if is_there && own.note.is_some() && known.is_none() {
        // a lost or damaged note must not undo a renewal
        known = Some(&handover);
        acts.push(Act::NoteHandover(handover.clone()));
    }
    if !is_there || known != Some(&handover) {
        if known == Some(&handover) {
            acts.push(Act::Say(format!("{name} was lost, installing {from} again")));
        }
        acts.push(Act::Install { content: content.to_vec(), from: from.to_owned(), note: handover });
    }
    acts.push(Act::Remember);
    acts
}

/// Whether this handover has led to a certificate already. A token in a firmware's strings cannot be removed
/// from them, so a used one is not installed again. `used`: the note about the last handover that led to one.
pub fn is_used(handed: &[u8], used: Option<&str>) -> bool {
    used == Some(&digest(handed))
}

/// The note about a handover that has led to a certificate.
pub fn used_note(handed: &[u8]) -> String {
    digest(handed)
}

/// The action for a file of the owner's that has no other copy. A damaged one is set aside, too: the agent
/// does not start with an unreadable configuration, and without it the node still has its heartbeat.
pub fn guard(own: &Own) -> Act {
    if own.is_damaged() { Act::SetAside } else { Act::Remember }
}

/// The name of a file's note: derived from its path; in a sub-directory of `config.d` from the path's digest,
/// so that no two share one.
pub fn note_name(path: &str) -> String {
    match path.strip_prefix("config.d/").is_some_and(|below| below.contains('/')) {
        true => format!(".seen-config.d-{}", hex(path.as_bytes())),
        false => format!(".seen-{}", path.replace('/', "-")),
    }
}

/// A node's name in a file: without any white space.
pub fn node_name(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    Some(text.chars().filter(|char| !char.is_whitespace()).collect())
}

/// Whether a host may have this name.
pub fn is_name(name: &str) -> bool {
    let is_end = |char: char| char == '.' || char == '-';
    let is_inner = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || is_end(char);
    !name.is_empty() && name.chars().all(is_inner) && !name.starts_with(is_end) && !name.ends_with(is_end)
}

/// In sha256sum's form for the digest of its input, which the first images used in their notes.
fn digest(content: &[u8]) -> String {
    format!("{}  -", hex(content))
}

fn is_handover(note: &str) -> bool {
    note.strip_suffix("  -").is_some_and(|digest| {
        digest.len() == 64 && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = b"clusters: renewed\n";
    const HANDED: &[u8] = b"clusters: factory\n";

    /// A file with this content; the note is about another content, written at the same time or before.
    fn own(content: &[u8], noted: Option<(&[u8], &str)>) -> Own {
        let note = noted.map(|(content, at)| format!("{} {at}", digest(content)));
        Own { content: Some(content.to_vec()), last_write: Some("12 monday".to_owned()), note }
    }

    #[track_caller]
    fn check(handed: Option<&[u8]>, own: &Own, dealt_with: Option<&str>, expected: &str) {
        let acts = provide(Part::Kubeconfig, handed.map(|content| (content, "esp")), own, dealt_with);
        let shown: Vec<_> = acts
            .iter()
            .map(|act| match act {
                Act::Install { content, from, note } => {
                    format!("install {:?} of {from}; note {}", String::from_utf8_lossy(content), &note[..4])
                }
                Act::NoteHandover(note) => format!("note {}", &note[..4]),
                Act::Say(text) => text.clone(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(shown.join("; "), expected);
    }

    #[test]
    fn handover_is_installed_once() {
        let note = digest(HANDED);
        let (installs, noted) = ("install \"clusters: factory\\n\" of esp", &note[..4]);
        check(Some(HANDED), &Own::default(), None, &format!("{installs}; note {noted}; Remember"));
        check(Some(HANDED), &own(OLD, None), Some(&note), "Remember");
        check(
            Some(HANDED),
            &own(OLD, None),
            Some(&digest(OLD)),
            &format!("{installs}; note {noted}; Remember"),
        );
        check(Some(HANDED), &own(OLD, None), None, &format!("{installs}; note {noted}; Remember"));
        // the note of the handover is lost, that of the file is not
        let renewed = own(OLD, Some((OLD, "12 monday")));
        check(Some(HANDED), &renewed, Some("random"), &format!("note {noted}; Remember"));
        check(None, &renewed, Some(&note), "Remember");
    }

    #[test]
    fn damaged_file_is_replaced_by_the_handover() {
        let (note, damaged) = (digest(HANDED), own(OLD, Some((b"other", "12 monday"))));
        let again = format!(
            "SetAside; kubeconfig was lost, installing esp again; install \"clusters: factory\\n\" of esp; note {}; Remember",
            &note[..4]
        );
        check(Some(HANDED), &damaged, Some(&note), &again);
        check(Some(HANDED), &own(&[0; 300], None), Some(&note), &again);
        let unreadable = Own { content: None, ..damaged.clone() };
        check(Some(HANDED), &unreadable, Some(&note), &again);
        check(
            None,
            &damaged,
            None,
            "kubeconfig was damaged on the disk, and no other one was handed over: it stays in use",
        );
        check(Some(HANDED), &own(OLD, Some((b"other", "12 sunday"))), Some(&note), "Remember");
    }

    #[test]
    fn invalid_handover_is_ignored() {
        let why = "esp is not a valid kubeconfig: ignored; Remember";
        check(Some(b"nonsense"), &own(OLD, None), None, why);
        check(Some(b"clusters: \x01"), &own(OLD, None), None, why);
        check(Some(b"\0\0\0"), &Own::default(), None, why);
    }

    #[test]
    fn name_is_of_small_letters_and_digits() {
        for good in ["edge-7", "a", "7.example", "edge-7 \n"] {
            assert!(Part::NodeName.is_plausible(good.as_bytes()), "{good}");
        }
        for bad in ["", " ", "Edge", "-edge", "edge.", "edge_7", "ed\u{e4}"] {
            assert!(!Part::NodeName.is_plausible(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn every_drop_in_has_a_note_of_its_own() {
        assert_eq!(note_name("kubeconfig"), ".seen-kubeconfig");
        assert_eq!(note_name("config.d/10-slow.conf"), ".seen-config.d-10-slow.conf");
        let names =
            ["config.d/a b/c/d.conf", "config.d/a b/c-d.conf", "config.d/a b-c-d.conf"].map(note_name);
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
    }

    #[test]
    fn guarded_file_is_set_aside_only_if_damaged() {
        assert_eq!(guard(&own(OLD, None)), Act::Remember);
        assert_eq!(guard(&own(OLD, Some((OLD, "12 monday")))), Act::Remember);
        assert_eq!(guard(&own(OLD, Some((b"other", "12 sunday")))), Act::Remember);
        assert_eq!(guard(&own(OLD, Some((b"other", "12 monday")))), Act::SetAside);
    }
}
