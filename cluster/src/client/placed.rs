use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::codec::EntityAddrVec;
use crate::objecter::msg::{OsdMapFlags, PgId};
use crate::objecter::{Mapped, Placement, PoolShape, PoolView};
use crate::osdmap::pool::flag;
use crate::osdmap::{OsdMap, Pg, PlacementCache, Pool};

/// An OSD map as one client's objecter asks it, with what this client remembers of its PGs.
pub(super) struct Placed {
    map: Arc<OsdMap>,
    cache: RefCell<PlacementCache>,
    any_pool_full: bool,
}

impl Placed {
    pub(super) fn new(map: Arc<OsdMap>) -> Placed {
        let any_pool_full = map.pools().any(|(_, pool)| pool.has_flag(flag::FULL));
        Placed {
            map,
            cache: RefCell::default(),
            any_pool_full,
        }
    }
}

impl Placement for Placed {
    fn epoch(&self) -> u32 {
        self.map.epoch()
    }

    fn flags(&self) -> OsdMapFlags {
        OsdMapFlags(self.map.flags())
    }

    fn pool(&self, id: i64) -> Option<PoolView> {
        self.map.pool(id).map(view)
    }

    fn any_pool_full(&self) -> bool {
        self.any_pool_full
    }

    fn object_hash(&self, pool: i64, namespace: &[u8], key: &[u8], name: &[u8]) -> Option<u32> {
        self.map
            .object_to_pg(pool, namespace, key, name)
            .map(|pg| pg.seed)
    }

    fn map_pg(&self, pg: PgId) -> Mapped {
        let mut cache = self.cache.borrow_mut();
        let pg = Pg {
            pool: pg.pool,
            seed: pg.seed,
        };
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
        self.map
            .is_up(osd)
            .then(|| self.map.osd_addrs(osd))
            .flatten()
    }

    fn is_blocklisted(&self, addrs: &EntityAddrVec) -> bool {
        self.map.is_blocklisted(addrs)
    }

    fn newly_removed_snap(&self, pool: i64, snap: u64) -> bool {
        self.map
            .new_removed_snaps()
            .get(&pool)
            .is_some_and(|gone| gone.contains(snap))
    }
}

fn view(pool: &Pool) -> PoolView {
    let crush = &pool.peering_crush;
    let tier = |id: i64| (id >= 0).then_some(id);
    PoolView {
        pg_num: pool.pg_num,
        pg_num_pending: pool.pg_num_pending,
        shape: PoolShape {
            size: pool.size.into(),
            min_size: pool.min_size.into(),
            peering_crush_bucket: [
                crush.bucket_count,
                crush.bucket_target,
                crush.bucket_barrier,
            ],
            peering_crush_mandatory_member: crush.mandatory_member as i32,
            ec_optimizations: pool.has_flag(flag::EC_OPTIMIZATIONS),
        },
        erasure: pool.is_erasure(),
        full: pool.has_flag(flag::FULL),
        eio: pool.has_flag(flag::EIO),
        last_force_op_resend: pool.last_force_op_resend,
        read_tier: tier(pool.read_tier),
        write_tier: tier(pool.write_tier),
    }
}
