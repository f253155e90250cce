//! The flags that the service gives the agent: what commands on the node judge unless they are told otherwise.
//!
//! Owns reading the environment file of `kedge.service` as systemd does (systemd.exec(5), `EnvironmentFile=`; systemd.service(5),
//! "Command lines": a variable that is a word of its own is split at blanks, quotes respected). Always holds: what systemd would take
//! is what is taken. Leaves to others: what the flags mean (`flags`); an edited unit, which only systemd knows (`doctor` asks).

use std::path::Path;

/// `EnvironmentFile=` of the unit.
pub const ENVIRONMENT_FILE: &str = "/etc/default/kedge";

/// `--kubeconfig` of the unit.
pub const KUBECONFIG: &str = "/etc/kedge/kubeconfig";

/// The variable that the unit adds to the agent's command line.
const VARIABLE: &str = "KEDGE_FLAGS";

/// Longest file read: flags have a few hundred bytes.
const FILE_BYTES: usize = 64 * 1024;

/// The words that the file adds to the agent's command line. None: there is no such file, which the unit allows.
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
    let joined = text.replace("\\\n", "");
    let lines = joined.lines().map(str::trim_start).filter(|line| !line.starts_with(['#', ';']));
    let assigned = lines.filter_map(|line| line.split_once('=')).filter(|(name, _)| name.trim() == VARIABLE);
    assigned.fold(None, |_, (_, value)| Some(unquoted(value.trim())))
}

/// Takes off the quotes of a value; within double quotes a backslash keeps `"`, `\`, `$` and a back quote.
fn unquoted(value: &str) -> String {
    let mut out = String::new();
    let mut quote = None;
    let mut characters = value.chars().peekable();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), _) if character == open => quote = None,
            (None, '\\') => out.extend(characters.next()),
            (Some('"'), '\\') if matches!(characters.peek(), Some('"' | '\\' | '$' | '`')) => {
                out.extend(characters.next());
            }
            _ => out.push(character),
        }
    }
    out
}

/// Splits at blanks outside of quotes, which are taken off.
fn words(value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in value.chars() {
        match (quote, character) {
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), _) if character == open => quote = None,
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
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
        check("KEDGE_FLAGS=\"--v \\\n5\"\n", &["--v", "5"]);
    }
}
