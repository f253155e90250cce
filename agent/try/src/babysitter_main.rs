//! The babysitter.
fn main() {}
