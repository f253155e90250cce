//! Work that blocks, beside the main thread: each piece on a thread of its own, and a task of the runtime
//! waits for it.
//!
//! Always holds: a machine that has no thread to give is an error to the task that asked for one. The
//! runtime's own pool would panic then, so that one probe too many would end the agent, and count against its
//! configuration.

use std::io;
use std::thread::Builder;
use tokio::sync::oneshot;

/// The work waits for a program, or looks a name up: glibc loads its name service modules on this stack.
const STACK_BYTES: usize = 256 * 1024;

/// Starts the work at once; the returned future waits for its result. The work continues if nobody awaits the
/// future any longer.
///
/// # Errors
/// The system gave no thread for it, or it panicked.
pub(crate) fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = io::Result<T>> + Send + 'static {
    beside_with(STACK_BYTES, work)
}

fn beside_with<T: Send + 'static>(
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = io::Result<T>> + Send + 'static {
    let (done, awaited) = oneshot::channel();
    let thread = Builder::new().name("beside".into()).stack_size(stack_bytes);
    let begun = thread.spawn(move || drop(done.send(work()))).map(drop);
    async move {
        begun.map_err(|error| io::Error::new(error.kind(), format!("cannot start a thread: {error}")))?;
        awaited.await.map_err(|_| io::Error::other("its thread ended without an answer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No machine has room for a stack this large.
    const TOO_MUCH: usize = usize::MAX >> 8;

    #[tokio::test]
    async fn thread_that_cannot_be_had_is_an_error() {
        assert_eq!(beside(|| 42).await.unwrap(), 42);
        let error = beside_with(TOO_MUCH, || 42).await.unwrap_err().to_string();
        assert!(error.starts_with("cannot start a thread: "), "{error}");
    }
}
