//! The boot loader's list: the entries of each slot, and the steps that change the list.
//!
//! Always holds: the list is settled before and after each change of it, so a power cut never leaves a later
//! change without the earlier ones. An entry's text is on the disk before its name is, and an entry is
//! removed only after its successor exists; none is renamed, because FAT may lose the old name before it has
//! the new one. The boot loader renames the entries that it counts, so a good slot beside a counted one is
//! never counted. A slot that is being written is not in the list: it is removed before its first byte, and
//! added again when all of it was read from the disk and compared. Leaves to others: whether a slot may be
//! written (`admission`); performing (`agent/src/slot/steps.rs`).

use std::collections::BTreeMap;

/// Boot entries: text by file name.
pub type Entries = BTreeMap<String, String>;

/// How often the boot loader tries a newly written slot.
const TRIES: u32 = 3;
/// Consecutive starts that a good slot may fail: a few short power cuts, one after the other, must not bring
/// back an older image.
pub const GOOD_TRIES: u32 = 5;
/// End of the options of a slot that was marked good.
const GOOD: &str = " kedge.slot=good";

/// One complete step: these are performed in their order until one fails, and nothing else is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// All earlier writes are on the disk before the next step begins.
    Settle,
    /// Remove an entry, if it exists.
    Remove(String),
    /// Add an entry with this name and text; the text is on the disk before the name is.
    Enter(String, String),
    /// Remove a file of the EFI partition, if it exists.
    Drop(String),
    /// Write a small file of the EFI partition; the content is on the disk before the name is.
    Put(String, Vec<u8>),
    /// Write the next bytes of the update to their place, read them from the disk, and compare.
    Copy(Part),
}

/// A member of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The key in the manifest.
    pub key: &'static str,
    /// Its target.
    pub place: Place,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub digest: String,
}

/// The target of a member of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file, by its path on the EFI partition.
    File(String),
    /// A partition, by its device.
    Device(String),
}

/// The entries of a slot, the counted ones last; two only after a power cut between two steps of a blessing.
pub fn of<'a>(entries: &'a Entries, slot: &str) -> Vec<(&'a String, &'a String)> {
    let begin = format!("kedge-{slot}");
    let is_counted = |name: &str| Some(name.strip_prefix(&begin)?.strip_suffix(".conf")?.starts_with('+'));
    let mut found: Vec<_> = entries
        .iter()
        .filter(|(name, _)| is_counted(name) == Some(true) || **name == format!("{begin}.conf"))
        .collect();
    kedge_api::sort::sort_by_key(&mut found, |(name, _)| is_counted(name));
    found
}

/// Whether an entry has the mark of a good slot.
pub fn is_marked_good(text: &str) -> bool {
    text.contains(GOOD)
}

/// The pattern that makes the boot loader start a slot once, whatever the counts.
pub fn any_of(slot: &str) -> String {
    format!("kedge-{slot}*")
}

/// The entry of a slot that could start it; a counted one, if there are two.
pub(super) fn whole<'a>(entries: &'a Entries, slot: &str) -> Option<(&'a String, &'a String)> {
    let is_whole = |text: &str| text.lines().any(|line| line.starts_with("options "));
    of(entries, slot).into_iter().rev().find(|(_, text)| is_whole(text))
}

/// Removes a slot from the list. The running one remains, alone, so from now on it is not counted.
pub(super) fn leave(entries: &Entries, running: &str, slot: &str) -> Vec<Step> {
    // first the entry of the running slot, which may have been marked good a moment ago
    let mut steps = vec![Step::Settle];
    if let Some((_, text)) = whole(entries, running) {
        steps.extend(replace(
            entries,
            running,
            format!("kedge-{running}.conf"),
            format!("{}\n", text.trim_end()),
        ));
    }
    steps.extend(of(entries, slot).into_iter().map(|(name, _)| Step::Remove(name.clone())));
    steps.push(Step::Settle);
    steps
}

/// Makes this entry the only one of its slot.
fn replace(entries: &Entries, slot: &str, name: String, text: String) -> Vec<Step> {
    let mut steps = Vec::new();
    let others: Vec<_> = of(entries, slot)
        .into_iter()
        .filter(|(other, _)| **other != name)
        .map(|(other, _)| other.clone())
        .collect();
    if entries.get(&name).map(|found| found.trim_end()) != Some(text.trim_end()) {
        steps.extend([Step::Enter(name, text), Step::Settle]);
    }
    if !others.is_empty() {
        steps.extend(others.into_iter().map(Step::Remove));
        steps.push(Step::Settle);
    }
    steps
}

/// Adds a slot that is to be tried.
pub(super) fn try_with(slot: &str, text: String) -> Vec<Step> {
    vec![Step::Settle, Step::Enter(format!("kedge-{slot}+{TRIES}.conf"), text), Step::Settle]
}

/// Gives the running slot its tries back: it is good, and stays counted. A slot that keeps failing uses them
/// up.
///
/// # Errors
/// The slot has no entry that could start it.
pub fn blessing(entries: &Entries, slot: &str) -> Result<Vec<Step>, String> {
    let (_, text) =
        whole(entries, slot).ok_or_else(|| format!("slot {slot} has no boot entry that could start it"))?;
    let mut steps = vec![Step::Settle];
    steps.extend(replace(entries, slot, format!("kedge-{slot}+{GOOD_TRIES}.conf"), marked_good(text)));
    Ok(steps)
}

/// The text of a good slot's entry, without the demands of a trial.
fn marked_good(text: &str) -> String {
    let mut lines = text.lines().map(|line| match line.starts_with("options ") {
        true => {
            let is_kept = |word: &&str| !word.starts_with("kedge.demands") && *word != GOOD.trim();
            let kept = line.split(' ').filter(is_kept);
            format!("{}{GOOD}\n", kept.collect::<Vec<_>>().join(" "))
        }
        false => format!("{line}\n"),
    });
    lines.by_ref().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(all: &[(&str, &str)]) -> Entries {
        all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[track_caller]
    fn check(all: &[(&str, &str)], expected: &str) {
        let found = match blessing(&entries(all), "a") {
            Ok(steps) => steps.iter().map(|step| format!("{step:?}\n")).collect(),
            Err(why) => why,
        };
        assert_eq!(found.replace("\"", ""), expected, "{all:?}");
    }

    const GOOD_TEXT: &str = "title A\noptions root=PARTLABEL=root-a quiet kedge.slot=good\n";

    #[test]
    fn trial_becomes_good() {
        check(
            &[
                (
                    "kedge-a+2-1.conf",
                    "title A\noptions root=PARTLABEL=root-a kedge.demands=state,contact kedge.demands-secs=60 quiet\n",
                ),
                ("kedge-b.conf", "x"),
            ],
            "Settle\nEnter(kedge-a+5.conf, title A\\noptions root=PARTLABEL=root-a quiet kedge.slot=good\\n)\nSettle\n\
             Remove(kedge-a+2-1.conf)\nSettle\n",
        );
        check(
            &[("kedge-a.conf", "options root=PARTLABEL=root-a")],
            "Settle\nEnter(kedge-a+5.conf, options root=PARTLABEL=root-a kedge.slot=good\\n)\nSettle\n\
             Remove(kedge-a.conf)\nSettle\n",
        );
    }

    #[test]
    fn good_slot_gets_its_tries_back() {
        check(
            &[("kedge-a+4-1.conf", GOOD_TEXT), ("kedge-ab+4-1.conf", GOOD_TEXT)],
            &format!(
                "Settle\nEnter(kedge-a+5.conf, {})\nSettle\nRemove(kedge-a+4-1.conf)\nSettle\n",
                GOOD_TEXT.replace('\n', "\\n")
            ),
        );
        check(&[("kedge-a+5.conf", GOOD_TEXT)], "Settle\n");
        // in the form in which it is read: without the last line's end
        check(&[("kedge-a+5.conf", GOOD_TEXT.trim_end())], "Settle\n");
    }

    #[test]
    fn blessing_goes_on_after_a_power_cut() {
        check(
            &[("kedge-a+2-1.conf", "options quiet\n"), ("kedge-a+5.conf", GOOD_TEXT)],
            "Settle\nRemove(kedge-a+2-1.conf)\nSettle\n",
        );
        // the newer name is damaged: the other entry is used
        check(
            &[("kedge-a+4-1.conf", GOOD_TEXT), ("kedge-a+5.conf", "")],
            &format!(
                "Settle\nEnter(kedge-a+5.conf, {})\nSettle\nRemove(kedge-a+4-1.conf)\nSettle\n",
                GOOD_TEXT.replace('\n', "\\n")
            ),
        );
    }

    #[test]
    fn slot_without_a_whole_entry_is_not_blessed() {
        check(&[("kedge-b+5.conf", GOOD_TEXT)], "slot a has no boot entry that could start it");
        check(&[("kedge-a+5.conf", "\0\0\0")], "slot a has no boot entry that could start it");
    }

    #[test]
    fn counted_entries_of_a_slot_are_its_last() {
        let all = entries(&[
            ("kedge-a+5.conf", ""),
            ("kedge-a.conf", ""),
            ("kedge-ab.conf", ""),
            ("kedge-a+5.con", ""),
        ]);
        let names: Vec<_> = of(&all, "a").into_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["kedge-a.conf", "kedge-a+5.conf"]);
    }

    #[test]
    fn slot_that_remains_alone_is_not_counted() {
        let left = |all: &[(&str, &str)]| {
            let steps = leave(&entries(all), "a", "b");
            steps.iter().map(|step| format!("{step:?}\n")).collect::<String>().replace('"', "")
        };
        let entered = format!("Enter(kedge-a.conf, {})\nSettle\n", GOOD_TEXT.replace('\n', "\\n"));
        let b = ("kedge-b.conf", "options b");
        assert_eq!(
            left(&[("kedge-a+5.conf", GOOD_TEXT.trim_end()), b]),
            format!("Settle\n{entered}Remove(kedge-a+5.conf)\nSettle\nRemove(kedge-b.conf)\nSettle\n")
        );
        // after a power cut in the middle of it
        assert_eq!(
            left(&[("kedge-a.conf", GOOD_TEXT), ("kedge-a+4-1.conf", GOOD_TEXT)]),
            "Settle\nRemove(kedge-a+4-1.conf)\nSettle\nSettle\n"
        );
        assert_eq!(
            left(&[("kedge-a.conf", ""), ("kedge-a+4-1.conf", GOOD_TEXT)]),
            format!("Settle\n{entered}Remove(kedge-a+4-1.conf)\nSettle\nSettle\n")
        );
        assert_eq!(left(&[("kedge-a.conf", "options a"), b]), "Settle\nRemove(kedge-b.conf)\nSettle\n");
    }

    #[test]
    fn list_is_settled_around_each_change() {
        let all = entries(&[("kedge-b.conf", "x"), ("kedge-b+0-3.conf", "y"), ("kedge-a.conf", "options z")]);
        let removed = |name: &str| Step::Remove(name.to_owned());
        assert_eq!(
            leave(&all, "a", "b"),
            [Step::Settle, removed("kedge-b.conf"), removed("kedge-b+0-3.conf"), Step::Settle]
        );
        let [Step::Settle, Step::Enter(name, _), Step::Settle] = &try_with("b", String::new())[..] else {
            panic!("one entry, settled before and after");
        };
        assert_eq!(name, "kedge-b+3.conf");
    }
}
