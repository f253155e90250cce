//! A node's watch of one object: a list, then the changes after it from the hub's own index, until the hub
//! drops the watch.
//!
//! Owns the changes that the node has not been shown yet. Always holds: each change is shown once and in
//! order; a dropped watch continues from its last version, and lists again if the index no longer knows that
//! version. Leaves to others: the meaning of an object (`node`), lists and versions (`hub`).

use crate::hub::Hub;
use kedge_api::METADATA_KIND;
use kedge_core::WatchOrder;
use kedge_hub_core::kinds::Kind;
use kedge_hub_core::object::Event;
use kedge_hub_core::state::{Seen, Sink};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Events on their way from the index to a node. Node and index each hold one end; when either drops its end,
/// the watch is dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Feed(Arc<Mutex<VecDeque<Arc<Event>>>>);

impl Sink for Feed {
    fn queue(&self, event: &Arc<Event>, _: Seen) -> bool {
        self.waiting().push_back(event.clone());
        !self.is_dropped()
    }
}

impl Feed {
    pub(crate) fn begin_with(&self, events: Vec<Arc<Event>>) {
        self.waiting().extend(events);
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arc<Event>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_dropped(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

#[derive(Debug)]
enum State {
    /// A list is due.
    Listing,
    /// It continues after this version.
    Resuming(u64),
    /// Everything up to this version was shown.
    Open { feed: Feed, version: u64 },
}

#[derive(Debug)]
pub(crate) struct Watch {
    kind: &'static Kind,
    namespace: String,
    name: String,
    state: State,
    lists_only: bool,
    metadata_only: bool,
}

/// The object as a list or an event shows it; null if it does not exist.
pub(crate) struct News {
    pub(crate) object: Value,
    pub(crate) is_list: bool,
    /// Every change up to this version was shown.
    pub(crate) version: u64,
    /// Nothing follows the list.
    pub(crate) is_last: bool,
}

impl Watch {
    pub(crate) fn new(kind: &'static Kind, namespace: &str, name: &str, order: &WatchOrder) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let WatchOrder { lists_only, metadata_only, .. } = *order;
        // a list instead of the remaining changes misses nothing either
        let after = order.after.as_ref().filter(|_| metadata_only).and_then(|after| after.parse().ok());
        let state = after.map_or(State::Listing, State::Resuming);
        Self { kind, namespace, name, state, lists_only, metadata_only }
    }

    /// Another watch of the same object, which has shown nothing yet.
    pub(crate) fn anew(&self) -> Self {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        Self { namespace, name, state: State::Listing, ..*self }
    }

    pub(crate) fn list_again(&mut self) {
        self.state = State::Listing;
    }

    /// Loses the changes that wait to be shown; the watch continues after them.
    pub(crate) fn lose_news(&mut self) {
        if let State::Open { feed, version } = &mut self.state
            && let Some(last) = feed.waiting().drain(..).next_back()
        {
            *version = last.revision;
        }
    }

    pub(crate) fn has_news(&self) -> bool {
        match &self.state {
            State::Listing | State::Resuming(_) => true,
            State::Open { feed, .. } => feed.is_dropped() || !feed.waiting().is_empty(),
        }
    }

    pub(crate) fn next(&mut self, hub: &mut Hub) -> Option<News> {
        loop {
            match &mut self.state {
                State::Listing => {
                    let (object, version) = hub.list_one(self.kind, &self.namespace, &self.name);
                    self.open(hub, version);
                    return Some(News { object, is_list: true, version, is_last: self.lists_only });
                }
                State::Resuming(version) => {
                    let version = *version;
                    self.open(hub, version);
                }
                State::Open { feed, version } => {
                    let event = feed.waiting().pop_front();
                    if let Some(event) = event {
                        *version = event.revision;
                        let object = event.new.as_ref().map_or(Value::Null, |object| object.value());
                        let object = if self.metadata_only { metadata_of(&object) } else { object };
                        return Some(News { object, is_list: false, version: *version, is_last: false });
                    }
                    if !feed.is_dropped() {
                        return None;
                    }
                    let version = *version;
                    self.open(hub, version);
                }
            }
        }
    }

    /// Continues after this version; if the index refuses that (410 or a version of another hub), starts with
    /// a list.
    fn open(&mut self, hub: &mut Hub, version: u64) {
        self.state = match hub.watch(self.kind, &self.namespace, &self.name, version) {
            Ok(feed) => State::Open { feed, version },
            Err(_) => State::Listing,
        };
    }
}

/// The form of an object in a watch of metadata.
fn metadata_of(object: &Value) -> Value {
    match object {
        Value::Null => Value::Null,
        object => json!({"kind": METADATA_KIND, "metadata": object["metadata"]}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::{Flavour, NAMESPACE};
    use kedge_hub_core::kinds::CONFIG_MAP;

    fn listed() -> (Hub, Watch) {
        let mut hub = Hub::new(Flavour::Kedge);
        hub.push("a", "first");
        let mut watch = Watch::new(&CONFIG_MAP, NAMESPACE, "a", &WatchOrder::default());
        assert!(watch.next(&mut hub).is_some_and(|news| news.is_list));
        assert!(watch.next(&mut hub).is_none());
        (hub, watch)
    }

    /// Payloads as shown, each with whether a list showed it.
    fn shown(watch: &mut Watch, hub: &mut Hub) -> Vec<(bool, Option<String>)> {
        let news = std::iter::from_fn(|| watch.next(hub));
        let payload = |object: &Value| object["data"]["kubelet"].as_str().map(str::to_owned);
        news.map(|news| (news.is_list, payload(&news.object))).collect()
    }

    #[test]
    fn every_change_is_shown_once_in_order() {
        let (mut hub, mut watch) = listed();
        hub.push("a", "second");
        hub.push("b", "another's");
        hub.delete_config_map("a");
        hub.push("a", "third");
        let expect = [(false, Some("second".into())), (false, None), (false, Some("third".into()))];
        assert_eq!(shown(&mut watch, &mut hub), expect);
    }

    #[test]
    fn watch_resumes_on_a_hub_that_knows_its_version() {
        let (hub, mut watch) = listed();
        let mut restarted = hub.clone();
        drop(hub);
        restarted.push("a", "second");
        assert_eq!(shown(&mut watch, &mut restarted), [(false, Some("second".into()))]);
    }

    #[test]
    fn version_that_the_index_forgot_leads_to_a_list() {
        let (mut hub, mut watch) = listed();
        hub = hub.clone();
        hub.push("a", "second");
        hub = hub.clone();
        assert_eq!(shown(&mut watch, &mut hub), [(true, Some("second".into()))]);
    }

    #[test]
    fn version_of_another_hub_leads_to_a_list() {
        let (hub, mut watch) = listed();
        drop(hub);
        let mut wiped = Hub::new(Flavour::Kedge);
        assert_eq!(shown(&mut watch, &mut wiped), [(true, None)]);
    }
}
