//! `kedge doctor`: checks this node, its means to run pods, and everything between it and its API server, and
//! gives a remedy for each fault.
//!
//! Always holds: each check has its own time limit, so one that hangs (a disk, a resolver) delays the others
//! by that at most; a process that waits for a disk cannot be ended, so another process makes the write that
//! may have to wait; a fact that this user may not see is shown as unknown, never as good or bad; no state of
//! the agent is changed, and its lock is never taken. Leaves to others: the node's own checks (`node`), those
//! for pods (`containers`), the way to the server (`server`).

mod containers;
mod finding;
mod flush;
mod node;
mod server;

use crate::doctor::finding::{Finding, Level, within};
use crate::options::{AgentOptions, Output};
use crate::output;
use containers::Running;
use std::time::Duration;

pub use flush::write as write_to_disk;

/// How long the checks for pods may take: each of the registries has its own limit.
const CONTAINERS_LIMIT: Duration = Duration::from_secs(150);

/// Runs all checks; prints the findings; returns whether none failed.
pub fn run(options: &AgentOptions, output: Output) -> bool {
    let mut findings = Vec::new();
    let mut tell = |found: Vec<Finding>| {
        if output == Output::Text {
            found.iter().for_each(|finding| output::print(text(finding)));
        }
        findings.extend(found);
    };
    for (name, check) in node::CHECKS {
        let options = options.clone();
        tell(limited(name, node::LIMIT, move || check(&options)));
    }
    let (asker, mut options) = (options.clone(), options.clone());
    let running = within(node::LIMIT, move || Running::ask(&asker)).unwrap_or_default();
    let (looker, seen) = (options.clone(), running.clone());
    tell(limited("containers", CONTAINERS_LIMIT, move || containers::check(&looker, &seen)));
    // the running agent's server counts, however it was started, unless the command line gives one
    if options.kubeconfig.is_none() {
        options.kubeconfig = running.status["server"]["kubeconfig"].as_str().map(Into::into);
    }
    tell(identity(&running.status["identity"]).into_iter().collect());
    server::check(&options, running.status["node"].as_str(), &mut tell);
    if output == Output::Json {
        output::print(serde_json::to_string_pretty(&findings).expect("findings can be written"));
    }
    findings.iter().all(|finding| finding.level != Level::Fail)
}

/// The running agent's report about its credential.
fn identity(report: &serde_json::Value) -> Option<Finding> {
    let state = report["state"].as_str()?;
    let found = crate::status::identity(report);
    Some(match state {
        "valid" if report["message"].is_null() => Finding::ok("identity", found),
        "none" if report["message"].is_null() => return None,
        "expired" => {
            let advice =
                "a hub lets it back in if its key is the newest; else make a token: kedge-hub token create";
            Finding::fail("identity", found, advice)
        }
        "denied" => Finding::fail("identity", found, "approve its next request, or make another token"),
        _ => Finding::warn("identity", found, "approve the request: kubectl certificate approve NAME"),
    })
}

fn text(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Ok => "OK",
        Level::Warn => "WARN",
        Level::Fail => "FAIL",
    };
    let advice =
        finding.advice.as_ref().map(|advice| format!("\n                  -> {advice}")).unwrap_or_default();
    format!("{level:<5} {:<11} {}{advice}", finding.check, finding.found)
}

/// The findings of the check, or one that it took too long. Its thread ends with the process.
fn limited(
    name: &'static str,
    limit: Duration,
    check: impl FnOnce() -> Vec<Finding> + Send + 'static,
) -> Vec<Finding> {
    within(limit, check).unwrap_or_else(|| {
        let found = format!("no answer within {} s", limit.as_secs());
        vec![Finding::fail(name, found, "what it looks at hangs: see dmesg and the network's state")]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn hanging_check_fails_and_the_others_go_on() {
        let (_never, hangs) = mpsc::channel::<()>();
        let found = limited("dns", Duration::from_millis(10), move || {
            let _ = hangs.recv();
            Vec::new()
        });
        assert_eq!((found[0].check, found[0].level), ("dns", Level::Fail));
        assert_eq!(limited("tcp", Duration::from_secs(60), || vec![Finding::ok("tcp", "fine")]).len(), 1);
    }
}
