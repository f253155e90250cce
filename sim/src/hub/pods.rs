//! Pods of the world's hub: an operator's acts, a node's watch of its pods, and a node's own requests.
//!
//! Always holds: every stored pod passed the rules of `kedge_hub_core`. Leaves to others: permissions,
//! controllers.

use super::{Hub, NOW, Rules, answer, refused};
use kedge_core::Answer;
use kedge_core::pods::{PodAsk, PodRef};
use kedge_hub_core::ApiError;
use kedge_hub_core::kinds::{POD, SERVICE_ACCOUNT};
use kedge_hub_core::patch;
use kedge_hub_core::requests::{self, DeleteOptions, Part, Place, WriteOptions};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::Query;
use serde_json::{Value, json};

/// The namespace that pods of tests are in.
const PODS: &str = "default";

impl Hub {
    /// Creates a pod of one container with this image, bound to this node; returns its UID.
    pub fn create_pod(&mut self, node: &str, name: &str, image: &str) -> String {
        // in the real hub a controller creates it together with the namespace
        if self.object(&SERVICE_ACCOUNT, PODS, "default").is_none() {
            let account = json!({"metadata": {"name": "default", "namespace": PODS}});
            self.create(&SERVICE_ACCOUNT, PODS, account).expect("a right account");
        }
        let pod = json!({"metadata": {"name": name, "namespace": PODS}, "spec": {
            "nodeName": node, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": image}]}});
        self.create(&POD, PODS, pod).expect("a right pod")
    }

    /// `kubectl delete pod`: the node ends it, and then confirms that.
    pub fn delete_pod(&mut self, name: &str) {
        let place = Place { kind: &POD, namespace: PODS, name };
        self.delete_by(&place, &DeleteOptions::default()).expect("it is there");
    }

    /// Somebody writes one restart more for each container than the node reports.
    pub fn count_restarts_up(&mut self, name: &str) {
        let place = Place { kind: &POD, namespace: PODS, name };
        let done = self.patch("operator", &place, Part::Status, |pod| {
            for told in pod["status"]["containerStatuses"].as_array_mut().into_iter().flatten() {
                told["restartCount"] = json!(told["restartCount"].as_u64().unwrap_or(0) + 1);
            }
            Ok(())
        });
        done.expect("a right status");
    }

    fn delete_by(&mut self, place: &Place<'_>, asked: &DeleteOptions) -> Result<(), ApiError> {
        let decision = requests::delete(&Rules(self), place, asked, &WriteOptions::internal(), NOW)?;
        self.perform(decision, None)
    }

    /// The number of writes, without renewals.
    pub fn changes(&self) -> u64 {
        self.order.revision()
    }

    /// All pods that are bound to this node, and the version of the list.
    pub fn pods_of(&self, node: &str) -> (Vec<Value>, u64) {
        let bound =
            Selection::parse(&POD, "", "", &format!("spec.nodeName={node}")).expect("it is selectable");
        let page = self.of(&POD).list(&POD, &bound, &Query::default()).expect("the latest is known");
        (page.objects.iter().map(|object| object.value()).collect(), page.revision)
    }

    /// Answers a request about the pods of this node.
    pub(super) fn answer_pods(&mut self, node: &str, ask: &PodAsk) -> Answer {
        match ask {
            PodAsk::PatchStatus { pod, body } => {
                let Some(place) = self.place_of(pod) else { return gone(pod) };
                let done = self.patch(node, &place, Part::Status, |pod| {
                    patch::strategic::apply(POD.schema(), pod, body.clone())
                });
                match done {
                    Ok(()) => Answer::Accepted(self.object(&POD, &pod.namespace, &pod.name)),
                    refused => answer(refused),
                }
            }
            PodAsk::Delete(pod) => {
                let Some(place) = self.place_of(pod) else { return gone(pod) };
                let (uid, grace_secs) = (Some(pod.uid.clone()), Some(0));
                answer(self.delete_by(&place, &DeleteOptions { uid, grace_secs, ..DeleteOptions::default() }))
            }
            PodAsk::PostEvent { body, .. } => answer(self.post(body)),
            PodAsk::Create { namespace, body } => {
                answer(self.create_by(Some(node), &POD, namespace, body.clone()).map(drop))
            }
            PodAsk::Read(_) | PodAsk::CreateToken { .. } => {
                refused(404, "NotFound", "no test has such objects")
            }
        }
    }

    /// `None` if the pod of this UID no longer exists.
    fn place_of<'a>(&self, pod: &'a PodRef) -> Option<Place<'a>> {
        let there = self.object(&POD, &pod.namespace, &pod.name)?;
        let place = Place { kind: &POD, namespace: &pod.namespace, name: &pod.name };
        (there["metadata"]["uid"] == pod.uid.as_str()).then_some(place)
    }
}

fn gone(pod: &PodRef) -> Answer {
    refused(404, "NotFound", &format!("pods {:?} not found", pod.name))
}
