//! Evidence of the previous run: the exit record, the list of consumed evidence, and the supervisor's
//! variables.

use crate::Target;
use crate::input::{joined, sections};
use kedge_platform::exit::{EVIDENCE_SEEN, EXIT_RECORD};
use kedge_platform::fake::{FakeDisk, FakeTraces, files, previous_exit};
use kedge_platform::{PreviousExit, RunDirectory, record_exit};
use kedge_rig::Scratch;
use std::cell::OnceCell;

pub(crate) const TARGET: Target =
    Target { name: "exit_record", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 1000 };

/// Longest text about an unreadable record.
const PROBLEM_BYTES: usize = 700;

const WORDS: &[&str] = &[
    "{\"version\":1,\"record\":{\"bootId\":\"",
    "\"result\":\"",
    "\"exitCode\":\"",
    "\"exitStatus\":\"",
    "\"wasReady\":true",
    "\"stopAsked\":true",
    "\"stalled\":[\"disk\"]",
    "\"watchdog\"",
    "\"oom-kill\"",
    "\"timeout\"",
    "\"core-dump\"",
    "\"signal\"",
    "\"version\":2",
    "\"watchdogBootId\":",
    "\"panics\":[",
    "null",
    "\u{1e}",
    "4294967296",
    "\\u0000",
];

fn seeds() -> Vec<Vec<u8>> {
    let record = r#"{"version":1,"record":{"bootId":"boot-1","result":"exit-code","exitCode":"exited","exitStatus":"101","wasReady":true,"stopAsked":false,"stalled":["disk"]}}"#;
    let seen = r#"{"version":1,"watchdogBootId":"boot-1","panics":["0011223344556677"]}"#;
    [
        joined(&[record, seen, "signal", "killed", "SEGV", "disk\nwatch-node\n"]),
        joined(&[record, "", "watchdog", "dumped", "ABRT", ""]),
        joined(&[r#"{"version":2}"#, r#"{"version":9}"#, "", "", "", ""]),
        joined(&["", "{", "oom-kill", "killed", "KILL", "x"]),
    ]
    .to_vec()
}

thread_local! {
    static MARKS: OnceCell<Scratch> = const { OnceCell::new() };
}

fn run(data: &[u8]) {
    let [record, seen, result, code, status, stalled] = sections::<6>(data);
    read_and_consume(record, seen);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    MARKS.with(|marks| {
        let folder = marks.get_or_init(|| crate::scratch("marks")).path();
        write_and_read([text(result), text(code), text(status)], stalled, folder);
    });
}

fn put(disk: &FakeDisk, name: &str, content: &[u8]) {
    if !content.is_empty() {
        disk.put(name, content);
    }
}

/// Whatever the files contain, evidence is consumed once.
fn read_and_consume(record: &[u8], seen: &[u8]) {
    let (disk, traces) = (FakeDisk::new(), FakeTraces::new("boot-1"));
    traces.booted("boot-2", true);
    traces.panicked();
    put(&disk, EXIT_RECORD, record);
    put(&disk, EVIDENCE_SEEN, seen);
    let exit = previous_exit(files(&disk), &traces);
    let evidence = exit.read();
    for problem in &evidence.problems {
        assert!(!problem.is_empty() && problem.len() <= PROBLEM_BYTES, "{} bytes: {problem}", problem.len());
    }
    if let Some(record) = &evidence.exit_record {
        assert!(!record.to_string().is_empty());
        record.ending();
    }
    exit.consume().expect("the disk works");
    let again = previous_exit(files(&disk), &traces).read();
    assert_eq!(again.exit_record, None, "believed twice");
    #[derive(serde::Deserialize)]
    struct OnlyVersion {
        version: u32,
    }
    let newer =
        |bytes: &[u8]| serde_json::from_slice::<OnlyVersion>(bytes).is_ok_and(|json| json.version > 1);
    // this agent may not change a newer agent's list: then the machine's evidence stays unconsumed
    if !newer(seen) {
        assert!(!again.hardware_watchdog_reset && !again.kernel_panic, "believed twice");
    }
}

/// Any values of the supervisor's variables are read back as they were recorded.
fn write_and_read(words: [String; 3], stalled: &[u8], folder: &std::path::Path) {
    let (disk, traces) = (FakeDisk::new(), FakeTraces::new("boot-1"));
    let marks = RunDirectory::new(folder);
    marks.begin();
    marks.mark_ready();
    std::fs::write(folder.join("stalled"), stalled).expect("the folder is there");
    let word = |name: &str| match name {
        "SERVICE_RESULT" => Some(words[0].clone()),
        "EXIT_CODE" => Some(words[1].clone()),
        "EXIT_STATUS" => Some(words[2].clone()),
        _ => None,
    };
    let files_of = files(&disk);
    let recorded = record_exit(files_of.as_ref(), &marks, "boot-1", &word).expect("the disk works");
    assert_eq!(previous_exit(files(&disk), &traces).read().exit_record, Some(recorded));
}
