//! Threads for large requests: bodies and answers whose handling takes milliseconds to seconds.
//!
//! Always holds: nothing here runs on the threads that answer ordinary requests, so a large body delays no
//! renewal. The hub works on one large body of a caller at a time (`limits`), so callers share the threads in
//! turns.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Bodies above this are large: reading and judging 64 KiB takes about a millisecond on a small board.
pub(super) const LARGE_BYTES: usize = 64 * 1024;
/// Stack of a thread that handles requests. Objects are at most 128 levels deep, each a few frames of a debug
/// build.
pub const STACK_BYTES: usize = 8 * 1024 * 1024;

/// The threads; started by the first large request.
#[derive(Debug)]
pub(super) struct Large {
    threads: usize,
    runtime: OnceLock<Option<Runtime>>,
}

impl Large {
    pub(super) fn new(threads: usize) -> Large {
        Large { threads, runtime: OnceLock::new() }
    }

    /// Runs a task on these threads.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let start = || {
            let runtime = Builder::new_multi_thread()
                .worker_threads(self.threads)
                .thread_name("large")
                .thread_stack_size(STACK_BYTES)
                .enable_time()
                .build();
            runtime.inspect_err(|error| log::error!("cannot start threads for large requests: {error}")).ok()
        };
        match self.runtime.get_or_init(start) {
            Some(runtime) => runtime.spawn(task),
            // slower for others, but answered
            None => Handle::current().spawn(task),
        }
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        // not dropped in place: the last owner may be a task, which must not block
        if let Some(Some(runtime)) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn busy_large_threads_hold_up_no_other_request() {
        let large = Large::new(1);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = large.spawn(async move { wait.recv().is_ok() });
        // this test's own thread is the only one for ordinary requests
        tokio::spawn(async {}).await.unwrap();
        assert!(!busy.is_finished());
        go.send(()).unwrap();
        assert!(busy.await.unwrap());
    }
}
