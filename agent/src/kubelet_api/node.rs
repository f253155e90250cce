//! The routes' knowledge of their node, and the transport of a request.

use crate::options::AgentOptions;
use tokio::io::{AsyncRead, AsyncWrite};

/// The transport of a request.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The part of the agent that routes need.
pub struct Node {
    /// The flags of its agent.
    pub agent: AgentOptions,
}
