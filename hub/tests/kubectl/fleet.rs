//! The lines that the pages of the fleet show: kubectl prints the same numbers. Also the way to the pages by
//! `kubectl proxy`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::json;

use crate::programs::{Kubectl, NODES, with_newest_kubectl, with_patient_hubs};
use crate::server::{Client, Hub};

fn page(client: &mut Client, path: &str) -> String {
    let reply = client.get(path);
    assert_eq!(reply.code, 200, "{path}");
    String::from_utf8(reply.body).unwrap()
}

/// The commands of a page.
fn commands(text: &str) -> Vec<String> {
    let lines = text.split("<code class=k>").skip(1).map(|rest| rest.split("</code>").next().unwrap());
    let plain = |line: &str| {
        let quotes = line.replace("&quot;", "\"").replace("&#39;", "'");
        quotes.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    };
    lines.map(plain).collect()
}

fn fleet(client: &mut Client) {
    let all = [
        ("edge-1", "True", "passing", "v1.36.0+kedge.0.4"),
        ("edge-2", "True", "failed", "v1.36.0+kedge.0.4"),
        ("edge-3", "False", "failed", "v1.36.0+kedge.0.10"),
    ];
    for (name, ready, reason, agent) in all {
        client
            .post(NODES, &json!({"metadata": {"name": name, "labels": {"kedge.dev/watchdog": "active"}}}))
            .expect(201);
        let config = if reason == "passing" { "True" } else { "False" };
        let reason = format!("{reason} (UID: {name})");
        let conditions = json!([{"type": "Ready", "status": ready, "reason": "R"},
            {"type": "ConfigOK", "status": config, "reason": reason},
            {"type": "DiskPressure", "status": config}]);
        let info = json!({"kubeletVersion": agent, "osImage": "Kedge 1.4 (it's <new>)"});
        let status = json!({"status": {"conditions": conditions, "nodeInfo": info}});
        client.patch("merge", &format!("{NODES}/{name}/status"), &status).expect(200);
    }
}

/// Every line that counts, and every line that lists, against the page that shows it.
#[test]
fn kubectl_gives_the_numbers_of_the_pages() {
    with_patient_hubs(|hub, kubectl| {
        let mut admin = hub.admin();
        fleet(&mut admin);
        let text = page(&mut admin, "/fleet?still");
        let mut compared = 0;
        for line in commands(&text).iter().filter(|line| line.starts_with("kubectl ")) {
            let outcome = kubectl.shell(line);
            // `grep` that finds nothing ends with 1
            assert!(matches!(outcome.code, Some(0 | 1)), "{line}: {outcome:?}");
            // that line counts the good conditions, too
            if !line.contains("uniq -c") || line.contains("@.status==") || line.contains("\"Ready\"") {
                continue;
            }
            for row in outcome.out.lines() {
                let (count, value) = row.trim().split_once(' ').unwrap();
                let value = value.replace('\'', "&#39;").replace('<', "&lt;").replace('>', "&gt;");
                let shown = text.split(&format!("<bdi>{value}</bdi><td class=n><a href=\"")).nth(1);
                let shown = shown.map(|rest| rest.split_once('>').unwrap().1.split('<').next().unwrap());
                // conditions in their wanted state are left out
                assert!(
                    shown == Some(count) || (shown.is_none() && value.starts_with("True: ")),
                    "{line}: {row}"
                );
                compared += usize::from(shown.is_some());
            }
        }
        assert_eq!(compared, 5, "{:#?}", commands(&text));
        for filter in [
            "state=ready",
            "config=False%3A%20failed",
            "agent=v1.36.0%2Bkedge.0.4",
            "trouble=DiskPressure",
            "watchdog=active",
            "",
            "os=Kedge%201.4%20(it%27s%20%3Cnew%3E)",
        ] {
            let text = page(&mut admin, &format!("/fleet/nodes?{filter}"));
            for line in commands(&text) {
                let outcome = kubectl.shell(&line);
                for name in ["edge-1", "edge-2", "edge-3"] {
                    assert_eq!(outcome.out.contains(name), text.contains(name), "{line}: {outcome:?}");
                }
            }
        }
    });
}

impl Kubectl {
    /// The first page through `kubectl proxy`, and the requests that the proxy got.
    fn proxied(&self, path: &str, flags: &str) -> String {
        let mut proxy = self.process(&format!("proxy --port=0 {flags}"));
        let mut proxy = proxy.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let _ = proxy.kill();
        let _ = proxy.wait();
        answer
    }
}

#[test]
fn page_is_reached_by_kubectl_proxy() {
    with_newest_kubectl(|hub: &Hub, kubectl| {
        fleet(&mut hub.admin());
        for (path, flags) in [("/fleet", ""), ("/k8s/fleet", "--api-prefix=/k8s/")] {
            let answer = kubectl.proxied(path, flags);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(answer.contains("href=\"fleet/nodes?state=ready\">2</a>"), "{answer}");
        }
    });
}
