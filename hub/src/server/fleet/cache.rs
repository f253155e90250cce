//! Pages that were just made.
//!
//! Always holds: a page is handed out for 2 s, and to callers with the same rights alone. At most four pages
//! are made at a time; other requests wait, and those for the same page share it. The cache is bounded. So a
//! hundred windows that refresh cost one page every 2 s. Left to others: making a page.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::page::Sees;
use tokio::sync::Semaphore;

/// How long a page is handed out.
const FRESH: Duration = Duration::from_secs(2);
/// Pages that are made at a time.
const RENDERS: usize = 4;
/// Pages that are kept.
const KEPT: usize = 32;

/// The rights of a reader, and the path with its query.
pub(super) type Key = (Sees, String);

#[derive(Debug)]
pub(crate) struct Pages {
    kept: Mutex<BTreeMap<Key, (Instant, Bytes)>>,
    renders: Semaphore,
}

impl Default for Pages {
    fn default() -> Pages {
        Pages { kept: Mutex::default(), renders: Semaphore::new(RENDERS) }
    }
}

impl Pages {
    /// The page that was just made for this key, or what `make` makes.
    pub(super) async fn get_or_make(
        &self,
        key: Key,
        make: impl FnOnce() -> Result<Bytes, ApiError>,
    ) -> Result<Bytes, ApiError> {
        if let Some(page) = self.get(&key, Instant::now()) {
            return Ok(page);
        }
        let closed = |_| ApiError::internal("the pages are closed");
        let _permit = self.renders.acquire().await.map_err(closed)?;
        // another caller may have made it meanwhile
        if let Some(page) = self.get(&key, Instant::now()) {
            return Ok(page);
        }
        let page = make()?;
        self.keep(key, page.clone(), Instant::now());
        Ok(page)
    }

    fn get(&self, key: &Key, now: Instant) -> Option<Bytes> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, page) = kept.get(key)?;
        (now.duration_since(*made) < FRESH).then(|| page.clone())
    }

    fn keep(&self, key: Key, page: Bytes, now: Instant) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (made, _)| now.duration_since(*made) < FRESH);
        if kept.len() >= KEPT {
            let oldest = kept.iter().min_by_key(|(_, (made, _))| *made).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| kept.remove(&oldest));
        }
        kept.insert(key, (now, page));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pods: bool, path: &str) -> Key {
        (Sees { pods, ..Sees::default() }, path.to_owned())
    }

    #[test]
    fn page_is_for_the_same_rights_and_two_seconds() {
        let (pages, start) = (Pages::default(), Instant::now());
        pages.keep(key(true, "/fleet"), Bytes::from_static(b"a"), start);
        let get = |key: &Key, millis| pages.get(key, start + Duration::from_millis(millis));
        assert_eq!(get(&key(true, "/fleet"), 1999).as_deref(), Some(&b"a"[..]));
        assert_eq!(get(&key(true, "/fleet"), 2000), None);
        assert_eq!(get(&key(false, "/fleet"), 0), None);
        assert_eq!(get(&key(true, "/fleet?still"), 0), None);
    }

    #[test]
    fn number_of_kept_pages_is_bounded() {
        let (pages, start) = (Pages::default(), Instant::now());
        for number in 0..100_u64 {
            let now = start + Duration::from_millis(number);
            pages.keep(key(true, &format!("/{number}")), Bytes::new(), now);
        }
        assert_eq!(pages.kept.lock().unwrap().len(), KEPT);
        assert!(pages.get(&key(true, "/99"), start).is_some());
        assert!(pages.get(&key(true, "/0"), start).is_none());
    }

    /// A storm of refreshes: one of them makes the page.
    #[tokio::test(flavor = "multi_thread")]
    async fn callers_at_the_same_time_share_a_page() {
        let (pages, made) = (std::sync::Arc::new(Pages::default()), std::sync::Arc::new(Mutex::new(0)));
        // no task makes a page before all tasks wait
        let held = pages.renders.acquire_many(4).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let (pages, made) = (pages.clone(), made.clone());
            tasks.spawn(async move {
                let make = || {
                    *made.lock().unwrap() += 1;
                    Ok(Bytes::from_static(b"a"))
                };
                pages.get_or_make(key(true, "/fleet"), make).await.unwrap()
            });
        }
        drop(held);
        let start = Instant::now();
        while let Some(page) = tasks.join_next().await {
            assert_eq!(page.unwrap(), b"a"[..]);
        }
        let made = *made.lock().unwrap();
        // on a machine that stands still a page may grow old meanwhile
        assert!(made >= 1 && (made <= RENDERS || start.elapsed() >= FRESH), "{made} pages were made");
    }
}
