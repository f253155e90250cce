//! The records on disk: any content is a record or unknown, and a record is written back as it was read.

use crate::Target;
use crate::yaml::check_message;
use kedge_core::Identity;
use kedge_core::config::records::{
    BAD_CONTENTS, BAD_UIDS, BadConfigs, Current, Known, Read, Startups, Verdict, last_known_good_bytes,
    read_last_known_good,
};
use serde_json::json;
use std::fmt::Debug;

pub(crate) const TARGET: Target =
    Target { name: "records", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 3000 };

const WORDS: &[&str] = &[
    "\"apiVersion\":\"kedge.dev/v1\"",
    "\"kedge.dev/v2\"",
    "\"kedge.dev/v3\"",
    "\"local\":true",
    "\"source\":",
    "\"uid\":",
    "\"resourceVersion\":",
    "\"checkpoint\":",
    "\"sha256\":",
    "\"nodeUID\":",
    "\"since\":",
    "\"downloaded\":false",
    "\"invalidSource\":",
    "\"configMapRef\":",
    "\"configMap\":",
    "\"id\":\"local\"",
    "\"ran_ms\":",
    "\"contact\":",
    "\"startups\":",
    "\"cuts\":",
    "\"open\":",
    "\"threshold\":",
    "\"trial_ms\":",
    "\"hold\":true",
    "\"held\":",
    "\"last\":",
    "\"records\":",
    "\"heard\":",
    "\"payload\":",
    "\"previous\":",
    "\"time\":",
    "\"reason\":",
    "\"contents\":",
    "\"kind\":",
    "\"parse\"",
    "\"validate\"",
    "\"crashLoop\"",
    "\"contact\"",
    "\"proven\"",
    "\"lost\":",
    "\"tries\":",
    "\"retry\":true",
    "null",
    "18446744073709551615",
    "-1",
    "255",
    "256",
    "\"2026-11-21T01:00:00Z\"",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        r#"c{"apiVersion":"kedge.dev/v1","source":{"configMapRef":{"namespace":"n","name":"m","uid":"u-1"}},"uid":"u-1","resourceVersion":"7","sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","nodeUID":"n-1","since":"2026-11-21T01:00:00Z","downloaded":true}"#,
        r#"c{"source":{"configMapRef":{"namespace":"n","name":"m","uid":"u-1"}},"uid":"u-1","resourceVersion":"7","checkpoint":"u-0","sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","nodeUID":"n-1"}"#,
        r#"l{"source":{"configMapRef":{"namespace":"n","name":"m","uid":"u-1"}},"uid":"u-1","resourceVersion":"7","checkpoint":"u-1/7","sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}"#,
        r#"c{"local":true,"nodeUID":"n-1","invalidSource":"why"}"#,
        "c",
        r#"l{"apiVersion":"kedge.dev/v1","source":{"configMap":{"namespace":"n","name":"m","kubeletConfigKey":"k"}},"uid":"u","resourceVersion":"9","sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}"#,
        r#"l{"apiVersion":"kedge.dev/v2"}"#,
        r#"l{"local":true,"previous":{"source":{"configMapRef":{"namespace":"n","name":"m","uid":"u-1"}},"uid":"u-1","resourceVersion":"7","checkpoint":"u-1","sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}"#,
        r#"s{"id":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","ran_ms":5,"contact":true,"startups":["2026-11-21T01:00:00Z"],"cuts":1,"open":"b","threshold":10,"trial_ms":600000}"#,
        r#"s{"id":"local","ran_ms":0,"contact":false,"startups":[],"cuts":0,"open":null,"threshold":null,"trial_ms":null}"#,
        r#"s{"last":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","hold":true,"held":1,"records":{"local":{"ran_ms":0,"heard":false,"startups":[],"cuts":0,"open":null,"threshold":null,"trial_ms":null},"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855":{"id":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","ran_ms":5,"heard":true,"silent_ms":3,"startups":["2026-11-21T01:00:00Z"],"cuts":1,"open":"b","run":2,"threshold":10,"trial_ms":600000}}}"#,
        r#"b{"u-1":{"time":"2026-11-21T01:00:00Z","reason":"by hand"}}"#,
        r#"b{"u":{"time":"2026-11-21T01:00:00Z","reason":"r","contents":{"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855":{"time":"2026-11-21T01:00:00Z","reason":"r","kind":"contact","lost":1,"retry":true}}}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn run(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    match which {
        b'c' => check(bytes, Current::read, Current::to_bytes),
        b'l' => check(bytes, read_last_known_good, last_known_good_bytes),
        b's' => check(bytes, Startups::read, Startups::to_bytes),
        _ => {
            check(bytes, BadConfigs::read, BadConfigs::to_bytes);
            if let Known::Is(bad) = BadConfigs::read(&Read::Content(bytes.to_vec())) {
                check_bad_configs(bad);
            }
        }
    }
}

/// A record that was read and written once stays the same afterwards. (The first writing may round: times to
/// seconds, reasons to their bound.)
fn check<T: PartialEq + Debug>(bytes: &[u8], read: fn(&Read) -> Known<T>, write: fn(&T) -> Vec<u8>) {
    let record = match read(&Read::Content(bytes.to_vec())) {
        Known::Is(record) => record,
        Known::Unknown { why, .. } => return check_message(&why),
        Known::Absent => panic!("a file that is there is read as absent"),
    };
    let written = write(&record);
    match read(&Read::Content(written.clone())) {
        Known::Is(again) => {
            assert_eq!(write(&again).escape_ascii().to_string(), written.escape_ascii().to_string());
            let once_more = read(&Read::Content(write(&again)));
            assert_eq!(once_more, Known::Is(again));
        }
        other => panic!("{record:?} is written as {} and read back as {other:?}", written.escape_ascii()),
    }
}

/// A list edited by hand is obeyed, and the next verdict brings it back within its bounds.
fn check_bad_configs(mut bad: BadConfigs) {
    let uids: Vec<String> = bad.entries().map(|(uid, ..)| uid.to_owned()).collect();
    let is = Identity::of("marked", b"payload", b"");
    for uid in &uids {
        bad.verdict(uid, Some(&is));
        bad.verdict(uid, None);
    }
    let verdict = json!({"time": "2026-11-21T01:00:00Z", "reason": "failed to validate", "kind": "validate"});
    let verdict: Verdict = serde_json::from_value(verdict).expect("a verdict as it stands in the file");
    bad.mark("marked", &is, verdict, &[]);
    assert!(bad.verdict("marked", Some(&is)).is_some(), "a verdict that was just recorded");
    assert!(bad.entries().count() <= BAD_UIDS, "{} UIDs", bad.entries().count());
    let text = bad.to_bytes();
    let json: serde_json::Value = serde_json::from_slice(&text).expect("what was written is JSON");
    let contents = json["marked"]["contents"].as_object().map_or(0, |contents| contents.len());
    assert!(contents <= BAD_CONTENTS, "{contents} contents");
    for uid in &uids {
        bad.forgive(uid);
        assert_eq!(bad.verdict(uid, Some(&is)), None, "{uid:?} was forgiven");
    }
}
