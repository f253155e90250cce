//! RULES.md, "How the previous run ended", row by row, through real systemd and real resets.

use std::time::Instant;

use super::config::{good, rolled_back, take_faulty_agent};
use crate::error::HilError;
use crate::stage::{Counted, Stage, condition, patience, payload};

pub(super) fn counts(stage: &mut Stage<'_>, row: &str, startups: usize, cuts: u64) -> Result<(), HilError> {
    let counted = stage.counted()?;
    stage.expect(row, counted, Counted { startups, cuts })?;
    stage.say(&format!("{row}: {startups} startups counted, {cuts} cuts"));
    Ok(())
}

/// Runs a command that ends the agent's process, and waits for systemd to start another.
fn to_the_process(stage: &mut Stage<'_>, command: &str) -> Result<(), HilError> {
    let process = stage.running()?;
    stage.guest(&command.replace("PID", &process.to_string()))?;
    stage.restarted(process).map(|_| ())
}

/// Crashes the guest's kernel; the guest's own settings decide what it does then.
fn kernel_dies(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let boot = stage.boot_id()?;
    stage.machine.run_last("echo c >/proc/sysrq-trigger")?;
    let begin = Instant::now();
    stage.machine.wait_reset(patience())?;
    // this machine's clock, which the emulated watchdog also uses; recording a panic takes some of the time
    stage.took("from the kernel's end to the reset", begin.elapsed(), 0..90)?;
    stage.comes_back(&boot)
}

pub(super) fn rows(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = stage.push("edge-next", &payload("10h", 10, ""))?;
    stage.runs(&uid)?;
    counts(stage, "adopted", 0, 0)?;
    to_the_process(stage, "systemctl restart kedge")?;
    counts(stage, "systemctl restart", 0, 0)?;
    to_the_process(stage, "kill -TERM PID")?;
    counts(stage, "SIGTERM", 0, 0)?;
    to_the_process(stage, "kill -KILL PID")?;
    counts(stage, "SIGKILL", 1, 0)?;
    // not SIGSEGV: Rust's handler for stack overflows ignores one sent by kill
    to_the_process(stage, "kill -ABRT PID")?;
    counts(stage, "SIGABRT", 2, 0)?;
    // the cgroup's own limit, set below the process's need, and reset when the process is gone
    to_the_process(
        stage,
        "cd /sys/fs/cgroup/system.slice/kedge.service && echo 0 >memory.swap.max 2>/dev/null; echo 100000 >memory.max; \
         systemctl show -P Result kedge; sleep 1; echo max >memory.max 2>/dev/null; true",
    )?;
    counts(stage, "out of memory", 3, 0)?;
    stage.power_cut()?;
    counts(stage, "power cut", 3, 1)?;
    stage.renews()?;
    stage.runs(&uid)
}

/// Waits until the unit's journal has this, from the agent or from systemd.
fn journal_has(stage: &mut Stage<'_>, text: &str) -> Result<(), HilError> {
    stage.wait(&format!("{text:?} in the journal"), patience(), |stage| {
        let log = stage.guest("journalctl -b -u kedge -o cat --no-pager")?;
        Ok(if log.contains(text) { Ok(()) } else { Err(log.lines().last().unwrap_or_default().to_owned()) })
    })
}

/// Adds settings to the unit until the next boot.
pub(super) fn unit_says(stage: &mut Stage<'_>, lines: &str) -> Result<(), HilError> {
    let dir = "/run/systemd/system/kedge.service.d";
    stage.guest(&format!(
        "mkdir -p {dir} && printf '[Service]\\n{lines}' >{dir}/story.conf && systemctl daemon-reload"
    ))?;
    Ok(())
}

pub(super) fn rare_rows(stage: &mut Stage<'_>) -> Result<(), HilError> {
    take_faulty_agent(stage)?;
    let good = good(stage)?;
    let next = stage.push("edge-next", &payload("10h", 10, ""))?;
    stage.runs(&next)?;

    // Once its start is recorded the agent only exits with 0, so a shell around it exits with another code.
    unit_says(
        stage,
        "NotifyAccess=all\\nWatchdogSec=0\\nExecStart=\\nExecStart=/bin/sh -c \"/usr/bin/kedge agent --kubeconfig /etc/kedge/kubeconfig; exit 7\"\\n",
    )?;
    to_the_process(stage, "systemctl restart kedge")?;
    counts(stage, "restarted with a shell around it", 0, 0)?;
    unit_says(stage, "")?;
    to_the_process(
        stage,
        "for p in $(cat /sys/fs/cgroup/system.slice/kedge.service/cgroup.procs); do \
         [ $(cat /proc/$p/comm) != kedge ] || kill -KILL $p; done",
    )?;
    journal_has(stage, "did not end cleanly: exit code 7")?;
    counts(stage, "exit code 7", 1, 0)?;

    let before: u32 = stage.guest("systemctl show -P NRestarts kedge")?.parse().unwrap_or_default();
    stage.guest("echo 'nodeStatusUpdateFrequency: [' >/etc/kedge/config.d/90-broken.conf")?;
    stage.guest("systemctl kill --signal=TERM kedge")?;
    journal_has(stage, "refusing to start")?;
    stage.wait("further starts", patience(), |stage| {
        let restarts = stage.guest("systemctl show -P NRestarts kedge")?;
        Ok(if restarts.parse::<u32>().unwrap_or_default() >= before + 3 { Ok(()) } else { Err(restarts) })
    })?;
    stage.guest("rm /etc/kedge/config.d/90-broken.conf")?;
    stage.running()?;
    counts(stage, "starts refused for an invalid local config", 1, 0)?;

    // disabled, because systemd's watchdog would also end a hanging start, and earlier
    unit_says(stage, "TimeoutStartSec=20\\nWatchdogSec=0\\n")?;
    let hangs = "kedge:\n  faultInjection:\n    hangLoop: start\n    hangAfter: 0s\n";
    let bad = stage.push("edge-start", &payload("1h", 1, hangs))?;
    // the adoption happens within the process, where only a watchdog sets a limit: after the kill systemd
    // starts it again
    journal_has(stage, "loop start stops here")?;
    stage.guest("systemctl kill --signal=KILL kedge")?;
    rolled_back(stage, &bad, &good)?;
    journal_has(stage, "start operation timed out. Terminating")?;
    stage.say("not ready in time: counted, and after a kill with a threshold of 1 rolled back");

    unit_says(stage, "WatchdogSec=0\\n")?;
    let hangs = "kedge:\n  faultInjection:\n    hangLoop: main\n    hangAfter: 15s\n";
    let hung = stage.push("edge-hang", &payload("1h", 10, hangs))?;
    stage.runs(&hung)?;
    journal_has(stage, "loop main stops here")?;
    to_the_process(stage, "systemctl restart kedge")?;
    journal_has(stage, "State 'stop-sigterm' timed out. Killing")?;
    counts(stage, "asked to stop and killed at its time limit", 0, 0)
}

pub(super) fn dead_kernel(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = stage.push("edge-next", &payload("10h", 10, ""))?;
    stage.runs(&uid)?;
    let shown =
        stage.node()?["metadata"]["labels"]["kedge.dev/watchdog"].as_str().unwrap_or_default().to_owned();
    let is_shown = !shown.is_empty() && shown != "none";
    stage.expect(&format!("a hardware watchdog in the Node's label: {shown:?}"), is_shown, true)?;
    stage.guest("echo 0 >/proc/sys/kernel/panic")?;
    kernel_dies(stage)?;
    counts(stage, "dead kernel, reset by the watchdog", 1, 0)?;
    stage.renews()?;
    stage.runs(&uid)?;
    stage.say("and the node is back with its config");
    kernel_dies(stage)?;
    let records = stage.guest("ls -R /sys/fs/pstore /var/lib/systemd/pstore 2>/dev/null || true")?;
    let has_record = records.contains("dmesg-efi");
    stage.expect(&format!("a record of the panic: {records}"), has_record, stage.machine.keeps_panics())?;
    // without a record a panic looks like a power cut
    let (startups, cuts) = if has_record { (2, 0) } else { (1, 1) };
    counts(stage, "panic, rebooted by the kernel itself", startups, cuts)
}

/// Simulates a hung systemd: it is stopped, and everything else runs.
pub(super) fn dead_systemd(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = stage.push("edge-next", &payload("10h", 10, ""))?;
    stage.runs(&uid)?;
    shows_no_watchdog(stage)?;
    let boot = stage.boot_id()?;
    stage.machine.run_last("echo 1 >/sys/fs/cgroup/init.scope/cgroup.freeze")?;
    stage.machine.wait_reset(patience())?;
    stage.comes_back(&boot)?;
    // the timer leaves no record, so this reset looks like a power cut
    counts(stage, "hung systemd, reset by the kernel's timer", 0, 1)?;
    stage.renews()?;
    stage.runs(&uid)?;
    shows_no_watchdog(stage)
}

/// Waits until the Node shows that no hardware watchdog is active, although the kernel's own timer is.
fn shows_no_watchdog(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let expected = ("none".to_owned(), "True".to_owned(), "NoHardwareWatchdog".to_owned());
    stage.wait(&format!("watchdog label and WatchdogMissing {expected:?}"), patience(), |stage| {
        let node = stage.node()?;
        let label = node["metadata"]["labels"]["kedge.dev/watchdog"].as_str().unwrap_or_default();
        let (status, _, reason) = condition(&node, "WatchdogMissing");
        let found = (label.to_owned(), status, reason);
        Ok(if found == expected { Ok(()) } else { Err(format!("{found:?}")) })
    })?;
    stage.say("the Node's label kedge.dev/watchdog is none, its condition WatchdogMissing True");
    Ok(())
}
