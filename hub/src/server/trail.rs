//! The facts of a request that its line in the audit log needs beside its head, as they are noted while it is
//! answered.

use crate::audit::Note;
use crate::fresh::fresh;
use crate::server::leases::Holding;
use crate::server::request::{header, wants_minimal};
use crate::server::respond::Body;
use http::{HeaderMap, HeaderValue, Response};
use serde_json::Value;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use time::OffsetDateTime;

/// Upstream's name of the header with the id of a request.
pub(super) const AUDIT_ID: &str = "audit-id";

/// Longest request id that is taken from the client; upstream cuts there.
pub(super) const AUDIT_ID_BYTES: usize = 64;

/// Names of a collection's objects that are collected for its line, which cuts them.
pub(super) const NAMES: usize = 512;

/// The name that a created object got.
#[derive(Debug, Clone)]
pub(super) struct CreatedName(pub(super) Box<str>);

/// The facts of a request beside its head, for its line.
#[derive(Debug)]
pub(super) struct Trail {
    number: u64,
    pub(crate) from: IpAddr,
    pub(crate) received: OffsetDateTime,
    pub(crate) notes: Mutex<Vec<(Note, String)>>,
    /// The latest decision about a Lease.
    pub(crate) lease: Mutex<Option<Holding>>,
}

impl Trail {
    pub(super) fn new(from: IpAddr) -> Trail {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Trail {
            number,
            from,
            received: OffsetDateTime::now_utc(),
            notes: Mutex::default(),
            lease: Mutex::default(),
        }
    }

    /// Where the request comes from.
    pub(super) fn from(&self) -> IpAddr {
        self.from
    }

    /// The client's own name for its request, or a new one.
    pub(crate) fn id(&self, headers: &HeaderMap) -> String {
        match header(headers, AUDIT_ID) {
            own if own.is_empty() || own.len() > AUDIT_ID_BYTES => self.new_id(),
            own => own.to_owned(),
        }
    }

    /// A UUID: random for each start of the hub, then the number of the request.
    pub(crate) fn new_id(&self) -> String {
        static START: LazyLock<u64> = LazyLock::new(|| {
            let random = fresh().map_or([0; 21], |fresh| fresh.random);
            random.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte))
        });
        let (start, number) = (*START, self.number);
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            start >> 32,
            start >> 16 & 0xffff,
            start >> 4 & 0xfff,
            0x8000 | start & 0xf,
            number & 0xffff_ffff_ffff
        )
    }

    /// Adds the request's id to its answer, except for clients that asked for short answers: most requests
    /// are renewals of nodes, and their answers pass metered links.
    pub(super) fn name(&self, response: &mut Response<Body>, headers: &HeaderMap) {
        if !wants_minimal(headers)
            && let Ok(id) = HeaderValue::try_from(self.id(headers))
        {
            response.headers_mut().insert(AUDIT_ID, id);
        }
    }

    fn note(&self, note: Note, text: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push((note, text));
    }

    /// The objects of a collection that a request acts on, also if it fails half way.
    pub(super) fn acts_on<'a>(&self, names: impl ExactSizeIterator<Item = &'a str>) {
        self.note(Note::Count, names.len().to_string());
        let names: Vec<&str> = names.take(NAMES).collect();
        self.note(Note::Names, names.join(","));
    }

    /// Notes that the answer contains a token.
    pub(super) fn issues(&self, id: &str, audiences: &[String], expires: &str) {
        self.note(Note::IssuedCredential, format!("JTI={id}"));
        self.note(Note::Audiences, audiences.join(","));
        self.note(Note::NotAfter, expires.to_owned());
    }

    /// Notes a violation of the namespace's audit level; the request is allowed all the same.
    pub(super) fn violates(&self, what: &str) {
        self.note(Note::PodSecurity, what.to_owned());
    }

    /// Notes that the request changes nothing.
    pub(super) fn dry_run(&self) {
        self.note(Note::DryRun, "true".to_owned());
    }

    /// Notes the change that the request makes to a Lease, if it is stored.
    pub(super) fn leases(&self, old: Option<&Value>, new: &Value) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(Holding::of(old, new));
    }
}
