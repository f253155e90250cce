//! An API server as a kubeconfig names it, and requests to it.
//!
//! Always holds: over TLS, trusting the kubeconfig's authority alone; every wait but that of a watch has a
//! limit, every answer a size. One connection for each request: a rollout sends a few a second. Left to
//! others: the requests and their order (`mod`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use kedge_hub_core::{ApiError, yaml};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::own;

const LIMIT: Duration = Duration::from_secs(60);
/// Most bytes of an answer: 100,000 nodes are 30 MB here, and more elsewhere.
const ANSWER_BYTES: u64 = 512 * 1024 * 1024;
/// Most bytes of a line of a watch; an object of Kubernetes has 1.5 MiB at most.
const LINE_BYTES: u64 = 16 * 1024 * 1024;

/// See the module.
pub(super) struct Server {
    url: String,
    tls: Arc<rustls::ClientConfig>,
    token: Option<String>,
}

/// The answer to a watch, event by event.
pub(super) struct Lines(BufReader<TlsStream<TcpStream>>);

impl Server {
    /// # Errors
    /// The file cannot be read, or names no server, authority or credential.
    pub(super) fn read(path: &Path) -> Result<Server, String> {
        let wrong = |why: String| format!("kubeconfig {}: {why}", path.display());
        let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let value = yaml::parse(&text).map_err(|error| match error {
            yaml::YamlError::Malformed(why) => wrong(why),
            yaml::YamlError::Excess(_) => wrong("it is too large".to_owned()),
        })?;
        Server::from_value(&value, path.parent().unwrap_or(Path::new("."))).map_err(wrong)
    }

    fn from_value(value: &Value, folder: &Path) -> Result<Server, String> {
        let named = |list: &str, name: &Value, of: &str| {
            let items = value[list].as_array().into_iter().flatten();
            let found = items.into_iter().find(|item| item["name"] == *name);
            found.map(|item| item[of].clone()).ok_or_else(|| format!("there is no {of} {name}"))
        };
        let context = named("contexts", &value["current-context"], "context")?;
        let cluster = named("clusters", &context["cluster"], "cluster")?;
        let user = named("users", &context["user"], "user")?;
        let url = cluster["server"].as_str().unwrap_or_default().trim_end_matches('/').to_owned();
        if !url.starts_with("https://") {
            return Err(format!("server is {url:?}, expected https://HOST:PORT"));
        }
        let authority = data(&cluster, "certificate-authority", folder)?
            .ok_or("the cluster has no certificate-authority")?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&authority) {
            let certificate = certificate.map_err(|error| format!("certificate-authority: {error}"))?;
            roots.add(certificate).map_err(|error| format!("certificate-authority: {error}"))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let token = match user["tokenFile"].as_str() {
            Some(file) => {
                let read = std::fs::read_to_string(folder.join(file));
                Some(read.map_err(|error| format!("tokenFile {file}: {error}"))?.trim().to_owned())
            }
            None => user["token"].as_str().map(str::to_owned),
        };
        let tls = match (data(&user, "client-certificate", folder)?, data(&user, "client-key", folder)?) {
            (Some(certificate), Some(key)) => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
                let chain = chain.map_err(|error| format!("client-certificate: {error}"))?;
                let key =
                    PrivateKeyDer::from_pem_slice(&key).map_err(|error| format!("client-key: {error}"))?;
                config.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
            _ if token.is_some() => config.with_no_client_auth(),
            _ => return Err("the user has neither a client certificate nor a token".to_owned()),
        };
        Ok(Server { url, tls: Arc::new(tls), token })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The answer to a request; a refusal is the server's Status.
    pub(super) async fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, ApiError> {
        let failed = |why: String| ApiError::internal(format!("{method} {}{path}: {why}", self.url));
        let exchange = async {
            let mut stream = self.send(method, path, body).await?;
            let mut answer = Vec::new();
            (&mut stream)
                .take(ANSWER_BYTES)
                .read_to_end(&mut answer)
                .await
                .map_err(|error| error.to_string())?;
            let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("no HTTP answer")?;
            let code = status(&answer).ok_or("no HTTP answer")?;
            let value: Value = own::read(&answer[end + 4..]).map_err(|error| error.to_string())?;
            Ok::<_, String>((code, value))
        };
        let (code, value) = match tokio::time::timeout(LIMIT, exchange).await {
            Ok(answer) => answer.map_err(failed)?,
            Err(_) => return Err(failed(format!("no answer in {LIMIT:?}"))),
        };
        if (200..300).contains(&code) {
            return Ok(value);
        }
        let message = value["message"].as_str().unwrap_or("refused");
        let mut error = ApiError::internal(format!("{method} {path}: {message}"));
        error.code = code;
        Err(error)
    }

    /// The events of a watch.
    pub(super) async fn watch(&self, path: &str) -> Result<Lines, String> {
        let opened = async {
            let stream = self.send("GET", path, &Value::Null).await?;
            let mut lines = Lines(BufReader::new(stream));
            let head = lines.next().await?.ok_or("no HTTP answer")?;
            match status(head.as_bytes()) {
                Some(200) => {}
                Some(code) => return Err(format!("{path}: answered {code}")),
                None => return Err("no HTTP answer".to_owned()),
            }
            while lines.next().await?.is_some_and(|line| !line.trim().is_empty()) {}
            Ok(lines)
        };
        tokio::time::timeout(LIMIT, opened).await.map_err(|_| format!("no answer in {LIMIT:?}"))?
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<TlsStream<TcpStream>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let (address, prefix) = match self.url["https://".len()..].split_once('/') {
            Some((address, prefix)) => (address, format!("/{prefix}")),
            None => (&self.url["https://".len()..], String::new()),
        };
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let with_port = if has_port { address.to_owned() } else { format!("{address}:443") };
        let host = with_port.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let stream = TcpStream::connect(&with_port).await.map_err(|error| text(&error))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| text(&error))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let mut stream = connector.connect(name, stream).await.map_err(|error| text(&error))?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let token = self.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n"));
        // HTTP/1.0: the answer ends with the connection, and has no chunks
        let request = format!(
            "{method} {prefix}{path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n{}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            token.unwrap_or_default(),
            body.len()
        );
        stream.write_all(request.as_bytes()).await.map_err(|error| text(&error))?;
        stream.flush().await.map_err(|error| text(&error))?;
        Ok(stream)
    }
}

impl Lines {
    /// The next line; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, String> {
        let mut line = Vec::new();
        let mut reader = (&mut self.0).take(LINE_BYTES);
        reader.read_until(b'\n', &mut line).await.map_err(|error| error.to_string())?;
        match line.last() {
            Some(b'\n') => Ok(Some(String::from_utf8_lossy(&line).into_owned())),
            // cut off
            _ => Ok(None),
        }
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

/// `FIELD-data`, or the file that `FIELD` names.
fn data(of: &Value, field: &str, folder: &Path) -> Result<Option<Vec<u8>>, String> {
    if let Some(text) = of[format!("{field}-data")].as_str() {
        let decoded = base64::engine::general_purpose::STANDARD.decode(text);
        return decoded.map(Some).map_err(|error| format!("{field}-data: {error}"));
    }
    let Some(path) = of[field].as_str() else { return Ok(None) };
    let path: PathBuf = folder.join(path);
    std::fs::read(&path).map(Some).map_err(|error| format!("{field} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kubeconfig_without_its_parts_is_refused() {
        let check = |value: Value, expect: &str| {
            let found = Server::from_value(&value, Path::new("/nonexistent")).err().unwrap_or_default();
            assert!(found.contains(expect), "{found}");
        };
        let whole = |server: &str, user: Value| {
            json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": server, "certificate-authority-data": ""}}],
                "users": [{"name": "u", "user": user}]})
        };
        check(json!({}), "there is no context null");
        check(whole("http://a:1", json!({})), "expected https://HOST:PORT");
        check(whole("https://a:1", json!({})), "neither a client certificate nor a token");
        check(whole("https://a:1", json!({"tokenFile": "t"})), "tokenFile t: ");
        check(whole("https://a:1", json!({"token": "t"})), "");
    }
}
