//! `pods/NAME/proxy` through kubectl, with a real hub, a real agent and programs in real pods.

use crate::network::SHIPPED;
use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated_network, processes};
use kedge_rig::programs::kubectl_of;
use kedge_rig::scratch::wait_until;
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Answers with the request line and the body.
const ECHO: &str = r#"#!/bin/sh
read -r line
while read -r field && [ "${#field}" -gt 1 ]; do
    case $field in content-length:*) length=${field#*: } ;; esac
done
printf 'HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: a\r\n\r\n%s|' "${line%?}"
[ -z "$length" ] || head -c "${length%?}"
"#;
/// Never ends. A flood before the request would be refused, so it reads that first. One that does not wait
/// for the request is refused.
const FLOOD: &str = r#"#!/bin/sh
while read -r field && [ "${#field}" -gt 1 ]; do :; done
printf 'HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n'
exec cat /dev/zero
"#;
/// Size of a file that is larger than all buffers on its way.
const LARGE_BYTES: usize = 8 << 20;

fn pod(name: &str, host_network: bool, script: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": NODE, "hostNetwork": host_network, "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "sleeps", "image": "web:1", "command": ["/bin/sleep", "1000"]},
            {"name": "serves", "image": "web:1", "command": ["/bin/sh", "-c", script],
                "ports": [{"containerPort": 8080}]}]}})
    .to_string()
}

/// A process that ends with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `kubectl proxy` of a version, and its port.
fn kubectl_proxy(setup: &Setup, version: &str) -> (Running, u16) {
    let mut command = Command::new(kubectl_of(version).unwrap());
    command.arg("--kubeconfig").arg(setup.cluster.kubectl().kubeconfig()).args(["proxy", "--port=0"]);
    let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().rsplit_once(':').unwrap().1.parse().unwrap();
    (running, port)
}

/// The whole answer to a request.
fn answered(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn kubectl_reaches_programs_in_pods() {
    isolated_network("pod_proxy::kubectl_reaches_programs_in_pods", || {
        // pods in the machine's network have the machine's own address
        let link = "ip link add uplink type veth peer name far && ip addr add 198.51.100.7/24 dev uplink && \
            ip link set uplink up && ip link set far up && ip route add default via 198.51.100.1";
        assert!(Command::new("sh").args(["-c", link]).status().unwrap().success());
        let mut setup = Setup::before_the_agent();
        fs::create_dir_all("/etc/cni/net.d").unwrap();
        let list = SHIPPED.replace("/run/kedge/addresses", "/etc/cni/addresses");
        fs::write("/etc/cni/net.d/99-kedge.conflist", list).unwrap();
        setup.await_pods();
        let kubectl = setup.cluster.kubectl();
        let serves = |port: u16| {
            format!(
                "cat > /echo <<'end'\n{ECHO}end\ncat > /flood <<'end'\n{FLOOD}end\nchmod +x /echo /flood; mkdir -p /www; echo index > /www/index.html; \
                head -c {LARGE_BYTES} /dev/zero > /www/large; cd /www; \
                /bin/busybox nc -ll -s 127.0.0.1 -p {} -e /echo & \
                /bin/busybox nc -ll -p {} -e /echo & \
                /bin/busybox nc -ll -p {} -e /flood & exec /bin/busybox httpd -f -p {port} -h /www",
                port + 2,
                port + 1,
                port + 3
            )
        };
        kubectl.feed(&["apply", "-f", "-"], &pod("web", false, &serves(8080))).unwrap();
        kubectl.feed(&["apply", "-f", "-"], &pod("host", true, &serves(8180))).unwrap();
        setup.shows("the pods Running with addresses", || {
            let shown = "jsonpath={range .items[*]}{.status.phase} {.status.podIP};{end}";
            let shown = kubectl.run(&["get", "pods", "-o", shown]).unwrap_or_default();
            shown.starts_with("Running 198.51.100.7;Running 1")
        });
        let pods = "/api/v1/namespaces/default/pods";
        let raw = |below: &str| kubectl.run(&["get", "--raw", &format!("{pods}/{below}")]);
        setup.shows("the servers", || raw("web:8081/proxy/").is_ok() && raw("host:8181/proxy/").is_ok());

        assert_eq!(raw("web/proxy/index.html").unwrap(), "index\n");
        // through a redirect
        assert_eq!(raw("http:web:8080/proxy").unwrap(), "index\n");
        let said = raw("web:8081/proxy/a%20b/?d=e").unwrap();
        assert!(said.starts_with("GET /a%20b/?d=e") && said.ends_with(" HTTP/1.1|"), "{said}");
        assert_eq!(raw("host:8180/proxy/").unwrap(), "index\n");
        assert_eq!(raw("web/proxy/large").unwrap().len(), LARGE_BYTES);
        let path = format!("{pods}/web:8081/proxy/x");
        let said = kubectl.feed(&["create", "--raw", &path, "-f", "-"], "{}").unwrap();
        assert!(said.starts_with("POST /x") && said.ends_with(" HTTP/1.1|{}"), "{said}");
        let fails = |below: &str, expect: &str| {
            let error = raw(below).unwrap_err().to_string();
            assert!(error.contains(expect), "{below}: {error}");
        };
        // the loopback of the pod and that of the machine are separate: neither shows the other's programs
        for below in ["web:8082/proxy/", "web:8180/proxy/", "host:8182/proxy/", "host:8080/proxy/"] {
            fails(below, "error trying to reach service: dial tcp ");
            fails(below, "connection refused");
        }
        fails("web/proxy/none", "could not find the requested resource");
        fails("https:web:8080/proxy/", "error trying to reach service: ");
        fails("nobody/proxy/", "pods \"nobody\" not found");

        for version in ["1.20", "1.32", "1.36"] {
            let (_proxy, port) = kubectl_proxy(&setup, version);
            let head = |method: &str, below: &str, more: &str| {
                format!(
                    "{method} {pods}/{below} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n"
                )
            };
            let answer =
                answered(port, &(head("PUT", "web:8081/proxy/a%2Fb/?c", "Content-Length: 5\r\n") + "hello"));
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{version}: {answer}");
            assert!(answer.contains("PUT /a%2Fb/?c HTTP/1.1|"), "{version}: {answer}");
            assert!(answer.contains("hello"), "{version}: {answer}");
            assert!(answer.contains("Content-Security-Policy: sandbox\r\n"), "{version}: {answer}");
            assert!(!answer.contains("ookie"), "{version}: {answer}");
            let upgrade = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YQ==\r\n";
            let upgrade = head("GET", "web:8081/proxy/y", upgrade).replace("close", "Upgrade");
            let answer = answered(port, &upgrade);
            assert!(answer.starts_with("HTTP/1.1 400 "), "{version}: {answer}");
        }
        wait_until("the sessions to end", LIMIT, || processes("session").is_empty());

        // a client that does not read, and the end of its pod
        let (_proxy, port) = kubectl_proxy(&setup, "1.36");
        let mut waiting = TcpStream::connect(("127.0.0.1", port)).unwrap();
        waiting.set_read_timeout(Some(LIMIT)).unwrap();
        let request = format!("GET {pods}/web:8083/proxy/ HTTP/1.1\r\nHost: localhost\r\n\r\n");
        waiting.write_all(request.as_bytes()).unwrap();
        wait_until("the session", LIMIT, || processes("session").len() == 1);
        waiting.read_exact(&mut [0; 1000]).unwrap();
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
        wait_until("the session to end with the pod", LIMIT, || processes("session").is_empty());
        // bytes that were on their way, and then an end
        let rest = std::io::copy(&mut waiting, &mut std::io::sink());
        assert!(rest.is_ok_and(|bytes| bytes < 1 << 30), "it breaks off");
    });
}
