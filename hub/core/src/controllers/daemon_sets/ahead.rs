//! Images that a node pulls before an update stops the pod that runs there.
//!
//! The controller asks by an annotation of the pod that is to be replaced (`kedge_api::PullAhead`) and the
//! node's agent answers by a condition of it. Always holds: a request is for one revision in one generation
//! of the template, and an answer to another request does not count; the controller asks only nodes with an
//! agent that can pull ahead, only for images that the pod there does not run, and only with secrets that
//! this pod has (a node may read no others). A node that does not answer holds up its update for [`ANSWERS`]
//! at most; one that answers keeps its pod until the images are there. Leaves to others: the order of nodes
//! (`update`), and which failures stop an update (`rollout`).

use std::time::Duration;

use kedge_api::{IMAGES_PULLED, ImageAhead, PULL_AHEAD_ANNOTATION, PULLING, PullAhead};
use serde_json::Value;

use super::super::placing::Node;
use super::update::Pod;
use crate::decode;
use crate::value::{condition, text};

/// How long a node may take to report that it pulls: two list intervals of its agent, in case its watch has
/// ended. An agent that cannot pull ahead (after a downgrade) does not answer: the update waits no longer
/// than this for it.
pub(super) const ANSWERS: Duration = Duration::from_secs(60);

/// The part of a pod that this module uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct OfPod {
    images: Vec<String>,
    secrets: Vec<String>,
    /// The revision of the latest request to pull images ahead; empty without one.
    pub(super) asked: String,
    answer: Option<Answer>,
}

#[derive(Debug, Clone, PartialEq)]
struct Answer {
    revision: String,
    message: String,
    is_there: bool,
    is_failing: bool,
}

impl OfPod {
    pub(super) fn read(pod: &Value) -> OfPod {
        let request = text(pod, &["metadata", "annotations", PULL_AHEAD_ANNOTATION]);
        let request: Value = decode::value(request.as_bytes()).unwrap_or_default();
        let answer = condition(&pod["status"], IMAGES_PULLED).and_then(|found| {
            let (revision, message) = text(found, &["message"]).split_once(": ")?;
            let is_there = found["status"] == "True";
            let is_failing = !is_there && found["reason"] != PULLING;
            Some(Answer { revision: revision.to_owned(), message: message.to_owned(), is_there, is_failing })
        });
        OfPod {
            images: images(&pod["spec"]).map(|image| image.image).collect(),
            secrets: secrets(&pod["spec"]).collect(),
            asked: text(&request, &["revision"]).to_owned(),
            answer,
        }
    }

    fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref().filter(|answer| answer.revision == self.asked)
    }

    /// The node reports that it cannot pull the requested images.
    pub(super) fn is_failing(&self) -> bool {
        self.answer().is_some_and(|answer| answer.is_failing)
    }
}

/// Image and policy of each container.
fn images(spec: &Value) -> impl Iterator<Item = ImageAhead> {
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.flat_map(|list| spec[list].as_array().into_iter().flatten());
    containers.map(|container| ImageAhead {
        image: text(container, &["image"]).to_owned(),
        policy: text(container, &["imagePullPolicy"]).to_owned(),
    })
}

fn secrets(spec: &Value) -> impl Iterator<Item = String> {
    let list = spec["imagePullSecrets"].as_array().into_iter().flatten();
    list.map(|secret| text(secret, &["name"]).to_owned())
}

/// The images and secrets that the current revision of a set needs on its nodes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    revision: String,
    images: Vec<ImageAhead>,
    secrets: Vec<String>,
}

/// How far a node is with pulling.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// All images are there: nothing to wait for.
    Unneeded,
    /// Send the node this request, as an annotation.
    Ask(String),
    /// The node has the request, but has not answered.
    Silent,
    /// The node reports that it pulls, in these words.
    Pulling(String),
    Failing(String),
    Pulled,
}

impl Request {
    pub(super) fn of(spec: &Value, hash: &str, generation: &str) -> Request {
        let mut all: Vec<ImageAhead> = Vec::new();
        for image in images(spec) {
            if !all.contains(&image) {
                all.push(image);
            }
        }
        Request { revision: format!("{hash}.{generation}"), images: all, secrets: secrets(spec).collect() }
    }

    /// How far the node of a pod that is to be replaced is with pulling.
    pub(super) fn step(&self, pod: &Pod, node: &Node) -> Step {
        let of = &pod.ahead;
        if !node.pulls_ahead || self.secrets.iter().any(|secret| !of.secrets.contains(secret)) {
            return Step::Unneeded;
        }
        // the node has the images that its pod runs, except that a tag may point to another image by now
        let is_new = |image: &&ImageAhead| image.policy == "Always" || !of.images.contains(&image.image);
        let images: Vec<ImageAhead> = self.images.iter().filter(is_new).cloned().collect();
        if images.is_empty() {
            return Step::Unneeded;
        }
        if of.asked != self.revision {
            let request = PullAhead { revision: self.revision.clone(), images };
            return serde_json::to_string(&request).map_or(Step::Unneeded, Step::Ask);
        }
        match of.answer() {
            None => Step::Silent,
            Some(answer) if answer.is_there => Step::Pulled,
            Some(answer) if answer.is_failing => Step::Failing(answer.message.clone()),
            Some(answer) => Step::Pulling(answer.message.clone()),
        }
    }

    /// Whether `asked`, the request that a pod has, is for another revision.
    pub(super) fn is_not(&self, asked: &str) -> bool {
        asked != self.revision
    }
}
