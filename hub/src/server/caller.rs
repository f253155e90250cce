//! The client of a connection: its credential, its network and its limits.

use crate::server::authentication;
use crate::server::credentials::Seen;
use crate::server::limits::Slot;
use crate::server::machines::Boot;
use crate::server::shared::Server;
use crate::server::stream::Patience;
use kedge_hub_core::identity::{Identity, Standing};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The path below which the Leases of nodes are.
pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/";

pub(super) type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// The client of a connection.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// The identity in the certificate that TLS verified; `None` without one. Each request checks again that
    /// it is still valid.
    pub(super) identity: Arc<Option<Identity>>,
    pub(super) from: IpAddr,
    /// The limits of the certificate's owner, or those of the network of a caller without one.
    pub(super) slot: Arc<Slot>,
    /// The server's record of a node's credential.
    pub(super) seen: Option<Arc<Seen>>,
    /// The machine at the other end, if it is a node's.
    pub(super) boot: Arc<Boot>,
    /// The patience of its socket.
    pub(super) patience: Patience,
    /// True once it has shown a valid credential: its certificate, or a token with a request.
    proven: Arc<AtomicBool>,
}

impl Caller {
    pub(super) fn new(server: &Server, identity: Option<Identity>, from: IpAddr) -> Caller {
        // an invalid credential must not use up the limits of the identity that it names
        let valid = server.credentials.valid(identity.as_ref());
        let returning = identity.as_ref().and_then(|identity| server.credentials.returning(identity));
        if let Some(returning) = &returning {
            authentication::note_returning(server, from, returning);
        }
        let slot = server.limits.slot(valid.or(returning.as_ref()), from, Instant::now());
        let seen = server.credentials.connected(valid);
        let proven = Arc::new(AtomicBool::new(valid.is_some()));
        let (patience, boot) = (Patience::default(), Arc::default());
        Caller { identity: Arc::new(identity), from, slot, seen, boot, patience, proven }
    }

    /// Notes the identity that a request's credential proves.
    pub(super) fn note(&self, identity: Option<&Identity>) {
        if identity.is_some_and(|identity| identity.standing == Standing::Live) {
            self.proven.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the node whose certificate this is renewed its Lease.
    pub(super) fn renewed(&self, server: &Server) {
        if let Some(node) = (*self.identity).as_ref().and_then(Identity::node) {
            self.boot.renewed(&server.machines, &server.hub, node, self.from);
        }
    }

    /// How long its connection is kept unused.
    pub(crate) fn idle(&self) -> Duration {
        if self.proven.load(Ordering::Relaxed) { IDLE } else { STRANGER_IDLE }
    }
}

/// How long an unused connection is kept. Agents renew about every ten seconds, and a status may be sent only
/// every five minutes.
pub(super) const IDLE: Duration = Duration::from_secs(400);

/// The same for a caller that has shown no credential: strangers may have few connections, and an honest
/// client sends its request at once.
pub(super) const STRANGER_IDLE: Duration = Duration::from_secs(15);
