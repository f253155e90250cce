//! The record of a desired pod on disk, from which the pod keeps running while the API server is unreachable.
//!
//! Always holds: a record is rewritten only if the node's task changed (spec, a requested end, a verdict, a
//! result), never for metadata or status; an unreadable record, or one of a newer agent, counts as unknown
//! and not as empty. Leaves to others: when it is written (`life`).

use crate::config::digest::Digest;
use crate::pods::admission::Rejection;
use crate::pods::event::Exit;
use crate::pods::failing::Failed;
use crate::pods::spec::{LONGEST_GRACE_SECS, Pod};
use crate::sorted::SortedMap;
use kedge_api::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const VERSION: &str = "kedge.dev/v1";
const KIND: &str = "DesiredPod";

/// One pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    api_version: String,
    kind: String,
    /// The Node that it is bound to. Empty for a static pod, of whose record only the results count.
    #[serde(rename = "nodeUID")]
    pub(crate) node_uid: String,
    /// The metadata at the time of writing, and the spec.
    pub(crate) pod: Value,
    /// Its end was requested, with this many seconds of grace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rejected: Option<Rejection>,
    /// The exits of containers that are not started again.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub(crate) results: SortedMap<String, Exit>,
    /// Set if the node ended it while its object stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<Failed>,
    /// For a pod with a deadline: since when it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) active_since: Option<Timestamp>,
}

impl Record {
    pub(crate) fn new(
        node_uid: &str,
        pod: &Pod,
        ended: Option<u64>,
        rejected: Option<Rejection>,
        results: SortedMap<String, Exit>,
    ) -> Self {
        let mut metadata = json!({
            "name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "generation": pod.generation,
            "labels": pod.labels, "annotations": pod.annotations,
        });
        if let Some((kind, name)) = &pod.controller {
            metadata["ownerReferences"] = json!([{"kind": kind, "name": name, "controller": true}]);
        }
        if let Some(created) = pod.created {
            metadata["creationTimestamp"] = json!(created);
        }
        Self {
            api_version: VERSION.into(),
            kind: KIND.into(),
            node_uid: node_uid.to_owned(),
            pod: json!({"metadata": metadata, "spec": pod.raw_spec}),
            ended,
            rejected,
            results,
            failed: None,
            active_since: None,
        }
    }

    pub(crate) fn read(content: &[u8]) -> Result<(Self, Pod), String> {
        let mut record: Self = kedge_api::read::from_slice(content).map_err(|error| error.to_string())?;
        record.ended = record.ended.map(|secs| secs.min(LONGEST_GRACE_SECS));
        if let Some(failed) = &mut record.failed {
            failed.grace_secs = failed.grace_secs.min(LONGEST_GRACE_SECS);
        }
        if record.api_version != VERSION || record.kind != KIND {
            let found = kedge_api::excerpt(&format!("{} {}", record.api_version, record.kind));
            return Err(format!("it is {found:?}, expected {VERSION} {KIND}"));
        }
        let pod = Pod::read(&record.pod)?;
        Ok((record, pod))
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a tree of JSON values is JSON")
    }

    /// A digest of the parts whose change is worth a rewrite.
    pub(crate) fn meaning(&self) -> Digest {
        let mut parts = json!([self.node_uid, self.pod["spec"], self.ended, self.rejected, self.results]);
        // fields that most pods lack must not change the digest, or an update of the agent would rewrite all
        // records
        if let (Some(list), true) =
            (parts.as_array_mut(), self.failed.is_some() || self.active_since.is_some())
        {
            list.extend([json!(self.failed), json!(self.active_since)]);
        }
        Digest::of(parts.to_string().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(annotation: &str, image: &str) -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": annotation,
                "annotations": {"a": annotation}, "ownerReferences": [{"kind": "DaemonSet", "name": "ds", "controller": true}]},
            "spec": {"containers": [{"name": "a", "image": image}], "nodeName": "edge"},
            "status": {"phase": annotation}
        })
    }

    fn record(object: &Value) -> Record {
        Record::new("n", &Pod::read(object).unwrap(), None, None, SortedMap::new())
    }

    #[test]
    fn record_is_read_back_as_the_same_pod() {
        let written = record(&object("1", "x"));
        let (read, pod) = Record::read(&written.content()).unwrap();
        assert_eq!(read, written);
        assert_eq!(pod, Pod::read(&object("1", "x")).unwrap());
        assert_eq!(pod.controller, Some(("DaemonSet".into(), "ds".into())));
    }

    #[test]
    fn rewrite_is_worth_a_spec_but_no_metadata() {
        let first = record(&object("1", "x")).meaning();
        assert_eq!(record(&object("2", "x")).meaning(), first);
        assert_ne!(record(&object("1", "y")).meaning(), first);
        let mut ended = record(&object("1", "x"));
        ended.ended = Some(0);
        assert_ne!(ended.meaning(), first);
    }

    #[test]
    fn grace_without_measure_is_cut() {
        let mut written = record(&object("1", "x"));
        written.ended = Some(u64::MAX);
        assert_eq!(Record::read(&written.content()).unwrap().0.ended, Some(2_147_483_647));
    }

    #[test]
    fn record_that_is_none_is_an_error() {
        for content in [
            &b""[..],
            b"{",
            b"[]",
            b"{\"apiVersion\":\"kedge.dev/v9\",\"kind\":\"DesiredPod\",\"nodeUID\":\"\",\"pod\":{}}",
        ] {
            assert!(Record::read(content).is_err(), "{}", String::from_utf8_lossy(content));
        }
    }
}
