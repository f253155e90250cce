//! Systems and programs that the configuration asks for: getting them here, and starting them.
//!
//! `fetch` brings the bytes, and `starter` is the first act of a packaged program. Leaves to others: all
//! decisions (`kedge_core::system`).

pub(crate) mod fetch;
pub mod starter;
