//! `kedge status` and `kedge config status` for people: the report of an agent as lines of text.
//!
//! Always holds: each line is one fact that an operator acts on; an unknown value is shown as unknown, never
//! as zero. Leaves to others: the report itself (`local::answers`), asking for it (`cli`).

use crate::node_name;
use serde_json::Value;
use std::fmt::Write as _;

/// An order to the disk that takes this long shows that the disk is faulty: the longest time seen on healthy
/// flash.
const SLOW_DISK_SECS: u64 = 10;

/// The whole report.
pub(crate) fn text(status: &Value) -> String {
    let mut out = String::new();
    line(&mut out, "node", &format!("{} (kedge {})", word(status, "/node"), word(status, "/version")));
    line(&mut out, "registered", if status["registered"] == true { "yes" } else { "no" });
    line(&mut out, "server", &server(status));
    line(&mut out, "contact", &contact(status));
    line(&mut out, "lease", &lease(status));
    list(status, "/server/watches").iter().for_each(|watch| line(&mut out, "watch", &watch_text(watch)));
    list(status, "/server/problems")
        .iter()
        .for_each(|problem| line(&mut out, "problem", &problem_text(problem)));
    if status["identity"].is_object() {
        line(&mut out, "identity", &identity(&status["identity"]));
    }
    let credential = status["server"]["credentialNode"].as_str();
    let conflict = node_name::conflict(word(status, "/node"), credential, word(status, "/server/kubeconfig"));
    if let Some(conflict) = conflict {
        line(&mut out, "name", &conflict);
    }
    if let Some(text) = status["decommission"].as_str() {
        line(&mut out, "decommission", &format!(" {text}"));
    }
    if let Some(text) = another_machine(&status["anotherMachine"]) {
        line(&mut out, "duplicate", &text);
    }
    line(&mut out, "disk", &disk(&status["disk"]));
    out.push_str(&config_text(&status["config"]));
    out
}

/// The configuration's part.
pub(crate) fn config_text(config: &Value) -> String {
    let mut out = String::new();
    line(&mut out, "config", &state(config));
    for (shown, name) in
        [("assigned", "assigned"), ("active", "active"), ("last known good", "lastKnownGood")]
    {
        let _ =
            writeln!(out, "  {shown:<16}{}", source(config.pointer(&format!("/status/{name}/configMap"))));
    }
    if let Some(crashes) = crashes(config) {
        let _ = writeln!(out, "  {:<16}{crashes}", "crashes");
    }
    if let Some(secs) = number(config, "/podsHeldSeconds") {
        line(&mut out, "pods", &held(secs));
    }
    let condition = &config["condition"];
    line(&mut out, "ConfigOK", word(condition, "/status"));
    let _ = writeln!(out, "  message       {}", word(condition, "/message"));
    let _ = writeln!(out, "  reason        {}", word(condition, "/reason"));
    let error = word(config, "/status/error");
    if !error.is_empty() && error != word(condition, "/reason") {
        let _ = writeln!(out, "  error         {error}");
    }
    out
}

fn line(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "{name:<14}{text}");
}

fn word<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> Option<u64> {
    value.pointer(pointer).and_then(Value::as_u64)
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// `5 s`, `3 min`, `2 h 5 min`, `4 d 2 h`.
pub(crate) fn duration(secs: u64) -> String {
    match secs {
        0..=119 => format!("{secs} s"),
        120..=7199 => format!("{} min", secs / 60),
        7200..=172_799 => format!("{} h {} min", secs / 3600, secs % 3600 / 60),
        _ => format!("{} d {} h", secs / 86_400, secs % 86_400 / 3600),
    }
}

fn server(status: &Value) -> String {
    let server = &status["server"];
    if let Some(problem) = server["problem"].as_str() {
        return problem.to_owned();
    }
    let Some(url) = server["url"].as_str() else {
        return "not known yet: the kubeconfig was not read".into();
    };
    let kind = match status["serverIsHub"].as_bool() {
        Some(true) => " (kedge-hub)",
        Some(false) => " (Kubernetes)",
        None => "",
    };
    match number(server, "/secondsSinceAnswer") {
        Some(secs) => format!("{url}{kind}, last answer {} ago", duration(secs)),
        None => format!("{url}{kind}, no answer yet"),
    }
}

/// The node's own credential.
pub(crate) fn identity(report: &Value) -> String {
    let mut parts = vec![word(report, "/state").to_owned()];
    if let Some(number) = number(report, "/number") {
        parts.push(format!("number {number}"));
    }
    for (name, field) in [("until", "/notAfter"), ("renewed after", "/renewsAfter")] {
        let time = word(report, field);
        if !time.is_empty() {
            parts.push(format!("{name} {time}"));
        }
    }
    let message = report["message"].as_str().map(|message| format!(": {message}"));
    format!("{}{}", parts.join(", "), message.unwrap_or_default())
}

fn contact(status: &Value) -> String {
    let contact = &status["contact"];
    let since = duration(number(contact, "/seconds").unwrap_or_default());
    let why = contact["problem"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    match word(contact, "/state") {
        "made" => format!("for {since}"),
        "lost" => format!("lost {since} ago{why}"),
        _ => format!("not yet, for {since}{why}"),
    }
}

/// A machine that has this node's name and credential.
fn another_machine(other: &Value) -> Option<String> {
    let secs = number(other, "/secondsSince")?;
    let which = other["machineID"].as_str().map(|id| format!(" (machine id {id})")).unwrap_or_default();
    let effect = if other["isRefused"] == true { ", the server takes its statuses and not ours" } else { "" };
    Some(format!(
        "another machine{which} reports as this node, last noticed {} ago{effect}: its disk was copied with this node's credential",
        duration(secs)
    ))
}

fn lease(status: &Value) -> String {
    let renewals = number(status, "/lease/renewals").unwrap_or_default();
    match number(status, "/lease/secondsSinceRenewal") {
        Some(secs) => format!("renewed {} ago, {renewals} renewals", duration(secs)),
        None => "not renewed yet".into(),
    }
}

fn watch_text(watch: &Value) -> String {
    let path = word(watch, "/path");
    match number(watch, "/openSeconds") {
        Some(secs) => format!("{path} open for {}", duration(secs)),
        None => format!("{path} not open"),
    }
}

fn problem_text(problem: &Value) -> String {
    let times = match number(problem, "/failures") {
        Some(times) if times > 1 => format!(", {times} times"),
        _ => String::new(),
    };
    let ago = duration(number(problem, "/secondsAgo").unwrap_or_default());
    format!("{} ({ago} ago{times})", word(problem, "/problem"))
}

fn disk(disk: &Value) -> String {
    let mut parts = Vec::new();
    if let Some(problem) = disk["problem"].as_str() {
        parts.push(problem.to_owned());
    }
    let busy = number(disk, "/busySeconds").filter(|secs| *secs >= SLOW_DISK_SECS);
    // an agent beside a process that the disk keeps from ending sends the disk no orders
    if let Some(secs) = busy.or(number(disk, "/stalledSeconds")) {
        parts.push(format!("does not answer since {}, nothing is recorded until it does", duration(secs)));
    }
    if let (Some(free), Some(all)) = (number(disk, "/availableBytes"), number(disk, "/bytes")) {
        parts.push(format!("{} of {} free", size(free), size(all)));
    }
    if number(disk, "/availableInodes") == Some(0) {
        parts.push("no inodes left".into());
    }
    if let Some(secs) = number(disk, "/secondsSinceWrite") {
        parts.push(format!("last write {} ago", duration(secs)));
    }
    if parts.is_empty() { "not looked at yet".into() } else { parts.join(", ") }
}

/// `1.5 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut shown = bytes as f64 / 1024.0;
    let mut unit = 0;
    while shown >= 1024.0 && unit + 1 < units.len() {
        shown /= 1024.0;
        unit += 1;
    }
    format!("{shown:.1} {}", units[unit])
}

fn state(config: &Value) -> String {
    match number(config, "/trialRemainingSeconds") {
        Some(secs) => format!("{}, {:02}:{:02} left", word(config, "/state"), secs / 60, secs % 60),
        None => word(config, "/state").to_owned(),
    }
}

/// Crashes and power cuts that count against the configuration in use; zero does not get a line.
pub(crate) fn crashes(config: &Value) -> Option<String> {
    let startups = number(config, "/startups").unwrap_or_default();
    let cuts = number(config, "/cuts").unwrap_or_default();
    if startups == 0 && cuts == 0 {
        return None;
    }
    let limit = number(config, "/crashLoopThreshold").map(|limit| format!(" of {limit}")).unwrap_or_default();
    let cuts = if cuts == 0 { String::new() } else { format!(", {cuts} power cuts") };
    Some(format!("{startups}{limit} tolerated{cuts}"))
}

/// How much longer pods are held.
pub(crate) fn held(secs: u64) -> String {
    let rest = duration(secs);
    format!("held for {rest} more: none is started or stopped, because the agent ended too often")
}

fn source(map: Option<&Value>) -> String {
    let Some(map) = map else { return "local".to_owned() };
    format!(
        "ConfigMap {}/{} (UID: {}, resourceVersion {})",
        word(map, "/namespace"),
        word(map, "/name"),
        word(map, "/uid"),
        word(map, "/resourceVersion")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_and_sizes_are_short() {
        for (secs, expect) in
            [(0, "0 s"), (119, "119 s"), (125, "2 min"), (7_500, "2 h 5 min"), (180_000, "2 d 2 h")]
        {
            assert_eq!(duration(secs), expect);
        }
        for (bytes, expect) in [(512, "0.5 KiB"), (1 << 20, "1.0 MiB"), (12_345_678_901, "11.5 GiB")] {
            assert_eq!(size(bytes), expect);
        }
    }

    #[test]
    fn credential_of_another_node_is_shown() {
        let server = json!({"url": "https://hub:6443", "credentialNode": "edge-21", "kubeconfig": "/k"});
        let shown = |node: &str| text(&json!({"node": node, "server": server}));
        assert!(
            shown("n2").contains(
                "name          the credential in /k is node edge-21's, this agent calls itself n2:"
            )
        );
        assert!(!shown("edge-21").contains("name  "));
    }

    #[test]
    fn identity_is_shown_with_what_it_waits_for() {
        let valid = json!({"state": "valid", "number": 7, "notAfter": "2027-11-30T00:00:00Z",
            "renewsAfter": "2027-09-01T00:00:00Z", "message": null});
        assert_eq!(
            identity(&valid),
            "valid, number 7, until 2027-11-30T00:00:00Z, renewed after 2027-09-01T00:00:00Z"
        );
        let expired = json!({"state": "expired", "message": "Expired: needs a new bootstrap token"});
        assert_eq!(identity(&expired), "expired: Expired: needs a new bootstrap token");
    }

    #[test]
    fn outage_is_shown_with_its_reason() {
        let status = json!({
            "node": "edge-1", "version": "0.1.0", "registered": false, "serverIsHub": null,
            "server": {
                "url": "https://hub:6443", "secondsSinceAnswer": null,
                "watches": [{"path": "/api/v1/nodes", "openSeconds": null}],
                "problems": [{"problem": "GET /x: refused (403): no", "failures": 7, "secondsAgo": 130}],
            },
            "contact": {"state": "not-yet", "seconds": 34, "problem": "watch-node: refused"},
            "lease": {"renewals": 0, "secondsSinceRenewal": null},
            "disk": {"problem": "write current: no space", "busySeconds": 3, "availableBytes": 0, "bytes": 1048576},
            "config": {
                "state": "trial", "trialRemainingSeconds": 552, "podsHeldSeconds": 7100, "startups": 3, "crashLoopThreshold": 10, "cuts": 1,
                "condition": {"status": "True", "reason": "all checks passed", "message": "using current (UID: u)"},
                "status": {"assigned": {"configMap": {
                    "namespace": "default", "name": "edge", "uid": "u", "resourceVersion": "7"}}},
            },
        });
        let expect = "\
node          edge-1 (kedge 0.1.0)
registered    no
server        https://hub:6443, no answer yet
contact       not yet, for 34 s: watch-node: refused
lease         not renewed yet
watch         /api/v1/nodes not open
problem       GET /x: refused (403): no (2 min ago, 7 times)
disk          write current: no space, 0.0 KiB of 1.0 MiB free
config        trial, 09:12 left
  assigned        ConfigMap default/edge (UID: u, resourceVersion 7)
  active          local
  last known good local
  crashes         3 of 10 tolerated, 1 power cuts
pods          held for 118 min more: none is started or stopped, because the agent ended too often
ConfigOK      True
  message       using current (UID: u)
  reason        all checks passed
";
        assert_eq!(text(&status), expect);
    }
}
