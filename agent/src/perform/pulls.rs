//! The loops of pulls: images that are fetched for pods, and the removal of those that no pod needs.
//!
//! Always holds: no more pulls are under way, and start in a second, than the configuration allows
//! (`maxParallelImagePulls`, `registryPullQPS`); a pull for a removed pod, or of an agent that stops, is
//! cancelled, so that none delays others for longer than a pod waits for it; each other order is answered. A
//! removal is done before the waiting pulls. Leaves to others: how to fetch an image and which to remove
//! (`images`), every decision (core).

use crate::images::{Options as PullerOptions, Puller, Store};
use crate::locks::locked;
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::{Cancel, WallClock};
use kedge_core::Event;
use kedge_core::images::collect::Ages;
use kedge_core::images::settings::Registries;
use kedge_core::images::thresholds::{Collected, Thresholds};
use kedge_core::images::throttle::Throttle;
use kedge_core::kubelet::ImageSettings;
use kedge_core::pods::{Command, Failure, FailureReason, ImageOrder, PodEvent, PodUid};
use kedge_platform::linux::give_back_stack;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender as EventSender;

/// This very program, also after an upgrade.
const PROGRAM: &str = "/proc/self/exe";

/// The directory of images, and their sources.
#[derive(Clone)]
pub(super) struct ImagePlace {
    pub(super) root_dir: PathBuf,
    /// Preloaded images.
    pub(super) preloaded: PathBuf,
    pub(super) registries: Registries,
    pub(super) clock: WallClock,
}

impl ImagePlace {
    pub(super) fn open(&self) -> Result<(Store, Puller), String> {
        let store = Store::open(&self.root_dir, Path::new(PROGRAM))
            .map_err(|error| format!("images below {}: {error}", self.root_dir.display()))?;
        let options = PullerOptions {
            registries: self.registries.clone(),
            preloaded: self.preloaded.clone(),
            clock: self.clock.clone(),
            proxies: ProxyEnvironment::of_process(),
            cancel: Cancel::new(),
        };
        Ok((store.clone(), Puller::new(store, options)))
    }
}

/// A job of a loop.
enum Job {
    Pull(Pulling),
    Collect(Thresholds),
}

struct Pulling {
    order: ImageOrder,
    cancel: Cancel,
    number: u64,
}

/// Orders of pulls: waiting ones, and those under way.
pub(super) struct PullQueue {
    orders: Mutex<Orders>,
    changed: Condvar,
    began: Instant,
}

struct Orders {
    waiting: VecDeque<ImageOrder>,
    /// Orders for preloaded images: they need no registry, and wait for none.
    preloaded: VecDeque<ImageOrder>,
    /// Whether a thread performs those.
    has_unpacker: bool,
    collection: Option<Thresholds>,
    /// The pods whose images are being fetched, and the switch that cancels it, by the number of the pull.
    current: Vec<(u64, PodUid, Cancel)>,
    /// Number of pulls so far.
    begun: u64,
    throttle: Throttle,
    is_closed: bool,
}

impl Orders {
    fn begin(&mut self, order: ImageOrder) -> Pulling {
        let cancel = Cancel::new();
        self.begun += 1;
        self.current.push((self.begun, order.pod.clone(), cancel.clone()));
        Pulling { order, cancel, number: self.begun }
    }

    /// The next job, or for how long there is none: until a change (`None`), or until a pull may start.
    fn next(&mut self, now: Duration) -> Result<Job, Option<Duration>> {
        if let Some(thresholds) = self.collection.take() {
            return Ok(Job::Collect(thresholds));
        }
        if self.waiting.is_empty() {
            return Err(None);
        }
        self.throttle.take(now).map_err(Some)?;
        let order = self.waiting.pop_front().ok_or(None)?;
        Ok(Job::Pull(self.begin(order)))
    }
}

impl PullQueue {
    pub(super) fn new(settings: &ImageSettings) -> Self {
        let throttle = Throttle::new(settings.pulls_per_sec, settings.pulls_burst, Duration::ZERO);
        let orders = Orders {
            waiting: VecDeque::new(),
            preloaded: VecDeque::new(),
            has_unpacker: false,
            collection: None,
            current: Vec::new(),
            begun: 0,
            throttle,
            is_closed: false,
        };
        Self { orders: Mutex::new(orders), changed: Condvar::new(), began: Instant::now() }
    }

    /// Core orders one for each container at a time, so there are at most as many as containers.
    pub(super) fn put(&self, order: ImageOrder) {
        locked(&self.orders).waiting.push_back(order);
        self.changed.notify_all();
    }

    /// The same for a preloaded image. True if the caller has to start [`Pulls::run_preloaded`].
    pub(super) fn put_preloaded(&self, order: ImageOrder) -> bool {
        let mut orders = locked(&self.orders);
        orders.preloaded.push_back(order);
        !std::mem::replace(&mut orders.has_unpacker, true)
    }

    /// The thread could not be started: its orders wait with the others.
    pub(super) fn without_unpacker(&self) {
        let mut orders = locked(&self.orders);
        orders.has_unpacker = false;
        let preloaded = std::mem::take(&mut orders.preloaded);
        orders.waiting.extend(preloaded);
        self.changed.notify_all();
    }

    /// The next preloaded image; `None` if there is none now, and the calling thread ends.
    fn next_preloaded(&self) -> Option<Pulling> {
        let mut orders = locked(&self.orders);
        let next = if orders.is_closed { None } else { orders.preloaded.pop_front() };
        orders.has_unpacker = next.is_some();
        next.map(|order| orders.begin(order))
    }

    /// Core orders one at a time.
    pub(super) fn collect(&self, thresholds: Thresholds) {
        locked(&self.orders).collection = Some(thresholds);
        self.changed.notify_all();
    }

    /// Drops the orders for this pod, without an answer.
    pub(super) fn forget(&self, pod: &PodUid) {
        let mut orders = locked(&self.orders);
        orders.waiting.retain(|order| order.pod != *pod);
        orders.preloaded.retain(|order| order.pod != *pod);
        orders.current.iter().filter(|(_, of, _)| of == pod).for_each(|(_, _, cancel)| cancel.cancel());
    }

    /// Ends the queue: there will be no other job, and nobody waits for those under way.
    pub(super) fn close(&self) {
        let mut orders = locked(&self.orders);
        orders.is_closed = true;
        orders.current.iter().for_each(|(_, _, cancel)| cancel.cancel());
        self.changed.notify_all();
    }

    /// Waits for the next job; `None` if there will be no other.
    fn next(&self) -> Option<Job> {
        give_back_stack();
        let mut orders = locked(&self.orders);
        while !orders.is_closed {
            let pause = match orders.next(self.began.elapsed()) {
                Ok(job) => return Some(job),
                Err(pause) => pause.unwrap_or(Duration::MAX),
            };
            let waited = self.changed.wait_timeout(orders, pause);
            orders = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    fn ended(&self, number: u64) {
        locked(&self.orders).current.retain(|(other, _, _)| *other != number);
    }
}

/// The shared state of all loops of pulls.
pub(super) struct Pulls {
    place: ImagePlace,
    events: EventSender<Event>,
    /// One for all, once it could be made: it remembers archives that could not be unpacked.
    opened: Mutex<Option<(Store, Puller)>>,
    ages: Mutex<Ages>,
}

impl Pulls {
    pub(super) fn new(place: ImagePlace, events: EventSender<Event>) -> Self {
        Self { place, events, opened: Mutex::default(), ages: Mutex::default() }
    }

    /// Performs jobs until the queue is closed; called on as many threads as there may be pulls at once.
    pub(super) fn run(&self, queue: &PullQueue) {
        while let Some(job) = queue.next() {
            match job {
                Job::Collect(thresholds) => {
                    let collected = self.collect(&thresholds, queue.began.elapsed());
                    self.send(PodEvent::ImagesCollected(collected));
                }
                Job::Pull(pulling) => {
                    self.pull(&pulling);
                    queue.ended(pulling.number);
                }
            }
        }
    }

    /// Unpacks preloaded images until none is wanted.
    pub(super) fn run_preloaded(&self, queue: &PullQueue) {
        while let Some(pulling) = queue.next_preloaded() {
            self.pull(&pulling);
            queue.ended(pulling.number);
        }
    }

    fn send(&self, event: PodEvent) {
        let _ = self.events.blocking_send(Event::Pods(Box::new(event)));
    }

    fn opened(&self, cancel: &Cancel) -> Result<(Store, Puller), String> {
        let mut opened = locked(&self.opened);
        if opened.is_none() {
            *opened = Some(self.place.open()?);
        }
        let (store, puller) = opened.as_ref().ok_or("no images")?;
        Ok((store.clone(), puller.until(cancel.clone())))
    }

    fn collect(&self, thresholds: &Thresholds, now: Duration) -> Result<Collected, String> {
        let (store, _) = self.opened(&Cancel::new())?;
        store.collect(&mut locked(&self.ages), thresholds, now).map_err(|error| error.to_string())
    }

    fn pull(&self, pulling: &Pulling) {
        let Pulling { order, cancel, .. } = pulling;
        let send = |event| {
            if !cancel.is_cancelled() {
                self.send(event);
            }
        };
        match self.opened(cancel) {
            Ok((_, puller)) => puller.perform(order, &send),
            Err(message) => {
                let (pod, container) = (order.pod.clone(), order.container.clone());
                let failure = Failure { reason: FailureReason::Other, message };
                send(PodEvent::Failed { command: Command::PullImage { pod, container }, failure });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_core::pods::PullPolicy;

    const RULE: Thresholds =
        Thresholds { minimum_age: Duration::ZERO, maximum_age: None, high_percent: 85, low_percent: 80 };

    fn queue(per_sec: u32, burst: u32) -> PullQueue {
        PullQueue::new(&ImageSettings {
            collection: RULE,
            pulls_at_once: 1,
            pulls_per_sec: per_sec,
            pulls_burst: burst,
        })
    }

    fn uid(pod: &str) -> PodUid {
        PodUid::new(pod).unwrap()
    }

    fn order(pod: &str) -> ImageOrder {
        ImageOrder {
            pod: uid(pod),
            container: "a".into(),
            image: "lan/app:v1".into(),
            policy: PullPolicy::Always,
            credentials: Vec::new(),
        }
    }

    fn put(queue: &PullQueue, pod: &str) {
        queue.put(order(pod));
    }

    #[track_caller]
    fn pull(queue: &PullQueue) -> Pulling {
        match queue.next() {
            Some(Job::Pull(pulling)) => pulling,
            _ => panic!("no pull"),
        }
    }

    #[test]
    fn pulls_for_a_pod_that_is_removed_are_given_up() {
        let queue = queue(0, 1);
        ["u-1", "u-1", "u-2", "u-1"].into_iter().for_each(|pod| put(&queue, pod));
        let (first, second, other) = (pull(&queue), pull(&queue), pull(&queue));
        queue.forget(&uid("u-1"));
        let given_up = [&first, &second, &other].map(|pulling| pulling.cancel.is_cancelled());
        assert_eq!(given_up, [true, true, false], "all that are under way for it, and no other");
        queue.ended(first.number);
        queue.close();
        assert!(queue.next().is_none() && other.cancel.is_cancelled(), "an agent that stops wants none");
    }

    #[test]
    fn pulls_begin_no_faster_than_configured() {
        let queue = queue(1, 2);
        (0..3).for_each(|_| put(&queue, "u-1"));
        let mut orders = locked(&queue.orders);
        let mut begins = |secs| matches!(orders.next(Duration::from_secs(secs)), Ok(Job::Pull(_)));
        assert_eq!([begins(0), begins(0), begins(0)], [true, true, false], "the burst");
        assert!(begins(1), "and one a second");
    }

    #[test]
    fn image_that_came_with_the_system_waits_for_no_registry() {
        let queue = queue(1, 1);
        put(&queue, "u-1");
        let fetched = pull(&queue);
        assert!(queue.put_preloaded(order("u-2")), "somebody has to unpack it");
        assert!(!queue.put_preloaded(order("u-3")), "the same will");
        assert!(!queue.put_preloaded(order("u-4")));
        queue.forget(&uid("u-3"));
        let unpacked = queue.next_preloaded().unwrap();
        assert_eq!(unpacked.order.pod, uid("u-2"));
        queue.forget(&uid("u-2"));
        assert!(unpacked.cancel.is_cancelled() && !fetched.cancel.is_cancelled());
        assert_eq!(queue.next_preloaded().unwrap().order.pod, uid("u-4"));
        assert!(queue.next_preloaded().is_none());
        assert!(queue.put_preloaded(order("u-5")), "the one before has ended");
        queue.without_unpacker();
        assert!(queue.next_preloaded().is_none(), "it waits with the others");
        assert_eq!(locked(&queue.orders).waiting.len(), 1);
        queue.put_preloaded(order("u-6"));
        queue.close();
        assert!(queue.next_preloaded().is_none(), "an agent that stops wants none");
    }

    #[test]
    fn collection_waits_for_no_pull_that_waits() {
        let queue = queue(0, 1);
        put(&queue, "u-1");
        queue.collect(RULE);
        assert!(matches!(queue.next(), Some(Job::Collect(_))));
        pull(&queue);
    }
}
