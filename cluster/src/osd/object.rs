//! What an object is, besides its data, attributes and omap.

use crate::codec::{EntityAddr, EntityName, UTime};
use crate::objecter::msg::{EVersion, ReqId};

/// State of a head or a clone (`object_info_t`, `src/osd/osd_types.h`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectInfo {
    pub size: u64,
    pub mtime: UTime,
    pub version: EVersion,
    pub user_version: u64,
    pub last_reqid: ReqId,
    pub truncate_seq: u32,
    pub truncate_size: u64,
    pub expected_object_size: u64,
    pub expected_write_size: u64,
    pub alloc_hint_flags: u32,
    /// The head was deleted and stays only because clones hang on it; to clients it does not exist
    /// (`FLAG_WHITEOUT`).
    pub whiteout: bool,
    /// Of a head.
    pub snaps: SnapSet,
    /// Of a head; they survive a restart of the OSD.
    pub watchers: Vec<WatchRecord>,
}

/// The clones of a head (`SnapSet`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapSet {
    /// The newest snapshot that any write has known.
    pub seq: u64,
    /// Ascending.
    pub clones: Vec<CloneState>,
}

/// A state of the object that snapshots preserve.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CloneState {
    /// The newest snapshot at the time it was made; names the clone's object.
    pub id: u64,
    /// Snapshots it serves, newest first.
    pub snaps: Vec<u64>,
    /// Ranges, offset and length, that the next newer clone (or the head) has unchanged.
    pub overlap: Vec<(u64, u64)>,
    pub size: u64,
}

/// A watch as the object remembers it (`watch_info_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchRecord {
    pub entity: EntityName,
    pub cookie: u64,
    pub timeout_seconds: u32,
    pub addr: EntityAddr,
}
