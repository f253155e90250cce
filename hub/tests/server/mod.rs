//! A running hub for tests, and a small client: real process, real TLS, port 0, its own data directory.
//!
//! The client speaks HTTP/1.1 over rustls with blocking reads, one connection per client, so that a test reads as a list of
//! requests. It trusts exactly the CA of the hub's kubeconfig and shows the certificate in it.

#![allow(dead_code, reason = "each test file uses its own part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;

/// No answer of a local hub takes longer.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// A directory that goes away with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kedge-hub-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A hub process; killed when dropped.
pub(crate) struct Hub {
    child: Child,
    pub(crate) url: String,
    pub(crate) data_dir: PathBuf,
}

impl Hub {
    pub(crate) fn start(data_dir: &Path) -> Hub {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
        Hub::spawn(command, data_dir)
    }

    /// A program that speaks as the hub does when it starts.
    pub(crate) fn spawn(mut command: Command, data_dir: &Path) -> Hub {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut url = None;
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some(found) = line.strip_prefix("listening: ") {
                url = Some(found.to_owned());
            }
            if line.starts_with("kubeconfig: ") {
                break;
            }
        }
        let url = url.expect("the hub said where it listens");
        Hub { child, url, data_dir: data_dir.to_owned() }
    }

    pub(crate) fn admin(&self) -> Client {
        Client::new(&std::fs::read_to_string(self.data_dir.join("admin.kubeconfig")).unwrap(), &self.url)
    }

    pub(crate) fn node(&self, name: &str) -> Client {
        let output = Command::new(env!("CARGO_BIN_EXE_kedge-hub"))
            .args(["node-kubeconfig", name, "--data-dir"])
            .arg(&self.data_dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Client::new(&String::from_utf8(output.stdout).unwrap(), &self.url)
    }

    /// As a power cut would: nothing is flushed or said.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As an operator would; returns how long it took to stop.
    pub(crate) fn terminate(mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Stream = BufReader<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>;

/// One identity's connection.
pub(crate) struct Client {
    config: Arc<rustls::ClientConfig>,
    address: String,
    stream: Option<Stream>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// The message of a Status.
    #[track_caller]
    pub(crate) fn refused(self, code: u16, message: &str) {
        let status = self.expect(code);
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["message"], message);
    }

    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let named = self.head.lines().filter_map(|line| line.split_once(": "));
        named.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }
}

fn embedded(kubeconfig: &str, key: &str) -> Vec<u8> {
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap();
    let text = line.trim().trim_matches('"');
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

impl Client {
    pub(crate) fn new(kubeconfig: &str, url: &str) -> Client {
        let certificates = |key| {
            CertificateDer::pem_slice_iter(&embedded(kubeconfig, key)).map(Result::unwrap).collect::<Vec<_>>()
        };
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(certificates("certificate-authority-data:"));
        let key = PrivateKeyDer::from_pem_slice(&embedded(kubeconfig, "client-key-data:")).unwrap();
        let config = builder().with_root_certificates(roots);
        let config = config.with_client_auth_cert(certificates("client-certificate-data:"), key).unwrap();
        Client::with(config, url)
    }

    /// Trusts the hub, and shows nothing.
    pub(crate) fn anonymous(hub: &Hub) -> Client {
        let pem = std::fs::read(hub.data_dir.join("ca.crt")).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).map(Result::unwrap));
        Client::with(builder().with_root_certificates(roots).with_no_client_auth(), &hub.url)
    }

    fn with(config: rustls::ClientConfig, url: &str) -> Client {
        let address = url.strip_prefix("https://").unwrap().to_owned();
        Client { config: Arc::new(config), address, stream: None }
    }

    /// Another connection of the same identity.
    pub(crate) fn another(&self) -> Client {
        Client { config: self.config.clone(), address: self.address.clone(), stream: None }
    }

    fn connect(&self) -> std::io::Result<Stream> {
        let socket = TcpStream::connect(&self.address)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        socket.set_nodelay(true)?;
        let host = self.address.rsplit_once(':').unwrap().0.to_owned();
        let name = ServerName::try_from(host).unwrap();
        let connection =
            rustls::ClientConnection::new(self.config.clone(), name).map_err(std::io::Error::other)?;
        Ok(BufReader::new(rustls::StreamOwned::new(connection, socket)))
    }

    /// One request; an error is a broken connection.
    pub(crate) fn try_send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Reply> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        write_request(&mut stream, &self.address, method, path, headers, body)?;
        let reply = read_reply(&mut stream)?;
        self.stream = Some(stream);
        Ok(reply)
    }

    /// A request on the connection of the last one; an error if that is gone.
    pub(crate) fn try_on_the_same(&mut self, method: &str, path: &str) -> std::io::Result<Reply> {
        assert!(self.stream.is_some(), "there was no request before");
        self.try_send(method, path, &[], b"")
    }

    /// Sends bytes as they are.
    pub(crate) fn write_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        stream.get_mut().write_all(bytes)?;
        stream.get_mut().flush()?;
        self.stream = Some(stream);
        Ok(())
    }

    /// The next answer to what was sent so.
    pub(crate) fn read_reply(&mut self) -> std::io::Result<Reply> {
        read_reply(self.stream.as_mut().expect("something was sent"))
    }

    /// All that comes until the connection's end.
    pub(crate) fn read_to_end(&mut self) -> String {
        let mut text = Vec::new();
        let stream = self.stream.as_mut().expect("something was sent");
        // an end without TLS's goodbye is one too
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    #[track_caller]
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.try_send(method, path, headers, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    #[track_caller]
    pub(crate) fn post(&mut self, path: &str, value: &Value) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], value.to_string().as_bytes())
    }

    #[track_caller]
    pub(crate) fn put(&mut self, path: &str, value: &Value) -> Reply {
        self.send("PUT", path, &[("content-type", "application/json")], value.to_string().as_bytes())
    }

    /// `of`: `json`, `merge` or `strategic-merge`.
    #[track_caller]
    pub(crate) fn patch(&mut self, of: &str, path: &str, value: &Value) -> Reply {
        let media = format!("application/{of}-patch+json");
        self.send("PATCH", path, &[("content-type", &media)], value.to_string().as_bytes())
    }

    #[track_caller]
    pub(crate) fn delete(&mut self, path: &str) -> Reply {
        self.send("DELETE", path, &[], b"")
    }

    /// A watch on a connection of its own.
    #[track_caller]
    pub(crate) fn watch(&self, path: &str) -> Watch {
        let mut stream = self.connect().unwrap();
        write_request(&mut stream, &self.address, "GET", path, &[], b"").unwrap();
        let head = read_head(&mut stream).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Watch { stream, buffer: Vec::new() }
    }

    /// The same against a hub that may be gone (0) or refuse (the status).
    pub(crate) fn try_watch(&self, path: &str) -> Result<Watch, u16> {
        let open = || {
            let mut stream = self.connect()?;
            write_request(&mut stream, &self.address, "GET", path, &[], b"")?;
            let head = read_head(&mut stream)?;
            Ok::<_, std::io::Error>((stream, head))
        };
        let (stream, head) = open().map_err(|_| 0_u16)?;
        match head[9..12].parse().unwrap() {
            200 => Ok(Watch { stream, buffer: Vec::new() }),
            code => Err(code),
        }
    }
}

fn builder() -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap()
}

fn write_request(
    stream: &mut Stream,
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<()> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let out = stream.get_mut();
    out.write_all(&[text.as_bytes(), body].concat())?;
    out.flush()
}

fn read_reply(stream: &mut Stream) -> std::io::Result<Reply> {
    let head = read_head(stream)?;
    let mut reply = Reply { code: head[9..12].parse().unwrap(), head, body: Vec::new() };
    if !reply.header("transfer-encoding").is_empty() {
        while let Some(chunk) = read_chunk(stream)? {
            reply.body.extend(chunk);
        }
    } else if let Some(length) = reply.header("content-length").first() {
        reply.body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut reply.body)?;
    }
    Ok(reply)
}

fn read_head(stream: &mut Stream) -> std::io::Result<String> {
    let mut head = String::new();
    loop {
        let before = head.len();
        if stream.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if head[before..].trim().is_empty() {
            return Ok(head);
        }
    }
}

fn read_chunk(stream: &mut Stream) -> std::io::Result<Option<Vec<u8>>> {
    let mut size = String::new();
    if stream.read_line(&mut size)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let size = usize::from_str_radix(size.trim(), 16).map_err(std::io::Error::other)?;
    let mut chunk = vec![0; size + 2];
    stream.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
}

/// An open watch.
pub(crate) struct Watch {
    stream: Stream,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next event; `None` when the watch has ended.
    pub(crate) fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.buffer.extend(read_chunk(&mut self.stream).ok()??);
        }
    }

    /// `TYPE name` of the next event.
    #[track_caller]
    pub(crate) fn told(&mut self) -> String {
        let event = self.next().expect("the watch has not ended");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or("");
        format!("{} {name}", event["type"].as_str().unwrap()).trim().to_owned()
    }
}
