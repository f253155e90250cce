//! What changes the life of a pod: one file for each thing that is seen to.
//!
//! Always holds: a step takes the life and its surroundings (`Context`), and appends complete actions. Leaves to others: what a life
//! consists of (`life` and the parts that it holds), which pods there are (`Pods`).

mod ahead;
mod ending;
mod failing;
mod hooks;
mod image_volumes;
mod probes;
pub(crate) mod reporting;
mod starting;
mod tokens;
mod updating;
