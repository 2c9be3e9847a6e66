//! What a checkpoint brings into the database: the changes of many transactions, each row once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::osd::store::{LOG_LEN, Seq};
use crate::osdmap::Pg;

use super::op::Op;

/// Log entries by their index, consecutive.
pub(super) type Entries = VecDeque<(u64, Box<[u8]>)>;

/// A row's new value, or none for one that goes.
pub(super) type Change = Option<Box<[u8]>>;

#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Newest transaction in it, and what all of them take up in the journal.
    pub(super) last: Seq,
    pub(super) bytes: u64,
    pub(super) next_id: u64,
    /// By pg number and object key.
    pub(super) objects: BTreeMap<Vec<u8>, Change>,
    /// By object id, kind and key.
    pub(super) pairs: BTreeMap<Vec<u8>, Change>,
    /// Objects that lose all pairs.
    pub(super) bare: BTreeSet<u64>,
    pub(super) pgs: BTreeMap<Pg, Change>,
    /// Numbers of pgs that go.
    pub(super) removed: Vec<u64>,
    /// By pg number.
    pub(super) logs: BTreeMap<u64, Entries>,
    /// Files that have one object more (true) or fewer.
    pub(super) refs: Vec<(u64, bool)>,
    /// Comes after all else, so that nothing can be added behind it.
    pub(super) moves: Option<Move>,
    /// Data files to be synced, and folders that have new ones.
    pub(super) files: BTreeSet<u64>,
    pub(super) folders: BTreeSet<u8>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub(super) from: Pg,
    pub(super) to: Pg,
    pub(super) pg_num: u32,
    pub(super) fresh: bool,
}

/// A number before a key; numbers sort as their bytes do.
pub(super) fn numbered(number: u64, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + key.len());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(key);
    out
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.last == 0
    }

    /// What bringing it in may take on the disk: each row in a page that is written anew, with those
    /// above it.
    pub(super) fn room(&self) -> u64 {
        const PAGES: u64 = 8192;
        let logs = self.logs.values().map(|log| log.len()).sum::<usize>();
        let rows = self.objects.len() + self.pairs.len() + self.pgs.len() + logs;
        2 * self.bytes + PAGES * (rows + self.refs.len() + self.bare.len()) as u64
    }

    /// Takes note of what an operation says of the database; file contents are none of its business.
    pub(super) fn add(&mut self, op: &Op<'_>) {
        match *op {
            Op::Write { .. } | Op::Zero { .. } | Op::Truncate { .. } | Op::Copy { .. } => {}
            Op::NextId(id) => self.next_id = self.next_id.max(id),
            Op::Ref(file) => self.refs.push((file, true)),
            Op::Unref(file) => self.refs.push((file, false)),
            Op::PutObject { pg, key, row } => {
                self.objects.insert(numbered(pg, key), Some(row.into()));
            }
            Op::RemoveObject { pg, key } => {
                self.objects.insert(numbered(pg, key), None);
            }
            Op::PutPair { id, key, value } => {
                self.pairs.insert(numbered(id, key), Some(value.into()));
            }
            Op::RemovePair { id, key } => {
                self.pairs.insert(numbered(id, key), None);
            }
            Op::RemovePairs(id) => {
                let from = id.to_be_bytes().to_vec();
                while let Some((key, _)) = self.pairs.range(from.clone()..).next()
                    && key.starts_with(&from)
                {
                    let key = key.clone();
                    self.pairs.remove(&key);
                }
                self.bare.insert(id);
            }
            Op::PutPg { pg, row } => {
                self.pgs.insert(pg, Some(row.into()));
            }
            Op::RemovePg { pg, no } => {
                self.pgs.insert(pg, None);
                self.logs.remove(&no);
                self.removed.push(no);
            }
            Op::Log { pg, index, entry } => {
                let log = self.logs.entry(pg).or_default();
                log.push_back((index, entry.into()));
                if log.len() > LOG_LEN {
                    log.pop_front();
                }
            }
            Op::Move {
                from,
                to,
                pg_num,
                fresh,
            } => {
                self.moves = Some(Move {
                    from,
                    to,
                    pg_num,
                    fresh,
                });
            }
        }
    }
}
