//! A pg in a shard's hands, with the objects that it remembers.
//!
//! Objects that the last checkpoint does not have stay; of the others, those that were not used for
//! a while make room (second-chance clock).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use slab::Slab;

use crate::objecter::msg::{HObject, HObjectRef};
use crate::osd::store::{LOG_LEN, LogEntry, Page, PgState, Result, Seq, StoreError};

use super::db::Db;
use super::key;
use super::object::Object;
use super::row::PgRow;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Arc<[u8]>,
    /// None when there is no such object.
    pub(super) object: Option<Object>,
    /// The newest change, 0 when the database has them all.
    pub(super) dirty: Seq,
    /// It is in the pg's queue of dirty slots.
    queued: bool,
    used: bool,
}

#[derive(Debug, Default)]
pub(super) struct Pg {
    pub(super) row: PgRow,
    index: HashMap<Arc<[u8]>, usize>,
    pub(super) slots: Slab<Slot>,
    /// Dirty slots, by key and in the order in which checkpoints will have them.
    dirty: BTreeMap<Arc<[u8]>, usize>,
    queue: VecDeque<(Seq, usize)>,
    /// Slots with data that is not in files yet.
    lagging: VecDeque<(Seq, usize)>,
    /// Log entries that the database may not have, with their index.
    log: VecDeque<(Seq, u64, LogEntry)>,
    hand: usize,
}

/// A pg on its way from one thread to another.
#[derive(Debug)]
pub struct DetachedPg(pub(super) Box<Pg>);

impl DetachedPg {
    pub(super) fn new(row: PgRow) -> DetachedPg {
        DetachedPg(Box::new(Pg::new(row)))
    }
}

/// Slots that one call looks at in search of one to drop.
const LOOKS: usize = 16;

impl Pg {
    pub(super) fn new(row: PgRow) -> Pg {
        Pg {
            row,
            ..Pg::default()
        }
    }

    /// The slot of an object, read from the database where it is not remembered. `scratch` is only
    /// there to be used again.
    #[inline]
    pub(super) fn find(
        &mut self,
        db: &Db,
        oid: &HObjectRef<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<usize> {
        scratch.clear();
        key::encode(oid, scratch);
        if let Some(place) = self.index.get(&scratch[..]) {
            self.slots[*place].used = true;
            return Ok(*place);
        }
        let row = db.object(self.row.no, scratch)?;
        let key: Arc<[u8]> = scratch[..].into();
        let place = self.slots.insert(Slot {
            key: Arc::clone(&key),
            object: row.map(|row| Object {
                row,
                ..Object::default()
            }),
            dirty: 0,
            queued: false,
            used: false,
        });
        self.index.insert(key, place);
        Ok(place)
    }

    /// Notes that a transaction has changed an object.
    pub(super) fn touch(&mut self, place: usize, seq: Seq) {
        let slot = &mut self.slots[place];
        slot.dirty = seq;
        if !std::mem::replace(&mut slot.queued, true) {
            self.dirty.insert(Arc::clone(&slot.key), place);
            self.queue.push_back((seq, place));
        }
        let lags = slot.object.as_ref().is_some_and(|o| !o.overlay.is_empty());
        if lags {
            self.lagging.push_back((seq, place));
        }
    }

    pub(super) fn log(&mut self, seq: Seq, entry: LogEntry) -> u64 {
        let index = self.row.next_log;
        self.row.next_log += 1;
        self.log.push_back((seq, index, entry));
        if self.log.len() > LOG_LEN {
            self.log.pop_front();
        }
        index
    }

    /// Lets go of what files and database have by now, and of what is too much.
    pub(super) fn tidy(&mut self, applied: Seq, checkpointed: Seq, max: usize) {
        while let Some((seq, place)) = self.lagging.front().copied()
            && seq <= applied
        {
            self.lagging.pop_front();
            // The slot may have been given to another object, which does no harm.
            if let Some(slot) = self.slots.get_mut(place)
                && let Some(object) = &mut slot.object
            {
                object.settle(applied);
            }
        }
        while let Some((seq, place)) = self.queue.front().copied()
            && seq <= checkpointed
        {
            self.queue.pop_front();
            let slot = &mut self.slots[place];
            if slot.dirty > checkpointed {
                self.queue.push_back((slot.dirty, place));
                if let Some(object) = &mut slot.object {
                    object.pairs.retain(|_, (seq, _)| *seq > checkpointed);
                }
                continue;
            }
            slot.dirty = 0;
            slot.queued = false;
            if let Some(object) = &mut slot.object {
                object.pairs.clear();
                object.settle(applied);
            }
            self.dirty.remove(&slot.key);
        }
        while let Some((seq, ..)) = self.log.front()
            && *seq <= checkpointed
        {
            self.log.pop_front();
        }
        self.evict(max);
    }

    fn evict(&mut self, max: usize) {
        for _ in 0..LOOKS {
            if self.slots.len() <= max {
                return;
            }
            self.hand = (self.hand + 1) % self.slots.capacity();
            let Some(slot) = self.slots.get_mut(self.hand) else {
                continue;
            };
            if slot.dirty == 0 && !std::mem::take(&mut slot.used) {
                let slot = self.slots.remove(self.hand);
                self.index.remove(&slot.key);
            }
        }
    }

    pub(super) fn state(&self, db: &Db) -> Result<PgState> {
        let mut log = db.log(self.row.no)?;
        for (_, index, entry) in &self.log {
            log.insert(*index, entry.clone());
        }
        let mut log: Vec<LogEntry> = log.into_values().collect();
        log.drain(..log.len().saturating_sub(LOG_LEN));
        Ok(PgState {
            last_update: self.row.last_update,
            last_user_version: self.row.last_user_version,
            log,
            trimmed_snaps: self.row.trimmed_snaps.clone(),
        })
    }

    pub(super) fn list(&self, db: &Db, from: &HObjectRef<'_>, max: usize) -> Result<Page<HObject>> {
        let mut page = Page {
            items: Vec::new(),
            more: false,
        };
        if from.max {
            return Ok(page);
        }
        let mut start = Vec::new();
        key::encode(from, &mut start);
        let mut take = |key: &[u8]| -> Result<bool> {
            page.more = page.items.len() == max;
            if !page.more {
                let object = key::decode(key).map_err(|e| StoreError::Damaged(e.to_string()))?;
                page.items.push(object);
            }
            Ok(!page.more)
        };
        let there = |place: &usize| self.slots[*place].object.is_some();
        let newer = (Included(&start[..]), Unbounded);
        let mut newer = self.dirty.range::<[u8], _>(newer).peekable();
        let mut go_on = true;
        db.each_object(self.row.no, &start, |key| {
            while go_on && let Some((k, place)) = newer.next_if(|(k, _)| ***k < *key) {
                go_on = !there(place) || take(k)?;
            }
            if go_on {
                go_on = match newer.next_if(|(k, _)| ***k == *key) {
                    Some((k, place)) => !there(place) || take(k)?,
                    None => take(key)?,
                };
            }
            Ok(go_on)
        })?;
        while go_on && let Some((k, place)) = newer.next() {
            go_on = !there(place) || take(k)?;
        }
        Ok(page)
    }
}
