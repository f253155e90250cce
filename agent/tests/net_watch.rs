//! Lists and watches against a real TLS server on loopback: the events delivered, the version at which a
//! watch resumes, and how it ends.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod net_server;

use kedge::net::error::NetError;
use kedge::net::transport::STACK_BYTES;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kedge::net::watch::{
    LIST_PAGE, WatchEnd, WatchEvent, WatchFrom, WatchLimits, list, list_metadata, list_taking, watch,
};
use net_server::*;

const NODES: &str = "/api/v1/nodes";

/// An event in short: `+a`, `~a`, `-a`, `@7` for a bookmark, `open`.
fn short(event: &WatchEvent) -> String {
    let name = |object: &serde_json::Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    match event {
        WatchEvent::Opened { .. } => "open".to_owned(),
        WatchEvent::Added(object) => format!("+{}", name(object)),
        WatchEvent::Modified(object) => format!("~{}", name(object)),
        WatchEvent::Deleted(object) => format!("-{}", name(object)),
        WatchEvent::Bookmark(version) => format!("@{version}"),
        WatchEvent::Called(ids) => format!("!{}", ids.join(",")),
        WatchEvent::Receiving => "..".to_owned(),
    }
}

/// Watches until the end; returns the events in short, the end, and the queries that the server received.
fn watched(
    from: WatchFrom,
    limits: WatchLimits,
    stop_after: usize,
    script: impl Fn(u64, &Heard) -> Reply + Send + Sync + 'static,
) -> (String, WatchEnd, Vec<String>) {
    let authority = Authority::new("ca");
    let requests = AtomicU64::new(0);
    let server =
        Server::start(&authority, move |heard| script(requests.fetch_add(1, Ordering::SeqCst), heard));
    let bench = Bench::new(&authority, server.address);
    let mut events = Vec::new();
    let end = watch(&bench.client, NODES, "fieldSelector=metadata.name%3De", from, limits, |event| {
        // how often a line is reported to be on its way depends on the machine
        let short = short(&event);
        if short != ".." || events.last() != Some(&short) {
            events.push(short);
        }
        if events.len() == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(server.counts.connections() <= 1, "a watch is one connection");
    let queries = server.counts.heard().into_iter().map(|heard| heard.path).collect();
    (events.join(" "), end, queries)
}

fn version(version: &str) -> WatchFrom {
    WatchFrom::Version(version.to_owned())
}

fn chunks(write: impl FnOnce(&mut Chunks<'_>) + Send + 'static) -> Reply {
    Reply::Chunks(Box::new(write))
}

const START: &str = "/api/v1/nodes?watch=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3De";

#[test]
fn watch_ended_in_good_order_tells_the_last_version() {
    let (events, end, queries) = watched(version("5"), WatchLimits::default(), 7, |_, _| {
        chunks(|body| {
            body.event("ADDED", "a", "6");
            body.event("MODIFIED", "a", "8");
            body.event("BOOKMARK", "", "11");
        })
    });
    assert_eq!(events, "open +a ~a @11");
    // the caller decides when to resume
    assert_eq!(end, WatchEnd::Ended { resume: Some("11".to_owned()) });
    assert_eq!(queries, [format!("{START}&resourceVersion=5")]);
}

#[test]
fn events_split_by_the_network_arrive_whole() {
    let (events, end, _) = watched(version("5"), WatchLimits::default(), 4, |_, _| {
        chunks(|body| {
            let lines = event("ADDED", "a", "6")
                + &event("ADDED", "b", "7")
                + &event("ADDED", &"c".repeat(40_000), "8");
            let (first, rest) = lines.split_at(33);
            for piece in [first, &rest[..1], &rest[1..]] {
                body.send(piece);
            }
            body.wait_for_end();
        })
    });
    assert_eq!(events, format!("open +a +b +{}", "c".repeat(40_000)));
    assert_eq!(end, WatchEnd::Stopped { resume: Some("8".to_owned()) });
}

#[test]
fn line_on_its_way_is_reported() {
    let limits = WatchLimits { receiving: Duration::ZERO, idle: PLENTY, ..WatchLimits::default() };
    // the rest never comes: this test ends by the report
    let (events, ..) = watched(version("5"), limits, 2, |_, _| {
        chunks(|body| {
            body.send(&event("ADDED", "a", "6")[..33]);
            body.wait_for_end();
        })
    });
    assert_eq!(events, "open ..");
}

#[test]
fn expired_version_lists_again() {
    let gone = || Reply::status(410, "Expired", "too old resource version: 5 (99)");
    let (events, end, _) = watched(version("5"), WatchLimits::default(), 0, move |_, _| gone());
    assert_eq!((events.as_str(), end), ("", WatchEnd::Expired));
    let (events, end, _) = watched(version("5"), WatchLimits::default(), 0, |_, _| {
        chunks(|body| {
            body.event("ADDED", "a", "6");
            body.send(
                "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\"}}\n",
            );
        })
    });
    assert_eq!((events.as_str(), end), ("open +a", WatchEnd::Expired));
}

#[test]
fn initial_watch_resumes_only_after_a_bookmark() {
    let initial = |bookmark: bool| {
        watched(WatchFrom::Initial, WatchLimits::default(), 4, move |_, _| {
            chunks(move |body| {
                body.event("ADDED", "a", "90");
                if bookmark {
                    body.event("BOOKMARK", "", "100");
                }
            })
        })
    };
    let (events, end, queries) = initial(true);
    assert_eq!((events.as_str(), end), ("open +a @100", WatchEnd::Ended { resume: Some("100".to_owned()) }));
    assert_eq!(queries, [START.to_owned()]);
    let (events, end, _) = initial(false);
    assert_eq!((events.as_str(), end), ("open +a", WatchEnd::Ended { resume: None }));
}

/// Resuming would deliver the same line again: a list may show less of that object.
#[test]
fn watch_with_a_line_that_is_too_long_lists_again() {
    let small = WatchLimits { line_bytes: 10_000, ..WatchLimits::default() };
    let (events, end, _) =
        watched(version("5"), small, 0, |_, _| chunks(|body| body.send(&"x".repeat(10_001))));
    assert_eq!(events, "open");
    assert_failed(&end, "the answer has more than 10000 bytes", None);
}

#[track_caller]
fn assert_failed(end: &WatchEnd, expect: &str, expect_resume: Option<&str>) {
    match end {
        WatchEnd::Failed { error, resume } => {
            let found = error.to_string();
            assert!(found.contains(expect), "expected {expect:?}, found {found:?}");
            assert_eq!(resume.as_deref(), expect_resume, "{found}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn failed_watch_reports_resume_version() {
    let small = WatchLimits { line_bytes: 10_000, ..WatchLimits::default() };
    let check = |reply: fn() -> Reply, expect_events: &str, expect: &str, resume: &str| {
        let (events, end, queries) = watched(version("5"), small, 0, move |_, _| reply());
        assert_eq!(events, expect_events);
        assert_failed(&end, expect, Some(resume));
        assert_eq!(queries.len(), 1);
        assert!(end_text(&end).starts_with("GET https://127.0.0.1:"));
    };
    check(|| Reply::status(403, "Forbidden", "no watch"), "", "refused (403 Forbidden): no watch", "5");
    check(|| Reply::status(404, "NotFound", "no such"), "", "refused (404 NotFound): no such", "5");
    check(|| Reply::Cut(cut_after("")), "open +a", "closed by the other side", "6");
    check(|| Reply::Cut(cut_after("{\"type\":")), "open +a", "closed by the other side", "6");
    check(|| chunks(|body| body.send("{\"type\":")), "open", "it ends within a line", "5");
    check(|| chunks(|body| body.send("<html>\n")), "open", "a line is not JSON", "5");
    check(
        || chunks(|body| body.send("{\"type\":\"ERROR\",\"object\":{\"code\":500,\"message\":\"etcd\"}}\n")),
        "open",
        "refused (500): etcd",
        "5",
    );
}

fn end_text(end: &WatchEnd) -> String {
    match end {
        WatchEnd::Failed { error, .. } => error.to_string(),
        other => format!("{other:?}"),
    }
}

/// A chunked answer with one event, then `rest` in a chunk that announces more bytes than arrive.
fn cut_after(rest: &str) -> Vec<u8> {
    let line = event("ADDED", "a", "6");
    let rest = if rest.is_empty() { String::new() } else { format!("fff\r\n{rest}") };
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{line}\r\n{rest}", line.len()).into_bytes()
}

#[test]
fn silent_watch_ends_after_the_idle_limit() {
    let idle = Duration::from_secs(1);
    let limits = WatchLimits { idle, ..WatchLimits::default() };
    let begun = Instant::now();
    let (events, end, _) = watched(version("5"), limits, 0, |_, _| {
        chunks(|body| {
            for version in 6..22 {
                thread::sleep(Duration::from_millis(150));
                body.event("BOOKMARK", "", &version.to_string());
            }
            body.wait_for_end();
        })
    });
    assert_eq!(events, "open @6 @7 @8 @9 @10 @11 @12 @13 @14 @15 @16 @17 @18 @19 @20 @21");
    assert_failed(&end, "silent for too long", Some("21"));
    let took = begun.elapsed();
    assert!(took > idle * 2, "the limit is not for the whole: {took:?}");
}

#[test]
fn endless_line_ends_the_watch() {
    let idle = Duration::from_millis(500);
    let limits = WatchLimits { idle, receiving: PLENTY, ..WatchLimits::default() };
    let (events, end, _) = watched(version("5"), limits, 0, |_, _| {
        chunks(|body| {
            body.event("ADDED", "a", "6");
            let begun = Instant::now();
            while begun.elapsed() < PLENTY && body.is_sent(" ") {
                thread::sleep(Duration::from_millis(20));
            }
        })
    });
    assert_eq!(events, "open +a");
    assert_failed(&end, "a line took longer than 1 s", Some("6"));
}

#[test]
fn slow_line_gets_its_full_time_after_a_pause() {
    // a pause may take 6 s and a line 12; the pauses take 4.5 and 8, and longer on a busy machine: together
    // more than a line may take
    let limits = WatchLimits { idle: Duration::from_secs(6), ..WatchLimits::default() };
    let (events, ..) = watched(version("5"), limits, 4, |_, _| {
        chunks(|body| {
            body.event("ADDED", "a", "6");
            thread::sleep(Duration::from_millis(4500));
            for _ in 0..16 {
                body.send(" ");
                thread::sleep(Duration::from_millis(500));
            }
            body.event("ADDED", "b", "7");
        })
    });
    assert_eq!(events, "open +a .. +b");
}

#[test]
fn trickling_refusal_ends_the_watch() {
    let begun = Instant::now();
    let limits = WatchLimits { open: Duration::from_millis(500), ..WatchLimits::default() };
    let (events, end, _) = watched(version("5"), limits, 0, |_, _| {
        Reply::Trickle(b"HTTP/1.1 503 X\r\nContent-Length: 60000\r\n\r\n".to_vec())
    });
    assert_eq!(events, "");
    assert_failed(&end, "refused (503)", Some("5"));
    assert!(begun.elapsed() < PLENTY, "not before the server gave up: {:?}", begun.elapsed());
}

#[test]
fn unanswered_watch_ends_after_the_open_limit() {
    let limits = WatchLimits { open: Duration::from_millis(400), ..WatchLimits::default() };
    let (events, end, _) = watched(version("5"), limits, 0, |_, _| Reply::Silence);
    assert_eq!(events, "");
    assert_failed(&end, "no answer in time", Some("5"));
}

#[test]
fn cancelled_watch_ends_at_once_on_a_small_stack() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| {
        chunks(|body| {
            body.event("ADDED", "a", "6");
            body.wait_for_end();
        })
    });
    let bench = Bench::new(&authority, server.address);
    let (client, cancel) = (bench.client.clone(), bench.client.cancel_handle());
    let (report, reports) = mpsc::channel();
    let watching = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let end = watch(&client, NODES, "", version("5"), WatchLimits::default(), |event| {
            report.send(short(&event)).unwrap();
            ControlFlow::Continue(())
        });
        (end, Instant::now())
    });
    assert_eq!(reports.recv().unwrap(), "open");
    assert_eq!(reports.recv().unwrap(), "+a");
    let cancelled = Instant::now();
    cancel.cancel();
    let (end, ended) = watching.unwrap().join().unwrap();
    assert_eq!(end, WatchEnd::Cancelled);
    let took = ended - cancelled;
    assert!(took < PLENTY / 2, "{took:?}");
}

#[test]
fn deep_object_does_not_overflow_the_small_stack() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| {
        chunks(|body| {
            let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
            body.send(&format!("{{\"type\":\"ADDED\",\"object\":{deep}}}\n"));
        })
    });
    let client = Bench::new(&authority, server.address).client;
    let watching = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let mut events = Vec::new();
        let end = watch(&client, NODES, "", version("5"), WatchLimits::default(), |event| {
            events.push(short(&event));
            ControlFlow::Continue(())
        });
        (events, end)
    });
    let (events, end) = watching.unwrap().join().unwrap();
    assert_eq!(events, ["open"]);
    assert_failed(&end, "recursion limit", Some("5"));
}

#[test]
fn list_is_read_in_pages() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |heard| {
        let page = |version: &str, next: &str, names: &str| {
            Reply::ok(&format!(
                r#"{{"kind":"PodList","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":{names}}}"#
            ))
        };
        match heard.path.rsplit('&').next().unwrap() {
            "continue=a%2Bb" => page("7", "", r#"[{"n":2}]"#),
            _ => page("7", "a+b", r#"[{"n":1}]"#),
        }
    });
    let bench = Bench::new(&authority, server.address);
    let params = format!("fieldSelector={}", kedge_api::percent_encoded("spec.nodeName=edge-1"));
    let listed = list(&bench.client, ("/api/v1/pods", "Pod"), &params, PLENTY).unwrap();
    assert_eq!(listed.resource_version, "7");
    assert_eq!(listed.items, [serde_json::json!({"n": 1}), serde_json::json!({"n": 2})]);
    let start = format!("/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1&limit={LIST_PAGE}");
    let paths: Vec<String> = server.counts.heard().into_iter().map(|heard| heard.path).collect();
    assert_eq!(paths, [start.clone(), format!("{start}&continue=a%2Bb")]);
}

/// The server's pods have these sizes; returns what the list showed of them, with `!` for metadata only, and
/// each page's `limit`.
fn listed_in_part(pods: &'static [(&'static str, usize)]) -> (Result<Vec<String>, NetError>, Vec<String>) {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, move |heard| {
        let asked = |name: &str| {
            let found = heard.path.split(['?', '&']).find_map(|pair| pair.strip_prefix(name));
            found.map_or(0, |number| number.parse::<usize>().unwrap())
        };
        let (from, limit) = (asked("continue="), asked("limit="));
        let is_metadata =
            heard.header("accept").is_some_and(|accept| accept.contains("PartialObjectMetadataList"));
        let page = pods.iter().skip(from).take(limit).map(|(name, bytes)| match is_metadata {
            true => serde_json::json!({"metadata": {"name": name}}),
            false => serde_json::json!({"metadata": {"name": name}, "data": "x".repeat(*bytes)}),
        });
        let page: Vec<_> = page.collect();
        let end = from + page.len();
        let next = if end < pods.len() { end.to_string() } else { String::new() };
        let kind = if is_metadata { "PartialObjectMetadataList" } else { "PodList" };
        Reply::ok(&serde_json::json!({"kind": kind, "metadata": {"resourceVersion": "7", "continue": next}, "items": page}).to_string())
    });
    let bench = Bench::new(&authority, server.address);
    let take = &mut |pod: serde_json::Value, is_too_large: bool| {
        assert_eq!(is_too_large, pod.get("data").is_none());
        let name = pod["metadata"]["name"].as_str().unwrap();
        serde_json::json!(format!("{name}{}", if is_too_large { "!" } else { "" }))
    };
    let listed = list_taking(&bench.client, ("/api/v1/pods", "Pod"), "", PLENTY, take);
    let names =
        listed.map(|listed| listed.items.iter().map(|name| name.as_str().unwrap().to_owned()).collect());
    let limits = server
        .counts
        .heard()
        .into_iter()
        .map(|heard| heard.path.split(['?', '&']).nth(1).unwrap().to_owned());
    (names, limits.collect())
}

#[test]
fn large_pods_are_listed_few_at_once() {
    let (names, limits) =
        listed_in_part(&[("a", 1_500_000), ("b", 1_500_000), ("c", 1_500_000), ("d", 10), ("e", 10)]);
    assert_eq!(names.unwrap(), ["a", "b", "c", "d", "e"]);
    assert_eq!(limits, ["limit=50", "limit=6", "limit=1", "limit=2", "limit=3"]);
}

/// A text of characters that JSON escapes has six times its bytes.
#[test]
fn pod_that_is_too_large_is_listed_by_its_metadata() {
    let (names, limits) = listed_in_part(&[("a", 10), ("b", 9_000_000), ("c", 10), ("d", 10)]);
    assert_eq!(names.unwrap(), ["a", "b!", "c", "d"]);
    assert_eq!(limits, ["limit=50", "limit=6", "limit=1", "limit=2", "limit=1", "limit=1", "limit=2"]);
}

#[test]
fn page_that_a_busy_server_refuses_is_asked_for_again() {
    let authority = Authority::new("ca");
    let asked = AtomicU64::new(0);
    let server = Server::start(&authority, move |_| {
        let page = |next: &str| {
            format!(r#"{{"metadata":{{"resourceVersion":"7","continue":"{next}"}},"items":[{{}}]}}"#)
        };
        match asked.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::ok(&page("x")),
            1 | 2 => Reply::Raw(
                b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}".to_vec(),
            ),
            3 => Reply::ok(&page("")),
            _ => Reply::status(429, "TooManyRequests", "later"),
        }
    });
    let bench = Bench::new(&authority, server.address);
    let read = || list(&bench.client, ("/api/v1/pods", "Pod"), "", PLENTY);
    assert_eq!(read().unwrap().items.len(), 2);
    // nothing of the first page is lost, and the caller makes pauses of its own
    assert_eq!(read().unwrap_err().status(), Some(429));
}

#[test]
fn list_without_an_end_in_bytes_is_refused() {
    const MANY: &[(&str, usize)] = &[("a", 3_000_000); 40];
    let (names, _) = listed_in_part(MANY);
    let error = names.unwrap_err().to_string();
    assert!(
        error.contains("expected at most 200 of 67108864 bytes") || error.contains("more than"),
        "{error}"
    );
}

/// A list without payloads shows whether a configuration still exists.
#[test]
fn metadata_of_another_kind_are_not_an_empty_list() {
    let authority = Authority::new("ca");
    for (kind, is_taken) in [
        ("PartialObjectMetadataList", true),
        ("ConfigMapList", true),
        ("PodList", false),
        ("Status", false),
        ("PartialObjectMetadata", false),
    ] {
        let body = format!(r#"{{"kind":"{kind}","metadata":{{"resourceVersion":"7"}},"items":[]}}"#);
        let server = Server::start(&authority, move |_| Reply::ok(&body));
        let bench = Bench::new(&authority, server.address);
        let path = "/api/v1/namespaces/default/configmaps";
        let listed = list_metadata(&bench.client, (path, "ConfigMap"), "", PLENTY);
        assert_eq!(listed.is_ok(), is_taken, "{kind}");
        if let Err(error) = listed {
            assert!(matches!(error, NetError::Garbled { .. }), "{error}");
        }
    }
}

#[test]
fn malformed_list_is_not_an_empty_list() {
    let authority = Authority::new("ca");
    let check = |body: &'static str, expect: &str| {
        let server = Server::start(&authority, move |_| Reply::ok(body));
        let bench = Bench::new(&authority, server.address);
        let found = match list(&bench.client, ("/api/v1/pods", "Pod"), "", PLENTY) {
            Ok(listed) => format!("{} objects at {}", listed.items.len(), listed.resource_version),
            Err(error) => {
                assert!(matches!(error, NetError::Garbled { .. }));
                error.to_string()
            }
        };
        assert!(found.contains(expect), "{body}: {found}");
    };
    check(r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#, "0 objects at 7");
    check(r#"{"metadata":{"resourceVersion":"7"},"items":null}"#, "0 objects at 7");
    check(r#"{"metadata":{"resourceVersion":"7"}}"#, "the answer is not a list: it has no items");
    check(r#"{"metadata":{},"items":[]}"#, "the list has no resourceVersion");
    check("", "the answer is not the JSON that is expected");
    check(r#"{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[]}"#, "0 objects at 7");
    for kind in ["ConfigMapList", "PartialObjectMetadataList", "Status", "Pod"] {
        let body = format!(r#"{{"kind":"{kind}","metadata":{{"resourceVersion":"7"}},"items":[]}}"#);
        check(
            Box::leak(body.into_boxed_str()),
            &format!(r#"the answer has the kind "{kind}", expected PodList"#),
        );
    }
    // cut off, and a portal that answers in the server's place
    check(
        r#"{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[{"metadata":"#,
        "the answer is not the JSON that is expected",
    );
    check("<html><body>Welcome, please sign in</body></html>", "the answer is not the JSON that is expected");
    let endless = Server::start(&authority, |_| {
        let items = vec!["{}"; 2000].join(",");
        Reply::ok(&format!(r#"{{"metadata":{{"resourceVersion":"7","continue":"x"}},"items":[{items}]}}"#))
    });
    let bench = Bench::new(&authority, endless.address);
    let error = list(&bench.client, ("/api/v1/pods", "Pod"), "", PLENTY).unwrap_err();
    assert!(error.to_string().contains("the list has more than 5000 objects"), "{error}");
    // as large as a page may be, and as small
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(4_000_000));
    for (items, expect) in
        [(large.as_str(), "the list has 5 pages of 200"), ("", "the list has 201 pages of ")]
    {
        let page = format!(r#"{{"metadata":{{"resourceVersion":"7","continue":"x"}},"items":[{items}]}}"#);
        let endless = Server::start(&authority, move |_| Reply::ok(&page));
        let bench = Bench::new(&authority, endless.address);
        let error = list(&bench.client, ("/api/v1/pods", "Pod"), "", PLENTY).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
    }
    // 50 pods of 60 kB
    let pods = vec![format!(r#"{{"a":"{}"}}"#, "x".repeat(60_000)); 50].join(",");
    let many = Server::start(&authority, move |_| {
        Reply::ok(&format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{pods}]}}"#))
    });
    let bench = Bench::new(&authority, many.address);
    assert_eq!(list(&bench.client, ("/api/v1/pods", "Pod"), "", PLENTY).unwrap().items.len(), 50);
}

#[test]
fn watches_do_not_delay_requests_of_other_streams() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |heard| match heard.path.contains("watch=true") {
        true => chunks(|body| body.wait_for_end()),
        false => Reply::ok("{}"),
    });
    let bench = Bench::new(&authority, server.address);
    let streams: Vec<_> = (0..3).map(|_| bench.client.for_stream("watch")).collect();
    let (report, opened) = mpsc::channel();
    let threads: Vec<_> = streams
        .iter()
        .map(|client| {
            let (client, report) = (client.clone(), report.clone());
            thread::spawn(move || {
                watch(&client, NODES, "", version("5"), WatchLimits::default(), |_| {
                    report.send(()).unwrap();
                    ControlFlow::Continue(())
                })
            })
        })
        .collect();
    for _ in &streams {
        opened.recv().unwrap();
    }
    let request = kedge::net::client::Request::get("/x", PLENTY);
    bench.client.request(&request).unwrap();
    assert_eq!(server.counts.connections(), 4);
    for client in &streams {
        client.cancel_handle().cancel();
    }
    for thread in threads {
        assert_eq!(thread.join().unwrap(), WatchEnd::Cancelled);
    }
    bench.client.request(&request).unwrap();
}
