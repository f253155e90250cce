//! Commands that make a story fail on purpose, from `hil-tests/sabotage`: proof that it notices a broken
//! node.
//!
//! Always holds: each entry has at least one command, and a text that the story's failure must contain; a
//! failure for another reason proves nothing. [`crate::stage`] runs the commands, as root on the node, or on
//! this machine.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::HilError;
use crate::stories::STORIES;

/// The way to make one story fail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sabotage {
    /// Runs before the story begins.
    pub(crate) before: Option<String>,
    /// Runs after each boot in the story, before the story examines the agent.
    pub(crate) after_each_boot: Option<String>,
    /// Runs on this machine, in the story's folder, once the story has made the files there that it serves to
    /// the node.
    pub(crate) in_folder: Option<String>,
    /// A part of the story's error.
    pub(crate) fails_with: String,
}

/// Reads the file: by the name of the story.
pub(crate) fn read(path: &Path) -> Result<BTreeMap<String, Sabotage>, HilError> {
    let text = std::fs::read_to_string(path).map_err(HilError::io("read", path))?;
    parse(&text).map_err(|problem| HilError::Garbled(format!("{}: {problem}", path.display())))
}

fn parse(text: &str) -> Result<BTreeMap<String, Sabotage>, String> {
    let mut all = BTreeMap::<String, Sabotage>::new();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let not_one = || format!("{line:?} is not STORY: COMMAND or STORY fails with: TEXT");
        let (key, value) = line.split_once(": ").ok_or_else(not_one)?;
        let (name, kind) = key.split_once(' ').unwrap_or((key, ""));
        if !STORIES.iter().any(|story| story.name == name) {
            return Err(not_one());
        }
        let one = all.entry(name.to_owned()).or_default();
        let is_first = match kind {
            "" => one.before.replace(value.to_owned()).is_none(),
            "in its folder" => one.in_folder.replace(value.to_owned()).is_none(),
            "after each boot" => one.after_each_boot.replace(value.to_owned()).is_none(),
            "fails with" => std::mem::replace(&mut one.fails_with, value.to_owned()).is_empty(),
            _ => return Err(not_one()),
        };
        if !is_first {
            return Err(format!("{key} appears twice"));
        }
    }
    for (name, one) in &all {
        let commands = [&one.before, &one.after_each_boot, &one.in_folder];
        if one.fails_with.is_empty() || commands.iter().all(|command| command.is_none()) {
            return Err(format!("{name} needs a command and a text to fail with"));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_story_has_a_sabotage() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("sabotage");
        let all = read(&path).unwrap();
        let without = STORIES.iter().filter(|story| !all.contains_key(story.name));
        assert_eq!(without.map(|story| story.name).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn invalid_lines_are_rejected() {
        let check = |text: &str, expect: &str| {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(expect), "{problem}");
        };
        check("config", "is not STORY: COMMAND");
        check("confg: true", "is not STORY: COMMAND");
        check("config at dawn: true", "is not STORY: COMMAND");
        check("config: true\nconfig: false", "config appears twice");
        check("config fails with: x\nconfig fails with: y", "config fails with appears twice");
        check("config: true", "config needs a command and a text to fail with");
        check("config fails with: x", "config needs a command and a text to fail with");
    }

    #[test]
    fn entry_has_commands_and_a_reason() {
        let text = "# why\nconfig: a: b\n\nconfig after each boot: c\nconfig in its folder: e\nconfig fails with: never came: d\n";
        let expect = Sabotage {
            before: Some("a: b".into()),
            after_each_boot: Some("c".into()),
            in_folder: Some("e".into()),
            fails_with: "never came: d".into(),
        };
        assert_eq!(parse(text).unwrap()["config"], expect);
    }
}
