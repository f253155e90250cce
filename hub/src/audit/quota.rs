//! The limit on the lines that one identity may write into a log, and the counts of lines beyond it.
//!
//! Always holds: memory is bounded whatever callers do; every omitted line is counted, and the counts are
//! written to the log once a minute. Reads no clock. Left to others: writing (`super`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use super::class::Budget;
use crate::bucket::Bucket;

/// Identities with a quota of their own, 100 bytes each; further ones share one.
const IDENTITIES: usize = 16 * 1024;
/// The key of the quota that further identities share.
const SHARED: &str = "";
/// Callers whose refused requests are counted separately, per minute; those of all others are one number.
const COUNTED: usize = 1024;
/// Most of those that may be without a credential: such callers can be any number.
const COUNTED_ANONYMOUS: usize = COUNTED / 2;
/// Callers that get a line of counts each minute, those with the most requests: 4 MiB a day at most.
const LISTED: usize = 8;
/// Distinct acts that the counts of omitted lines keep within a minute, over all identities: some 100 KiB.
const ACTS: usize = 1024;
/// Distinct acts of one identity: it chooses the words of its refused requests, and must not take the room of
/// others.
const ACTS_OF_ONE: usize = ACTS / 32;
/// Acts of one identity that are listed in the log, the most frequent ones.
const ACTS_LISTED: usize = 8;

/// A line that a caller wants to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) whose: &'a str,
    pub(super) act: &'a str,
    pub(super) bytes: usize,
    /// True for an act of the hub.
    pub(super) is_own: bool,
    /// Number of requests that the line summarizes.
    pub(super) requests: u64,
}

/// The quotas of one log.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    of: HashMap<Box<str>, Quota>,
    /// The remaining bytes of all identities together, if the log has such a limit.
    all: Option<Bucket>,
    /// Number of omitted lines, by identity and act.
    acts: HashMap<(Box<str>, Box<str>), u64>,
}

#[derive(Debug)]
struct Quota {
    bytes: Bucket,
    omitted: u64,
    /// Distinct acts of this identity in `Quotas::acts`.
    acts: usize,
}

impl Quota {
    fn full(budget: &Budget, now: Instant) -> Quota {
        Quota { bytes: Bucket::full(budget.quota, now), omitted: 0, acts: 0 }
    }

    /// Takes bytes, also from the common rest, unless the line is the hub's own: no caller may keep those
    /// out. An identity must leave at least as much of the common rest as it has taken itself: so the next
    /// one finds some, whatever earlier ones did, and identities that wrote little go before those that wrote
    /// much.
    fn take(&mut self, budget: &Budget, all: &mut Option<Bucket>, line: &Wanted<'_>, now: Instant) -> bool {
        let (own, bytes) = (self.bytes.at(budget.quota, now), line.bytes as f64);
        let Some(rate) = budget.all.filter(|_| !line.is_own) else { return own.take(bytes) };
        let all = all.get_or_insert_with(|| Bucket::full(rate, now)).at(rate, now);
        let taken = budget.quota.burst - own.left();
        taken + bytes <= all.left() - bytes && own.take(bytes) && all.take(bytes)
    }
}

impl Quotas {
    /// Takes the bytes of a line from the quota of a user; `false`: not enough are left, and the line is
    /// counted instead, by its act.
    pub(super) fn take(&mut self, budget: &Budget, line: &Wanted<'_>, now: Instant) -> bool {
        let Wanted { whose: user, act, is_own, requests, .. } = *line;
        let is_known = is_own || self.of.len() < IDENTITIES || self.of.contains_key(user);
        let user = if is_known { user } else { SHARED };
        let quota = match self.of.get_mut(user) {
            Some(quota) => quota,
            None => self.of.entry(user.into()).or_insert_with(|| Quota::full(budget, now)),
        };
        let fits = quota.take(budget, &mut self.all, line, now);
        if !fits {
            quota.omitted += requests;
            let (key, all) = ((user.into(), act.into()), self.acts.len());
            match self.acts.get_mut(&key) {
                Some(times) => *times += requests,
                None if all < ACTS && quota.acts < ACTS_OF_ONE => {
                    quota.acts += 1;
                    self.acts.insert(key, requests);
                }
                None => {}
            }
        }
        fits
    }

    /// The lines omitted since the last call: their number and their identities. Forgets identities whose
    /// quota is whole again.
    pub(super) fn omitted(&mut self, budget: &Budget, now: Instant) -> Option<(u64, String)> {
        let mut of: Vec<(u64, Box<str>)> = Vec::new();
        self.of.retain(|user, quota| {
            let is_whole = quota.bytes.at(budget.quota, now).left() >= budget.quota.burst;
            let omitted = std::mem::take(&mut quota.omitted);
            quota.acts = 0;
            if omitted > 0 {
                of.push((omitted, user.clone()));
            }
            !is_whole
        });
        of.sort_unstable_by(|one, other| other.cmp(one));
        let all = of.iter().map(|(count, _)| count).sum();
        let mut acts: BTreeMap<Box<str>, Vec<(u64, Box<str>)>> = BTreeMap::new();
        for ((user, act), count) in self.acts.drain() {
            acts.entry(user).or_default().push((count, act));
        }
        let shown: Vec<String> = of
            .iter()
            .take(LISTED)
            .map(|(count, user)| format!("{count} of {user:?}{}", listed(acts.remove(user))))
            .collect();
        let more = of.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(", and of {more} more") } else { String::new() };
        (all > 0).then(|| (all, format!("{}{more}", shown.join(", "))))
    }
}

/// The acts of an identity, most often done first.
fn listed(acts: Option<Vec<(u64, Box<str>)>>) -> String {
    let Some(mut acts) = acts else { return String::new() };
    acts.sort_unstable_by(|one, other| other.cmp(one));
    let more = if acts.len() > ACTS_LISTED { ", ..." } else { "" };
    let shown: Vec<String> =
        acts.iter().take(ACTS_LISTED).map(|(count, act)| format!("{count} {act}")).collect();
    format!(" ({}{more})", shown.join(", "))
}

/// An address, or the first one of a /64 network of IPv6.
pub(super) fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// The counts of requests that get no line of their own, by their source.
#[derive(Debug, Default)]
pub(super) struct Counts {
    of: HashMap<Source, u64>,
    rest: u64,
}

/// The origin of counted requests, and how they were answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Source {
    /// The [`network`] that they came from.
    pub(super) from: IpAddr,
    /// Empty without a credential.
    pub(super) user: Box<str>,
    pub(super) code: u16,
}

impl Source {
    pub(super) fn new(from: IpAddr, user: &str, code: u16) -> Source {
        Source { from: network(from), user: user.into(), code }
    }
}

impl Counts {
    pub(super) fn add(&mut self, source: Source) {
        let room = if source.user.is_empty() { COUNTED_ANONYMOUS } else { COUNTED };
        if self.of.len() < room || self.of.contains_key(&source) {
            *self.of.entry(source).or_default() += 1;
        } else {
            self.rest += 1;
        }
    }

    /// Returns the sources since the last call, and the number of all other requests: sources with a
    /// credential first, for anyone can make requests without one, and within each group those with the most
    /// requests first.
    pub(super) fn take(&mut self) -> (Vec<(Source, u64)>, u64) {
        let mut all: Vec<(Source, u64)> = self.of.drain().collect();
        let order = |(source, count): &(Source, u64)| (source.user.is_empty(), Reverse(*count));
        all.sort_unstable_by(|one, other| order(one).cmp(&order(other)).then_with(|| one.0.cmp(&other.0)));
        let others = all.split_off(all.len().min(LISTED));
        let rest = std::mem::take(&mut self.rest) + others.iter().map(|(_, count)| count).sum::<u64>();
        (all, rest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::class::Class;
    use super::*;

    const LINE: usize = 512;
    const BUDGET: &Budget = Class::Others.budget();

    fn line<'a>(whose: &'a str, act: &'a str) -> Wanted<'a> {
        Wanted { whose, act, bytes: LINE, is_own: false, requests: 1 }
    }

    const BURST_LINES: u64 = BUDGET.quota.burst as u64 / LINE as u64;

    /// Number of lines that a user may write of the `tried` ones at one moment.
    fn written(quotas: &mut Quotas, user: &str, tried: u64, now: Instant) -> u64 {
        (0..tried).filter(|_| quotas.take(BUDGET, &line(user, "patch nodes 200"), now)).count() as u64
    }

    #[test]
    fn identity_writes_its_quota_and_the_rest_is_counted() {
        let start = Instant::now();
        let mut quotas = Quotas::default();
        assert_eq!(written(&mut quotas, "a", 100, start), BURST_LINES);
        assert_eq!(written(&mut quotas, "b", 1, start), 1, "another identity has its own");
        assert_eq!(
            quotas.omitted(BUDGET, start),
            Some((100 - BURST_LINES, format!("{0} of \"a\" ({0} patch nodes 200)", 100 - BURST_LINES)))
        );
        assert_eq!(quotas.omitted(BUDGET, start), None, "counted once");
        let later = start + Duration::from_secs(3 * LINE as u64);
        assert_eq!(written(&mut quotas, "a", 100, later), 3, "a byte a second");
        // forgotten when it is whole again
        quotas.omitted(BUDGET, later);
        quotas.omitted(BUDGET, later + Duration::from_secs(BUDGET.quota.burst as u64));
        assert!(quotas.of.is_empty());
    }

    #[test]
    fn thousand_identities_do_not_fill_a_log_at_once() {
        let now = Instant::now();
        let mut quotas = Quotas::default();
        let lines: u64 = (0..1000).map(|node| written(&mut quotas, &node.to_string(), 200, now)).sum();
        let log = 4 * Class::Others.budget().file_bytes;
        assert!(lines * LINE as u64 <= log, "{lines}");
    }

    /// Each network of an administrator has a quota: together they have another one.
    #[test]
    fn many_networks_leave_a_log_to_others_for_a_day() {
        for class in [Class::Administration, Class::Reads] {
            let (budget, start) = (class.budget(), Instant::now());
            let mut quotas = Quotas::default();
            // lines as small as the smallest real one
            let mut writes = |from: &str, now| {
                let line = line(from, "create x 201");
                (0..100_000).take_while(|_| quotas.take(budget, &line, now)).count() * LINE
            };
            let mut taken = 0;
            for network in 0..12 {
                let found = writes(&network.to_string(), start);
                assert!(found > 0, "{class:?}: network {network} finds nothing");
                taken += found;
            }
            taken += (12..1000).map(|network| writes(&network.to_string(), start)).sum::<usize>();
            let log = 5 * budget.file_bytes as usize;
            assert!(taken <= log * 3 / 5, "{class:?}: {taken} of {log} at once");
            // the bytes refilled meanwhile go to identities that have written little
            let day = start + Duration::from_secs(20 * 3600);
            assert_eq!(writes("0", start + Duration::from_secs(60)), 0, "{class:?}");
            assert!(writes("person", start + Duration::from_secs(60)) > 0, "{class:?}");
            taken += (0..1000).map(|network| writes(&network.to_string(), day)).sum::<usize>();
            assert!(taken < log, "{class:?}: {taken} of {log} within a day");
        }
    }

    #[test]
    fn callers_keep_no_line_of_the_hub_out() {
        let (budget, now) = (Class::Administration.budget(), Instant::now());
        let mut quotas = Quotas::default();
        // takes everything that is left, from more networks than have a quota of their own
        for network in 0..IDENTITIES + 100 {
            let network = network.to_string();
            (0..100_000).find(|_| !quotas.take(budget, &line(&network, "create x 201"), now));
        }
        assert!(!quotas.take(budget, &line("person", "create x 201"), now));
        let own = Wanted { is_own: true, ..line("hub", "sign y 200") };
        let written = (0..100_000).take_while(|_| quotas.take(budget, &own, now)).count();
        assert_eq!(written, budget.quota.burst as usize / LINE);
    }

    #[test]
    fn identities_beyond_the_table_share_a_quota() {
        let now = Instant::now();
        let mut quotas = Quotas::default();
        for user in 0..IDENTITIES {
            assert!(quotas.take(BUDGET, &line(&user.to_string(), "patch nodes 200"), now));
        }
        let shared: u64 = (0..100).map(|user| written(&mut quotas, &format!("late-{user}"), 1, now)).sum();
        assert_eq!(shared, BURST_LINES);
        assert_eq!(quotas.of.len(), IDENTITIES + 1);
        assert!(quotas.take(BUDGET, &line("5", "patch nodes 200"), now), "an earlier one keeps its own");
        let (all, whose) = quotas.omitted(BUDGET, now).unwrap();
        assert_eq!(
            (all, whose),
            (100 - BURST_LINES, format!("{0} of \"\" ({0} patch nodes 200)", 100 - BURST_LINES))
        );
    }

    #[test]
    fn identity_leaves_as_much_as_it_has_taken() {
        let rate = |burst: f64| crate::bucket::Rate { burst, per_sec: 0.0 };
        let budget = Budget { quota: rate(1000.0), all: Some(rate(1000.0)), ..*BUDGET };
        let (mut quotas, now) = (Quotas::default(), Instant::now());
        let lines = ["a", "b", "c", "d", "e"].map(|whose| {
            let line = Wanted { bytes: 100, ..line(whose, "x") };
            (0..20).take_while(|_| quotas.take(&budget, &line, now)).count()
        });
        // of 10, 5, 3, 2 and 1
        assert_eq!(lines, [5, 2, 1, 1, 0]);
    }

    #[test]
    fn used_quota_is_kept_over_the_minutes() {
        let (mut quotas, now) = (Quotas::default(), Instant::now());
        assert_eq!(written(&mut quotas, "a", BURST_LINES, now), BURST_LINES);
        assert_eq!(quotas.omitted(BUDGET, now), None);
        assert_eq!(written(&mut quotas, "a", 1, now), 0);
    }

    #[test]
    fn what_is_not_listed_is_numbered() {
        let now = Instant::now();
        for (identities, acts) in [(LISTED, ACTS_LISTED), (LISTED + 2, ACTS_LISTED + 1)] {
            let mut quotas = Quotas::default();
            for user in 0..identities {
                let user = user.to_string();
                written(&mut quotas, &user, BURST_LINES, now);
                (0..acts)
                    .for_each(|act| assert!(!quotas.take(BUDGET, &line(&user, &format!("act-{act}")), now)));
            }
            let (_, whose) = quotas.omitted(BUDGET, now).unwrap();
            let more = identities > LISTED;
            assert_eq!(whose.ends_with(", and of 2 more"), more, "{whose}");
            assert_eq!(whose.contains(", and of"), more, "{whose}");
            assert_eq!(whose.matches(", ...)").count(), if more { LISTED } else { 0 }, "{whose}");
        }
    }

    #[test]
    fn acts_beyond_a_quota_are_named() {
        let now = Instant::now();
        let mut quotas = Quotas::default();
        written(&mut quotas, "a", BURST_LINES, now);
        for (times, act) in
            [(30, "patch nodes 200"), (1, "get secrets 200"), (2, "create serviceaccounts/token 201")]
        {
            (0..times).for_each(|_| assert!(!quotas.take(BUDGET, &line("a", act), now)));
        }
        let whose = "33 of \"a\" (30 patch nodes 200, 2 create serviceaccounts/token 201, 1 get secrets 200)";
        assert_eq!(quotas.omitted(BUDGET, now), Some((33, whose.to_owned())));
        for number in 0..2 * ACTS {
            assert!(!quotas.take(BUDGET, &line("a", &format!("get x/{number} 200")), now));
        }
        assert_eq!(quotas.acts.len(), ACTS_OF_ONE);
        // and takes no room of others, however many identities there are
        for number in 0..2 * ACTS {
            let whose = format!("b{number}");
            written(&mut quotas, &whose, BURST_LINES, now);
            (0..=number % 2).for_each(|_| assert!(!quotas.take(BUDGET, &line(&whose, "get y 403"), now)));
        }
        assert_eq!(quotas.acts.len(), ACTS);
        let (all, whose) = quotas.omitted(BUDGET, now).unwrap();
        assert_eq!((all, whose.matches(" 1 get x/").count()), (5 * ACTS as u64, ACTS_LISTED - 1), "{whose}");
        assert!(whose.contains("2 of \"b99\" (2 get y 403)"), "{whose}");
        assert!(!quotas.take(BUDGET, &line("a", "get z 200"), now));
        assert_eq!(quotas.acts.len(), 1, "a new minute");
    }

    #[test]
    fn busiest_sources_are_listed_and_all_requests_counted() {
        let mut counts = Counts::default();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let mut added = 0;
        for number in 0..2 * COUNTED as u32 {
            let times = if number < 10 { 20 - number } else { 1 };
            added += u64::from(times);
            (0..times).for_each(|_| counts.add(Source::new(address(number), "", 401)));
        }
        let (listed, rest) = counts.take();
        let found: Vec<_> = listed.iter().map(|(source, count)| (source.from, *count)).collect();
        let expect: Vec<_> =
            (0..LISTED as u32).map(|number| (address(number), u64::from(20 - number))).collect();
        assert_eq!(found, expect);
        assert_eq!(listed.iter().map(|(_, count)| count).sum::<u64>() + rest, added);
        assert_eq!(counts.take(), (Vec::new(), 0));
    }

    #[test]
    fn anonymous_sources_hide_no_credential() {
        let mut counts = Counts::default();
        for number in 0..2 * COUNTED as u32 {
            let from = IpAddr::from(number.to_be_bytes());
            (0..3).for_each(|_| counts.add(Source::new(from, "", 401)));
        }
        assert_eq!(counts.of.len(), COUNTED_ANONYMOUS);
        counts.add(Source::new(IpAddr::from([192, 0, 2, 1]), "admin", 401));
        // a known source is still counted
        let known = Source::new(IpAddr::from([0, 0, 0, 1]), "", 401);
        let before = counts.of[&known];
        counts.add(known.clone());
        assert_eq!(counts.of[&known], before + 1);
        let (listed, rest) = counts.take();
        assert_eq!((&*listed[0].0.user, listed[0].1), ("admin", 1));
        assert_eq!(listed.iter().map(|(_, count)| count).sum::<u64>() + rest, 6 * COUNTED as u64 + 2);
    }

    #[test]
    fn sources_differ_by_network_user_and_status() {
        let of = |from: &str, user, code| Source::new(from.parse().unwrap(), user, code);
        assert_eq!(of("2001:db8::1", "", 401), of("2001:db8::2:1", "", 401));
        assert_ne!(of("2001:db8::1", "", 401), of("2001:db8:0:1::1", "", 401));
        assert_eq!(of("::ffff:1.2.3.4", "", 401), of("1.2.3.4", "", 401));
        assert_ne!(of("1.2.3.5", "", 401), of("1.2.3.4", "", 401));
        assert_ne!(of("1.2.3.4", "", 401), of("1.2.3.4", "", 429));
        assert_ne!(of("1.2.3.4", "a", 401), of("1.2.3.4", "b", 401));
    }
}
