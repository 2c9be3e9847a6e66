//! Maps from a hostile peer: decoders and mapper must neither panic, nor hang, nor trust a length.

use proptest::prelude::*;

use super::crush::{self, Alg, Workspace, op, rule_kind};
use super::*;
use crate::codec::Put;

/// Little enough that a map that maps nothing is given up at once.
const WORK: u64 = 20_000;

fn golden(name: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/");
    std::fs::read(format!("{root}{name}")).unwrap()
}

/// Some bytes overwritten, some cut out, the end cut off.
fn damage(
    bytes: &mut Vec<u8>,
    pokes: &[(prop::sample::Index, u8)],
    cut: Option<(prop::sample::Index, u8)>,
) {
    for (at, value) in pokes {
        let i = at.index(bytes.len());
        bytes[i] = *value;
    }
    if let Some((at, len)) = cut {
        let i = at.index(bytes.len());
        let end = bytes.len().min(i + usize::from(len));
        bytes.drain(i..end);
    }
}

/// Repairs the checksum that `damage` broke, so that decoding gets past it.
fn seal(bytes: &mut [u8], from_end: usize) {
    let Some(at) = bytes.len().checked_sub(from_end + 4) else {
        return;
    };
    let (front, tail) = (&bytes[..at], &bytes[at + 4..]);
    let crc = !crc32c::crc32c_append(crc32c::crc32c(front), tail);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn map_everything(map: &OsdMap) {
    let mut ws = Workspace::with_work_limit(WORK);
    let mut mapping = PgMapping::default();
    for (id, pool) in map.pools() {
        for seed in (0..8).chain([pool.pg_num.wrapping_sub(1), u32::MAX]) {
            let raw = RawPg { pool: id, seed };
            for pg in [Pg { pool: id, seed }, pool.raw_pg_to_pg(raw)] {
                let _ = map.map_pg_into(pg, &mut ws, &mut mapping);
                assert!(mapping.up.len() <= 255 || !map.pg_upmap().is_empty());
                let shard = map.primary_shard(pg, &mapping);
                assert!(shard >= -1);
            }
        }
    }
}

fn map_rules(map: &crush::Map) {
    let weights = vec![0x10000; map.device_limit().clamp(0, 100) as usize];
    let mut ws = Workspace::with_work_limit(WORK);
    let mut out = OsdSet::new();
    for (rule, _) in map.rules() {
        for (x, width) in [(0, 3), (77, 0), (u32::MAX, 255)] {
            let args = map.choose_args(1);
            let _ = map.do_rule(rule, x, width, &weights, args, &mut ws, &mut out);
            assert!(out.len() <= width);
        }
    }
}

type Pokes = Vec<(prop::sample::Index, u8)>;
type Cut = Option<(prop::sample::Index, u8)>;

fn pokes() -> impl Strategy<Value = Pokes> {
    let value = prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(1), Just(0x7f)];
    prop::collection::vec((any::<prop::sample::Index>(), value), 0..6)
}

fn cut() -> impl Strategy<Value = Cut> {
    prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_maps_are_refused_or_harmless(
        which in prop::sample::select(vec![
            "v16/racks-weightset.osdmap", "v18/racks-upmap-affinity.osdmap", "v20/racks-weightset.osdmap",
            "v20/simple-osd1down-osd2out.osdmap",
        ]),
        pokes in pokes(),
        cut in cut(),
    ) {
        let mut bytes = golden(which);
        damage(&mut bytes, &pokes, cut);
        let _ = OsdMap::decode(&bytes);
        seal(&mut bytes, 0);
        if let Ok(map) = OsdMap::decode(&bytes) {
            map_everything(&map);
            map.encode();
        }
    }

    #[test]
    fn damaged_increments_are_refused_or_harmless(
        epoch in 2u32..26,
        pokes in pokes(),
        cut in cut(),
    ) {
        let mut map = OsdMap::decode(&golden(&format!("v20/incr/simple.{}.full", epoch - 1))).unwrap();
        let mut bytes = golden(&format!("v20/incr/simple.{epoch}.inc"));
        damage(&mut bytes, &pokes, cut);
        let _ = Incremental::decode(&bytes);
        seal(&mut bytes, 4);
        if let Ok(inc) = Incremental::decode(&bytes) {
            let before = map.clone();
            match map.apply(&inc) {
                Ok(()) => map_everything(&map),
                Err(_) => prop_assert!(map == before),
            }
        }
    }

    #[test]
    fn damaged_crush_maps_are_refused_or_harmless(
        which in prop::sample::select(vec![
            "algs/uniform-legacy", "algs/list-legacy", "algs/tree-legacy", "algs/straw-legacy",
            "algs/straw2-jewel", "v20/racks-weightset",
        ]),
        pokes in pokes(),
        cut in cut(),
    ) {
        let mut bytes = golden(&format!("{which}.crush"));
        damage(&mut bytes, &pokes, cut);
        if let Ok(map) = crush::Map::decode(&bytes) {
            map_rules(&map);
        }
    }

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), version in 7u8..9) {
        let _ = OsdMap::decode(&bytes);
        let _ = Incremental::decode(&bytes);
        let _ = crush::Map::decode(&bytes);
        // Past the outer header.
        let mut wrapped = Vec::new();
        wrapped.versioned(version, 7, |out| out.put_bytes(&bytes));
        let _ = OsdMap::decode(&wrapped);
        let _ = Incremental::decode(&wrapped);
        let _ = Pool::decode(&mut crate::codec::Reader::new(&wrapped));
    }

    /// Whole hierarchies and rules drawn at random, as a decoder would let them through or not.
    #[test]
    fn odd_crush_maps_are_refused_or_harmless(map in odd_map()) {
        if let Ok(map) = crush::Map::decode(&map) {
            map_rules(&map);
            let mut again = Vec::new();
            map.encode(&mut again, true);
            prop_assert_eq!(crush::Map::decode(&again).unwrap(), map);
        }
    }
}

/// A CRUSH map of five buckets, in the wire form: items point anywhere near, weights lie, tunables
/// and rules are extreme.
fn odd_map() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![0usize..6, Just(33)];
    let item = prop_oneof![80 => -6i32..0, 120 => 0i32..12, 1 => any::<i32>()];
    let kind = prop_oneof![30 => 1u16..4, 1 => Just(0)];
    let bucket = (1u8..6, kind, size, 0u8..3).prop_flat_map(move |(alg, kind, size, hash)| {
        let items = prop::collection::vec(item.clone(), size);
        let weights = prop::collection::vec(any_weight(), 2 * size + 8);
        (
            Just(alg),
            Just(kind),
            Just(hash),
            items,
            weights,
            any::<u8>(),
        )
    });
    let arg = || prop_oneof![-6i32..8, any::<i32>()];
    let step = (0u32..18, arg(), arg());
    let kind = prop::sample::select(vec![1u8, 3, rule_kind::MSR_FIRSTN, rule_kind::MSR_INDEP]);
    let rule = (kind, prop::collection::vec(step, 0..7), any::<bool>());
    let tunables = prop::collection::vec(prop_oneof![0u32..60, any::<u32>()], 8);
    (
        prop::collection::vec(prop::option::weighted(0.98, bucket), 5),
        prop::collection::vec(rule, 1..4),
        tunables,
    )
        .prop_map(|(buckets, rules, tunables)| {
            let mut out = Vec::new();
            out.put_u32(0x0001_0000);
            out.put_count(buckets.len());
            out.put_count(rules.len());
            out.put_u32(12);
            for (i, bucket) in buckets.iter().enumerate() {
                let Some((alg, kind, hash, items, weights, nodes)) = bucket else {
                    out.put_u32(0);
                    continue;
                };
                out.put_u32(u32::from(*alg));
                out.put_i32(-1 - i as i32);
                out.put_u16(*kind);
                out.put_u8(*alg);
                out.put_u8(hash / 2);
                out.put_u32(0x10000);
                // Mostly a hierarchy: buckets further down, and devices in the last.
                let last = buckets.len() as i32;
                let below = -2 - i as i32;
                let place = |item: i32| match item {
                    -6..0 if nodes % 16 > 0 && below >= -last => item.clamp(-last, below),
                    -6..0 if nodes % 16 > 0 => -item,
                    _ => item,
                };
                let items: Vec<i32> = items.iter().map(|item| place(*item)).collect();
                out.put_list(items.iter(), |out, item| out.put_i32(*item));
                let count = match alg {
                    1 => 1,
                    2 | 4 => 2 * items.len(),
                    3 => {
                        let n = if nodes % 16 > 0 { 8 } else { nodes % 8 };
                        out.put_u8(n);
                        usize::from(n)
                    }
                    _ => items.len(),
                };
                weights[..count].iter().for_each(|w| out.put_u32(*w));
            }
            for (i, (kind, steps, sane)) in rules.iter().enumerate() {
                let mut steps = steps.clone();
                if *sane {
                    // Begins and ends as rules do.
                    steps.insert(0, (op::TAKE, -1, 0));
                    steps.push((op::EMIT, 0, 0));
                    if *kind >= rule_kind::MSR_FIRSTN {
                        let last = steps.len() - 1;
                        for s in &mut steps[1..last] {
                            *s = (op::CHOOSE_MSR, s.1.rem_euclid(4), s.2.rem_euclid(4));
                        }
                    }
                }
                out.put_u32(1);
                out.put_count(steps.len());
                out.put_u8(i as u8);
                out.put_u8(*kind);
                out.put_u16(0);
                for (op, arg1, arg2) in steps {
                    out.put_u32(op);
                    out.put_i32(arg1);
                    out.put_i32(arg2);
                }
            }
            out.put_bytes(&[0; 12]);
            tunables[..4].iter().for_each(|t| out.put_u32(*t));
            out.put_u8(tunables[4] as u8);
            out.put_u8(1);
            out.put_u32(54);
            out.put_u8(tunables[5] as u8 & 1);
            out.put_bytes(&[0; 16]);
            tunables[6..].iter().for_each(|t| out.put_u32(*t));
            out
        })
}

fn any_weight() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0x10000), 1 => Just(0), 2 => any::<u32>()]
}

#[test]
fn odd_maps_are_not_all_refused() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut decoded, mut mapped, mut trees) = (0, 0, 0);
    for _ in 0..2000 {
        let bytes = odd_map().new_tree(&mut runner).unwrap().current();
        let Ok(map) = crush::Map::decode(&bytes) else {
            continue;
        };
        decoded += 1;
        trees += map
            .buckets()
            .filter(|b| matches!(b.alg, Alg::Tree { .. }))
            .count();
        let (mut ws, mut out) = (Workspace::with_work_limit(WORK), OsdSet::new());
        for (rule, _) in map.rules() {
            let weights = [0x10000; 12];
            let done = map.do_rule(rule, 5, 3, &weights, None, &mut ws, &mut out);
            mapped += usize::from(done.is_ok() && !out.is_empty());
        }
    }
    assert!(
        decoded > 50 && mapped > 20 && trees > 10,
        "{decoded} {mapped} {trees}"
    );
}

fn straw2(id: i32, kind: u16, items: &[i32]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(5);
    out.put_i32(id);
    out.put_u16(kind);
    out.put_u8(5);
    out.put_u8(0);
    out.put_u32(0x10000);
    out.put_list(items.iter(), |out, item| out.put_i32(*item));
    items.iter().for_each(|_| out.put_u32(0x10000));
    out
}

fn crush_map(buckets: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(0x0001_0000);
    out.put_count(buckets.len());
    out.put_u32(0);
    out.put_u32(1);
    buckets.iter().for_each(|b| out.put_bytes(b));
    out.put_bytes(&[0; 12]);
    out
}

#[test]
fn cycles_and_dangling_items_are_refused() {
    let refused = |buckets: &[Vec<u8>]| {
        crush::Map::decode(&crush_map(buckets))
            .unwrap_err()
            .to_string()
    };
    let cycle = [straw2(-1, 2, &[-2]), straw2(-2, 1, &[-1])];
    assert_eq!(
        refused(&cycle),
        "malformed crush hierarchy: a bucket holds itself"
    );
    assert_eq!(
        refused(&[straw2(-1, 2, &[-1])]),
        "malformed crush hierarchy: a bucket holds itself"
    );
    assert_eq!(
        refused(&[straw2(-1, 2, &[-2])]),
        "malformed crush bucket item"
    );
    assert_eq!(
        refused(&[straw2(-1, 2, &[i32::MAX])]),
        "malformed crush device id"
    );
    assert_eq!(refused(&[straw2(-2, 2, &[0])]), "malformed crush bucket id");
    assert_eq!(
        refused(&[straw2(-1, 0, &[0])]),
        "malformed crush bucket type"
    );
    // The same bucket twice below another is odd, and no cycle.
    let twice = [straw2(-1, 2, &[-2, -2]), straw2(-2, 1, &[0])];
    assert!(crush::Map::decode(&crush_map(&twice)).is_ok());
}

#[test]
fn lengths_are_not_trusted() {
    // A header that promises four billion buckets, items or rules.
    for at in [4, 8, 32] {
        let mut bytes = crush_map(&[straw2(-1, 2, &[0])]);
        let end = bytes.len().min(at + 4);
        bytes[at..end].fill(0xff);
        assert!(crush::Map::decode(&bytes).is_err());
    }
    let inc = Incremental {
        epoch: 1,
        new_max_osd: Some(i32::MAX),
        ..Incremental::default()
    };
    let error = OsdMap::new_empty().apply(&inc).unwrap_err();
    assert_eq!(
        error.to_string(),
        "incremental osdmap 1 names osd.2147483647, which is out of range"
    );
}

#[test]
fn increments_must_follow() {
    let mut map = OsdMap::decode(&golden("v20/incr/simple.10.full")).unwrap();
    let next = Incremental::decode(&golden("v20/incr/simple.11.inc")).unwrap();
    let late = Incremental::decode(&golden("v20/incr/simple.13.inc")).unwrap();
    assert_eq!(map.apply(&late), Err(ApplyError::Gap { have: 10, got: 13 }));
    let foreign = Incremental {
        fsid: [9; 16],
        ..next.clone()
    };
    assert_eq!(map.apply(&foreign), Err(ApplyError::OtherCluster(11)));
    assert_eq!(map.apply(&next), Ok(()));
    assert_eq!(map.apply(&next), Err(ApplyError::Gap { have: 11, got: 11 }));
}

#[test]
fn an_increment_may_carry_the_whole_map() {
    let mut map = OsdMap::decode(&golden("v18/incr/simple.10.full")).unwrap();
    let full = golden("v18/incr/simple.11.full");
    let mut inc = Incremental::decode(&golden("v18/incr/simple.11.inc")).unwrap();
    inc.full_map.clone_from(&full);
    inc.new_max_osd = Some(0);
    map.apply(&inc).unwrap();
    assert_eq!(map, OsdMap::decode(&full).unwrap());
}
