//! Keeps the newest time that the hub trusted over restarts, and logs when the clock becomes wrong or right.
//!
//! Always holds: only a time that was not wrong is noted, so a hub that starts twice with a wrong clock does
//! not trust it the second time. Left to others: the judgement (`kedge_hub_core::controllers::Clock`), and
//! its consequences.

use std::sync::Arc;
use std::time::Duration;

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::kinds::{HUB_STATE, schema};
use kedge_hub_core::value::{rfc3339, text};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::Hub;
use crate::memory::Memory;

/// The record's name.
const NAME: &str = "clock";
/// How often the clock is judged.
const PERIOD: Duration = Duration::from_secs(60);
/// How far the noted time may lag: a write costs the disk a few pages.
const LAG: time::Duration = time::Duration::hours(6);

/// The newest time that the hub noted.
pub(crate) fn noted(memory: &Memory) -> Option<OffsetDateTime> {
    let record = memory.get(&HUB_STATE, "", NAME)?.value();
    schema::parse_time(text(&record, &["data", "newest"]))
}

/// Judges the clock and notes the newest time, for as long as the hub runs.
pub async fn follow(hub: Arc<Hub>) {
    let mut known = None;
    loop {
        let fault = hub.clock_fault();
        if known != Some(fault.is_some()) {
            match &fault {
                Some(fault) => log::warn!("the clock of this machine is wrong: {fault}"),
                None if known == Some(true) => log::info!("the clock of this machine is right again"),
                None => {}
            }
            known = Some(fault.is_some());
        }
        if fault.is_none()
            && let Err(error) = note(&hub).await
        {
            log::debug!("cannot note the time: {error}");
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Notes the newest trusted time if the noted one is far from it.
async fn note(hub: &Hub) -> Result<(), ApiError> {
    let Some(newest) = hub.newest_time() else { return Ok(()) };
    if noted(hub.memory()).is_some_and(|noted| (newest - noted).abs() < LAG) {
        return Ok(());
    }
    let data = json!({"newest": rfc3339(newest)});
    if hub.get(&HUB_STATE, "", NAME).is_none() {
        let record = json!({"metadata": {"name": NAME}, "data": data});
        return hub.create(&HUB_STATE, record).await.map(drop);
    }
    hub.update(&HUB_STATE, "", NAME, |record: &mut Value| record["data"] = data.clone()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn newest_time_outlasts_the_hub() {
        let data = kedge_rig::Scratch::new("hub-newest-time").unwrap();
        for round in 0..2 {
            let hub = Hub::open(&data).unwrap();
            assert_eq!((hub.clock_fault(), noted(hub.memory()).is_some()), (None, round > 0));
            note(&hub).await.unwrap();
            let now = OffsetDateTime::now_utc();
            assert!((now - noted(hub.memory()).unwrap()).abs() < time::Duration::MINUTE);
            let before = hub.revision(&HUB_STATE);
            note(&hub).await.unwrap();
            assert_eq!(hub.revision(&HUB_STATE), before, "a time that hardly differs is not written again");
            hub.close();
        }
    }

    /// The store was last used on another day than the clock shows.
    #[tokio::test(flavor = "multi_thread")]
    async fn wrong_clock_is_noticed_and_not_noted() {
        for days in [31, 730, -2] {
            let data = kedge_rig::Scratch::new("hub-wrong-clock").unwrap();
            let hub = Hub::open(&data).unwrap();
            let then = rfc3339(OffsetDateTime::now_utc() - time::Duration::days(days));
            let record = json!({"metadata": {"name": NAME}, "data": {"newest": then}});
            hub.create(&HUB_STATE, record).await.unwrap();
            hub.close();
            let hub = Hub::open(&data).unwrap();
            let fault = hub.clock_fault().map(|fault| fault.to_string()).unwrap_or_default();
            assert!(fault.contains(if days > 0 { "ahead of" } else { "behind" }), "{days}: {fault}");
            assert!(!hub.believes_clock(OffsetDateTime::now_utc()), "{days}");
            note(&hub).await.unwrap();
            assert_eq!(noted(hub.memory()).map(rfc3339), Some(then), "{days}");
            hub.close();
        }
    }
}
