//! What a joining node still waits for, by the report of its agent (`kedge status`).
//!
//! Always holds: each sentence names the step, and the remedy if a person must act. Leaves to others: reading
//! the report, printing (`join`).

use serde_json::Value;

/// How far the node is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Ready,
    /// The sentence for people.
    Waits(String),
    /// The node will not become Ready without help.
    Over(String),
}

/// `report`: the agent's; `None` if no agent answers.
pub(crate) fn step(report: Option<&Value>, node: &str) -> Step {
    let Some(report) = report else {
        return Step::Waits("for the agent, which does not answer yet (journalctl -u kedge)".into());
    };
    let word =
        |pointer: &str| report.pointer(pointer).and_then(Value::as_str).filter(|word| !word.is_empty());
    let running = word("/node").unwrap_or_default();
    if running != node {
        return Step::Waits(format!(
            "for the agent, which still calls itself {running}, to restart as {node}"
        ));
    }
    let request = word("/identity/request").unwrap_or("its request");
    let why = word("/identity/message").map(|why| format!(": {why}")).unwrap_or_default();
    let is_in_contact = word("/contact/state") == Some("made");
    match word("/identity/state") {
        Some("denied") => {
            return Step::Over(format!(
                "{request} was denied on the hub{why}; make a new token there, and run kedge join again with it"
            ));
        }
        Some("waiting") if !is_in_contact => {
            return Step::Waits(format!(
                "for a person to approve {request}{why}. On the hub: kubectl certificate approve {request}"
            ));
        }
        _ => {}
    }
    if !is_in_contact {
        let problem =
            word("/server/problem").or(word("/contact/problem")).or(word("/server/problems/0/problem"));
        // the kubeconfig of a node that joins is made with its certificate
        let problem = problem.filter(|problem| !problem.ends_with("does not exist"));
        let problem = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
        return Step::Waits(match word("/identity/state") {
            None | Some("valid") => format!("for contact with the server{problem}"),
            Some("expired") => format!("for a certificate in place of the expired one{why}{problem}"),
            Some(_) => format!("for its certificate{why}{problem}"),
        });
    }
    if report["registered"] != true {
        let problem = word("/server/problems/0/problem").map(|why| format!(": {why}")).unwrap_or_default();
        return Step::Waits(format!("for its Node to be made{problem}"));
    }
    match (word("/ready/status"), report["statusPosts"].as_u64()) {
        (Some("True"), Some(1..)) => Step::Ready,
        (Some("True"), _) => Step::Waits("for its first status to be taken".into()),
        _ => {
            Step::Waits(format!("for Ready, which is False: {}", word("/ready/message").unwrap_or("unknown")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(report: &Value, expect: &str) {
        let found = match step(Some(report), "edge-7") {
            Step::Ready => "ready".to_owned(),
            Step::Waits(why) => why,
            Step::Over(why) => format!("over: {why}"),
        };
        assert!(found.starts_with(expect), "{found}, expected {expect}");
    }

    #[test]
    fn each_wait_has_its_sentence() {
        assert!(
            matches!(step(None, "edge-7"), Step::Waits(why) if why.starts_with("for the agent, which does not answer"))
        );
        let mut report = json!({"node": "raspberrypi", "contact": {"state": "never"}, "registered": false, "statusPosts": 0,
            "ready": {"status": "False", "message": "container runtime is starting"}, "server": {"problems": []}});
        check(&report, "for the agent, which still calls itself raspberrypi, to restart as edge-7");
        report["node"] = "edge-7".into();
        check(&report, "for contact with the server");
        report["server"]["problems"] = json!([{"problem": "connect to hub: refused"}]);
        check(&report, "for contact with the server: connect to hub: refused");
        report["identity"] = json!({"state": "requesting"});
        check(&report, "for its certificate: connect to hub: refused");
        report["server"]["problem"] = "/etc/kedge/kubeconfig does not exist".into();
        assert!(matches!(step(Some(&report), "edge-7"), Step::Waits(why) if why == "for its certificate"));
        report["server"]["problem"] = Value::Null;
        report["identity"] = json!({"state": "waiting", "request": "node-csr-1", "message": "NameTaken"});
        check(
            &report,
            "for a person to approve node-csr-1: NameTaken. On the hub: kubectl certificate approve node-csr-1",
        );
        report["identity"]["state"] = "denied".into();
        check(&report, "over: node-csr-1 was denied on the hub: NameTaken");
        report["identity"]["state"] = "valid".into();
        check(&report, "for contact");
        report["contact"]["state"] = "made".into();
        check(&report, "for its Node to be made: connect");
        report["registered"] = true.into();
        check(&report, "for Ready, which is False: container runtime is starting");
        report["ready"]["status"] = "True".into();
        check(&report, "for its first status");
        report["statusPosts"] = 1.into();
        check(&report, "ready");
        report["identity"]["state"] = "waiting".into();
        check(&report, "ready");
    }
}
