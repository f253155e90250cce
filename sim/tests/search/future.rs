//! The future of a state without further faults: the single path from it, and the cycle that ends the path.
//!
//! Always holds: every path ends in a cycle, because there are finitely many keys of states; the future of
//! each state is computed once. Liveness is judged by it.

use crate::acts::{Done, Kind, Stage};
use crate::cast::Config;
use crate::state::State;
use std::collections::HashMap;
use std::rc::Rc;

/// Steps after which a path without a cycle counts as a defect.
const LONGEST: usize = 5000;
/// The largest count of starts and ticks.
const MANY: u16 = 999;

/// A link that is up all the time.
pub(crate) const UP: &[bool] = &[true];
/// A link that is up one tick in five.
pub(crate) const RARELY_UP: &[bool] = &[true, false, false, false, false];

#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) config: Option<Config>,
    pub(crate) heard: bool,
}

impl From<&Done> for Step {
    fn from(done: &Done) -> Self {
        Self { kind: done.kind, config: done.config, heard: done.heard }
    }
}

/// The cycle in which a path ends.
pub(crate) struct Cycle {
    pub(crate) steps: Vec<Step>,
    /// One of its states.
    pub(crate) state: State,
}

impl Cycle {
    /// The configs that its starts run.
    pub(crate) fn runs(&self) -> Vec<Config> {
        let starts = self.steps.iter().filter(|step| step.kind == Kind::Start);
        starts.map(|step| step.config.unwrap_or('?')).collect()
    }

    pub(crate) fn ticks(&self) -> usize {
        self.steps.iter().filter(|step| step.kind == Kind::Tick).count()
    }
}

#[derive(Clone)]
pub(crate) struct Future {
    /// Starts until the next renewal.
    starts: u16,
    ticks: u16,
    /// The largest of these counts from here on.
    pub(crate) most_starts: u16,
    pub(crate) most_ticks: u16,
    pub(crate) cycle: Rc<Cycle>,
}

impl Future {
    /// The future of the state before this step.
    fn before(&self, step: &Step) -> Self {
        let add =
            |count: u16, is_one: bool| if step.heard { 0 } else { (count + u16::from(is_one)).min(MANY) };
        let starts = add(self.starts, step.kind == Kind::Start);
        let ticks = add(self.ticks, step.kind == Kind::Tick);
        Self {
            starts,
            ticks,
            most_starts: self.most_starts.max(starts),
            most_ticks: self.most_ticks.max(ticks),
            cycle: self.cycle.clone(),
        }
    }
}

/// The futures found so far.
#[derive(Default)]
pub(crate) struct Futures(HashMap<(u64, usize, usize), Future>);

impl Futures {
    /// The future of a state over a link with this pattern.
    pub(crate) fn of(&mut self, stage: &Stage, state: &State, link: &[bool]) -> Result<Future, String> {
        let mut now = state.fork_in_peace();
        let mut path: Vec<((u64, usize, usize), Step)> = Vec::new();
        let mut places = HashMap::new();
        let mut ticks = 0;
        let mut future = loop {
            let key = (now.key(), ticks, link.len());
            if let Some(known) = self.0.get(&key) {
                break known.clone();
            }
            if let Some(place) = places.get(&key) {
                let steps = path[*place..].iter().map(|(_, step)| *step).collect();
                break self.close(now, steps, &mut path, *place);
            }
            if path.len() > LONGEST {
                return Err(format!("no end after {LONGEST} steps"));
            }
            places.insert(key, path.len());
            let done = stage.step(&mut now, link[ticks]);
            if done.kind == Kind::Tick {
                ticks = (ticks + 1) % link.len();
            }
            path.push((key, Step::from(&done)));
        };
        for (key, step) in path.into_iter().rev() {
            future = future.before(&step);
            self.0.insert(key, future.clone());
        }
        Ok(future)
    }

    /// The future of the first state of a cycle, measured by passing through it twice more.
    fn close(
        &mut self,
        state: State,
        steps: Vec<Step>,
        path: &mut Vec<((u64, usize, usize), Step)>,
        place: usize,
    ) -> Future {
        let cycle = Rc::new(Cycle { steps, state });
        let mut future = Future { starts: 0, ticks: 0, most_starts: 0, most_ticks: 0, cycle: cycle.clone() };
        for step in cycle.steps.iter().rev().chain(cycle.steps.iter().rev()) {
            future = future.before(step);
        }
        for (key, step) in path.drain(place..).rev() {
            future = future.before(&step);
            self.0.insert(key, future.clone());
        }
        future
    }
}
