//! Disks that fail without a power cut: the answer of each call, and the content of the disk afterwards.
//!
//! Always holds: a failure is never answered with `Ok`, never costs the old content, leaves no litter that
//! the next sweep does not remove, and the same call works once the disk does.
//!
//! Leaves to others: power cuts (`crash`), real disks (`linux`).

use std::path::Path;

use kedge_platform::fake::{self, FakeDisk, Operation};
use kedge_platform::files::{RESERVE_BYTES, RESERVE_NAME, RESERVE_SERVES_BYTES, TEMPORARY_PREFIX};
use kedge_platform::{Files, Kind, ReadError, WriteError};

const EIO: i32 = 5;
const LIMIT: usize = 64 * 1024;

fn path() -> &'static Path {
    Path::new("v1/startups.json")
}

fn disk_with_old() -> FakeDisk {
    let disk = FakeDisk::new();
    disk.put(path(), b"old");
    disk
}

#[test]
fn failed_operation_is_reported_and_keeps_content() {
    let disk = disk_with_old();
    fake::files(&disk).write_durably(path(), b"new").unwrap();
    let operations = disk.operations();
    assert!(operations >= 6);
    for failing in 0..operations {
        let disk = disk_with_old();
        let files = fake::files(&disk);
        disk.fail_after(failing, EIO);
        let error = files.write_durably(path(), b"new").expect_err("an operation failed");
        assert!(matches!(error, WriteError::Io { .. }), "{error}");
        let content = disk.content(path()).expect("never lost");
        assert!(content == b"old" || content == b"new", "operation {failing}");
        let litter = disk.paths().iter().any(|path| path.to_string_lossy().contains(TEMPORARY_PREFIX));
        assert!(!litter, "operation {failing}: {:?}", disk.paths());
        files.write_durably(path(), b"new").unwrap();
        assert_eq!(disk.content(path()).unwrap(), b"new");
    }
}

#[test]
fn failed_disk_keeps_the_old_content() {
    for operation in [Operation::Create, Operation::Write, Operation::Sync, Operation::Rename] {
        let disk = disk_with_old();
        disk.fail_every(operation, EIO);
        for _ in 0..3 {
            fake::files(&disk).write_durably(path(), b"new").unwrap_err();
        }
        assert_eq!(disk.content(path()).unwrap(), b"old", "{operation:?}");
    }
}

#[test]
fn failed_sync_is_not_repeated_on_the_same_file() {
    let disk = disk_with_old();
    let files = fake::files(&disk);
    disk.fail_every(Operation::Sync, EIO);
    files.write_durably(path(), b"new").unwrap_err();
    let trace = disk.take_trace().join("\n");
    assert_eq!(trace.matches("Sync ").count(), 1, "{trace}");
    assert!(trace.contains("Unlink"), "{trace}");
}

#[test]
fn interrupted_and_short_writes_are_continued() {
    let disk = disk_with_old();
    disk.interrupt(true, Some(7));
    let content: Vec<u8> = (0..=255).collect();
    let files = fake::files(&disk);
    files.write_durably(path(), &content).unwrap();
    assert_eq!(files.read(path(), LIMIT).unwrap(), content);
    files.set_aside(path()).unwrap();
    files.remove(Path::new("v1")).unwrap();
    assert_eq!(disk.paths(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn corrupting_disk_is_retried_and_keeps_old_content() {
    let disk = disk_with_old();
    disk.flip_a_bit_next();
    let files = fake::files(&disk);
    let error = files.write_durably(path(), b"new").unwrap_err();
    assert!(matches!(error, WriteError::Differs { at_byte: 2, expected_bytes: 3, .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "wrote 3 bytes for v1/startups.json, read back something else from byte 2 on"
    );
    assert_eq!(disk.content(path()).unwrap(), b"old");
    files.write_durably(path(), b"new").unwrap();
    assert_eq!(disk.content(path()).unwrap(), b"new");
}

#[test]
fn read_only_disk_is_reported_and_readable() {
    let disk = disk_with_old();
    disk.set_read_only(true);
    let files = fake::files(&disk);
    assert!(matches!(files.write_durably(path(), b"new"), Err(WriteError::ReadOnly { .. })));
    assert!(matches!(files.remove(path()), Err(WriteError::ReadOnly { .. })));
    assert!(matches!(files.set_aside(path()), Err(WriteError::ReadOnly { .. })));
    assert!(matches!(files.ensure_reserve(RESERVE_BYTES), Err(WriteError::ReadOnly { .. })));
    assert_eq!(files.read(path(), LIMIT).unwrap(), b"old");
    disk.set_read_only(false);
    files.write_durably(path(), b"new").unwrap();
}

#[test]
fn reserve_makes_room_for_a_verdict() {
    let disk = disk_with_old();
    let files = fake::files(&disk);
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    disk.set_space_bytes(Some(disk.used_bytes()));
    files.write_durably(path(), b"verdict").unwrap();
    assert_eq!(disk.content(path()).unwrap(), b"verdict");
    assert_eq!(disk.content(RESERVE_NAME), None, "the reserve was used up");
    // No other program took the space, so the reserve is made again later.
    files.ensure_reserve(RESERVE_BYTES - 4096).unwrap();
    files.write_durably(path(), b"another").unwrap();
}

/// A list of forty verdicts and more counts as a verdict, too.
#[test]
fn reserve_makes_room_for_a_long_list() {
    let disk = disk_with_old();
    let files = fake::files(&disk);
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    disk.set_space_bytes(Some(disk.used_bytes()));
    let list = vec![7; 48 * 1024];
    files.write_durably(path(), &list).unwrap();
    assert_eq!(disk.content(path()).unwrap(), list);
}

#[test]
fn large_content_does_not_use_the_reserve() {
    let disk = disk_with_old();
    let files = fake::files(&disk);
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    disk.set_space_bytes(Some(disk.used_bytes()));
    let error = files.write_durably(path(), &vec![7; RESERVE_SERVES_BYTES + 1]).unwrap_err();
    assert!(matches!(error, WriteError::NoSpace { .. }), "{error}");
    assert!(disk.content(RESERVE_NAME).is_some());
    assert_eq!(disk.content(path()).unwrap(), b"old");
}

/// A checkpoint of two kibibytes is as small as a verdict, and would take the room of verdicts that come
/// later.
#[test]
fn content_that_can_be_had_again_leaves_the_reserve() {
    let disk = disk_with_old();
    let files = fake::files(&disk);
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    disk.set_space_bytes(Some(disk.used_bytes()));
    let error = files.write_beside_reserve(path(), &[7; 2048]).unwrap_err();
    assert!(matches!(error, WriteError::NoSpace { .. }), "{error}");
    assert!(disk.content(RESERVE_NAME).is_some());
    assert_eq!(disk.content(path()).unwrap(), b"old");
    files.write_durably(path(), &[8; 2048]).unwrap();
}

#[test]
fn full_disk_without_reserve_is_reported() {
    let disk = disk_with_old();
    let files = fake::files(&disk);
    disk.set_space_bytes(Some(disk.used_bytes()));
    for _ in 0..3 {
        let error = files.write_durably(path(), b"new").unwrap_err();
        assert_eq!(error.to_string(), "cannot write v1/startups.json, the disk is full");
        assert!(std::error::Error::source(&error).is_some());
    }
    assert!(matches!(files.ensure_reserve(RESERVE_BYTES), Err(WriteError::NoSpace { .. })));
    assert_eq!(disk.paths(), [path()]);
    disk.set_space_bytes(None);
    files.write_durably(path(), b"new").unwrap();
}

#[test]
fn existing_reserve_costs_no_write() {
    let disk = FakeDisk::new();
    let files = fake::files(&disk);
    assert!(!files.free_reserve().unwrap());
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    let operations = disk.operations();
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    assert_eq!(disk.operations(), operations);
    disk.damage(RESERVE_NAME, |content| content.truncate(10));
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    assert_eq!(disk.content(RESERVE_NAME).unwrap().len(), RESERVE_BYTES);
    assert!(files.free_reserve().unwrap());
    // A directory in its place is set aside.
    disk.put_kind(RESERVE_NAME, Kind::Directory);
    files.ensure_reserve(RESERVE_BYTES).unwrap();
    assert_eq!(disk.content(RESERVE_NAME).unwrap().len(), RESERVE_BYTES);
}

#[test]
fn read_errors_name_the_problem() {
    let disk = disk_with_old();
    let files = fake::files(&disk);
    assert!(matches!(files.read(Path::new("absent"), 1), Err(ReadError::NotFound { .. })));
    assert!(matches!(files.read(Path::new("v1/startups.json/x"), 1), Err(ReadError::NotFound { .. })));
    assert!(matches!(files.read(path(), 2), Err(ReadError::TooLarge { size: 3, limit: 2, .. })));
    assert!(matches!(files.read(Path::new("v1"), 2), Err(ReadError::NotAFile { kind: Kind::Directory, .. })));
    assert!(matches!(files.read(Path::new("../x"), 2), Err(ReadError::BadPath { .. })));
    disk.put_kind("pipe", Kind::Fifo);
    assert!(matches!(files.read(Path::new("pipe"), 2), Err(ReadError::NotAFile { kind: Kind::Fifo, .. })));
    disk.fail_reads(EIO);
    assert!(matches!(files.read(path(), 3), Err(ReadError::Io { .. })));
}

#[test]
fn sweep_removes_leftovers_and_unwanted_only() {
    let disk = FakeDisk::new();
    let temporary = |directory: &str, n: u32| format!("{directory}{TEMPORARY_PREFIX}1-{n}");
    disk.put(temporary("", 1), b"x");
    disk.put(temporary("checkpoints/7f3c/", 2), b"x");
    disk.put_kind(temporary("v1/", 3), Kind::Fifo);
    disk.put("current", b"x");
    disk.put("checkpoints/7f3c/5", b"x");
    disk.put("checkpoints/7f3c/4", b"x");
    disk.put("checkpoints/dead/1", b"x");
    disk.put("checkpoints/dead/2", b"x");
    let files = fake::files(&disk);
    files.ensure_reserve(100).unwrap();
    let unwanted = [Path::new("checkpoints/7f3c/4"), Path::new("checkpoints/dead")];
    let report = files.sweep(&|path| !unwanted.contains(&path), 100);
    assert_eq!((report.error_count, report.truncated), (0, false), "{report:?}");
    assert_eq!(
        disk.paths(),
        [Path::new(RESERVE_NAME), Path::new("checkpoints/7f3c/5"), Path::new("current")]
    );
}

#[test]
fn sweep_gathers_errors_and_continues() {
    let disk = FakeDisk::new();
    (0..30).for_each(|n| disk.put(format!("{TEMPORARY_PREFIX}1-{n}"), b"x"));
    disk.fail_after(disk.operations() + 3, EIO);
    let report = fake::files(&disk).sweep(&|_| true, 100);
    assert_eq!((report.removed, report.error_count, report.errors.len()), (29, 1, 1), "{report:?}");
    assert!(report.errors[0].starts_with("cannot remove .kedge-new-1-"), "{report:?}");
    disk.fail_every(Operation::Unlink, EIO);
    (0..30).for_each(|n| disk.put(format!("{TEMPORARY_PREFIX}1-{n}"), b"x"));
    let report = fake::files(&disk).sweep(&|_| true, 100);
    assert_eq!((report.removed, report.error_count, report.errors.len()), (0, 30, 8), "{report:?}");
}

#[test]
fn bounded_sweeps_finish_in_the_end() {
    let disk = FakeDisk::new();
    (0..950).for_each(|n| disk.put(format!("d{}/{TEMPORARY_PREFIX}1-{n}", n % 2), b"x"));
    disk.put("current", b"x");
    let mut rounds = 0;
    loop {
        let report = fake::files(&disk).sweep(&|_| true, 100);
        assert!(report.examined <= 100, "{report:?}");
        rounds += 1;
        if !report.truncated {
            break;
        }
        assert!(rounds < 20);
    }
    assert_eq!(disk.paths(), [Path::new("current")]);
}

#[test]
fn listing_is_sorted_bounded_and_hides_own_files() {
    let disk = FakeDisk::new();
    for name in ["b", "a", "c"] {
        disk.put(format!("d/{name}"), b"x");
    }
    disk.put(format!("d/{TEMPORARY_PREFIX}1-1"), b"x");
    let files = fake::files(&disk);
    files.ensure_reserve(10).unwrap();
    let names = |listing: kedge_platform::Listing| -> Vec<_> {
        listing.entries.into_iter().map(|entry| entry.name.into_string().unwrap()).collect()
    };
    assert_eq!(names(files.list(Path::new("d"), 10).unwrap()), ["a", "b", "c"]);
    assert_eq!(names(files.list(Path::new(""), 10).unwrap()), ["d"]);
    assert!(files.list(Path::new("d"), 2).unwrap().truncated);
    assert!(matches!(files.list(Path::new("x"), 2), Err(ReadError::NotFound { .. })));
    assert!(matches!(files.list(Path::new("d/a"), 2), Err(ReadError::NotAFile { kind: Kind::File, .. })));
}

#[test]
fn remove_is_idempotent_and_bounded() {
    let disk = FakeDisk::new();
    let files = fake::files(&disk);
    files.remove(Path::new("absent")).unwrap();
    files.remove(Path::new("absent/deeper")).unwrap();
    (0..10_050).for_each(|n| disk.put(format!("d/{}/{n}", n % 7), b""));
    assert!(matches!(files.remove(Path::new("d")), Err(WriteError::TooMany { .. })));
    files.remove(Path::new("d")).unwrap();
    assert_eq!(files.list(Path::new(""), 100).unwrap().entries, []);
    // Deeper than any directory of ours: refused, not walked for ever.
    disk.put("x/".repeat(40) + "end", b"");
    assert!(matches!(files.remove(Path::new("x")), Err(WriteError::TooMany { .. })));
}
