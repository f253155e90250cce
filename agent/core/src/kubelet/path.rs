//! The form of a path inside a configuration: `logging.verbosity`, `evictionHard["memory.available"]`,
//! `registerWithTaints[0].key`. The same in errors, in provenance and in `kedge config show`.

use core::fmt::Write;

/// Appends a key; returns the length to truncate to afterwards.
pub(super) fn enter(path: &mut String, key: &str) -> usize {
    let length = path.len();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // writing to a String cannot fail
    if key.is_empty() || !key.bytes().all(is_plain) {
        let _ = write!(path, "[{key:?}]");
    } else if path.is_empty() {
        path.push_str(key);
    } else {
        let _ = write!(path, ".{key}");
    }
    length
}

/// Appends a list index; returns the length to truncate to afterwards.
pub(super) fn enter_index(path: &mut String, index: usize) -> usize {
    let length = path.len();
    let _ = write!(path, "[{index}]");
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_identifier_keys_are_bracketed() {
        let mut path = String::new();
        enter(&mut path, "evictionHard");
        let length = enter(&mut path, "memory.available");
        assert_eq!(path, "evictionHard[\"memory.available\"]");
        path.truncate(length);
        enter_index(&mut path, 3);
        enter(&mut path, "ephemeral-storage");
        assert_eq!(path, "evictionHard[3].ephemeral-storage");
    }
}
