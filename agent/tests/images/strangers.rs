//! Hostile registries that want to hold up, fill or mislead the node: each pull ends soon, by a clear error,
//! and leaves nothing. Accidental failures are tested in `pull`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kedge_core::images::BlobDigest;
use serde_json::json;

use super::archive::{Archive, INDEX, Image, MANIFEST, Packed};
use super::setup::Node;

/// Longer than any of the pulls here may take: the longest limit that they meet is 30 s.
const SOON: Duration = Duration::from_secs(90);

/// The registry's behaviour on a connection, once it has read the request for this path.
type Answer = dyn Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

fn serve(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer: Arc<Answer> = Arc::new(answer);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || talk(connection, &*answer));
        }
    });
    address
}

/// Each answer ends its connection.
fn talk(mut connection: TcpStream, answer: &Answer) -> std::io::Result<()> {
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    answer(path, &mut connection)
}

fn image() -> Image {
    Image::new(vec![Packed::gzip(&Archive::default().directory("etc").file("etc/file", b"text"))])
}

fn head(to: &mut TcpStream, kind: &str, length: usize) -> std::io::Result<()> {
    write!(
        to,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

fn send(to: &mut TcpStream, kind: &str, body: &[u8]) -> std::io::Result<()> {
    head(to, kind, body.len())?;
    to.write_all(body)
}

/// The image as it is, but for paths that contain `part`.
fn all_but(
    part: &'static str,
    answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    let image = image();
    serve(move |path, to| {
        if path.contains(part) {
            return answer(path, to);
        }
        if path.contains("/manifests/") {
            return send(to, MANIFEST, &image.manifest);
        }
        let blob = image.blobs().find(|bytes| path.ends_with(&BlobDigest::of(bytes).to_string()));
        send(to, "application/octet-stream", blob.unwrap_or_default())
    })
}

/// Sends the text again and again until the client goes.
fn without_end(to: &mut TcpStream, text: &[u8]) -> std::io::Result<()> {
    loop {
        to.write_all(text)?;
    }
}

fn drips(to: &mut TcpStream, text: &[u8]) -> std::io::Result<()> {
    loop {
        to.write_all(text)?;
        thread::sleep(Duration::from_secs(1));
    }
}

/// The challenge of a registry whose tokens are somewhere else on it.
fn challenge(to: &mut TcpStream, realm: &str) -> std::io::Result<()> {
    write!(
        to,
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"{realm}\",service=\"s\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

fn with_tokens(token: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    serve(move |path, to| {
        let own = to.local_addr()?;
        if path.starts_with("/token") { token(to) } else { challenge(to, &format!("http://{own}/token")) }
    })
}

fn manifest(change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let mut manifest = serde_json::from_slice(&image().manifest).unwrap();
    change(&mut manifest);
    serde_json::to_vec(&manifest).unwrap()
}

#[test]
fn hostile_registry_is_refused_soon_and_leaves_nothing() {
    let serves =
        |body: Vec<u8>, kind: &'static str| all_but("/manifests/", move |_, to| send(to, kind, &body));
    let layers =
        |layers: serde_json::Value| serves(manifest(|manifest| manifest["layers"] = layers), MANIFEST);
    let digest = image().digest().to_string();
    let entry = |digest: &str| json!({"mediaType": MANIFEST, "digest": digest, "size": 7, "platform": {"os": "linux", "architecture": "any"}});
    let index = |entries: Vec<serde_json::Value>| {
        json!({"schemaVersion": 2, "manifests": entries}).to_string().into_bytes()
    };
    let own = json!({"mediaType": INDEX, "digest": BlobDigest::of(b"{}").to_string(), "size": 2});
    let ok = b"HTTP/1.1 200 OK\r\n";
    let cases: Vec<(&str, SocketAddr, &str)> = vec![
        (
            "headers without end",
            all_but("/manifests/", move |_, to| {
                to.write_all(ok).and_then(|()| without_end(to, b"X-More: and more\r\n"))
            }),
            "header",
        ),
        (
            "one header without end",
            all_but("/manifests/", move |_, to| {
                to.write_all(b"HTTP/1.1 200 OK\r\nX: ").and_then(|()| without_end(to, &[b'x'; 4096]))
            }),
            "header",
        ),
        (
            "headers that drip",
            all_but("/manifests/", move |_, to| to.write_all(ok).and_then(|()| drips(to, b"X: y\r\n"))),
            "in time",
        ),
        (
            "hints without end",
            all_but("/manifests/", |_, to| without_end(to, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")),
            "GET http",
        ),
        (
            "an answer that goes on without end",
            all_but("/manifests/", |_, to| {
                to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                    .and_then(|()| drips(to, b"HTTP/1.1 100 Continue\r\n\r\n"))
            }),
            "GET http",
        ),
        ("no HTTP", all_but("/manifests/", |_, to| to.write_all(b"220 mail.lan ESMTP\r\n")), "GET http"),
        (
            "a redirect to itself",
            all_but("/manifests/", |path, to| {
                write!(to, "HTTP/1.1 302 Found\r\nLocation: {path}\r\nContent-Length: 0\r\n\r\n")
            }),
            "more than 5 redirects",
        ),
        (
            "a redirect of a megabyte",
            all_but("/manifests/", |_, to| {
                write!(
                    to,
                    "HTTP/1.1 302 Found\r\nLocation: /{}\r\nContent-Length: 0\r\n\r\n",
                    "x".repeat(1 << 20)
                )
            }),
            "header",
        ),
        (
            "a pause of ten years",
            all_but("/manifests/", |_, to| {
                to.write_all(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 315360000\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            }),
            "429",
        ),
        (
            "a refusal without end",
            all_but("/manifests/", |_, to| {
                to.write_all(b"HTTP/1.1 500 No\r\n\r\n").and_then(|()| without_end(to, &[7; 4096]))
            }),
            "500",
        ),
        (
            "a manifest without end",
            all_but("/manifests/", |_, to| {
                to.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    .and_then(|()| without_end(to, b"1000\r\n").or(Ok(())))
            }),
            "GET http",
        ),
        (
            "a manifest of chunks without end",
            all_but("/manifests/", |_, to| {
                to.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                without_end(to, format!("1000\r\n{}\r\n", " ".repeat(0x1000)).as_bytes())
            }),
            "more than 4194304 bytes",
        ),
        (
            "a chunk as long as memory",
            all_but("/manifests/", |_, to| {
                to.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}")
            }),
            "GET http",
        ),
        (
            "a length below zero",
            all_but("/manifests/", |_, to| to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}")),
            "GET http",
        ),
        (
            "two lengths",
            all_but("/manifests/", |_, to| {
                to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 900000\r\n\r\n{}")
            }),
            "GET http",
        ),
        (
            "a token of 10 MB",
            with_tokens(|to| {
                send(to, "application/json", json!({"token": "x".repeat(10 << 20)}).to_string().as_bytes())
            }),
            "more than",
        ),
        (
            "a token of lines",
            with_tokens(|to| send(to, "application/json", br#"{"token": "a\r\nX-Admin: yes"}"#)),
            "no token of",
        ),
        (
            "a token that is no text",
            with_tokens(|to| send(to, "application/json", br#"{"token": {"a": 1}}"#)),
            "not the JSON",
        ),
        (
            "tokens that never do",
            with_tokens(|to| send(to, "application/json", br#"{"token": "t"}"#)),
            "unauthorized",
        ),
        ("tokens from a file", serve(|_, to| challenge(to, "file:///etc/shadow")), "is no URL of HTTP"),
        (
            "tokens of the agent's own machine",
            serve(|_, to| challenge(to, "http://127.0.0.2:1/token")),
            "insecureRegistries does not name",
        ),
        ("an index of 100,000", serves(index(vec![entry(&digest); 20_000]), INDEX), "expected at most 1000"),
        (
            "an index of itself",
            all_but("/manifests/", move |path, to| match path.ends_with("/v1") {
                true => {
                    send(to, INDEX, json!({"schemaVersion": 2, "manifests": [own]}).to_string().as_bytes())
                }
                false => send(to, INDEX, b"{}"),
            }),
            "manifest",
        ),
        ("an empty index", serves(index(vec![]), INDEX), "no image for"),
        (
            "a config of 100 MB",
            serves(manifest(|manifest| manifest["config"]["size"] = json!(100 << 20)), MANIFEST),
            "expected at most 4194304",
        ),
        (
            "a digest in capitals",
            layers(
                json!([{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest.to_uppercase(), "size": 7}]),
            ),
            "digest",
        ),
        (
            "a digest of its hex in capitals",
            layers(
                json!([{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest.replace("sha256:", "SHA256:"), "size": 7}]),
            ),
            "digest",
        ),
        (
            "a digest that leads away",
            layers(
                json!([{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:../../../etc/passwd", "size": 7}]),
            ),
            "digest",
        ),
        (
            "a size below zero",
            layers(
                json!([{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": -1}]),
            ),
            "not the JSON",
        ),
        (
            "a layer of another kind",
            layers(json!([{"mediaType": "application/x-msdownload", "digest": digest, "size": 7}])),
            "media type",
        ),
        (
            "a layer from elsewhere",
            layers(
                json!([{"mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "urls": ["http://x"], "digest": digest, "size": 7}]),
            ),
            "media type",
        ),
        (
            "a layer larger than any disk",
            layers(
                json!([{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": u64::MAX}]),
            ),
            "more than a disk can hold",
        ),
        (
            "a blob without end",
            all_but("/blobs/", |_, to| {
                to.write_all(b"HTTP/1.1 200 OK\r\n\r\n").and_then(|()| without_end(to, &[7; 4096]))
            }),
            "blob sha256:",
        ),
        (
            "a range of something else",
            all_but("/blobs/", |_, to| {
                to.write_all(b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 99999999999999999999-/\r\nContent-Length: 2\r\n\r\n{}")
            }),
            "blob sha256:",
        ),
    ];
    let threads: Vec<_> = cases
        .into_iter()
        .map(|(what, registry, expect)| {
            thread::spawn(move || {
                let Some(node) = Node::new("stranger", &[]) else { return };
                node.configure(&json!({"insecureRegistries": [registry.to_string()]}));
                let begun = Instant::now();
                eprintln!("{what}");
                node.fails(&["pull", &format!("{registry}/team/app:v1")], expect);
                assert!(begun.elapsed() < SOON, "{what}: {:?}", begun.elapsed());
                node.has_nothing();
            })
        })
        .collect();
    let failed: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().err()).collect();
    assert!(failed.is_empty(), "{} registries", failed.len());
}
