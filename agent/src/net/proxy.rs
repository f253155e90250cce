//! Which proxy leads to the server, if any.
//!
//! Owns the form of a proxy's URL and the meaning of `HTTPS_PROXY` and `NO_PROXY`. The rules are those of
//! Go's `net/http` (kubectl and every other Kubernetes component follow them): upper case before lower case,
//! loopback never through a proxy, and in `NO_PROXY` hosts, domains, addresses, address ranges, each with or
//! without a port. A kubeconfig's `proxy-url` takes precedence over the environment and over these
//! exceptions. Decided once per kubeconfig, for its one server. It opens no connection.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kedge_api::percent_decoded;
use ureq::http::Uri;

/// An HTTP proxy that opens tunnels (CONNECT).
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyAddress {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port; 80 if the URL names none.
    pub port: u16,
    /// Value of `Proxy-Authorization`, if the URL holds a user.
    pub authorization: Option<String>,
}

impl fmt::Debug for ProxyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", HostPort(&self.host, self.port))
    }
}

impl ProxyAddress {
    /// The URL that [`Self::parse`] reads as this.
    pub(crate) fn url(&self) -> String {
        let user = self.authorization.as_deref().and_then(|text| text.strip_prefix("Basic "));
        let user = user.and_then(|text| String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok());
        let user = user.map(|user| match user.split_once(':') {
            Some((name, password)) => {
                format!("{}:{}@", kedge_api::percent_encoded(name), kedge_api::percent_encoded(password))
            }
            None => format!("{}@", kedge_api::percent_encoded(&user)),
        });
        format!("http://{}{}", user.unwrap_or_default(), HostPort(&self.host, self.port))
    }

    /// Reads `http://[user[:password]@]host[:port]`; the scheme may be missing, as in most proxy settings.
    ///
    /// # Errors
    /// The error in it, without the password. Proxies that are themselves reached over TLS, and SOCKS, are
    /// refused: only the tunnel's inside needs TLS, and that is always there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let (scheme, rest) = with_scheme.split_once("://").unwrap_or(("", ""));
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(format!(
                "scheme is \"{scheme}\", expected \"http\" (an HTTP proxy that knows CONNECT)"
            ));
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        let (host, port) = split_host_port(address, 80)?;
        let authorization = match user {
            Some(user) => Some(format!("Basic {}", BASE64_STANDARD.encode(decoded_user(user)?))),
            None => None,
        };
        Ok(Self { host, port, authorization })
    }
}

/// `user:password` with percent encoding undone.
fn decoded_user(user: &str) -> Result<Vec<u8>, String> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded =
        |part| percent_decoded(part).ok_or("its user holds a % without two hexadecimal digits".to_owned());
    let mut user = decoded(name)?;
    user.push(b':');
    user.extend(decoded(password)?);
    Ok(user)
}

/// Splits `host:port`, `host`, `[v6]:port` or `[v6]`.
pub(crate) fn split_host_port(address: &str, default_port: u16) -> Result<(String, u16), String> {
    let uri: Uri = format!("http://{address}")
        .parse()
        .map_err(|_| format!("host is \"{address}\", expected host:port"))?;
    let host = bare_host(uri.host().unwrap_or_default());
    if host.is_empty() {
        return Err("host is empty".to_owned());
    }
    let port = match uri.authority().and_then(|authority| authority.port()) {
        Some(port) => port.as_u16(),
        None if address.ends_with(':') || has_bad_port(address) => {
            return Err(format!("port of \"{address}\" is invalid, expected 1 to 65535"));
        }
        None => default_port,
    };
    Ok((host.to_owned(), port))
}

/// Whether something other than a port follows the last colon outside brackets.
fn has_bad_port(address: &str) -> bool {
    let after_brackets = address.rsplit(']').next().unwrap_or(address);
    after_brackets.contains(':')
}

fn bare_host(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// The proxy settings of a process's environment.
#[derive(Clone, Debug, Default)]
pub struct ProxyEnvironment {
    /// `HTTPS_PROXY`, or else `https_proxy`.
    pub https_proxy: Option<String>,
    /// `NO_PROXY`, or else `no_proxy`.
    pub no_proxy: Option<String>,
}

impl ProxyEnvironment {
    /// The settings from this process's environment. An empty variable counts as unset.
    #[must_use]
    pub fn of_process() -> Self {
        let read = |names: [&str; 2]| {
            names.iter().filter_map(|name| std::env::var(name).ok()).find(|value| !value.is_empty())
        };
        Self { https_proxy: read(["HTTPS_PROXY", "https_proxy"]), no_proxy: read(["NO_PROXY", "no_proxy"]) }
    }

    /// The proxy for a server, or none if it is to be dialled directly.
    ///
    /// # Errors
    /// The error in `HTTPS_PROXY`, if it would be needed.
    pub fn proxy_for(&self, host: &str, port: u16) -> Result<Option<ProxyAddress>, String> {
        let Some(proxy) = &self.https_proxy else { return Ok(None) };
        if is_loopback(host) || self.no_proxy.as_deref().is_some_and(|list| is_excepted(list, host, port)) {
            return Ok(None);
        }
        ProxyAddress::parse(proxy).map(Some)
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_excepted(list: &str, host: &str, port: u16) -> bool {
    list.split([',', ' '])
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .any(|entry| matches(entry, host, port))
}

fn matches(entry: &str, host: &str, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    let address = host.parse::<IpAddr>().ok();
    if let (Some((network, bits)), Some(address)) = (entry.split_once('/'), address) {
        let range = network.parse::<IpAddr>().ok().zip(bits.parse::<u32>().ok());
        return range.is_some_and(|(network, bits)| is_within(address, network, bits));
    }
    // a bare IPv6 address has colons and no port
    let entry_address = entry.parse::<IpAddr>().ok();
    let (name, wanted_port) = match entry_address {
        Some(_) => (entry, None),
        None => match entry.rsplit_once(':') {
            Some((name, wanted)) => (name, wanted.parse::<u16>().ok()),
            None => (entry, None),
        },
    };
    if wanted_port.is_some_and(|wanted| wanted != port) {
        return false;
    }
    let name = bare_host(name);
    match address {
        Some(address) => name.parse::<IpAddr>().is_ok_and(|entry| entry == address),
        None => is_in_domain(host, name),
    }
}

/// `example.com` means it and everything below; `.example.com` and `*.example.com` only what is below.
fn is_in_domain(host: &str, entry: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let entry = entry.strip_prefix('*').unwrap_or(entry).to_ascii_lowercase();
    if entry.is_empty() {
        return false;
    }
    if entry.starts_with('.') {
        return host.ends_with(&entry);
    }
    host == entry || host.strip_suffix(&entry).is_some_and(|rest| rest.ends_with('.'))
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

/// Shows `host:port` with brackets where the host is an IPv6 address.
pub(crate) struct HostPort<'a>(pub(crate) &'a str, pub(crate) u16);

impl fmt::Display for HostPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(':') {
            write!(f, "[{}]:{}", self.0, self.1)
        } else {
            write!(f, "{}:{}", self.0, self.1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_environment_is_read_as_by_kubectl() {
        let check = |no_proxy: &str, host: &str, port: u16, is_proxied: bool| {
            let environment = ProxyEnvironment {
                https_proxy: Some("http://p:3128".into()),
                no_proxy: Some(no_proxy.into()),
            };
            let found = environment.proxy_for(host, port).unwrap().is_some();
            assert_eq!(found, is_proxied, "NO_PROXY={no_proxy} host={host} port={port}");
        };
        check("", "hub.example.com", 443, true);
        check("*", "hub.example.com", 443, false);
        check("hub.example.com", "hub.example.com", 443, false);
        check("HUB.example.com", "hub.Example.com", 443, false);
        check("other, example.com", "hub.example.com", 443, false);
        check("example.com", "notexample.com", 443, true);
        check(".example.com", "hub.example.com", 443, false);
        check(".example.com", "example.com", 443, true);
        check("*.example.com", "hub.example.com", 443, false);
        check("example.com:6443", "hub.example.com", 6443, false);
        check("example.com:6443", "hub.example.com", 443, true);
        check("10.0.0.0/8", "10.9.8.7", 443, false);
        check("10.0.0.0/8", "11.9.8.7", 443, true);
        check("0.0.0.0/0", "11.9.8.7", 443, false);
        check("10.9.8.7", "10.9.8.7", 443, false);
        check("10.9.8.7:6443", "10.9.8.7", 443, true);
        check("fd00::/8", "fd00::5", 443, false);
        check("fd00::5", "fd00::5", 443, false);
        check("[fd00::5]:443", "fd00::5", 443, false);
        check("", "localhost", 443, false);
        check("", "127.0.0.1", 443, false);
        check("", "::1", 443, false);
    }

    #[test]
    fn broken_proxy_setting_fails_only_where_used() {
        let environment =
            ProxyEnvironment { https_proxy: Some("socks5://p".into()), no_proxy: Some("hub.lan".into()) };
        assert!(environment.proxy_for("hub.example", 443).unwrap_err().contains("socks5"));
        assert_eq!(environment.proxy_for("hub.lan", 443), Ok(None));
        assert_eq!(ProxyEnvironment::default().proxy_for("hub.example", 443), Ok(None));
    }

    #[test]
    fn proxy_password_is_not_printed() {
        let proxy = ProxyAddress::parse("http://me:secret@p:3128").unwrap();
        assert_eq!(format!("{proxy:?}"), "p:3128");
    }

    #[test]
    fn proxy_must_be_http() {
        let check = |text: &str, expect: Result<(&str, u16, Option<&str>), &str>| {
            let found = ProxyAddress::parse(text);
            match (found, expect) {
                (Ok(found), Ok((host, port, user))) => {
                    assert_eq!((found.host.as_str(), found.port), (host, port), "{text}");
                    let expected = user.map(|user| format!("Basic {}", BASE64_STANDARD.encode(user)));
                    assert_eq!(found.authorization, expected, "{text}");
                }
                (Err(found), Err(expect)) => assert!(found.contains(expect), "{text}: {found}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        };
        check("http://proxy.example:3128", Ok(("proxy.example", 3128, None)));
        check("proxy.example:3128", Ok(("proxy.example", 3128, None)));
        check("HTTP://proxy.example/", Ok(("proxy.example", 80, None)));
        check("http://[fd00::1]:8080", Ok(("fd00::1", 8080, None)));
        check("http://me:p%40ss@proxy:1", Ok(("proxy", 1, Some("me:p@ss"))));
        check("http://me@proxy:1", Ok(("proxy", 1, Some("me:"))));
        check("https://proxy.example", Err("scheme is \"https\""));
        check("http://", Err("host"));
        check("http://proxy:x", Err("expected"));
        check("http://m%z@proxy:1", Err("hexadecimal"));
    }
}
