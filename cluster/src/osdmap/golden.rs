//! Maps of real clusters (Ceph 16, 18 and 20) against what the daemons' own tools say of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::codec::{AddrType, EntityAddr, EntityAddrVec, UTime};

const VERSIONS: [&str; 3] = ["v16", "v18", "v20"];
const MAPS: [&str; 5] = [
    "simple",
    "simple-osd1down-osd2out",
    "racks",
    "racks-upmap-affinity",
    "racks-weightset",
];

fn golden() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden").into()
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(golden().join(name)).unwrap()
}

fn text(name: &str) -> String {
    String::from_utf8(read(name)).unwrap()
}

fn each_map(mut check: impl FnMut(&str, &OsdMap)) {
    for version in VERSIONS {
        for map in MAPS {
            let name = format!("{version}/{map}");
            let decoded = OsdMap::decode(&read(&format!("{name}.osdmap"))).unwrap();
            check(&name, &decoded);
        }
    }
}

/// Besides the clusters' own maps one made of them, in which OSDs are down, out and gone, with
/// exceptions good and bad, a pool of Linux's hash without `hashpspool`, blocklisted networks.
/// Ceph 16 read it and told where its PGs go.
fn each_map_and_holes(mut check: impl FnMut(&str, &OsdMap)) {
    each_map(&mut check);
    let name = "osdmap/holes";
    let map = OsdMap::decode(&read(&format!("{name}.osdmap"))).unwrap();
    check(name, &map);
}

/// `[1,2,2147483647]`, with the hole's number as Ceph prints it.
fn list(osds: &[i32]) -> String {
    let osds: Vec<String> = osds.iter().map(i32::to_string).collect();
    format!("[{}]", osds.join(","))
}

fn set(osds: &[i32], primary: Option<i32>) -> String {
    format!("({}, p{})", list(osds), primary.unwrap_or(-1))
}

/// `osdmaptool --test-map-pgs-dump-all`: every PG's raw, up and acting sets, then how many PGs each
/// OSD serves, serves first, and serves as primary.
#[test]
fn every_pg_maps_as_osdmaptool_says() {
    each_map_and_holes(|name, map| {
        let mut tally: BTreeMap<i32, [usize; 3]> = BTreeMap::new();
        let (mut pgs, mut osds) = (0, 0);
        for line in text(&format!("{name}.pgs-all.txt")).lines() {
            if let Some((pg, _)) = line.split_once(" raw ") {
                let (pool, seed) = pg.split_once('.').unwrap();
                let pg = Pg {
                    pool: pool.parse().unwrap(),
                    seed: u32::from_str_radix(seed, 16).unwrap(),
                };
                let (raw, raw_primary) = map.map_pg_raw(pg).unwrap();
                let m = map.map_pg(pg);
                let got = format!(
                    "{pg} raw {} up {} acting {}",
                    set(&raw, raw_primary),
                    set(&m.up, m.up_primary),
                    set(&m.acting, m.acting_primary)
                );
                assert_eq!(got, line, "{name}");
                for _ in 0..2 {}
                for osd in m.acting.iter().filter(|o| **o != ITEM_NONE) {
                    tally.entry(*osd).or_default()[0] += 1;
                }
                for (i, osd) in [(1, m.acting.first().copied()), (2, m.acting_primary)] {
                    tally.entry(osd.unwrap_or(-1)).or_default()[i] += 1;
                }
                pgs += 1;
            } else if let Some(rest) = line.strip_prefix("osd.") {
                let mut words = rest.split_whitespace();
                let osd: i32 = words.next().unwrap().parse().unwrap();
                let want: Vec<usize> = words.take(3).map(|w| w.parse().unwrap()).collect();
                let got = tally.get(&osd).copied().unwrap_or_default();
                assert_eq!(got[..], want, "{name}: {line}");
                osds += 1;
            }
        }
        let all: u32 = map.pools().map(|(_, pool)| pool.pg_num).sum();
        assert_eq!(pgs, all, "{name}: PGs compared");
        assert_eq!(
            osds,
            (0..map.max_osd() as i32)
                .filter(|o| !map.is_out(*o))
                .count()
        );
    });
}

/// `osdmaptool --test-map-object`: name, PG, acting set.
#[test]
fn every_object_maps_as_osdmaptool_says() {
    each_map_and_holes(|name, map| {
        let pools: Vec<i64> = map.pools().map(|(id, _)| id).collect();
        let lines = text(&format!("{name}.objects.txt"));
        let lines: Vec<&str> = lines.lines().collect();
        // Eight objects in each pool.
        assert_eq!(lines.len(), pools.len() * 8, "{name}");
        for (pool, lines) in pools.iter().zip(lines.chunks(8)) {
            for line in lines {
                let object = line.split('\'').nth(1).unwrap();
                let raw = map
                    .object_to_pg(*pool, b"", b"", object.as_bytes())
                    .unwrap();
                let pg = map.pool(*pool).unwrap().raw_pg_to_pg(raw);
                let acting = list(&map.map_pg(pg).acting);
                let got = format!(" object '{object}' -> {pg} -> {acting}");
                assert_eq!(got, *line, "{name}");
                // A locator key stands in for the name.
                let by_key = map.object_to_pg(*pool, b"", object.as_bytes(), b"other");
                assert_eq!(by_key, Some(raw));
            }
        }
    });
}

#[test]
fn every_map_encodes_to_the_bytes_it_came_from() {
    each_map(|name, map| {
        assert!(map.encode() == read(&format!("{name}.osdmap")), "{name}");
        let crush = crush::Map::decode(&read(&format!("{name}.crush"))).unwrap();
        assert_eq!(map.crush(), &crush, "{name}");
    });
}

/// Every epoch of a cluster's life: the map before, the difference, and the map it must give.
#[test]
fn increments_lead_from_each_epoch_to_the_next() {
    for version in VERSIONS {
        let mut map = OsdMap::new_empty();
        let mut epochs = 0;
        for epoch in 1u32.. {
            let name = format!("{version}/incr/simple.{epoch}");
            let Ok(inc) = std::fs::read(golden().join(format!("{name}.inc"))) else {
                break;
            };
            let bytes = inc;
            let inc = Incremental::decode(&bytes).unwrap();
            let osd_release = version[1..].parse().unwrap();
            assert!(inc.encode(osd_release) == bytes, "{name}");
            let full = read(&format!("{name}.full"));
            let want = OsdMap::decode(&full).unwrap();
            assert_eq!(inc.epoch, epoch);
            let crc = u32::from_le_bytes(*full.last_chunk().unwrap());
            // The first map is made whole; its difference knows no checksum.
            if epoch > 1 {
                assert_eq!(inc.full_crc, Some(crc), "{name}");
            }
            map.apply(&inc).unwrap();
            assert_eq!(map, want, "{name}");
            assert!(map.encode() == full, "{name}");
            epochs += 1;
        }
        assert!(epochs > 20, "{version}: {epochs} epochs");
    }
}

#[test]
fn a_flipped_bit_fails_the_checksum() {
    let mut full = read("v20/racks.osdmap");
    let mut inc = read("v20/incr/simple.20.inc");
    // The cluster's id, which is good whatever it is, and the checksum of the map to be made.
    full[12] ^= 1;
    *inc.last_mut().unwrap() ^= 1;
    let full = OsdMap::decode(&full).unwrap_err();
    let inc = Incremental::decode(&inc).unwrap_err();
    assert_eq!(full.to_string(), "malformed OSDMap: wrong checksum");
    assert_eq!(
        inc.to_string(),
        "malformed OSDMap::Incremental: wrong checksum"
    );
}

/// `ceph osd dump -f json`, field by field. The dumps of `racks` were taken some epochs after the
/// maps: the manager had lowered `pgp_num` of pool `odd` and a removed snapshot been recorded.
#[test]
fn every_field_is_what_osd_dump_says() {
    each_map(|name, map| {
        let json: Value = serde_json::from_str(&text(&format!("{name}.osdmap.json"))).unwrap();
        let later = n(&json["epoch"]) - i64::from(map.epoch());
        assert!(later == 0 || name.ends_with("/racks"), "{name}");
        check_map(map, &json, later);
        let pools = json["pools"].as_array().unwrap();
        assert_eq!(pools.len(), map.pools().len(), "{name}");
        for p in pools {
            check_pool(map, p, later);
        }
        let osds = json["osds"].as_array().unwrap();
        assert_eq!(osds.len(), map.osd_count(), "{name}");
        let xinfo = json["osd_xinfo"].as_array().unwrap();
        assert_eq!(xinfo.len(), osds.len(), "{name}");
        for (o, x) in osds.iter().zip(xinfo) {
            check_osd(map, o, x, later);
        }
        check_exceptions(map, &json);
    });
}

fn n(v: &Value) -> i64 {
    v.as_i64().unwrap_or_else(|| v.as_u64().unwrap() as i64)
}

/// Numbers that `osd dump` prints as strings.
fn quoted(v: &Value) -> u32 {
    v.as_str().unwrap().parse().unwrap()
}

fn hex_uuid(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

/// `2026-11-30T12:01:36.781154+0000`: days from the civil calendar, microseconds cut off.
fn time(t: UTime) -> String {
    let (days, secs) = (i64::from(t.sec) / 86400, t.sec % 86400);
    let (mut year, mut left) = (1970, days);
    let leap = |y: i64| y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    while left >= 365 + i64::from(leap(year)) {
        left -= 365 + i64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [
        31,
        28 + i64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    format!(
        "{year}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}+0000",
        month + 1,
        left + 1,
        secs / 3600,
        secs / 60 % 60,
        secs % 60,
        t.nsec / 1000
    )
}

fn check_map(map: &OsdMap, j: &Value, later: i64) {
    assert_eq!(hex_uuid(map.fsid()), j["fsid"]);
    assert_eq!(time(map.created()), j["created"]);
    if later == 0 {
        assert_eq!(time(map.modified()), j["modified"]);
    }
    assert_eq!(time(map.last_up_change), j["last_up_change"]);
    assert_eq!(time(map.last_in_change), j["last_in_change"]);
    let flags: Vec<&str> = map.flag_names().collect();
    assert_eq!(flags.join(","), j["flags"]);
    assert_eq!(i64::from(map.flags()), n(&j["flags_num"]));
    assert_eq!(i64::from(map.crush_version()), n(&j["crush_version"]));
    assert_eq!(
        f64::from(map.full_ratio()) as f32,
        j["full_ratio"].as_f64().unwrap() as f32
    );
    let near = j["nearfull_ratio"].as_f64().unwrap() as f32;
    let back = j["backfillfull_ratio"].as_f64().unwrap() as f32;
    assert_eq!(
        (map.nearfull_ratio(), map.backfillfull_ratio()),
        (near, back)
    );
    assert_eq!(
        map.cluster_snapshot,
        j["cluster_snapshot"].as_str().unwrap()
    );
    assert_eq!(i64::from(map.pool_max()), n(&j["pool_max"]));
    assert_eq!(map.max_osd() as i64, n(&j["max_osd"]));
    assert_eq!(
        release::name(map.require_min_compat_client()),
        j["require_min_compat_client"]
    );
    assert_eq!(
        release::name(map.require_osd_release()),
        j["require_osd_release"]
    );
    assert_eq!(
        map.allow_crimson,
        j["allow_crimson"].as_bool().unwrap_or(false)
    );
    let stretch = &j["stretch_mode"];
    assert_eq!(
        map.stretch().enabled,
        stretch["stretch_mode_enabled"].as_bool().unwrap()
    );
    let profiles = j["erasure_code_profiles"].as_object().unwrap();
    assert_eq!(profiles.len(), map.erasure_code_profiles().len());
    for (name, profile) in profiles {
        let want: BTreeMap<String, String> = serde_json::from_value(profile.clone()).unwrap();
        assert_eq!(map.erasure_code_profile(name), Some(&want));
    }
    for (key, len) in [
        ("removed_snaps_queue", map.removed_snaps_queue().len()),
        ("new_removed_snaps", map.new_removed_snaps().len()),
        ("new_purged_snaps", map.new_purged_snaps.len()),
    ] {
        if later == 0 {
            assert_eq!(j[key].as_array().unwrap().len(), len, "{key}");
        }
    }
}

fn check_pool(map: &OsdMap, j: &Value, later: i64) {
    let id = n(&j["pool"]);
    let name = j["pool_name"].as_str().unwrap();
    assert_eq!(
        (map.pool_by_name(name), map.pool_name(id)),
        (Some(id), Some(name))
    );
    let p = map.pool(id).unwrap();
    let numbers = [
        ("type", if p.is_erasure() { 3 } else { 1 }),
        ("flags", p.flags as i64),
        ("size", p.size.into()),
        ("min_size", p.min_size.into()),
        ("crush_rule", p.crush_rule.into()),
        ("object_hash", p.object_hash.into()),
        ("pg_num", p.pg_num.into()),
        ("pg_placement_num", p.pgp_num.into()),
        ("pg_placement_num_target", p.pgp_num_target.into()),
        ("pg_num_target", p.pg_num_target.into()),
        ("pg_num_pending", p.pg_num_pending.into()),
        ("auid", p.auid as i64),
        ("snap_seq", p.snap_seq as i64),
        ("snap_epoch", p.snap_epoch.into()),
        ("quota_max_bytes", p.quota_max_bytes as i64),
        ("quota_max_objects", p.quota_max_objects as i64),
        ("tier_of", p.tier_of),
        ("read_tier", p.read_tier),
        ("write_tier", p.write_tier),
        ("target_max_bytes", p.cache.max_bytes as i64),
        ("target_max_objects", p.cache.max_objects as i64),
        (
            "cache_target_dirty_ratio_micro",
            p.cache.dirty_ratio_micro.into(),
        ),
        (
            "cache_target_dirty_high_ratio_micro",
            p.cache.dirty_high_ratio_micro.into(),
        ),
        (
            "cache_target_full_ratio_micro",
            p.cache.full_ratio_micro.into(),
        ),
        ("cache_min_flush_age", p.cache.min_flush_age.into()),
        ("cache_min_evict_age", p.cache.min_evict_age.into()),
        ("hit_set_period", p.hit_set.period.into()),
        ("hit_set_count", p.hit_set.count.into()),
        (
            "min_read_recency_for_promote",
            p.hit_set.min_read_recency_for_promote.into(),
        ),
        (
            "min_write_recency_for_promote",
            p.hit_set.min_write_recency_for_promote.into(),
        ),
        (
            "hit_set_grade_decay_rate",
            p.hit_set.grade_decay_rate.into(),
        ),
        ("hit_set_search_last_n", p.hit_set.search_last_n.into()),
        ("stripe_width", p.stripe_width.into()),
        ("expected_num_objects", p.expected_num_objects as i64),
    ];
    let moved_on = later > 0 && name == "odd";
    for (key, got) in numbers {
        if !(moved_on && key == "pg_placement_num") {
            assert_eq!(got, n(&j[key]), "pool {name} {key}");
        }
    }
    for (key, got) in [
        ("last_change", p.last_change),
        ("last_force_op_resend", p.last_force_op_resend),
        (
            "last_force_op_resend_prenautilus",
            p.last_force_op_resend_prenautilus,
        ),
        (
            "last_force_op_resend_preluminous",
            p.last_force_op_resend_preluminous,
        ),
    ] {
        if !(moved_on && key == "last_change") {
            assert_eq!(got, quoted(&j[key]), "pool {name} {key}");
        }
    }
    assert_eq!(time(p.create_time), j["create_time"]);
    let flags: Vec<&str> = p.flag_names().collect();
    assert_eq!(flags.join(","), j["flags_names"]);
    assert_eq!(p.is_pool_snaps(), j["snap_mode"] == "pool");
    assert_eq!(
        p.erasure_code_profile,
        j["erasure_code_profile"].as_str().unwrap()
    );
    assert_eq!(p.fast_read, j["fast_read"].as_bool().unwrap());
    assert_eq!(p.hit_set.use_gmt, j["use_gmt_hitset"].as_bool().unwrap());
    assert_eq!(
        ["off", "warn", "on"][usize::from(p.pg_autoscale_mode)],
        j["pg_autoscale_mode"]
    );
    let snaps: Vec<(i64, String, String)> = j["pool_snaps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| {
            let text = |k: &str| s[k].as_str().unwrap().to_owned();
            (n(&s["snapid"]), text("name"), text("stamp"))
        })
        .collect();
    let got = p
        .snaps
        .iter()
        .map(|(id, s)| (*id as i64, s.name.clone(), time(s.stamp)));
    assert_eq!(got.collect::<Vec<_>>(), snaps);
    let apps: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_value(j["application_metadata"].clone()).unwrap();
    assert_eq!(p.application_metadata, apps);
    assert_eq!(j["options"].as_object().unwrap().len(), p.opts.len());
    if let Some(member) = j.get("peering_crush_bucket_mandatory_member") {
        assert_eq!(i64::from(p.peering_crush.mandatory_member), n(member));
        let count = n(&j["peering_crush_bucket_count"]);
        assert_eq!(i64::from(p.peering_crush.bucket_count), count);
    }
}

fn check_osd(map: &OsdMap, j: &Value, x: &Value, later: i64) {
    let id = n(&j["osd"]) as i32;
    let osd = map.osd(id).unwrap();
    assert_eq!(hex_uuid(osd.uuid), j["uuid"]);
    assert_eq!(map.is_up(id), n(&j["up"]) == 1);
    assert_eq!(map.is_out(id), n(&j["in"]) == 0);
    let fraction = |w: u32| f64::from(w) / 65536.0;
    assert_eq!(
        fraction(map.weight(id).unwrap()),
        j["weight"].as_f64().unwrap()
    );
    let affinity = fraction(map.primary_affinity(id).unwrap());
    assert_eq!(affinity, j["primary_affinity"].as_f64().unwrap());
    for (key, got) in [
        ("last_clean_begin", osd.info.last_clean_begin),
        ("last_clean_end", osd.info.last_clean_end),
        ("up_from", osd.info.up_from),
        ("up_thru", osd.info.up_thru),
        ("down_at", osd.info.down_at),
        ("lost_at", osd.info.lost_at),
    ] {
        if !(later > 0 && key == "up_thru") {
            assert_eq!(i64::from(got), n(&j[key]), "osd.{id} {key}");
        }
    }
    for (key, got) in [
        ("public_addrs", &osd.client_addrs),
        ("cluster_addrs", &osd.cluster_addrs),
        ("heartbeat_back_addrs", &osd.hb_back_addrs),
        ("heartbeat_front_addrs", &osd.hb_front_addrs),
    ] {
        let want = j[key]["addrvec"].as_array().unwrap().iter().map(address);
        assert_eq!(got, &EntityAddrVec(want.collect()), "osd.{id} {key}");
    }
    assert_eq!(map.osd_addrs(id), Some(&osd.client_addrs));
    assert_eq!(x["osd"], j["osd"]);
    assert_eq!(map.osd_features(id), x["features"].as_u64().unwrap());
    assert_eq!(i64::from(osd.xinfo.old_weight), n(&x["old_weight"]));
    assert_eq!(i64::from(osd.xinfo.laggy_interval), n(&x["laggy_interval"]));
    assert_eq!(i64::from(osd.xinfo.dead_epoch), n(&x["dead_epoch"]));
    let state = map.osd_state(id);
    for s in j["state"].as_array().unwrap() {
        let bit = match s.as_str().unwrap() {
            "exists" => osd::state::EXISTS,
            "up" => osd::state::UP,
            "autoout" => osd::state::AUTOOUT,
            "new" => osd::state::NEW,
            other => panic!("state {other}"),
        };
        assert!(state & bit != 0, "osd.{id} {s}");
    }
    assert_eq!(
        state.count_ones() as usize,
        j["state"].as_array().unwrap().len()
    );
}

fn address(j: &Value) -> EntityAddr {
    let kind = match j["type"].as_str().unwrap() {
        "v1" => AddrType::LEGACY,
        "v2" => AddrType::MSGR2,
        other => panic!("address type {other}"),
    };
    let addr: SocketAddr = j["addr"].as_str().unwrap().parse().unwrap();
    EntityAddr {
        kind,
        nonce: n(&j["nonce"]) as u32,
        addr: Some(addr),
    }
}

fn check_exceptions(map: &OsdMap, j: &Value) {
    let osds = |v: &Value| -> Vec<i32> {
        let list = v.as_array().unwrap();
        list.iter().map(|o| n(o) as i32).collect()
    };
    let entries = |key: &str| j[key].as_array().cloned().unwrap_or_default();
    let pg = |v: &Value| v["pgid"].as_str().unwrap().to_owned();
    let named = |m: &BTreeMap<Pg, Vec<i32>>| -> Vec<(String, Vec<i32>)> {
        m.iter()
            .map(|(pg, o)| (pg.to_string(), o.clone()))
            .collect()
    };
    let want = |key: &str| -> Vec<(String, Vec<i32>)> {
        let list = entries(key);
        list.iter().map(|e| (pg(e), osds(&e["osds"]))).collect()
    };
    assert_eq!(named(map.pg_temp()), want("pg_temp"));
    assert_eq!(named(map.pg_upmap()), want("pg_upmap"));
    let items = map.pg_upmap_items().iter();
    let got: Vec<_> = items.map(|(pg, m)| (pg.to_string(), m.clone())).collect();
    let want: Vec<_> = entries("pg_upmap_items")
        .iter()
        .map(|e| {
            let pairs = e["mappings"].as_array().unwrap();
            let pairs = pairs
                .iter()
                .map(|m| (n(&m["from"]) as i32, n(&m["to"]) as i32));
            (pg(e), pairs.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(got, want);
    let primaries = map.pg_upmap_primary().iter();
    let got: Vec<_> = primaries
        .map(|(pg, o)| (pg.to_string(), i64::from(*o)))
        .collect();
    let want: Vec<_> = entries("pg_upmap_primaries")
        .iter()
        .map(|e| (pg(e), n(&e["primary_osd"])))
        .collect();
    assert_eq!(got, want);
    // A flat list: PG, OSD, PG, OSD.
    let temp = map.primary_temp().iter();
    let got: Vec<Value> = temp
        .flat_map(|(pg, o)| [Value::from(pg.to_string()), Value::from(*o)])
        .collect();
    assert_eq!(got, entries("primary_temp"));
    let listed = j["blocklist"].as_object().unwrap();
    let got: BTreeMap<String, String> = map
        .blocklist()
        .addrs()
        .map(|(a, t)| (format!("{}/{}", a.addr.unwrap(), a.nonce), time(t)))
        .collect();
    assert_eq!(got.len(), listed.len());
    for (addr, until) in listed {
        assert_eq!(got.get(addr).map(String::as_str), until.as_str());
        let (sock, nonce) = addr.split_once('/').unwrap();
        let client = EntityAddr::msgr2(sock.parse().unwrap(), nonce.parse().unwrap());
        assert!(map.is_blocklisted(&EntityAddrVec(vec![client])));
        let other = EntityAddr {
            nonce: client.nonce + 1,
            ..client
        };
        assert!(!map.is_blocklisted(&EntityAddrVec(vec![other])));
    }
}

#[test]
fn maps_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<OsdMap>();
    shared::<Incremental>();
    shared::<crush::Map>();
}
