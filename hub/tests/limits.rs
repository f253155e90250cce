//! Compares the pages of limits with the hub: the table of served kinds row by row, and each limit with the
//! test that proves it.
//!
//! Always holds: a row of the table "Limits" names the tests of [`PROOFS`], each of which exists. The tests
//! below are for limits that no other test reaches: each requests exactly as much as the page allows, and one
//! more.

#![allow(clippy::disallowed_methods, reason = "tests read what they and the hub wrote")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod server;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kedge_hub::store::sqlite::checksum;
use kedge_hub_core::kinds::{Kind, served};
use serde_json::{Value, json};
use server::{Client, Hub, Reply};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// The rows of the table "Limits", and the tests that reach them: `file: test`. Tests in `src` and `core` are
/// for limits that a process reaches only after minutes, gigabytes or thousands of callers.
const PROOFS: &[(&str, &str)] = &[
    ("request head", "tests/api/abuse.rs: bad_requests_get_an_error_and_others_are_served"),
    ("request head", "tests/attacks.rs: ambiguous_requests_are_refused"),
    ("request body", "tests/limits.rs: objects_have_their_limits"),
    ("request body", "tests/api/garbled.rs: body_in_too_many_pieces_is_refused"),
    ("request body", "src/server/request.rs: body_that_stops_or_drips_ends_soon"),
    ("bodies above 4 KiB that one caller sends at a time", "tests/limits.rs: one_node_has_its_limits"),
    (
        "bytes of bodies in work, and of answers above 16 KiB on their way",
        "tests/limits.rs: one_node_has_its_limits",
    ),
    (
        "bytes of bodies in work, and of answers above 16 KiB on their way",
        "src/server/connection.rs: answers_on_their_way_are_their_callers_bytes",
    ),
    (
        "bytes of bodies in work, and of answers above 16 KiB on their way",
        "src/server/connection.rs: answer_to_a_change_is_never_refused",
    ),
    (
        "bytes of bodies in work, and of answers above 16 KiB on their way",
        "tests/unread.rs: unread_bytes_are_what_the_pools_say",
    ),
    ("body of a refused request", "tests/api/objects.rs: large_body_is_drained_so_the_refusal_arrives"),
    ("store", "src/store/sqlite.rs: store_at_its_limit_takes_deletions_then_other_changes"),
    ("store", "tests/bad_disk.rs: small_machine_gets_a_small_store"),
    // 2 GiB would have to be written
    ("store", "src/store/sqlite.rs: limit_follows_memory"),
    (
        "growth of objects that are being deleted while the store is full",
        "tests/bad_disk.rs: ending_objects_cannot_use_up_the_room_for_deletions",
    ),
    (
        "growth of objects that are being deleted while the store is full",
        "core/src/state/condition.rs: ending_objects_grow_within_limits_of_their_own",
    ),
    (
        "growth of objects that are being deleted while the store is full",
        "core/src/state/condition.rs: node_pays_for_what_it_lets_grow",
    ),
    (
        "object without room while small ones have some",
        "tests/bad_disk.rs: large_object_without_room_stops_no_small_one",
    ),
    (
        "changes of one Lease that its renewals overtake",
        "tests/limits.rs: change_of_a_lease_is_made_between_its_renewals",
    ),
    (
        "changes of one Lease that its renewals overtake",
        "src/store/writer.rs: change_of_a_lease_wins_against_a_flood_of_renewals",
    ),
    // 2048 changes cannot wait for one commit: fewer requests may be in progress at a time, including the one
    // that reads the figures
    ("changes in one commit", "tests/bad_disk.rs: changes_that_waited_are_committed_in_pieces"),
    ("changes in one commit", "tests/bad_disk.rs: renewals_are_written_in_pieces"),
    ("changes that wait for the disk", "tests/bad_disk.rs: stalled_disk_refuses_changes_and_loses_nothing"),
    ("object", "tests/limits.rs: objects_have_their_limits"),
    ("annotations of one object", "tests/limits.rs: objects_have_their_limits"),
    ("finalizers, owner references", "tests/limits.rs: objects_have_their_limits"),
    (
        "nesting of lists and objects, in a body, a patched or a stored object",
        "tests/limits.rs: objects_have_their_limits",
    ),
    (
        "nesting of lists and objects, in a body, a patched or a stored object",
        "tests/attacks.rs: costly_bodies_are_refused_and_nodes_go_on",
    ),
    (
        "memory of a body, or of an object, as a tree of values",
        "tests/attacks.rs: costly_bodies_are_refused_and_nodes_go_on",
    ),
    ("key of an object", "tests/limits.rs: objects_have_their_limits"),
    (
        "errors in an answer about an object, conflicts of an apply",
        "tests/attacks.rs: costly_bodies_are_refused_and_nodes_go_on",
    ),
    ("JSON patch", "tests/limits.rs: patches_have_their_limits"),
    ("strategic merge patch", "tests/limits.rs: patches_have_their_limits"),
    ("quantity", "tests/limits.rs: patches_have_their_limits"),
    ("YAML body", "tests/limits.rs: patches_have_their_limits"),
    ("name of a field manager", "tests/limits.rs: patches_have_their_limits"),
    ("page of a list", "tests/limits.rs: full_hub_lists_in_pages_and_deletes_the_oldest_events"),
    ("connections", "tests/attacks.rs: connections_of_one_node_are_its_own_limit"),
    ("connections", "tests/bad_disk.rs: small_machine_gets_a_small_store"),
    ("connections", "src/server/limits.rs: dropped_connections_are_uncounted"),
    ("connections", "src/server/link.rs: connection_that_is_not_used_ends"),
    ("TLS handshakes in progress", "tests/attacks.rs: silent_connections_do_not_keep_a_node_out"),
    ("TLS handshakes in progress", "tests/attacks.rs: network_that_begins_too_many_handshakes_waits"),
    ("TLS handshakes in progress", "tests/attacks.rs: connections_without_a_hello_cost_a_neighbour_nothing"),
    ("TLS handshakes in progress", "src/server/handshakes.rs: one_byte_each_does_not_shut_the_door"),
    ("TLS handshakes in progress", "src/server/handshakes.rs: slow_handshakes_make_room_in_a_full_network"),
    (
        "requests in progress, from when the body is in",
        "tests/bad_disk.rs: stalled_disk_refuses_changes_and_loses_nothing",
    ),
    ("requests in progress, from when the body is in", "src/server/limits.rs: renewals_take_from_no_pool"),
    (
        "requests in progress, from when the body is in",
        "tests/attacks.rs: costly_patches_of_one_node_take_turns",
    ),
    ("request rate", "tests/limits.rs: one_node_has_its_limits"),
    ("request rate", "tests/attacks.rs: anonymous_flood_hides_no_probe"),
    ("request rate", "src/server/steps.rs: long_step_is_paid_for"),
    ("request rate", "src/server/limits.rs: debt_of_a_node_ends_after_twenty_seconds"),
    ("request rate", "src/server/limits.rs: renewals_have_a_rate_of_their_own"),
    ("request rate", "src/server/connection.rs: work_for_an_answer_is_paid_for_by_its_caller"),
    (
        "wrong bootstrap tokens of one network (an address, or a /64 of IPv6)",
        "tests/api/bootstrap.rs: guesses_end_after_ten_a_minute",
    ),
    (
        "wrong bootstrap tokens of one network (an address, or a /64 of IPv6)",
        "src/server/guesses.rs: million_guesses_are_mostly_not_compared",
    ),
    (
        "uses of a bootstrap token that are counted",
        "core/src/identity/bootstrap_token.rs: wrong_secret_is_refused_in_words",
    ),
    (
        "signatures in `kube-public/cluster-info`",
        "core/src/controllers/bootstrap_tokens.rs: many_tokens_do_not_make_it_large",
    ),
    ("watches", "tests/limits.rs: one_node_has_its_limits"),
    ("watches", "tests/attacks.rs: watch_that_is_not_read_keeps_little"),
    (
        "long answers (128 KiB compressed, 64 KiB of tables) in the making",
        "tests/api/answers.rs: reader_that_stops_holds_nothing_that_others_need",
    ),
    ("bytes that wait for slow readers", "tests/attacks.rs: watch_that_is_not_read_keeps_little"),
    ("bytes that wait for slow readers", "tests/unread.rs: unread_bytes_are_what_the_pools_say"),
    (
        "bytes that wait for slow readers",
        "core/src/loans.rs: old_version_is_paid_for_by_one_reader_at_a_time",
    ),
    (
        "old versions for watches and continued lists",
        "tests/api/desired.rs: changes_of_others_cost_a_node_no_list",
    ),
    ("old versions for watches and continued lists", "tests/attacks.rs: watch_that_is_not_read_keeps_little"),
    ("events", "tests/limits.rs: full_hub_lists_in_pages_and_deletes_the_oldest_events"),
    ("events", "tests/api/lifecycles.rs: node_fills_its_own_quota_only"),
    (
        "stored for one caller without the admin group",
        "tests/api/lifecycles.rs: node_fills_its_own_quota_only",
    ),
    (
        "stored for one caller without the admin group",
        "core/src/requests/allowance.rs: token_for_a_fleet_has_room_for_its_requests",
    ),
    ("written by such a caller", "tests/api/lifecycles.rs: node_fills_its_own_quota_only"),
    ("written by such a caller", "tests/limits.rs: one_node_has_its_limits"),
    ("entries of the deny list (`kube-system/kedge-denied`)", "tests/limits.rs: objects_have_their_limits"),
    ("certificate requests", "tests/limits.rs: old_certificate_requests_are_deleted"),
    ("certificate requests", "core/src/controllers/certificates.rs: requests_are_removed_when_over"),
    (
        "certificate requests",
        "core/src/controllers/tests/bootstrap_tokens.rs: fleet_joins_by_one_token_without_an_end",
    ),
    (
        "lines in the audit log of one identity without the admin group",
        "tests/api/audit.rs: noise_leaves_an_administrators_line_where_it_is",
    ),
    (
        "lines in the audit log of one identity without the admin group",
        "src/audit/quota.rs: identity_writes_its_quota_and_the_rest_is_counted",
    ),
    (
        "lines of an administrator from one network",
        "tests/api/audit.rs: one_network_of_an_administrator_leaves_the_log_to_others",
    ),
    (
        "lines of an administrator from one network",
        "src/audit/mod.rs: one_administrator_does_not_push_out_another",
    ),
    (
        "lines of an administrator from one network",
        "src/audit/quota.rs: many_networks_leave_a_log_to_others_for_a_day",
    ),
    ("lines of an administrator from one network", "src/audit/quota.rs: callers_keep_no_line_of_the_hub_out"),
    (
        "equal lines in the audit log within a minute",
        "tests/api/audit.rs: noise_leaves_an_administrators_line_where_it_is",
    ),
    (
        "equal lines in the audit log within a minute",
        "src/audit/folds.rs: equal_lines_become_one_with_their_number",
    ),
    (
        "requests without a valid credential or over a limit",
        "tests/api/audit.rs: noise_leaves_an_administrators_line_where_it_is",
    ),
    (
        "requests without a valid credential or over a limit",
        "src/audit/quota.rs: busiest_sources_are_listed_and_all_requests_counted",
    ),
    ("audit log on disk", "tests/api/audit.rs: full_log_pushes_out_its_oldest_file"),
    ("audit log on disk", "src/audit/rotating.rs: log_is_rotated_and_bounded"),
    (
        "answer of a program in a pod (`pods/proxy`)",
        "src/server/calls/program.rs: program_that_answers_nonsense_is_refused",
    ),
    (
        "answer of a program in a pod (`pods/proxy`)",
        "src/server/calls/program.rs: program_that_says_too_little_in_time_is_late",
    ),
    (
        "answer of a program in a pod (`pods/proxy`)",
        "src/server/calls/program.rs: body_that_nobody_reads_stays_with_its_program",
    ),
    (
        "nodes that a request for `metrics.k8s.io` has asked, and that are asked at a time",
        "src/server/usage.rs: request_asks_so_many_nodes_and_those_it_knows_once",
    ),
    (
        "nodes that a request for `metrics.k8s.io` has asked, and that are asked at a time",
        "tests/api/usage.rs: slow_node_holds_up_nobody_and_its_late_answer_counts",
    ),
    ("continue token", "tests/limits.rs: continue_token_expires"),
    ("continue token", "core/src/continue_token.rs: token_is_read_as_written_until_it_expires"),
];

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/limits.md")).unwrap()
}

/// The rows of the table with this title row.
fn rows<'a>(page: &'a str, titles: &str) -> Vec<&'a str> {
    let table = page.lines().skip_while(|line| !line.starts_with(titles));
    table.skip(2).take_while(|line| line.starts_with('|')).collect()
}

/// The row that the document must have for a kind.
fn row(kind: &Kind) -> String {
    let mut parts = Vec::new();
    if kind.status {
        parts.push("status (get patch update)".to_owned());
    }
    parts.extend(kind.subresources().iter().map(|part| format!("{} ({})", part.name, part.verbs.join(" "))));
    let short = if kind.short_names.is_empty() {
        String::new()
    } else {
        format!(" ({})", kind.short_names.join(" "))
    };
    let scope = if kind.namespaced { "namespace" } else { "cluster" };
    let selectors: Vec<&str> = kind.selectable.iter().map(|selectable| selectable.label).collect();
    format!(
        "| {}{short} | {} | {scope} | {} | {} | {} |",
        kind.plural,
        kind.api_version(),
        kind.verbs.join(" "),
        parts.join(", "),
        selectors.join(" "),
    )
    .replace("  ", " ")
}

#[test]
fn limits_page_lists_exactly_the_served_kinds() {
    let page = page();
    let listed = rows(&page, "| resource |");
    let served: Vec<String> = served().map(row).collect();
    assert_eq!(listed, served, "the table of docs/reference/limits.md must read:\n{}\n", served.join("\n"));
}

#[test]
fn each_limit_of_the_page_has_its_test() {
    let page = page();
    let listed: Vec<&str> =
        rows(&page, "| what | limit |").iter().map(|row| row.split(" | ").next().unwrap()).collect();
    let mut named: Vec<String> = PROOFS.iter().map(|(row, _)| format!("| {row}")).collect();
    named.dedup();
    assert_eq!(listed, named, "the table of docs/reference/limits.md and the list of tests differ");
    for (row, proof) in PROOFS {
        let (file, test) = proof.split_once(": ").unwrap();
        let text = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(text.contains(&format!("fn {test}(")), "{row}: there is no {proof}");
    }
}

/// A body of exactly this length.
fn padded(value: &Value, bytes: usize) -> Vec<u8> {
    let mut body = value.to_string().into_bytes();
    body.resize(bytes, b' ');
    body
}

fn send(client: &mut Client, method: &str, path: &str, media: &str, body: &[u8]) -> Reply {
    client.send(method, path, &[("content-type", media), ("prefer", "return=minimal")], body)
}

/// Sends a creation; returns the status.
fn made(client: &mut Client, path: &str, value: &Value) -> u16 {
    send(client, "POST", path, "application/json", value.to_string().as_bytes()).code
}

#[test]
fn objects_have_their_limits() {
    const KIB: usize = 1024;
    let hub = Hub::new();
    let mut admin = hub.admin();
    let mut number = 0;
    // the most that is allowed, and one more
    let mut check = |path: &str, object: &dyn Fn(usize) -> Value, most: usize, code: u16| {
        for (amount, expect) in [(most, 201), (most + 1, code)] {
            number += 1;
            let mut value = object(amount);
            if value["metadata"]["name"].is_null() {
                value["metadata"]["name"] = format!("o{number}").into();
            }
            assert_eq!(made(&mut admin, path, &value), expect, "{path} {number}: {amount}");
        }
    };
    let data = |bytes| json!({"data": {"k": "x".repeat(bytes)}});
    check(MAPS, &data, KIB * KIB, 422);
    let secret = |bytes| json!({"stringData": {"k": "x".repeat(bytes)}});
    check(SECRETS, &secret, KIB * KIB, 422);
    let annotated = |bytes| json!({"metadata": {"annotations": {"a": "x".repeat(bytes - 1)}}});
    check(MAPS, &annotated, 256 * KIB, 422);
    let finalizers = |count| {
        let names: Vec<String> = (0..count).map(|number| format!("example.com/f{number}")).collect();
        json!({"metadata": {"finalizers": names}})
    };
    check(MAPS, &finalizers, 1000, 422);
    let owners = |count| {
        let owner =
            |number| json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": format!("u{number}")});
        json!({"metadata": {"ownerReferences": (0..count).map(owner).collect::<Vec<Value>>()}})
    };
    check(MAPS, &owners, 1000, 422);
    let revision = |data: Value| json!({"revision": 1, "data": data});
    // with the levels of the object itself and its data
    let nested = |levels: usize| revision((3..=levels).fold(json!({}), |inner, _| json!({ "a": inner })));
    check(REVISIONS, &nested, 127, 400);
    let keyed = |bytes: usize| revision(json!({"k".repeat(bytes): 1}));
    check(REVISIONS, &keyed, 64 * KIB, 400);
    let pod = |bytes: usize| {
        let container = json!({"name": "c", "image": "i", "args": ["x".repeat(bytes)]});
        json!({"metadata": {"name": "large"}, "spec": {"containers": [container]}})
    };
    assert_eq!(made(&mut admin, PODS, &pod(1536 * KIB)), 413, "an object of more than 1.5 MiB");
    assert_eq!(made(&mut admin, PODS, &pod(1530 * KIB)), 201);
    let denied = |bytes: usize| {
        let entry = format!("user.{}", "a".repeat(100));
        json!({"metadata": {"name": "kedge-denied", "namespace": "kube-system"}, "data": {entry: "x".repeat(bytes)}})
    };
    assert_eq!(made(&mut admin, "/api/v1/namespaces/kube-system/configmaps", &denied(KIB * KIB + 1)), 422);
    let body = |bytes| padded(&json!({"metadata": {"name": "padded"}}), bytes);
    for (bytes, expect) in [(3 * KIB * KIB + 1, 413), (3 * KIB * KIB, 201)] {
        // after a body that is too large the connection ends with the refusal
        let code = send(&mut admin.another(), "POST", MAPS, "application/json", &body(bytes)).code;
        assert_eq!(code, expect);
    }
}

#[test]
fn patches_have_their_limits() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    admin.post(MAPS, &json!({"metadata": {"name": "m"}})).expect(201);
    let map = format!("{MAPS}/m");
    let mut patch = |media: &str, path: &str, body: &str, code: u16, why: &str| {
        let reply = send(&mut admin, "PATCH", path, media, body.as_bytes());
        let text = String::from_utf8(reply.body.clone()).unwrap();
        assert!(reply.code == code && text.contains(why), "{code} {why}: {} {text:.400}", reply.code);
    };
    let json_patch = "application/json-patch+json";
    let operations =
        |count| json!(vec![json!({"op": "test", "path": "/kind", "value": "ConfigMap"}); count]).to_string();
    patch(json_patch, &map, &operations(10_000), 204, "");
    patch(json_patch, &map, &operations(10_001), 413, "10000");
    // 1.1 MiB, copied three times
    let text = "x".repeat(1_100_000);
    let mut copies = vec![json!({"op": "add", "path": "/data", "value": {"k": text}})];
    copies.extend(
        ["a", "b", "c"].map(|to| json!({"op": "copy", "from": "/data/k", "path": format!("/data/{to}")})),
    );
    patch(json_patch, &map, &json!(copies).to_string(), 422, "copy operations");
    let strategic = "application/strategic-merge-patch+json";
    let variables: Vec<Value> = (0..2000).map(|number| json!({"name": format!("e{number}")})).collect();
    let mut containers = vec![json!({"name": "c", "image": "i", "env": variables})];
    containers.extend(vec![json!({"name": "c", "env": [{"name": "e1"}]}); 100]);
    let apply = "application/apply-patch+yaml";
    let yaml = |path: &str, manager: &str| format!("{path}?fieldManager={manager}&force=true");
    let applied = |rest: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\n{rest}");
    patch(apply, &yaml(&map, &"m".repeat(128)), &applied("data: {a: b}\n"), 204, "");
    patch(apply, &yaml(&map, &"m".repeat(129)), &applied("data: {a: b}\n"), 422, "128");
    let deep = format!("data: {}{}\n", "[".repeat(65), "]".repeat(65));
    patch(apply, &yaml(&map, "y"), &applied(&deep), 400, "levels deep");
    let marks = format!("data: [{}]\n", "a,".repeat(100_000));
    patch(apply, &yaml(&map, "y"), &applied(&marks), 400, "punctuation");
    let repeated = format!("data: {{a: &x {}, b: [{}]}}\n", "y".repeat(20_000), "*x,".repeat(60));
    patch(apply, &yaml(&map, "y"), &applied(&repeated), 400, "repeat too much");
    let long = format!("data: {{a: {}}}\n", "y".repeat(1536 * 1024));
    patch(apply, &yaml(&map, "y"), &applied(&long), 400, "");
    let pod = |cpu: &str| {
        json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"cpu": cpu}}}]}})
    };
    assert_eq!(made(&mut hub.admin(), PODS, &pod("2e29")), 400, "a quantity beyond 1.7e29");
    assert_eq!(made(&mut hub.admin(), PODS, &pod("1e29")), 201);
    let body = json!({"spec": {"containers": containers}}).to_string();
    patch(strategic, &format!("{PODS}/p"), &body, 422, "repeated merge keys");
}

/// A sample of `/metrics`.
fn pool(admin: &mut Client, name: &str) -> u64 {
    let text = String::from_utf8(admin.get("/metrics").body).unwrap();
    let prefix = format!("kedge_hub_pool_used{{pool=\"{name}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().parse().unwrap()
}

/// Another connection with a request of this length, the body of which has begun.
fn begun(node: &Client, length: usize, body: &[u8]) -> Client {
    let mut client = node.another();
    let head = format!(
        "POST {REVIEWS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    client.write_raw(head.as_bytes()).unwrap();
    client.write_raw(body).unwrap();
    client
}

#[test]
fn one_node_has_its_limits() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("a"));
    node.post("/api/v1/nodes", &json!({"metadata": {"name": "a"}})).expect(201);
    let mut wait_for = |bytes: u64| {
        while pool(&mut admin, "body_bytes") < bytes {
            std::thread::yield_now();
        }
    };
    // eight bodies at a time
    let mut open = Vec::new();
    for count in 1..=8 {
        open.push(begun(&node, 5000, b"{"));
        wait_for(count);
    }
    assert_eq!(begun(&node, 5000, &[b' '; 5000]).read_reply().unwrap().code, 429);
    // and a small one
    node.post(REVIEWS, &json!({})).expect(201);
    drop(open);
    // 8 MiB of them: after two of almost 3 MiB another one is too much
    let piece = vec![b' '; 2_900_000];
    let open: Vec<Client> = (0..2).map(|_| begun(&node, piece.len() + 1, &piece)).collect();
    wait_for(2 * piece.len() as u64);
    assert_eq!(begun(&node, piece.len() + 1, &piece).read_reply().unwrap().code, 429);
    drop(open);
    let own = "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Da";
    let watches: Vec<_> = (0..32).map(|_| node.watch(own)).collect();
    assert_eq!(node.try_watch(own).err(), Some(429));
    drop(watches);
    let lease =
        |bytes: usize| json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "x".repeat(bytes)}});
    assert_eq!(made(&mut node, LEASES, &lease(9000)), 413);
    assert_eq!(made(&mut node, LEASES, &lease(7000)), 201);
    // a burst of 1000 requests, or of bodies that cost as much
    let dear = padded(&json!({}), 3 * 1024 * 1024);
    for _ in 0..2 {
        assert_eq!(send(&mut node.another(), "POST", REVIEWS, "application/json", &dear).code, 201);
    }
    let refused = node.get("/version");
    assert_eq!((refused.code, refused.header("retry-after").len()), (429, 1));
    // its renewals are accepted all the same, ten at once
    let mut renew = |second: usize| {
        let renewal = json!({"spec": {"renewTime": format!("2026-11-22T17:00:{second:02}.000000Z")}});
        node.patch("merge", &format!("{LEASES}/a"), &renewal).code
    };
    assert_eq!([0; 10].map(|_| renew(1)), [200; 10]);
    while renew(2) != 429 {}
    hub.node("b").get("/version").expect(200);
}

/// The token contains the time when it was made; one that is forged to be older is refused as the real one
/// will be then.
#[test]
fn continue_token_expires() {
    const LIFE_SECS: i64 = 300;
    let hub = Hub::new();
    let mut admin = hub.admin();
    let page = |token: &str| format!("/api/v1/namespaces?limit=1&continue={token}");
    let first = admin.get(&page("")).expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let aged = |secs: i64| {
        let text = STANDARD.decode(token).unwrap();
        let mut token: Value = serde_json::from_slice(&text).unwrap();
        token["at"] = (token["at"].as_i64().unwrap() - secs).into();
        STANDARD.encode(token.to_string())
    };
    admin.get(&page(&aged(LIFE_SECS / 2))).expect(200);
    let expired = admin.get(&page(&aged(LIFE_SECS + 1))).expect(410);
    let rest = expired["metadata"]["continue"].as_str().unwrap();
    let second = admin.get(&page(rest)).expect(200);
    assert_eq!(second["items"].as_array().map(Vec::len), Some(1));
    assert_ne!(second["items"][0]["metadata"]["name"], first["items"][0]["metadata"]["name"]);
}

/// As many events as a hub keeps, and some more, as an older one may have left them.
#[test]
fn full_hub_lists_in_pages_and_deletes_the_oldest_events() {
    const EXCESS: usize = 10;
    let mut hub = Hub::new();
    let event = json!({"metadata": {"name": "e", "namespace": "default"}, "reason": "R", "type": "Normal", "message": "m",
        "involvedObject": {"kind": "ConfigMap", "name": "m", "namespace": "default"}, "source": {"component": "test"}});
    let template = hub.admin().post(EVENTS, &event).expect(201);
    hub.stop("TERM");
    {
        let mut store = rusqlite::Connection::open(hub.data_dir.join("state.db")).unwrap();
        let revision: i64 = template["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let transaction = store.transaction().unwrap();
        let uid = template["metadata"]["uid"].as_str().unwrap();
        let template = template.to_string();
        for number in 1..20_000 + EXCESS {
            let name = format!("e{number:05}");
            let event = template.replace("\"name\":\"e\"", &format!("\"name\":\"{name}\""));
            let event = event.replace(uid, &format!("{number:08}-0000-4000-8000-000000000000"));
            let sum = checksum(["events", "default", &name], revision, event.as_bytes());
            let row = "INSERT INTO objects (resource, namespace, name, revision, json, sum) VALUES ('events', 'default', ?1, ?2, ?3, ?4)";
            transaction.execute(row, (name, revision, event.into_bytes(), sum)).unwrap();
        }
        transaction.commit().unwrap();
    }
    hub.restart("TERM");
    let mut admin = hub.admin();
    let page = String::from_utf8(admin.get(&format!("{EVENTS}?limit=20000")).body).unwrap();
    assert_eq!(page.matches("\"involvedObject\"").count(), 10_000);
    assert!(page.contains("\"continue\":\""));
    let left = || {
        let text = String::from_utf8(hub.admin().get("/metrics").body).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("apiserver_storage_objects{resource=\"events\"} "));
        line.unwrap().parse::<usize>().unwrap()
    };
    while left() > 19_000 {
        std::thread::yield_now();
    }
}

/// Pending for a day, and answered for an hour: older ones are deleted, the others stay.
#[test]
fn old_certificate_requests_are_deleted() {
    const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let mut hub = Hub::new();
    let mut admin = hub.admin();
    for name in ["pending", "denied", "older", "answered"] {
        // of a signer that is not the hub's, so that nothing else happens to it
        let key = rcgen::KeyPair::generate().unwrap();
        let asked = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
        let spec = json!({"request": STANDARD.encode(asked), "signerName": "example.com/own", "usages": ["client auth"]});
        admin.post(REQUESTS, &json!({"metadata": {"name": name}, "spec": spec})).expect(201);
    }
    for name in ["denied", "answered"] {
        let condition = json!({"type": "Denied", "status": "True", "reason": "R", "message": "m"});
        let denial = json!({"status": {"conditions": [condition]}});
        admin.patch("merge", &format!("{REQUESTS}/{name}/approval"), &denial).expect(200);
    }
    let stored = |admin: &mut Client, name: &str| admin.get(&format!("{REQUESTS}/{name}")).expect(200);
    let ages = [("pending", 23 * 60), ("older", 24 * 60 + 1), ("denied", 59), ("answered", 61)];
    let texts = ages.map(|(name, minutes)| {
        let mut object = stored(&mut admin, name);
        let then = time::OffsetDateTime::now_utc() - time::Duration::minutes(minutes);
        let then = Value::from(kedge_hub_core::value::rfc3339(then));
        object["metadata"]["creationTimestamp"] = then.clone();
        for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastTransitionTime"] = then.clone();
        }
        (name, object.to_string())
    });
    hub.stop("TERM");
    let store = rusqlite::Connection::open(hub.data_dir.join("state.db")).unwrap();
    for (name, text) in texts {
        let resource = "certificatesigningrequests.certificates.k8s.io";
        let revision: i64 = store
            .query_row(
                "SELECT revision FROM objects WHERE resource = ?1 AND name = ?2",
                [resource, name],
                |row| row.get(0),
            )
            .unwrap();
        let sum = checksum([resource, "", name], revision, text.as_bytes());
        let row = "UPDATE objects SET json = ?3, sum = ?4 WHERE resource = ?1 AND name = ?2";
        assert_eq!(store.execute(row, (resource, name, text.into_bytes(), sum)).unwrap(), 1, "{name}");
    }
    drop(store);
    hub.restart("TERM");
    let mut admin = hub.admin();
    for name in ["older", "answered"] {
        while admin.get(&format!("{REQUESTS}/{name}")).code != 404 {
            std::thread::yield_now();
        }
    }
    // judged in the same pass
    for name in ["pending", "denied"] {
        stored(&mut admin, name);
    }
}

/// An administrator changes a Lease that its node renews all the time.
#[test]
fn change_of_a_lease_is_made_between_its_renewals() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("a"));
    node.post("/api/v1/nodes", &json!({"metadata": {"name": "a"}})).expect(201);
    node.post(LEASES, &json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "a"}})).expect(201);
    let lease = format!("{LEASES}/a");
    let (done, begun) = (std::sync::atomic::AtomicBool::new(false), std::sync::Barrier::new(4));
    let codes = std::thread::scope(|scope| {
        // administrators, because they have no rate limit that would end the flood
        let floods = [0, 1, 2].map(|flood| {
            let (mut client, lease, done, begun) = (admin.another(), &lease, &done, &begun);
            scope.spawn(move || {
                begun.wait();
                let mut number = 0;
                let mut codes = std::collections::BTreeSet::new();
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    number += 1;
                    let time = format!("2026-11-22T17:{flood:02}:00.{number:06}Z");
                    codes.insert(client.patch("merge", lease, &json!({"spec": {"renewTime": time}})).code);
                }
                codes
            })
        });
        begun.wait();
        for number in 0..10 {
            let labels = json!({"metadata": {"labels": {"l": number.to_string()}}});
            let reply = admin.patch("merge", &lease, &labels);
            if reply.code != 200 {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            reply.expect(200);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        floods.map(|flood| flood.join().unwrap())
    });
    // a renewal that has to wait for longer than a second is refused
    assert!(codes.iter().flatten().all(|code| matches!(code, 200 | 429)), "{codes:?}");
    assert_eq!(admin.get(&lease).expect(200)["metadata"]["labels"]["l"], "9");
}
