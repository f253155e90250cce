//! What the routes know of their node, and what a request may arrive on.

use crate::options::AgentOptions;
use tokio::io::{AsyncRead, AsyncWrite};

/// What a request may arrive on.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What routes know of their node.
pub struct Node {
    /// The flags of its agent.
    pub agent: AgentOptions,
}
