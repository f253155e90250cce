//! Debian's `docker-registry`, as sites run it: over TLS with an authority of its own, with a password or
//! with tokens, and with the accidents of sites: damaged disks, a registry that is stopped in the middle of a
//! blob, a blob store elsewhere, a node's disk that fills.
//!
//! A link between node and registry stops the bytes where a test wants it. Without the program this is
//! printed and nothing is done; under CI=true it fails.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kedge_rig::link::{Link, LinkState};
use kedge_rig::real_registry::{self, RealRegistry};
use kedge_rig::registry::{Access, FakeRegistry};
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};

use super::archive::{Archive, Image, Packed, own_architecture};
use super::pull::{image, noise};
use super::setup::{Node, SmallDisk};
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
        kedge_rig::power_cut::print_past_test_runner("SKIPPED: docker-registry is not installed");
    }
    is_there
}

/// Longest that anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A node that trusts the certificates in its directory, and has the password.
struct Site {
    node: Node,
    directory: PathBuf,
    credentials: String,
}

impl Site {
    fn new(name: &str) -> Option<Self> {
        let node = Node::new(name, &[]).filter(|_| is_installed())?;
        let directory = node.scratch.path().to_path_buf();
        RealRegistry::certify(&directory, &["127.0.0.1"]).unwrap();
        let credentials = node.scratch.join("creds.json").display().to_string();
        Some(Self { node, directory, credentials })
    }

    /// Servers by their names, of which the first is the registry.
    fn trust(&self, servers: &[&str]) {
        let authorities: serde_json::Map<String, Value> =
            servers.iter().map(|it| ((*it).to_owned(), json!(self.directory.join("ca.pem")))).collect();
        self.node.configure(&json!({"certificateAuthorities": authorities}));
        let auth = json!({"auths": {servers[0]: {"auth": real_registry::docker_auth()}}});
        fs::write(&self.credentials, auth.to_string()).unwrap();
    }

    fn command(&self, name: &str) -> Command {
        self.node.command(&["pull", name, "--credentials", &self.credentials])
    }

    fn pull(&self, name: &str) -> Value {
        self.node.ok(&["pull", name, "--credentials", &self.credentials])[0].clone()
    }

    #[track_caller]
    fn fails(&self, name: &str, expect: &str) {
        self.node.fails(&["pull", name, "--credentials", &self.credentials], expect);
    }

    /// Starts it; the answer is for [`finished`].
    fn begin(&self, name: &str) -> Child {
        self.command(name).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Bytes of this blob that the node has.
    fn have(&self, blob: &Packed) -> u64 {
        let part = self.node.root().join(format!("images/blobs/{}.part", blob.digest().hex()));
        fs::metadata(part).map_or(0, |meta| meta.len())
    }

    /// The file in which the registry has a blob.
    fn file_of(&self, blob: &Packed) -> PathBuf {
        self.directory.join("storage").join(real_registry::path_of_blob(&blob.digest().to_string()))
    }
}

fn finished(child: Child) -> Result<Value, String> {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    match status.success() {
        true => Ok(serde_json::from_slice::<Value>(&stdout).unwrap()[0].clone()),
        false => Err(errors),
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Lets this many bytes through to the node; then it waits.
#[derive(Default)]
struct Gate {
    /// Bytes that came, and most that may pass.
    bytes: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Gate {
    /// In front of a port of loopback.
    fn before(port: u16, most: u64) -> (Arc<Self>, Link, String) {
        let gate = Arc::new(Self { bytes: Mutex::new((0, most)), changed: Condvar::new() });
        let own = Arc::clone(&gate);
        let observer = move |_: usize, is_up: bool, piece: &[u8]| {
            if is_up {
                return;
            }
            let mut bytes = own.bytes.lock().unwrap();
            bytes.0 += piece.len() as u64;
            drop(own.changed.wait_while(bytes, |(came, most)| came > most).unwrap());
        };
        let link = Link::observed((Ipv4Addr::LOCALHOST, port).into(), Some(Box::new(observer))).unwrap();
        let server = link.address().to_string();
        (gate, link, server)
    }

    fn came(&self) -> u64 {
        self.bytes.lock().unwrap().0
    }

    fn is_shut(&self) -> bool {
        let bytes = self.bytes.lock().unwrap();
        bytes.0 > bytes.1
    }

    fn open(&self) {
        self.bytes.lock().unwrap().1 = u64::MAX;
        self.changed.notify_all();
    }
}

fn length(blob: &Packed) -> u64 {
    blob.bytes.len() as u64
}

/// Bytes of all that is fetched of an image once.
fn all_bytes(image: &Image) -> u64 {
    image.blobs().map(|blob| blob.len() as u64).sum::<u64>() + image.manifest.len() as u64
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
    let auth = json!({"auths": {&server: {"auth": real_registry::docker_auth()}}});
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
    let auth = json!({"auths": {&server: {"auth": real_registry::docker_auth()}}});
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

#[test]
fn damaged_blob_of_a_registry_is_refused_and_mended() {
    let Some(site) = Site::new("real-registry-damage") else { return };
    store(image(), &site.directory, "team/app", "v1");
    let port = free_port();
    let _registry = start(&site.directory, port);
    let server = format!("127.0.0.1:{port}");
    site.trust(&[&server]);
    let name = format!("{server}/team/app:v1");
    // in the layers by gzip and by zstd
    for layer in &image().layers {
        let file = site.file_of(layer);
        let mut other = layer.bytes.clone();
        let middle = other.len() / 2;
        other[middle] ^= 1;
        let longer = [&layer.bytes[..], b"x"].concat();
        for (bytes, expect) in [
            (&other[..], "has the digest sha256:"),
            (&layer.bytes[..middle], "ended after"),
            (b"", "ended after 0 of"),
            (&longer[..], "has more than the"),
        ] {
            fs::write(&file, bytes).unwrap();
            site.fails(&name, expect);
            assert_eq!(site.node.names("records"), [""; 0]);
            assert_eq!(site.have(layer), if bytes.len() == middle { middle as u64 } else { 0 }, "{expect}");
        }
        fs::remove_file(&file).unwrap();
        site.fails(&name, "404");
        fs::write(&file, &layer.bytes).unwrap();
    }
    let pulled = site.pull(&name);
    assert_eq!(pulled["ready"], true);
    assert!(site.node.listing(&pulled, "%P").contains("etc/noted"));
}

#[test]
fn real_registry_gives_the_image_of_this_processor() {
    let Some(site) = Site::new("real-registry-multi") else { return };
    let other = Image::for_platform(vec![Packed::gzip(&Archive::default().file("x", b"1"))], "s390x");
    let put = |image: &Image| {
        let blobs: Vec<&[u8]> = image.blobs().collect();
        real_registry::store(&site.directory, "team/app", None, &image.manifest, &blobs).unwrap();
    };
    [&other, image()].into_iter().for_each(put);
    let multi = Image::index(&[(&other, "s390x"), (image(), own_architecture())]);
    let foreign = Image::index(&[(&other, "s390x")]);
    let mut digests = Vec::new();
    for (tag, index) in [("multi", &multi), ("foreign", &foreign)] {
        digests.push(real_registry::store(&site.directory, "team/app", Some(tag), index, &[]).unwrap());
    }
    let port = free_port();
    let _registry = start(&site.directory, port);
    let server = format!("127.0.0.1:{port}");
    site.trust(&[&server]);
    let pulled = site.pull(&format!("{server}/team/app:multi"));
    assert!(pulled["platform"].as_str().unwrap().contains(own_architecture()), "{pulled}");
    assert!(site.node.listing(&pulled, "%P").contains("etc/noted"));
    let again = site.pull(&format!("{server}/team/app@{}", digests[0]));
    assert_eq!(again["id"], pulled["id"]);
    site.fails(&format!("{server}/team/app:foreign"), "linux/s390x");
}

#[test]
fn registry_that_stops_within_a_blob_goes_on_where_it_stopped() {
    let Some(site) = Site::new("real-registry-stopped") else { return };
    store(image(), &site.directory, "team/app", "v1");
    let port = free_port();
    let registry = start(&site.directory, port);
    let [layer, top] = &image().layers[..] else { panic!("it has two") };
    let (gate, link, server) = Gate::before(port, length(layer) / 2);
    site.trust(&[&server]);
    let name = format!("{server}/team/app:v1");
    let pull = site.begin(&name);
    wait_until("half of the layer is there", LIMIT, || gate.is_shut() && site.have(layer) > 0);
    drop(registry);
    // first: the bytes under way would make the layer whole
    link.set(LinkState::Cut);
    gate.open();
    let why = finished(pull).unwrap_err();
    assert!(why.contains(&server), "{why}");
    let have = site.have(layer);
    assert!(have > 0 && have < length(layer), "{have}");
    assert_eq!(site.node.names("records"), [""; 0]);

    let before = gate.came();
    link.set(LinkState::Normal);
    let _registry = start(&site.directory, port);
    let pulled = site.pull(&name);
    let lacking = image().manifest.len() as u64 + length(layer) - have + length(top);
    assert_eq!(pulled["fetchedBytes"], lacking, "no byte is fetched twice");
    // TLS and the heads of answers add some bytes
    let came = gate.came() - before;
    assert!((lacking..lacking + 32 * 1024).contains(&came), "{came} bytes came, {lacking} were lacking");
    assert!(site.node.listing(&pulled, "%P").contains("bin/tick"));
}

#[test]
fn token_that_expires_within_a_blob_is_renewed() {
    let Some(site) = Site::new("real-registry-token") else { return };
    store(image(), &site.directory, "team/app", "v1");
    let tokens = FakeRegistry::start_tls(&site.directory).unwrap();
    let access = |secs: u64| {
        let token = real_registry::token(&site.directory, "team/app", secs).unwrap();
        tokens.set_access(Access::Bearer { user: "edge:s3cret".into(), token });
    };
    let port = free_port();
    let realm = format!("https://{}/token", tokens.name());
    let _registry = RealRegistry::start_with_tokens(&site.directory, port, &realm).unwrap();
    let layer = &image().layers[0];
    let (gate, link, server) = Gate::before(port, length(layer) / 2);
    site.trust(&[&server, &tokens.name()]);
    let name = format!("{server}/team/app:v1");
    const LIFE_SECS: u64 = 10;
    access(LIFE_SECS);
    let secs = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let end = secs() + LIFE_SECS;
    let pull = site.begin(&name);
    wait_until("half of the layer is there", LIMIT, || gate.is_shut() && site.have(layer) > 0);
    let asked = tokens.take_seen().len();
    access(600);
    wait_until("the token has expired", LIMIT, || secs() > end + 1);
    link.set(LinkState::Cut);
    link.set(LinkState::Normal);
    gate.open();
    let pulled = finished(pull).unwrap();
    assert_eq!(pulled["fetchedBytes"], all_bytes(image()), "no byte is fetched twice");
    assert!(asked >= 1, "a token was given");
    let seen = tokens.take_seen();
    assert_eq!(seen.len(), 1, "another one is asked for once: {seen:?}");
    assert!(seen[0].path.contains("scope=repository%3Ateam%2Fapp%3Apull"), "{}", seen[0].path);
    let basic = format!("Basic {}", real_registry::docker_auth());
    assert_eq!(seen[0].authorization.as_deref(), Some(&*basic));

    // the token is another repository's: the registry does not take it
    let other = real_registry::token(&site.directory, "team/other", 600).unwrap();
    tokens.set_access(Access::Bearer { user: "edge:s3cret".into(), token: other });
    site.fails(&format!("{server}/team/app:v2"), "are not accepted");
    tokens.set_access(Access::Bearer { user: "edge:changed".into(), token: String::new() });
    site.fails(&format!("{server}/team/app:v2"), "are not accepted");
}

#[test]
fn store_of_blobs_elsewhere_gets_no_password() {
    let Some(site) = Site::new("real-registry-redirect") else { return };
    store(image(), &site.directory, "team/app", "v1");
    let elsewhere = FakeRegistry::start_tls(&site.directory).unwrap();
    for blob in image().blobs() {
        let path = real_registry::path_of_blob(&real_registry::digest(blob));
        elsewhere.put_file(&format!("/{}", path.display()), blob);
    }
    let port = free_port();
    let to = format!("https://{}", elsewhere.name());
    let _registry = RealRegistry::start_redirecting(&site.directory, port, &to).unwrap();
    let server = format!("127.0.0.1:{port}");
    let name = format!("{server}/team/app:v1");
    // a server behind a redirect is a stranger until somebody trusts it
    site.trust(&[&server]);
    site.fails(&name, "UnknownIssuer");
    site.trust(&[&server, &elsewhere.name()]);
    // it asks for the registry's password
    elsewhere.set_access(Access::Basic("edge:s3cret".into()));
    site.fails(&name, "401");
    let refused = elsewhere.take_seen();
    elsewhere.set_access(Access::Anyone);
    let pulled = site.pull(&name);
    assert!(site.node.listing(&pulled, "%P").contains("etc/noted"));
    let seen = elsewhere.take_seen();
    assert_eq!((refused.len(), seen.len()), (1, image().blobs().count()), "{seen:?}");
    for request in refused.iter().chain(&seen) {
        assert_eq!(request.authorization, None, "{request:?}");
    }
}

#[test]
fn disk_that_fills_within_a_blob_takes_the_image_later() {
    let Some(site) = Site::new("real-registry-full") else { return };
    let layer = Packed::gzip(&Archive::default().file("big", &noise(2 << 20)));
    let image = Image::new(vec![layer]);
    let layer = &image.layers[0];
    store(&image, &site.directory, "team/big", "v1");
    let port = free_port();
    let _registry = start(&site.directory, port);
    let (gate, _link, server) = Gate::before(port, length(layer) / 2);
    site.trust(&[&server]);
    let name = format!("{server}/team/big:v1");
    let disk = SmallDisk::new(&site.directory.join("disk"), "size=8m");
    let node = Node::at(&disk.path.join("root")).unwrap();
    fs::copy(site.node.scratch.join("config.yaml"), node.scratch.join("config.yaml")).unwrap();
    let pull = || {
        let command = node.command(&["pull", &name, "--credentials", &site.credentials]);
        disk.inside(&command).spawn().unwrap()
    };
    let files = |folder: &str| disk.names(folder);
    let begun = pull();
    wait_until("half of the layer came", LIMIT, || gate.is_shut() && files("blobs").len() == 2);
    let filler = disk.fill();
    gate.open();
    let why = finished(begun).unwrap_err();
    assert!(why.contains("the disk is full"), "{why}");
    for folder in ["blobs", "layers", "records"] {
        assert_eq!(files(folder), [""; 0], "{folder}: what it took is given back");
    }
    // still without the password
    let why = finished(pull()).unwrap_err();
    assert!(why.contains("the disk is full") || why.contains("bytes are needed, the disk has"), "{why}");

    fs::remove_file(filler).unwrap();
    let pulled = finished(pull()).unwrap();
    assert_eq!(pulled["ready"], true);
    let big = disk.outside("root/images/layers");
    let big =
        fs::read_dir(big).unwrap().flatten().map(|entry| entry.path().join("big")).find(|path| path.exists());
    assert_eq!(fs::read(big.unwrap()).unwrap(), noise(2 << 20));
}
