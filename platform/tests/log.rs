//! The log of a disk that fails for a long time: enough to notice, not a line every few seconds.
//!
//! It uses this process's log, so this file has only one test. Leaves to others: the answers of the calls
//! (`faults`).

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::path::Path;
use std::sync::Mutex;

use kedge_platform::Files as _;
use kedge_platform::fake::{self, FakeDisk, Operation};

const EIO: i32 = 5;

struct Told(Mutex<Vec<String>>);

static TOLD: Told = Told(Mutex::new(Vec::new()));

impl log::Log for Told {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

fn logged() -> Vec<String> {
    std::mem::take(&mut *TOLD.0.lock().unwrap())
}

#[test]
fn failed_directory_sync_is_logged_once() {
    log::set_logger(&TOLD).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let disk = FakeDisk::new();
    let path = Path::new("v1/bad-configs.json");
    disk.put(path, b"{}");
    let files = fake::files(&disk);
    let look = || {
        for _ in 0..1_000 {
            assert_eq!(files.read(path, 100).unwrap(), b"{}");
        }
    };
    disk.fail_every(Operation::SyncDirectory, EIO);
    look();
    let first = logged();
    assert_eq!(first.len(), 2, "one line for each directory: {first:#?}");
    assert!(first[0].starts_with("cannot make durable the names in \"v1\""), "{first:#?}");
    // another failing write reports nothing new about the names
    files.write_durably(path, b"new").unwrap_err();
    logged();
    look();
    assert_eq!(logged(), Vec::<String>::new());
    disk.heal();
    look();
    disk.fail_every(Operation::SyncDirectory, EIO);
    files.write_durably(Path::new("v1/other"), b"new").unwrap_err();
    logged();
    look();
    assert_eq!(logged().len(), 2, "after it worked, a failure is logged again");
}
