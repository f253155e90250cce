//! Links to logs, as a kubelet makes them for collectors:
//! `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`, beside `podLogsDir`.
//!
//! Always holds: a container has a link from its creation to its removal; a start makes what is missing and
//! removes links that lead nowhere. A link that cannot be made keeps no container from running. Leaves to
//! others: the logs.

use kedge_core::pods::ContainerKey;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Longest name of a file.
const NAME_BYTES: usize = 255;
/// Most entries that a start looks at.
const ENTRIES: usize = 20_000;

/// The directory of the links.
fn place(logs: &Path) -> PathBuf {
    logs.with_file_name("containers")
}

/// `pod_logs`: `NAMESPACE_NAME_UID` below `podLogsDir`. Collectors take a container's ID to be 64 hexadecimal
/// digits.
fn link_of(pod_logs: &Path, key: &ContainerKey) -> Option<PathBuf> {
    let mut parts = pod_logs.file_name()?.to_str()?.split('_');
    let (namespace, pod) = (parts.next()?, parts.next()?);
    let id = super::network::hex_digest(&ring::digest::SHA256, &key.id());
    let rest = format!("_{namespace}_{}-{id}.log", key.container);
    let pod = &pod[..pod.len().min(NAME_BYTES.saturating_sub(rest.len()))];
    Some(place(pod_logs.parent()?).join(format!("{pod}{rest}")))
}

/// Makes the link of a container whose log is this file.
pub(super) fn make(pod_logs: &Path, key: &ContainerKey, log: &Path) {
    let Some(link) = link_of(pod_logs, key) else { return };
    let made = || -> io::Result<()> {
        if fs::read_link(&link).is_ok_and(|target| target == log) {
            return Ok(());
        }
        fs::create_dir_all(link.parent().unwrap_or(pod_logs))?;
        remove_file(&link)?;
        symlink(log, &link)
    };
    if let Err(error) = made() {
        log::warn!("link {} to a log: {error}", link.display());
    }
}

pub(super) fn remove(pod_logs: &Path, key: &ContainerKey) {
    if let Some(link) = link_of(pod_logs, key)
        && let Err(error) = remove_file(&link)
    {
        log::warn!("remove {}: {error}", link.display());
    }
}

/// Removes links into `logs` that lead nowhere.
pub(super) fn sweep(logs: &Path) {
    for entry in fs::read_dir(place(logs)).into_iter().flatten().flatten().take(ENTRIES) {
        let path = entry.path();
        if fs::read_link(&path).is_ok_and(|target| target.starts_with(logs) && !target.exists()) {
            let _ = remove_file(&path);
        }
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
        .or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_core::pods::PodUid;
    use kedge_rig::Scratch;

    #[test]
    fn links_are_as_a_kubelets_and_go_with_their_containers() {
        let scratch = Scratch::new("log-links").unwrap();
        let logs = scratch.join("pods");
        let key = |name: &str| ContainerKey {
            pod: PodUid::new("uid-1").unwrap(),
            container: name.into(),
            attempt: 3,
        };
        let names = || -> Vec<String> {
            let entries = fs::read_dir(scratch.join("containers")).unwrap().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
        };
        let pod_logs = logs.join("prod_web-0_uid-1");
        let log = scratch.write("pods/prod_web-0_uid-1/main/3.log", "text");
        for _ in 0..2 {
            make(&pod_logs, &key("main"), &log);
        }
        let [name] = &names()[..] else { panic!("{:?}", names()) };
        let id = name.strip_prefix("web-0_prod_main-").unwrap().strip_suffix(".log").unwrap();
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        assert_eq!(fs::read_to_string(scratch.join("containers").join(name)).unwrap(), "text");
        sweep(&logs);
        assert_eq!(names().len(), 1);
        remove(&pod_logs, &key("main"));
        remove(&pod_logs, &key("main"));
        assert_eq!(names(), [""; 0]);

        // what leads nowhere goes, but for what others made
        make(&pod_logs, &key("gone"), &logs.join("prod_web-0_uid-1/gone/3.log"));
        symlink("/nonexistent", scratch.join("containers/others")).unwrap();
        sweep(&logs);
        assert_eq!(names(), ["others"]);
        let long = logs.join(format!("prod_{}_uid-1", "p".repeat(253)));
        make(&long, &key(&"c".repeat(63)), &log);
        assert!(names().iter().any(|name| name.len() == 255), "{:?}", names());
    }
}
