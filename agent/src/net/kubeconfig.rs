//! Reading a kubeconfig: the server, the authorities to trust, and our identity.
//!
//! Owns the kubeconfig file and every file it names, and says which files those are so that a change can be
//! noticed. Always holds: the result is complete and checked (a URL that parses, certificates and a key that
//! decode), every file is read up to a named limit, and a setting that would make the connection weaker than
//! it seems (`insecure-skip-tls-verify`, credentials by command) is refused, never ignored. Errors name the
//! file, the field and the line. It opens no connection; `transport` uses its results.
//!
//! Meaning and precedence of the fields are upstream's (client-go `clientcmd/api/v1`): inline `-data` wins
//! over a file, `tokenFile` over `token`, relative paths count from the kubeconfig's directory.

use crate::net::proxy::HostPort;
use std::error;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kedge_core::kubelet::yaml::{self, Tree};
use kedge_platform::ReadError;
use kedge_platform::linux::read_named_file;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use ureq::http::Uri;

use super::proxy::{ProxyAddress, split_host_port};

/// Most bytes of a kubeconfig. With an inline CA bundle, certificate and key it has about 6 KiB; a hundred
/// contexts still fit.
pub const MAX_KUBECONFIG_BYTES: usize = 1024 * 1024;

/// Most bytes of one PEM file. A bundle of a hundred root certificates has about 200 KiB.
pub const MAX_PEM_BYTES: usize = 256 * 1024;

/// Most bytes of a token. Servers refuse header lines above 8 KiB to 16 KiB; a service account token has
/// about 1 KiB.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// Most certificates in one chain or one set of roots.
pub const MAX_CERTIFICATES: usize = 256;

/// The checked content of a kubeconfig's current context.
///
/// It holds secrets, so its `Debug` shows names only.
pub struct Kubeconfig {
    /// Where it was read from.
    pub path: PathBuf,
    /// The context in use: `current-context`.
    pub context: String,
    /// The name of the kubeconfig's user entry; empty without one.
    pub user: String,
    pub server: ServerAddress,
    /// The name the server's certificate must carry: `tls-server-name`, else the host of `server`.
    pub server_name: ServerName<'static>,
    /// The proxy that `proxy-url` names.
    pub proxy: Option<ProxyAddress>,
    /// The only certificate authorities trusted.
    pub roots: Vec<CertificateDer<'static>>,
    /// The client certificate, if the user has one.
    pub client_certificate: Option<ClientCertificate>,
    /// The bearer token, if the user has one.
    pub token: TokenSource,
    /// The files that were read for it, `path` first (without the token file, which its user reads again and
    /// again).
    pub files: Vec<FileRead>,
}

/// A file that was read, and its stamp from just before: a change during the read counts as a later change.
pub struct FileRead {
    pub path: PathBuf,
    stamp: Option<Stamp>,
}

impl FileRead {
    pub(crate) fn begun(path: &Path) -> Self {
        Self { path: path.to_owned(), stamp: Stamp::of(path) }
    }

    /// Whether the file is another one now, or looks as if it were.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        Stamp::of(&self.path) != self.stamp
    }
}

/// Properties that change when a file does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp([u64; 7]);

impl Stamp {
    /// The stamp of the file behind any links; `None` if it cannot be seen.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let seen = fs::metadata(path).ok()?;
        let (modified, changed) = (seen.mtime().cast_unsigned(), seen.ctime().cast_unsigned());
        let nanos = (seen.mtime_nsec().cast_unsigned(), seen.ctime_nsec().cast_unsigned());
        Some(Self([seen.dev(), seen.ino(), seen.size(), modified, nanos.0, changed, nanos.1]))
    }
}

/// The authorities (PEM) of a kubeconfig with one cluster and no user, as in `cluster-info`.
pub(crate) fn certificate_authority(kubeconfig: &str) -> Option<Vec<u8>> {
    let tree = yaml::parse(kubeconfig.as_bytes()).ok()?;
    let cluster = tree.get("clusters")?.items().first()?.get("cluster")?;
    let text = cluster.get("certificate-authority-data").and_then(Tree::text)?;
    BASE64_STANDARD.decode(text.split_ascii_whitespace().collect::<String>()).ok()
}

/// Where an API server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port; 443 if the URL names none.
    pub port: u16,
    /// Path in front of every API path, without a slash at its end; mostly empty.
    pub base_path: String,
}

impl ServerAddress {
    /// `https://host:port/base`, with brackets around an IPv6 address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}{}", HostPort(&self.host, self.port), self.base_path)
    }
}

/// A client certificate and its key.
pub struct ClientCertificate {
    /// The certificate, then those that lead to its authority.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

/// Where the bearer token comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// The user has no token.
    None,
    /// It is in the kubeconfig.
    Fixed(String),
    /// It is in a file that another program renews.
    File {
        path: PathBuf,
        /// Sent while the file has never been readable: the kubeconfig's own `token`.
        fallback: Option<String>,
    },
}

impl fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubeconfig")
            .field("path", &self.path)
            .field("context", &self.context)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Why a kubeconfig cannot be used. Each stays until a file is corrected.
#[derive(Debug)]
pub enum KubeconfigError {
    /// The path cannot be read, is not a file, or is larger than our limit.
    Read(ReadError),
    /// The kubeconfig is not YAML.
    Syntax {
        path: PathBuf,
        /// Where and why, from the parser.
        message: String,
    },
    /// A field is missing or has an invalid value.
    Field {
        path: PathBuf,
        /// The line, or 0 if the field is missing altogether.
        line: u32,
        /// The field, such as `users[edge].user.client-key-data`.
        field: String,
        /// The value found and the value expected.
        message: String,
    },
}

impl fmt::Display for KubeconfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::Syntax { path, message } => write!(f, "kubeconfig {}: {message}", path.display()),
            Self::Field { path, line: 0, field, message } => {
                write!(f, "kubeconfig {}: {field} {message}", path.display())
            }
            Self::Field { path, line, field, message } => {
                write!(f, "kubeconfig {}: line {line}: {field} {message}", path.display())
            }
        }
    }
}

impl error::Error for KubeconfigError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Read(error) => error.source(),
            _ => None,
        }
    }
}

/// Reads a whole regular file of at most this many bytes. This is [`read_named_file`] outside tests, which
/// treats a pipe or a device in place of a file as an error, because a thread that opens one would wait for
/// its other end.
pub type ReadFile = dyn Fn(&Path, usize) -> Result<Vec<u8>, ReadError> + Send + Sync;

/// Reads a kubeconfig and the files it names, for its `current-context`.
///
/// # Errors
/// The first thing that is missing, unreadable, wrong or not supported.
pub fn load(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    load_with(path, &read_named_file)
}

/// Like [`load`], with the caller's own way to read files.
pub(crate) fn load_with(path: &Path, read: &ReadFile) -> Result<Kubeconfig, KubeconfigError> {
    let file = FileRead::begun(path);
    let text = read(path, MAX_KUBECONFIG_BYTES).map_err(KubeconfigError::Read)?;
    let tree = yaml::parse(&text)
        .map_err(|error| KubeconfigError::Syntax { path: path.to_owned(), message: error.to_string() })?;
    Reader { path, read, files: vec![file] }.kubeconfig(&tree)
}

/// The token in the bytes of a token file: trimmed, and nothing in it that could end a header line.
pub(crate) fn checked_token(text: &[u8]) -> Result<String, String> {
    let text = core::str::from_utf8(text).map_err(|_| "is not text".to_owned())?.trim();
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("holds a blank or a byte that no token has".to_owned());
    }
    Ok(text.to_owned())
}

/// A value and its name in messages.
struct At<'a> {
    tree: &'a Tree,
    name: String,
}

impl<'a> At<'a> {
    /// The field `key`, unless it is missing or null.
    fn field(&self, key: &str) -> Option<At<'a>> {
        let tree = self.tree.get(key).filter(|tree| !tree.is_null())?;
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        Some(At { tree, name })
    }
}

struct Reader<'a> {
    path: &'a Path,
    read: &'a ReadFile,
    files: Vec<FileRead>,
}

impl Reader<'_> {
    fn kubeconfig(mut self, tree: &Tree) -> Result<Kubeconfig, KubeconfigError> {
        let root = At { tree, name: String::new() };
        let Some(current) = root.field("current-context") else {
            return Err(self.missing("current-context", "names no context"));
        };
        let context_name = self.text(&current)?.to_owned();
        let context = self.entry(&root, "contexts", "context", &context_name, "current-context")?;
        let cluster_name = self.required_text(&context, "cluster")?;
        let cluster = self.entry(&root, "clusters", "cluster", &cluster_name, &context.name)?;
        let user_name = match context.field("user") {
            Some(user) => self.text(&user)?.to_owned(),
            None => String::new(),
        };
        let user = match user_name.as_str() {
            "" => None,
            name => Some(self.entry(&root, "users", "user", name, &context.name)?),
        };

        self.refuse_insecure(&cluster)?;
        let server = self.server(&cluster)?;
        let server_name = self.server_name(&cluster, &server)?;
        let proxy = self.proxy(&cluster)?;
        let roots = self.roots(&cluster)?;
        let (client_certificate, token) = match &user {
            Some(user) => {
                self.refuse_unsupported_user(user)?;
                (self.client_certificate(user)?, self.token(user)?)
            }
            None => (None, TokenSource::None),
        };
        // without credentials every request would be refused, so this is reported here
        if client_certificate.is_none() && token == TokenSource::None {
            let field = user.map_or(format!("{}.user", context.name), |user| user.name);
            return Err(self.missing(&field, "holds neither a client certificate nor a token"));
        }
        Ok(Kubeconfig {
            path: self.path.to_owned(),
            context: context_name,
            user: user_name,
            server,
            server_name,
            proxy,
            roots,
            client_certificate,
            token,
            files: self.files,
        })
    }

    /// The entry called `name` of the named list `list`, and in it the object `inner`.
    fn entry<'t>(
        &self,
        root: &At<'t>,
        list: &str,
        inner: &str,
        name: &str,
        named_by: &str,
    ) -> Result<At<'t>, KubeconfigError> {
        let entries = root.field(list).map(|list| list.tree.items()).unwrap_or_default();
        let is_it = |entry: &&Tree| entry.get("name").and_then(Tree::text) == Some(name);
        let found =
            entries.iter().find(is_it).and_then(|entry| entry.get(inner)).filter(|tree| !tree.is_null());
        match found {
            Some(tree) => Ok(At { tree, name: format!("{list}[{name}].{inner}") }),
            None => Err(self.missing(list, &format!("has no \"{name}\", which {named_by} names"))),
        }
    }

    fn missing(&self, field: &str, message: &str) -> KubeconfigError {
        self.error(0, field, message)
    }

    fn wrong(&self, at: &At<'_>, message: &str) -> KubeconfigError {
        self.error(at.tree.position.line, &at.name, message)
    }

    fn error(&self, line: u32, field: &str, message: &str) -> KubeconfigError {
        KubeconfigError::Field {
            path: self.path.to_owned(),
            line,
            field: field.to_owned(),
            message: message.to_owned(),
        }
    }

    fn text<'t>(&self, at: &At<'t>) -> Result<&'t str, KubeconfigError> {
        match at.tree.text() {
            Some("") => Err(self.wrong(at, "is empty, expected text")),
            Some(text) => Ok(text),
            None => Err(self.wrong(at, "is not text, expected text (quote it if it looks like a number)")),
        }
    }

    fn required_text(&self, at: &At<'_>, key: &str) -> Result<String, KubeconfigError> {
        match at.field(key) {
            Some(field) => self.text(&field).map(str::to_owned),
            None => Err(self.missing(&format!("{}.{key}", at.name), "is missing")),
        }
    }

    fn refuse_insecure(&self, cluster: &At<'_>) -> Result<(), KubeconfigError> {
        match cluster.field("insecure-skip-tls-verify") {
            None => Ok(()),
            Some(field) if field.tree.bool() == Some(false) => Ok(()),
            Some(field) => Err(self.wrong(
                &field,
                "is set, and is refused: any server that answers could then reconfigure this node; \
                 give certificate-authority or certificate-authority-data instead",
            )),
        }
    }

    fn refuse_unsupported_user(&self, user: &At<'_>) -> Result<(), KubeconfigError> {
        let unsupported = [
            ("exec", "credentials by running a command"),
            ("auth-provider", "an authentication plugin"),
            ("username", "basic authentication"),
            ("password", "basic authentication"),
            ("as", "impersonation"),
            ("as-uid", "impersonation"),
            ("as-groups", "impersonation"),
            ("as-user-extra", "impersonation"),
        ];
        for (key, what) in unsupported {
            if let Some(field) = user.field(key) {
                let message = format!(
                    "asks for {what}, which is not supported; expected a client certificate, token or tokenFile"
                );
                return Err(self.wrong(&field, &message));
            }
        }
        Ok(())
    }

    fn server(&self, cluster: &At<'_>) -> Result<ServerAddress, KubeconfigError> {
        let Some(field) = cluster.field("server") else {
            return Err(self.missing(&format!("{}.server", cluster.name), "is missing"));
        };
        let text = self.text(&field)?;
        parse_server(text).map_err(|message| self.wrong(&field, &message))
    }

    fn server_name(
        &self,
        cluster: &At<'_>,
        server: &ServerAddress,
    ) -> Result<ServerName<'static>, KubeconfigError> {
        let field = cluster.field("tls-server-name").or_else(|| cluster.field("server"));
        let field = field.expect("the server field was read before");
        let text = cluster.field("tls-server-name").map(|field| self.text(&field)).transpose()?;
        let name = text.unwrap_or(&server.host).to_owned();
        ServerName::try_from(name.clone()).map_err(|_| {
            self.wrong(&field, &format!("names the host \"{name}\", which no certificate can carry"))
        })
    }

    fn proxy(&self, cluster: &At<'_>) -> Result<Option<ProxyAddress>, KubeconfigError> {
        let Some(field) = cluster.field("proxy-url") else { return Ok(None) };
        let text = self.text(&field)?;
        ProxyAddress::parse(text)
            .map(Some)
            .map_err(|message| self.wrong(&field, &format!("cannot be used: {message}")))
    }

    fn roots(&mut self, cluster: &At<'_>) -> Result<Vec<CertificateDer<'static>>, KubeconfigError> {
        let Some((field, text)) = self.data_or_file(cluster, "certificate-authority")? else {
            return Err(self.missing(
                &format!("{}.certificate-authority-data", cluster.name),
                "is missing: the certificates of public authorities are not built in, \
                 so the kubeconfig must say whom to trust",
            ));
        };
        self.certificates(&field, &text)
    }

    fn client_certificate(&mut self, user: &At<'_>) -> Result<Option<ClientCertificate>, KubeconfigError> {
        let certificate = self.data_or_file(user, "client-certificate")?;
        let key = self.data_or_file(user, "client-key")?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some((field, _)), None) => Err(self.wrong(&field, "has no client-key beside it")),
            (None, Some((field, _))) => Err(self.wrong(&field, "has no client-certificate beside it")),
            (Some((certificate_field, chain)), Some((key_field, key))) => {
                let chain = self.certificates(&certificate_field, &chain)?;
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| {
                    self.wrong(&key_field, &format!("holds no private key in PEM: {error}"))
                })?;
                Ok(Some(ClientCertificate { chain, key }))
            }
        }
    }

    fn token(&self, user: &At<'_>) -> Result<TokenSource, KubeconfigError> {
        let fixed = match user.field("token") {
            Some(field) => {
                let token = checked_token(self.text(&field)?.as_bytes());
                Some(token.map_err(|message| self.wrong(&field, &message))?)
            }
            None => None,
        };
        match (user.field("tokenFile"), fixed) {
            (Some(field), fallback) => {
                let path = self.resolved(self.text(&field)?);
                Ok(TokenSource::File { path, fallback })
            }
            (None, Some(token)) => Ok(TokenSource::Fixed(token)),
            (None, None) => Ok(TokenSource::None),
        }
    }

    /// The bytes of `<key>-data`, or of the file that `<key>` names, and the field they come from.
    fn data_or_file<'t>(
        &mut self,
        at: &At<'t>,
        key: &str,
    ) -> Result<Option<(At<'t>, Vec<u8>)>, KubeconfigError> {
        if let Some(field) = at.field(&format!("{key}-data")) {
            // a folded YAML block leaves blanks in base64, and upstream's decoder skips line ends too
            let packed: String = self.text(&field)?.split_ascii_whitespace().collect();
            let data = BASE64_STANDARD
                .decode(packed)
                .map_err(|error| self.wrong(&field, &format!("is not base64: {error}")))?;
            return Ok(Some((field, data)));
        }
        let Some(field) = at.field(key) else { return Ok(None) };
        let path = self.resolved(self.text(&field)?);
        self.files.push(FileRead::begun(&path));
        let data = (self.read)(&path, MAX_PEM_BYTES).map_err(KubeconfigError::Read)?;
        Ok(Some((field, data)))
    }

    fn resolved(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    fn certificates(
        &self,
        field: &At<'_>,
        pem: &[u8],
    ) -> Result<Vec<CertificateDer<'static>>, KubeconfigError> {
        let mut certificates = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate
                .map_err(|error| self.wrong(field, &format!("holds a damaged certificate: {error}")))?;
            if certificates.len() == MAX_CERTIFICATES {
                let message = format!("holds more than {MAX_CERTIFICATES} certificates");
                return Err(self.wrong(field, &message));
            }
            certificates.push(certificate);
        }
        if certificates.is_empty() {
            return Err(self.wrong(field, "holds no certificate in PEM"));
        }
        Ok(certificates)
    }
}

/// Reads the `server` field: `https://host[:port][/base]`, or `host[:port]` for https as client-go has it.
pub(crate) fn parse_server(text: &str) -> Result<ServerAddress, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let uri: Uri =
        url.parse().map_err(|error| format!("is \"{text}\", expected https://host:port: {error}"))?;
    if uri.scheme_str() != Some("https") {
        return Err(format!(
            "is \"{text}\", expected https://: heartbeats and configs do not travel in the clear"
        ));
    }
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if authority.contains('@') {
        return Err("holds a user, expected https://host:port (credentials belong under users)".to_owned());
    }
    if uri.query().is_some() {
        return Err(format!("is \"{text}\", expected no ? in it"));
    }
    let (host, port) = split_host_port(authority, 443)?;
    Ok(ServerAddress { host, port, base_path: uri.path().trim_end_matches('/').to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;
    use std::fs;

    fn identity() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["edge".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
             clusters:\n- name: k\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        )
    }

    fn ca_data() -> String {
        format!("certificate-authority-data: {}", BASE64_STANDARD.encode(identity().0))
    }

    fn check(text: &str, expect: &str) {
        let folder = Scratch::new("kubeconfig").unwrap();
        let path = folder.write("kubeconfig", text.as_bytes());
        let found = match load(&path) {
            Ok(kubeconfig) => format!("ok {}", kubeconfig.server.url()),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expect), "expected {expect:?}, found {found:?}");
        if !found.starts_with("ok") {
            assert!(found.contains("kubeconfig"), "the message names the file: {found}");
        }
    }

    #[test]
    fn server_must_be_an_https_url() {
        let of = |server: &str| kubeconfig(&format!("server: \"{server}\", {}", ca_data()), "token: t");
        check(&of("https://hub.example:6443"), "ok https://hub.example:6443");
        check(&of("https://hub.example"), "ok https://hub.example:443");
        check(&of("hub.example:8443"), "ok https://hub.example:8443");
        check(&of("https://[::1]:6443/"), "ok https://[::1]:6443");
        check(&of("https://[fd00::5]"), "ok https://[fd00::5]:443");
        check(&of("https://10.0.0.7:6443/k8s/clusters/c-1/"), "ok https://10.0.0.7:6443/k8s/clusters/c-1");
        check(&of("http://hub.example:6443"), "clusters[k].cluster.server is \"http://hub.example:6443\"");
        check(&of("https://admin:pw@hub.example"), "credentials belong under users");
        check(&of("https://hub.example:99999"), "expected");
        check(&of("https://"), "expected https://host:port");
        check(&of("https://hub.example?x=1"), "expected no ?");
    }

    #[test]
    fn kubeconfig_errors_name_the_place() {
        check("current-context: [", "kubeconfig");
        check("{}", "current-context names no context");
        check("current-context: 7", "line 1: current-context is not text");
        check("current-context: c", "contexts has no \"c\", which current-context names");
        check(
            "current-context: c\ncontexts: [{name: c, context: {cluster: gone, user: u}}]",
            "clusters has no \"gone\", which contexts[c].context names",
        );
        check(
            &kubeconfig("certificate-authority-data: aGVsbG8=", "token: t"),
            "clusters[k].cluster.server is missing",
        );
        let of = |user: &str| kubeconfig(&format!("server: https://h, {}", ca_data()), user);
        check(&of(""), "users[u].user holds neither a client certificate nor a token");
        check(&of("token: 't t'"), "users[u].user.token holds a blank");
        check(&of("token: ''"), "line 12: users[u].user.token is empty");
        check(&of("client-certificate-data: '!'"), "users[u].user.client-certificate-data is not base64");
        check(&of("client-certificate-data: aGVsbG8="), "has no client-key beside it");
        check(&of("client-key-data: aGVsbG8="), "has no client-certificate beside it");
        let ca = |data: &str| kubeconfig(&format!("server: https://h, {data}"), "token: t");
        check(&ca(""), "certificate-authority-data is missing");
        check(&ca("certificate-authority-data: aGVsbG8="), "holds no certificate in PEM");
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        let of = |cluster: &str, user: &str| {
            kubeconfig(&format!("server: https://h, {}{cluster}", ca_data()), user)
        };
        check(
            &of(", insecure-skip-tls-verify: true", "token: t"),
            "insecure-skip-tls-verify is set, and is refused",
        );
        check(&of(", insecure-skip-tls-verify: false", "token: t"), "ok");
        check(
            &of("", "exec: {command: aws}"),
            "users[u].user.exec asks for credentials by running a command",
        );
        check(&of("", "auth-provider: {name: gcp}"), "users[u].user.auth-provider asks for");
        check(&of("", "username: admin"), "users[u].user.username asks for basic authentication");
        check(&of("", "token: t, as: admin"), "users[u].user.as asks for impersonation");
        check(
            &of(", proxy-url: 'socks5://p:1080'", "token: t"),
            "proxy-url cannot be used: scheme is \"socks5\"",
        );
        check(&of(", tls-server-name: 'not a name'", "token: t"), "tls-server-name names the host");
    }

    #[test]
    fn relative_paths_start_at_the_kubeconfig_and_data_wins() {
        let folder = Scratch::new("kubeconfig").unwrap();
        fs::create_dir_all(folder.join("pki")).unwrap();
        let (certificate, key) = identity();
        folder.write("pki/node.crt", certificate.as_bytes());
        folder.write("pki/node.key", key.as_bytes());
        let text = kubeconfig(
            &format!("server: https://h, certificate-authority: does-not-exist, {}", ca_data()),
            "client-certificate: pki/node.crt, client-key: pki/node.key, token: fixed, tokenFile: pki/token",
        );
        let loaded = load(&folder.write("kubeconfig", text.as_bytes())).unwrap();
        let files: Vec<&Path> = loaded.files.iter().map(|file| file.path.as_path()).collect();
        let expected = ["kubeconfig", "pki/node.crt", "pki/node.key"].map(|name| folder.join(name));
        assert_eq!(files, expected);
        assert_eq!(loaded.client_certificate.unwrap().chain.len(), 1);
        let expected =
            TokenSource::File { path: folder.join("pki/token"), fallback: Some("fixed".to_owned()) };
        assert!(loaded.token == expected);
        fs::remove_file(folder.join("pki/node.key")).unwrap();
        let error = load(&folder.join("kubeconfig")).unwrap_err();
        assert_eq!(error.to_string(), format!("{} does not exist", folder.join("pki/node.key").display()));
    }

    /// Checks that a kubeconfig, or a file it names, that is not a regular file is refused.
    #[track_caller]
    fn check_kind(name: &str, make: impl Fn(&Path), expect: &str) {
        let folder = Scratch::new("kubeconfig").unwrap();
        let (certificate, key) = identity();
        folder.write("ca.crt", &certificate);
        folder.write("node.crt", &certificate);
        folder.write("node.key", &key);
        let user = "client-certificate: node.crt, client-key: node.key";
        let text = kubeconfig("server: https://h, certificate-authority: ca.crt", user);
        folder.write("kubeconfig", text.as_bytes());
        assert!(load(&folder.join("kubeconfig")).is_ok());
        let path = folder.join(name);
        fs::remove_file(&path).unwrap();
        make(&path);
        let error = load(&folder.join("kubeconfig")).err().map(|error| error.to_string());
        assert_eq!(error, Some(format!("{} is a {expect}, expected a file", path.display())));
    }

    #[test]
    fn anything_but_a_file_is_refused_at_once() {
        for name in ["kubeconfig", "ca.crt", "node.crt", "node.key"] {
            check_kind(name, |path| fs::create_dir(path).unwrap(), "directory");
            // opening a pipe would block the thread until somebody writes to it
            let make_pipe = |path: &Path| {
                let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
                assert!(made.success());
            };
            check_kind(name, make_pipe, "named pipe");
            check_kind(name, |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(), "device");
        }
    }

    #[test]
    fn kubeconfig_of_more_than_the_limit_is_refused() {
        let folder = Scratch::new("kubeconfig").unwrap();
        let path = folder.write("kubeconfig", vec![b'#'; MAX_KUBECONFIG_BYTES + 1]);
        let error = load(&path).unwrap_err().to_string();
        assert!(error.ends_with("has 1048577 bytes, expected at most 1048576"), "{error}");
    }

    #[test]
    fn secrets_are_not_printed() {
        let folder = Scratch::new("kubeconfig").unwrap();
        let text = kubeconfig(&format!("server: https://h, {}", ca_data()), "token: secret-token");
        let loaded = load(&folder.write("kubeconfig", text.as_bytes())).unwrap();
        assert!(!format!("{loaded:?}").contains("secret-token"));
    }
}
