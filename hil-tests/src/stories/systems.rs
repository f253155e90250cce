//! Systems that a configuration wants: an update that comes from a registry over the network, is written,
//! tried and kept, and bad ones, after which the old one runs again.
//!
//! Always holds: nobody does anything on the device. What it takes is signed by keys that came with the
//! configuration, in a registry with TLS and a password. All along kubectl watches the Node, and each version
//! of it is compared with what ran at that moment.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use kedge_rig::real_registry::{PASSWORD, RealRegistry, USER, docker_auth, path_of_blob};
use serde_json::Value;

use super::chance::{Chance, number};
use crate::error::HilError;
use crate::machine::{REGISTRY_IN_GUEST, tool};
use crate::stage::{NODE, Stage, condition, patience, payload};

/// The updates' repository.
const REPOSITORY: &str = "kedge/system";
/// The registry's credentials on the device.
const CREDENTIALS: &str = "/etc/kedge/registry.json";
/// Below the agent's directory.
const BAD: &str = "/var/lib/kedge/system/bad";
/// What a deaf image has in addition: no network.
const DEAF: &str = "systemd.mask=systemd-networkd.service";
/// One version of the Node, as kubectl prints it: a line. It would turn tabs into spaces.
const SEEN: &str = "jsonpath={.metadata.labels.kedge\\.dev/slot}{\"|\"}\
{.status.nodeInfo.osImage}{\"|\"}\
{.status.conditions[?(@.type==\"SystemOK\")].status}{\"|\"}{.status.conditions[?(@.type==\"SystemOK\")].reason}{\"|\"}\
{.status.conditions[?(@.type==\"SystemOK\")].message}{\"\\n\"}";

/// A registry with updates, the keys that sign them, and the lines that configurations need for both.
pub(super) struct Site {
    registry: Option<RealRegistry>,
    folder: PathBuf,
    port: u16,
    /// Fields of every payload.
    fields: String,
    /// The board's name and version.
    board: String,
    version: String,
    images: PathBuf,
}

/// What `images/push` left in the registry.
pub(super) struct Pushed {
    pub(super) version: String,
    /// The manifest's digest.
    digest: String,
    /// The root's digest.
    root: String,
    /// Fields of `kedge.system`.
    fields: String,
}

impl Pushed {
    pub(super) fn digest_hex(&self) -> &str {
        self.digest.trim_start_matches("sha256:")
    }
}

/// Runs a program of the repository.
fn program(name: &str, arguments: &[&Path], variables: &[(&str, &str)]) -> Result<String, HilError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    let mut command = Command::new(&path);
    command.args(arguments).envs(variables.iter().copied());
    let output = command.output().map_err(HilError::io("run", &path))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(HilError::Garbled(format!("{name}: {}: {}", output.status, text(&output.stderr)))),
    }
}

fn write(path: &Path, content: &str) -> Result<(), HilError> {
    std::fs::write(path, content).map_err(HilError::io("write", path))
}

/// Each line with spaces in front.
fn indented(text: &str, spaces: usize) -> String {
    let space = " ".repeat(spaces);
    text.lines().map(|line| format!("{space}{line}\n")).collect()
}

impl Site {
    /// Starts a registry, makes keys, and pushes the config that names the registry; it becomes
    /// last-known-good. The device takes its first list of keys by hand, which others have with their image:
    /// from then on it takes what they signed, and nothing else.
    pub(super) fn open(stage: &mut Stage<'_>) -> Result<Site, HilError> {
        let folder = stage.folder.clone();
        let address = REGISTRY_IN_GUEST.split(':').next().unwrap_or_default();
        let authority = RealRegistry::certify(&folder, &[address, "127.0.0.1"])?;
        let registry = Some(RealRegistry::start(&folder, stage.registry_port)?);
        for name in ["root", "release", "stranger"] {
            let path = folder.join(format!("{name}.key"));
            let words = ["genpkey", "-algorithm", "ed25519", "-out"].map(OsStr::new);
            tool("openssl", &[&words[..], &[path.as_os_str()]].concat())?;
        }
        let (board, version) = {
            let text = stage.guest("cat /usr/lib/kedge-image/release")?;
            let value = |key: &str| {
                let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
                values.next().unwrap_or_default().trim().to_owned()
            };
            (value("BOARD"), value("VERSION"))
        };
        let fields = format!(
            "kedge:\n  images:\n    credentialsFile: {CREDENTIALS}\n    certificateAuthorities:\n      \
             \"{REGISTRY_IN_GUEST}\": |\n{}",
            indented(&authority, 8)
        );
        let (port, images) = (stage.registry_port, stage.machine.image_file(""));
        let site = Site { registry, folder, port, fields, board, version, images };
        site.log_in(stage)?;
        let list = site.keys(1, &site.version)?;
        stage.guest(&format!("kedge slot keys - <<'@'\n{list}\n@"))?;
        let uid = stage.push("site", &payload("2s", 2, &site.fields))?;
        stage.runs(&uid)?;
        stage.promotes(&uid)?;
        Ok(site)
    }

    /// Ends the registry, and starts it again.
    fn restart_registry(&mut self) -> Result<(), HilError> {
        self.registry = None;
        std::thread::sleep(Duration::from_secs(2));
        self.registry = Some(RealRegistry::start(&self.folder, self.port)?);
        Ok(())
    }

    /// Gives the device the registry's password.
    fn log_in(&self, stage: &mut Stage<'_>) -> Result<(), HilError> {
        let auths = format!("{{\"auths\":{{\"{REGISTRY_IN_GUEST}\":{{\"auth\":\"{}\"}}}}}}", docker_auth());
        stage.guest(&format!("umask 077; printf '%s' '{auths}' >{CREDENTIALS}; sync")).map(drop)
    }

    /// A list of keys with this floor for the board.
    fn keys(&self, version: u32, floor: &str) -> Result<String, HilError> {
        let shown = |name: &str| {
            let line = program("images/keys", &[Path::new("show"), &self.folder.join(name)], &[])?;
            Ok::<_, HilError>(line.split(' ').nth(1).unwrap_or_default().to_owned())
        };
        let (root, release) = (shown("root.key")?, shown("release.key")?);
        let list = self.folder.join("list");
        let board = &self.board;
        write(
            &list,
            &format!(
                "kedge-keys 1\nversion {version}\nroots-needed 1\nroot {root}\nrelease {release} story\n\
                 floor {board} {floor}\n"
            ),
        )?;
        program("images/keys", &[Path::new("sign"), &list, &self.folder.join("root.key")], &[])
    }

    /// Makes another update from the image's own, see `hil-tests/alter`; signs it, and pushes it.
    pub(super) fn update(&self, name: &str, changes: &[(&str, &str)]) -> Result<Pushed, HilError> {
        let file = self.folder.join(name);
        let (version, key) = (format!("{}.{name}", self.version), self.folder.join("release.key"));
        let key = key.to_str().unwrap_or_default();
        let mut variables = vec![("ALTER_VERSION", version.as_str()), ("ALTER_KEYS", key)];
        variables.extend(changes);
        program("hil-tests/alter", &[&self.images, &file], &variables)?;
        let authority = self.folder.join("ca.pem");
        let variables = [
            ("SSL_CERT_FILE", authority.to_str().unwrap_or_default()),
            ("KEDGE_REGISTRY_USER", USER),
            ("KEDGE_REGISTRY_PASSWORD", PASSWORD),
        ];
        let server = format!("127.0.0.1:{}", self.port);
        let to = PathBuf::from(format!("{server}/{REPOSITORY}:{name}"));
        let fields = program("images/push", &[&file, &to], &variables)?.replace(&server, REGISTRY_IN_GUEST);
        let digest = fields.lines().rev().find_map(|line| line.trim().strip_prefix("digest: "));
        let digest = digest.unwrap_or_default().trim_matches('"').to_owned();
        let block = std::fs::read(&file).map_err(HilError::io("read", &file))?;
        let block = String::from_utf8_lossy(block.get(..4096).unwrap_or_default()).into_owned();
        let value = |key: &str| {
            let mut values = block.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            values.next().unwrap_or_default().to_owned()
        };
        let root = value("root").rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(Pushed { version: value("version"), digest, root, fields })
    }

    /// A payload that wants this update, with these fields of `kedge.system` besides.
    pub(super) fn wants(&self, pushed: &Pushed, more: &str) -> String {
        let system = indented(&pushed.fields, 4);
        payload("2s", 2, &format!("{}  system:\n{system}{more}", self.fields))
    }
}

/// kubectl's watch of the Node.
struct Watch {
    kubectl: Child,
    file: PathBuf,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

impl Watch {
    fn begin(stage: &Stage<'_>) -> Result<Watch, HilError> {
        let file = stage.folder.join("watch");
        let kubectl = stage.hub.kubectl().start(&["get", "node", NODE, "--watch", "-o", SEEN], &file)?;
        Ok(Watch { kubectl, file })
    }

    /// Each version of the Node so far.
    fn seen(&self) -> Result<Vec<Seen>, HilError> {
        let text = std::fs::read_to_string(&self.file).map_err(HilError::io("read", &self.file))?;
        let line = |line: &str| {
            let words: Vec<_> = line.splitn(5, '|').map(str::to_owned).collect();
            <[String; 5]>::try_from(words).map_err(|words| HilError::Garbled(format!("{words:?}")))
        };
        text.lines()
            .map(line)
            .map(|line| {
                let [slot, image, status, reason, message] = line?;
                Ok(Seen { slot, image, status, reason, message })
            })
            .collect()
    }

    /// Compares all versions of the Node with the truth: these versions were wanted, and no other.
    fn is_truthful(&self, stage: &mut Stage<'_>, good: &[&str]) -> Result<(), HilError> {
        let seen = self.seen()?;
        let mut steps: Vec<String> = Vec::new();
        for seen in &seen {
            if seen.status == "True" && seen.reason == "Wanted" {
                let runs = good.iter().any(|version| {
                    seen.image.starts_with(&format!("Kedge {version} ")) && seen.message.contains(version)
                });
                stage.expect(
                    &format!("the wanted system runs when the Node says so: {seen:?}"),
                    runs,
                    true,
                )?;
            }
            let step = format!("{}:{}", seen.slot, seen.reason);
            if !seen.reason.is_empty() && steps.last() != Some(&step) {
                steps.push(step);
            }
        }
        stage.say(&format!("kubectl saw {} versions of the Node: {}", seen.len(), steps.join(" ")));
        Ok(())
    }
}

/// One version of the Node.
#[derive(Debug)]
struct Seen {
    slot: String,
    image: String,
    status: String,
    reason: String,
    message: String,
}

/// Waits until the API shows this status and reason of `SystemOK`; returns its message.
fn system_ok(stage: &mut Stage<'_>, status: &str, reason: &str) -> Result<String, HilError> {
    stage.wait(&format!("SystemOK {status} {reason}"), patience(), |stage| {
        let (found, message, why) = condition(&stage.node()?, "SystemOK");
        Ok(if found == status && why == reason {
            Ok(message)
        } else {
            Err(format!("{found} {why}: {message}"))
        })
    })
}

/// The slot that runs, and the image's version.
fn running(stage: &mut Stage<'_>) -> Result<(String, String), HilError> {
    let slot = stage.guest("sed -n 's/.*root=PARTLABEL=root-\\([ab]\\).*/\\1/p' /proc/cmdline")?;
    Ok((slot, stage.guest("sed -n 's/^VERSION=//p' /usr/lib/kedge-image/release")?))
}

/// The kilobytes that came over the network for this version.
pub(super) fn fetched_kib(stage: &mut Stage<'_>, version: &str) -> Result<u64, HilError> {
    let log = stage.guest("journalctl -u kedge -o cat --no-pager | grep 'bytes came from its server'")?;
    let line = log.lines().rfind(|line| line.contains(version)).unwrap_or_default();
    let bytes = line.rsplit(": ").next().and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    bytes.map(|bytes| bytes / 1024).ok_or_else(|| HilError::Wrong(format!("bytes of {version} in {log:?}")))
}

/// Waits until the agent restarts the machine, and for the agent of the next boot.
fn restarts(stage: &mut Stage<'_>, old_boot: &str) -> Result<(), HilError> {
    stage.machine.wait_reset(patience())?;
    stage.comes_back(old_boot)
}

/// The fault of this system in the device's own record; `None`: it has none.
fn fault(stage: &mut Stage<'_>, digest: &str) -> Result<Option<Value>, HilError> {
    let text = stage.guest(&format!("cat {BAD} 2>/dev/null || true"))?;
    let record: Value = serde_json::from_str(&text).unwrap_or_default();
    let systems = record["systems"].as_array().cloned().unwrap_or_default();
    Ok(systems.into_iter().find(|system| digest.ends_with(system["digest"].as_str().unwrap_or("?"))))
}

/// One update and one roll back.
pub(super) fn lives(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let site = Site::open(stage)?;
    let watch = Watch::begin(stage)?;
    let next = site.update("next", &[("ALTER_ROOT", "true")])?;
    let keys = format!("    keys: |\n{}", indented(&site.keys(2, &site.version)?, 6));
    let boot = stage.boot_id()?;
    let uid = stage.push("edge-next", &site.wants(&next, &keys))?;
    restarts(stage, &boot)?;
    let found = running(stage)?;
    stage.expect("slot and version", found, ("b".into(), next.version.clone()))?;
    system_ok(stage, "True", "Wanted")?;
    stage.runs(&uid)?;
    stage.promotes(&uid)?;
    let kib = fetched_kib(stage, &next.version)?;
    stage.say(&format!(
        "{} was pushed, fetched ({kib} KiB), written, tried, and kept, with its config",
        next.version
    ));
    stage.expect(&format!("{kib} KiB of an image with another version"), kib < 4096, true)?;
    let keys_now = stage.guest("kedge slot keys")?;
    stage.expect(
        &format!("the config's list of keys is in force: {keys_now}"),
        keys_now.contains("floor "),
        true,
    )?;

    let deaf = site.update("deaf", &[("ALTER_OPTIONS", DEAF)])?;
    stage.push("edge-deaf", &site.wants(&deaf, "    reboot: Manual\n"))?;
    system_ok(stage, "Unknown", "WaitsForRestart")?;
    // Two of its three tries are gone, and it is judged as soon as its agent has been up for long enough: a
    // real one is given ten minutes at each try. No manifest could ask for that.
    stage.guest(
        "cd /efi/loader/entries && sed -i '/^options /s/$/ kedge.demands-secs=1/' kedge-a+3.conf && \
         mv kedge-a+3.conf kedge-a+1-2.conf && sync",
    )?;
    let boot = stage.boot_id()?;
    stage.machine.run_last("systemctl reboot")?;
    stage.machine.wait_reset(patience())?;
    stage.machine.wait_reset(patience())?;
    stage.comes_back(&boot)?;
    let found = running(stage)?;
    stage.expect("slot and version", found, ("b".into(), next.version.clone()))?;
    let why = system_ok(stage, "False", "BadSystem")?;
    stage.renews()?;
    stage.ready()?;
    let known = fault(stage, &deaf.digest)?.unwrap_or_default();
    stage.expect(&format!("the fault in the record: {known}"), known["fault"].as_str(), Some("contact"))?;
    stage.say(&format!("{} was tried, and the system before it runs again: {why}", deaf.version));

    // another config that wants the same system
    let boot = stage.boot_id()?;
    stage.push("edge-again", &site.wants(&deaf, "    reboot: Window\n"))?;
    let failed = format!("system {} failed here", deaf.version);
    stage.wait(&format!("ConfigOK: {failed}"), patience(), |stage| {
        let found = condition(&stage.node()?, "ConfigOK");
        let is_so = found.1 == format!("using last known good: (UID: {uid})") && found.2.contains(&failed);
        Ok(if is_so { Ok(()) } else { Err(format!("{found:?}")) })
    })?;
    is_left_alone(stage, &boot)?;
    watch.is_truthful(stage, &[&next.version])
}

/// Waits for the old slot after three tries of the other one.
fn falls_back(stage: &mut Stage<'_>, what: &str, boot: &str) -> Result<(), HilError> {
    for reset in ["to try it", "after the first try", "after the second try", "after the third try"] {
        stage.machine.wait_reset(patience())?;
        stage.say(&format!("{what}: reset {reset}"));
    }
    stage.comes_back(boot)?;
    stage.renews()?;
    stage.ready()
}

/// Fails the story if this boot ends, or another system is armed, while the agent has contact.
fn is_left_alone(stage: &mut Stage<'_>, boot: &str) -> Result<(), HilError> {
    for _ in 0..2 {
        stage.renews()?;
    }
    let now = stage.boot_id()?;
    stage.expect("boot", now.as_str(), boot)?;
    let armed = stage.guest("ls /efi/loader/entries | grep -F +3 || true")?;
    stage.expect("armed entries", armed.as_str(), "")
}

/// A bad system that fails by itself: three tries, and then never again.
fn fails(stage: &mut Stage<'_>, name: &str, root: &str, kind: &str) -> Result<(), HilError> {
    let site = Site::open(stage)?;
    let watch = Watch::begin(stage)?;
    let update = site.update(name, &[("ALTER_ROOT", root)])?;
    let (before, boot) = (running(stage)?, stage.boot_id()?);
    stage.push(name, &site.wants(&update, ""))?;
    falls_back(stage, name, &boot)?;
    let found = running(stage)?;
    stage.expect("slot and version", found, before)?;
    let why = system_ok(stage, "False", "BadSystem")?;
    let known = fault(stage, &update.digest)?.unwrap_or_default();
    stage.expect(
        &format!("the fault in the record: {known}"),
        known["fault"].as_str().unwrap_or("failed"),
        kind,
    )?;
    let boot = stage.boot_id()?;
    stage.push("again", &site.wants(&update, "    reboot: Window\n"))?;
    is_left_alone(stage, &boot)?;
    system_ok(stage, "False", "BadSystem")?;
    stage.say(&format!("the old system runs with contact, and the other one is not tried again: {why}"));
    watch.is_truthful(stage, &[])
}

/// The agent of the new system ends at once, again and again.
pub(super) fn crashes(stage: &mut Stage<'_>) -> Result<(), HilError> {
    fails(stage, "crashing", "printf '#!/bin/sh\\nexit 1\\n' >usr/bin/kedge", "failed")
}

/// Something in the new system keeps its agent from ever being started; nobody is left to say why. The
/// limit of such a boot is a minute, in place of a quarter of an hour.
pub(super) fn hangs(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let root = "printf '[Service]\\nExecStartPre=/bin/sleep infinity\\nTimeoutStartSec=infinity\\n' >d && \
                install -D -m 644 d etc/systemd/system/kedge.service.d/hang.conf && \
                printf '[Unit]\\nJobTimeoutSec=60s\\n' >d && \
                install -D -m 644 d etc/systemd/system/kedge-health.service.d/short.conf && rm d";
    fails(stage, "hanging", root, "cuts")
}

/// Systems that are refused before a byte of a slot is written.
pub(super) fn forged(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let site = Site::open(stage)?;
    let watch = Watch::begin(stage)?;
    let (before, boot) = (running(stage)?, stage.boot_id()?);
    let entries = stage.guest("ls /efi/loader/entries")?;
    let stranger = site.folder.join("stranger.key");
    let stranger = stranger.to_str().unwrap_or_default();
    let forgeries: [(&str, &[(&str, &str)]); 4] = [
        ("stranger", &[("ALTER_KEYS", stranger)]),
        ("unsigned", &[("ALTER_KEYS", "")]),
        ("older", &[("ALTER_VERSION", "0.0.1")]),
        ("foreign", &[("ALTER_BOARD", "toaster")]),
    ];
    for (name, changes) in forgeries {
        let update = site.update(name, changes)?;
        let wants = site.wants(&update, "").replace("  toaster:", &format!("  {}:", site.board));
        stage.push(name, &wants)?;
        let why =
            stage.wait(&format!("SystemOK False BadSystem, {}", update.version), patience(), |stage| {
                let (found, message, why) = condition(&stage.node()?, "SystemOK");
                let is_it = found == "False" && why == "BadSystem" && message.contains(&update.version);
                Ok(if is_it { Ok(message) } else { Err(format!("{found} {why}: {message}")) })
            })?;
        stage.say(&format!("{name}: {why}"));
    }

    // the registry lost the end of the root
    let short = site.update("short", &[("ALTER_ROOT", "head -c 3000000 /dev/urandom >usr/lib/filler")])?;
    let blob = site.folder.join("storage").join(path_of_blob(&short.root));
    let whole = std::fs::read(&blob).map_err(HilError::io("read", &blob))?;
    let kept = whole.get(..whole.len() - 1_500_000).unwrap_or_default();
    std::fs::write(&blob, kept).map_err(HilError::io("shorten", &blob))?;
    stage.push("short", &site.wants(&short, ""))?;
    let why = stage.wait("SystemOK Unknown Fetching, with a problem", patience(), |stage| {
        let (found, message, why) = condition(&stage.node()?, "SystemOK");
        let is_it = found == "Unknown" && why == "Fetching" && message.contains("; ");
        Ok(if is_it { Ok(message) } else { Err(format!("{found} {why}: {message}")) })
    })?;
    stage.say(&format!("truncated: {why}"));
    is_left_alone(stage, &boot)?;
    let now = (running(stage)?, stage.guest("ls /efi/loader/entries")?);
    stage.expect("slot, version and boot entries", now, (before, entries))?;
    stage.ready()?;
    watch.is_truthful(stage, &[])
}

/// How often the update is interrupted, unless `KEDGE_HIL_CYCLES` says otherwise.
const INTERRUPTIONS: u64 = 12;

/// Interruptions of an update: the power, the cable, the agent and the registry go in turn.
pub(super) fn interrupted(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let mut chance = Chance::from_environment(stage);
    let mut site = Site::open(stage)?;
    let watch = Watch::begin(stage)?;
    let root = "head -c 6000000 /dev/urandom >usr/lib/filler";
    let update = site.update("slow", &[("ALTER_ROOT", root)])?;
    let wants = site.wants(&update, "    reboot: Manual\n  download: {bytesPerSecond: 64Ki}\n");
    let uid = stage.push("slow", &wants)?;
    for cycle in 0..number("KEDGE_HIL_CYCLES").unwrap_or(INTERRUPTIONS) {
        system_ok(stage, "Unknown", "Fetching")?;
        std::thread::sleep(Duration::from_millis(3_000 + chance.below(6_000)));
        match cycle % 4 {
            0 => stage.power_cut()?,
            1 => {
                stage.machine.plug(false)?;
                std::thread::sleep(Duration::from_secs(2));
                stage.machine.plug(true)?;
            }
            2 => {
                let process = stage.running()?;
                stage.guest(&format!("kill -KILL {process}"))?;
                stage.restarted(process)?;
            }
            _ => site.restart_registry()?,
        }
        stage.renews()?;
        let (_, message, reason) = condition(&stage.node()?, "SystemOK");
        stage.say(&format!("interrupted: {reason}: {message}"));
    }
    system_ok(stage, "Unknown", "WaitsForRestart")?;
    let logs =
        stage.guest("journalctl -u kedge -o cat --no-pager | grep 'bytes came from its server' || true")?;
    stage.say(&format!("fetched: {logs}"));
    stage.reboot()?;
    let found = running(stage)?;
    stage.expect("slot and version", found, ("b".into(), update.version.clone()))?;
    stage.renews()?;
    system_ok(stage, "True", "Wanted")?;
    stage.promotes(&uid)?;
    watch.is_truthful(stage, &[&update.version])
}

/// A config and its system are one thing: the config may have a field that only the next agent knows, and
/// takes its system back with it when it fails later. The floor of the keys outlives the state partition.
pub(super) fn pairs(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let faults = stage.faults.clone().ok_or_else(|| HilError::Garbled("no --faults".to_owned()))?;
    // an agent that knows one field more
    let root = format!("install -m 755 {} usr/bin/kedge", faults.display());
    let site = Site::open(stage)?;
    let watch = Watch::begin(stage)?;
    let next = site.update("next", &[("ALTER_ROOT", &root)])?;
    let boot = stage.boot_id()?;
    let field = |after: &str| format!("  faultInjection:\n    crashAfter: {after}\n");
    let uid = stage.push("edge-next", &site.wants(&next, &field("1000h")))?;
    restarts(stage, &boot)?;
    stage.runs(&uid)?;
    stage.promotes(&uid)?;
    let found = running(stage)?;
    stage.expect("slot and version", found, ("b".into(), next.version.clone()))?;
    stage.say("a config with a field that only the next agent knows waited for its system, and runs on it");

    let third = site.update("third", &[("ALTER_ROOT", &root)])?;
    let boot = stage.boot_id()?;
    let bad = stage.push("edge-third", &site.wants(&third, &field("1s")))?;
    restarts(stage, &boot)?;
    let boot = stage.boot_id()?;
    let found = running(stage)?;
    stage.expect("slot and version", found, ("a".into(), third.version.clone()))?;
    stage.say("the next system was tried, and its config crashes on it");
    restarts(stage, &boot)?;
    let found = running(stage)?;
    stage.expect("slot and version", found, ("b".into(), next.version.clone()))?;
    stage.renews()?;
    let why = system_ok(stage, "False", "BadSystem")?;
    stage.wait("ConfigOK False, last known good runs", patience(), |stage| {
        let found = condition(&stage.node()?, "ConfigOK");
        let is_so = found.0 == "False" && found.1 == format!("using last known good: (UID: {uid})");
        Ok(if is_so { Ok(()) } else { Err(format!("{found:?}")) })
    })?;
    let boot = stage.boot_id()?;
    is_left_alone(stage, &boot)?;
    stage.say(&format!("{bad} took its system back with it: {why}"));

    stage.assign_map("edge-next", &uid)?;
    stage.runs(&uid)?;
    stage.guest(
        "d=/dev/disk/by-partlabel/state; dd if=/dev/zero of=$d bs=1M oflag=direct conv=notrunc 2>/dev/null; \
         dd if=/dev/zero of=$d bs=4096 count=1 oflag=direct conv=notrunc,fsync",
    )?;
    stage.power_cut()?;
    stage.renews()?;
    site.log_in(stage)?;
    stage.runs(&uid)?;
    let floor = stage.guest("kedge slot keys")?;
    stage.expect(&format!("a floor in the list in force: {floor}"), floor.contains("floor "), true)?;
    let boot = stage.boot_id()?;
    let older = site.update("older", &[("ALTER_VERSION", "0.0.1")])?;
    stage.push("edge-older", &site.wants(&older, ""))?;
    let why = system_ok(stage, "False", "BadSystem")?;
    is_left_alone(stage, &boot)?;
    stage.say(&format!("the state partition was wiped, and the floor is there: {why}"));
    watch.is_truthful(stage, &[&next.version, &third.version])
}
