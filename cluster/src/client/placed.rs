use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::codec::EntityAddrVec;
use crate::objecter::msg::{OsdMapFlags, PgId};
use crate::objecter::{Mapped, Placement, PoolView};
use crate::osdmap::{OsdMap, PlacementCache};

/// An OSD map as one client's objecter asks it, with what this client remembers of its PGs.
pub(super) struct Placed {
    map: Arc<OsdMap>,
    cache: RefCell<PlacementCache>,
}

impl Placed {
    pub(super) fn new(map: Arc<OsdMap>) -> Placed {
        Placed {
            map,
            cache: RefCell::default(),
        }
    }
}

impl Placement for Placed {
    fn epoch(&self) -> u32 {
        Placement::epoch(&*self.map)
    }

    fn flags(&self) -> OsdMapFlags {
        Placement::flags(&*self.map)
    }

    fn pool(&self, id: i64) -> Option<PoolView> {
        Placement::pool(&*self.map, id)
    }

    fn any_pool_full(&self) -> bool {
        self.map.any_pool_full()
    }

    fn object_hash(&self, pool: i64, namespace: &[u8], key: &[u8], name: &[u8]) -> Option<u32> {
        self.map.object_hash(pool, namespace, key, name)
    }

    fn map_pg(&self, pg: PgId) -> Mapped {
        let mut cache = self.cache.borrow_mut();
        let mapping = cache.map_pg(&self.map, pg);
        Mapped {
            up: SmallVec::from_slice(&mapping.up),
            acting: SmallVec::from_slice(&mapping.acting),
            up_primary: mapping.up_primary.unwrap_or(-1),
            acting_primary: mapping.acting_primary.unwrap_or(-1),
            shard: self.map.primary_shard(pg, mapping),
        }
    }

    fn osd_addrs(&self, osd: i32) -> Option<&EntityAddrVec> {
        Placement::osd_addrs(&*self.map, osd)
    }

    fn is_blocklisted(&self, addrs: &EntityAddrVec) -> bool {
        Placement::is_blocklisted(&*self.map, addrs)
    }

    fn newly_removed_snap(&self, pool: i64, snap: u64) -> bool {
        self.map.newly_removed_snap(pool, snap)
    }
}
