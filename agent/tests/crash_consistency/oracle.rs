//! What a node may say at each moment of its life, and what of that a power cut must leave.
//!
//! A life is a row of pictures: what `/status` and the Node object say, one after the other. Each step of the life adds the
//! pictures it leads to *before* it begins, with the position of the log at that time; each picture that somebody saw is
//! acknowledged with the position *after* it was seen. So a cut between two positions may leave every picture from the last
//! one acknowledged to the last one begun, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

/// One content of a ConfigMap: its UID and resourceVersion.
pub(crate) type Config = (String, String);

/// What a node says about its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
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

impl Picture {
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

impl fmt::Display for Picture {
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

/// A picture of the row.
struct Moment {
    said: Picture,
    /// What a start at this point says where that is something else.
    restarted: Option<Picture>,
    step: usize,
}

impl Moment {
    fn after_a_start(&self) -> &Picture {
        self.restarted.as_ref().unwrap_or(&self.said)
    }
}

struct Step {
    name: &'static str,
    begins: u64,
    /// The pictures up to here may be seen from then on.
    pictures: usize,
}

/// Somebody saw a picture.
struct Acknowledged {
    at: u64,
    picture: usize,
    /// Counted startups of what ran.
    startups: u64,
}

/// Who says it: each says things in their order, one later than the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Witness {
    /// `/status` on the node.
    Status,
    /// The Node object at the API server.
    Api,
}

/// A node's life as it should be, and what was seen of it.
#[derive(Default)]
pub(crate) struct History {
    moments: Vec<Moment>,
    steps: Vec<Step>,
    acknowledged: Vec<Acknowledged>,
    seen: [usize; 2],
    /// Things said that belong to no step begun by then.
    pub(crate) surprises: Vec<String>,
    /// Payloads by UID and resourceVersion.
    pub(crate) payloads: BTreeMap<Config, String>,
}

impl History {
    /// A step that leads over these pictures begins now.
    pub(crate) fn begin(
        &mut self,
        name: &'static str,
        at: u64,
        pictures: impl IntoIterator<Item = (Picture, Option<Picture>)>,
    ) {
        let step = self.steps.len();
        let moments = pictures.into_iter().map(|(said, restarted)| Moment { said, restarted, step });
        self.moments.extend(moments);
        self.steps.push(Step { name, begins: at, pictures: self.moments.len() });
    }

    /// This was said by now.
    pub(crate) fn said(&mut self, witness: Witness, at: u64, picture: &Picture, startups: u64) {
        let seen = self.seen[witness as usize];
        let same = |moment: &Moment| match witness {
            Witness::Status => moment.said == *picture,
            Witness::Api => moment.said.says_the_same(picture),
        };
        let Some(later) = self.moments[seen..].iter().position(same) else {
            // the API server may show for a moment longer what was said before the last start
            if witness == Witness::Api && self.moments[..seen].iter().any(same) {
                return;
            }
            let step = self.steps.last().map_or("nothing", |step| step.name);
            let surprise = format!("during \"{step}\", {witness:?}: {picture}");
            if self.surprises.last() != Some(&surprise) {
                self.surprises.push(surprise);
            }
            return;
        };
        let picture_number = seen + later;
        self.seen[witness as usize] = picture_number;
        let known = self
            .acknowledged
            .iter()
            .any(|known| known.picture == picture_number && known.startups >= startups);
        if !known {
            self.acknowledged.push(Acknowledged { at, picture: picture_number, startups });
        }
    }

    /// The last picture is reached, as is known otherwise: it looks like an earlier one.
    pub(crate) fn went_on(&mut self) {
        self.seen = [self.moments.len() - 1; 2];
    }

    /// Whether both witnesses have said the last picture.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.seen.iter().all(|seen| seen + 1 == self.moments.len())
    }

    /// What a cut at this position may leave: the numbers of the first and the last picture.
    fn bounds(&self, at: u64) -> (usize, usize) {
        let acknowledged = self.acknowledged.iter().filter(|seen| seen.at <= at).map(|seen| seen.picture);
        let begun = self.steps.iter().filter(|step| step.begins <= at).map(|step| step.pictures);
        (acknowledged.max().unwrap_or(0), begun.max().unwrap_or(1).max(1) - 1)
    }

    /// Judges what an agent says after a cut at this position. The error says what is wrong.
    pub(crate) fn judge(&self, at: u64, found: &Picture, startups: u64) -> Result<(), String> {
        let (first, last) = self.bounds(at);
        let allowed = &self.moments[first..=last.max(first)];
        let Some(number) = allowed.iter().position(|moment| moment.after_a_start() == found) else {
            let allowed: Vec<String> = allowed
                .iter()
                .map(|moment| format!("  [{}] {}", self.steps[moment.step].name, moment.after_a_start()))
                .collect();
            return Err(format!("it says\n  {found}\nand may say\n{}", allowed.join("\n")));
        };
        let number = first + number;
        let counted = self.acknowledged.iter().filter(|seen| seen.at <= at && seen.picture == number);
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

    /// Until the first step nothing of ours is on the disk: its making and mounting are the file system's affair.
    fn step_at(&self, at: u64) -> Option<&'static str> {
        self.steps.iter().rev().find(|step| step.begins <= at).map(|step| step.name)
    }
}
