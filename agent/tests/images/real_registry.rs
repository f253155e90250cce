//! Debian's `docker-registry`, as sites run it: over TLS with an authority of its own, and with a password.
//!
//! The image is put into its storage as files, so that nothing of ours pushes what ours pulls. Without the program this is printed
//! and nothing is done; under CI=true it fails.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kedge_core::images::BlobDigest;
use kedge_rig::scratch::wait_until;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

use super::archive::Image;
use super::pull::image;
use super::setup::Node;
use super::signatures::{self, Signer};

/// `s3cret` by bcrypt, in the form of htpasswd.
const HTPASSWD: &str = "edge:$2y$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK\n";

/// A registry that ends with the test.
struct Registry(Child);

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An authority, and a certificate for 127.0.0.1 from it with its key.
fn certificates(directory: &Path) {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = params.signed_by(&key, &issuer).unwrap();
    for (name, pem) in
        [("ca.pem", authority.pem()), ("leaf.pem", leaf.pem()), ("leaf.key", key.serialize_pem())]
    {
        fs::write(directory.join(name), pem).unwrap();
    }
}

/// The storage of the registry's own file driver, with one image.
fn store(image: &Image, directory: &Path, repository: &str, tag: &str) {
    let blobs: Vec<&[u8]> = image.blobs().collect();
    store_manifest(&image.manifest, &blobs, directory, repository, tag);
}

/// The same with a manifest of any sort, and what it names.
fn store_manifest(manifest: &[u8], blobs: &[&[u8]], directory: &Path, repository: &str, tag: &str) {
    let root = directory.join("storage/docker/registry/v2");
    let write = |path: String, bytes: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let blob = |bytes: &[u8]| {
        let hex = BlobDigest::of(bytes).hex();
        write(format!("blobs/sha256/{}/{hex}/data", &hex[..2]), bytes);
        hex
    };
    for bytes in blobs {
        let hex = blob(bytes);
        write(
            format!("repositories/{repository}/_layers/sha256/{hex}/link"),
            format!("sha256:{hex}").as_bytes(),
        );
    }
    let hex = blob(manifest);
    let link = format!("sha256:{hex}");
    let manifests = format!("repositories/{repository}/_manifests");
    write(format!("{manifests}/revisions/sha256/{hex}/link"), link.as_bytes());
    write(format!("{manifests}/tags/{tag}/current/link"), link.as_bytes());
    write(format!("{manifests}/tags/{tag}/index/sha256/{hex}/link"), link.as_bytes());
}

fn start(directory: &Path, port: u16) -> Registry {
    let shown = directory.display();
    let config = json!({
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": format!("{shown}/storage")}},
        "auth": {"htpasswd": {"realm": "site", "path": format!("{shown}/htpasswd")}},
        "http": {"addr": format!("127.0.0.1:{port}"),
            "tls": {"certificate": format!("{shown}/leaf.pem"), "key": format!("{shown}/leaf.key")}},
    });
    fs::write(directory.join("htpasswd"), HTPASSWD).unwrap();
    fs::write(directory.join("config.yml"), config.to_string()).unwrap();
    let log = fs::File::create(directory.join("registry.log")).unwrap();
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "docker-registry", "serve"])
        .arg(directory.join("config.yml"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut registry = Registry(child);
    wait_until("the registry listens", Duration::from_secs(60), || {
        assert_eq!(
            registry.0.try_wait().unwrap(),
            None,
            "{}",
            fs::read_to_string(directory.join("registry.log")).unwrap()
        );
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    registry
}

fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|directory| directory.join("docker-registry").exists());
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
    certificates(&directory);
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
    certificates(&directory);
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
        store_manifest(&manifest, &blobs, &directory, "team/app", &signatures::tag(&digest));
    };
    sign(&theirs);
    pull(&of_team, "found 1 that none of them made");
    sign(&ours);
    let pulled = node.ok(&["pull", &of_team, "--credentials", &credentials])[0].clone();
    assert_eq!((&pulled["signatures"], &pulled["ready"]), (&json!(1), &json!(true)));
}
