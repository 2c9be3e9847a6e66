//! OSDs' comings and goings, what they report, and what follows from that for the map.

use std::collections::BTreeMap;

use crate::codec::{EntityAddrVec, Now, UTime};
use crate::osdmap::osd::{self, XInfo, state};
use crate::osdmap::pool::flag as pool_flag;
use crate::osdmap::{Incremental, Pg, SnapIntervals};

use super::store::MonStoreError;
use super::{Mon, OsdUsage, Outbox, maps};

impl Mon {
    /// An OSD serves at these addresses from now on. One that was out because it had never been up,
    /// or had been marked out automatically, is in again.
    pub fn osd_boot(
        &mut self,
        id: i32,
        addrs: &EntityAddrVec,
        now: Now,
        out: &mut Outbox,
    ) -> Result<(), MonStoreError> {
        let map = self.map().clone();
        if !map.exists(id) {
            return Err(MonStoreError::Damaged {
                what: format!("boot of osd.{id}"),
                why: "no such OSD".to_owned(),
            });
        }
        if map.is_up(id) {
            if map.osd_addrs(id) == Some(addrs) {
                return Ok(());
            }
            // It came back before anybody noticed; clients must see it go.
            self.mark_down(id, now)?;
        }
        let stamp = UTime::from_nanos(now.wall);
        let known = map.osd(id).map(|o| o.xinfo).unwrap_or_default();
        let mut inc = Incremental {
            new_up_client: [(id, addrs.clone())].into(),
            // Nobody but clients talks to it.
            new_up_cluster: [(id, addrs.clone())].into(),
            new_hb_back_up: [(id, addrs.clone())].into(),
            new_hb_front_up: [(id, addrs.clone())].into(),
            new_xinfo: [(
                id,
                XInfo {
                    features: maps::FEATURES,
                    ..known
                },
            )]
            .into(),
            new_last_up_change: stamp,
            ..Incremental::default()
        };
        if map.osd_state(id) & (state::NEW | state::AUTOOUT) != 0 {
            inc.new_weight.insert(id, osd::IN);
            inc.new_last_in_change = stamp;
        }
        self.propose(inc, now)?;
        self.publish(out);
        Ok(())
    }

    /// An OSD's thread is gone. With one copy of everything nobody can take its place, so it is
    /// marked down and stays in: clients wait for it.
    pub fn osd_failed(&mut self, id: i32, now: Now, out: &mut Outbox) -> Result<(), MonStoreError> {
        if self.map().is_up(id) {
            self.mark_down(id, now)?;
            self.publish(out);
        }
        Ok(())
    }

    pub(super) fn mark_down(&mut self, id: i32, now: Now) -> Result<u32, MonStoreError> {
        let inc = Incremental {
            new_state: [(id, state::UP)].into(),
            new_last_up_change: UTime::from_nanos(now.wall),
            ..Incremental::default()
        };
        self.propose(inc, now)
    }

    /// What an OSD holds. It counts for `df`, `rados df` and quotas until the next report.
    pub fn usage(&mut self, id: i32, usage: OsdUsage) {
        self.usage.osds.insert(id, usage);
    }

    /// A placement group no longer has anything of these removed snapshots. It says so in an
    /// interval that began in `since`; of a group that was split or merged since then that is
    /// worth nothing, and it will say it again.
    pub fn pg_trimmed(&mut self, pg: Pg, since: u32, snaps: &SnapIntervals) {
        if self.reshaped.get(&pg.pool).is_some_and(|e| since < *e) {
            return;
        }
        let Some(queue) = self.map().removed_snaps_queue().get(&pg.pool) else {
            return;
        };
        // Only what is asked for is remembered.
        let mut wanted = SnapIntervals::default();
        for (start, len) in overlap(snaps, queue).iter() {
            wanted.insert(start, len);
        }
        let done = self.trimmed.entry(pg.pool).or_default();
        let done = done.entry(pg.seed).or_default();
        wanted
            .iter()
            .for_each(|(start, len)| done.insert(start, len));
    }

    /// The groups of these pools are others now.
    pub(super) fn forget_reports(&mut self, pools: &[i64], epoch: u32) {
        for id in pools {
            self.trimmed.remove(id);
            self.reshaped.insert(*id, epoch);
        }
    }

    /// Snapshots that every placement group of their pool has trimmed leave the queue
    /// (`OSDMonitor::try_prune_purged_snaps`). Yields what is purged in all, of those pools.
    pub(super) fn collect_purged(
        &self,
        inc: &mut Incremental,
    ) -> Option<BTreeMap<i64, SnapIntervals>> {
        let map = self.map();
        let mut all = BTreeMap::new();
        for (pool, pgs) in &self.trimmed {
            let (Some(queue), Some(info)) = (map.removed_snaps_queue().get(pool), map.pool(*pool))
            else {
                continue;
            };
            if (pgs.len() as u64) < u64::from(info.pg_num) {
                continue;
            }
            let everywhere = pgs
                .values()
                .fold(queue.clone(), |all, pg| overlap(&all, pg));
            if everywhere.is_empty() {
                continue;
            }
            let mut purged = self.purged.get(pool).cloned().unwrap_or_default();
            everywhere.iter().for_each(|(s, l)| purged.insert(s, l));
            all.insert(*pool, purged);
            inc.new_purged_snaps.insert(*pool, everywhere);
        }
        (!all.is_empty()).then_some(all)
    }

    /// The map has it now.
    pub(super) fn forget_purged(&mut self, purged: BTreeMap<i64, SnapIntervals>) {
        for (pool, all) in purged {
            for pg in self.trimmed.entry(pool).or_default().values_mut() {
                all.iter().for_each(|(start, len)| pg.remove(start, len));
            }
            self.purged.insert(pool, all);
        }
        let map = self.map().clone();
        self.trimmed
            .retain(|pool, _| map.removed_snaps_queue().contains_key(pool));
    }

    /// Pools above their quota are full, and no longer when they are below
    /// (`OSDMonitor::update_pool_flags`, `check_pg_creates...`).
    pub(super) fn watch_quotas(&self, inc: &mut Incremental) -> bool {
        let mut changed = false;
        for (id, pool) in self.map().pools() {
            let used = self.usage.pool(id);
            let over = |quota: u64, used: u64| quota != 0 && used >= quota;
            let full = over(pool.quota_max_bytes, used.bytes)
                || over(pool.quota_max_objects, used.objects);
            let quota_full = pool.has_flag(pool_flag::FULL_QUOTA);
            if full == quota_full {
                continue;
            }
            let next = inc.new_pools.entry(id).or_insert_with(|| pool.clone());
            let both = pool_flag::FULL | pool_flag::FULL_QUOTA;
            match full {
                true => next.flags |= both,
                false => next.flags &= !both,
            }
            changed = true;
        }
        changed
    }

    /// Entries whose time has come (`OSDMonitor::tick`).
    pub(super) fn expire_blocklist(&self, now: Now, inc: &mut Incremental) -> bool {
        let wall = UTime::from_nanos(now.wall);
        let list = self.map().blocklist();
        inc.old_blocklist.extend(
            list.addrs()
                .filter(|(_, until)| *until < wall)
                .map(|(a, _)| *a),
        );
        inc.old_range_blocklist.extend(
            list.ranges()
                .filter(|(_, until)| *until < wall)
                .map(|(a, _)| *a),
        );
        !inc.old_blocklist.is_empty() || !inc.old_range_blocklist.is_empty()
    }
}

/// What both sets have.
pub(super) fn overlap(a: &SnapIntervals, b: &SnapIntervals) -> SnapIntervals {
    let mut both = SnapIntervals::default();
    for (start, len) in a.iter() {
        let end = start.saturating_add(len);
        for (other, other_len) in b.iter() {
            let (from, to) = (start.max(other), end.min(other.saturating_add(other_len)));
            if from < to {
                both.insert(from, to - from);
            }
        }
    }
    both
}
