//! The API server as the streams see it, and the requests on two of them: renewals, and core's other
//! requests.
//!
//! Always holds: each order is answered by one event, whatever happens; the kubeconfig may appear, vanish and
//! change while we run. Leaves to others: the content of requests and when they are repeated (core), the
//! bytes (`net`), the watches (`watches`).

use crate::errors::chain;
use crate::faults::Faults;
use crate::identity::trust::Taking;
use crate::locks::locked;
use crate::net::client::{
    Api, Client, MERGE_PATCH, METADATA_UNREAD, Request as HttpRequest, STRATEGIC_MERGE_PATCH,
};
use crate::net::credentials::ApiOptions;
use crate::net::error::NetError;
use crate::net::kubeconfig::ServerAddress;
use crate::net::outcomes::Warned;
use crate::net::servers::Servers;
use crate::net::transport::WallClock;
use crate::node_name;
use crate::perform::thread::{NETWORK_TURN, RENEW, spawn};
use crate::perform::watches::bound_to;
use crate::queue::{Receiver, RecvTimeoutError, sync_channel};
use kedge_api as api;
use kedge_core::pods::{ObjectKind, ObjectName, PodAsk};
use kedge_core::{Answer, Event, LeaseRequest, Request};
use kedge_platform::Watchdog;
use kedge_platform::linux::{self, give_back_stack, read_named_file};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender as EventSender;

/// How long one request may take, lookup and connection included.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(20);

/// Pods in one page of those that are rejected.
const REJECTED_AT_ONCE: usize = 10;

/// How long a stream waits for the kubeconfig to be read for the first time. Four streams may wait one after
/// the other, within the limit of a turn.
const OPENING_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection that is not kept waits for another request: requests about one change follow each
/// other closely.
const LINGER: Duration = Duration::from_secs(2);

/// How far the server's kubeconfig was read.
#[derive(Default)]
enum Opening {
    /// Not read yet, or without success.
    #[default]
    No,
    /// It is being read.
    UnderWay(Receiver<Result<Arc<Api>, String>>),
    /// It was read.
    Done(Arc<Api>),
}

/// How far the server's kubeconfig was read, for the local endpoint.
#[derive(Default)]
struct Shown {
    api: Option<Arc<Api>>,
    problem: Option<String>,
}

/// One API server, as the streams see it: the kubeconfig may appear, vanish and change while we run.
#[derive(Clone)]
pub(crate) struct ApiServer {
    pub(crate) node_name: String,
    /// Notified when the credential is another node's; `None` if this name was given, and stays.
    renamed: Option<Arc<Notify>>,
    is_name_logged: Arc<AtomicBool>,
    kubeconfig: Option<PathBuf>,
    own: PathBuf,
    clock: WallClock,
    pub(crate) servers: Servers,
    api: Arc<Mutex<Opening>>,
    /// The part for the local endpoint: never locked while anything blocks.
    shown: Arc<Mutex<Shown>>,
    forms: Arc<Forms>,
    /// Only the stream of renewals keeps its connection while it is idle.
    one_connection: Arc<AtomicBool>,
    pub(crate) events: EventSender<Event>,
    pub(crate) faults: Faults,
}

impl ApiServer {
    pub(crate) fn new(
        node_name: String,
        renamed: Option<Arc<Notify>>,
        (kubeconfig, own): (Option<PathBuf>, PathBuf),
        clock: WallClock,
        servers: Servers,
        events: EventSender<Event>,
        faults: Faults,
    ) -> Self {
        Self {
            node_name,
            renamed,
            is_name_logged: Arc::default(),
            kubeconfig,
            own,
            clock,
            servers,
            api: Arc::default(),
            shown: Arc::default(),
            forms: Arc::default(),
            one_connection: Arc::default(),
            events,
            faults,
        }
    }

    /// The server's part of `kedge status --output json`. Never blocks.
    pub(crate) fn for_status(&self) -> Value {
        let shown = locked(&self.shown);
        let kubeconfig = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        let mut report = shown.api.as_ref().map_or_else(|| json!({}), |api| api.outcomes().report());
        report["credentialNode"] = json!(shown.api.as_ref().and_then(|api| api.node()));
        report["url"] = json!(shown.api.as_ref().map(|api| api.url()));
        report["kubeconfig"] = json!(kubeconfig);
        report["problem"] = json!(shown.problem);
        report
    }

    /// The server, opened at first use: the agent runs without a kubeconfig until there is one.
    pub(crate) fn api(&self) -> Result<Arc<Api>, String> {
        let opened = self.opened();
        let (api, problem) = (opened.as_ref().ok().cloned(), opened.as_ref().err().cloned());
        *locked(&self.shown) = Shown { api, problem };
        opened
    }

    fn opened(&self) -> Result<Arc<Api>, String> {
        let mut api = locked(&self.api);
        let kubeconfig = self
            .kubeconfig
            .as_ref()
            .ok_or("no --kubeconfig is given, so the local configuration alone runs")?;
        let opening = match std::mem::take(&mut *api) {
            Opening::Done(opened) => {
                *api = Opening::Done(opened.clone());
                return Ok(opened);
            }
            Opening::UnderWay(opening) => opening,
            Opening::No => self.open(kubeconfig).map_err(|error| format!("start a thread: {error}"))?,
        };
        match opening.recv_timeout(OPENING_LIMIT) {
            Ok(Ok(opened)) => {
                log::info!("kubeconfig {}: API server {}", kubeconfig.display(), opened.url());
                self.check_name(&opened);
                *api = Opening::Done(opened.clone());
                Ok(opened)
            }
            Ok(Err(why)) => Err(why),
            Err(RecvTimeoutError::Disconnected) => {
                Err(format!("kubeconfig {}: it was not read", kubeconfig.display()))
            }
            Err(RecvTimeoutError::Timeout) => {
                *api = Opening::UnderWay(opening);
                let secs = OPENING_LIMIT.as_secs();
                Err(format!(
                    "kubeconfig {}: it, or a file it names, was not read within {secs} s",
                    kubeconfig.display()
                ))
            }
        }
    }

    /// Checks whether the credential is another node's: from the beginning, because it was handed over after
    /// this run began, or because it was replaced.
    fn check_name(&self, api: &Api) {
        let (node, kubeconfig) = (api.node(), self.kubeconfig.as_deref().unwrap_or(Path::new("")));
        let conflict =
            node_name::conflict(&self.node_name, node.as_deref(), &kubeconfig.display().to_string());
        let Some(why) = conflict else { return };
        match &self.renamed {
            Some(renamed) => renamed.notify_one(),
            None if !self.is_name_logged.swap(true, Ordering::Relaxed) => log::warn!("{why}"),
            None => {}
        }
    }

    /// The way to the server of a kubeconfig.
    pub(super) fn options(&self, kubeconfig: PathBuf, own: Option<PathBuf>) -> ApiOptions {
        let proxies = crate::net::proxy::ProxyEnvironment::of_process();
        ApiOptions { kubeconfig, own, clock: self.clock.clone(), proxies }
    }

    /// The parts for taking other authorities; `None` without a kubeconfig.
    pub(super) fn taking(&self) -> Option<Taking> {
        let kubeconfig = self.kubeconfig.clone()?;
        let used = self.servers.used();
        Some(Taking {
            files: linux::files(self.own.parent()?),
            own: self.own.clone(),
            kubeconfig,
            server: used.map(|used| ServerAddress {
                host: used.host,
                port: used.port,
                base_path: String::new(),
            }),
            clock: self.clock.clone(),
        })
    }

    /// Reads the kubeconfig on a thread that may hang with the disk: at most one, shared by all streams that
    /// wait for it.
    fn open(&self, kubeconfig: &Path) -> std::io::Result<Receiver<Result<Arc<Api>, String>>> {
        let options = self.options(kubeconfig.to_owned(), Some(self.own.clone()));
        let (opened, opening) = sync_channel(1);
        let (faults, servers) = (self.faults.clone(), self.servers.clone());
        let read = Arc::new(move |path: &Path, limit: usize| {
            faults.gate("kubeconfig");
            read_named_file(path, limit)
        });
        spawn("open", move || {
            let _ = opened.send(Api::open_choosing(options, read, servers).map_err(|error| chain(&error)));
        })?;
        Ok(opening)
    }

    pub(crate) fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        watchdog: &mut Watchdog,
        orders: Receiver<T>,
        perform: impl Fn(&Self, Result<&Client, String>, T) -> (u64, Event) + Send + 'static,
    ) -> std::io::Result<()> {
        let token = watchdog.watch(name, NETWORK_TURN);
        let server = self.clone();
        spawn(name, move || {
            let mut kept = None;
            loop {
                token.idle();
                let Some(order) = server.next_order(name, &orders, &mut kept) else { return };
                token.busy();
                server.faults.point(name);
                let client = kept.take().map_or_else(|| server.api().map(|api| api.stream(name)), Ok);
                let (number, event) = perform(&server, client.as_ref().map_err(Clone::clone), order);
                kept = client.ok();
                if let Some(client) = &kept {
                    server.check_name(client.api());
                }
                // the first stream that notices another server announces it
                let now = kept.as_ref().map_or(number, |client| client.api().server());
                server.heard(now.max(number), event);
            }
        })
        .map(drop)
    }

    /// Waits for an order; `None` if there will be none. A connection that is not to be kept is closed
    /// meanwhile.
    fn next_order<T>(&self, name: &str, orders: &Receiver<T>, kept: &mut Option<Client>) -> Option<T> {
        // a handshake or an answer used more stack than this wait
        give_back_stack();
        if name != RENEW && kept.is_some() && self.one_connection.load(Ordering::Relaxed) {
            match orders.recv_timeout(LINGER) {
                Err(RecvTimeoutError::Timeout) => *kept = None,
                order => return order.ok(),
            }
        }
        orders.recv().ok()
    }

    /// See [`super::Loops::keep_one_connection`].
    pub(crate) fn keep_one_connection(&self) {
        self.one_connection.store(true, Ordering::Relaxed);
    }

    /// Sends an event, with the number of the server that it came from.
    pub(crate) fn heard(&self, server: u64, event: Event) {
        let _ = self.events.blocking_send(Event::Heard { server, event: Box::new(event) });
    }

    pub(crate) fn renew(
        &self,
        client: Result<&Client, String>,
        request: LeaseRequest,
        deadline: Duration,
    ) -> Event {
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", api::NODE_LEASE_NAMESPACE);
        let lease = format!("{leases}/{}", self.node_name);
        let patch = |body: &Value| HttpRequest::patch(&lease, MERGE_PATCH, json_bytes(body), deadline);
        let number = client.as_ref().map_or(0, |client| client.api().server());
        let (request, form) = match request {
            LeaseRequest::Renew(time) if self.forms.takes_time_alone(number) => {
                let body = time.into_bytes();
                let patch = HttpRequest::patch(&lease, api::RENEWAL_MEDIA, body, deadline);
                (HttpRequest { names_agent: false, ..patch }, Form::TimeAlone)
            }
            LeaseRequest::Renew(time) => {
                self.forms.of_renewal(number, patch(&json!({"spec": {"renewTime": time}})))
            }
            LeaseRequest::Patch(body) => self.forms.of_renewal(number, patch(&body)),
            LeaseRequest::Create(body) => {
                self.forms.of_renewal(number, HttpRequest::post(leases, json_bytes(&body), deadline))
            }
        };
        let request = HttpRequest { is_routine: true, ..request };
        let Sent { answer, is_judged, latest, calls, offers_time_alone } = send(client, &request, false);
        if !calls.is_empty() {
            self.heard(number, Event::Called(calls));
        }
        match is_judged {
            true => self.forms.answered(number, form, &answer, offers_time_alone),
            false => self.forms.unanswered(),
        }
        match (answer, latest) {
            (Answer::Accepted(_), Some(latest)) => Event::RenewedAsOf(latest),
            (answer, _) => Event::Renewed(answer),
        }
    }

    pub(crate) fn transfer(&self, client: Result<&Client, String>, request: &Request) -> Answer {
        let node = format!("/api/v1/nodes/{}", self.node_name);
        let deadline = REQUEST_DEADLINE;
        let wants_object = match request {
            // these answers show the version of the Node after the change; our hub sends no object, because
            // it is not requested
            Request::Version
            | Request::Register(_)
            | Request::PatchStatus(_)
            | Request::PatchLabels(_)
            | Request::PatchNode(_) => true,
            Request::Pods { ask, .. } => {
                matches!(**ask, PodAsk::Read(_) | PodAsk::Create { .. } | PodAsk::CreateToken { .. })
            }
            _ => false,
        };
        let http = match request {
            Request::Version => HttpRequest::get("/version", deadline),
            Request::Register(body) => {
                HttpRequest::post("/api/v1/nodes", json_bytes(body), deadline).with_smallest_answer()
            }
            Request::PatchStatus(body) => HttpRequest::patch(
                format!("{node}/status"),
                STRATEGIC_MERGE_PATCH,
                json_bytes(body),
                deadline,
            )
            .with_smallest_answer(),
            Request::PatchLabels(body) => {
                let mut request = HttpRequest::patch(node, MERGE_PATCH, json_bytes(body), deadline);
                // the mirrored status has the same path, and its success says nothing about the labels
                request.part = " (labels)";
                request.with_smallest_answer()
            }
            Request::PatchNode(body) => {
                HttpRequest::patch(node, MERGE_PATCH, json_bytes(body), deadline).with_smallest_answer()
            }
            Request::PostEvent(body) => {
                HttpRequest::post("/api/v1/namespaces/default/events", json_bytes(body), deadline)
                    .with_smallest_answer()
            }
            Request::Pods { ask, .. } => of_pods(ask, deadline),
            Request::RejectPods => return reject_pods(&client, &self.node_name),
        };
        let number = client.as_ref().map_or(0, |client| client.api().server());
        let answer = send(client, &http, wants_object).answer;
        if let (Request::Version, Answer::Accepted(Some(version))) = (request, &answer) {
            self.forms.learn(number, kedge_core::is_hub_version(version));
        }
        answer
    }
}

/// Rejects the pods that are bound to this node: one after the other, and at the next try what remains.
fn reject_pods(client: &Result<&Client, String>, node_name: &str) -> Answer {
    let page = format!("/api/v1/pods?{}&limit={REJECTED_AT_ONCE}", bound_to(node_name));
    let (mut path, end) = (page.clone(), Instant::now() + REQUEST_DEADLINE);
    let late = || Answer::Failed("there are more pods than fit into one turn".into());
    while Instant::now() < end {
        let list = match send(client.clone(), &HttpRequest::get(&path, REQUEST_DEADLINE), true).answer {
            Answer::Accepted(list) => list.unwrap_or_default(),
            other => return other,
        };
        let Some(pods) = list["items"].as_array() else {
            return Answer::Failed("the answer has no list of pods".into());
        };
        for ask in pods.iter().flat_map(|pod| kedge_core::pods::rejection(pod, node_name)) {
            if Instant::now() > end {
                return late();
            }
            match send(client.clone(), &of_pods(&ask, REQUEST_DEADLINE), false).answer {
                // one that is gone, or another pod by now
                Answer::Accepted(_) | Answer::Refused { status: 404 | 409, .. } => {}
                other => return other,
            }
        }
        match list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(token) => path = format!("{page}&continue={}", api::percent_encoded(token)),
            None => return Answer::Accepted(None),
        }
    }
    late()
}

/// The requests of pods.
fn of_pods(ask: &PodAsk, deadline: Duration) -> HttpRequest {
    let namespaced = |namespace: &str, plural: &str| {
        format!("/api/v1/namespaces/{}/{plural}", api::percent_encoded(namespace))
    };
    let named = |namespace: &str, plural: &str, name: &str| {
        format!("{}/{}", namespaced(namespace, plural), api::percent_encoded(name))
    };
    match ask {
        PodAsk::PatchStatus { pod, body } => {
            let path = format!("{}/status", named(&pod.namespace, "pods", &pod.name));
            HttpRequest::patch(path, STRATEGIC_MERGE_PATCH, json_bytes(body), deadline).with_smallest_answer()
        }
        PodAsk::Delete(pod) => {
            let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}});
            let path = named(&pod.namespace, "pods", &pod.name);
            HttpRequest::delete_with(path, json_bytes(&options), deadline).with_smallest_answer()
        }
        PodAsk::Create { namespace, body } => {
            HttpRequest::post(namespaced(namespace, "pods"), json_bytes(body), deadline)
        }
        PodAsk::Read(ObjectName { kind, namespace, name }) => {
            let plural = match kind {
                ObjectKind::ConfigMap => "configmaps",
                ObjectKind::Secret => "secrets",
            };
            HttpRequest::get(named(namespace, plural, name), deadline)
        }
        PodAsk::CreateToken { namespace, account, body } => {
            let path = format!("{}/token", named(namespace, "serviceaccounts", account));
            HttpRequest::post(path, json_bytes(body), deadline)
        }
        PodAsk::PostEvent { namespace, body } => {
            HttpRequest::post(namespaced(namespace, "events"), json_bytes(body), deadline)
                .with_smallest_answer()
        }
    }
}

/// The form of a renewal, the most frequent request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Its body is its time alone, which the server has offered to accept. The answer is the smallest.
    TimeAlone,
    /// It requests a small answer.
    Short,
    /// It has nothing that a server, or a gateway before it, might not understand.
    Plain,
}

/// Most misses that count: a server that refuses short forms is offered one again after 255 renewals.
const MOST_MISSES: u32 = 8;

/// One in this many consecutive renewals without any answer is plain: a gateway that swallows the shorter
/// forms must not silence a Lease, which lasts four periods.
const PLAIN_OF_UNANSWERED: u32 = 3;

/// Decides the form of the next renewal. However a server treats a shorter form, it silences no Lease: after
/// any refused renewal the next is plain, and each refused shorter one doubles the number of plain ones. A
/// missing answer does not count against a form: otherwise an outage would suppress the news that only
/// answers to shorter forms carry.
#[derive(Default)]
struct Forms(Mutex<Shortness>);

#[derive(Default)]
struct Shortness {
    /// The number of the server whose version is known, and whether it is our hub.
    known: Option<(u64, bool)>,
    /// The number of the server that offered to accept a time alone.
    offered: Option<u64>,
    /// Consecutive shorter renewals that were not accepted.
    misses: u32,
    /// Plain renewals to be accepted before a short one is tried.
    plain: u32,
    /// Consecutive renewals, in any form, without an answer.
    unanswered: u32,
}

impl Shortness {
    fn is_plain_next(&self) -> bool {
        self.plain > 0 || self.unanswered % PLAIN_OF_UNANSWERED == PLAIN_OF_UNANSWERED - 1
    }
}

impl Forms {
    fn learn(&self, server: u64, is_hub: bool) {
        let mut forms = locked(&self.0);
        let plain = forms.plain.min(1);
        *forms = Shortness { known: Some((server, is_hub)), misses: 0, plain, ..*forms };
    }

    fn takes_time_alone(&self, server: u64) -> bool {
        let forms = locked(&self.0);
        !forms.is_plain_next() && forms.offered == Some(server)
    }

    /// The request in its form, with the smallest answer that its server gives. Our hub understands one short
    /// header.
    fn of_renewal(&self, server: u64, request: HttpRequest) -> (HttpRequest, Form) {
        let forms = locked(&self.0);
        if forms.is_plain_next() {
            return (request, Form::Plain);
        }
        let is_hub = forms.known.filter(|(known, _)| *known == server).map(|(_, is_hub)| is_hub);
        let request = match is_hub {
            Some(true) => HttpRequest { prefer_minimal: true, ..request },
            Some(false) => HttpRequest { accept: Some(METADATA_UNREAD), ..request },
            None => request.with_smallest_answer(),
        };
        (request, Form::Short)
    }

    fn unanswered(&self) {
        let mut forms = locked(&self.0);
        forms.unanswered = forms.unanswered.wrapping_add(1);
    }

    /// `offers`: the answer offers to accept a time alone. A server that refuses the type, such as an older
    /// hub, has to offer it again.
    fn answered(&self, server: u64, form: Form, answer: &Answer, offers: bool) {
        let mut forms = locked(&self.0);
        forms.unanswered = 0;
        if offers {
            forms.offered = Some(server);
        } else if form == Form::TimeAlone && matches!(answer, Answer::Refused { status: 415, .. }) {
            forms.offered = None;
        }
        match (form, matches!(answer, Answer::Accepted(_))) {
            (Form::Short | Form::TimeAlone, true) => forms.misses = 0,
            (Form::Short | Form::TimeAlone, false) => {
                forms.misses = (forms.misses + 1).min(MOST_MISSES);
                forms.plain = (1 << forms.misses) - 1;
            }
            (Form::Plain, true) => forms.plain = forms.plain.saturating_sub(1),
            (Form::Plain, false) => {}
        }
    }
}

fn json_bytes(body: &Value) -> Vec<u8> {
    serde_json::to_vec(body).expect("a JSON value can be written")
}

/// The outcome of a request.
struct Sent {
    answer: Answer,
    /// Whether the answer came from a server or gateway, so it says something about the request.
    is_judged: bool,
    /// The latest change that concerns the node, if the answer has it.
    latest: Option<u64>,
    /// Ids of calls that wait for the node, if the answer has some.
    calls: Vec<String>,
    /// The answer offers to accept a renewal as its time alone.
    offers_time_alone: bool,
}

impl Sent {
    fn failed(answer: Answer) -> Self {
        Self { answer, is_judged: false, latest: None, calls: Vec::new(), offers_time_alone: false }
    }
}

fn send(client: Result<&Client, String>, request: &HttpRequest, wants_object: bool) -> Sent {
    let client = match client {
        Ok(client) => client,
        Err(why) => return Sent::failed(Answer::Failed(why)),
    };
    match client.request(request) {
        Ok(response) => {
            for warning in &response.warnings {
                let then = match client.api().outcomes().warned(warning) {
                    Warned::Before => continue,
                    Warned::New => "",
                    Warned::Last => " (the last warning of this server that is logged)",
                };
                log::warn!("{}: {warning}{then}", response.request);
            }
            let answer = Answer::Accepted(if wants_object { response.json().ok() } else { None });
            Sent {
                answer,
                is_judged: true,
                latest: response.desired,
                calls: response.calls,
                offers_time_alone: response.takes_time_alone,
            }
        }
        Err(error) => {
            let is_judged = error.status().is_some() || matches!(error, NetError::Garbled { .. });
            Sent { is_judged, ..Sent::failed(failure(error)) }
        }
    }
}

fn failure(error: NetError) -> Answer {
    match error {
        NetError::Unauthorized { message, .. } => {
            Answer::Refused { status: 401, reason: "Unauthorized".into(), message, retry_after: None }
        }
        NetError::Refused { status, reason, message, retry_after, .. } => {
            Answer::Refused { status, reason, message, retry_after }
        }
        other => Answer::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::client::METADATA_ONLY;

    /// The `Accept` of the next renewal, and whether it prefers a minimal answer.
    fn next(forms: &Forms, server: u64) -> (Option<&'static str>, bool) {
        let (request, _) = forms.of_renewal(server, HttpRequest::get("/lease", REQUEST_DEADLINE));
        (request.accept, request.prefer_minimal)
    }

    fn refused(status: u16) -> Answer {
        Answer::Refused { status, reason: String::new(), message: "no".into(), retry_after: None }
    }

    #[test]
    fn time_alone_is_sent_to_the_server_that_offers_it() {
        let forms = Forms::default();
        let takes = |server| forms.takes_time_alone(server);
        assert!(!takes(0), "nothing was offered");
        forms.answered(0, Form::Short, &Answer::Accepted(None), true);
        assert!(takes(0) && !takes(1));
        forms.learn(0, true);
        assert!(takes(0), "what it is says nothing about it");
        // a refused renewal: the next has the form that any server understands
        forms.answered(0, Form::TimeAlone, &refused(500), false);
        assert!(!takes(0));
        forms.answered(0, Form::Plain, &Answer::Accepted(None), false);
        assert!(takes(0));
        // an older hub in its place
        forms.answered(0, Form::TimeAlone, &refused(415), false);
        (0..300).for_each(|_| forms.answered(0, Form::Plain, &Answer::Accepted(None), false));
        assert!(!takes(0));
        forms.answered(0, Form::Short, &Answer::Accepted(None), true);
        assert!(takes(0));
    }

    #[test]
    fn renewal_without_an_answer_is_no_verdict_on_its_form() {
        let forms = Forms::default();
        forms.learn(0, false);
        let next = || forms.of_renewal(0, HttpRequest::get("/lease", REQUEST_DEADLINE)).1;
        let outage: Vec<Form> = (0..7)
            .map(|_| {
                let form = next();
                forms.unanswered();
                form
            })
            .collect();
        // a gateway that swallows the short form for ever lets every third renewal pass
        use Form::{Plain, Short};
        assert_eq!(outage, [Short, Short, Plain, Short, Short, Plain, Short]);
        forms.answered(0, Short, &Answer::Accepted(None), false);
        assert_eq!(next(), Short);
        forms.unanswered();
        forms.unanswered();
        forms.answered(0, next(), &Answer::Accepted(None), false);
        assert_eq!(next(), Short, "the plain one that passed says nothing about the others");
    }

    #[test]
    fn renewal_takes_the_form_of_its_server() {
        let forms = Forms::default();
        let unknown = (Some(METADATA_ONLY), true);
        assert_eq!(next(&forms, 0), unknown);
        forms.learn(0, false);
        assert_eq!(next(&forms, 0), (Some(METADATA_UNREAD), false));
        assert_eq!(next(&forms, 1), unknown);
        forms.learn(1, true);
        assert_eq!(next(&forms, 1), (None, true));
        assert_eq!(next(&forms, 0), unknown);
    }

    #[test]
    fn renewal_after_one_that_was_not_accepted_is_plain() {
        let forms = Forms::default();
        forms.learn(0, false);
        let renew = |accepts: &dyn Fn(Form) -> bool| {
            let (request, form) = forms.of_renewal(0, HttpRequest::get("/lease", REQUEST_DEADLINE));
            assert_eq!(form == Form::Plain, (request.accept, request.prefer_minimal) == (None, false));
            forms.answered(
                0,
                form,
                &if accepts(form) { Answer::Accepted(None) } else { refused(400) },
                false,
            );
            form
        };
        // a gateway that refuses short forms
        let mut between = vec![0];
        for _ in 0..2000 {
            match renew(&|form| form == Form::Plain) {
                Form::Short | Form::TimeAlone => between.push(0),
                Form::Plain => *between.last_mut().expect("there is one") += 1,
            }
        }
        assert_eq!(between[..11], [0, 1, 3, 7, 15, 31, 63, 127, 255, 255, 255]);
        // the gateway is gone
        while renew(&|_| true) == Form::Plain {}
        assert_eq!([renew(&|_| true), renew(&|_| false)], [Form::Short; 2]);
        // an outage: one plain renewal ends it
        assert_eq!([renew(&|_| false), renew(&|_| false), renew(&|_| true)], [Form::Plain; 3]);
        assert_eq!(renew(&|_| true), Form::Short);
        // the results of another server do not count for this one
        (0..3).for_each(|_| _ = renew(&|form| form == Form::Plain));
        forms.answered(0, Form::Short, &refused(400), false);
        forms.learn(1, true);
        renew(&|_| true);
        assert_eq!(next(&forms, 1), (None, true));
    }
}
