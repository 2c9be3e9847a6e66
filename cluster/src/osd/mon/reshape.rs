//! The number of a pool's placement groups, on its way to what was asked for.
//!
//! In Ceph a manager does this (`DaemonServer::adjust_pgs`): a few groups at a time, merges only
//! where source and target are on the same OSDs, clean and ready. Here a group has one copy, the
//! OSDs bring sources to their targets by themselves, and requests wait for them meanwhile, so
//! neither `pgp_num` has to go first nor has `pg_num_pending` to announce anything. What is left of
//! it are the steps: between two of them the OSDs serve.

use crate::codec::Now;
use crate::osdmap::pool::flag;
use crate::osdmap::{Incremental, Pg, Pool};

use super::Mon;
use super::command::{EINVAL, EPERM, ERANGE, Refusal, refuse};

/// Most placement groups of one pool (`mon_max_pool_pg_num`).
const MAX_PG_NUM: u32 = 65536;
/// `mon_max_pg_per_osd`, unless that option says otherwise.
const MAX_PER_OSD: u64 = 250;
/// Fewer OSDs than this are counted as so many (`OSDMonitor::check_pg_num`).
const MIN_OSDS: u64 = 3;
/// Groups that one epoch splits off or merges. On disks each costs a commit of the store, during
/// which its OSD serves nobody.
const STEP: u32 = 16;

fn is_settled(pool: &Pool) -> bool {
    pool.pg_num == pool.pg_num_target && pool.pgp_num == pgp_goal(pool, pool.pg_num)
}

fn pgp_goal(pool: &Pool, pg_num: u32) -> u32 {
    pool.pgp_num_target.min(pg_num)
}

/// Brings a pool one step nearer to its targets.
fn step(pool: &mut Pool, id: i64, epoch: u32) {
    let had = pool.pg_num;
    let to = pool.pg_num_target.max(1);
    pool.pg_num = to.clamp(had.saturating_sub(STEP), had.saturating_add(STEP));
    pool.pg_num_pending = pool.pg_num;
    pool.pgp_num = pgp_goal(pool, pool.pg_num);
    if pool.pg_num == had {
        return;
    }
    // Clients that do not know that splits, or merges, begin a new interval.
    pool.last_force_op_resend_preluminous = epoch;
    if pool.pg_num < had {
        pool.last_force_op_resend_prenautilus = epoch;
        pool.last_pg_merge.source = Pg {
            pool: id,
            seed: pool.pg_num,
        };
        pool.last_pg_merge.ready_epoch = epoch;
    }
}

impl Mon {
    /// One step for each pool that is not as it is to be; false when there is none.
    pub(super) fn step_pgs(&self, inc: &mut Incremental) -> bool {
        let epoch = self.map().epoch() + 1;
        let mut any = false;
        for (id, pool) in self.map().pools().filter(|(_, p)| !is_settled(p)) {
            let pool = inc.new_pools.entry(id).or_insert_with(|| pool.clone());
            step(pool, id, epoch);
            any = true;
        }
        any
    }

    /// Whether a pool may have this many groups. `None` is a pool that is still to be made.
    pub(super) fn check_pg_num(&self, pool: Option<i64>, pg_num: u32) -> Result<(), Refusal> {
        if !(1..=MAX_PG_NUM).contains(&pg_num) {
            let why = format!(
                "'pg_num' must be greater than 0 and less than or equal to {MAX_PG_NUM} (you may adjust 'mon max pool pg num' for higher values)"
            );
            return Err(refuse(ERANGE, why));
        }
        let others = self.map().pools().filter(|(id, _)| Some(*id) != pool);
        let others: u64 = others.map(|(_, p)| u64::from(p.pg_num_target)).sum();
        let projected = others + u64::from(pg_num);
        let osds = (self.map().osd_count() as u64).max(MIN_OSDS);
        let max = self.option("mon_max_pg_per_osd").unwrap_or(MAX_PER_OSD);
        let per_osd = projected / osds;
        if per_osd > max {
            let who = pool.map(|id| format!("pool id {id}")).unwrap_or_default();
            let why = format!(
                "{who} pg_num {pg_num} size 1 for this pool would result in {per_osd} cumulative PGs per OSD ({projected} total PG replicas on {osds} 'in' root OSDs by crush rule) which exceeds the mon_max_pg_per_osd value of {max}"
            );
            return Err(refuse(ERANGE, why));
        }
        Ok(())
    }

    /// A number that `ceph config set` gave to the monitor.
    fn option(&self, name: &str) -> Option<u64> {
        let of = |section: &str| self.options.get(section)?.get(name)?.parse().ok();
        of(&format!("mon.{}", self.config.name))
            .or_else(|| of("mon"))
            .or_else(|| of("global"))
    }

    /// Sets what `pg_num` is to become (`OSDMonitor::prepare_command_pool_set`).
    pub(super) fn aim_pg_num(&self, id: i64, pool: &mut Pool, n: u32) -> Result<(), Refusal> {
        may_change(pool, "pg_num")?;
        if n == pool.pg_num_target {
            return Ok(());
        }
        if n > pool.pg_num_target || n == 0 {
            self.check_pg_num(Some(id), n)?;
        }
        if let Some(min) = limit(pool, PG_NUM_MIN).filter(|min| i64::from(n) < *min) {
            let why = format!("specified pg_num {n} < pg_num_min {min}");
            return Err(refuse(EINVAL, why));
        }
        if let Some(max) = limit(pool, PG_NUM_MAX).filter(|max| i64::from(n) > *max) {
            let why = format!("specified pg_num {n} > pg_num_max {max}");
            return Err(refuse(EINVAL, why));
        }
        // Whoever set pgp_num apart controls it himself.
        if pool.pg_num_target == pool.pgp_num_target {
            pool.pgp_num_target = n;
        }
        pool.pg_num_target = n;
        Ok(())
    }

    /// The first step after a command; the others are the tick's.
    pub(super) fn begin_reshape(&mut self, now: Now) -> Result<(), Refusal> {
        let mut inc = Incremental::default();
        if self.step_pgs(&mut inc) {
            self.propose(inc, now)?;
        }
        Ok(())
    }
}

/// Likewise for `pgp_num`.
pub(super) fn aim_pgp_num(pool: &mut Pool, n: u32) -> Result<(), Refusal> {
    may_change(pool, "pgp_num")?;
    if n == 0 {
        let why = format!("specified pgp_num must > 0, but you set to {n}");
        return Err(refuse(EINVAL, why));
    }
    if n > pool.pg_num_target {
        let why = format!("specified pgp_num {n} > pg_num {}", pool.pg_num_target);
        return Err(refuse(EINVAL, why));
    }
    pool.pgp_num_target = n;
    Ok(())
}

fn may_change(pool: &Pool, what: &str) -> Result<(), Refusal> {
    if pool.has_flag(flag::NOPGCHANGE) {
        let why = format!(
            "pool {what} change is disabled; you must unset nopgchange flag for the pool first"
        );
        return Err(refuse(EPERM, why));
    }
    Ok(())
}

/// `pool_opts_t::PG_NUM_MIN` and `PG_NUM_MAX`.
pub(super) const PG_NUM_MIN: i32 = 15;
pub(super) const PG_NUM_MAX: i32 = 23;

fn limit(pool: &Pool, key: i32) -> Option<i64> {
    match pool.opts.get(&key) {
        Some(crate::osdmap::pool::PoolOpt::Int(n)) if *n > 0 => Some(*n),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(pg_num: u32) -> Pool {
        Pool {
            pg_num,
            pgp_num: pg_num,
            pg_num_target: pg_num,
            pgp_num_target: pg_num,
            pg_num_pending: pg_num,
            ..Pool::default()
        }
    }

    /// What a pool goes through until it is settled.
    fn path(mut pool: Pool) -> Vec<(u32, u32)> {
        let mut path = Vec::new();
        while !is_settled(&pool) {
            step(&mut pool, 1, 7);
            assert_eq!(pool.pg_num_pending, pool.pg_num);
            path.push((pool.pg_num, pool.pgp_num));
        }
        path
    }

    #[test]
    fn steps_are_bounded_and_end() {
        let mut p = pool(8);
        (p.pg_num_target, p.pgp_num_target) = (40, 40);
        assert_eq!(path(p), [(24, 24), (40, 40)]);
        let mut p = pool(40);
        (p.pg_num_target, p.pgp_num_target) = (4, 4);
        assert_eq!(path(p), [(24, 4), (8, 4), (4, 4)]);
        // pgp_num apart.
        let mut p = pool(40);
        p.pgp_num_target = 9;
        assert_eq!(path(p.clone()), [(40, 9)]);
        p.pg_num_target = 5;
        assert_eq!(path(p), [(24, 9), (8, 8), (5, 5)]);
        assert!(path(pool(3)).is_empty());
    }

    #[test]
    fn old_clients_are_told_to_send_again() {
        let mut p = pool(8);
        p.pg_num_target = 4;
        step(&mut p, 3, 9);
        let forced = (
            p.last_force_op_resend_preluminous,
            p.last_force_op_resend_prenautilus,
            p.last_force_op_resend,
        );
        assert_eq!(forced, (9, 9, 0));
        assert_eq!(p.last_pg_merge.source, Pg { pool: 3, seed: 4 });
    }
}
