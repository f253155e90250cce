//! Data that agents and shims of different releases read from each other: the records of a bundle, and both
//! sides of the attach protocol.
//!
//! Always checked: a record that was read is written back unchanged; an agent assigns the container a state,
//! whatever the records contain, and considers it ended only because of a record of its end; a shim passes
//! the container's output to the client and the client's input to the container, only after a greeting, and
//! writes only the protocol; a client hears of an end or a reason.

use crate::Target;
use crate::input::{joined, sections};
use kedge_platform::workloads::Console;
use kedge_platform::workloads::fuzzing::{Bundle, RECORDS};
use kedge_rig::Scratch;
use serde_json::Value;
use std::cell::OnceCell;

pub(crate) const TARGET: Target =
    Target { name: "shim", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 300 };

/// Longest text about a record or a client: it becomes part of a pod's status.
const ERROR_BYTES: usize = 4096;
/// Longest line of the protocol.
const LINE_BYTES: usize = 1024;

const WORDS: &[&str] = &[
    "{\"version\":1,",
    "\"version\":2",
    "\"shim\":{\"pid\":1,\"startTime\":1}",
    "\"process\":{\"pid\":7,\"startTime\":9}",
    "\"startedAt\":",
    "\"exitCode\":",
    "\"finishedAt\":",
    "\"signal\":9",
    "\"oomKilled\":true",
    "\"lost\":true",
    "\"error\":\"",
    "\"droppedLines\":",
    "\"notes\":{\"a\":\"b\"}",
    "\"stdin\":true",
    "\"stdout\":true",
    "\"stderr\":true",
    "\"terminal\":true",
    "{\"rows\":24,\"columns\":80}\n",
    "{\"code\":0}\n",
    "{\"dropped\":\"",
    "\n",
    "null",
    "-9223372036854775808",
    "18446744073709551615",
    "\\u0000",
];

fn seeds() -> Vec<Vec<u8>> {
    let order = r#"{"version":1,"id":{"pod":"u","name":"a","attempt":0},"crun":{"program":"/usr/bin/crun","root":"/run/crun","limitMs":60000},"cgroups":GROUPS,"group":"/kedgepods/podu/a-0","shimsGroup":"/kedge/shims","log":{"path":"/var/log/0.log","maxBytes":10,"maxFiles":2},"console":{"stdin":true,"stdinOnce":false,"tty":false},"notes":{"image":"x"}}"#;
    let process = r#"{"pid":7,"startTime":9}"#;
    let shim = format!(r#"{{"version":1,"shim":{process}}}"#);
    let state = format!(r#"{{"version":1,"process":{process},"startedAt":5}}"#);
    let exit = r#"{"version":1,"exitCode":137,"signal":9,"oomKilled":true,"startedAt":5,"finishedAt":6,"droppedLines":1}"#;
    let notes = r#"{"version":1,"notes":{"health":"{}"}}"#;
    let hello = "{\"version\":1,\"stdin\":true,\"stdout\":true,\"stderr\":true}\n";
    [
        joined(&["r", order, &shim, &state, exit, notes]),
        joined(&["r", "", &shim, &state, "", notes]),
        joined(&[
            "r",
            "",
            "",
            "",
            r#"{"version":1,"exitCode":0,"finishedAt":1,"error":"no","lost":true}"#,
            "{",
        ]),
        joined(&["r", "", &shim, "", r#"{"version":2}"#, ""]),
        joined(&["s7", hello, "{\"rows\":24,\"columns\":80}\n", "typed", "written"]),
        joined(&["s2", "{\"version\":1,\"stdin\":false,\"stdout\":true,\"stderr\":true}\n", "", "x", "y"]),
        joined(&["s0", "{\"version\":9}\n", hello, "x", "y"]),
        joined(&["s1", "hello", "\n", "x", "y"]),
        joined(&["c", "{\"version\":1,\"terminal\":true}\n{\"code\":3}\n"]),
        joined(&["c", "{\"version\":1,\"error\":\"8 clients are attached\"}\n"]),
        joined(&["c", "{\"version\":1}\n{\"dropped\":\"the client took no output\"}\n"]),
        joined(&["c", "{\"version\":1}\nx\n\n"]),
    ]
    .to_vec()
}

thread_local! {
    static BUNDLE: OnceCell<(Scratch, Bundle)> = const { OnceCell::new() };
}

fn run(data: &[u8]) {
    let [which, rest @ ..] = sections::<6>(data);
    BUNDLE.with(|bundle| {
        let (_, bundle) = bundle.get_or_init(|| {
            let scratch = crate::scratch("shim");
            let bundle = Bundle::new(scratch.path()).expect("it is a directory of our own");
            (scratch, bundle)
        });
        bundle.clear().expect("it is a directory of our own");
        match which.first() {
            Some(b'r') => read_records(bundle, rest),
            Some(b's') => talk_to_shim(bundle, which.get(1).copied().unwrap_or_default(), rest),
            _ => talk_to_client(bundle, rest[0]),
        }
    });
}

fn read_records(bundle: &Bundle, contents: [&[u8]; 5]) {
    for (name, content) in RECORDS.into_iter().zip(contents) {
        if content.is_empty() {
            continue;
        }
        bundle.put(name, content).expect("it is a directory of our own");
    }
    let states = [false, true].map(|has_shim| (has_shim, bundle.state(has_shim)));
    let has_end = bundle.read_twice("exit.json").is_ok_and(|end| end.is_some());
    let is_unknown = bundle.read_twice("exit.json").is_err();
    for (has_shim, state) in states {
        assert!(state.is_err() || !is_unknown, "an end that cannot be read is passed over");
        match state {
            Ok((state, _)) => {
                assert_eq!(["exited", "lost"].contains(&state), has_end, "{state}");
                assert!(has_shim || state != "running", "nobody watches it");
            }
            Err(why) => check_error(&why),
        }
    }
    for name in RECORDS {
        match bundle.read_twice(name) {
            Ok(Some([first, second])) => assert_eq!(first, second, "{name}"),
            Ok(None) => {}
            Err(why) => {
                check_error(&why);
                assert!(why.contains(name), "it names the record: {why}");
            }
        }
    }
}

fn talk_to_shim(bundle: &Bundle, descriptors: u8, [first, second, input, output, _]: [&[u8]; 5]) {
    let console = Console { stdin: descriptors & 1 == 1, stdin_once: descriptors & 2 == 2, tty: false };
    let count = usize::from(descriptors & 7).count_ones() as usize;
    let talk = bundle.talk_to_shim(console, &[(first, count), (second, 0)], input, output);
    let talk = talk.expect("there are descriptors");
    let lines: Vec<&[u8]> = talk.lines.split(|byte| *byte == b'\n').collect();
    let (last, whole) = lines.split_last().expect("one at least");
    assert!(last.is_empty(), "half a line");
    let whole: Vec<Value> =
        whole.iter().map(|line| serde_json::from_slice(line).expect("a line of JSON")).collect();
    assert!(whole.len() <= 3 && lines.iter().all(|line| line.len() <= LINE_BYTES), "{whole:?}");
    let is_attached =
        whole.first().is_some_and(|answer| answer["version"] == 1 && answer.get("error").is_none());
    let mut heard = talk.outputs.iter().chain([&talk.stdin]);
    assert!(is_attached || heard.all(Vec::is_empty), "nobody was attached: {talk:?}");
    assert!(output.starts_with(&talk.outputs[0]) && output.starts_with(&talk.outputs[1]), "{talk:?}");
    assert!(input.starts_with(&talk.stdin), "{talk:?}");
    if let Some(end) = whole.get(1) {
        assert!(end["code"] == 3 || end["dropped"].is_string(), "{end}");
    }
}

fn talk_to_client(bundle: &Bundle, answer: &[u8]) {
    match bundle.talk_to_client(answer).expect("there is a socket") {
        Ok(code) => assert!(String::from_utf8_lossy(answer).contains(&code.to_string())),
        Err(why) => check_error(&why),
    }
}

fn check_error(why: &str) {
    assert!(!why.is_empty() && why.len() <= ERROR_BYTES, "{} bytes: {why}", why.len());
}
