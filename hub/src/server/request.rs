//! Reading a request: query parameters, the requested form of the answer, the body within its limits.
//!
//! Always holds: a handler gets a body only if its caller's credential was still valid when the last byte
//! arrived.

use http::HeaderMap;

use super::route::percent_decode;
use kedge_api::RENEWAL_MEDIA;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::field_error::FieldError;

/// Most parameters of one query.
const MAX_PARAMETERS: usize = 64;

/// Query parameters, decoded.
#[derive(Debug, Default)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn parse(query: &str) -> Result<Parameters, ApiError> {
        let malformed = || ApiError::bad_request("the query string is malformed");
        let mut found = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if found.len() == MAX_PARAMETERS {
                return Err(malformed());
            }
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text: &str| percent_decode(&text.replace('+', " ")).ok_or_else(malformed);
            found.push((decode(key)?, decode(value)?));
        }
        Ok(Parameters(found))
    }

    /// The first value of a parameter, empty when absent.
    pub(super) fn text(&self, key: &str) -> &str {
        self.0.iter().find(|(known, _)| known == key).map_or("", |(_, value)| value)
    }

    /// Names and values of all parameters, in order.
    pub(super) fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    /// All values of a parameter that may be repeated.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, ApiError> {
        match self.text(key) {
            "" | "0" | "false" => Ok(false),
            "1" | "true" => Ok(true),
            other => Err(ApiError::bad_request(format!("{key}: expected true or false, found {other:?}"))),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, ApiError> {
        self.parsed(key)
    }

    /// A number that may be negative.
    pub(super) fn signed(&self, key: &str) -> Result<Option<i64>, ApiError> {
        self.parsed(key)
    }

    fn parsed<N: std::str::FromStr>(&self, key: &str) -> Result<Option<N>, ApiError> {
        match self.text(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("{key}: expected a whole number, found {text:?}"))
            }),
        }
    }

    /// `dryRun=All` of a write with this verb.
    pub(super) fn dry_run(&self, verb: &str) -> Result<bool, ApiError> {
        match self.text("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(unsupported_dry_run(verb, other)),
        }
    }
}

/// `All` is the only value of `dryRun`.
pub(super) fn unsupported_dry_run(verb: &str, found: &str) -> ApiError {
    ApiError::invalid_options(verb, &FieldError::unsupported("dryRun", found, &["All"]))
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The object or list itself.
    Whole,
    /// A table, in this version of meta.k8s.io.
    Table(&'static str),
    /// Metadata only.
    Metadata(&'static str),
    /// The answer has only the HTTP status: our own agents ask for this on writes.
    Nothing,
}

/// One entry of an Accept header.
pub(super) struct MediaRange<'a> {
    pub(super) media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl MediaRange<'_> {
    /// The value of a parameter, empty when absent.
    pub(super) fn parameter(&self, key: &str) -> &str {
        self.parameters.iter().find(|(known, _)| *known == key).map_or("", |(_, value)| value)
    }
}

/// The entries of an Accept header.
pub(super) fn media_ranges(accept: &str) -> impl Iterator<Item = MediaRange<'_>> {
    accept.split(',').map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or("");
        MediaRange { media, parameters: parts.filter_map(|part| part.split_once('=')).collect() }
    })
}

pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// True if the answer must be indented: on `pretty`, or for one of the programs for which upstream does so.
pub(super) fn is_read_by_eye(parts: &http::request::Parts) -> bool {
    let query = parts.uri.query().unwrap_or("");
    if query.contains("pretty") {
        let asked = Parameters::parse(query).unwrap_or_default();
        if asked.has("pretty") {
            return asked.flag("pretty").unwrap_or(false);
        }
    }
    let agent = header(&parts.headers, "user-agent");
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|program| agent.starts_with(program))
}

/// True if the client wants only the status of a write: it prefers that (RFC 7240), or its patch has a type
/// that allows no other answer.
pub(super) fn wants_minimal(headers: &HeaderMap) -> bool {
    header(headers, "content-type") == RENEWAL_MEDIA || prefers_minimal(header(headers, "prefer"))
}

/// The same of the header's value.
pub(super) fn prefers_minimal(prefer: &str) -> bool {
    prefer.split([',', ';']).any(|preference| preference.trim() == "return=minimal")
}

/// The first form that the client accepts and the hub supports.
pub(super) fn wanted_form(headers: &HeaderMap, is_write: bool) -> Result<Form, ApiError> {
    if is_write && wants_minimal(headers) {
        return Ok(Form::Nothing);
    }
    let accept = header(headers, "accept");
    if accept.trim().is_empty() {
        return Ok(Form::Whole);
    }
    for range in media_ranges(accept) {
        if !matches!(range.media, "application/json" | "application/*" | "*/*") {
            continue;
        }
        let version = match range.parameter("v") {
            "v1beta1" => "v1beta1",
            _ => "v1",
        };
        match range.parameter("as") {
            "" => return Ok(Form::Whole),
            "Table" => return Ok(Form::Table(version)),
            "PartialObjectMetadata" | "PartialObjectMetadataList" => return Ok(Form::Metadata(version)),
            _ => {}
        }
    }
    Err(ApiError::not_acceptable())
}

/// Whether a request needs the right to `create` besides that of its verb: a WebSocket opens a stream by a
/// GET, and whoever may only read must not run commands. As upstream since 1.35.
pub(super) fn needs_create(verb: &str, subresource: &str) -> bool {
    verb == "get" && matches!(subresource, "attach" | "exec" | "portforward")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::{Capacity, Machine};
    use crate::server::limits::Limits;
    use crate::server::request_body::{BODY_BYTES_PER_SEC, BODY_GRACE, BodyPace, MAX_BODY_BYTES, Pieces};
    use std::time::Duration;
    use tokio::time::Instant;

    #[test]
    fn parameters_are_decoded() {
        let parameters =
            Parameters::parse("fieldSelector=metadata.name%3Da+b&watch=true&limit=5&x&=y").unwrap();
        assert_eq!(parameters.text("fieldSelector"), "metadata.name=a b");
        assert!(parameters.flag("watch").unwrap());
        assert_eq!(parameters.number("limit").unwrap(), Some(5));
        assert!(parameters.has("x") && !parameters.has("z"));
        let repeated = Parameters::parse("a=1&b=2&&a=3").unwrap();
        assert_eq!(repeated.all("a").collect::<Vec<_>>(), ["1", "3"]);
        assert_eq!((repeated.text("a"), repeated.text("c")), ("1", ""));
        assert!(Parameters::parse("a=%f").is_err());
        assert!(Parameters::parse(&"a=1&".repeat(64)).is_ok());
        assert!(Parameters::parse(&"a=1&".repeat(65)).is_err());
        assert!(Parameters::parse("watch=maybe").unwrap().flag("watch").is_err());
    }

    #[test]
    fn answer_is_indented_for_people() {
        let check = |query: &str, agent: &str, expect: bool| {
            let request = http::Request::get(format!("/version{query}")).header("user-agent", agent);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(is_read_by_eye(&parts), expect, "{query} {agent}");
        };
        check("", "curl/8", true);
        check("?watch=1", "Mozilla/5.0 (X11)", true);
        check("", "kubectl/1.36", false);
        check("", "not curl", false);
        check("?pretty=1", "kubectl/1.36", true);
        check("?pretty=false", "curl/8", false);
        check("?pretty=maybe", "curl/8", false);
        check("?name=pretty", "kubectl/1.36", false);
    }

    #[test]
    fn only_a_write_may_ask_for_no_object() {
        let form = |prefer: &str, is_write| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", prefer.parse().unwrap());
            wanted_form(&headers, is_write).unwrap()
        };
        for (prefer, expect) in [
            ("return=minimal", Form::Nothing),
            ("wait=5, return=minimal", Form::Nothing),
            ("respond-async; return=minimal", Form::Nothing),
            ("return=representation", Form::Whole),
            ("", Form::Whole),
        ] {
            assert_eq!((form(prefer, true), form(prefer, false)), (expect, Form::Whole), "{prefer}");
        }
    }

    #[test]
    fn pieces_of_a_body_are_counted_and_paid_for() {
        let machine = Machine { memory_bytes: 1 << 30, descriptors: 4096, processors: 2 };
        let limits = Limits::new(&Capacity::of(&machine));
        // an hour later, so that no bucket refills meanwhile
        let later = std::time::Instant::now() + Duration::from_secs(3600);
        let sender = limits.slot(None, [127, 0, 0, 1].into(), later);
        let mut pieces = Pieces::default();
        assert_eq!((0..20_000).take_while(|_| pieces.one_more(&sender)).count(), 16_384);
        let left = std::iter::from_fn(|| sender.pace(later).ok()).count();
        assert_eq!(left, 1000 - 128, "a request for each 128");
    }

    #[test]
    fn body_that_stops_or_drips_ends_soon() {
        let begun = Instant::now();
        let secs = Duration::from_secs;
        // steadily at the slowest pace: never late, for 13 minutes
        let (mut pace, mut now) = (BodyPace::begin(begun), begun);
        for _ in 0..MAX_BODY_BYTES as u64 / BODY_BYTES_PER_SEC {
            now += secs(1);
            assert!(now <= pace.deadline);
            pace.received(BODY_BYTES_PER_SEC as usize, now);
        }
        // nearly all at once, then a byte now and then
        let mut pace = BodyPace::begin(begun);
        pace.received(MAX_BODY_BYTES - 100, begun);
        assert_eq!(pace.deadline, begun + BODY_GRACE);
        for second in 1..10 {
            pace.received(1, begun + secs(second));
        }
        assert!(pace.deadline < begun + BODY_GRACE + secs(1));
    }

    #[test]
    fn first_supported_form_is_chosen() {
        let check = |accept: &str, expect: Option<Form>| {
            let mut headers = HeaderMap::new();
            headers.insert("accept", accept.parse().unwrap());
            assert_eq!(wanted_form(&headers, false).ok(), expect, "{accept}");
        };
        check("", Some(Form::Whole));
        check("application/json", Some(Form::Whole));
        check("application/vnd.kubernetes.protobuf,application/json", Some(Form::Whole));
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            Some(Form::Table("v1")),
        );
        check("application/json;as=Table;v=v1beta1;g=meta.k8s.io", Some(Form::Table("v1beta1")));
        check("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", Some(Form::Metadata("v1")));
        check("application/json, */*", Some(Form::Whole));
        check("application/yaml", None);
    }
}
