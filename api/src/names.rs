//! The syntax of names, labels and their values, with upstream's limits and texts.
//!
//! Always holds: a text is valid, or the complaint is upstream's (apimachinery `validation`), so agent and
//! hub accept the same texts. Leaves to others: which field must follow which rule.

/// Longest DNS subdomain.
pub const SUBDOMAIN_BYTES: usize = 253;
/// Longest DNS label, label value and name part of a qualified name.
pub const LABEL_BYTES: usize = 63;

const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_TEXT: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_TEXT: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE_TEXT: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Whether it is a lowercase DNS subdomain, of any length: upstream limits the whole, not its labels.
#[must_use]
pub fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// The fault of a lowercase DNS subdomain: the name of most objects.
#[must_use]
pub fn subdomain_complaint(text: &str) -> Option<String> {
    complaint(text, SUBDOMAIN_BYTES, is_subdomain, SUBDOMAIN_TEXT)
}

/// The fault of a lowercase DNS label: the name of a namespace.
#[must_use]
pub fn label_complaint(text: &str) -> Option<String> {
    complaint(text, LABEL_BYTES, is_label, LABEL_TEXT)
}

/// The fault of a label's value.
#[must_use]
pub fn label_value_complaint(value: &str) -> Option<String> {
    complaint(value, LABEL_BYTES, |value| value.is_empty() || is_name_part(value), LABEL_VALUE_TEXT)
}

/// The fault of a qualified name, `name` or `prefix.example/name`: the key of a label or an annotation.
#[must_use]
pub fn qualified_name_complaint(name: &str) -> Option<String> {
    let (prefix, part) = match name.split_once('/') {
        Some((prefix, part)) => (Some(prefix), part),
        None => (None, name),
    };
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Some("prefix part must be non-empty".to_owned());
        }
        if prefix.len() > SUBDOMAIN_BYTES || !is_subdomain(prefix) {
            return Some(format!("prefix part {SUBDOMAIN_TEXT}"));
        }
    }
    if part.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    if part.len() > LABEL_BYTES {
        return Some(format!("name part must be no more than {LABEL_BYTES} bytes"));
    }
    (!is_name_part(part)).then(|| QUALIFIED_TEXT.to_owned())
}

fn complaint(text: &str, limit: usize, is_good: impl Fn(&str) -> bool, explained: &str) -> Option<String> {
    if text.len() > limit {
        return Some(format!("must be no more than {limit} bytes"));
    }
    (!is_good(text)).then(|| explained.to_owned())
}

fn is_label(text: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    consists_of(text, edge, |byte| edge(byte) || byte == b'-')
}

fn is_name_part(text: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_alphanumeric();
    consists_of(text, edge, |byte| edge(byte) || matches!(byte, b'-' | b'_' | b'.'))
}

/// At least one byte, with `edge` at both ends.
fn consists_of(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| inner(*byte))
        && bytes.first().is_some_and(|byte| edge(*byte))
        && bytes.last().is_some_and(|byte| edge(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subdomains_and_labels_follow_upstream() {
        for good in ["a", "a-b", "a.b-c.d", "0", "edge-1.example.com", &"a".repeat(253)] {
            assert_eq!(subdomain_complaint(good), None, "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a..b", ".a", "a.", "a_b", "a/b", "ä", "%2e"] {
            assert_eq!(subdomain_complaint(bad).as_deref(), Some(SUBDOMAIN_TEXT), "{bad}");
        }
        let long = subdomain_complaint(&"a".repeat(254));
        assert_eq!(long.as_deref(), Some("must be no more than 253 bytes"));
        assert_eq!(label_complaint(&"a".repeat(63)), None);
        assert_eq!(label_complaint("a.b").as_deref(), Some(LABEL_TEXT));
        assert!(label_complaint(&"a".repeat(64)).is_some());
    }

    #[test]
    fn qualified_names_follow_upstream() {
        let longest_name = "n".repeat(63);
        let label = "d".repeat(63);
        // 253 bytes
        let longest_prefix = format!("{label}.{label}.{label}.{}", "d".repeat(61));
        for good in [
            "a",
            "A-b_c.9",
            "example.com/dedicated",
            "my-site.example.com/x",
            "kubernetes.io/metadata.name",
            "9.example/x",
            &longest_name,
            &format!("{longest_prefix}/{longest_name}"),
        ] {
            assert_eq!(qualified_name_complaint(good), None, "{good:?}");
        }
        for bad in [
            "",
            "-a",
            "a-",
            ".a",
            "a_",
            "_a",
            "a b",
            "\u{e9}",
            "/a",
            "a/",
            "a/b/c",
            "example..com/a",
            ".example.com/a",
            "-example.com/a",
            "example-.com/a",
            "example.com-/a",
            "Example.com/a",
            "exa_mple.com/a",
            &format!("{longest_name}n"),
            &format!("d{longest_prefix}/a"),
            &format!("example.com/{longest_name}n"),
        ] {
            assert!(qualified_name_complaint(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn label_value_may_be_empty() {
        for good in ["", "a", "A_b.c", &"v".repeat(63)] {
            assert_eq!(label_value_complaint(good), None, "{good:?}");
        }
        for bad in ["-", "a b", "a/b", &"v".repeat(64)] {
            assert!(label_value_complaint(bad).is_some(), "{bad:?}");
        }
    }
}
