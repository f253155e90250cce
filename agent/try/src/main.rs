//! The try-out.
fn main() {}
