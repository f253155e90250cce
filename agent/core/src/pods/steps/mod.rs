//! The steps that change the life of a pod, one file for each sort.
//!
//! Always holds: a step takes the life and its surroundings (`Context`), and appends complete actions. Leaves
//! to others: the content of a life (`life` and its parts), the set of pods (`Pods`).

mod ahead;
mod arriving;
mod ending;
mod failing;
mod hooks;
mod image_volumes;
mod probes;
pub(crate) mod reporting;
mod starting;
mod tokens;
mod updating;
