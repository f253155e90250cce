//! Rewrites a program's `Location` for a client that reaches the program through the hub.
//!
//! Always holds: the result is a path below the program's own place in the hub, or another host's URL, or
//! nothing, and a browser (WHATWG URL), Go and RFC 3986 all read it in the same way: it has no dot segments,
//! backslashes, tabs, users or hosts in odd spellings. A program's text is judged as a browser would resolve
//! it, because browsers accept the most. Left to others: the choice of answers that may have a `Location`
//! (`pod_proxy`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// The address of a program as seen from outside, and the names by which its links may refer to it.
pub(super) struct Way<'a> {
    /// The path of the proxy, up to the program's own path.
    pub(super) prefix: &'a str,
    /// The path of the request to the program, and its query.
    pub(super) asked: (&'a str, Option<&'a str>),
    /// The hub's name as the client knows it: the value of `Host`.
    pub(super) host: &'a str,
    /// The names and addresses of the hub's certificate.
    pub(super) names: &'a [String],
    /// The program's address as the hub knows it.
    pub(super) program: SocketAddr,
}

/// A host, independent of its spelling.
#[derive(Debug, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    /// In lower case, without a dot at its end.
    Name(String),
}

/// Scheme (empty: that of the page), host and port (empty: the scheme's).
struct Origin<'a> {
    scheme: &'a str,
    host: Host,
    port: Option<u16>,
}

impl Way<'_> {
    /// The `Location` for the client; `None` if it leads nowhere that a client of the hub should go.
    pub(super) fn led(&self, location: &str) -> Option<String> {
        // browsers do this before they parse
        let text = location.trim_matches(|c: char| c <= ' ').replace(['\t', '\n', '\r'], "");
        let (scheme, rest) = match scheme_of(&text) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => ("https", rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => ("http", rest),
            // a page of the hub must not lead to another scheme
            Some(_) => return None,
            None => ("", text.as_str()),
        };
        let end = rest.find(['?', '#']).unwrap_or(rest.len());
        let (path, tail) = (rest[..end].replace('\\', "/"), &rest[end..]);
        let after = path.trim_start_matches('/');
        // to a browser, a scheme without two slashes is the page's own scheme, and the rest is relative; more
        // than two slashes are the same as two
        let has_host = path.len() - after.len() >= 2 || scheme == "http";
        if !has_host {
            return self.below(&path, tail);
        }
        let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
        let origin = Origin::parse(scheme, authority)?;
        let path = if path.is_empty() { "/" } else { path };
        match self.is_program(&origin) || self.is_hub(&origin.host) {
            true => self.below(path, tail),
            false => {
                let colon = if scheme.is_empty() { "" } else { ":" };
                let path = without_dots(&escaped(path));
                Some(format!("{scheme}{colon}//{}{path}{}", origin.text(), without_spaces(tail)))
            }
        }
    }

    /// A path below the program's place; `tail`: the query and the fragment.
    fn below(&self, path: &str, tail: &str) -> Option<String> {
        let (asked, query) = self.asked;
        let whole = match path {
            "" => asked.to_owned(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{}/{path}", &asked[..asked.rfind('/').unwrap_or(0)]),
        };
        let whole = without_dots(&escaped(&whole));
        // an absolute path may begin with the prefix that the program learned from `X-Forwarded-Uri`
        let own = whole.strip_prefix(self.prefix).filter(|own| own.is_empty() || own.starts_with('/'));
        let own = own.filter(|_| path.starts_with('/')).unwrap_or(&whole);
        if climbs(own) {
            return None;
        }
        let query = match query {
            Some(query) if path.is_empty() && !tail.starts_with('?') => format!("?{query}"),
            _ => String::new(),
        };
        Some(format!("{}{own}{query}{}", self.prefix, without_spaces(tail)))
    }

    fn is_program(&self, origin: &Origin<'_>) -> bool {
        let usual = if origin.scheme == "http" { 80 } else { 443 };
        origin.host == Host::Ip(self.program.ip().to_canonical())
            && origin.port.map_or(self.program.port() == usual, |port| port == self.program.port())
    }

    /// True if a host is the hub, with any port: the way to it may be forwarded.
    fn is_hub(&self, host: &Host) -> bool {
        let named = |name: &str| Host::parse(name).is_some_and(|known| known == *host);
        let called = split_port(self.host).map_or(self.host, |(called, _)| called);
        let is_own = match host {
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Host::Ip(ip) => is_of_this_machine(*ip),
        };
        is_own || named(called) || self.names.iter().any(|name| named(name))
    }
}

/// True if an address is this machine's: only such an address can be bound.
fn is_of_this_machine(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

impl<'a> Origin<'a> {
    /// `None` if there is no host, one that clients read differently, or a user.
    fn parse(scheme: &'a str, authority: &str) -> Option<Origin<'a>> {
        let (host, port) = split_port(authority)?;
        let port = match port {
            "" => None,
            port => Some(port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()))?),
        };
        Some(Origin { scheme, host: Host::parse(host)?, port })
    }

    fn text(&self) -> String {
        let host = match &self.host {
            Host::Ip(IpAddr::V6(ip)) => format!("[{ip}]"),
            Host::Ip(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        };
        self.port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
    }
}

/// Host and port; the port is empty if there is none.
fn split_port(authority: &str) -> Option<(&str, &str)> {
    if let Some(end) = authority.find(']') {
        let port = &authority[end + 1..];
        return match port {
            "" => Some((authority, "")),
            port => Some((&authority[..=end], port.strip_prefix(':')?)),
        };
    }
    match authority.matches(':').count() {
        // an IPv6 address in the form that certificates use
        2.. => Some((authority, "")),
        _ => Some(authority.split_once(':').unwrap_or((authority, ""))),
    }
}

impl Host {
    fn parse(text: &str) -> Option<Host> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if inner.contains(':') {
            return inner.parse::<IpAddr>().ok().map(|ip| Host::Ip(ip.to_canonical()));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() || !name.bytes().all(is_plain) || name.split('.').any(str::is_empty) {
            return None;
        }
        match ends_in_a_number(&name) {
            true => number_of(&name).map(|number| Host::Ip(Ipv4Addr::from_bits(number).into())),
            false => Some(Host::Name(name)),
        }
    }
}

/// True if browsers take a host for an IPv4 address.
fn ends_in_a_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.bytes().all(|byte| byte.is_ascii_digit()) || part_of_number(last).is_some()
}

/// An IPv4 address in any form that browsers and resolvers accept: one to four parts, decimal, octal or
/// hexadecimal, the last of which holds the remaining bytes.
fn number_of(name: &str) -> Option<u32> {
    let parts = name.split('.').map(part_of_number).collect::<Option<Vec<u64>>>()?;
    let (last, first) = parts.split_last().filter(|(_, first)| first.len() < 4)?;
    if first.iter().any(|part| *part > 255) || *last >= 1 << (8 * (4 - first.len())) {
        return None;
    }
    let front = first.iter().enumerate().map(|(at, part)| part << (8 * (3 - at))).sum::<u64>();
    u32::try_from(front + last).ok()
}

fn part_of_number(part: &str) -> Option<u64> {
    let (digits, radix) = match part.strip_prefix("0x") {
        Some("") => return Some(0),
        Some(digits) => (digits, 16),
        None if part.len() > 1 && part.starts_with('0') => (&part[1..], 8),
        None => (part, 10),
    };
    let is_digit = |byte: u8| char::from(byte).is_digit(radix);
    digits.bytes().all(is_digit).then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// A URL's scheme, and what comes after its colon.
fn scheme_of(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then_some((scheme, rest))
}

/// An absolute path without dot segments, which may be written as `%2e`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        let is_last = segments.peek().is_none();
        match plain.as_str() {
            ".." => drop(kept.pop()),
            "." => {}
            _ => {
                kept.push(segment);
                continue;
            }
        }
        if is_last {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

/// True if a path leads above its beginning when it is decoded before it is split, as a server between client
/// and hub might do.
fn climbs(path: &str) -> bool {
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    let mut depth = 0_usize;
    for segment in plain.split('/') {
        match segment {
            "" | "." => {}
            ".." if depth == 0 => return true,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

/// A path that all readers parse alike: bytes that are not allowed in URLs are percent-encoded.
fn escaped(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/%-._~!$&'()*+,;=:@".contains(&byte);
    let encode = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(encode).collect()
}

fn without_spaces(tail: &str) -> String {
    tail.replace(' ', "%20")
}

#[cfg(test)]
mod tests {
    use kedge_rig::Random;

    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/n/pods/p:8080/proxy";
    const PROGRAM: &str = "10.0.0.2:8080";

    fn led(asked: &str, location: &str) -> Option<String> {
        let names = ["hub.example".to_owned(), "192.0.2.7".to_owned(), "2001:db8::7".to_owned()];
        let (path, query) = asked.split_once('?').map_or((asked, None), |(path, query)| (path, Some(query)));
        let way = Way {
            prefix: PREFIX,
            asked: (path, query),
            host: "Called.example:6443",
            names: &names,
            program: PROGRAM.parse().unwrap(),
        };
        way.led(location)
    }

    #[test]
    fn location_leads_below_the_proxy() {
        let check = |location: &str, expect: &str| {
            let found = led("/item/1?q=r", location);
            assert_eq!(found.as_deref(), Some(&*format!("{PREFIX}{expect}")), "{location:?}");
        };
        check("/a?b=/c", "/a?b=/c");
        check("/", "/");
        check(&format!("{PREFIX}/a"), "/a");
        check(PREFIX, "");
        check(&format!("{PREFIX}less"), &format!("{PREFIX}less"));
        check("a//b/./c", "/item/a//b/c");
        check("../a#f", "/a#f");
        check("?a", "/item/1?a");
        check("#a", "/item/1?q=r#a");
        check("", "/item/1?q=r");
        check("/a b\\\"c?d e", "/a%20b/%22c?d%20e");
        // leads out of the proxy
        let out = "../../../../../../../../api/v1/secrets";
        check(out, "/api/v1/secrets");
        check(&format!("{PREFIX}/../../../../secrets"), "/api/v1/namespaces/secrets");
        check(&format!("{PREFIX}/%2e%2E/.%2e/x"), "/api/v1/namespaces/n/pods/x");
        check(&format!("{PREFIX}\\..\\x"), "/api/v1/namespaces/n/pods/p:8080/x");
        check("/..//evil.example/", "//evil.example/");
        // the program's own name, and all names of the hub
        for host in [
            PROGRAM,
            "hub.example",
            "HUB.example.:6443",
            "called.example",
            "192.0.2.7:6443",
            "[2001:DB8::7]:6443",
            "[::ffff:192.0.2.7]:1",
            "3221225991",
            "0xc0.00.2.07:6443",
            "localhost:7443",
            "a.localhost",
            "127.1:6443",
            "0",
            "[::1]:6443",
        ] {
            for scheme in [
                "https://",
                "HTTPS://",
                "http://",
                "//",
                "\\\\",
                "/\\",
                "https:\\/",
                "https:///",
                "h\tttps://",
                " //",
            ] {
                check(&format!("{scheme}{host}/x/../y"), "/y");
            }
            check(&format!("http:{host}"), "/");
        }
        check("https:/api", "/api");
        check("https:api", "/item/api");
    }

    #[test]
    fn location_of_another_host_stays() {
        let check = |location: &str, expect: &str| {
            assert_eq!(led("/", location).as_deref(), Some(expect), "{location:?}");
        };
        check("http://other/a?b#c", "http://other/a?b#c");
        check("HTTPS://Other.:80", "https://other:80/");
        check("//other/a", "//other/a");
        check("http://[2001:db8:0::8]:80/", "http://[2001:db8::8]:80/");
        check("http://0300.0.2.8/", "http://192.0.2.8/");
        // another port of the pod's address
        check("http://10.0.0.2/", "http://10.0.0.2/");
    }

    #[test]
    fn location_that_is_read_differently_is_dropped() {
        for location in [
            "mailto:a@b",
            "javascript:x",
            "blob:https://hub.example/1",
            "https://user@other/",
            "https://hub.example@other/",
            "https://other\\@hub.example/@",
            "https://o%74her/",
            "https://other:port/",
            "https://other:+1/",
            "https://other:65536/",
            "https://1.2.3.256/",
            "https://08/",
            "https://[::1",
            "https://[::1]x/",
            "https://",
            "http:",
            "/..%2f..%2fapi",
            "/a/..%5C../x",
            "%2e%2e%2fx",
        ] {
            let found = led("/", location);
            // a location that a browser reads as a path on a known host counts as that path
            assert!(found.is_none() || location.contains('\\'), "{location:?} {found:?}");
        }
    }

    /// Host (in its plain form) and path of the client's next request.
    type Next = (String, String);

    /// A scheme in lower case, and what follows it.
    fn split_scheme(text: &str) -> Option<(String, &str)> {
        let (scheme, rest) = text.split_once(':')?;
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        is_scheme.then(|| (scheme.to_ascii_lowercase(), rest))
    }

    /// The request that a browser makes of a `Location`, by the steps of the URL standard.
    fn as_browser(base: &Next, location: &str) -> Option<Next> {
        let slash = |c: char| c == '/' || c == '\\';
        let text: String = location.trim_matches(|c| c <= ' ').chars().filter(|c| *c != '\t').collect();
        let rest = match split_scheme(&text) {
            Some((scheme, rest)) if scheme == "https" => rest.to_owned(),
            // another scheme than the page's: a host follows, however many slashes there are
            Some((scheme, rest)) if scheme == "http" => format!("//{}", rest.trim_start_matches(slash)),
            Some(_) => return None,
            None => text,
        };
        let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
        let (host, path) = if rest.starts_with(slash) && rest[1..].starts_with(slash) {
            let after = rest.trim_start_matches(slash);
            let end = after.find(slash).unwrap_or(after.len());
            (plain_host(&after[..end])?, after[end..].to_owned())
        } else if rest.starts_with(slash) {
            (base.0.clone(), rest.to_owned())
        } else if rest.is_empty() {
            return Some(base.clone());
        } else {
            let at = base.1.rfind('/').unwrap();
            (base.0.clone(), format!("{}/{rest}", &base.1[..at]))
        };
        let mut kept: Vec<&str> = Vec::new();
        let segments: Vec<&str> = path.split(slash).skip(1).collect();
        for (number, segment) in segments.iter().enumerate() {
            let is_dots = match segment.to_ascii_lowercase().as_str() {
                ".." | ".%2e" | "%2e." | "%2e%2e" => {
                    kept.pop();
                    true
                }
                one => matches!(one, "." | "%2e"),
            };
            match is_dots {
                false => kept.push(segment),
                true if number + 1 == segments.len() => kept.push(""),
                true => {}
            }
        }
        Some((host, format!("/{}", kept.join("/"))))
    }

    /// The request that Go's `net/url` makes of it; `None` if it refuses.
    fn as_go(base: &Next, location: &str) -> Option<Next> {
        if location.contains(|c: char| c.is_ascii_control()) {
            return None;
        }
        let mut host = base.0.clone();
        let rest = match split_scheme(location) {
            Some((scheme, rest)) if matches!(&*scheme, "http" | "https") && rest.starts_with("//") => rest,
            Some(_) => return None,
            None => location,
        };
        let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
        let whole = match rest.strip_prefix("//") {
            Some(after) => {
                let end = after.find('/').unwrap_or(after.len());
                host = plain_host(&after[..end])?;
                after[end..].to_owned()
            }
            None if rest.is_empty() => return Some(base.clone()),
            None if rest.starts_with('/') => rest.to_owned(),
            None => format!("{}/{rest}", &base.1[..base.1.rfind('/').unwrap()]),
        };
        let mut kept: Vec<&str> = Vec::new();
        let segments: Vec<&str> = whole.split('/').skip(1).collect();
        for (number, segment) in segments.iter().enumerate() {
            match *segment {
                ".." => drop(kept.pop()),
                "." => {}
                other => kept.push(other),
            }
            if number + 1 == segments.len() && matches!(*segment, "." | "..") {
                kept.push("");
            }
        }
        Some((host, format!("/{}", kept.join("/"))))
    }

    /// The host without user and port; all names of the hub are the same host.
    fn plain_host(authority: &str) -> Option<String> {
        let host = authority.rsplit('@').next().unwrap();
        let host = match host.rfind(':') {
            Some(at) if !host[at..].contains(']') => &host[..at],
            _ => host,
        };
        let host = host.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let of_hub = [
            "hub.example",
            "called.example",
            "localhost",
            "127.0.0.1",
            "127.1",
            "0x7f.1",
            "2130706433",
            "[::1]",
            "192.0.2.7",
            "3221225991",
        ];
        match host {
            "" => None,
            host if of_hub.contains(&host) => Some("HUB".to_owned()),
            host => Some(host.to_owned()),
        }
    }

    /// A `Location` of pieces that URL parsers read differently.
    fn odd_location(random: &mut Random) -> String {
        const PIECES: [&str; 40] = [
            "/",
            "/",
            "/",
            "//",
            "\\",
            "..",
            "../",
            "..\\",
            "%2e%2e",
            "%2E./",
            ".%2e",
            ".",
            "./",
            "%2f",
            "%5c",
            "..%2f",
            "https:",
            "HTTPS:",
            "http:",
            "hTTp:",
            "//",
            "hub.example",
            "LOCALHOST:6443",
            "127.1",
            "0x7f.1:6443",
            "2130706433",
            "[::1]:6443",
            "called.example.",
            "10.0.0.2:8080",
            "other",
            "@",
            ":",
            "?",
            "#",
            " ",
            "\t",
            "api/v1",
            "api",
            "secrets",
            "x",
        ];
        let mut text = match random.below(4) {
            0 => PREFIX.to_owned(),
            1 => "../".repeat(random.below(12) as usize),
            _ => String::new(),
        };
        for _ in 0..=random.below(8) {
            text.push_str(random.pick::<&str>(&PIECES));
        }
        text
    }

    #[test]
    fn any_location_stays_below_or_leaves_the_hub() {
        let mut random = Random::new(1);
        let (mut below, mut away, mut dropped) = (0, 0, 0);
        for round in 0..30_000 {
            let location = odd_location(&mut random);
            let asked = *random.pick(&["/", "/item/1", "/a/b/", "//x"]);
            let base = ("HUB".to_owned(), format!("{PREFIX}{asked}"));
            let Some(led) = led(asked, &location) else {
                dropped += 1;
                continue;
            };
            for next in [as_browser(&base, &led), as_go(&base, &led)] {
                let Some((host, path)) = next else {
                    panic!("{round}: {location:?} is {led:?}, which nobody reads")
                };
                let is_below =
                    path.strip_prefix(PREFIX).is_some_and(|own| own.is_empty() || own.starts_with('/'));
                match host.as_str() {
                    "HUB" => assert!(is_below, "{round}: {location:?} is led to {led:?}, which is {path}"),
                    _ => away += 1,
                }
                below += usize::from(is_below);
            }
            assert_eq!(as_browser(&base, &led), as_go(&base, &led), "{location:?} is led to {led:?}");
        }
        assert!(below > 20_000 && away > 300 && dropped > 1000, "{below} {away} {dropped}");
    }

    #[test]
    fn control_of_the_property_meets_what_passed_before() {
        // locations that an earlier rule about texts let pass
        let base = ("HUB".to_owned(), format!("{PREFIX}/item/1"));
        let is_out = |next: Option<Next>| {
            next.is_some_and(|(host, path)| host == "HUB" && !path.starts_with(&format!("{PREFIX}/")))
        };
        for location in [
            "../../../../../../../../api/v1/namespaces/victim".to_owned(),
            format!("{PREFIX}/../../.."),
            "HTTPS://called.example:6443/api".to_owned(),
            "https://LOCALHOST:6443/api".to_owned(),
        ] {
            assert!(is_out(as_browser(&base, &location)) && is_out(as_go(&base, &location)), "{location}");
        }
        for location in
            [format!("{PREFIX}/%2e%2e/x"), "\\\\localhost/api".to_owned(), "https:\\\\127.1/api".to_owned()]
        {
            assert!(is_out(as_browser(&base, &location)), "{location}");
        }
    }
}
