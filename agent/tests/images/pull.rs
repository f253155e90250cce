//! Pulls from a registry that misbehaves: a complete blob is fetched once, an interrupted one is resumed, a
//! wrong one is refused.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use kedge_core::images::BlobDigest;
use kedge_rig::registry::{Access, FakeRegistry, Fault};
use serde_json::json;

use super::archive::{Archive, INDEX, Image, MANIFEST, Meta, Packed, own_architecture};
use super::setup::Node;

/// Bytes that do not compress.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Two layers, of which the second changes the first; gzip and zstd. Packed once: these tests are not
/// optimized.
pub(crate) fn image() -> &'static Image {
    static IMAGE: LazyLock<Image> = LazyLock::new(make_image);
    &IMAGE
}

/// `cap_net_bind_service=ep`, as the kernel stores it in version 2.
const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// An extended attribute of a file, in hexadecimal; None if it has none of that name.
fn attribute(path: &Path, name: &str) -> Option<String> {
    let script = "import os, sys\nprint(os.getxattr(sys.argv[1], sys.argv[2], follow_symlinks=False).hex())";
    let output = Command::new("python3").args(["-c", script]).arg(path).arg(name).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| said.trim().to_owned())
}

fn hex(bytes: &[u8]) -> Option<String> {
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn make_image() -> Image {
    let base = Archive::default()
        .directory("bin")
        .entry("bin/tick", Meta { mode: 0o4755, owner: 7, ..Meta::default() }, &noise(200_000))
        .hard_link("bin/tock", "bin/tick")
        .symlink("bin/sh", "tick")
        .directory("etc")
        .file("etc/old", b"1")
        .file("etc/kept", b"2")
        .directory("data")
        .file("data/a", b"3")
        .file("data/b", b"4");
    let top = Archive::default()
        .file("etc/.wh.old", b"")
        .file("data/c", b"5")
        .file("data/.wh..wh..opq", b"")
        .extended("SCHILY.xattr.user.note", b"line\nline")
        .file("etc/noted", b"6")
        .extended("SCHILY.xattr.security.capability", CAPABILITY)
        .file("bin/capable", b"8")
        .extended("SCHILY.xattr.trusted.overlay.redirect", b"/etc")
        .directory("moved")
        .extended("path", b"a/path/that/needs/an/extended/header/and/directories/that/are/not/listed/file")
        .file("short", b"7");
    Image::new(vec![Packed::gzip(&base), Packed::zstd(&top)])
}

/// A node, a registry with the image, and the image's name.
fn setup(name: &str) -> Option<(Node, FakeRegistry, String)> {
    let registry = FakeRegistry::start().unwrap();
    let node = Node::new(name, &[&registry])?;
    image().push(&registry, "team/app", "v1");
    let image = format!("{}/team/app:v1", registry.name());
    Some((node, registry, image))
}

/// A blob's path, for faults.
fn layer(at: usize) -> String {
    image().layers[at].digest().to_string()
}

#[test]
fn pulled_image_is_what_a_container_should_see() {
    let Some((node, registry, name)) = setup("pull-whole") else { return };
    let pulled = node.ok(&["pull", &name])[0].clone();
    assert_eq!(pulled["ready"], true);
    let listing = node.listing(&pulled, "%M %U %n %P %s %l");
    let expect = "\
-rw-r--r-- 0 1 a/path/that/needs/an/extended/header/and/directories/that/are/not/listed/file 1 \n\
-rw-r--r-- 0 1 bin/capable 1 \n\
-rw-r--r-- 0 1 data/c 1 \n\
-rw-r--r-- 0 1 etc/kept 1 \n\
-rw-r--r-- 0 1 etc/noted 1 \n\
-rwsr-xr-x 7 2 bin/tick 200000 \n\
-rwsr-xr-x 7 2 bin/tock 200000 \n\
drwxr-xr-x";
    assert!(listing.starts_with(expect), "{listing}");
    assert!(listing.contains("bin/sh 4 tick"), "{listing}");
    assert!(!listing.contains("data/a") && !listing.contains("etc/old"), "{listing}");
    let tick = fs::metadata(node.layers(&pulled)[0].join("bin/tick")).unwrap();
    assert_eq!(tick.mtime(), 1_700_000_000);
    assert_eq!(node.names("blobs"), [""; 0], "each byte is kept once");
    // the disk has the attributes that a layer may set, and not those that overlayfs reserves for itself
    let top = &node.layers(&pulled)[1];
    assert_eq!(attribute(&top.join("etc/noted"), "user.note"), hex(b"line\nline"));
    assert_eq!(attribute(&top.join("bin/capable"), "security.capability"), hex(CAPABILITY));
    assert_eq!(attribute(&top.join("moved"), "trusted.overlay.redirect"), None);

    registry.take_seen();
    let again = node.ok(&["pull", &name])[0].clone();
    assert_eq!(again["id"], pulled["id"]);
    let seen: Vec<String> = registry.take_seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(seen, ["/v2/team/app/manifests/v1"], "only the tag is asked for again");
    assert_eq!(node.ok(&["ls"])["images"].as_array().unwrap().len(), 1);

    // an image with a damaged config counts as absent: the next pull fetches it again
    let config = node.root().join("images/configs").join(node.names("configs").remove(0));
    fs::write(config, "{}").unwrap();
    assert_eq!(node.ok(&["ls"])["images"][0]["ready"], false);
    assert_eq!(node.ok(&["pull", &name])[0]["ready"], true);
}

#[test]
fn interrupted_download_is_continued() {
    let Some((node, registry, name)) = setup("pull-cut") else { return };
    // within one pull, and over the end of the process
    registry.fail(&layer(0), Fault::CutAfter(70_000));
    registry.fail(&layer(0), Fault::CutAfter(1));
    registry.fail(&layer(0), Fault::Status(503));
    node.fails(&["pull", &name], "503");
    assert_eq!(node.names("blobs").iter().filter(|name| name.ends_with(".part")).count(), 1);
    node.ok(&["pull", &name]);
    let seen = registry.take_seen();
    let ranges: Vec<Option<String>> =
        seen.into_iter().filter(|seen| seen.path.contains(&layer(0))).map(|seen| seen.range).collect();
    let range = |from: usize| Some(format!("bytes={from}-"));
    assert_eq!(ranges, [None, range(70_000), range(70_001), range(70_001)]);
}

/// A mobile link that cuts each connection after some time.
#[test]
fn download_goes_on_while_each_try_brings_much() {
    let Some((node, registry, _)) = setup("pull-many-cuts") else { return };
    // more interruptions than a pull has tries, when each brings little
    let large = Archive::default().file("large", &noise(7_000_000)).bytes();
    let large = Image::new(vec![Packed::raw(large)]);
    large.push(&registry, "team/large", "v1");
    let blob = large.layers[0].digest().to_string();
    let bytes = large.layers[0].bytes.len();
    let cuts = bytes / 270_000;
    assert!(cuts > 21, "{bytes} bytes");
    for _ in 0..cuts {
        registry.fail(&blob, Fault::CutAfter(270_000));
    }
    node.ok(&["pull", &format!("{}/team/large:v1", registry.name())]);
}

/// `kedge images ARGUMENTS` as an operator types it, without a flag that selects a configuration.
fn typed(node: &Node, run: &Path, words: &[&str]) -> (bool, String) {
    let output = Command::new(super::setup::PROGRAM)
        .arg("images")
        .args(words)
        .args(["--environment-file", "", "--root-dir"])
        .arg(node.root())
        .arg("--run-dir")
        .arg(run)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), text.concat())
}

/// The running configuration may have been pushed: an operator can pull whatever the node's pods can pull.
#[test]
fn command_takes_the_configuration_that_runs() {
    let Some((node, registry, name)) = setup("pull-running") else { return };
    let run = node.scratch.join("run");
    let (is_done, told) = typed(&node, &run, &["pull", &name]);
    assert!(!is_done && told.contains("answers in plain HTTP"), "{told}");
    fs::create_dir_all(&run).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(run.join("kedge.sock")).unwrap();
    let images = json!({"insecureRegistries": [registry.name()]});
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = socket.accept() {
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let body = json!({"kubeletconfig": {"kedge": {"images": images}}}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = std::io::Write::write_all(&mut stream, (head + &body).as_bytes());
        }
    });
    let (is_done, told) = typed(&node, &run, &["pull", &name]);
    assert!(is_done && told.starts_with(&format!("pulled {name}, ")), "{told}");
    // the same image by another name
    let layout = node.scratch.join("layout");
    image().write_layout(&layout);
    let (is_done, told) = typed(&node, &run, &["import", layout.to_str().unwrap(), "--name", "team/app:v9"]);
    assert!(is_done && told.starts_with("imported team/app:v9, "), "{told}");
}

#[test]
fn registry_without_tls_is_named_with_the_setting() {
    let registry = FakeRegistry::start().unwrap();
    let Some(node) = Node::new("pull-plain", &[]) else { return };
    let name = registry.name();
    let expect = format!("answers in plain HTTP: list {name} under kedge.images.insecureRegistries");
    node.fails(&["pull", &format!("{name}/team/app:v1")], &expect);
    // and the other way round: a TLS server, which answers plain HTTP with an alert
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let _ = std::io::Write::write_all(&mut stream, b"\x15\x03\x03\0\x02\x02\x16");
        }
    });
    node.configure(&json!({"insecureRegistries": [name]}));
    let expect = "take it out of kedge.images.insecureRegistries, and name its CA";
    node.fails(&["pull", &format!("{name}/team/app:v1")], expect);
}

#[test]
fn answer_to_a_range_may_be_everything() {
    let Some((node, registry, name)) = setup("pull-range") else { return };
    for fault in [Fault::IgnoredRange, Fault::OtherRange] {
        registry.fail(&layer(0), Fault::CutAfter(50_000));
        registry.fail(&layer(0), fault);
        node.ok(&["pull", &name]);
        node.ok(&["rm", &name]);
        node.has_nothing();
    }
}

#[test]
fn wrong_bytes_are_refused_and_leave_nothing() {
    let Some((node, registry, name)) = setup("pull-wrong") else { return };
    for (fault, expect) in [
        (Fault::OtherBytes, "has the digest sha256:"),
        (Fault::Oversized(1), "has more than the"),
        (Fault::Truncated(0), "ended after 0 of"),
        (Fault::Status(404), "404"),
        (Fault::Status(429), "429"),
        (Fault::RedirectTo("ftp://elsewhere".to_owned()), "is no URL of HTTP"),
    ] {
        registry.fail(&layer(0), fault);
        node.fails(&["pull", &name], expect);
        node.has_nothing();
    }
    registry.fail("manifests/v1", Fault::OtherBytes);
    node.fails(&["pull", &name], "not the JSON that is expected");
    registry.fail("manifests/v1", Fault::Truncated(100));
    node.fails(&["pull", &name], "not the JSON that is expected");
    let digest = image().digest();
    registry.fail("manifests/sha256", Fault::OtherBytes);
    node.fails(&["pull", &format!("{}/team/app@{digest}", registry.name())], "its digest is");
    node.fails(&["pull", &format!("{}/team/none:v1", registry.name())], "manifest unknown");
    node.ok(&["pull", &name]);
}

#[test]
fn part_that_went_bad_is_begun_anew_once() {
    // as a power cut leaves it: the length is there, the bytes are not
    check_part("pull-bad-part", |part| fs::write(part, vec![0; 50_000]).unwrap());
}

#[test]
fn part_that_is_too_long_or_no_file_is_begun_anew() {
    check_part("pull-long-part", |part| fs::write(part, vec![b'x'; 5 << 20]).unwrap());
    check_part("pull-directory-part", |part| {
        fs::remove_file(part).unwrap();
        fs::create_dir_all(part.join("below/further")).unwrap();
        fs::write(part.join("below/note"), "not ours").unwrap();
    });
    check_part("pull-link-part", |part| {
        fs::remove_file(part).unwrap();
        std::os::unix::fs::symlink("/dev/zero", part).unwrap();
    });
}

/// A pull that was cut off left a partial blob, which is damaged; the next pull fetches the image, and no
/// partial blob is left.
fn check_part(name: &str, spoil: impl FnOnce(&Path)) {
    let Some((node, registry, image)) = setup(name) else { return };
    registry.fail(&layer(0), Fault::CutAfter(50_000));
    registry.fail(&layer(0), Fault::Status(500));
    node.fails(&["pull", &image], "500");
    let parts = node.names("blobs");
    let part = parts.iter().find(|name| name.ends_with(".part")).unwrap();
    spoil(&node.root().join("images/blobs").join(part));
    node.ok(&["pull", &image]);
    let parts = node.names("blobs").into_iter().filter(|name| name.ends_with(".part"));
    assert_eq!(parts.count(), 0, "{name}");
}

#[test]
fn index_gives_the_image_of_this_processor() {
    let Some((node, registry, _)) = setup("pull-index") else { return };
    let own = image();
    let other = Image::for_platform(vec![Packed::gzip(&Archive::default().file("x", b"1"))], "s390x");
    other.push(&registry, "team/app", "other");
    let index = Image::index(&[(&other, "s390x"), (own, own_architecture())]);
    registry.put("team/app/manifests/multi", INDEX, &index);
    let name = |tag: &str| format!("{}/team/app:{tag}", registry.name());
    let pulled = node.ok(&["pull", &name("multi")])[0].clone();
    assert!(pulled["platform"].as_str().unwrap().contains(own_architecture()));
    let index = Image::index(&[(&other, "s390x")]);
    registry.put("team/app/manifests/foreign", INDEX, &index);
    node.fails(&["pull", &name("foreign")], "linux/s390x");
    // an index with a false platform: the image's config decides
    registry.put("team/app/manifests/lie", INDEX, &Image::index(&[(&other, own_architecture())]));
    node.fails(&["pull", &name("lie")], "the image is for linux/s390x");
}

#[test]
fn credentials_go_to_their_registry_alone() {
    let Some((node, registry, name)) = setup("pull-auth") else { return };
    let store = FakeRegistry::start().unwrap();
    image().push(&store, "team/app", "v1");
    node.configure(&json!({
        "insecureRegistries": [registry.name(), store.name()],
        "credentialsFile": node.scratch.join("creds.json"),
    }));
    let write = |user: &str| {
        let auth = json!({"auths": {registry.name(): {"username": user, "password": "s3cret"}}});
        node.scratch.write("creds.json", auth.to_string());
    };
    registry.set_access(Access::Basic("edge:s3cret".into()));
    write("other");
    node.fails(&["pull", &name], "are not accepted");
    write("edge");
    // layers lie on another server: it sees no password
    registry.fail(&layer(0), Fault::RedirectTo(format!("http://{}", store.name())));
    node.ok(&["pull", &name]);
    let seen = store.take_seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].authorization, None);
    node.ok(&["rm", &name]);

    registry.take_seen();
    registry.set_access(Access::Bearer { user: "edge:s3cret".into(), token: "t-1".into() });
    node.ok(&["pull", &name]);
    let seen = registry.take_seen();
    let token: Vec<_> = seen.iter().filter(|seen| seen.path.starts_with("/token")).collect();
    assert_eq!(token.len(), 1, "one token serves the whole pull");
    assert!(token[0].path.contains("scope=repository%3Ateam%2Fapp%3Apull"), "{}", token[0].path);
    node.ok(&["rm", &name]);
    // a refusal that does not name the authentication it wants
    registry.fail(&layer(1), Fault::Status(401));
    node.fails(&["pull", &name], "expected Basic or Bearer");
    node.ok(&["pull", &name]);
}

#[test]
fn token_that_expires_within_a_pull_is_renewed() {
    let Some((node, registry, name)) = setup("pull-expired") else { return };
    let auth = json!({"auths": {registry.name(): {"username": "edge", "password": "s3cret"}}});
    node.scratch.write("creds.json", auth.to_string());
    node.configure(&json!({
        "insecureRegistries": [registry.name()],
        "credentialsFile": node.scratch.join("creds.json"),
    }));
    let bearer = |token: &str| Access::Bearer { user: "edge:s3cret".into(), token: token.into() };
    registry.set_access(bearer("t-1"));
    // once before a layer, once when a broken layer is continued
    registry.fail(&layer(0), Fault::NewToken("t-2".into()));
    registry.fail(&layer(1), Fault::CutAfter(1));
    registry.fail(&layer(1), Fault::NewToken("t-3".into()));
    node.ok(&["pull", &name]);
    let seen = registry.take_seen();
    assert_eq!(seen.iter().filter(|seen| seen.path.starts_with("/token")).count(), 3, "{seen:?}");
    let last = seen.last().unwrap();
    assert_eq!(last.authorization.as_deref(), Some("Bearer t-3"));
    assert_eq!(last.range.as_deref(), Some("bytes=1-"), "what was there is not fetched again");
    node.ok(&["rm", &name]);
    // the registry no longer accepts the password: the pull reports that, and does not send it again
    registry.set_access(Access::Bearer { user: "edge:another".into(), token: "t-4".into() });
    node.fails(&["pull", &name], "the credentials for");
    let seen = registry.take_seen();
    assert_eq!(seen.iter().filter(|seen| seen.path.starts_with("/token")).count(), 1, "{seen:?}");
    node.has_nothing();
}

#[test]
fn server_behind_a_redirect_gets_no_password() {
    let Some((node, registry, name)) = setup("pull-redirected-auth") else { return };
    let store = FakeRegistry::start().unwrap();
    image().push(&store, "team/app", "v1");
    let auth = json!({"auths": {registry.name(): {"username": "edge", "password": "s3cret"}}});
    node.scratch.write("creds.json", auth.to_string());
    node.configure(&json!({
        "insecureRegistries": [registry.name(), store.name()],
        "credentialsFile": node.scratch.join("creds.json"),
    }));
    registry.set_access(Access::Basic("edge:s3cret".into()));
    // the server poses as the registry, asks for the password, and names itself as the token server
    for access in [
        Access::Bearer { user: "edge:s3cret".into(), token: "t".into() },
        Access::Basic("edge:s3cret".into()),
    ] {
        store.set_access(access);
        registry.fail(&layer(0), Fault::RedirectTo(format!("http://{}", store.name())));
        node.fails(&["pull", &name], "401");
        let seen = store.take_seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(seen[0].authorization, None);
    }
}

#[test]
fn mirror_is_asked_first_and_may_be_wrong() {
    let Some((node, registry, name)) = setup("pull-mirror") else { return };
    let mirror = FakeRegistry::start().unwrap();
    image().push(&mirror, "cache/team/app", "v1");
    node.configure(&json!({
        "insecureRegistries": [registry.name(), mirror.name()],
        "mirrors": {registry.name(): [format!("http://{}/cache", mirror.name())]},
    }));
    node.ok(&["pull", &name]);
    assert_eq!(registry.take_seen(), [], "the registry itself was not asked");
    node.ok(&["rm", &name]);
    mirror.fail(&layer(0), Fault::OtherBytes);
    node.ok(&["pull", &name]);
    assert!(!registry.take_seen().is_empty());
}

#[test]
fn killed_pull_is_taken_up_by_the_next() {
    let Some((node, registry, name)) = setup("pull-killed") else { return };
    Image::new(vec![Packed::gzip(&Archive::default().file("x", b"1"))]).push(&registry, "team/other", "v1");
    Image::new(image().layers[..1].to_vec()).push(&registry, "team/base", "v1");
    let [other, base] = ["other", "base"].map(|repository| name.replace("/app", &format!("/{repository}")));
    for at in 0..2 {
        node.ok(&["pull", &other]);
        registry.fail(&layer(at), Fault::Stall);
        let mut child = node.command(&["pull", &name]).spawn().unwrap();
        kedge_rig::scratch::wait_until("the layer is asked for", std::time::Duration::from_secs(60), || {
            registry.take_seen().iter().any(|seen| seen.path.contains(&layer(at)))
        });
        if at == 1 {
            // another pull that ends removes no blob that this one uses
            node.ok(&["pull", &base]);
            assert!(node.names("blobs").contains(&image().layers[0].digest().hex()));
            node.ok(&["rm", &base]);
        }
        // a removal waits for no pull, and takes nothing from one
        assert_eq!(node.ok(&["prune"])["images"], json!([other]));
        assert_eq!(node.names("layers").len(), 2 * at, "the layers that the pull has unpacked");
        assert!(!node.names("blobs").is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(node.names("records"), [""; 0]);
    }
    assert_eq!(node.names("layers").len(), 2, "the base was unpacked before, and has its record");
    fs::create_dir(node.root().join("images/layers/0123456789abcdef01234567.new")).unwrap();
    registry.take_seen();
    node.ok(&["pull", &name]);
    assert!(
        !registry.take_seen().iter().any(|seen| seen.path.contains(&layer(0))),
        "it is not fetched again"
    );
    node.ok(&["prune"]);
    node.has_nothing();
}

#[test]
fn shared_layer_goes_with_the_last_image() {
    let Some((node, registry, name)) = setup("pull-shared") else { return };
    Image::new(image().layers[..1].to_vec()).push(&registry, "team/base", "v1");
    let base_name = format!("{}/team/base:v1", registry.name());
    node.ok(&["pull", &name, &base_name]);
    assert_eq!(node.names("layers").len(), 4, "two layers and their records");
    let removed = node.ok(&["rm", &name]);
    assert_eq!(removed["images"], json!([name]));
    assert_eq!(node.names("layers").len(), 2);
    // the record of a newer agent: any layer could belong to it
    let record = node.names("records").remove(0);
    let path = node.root().join("images/records").join(&record);
    let good = fs::read(&path).unwrap();
    let newer = String::from_utf8(good.clone()).unwrap().replace("kedge.dev/v1", "kedge.dev/v9");
    fs::write(&path, newer).unwrap();
    node.fails(&["prune"], "nothing was removed");
    assert_eq!(node.names("layers").len(), 2);
    // removal by its ID, and then of the layers that only it needed
    let id = format!("sha256:{}", record.trim_end_matches(".json"));
    assert_eq!(node.ok(&["rm", &id])["images"], json!([id]));
    node.has_nothing();
    node.ok(&["pull", &base_name]);
    assert_eq!(fs::read(&path).unwrap().len(), good.len());
    // an image that a pod needs stays
    let needed = node.root().join("images/needed.json");
    fs::write(&needed, json!([base_name]).to_string()).unwrap();
    assert_eq!(node.ok(&["prune"])["images"], json!([]));
    node.fails(&["rm", &base_name], "needed by a pod");
    fs::write(&needed, "[").unwrap();
    node.fails(&["prune"], "nothing was removed");
    fs::remove_file(&needed).unwrap();
    node.ok(&["prune"]);
    node.has_nothing();
}

#[test]
fn damaged_record_keeps_no_other_image() {
    let Some((node, registry, name)) = setup("pull-damaged") else { return };
    Image::new(image().layers[..1].to_vec()).push(&registry, "team/base", "v1");
    let base_name = format!("{}/team/base:v1", registry.name());
    let id = node.ok(&["pull", &base_name])[0]["id"].as_str().unwrap().to_owned();
    node.ok(&["pull", &name]);
    let record = format!("{}.json", id.trim_start_matches("sha256:"));
    fs::write(node.root().join("images/records").join(&record), "{").unwrap();
    // a file name that the agent never creates
    fs::write(node.root().join("images/records").join(OsStr::from_bytes(b"\xff.json")), "{").unwrap();
    let listed = node.ok(&["ls"]);
    assert_eq!(listed["unreadable"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(node.ok(&["prune"])["images"], json!([name]));
    assert_eq!(node.names("layers"), [""; 0]);
    fs::remove_file(node.root().join("images/records").join(OsStr::from_bytes(b"\xff.json"))).unwrap();
    assert_eq!(node.names("records"), [format!("{record}.corrupt-1")], "what it held is kept");
    assert_eq!(node.ok(&["ls"])["unreadable"], json!([]));
    node.ok(&["pull", &base_name]);
    assert_eq!(node.names("layers").len(), 2, "and the image comes again");
}

#[test]
fn image_beyond_the_most_is_refused() {
    let Some((node, registry, name)) = setup("pull-many") else { return };
    let pulled = node.ok(&["pull", &name])[0].clone();
    let records = node.root().join("images/records");
    let first = fs::read(records.join(node.names("records").remove(0))).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&first).unwrap();
    (record["names"], record["digests"]) = (json!([]), json!([]));
    for number in 1..2000_u32 {
        let id = BlobDigest::of(&number.to_le_bytes());
        record["id"] = json!(id);
        fs::write(records.join(format!("{}.json", id.hex())), record.to_string()).unwrap();
    }
    let other = Image::new(vec![Packed::gzip(&Archive::default().file("x", b"1"))]);
    other.push(&registry, "team/other", "v1");
    let other = format!("{}/team/other:v1", registry.name());
    node.fails(&["pull", &other], "there are 2000 images: prune first");
    // a known layer gets its new name, and removal still works
    registry.put("team/app/manifests/v2", MANIFEST, &image().manifest);
    let again = node.ok(&["pull", &name.replace(":v1", ":v2")])[0].clone();
    assert_eq!(again["id"], pulled["id"]);
    node.ok(&["rm", &name]);
    node.ok(&["pull", &other]);
}

#[test]
fn layout_is_imported_from_directory_and_archive() {
    let Some((node, _registry, _)) = setup("import") else { return };
    let layout = node.scratch.join("layout");
    image().write_layout(&layout);
    let imported =
        node.ok(&["import", &layout.display().to_string(), "--name", "localhost/app:v1"])[0].clone();
    assert_eq!(imported["names"], json!(["localhost/app:v1"]));
    let archive = node.scratch.join("layout.tar");
    let tar =
        std::process::Command::new("tar").arg("-C").arg(&layout).arg("-cf").arg(&archive).arg(".").status();
    assert!(tar.unwrap().success());
    let again = node.ok(&["import", &archive.display().to_string(), "--name", "localhost/app:v2"])[0].clone();
    assert_eq!(again["id"], imported["id"]);
    assert_eq!(again["names"], json!(["localhost/app:v1", "localhost/app:v2"]));
    assert_eq!(node.names("layers").len(), 4, "nothing of the archive is left");
}

#[test]
fn pull_that_fills_the_disk_gives_back_what_it_took() {
    let Some((node, _registry, _)) = setup("full-disk") else { return };
    let (layout, mount) = (node.scratch.join("layout"), node.scratch.join("mount"));
    let big = |name: &str| Packed::gzip(&Archive::default().file(name, &noise(3 << 20)));
    Image::new(vec![big("one"), big("two")]).write_layout(&layout);
    fs::create_dir(&mount).unwrap();
    // of 10 MiB 9.5 are for images: both archives and one of the layers
    let inside = Node::at(&mount.join("root")).unwrap();
    let command = inside.command(&["import", &layout.display().to_string(), "--name", "localhost/app:v1"]);
    let output = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c"])
        .arg("mount -t tmpfs -o size=10m tmpfs \"$1\" && cd \"$1\" && shift && { \"$@\"; find root/images/blobs -type f; }")
        .arg("sh")
        .arg(&mount)
        .arg(super::setup::PROGRAM)
        .args(command.get_args())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("bytes for it"), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "no blob is left");
}

/// Runs the command while the layers, the base first, are mounted as a container's.
fn beside_a_container(node: &Node, layers: &[PathBuf], words: &[&str]) -> (bool, String) {
    let command = node.command(words);
    let mount = node.scratch.join("mount");
    fs::create_dir_all(&mount).unwrap();
    let script = "mount -t overlay overlay -o lowerdir=\"$1:$2\" \"$3\" && shift 3 && exec \"$@\"";
    let run = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .args([&layers[1], &layers[0], &mount])
        .arg(super::setup::PROGRAM)
        .args(command.get_args())
        .output()
        .unwrap();
    (run.status.success(), String::from_utf8_lossy(&run.stderr).into_owned())
}

#[test]
fn older_image_goes_while_its_base_is_mounted() {
    let Some((node, registry, name)) = setup("pull-older") else { return };
    // an image of the release before, on the same base
    let top = Archive::default().file("etc/release", b"1");
    Image::new(vec![image().layers[0].clone(), Packed::gzip(&top)]).push(&registry, "team/app", "v0");
    let older = name.replace(":v1", ":v0");
    node.ok(&["pull", &older]);
    let pulled = node.ok(&["pull", &name])[0].clone();
    let layers = node.layers(&pulled);
    let (removed, errors) = beside_a_container(&node, &layers, &["rm", &name]);
    assert!(!removed && errors.contains("mounted by a container"), "{errors}");
    let (pruned, errors) = beside_a_container(&node, &layers, &["prune"]);
    assert!(pruned, "{errors}");
    let images = node.ok(&["ls"])["images"].clone();
    assert_eq!((images.as_array().unwrap().len(), &images[0]["names"]), (1, &json!([name])), "{images}");
    assert!(images[0]["ready"] == true && node.names("layers").len() == 4, "{:?}", node.names("layers"));
}

#[test]
fn layer_that_is_mounted_stays_without_its_record() {
    let Some((node, _registry, name)) = setup("mounted") else { return };
    let pulled = node.ok(&["pull", &name])[0].clone();
    let layers = node.layers(&pulled);
    // flash lost the record that vouches for the base layer, which a container still uses
    fs::write(layers[0].with_extension("json"), "").unwrap();
    let mounted = |words: &[&str]| beside_a_container(&node, &layers, words);
    let (pruned, errors) = mounted(&["prune"]);
    assert!(pruned, "{errors}");
    assert!(layers[0].join("bin/tick").exists(), "a removal took it away");
    let (again, errors) = mounted(&["pull", &name]);
    assert!(!again && errors.contains("a container uses it"), "{errors}");
    assert!(layers[0].join("bin/tick").exists(), "a pull took it away");
    assert_eq!(node.ok(&["pull", &name])[0]["ready"], true, "the container has ended");
}

#[test]
fn image_without_overlayfs_is_one_directory() {
    let Some((node, _registry, _)) = setup("no-overlay") else { return };
    let (layout, mount) = (node.scratch.join("layout"), node.scratch.join("mount"));
    image().write_layout(&layout);
    for name in ["lower", "upper", "work", "mount"] {
        fs::create_dir(node.scratch.join(name)).unwrap();
    }
    // overlayfs refuses any other directory as its upper layer
    let inside = Node::at(&mount.join("root")).unwrap();
    let command = inside.command(&["import", &layout.display().to_string(), "--name", "localhost/app:v1"]);
    let output = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c"])
        .arg("cd \"$1\" && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work mount && shift && exec \"$@\"")
        .arg("sh")
        .arg(node.scratch.path())
        .arg(super::setup::PROGRAM)
        .args(command.get_args())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let images: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(images[0]["ready"], true);
    let layers = node.scratch.join("upper/root/images/layers");
    let mut names = fs::read_dir(&layers).unwrap().map(|entry| entry.unwrap().path());
    let whole = names.find(|path| path.is_dir()).unwrap();
    assert!(!names.any(|path| path.is_dir()), "one directory");
    assert_eq!(fs::read(whole.join("data/c")).unwrap(), b"5");
    assert_eq!(fs::read(whole.join("etc/kept")).unwrap(), b"2");
    assert!(!whole.join("etc/old").exists() && !whole.join("data/a").exists());

    // the node's kernel gains overlayfs, and another image brings the base: the directory with the merged
    // content is not taken for the top layer
    let after = Node::at(&node.scratch.join("upper/root")).unwrap();
    let base_layout = node.scratch.join("base");
    Image::new(image().layers[..1].to_vec()).write_layout(&base_layout);
    after.ok(&["import", &base_layout.display().to_string(), "--name", "localhost/base:v1"]);
    let images = after.ok(&["ls"])["images"].as_array().unwrap().clone();
    let app = images.iter().find(|image| image["names"] == json!(["localhost/app:v1"])).unwrap();
    assert_eq!(app["ready"], false);
    let app = after.ok(&["import", &layout.display().to_string(), "--name", "localhost/app:v1"])[0].clone();
    let listing = after.listing(&app, "%P");
    assert!(!listing.contains("etc/old") && !listing.contains("data/a"), "{listing}");
    after.ok(&["prune"]);
    after.has_nothing();
}
