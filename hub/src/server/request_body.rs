//! The body of a request, as it arrives: bounded in size, in time and in memory.

use crate::server::authentication::Presented;
use crate::server::large::LARGE_BYTES;
use crate::server::limits::{Resource, Slot, Taken, Work};
use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper::body::Incoming;
use kedge_hub_core::api_error::ApiError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

/// Largest request body; upstream's limit.
pub(super) const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// Slowest pace at which a body may arrive: that of links of 32 kbit/s. At this pace a body of 3 MiB takes 13
/// minutes.
pub(super) const BODY_BYTES_PER_SEC: u64 = 4096;

/// The longest delay behind that pace. Bytes that arrived early allow no longer pause, because the hub holds
/// them meanwhile.
pub(super) const BODY_GRACE: Duration = Duration::from_secs(10);

/// Most pieces of a body: chunks, or parts of TLS records. A piece costs the processor as much as kilobytes
/// in one piece, so chunks of one byte would cost seconds. Links of the smallest packets (576 bytes) need
/// 6,000 for the largest body.
pub(super) const MAX_PIECES: usize = 16 * 1024;

/// Pieces that cost as much as a request.
pub(super) const PIECES_PER_TOKEN: usize = 128;

/// Bodies up to this size are not charged to their caller while they are received: a renewal, a review. A
/// connection may hold as much for a head.
pub(super) const SMALL_BYTES: usize = 4096;

/// Most bytes of a refused body that are drained to keep its connection: a whole Node or ConfigMap of usual
/// size.
pub(super) const DRAIN_BYTES: usize = 256 * 1024;

/// Longest time for draining.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A request's body, and the request's share of its caller's limits, which is returned when this is dropped.
///
/// Always holds: a request counts as being answered only once its whole body was received; a body that is
/// being received takes one of its caller's few places and its bytes, and a small one takes nothing beside
/// its connection.
pub(super) struct RequestBody {
    incoming: Incoming,
    slot: Arc<Slot>,
    /// A node's renewal, which takes from no pool.
    renews: bool,
    bytes: Option<Taken>,
    counted: Option<Taken>,
    turn: Option<OwnedSemaphorePermit>,
    presented: Arc<Presented>,
    pieces: Pieces,
}

impl RequestBody {
    pub(super) fn new(
        incoming: Incoming,
        slot: Arc<Slot>,
        renews: bool,
        presented: Arc<Presented>,
    ) -> RequestBody {
        let (bytes, counted, turn) = (None, None, None);
        RequestBody { incoming, slot, renews, bytes, counted, turn, presented, pieces: Pieces::default() }
    }

    /// The credentials of its sender.
    pub(super) fn presented(&self) -> Arc<Presented> {
        Arc::clone(&self.presented)
    }

    /// True for the body of a node's renewal.
    pub(super) fn renews(&self) -> bool {
        self.renews
    }

    /// Counts a request without a body as being answered; any other is counted when its body is complete.
    pub(super) fn begin(&mut self) -> Result<(), ApiError> {
        if self.incoming.is_end_stream() { self.count() } else { Ok(()) }
    }

    fn count(&mut self) -> Result<(), ApiError> {
        let resource = if self.renews { Resource::Renewals } else { Resource::Requests };
        if self.counted.is_none() {
            self.counted = Some(self.slot.take(resource, 1)?);
        }
        Ok(())
    }

    /// The whole body; 401 if its sender's credential is no longer valid. After an error some of it may be
    /// unread.
    pub(super) async fn read(&mut self) -> Result<Bytes, ApiError> {
        let size = self.incoming.size_hint();
        if size.lower() > MAX_BODY_BYTES as u64 {
            return Err(too_large());
        }
        let small = size.exact().is_some_and(|bytes| bytes <= SMALL_BYTES as u64);
        let body = match small {
            true => self.receive(None).await?,
            false => {
                let _place = self.slot.take(Resource::Bodies, 1)?;
                let mut bytes = self.slot.take(Resource::BodyBytes, 0)?;
                let body = self.receive(Some(&mut bytes)).await?;
                self.bytes = Some(bytes);
                body
            }
        };
        self.slot.charge(Work::Parsed(body.len()), std::time::Instant::now());
        if body.len() > LARGE_BYTES {
            self.turn = self.slot.turn().await;
        }
        self.count()?;
        // the credential may have been revoked meanwhile, or expired: the request is judged as if it arrived
        // now
        self.presented.identity()?;
        Ok(body)
    }

    async fn receive(&mut self, mut bytes: Option<&mut Taken>) -> Result<Bytes, ApiError> {
        let mut pace = BodyPace::begin(Instant::now());
        let mut first = Bytes::new();
        let mut whole = Vec::new();
        loop {
            let received = first.len().max(whole.len());
            let data = match timeout_at(pace.deadline, self.incoming.frame()).await {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => {
                    return Err(ApiError::bad_request(format!("the body could not be read: {error}")));
                }
                Ok(None) => return Ok(if whole.is_empty() { first } else { whole.into() }),
                Err(_) => return Err(ApiError::timeout("the body came too slowly")),
            };
            if received + data.len() > MAX_BODY_BYTES {
                return Err(too_large());
            }
            if !self.pieces.one_more(&self.slot) {
                return Err(ApiError::bad_request(format!("the body came in more than {MAX_PIECES} pieces")));
            }
            pace.received(data.len(), Instant::now());
            if let Some(bytes) = &mut bytes {
                bytes.more(data.len())?;
            }
            if received == 0 {
                first = data;
                continue;
            }
            if whole.is_empty() {
                whole.extend_from_slice(&first);
            }
            whole.extend_from_slice(&data);
        }
    }

    /// Drains the rest of a body; returns true if all of it was received. The amount and time are limited:
    /// the connection of a client that sends more, or slowly, is closed. A client that waits for `100
    /// Continue` gets none, so it does not send the body.
    pub(super) async fn drain(&mut self, headers: &HeaderMap) -> bool {
        if self.incoming.is_end_stream() {
            return true;
        }
        let waits = headers.contains_key(http::header::EXPECT);
        if waits || self.incoming.size_hint().lower() > DRAIN_BYTES as u64 {
            return false;
        }
        let draining = async {
            let mut room = DRAIN_BYTES;
            while let Some(frame) = self.incoming.frame().await {
                let taken = frame.ok().map(|frame| frame.data_ref().map_or(0, Bytes::len));
                match taken.and_then(|taken| room.checked_sub(taken)) {
                    Some(rest) if self.pieces.one_more(&self.slot) => room = rest,
                    _ => return false,
                }
            }
            true
        };
        tokio::time::timeout(DRAIN_TIMEOUT, draining).await.unwrap_or(false)
    }
}

/// The number of pieces of a body so far.
#[derive(Debug, Default)]
pub(super) struct Pieces(usize);

impl Pieces {
    /// Counts a piece and charges it to the sender; `false`: there are too many.
    pub(crate) fn one_more(&mut self, sender: &Slot) -> bool {
        self.0 += 1;
        if self.0.is_multiple_of(PIECES_PER_TOKEN) {
            sender.charge(Work::REQUEST, std::time::Instant::now());
        }
        self.0 <= MAX_PIECES
    }
}

/// The time by which the next bytes of a body must arrive.
#[derive(Debug)]
pub(super) struct BodyPace {
    pub(crate) deadline: Instant,
}

impl BodyPace {
    pub(crate) fn begin(now: Instant) -> BodyPace {
        BodyPace { deadline: now + BODY_GRACE }
    }

    /// Notes that bytes arrived.
    pub(crate) fn received(&mut self, bytes: usize, now: Instant) {
        let worth = Duration::from_micros(bytes as u64 * 1_000_000 / BODY_BYTES_PER_SEC);
        self.deadline = (self.deadline + worth).min(now + BODY_GRACE);
    }
}

pub(super) fn too_large() -> ApiError {
    ApiError::too_large(format!("Request entity too large: limit is {MAX_BODY_BYTES}"))
}
