//! This node's name: from the flag, or else from the credential that was issued for it, or else from its
//! host.
//!
//! Always holds: a credential that names a node is valid for that node alone. So without a flag its name is
//! used, and a machine called `raspberrypi` joins as the node that its kubeconfig is for. Leaves to others:
//! the host's own name, which stays a label.

use crate::identity::in_use;
use crate::identity::x509::subject_name;
use crate::net::kubeconfig::Kubeconfig;
use kedge_api::NODE_USER_PREFIX;
use kedge_platform::linux::read_named_file;
use std::path::Path;
use std::time::Duration;

/// How long a start waits for the kubeconfig to be read. If it arrives later and names another node, the
/// agent restarts.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// The name, and whether it comes from the credential.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeName {
    pub(crate) name: String,
    pub(crate) is_credentials: bool,
}

/// `flag`: `--hostname-override`.
pub(crate) fn choose(flag: Option<&str>, credential: Option<String>, host: &str) -> NodeName {
    let is_credentials = flag.is_none() && credential.is_some();
    let name = flag.map(str::to_owned).or(credential).unwrap_or_else(|| host.to_lowercase());
    NodeName { name, is_credentials }
}

/// The node that a kubeconfig is for, if it is for one. Its client certificate names the node; with a token
/// the name of its user entry does, as in a bootstrap kubeconfig.
pub(crate) fn of_kubeconfig(kubeconfig: &Kubeconfig) -> Option<String> {
    let user = match &kubeconfig.client_certificate {
        Some(certificate) => subject_name(certificate.chain.first()?)?,
        None => kubeconfig.user.clone(),
    };
    user.strip_prefix(NODE_USER_PREFIX).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The same for a file; `None` if it is missing, unusable, or its disk does not answer.
pub(crate) fn of_file(path: &Path, own: Option<&Path>) -> Option<String> {
    let (done, read) = crate::queue::sync_channel(1);
    let (path, own) = (path.to_owned(), own.map(Path::to_owned));
    let reading = std::thread::Builder::new().name("kubeconfig".into()).spawn(move || {
        let loaded = in_use::load(&path, own.as_deref(), &read_named_file).ok();
        let _ = done.send(loaded.as_ref().and_then(of_kubeconfig));
    });
    reading.ok()?;
    read.recv_timeout(READ_LIMIT).ok()?
}

/// The complaint if flag and credential name different nodes, and the remedy.
pub(crate) fn conflict(own: &str, credential: Option<&str>, kubeconfig: &str) -> Option<String> {
    let credential = credential.filter(|credential| *credential != own)?;
    Some(format!(
        "the credential in {kubeconfig} is node {credential}'s, this agent calls itself {own}: set --hostname-override {credential} in \
         /etc/default/kedge, or leave the flag out; or take {own}'s kubeconfig"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_the_flags_then_the_credentials_then_the_hosts() {
        let check = |flag: Option<&str>, credential: Option<&str>, name: &str, is_credentials| {
            let expect = NodeName { name: name.into(), is_credentials };
            assert_eq!(choose(flag, credential.map(str::to_owned), "RaspberryPi"), expect);
        };
        check(None, None, "raspberrypi", false);
        check(None, Some("edge-21"), "edge-21", true);
        check(Some("n2"), Some("edge-21"), "n2", false);
    }

    #[test]
    fn token_is_the_nodes_that_its_user_is_called() {
        let scratch = kedge_rig::Scratch::new("node-name").unwrap();
        let check = |user: &str, expect: Option<&str>| {
            let path = scratch.write("kubeconfig", crate::join::bootstrap::tests::kubeconfig(user));
            assert_eq!(of_file(&path, None).as_deref(), expect, "{user}");
        };
        check("system:node:edge-7", Some("edge-7"));
        check("system:node:", None);
        check("tls-bootstrap-token-user", None);
    }

    #[test]
    fn other_name_than_the_credentials_is_a_conflict() {
        let found = |own: &str, credential| conflict(own, credential, "/k");
        assert_eq!(found("n2", None), None);
        assert_eq!(found("n2", Some("n2")), None);
        let why = found("n2", Some("edge-21")).unwrap();
        assert!(
            why.contains("is node edge-21's, this agent calls itself n2: set --hostname-override edge-21")
        );
    }
}
