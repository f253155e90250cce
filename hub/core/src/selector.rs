//! Label and field selectors: reading them as upstream does, and matching objects.
//!
//! A [`Selection`] belongs to a list or a watch. It is evaluated on the parsed fields of
//! [`Object`](crate::object::Object) (labels, selectable fields), so a change is matched against thousands of
//! watches without parsing anything.

use crate::api_error::ApiError;
use crate::kinds::{Kind, names};
use crate::object::Object;

/// Most requirements of one selector.
const REQUIREMENTS: usize = 256;

/// A label selector by itself, as `kubectl -l` takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Labels(Vec<LabelRequirement>);

impl Labels {
    /// # Errors
    /// Upstream's text.
    pub fn parse(text: &str) -> Result<Labels, String> {
        parse_labels(text).map(Labels)
    }

    /// Whether it selects an object, of which `label` looks up the labels.
    pub fn select<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| requirement.test.holds(label(&requirement.key)))
    }
}

/// The objects that a list or watch asks for.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Empty: all namespaces.
    pub namespace: String,
    /// The one name that `metadata.name=` requires, if it does: watches of one object are found by it.
    pub name: Option<String>,
    /// The value that it requires of an indexed field of the kind, and the position of that field among the
    /// selectable ones.
    pub indexed: Option<(usize, String)>,
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq)]
struct LabelRequirement {
    key: String,
    test: LabelTest,
}

#[derive(Debug, Clone, PartialEq)]
enum LabelTest {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

#[derive(Debug, Clone)]
struct FieldRequirement {
    field: FieldName,
    value: String,
    equal: bool,
}

#[derive(Debug, Clone, Copy)]
enum FieldName {
    Name,
    Namespace,
    /// Index into the kind's selectable fields.
    OfKind(usize),
}

impl Selection {
    /// Everything of a kind in a namespace (empty: all).
    pub fn all(namespace: &str) -> Selection {
        Selection { namespace: namespace.to_owned(), ..Selection::default() }
    }

    /// Reads the selectors of a request.
    pub fn parse(kind: &Kind, namespace: &str, labels: &str, fields: &str) -> Result<Selection, ApiError> {
        let mut selection = Selection::all(namespace);
        selection.labels = parse_labels(labels).map_err(ApiError::bad_request)?;
        selection.fields = parse_fields(kind, fields)?;
        selection.name = selection.fields.iter().find_map(|requirement| match requirement.field {
            FieldName::Name if requirement.equal => Some(requirement.value.clone()),
            _ => None,
        });
        selection.indexed = selection.fields.iter().find_map(|requirement| match requirement.field {
            FieldName::OfKind(field) if requirement.equal && kind.indexed.contains(&field) => {
                Some((field, requirement.value.clone()))
            }
            _ => None,
        });
        Ok(selection)
    }

    /// The value that is required of one of the kind's selectable fields.
    pub fn required(&self, field: usize) -> Option<&str> {
        let requires = |requirement: &&FieldRequirement| {
            requirement.equal && matches!(requirement.field, FieldName::OfKind(index) if index == field)
        };
        self.fields.iter().find(requires).map(|requirement| requirement.value.as_str())
    }

    /// The objects of a namespace (empty: all) that have this value in the selectable field at this position.
    pub fn by_field(kind: &Kind, namespace: &str, field: usize, value: &str) -> Selection {
        let equal =
            FieldRequirement { field: FieldName::OfKind(field), value: value.to_owned(), equal: true };
        Selection {
            fields: vec![equal],
            indexed: kind.indexed.contains(&field).then(|| (field, value.to_owned())),
            ..Selection::all(namespace)
        }
    }

    /// Whether it has requirements besides a namespace.
    pub fn is_filtered(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    /// Whether the object is selected.
    pub fn selects(&self, object: &Object) -> bool {
        (self.namespace.is_empty() || self.namespace == *object.namespace)
            && self.fields.iter().all(|requirement| requirement.holds(object))
            && self.labels.iter().all(|requirement| requirement.test.holds(object.label(&requirement.key)))
    }
}

impl FieldRequirement {
    fn holds(&self, object: &Object) -> bool {
        let value = match self.field {
            FieldName::Name => &*object.name,
            FieldName::Namespace => &*object.namespace,
            FieldName::OfKind(index) => object.field(index),
        };
        (value == self.value) == self.equal
    }
}

impl LabelTest {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = |value: Option<&str>| value.and_then(|value| value.parse::<i64>().ok());
        match self {
            LabelTest::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            LabelTest::NotIn(values) => !value.is_some_and(|value| values.iter().any(|one| one == value)),
            LabelTest::Exists => value.is_some(),
            LabelTest::Absent => value.is_none(),
            LabelTest::Above(limit) => number(value).is_some_and(|number| number > *limit),
            LabelTest::Below(limit) => number(value).is_some_and(|number| number < *limit),
        }
    }
}

/// Reads a label selector as upstream's parser does (`labels.Parse`): the same texts are accepted, and errors
/// have the same words.
fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, String> {
    let mut words = Words(text);
    let mut found = Vec::new();
    if words.next_is_end() {
        return Ok(found);
    }
    if is_sign(words.peek()) && words.peek() != "!" {
        return Err(format!("found '{}', expected: !, identifier, or 'end of string'", words.peek()));
    }
    loop {
        if found.len() == REQUIREMENTS {
            return Err(format!("more than {REQUIREMENTS} requirements"));
        }
        let requirement = parse_label(&mut words);
        found.push(requirement.map_err(|why| format!("unable to parse requirement: {why}"))?);
        match words.take() {
            "" => return Ok(found),
            "," => {}
            other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
        }
        let next = words.peek();
        if next.is_empty() || is_sign(next) && next != "!" {
            return Err(format!("found '{next}', expected: identifier after ','"));
        }
    }
}

/// The unread part of a selector, split into words and operators.
#[derive(Clone, Copy)]
struct Words<'a>(&'a str);

/// The longest come first: if two match, the longer one is meant.
const SIGNS: [&str; 9] = ["==", "!=", "=", "!", ">", "<", "(", ")", ","];

fn is_sign(word: &str) -> bool {
    SIGNS.contains(&word)
}

impl<'a> Words<'a> {
    /// The next word or operator; empty at the end.
    fn take(&mut self) -> &'a str {
        let rest = self.0.trim_start();
        let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign)).map(|sign| sign.len());
        let is_outside = |c: char| c.is_whitespace() || matches!(c, '=' | '!' | '>' | '<' | '(' | ')' | ',');
        let end = sign.unwrap_or_else(|| rest.find(is_outside).unwrap_or(rest.len()));
        let (word, rest) = rest.split_at(end);
        self.0 = rest;
        word
    }

    fn peek(self) -> &'a str {
        let mut ahead = self;
        ahead.take()
    }

    fn next_is_end(self) -> bool {
        self.peek().is_empty()
    }
}

fn parse_label(words: &mut Words<'_>) -> Result<LabelRequirement, String> {
    let mut key = words.take();
    let absent = key == "!";
    if absent {
        key = words.take();
    }
    if key.is_empty() || is_sign(key) {
        return Err(format!("found '{key}', expected: identifier"));
    }
    if let Some(complaint) = names::qualified_name_complaint(key) {
        return Err(format!("<nil>: Invalid value: {key:?}: {complaint}"));
    }
    let test = match words.peek() {
        _ if absent => LabelTest::Absent,
        "" | "," => LabelTest::Exists,
        _ => match words.take() {
            "in" => LabelTest::In(several_values(words, key)?),
            "notin" => LabelTest::NotIn(several_values(words, key)?),
            "=" | "==" => LabelTest::In(vec![one_value(words, key)?]),
            "!=" => LabelTest::NotIn(vec![one_value(words, key)?]),
            ">" => LabelTest::Above(whole_number(&one_value(words, key)?)?),
            "<" => LabelTest::Below(whole_number(&one_value(words, key)?)?),
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        },
    };
    Ok(LabelRequirement { key: key.to_owned(), test })
}

/// A value that may be empty.
fn one_value(words: &mut Words<'_>, key: &str) -> Result<String, String> {
    match words.peek() {
        "" | "," => Ok(String::new()),
        sign if is_sign(sign) => Err(format!("found '{sign}', expected: identifier")),
        _ => checked_value(words.take(), 0, key),
    }
}

/// Values in parentheses; between two adjacent commas is an empty one.
fn several_values(words: &mut Words<'_>, key: &str) -> Result<Vec<String>, String> {
    match words.take() {
        "(" => {}
        other => return Err(format!("found '{other}' expected: '('")),
    }
    if words.peek() == ")" {
        return Err(
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".to_owned()
        );
    }
    let mut found = Vec::new();
    loop {
        let value = match words.peek() {
            "," | ")" => "",
            other if other.is_empty() || is_sign(other) => {
                return Err(format!("found '{other}', expected: ',', or identifier"));
            }
            _ => words.take(),
        };
        found.push(checked_value(value, found.len(), key)?);
        match words.take() {
            ")" => return Ok(found),
            "," => {}
            other => return Err(format!("found '{other}', expected: ',' or ')'")),
        }
    }
}

fn checked_value(value: &str, index: usize, key: &str) -> Result<String, String> {
    match names::label_value_complaint(value) {
        Some(complaint) => Err(format!("values[{index}][{key}]: Invalid value: {value:?}: {complaint}")),
        None => Ok(value.to_owned()),
    }
}

fn whole_number(text: &str) -> Result<i64, String> {
    let refused = |_| {
        format!("values[0]: Invalid value: {text:?}: for 'Gt', 'Lt' operators, the value must be an integer")
    };
    text.parse().map_err(refused)
}

fn parse_fields(kind: &Kind, text: &str) -> Result<Vec<FieldRequirement>, ApiError> {
    let terms = split_escaped(text);
    if terms.len() > REQUIREMENTS {
        return Err(ApiError::bad_request(format!("field selector: more than {REQUIREMENTS} requirements")));
    }
    terms.iter().map(|term| parse_field(kind, term)).collect()
}

fn parse_field(kind: &Kind, term: &str) -> Result<FieldRequirement, ApiError> {
    let (label, value, equal) = if let Some((label, value)) = term.split_once("!=") {
        (label, value, false)
    } else if let Some((label, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (label, value, true)
    } else {
        let message = format!("invalid selector: '{term}'; can't understand '{term}'");
        return Err(ApiError::bad_request(message));
    };
    let field = match label {
        "metadata.name" => FieldName::Name,
        "metadata.namespace" => FieldName::Namespace,
        _ => match kind.selectable.iter().position(|selectable| selectable.label == label) {
            Some(index) => FieldName::OfKind(index),
            None => return Err(ApiError::bad_request(format!("field label not supported: {label}"))),
        },
    };
    Ok(FieldRequirement { field, value: unescape(value), equal })
}

/// Splits at commas that no backslash precedes; upstream escapes `\`, `,` and `=` in values.
fn split_escaped(text: &str) -> Vec<&str> {
    let (mut escaped, mut start, mut found) = (false, 0, Vec::new());
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                found.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    found.push(&text[start..]);
    found.retain(|term| !term.is_empty());
    found
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        out.push(if character == '\\' { characters.next().unwrap_or('\\') } else { character });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{EVENT, NODE};
    use serde_json::json;

    fn node() -> Object {
        let value =
            json!({"metadata": {"name": "edge-1", "labels": {"tier": "gold", "n": "5", "empty": ""}}});
        Object::new(&NODE, &value, 1).unwrap()
    }

    #[test]
    fn label_selectors_select_as_upstream() {
        let check = |selector: &str, expect: bool| {
            let selection = Selection::parse(&NODE, "", selector, "").unwrap();
            assert_eq!(selection.selects(&node()), expect, "{selector}");
        };
        for selector in [
            "",
            "tier=gold",
            "tier==gold",
            "tier!=iron",
            "tier in (gold, iron)",
            "tier notin (iron)",
            "tier",
            "!other",
            "other notin (a)",
            "other!=a",
            "n>4",
            "n<6",
            "empty=",
            "tier=gold,n",
            " tier in (gold,a) , n ",
            "tier in (,gold)",
            "empty in (a,)",
            "in notin (in)",
            "empty=,tier",
        ] {
            check(selector, true);
        }
        for selector in [
            "tier=iron",
            "tier!=gold",
            "tier in (iron)",
            "tier notin (gold)",
            "other",
            "!tier",
            "n>5",
            "tier>1",
            "other in (a)",
        ] {
            check(selector, false);
        }
    }

    #[test]
    fn malformed_selectors_get_upstreams_errors() {
        let check = |selector: &str, expect: &str| {
            let refused = Selection::parse(&NODE, "", selector, "").unwrap_err();
            assert_eq!((refused.code, refused.message.as_str()), (400, expect), "{selector}");
        };
        check("=a", "found '=', expected: !, identifier, or 'end of string'");
        check(",", "found ',', expected: !, identifier, or 'end of string'");
        check("a,,b", "found ',', expected: identifier after ','");
        check("a,", "found '', expected: identifier after ','");
        check("a=b=c", "found '=', expected: ',' or 'end of string'");
        check("tier=a b", "found 'b', expected: ',' or 'end of string'");
        check("!a=b", "found '=', expected: ',' or 'end of string'");
        check("a===b", "unable to parse requirement: found '=', expected: identifier");
        check("!=a", "found '!=', expected: !, identifier, or 'end of string'");
        check("! ,a", "unable to parse requirement: found ',', expected: identifier");
        check("a in b", "unable to parse requirement: found 'b' expected: '('");
        check("tier in gold)", "unable to parse requirement: found 'gold' expected: '('");
        check("tier in (gold", "unable to parse requirement: found '', expected: ',' or ')'");
        check("tier in (gold iron)", "unable to parse requirement: found 'iron', expected: ',' or ')'");
        check("tier in (=)", "unable to parse requirement: found '=', expected: ',', or identifier");
        check("tier in (gold,", "unable to parse requirement: found '', expected: ',', or identifier");
        let none = "unable to parse requirement: values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty";
        check("tier in ()", none);
        check("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt");
        check(
            "a within (b)",
            "unable to parse requirement: found 'within', expected: in, notin, =, ==, !=, gt, lt",
        );
        let number = "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer";
        check("n>x", number);
        let refused = Selection::parse(&NODE, "", "a=-b", "").unwrap_err().message;
        assert!(
            refused.starts_with(
                "unable to parse requirement: values[0][a]: Invalid value: \"-b\": a valid label"
            ),
            "{refused}"
        );
        let refused = Selection::parse(&NODE, "", "-a", "").unwrap_err().message;
        assert!(
            refused.starts_with("unable to parse requirement: <nil>: Invalid value: \"-a\": name part"),
            "{refused}"
        );
        let many = vec!["a"; REQUIREMENTS + 1].join(",");
        assert_eq!(Selection::parse(&NODE, "", &many, "").err().map(|error| error.code), Some(400));
        assert_eq!(
            Selection::parse(&NODE, "", "", "spec.foo=1").unwrap_err().message,
            "field label not supported: spec.foo"
        );
    }

    #[test]
    fn field_selectors_select_as_upstream() {
        let check = |selector: &str, expect: bool| {
            let selection = Selection::parse(&NODE, "", "", selector).unwrap();
            assert_eq!(selection.selects(&node()), expect, "{selector}");
        };
        check("metadata.name=edge-1", true);
        check("metadata.name==edge-1,spec.unschedulable=false", true);
        check("metadata.name!=edge-1", false);
        check("spec.unschedulable!=false", false);
        check("metadata.namespace=", true);
        let event = json!({"metadata": {"name": "e", "namespace": "default"}, "involvedObject": {"kind": "Node", "name": "a,b"}});
        let event = Object::new(&EVENT, &event, 1).unwrap();
        let selection = Selection::parse(
            &EVENT,
            "default",
            "",
            "involvedObject.namespace=,involvedObject.kind=Node,involvedObject.name=a\\,b",
        );
        assert!(selection.unwrap().selects(&event));
    }

    #[test]
    fn selection_by_name_is_recognized() {
        let name = |fields: &str| Selection::parse(&NODE, "", "", fields).unwrap().name;
        assert_eq!(name("metadata.name=a"), Some("a".to_owned()));
        assert_eq!(name("metadata.name!=a"), None);
    }
}
