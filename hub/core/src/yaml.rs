//! Reads YAML request bodies (server-side apply) into JSON values.
//!
//! Always holds: every read is bounded (bytes, tokens, depth, memory, repetition by aliases), and nothing
//! panics. Scalars mean what they mean to upstream's reader (YAML 1.1: `yes` and `off` are booleans, `0644`
//! is octal); JSON text is read by `decode`, which knows its duplicate fields. Refused: several documents,
//! merge keys, keys that are not text, tags of other types, duplicate keys.

use std::collections::BTreeMap;

use kedge_api::excerpt;
use saphyr_parser::{Event, ScalarStyle, Tag};
use serde_json::{Map, Value};

use crate::cost::{Budget, Excess};

/// A text that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YamlError {
    /// The fault and its line.
    Malformed(String),
    /// Its values take too much memory, where values repeated by aliases count each time.
    Excess(Excess),
}

impl From<String> for YamlError {
    fn from(why: String) -> YamlError {
        YamlError::Malformed(why)
    }
}

impl From<Excess> for YamlError {
    fn from(excess: Excess) -> YamlError {
        YamlError::Excess(excess)
    }
}

/// Longest text: the size limit of an object.
const MAX_TEXT_BYTES: usize = 1536 * 1024;
/// Deepest nesting; upstream's types are at most about 20 deep.
const MAX_DEPTH: usize = 64;
/// Most bytes of text that anchors and aliases may copy: one long string aliased often is a bomb.
const MAX_COPIED_BYTES: usize = 1024 * 1024;
/// Most marks of flow style: the parser keeps every token of a `[...]` until it is closed, some 180 bytes
/// each.
const MAX_MARKS: usize = 100_000;

/// Reads one document.
pub fn parse(text: &[u8]) -> Result<Value, YamlError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!("the text has {} bytes, expected at most {MAX_TEXT_BYTES}", text.len()).into());
    }
    let text = std::str::from_utf8(text).map_err(|_| "the text is no UTF-8".to_owned())?;
    let is_mark = |byte: &u8| matches!(byte, b',' | b':' | b'[' | b']' | b'{' | b'}' | b'?' | b'&' | b'*');
    if text.bytes().filter(is_mark).count() > MAX_MARKS {
        return Err(format!("the text has more than {MAX_MARKS} marks of punctuation").into());
    }
    let mut builder = Builder::default();
    for next in kedge_api::yaml::parser(text) {
        let (event, span) =
            next.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?;
        builder.take(event).map_err(|error| match error {
            YamlError::Malformed(why) => format!("line {}: {why}", span.start.line()).into(),
            YamlError::Excess(_) => error,
        })?;
    }
    Ok(builder.root.unwrap_or(Value::Null))
}

enum Open {
    List(Vec<Value>),
    Object { fields: Map<String, Value>, key: Option<String> },
}

/// Builds a value from the parser's events; `open` is never longer than [`MAX_DEPTH`].
#[derive(Default)]
struct Builder {
    open: Vec<(Open, usize)>,
    anchors: BTreeMap<usize, Value>,
    root: Option<Value>,
    budget: Budget,
    copied_bytes: usize,
    documents: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>) -> Result<(), YamlError> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    Err("a second document begins, expected one".to_owned().into())
                } else {
                    Ok(())
                }
            }
            Event::Scalar(text, style, anchor, tag) => self.scalar(&text, style, anchor, tag.as_deref()),
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq")?;
                self.push(Open::List(Vec::new()), anchor)
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map")?;
                self.push(Open::Object { fields: Map::new(), key: None }, anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some((Open::List(items), anchor)) => self.value(Value::Array(items), anchor),
                Some((Open::Object { fields, .. }, anchor)) => self.value(Value::Object(fields), anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let copy = known.ok_or_else(|| "an alias stands inside the value it refers to".to_owned())?;
                self.charge(&copy, self.open.len())?;
                self.value(copy, 0)
            }
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<(), YamlError> {
        if let Some((Open::Object { key: key @ None, fields }, _)) = self.open.last_mut() {
            if text == "<<" && style == ScalarStyle::Plain {
                return Err("merge keys (<<) are not read".to_owned().into());
            }
            if fields.contains_key(text) {
                return Err(format!("the key {:?} stands twice", excerpt(text)).into());
            }
            self.budget.entry(fields.len(), text)?;
            *key = Some(text.to_owned());
            return Ok(());
        }
        let is_text = match tag {
            None => style != ScalarStyle::Plain,
            Some(_) => check_tag(tag, "str").map(|()| true)?,
        };
        self.budget.text(text)?;
        self.value(if is_text { text.into() } else { resolve(text)? }, anchor)
    }

    fn push(&mut self, open: Open, anchor: usize) -> Result<(), YamlError> {
        if matches!(self.open.last(), Some((Open::Object { key: None, .. }, _))) {
            return Err("a list or map stands as a key, expected text".to_owned().into());
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("nested more than {MAX_DEPTH} levels deep").into());
        }
        self.open.push((open, anchor));
        Ok(())
    }

    fn value(&mut self, value: Value, anchor: usize) -> Result<(), YamlError> {
        if anchor != 0 {
            self.charge(&value, 0)?;
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut().map(|(open, _)| open) {
            None => self.root = Some(value),
            Some(Open::List(items)) => {
                self.budget.item(items.len())?;
                items.push(value);
            }
            Some(Open::Object { fields, key }) => {
                let key = key.take().ok_or_else(|| "an alias stands as a key, expected text".to_owned())?;
                fields.insert(key, value);
            }
        }
        Ok(())
    }

    /// Counts a copy before it is made.
    fn charge(&mut self, copy: &Value, depth: usize) -> Result<(), YamlError> {
        if depth + levels(copy) > MAX_DEPTH {
            return Err(format!("nested more than {MAX_DEPTH} levels deep").into());
        }
        self.budget.value(copy, depth)?;
        self.copied_bytes += text_bytes(copy);
        if self.copied_bytes > MAX_COPIED_BYTES {
            return Err("anchors and aliases repeat too much".to_owned().into());
        }
        Ok(())
    }
}

/// Lists and objects inside each other.
fn levels(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(levels).max().unwrap_or(0),
        _ => 0,
    }
}

fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + text_bytes(value)).sum(),
        _ => 0,
    }
}

fn check_tag(tag: Option<&Tag>, plain: &str) -> Result<(), String> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == plain) => {
            Err(format!("the tag {:?} is not read", excerpt(&tag.suffix)))
        }
        _ => Ok(()),
    }
}

/// The value of an unquoted scalar.
fn resolve(text: &str) -> Result<Value, String> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => true.into(),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => false.into(),
        _ => match number(text) {
            Some(number) => number,
            None if is_infinite(text) => return Err(format!("{text} is no number in JSON")),
            None => text.into(),
        },
    })
}

fn is_infinite(text: &str) -> bool {
    let word = text.trim_start_matches(['+', '-']);
    matches!(word, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN")
}

fn number(text: &str) -> Option<Value> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let plain = digits.replace('_', "");
    let based = [("0x", 16), ("0o", 8), ("0b", 2)]
        .iter()
        .find_map(|(prefix, base)| plain.strip_prefix(prefix).map(|rest| (rest, *base)));
    let (rest, base) = match based {
        Some(found) => found,
        None if plain.len() > 1
            && plain.starts_with('0')
            && plain.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (&plain[1..], 8)
        }
        None => (&*plain, 10),
    };
    if let Ok(whole) = i64::from_str_radix(rest, base) {
        return (!rest.starts_with(['+', '-'])).then(|| (sign * whole).into());
    }
    // digits after a zero that do not form an octal number are read as decimal
    let is_float = based.is_none()
        && rest.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    if !is_float {
        return None;
    }
    let float: f64 = rest.parse().ok()?;
    serde_json::Number::from_f64(if sign < 0 { -float } else { float }).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(text: &str, expect: Value) {
        assert_eq!(parse(text.as_bytes()), Ok(expect), "{text}");
    }

    fn refused(text: &str, why: &str) {
        let YamlError::Malformed(error) = parse(text.as_bytes()).expect_err(text) else { panic!("{text}") };
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn manifest_becomes_its_json() {
        check(
            "# a comment\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n  labels: {a: \"1\"}\ndata:\n  text: |\n    one\n    two\nlist:\n- 1\n- x: yes\n",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"a": "1"}},
                "data": {"text": "one\ntwo\n"}, "list": [1, {"x": true}]}),
        );
        check("", Value::Null);
        check("[0644, 0x1F, 1_000, -7, 1.5, 1e3, '12', !!str 12, 1.2.3, ~, off, 10Gi]", {
            json!([420, 31, 1000, -7, 1.5, 1000.0, "12", "12", "1.2.3", null, false, "10Gi"])
        });
        check("[0, -0, .5, -.5, +3, 089, 0b12, 0x1G, 1.e2]", {
            json!([0, 0, 0.5, -0.5, 3, 89.0, "0b12", "0x1G", 100.0])
        });
        check("a: &x {b: 1}\nc: *x\n", json!({"a": {"b": 1}, "c": {"b": 1}}));
    }

    #[test]
    fn ambiguous_or_oversized_yaml_is_refused_with_its_line() {
        refused("a: 1\na: 2\n", "line 2: the key \"a\" stands twice");
        refused("a: 1\n---\nb: 2\n", "second document");
        refused("<<: {a: 1}\n", "merge keys");
        refused("? [a]\n: 1\n", "stands as a key");
        refused("a: !!binary aGk=\n", "tag");
        refused("a: .inf\n", "no number");
        refused("a: [\n", "line");
        refused(&"[".repeat(70), "levels deep");
        refused(&"[a,".repeat(60_000), "punctuation");
        refused(&format!("a: &x {}\nb: [{}]\n", "y".repeat(20_000), "*x,".repeat(100)), "repeat too much");
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..8 {
            let below = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", [&*below; 10].join(", ")));
        }
        assert_eq!(parse(bomb.as_bytes()), Err(YamlError::Excess(Excess::Memory)));
        let long = format!("a: [\"{}\"]", "\",\"".repeat(90_000));
        assert_eq!(parse(long.as_bytes()), Ok(json!({"a": vec![""; 90_001]})));
        assert!(parse(&[b'a', 0xff]).is_err());
    }

    #[test]
    fn limits_are_used_to_the_last() {
        let fits = |text: &str| parse(text.as_bytes()).is_ok();
        let comment = |byte: &str, count: usize| format!("a: 1\n#{}", byte.repeat(count));
        assert!(fits(&comment("x", MAX_TEXT_BYTES - 6)) && !fits(&comment("x", MAX_TEXT_BYTES - 5)));
        // and the one after the key
        assert!(fits(&comment("?", MAX_MARKS - 1)) && !fits(&comment("?", MAX_MARKS)));
        let lists =
            |inner: &str, levels: usize| format!("{}{inner}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(fits(&lists("", MAX_DEPTH)) && !fits(&lists("", MAX_DEPTH + 1)));
        // the depth of an alias is that of its place plus that of the repeated value
        let maps = format!("{}1{}", "{a: ".repeat(32), "}".repeat(32));
        for copied in [lists("", 32), maps] {
            let aliased = |levels: usize| format!("- &x {copied}\n- {}\n", lists("*x", levels));
            assert!(fits(&aliased(MAX_DEPTH - 33)) && !fits(&aliased(MAX_DEPTH - 32)), "{copied}");
        }
        // the anchor counts as a copy, too
        let half = "x".repeat(MAX_COPIED_BYTES / 32);
        for copied in [format!("{half}{half}"), format!("{{? {half} : {half}}}")] {
            let aliased = |times: usize| format!("- &x {copied}\n{}", "- *x\n".repeat(times));
            assert!(fits(&aliased(15)) && !fits(&aliased(16)), "{copied:.20}");
        }
    }
}
