//! The system and the agent that the configuration asks for.
//!
//! `starter` decides which program of the agent runs on a machine without slots.

pub mod starter;
