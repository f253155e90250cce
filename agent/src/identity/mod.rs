//! Keys, requests and certificates of this node: what the port's certificate and the node's own have in
//! common.
//!
//! Always holds: a private key never leaves the device. Leaves to others: verification (rustls), and who
//! shows which certificate (`net`, `kubelet_api::server`).

pub(crate) mod certificate;
pub(crate) mod x509;
