//! An effective configuration in the form for people and programs: `/configz`, and `kedge config show` as
//! text and JSON.
//!
//! Always holds: the text is YAML that reads back as the same object, with the layer that set it after each
//! field.

use core::fmt::Write;

use serde_json::{Map, Value, json};

use super::{Effective, path, yaml};

/// Column at which comments begin, if the line is shorter.
const COMMENT_COLUMN: usize = 48;

impl Effective {
    /// The object as upstream's `/configz` wraps it.
    #[must_use]
    pub fn configz(&self) -> Value {
        json!({ "kubeletconfig": self.object })
    }

    /// The object for the log: headers that may carry credentials are masked, as upstream does.
    #[must_use]
    pub fn without_secrets(&self) -> Value {
        let mut object = self.object.clone();
        if let Some(headers) = object.get_mut("staticPodURLHeader").and_then(Value::as_object_mut) {
            headers.values_mut().for_each(|values| *values = json!(["<masked>"]));
        }
        object
    }

    /// The object, the layer that set each field, the fields without effect, and the values beyond their
    /// bounds.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut sources = Map::new();
        for (path, source) in self.provenance.iter() {
            sources.insert(path.to_owned(), Value::from(source.to_string()));
        }
        let held: Vec<String> = self.held.iter().map(ToString::to_string).collect();
        json!({
            "config": self.object, "provenance": sources, "withoutEffect": self.without_effect, "held": held
        })
    }

    /// YAML, with `# from ...` after each field and `, without effect` where that applies.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut writer = Writer { effective: self, text: String::new(), path: String::new() };
        if let Value::Object(object) = &self.object {
            // the two fields that identify the object come first
            for name in ["apiVersion", "kind"] {
                writer.field(0, name, object.get(name).unwrap_or(&Value::Null));
            }
            for (key, value) in object.iter().filter(|(key, _)| *key != "apiVersion" && *key != "kind") {
                writer.field(0, key, value);
            }
        }
        writer.text
    }
}

struct Writer<'a> {
    effective: &'a Effective,
    text: String,
    path: String,
}

impl Writer<'_> {
    fn field(&mut self, indent: usize, key: &str, value: &Value) {
        let length = path::enter(&mut self.path, key);
        let start = self.text.len();
        let _ = write!(self.text, "{:indent$}{}:", "", key_form(key));
        match value {
            Value::Object(object) if !object.is_empty() => {
                self.text.push('\n');
                for (key, value) in object {
                    self.field(indent.saturating_add(2), key, value);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                self.comment(start);
                for item in items {
                    let _ = writeln!(self.text, "{:indent$}- {item}", "");
                }
            }
            scalar => {
                let _ = write!(self.text, " {}", scalar_form(scalar));
                self.comment(start);
            }
        }
        self.path.truncate(length);
    }

    fn comment(&mut self, line_start: usize) {
        if let Some(source) = self.effective.provenance.get(&self.path) {
            let used = self.text[line_start..].chars().count();
            let gap = COMMENT_COLUMN.saturating_sub(used).max(2);
            // a path may hold anything but NUL, and a comment ends at the first line break
            let source: String =
                source.to_string().chars().filter(|character| !character.is_control()).collect();
            let _ = write!(self.text, "{:gap$}# from {source}", "");
            if self.effective.without_effect.iter().any(|idle| is_at_or_below(&self.path, idle)) {
                self.text.push_str(", without effect");
            }
        }
        self.text.push('\n');
    }
}

fn is_at_or_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Words that YAML can only read as text stay bare, everything else is quoted.
fn scalar_form(value: &Value) -> String {
    match value {
        Value::String(text) if is_plainly_text(text) => text.clone(),
        other => other.to_string(),
    }
}

fn key_form(key: &str) -> String {
    if is_plainly_text(key) { key.to_owned() } else { Value::from(key).to_string() }
}

fn is_plainly_text(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/' | b'%');
    let begins_as_word = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/');
    // some readers take 2001-12-14 for a date
    let is_date_like = text.starts_with(|first: char| first.is_ascii_digit()) && text.contains('-');
    begins_as_word && text.bytes().all(is_word) && !is_date_like && yaml::plain_is_text(text)
}
