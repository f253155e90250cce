//! The facts of one Node that the fleet's counts need.
//!
//! Always holds: it depends on the Node alone, and its texts, which a node writes itself, are short ASCII:
//! they become labels of metrics and parts of links. Left to others: the counts (the module above).

use kedge_api::{
    CONFIG_OK, DISK_STALLED, DUPLICATE_IDENTITY, IMAGE_OK, PODS_HELD, WATCHDOG_LABEL, WATCHDOG_MISSING,
};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::day::{Level, Levels};
use crate::plain::ascii;
use crate::value::{at, text};

/// Longest counted text.
pub const MOST_CHARS: usize = 64;

/// Condition of a node whose system is updated by its configuration.
const SYSTEM_OK: &str = "SystemOK";

/// Conditions that are bad news when they are `True`.
pub const TROUBLES: [&str; 10] = [
    DUPLICATE_IDENTITY,
    DISK_STALLED,
    "DiskPressure",
    "MemoryPressure",
    "PIDPressure",
    PODS_HELD,
    WATCHDOG_MISSING,
    kedge_api::LIMITS_NOT_KEPT,
    "NetworkUnavailable",
    "AssignmentConflict",
];
/// Those of [`TROUBLES`] that a picture shows as pressure.
const PRESSURES: [&str; 4] = [DISK_STALLED, "DiskPressure", "MemoryPressure", "PIDPressure"];

/// By which property nodes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// `ready`, `not-ready`, `silent`, `never-heard`.
    State,
    /// Status and reason of `ConfigOK`.
    Config,
    /// The first wrong field of the assigned configuration.
    Field,
    /// Status and reason of `SystemOK`.
    System,
    /// Status and reason of `ImageOK`.
    Image,
    /// The version of the agent.
    Agent,
    /// The name of the operating system, with its version.
    Os,
    /// The hardware watchdog of a disk image.
    Watchdog,
    /// A condition of [`TROUBLES`].
    Trouble,
}

impl By {
    pub const ALL: [By; 9] = [
        By::State,
        By::Config,
        By::Field,
        By::System,
        By::Image,
        By::Agent,
        By::Os,
        By::Watchdog,
        By::Trouble,
    ];

    /// The parameter of a link.
    pub fn name(self) -> &'static str {
        match self {
            By::State => "state",
            By::Config => "config",
            By::Field => "field",
            By::System => "system",
            By::Image => "image",
            By::Agent => "agent",
            By::Os => "os",
            By::Watchdog => "watchdog",
            By::Trouble => "trouble",
        }
    }
}

/// The state of a node, by its condition Ready.
pub const STATES: [&str; 4] = ["ready", "not-ready", "silent", "never-heard"];

/// The counted values of one Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// Each property once, but for troubles; in order.
    pub facts: Vec<(By, String)>,
    /// Since when it is silent, by the hub's clock (Unix time).
    pub silent_since: Option<i64>,
    pub levels: Levels,
}

impl Sight {
    pub fn read(node: &Value) -> Sight {
        let all =
            at(node, &["status", "conditions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let find = |sort: &str| all.iter().find(|condition| condition["type"] == sort);
        let status = |sort: &str| find(sort).map(|condition| text(condition, &["status"]));
        let ready = find("Ready");
        let state = match ready.map(|ready| (text(ready, &["status"]), text(ready, &["reason"]))) {
            None | Some(("Unknown", "NodeStatusNeverUpdated")) => STATES[3],
            Some(("True", _)) => STATES[0],
            Some(("False", _)) => STATES[1],
            Some(_) => STATES[2],
        };
        let silent_since = ready.filter(|_| state == STATES[2]).and_then(|ready| {
            let since = OffsetDateTime::parse(text(ready, &["lastTransitionTime"]), &Rfc3339).ok()?;
            Some(since.unix_timestamp())
        });
        let mut facts = vec![(By::State, state.to_owned())];
        for (by, sort) in [(By::Config, CONFIG_OK), (By::System, SYSTEM_OK), (By::Image, IMAGE_OK)] {
            facts.extend(find(sort).map(|condition| (by, reason(condition))));
        }
        facts.extend(wrong_field(node).map(|field| (By::Field, ascii(field, MOST_CHARS))));
        for (by, field) in [(By::Agent, "kubeletVersion"), (By::Os, "osImage")] {
            let version = text(node, &["status", "nodeInfo", field]);
            facts.extend((!version.is_empty()).then(|| (by, ascii(version, MOST_CHARS))));
        }
        let watchdog = at(node, &["metadata", "labels", WATCHDOG_LABEL]).and_then(Value::as_str);
        facts.extend(watchdog.map(|sort| (By::Watchdog, ascii(sort, MOST_CHARS))));
        let troubles = TROUBLES.iter().filter(|sort| status(sort) == Some("True"));
        facts.extend(troubles.map(|sort| (By::Trouble, (*sort).to_owned())));
        facts.sort();
        facts.dedup();
        Sight { facts, silent_since, levels: levels(state, status) }
    }

    /// The first value of a property.
    pub fn fact(&self, by: By) -> Option<&str> {
        self.facts.iter().find(|fact| fact.0 == by).map(|(_, value)| value.as_str())
    }
}

/// The state that a picture shows. A silent node's last report is not its state.
fn levels<'a>(state: &str, status: impl Fn(&str) -> Option<&'a str>) -> Levels {
    let of = |status: Option<&str>| match status {
        None => Level::Unknown,
        Some("True") => Level::Good,
        Some("False") => Level::Bad,
        Some(_) => Level::Unsure,
    };
    match state {
        "never-heard" => [Level::Unknown; 4],
        "silent" => [Level::Bad, Level::Unknown, Level::Unknown, Level::Unknown],
        _ => {
            let pressures = PRESSURES.map(&status);
            let pressure = match () {
                () if pressures.contains(&Some("True")) => Level::Bad,
                () if pressures.contains(&Some("False")) => Level::Good,
                () => Level::Unknown,
            };
            let system = of(status(SYSTEM_OK)).max(of(status(IMAGE_OK)));
            [Level::Good, of(status(CONFIG_OK)), system, pressure]
        }
    }
}

/// Status and reason of a condition, without the identifiers in it that differ from node to node.
fn reason(condition: &Value) -> String {
    let whole = text(condition, &["reason"]);
    let reason = match whole.split_once(" (UID: ") {
        Some((before, after)) => {
            let rest = after.split_once(')').map_or("", |(_, rest)| rest);
            format!("{before}{rest}")
        }
        None => whole.to_owned(),
    };
    // at most six characters of a status
    format!("{}: {}", ascii(text(condition, &["status"]), 7), ascii(&reason, MOST_CHARS))
}

/// The field that a node names in the error of its configuration: `REASON: FIELD is ..., expected ...`.
fn wrong_field(node: &Value) -> Option<&str> {
    let error = text(node, &["status", "config", "error"]);
    let (_, detail) = error.rsplit_once("): ")?;
    let field = detail.split([' ', ':', ',']).next()?;
    let is_path = |field: &&str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-[]/\"".contains(&byte);
        !field.is_empty()
            && field.starts_with(|first: char| first.is_ascii_lowercase())
            && field.bytes().all(known)
    };
    Some(field).filter(is_path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(conditions: &Value) -> Value {
        json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}})
    }

    fn facts(node: &Value) -> Vec<String> {
        Sight::read(node).facts.iter().map(|(by, value)| format!("{}={value}", by.name())).collect()
    }

    #[test]
    fn state_follows_the_condition_ready() {
        let check = |status: &str, reason: &str, expect: &str| {
            let node = node(&json!([{"type": "Ready", "status": status, "reason": reason}]));
            assert_eq!(facts(&node), [format!("state={expect}")]);
        };
        check("True", "KubeletReady", "ready");
        check("False", "KubeletNotReady", "not-ready");
        check("Unknown", "NodeStatusUnknown", "silent");
        check("Unknown", "NodeStatusNeverUpdated", "never-heard");
        check("odd", "", "silent");
        assert_eq!(facts(&json!({})), ["state=never-heard"]);
        assert_eq!(facts(&json!({"status": {"conditions": "x"}})), ["state=never-heard"]);
    }

    #[test]
    fn node_counts_by_what_it_reports() {
        let mut node = node(&json!([
            {"type": "Ready", "status": "True"},
            {"type": "ConfigOK", "status": "False", "reason": "failed to parse current (UID: 12-ab); and more"},
            {"type": "ImageOK", "status": "True", "reason": "SlotGood"},
            {"type": "DiskPressure", "status": "True"},
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Odd", "status": "True"},
        ]));
        node["status"]["nodeInfo"] = json!({"kubeletVersion": "v1", "osImage": "Kedge <b>\u{202e}"});
        node["status"]["config"] = json!({"error": "failed to validate current (UID: 12-ab): logging.verbosity is \"loud\", expected 0 to 10"});
        node["metadata"]["labels"] = json!({WATCHDOG_LABEL: "none"});
        assert_eq!(
            facts(&node),
            [
                "state=ready",
                "config=False: failed to parse current; and more",
                "field=logging.verbosity",
                "image=True: SlotGood",
                "agent=v1",
                "os=Kedge <b>?",
                "watchdog=none",
                "trouble=DiskPressure",
            ]
        );
        let levels = Sight::read(&node).levels;
        assert_eq!(levels, [Level::Good, Level::Bad, Level::Good, Level::Bad]);
    }

    #[test]
    fn texts_of_nodes_are_cut() {
        let long = "x".repeat(1 << 18);
        let mut node = node(&json!([{"type": "ConfigOK", "status": long, "reason": long}]));
        node["status"]["nodeInfo"] = json!({"kubeletVersion": long, "osImage": long});
        node["status"]["config"] = json!({"error": format!("(UID: 1): a.{long}")});
        for (_, value) in Sight::read(&node).facts {
            assert!(value.len() <= MOST_CHARS + 9, "{}", value.len());
        }
    }
}
