//! Debian's `docker-registry`, as sites run it: over TLS with an authority of its own, and with a password.
//!
//! Without the program this is printed and nothing is done; under CI=true it fails.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use kedge_rig::real_registry::{self, RealRegistry};
use serde_json::json;

use super::archive::Image;
use super::pull::image;
use super::setup::Node;
use super::signatures::{self, Signer};

/// The storage of the registry's own file driver, with one image.
fn store(image: &Image, directory: &Path, repository: &str, tag: &str) {
    let blobs: Vec<&[u8]> = image.blobs().collect();
    real_registry::store(directory, repository, Some(tag), &image.manifest, &blobs).unwrap();
}

fn start(directory: &Path, port: u16) -> RealRegistry {
    RealRegistry::start(directory, port).unwrap()
}

fn is_installed() -> bool {
    let is_there = real_registry::is_installed();
    if !is_there {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI installs docker-registry");
        eprintln!("skipped: docker-registry is not installed");
    }
    is_there
}

#[test]
fn real_registry_serves_over_tls_with_a_password() {
    let Some(node) = Node::new("real-registry", &[]).filter(|_| is_installed()) else { return };
    let directory = node.scratch.path().to_path_buf();
    RealRegistry::certify(&directory, &["127.0.0.1"]).unwrap();
    store(image(), &directory, "team/app", "v1");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let registry = start(&directory, port);
    let server = format!("127.0.0.1:{port}");
    let name = format!("{server}/team/app:v1");
    node.fails(&["pull", &name], "UnknownIssuer");
    let trusted = json!({"certificateAuthorities": {&server: directory.join("ca.pem")}});
    node.configure(&trusted);
    node.fails(&["pull", &name], "there are no credentials");
    let auth = json!({"auths": {&server: {"auth": "ZWRnZTpzM2NyZXQ="}}});
    let credentials = node.scratch.write("creds.json", auth.to_string()).display().to_string();
    let pulled = node.ok(&["pull", &name, "--credentials", &credentials])[0].clone();
    assert_eq!(pulled["ready"], true);
    assert!(node.listing(&pulled, "%P").contains("etc/noted"));
    node.fails(
        &["pull", &format!("{server}/team/app:none"), "--credentials", &credentials],
        "MANIFEST_UNKNOWN",
    );

    // the real one's ranges
    node.ok(&["rm", &name]);
    let layer = &image().layers[0];
    let part = node.root().join(format!("images/blobs/{}.part", layer.digest().hex()));
    fs::write(&part, &layer.bytes[..layer.bytes.len() / 2]).unwrap();
    let resumed =
        node.ok(&["pull", &name, "--credentials", &credentials])[0]["fetchedBytes"].as_u64().unwrap();
    assert!(resumed < pulled["fetchedBytes"].as_u64().unwrap() * 2 / 3, "{resumed} of {pulled}");

    // gone, and back
    drop(registry);
    node.fails(&["pull", &name, "--credentials", &credentials], "refused");
    assert_eq!(node.ok(&["ls"])["images"][0]["ready"], true, "what is here stays");
    let _registry = start(&directory, port);
    node.ok(&["pull", &name, "--credentials", &credentials]);
}

#[test]
fn real_registry_gives_signatures_to_a_policy() {
    let Some(node) = Node::new("real-registry-signed", &[]).filter(|_| is_installed()) else { return };
    let directory = node.scratch.path().to_path_buf();
    RealRegistry::certify(&directory, &["127.0.0.1"]).unwrap();
    for repository in ["team/app", "other/app"] {
        store(image(), &directory, repository, "v1");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _registry = start(&directory, port);
    let server = format!("127.0.0.1:{port}");
    let (ours, theirs) = (Signer::new(), Signer::new());
    let auth = json!({"auths": {&server: {"auth": "ZWRnZTpzM2NyZXQ="}}});
    node.configure(&json!({"certificateAuthorities": {&server: directory.join("ca.pem")},
        "signaturePolicy": {format!("{server}/team"): [ours.pem()], "*": []}}));
    let credentials = node.scratch.write("creds.json", auth.to_string()).display().to_string();
    let name = |repository: &str| format!("{server}/{repository}/app:v1");
    let (of_team, of_others) = (name("team"), name("other"));
    let pull = |name: &str, expect: &str| {
        node.fails(&["pull", name, "--credentials", &credentials], expect);
        node.has_nothing();
    };
    pull(&of_team, "found none (");
    pull(&of_others, "accepts no image");

    let digest = image().digest();
    let sign = |by: &Signer| {
        let signed = [by.sign(&digest)];
        let manifest = signatures::artifact(&signed);
        // the config that every such manifest names
        let blobs = [signed[0].0.as_bytes(), b"{}"];
        let tag = signatures::tag(&digest);
        real_registry::store(&directory, "team/app", Some(&tag), &manifest, &blobs).unwrap();
    };
    sign(&theirs);
    pull(&of_team, "found 1 that none of them made");
    sign(&ours);
    let pulled = node.ok(&["pull", &of_team, "--credentials", &credentials])[0].clone();
    assert_eq!((&pulled["signatures"], &pulled["ready"]), (&json!(1), &json!(true)));
}
