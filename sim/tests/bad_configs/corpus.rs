//! The bad payloads: files below `corpus/`, and those too large or too odd for a file.
//!
//! Always holds: the order is that of the names, and the generated ones are the same every time.

use kedge_sim::HEADER;
use std::fs;
use std::path::{Path, PathBuf};

/// One payload.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) payload: Vec<u8>,
    /// The drop-in of the node, whole text.
    pub(crate) drop_in: Option<Vec<u8>>,
}

pub(crate) fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_configs").join(name)
}

/// All files of a directory but drop-ins, by name.
pub(crate) fn files(name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory(name)).expect("the corpus is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a name").path()).collect();
    paths.retain(|path| path.extension().is_none_or(|extension| extension != "conf"));
    paths.sort();
    paths
}

/// All payloads.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = files("corpus").iter().map(|path| case(path)).collect();
    cases.extend(generated().into_iter().map(|(name, payload)| Case {
        name: name.into(),
        payload,
        drop_in: None,
    }));
    cases
}

fn case(path: &Path) -> Case {
    let name = path.file_stem().expect("it was listed").to_string_lossy().into_owned();
    let payload = fs::read(path).expect("a file of the corpus can be read");
    Case { name, payload, drop_in: fs::read(path.with_extension("conf")).ok() }
}

/// Payloads whose badness is their size, depth or number.
fn generated() -> Vec<(&'static str, Vec<u8>)> {
    let with = |fields: String| format!("{HEADER}{fields}\n").into_bytes();
    let repeat = |piece: &str, count: usize| piece.repeat(count);
    vec![
        ("800-larger-than-any-configmap", with(format!("providerID: {}", repeat("x", 1_600_000)))),
        (
            "801-ten-thousand-comments-and-a-wrong-field",
            with(repeat("# comment\n", 10_000) + "maxPods: many"),
        ),
        ("802-a-hundred-thousand-spaces-then-nonsense", with(repeat(" ", 100_000) + "}")),
        ("803-a-hundred-thousand-opening-brackets", with(format!("clusterDNS: {}", repeat("[", 100_000)))),
        ("804-a-hundred-thousand-quotes", with(format!("providerID: {}", repeat("'", 100_001)))),
        ("805-lists-a-hundred-deep", with(format!("clusterDNS: {}{}", repeat("[", 100), repeat("]", 100)))),
        (
            "806-objects-a-hundred-deep",
            with(format!("logging: {}1{}", repeat("{a: ", 100), repeat("}", 100))),
        ),
        (
            "807-blocks-a-hundred-deep",
            with((0..100).map(|depth| repeat(" ", depth) + "logging:\n").collect()),
        ),
        (
            "808-twenty-thousand-unknown-fields",
            with((0..20_000).map(|index| format!("k{index}: 1\n")).collect()),
        ),
        (
            "809-twelve-thousand-feature-gates",
            with(
                "featureGates:\n".to_owned()
                    + &(0..12_000).map(|index| format!("  G{index}: true\n")).collect::<String>(),
            ),
        ),
        (
            "810-twenty-thousand-list-items",
            with("clusterDNS:\n".to_owned() + &repeat("- 10.0.0.10\n", 20_000)),
        ),
        ("811-a-billion-laughs", with(laughs())),
        ("812-one-long-text-aliased-often", with(quadratic())),
        (
            "813-ten-thousand-anchors",
            with((0..10_000).map(|index| format!("k{index}: &a{index} 1\n")).collect()),
        ),
        ("814-ten-thousand-documents", with(repeat("---\na: 1\n", 10_000))),
        ("815-a-key-of-a-hundred-thousand-letters", with(format!("{}: 1", repeat("k", 100_000)))),
        ("816-ten-thousand-duplicates", with(repeat("maxPods: 20\n", 10_000))),
        ("817-a-hundred-thousand-digits", with(format!("maxPods: {}", repeat("9", 100_000)))),
        ("818-a-megabyte-of-noise", noise(1_000_000)),
        ("819-ten-thousand-noisy-bytes-after-a-good-header", [HEADER.as_bytes(), &noise(10_000)].concat()),
    ]
}

/// Nine levels of ten references each: a thousand million values, if somebody copied them.
fn laughs() -> String {
    let mut text = "featureGates:\n  a0: &a0 [lol]\n".to_owned();
    for level in 1..10 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        text += &format!("  a{level}: &a{level} [{below}]\n");
    }
    text
}

fn quadratic() -> String {
    let references = vec!["*long"; 4_000].join(", ");
    format!("providerID: &long {}\nclusterDNS: [{references}]", "x".repeat(100_000))
}

/// Bytes that look random and are the same every time; no UTF-8.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 3983_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| byte()).collect()
}
