//! Hostile text: whatever the bytes, reading them ends in a configuration or an error, within limits, and
//! never in a panic. The mutations are the same every time; the seed is in the code.

use kedge_core::kubelet::{LayerText, LocalLayers, MAX_TAINTS, Origin, canonical_overrides, effective, yaml};

const SEEDS: [&str; 5] = [
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nconfigTrialDuration: 1h10m\ncrashLoopThreshold: 3\nlogging: {verbosity: 2, flushFrequency: 5s}\nsystemReserved: {cpu: 1500m, memory: 1.5Gi}\nevictionHard:\n  memory.available: \"10%\"\n  nodefs.available: 1Gi\n",
    "{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"kind\":\"KubeletConfiguration\",\"maxPods\":110,\"registerWithTaints\":[{\"key\":\"a\",\"value\":\"b\",\"effect\":\"NoSchedule\"}],\"healthzBindAddress\":\"::1\"}",
    "# comment\n%YAML 1.2\n---\nkind: &k KubeletConfiguration\napiVersion: !!str kubelet.config.k8s.io/v1beta1\nclusterDNS:\n- *k\n- |\n  block\n- >-\n  folded\n   text\nfeatureGates: ? a\n...\n",
    "a: [1, 0x1F, 0o17, 0b1, 1e3, -.5, +7, .inf, ~, yes, 'q', \"\\u0041\\x41\\n\", {b: c, d: [e]}]\n? complex\n: value\n",
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nlogging: ~\nauthentication: {x509: {clientCAFile: /a}}\nshutdownGracePeriodByPodPriority:\n- priority: 1\n  shutdownGracePeriodSeconds: 19\nnodeStatusUpdateFrequency: 99999999999999999999h\n",
];

/// Bytes that mean something to a YAML reader, and some that should not.
const SPICE: &[u8] = b"{}[]:,-?&*!|>'\"%@`#\n\r\t \\~<=./0123456789eExX_+ayn\x00\x7f\x80\xc3\xa9\xff";

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }

    fn mutate(&mut self, text: &mut Vec<u8>) {
        let at = self.roll(text.len() + 1);
        match self.roll(12) {
            0..=2 => text.insert(at, SPICE[self.roll(SPICE.len())]),
            3..=5 if at < text.len() => drop(text.remove(at)),
            6..=8 if at < text.len() => text[at] = SPICE[self.roll(SPICE.len())],
            9 | 10 => {
                let end = (at + self.roll(40)).min(text.len());
                let piece = text[at.min(end)..end].to_vec();
                let to = self.roll(text.len() + 1);
                text.splice(to..to, piece);
            }
            _ => text.truncate(at),
        }
    }
}

fn read(text: Vec<u8>) -> bool {
    let layer = LayerText { origin: Origin::DropIn("/d".to_owned()), text };
    let layers = LocalLayers { drop_ins: vec![layer], ..LocalLayers::default() };
    let found = effective(&layers, None);
    let overrides = canonical_overrides(&layers);
    match found {
        Ok(found) => {
            assert!(overrides.is_ok());
            assert_eq!(
                yaml::parse(found.to_text().as_bytes()).expect("our own text").to_json(),
                found.object
            );
            assert!(found.config.node_lease_duration_secs > 0);
            assert!(found.config.trial.crash_loop_threshold <= 10);
            assert!(found.config.register_with_taints.len() <= MAX_TAINTS);
            true
        }
        Err(error) => {
            assert!(!error.problems.is_empty() && error.problems.len() <= 20);
            assert!(error.problems.iter().all(|problem| !problem.message.is_empty()));
            let longest = error.problems.iter().map(|problem| problem.message.len()).max();
            assert!(longest < Some(600), "{error}");
            false
        }
    }
}

#[test]
fn mutated_texts_do_not_panic() {
    assert!(read(SEEDS[0].into()) && read(SEEDS[1].into()));
    let mut dice = Dice(3983);
    let (mut good, mut bad) = (0, 0);
    for round in 0..10_000 {
        let mut text = SEEDS[round % SEEDS.len()].as_bytes().to_vec();
        for _ in 0..=dice.roll(4) {
            dice.mutate(&mut text);
        }
        *(if read(text) { &mut good } else { &mut bad }) += 1;
    }
    // enough results of both kinds, or the mutations test nothing
    assert!(good > 50 && bad > 1_000, "{good} good, {bad} bad");
}

#[test]
fn random_bytes_do_not_panic() {
    let mut dice = Dice(1);
    for length in 1..3_000 {
        let text: Vec<u8> = (0..length % 97).map(|_| SPICE[dice.roll(SPICE.len())]).collect();
        read(text);
    }
}

/// The agent's threads have small stacks, and reading, merging and dropping a tree recurse.
#[test]
#[allow(clippy::disallowed_types, reason = "a thread is how a test gets a small stack")]
fn deepest_text_fits_a_small_stack() {
    const STACK_BYTES: usize = 256 * 1024;
    let deepest = || {
        let nested = yaml::MAX_DEPTH - 2;
        let header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let objects = format!("{header}logging: {}1{}\n", "{a: ".repeat(nested), "}".repeat(nested));
        let lists = format!("{header}clusterDNS: {}1{}\n", "[".repeat(nested), "]".repeat(nested));
        assert!(!read(objects.into()) && !read(lists.into()));
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(deepest);
    thread.expect("a thread").join().expect("it neither overflows nor fails");
}

#[test]
fn texts_of_the_largest_size_do_not_panic() {
    let header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let fill = |piece: &str| {
        format!("{header}{}", piece.repeat((yaml::MAX_TEXT_BYTES - header.len()) / piece.len()))
    };
    assert!(read(fill("# comment\n").into_bytes()) && read(fill("\t\n").into_bytes()));
    for piece in [
        "featureGates: {a: yes}\n",
        "- [\n",
        "a: {",
        "'",
        "\"\\u0041",
        "&a ",
        "*a ",
        "!!str ",
        "? ",
        ": ",
        "- ",
        "|\n ",
        "%",
        "[[[[",
        "a:\n",
    ] {
        assert!(!read(fill(piece).into_bytes()), "{piece}");
    }
    let key_per_line: String = (0..200_000).map(|index| format!("k{index}: 1\n")).collect();
    assert!(!read(format!("{header}featureGates:\n{key_per_line}")[..yaml::MAX_TEXT_BYTES].into()));
}
