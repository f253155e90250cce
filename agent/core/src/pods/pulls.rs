//! Failed pulls: when one is tried again, and how it is shown.

use crate::answer::Now;
use crate::pods::backoff::Retry;
use crate::pods::event::{Failure, FailureReason};

/// When a pull breaks off after some progress, the next try follows soon, so that a link which cuts every
/// connection still delivers the image at its own speed instead of the back-off's.
pub(crate) fn pull_retry(retry: &mut Retry, now: Now, failure: &Failure) {
    match failure.reason {
        FailureReason::PullBrokeOff => retry.broke_off(now.mono),
        _ => retry.failed(now.mono),
    }
}

/// How a failed pull is shown, with upstream's text: reason and message of the container, reason and message
/// of the event.
pub(crate) fn pull_words(
    image: &str,
    failure: &Failure,
    is_backing_off: bool,
) -> (&'static str, &'static str, String, String) {
    let message = &failure.message;
    let both = |reason, event, text: String| (reason, event, text.clone(), text);
    let (word, text, told) = match failure.reason {
        FailureReason::InvalidImageName => {
            let text = format!("Failed to apply default image tag {image:?}: {message}");
            return both("InvalidImageName", "InspectFailed", text);
        }
        FailureReason::ImageNeverPull => {
            let text = format!("Container image {image:?} is not present with pull policy of Never");
            return both("ErrImageNeverPull", "ErrImageNeverPull", text);
        }
        FailureReason::ImageInspect => {
            let text = format!("Failed to inspect image {image:?}: {message}");
            return both("ImageInspectError", "InspectFailed", text);
        }
        FailureReason::ImageSignature => (
            "SignatureValidationFailed",
            format!("image pull failed for {image} because the signature validation failed: {message}"),
            format!("SignatureValidationFailed: {message}"),
        ),
        _ => ("ErrImagePull", message.clone(), message.clone()),
    };
    let told = format!("Failed to pull image {image:?}: {told}");
    match is_backing_off {
        true => {
            ("ImagePullBackOff", "Failed", format!("Back-off pulling image {image:?}: {word}: {text}"), told)
        }
        false => (word, "Failed", text, told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_pull_is_shown_in_upstreams_words() {
        let check = |reason, is_backing_off, expect: [&str; 4]| {
            let failure = Failure { reason, message: "why".into() };
            let (reason, event, text, told) = pull_words("r.lan/a", &failure, is_backing_off);
            assert_eq!([reason, event, &text, &told], expect);
        };
        let told = "Failed to pull image \"r.lan/a\": why";
        check(FailureReason::Other, false, ["ErrImagePull", "Failed", "why", told]);
        let backing_off = "Back-off pulling image \"r.lan/a\": ErrImagePull: why";
        check(FailureReason::Other, true, ["ImagePullBackOff", "Failed", backing_off, told]);
        let unsigned = "image pull failed for r.lan/a because the signature validation failed: why";
        let told = "Failed to pull image \"r.lan/a\": SignatureValidationFailed: why";
        check(FailureReason::ImageSignature, false, ["SignatureValidationFailed", "Failed", unsigned, told]);
        let backing_off =
            format!("Back-off pulling image \"r.lan/a\": SignatureValidationFailed: {unsigned}");
        check(FailureReason::ImageSignature, true, ["ImagePullBackOff", "Failed", &backing_off, told]);
        let never = "Container image \"r.lan/a\" is not present with pull policy of Never";
        check(FailureReason::ImageNeverPull, true, ["ErrImageNeverPull", "ErrImageNeverPull", never, never]);
    }
}
