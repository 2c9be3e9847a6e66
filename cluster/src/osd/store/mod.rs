//! Where objects are kept: what a store promises, and what a transaction can say.
//!
//! A store belongs to one OSD thread. [`Store::apply`] makes a transaction visible to reads at once
//! and returns its number; the transaction is durable when [`Store::committed`] has reached that
//! number. Nobody outside may learn of a transaction before: the OSD holds back every answer that
//! depends on one. Each transaction is atomic: a crash leaves all of it or nothing.

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
pub mod file;
pub mod memory;
#[cfg(any(test, feature = "testing"))]
pub mod slow;

use std::borrow::Cow;
use std::collections::HashSet;

use crate::objecter::msg::{EVersion, HObject, HObjectRef, PgId, ReqId};

use super::object::ObjectInfo;

/// Number of a transaction within a store, counted from 1.
pub type Seq = u64;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: std::io::Error,
    },
    #[error("the store is damaged: {0}")]
    Damaged(String),
    #[error("there is no pg {0} here")]
    NoPg(PgId),
    /// Wrong place or version, or in use.
    #[error("{0}")]
    Refused(String),
    /// An error has come between before; nothing was changed.
    #[error("the store has stopped: {0}")]
    Stopped(String),
}

impl StoreError {
    /// There is no room for a transaction. Nothing was changed, and the store goes on.
    pub fn is_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, StoreError::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Keys and values in ascending order, and whether more would follow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub more: bool,
}

/// A pg's history as far as a repeated request needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PgState {
    /// Of the newest transaction.
    pub last_update: EVersion,
    pub last_user_version: u64,
    /// Newest last, at most [`LOG_LEN`].
    pub log: Vec<LogEntry>,
    /// Removed snapshots that no object has clones for any more, as start and length.
    pub trimmed_snaps: Vec<(u64, u64)>,
}

/// Requests that a pg remembers (`osd_pg_log_dups_tracked` is 3000 in Ceph).
pub const LOG_LEN: usize = 3000;

impl PgState {
    /// What becomes of the histories of two pgs that are merged.
    pub fn merge(&mut self, other: PgState) {
        self.last_update = self.last_update.max(other.last_update);
        self.last_user_version = self.last_user_version.max(other.last_user_version);
        // Both have the entries of before they were split; those must not crowd out others.
        let known: HashSet<_> = self.log.iter().map(|e| (e.reqid, e.version)).collect();
        let new = |e: &LogEntry| !known.contains(&(e.reqid, e.version));
        self.log.extend(other.log.into_iter().filter(new));
        // Stable, so that entries of one pg keep their order whatever they say.
        self.log.sort_by_key(|e| e.version);
        self.log.drain(..self.log.len().saturating_sub(LOG_LEN));
        // A snapshot is trimmed where it is trimmed in both halves.
        let mut both = Vec::new();
        for &(start, len) in &self.trimmed_snaps {
            for &(s, l) in &other.trimmed_snaps {
                let from = start.max(s);
                let to = start.saturating_add(len).min(s.saturating_add(l));
                if from < to {
                    both.push((from, to - from));
                }
            }
        }
        self.trimmed_snaps = both;
    }
}

/// A write that was carried out, or that failed for good.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogEntry {
    pub version: EVersion,
    pub user_version: u64,
    pub reqid: ReqId,
    pub result: i32,
    /// What each operation returned, where the request asked to be told (`RETURNVEC`).
    pub returns: Vec<(i32, Vec<u8>)>,
}

/// What a request changes. Steps take effect in order; objects are named by their place in
/// `objects`.
#[derive(Debug, Default)]
pub struct Transaction<'a> {
    pub log: Option<LogEntry>,
    pub objects: Vec<HObject>,
    pub steps: Vec<Step<'a>>,
    /// New value of [`PgState::trimmed_snaps`].
    pub trimmed_snaps: Option<Vec<(u64, u64)>>,
}

/// A key and its value.
pub type Pair<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// Place of an object in [`Transaction::objects`].
pub type Obj = usize;

#[derive(Debug)]
pub enum Step<'a> {
    /// Makes an empty object unless it is there. Every other step on a missing object makes it too.
    Touch(Obj),
    /// Bytes between the old end and `offset` become zero.
    Write {
        obj: Obj,
        offset: u64,
        data: Cow<'a, [u8]>,
    },
    /// Gives space back where the store can; reads as zero. Does not lengthen the object's data.
    Zero {
        obj: Obj,
        offset: u64,
        length: u64,
    },
    Truncate {
        obj: Obj,
        size: u64,
    },
    /// Data, attributes, omap and info.
    Remove(Obj),
    /// Makes `to` a copy of `from` with data, attributes, omap and info; what `to` had is gone.
    Clone {
        from: Obj,
        to: Obj,
    },
    SetInfo {
        obj: Obj,
        info: Box<ObjectInfo>,
    },
    SetAttr {
        obj: Obj,
        name: Cow<'a, [u8]>,
        value: Cow<'a, [u8]>,
    },
    RemoveAttr {
        obj: Obj,
        name: Cow<'a, [u8]>,
    },
    RemoveAttrs(Obj),
    OmapSetHeader {
        obj: Obj,
        header: Cow<'a, [u8]>,
    },
    OmapSet {
        obj: Obj,
        pairs: Vec<Pair<'a>>,
    },
    OmapRemove {
        obj: Obj,
        keys: Vec<Cow<'a, [u8]>>,
    },
    /// From `begin` up to, without, `end`.
    OmapRemoveRange {
        obj: Obj,
        begin: Cow<'a, [u8]>,
        end: Cow<'a, [u8]>,
    },
    /// Keys and header.
    OmapClear(Obj),
}

/// How much a pg holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Heads, clones and whiteouts.
    pub objects: u64,
    pub clones: u64,
    /// Sum of the sizes that the objects' infos tell.
    pub bytes: u64,
    /// Bytes that take up room: at least what [`Store::extents`] tells.
    pub stored: u64,
    /// Keys and values.
    pub omap_bytes: u64,
    pub omap_keys: u64,
}

/// See the [module](self) for what a store promises.
pub trait Store {
    /// A pg on its way to another thread, with everything in it.
    type Detached: Send + 'static;

    fn pgs(&self) -> Vec<PgId>;
    fn create_pg(&mut self, pg: PgId) -> Result<()>;
    /// Removes a pg and its objects.
    fn remove_pg(&mut self, pg: PgId) -> Result<()>;
    fn pg_state(&mut self, pg: PgId) -> Result<PgState>;
    fn usage(&self, pg: PgId) -> Usage;
    /// Moves the objects of `from` whose hash belongs to `to` in a pool of `pg_num` pgs; makes `to`
    /// where it is missing, with the history of `from`, and otherwise merges the histories
    /// ([`PgState::merge`]). Serves splitting and, with `to` the one that stays, merging; `from`
    /// stays even when nothing is left in it.
    fn move_objects(&mut self, from: PgId, to: PgId, pg_num: u32) -> Result<()>;
    /// Takes a pg out of this thread's hands. All of its transactions must have been committed.
    fn detach_pg(&mut self, pg: PgId) -> Result<Self::Detached>;
    fn attach_pg(&mut self, pg: PgId, detached: Self::Detached) -> Result<()>;

    /// `None` when the store has no such object; the default for an object that was never told.
    fn info(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Option<&ObjectInfo>>;
    /// Appends up to `length` bytes of data to `out`: what lies beyond the data's end is left out,
    /// holes are zeros. Returns how many.
    fn read(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        offset: u64,
        length: u64,
        out: &mut Vec<u8>,
    ) -> Result<usize>;
    /// Offset and length of what is stored in a range, ascending, neither overlapping nor touching.
    fn extents(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>>;
    fn attr(&mut self, pg: PgId, oid: &HObjectRef<'_>, name: &[u8]) -> Result<Option<Vec<u8>>>;
    /// In ascending order of names.
    fn attrs(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    fn omap_header(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Vec<u8>>;
    fn omap_get(&mut self, pg: PgId, oid: &HObjectRef<'_>, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Keys of the omap, and bytes of keys and values.
    fn omap_size(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<(u64, u64)>;
    /// Up to `max` pairs whose keys are greater than `after` and begin with `prefix`. A key without
    /// bytes is thus never listed, as in Ceph.
    fn omap_list(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        after: &[u8],
        prefix: &[u8],
        max: usize,
    ) -> Result<Page<(Vec<u8>, Vec<u8>)>>;
    /// Up to `max` objects, heads and clones, from `from` on in the order of
    /// [`HObjectRef::order`].
    fn list(&mut self, pg: PgId, from: &HObjectRef<'_>, max: usize) -> Result<Page<HObject>>;

    /// An error of [`StoreError::is_full`] takes this transaction alone back; any other is the end.
    fn apply(&mut self, pg: PgId, txn: Transaction<'_>) -> Result<Seq>;
    /// Every transaction up to this one is durable.
    fn committed(&self) -> Seq;
}
