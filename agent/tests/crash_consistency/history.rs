//! The reports that a node may make at each step of a run, and those that a power cut must leave.
//!
//! A run is a sequence of reports, as `/status` and the Node object show them. Each step of the run adds the
//! reports it leads to *before* it begins, with the position of the log at that time; each report that was
//! seen is acknowledged with the position *after* it was seen. So a cut between two positions may leave every
//! report from the last one acknowledged to the last one begun, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

/// One content of a ConfigMap: its UID and resourceVersion.
pub(crate) type Config = (String, String);

/// A node's report about its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeReport {
    pub(crate) assigned: Option<Config>,
    pub(crate) active: Option<Config>,
    pub(crate) last_known_good: Option<Config>,
    /// Status, message and reason of ConfigOK.
    pub(crate) condition: [String; 3],
    /// UIDs with a verdict. The Node object does not say.
    pub(crate) bad: BTreeSet<String>,
}

/// Message and reason when nothing is assigned and there are drop-ins.
const LOCAL: [&str; 3] =
    ["True", "using current (init)", "current is set to the local default, and an init config was provided"];

fn owned(condition: [&str; 3]) -> [String; 3] {
    condition.map(str::to_owned)
}

impl NodeReport {
    /// Nothing is assigned.
    pub(crate) fn local() -> Self {
        Self {
            assigned: None,
            active: None,
            last_known_good: None,
            condition: owned(LOCAL),
            bad: BTreeSet::new(),
        }
    }

    /// The assigned one runs.
    pub(crate) fn runs(config: &Config, last_known_good: Option<&Config>) -> Self {
        let message = format!("using current (UID: {})", config.0);
        Self {
            assigned: Some(config.clone()),
            active: Some(config.clone()),
            last_known_good: last_known_good.cloned(),
            condition: owned(["True", &message, "all checks passed"]),
            bad: BTreeSet::new(),
        }
    }

    /// The assigned one is bad, or unclear, and last-known-good runs.
    pub(crate) fn falls_back(config: &Config, good: &Config, status: &str, reason: &str) -> Self {
        let message = format!("using last known good: (UID: {})", good.0);
        let assigned = Some(config.clone());
        Self { assigned, condition: owned([status, &message, reason]), ..Self::runs(good, Some(good)) }
    }

    /// The same words, with verdicts on these UIDs.
    pub(crate) fn with_bad<'a>(mut self, uids: impl IntoIterator<Item = &'a Config>) -> Self {
        self.bad = uids.into_iter().map(|config| config.0.clone()).collect();
        self
    }

    /// From the answer of `/status`.
    pub(crate) fn of_status(status: &Value) -> Self {
        let config = &status["config"];
        let bad = config["bad"].as_array().into_iter().flatten();
        Self {
            bad: bad.map(|entry| text(&entry["uid"])).collect(),
            ..Self::of(&config["status"], &config["condition"])
        }
    }

    /// From a Node object; `None` before it has the condition.
    pub(crate) fn of_node(node: &Value) -> Option<Self> {
        let conditions = node.pointer("/status/conditions")?.as_array()?;
        let condition = conditions.iter().find(|condition| condition["type"] == "ConfigOK")?;
        Some(Self::of(&node["status"]["config"], condition))
    }

    fn of(status: &Value, condition: &Value) -> Self {
        let config = |role: &str| {
            let source = status.get(role)?.get("configMap")?;
            Some((text(&source["uid"]), text(&source["resourceVersion"])))
        };
        Self {
            assigned: config("assigned"),
            active: config("active"),
            last_known_good: config("lastKnownGood"),
            condition: ["status", "message", "reason"].map(|key| text(&condition[key])),
            bad: BTreeSet::new(),
        }
    }

    fn says_the_same(&self, other: &Self) -> bool {
        self == &Self { bad: self.bad.clone(), ..other.clone() }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl fmt::Display for NodeReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |config: &Option<Config>| match config {
            Some((uid, version)) => format!("{uid}@{version}"),
            None => "local".to_owned(),
        };
        write!(
            out,
            "assigned {}, active {}, last-known-good {}, {:?}, bad {:?}",
            shown(&self.assigned),
            shown(&self.active),
            shown(&self.last_known_good),
            self.condition,
            self.bad
        )
    }
}

/// A report that is expected.
struct Expected {
    said: NodeReport,
    /// The report of a start at this point, if it differs.
    restarted: Option<NodeReport>,
    step: usize,
}

impl Expected {
    fn after_a_start(&self) -> &NodeReport {
        self.restarted.as_ref().unwrap_or(&self.said)
    }
}

struct Step {
    name: &'static str,
    begins: u64,
    /// The reports up to here may be seen from then on.
    reports: usize,
}

/// Somebody saw a report.
struct Acknowledged {
    at: u64,
    report: usize,
    /// Counted startups of what ran.
    startups: u64,
}

/// The readers of reports: each sees them in order, one later than the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observer {
    /// `/status` on the node.
    Status,
    /// The Node object at the API server.
    Api,
}

/// The reports that a run should bring, and those that were seen.
#[derive(Default)]
pub(crate) struct History {
    expected: Vec<Expected>,
    steps: Vec<Step>,
    acknowledged: Vec<Acknowledged>,
    seen: [usize; 2],
    /// Reports that belong to no step begun by then.
    pub(crate) unexpected: Vec<String>,
    /// Payloads by UID and resourceVersion.
    pub(crate) payloads: BTreeMap<Config, String>,
}

impl History {
    /// A step that leads over these reports begins now.
    pub(crate) fn begin(
        &mut self,
        name: &'static str,
        at: u64,
        reports: impl IntoIterator<Item = (NodeReport, Option<NodeReport>)>,
    ) {
        let step = self.steps.len();
        let expected = reports.into_iter().map(|(said, restarted)| Expected { said, restarted, step });
        self.expected.extend(expected);
        self.steps.push(Step { name, begins: at, reports: self.expected.len() });
    }

    /// This was seen by now.
    pub(crate) fn observed(&mut self, observer: Observer, at: u64, report: &NodeReport, startups: u64) {
        let seen = self.seen[observer as usize];
        let same = |expected_report: &Expected| match observer {
            Observer::Status => expected_report.said == *report,
            Observer::Api => expected_report.said.says_the_same(report),
        };
        let Some(later) = self.expected[seen..].iter().position(same) else {
            // the API server may show for a moment longer what was reported before the last start
            if observer == Observer::Api && self.expected[..seen].iter().any(same) {
                return;
            }
            let step = self.steps.last().map_or("no step", |step| step.name);
            let text = format!("during \"{step}\", {observer:?}: {report}");
            if self.unexpected.last() != Some(&text) {
                self.unexpected.push(text);
            }
            return;
        };
        let number = seen + later;
        self.seen[observer as usize] = number;
        let known =
            self.acknowledged.iter().any(|known| known.report == number && known.startups >= startups);
        if !known {
            self.acknowledged.push(Acknowledged { at, report: number, startups });
        }
    }

    /// Marks the last report as reached: the caller knows it from elsewhere, because this report looks like
    /// an earlier one.
    pub(crate) fn skip_to_last(&mut self) {
        self.seen = [self.expected.len() - 1; 2];
    }

    /// Whether both observers have seen the last report.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.seen.iter().all(|seen| seen + 1 == self.expected.len())
    }

    /// The reports that a cut at this position may leave: the numbers of the first and the last.
    fn bounds(&self, at: u64) -> (usize, usize) {
        let acknowledged = self.acknowledged.iter().filter(|seen| seen.at <= at).map(|seen| seen.report);
        let begun = self.steps.iter().filter(|step| step.begins <= at).map(|step| step.reports);
        (acknowledged.max().unwrap_or(0), begun.max().unwrap_or(1).max(1) - 1)
    }

    /// Judges what an agent reports after a cut at this position.
    pub(crate) fn judge(&self, at: u64, found: &NodeReport, startups: u64) -> Result<(), String> {
        let (first, last) = self.bounds(at);
        let allowed = &self.expected[first..=last.max(first)];
        let Some(number) =
            allowed.iter().position(|expected_report| expected_report.after_a_start() == found)
        else {
            let allowed: Vec<String> = allowed
                .iter()
                .map(|expected_report| {
                    format!(
                        "  [{}] {}",
                        self.steps[expected_report.step].name,
                        expected_report.after_a_start()
                    )
                })
                .collect();
            return Err(format!("it reports\n  {found}\nallowed are\n{}", allowed.join("\n")));
        };
        let number = first + number;
        let counted = self.acknowledged.iter().filter(|seen| seen.at <= at && seen.report == number);
        let counted = counted.map(|seen| seen.startups).max().unwrap_or(0);
        if startups < counted {
            return Err(format!("it counts {startups} startups, and {counted} were acknowledged: {found}"));
        }
        Ok(())
    }
}

impl kedge_rig::power_cut::History for History {
    fn acknowledged(&self) -> Vec<u64> {
        self.acknowledged.iter().map(|seen| seen.at).collect()
    }

    /// The step at this position; `None` before the first one: making and mounting the file system are not
    /// the agent's writes.
    fn step_at(&self, at: u64) -> Option<&'static str> {
        self.steps.iter().rev().find(|step| step.begins <= at).map(|step| step.name)
    }
}
