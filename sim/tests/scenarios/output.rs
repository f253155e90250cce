//! The acts of a node, as the lines of a scenario.
//!
//! Owns the names in them: `a` is the UID of ConfigMap `a`, `a'` of the next ConfigMap with that name, `a.2`
//! its second version (a checkpoint has the name of the version from which it was made), and `startups a'`
//! are the counts of the second payload of `a`; counts of payloads that did not run last follow after a `|`,
//! if there are any. Always holds: every write, exit, log line, event and change of the reported condition is
//! a line, and so is an event that is posted later. Left out: reads, requests, renewals, contact, endings
//! that the command itself names (`stop`, `crash`, `cut`), the event of an adoption, and the config in use
//! while it stays the same.

use kedge_core::config::records::StateFile;
use kedge_core::system::programs;
use kedge_core::{Action, Level, Outcome, Step};
use kedge_sim::machine::{self, Machine};
use kedge_sim::{Seen, World};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The key of a payload unless a line names another.
const USUAL_KEY: &str = "kubelet";

/// Added to a condition that the API server has accepted.
const REPORTED: &str = ", reported";

/// The event of an adoption: the lines `writes` and `uses` beside it show the same.
const ADOPTED: &str = "KubeletConfigChanged";

/// Beginnings of lines about contact. They follow from the commands; core's `contact` tests them.
const CONTACT: [&str; 2] = ["contact with the API server", "no contact with the API server"];

/// How `crash` and `cut` end a run.
const USUAL_ENDS: [&str; 2] = [": exit code 101", ": the power failed, or the disk stalled"];

/// Most lines that differ only in numbers and are all shown; of more only the first and the last.
const ALIKE: usize = 3;

#[derive(Default)]
pub(crate) struct Observer {
    /// Names of all ConfigMaps that ever existed.
    pub(crate) config_maps: BTreeSet<String>,
    lines: Vec<String>,
    /// Texts that differ from world to world, and the names shown for them.
    names: BTreeMap<String, String>,
    /// Names of payloads.
    payloads: BTreeMap<String, String>,
    /// The checkpoints that were on disk.
    checkpoints: BTreeSet<String>,
    /// The ConfigMap that `current` names.
    current: String,
    /// `ConfigOK` as last logged, and as last accepted by the API server.
    logged: String,
    reported: String,
    condition: Option<Value>,
    /// Log lines that will become events, and whether a command ended before they did.
    unposted: Vec<(String, bool)>,
    /// For each checkpoint, by its path, the name of the version from which it was made.
    made_of: BTreeMap<String, String>,
    runs: String,
    kept: bool,
}

impl Observer {
    pub(crate) fn note(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }

    /// Notes what happened since the last call; `since` is the beginning of a command that takes time.
    pub(crate) fn observe(&mut self, world: &mut World, since: Option<Duration>) {
        if since.is_none() {
            // nobody pushes while time passes
            self.learn_names(world);
        }
        let time = since.map(|since| world.mono().saturating_sub(since)).unwrap_or_default();
        let from = self.lines.len();
        let seen = std::mem::take(&mut world.seen);
        let swept = seen.iter().any(|seen| matches!(seen, Seen::Asked(Action::Sweep { .. })));
        for seen in seen {
            let Some(line) = self.line(&seen) else { continue };
            let line = self.named(&line);
            match (self.lines[from..].last_mut(), line.strip_prefix("writes ")) {
                (Some(last), Some(record)) if last.starts_with("writes ") => {
                    last.push_str(&format!("; {record}"))
                }
                _ => self.lines.push(line),
            }
        }
        for path in std::mem::take(&mut world.disk.needless) {
            let name = self.file(&path);
            self.note(&format!("(as it was: {name})"));
        }
        if since.is_none() || swept {
            self.note_removed(world);
        }
        self.note_reported(world);
        self.note_events(world);
        self.note_what_runs(world, from);
        if !time.is_zero() {
            for line in &mut self.lines[from..] {
                *line = format!("{:<7} {line}", text_of(time));
            }
        }
    }

    /// The lines since the last call.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.note_unposted();
        shortened(std::mem::take(&mut self.lines))
    }

    fn learn_names(&mut self, world: &World) {
        for name in &self.config_maps.clone() {
            let Some(map) = world.hub.config_map(name) else { continue };
            let part = |part: &str| map["metadata"][part].as_str().unwrap_or_default().to_owned();
            let uid = self.name(&part("uid"), name, "'");
            let version = part("resourceVersion");
            if !self.names.contains_key(&version) {
                let number =
                    (1..).find(|n| !self.is_taken(&format!("{uid}.{n}"))).expect("numbers do not end");
                self.names.insert(version, format!("{uid}.{number}"));
            }
        }
        self.name(&world.hub.node_uid(), "NODE", "'");
    }

    /// The name for this text: `name`, with as many marks as make it new.
    fn name(&mut self, text: &str, name: &str, mark: &str) -> String {
        if let Some(name) = self.names.get(text) {
            return name.clone();
        }
        let mut name = name.to_owned();
        while self.is_taken(&name) {
            name.push_str(mark);
        }
        self.names.insert(text.to_owned(), name.clone());
        name
    }

    fn is_taken(&self, name: &str) -> bool {
        self.names.values().any(|other| other == name)
    }

    /// The text with UIDs and versions replaced by names. A resourceVersion is a plain number, so it is
    /// replaced only where the text says that it is one.
    fn named(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (raw, name) in self.names.iter().rev().filter(|(raw, _)| !raw.is_empty()) {
            if raw.bytes().all(|byte| byte.is_ascii_digit()) {
                for before in ["ResourceVersion: ", "resourceVersion ", "assigned ", "resourceVersion \""] {
                    text = text.replace(&format!("{before}{raw}"), &format!("{before}{name}"));
                }
            } else {
                text = text.replace(raw.as_str(), name);
            }
        }
        for (payload, name) in &self.payloads {
            text = text.replace(payload, &format!("payload of {name}"));
        }
        short_source(text).trim_end().replace('\n', "\n    ")
    }

    fn line(&mut self, seen: &Seen) -> Option<String> {
        match seen {
            Seen::Asked(Action::Log(level, line)) => {
                if line.starts_with("ConfigOK=") {
                    let line = self.named(line);
                    return (std::mem::replace(&mut self.logged, line.clone()) != line).then_some(line);
                }
                if CONTACT.iter().any(|begin| line.starts_with(begin)) {
                    return None;
                }
                if let Some((reason, _)) = line.split_once(": ").filter(|(reason, _)| is_reason(reason)) {
                    self.unposted.push((line.clone(), false));
                    if reason == ADOPTED || USUAL_ENDS.iter().any(|end| line.ends_with(end)) {
                        return None;
                    }
                // a log line that repeats the line before it adds nothing
                } else if self.lines.last().is_some_and(|last| last.contains(&self.named(line))) {
                    return None;
                }
                Some(format!("{} {line}", if *level == Level::Warn { "warns" } else { "logs" }))
            }
            Seen::Asked(Action::Use(effective)) => {
                Some(format!("uses maxPods={}", effective.config.max_pods))
            }
            Seen::Asked(Action::Exit { why, .. }) => {
                (why != "asked to stop").then(|| format!("exits: {why}"))
            }
            Seen::Asked(Action::System(order)) => Some(format!("orders {}", Machine::shown(order))),
            Seen::Performed(Step::Write(file, bytes), Outcome::Done(Ok(()))) => {
                Some(format!("writes {}", self.record(file, bytes)))
            }
            Seen::Performed(Step::Write(file, _), Outcome::Done(Err(why))) => {
                Some(format!("cannot write {}: {why}", kedge_sim::disk::name(file)))
            }
            Seen::Performed(Step::SetAside(file), Outcome::Done(done)) => {
                let why = done.as_ref().err().map(|why| format!(": {why}")).unwrap_or_default();
                let verb = if why.is_empty() { "sets aside" } else { "cannot set aside" };
                Some(format!("{verb} {}{why}", kedge_sim::disk::name(file)))
            }
            _ => None,
        }
    }

    fn note_removed(&mut self, world: &World) {
        let there = world.disk.paths().into_iter().filter(|path| path.starts_with("checkpoints/"));
        let there: BTreeSet<String> = there.collect();
        let gone: Vec<String> =
            self.checkpoints.difference(&there).map(|path| self.checkpoint(path)).collect();
        gone.iter().for_each(|name| self.note(&format!("(gone: {name})")));
        self.checkpoints = there;
    }

    fn note_reported(&mut self, world: &World) {
        let Some(condition) = world.hub.condition("ConfigOK") else { return };
        if self.condition.replace(condition.clone()).as_ref() == Some(&condition) {
            return;
        }
        let part = |part: &str| condition[part].as_str().unwrap_or_default();
        let text = format!("ConfigOK={}: {} ({})", part("status"), part("message"), part("reason"));
        let text = self.named(&text);
        if text == self.reported {
            return;
        }
        match self.lines.iter_mut().rev().find(|line| **line == text) {
            Some(logged) => logged.push_str(REPORTED),
            None if text == self.logged => self.note(&format!("ConfigOK={}{REPORTED}", part("status"))),
            None => self.note(&format!("{text}{REPORTED}")),
        }
        self.reported = text;
    }

    /// An event repeats a logged line, so it is not shown if it is posted in the same command.
    fn note_events(&mut self, world: &mut World) {
        for event in std::mem::take(&mut world.hub.events) {
            let part = |part: &str| event[part].as_str().unwrap_or_default();
            let (reason, event) = (part("reason"), format!("{}: {}", part("reason"), part("message")));
            match self.unposted.iter().position(|(line, _)| *line == event) {
                Some(at) if self.unposted.remove(at).1 => self.note(&format!("posts {reason}")),
                Some(_) => {}
                None => self.note(&self.named(&format!("posts {event}"))),
            }
        }
    }

    fn note_unposted(&mut self) {
        let mut unposted = std::mem::take(&mut self.unposted);
        for (line, is_noted) in &mut unposted {
            if !std::mem::replace(is_noted, true) {
                let reason = line.split(':').next().unwrap_or_default();
                self.note(&format!("(not posted yet: {reason})"));
            }
        }
        self.unposted = unposted;
    }

    /// The config in use, beside the line that shows since when, and whether evidence of the previous run
    /// waits for a disk.
    fn note_what_runs(&mut self, world: &World, from: usize) {
        let runs = runs(world);
        let used = (from..self.lines.len()).rev().find(|at| self.lines[*at].starts_with("uses "));
        if runs.is_empty() {
            // between two runs: the next one is compared with the last
        } else if let Some(used) = used {
            match runs == self.runs {
                true => drop(self.lines.remove(used)),
                false => self.lines[used].clone_from(&runs),
            }
            self.runs = runs;
        } else if runs != self.runs {
            self.note(&format!("is now {}", runs.split(", ").last().unwrap_or_default()));
            self.runs = runs;
        }
        let kept = world.process.is_some() && world.board.has_evidence();
        if kept && !self.kept {
            self.note("(the evidence is kept)");
        }
        self.kept = kept;
    }

    fn checkpoint(&self, path: &str) -> String {
        format!("checkpoint {}", self.made_of.get(path).map_or(path, String::as_str))
    }

    /// A record in a few words.
    fn record(&mut self, file: &StateFile, bytes: &[u8]) -> String {
        let record: Value = serde_json::from_slice(bytes).unwrap_or_default();
        match file {
            StateFile::Checkpoint(_) => {
                let version = record["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                let name = self.names.get(version).cloned().unwrap_or_else(|| version.to_owned());
                self.made_of.insert(file.path(""), name);
                self.checkpoint(&file.path(""))
            }
            StateFile::Current => {
                self.current = self.named(record["uid"].as_str().unwrap_or_default());
                format!("current: {}", self.source(&record))
            }
            StateFile::LastKnownGood => format!("last-known-good: {}", self.source(&record)),
            StateFile::BadConfigs => format!("bad-configs: {}", self.verdicts(&record)),
            StateFile::Startups => self.counts(&record),
            StateFile::SystemWanted => format!("system/wanted: {}", wanted(&record)),
            StateFile::SystemBad => format!("system/bad: {}", bad(&record)),
        }
    }

    fn source(&self, record: &Value) -> String {
        let text = |member: &str| record[member].as_str().unwrap_or_default();
        let mut words = Vec::new();
        if record["local"] == json!(true) {
            words.push("local".to_owned());
        } else {
            let pinned = record["source"]["configMapRef"].is_object();
            let version = text("resourceVersion");
            let version = self.names.get(version).map_or(version, String::as_str);
            words.push(format!("{version} {}", if pinned { "pinned" } else { "followed" }));
            if text("checkpoint") != text("uid") {
                words.push(format!("checkpoint of {}", text("checkpoint")));
            }
            let key = record["source"]["configMap"]["kubeletConfigKey"].as_str().unwrap_or(USUAL_KEY);
            if key != USUAL_KEY {
                words.push(format!("key {key}"));
            }
        }
        if !matches!(self.named(text("nodeUID")).as_str(), "" | "NODE") {
            words.push(format!("for {}", text("nodeUID")));
        }
        if let Some(system) = record["system"].as_str() {
            words.push(format!("on {}", system_of(system)));
        }
        if record["previous"].is_object() {
            words.push(format!("before it {}", self.source(&record["previous"])));
        }
        if record["downloaded"] == json!(false) {
            words.push("preloaded".into());
        }
        if !text("invalidSource").is_empty() {
            words.push("source invalid".into());
        }
        if record["reset"] == json!(true) {
            words.push("reset".into());
        }
        self.named(&words.join(", "))
    }

    fn counts(&mut self, record: &Value) -> String {
        let last = record["last"].as_str().unwrap_or_default().to_owned();
        let name = self.payload(&last);
        let mut shown = format!(
            "startups {name}: {}",
            counts_of(&record["records"][&last], record["hold"] == json!(true))
        );
        for (other, counts) in
            record["records"].as_object().into_iter().flatten().filter(|(other, _)| **other != last)
        {
            let words = counted(counts);
            if !words.is_empty() {
                let name = self.payload(other);
                shown.push_str(&format!(" | {name}: {}", words.join(", ")));
            }
        }
        shown
    }

    /// The name of a payload: that of the ConfigMap assigned when it was first seen.
    fn payload(&mut self, digest: &str) -> String {
        if digest == "local" {
            return digest.to_owned();
        }
        let mut name = self.current.clone();
        while self.payloads.iter().any(|(other, taken)| *taken == name && other != digest) {
            name.push('\'');
        }
        self.payloads.entry(digest.to_owned()).or_insert(name).clone()
    }

    fn verdicts(&self, record: &Value) -> String {
        let entries = record.as_object().into_iter().flatten();
        let entries = entries.map(|(uid, entry)| match entry["contents"].as_object() {
            None if entry.is_string() => format!("{uid}: {}", self.named(entry.as_str().unwrap_or_default())),
            None => format!("{} (every content)", self.named(uid)),
            Some(contents) => format!("{} {}", self.named(uid), kinds(contents)),
        });
        let entries: Vec<String> = entries.collect();
        if entries.is_empty() { "none".into() } else { entries.join("; ") }
    }

    /// The path of a record, or of the checkpoint of a ConfigMap.
    pub(crate) fn path_of(&self, world: &World, name: &str) -> String {
        match name {
            "checkpoint-of-last-known-good" => {
                let record = world.file("last-known-good").expect("there is one");
                let part = |part: &str| record[part].as_str().expect("a text").to_owned();
                format!("checkpoints/{}/{}", part("checkpoint"), part("sha256"))
            }
            "bad-configs" | "startups" => format!("{}/{name}.json", world.version),
            _ => match name.strip_prefix("checkpoint-") {
                Some(name) => {
                    let uid = world.hub.uid_of(name);
                    let path = world.disk.paths().into_iter().find(|path| path.contains(&uid));
                    path.expect("a checkpoint of it")
                }
                None => name.to_owned(),
            },
        }
    }

    /// The content of a record on disk, or the list of files.
    pub(crate) fn show(&mut self, world: &World, what: &str) {
        self.learn_names(world);
        let file = match what {
            "current" => StateFile::Current,
            "last-known-good" => StateFile::LastKnownGood,
            "bad-configs" => StateFile::BadConfigs,
            "startups" => StateFile::Startups,
            "verdicts" => {
                let bad = world.report().config.bad;
                let uids: Vec<String> = bad.iter().map(|entry| self.named(&entry.uid)).collect();
                return self.note(&format!("knows verdicts on {}", uids.join(", ")));
            }
            "files" => {
                let names: Vec<String> = world.disk.paths().iter().map(|path| self.file(path)).collect();
                return self.note(&names.join(", "));
            }
            _ => panic!("show what?"),
        };
        let line = match world.disk.content(&file.path(&world.version)) {
            Some(bytes) => self.record(&file, &bytes),
            None => format!("{what}: absent"),
        };
        let line = self.named(&line);
        self.note(&line);
    }

    fn file(&self, path: &str) -> String {
        if path.starts_with("checkpoints/") { self.checkpoint(path) } else { path.to_owned() }
    }
}

/// Whether it is the reason of an event: one word in camel case.
fn is_reason(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphabetic())
        && word != "GET"
}

/// Replaces a complete reference to a version of a ConfigMap by the name of that version, and its key if it
/// is not the usual one.
fn short_source(text: String) -> String {
    let (begin, middle) = ("/api/v1/namespaces/kube-system/configmaps/", ", KubeletConfigKey: ");
    let Some((before, rest)) = text.split_once(begin) else { return text };
    let Some((reference, after)) = rest.split_once(middle) else { return text };
    let version = reference.split("ResourceVersion: ").last().unwrap_or_default();
    let key = after.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let shown = if key == USUAL_KEY { String::new() } else { format!(" key {key}") };
    format!("{before}{version}{shown}{}", &after[key.len()..])
}

/// The config in use, and its state.
fn runs(world: &World) -> String {
    let Some(process) = world.process.as_ref().filter(|process| process.exit.is_none()) else {
        return String::new();
    };
    let report = process.node.report(world.now());
    let Some((report, used)) = report.zip(process.used) else { return String::new() };
    format!("uses maxPods={used}, {}", report.config.state)
}

fn kinds(contents: &Map<String, Value>) -> String {
    let kind = |verdict: &Value| {
        let kind = verdict["kind"].as_str().unwrap_or_default();
        let tries = verdict["tries"].as_u64().filter(|tries| *tries > 0).map(|tries| format!(" {tries}"));
        let retry = if verdict["retry"] == json!(true) { " to be tried again" } else { "" };
        format!("{kind}{}{retry}", tries.unwrap_or_default())
    };
    contents.values().map(kind).collect::<Vec<_>>().join(", ")
}

/// The crashes and cuts counted against a config.
fn counted(record: &Value) -> Vec<String> {
    let startups = record["startups"].as_array().map_or(0, Vec::len) as u64;
    let counted = [(startups, "crashes"), (record["cuts"].as_u64().unwrap_or_default(), "cuts")];
    let mut words: Vec<String> =
        counted.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{what} {n}")).collect();
    if let Some(boot) = record["open"].as_str() {
        let number = boot.rsplit('-').next().unwrap_or_default();
        words.push(format!("open in boot-{}", number.trim_start_matches('0')));
    }
    words
}

/// All counts of the config that ran last.
fn counts_of(record: &Value, is_held: bool) -> String {
    let number = |member: &str| record[member].as_u64().unwrap_or_default();
    let mut words = vec![format!("ran {}", text_of(Duration::from_millis(number("ran_ms"))))];
    let mut counted = counted(record);
    let end = if record["open"].is_string() { counted.pop() } else { None };
    words.extend(counted);
    if record["heard"] == json!(true) {
        words.push("contact".into());
    }
    if is_held {
        words.push("pods held".into());
    }
    match (record["trial_ms"].as_u64(), record["threshold"].as_u64()) {
        (Some(600_000), Some(10)) => {}
        (Some(trial), Some(threshold)) => {
            words.push(format!("terms {}/{threshold}", text_of(Duration::from_millis(trial))));
        }
        _ if words == ["ran 0s"] => words = vec!["new".into()],
        _ => words.push("terms unknown".into()),
    }
    words.push(end.unwrap_or_else(|| "closed".into()));
    words.join(", ")
}

/// `2h`, `2m30s`, `0s`: whole seconds.
fn text_of(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let text: String = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if text.is_empty() { "0s".into() } else { text }
}

/// A line without its numbers.
fn form(line: &str) -> String {
    line.chars().filter(|c| !c.is_ascii_digit() && !matches!(c, 'h' | 'm' | 's' | ' ')).collect()
}

/// Of lines that differ only in numbers, the first and the last.
fn shortened(lines: Vec<String>) -> Vec<String> {
    let mut short = Vec::new();
    for group in lines.chunk_by(|one, other| form(one) == form(other)) {
        match group {
            [first, .., last] if group.len() > ALIKE => {
                short.extend([first.clone(), format!("... {} more", group.len() - 2), last.clone()]);
            }
            _ => short.extend(group.iter().cloned()),
        }
    }
    short
}

/// The same for rounds.
pub(crate) fn shortened_rounds(rounds: Vec<Vec<String>>) -> Vec<String> {
    let form = |round: &Vec<String>| round.iter().map(|line| form(line)).collect::<Vec<_>>();
    let mut short = Vec::new();
    for group in rounds.chunk_by(|one, other| form(one) == form(other)) {
        match group {
            [first, ..] if first.is_empty() => {}
            [first, .., last] if group.len() > 2 => {
                short.extend(first.clone());
                short.push(format!("... {} rounds more", group.len() - 2));
                short.extend(last.clone());
            }
            _ => short.extend(group.iter().flatten().cloned()),
        }
    }
    short
}

/// The letter of a system.
fn system_of(digest: &str) -> &str {
    if digest == programs::packaged().to_string() {
        return "X";
    }
    let systems = ["X", "Y", "Z"];
    systems.into_iter().find(|name| machine::digest_of(name).to_string() == digest).unwrap_or(digest)
}

fn wanted(record: &Value) -> String {
    let text = |member: &str| record[member].as_str().unwrap_or_default();
    if text("digest").is_empty() {
        return "nothing".into();
    }
    let mut words = format!("{} {}", system_of(text("digest")), text("state"));
    if let Some(attempts) = record["attempts"].as_u64() {
        words.push_str(&format!(", attempts {attempts}"));
    }
    words
}

fn bad(record: &Value) -> String {
    let list = |member: &str| record[member].as_array().cloned().unwrap_or_default();
    let system = |bad: &Value| {
        let text = |member: &str| bad[member].as_str().unwrap_or_default();
        let again = if text("again").is_empty() { "final" } else { text("again") };
        format!(
            "{} {} {} {again}",
            system_of(text("digest")),
            text("fault"),
            bad["tries"].as_u64().unwrap_or(0)
        )
    };
    let mut words: Vec<String> = list("systems").iter().map(system).collect();
    let pair = |pair: &Value| format!("a pair with {}", system_of(pair["digest"].as_str().unwrap_or("none")));
    words.extend(list("pairs").iter().map(pair));
    if words.is_empty() { "none".into() } else { words.join(", ") }
}
