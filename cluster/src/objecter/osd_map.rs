//! The real map behind the objecter's questions.

use super::msg::{OsdMapFlags, PgId};
use super::placement::{Mapped, Placement, PoolShape, PoolView};
use crate::codec::EntityAddrVec;
use crate::osdmap::{OsdMap, Pool, pool::flag};

impl Placement for OsdMap {
    fn epoch(&self) -> u32 {
        OsdMap::epoch(self)
    }

    fn flags(&self) -> OsdMapFlags {
        OsdMapFlags(OsdMap::flags(self))
    }

    fn pool(&self, id: i64) -> Option<PoolView> {
        OsdMap::pool(self, id).map(view)
    }

    fn any_pool_full(&self) -> bool {
        self.pools().any(|(_, pool)| pool.has_flag(flag::FULL))
    }

    fn object_hash(&self, pool: i64, namespace: &[u8], key: &[u8], name: &[u8]) -> Option<u32> {
        let raw = self.object_to_pg(pool, namespace, key, name)?;
        Some(raw.seed)
    }

    fn map_pg(&self, pg: PgId) -> Mapped {
        let mapping = OsdMap::map_pg(self, pg);
        let shard = self.primary_shard(pg, &mapping);
        Mapped {
            up: mapping.up,
            acting: mapping.acting,
            up_primary: mapping.up_primary.unwrap_or(-1),
            acting_primary: mapping.acting_primary.unwrap_or(-1),
            shard,
        }
    }

    fn osd_addrs(&self, osd: i32) -> Option<&EntityAddrVec> {
        OsdMap::osd_addrs(self, osd).filter(|_| self.is_up(osd))
    }

    fn is_blocklisted(&self, addrs: &EntityAddrVec) -> bool {
        OsdMap::is_blocklisted(self, addrs)
    }

    fn newly_removed_snap(&self, pool: i64, snap: u64) -> bool {
        let removed = self.new_removed_snaps().get(&pool);
        removed.is_some_and(|snaps| snaps.contains(snap))
    }
}

fn view(pool: &Pool) -> PoolView {
    let crush = &pool.peering_crush;
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

fn tier(id: i64) -> Option<i64> {
    (id >= 0).then_some(id)
}
