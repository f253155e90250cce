//! The bootstrap kubeconfig: everything that a new node needs to ask for its certificate, in one file, so
//! that no power cut leaves a token without the node's name.
//!
//! Always holds: its user's entry is called `system:node:NAME`, and the agent takes its name from there.
//! Leaves to others: the request (the agent), a handover at a boot (`provision`).

use crate::errors::chain;
use crate::join::token::Token;
use crate::net::kubeconfig::ServerAddress;
use kedge_api::NODE_USER_PREFIX;
use kedge_platform::Files as _;
use kedge_platform::linux::files;
use std::path::Path;

/// `authorities`: their PEM text in base64.
pub(crate) fn text(server: &ServerAddress, authorities: &str, node: &str, token: &Token) -> String {
    // JSON's quotes are YAML's, too
    let server = serde_json::Value::from(server.url());
    let Token { id, secret } = token;
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: kedge
  cluster:
    server: {server}
    certificate-authority-data: {authorities}
users:
- name: \"{NODE_USER_PREFIX}{node}\"
  user:
    token: \"{id}.{secret}\"
contexts:
- name: kedge
  context:
    cluster: kedge
    user: \"{NODE_USER_PREFIX}{node}\"
current-context: kedge
"
    )
}

/// Puts it in place: after a power cut there is the old file or the new one.
///
/// # Errors
/// With the path.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(format!("{} is no path of a file", path.display()));
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let failed = |error: &dyn std::error::Error| format!("{}: {}", folder.display(), chain(error));
    std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    files(folder).write_durably(Path::new(name), text.as_bytes()).map_err(|error| failed(&error))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::net::kubeconfig::{self, TokenSource};
    use crate::node_name;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use std::os::unix::fs::PermissionsExt as _;

    fn authority() -> String {
        BASE64_STANDARD.encode(rcgen::generate_simple_self_signed(["hub".to_owned()]).unwrap().cert.pem())
    }

    /// One whose user's entry has this name.
    pub(crate) fn kubeconfig(user: &str) -> String {
        let server = kubeconfig::parse_server("https://hub.lan:6443").unwrap();
        let token = Token::parse("abc123.0123456789abcdef").unwrap();
        text(&server, &authority(), "NAME", &token).replace("system:node:NAME", user)
    }

    #[test]
    fn written_file_is_private_and_names_server_node_and_token() {
        let scratch = kedge_rig::Scratch::new("bootstrap").unwrap();
        let path = scratch.join("etc/bootstrap-kubeconfig");
        write(&path, &kubeconfig("system:node:edge-7")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = kubeconfig::load(&path).unwrap();
        assert_eq!(read.server.url(), "https://hub.lan:6443");
        assert!(read.token == TokenSource::Fixed("abc123.0123456789abcdef".into()));
        assert_eq!(node_name::of_kubeconfig(&read).as_deref(), Some("edge-7"));
        let text = kubeconfig("system:node:edge-7");
        assert!(kedge_core::provision::Part::BootstrapKubeconfig.is_plausible(text.as_bytes()));
    }
}
