//! `OSDMap::apply_incremental` (`src/osd/OSDMap.cc`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blocklist::Key;
use super::map::index;
use super::osd::{self, Info, Osd, XInfo, state};
use super::{Incremental, MAX_OSDS, OsdMap, crush, flag, release};
use crate::codec::{DecodeError, UTime};

/// Why an incremental does not lead on from a map. The map is then unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("incremental osdmap {got} does not follow epoch {have}")]
    Gap { have: u32, got: u32 },
    #[error("incremental osdmap {0} belongs to another cluster")]
    OtherCluster(u32),
    #[error("incremental osdmap {epoch} names osd.{osd}, which is out of range")]
    NoSuchOsd { epoch: u32, osd: i32 },
    #[error("incremental osdmap {epoch}: {error}")]
    Decode {
        epoch: u32,
        #[source]
        error: DecodeError,
    },
}

impl OsdMap {
    /// Moves the map one epoch on.
    pub fn apply(&mut self, inc: &Incremental) -> Result<(), ApplyError> {
        let mut next = self.clone();
        next.apply_in_place(inc)?;
        *self = next;
        Ok(())
    }

    /// The next epoch's map, made from a shared one.
    pub fn next(&self, inc: &Incremental) -> Result<OsdMap, ApplyError> {
        let mut next = self.clone();
        next.apply_in_place(inc)?;
        Ok(next)
    }

    fn apply_in_place(&mut self, inc: &Incremental) -> Result<(), ApplyError> {
        let decode_error = |error| ApplyError::Decode {
            epoch: inc.epoch,
            error,
        };
        if inc.epoch.checked_sub(1) != Some(self.epoch) {
            return Err(ApplyError::Gap {
                have: self.epoch,
                got: inc.epoch,
            });
        }
        if inc.epoch == 1 {
            self.fsid = inc.fsid;
        } else if inc.fsid != self.fsid {
            return Err(ApplyError::OtherCluster(inc.epoch));
        }
        if !inc.full_map.is_empty() {
            *self = OsdMap::decode(&inc.full_map).map_err(decode_error)?;
            return Ok(());
        }
        self.epoch = inc.epoch;
        self.modified = inc.modified;
        self.apply_flags(inc);
        if let Some(max_osd) = inc.new_max_osd {
            self.set_max_osd(max_osd).ok_or(ApplyError::NoSuchOsd {
                epoch: inc.epoch,
                osd: max_osd,
            })?;
        }
        self.apply_pools(inc);
        self.apply_osds(inc)
            .map_err(|NoSuchOsd(osd)| ApplyError::NoSuchOsd {
                epoch: inc.epoch,
                osd,
            })?;
        self.apply_placement(inc);
        self.apply_blocklist(inc);
        self.apply_cluster(inc);
        // Last, since it depends on the release required by now.
        if !inc.crush.is_empty() {
            self.crush = Arc::new(crush::Map::decode(&inc.crush).map_err(decode_error)?);
            if self.require_osd_release >= release::LUMINOUS {
                self.crush_version = self.crush_version.wrapping_add(1);
            }
            let crush = &self.crush;
            self.device_class_flags
                .retain(|class, _| crush.class_name(*class).is_some());
        }
        Ok(())
    }

    fn apply_flags(&mut self, inc: &Incremental) {
        let Some(flags) = inc.new_flags else {
            return;
        };
        self.flags = flags;
        let at_least = if flags & flag::REQUIRE_KRAKEN != 0 {
            release::KRAKEN
        } else if flags & flag::REQUIRE_JEWEL != 0 {
            release::JEWEL
        } else {
            0
        };
        self.require_osd_release = self.require_osd_release.max(at_least);
    }

    fn set_max_osd(&mut self, max_osd: i32) -> Option<()> {
        let n = index(max_osd).filter(|n| *n <= MAX_OSDS)?;
        self.states.resize(n, 0);
        self.weights.resize(n, 0);
        self.osds.resize(n, Arc::default());
        if let Some(affinity) = &mut self.affinity {
            affinity.resize(n, osd::MAX_PRIMARY_AFFINITY);
        }
        Some(())
    }

    fn apply_pools(&mut self, inc: &Incremental) {
        if let Some(max) = inc.new_pool_max {
            self.pool_max = max as i32;
        }
        for (id, pool) in &inc.new_pools {
            let mut pool = pool.clone();
            pool.last_change = self.epoch;
            self.pools.insert(*id, Arc::new(pool));
        }
        self.new_removed_snaps.clone_from(&inc.new_removed_snaps);
        self.new_purged_snaps.clone_from(&inc.new_purged_snaps);
        for (pool, snaps) in &inc.new_removed_snaps {
            self.removed_snaps_queue
                .entry(*pool)
                .or_default()
                .union(snaps);
        }
        for (pool, snaps) in &inc.new_purged_snaps {
            if let Some(queue) = self.removed_snaps_queue.get_mut(pool) {
                queue.subtract(snaps);
                if queue.is_empty() {
                    self.removed_snaps_queue.remove(pool);
                }
            }
        }
        for (id, name) in &inc.new_pool_names {
            if let Some(old) = self.pool_names.insert(*id, name.clone()) {
                self.pools_by_name.remove(&old);
            }
            self.pools_by_name.insert(name.clone(), *id);
        }
        for id in &inc.old_pools {
            self.pools.remove(id);
            if let Some(name) = self.pool_names.remove(id) {
                self.pools_by_name.remove(&name);
            }
        }
    }

    fn apply_osds(&mut self, inc: &Incremental) -> Result<(), NoSuchOsd> {
        for (&id, &weight) in &inc.new_weight {
            let i = self.checked(id)?;
            self.weights[i] = weight;
            if weight != 0 {
                // Marked in: forget that it was ever out.
                self.states[i] |= state::EXISTS;
                self.states[i] &= !(state::AUTOOUT | state::NEW);
                self.osd_mut(i).xinfo.old_weight = 0;
            }
        }
        for (&id, &affinity) in &inc.new_primary_affinity {
            let i = self.checked(id)?;
            self.set_primary_affinity(i, affinity);
        }
        for (&id, &bits) in &inc.new_state {
            let i = self.checked(id)?;
            self.flip_state(i, if bits == 0 { state::UP } else { bits });
        }
        let epoch = self.epoch;
        for (&id, addrs) in &inc.new_up_client {
            let i = self.checked(id)?;
            self.states[i] |= state::EXISTS | state::UP;
            self.states[i] &= !state::STOP;
            let osd = self.osd_mut(i);
            osd.client_addrs.clone_from(addrs);
            osd.info.up_from = epoch;
            osd.hb_back_addrs = inc.new_hb_back_up.get(&id).cloned().unwrap_or_default();
            osd.hb_front_addrs = inc.new_hb_front_up.get(&id).cloned().unwrap_or_default();
        }
        self.each(&inc.new_up_cluster, |o, a| o.cluster_addrs.clone_from(a))?;
        self.each(&inc.new_up_thru, |o, e| o.info.up_thru = *e)?;
        self.each(&inc.new_last_clean_interval, |o, (begin, end)| {
            o.info.last_clean_begin = *begin;
            o.info.last_clean_end = *end;
        })?;
        self.each(&inc.new_lost, |o, e| o.info.lost_at = *e)?;
        self.each(&inc.new_xinfo, |o, x| o.xinfo = *x)?;
        self.each(&inc.new_uuid, |o, u| o.uuid = *u)
    }

    /// Flips state bits of one OSD; going down and going away leave their marks.
    fn flip_state(&mut self, i: usize, bits: u32) {
        let (epoch, modified) = (self.epoch, self.modified);
        let gone = self.states[i] & bits;
        if gone & state::UP != 0 {
            let osd = self.osd_mut(i);
            osd.info.down_at = epoch;
            osd.xinfo.down_stamp = modified;
        }
        if gone & state::EXISTS != 0 {
            self.states[i] = 0;
            self.set_primary_affinity(i, osd::MAX_PRIMARY_AFFINITY);
            let osd = self.osd_mut(i);
            *osd = Osd {
                info: Info::default(),
                xinfo: XInfo::default(),
                ..Osd::default()
            };
        } else {
            self.states[i] ^= bits;
        }
    }

    fn set_primary_affinity(&mut self, i: usize, affinity: u32) {
        let n = self.max_osd();
        let all = self
            .affinity
            .get_or_insert_with(|| vec![osd::MAX_PRIMARY_AFFINITY; n]);
        all[i] = affinity;
    }

    fn checked(&self, id: i32) -> Result<usize, NoSuchOsd> {
        index(id)
            .filter(|i| *i < self.max_osd())
            .ok_or(NoSuchOsd(id))
    }

    fn osd_mut(&mut self, i: usize) -> &mut Osd {
        Arc::make_mut(&mut self.osds[i])
    }

    fn each<T>(
        &mut self,
        changes: &BTreeMap<i32, T>,
        mut change: impl FnMut(&mut Osd, &T),
    ) -> Result<(), NoSuchOsd> {
        for (&id, value) in changes {
            let i = self.checked(id)?;
            change(self.osd_mut(i), value);
        }
        Ok(())
    }

    fn apply_placement(&mut self, inc: &Incremental) {
        for (pg, osds) in &inc.new_pg_temp {
            if osds.is_empty() {
                self.pg_temp.remove(pg);
            } else {
                self.pg_temp.insert(*pg, osds.clone());
            }
        }
        for (pg, &primary) in &inc.new_primary_temp {
            if primary == -1 {
                self.primary_temp.remove(pg);
            } else {
                self.primary_temp.insert(*pg, primary);
            }
        }
        update(&mut self.pg_upmap, &inc.new_pg_upmap, &inc.old_pg_upmap);
        update(
            &mut self.pg_upmap_items,
            &inc.new_pg_upmap_items,
            &inc.old_pg_upmap_items,
        );
        update(
            &mut self.pg_upmap_primary,
            &inc.new_pg_upmap_primary,
            &inc.old_pg_upmap_primary,
        );
    }

    fn apply_blocklist(&mut self, inc: &Incremental) {
        let list = &mut self.blocklist;
        for (addrs, new, old) in [
            (&mut list.addrs, &inc.new_blocklist, &inc.old_blocklist),
            (
                &mut list.ranges,
                &inc.new_range_blocklist,
                &inc.old_range_blocklist,
            ),
        ] {
            for (addr, until) in new {
                // What is listed already keeps its time, as in Ceph.
                addrs.entry(Key(*addr)).or_insert(*until);
            }
            for addr in old {
                addrs.remove(&Key(*addr));
            }
        }
    }

    fn apply_cluster(&mut self, inc: &Incremental) {
        for (when, new) in [
            (&mut self.last_up_change, inc.new_last_up_change),
            (&mut self.last_in_change, inc.new_last_in_change),
        ] {
            if new != UTime::default() {
                *when = new;
            }
        }
        update(
            &mut self.erasure_code_profiles,
            &BTreeMap::new(),
            &inc.old_erasure_code_profiles,
        );
        update(
            &mut self.erasure_code_profiles,
            &inc.new_erasure_code_profiles,
            &[],
        );
        for (flags, changes) in [
            (&mut self.crush_node_flags, &inc.new_crush_node_flags),
            (&mut self.device_class_flags, &inc.new_device_class_flags),
        ] {
            for (&id, &bits) in changes {
                if bits == 0 {
                    flags.remove(&id);
                } else {
                    flags.insert(id, bits);
                }
            }
        }
        self.cluster_snapshot.clone_from(&inc.cluster_snapshot);
        self.cluster_snapshot_epoch = if inc.cluster_snapshot.is_empty() {
            0
        } else {
            inc.epoch
        };
        for (ratio, new) in [
            (&mut self.nearfull_ratio, inc.new_nearfull_ratio),
            (&mut self.full_ratio, inc.new_full_ratio),
            (&mut self.backfillfull_ratio, inc.new_backfillfull_ratio),
        ] {
            if new >= 0.0 {
                *ratio = new;
            }
        }
        if let Some(release) = inc.new_require_min_compat_client {
            self.require_min_compat_client = release;
        }
        if let Some(release) = inc.new_require_osd_release {
            self.require_osd_release = release;
            self.imply_flags();
        }
        if let Some(stretch) = inc.new_stretch {
            self.stretch = stretch;
        }
        if let Some(allow) = inc.new_allow_crimson {
            self.allow_crimson = allow;
        }
    }
}

struct NoSuchOsd(i32);

fn update<K: Ord + Clone, V: Clone>(map: &mut BTreeMap<K, V>, new: &BTreeMap<K, V>, old: &[K]) {
    map.extend(new.iter().map(|(k, v)| (k.clone(), v.clone())));
    for key in old {
        map.remove(key);
    }
}
