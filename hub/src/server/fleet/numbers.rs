//! The fleet's numbers as metrics, and the rollouts that pages and metrics show.
//!
//! Always holds: the numbers are those of the page `/fleet`; texts of nodes make no more than a few series of
//! a metric. Left to others: counting (`kedge_hub_core::state::fleet`).

use std::fmt::Write;

use kedge_hub_core::kinds::{self, DAEMON_SET, Kind};
use kedge_hub_core::object::Object;
use kedge_hub_core::page::{Rollout, Sees};
use kedge_hub_core::plain::ascii;
use kedge_hub_core::state::fleet::{By, CERTIFICATE_DAYS, Groups, MOST_CHARS, STATES, TROUBLES};
use serde_json::Value;

use crate::Hub;

/// Rollouts of each kind that a page or `/metrics` looks at.
const MOST_ROLLOUTS: usize = 200;

/// The kind of rollouts of configurations, if this hub serves it.
pub(super) fn config_rollouts_kind() -> Option<&'static Kind> {
    kinds::by_resource("configrollouts.fleet.kedge.dev").filter(|kind| kind.served)
}

/// Values of one label at most: reasons and versions are texts of nodes. The others are counted together.
const MOST_VALUES: usize = 32;

/// The numbers of the page `/fleet`.
pub(crate) fn metrics(hub: &Hub, text: &mut String) {
    let now = time::OffsetDateTime::now_utc().unix_timestamp();
    let mut family = |name: &str, of: &str, help: &str, samples: &[String]| {
        // writing to a string cannot fail
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {of}");
        for sample in samples {
            let _ = writeln!(text, "{name}{sample}");
        }
    };
    let read = |by| hub.memory().with_fleet(|fleet, _| fleet.groups(by, MOST_VALUES));
    let states = hub.memory().with_fleet(|fleet, _| {
        STATES.map(|state| format!("{{state=\"{state}\"}} {}", fleet.count_of(By::State, state)))
    });
    family("kedge_fleet_nodes", "gauge", "Nodes by the state of their contact.", &states);
    let conditions = [
        ("kedge_fleet_config", By::Config, "Nodes by status and reason of ConfigOK."),
        ("kedge_fleet_system_ok", By::System, "Nodes by status and reason of SystemOK."),
        ("kedge_fleet_image", By::Image, "Nodes by status and reason of ImageOK."),
    ];
    for (name, by, help) in conditions {
        let sample = |value: &str, count: usize| {
            let (status, reason) = value.split_once(": ").unwrap_or((value, ""));
            format!("{{status=\"{}\",reason=\"{}\"}} {count}", escaped(status), escaped(reason))
        };
        family(name, "gauge", help, &samples(&read(by), "other: other", sample));
    }
    let versions = [
        ("kedge_fleet_system", By::Os, "version", "Nodes by their operating system."),
        ("kedge_fleet_agent", By::Agent, "version", "Nodes by the version of their agent."),
        ("kedge_fleet_watchdog", By::Watchdog, "watchdog", "Disk images by their hardware watchdog."),
    ];
    for (name, by, label, help) in versions {
        let sample = |value: &str, count: usize| format!("{{{label}=\"{}\"}} {count}", escaped(value));
        family(name, "gauge", help, &samples(&read(by), "other", sample));
    }
    let troubles = hub.memory().with_fleet(|fleet, _| {
        TROUBLES.map(|sort| format!("{{condition=\"{sort}\"}} {}", fleet.count_of(By::Trouble, sort)))
    });
    family("kedge_fleet_trouble", "gauge", "Nodes by a condition that is bad news.", &troubles);
    let waiting = hub.memory().with_fleet(|fleet, _| fleet.waiting(MOST_VALUES));
    let sample = |reason: &str, count: usize| format!("{{reason=\"{}\"}} {count}", escaped(reason));
    let help = "Nodes with pods whose containers wait, by the reason.";
    family("kedge_fleet_waiting", "gauge", help, &samples(&waiting, "other", sample));
    let (buckets, sum) = hub.memory().with_fleet(|fleet, _| fleet.certificates(now));
    let bounds = CERTIFICATE_DAYS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
    let mut days: Vec<String> =
        bounds.zip(buckets).map(|(bound, count)| format!("_bucket{{le=\"{bound}\"}} {count}")).collect();
    days.push(format!("_sum {sum}"));
    days.push(format!("_count {}", buckets[CERTIFICATE_DAYS.len()]));
    let help = "Days until the nodes' certificates end; not positive after that.";
    family("kedge_fleet_certificate_days", "histogram", help, &days);
    let all = rollouts(hub, Sees::ALL, Object::value);
    let rollouts: Vec<String> = all
        .iter()
        .map(|rollout| {
            let name = match rollout.namespace.as_str() {
                "" => rollout.name.clone(),
                namespace => format!("{namespace}/{}", rollout.name),
            };
            format!("{{name=\"{}\",phase=\"{}\"}} 1", escaped(&name), escaped(&rollout.phase))
        })
        .collect();
    family("kedge_fleet_rollout", "gauge", "1 for the present phase of each rollout.", &rollouts);
}

fn samples(groups: &Groups, other: &str, sample: impl Fn(&str, usize) -> String) -> Vec<String> {
    let mut all: Vec<String> = groups.rows.iter().map(|(value, count)| sample(value, *count)).collect();
    if groups.more > 0 {
        all.push(sample(other, groups.of_more));
    }
    all
}

/// The value of a label.
fn escaped(text: &str) -> String {
    ascii(text, 2 * MOST_CHARS).replace('\\', r"\\").replace('"', "\\\"")
}

/// The rollouts that the reader may see. `read` parses an object.
pub(crate) fn rollouts(hub: &Hub, sees: Sees, read: impl Fn(&Object) -> Value) -> Vec<Rollout> {
    let mut all = Vec::new();
    if sees.daemon_sets {
        let sets = hub.list(&DAEMON_SET, "");
        all.extend(sets.iter().take(MOST_ROLLOUTS).map(|set| Rollout::of_daemon_set(&read(set))));
    }
    if let Some(kind) = config_rollouts_kind().filter(|_| sees.config_rollouts) {
        let found = hub.list(kind, "");
        all.extend(found.iter().take(MOST_ROLLOUTS).map(|one| Rollout::of_config_rollout(&read(one))));
    }
    all
}
