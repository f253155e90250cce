//! The static pods of this node, as their files and their records say.

use crate::config::digest::Digest;
use crate::pods::event::Exit;
use crate::pods::failing::Failed;
use crate::sorted::SortedMap;
use kedge_api::Timestamp;

/// The content of a static pod's record.
#[derive(Debug, Clone)]
pub(crate) struct StaticResults {
    /// The path of its file; `None` if the agent that wrote the record did not note it.
    pub(crate) path: Option<String>,
    pub(crate) results: SortedMap<String, Exit>,
    pub(crate) failed: Option<Failed>,
    pub(crate) active_since: Option<Timestamp>,
    pub(crate) durable: Digest,
}
