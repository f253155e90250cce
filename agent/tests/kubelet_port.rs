//! The kubelet's API on a port: real TLS to a real agent, whose API server is a script that decides every
//! caller's rights.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod net_server;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kedge::any_server::AnyServer;
use kedge_rig::scratch::wait_until;
use net_server::*;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NODE: &str = "edge-1";
const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const RIGHTS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const PATIENCE: Duration = Duration::from_secs(90);

/// Knows the token "good" as user scraper, and lets him see metrics; a caller with a node's certificate may
/// also see its health.
fn script(heard: &Heard) -> Reply {
    let (path, query) = heard.path.split_once('?').unwrap_or((&heard.path, ""));
    let body: Value = serde_json::from_str(&heard.body).unwrap_or_default();
    match (heard.method.as_str(), path) {
        ("POST", TOKENS) => {
            let user = json!({"username": "scraper", "groups": ["system:authenticated"]});
            let is_known = body["spec"]["token"] == "good";
            let status = if is_known { json!({"authenticated": true, "user": user}) } else { json!({}) };
            Reply::Answer(201, json!({"status": status}).to_string())
        }
        ("POST", RIGHTS) => {
            let (spec, asked) = (&body["spec"], &body["spec"]["resourceAttributes"]);
            let is_right = asked["resource"] == "nodes" && asked["name"] == NODE && asked["verb"] == "get";
            let subresources: &[&str] = match spec["user"].as_str() {
                Some("scraper") => &["metrics"],
                Some("system:node:edge-1") => &["metrics", "healthz"],
                _ => &[],
            };
            let is_allowed = is_right && subresources.contains(&asked["subresource"].as_str().unwrap());
            Reply::Answer(201, json!({"status": {"allowed": is_allowed}}).to_string())
        }
        ("GET", "/version") => Reply::ok(r#"{"gitVersion":"v1.36.0"}"#),
        ("GET", _) if query.contains("watch=true") => Reply::Chunks(Box::new(|body| body.wait_for_end())),
        ("GET", "/api/v1/nodes") => {
            let node = json!({"metadata": {"name": NODE, "uid": "u", "resourceVersion": "60"}});
            let metadata = json!({"resourceVersion": "100"});
            Reply::ok(
                &json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": [node]})
                    .to_string(),
            )
        }
        ("PATCH" | "POST", _) => Reply::ok("{}"),
        _ => Reply::status(404, "NotFound", "not found"),
    }
}

struct Setup {
    // in this order: fields are dropped from first to last
    child: Option<Child>,
    authority: Arc<Authority>,
    server: Server,
    folder: Scratch,
    port: SocketAddr,
}

impl Setup {
    fn new() -> Self {
        Self::with("", |_| script)
    }

    /// A node with these fields of the configuration, and this API server.
    fn with<S: Fn(&Heard) -> Reply + Send + Sync + 'static>(
        fields: &str,
        script: impl FnOnce(Arc<Authority>) -> S,
    ) -> Self {
        let authority = Arc::new(Authority::new("ca"));
        let server = Server::start(&authority, script(authority.clone()));
        let Bench { folder, .. } = Bench::new(&authority, server.address);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        folder.write("clients.pem", &authority.pem);
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: 0\naddress: {}\nport: {}\n\
             authentication: {{x509: {{clientCAFile: {}}}}}\n{fields}",
            port.ip(),
            port.port(),
            folder.join("clients.pem").display()
        );
        folder.write("config.yaml", text);
        let mut setup = Self { child: None, authority, server, folder, port };
        setup.start();
        setup
    }

    fn start(&mut self) {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_kedge"))
            .args(["agent", "--crun", "", "--hostname-override", NODE, "--config-dir", ""])
            .args(["--kubeconfig", &at("kubeconfig"), "--root-dir", &at("state"), "--run-dir", &at("run")])
            .args(["--node-status-update-frequency", "1s", "--config", &at("config.yaml")])
            .env_remove("NOTIFY_SOCKET")
            .stderr(File::options().create(true).append(true).open(at("log")).unwrap())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let me = self.identity();
        wait_until("the port to be served", PATIENCE, || {
            self.ask(Some(&me), "", "GET /healthz").is_ok_and(|(status, _)| status == 200)
        });
    }

    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn identity(&self) -> Identity {
        self.authority.identity(&["somebody"], NOW)
    }

    /// Status and body of the answer.
    fn ask(&self, identity: Option<&Identity>, token: &str, line: &str) -> Result<(u16, String), String> {
        let mut stream = connect(self.port, identity)?;
        let authorization =
            if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        let head = format!("{line} HTTP/1.1\r\nHost: node\r\n{authorization}\r\n");
        let mut answer = Vec::new();
        stream.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
        stream.read_to_end(&mut answer).map_err(|error| error.to_string())?;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or_else(|| head.to_owned())?, body.to_owned()))
    }

    #[track_caller]
    fn check(&self, identity: Option<&Identity>, token: &str, line: &str, status: u16, text: &str) {
        let answer =
            self.ask(identity, token, line).unwrap_or_else(|error| panic!("{line}: {error}\n{}", self.log()));
        assert!(answer.0 == status && answer.1.contains(text), "{line}: {answer:?}\n{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Requests that the API server has heard.
    fn heard(&self, path: &str, text: &str) -> usize {
        let heard = self.server.counts.heard();
        heard.iter().filter(|heard| heard.path.starts_with(path) && heard.body.contains(text)).count()
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

/// The node's certificate is self-signed, and accepted here: these tests check which clients it serves.
fn connect(
    port: SocketAddr,
    identity: Option<&Identity>,
) -> Result<StreamOwned<ClientConnection, TcpStream>, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(Arc::new(default_provider()))));
    let config = match identity {
        Some(identity) => {
            let chain = vec![CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    let socket = TcpStream::connect(port).map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let connection = ClientConnection::new(Arc::new(config), NODE.try_into().unwrap()).unwrap();
    Ok(StreamOwned::new(connection, socket))
}

#[test]
fn caller_is_served_what_the_api_server_allows() {
    let mut setup = Setup::new();
    let known = setup.identity();
    setup.check(Some(&known), "", "GET /healthz", 200, "ok");
    setup.check(Some(&known), "", "GET /metrics", 200, "kedge_");
    let forbidden =
        "Forbidden (user=system:node:edge-1, verb=get, resource=nodes, subresource(s)=[configz proxy])";
    setup.check(Some(&known), "", "GET /configz", 403, forbidden);
    setup.check(Some(&known), "", "POST /exec/n/p/c?command=x", 403, "verb=create");
    setup.check(Some(&known), "", "BREW /healthz", 405, "");
    setup.check(None, "", "GET /healthz", 401, "Unauthorized");
    setup.check(None, "wrong", "GET /healthz", 401, "Unauthorized");
    setup.check(None, "good", "GET /healthz", 403, "user=scraper");
    setup.check(None, "good", "GET /metrics", 200, "kedge_");
    // an answer of the API server is cached for a while
    let reviews = setup.heard(TOKENS, "good") + setup.heard(RIGHTS, "scraper");
    setup.check(None, "good", "GET /metrics", 200, "kedge_");
    assert_eq!(
        (setup.heard(TOKENS, "good"), setup.heard(TOKENS, "good") + setup.heard(RIGHTS, "scraper")),
        (1, reviews)
    );
    // an authority that the node does not know
    let stranger = Authority::new("other").identity(&["somebody"], NOW);
    let refused = setup.ask(Some(&stranger), "good", "GET /metrics");
    assert!(refused.is_err(), "{refused:?}");
    // the Node's status tells the API server which port to dial, and in which protocol
    wait_until("the port in the Node's status", PATIENCE, || {
        let port = format!("\"Port\":{}", setup.port.port());
        setup.heard("/api/v1/nodes/edge-1/status", &port) > 0
    });
    // it may be sent anew if the Node was read meanwhile, but not for ever: this server drops it
    let declared = setup.heard("/api/v1/nodes/edge-1/status", "ExtendWebSocketsToKubelet");
    assert!((1..=2).contains(&declared), "{declared}");
    // an agent that was killed leaves the port to the next
    setup.kill();
    setup.start();
}

#[test]
fn wrong_tokens_cost_the_api_server_little() {
    let setup = Setup::new();
    // each waits a second for its refusal
    let answers: Vec<u16> = std::thread::scope(|scope| {
        let ask = |number: u32| setup.ask(None, &format!("wrong-{number}"), "GET /healthz");
        let asking: Vec<_> = (0..12).map(|number| scope.spawn(move || ask(number))).collect();
        asking.into_iter().map(|one| one.join().unwrap().unwrap().0).collect()
    });
    assert!(answers.iter().all(|status| [401, 429].contains(status)), "{answers:?}");
    for number in 0..12 {
        let (status, _) = setup.ask(None, &format!("more-{number}"), "GET /healthz").unwrap();
        assert_eq!(status, 429);
    }
    assert_eq!(setup.heard(TOKENS, "more-"), 0);
    setup.check(Some(&setup.identity()), "", "GET /healthz", 200, "ok");
}

#[test]
fn thousand_idle_connections_keep_nobody_out() {
    let setup = Setup::new();
    kedge_platform::linux::raise_descriptor_limit().unwrap();
    let idle: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(setup.port).unwrap()).collect();
    let known = setup.identity();
    for _ in 0..3 {
        setup.check(Some(&known), "", "GET /healthz", 200, "ok");
    }
    // all but a few were refused
    let is_open = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let open = idle.iter().filter(is_open).count();
    assert!(open <= 16, "{open} are open");
}

/// Answers for a cluster whose administrator approves each request at once.
fn signing(authority: Arc<Authority>) -> impl Fn(&Heard) -> Reply + Send + Sync + 'static {
    let asked = Mutex::new(None);
    move |heard| {
        let (path, _) = heard.path.split_once('?').unwrap_or((&heard.path, ""));
        match (heard.method.as_str(), path) {
            ("GET", "/api/v1/nodes/edge-1") => {
                let address = json!({"type": "InternalIP", "address": "127.0.0.1"});
                Reply::ok(&json!({"status": {"addresses": [address]}}).to_string())
            }
            ("POST", REQUESTS) => {
                *asked.lock().unwrap() = Some(serde_json::from_str::<Value>(&heard.body).unwrap());
                Reply::Answer(201, "{}".into())
            }
            ("GET", path) if path.starts_with(REQUESTS) => match &*asked.lock().unwrap() {
                Some(asked) if path.ends_with(asked["metadata"]["name"].as_str().unwrap()) => {
                    let request = BASE64_STANDARD.decode(asked["spec"]["request"].as_str().unwrap()).unwrap();
                    let signed = authority.sign(&String::from_utf8(request).unwrap());
                    let status = json!({"certificate": BASE64_STANDARD.encode(signed)});
                    Reply::ok(&json!({"metadata": {}, "status": status}).to_string())
                }
                _ => Reply::status(404, "NotFound", "not found"),
            },
            _ => script(heard),
        }
    }
}

#[test]
fn certificate_is_one_that_the_cluster_signed() {
    let setup = Setup::with("serverTLSBootstrap: true\n", signing);
    let signed = setup.folder.join("state/serving/cluster.pem");
    wait_until("the certificate", PATIENCE, || signed.exists());
    // TLS takes it at its next look
    let verified = || {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(setup.authority.store())
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(setup.port).unwrap();
        while connection.is_handshaking() {
            if connection.complete_io(&mut socket).is_err() {
                return false;
            }
        }
        true
    };
    wait_until("a verified handshake", PATIENCE, verified);
    let asked = setup.server.counts.heard();
    let asked = asked.iter().find(|heard| heard.method == "POST" && heard.path == REQUESTS).unwrap();
    let spec = &serde_json::from_str::<Value>(&asked.body).unwrap()["spec"];
    assert_eq!(spec["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(spec["usages"], json!(["digital signature", "server auth"]));
    assert!(!setup.folder.join("state/serving/requested.pem").exists());
}
