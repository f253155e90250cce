//! Limits per caller, and fair shares of what all callers use together.
//!
//! A caller is an identity, or the network of an anonymous one. From each pool a caller gets at most a
//! quarter of what is free (an administrator, half of all) while half of the pool is free. Then it gets a
//! 256th of the pool, and from its last quarter a 2048th or [`Resource::least`]. Always holds: a few callers
//! cannot get more than half of a pool. To take the rest from a caller that holds nothing needs more than 64
//! others (of the few long answers, as many as there are), in whatever order they come. Hundreds of nodes
//! together can do it. An eighth of each pool, of long answers half, is reserved for administrators.
//! Anonymous callers, whose addresses cost nothing, share a part of the connections; so do identities that
//! are neither nodes nor administrators. People, whose identities an administrator approved one by one, have
//! more requests at once and a higher rate than programs in pods. So `kubectl get -w` and a rollout beside it
//! do not wait for each other. A node's renewals take from no pool at all and have a rate of their own: only
//! their own node can delay them, by its renewals alone.
//!
//! A refusal is 429 (the caller's own excess) or 503 (the hub's), with Retry-After. Left to others: how large
//! the pools are (`capacity`), and connections before they have an identity (`handshakes`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::{Identity, Standing};
use tokio::sync::Semaphore;

use super::own_watches::OwnWatches;
use super::steps::Steps;
use crate::bucket::{Bucket, Rate};
use crate::capacity::Capacity;
use crate::memory::Budget;
use crate::pki::PROBE_USER;

/// The fraction of a pool's free rest that a caller may hold. Without the lower bounds below, each further
/// caller would get less.
const SHARE: usize = 4;
/// The fraction of a pool that a caller may hold once half of it is taken: more than a caller with its usual
/// work needs.
const CROWDED_PART: usize = 256;
/// The same once three quarters are taken.
const SCARCE_PART: usize = 2048;
/// The fraction of each pool that is reserved for administrators, because they must be able to see and end
/// the work of others.
const RESERVED_PART: usize = 8;
/// The fraction of all connections that anonymous callers may hold together.
const ANONYMOUS_PART: usize = 8;
/// The fraction of all connections that identities which are neither nodes nor administrators may hold
/// together.
const OTHER_PART: usize = 4;
/// Most callers with an entry of their own; further anonymous callers share one. Single IPv6 addresses cost
/// an attacker nothing, but this many networks do. The entries take about 12 MiB.
const MAX_CALLERS: usize = 32_768;
/// Rate of requests of a caller without the admin group. An agent makes less than one a second; a node that
/// starts many pods makes many at once.
const REQUESTS: Rate = Rate { per_sec: 50.0, burst: 1000.0 };
/// The same of a person.
const REQUESTS_OF_PEOPLE: Rate = Rate { per_sec: 200.0, burst: 2000.0 };
/// Requests of a person that are worked on at a time; of other callers with a rate it is one.
const WORKED_ON_OF_PEOPLE: u32 = 16;
/// Rate of a node's renewals, apart from its other requests: it can renew whatever else it requested. An
/// agent renews every ten seconds.
const RENEWALS: Rate = Rate { per_sec: 1.0, burst: 10.0 };
/// Bytes that take as long as a request: of JSON that is parsed, rendered or compressed, and of text that is
/// copied and encrypted.
const PARSED_PER_TOKEN: f64 = 4096.0;
const COPIED_PER_TOKEN: f64 = 64.0 * 1024.0;
/// The largest debt of a node: 20 s after any request it gets answers again. The debts of other callers have
/// no limit, because nothing depends on their answers.
const MOST_DEBT: f64 = REQUESTS.burst;
/// Requests that a second of processor time is worth: a caller that keeps the hub busy gets a fortieth of a
/// processor in the long run.
const TOKENS_PER_SEC: f64 = 2000.0;
/// How often callers without a connection and with a full bucket are removed.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The resources that callers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Connections,
    /// Bodies that are being received, except small ones.
    Bodies,
    /// Bytes of bodies that are being received or worked on.
    BodyBytes,
    /// Requests whose answers are being made. A request counts once its body is in.
    Requests,
    /// A node's own renewals being answered, which count for no other resource.
    Renewals,
    Watches,
    /// Bytes of changes that wait for a slow watcher.
    BacklogBytes,
    /// Long answers that are being rendered or compressed.
    LongAnswers,
}

impl Resource {
    /// The amount that a caller may hold while anything is free: the connections and watches of an agent, or
    /// of a program; one object of usual size; one of each resource that is only held briefly.
    fn least(self, class: CallerClass) -> usize {
        match self {
            Resource::Connections | Resource::Watches if class == CallerClass::Node => 8,
            Resource::Connections | Resource::Watches => 2,
            Resource::BodyBytes | Resource::BacklogBytes => 64 * 1024,
            // two tables of a dashboard, and two of a person
            Resource::LongAnswers if class == CallerClass::Admin => 4,
            Resource::Bodies | Resource::Requests | Resource::Renewals | Resource::LongAnswers => 1,
        }
    }
}

impl Resource {
    /// The fraction that is reserved for administrators. For long answers it is larger: a client may read one
    /// for minutes, and others can do without.
    fn reserved(self) -> usize {
        if self == Resource::LongAnswers { 2 } else { RESERVED_PART }
    }
}

const RESOURCES: usize = 8;

/// Work for a caller whose cost depends on the request: on bytes that are parsed, copied or searched, or on
/// time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// JSON that is parsed, rendered or compressed.
    Parsed(usize),
    /// Text that is sent as it is stored.
    Copied(usize),
    /// Processor time beyond that of an ordinary request.
    Ran(Duration),
}

impl Work {
    /// The work of an ordinary request.
    pub(crate) const REQUEST: Work = Work::Parsed(PARSED_PER_TOKEN as usize);

    /// The cost in requests.
    fn tokens(self) -> f64 {
        match self {
            Work::Parsed(bytes) => bytes as f64 / PARSED_PER_TOKEN,
            Work::Copied(bytes) => bytes as f64 / COPIED_PER_TOKEN,
            Work::Ran(time) => time.as_secs_f64() * TOKENS_PER_SEC,
        }
    }
}

/// The classes of callers, by their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum CallerClass {
    /// The hub's probe of itself, which no limit may refuse.
    Hub,
    Admin,
    Node,
    /// A verified identity that is none of the others.
    Person,
    /// A service account, or a device with a bootstrap token.
    Program,
    Anonymous,
}

impl CallerClass {
    fn of(identity: Option<&Identity>) -> CallerClass {
        match identity {
            // by its name, among those without a credential
            Some(identity) if identity.standing != Standing::Live => CallerClass::Anonymous,
            Some(identity) if identity.user == PROBE_USER => CallerClass::Hub,
            Some(identity) if identity.is_admin() => CallerClass::Admin,
            Some(identity) if identity.node().is_some() => CallerClass::Node,
            Some(identity) if identity.is_program() => CallerClass::Program,
            Some(_) => CallerClass::Person,
            None => CallerClass::Anonymous,
        }
    }

    /// The most that one caller may hold, however much is free. Administrators share one credential among
    /// scripts and dashboards; an agent has a handful of connections, and a reboot may leave some half-open;
    /// an anonymous address may be a load balancer that checks health, or a router with a site's nodes behind
    /// it.
    fn most(self, resource: Resource) -> usize {
        const MIB: usize = 1024 * 1024;
        let [admin, node, person, program, anonymous] = match resource {
            Resource::Connections => [usize::MAX, 64, 2048, 2048, 256],
            Resource::Bodies => [1024, 8, 16, 8, 8],
            Resource::BodyBytes => [usize::MAX, 8 * MIB, 16 * MIB, 16 * MIB, MIB],
            Resource::Requests => [usize::MAX, 32, 128, 128, 32],
            Resource::Renewals => [0, 4, 0, 0, 0],
            Resource::Watches => [usize::MAX, 32, 1024, 1024, 0],
            Resource::BacklogBytes => [usize::MAX, 4 * MIB, 16 * MIB, 16 * MIB, 0],
            Resource::LongAnswers => [64, 2, 4, 4, 1],
        };
        match self {
            CallerClass::Hub => usize::MAX,
            CallerClass::Admin => admin,
            CallerClass::Node => node,
            CallerClass::Person => person,
            CallerClass::Program => program,
            CallerClass::Anonymous => anonymous,
        }
    }
}

/// A quantity of which all callers hold parts.
#[derive(Debug)]
struct Pool {
    size: usize,
    held: AtomicUsize,
}

impl Pool {
    fn new(size: usize) -> Pool {
        Pool { size, held: AtomicUsize::new(0) }
    }

    /// The amount that all callers of a class may hold together, if a part of 1/`reserved` is for
    /// administrators.
    fn room(&self, class: CallerClass, reserved: usize) -> usize {
        match class {
            CallerClass::Hub | CallerClass::Admin => self.size,
            _ => self.size - self.size / reserved,
        }
    }

    /// The amount that one caller of a class may hold now, if the class may hold `room` together.
    fn share(&self, class: CallerClass, room: usize, least: usize) -> usize {
        let free = room.saturating_sub(self.held.load(Ordering::Relaxed));
        let (half, quarter) = (room / 2, room / 4);
        let share = match class {
            // held <= free: half of all
            CallerClass::Hub | CallerClass::Admin if free >= half => free,
            CallerClass::Hub | CallerClass::Admin => free / SHARE,
            _ if free >= half => free / SHARE,
            _ if free >= quarter => self.size / CROWDED_PART,
            _ => self.size / SCARCE_PART,
        };
        share.max(least)
    }

    /// Takes an amount unless all callers would then hold more than `room`.
    fn take(&self, amount: usize, room: usize) -> bool {
        add(&self.held, amount, room)
    }

    fn give_back(&self, amount: usize) {
        self.held.fetch_sub(amount, Ordering::Relaxed);
    }
}

/// Adds to a count unless that would exceed `most`.
fn add(count: &AtomicUsize, amount: usize, most: usize) -> bool {
    let more = |held: usize| held.checked_add(amount).filter(|sum| *sum <= most);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

#[derive(Debug)]
struct Pools {
    of: [Pool; RESOURCES],
    /// The parts of the connections for classes that may not use all of them.
    anonymous: Pool,
    other: Pool,
}

impl Pools {
    fn new(capacity: &Capacity) -> Pools {
        let Capacity { connections, requests, body_bytes, backlog_bytes, long_answers, .. } = *capacity;
        let unlimited = usize::MAX;
        let sizes = [
            connections,
            unlimited,
            body_bytes,
            requests,
            unlimited,
            connections,
            backlog_bytes,
            long_answers,
        ];
        Pools {
            of: sizes.map(Pool::new),
            anonymous: Pool::new((connections / ANONYMOUS_PART).max(1)),
            other: Pool::new((connections / OTHER_PART).max(1)),
        }
    }
}

/// The limits of all callers.
#[derive(Debug)]
pub(crate) struct Limits {
    pools: Arc<Pools>,
    callers: Mutex<Callers>,
}

#[derive(Debug, Default)]
struct Callers {
    slots: HashMap<(CallerClass, Box<str>), Arc<Slot>>,
    swept: Option<Instant>,
}

/// The amounts that one caller holds. Looked up once for each connection.
#[derive(Debug)]
pub(crate) struct Slot {
    class: CallerClass,
    pools: Arc<Pools>,
    held: [AtomicUsize; RESOURCES],
    requests: Mutex<Bucket>,
    /// Only used for nodes.
    renewals: Mutex<Bucket>,
    /// Allows one large body of the caller to be worked on at a time.
    turn: Arc<Semaphore>,
    steps: Steps,
    /// Only used for nodes.
    own_watches: OwnWatches,
}

/// The rate against which a request was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paid {
    Request,
    Renewal,
}

impl CallerClass {
    fn rate(self, paid: Paid) -> Rate {
        match (paid, self) {
            (Paid::Renewal, _) => RENEWALS,
            (Paid::Request, CallerClass::Person) => REQUESTS_OF_PEOPLE,
            (Paid::Request, _) => REQUESTS,
        }
    }
}

/// The name of a caller: its user name; for anonymous ones the IPv4 address, or the /64 network of an IPv6
/// address.
fn name(identity: Option<&Identity>, from: IpAddr) -> Cow<'_, str> {
    match (identity, from.to_canonical()) {
        (Some(identity), _) => Cow::Borrowed(&identity.user),
        (None, IpAddr::V4(address)) => address.to_string().into(),
        (None, IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}").into()
        }
    }
}

impl Limits {
    pub(crate) fn new(capacity: &Capacity) -> Limits {
        Limits { pools: Arc::new(Pools::new(capacity)), callers: Mutex::default() }
    }

    /// The slot of a caller. Identities of the same name in different classes are different callers.
    pub(crate) fn slot(&self, identity: Option<&Identity>, from: IpAddr, now: Instant) -> Arc<Slot> {
        let class = CallerClass::of(identity);
        let name = name(identity, from);
        // a panic of another thread leaves the entries valid
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.sweep(now);
        // the number of verified names is limited by the hub's signatures; addresses are not limited
        let full = class == CallerClass::Anonymous && callers.slots.len() >= MAX_CALLERS;
        let mut key = (class, Box::from(&*name));
        if full && !callers.slots.contains_key(&key) {
            key.1 = "".into();
        }
        Arc::clone(callers.slots.entry(key).or_insert_with(|| Arc::new(Slot::new(class, &self.pools, now))))
    }

    /// The amount of a pool that all callers hold, and its size.
    pub(crate) fn level(&self, resource: Resource) -> (usize, usize) {
        let pool = &self.pools.of[resource as usize];
        (pool.held.load(Ordering::Relaxed), pool.size)
    }
}

impl Callers {
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now.saturating_duration_since(swept) <= REMEMBERED) {
            return;
        }
        self.swept = Some(now);
        self.slots.retain(|_, slot| Arc::strong_count(slot) > 1 || !slot.is_full(now));
    }
}

impl Slot {
    fn new(class: CallerClass, pools: &Arc<Pools>, now: Instant) -> Slot {
        Slot {
            class,
            pools: Arc::clone(pools),
            held: Default::default(),
            requests: Mutex::new(Bucket::full(class.rate(Paid::Request), now)),
            renewals: Mutex::new(Bucket::full(RENEWALS, now)),
            turn: Arc::new(Semaphore::new(1)),
            steps: Steps::default(),
            own_watches: OwnWatches::default(),
        }
    }

    /// True if the caller has made no request for so long that its buckets are full.
    fn is_full(&self, now: Instant) -> bool {
        [Paid::Request, Paid::Renewal]
            .into_iter()
            .all(|paid| self.with(paid, now, |bucket| bucket.left() >= self.class.rate(paid).burst))
    }

    /// Passes the bucket, refilled up to now, to `look`.
    fn with<T>(&self, paid: Paid, now: Instant, look: impl FnOnce(&mut Bucket) -> T) -> T {
        let bucket = match paid {
            Paid::Request => &self.requests,
            Paid::Renewal => &self.renewals,
        };
        look(bucket.lock().unwrap_or_else(PoisonError::into_inner).at(self.class.rate(paid), now))
    }

    /// Counts work against the caller's rate. The cost of a request is known only after it was allowed, so
    /// this may leave a debt that delays the next requests.
    pub(crate) fn charge(&self, work: Work, now: Instant) {
        if self.is_paced() {
            let least = if self.class == CallerClass::Node { -MOST_DEBT } else { f64::NEG_INFINITY };
            self.with(Paid::Request, now, |bucket| bucket.owe(work.tokens(), least));
        }
    }

    /// The turns of its requests, and how many have one at a time; `None` if it has no rate limit.
    pub(super) fn steps(&self) -> Option<(&Steps, u32)> {
        let most = if self.class == CallerClass::Person { WORKED_ON_OF_PEOPLE } else { 1 };
        self.is_paced().then_some((&self.steps, most))
    }

    /// The watches of a node.
    pub(super) fn own_watches(&self) -> &OwnWatches {
        &self.own_watches
    }

    fn is_paced(&self) -> bool {
        !matches!(self.class, CallerClass::Hub | CallerClass::Admin)
    }

    /// Counts a request against the caller's rate; 429 when it makes too many.
    pub(crate) fn pace(&self, now: Instant) -> Result<(), ApiError> {
        if !self.is_paced() || self.with(Paid::Request, now, |bucket| bucket.take(1.0)) {
            return Ok(());
        }
        Err(ApiError::too_many_requests("too many requests of this identity, please try again later"))
    }

    /// Counts a node's renewal against the rate of its renewals. Renewals beyond it count as ordinary
    /// requests.
    pub(crate) fn pace_renewal(&self, now: Instant) -> Result<Paid, ApiError> {
        if self.class == CallerClass::Node && self.with(Paid::Renewal, now, |bucket| bucket.take(1.0)) {
            return Ok(Paid::Renewal);
        }
        self.pace(now).map(|()| Paid::Request)
    }

    /// Takes back the count of a renewal that is handled in another way, which counts it again.
    pub(crate) fn unpace(&self, paid: Paid, now: Instant) {
        if self.is_paced() {
            self.with(paid, now, |bucket| bucket.give_back(1.0, self.class.rate(paid).burst));
        }
    }

    /// Counts a connection; 429 or 503 when there are too many.
    pub(crate) fn connect(self: &Arc<Self>) -> Result<Connected, ApiError> {
        let part = match self.class {
            CallerClass::Anonymous => Some(&self.pools.anonymous),
            CallerClass::Person | CallerClass::Program => Some(&self.pools.other),
            CallerClass::Hub | CallerClass::Admin | CallerClass::Node => None,
        };
        let held = self.held[Resource::Connections as usize].load(Ordering::Relaxed);
        let least = Resource::Connections.least(self.class);
        // the part of a class has nothing reserved for administrators
        let refuses =
            |part: &Pool| held >= part.share(self.class, part.size, least) || !part.take(1, part.size);
        if part.is_some_and(refuses) {
            return Err(self.refusal(Resource::Connections));
        }
        match self.take(Resource::Connections, 1) {
            Ok(taken) => Ok(Connected { _taken: taken, slot: Arc::clone(self) }),
            Err(refused) => {
                if let Some(part) = part {
                    part.give_back(1);
                }
                Err(refused)
            }
        }
    }

    /// Takes from a pool until the returned value is dropped.
    pub(crate) fn take(self: &Arc<Self>, resource: Resource, amount: usize) -> Result<Taken, ApiError> {
        match self.reserve(resource, amount) {
            true => Ok(Taken { slot: Arc::clone(self), resource, amount }),
            false => Err(self.refusal(resource)),
        }
    }

    fn reserve(&self, resource: Resource, amount: usize) -> bool {
        let pool = &self.pools.of[resource as usize];
        let held = &self.held[resource as usize];
        if self.class == CallerClass::Hub {
            held.fetch_add(amount, Ordering::Relaxed);
            pool.held.fetch_add(amount, Ordering::Relaxed);
            return true;
        }
        let room = pool.room(self.class, resource.reserved());
        let share = pool.share(self.class, room, resource.least(self.class));
        if !add(held, amount, share.min(self.class.most(resource))) {
            return false;
        }
        let taken = pool.take(amount, room);
        if !taken {
            held.fetch_sub(amount, Ordering::Relaxed);
        }
        taken
    }

    fn release(&self, resource: Resource, amount: usize) {
        self.held[resource as usize].fetch_sub(amount, Ordering::Relaxed);
        self.pools.of[resource as usize].give_back(amount);
    }

    fn refusal(&self, resource: Resource) -> ApiError {
        let what = match resource {
            Resource::Connections => "connections",
            Resource::Bodies | Resource::BodyBytes => "bodies",
            Resource::Requests | Resource::Renewals => "requests at once",
            Resource::Watches | Resource::BacklogBytes => "watches",
            Resource::LongAnswers => "long answers",
        };
        let idle = self.held[resource as usize].load(Ordering::Relaxed) == 0;
        if idle && self.class.most(resource) > 0 {
            return ApiError::unavailable(format!("the hub has too many {what}, please try again later"));
        }
        ApiError::too_many_requests(format!("too many {what} of this identity, please try again later"))
    }

    /// Waits until no other large body of this caller is worked on.
    pub(crate) async fn turn(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        // the semaphore is never closed
        Arc::clone(&self.turn).acquire_owned().await.ok()
    }
}

impl Budget for Slot {
    fn take(&self, bytes: usize) -> bool {
        self.reserve(Resource::BacklogBytes, bytes)
    }

    fn give_back(&self, bytes: usize) {
        self.release(Resource::BacklogBytes, bytes);
    }
}

/// Counted connections, requests or bytes; uncounted when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    slot: Arc<Slot>,
    resource: Resource,
    amount: usize,
}

impl Taken {
    /// Counts work against the rate of the caller that holds this.
    pub(crate) fn charge(&self, work: Work) {
        self.slot.charge(work, Instant::now());
    }

    /// Takes more of the same resource.
    pub(crate) fn more(&mut self, amount: usize) -> Result<(), ApiError> {
        if !self.slot.reserve(self.resource, amount) {
            return Err(self.slot.refusal(self.resource));
        }
        self.amount += amount;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.slot.release(self.resource, self.amount);
    }
}

/// A counted connection; uncounted when dropped.
#[derive(Debug)]
pub(crate) struct Connected {
    _taken: Taken,
    slot: Arc<Slot>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        match self.slot.class {
            CallerClass::Anonymous => self.slot.pools.anonymous.give_back(1),
            CallerClass::Person | CallerClass::Program => self.slot.pools.other.give_back(1),
            CallerClass::Hub | CallerClass::Admin | CallerClass::Node => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Machine;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn node(name: &str) -> Identity {
        Identity::new(&format!("system:node:{name}"), &["system:nodes"])
    }

    fn other(name: &str) -> Identity {
        Identity::new(&format!("system:serviceaccount:default:{name}"), &["system:serviceaccounts"])
    }

    fn person(name: &str) -> Identity {
        Identity::new(name, &["people"])
    }

    fn admin() -> Identity {
        Identity::new("admin", &["system:masters"])
    }

    /// The limits of a board with 1 GiB.
    fn limits() -> Limits {
        limits_with(1024)
    }

    fn limits_with(memory_mib: u64) -> Limits {
        let machine = Machine { memory_bytes: memory_mib << 20, descriptors: 524_288, processors: 2 };
        Limits::new(&Capacity::of(&machine))
    }

    /// Each takes as much as it can, in turns; returns all that they got.
    fn greed(slots: &[Arc<Slot>], resource: Resource, amount: usize) -> Vec<Taken> {
        let mut all = Vec::new();
        loop {
            let before = all.len();
            all.extend(slots.iter().filter_map(|slot| slot.take(resource, amount).ok()));
            if all.len() == before {
                return all;
            }
        }
    }

    /// Each takes all that it can get before the next one begins.
    fn greed_in_sequence(slots: &[Arc<Slot>], resource: Resource, amount: usize) -> Vec<Taken> {
        slots.iter().flat_map(|slot| greed(std::slice::from_ref(slot), resource, amount)).collect()
    }

    /// Pools, and a small amount of each.
    const POOLS: [(Resource, usize); 5] = [
        (Resource::Connections, 1),
        (Resource::Requests, 1),
        (Resource::BodyBytes, 10_000),
        (Resource::Watches, 1),
        (Resource::BacklogBytes, 10_000),
    ];

    #[test]
    fn greedy_callers_leave_something_for_the_next() {
        let now = Instant::now();
        let ways = [greed, greed_in_sequence];
        for (memory_mib, others, way) in [256, 1024, 8192]
            .into_iter()
            .flat_map(|mib| [false, true].map(|others| ways.map(|way| (mib, others, way))))
            .flatten()
        {
            for (resource, amount) in POOLS {
                let limits = limits_with(memory_mib);
                let greedy = |number| match others {
                    true => other(&format!("greedy-{number}")),
                    false => node(&format!("greedy-{number}")),
                };
                let slots: Vec<_> =
                    (0..64).map(|number| limits.slot(Some(&greedy(number)), HERE, now)).collect();
                let held = way(&slots, resource, amount);
                let victim = limits.slot(Some(&node("victim")), HERE, now);
                let left = greed(std::slice::from_ref(&victim), resource, amount).len() * amount;
                let least = resource.least(CallerClass::Node);
                assert!(left + amount > least, "{memory_mib} MiB, {resource:?}: {left}, {}", held.len());
                drop(held);
                assert_eq!(limits.level(resource).0, 0, "{resource:?}");
            }
        }
    }

    #[test]
    fn late_callers_get_as_much_as_each_other() {
        let now = Instant::now();
        for (resource, amount) in POOLS {
            let limits = limits();
            let slots = (0..5000).map(|number| limits.slot(Some(&node(&number.to_string())), HERE, now));
            let slots: Vec<_> = slots.collect();
            let mut held = Vec::new();
            let served = slots.iter().take_while(|slot| {
                let got = greed(std::slice::from_ref(slot), resource, amount);
                held.extend(got);
                slot.held[resource as usize].load(Ordering::Relaxed) > 0
            });
            let served = served.count();
            assert!(served > 200, "{resource:?}: {served}");
            // but for the last one, for which the pool was not enough
            let last = slots[served - 2].held[resource as usize].load(Ordering::Relaxed);
            assert!(last + amount > resource.least(CallerClass::Node), "{resource:?}: {last} after {served}");
            // an administrator still gets its eighth
            let (taken, size) = limits.level(resource);
            assert!(size - taken >= size / RESERVED_PART, "{resource:?}: {taken} of {size}");
            let admin = limits.slot(Some(&admin()), HERE, now);
            let got = greed(&[admin], resource, amount).len() * amount;
            assert!(got >= size / RESERVED_PART / SHARE / 2, "{resource:?}: {got}");
        }
    }

    #[test]
    fn caller_that_holds_nothing_gets_one_of_a_small_pool() {
        let (limits, now) = (limits_with(256), Instant::now());
        assert_eq!(limits.level(Resource::LongAnswers).1, 8);
        let nodes = (0..20).map(|number| limits.slot(Some(&node(&number.to_string())), HERE, now));
        let held: Vec<_> = nodes.filter_map(|slot| slot.take(Resource::LongAnswers, 1).ok()).collect();
        assert_eq!(held.len(), 4, "half is for administrators");
        let admin = limits.slot(Some(&admin()), HERE, now);
        assert_eq!(greed(&[admin], Resource::LongAnswers, 1).len(), 4);
    }

    #[test]
    fn renewals_take_from_no_pool() {
        let (limits, now) = (limits(), Instant::now());
        let slots: Vec<_> =
            (0..5000).map(|number| limits.slot(Some(&node(&number.to_string())), HERE, now)).collect();
        let _held = greed(&slots, Resource::Requests, 1);
        let victim = limits.slot(Some(&node("victim")), HERE, now);
        assert_eq!(victim.take(Resource::Requests, 1).unwrap_err().code, 503, "thousands take everything");
        let renewals = greed(&[victim], Resource::Renewals, 1);
        assert_eq!(renewals.len(), 4);
    }

    #[test]
    fn probe_is_never_refused() {
        let (limits, now) = (limits(), Instant::now());
        let admins: Vec<_> =
            (0..50).map(|number| Identity::new(&number.to_string(), &["system:masters"])).collect();
        let slots: Vec<_> = admins.iter().map(|admin| limits.slot(Some(admin), HERE, now)).collect();
        let all = |resource| -> Vec<Taken> {
            slots.iter().flat_map(|slot| greed(std::slice::from_ref(slot), resource, 1)).collect()
        };
        let _held = (all(Resource::Connections), all(Resource::Requests));
        let node = limits.slot(Some(&node("n")), HERE, now);
        assert_eq!(node.connect().unwrap_err().code, 503, "everything is taken");
        let probe = limits.slot(Some(&Identity::new(PROBE_USER, &[])), HERE, now);
        let connected = probe.connect().unwrap();
        probe.take(Resource::Requests, 1).unwrap();
        assert!((0..2000).all(|_| probe.pace(now).is_ok()));
        drop(connected);
    }

    #[test]
    fn administrator_takes_half_at_most() {
        let (limits, now) = (limits(), Instant::now());
        let slot = limits.slot(Some(&admin()), HERE, now);
        let held = greed(&[slot], Resource::Requests, 1);
        assert_eq!(held.len(), limits.level(Resource::Requests).1 / 2);
        let user = limits.slot(Some(&person("admin")), HERE, now);
        assert!(user.take(Resource::Requests, 1).is_ok(), "another identity of the same name");
    }

    #[test]
    fn misbehaving_node_slows_down_only_itself() {
        let (limits, start) = (limits(), Instant::now());
        let ask = |identity: &Identity, now| {
            limits.slot(Some(identity), HERE, now).pace(now).map_err(|error| error.code)
        };
        let (mad, calm) = (node("mad"), node("calm"));
        for _ in 0..1000 {
            assert_eq!(ask(&mad, start), Ok(()));
        }
        assert_eq!(ask(&mad, start), Err(429));
        assert_eq!(ask(&calm, start), Ok(()));
        // one second later it has fifty more
        let later = start + Duration::from_secs(1);
        for _ in 0..50 {
            assert_eq!(ask(&mad, later), Ok(()));
        }
        assert_eq!(ask(&mad, later), Err(429));
        assert!((0..5000).all(|_| ask(&admin(), start).is_ok()));
    }

    #[test]
    fn large_bodies_are_paid_for_later() {
        let (limits, start) = (limits(), Instant::now());
        let slot = limits.slot(Some(&node("n")), HERE, start);
        for _ in 0..2 {
            slot.pace(start).unwrap();
            slot.charge(Work::Parsed(3 << 20), start);
        }
        assert_eq!(slot.pace(start).unwrap_err().code, 429);
        let debt = 2.0 * (3 << 20) as f64 / PARSED_PER_TOKEN + 2.0 - REQUESTS.burst;
        let paid = start + Duration::from_secs_f64((debt + 1.5) / REQUESTS.per_sec);
        slot.pace(paid).unwrap();
        assert_eq!(slot.pace(paid).unwrap_err().code, 429);
    }

    #[test]
    fn debt_of_a_node_ends_after_twenty_seconds() {
        let (limits, start) = (limits(), Instant::now());
        for (identity, heard) in [(node("n"), true), (other("o"), false)] {
            let slot = limits.slot(Some(&identity), HERE, start);
            for _ in 0..32 {
                slot.charge(Work::Ran(Duration::from_secs(10)), start);
            }
            let after = |secs| slot.pace(start + Duration::from_secs(secs)).is_ok();
            assert!(!after(19) && !after(20), "{identity:?}");
            assert_eq!(after(21), heard, "{identity:?}");
        }
    }

    #[test]
    fn renewals_have_a_rate_of_their_own() {
        let (limits, start) = (limits(), Instant::now());
        for (identity, expect) in [(node("n"), 10), (other("o"), 0)] {
            let slot = limits.slot(Some(&identity), HERE, start);
            (0..32).for_each(|_| slot.charge(Work::Ran(Duration::from_secs(10)), start));
            let heard = |secs| {
                let at = start + Duration::from_secs(secs);
                std::iter::from_fn(|| slot.pace_renewal(at).ok()).take(2000).collect::<Vec<_>>()
            };
            assert_eq!(heard(0), vec![Paid::Renewal; expect], "{identity:?}");
            assert_eq!(heard(1), vec![Paid::Renewal; expect / 10], "{identity:?}");
            slot.unpace(Paid::Renewal, start);
        }
        // beyond that rate they count as requests, and its rate of requests is full if it requested nothing
        // else
        let slot = limits.slot(Some(&node("calm")), HERE, start);
        let all: Vec<_> = std::iter::from_fn(|| slot.pace_renewal(start).ok()).collect();
        assert_eq!((all.len(), all[9], all[10]), (1010, Paid::Renewal, Paid::Request));
        assert!(
            !slot.is_full(start + Duration::from_secs(9)) && slot.is_full(start + Duration::from_secs(20))
        );
    }

    #[test]
    fn dropped_connections_are_uncounted() {
        let (limits, now) = (limits(), Instant::now());
        for (identity, most) in [(Some(node("n")), 64), (Some(other("o")), 546), (None, 256)] {
            let slot = limits.slot(identity.as_ref(), HERE, now);
            let mut held = Vec::new();
            let refused = loop {
                match slot.connect() {
                    Ok(connected) => held.push(connected),
                    Err(refused) => break refused,
                }
            };
            assert_eq!((held.len(), refused.code), (most, 429), "{identity:?}");
            drop(held);
            assert_eq!(limits.level(Resource::Connections).0, 0);
            drop(slot.connect().unwrap());
        }
        let pools = &limits.pools;
        let held = [&pools.anonymous, &pools.other].map(|part| part.held.load(Ordering::Relaxed));
        assert_eq!(held, [0, 0]);
    }

    #[test]
    fn strangers_leave_connections_for_nodes() {
        let (limits, now) = (limits(), Instant::now());
        let all = limits.level(Resource::Connections).1;
        let mut held = Vec::new();
        for number in 0..4000_u32 {
            let address = IpAddr::from(number.to_be_bytes());
            let anonymous = limits.slot(None, address, now);
            let user = limits.slot(Some(&other(&number.to_string())), HERE, now);
            held.extend((0..8).map_while(|_| anonymous.connect().ok()));
            held.extend((0..8).map_while(|_| user.connect().ok()));
        }
        let taken = limits.level(Resource::Connections).0;
        assert!(taken <= all / ANONYMOUS_PART + all / OTHER_PART, "{taken} of {all}");
        let victim = limits.slot(Some(&node("victim")), HERE, now);
        assert!((0..64).all(|_| victim.connect().map(|connected| held.push(connected)).is_ok()));
    }

    #[test]
    fn idle_callers_are_forgotten() {
        let (limits, now) = (limits(), Instant::now());
        let slot = limits.slot(Some(&node("connected")), HERE, now);
        limits.slot(Some(&node("gone")), HERE, now).pace(now).unwrap();
        limits.slot(Some(&node("debtor")), HERE, now).charge(Work::Ran(Duration::from_secs(10)), now);
        let known = |name: &str, after| {
            limits.slot(Some(&node(name)), HERE, now + after);
            let callers = limits.callers.lock().unwrap();
            let names =
                callers.slots.keys().map(|(_, name)| name.trim_start_matches("system:node:").to_owned());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        assert_eq!(known("debtor", REMEMBERED), ["connected", "debtor", "gone"], "too soon");
        let later = REMEMBERED + Duration::from_millis(1);
        assert_eq!(known("new", later), ["connected", "new"], "debts of a minute are paid");
        // a caller with a connection but no debt is forgotten, one with a debt is kept
        limits.slot(Some(&node("new")), HERE, now + later).charge(Work::REQUEST, now + later * 2);
        drop(slot);
        assert_eq!(known("last", later * 2), ["last", "new"]);
    }

    /// One of each class with limits, in the order of the tables below.
    fn classes() -> [Option<Identity>; 5] {
        [Some(admin()), Some(node("n")), Some(person("p")), Some(other("o")), None]
    }

    #[test]
    fn people_have_more_than_programs() {
        let (limits, start) = (limits(), Instant::now());
        let token = Identity::new("system:bootstrap:abcdef", &["system:bootstrappers"]);
        for (identity, burst, each_second) in [
            (person("jane"), 2000, 200),
            (other("robot"), 1000, 50),
            (token, 1000, 50),
            (node("n"), 1000, 50),
        ] {
            let slot = limits.slot(Some(&identity), HERE, start);
            let asks = |at| std::iter::from_fn(|| slot.pace(at).ok()).count();
            assert_eq!(asks(start), burst, "{}", identity.user);
            assert_eq!(asks(start + Duration::from_secs(1)), each_second, "{}", identity.user);
            slot.unpace(Paid::Request, start);
            assert!(slot.is_full(start + Duration::from_secs(60)));
        }
    }

    #[test]
    fn share_is_a_quarter_then_a_fixed_part() {
        let pool = Pool::new(65_536);
        let room = |class, reserved| pool.room(class, reserved);
        assert_eq!([8, 2].map(|reserved| room(CallerClass::Node, reserved)), [57_344, 32_768]);
        assert_eq!([8, 2].map(|reserved| room(CallerClass::Admin, reserved)), [65_536; 2]);
        let share = |class, held, least| {
            pool.held.store(held, Ordering::Relaxed);
            pool.share(class, room(class, 8), least)
        };
        for (held, expect) in [
            (0, 14_336),
            (28_672, 7168),
            (28_673, 256),
            (43_008, 256),
            (43_009, 32),
            (57_344, 32),
            (65_536, 32),
        ] {
            for class in
                [CallerClass::Node, CallerClass::Person, CallerClass::Program, CallerClass::Anonymous]
            {
                assert_eq!(share(class, held, 1), expect, "{class:?}, {held}");
            }
        }
        for (held, expect) in [(0, 65_536), (32_768, 32_768), (32_769, 8191), (65_532, 1), (65_536, 1)] {
            assert_eq!(share(CallerClass::Admin, held, 1), expect, "an administrator, {held}");
        }
        assert_eq!([31, 33].map(|least| share(CallerClass::Node, 50_000, least)), [32, 33]);
    }

    #[test]
    fn scarce_pool_leaves_each_caller_its_least() {
        let check = |memory_mib: u64, resource, held: usize, amount, expect: [usize; 5]| {
            let limits = limits_with(memory_mib);
            let pool = &limits.pools.of[resource as usize];
            let got = classes().map(|identity| {
                pool.held.store(held, Ordering::Relaxed);
                greed(&[limits.slot(identity.as_ref(), HERE, Instant::now())], resource, amount).len()
            });
            assert_eq!(got, expect, "{resource:?}");
        };
        // so little is free that a 2048th of all, or a quarter of the rest, is less than the least
        check(256, Resource::Connections, 2300, 1, [86, 8, 2, 2, 2]);
        check(256, Resource::Watches, 2300, 1, [86, 8, 2, 2, 0]);
        check(256, Resource::BodyBytes, 13 << 20, 1024, [614, 64, 64, 64, 64]);
        check(256, Resource::BacklogBytes, 13 << 20, 1024, [614, 64, 64, 64, 0]);
        check(256, Resource::Requests, 1780, 1, [53, 1, 1, 1, 1]);
        check(1024, Resource::LongAnswers, 13, 1, [4, 1, 1, 1, 1]);
        check(1024, Resource::LongAnswers, 20, 1, [4, 0, 0, 0, 0]);
    }

    #[test]
    fn caller_holds_so_much_of_an_empty_pool() {
        const KIB_64: usize = 64 * 1024;
        // the machine has so much memory that a quarter of each pool is more
        let check = |resource, amount, expect: [usize; 5]| {
            let got = classes().map(|identity| {
                let slot = limits_with(64 * 1024).slot(identity.as_ref(), HERE, Instant::now());
                // the shares of administrators are tested above
                std::iter::from_fn(|| slot.take(resource, amount).ok()).take(5000).collect::<Vec<_>>().len()
            });
            assert_eq!(got, expect, "{resource:?}");
        };
        check(Resource::Connections, 1, [5000, 64, 2048, 2048, 256]);
        check(Resource::Bodies, 1, [1024, 8, 16, 8, 8]);
        check(Resource::BodyBytes, KIB_64, [4096, 128, 256, 256, 16]);
        check(Resource::Requests, 1, [1024, 32, 128, 128, 32]);
        check(Resource::Renewals, 1, [0, 4, 0, 0, 0]);
        check(Resource::Watches, 1, [5000, 32, 1024, 1024, 0]);
        check(Resource::BacklogBytes, KIB_64, [4096, 64, 256, 256, 0]);
        check(Resource::LongAnswers, 1, [64, 2, 4, 4, 1]);
        let refused = limits().slot(None, HERE, Instant::now()).take(Resource::Watches, 1).unwrap_err();
        assert_eq!(refused.code, 429, "coming again does not help one who gets none");
    }

    #[test]
    fn bytes_taken_in_pieces_are_given_back() {
        let limits = limits();
        let slot = limits.slot(Some(&node("n")), HERE, Instant::now());
        let mut bytes = slot.take(Resource::BodyBytes, 0).unwrap();
        bytes.more(1000).unwrap();
        bytes.more(24).unwrap();
        assert_eq!(bytes.more(8 << 20).unwrap_err().code, 429);
        assert_eq!(limits.level(Resource::BodyBytes).0, 1024);
        drop(bytes);
        assert_eq!(limits.level(Resource::BodyBytes).0, 0);
        let backlog: &dyn Budget = &*slot;
        assert!(backlog.take(3 << 20) && !backlog.take(2 << 20));
        assert_eq!(limits.level(Resource::BacklogBytes).0, 3 << 20);
        backlog.give_back(3 << 20);
        assert_eq!(limits.level(Resource::BacklogBytes).0, 0);
        let (watch, now) = (slot.take(Resource::Watches, 1).unwrap(), Instant::now());
        watch.charge(Work::Ran(Duration::from_secs(1)));
        assert_eq!(slot.pace(now).unwrap_err().code, 429, "who holds it pays");
    }

    #[test]
    fn one_large_body_of_a_caller_has_its_turn() {
        use std::task::{Context, Poll, Waker};
        let (limits, now) = (limits(), Instant::now());
        let ask = |name: &str| {
            let slot = limits.slot(Some(&node(name)), HERE, now);
            let mut turn = std::pin::pin!(slot.turn());
            match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(turn) => Some(turn.expect("a turn")),
                Poll::Pending => None,
            }
        };
        let first = ask("n").expect("its turn");
        assert!(ask("n").is_none() && ask("another").is_some());
        drop(first);
        assert!(ask("n").is_some());
    }

    #[test]
    fn work_is_paid_for_in_requests() {
        let (limits, now) = (limits(), Instant::now());
        for (name, work) in [
            ("parsed", Work::Parsed(10 * 4096)),
            ("copied", Work::Copied(10 * 64 * 1024)),
            ("ran", Work::Ran(Duration::from_millis(5))),
        ] {
            let slot = limits.slot(Some(&node(name)), HERE, now);
            slot.charge(work, now);
            assert_eq!(std::iter::from_fn(|| slot.pace(now).ok()).take(2000).count(), 990, "{name}");
        }
        // only ordinary callers are charged, not administrators
        let slot = limits.slot(Some(&admin()), HERE, now);
        slot.charge(Work::Ran(Duration::from_secs(10)), now);
        assert!(slot.pace(now).is_ok());
    }

    #[test]
    fn renewal_made_in_another_way_is_counted_once() {
        let (limits, now) = (limits(), Instant::now());
        let slot = limits.slot(Some(&node("n")), HERE, now);
        let renewals = || std::iter::from_fn(|| slot.pace_renewal(now).ok());
        let own = renewals().take_while(|paid| *paid == Paid::Renewal).count();
        assert_eq!(own, 10);
        // the eleventh was counted as a request
        for paid in [Paid::Renewal, Paid::Request] {
            slot.unpace(paid, now);
            assert_eq!(renewals().next(), Some(paid));
        }
        assert_eq!(renewals().count(), 999);
    }

    #[test]
    fn anonymous_callers_are_counted_by_network() {
        let (limits, now) = (limits(), Instant::now());
        let asks = |from: &str| limits.slot(None, from.parse().unwrap(), now).pace(now).is_ok();
        while asks("192.0.2.1") {}
        for (same, expect) in
            [("192.0.2.1", false), ("::ffff:192.0.2.1", false), ("192.0.2.2", true), ("2001:db8::1", true)]
        {
            assert_eq!(asks(same), expect, "{same}");
        }
        while asks("2001:db8::1") {}
        assert!(!asks("2001:db8::ffff:0:0:2"), "a network of one owner");
        assert!(asks("2001:db8:0:1::1"));
        let identified = limits.slot(Some(&node("n")), "192.0.2.1".parse().unwrap(), now);
        identified.pace(now).unwrap();
    }

    #[test]
    fn flood_of_addresses_shares_one_entry() {
        let (limits, now) = (limits(), Instant::now());
        for number in 0..MAX_CALLERS + 100 {
            let from = IpAddr::from((number as u32).to_be_bytes());
            limits.slot(None, from, now).pace(now).unwrap();
        }
        let count = || limits.callers.lock().unwrap().slots.len();
        assert_eq!(count(), MAX_CALLERS + 1);
        limits.slot(Some(&node("n")), HERE, now);
        assert_eq!(count(), MAX_CALLERS + 2, "an identified caller has an entry of its own");
    }
}
