//! The agent. Under construction.
fn main() {}
