//! Only signed images: an image that a policy covers is neither unpacked nor used without a signature by one
//! of its keys, wherever it comes from.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kedge::images::Puller;
use kedge_core::images::BlobDigest;
use kedge_core::pods::PullPolicy::{Always, IfNotPresent, Never};
use kedge_rig::registry::{FakeRegistry, Fault};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use super::archive::{INDEX, Image, MANIFEST, own_architecture};
use super::orders::{configured, told};
use super::pull::image;
use super::setup::{Node, PROGRAM};

/// Signs as `cosign sign --key` does.
pub(crate) struct Signer(KeyPair);

impl Signer {
    pub(crate) fn new() -> Self {
        Self(KeyPair::generate().unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.public_key_pem()
    }

    /// The signed text, and how a manifest lists it.
    pub(crate) fn sign(&self, manifest: &BlobDigest) -> (String, Value) {
        let text = format!(
            r#"{{"critical":{{"identity":{{"docker-reference":"build.lan/team/app"}},"image":{{"docker-manifest-digest":"{manifest}"}},"type":"cosign container image signature"}},"optional":null}}"#
        );
        let signature = BASE64_STANDARD.encode(self.0.sign(text.as_bytes()).unwrap());
        let listed = json!({"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
            "digest": BlobDigest::of(text.as_bytes()), "size": text.len(),
            "annotations": {"dev.cosignproject.cosign/signature": signature}});
        (text, listed)
    }
}

/// The manifest of signatures, and its texts.
pub(crate) fn artifact(signed: &[(String, Value)]) -> Vec<u8> {
    let layers: Vec<&Value> = signed.iter().map(|(_, listed)| listed).collect();
    json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": BlobDigest::of(b"{}"), "size": 2}})
    .to_string()
    .into_bytes()
}

pub(crate) fn tag(manifest: &BlobDigest) -> String {
    format!("sha256-{}.sig", manifest.hex())
}

/// Serves signatures as those of a manifest.
fn push(registry: &FakeRegistry, repository: &str, manifest: &BlobDigest, signed: &[(String, Value)]) {
    registry.put(&format!("{repository}/manifests/{}", tag(manifest)), MANIFEST, &artifact(signed));
    for (text, _) in signed {
        let path = format!("{repository}/blobs/{}", BlobDigest::of(text.as_bytes()));
        registry.put(&path, "application/octet-stream", text.as_bytes());
    }
}

/// The configuration: these rules, and these registries in plain HTTP.
fn policy(registries: &[&FakeRegistry], rules: Value) -> Value {
    let names: Vec<String> = registries.iter().map(|registry| registry.name()).collect();
    json!({"insecureRegistries": names, "signaturePolicy": rules})
}

fn paths(registry: &FakeRegistry) -> Vec<String> {
    let seen = registry.take_seen().into_iter();
    seen.map(|seen| seen.path.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn image_without_a_good_signature_is_not_fetched() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("unsigned", &[&registry]) else { return };
    image().push(&registry, "team/app", "v1");
    let (name, digest) = (format!("{}/team/app:v1", registry.name()), image().digest());
    let (ours, other) = (Signer::new(), Signer::new());
    node.configure(&policy(&[&registry], json!({format!("{}/team", registry.name()): [ours.pem()]})));
    let refused = |expect: &str| {
        registry.take_seen();
        node.fails(&["pull", &name], expect);
        let asked = paths(&registry);
        let image_blobs: Vec<String> = image().blobs().map(|blob| BlobDigest::of(blob).to_string()).collect();
        assert!(asked.iter().all(|path| !image_blobs.contains(path)), "nothing of it is fetched: {asked:?}");
        node.has_nothing();
        assert_eq!(node.names("blobs"), [""; 0]);
    };
    refused("found none (");
    refused("404");
    push(&registry, "team/app", &digest, &[other.sign(&digest)]);
    refused("found 1 that none of them made");
    push(&registry, "team/app", &digest, &[ours.sign(&BlobDigest::of(b"another"))]);
    refused("found 1 of other manifests");
    let (text, mut listed) = ours.sign(&digest);
    listed["annotations"]["dev.cosignproject.cosign/signature"] =
        other.sign(&digest).1["annotations"]["dev.cosignproject.cosign/signature"].clone();
    push(&registry, "team/app", &digest, &[(text, listed)]);
    refused("none of them made");

    let signed = [other.sign(&digest), ours.sign(&digest)];
    push(&registry, "team/app", &digest, &signed);
    let text = BlobDigest::of(signed[0].0.as_bytes()).to_string();
    for fault in [Fault::OtherBytes, Fault::Oversized(1), Fault::Truncated(20)] {
        registry.fail(&text, fault);
        refused("another digest");
    }
    registry.fail("sha256-", Fault::OtherBytes);
    refused("not the JSON that is expected");
    registry.take_seen();
    assert_eq!(node.ok(&["pull", &name])[0]["signatures"], 2);
    let asked = paths(&registry);
    assert_eq!(asked[..3], ["v1".to_owned(), tag(&digest), text], "the text that both sign once");
    node.ok(&["pull", &name]);
    assert_eq!(paths(&registry), ["v1"], "what is known as signed is not asked for again");
}

/// A puller under these rules.
fn under(node: &Node, registries: &[&FakeRegistry], rules: Value) -> Puller {
    configured(node, &policy(registries, rules), Path::new(PROGRAM)).1
}

#[test]
fn image_from_before_the_policy_waits_for_a_signature() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("policy-later", &[&registry]) else { return };
    image().push(&registry, "team/app", "v1");
    let (name, digest) = (format!("{}/team/app:v1", registry.name()), image().digest());
    let (first, second) = (Signer::new(), Signer::new());
    let ready = |told: &[String]| told.last().unwrap().starts_with("ready");
    assert!(ready(&told(&under(&node, &[&registry], json!({})), &name, Always, "{}")));
    assert!(!paths(&registry).contains(&tag(&digest)), "nobody asked for signatures");

    let covered = under(&node, &[&registry], json!({"*": [first.pem()]}));
    let refused = |puller: &Puller, policy, expect: &str| {
        let told = told(puller, &name, policy, "{}");
        assert!(told.len() == 1 && told[0].starts_with("unsigned") && told[0].contains(expect), "{told:?}");
    };
    refused(&covered, Never, "is here and not used: ");
    refused(&covered, IfNotPresent, "404");
    registry.fail("sha256-", Fault::Status(503));
    let unknown = told(&covered, &name, IfNotPresent, "{}");
    assert!(unknown[0].starts_with("failed") && unknown[0].contains("503"), "it may have one: {unknown:?}");
    push(&registry, "team/app", &digest, &[first.sign(&digest), second.sign(&digest)]);
    registry.take_seen();
    assert_eq!(told(&covered, &name, IfNotPresent, "{}"), [r#"ready ["/bin/tick"] fetched true"#]);
    assert_eq!(paths(&registry).len(), 3, "its manifest, that of the signatures, and their text");

    // from now on without the registry, also when the keys change
    let rules = |pem: String| json!({registry.name(): [pem]});
    for puller in [covered, under(&node, &[&registry], rules(second.pem()))] {
        assert!(ready(&told(&puller, &name, Never, "{}")));
        assert_eq!(told(&puller, &name, IfNotPresent, "{}").len(), 1);
    }
    refused(&under(&node, &[&registry], rules(Signer::new().pem())), Never, "found 2 that none");
    refused(&under(&node, &[&registry], json!({"*": []})), Always, "accepts no image");
    let open = json!({"*": [], registry.name(): ["insecureAcceptAnything"]});
    assert!(ready(&told(&under(&node, &[&registry], open), &name, Always, "{}")));
    assert_eq!(
        paths(&registry),
        ["v1", &tag(&digest), &BlobDigest::of(first.sign(&digest).0.as_bytes()).to_string(), "v1"]
    );
}

#[test]
fn signature_is_for_the_manifest_that_the_name_leads_to() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("signed-index", &[&registry]) else { return };
    image().push(&registry, "team/app", "v1");
    let index = Image::index(&[(image(), own_architecture())]);
    registry.put("team/app/manifests/multi", INDEX, &index);
    let (of_index, of_image) = (BlobDigest::of(&index), image().digest());
    let signer = Signer::new();
    node.configure(&policy(&[&registry], json!({registry.name(): [signer.pem()]})));
    let name = |tag: &str| format!("{}/team/app{tag}", registry.name());
    push(&registry, "team/app", &of_image, &[signer.sign(&of_image)]);
    node.fails(&["pull", &name(":multi")], "found none");
    node.ok(&["pull", &name(&format!("@{of_image}"))]);
    node.ok(&["rm", &name(&format!("@{of_image}"))]);
    push(&registry, "team/app", &of_index, &[signer.sign(&of_index)]);
    node.ok(&["pull", &name(":multi")]);
    node.ok(&["pull", &name(":v1")]);
}

#[test]
fn mirror_without_the_signature_is_passed_over() {
    let (registry, mirror) = (FakeRegistry::start().unwrap(), FakeRegistry::start().unwrap());
    let Some(node) = Node::new("signed-mirror", &[&registry]) else { return };
    let (signer, digest) = (Signer::new(), image().digest());
    for server in [&registry, &mirror] {
        image().push(server, "team/app", "v1");
    }
    let mut images = policy(&[&registry, &mirror], json!({"*": [signer.pem()]}));
    images["mirrors"] = json!({registry.name(): [format!("http://{}", mirror.name())]});
    node.configure(&images);
    let name = format!("{}/team/app:v1", registry.name());
    node.fails(&["pull", &name], "found none");
    push(&registry, "team/app", &digest, &[signer.sign(&digest)]);
    node.ok(&["pull", &name]);
    assert!(paths(&mirror).contains(&tag(&digest)));
    node.ok(&["rm", &name]);
    push(&mirror, "team/app", &digest, &[signer.sign(&digest)]);
    registry.take_seen();
    node.ok(&["pull", &name]);
    assert_eq!(paths(&registry), [""; 0], "the mirror has all of it");
}

/// Adds signatures to a layout, called as `entry` says.
fn attach(layout: &Path, name: &str, signed: &[(String, Value)], annotations: Value) {
    let artifact = artifact(signed);
    let blob = |bytes: &[u8]| {
        fs::write(layout.join("blobs/sha256").join(BlobDigest::of(bytes).hex()), bytes).unwrap()
    };
    blob(&artifact);
    signed.iter().for_each(|(text, _)| blob(text.as_bytes()));
    let image = json!({"mediaType": MANIFEST, "digest": image().digest(), "size": image().manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": name}});
    let signatures = json!({"mediaType": MANIFEST, "digest": BlobDigest::of(&artifact), "size": artifact.len(),
        "annotations": annotations});
    let index = json!({"schemaVersion": 2, "manifests": [image, signatures]});
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
}

#[test]
fn layout_brings_its_signatures() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("signed-layout", &[&registry]) else { return };
    let (signer, digest) = (Signer::new(), image().digest());
    let layout = node.scratch.join("layout");
    image().write_layout(&layout);
    let path = layout.display().to_string();
    let import = ["import", &path, "--name", "team.lan/app:v1"];
    let covered = json!({"signaturePolicy": {"team.lan": [signer.pem()]}});
    node.configure(&covered);
    node.fails(&import, "found none");
    for by in [Signer::new(), Signer::new()] {
        attach(
            &layout,
            "team.lan/app:v1",
            &[by.sign(&digest)],
            json!({"kind": "dev.cosignproject.cosign/sigs"}),
        );
        node.fails(&import, "none of them made");
    }
    node.has_nothing();
    for annotations in [
        json!({"org.opencontainers.image.ref.name": tag(&digest)}),
        json!({"kind": "dev.cosignproject.cosign/sigs"}),
    ] {
        attach(&layout, "team.lan/app:v1", &[signer.sign(&digest)], annotations);
        node.configure(&covered);
        assert_eq!(node.ok(&import)[0]["signatures"], 1);
        node.ok(&["rm", "team.lan/app:v1"]);
        // imported before anything was configured, used under a policy that came later
        node.configure(&json!({}));
        node.ok(&import);
        let puller = configured(&node, &covered, Path::new(PROGRAM)).1;
        let told = told(&puller, "team.lan/app:v1", Never, "{}");
        assert!(told[0].starts_with("ready"), "{told:?}");
        node.ok(&["rm", "team.lan/app:v1"]);
    }
}

#[test]
fn preloaded_image_needs_its_signature() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("signed-preloaded", &[&registry]) else { return };
    let (signer, digest) = (Signer::new(), image().digest());
    let layout = node.scratch.join("preloaded/app");
    image().write_named_layout(&layout, "team.lan/app:v1");
    let puller = under(&node, &[&registry], json!({"team.lan": [signer.pem()]}));
    let order = || told(&puller, "team.lan/app:v1", Never, "{}");
    let refused = order();
    assert!(refused.len() == 1 && refused[0].starts_with("unsigned"), "{refused:?}");
    node.has_nothing();
    let annotations = json!({"org.opencontainers.image.ref.name": tag(&digest)});
    attach(&layout, "team.lan/app:v1", &[signer.sign(&digest)], annotations);
    assert_eq!(order(), [r#"ready ["/bin/tick"] fetched false"#]);
}
