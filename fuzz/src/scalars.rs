//! Short texts with a meaning: durations, quantities, thresholds, times, digests, file names.

use crate::Target;
use kedge_api::Timestamp;
use kedge_core::config::records::CheckpointName;
use kedge_core::kubelet::duration;
use kedge_core::kubelet::quantity::{Quantity, Threshold};
use kedge_core::kubelet::{LayerText, LocalLayers, Origin, effective};
use kedge_core::{ConfigId, Digest};

pub(crate) const TARGET: Target =
    Target { name: "scalars", run, seeds, words: WORDS, longest_bytes: 128, mutations: 5000 };

const WORDS: &[&str] = &[
    "ns",
    "us",
    "µs",
    "μs",
    "ms",
    "s",
    "m",
    "h",
    "Ki",
    "Mi",
    "Gi",
    "Ti",
    "Pi",
    "Ei",
    "n",
    "u",
    "k",
    "M",
    "G",
    "T",
    "P",
    "E",
    "e",
    "e-",
    "%",
    "+",
    "-",
    ".",
    "0x",
    "9223372036854775807",
    "9223372036854775808",
    "1e19",
    "2026-11-21T01:35:58Z",
    "+14:00",
    "-00:00",
    ".000000",
    "0001-01-01",
    "9999-12-31",
    "24:00:00",
    "23:59:60",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        "1h10m30.5s",
        "-1.5h",
        "0",
        "100ns",
        "1us",
        "2562047h47m16.854775807s",
        "1.5Gi",
        "100m",
        "10%",
        "12e6",
        "1E",
        "0.1n",
        "-5",
        "2026-11-21T01:35:58Z",
        "2025-11-21T03:35:58.000042+02:00",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "7f3c-11",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    check_duration(&text);
    check_quantity(&text);
    check_threshold(&text);
    check_time(&text);
    if let Some(digest) = Digest::parse(&text) {
        assert_eq!(digest.to_string(), text.to_ascii_lowercase());
        assert_eq!(ConfigId::parse(&text).map(|id| id.to_string()), Some(digest.to_string()));
    }
    if CheckpointName::new(&text, "1").is_some() {
        assert!(
            !text.is_empty() && text.len() <= 64 && !text.contains(['/', '.', '\0']),
            "{text:?} as a file name"
        );
    }
}

fn check_duration(text: &str) {
    let Some(nanos) = duration::parse(text) else { return };
    let shown = duration::format(nanos);
    assert_eq!(duration::parse(&shown), Some(nanos), "{text:?} is shown as {shown:?}");
}

fn check_quantity(text: &str) {
    let Some(quantity) = Quantity::parse(text) else { return };
    let (units, milli) = (quantity.units(), quantity.milli_units());
    if quantity.is_negative() {
        assert!(units <= 0 && milli <= 0, "{text:?}: {units} units, {milli} thousandths");
    } else {
        assert!(units >= 0 && milli >= 0, "{text:?}: {units} units, {milli} thousandths");
        // rounded up, as upstream: a thousandth of a unit is a unit, and both stop at their largest number
        assert!(milli >= units || milli == i64::MAX, "{text:?}: {units} units, {milli} thousandths");
        assert_eq!(quantity.is_zero(), milli == 0 && units == 0, "{text:?}");
    }
}

fn check_threshold(text: &str) {
    let Some(threshold) = Threshold::parse(text) else { return };
    for capacity in [0, 1, 1000, 8 << 30, u64::MAX] {
        let amount = threshold.amount(capacity);
        if text.ends_with('%') {
            assert!(amount.is_none_or(|amount| amount <= capacity), "{text:?} of {capacity} is {amount:?}");
        }
    }
    // a text is valid alone exactly if it is valid in its field
    let quoted = serde_json::Value::from(text);
    let text = format!(
        "{{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"kind\":\"KubeletConfiguration\",\"evictionHard\":{{\"memory.available\":{quoted}}}}}"
    );
    let base = LayerText { origin: Origin::File("/f".into()), text: text.into_bytes() };
    let found = effective(&LocalLayers { base: Some(base), ..LocalLayers::default() }, None);
    // the node's memory is unknown here, so only a percentage can be more than half of it
    let held = if threshold.is_beyond_half(0) { Threshold::parse("50%") } else { Some(threshold) };
    match found {
        Ok(found) => assert_eq!(Some(found.config.eviction_hard.memory_available), held),
        Err(error) => panic!("a threshold that is refused in its field: {error}"),
    }
}

fn check_time(text: &str) {
    let Ok(time) = Timestamp::parse(text) else { return };
    for shown in [time.rfc3339(), time.rfc3339_micros()] {
        let again = Timestamp::parse(&shown).map(|again| again.micros() / 1_000_000);
        assert_eq!(again, Ok(time.micros() / 1_000_000), "{text:?} is shown as {shown:?}");
    }
    assert_eq!(Timestamp::parse(&time.rfc3339_micros()), Ok(time), "{text:?}");
}
