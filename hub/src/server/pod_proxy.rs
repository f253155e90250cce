//! `pods/NAME/proxy`: a request to a program in a pod, and its answer, as upstream passes them on.
//!
//! Owns which headers pass. Always holds: a program never sees what a caller proves itself by, and no browser takes an answer for the
//! hub's own: it runs no script in it, and no header of it says anything about the hub. Left to others: whom a name means
//! (`kedge_hub_core::requests`), the way to the program (`calls`).

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::Full;
use kedge_api::percent_encoded;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::kinds::POD;
use kedge_hub_core::requests::{ProgramAddress, ProxyTarget};

use super::calls::{self, Answer, Question};
use super::context::RequestContext;
use super::request::{RequestBody, header as header_of};
use super::respond::{self, Body};
use super::route::Target;

/// What ends at each connection, beside what `Connection` names.
const OF_CONNECTIONS: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// What of a request is for the hub alone. Cookies: those that one program sets would be shown to all others. The library sets the length.
const OF_THE_HUB: [&str; 4] = ["authorization", "content-length", "cookie", "expect"];
/// What of an answer is passed on, beside names that begin with `x-`. Others could say something about the hub to a browser, or a
/// warning to kubectl.
const SHOWN: [HeaderName; 18] = [
    header::ACCEPT_RANGES,
    header::AGE,
    header::ALLOW,
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::DATE,
    header::ETAG,
    header::EXPIRES,
    header::LAST_MODIFIED,
    header::PRAGMA,
    header::RETRY_AFTER,
    header::SERVER,
    header::VARY,
    header::WWW_AUTHENTICATE,
];
/// What a browser makes of it: nothing runs, nothing is sent, and it has an origin of its own.
const SANDBOX: &str = "sandbox";

/// `below`: what of the path comes after `proxy`, as it was sent; `None`: nothing.
pub(super) async fn answer(
    context: &RequestContext<'_>,
    target: &Target,
    below: Option<&str>,
    body: &mut RequestBody,
) -> Result<Response<Body>, ApiError> {
    let parts = context.parts;
    let method = &parts.method;
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    if !is_read && !matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE) {
        return Err(ApiError::method_not_allowed());
    }
    if parts.headers.contains_key(header::UPGRADE) {
        let asked = header_of(&parts.headers, "upgrade");
        let message = format!(
            "unable to upgrade: pods/proxy passes no upgraded connection ({asked:?}), which pods/portforward does"
        );
        return Err(ApiError::bad_request(message));
    }
    let wanted = ProxyTarget::parse(&target.name)?;
    let found = context.server.hub.get(&POD, &target.namespace, wanted.pod);
    let pod = found.ok_or_else(|| ApiError::not_found(&POD, wanted.pod))?.value();
    let program = wanted.find(&pod)?;
    let query = parts.uri.query().map_or_else(String::new, |query| format!("?{query}"));
    if below.is_none() && is_read {
        // as upstream: relative links in the answer are to lead below it
        return Ok(moved(&format!("{}/{query}", parts.uri.path())));
    }
    let path: Uri = format!("{}{query}", below.unwrap_or("/"))
        .parse()
        .map_err(|error| ApiError::bad_request(format!("the path cannot be passed on: {error}")))?;
    let whole = body.read().await?;
    let mut request = Request::new(Full::new(whole));
    *request.method_mut() = method.clone();
    *request.uri_mut() = path;
    *request.headers_mut() = passed_on(&parts.headers, parts.uri.path(), context.trail.from(), &program);
    let prefix = parts.uri.path().strip_suffix(below.unwrap_or_default()).unwrap_or_default();
    let host = header_of(&parts.headers, "host").to_owned();
    let authority = authority(&program);
    let shown = |answer: &Answer| {
        let mut response = Response::new(());
        *response.status_mut() = answer.response.status();
        *response.headers_mut() =
            shown(answer.response.headers(), method, &Way { prefix, host: &host, authority: &authority });
        response
    };
    let ProgramAddress { node, uid, address, port } = program;
    let target =
        format!("/podPort/{}/{}/{port}", percent_encoded(uid), percent_encoded(&address.to_string()));
    calls::ask_program(context, node, target, Question { is_secure: wanted.is_secure, request }, shown).await
}

fn moved(to: &str) -> Response<Body> {
    let mut response = respond::empty(301);
    if let Ok(to) = HeaderValue::try_from(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

fn authority(program: &ProgramAddress<'_>) -> String {
    std::net::SocketAddr::from((program.address, program.port)).to_string()
}

/// The headers that a program sees.
fn passed_on(given: &HeaderMap, path: &str, from: IpAddr, program: &ProgramAddress<'_>) -> HeaderMap {
    let named = of_this_connection(given);
    let is_passed = |name: &str| {
        !OF_CONNECTIONS.contains(&name)
            && !OF_THE_HUB.contains(&name)
            && !name.starts_with("impersonate-")
            && !name.starts_with("x-remote-")
            && !named.iter().any(|known| known == name)
    };
    let mut headers = HeaderMap::new();
    for (name, value) in given.iter().filter(|(name, _)| is_passed(name.as_str())) {
        headers.append(name, value.clone());
    }
    if let Some(host) =
        HeaderValue::try_from(authority(program)).ok().filter(|_| !given.contains_key(header::HOST))
    {
        headers.insert(header::HOST, host);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    let before = header_of(given, "x-forwarded-for");
    let from = if before.is_empty() { from.to_string() } else { format!("{before}, {from}") };
    for (name, value) in [("x-forwarded-for", from.as_str()), ("x-forwarded-uri", path)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    headers
}

/// The names that `Connection` says are for this connection alone.
fn of_this_connection(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// How a program is reached from outside, and by what its own links may call it.
struct Way<'a> {
    /// The path of the proxy, up to where that of the program begins.
    prefix: &'a str,
    /// As the client calls the hub.
    host: &'a str,
    /// As the hub calls the program.
    authority: &'a str,
}

/// The headers that a client sees.
fn shown(given: &HeaderMap, method: &Method, way: &Way<'_>) -> HeaderMap {
    let named = of_this_connection(given);
    let is_shown = |name: &HeaderName| {
        (SHOWN.contains(name) || name.as_str().starts_with("x-"))
            && !named.iter().any(|known| known == name.as_str())
    };
    let mut headers = HeaderMap::new();
    for (name, value) in given.iter().filter(|(name, _)| is_shown(name)) {
        headers.append(name, value.clone());
    }
    if let Some(length) = given.get(header::CONTENT_LENGTH).filter(|_| *method == Method::HEAD) {
        headers.insert(header::CONTENT_LENGTH, length.clone());
    }
    let location = given.get(header::LOCATION).and_then(|location| location.to_str().ok());
    if let Some(Ok(location)) = location.map(|location| HeaderValue::try_from(way.led(location))) {
        headers.insert(header::LOCATION, location);
    }
    headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers
}

impl Way<'_> {
    /// Where a program's `Location` leads from outside, as upstream rewrites it: an absolute path, alone or behind the program's own name,
    /// is one below the proxy. Relative paths are right as they are, and those of other hosts stay.
    fn led(&self, location: &str) -> String {
        let (origin, path) = match location.find("//") {
            Some(at) if at == 0 || matches!(&location[..at], "http:" | "https:") => {
                let end = location[at + 2..].find(['/', '?', '#']).map_or(location.len(), |end| at + 2 + end);
                let host = &location[at + 2..end];
                match host {
                    host if host == self.authority => ("", &location[end..]),
                    host if host == self.host => location.split_at(end),
                    _ => return location.to_owned(),
                }
            }
            _ => ("", location),
        };
        let is_below = path
            .strip_prefix(self.prefix)
            .is_some_and(|rest| matches!(rest.bytes().next(), None | Some(b'/' | b'?' | b'#')));
        match path.starts_with('/') {
            true if !is_below => format!("{origin}{}{path}", self.prefix),
            true => format!("{origin}{path}"),
            false => location.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: ProgramAddress<'_> = ProgramAddress {
        node: "n",
        uid: "u",
        address: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
        port: 8080,
    };

    fn map(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn fields(headers: &HeaderMap) -> Vec<String> {
        let mut fields: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        fields.sort_unstable();
        fields
    }

    #[test]
    fn program_sees_nothing_that_proves_its_caller() {
        let given = map(&[
            ("host", "hub:6443"),
            ("accept", "*/*"),
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("impersonate-user", "secret"),
            ("x-remote-user", "secret"),
            ("proxy-authorization", "secret"),
            ("connection", "keep-alive, X-Private"),
            ("x-private", "secret"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("content-length", "3"),
            ("content-type", "text/plain"),
            ("x-forwarded-for", "192.0.2.9"),
            ("x-forwarded-uri", "/other"),
        ]);
        let from = IpAddr::from([192, 0, 2, 1]);
        let expect = [
            "accept: */*",
            "connection: close",
            "content-type: text/plain",
            "host: hub:6443",
            "x-forwarded-for: 192.0.2.9, 192.0.2.1",
            "x-forwarded-uri: /p",
        ];
        assert_eq!(fields(&passed_on(&given, "/p", from, &PROGRAM)), expect);
        let expect =
            ["connection: close", "host: 10.0.0.2:8080", "x-forwarded-for: 192.0.2.1", "x-forwarded-uri: /p"];
        assert_eq!(fields(&passed_on(&HeaderMap::new(), "/p", from, &PROGRAM)), expect);
    }

    const WAY: Way<'_> = Way { prefix: "/api/proxy", host: "hub:6443", authority: "10.0.0.2:8080" };

    #[test]
    fn browser_takes_no_answer_for_the_hubs() {
        let given = map(&[
            ("content-type", "text/html"),
            ("content-length", "3"),
            ("content-security-policy", "sandbox allow-scripts allow-same-origin"),
            ("x-content-type-options", "sniff"),
            ("set-cookie", "a=b; Path=/"),
            ("access-control-allow-origin", "*"),
            ("strict-transport-security", "max-age=1"),
            ("clear-site-data", "\"*\""),
            ("service-worker-allowed", "/"),
            ("alt-svc", "h2=\"evil:443\""),
            ("refresh", "0; url=/api"),
            ("link", "</api>; rel=preload"),
            ("warning", "299 - \"false\""),
            ("audit-id", "false"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x-late"),
            ("etag", "\"1\""),
            ("x-total", "3"),
        ]);
        let mut expect = vec![
            "content-security-policy: sandbox",
            "content-type: text/html",
            "etag: \"1\"",
            "x-content-type-options: nosniff",
            "x-total: 3",
        ];
        assert_eq!(fields(&shown(&given, &Method::GET, &WAY)), expect);
        expect.insert(0, "content-length: 3");
        assert_eq!(fields(&shown(&given, &Method::HEAD, &WAY)), expect);
        let nothing = shown(&HeaderMap::new(), &Method::GET, &WAY);
        assert_eq!(nothing[header::CONTENT_TYPE], "application/octet-stream");
    }

    #[test]
    fn location_of_a_program_leads_below_its_proxy() {
        let check = |given: &str, expect: &str| {
            let given = map(&[("location", given)]);
            assert_eq!(shown(&given, &Method::GET, &WAY)[header::LOCATION], expect);
        };
        check("/a?b=/c", "/api/proxy/a?b=/c");
        check("/", "/api/proxy/");
        check("http://10.0.0.2:8080/a", "/api/proxy/a");
        check("https://10.0.0.2:8080/a/", "/api/proxy/a/");
        check("//10.0.0.2:8080/a", "/api/proxy/a");
        check("https://hub:6443/a", "https://hub:6443/api/proxy/a");
        // those that are right already
        check("/api/proxy/a", "/api/proxy/a");
        check("/api/proxy", "/api/proxy");
        check("/api/proxyless", "/api/proxy/api/proxyless");
        for other in [
            "a/b",
            "../a",
            "?a",
            "#a",
            "http://other/a",
            "//other/a",
            "mailto:a@b",
            "a//b",
            "http://10.0.0.2:8080",
        ] {
            check(other, other);
        }
    }
}
