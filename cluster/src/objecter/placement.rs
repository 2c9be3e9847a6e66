use super::msg::{NO_SHARD, OsdMapFlags, PgId};
use crate::codec::EntityAddrVec;
use crate::osdmap::OsdSet;
use crate::osdmap::objhash::{mask_of, stable_mod};

/// What of a pool decides over the fate of requests (`pg_pool_t`, `src/osd/osd_types.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolView {
    pub pg_num: u32,
    /// Differs from `pg_num` while pgs are about to merge.
    pub pg_num_pending: u32,
    /// What else starts a new interval of the pool's pgs when it changes.
    pub shape: PoolShape,
    pub erasure: bool,
    /// `FLAG_FULL`, which a reached quota sets too.
    pub full: bool,
    /// `FLAG_EIO`: every request fails.
    pub eio: bool,
    /// The epoch of the last command to resend everything (`last_force_op_resend`), or zero.
    pub last_force_op_resend: u32,
    /// The pool that serves reads in this one's place.
    pub read_tier: Option<i64>,
    pub write_tier: Option<i64>,
}

/// The remaining inputs of `PastIntervals::is_new_interval`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolShape {
    pub size: u32,
    pub min_size: u32,
    /// `peering_crush_bucket_{count,target,barrier}` of a stretch pool.
    pub peering_crush_bucket: [u32; 3],
    pub peering_crush_mandatory_member: i32,
    pub ec_optimizations: bool,
}

/// Where a pg is (`OSDMap::pg_to_up_acting_osds`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    pub up: OsdSet,
    pub acting: OsdSet,
    pub up_primary: i32,
    /// Below zero when the pg has no primary.
    pub acting_primary: i32,
    /// The primary's shard in an erasure-coded pool, else [`NO_SHARD`].
    pub shard: i8,
}

impl Mapped {
    pub(super) fn nowhere() -> Mapped {
        Mapped {
            up: OsdSet::new(),
            acting: OsdSet::new(),
            up_primary: -1,
            acting_primary: -1,
            shard: NO_SHARD,
        }
    }
}

/// What the objecter asks of an OSD map.
pub trait Placement {
    fn epoch(&self) -> u32;

    fn flags(&self) -> OsdMapFlags;

    fn pool(&self, id: i64) -> Option<PoolView>;

    /// Whether any pool has its full flag set.
    fn any_pool_full(&self) -> bool;

    /// The whole hash of an object: of its key, or of its name when the key is empty.
    fn object_hash(&self, pool: i64, namespace: &[u8], key: &[u8], name: &[u8]) -> Option<u32>;

    /// Maps a pg whose seed is below the pool's `pg_num`.
    fn map_pg(&self, pg: PgId) -> Mapped;

    /// The addresses of an OSD that is up.
    fn osd_addrs(&self, osd: i32) -> Option<&EntityAddrVec>;

    /// Whether a client at these addresses is fenced off.
    fn is_blocklisted(&self, addrs: &EntityAddrVec) -> bool;

    /// Whether this epoch removed a snapshot (`OSDMap::get_new_removed_snaps`).
    fn newly_removed_snap(&self, _pool: i64, _snap: u64) -> bool {
        false
    }

    /// How far an OSD is from this client (`CrushWrapper::get_common_ancestor_distance`), for
    /// localized reads. Nearer is less; `None` is unknown.
    fn distance(&self, _osd: i32) -> Option<u32> {
        None
    }
}

/// The pg that an object's hash falls to in a pool of `pg_num` pgs.
pub(super) fn fold(hash: u32, pg_num: u32) -> u32 {
    stable_mod(hash, pg_num, mask_of(pg_num))
}

/// Whether pg `seed` has children when a pool grows (`pg_t::is_split`).
pub(crate) fn is_split(seed: u32, old_pg_num: u32, new_pg_num: u32) -> bool {
    if seed >= old_pg_num || new_pg_num <= old_pg_num {
        return false;
    }
    let bits = u32::BITS - old_pg_num.leading_zeros();
    let mask = (1u64 << bits) - 1;
    let step = 1u64 << (bits - 1);
    // Candidates are the seed with higher bits set; the first new one decides only if it folds back.
    (1u64..)
        .map(|n| (n * step) | u64::from(seed))
        .take_while(|&s| s < u64::from(new_pg_num))
        .filter(|&s| s >= u64::from(old_pg_num))
        .any(|s| stable_mod(s as u32, old_pg_num, mask as u32) == seed)
}

/// Whether pg `seed` disappears when a pool shrinks (`pg_t::is_merge_source`).
pub(crate) fn is_merge_source(seed: u32, old_pg_num: u32, new_pg_num: u32) -> bool {
    seed < old_pg_num && seed >= new_pg_num
}

/// Whether others are merged into pg `seed` when a pool shrinks (`pg_t::is_merge_target`).
pub(crate) fn is_merge_target(seed: u32, old_pg_num: u32, new_pg_num: u32) -> bool {
    seed < new_pg_num && is_split(seed, new_pg_num, old_pg_num)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pg_splits_exactly_when_objects_leave_it(old in 1u32..200, grow in 0u32..300, seed in 0u32..200) {
            let new = old + grow;
            prop_assume!(seed < old);
            // Every seed of the grown pool that folded to this one before.
            let children = (old..new).filter(|&x| fold(x, old) == seed);
            prop_assert_eq!(is_split(seed, old, new), children.count() > 0);
            prop_assert_eq!(is_merge_target(seed, new, old), is_split(seed, old, new));
        }

        #[test]
        fn extreme_numbers_end(seed: u32, old: u32, new in 0u32..1 << 20) {
            let _ = is_split(seed, old, new);
            let _ = is_merge_source(seed, old, new);
        }
    }
}
