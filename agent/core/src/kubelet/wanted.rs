//! `kedge.system`, `kedge.agent` and `kedge.download`: the disk image, or the program alone, that a
//! configuration wants its nodes to run, and how it is fetched.
//!
//! Always holds: one digest per board, that of the manifest, names all of a system; a tag alone names none.
//! There are two readers of one form. The strict one is part of validation and reports every fault. The
//! lenient one ([`Wanted::of_payload`]) reports nothing. A payload may have fields that only the wanted agent
//! knows: it skips unknown fields, and a part that this version cannot read wants nothing. Leaves to others:
//! the consequences (`config::start`, `system`).

use kedge_api::excerpt;
use serde_json::{Map, Value};

use super::layers::LocalLayers;
use super::quantity::Quantity;
use super::yaml::{self, Tree};
use super::{path, schema};
use crate::config::digest::Digest;
use crate::images::reference::Reference;
use crate::slot::version;

/// Most boards, or processors, of one configuration.
const MOST_NAMES: usize = 32;
/// Longest URL.
const MOST_URL_BYTES: usize = 1024;
/// Longest list of keys: one of 16 roots and 16 releases has under 4 KiB.
const MOST_KEY_BYTES: usize = 8 << 10;
/// Least `kedge.download.bytesPerSecond`: a system of 50 MB takes 14 hours at this rate.
const LEAST_RATE: i64 = 1 << 10;

const DIGEST_EXPECTED: &str = "sha256:<64 hex digits>";
const IMAGE_EXPECTED: &str = "REGISTRY/NAME@sha256:<64 hex digits>";

/// The system and the program that a payload wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `kedge.system`.
    pub system: Option<WantedSystem>,
    /// `kedge.agent`.
    pub agent: Option<WantedProgram>,
    /// `kedge.download`.
    pub download: Download,
}

/// `kedge.system`: the disk image of a machine with two slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedSystem {
    pub version: String,
    /// By board, as `BOARD` of the image's `/usr/lib/kedge-image/release` has it.
    pub images: Vec<(String, Pinned)>,
    pub reboot: Reboot,
    /// A list of keys that replaces an older one; may be empty.
    pub keys: String,
}

/// `kedge.agent`: the program alone, of a machine without slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedProgram {
    pub version: String,
    /// By processor: `x86_64`, `aarch64`, `armv7`.
    pub programs: Vec<(String, Pinned)>,
}

/// The source of an update. The digest names all of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    pub source: Source,
    /// The SHA-256 of the manifest block.
    pub digest: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An OCI artifact, by a reference with a digest.
    Image(String),
    /// One file, by HTTPS.
    Url(String),
}

/// When a machine may be restarted into another system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reboot {
    /// In a window of `kedge.maintenanceWindows`; without windows at once.
    #[default]
    Window,
    /// A person restarts it.
    Manual,
}

/// `kedge.download`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Download {
    /// Most bytes of a second; `None`: any number.
    pub bytes_per_second: Option<u64>,
    /// Only in a window of `kedge.maintenanceWindows`.
    pub in_window: bool,
}

impl WantedSystem {
    /// The system for this board.
    #[must_use]
    pub fn of(&self, board: &str) -> Option<&Pinned> {
        named(&self.images, board)
    }
}

impl WantedProgram {
    /// The program for this processor.
    #[must_use]
    pub fn of(&self, processor: &str) -> Option<&Pinned> {
        named(&self.programs, processor)
    }
}

fn named<'a>(list: &'a [(String, Pinned)], name: &str) -> Option<&'a Pinned> {
    list.iter().find(|(other, _)| other == name).map(|(_, pinned)| pinned)
}

impl Wanted {
    /// Reads these three objects of a payload alone. A null in a drop-in pins the node: it wants nothing
    /// then.
    ///
    /// # Errors
    /// The payload does not parse, so no version can read it.
    pub fn of_payload(payload: &[u8], local: &LocalLayers) -> Result<Self, yaml::Error> {
        let tree = yaml::parse(payload)?;
        let Some(kedge) = tree.get("kedge") else { return Ok(Self::default()) };
        let mut object = Map::new();
        for part in ["system", "agent", "download"] {
            if let Some(value) = kedge.get(part).filter(|value| !value.is_null()) {
                object.insert(part.to_owned(), value.to_json());
            }
        }
        let mut wanted = Self::read(&object, &mut |_, _| ());
        if wanted.system.is_some() && is_pinned(local, "system") {
            wanted.system = None;
        }
        if wanted.agent.is_some() && is_pinned(local, "agent") {
            wanted.agent = None;
        }
        Ok(wanted)
    }

    /// Reads the object `kedge`; faults go to `report` as path and sentence, and a part with a fault is left
    /// out.
    pub(super) fn read(kedge: &Map<String, Value>, report: &mut dyn FnMut(&str, String)) -> Self {
        let mut reader = Reader { path: "kedge".to_owned(), report };
        let mut wanted = Self::default();
        reader.below("system", kedge.get("system"), |reader, object| {
            let version = reader.version(object);
            let images = reader.pinned(object, "images");
            let keys = object.get("keys").and_then(Value::as_str).unwrap_or_default();
            if keys.len() > MOST_KEY_BYTES {
                reader.wrong("keys", None, "at most 8 KiB");
            }
            let is_manual = object.get("reboot").and_then(Value::as_str) == Some(schema::MANUAL);
            let reboot = if is_manual { Reboot::Manual } else { Reboot::Window };
            wanted.system =
                version.map(|version| WantedSystem { version, images, reboot, keys: keys.to_owned() });
        });
        reader.below("agent", kedge.get("agent"), |reader, object| {
            let version = reader.version(object);
            let programs = reader.pinned(object, "programs");
            wanted.agent = version.map(|version| WantedProgram { version, programs });
        });
        reader.below("download", kedge.get("download"), |reader, object| {
            wanted.download = Download {
                bytes_per_second: reader.rate(object.get("bytesPerSecond")),
                in_window: object.get("window").and_then(Value::as_str) == Some(schema::WINDOW),
            };
        });
        wanted
    }
}

/// Whether a drop-in removes this part of every payload. Drop-ins cannot set it.
fn is_pinned(local: &LocalLayers, part: &str) -> bool {
    let removes = |tree: &Tree| match tree.get("kedge") {
        Some(kedge) => kedge.is_null() || kedge.get(part).is_some_and(Tree::is_null),
        None => false,
    };
    local.drop_ins.iter().any(|layer| yaml::parse(&layer.text).is_ok_and(|tree| removes(&tree)))
}

struct Reader<'a> {
    path: String,
    report: &'a mut dyn FnMut(&str, String),
}

impl Reader<'_> {
    fn below(
        &mut self,
        field: &str,
        value: Option<&Value>,
        mut read: impl FnMut(&mut Self, &Map<String, Value>),
    ) {
        if let Some(object) = value.and_then(Value::as_object) {
            let length = path::enter(&mut self.path, field);
            read(self, object);
            self.path.truncate(length);
        }
    }

    fn wrong(&mut self, field: &str, found: Option<&Value>, expected: &str) {
        let length = path::enter(&mut self.path, field);
        let found = match found {
            Some(Value::String(text)) => format!(" is {:?}", excerpt(text)),
            Some(value) => format!(" is {}", excerpt(&value.to_string())),
            None => String::new(),
        };
        let message = format!("{}{found}, expected {expected}", self.path);
        (self.report)(&self.path, message);
        self.path.truncate(length);
    }

    fn version(&mut self, object: &Map<String, Value>) -> Option<String> {
        let found = object.get("version");
        let version = found.and_then(Value::as_str).filter(|text| version::is_version(text));
        if version.is_none() {
            self.wrong("version", found, "letters, digits and .+~-_, at most 128");
        }
        version.map(str::to_owned)
    }

    /// The entries of a map from board or processor.
    fn pinned(&mut self, object: &Map<String, Value>, field: &str) -> Vec<(String, Pinned)> {
        let Some(map) = object.get(field).and_then(Value::as_object) else {
            self.wrong(field, None, "an object with an entry for each");
            return Vec::new();
        };
        if map.len() > MOST_NAMES {
            self.wrong(field, None, "at most 32 entries");
            return Vec::new();
        }
        let length = path::enter(&mut self.path, field);
        let mut found = Vec::new();
        for (name, value) in map {
            self.below(name, Some(value), |reader, entry| {
                found.extend(reader.source(entry).map(|pinned| (name.clone(), pinned)));
            });
        }
        self.path.truncate(length);
        found
    }

    fn source(&mut self, entry: &Map<String, Value>) -> Option<Pinned> {
        let text = |field: &str| entry.get(field).and_then(Value::as_str);
        let digest = text("digest").and_then(sha256);
        if digest.is_none() {
            self.wrong("digest", entry.get("digest"), DIGEST_EXPECTED);
        }
        let source = match (text("image"), text("url")) {
            (Some(image), None) if is_pinned_image(image) => Some(Source::Image(image.to_owned())),
            (Some(_), None) => {
                self.wrong("image", entry.get("image"), IMAGE_EXPECTED);
                None
            }
            (None, Some(url)) if is_url(url) => Some(Source::Url(url.to_owned())),
            (None, Some(_)) => {
                self.wrong("url", entry.get("url"), "https://HOST/PATH");
                None
            }
            _ => {
                self.wrong("image", None, "either it or url");
                None
            }
        };
        Some(Pinned { source: source?, digest: digest? })
    }

    fn rate(&mut self, found: Option<&Value>) -> Option<u64> {
        let rate = match found? {
            Value::String(text) => Quantity::parse(text).map(Quantity::units),
            number => number.as_i64(),
        };
        let rate = rate.filter(|rate| *rate >= LEAST_RATE);
        if rate.is_none() {
            self.wrong("bytesPerSecond", found, "at least 1Ki");
        }
        rate.and_then(|rate| u64::try_from(rate).ok())
    }
}

/// `sha256:` and 64 digits in lower case.
fn sha256(text: &str) -> Option<Digest> {
    let digits = text.strip_prefix("sha256:")?;
    Digest::parse(digits).filter(|_| !digits.bytes().any(|byte| byte.is_ascii_uppercase()))
}

fn is_pinned_image(text: &str) -> bool {
    Reference::parse(text).is_ok_and(|reference| reference.digest.is_some())
}

fn is_url(text: &str) -> bool {
    let host = text.strip_prefix("https://").unwrap_or_default();
    !host.is_empty()
        && !host.starts_with('/')
        && text.len() <= MOST_URL_BYTES
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::layers::LayerText;
    use crate::kubelet::origin::Origin;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// The faults of this text below `kedge`, as validation reports them.
    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        let text = text.replace("HEX", HEX);
        let value = yaml::parse(text.as_bytes()).unwrap().to_json();
        let mut found = Vec::new();
        Wanted::read(value.as_object().unwrap(), &mut |_, message| found.push(message));
        let expect: Vec<String> = expect.iter().map(|line| line.replace("HEX", HEX)).collect();
        assert_eq!(found, expect, "{text}");
    }

    fn payload(kedge: &str) -> Vec<u8> {
        format!("apiVersion: v9\nnews: [1]\nkedge: {kedge}\n").replace("HEX", HEX).into_bytes()
    }

    fn drop_in(text: &str) -> LocalLayers {
        let layer = LayerText { origin: Origin::DropIn("10-pin.conf".into()), text: text.into() };
        LocalLayers { drop_ins: vec![layer], ..LocalLayers::default() }
    }

    const SYSTEM: &str =
        "{system: {version: 1.4.2, images: {x: {url: 'https://h/x', digest: 'sha256:HEX'}}}}";

    #[test]
    fn each_fault_is_reported_with_its_path() {
        check(
            "system: {version: '1 4', images: {x: {image: 'r.example/k:1', digest: 'sha256:12'}}}",
            &[
                "kedge.system.version is \"1 4\", expected letters, digits and .+~-_, at most 128",
                "kedge.system.images.x.digest is \"sha256:12\", expected sha256:<64 hex digits>",
                "kedge.system.images.x.image is \"r.example/k:1\", expected REGISTRY/NAME@sha256:<64 hex digits>",
            ],
        );
        check(
            "system: {version: '1', images: {x: {image: 'r.example/k:1@sha256:HEX', digest: 'sha256:HEX'}}}",
            &[],
        );
        check(
            "system: {version: '1', images: {x: {url: 'http://h/x', digest: 'sha256:HEX'}, z: {digest: 'sha256:HEX'}}}",
            &[
                "kedge.system.images.x.url is \"http://h/x\", expected https://HOST/PATH",
                "kedge.system.images.z.image, expected either it or url",
            ],
        );
        check("system: {version: '1'}", &["kedge.system.images, expected an object with an entry for each"]);
        check(
            "agent: {version: '1', programs: {x86_64: {url: 'https://h/x', image: 'a/b@sha256:HEX', digest: 'sha256:HEX'}}}",
            &["kedge.agent.programs.x86_64.image, expected either it or url"],
        );
        let keys = "x".repeat(MOST_KEY_BYTES);
        check(&format!("system: {{version: '1', images: {{}}, keys: {keys}}}"), &[]);
        check(
            &format!("system: {{version: '1', images: {{}}, keys: {keys}x}}"),
            &["kedge.system.keys, expected at most 8 KiB"],
        );
        check("download: {bytesPerSecond: 64Ki, window: Any}", &[]);
        check(
            "download: {bytesPerSecond: 1023}",
            &["kedge.download.bytesPerSecond is 1023, expected at least 1Ki"],
        );
    }

    #[test]
    fn lenient_reader_skips_what_it_does_not_know() {
        let text = "{system: {version: 1.4.2, news: {}, reboot: Manual, images: {x: {url: 'https://h/x', digest: \
                    'sha256:HEX', more: 1}, z: {torrent: t}}}, download: {window: Window}, later: [2]}";
        let wanted = Wanted::of_payload(&payload(text), &LocalLayers::default()).expect("it parses");
        let system = wanted.system.expect("it is wanted");
        assert_eq!((system.version.as_str(), system.reboot), ("1.4.2", Reboot::Manual));
        let pinned = system.of("x").expect("an image for this board");
        assert_eq!(pinned.source, Source::Url("https://h/x".into()));
        assert_eq!(pinned.digest.to_string(), HEX);
        assert_eq!(system.of("z"), None);
        assert!(wanted.download.in_window);
        assert!(Wanted::of_payload(b"kedge: [", &LocalLayers::default()).is_err());
        let without = Wanted::of_payload(b"maxPods: 1", &LocalLayers::default());
        assert_eq!(without.expect("it parses"), Wanted::default());
    }

    #[test]
    fn null_in_a_drop_in_pins_the_node() {
        for (text, is_wanted) in [
            ("kedge: {system: null}", false),
            ("kedge: null", false),
            ("kedge: {agent: null}", true),
            ("maxPods: 1", true),
        ] {
            let wanted = Wanted::of_payload(&payload(SYSTEM), &drop_in(text)).expect("it parses");
            assert_eq!(wanted.system.is_some(), is_wanted, "{text}");
        }
    }
}
