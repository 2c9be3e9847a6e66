//! OSD maps for targets: real ones, checksums that fit, and a look at all a map places.

use std::path::PathBuf;

use cluster::osdmap::crush::Map as CrushMap;
use cluster::osdmap::{OsdMap, OsdSet, Pg, PgMapping, RawPg, Workspace};

/// Little enough that a map that maps nothing is given up at once.
const WORK: u64 = 5_000;

/// Path in the repository's golden data.
pub fn golden(path: &str) -> Vec<u8> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden"));
    let path = root.join(path);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Repairs the checksum that ends a map `from_end` bytes before its end, so that what the fuzzer
/// changed before it is looked at.
pub fn seal(map: &mut [u8], from_end: usize) {
    let Some(at) = map.len().checked_sub(from_end + 4) else {
        return;
    };
    let (front, tail) = (&map[..at], &map[at + 4..]);
    let crc = !crc32c::crc32c_append(crc32c::crc32c(front), tail);
    map[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Places some PGs of some pools.
pub fn map_pgs(map: &OsdMap) {
    let mut ws = Workspace::with_work_limit(WORK);
    let mut mapping = PgMapping::default();
    for (id, pool) in map.pools().take(8) {
        for seed in (0..4).chain([pool.pg_num.wrapping_sub(1), u32::MAX]) {
            let raw = RawPg { pool: id, seed };
            for pg in [Pg { pool: id, seed }, pool.raw_pg_to_pg(raw)] {
                let _ = map.map_pg_into(pg, &mut ws, &mut mapping);
                assert!(map.primary_shard(pg, &mapping) >= -1);
            }
        }
        let _ = map.object_to_pg(id, b"space", b"", b"rbd_data.1.0");
    }
    for osd in [-1, 0, 1, map.max_osd() as i32, i32::MAX] {
        let _ = (
            map.osd_addrs(osd),
            map.weight(osd),
            map.primary_affinity(osd),
        );
        let _ = (map.is_up(osd), map.is_out(osd), map.osd_features(osd));
    }
    let _ = map.flag_names().count();
}

pub fn map_rules(map: &CrushMap) {
    let weights = vec![0x10000; map.device_limit().clamp(0, 100) as usize];
    let mut ws = Workspace::with_work_limit(WORK);
    let mut out = OsdSet::new();
    for (rule, _) in map.rules().take(8) {
        for (x, width) in [(0, 3), (77, 0), (u32::MAX, 255)] {
            let args = map.choose_args(1);
            let _ = map.do_rule(rule, x, width, &weights, args, &mut ws, &mut out);
            assert!(out.len() <= width);
        }
    }
}
