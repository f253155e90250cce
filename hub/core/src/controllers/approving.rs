//! Decides which requests for certificates of nodes need no person.
//!
//! Inputs: CertificateSigningRequest; Secrets, Nodes, the deny list and the table of credentials are read as
//! they are at each decision. Outputs: CertificateSigningRequest, Secret, Credential, Event. The decision is
//! a table ([`ROWS`]): the first row that matches decides, and its name is the reason of the condition.
//!
//! Always holds: of two keys that ask for one name by bootstrap tokens only the first is approved. It uses
//! its token once, however often the hub is killed in between. For that the key is reserved in the table of
//! credentials first, then the use is counted, then the request is approved; each step may be repeated
//! without effect. A reservation ends with its token: once all uses went to others it holds no name. A
//! request that a person approves uses the token, too. An expired node is approved for the key of its newest
//! credential alone. A request that waits for a person has the condition [`AWAITING`] with the reason.
//! Beside another API server, which has no such table, approved requests take its place ([`Approved`]); the
//! first of two keys is the one whose request is approved first. Left to others: the right to make a request
//! (`identity`), signing (`certificates`).

use std::collections::BTreeSet;
use std::time::Duration;

use kedge_api::{BOOTSTRAP_GROUP, CLUSTER_EVENT_NAMESPACE, NODE_GROUP, NODE_SIGNER, NODE_USER_PREFIX};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::approved::Approved;
use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use super::record::{About, What, event};
use crate::api_error::ApiError;
use crate::identity::bootstrap_token::{self, BootstrapToken};
use crate::identity::certificate_request::Request;
use crate::identity::credential::{Newest, Payment, Record, key_id};
use crate::identity::denied::{DENY_LIST_NAME, DENY_LIST_NAMESPACE, DenyList};
use crate::identity::{EXPIRED_SINCE, ISSUE_NUMBER, Identity, PUBLIC_KEY};
use crate::kinds::{CERTIFICATE_REQUEST, CONFIG_MAP, CREDENTIAL, EVENT, Kind, NODE, SECRET, schema};
use crate::object::{Event, Object};
use crate::state::Require;
use crate::value::{at, condition, rfc3339, set_condition, text};

static INPUTS: &[&Kind] = &[&CERTIFICATE_REQUEST];
static OUTPUTS: &[&Kind] = &[&CERTIFICATE_REQUEST, &SECRET, &CREDENTIAL, &EVENT];

/// The condition of a request that waits for a person.
pub const AWAITING: &str = "AwaitingApproval";
/// Requests that are judged in one step: each costs the check of a signature, and the hub has other work.
const AT_A_TIME: usize = 64;
/// Pause before a request is judged again because a concurrent write changed its inputs.
const AGAIN: Duration = Duration::from_secs(1);
/// How long an expired node may return by itself, by default.
pub const EXPIRED_MAY_RENEW: time::Duration = time::Duration::days(3 * 365);

/// See the module.
#[derive(Debug)]
pub struct Approving {
    expired_may_renew: time::Duration,
    /// In place of the table of credentials, beside an API server that has none.
    approved: Option<Approved>,
    /// Names of requests to judge.
    queue: BTreeSet<String>,
    log: Vec<Line>,
}

impl Approving {
    /// `expired_may_renew`: how long after its expiry a node may return by itself.
    pub fn new(expired_may_renew: time::Duration) -> Approving {
        Approving { expired_may_renew, approved: None, queue: BTreeSet::new(), log: Vec::new() }
    }

    /// For another API server: it has no table of credentials, and lets no expired node ask.
    pub fn elsewhere() -> Approving {
        Approving { approved: Some(Approved::default()), ..Approving::new(EXPIRED_MAY_RENEW) }
    }
}

/// The kind of a requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Token,
    Live,
    Expired,
    Other,
}

/// The decision of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Approve,
    /// Reserve the key, use the token, approve.
    Admit,
    Person,
}

/// One row of the table.
struct Row {
    /// The reason of the condition, and of the Event.
    reason: &'static str,
    /// The requesters that it is about; empty: all.
    by: &'static [By],
    when: fn(&Case) -> bool,
    answer: Answer,
    /// Whether the Node gets an Event.
    tells: bool,
    message: &'static str,
}

/// The table. A request that no row approves waits for a person, whose decision the table does not bind.
static ROWS: &[Row] = &[
    Row {
        reason: "Denied",
        by: &[],
        when: |case| case.denied,
        answer: Answer::Person,
        tells: false,
        message: "the node or the requester is denied, so no certificate is signed",
    },
    Row {
        reason: "TokenGone",
        by: &[By::Token],
        when: |case| case.token.is_none(),
        answer: Answer::Person,
        tells: false,
        message: "the bootstrap token was deleted or has expired",
    },
    Row {
        reason: "OtherName",
        by: &[By::Token, By::Live, By::Expired],
        when: |case| !case.may_have_the_name,
        answer: Answer::Person,
        tells: false,
        message: "the requester may not ask for a certificate of this node",
    },
    Row {
        reason: "KeyOfDenied",
        by: &[By::Token],
        when: |case| {
            case.newest_is_denied && case.record.newest.as_ref().is_some_and(|newest| newest.key == case.key)
        },
        answer: Answer::Person,
        tells: true,
        message: "a bootstrap token asks for a certificate with the key of a credential that is denied: perhaps a copy of an old disk",
    },
    Row {
        reason: "SameKey",
        by: &[By::Token],
        when: |case| case.record.newest.as_ref().is_some_and(|newest| newest.key == case.key),
        answer: Answer::Approve,
        tells: false,
        message: "the newest certificate of the node is of the same key",
    },
    Row {
        reason: "NameTaken",
        by: &[By::Token],
        when: |case| {
            let is_reserved = !case.record.pending.is_empty() && !case.is_void;
            let other_waits = is_reserved && case.record.pending != case.key;
            other_waits || case.newest_lives || case.registered.is_some()
        },
        answer: Answer::Person,
        tells: true,
        message: "a bootstrap token asks for a certificate of this node with another key, and the node has credentials or is registered",
    },
    Row {
        reason: "TokenSpent",
        by: &[By::Token],
        when: |case| case.token.as_ref().is_some_and(|token| token.spent),
        answer: Answer::Person,
        tells: false,
        message: "the bootstrap token was used as often as it may be",
    },
    Row {
        reason: "TokenNeedsPerson",
        by: &[By::Token],
        when: |case| case.token.as_ref().is_some_and(|token| !token.approves),
        answer: Answer::Person,
        tells: false,
        message: "the bootstrap token does not name the node, and was made without --approve",
    },
    Row {
        reason: "Joins",
        by: &[By::Token],
        when: |_| true,
        answer: Answer::Admit,
        tells: false,
        message: "a bootstrap token admits the node",
    },
    Row {
        reason: "Renews",
        by: &[By::Live],
        when: |_| true,
        answer: Answer::Approve,
        tells: false,
        message: "the node renews its own certificate",
    },
    Row {
        reason: "ReturnedWithOlderKey",
        by: &[By::Expired],
        when: |case| !case.is_newest,
        answer: Answer::Person,
        tells: true,
        message: "a node with an expired certificate asks for the next one, and that certificate is not known as its newest one: this may be \
                  an old copy of its disk",
    },
    Row {
        reason: "ReturnedWithNewKey",
        by: &[By::Expired],
        when: |case| case.own_key != case.key,
        answer: Answer::Person,
        tells: true,
        message: "a node with an expired certificate asks for the next one with a new key; with the key that it has it needs no person",
    },
    Row {
        reason: "NotRegistered",
        by: &[By::Expired],
        when: |case| case.registered.is_none(),
        answer: Answer::Person,
        tells: false,
        message: "a node with an expired certificate asks for the next one, and is not registered",
    },
    Row {
        reason: "ExpiredTooLong",
        by: &[By::Expired],
        when: |case| case.expired_too_long,
        answer: Answer::Person,
        tells: true,
        message: "a node asks for a certificate after its last one expired longer ago than --expired-node-may-renew",
    },
    Row {
        reason: "ReturnedAfter",
        by: &[By::Expired],
        when: |_| true,
        answer: Answer::Approve,
        tells: true,
        message: "the node returned with its newest key after its certificate had expired",
    },
    Row {
        reason: "NotByItself",
        by: &[By::Other],
        when: |_| true,
        answer: Answer::Person,
        tells: false,
        message: "the requester is neither the node nor a bootstrap token",
    },
];

/// All that a row may depend on.
#[derive(Debug)]
struct Case {
    by: By,
    node: String,
    /// The id of the key in the request.
    key: String,
    /// DER of that key.
    public_key: Vec<u8>,
    denied: bool,
    /// Whether the requester may ask for this name: its own, or one that the token covers.
    may_have_the_name: bool,
    token: Option<Token>,
    /// The node's newest credential, and the key for which its name is reserved.
    record: Record,
    /// The reservation relies on a token that was used for others.
    is_void: bool,
    /// The newest credential counts now.
    newest_lives: bool,
    /// The newest credential is denied.
    newest_is_denied: bool,
    /// The UID of its Node.
    registered: Option<String>,
    /// The requester's certificate is the node's newest one.
    is_newest: bool,
    /// The id of its key.
    own_key: String,
    /// Since when it has been expired (Unix time).
    since: i64,
    expired_too_long: bool,
    /// The versions of what the decision depends on.
    relies_on: Vec<Require>,
}

/// The bootstrap token of a requester.
#[derive(Debug)]
struct Token {
    id: String,
    name: String,
    revision: u64,
    approves: bool,
    /// It has no use left for this request.
    spent: bool,
    /// This request takes one of its uses.
    counts: bool,
}

impl Case {
    fn row(&self) -> &'static Row {
        let fits = |row: &&Row| (row.by.is_empty() || row.by.contains(&self.by)) && (row.when)(self);
        ROWS.iter().find(fits).expect("each kind of requester has a row that always fits")
    }
}

/// The request that a task is about.
#[derive(Debug, Clone)]
pub struct Asked {
    name: String,
    uid: String,
    node: String,
    key: String,
    public_key: Vec<u8>,
    /// The Secret of the token to use.
    secret: Option<String>,
    reason: &'static str,
    message: String,
    event: Option<Box<Value>>,
    relies_on: Vec<Require>,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    Reserve(Asked),
    Use(Asked),
    Approve(Asked),
    /// Show that it waits for a person.
    Mark(Asked),
    /// Use the token for the request of this name, which a person has approved.
    Count(String),
    Tell(String),
}

impl Controller for Approving {
    type Purpose = Purpose;
    const NAME: &'static str = "approving";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));
    const AT_ONCE: usize = 32;

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, _: &'static Kind, event: &Event) {
        if let Some(approved) = &mut self.approved {
            approved.observe(event);
        }
        if let Some(object) = &event.new {
            self.queue.insert(object.name.to_string());
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        if let Some(approved) = &mut self.approved {
            approved.sweep(world);
        }
        self.queue.extend(world.list(&CERTIFICATE_REQUEST, "").iter().map(|found| found.name.to_string()));
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        let mut decision = Decision::default();
        let (mut judged, mut reserved) = (0, BTreeSet::new());
        let denied = world.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        let revision = denied.as_ref().map(|found| found.revision);
        let denied = denied.map(|found| DenyList::read(&found.value())).unwrap_or_default();
        let denied = (denied, unchanged(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME, revision));
        let mut later = Vec::new();
        while judged < AT_A_TIME
            && let Some(name) = self.queue.pop_first()
        {
            let Some(object) = world.get(&CERTIFICATE_REQUEST, "", &name) else { continue };
            let Some((request, case)) = self.case(world, &object, &denied, now) else {
                if let Some(task) = counted(world, &object) {
                    judged += 1;
                    decision.tasks.push(task);
                }
                continue;
            };
            judged += 1;
            // of two requests for one name the second is judged when the first is reserved
            if !reserved.insert(case.node.clone()) {
                later.push(name);
                continue;
            }
            decision.tasks.extend(answer(&object, &request, case, self.approved.is_none(), now));
        }
        self.queue.extend(later);
        decision.more = !self.queue.is_empty();
        // a request whose task failed for a concurrent write is judged again
        decision.next = (!decision.tasks.is_empty()).then(|| now.running + AGAIN);
        decision
    }

    fn performed(&mut self, purpose: Purpose, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<Purpose>> {
        let asked = match (purpose, outcome) {
            (Purpose::Reserve(mut asked), Ok(Done::Stored(record, true))) => {
                // as long as it is reserved for this request
                asked.relies_on.push(unchanged(&CREDENTIAL, "", &asked.node, Some(record.revision)));
                return vec![use_token(asked)];
            }
            (Purpose::Use(asked), Ok(Done::Stored(_, true))) => return vec![approve(asked)],
            (Purpose::Approve(asked), Ok(Done::Stored(_, true))) => {
                if asked.event.is_some() {
                    self.log.push((Level::Warning, format!("node {}: {}", asked.node, asked.message)));
                }
                return told(asked);
            }
            (Purpose::Mark(asked), Ok(Done::Stored(_, true))) => {
                let line = format!(
                    "request {} for node {} waits for a person: {}",
                    asked.name, asked.node, asked.message
                );
                self.log.push((Level::Warning, line));
                return told(asked);
            }
            // an Event of this name tells it already
            (Purpose::Tell(_), Err(error)) if error.code == 409 => return Vec::new(),
            (Purpose::Tell(node), Err(error)) => {
                self.log.push((Level::Warning, format!("cannot record an event on node {node}: {error}")));
                return Vec::new();
            }
            (Purpose::Tell(_), Ok(_)) => return Vec::new(),
            (Purpose::Count(_), Ok(_)) => return Vec::new(),
            (Purpose::Count(name), Err(error)) => {
                // the next sweep tries again
                if error.code != 404 {
                    let line = format!("cannot count the use of a token by request {name}: {error}");
                    self.log.push((Level::Warning, line));
                }
                return Vec::new();
            }
            // something changed meanwhile: judged anew
            (Purpose::Reserve(asked) | Purpose::Use(asked) | Purpose::Approve(asked), Ok(_)) => asked,
            (Purpose::Mark(_), Ok(_)) => return Vec::new(),
            (
                Purpose::Reserve(asked)
                | Purpose::Use(asked)
                | Purpose::Approve(asked)
                | Purpose::Mark(asked),
                Err(error),
            ) => {
                if error.code != 404 && error.code != 409 {
                    let line = format!("cannot answer request {}, trying again: {error}", asked.name);
                    self.log.push((Level::Warning, line));
                    // the next sweep tries again
                    return Vec::new();
                }
                asked
            }
        };
        self.queue.insert(asked.name);
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

impl Approving {
    /// The inputs of the decision on a request; `None` if it is not ours, or needs no decision.
    fn case(
        &self,
        world: &dyn World,
        object: &Object,
        (denied, is_denied_so): &(DenyList, Require),
        now: Now,
    ) -> Option<(Value, Case)> {
        let request = object.value();
        let decided = |sort| condition(&request["status"], sort).is_some();
        if object.terminating
            || text(&request, &["spec", "signerName"]) != NODE_SIGNER
            || ["Approved", "Denied", "Failed"].into_iter().any(decided)
        {
            return None;
        }
        let asked = Request::from_pem(&schema::base64_decode(text(&request, &["spec", "request"]))?).ok()?;
        let usages = at(&request, &["spec", "usages"]).and_then(Value::as_array);
        let usages: Vec<&str> = usages.into_iter().flatten().filter_map(Value::as_str).collect();
        asked.check(NODE_SIGNER, &usages).ok()?;
        let node = asked.common_name.strip_prefix(NODE_USER_PREFIX)?.to_owned();
        let record = world.get(&CREDENTIAL, "", &node);
        let registered = world.get(&NODE, "", &node);
        let mut relies_on = vec![
            is_denied_so.clone(),
            unchanged(&CREDENTIAL, "", &node, record.as_ref().map(|found| found.revision)),
            unchanged(&NODE, "", &node, registered.as_ref().map(|found| found.revision)),
        ];
        let key = key_id(&asked.public_key);
        let record = match &self.approved {
            None => record.map(|found| Record::read(&found.value())).unwrap_or_default(),
            Some(approved) => approved.record(&node, &key),
        };
        let user = text(&request, &["spec", "username"]);
        let created = text(&request, &["metadata", "creationTimestamp"]);
        let fact = |key: &str| {
            let list = at(&request, &["spec", "extra", key]);
            list.and_then(|list| list[0].as_str()).unwrap_or_default().to_owned()
        };
        let has_group = |name: &str| {
            let groups = at(&request, &["spec", "groups"]).and_then(Value::as_array);
            groups.into_iter().flatten().any(|group| group == name)
        };
        let requester = user.strip_prefix(NODE_USER_PREFIX).filter(|_| has_group(NODE_GROUP));
        // who takes on the name of a token's user alone was not admitted as one
        let by = match (bootstrap_token::of_user(user), requester) {
            (Some(_), _) if !has_group(BOOTSTRAP_GROUP) => By::Other,
            (Some(_), _) => By::Token,
            (_, Some(_)) if fact(EXPIRED_SINCE).is_empty() => By::Live,
            (_, Some(_)) => By::Expired,
            _ => By::Other,
        };
        let secret = bootstrap_token::of_user(user).map(bootstrap_token::secret_name);
        let secret = secret.and_then(|name| world.get(&SECRET, bootstrap_token::NAMESPACE, &name));
        let token = secret.as_ref().and_then(|secret| BootstrapToken::from_secret(&secret.value()));
        let token = token.filter(|token| token.authenticates && !token.is_expired(now.wall));
        let since = fact(EXPIRED_SINCE).parse().unwrap_or(0);
        let (own_key, issue) = (fact(PUBLIC_KEY), fact(ISSUE_NUMBER).parse::<u64>().unwrap_or(0));
        let key_is_other = !record.pending.is_empty() && record.pending != key;
        let (is_void, payer) = match key_is_other {
            true => void(world, &record.payment),
            false => (false, None),
        };
        relies_on.extend(payer);
        let newest = record.newest.as_ref();
        let is_newest = newest.is_some_and(|newest| newest.key == own_key && newest.issue == issue);
        let case = Case {
            by,
            denied: denied.signing_refusal(&asked.common_name).is_some()
                || denied.requester_refusal(user, issue, created).is_some(),
            may_have_the_name: match (&token, requester) {
                (Some(token), _) => token.covers(&node),
                (None, own) => own == Some(node.as_str()),
            },
            token: token.zip(secret).map(|(token, secret)| Token {
                id: token.id.clone(),
                name: secret.name.to_string(),
                revision: secret.revision,
                approves: token.approves(&node),
                spent: token.is_spent() && !token.has_admitted(&node, &asked.public_key),
                counts: token.uses.is_some() && !token.has_admitted(&node, &asked.public_key),
            }),
            newest_lives: newest.is_some_and(|newest| lives(newest, &node, denied, now.wall)),
            newest_is_denied: newest.is_some_and(|newest| is_denied(newest, &node, denied)),
            is_void,
            record,
            registered: registered.map(|found| found.uid.to_string()),
            is_newest,
            own_key,
            expired_too_long: now.right
                && now.wall.unix_timestamp().saturating_sub(since) > self.expired_may_renew.whole_seconds(),
            since,
            public_key: asked.public_key,
            node,
            key,
            relies_on,
        };
        Some((request, case))
    }
}

/// Whether a reservation holds no name, because its token was used for others; and what that relies on. One
/// whose token is gone holds it: the use may have been counted before.
fn void(world: &dyn World, payment: &Payment) -> (bool, Option<Require>) {
    let name = bootstrap_token::secret_name(&payment.token);
    let Some(secret) = world.get(&SECRET, bootstrap_token::NAMESPACE, &name) else { return (false, None) };
    let token = BootstrapToken::from_secret(&secret.value());
    let is_void = token.is_some_and(|token| token.is_spent() && !token.has_paid(&payment.admission));
    (is_void, Some(unchanged(&SECRET, bootstrap_token::NAMESPACE, &name, Some(secret.revision))))
}

/// The use of a token by a request that a person has approved.
fn counted(world: &dyn World, object: &Object) -> Option<Task<Purpose>> {
    let request = object.value();
    let approval = condition(&request["status"], "Approved")?;
    let by_itself = |row: &Row| row.answer == Answer::Approve && approval["reason"] == row.reason;
    let groups = at(&request, &["spec", "groups"]).and_then(Value::as_array)?;
    if object.terminating
        || text(&request, &["spec", "signerName"]) != NODE_SIGNER
        || ROWS.iter().any(by_itself)
        || !groups.iter().any(|group| group == BOOTSTRAP_GROUP)
    {
        return None;
    }
    let id = bootstrap_token::of_user(text(&request, &["spec", "username"]))?;
    let name = bootstrap_token::secret_name(id);
    let secret = world.get(&SECRET, bootstrap_token::NAMESPACE, &name)?;
    let token = BootstrapToken::from_secret(&secret.value())?;
    // one that is used up has nothing to count
    token.uses.filter(|uses| *uses > 0)?;
    let asked = Request::from_pem(&schema::base64_decode(text(&request, &["spec", "request"]))?).ok()?;
    let node = asked.common_name.strip_prefix(NODE_USER_PREFIX)?.to_owned();
    let key = asked.public_key;
    if token.has_admitted(&node, &key) || !token.covers(&node) {
        return None;
    }
    let edit: Edit = Box::new(move |secret, _| bootstrap_token::spend(secret, &node, &key));
    let namespace = bootstrap_token::NAMESPACE.to_owned();
    let action = Action::Update { kind: &SECRET, namespace, name, edit, requires: Vec::new() };
    Some(Task { purpose: Purpose::Count(object.name.to_string()), action })
}

fn unchanged(kind: &'static Kind, namespace: &str, name: &str, revision: Option<u64>) -> Require {
    Require::Unchanged { kind, namespace: namespace.to_owned(), name: name.to_owned(), revision }
}

/// Whether a credential counts now: it has not expired, and is not denied.
fn lives(newest: &Newest, node: &str, denied: &DenyList, now: OffsetDateTime) -> bool {
    now.unix_timestamp() < newest.not_after && !is_denied(newest, node, denied)
}

fn is_denied(newest: &Newest, node: &str, denied: &DenyList) -> bool {
    let identity = Identity {
        issue: newest.issue,
        // It stands for a certificate, whose digest the table does not have. A caller without a credential, such as a
        // bootstrap token, is not bound by the number of a user's readmission.
        credential: "of the table".into(),
        ..Identity::new(&format!("{NODE_USER_PREFIX}{node}"), &[NODE_GROUP])
    };
    denied.refusal(&identity).is_some()
}

/// The first task for a request. Without a table of credentials nothing is reserved.
fn answer(object: &Object, request: &Value, case: Case, has_table: bool, now: Now) -> Option<Task<Purpose>> {
    let row = case.row();
    let mut message = row.message.to_owned();
    if case.by == By::Expired
        && let Ok(since) = OffsetDateTime::from_unix_timestamp(case.since)
    {
        message.push_str(&format!("; expired since {}", rfc3339(since)));
    }
    let told = row.tells.then(|| {
        let uid = case.registered.as_deref().unwrap_or(&case.node);
        let about = About { kind: &NODE, namespace: "", name: &case.node, uid, revision: None };
        let sort = if row.answer == Answer::Person { "Warning" } else { "Normal" };
        let message = format!("{message} (certificate signing request {})", object.name);
        let what = What { sort, reason: row.reason, message: &message };
        let mark = format!("{}.{}", row.reason.to_lowercase(), object.uid);
        Box::new(event(&about, &what, "kedge-hub", CLUSTER_EVENT_NAMESPACE, &mark, now))
    });
    let mut asked = Asked {
        name: object.name.to_string(),
        uid: object.uid.to_string(),
        node: case.node,
        key: case.key,
        public_key: case.public_key,
        secret: None,
        reason: row.reason,
        message,
        event: told,
        relies_on: case.relies_on,
    };
    match (row.answer, case.token) {
        (Answer::Person, _) => {
            let known = condition(&request["status"], AWAITING);
            let is_shown = known.is_some_and(|known| known["reason"] == row.reason);
            (!is_shown).then(|| mark(asked))
        }
        (Answer::Admit, Some(token)) => {
            match token.counts {
                true => asked.secret = Some(token.name),
                false => asked.relies_on.push(unchanged(
                    &SECRET,
                    bootstrap_token::NAMESPACE,
                    &token.name,
                    Some(token.revision),
                )),
            }
            let admission = bootstrap_token::admission(&asked.node, &asked.public_key);
            if !has_table {
                return Some(use_token(asked));
            }
            Some(reserve(asked, case.record, Payment { token: token.id, admission }))
        }
        (Answer::Approve | Answer::Admit, _) => Some(approve(asked)),
    }
}

/// Reserves the name for the key of the request, and notes what pays for it.
fn reserve(mut asked: Asked, before: Record, payment: Payment) -> Task<Purpose> {
    let record = Record { newest: before.newest.clone(), pending: asked.key.clone(), payment };
    if before == record {
        return use_token(asked);
    }
    let is_record = |require: &Require| matches!(require, Require::Unchanged { kind, .. } if kind.kind == CREDENTIAL.kind);
    let known = asked
        .relies_on
        .iter()
        .any(|require| is_record(require) && matches!(require, Require::Unchanged { revision: Some(_), .. }));
    // this write changes the record itself
    let requires: Vec<Require> =
        asked.relies_on.iter().filter(|require| !is_record(require)).cloned().collect();
    asked.relies_on = requires.clone();
    let action = if known {
        let edit: Edit = Box::new(move |found, _| {
            let is_meant = Record::read(found) == before;
            if is_meant {
                record.write(found);
            }
            is_meant
        });
        Action::Update {
            kind: &CREDENTIAL,
            namespace: String::new(),
            name: asked.node.clone(),
            edit,
            requires,
        }
    } else {
        let mut value = json!({"metadata": {"name": asked.node}});
        record.write(&mut value);
        Action::Create { kind: &CREDENTIAL, value, requires }
    };
    Task { purpose: Purpose::Reserve(asked), action }
}

/// Counts the use of a token.
fn use_token(asked: Asked) -> Task<Purpose> {
    let Some(name) = asked.secret.clone() else { return approve(asked) };
    let (node, public_key) = (asked.node.clone(), asked.public_key.clone());
    let edit: Edit = Box::new(move |secret, _| bootstrap_token::spend(secret, &node, &public_key));
    let namespace = bootstrap_token::NAMESPACE.to_owned();
    let action = Action::Update { kind: &SECRET, namespace, name, edit, requires: asked.relies_on.clone() };
    Task { purpose: Purpose::Use(asked), action }
}

fn approve(asked: Asked) -> Task<Purpose> {
    let condition =
        json!({"type": "Approved", "status": "True", "reason": asked.reason, "message": asked.message});
    let action = conditioned(&asked, condition);
    Task { purpose: Purpose::Approve(asked), action }
}

fn mark(asked: Asked) -> Task<Purpose> {
    let condition =
        json!({"type": AWAITING, "status": "True", "reason": asked.reason, "message": asked.message});
    let action = conditioned(&asked, condition);
    Task { purpose: Purpose::Mark(asked), action }
}

/// Sets a condition of a request that nobody has decided.
fn conditioned(asked: &Asked, new: Value) -> Action {
    let uid = asked.uid.clone();
    let edit: Edit = Box::new(move |found, now| {
        let decided = |sort| condition(&found["status"], sort).is_some();
        let is_meant =
            found["metadata"]["uid"] == *uid && !["Approved", "Denied", "Failed"].into_iter().any(decided);
        if is_meant {
            let mut new = new.clone();
            new["lastUpdateTime"] = now.into();
            if new["type"] == "Approved"
                && let Some(conditions) = found["status"]["conditions"].as_array_mut()
            {
                conditions.retain(|known| known["type"] != AWAITING);
            }
            set_condition(&mut found["status"], new, now);
        }
        is_meant
    });
    let requires = asked.relies_on.clone();
    Action::Update {
        kind: &CERTIFICATE_REQUEST,
        namespace: String::new(),
        name: asked.name.clone(),
        edit,
        requires,
    }
}

fn told(asked: Asked) -> Vec<Task<Purpose>> {
    let Asked { node, event, .. } = asked;
    let create =
        |event: Box<Value>| Task { purpose: Purpose::Tell(node), action: Action::create(&EVENT, *event) };
    event.map(create).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-11-21 12:00:00 UTC);

    /// A case in which no row refuses anything, by this kind of requester.
    fn case(by: By) -> Case {
        Case {
            by,
            node: "a".to_owned(),
            key: "k1".to_owned(),
            public_key: Vec::new(),
            denied: false,
            may_have_the_name: true,
            token: Some(Token {
                id: String::new(),
                name: String::new(),
                revision: 1,
                approves: true,
                spent: false,
                counts: true,
            }),
            record: Record::default(),
            is_void: false,
            newest_lives: false,
            newest_is_denied: false,
            registered: None,
            is_newest: true,
            own_key: "k1".to_owned(),
            since: 1_700_000_000,
            expired_too_long: false,
            relies_on: Vec::new(),
        }
    }

    /// Each row by its name, with a case that it decides.
    #[test]
    fn each_row_decides_its_case() {
        let newest = |key: &str| Record {
            newest: Some(Newest { issue: 7, not_after: i64::MAX, key: key.to_owned() }),
            ..Record::default()
        };
        let pending = |key: &str| Record { pending: key.to_owned(), ..Record::default() };
        let token = |change: &dyn Fn(&mut Token)| {
            let mut case = case(By::Token);
            case.token.iter_mut().for_each(change);
            case
        };
        let here = || Some("uid".to_owned());
        let returning = |change: &dyn Fn(&mut Case)| {
            let mut case = Case { record: newest("k1"), registered: here(), ..case(By::Expired) };
            change(&mut case);
            case
        };
        let cases = [
            (Case { denied: true, ..case(By::Token) }, "Denied", Answer::Person, false),
            (Case { denied: true, ..case(By::Live) }, "Denied", Answer::Person, false),
            (Case { denied: true, ..case(By::Expired) }, "Denied", Answer::Person, false),
            (Case { denied: true, ..case(By::Other) }, "Denied", Answer::Person, false),
            (Case { token: None, ..case(By::Token) }, "TokenGone", Answer::Person, false),
            (Case { may_have_the_name: false, ..case(By::Token) }, "OtherName", Answer::Person, false),
            (Case { may_have_the_name: false, ..case(By::Live) }, "OtherName", Answer::Person, false),
            (Case { may_have_the_name: false, ..case(By::Expired) }, "OtherName", Answer::Person, false),
            (
                Case { record: newest("k1"), newest_is_denied: true, ..token(&|token| token.spent = true) },
                "KeyOfDenied",
                Answer::Person,
                true,
            ),
            // the device that takes the place of a denied one
            (
                Case { record: newest("k0"), newest_is_denied: true, ..case(By::Token) },
                "Joins",
                Answer::Admit,
                false,
            ),
            (case(By::Token), "Joins", Answer::Admit, false),
            (Case { record: pending("k1"), ..case(By::Token) }, "Joins", Answer::Admit, false),
            // of a credential that has expired, and a Node that was deleted
            (Case { record: newest("k0"), ..case(By::Token) }, "Joins", Answer::Admit, false),
            (
                Case {
                    record: newest("k1"),
                    newest_lives: true,
                    registered: here(),
                    ..token(&|token| token.spent = true)
                },
                "SameKey",
                Answer::Approve,
                false,
            ),
            (
                Case { record: newest("k0"), newest_lives: true, ..case(By::Token) },
                "NameTaken",
                Answer::Person,
                true,
            ),
            (Case { registered: here(), ..case(By::Token) }, "NameTaken", Answer::Person, true),
            (Case { record: pending("k0"), ..case(By::Token) }, "NameTaken", Answer::Person, true),
            (Case { record: pending("k0"), is_void: true, ..case(By::Token) }, "Joins", Answer::Admit, false),
            (
                Case { record: pending("k0"), registered: here(), ..case(By::Token) },
                "NameTaken",
                Answer::Person,
                true,
            ),
            (token(&|token| token.spent = true), "TokenSpent", Answer::Person, false),
            (token(&|token| token.approves = false), "TokenNeedsPerson", Answer::Person, false),
            (
                Case { record: newest("k0"), newest_lives: true, registered: here(), ..case(By::Live) },
                "Renews",
                Answer::Approve,
                false,
            ),
            // also an older certificate that is valid, and with any key
            (
                Case { is_newest: false, key: "k2".to_owned(), ..case(By::Live) },
                "Renews",
                Answer::Approve,
                false,
            ),
            (returning(&|_| ()), "ReturnedAfter", Answer::Approve, true),
            (returning(&|case| case.is_newest = false), "ReturnedWithOlderKey", Answer::Person, true),
            (returning(&|case| case.key = "k2".to_owned()), "ReturnedWithNewKey", Answer::Person, true),
            (returning(&|case| case.registered = None), "NotRegistered", Answer::Person, false),
            (returning(&|case| case.expired_too_long = true), "ExpiredTooLong", Answer::Person, true),
            (case(By::Other), "NotByItself", Answer::Person, false),
        ];
        for (case, reason, answer, tells) in &cases {
            let row = case.row();
            assert_eq!((row.reason, row.answer, row.tells), (*reason, *answer, *tells), "{case:?}");
        }
        for row in ROWS {
            assert!(cases.iter().any(|(_, reason, ..)| *reason == row.reason), "no case for {}", row.reason);
            assert!(row.reason.bytes().all(|byte| byte.is_ascii_alphabetic()), "{}", row.reason);
        }
    }

    #[test]
    fn every_kind_of_requester_has_a_last_row() {
        for by in [By::Token, By::Live, By::Expired, By::Other] {
            for bits in 0..1 << 8_u32 {
                let is = |bit: u32| bits & (1 << bit) != 0;
                let mut case = Case {
                    denied: is(0),
                    may_have_the_name: is(1),
                    newest_lives: is(2),
                    registered: is(3).then(String::new),
                    is_newest: is(4),
                    expired_too_long: is(5),
                    ..case(by)
                };
                case.token = case.token.filter(|_| is(6));
                case.own_key = if is(7) { "k1" } else { "k0" }.to_owned();
                let row = case.row();
                // nobody but a live node gets a certificate for nothing but its name
                let approves = row.answer != Answer::Person;
                let expect = !is(0)
                    && is(1)
                    && match by {
                        By::Token => !is(2) && !is(3) && is(6),
                        By::Live => true,
                        By::Expired => is(3) && is(4) && !is(5) && is(7),
                        By::Other => false,
                    };
                assert_eq!(approves, expect, "{} {case:?}", row.reason);
            }
        }
    }

    #[test]
    fn credential_lives_until_it_expires_or_is_denied() {
        let newest = |not_after: i64| Newest { issue: 7, not_after, key: String::new() };
        let none = DenyList::default();
        let end = NOW.unix_timestamp();
        assert!(lives(&newest(end + 1), "a", &none, NOW) && !lives(&newest(end), "a", &none, NOW));
        let denied = DenyList::read(&json!({"data": {"node.a": ""}}));
        assert!(!lives(&newest(end + 1), "a", &denied, NOW) && lives(&newest(end + 1), "b", &denied, NOW));
    }

    /// A device that was thrown out by its user's name does not renew its old key once the name is let in again.
    #[test]
    fn credential_from_before_a_users_return_is_denied() {
        let returned = |after: u64| {
            let entry = json!({"readmitted": "2026-11-01T00:00:00Z", "after": after}).to_string();
            DenyList::read(&json!({"data": {"user.system_3anode_3aa": entry}}))
        };
        let newest = Newest { issue: 7, not_after: NOW.unix_timestamp() + 1, key: String::new() };
        assert!(is_denied(&newest, "a", &returned(7)) && !lives(&newest, "a", &returned(7), NOW));
        assert!(!is_denied(&newest, "a", &returned(6)) && lives(&newest, "a", &returned(6), NOW));
    }
}
