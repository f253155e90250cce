//! The records of systems below `--root-dir/system/`: `wanted`, the update under way, and `bad`, the faults
//! of systems on this machine.
//!
//! Always holds: agents of different versions read and write them in turn, for each slot has its own agent.
//! So the form is fixed (`kedge.dev/system-v1`), fields that this version does not know are kept, and an
//! unreadable record counts as absent. The fault of a system is in `bad` alone, never in the list of bad
//! configurations. Leaves to others: when to write (`config::system`, `actor`).

use super::{Failure, Kind};
use crate::config::digest::Digest;
use crate::config::records::shortened;
use crate::kubelet::wanted::{Pinned, Source};
use serde_json::{Map, Value, json};

const API_VERSION: &str = "kedge.dev/system-v1";
/// Most systems, and most pairs, in `bad`.
const MOST_BAD: usize = 16;
/// Most counted silent attempts of a system, and most other attempts that fail.
pub(crate) const MOST_ATTEMPTS: u8 = 3;
/// First wait before a suspected system is tried again; it doubles, up to a day.
const FIRST_WAIT_MS: u64 = 3_600_000;
const LONGEST_WAIT_MS: u64 = 24 * FIRST_WAIT_MS;
/// Wait after tries that ended without a reason.
const WORDLESS_WAIT_MS: u64 = 600_000;

/// How far an update has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Fetching,
    /// The manifest is admitted, and all parts are here.
    Held,
    /// It is in the other slot.
    Written,
    /// The boot loader starts it next.
    Armed,
    /// It passed its trial.
    Good,
    /// It is the system of last-known-good.
    Promoted,
    /// The machine goes back to it, for it is last-known-good's.
    Reverting,
    /// It was good, and has lost all its tries since.
    Lost,
}

const STATES: [(State, &str); 8] = [
    (State::Fetching, "Fetching"),
    (State::Held, "Held"),
    (State::Written, "Written"),
    (State::Armed, "Armed"),
    (State::Good, "Good"),
    (State::Promoted, "Promoted"),
    (State::Reverting, "Reverting"),
    (State::Lost, "Lost"),
];

impl State {
    #[must_use]
    pub fn name(self) -> &'static str {
        STATES.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }
}

/// The system that a payload wants for this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub kind: Kind,
    pub version: String,
    pub pinned: Pinned,
    /// A person restarts the machine.
    pub is_manual: bool,
    pub bytes_per_second: Option<u64>,
    /// It is fetched in a window only.
    pub in_window: bool,
    /// A list of keys that comes with it; not recorded.
    pub keys: String,
}

/// `wanted`: the update under way, or the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedRecord {
    pub wish: Wish,
    /// The payload that wants it.
    pub payload: Option<Digest>,
    pub state: State,
    /// Starts that the boot loader did not make, and good slots that lost their tries.
    pub attempts: u8,
    /// The boot in which it was armed.
    pub boot: String,
    /// Unknown fields.
    pub(super) rest: Map<String, Value>,
}

/// The fields of a JSON object, taken one by one; the remaining ones are unknown.
struct Fields(Map<String, Value>);

impl Fields {
    fn of(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Value::Object(object) = value else { return Err("not an object".into()) };
        let mut fields = Self(object);
        match fields.text("apiVersion").as_str() {
            API_VERSION => Ok(fields),
            _ => Err("another form".into()),
        }
    }

    fn text(&mut self, name: &str) -> String {
        match self.0.remove(name) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        }
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        self.0.remove(name)?.as_u64()
    }

    fn small(&mut self, name: &str) -> u8 {
        self.number(name).and_then(|number| u8::try_from(number).ok()).unwrap_or(0)
    }

    fn digest(&mut self, name: &str) -> Option<Digest> {
        Digest::parse(&self.text(name))
    }

    fn is(&mut self, name: &str) -> bool {
        self.0.remove(name) == Some(Value::Bool(true))
    }

    fn list(&mut self, name: &str) -> Vec<Self> {
        let Some(Value::Array(items)) = self.0.remove(name) else { return Vec::new() };
        let object = |item| if let Value::Object(object) = item { Some(Self(object)) } else { None };
        items.into_iter().filter_map(object).collect()
    }
}

/// Puts known fields over the unknown ones; empty ones are left out.
fn with(rest: &Map<String, Value>, fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let mut object = rest.clone();
    for (name, value) in fields {
        if !(value.is_null() || value == "" || value == false || value == 0) {
            object.insert(name.to_owned(), value);
        }
    }
    Value::Object(object)
}

fn bytes(record: &Value) -> Vec<u8> {
    let mut text = record.to_string().into_bytes();
    text.push(b'\n');
    text
}

fn text_of(digest: Option<Digest>) -> Value {
    digest.map_or(Value::Null, |digest| Value::from(digest.to_string()))
}

impl WantedRecord {
    /// An update that begins.
    pub(crate) fn new(wish: Wish, payload: Option<Digest>, attempts: u8) -> Self {
        let state = State::default();
        let wish = Wish { keys: String::new(), ..wish };
        Self { wish, payload, state, attempts, boot: String::new(), rest: Map::new() }
    }

    /// The way back to a system that is in the other slot.
    pub(crate) fn back(digest: Digest, version: String) -> Self {
        let wish = Wish {
            kind: Kind::System,
            version,
            pinned: Pinned { source: Source::Url(String::new()), digest },
            is_manual: false,
            bytes_per_second: None,
            in_window: false,
            keys: String::new(),
        };
        Self { state: State::Reverting, ..Self::new(wish, None, 0) }
    }

    #[must_use]
    pub fn digest(&self) -> Digest {
        self.wish.pinned.digest
    }

    /// Reads `wanted`; `None` if no system is wanted.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, String> {
        let mut fields = Fields::of(bytes)?;
        let Some(digest) = fields.digest("digest") else { return Ok(None) };
        let (image, url, state) = (fields.text("image"), fields.text("url"), fields.text("state"));
        let state = STATES.iter().find(|(_, name)| *name == state).ok_or("unknown state")?.0;
        let wish = Wish {
            kind: if fields.text("kind") == "agent" { Kind::Agent } else { Kind::System },
            version: fields.text("version"),
            pinned: Pinned {
                source: if image.is_empty() { Source::Url(url) } else { Source::Image(image) },
                digest,
            },
            is_manual: fields.is("manual"),
            bytes_per_second: fields.number("bytesPerSecond"),
            in_window: fields.is("inWindow"),
            keys: String::new(),
        };
        let (payload, attempts) = (fields.digest("payload"), fields.small("attempts"));
        Ok(Some(Self { wish, payload, state, attempts, boot: fields.text("boot"), rest: fields.0 }))
    }

    /// The text of `wanted`; nothing is wanted without a record.
    #[must_use]
    pub fn to_bytes(record: Option<&Self>) -> Vec<u8> {
        let Some(record) = record else { return bytes(&json!({"apiVersion": API_VERSION})) };
        let wish = &record.wish;
        let (image, url) = match &wish.pinned.source {
            Source::Image(image) => (image.as_str(), ""),
            Source::Url(url) => ("", url.as_str()),
        };
        let kind = if wish.kind == Kind::Agent { "agent" } else { "system" };
        bytes(&with(
            &record.rest,
            [
                ("apiVersion", API_VERSION.into()),
                ("kind", kind.into()),
                ("version", wish.version.as_str().into()),
                ("digest", text_of(Some(record.digest()))),
                ("image", image.into()),
                ("url", url.into()),
                ("manual", wish.is_manual.into()),
                ("bytesPerSecond", wish.bytes_per_second.into()),
                ("inWindow", wish.in_window.into()),
                ("payload", text_of(record.payload)),
                ("state", record.state.name().into()),
                ("attempts", record.attempts.into()),
                ("boot", record.boot.as_str().into()),
            ],
        ))
    }
}

/// The fault of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its trial had no contact.
    Contact,
    /// Its tries ended without a reason.
    Cuts,
    /// Everything else.
    Failed,
}

/// Whether a bad system may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    Never,
    /// The system that it fell back to decides by its own contact whether the silence counts.
    Undecided,
    /// After this much running with contact.
    After(u64),
    Now,
}

/// A system in `bad`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSystem {
    pub digest: Digest,
    pub version: String,
    pub fault: Fault,
    pub again: Again,
    /// How often in a row.
    pub tries: u8,
    /// For people.
    pub reason: String,
    rest: Map<String, Value>,
}

/// `bad`: the faults of systems on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadSystems {
    /// The oldest first.
    systems: Vec<BadSystem>,
    /// A payload, and the system that it wants, which failed together.
    pairs: Vec<(Digest, Option<Digest>)>,
    rest: Map<String, Value>,
}

impl BadSystems {
    /// Reads `bad`.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut fields = Fields::of(bytes)?;
        let system = |mut of: Fields| {
            let digest = of.digest("digest")?;
            let fault = match of.text("fault").as_str() {
                "contact" => Fault::Contact,
                "cuts" => Fault::Cuts,
                _ => Fault::Failed,
            };
            let again = match (of.text("again").as_str(), of.number("waitMs")) {
                ("undecided", _) => Again::Undecided,
                ("after", Some(left)) => Again::After(left),
                ("now", _) => Again::Now,
                _ => Again::Never,
            };
            let (tries, version, reason) = (of.small("tries"), of.text("version"), of.text("reason"));
            Some(BadSystem { digest, version, fault, again, tries, reason, rest: of.0 })
        };
        let systems = fields.list("systems").into_iter().filter_map(system).collect();
        let pair = |mut of: Fields| Some((of.digest("payload")?, of.digest("digest")));
        let pairs = fields.list("pairs").into_iter().filter_map(pair).collect();
        Ok(Self { systems, pairs, rest: fields.0 })
    }

    /// The text of `bad`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let system = |of: &BadSystem| {
            let (again, left) = match of.again {
                Again::Never => ("", 0),
                Again::Undecided => ("undecided", 0),
                Again::After(left) => ("after", left),
                Again::Now => ("now", 0),
            };
            let fault = match of.fault {
                Fault::Contact => "contact",
                Fault::Cuts => "cuts",
                Fault::Failed => "failed",
            };
            with(
                &of.rest,
                [
                    ("digest", text_of(Some(of.digest))),
                    ("version", of.version.as_str().into()),
                    ("fault", fault.into()),
                    ("again", again.into()),
                    ("waitMs", left.into()),
                    ("tries", of.tries.into()),
                    ("reason", of.reason.as_str().into()),
                ],
            )
        };
        let systems: Vec<Value> = self.systems.iter().map(system).collect();
        let pair = |(payload, digest): &(Digest, Option<Digest>)| {
            with(&Map::new(), [("payload", text_of(Some(*payload))), ("digest", text_of(*digest))])
        };
        let pairs: Vec<Value> = self.pairs.iter().map(pair).collect();
        bytes(&with(
            &self.rest,
            [("apiVersion", API_VERSION.into()), ("systems", systems.into()), ("pairs", pairs.into())],
        ))
    }

    /// For people.
    pub fn iter(&self) -> impl Iterator<Item = &BadSystem> {
        self.systems.iter()
    }

    pub(crate) fn entry(&self, digest: Digest) -> Option<&BadSystem> {
        self.systems.iter().find(|bad| bad.digest == digest)
    }

    /// The entry that keeps a system from being tried now.
    pub(crate) fn against(&self, digest: Digest) -> Option<&BadSystem> {
        self.entry(digest).filter(|bad| bad.again != Again::Now)
    }

    pub(crate) fn has_pair(&self, payload: Digest, digest: Option<Digest>) -> bool {
        self.pairs.contains(&(payload, digest))
    }

    /// Whether this payload failed together with the system that it wants.
    pub(crate) fn has_payload(&self, payload: Digest) -> bool {
        self.pairs.iter().any(|(failed, _)| *failed == payload)
    }

    pub(crate) fn add_pair(&mut self, payload: Digest, digest: Option<Digest>) {
        self.pairs.retain(|pair| *pair != (payload, digest));
        self.pairs.push((payload, digest));
        let surplus = self.pairs.len().saturating_sub(MOST_BAD);
        self.pairs.drain(..surplus);
    }

    /// Puts a fault of a system on the list.
    pub(crate) fn mark(&mut self, digest: Digest, version: &str, fault: Fault, again: Again, reason: &str) {
        let before = self.entry(digest).cloned();
        let tries = before.as_ref().filter(|bad| bad.fault == fault).map_or(0, |bad| bad.tries);
        let tries = tries.saturating_add(1);
        let again = if fault == Fault::Cuts && tries > 1 { Again::Never } else { again };
        let rest = before.map(|bad| bad.rest).unwrap_or_default();
        let (version, reason) = (version.to_owned(), shortened(reason));
        self.remove(digest);
        self.systems.push(BadSystem { digest, version, fault, again, tries, reason, rest });
        let surplus = self.systems.len().saturating_sub(MOST_BAD);
        self.systems.drain(..surplus);
    }

    /// A trial of this system used up its tries.
    pub(crate) fn fell_back(&mut self, digest: Digest, version: &str, failure: Option<&Failure>) {
        let verdict = failure.and_then(|failure| failure.text.lines().next()).unwrap_or_default();
        let (fault, again, reason) = match failure {
            Some(failure) if failure.is_silence => (Fault::Contact, Again::Undecided, verdict),
            Some(_) => (Fault::Failed, Again::Never, verdict),
            None => (Fault::Cuts, Again::After(WORDLESS_WAIT_MS), "its tries ended without a verdict"),
        };
        self.mark(digest, version, fault, again, reason);
    }

    pub(crate) fn remove(&mut self, digest: Digest) {
        self.systems.retain(|bad| bad.digest != digest);
    }

    /// Removes everything that speaks against this payload, and the system that it wants.
    pub(crate) fn forgive(&mut self, payload: Option<Digest>, digest: Option<Digest>) {
        self.pairs.retain(|(other, _)| Some(*other) != payload);
        self.systems.retain(|bad| Some(bad.digest) != digest);
    }

    /// Decides silences: the fallback has contact, or has had none in time, so that it was an outage.
    pub(crate) fn decide(&mut self, running: Option<Digest>, was_outage: bool) {
        for bad in &mut self.systems {
            if bad.again != Again::Undecided || Some(bad.digest) == running {
                continue;
            }
            let wait = (0..bad.tries.saturating_sub(1)).fold(FIRST_WAIT_MS, |wait, _| wait.saturating_mul(2));
            bad.again = match was_outage {
                false if bad.tries >= MOST_ATTEMPTS => Again::Never,
                _ => Again::After(wait.min(LONGEST_WAIT_MS)),
            };
            if was_outage {
                bad.tries = bad.tries.saturating_sub(1);
            }
        }
    }

    /// Takes running time with contact off the waits. Returns whether one is over.
    pub(crate) fn waited(&mut self, running: Option<Digest>, ms: u64) -> bool {
        let mut is_over = false;
        for bad in self.systems.iter_mut().filter(|bad| Some(bad.digest) != running) {
            if let Again::After(left) = bad.again {
                let left = left.saturating_sub(ms);
                bad.again = if left == 0 { Again::Now } else { Again::After(left) };
                is_over |= left == 0;
            }
        }
        is_over
    }

    pub(crate) fn shortest_wait_ms(&self) -> Option<u64> {
        let left = |bad: &BadSystem| if let Again::After(left) = bad.again { Some(left) } else { None };
        self.systems.iter().filter_map(left).min()
    }

    pub(crate) fn is_undecided(&self, running: Option<Digest>) -> bool {
        self.systems.iter().any(|bad| bad.again == Again::Undecided && Some(bad.digest) != running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> Wish {
        Wish {
            kind: Kind::System,
            version: "1.4.2".into(),
            pinned: Pinned { source: Source::Url("https://h/x".into()), digest: Digest::of(b"y") },
            is_manual: true,
            bytes_per_second: Some(65_536),
            in_window: false,
            keys: String::new(),
        }
    }

    /// The form of 1.0: no later version may read it otherwise.
    const WANTED: &str = r#"{"apiVersion":"kedge.dev/system-v1","attempts":2,"boot":"boot-7","bytesPerSecond":65536,"digest":"a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa","kind":"system","later":[1],"manual":true,"payload":"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","state":"Armed","url":"https://h/x","version":"1.4.2"}
"#;
    const BAD: &str = r#"{"apiVersion":"kedge.dev/system-v1","pairs":[{"digest":"a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa","payload":"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}],"systems":[{"again":"after","digest":"a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa","fault":"contact","later":1,"reason":"deaf","tries":2,"version":"1.4.2","waitMs":7200000}]}
"#;

    #[test]
    fn wanted_keeps_its_form_and_unknown_fields() {
        let read = WantedRecord::read(WANTED.as_bytes()).expect("it is whole").expect("something is wanted");
        assert_eq!(read.wish, wish());
        assert_eq!((read.state, read.attempts, read.boot.as_str()), (State::Armed, 2, "boot-7"));
        assert_eq!(read.payload, Some(Digest::of(b"x")));
        assert_eq!(String::from_utf8(WantedRecord::to_bytes(Some(&read))).unwrap(), WANTED);
        assert_eq!(WantedRecord::read(&WantedRecord::to_bytes(None)), Ok(None));
        for damaged in ["", "[]", "{}", r#"{"apiVersion":"kedge.dev/system-v2"}"#] {
            assert!(WantedRecord::read(damaged.as_bytes()).is_err(), "{damaged}");
        }
        for (state, name) in STATES {
            let record = WantedRecord { state, ..read.clone() };
            assert_eq!(
                WantedRecord::read(&WantedRecord::to_bytes(Some(&record))),
                Ok(Some(record)),
                "{name}"
            );
        }
    }

    #[test]
    fn bad_keeps_its_form_and_unknown_fields() {
        let read = BadSystems::read(BAD.as_bytes()).expect("it is whole");
        assert_eq!(String::from_utf8(read.to_bytes()).unwrap(), BAD);
        assert!(read.has_pair(Digest::of(b"x"), Some(Digest::of(b"y"))));
        assert_eq!(BadSystems::read(&BadSystems::default().to_bytes()), Ok(BadSystems::default()));
    }

    #[test]
    fn silence_counts_unless_it_was_an_outage() {
        let (digest, silence) = (Digest::of(b"y"), Failure { is_silence: true, text: "deaf".into() });
        let mut bad = BadSystems::default();
        let again = |bad: &BadSystems| bad.entry(digest).map(|bad| (bad.tries, bad.again));
        for (tries, wait) in [(1, FIRST_WAIT_MS), (2, 2 * FIRST_WAIT_MS)] {
            bad.fell_back(digest, "1", Some(&silence));
            assert_eq!(again(&bad), Some((tries, Again::Undecided)));
            bad.decide(None, false);
            assert_eq!(again(&bad), Some((tries, Again::After(wait))));
            assert!(!bad.waited(None, wait - 1) && bad.against(digest).is_some());
            assert!(bad.waited(None, 1) && bad.against(digest).is_none());
        }
        bad.fell_back(digest, "1", Some(&silence));
        bad.decide(None, true);
        assert_eq!(again(&bad), Some((2, Again::After(4 * FIRST_WAIT_MS))));
        bad.waited(None, u64::MAX);
        bad.fell_back(digest, "1", Some(&silence));
        bad.decide(None, false);
        assert_eq!(again(&bad), Some((3, Again::Never)));
        bad.forgive(None, Some(digest));
        assert_eq!(again(&bad), None);
    }

    #[test]
    fn tries_without_a_word_get_one_more_chance() {
        let (digest, mut bad) = (Digest::of(b"y"), BadSystems::default());
        bad.fell_back(digest, "1", None);
        assert!(bad.waited(None, WORDLESS_WAIT_MS));
        bad.fell_back(digest, "1", None);
        assert_eq!(bad.entry(digest).map(|bad| bad.again), Some(Again::Never));
        let failure = Failure { is_silence: false, text: "no agent\nits last line".into() };
        bad.forgive(None, Some(digest));
        bad.fell_back(digest, "1", Some(&failure));
        assert_eq!(
            bad.entry(digest).map(|bad| bad.reason.as_str()),
            Some("no agent"),
            "a line for conditions"
        );
        assert_eq!(bad.entry(digest).map(|bad| bad.again), Some(Again::Never));
    }

    #[test]
    fn list_keeps_the_newest() {
        let mut bad = BadSystems::default();
        let digest = |n: usize| Digest::of(&[u8::try_from(n).expect("small")]);
        for n in 0..20 {
            bad.mark(digest(n), "1", Fault::Failed, Again::Never, "x");
            bad.add_pair(digest(n), None);
        }
        assert_eq!(bad.iter().count(), MOST_BAD);
        assert!(bad.entry(digest(3)).is_none() && bad.entry(digest(4)).is_some());
        assert!(!bad.has_pair(digest(3), None) && bad.has_pair(digest(19), None));
    }
}
