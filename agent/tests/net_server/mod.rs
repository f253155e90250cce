//! An HTTPS server for the network tests: real sockets, real TLS, and every misbehaviour a test asks for.
//!
//! Owns a certificate authority, servers on loopback with a script per request, an HTTP proxy, and the folder
//! of a test's kubeconfig. It counts connections, resumed handshakes and bytes, so tests can check what went
//! over the wire and not only what came out. Threads end with their connections.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use kedge::net::credentials::ApiOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kedge::net::client::{Api, Client};
use kedge::net::proxy::ProxyEnvironment;
use kedge::net::transport::{WallClock, system_clock};
pub use kedge_rig::Scratch;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    HandshakeKind, RootCertStore, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion,
};

/// A certificate authority.
pub struct Authority {
    pub pem: String,
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
pub struct Identity {
    pub certificate_pem: String,
    pub key_pem: String,
    certificate: rcgen::Certificate,
    key: KeyPair,
}

/// How long a certificate holds, in years.
pub type Years = (i32, i32);

/// Years in which these tests are run, with room.
pub const NOW: Years = (2020, 2120);

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), certificate, issuer: Issuer::new(params, key) }
    }

    pub fn identity(&self, names: &[&str], years: Years) -> Identity {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "system:node:edge-1");
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { certificate_pem: certificate.pem(), key_pem: key.serialize_pem(), certificate, key }
    }

    /// A certificate for a request, both in PEM.
    pub fn sign(&self, request: &str) -> String {
        let request = rcgen::CertificateSigningRequestParams::from_pem(request).unwrap();
        request.signed_by(&self.issuer).unwrap().pem()
    }

    /// As `--ca-cert-hash` takes it.
    pub fn key_hash(&self) -> String {
        use rcgen::PublicKeyData as _;
        let digest =
            ring::digest::digest(&ring::digest::SHA256, &self.issuer.key().subject_public_key_info());
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    }

    pub fn store(&self) -> Arc<RootCertStore> {
        let mut store = RootCertStore::empty();
        store.add(self.certificate.der().clone()).unwrap();
        Arc::new(store)
    }
}

/// A request as the server heard it.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    pub method: String,
    pub path: String,
    /// The head without the request line, as it came.
    pub headers: String,
    pub body: String,
}

impl Heard {
    pub fn header(&self, name: &str) -> Option<String> {
        let lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    }
}

pub type Stream = StreamOwned<ServerConnection, Counting>;

/// The server's reaction to a request.
pub enum Reply {
    /// An answer with a Content-Length.
    Answer(u16, String),
    /// The same with further header lines, each ended by CRLF.
    AnswerWith(u16, &'static str, String),
    /// These bytes, then on to the next request.
    Raw(Vec<u8>),
    /// These bytes, then an orderly end of TLS.
    Close(Vec<u8>),
    /// These bytes, then the plug is pulled.
    Cut(Vec<u8>),
    /// These bytes, then a blank every few milliseconds until the client is gone, or for [`PLENTY`].
    Trickle(Vec<u8>),
    /// Nothing, until the client gives up.
    Silence,
    /// Chunks of a watch, written by the test; then an orderly end of the answer.
    Chunks(Box<dyn FnOnce(&mut Chunks<'_>) + Send>),
}

impl Reply {
    pub fn ok(body: &str) -> Self {
        Self::Answer(200, body.to_owned())
    }

    pub fn status(code: u16, reason: &str, message: &str) -> Self {
        let body = format!(
            r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"{reason}","message":"{message}","code":{code}}}"#
        );
        Self::Answer(code, body)
    }
}

/// Writes a chunked body.
pub struct Chunks<'a>(&'a mut Stream);

impl Chunks<'_> {
    pub fn send(&mut self, text: &str) {
        // the client may be gone, which some tests want
        let _ = self.is_sent(text);
    }

    /// Sends a chunk; returns whether the client was still there.
    pub fn is_sent(&mut self, text: &str) -> bool {
        write!(self.0, "{:x}\r\n{text}\r\n", text.len()).and_then(|()| self.0.flush()).is_ok()
    }

    pub fn event(&mut self, kind: &str, name: &str, version: &str) {
        self.send(&event(kind, name, version));
    }

    /// Waits until the client is gone.
    pub fn wait_for_end(&mut self) {
        let _ = self.0.read(&mut [0]);
    }
}

pub fn event(kind: &str, name: &str, version: &str) -> String {
    format!(
        "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Node\",\"metadata\":{{\"name\":\"{name}\",\"resourceVersion\":\"{version}\"}}}}}}\n"
    )
}

/// The server's counters.
#[derive(Default)]
pub struct Counts {
    pub connections: AtomicU64,
    pub full_handshakes: AtomicU64,
    pub resumed_handshakes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub heard: Mutex<Vec<Heard>>,
}

impl Counts {
    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn handshakes(&self) -> (u64, u64) {
        (self.full_handshakes.load(Ordering::SeqCst), self.resumed_handshakes.load(Ordering::SeqCst))
    }

    pub fn bytes(&self) -> (u64, u64) {
        (self.received_bytes.load(Ordering::SeqCst), self.sent_bytes.load(Ordering::SeqCst))
    }
}

/// A socket that counts what passes.
pub struct Counting {
    socket: TcpStream,
    counts: Arc<Counts>,
}

impl Read for Counting {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let amount = self.socket.read(bytes)?;
        self.counts.received_bytes.fetch_add(amount as u64, Ordering::SeqCst);
        Ok(amount)
    }
}

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let amount = self.socket.write(bytes)?;
        self.counts.sent_bytes.fetch_add(amount as u64, Ordering::SeqCst);
        Ok(amount)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// The clients that the server accepts, and its protocol.
pub struct ServerOptions<'a> {
    pub listen: &'a str,
    pub identity: &'a Identity,
    /// Clients must show a certificate of this authority.
    pub clients: Option<&'a Authority>,
    pub versions: &'a [&'static SupportedProtocolVersion],
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub counts: Arc<Counts>,
}

type Script = dyn Fn(&Heard) -> Reply + Send + Sync;

impl Server {
    /// TLS 1.3 and 1.2, on 127.0.0.1, clients of `authority` only.
    pub fn start(authority: &Authority, script: impl Fn(&Heard) -> Reply + Send + Sync + 'static) -> Self {
        let identity = authority.identity(&["127.0.0.1", "hub.test"], NOW);
        let options = ServerOptions {
            listen: "127.0.0.1:0",
            identity: &identity,
            clients: Some(authority),
            versions: rustls::ALL_VERSIONS,
        };
        Self::start_with(&options, script)
    }

    pub fn start_with(
        options: &ServerOptions<'_>,
        script: impl Fn(&Heard) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(options.versions)
            .unwrap();
        let builder = match options.clients {
            Some(authority) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(authority.store(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
            None => builder.with_no_client_auth(),
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(options.identity.key.serialize_der()));
        let config = builder.with_single_cert(vec![options.identity.certificate.der().clone()], key).unwrap();
        let config = Arc::new(config);
        let script: Arc<Script> = Arc::new(script);
        let counts = Arc::new(Counts::default());
        let for_connections = Arc::clone(&counts);
        let address = accept(options.listen, move |socket| {
            for_connections.connections.fetch_add(1, Ordering::SeqCst);
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let counting = Counting { socket, counts: Arc::clone(&for_connections) };
            serve(StreamOwned::new(session, counting), &for_connections, script.as_ref());
        });
        Self { address, counts }
    }
}

/// Runs `serve` on a thread for each connection.
fn accept(listen: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind(listen).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (socket, serve) = (socket.unwrap(), Arc::clone(&serve));
            socket.set_nodelay(true).unwrap();
            thread::spawn(move || serve(socket));
        }
    });
    address
}

fn serve(mut stream: Stream, counts: &Counts, script: &Script) {
    while stream.conn.is_handshaking() {
        if stream.conn.complete_io(&mut stream.sock).is_err() {
            // send a TLS alert, as servers do
            let _ = stream.conn.write_tls(&mut stream.sock);
            return;
        }
    }
    match stream.conn.handshake_kind() {
        Some(HandshakeKind::Resumed) => counts.resumed_handshakes.fetch_add(1, Ordering::SeqCst),
        _ => counts.full_handshakes.fetch_add(1, Ordering::SeqCst),
    };
    while let Some(heard) = hear(&mut stream) {
        counts.heard.lock().unwrap().push(heard.clone());
        match script(&heard) {
            Reply::Answer(status, body) => answer(&mut stream, status, "", &body),
            Reply::AnswerWith(status, headers, body) => answer(&mut stream, status, headers, &body),
            Reply::Raw(bytes) => write(&mut stream, &bytes),
            Reply::Close(bytes) => {
                write(&mut stream, &bytes);
                stream.conn.send_close_notify();
                let _ = stream.flush();
                return;
            }
            Reply::Cut(bytes) => {
                write(&mut stream, &bytes);
                let _ = stream.sock.socket.shutdown(Shutdown::Both);
                return;
            }
            Reply::Trickle(bytes) => {
                write(&mut stream, &bytes);
                let begun = Instant::now();
                while begun.elapsed() < PLENTY && stream.write_all(b" ").is_ok() && stream.flush().is_ok() {
                    thread::sleep(Duration::from_millis(20));
                }
                return;
            }
            Reply::Silence => {
                let _ = stream.read(&mut [0]);
                return;
            }
            Reply::Chunks(body) => {
                write(&mut stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                body(&mut Chunks(&mut stream));
                write(&mut stream, b"0\r\n\r\n");
            }
        }
    }
}

fn write(stream: &mut Stream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    let _ = stream.flush();
}

fn answer(stream: &mut Stream, status: u16, headers: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    write(stream, format!("{head}{body}").as_bytes());
}

fn hear(stream: &mut Stream) -> Option<Heard> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let (line, headers) = head.split_once("\r\n").unwrap();
    let mut words = line.split(' ');
    let mut heard = Heard {
        method: words.next().unwrap().to_owned(),
        path: words.next().unwrap().to_owned(),
        headers: headers.trim_end().to_owned(),
        body: String::new(),
    };
    let length: usize = heard.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    heard.body = String::from_utf8(body).unwrap();
    Some(heard)
}

/// A proxy that opens tunnels to `target`, whatever name a client requests, if `allow` permits it.
pub struct Proxy {
    pub address: SocketAddr,
    /// Heads of the requests it got.
    pub heard: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub fn start(target: SocketAddr, refusal: Option<&'static str>) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let for_connections = Arc::clone(&heard);
        let address = accept("127.0.0.1:0", move |socket| {
            let mut reader = BufReader::new(socket.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            for_connections.lock().unwrap().push(head);
            let mut socket = socket;
            if let Some(refusal) = refusal {
                let _ = socket.write_all(refusal.as_bytes());
                return;
            }
            let server = TcpStream::connect(target).unwrap();
            socket.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n").unwrap();
            let (mut from_server, mut to_client) = (server.try_clone().unwrap(), socket.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut from_server, &mut to_client);
                let _ = to_client.shutdown(Shutdown::Both);
            });
            let mut to_server = server;
            let _ = io::copy(&mut socket, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Both);
        });
        Self { address, heard }
    }
}

/// The content of a test's kubeconfig.
pub struct KubeconfigText<'a> {
    pub server: String,
    pub roots: &'a Authority,
    /// Further fields of the cluster.
    pub cluster: String,
    /// Fields of the user.
    pub user: String,
}

impl KubeconfigText<'_> {
    pub fn text(&self) -> String {
        let Self { server, cluster, user, .. } = self;
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\ncontexts:\n- name: test\n  context: {{cluster: hub, user: node}}\n\
             clusters:\n- name: hub\n  cluster: {{server: '{server}', certificate-authority: ca.pem{cluster}}}\n\
             users:\n- name: node\n  user: {{{user}}}\n"
        )
    }

    pub fn write(&self, folder: &Scratch) -> PathBuf {
        folder.write("ca.pem", &self.roots.pem);
        folder.write("kubeconfig", self.text())
    }
}

/// A client of a server, with everything around it.
pub struct Bench {
    pub folder: Scratch,
    pub api: Arc<Api>,
    pub client: Client,
}

/// Fields of a user with the client certificate that [`Bench`] writes.
pub const CERTIFICATE_USER: &str = "client-certificate: node.pem, client-key: node.key";

impl Bench {
    /// A client with a certificate of `authority`, which it also trusts.
    pub fn new(authority: &Authority, server: SocketAddr) -> Self {
        Self::with(authority, authority, &format!("https://{server}"), "", system_clock())
    }

    pub fn with(
        roots: &Authority,
        identity_of: &Authority,
        server: &str,
        cluster: &str,
        clock: WallClock,
    ) -> Self {
        let folder = Scratch::new("net").unwrap();
        let identity = identity_of.identity(&["edge-1"], NOW);
        folder.write("node.pem", &identity.certificate_pem);
        folder.write("node.key", &identity.key_pem);
        let text = KubeconfigText {
            server: server.to_owned(),
            roots,
            cluster: cluster.to_owned(),
            user: CERTIFICATE_USER.to_owned(),
        };
        let kubeconfig = text.write(&folder);
        let options = ApiOptions { kubeconfig, own: None, clock, proxies: ProxyEnvironment::default() };
        Self::open(folder, options)
    }

    pub fn open(folder: Scratch, options: ApiOptions) -> Self {
        let api = Api::open(options).unwrap();
        let client = api.stream("test");
        Self { folder, api, client }
    }
}

/// Long enough never to matter, short enough that a hanging test ends.
pub const PLENTY: Duration = Duration::from_secs(20);
