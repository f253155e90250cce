//! `pods/NAME/proxy`: passes a request to a program in a pod, and its answer back, as upstream does.
//!
//! Owns the choice of headers that are passed on. Always holds: a program never sees a caller's credentials,
//! and no browser takes an answer for the hub's own: it runs no script in it, and no header of it says
//! anything about the hub. Left to others: resolving a name to an address (`kedge_hub_core::requests`), the
//! way to the program (`calls`).

use crate::server::request_body::RequestBody;
use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::Full;
use kedge_api::percent_encoded;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::kinds::POD;
use kedge_hub_core::requests::{ProgramAddress, ProxyTarget};

use super::audited::Begins;
use super::calls::{self, Answer, Question};
use super::context::RequestContext;
use super::location::Way;
use super::request::header as header_of;
use super::respond::{self, Body};
use super::route::Target;

/// Headers that apply to one connection only, beside those that `Connection` lists.
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
/// Headers of a request that are for the hub alone. Cookies are among them, because those that one program
/// sets would be shown to all others. The length is among them, because the library sets it.
const OF_THE_HUB: [&str; 4] = ["authorization", "content-length", "cookie", "expect"];
/// Headers of an answer that are passed on, beside names that begin with `x-`: those about this body, its
/// caching, and the program. Other headers would tell a browser something about the hub, because the browser
/// takes the answer to come from the hub's origin (cookies, `Clear-Site-Data`, `Strict-Transport-Security`,
/// `Alt-Svc`), ask for the caller's password in the hub's name (`WWW-Authenticate`), redirect without a
/// status (`Refresh`, `Link`, `Content-Location`), or look like the hub's own messages to kubectl (`Warning`,
/// `Audit-Id`).
const SHOWN: [HeaderName; 17] = [
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
];
/// Prefixes of `x-` names that are not about the answer: orders to a server in front of the hub, which would
/// send a file of its own or another request's answer instead, or stop trusting the hub; statements of such a
/// server about a caller; the API server's own headers; and orders to browsers.
const ORDERS: [&str; 13] = [
    "x-accel-",
    "x-dns-prefetch-",
    "x-envoy-",
    "x-forwarded-",
    "x-kedge-",
    "x-kubernetes-",
    "x-lighttpd-",
    "x-litespeed-",
    "x-permitted-cross-domain-",
    "x-remote-",
    "x-reproxy-",
    "x-send-file",
    "x-sendfile",
];
/// Tells a browser to run nothing, send nothing, and give the page an origin of its own.
const SANDBOX: &str = "sandbox";

/// `below`: the path after `proxy`, as the client sent it; `None` if there is none.
pub(super) async fn answer(
    context: &RequestContext<'_>,
    verb: &str,
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
        // as upstream: relative links in the answer must lead below this path
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
    let way = Way {
        prefix: parts.uri.path().strip_suffix(below.unwrap_or_default()).unwrap_or_default(),
        asked: (below.unwrap_or("/"), parts.uri.query()),
        host: header_of(&parts.headers, "host"),
        names: context.server.hub.names(),
        program: SocketAddr::from((program.address, program.port)),
    };
    let shown = |answer: &Answer| {
        let mut response = Response::new(());
        *response.status_mut() = answer.response.status();
        *response.headers_mut() = shown(&answer.response, method, &way);
        response
    };
    let ProgramAddress { node, uid, address, port } = program;
    let place = format!("/podPort/{}/{}/{port}", percent_encoded(uid), percent_encoded(&address.to_string()));
    let question = Question { place, is_secure: wanted.is_secure, request };
    calls::ask_program(context, node, question, &Begins { verb, target }, shown).await
}

fn moved(to: &str) -> Response<Body> {
    let mut response = respond::empty(301);
    if let Ok(to) = HeaderValue::try_from(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

fn authority(program: &ProgramAddress<'_>) -> String {
    SocketAddr::from((program.address, program.port)).to_string()
}

/// The headers that the program receives.
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

/// The headers that `Connection` lists as valid for this connection alone.
fn of_this_connection(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// The headers that the client receives.
fn shown<B>(answer: &Response<B>, method: &Method, way: &Way<'_>) -> HeaderMap {
    let given = answer.headers();
    let named = of_this_connection(given);
    let is_own = |name: &str| name.starts_with("x-") && !ORDERS.iter().any(|order| name.starts_with(order));
    let is_shown = |name: &HeaderName| {
        (SHOWN.contains(name) || is_own(name.as_str())) && !named.iter().any(|known| known == name.as_str())
    };
    let mut headers = HeaderMap::new();
    for (name, value) in given.iter().filter(|(name, _)| is_shown(name)) {
        headers.append(name, value.clone());
    }
    if let Some(length) = given.get(header::CONTENT_LENGTH).filter(|_| *method == Method::HEAD) {
        headers.insert(header::CONTENT_LENGTH, length.clone());
    }
    // a client that follows a redirect repeats its request with the caller's credentials, so only reads may
    // be redirected
    let goes_on = matches!(*method, Method::GET | Method::HEAD) || !answer.status().is_redirection();
    let location = given.get(header::LOCATION).filter(|_| goes_on);
    let led = location.and_then(|location| way.led(location.to_str().ok()?));
    if let Some(Ok(location)) = led.map(HeaderValue::try_from) {
        headers.insert(header::LOCATION, location);
    }
    headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers
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

    const WAY: Way<'_> = Way {
        prefix: "/api/proxy",
        asked: ("/", None),
        host: "hub:6443",
        names: &[],
        program: SocketAddr::new(PROGRAM.address, PROGRAM.port),
    };

    fn answer(status: u16, fields: &[(&'static str, &str)]) -> Response<()> {
        let mut answer = Response::builder().status(status).body(()).unwrap();
        *answer.headers_mut() = map(fields);
        answer
    }

    #[test]
    fn browser_takes_no_answer_for_the_hubs() {
        let given = [
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
            ("www-authenticate", "Basic realm=\"hub\""),
            ("content-location", "/api"),
            ("x-accel-redirect", "/etc/shadow"),
            ("x-sendfile", "/etc/shadow"),
            ("x-send-file", "/etc/shadow"),
            ("x-lighttpd-send-file", "/etc/shadow"),
            ("x-litespeed-location", "/secret"),
            ("x-reproxy-url", "http://other/"),
            ("x-envoy-immediate-health-check-fail", "true"),
            ("x-kubernetes-pf-flowschema-uid", "1"),
            ("x-kedge-calls", "1"),
            ("x-remote-user", "admin"),
            ("x-forwarded-host", "other"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x-late"),
            ("etag", "\"1\""),
            ("x-total", "3"),
        ];
        let given = answer(200, &given);
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
        let nothing = shown(&answer(200, &[]), &Method::GET, &WAY);
        assert_eq!(nothing[header::CONTENT_TYPE], "application/octet-stream");
    }

    #[test]
    fn change_is_led_nowhere() {
        let check = |method: &Method, status: u16, expect: Option<&str>| {
            let given = answer(status, &[("location", "/a")]);
            let found = shown(&given, method, &WAY).get(header::LOCATION).cloned();
            assert_eq!(found.as_ref().map(|value| value.to_str().unwrap()), expect, "{method} {status}");
        };
        for status in [300, 301, 302, 303, 307, 308] {
            check(&Method::GET, status, Some("/api/proxy/a"));
            check(&Method::HEAD, status, Some("/api/proxy/a"));
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                check(&method, status, None);
            }
        }
        // names the created object; no client follows it by itself
        check(&Method::POST, 201, Some("/api/proxy/a"));
    }
}
