//! How much of the hub one caller may take: connections, requests at once, and requests a second, counted by identity.
//!
//! Always holds: what one caller is refused was its own excess, or the whole hub's ([`MAX_IN_FLIGHT`]); so a node that goes mad slows
//! itself down and nobody else. Administrators have no rate: they are few, trusted, and load the hub on purpose when they
//! measure it. A refusal is 429 (the caller's own limit) or 503 (everybody's), with Retry-After.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::auth::Identity;
use crate::status::ApiError;

/// Connections of one node. An agent has one for each of its handful of streams; a reboot may leave some half-open.
const NODE_CONNECTIONS: usize = 64;
/// Connections of one administrator, under whom scripts and dashboards run.
const ADMIN_CONNECTIONS: usize = 8192;
/// Connections of anybody else; all anonymous callers together count as one.
const OTHER_CONNECTIONS: usize = 2048;
/// Requests of one node that are being answered; watches do not count once they stand.
const NODE_IN_FLIGHT: usize = 32;
/// Requests that are being answered in all. Each holds a body of up to 3 MiB; above it the hub says so at once.
const MAX_IN_FLIGHT: usize = 2048;
/// Requests a second that a caller who is no administrator may make for ever. An agent makes less than one.
const RATE: f64 = 50.0;
/// And so many more in a burst: a node that starts many pods at once.
const BURST: f64 = 1000.0;
/// Callers that are remembered without a connection, until their bucket is full again.
const REMEMBERED: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    callers: HashMap<Box<str>, Caller>,
    in_flight: usize,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Caller {
    connections: usize,
    in_flight: usize,
    tokens: f64,
    counted: Instant,
}

/// Which limits a caller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Admin,
    Node,
    Other,
}

fn sort(identity: Option<&Identity>) -> Sort {
    match identity {
        Some(identity) if identity.is_admin() => Sort::Admin,
        Some(identity) if identity.node().is_some() => Sort::Node,
        _ => Sort::Other,
    }
}

fn name(identity: Option<&Identity>) -> &str {
    identity.map_or("", |identity| &identity.user)
}

/// Gives back a connection or a request when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    limits: Arc<Limits>,
    caller: Box<str>,
    request: bool,
}

impl Limits {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // counters stay right even if somebody panicked beside them
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection; 429 when the caller has too many.
    pub(crate) fn connect(self: &Arc<Self>, identity: Option<&Identity>) -> Result<Taken, ApiError> {
        let most = match sort(identity) {
            Sort::Admin => ADMIN_CONNECTIONS,
            Sort::Node => NODE_CONNECTIONS,
            Sort::Other => OTHER_CONNECTIONS,
        };
        let mut inner = self.lock();
        let caller = inner.caller(name(identity), Instant::now());
        if caller.connections >= most {
            return Err(ApiError::too_many_requests(
                "too many connections of this identity, please try again later",
            ));
        }
        caller.connections += 1;
        Ok(Taken { limits: Arc::clone(self), caller: name(identity).into(), request: false })
    }

    /// Counts a request until the answer begins.
    pub(crate) fn request(
        self: &Arc<Self>,
        identity: Option<&Identity>,
        now: Instant,
    ) -> Result<Taken, ApiError> {
        let sort = sort(identity);
        let mut inner = self.lock();
        if inner.in_flight >= MAX_IN_FLIGHT {
            return Err(ApiError::unavailable(
                "too many requests are being answered, please try again later",
            ));
        }
        let caller = inner.caller(name(identity), now);
        if sort == Sort::Node && caller.in_flight >= NODE_IN_FLIGHT {
            return Err(ApiError::too_many_requests(
                "too many requests of this identity at once, please try again later",
            ));
        }
        if sort != Sort::Admin {
            let passed = now.saturating_duration_since(caller.counted).as_secs_f64();
            caller.tokens = (caller.tokens + passed * RATE).min(BURST);
            caller.counted = now;
            if caller.tokens < 1.0 {
                return Err(ApiError::too_many_requests(
                    "too many requests of this identity, please try again later",
                ));
            }
            caller.tokens -= 1.0;
        }
        caller.in_flight += 1;
        inner.in_flight += 1;
        Ok(Taken { limits: Arc::clone(self), caller: name(identity).into(), request: true })
    }
}

impl Inner {
    fn caller(&mut self, name: &str, now: Instant) -> &mut Caller {
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) > REMEMBERED) {
            self.swept = Some(now);
            self.callers.retain(|_, caller| {
                caller.connections > 0
                    || caller.in_flight > 0
                    || now.saturating_duration_since(caller.counted) < REMEMBERED
            });
        }
        // only verified names get here, so nobody can fill the table
        self.callers.entry(name.into()).or_insert(Caller {
            connections: 0,
            in_flight: 0,
            tokens: BURST,
            counted: now,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut inner = self.limits.lock();
        if self.request {
            inner.in_flight = inner.in_flight.saturating_sub(1);
        }
        if let Some(caller) = inner.callers.get_mut(&self.caller) {
            let count = if self.request { &mut caller.in_flight } else { &mut caller.connections };
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Identity {
        Identity { user: format!("system:node:{name}"), groups: vec!["system:nodes".to_owned()] }
    }

    #[test]
    fn a_node_that_goes_mad_is_slowed_down_alone() {
        let (limits, start) = (Arc::new(Limits::default()), Instant::now());
        let (mad, calm) = (node("mad"), node("calm"));
        let ask = |who: &Identity, now| limits.request(Some(who), now).map(drop).map_err(|error| error.code);
        for _ in 0..1000 {
            assert_eq!(ask(&mad, start), Ok(()));
        }
        assert_eq!(ask(&mad, start), Err(429));
        assert_eq!(ask(&calm, start), Ok(()));
        // one second later it has fifty more
        let later = start + Duration::from_secs(1);
        for _ in 0..50 {
            assert_eq!(ask(&mad, later), Ok(()));
        }
        assert_eq!(ask(&mad, later), Err(429));
        let admin = Identity { user: "admin".to_owned(), groups: vec!["system:masters".to_owned()] };
        assert!((0..5000).all(|_| ask(&admin, start).is_ok()));
    }

    #[test]
    fn what_is_taken_is_given_back() {
        let (limits, now) = (Arc::new(Limits::default()), Instant::now());
        let node = node("n");
        let held: Vec<_> = (0..NODE_CONNECTIONS).map(|_| limits.connect(Some(&node)).unwrap()).collect();
        assert_eq!(limits.connect(Some(&node)).unwrap_err().code, 429);
        limits.connect(None).unwrap();
        drop(held);
        limits.connect(Some(&node)).unwrap();
        let held: Vec<_> = (0..NODE_IN_FLIGHT).map(|_| limits.request(Some(&node), now).unwrap()).collect();
        assert_eq!(limits.request(Some(&node), now).unwrap_err().code, 429);
        drop(held);
        limits.request(Some(&node), now).unwrap();
        let admin = Identity { user: "admin".to_owned(), groups: vec!["system:masters".to_owned()] };
        let all: Vec<_> = (0..MAX_IN_FLIGHT).map(|_| limits.request(Some(&admin), now).unwrap()).collect();
        let refused = limits.request(Some(&node), now).unwrap_err();
        assert_eq!((refused.code, refused.retry_after_secs.is_some()), (503, true));
        drop(all);
        assert_eq!(limits.lock().in_flight, 0);
        // who has nothing open is forgotten
        limits.request(Some(&node), now + REMEMBERED * 3).unwrap();
        assert_eq!(limits.lock().callers.len(), 1);
    }
}
