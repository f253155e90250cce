//! The pods as one actor of core: takes what the API server shows of them, sends their requests to it, and
//! gives their orders to the board.
//!
//! Always holds: a list or a watch event about this node's Node or its pods counts only if it belongs to the
//! same Node; a list that lacks known pods is therefore believed only once the Node was read after it and
//! still is the Node these pods were bound to. Few requests and writes are under way at once, and requests
//! that pods wait for are sent before those that only inform people; every order is answered, even if the
//! agent switches to another server meanwhile. Without a runtime this actor does not exist. Leaves to others:
//! every decision about a pod (`Pods`), how orders are performed.

use crate::answer::{Answer, Level};
use crate::config::running::Notice;
use crate::config::start::Floor;
use crate::event::{Action, RequestKey};
use crate::images::collecting::Collecting;
use crate::images::thresholds::Thresholds;
use crate::kubelet::Config;
use crate::node::events::event_name;
use crate::node::facts::{HostFacts, Runtime};
use crate::node::pressure::Pressures;
use crate::node::registration;
use crate::node::status::allocatable;
use crate::outbox::Verdict;
use crate::pods::event::{
    NodeFacts, ObjectRead, PodAction, PodAsk, PodEvent, PodNews, PodRequest, TokenName, TokenRead,
};
use crate::pods::keys::PodRef;
use crate::pods::lane::{Ask, Lane, Purpose};
use crate::pods::shares::MOST_TAKEN_BYTES;
use crate::pods::{PodReport, Pods};
use crate::reflector::{Bounds, Reflector, Shown};
use crate::turn::Turn;
use crate::watching::Watched;
use kedge_api::{self as api, excerpt};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Limits for a list of pods: the number of pods, and the bytes of all together, which are those of the pods
/// this node takes (`shares`) plus 2 KiB for each of the others.
const MOST_PODS: Bounds = Bounds { objects: 5000, bytes: MOST_TAKEN_BYTES + (5000 << 11) };
/// Most requests that pods need to make progress and that are under way at once: fewer than the outbox sends
/// at once, so that the node's own requests have room.
const WORK_SLOTS: u8 = 4;
/// Reads of ConfigMaps and Secrets at once: each may bring 1 MiB.
const READ_SLOTS: u8 = 1;
const NEWS_SLOTS: u8 = 1;
/// Most events about pods that wait to be sent; beyond it the oldest event of the namespace with the most
/// events is dropped.
const PENDING_NEWS: usize = 64;
/// Tries of one event: with the pauses of the outbox about an hour, as long as API servers keep an Event.
const NEWS_TRIES: u8 = 120;
/// Writes of the desired set under way: fewer than the disk's loop holds, so that it never makes core wait.
const WRITES_AT_ONCE: usize = 4;
/// The objects that pods refer to are read no more often than this, however often renewals report changes: a
/// rollout makes many changes, and each round reads all objects.
const REREAD_AT_MOST: Duration = Duration::from_secs(20);
/// The period under `Get`: the kubelet considers a copy old after this time. The first round after a start
/// comes after the same time, because the copies on disk may be of any age then: an agent that is restarted
/// more often than the other periods would otherwise never again read the objects that running pods refer to.
const REREAD_UNDER_GET: Duration = Duration::from_secs(60);
/// The period where renewals report no changes: ten objects of 2 kB cost some 4 MB a day.
const REREAD_EVERY: Duration = Duration::from_secs(10 * 60);
/// Objects are read at least this often whatever renewals report, as lists are (`watching`).
const REREAD_AT_LEAST: Duration = Duration::from_secs(60 * 60);
/// How long reading the files of static pods may take before it is reported: a disk that collects its garbage
/// answers nothing for many seconds, and a longer wait may mean a network file system whose server is away.
const LOOK_LIMIT: Duration = Duration::from_secs(120);
/// Annotation of a Node that lets its orphaned pods end.
const RELEASE_ANNOTATION: &str = "kedge.dev/release-pods";

/// Requests to the API server, by what they are for.
#[derive(Debug, Clone)]
struct Lanes {
    work: Lane,
    reads: Lane,
    news: Lane,
    news_count: u64,
    /// How the server refused the last event, so that it is logged once.
    news_dropped: Option<(u16, String)>,
}

impl Lanes {
    fn all(&mut self) -> [&mut Lane; 3] {
        [&mut self.work, &mut self.reads, &mut self.news]
    }
}

/// Writes of the desired set.
#[derive(Debug, Clone, Default)]
struct Writes {
    /// They wait until earlier ones end.
    waiting: VecDeque<PodAction>,
    under_way: usize,
}

/// When the files of static pods are read.
#[derive(Debug, Clone)]
struct StaticFiles {
    /// Their path, and how often it is read; `None` if static pods are not configured.
    source: Option<(String, Duration)>,
    /// When they are read again; while they are being read, when this takes too long. `None` once the slow
    /// read was reported, or if static pods are not configured.
    wake: Option<Duration>,
    are_read_now: bool,
}

/// Every pod of this node.
#[derive(Debug, Clone)]
pub(crate) struct PodsActor {
    pods: Pods,
    pub(crate) reflector: Reflector,
    lanes: Lanes,
    writes: Writes,
    /// The UID of the Node as it is known.
    node_uid: Option<String>,
    /// A list that lacks known pods, kept until the Node was read after it.
    unconfirmed: Option<Vec<Value>>,
    is_held: Option<bool>,
    facts: Option<NodeFacts>,
    /// The images noted last as needed, and whether they were all that pods need.
    needed_images: Option<(BTreeSet<String>, bool)>,
    files: StaticFiles,
    collecting: Collecting,
    /// The thresholds of the collection to start once the one under way has ended.
    collects_next: Option<Thresholds>,
    /// Number of the last look at the host that pods were informed of.
    looks: u64,
    /// The host should be looked at now.
    pub(crate) wants_look: bool,
    /// The Node should be read now, for pods; `node_was_read` says that it was.
    pub(crate) wants_node: bool,
    node_was_read: bool,
    rereading: Rereading,
    /// Events about the node that were not sent yet.
    pub(crate) notices: Vec<Notice>,
    /// All pods end, and no other begins: the node is decommissioned.
    ends_all: bool,
    /// How the server last refused a status or a deletion, so that it is logged once.
    refusal: Option<(u16, String)>,
}

impl PodsActor {
    pub(crate) fn new(config: &Config, turn: &mut Turn) -> Self {
        let settings = &config.pods;
        let (reads, news) = (WORK_SLOTS, WORK_SLOTS + READ_SLOTS);
        let mut actor = Self {
            pods: Pods::new(&turn.options.node_name),
            reflector: Reflector::of_set(Watched::Pods, !config.watch, MOST_PODS),
            lanes: Lanes {
                work: Lane::new(0..WORK_SLOTS),
                reads: Lane::new(reads..reads.saturating_add(READ_SLOTS)),
                news: Lane::new(news..news.saturating_add(NEWS_SLOTS)),
                news_count: 0,
                news_dropped: None,
            },
            writes: Writes::default(),
            node_uid: None,
            unconfirmed: None,
            is_held: None,
            facts: None,
            needed_images: None,
            files: StaticFiles {
                source: settings.static_path.clone().map(|path| (path, settings.file_check_frequency)),
                wake: None,
                are_read_now: false,
            },
            collecting: Collecting::new(config.images.collection),
            collects_next: None,
            looks: 0,
            wants_look: false,
            wants_node: false,
            node_was_read: false,
            rereading: Rereading::new(settings.rereads_each_minute, turn),
            notices: Vec::new(),
            ends_all: false,
            refusal: None,
        };
        actor.pods.plan_shutdown(settings.shutdown.clone());
        turn.act(Action::Pods(Box::new(PodAction::ReadDesired)));
        match actor.files.source.is_some() {
            true => actor.read_static_files(turn),
            false => actor.receive(PodEvent::StaticPods(Ok(Vec::new())), turn),
        }
        actor
    }

    // ---- what happens

    /// All pods end, and none begins, whatever the server or a file says: this node is decommissioned.
    pub(crate) fn end_all(&mut self, node_uid: &str, turn: &mut Turn) {
        let is_known = self.pods.is_report_complete();
        if !is_known || std::mem::replace(&mut self.ends_all, true) {
            return;
        }
        self.receive(PodEvent::StaticPods(Ok(Vec::new())), turn);
        self.receive(PodEvent::PodsListed { node_uid: node_uid.to_owned(), pods: Vec::new() }, turn);
        self.receive(PodEvent::Release(None), turn);
    }

    /// Takes an event of the board: a change it saw, or the answer to one of its orders.
    pub(crate) fn receive(&mut self, event: PodEvent, turn: &mut Turn) {
        let event = match event {
            PodEvent::PodSeen(_) if self.ends_all => return,
            PodEvent::PodsListed { node_uid, .. } if self.ends_all => {
                PodEvent::PodsListed { node_uid, pods: Vec::new() }
            }
            PodEvent::StaticPods(_) if self.ends_all => PodEvent::StaticPods(Ok(Vec::new())),
            event => event,
        };
        if matches!(event, PodEvent::DesiredSaved { .. }) {
            self.writes.under_way = self.writes.under_way.saturating_sub(1);
        }
        if matches!(event, PodEvent::StaticPods(_) | PodEvent::StaticPodsUnchanged) {
            let frequency = self.files.source.as_ref().map(|(_, frequency)| *frequency);
            self.files.wake = frequency.map(|frequency| turn.now.mono.saturating_add(frequency));
            self.files.are_read_now = false;
        }
        if let PodEvent::Shutdown(stops) = event {
            let what = if stops { "event" } else { "cancellation" };
            // upstream's text
            let message = format!("Shutdown manager detected shutdown {what}");
            self.notices.push(Notice { warning: false, reason: "NodeShutdown", message });
        }
        if let PodEvent::ImagesCollected(result) = &event {
            let report = self.collecting.ended(turn.now.mono, result);
            turn.log_all(report.lines);
            self.notices.extend(report.notice);
            if let Some(thresholds) = self.collects_next.take() {
                return self.order(PodAction::CollectImages(thresholds), turn);
            }
        }
        let mut actions = Vec::new();
        self.pods.handle(turn.now, event, &mut actions);
        for action in actions {
            self.order(action, turn);
        }
        self.write(turn);
    }

    /// Takes a list or a watch event of the API server. Returns whether the Node must be read before the list
    /// can be believed.
    #[must_use]
    pub(crate) fn shown(&mut self, shown: Shown, turn: &mut Turn) -> bool {
        match shown {
            Shown::All(pods) => return self.listed(pods, turn),
            Shown::One(object) => self.seen(object, turn),
            Shown::Gone(object) => self.gone(object, turn),
            Shown::Replaced(uid) => self.gone(json!({"metadata": {"uid": uid}}), turn),
            Shown::Unchanged(_) | Shown::TooMuch { .. } => {}
        }
        false
    }

    fn listed(&mut self, pods: Vec<Value>, turn: &mut Turn) -> bool {
        match &self.node_uid {
            // a hub whose data was wiped has no pods, and the watch of pods may notice this before that of
            // the Node
            Some(uid) if self.pods.has_all_of(uid, &pods) => self.believe(pods, turn),
            _ => self.unconfirmed = Some(pods),
        }
        self.unconfirmed.is_some()
    }

    fn believe(&mut self, pods: Vec<Value>, turn: &mut Turn) {
        self.unconfirmed = None;
        if let Some(node_uid) = self.node_uid.clone() {
            self.receive(PodEvent::PodsListed { node_uid, pods }, turn);
        }
    }

    fn seen(&mut self, object: Value, turn: &mut Turn) {
        match &mut self.unconfirmed {
            Some(pods) => {
                pods.retain(|pod| pod["metadata"]["uid"] != object["metadata"]["uid"]);
                pods.push(object);
            }
            None => self.receive(PodEvent::PodSeen(object), turn),
        }
    }

    fn gone(&mut self, object: Value, turn: &mut Turn) {
        match &mut self.unconfirmed {
            Some(pods) => pods.retain(|pod| pod["metadata"]["uid"] != object["metadata"]["uid"]),
            None => self.receive(PodEvent::PodGone(object), turn),
        }
    }

    /// Takes the Node as it is known now; `is_read` says that it was just read, or found absent.
    pub(crate) fn node(&mut self, node: Option<&api::Node>, is_read: bool, turn: &mut Turn) {
        // pods receive `NodeRead` only after the changes that the Node brought
        self.node_was_read |= is_read;
        let uid = node.map(|node| node.metadata.uid.clone());
        if uid != self.node_uid {
            // an earlier list belongs to another Node, or to a Node that is gone
            self.unconfirmed = None;
            self.node_uid = uid;
            match self.node_uid.is_some() {
                true => self.list(turn),
                false => self.reflector.stop(),
            }
            if self.node_uid.is_none() {
                turn.act(Action::EndPodsWatch);
            }
        } else if is_read && let Some(pods) = self.unconfirmed.take() {
            self.believe(pods, turn);
        }
    }

    fn list(&mut self, turn: &mut Turn) {
        let order = self.reflector.relist(None);
        turn.act(Action::WatchPods(order));
    }

    /// Reads the list of pods again, for what the watch has not shown.
    pub(crate) fn list_again(&mut self, turn: &mut Turn) {
        let order = self.reflector.watching.list(None);
        turn.act(Action::WatchPods(order));
    }

    /// The server takes statuses from this machine again.
    pub(crate) fn statuses_are_taken(&mut self) {
        self.pods.statuses_are_taken();
    }

    /// A renewal's answer reported the number of the latest change that concerns the node.
    pub(crate) fn named(&mut self, latest: u64, turn: &Turn) {
        self.rereading.named(latest, turn.now.mono);
    }

    pub(crate) fn server_changed(&mut self, turn: &mut Turn) {
        self.rereading = Rereading::new(self.rereading.is_each_minute, turn);
        (self.node_uid, self.unconfirmed) = (None, None);
        self.reflector.stop();
        turn.act(Action::EndPodsWatch);
        self.lanes.news.take_back();
        let Lanes { work, reads, .. } = &mut self.lanes;
        let given_up: Vec<Purpose> = [work, reads].into_iter().flat_map(Lane::give_up).collect();
        for purpose in given_up {
            let answer = Answer::Failed("another API server is asked now".into());
            self.told(purpose, answer, turn);
        }
    }

    pub(crate) fn answered(&mut self, slot: u8, answer: Answer, turn: &mut Turn) {
        // whoever waits for another answer asks again, at the time that suits it; an event has nobody else
        let is_news = slot >= WORK_SLOTS + READ_SLOTS;
        let is_done = !is_news || answer.settles_an_event();
        let verdict = if is_done { Verdict::Done } else { Verdict::Failed };
        turn.outbox.answered(turn.now, &RequestKey::Pods(slot), &answer, verdict, turn.jitter);
        if is_news {
            return self.announced(slot, is_done, &answer, turn);
        }
        let purpose = self.lanes.all().into_iter().find_map(|lane| lane.answered(slot));
        if let Some(purpose) = purpose {
            self.told(purpose, answer, turn);
        }
    }

    /// An Event was answered, or was not. Its name stays the same, so one that the server took without an answer
    /// is there already at the next try.
    fn announced(&mut self, slot: u8, is_settled: bool, answer: &Answer, turn: &mut Turn) {
        let is_dropped = match is_settled {
            true => {
                self.lanes.news.answered(slot);
                !matches!(answer, Answer::Accepted(_) | Answer::Refused { status: 409, .. })
            }
            false => !self.lanes.news.try_again(slot, NEWS_TRIES),
        };
        let refusal = answer.refusal();
        // a node without the right to post any says so once
        if is_dropped && (refusal.is_none() || refusal != self.lanes.news_dropped) {
            turn.log(Level::Warn, format!("event about a pod dropped: {answer}"));
        }
        if is_settled {
            self.lanes.news_dropped = refusal;
        }
    }

    fn told(&mut self, purpose: Purpose, answer: Answer, turn: &mut Turn) {
        match purpose {
            Purpose::Work(request) => {
                self.note_refusal(&request, &answer, turn);
                self.receive(PodEvent::Answered { request, answer }, turn);
            }
            Purpose::Read(name) => self.receive(PodEvent::ObjectRead { name, read: read_of(answer) }, turn),
            Purpose::Token(name) => self.receive(PodEvent::TokenRead { read: token_of(answer), name }, turn),
            Purpose::News(_) => {}
        }
    }

    fn note_refusal(&mut self, request: &PodRequest, answer: &Answer, turn: &mut Turn) {
        // a pod that is gone or replaced and a busy server are ordinary answers, which need no warning
        let refusal = answer.refusal().filter(|(status, _)| !matches!(status, 404 | 409 | 429));
        if refusal.is_some() && refusal != self.refusal {
            turn.log(Level::Warn, format!("{}: {answer}; trying again", describe(request)));
        }
        if refusal.is_some() || matches!(answer, Answer::Accepted(_)) {
            self.refusal = refusal;
        }
    }

    // ---- requests and orders

    fn order(&mut self, action: PodAction, turn: &mut Turn) {
        match action {
            PodAction::Log(level, line) => turn.log(level, line),
            PodAction::PatchPodStatus { pod, patch } => {
                let body = PodAsk::PatchStatus { pod: pod.clone(), body: patch };
                self.work_on(PodRequest::PatchStatus(pod), body);
            }
            PodAction::DeletePod(pod) => {
                self.work_on(PodRequest::Delete(pod.clone()), PodAsk::Delete(pod));
            }
            PodAction::CreateMirrorPod { namespace, name, pod } => {
                let body = PodAsk::Create { namespace: namespace.clone(), body: pod };
                self.work_on(PodRequest::CreateMirror { namespace, name }, body);
            }
            PodAction::ReadObject(name) => {
                let (body, namespace) = (PodAsk::Read(name.clone()), name.namespace.clone());
                let purpose = Purpose::Read(name);
                self.lanes.reads.waiting.push_back(Ask {
                    purpose,
                    body,
                    namespace,
                    bytes: 0,
                    is_urgent: false,
                });
            }
            PodAction::RequestToken(name) => {
                let body = PodAsk::CreateToken {
                    namespace: name.pod.namespace.clone(),
                    account: name.account.clone(),
                    body: token_request(&name),
                };
                let (namespace, purpose) = (name.pod.namespace.clone(), Purpose::Token(name));
                self.lanes.reads.waiting.push_back(Ask {
                    purpose,
                    body,
                    namespace,
                    bytes: 0,
                    is_urgent: false,
                });
            }
            PodAction::RecordEvent(news) => self.announce(&news, turn),
            PodAction::WarnOfNode { reason, message } => {
                self.notices.push(Notice { warning: true, reason, message });
            }
            PodAction::ListPods => self.list_again(turn),
            PodAction::LookAtHost => self.wants_look = true,
            PodAction::ReadNode => self.wants_node = true,
            // one collection at a time: a second one starts after the first
            PodAction::CollectImages(thresholds) if !self.collecting.begin_at_once() => {
                self.collects_next = Some(thresholds);
            }
            // see `WRITES_AT_ONCE`
            write @ PodAction::SaveDesired { .. } => self.writes.waiting.push_back(write),
            command => turn.act(Action::Pods(Box::new(command))),
        }
    }

    fn work_on(&mut self, request: PodRequest, body: PodAsk) {
        let (namespace, name) = request.name();
        let bytes = self.reflector.bytes_of(namespace, name);
        let namespace = namespace.to_owned();
        let queue = match self.pods.remembers(&request) {
            true => &mut self.lanes.work.waiting,
            false => &mut self.lanes.work.later,
        };
        let purpose = Purpose::Work(request);
        // a pod without a record here is answered anew with each list; the newest answer replaces the waiting
        // one
        match queue.iter_mut().find(|ask| ask.purpose == purpose) {
            Some(ask) => ask.body = body,
            None => queue.push_back(Ask { purpose, body, namespace, bytes, is_urgent: false }),
        }
    }

    fn announce(&mut self, news: &PodNews, turn: &Turn) {
        self.lanes.news_count = self.lanes.news_count.saturating_add(1);
        let PodRef { namespace, name, uid } = &news.pod;
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": event_name(name, turn.now, self.lanes.news_count), "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid,
                "fieldPath": news.field_path},
            "reason": news.reason,
            "message": news.message,
            "type": if news.is_warning { "Warning" } else { "Normal" },
            "source": {"component": "kedge", "host": turn.options.node_name},
            "firstTimestamp": turn.now.wall, "lastTimestamp": turn.now.wall, "count": 1,
        });
        self.lanes.news.drop_beyond(PENDING_NEWS);
        let namespace = namespace.clone();
        let body = PodAsk::PostEvent { namespace: namespace.clone(), body: event };
        let is_urgent = news.is_urgent;
        self.lanes.news.waiting.push_back(Ask {
            purpose: Purpose::News(0),
            body,
            namespace,
            bytes: 0,
            is_urgent,
        });
    }

    fn write(&mut self, turn: &mut Turn) {
        while self.writes.under_way < WRITES_AT_ONCE
            && let Some(write) = self.writes.waiting.pop_front()
        {
            self.writes.under_way = self.writes.under_way.saturating_add(1);
            turn.act(Action::Pods(Box::new(write)));
        }
    }

    // ---- what is due

    /// Takes the current state of the other actors, then does all work that is due.
    pub(crate) fn settle(&mut self, around: &Around<'_>, turn: &mut Turn) {
        if self.is_held != Some(around.is_held) {
            self.is_held = Some(around.is_held);
            if around.is_held {
                let line = "pods are held: after a crash loop under a proven configuration none is started or stopped for a while";
                turn.log(Level::Warn, line);
            }
            self.receive(PodEvent::Held(around.is_held), turn);
        }
        if let Some(facts) = self.news_of_the_node(around, turn) {
            self.facts = Some(facts.clone());
            self.receive(PodEvent::Node(Box::new(facts)), turn);
        }
        if std::mem::take(&mut self.node_was_read) {
            self.receive(PodEvent::NodeRead, turn);
        }
        if around.node.is_some_and(is_released) && self.pods.has_orphans() {
            self.receive(PodEvent::Release(None), turn);
        }
        if let Some(order) = self.reflector.watching.poll(turn.now, None) {
            turn.act(Action::WatchPods(order));
        }
        if self.pods.next_deadline().is_some_and(|due| due <= turn.now.mono) {
            self.receive(PodEvent::Tick, turn);
        }
        if self.node_uid.is_some() && self.rereading.is_due(turn) {
            self.receive(PodEvent::ObjectsAreOld, turn);
        }
        if self.files.wake.take_if(|due| *due <= turn.now.mono).is_some() {
            match self.files.are_read_now {
                true => self.report_slow_look(),
                false => self.read_static_files(turn),
            }
        }
        let needed = self.pods.needed_images();
        if let Some((images, is_all)) = needed.clone().filter(|_| needed != self.needed_images) {
            turn.act(Action::NeedImages { images, is_all });
            self.needed_images = needed;
        }
        // not before the images to keep are noted on disk
        if self.needed_images.is_some()
            && let Some(thresholds) = self.collecting.begin(turn.now.mono)
        {
            turn.act(Action::Pods(Box::new(PodAction::CollectImages(thresholds))));
        }
        // the images that the pod needs are noted
        if std::mem::replace(&mut self.looks, around.pressures.looks) != around.pressures.looks {
            self.receive(PodEvent::Looked(around.pressures.pressing.clone()), turn);
        }
        let pods = &self.pods;
        // a pod that was taken meanwhile would be ended by its earlier refusal
        let is_stale =
            |purpose: &Purpose| matches!(purpose, Purpose::Work(request) if pods.remembers(request));
        for lane in self.lanes.all() {
            lane.send(turn, &is_stale);
        }
    }

    fn read_static_files(&mut self, turn: &mut Turn) {
        if let Some((path, _)) = &self.files.source {
            turn.act(Action::Pods(Box::new(PodAction::ReadStaticPods(path.clone()))));
            (self.files.wake, self.files.are_read_now) =
                (Some(turn.now.mono.saturating_add(LOOK_LIMIT)), true);
        }
    }

    /// Reports once for each read that it takes too long: the read keeps running, because no one can
    /// interrupt it.
    fn report_slow_look(&mut self) {
        let path = self.files.source.as_ref().map(|(path, _)| excerpt(path)).unwrap_or_default();
        let secs = LOOK_LIMIT.as_secs();
        let message = format!(
            "staticPodPath {path} was not read within {secs} s; static pods stay as they are until it is"
        );
        self.notices.push(Notice { warning: true, reason: "StaticPodPathSilent", message });
    }

    /// The facts by which pods are admitted, if they changed. `None` before the runtime works: a rejected pod
    /// stays rejected, so none may be judged too early.
    fn news_of_the_node(&self, around: &Around<'_>, turn: &Turn) -> Option<NodeFacts> {
        let host = around.facts?;
        let no_runtime = match &host.runtime {
            Runtime::Ready => None,
            Runtime::Missing(why) => Some(why.clone()),
            _ => return None,
        };
        let known = around.node.map(|node| node.metadata.labels.clone());
        let left = allocatable(host, around.config);
        let facts = NodeFacts {
            name: turn.options.node_name.clone(),
            labels: known.unwrap_or_else(|| registration::labels(turn.options, Some(host))),
            addresses: host.addresses.clone(),
            cpu_milli: left.cpu_milli,
            memory_bytes: left.memory_bytes,
            storage_bytes: left.storage_bytes,
            // a refused pod stays refused, whatever configuration is rolled back later
            pods: around.floor.map_or(0, |floor| floor.max_pods).max(around.config.max_pods).into(),
            pressures: around.pressures.conditions(),
            network: host.pod_network.clone(),
            has_cluster_dns: !around.config.name_servers().0.is_empty(),
            api_server: host.api_server.clone(),
            has_apparmor: host.has_apparmor,
            has_selinux: host.has_selinux,
            devices: around.config.pods.devices.clone(),
            unsafe_sysctls: around.config.pods.unsafe_sysctls.clone(),
            filters_calls: around.config.pods.filters_calls,
            lacking_controllers: host.lacking_controllers.clone().unwrap_or_default(),
            limits_pids: around.config.pods.pids_limit.is_some(),
            no_runtime,
        };
        (self.facts.as_ref() != Some(&facts)).then_some(facts)
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let collection = self.collecting.next_deadline().filter(|_| self.needed_images.is_some());
        let watch = self.reflector.watching.next_deadline();
        let rereading = self.node_uid.as_ref().map(|_| self.rereading.due);
        let work = self.lanes.work.next_deadline();
        let all = [self.pods.next_deadline(), watch, self.files.wake, collection, rereading, work];
        all.into_iter().flatten().min()
    }

    pub(crate) fn report(&self) -> Vec<PodReport> {
        self.pods.report()
    }

    pub(crate) fn is_report_complete(&self) -> bool {
        self.pods.is_report_complete()
    }
}

/// When the objects that pods refer to are read again. Objects are not watched one by one, because each watch
/// would need a connection.
#[derive(Debug, Clone)]
struct Rereading {
    /// `configMapAndSecretChangeDetectionStrategy: Get`.
    is_each_minute: bool,
    due: Duration,
    last: Duration,
    /// The latest change that a renewal reported.
    named: Option<u64>,
}

impl Rereading {
    fn new(is_each_minute: bool, turn: &mut Turn) -> Self {
        let last = turn.now.mono;
        let due = last.saturating_add(turn.jitter.stretch(REREAD_UNDER_GET, 0.25));
        Self { is_each_minute, due, last, named: None }
    }

    fn period(&self) -> Duration {
        match (self.is_each_minute, self.named) {
            (true, _) => REREAD_UNDER_GET,
            (false, Some(_)) => REREAD_AT_LEAST,
            (false, None) => REREAD_EVERY,
        }
    }

    /// Many changes lead to one round of reads: a renewal reports changes without their kind, so this one may
    /// be a change of a pod.
    fn named(&mut self, latest: u64, now: Duration) {
        if self.named.replace(latest) != Some(latest) {
            self.due = self.due.min(now.max(self.last.saturating_add(REREAD_AT_MOST)));
        }
    }

    fn is_due(&mut self, turn: &mut Turn) -> bool {
        let now = turn.now.mono;
        if now < self.due {
            return false;
        }
        (self.last, self.due) = (now, now.saturating_add(turn.jitter.stretch(self.period(), 0.25)));
        true
    }
}

/// The state of the other actors that pods depend on.
pub(crate) struct Around<'a> {
    pub(crate) node: Option<&'a api::Node>,
    pub(crate) facts: Option<&'a HostFacts>,
    pub(crate) config: &'a Config,
    /// The values of the last-known-good configuration while another configuration is on trial.
    pub(crate) floor: Option<&'a Floor>,
    pub(crate) pressures: &'a Pressures,
    pub(crate) is_held: bool,
}

fn is_released(node: &api::Node) -> bool {
    node.metadata.annotations.get(RELEASE_ANNOTATION).is_some_and(|value| value != "false")
}

fn read_of(answer: Answer) -> ObjectRead {
    match answer {
        Answer::Accepted(Some(object)) => ObjectRead::Found(object),
        Answer::Accepted(None) => ObjectRead::Failed("the answer has no object".into()),
        Answer::Refused { status: 404, .. } => ObjectRead::Missing,
        Answer::Refused { status: 403, .. } => ObjectRead::Refused(answer.to_string()),
        Answer::Refused { .. } | Answer::Failed(_) => ObjectRead::Failed(answer.to_string()),
    }
}

fn token_request(name: &TokenName) -> Value {
    let audiences: Vec<&String> =
        Some(&name.audience).filter(|audience| !audience.is_empty()).into_iter().collect();
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
        "spec": {"audiences": audiences, "expirationSeconds": name.expiration_secs,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name.pod.name, "uid": name.pod.uid}},
    })
}

fn token_of(answer: Answer) -> TokenRead {
    let Answer::Accepted(Some(object)) = &answer else { return TokenRead::Failed(answer.to_string()) };
    match (object["status"]["token"].as_str(), object["spec"]["expirationSeconds"].as_u64()) {
        (Some(token), Some(secs)) if !token.is_empty() => {
            TokenRead::Issued { token: token.to_owned(), life: Duration::from_secs(secs) }
        }
        _ => TokenRead::Failed("the answer has no token".into()),
    }
}

fn describe(request: &PodRequest) -> String {
    match request {
        PodRequest::PatchStatus(pod) => format!("patching the status of pod {}/{}", pod.namespace, pod.name),
        PodRequest::Delete(pod) => format!("deleting pod {}/{}", pod.namespace, pod.name),
        PodRequest::CreateMirror { namespace, name } => format!("creating mirror pod {namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Now;
    use crate::config::judge::PreviousRun;
    use crate::event::Request;
    use crate::kubelet::schema::{API_VERSION, KIND};
    use crate::kubelet::{self, LayerText, LocalLayers, Origin};
    use crate::options::Options;
    use crate::outbox::{LIMITS, Outbox};
    use crate::pace::Jitter;
    use crate::pods::event::{Inventory, StaticFile};
    use crate::pods::keys::PodUid;
    use crate::turn::Order;
    use api::Timestamp;

    struct Bench {
        actor: PodsActor,
        options: Options,
        outbox: Outbox<RequestKey, Order>,
        config: Config,
        facts: HostFacts,
        pressures: Pressures,
        node: api::Node,
    }

    fn options() -> Options {
        Options {
            node_name: "edge".into(),
            version: "0".into(),
            local: LocalLayers::default(),
            dynamic_config: false,
            node_labels: Default::default(),
            slot: None,
            slots: None,
            decommission: None,
            boot_id: String::new(),
            previous_run: PreviousRun::default(),
            seed: 1,
        }
    }

    impl Bench {
        /// A node with a runtime that works, nothing on its disk, and this Node.
        fn new() -> Self {
            Self::under("").0
        }

        /// The same under this configuration; also returns the actions until then.
        fn under(config: &str) -> (Self, Vec<Action>) {
            let options = options();
            let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{config}");
            let payload = LayerText { origin: Origin::Pushed("test".into()), text: text.into_bytes() };
            let config = kubelet::effective(&options.local, Some(&payload)).expect("it is valid").config;
            let mut outbox = Outbox::new(LIMITS);
            let now = Now { mono: Duration::from_secs(1), wall: Timestamp::default() };
            let (mut jitter, mut actions) = (Jitter::new(1), vec![]);
            let mut turn = Turn {
                now,
                options: &options,
                jitter: &mut jitter,
                outbox: &mut outbox,
                actions: &mut actions,
            };
            let actor = PodsActor::new(&config, &mut turn);
            let facts =
                HostFacts { cpus: 4, memory_bytes: 1 << 30, runtime: Runtime::Ready, ..HostFacts::default() };
            let (pressures, node) = (Pressures::default(), api::Node::default());
            let mut bench = Self { actor, options, outbox, config, facts, pressures, node };
            actions.extend(bench.at(1, |actor, turn| {
                actor.receive(PodEvent::DesiredRead(Ok(vec![])), turn);
                actor.receive(PodEvent::Inventory(Inventory::default()), turn);
            }));
            actions.extend(bench.node_is("node-1", false));
            (bench, actions)
        }

        /// Calls `act` at this time, settles, and returns the actions.
        fn at(&mut self, secs: u64, act: impl FnOnce(&mut PodsActor, &mut Turn)) -> Vec<Action> {
            let now = Now { mono: Duration::from_secs(secs), wall: Timestamp::default() };
            let (mut jitter, mut actions) = (Jitter::new(1), vec![]);
            let Self { actor, options, outbox, config, facts, pressures, node } = self;
            let mut turn = Turn { now, options, jitter: &mut jitter, outbox, actions: &mut actions };
            act(actor, &mut turn);
            let (node, facts) = (Some(&*node), Some(&*facts));
            let around = Around { node, facts, config, floor: None, pressures, is_held: false };
            actor.settle(&around, &mut turn);
            actions
        }

        fn node_is(&mut self, uid: &str, is_read: bool) -> Vec<Action> {
            self.node.metadata.uid = uid.into();
            let node = self.node.clone();
            self.at(2, |actor, turn| actor.node(Some(&node), is_read, turn))
        }

        /// Takes a list; returns whether the Node must be read, and the actions.
        fn listed(&mut self, pods: &[Value]) -> (bool, Vec<Action>) {
            let mut must_read = false;
            let actions = self.at(3, |actor, turn| must_read = actor.shown(Shown::All(pods.to_vec()), turn));
            (must_read, actions)
        }
    }

    fn pod(index: usize) -> Value {
        json!({"metadata": {"name": format!("p{index}"), "namespace": "d", "uid": format!("u-{index}")},
            "spec": {"containers": [{"name": "a", "image": "x:1"}]}, "status": {"phase": "Pending"}})
    }

    #[test]
    fn list_that_lacks_pods_waits_for_the_node() {
        for (uid, ends) in [("node-1", true), ("node-2", false)] {
            let mut bench = Bench::new();
            assert!(!bench.listed(&[pod(0)]).0);
            // the hub was wiped, or the pod is gone: undecided until the Node was read
            assert!(bench.listed(&[]).0);
            assert!(!bench.actor.report()[0].is_ending);
            bench.node_is(uid, true);
            assert!(!bench.listed(&[]).0 || ends, "of another Node there are no pods");
            let report = &bench.actor.report()[0];
            assert_eq!((report.is_ending, report.is_orphaned), (ends, !ends), "{uid}");
        }
    }

    /// The paths of static pods that are to be read.
    fn reads_of_files(actions: &[Action]) -> Vec<&str> {
        fn path(action: &Action) -> Option<&str> {
            let Action::Pods(order) = action else { return None };
            let PodAction::ReadStaticPods(path) = &**order else { return None };
            Some(path)
        }
        actions.iter().filter_map(path).collect()
    }

    #[test]
    fn static_files_are_read_again_after_each_answer() {
        let (mut bench, first) = Bench::under("staticPodPath: /srv/pods\nfileCheckFrequency: 30s\n");
        assert_eq!(reads_of_files(&first), ["/srv/pods"]);
        assert!(reads_of_files(&bench.at(100, |_, _| {})).is_empty(), "while they are being read");
        assert!(bench.actor.notices.is_empty());
        assert!(
            reads_of_files(&bench.at(1000, |_, _| {})).is_empty(),
            "a look that hangs is not joined by others"
        );
        let told = std::mem::take(&mut bench.actor.notices);
        assert!(
            matches!(&told[..], [notice] if notice.message.contains("/srv/pods was not read within 120 s")),
            "{told:?}"
        );
        bench.at(1000, |_, _| {});
        assert!(bench.actor.notices.is_empty() && bench.actor.files.wake.is_none(), "it is reported once");
        let files = PodEvent::StaticPods(Ok(vec![]));
        assert!(reads_of_files(&bench.at(1000, |actor, turn| actor.receive(files, turn))).is_empty());
        assert_eq!(bench.actor.next_deadline(), Some(Duration::from_secs(1030)));
        assert_eq!(reads_of_files(&bench.at(1030, |_, _| {})), ["/srv/pods"]);
        bench.at(1031, |actor, turn| actor.receive(PodEvent::StaticPodsUnchanged, turn));
        assert_eq!(reads_of_files(&bench.at(1061, |_, _| {})), ["/srv/pods"]);
        let (mut without, first) = Bench::under("staticPodPath: ''\n");
        assert!(reads_of_files(&first).is_empty() && reads_of_files(&without.at(1000, |_, _| {})).is_empty());
    }

    #[test]
    fn objects_are_read_again_when_one_may_have_changed() {
        let at = Duration::from_secs;
        let options = options();
        let reads = |rereading: &mut Rereading, secs: u64| {
            let now = Now { mono: at(secs), wall: Timestamp::default() };
            let (mut jitter, mut actions) = (Jitter::new(1), vec![]);
            let (options, outbox) = (&options, &mut Outbox::new(LIMITS));
            rereading.is_due(&mut Turn { now, options, jitter: &mut jitter, outbox, actions: &mut actions })
        };
        let started = |is_each_minute: bool| {
            let now = Now { mono: at(0), wall: Timestamp::default() };
            let (mut jitter, mut actions) = (Jitter::new(1), vec![]);
            let (options, outbox) = (&options, &mut Outbox::new(LIMITS));
            let turn = &mut Turn { now, options, jitter: &mut jitter, outbox, actions: &mut actions };
            Rereading::new(is_each_minute, turn)
        };
        let mut without = started(false);
        assert!(!reads(&mut without, 59) && reads(&mut without, 75), "what changed before the start");
        assert!((at(675)..=at(825)).contains(&without.due), "{:?}", without.due);
        let mut named = started(false);
        named.named(7, at(10));
        assert!(!reads(&mut named, 19) && reads(&mut named, 20));
        named.named(7, at(30));
        assert!(!reads(&mut named, 3619), "nothing moved");
        assert!((at(3620)..=at(4520)).contains(&named.due), "{:?}", named.due);
        named.named(8, at(120));
        named.named(9, at(130));
        assert!(!reads(&mut named, 119) && reads(&mut named, 130), "once for both");
        named.named(10, at(131));
        assert!(!reads(&mut named, 149) && reads(&mut named, 150), "not too often");
        let mut each = started(true);
        assert!(
            !reads(&mut each, 59) && reads(&mut each, 75) && !reads(&mut each, 134) && reads(&mut each, 150)
        );
    }

    #[test]
    fn images_are_collected_once_needs_are_noted() {
        let (mut bench, first) = Bench::under("");
        let is_collection = |action: &Action| matches!(action, Action::Pods(order) if matches!(**order, PodAction::CollectImages(_)));
        let noted = first.iter().position(|action| matches!(action, Action::NeedImages { .. }));
        let begun = first.iter().position(is_collection);
        assert!(noted.is_some() && begun > noted, "{first:?}");
        let failed = PodEvent::ImagesCollected(Err("the disk failed".into()));
        assert!(!bench.at(1000, |_, _| {}).iter().any(is_collection), "one at a time");
        bench.at(1000, |actor, turn| actor.receive(failed, turn));
        assert_eq!(bench.actor.next_deadline(), Some(Duration::from_secs(1300)));
        assert!(bench.at(1300, |_, _| {}).iter().any(is_collection));
    }

    #[test]
    fn static_pod_runs_without_any_api_server() {
        let (mut bench, _) = Bench::under("staticPodPath: /srv/pods\n");
        bench.at(2, |actor, turn| actor.node(None, false, turn));
        let noted = |actions: &[Action]| {
            let note = actions.iter().find_map(|action| match action {
                Action::NeedImages { images, is_all } => {
                    Some((images.iter().cloned().collect::<Vec<_>>(), *is_all))
                }
                _ => None,
            });
            note.expect("the images are noted")
        };
        let good = "apiVersion: v1\nkind: Pod\nmetadata: {name: w}\nspec: {hostNetwork: true, containers: [{name: a, image: 'x:1'}]}";
        let file = |name: &str, text: &str| StaticFile {
            path: format!("/srv/pods/{name}"),
            content: Ok(text.into()),
        };
        let files = PodEvent::StaticPods(Ok(vec![file("a", good), file("b", "kind: [")]));
        let actions = bench.at(3, |actor, turn| actor.receive(files, turn));
        let prepares = actions.iter().any(|action| matches!(action, Action::Pods(order) if matches!(&**order, PodAction::PreparePod(pod) if pod.name == "w-edge")));
        assert!(prepares, "{actions:?}");
        assert_eq!(noted(&actions), (vec!["x:1".to_owned()], false), "the broken file may need others");
        let [notice] = &bench.actor.notices[..] else { panic!("{:?}", bench.actor.notices) };
        assert!(
            notice.warning && notice.reason == "FailedValidation" && notice.message.contains("/srv/pods/b")
        );
        let files = PodEvent::StaticPods(Ok(vec![file("a", good)]));
        let actions = bench.at(4, |actor, turn| actor.receive(files, turn));
        assert_eq!(noted(&actions), (vec!["x:1".to_owned()], true));
    }

    #[test]
    fn writes_and_requests_are_few_at_once() {
        let mut bench = Bench::new();
        let pods: Vec<Value> = (0..20).map(pod).collect();
        let (_, actions) = bench.listed(&pods);
        let writes = |actions: &[Action]| {
            let write = |action: &&Action| matches!(action, Action::Pods(order) if matches!(**order, PodAction::SaveDesired { .. }));
            actions.iter().filter(write).count()
        };
        assert_eq!(writes(&actions), WRITES_AT_ONCE);
        let now = Now { mono: Duration::from_secs(3), wall: Timestamp::default() };
        let sent = std::iter::from_fn(|| bench.outbox.take_due(now)).count();
        assert!((1..=usize::from(WORK_SLOTS + READ_SLOTS + NEWS_SLOTS)).contains(&sent), "{sent}");
        let file = PodUid::new("u-0").map(crate::pods::event::DesiredFile::Pod);
        let saved = PodEvent::DesiredSaved { file: file.expect("it is a UID"), done: Ok(()) };
        assert_eq!(writes(&bench.at(4, |actor, turn| actor.receive(saved, turn))), 1);
    }

    #[test]
    fn answers_to_pods_that_are_too_many_wait_once() {
        let mut bench = Bench::new();
        let pods: Vec<Value> = (0..450).map(pod).collect();
        (0..3).for_each(|_| _ = bench.listed(&pods));
        let Lane { waiting, later, .. } = &bench.actor.lanes.work;
        let (known, others) = (waiting.len(), later.len());
        assert!((1..pods.len()).contains(&others) && known + others <= pods.len(), "{known} {others}");
        // a running pod does not wait for them
        let mut ending = pod(0);
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        bench.at(4, |actor, turn| actor.seen(ending, turn));
        let told =
            |ask: &Ask| matches!(&ask.purpose, Purpose::Work(request) if bench.actor.pods.remembers(request));
        assert!(bench.actor.lanes.work.waiting.iter().all(told));
        assert!(!bench.actor.lanes.work.later.iter().any(told));
    }

    #[test]
    fn what_another_server_was_asked_is_asked_again() {
        let mut bench = Bench::new();
        bench.listed(&[pod(0)]);
        let sent = |bench: &mut Bench, secs: u64| {
            let now = Now { mono: Duration::from_secs(secs), wall: Timestamp::default() };
            std::iter::from_fn(|| bench.outbox.take_due(now)).count()
        };
        assert!(sent(&mut bench, 3) > 0, "its status");
        bench.at(4, |actor, turn| {
            turn.outbox.server_changed();
            actor.server_changed(turn);
        });
        assert!(bench.actor.lanes.work.is_idle());
        bench.node_is("node-1", true);
        bench.listed(&[pod(0)]);
        bench.at(400, |_, _| {});
        assert!(sent(&mut bench, 400) > 0, "in a slot that no answer is awaited in");
    }

    /// The Event that is sent at this time, by slot and name.
    fn event_sent(bench: &mut Bench, secs: u64) -> Option<(u8, String)> {
        bench.at(secs, |_, _| {});
        let now = Now { mono: Duration::from_secs(secs), wall: Timestamp::default() };
        std::iter::from_fn(|| bench.outbox.take_due(now)).find_map(|(_, order)| match order {
            Order::Request(Request::Pods { slot, ask }) => match *ask {
                PodAsk::PostEvent { body, .. } => Some((slot, body["metadata"]["name"].to_string())),
                _ => None,
            },
            _ => None,
        })
    }

    fn announce(bench: &mut Bench, reason: &'static str) {
        let news = PodNews {
            pod: PodRef { namespace: "d".into(), name: "p0".into(), uid: "u-0".into() },
            field_path: String::new(),
            is_warning: true,
            is_urgent: false,
            reason,
            message: "m".into(),
        };
        bench.at(5, |actor, turn| actor.order(PodAction::RecordEvent(news), turn));
    }

    fn refused(status: u16, retry_after: Option<Duration>) -> Answer {
        Answer::Refused { status, reason: "R".into(), message: "m".into(), retry_after }
    }

    fn warnings(actions: &[Action]) -> usize {
        actions.iter().filter(|action| matches!(action, Action::Log(Level::Warn, _))).count()
    }

    #[test]
    fn event_that_was_not_taken_is_sent_again_under_its_name() {
        let again =
            [Answer::Failed("no".into()), refused(503, None), refused(429, Some(Duration::from_secs(40)))];
        for answer in again {
            let mut bench = Bench::new();
            announce(&mut bench, "First");
            let (slot, first) = event_sent(&mut bench, 5).expect("it is sent");
            let wait = answer.retry_after().as_secs();
            bench.at(6, |actor, turn| actor.answered(slot, answer, turn));
            assert_eq!(event_sent(&mut bench, 6), None, "not at once");
            assert!(
                wait == 0 || event_sent(&mut bench, 5 + wait).is_none(),
                "not before the server wants it"
            );
            assert_eq!(event_sent(&mut bench, 50), Some((slot, first)));
            // it was taken at the first try, whose answer got lost
            let actions = bench.at(51, |actor, turn| actor.answered(slot, refused(409, None), turn));
            assert_eq!((warnings(&actions), event_sent(&mut bench, 500)), (0, None));
            assert!(bench.actor.lanes.news.is_idle());
        }
    }

    #[test]
    fn event_that_is_refused_for_good_is_dropped_and_that_is_logged_once() {
        let mut bench = Bench::new();
        let logged: Vec<usize> = [(403, 10), (403, 20), (404, 30)]
            .map(|(status, at)| {
                announce(&mut bench, "Refused");
                let (slot, _) = event_sent(&mut bench, at).expect("it is sent");
                let actions =
                    bench.at(at + 1, |actor, turn| actor.answered(slot, refused(status, None), turn));
                warnings(&actions)
            })
            .into();
        assert_eq!((logged, event_sent(&mut bench, 500)), (vec![1, 0, 1], None));
    }

    #[test]
    fn event_that_the_server_never_takes_holds_up_no_other_and_ends() {
        let mut bench = Bench::new();
        announce(&mut bench, "Never");
        let (slot, never) = event_sent(&mut bench, 5).expect("it is sent");
        announce(&mut bench, "Other");
        let (mut at, mut tries, mut others, mut logged) = (5, 1, Vec::new(), 0);
        let mut name = never.clone();
        loop {
            let answer = if name == never { refused(500, None) } else { Answer::Accepted(None) };
            logged += warnings(&bench.at(at, |actor, turn| actor.answered(slot, answer, turn)));
            at += 60;
            let Some((_, next)) = event_sent(&mut bench, at) else { break };
            name = next;
            match name == never {
                true => tries += 1,
                false => others.push(tries),
            }
        }
        assert_eq!((tries, others, logged), (usize::from(NEWS_TRIES), vec![1], 1));
    }

    #[test]
    fn event_on_its_way_to_another_server_is_sent_to_the_next() {
        let mut bench = Bench::new();
        announce(&mut bench, "Moved");
        let (slot, name) = event_sent(&mut bench, 5).expect("it is sent");
        bench.at(6, |actor, turn| {
            turn.outbox.server_changed();
            actor.server_changed(turn);
        });
        assert_eq!(event_sent(&mut bench, 7), None, "its slot is free once the first has answered");
        assert!(bench.outbox.is_answered_by_another_server(&RequestKey::Pods(slot)));
        assert_eq!(event_sent(&mut bench, 8), Some((slot, name)));
    }

    #[test]
    fn events_that_wait_stay_bounded_while_none_is_taken() {
        let mut bench = Bench::new();
        for at in 0..300 {
            announce(&mut bench, "Many");
            if let Some((slot, _)) = event_sent(&mut bench, 5 + at * 60) {
                let none = Answer::Failed("no".into());
                bench.at(6 + at * 60, |actor, turn| actor.answered(slot, none, turn));
            }
            assert!(bench.actor.lanes.news.waiting.len() <= PENDING_NEWS + 1);
        }
    }
}
