//! The tokens of service accounts in a pod's volumes: requesting, renewing and keeping them.
//!
//! Always holds: a token is bound to its pod, kept in memory only, and renewed after four fifths of its life
//! or a day; some are renewed earlier, so that a fleet does not send its requests at the same time; a token
//! that cannot be renewed stays. A token's life is counted from the answer, without the wall clock. A pod
//! that boots without its API server waits [`PATIENCE`] for the token of the volume that a server adds to
//! every pod, and then starts without it: most pods never use this server. Leaves to others: files
//! (`volumes`), requests (`actor`).

use crate::answer::Now;
use crate::config::digest::Digest;
use crate::pods::backoff::Retry;
use crate::pods::event::{PodAction, TokenName, TokenRead};
use crate::pods::keys::{PodRef, PodUid};
use crate::pods::spec::{FileSource, Pod, TokenSource};
use crate::sorted::SortedMap;
use std::time::Duration;

/// `expirationSeconds` of a source without it: upstream's.
const DEFAULT_SECS: u64 = 3600;
/// The longest life that is requested: upstream's limit, with which no time computation overflows.
const LONGEST_SECS: u64 = 1 << 32;
/// A token is renewed at this age at the latest, as upstream.
const LONGEST_USE: Duration = Duration::from_secs(24 * 60 * 60);
/// An answer with a shorter life is not believed: the token would be requested over and over.
const SHORTEST_LIFE: Duration = Duration::from_secs(60);

/// How long a starting pod waits for contact with its API server: longer than a board's network takes to come
/// up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tokens of one pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    /// By audience and requested life.
    known: SortedMap<(String, u64), Token>,
    /// Since when the pod has been waiting to start without contact.
    without_contact: Option<Duration>,
    /// The pod starts without the tokens that its own spec did not request.
    is_patience_over: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Token {
    content: Option<String>,
    /// When it is requested again.
    due: Duration,
    is_asked_for: bool,
    retry: Retry,
    /// Why the token is missing.
    missing: Option<String>,
}

/// A pod's need of a token.
pub(crate) enum FoundToken<'a> {
    Is(&'a str),
    Missing(&'a str),
    Awaited,
}

fn key_of(source: &TokenSource) -> (String, u64) {
    (source.audience.clone(), source.expiration_seconds.unwrap_or(DEFAULT_SECS).min(LONGEST_SECS))
}

fn sources(pod: &Pod) -> impl Iterator<Item = &TokenSource> {
    let sources = pod.spec.volumes.iter().flat_map(|volume| volume.file_sources().into_iter().flatten());
    sources.filter_map(|source| match source {
        FileSource::Token(token) => Some(token),
        _ => None,
    })
}

impl Tokens {
    /// Requests the tokens of this pod that are missing or due. Returns when the next one is due.
    pub(crate) fn step(
        &mut self,
        pod: &Pod,
        reference: &PodRef,
        now: Now,
        actions: &mut Vec<PodAction>,
    ) -> Option<Duration> {
        let mut wake = None;
        for source in sources(pod) {
            let (audience, expiration_secs) = key_of(source);
            let token = self.known.entry((audience.clone(), expiration_secs)).or_default();
            if token.is_asked_for {
                continue;
            }
            let due = token.due.max(token.retry.due());
            if now.mono < due {
                wake = wake.into_iter().chain([due]).min();
                continue;
            }
            token.is_asked_for = true;
            let (pod, account) = (reference.clone(), pod.spec.service_account_name.clone());
            actions.push(PodAction::RequestToken(TokenName { pod, account, audience, expiration_secs }));
        }
        wake
    }

    /// How long a pod that is about to start still waits for contact; `None` if it does not wait.
    pub(crate) fn wait(&mut self, now: Now, has_contact: bool) -> Option<Duration> {
        if has_contact {
            (self.without_contact, self.is_patience_over) = (None, false);
            return None;
        }
        let until = (*self.without_contact.get_or_insert(now.mono)).saturating_add(PATIENCE);
        self.is_patience_over = until <= now.mono;
        (!self.is_patience_over).then_some(until)
    }

    /// Whether a volume may be made without its token.
    pub(crate) fn may_lack_in(&self, volume: &str) -> bool {
        self.is_patience_over && volume.starts_with(kedge_api::AUTOMOUNTED_VOLUME_PREFIX)
    }

    pub(crate) fn find(&self, source: &TokenSource) -> FoundToken<'_> {
        match self.known.get(&key_of(source)) {
            Some(Token { content: Some(content), .. }) => FoundToken::Is(content),
            Some(Token { missing: Some(why), .. }) => FoundToken::Missing(why),
            _ => FoundToken::Awaited,
        }
    }

    /// Takes an answer; returns whether the known state changed.
    pub(crate) fn answered(&mut self, now: Now, name: &TokenName, read: TokenRead) -> bool {
        let key = (name.audience.clone(), name.expiration_secs);
        let Some(token) = self.known.get_mut(&key) else { return false };
        token.is_asked_for = false;
        let why = match read {
            TokenRead::Issued { token: content, life } => {
                token.retry.succeeded();
                token.missing = None;
                let asked = Duration::from_secs(name.expiration_secs);
                token.due = now.mono.saturating_add(use_of(life.min(asked), &name.pod.uid));
                token.content = Some(content);
                return true;
            }
            TokenRead::Failed(why) => format!("failed to fetch token: {why}"),
        };
        token.retry.failed(now.mono);
        let is_news = token.content.is_none() && token.missing.as_ref() != Some(&why);
        token.missing = Some(why);
        is_news
    }
}

/// How long a token is used: up to a tenth shorter, depending on the pod's UID.
fn use_of(life: Duration, uid: &str) -> Duration {
    let longest =
        life.max(SHORTEST_LIFE).saturating_mul(4).checked_div(5).unwrap_or_default().min(LONGEST_USE);
    let share = Digest::of(uid.as_bytes()).to_string();
    let share = u32::from_str_radix(share.get(..2).unwrap_or_default(), 16).unwrap_or(0);
    longest.saturating_sub(longest.saturating_mul(share).checked_div(2560).unwrap_or_default())
}

/// The pod of a token.
pub(crate) fn uid_of(name: &TokenName) -> Option<PodUid> {
    PodUid::new(&name.pod.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_renewed_after_four_fifths_or_a_day() {
        for (secs, from, to) in
            [(600, 432, 480), (3600, 2592, 2880), (365 * 86_400, 77_760, 86_400), (0, 43, 48)]
        {
            for uid in ["a", "b", "c", "d"] {
                let used = use_of(Duration::from_secs(secs), uid).as_secs();
                assert!((from..=to).contains(&used), "{secs}: {used}");
            }
        }
        let hour = Duration::from_secs(3600);
        assert_ne!(use_of(hour, "a"), use_of(hour, "b"), "not all pods at once");
    }
}
