//! `kedge-hub node-kubeconfig`: credentials for a node, beside the running hub or without it.
//!
//! Always holds: the command makes no credentials for a revoked node, because no hub would accept them; a
//! file with credentials is readable by its owner alone from its first byte on. Left to others: the
//! credentials (`pki`), and the list of revoked nodes (`kedge_hub_core::identity::denied`).

use std::fs;
use std::path::{Path, PathBuf};

use kedge_hub_core::identity::denied::{DENY_LIST_NAME, DENY_LIST_NAMESPACE, DenyList, explanation};
use kedge_hub_core::kinds::CONFIG_MAP;
use time::OffsetDateTime;

use crate::flags::NodeKubeconfig;
use crate::pki::{self, server_url};
use crate::store::look;

/// The output of the command.
#[derive(Debug)]
pub struct Printed {
    pub out: String,
    /// Warnings for people; the command has succeeded all the same.
    pub warnings: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The node is revoked, or the directory is not that of a hub that was started once, or a file cannot be
/// written.
pub fn run(options: &NodeKubeconfig) -> Result<Printed, String> {
    let NodeKubeconfig { name, data_dir, advertise, out, life } = options;
    if let Some(why) = refusal(data_dir, name)? {
        return Err(why);
    }
    let url = advertise.as_ref().map(|to| server_url(&to.host, to.port.unwrap_or_default()));
    let mut warnings = Vec::new();
    if url.is_none() {
        warnings.extend(guess(data_dir, &format!("does node {name} find")));
    }
    let file = out.as_deref().map(|path| checked("--out", path)).transpose()?;
    let made = pki::node_kubeconfig(data_dir, name, url, *life, OffsetDateTime::now_utc());
    let text = made.map_err(|error| error.to_string())?;
    let Some(path) = file else { return Ok(Printed { out: text, warnings }) };
    pki::write_secret(&path, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(Printed {
        out: format!("{}: credentials of node {name}, keep them secret\n", path.display()),
        warnings,
    })
}

/// The warning that the address of the hub is a guess, if it is; `finds`: the beginning of its question.
pub(crate) fn guess(data_dir: &Path, finds: &str) -> Option<String> {
    let guess = pki::guessed_url(data_dir)?;
    Some(format!(
        "the hub's address is {guess}, this machine's own name: {finds} the hub by it? If not, start the hub with --advertise \
         HOST[:PORT], or give --advertise HOST:PORT here"
    ))
}

/// The reason why a node gets no credentials; `None` if it may have them.
pub(crate) fn refusal(data_dir: &Path, name: &str) -> Result<Option<String>, String> {
    let found = look::object(data_dir, &CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
    let found = found.map_err(|error| format!("cannot tell whether node {name} is revoked: {error}"))?;
    let Some(config_map) = found.filter(|config_map| DenyList::read(config_map).is_revoked(name)) else {
        return Ok(None);
    };
    let entry = explanation(&config_map, name);
    let word = |field: &str| entry[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let told = [
        word("revoked").map(|time| format!(" on {time}")),
        word("by").map(|by| format!(" by {by}")),
        word("reason").map(|reason| format!(" ({})", reason.replace(char::is_control, " "))),
    ];
    let told: String = told.into_iter().flatten().collect();
    Ok(Some(format!(
        "node {name} was revoked{told}: the hub refuses all credentials of this name, so none were made; to let the node return, run \
         `kedge-hub node readmit {name}` first, then this again"
    )))
}

/// Checks that the file at the path of this flag may be replaced; returns its path.
pub(crate) fn checked(flag: &str, path: &Path) -> Result<PathBuf, String> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(format!("{flag} is {}, which is no file; give the name of a file", path.display()))
        }
        // a path that cannot be examined cannot be written either, and the write returns the reason
        _ => Ok(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use kedge_hub_core::identity::denied::Change;
    use kedge_rig::Scratch;
    use serde_json::json;

    use super::*;
    use crate::Hub;
    use crate::flags::Advertised;
    use crate::pki::Pki;

    /// The directory of a hub that has been started once.
    fn started(purpose: &str) -> Scratch {
        let data = Scratch::new(purpose).unwrap();
        publish(&data);
        data
    }

    fn publish(data: &Scratch) {
        let now = OffsetDateTime::now_utc();
        let pki = Pki::open(data, &["localhost".to_owned()], now).unwrap();
        pki.publish("https://[::1]:6443", "https://hubs-machine:6443", now).unwrap();
    }

    fn options(data: &Scratch) -> NodeKubeconfig {
        NodeKubeconfig {
            name: "edge-1".to_owned(),
            data_dir: data.path().to_owned(),
            advertise: None,
            out: None,
            life: None,
        }
    }

    #[test]
    fn file_with_credentials_is_its_owners_alone() {
        let data = started("hub-kubeconfig-out");
        let path = data.join("edge-1.kubeconfig");
        // a world-readable file is replaced, not written into
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let printed = run(&NodeKubeconfig { out: Some(path.clone()), ..options(&data) }).unwrap();
        assert!(printed.out.contains("edge-1.kubeconfig: credentials of node edge-1"), "{}", printed.out);
        assert!(!printed.out.contains("client-key-data"), "{}", printed.out);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().contains("client-key-data"));
        for (no_file, why) in [(data.path().to_owned(), "no file"), (data.join("none/x"), "none/x")] {
            let error = run(&NodeKubeconfig { out: Some(no_file), ..options(&data) }).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        std::os::unix::fs::symlink("/dev/null", data.join("link")).unwrap();
        assert!(run(&NodeKubeconfig { out: Some(data.join("link")), ..options(&data) }).is_err());
    }

    #[test]
    fn guessed_address_is_warned_about() {
        let data = started("hub-kubeconfig-guess");
        assert!(run(&options(&data)).unwrap().warnings.is_empty());
        pki::note_guess(&data, true).unwrap();
        let warnings = run(&options(&data)).unwrap().warnings;
        assert!(
            warnings[0].contains("https://hubs-machine:6443") && warnings[0].contains("--advertise"),
            "{warnings:?}"
        );
        let advertise = Some(Advertised { host: "hub.example".to_owned(), port: Some(1) });
        assert!(run(&NodeKubeconfig { advertise, ..options(&data) }).unwrap().warnings.is_empty());
        pki::note_guess(&data, false).unwrap();
        assert!(run(&options(&data)).unwrap().warnings.is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn revoked_node_gets_no_credentials() {
        // in the order in which a hub creates them: keys without a store would count as a lost store
        let data = Scratch::new("hub-kubeconfig-revoked").unwrap();
        let hub = Hub::open(&data).unwrap();
        publish(&data);
        assert!(run(&options(&data)).is_ok());
        let mut list = json!({"metadata": {"name": DENY_LIST_NAME, "namespace": DENY_LIST_NAMESPACE}});
        let change = Change { by: "admin", time: "2026-11-30T00:00:00Z", issue: 1, reason: "stolen" };
        change.revoke(&mut list, "edge-1");
        hub.create(&CONFIG_MAP, list).await.unwrap();
        let lines =
            || fs::read_to_string(data.join("audit.log")).unwrap_or_default().matches("issue").count();
        let before = lines();
        // beside the running hub, and without it
        for round in 0..2 {
            let error = run(&options(&data)).unwrap_err();
            for part in ["on 2026-11-30T00:00:00Z by admin (stolen)", "kedge-hub node readmit edge-1"] {
                assert!(error.contains(part), "{round}: {error}");
            }
            hub.close();
        }
        assert_eq!(lines(), before, "no credentials were made");
        assert!(run(&NodeKubeconfig { name: "edge-2".to_owned(), ..options(&data) }).is_ok());
    }
}
