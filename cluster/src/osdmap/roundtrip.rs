//! What is encoded is decoded again, for fields that the golden clusters leave empty.

use proptest::prelude::*;

use super::osd::{Info, XInfo};
use super::pool::{CacheTargets, MergeMeta, PeeringCrush, PoolOpt, PoolSnap};
use super::*;
use crate::codec::{AddrType, EntityAddr, EntityAddrVec, UTime};

fn time() -> impl Strategy<Value = UTime> {
    (any::<u32>(), 0u32..1_000_000_000).prop_map(|(sec, nsec)| UTime { sec, nsec })
}

fn pg() -> impl Strategy<Value = Pg> {
    (0i64..9, 0u32..99).prop_map(|(pool, seed)| Pg { pool, seed })
}

fn addr() -> impl Strategy<Value = EntityAddr> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(std::net::IpAddr::from),
        any::<[u8; 16]>().prop_map(std::net::IpAddr::from),
    ];
    (ip, any::<u16>(), 0u32..200).prop_map(|(ip, port, nonce)| EntityAddr {
        kind: AddrType::ANY,
        nonce,
        addr: Some((ip, port).into()),
    })
}

fn intervals() -> impl Strategy<Value = SnapIntervals> {
    prop::collection::vec((0u64..1000, 1u64..9), 1..5).prop_map(|spans| {
        let mut set = SnapIntervals::default();
        spans.iter().for_each(|(s, l)| set.insert(*s, *l));
        set
    })
}

fn strings() -> impl Strategy<Value = std::collections::BTreeMap<String, String>> {
    prop::collection::btree_map("[a-z]{1,6}", ".{0,6}", 0..3)
}

fn pool() -> impl Strategy<Value = Pool> {
    let opt = prop_oneof![
        ".{0,9}".prop_map(PoolOpt::Str),
        any::<i64>().prop_map(PoolOpt::Int),
        (-1e9..1e9f64).prop_map(PoolOpt::Double),
    ];
    let snap = (time(), "[a-z]{1,8}").prop_map(|(stamp, name)| PoolSnap { stamp, name });
    let sets = (
        prop::collection::btree_map(1u64..99, snap, 0..3),
        prop::collection::btree_map(0i32..30, opt, 0..4),
        prop::collection::btree_map("[a-z]{1,6}", strings(), 0..3),
        prop::collection::btree_set(any::<u64>(), 0..3),
        strings(),
        intervals(),
    );
    let numbers = (
        any::<bool>(),
        any::<[u8; 6]>(),
        any::<[u32; 16]>(),
        any::<[u64; 5]>(),
    );
    let rest = (pg(), any::<u128>(), any::<bool>(), time(), any::<i64>());
    (sets, numbers, rest).prop_map(|(sets, (erasure, b, n, q), rest)| Pool {
        kind: if erasure {
            PoolKind::Erasure
        } else {
            PoolKind::Replicated
        },
        size: b[0],
        min_size: b[1],
        crush_rule: b[2],
        object_hash: b[3],
        pg_num: n[0],
        pgp_num: n[1],
        last_change: n[2],
        snap_seq: q[0],
        snap_epoch: n[3],
        snaps: sets.0,
        removed_snaps: sets.5,
        auid: q[1],
        // Set already, lest decoding adds one.
        flags: q[2] | pool::flag::SELFMANAGED_SNAPS,
        quota_max_bytes: q[3],
        quota_max_objects: q[4],
        tiers: sets.3,
        tier_of: rest.4,
        cache_mode: b[4],
        read_tier: rest.4,
        write_tier: -1,
        properties: sets.4,
        hit_set: pool::HitSet {
            // `HitSet::TYPE_NONE`
            params: vec![1, 1, 1, 0, 0, 0, 0],
            period: n[4],
            ..Default::default()
        },
        stripe_width: n[5],
        cache: CacheTargets {
            max_bytes: q[0],
            dirty_high_ratio_micro: n[6],
            ..Default::default()
        },
        erasure_code_profile: "ec".into(),
        last_force_op_resend_preluminous: n[7],
        last_force_op_resend_prenautilus: n[8],
        last_force_op_resend: n[9],
        expected_num_objects: q[1],
        fast_read: rest.2,
        opts: sets.1,
        application_metadata: sets.2,
        create_time: rest.3,
        pg_num_target: n[10],
        pgp_num_target: n[11],
        pg_num_pending: n[12],
        pg_autoscale_mode: b[5],
        last_pg_merge: MergeMeta {
            source: rest.0,
            ready_epoch: n[13],
            source_version: (q[2], n[14]),
            ..Default::default()
        },
        peering_crush: if rest.2 {
            PeeringCrush {
                bucket_count: n[15] | 1,
                bucket_target: n[14],
                bucket_barrier: n[13],
                mandatory_member: n[12],
            }
        } else {
            PeeringCrush::default()
        },
        nonprimary_shards: rest.1,
    })
}

/// An increment for a cluster of twelve OSDs, all fields in use.
fn increment() -> impl Strategy<Value = Incremental> {
    use prop::collection::{btree_map, vec};
    let osd = || 0i32..12;
    let pools = (
        btree_map(1i64..9, pool(), 0..3),
        btree_map(1i64..9, "[a-z]{1,6}", 0..3),
        btree_map(1i64..9, intervals(), 0..3),
        btree_map(1i64..9, intervals(), 0..3),
        vec(1i64..9, 0..2),
    );
    let placement = (
        btree_map(pg(), vec(osd(), 0..4), 0..3),
        btree_map(pg(), -1i32..12, 0..3),
        btree_map(pg(), vec((osd(), osd()), 1..3), 0..3),
        btree_map(pg(), osd(), 0..3),
        vec(pg(), 0..3),
    );
    let osds = (
        btree_map(osd(), vec(addr(), 0..3).prop_map(EntityAddrVec), 0..3),
        btree_map(osd(), 0u32..0x2000, 0..4),
        btree_map(osd(), any::<[u32; 4]>(), 0..3),
        btree_map(osd(), any::<[u8; 16]>(), 0..3),
    );
    let stretch = any::<(bool, u32, u32, u32, i32)>().prop_map(|s| Stretch {
        enabled: s.0,
        bucket_count: s.1,
        degraded: s.2,
        recovering: s.3,
        mode_bucket: s.4,
    });
    let lists = (
        btree_map(addr().prop_map(blocklist::Key), time(), 0..3),
        btree_map(addr().prop_map(blocklist::Key), time(), 0..3),
        prop::option::of(stretch),
        prop::option::of(any::<bool>()),
        btree_map("[a-z]{1,6}", strings(), 0..3),
    );
    let numbers = (
        time(),
        any::<bool>(),
        0u32..1 << 24,
        any::<u64>(),
        0f32..1.0,
        1u8..21,
    );
    (pools, placement, osds, lists, numbers).prop_map(|(pools, pgs, osds, lists, numbers)| {
        let list = |keys: std::collections::BTreeMap<blocklist::Key, UTime>| -> Vec<_> {
            keys.into_iter().map(|(k, t)| (k.0, t)).collect()
        };
        let some = numbers.1;
        let xinfo = |n: &[u32; 4]| XInfo {
            laggy_interval: n[0],
            features: u64::from(n[1]) << 20,
            old_weight: n[2],
            dead_epoch: n[3],
            ..XInfo::default()
        };
        Incremental {
            fsid: [7; 16],
            epoch: 1,
            modified: numbers.0,
            new_flags: some.then_some(numbers.2),
            new_max_osd: Some(12),
            new_pool_max: some.then_some(9),
            new_pools: pools.0,
            new_pool_names: pools.1,
            new_removed_snaps: pools.2,
            new_purged_snaps: pools.3,
            old_pools: pools.4,
            new_pg_temp: pgs.0.clone(),
            new_primary_temp: pgs.1,
            new_pg_upmap: pgs.0,
            old_pg_upmap: pgs.4.clone(),
            new_pg_upmap_items: pgs.2,
            old_pg_upmap_items: pgs.4.clone(),
            new_pg_upmap_primary: pgs.3,
            old_pg_upmap_primary: pgs.4,
            new_up_client: osds.0.clone(),
            new_up_cluster: osds.0.clone(),
            new_hb_back_up: osds.0.clone(),
            new_hb_front_up: osds.0,
            new_state: osds.1.clone(),
            new_weight: osds.1.clone(),
            new_primary_affinity: osds.1.clone(),
            new_up_thru: osds.1.clone(),
            new_lost: osds.1.clone(),
            new_last_clean_interval: osds.2.iter().map(|(o, n)| (*o, (n[0], n[1]))).collect(),
            new_xinfo: osds.2.iter().map(|(o, n)| (*o, xinfo(n))).collect(),
            new_uuid: osds.3,
            new_blocklist: list(lists.0),
            old_blocklist: list(lists.1.clone()).into_iter().map(|e| e.0).collect(),
            old_range_blocklist: Vec::new(),
            new_range_blocklist: list(lists.1),
            new_stretch: lists.2,
            new_allow_crimson: lists.3,
            old_erasure_code_profiles: lists.4.keys().take(1).cloned().collect(),
            new_erasure_code_profiles: lists.4,
            new_last_up_change: numbers.0,
            new_last_in_change: numbers.0,
            new_nearfull_ratio: numbers.4,
            new_full_ratio: if some { numbers.4 } else { -1.0 },
            new_backfillfull_ratio: numbers.4,
            new_require_min_compat_client: some.then_some(numbers.5),
            new_require_osd_release: some.then_some(20),
            new_crush_node_flags: osds.1.clone(),
            new_device_class_flags: osds.1,
            cluster_snapshot: if some { "snap".into() } else { String::new() },
            encode_features: numbers.3,
            full_crc: Some(numbers.2),
            full_map: Vec::new(),
            crush: Vec::new(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pools_survive(pool in pool(), release in prop::sample::select(vec![16u8, 18, 20])) {
        let mut want = pool;
        if release < 20 {
            want.nonprimary_shards = 0;
        }
        let mut out = Vec::new();
        want.encode(&mut out, release);
        let mut r = crate::codec::Reader::new(&out);
        prop_assert_eq!(Pool::decode(&mut r).unwrap(), want);
        prop_assert!(r.is_empty());
    }

    #[test]
    fn increments_and_the_maps_they_make_survive(inc in increment()) {
        let again = Incremental::decode(&inc.encode(20)).unwrap();
        prop_assert_eq!(&again, &inc);

        let mut map = OsdMap::new_empty();
        // The empty map's CRUSH map is that of no bucket and no rule.
        let mut crush = Vec::new();
        map.crush().encode(&mut crush, false);
        let first = Incremental { crush, new_require_osd_release: Some(20), ..inc };
        map.apply(&first).unwrap();
        if !map.stretch().enabled {
            // Only a stretched cluster's map says more.
            map.stretch = Stretch::default();
        }
        prop_assert_eq!(&OsdMap::decode(&map.encode()).unwrap(), &map);

        // Undone by the next.
        let second = Incremental {
            fsid: map.fsid(),
            epoch: 2,
            old_pools: first.new_pools.keys().copied().collect(),
            old_blocklist: first.new_blocklist.iter().map(|e| e.0).collect(),
            old_range_blocklist: first.new_range_blocklist.iter().map(|e| e.0).collect(),
            old_pg_upmap: first.new_pg_upmap.keys().copied().collect(),
            old_erasure_code_profiles: first.new_erasure_code_profiles.keys().cloned().collect(),
            new_pg_temp: first.new_pg_temp.keys().map(|pg| (*pg, Vec::new())).collect(),
            new_primary_temp: first.new_primary_temp.keys().map(|pg| (*pg, -1)).collect(),
            ..Incremental::default()
        };
        let map = map.next(&second).unwrap();
        prop_assert_eq!(map.pools().len(), 0);
        prop_assert!(map.blocklist().is_empty());
        prop_assert!(map.pg_upmap().is_empty() && map.erasure_code_profiles().is_empty());
        prop_assert!(map.pg_temp().is_empty() && map.primary_temp().is_empty());
    }

    #[test]
    fn osd_histories_survive(n: [u32; 6], x: [u32; 5], features: u64) {
        let info = Info {
            last_clean_begin: n[0],
            last_clean_end: n[1],
            up_from: n[2],
            up_thru: n[3],
            down_at: n[4],
            lost_at: n[5],
        };
        let xinfo = XInfo {
            down_stamp: UTime { sec: x[0], nsec: x[1] },
            laggy_probability: x[2],
            laggy_interval: x[3],
            features,
            old_weight: x[4],
            ..XInfo::default()
        };
        let mut out = Vec::new();
        info.encode(&mut out);
        xinfo.encode(&mut out);
        let mut r = crate::codec::Reader::new(&out);
        prop_assert_eq!(Info::decode(&mut r).unwrap(), info);
        prop_assert_eq!(XInfo::decode(&mut r).unwrap(), xinfo);
        prop_assert!(r.is_empty());
    }
}
