//! Pools and their snapshots as libraries ask for them (`OSDMonitor::{preprocess,prepare}_pool_op`).

use crate::codec::{Now, Put, UTime};
use crate::mon::message::{MPoolOp, pool_op};
use crate::osdmap::pool::{CacheTargets, HitSet, PoolSnap, flag};
use crate::osdmap::{Incremental, Pool, SnapIntervals};

use super::command::{EEXIST, EINVAL, ENOENT, ENOTSUP, EPERM, ERANGE, Refusal, refuse};
use super::{Mon, state};

impl Mon {
    /// Runs one operation. Yields the answer's data.
    pub(super) fn pool_op(&mut self, op: &MPoolOp, now: Now) -> Result<Vec<u8>, Refusal> {
        if op.op == pool_op::CREATE {
            return match self.create_pool(&op.name, None, None, now, |_| Ok(())) {
                Ok(_) => Ok(Vec::new()),
                Err(refusal) => Err(refusal),
            };
        }
        let id = i64::from(op.pool);
        let Some(pool) = self.map().pool(id).cloned() else {
            // Who deletes a pool twice has what they want.
            return match op.op {
                pool_op::DELETE => Ok(Vec::new()),
                _ => Err(refuse(ENOENT, format!("pool {id} does not exist"))),
            };
        };
        match op.op {
            pool_op::DELETE => self.delete_pool(id, now).map(|()| Vec::new()),
            pool_op::CREATE_SNAP => self.create_pool_snap(id, pool, &op.name, now),
            pool_op::DELETE_SNAP => self.delete_pool_snap(id, pool, &op.name, now),
            pool_op::CREATE_UNMANAGED_SNAP => self.create_unmanaged_snap(id, pool, now),
            pool_op::DELETE_UNMANAGED_SNAP => {
                self.delete_unmanaged_snap(id, pool, op.snapid, now)?;
                Ok(Vec::new())
            }
            other => Err(refuse(ENOTSUP, format!("pool operation {other}"))),
        }
    }

    pub(super) fn create_pool_snap(
        &mut self,
        id: i64,
        mut pool: Pool,
        name: &str,
        now: Now,
    ) -> Result<Vec<u8>, Refusal> {
        if pool.is_unmanaged_snaps() {
            return Err(refuse(EINVAL, "pool is in selfmanaged snaps mode"));
        }
        if pool.snaps.values().any(|s| s.name == name) {
            return Ok(Vec::new());
        }
        pool.flags |= flag::POOL_SNAPS;
        pool.snap_seq += 1;
        let snap = PoolSnap {
            stamp: UTime::from_nanos(now.wall),
            name: name.to_owned(),
        };
        pool.snaps.insert(pool.snap_seq, snap);
        self.snaps_changed(id, pool, None, now)?;
        Ok(Vec::new())
    }

    pub(super) fn delete_pool_snap(
        &mut self,
        id: i64,
        mut pool: Pool,
        name: &str,
        now: Now,
    ) -> Result<Vec<u8>, Refusal> {
        if pool.is_unmanaged_snaps() {
            return Err(refuse(EINVAL, "pool is in selfmanaged snaps mode"));
        }
        let found = pool.snaps.iter().find(|(_, s)| s.name == name);
        if let Some(snap) = found.map(|(snap, _)| *snap) {
            pool.snaps.remove(&snap);
            self.snaps_changed(id, pool, Some(snap), now)?;
        }
        Ok(Vec::new())
    }

    fn create_unmanaged_snap(
        &mut self,
        id: i64,
        mut pool: Pool,
        now: Now,
    ) -> Result<Vec<u8>, Refusal> {
        if pool.is_pool_snaps() {
            return Err(refuse(EINVAL, "pool is in pool snaps mode"));
        }
        pool.flags |= flag::SELFMANAGED_SNAPS;
        // The first id is 2 (`pg_pool_t::add_unmanaged_snap`).
        pool.snap_seq = pool.snap_seq.max(1) + 1;
        let mut reply = Vec::with_capacity(8);
        reply.put_u64(pool.snap_seq);
        self.snaps_changed(id, pool, None, now)?;
        Ok(reply)
    }

    fn delete_unmanaged_snap(
        &mut self,
        id: i64,
        pool: Pool,
        snap: u64,
        now: Now,
    ) -> Result<(), Refusal> {
        if pool.is_pool_snaps() {
            return Err(refuse(EINVAL, "pool is in pool snaps mode"));
        }
        let holds = |set: Option<&SnapIntervals>| set.is_some_and(|s| s.contains(snap));
        if holds(self.map().removed_snaps_queue().get(&id)) || holds(self.purged.get(&id)) {
            return Ok(());
        }
        if !pool.is_unmanaged_snaps() {
            return Err(refuse(ENOTSUP, "pool is not in selfmanaged snaps mode"));
        }
        if snap > pool.snap_seq {
            return Err(refuse(ENOENT, format!("snapshot {snap} does not exist")));
        }
        self.snaps_changed(id, pool, Some(snap), now)
    }

    fn snaps_changed(
        &mut self,
        id: i64,
        mut pool: Pool,
        removed: Option<u64>,
        now: Now,
    ) -> Result<(), Refusal> {
        pool.snap_epoch = self.map().epoch() + 1;
        let mut inc = Incremental::default();
        inc.new_pools.insert(id, pool);
        if let Some(snap) = removed {
            let mut set = SnapIntervals::default();
            set.insert(snap, 1);
            inc.new_removed_snaps.insert(id, set);
        }
        self.propose(inc, now)?;
        Ok(())
    }

    /// Makes a pool of one copy, with the default number of placement groups unless told otherwise.
    /// `more` sets what else was asked for.
    pub(super) fn create_pool(
        &mut self,
        name: &str,
        pg_num: Option<u32>,
        pgp_num: Option<u32>,
        now: Now,
        more: impl FnOnce(&mut Pool) -> Result<(), Refusal>,
    ) -> Result<i64, Refusal> {
        if name.is_empty() {
            return Err(refuse(EINVAL, "pool name is empty"));
        }
        if self.map().pool_by_name(name).is_some() {
            return Err(refuse(EEXIST, format!("pool '{name}' already exists")));
        }
        let pg_num = pg_num.filter(|n| *n != 0).unwrap_or(self.config.pg_num);
        if pgp_num.is_some_and(|n| n > pg_num) {
            let why = format!(
                "'pgp_num' must be greater than 0 and lower or equal than 'pg_num', which in this case is {pg_num}"
            );
            return Err(refuse(ERANGE, why));
        }
        self.check_pg_num(None, pg_num)?;
        let id = i64::from(self.map().pool_max()) + 1;
        let mut inc = Incremental {
            new_pool_max: Some(id),
            ..Incremental::default()
        };
        let mut pool = new_pool(pg_num, now);
        if let Some(n) = pgp_num.filter(|n| *n != 0) {
            (pool.pgp_num, pool.pgp_num_target) = (n, n);
        }
        more(&mut pool)?;
        inc.new_pools.insert(id, pool);
        inc.new_pool_names.insert(id, name.to_owned());
        self.propose(inc, now)?;
        Ok(id)
    }

    pub(super) fn delete_pool(&mut self, id: i64, now: Now) -> Result<(), Refusal> {
        if self
            .map()
            .pool(id)
            .is_some_and(|p| p.has_flag(flag::NODELETE))
        {
            let why = "pool deletion is disabled; you must unset nodelete flag for the pool first";
            return Err(refuse(EPERM, why));
        }
        let mut inc = Incremental {
            old_pools: vec![id],
            ..Incremental::default()
        };
        // Its snapshots go with it.
        if let Some(queue) = self.map().removed_snaps_queue().get(&id) {
            inc.new_purged_snaps.insert(id, queue.clone());
        }
        self.propose_with(inc, &[state::purged_removal(id)], now)?;
        self.trimmed.remove(&id);
        self.purged.remove(&id);
        Ok(())
    }
}

/// As `OSDMonitor::prepare_new_pool` makes it, with one copy.
fn new_pool(pg_num: u32, now: Now) -> Pool {
    Pool {
        size: 1,
        min_size: 1,
        crush_rule: 0,
        // `CEPH_STR_HASH_RJENKINS`.
        object_hash: 2,
        pg_num,
        pgp_num: pg_num,
        pg_num_target: pg_num,
        pgp_num_target: pg_num,
        pg_num_pending: pg_num,
        flags: flag::HASHPSPOOL,
        tier_of: -1,
        read_tier: -1,
        write_tier: -1,
        hit_set: HitSet {
            // `HitSet::Params` of no type.
            params: vec![1, 1, 1, 0, 0, 0, 0],
            use_gmt: true,
            ..HitSet::default()
        },
        cache: CacheTargets {
            dirty_ratio_micro: 400_000,
            dirty_high_ratio_micro: 600_000,
            full_ratio_micro: 800_000,
            ..CacheTargets::default()
        },
        create_time: UTime::from_nanos(now.wall),
        ..Pool::default()
    }
}
