//! Systems and programs that the configuration asks for: getting them here, putting them in their place, and
//! starting them.
//!
//! `performer` takes the orders; `fetch` brings the bytes, `install` keeps programs beside the packaged one,
//! and `starter` is the first act of that one. Leaves to others: all decisions (`kedge_core::system`), the
//! writing of slots (`slot::steps`).

pub(crate) mod fetch;
pub(crate) mod install;
pub(crate) mod performer;
pub mod starter;
