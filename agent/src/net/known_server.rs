//! The address of the API server of the kubeconfig, for pods, which contact it, too.
//!
//! Always holds: the file is read again only when it has changed, and an unreadable one leaves the last known
//! address, because the agent keeps using that as well. Leaves to others: whether a pod can reach it (core).

use super::kubeconfig::Stamp;
use super::servers::Servers;
use crate::identity::files::{AUTHORITIES, KUBECONFIG, name_of};
use crate::identity::in_use;
use kedge_core::pods::ApiServer;
use kedge_platform::linux::read_named_file;
use std::path::PathBuf;

/// The server of a kubeconfig, as last read.
#[derive(Default)]
pub(crate) struct KnownServer {
    kubeconfig: Option<PathBuf>,
    own: PathBuf,
    servers: Servers,
    /// Of the kubeconfig, of the one that this node has made, and of the authorities in place of its own.
    stamps: [Option<Stamp>; 3],
    known: Option<ApiServer>,
    authorities: Option<String>,
}

impl KnownServer {
    pub(crate) fn of(kubeconfig: Option<PathBuf>, own: PathBuf, servers: Servers) -> Self {
        Self { kubeconfig, own, servers, ..Self::default() }
    }

    /// The one in use, if the configuration names several.
    pub(crate) fn chosen(&self) -> Option<ApiServer> {
        self.servers.used()
    }

    /// `None` without a kubeconfig, or if its server's URL has a path, which the variables of a pod cannot
    /// express.
    pub(crate) fn look(&mut self) -> Option<ApiServer> {
        if let Some(chosen) = self.chosen() {
            return Some(chosen);
        }
        self.refresh();
        self.known.clone()
    }

    /// The name of the set of authorities in use; `None` without a kubeconfig.
    pub(crate) fn authorities(&mut self) -> Option<String> {
        self.refresh();
        self.authorities.clone()
    }

    fn refresh(&mut self) {
        let Some(path) = &self.kubeconfig else { return };
        let own = |name: &str| Stamp::of(&self.own.join(name));
        let stamps = [Stamp::of(path), own(KUBECONFIG), own(AUTHORITIES)];
        if stamps != self.stamps {
            self.stamps = stamps;
            if let Ok(kubeconfig) = in_use::load(path, Some(&self.own), &read_named_file) {
                self.authorities = Some(name_of(&kubeconfig.roots));
                let server = kubeconfig.server;
                let is_whole = server.base_path.is_empty();
                self.known = is_whole.then_some(ApiServer { host: server.host, port: server.port });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;

    #[test]
    fn server_is_read_again_when_the_file_changes() {
        let scratch = kedge_rig::Scratch::new("known-server").unwrap();
        let authority = rcgen::generate_simple_self_signed(["hub.lan".to_owned()]).unwrap().cert.pem();
        let ca = base64::engine::general_purpose::STANDARD.encode(authority);
        let write = |server: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  cluster:\n    server: {server}\n    \
                 certificate-authority-data: {ca}\ncontexts:\n- name: a\n  context: {{cluster: a, user: a}}\nusers:\n- name: a\n  \
                 user: {{token: x}}\n"
            );
            scratch.write("new", &text);
            std::fs::rename(scratch.join("new"), scratch.join("kubeconfig")).unwrap();
        };
        let (kubeconfig, own) = (scratch.join("kubeconfig"), scratch.join("pki"));
        let mut known = KnownServer::of(Some(kubeconfig), own, Servers::default());
        assert_eq!(known.look(), None);
        write("https://hub.lan:6443");
        let first = Some(ApiServer { host: "hub.lan".into(), port: 6443 });
        assert_eq!(known.look(), first);
        write("no address at all");
        assert_eq!(known.look(), first, "the agent goes on with what it had, too");
        write("'https://[fd00::1]'");
        assert_eq!(known.look(), Some(ApiServer { host: "fd00::1".into(), port: 443 }));
        write("https://hub.lan/k8s");
        assert_eq!(known.look(), None);
    }
}
