//! The cost oracle: the bytes that a piece of work allocates may only grow in proportion to its input.
//!
//! A reader that copies its earlier results for each further element, or compares all pairs by writing them
//! as text, allocates a multiple that grows with the input; a linear one stays below a line. It counts bytes,
//! not seconds, because machines are shared. Always holds: the count is of the whole process, so it is used
//! only where a single thread works: in the fuzzer and in `tests/cost.rs`, which switch it on.

use std::alloc::System;
use std::sync::atomic::{AtomicBool, Ordering};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

static JUDGED: AtomicBool = AtomicBool::new(false);

/// From now on work is judged: nothing else may run in this process.
pub fn judge_from_now_on() {
    JUDGED.store(true, Ordering::Relaxed);
}

/// Whether work is judged.
#[must_use]
pub fn is_judged() -> bool {
    JUDGED.load(Ordering::Relaxed)
}

/// The result of some work, and the bytes that it allocated, freed or not.
pub fn allocated<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let region = Region::new(ALLOCATOR);
    let result = work();
    (result, region.change().bytes_allocated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted() {
        let (text, bytes) = allocated(|| "x".repeat(1 << 20));
        assert!(bytes >= text.len(), "{bytes}");
    }
}
