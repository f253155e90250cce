//! A board in memory: behaves like the real one, loses power when told to, and can be told to fail.
//!
//! What always holds: the same calls with the same seeds give the same results; nothing of the real machine is touched.
//!
//! Leaves to others: stories. The tests and the simulator tell them.
