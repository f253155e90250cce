//! Reading JSON values by a path of fields, conditions, and times as the API and Go write them.

use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The text at a path of fields, empty if absent or of another type.
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or("")
}

/// The value at a path of fields.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field))
}

/// The time as `metadata.creationTimestamp` writes it: RFC 3339 in whole seconds.
pub fn rfc3339(time: OffsetDateTime) -> String {
    let seconds = time.replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    seconds.format(&Rfc3339).unwrap_or_default()
}

/// The condition of this type in a status.
pub fn condition<'a>(status: &'a Value, condition_type: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == condition_type)
}

/// Sets the condition of its type; if its status stays the same, so does its transition time. `now`: RFC
/// 3339.
pub fn set_condition(status: &mut Value, mut new: Value, now: &str) {
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    // in its stored form, because otherwise it would differ from the stored one at every comparison
    if let Some(fields) = new.as_object_mut() {
        fields.retain(|_, value| *value != "");
    }
    let known = conditions.iter_mut().find(|known| known["type"] == new["type"]);
    let since = known.as_ref().filter(|known| known["status"] == new["status"]);
    new["lastTransitionTime"] = match since {
        Some(known) => known["lastTransitionTime"].clone(),
        None => now.into(),
    };
    match known {
        Some(known) => *known = new,
        None => conditions.push(new),
    }
}

/// Seconds from an object, for arithmetic on dates: at most the largest number of 32 bits, 68 years. Objects
/// may contain 2^63, with which every sum and difference of dates would overflow.
pub fn seconds(named: i64) -> time::Duration {
    let bound = i64::from(i32::MAX);
    time::Duration::seconds(named.clamp(-bound, bound))
}

/// The same for arithmetic on times of a process; a negative number counts as zero.
pub fn span(named: i64) -> Duration {
    seconds(named).try_into().unwrap_or_default()
}

/// Go's notation, whole numbers only: `1h2m3s`, `500ms`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let unit = &unit[..unit.find(|character: char| character.is_ascii_digit()).unwrap_or(unit.len())];
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
        rest = &rest[digits + unit.len()..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_keeps_its_time_while_its_status_stays() {
        let mut status = Value::Null;
        let mut check = |new: Value, now: &str, expect: &str| {
            set_condition(&mut status, new, now);
            let found = condition(&status, "A").unwrap();
            assert_eq!(
                (found["lastTransitionTime"].as_str(), status["conditions"].as_array().unwrap().len()),
                (Some(expect), 1)
            );
        };
        check(json!({"type": "A", "status": "True"}), "t1", "t1");
        check(json!({"type": "A", "status": "True", "reason": "other"}), "t2", "t1");
        check(json!({"type": "A", "status": "False", "message": ""}), "t3", "t3");
        // empty texts are not stored
        assert_eq!(condition(&status, "A").unwrap().get("message"), None);
    }

    #[test]
    fn durations_are_read_in_gos_notation() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(duration(text), expect.map(Duration::from_millis), "{text:?}");
        };
        check("50s", Some(50_000));
        check("1h2m3s4ms", Some(3_723_004));
        check("90m", Some(5_400_000));
        for wrong in
            ["", "5", "s", "5x", "-5s", "1.5s", " 5s", "99999999999999999999s", "18446744073709551615h"]
        {
            check(wrong, None);
        }
    }
}
