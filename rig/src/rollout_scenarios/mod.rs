//! Scenarios of ConfigRollouts as text ([`TEXT`]), and their interpreter.
//!
//! Always holds: a scenario says nothing about where it runs; a [`Stage`] is the controller alone, a hub, or
//! another API server with the controller beside it. Each scenario has a stage of its own. Left to others: the
//! stages (`hub/core/src/controllers/tests`, `hub/tests/kubectl`).

use serde_json::Value;

/// All scenarios.
pub const TEXT: &str = include_str!("scenarios.txt");
/// Steps in which a phase must stay.
const STAYS: usize = 20;

/// A place where a scenario runs, with nodes that do what their agents would.
pub trait Stage {
    /// Adds nodes `n0`, `n1`, ...; the first is the canary.
    fn add_nodes(&mut self, count: usize);
    /// Creates the ConfigRollout `shops` with this strategy.
    fn create(&mut self, strategy: Value);
    /// Writes the source.
    fn push(&mut self, text: &str);
    /// Sets an annotation of the rollout.
    fn annotate(&mut self, key: &str, value: &str);
    /// Sets `spec.paused`.
    fn pause(&mut self, is_paused: bool);
    /// Assigns a node a configuration by hand.
    fn assign_by_hand(&mut self, node: &str);
    /// Ends the controller and starts it anew.
    fn restart(&mut self);
    /// Lets time pass, and each node act once.
    fn step(&mut self);
    /// The status of the rollout.
    fn status(&mut self) -> Value;
    /// The text that each node is assigned by the rollout.
    fn texts(&mut self) -> Vec<String>;
    /// Most steps until an awaited phase.
    fn patience(&self) -> usize;
}

/// One scenario.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    name: &'static str,
    lines: &'static str,
}

/// All scenarios, in order.
pub fn all() -> impl Iterator<Item = Scenario> {
    TEXT.split("\nscenario ").skip(1).filter_map(|block| {
        let (name, lines) = block.split_once('\n')?;
        Some(Scenario { name, lines })
    })
}

impl Scenario {
    /// Runs it on an empty stage.
    ///
    /// # Panics
    /// A line is not fulfilled, or is not a line of a scenario.
    pub fn run(&self, stage: &mut impl Stage) {
        let lines = self.lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut before = Value::Null;
        lines.for_each(|line| step(stage, &mut before, &format!("{}: {line}", self.name), line));
    }
}

/// `before`: the revision before the last change of content, which the next awaited phase is not about.
fn step(stage: &mut impl Stage, before: &mut Value, place: &str, line: &str) {
    if matches!(line.split(' ').next(), Some("push" | "undo")) {
        *before = stage.status()["updateRevision"].clone();
    }
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "nodes" => stage.add_nodes(rest.parse().expect(place)),
        "rollout" => stage.create(serde_json::from_str(rest).expect(place)),
        "push" => stage.push(rest),
        "pause" => stage.pause(rest == "true"),
        "undo" => stage.annotate("fleet.kedge.dev/undo-to", "0"),
        "resume" => stage.annotate("fleet.kedge.dev/resume", "1"),
        "hand" => stage.assign_by_hand(rest),
        "restart" => stage.restart(),
        "until" => {
            let mut left = stage.patience();
            loop {
                stage.step();
                let status = stage.status();
                if status["phase"] == *rest && status["updateRevision"] != *before {
                    break;
                }
                assert!(left > 0, "{place}: still {:#}", stage.status());
                left -= 1;
            }
            *before = Value::Null;
        }
        "stays" => {
            for _ in 0..STAYS {
                stage.step();
                assert_eq!(stage.status()["phase"], *rest, "{place}: {:#}", stage.status());
            }
        }
        "expect" => {
            let (text, count) = rest.split_once(" on ").expect(place);
            let texts = stage.texts();
            let found = texts.iter().filter(|found| *found == text).count();
            assert_eq!(found.to_string(), count, "{place}: {texts:?}");
        }
        "message" => {
            let (sort, text) = rest.split_once(' ').expect(place);
            let status = stage.status();
            let conditions = status["conditions"].as_array().into_iter().flatten();
            let shown = conditions.filter(|condition| condition["type"] == *sort);
            let shown: Vec<&str> = shown.filter_map(|condition| condition["message"].as_str()).collect();
            assert!(shown.iter().any(|message| message.contains(text)), "{place}: {shown:?}");
        }
        _ => panic!("{place}: no such line"),
    }
}
