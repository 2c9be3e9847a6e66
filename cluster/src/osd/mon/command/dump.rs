//! The map as JSON and as text (`OSDMap::dump`, `pg_pool_t::dump`, `CrushWrapper::dump`).

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::codec::{EntityAddrVec, UTime};
use crate::osdmap::crush::{self, Alg, op};
use crate::osdmap::osd::state;
use crate::osdmap::pool::{PoolOpt, flag};
use crate::osdmap::{OsdMap, Pool, SnapIntervals, release};

use super::super::time::iso;
use super::osd::{fixed, set};
use super::{Call, ENOENT, Mon, Outcome, refuse};

/// Bits of an OSD's state by name (`ceph_osd_state_name`).
const STATES: [(u32, &str); 8] = [
    (state::EXISTS, "exists"),
    (state::UP, "up"),
    (state::AUTOOUT, "autoout"),
    (state::NEW, "new"),
    (state::FULL, "full"),
    (state::NEARFULL, "nearfull"),
    (state::BACKFILLFULL, "backfillfull"),
    (state::DESTROYED, "destroyed"),
];

pub(super) fn addrvec(addrs: &EntityAddrVec) -> Value {
    let each = addrs.0.iter().map(|a| {
        let addr = a.addr.map_or_else(|| "-".to_owned(), |s| s.to_string());
        json!({"type": a.kind.to_string(), "addr": addr, "nonce": a.nonce})
    });
    json!({"addrvec": each.collect::<Vec<_>>()})
}

/// The first address, without its type, as older readers want it.
fn legacy(addrs: &EntityAddrVec) -> String {
    let first = addrs.0.first();
    match first.and_then(|a| Some((a.addr?, a.nonce))) {
        Some((addr, nonce)) => format!("{addr}/{nonce}"),
        None => "-".to_owned(),
    }
}

/// One address stands without brackets.
fn addrs_text(addrs: &EntityAddrVec) -> String {
    match addrs.0.as_slice() {
        [one] => one.to_string(),
        _ => addrs.to_string(),
    }
}

pub(super) fn autoscale(pool: &Pool) -> &'static str {
    match pool.pg_autoscale_mode {
        0 => "off",
        1 => "warn",
        _ => "on",
    }
}

fn options(pool: &Pool) -> Value {
    let named = |key: &i32| match super::pool::option_name(*key) {
        Some(name) => name.to_owned(),
        None => format!("opt{key}"),
    };
    let value = |opt: &PoolOpt| match opt {
        PoolOpt::Str(s) => json!(s),
        PoolOpt::Int(n) => json!(n),
        PoolOpt::Double(x) => json!(x),
    };
    Value::Object(
        pool.opts
            .iter()
            .map(|(k, v)| (named(k), value(v)))
            .collect(),
    )
}

pub(super) fn pool(map: &OsdMap, id: i64, pool: &Pool) -> Value {
    let snaps: Vec<Value> = pool
        .snaps
        .iter()
        .map(|(id, s)| json!({"snapid": id, "stamp": iso(s.stamp), "name": s.name}))
        .collect();
    let flags: Vec<&str> = pool.flag_names().collect();
    let mode = match pool.is_pool_snaps() {
        true => "pool",
        false => "selfmanaged",
    };
    let merged = &pool.last_pg_merge;
    let mut all = json!({
        "pool": id, "pool_name": map.pool_name(id), "create_time": iso(pool.create_time),
        "flags": pool.flags, "flags_names": flags.join(","), "type": 1,
        "size": pool.size, "min_size": pool.min_size, "crush_rule": pool.crush_rule,
        "peering_crush_bucket_count": 0, "peering_crush_bucket_target": 0,
        "peering_crush_bucket_barrier": 0, "peering_crush_bucket_mandatory_member": 2147483647,
        "object_hash": pool.object_hash, "pg_autoscale_mode": autoscale(pool),
        "pg_num": pool.pg_num, "pg_placement_num": pool.pgp_num,
        "pg_placement_num_target": pool.pgp_num_target, "pg_num_target": pool.pg_num_target,
        "pg_num_pending": pool.pg_num_pending,
        "last_pg_merge_meta": {"source_pgid": merged.source.to_string(),
            "ready_epoch": merged.ready_epoch, "last_epoch_started": 0,
            "last_epoch_clean": 0, "source_version": "0'0", "target_version": "0'0"},
        "last_change": pool.last_change.to_string(),
        "last_force_op_resend": pool.last_force_op_resend.to_string(),
        "last_force_op_resend_prenautilus": pool.last_force_op_resend_prenautilus.to_string(),
        "last_force_op_resend_preluminous": pool.last_force_op_resend_preluminous.to_string(),
    });
    let more = json!({
        "auid": pool.auid, "snap_mode": mode, "snap_seq": pool.snap_seq,
        "snap_epoch": pool.snap_epoch, "pool_snaps": snaps, "removed_snaps": "[]",
        "quota_max_bytes": pool.quota_max_bytes, "quota_max_objects": pool.quota_max_objects,
        "tiers": [], "tier_of": pool.tier_of, "read_tier": pool.read_tier,
        "write_tier": pool.write_tier, "cache_mode": "none",
        "target_max_bytes": 0, "target_max_objects": 0,
        "cache_target_dirty_ratio_micro": pool.cache.dirty_ratio_micro,
        "cache_target_dirty_high_ratio_micro": pool.cache.dirty_high_ratio_micro,
        "cache_target_full_ratio_micro": pool.cache.full_ratio_micro,
        "cache_min_flush_age": 0, "cache_min_evict_age": 0, "erasure_code_profile": "",
        "hit_set_params": {"type": "none"}, "hit_set_period": 0, "hit_set_count": 0,
        "use_gmt_hitset": pool.hit_set.use_gmt, "min_read_recency_for_promote": 0,
        "min_write_recency_for_promote": 0, "hit_set_grade_decay_rate": 0,
        "hit_set_search_last_n": 0, "grade_table": [], "stripe_width": 0,
        "expected_num_objects": pool.expected_num_objects, "fast_read": pool.fast_read,
        "options": options(pool), "application_metadata": pool.application_metadata,
    });
    join(&mut all, more);
    all
}

fn join(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// A pool in one line (`OSDMap::print_pools`).
pub(super) fn pool_line(map: &OsdMap, id: i64, pool: &Pool) -> String {
    let flags: Vec<&str> = pool.flag_names().collect();
    let mut text = format!(
        "pool {id} '{}' replicated size {} min_size {} crush_rule {} object_hash rjenkins pg_num {} pgp_num {}",
        map.pool_name(id).unwrap_or("<unknown>"),
        pool.size,
        pool.min_size,
        pool.crush_rule,
        pool.pg_num,
        pool.pgp_num,
    );
    if pool.pg_num_target != pool.pg_num {
        let _ = write!(text, " pg_num_target {}", pool.pg_num_target);
    }
    if pool.pgp_num_target != pool.pgp_num {
        let _ = write!(text, " pgp_num_target {}", pool.pgp_num_target);
    }
    let _ = write!(
        text,
        " autoscale_mode {} last_change {}",
        autoscale(pool),
        pool.last_change
    );
    let forced = [
        pool.last_force_op_resend,
        pool.last_force_op_resend_prenautilus,
        pool.last_force_op_resend_preluminous,
    ];
    if forced != [0; 3] {
        let _ = write!(text, " lfor {}/{}/{}", forced[0], forced[1], forced[2]);
    }
    let _ = write!(text, " flags {}", flags.join(","));
    if pool.quota_max_bytes != 0 {
        let _ = write!(text, " max_bytes {}", pool.quota_max_bytes);
    }
    if pool.quota_max_objects != 0 {
        let _ = write!(text, " max_objects {}", pool.quota_max_objects);
    }
    text.push_str(" stripe_width 0");
    for (key, opt) in &pool.opts {
        let Some(name) = super::pool::option_name(*key) else {
            continue;
        };
        let _ = match opt {
            PoolOpt::Str(s) => write!(text, " {name} {s}"),
            PoolOpt::Int(n) => write!(text, " {name} {n}"),
            PoolOpt::Double(x) => write!(text, " {name} {x}"),
        };
    }
    if !pool.application_metadata.is_empty() {
        let names: Vec<&str> = pool
            .application_metadata
            .keys()
            .map(String::as_str)
            .collect();
        let _ = write!(text, " application {}", names.join(","));
    }
    text.push('\n');
    for (snap, info) in &pool.snaps {
        let _ = writeln!(text, "\tsnap {snap} '{}' {}", info.name, iso(info.stamp));
    }
    text
}

fn states(map: &OsdMap, id: i32) -> Vec<&'static str> {
    let bits = map.osd_state(id);
    let set = STATES.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| *name).collect()
}

fn osd(map: &OsdMap, id: i32) -> Value {
    let osd = map.osd(id).cloned().unwrap_or_default();
    json!({
        "osd": id, "uuid": crate::osd::uuid::text(&osd.uuid),
        "up": u8::from(map.is_up(id)), "in": u8::from(!map.is_out(id)),
        "weight": fixed(map.weight(id).unwrap_or(0)),
        "primary_affinity": fixed(map.primary_affinity(id).unwrap_or(0)),
        "last_clean_begin": osd.info.last_clean_begin, "last_clean_end": osd.info.last_clean_end,
        "up_from": osd.info.up_from, "up_thru": osd.info.up_thru,
        "down_at": osd.info.down_at, "lost_at": osd.info.lost_at,
        "public_addrs": addrvec(&osd.client_addrs), "cluster_addrs": addrvec(&osd.cluster_addrs),
        "heartbeat_back_addrs": addrvec(&osd.hb_back_addrs),
        "heartbeat_front_addrs": addrvec(&osd.hb_front_addrs),
        "public_addr": legacy(&osd.client_addrs), "cluster_addr": legacy(&osd.cluster_addrs),
        "heartbeat_back_addr": legacy(&osd.hb_back_addrs),
        "heartbeat_front_addr": legacy(&osd.hb_front_addrs),
        "state": states(map, id),
    })
}

fn xinfo(map: &OsdMap, id: i32) -> Value {
    let x = map.osd(id).map(|o| o.xinfo).unwrap_or_default();
    json!({
        "osd": id, "down_stamp": iso(x.down_stamp), "laggy_probability": x.laggy_probability,
        "laggy_interval": x.laggy_interval, "features": x.features, "old_weight": x.old_weight,
        "last_purged_snaps_scrub": iso(x.last_purged_snaps_scrub), "dead_epoch": x.dead_epoch,
    })
}

fn snaps<'a>(sets: impl Iterator<Item = (&'a i64, &'a SnapIntervals)>) -> Value {
    let each = sets.map(|(pool, set)| {
        let intervals: Vec<Value> = set
            .iter()
            .map(|(begin, length)| json!({"begin": begin, "length": length}))
            .collect();
        json!({"pool": pool, "snaps": intervals})
    });
    Value::Array(each.collect())
}

/// `OSDMap::dump`.
fn map_json(map: &OsdMap) -> Value {
    let mut flags: Vec<&str> = map.flag_names().collect();
    let names = flags.join(",");
    flags.sort_unstable();
    let ids = || (0..map.max_osd() as i32).filter(|id| map.exists(*id));
    let blocked: Map<String, Value> = map
        .blocklist()
        .addrs()
        .map(|(a, until)| {
            (
                a.to_string().trim_start_matches("any:").to_owned(),
                json!(iso(until)),
            )
        })
        .collect();
    let ranges: Map<String, Value> = map
        .blocklist()
        .ranges()
        .map(|(a, until)| (a.to_string(), json!(iso(until))))
        .collect();
    let mut all = json!({
        "epoch": map.epoch(), "fsid": crate::osd::uuid::text(&map.fsid()),
        "created": iso(map.created()), "modified": iso(map.modified()),
        "last_up_change": iso(UTime::default()), "last_in_change": iso(UTime::default()),
        "flags": names, "flags_num": map.flags(), "flags_set": flags,
        "crush_version": map.crush_version(), "full_ratio": map.full_ratio(),
        "backfillfull_ratio": map.backfillfull_ratio(), "nearfull_ratio": map.nearfull_ratio(),
        "cluster_snapshot": "", "pool_max": map.pool_max(), "max_osd": map.max_osd(),
        "require_min_compat_client": release::name(map.require_min_compat_client()),
        "min_compat_client": "jewel",
        "require_osd_release": release::name(map.require_osd_release()),
        "allow_crimson": false,
    });
    let more = json!({
        "pools": map.pools().map(|(id, p)| pool(map, id, p)).collect::<Vec<_>>(),
        "osds": ids().map(|id| osd(map, id)).collect::<Vec<_>>(),
        "osd_xinfo": ids().map(|id| xinfo(map, id)).collect::<Vec<_>>(),
        "pg_upmap": [], "pg_upmap_items": [], "pg_upmap_primaries": [], "pg_temp": [],
        "primary_temp": [], "blocklist": blocked, "range_blocklist": ranges,
        "erasure_code_profiles": map.erasure_code_profiles(),
        "removed_snaps_queue": snaps(map.removed_snaps_queue().iter()),
        "new_removed_snaps": snaps(map.new_removed_snaps().iter()),
        "new_purged_snaps": [], "crush_node_flags": {}, "device_class_flags": {},
        "stretch_mode": {"stretch_mode_enabled": false, "stretch_bucket_count": 0,
            "degraded_stretch_mode": 0, "recovering_stretch_mode": 0, "stretch_mode_bucket": 0},
    });
    join(&mut all, more);
    all
}

/// `OSDMap::print`.
fn map_text(map: &OsdMap) -> String {
    let flags: Vec<&str> = map.flag_names().collect();
    let mut text = format!(
        "epoch {}\nfsid {}\ncreated {}\nmodified {}\nflags {}\ncrush_version {}\nfull_ratio {}\nbackfillfull_ratio {}\nnearfull_ratio {}\nrequire_min_compat_client {}\nmin_compat_client jewel\nrequire_osd_release {}\nstretch_mode_enabled false\n",
        map.epoch(),
        crate::osd::uuid::text(&map.fsid()),
        iso(map.created()),
        iso(map.modified()),
        flags.join(","),
        map.crush_version(),
        map.full_ratio(),
        map.backfillfull_ratio(),
        map.nearfull_ratio(),
        release::name(map.require_min_compat_client()),
        release::name(map.require_osd_release()),
    );
    for (id, pool) in map.pools() {
        text.push_str(&pool_line(map, id, pool));
    }
    let _ = writeln!(text, "max_osd {}", map.max_osd());
    for id in (0..map.max_osd() as i32).filter(|id| map.exists(*id)) {
        let osd = map.osd(id).cloned().unwrap_or_default();
        let up = if map.is_up(id) { "up  " } else { "down" };
        let out = if map.is_out(id) { "out" } else { "in " };
        let _ = writeln!(
            text,
            "osd.{id} {up} {out} weight {} up_from {} up_thru {} down_at {} last_clean_interval [{},{}) {} {} {} {}",
            fixed(map.weight(id).unwrap_or(0)),
            osd.info.up_from,
            osd.info.up_thru,
            osd.info.down_at,
            osd.info.last_clean_begin,
            osd.info.last_clean_end,
            addrs_text(&osd.client_addrs),
            addrs_text(&osd.cluster_addrs),
            states(map, id).join(","),
            crate::osd::uuid::text(&osd.uuid),
        );
    }
    for (addr, until) in map.blocklist().addrs() {
        let addr = addr.to_string();
        let addr = addr.trim_start_matches("any:");
        let _ = writeln!(text, "blocklist {addr} expires {}", iso(until));
    }
    for (addr, until) in map.blocklist().ranges() {
        let _ = writeln!(text, "range blocklist {addr} expires {}", iso(until));
    }
    text
}

pub(super) fn osd_dump(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = match call.optional_int("epoch")? {
        None | Some(0) => (**mon.map()).clone(),
        Some(epoch) => {
            let full = u32::try_from(epoch).ok().and_then(|e| mon.full_map(e));
            let missing = || refuse(ENOENT, format!("there is no map for epoch {epoch}"));
            let full = full.ok_or_else(missing)?;
            OsdMap::decode(&full).map_err(|e| refuse(super::EIO, e.to_string()))?
        }
    };
    call.show(|| map_json(&map), || map_text(&map))
}

pub(super) fn rule(crush: &crush::Map, id: u32, rule: &crush::Rule) -> Value {
    let name = |id: i32| crush.item_name(id).unwrap_or_default();
    let kind = |id: i32| crush.type_name(id).unwrap_or_default();
    let steps: Vec<Value> = rule
        .steps
        .iter()
        .map(|s| match s.op {
            op::TAKE => json!({"op": "take", "item": s.arg1, "item_name": name(s.arg1)}),
            op::CHOOSE_FIRSTN => {
                json!({"op": "choose_firstn", "num": s.arg1, "type": kind(s.arg2)})
            }
            op::CHOOSELEAF_FIRSTN => {
                json!({"op": "chooseleaf_firstn", "num": s.arg1, "type": kind(s.arg2)})
            }
            op::EMIT => json!({"op": "emit"}),
            other => json!({"opcode": other, "arg1": s.arg1, "arg2": s.arg2}),
        })
        .collect();
    json!({"rule_id": id, "rule_name": crush.rule_name(id as i32), "ruleset": id,
        "type": rule.kind, "min_size": rule.min_size, "max_size": rule.max_size, "steps": steps})
}

pub(super) fn crush_dump(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let crush = mon.map().crush();
    let devices: Vec<Value> = (0..crush.device_limit())
        .map(|id| json!({"id": id, "name": crush.item_name(id), "class": crush.device_class(id)}))
        .collect();
    let types: Vec<Value> = (0..12)
        .filter_map(|t| Some(json!({"type_id": t, "name": crush.type_name(t)?})))
        .collect();
    let bucket = |b: &crush::Bucket| {
        let weight = |at: usize| match &b.alg {
            Alg::Straw2 { weights } => weights.get(at).copied().unwrap_or(0),
            _ => 0,
        };
        let items: Vec<Value> = b
            .items
            .iter()
            .enumerate()
            .map(|(at, id)| json!({"id": id, "weight": weight(at), "pos": at}))
            .collect();
        json!({"id": b.id, "name": crush.item_name(b.id), "type_id": b.kind,
            "type_name": crush.type_name(b.kind.into()), "weight": b.weight,
            "alg": b.alg.name(), "hash": "rjenkins1", "items": items})
    };
    let t = crush.tunables();
    let all = json!({
        "devices": devices, "types": types,
        "buckets": crush.buckets().map(bucket).collect::<Vec<_>>(),
        "rules": crush.rules().map(|(id, r)| rule(crush, id, r)).collect::<Vec<_>>(),
        "tunables": {
            "choose_local_tries": t.choose_local_tries,
            "choose_local_fallback_tries": t.choose_local_fallback_tries,
            "choose_total_tries": t.choose_total_tries,
            "chooseleaf_descend_once": t.chooseleaf_descend_once,
            "chooseleaf_vary_r": t.chooseleaf_vary_r,
            "chooseleaf_stable": t.chooseleaf_stable,
            "straw_calc_version": t.straw_calc_version,
            "allowed_bucket_algs": t.allowed_bucket_algs,
            "profile": "jewel", "optimal_tunables": 1, "legacy_tunables": 0,
            "minimum_required_version": "jewel",
        },
        "choose_args": {},
    });
    Ok(call.json(&all))
}

/// One placement group as `pg dump` shows it (`pg_stat_t::dump`, in brief).
pub(super) fn pg(map: &OsdMap, pg: crate::osdmap::Pg) -> Value {
    let at = map.map_pg(pg);
    let up = at.acting_primary.is_some_and(|id| map.is_up(id));
    json!({
        "pgid": pg.to_string(), "version": "0'0", "reported_seq": 0, "reported_epoch": map.epoch(),
        "state": if up { "active+clean" } else { "stale+active+clean" },
        "up": at.up.to_vec(), "acting": at.acting.to_vec(),
        "up_primary": at.up_primary.unwrap_or(-1),
        "acting_primary": at.acting_primary.unwrap_or(-1),
    })
}

pub(super) fn pg_brief_line(map: &OsdMap, pg: crate::osdmap::Pg) -> String {
    let at = map.map_pg(pg);
    let up = at.acting_primary.is_some_and(|id| map.is_up(id));
    let state = if up {
        "active+clean"
    } else {
        "stale+active+clean"
    };
    let primary = |p: Option<i32>| p.unwrap_or(-1);
    format!(
        "{pg}  {state}  {}  {}  {}  {}\n",
        set(&at.up),
        primary(at.up_primary),
        set(&at.acting),
        primary(at.acting_primary)
    )
}

/// Bits of pools that stop writes.
pub(super) fn is_full(pool: &Pool) -> bool {
    pool.has_flag(flag::FULL)
}
