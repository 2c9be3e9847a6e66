//! Placements remembered for the epoch they hold in.

use super::{OsdMap, Pg, PgMapping, Workspace};

/// Pools with more PGs than this are mapped anew each time, lest the cache outgrow its use.
const MAX_PGS: u32 = 1 << 14;

/// Remembers where PGs live: mapping one costs one to several microseconds, looking it up ten
/// nanoseconds (`speed.rs`). One owner each, while the map itself is shared.
#[derive(Debug, Default)]
pub struct PlacementCache {
    fsid: [u8; 16],
    pools: Vec<(i64, Vec<Entry>)>,
    workspace: Workspace,
    /// The PG asked for last, where its pool is not remembered.
    other: Entry,
}

/// A mapping and the epoch it was made for; 0 before the first.
#[derive(Debug, Clone, Default)]
struct Entry {
    epoch: u32,
    mapping: PgMapping,
}

impl PlacementCache {
    pub fn new() -> PlacementCache {
        PlacementCache::default()
    }

    /// Where `pg` lives in `map`, as [`OsdMap::map_pg`] says. Allocates only when it sees a pool
    /// for the first time or with more PGs than before.
    #[inline]
    pub fn map_pg(&mut self, map: &OsdMap, pg: Pg) -> &PgMapping {
        if self.fsid != map.fsid {
            self.fsid = map.fsid;
            self.pools.clear();
        }
        let known = self.pools.iter().position(|(pool, _)| *pool == pg.pool);
        let at = match known {
            Some(at) if (pg.seed as usize) < self.pools[at].1.len() => Some(at),
            _ => self.make_room(map, pg),
        };
        let entry = match at {
            Some(at) => &mut self.pools[at].1[pg.seed as usize],
            None => {
                self.other.epoch = 0;
                &mut self.other
            }
        };
        if entry.epoch != map.epoch {
            // An error leaves the sets empty, which is the answer then.
            let _ = map.map_pg_into(pg, &mut self.workspace, &mut entry.mapping);
            entry.epoch = map.epoch;
        }
        &entry.mapping
    }

    /// Makes room for all PGs of `pg`'s pool, unless there are too many or `pg` is not one of them.
    #[cold]
    fn make_room(&mut self, map: &OsdMap, pg: Pg) -> Option<usize> {
        let pg_num = map.pool(pg.pool)?.pg_num;
        if pg.seed >= pg_num || pg_num > MAX_PGS {
            return None;
        }
        self.pools.retain(|(pool, _)| map.pool(*pool).is_some());
        let at = match self.pools.iter().position(|(pool, _)| *pool == pg.pool) {
            Some(at) => at,
            None => {
                self.pools.push((pg.pool, Vec::new()));
                self.pools.len() - 1
            }
        };
        self.pools[at].1.resize(pg_num as usize, Entry::default());
        Some(at)
    }
}
