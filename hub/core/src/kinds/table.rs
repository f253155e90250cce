//! Columns of tables (`kubectl get`) and the words in their cells: ages and counts, exactly as upstream
//! prints them.

use serde_json::{Value, json};

use super::schema;
use crate::value::text;

/// One column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The column's title, upstream's.
    pub name: &'static str,
    /// `string` or `integer`.
    pub of: &'static str,
    /// `name` for the column that names the object.
    pub format: &'static str,
    /// 1 is shown by `-o wide` only.
    pub priority: u8,
}

impl Column {
    /// The object's name.
    pub const NAME: Column = Column { name: "Name", of: "string", format: "name", priority: 0 };
    /// Time since creation.
    pub const AGE: Column = Column::text("Age");

    /// A column of words.
    pub const fn text(name: &'static str) -> Column {
        Column { name, of: "string", format: "", priority: 0 }
    }

    /// A column of whole numbers.
    pub const fn integer(name: &'static str) -> Column {
        Column { name, of: "integer", format: "", priority: 0 }
    }

    /// A column of `true` and `false`.
    pub const fn boolean(name: &'static str) -> Column {
        Column { name, of: "boolean", format: "", priority: 0 }
    }

    /// The same column, shown only by `-o wide`.
    pub const fn wide(mut self) -> Column {
        self.priority = 1;
        self
    }

    /// The `columnDefinitions` entry.
    pub fn to_value(self) -> Value {
        json!({"name": self.name, "type": self.of, "format": self.format, "description": "", "priority": self.priority})
    }
}

/// Entries of an object or list, 0 for anything else.
pub fn count(value: &Value) -> usize {
    match value {
        Value::Object(entries) => entries.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    }
}

/// Time since creation.
pub fn age(object: &Value, now: time::OffsetDateTime) -> Value {
    since(text(object, &["metadata", "creationTimestamp"]), now).into()
}

/// Time since an RFC 3339 stamp; `<unknown>` without one.
pub fn since(stamp: &str, now: time::OffsetDateTime) -> String {
    match schema::parse_time(stamp) {
        Some(then) => human_duration((now - then).whole_seconds()),
        None => "<unknown>".to_owned(),
    }
}

/// Upstream's `HumanDuration`: two units where the second still matters.
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |big: i64, big_name: &str, small: i64, small_name: &str| {
        let (whole, rest) = (seconds / big, seconds % big / small);
        if rest == 0 { format!("{whole}{big_name}") } else { format!("{whole}{big_name}{rest}{small_name}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(MINUTE, "m", 1, "s"),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(HOUR, "h", MINUTE, "m"),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(DAY, "d", HOUR, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(YEAR, "y", DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_like_upstreams() {
        let cases = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_071_999, "729d"),
            (63_072_000, "2y"),
            (70_000_000, "2y80d"),
            (400_000_000, "12y"),
        ];
        for (seconds, expect) in cases {
            assert_eq!(human_duration(seconds), expect, "{seconds}");
        }
    }
}
