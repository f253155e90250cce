//! Which page a path below `/fleet` names.

/// The page that a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Overview,
    Nodes,
    Node(String),
    /// Of a DaemonSet.
    Rollout {
        namespace: String,
        name: String,
    },
    /// Of a configuration.
    ConfigRollout(String),
}

impl Place {
    /// From the segments after `/fleet`; `None`: no page has this path.
    pub(crate) fn parse(segments: &[&str]) -> Option<Place> {
        Some(match *segments {
            [] => Place::Overview,
            ["nodes"] => Place::Nodes,
            ["nodes", name] => Place::Node(name.to_owned()),
            ["rollouts", namespace, name] => {
                Place::Rollout { namespace: namespace.to_owned(), name: name.to_owned() }
            }
            ["rollouts", name] => Place::ConfigRollout(name.to_owned()),
            _ => return None,
        })
    }
}
