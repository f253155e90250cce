//! The right that a request needs, as in a SubjectAccessReview: upstream's table of verbs and subresources of
//! `nodes`.

use crate::kubelet_api::Request;

/// The right: the verb on one of these subresources of the Node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) verb: &'static str,
    /// The finest first: one allowed is enough.
    pub(super) subresources: &'static [&'static str],
}

/// The right for a request; `None` for a method that no route has. It uses the same decoded segments as the
/// routes do.
pub(super) fn wanted(request: &Request) -> Option<Wanted> {
    let verb = match request.method.as_str() {
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => return None,
    };
    let subresources: &[&str] = match first(request) {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        "statusz" => &["statusz"],
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" | "flagz" => &["configz", "proxy"],
        _ => &["proxy"],
    };
    Some(Wanted { verb, subresources })
}

/// Whether `enableDebuggingHandlers: false` switches it off.
pub(super) fn is_debugging(request: &Request) -> bool {
    let debugging = [
        "run",
        "exec",
        "attach",
        "portForward",
        "containerLogs",
        "runningpods",
        "logs",
        "configz",
        "flagz",
        "debug",
    ];
    debugging.contains(&first(request))
}

fn first(request: &Request) -> &str {
    request.path.first().map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, path: &str, verb: &'static str, subresources: &'static [&'static str]) {
        let path = path.split('/').map(str::to_owned).collect();
        let request = Request { method: method.into(), path, query: Vec::new(), headers: Vec::new() };
        assert_eq!(wanted(&request), Some(Wanted { verb, subresources }));
    }

    #[test]
    fn subresources_are_those_of_upstream() {
        check("GET", "containerLogs/n/p/c", "get", &["proxy"]);
        check("POST", "exec/n/p/c", "create", &["proxy"]);
        check("GET", "exec/n/p/c", "get", &["proxy"]);
        check("GET", "metrics/resource", "get", &["metrics"]);
        check("GET", "stats/summary", "get", &["stats"]);
        check("GET", "logs/journal", "get", &["log"]);
        check("GET", "pods", "get", &["pods", "proxy"]);
        check("GET", "healthz", "get", &["healthz", "proxy"]);
        check("GET", "configz", "get", &["configz", "proxy"]);
        check("DELETE", "", "delete", &["proxy"]);
        // an encoded slash is part of a name
        check("GET", "stats%2Fsummary", "get", &["proxy"]);
    }
}
