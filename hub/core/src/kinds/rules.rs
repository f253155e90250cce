//! Rules of single fields that several kinds share, with upstream's texts: names, labels, paths, addresses,
//! ports, numbers.
//!
//! Always holds: a rule adds at most a few errors for each value that it reads, and reads each value once.
//! Leaves to others: the fields of a kind, and which rule applies to each (the kind's own file).

use std::net::IpAddr;

use kedge_api::pod_numbers::PORTS;
use serde_json::Value;

use super::names::{self, NameRule};
use crate::field_error::FieldError;
use crate::value::text;

/// The faults found so far.
pub use crate::field_error::FieldErrors as Errors;

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const PORT_NUMBER: &str = "must be between 1 and 65535, inclusive";
/// Longest name of a port.
const PORT_NAME_BYTES: usize = 15;

/// The items of a list, none if it is absent.
pub fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The entries of a map, none if it is absent.
pub fn entries<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    value
        .get(field)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value))
}

/// A text that must be given, and be one of these.
pub fn one_of(value: &Value, field: &str, allowed: &[&str], path: &str, errors: &mut Errors) {
    required(value, field, path, errors);
    optional_one_of(value, field, allowed, path, errors);
}

/// A text that must be one of these if it is given.
pub fn optional_one_of(value: &Value, field: &str, allowed: &[&str], path: &str, errors: &mut Errors) {
    let found = text(value, &[field]);
    if !found.is_empty() && !allowed.contains(&found) {
        errors.push(FieldError::unsupported(format!("{path}.{field}"), found, allowed));
    }
}

/// A text that must be given.
pub fn required(value: &Value, field: &str, path: &str, errors: &mut Errors) {
    if text(value, &[field]).is_empty() {
        errors.push(FieldError::required(format!("{path}.{field}"), ""));
    }
}

/// A number of at least 0, if it is given.
pub fn not_negative(value: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(number) = value[field].as_i64().filter(|number| *number < 0) {
        errors.push(FieldError::invalid(format!("{path}.{field}"), number, NOT_NEGATIVE));
    }
}

/// A number of at least 1, if it is given.
pub fn positive(value: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(number) = value[field].as_i64().filter(|number| *number < 1) {
        errors.push(FieldError::invalid(format!("{path}.{field}"), number, "must be greater than zero"));
    }
}

/// A number within these bounds, if it is given.
pub fn between(value: &Value, range: std::ops::RangeInclusive<i64>, path: &str, errors: &mut Errors) {
    if let Some(number) = value.as_i64().filter(|number| !range.contains(number)) {
        let explained = format!("must be between {} and {}, inclusive", range.start(), range.end());
        errors.push(FieldError::invalid(path, number, &explained));
    }
}

/// A name of this form; an empty one is left to [`required`].
pub fn name(value: &str, rule: NameRule, path: &str, errors: &mut Errors) {
    if let Some(why) = rule.complaint(value).filter(|_| !value.is_empty()) {
        errors.push(FieldError::invalid(path, value, &why));
    }
}

/// The key of a label, of a taint and the like.
pub fn label_key(key: &str, path: &str, errors: &mut Errors) {
    if let Some(why) = names::qualified_name_complaint(key) {
        errors.push(FieldError::invalid(path, key, &why));
    }
}

/// The key of a label, if it is given.
pub fn label_key_if_given(key: &str, path: &str, errors: &mut Errors) {
    if !key.is_empty() {
        label_key(key, path, errors);
    }
}

/// The value of a label.
pub fn label_value(value: &str, path: &str, errors: &mut Errors) {
    if let Some(why) = names::label_value_complaint(value) {
        errors.push(FieldError::invalid(path, value, &why));
    }
}

/// Keys and values of a map of labels; errors name the map, as upstream's do.
pub fn labels(value: &Value, field: &str, path: &str, errors: &mut Errors) {
    let path = format!("{path}.{field}");
    for (key, value) in entries(value, field) {
        label_key(key, &path, errors);
        label_value(value.as_str().unwrap_or(""), &path, errors);
    }
}

/// A label selector, if it is given.
pub fn label_selector(selector: &Value, path: &str, errors: &mut Errors) {
    labels(selector, "matchLabels", path, errors);
    for (index, rule) in list(selector, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        if !selector_operator(rule, &path, errors) {
            let operator = text(rule, &["operator"]);
            let why = "not a valid selector operator";
            errors.push(FieldError::invalid(format!("{path}.operator"), operator, why));
        }
        label_key(text(rule, &["key"]), &format!("{path}.key"), errors);
        selector_values(rule, &path, errors);
    }
}

/// The values that the operators of label and node selectors need; `false` for an unknown operator.
pub fn selector_operator(rule: &Value, path: &str, errors: &mut Errors) -> bool {
    let values = list(rule, "values").len();
    let path = format!("{path}.values");
    match text(rule, &["operator"]) {
        "In" | "NotIn" if values == 0 => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(path, why));
        }
        "Exists" | "DoesNotExist" if values > 0 => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(path, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => return false,
    }
    true
}

/// The values of a selector are values of labels.
pub fn selector_values(rule: &Value, path: &str, errors: &mut Errors) {
    for (index, value) in list(rule, "values").iter().enumerate() {
        label_value(value.as_str().unwrap_or(""), &format!("{path}.values[{index}]"), errors);
    }
}

/// A path that never leads above its start.
pub fn no_backsteps(value: &str, path: &str, errors: &mut Errors) {
    if value.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, value, "must not contain '..'"));
    }
}

/// A relative path that stays below its start.
pub fn descending_path(value: &str, path: &str, errors: &mut Errors) {
    if value.starts_with('/') {
        errors.push(FieldError::invalid(path, value, "must be a relative path"));
    }
    no_backsteps(value, path, errors);
}

/// A relative path for a file, except the internal files of a volume (whose names begin with two dots).
pub fn local_path(value: &str, path: &str, errors: &mut Errors) {
    descending_path(value, path, errors);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.push(FieldError::invalid(path, value, "must not start with '..'"));
    }
}

/// An IP address.
pub fn ip(value: &str, path: &str, errors: &mut Errors) -> Option<IpAddr> {
    match value.parse() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            let why = "must not be an IPv4-mapped IPv6 address";
            errors.push(FieldError::invalid(path, value, why));
            None
        }
        Ok(address) => Some(address),
        Err(_) => {
            let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.push(FieldError::invalid(path, value, why));
            None
        }
    }
}

/// An IP network such as `10.9.8.0/24`; its address.
pub fn network(value: &str, path: &str, errors: &mut Errors) -> Option<IpAddr> {
    let read = || {
        let (address, bits) = value.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let width: u32 = if address.is_ipv4() { 32 } else { 128 };
        let bits: u32 = bits.parse().ok().filter(|bits| *bits <= width)?;
        Some((address, width - bits))
    };
    let Some((address, host_bits)) = read() else {
        let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        errors.push(FieldError::invalid(path, value, why));
        return None;
    };
    let number = match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    if number.trailing_zeros() < host_bits && number != 0 {
        let why = "must not have bits set beyond the prefix length";
        errors.push(FieldError::invalid(path, value, why));
    }
    Some(address)
}

/// Whether a list of addresses has at most one of each family.
pub fn is_one_per_family(addresses: &[IpAddr]) -> bool {
    let ipv4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    ipv4 <= 1 && addresses.len() - ipv4 <= 1
}

/// The number of a port.
pub fn port_number(number: i64, path: &str, errors: &mut Errors) {
    if !PORTS.contains(&number) {
        errors.push(FieldError::invalid(path, number, PORT_NUMBER));
    }
}

/// The name of a port; returns whether it is valid.
pub fn port_name(name: &str, path: &str, errors: &mut Errors) -> bool {
    let before = errors.len();
    let mut refuse = |why: &str| errors.push(FieldError::invalid(path, name, why));
    if name.len() > PORT_NAME_BYTES {
        refuse(&format!("must be no more than {PORT_NAME_BYTES} characters"));
    }
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || !name.bytes().all(allowed) {
        refuse("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        refuse("must contain at least one letter (a-z)");
    }
    if name.contains("--") {
        refuse("must not contain consecutive hyphens");
    }
    if name.starts_with('-') || name.ends_with('-') {
        refuse("must not begin or end with a hyphen");
    }
    errors.len() == before
}

/// A port by number or name.
pub fn port(value: &Value, path: &str, errors: &mut Errors) {
    match value {
        Value::String(name) => {
            port_name(name, path, errors);
        }
        other => port_number(other.as_i64().unwrap_or(0), path, errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(rule: impl FnOnce(&mut Errors), expect: &[&str]) {
        let mut errors = Errors::default();
        rule(&mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn addresses_and_networks_are_strict() {
        for good in ["10.0.0.1", "fe80::1", "::"] {
            check(
                |errors| {
                    ip(good, "f", errors);
                },
                &[],
            );
        }
        for good in ["10.9.8.0/24", "0.0.0.0/0", "10.9.8.1/32", "2001:db8::/64", "::/0"] {
            check(
                |errors| {
                    network(good, "f", errors);
                },
                &[],
            );
        }
        let no_ip = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        for (bad, why) in [
            ("nope", no_ip),
            ("010.0.0.1", no_ip),
            ("", no_ip),
            ("::ffff:1.2.3.4", "must not be an IPv4-mapped IPv6 address"),
        ] {
            check(
                |errors| {
                    ip(bad, "f", errors);
                },
                &[&format!("f: Invalid value: {bad:?}: {why}")],
            );
        }
        let no_net = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        for (bad, why) in [
            ("10.9.8.0", no_net),
            ("10.9.8.0/33", no_net),
            ("nonsense", no_net),
            ("10.9.8.1/24", "must not have bits set beyond the prefix length"),
        ] {
            check(
                |errors| {
                    network(bad, "f", errors);
                },
                &[&format!("f: Invalid value: {bad:?}: {why}")],
            );
        }
    }

    #[test]
    fn ports_have_a_number_or_a_name() {
        for good in [json!(80), json!("http"), json!("a-1")] {
            check(|errors| port(&good, "f", errors), &[]);
        }
        check(
            |errors| port(&json!(0), "f", errors),
            &["f: Invalid value: 0: must be between 1 and 65535, inclusive"],
        );
        check(
            |errors| port(&json!("80"), "f", errors),
            &["f: Invalid value: \"80\": must contain at least one letter (a-z)"],
        );
        check(
            |errors| port(&json!("-A--"), "f", errors),
            &[
                "f: Invalid value: \"-A--\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
                "f: Invalid value: \"-A--\": must contain at least one letter (a-z)",
                "f: Invalid value: \"-A--\": must not contain consecutive hyphens",
                "f: Invalid value: \"-A--\": must not begin or end with a hyphen",
            ],
        );
    }

    #[test]
    fn paths_stay_below_their_start() {
        check(|errors| local_path("a/..b", "f", errors), &[]);
        check(
            |errors| descending_path("/a", "f", errors),
            &["f: Invalid value: \"/a\": must be a relative path"],
        );
        check(
            |errors| descending_path("../x", "f", errors),
            &["f: Invalid value: \"../x\": must not contain '..'"],
        );
        check(
            |errors| local_path("..x", "f", errors),
            &["f: Invalid value: \"..x\": must not start with '..'"],
        );
    }

    #[test]
    fn selectors_need_operators_values_and_keys() {
        check(
            |errors| {
                let selector = json!({"matchLabels": {"a b": "c"}, "matchExpressions": [
                    {"key": "a", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["x"]},
                    {"key": "a", "operator": "Near", "values": ["v"]}]});
                let mut found = Errors::default();
                label_selector(&selector, "s", &mut found);
                // the texts about names are always those about labels
                let own = found.iter().filter(|error| !error.to_string().contains("must consist of"));
                errors.extend(own.cloned());
            },
            &[
                "s.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "s.matchExpressions[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                "s.matchExpressions[2].operator: Invalid value: \"Near\": not a valid selector operator",
            ],
        );
    }
}
