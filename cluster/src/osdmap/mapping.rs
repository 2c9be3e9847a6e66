//! From objects to PGs to OSDs (`OSDMap::_pg_to_up_acting_osds` of `src/osd/OSDMap.cc`).

use super::crush::hash::hash2;
use super::crush::{ITEM_NONE, MapError, OsdSet, Workspace};
use super::osd::MAX_PRIMARY_AFFINITY;
use super::pool::flag;
use super::{OsdMap, Pg, Pool, RawPg};

/// Where a PG lives. In erasure-coded pools the place in a set is the shard, and
/// [`ITEM_NONE`] stands for a missing one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PgMapping {
    /// Where it should be.
    pub up: OsdSet,
    pub up_primary: Option<i32>,
    /// Who serves it now. Requests go to the primary of these.
    pub acting: OsdSet,
    pub acting_primary: Option<i32>,
}

impl OsdMap {
    /// The raw PG of an object. `key` is the locator key that stands in for the name; empty means
    /// none. None when the pool does not exist.
    #[inline]
    pub fn object_to_pg(
        &self,
        pool: i64,
        namespace: &[u8],
        key: &[u8],
        name: &[u8],
    ) -> Option<RawPg> {
        let hashed = if key.is_empty() { name } else { key };
        let seed = self.pool(pool)?.hash_key(namespace, hashed);
        Some(RawPg { pool, seed })
    }

    /// Where `pg` lives; nowhere when its pool does not exist, its number is beyond the pool's PGs,
    /// or CRUSH cannot map it.
    pub fn map_pg(&self, pg: Pg) -> PgMapping {
        let mut mapping = PgMapping::default();
        // An error leaves the sets empty, and requests wait for a map that places the PG.
        let _ = self.map_pg_into(pg, &mut Workspace::default(), &mut mapping);
        mapping
    }

    /// Like [`OsdMap::map_pg`], into memory that is there already, and telling why CRUSH
    /// cannot map a PG; its sets then hold at most what the map lists as exceptions.
    pub fn map_pg_into(
        &self,
        pg: Pg,
        ws: &mut Workspace,
        mapping: &mut PgMapping,
    ) -> Result<(), MapError> {
        mapping.up.clear();
        mapping.acting.clear();
        (mapping.up_primary, mapping.acting_primary) = (None, None);
        let Some(pool) = self.pool(pg.pool).filter(|p| pg.seed < p.pg_num) else {
            return Ok(());
        };
        let up = &mut mapping.up;
        // Exceptions below may name OSDs even where CRUSH cannot.
        let placement_seed = pool.placement_seed(pg);
        let placed = self.raw_osds(pool, pg, ws, up);
        self.apply_upmap(pg, up);
        self.drop_down_osds(pool, up);
        mapping.up_primary = pick_primary(up);
        self.apply_primary_affinity(placement_seed, pool, up, &mut mapping.up_primary);

        mapping.acting_primary = self.temp_osds(pool, pg, &mut mapping.acting);
        if mapping.acting.is_empty() {
            mapping.acting.clone_from(&mapping.up);
            mapping.acting_primary = mapping.acting_primary.or(mapping.up_primary);
        }
        placed
    }

    /// Where CRUSH alone would put a PG, whether or not the OSDs are up (`pg_to_raw_osds`).
    pub fn map_pg_raw(&self, pg: Pg) -> Result<(OsdSet, Option<i32>), MapError> {
        let mut osds = OsdSet::new();
        if let Some(pool) = self.pool(pg.pool) {
            self.raw_osds(pool, pg, &mut Workspace::default(), &mut osds)?;
        }
        let primary = pick_primary(&osds);
        Ok((osds, primary))
    }

    /// The shard of an erasure-coded pool's PG that its acting primary holds, as requests name it;
    /// -1 in replicated pools (`Objecter::_calc_target`).
    pub fn primary_shard(&self, pg: Pg, mapping: &PgMapping) -> i8 {
        let Some(pool) = self.pool(pg.pool).filter(|p| p.is_erasure()) else {
            return -1;
        };
        let acting = &mapping.acting;
        let reordered = pool.has_flag(flag::EC_OPTIMIZATIONS) && self.pg_temp.contains_key(&pg);
        // Shards that may be primary are looked at first where the monitor ordered them so.
        let position = |o: &i32| Some(*o) == mapping.acting_primary;
        let shard = if reordered {
            let allowed = |i: &usize| !pool.is_nonprimary_shard(*i);
            let first = (0..acting.len()).filter(allowed);
            let last = (0..acting.len()).filter(|i| !allowed(i));
            first.chain(last).find(|i| position(&acting[*i]))
        } else {
            acting.iter().position(position)
        };
        shard.and_then(|i| i8::try_from(i).ok()).unwrap_or(-1)
    }

    /// CRUSH's choice, less OSDs that are no more.
    fn raw_osds(
        &self,
        pool: &Pool,
        pg: Pg,
        ws: &mut Workspace,
        osds: &mut OsdSet,
    ) -> Result<(), MapError> {
        let seed = pool.placement_seed(pg);
        let rule = u32::from(pool.crush_rule);
        let width = usize::from(pool.size);
        let args = self.crush.choose_args(pg.pool);
        let mapped = self
            .crush
            .do_rule(rule, seed, width, &self.weights, args, ws, osds);
        if mapped.is_err() {
            osds.clear();
        }
        keep(pool, osds, |osd| self.exists(osd));
        mapped
    }

    /// Exceptions that administrators and the balancer made (`_apply_upmap`).
    fn apply_upmap(&self, pg: Pg, raw: &mut OsdSet) {
        if let Some(osds) = self.pg_upmap.get(&pg) {
            if osds.iter().any(|osd| self.weight(*osd) == Some(0)) {
                return;
            }
            raw.clear();
            raw.extend_from_slice(osds);
        }
        if let Some(pairs) = self.pg_upmap_items.get(&pg) {
            for &(from, to) in pairs {
                if raw.contains(&to) || self.weight(to) == Some(0) {
                    continue;
                }
                if let Some(osd) = raw.iter_mut().find(|osd| **osd == from) {
                    *osd = to;
                }
            }
        }
        if let Some(&primary) = self.pg_upmap_primary.get(&pg)
            && self.weight(primary).is_some_and(|w| w != 0)
            && let Some(i) = raw.iter().skip(1).position(|osd| *osd == primary)
        {
            raw.swap(0, i + 1);
        }
    }

    fn drop_down_osds(&self, pool: &Pool, osds: &mut OsdSet) {
        keep(pool, osds, |osd| self.is_up(osd));
    }

    /// Spares OSDs of low affinity the work of a primary (`_apply_primary_affinity`). The draw
    /// depends on PG and OSD, so each gets its share.
    fn apply_primary_affinity(
        &self,
        seed: u32,
        pool: &Pool,
        osds: &mut OsdSet,
        primary: &mut Option<i32>,
    ) {
        let Some(affinity) = &self.affinity else {
            return;
        };
        let of = |osd: i32| match usize::try_from(osd).ok().and_then(|i| affinity.get(i)) {
            Some(a) => *a,
            None => MAX_PRIMARY_AFFINITY,
        };
        let candidates = || {
            osds.iter()
                .enumerate()
                .filter(|(_, osd)| **osd != ITEM_NONE)
        };
        if candidates().all(|(_, osd)| of(*osd) == MAX_PRIMARY_AFFINITY) {
            return;
        }
        let accepts = |osd: i32| {
            let a = of(osd);
            a >= MAX_PRIMARY_AFFINITY || hash2(seed, osd as u32) >> 16 < a
        };
        // When all decline, the first must.
        let chosen = candidates()
            .find(|(_, osd)| accepts(**osd))
            .or_else(|| candidates().next());
        let Some((at, &osd)) = chosen else {
            return;
        };
        *primary = Some(osd);
        if pool.can_shift_osds() {
            osds[..=at].rotate_right(1);
        }
    }

    /// Who serves the PG while its data moves (`_get_temp_osds`). Yields the primary, if the map
    /// names one.
    fn temp_osds(&self, pool: &Pool, pg: Pg, acting: &mut OsdSet) -> Option<i32> {
        let mut primary = None;
        if let Some(osds) = self.pg_temp.get(&pg) {
            acting.extend_from_slice(osds);
            keep(pool, acting, |osd| self.is_up(osd));
            primary = pick_primary(acting);
            if pool.has_flag(flag::EC_OPTIMIZATIONS) {
                restore_shard_order(pool, acting);
            }
        }
        match self.primary_temp.get(&pg) {
            Some(osd) => Some(*osd),
            None => primary,
        }
    }
}

/// Takes out the OSDs that `alive` rejects: others move up, or a hole stays where the place has a
/// meaning.
fn keep(pool: &Pool, osds: &mut OsdSet, alive: impl Fn(i32) -> bool) {
    if pool.can_shift_osds() {
        osds.retain(|osd| alive(*osd));
    } else {
        for osd in osds.iter_mut().filter(|osd| !alive(**osd)) {
            *osd = ITEM_NONE;
        }
    }
}

fn pick_primary(osds: &[i32]) -> Option<i32> {
    osds.iter().copied().find(|osd| *osd != ITEM_NONE)
}

/// Pools with optimized erasure coding list the shards that may be primary first, for the sake of
/// older clients; this puts every shard back into its place (`pgtemp_undo_primaryfirst`).
fn restore_shard_order(pool: &Pool, acting: &mut OsdSet) {
    let size = acting.len();
    // A set of another size would be an error of the monitor; its order says nothing.
    if size != usize::from(pool.size) {
        return;
    }
    let listed = acting.clone();
    let primaries = (0..size).filter(|s| !pool.is_nonprimary_shard(*s));
    let others = (0..size).filter(|s| pool.is_nonprimary_shard(*s));
    for (osd, shard) in listed.into_iter().zip(primaries.chain(others)) {
        acting[shard] = osd;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Incremental, OsdMap, Pg};
    use super::*;

    /// A map whose 4+2 pool lets only shards 0, 4 and 5 be primary, with a PG served by `temp`.
    fn optimized(temp: &[i32]) -> (OsdMap, Pg) {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/");
        let bytes = std::fs::read(format!("{root}v20/racks.osdmap")).unwrap();
        let mut map = OsdMap::decode(&bytes).unwrap();
        let id = map.pool_by_name("ec42").unwrap();
        let mut pool = map.pool(id).unwrap().clone();
        pool.flags |= flag::EC_OPTIMIZATIONS;
        pool.nonprimary_shards = 0b1110;
        let pg = Pg { pool: id, seed: 5 };
        let mut inc = Incremental {
            fsid: map.fsid(),
            epoch: map.epoch() + 1,
            ..Incremental::default()
        };
        inc.new_pools.insert(id, pool);
        inc.new_pg_temp.insert(pg, temp.to_vec());
        map.apply(&inc).unwrap();
        (map, pg)
    }

    /// The example in Ceph's comment on `pgtemp_primaryfirst`.
    #[test]
    fn shards_listed_primaries_first_go_back_to_their_places() {
        let (map, pg) = optimized(&[ITEM_NONE, 9, 10, 6, 7, 8]);
        let m = map.map_pg(pg);
        assert_eq!(m.acting[..], [ITEM_NONE, 6, 7, 8, 9, 10]);
        assert_eq!(m.acting_primary, Some(9));
        assert_eq!(map.primary_shard(pg, &m), 4);
        // It survives the wire.
        let again = OsdMap::decode(&map.encode()).unwrap();
        assert_eq!(again, map);
    }

    #[test]
    fn a_primary_that_holds_two_shards_is_named_by_the_one_that_may_lead() {
        let (map, pg) = optimized(&[ITEM_NONE, 9, 10, 9, 7, 8]);
        let m = map.map_pg(pg);
        assert_eq!(m.acting[..], [ITEM_NONE, 9, 7, 8, 9, 10]);
        assert_eq!(map.primary_shard(pg, &m), 4);
    }

    #[test]
    fn shards_are_counted_only_where_places_matter() {
        let (map, pg) = optimized(&[]);
        let m = map.map_pg(pg);
        let at = m.acting.iter().position(|o| Some(*o) == m.acting_primary);
        assert_eq!(i8::try_from(at.unwrap()), Ok(map.primary_shard(pg, &m)));
        let rbd = Pg { pool: 1, seed: 0 };
        assert_eq!(map.primary_shard(rbd, &map.map_pg(rbd)), -1);
    }

    #[test]
    fn what_is_not_there_maps_nowhere() {
        let (map, pg) = optimized(&[]);
        assert_eq!(map.object_to_pg(99, b"", b"", b"x"), None);
        let beyond = Pg { seed: 32, ..pg };
        assert_eq!(map.map_pg(beyond), PgMapping::default());
        assert_eq!(map.map_pg(Pg { pool: 99, ..pg }), PgMapping::default());
        assert_eq!(OsdMap::new_empty().map_pg(pg), PgMapping::default());
    }
}
