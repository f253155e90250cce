//! Label and field selectors: reading them as upstream does, and asking whether an object is selected.
//!
//! A [`Selection`] is what a list or a watch asks for. It is judged on what [`Object`](crate::Object) keeps ready
//! (labels, selectable fields), so a change is matched against thousands of watches without parsing anything.

use crate::kinds::{Kind, meta};
use crate::object::Object;
use crate::status::ApiError;

/// Requirements of one selector; nobody needs more.
const REQUIREMENTS: usize = 256;

/// What a list or watch asks for.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Empty: all namespaces.
    pub namespace: String,
    /// The one name that `metadata.name=` asks for, if it does: watches of one object are found by it.
    pub name: Option<String>,
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone)]
struct LabelRequirement {
    key: String,
    test: LabelTest,
}

#[derive(Debug, Clone)]
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
        selection.labels = parse_labels(labels)
            .map_err(|why| ApiError::bad_request(format!("unable to parse requirement: {why}")))?;
        selection.fields = parse_fields(kind, fields)?;
        selection.name = selection.fields.iter().find_map(|requirement| match requirement.field {
            FieldName::Name if requirement.equal => Some(requirement.value.clone()),
            _ => None,
        });
        Ok(selection)
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

/// Splits at commas that stand outside parentheses.
fn terms(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0_usize, 0, Vec::new());
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                found.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    found.push(&text[start..]);
    found
}

fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let terms = terms(text);
    if terms.len() > REQUIREMENTS {
        return Err(format!("more than {REQUIREMENTS} requirements"));
    }
    terms.into_iter().map(parse_label).collect()
}

fn parse_label(term: &str) -> Result<LabelRequirement, String> {
    let term = term.trim();
    let (key, test) = if let Some(key) = term.strip_prefix('!') {
        (key.trim(), LabelTest::Absent)
    } else if let Some((key, value)) = term.split_once("!=") {
        (key.trim(), LabelTest::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key.trim(), LabelTest::In(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = term.split_once('>') {
        (key.trim(), LabelTest::Above(whole_number(value)?))
    } else if let Some((key, value)) = term.split_once('<') {
        (key.trim(), LabelTest::Below(whole_number(value)?))
    } else if let Some((head, values)) = term.split_once('(') {
        let (key, operator) =
            head.trim().rsplit_once(char::is_whitespace).ok_or("found '(', expected: operator")?;
        let values = values.trim().strip_suffix(')').ok_or("found '', expected: ')'")?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        match operator {
            "in" => (key.trim(), LabelTest::In(values)),
            "notin" => (key.trim(), LabelTest::NotIn(values)),
            _ => return Err(format!("found '{operator}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    } else {
        (term, LabelTest::Exists)
    };
    if let Some(complaint) = meta::qualified_name_complaint(key) {
        return Err(format!("<nil>: Invalid value: {key:?}: {complaint}"));
    }
    if let LabelTest::In(values) | LabelTest::NotIn(values) = &test {
        for value in values {
            if let Some(complaint) = meta::label_value_complaint(value) {
                return Err(format!("values[0][{key}]: Invalid value: {value:?}: {complaint}"));
            }
        }
    }
    Ok(LabelRequirement { key: key.to_owned(), test })
}

fn whole_number(text: &str) -> Result<i64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("for 'Gt', 'Lt' operators, the value must be an integer, found {text:?}"))
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
    fn malformed_selectors_are_refused() {
        for selector in [
            "=a",
            "a b",
            "tier in gold)",
            "tier in (gold",
            "n>x",
            "a=b=c",
            "a within (b)",
            "tier=a b",
            ",",
            "a,,b",
        ] {
            let refused = Selection::parse(&NODE, "", selector, "");
            assert_eq!(refused.err().map(|error| error.code), Some(400), "{selector}");
        }
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
    fn a_selection_by_name_is_known_as_such() {
        let name = |fields: &str| Selection::parse(&NODE, "", "", fields).unwrap().name;
        assert_eq!(name("metadata.name=a"), Some("a".to_owned()));
        assert_eq!(name("metadata.name!=a"), None);
    }
}
