//! The names and URLs by which the hub is reached: from the flags, the address it listens on, and the
//! machine's name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::flags::Serve;
use crate::pki::{is_dns_subdomain, server_url};

/// The names of the serving certificate.
pub fn names(options: &Serve, address: SocketAddr) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(host_name());
    if !address.ip().is_unspecified() {
        names.push(address.ip().to_string());
    }
    names.extend(options.advertise.iter().map(|to| to.host.clone()));
    names.extend(options.tls_san.iter().cloned());
    let mut unique = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    unique
}

/// This machine's name, if it is valid in a certificate. A sandbox may hide the kernel's host name
/// (`ProcSubset=pid`); the file holds the one set at boot.
fn host_name() -> Option<String> {
    let sources = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    let text = sources.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
    let name = text.trim().to_ascii_lowercase();
    is_dns_subdomain(&name).then_some(name)
}

/// The URLs for the administrator's kubeconfig and for nodes': the advertised address, else the address
/// listened on; if that is every address, 127.0.0.1 for this machine and its name for others.
pub fn urls(options: &Serve, address: SocketAddr) -> (String, String) {
    let url = |host: &str| server_url(host, address.port());
    if let Some(first) = options.advertise.first() {
        let url = server_url(&first.host, first.port.unwrap_or(address.port()));
        return (url.clone(), url);
    }
    if !address.ip().is_unspecified() {
        let url = url(&address.ip().to_string());
        return (url.clone(), url);
    }
    let loopback =
        if address.is_ipv4() { IpAddr::from([127, 0, 0, 1]) } else { "::1".parse().unwrap_or(address.ip()) };
    let admin = url(&loopback.to_string());
    let node = host_name().map_or_else(|| admin.clone(), |name| url(&name));
    log::warn!("listening on every address without --advertise: node kubeconfigs will name {node}");
    (admin, node)
}

/// True if the URL for nodes is only a guess, because no flag chose it.
pub fn is_guessed(options: &Serve, address: SocketAddr) -> bool {
    options.advertise.is_empty() && address.ip().is_unspecified()
}

/// The address and port of the Service `kubernetes`: the advertised ones if the first `--advertise` names an
/// IP address, else those listened on; this machine's loopback if that is every address, because a Service
/// has one.
pub fn service(options: &Serve, address: SocketAddr) -> (IpAddr, u16) {
    let advertised = options.advertise.first();
    let port = advertised.and_then(|to| to.port).unwrap_or(address.port());
    let ip = advertised.and_then(|to| to.host.parse().ok()).unwrap_or(address.ip());
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST.into(), port),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST.into(), port),
        ip => (ip, port),
    }
}
