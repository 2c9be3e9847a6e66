use std::sync::Arc;

use smallvec::SmallVec;

use super::msg::{HObjectRef, Locator, OsdFlags, OsdMapFlags, PgId, SpgId};
use super::placement::{
    Mapped, Placement, PoolShape, fold, is_merge_source, is_merge_target, is_split,
};
use crate::osdmap::ITEM_NONE;

/// Names of image data objects are some 45 bytes long; none up to this length allocates.
const INLINE_NAME: usize = 96;

/// An object of a pool, or a pg of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    pub pool: i64,
    pub name: SmallVec<[u8; INLINE_NAME]>,
    pub namespace: SmallVec<[u8; 16]>,
    /// Hashed in the name's place when not empty.
    pub key: SmallVec<[u8; 16]>,
    /// The pg itself is meant, by its seed; `name` and `key` are empty then.
    pub pg: Option<u32>,
}

impl Target {
    pub fn object(pool: i64, name: impl AsRef<[u8]>) -> Target {
        Target {
            pool,
            name: SmallVec::from_slice(name.as_ref()),
            ..Target::default()
        }
    }

    pub fn pg(pool: i64, seed: u32) -> Target {
        Target {
            pool,
            pg: Some(seed),
            ..Target::default()
        }
    }

    pub fn in_namespace(mut self, namespace: impl AsRef<[u8]>) -> Target {
        self.namespace = SmallVec::from_slice(namespace.as_ref());
        self
    }

    pub fn with_key(mut self, key: impl AsRef<[u8]>) -> Target {
        self.key = SmallVec::from_slice(key.as_ref());
        self
    }
}

/// A target and where it was when last looked at (`Objecter::op_target_t`).
#[derive(Debug, Clone)]
pub(super) struct OpTarget {
    pub(super) object: Target,
    pub(super) flags: OsdFlags,
    /// After following a cache tier.
    pool: i64,
    /// The raw pg: its seed is the object's whole hash. `None` forces a new look.
    raw: Option<PgId>,
    pub(super) spg: SpgId,
    mapped: Mapped,
    pg_num: u32,
    pg_num_pending: u32,
    shape: PoolShape,
    map_flags: OsdMapFlags,
    /// Where to send it, or below zero.
    pub(super) osd: i32,
    pub(super) paused: bool,
    used_replica: bool,
    /// Once a pool has been there, its absence means that it was deleted.
    pub(super) pool_ever_existed: bool,
    last_force_resend: u32,
}

impl OpTarget {
    pub(super) fn new(object: Target, flags: OsdFlags) -> OpTarget {
        OpTarget {
            pool: object.pool,
            object,
            flags,
            raw: None,
            spg: SpgId::default(),
            mapped: Mapped::nowhere(),
            pg_num: 0,
            pg_num_pending: 0,
            shape: PoolShape::default(),
            map_flags: OsdMapFlags::NONE,
            osd: -1,
            paused: false,
            used_replica: false,
            pool_ever_existed: false,
            last_force_resend: 0,
        }
    }

    pub(super) fn hash(&self) -> u32 {
        self.raw.map_or(0, |pg| pg.seed)
    }

    pub(super) fn hobject(&self) -> HObjectRef<'_> {
        let o = &self.object;
        HObjectRef::head(self.pool, &o.namespace, &o.key, &o.name, self.hash())
    }

    pub(super) fn locator(&self) -> Locator<'_> {
        let o = &self.object;
        // A pg has no name to hash (`MOSDOp::get_object_locator`).
        let hash = o.pg.map_or(-1, |_| i64::from(self.hash()));
        Locator {
            pool: self.pool,
            key: self.hobject().key,
            namespace: &o.namespace,
            hash,
        }
    }

    /// Whether the request waits while its pool is full (`op_target_t::respects_full`).
    pub(super) fn respects_full(&self) -> bool {
        self.flags.has(OsdFlags::WRITE | OsdFlags::RWORDERED)
            && !self.flags.has(OsdFlags::FULL_TRY | OsdFlags::FULL_FORCE)
    }

    /// Makes the next look count as a change.
    pub(super) fn forget(&mut self) {
        self.raw = None;
    }
}

/// What a look at the map asks for (`RECALC_OP_TARGET_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recalc {
    NoAction,
    NeedResend,
    PoolDne,
    PoolEio,
}

/// The current map, and the pgs of it that have been mapped. CRUSH costs microseconds; an image's
/// requests go to a bounded number of pgs over and over.
pub(super) struct Mapper<M> {
    pub(super) map: Option<Arc<M>>,
    cache: Vec<CachedPg>,
    honor_full: bool,
    /// State of a xorshift generator that balances reads.
    random: u64,
}

/// As many as a pool of a large cluster has.
const CACHED_PGS: usize = 2048;

impl<M: Placement> Mapper<M> {
    pub(super) fn new(honor_full: bool, seed: u64) -> Mapper<M> {
        Mapper {
            map: None,
            cache: vec![None; CACHED_PGS],
            honor_full,
            random: seed | 1,
        }
    }

    pub(super) fn epoch(&self) -> u32 {
        self.map.as_ref().map_or(0, |m| m.epoch())
    }

    /// Whether writes wait for room in the cluster or in a pool (`_osdmap_full_flag`).
    pub(super) fn full(&self, pool: i64) -> bool {
        let Some(map) = &self.map else {
            return false;
        };
        self.honor_full && full_in(&**map, pool)
    }

    /// Whether the map stops requests that would otherwise go on.
    pub(super) fn pauses(&self) -> bool {
        let Some(map) = &self.map else {
            return false;
        };
        let stop = OsdMapFlags::PAUSERD | OsdMapFlags::PAUSEWR;
        map.flags().has(stop)
            || (self.honor_full && (map.flags().has(OsdMapFlags::FULL) || map.any_pool_full()))
    }

    /// Whether the map asks to be followed epoch by epoch (`_maybe_request_map`).
    pub(super) fn watch_map(&self) -> bool {
        let flags = OsdMapFlags::PAUSERD | OsdMapFlags::PAUSEWR | OsdMapFlags::FULL;
        self.map.as_ref().is_some_and(|m| m.flags().has(flags))
    }

    /// Looks where a target is now and whether its request has to be sent again
    /// (`Objecter::_calc_target`). `any_change` is for watches: they notice every new interval,
    /// other requests only a change of primary.
    pub(super) fn calc(&mut self, t: &mut OpTarget, any_change: bool) -> Recalc {
        // Borrowed, not cloned: other threads count references to the same map.
        let Some(map) = self.map.as_deref() else {
            t.osd = -1;
            return Recalc::NoAction;
        };
        let is_read = t.flags.has(OsdFlags::READ);
        let is_write = t.flags.has(OsdFlags::WRITE);
        let Some(base) = map.pool(t.object.pool) else {
            t.osd = -1;
            return Recalc::PoolDne;
        };
        if base.eio {
            return Recalc::PoolEio;
        }
        let mut force = false;
        let demanded = base.last_force_op_resend;
        if map.epoch() == demanded && t.last_force_resend < demanded {
            t.last_force_resend = demanded;
            force = true;
        }

        let mut pool_id = t.object.pool;
        if !t.flags.has(OsdFlags::IGNORE_OVERLAY) {
            if let (true, Some(tier)) = (is_read, base.read_tier) {
                pool_id = tier;
            }
            if let (true, Some(tier)) = (is_write, base.write_tier) {
                pool_id = tier;
            }
        }
        let o = &t.object;
        let hash = match o.pg {
            Some(seed) => Some(seed),
            None => map.object_hash(pool_id, &o.namespace, &o.key, &o.name),
        };
        let pool = if pool_id == t.object.pool {
            Some(base)
        } else {
            map.pool(pool_id)
        };
        let (Some(pool), Some(hash)) = (pool, hash) else {
            t.osd = -1;
            return Recalc::PoolDne;
        };
        t.pool_ever_existed = true;

        let raw = PgId {
            pool: pool_id,
            seed: hash,
        };
        let actual = PgId {
            pool: pool_id,
            seed: fold(hash, pool.pg_num),
        };
        let map_flags = map.flags() & (OsdMapFlags::SORTBITWISE | OsdMapFlags::RECOVERY_DELETES);
        let previous = fold(hash, t.pg_num);
        let paused = should_pause(map, t, self.honor_full, base.full);
        let unpaused = t.paused && !paused;
        t.paused = paused;

        let mapped = map_pg(&mut self.cache, map, actual);
        let (old, new) = (t.pg_num, pool.pg_num);
        let split_or_merge = old != 0
            && (is_split(previous, old, new)
                || is_merge_source(previous, old, new)
                || is_merge_target(previous, old, new));
        if any_change {
            let (old_pending, new_pending) = (t.pg_num_pending, pool.pg_num_pending);
            // `PastIntervals::is_new_interval`. A pg is special before its merge and, should the
            // merge be called off, after it.
            force |= t.mapped != *mapped
                || t.shape != pool.shape
                || t.map_flags != map_flags
                || split_or_merge
                || is_merge_source(previous, old_pending, new_pending)
                || is_merge_source(previous, new_pending, old_pending)
                || is_merge_target(previous, old_pending, new_pending)
                || is_merge_target(previous, new_pending, old_pending);
        }
        let changed = t.raw != Some(raw)
            || primary_changed(&t.mapped, mapped)
            || ((t.used_replica || any_change) && t.mapped.acting != mapped.acting);

        if changed || split_or_merge || force {
            t.raw = Some(raw);
            t.pool = pool_id;
            t.mapped.clone_from(mapped);
            t.pg_num = pool.pg_num;
            t.pg_num_pending = pool.pg_num_pending;
            t.shape = pool.shape;
            t.map_flags = map_flags;
            t.spg = SpgId {
                pg: actual,
                shard: mapped.shard,
            };
            let replicas = OsdFlags::BALANCE_READS | OsdFlags::LOCALIZE_READS;
            t.osd = if t.flags.has(replicas) && !is_write && !pool.erasure {
                choose_replica(map, &t.mapped, t.flags, &mut self.random)
            } else {
                t.mapped.acting_primary
            };
            t.used_replica = t.osd != t.mapped.acting_primary;
        }
        if changed || unpaused || force || split_or_merge {
            Recalc::NeedResend
        } else {
            Recalc::NoAction
        }
    }
}

type CachedPg = Option<(PgId, u32, Mapped)>;

/// Where a pg is in the current map.
fn map_pg<'c, M: Placement>(cache: &'c mut [CachedPg], map: &M, pg: PgId) -> &'c Mapped {
    // Neighbouring pgs of one pool never displace each other.
    let spread = (pg.pool as u64).wrapping_mul(31) as usize;
    let slot = (pg.seed as usize).wrapping_add(spread) % cache.len();
    let epoch = map.epoch();
    let entry = &mut cache[slot];
    match entry {
        Some((p, e, _)) if *p == pg && *e == epoch => {}
        _ => *entry = None,
    }
    let (_, _, mapped) = entry.get_or_insert_with(|| (pg, epoch, map.map_pg(pg)));
    mapped
}

/// `Objecter::target_should_be_paused`.
fn should_pause<M: Placement>(map: &M, t: &OpTarget, honor_full: bool, pool_full: bool) -> bool {
    let flags = map.flags();
    let full = honor_full && t.respects_full() && (flags.has(OsdMapFlags::FULL) || pool_full);
    (t.flags.has(OsdFlags::READ) && flags.has(OsdMapFlags::PAUSERD))
        || (t.flags.has(OsdFlags::WRITE) && (flags.has(OsdMapFlags::PAUSEWR) || full))
}

fn next_random(state: &mut u64) -> u64 {
    let mut x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *state = x;
    x
}

/// Whether the cluster or a pool is full (`Objecter::_osdmap_pool_full`).
pub(super) fn full_in<M: Placement>(map: &M, pool: i64) -> bool {
    map.flags().has(OsdMapFlags::FULL) || map.pool(pool).is_some_and(|p| p.full)
}

/// `OSDMap::primary_changed_broken`, which is what clients compare by.
fn primary_changed(old: &Mapped, new: &Mapped) -> bool {
    if old.acting.is_empty() || new.acting.is_empty() {
        return old.acting.is_empty() != new.acting.is_empty();
    }
    let rank = |m: &Mapped| m.acting.iter().position(|&osd| osd == m.acting_primary);
    old.acting_primary != new.acting_primary || rank(old) != rank(new)
}

/// The member of the acting set that serves a read.
fn choose_replica<M: Placement>(
    map: &M,
    mapped: &Mapped,
    flags: OsdFlags,
    random: &mut u64,
) -> i32 {
    let there = |osd: &&i32| **osd >= 0 && **osd != ITEM_NONE;
    if flags.has(OsdFlags::BALANCE_READS) {
        let n = mapped.acting.iter().filter(there).count();
        if n == 0 {
            return mapped.acting_primary;
        }
        let pick = (next_random(random) % n as u64) as usize;
        return *mapped
            .acting
            .iter()
            .filter(there)
            .nth(pick)
            .unwrap_or(&mapped.acting_primary);
    }
    // The primary wins a tie, being first.
    mapped
        .acting
        .iter()
        .filter(there)
        .filter_map(|&osd| Some((map.distance(osd)?, osd)))
        .min_by_key(|&(distance, _)| distance)
        .map_or(mapped.acting_primary, |(_, osd)| osd)
}
