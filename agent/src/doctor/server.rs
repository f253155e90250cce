//! The doctor's checks on the way to the API server, each using the result of the one before: kubeconfig,
//! name, connection, TLS, clock, rights. The first failure ends them: the later ones would only fail for the
//! same reason.

use crate::doctor::finding;
use crate::doctor::finding::{Finding, within};
use crate::errors::chain;
use crate::identity::{certificate, files, in_use};
use crate::net::client::{Api, Client, MERGE_PATCH, Request};
use crate::net::credentials::ApiOptions;
use crate::net::error::NetError;
use crate::net::kubeconfig::Kubeconfig;
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::{WallClock, plain, tls_config, tls_error_in, tls_words};
use crate::node_name;
use crate::options::AgentOptions;
use crate::status::duration;
use kedge_api as api;
use kedge_core::config::source::{RequestedSource, requested_source};
use kedge_platform::HostFacts as _;
use kedge_platform::linux::{LinuxHost, Roots, read_named_file};
use rustls::{CertificateError, ClientConnection};
use serde_json::{Value, json};
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long one step may take. Longer than a handshake over a link of 600 ms with losses.
const LIMIT: Duration = Duration::from_secs(15);

/// A certificate that expires sooner is worth a warning: time enough to drive to a node.
const SOON: u64 = 14 * 86_400;

/// A clock further off than this makes logs and events hard to read, if nothing worse.
const CLOCK_SLACK_SECS: u64 = 30;

/// Hands findings on as they are made.
type Tell<'a> = &'a mut dyn FnMut(Vec<Finding>);

/// All steps; `running` is the running agent's node name.
pub(super) fn check(options: &AgentOptions, running: Option<&str>, tell: Tell<'_>) {
    let Some(path) = options.kubeconfig.clone() else {
        let advice = "the local configuration alone runs; kedge doctor --kubeconfig FILE looks at a server";
        return tell(vec![Finding::warn("kubeconfig", "no --kubeconfig is given", advice)]);
    };
    let (read, own) = (path.clone(), files::folder(&options.places.root_dir));
    let folder = own.clone();
    let load = move || in_use::load(&read, Some(&folder), &read_named_file);
    let Some(loaded) = within(LIMIT, load) else {
        return tell(vec![not_read(&path)]);
    };
    let kubeconfig = match loaded {
        Ok(kubeconfig) => Arc::new(kubeconfig),
        Err(error) => return tell(vec![unusable(&chain(&error))]),
    };
    tell(usable(&kubeconfig));
    let hostname = LinuxHost::new(Roots::default(), &options.places.root_dir).identity().hostname;
    let credential = node_name::of_kubeconfig(&kubeconfig);
    let chosen = node_name::choose(options.node_name.as_deref(), credential.clone(), &hostname);
    let node = running.filter(|_| options.node_name.is_none()).unwrap_or(&chosen.name).to_owned();
    let shown = kubeconfig.path.display().to_string();
    // with another node's credential everything else would fail for this one reason
    let is_another = node_name::conflict(&node, credential.as_deref(), &shown);
    tell(vec![match &is_another {
        Some(conflict) => {
            let (found, advice) = conflict.split_once(": ").unwrap_or((conflict, "name the node it is for"));
            Finding::fail("name", found, advice)
        }
        None if chosen.is_credentials => {
            Finding::ok("name", format!("{node}, by its credential; the host is called {hostname}"))
        }
        None => Finding::ok("name", node.clone()),
    }]);
    let proxies = ProxyEnvironment::of_process();
    let (host, port) = (kubeconfig.server.host.clone(), kubeconfig.server.port);
    let is_proxied = kubeconfig.proxy.is_some() || !matches!(proxies.proxy_for(&host, port), Ok(None));
    if is_proxied {
        let advice = "name, connection and certificate are the proxy's matter: see the lines below";
        tell(vec![Finding::warn("proxy", "the server is reached through a proxy", advice)]);
    } else if !direct(&kubeconfig, tell) {
        return;
    }
    let found = not_read(&path);
    let client = match within(LIMIT, move || {
        Api::open(ApiOptions { kubeconfig: path, own: Some(own), clock: clock(), proxies })
    }) {
        Some(Ok(api)) => api.stream("doctor"),
        Some(Err(error)) => return tell(vec![unusable(&chain(&error))]),
        None => return tell(vec![found]),
    };
    let Some(is_hub) = version(&client, tell) else { return };
    if is_another.is_none() {
        rights(&client, &node, is_hub, tell);
    }
}

/// The same clock as the agent's for certificates.
fn clock() -> WallClock {
    Arc::new(|| wall().max(kedge_api::EARLIEST_NOW))
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn not_read(path: &Path) -> Finding {
    let found =
        format!("{}: it, or a file it names, was not read within {} s", path.display(), LIMIT.as_secs());
    Finding::fail("kubeconfig", found, "its disk hangs, or it is no file")
}

fn unusable(why: &str) -> Finding {
    let advice = match why.to_lowercase().contains("permission denied") {
        true => "ask as root",
        false => "correct it, or make it anew: kedge-hub node-kubeconfig NODE",
    };
    Finding::fail("kubeconfig", why, advice)
}

fn usable(kubeconfig: &Kubeconfig) -> Vec<Finding> {
    let path = kubeconfig.path.display();
    let mut findings = vec![Finding::ok("kubeconfig", format!("{path}: server {}", kubeconfig.server.url()))];
    let mode = fs::metadata(&kubeconfig.path).map(|seen| seen.mode() & 0o077);
    if mode.is_ok_and(|others| others != 0) {
        let advice = format!("chmod 600 {path}: it holds the node's credentials");
        findings.push(Finding::warn("kubeconfig", format!("{path} is readable by other users"), advice));
    }
    if let Some(identity) = &kubeconfig.client_certificate
        && let Some(end) = identity.chain.first().and_then(|leaf| certificate::not_after(leaf))
    {
        findings.push(lifetime("kubeconfig", "the client certificate", end));
    }
    findings
}

fn lifetime(check: &'static str, what: &str, end: u64) -> Finding {
    let now = wall().as_secs();
    match end.checked_sub(now) {
        None => Finding::fail(
            check,
            format!("{what} ended {} ago by this node's clock", duration(now - end)),
            "renew it; or set this node's clock, if that is wrong",
        ),
        Some(left) if left < SOON => {
            Finding::warn(check, format!("{what} ends in {}", duration(left)), "renew it before then")
        }
        Some(left) => Finding::ok(check, format!("{what} holds for {}", duration(left))),
    }
}

/// Name, connection and TLS; false if one fails.
fn direct(kubeconfig: &Arc<Kubeconfig>, tell: Tell<'_>) -> bool {
    let (host, port) = (kubeconfig.server.host.clone(), kubeconfig.server.port);
    let addresses = match look_up(&host, port) {
        Ok(addresses) => addresses,
        Err(finding) => {
            tell(vec![finding]);
            return false;
        }
    };
    if host.parse::<IpAddr>().is_err() {
        let shown: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
        tell(vec![Finding::ok("dns", format!("{host} is {}", shown.join(", ")))]);
    }
    let socket = match connect(&addresses) {
        Ok((socket, finding)) => {
            tell(vec![finding]);
            socket
        }
        Err(finding) => {
            tell(vec![finding]);
            return false;
        }
    };
    let findings = shake_hands(kubeconfig, socket);
    let is_fine = findings.iter().all(|finding| finding.level != finding::Level::Fail);
    tell(findings);
    is_fine
}

fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, Finding> {
    let name = host.to_owned();
    let advice = "check /etc/resolv.conf and the network; or write an address into the kubeconfig's server";
    let failed = |why: String| Finding::fail("dns", format!("look up {host}: {why}"), advice);
    match within(LIMIT, move || (name.as_str(), port).to_socket_addrs().map(Vec::from_iter)) {
        None => Err(failed(format!("no answer within {} s", LIMIT.as_secs()))),
        Some(Err(error)) => Err(failed(plain(&error))),
        Some(Ok(found)) if found.is_empty() => Err(failed("it has no address".into())),
        Some(Ok(found)) => Ok(found),
    }
}

fn connect(addresses: &[SocketAddr]) -> Result<(TcpStream, Finding), Finding> {
    let mut tried = Vec::new();
    for address in addresses {
        let begun = Instant::now();
        match TcpStream::connect_timeout(address, LIMIT) {
            Ok(socket) => {
                let found = format!("connected to {address} in {} ms", begun.elapsed().as_millis());
                return Ok((socket, Finding::ok("tcp", found)));
            }
            Err(error) => tried.push(format!("{address} {}", plain(&error))),
        }
    }
    let advice = "refused: nothing listens there, is the hub running? No answer: a firewall, a route, or a wrong address";
    Err(Finding::fail("tcp", format!("connect: {}", tried.join(", ")), advice))
}

fn shake_hands(kubeconfig: &Kubeconfig, mut socket: TcpStream) -> Vec<Finding> {
    let config = match tls_config(kubeconfig, clock()) {
        Ok(config) => config,
        Err(error) => return vec![unusable(&format!("kubeconfig {}: {error}", kubeconfig.path.display()))],
    };
    let mut session = match ClientConnection::new(Arc::new(config), kubeconfig.server_name.clone()) {
        Ok(session) => session,
        Err(error) => return vec![unusable(&error.to_string())],
    };
    let end = Instant::now() + LIMIT;
    while session.is_handshaking() {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let timed = socket.set_read_timeout(Some(left)).and_then(|()| socket.set_write_timeout(Some(left)));
        let step = timed.and_then(|()| session.complete_io(&mut socket));
        if Instant::now() >= end && session.is_handshaking() {
            let advice =
                "something listens there that does not speak TLS, or the link loses large packets (MTU)";
            return vec![Finding::fail("tls", format!("no handshake within {} s", LIMIT.as_secs()), advice)];
        }
        if let Err(error) = step {
            return vec![handshake_failed(kubeconfig, &error)];
        }
    }
    let mut findings = vec![Finding::ok("tls", "the server's certificate verifies by chain, name and time")];
    let leaf = session.peer_certificates().and_then(|chain| chain.first());
    if let Some(end) = leaf.and_then(|leaf| certificate::not_after(leaf)) {
        findings.push(lifetime("tls", "the server's certificate", end));
    }
    findings
}

fn handshake_failed(kubeconfig: &Kubeconfig, error: &std::io::Error) -> Finding {
    let Some(tls) = tls_error_in(error) else {
        let advice = "what listens there does not speak TLS, or ended the connection: is it the API server?";
        return Finding::fail("tls", plain(error), advice);
    };
    let name = kubeconfig.server_name.to_str();
    let why = tls_words(&tls);
    let (found, advice) = match &tls {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => (
            format!("the certificate is not for {name}: {why}"),
            "use one of its names in server, or set tls-server-name",
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => (
            format!("the certificate has ended: {why}"),
            "renew it on the server; or set this node's clock, if that is wrong",
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => (format!("the certificate is not valid yet: {why}"), "set this node's clock"),
        rustls::Error::InvalidCertificate(_) => (
            format!("the certificate does not verify: {why}"),
            "another server, or another CA: take the kubeconfig from this server anew",
        ),
        _ => (why, "is it an HTTPS API server, and does it accept this client's certificate?"),
    };
    Finding::fail("tls", found, advice)
}

/// The first request: shows whether the server knows us, its clock, and whether it is our hub.
fn version(client: &Client, tell: Tell<'_>) -> Option<bool> {
    match client.request(&Request::get("/version", LIMIT)) {
        Ok(response) => {
            let version: Value = response.json().unwrap_or_default();
            let is_hub = kedge_core::is_hub_version(&version);
            let name = version["gitVersion"].as_str().unwrap_or("unknown");
            tell(vec![Finding::ok("request", format!("{} answers, version {name}", client.api().url()))]);
            tell(vec![clock_of(response.date_unix_secs)]);
            Some(is_hub)
        }
        Err(NetError::Refused { status: 403 | 404, .. }) => {
            tell(vec![Finding::ok("request", format!("{} answers", client.api().url()))]);
            Some(false)
        }
        Err(error @ NetError::Unauthorized { .. }) => {
            let advice = "the credentials have expired, are for another server, or were revoked: make a new kubeconfig (if revoked, \
                 first run kedge-hub node readmit NODE)";
            tell(vec![Finding::fail("request", error.to_string(), advice)]);
            None
        }
        Err(error) => {
            let advice =
                "if it is about a certificate: the server refuses this client's, make the kubeconfig anew";
            tell(vec![Finding::fail("request", error.to_string(), advice)]);
            None
        }
    }
}

fn clock_of(server: Option<u64>) -> Finding {
    let Some(server) = server else {
        return Finding::warn(
            "clock",
            "the server does not say what time it is",
            "compare it by hand: date -u",
        );
    };
    let own = wall().as_secs();
    let off = own.abs_diff(server);
    match off {
        0..=CLOCK_SLACK_SECS => Finding::ok("clock", "agrees with the server's"),
        _ => {
            let way = if own > server { "ahead of" } else { "behind" };
            let found = format!("{} {way} the server's", duration(off));
            Finding::warn("clock", found, "set it (NTP): certificates are judged by it, and stamps are wrong")
        }
    }
}

/// A request that the agent makes.
struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    namespace: &'static str,
    /// Limited to the Node of this name.
    is_own: bool,
    /// The function that does not work without it.
    lost: &'static str,
}

const fn right(verb: &'static str, resource: &'static str, lost: &'static str) -> Right {
    Right { verb, group: "", resource, subresource: "", namespace: "", is_own: true, lost }
}

const LEASES: Right = Right {
    group: "coordination.k8s.io",
    namespace: api::NODE_LEASE_NAMESPACE,
    ..right("patch", "leases", "the node is taken for lost")
};

/// All rights that an agent needs at a server, except for its ConfigMap.
const RIGHTS: [Right; 9] = [
    right("list", "nodes", "nothing works: the agent does not find its Node"),
    right("watch", "nodes", "nothing works: the agent does not see its Node change"),
    Right { is_own: false, ..right("create", "nodes", "the Node must be created by somebody else") },
    right("patch", "nodes", "labels and, on Kubernetes, the mirrored status are not written"),
    Right {
        subresource: "status",
        ..right("patch", "nodes", "the node's status and conditions are not reported")
    },
    LEASES,
    Right { verb: "get", ..LEASES },
    Right { verb: "create", is_own: false, ..LEASES },
    Right { namespace: "default", is_own: false, ..right("create", "events", "no events are posted") },
];

fn rights(client: &Client, node: &str, is_hub: bool, tell: Tell<'_>) {
    let mut findings = Vec::new();
    let mut allowed = 0;
    for right in &RIGHTS {
        match may(client, node, right) {
            Ok(true) => allowed += 1,
            Ok(false) => findings.push(missing(node, right)),
            Err(error) if matches!(error.status(), Some(403..=405)) => {
                return tell(tried(client, node));
            }
            Err(error) => {
                findings.push(Finding::fail(
                    "rights",
                    error.to_string(),
                    "ask again once the server answers",
                ));
                break;
            }
        }
    }
    let found = format!("{allowed} of {} kinds of requests are allowed", RIGHTS.len());
    findings.push(match allowed == RIGHTS.len() {
        true => Finding::ok("rights", found),
        false => Finding::fail("rights", found, "docs/guides/kubernetes.md has the roles"),
    });
    findings.extend(config_map(client, node, is_hub));
    tell(findings);
}

fn missing(node: &str, right: &Right) -> Finding {
    let what = match right.subresource {
        "" => right.resource.to_owned(),
        subresource => format!("{}/{subresource}", right.resource),
    };
    let name = if right.is_own { format!(" {node}") } else { String::new() };
    let found = format!("may not {} {what}{name}: {}", right.verb, right.lost);
    Finding::fail(
        "rights",
        found,
        "docs/guides/kubernetes.md has the roles; a node of a hub has them by its name",
    )
}

/// Queries the server by a SelfSubjectAccessReview.
fn may(client: &Client, node: &str, right: &Right) -> Result<bool, NetError> {
    let mut attributes = json!({"verb": right.verb, "resource": right.resource, "group": right.group});
    if !right.subresource.is_empty() {
        attributes["subresource"] = right.subresource.into();
    }
    if !right.namespace.is_empty() {
        attributes["namespace"] = right.namespace.into();
    }
    if right.is_own {
        attributes["name"] = node.into();
    }
    review(client, attributes)
}

fn review(client: &Client, attributes: Value) -> Result<bool, NetError> {
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body = serde_json::to_vec(&body).expect("a JSON value can be written");
    let answer: Value = client.request(&Request::post(path, body, LIMIT))?.json()?;
    Ok(answer["status"]["allowed"] == true)
}

/// Without reviews: sends the requests themselves, as dry runs where they change something.
fn tried(client: &Client, node: &str) -> Vec<Finding> {
    let own = format!("/api/v1/nodes/{node}");
    let lease =
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{node}", api::NODE_LEASE_NAMESPACE);
    let patch =
        |path: String| Request::patch(format!("{path}?dryRun=All"), MERGE_PATCH, b"{}".to_vec(), LIMIT);
    let requests = [
        Request::get(format!("/api/v1/nodes?fieldSelector=metadata.name%3D{node}&limit=1"), LIMIT),
        patch(own.clone()),
        patch(format!("{own}/status")),
        patch(lease),
    ];
    let mut findings = Vec::new();
    for request in &requests {
        if let Err(error) = client.request(request)
            && error.status() != Some(404)
        {
            findings.push(Finding::fail(
                "rights",
                error.to_string(),
                "docs/guides/kubernetes.md has the roles",
            ));
        }
    }
    if findings.is_empty() {
        let found = "list and patch of the Node and its Lease are allowed, by trying";
        findings.push(Finding::ok("rights", found));
    }
    findings
}

/// The assigned ConfigMap, if one is.
fn config_map(client: &Client, node: &str, is_hub: bool) -> Vec<Finding> {
    // a list, because the agent lists and watches its Node: a role that allows only `get` does not suffice
    let path = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{node}");
    let listed: Value = match client.request(&Request::get(path, LIMIT)).and_then(|response| response.json())
    {
        Ok(listed) => listed,
        Err(error) => {
            return vec![Finding::fail(
                "rights",
                error.to_string(),
                "docs/guides/kubernetes.md has the roles",
            )];
        }
    };
    let Some(object) = listed["items"].get(0) else {
        let advice = "the agent creates it if it may; else create it: docs/guides/kubernetes.md";
        return vec![Finding::warn("node", format!("there is no Node {node}"), advice)];
    };
    let annotation = object["metadata"]["annotations"][api::CONFIG_SOURCE_ANNOTATION].as_str();
    let source = match requested_source(object["spec"].get("configSource"), annotation, is_hub) {
        RequestedSource::Correct(source) => source,
        RequestedSource::Nil => {
            return vec![Finding::ok("node", format!("Node {node} asks for no ConfigMap"))];
        }
        RequestedSource::Invalid(why) => {
            let advice = "correct it on the Node: until then the node keeps the configuration it has";
            return vec![Finding::fail(
                "node",
                format!("Node {node} asks for an invalid source: {why}"),
                advice,
            )];
        }
    };
    let (namespace, name) = source.object();
    let mut findings = Vec::new();
    for verb in ["get", "list", "watch"] {
        let attributes =
            json!({"verb": verb, "resource": "configmaps", "namespace": namespace, "name": name});
        if matches!(review(client, attributes), Ok(false)) {
            let found = format!("may not {verb} ConfigMap {namespace}/{name}: a push does not arrive");
            findings.push(Finding::fail("rights", found, "docs/guides/kubernetes.md has the roles"));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "node",
            format!("Node {node} asks for ConfigMap {namespace}/{name}, and may read it"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_core::kubelet::yaml;

    /// The YAML blocks of docs/guides/kubernetes.md.
    fn manifests() -> Vec<Value> {
        let page = include_str!("../../../docs/guides/kubernetes.md");
        let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let parsed = blocks.map(|block| match yaml::parse(block.as_bytes()) {
            Ok(tree) => tree.to_json(),
            Err(error) => panic!("{error}:\n{block}"),
        });
        parsed.collect()
    }

    /// Whether a rule of the page allows it.
    fn is_allowed(right: &Right, resource: &str) -> bool {
        let is_in =
            |list: &Value, word: &str| list.as_array().is_some_and(|list| list.contains(&word.into()));
        let subresource =
            if right.subresource.is_empty() { String::new() } else { format!("/{}", right.subresource) };
        manifests().iter().any(|role| {
            let is_there = match role["kind"].as_str() {
                Some("ClusterRole") => right.namespace.is_empty(),
                Some("Role") => role["metadata"]["namespace"] == right.namespace,
                _ => false,
            };
            let allows = |rule: &Value| {
                is_in(&rule["apiGroups"], right.group)
                    && is_in(&rule["resources"], &format!("{resource}{subresource}"))
                    && is_in(&rule["verbs"], right.verb)
                    && right.is_own == rule["resourceNames"].is_array()
            };
            is_there && role["rules"].as_array().is_some_and(|rules| rules.iter().any(allows))
        })
    }

    #[test]
    fn roles_of_the_page_allow_every_request_of_the_agent() {
        for right in &RIGHTS {
            let what = format!("{} {}/{}", right.verb, right.resource, right.subresource);
            assert!(is_allowed(right, right.resource), "docs/guides/kubernetes.md gives no right to {what}");
        }
        for verb in ["get", "list", "watch"] {
            let read = Right { namespace: "kube-system", ..right(verb, "configmaps", "") };
            assert!(
                is_allowed(&read, "configmaps"),
                "docs/guides/kubernetes.md gives no right to {verb} the ConfigMap"
            );
        }
        assert!(!is_allowed(&right("delete", "nodes", ""), "nodes"));
        assert!(
            manifests()
                .iter()
                .all(|manifest| manifest["apiVersion"].is_string() && manifest["kind"].is_string())
        );
    }
}
