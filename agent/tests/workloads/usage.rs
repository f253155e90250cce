//! `/stats/summary` and `/metrics/resource` of a node with a container of the real crun: the values must
//! agree with the kernel's own figures.

use crate::setup::{INSIDE, LIMIT, Machine, isolated, wanted};
use kedge::flags;
use kedge::kubelet_api::node::Node;
use kedge::kubelet_api::serve;
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

const MI: u64 = 1 << 20;

/// The body of the answer, as the hub gets it.
fn asked(machine: &Machine, group: &str, path: &str) -> String {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(LIMIT)).unwrap();
    let places = [machine.settings.run.parent().unwrap(), machine.settings.data.parent().unwrap()];
    let [run, root] = places.map(|path| path.to_str().unwrap().to_owned());
    let words = [
        "kedge",
        "agent",
        "--run-dir",
        &run,
        "--root-dir",
        &root,
        "--cgroup-root",
        group,
        "--hostname-override",
        "edge-1",
    ];
    let Ok(flags::Command::Agent(agent)) = flags::parse(words.map(OsString::from)) else { panic!() };
    let serving = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            theirs.set_nonblocking(true).unwrap();
            let stream = tokio::net::UnixStream::from_std(theirs).unwrap();
            serve(Box::new(stream), Arc::new(Node { agent: *agent })).await.unwrap();
        });
    });
    ours.write_all(format!("GET {path} HTTP/1.1\r\nHost: n\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    ours.read_to_string(&mut answer).unwrap();
    serving.join().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    body.to_owned()
}

#[test]
fn container_that_works_is_seen_by_its_usage() {
    isolated("usage::container_that_works_is_seen_by_its_usage", || {
        let group = std::env::var(INSIDE).unwrap();
        let mut machine = Machine::new();
        machine.settings.pods_group = format!("{group}/kedgepods");
        let mut runtime = machine.open();
        // 8 MiB of files, and a processor's work until it ends
        runtime.run(&wanted("a", "dd if=/dev/zero of=/big bs=1M count=8 2>/dev/null; while :; do :; done"));
        let root = machine.settings.data.join("uid-1");
        kedge_rig::scratch::wait_until("its files", LIMIT, || size(&root) >= 8 * MI);
        let summary: Value = serde_json::from_str(&asked(&machine, &group, "/stats/summary")).unwrap();
        let number = |path: &str| {
            summary.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {summary}"))
        };
        assert_eq!(summary["node"]["nodeName"], "edge-1");
        assert_eq!(summary["pods"][0]["podRef"]["name"], "web-0");
        assert_eq!(summary["pods"][0]["containers"][0]["name"], "a");
        for of in ["/node", "/node/systemContainers/0", "/pods/0", "/pods/0/containers/0"] {
            // in units of one processor, which it shares with whatever else runs
            assert!(number(&format!("{of}/cpu/usageNanoCores")) > 20_000_000, "{of}: {summary}");
            assert!(number(&format!("{of}/cpu/usageCoreNanoSeconds")) > 0);
            assert!(number(&format!("{of}/memory/workingSetBytes")) > 0);
        }
        assert!(number("/pods/0/containers/0/rootfs/usedBytes") >= 8 * MI);
        assert!(number("/pods/0/ephemeral-storage/usedBytes") >= 8 * MI);
        assert!(number("/pods/0/process_stats/process_count") >= 1);
        assert!(number("/node/fs/usedBytes") <= number("/node/fs/capacityBytes"));
        let first = summary["pods"][0]["containers"][0]["startTime"].as_str().unwrap();
        assert!(first.starts_with("20") && first.ends_with('Z'), "{first}");

        let metrics = asked(&machine, &group, "/metrics/resource");
        let labels = "{container=\"a\",namespace=\"prod\",pod=\"web-0\"}";
        for name in [
            "container_cpu_usage_seconds_total",
            "container_memory_working_set_bytes",
            "container_start_time_seconds",
        ] {
            assert!(metrics.contains(&format!("\n{name}{labels} ")), "{name}: {metrics}");
        }
        assert!(metrics.contains("\nresource_scrape_error 0\n"), "{metrics}");
        let small: Value =
            serde_json::from_str(&asked(&machine, &group, "/stats/summary?only_cpu_and_memory=true"))
                .unwrap();
        assert!(small["pods"][0]["containers"][0]["cpu"]["usageNanoCores"].is_u64(), "{small}");
        assert!(small["node"]["fs"].is_null() && small["pods"][0]["ephemeral-storage"].is_null(), "{small}");
    });
}

/// Bytes of the container's files.
fn size(directory: &std::path::Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => size(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}
