//! Does a panic unwind in a static program? The hub counts on it: a panic ends one request, not the process.
//! The unwinder is libgcc's and libc is musl, which do not know each other; see panic-unwind.c.
//!
//! Exits with 0 if a panic was caught in the main thread and in another, and every value on the way was
//! dropped.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

const DEPTH: u32 = 3;
static DROPPED: AtomicU32 = AtomicU32::new(0);

struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
fn descend(left: u32) -> u32 {
    let _counted = Counted;
    assert!(left > 1, "the panic this is about");
    descend(left - 1) + 1
}

fn main() -> ExitCode {
    let caught = catch_unwind(|| descend(DEPTH)).is_err();
    let thread_caught = thread::spawn(|| descend(DEPTH)).join().is_err();
    let dropped = DROPPED.load(Ordering::Relaxed);
    if caught && thread_caught && dropped == 2 * DEPTH {
        return ExitCode::SUCCESS;
    }
    eprintln!("unwinding: caught {caught}, in a thread {thread_caught}, dropped {dropped} of {}", 2 * DEPTH);
    ExitCode::FAILURE
}
