//! One image for several processors: a DaemonSet with one reference to an index is rolled out and updated,
//! from a registry with TLS and a password, and each board runs the program of its own platform.
//!
//! Always holds: the indexes are the same bytes on every board, for the same programs. An index also contains
//! an entry that build tools add: an attestation for an unknown platform.

use std::collections::BTreeMap;
use std::path::Path;

use kedge_rig::real_registry::{self, PASSWORD, RealRegistry, USER, digest};
use serde_json::{Value, json};

use crate::error::HilError;
use crate::machine::REGISTRY_IN_GUEST;
use crate::stage::{NODE, Stage, patience};

/// The name of the DaemonSet, its label, its container and the image's repository.
const NAME: &str = "platform";
/// The pull secret.
const SECRET: &str = "registry";
/// Processors by the name of their program, with their names in an index, the output of the program, and
/// `uname -m`.
const PLATFORMS: [(&str, &str, &str, &str, &str); 3] = [
    ("armv7", "arm", "v7", "linux/arm/v7", "armv7l"),
    ("x86_64", "amd64", "", "linux/amd64", "x86_64"),
    ("aarch64", "arm64", "v8", "linux/arm64", "aarch64"),
];
/// Part of the error of a node that got an image for another one.
const FOREIGN: &str = "this node is linux/";

/// The manifests and blobs of one repository, by digest, and an index of them.
struct Image {
    blobs: BTreeMap<String, Vec<u8>>,
    manifests: Vec<Vec<u8>>,
    index: Value,
}

impl Image {
    /// An image for all of [`PLATFORMS`]; its program prints this tag.
    fn new(stage: &Stage<'_>, tag: &str, layers: &BTreeMap<&str, Vec<u8>>) -> Result<Image, HilError> {
        let mut image = Image { blobs: BTreeMap::new(), manifests: Vec::new(), index: Value::Null };
        let mut entries = vec![image.attestation()];
        for (program, architecture, variant, _, _) in PLATFORMS {
            let bytes = layers
                .get(program)
                .ok_or_else(|| HilError::Garbled(format!("no layer of {program} was made")))?;
            let layer = image.blob("layer.v1.tar", bytes);
            let mut config = json!({"architecture": architecture, "os": "linux",
                "config": {"Entrypoint": [format!("/{NAME}")], "Cmd": [tag]},
                "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}});
            let mut platform = json!({"os": "linux", "architecture": architecture});
            if !variant.is_empty() {
                config["variant"] = variant.into();
                platform["variant"] = variant.into();
            }
            let config = image.blob("config.v1+json", config.to_string().as_bytes());
            let mut entry = image.manifest(&config, &layer);
            entry["platform"] = platform;
            entries.push(entry);
        }
        let media = media("index.v1+json");
        let index = json!({"schemaVersion": 2, "mediaType": media, "manifests": entries});
        // stored in the folder, where a sabotage may change it
        let path = stage.folder.join(format!("{tag}.json"));
        std::fs::write(&path, index.to_string()).map_err(HilError::io("write", &path))?;
        stage.sabotage_folder()?;
        let text = std::fs::read(&path).map_err(HilError::io("read", &path))?;
        image.index = serde_json::from_slice(&text)
            .map_err(|error| HilError::Garbled(format!("{}: {error}", path.display())))?;
        Ok(image)
    }

    /// Stores a blob; returns its descriptor.
    fn blob(&mut self, kind: &str, bytes: &[u8]) -> Value {
        let descriptor = json!({"mediaType": media(kind), "digest": digest(bytes), "size": bytes.len()});
        self.blobs.insert(digest(bytes), bytes.to_vec());
        descriptor
    }

    /// Stores a manifest; returns its descriptor.
    fn manifest(&mut self, config: &Value, layer: &Value) -> Value {
        let media = media("manifest.v1+json");
        let manifest = json!({"schemaVersion": 2, "mediaType": media, "config": config, "layers": [layer]});
        let bytes = manifest.to_string().into_bytes();
        let descriptor = json!({"mediaType": media, "digest": digest(&bytes), "size": bytes.len()});
        self.manifests.push(bytes);
        descriptor
    }

    /// An attestation as buildkit adds one, before the platforms here.
    fn attestation(&mut self) -> Value {
        let config = json!({"architecture": "unknown", "os": "unknown", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest(b"{}")]}});
        let config = self.blob("config.v1+json", config.to_string().as_bytes());
        let statement = self.blob("layer.v1.tar", b"{}");
        let mut entry = self.manifest(&config, &statement);
        entry["platform"] = json!({"os": "unknown", "architecture": "unknown"});
        entry["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
        entry
    }

    /// Puts it into the registry's storage; returns the digest of its index.
    fn store(&self, directory: &Path, tag: &str) -> Result<String, HilError> {
        let blobs: Vec<&[u8]> = self.blobs.values().map(Vec::as_slice).collect();
        for manifest in &self.manifests {
            real_registry::store(directory, NAME, None, manifest, &blobs)?;
        }
        Ok(real_registry::store(directory, NAME, Some(tag), self.index.to_string().as_bytes(), &[])?)
    }
}

fn media(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

/// The program of each processor as a layer: the same bytes each time.
fn layers(stage: &Stage<'_>) -> Result<BTreeMap<&'static str, Vec<u8>>, HilError> {
    let programs = stage.programs.as_deref().ok_or_else(|| HilError::Garbled("no --programs".to_owned()))?;
    let mut layers = BTreeMap::new();
    for (name, ..) in PLATFORMS {
        let root = stage.folder.join(name);
        std::fs::create_dir_all(&root).map_err(HilError::io("create directory", &root))?;
        let (from, to) = (programs.join(name), root.join(NAME));
        std::fs::copy(&from, &to).map_err(HilError::io("copy", &from))?;
        let tar = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=0755"];
        let mut command = std::process::Command::new("tar");
        command.args(tar).arg("-C").arg(&root).args(["-cf", "-", NAME]);
        let output = command.output().map_err(HilError::io("run tar in", &root))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(HilError::Garbled(format!("tar in {}: {said}", root.display())));
        }
        layers.insert(name, output.stdout);
    }
    Ok(layers)
}

fn set(image: &str) -> Value {
    let container = json!({"name": NAME, "image": image, "imagePullPolicy": "IfNotPresent"});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": NAME}, "spec": {
        "selector": {"matchLabels": {"app": NAME}},
        "template": {"metadata": {"labels": {"app": NAME}}, "spec": {
            "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": false,
            "imagePullSecrets": [{"name": SECRET}], "containers": [container]}}}})
}

/// Waits for a pod of this image that is ready and prints the expected line; it must be the only pod.
fn runs(stage: &mut Stage<'_>, image: &str, index: &str, line: &str) -> Result<(), HilError> {
    stage.wait(&format!("a Ready pod that prints {line:?}"), patience(), |stage| {
        let pods = stage.hub.kubectl().json(&["get", "pods", "-l", &format!("app={NAME}")])?;
        let pods = pods["items"].as_array().map_or(&[][..], Vec::as_slice);
        let [pod] = pods else { return Ok(Err(format!("{} pods", pods.len()))) };
        let status = &pod["status"]["containerStatuses"][0];
        let why = status["state"]["waiting"]["message"].as_str().unwrap_or_default();
        if why.contains(FOREIGN) {
            return Err(HilError::Wrong(format!("image {image} on this board: {why}")));
        }
        let is_new = pod["spec"]["containers"][0]["image"] == image && pod["spec"]["nodeName"] == NODE;
        if !is_new || status["ready"] != true {
            return Ok(Err(pod["status"].to_string()));
        }
        let of = format!("@{index}");
        let shown = status["imageID"].as_str().unwrap_or_default();
        stage.expect(&format!("imageID {shown} ends with {of}"), shown.ends_with(&of), true)?;
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let log = stage.hub.kubectl().run(&["logs", name, "--tail=1"]).unwrap_or_default();
        let found = log.trim();
        // a pod that has just started has printed nothing
        match found {
            "" => Ok(Err("an empty log".to_owned())),
            _ => stage.expect("what the program prints", found, line).map(Ok),
        }
    })
}

/// Waits until kubectl and the set's status report that the update is complete.
fn is_complete(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let name = format!("daemonset/{NAME}");
    let limit = format!("--timeout={}s", patience().as_secs());
    let said = stage.hub.kubectl().run(&["rollout", "status", &name, &limit])?;
    stage.expect("kubectl reports success", said.contains("successfully rolled out"), true)?;
    let status = stage.hub.kubectl().json(&["get", &name])?["status"].take();
    let counts = ["desiredNumberScheduled", "updatedNumberScheduled", "numberReady", "numberAvailable"];
    let found = counts.map(|count| status[count].as_i64());
    stage.expect(&format!("{counts:?}"), found, [Some(1); 4])
}

pub(super) fn one_image(stage: &mut Stage<'_>) -> Result<(), HilError> {
    if !real_registry::is_installed() {
        return Err(HilError::Machine("docker-registry is not installed: run .ci/prepare hil".to_owned()));
    }
    let machine = stage.guest("uname -m")?;
    let own = PLATFORMS.iter().find(|platform| platform.4 == machine);
    let (.., prints, machine) =
        *own.ok_or_else(|| HilError::Wrong(format!("no image for the processor {machine}")))?;
    let address = REGISTRY_IN_GUEST.split(':').next().unwrap_or_default();
    let authority = RealRegistry::certify(&stage.folder, &[address])?;
    let layers = layers(stage)?;
    let mut digests = Vec::new();
    for tag in ["v1", "v2"] {
        let image = Image::new(stage, tag, &layers)?;
        digests.push(image.store(&stage.folder, tag)?);
    }
    let _registry = RealRegistry::start(&stage.folder, stage.registry_port)?;
    // the node trusts the registry because of a config that is pushed to it
    let authority = authority.lines().map(|line| format!("        {line}\n")).collect::<String>();
    let fields = format!(
        "kedge:\n  images:\n    certificateAuthorities:\n      \"{REGISTRY_IN_GUEST}\": |\n{authority}"
    );
    let config = stage.push("registry", &crate::stage::payload("10s", 3, &fields))?;
    stage.runs(&config)?;
    let credentials = ["--docker-username", USER, "--docker-password", PASSWORD];
    let server = ["create", "secret", "docker-registry", SECRET, "--docker-server", REGISTRY_IN_GUEST];
    stage.hub.kubectl().run(&[&server[..], &credentials[..]].concat())?;
    for (tag, index) in ["v1", "v2"].into_iter().zip(&digests) {
        let image = format!("{REGISTRY_IN_GUEST}/{NAME}:{tag}");
        match tag {
            "v1" => {
                stage.hub.kubectl().feed(&["create", "-f", "-"], &set(&image).to_string())?;
            }
            _ => {
                let (name, image) = (format!("daemonset/{NAME}"), format!("{NAME}={image}"));
                stage.hub.kubectl().run(&["set", "image", &name, &image])?;
            }
        }
        let line = format!("{tag} for {prints} on {machine}");
        runs(stage, &image, index, &line)?;
        is_complete(stage)?;
        stage.say(&format!("index {tag}, {index}: the DaemonSet is rolled out, its pod prints {line:?}"));
    }
    Ok(())
}
