//! Two machines with one node's credential: a copied disk, a cloned virtual machine, an image that was made
//! with its identity.
//!
//! A machine names its boot by a number that is random for each boot. Two boots of one machine follow each
//! other, so two that renew the Lease *in turn* are two machines. Always holds: a machine that has rebooted
//! does not count as a double, although its old connection stays open for a while; neither does one whose
//! address has changed. The machine that came first keeps its rights as long as it is known. The memory is
//! bounded, whatever numbers arrive. No wall clock. Leaves to others: who renewed, the condition on the Node,
//! the refusal.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::value::condition;

/// Most machines of one node that are remembered; the one that has been silent for longest gives way.
const MOST: usize = 4;
/// Number of renewals of each of the two machines, since the later one came, that prove two: one renewal of
/// the earlier boot may still have been under way.
const RENEWALS: u8 = 2;
/// Bounds of a machine's period, as far as it can be seen: the longest of its last intervals.
const SHORTEST_PERIOD: Duration = Duration::from_secs(10);
const LONGEST_PERIOD: Duration = Duration::from_secs(600);
/// A machine that has been silent for this many of its periods is not alive.
const PERIODS: u32 = 2;
/// Two machines count as one again when one of them has been silent for this long, and for twice [`PERIODS`]
/// of its periods. A link with losses must not make the condition flap.
const OVER: Duration = Duration::from_secs(120);
/// A silent machine is remembered for this long, and keeps its place before later ones.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// How often the verdict is announced again while it stands: a write of it may have failed, or somebody may
/// have removed it.
const AGAIN: Duration = Duration::from_secs(600);
/// Most characters of a machine id; `/etc/machine-id` has 32.
const ID_CHARS: usize = 64;

/// A boot of a machine.
#[derive(Debug)]
struct Machine {
    boot: u64,
    address: IpAddr,
    /// The machine's id, if it reported one.
    id: Option<Box<str>>,
    last: Duration,
    period: Duration,
    /// Its renewals since the last machine came.
    renewals: u8,
}

impl Machine {
    fn is_silent(&self, now: Duration, for_periods: u32) -> bool {
        now > self.last.saturating_add(self.period.saturating_mul(for_periods))
    }

    fn is_over(&self, now: Duration) -> bool {
        self.is_silent(now, 2 * PERIODS) && now > self.last.saturating_add(OVER)
    }

    /// `10.0.0.7 (machine id 5f3c...)`.
    fn described(&self, stored: Option<(u64, &str)>) -> String {
        let stored = stored.filter(|(boot, _)| *boot == self.boot).map(|(_, id)| id);
        match self.id.as_deref().or(stored) {
            Some(id) => format!("{} (machine id {id})", self.address),
            None => format!("{} (machine id unknown)", self.address),
        }
    }
}

/// The machines that renew the Lease of one node, in the order in which they came.
#[derive(Debug, Default)]
pub struct Machines {
    known: Vec<Machine>,
    verdict: Verdict,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nothing was announced since the hub started.
    #[default]
    Open,
    One,
    /// Two or more; this boot came first. `announced`: when, unless there is news to announce.
    More {
        first: u64,
        announced: Option<Duration>,
    },
}

/// News for the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Two machines are alive: the boots of the first and of the latest other one.
    Two { first: u64, second: u64 },
    /// Only one is.
    One,
}

impl Machines {
    /// Takes an accepted renewal on a connection of this boot. `now` is of a monotonic clock.
    pub fn renewed(&mut self, now: Duration, boot: u64, address: IpAddr) -> Option<News> {
        match self.known.iter_mut().find(|known| known.boot == boot) {
            Some(known) => {
                // an outage counts as a long interval for a while, which does no harm
                let interval = now.saturating_sub(known.last).max(known.period / 2);
                known.period = interval.clamp(SHORTEST_PERIOD, LONGEST_PERIOD);
                (known.address, known.last) = (address, now);
                known.renewals = known.renewals.saturating_add(1);
            }
            None => self.came(now, boot, address),
        }
        self.judge(now)
    }

    fn came(&mut self, now: Duration, boot: u64, address: IpAddr) {
        self.known.retain(|known| now <= known.last.saturating_add(REMEMBERED));
        if self.known.len() == MOST
            && let Some(silent) = (0..MOST).min_by_key(|at| self.known[*at].last)
        {
            self.known.remove(silent);
        }
        self.known.iter_mut().for_each(|known| known.renewals = 0);
        let machine = Machine { boot, address, id: None, last: now, period: SHORTEST_PERIOD, renewals: 1 };
        self.known.push(machine);
    }

    fn judge(&mut self, now: Duration) -> Option<News> {
        let mut proven = self.known.iter().filter(|known| known.renewals >= RENEWALS);
        if let Verdict::More { first, announced } = self.verdict {
            let alive: Vec<&Machine> = proven.by_ref().filter(|known| !known.is_over(now)).collect();
            let &[earliest, .., last] = alive.as_slice() else {
                // a third one that has just come proves nothing about the two
                let left = self.known.iter().filter(|known| !known.is_over(now)).count();
                if left > 1 {
                    return None;
                }
                self.verdict = Verdict::One;
                return Some(News::One);
            };
            let is_announced = announced.is_some_and(|at| now < at.saturating_add(AGAIN));
            if earliest.boot == first && is_announced {
                return None;
            }
            let (first, second) = (earliest.boot, last.boot);
            self.verdict = Verdict::More { first, announced: Some(now) };
            return Some(News::Two { first, second });
        }
        let alive: Vec<&Machine> = proven.filter(|known| !known.is_silent(now, PERIODS)).collect();
        if let &[first, .., last] = alive.as_slice() {
            let (first, second) = (first.boot, last.boot);
            self.verdict = Verdict::More { first, announced: Some(now) };
            return Some(News::Two { first, second });
        }
        // an earlier run of the hub may have left the condition on the Node
        let is_settled = alive.first().is_some_and(|only| {
            only.renewals >= 16
                && self.known.iter().all(|other| other.boot == only.boot || other.is_over(now))
        });
        if self.verdict == Verdict::Open && is_settled {
            self.verdict = Verdict::One;
            return Some(News::One);
        }
        None
    }

    /// Whether a connection of this boot is of a machine that came second, while both are alive.
    pub fn is_second(&self, boot: u64) -> bool {
        matches!(self.verdict, Verdict::More { first, .. } if first != boot)
    }

    /// Notes the machine id that a machine reports. Returns whether it is news.
    pub fn says(&mut self, boot: u64, id: &str) -> bool {
        let is_id = !id.is_empty()
            && id.len() <= ID_CHARS
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let known = self.known.iter_mut().find(|known| known.boot == boot && known.id.as_deref() != Some(id));
        let Some(known) = known.filter(|_| is_id) else { return false };
        known.id = Some(id.into());
        if let Verdict::More { announced, .. } = &mut self.verdict {
            *announced = None;
        }
        true
    }

    /// The condition's message about two machines; `node` is the stored Node, which has the report of one.
    pub fn message(&self, first: u64, second: u64, node: &Value) -> String {
        let info = &node["status"]["nodeInfo"];
        let stored = info["bootID"].as_str().and_then(boot_of_id).zip(info["machineID"].as_str());
        let described = |boot| {
            let known = self.known.iter().find(|known| known.boot == boot);
            known.map_or_else(|| "another".to_owned(), |known| known.described(stored))
        };
        format!(
            "two machines use the credential of this node, and both renew its Lease: {}, and since later {}, whose statuses are refused. \
             One disk is a copy of the other: give one of the two a credential and a name of its own",
            described(first),
            described(second),
        )
    }
}

/// The number of a boot in the header of a request: 16 hexadecimal digits.
pub fn boot_of_header(text: &[u8]) -> Option<u64> {
    let is_boot = text.len() == 16 && text.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_boot)?;
    u64::from_str_radix(text, 16).ok()
}

/// The number of a boot by its id, as a Node reports it: its first eight bytes.
fn boot_of_id(id: &str) -> Option<u64> {
    let digits: String = id.chars().filter(|letter| *letter != '-').take(16).collect();
    boot_of_header(digits.as_bytes())
}

/// The condition's reasons.
const REASON_TWO: &str = "TwoMachines";
const REASON_ONE: &str = "OneMachine";

/// Sets the condition on a Node at this time; `message`: that of two machines. Returns whether its status
/// changed, which is worth an Event. A Node that never had the condition does not get it for one machine.
pub fn set_condition(node: &mut Value, message: Option<&str>, time: &str) -> bool {
    let there = condition(&node["status"], kedge_api::DUPLICATE_IDENTITY);
    let status = if message.is_some() { "True" } else { "False" };
    if there.is_none() && message.is_none() {
        return false;
    }
    let (reason, message) = match message {
        Some(message) => (REASON_TWO, message),
        None => (REASON_ONE, "one machine renews the Lease of this node"),
    };
    let is_change = there.is_none_or(|there| there["status"] != status);
    let since = there.filter(|_| !is_change).map(|there| there["lastTransitionTime"].clone());
    if there.is_some_and(|there| !is_change && there["message"] == message) {
        return false;
    }
    let new = json!({
        "type": kedge_api::DUPLICATE_IDENTITY, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": time, "lastTransitionTime": since.unwrap_or_else(|| time.into()),
    });
    let conditions = &mut node["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    if let Some(conditions) = conditions.as_array_mut() {
        conditions.retain(|there| there["type"] != kedge_api::DUPLICATE_IDENTITY);
        conditions.push(new);
    }
    is_change
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0xaaaa;
    const B: u64 = 0xbbbb;
    const C: u64 = 0xcccc;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// Renewals as `SECONDS BOOT` pairs, and the news of each as `SECONDS: NEWS`.
    #[track_caller]
    fn check(renewals: impl IntoIterator<Item = (u64, u64)>, expect: &[(u64, News)]) -> Machines {
        let mut machines = Machines::default();
        let mut news = Vec::new();
        for (secs, boot) in renewals {
            let seen = machines.renewed(Duration::from_secs(secs), boot, address(1));
            news.extend(seen.map(|seen| (secs, seen)));
            assert!(machines.known.len() <= MOST);
        }
        assert_eq!(news, expect);
        machines
    }

    /// A machine that renews each ten seconds.
    fn each_ten(from: u64, to: u64, boot: u64) -> impl Iterator<Item = (u64, u64)> {
        (from..to).step_by(10).map(move |secs| (secs, boot))
    }

    fn together(mut renewals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        renewals.sort_unstable();
        renewals
    }

    fn two(first: u64, second: u64) -> News {
        News::Two { first, second }
    }

    #[test]
    fn machines_that_renew_in_turn_are_two() {
        let renewals = together(each_ten(0, 400, A).chain(each_ten(103, 300, B)).collect());
        let machines = check(renewals, &[(120, two(A, B))]);
        assert!(machines.is_second(B) && !machines.is_second(A), "the first keeps its rights");
    }

    #[test]
    fn rebooted_machine_is_one() {
        // the old connection was half open; a renewal that was under way arrives after the boot
        let reboot = each_ten(0, 100, A).chain([(103, B), (104, A)]).chain(each_ten(113, 900, B));
        let machines = check(reboot, &[(253, News::One)]);
        assert!(!machines.is_second(B));
        // ten boots in ten minutes
        let boots = (0..10).flat_map(|boot| each_ten(boot * 60, boot * 60 + 45, boot));
        check(boots, &[]);
    }

    #[test]
    fn machine_with_another_address_is_one() {
        let mut machines = Machines::default();
        for secs in (0..150).step_by(10) {
            let seen = machines.renewed(Duration::from_secs(secs), A, address((secs / 10) as u8));
            assert_eq!(seen, None);
        }
    }

    #[test]
    fn double_that_left_is_over_and_comes_back_second() {
        let both = each_ten(0, 1000, A).chain(each_ten(103, 300, B)).chain(each_ten(503, 600, B));
        let expect = [(120, two(A, B)), (420, News::One), (503, two(A, B)), (720, News::One)];
        check(together(both.collect()), &expect);
        // the first leaves: the second may report
        let both = together(each_ten(0, 300, A).chain(each_ten(103, 1000, B)).collect());
        let machines = check(both, &[(120, two(A, B)), (413, News::One)]);
        assert!(!machines.is_second(B));
    }

    #[test]
    fn losses_on_the_line_change_nothing() {
        let lossy = each_ten(0, 1000, A).filter(|(secs, _)| secs % 50 != 0);
        let both = together(lossy.chain(each_ten(3, 1000, B).filter(|(secs, _)| secs % 70 != 3)).collect());
        let machines = check(both.iter().copied().filter(|(secs, _)| *secs < 600), &[(30, two(A, B))]);
        assert!(machines.is_second(B));
    }

    #[test]
    fn verdict_is_announced_again_while_it_stands() {
        let both = together(each_ten(0, 1400, A).chain(each_ten(3, 1400, B)).collect());
        check(both, &[(20, two(A, B)), (620, two(A, B)), (1220, two(A, B))]);
    }

    #[test]
    fn machine_alone_clears_what_an_earlier_hub_said() {
        check(each_ten(0, 400, A), &[(150, News::One)]);
    }

    #[test]
    fn slow_renewals_are_recognized_too() {
        let every = |from: u64, boot| (0..12).map(move |at| (from + at * 75, boot));
        let both = together(every(0, A).chain(every(30, B)).collect());
        let mut machines = Machines::default();
        let news = both
            .iter()
            .filter_map(|(secs, boot)| machines.renewed(Duration::from_secs(*secs), *boot, address(1)));
        assert_eq!(news.take(1).collect::<Vec<_>>(), [two(A, B)]);
    }

    #[test]
    fn many_boots_take_bounded_room() {
        let mut machines = Machines::default();
        for boot in 0..10_000 {
            machines.renewed(Duration::from_millis(boot * 10), boot, address(1));
            assert!(machines.known.len() <= 4, "{} are remembered", machines.known.len());
        }
        assert!(!machines.says(9_999, &"x".repeat(ID_CHARS + 1)) && !machines.says(9_999, "a<b>"));
    }

    #[test]
    fn condition_names_both_machines() {
        let both = together(each_ten(0, 60, A << 40).chain(each_ten(3, 60, B)).collect());
        let mut machines = check(both, &[(20, two(A << 40, B))]);
        let mut node = json!({"status": {"nodeInfo": {"machineID": "5f3c", "bootID": "00aaaa00-0000-0000-1111-222233334444"}}});
        assert!(machines.says(B, "77aa") && !machines.says(B, "77aa") && !machines.says(C, "1"));
        let message = machines.message(A << 40, B, &node);
        assert!(
            message.contains("10.0.0.1 (machine id 5f3c), and since later 10.0.0.1 (machine id 77aa)"),
            "{message}"
        );
        assert!(!set_condition(&mut node, None, "t0"), "it never had a double");
        assert!(node["status"]["conditions"].is_null());
        assert!(set_condition(&mut node, Some(&message), "t1"));
        assert!(!set_condition(&mut node, Some("other words"), "t2"), "no news");
        let there = condition(&node["status"], kedge_api::DUPLICATE_IDENTITY).unwrap();
        assert_eq!((&there["status"], &there["lastTransitionTime"]), (&json!("True"), &json!("t1")));
        assert!(set_condition(&mut node, None, "t3") && !set_condition(&mut node, None, "t4"));
        assert_eq!(node["status"]["conditions"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn header_has_sixteen_digits() {
        let check = |text: &str, expect| assert_eq!(boot_of_header(text.as_bytes()), expect, "{text}");
        check("00000000000000ff", Some(255));
        check("ffffffffffffffff", Some(u64::MAX));
        check("+0000000000000ff", None);
        check("ff", None);
        check("00000000000000fff", None);
        assert_eq!(boot_of_id("00000000-0000-00ff-1111-222233334444"), Some(255));
        assert_eq!(boot_of_id("short"), None);
    }
}
