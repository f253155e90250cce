//! Programs of the agent that a configuration asks for: which one starts.
//!
//! `starter` is the first act of a packaged program. Leaves to others: all decisions
//! (`kedge_core::system`).

pub mod starter;
