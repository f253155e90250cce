//! Limits per caller: connections, concurrent requests, and requests per second, counted by identity, or by address for anonymous
//! callers.
//!
//! Always holds: a refusal is due to the caller's own excess or to the whole hub's ([`MAX_IN_FLIGHT`]), so a misbehaving node slows
//! down only itself. Administrators have no rate limit: they are few, trusted, and load the hub on purpose when they measure it. A
//! refusal is 429 (the caller's own limit) or 503 (the hub's), with Retry-After.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::Identity;

/// Connections of one node. An agent has one for each of its handful of streams; a reboot may leave some half-open.
const NODE_CONNECTIONS: usize = 64;
/// Connections of one administrator, whose credential scripts and dashboards share.
const ADMIN_CONNECTIONS: usize = 8192;
/// Connections of any other caller with a certificate.
const OTHER_CONNECTIONS: usize = 2048;
/// Anonymous connections from one address: load balancers that ask for health, a site's nodes behind one router.
const ANONYMOUS_CONNECTIONS: usize = 256;
/// Anonymous connections in total, a quarter of all: a caller with many addresses locks out only other anonymous ones.
const ALL_ANONYMOUS_CONNECTIONS: usize = 4096;
/// Callers with an entry of their own; further anonymous callers share one. Single IPv6 addresses are free to an attacker, but this
/// many networks are not. They take a few MiB.
const MAX_CALLERS: usize = 32_768;
/// Requests of one node that are being answered; established watches do not count.
const NODE_IN_FLIGHT: usize = 32;
/// Requests that are being answered in all. Each holds a body of up to 3 MiB; above the limit the hub refuses at once.
const MAX_IN_FLIGHT: usize = 2048;
/// Sustained rate of a caller without the admin group (token bucket refill), requests per second. An agent makes less than one.
const RATE: f64 = 50.0;
/// Size of that token bucket: a node that starts many pods at once.
const BURST: f64 = 1000.0;
/// How often callers without a connection and with a full bucket are removed.
const REMEMBERED: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Limits {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    callers: HashMap<Box<str>, Caller>,
    in_flight: usize,
    /// Anonymous connections.
    anonymous: usize,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Caller {
    connections: usize,
    in_flight: usize,
    tokens: f64,
    counted: Instant,
}

/// The limits of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallerClass {
    Admin,
    Node,
    Other,
    Anonymous,
}

impl CallerClass {
    fn connections(self) -> usize {
        match self {
            CallerClass::Admin => ADMIN_CONNECTIONS,
            CallerClass::Node => NODE_CONNECTIONS,
            CallerClass::Other => OTHER_CONNECTIONS,
            CallerClass::Anonymous => ANONYMOUS_CONNECTIONS,
        }
    }
}

fn class_of(identity: Option<&Identity>) -> CallerClass {
    match identity {
        Some(identity) if identity.is_admin() => CallerClass::Admin,
        Some(identity) if identity.node().is_some() => CallerClass::Node,
        Some(_) => CallerClass::Other,
        None => CallerClass::Anonymous,
    }
}

/// The key of a caller: its user name, after ` admin ` for administrators, so that a certificate for another user of an
/// administrator's name has an entry of its own; or a blank and, for anonymous ones, the IPv4 address or the /64 network of an IPv6
/// address. No user name begins with a blank: see `certificate_request`.
fn name(identity: Option<&Identity>, from: IpAddr) -> Cow<'_, str> {
    match (identity, from.to_canonical()) {
        (Some(identity), _) if identity.is_admin() => format!(" admin {}", identity.user).into(),
        (Some(identity), _) => Cow::Borrowed(&identity.user),
        (None, IpAddr::V4(address)) => format!(" {address}").into(),
        (None, IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            format!(" {a:x}:{b:x}:{c:x}:{d:x}").into()
        }
    }
}

/// A counted connection or request; uncounted when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limits: Arc<Limits>,
    caller: Box<str>,
    counted: Counted,
}

#[derive(Debug, PartialEq, Eq)]
enum Counted {
    Connection,
    AnonymousConnection,
    Request,
}

impl Limits {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // the counters are valid even after a panic of another thread
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection from an address; 429 when the caller has too many.
    pub(crate) fn connect(
        self: &Arc<Self>,
        identity: Option<&Identity>,
        from: IpAddr,
    ) -> Result<Permit, ApiError> {
        let class = class_of(identity);
        let mut inner = self.lock();
        if class == CallerClass::Anonymous && inner.anonymous >= ALL_ANONYMOUS_CONNECTIONS {
            return Err(ApiError::too_many_requests(
                "too many anonymous connections, please try again later",
            ));
        }
        let (name, caller) = inner.caller(&name(identity, from), class, Instant::now());
        if caller.connections >= class.connections() {
            return Err(ApiError::too_many_requests(
                "too many connections of this identity, please try again later",
            ));
        }
        caller.connections += 1;
        let counted =
            if class == CallerClass::Anonymous { Counted::AnonymousConnection } else { Counted::Connection };
        inner.anonymous += usize::from(counted == Counted::AnonymousConnection);
        Ok(Permit { limits: Arc::clone(self), caller: name, counted })
    }

    /// Counts a request until the answer begins.
    pub(crate) fn request(
        self: &Arc<Self>,
        identity: Option<&Identity>,
        from: IpAddr,
        now: Instant,
    ) -> Result<Permit, ApiError> {
        let class = class_of(identity);
        let mut inner = self.lock();
        if inner.in_flight >= MAX_IN_FLIGHT {
            return Err(ApiError::unavailable(
                "too many requests are being answered, please try again later",
            ));
        }
        let (name, caller) = inner.caller(&name(identity, from), class, now);
        if class == CallerClass::Node && caller.in_flight >= NODE_IN_FLIGHT {
            return Err(ApiError::too_many_requests(
                "too many requests of this identity at once, please try again later",
            ));
        }
        if class != CallerClass::Admin {
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
        Ok(Permit { limits: Arc::clone(self), caller: name, counted: Counted::Request })
    }
}

impl Inner {
    /// The entry that counts a caller, and its key.
    fn caller(&mut self, name: &str, class: CallerClass, now: Instant) -> (Box<str>, &mut Caller) {
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) > REMEMBERED) {
            self.swept = Some(now);
            self.callers.retain(|_, caller| {
                caller.connections > 0
                    || caller.in_flight > 0
                    || now.saturating_duration_since(caller.counted) < REMEMBERED
            });
        }
        // the number of verified names is limited by the hub's signatures; addresses are not limited
        let full = class == CallerClass::Anonymous && self.callers.len() >= MAX_CALLERS;
        let name = if full && !self.callers.contains_key(name) { "" } else { name };
        let new = Caller { connections: 0, in_flight: 0, tokens: BURST, counted: now };
        (name.into(), self.callers.entry(name.into()).or_insert(new))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut inner = self.limits.lock();
        match self.counted {
            Counted::Connection => {}
            Counted::AnonymousConnection => inner.anonymous = inner.anonymous.saturating_sub(1),
            Counted::Request => inner.in_flight = inner.in_flight.saturating_sub(1),
        }
        if let Some(caller) = inner.callers.get_mut(&self.caller) {
            let count = if self.counted == Counted::Request {
                &mut caller.in_flight
            } else {
                &mut caller.connections
            };
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn node(name: &str) -> Identity {
        Identity::new(&format!("system:node:{name}"), &["system:nodes"])
    }

    #[test]
    fn misbehaving_node_slows_down_only_itself() {
        let (limits, start) = (Arc::new(Limits::default()), Instant::now());
        let (mad, calm) = (node("mad"), node("calm"));
        let ask = |caller: &Identity, now| {
            limits.request(Some(caller), HERE, now).map(drop).map_err(|error| error.code)
        };
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
        let admin = Identity::new("admin", &["system:masters"]);
        assert!((0..5000).all(|_| ask(&admin, start).is_ok()));
        let namesake = Identity::new("admin", &["people"]);
        assert!((0..1000).all(|_| ask(&namesake, start).is_ok()));
        assert_eq!((ask(&namesake, start), ask(&admin, start)), (Err(429), Ok(())));
    }

    #[test]
    fn dropped_connections_and_requests_are_uncounted() {
        let (limits, now) = (Arc::new(Limits::default()), Instant::now());
        let node = node("n");
        let held: Vec<_> =
            (0..NODE_CONNECTIONS).map(|_| limits.connect(Some(&node), HERE).unwrap()).collect();
        assert_eq!(limits.connect(Some(&node), HERE).unwrap_err().code, 429);
        limits.connect(None, HERE).unwrap();
        drop(held);
        limits.connect(Some(&node), HERE).unwrap();
        let held: Vec<_> =
            (0..NODE_IN_FLIGHT).map(|_| limits.request(Some(&node), HERE, now).unwrap()).collect();
        assert_eq!(limits.request(Some(&node), HERE, now).unwrap_err().code, 429);
        drop(held);
        limits.request(Some(&node), HERE, now).unwrap();
        let admin = Identity::new("admin", &["system:masters"]);
        let all: Vec<_> =
            (0..MAX_IN_FLIGHT).map(|_| limits.request(Some(&admin), HERE, now).unwrap()).collect();
        let refused = limits.request(Some(&node), HERE, now).unwrap_err();
        assert_eq!((refused.code, refused.retry_after_secs.is_some()), (503, true));
        drop(all);
        assert_eq!(limits.lock().in_flight, 0);
        // callers without open connections are removed
        limits.request(Some(&node), HERE, now + REMEMBERED * 3).unwrap();
        assert_eq!(limits.lock().callers.len(), 1);
    }
    #[test]
    fn anonymous_callers_are_counted_by_network() {
        let (limits, now) = (Arc::new(Limits::default()), Instant::now());
        let from = |text: &str| -> IpAddr { text.parse().unwrap() };
        let asks = |from: IpAddr| limits.request(None, from, now).map(drop).map_err(|error| error.code);
        while asks(from("192.0.2.1")).is_ok() {}
        for (same, expect) in [
            ("192.0.2.1", Err(429)),
            ("::ffff:192.0.2.1", Err(429)),
            ("192.0.2.2", Ok(())),
            ("2001:db8::1", Ok(())),
        ] {
            assert_eq!(asks(from(same)), expect, "{same}");
        }
        while asks(from("2001:db8::1")).is_ok() {}
        assert_eq!(asks(from("2001:db8::ffff:0:0:2")), Err(429), "a network of one owner");
        assert_eq!(asks(from("2001:db8:0:1::1")), Ok(()));
        let identified = node("n");
        limits.request(Some(&identified), from("192.0.2.1"), now).unwrap();

        let held: Vec<_> =
            (0..ANONYMOUS_CONNECTIONS).map(|_| limits.connect(None, from("192.0.2.1")).unwrap()).collect();
        assert_eq!(limits.connect(None, from("192.0.2.1")).unwrap_err().code, 429);
        limits.connect(None, from("192.0.2.2")).unwrap();
        drop(held);
        let all: Vec<_> = (0..ALL_ANONYMOUS_CONNECTIONS)
            .map(|number| limits.connect(None, IpAddr::from((number as u32).to_be_bytes())).unwrap())
            .collect();
        assert_eq!(limits.connect(None, from("198.51.100.1")).unwrap_err().code, 429);
        limits.connect(Some(&identified), from("198.51.100.1")).unwrap();
        drop(all);
        assert_eq!(limits.lock().anonymous, 0);
        limits.connect(None, from("198.51.100.1")).unwrap();
    }

    #[test]
    fn flood_of_addresses_shares_one_entry() {
        let (limits, now) = (Arc::new(Limits::default()), Instant::now());
        for number in 0..MAX_CALLERS + 100 {
            let from = IpAddr::from((number as u32).to_be_bytes());
            limits.request(None, from, now).unwrap();
        }
        assert_eq!(limits.lock().callers.len(), MAX_CALLERS + 1);
        limits.request(Some(&node("n")), HERE, now).unwrap();
        assert_eq!(
            limits.lock().callers.len(),
            MAX_CALLERS + 2,
            "an identified caller has an entry of its own"
        );
    }
}
