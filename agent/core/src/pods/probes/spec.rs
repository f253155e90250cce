//! Probes as a spec has them, their defaults, and the order they become in a pod with an address.
//!
//! Always holds: a field that is 0 or absent has upstream's default, because a static pod comes without
//! defaults; a probe that was read has exactly one handler. Leaves to others: when a probe runs (`probes`).

use crate::pods::probes::order::{Check, HttpCheck, ProbeKind};
use crate::pods::spec::{Container, EnvVar, Exec, HttpGet, HttpHeader, Port, PortOfProbe, Probe};
use crate::sorted::SortedMap;
use std::time::Duration;

/// Most headers of one request: each is sent with each run.
const MOST_HEADERS: usize = 64;

/// Upstream's default where a field is 0.
fn or_default(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

fn secs(secs: u32) -> Duration {
    Duration::from_secs(secs.into())
}

impl Probe {
    pub(crate) fn initial_delay(&self) -> Duration {
        secs(self.initial_delay_seconds)
    }

    pub(crate) fn timeout(&self) -> Duration {
        secs(or_default(self.timeout_seconds, 1))
    }

    pub(crate) fn period(&self) -> Duration {
        secs(or_default(self.period_seconds, 10))
    }

    /// Results in a row that change the verdict.
    pub(crate) fn threshold(&self, passed: bool) -> u32 {
        if passed { or_default(self.success_threshold, 1) } else { or_default(self.failure_threshold, 3) }
    }

    /// The complaint about it; starts with the path of the field.
    fn complaint(&self, kind: ProbeKind) -> Option<String> {
        let given =
            [self.exec.is_some(), self.http_get.is_some(), self.tcp_socket.is_some(), self.grpc.is_some()];
        let given = given.into_iter().filter(|is_given| *is_given).count();
        if given != 1 {
            return Some(format!(" has {given} handlers, expected one of exec, httpGet, tcpSocket, grpc"));
        }
        if self.exec.as_ref().is_some_and(|exec| exec.command.is_empty()) {
            return Some(".exec.command is empty".into());
        }
        if kind != ProbeKind::Readiness && self.success_threshold > 1 {
            return Some(format!(".successThreshold is {}, expected 1", self.success_threshold));
        }
        if kind == ProbeKind::Readiness && self.termination_grace_period_seconds.is_some() {
            return Some(
                ".terminationGracePeriodSeconds is given, but a readiness probe ends nothing".into(),
            );
        }
        self.http_get.as_ref().and_then(HttpGet::complaint)
    }

    /// The check to run, or why it cannot be run.
    pub(crate) fn check(&self, container: &Container, pod_ip: &str) -> Result<Check, String> {
        match self {
            Self { exec: Some(exec), .. } => Ok(exec.check(container)),
            Self { http_get: Some(http), .. } => http.check(container, pod_ip),
            Self { tcp_socket: Some(tcp), .. } => {
                Ok(Check::Tcp { host: host(&tcp.host, pod_ip)?, port: tcp.port.number(&container.ports)? })
            }
            Self { grpc: Some(grpc), .. } => Ok(Check::Grpc {
                host: host("", pod_ip)?,
                port: port_number(grpc.port)?,
                service: grpc.service.clone(),
            }),
            _ => Err(format!("missing probe handler for {}", container.name)),
        }
    }
}

impl Exec {
    /// Expands references to variables, as upstream, as far as the spec itself has their values.
    pub(crate) fn check(&self, container: &Container) -> Check {
        let known: SortedMap<&str, &EnvVar> =
            container.env.iter().map(|variable| (variable.name.as_str(), variable)).collect();
        let value = |name: &str| {
            let variable = known.get(name).filter(|variable| variable.value_from.is_none());
            variable.map(|variable| variable.value.as_str())
        };
        Check::Exec { command: self.command.iter().map(|word| expanded(word, &value)).collect() }
    }
}

/// Replaces each `$(NAME)` once, and `$$` by `$`; a name without a value stays.
fn expanded<'a>(text: &str, value: &dyn Fn(&str) -> Option<&'a str>) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        done.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            done.push('$');
            rest = after;
            continue;
        }
        let reference = after.strip_prefix('(').and_then(|name| name.split_once(')'));
        match reference.and_then(|(name, after)| Some((value(name)?, after))) {
            Some((value, after)) => {
                done.push_str(value);
                rest = after;
            }
            None => {
                done.push('$');
                rest = after;
            }
        }
    }
    done + rest
}

impl HttpGet {
    pub(crate) fn complaint(&self) -> Option<String> {
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let has_control = |text: &str| text.chars().any(char::is_control);
        if !matches!(self.scheme.as_str(), "" | "HTTP" | "HTTPS") {
            let scheme = kedge_api::excerpt(&self.scheme);
            return Some(format!(".httpGet.scheme is {scheme:?}, expected HTTP or HTTPS"));
        }
        if self.http_headers.len() > MOST_HEADERS {
            let count = self.http_headers.len();
            return Some(format!(
                ".httpGet.httpHeaders has {count} headers, expected at most {MOST_HEADERS}"
            ));
        }
        if let Some(header) = self.http_headers.iter().find(|header| !is_name(&header.name)) {
            let name = kedge_api::excerpt(&header.name);
            return Some(format!(".httpGet.httpHeaders has a header named {name:?}"));
        }
        if let Some(header) = self.http_headers.iter().find(|header| has_control(&header.value)) {
            return Some(format!(".httpGet.httpHeaders has control characters in {}", header.name));
        }
        (has_control(&self.path) || self.path.contains(' '))
            .then(|| ".httpGet.path has spaces or control characters".into())
    }

    pub(crate) fn check(&self, container: &Container, pod_ip: &str) -> Result<Check, String> {
        let slash = if self.path.starts_with('/') { "" } else { "/" };
        let header = |header: &HttpHeader| (header.name.clone(), header.value.clone());
        Ok(Check::Http(HttpCheck {
            is_https: self.scheme == "HTTPS",
            host: host(&self.host, pod_ip)?,
            port: self.port.number(&container.ports)?,
            path: format!("{slash}{}", self.path),
            headers: self.http_headers.iter().map(header).collect(),
        }))
    }
}

fn host(given: &str, pod_ip: &str) -> Result<String, String> {
    let host = if given.is_empty() { pod_ip } else { given };
    if host.is_empty() {
        return Err("the pod has no address".into());
    }
    Ok(host.to_owned())
}

impl PortOfProbe {
    /// The port's number, or upstream's error text if it has none.
    fn number(&self, ports: &[Port]) -> Result<u16, String> {
        match self {
            Self::Number(number) => port_number(*number),
            Self::Name(name) => {
                if let Some(port) = ports.iter().find(|port| port.name == *name) {
                    return port_number(port.container_port.into());
                }
                let number = name.parse().ok();
                number.and_then(|number| port_number(number).ok()).ok_or_else(|| {
                    format!(
                        "couldn't resolve port {:?}: no port of the container has that name",
                        kedge_api::excerpt(name)
                    )
                })
            }
        }
    }
}

fn port_number(number: i64) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("invalid port number: {number}"))
}

impl Container {
    pub(crate) fn probe(&self, kind: ProbeKind) -> Option<&Probe> {
        match kind {
            ProbeKind::Startup => self.startup_probe.as_ref(),
            ProbeKind::Liveness => self.liveness_probe.as_ref(),
            ProbeKind::Readiness => self.readiness_probe.as_ref(),
        }
    }

    pub(crate) fn has_probes(&self) -> bool {
        ProbeKind::ALL.iter().any(|kind| self.probe(*kind).is_some())
    }

    /// The complaint about its probes; `is_init`: it runs to its end before others start.
    pub(crate) fn complaint_about_probes(&self, is_init: bool) -> Option<String> {
        for kind in ProbeKind::ALL {
            let field = format!("container {}: {}Probe", self.name, kind.word().to_lowercase());
            match self.probe(kind) {
                Some(_) if is_init => {
                    return Some(format!("{field} is given, but an init container has no probes"));
                }
                Some(probe) => {
                    if let Some(why) = probe.complaint(kind) {
                        return Some(format!("{field}{why}"));
                    }
                }
                None => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(probe: Value) -> Container {
        let container = json!({"name": "a", "readinessProbe": probe,
            "env": [{"name": "A", "value": "1"}, {"name": "S", "valueFrom": {}}],
            "ports": [{"name": "web", "containerPort": 8080}]});
        serde_json::from_value(container).expect("it is a container")
    }

    fn check(probe: Value) -> Result<Check, String> {
        let container = container(probe);
        container.readiness_probe.as_ref().expect("it has one").check(&container, "10.0.0.9")
    }

    fn http(path: &str, port: u16) -> HttpCheck {
        HttpCheck { is_https: false, host: "10.0.0.9".into(), port, path: path.into(), headers: vec![] }
    }

    #[test]
    fn absent_fields_have_upstreams_defaults() {
        let probe: Probe = serde_json::from_value(json!({"periodSeconds": 0})).expect("it is a probe");
        assert_eq!((probe.period(), probe.timeout(), probe.initial_delay()), (secs(10), secs(1), secs(0)));
        assert_eq!((probe.threshold(true), probe.threshold(false)), (1, 3));
    }

    #[test]
    fn handlers_get_the_pods_address_and_named_ports() {
        let of = |probe: Value| check(probe).expect("it can be run");
        assert_eq!(of(json!({"httpGet": {"port": "web"}})), Check::Http(http("/", 8080)));
        let https = of(json!({"httpGet": {"port": 443, "path": "a?b=c", "scheme": "HTTPS", "host": "h",
            "httpHeaders": [{"name": "Host", "value": "x"}]}}));
        let headers = vec![("Host".to_owned(), "x".to_owned())];
        let expect = HttpCheck { is_https: true, host: "h".into(), headers, ..http("/a?b=c", 443) };
        assert_eq!(https, Check::Http(expect));
        let tcp = Check::Tcp { host: "10.0.0.9".into(), port: 8080 };
        assert_eq!(of(json!({"tcpSocket": {"port": "web"}})), tcp);
        assert_eq!(of(json!({"tcpSocket": {"port": "8080"}})), tcp);
        let grpc = Check::Grpc { host: "10.0.0.9".into(), port: 5, service: "s".into() };
        assert_eq!(of(json!({"grpc": {"port": 5, "service": "s"}})), grpc);
        let command = ["1", "$(S)", "$(B)", "$(A)", "x$"].map(String::from).to_vec();
        let words = json!(["$(A)", "$(S)", "$(B)", "$$(A)", "x$"]);
        assert_eq!(of(json!({"exec": {"command": words}})), Check::Exec { command });
    }

    #[test]
    fn port_that_does_not_resolve_is_named() {
        for (port, expect) in [(json!("db"), "\"db\""), (json!(0), "number: 0"), (json!(70_000), "70000")] {
            let error = check(json!({"tcpSocket": {"port": port}})).expect_err("it has no number");
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn probe_that_cannot_be_run_is_refused_with_its_field() {
        let complaint = |probe: Value| container(probe).complaint_about_probes(false).unwrap_or_default();
        assert_eq!(complaint(json!({"exec": {"command": ["x"]}, "successThreshold": 3})), "");
        for (probe, expect) in [
            (json!({}), "readinessProbe has 0 handlers"),
            (json!({"exec": {"command": ["x"]}, "grpc": {"port": 1}}), "readinessProbe has 2 handlers"),
            (json!({"exec": {}}), "readinessProbe.exec.command"),
            (json!({"httpGet": {"port": 1, "path": "/ x"}}), ".httpGet.path"),
            (json!({"httpGet": {"port": 1, "scheme": "ftp"}}), ".httpGet.scheme is \"ftp\""),
            (json!({"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}), "named \"a b\""),
            (
                json!({"httpGet": {"port": 1, "httpHeaders": [{"name": "a", "value": "x\r\ny: z"}]}}),
                "characters in a",
            ),
            (json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 1}), ".terminationGrace"),
        ] {
            let found = complaint(probe);
            assert!(found.contains(expect), "{found:?}, expected {expect:?}");
        }
        let init = container(json!({"exec": {"command": ["x"]}})).complaint_about_probes(true);
        assert!(init.is_some_and(|why| why.contains("init container")));
    }
}
