//! The doctor's checks of the node itself: flags and local configuration, the running agent and its lock,
//! unit, watchdog, disk.

use super::flush;
use crate::doctor::finding::{Finding, HANGS};
use crate::local::client::{self, AskError};
use crate::local_config;
use crate::options::AgentOptions;
use crate::service;
use crate::status::{duration, size};
use kedge_core::kubelet;
use kedge_platform::linux::{self, Holder, LinuxHost, Roots};
use kedge_platform::{HostFacts as _, WatchdogDevice};
use serde_json::Value;
use std::fs;
use std::io;
use std::process::Command;
use std::time::Duration;

type Check = fn(&AgentOptions) -> Vec<Finding>;

/// In the order in which an operator would look.
pub(super) const CHECKS: [(&str, Check); 6] = [
    ("config", config),
    ("agent", agent),
    ("lock", lock),
    ("unit", unit),
    ("watchdog", watchdog),
    ("disk", disk),
];

/// How long one may take: more than an agent takes for an answer.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// With less there is no room for a checkpoint of usual size and the agent's records.
const LEAST_FREE_BYTES: u64 = 4 * 1024 * 1024;

/// Logs soon use up fewer files than these.
const FEW_INODES: u64 = 1000;

/// An agent that started less than this ago may still be connecting.
const CONNECTING_SECS: u64 = 30;

fn config(options: &AgentOptions) -> Vec<Finding> {
    let of = match &options.service {
        Some(file) => format!("with the service's flags in {}", file.display()),
        None => "with the flags of this command line".to_owned(),
    };
    let advice = "correct it: the agent refuses to start until then; kedge config check shows all problems";
    let judged = local_config::read(&options.local)
        .map_err(|error| error.to_string())
        .and_then(|layers| kubelet::effective(&layers, None).map_err(|error| error.to_string()));
    vec![match judged {
        Ok(effective) if !effective.held.is_empty() => {
            let held: Vec<String> = effective.held.iter().map(ToString::to_string).collect();
            let advice = "correct it: the agent starts, but with the nearest allowed value";
            Finding::warn("config", format!("{}, {of}", held.join("; ")), advice)
        }
        Ok(_) => Finding::ok("config", format!("the local configuration is valid, {of}")),
        Err(why) => Finding::fail("config", format!("{why}, {of}"), advice),
    }]
}

fn agent(options: &AgentOptions) -> Vec<Finding> {
    let answer = match client::get(&options.places.socket(), "/status") {
        Ok(answer) if answer.status == 200 => answer,
        Ok(answer) => {
            let text = String::from_utf8_lossy(&answer.body).trim_end().to_owned();
            return vec![Finding::warn("agent", text, "it is starting: ask again")];
        }
        Err(error @ AskError::NotRunning { .. }) => {
            return vec![Finding::fail(
                "agent",
                error.to_string(),
                "systemctl start kedge; then journalctl -u kedge",
            )];
        }
        Err(error @ AskError::Denied { .. }) => {
            return vec![Finding::warn("agent", format!("not seen: {error}"), "ask as root")];
        }
        Err(error) => {
            let found = crate::errors::chain(&error);
            return vec![Finding::fail("agent", found, "journalctl -u kedge; systemctl restart kedge")];
        }
    };
    let status: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let mut findings = vec![contact(&status)];
    let condition = &status["config"]["condition"];
    if condition["status"] != "True" {
        let found = format!(
            "ConfigOK is {}: {}",
            condition["status"].as_str().unwrap_or("unknown"),
            condition["reason"].as_str().unwrap_or_default()
        );
        findings.push(Finding::warn("agent", found, "kedge config status; kedge config history"));
    }
    findings
}

fn contact(status: &Value) -> Finding {
    let contact = &status["contact"];
    let secs = contact["seconds"].as_u64().unwrap_or_default();
    let since = duration(secs);
    let why = contact["problem"].as_str().unwrap_or("no request failed yet");
    let advice = "the lines below look at the way to the API server step by step";
    match contact["state"].as_str() {
        Some("made") => {
            Finding::ok("agent", format!("runs, and has contact with its API server for {since}"))
        }
        Some("lost") => Finding::fail("agent", format!("runs, and lost contact {since} ago: {why}"), advice),
        _ if secs < CONNECTING_SECS && contact["problem"].is_null() => {
            Finding::warn("agent", format!("runs since {since}, and had no contact yet"), "ask again")
        }
        _ => {
            Finding::fail("agent", format!("runs, had no contact for {since} since its start: {why}"), advice)
        }
    }
}

/// The holder of the root directory, by the kernel's list: taking the lock to see would keep a starting agent
/// out.
fn lock(options: &AgentOptions) -> Vec<Finding> {
    let root = options.places.root_dir.display();
    let found = match linux::holders(&options.places.root_dir, &Roots::default()) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return vec![Finding::ok("lock", format!("{root} does not exist yet"))];
        }
        Err(error) => {
            return vec![Finding::warn("lock", format!("not seen: {root}: {error}"), "ask as root")];
        }
    };
    if found.is_empty() {
        return vec![Finding::ok("lock", format!("nobody holds {root}"))];
    }
    let is_certain = found.iter().any(|holder| holder.is_certain);
    let who: Vec<String> = found.iter().map(holder).collect();
    let perhaps = if is_certain { "" } else { "perhaps " };
    let who = format!("{perhaps}{} holds {root}", who.join(" or "));
    vec![match client::get(&options.places.socket(), "/healthz") {
        Ok(_) | Err(AskError::Denied { .. }) => Finding::ok("lock", who),
        Err(_) => {
            let found = format!("{who}, and does not answer on {}", options.places.socket().display());
            let advice =
                "state D or Z: its disk hangs, see dmesg; else end that process, or name its --run-dir";
            if is_certain {
                Finding::fail("lock", found, advice)
            } else {
                Finding::warn("lock", found, advice)
            }
        }
    }]
}

fn holder(holder: &Holder) -> String {
    let pid = holder.pid;
    if pid == 0 {
        return "a process of another PID namespace".into();
    }
    let state = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field =
        |name: &str| state.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_owned();
    format!("process {pid} ({}, state {})", field("Name:"), field("State:"))
}

fn unit(_: &AgentOptions) -> Vec<Finding> {
    let properties =
        "LoadState,ActiveState,SubState,UnitFileState,NRestarts,WatchdogUSec,ExecStart,EnvironmentFiles";
    let asked = Command::new("systemctl").args(["show", "kedge.service", "--property", properties]).output();
    // a warning only: containers and other init systems run agents, too
    let Ok(output) = asked else {
        let advice = "something else must start the agent again after every exit, and see crashes";
        return vec![Finding::warn("unit", "there is no systemctl here", advice)];
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || text.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return vec![Finding::warn(
            "unit",
            format!("not seen: systemctl: {why}"),
            "does systemd run this machine?",
        )];
    }
    let value = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
    };
    if value("LoadState") != "loaded" {
        let found = format!("kedge.service is {}", value("LoadState"));
        return vec![Finding::fail("unit", found, "install agent/systemd/kedge.service")];
    }
    let state = format!("{} ({}), {} restarts", value("ActiveState"), value("SubState"), value("NRestarts"));
    let mut findings = vec![match value("ActiveState") {
        "active" | "activating" | "reloading" => Finding::ok("unit", state),
        _ => Finding::fail("unit", state, "systemctl start kedge; then journalctl -u kedge"),
    }];
    if matches!(value("UnitFileState"), "disabled" | "masked") {
        let found = format!("kedge.service is {}", value("UnitFileState"));
        findings.push(Finding::warn(
            "unit",
            found,
            "systemctl enable kedge, or it does not start at the next boot",
        ));
    }
    if matches!(value("WatchdogUSec"), "0" | "infinity") {
        let advice = "set WatchdogSec=30: a loop that hangs is not noticed without";
        findings.push(Finding::warn("unit", "the unit has no watchdog", advice));
    }
    for edit in service::edits(&text) {
        let advice = "this command judges the shipped unit with /etc/default/kedge: repeat it with the unit's own flags";
        findings.push(Finding::warn("unit", format!("the unit was edited: {edit}"), advice));
    }
    findings
}

/// The machine's own watchdog: the unit's cannot end a kernel that hangs.
fn watchdog(_: &AgentOptions) -> Vec<Finding> {
    let devices = linux::watchdogs(&Roots::default());
    // the running one, if there is one
    let shown = devices.iter().find(|device| device.is_active()).or(devices.first());
    let advice = "RuntimeWatchdogSec=30 in /etc/systemd/system.conf makes systemd feed it";
    vec![match shown {
        None => Finding::warn(
            "watchdog",
            "the machine has no hardware watchdog",
            "a kernel that hangs stays hung",
        ),
        Some(device) if device.is_active() => {
            let WatchdogDevice { name, identity, timeout, .. } = device;
            Finding::ok("watchdog", format!("{name} ({identity}) is active, {timeout} s"))
        }
        Some(device) => {
            let state = if device.state.is_empty() { "in an unknown state" } else { &device.state };
            Finding::warn("watchdog", format!("{} ({}) is {state}", device.name, device.identity), advice)
        }
    }]
}

fn disk(options: &AgentOptions) -> Vec<Finding> {
    if let Some(stalled) = stalled_seconds(options) {
        let found = format!("the running agent has waited for its disk for {}", duration(stalled));
        return vec![Finding::fail("disk", found, HANGS)];
    }
    let root = &options.places.root_dir;
    let host = LinuxHost::new(Roots::default(), root);
    let (capacity, usage) = (host.capacity(), host.usage());
    let (Some(bytes), Some(inodes)) = (usage.root_available_bytes, usage.root_available_inodes) else {
        let found = format!("the room on the file system of {} cannot be read", root.display());
        return vec![Finding::fail("disk", found, HANGS)];
    };
    let room = format!("{} of {} free, {inodes} inodes", size(bytes), size(capacity.root_bytes));
    let advice = "free space: pushes and verdicts cannot be recorded without";
    // file systems without a table of inodes report a capacity of 0
    let few = capacity.root_inodes > 0 && inodes < FEW_INODES;
    let mut findings = vec![match bytes {
        0..LEAST_FREE_BYTES => Finding::fail("disk", room, advice),
        _ if few => Finding::fail("disk", room, advice),
        _ => Finding::ok("disk", room),
    }];
    findings.push(flush::check(&options.places));
    findings
}

/// How long the running agent has waited for its disk, if it does.
fn stalled_seconds(options: &AgentOptions) -> Option<u64> {
    let answer = client::get(&options.places.socket(), "/status").ok()?;
    let status: Value = serde_json::from_slice(&answer.body).ok()?;
    status["disk"]["stalledSeconds"].as_u64()
}
