//! Images, as registries, layouts, Secrets and the disk describe them: references, manifests, configs,
//! records, challenges, credentials, signatures.

use crate::Target;
use crate::input::{joined, sections};
use kedge_core::images::challenge::{self, Challenge};
use kedge_core::images::credentials::Keyring;
use kedge_core::images::manifest::{self, Config, Document, MAX_LAYERS, MAX_OFFERED};
use kedge_core::images::settings::Registries;
use kedge_core::images::signature::{self, Attached, MAX_SIGNATURES};
use kedge_core::images::{BlobDigest, Platform, Record, Reference};
use kedge_core::sorted::SortedSet;
use serde_json::{Value, json};

pub(crate) const TARGET: Target =
    Target { name: "images", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 2000 };

/// Longest error, because it becomes part of a status and an Event.
const ERROR_BYTES: usize = 4096;
/// A key, so that a signature can be made with one.
const KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAxdqg3KncHPWpNp+ahrwWIUO3aZ5EtYmmVxc+FeoxQFg=\n-----END PUBLIC KEY-----\n";

const WORDS: &[&str] = &[
    "docker.io/",
    "sha256:",
    "@sha256:",
    ":latest",
    "\"schemaVersion\":2",
    "\"mediaType\":\"application/vnd.oci.image.index.v1+json\"",
    "\"application/vnd.oci.image.layer.v1.tar+gzip\"",
    "\"application/vnd.dev.cosign.simplesigning.v1+json\"",
    "\"manifests\":[{",
    "\"layers\":[{",
    "\"config\":{",
    "\"digest\":",
    "\"size\":",
    "\"platform\":{\"os\":\"linux\",\"architecture\":\"arm\",\"variant\":\"v7\"}",
    "\"annotations\":{\"org.opencontainers.image.ref.name\":",
    "\"kind\":\"dev.cosignproject.cosign/sigs\"",
    "\"rootfs\":{\"diff_ids\":[",
    "\"Env\":[",
    "Bearer realm=\"https://",
    ",service=\"",
    "\"auths\":{",
    "\"critical\":{",
    "\"docker-manifest-digest\":",
    "\"type\":\"cosign container image signature\"",
    "\"insecureAcceptAnything\"",
    "18446744073709551615",
    "null",
    "\\u0000",
];

fn seeds() -> Vec<Vec<u8>> {
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let layer =
        json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": 10});
    let image =
        json!({"schemaVersion": 2, "config": {"digest": digest, "size": 7}, "layers": [layer]}).to_string();
    let platform = json!({"os": "linux", "architecture": "amd64"});
    let offered = json!({"digest": digest, "size": 1, "platform": platform});
    let named = json!({"digest": digest, "size": 1, "annotations": {
        "org.opencontainers.image.ref.name": format!("{}.sig", digest.replace(':', "-")),
        "kind": "dev.cosignproject.cosign/sigs"}});
    let index = json!({"manifests": [offered, named]}).to_string();
    let config = json!({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": [digest]},
        "config": {"Env": ["A=b"], "Cmd": ["x"], "User": "7:8", "Volumes": {"/data": {}}}})
    .to_string();
    let record = json!({"apiVersion": "kedge.dev/v1", "id": digest, "names": ["r.lan/a:v1"],
        "digests": [format!("r.lan/a@{digest}")], "platform": platform,
        "layers": [{"chain": digest, "diff": digest}], "sizeBytes": 10, "sequence": 1, "pulledUnixSecs": 0,
        "signatures": [{"payload": "{}", "signature": "AA=="}]})
    .to_string();
    let signed = json!({"critical": {"identity": {"docker-reference": "r.lan/a"},
        "image": {"docker-manifest-digest": digest}, "type": "cosign container image signature"}, "optional": null})
    .to_string();
    let policy = json!({"signaturePolicy": {"r.lan": [KEY], "*": ["insecureAcceptAnything"], "r.lan/a": []}})
        .to_string();
    let mirrors =
        json!({"mirrors": {"docker.io": ["https://harbor.lan/hub"]}, "insecureRegistries": ["r.lan:5000"]})
            .to_string();
    let bearer = r#"Bearer realm="https://auth.lan/token",service="r.lan",scope="repository:a:pull""#;
    let auths = r#"{"auths":{"r.lan":{"auth":"ZWRnZTpzM2NyZXQ="}}}"#;
    let pinned = format!("r.lan:5000/team/app:v1@{digest}");
    [
        joined(&["nginx", &image, &config, &record, bearer, auths, &signed, &policy]),
        joined(&[&pinned, &index, "{}", "{}", "Basic realm=x", "{}", "{}", &mirrors]),
        joined(&["[fd00::1]:5000/a", "[]", "", "", "", "", &signed, "{}"]),
    ]
    .to_vec()
}

fn run(data: &[u8]) {
    let [name, document, config, record, header, auths, signed, settings] = sections::<8>(data);
    let reference = Reference::parse(&String::from_utf8_lossy(name)).map_err(check_error);
    if let Ok(reference) = &reference {
        assert_eq!(
            Reference::parse(&reference.to_string()).as_ref(),
            Ok(reference),
            "its text is read as itself"
        );
    }
    let layers = describe(document);
    if let Err(why) = Config::parse(config, layers) {
        check_error(why);
    }
    match Record::parse(record) {
        Ok(record) => {
            assert_eq!(Record::parse(&record.to_bytes()), Ok(record), "it is read as it was written")
        }
        Err(unreadable) => check_error(unreadable.why),
    }
    let header = String::from_utf8_lossy(header);
    if let Ok(challenge) = Challenge::choose([&*header]).map_err(check_error)
        && let Some(url) = challenge.token_url("team/app")
    {
        assert!(!url.contains([' ', '\n', '\r']), "one line: {url:?}");
    }
    let _ = challenge::token(auths).map_err(check_error);
    let mut keyring = Keyring::default();
    if let Err(why) = keyring.add(auths) {
        check_error(why);
    }
    let reference = reference.unwrap_or_else(|()| Reference::parse("r.lan/a").expect("it is one"));
    let _ = keyring.for_image(&reference);
    let settings: Option<Value> = serde_json::from_slice(settings).ok();
    let settings =
        Registries::read(settings.as_ref().and_then(Value::as_object), &mut |_, why| check_error(why));
    assert!(!settings.endpoints(&reference).is_empty(), "the registry itself is asked");
    judge(&reference, &settings, signed);
}

/// Reads it as an image or an index and as signatures; returns the number of its layers.
fn describe(document: &[u8]) -> usize {
    match signature::listed(document) {
        Ok(listed) => assert!(listed.len() <= MAX_SIGNATURES, "{} signatures", listed.len()),
        Err(why) => check_error(why),
    }
    match Document::parse(document, None) {
        Ok(Document::Manifest(manifest)) => {
            assert!((1..=MAX_LAYERS).contains(&manifest.layers.len()));
            assert!(
                manifest.size_bytes() > 0 || manifest.layers.iter().all(|layer| layer.blob.size_bytes == 0)
            );
            manifest.layers.len()
        }
        Ok(Document::Index(offered)) => {
            assert!(offered.len() <= MAX_OFFERED);
            let of = BlobDigest::of(document);
            let signed = offered.iter().filter_map(Attached::of).filter(|attached| attached.may_sign(&of));
            assert!(signed.count() <= offered.len());
            let chosen = manifest::choose(&offered, &Platform::of_processor("arm", Some(7)));
            chosen.map(drop).map_err(check_error).unwrap_or_default();
            1
        }
        Err(why) => {
            check_error(why);
            1
        }
    }
}

/// A signature that verifies counts for the manifest that its text names and for no other.
fn judge(image: &Reference, settings: &Registries, signed: &[u8]) {
    let listing = json!({"layers": [{"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
        "digest": BlobDigest::of(signed), "size": signed.len(),
        "annotations": {"dev.cosignproject.cosign/signature": "AA=="}}]});
    let listed = signature::listed(listing.to_string().as_bytes()).expect("it is what is listed");
    let Some(one) = listed.first() else { return };
    let read = match one.with_payload(signed) {
        Ok(read) => read,
        Err(why) => return check_error(why),
    };
    let manifest = read.manifest().expect("it was read before");
    let rules = json!({"signaturePolicy": {"*": [KEY]}});
    let strict = Registries::read(rules.as_object(), &mut |_, why| panic!("{why}"));
    let signatures = SortedSet::from([read]);
    let of = |settings: &Registries, manifest, holds: bool| {
        settings.signatures.judge(image, &SortedSet::from([manifest]), &signatures, &|_, _, _| holds)
    };
    assert_eq!(of(&strict, manifest, true), Ok(()));
    let other = BlobDigest::of(manifest.to_string().as_bytes());
    let refusals = [of(&strict, other, true), of(&strict, manifest, false), of(settings, other, true)];
    assert!(
        refusals[0].is_err()
            && refusals[1].is_err()
            && refusals[2].is_err() == settings.signatures.covers(image)
    );
    refusals.into_iter().filter_map(Result::err).for_each(check_error);
}

fn check_error(why: String) {
    assert!(!why.is_empty() && why.len() <= ERROR_BYTES, "{} bytes: {why}", why.len());
}
