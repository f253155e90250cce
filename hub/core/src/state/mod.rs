//! The hub's state: all objects, their watchers, and the order of their changes.
//!
//! Owns: the index of all objects and their watchers ([`Index`]), and the order of writes ([`Order`]): preconditions, revisions and
//! their reservation, what belongs into the next durable commit, renewals that are only in memory.
//! Always holds: a durable change becomes visible after the commit that holds it; a renewal at once; revisions rise, also over a crash.
//! Leaves to others: the durable store itself, its thread, locks and channels. A program with one thread may own both parts:
//! stage a batch of writes, make its commit durable however it likes, then publish what [`Order::committed`] returns.

mod index;
mod order;

pub use index::{Changed, Index, MAX_WATCHES, Page, Query, Sink, Start, TooOld, WatchId, WatchRefused};
pub use order::{
    Batch, Change, Commit, Expect, FLUSH, MAX_OBJECT_BYTES, Marks, Order, RESERVE, Record, Restored, Write,
    WriteError, restore,
};
