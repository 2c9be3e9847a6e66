//! Taking removed snapshots from clones, a slice at a time (`PrimaryLogPG::SnapTrimmer`).
//!
//! A round goes once through all objects of a pg and takes every snapshot that was removed when it
//! began. What it was for is stored with the pg's state at its end; a round that is cut short is
//! repeated, and finds little left to do.

use crate::codec::Now;
use crate::objecter::msg::{HObject, HObjectRef, NOSNAP, PgId};
use crate::osdmap::{OsdMap, SnapIntervals, flag};

use super::super::exec::trim_object;
use super::super::outbox::Outbox;
use super::super::pg::{Pg, Trim};
use super::super::store::{LogEntry, Store, Transaction};
use super::{Osd, OsdEvent};

/// Objects that one tick looks at, and clones that it trims.
const LOOK: usize = 256;
const TRIM: usize = 32;
/// Between slices, for requests to get their turn (`osd_snap_trim_sleep` is its likeness).
const PAUSE: u64 = 1_000_000;
/// Before it is tried again on a full disk.
const FULL_PAUSE: u64 = 1_000_000_000;

/// Snapshots of a pool that were removed and are perhaps still kept by clones.
fn removed(map: &OsdMap, pool: i64) -> SnapIntervals {
    let mut snaps = SnapIntervals::default();
    let mut add = |set: Option<&SnapIntervals>| {
        for (start, len) in set.into_iter().flat_map(SnapIntervals::iter) {
            snaps.insert(start, len);
        }
    };
    add(map.removed_snaps_queue().get(&pool));
    add(map.new_removed_snaps().get(&pool));
    add(map.pool(pool).map(|p| &p.removed_snaps));
    snaps
}

impl<S: Store> Osd<S> {
    /// Begins a round where there is something to trim.
    pub(super) fn start_trimming(&mut self, now: Now) {
        let Some(map) = self.map.clone() else {
            return;
        };
        if map.has_flag(flag::NOSNAPTRIM) {
            return;
        }
        let mut any = false;
        let mut pool = None;
        let mut ids: Vec<PgId> = self.pgs.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(pg) = self.pgs.get_mut(&id) else {
                continue;
            };
            if !pg.active() || pg.trim.is_some() {
                continue;
            }
            let known = pool.take().filter(|(p, _)| *p == id.pool);
            let (_, snaps) = known.unwrap_or_else(|| (id.pool, removed(&map, id.pool)));
            let mut left = snaps.clone();
            pg.trimmed
                .iter()
                .for_each(|(start, len)| left.remove(start, len));
            pool = Some((id.pool, snaps));
            if !left.is_empty() {
                any = true;
                pg.trim = Some(Trim {
                    snaps: left,
                    next: HObject::from(HObjectRef::MIN),
                });
            }
        }
        if any {
            self.wake(now.mono);
        }
    }

    pub(super) fn trim_slice(&mut self, id: PgId, now: Now, out: &mut Outbox) {
        let Some(map) = self.map.clone() else {
            return;
        };
        let Some(pg) = self.pgs.get_mut(&id).filter(|p| p.active()) else {
            return;
        };
        if map.has_flag(flag::NOSNAPTRIM) {
            pg.trim = None;
            return;
        }
        let Some(mut trim) = pg.trim.take() else {
            return;
        };
        let page = match self.store.list(id, &trim.next.as_ref(), LOOK + 1) {
            Ok(page) => page,
            Err(error) => return self.fail(error, out),
        };
        let mut trimmed = 0;
        let mut next = None;
        for (i, object) in page.items.into_iter().enumerate() {
            if i == LOOK || trimmed == TRIM {
                next = Some(object);
                break;
            }
            if object.as_ref().snap == NOSNAP {
                continue;
            }
            let Some(pg) = self.pgs.get_mut(&id) else {
                return;
            };
            let version = pg.next_version(map.epoch());
            let removed = |snap| trim.snaps.contains(snap);
            let mut txn = match trim_object(&mut self.store, id, &object, removed, version) {
                Ok(Some(txn)) => txn,
                Ok(None) => continue,
                Err(error) => return self.fail(error, out),
            };
            trimmed += 1;
            pg.last_update = version;
            txn.log = Some(LogEntry {
                version,
                ..LogEntry::default()
            });
            match self.apply(id, &object.as_ref(), txn) {
                Ok(_) => {}
                Err(error) if error.is_full() => return self.trim_later(id, trim, now),
                Err(error) => return self.fail(error, out),
            }
        }
        let Some(pg) = self.pgs.get_mut(&id) else {
            return;
        };
        if let Some(next) = next {
            trim.next = next;
            pg.trim = Some(trim);
            self.wake(now.mono.saturating_add(PAUSE));
            return;
        }
        // What no map speaks of any more need not be remembered.
        let of_map = removed(&map, id.pool);
        let mut kept = SnapIntervals::default();
        let old = pg.trimmed.iter().chain(trim.snaps.iter());
        for (start, len) in old {
            kept.insert(start, len);
        }
        let mut gone = kept.clone();
        of_map
            .iter()
            .for_each(|(start, len)| gone.remove(start, len));
        gone.iter().for_each(|(start, len)| kept.remove(start, len));
        pg.trimmed = kept;
        let since = pg.interval_since;
        let txn = Transaction {
            trimmed_snaps: Some(pg.trimmed.iter().collect()),
            ..Transaction::default()
        };
        match self.apply(id, &HObjectRef::MIN, txn) {
            Ok(seq) => {
                let snaps = trim.snaps.iter().collect();
                self.trimmed.push_back((seq, id, since, snaps));
            }
            Err(error) if error.is_full() => return self.trim_later(id, trim, now),
            Err(error) => return self.fail(error, out),
        }
        // More may have been removed since the round began.
        self.start_trimming(now);
    }

    /// The slice is repeated.
    fn trim_later(&mut self, id: PgId, trim: Trim, now: Now) {
        if let Some(pg) = self.pgs.get_mut(&id) {
            pg.trim = Some(trim);
            self.wake(now.mono.saturating_add(FULL_PAUSE));
        }
    }

    /// A pg that begins to serve says anew what it has trimmed: its store may know of rounds that
    /// nobody has been told of, and after a split or merge former reports do not count.
    pub(super) fn report_again(&mut self, id: PgId) {
        let Some(pg) = self.pgs.get(&id).filter(|pg| !pg.trimmed.is_empty()) else {
            return;
        };
        let snaps = pg.trimmed.iter().collect();
        self.trimmed
            .push_back((pg.last_seq, id, pg.interval_since, snaps));
    }

    /// Rounds whose end is durable, of pgs that are still what they were.
    pub(super) fn report_trimmed(&mut self) {
        let committed = self.committed;
        while let Some((seq, ..)) = self.trimmed.front()
            && *seq <= committed
        {
            let Some((_, pg, since, snaps)) = self.trimmed.pop_front() else {
                return;
            };
            let same = |p: &&Pg| p.active() && p.interval_since == since;
            if self.pgs.get(&pg).filter(same).is_some() {
                self.events
                    .push_back(OsdEvent::Trimmed { pg, since, snaps });
            }
        }
    }
}
