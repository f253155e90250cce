//! The rest of a node's board: platform's fake clocks, traces of a reset, and records of how runs ended.
//!
//! Always holds: evidence of a run's end takes the agent's real path, through platform's exit record on a
//! disk and its list of consumed evidence; a boot has its own id, and `monotonic` starts again in it. Leaves
//! to others: the disk that holds the configuration (`disk`), and the meaning of evidence (core).

use crate::WALL_MICROS;
use kedge_core::{Exit, PreviousRun};
use kedge_platform::exit::EXIT_RECORD;
use kedge_platform::fake::{self, FakeClocks, FakeDisk, FakeTraces, Loss};
use kedge_platform::{Clocks, ExitRecord, PreviousExit, exit};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub struct Board {
    clocks: FakeClocks,
    traces: FakeTraces,
    /// The data directory's files beside the configuration's. No fault hits it: a test simulates a failed
    /// write of the record by [`Board::forget_exit`].
    data: FakeDisk,
    /// Runs of the agent that began in this boot, as its volatile run directory counts them.
    runs: u64,
}

impl Default for Board {
    fn default() -> Self {
        let clocks = FakeClocks::new(date(WALL_MICROS));
        let traces = FakeTraces::new(clocks.boot_id());
        Self { clocks, traces, data: FakeDisk::new(), runs: 0 }
    }
}

impl Board {
    /// Another board with the same history.
    pub(crate) fn fork(&self) -> Self {
        let (clocks, traces) = (self.clocks.fork(), self.traces.fork());
        Self { clocks, traces, data: self.data.fork(), runs: self.runs }
    }

    pub fn mono(&self) -> Duration {
        self.clocks.monotonic()
    }

    pub fn wall_micros(&self) -> i64 {
        let since = self.clocks.wall().duration_since(UNIX_EPOCH).expect("no test is before 1970");
        i64::try_from(since.as_micros()).expect("tests last less than 292,000 years")
    }

    /// Sets the date, in microseconds since 1970.
    pub fn set_wall(&self, micros: i64) {
        self.clocks.set_wall(date(micros));
    }

    pub fn boot_id(&self) -> &str {
        self.clocks.boot_id()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clocks.advance(by);
    }

    pub(crate) fn begin_run(&mut self) {
        self.runs += 1;
    }

    /// The number of the latest run in this boot.
    pub(crate) fn run(&self) -> u64 {
        self.runs
    }

    /// The machine boots again, after a loss of power or an order.
    pub(crate) fn reboot(&mut self) {
        self.data.reboot(Loss::Everything);
        self.clocks = self.clocks.reboot();
        self.traces.booted(self.clocks.boot_id(), false);
        self.runs = 0;
    }

    // ------------------------------------------------------------------------------------------ evidence

    /// The evidence of how the previous run ended, as the next run reads it.
    pub fn previous_run(&self) -> PreviousRun {
        let evidence = self.previous_exit().read();
        assert_eq!(evidence.problems, Vec::<String>::new());
        PreviousRun {
            exit: evidence.exit_record.map(exit_of),
            runs: self.runs + 1,
            hardware_reset: evidence.hardware_watchdog_reset,
            kernel_panic: evidence.kernel_panic,
        }
    }

    /// Whether there is evidence that was not consumed yet.
    pub fn has_evidence(&self) -> bool {
        let previous = self.previous_run();
        previous.exit.is_some() || previous.hardware_reset || previous.kernel_panic
    }

    pub fn consume_evidence(&self) {
        self.previous_exit().consume().expect("no fault meets this disk");
    }

    /// The supervisor records how a run ended.
    pub fn record_exit(&self, exit: Exit) {
        let files = fake::files(&self.data);
        exit::write_exit_record(&*files, &record_of(exit)).expect("no fault meets this disk");
    }

    /// Nobody recorded how the run ended.
    pub fn forget_exit(&self) {
        self.data.remove(EXIT_RECORD);
    }

    /// This boot began with a reset by the hardware watchdog.
    pub fn hardware_reset(&self) {
        self.traces.booted(self.clocks.boot_id(), true);
    }

    /// The kernel left a panic record.
    pub fn kernel_panic(&self) {
        self.traces.panicked();
    }

    fn previous_exit(&self) -> impl PreviousExit {
        fake::previous_exit(fake::files(&self.data), &self.traces)
    }
}

fn date(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros.try_into().expect("no test is before 1970"))
}

fn exit_of(record: ExitRecord) -> Exit {
    let ExitRecord { boot_id, run, result, exit_code, exit_status, was_ready, stop_asked, stalled } = record;
    Exit { boot_id, run, result, exit_code, exit_status, was_ready, stop_asked, stalled }
}

fn record_of(exit: Exit) -> ExitRecord {
    let Exit { boot_id, run, result, exit_code, exit_status, was_ready, stop_asked, stalled } = exit;
    ExitRecord { boot_id, run, result, exit_code, exit_status, was_ready, stop_asked, stalled }
}
