//! The cluster at a glance (`Monitor`, `HealthMonitor`, `MgrStatMonitor`), and what a manager would
//! answer.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::osdmap::{Pg, flag};

use super::super::rates::Rate;
use super::super::time::iso;
use super::super::usage::PoolUsage;
use super::osd::{ids, in_count};
use super::{Answer, Call, ENOENT, Mon, Outcome, dump, refuse};

/// Flags that an administrator sets and forgets (`OSDMAP_FLAGS`).
const WARNED: u32 = flag::FULL
    | flag::PAUSERD
    | flag::PAUSEWR
    | flag::NOUP
    | flag::NODOWN
    | flag::NOIN
    | flag::NOOUT
    | flag::NOBACKFILL
    | flag::NORECOVER
    | flag::NOSCRUB
    | flag::NODEEP_SCRUB
    | flag::NOTIERAGENT
    | flag::NOSNAPTRIM
    | flag::NOREBALANCE;

struct Check {
    code: &'static str,
    error: bool,
    summary: String,
    count: usize,
    detail: Vec<String>,
}

fn checks(mon: &Mon) -> Vec<Check> {
    let map = mon.map();
    let mut found = Vec::new();
    let mut add = |code, error, summary: String, detail: Vec<String>| {
        found.push(Check {
            code,
            error,
            summary,
            count: detail.len(),
            detail,
        });
    };
    let down: Vec<i32> = ids(mon)
        .filter(|id| !map.is_up(*id) && !map.is_out(*id))
        .collect();
    if !down.is_empty() {
        let summary = format!("{} osds down", down.len());
        let host = &mon.config.host;
        let line = |id: &i32| format!("osd.{id} (root=default,host={host}) is down");
        add("OSD_DOWN", false, summary, down.iter().map(line).collect());
    }
    let flags: Vec<&str> = map.flag_names().collect();
    if map.flags() & WARNED != 0 {
        let set = flags.iter().filter(|name| {
            let at = flag::NAMES.iter().position(|n| n == *name);
            at.is_some_and(|bit| WARNED >> bit & 1 != 0)
        });
        let set: Vec<&str> = set.copied().collect();
        let summary = format!("{} flag(s) set", set.join(","));
        add("OSDMAP_FLAGS", false, summary.clone(), vec![summary]);
    }
    let full: Vec<String> = map
        .pools()
        .filter(|(_, pool)| dump::is_full(pool))
        .map(|(id, _)| {
            format!(
                "pool '{}' is full (reached quota)",
                map.pool_name(id).unwrap_or_default()
            )
        })
        .collect();
    if !full.is_empty() {
        add(
            "POOL_FULL",
            false,
            format!("{} pool(s) full", full.len()),
            full,
        );
    }
    let (total, used) = (mon.usage.total() as f64, mon.usage.used() as f64);
    if total > 0.0 && used >= total * f64::from(map.full_ratio()) {
        let line = "the store is full".to_owned();
        add("OSD_FULL", true, "1 full osd(s)".to_owned(), vec![line]);
    } else if total > 0.0 && used >= total * f64::from(map.nearfull_ratio()) {
        let line = "the store is near full".to_owned();
        add(
            "OSD_NEARFULL",
            false,
            "1 nearfull osd(s)".to_owned(),
            vec![line],
        );
    }
    found
}

fn verdict(checks: &[Check]) -> &'static str {
    match checks {
        [] => "HEALTH_OK",
        all if all.iter().any(|c| c.error) => "HEALTH_ERR",
        _ => "HEALTH_WARN",
    }
}

fn health_json(checks: &[Check], detail: bool) -> Value {
    let mut shown = Map::new();
    for check in checks {
        let severity = if check.error {
            "HEALTH_ERR"
        } else {
            "HEALTH_WARN"
        };
        let mut one = json!({"severity": severity, "muted": false,
            "summary": {"message": check.summary, "count": check.count}});
        if detail {
            let lines: Vec<Value> = check.detail.iter().map(|d| json!({"message": d})).collect();
            one["detail"] = json!(lines);
        }
        shown.insert(check.code.to_owned(), one);
    }
    json!({"status": verdict(checks), "checks": shown, "mutes": []})
}

pub(super) fn health(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let detail = call.optional("detail").is_some_and(|d| d == "detail");
    let checks = checks(mon);
    call.show(
        || health_json(&checks, detail),
        || {
            let summaries: Vec<&str> = checks.iter().map(|c| c.summary.as_str()).collect();
            let mut text = verdict(&checks).to_owned();
            if !summaries.is_empty() {
                let _ = write!(text, " {}", summaries.join("; "));
            }
            text.push('\n');
            for check in checks.iter().filter(|_| detail) {
                let word = if check.error { "ERR" } else { "WRN" };
                let _ = writeln!(text, "[{word}] {}: {}", check.code, check.summary);
                for line in &check.detail {
                    let _ = writeln!(text, "    {line}");
                }
            }
            text
        },
    )
}

/// Placement groups by state.
fn pg_states(mon: &Mon) -> BTreeMap<&'static str, u32> {
    let mut states = BTreeMap::new();
    let map = mon.map();
    for pg in all_pgs(mon) {
        let up = map
            .map_pg(pg)
            .acting_primary
            .is_some_and(|id| map.is_up(id));
        let state = if up {
            "active+clean"
        } else {
            "stale+active+clean"
        };
        *states.entry(state).or_default() += 1;
    }
    states
}

fn all_pgs(mon: &Mon) -> impl Iterator<Item = Pg> + '_ {
    let pools = mon.map().pools();
    pools.flat_map(|(pool, info)| (0..info.pg_num).map(move |seed| Pg { pool, seed }))
}

fn usage_total(mon: &Mon) -> PoolUsage {
    let mut sum = PoolUsage::default();
    for (id, _) in mon.map().pools() {
        let pool = mon.usage.pool(id);
        sum.objects += pool.objects;
        sum.bytes += pool.bytes;
    }
    sum
}

fn total_rate(mon: &Mon) -> Rate {
    let mut sum = Rate::default();
    mon.map()
        .pools()
        .for_each(|(id, _)| sum.add(mon.rates.of(id)));
    sum
}

/// As `PGMapDigest::client_io_rate_summary`: nothing of what does not happen.
pub(super) fn rate_json(rate: &Rate) -> Map<String, Value> {
    let mut shown = Map::new();
    let mut put = |name: &str, value: u64| shown.insert(name.to_owned(), json!(value));
    if rate.reads > 0 {
        put("read_bytes_sec", rate.read_bytes);
    }
    if rate.writes > 0 {
        put("write_bytes_sec", rate.written_bytes);
    }
    if !rate.is_idle() {
        put("read_op_per_sec", rate.reads);
        put("write_op_per_sec", rate.writes);
    }
    shown
}

/// Likewise as text; empty where nothing happens.
pub(super) fn rate_text(rate: &Rate) -> String {
    let mut text = String::new();
    if rate.reads > 0 {
        let _ = write!(text, "{}/s rd, ", bytes(rate.read_bytes));
    }
    if rate.writes > 0 {
        let _ = write!(text, "{}/s wr, ", bytes(rate.written_bytes));
    }
    if !rate.is_idle() {
        let _ = write!(text, "{} op/s rd, {} op/s wr", rate.reads, rate.writes);
    }
    text
}

/// `4.5 GiB`, as `byte_u_t` prints.
fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 || value >= 100.0 => 0,
        v if v >= 10.0 => 0,
        _ => 1,
    };
    format!("{value:.digits$} {}", units[unit])
}

pub(super) fn status(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.map();
    let checks = checks(mon);
    let states = pg_states(mon);
    let total = usage_total(mon);
    let rate = total_rate(mon);
    let pgs: u32 = states.values().sum();
    let pools = map.pools().len();
    let (all, up, inn) = (map.osd_count(), map.up_osd_count(), in_count(mon));
    let age = call.now.mono.saturating_sub(mon.started.mono) / 1_000_000_000;
    let fsid = crate::osd::uuid::text(&map.fsid());
    let name = &mon.config.name;
    let (capacity, used, free) = (mon.usage.total(), mon.usage.used(), mon.usage.available());
    call.show(
        || {
            let by_state: Vec<Value> = states
                .iter()
                .map(|(s, n)| json!({"state_name": s, "count": n}))
                .collect();
            let mut all = json!({
                "fsid": fsid, "health": health_json(&checks, false),
                "election_epoch": 1, "quorum": [0], "quorum_names": [name], "quorum_age": age,
                "monmap": {"epoch": 1, "min_mon_release_name": "pacific", "num_mons": 1},
                "osdmap": {"epoch": map.epoch(), "num_osds": all, "num_up_osds": up,
                    "osd_up_since": 0, "num_in_osds": inn, "osd_in_since": 0, "num_remapped_pgs": 0},
                "pgmap": {"pgs_by_state": by_state, "num_pgs": pgs, "num_pools": pools,
                    "num_objects": total.objects, "data_bytes": total.bytes, "bytes_used": used,
                    "bytes_avail": free, "bytes_total": capacity},
                "fsmap": {"epoch": 1, "by_rank": [], "up:standby": 0},
                "mgrmap": {"available": false, "num_standbys": 0, "modules": [], "services": {}},
                "servicemap": {"epoch": 1, "modified": "0.000000", "services": {}},
                "progress_events": {},
            });
            if let Value::Object(pgmap) = &mut all["pgmap"] {
                pgmap.extend(rate_json(&rate));
            }
            all
        },
        || {
            let mut text = format!("  cluster:\n    id:     {fsid}\n    health: {}\n", verdict(&checks));
            for check in &checks {
                let _ = writeln!(text, "            {}", check.summary);
            }
            let _ = write!(
                text,
                " \n  services:\n    mon: 1 daemons, quorum {name} (age {age}s)\n    mgr: no daemons active\n    osd: {all} osds: {up} up, {inn} in\n \n  data:\n    pools:   {pools} pools, {pgs} pgs\n    objects: {} objects, {}\n    usage:   {} used, {} / {} avail\n",
                total.objects,
                bytes(total.bytes),
                bytes(used),
                bytes(free),
                bytes(capacity)
            );
            for (n, (state, count)) in states.iter().enumerate() {
                let label = if n == 0 { "pgs:    " } else { "        " };
                let _ = writeln!(text, "    {label} {count} {state}");
            }
            if !rate.is_idle() {
                let _ = write!(text, " \n  io:\n    client:   {}\n", rate_text(&rate));
            }
            text.push_str(" \n");
            text
        },
    )
}

pub(super) fn fsid(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let fsid = crate::osd::uuid::text(&mon.config.fsid);
    call.show(|| json!({"fsid": fsid}), || format!("{fsid}\n"))
}

pub(super) fn version(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let version = mon.config.version.clone();
    call.show(|| json!({"version": version}), || format!("{version}\n"))
}

pub(super) fn versions(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let version = &mon.config.version;
    let osds = mon.map().osd_count();
    let all = json!({"mon": {version: 1}, "mgr": {}, "osd": {version: osds}, "mds": {},
        "overall": {version: osds + 1}});
    Ok(call.json(&all))
}

pub(super) fn mon_versions(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let all = json!({&mon.config.version: 1});
    Ok(call.json(&all))
}

pub(super) fn df(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let detail = call.optional("detail").is_some_and(|d| d == "detail");
    let map = mon.map();
    let (capacity, used, free) = (mon.usage.total(), mon.usage.used(), mon.usage.available());
    let ratio = |n: u64, of: u64| if of == 0 { 0.0 } else { n as f64 / of as f64 };
    let pools: Vec<(i64, String, PoolUsage)> = map
        .pools()
        .map(|(id, _)| {
            (
                id,
                map.pool_name(id).unwrap_or_default().to_owned(),
                mon.usage.pool(id),
            )
        })
        .collect();
    call.show(
        || {
            let stats = json!({"total_bytes": capacity, "total_avail_bytes": free,
                "total_used_bytes": used, "total_used_raw_bytes": used,
                "total_used_raw_ratio": ratio(used, capacity), "num_osds": map.osd_count(),
                "num_per_pool_osds": map.osd_count(), "num_per_pool_omap_osds": map.osd_count()});
            let pool = |(id, name, u): &(i64, String, PoolUsage)| {
                let info = map.pool(*id).cloned().unwrap_or_default();
                let mut stats = json!({"stored": u.bytes, "objects": u.objects,
                    "kb_used": u.bytes / 1024, "bytes_used": u.bytes,
                    "percent_used": ratio(u.bytes, u.bytes + free), "max_avail": free});
                if detail && let Value::Object(stats) = &mut stats {
                    let more = json!({"quota_objects": info.quota_max_objects,
                        "quota_bytes": info.quota_max_bytes, "dirty": 0, "rd": u.read_ops,
                        "rd_bytes": u.read_bytes, "wr": u.write_ops, "wr_bytes": u.write_bytes,
                        "compress_bytes_used": 0, "compress_under_bytes": 0,
                        "stored_raw": u.bytes, "avail_raw": free});
                    if let Value::Object(more) = more {
                        stats.extend(more);
                    }
                }
                json!({"name": name, "id": id, "stats": stats})
            };
            json!({"stats": stats, "stats_by_class": {},
                "pools": pools.iter().map(pool).collect::<Vec<_>>()})
        },
        || {
            let mut text = format!(
                "--- RAW STORAGE ---\nCLASS  SIZE  AVAIL  USED  RAW USED  %RAW USED\nTOTAL  {}  {}  {}  {}  {:.2}\n \n--- POOLS ---\nPOOL  ID  PGS  STORED  OBJECTS  USED  %USED  MAX AVAIL\n",
                bytes(capacity),
                bytes(free),
                bytes(used),
                bytes(used),
                ratio(used, capacity) * 100.0
            );
            for (id, name, u) in &pools {
                let pgs = map.pool(*id).map_or(0, |p| p.pg_num);
                let percent = ratio(u.bytes, u.bytes + free) * 100.0;
                let _ = writeln!(
                    text,
                    "{name}  {id}  {pgs}  {}  {}  {}  {percent:.2}  {}",
                    bytes(u.bytes),
                    u.objects,
                    bytes(u.bytes),
                    bytes(free)
                );
            }
            text
        },
    )
}

pub(super) fn features(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let features = format!("{:#x}", super::super::maps::FEATURES);
    let group = |n: usize| json!([{"features": features, "release": "luminous", "num": n}]);
    let all = json!({"mon": group(1), "osd": group(mon.map().osd_count()),
        "client": group(mon.client_count())});
    Ok(call.json(&all))
}

pub(super) fn node_ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let host = &mon.config.host;
    let osds: Vec<i32> = ids(mon).collect();
    let mut all =
        json!({"mon": {host: [mon.config.name]}, "osd": {host: osds}, "mds": {}, "mgr": {}});
    let kind = call.optional("type").unwrap_or_default();
    let one = match kind.as_str() {
        "" | "all" => all,
        kind => all[kind].take(),
    };
    Ok(call.json(&one))
}

fn monmap_json(mon: &Mon) -> Value {
    let map = mon.monmap();
    let mons: Vec<Value> = map
        .ranks
        .iter()
        .enumerate()
        .filter_map(|(rank, name)| {
            let info = map.mons.get(name)?;
            let first = info.addrs.0.first()?;
            let addr = format!("{}/{}", first.addr?, first.nonce);
            Some(
                json!({"rank": rank, "name": name, "public_addrs": dump::addrvec(&info.addrs),
                "addr": addr, "public_addr": addr, "priority": info.priority,
                "weight": info.weight, "crush_location": "{}"}),
            )
        })
        .collect();
    json!({
        "epoch": map.epoch, "fsid": crate::osd::uuid::text(&map.fsid),
        "modified": iso(map.last_changed), "created": iso(map.created),
        "min_mon_release": map.min_mon_release, "min_mon_release_name": "pacific",
        "election_strategy": map.strategy, "disallowed_leaders: ": "", "stretch_mode": false,
        "tiebreaker_mon": "",
        "features": {"persistent": ["kraken", "luminous", "mimic", "osdmap-prune", "nautilus",
            "octopus", "pacific", "elector-pinging"], "optional": []},
        "mons": mons,
    })
}

pub(super) fn mon_dump(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.monmap();
    let answer = call.show(
        || {
            let mut all = monmap_json(mon);
            all["quorum"] = json!([0]);
            all
        },
        || {
            let mut text = format!(
                "epoch {}\nfsid {}\nlast_changed {}\ncreated {}\nmin_mon_release {} (pacific)\nelection_strategy: 1\n",
                map.epoch,
                crate::osd::uuid::text(&map.fsid),
                iso(map.last_changed),
                iso(map.created),
                map.min_mon_release
            );
            for (rank, name) in map.ranks.iter().enumerate() {
                let _ = writeln!(text, "{rank}: {} mon.{name}", map.mons[name].addrs);
            }
            text
        },
    )?;
    Ok(answer.with_status(format!("dumped monmap epoch {}", map.epoch)))
}

pub(super) fn mon_stat(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = mon.config.name.clone();
    let addrs = &mon.config.addrs;
    call.show(
        || {
            json!({"epoch": 1, "min_mon_release": 16, "num_mons": 1, "leader": name,
                "quorum": [{"rank": 0, "name": name}]})
        },
        || {
            format!(
                "e1: 1 mons at {{{name}={addrs}}}, election epoch 1, leader 0 {name}, quorum 0 {name}\n"
            )
        },
    )
}

pub(super) fn quorum_status(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = &mon.config.name;
    let age = call.now.mono.saturating_sub(mon.started.mono) / 1_000_000_000;
    let all = json!({"election_epoch": 1, "quorum": [0], "quorum_names": [name],
        "quorum_leader_name": name, "quorum_age": age,
        "features": {"quorum_con": super::super::maps::FEATURES.to_string(),
            "quorum_mon": ["kraken", "luminous", "mimic", "osdmap-prune", "nautilus", "octopus",
                "pacific", "elector-pinging"]},
        "monmap": monmap_json(mon)});
    Ok(call.json(&all))
}

pub(super) fn mon_metadata(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let config = &mon.config;
    let facts = json!({"name": config.name, "addrs": config.addrs.to_string(),
        "ceph_version": config.version, "ceph_version_short": config.version,
        "hostname": config.host});
    match call.optional("id") {
        Some(id) if id == config.name || id == "0" => Ok(call.json(&facts)),
        Some(id) => Err(refuse(ENOENT, format!("mon.{id} does not exist"))),
        None => Ok(call.json(&json!([facts]))),
    }
}

pub(super) fn mon_getmap(mon: &mut Mon, _: &Call<'_>) -> Outcome {
    let mut data = Vec::new();
    mon.monmap().encode(&mut data);
    Ok(Answer {
        status: "got monmap epoch 1".to_owned(),
        data,
    })
}

/// The cluster log is the process's own; clients' lines are not kept.
pub(super) fn log(_: &mut Mon, call: &Call<'_>) -> Outcome {
    call.string("logtext").map(|_| Answer::default())
}

pub(super) fn mgr_dump(_: &mut Mon, call: &Call<'_>) -> Outcome {
    let all = json!({"epoch": 1, "active_gid": 0, "active_name": "",
        "active_addrs": {"addrvec": []}, "active_addr": "-", "active_change": "0.000000",
        "active_mgr_features": 0, "available": false, "standbys": [], "modules": [],
        "available_modules": [], "services": {}, "always_on_modules": {},
        "last_failure_osd_epoch": 0, "active_clients": []});
    Ok(call.json(&all))
}

pub(super) fn mgr_stat(_: &mut Mon, call: &Call<'_>) -> Outcome {
    Ok(call.json(&json!({"epoch": 1, "available": false, "active_name": "", "num_standby": 0})))
}

pub(super) fn mgr_services(_: &mut Mon, call: &Call<'_>) -> Outcome {
    Ok(call.json(&json!({})))
}

pub(super) fn mgr_module_ls(_: &mut Mon, call: &Call<'_>) -> Outcome {
    Ok(call.json(&json!({"always_on_modules": [], "enabled_modules": [], "disabled_modules": []})))
}

pub(super) fn service_dump(_: &mut Mon, call: &Call<'_>) -> Outcome {
    Ok(call.json(&json!({"epoch": 1, "modified": "0.000000", "services": {}})))
}

pub(super) fn service_status(_: &mut Mon, call: &Call<'_>) -> Outcome {
    Ok(call.json(&json!({})))
}

pub(super) fn fs_ls(_: &mut Mon, call: &Call<'_>) -> Outcome {
    call.show(|| json!([]), || "No filesystems enabled\n".to_owned())
}

pub(super) fn fs_status(_: &mut Mon, call: &Call<'_>) -> Outcome {
    let none = || json!({"clients": [], "mds_version": [], "mdsmap": [], "pools": []});
    call.show(none, || "No filesystems\n".to_owned())
}

pub(super) fn fs_dump(_: &mut Mon, call: &Call<'_>) -> Outcome {
    let answer = call.show(
        || {
            json!({"epoch": 1, "default_fscid": -1, "compat": {}, "feature_flags": {},
                "standbys": [], "filesystems": []})
        },
        || "e1\nNo filesystems configured\n".to_owned(),
    )?;
    Ok(answer.with_status("dumped fsmap epoch 1"))
}

pub(super) fn mds_stat(_: &mut Mon, call: &Call<'_>) -> Outcome {
    call.show(
        || json!({"fsmap": {"epoch": 1, "filesystems": [], "standbys": []}}),
        String::new,
    )
}

pub(super) fn pg_stat(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let states = pg_states(mon);
    let pgs: u32 = states.values().sum();
    let total = usage_total(mon);
    let (capacity, used, free) = (mon.usage.total(), mon.usage.used(), mon.usage.available());
    call.show(
        || {
            let by_state: Vec<Value> = states
                .iter()
                .map(|(s, n)| json!({"name": s, "num": n}))
                .collect();
            json!({"pg_ready": true, "pg_summary": {"num_pg_by_state": by_state, "num_pgs": pgs,
                "num_bytes": total.bytes, "total_bytes": capacity, "total_avail_bytes": free,
                "total_used_bytes": used, "total_used_raw_bytes": used}})
        },
        || {
            let each: Vec<String> = states.iter().map(|(s, n)| format!("{n} {s}")).collect();
            format!(
                "{pgs} pgs: {}; {} data, {} used, {} / {} avail\n",
                each.join(", "),
                bytes(total.bytes),
                bytes(used),
                bytes(free),
                bytes(capacity)
            )
        },
    )
}

pub(super) fn pg_dump(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.map();
    let brief = call.list("dumpcontents").iter().any(|w| w == "pgs_brief");
    let pgs = || all_pgs(mon).map(|pg| dump::pg(map, pg)).collect::<Vec<_>>();
    let answer = call.show(
        || match brief {
            true => json!({"pg_ready": true, "pg_stats": pgs()}),
            false => {
                let pools: Vec<Value> = map
                    .pools()
                    .map(|(id, info)| {
                        let u = mon.usage.pool(id);
                        json!({"poolid": id, "num_pg": info.pg_num, "stat_sum": {
                            "num_bytes": u.bytes, "num_objects": u.objects,
                            "num_object_clones": u.clones, "num_read": u.read_ops,
                            "num_read_kb": u.read_bytes / 1024, "num_write": u.write_ops,
                            "num_write_kb": u.write_bytes / 1024, "num_omap_bytes": u.omap_bytes}})
                    })
                    .collect();
                let osds: Vec<Value> = ids(mon)
                    .map(|id| {
                        let u = mon.usage.osds.get(&id).cloned().unwrap_or_default();
                        json!({"osd": id, "kb": u.total / 1024, "kb_used": u.used / 1024,
                            "kb_avail": u.total.saturating_sub(u.used) / 1024})
                    })
                    .collect();
                json!({"pg_ready": true, "pg_map": {"version": map.epoch(),
                    "last_osdmap_epoch": map.epoch(), "pg_stats": pgs(), "pool_stats": pools,
                    "osd_stats": osds}})
            }
        },
        || {
            let lines: String = all_pgs(mon)
                .map(|pg| dump::pg_brief_line(map, pg))
                .collect();
            format!("PG_STAT  STATE  UP  UP_PRIMARY  ACTING  ACTING_PRIMARY\n{lines}")
        },
    )?;
    let what = if brief { "pgs_brief" } else { "all" };
    Ok(answer.with_status(format!("dumped {what}")))
}

pub(super) fn pg_ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.map();
    let pool = call.optional_int("pool")?;
    let wanted = |pg: &Pg| pool.is_none_or(|p| pg.pool == p);
    call.show(
        || {
            let stats: Vec<Value> = all_pgs(mon)
                .filter(wanted)
                .map(|pg| dump::pg(map, pg))
                .collect();
            json!({"pg_ready": true, "pg_stats": stats})
        },
        || {
            let lines = all_pgs(mon)
                .filter(wanted)
                .map(|pg| dump::pg_brief_line(map, pg));
            format!(
                "PG  STATE  UP  UP_PRIMARY  ACTING  ACTING_PRIMARY\n{}",
                lines.collect::<String>()
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(20 << 30), "20 GiB");
    }
}
