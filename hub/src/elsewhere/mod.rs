//! `kedge-hub controllers --kubeconfig FILE`: controllers of the hub beside another API server.
//!
//! Always holds: the decisions are those of the hub's controllers, from a mirror that list and watch keep.
//! Each write names the version that it was decided from, so a concurrent change is a conflict and a later
//! step. An action that requires other objects to be unchanged reads them first, so a pause counts at once, and a
//! name that a node took meanwhile is not given away. One process acts at a time: the holder of the Lease `kube-system/kedge-controllers`, judged by this machine's
//! running time, not by its clock. Left to others: the decisions (`kedge_hub_core::controllers`).

mod mirror;
mod server;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kedge_hub_core::ApiError;
use kedge_hub_core::controllers::approving::Approving;
use kedge_hub_core::controllers::config_rollouts::{Assignment, ConfigRollouts};
use kedge_hub_core::controllers::{Action, Controller, Done, Edit, Level, Now, Task};
use kedge_hub_core::identity::bootstrap_token;
use kedge_hub_core::kinds::{CERTIFICATE_REQUEST, CONFIG_MAP, CREDENTIAL, Kind, NODE, POD, SECRET};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::requests::Objects;
use kedge_hub_core::state::Require;
use kedge_hub_core::value::rfc3339;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::flags::ControllersCommand;
use crate::fresh::now_text;
use mirror::Mirror;
use server::Server;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const LEASE: &str = "kedge-controllers";
/// Without a renewal for so long the holder is gone.
const LEASE_LIFE: Duration = Duration::from_secs(15);
const RENEWAL: Duration = Duration::from_secs(5);
/// Pause after the server could not be reached.
const RETRY: Duration = Duration::from_secs(5);
/// The server ends each watch after so long.
const WATCH_SECONDS: u64 = 240;
/// A watch without a line for longer has lost its server.
const SILENCE: Duration = Duration::from_secs(300);
/// Between two looks at everything.
const SWEEP: Duration = Duration::from_secs(60);
/// Most changes that wait for the controllers.
const BACKLOG: usize = 1024;

/// What is listed and watched: the objects of a kind, of one namespace or all, that the server selects.
#[derive(Debug, Clone, Copy)]
struct Scope {
    kind: &'static Kind,
    /// Empty: all.
    namespace: &'static str,
    /// A field selector, encoded for a URL; empty: none.
    fields: &'static str,
}

/// For `config-rollouts`. ConfigMaps are read in one namespace: others may have many, and it needs none of them.
fn of_rollouts() -> Vec<Scope> {
    let all = |kind: &'static Kind| Scope { kind, namespace: "", fields: "" };
    let within = |kind: &'static Kind| match kind.plural == CONFIG_MAP.plural {
        true => Scope { namespace: kedge_hub_core::kinds::config_rollout::NAMESPACE, ..all(kind) },
        false => all(kind),
    };
    ConfigRollouts::inputs().iter().map(|kind| within(kind)).collect()
}

/// For `approving`: what it reads of an API server.
static OF_APPROVING: [Scope; 4] = [
    Scope {
        kind: &CERTIFICATE_REQUEST,
        namespace: "",
        fields: "spec.signerName%3Dkubernetes.io/kube-apiserver-client-kubelet",
    },
    Scope {
        kind: &SECRET,
        namespace: bootstrap_token::NAMESPACE,
        fields: "type%3Dbootstrap.kubernetes.io/token",
    },
    Scope { kind: &NODE, namespace: "", fields: "" },
    Scope { kind: &CONFIG_MAP, namespace: "kube-system", fields: "metadata.name%3Dkedge-denied" },
];

/// News from a watch.
enum News {
    /// Everything of the scope with this number.
    All(usize, Vec<Value>),
    Change(&'static Kind, Value, bool),
}

/// Runs until a signal ends the process, or the Lease is lost.
///
/// # Errors
/// The kubeconfig cannot be used, the server is a hub that does this itself, or another process took the Lease.
pub async fn run(command: &ControllersCommand) -> Result<(), String> {
    let server = Arc::new(Server::read(&command.kubeconfig)?);
    let version = server.ask("GET", "/version", &Value::Null).await.map_err(|error| error.message)?;
    let is_hub =
        version["gitVersion"].as_str().is_some_and(|text| text.contains(kedge_api::HUB_VERSION_MARK));
    let mut scopes = Vec::new();
    let (mut rollouts, mut approving) = (None, None);
    if command.config_rollouts {
        let assignment = if is_hub { Assignment::Field } else { Assignment::Annotation };
        log::info!("config-rollouts for {}, whose nodes are assigned by {assignment:?}", server.url());
        rollouts = Some(ConfigRollouts::new(assignment));
        scopes.extend(of_rollouts());
    }
    if command.approving {
        if is_hub {
            return Err(format!("{} is a kedge-hub, which approves requests of nodes itself", server.url()));
        }
        log::info!("approving requests of nodes for certificates at {}", server.url());
        approving = Some(Approving::elsewhere());
        let is_listed = |new: &Scope, all: &[Scope]| {
            all.iter().any(|scope| scope.kind.plural == new.kind.plural && scope.namespace == new.namespace)
        };
        for scope in OF_APPROVING {
            if !is_listed(&scope, &scopes) {
                scopes.push(scope);
            }
        }
    }
    let mut lease = Lease::new(&command.name);
    while !lease.renew(&server).await {
        tokio::time::sleep(RENEWAL).await;
    }
    log::info!("{} holds the Lease kube-system/{LEASE}", command.name);
    let (sender, news) = mpsc::channel(BACKLOG);
    let mut tasks = tokio::task::JoinSet::new();
    for (number, scope) in scopes.iter().enumerate() {
        tasks.spawn(follow(Arc::clone(&server), number, *scope, sender.clone()));
    }
    let start = Instant::now();
    let missing = (0..scopes.len()).collect();
    let shell = Shell { server, mirror: Mirror::default(), start, heard: Vec::new() };
    Runner { shell, rollouts, approving, scopes, missing, swept: start }.run(news, lease).await
}

/// The path of a kind, or of one object.
fn path(kind: &Kind, namespace: &str, name: &str) -> String {
    let group = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    let within = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
    let name = if name.is_empty() { String::new() } else { format!("/{name}") };
    format!("{group}/{}{within}/{}{name}", kind.version, kind.plural)
}

/// Lists and watches a scope for ever.
async fn follow(server: Arc<Server>, number: usize, scope: Scope, sender: mpsc::Sender<News>) {
    loop {
        if let Err(why) = follow_once(&server, number, scope, &sender).await {
            log::warn!("{}: {why}; trying again", scope.kind.plural);
            tokio::time::sleep(RETRY).await;
        }
        if sender.is_closed() {
            return;
        }
    }
}

async fn follow_once(
    server: &Server,
    number: usize,
    scope: Scope,
    sender: &mpsc::Sender<News>,
) -> Result<(), String> {
    let Scope { kind, namespace, fields } = scope;
    let all = path(kind, namespace, "");
    let selected = if fields.is_empty() { String::new() } else { format!("fieldSelector={fields}&") };
    let list = server.ask("GET", &format!("{all}?{selected}"), &Value::Null).await;
    let list = list.map_err(|error| error.message)?;
    let mut revision = list["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
    let items = match list {
        Value::Object(mut list) => list.remove("items"),
        _ => None,
    };
    let items = items.and_then(|items| serde_json::from_value::<Vec<Value>>(items).ok()).unwrap_or_default();
    sender.send(News::All(number, items)).await.map_err(|error| error.to_string())?;
    loop {
        let watch = format!(
            "{all}?{selected}watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={revision}"
        );
        let mut lines = server.watch(&watch).await?;
        let silent = |_| format!("the watch is silent for {SILENCE:?}");
        while let Some(line) = tokio::time::timeout(SILENCE, lines.next()).await.map_err(silent)?? {
            let Some(event) = kedge_hub_core::decode::value(line.as_bytes()) else { break };
            let object = &event["object"];
            match event["type"].as_str() {
                Some("ERROR") => return Ok(()),
                Some("BOOKMARK" | "ADDED" | "MODIFIED" | "DELETED") => {}
                _ => break,
            }
            if let Some(found) = object["metadata"]["resourceVersion"].as_str() {
                found.clone_into(&mut revision);
            }
            if event["type"] != "BOOKMARK" {
                let news = News::Change(kind, object.clone(), event["type"] == "DELETED");
                sender.send(news).await.map_err(|error| error.to_string())?;
            }
        }
        // a server that ends each watch at once must not make this a busy loop
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

struct Runner {
    shell: Shell,
    rollouts: Option<ConfigRollouts>,
    approving: Option<Approving>,
    scopes: Vec<Scope>,
    /// Scopes that were not listed so far.
    missing: Vec<usize>,
    swept: Instant,
}

impl Runner {
    async fn run(&mut self, mut news: mpsc::Receiver<News>, mut lease: Lease) -> Result<(), String> {
        let mut renewals = tokio::time::interval(RENEWAL);
        let mut next: Option<Instant> = None;
        loop {
            let due = next.unwrap_or_else(|| Instant::now() + RENEWAL);
            tokio::select! {
                found = news.recv() => match found {
                    Some(found) => {
                        self.note(found);
                        while let Ok(more) = news.try_recv() {
                            self.note(more);
                        }
                    }
                    None => return Err("the watches ended".to_owned()),
                },
                _ = renewals.tick() => {
                    lease.renew(&self.shell.server).await;
                    if !lease.is_held() {
                        return Err(format!("another process took the Lease kube-system/{LEASE}"));
                    }
                }
                () = tokio::time::sleep_until(due) => {}
            }
            if self.missing.is_empty() && lease.is_held() {
                next = self.step(&mut lease).await;
                // what was decided and not done is forgotten, so this process cannot go on
                if !lease.is_held() {
                    return Err(format!("lost the Lease kube-system/{LEASE}"));
                }
            }
        }
    }

    fn note(&mut self, news: News) {
        match news {
            News::All(number, items) => {
                let Scope { kind, namespace, .. } = self.scopes[number];
                self.shell.mirror.replace(kind, namespace, &items);
                self.missing.retain(|missing| *missing != number);
                self.sweep();
            }
            News::Change(kind, value, is_gone) => {
                self.shell.change(kind, &value, is_gone);
                self.tell();
            }
        }
    }

    fn sweep(&mut self) {
        if !self.missing.is_empty() {
            return;
        }
        self.swept = Instant::now();
        if let Some(controller) = &mut self.rollouts {
            controller.sweep(&self.shell.mirror);
        }
        if let Some(controller) = &mut self.approving {
            controller.sweep(&self.shell.mirror);
        }
    }

    /// Passes on what was heard.
    fn tell(&mut self) {
        let heard = std::mem::take(&mut self.shell.heard);
        if !self.missing.is_empty() {
            return;
        }
        if let Some(controller) = &mut self.rollouts {
            pass_on(controller, &heard);
        }
        if let Some(controller) = &mut self.approving {
            pass_on(controller, &heard);
        }
    }

    /// One step of each; returns when the next is due.
    async fn step(&mut self, lease: &mut Lease) -> Option<Instant> {
        if self.swept.elapsed() > SWEEP {
            self.sweep();
        }
        let mut next = Vec::new();
        if let Some(controller) = &mut self.rollouts {
            next.push(self.shell.step(controller, lease).await);
        }
        self.tell();
        if let Some(controller) = &mut self.approving {
            next.push(self.shell.step(controller, lease).await);
        }
        self.tell();
        next.into_iter().flatten().min()
    }
}

fn pass_on<C: Controller>(controller: &mut C, heard: &[(&'static Kind, Event)]) {
    for (kind, event) in heard {
        if C::inputs().iter().any(|input| input.plural == kind.plural) && C::concerns(kind, event) {
            controller.observe(kind, event);
        }
    }
}

/// The API server, and what is known of it.
struct Shell {
    server: Arc<Server>,
    mirror: Mirror,
    start: Instant,
    /// Changes that the controllers have not been told of.
    heard: Vec<(&'static Kind, Event)>,
}

impl Shell {
    fn change(&mut self, kind: &'static Kind, value: &Value, is_gone: bool) {
        if let Some(event) = self.mirror.change(kind, value, is_gone) {
            self.heard.push((kind, event));
        }
    }

    fn now(&self) -> Now {
        Now {
            running: self.start.elapsed(),
            wall: OffsetDateTime::now_utc(),
            ages: true,
            right: true,
            stalled: Duration::ZERO,
            disk_stalled: Duration::ZERO,
            disk_stalls: false,
        }
    }

    /// One step of a controller; returns when its next is due.
    async fn step<C: Controller>(&mut self, controller: &mut C, lease: &mut Lease) -> Option<Instant> {
        let decision = controller.reconcile(&self.mirror, self.now());
        let mut tasks = VecDeque::from(decision.tasks);
        while let Some(Task { purpose, action }) = tasks.pop_front() {
            lease.renew_in_time(&self.server).await;
            if !lease.is_held() {
                return None;
            }
            let outcome = self.perform(action).await;
            let now = self.now();
            tasks.extend(controller.performed(purpose, outcome, now));
        }
        for (level, line) in controller.take_log(self.now()) {
            match level {
                Level::Info => log::info!("{line}"),
                Level::Warning => log::warn!("{line}"),
            }
        }
        match decision.more {
            true => Some(Instant::now()),
            false => decision.next.map(|at| self.start + at),
        }
    }

    async fn perform(&mut self, action: Action) -> Result<Done, ApiError> {
        match action {
            Action::Create { kind, mut value, requires } => {
                if !self.are_unchanged(&requires).await? {
                    return Err(ApiError::conflict(kind, ""));
                }
                value["apiVersion"] = kind.api_version().into();
                value["kind"] = kind.kind.into();
                let namespace = value["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
                let made = self.server.ask("POST", &path(kind, &namespace, ""), &value).await?;
                self.stored(kind, &made, true)
            }
            Action::Update { kind, namespace, name, edit, requires } => {
                self.update(kind, &namespace, &name, edit, &requires).await
            }
            Action::Delete { kind, namespace, name, options, requires } => {
                if !self.are_unchanged(&requires).await? {
                    return Err(ApiError::conflict(kind, &name));
                }
                let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": options.uid}});
                self.server.ask("DELETE", &path(kind, &namespace, &name), &body).await?;
                Ok(Done::Gone)
            }
            _ => Err(ApiError::internal("only the hub itself does this")),
        }
    }

    async fn update(
        &mut self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        mut edit: Edit,
        requires: &[Require],
    ) -> Result<Done, ApiError> {
        let Some(known) = self.mirror.get(kind, namespace, name) else {
            return Err(ApiError::not_found(kind, name));
        };
        let old = known.value();
        let mut new = old.clone();
        if !self.are_unchanged(requires).await? || !edit(&mut new, &now_text()) || new == old {
            return Ok(Done::Stored(known, false));
        }
        let whole = path(kind, namespace, name);
        // a write of the object leaves the status as it is, and the other way round; an approval has its own place
        let is_of_status = kind.status && new["status"] != old["status"];
        let at = match is_of_status {
            true if kind.plural == CERTIFICATE_REQUEST.plural => format!("{whole}/approval"),
            true => format!("{whole}/status"),
            false => whole,
        };
        let stored = self.server.ask("PUT", &at, &new).await?;
        self.stored(kind, &stored, true)
    }

    /// The controllers hear of their own writes once the step is done.
    fn stored(&mut self, kind: &'static Kind, value: &Value, is_meant: bool) -> Result<Done, ApiError> {
        self.change(kind, value, false);
        let revision = value["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        let object = revision.and_then(|revision| Object::new(kind, value, revision));
        let object = object.ok_or_else(|| ApiError::internal("the answer is not an object"))?;
        Ok(Done::Stored(Arc::new(object), is_meant))
    }

    /// Whether these objects are as the decision read them. They are read anew, but for pods, which are as the
    /// watch has them, and the table of credentials, which only a hub has.
    async fn are_unchanged(&mut self, requires: &[Require]) -> Result<bool, ApiError> {
        for require in requires {
            let Require::Unchanged { kind, namespace, name, revision } = require else { continue };
            let is_read = ![&POD, &CREDENTIAL].iter().any(|other| other.plural == kind.plural);
            let found = match is_read {
                true => match self.server.ask("GET", &path(kind, namespace, name), &Value::Null).await {
                    Ok(found) => {
                        self.change(kind, &found, false);
                        found["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok())
                    }
                    // the watch tells the rest
                    Err(error) if error.code == 404 => None,
                    Err(error) => return Err(error),
                },
                false => self.mirror.get(kind, namespace, name).map(|found| found.revision),
            };
            if found != *revision {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The Lease by which one of several processes acts.
struct Lease {
    name: String,
    /// The Lease as it was last seen, and since when on this machine.
    seen: (String, Instant),
    held_until: Option<Instant>,
    renewed: Instant,
}

impl Lease {
    fn new(name: &str) -> Lease {
        let now = Instant::now();
        Lease { name: name.to_owned(), seen: (String::new(), now), held_until: None, renewed: now }
    }

    fn is_held(&self) -> bool {
        self.held_until.is_some_and(|until| until > Instant::now())
    }

    async fn renew_in_time(&mut self, server: &Server) {
        if self.renewed.elapsed() > RENEWAL {
            self.renew(server).await;
        }
    }

    /// Takes or renews it, if it is free; returns whether this process holds it.
    async fn renew(&mut self, server: &Server) -> bool {
        let before = Instant::now();
        match self.write(server).await {
            Ok(true) => {
                self.renewed = before;
                self.held_until = Some(before + LEASE_LIFE);
            }
            Ok(false) => self.held_until = None,
            Err(error) => log::warn!("cannot renew the Lease kube-system/{LEASE}: {}", error.message),
        }
        self.is_held()
    }

    async fn write(&mut self, server: &Server) -> Result<bool, ApiError> {
        let at = format!("{LEASES}/{LEASE}");
        let spec = json!({"holderIdentity": self.name, "leaseDurationSeconds": LEASE_LIFE.as_secs(), "renewTime": micro_time()});
        let mut found = match server.ask("GET", &at, &Value::Null).await {
            Ok(found) => found,
            Err(error) if error.code == 404 => {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": LEASE, "namespace": "kube-system"}, "spec": spec});
                return taken(server.ask("POST", LEASES, &lease).await);
            }
            Err(error) => return Err(error),
        };
        let revision = found["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        if self.seen.0 != revision {
            self.seen = (revision, Instant::now());
        }
        let holder = found["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let is_free = holder.is_empty() || self.seen.1.elapsed() > LEASE_LIFE;
        if holder != self.name && !is_free {
            return Ok(false);
        }
        found["spec"] = spec;
        taken(server.ask("PUT", &at, &found).await)
    }
}

/// A conflict means that another process was faster.
fn taken(outcome: Result<Value, ApiError>) -> Result<bool, ApiError> {
    match outcome {
        Ok(_) => Ok(true),
        Err(error) if error.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

fn micro_time() -> String {
    let now = OffsetDateTime::now_utc();
    format!("{}.{:06}Z", rfc3339(now).trim_end_matches('Z'), now.microsecond())
}
