//! The end of the previous run: the record, the evidence, and that evidence is used only once.
//!
//! Leaves to others: the consequences of an ending.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kedge_platform::exit::{EVIDENCE_SEEN, EXIT_RECORD, Ending, ResetTraces};
use kedge_platform::fake::{self, FakeDisk, FakeTraces, Loss};
use kedge_platform::linux::{self, Roots};
use kedge_platform::{Evidence, ExitRecord, Files, Kind, PreviousExit, RunDirectory, record_exit};
use kedge_rig::Scratch;

const BOOT: &str = "6fe9d3a8-0000-4000-8000-000000000001";

fn scratch() -> Scratch {
    Scratch::new("exit").expect("the temporary directory can be written")
}

/// Records an end on a new fake disk: the environment as `NAME=value` words, then the marks of the run.
fn recorded(environment: &str, marks: impl Fn(&RunDirectory)) -> (FakeDisk, ExitRecord) {
    let scratch = scratch();
    let run = RunDirectory::new(scratch.join("run"));
    run.begin();
    marks(&run);
    let disk = FakeDisk::new();
    let lookup = |name: &str| {
        environment.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).map(str::to_string)
    };
    let record = record_exit(&*fake::files(&disk), &run, BOOT, &lookup).expect("a healthy disk");
    (disk, record)
}

fn previous_exit_beside(disk: &FakeDisk, run: &RunDirectory) -> impl PreviousExit + use<> {
    fake::previous_exit(fake::files(disk), &FakeTraces::new(BOOT)).beside(run.clone())
}

fn previous_exit(disk: &FakeDisk) -> impl PreviousExit + use<> {
    fake::previous_exit(fake::files(disk), &FakeTraces::new(BOOT))
}

#[test]
fn every_service_result_is_recorded() {
    let check = |environment: &str, ready: bool, expect: Ending, text: &str| {
        let (disk, record) = recorded(environment, |run| {
            if ready {
                run.mark_ready();
            }
        });
        assert_eq!((record.ending(), record.to_string().as_str()), (expect, text), "{environment}");
        disk.reboot(Loss::Everything);
        assert_eq!(previous_exit(&disk).read().exit_record, Some(record), "survives a power cut");
    };
    check("SERVICE_RESULT=success EXIT_CODE=exited EXIT_STATUS=0", true, Ending::Success, "ended cleanly");
    check(
        "SERVICE_RESULT=exit-code EXIT_CODE=exited EXIT_STATUS=101",
        true,
        Ending::ExitCode,
        "exit code 101",
    );
    check(
        "SERVICE_RESULT=signal EXIT_CODE=killed EXIT_STATUS=KILL",
        true,
        Ending::Signal,
        "killed by signal KILL",
    );
    let text = "killed by signal ABRT, core dumped";
    check("SERVICE_RESULT=core-dump EXIT_CODE=dumped EXIT_STATUS=ABRT", true, Ending::CoreDump, text);
    let text = "killed by the watchdog";
    check("SERVICE_RESULT=watchdog EXIT_CODE=dumped EXIT_STATUS=ABRT", true, Ending::Watchdog, text);
    let text = "killed for lack of memory";
    check("SERVICE_RESULT=oom-kill EXIT_CODE=killed EXIT_STATUS=KILL", true, Ending::OutOfMemory, text);
    let timeout = "SERVICE_RESULT=timeout EXIT_CODE=killed EXIT_STATUS=KILL";
    check(timeout, false, Ending::StartTimeout, "not ready in time");
    check(timeout, true, Ending::StopTimeout, "asked to stop, killed at its time limit");
    check("SERVICE_RESULT=start-limit-hit", false, Ending::StartLimit, "started too often");
    check("SERVICE_RESULT=resources", false, Ending::NotStarted, "could not be started (resources)");
    check("SERVICE_RESULT=protocol", false, Ending::NotStarted, "could not be started (protocol)");
    check(
        "SERVICE_RESULT=exec-condition",
        false,
        Ending::NotStarted,
        "could not be started (exec-condition)",
    );
    check("SERVICE_RESULT=something-new", true, Ending::Unknown, "ended with result \"something-new\"");
    check("", false, Ending::Unknown, "ended with result \"unknown\"");
}

#[test]
fn record_contains_the_marks_of_the_run() {
    let (_, record) = recorded("SERVICE_RESULT=watchdog", |run| {
        run.mark_ready();
        run.mark_stalled(&["main", "disk"]);
    });
    assert_eq!(record.to_string(), "killed by the watchdog, stalled: main, disk");
    assert!(record.was_ready && !record.stop_asked);
    let (_, record) = recorded("SERVICE_RESULT=timeout", |run| {
        run.mark_stalled(&["main"]);
        run.mark_stalled(&[]);
        run.mark_stopping();
    });
    assert_eq!((record.stop_asked, record.was_ready, record.stalled.len()), (true, false, 0));
    assert_eq!(record.ending(), Ending::StopTimeout);
    let (_, record) = recorded("SERVICE_RESULT=success", |run| {
        run.mark_ready();
        run.begin();
    });
    assert!(!record.was_ready, "a new run begins without the marks of the last");
}

#[test]
fn the_runs_of_a_boot_are_counted() {
    let (_, record) = recorded("SERVICE_RESULT=success", |run| assert_eq!(run.next_run(), 2));
    assert_eq!(record.run, 1);
    let (_, record) = recorded("SERVICE_RESULT=success", |run| {
        run.begin();
        run.begin();
        assert_eq!(run.next_run(), 4);
    });
    assert_eq!(record.run, 3);
    // the run directory was lost with the boot, and no run began
    let (_, record) =
        recorded("SERVICE_RESULT=success", |run| fs::remove_dir_all(run.path()).expect("there"));
    assert_eq!(record.run, 0);
    let (_, record) = recorded("SERVICE_RESULT=success", |run| {
        fs::write(run.path().join("run"), "-7 \u{fffd}").expect("writable");
        assert_eq!(run.next_run(), 1);
    });
    assert_eq!(record.run, 0);
}

#[test]
fn long_environment_values_are_truncated() {
    let (disk, record) = recorded(&format!("SERVICE_RESULT={}\n\u{1b}[31m", "x".repeat(100_000)), |run| {
        let names: Vec<_> = (0..10_000).map(|n| format!("loop{n}")).collect();
        run.mark_stalled(&names.iter().map(String::as_str).collect::<Vec<_>>());
    });
    assert_eq!(record.result.len(), 128);
    assert!(record.stalled.len() <= 16, "{}", record.stalled.len());
    assert!(disk.content(EXIT_RECORD).is_some_and(|content| content.len() < 4096));
}

#[test]
fn record_is_evidence_until_consumed() {
    let (disk, record) = recorded("SERVICE_RESULT=signal", |_| {});
    for _ in 0..3 {
        assert_eq!(previous_exit(&disk).read().exit_record.as_ref(), Some(&record));
    }
    previous_exit(&disk).consume().unwrap();
    disk.reboot(Loss::Everything);
    assert_eq!(previous_exit(&disk).read(), Evidence::default());
    disk.take_trace();
    previous_exit(&disk).consume().unwrap();
    let trace = disk.take_trace();
    assert!(
        trace.iter().all(|operation| operation.starts_with("SyncDirectory")),
        "nothing new, nothing written: {trace:?}"
    );
}

#[test]
fn invalid_exit_record_is_quarantined_and_start_continues() {
    let check = |content: &[u8]| {
        let disk = FakeDisk::new();
        disk.put(EXIT_RECORD, content);
        let evidence = previous_exit(&disk).read();
        assert_eq!(evidence.exit_record, None, "{content:?}");
        assert_eq!(evidence.problems.len(), 1, "{content:?}: {evidence:?}");
        assert!(evidence.problems[0].contains(EXIT_RECORD), "{evidence:?}");
        previous_exit(&disk).consume().unwrap();
        assert_eq!(disk.paths(), [PathBuf::from(format!("{EXIT_RECORD}.corrupt-1"))]);
        assert_eq!(previous_exit(&disk).read(), Evidence::default());
    };
    let whole = recorded("SERVICE_RESULT=signal", |_| {}).0.content(EXIT_RECORD).unwrap();
    for length in 0..whole.len() {
        check(&whole[..length]);
    }
    check(&vec![0; whole.len()]);
    check(b"{}");
    check(b"{\"version\":1}");
    check(b"{\"version\":1,\"record\":{\"bootId\":7}}");
    check(b"\xff\xfe");
    check(&[whole.as_slice(), b"tail"].concat());
    check(&vec![b' '; 1 << 20]);
}

#[test]
fn record_of_a_newer_agent_is_left_alone() {
    let disk = FakeDisk::new();
    let newer = br#"{"version":2,"record":{"bootId":"x","result":"success"}}"#;
    disk.put(EXIT_RECORD, newer);
    disk.put(EVIDENCE_SEEN, br#"{"version":2,"more":true}"#);
    let evidence = previous_exit(&disk).read();
    assert_eq!((evidence.exit_record, evidence.problems.len()), (None, 2));
    let traces = FakeTraces::new(BOOT);
    traces.panicked();
    fake::previous_exit(fake::files(&disk), &traces).consume().unwrap();
    assert_eq!(disk.content(EXIT_RECORD).unwrap(), newer);
    assert_eq!(disk.content(EVIDENCE_SEEN).unwrap(), br#"{"version":2,"more":true}"#);
}

#[test]
fn directory_in_place_of_the_record_is_quarantined() {
    let disk = FakeDisk::new();
    disk.put_kind(EXIT_RECORD, Kind::Directory);
    disk.put_kind(EVIDENCE_SEEN, Kind::Fifo);
    assert_eq!(previous_exit(&disk).read().problems.len(), 2);
    previous_exit(&disk).consume().unwrap();
    assert_eq!(previous_exit(&disk).read(), Evidence::default());
}

#[test]
fn watchdog_reset_is_evidence_once_per_boot() {
    let (disk, traces) = (FakeDisk::new(), FakeTraces::new("boot-1"));
    let reset = || fake::previous_exit(fake::files(&disk), &traces).read().hardware_watchdog_reset;
    let consume = || fake::previous_exit(fake::files(&disk), &traces).consume().unwrap();
    assert!(!reset());
    traces.booted("boot-2", true);
    assert!(reset());
    consume();
    assert!(!reset(), "the driver reports it during the whole boot");
    traces.booted("boot-3", false);
    assert!(!reset());
    traces.booted("boot-4", true);
    assert!(reset());
    disk.reboot(Loss::Everything);
    traces.booted("boot-5", true);
    assert!(reset(), "another reset is another");
}

#[test]
fn panic_is_evidence_once_though_its_record_stays() {
    let (disk, traces) = (FakeDisk::new(), FakeTraces::new("boot-1"));
    let panicked = || fake::previous_exit(fake::files(&disk), &traces).read().kernel_panic;
    let consume = || fake::previous_exit(fake::files(&disk), &traces).consume().unwrap();
    for round in 0..300 {
        assert!(!panicked(), "round {round}");
        traces.panicked();
        assert!(panicked(), "round {round}");
        consume();
        disk.reboot(Loss::Everything);
    }
    let size = disk.content(EVIDENCE_SEEN).unwrap().len();
    assert!(size < 16 * 1024, "{size} bytes for the list of the seen");
}

#[test]
fn failed_consume_is_reported_and_both_files_are_tried() {
    let (disk, _) = recorded("SERVICE_RESULT=signal", |_| {});
    let traces = FakeTraces::new("boot-2");
    traces.booted("boot-2", true);
    let previous = fake::previous_exit(fake::files(&disk), &traces);
    disk.fail_every(fake::Operation::Create, 5);
    previous.consume().unwrap_err();
    assert_eq!(previous.read().exit_record, None, "the record was removed all the same");
    assert!(previous.read().hardware_watchdog_reset);
    disk.heal();
    previous.consume().unwrap();
    assert_eq!(previous.read(), Evidence::default());
}

/// The real traces on a made-up machine.
fn traces(files: &[(&str, &str)]) -> (Scratch, Roots) {
    let scratch = scratch();
    scratch.write("proc/sys/kernel/random/boot_id", format!("{BOOT}\n").as_bytes());
    files.iter().for_each(|(path, content)| drop(scratch.write(path, content)));
    let roots = Roots::under(&scratch);
    (scratch, roots)
}

#[test]
fn watchdog_driver_tells_the_cause_of_a_reset() {
    let check = |bits: &[&str], expect: bool| {
        let files: Vec<_> = bits
            .iter()
            .enumerate()
            .map(|(n, bits)| (format!("sys/class/watchdog/watchdog{n}/bootstatus"), *bits))
            .collect();
        let files: Vec<_> = files.iter().map(|(path, bits)| (path.as_str(), *bits)).collect();
        let (_scratch, roots) = traces(&files);
        assert_eq!(linux::LinuxTraces::new(roots).watchdog_reset(), expect, "{bits:?}");
    };
    check(&[], false);
    check(&["0\n"], false);
    check(&["32\n"], true);
    check(&["0\n", "32\n"], true);
    check(&["0x20\n"], true);
    check(&["34\n"], true);
    check(&["1\n"], false);
    check(&["16\n"], false);
    check(&["garbage\n"], false);
    check(&["-32\n"], false);
}

#[test]
fn panics_are_found_where_the_kernel_and_systemd_leave_them() {
    let check = |files: &[(&str, &str)], expect: usize| {
        let (_scratch, roots) = traces(files);
        assert_eq!(linux::LinuxTraces::new(roots).panic_records().len(), expect, "{files:?}");
    };
    let panic = "Panic#1 Part1\n<0>Kernel panic - not syncing";
    check(&[], 0);
    check(&[("sys/fs/pstore/dmesg-ramoops-0", panic)], 1);
    check(&[("sys/fs/pstore/dmesg-efi-170000000001001", panic)], 1);
    check(&[("var/lib/systemd/pstore/1700000000/001/dmesg-efi-1", panic)], 1);
    // The same record in both places, halfway through its move, counts once.
    let moved = [("sys/fs/pstore/dmesg-efi-1", panic), ("var/lib/systemd/pstore/1700/dmesg-efi-1", panic)];
    check(&moved, 1);
    check(&[("sys/fs/pstore/dmesg-efi-1", panic), ("sys/fs/pstore/dmesg-efi-2", "Panic#1 Part2\nmore")], 2);
    // Compressed: its content is unknown here, so it counts.
    check(&[("sys/fs/pstore/dmesg-efi-1.enc.z", "\u{1}\u{2}")], 1);
    // The kernel continued after these.
    check(&[("sys/fs/pstore/dmesg-ramoops-0", "Oops#1 Part1\n<4>BUG")], 0);
    check(&[("sys/fs/pstore/dmesg-ramoops-0", "Shutdown#1 Part1\n")], 0);
    // Other things in the same directories.
    check(&[("sys/fs/pstore/console-ramoops-0", panic), ("sys/fs/pstore/dmesg-empty", "")], 0);
    check(&[("var/lib/systemd/pstore/1700000000/dmesg.txt", panic)], 0);
    check(&[("var/lib/systemd/pstore/a/b/c/d/dmesg-efi-1", panic)], 0);
}

#[test]
fn new_panic_is_found_among_thousands() {
    let (scratch, roots) = traces(&[]);
    for n in 0..1000 {
        let path = format!("var/lib/systemd/pstore/{}/dmesg-efi-1", 1_700_000_000 + n);
        scratch.write(&path, format!("Panic#1 Part1\nnumber {n}").as_bytes());
    }
    let files = linux::files(scratch.join("data"));
    let previous = linux::previous_exit(files, roots);
    previous.consume().unwrap();
    assert!(!previous.read().kernel_panic);
    scratch.write("sys/fs/pstore/dmesg-efi-1", b"Panic#1 Part1\nfresh");
    assert!(previous.read().kernel_panic);
    fs::remove_file(scratch.join("sys/fs/pstore/dmesg-efi-1")).unwrap();
    scratch.write("var/lib/systemd/pstore/1700001000/dmesg-efi-1", b"Panic#1 Part1\nfresh");
    assert!(previous.read().kernel_panic);
}

#[test]
fn moved_panic_record_is_not_a_second_panic() {
    let panic = "Panic#1 Part1\n<0>Kernel panic - not syncing";
    let (scratch, roots) = traces(&[("sys/fs/pstore/dmesg-efi-1", panic)]);
    let files = || linux::files(scratch.join("data")) as Arc<dyn Files>;
    let previous = || linux::previous_exit(files(), roots.clone());
    assert!(previous().read().kernel_panic);
    previous().consume().unwrap();
    assert!(!previous().read().kernel_panic);
    fs::remove_file(scratch.join("sys/fs/pstore/dmesg-efi-1")).unwrap();
    previous().consume().unwrap();
    scratch.write("var/lib/systemd/pstore/1700000000/dmesg-efi-1", panic.as_bytes());
    assert!(!previous().read().kernel_panic);
    scratch.write("sys/fs/pstore/dmesg-efi-1", b"Panic#1 Part1\n<0>Kernel panic - another");
    assert!(previous().read().kernel_panic);
}

#[test]
fn real_disk_reads_back_its_record() {
    let scratch = scratch();
    let run = RunDirectory::new(scratch.join("run/kedge"));
    run.begin();
    run.mark_ready();
    let files = linux::files(scratch.join("data"));
    let environment = |name: &str| (name == "SERVICE_RESULT").then(|| "oom-kill".to_string());
    let record = record_exit(&*files, &run, BOOT, &environment).unwrap();
    let (_machine, roots) = traces(&[]);
    let previous = linux::previous_exit(files, roots);
    assert_eq!(previous.read().exit_record, Some(record));
    previous.consume().unwrap();
    assert_eq!(previous.read(), Evidence::default());
    assert!(!scratch.join("data").join(Path::new(EXIT_RECORD)).exists());
}

#[test]
fn unwritable_run_directory_is_harmless() {
    let scratch = scratch();
    scratch.write("blocked", b"a file where the directory belongs");
    let run = RunDirectory::new(scratch.join("blocked"));
    run.begin();
    run.mark_ready();
    run.mark_stalled(&["main"]);
    let record = record_exit(&*fake::files(&FakeDisk::new()), &run, BOOT, &|_| None).unwrap();
    assert!(!record.was_ready && record.stalled.is_empty());
}

#[test]
fn repeated_identical_end_is_written_once() {
    let scratch = scratch();
    let run = RunDirectory::new(scratch.join("run"));
    let disk = FakeDisk::new();
    let files = fake::files(&disk);
    let ended = |status: &'static str| {
        let environment = move |name: &str| match name {
            "SERVICE_RESULT" => Some("exit-code".to_string()),
            "EXIT_STATUS" => Some(status.to_string()),
            _ => None,
        };
        record_exit(&*files, &run, BOOT, &environment)
    };
    ended("78").unwrap();
    disk.set_read_only(true);
    assert_eq!(ended("78").expect("nothing to write").exit_status, "78");
    assert!(ended("1").is_err(), "another end must be written");
}

#[test]
fn directory_lock_belongs_to_one_process() {
    let scratch = scratch();
    let directory = scratch.join("var/lib/kedge");
    let claimed = linux::claim(&directory).unwrap();
    assert!(claimed.is_some() && directory.is_dir());
    assert!(linux::claim(&directory).unwrap().is_none());
    drop(claimed);
    assert!(linux::claim(&directory).unwrap().is_some());
    scratch.write("file", b"");
    assert!(linux::claim(&scratch.join("file")).is_err());
}

#[test]
fn fourth_replacement_in_a_minute_is_not_allowed() {
    let scratch = scratch();
    let run = RunDirectory::new(scratch.join("run"));
    run.begin();
    let at = |secs| run.may_replace(Duration::from_secs(secs), Duration::from_secs(1));
    assert!(at(100) && at(101) && at(102) && !at(103));
    // a refusal is not counted, and a start in between resets nothing
    run.begin();
    assert!(!at(159) && at(160) && !at(160) && at(161));
    assert!(
        run.may_replace(Duration::from_secs(161), Duration::from_secs(10)),
        "a program that ran for long"
    );
    // a replacement that cannot be counted is not made
    std::fs::remove_dir_all(scratch.join("run")).unwrap();
    assert!(!at(500));
}

/// A run that ended by its own choice ended cleanly, and its record does not hide an older one that is still
/// needed as evidence.
#[test]
fn clean_end_is_recorded_and_hides_no_other() {
    let scratch = scratch();
    let run = RunDirectory::new(scratch.join("run"));
    let disk = FakeDisk::new();
    let previous = || previous_exit_beside(&disk, &run);
    run.begin();
    run.mark_ready();
    run.record_clean_end(BOOT);
    let record = previous().read().exit_record.unwrap();
    assert_eq!((record.run, record.result.as_str(), record.exit_status.as_str()), (1, "success", "0"));
    assert!(record.was_ready && record.stop_asked);
    previous().consume().unwrap();
    assert_eq!(previous().read(), Evidence::default());

    run.begin();
    let environment = |name: &str| (name == "SERVICE_RESULT").then(|| "signal".to_owned());
    assert!(run.record_exit(BOOT, &environment).1.is_ok());
    run.begin();
    run.record_clean_end(BOOT);
    let record = previous().read().exit_record.unwrap();
    assert_eq!((record.run, record.result.as_str()), (2, "signal"), "still unconsumed");
}

/// The run directory's record is the newer one, whatever the disk still holds; a record of another boot is
/// ignored.
#[test]
fn record_in_run_directory_comes_before_that_on_disk() {
    let scratch = scratch();
    let run = RunDirectory::new(scratch.join("run"));
    let disk = FakeDisk::new();
    let ended =
        |result: &'static str| move |name: &str| (name == "SERVICE_RESULT").then(|| result.to_owned());
    run.begin();
    record_exit(&*fake::files(&disk), &run, BOOT, &ended("signal")).unwrap();
    run.begin();
    assert!(run.record_exit(BOOT, &ended("watchdog")).1.is_ok());
    assert_eq!(previous_exit_beside(&disk, &run).read().exit_record.unwrap().result, "watchdog");
    assert!(run.record_exit("an-earlier-boot", &ended("oom-kill")).1.is_ok());
    assert_eq!(previous_exit_beside(&disk, &run).read().exit_record.unwrap().result, "signal");
    previous_exit_beside(&disk, &run).consume().unwrap();
    assert_eq!(previous_exit_beside(&disk, &run).read(), Evidence::default());
}
