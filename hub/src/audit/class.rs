//! Which of the logs a line belongs to, and what each log may cost.
//!
//! Always holds: a class has a file, a queue and a budget of its own, so nothing that one class of callers
//! does can push out the lines of another. Within a log each identity has a quota; an administrator's is
//! large, and counted for each network it connects from: a program that uses people's credential must not
//! push out the record of what those people did, and even from any number of networks it cannot do so within
//! a day. Pure.

use kedge_hub_core::identity::Identity;

use super::entry::Entry;
use super::quota::network;
use crate::bucket::Rate;

const KIB: usize = 1024;
const MIB: u64 = 1024 * 1024;

/// The groups of actors that the logs keep apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Changes that administrators made or tried to make, and those that other people made; certificates and
    /// tokens that the hub signed, and commands run on this machine.
    Administration,
    /// Reads by administrators and other people that are audited: a program that reads often must not push
    /// out the changes of people.
    Reads,
    /// Successful requests of nodes and programs.
    Others,
    /// Requests of others that were refused, and the counts of unauthenticated and excessive requests.
    Refused,
}

/// The room that a class has on disk and in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// In the data directory; rotated files have a number after it.
    pub(crate) file: &'static str,
    /// A larger file is rotated.
    pub(crate) file_bytes: u64,
    /// Lines that wait for the disk, at most.
    pub(crate) waiting_bytes: usize,
    /// Bytes that one identity may write: at once after hours of silence, and on average.
    pub(crate) quota: Rate,
    /// A shared limit on top of all quotas, for classes where one identity can have any number of quotas.
    pub(crate) all: Option<Rate>,
}

/// First lines of an identity: about thirty. A thousand stolen nodes fill four of the five files of a log
/// with them. After that 85 KiB a day: one identity needs 8 months to push out what others did, a thousand
/// need six hours.
const SMALL: Rate = Rate { burst: 16.0 * 1024.0, per_sec: 1.0 };
/// Thirteen thousand changes at once (all nodes of a large fleet), and as many a day: to push out what others
/// did takes four days.
const LARGE: Rate = Rate { burst: 8.0 * 1024.0 * 1024.0, per_sec: 100.0 };
/// All networks of all administrators together. An administrator may connect from any number of them; even
/// then older lines stay for a day: 16 of the 40 MiB are left, and 200 bytes a second take 23 hours to fill
/// them. Certificates that the hub signs meanwhile are added to that, with a quota of their own ([`LARGE`]).
const ALL_LARGE: Rate = Rate { burst: 24.0 * 1024.0 * 1024.0, per_sec: 200.0 };
/// The same for the log of reads, which is a quarter as large.
const LARGE_READS: Rate = Rate { burst: LARGE.burst / 4.0, per_sec: LARGE.per_sec / 4.0 };
const ALL_LARGE_READS: Rate = Rate { burst: ALL_LARGE.burst / 4.0, per_sec: ALL_LARGE.per_sec / 4.0 };

/// All classes, in the order of the enumeration.
pub(crate) const CLASSES: [Budget; 4] = [
    Budget {
        file: "audit.log",
        // with the rotated ones 40 MiB: sixty thousand changes
        file_bytes: 8 * MIB,
        // room for the deletions of an administrator while the disk is full: one or two thousand lines
        waiting_bytes: 1024 * KIB,
        quota: LARGE,
        all: Some(ALL_LARGE),
    },
    Budget {
        file: "audit-reads.log",
        file_bytes: 2 * MIB,
        waiting_bytes: 128 * KIB,
        quota: LARGE_READS,
        all: Some(ALL_LARGE_READS),
    },
    Budget {
        file: "audit-others.log",
        // more than the first lines of a thousand identities take together
        file_bytes: 4 * MIB,
        waiting_bytes: 128 * KIB,
        quota: SMALL,
        // there are only as many identities as the hub has signed
        all: None,
    },
    Budget {
        file: "audit-refused.log",
        file_bytes: 4 * MIB,
        waiting_bytes: 128 * KIB,
        quota: SMALL,
        all: None,
    },
];

impl Class {
    /// The class of a request by its credential (not by whom it impersonates), and by how it ended.
    pub(crate) fn of(caller: &Identity, reads: bool, code: u16) -> Class {
        match (caller.is_admin(), reads) {
            (true, false) => Class::Administration,
            (true, true) => Class::Reads,
            (false, _) if code >= 400 => Class::Refused,
            // an administrator with a name has no group, only roles
            (false, false) if caller.is_person() => Class::Administration,
            (false, true) if caller.is_person() => Class::Reads,
            (false, _) => Class::Others,
        }
    }

    /// The key of the quota that a line of this class uses.
    pub(super) fn whose(self, entry: &Entry<'_>) -> String {
        let user = &entry.user.user;
        match (self, entry.from) {
            // one certificate serves people and programs; the network tells them apart, and nobody can choose
            // it
            (Class::Administration | Class::Reads, Some(from)) => {
                format!("{user} from {} with {}", network(from), entry.user.credential)
            }
            _ => user.clone(),
        }
    }

    pub(crate) const fn budget(self) -> &'static Budget {
        &CLASSES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_classes() {
        let found = [Class::Administration, Class::Reads, Class::Others, Class::Refused]
            .map(|class| (class.budget().file, class.budget().quota.burst > 1e6));
        let expect = [
            ("audit.log", true),
            ("audit-reads.log", true),
            ("audit-others.log", false),
            ("audit-refused.log", false),
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
        let jane = Identity::new("jane", &["system:authenticated"]);
        check(&jane, false, 201, Class::Administration);
        check(&jane, true, 200, Class::Reads);
        check(&jane, false, 403, Class::Refused);
        let program = Identity::new("system:serviceaccount:a:b", &[]);
        check(&program, false, 200, Class::Others);
        let anonymous = Identity::new("system:anonymous", &["system:unauthenticated"]);
        check(&anonymous, true, 200, Class::Others);
    }
}
