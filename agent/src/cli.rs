//! The commands that are not the agent: they query a running one through its socket, or read and check files.
//!
//! Always holds: with `--output json` standard output is one JSON value; a command that changes something
//! prints what it did, and to which agent or file. Leaves to others: the meaning of records and
//! configurations (core), the socket (`local::client`).

use crate::local::client::{self, AskError};
use crate::options::{AgentOptions, CheckOptions, Output, Places};
use crate::output::{CommandError, print};
use crate::{VERSION, forecast, images, local_config, status};
use kedge_core::config::records::{BadConfigs, Current, Known, Read, Startups, StateFile};
use kedge_core::images::Reference;
use kedge_core::kubelet::{self, LayerText, LocalLayers, Origin};
use kedge_platform::exit::write_exit_record;
use kedge_platform::files::Kind;
use kedge_platform::linux::{self, LinuxClocks, Roots};
use kedge_platform::{Clocks, ExitRecord, Files, ReadError, RunDirectory, workloads};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Names of one directory that `kedge config history` reads.
const HISTORY_ENTRIES: usize = 1_000;

/// In the name of every file that was set aside.
const SET_ASIDE: &str = ".corrupt-";

/// Longest record read.
const RECORD_BYTES: usize = 4 * 1024 * 1024;

fn failed(error: impl fmt::Display) -> CommandError {
    CommandError::new(error)
}

/// An error below a directory, whose paths are relative to it.
fn failed_in(directory: &Path, error: &dyn std::error::Error) -> CommandError {
    failed(format_args!("{}: {}", directory.display(), crate::errors::chain(error)))
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value can be written")
}

/// `kedge version`.
pub fn version(output: Output) {
    match output {
        Output::Text => print(format_args!("kedge {VERSION}")),
        Output::Json => {
            print(pretty(
                &json!({"version": VERSION, "kubeletVersion": kedge_core::kubelet_version(VERSION)}),
            ));
        }
    }
}

fn get(places: &Places, path: &str) -> Result<Vec<u8>, CommandError> {
    let socket = places.socket();
    let answer = client::get(&socket, path).map_err(|error| match nobody_listens(&error) {
        true => failed(format_args!(
            "no agent listens on {}; is it running, and is --run-dir right?",
            socket.display()
        )),
        false => failed(crate::errors::chain(&error)),
    })?;
    if answer.status != 200 {
        let text = String::from_utf8_lossy(&answer.body);
        return Err(failed(format_args!("agent at {}: {}", socket.display(), text.trim_end())));
    }
    Ok(answer.body)
}

fn get_json(places: &Places, path: &str) -> Result<Value, CommandError> {
    let body = get(places, path)?;
    serde_json::from_slice(&body).map_err(|error| {
        failed(format_args!("agent at {}: {path} is not JSON: {error}", places.socket().display()))
    })
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `kedge status`.
///
/// # Errors
/// No agent answers.
pub fn status(places: &Places, output: Output) -> Result<(), CommandError> {
    let status = get_json(places, "/status")?;
    if output == Output::Json {
        print(pretty(&status));
        return Ok(());
    }
    print(status::text(&status).trim_end());
    Ok(())
}

/// `kedge config status`: of the running agent, or else the forecast of the next start.
///
/// # Errors
/// A running agent does not answer; or none runs, and the next start would refuse or its records cannot be
/// read.
pub fn config_status(options: &AgentOptions, output: Output) -> Result<(), CommandError> {
    let socket = options.places.socket();
    let config = match client::get(&socket, "/status") {
        Err(error) if nobody_listens(&error) => next_start(options)?,
        _ => get_json(&options.places, "/status")?["config"].take(),
    };
    match output {
        Output::Json => print(pretty(&config)),
        Output::Text => {
            if config["from"] == "records" {
                print("# no agent runs here; this is what the next start would do");
            }
            print(status::config_text(&config).trim_end());
        }
    }
    Ok(())
}

fn next_start(options: &AgentOptions) -> Result<Value, CommandError> {
    let report = forecast::next_start(options).map_err(|why| {
        failed(format_args!("no agent listens on {}; {why}", options.places.socket().display()))
    })?;
    let mut config = json!(report.config);
    config["from"] = "records".into();
    Ok(config)
}

/// `kedge config history`: the verdicts, and the files that were set aside, from disk: no agent is needed.
///
/// # Errors
/// The directory cannot be read.
pub fn config_history(places: &Places, output: Output) -> Result<(), CommandError> {
    let files = linux::files(&places.dynamic_config_dir);
    let History { bad, mut aside, unreadable } =
        History::read(&*files).map_err(|error| failed_in(&places.dynamic_config_dir, &error))?;
    aside.extend(displaced(places));
    if output == Output::Json {
        print(pretty(&json!({"bad": bad, "setAside": aside, "unreadable": unreadable})));
        return Ok(());
    }
    if bad.is_empty() && aside.is_empty() && unreadable.is_empty() {
        print("no bad configurations, nothing set aside");
    }
    for entry in &bad {
        print(bad_lines(entry));
    }
    for name in &aside {
        print(format_args!("set aside: {name}"));
    }
    for problem in &unreadable {
        print(format_args!("unreadable: {problem}"));
    }
    Ok(())
}

/// A verdict: the ConfigMap that is not tried again and why; then, if known, the object and key, and the
/// first problem.
fn bad_lines(entry: &Value) -> String {
    let part = |name| text(entry, name);
    let (time, uid, reason, version) = (part("/time"), part("/uid"), part("/reason"), part("/version"));
    let mut lines = format!("{time}  bad  UID {uid}  {reason}  (kedge {version})");
    for (name, found) in [("config", part("/source")), ("error", part("/error"))] {
        if !found.is_empty() {
            lines.push_str(&format!("\n    {name:<8}{found}"));
        }
    }
    lines
}

/// Files that were set aside in place of the agent's directories; whole paths. Those below the config's own
/// are in its [`History`].
fn displaced(places: &Places) -> impl Iterator<Item = String> {
    let below =
        linux::files(&places.root_dir).list(Path::new(""), HISTORY_ENTRIES).unwrap_or_default().entries;
    let names = below.into_iter().map(|entry| entry.name.to_string_lossy().into_owned());
    let found: Vec<_> =
        names.filter(|name| name.contains(SET_ASIDE)).map(|name| places.root_dir.join(name)).collect();
    linux::set_aside_from(&places.root_dir).into_iter().chain(found).map(|path| path.display().to_string())
}

/// The findings of `kedge config history`, with paths below the directory of the dynamic config.
#[derive(Default)]
struct History {
    bad: Vec<Value>,
    aside: Vec<String>,
    /// Unreadable files, each with its reason.
    unreadable: Vec<String>,
}

impl History {
    fn read(files: &dyn Files) -> Result<Self, ReadError> {
        let mut history = Self::default();
        let listing = match files.list(Path::new(""), HISTORY_ENTRIES) {
            Ok(listing) => listing.entries,
            Err(ReadError::NotFound { .. }) => return Ok(history),
            Err(error) => return Err(error),
        };
        for entry in listing {
            let name = entry.name.to_string_lossy().into_owned();
            if name.contains(SET_ASIDE) {
                history.aside.push(name);
            } else if entry.kind == Kind::Directory {
                history.read_directory(files, &name);
            }
        }
        Ok(history)
    }

    /// Reads the verdicts of one version of the agent, if the directory is a version's, and the files that
    /// were set aside there.
    fn read_directory(&mut self, files: &dyn Files, directory: &str) {
        match files.list(Path::new(directory), HISTORY_ENTRIES) {
            Ok(listing) => {
                let names = listing.entries.iter().map(|entry| entry.name.to_string_lossy());
                let aside = names.filter(|name| name.contains(SET_ASIDE));
                self.aside.extend(aside.map(|name| format!("{directory}/{name}")));
            }
            Err(error) => self.unreadable.push(crate::errors::chain(&error)),
        }
        let path = format!("{directory}/bad-configs.json");
        match files.read(Path::new(&path), RECORD_BYTES) {
            Ok(bytes) => self.read_verdicts(directory, &path, bytes),
            Err(ReadError::NotFound { .. }) => {}
            Err(error) => self.unreadable.push(crate::errors::chain(&error)),
        }
    }

    fn read_verdicts(&mut self, version: &str, path: &str, bytes: Vec<u8>) {
        match BadConfigs::read(&Read::Content(bytes)) {
            Known::Is(list) => {
                self.bad.extend(list.verdicts().into_iter().map(|(uid, verdict)| {
                    json!({"version": version, "uid": uid, "time": verdict.time, "reason": verdict.reason,
                        "source": verdict.source, "error": verdict.detail})
                }));
                if let Some(payload) = list.doubted {
                    let why = format!("{path}: an earlier list was lost; payload {payload} may be in it");
                    self.unreadable.push(why);
                }
            }
            other => self.unreadable.push(format!("{path}: {}", other.unknown().unwrap_or("it is empty"))),
        }
    }
}

/// `kedge config show`: of the running agent, or else of the files that the flags name. The output shows
/// which; an invalid answer of a running agent is reported on standard error, too.
///
/// # Errors
/// Nothing could be shown: the files are invalid.
pub fn config_show(options: &AgentOptions, output: Output) -> Result<(), CommandError> {
    let files_named = options.names_local_files();
    let problem = match files_named {
        true => None,
        false => match shown_by_agent(&options.places, output) {
            Ok(shown) => {
                print(shown.trim_end());
                return Ok(());
            }
            Err(problem) => problem,
        },
    };
    if let Some(problem) = &problem {
        let _ = writeln!(std::io::stderr(), "kedge: {problem}; showing the configuration from the files");
    }
    let layers = local_config::read(&options.local).map_err(failed)?;
    let effective = kubelet::effective(&layers, None).map_err(|error| failed(error.report()))?;
    match output {
        Output::Json => print(pretty(&with_origin(effective.to_json(), "files", problem.as_deref()))),
        Output::Text => {
            print(match (files_named, problem) {
                (true, _) => "# from the files; the running agent was not asked",
                (false, None) => "# from the files: no agent runs here",
                (false, Some(_)) => "# from the files: the agent gave no valid answer",
            });
            print(effective.to_text().trim_end());
        }
    }
    Ok(())
}

/// The running agent's configuration, ready to be printed. The error describes a running agent that gave no
/// valid answer.
fn shown_by_agent(places: &Places, output: Output) -> Result<String, Option<String>> {
    let socket = places.socket();
    let answered =
        |why: &dyn fmt::Display| Some(format!("the agent on {} answered: {why}", socket.display()));
    let path = if output == Output::Json { "/config" } else { "/config/text" };
    let answer = client::get(&socket, path).map_err(|error| match nobody_listens(&error) {
        true => None,
        false => Some(crate::errors::chain(&error)),
    })?;
    let text = String::from_utf8_lossy(&answer.body);
    if answer.status != 200 {
        return Err(answered(&text.trim_end()));
    }
    match output {
        Output::Text => Ok(text.into_owned()),
        Output::Json => match serde_json::from_slice(text.as_bytes()) {
            Ok(value @ Value::Object(_)) => Ok(pretty(&with_origin(value, "agent", None))),
            Ok(_) => Err(answered(&"not a JSON object")),
            Err(error) => Err(answered(&format_args!("not JSON: {error}"))),
        },
    }
}

/// Adds the origin to a configuration.
fn with_origin(mut shown: Value, from: &str, agent_problem: Option<&str>) -> Value {
    shown["from"] = from.into();
    if let Some(problem) = agent_problem {
        shown["agentProblem"] = problem.into();
    }
    shown
}

/// `kedge config check`: prints for the local config, and for each file as if it were pushed, whether it
/// would be used.
///
/// # Errors
/// One of them is invalid; all were checked.
pub fn config_check(options: &CheckOptions, output: Output) -> Result<(), CommandError> {
    let layers = local_config::read(&options.agent.local).map_err(failed)?;
    let mut local = judged("local configuration", &layers, None);
    local["as"] = "local".into();
    local["from"] = json!(judged_from(&options.agent));
    local["files"] = json!(files_of(&layers));
    let mut results = vec![local];
    for path in &options.files {
        let name = path.display().to_string();
        let mut result = match pushed(path, options.key.as_deref()) {
            Ok(payload) => judged(&name, &layers, Some(&payload)),
            Err(why) => json!({"file": name, "valid": false, "problems": [why]}),
        };
        result["as"] = "push".into();
        results.push(result);
    }
    let wrong = results.iter().filter(|result| result["valid"] == false).count();
    match output {
        Output::Json => print(pretty(&json!(results))),
        Output::Text => results.iter().for_each(print_judged),
    }
    match wrong {
        0 => Ok(()),
        wrong => Err(failed(format_args!("{wrong} of {} invalid", results.len()))),
    }
}

/// The origin of the flags.
fn judged_from(options: &AgentOptions) -> String {
    match &options.service {
        Some(file) => format!("the service's flags in {}", file.display()),
        None => "the command line".to_owned(),
    }
}

/// The files of the local configuration, in order.
fn files_of(layers: &LocalLayers) -> Vec<String> {
    layers.base.iter().chain(&layers.drop_ins).map(|layer| layer.origin.to_string()).collect()
}

/// The payload in a file: the file itself, or a key of the ConfigMap that it is the manifest of.
fn pushed(path: &Path, key: Option<&str>) -> Result<LayerText, String> {
    let file = local_config::layer("file", path, Origin::Pushed).map_err(|error| error.to_string())?;
    let Ok(tree) = kubelet::yaml::parse(&file.text) else { return Ok(file) };
    if tree.get("kind").and_then(|kind| kind.text()) != Some("ConfigMap") {
        return match key {
            Some(key) => Err(format!("{}: --key {key} is for the manifest of a ConfigMap", path.display())),
            None => Ok(file),
        };
    }
    let manifest = tree.to_json();
    let data = manifest["data"].as_object().cloned().unwrap_or_default();
    let keys: Vec<&str> = data.keys().map(String::as_str).collect();
    let key = key.or((keys.len() == 1).then(|| keys[0])).unwrap_or("kubelet");
    let Some(payload) = data.get(key).and_then(Value::as_str) else {
        return Err(format!(
            "{}: data has no key {key:?}, it has {keys:?}; choose one with --key",
            path.display()
        ));
    };
    let name = text(&manifest, "/metadata/name");
    let origin = Origin::Pushed(format!("{} (ConfigMap {name}, key {key})", path.display()));
    Ok(LayerText { origin, text: payload.as_bytes().to_vec() })
}

fn judged(name: &str, layers: &LocalLayers, payload: Option<&kubelet::LayerText>) -> Value {
    match kubelet::effective(layers, payload) {
        Ok(effective) => {
            // an agent starts with such a local file, but limits the value
            let is_own = |held: &&kubelet::Held| payload.is_none() && held.is_local();
            let problems: Vec<String> =
                effective.held.iter().filter(is_own).map(ToString::to_string).collect();
            match problems.is_empty() {
                true => json!({"file": name, "valid": true, "withoutEffect": effective.without_effect}),
                false => json!({"file": name, "valid": false, "problems": problems}),
            }
        }
        Err(error) => {
            let problems: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
            json!({"file": name, "valid": false, "problems": problems, "more": error.omitted})
        }
    }
}

fn print_judged(result: &Value) {
    let name = text(result, "/file");
    let lines = |key: &str| {
        let list = result[key].as_array().cloned().unwrap_or_default();
        list.into_iter().filter_map(|line| line.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let name = match text(result, "/as") {
        "push" => format!("{name}, as if it were pushed"),
        _ => format!("{name} of {}", text(result, "/from")),
    };
    for file in lines("files") {
        print(format_args!("# {file}"));
    }
    if result["valid"] == true {
        print(format_args!("{name}: valid"));
        let without = lines("withoutEffect");
        if !without.is_empty() {
            print(format_args!("  set but without effect here: {}", without.join(", ")));
        }
        return;
    }
    print(format_args!("{name}: INVALID"));
    for problem in lines("problems") {
        print(format_args!("  {problem}"));
    }
    if let Some(more) = result["more"].as_u64().filter(|more| *more > 0) {
        print(format_args!("  and {more} more"));
    }
}

/// Whether no agent listens at all, as opposed to one that gives no valid answer.
fn nobody_listens(error: &AskError) -> bool {
    matches!(error, AskError::NotRunning { .. })
}

/// `kedge pods`.
///
/// # Errors
/// No agent answers, or it runs no pods.
pub fn pods(places: &Places, output: Output) -> Result<(), CommandError> {
    let pods = get_json(places, "/pods")?;
    if output == Output::Json {
        print(pretty(&pods));
        return Ok(());
    }
    print(format_args!(
        "{:<40} {:<5} {:<10} {:<20} {:>8}  NOTE",
        "POD", "READY", "ORIGIN", "CONTAINER", "RESTARTS"
    ));
    if let Some(secs) = pods["heldSeconds"].as_u64() {
        eprintln!("kedge: {}", crate::status::held(secs));
    }
    if pods["isComplete"] == false {
        eprintln!(
            "kedge: not all is known yet: there may be other pods, and what is shown not to run may run"
        );
    }
    let pulls = images::command::progress(&places.root_dir);
    for pod in pods["pods"].as_array().into_iter().flatten() {
        print_pod(pod, &pulls);
    }
    Ok(())
}

fn print_pod(pod: &Value, pulls: &BTreeMap<String, String>) {
    let name = match (text(pod, "/namespace"), text(pod, "/name")) {
        ("", "") => format!("(uid {})", text(pod, "/uid")),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    let notes = [
        (pod["isOrphaned"] == true).then_some("orphaned"),
        (pod["isEnding"] == true).then_some("ending"),
        pod["rejected"].as_str(),
    ];
    let waits = pod.get("waits").map(|waits| {
        let since = text(waits, "/since");
        format!("waiting since {since}: {}: {}", text(waits, "/reason"), text(waits, "/message"))
    });
    let notes = notes.into_iter().flatten().map(str::to_owned).chain(waits);
    let mut note = notes.collect::<Vec<_>>().join(", ");
    let origin = text(pod, "/origin");
    let ready = format!("{}/{}", pod["ready"].as_u64().unwrap_or(0), pod["counted"].as_u64().unwrap_or(0));
    let containers = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if containers.is_empty() {
        print(format_args!("{name:<40} {ready:<5} {origin:<10} {:<20} {:>8}  {note}", "", ""));
    }
    for container in containers {
        let state = container["reason"].as_str().unwrap_or_else(|| text(container, "/state"));
        let shown = format!("{}: {state}", text(container, "/name"));
        let restarts = container["restarts"].as_u64().unwrap_or(0);
        let image = Reference::parse(text(container, "/image")).map(|image| image.to_string()).ok();
        // the image of a running container may be pulled for another pod
        let is_waiting = container["state"] == "Waiting";
        if let Some(pull) = image.and_then(|image| pulls.get(&image)).filter(|_| is_waiting) {
            note = [note.as_str(), pull]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(", ");
        }
        if let Some(message) = container["message"].as_str().filter(|_| container["state"] != "Running") {
            let separator = if note.is_empty() { "" } else { ", " };
            note = format!("{note}{separator}{message}");
        }
        print(format_args!("{name:<40} {ready:<5} {origin:<10} {shown:<20} {restarts:>8}  {note}"));
        // the notes about the pod are shown only once, in its first line
        note.clear();
    }
}

/// `kedge pods release [NAMESPACE/NAME]`.
///
/// # Errors
/// No agent answers, or such an orphaned pod does not exist.
pub fn pods_release(places: &Places, pod: Option<&str>) -> Result<(), CommandError> {
    let query = pod.map(|pod| format!("?pod={}", kedge_api::percent_encoded(pod))).unwrap_or_default();
    match client::post(&places.socket(), &format!("/pods/release{query}")) {
        Ok(answer) => said(answer.status, &answer.body),
        Err(error) => Err(failed(crate::errors::chain(&error))),
    }
}

/// `kedge config forgive UID`.
///
/// # Errors
/// There is no verdict on it, it could not be recorded, or the agent cannot do it now: nothing was changed.
pub fn config_forgive(places: &Places, uid: &str) -> Result<(), CommandError> {
    if !kedge_core::config::source::is_file_name(uid) {
        return Err(failed(format_args!("{uid:?} is not a UID")));
    }
    match client::post(&places.socket(), &format!("/config/forgive?uid={uid}")) {
        Ok(answer) => said(answer.status, &answer.body),
        Err(error) if nobody_listens(&error) => forgive_on_disk(places, uid),
        Err(error) => Err(failed(crate::errors::chain(&error))),
    }
}

fn said(status: u16, body: &[u8]) -> Result<(), CommandError> {
    let text = String::from_utf8_lossy(body);
    if status == 200 {
        print(text.trim_end());
        return Ok(());
    }
    Err(failed(text.trim_end()))
}

/// Makes sure that no agent changes the records meanwhile: an agent whose socket is elsewhere still holds its
/// root directory.
fn claim(places: &Places) -> Result<Option<std::fs::File>, CommandError> {
    let root = places.root_dir.display();
    match linux::claim(&places.root_dir) {
        Ok(None) => Err(failed(format_args!(
            "an agent is running with --root-dir {root} and another run directory: pass its --run-dir"
        ))),
        Ok(claim) => Ok(claim),
        Err(error) => Err(failed(format_args!(
            "cannot create or open root directory {root}: {error}; nothing was changed"
        ))),
    }
}

/// A record of a node whose agent does not run, if it can be read.
fn recorded<T>(files: &dyn Files, file: &StateFile, read: impl FnOnce(&Read) -> Known<T>) -> Option<T> {
    let bytes = files.read(Path::new(&file.path(VERSION)), RECORD_BYTES).ok()?;
    match read(&Read::Content(bytes)) {
        Known::Is(record) => Some(record),
        Known::Absent | Known::Unknown { .. } => None,
    }
}

fn forgive_on_disk(places: &Places, uid: &str) -> Result<(), CommandError> {
    let _claim = claim(places)?;
    let files = linux::files(&places.dynamic_config_dir);
    let path = StateFile::BadConfigs.path(VERSION);
    let shown = places.dynamic_config_dir.join(&path);
    let bytes = match files.read(Path::new(&path), RECORD_BYTES) {
        Ok(bytes) => bytes,
        Err(ReadError::NotFound { .. }) => {
            return Err(failed(format_args!("{}: there are no verdicts", shown.display())));
        }
        Err(error) => return Err(failed_in(&places.dynamic_config_dir, &error)),
    };
    let mut bad = match BadConfigs::read(&Read::Content(bytes)) {
        Known::Is(bad) => bad,
        other => {
            let why = other.unknown().unwrap_or("unreadable").to_owned();
            return Err(failed(format_args!("{}: {why}; nothing was changed", shown.display())));
        }
    };
    let is_assigned = || {
        let assigned = recorded(&*files, &StateFile::Current, Current::read);
        assigned.and_then(|current| current.assigned).is_some_and(|assigned| assigned.config.uid == uid)
    };
    let payloads = bad.payloads(uid);
    let was_doubted = bad.doubted.take_if(|_| is_assigned()).is_some();
    if !bad.forgive(uid) && !was_doubted {
        return Err(failed(format_args!("{}: there is no verdict on UID {uid}", shown.display())));
    }
    // the counts before the verdict: a cut in between would otherwise leave the counts that led to it, and
    // the next start would judge by them
    if let Some(startups) = recorded(&*files, &StateFile::Startups, Startups::read)
        && let Some(emptied) = startups.without(&payloads)
    {
        files
            .write_durably(Path::new(&StateFile::Startups.path(VERSION)), &emptied.to_bytes())
            .map_err(|error| failed_in(&places.dynamic_config_dir, &error))?;
    }
    files
        .write_durably(Path::new(&path), &bad.to_bytes())
        .map_err(|error| failed_in(&places.dynamic_config_dir, &error))?;
    print(format_args!("no agent is running; removed the verdicts on UID {uid} from {}", shown.display()));
    Ok(())
}

/// `kedge config reset`.
///
/// # Errors
/// The reset could not be recorded, or the agent cannot do it now: nothing was changed.
pub fn config_reset(places: &Places) -> Result<(), CommandError> {
    match client::post(&places.socket(), "/config/reset") {
        Ok(answer) => said(answer.status, &answer.body),
        Err(error) if nobody_listens(&error) => {
            let _claim = claim(places)?;
            let files = linux::files(&places.dynamic_config_dir);
            let path = StateFile::Current.path(VERSION);
            // only this Node may take last-known-good away, by assigning nothing
            let node_uid = recorded(&*files, &StateFile::Current, Current::read)
                .map(|current| current.node_uid)
                .unwrap_or_default();
            files
                .write_durably(Path::new(&path), &Current::reset(&node_uid).to_bytes())
                .map_err(|error| failed_in(&places.dynamic_config_dir, &error))?;
            print(format_args!(
                "no agent is running; {} says local now, and the next start uses it",
                places.dynamic_config_dir.join(&path).display()
            ));
            Ok(())
        }
        Err(error) => Err(failed(crate::errors::chain(&error))),
    }
}

/// How long `kedge record-exit` waits for the disk: flash that collects its garbage takes seconds, and the
/// unit's time limit for a stop, which includes this command, is 6 s.
const DISK_PATIENCE: Duration = Duration::from_secs(4);

/// `kedge record-exit`: writes the record into the run directory before it touches the disk; another process
/// makes the disk's copy, which is needed only over a reboot. A disk that hangs blocks that process, until it
/// answers, and delays nothing else.
///
/// # Errors
/// The record is not on the disk.
pub fn record_exit_of_agent(places: &Places) -> Result<(), CommandError> {
    let clocks = LinuxClocks::new(&Roots::default());
    let marks = RunDirectory::new(&places.run_dir);
    let environment = |name: &str| std::env::var(name).ok();
    let (record, kept) = marks.record_exit(clocks.boot_id(), &environment);
    if kept.is_err() {
        return write_record(places, &record);
    }
    let program =
        std::env::current_exe().map_err(|error| failed(format_args!("find this program: {error}")))?;
    let mut child = Command::new(program)
        .args(["record-exit", "to-disk", "--root-dir"])
        .arg(&places.root_dir)
        .arg("--run-dir")
        .arg(&places.run_dir)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| failed(format_args!("start the process that writes to the disk: {error}")))?;
    let end = Instant::now() + DISK_PATIENCE;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            // the process has printed the reason
            _ => break,
        }
    }
    Err(failed(format_args!("the end is recorded in {} only, not on the disk", places.run_dir.display())))
}

/// `kedge record-exit to-disk`: copies the record from the run directory. Where another process already waits
/// for the disk it does nothing: a disk that hangs must not collect processes.
///
/// # Errors
/// The record is not on the disk.
pub fn copy_exit_record(places: &Places) -> Result<(), CommandError> {
    let _only = match linux::claim(&places.run_dir) {
        Ok(Some(claim)) => claim,
        Ok(None) => return Err(failed("an earlier record still waits for the disk")),
        Err(error) => return Err(failed(format_args!("{}: {error}", places.run_dir.display()))),
    };
    let marks = RunDirectory::new(&places.run_dir);
    let Some(record) = marks.recorded() else {
        return Err(failed(format_args!("{}: there is no record", places.run_dir.display())));
    };
    write_record(places, &record)
}

/// `kedge shim BUNDLE`, which the agent starts for each container.
///
/// # Errors
/// The bundle has no usable container.
pub fn shim(bundle: &Path) -> Result<(), CommandError> {
    workloads::shim(bundle).map_err(failed)
}

/// `kedge pause ROOT`, which the agent starts for a pod whose containers share their processes.
///
/// # Errors
/// It could not give up its privileges.
pub fn pause(root: &Path) -> Result<(), CommandError> {
    workloads::pause(root).map_err(|error| failed(format_args!("pause in {}: {error}", root.display())))
}

/// `kedge look`, which the agent starts to look at paths that a pod names.
///
/// # Errors
/// It could not read its order, or write its answer.
pub fn look() -> Result<(), CommandError> {
    crate::workloads::looks::look().map_err(|error| failed(format_args!("look: {error}")))
}

fn write_record(places: &Places, record: &ExitRecord) -> Result<(), CommandError> {
    let files = linux::files(&places.root_dir);
    write_exit_record(files.as_ref(), record).map_err(|error| failed_in(&places.root_dir, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_platform::fake::{self, FakeDisk};

    #[test]
    fn history_names_object_key_and_error_of_a_verdict() {
        let disk = FakeDisk::new();
        let verdict = |order: u64, source: &str, detail: &str| {
            json!({"time": "2026-11-30T06:00:00Z", "reason": "failed to parse current (UID: u-1)", "kind": "parse",
                "source": source, "detail": detail, "order": order})
        };
        let list = json!({"u-1": {"time": "2026-11-30T06:00:00Z", "reason": "failed to parse current (UID: u-1)", "contents": {
            // an earlier release did not record it
            "0".repeat(64): verdict(2, "", ""),
            "1".repeat(64): verdict(1, "ConfigMap kube-system/edge, key kubelet", "config edge (uid u-1): unknown field x (line 3)"),
        }}});
        disk.put("0.1.0/bad-configs.json", list.to_string().as_bytes());
        let history = History::read(&*fake::files(&disk)).expect("it can be read");
        assert_eq!(history.unreadable, Vec::<String>::new());
        let lines: Vec<String> = history.bad.iter().map(bad_lines).collect();
        let first = "2026-11-30T06:00:00Z  bad  UID u-1  failed to parse current (UID: u-1)  (kedge 0.1.0)";
        let more = "\n    config  ConfigMap kube-system/edge, key kubelet\n    error   config edge (uid u-1): unknown field x (line 3)";
        assert_eq!(lines, [format!("{first}{more}"), first.to_owned()]);
    }
}
