//! How the previous run ended, row by row of the design's table, through real systemd and real resets.

use std::time::Duration;

use crate::error::HilError;
use crate::stage::{Counted, Stage, payload};

/// Longest wait for the hardware watchdog: 30 s of the guest's time, which is slower than ours on a busy machine.
const RESET: Duration = Duration::from_secs(300);

fn counts(stage: &mut Stage<'_>, row: &str, startups: usize, cuts: u64) -> Result<(), HilError> {
    let counted = stage.counted()?;
    stage.expect(row, counted, Counted { startups, cuts })?;
    stage.say(&format!("{row}: {startups} startups counted, {cuts} cuts"));
    Ok(())
}

/// Something done to the agent's process, after which systemd starts another.
fn to_the_process(stage: &mut Stage<'_>, command: &str) -> Result<(), HilError> {
    let process = stage.running()?;
    stage.guest(&command.replace("PID", &process.to_string()))?;
    stage.restarted(process).map(|_| ())
}

/// A kernel that dies by itself; what it does then, the guest has been told.
fn kernel_dies(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let boot = stage.boot_id()?;
    stage.machine.run_last("echo c >/proc/sysrq-trigger")?;
    stage.machine.wait_event("RESET", RESET)?;
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
    // not SIGSEGV: Rust's handler for stack overflows lets one that was sent by somebody pass
    to_the_process(stage, "kill -ABRT PID")?;
    counts(stage, "SIGABRT", 2, 0)?;
    // the cgroup's own limit, put below what the process needs, and taken back when it is gone
    to_the_process(
        stage,
        "cd /sys/fs/cgroup/system.slice/kedge.service && echo 0 >memory.swap.max 2>/dev/null; echo 100000 >memory.max; \
         systemctl show -P Result kedge; sleep 1; echo max >memory.max 2>/dev/null; true",
    )?;
    counts(stage, "out of memory", 3, 0)?;
    stage.reboot()?;
    counts(stage, "reboot", 3, 0)?;
    stage.power_cut()?;
    counts(stage, "power cut", 3, 1)?;
    stage.renews()?;
    stage.runs(&uid)
}

pub(super) fn dead_kernel(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let uid = stage.push("edge-next", &payload("10h", 10, ""))?;
    stage.runs(&uid)?;
    stage.guest("echo 0 >/proc/sys/kernel/panic")?;
    kernel_dies(stage)?;
    counts(stage, "dead kernel, reset by the watchdog", 1, 0)?;
    stage.renews()?;
    stage.runs(&uid)?;
    stage.say("and the node is back with its config");
    kernel_dies(stage)?;
    let counted = stage.counted()?;
    // without a store for the panic's record (pstore) nothing tells it from a power cut
    let has_record = stage
        .ask("ls /sys/fs/pstore/dmesg-* /var/lib/systemd/pstore/*/dmesg-* /var/lib/systemd/pstore/dmesg-*")?
        .1;
    let expected = match has_record.contains("dmesg-efi") && !has_record.is_empty() {
        true => Counted { startups: 2, cuts: 0 },
        false => Counted { startups: 1, cuts: 1 },
    };
    stage.expect("panic, rebooted by the kernel itself", counted, expected)?;
    stage.say(&format!("panic, rebooted by the kernel itself: {counted:?}"));
    Ok(())
}
