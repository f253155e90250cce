//! The recorded state of a rollout: an annotation of a DaemonSet's revision, or a field of a ConfigRollout's
//! status.

use serde_json::{Value, json};

use crate::decode;
use crate::value::text;

/// The recorded state of a rollout, stored at its revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::controllers) struct Record {
    /// The generation of the template that all of this is about.
    pub(in crate::controllers) generation: String,
    /// Why the rollout is stopped.
    pub(in crate::controllers) stopped: Option<String>,
    /// The annotations as they were when it was stopped.
    pub(in crate::controllers) resume: String,
    pub(in crate::controllers) limit: String,
    /// Failures at the time of a resume: the next stop needs as many more.
    pub(in crate::controllers) forgiven: usize,
    /// The generation in which the rollout was rolled back, recorded before the template is changed. If a
    /// client writes the same revision again later, its rollout is stopped from the start and is not rolled
    /// back a second time.
    pub(in crate::controllers) rolled_back: Option<String>,
    /// The canaries were available for long enough.
    pub(in crate::controllers) soaked: bool,
}

impl Record {
    /// Unreadable parts count as absent and are derived again.
    pub(in crate::controllers) fn read(annotation: &str) -> Record {
        let value: Value = decode::value(annotation.as_bytes()).unwrap_or_default();
        let of = |field: &str| text(&value, &[field]).to_owned();
        let some = |field: &str| value[field].as_str().map(str::to_owned);
        Record {
            generation: of("generation"),
            stopped: some("stopped"),
            rolled_back: some("rolledBack"),
            soaked: value["soaked"] == true,
            resume: of("resume"),
            limit: of("limit"),
            forgiven: value["forgiven"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
        }
    }

    pub(in crate::controllers) fn stopped_in(&self, generation: &str) -> Option<&str> {
        self.stopped.as_deref().filter(|_| self.generation == generation)
    }

    pub(in crate::controllers) fn is_plain(&self) -> bool {
        self.stopped.is_none() && self.rolled_back.is_none()
    }

    pub(in crate::controllers) fn has_soaked(&self) -> bool {
        self.soaked
    }

    /// The annotation; `None` if there is nothing to record.
    pub(in crate::controllers) fn write(&self) -> Option<String> {
        let mut value = json!({"generation": self.generation});
        if let Some(why) = &self.stopped {
            value["stopped"] = why.as_str().into();
            value["limit"] = self.limit.as_str().into();
        }
        if self.forgiven > 0 {
            value["forgiven"] = self.forgiven.into();
        }
        if let Some(generation) = &self.rolled_back {
            value["rolledBack"] = generation.as_str().into();
        }
        if self.soaked {
            value["soaked"] = true.into();
        }
        let is_worth = value.as_object().is_some_and(|fields| fields.len() > 1);
        value["resume"] = self.resume.as_str().into();
        is_worth.then(|| value.to_string())
    }
}
