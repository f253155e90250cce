//! How the watch of one object is kept up: when it is listed, where a watch goes on, and how long to pause after a failure.
//!
//! Always holds: a list costs as much as all that happens in an hour, so a watch that broke off goes on where it was, unless
//! something may have been missed; with each failure in a row the pause and the time for a download double; an outage is
//! logged once. Leaves to others: the requests (`perform::watches`), and what an object means (`agent`).

use crate::pace::{Backoff, Jitter};
use crate::requests::LONGEST_WAIT;
use std::time::Duration;

/// How long a list may take at first, lookup and connection included.
const LIST_DEADLINE: Duration = Duration::from_secs(20);

/// How long reading a ConfigMap may take in the end: 1 MiB at 4 kB/s. Each failure doubles what the next try is given: a dead
/// link is found out soon, and a slow one gets its time.
const LONGEST_DOWNLOAD: Duration = Duration::from_secs(5 * 60);

/// UID and resourceVersion of an object: two that have both in common are one and the same.
pub type ObjectVersion = (String, String);

/// What a watch awaits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchState {
    /// The answer to a list: then `Open`, or `Waiting` if it fails.
    Listing,
    /// What happens after this version, until the watch ends; then `Waiting`.
    Open {
        /// resourceVersion of the list, or of the last event.
        version: String,
    },
    /// The end of a pause; then `Open` at `resume`, or `Listing`.
    Waiting {
        /// How long.
        pause: Duration,
        /// Where the last watch broke off, if it can go on there.
        resume: Option<String>,
    },
}

/// Why a list or a watch failed, by what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFailure {
    /// Nothing was learned about the object: the server is unreachable, not trusted, or does not accept our credentials.
    Unreachable,
    /// The server refused this request, or sent what cannot be read.
    Answered,
}

/// What a failure is reported as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailureReport {
    /// As [`crate::Event::ConfigMapUnreadable`].
    pub is_unreadable: bool,
    /// In the log.
    pub is_logged: bool,
}

/// The watch of one object.
#[derive(Debug)]
pub struct Watching {
    state: WatchState,
    /// The version that core has, or can read on its own disk.
    held: Option<ObjectVersion>,
    /// Whether the object is a ConfigMap: may be large, and its user wants to know why it cannot be read.
    is_config_map: bool,
    /// Which loading of the kubeconfig the last round was under.
    kubeconfig: u64,
    /// The last try failed.
    is_failing: bool,
    backoff: Backoff,
    jitter: Jitter,
}

impl Watching {
    /// A watch of the own Node: small, and always read whole.
    pub fn node(seed: u64) -> Self {
        Self {
            state: WatchState::Listing,
            held: None,
            is_config_map: false,
            kubeconfig: 0,
            is_failing: false,
            backoff: Backoff::default(),
            jitter: Jitter::new(seed),
        }
    }

    /// A watch of a ConfigMap of which this version is on disk.
    pub fn config_map(seed: u64, held: Option<ObjectVersion>) -> Self {
        Self { held, is_config_map: true, ..Self::node(seed) }
    }

    /// What is awaited now.
    pub fn state(&self) -> &WatchState {
        &self.state
    }

    /// The version that need not be read again.
    pub fn held(&self) -> Option<&ObjectVersion> {
        self.held.as_ref()
    }

    /// How long the list may take. Only a ConfigMap is large enough to need more than the least.
    pub fn list_deadline(&self) -> Duration {
        if !self.is_config_map {
            return LIST_DEADLINE;
        }
        (LIST_DEADLINE * (1 << self.backoff.failures().min(8))).min(LONGEST_DOWNLOAD)
    }

    /// Begins a round after the pause, under this loading of the kubeconfig.
    pub fn begin(&mut self, kubeconfig: u64) {
        let resume = match std::mem::replace(&mut self.state, WatchState::Listing) {
            WatchState::Waiting { resume, .. } => resume,
            WatchState::Listing | WatchState::Open { .. } => None,
        };
        // versions of one server mean nothing to another, and behind one URL there may be another now
        let is_same_server = std::mem::replace(&mut self.kubeconfig, kubeconfig) == kubeconfig;
        if let Some(version) = resume.filter(|_| is_same_server) {
            self.state = WatchState::Open { version };
        }
    }

    /// The list came: it is of `version`, and holds this version of the object.
    pub fn listed(&mut self, version: String, held: Option<ObjectVersion>) {
        self.succeeded();
        self.held = held;
        self.state = WatchState::Open { version };
    }

    /// The list failed.
    pub fn list_failed(&mut self, failure: WatchFailure) -> FailureReport {
        let was_failing = self.is_failing;
        self.pause(None);
        self.report(failure, was_failing)
    }

    /// The watch delivered another version of the object; None: it is gone.
    pub fn object_changed(&mut self, held: Option<ObjectVersion>) {
        self.held = held;
    }

    /// The watch ended; `was_opened`: after the server had begun to answer it.
    pub fn watch_ended(
        &mut self,
        was_opened: bool,
        resume: Option<String>,
        failure: Option<WatchFailure>,
    ) -> FailureReport {
        if was_opened {
            self.succeeded();
        }
        // A version that was refused may be refused for ever: a hub restored from a backup is behind it. And an object that was
        // reported as unreadable counts as readable only after a list.
        self.pause(resume.filter(|_| failure != Some(WatchFailure::Answered)));
        failure.map_or_else(FailureReport::default, |failure| self.report(failure, false))
    }

    fn succeeded(&mut self) {
        self.is_failing = false;
        self.backoff.succeeded();
    }

    fn pause(&mut self, resume: Option<String>) {
        let pause = self.backoff.failed(LONGEST_WAIT, &mut self.jitter);
        self.state = WatchState::Waiting { pause, resume };
    }

    /// One try that fails for lack of a network is not worth a condition; a download that goes on failing is.
    fn report(&mut self, failure: WatchFailure, is_list_again: bool) -> FailureReport {
        let is_unreadable = failure == WatchFailure::Answered || is_list_again;
        let is_logged = !std::mem::replace(&mut self.is_failing, true);
        FailureReport { is_unreadable: self.is_config_map && is_unreadable, is_logged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WatchFailure::{Answered, Unreachable};

    fn config_map() -> Watching {
        Watching::config_map(7, Some(("u".into(), "5".into())))
    }

    /// Opened by a list at version 9.
    fn open() -> Watching {
        let mut watching = config_map();
        watching.begin(1);
        watching.listed("9".into(), Some(("u".into(), "6".into())));
        watching
    }

    fn resume(watching: &Watching) -> Option<&str> {
        let WatchState::Waiting { resume, .. } = watching.state() else { panic!("{watching:?}") };
        resume.as_deref()
    }

    fn pause(watching: &Watching) -> Duration {
        let WatchState::Waiting { pause, .. } = watching.state() else { panic!("{watching:?}") };
        *pause
    }

    #[test]
    fn list_opens_watch_at_its_version() {
        let watching = open();
        assert_eq!(*watching.state(), WatchState::Open { version: "9".into() });
        assert_eq!(watching.held(), Some(&("u".into(), "6".into())));
    }

    #[test]
    fn broken_watch_resumes_where_it_was() {
        for failure in [None, Some(Unreachable)] {
            let mut watching = open();
            watching.watch_ended(true, Some("12".into()), failure);
            assert_eq!(resume(&watching), Some("12"), "{failure:?}");
            watching.begin(1);
            assert_eq!(*watching.state(), WatchState::Open { version: "12".into() });
        }
    }

    #[test]
    fn another_server_is_listed() {
        let mut watching = open();
        watching.watch_ended(true, Some("12".into()), None);
        watching.begin(2);
        assert_eq!(*watching.state(), WatchState::Listing);
    }

    #[test]
    fn refused_or_expired_watch_is_listed() {
        for (resume_at, failure) in [(Some("12".to_owned()), Some(Answered)), (None, None)] {
            let mut watching = open();
            watching.watch_ended(false, resume_at, failure);
            assert_eq!(resume(&watching), None, "{failure:?}");
            watching.begin(1);
            assert_eq!(*watching.state(), WatchState::Listing);
        }
    }

    #[test]
    fn pause_and_download_time_double_until_a_success() {
        let mut watching = config_map();
        let mut deadlines = Vec::new();
        for expect in [1, 2, 4, 8, 16, 30, 30] {
            watching.begin(1);
            deadlines.push(watching.list_deadline().as_secs());
            watching.list_failed(Unreachable);
            let expect = Duration::from_secs(expect);
            assert!(pause(&watching) >= expect && pause(&watching) <= expect.mul_f64(1.25), "{watching:?}");
        }
        assert_eq!(deadlines, [20, 40, 80, 160, 300, 300, 300]);
        watching.begin(1);
        watching.listed("9".into(), None);
        assert_eq!(watching.list_deadline(), LIST_DEADLINE);
        // a watch refused at once does not count as success, and is not repeated in a loop
        watching.watch_ended(false, None, Some(Answered));
        watching.begin(1);
        watching.list_failed(Unreachable);
        assert!(pause(&watching) >= Duration::from_secs(2));
        watching.begin(1);
        watching.listed("9".into(), None);
        watching.watch_ended(true, Some("9".into()), Some(Unreachable));
        assert!(pause(&watching) < Duration::from_secs(2));
    }

    #[test]
    fn node_is_always_listed_within_the_least_time() {
        let mut watching = Watching::node(7);
        for _ in 0..40 {
            watching.begin(1);
            watching.list_failed(Unreachable);
        }
        assert_eq!(watching.list_deadline(), LIST_DEADLINE);
    }

    #[test]
    fn outage_is_logged_once_and_reported_from_the_second_failure() {
        let mut watching = config_map();
        let first = watching.list_failed(Unreachable);
        assert_eq!(first, FailureReport { is_unreadable: false, is_logged: true });
        let second = watching.list_failed(Unreachable);
        assert_eq!(second, FailureReport { is_unreadable: true, is_logged: false });
        watching.listed("9".into(), None);
        let after_success = watching.list_failed(Unreachable);
        assert_eq!(after_success, FailureReport { is_unreadable: false, is_logged: true });
    }

    #[test]
    fn refusal_is_reported_at_once() {
        let report = FailureReport { is_unreadable: true, is_logged: true };
        assert_eq!(config_map().list_failed(Answered), report);
        assert_eq!(open().watch_ended(true, None, Some(Answered)), report);
        let of_node = FailureReport { is_unreadable: false, is_logged: true };
        assert_eq!(Watching::node(7).list_failed(Answered), of_node);
    }

    #[test]
    fn broken_watch_does_not_make_the_object_unreadable() {
        let mut watching = open();
        watching.watch_ended(true, None, Some(Unreachable));
        watching.begin(1);
        let again = watching.watch_ended(false, None, Some(Unreachable));
        assert_eq!(again, FailureReport::default());
        let mut watching = open();
        assert_eq!(watching.watch_ended(true, None, None), FailureReport::default());
    }

    #[test]
    fn version_held_follows_the_object() {
        let mut watching = open();
        watching.object_changed(Some(("u".into(), "7".into())));
        assert_eq!(watching.held(), Some(&("u".into(), "7".into())));
        watching.object_changed(None);
        watching.watch_ended(true, Some("12".into()), None);
        assert_eq!(watching.held(), None);
    }
}
