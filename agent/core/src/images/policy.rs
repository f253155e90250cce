//! `imagePullPolicy`: whether to contact the registry.
//!
//! Always holds: the words and the default are upstream's: `Always` for the tag `latest`, otherwise
//! `IfNotPresent`; a present reference with a digest is not requested again under any policy, because the
//! answer could only be the same.

use super::reference::{DEFAULT_TAG, Reference};
pub use crate::pods::PullPolicy;

/// The action for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Use the present one.
    Use,
    /// Contact the registry. If it does not answer, the pod waits: upstream does the same.
    Pull,
    /// `ErrImageNeverPull`.
    Refuse,
}

impl PullPolicy {
    /// Reads the word of a container; empty means the default.
    ///
    /// # Errors
    /// It is another word.
    pub fn parse(text: &str, image: &Reference) -> Result<Self, String> {
        match text {
            "" => Ok(Self::default_for(image)),
            "Always" => Ok(Self::Always),
            "IfNotPresent" => Ok(Self::IfNotPresent),
            "Never" => Ok(Self::Never),
            other => Err(format!(
                "imagePullPolicy is {:?}, expected Always, IfNotPresent or Never",
                kedge_api::excerpt(other)
            )),
        }
    }

    /// The value that upstream's API server fills in.
    #[must_use]
    pub fn default_for(image: &Reference) -> Self {
        let is_latest = image.digest.is_none() && image.tag.as_deref() == Some(DEFAULT_TAG);
        if is_latest { Self::Always } else { Self::IfNotPresent }
    }

    /// The action, depending on whether the image is present.
    #[must_use]
    pub fn decide(self, image: &Reference, is_present: bool) -> Decision {
        match (self, is_present) {
            (Self::Never, false) => Decision::Refuse,
            (Self::IfNotPresent, false) => Decision::Pull,
            (Self::Always, is_present) if !is_present || image.digest.is_none() => Decision::Pull,
            _ => Decision::Use,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_upstreams() {
        let hex = "ab".repeat(32);
        for (image, expect) in [
            ("nginx", PullPolicy::Always),
            ("nginx:latest", PullPolicy::Always),
            ("nginx:1", PullPolicy::IfNotPresent),
            (&format!("nginx@sha256:{hex}"), PullPolicy::IfNotPresent),
            (&format!("nginx:latest@sha256:{hex}"), PullPolicy::IfNotPresent),
        ] {
            let image = Reference::parse(image).unwrap();
            assert_eq!(PullPolicy::parse("", &image), Ok(expect), "{image}");
        }
        assert!(PullPolicy::parse("always", &Reference::parse("a").unwrap()).is_err());
    }

    #[test]
    fn decision_table() {
        use {Decision::*, PullPolicy::*};
        let tagged = Reference::parse("nginx:1").unwrap();
        let pinned = Reference::parse(&format!("nginx@sha256:{}", "ab".repeat(32))).unwrap();
        for (policy, image, absent, present) in [
            (Always, &tagged, Pull, Pull),
            (Always, &pinned, Pull, Use),
            (IfNotPresent, &tagged, Pull, Use),
            (Never, &tagged, Refuse, Use),
        ] {
            assert_eq!(policy.decide(image, false), absent, "{policy:?}");
            assert_eq!(policy.decide(image, true), present, "{policy:?}");
        }
    }
}
