//! Health, version and metrics.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use http::Response;
use kedge_api::{HUB_VERSION_MARK, KUBERNETES_VERSION};
use serde_json::json;

use super::context::RequestContext;
use super::fleet::numbers;
use super::limits::Resource;
use super::respond::{self, Body};
use super::shared::Server;
use crate::VERSION;
use crate::store::health::STALL;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::kinds::{KINDS, LEASE, NODE};

/// `/version`.
pub(super) fn version() -> Response<Body> {
    let (major, minor) = KUBERNETES_VERSION;
    let version = json!({
        "major": major.to_string(),
        "minor": minor.to_string(),
        // of a second `+` clients would say that it is no version
        "gitVersion": format!("v{major}.{minor}.0{HUB_VERSION_MARK}-{}", VERSION.replace('+', "-")),
        "gitCommit": VERSION.split_once('+').map_or("", |(_, commit)| commit), "gitTreeState": "", "buildDate": "", "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    });
    respond::json(200, &version)
}

/// One line of a health answer: its name, and the reason if it fails.
pub(super) type Check = (&'static str, Option<String>);

/// The checks that a restart could mend: so `/livez` and `/healthz` do not depend on the disk.
fn living(server: &Server) -> Vec<Check> {
    let ended = (!server.hub.writer().is_alive()).then(|| "its thread has ended".to_owned());
    vec![("ping", None), ("store", ended)]
}

/// The checks that every request can be served. The reasons contain no paths, because anybody may read them.
pub(super) fn serving(server: &Server) -> Vec<Check> {
    let health = server.hub.writer().health();
    let writable = health.failing().map(|(failing, since)| {
        format!("{}: since {} s, {}", failing.sort.name(), since.as_secs(), failing.consequence())
    });
    let stalled = health.oldest_unfinished_commit();
    let commits = (stalled >= STALL).then(|| {
        let secs = stalled.as_secs();
        format!("stalled: the disk has not finished a commit for {secs} s, renewals and reads go on")
    });
    let mut checks = living(server);
    let clock = server.hub.clock_fault().map(|fault| fault.to_string());
    checks.extend([("store-writable", writable), ("store-commits", commits), ("clock", clock)]);
    checks
}

/// `/healthz`, `/livez`, `/readyz`, single checks below them, and `?verbose`.
pub(super) fn health(context: &RequestContext<'_>, path: &str) -> Result<Response<Body>, ApiError> {
    let (endpoint, only) = path.split_once('/').unwrap_or((path, ""));
    let mut checks = if endpoint == "readyz" { serving(context.server) } else { living(context.server) };
    if !only.is_empty() {
        checks.retain(|(name, _)| *name == only);
    }
    if checks.is_empty() {
        return Err(ApiError::path_not_found());
    }
    let excluded: Vec<&str> = context.parameters.all("exclude").collect();
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !checks.iter().any(|(known, _)| known == *name))
        .map(|name| format!("{:?}", kedge_api::excerpt(name)))
        .collect();
    checks.retain(|(name, _)| !excluded.contains(name));
    let good = checks.iter().all(|(_, fault)| fault.is_none());
    let code = if good { 200 } else { 500 };
    if good && !context.parameters.has("verbose") {
        return Ok(respond::bytes(code, "text/plain; charset=utf-8", "ok"));
    }
    let mut text = String::new();
    for (name, fault) in checks {
        // writing to a string cannot fail
        let _ = match fault {
            None => writeln!(text, "[+]{name} ok"),
            Some(why) => writeln!(text, "[-]{name} failed: {why}"),
        };
    }
    for name in excluded.iter().filter(|_| unknown.is_empty()) {
        let _ = writeln!(text, "[+]{name} excluded: ok");
    }
    if !unknown.is_empty() {
        let all = unknown.join(", ");
        let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {all}");
    }
    text.push_str(&format!("{endpoint} check {}\n", if good { "passed" } else { "failed" }));
    Ok(respond::bytes(code, "text/plain; charset=utf-8", text))
}

/// `/metrics`, in Prometheus' text format.
pub(super) fn metrics(server: &Server) -> Response<Body> {
    let mut text = String::new();
    let mut sample = |name: &str, of: &str, help: &str, samples: &[(String, u64)]| {
        // writing to a string cannot fail
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {of}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let level = |resource| server.limits.level(resource);
    let one = |value: u64| vec![(String::new(), value)];
    let size = |value: usize| vec![(String::new(), value as u64)];
    let memory = server.hub.memory();
    let counters = &server.counters;
    let store = &server.hub.writer().counters;
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let answers: Vec<(String, u64)> =
        (1..=5).map(|class| (format!("{{code=\"{class}xx\"}}"), read(&counters.answers[class]))).collect();
    let objects: Vec<(String, u64)> = KINDS
        .iter()
        .map(|kind| (format!("{{resource=\"{}\"}}", kind.resource_name()), memory.count(kind) as u64))
        .collect();
    sample("apiserver_request_total", "counter", "Answered requests by class of status.", &answers);
    sample(
        "apiserver_current_inflight_requests",
        "gauge",
        "Requests being answered.",
        &size(level(Resource::Requests).0 + level(Resource::Renewals).0),
    );
    sample("apiserver_storage_objects", "gauge", "Stored objects by resource.", &objects);
    sample("apiserver_registered_watchers", "gauge", "Open watches.", &size(memory.watches()));
    sample(
        "kedge_hub_connections",
        "gauge",
        "Open connections.",
        &size(counters.connections.load(Ordering::Relaxed)),
    );
    sample(
        "kedge_hub_unfinished_handshakes",
        "gauge",
        "Connections whose TLS handshake is not finished.",
        &size(server.handshakes.count()),
    );
    sample(
        "kedge_hub_dropped_handshakes_total",
        "counter",
        "Connections closed before their handshake, because there were too many.",
        &one(read(&counters.dropped_handshakes)),
    );
    sample(
        "kedge_hub_paced_handshakes_total",
        "counter",
        "TLS handshakes ended before the key exchange, because their network begins too many.",
        &one(read(&counters.paced_handshakes)),
    );
    let pools = [
        ("connections", Resource::Connections),
        ("requests", Resource::Requests),
        ("body_bytes", Resource::BodyBytes),
        ("watches", Resource::Watches),
        ("watch_backlog_bytes", Resource::BacklogBytes),
    ];
    let of_pools = |value: fn((usize, usize)) -> usize| -> Vec<(String, u64)> {
        let sample = |(name, resource)| (format!("{{pool=\"{name}\"}}"), value(level(resource)) as u64);
        pools.into_iter().map(sample).collect()
    };
    sample(
        "kedge_hub_pool_used",
        "gauge",
        "What callers hold of a shared pool.",
        &of_pools(|(used, _)| used),
    );
    sample("kedge_hub_pool_size", "gauge", "The size of a shared pool.", &of_pools(|(_, size)| size));
    sample(
        "kedge_hub_refused_handshakes_total",
        "counter",
        "TLS handshakes that failed.",
        &one(read(&counters.refused_handshakes)),
    );
    let now = time::OffsetDateTime::now_utc().unix_timestamp();
    sample(
        "kedge_hub_refused_nodes",
        "gauge",
        "Nodes whose certificate was refused within the last hour.",
        &size(server.credentials.knocks.count(now)),
    );
    let backup = server.hub.last_backup().map(|last| last.and_then(|at| u64::try_from(at).ok()).unwrap_or(0));
    sample(
        "kedge_hub_last_backup_timestamp_seconds",
        "gauge",
        "Unix time of the last backup, 0 if there was none. Absent while unknown.",
        &backup.map(one).unwrap_or_default(),
    );
    sample(
        "kedge_hub_request_panics_total",
        "counter",
        "Requests that ended in a bug of ours.",
        &one(read(&counters.panics)),
    );
    let revisions = [("leases", &LEASE), ("others", &NODE)]
        .map(|(of, kind)| (format!("{{space=\"{of}\"}}"), memory.revision(kind)));
    sample("kedge_hub_revision", "counter", "The latest revision of each space.", &revisions);
    sample("kedge_hub_store_commits_total", "counter", "Durable commits.", &one(read(&store.commits)));
    sample("kedge_hub_store_changes_total", "counter", "Changes made durable.", &one(read(&store.changes)));
    sample(
        "kedge_hub_store_renewals_total",
        "counter",
        "Renewals acknowledged from memory.",
        &one(read(&store.volatile)),
    );
    let health = server.hub.writer().health();
    let failures = health.failures().map(|(sort, count)| (format!("{{sort=\"{}\"}}", sort.name()), count));
    sample(
        "kedge_hub_store_failures_total",
        "counter",
        "Commits and probes that failed, by what the disk reported.",
        &failures,
    );
    sample(
        "kedge_hub_store_refused_total",
        "counter",
        "Changes refused without a try, because the store failed or stalled.",
        &one(health.refused()),
    );
    sample(
        "kedge_hub_store_writable",
        "gauge",
        "Whether the store takes changes.",
        &one(u64::from(health.failing().is_none())),
    );
    sample(
        "kedge_hub_store_oldest_unfinished_commit_seconds",
        "gauge",
        "How long the present commit has been under way, 0 without one.",
        &one(health.oldest_unfinished_commit().as_secs()),
    );
    sample(
        "kedge_hub_clock_wrong",
        "gauge",
        "Whether the clock disagrees with the newest time in the store, so that no age counts.",
        &one(u64::from(server.hub.clock_fault().is_some())),
    );
    sample(
        "kedge_hub_store_commit_microseconds_total",
        "counter",
        "Time spent in commits.",
        &one(read(&store.commit_micros)),
    );
    numbers::metrics(&server.hub, &mut text);
    respond::bytes(200, "text/plain; version=0.0.4", text)
}
