//! `kedge images ls|pull|import|rm|prune`, and `kedge unpack`, which unpacks layers for them and for the
//! agent.
//!
//! Always holds: they work with and without a running agent, by the same files and locks; with `--output
//! json` standard output is one JSON value; progress goes to standard error, and only to a terminal.

use crate::options::{AgentOptions, ImagesOptions, Output, Task};
use crate::output::{CommandError, print};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use kedge_core::images::credentials::{Keyring, MAX_BYTES};
use kedge_core::images::record::Record;
use kedge_core::images::settings::Registries;
use kedge_core::images::{BlobDigest, PullPolicy, Reference};
use kedge_core::kubelet;
use kedge_core::sorted::SortedMap;
use kedge_platform::images::{UnpackArguments, unpack_child};
use kedge_platform::linux::read_named_file;
use serde_json::{Value, json};

use super::preloaded::Preloaded;
use super::puller::{Options, Progress, Puller, Ready};
use super::store::{Removed, Store, UnderWay};
use crate::errors::chain;
use crate::local::client;
use crate::local_config;
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::{Cancel, system_clock};

/// How often progress is shown.
const SHOWN_EVERY: Duration = Duration::from_millis(200);

fn failed(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(error)
}

/// `kedge images`.
///
/// # Errors
/// The step that failed, and on which image.
pub fn run(options: &ImagesOptions, output: Output) -> Result<(), CommandError> {
    let root = &options.agent.places.root_dir;
    let program =
        std::env::current_exe().map_err(|error| failed(format_args!("find this program: {error}")))?;
    let store =
        Store::open(root, &program).map_err(|error| failed(format_args!("{}: {error}", root.display())))?;
    match &options.task {
        Task::List => list(store, options, output),
        Task::Pull(names) => pull(store, options, names, output),
        Task::Import { path, name } => import(store, options, path, name.as_deref(), output),
        Task::Remove(names) => remove(&store, names, output),
        Task::Prune => removed(&store.prune().map_err(failed)?, output),
    }
}

fn shown(record: &Record, store: &Store, sizes: &SortedMap<BlobDigest, u64>) -> Value {
    let bytes: u64 = record.all_directories().iter().filter_map(|directory| sizes.get(directory)).sum();
    json!({
        "id": record.id,
        "names": record.names,
        "digests": record.digests,
        "platform": record.platform.to_string(),
        "layers": record.layers.len(),
        "compressedBytes": record.size_bytes,
        "diskBytes": bytes,
        "ready": store.whole(record).is_some(),
        "signatures": record.signatures.len(),
    })
}

fn list(store: Store, options: &ImagesOptions, output: Output) -> Result<(), CommandError> {
    let records = store.records().map_err(failed)?;
    let sizes = store.layer_sizes().map_err(failed)?;
    let images: Vec<Value> = records.iter().map(|record| shown(record, &store, &sizes)).collect();
    // the preloaded images can be shown even where the local configuration is invalid
    let preloaded = Preloaded::new(&options.agent.places.preloaded_images).names();
    let preloaded: Vec<String> = preloaded
        .into_iter()
        .filter(|image| records.find(&image.reference).is_none())
        .map(|image| image.reference.to_string())
        .collect();
    let pulling = store.under_way().map_err(failed)?;
    match output {
        Output::Json => {
            let unreadable = records.unreadable();
            print(
                json!({"images": images, "preloaded": preloaded, "pulling": pulling, "unreadable": unreadable}),
            );
        }
        Output::Text => {
            print(format_args!("{:<60} {:<14} {:>10}  STATE", "NAME", "ID", "DISK"));
            images.iter().for_each(print_row);
            for name in &preloaded {
                print(format_args!("{name:<60} {:<14} {:>10}  preloaded, not unpacked", "", ""));
            }
            for pull in &pulling {
                print(format_args!("{:<60} {:<14} {:>10}  {}", pull.name, "", "", how_far(pull)));
            }
            for why in records.unreadable() {
                print(format_args!("unreadable record: {why}"));
            }
        }
    }
    Ok(())
}

fn print_row(image: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let id = text(&image["id"]);
    let names = [&image["names"], &image["digests"]]
        .into_iter()
        .filter_map(Value::as_array)
        .find(|list| !list.is_empty());
    let state = if image["ready"] == true { "ready" } else { "layers missing" };
    let bytes = image["diskBytes"].as_u64().unwrap_or(0);
    for name in names.into_iter().flatten() {
        let id = id.trim_start_matches("sha256:").get(..12).unwrap_or_default().to_owned();
        print(format_args!("{:<60} {id:<14} {:>10}  {state}", text(name), size(bytes)));
    }
}

/// The progress of the pulls that are under way, by the names of their images, for people. An unreadable
/// claim is left out.
pub(crate) fn progress(root_dir: &Path) -> BTreeMap<String, String> {
    let store = Store::open(root_dir, Path::new("/proc/self/exe")).ok();
    let pulls = store.and_then(|store| store.under_way().ok()).unwrap_or_default();
    pulls.into_iter().map(|pull| (pull.name.clone(), how_far(&pull))).collect()
}

fn how_far(pull: &UnderWay) -> String {
    format!("pulling, has {} of {}", size(pull.have_bytes), size(pull.size_bytes))
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// A puller with the settings of the running agent, or those that the service's agent would have.
fn puller(store: Store, options: &ImagesOptions) -> Result<Puller, CommandError> {
    Ok(Puller::new(
        store,
        Options {
            registries: registries(&options.agent)?,
            preloaded: options.agent.places.preloaded_images.clone(),
            clock: system_clock(),
            proxies: ProxyEnvironment::of_process(),
            cancel: Cancel::new(),
        },
    ))
}

/// The registries of the configuration that the agent runs, which may be a pushed one: an operator can pull
/// what the node's pods can pull. Without an agent, or where the command line names the files, those of the
/// local configuration.
fn registries(agent: &AgentOptions) -> Result<Registries, CommandError> {
    if !agent.names_local_files()
        && let Ok(answer) = client::get(&agent.places.socket(), "/configz")
        && answer.status == 200
        && let Ok(running) = serde_json::from_slice::<Value>(&answer.body)
    {
        // the agent checked it when it adopted it
        let images = running["kubeletconfig"]["kedge"]["images"].as_object();
        return Ok(Registries::read(images, &mut |_, _| ()));
    }
    let layers = local_config::read(&agent.local).map_err(failed)?;
    let effective = kubelet::effective(&layers, None).map_err(failed)?;
    Ok(effective.config.registries)
}

fn keyring(path: Option<&Path>) -> Result<Keyring, CommandError> {
    let mut keyring = Keyring::default();
    if let Some(path) = path {
        let bytes = read_named_file(path, MAX_BYTES).map_err(|error| failed(chain(&error)))?;
        keyring.add(&bytes).map_err(|why| failed(format_args!("{}: {why}", path.display())))?;
    }
    Ok(keyring)
}

fn pull(store: Store, options: &ImagesOptions, names: &[String], output: Output) -> Result<(), CommandError> {
    let puller = puller(store.clone(), options)?;
    let keyring = keyring(options.credentials.as_deref())?;
    let mut done = Vec::new();
    for name in names {
        let reference = Reference::parse(name).map_err(failed)?;
        let meter = Meter::new(&reference);
        let pulled =
            puller.ensure(&reference, PullPolicy::Always, &keyring, &|progress| meter.show(&progress));
        meter.clear();
        done.push((name.clone(), pulled.map_err(failed)?));
    }
    taken(&store, &done, "pulled", output);
    Ok(())
}

fn import(
    store: Store,
    options: &ImagesOptions,
    path: &Path,
    name: Option<&str>,
    output: Output,
) -> Result<(), CommandError> {
    let puller = puller(store.clone(), options)?;
    let reference = name.map(Reference::parse).transpose().map_err(failed)?;
    let meter = Meter::new(&path.display());
    let imported = puller.import(path, reference.as_ref(), &|progress| meter.show(&progress));
    meter.clear();
    let named = |ready: Ready| {
        let own = || ready.record.names.first().cloned().unwrap_or_else(|| ready.record.image_id());
        (name.map_or_else(own, str::to_owned), ready)
    };
    let imported: Vec<_> = imported.map_err(failed)?.into_iter().map(named).collect();
    taken(&store, &imported, "imported", output);
    Ok(())
}

/// Prints the images `done`, each under the name that the user gave.
fn taken(store: &Store, done: &[(String, Ready)], verb: &str, output: Output) {
    if output == Output::Json {
        let sizes = store.layer_sizes().unwrap_or_default();
        let images: Vec<Value> = done
            .iter()
            .map(|(_, ready)| {
                let mut image = shown(&ready.record, store, &sizes);
                image["fetchedBytes"] = ready.fetched_bytes.into();
                image
            })
            .collect();
        return print(Value::from(images));
    }
    for (name, ready) in done {
        let (all, fetched) = (size(ready.record.size_bytes), size(ready.fetched_bytes));
        print(format_args!("{verb} {name}, {all}, of which {fetched} were read now"));
    }
}

fn remove(store: &Store, names: &[String], output: Output) -> Result<(), CommandError> {
    let mut all = Removed::default();
    for name in names {
        let one = store.remove(name).map_err(failed)?;
        all.images.extend(one.images);
        all.problems.extend(one.problems);
        all.bytes += one.bytes;
    }
    removed(&all, output)
}

fn removed(removed: &Removed, output: Output) -> Result<(), CommandError> {
    match output {
        Output::Json => {
            print(json!({"images": removed.images, "bytes": removed.bytes, "problems": removed.problems}))
        }
        Output::Text => {
            for name in &removed.images {
                print(format_args!("removed {name}"));
            }
            print(format_args!("freed {}", size(removed.bytes)));
        }
    }
    match removed.problems.first() {
        None => Ok(()),
        Some(first) => Err(failed(format_args!("{first} ({} problems)", removed.problems.len()))),
    }
}

/// Progress on a terminal.
struct Meter {
    what: String,
    is_terminal: bool,
    shown_at: RefCell<Option<Instant>>,
}

impl Meter {
    fn new(what: &dyn std::fmt::Display) -> Self {
        Self { what: what.to_string(), is_terminal: io::stderr().is_terminal(), shown_at: RefCell::new(None) }
    }

    fn show(&self, progress: &Progress) {
        let mut shown_at = self.shown_at.borrow_mut();
        let is_soon = matches!(progress, Progress::Fetching { .. })
            && shown_at.is_some_and(|at| at.elapsed() < SHOWN_EVERY);
        if !self.is_terminal || is_soon {
            return;
        }
        *shown_at = Some(Instant::now());
        let text = match progress {
            Progress::Resolved { layers, bytes } => format!("{layers} layers to fetch, {}", size(*bytes)),
            Progress::Fetching { digest, have, size: all } => {
                format!("{} {} of {}", &digest.hex()[..12], size(*have), size(*all))
            }
            Progress::Unpacking { digest } => format!("{} unpacking", &digest.hex()[..12]),
        };
        let _ = write!(io::stderr(), "\r\x1b[K{}: {text}", self.what);
    }

    fn clear(&self) {
        if self.is_terminal && self.shown_at.borrow().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// `kedge unpack`.
///
/// # Errors
/// Why the archive is not unpacked.
pub fn unpack(arguments: &UnpackArguments) -> Result<(), CommandError> {
    unpack_child(arguments, &print).map_err(failed)
}
