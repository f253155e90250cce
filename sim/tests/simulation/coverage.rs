//! How often each possible thing happened: a simulation that never reaches a rule proves nothing about it.

use std::collections::BTreeMap;

/// Counts by kind and name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coverage(BTreeMap<(&'static str, &'static str), u64>);

/// Everything that a run of many seeds must reach, by kind.
const MUST_REACH: [(&str, &[&str]); 12] = [
    (
        "event",
        &[
            "Start",
            "Tick",
            "StepDone",
            "HostFacts",
            "Answered",
            "Renewed",
            "NodeSeen",
            "NodeGone",
            "ConfigMapSeen",
            "ConfigMapUnchanged",
            "ConfigMapGone",
            "WatchEnded",
            "Contact",
            "BadConfigsRead",
            "Forgive",
            "Reset",
            "Heard",
            "Stop",
            "metadata edited",
            "metadata edited at rest",
            "DiskStalled",
        ],
    ),
    (
        "action",
        &[
            "Read",
            "Write",
            "SetAside",
            "Use",
            "ConsumeEvidence",
            "Sweep",
            "ReadHostFacts",
            "Version",
            "Register",
            "PatchStatus",
            "PatchLabels",
            "PatchNode",
            "PostEvent",
            "Renew",
            "WatchNode",
            "WatchConfigMap",
            "EndConfigMapWatch",
            "Exit",
            "Log",
        ],
    ),
    (
        "transition",
        &[
            "start",
            "adopt",
            "note-source",
            "unassign",
            "trial-progress",
            "promote",
            "silent-trial",
            "wait-over",
            "try-assigned",
            "record-verdict",
            "forgive",
            "clean-exit",
        ],
    ),
    // a power cut before, in the middle of, or after one of its steps
    (
        "cut within",
        &[
            "start",
            "adopt",
            "note-source",
            "unassign",
            "trial-progress",
            "promote",
            "silent-trial",
            "wait-over",
            "try-assigned",
            "record-verdict",
            "forgive",
            "clean-exit",
        ],
    ),
    ("after a cut", &["lost names", "names that nobody acknowledged", "torn files"]),
    ("rule", &["a", "b", "c", "d", "e parse", "e validate", "f", "proven"]),
    (
        "obstacle",
        &["marked", "missing", "assignment-unknown", "verdicts-unknown", "not-recorded", "source-invalid"],
    ),
    ("start case", &["1 local invalid", "2 local", "3 assigned", "4 last-known-good", "5 local instead"]),
    (
        "end",
        &[
            "exit",
            "stop",
            "stop killed at its time limit",
            "exit code",
            "unrecorded",
            "signal",
            "core dump",
            "out of memory",
            "watchdog",
            "watchdog, only the disk",
            "start timeout",
            "power cut",
            "hardware reset",
            "silent reboot",
            "kernel panic",
            "crash, then reboot",
        ],
    ),
    (
        "fault",
        &[
            "cut before a step",
            "cut after a step",
            "cut in the middle of a write",
            "crash before a step",
            "crash after a step",
            "crash in the middle of a write",
            "write error",
            "error though written",
            "disk full",
            "disk full but for the reserve",
            "disk read-only",
            "answer lost",
            "answer 401",
            "answer 410",
            "answer 429",
            "answer 500",
            "answer 503",
            "half-dead network",
            "silent watches",
            "watch expired",
            "another node's Node",
            "hub wiped",
            "hub restored",
            "executed after a restart",
            "stale node",
            "stale config map",
            "wrong uid",
            "clock step",
            "clock set right",
            "boot without a clock",
            "agent upgraded",
            "agent downgraded",
            "link down",
            "damaged record",
            "removed record",
            "unreadable record",
            "forgiven from afar",
            "disk stalled for an hour",
            "disk stalled while an end was recorded",
            "watches that end at once",
            "another server with other objects",
            "several keys with payloads",
            "harmful values pushed",
            "pushed without watches",
            "drop-ins change at each start",
        ],
    ),
    // cases that the invariants do not judge, and why: each is counted, and a run has few
    ("excuse", &["crashes forgotten", "everything forgotten", "last crash doubted", "files touched"]),
    ("state", &["local", "trial", "known-good", "fallback"]),
];

impl Coverage {
    pub(crate) fn hit(&mut self, kind: &'static str, name: &'static str) {
        self.hit_times(kind, name, 1);
    }

    pub(crate) fn hit_times(&mut self, kind: &'static str, name: &'static str, times: u64) {
        *self.0.entry((kind, name)).or_default() += times;
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (key, count) in other.0 {
            *self.0.entry(key).or_default() += count;
        }
    }

    pub(crate) fn count(&self, kind: &'static str, name: &'static str) -> u64 {
        self.0.get(&(kind, name)).copied().unwrap_or_default()
    }

    /// Everything that was never reached.
    pub(crate) fn missing(&self) -> Vec<String> {
        let each = MUST_REACH.iter().flat_map(|(kind, names)| names.iter().map(move |name| (*kind, *name)));
        each.filter(|(kind, name)| self.count(kind, name) == 0)
            .map(|(kind, name)| format!("{kind} {name}"))
            .collect()
    }

    /// One line a kind.
    pub(crate) fn table(&self) -> String {
        let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((kind, name), count) in &self.0 {
            lines.entry(kind).or_default().push(format!("{name} {count}"));
        }
        lines.iter().map(|(kind, counts)| format!("{kind:>10}: {}\n", counts.join(", "))).collect()
    }
}
