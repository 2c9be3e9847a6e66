//! A placement group as the OSD that has it knows it.

use std::collections::{BTreeSet, VecDeque};

use crate::objecter::msg::{EVersion, HObject, HObjectRef, NOSNAP, PgId};
use crate::osdmap::SnapIntervals;
use crate::osdmap::objhash::{mask_of, stable_mod};

use super::dups::Dups;
use super::session::Parked;
use super::store::{PgState, Seq};
use super::watch::Watches;

/// Requests that were served, of a pool or a pg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Served {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
}

impl Served {
    pub(super) fn add(&mut self, other: Served) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
    }
}

/// Where a pg's objects are, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In our store.
    Here,
    /// Another OSD has them and will hand them over.
    Awaited,
}

/// A round of trimming through a pg.
#[derive(Debug)]
pub(super) struct Trim {
    /// The removed snapshots that the round is for.
    pub snaps: SnapIntervals,
    pub next: HObject,
}

#[derive(Debug)]
pub(super) struct Pg {
    pub place: Place,
    /// The newest map has us serve it.
    pub acting: bool,
    /// It was active when that was last looked at.
    pub running: bool,
    /// Pgs that were merged into this one and are still to come.
    pub parts: BTreeSet<PgId>,
    /// It is to be merged into another one.
    pub is_part: bool,
    /// Number of its pool's pgs when its objects were last sorted, and the epoch of that.
    pub pg_num: u32,
    pub shaped: u32,
    /// Whoever released it to us had this epoch; an older one of ours must not send it back.
    pub not_before: u32,

    pub last_update: EVersion,
    pub last_user_version: u64,
    pub last_seq: Seq,
    pub dups: Dups,
    pub trimmed: SnapIntervals,

    /// `same_primary_since`, `same_interval_since`, `last_epoch_split` and
    /// `last_epoch_marked_full` of `pg_history_t`.
    pub primary_since: u32,
    pub interval_since: u32,
    pub split: u32,
    pub marked_full: u32,

    pub watches: Watches,
    /// Stored watches are looked for from here on.
    pub scan: Option<HObject>,
    pub trim: Option<Trim>,
    /// Requests that wait for the pg to become active.
    pub waiting: VecDeque<Parked>,
    pub served: Served,
}

impl Pg {
    pub(super) fn new(place: Place, pg_num: u32, epoch: u32) -> Pg {
        Pg {
            place,
            acting: false,
            running: false,
            parts: BTreeSet::new(),
            is_part: false,
            pg_num,
            shaped: epoch,
            not_before: 0,
            last_update: EVersion::default(),
            last_user_version: 0,
            last_seq: 0,
            dups: Dups::default(),
            trimmed: SnapIntervals::default(),
            primary_since: epoch,
            interval_since: epoch,
            split: 0,
            marked_full: 0,
            watches: Watches::default(),
            scan: None,
            trim: None,
            waiting: VecDeque::new(),
            served: Served::default(),
        }
    }

    /// Takes over what the store says.
    pub(super) fn load(&mut self, state: PgState) {
        self.last_update = state.last_update;
        self.last_user_version = state.last_user_version;
        self.dups = Dups::load(state.log, self.last_seq);
        self.trimmed = SnapIntervals::default();
        for (start, len) in state.trimmed_snaps {
            self.trimmed.insert(start, len);
        }
        self.trim = None;
    }

    pub(super) fn active(&self) -> bool {
        self.place == Place::Here && self.acting && self.parts.is_empty() && !self.is_part
    }

    pub(super) fn next_version(&self, epoch: u32) -> EVersion {
        EVersion {
            epoch,
            version: self.last_update.version + 1,
        }
    }
}

/// The pg that objects of `seed` were in before there were so many pgs (`pg_t::get_parent`).
pub(super) fn parent(seed: u32) -> Option<u32> {
    let top = seed.checked_ilog2()?;
    Some(seed & !(1 << top))
}

/// The pg below `pg_num` that `seed` is merged into (`pg_t::is_merge_source`).
pub(super) fn root(mut seed: u32, pg_num: u32) -> u32 {
    while seed >= pg_num {
        match parent(seed) {
            Some(up) => seed = up,
            None => break,
        }
    }
    seed
}

/// Whether an object of this hash is in a pg (`pg_t::contains`).
pub(super) fn contains(seed: u32, hash: u32, pg_num: u32) -> bool {
    stable_mod(hash, pg_num, mask_of(pg_num)) == seed
}

/// The first object that could be in a pg, and the first after it (`pg_t::get_hobj_start`,
/// `pg_t::get_hobj_end`, `pg_t::get_split_bits`).
pub(super) fn bounds(pg: PgId, pg_num: u32) -> (HObjectRef<'static>, HObjectRef<'static>) {
    let at = |hash, snap| HObjectRef {
        pool: pg.pool,
        hash,
        snap,
        ..HObjectRef::MIN
    };
    let start = at(pg.seed, 0);
    if pg_num <= 1 {
        return (start, HObjectRef::MAX);
    }
    let top = pg_num.ilog2();
    let half = 1u32 << top;
    let bits = if pg.seed % half < pg_num % half {
        top + 1
    } else {
        top
    };
    let rest = u32::MAX.checked_shr(bits).unwrap_or(0);
    let end = (pg.seed.reverse_bits() | rest).checked_add(1);
    let end = end.map_or(HObjectRef::MAX, |end| at(end.reverse_bits(), NOSNAP));
    (start, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;

    #[test]
    fn pgs_part_the_objects_in_their_order() {
        for pg_num in 1..70u32 {
            let pgs = (0..pg_num).map(|seed| PgId { pool: 3, seed });
            for hash in (0..1u32 << 12).map(|i| i.wrapping_mul(0x9e37_79b9)) {
                let object = HObjectRef::head(3, b"", b"", b"o", hash);
                for pg in pgs.clone() {
                    let (start, end) = bounds(pg, pg_num);
                    let inside = object.order(&start) != Ordering::Less
                        && object.order(&end) == Ordering::Less;
                    assert_eq!(inside, contains(pg.seed, hash, pg_num), "{pg} of {pg_num}");
                }
            }
        }
    }

    #[test]
    fn growing_by_one_splits_one_pg_only() {
        for n in 1..64u32 {
            for hash in 0..4096u32 {
                let before = stable_mod(hash, n, mask_of(n));
                let after = stable_mod(hash, n + 1, mask_of(n + 1));
                assert!(after == before || (after == n && Some(before) == parent(n)));
            }
        }
    }

    #[test]
    fn a_pg_is_merged_into_its_nearest_ancestor() {
        assert_eq!(root(24, 8), 0);
        assert_eq!(root(24, 9), 8);
        assert_eq!(root(5, 4), 1);
        assert_eq!(root(3, 1), 0);
        assert_eq!(root(2, 4), 2);
    }
}
