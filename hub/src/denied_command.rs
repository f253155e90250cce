//! `kedge-hub denied list|lift`: an administrator's command, carried out by the running hub.
//!
//! Always holds: nothing is decided or written here. Left to others: the request (`asking`), the hub's side
//! (`server::node_access`).

use serde_json::Value;

use crate::asking::{self, ask};
use crate::flags::DeniedCommand;

/// Runs the command; returns what to print.
///
/// # Errors
/// No hub runs, or it refuses; the text names the request that failed.
pub async fn run(command: &DeniedCommand) -> Result<String, String> {
    let (method, path) = match &command.lift {
        None => ("GET", "/kedge/denials".to_owned()),
        Some(entry) => ("POST", format!("/kedge/denials/{entry}/lift")),
    };
    let answer = ask(&command.data_dir, method, &path, &Value::Null).await?;
    match (&command.lift, command.json) {
        (_, true) => Ok(format!("{answer:#}\n")),
        (None, false) => Ok(table(&answer)),
        (Some(_), false) => Ok(format!("{}\n", answer["message"].as_str().unwrap_or_default())),
    }
}

fn table(answer: &Value) -> String {
    let denials = answer["denials"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = denials.iter().map(|denial| {
        let word = |field: &str| denial["explanation"][field].as_str().filter(|text| !text.is_empty());
        let act = ["revoked", "readmitted", "decommissioned"].into_iter().find(|act| word(act).is_some());
        let shown = |text: Option<&str>| text.unwrap_or("-").replace(char::is_control, " ");
        [
            shown(denial["entry"].as_str()),
            shown(act.or(Some("denied"))),
            shown(act.and_then(word)),
            shown(word("by")),
            shown(word("reason")),
        ]
    });
    asking::table(["ENTRY", "STATE", "SINCE", "BY", "REASON"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn table_has_a_line_for_each_entry() {
        let answer = json!({"denials": [
            {"entry": "node.edge-1", "explanation": {"revoked": "2026-11-30T10:00:00Z", "issue": 7, "by": "admin", "reason": "stolen"}},
            {"entry": "user.jane", "explanation": null}]});
        let expect = "ENTRY         STATE     SINCE                  BY      REASON\n\
                      node.edge-1   revoked   2026-11-30T10:00:00Z   admin   stolen\n\
                      user.jane     denied    -                      -       -\n";
        assert_eq!(table(&answer), expect);
    }
}
