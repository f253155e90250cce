//! `kedge-hub ca new|status|switch|retire`: one authority replaces another, step by step.
//!
//! Always holds: a step that would cut nodes off is refused, with the number of nodes, unless the operator
//! gives up that many with `--leave`. The running hub answers before each such step, because it alone knows
//! the nodes' reports. A line in the audit log comes before the step. The steps are taken on disk and hold
//! from the hub's next start on. Left to others: the files (`pki`), the count of nodes
//! (`server::authorities`).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::asking::{self, ask};
use crate::audit::{ObjectRef, append_line};
use crate::flags::{CaAct, CaCommand};
use crate::pki::{self, Known, Role, Step};

const RESTART: &str = "Restart the hub now, it takes this at its start (systemctl restart kedge-hub).";

/// Runs the command; returns what to print.
///
/// # Errors
/// The step does not fit, would cut off nodes, or a file or the hub fails; nothing was changed.
pub async fn run(command: &CaCommand) -> Result<String, String> {
    let data_dir = &command.data_dir;
    match command.act {
        CaAct::Status => status(data_dir, command.json).await,
        CaAct::New => {
            let number = step(data_dir, Step::New)?;
            Ok(format!(
                "authority {number} is made: it signs nothing, and nodes learn to trust it. {RESTART}\n\
                 Then wait until `kedge-hub ca status` shows that all nodes trust it, and let it sign with `kedge-hub ca switch`.\n\
                 Kubeconfigs of people know the old authority alone: make them anew before the old one is retired.\n"
            ))
        }
        CaAct::Switch { back: true, .. } => {
            let number = step(data_dir, Step::Switch { back: true })?;
            Ok(format!("authority {number} signs again. {RESTART}\n"))
        }
        CaAct::Switch { back: false, leave } => {
            let seen = Seen::ask(data_dir).await?;
            seen.has_opened(data_dir)?;
            seen.may_leave(
                leave,
                "would not trust the hub any more unless they come back before the old authority is retired",
            )?;
            let number = step(data_dir, Step::Switch { back: false })?;
            Ok(format!(
                "authority {number} signs from now on, and the former one is still trusted. {RESTART}\n\
                 Nodes get a certificate of it when they renew theirs. Then end the trust in the former one with `kedge-hub ca retire`;\n\
                 until then `kedge-hub ca switch --back` undoes this.\n"
            ))
        }
        CaAct::Retire { number, leave } => {
            let seen = Seen::ask(data_dir).await?;
            seen.has_opened(data_dir)?;
            seen.may_leave(leave, "do not trust the new authority yet")?;
            seen.may_end(number, leave)?;
            step(data_dir, Step::Retire(number))?;
            Ok(format!(
                "authority {number} is retired and its key erased. {RESTART}\n\
                 A node with a certificate of it can still ask for a new one, and for nothing else.\n"
            ))
        }
    }
}

fn step(data_dir: &Path, step: Step) -> Result<u8, String> {
    let (verb, name) = match step {
        Step::New => ("ca-new", String::new()),
        Step::Switch { back: false } => ("ca-switch", String::new()),
        Step::Switch { back: true } => ("ca-switch-back", String::new()),
        Step::Retire(number) => ("ca-retire", number.to_string()),
    };
    let object = ObjectRef { resource: "authorities", name: &name, ..ObjectRef::default() };
    append_line(data_dir, verb, object, &[]).map_err(|error| {
        format!("nothing was changed, because the audit log has no line about it: {error}")
    })?;
    pki::step(data_dir, step).map_err(|error| error.to_string())
}

async fn status(data_dir: &Path, json: bool) -> Result<String, String> {
    let disk = pki::on_disk(data_dir).map_err(|error| error.to_string())?;
    let answer = ask(data_dir, "GET", "/kedge/authorities", &Value::Null).await;
    if json {
        return answer.map(|answer| format!("{answer:#}\n"));
    }
    let row = |known: &Known| {
        [known.number.to_string(), known.role.name().to_owned(), known.name.clone(), known.sha256.clone()]
    };
    let mut out = asking::table(["NUMBER", "ROLE", "NAME", "SHA256"], disk.iter().map(row));
    match answer.as_ref().map(Seen::read) {
        Err(error) => {
            out.push_str(&format!("\nThe nodes are unknown, because the hub does not answer: {error}\n"))
        }
        Ok(seen) => {
            if seen.roles != roles(&disk) {
                out.push_str("\nThe hub was started before the last step: restart it.\n");
            }
            out.push_str(&seen.text());
        }
    }
    Ok(out)
}

fn roles(disk: &[Known]) -> Vec<(u64, String)> {
    disk.iter().map(|known| (u64::from(known.number), known.role.name().to_owned())).collect()
}

/// The running hub's answer.
struct Seen {
    /// Number and role of each authority that it has opened.
    roles: Vec<(u64, String)>,
    /// How many nodes have a certificate of each authority, and some of their names.
    holders: BTreeMap<u64, (u64, Vec<String>)>,
    trusting: u64,
    behind: u64,
    forgotten: u64,
    /// Some of those that are behind.
    names: Vec<String>,
}

impl Seen {
    async fn ask(data_dir: &Path) -> Result<Seen, String> {
        let answer = ask(data_dir, "GET", "/kedge/authorities", &Value::Null).await;
        answer.map(|answer| Seen::read(&answer)).map_err(|error| {
            format!("nothing was changed, because the hub does not say which nodes would be cut off: {error}")
        })
    }

    fn read(answer: &Value) -> Seen {
        let list = || answer["authorities"].as_array().into_iter().flatten();
        let number = |one: &Value| one["number"].as_u64().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
        let holders = |one: &Value| {
            let found = &one["holders"];
            (number(one), (found["count"].as_u64().unwrap_or_default(), texts(&found["names"])))
        };
        let nodes = &answer["nodes"];
        let count = |name: &str| nodes[name].as_u64().unwrap_or_default();
        Seen {
            roles: list().map(|one| (number(one), text(&one["role"]))).collect(),
            holders: list().map(holders).collect(),
            trusting: count("trusting"),
            behind: count("behind"),
            forgotten: count("forgotten"),
            names: texts(&nodes["names"]),
        }
    }

    /// Whether the hub has opened the authorities that are on disk: otherwise its nodes report about another
    /// set.
    fn has_opened(&self, data_dir: &Path) -> Result<(), String> {
        let disk = pki::on_disk(data_dir).map_err(|error| error.to_string())?;
        match self.roles == roles(&disk) {
            true => Ok(()),
            false => {
                Err("nothing was changed: the hub was started before the last step; restart it first"
                    .to_owned())
            }
        }
    }

    fn may_leave(&self, leave: u64, fate: &str) -> Result<(), String> {
        if self.behind <= leave {
            return Ok(());
        }
        Err(format!(
            "nothing was changed: {} nodes {fate} ({}); wait for them, or give them up with --leave {}",
            self.behind,
            some(self.behind, &self.names),
            self.behind
        ))
    }

    /// Whether the certificates of an authority may end.
    fn may_end(&self, number: u8, leave: u64) -> Result<(), String> {
        let number = u64::from(number);
        // the one that signs is refused for that
        let signs = self.roles.contains(&(number, Role::Signing.name().to_owned()));
        match self.holders.get(&number).filter(|_| !signs) {
            Some((count, names)) if *count > leave => Err(format!(
                "nothing was changed: {count} nodes have a certificate of authority {number} ({}); wait until they have renewed it, \
                 let them do it at once with `kedge-hub node rotate NAME`, or give them up with --leave {count}: they would lose \
                 contact until they have asked for another one",
                some(*count, names)
            )),
            _ => Ok(()),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("\nnodes that trust all of the trusted ones: {}\n", self.trusting);
        if self.behind > 0 {
            let names = some(self.behind, &self.names);
            text.push_str(&format!("nodes that do not yet: {} ({names})\n", self.behind));
        }
        for (number, role) in &self.roles {
            if let Some((count, names)) = self.holders.get(number)
                && *count > 0
                && role != Role::Signing.name()
            {
                let names = some(*count, names);
                text.push_str(&format!(
                    "nodes with a certificate of authority {number}: {count} ({names})\n"
                ));
            }
        }
        if self.forgotten > 0 {
            text.push_str(&format!(
                "nodes that do not, and are silent for more than 90 days: {}\n",
                self.forgotten
            ));
        }
        text
    }
}

/// Some names of many.
fn some(count: u64, names: &[String]) -> String {
    let more = if count > names.len() as u64 { ", ..." } else { "" };
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn step_that_leaves_nodes_behind_names_them() {
        let seen = |behind: u64| {
            Seen::read(
                &json!({"authorities": [{"number": 1, "role": "former", "holders": {"count": 2, "names": ["c", "d"]}},
                {"number": 2, "role": "signing", "holders": {"count": 9, "names": ["e"]}}],
                "nodes": {"trusting": 3, "behind": behind, "forgotten": 0, "names": ["a", "b"]}}),
            )
        };
        assert_eq!(seen(0).may_leave(0, "wait"), Ok(()));
        assert_eq!(seen(2).may_leave(2, "wait"), Ok(()));
        let expect =
            "nothing was changed: 2 nodes wait (a, b); wait for them, or give them up with --leave 2";
        assert_eq!(seen(2).may_leave(1, "wait"), Err(expect.to_owned()));
        assert!(seen(3).text().contains("do not yet: 3 (a, b, ...)"));
        assert_eq!(seen(0).roles, [(1, "former".to_owned()), (2, "signing".to_owned())]);
        let error = seen(0).may_end(1, 1).unwrap_err();
        assert!(
            error.starts_with("nothing was changed: 2 nodes have a certificate of authority 1 (c, d);"),
            "{error}"
        );
        assert_eq!((seen(0).may_end(1, 2), seen(0).may_end(2, 0)), (Ok(()), Ok(())));
        let text = seen(0).text();
        assert!(
            text.contains("a certificate of authority 1: 2 (c, d)\n") && !text.contains("authority 2"),
            "{text}"
        );
    }
}
