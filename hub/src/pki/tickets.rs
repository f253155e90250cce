//! The tickets by which clients resume TLS sessions. They end with a revocation.
//!
//! A resumed session has the certificate of its first handshake, and each request is judged by that: its
//! issue number, its expiry, the deny list. So a ticket gives nothing that its certificate does not. After a
//! revocation all tickets are void all the same: a denied client has to prove again that it has a key.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::ProducesTickets;

/// Tickets of the current key.
pub(super) struct Tickets {
    current: RwLock<Arc<dyn ProducesTickets>>,
}

impl Tickets {
    pub(super) fn new() -> Result<Tickets, rustls::Error> {
        Ok(Tickets { current: RwLock::new(rustls::crypto::ring::Ticketer::new()?) })
    }

    /// Makes all tickets void that were handed out.
    pub(super) fn end(&self) -> Result<(), rustls::Error> {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) =
            rustls::crypto::ring::Ticketer::new()?;
        Ok(())
    }

    fn current(&self) -> Arc<dyn ProducesTickets> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tickets")
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        self.current().enabled()
    }

    fn lifetime(&self) -> u32 {
        self.current().lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.current().encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.current().decrypt(cipher)
    }
}
