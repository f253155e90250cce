//! The audit log of a real hub: which acts leave a line, in which file, with which content; and that noise
//! does not push out the lines of others.

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::identity::signing_request;
use super::server::Hub;
use super::{JSON, LEASES, MAPS, NODES};

const FILES: [&str; 4] = ["audit.log", "audit-reads.log", "audit-others.log", "audit-refused.log"];
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const PATIENCE: Duration = Duration::from_secs(60);

fn lines(data_dir: &Path, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(data_dir.join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A line in short: `USER [as USER] VERB RESOURCE[/SUBRESOURCE] [NAME] CODE`.
fn shown(line: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &line["objectRef"];
    let subresource = object["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
    let acting = line["impersonatedUser"]["username"].as_str().map(|user| format!(" as {user}"));
    let line = format!(
        "{}{} {} {}{subresource} {} {}",
        word(&line["user"]["username"]),
        acting.unwrap_or_default(),
        word(&line["verb"]),
        word(&object["resource"]),
        word(&object["name"]),
        line["responseStatus"]["code"]
    );
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every kind of act once. Acts that should leave no line are among them.
fn acts(hub: &Hub) {
    let (mut admin, mut node) = (hub.admin(), hub.node("edge"));
    let (status, lease) = (format!("{NODES}/edge/status"), format!("{LEASES}/edge"));
    node.post(NODES, &json!({"metadata": {"name": "edge"}})).expect(201);
    node.post(LEASES, &json!({"metadata": {"name": "edge"}, "spec": {"holderIdentity": "edge"}})).expect(201);
    let renewed = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
    node.patch("merge", &lease, &renewed).expect(200);
    node.patch("merge", &status, &json!({"status": {"phase": "Running"}})).expect(200);
    node.patch("merge", &format!("{NODES}/edge"), &json!({"spec": {"unschedulable": true}})).expect(403);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "edge"}});
    node.post("/api/v1/namespaces/default/bindings", &binding).expect(403);
    node.get(&format!("{SECRETS}/s")).refused(
        403,
        "secrets \"s\" is forbidden: User \"system:node:edge\" cannot get resource \"secrets\" in API group \"\" in the namespace \"default\": no relationship found between node 'edge' and this object",
    );
    node.get(&format!("{NODES}/edge")).expect(200);
    admin.get(MAPS).expect(200);
    admin.post(MAPS, &json!({"metadata": {"name": "m"}, "data": {"content": "word"}})).expect(201);
    admin.post(SECRETS, &json!({"metadata": {"name": "s"}, "stringData": {"content": "word"}})).expect(201);
    admin.get(&format!("{SECRETS}/s")).expect(200);
    admin.get(SECRETS).expect(200);
    drop(admin.watch(&format!("{SECRETS}?watch=true")));
    // an impersonated request has both names, also when it is refused
    let as_bob = [("impersonate-user", "bob"), ("impersonate-group", "system:masters"), JSON];
    admin.send("GET", &format!("{SECRETS}/s"), &as_bob, b"").expect(200);
    admin.send("DELETE", &format!("{NODES}/edge"), &as_bob[..1], b"").expect(403);
    node.send("DELETE", &format!("{NODES}/edge"), &as_bob, b"").expect(403);
    let as_node = [("impersonate-user", "system:node:edge"), ("impersonate-group", "system:nodes")];
    let patch = [as_node[0], as_node[1], ("content-type", "application/merge-patch+json")];
    admin.send("PATCH", &status, &patch, br#"{"status": {"phase": "Pending"}}"#).expect(200);
    admin.delete(&format!("{MAPS}/none")).expect(404);
    admin.send("DELETE", &format!("{SECRETS}?dryRun=All"), &[], b"").expect(200);
    admin.delete(&format!("{NODES}/edge")).expect(200);
    admin.post(REQUESTS, &signing_request("r", "jane", "people", "kube-apiserver-client")).expect(201);
    let approval =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]}});
    admin.patch("merge", &format!("{REQUESTS}/r/approval"), &approval).expect(200);
    let end = Instant::now() + PATIENCE;
    while admin.get(&format!("{REQUESTS}/r")).expect(200)["status"]["certificate"].is_null() {
        assert!(Instant::now() < end, "the request was not signed");
        std::thread::sleep(Duration::from_millis(20));
    }
    hub.anonymous().get(MAPS).expect(401);
    hub.anonymous().get(MAPS).expect(401);
}

#[test]
fn every_kind_of_act_leaves_its_line_in_its_log() {
    let mut hub = Hub::new();
    acts(&hub);
    let copy = hub.data_dir.join("copy");
    assert_eq!(hub.command(&["backup", copy.to_str().unwrap()]).code, Some(0));
    hub.stop("TERM");
    assert_eq!(hub.command(&["restore", copy.to_str().unwrap()]).code, Some(0));
    let found = FILES.map(|file| lines(&hub.data_dir, file).iter().map(shown).collect::<Vec<_>>());
    let copy = copy.display();
    let administration = [
        "kedge-hub:local issue nodes edge 200".to_owned(),
        "admin create configmaps m 201".to_owned(),
        "admin create secrets s 201".to_owned(),
        "admin as bob delete nodes edge 403".to_owned(),
        "admin as system:node:edge patch nodes/status edge 200".to_owned(),
        "admin delete configmaps none 404".to_owned(),
        "admin deletecollection secrets 200".to_owned(),
        "admin delete nodes edge 200".to_owned(),
        "admin create certificatesigningrequests r 201".to_owned(),
        "admin patch certificatesigningrequests/approval r 200".to_owned(),
        format!("kedge-hub:local backup backups {copy} 200"),
        format!("kedge-hub:local restore backups {copy} 200"),
    ];
    let admin = lines(&hub.data_dir, FILES[1])[0]["user"]["username"].as_str().unwrap().to_owned();
    let named = |line: &str| match line.strip_prefix("admin ") {
        Some(rest) => format!("{admin} {rest}"),
        None => line.to_owned(),
    };
    let (signed, by_people): (Vec<&String>, Vec<&String>) =
        found[0].iter().partition(|line| line.starts_with("system:kedge-hub "));
    // the controller may be faster than the answer to the approval
    assert_eq!(signed, ["system:kedge-hub sign certificatesigningrequests 200"]);
    assert_eq!(by_people, administration.each_ref().map(|line| named(line)).iter().collect::<Vec<_>>());
    let reads = ["get secrets s 200", "list secrets 200", "watch secrets 200", "as bob get secrets s 200"];
    assert_eq!(found[1], reads.map(|line| format!("{admin} {line}")));
    assert_eq!(found[2], ["system:node:edge create nodes edge 201"]);
    let refused = [
        "system:node:edge patch nodes edge 403",
        "system:node:edge create pods/binding 403",
        "system:node:edge get secrets s 403",
        "system:node:edge as bob delete nodes edge 403",
        "system:anonymous count 401",
    ];
    assert_eq!(found[3], refused);
    let text: String =
        FILES.iter().map(|file| std::fs::read_to_string(hub.data_dir.join(file)).unwrap()).collect();
    assert!(!text.contains("word"), "the log contains content of objects");
}

#[test]
fn lines_have_what_an_investigation_needs() {
    let mut hub = Hub::new();
    let mut admin = hub.admin();
    let agent = [JSON, ("user-agent", "kubectl/v1.36")];
    let body = json!({"metadata": {"generateName": "x-"}}).to_string();
    let made = admin.send("POST", MAPS, &agent, body.as_bytes());
    let id = made.header("audit-id")[0].to_owned();
    let name = made.expect(201)["metadata"]["name"].as_str().unwrap().to_owned();
    let groups = [JSON, ("impersonate-user", "bob"), ("impersonate-group", "system:masters")];
    let other = json!({"metadata": {"name": "y"}}).to_string();
    admin.send("POST", MAPS, &groups, other.as_bytes()).expect(201);
    let deleted =
        admin.send("DELETE", &format!("{MAPS}?fieldSelector=metadata.name!=kube-root-ca.crt"), &[], b"");
    assert_ne!(deleted.header("audit-id"), [&*id]);
    deleted.expect(200);
    let kubeconfig = hub.command(&["node-kubeconfig", "edge"]).out;
    let asked = json!({"spec": {"audiences": ["vault", "bank"]}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let granted = admin.post(&format!("{accounts}/default/token"), &asked).expect(201);
    let token = granted["status"]["token"].as_str().unwrap();
    hub.stop("TERM");

    let mut lines = lines(&hub.data_dir, "audit.log");
    // another process writes the line of a certificate: it may come before that of a request which was
    // answered earlier
    let is_issue = |line: &Value| line["annotations"]["kedge.dev/serial"].is_string();
    let issued = lines.remove(lines.iter().position(is_issue).expect("the line of a certificate"));
    let [created, impersonated, deleted, requested] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&created["auditID"], &created["objectRef"]["name"]), (&json!(id), &json!(name)));
    assert_eq!(
        (&created["sourceIPs"], &created["userAgent"]),
        (&json!(["127.0.0.1"]), &json!("kubectl/v1.36"))
    );
    assert_eq!(created["user"]["groups"], json!(["system:masters", "system:authenticated"]));
    let credential = &created["user"]["extra"]["authentication.kubernetes.io/credential-id"][0];
    assert!(credential.as_str().unwrap().starts_with("X509SHA256="));
    assert_eq!(created["requestURI"], MAPS);
    let expect = json!({"username": "bob", "groups": ["system:masters", "system:authenticated"]});
    assert_eq!(impersonated["impersonatedUser"], expect);
    let notes = &deleted["annotations"];
    let names: Vec<&str> = notes["kedge.dev/names"].as_str().unwrap().split(',').collect();
    assert_eq!((names, &notes["kedge.dev/count"]), (vec![&*name, "y"], &json!("2")));
    let notes = &issued["annotations"];
    assert!(notes["kedge.dev/serial"].as_str().is_some_and(|serial| serial.len() >= 16), "{issued}");
    assert!(notes["kedge.dev/subject"].as_str().unwrap().contains("CN=system:node:edge"), "{issued}");
    assert!(notes["kedge.dev/not-after"].as_str().unwrap().ends_with('Z') && !kubeconfig.is_empty());
    let notes = &requested["annotations"];
    assert_eq!(
        (&notes["kedge.dev/audiences"], &notes["kedge.dev/not-after"]),
        (&json!("vault,bank"), &granted["status"]["expirationTimestamp"])
    );
    // the id by which the hub's log refers to a refused token
    let claims = token.split('.').nth(1).unwrap();
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    let id = format!("JTI={}", claims["jti"].as_str().unwrap());
    assert_eq!(notes["authentication.kubernetes.io/issued-credential-id"], id);
    assert!(!requested.to_string().contains(token), "the token is in the log");
    assert!(issued["user"]["uid"].as_str().is_some_and(|uid| uid.parse::<u32>().is_ok()), "{issued}");
}

#[test]
fn noise_leaves_an_administrators_line_where_it_is() {
    let mut hub = Hub::new();
    hub.admin().post(MAPS, &json!({"metadata": {"name": "m"}})).expect(201);
    let (mut node, mut anonymous) = (hub.node("noisy"), hub.anonymous());
    let (mut refused, mut unknown) = (0, 0);
    let long = "x".repeat(200);
    for number in 0..200 {
        refused += u64::from(node.delete(&format!("{MAPS}/{long}-{number}")).code == 403);
        unknown += u64::from(anonymous.delete(&format!("{MAPS}/{long}")).code == 401);
    }
    // twenty more sources
    unknown += (1..=20).filter(|number| hub.anonymous().from(*number).get(MAPS).code == 401).count() as u64;
    let mut quiet = hub.node("quiet");
    (0..100).for_each(|_| drop(quiet.delete(&format!("{MAPS}/m")).expect(403)));
    hub.stop("TERM");
    let noise = lines(&hub.data_dir, "audit-refused.log");
    let of = |user: &str| noise.iter().filter(|line| line["user"]["username"] == user).collect::<Vec<_>>();
    let number = |line: &Value, key: &str| {
        line["annotations"][key].as_str().map_or(0, |text| text.parse::<u64>().unwrap())
    };
    let written = of("system:node:noisy").len() as u64;
    let omitted: u64 = noise.iter().map(|line| number(line, "kedge.dev/omitted")).sum();
    assert!(written > 5 && written < 100, "{written} lines of a node within its quota");
    assert_eq!((written + omitted, refused), (200, 200), "every refused request is there or counted");
    // equal requests leave few lines
    let repeats: Vec<u64> =
        of("system:node:quiet").iter().map(|line| number(line, "kedge.dev/repeats")).collect();
    assert_eq!(
        repeats.iter().sum::<u64>() + repeats.iter().filter(|repeats| **repeats == 0).count() as u64,
        100
    );
    // three, and their number in a minute; the test may take longer than one
    let alone = repeats.iter().filter(|repeats| **repeats == 0).count();
    assert!((3..=3 * (repeats.len() - alone + 1)).contains(&alone), "{repeats:?}");
    assert!(repeats.len() < 20, "{repeats:?}");
    let counted: u64 = of("system:anonymous").iter().map(|line| number(line, "kedge.dev/count")).sum();
    assert_eq!((counted, unknown), (220, 220));
    // eight sources and one number for the rest; more if the test takes longer than a minute
    assert!((9..=18).contains(&of("system:anonymous").len()), "{noise:?}");
    let bytes = std::fs::metadata(hub.data_dir.join("audit-refused.log")).unwrap().len();
    assert!(bytes < 32 * 1024, "{bytes}");
    let kept: Vec<String> = lines(&hub.data_dir, "audit.log").iter().map(shown).collect();
    assert!(kept[0].ends_with("create configmaps m 201"), "{kept:?}");
    assert_eq!(kept.len(), 1 + 2, "and two node-kubeconfigs: {kept:?}");
}

/// A program with an administrator's credential reads without end.
#[test]
fn one_network_of_an_administrator_leaves_the_log_to_others() {
    // the bytes of read lines that a network may write at once, and those of a minute beside that
    const QUOTA_BYTES: u64 = 2 << 20;
    const SLACK_BYTES: u64 = 16 << 10;
    let mut hub = Hub::new();
    let mut admin = hub.admin();
    // all lines differ, and each is long
    let long = "x".repeat(200);
    let mut asked = 0;
    let path = |number: usize| format!("{SECRETS}/{long}-{number}?pad={}", long.repeat(8));
    let files = ["audit-reads.log.1", "audit-reads.log"].map(|file| hub.data_dir.join(file));
    let written =
        || -> u64 { files.iter().map(|file| std::fs::metadata(file).map_or(0, |found| found.len())).sum() };
    while written() < QUOTA_BYTES - SLACK_BYTES {
        admin.get(&path(asked)).expect(404);
        asked += 1;
        assert!(asked < 3000, "{} bytes of {asked} lines", written());
    }
    for more in 0..50 {
        admin.get(&path(asked + more)).expect(404);
    }
    // another person, from another network
    admin.from(7).get(&format!("{SECRETS}/other")).expect(404);
    hub.stop("TERM");
    let texts = files.each_ref().map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let lines: Vec<Value> =
        texts.iter().flat_map(|text| text.lines()).map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_others: Vec<_> = lines.iter().filter(|line| line["sourceIPs"] == json!(["127.0.1.7"])).collect();
    assert_eq!(of_others.len(), 1, "{of_others:?}");
    assert!(written() <= QUOTA_BYTES + SLACK_BYTES, "{}", written());
    let omitted = |line: &Value| line["annotations"]["kedge.dev/omitted"].as_str()?.parse::<usize>().ok();
    let omitted: usize = lines.iter().filter_map(omitted).sum();
    let own = lines.iter().filter(|line| line["sourceIPs"] == json!(["127.0.0.1"])).count();
    assert!(omitted > 0, "nothing was left out");
    assert_eq!(own + omitted, asked + 50, "every read is there or counted");
}

#[test]
fn full_log_pushes_out_its_oldest_file() {
    const FILE_BYTES: usize = 8 << 20;
    let mut hub = Hub::new();
    hub.stop("TERM");
    let log = |number: usize| match number {
        0 => hub.data_dir.join("audit.log"),
        number => hub.data_dir.join(format!("audit.log.{number}")),
    };
    let paths: Vec<_> = (0..=5).map(log).collect();
    std::fs::write(&paths[0], "0\n".repeat(FILE_BYTES / 2)).unwrap();
    (1..5).for_each(|number| std::fs::write(&paths[number], format!("{number}\n")).unwrap());
    hub.restart("TERM");
    hub.admin().post(MAPS, &json!({"metadata": {"name": "m"}})).expect(201);
    hub.stop("TERM");
    let current = lines(&hub.data_dir, "audit.log");
    assert_eq!(current.iter().map(|line| &line["verb"]).collect::<Vec<_>>(), ["create"]);
    assert_eq!(std::fs::metadata(&paths[1]).unwrap().len(), FILE_BYTES as u64);
    let kept: Vec<_> = paths[2..].iter().map(|path| std::fs::read_to_string(path).ok()).collect();
    assert_eq!(kept, [Some("1\n".to_owned()), Some("2\n".to_owned()), Some("3\n".to_owned()), None]);
}

#[test]
fn credentials_are_not_given_out_without_a_line() {
    let hub = Hub::new();
    let log = hub.data_dir.join("audit.log");
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    let refused = hub.command(&["node-kubeconfig", "edge"]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""));
    assert!(refused.err.contains("no credentials for node \"edge\" are given out"), "{}", refused.err);
}
