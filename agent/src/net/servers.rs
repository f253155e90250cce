//! Which API server is used, of those that the configuration (`kedge.servers`) and the kubeconfig name.
//!
//! Always holds: all streams use one server at a time, because versions of one server mean nothing to
//! another. A server is left only for one that answers this node, so an outage of all changes nothing. The
//! first that answers in their order is used, the kubeconfig's own last; while a later one is used, the
//! earlier ones are tried from time to time. Leaves to others: whether a server answers (`client`), the
//! connections (`credentials`).

use crate::locks::locked;
use kedge_core::pods::ApiServer;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::kubeconfig::ServerAddress;

/// Least time between two looks for a server that answers, while requests fail.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How often the earlier ones are looked at while a later one is used.
const LOOK_BACK: Duration = Duration::from_secs(300);

/// The servers of one agent. A clone is the same.
#[derive(Clone, Default)]
pub(crate) struct Servers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    wanted: Mutex<Vec<ServerAddress>>,
    chosen: AtomicUsize,
    /// The one in use, if there are several.
    used: Mutex<Option<ServerAddress>>,
    /// A kubeconfig was read.
    is_known: AtomicBool,
    looks: Mutex<Looks>,
}

#[derive(Default)]
struct Looks {
    is_under_way: bool,
    last: Option<Instant>,
}

impl Servers {
    /// Takes those of the configuration, before the first connection.
    pub(crate) fn set(&self, servers: &[ApiServer]) {
        let address = |server: &ApiServer| ServerAddress {
            host: server.host.clone(),
            port: server.port,
            base_path: String::new(),
        };
        *locked(&self.0.wanted) = servers.iter().map(address).collect();
    }

    /// All of them in order; `own` is the kubeconfig's.
    pub(super) fn all(&self, own: &ServerAddress) -> Vec<ServerAddress> {
        let mut all = locked(&self.0.wanted).clone();
        if !all.contains(own) {
            all.push(own.clone());
        }
        all
    }

    /// The chosen one and its place in the order.
    pub(super) fn chosen(&self, own: &ServerAddress) -> (usize, ServerAddress) {
        self.0.is_known.store(true, Ordering::Release);
        let mut all = self.all(own);
        let at = self.0.chosen.load(Ordering::Acquire).min(all.len() - 1);
        let server = all.swap_remove(at);
        *locked(&self.0.used) = (!all.is_empty()).then(|| server.clone());
        (at, server)
    }

    pub(super) fn choose(&self, at: usize) {
        self.0.chosen.store(at, Ordering::Release);
    }

    /// The one in use, if there are several.
    pub(crate) fn used(&self) -> Option<ApiServer> {
        let used = locked(&self.0.used);
        used.as_ref().map(|used| ApiServer { host: used.host.clone(), port: used.port })
    }

    /// Whether there is a kubeconfig: before a node has joined there is none.
    pub(crate) fn are_known(&self) -> bool {
        self.0.is_known.load(Ordering::Acquire)
    }

    /// How many of them, from the first on, should be looked at now: after an answer, or if `has_failed`
    /// without one. No second look begins while one is under way.
    pub(super) fn begin_look(&self, own: &ServerAddress, has_failed: bool, now: Instant) -> Option<usize> {
        if locked(&self.0.wanted).is_empty() {
            return None;
        }
        let at = self.chosen(own).0;
        let (count, pause) = if has_failed { (self.all(own).len(), LOOK_AGAIN) } else { (at, LOOK_BACK) };
        let mut looks = locked(&self.0.looks);
        let is_due = looks.last.is_none_or(|last| now.saturating_duration_since(last) >= pause);
        if looks.last.is_none() && !has_failed {
            // the first look back comes a while after the start
            looks.last = Some(now);
            return None;
        }
        if count == 0 || looks.is_under_way || !is_due {
            return None;
        }
        (looks.is_under_way, looks.last) = (true, Some(now));
        Some(count)
    }

    pub(super) fn end_look(&self) {
        locked(&self.0.looks).is_under_way = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str) -> ServerAddress {
        ServerAddress { host: host.into(), port: 6443, base_path: String::new() }
    }

    fn servers(hosts: &[&str]) -> Servers {
        let servers = Servers::default();
        let server = |host: &&str| ApiServer { host: (*host).into(), port: 6443 };
        servers.set(&hosts.iter().map(server).collect::<Vec<_>>());
        servers
    }

    #[test]
    fn own_server_is_last_unless_it_is_named() {
        let check = |hosts: &[&str], expect: &[&str]| {
            let all = servers(hosts).all(&address("own"));
            let hosts: Vec<&str> = all.iter().map(|server| server.host.as_str()).collect();
            assert_eq!(hosts, expect);
        };
        check(&[], &["own"]);
        check(&["new", "old"], &["new", "old", "own"]);
        check(&["own", "old"], &["own", "old"]);
        let servers = servers(&["new"]);
        assert_eq!(servers.chosen(&address("own")).1, address("new"));
        servers.choose(1);
        assert_eq!(servers.chosen(&address("own")), (1, address("own")));
        assert_eq!(servers.used().map(|used| used.host).as_deref(), Some("own"));
    }

    #[test]
    fn single_server_is_never_left() {
        let servers = servers(&[]);
        servers.chosen(&address("own"));
        assert_eq!(servers.begin_look(&address("own"), true, Instant::now()), None);
        assert_eq!(servers.used(), None);
    }

    #[test]
    fn looks_come_at_a_pace() {
        let (servers, own, start) = (servers(&["new"]), address("own"), Instant::now());
        let look = |has_failed, secs| {
            let count = servers.begin_look(&own, has_failed, start + Duration::from_secs(secs));
            if count.is_some() {
                servers.end_look();
            }
            count
        };
        assert_eq!(look(false, 0), None, "it uses the first");
        assert_eq!(look(true, 15), Some(2));
        assert_eq!(look(true, 29), None);
        servers.choose(1);
        assert_eq!(look(false, 300), None);
        assert_eq!(look(false, 315), Some(1), "only the earlier ones");
        assert_eq!(servers.begin_look(&own, true, start + Duration::from_secs(400)), Some(2));
        assert_eq!(
            servers.begin_look(&own, true, start + Duration::from_secs(500)),
            None,
            "one is under way"
        );
    }
}
