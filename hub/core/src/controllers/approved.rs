//! The keys of nodes, as far as approved requests for certificates tell them.
//!
//! For an API server that keeps no table of credentials ([`crate::kinds::CREDENTIAL`]). Always holds: a name is
//! taken while an approved request of another key for it is stored, whoever approved that one. Kubernetes
//! removes requests an hour after the approval; then only the Node itself holds its name. Left to others: the
//! decision (`approving`).

use std::collections::BTreeMap;

use kedge_api::{NODE_SIGNER, NODE_USER_PREFIX};
use serde_json::Value;

use super::controller::World;
use crate::identity::certificate_request::Request;
use crate::identity::credential::{Newest, Record, key_id};
use crate::kinds::{CERTIFICATE_REQUEST, schema};
use crate::object::{Event, Object};
use crate::value::{condition, text};

/// See the module: node and key of each approved request, by the request's name.
#[derive(Debug, Default)]
pub(super) struct Approved(BTreeMap<String, (String, String)>);

impl Approved {
    /// Takes in all stored requests.
    pub(super) fn sweep(&mut self, world: &dyn World) {
        self.0.clear();
        world.list(&CERTIFICATE_REQUEST, "").iter().for_each(|request| self.note(request));
    }

    /// Takes in a change of a request.
    pub(super) fn observe(&mut self, event: &Event) {
        match (&event.new, &event.old) {
            (Some(request), _) => self.note(request),
            (None, Some(gone)) => drop(self.0.remove(&*gone.name)),
            (None, None) => {}
        }
    }

    fn note(&mut self, object: &Object) {
        match of(&object.value()) {
            Some(found) => drop(self.0.insert(object.name.to_string(), found)),
            None => drop(self.0.remove(&*object.name)),
        }
    }

    /// What the table of credentials would say, as far as it is known: that the newest credential is of this
    /// key, or that another key waits for its certificate.
    pub(super) fn record(&self, node: &str, key: &str) -> Record {
        let mut of_name = self.0.values().filter(|(of, _)| of == node).map(|(_, key)| key);
        if let Some(other) = of_name.clone().find(|known| *known != key) {
            return Record { pending: other.clone(), ..Record::default() };
        }
        let newest = of_name.next().map(|key| Newest { issue: 0, not_after: i64::MAX, key: key.clone() });
        Record { newest, ..Record::default() }
    }
}

/// Node and key of a request that is approved and has not failed.
fn of(request: &Value) -> Option<(String, String)> {
    let is = |sort| condition(&request["status"], sort).is_some();
    if text(request, &["spec", "signerName"]) != NODE_SIGNER
        || !is("Approved")
        || is("Denied")
        || is("Failed")
    {
        return None;
    }
    let asked = Request::from_pem(&schema::base64_decode(text(request, &["spec", "request"]))?).ok()?;
    Some((asked.common_name.strip_prefix(NODE_USER_PREFIX)?.to_owned(), key_id(&asked.public_key)))
}
