//! The static pods of this node, as their files and their records say.
//!
//! Always holds: a file that is unusable says nothing about its pod, which stays as it was. Leaves to others:
//! reading one file (`static_pods`), the lives of these pods (`Pods`), their mirrors (`mirrors`).

use crate::config::digest::Digest;
use crate::pods::event::{DesiredFile, Exit, PodAction, StaticFile};
use crate::pods::failing::Failed;
use crate::pods::keys::PodUid;
use crate::pods::spec::Pod;
use crate::pods::static_pods::{self, Read};
use crate::sorted::{SortedMap, SortedSet};
use kedge_api::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The content of a static pod's record.
#[derive(Debug, Clone)]
pub(crate) struct StaticResults {
    /// The path of its file; `None` if the agent that wrote the record did not note it.
    pub(crate) path: Option<String>,
    pub(crate) results: SortedMap<String, Exit>,
    pub(crate) failed: Option<Failed>,
    pub(crate) active_since: Option<Timestamp>,
    pub(crate) durable: Digest,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Statics {
    are_read: bool,
    /// Files that were unusable when they were read last: each may belong to a pod, which stays as it was.
    unusable: BTreeSet<String>,
    /// The pods of the files, with the path of each.
    pods: SortedMap<PodUid, (String, Rc<Pod>)>,
    /// The exits of containers that are not started again, from records whose file was not read yet.
    pub(crate) results: SortedMap<PodUid, StaticResults>,
    /// Complaints about files that were logged, by path.
    complaints: BTreeMap<String, String>,
}

impl Statics {
    /// Reads the files' contents; `None` if the files are unknown.
    pub(crate) fn read(
        &mut self,
        files: Result<Vec<StaticFile>, String>,
        node_name: &str,
        is_known: &dyn Fn(&PodUid) -> bool,
        actions: &mut Vec<PodAction>,
    ) -> Option<Read> {
        let files = match files {
            Ok(files) => files,
            Err(why) => {
                self.complain("staticPodPath", why, actions);
                return None;
            }
        };
        let paths: SortedSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        self.complaints.retain(|path, _| paths.contains(path.as_str()));
        let (current, unknown) = static_pods::read_all(&files, node_name, is_known);
        self.complaints.retain(|path, _| unknown.contains_key(path));
        for (path, why) in &unknown {
            self.complain(path, why.clone(), actions);
        }
        Some((current, unknown))
    }

    /// These are the pods now, and the pods of unusable files as they were.
    pub(crate) fn replace(
        &mut self,
        current: SortedMap<PodUid, (String, Rc<Pod>)>,
        unknown: BTreeMap<String, String>,
    ) {
        self.pods.retain(|_, (path, _)| unknown.contains_key(path));
        self.pods.extend(current);
        self.are_read = true;
        self.unusable = unknown.into_keys().collect();
    }

    pub(crate) fn uids(&self) -> Vec<PodUid> {
        self.pods.keys().cloned().collect()
    }

    /// The path of this pod's file, and the pod.
    pub(crate) fn get(&self, uid: &PodUid) -> Option<&(String, Rc<Pod>)> {
        self.pods.get(uid)
    }

    /// Whether a file has a pod of this name.
    pub(crate) fn have_name(&self, namespace: &str, name: &str) -> bool {
        self.pods.values().any(|(_, pod)| pod.namespace == namespace && pod.name == name)
    }

    /// Whether the files were read.
    pub(crate) fn are_read(&self) -> bool {
        self.are_read
    }

    /// Whether all existing static pods were read.
    pub(crate) fn are_all_known(&self) -> bool {
        self.are_read && self.unusable.is_empty()
    }

    /// Whether the file of a static pod may still exist: a file that is unusable now proves nothing about its
    /// own pod, but does not protect the pods of other files. `path` is the pod's file, if known.
    pub(crate) fn may_be_there(&self, path: Option<&str>) -> bool {
        !self.are_read || path.map_or(!self.unusable.is_empty(), |path| self.unusable.contains(path))
    }

    /// Removes records of static pods whose files are gone.
    pub(crate) fn forget_results(&mut self, actions: &mut Vec<PodAction>) {
        let all = self.results.iter();
        let gone = all.filter(|(_, results)| !self.may_be_there(results.path.as_deref()));
        let gone: Vec<PodUid> = gone.map(|(uid, _)| uid.clone()).collect();
        for uid in gone {
            self.results.remove(&uid);
            actions.push(PodAction::SaveDesired { file: DesiredFile::Pod(uid), content: None });
        }
    }

    fn complain(&mut self, path: &str, why: String, actions: &mut Vec<PodAction>) {
        if self.complaints.get(path) != Some(&why) {
            let message = format!("{path} cannot be used: {why}; the pods of it go on as they are");
            actions.push(PodAction::WarnOfNode { reason: "FailedValidation", message });
            self.complaints.insert(path.to_owned(), why);
        }
    }

    /// The number of complaints and kept records.
    pub(crate) fn len(&self) -> usize {
        self.complaints.len().saturating_add(self.results.len())
    }
}
