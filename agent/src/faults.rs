//! Faults that a pushed configuration can request, in builds with the feature `fault-injection` only: a
//! crash, a hanging loop, a shifted clock; and gates, at which a test stops the process by a file in the run
//! directory. Without the feature every call here is empty and nothing of it is in the binary.

#[cfg(not(feature = "fault-injection"))]
mod none {
    #[derive(Clone)]
    pub(crate) struct Faults;

    impl Faults {
        pub(crate) fn new(_: &std::path::Path) -> Self {
            Self
        }

        /// A place where a test may make the process wait.
        #[inline(always)]
        pub(crate) fn gate(&self, _: &str) {}

        /// A limit that a test may shorten.
        #[inline(always)]
        pub(crate) fn limit(&self, _: &str, limit: std::time::Duration) -> std::time::Duration {
            limit
        }

        /// A place where a fault may make a loop hang.
        #[inline(always)]
        pub(crate) fn point(&self, _: &str) {}

        /// Milliseconds to add to the wall clock.
        #[inline(always)]
        pub(crate) fn clock_offset_ms(&self) -> i64 {
            0
        }

        /// Takes the faults of the configuration in use.
        #[inline(always)]
        pub(crate) fn arm(&self, _: &kedge_core::kubelet::Config) {}
    }
}

#[cfg(feature = "fault-injection")]
mod some {
    use kedge_core::kubelet::Config;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// How often a closed gate is polled.
    const GATE_POLL: Duration = Duration::from_millis(5);

    /// Like a crash, but only after the announcement is written.
    fn abort() -> ! {
        crate::logging::flush();
        std::process::abort()
    }

    #[derive(Default)]
    struct State {
        run_dir: PathBuf,
        hang: Mutex<Option<String>>,
        hanging: AtomicBool,
        offset_ms: AtomicI64,
    }

    /// The requested faults.
    #[derive(Clone, Default)]
    pub(crate) struct Faults(Arc<State>);

    impl Faults {
        pub(crate) fn new(run_dir: &Path) -> Self {
            Self(Arc::new(State { run_dir: run_dir.to_owned(), ..State::default() }))
        }

        /// Waits while the run directory has a file `gate-NAME`, and leaves a file `at-NAME` there meanwhile.
        pub(crate) fn gate(&self, name: &str) {
            let closed = self.0.run_dir.join(format!("gate-{name}"));
            if !closed.exists() {
                return;
            }
            // a file and no log line: the first gate comes before the log
            let arrived = self.0.run_dir.join(format!("at-{name}"));
            let _ = std::fs::write(&arrived, "");
            while closed.exists() {
                std::thread::sleep(GATE_POLL);
            }
            let _ = std::fs::remove_file(&arrived);
        }

        /// The limit that the run directory's file `limit-NAME` gives in milliseconds, if there is one.
        pub(crate) fn limit(&self, name: &str, limit: Duration) -> Duration {
            let text = std::fs::read_to_string(self.0.run_dir.join(format!("limit-{name}")));
            text.ok().and_then(|text| text.trim().parse().ok()).map_or(limit, Duration::from_millis)
        }

        pub(crate) fn point(&self, name: &str) {
            if !self.0.hanging.load(Ordering::Relaxed) {
                return;
            }
            let hang = self.0.hang.lock().map(|hang| hang.clone()).unwrap_or_default();
            if hang.as_deref() == Some(name) {
                log::warn!("fault injection: loop {name} stops here");
                loop {
                    std::thread::park();
                }
            }
        }

        pub(crate) fn clock_offset_ms(&self) -> i64 {
            self.0.offset_ms.load(Ordering::Relaxed)
        }

        pub(crate) fn arm(&self, config: &Config) {
            let asked = config.fault_injection.clone();
            self.0.offset_ms.store(asked.clock_offset_ms, Ordering::Relaxed);
            if let Some(after) = asked.crash_after {
                log::warn!("fault injection: crashing in {after:?}");
                if after.is_zero() {
                    abort();
                }
                std::thread::spawn(move || {
                    std::thread::sleep(after);
                    log::warn!("fault injection: crashing now");
                    abort();
                });
            }
            if let Some(name) = asked.hang_loop {
                let state = self.0.clone();
                let hang = move || {
                    if let Ok(mut hang) = state.hang.lock() {
                        *hang = Some(name);
                    }
                    state.hanging.store(true, Ordering::Relaxed);
                };
                if asked.hang_after.is_zero() {
                    // here and now, so that "start" hangs before the agent is ready
                    return hang();
                }
                std::thread::spawn(move || {
                    std::thread::sleep(asked.hang_after);
                    hang();
                });
            }
        }
    }
}

#[cfg(not(feature = "fault-injection"))]
pub(crate) use none::Faults;
#[cfg(feature = "fault-injection")]
pub(crate) use some::Faults;
