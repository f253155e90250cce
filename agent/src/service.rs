//! The flags that the service gives the agent: commands on the node use the same ones unless the command line
//! gives others.
//!
//! Owns reading the environment file of `kedge.service` as systemd does (systemd.exec(5), `EnvironmentFile=`;
//! systemd.service(5), "Command lines": a variable that is a word of its own is split at blanks, quotes
//! respected). Always holds: it reads the same flags as systemd. Leaves to others: the meaning of the flags
//! (`flags`); an edited unit, which only systemd knows (`doctor` queries it).

use std::iter::Peekable;
use std::path::Path;
use std::str::Chars;

/// `EnvironmentFile=` of the unit.
pub const ENVIRONMENT_FILE: &str = "/etc/default/kedge";

/// `--kubeconfig` of the unit.
pub const KUBECONFIG: &str = "/etc/kedge/kubeconfig";

/// `--bootstrap-kubeconfig` of the unit.
pub const BOOTSTRAP_KUBECONFIG: &str = "/etc/kedge/bootstrap-kubeconfig";

/// `ExecStart=` of the unit as it is shipped.
const SHIPPED: &str = "/usr/bin/kedge agent --kubeconfig /etc/kedge/kubeconfig $KEDGE_FLAGS";

/// The variable that the unit adds to the agent's command line.
const VARIABLE: &str = "KEDGE_FLAGS";

/// Longest file read: flags have a few hundred bytes.
const FILE_BYTES: usize = 64 * 1024;

/// The words that the file adds to the agent's command line. `None` if the file does not exist, which the
/// unit allows.
///
/// # Errors
/// It cannot be read.
pub(crate) fn flags(file: &Path) -> Result<Option<Vec<String>>, String> {
    match kedge_platform::linux::read_named_file(file, FILE_BYTES) {
        Ok(bytes) => {
            let text = String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", file.display()))?;
            Ok(Some(words(&value(&text).unwrap_or_default())))
        }
        Err(kedge_platform::ReadError::NotFound { .. }) => Ok(None),
        Err(error) => Err(crate::errors::chain(&error)),
    }
}

/// The last assignment of the variable.
fn value(text: &str) -> Option<String> {
    let mut found = None;
    let mut rest = text.chars().peekable();
    while rest.peek().is_some() {
        let line_end = |character: &char| matches!(character, '\n' | '\r');
        while rest.next_if(|character| character.is_ascii_whitespace()).is_some() {}
        let is_comment = matches!(rest.peek(), Some('#' | ';'));
        let mut name = String::new();
        while let Some(character) =
            rest.next_if(|character| !line_end(character) && (is_comment || *character != '='))
        {
            name.push(character);
        }
        // a line without "=" assigns nothing, and a comment never assigns, even with "=" in it
        if rest.next_if_eq(&'=').is_some() {
            let value = assigned(&mut rest);
            if name.trim_ascii_end() == VARIABLE {
                found = Some(value);
            }
        }
    }
    found
}

/// Takes a value and the end of its line: pieces in quotes, which may span several lines, and then plain
/// text, in which quotes are ordinary characters. A backslash keeps the next character, or joins two lines;
/// within double quotes it does so before `"`, `\`, `$`, a back quote and the end of a line, and nothing
/// within single ones.
fn assigned(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut out = String::new();
    // the length up to the last character that is not a blank, or that a backslash keeps
    let mut kept = 0;
    let mut is_plain = false;
    while let Some(character) = rest.next() {
        match character {
            '\n' | '\r' => break,
            '\'' | '"' if !is_plain => {
                quoted(character, rest, &mut out);
                kept = out.len();
            }
            '\\' => {
                is_plain = true;
                out.extend(rest.next().filter(|next| !matches!(next, '\n' | '\r')));
                kept = out.len();
            }
            _ if character.is_ascii_whitespace() && !is_plain => {}
            _ => {
                is_plain = true;
                out.push(character);
                if !character.is_ascii_whitespace() {
                    kept = out.len();
                }
            }
        }
    }
    out.truncate(kept);
    out
}

/// Takes the rest of a quoted piece and its closing quote.
fn quoted(quote: char, rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    while let Some(character) = rest.next() {
        match character {
            _ if character == quote => return,
            '\\' if quote == '"' => match rest.next() {
                Some(next @ ('"' | '\\' | '$' | '`')) => out.push(next),
                Some('\n') | None => {}
                Some(next) => out.extend(['\\', next]),
            },
            _ => out.push(character),
        }
    }
}

/// Splits at blanks outside of quotes, which are removed; a backslash keeps the next character, inside any
/// quotes and outside.
fn words(value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = value.chars();
    while let Some(character) = rest.next() {
        match (quote, character) {
            (_, '\\') => word.get_or_insert_default().extend(rest.next()),
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), _) if character == open => quote = None,
            (None, ' ' | '\t' | '\n' | '\r') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// Settings of the running service (`systemctl show`) that the shipped unit does not have: then its flags
/// differ from those that were read here.
pub(crate) fn edits(shown: &str) -> Vec<String> {
    let values = |name: &str| {
        let of_name = shown.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        of_name.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut edits = Vec::new();
    for command in values("ExecStart") {
        let argv =
            command.split_once("argv[]=").and_then(|(_, rest)| rest.split_once(" ;")).map(|(argv, _)| argv);
        edits.extend(argv.filter(|argv| *argv != SHIPPED).map(|argv| format!("ExecStart={argv}")));
    }
    for file in values("EnvironmentFiles") {
        let path = file.split_once(" (").map_or(file.as_str(), |(path, _)| path);
        if path != ENVIRONMENT_FILE {
            edits.push(format!("EnvironmentFile={path}"));
        }
    }
    edits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_is_read_as_systemd_does() {
        let check = |text: &str, expect: &[&str]| {
            assert_eq!(words(&value(text).unwrap_or_default()), expect, "{text}");
        };
        check("", &[]);
        check("KEDGE_FLAGS=\"\"\n", &[]);
        check("#KEDGE_FLAGS=--a\n;KEDGE_FLAGS=--b\n OTHER=1\n", &[]);
        check(
            "KEDGE_FLAGS=\"--config /etc/kedge/config.yaml --node-labels site=quarry\"\n",
            &["--config", "/etc/kedge/config.yaml", "--node-labels", "site=quarry"],
        );
        check("KEDGE_FLAGS=--v 2\nKEDGE_FLAGS=--v 4\n", &["--v", "4"]);
        check(
            "KEDGE_FLAGS=\"--config-dir '' --config \\\"/a b\\\"\"\n",
            &["--config-dir", "", "--config", "/a b"],
        );
        // over several lines, by quotes and by backslashes
        check("KEDGE_FLAGS=\"--v 5\n  --config /a\"\nOTHER=1\n", &["--v", "5", "--config", "/a"]);
        check("KEDGE_FLAGS='--v\n5'", &["--v", "5"]);
        check("KEDGE_FLAGS=--v \\\n 5 \nOTHER=1\n", &["--v", "5"]);
        check("OTHER=\"\nKEDGE_FLAGS=--a\n\"\nKEDGE_FLAGS = --b\n", &["--b"]);
        check("# \\\nKEDGE_FLAGS=--a\n", &["--a"]);
        // quotes are characters of plain text, and quote when the words are split
        check("KEDGE_FLAGS=--config '/a b' \"c d\"\n", &["--config", "/a b", "c d"]);
        check("KEDGE_FLAGS=\"--config\" '/a'\n", &["--config/a"]);
        // each of the two steps removes its backslashes
        check("KEDGE_FLAGS=--config /a\\\\ b\n", &["--config", "/a b"]);
        check("KEDGE_FLAGS='--config /a\\ b'\n", &["--config", "/a b"]);
        check("KEDGE_FLAGS=\"--config '/a\\n'\"\n", &["--config", "/an"]);
        check("KEDGE_FLAGS=\"--a \\\n--b\"", &["--a", "--b"]);
        // without a closing quote
        check("KEDGE_FLAGS=\"--v '5", &["--v", "5"]);
        check("KEDGE_FLAGS=--v\\", &["--v"]);
        check("KEDGE_FLAGS\n", &[]);
        check("KEDGE_FLAGS=\"--v \\\n5\"\n", &["--v", "5"]);
    }

    #[test]
    fn edited_unit_is_told_from_the_shipped_one() {
        let unit = include_str!("../systemd/kedge.service");
        assert!(unit.lines().any(|line| line.strip_prefix("ExecStart=") == Some(SHIPPED)));
        let shown = |argv: &str, files: &str| {
            format!(
                "LoadState=loaded\nExecStart={{ path=/usr/bin/kedge ; argv[]={argv} ; ignore_errors=no ; }}\n{files}"
            )
        };
        let shipped = "EnvironmentFiles=/etc/default/kedge (ignore_errors=yes)\n";
        assert_eq!(edits(&shown(SHIPPED, shipped)), [""; 0]);
        assert_eq!(edits("LoadState=loaded\n"), [""; 0], "not shown");
        let other = "/usr/bin/kedge agent --config /x.yaml";
        assert_eq!(edits(&shown(other, shipped)), [format!("ExecStart={other}")]);
        let more = format!("{shipped}EnvironmentFiles=/etc/kedge/more (ignore_errors=no)\n");
        assert_eq!(edits(&shown(SHIPPED, &more)), ["EnvironmentFile=/etc/kedge/more"]);
    }
}
