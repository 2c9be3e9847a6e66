//! The first epoch, and what a start changes in a map that is there.

use crate::codec::{Now, UTime};
use crate::osdmap::osd::state;
use crate::osdmap::{Incremental, OsdMap, crush, flag, release};

use super::store::MonStoreError;
use super::{Mon, maps};

/// Of the OSDs, as the map promises it to clients.
///
/// Nothing that a client does for a replicated pool depends on a release after Octopus, whose
/// snapshot queues we use. Pacific is the oldest that all of today's clients know by name: the
/// tools of Ceph 16 print `unknown` for anything newer, and from Reef on the client section has
/// fields that they skip.
const RELEASE: u8 = release::PACIFIC;

impl Mon {
    pub(super) fn make_first_map(&mut self, now: Now) -> Result<(), MonStoreError> {
        let count = self.config.osds as i32;
        let stamp = UTime::from_nanos(now.wall);
        let mut inc = Incremental {
            fsid: self.config.fsid,
            epoch: 1,
            modified: stamp,
            new_flags: Some(
                flag::SORTBITWISE
                    | flag::RECOVERY_DELETES
                    | flag::PURGED_SNAPDIRS
                    | flag::PGLOG_HARDLIMIT,
            ),
            new_pool_max: Some(0),
            new_nearfull_ratio: 0.85,
            new_backfillfull_ratio: 0.90,
            new_full_ratio: 0.95,
            new_require_min_compat_client: Some(release::LUMINOUS),
            new_require_osd_release: Some(RELEASE),
            encode_features: maps::FEATURES,
            ..Incremental::default()
        };
        self.set_osds(&OsdMap::new_empty(), count, &mut inc);
        let map = OsdMap::new_empty()
            .next(&inc)
            .map_err(|error| MonStoreError::Damaged {
                what: "the first map".to_owned(),
                why: error.to_string(),
            })?
            .with_created(stamp);
        let full = map.encode();
        // Who asks for epoch 1 gets the whole map: there is nothing before it.
        self.accept(map, full, None, &[]).map(drop)
    }

    /// A loaded map: its OSDs went down with the last process, and there may be more or fewer now.
    pub(super) fn take_up(&mut self, now: Now) -> Result<(), MonStoreError> {
        let map = std::sync::Arc::clone(self.maps.current());
        if map.fsid() != self.config.fsid {
            return Err(MonStoreError::OtherCluster {
                have: crate::osd::uuid::text(&map.fsid()),
                want: crate::osd::uuid::text(&self.config.fsid),
            });
        }
        self.announce_current();
        let mut inc = Incremental::default();
        for id in 0..map.max_osd() as i32 {
            if map.is_up(id) {
                inc.new_state.insert(id, state::UP);
            }
        }
        let count = self.config.osds as i32;
        let exist = (0..map.max_osd() as i32)
            .filter(|id| map.exists(*id))
            .count();
        if exist != count as usize {
            self.set_osds(&map, count, &mut inc);
        }
        if !inc.new_state.is_empty() || !inc.crush.is_empty() {
            inc.new_last_up_change = UTime::from_nanos(now.wall);
            self.propose(inc, now)?;
        }
        Ok(())
    }

    /// OSDs 0 to `count` exist and no others; they are out until they boot.
    fn set_osds(&mut self, map: &OsdMap, count: i32, inc: &mut Incremental) {
        let weights: Vec<(i32, u32)> = (0..count).map(|id| (id, self.config.osd_weight)).collect();
        let crush = crush::Map::one_host(&self.config.host, &self.config.device_class, &weights);
        crush.encode(&mut inc.crush, false);
        inc.new_max_osd = Some(count);
        for id in 0..count {
            if !map.exists(id) {
                inc.new_state.insert(id, state::EXISTS | state::NEW);
                inc.new_weight.insert(id, 0);
                let mut uuid = [0; 16];
                (self.entropy)(&mut uuid);
                let uuid = crate::osd::uuid::of_random(uuid);
                inc.new_uuid.insert(id, uuid);
            }
        }
        // Those beyond the new end leave the map with their entries.
        inc.new_state.retain(|id, _| *id < count);
    }
}
