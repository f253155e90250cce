//! Which of the logs a line belongs to, and what each log may cost.
//!
//! Always holds: a class has a file, a queue and a budget of its own, so nothing that one class of callers does can push out the lines
//! of another. Administrators and the hub itself are trusted with their log: an administrator can delete everything anyway.
//! Every other identity has a quota. Pure.

use kedge_hub_core::identity::Identity;

const KIB: usize = 1024;
const MIB: u64 = 1024 * 1024;

/// Who did a thing, as far as the logs distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// What administrators changed or tried to change, what the hub signed, what its commands did on this machine.
    Administration,
    /// Reads by administrators that are audited: a program that reads often must not push out the changes of people.
    Reads,
    /// What all others did.
    Others,
    /// What was refused to others, and the counts of unauthenticated and excessive requests.
    Refused,
}

/// What a class has on disk and in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// In the data directory; rotated files have a number after it.
    pub(crate) file: &'static str,
    /// A larger file is rotated.
    pub(crate) file_bytes: u64,
    /// Lines that wait for the disk, at most.
    pub(crate) waiting_bytes: usize,
    /// Whether each identity has a quota.
    pub(crate) quota: bool,
}

/// All classes, in the order of the enumeration.
pub(crate) const CLASSES: [Budget; 4] = [
    Budget {
        file: "audit.log",
        // with the rotated ones 40 MiB: sixty thousand changes
        file_bytes: 8 * MIB,
        // what an administrator deletes while the disk is full: one or two thousand lines
        waiting_bytes: 1024 * KIB,
        quota: false,
    },
    Budget { file: "audit-reads.log", file_bytes: 2 * MIB, waiting_bytes: 128 * KIB, quota: false },
    Budget {
        file: "audit-others.log",
        // more than the first lines of a thousand identities take together
        file_bytes: 4 * MIB,
        waiting_bytes: 128 * KIB,
        quota: true,
    },
    Budget { file: "audit-refused.log", file_bytes: 4 * MIB, waiting_bytes: 128 * KIB, quota: true },
];

impl Class {
    /// The class of a request by its credential (not by whom it impersonates), and by how it ended.
    pub(crate) fn of(caller: &Identity, reads: bool, code: u16) -> Class {
        match (caller.is_admin(), reads) {
            (true, false) => Class::Administration,
            (true, true) => Class::Reads,
            (false, _) if code >= 400 => Class::Refused,
            (false, _) => Class::Others,
        }
    }

    pub(crate) fn budget(self) -> &'static Budget {
        &CLASSES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_classes() {
        let found = [Class::Administration, Class::Reads, Class::Others, Class::Refused]
            .map(|class| (class.budget().file, class.budget().quota));
        let expect = [
            ("audit.log", false),
            ("audit-reads.log", false),
            ("audit-others.log", true),
            ("audit-refused.log", true),
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn class_depends_on_the_credential_and_the_outcome() {
        let admin = Identity::new("admin", &["system:masters"]);
        let node = Identity::new("system:node:a", &["system:nodes"]);
        let check =
            |caller, reads, code, expect| assert_eq!(Class::of(caller, reads, code), expect, "{code}");
        check(&admin, false, 200, Class::Administration);
        check(&admin, false, 409, Class::Administration);
        check(&admin, true, 200, Class::Reads);
        check(&admin, true, 404, Class::Reads);
        check(&node, false, 201, Class::Others);
        check(&node, true, 200, Class::Others);
        check(&node, false, 403, Class::Refused);
        check(&node, true, 400, Class::Refused);
    }
}
