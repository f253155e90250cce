//! The configuration object: text of several layers in, one checked [`Effective`] configuration out.
//!
//! Owns the definition of a KubeletConfiguration: its fields, how layers merge, which values are valid, which
//! layer set a field. Always holds: the same bytes give the same result on every node and every day; no
//! loaded or received data can panic it, and every read has a limit; an error lists the file, field and line
//! of all faults, not only of the first. Left to others: reading the files (the caller passes bytes), the
//! reaction to an error, and applying the configuration.

use core::fmt;

use serde_json::Value;

mod combinations;
pub mod duration;
pub mod error;
mod eviction;
pub mod layers;
mod origin;
mod path;
pub mod quantity;
pub mod schema;
mod server;
mod settings;
mod show;
pub mod wanted;
pub mod yaml;

pub use eviction::{Eviction, EvictionThreshold, Signal};
pub use layers::{Capacity, LayerText, LocalLayers, Provenance, Source};
pub use origin::Origin;
pub use server::{CertificateFiles, ServerSettings};
#[cfg(feature = "fault-injection")]
pub use settings::FaultInjection;
pub use settings::{
    Config, EvictionHard, ImageSettings, MAX_TAINTS, PodSettings, Reserved, ShutdownGroup, Taint, Trial,
};

use error::{ConfigError, ErrorKind, Problem};
use layers::{Problems, Stack};
use schema::Beyond;

/// The configuration that a node runs with.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// The honoured fields, typed.
    pub config: Config,
    /// The whole object, with `apiVersion`, `kind` and the defaults of honoured fields; durations in Go's
    /// form.
    pub object: Value,
    /// Which layer set each field.
    pub provenance: Provenance,
    /// Paths of fields that are set and have no effect here.
    pub without_effect: Vec<String>,
    /// Values beyond their bounds that an earlier release accepted.
    pub held: Vec<Held>,
}

/// A value beyond its bounds, and the nearest one within, which is used instead.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub problem: Problem,
    /// The value in use.
    pub used: String,
}

impl Held {
    /// Whether it comes from this machine's own files or flags, not from a payload.
    #[must_use]
    pub fn is_local(&self) -> bool {
        !self.problem.origin.is_pushed()
    }
}

impl fmt::Display for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; using {}", self.problem, self.used)
    }
}

/// The configuration that results from these layers; `payload`, if there is one, replaces the base. A value
/// of the local layers that the first release accepted and that is beyond today's bounds counts as the
/// nearest within, and is listed in [`Effective::held`]: an upgrade must not keep a node from starting.
///
/// # Errors
/// [`ErrorKind::Parse`] if a layer is unreadable or has a field that is unknown or of the wrong type;
/// [`ErrorKind::Validate`] if all are readable and the result has wrong values.
pub fn effective(layers: &LocalLayers, payload: Option<&LayerText>) -> Result<Effective, ConfigError> {
    effective_as(layers, payload, false)
}

/// Like [`effective`], for a proven payload: it has been last-known-good, perhaps under a release that did
/// not know today's bounds. If it were refused now, it would be missing as a fallback when it is needed, so a
/// value beyond its bounds counts as the nearest within, and is listed in [`Effective::held`].
///
/// # Errors
/// The same as of [`effective`], except for values out of bounds.
pub fn effective_of_proven(layers: &LocalLayers, payload: &LayerText) -> Result<Effective, ConfigError> {
    effective_as(layers, Some(payload), true)
}

fn effective_as(
    layers: &LocalLayers,
    payload: Option<&LayerText>,
    is_proven: bool,
) -> Result<Effective, ConfigError> {
    let mut stack = Stack::new();
    if let Some(base) = payload.or(layers.base.as_ref()) {
        stack.add_text(base);
    }
    stack.add_overrides(layers);
    let (mut object, mut provenance) = stack.resolve()?;
    make_path_absolute(&mut object, &provenance);
    schema::unset_zeros(&mut object);
    report_as_often_as_computed(&mut object, &mut provenance);
    schema::apply_defaults(&mut object, &mut |path| provenance.set_default(path));
    schema::normalize(&mut object);

    let mut problems = Problems::default();
    let held = hold(&mut object, &provenance, layers.capacity, is_proven, &mut problems);
    for path in ["kedge.system", "kedge.agent"] {
        if let Some((path, source)) = provenance.local_below(path) {
            let message =
                format!("{path} is set, expected null: only a pushed configuration can want a system");
            problems.push(Problem::new(source.origin.clone(), source.position, path, message));
        }
    }
    let mut report = |path: &str, message: String| {
        let Source { origin, position } = provenance.nearest(path);
        problems.push(Problem::new(origin, position, path, message));
    };
    let config = Config::read(&object, &mut report);
    if let Some(Value::Object(kedge)) = object.get("kedge") {
        wanted::Wanted::read(kedge, &mut report);
    }
    combinations::check(&object, &|path| provenance.nearest(path).to_string(), &mut report);
    problems.into_result(ErrorKind::Validate)?;

    let without_effect = schema::without_effect(&object);
    object.insert("apiVersion".to_owned(), Value::from(schema::API_VERSION));
    object.insert("kind".to_owned(), Value::from(schema::KIND));
    Ok(Effective { config, object: Value::Object(object), provenance, without_effect, held })
}

/// Moves values that an earlier release accepted into their bounds, except those of a push that is not
/// proven. Any other value beyond its bounds is a problem.
fn hold(
    object: &mut serde_json::Map<String, Value>,
    provenance: &Provenance,
    capacity: Capacity,
    is_proven: bool,
    problems: &mut Problems,
) -> Vec<Held> {
    let mut held = Vec::new();
    let mut judge = |beyond: Beyond| {
        let Source { origin, position } = provenance.nearest(&beyond.field);
        let is_held = beyond.was_taken && (is_proven || !origin.is_pushed());
        let problem = Problem::new(origin, position, &beyond.field, beyond.message);
        match is_held {
            true => held.push(Held { problem, used: beyond.nearest }),
            false => problems.push(problem),
        }
    };
    schema::hold_in_bounds(object, &mut judge);
    settings::hold_texts(object, &mut judge);
    eviction::hold_entries(object, &mut judge);
    // on a small board a built-in default is more than half of the capacity
    let is_written = |path: &str| provenance.nearest(path).origin != Origin::Default;
    eviction::hold_thresholds(object, capacity, &is_written, &mut judge);
    server::hold(object, &mut judge);
    held
}

/// Upstream's rule: nodeStatusUpdateFrequency set alone also sets the frequency of reports, within their
/// bounds.
fn report_as_often_as_computed(object: &mut serde_json::Map<String, Value>, provenance: &mut Provenance) {
    let (computed, reported) = ("nodeStatusUpdateFrequency", "nodeStatusReportFrequency");
    let nanos = object.get(computed).and_then(Value::as_str).and_then(duration::parse);
    // a wrong value is reported once, under the written name
    if let (Some(nanos), None) = (nanos.filter(|nanos| *nanos > 0), object.get(reported)) {
        let longest = schema::LONGEST_REPORT;
        let frequency = nanos.clamp(schema::SHORTEST_REPORT, longest);
        object.insert(reported.to_owned(), Value::from(duration::format(frequency)));
        provenance.set_default(reported);
    }
}

/// Upstream's rule: a relative staticPodPath starts at the directory of the file that sets it.
fn make_path_absolute(object: &mut serde_json::Map<String, Value>, provenance: &Provenance) {
    let Some(Value::String(path)) = object.get_mut("staticPodPath") else { return };
    let Some(Source { origin: Origin::File(file) | Origin::DropIn(file), .. }) =
        provenance.get("staticPodPath")
    else {
        return;
    };
    if let Some((directory, _)) = file.rsplit_once('/')
        && !path.is_empty()
        && !path.starts_with('/')
    {
        *path = format!("{directory}/{path}");
    }
}

/// Canonical JSON of the changes by drop-ins and flags together: part of a configuration's identity. Does not
/// depend on file names, comments, spelling of scalars or order of keys; differs whenever the effect on some
/// base differs.
///
/// # Errors
/// [`ErrorKind::Parse`] if a drop-in is unreadable.
pub fn canonical_overrides(layers: &LocalLayers) -> Result<Vec<u8>, ConfigError> {
    let mut stack = Stack::new();
    stack.add_overrides(layers);
    stack.canonical()
}
