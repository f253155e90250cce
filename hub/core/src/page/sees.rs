//! The rights of a page's reader: a part that needs a missing right is left out.

/// The kinds that the reader of a page may list in all namespaces, besides Nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Sees {
    pub pods: bool,
    pub events: bool,
    pub daemon_sets: bool,
    pub config_rollouts: bool,
    pub config_maps: bool,
    pub leases: bool,
    /// The nodes' certificates, as `/kedge/nodes` shows them.
    pub certificates: bool,
    pub certificate_requests: bool,
}

impl Sees {
    /// Everything.
    pub const ALL: Sees = Sees {
        pods: true,
        events: true,
        daemon_sets: true,
        config_rollouts: true,
        config_maps: true,
        leases: true,
        certificates: true,
        certificate_requests: true,
    };
}
