//! A pushed configuration on a real system: kept, or rolled back after crashes, kills and hangs.

use serde_json::Value;

use crate::error::HilError;
use crate::stage::{Counted, LOCAL, NODE, Stage, patience, payload};

/// A config that has survived its trial.
pub(super) fn good(stage: &mut Stage<'_>) -> Result<String, HilError> {
    let uid = stage.push("edge-good", &payload("2s", 2, "nodeStatusReportFrequency: 1m\n"))?;
    stage.runs(&uid)?;
    stage.promotes(&uid)?;
    stage.say("edge-good was pushed by kubectl, adopted, and is last-known-good after its trial");
    Ok(uid)
}

pub(super) fn lives(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = good(stage)?;
    // without a network the config can only come from the node's own disk
    stage.machine.plug(false)?;
    stage.reboot()?;
    stage.says_it_runs(&format!("using current (UID: {uid})"))?;
    stage.machine.plug(true)?;
    stage.renews()?;
    stage.runs(&uid)?;
    stage.say("rebooted without a network: edge-good is still active");
    taken_back(stage)
}

/// Unassigns the config.
pub(super) fn taken_back(stage: &mut Stage<'_>) -> Result<(), HilError> {
    stage.assign(&Value::Null)?;
    stage.config_ok("True", LOCAL, "current is set to the local default, and no init config was provided")?;
    stage.say("unassigned: the local configuration runs");
    Ok(())
}

/// Runs the agent with faults, from the second disk, until the next boot.
pub(super) fn take_faulty_agent(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let process = stage.running()?;
    stage.guest(
        "cat /dev/vdb >/run/faults-kedge && chmod 755 /run/faults-kedge && mount --bind /run/faults-kedge /usr/bin/kedge && \
         systemctl restart kedge",
    )?;
    stage.restarted(process)?;
    stage.renews()
}

/// Waits until the API shows that `bad` was rolled back to `good` after crashes.
pub(super) fn rolled_back(stage: &mut Stage<'_>, bad: &str, good: &str) -> Result<(), HilError> {
    stage.config_ok(
        "False",
        &format!("using last known good: (UID: {good})"),
        &format!("current failed trial period due to crash loop (UID: {bad})"),
    )
}

pub(super) fn crashes(stage: &mut Stage<'_>) -> Result<(), HilError> {
    take_faulty_agent(stage)?;
    let good = good(stage)?;
    let restarts = "systemctl show -P NRestarts kedge";
    let before: u32 = stage.guest(restarts)?.parse().unwrap_or_default();
    let bad =
        stage.push("edge-crash", &payload("1h", 2, "kedge:\n  faultInjection:\n    crashAfter: 1s\n"))?;
    rolled_back(stage, &bad, &good)?;
    let after: u32 = stage.guest(restarts)?.parse().unwrap_or_default();
    // three crashes, one more than the threshold; it was adopted in place
    stage.expect("restarts by systemd", after.saturating_sub(before), 3)?;
    stage.say("edge-crash: three crashes, threshold 2, rolled back to edge-good; systemd restarted the agent three times");
    stage.renews()
}

pub(super) fn killed(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let good = good(stage)?;
    let before = stage.running()?;
    let bad = stage.push("edge-next", &payload("1h", 2, ""))?;
    stage.runs(&bad)?;
    let mut process = stage.running()?;
    stage.expect("process after a push", process, before)?;
    for kill in 1..=3 {
        stage.guest(&format!("kill -KILL {process}"))?;
        process = stage.restarted(process)?;
        if kill < 3 {
            let counted = stage.counted()?;
            stage.expect("counted", counted, Counted { startups: kill, cuts: 0 })?;
        }
    }
    rolled_back(stage, &bad, &good)?;
    stage.say("edge-next: killed three times, threshold 2, rolled back to edge-good");
    stage.renews()
}

pub(super) fn stopped(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = stage.push("edge-next", &payload("1h", 5, ""))?;
    stage.runs(&uid)?;
    let process = stage.running()?;
    let stopped = stage.uptime()?;
    stage.guest(&format!("kill -STOP {process}"))?;
    stage.restarted(process)?;
    // the limit of 30 s starts at the last ping; a guest that gets little of the host's time acts later
    let ended = stage.logged_at("kedge", "Watchdog timeout (limit 30s)")?;
    stage.took("stopped until killed by systemd", ended.saturating_sub(stopped), 5..90)?;
    let counted = stage.counted()?;
    stage.expect("counted", counted, Counted { startups: 1, cuts: 0 })?;
    stage.renews()?;
    stage.runs(&uid)
}

pub(super) fn stalled(stage: &mut Stage<'_>) -> Result<(), HilError> {
    take_faulty_agent(stage)?;
    let good = good(stage)?;
    let bad = stage.push(
        "edge-hang",
        &payload("1h", 0, "kedge:\n  faultInjection:\n    hangLoop: main\n    hangAfter: 1s\n"),
    )?;
    rolled_back(stage, &bad, &good)?;
    let named = stage.wait("the stalled loop's name in describe node", patience(), |stage| {
        let text = stage.hub.kubectl().run(&["describe", "node", NODE])?;
        Ok(match text.lines().find(|line| line.contains("stalled: main")) {
            Some(line) => Ok(line.trim().to_owned()),
            None => Err(text),
        })
    })?;
    stage.say(&format!("edge-hang: killed, rolled back; describe node says: {named}"));
    Ok(())
}
