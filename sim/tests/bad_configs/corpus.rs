//! The bad payloads and objects: archives below `corpus/`, each case with the texts that an operator reads
//! about it.
//!
//! A case is an entry with its name, a `drop-in` entry if the node has one, and an `expect` entry. The
//! payloads of `sizes.txt` are generated here, always the same. `KEDGE_GOLDEN=write` rewrites the `expect`
//! entries.

use crate::archive::{Archive, Entry};
use kedge_sim::HEADER;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const PAYLOADS: [&str; 10] = [
    "empty-and-syntax",
    "other-formats",
    "kinds",
    "unknown-fields",
    "types",
    "durations-and-quantities",
    "thresholds",
    "addresses-and-taints",
    "contradictions",
    SIZES,
];
pub(crate) const OBJECTS: [&str; 2] = ["sources", "config-maps"];
const SIZES: &str = "sizes";

const DROP_IN: &str = "drop-in";
const EXPECT: &str = "expect";

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) payload: Vec<u8>,
    /// The drop-in of the node, complete text.
    pub(crate) drop_in: Option<Vec<u8>>,
}

/// The cases of one archive.
pub(crate) struct Corpus {
    path: PathBuf,
    archive: Archive,
}

impl Corpus {
    pub(crate) fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_configs/corpus");
        let path = folder.join(name).with_extension("txt");
        let text = fs::read_to_string(&path).expect("the archive is there");
        Self { path, archive: Archive::read(&text) }
    }

    pub(crate) fn cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for entry in &self.archive.entries {
            match (entry.name.as_str(), cases.last_mut()) {
                (EXPECT, _) => {}
                (DROP_IN, Some(case)) => case.drop_in = Some(entry.bytes()),
                (name, _) => {
                    cases.push(Case { name: name.to_owned(), payload: entry.bytes(), drop_in: None });
                }
            }
        }
        if self.path.file_stem().is_some_and(|stem| stem == SIZES) {
            let generated = generated();
            assert_eq!(cases.len(), generated.len());
            for (case, (name, payload)) in cases.iter_mut().zip(generated) {
                assert_eq!(case.name, name);
                case.payload = payload;
            }
        }
        cases
    }

    /// Compares the texts found for each case, in order, with the expected ones, or writes them.
    pub(crate) fn check(mut self, found: Vec<String>) {
        let write = std::env::var("KEDGE_GOLDEN").is_ok_and(|word| word == "write");
        let expected = self.archive.entries.iter_mut().filter(|entry| entry.name == EXPECT);
        let mut cases = 0;
        for (entry, found) in expected.zip(&found) {
            cases += 1;
            if write {
                entry.set_text(format!("{found}\n"));
            } else {
                difference(&self.path, entry, found);
            }
        }
        assert_eq!(cases, found.len(), "an entry `expect` follows each case");
        if write {
            let text = self.archive.to_text();
            fs::write(&self.path, format!("{}\n", text.trim_end())).expect("the archive can be written");
        }
    }
}

#[track_caller]
fn difference(path: &Path, expect: &Entry, found: &str) {
    let (path, expect) = (path.display(), expect.text().trim_end());
    let found = found.trim_end();
    assert!(found == expect, "{path}:\n found\n{found}\n expect\n{expect}\nreview, then KEDGE_GOLDEN=write");
}

/// The payloads of `sizes.txt`, in its order.
fn generated() -> Vec<(&'static str, Vec<u8>)> {
    let with = |fields: String| format!("{HEADER}{fields}\n").into_bytes();
    let repeat = |piece: &str, count: usize| piece.repeat(count);
    vec![
        ("larger than any ConfigMap", with(format!("providerID: {}", repeat("x", 1_600_000)))),
        ("ten thousand comments and an invalid field", with(repeat("# comment\n", 10_000) + "maxPods: many")),
        ("a hundred thousand spaces, then a bracket", with(repeat(" ", 100_000) + "}")),
        ("a hundred thousand opening brackets", with(format!("clusterDNS: {}", repeat("[", 100_000)))),
        ("a hundred thousand quotes", with(format!("providerID: {}", repeat("'", 100_001)))),
        ("lists a hundred deep", with(format!("clusterDNS: {}{}", repeat("[", 100), repeat("]", 100)))),
        ("objects a hundred deep", with(format!("logging: {}1{}", repeat("{a: ", 100), repeat("}", 100)))),
        ("blocks a hundred deep", with((0..100).map(|depth| repeat(" ", depth) + "logging:\n").collect())),
        ("twenty thousand unknown fields", with((0..20_000).map(|index| format!("k{index}: 1\n")).collect())),
        (
            "twelve thousand feature gates",
            with(
                "featureGates:\n".to_owned()
                    + &(0..12_000).map(|index| format!("  G{index}: true\n")).collect::<String>(),
            ),
        ),
        ("twenty thousand list items", with("clusterDNS:\n".to_owned() + &repeat("- 10.0.0.10\n", 20_000))),
        ("a billion laughs", with(laughs())),
        ("one long text aliased often", with(quadratic())),
        ("ten thousand anchors", with((0..10_000).map(|index| format!("k{index}: &a{index} 1\n")).collect())),
        ("ten thousand documents", with(repeat("---\na: 1\n", 10_000))),
        ("a key of a hundred thousand letters", with(format!("{}: 1", repeat("k", 100_000)))),
        ("ten thousand duplicates", with(repeat("maxPods: 20\n", 10_000))),
        ("number of a hundred thousand digits", with(format!("maxPods: {}", repeat("9", 100_000)))),
        ("a megabyte of random bytes", noise(1_000_000)),
        ("ten thousand random bytes after a valid header", [HEADER.as_bytes(), &noise(10_000)].concat()),
    ]
}

/// Nine levels of ten references each: a billion values if they were copied.
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

/// Bytes that look random but are always the same; not UTF-8.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 3983_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| byte()).collect()
}
