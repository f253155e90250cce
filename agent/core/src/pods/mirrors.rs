//! The mirror pods in the API: the API server's objects of static pods, which show them to others.
//!
//! Always holds: only the file decides whether a static pod runs, so a mirror is made again when others
//! delete it, at growing pauses. A mirror without a pod stays while its file may exist, or its pod ends.
//! Leaves to others: a mirror's text and its status (`steps::reporting`).

use crate::answer::{Answer, Now};
use crate::pods::backoff::{Restarts, Retry};
use crate::pods::event::PodAction;
use crate::pods::in_api::version_of;
use crate::pods::keys::{PodRef, PodUid};
use crate::pods::life::Life;
use crate::pods::spec::MIRROR_ANNOTATION;
use crate::pods::statics::Statics;
use crate::pods::steps::reporting::mirror_of;
use crate::sorted::{SortedMap, SortedSet};
use kedge_api::STATIC_PATH_ANNOTATION;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Namespace and name.
type Key = (String, String);

/// A mirror pod in the API.
#[derive(Debug, Clone)]
struct Mirror {
    hash: String,
    object: Value,
    /// The server has shown this state, and the pod has not taken it yet; the pod then knows that its next
    /// status is newer.
    is_news: bool,
    is_deleting: bool,
}

impl Mirror {
    fn uid(&self) -> &Value {
        &self.object["metadata"]["uid"]
    }

    /// The path of its pod's file; `None` if the agent that made the mirror did not record it.
    fn path(&self) -> Option<&str> {
        self.object["metadata"]["annotations"][STATIC_PATH_ANNOTATION].as_str()
    }

    /// Whether another client is deleting it: this node's own deletions leave no grace period.
    fn is_leaving(&self) -> bool {
        self.object["metadata"]["deletionTimestamp"].is_string()
    }

    /// Whether another client is the cause when it disappears.
    fn goes_by_others(&self) -> bool {
        self.is_leaving() || !self.is_deleting
    }
}

/// When a mirror that another client deleted is made again: at once, then after growing pauses, because a
/// controller may delete each new one.
#[derive(Debug, Clone, Default)]
struct Remaking {
    pauses: Restarts,
    /// When the last one was found missing, until another is made.
    gone: Option<Duration>,
}

/// The mirrors in the API, and those to be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mirrors {
    shown: SortedMap<Key, Mirror>,
    /// When a creation or deletion that failed is tried again.
    retries: SortedMap<Key, Retry>,
    /// Mirrors that are being created.
    creating: SortedSet<Key>,
    /// Mirrors of static pods that other clients deleted.
    remaking: SortedMap<Key, Remaking>,
    /// When a mirror is created or deleted again.
    wake: Option<Duration>,
}

/// The mirrors before a list.
pub(crate) struct Before(SortedMap<Key, Mirror>);

impl Mirrors {
    /// The API server shows a mirror.
    pub(crate) fn seen(&mut self, hash: &str, object: &Value) {
        let before = self.shown.get(&name_of(object));
        let is_same = before.is_some_and(|before| *before.uid() == object["metadata"]["uid"]);
        let is_deleting = is_same && before.is_some_and(|before| before.is_deleting);
        // events about a deleted mirror may arrive late
        let version = version_of(object);
        if before.is_some_and(|before| version.is_some() && version < version_of(&before.object)) {
            return;
        }
        let mirror = Mirror { hash: hash.to_owned(), object: object.clone(), is_news: true, is_deleting };
        self.shown.insert(name_of(object), mirror);
    }

    /// A list shows all mirrors that exist.
    pub(crate) fn list_begins(&mut self) -> Before {
        Before(std::mem::take(&mut self.shown))
    }

    /// The list of the same Node's pods ended: others deleted the mirrors that it lacks.
    pub(crate) fn list_ends(&mut self, now: Now, Before(before): Before) {
        for (key, mirror) in before {
            if mirror.goes_by_others() && !self.shown.contains_key(&key) {
                self.lost(now, key);
            }
        }
    }

    /// The server no longer has a mirror with this UID. Returns whether it was known.
    pub(crate) fn forget(&mut self, now: Now, uid: &str) -> bool {
        let key = self.shown.iter().find(|(_, mirror)| mirror.uid() == uid).map(|(key, _)| key.clone());
        let Some(key) = key else { return false };
        if self.shown.remove(&key).is_some_and(|mirror| mirror.goes_by_others()) {
            self.lost(now, key);
        }
        true
    }

    /// Another client deleted a mirror.
    fn lost(&mut self, now: Now, key: Key) {
        self.remaking.entry(key).or_default().gone = Some(now.mono);
    }

    /// The answer to a creation.
    pub(crate) fn created(&mut self, now: Now, key: Key, answer: &Answer) {
        self.creating.remove(&key);
        match answer {
            Answer::Accepted(Some(object)) => {
                let hash = object["metadata"]["annotations"][MIRROR_ANNOTATION].as_str();
                self.seen(hash.unwrap_or_default(), object);
                self.retries.remove(&key);
            }
            // accepted without an object, too: the watch will show the mirror
            _ => self.retries.entry(key).or_default().failed(now.mono),
        }
    }

    /// The answer to a deletion. Returns false if it was not about a mirror.
    pub(crate) fn deleted(&mut self, now: Now, pod: &PodRef, answer: &Answer) -> bool {
        let key = (pod.namespace.clone(), pod.name.clone());
        let mirror = self.shown.get_mut(&key).filter(|mirror| mirror.uid() == pod.uid.as_str());
        let Some(mirror) = mirror else { return false };
        mirror.is_deleting = false;
        if matches!(answer, Answer::Accepted(_) | Answer::Refused { status: 404 | 409, .. }) {
            let is_lost = mirror.is_leaving();
            self.shown.remove(&key);
            if is_lost {
                self.lost(now, key);
            }
        } else {
            self.retries.entry(key).or_default().failed(now.mono);
        }
        true
    }

    /// Whether one has this UID.
    pub(crate) fn have(&self, uid: &str) -> bool {
        self.shown.values().any(|mirror| mirror.uid() == uid)
    }

    /// Whether this is one.
    pub(crate) fn is_one(&self, pod: &PodRef) -> bool {
        let mirror = self.shown.get(&(pod.namespace.clone(), pod.name.clone()));
        mirror.is_some_and(|mirror| mirror.uid() == pod.uid.as_str())
    }

    /// The path of the file that this pod's mirror names.
    pub(crate) fn path_of(&self, uid: &PodUid) -> Option<&str> {
        self.shown.values().find(|mirror| mirror.hash == uid.as_str())?.path()
    }

    /// The mirror shows a life that is over: a pod that starts again needs a new one, and another pod with
    /// its name may need one.
    pub(crate) fn let_go(&mut self, key: &Key, uid: &PodUid) {
        if let Some(mirror) = self.shown.get_mut(key).filter(|mirror| mirror.hash == uid.as_str()) {
            mirror.hash.clear();
        }
    }

    /// Deletes mirrors without a static pod, and creates missing ones. `node` has the Node's name and UID.
    pub(crate) fn settle(
        &mut self,
        now: Now,
        lives: &mut BTreeMap<PodUid, Life>,
        statics: &Statics,
        node: (&str, &str),
        actions: &mut Vec<PodAction>,
    ) {
        self.wake = None;
        self.forget_lost(lives);
        let key_of = |life: &Life| (life.namespace.clone(), life.name.clone());
        let all = || lives.values().filter(|life| life.is_static());
        let running = all().filter(|life| life.ending.asked.is_none());
        let wanted: SortedMap<Key, PodUid> = running.map(|life| (key_of(life), life.uid.clone())).collect();
        let ending: SortedSet<Key> = all().filter(|life| life.ending.asked.is_some()).map(key_of).collect();
        for (key, mirror) in &mut self.shown {
            let is_right = wanted.get(key).is_some_and(|uid| uid.as_str() == mirror.hash);
            let is_leaving = mirror.is_leaving();
            // a mirror without a pod may belong to a file that was not read yet, or to a pod that still ends
            let may_delete =
                wanted.contains_key(key) || (!ending.contains(key) && !statics.may_be_there(mirror.path()));
            if (is_right || !may_delete) && !is_leaving || mirror.is_deleting {
                continue;
            }
            if let Some(retry) = self.retries.get(key).filter(|retry| !retry.is_due(now.mono)) {
                self.wake = self.wake.into_iter().chain([retry.due()]).min();
            } else {
                mirror.is_deleting = true;
                actions.push(PodAction::DeletePod(reference_of(&mirror.object)));
            }
        }
        self.retries.retain(|key, _| wanted.contains_key(key) || self.shown.contains_key(key));
        self.remaking.retain(|key, _| wanted.contains_key(key));
        for (key, uid) in wanted {
            let Some(life) = lives.get_mut(&uid) else { continue };
            let has_mirror = self.shown.contains_key(&key);
            let is_own = |mirror: &&mut Mirror| mirror.hash == uid.as_str() && !mirror.is_deleting;
            match self.shown.get_mut(&key).filter(is_own) {
                Some(mirror) => {
                    let is_news = std::mem::take(&mut mirror.is_news);
                    life.mirrored(&mirror.object, is_news);
                }
                None if has_mirror || self.creating.contains(&key) => {}
                None => {
                    life.api = None;
                    self.create(now, key, life, node, actions);
                }
            }
        }
    }

    /// Creates the mirror of a static pod, as soon as the pauses allow.
    fn create(
        &mut self,
        now: Now,
        key: Key,
        life: &Life,
        (node_name, node_uid): (&str, &str),
        actions: &mut Vec<PodAction>,
    ) {
        let again = self.remaking.get(&key).and_then(|it| Some(it.pauses.due(it.gone?)));
        let due = self.retries.get(&key).map(Retry::due).max(again).unwrap_or_default();
        if now.mono < due {
            self.wake = self.wake.into_iter().chain([due]).min();
            return;
        }
        let Some(pod) = &life.pod else { return };
        let pod = mirror_of(pod, life.uid.as_str(), node_name, node_uid);
        // counts like a restart, so that the pauses grow while others keep deleting it
        if let Some(remaking) = self.remaking.get_mut(&key)
            && let Some(gone) = remaking.gone.take()
        {
            remaking.pauses.restarted(gone, now.mono);
        }
        let (namespace, name) = key.clone();
        self.creating.insert(key);
        actions.push(PodAction::CreateMirrorPod { namespace, name, pod });
    }

    /// A static pod, ending or not, gives up a mirror that no longer exists: a later mirror of the same name
    /// belongs to another pod.
    fn forget_lost(&self, lives: &mut BTreeMap<PodUid, Life>) {
        for life in lives.values_mut().filter(|life| life.is_static()) {
            let mirror = self.shown.get(&(life.namespace.clone(), life.name.clone()));
            life.api.take_if(|api| mirror.is_none_or(|mirror| mirror.uid() != api.reference.uid.as_str()));
        }
    }

    /// When a mirror is created or deleted again.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.wake
    }

    /// The number of kept entries.
    pub(crate) fn len(&self) -> usize {
        let others = self.retries.len().saturating_add(self.creating.len());
        self.shown.len().saturating_add(others).saturating_add(self.remaking.len())
    }
}

fn name_of(object: &Value) -> (String, String) {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

pub(crate) fn reference_of(object: &Value) -> PodRef {
    let (namespace, name) = name_of(object);
    PodRef { namespace, name, uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned() }
}
