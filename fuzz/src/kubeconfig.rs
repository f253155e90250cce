//! An untrusted kubeconfig: complete, checked and usable for TLS, or refused with a reason.
//!
//! Each process makes new keys and certificates, so no corpus contains one: an input names them as `@CA@`,
//! `@CERT@` and `@KEY@` (base64 of PEM), or as the files `ca.crt`, `edge.crt`, `edge.key` and `token`.

use crate::Target;
use crate::server::Authority;
use kedge::net::client::Api;
use kedge::net::credentials::ApiOptions;
use kedge::net::kubeconfig::{self, MAX_CERTIFICATES};
use kedge::net::proxy::ProxyEnvironment;
use kedge::net::transport::system_clock;
use kedge_rig::Scratch;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

pub(crate) const TARGET: Target =
    Target { name: "kubeconfig", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 600 };

/// Longest error including its causes.
const ERROR_BYTES: usize = 4096;

const WORDS: &[&str] = &[
    "current-context: ",
    "contexts:\n",
    "clusters:\n",
    "users:\n",
    "- name: ",
    "context: ",
    "cluster: ",
    "user: ",
    "server: ",
    "https://",
    "http://",
    "certificate-authority-data: ",
    "certificate-authority: ",
    "client-certificate-data: ",
    "client-certificate: ",
    "client-key-data: ",
    "client-key: ",
    "token: ",
    "tokenFile: ",
    "tls-server-name: ",
    "proxy-url: ",
    "insecure-skip-tls-verify: ",
    "exec: ",
    "as: ",
    "@CA@",
    "@CERT@",
    "@KEY@",
    "ca.crt",
    "edge.crt",
    "edge.key",
    "token",
    "[::1]",
    "127.0.0.1",
    ":6443",
    "user:word@",
    "%2f",
    "/base/",
    "?x",
    "#y",
    "..",
    "-----BEGIN CERTIFICATE-----\n",
    "null",
];

fn seeds() -> Vec<Vec<u8>> {
    let with = |cluster: &str, user: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\nclusters:\n- name: k\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        )
        .into_bytes()
    };
    vec![
        with(
            "server: 'https://127.0.0.1:6443', certificate-authority-data: \"@CA@\"",
            "client-certificate-data: \"@CERT@\", client-key-data: \"@KEY@\"",
        ),
        with("server: 'hub.example/base/', certificate-authority: ca.crt", "token: abc"),
        with(
            "server: 'https://[fd00::1]', certificate-authority: ca.crt, tls-server-name: hub.example",
            "tokenFile: token, token: abc",
        ),
        with(
            "server: 'https://h:1', certificate-authority: ca.crt, proxy-url: 'http://user:word@proxy:3128'",
            "client-certificate: edge.crt, client-key: edge.key",
        ),
        with("server: 'http://h', insecure-skip-tls-verify: true", "exec: {command: x}"),
    ]
}

/// The folder of the kubeconfig, and the texts for the placeholders.
struct Place {
    folder: Scratch,
    path: PathBuf,
    texts: [(&'static str, String); 3],
}

thread_local! {
    static PLACE: Place = Place::new();
}

impl Place {
    fn new() -> Self {
        let authority = Authority::new();
        let edge = authority.identity();
        let folder = crate::scratch("kubeconfig");
        let files =
            [("ca.crt", &authority.pem), ("edge.crt", &edge.certificate_pem), ("edge.key", &edge.key_pem)];
        for (name, content) in files {
            fs::write(folder.path().join(name), content).expect("the scratch folder is ours");
        }
        fs::write(folder.path().join("token"), "a-token\n").expect("the scratch folder is ours");
        let path = folder.path().join("kubeconfig");
        let texts = [
            ("@CA@", base64(authority.pem.as_bytes())),
            ("@CERT@", base64(edge.certificate_pem.as_bytes())),
            ("@KEY@", base64(edge.key_pem.as_bytes())),
        ];
        Self { folder, path, texts }
    }
}

/// Encodes as base64 (RFC 4648); only short texts are made here.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn run(data: &[u8]) {
    PLACE.with(|place| {
        let mut text = String::from_utf8_lossy(data).into_owned();
        for (mark, content) in &place.texts {
            // once each: more would only lengthen the input
            text = text.replacen(mark, content, 1);
        }
        let bytes = if std::str::from_utf8(data).is_ok() { text.into_bytes() } else { data.to_vec() };
        if names_something_outside(&bytes) {
            return;
        }
        fs::write(&place.path, bytes).expect("the scratch folder is ours");
        debug_assert!(place.path.starts_with(place.folder.path()));
        load(&place.path);
    });
}

/// A kubeconfig belongs to root and may name any file; a test does not open the files of the machine it runs
/// on.
fn names_something_outside(text: &[u8]) -> bool {
    ["/dev", "/proc", "/sys", "/run", "/tmp"]
        .iter()
        .any(|place| text.windows(place.len()).any(|window| window == place.as_bytes()))
}

fn load(path: &std::path::Path) {
    match kubeconfig::load(path) {
        Err(error) => check_error(&error),
        Ok(found) => {
            assert!(!found.server.host.is_empty() && !found.server.base_path.ends_with('/'), "{found:?}");
            assert!(found.server.url().starts_with("https://"), "{}", found.server.url());
            assert!(!found.server.host.contains(['@', '/', ' ']), "{found:?}");
            assert!((1..=MAX_CERTIFICATES).contains(&found.roots.len()), "{} roots", found.roots.len());
            assert!(!format!("{found:?}").contains("PRIVATE"), "a secret in {found:?}");
        }
    }
    let options = ApiOptions {
        own: None,
        kubeconfig: path.to_owned(),
        clock: system_clock(),
        proxies: ProxyEnvironment::default(),
    };
    match Api::open(options) {
        Ok(api) => assert!(api.url().starts_with("https://")),
        Err(error) => check_error(&error),
    }
}

fn check_error(error: &dyn Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    assert!(!text.is_empty() && text.len() <= ERROR_BYTES, "{} bytes: {text}", text.len());
}
