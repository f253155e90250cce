//! The syntax of names, label keys and values, and keys of a ConfigMap, with upstream's texts (apimachinery
//! `validation`).

use kedge_api::names::{SUBDOMAIN_BYTES, label_complaint, subdomain_complaint};

pub use kedge_api::names::{is_subdomain, label_value_complaint, qualified_name_complaint};

/// The form of a kind's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// `a-b.c`, at most 253 bytes.
    Subdomain,
    /// `a-b`, at most 63 bytes.
    Label,
    /// Anything that can be one segment of a path, `system:node:x` for example, at most 253 bytes.
    Segment,
}

impl NameRule {
    /// The fault of a name, `None` if it is valid.
    pub fn complaint(self, name: &str) -> Option<String> {
        match self {
            NameRule::Subdomain => subdomain_complaint(name),
            NameRule::Label => label_complaint(name),
            NameRule::Segment => segment_complaint(name),
        }
    }
}

/// The fault of a name that must be one segment of a path. Upstream has no limit on its length, but an object
/// with a longer name than a path could not be deleted.
fn segment_complaint(name: &str) -> Option<String> {
    if matches!(name, "." | "..") {
        return Some(format!("may not be '{name}'"));
    }
    if let Some(character) = name.chars().find(|character| matches!(character, '/' | '%')) {
        return Some(format!("may not contain '{character}'"));
    }
    (name.len() > SUBDOMAIN_BYTES).then(|| format!("must be no more than {SUBDOMAIN_BYTES} bytes"))
}

/// The fault of a key of a ConfigMap.
pub fn config_key_complaint(key: &str) -> Option<String> {
    if key.len() > SUBDOMAIN_BYTES {
        return Some(format!("must be no more than {SUBDOMAIN_BYTES} characters"));
    }
    let good = !key.is_empty()
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if !good {
        return Some("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".to_owned());
    }
    match key {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        _ if key.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_of_a_path_may_be_almost_anything() {
        for good in ["a", "system:node:x", "A b", "..."] {
            assert_eq!(segment_complaint(good), None, "{good}");
        }
        let check = |name: &str, expect: &str| assert_eq!(segment_complaint(name).as_deref(), Some(expect));
        check("..", "may not be '..'");
        check("a/b", "may not contain '/'");
        check("a%b", "may not contain '%'");
        check(&"a".repeat(254), "must be no more than 253 bytes");
    }

    #[test]
    fn config_keys_follow_upstream() {
        for good in ["kubelet", ".hidden", "a..b", "A_1-"] {
            assert_eq!(config_key_complaint(good), None, "{good}");
        }
        for bad in ["", ".", "..", "..a", "a/b", "a b"] {
            assert!(config_key_complaint(bad).is_some(), "{bad}");
        }
    }
}
