//! OSDs, their flags, the blocklist, CRUSH rules (`OSDMonitor`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::codec::{AddrType, EntityAddr, UTime};
use crate::osdmap::osd::{self, state};
use crate::osdmap::{ITEM_NONE, Incremental, Pg, flag, release};

use super::super::time::iso;
use super::{Answer, Call, EINVAL, ENOENT, EPERM, Mon, Outcome, Refusal, dump, pool, refuse};

/// `mon_osd_blocklist_default_expire`.
const BLOCKLIST_SECONDS: f64 = 3600.0;
/// A hundred years: what is meant by for ever fits a 32-bit time no more.
const MAX_EXPIRE: f64 = 1e9;

pub(super) fn stat(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.map();
    let (all, up, inn) = (map.osd_count(), map.up_osd_count(), in_count(mon));
    let epoch = map.epoch();
    call.show(
        || {
            json!({"epoch": epoch, "num_osds": all, "num_up_osds": up, "osd_up_since": 0,
                "num_in_osds": inn, "osd_in_since": 0, "num_remapped_pgs": 0})
        },
        || format!("{all} osds: {up} up, {inn} in; epoch: e{epoch}\n"),
    )
}

pub(super) fn ids(mon: &Mon) -> impl Iterator<Item = i32> + '_ {
    let map = mon.map();
    (0..map.max_osd() as i32).filter(|id| map.exists(*id))
}

pub(super) fn in_count(mon: &Mon) -> usize {
    ids(mon).filter(|id| !mon.map().is_out(*id)).count()
}

/// A weight of 16.16 fixed point.
pub(super) fn fixed(weight: u32) -> f64 {
    f64::from(weight) / 65536.0
}

/// `osd.3` or `3`.
fn osd_id(mon: &Mon, text: &str) -> Result<i32, Refusal> {
    let id: Option<i32> = text.strip_prefix("osd.").unwrap_or(text).parse().ok();
    let id =
        id.ok_or_else(|| refuse(EINVAL, format!("unable to parse osd id value \"{text}\"")))?;
    match mon.map().exists(id) {
        true => Ok(id),
        false => Err(refuse(ENOENT, format!("osd.{id} does not exist"))),
    }
}

pub(super) fn ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let ids: Vec<i32> = ids(mon).collect();
    call.show(
        || json!(ids),
        || ids.iter().map(|id| format!("{id}\n")).collect(),
    )
}

pub(super) fn tree(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.map();
    let crush = map.crush();
    let mut rows: Vec<(i32, usize)> = Vec::new();
    // Shadows of device classes have a `~` in their names and are not shown.
    let shown = |id: i32| crush.item_name(id).is_some_and(|n| !n.contains('~'));
    let mut todo: Vec<(i32, usize)> = vec![(-1, 0)];
    while let Some((id, depth)) = todo.pop() {
        rows.push((id, depth));
        if let Some(bucket) = crush.bucket(id) {
            let items = bucket.items.iter().rev().filter(|i| shown(**i));
            todo.extend(items.map(|i| (*i, depth + 1)));
        }
    }
    let weight_of = |id: i32| {
        let bucket = crush.buckets().find(|b| b.items.contains(&id))?;
        let at = bucket.items.iter().position(|i| *i == id)?;
        match &bucket.alg {
            crate::osdmap::crush::Alg::Straw2 { weights } => weights.get(at).copied(),
            _ => None,
        }
    };
    let weight = |id: i32| match crush.bucket(id) {
        Some(bucket) => bucket.weight,
        None => weight_of(id).unwrap_or(0),
    };
    let status = |id: i32| if map.is_up(id) { "up" } else { "down" };
    let reweight = |id: i32| fixed(map.weight(id).unwrap_or(0));
    let affinity = |id: i32| fixed(map.primary_affinity(id).unwrap_or(0));
    let name = |id: i32| crush.item_name(id).unwrap_or_default();
    let kind = |id: i32| crush.bucket(id).map_or(0, |b| b.kind);
    call.show(
        || {
            let node = |(id, depth): &(i32, usize)| {
                let kind = kind(*id);
                let type_name = crush.type_name(kind.into()).unwrap_or_default();
                let mut node =
                    json!({"id": id, "name": name(*id), "type": type_name, "type_id": kind});
                let more = match crush.bucket(*id) {
                    Some(bucket) => json!({"children":
                        bucket.items.iter().rev().filter(|i| shown(**i)).collect::<Vec<_>>()}),
                    None => json!({
                        "device_class": crush.device_class(*id), "crush_weight": fixed(weight(*id)),
                        "depth": depth, "exists": 1, "status": status(*id),
                        "reweight": reweight(*id), "primary_affinity": affinity(*id)}),
                };
                if let (Value::Object(node), Value::Object(more)) = (&mut node, more) {
                    node.extend(more);
                    if depth > &0 {
                        node.insert("pool_weights".to_owned(), json!({}));
                    }
                }
                node
            };
            let nodes: Vec<Value> = rows.iter().map(node).collect();
            json!({"nodes": nodes, "stray": []})
        },
        || {
            let mut text =
                String::from("ID  CLASS  WEIGHT   TYPE NAME       STATUS  REWEIGHT  PRI-AFF\n");
            for (id, depth) in &rows {
                let indent = " ".repeat(depth * 4);
                let weight = fixed(weight(*id));
                let _ = match crush.bucket(*id) {
                    Some(bucket) => {
                        let kind = crush.type_name(bucket.kind.into()).unwrap_or_default();
                        writeln!(
                            text,
                            "{id:>2}         {weight:.5}  {indent}{kind} {}",
                            name(*id)
                        )
                    }
                    None => writeln!(
                        text,
                        "{id:>2}  {:>5}  {weight:.5}  {indent}{:<12}  {:>6}  {:.5}  {:.5}",
                        crush.device_class(*id).unwrap_or_default(),
                        name(*id),
                        status(*id),
                        reweight(*id),
                        affinity(*id)
                    ),
                };
            }
            text
        },
    )
}

pub(super) fn getmap(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let epoch = match call.optional_int("epoch")? {
        None | Some(0) => mon.map().epoch(),
        Some(n) => u32::try_from(n).unwrap_or(u32::MAX),
    };
    let full = mon.full_map(epoch);
    let full = full.ok_or_else(|| refuse(ENOENT, format!("there is no map for epoch {epoch}")))?;
    Ok(Answer {
        status: format!("got osdmap epoch {epoch}"),
        data: full.to_vec(),
    })
}

pub(super) fn getcrushmap(mon: &mut Mon, _: &Call<'_>) -> Outcome {
    let mut data = Vec::new();
    mon.map().crush().encode(&mut data, false);
    Ok(Answer {
        status: mon.map().crush_version().to_string(),
        data,
    })
}

pub(super) fn getmaxosd(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (epoch, max) = (mon.map().epoch(), mon.map().max_osd());
    call.show(
        || json!({"epoch": epoch, "max_osd": max}),
        || format!("max_osd = {max} in epoch {epoch}\n"),
    )
}

pub(super) fn find(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let id = osd_id(mon, &call.string("id")?)?;
    let osd = mon.map().osd(id).cloned().unwrap_or_default();
    let found = json!({
        "osd": id,
        "addrs": dump::addrvec(&osd.client_addrs),
        "osd_fsid": crate::osd::uuid::text(&osd.uuid),
        "host": mon.config.host,
        "crush_location": {"host": mon.config.host, "root": "default"},
    });
    Ok(call.json(&found))
}

fn facts(mon: &Mon, id: i32) -> Value {
    let addrs = mon.map().osd_addrs(id).map(ToString::to_string);
    let addrs = addrs.unwrap_or_default();
    json!({
        "id": id,
        "ceph_version": mon.config.version,
        "ceph_version_short": mon.config.version,
        "front_addr": addrs, "back_addr": addrs,
        "hb_front_addr": addrs, "hb_back_addr": addrs,
        "hostname": mon.config.host,
        "osd_objectstore": "ublk-rbd",
    })
}

pub(super) fn metadata(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let value = match call.optional("id") {
        Some(id) => facts(mon, osd_id(mon, &id)?),
        None => ids(mon).map(|id| facts(mon, id)).collect(),
    };
    Ok(call.json(&value))
}

pub(super) fn versions(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let versions = json!({&mon.config.version: mon.map().osd_count()});
    Ok(call.json(&versions))
}

pub(super) fn map(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = call.string("pool")?;
    let (id, pool) = pool::named(mon, &name)?;
    let object = call.string("object")?;
    let namespace = call.optional("nspace").unwrap_or_default();
    let map = mon.map();
    let seed = pool.hash_key(namespace.as_bytes(), object.as_bytes());
    let raw = Pg { pool: id, seed };
    let pg = pool.raw_pg_to_pg(crate::osdmap::RawPg { pool: id, seed });
    let at = map.map_pg(pg);
    let primary = |p: Option<i32>| p.unwrap_or(-1);
    let full = match namespace.is_empty() {
        true => object.clone(),
        false => format!("{namespace}/{object}"),
    };
    call.show(
        || {
            json!({"epoch": map.epoch(), "pool": name, "pool_id": id, "objname": full,
                "raw_pgid": raw.to_string(), "pgid": pg.to_string(),
                "up": at.up.to_vec(), "up_primary": primary(at.up_primary),
                "acting": at.acting.to_vec(), "acting_primary": primary(at.acting_primary)})
        },
        || {
            format!(
                "osdmap e{} pool '{name}' ({id}) object '{full}' -> pg {raw} ({pg}) -> up ({}, p{}) acting ({}, p{})\n",
                map.epoch(),
                set(&at.up),
                primary(at.up_primary),
                set(&at.acting),
                primary(at.acting_primary)
            )
        },
    )
}

/// `[0,1]`.
pub(super) fn set(osds: &[i32]) -> String {
    let name = |id: &i32| match *id {
        ITEM_NONE => "NONE".to_owned(),
        id => id.to_string(),
    };
    format!("[{}]", osds.iter().map(name).collect::<Vec<_>>().join(","))
}

/// Placement groups by the OSD that serves them.
pub(super) fn pgs_by_osd(mon: &Mon) -> BTreeMap<i32, u32> {
    let mut counts: BTreeMap<i32, u32> = ids(mon).map(|id| (id, 0)).collect();
    for (pool, info) in mon.map().pools() {
        for seed in 0..info.pg_num {
            let at = mon.map().map_pg(Pg { pool, seed });
            if let Some(primary) = at.acting_primary {
                *counts.entry(primary).or_default() += 1;
            }
        }
    }
    counts
}

pub(super) fn df(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let pgs = pgs_by_osd(mon);
    let map = mon.map();
    let rows: Vec<Value> = ids(mon)
        .map(|id| {
            let usage = mon.usage.osds.get(&id).cloned().unwrap_or_default();
            let ratio = |n: u64| match usage.total {
                0 => 0.0,
                total => n as f64 * 100.0 / total as f64,
            };
            json!({
                "id": id, "device_class": map.crush().device_class(id), "name": format!("osd.{id}"),
                "type": "osd", "type_id": 0, "crush_weight": fixed(mon.config.osd_weight),
                "depth": 2, "pool_weights": {}, "reweight": fixed(map.weight(id).unwrap_or(0)),
                "kb": usage.total / 1024, "kb_used": usage.used / 1024,
                "kb_used_data": usage.used / 1024, "kb_used_omap": 0, "kb_used_meta": 0,
                "kb_avail": usage.total.saturating_sub(usage.used) / 1024,
                "utilization": ratio(usage.used), "var": 1.0,
                "pgs": pgs.get(&id).copied().unwrap_or(0),
                "status": if map.is_up(id) { "up" } else { "down" },
            })
        })
        .collect();
    let (total, used) = (mon.usage.total(), mon.usage.used());
    call.show(
        || {
            json!({"nodes": rows, "stray": [], "summary": {
                "total_kb": total / 1024, "total_kb_used": used / 1024,
                "total_kb_used_data": used / 1024, "total_kb_used_omap": 0, "total_kb_used_meta": 0,
                "total_kb_avail": mon.usage.available() / 1024,
                "average_utilization": used as f64 * 100.0 / total.max(1) as f64,
                "min_var": 1.0, "max_var": 1.0, "dev": 0.0}})
        },
        || {
            let mut text = String::from(
                "ID  CLASS  WEIGHT  REWEIGHT  SIZE KiB  USED KiB  AVAIL KiB  %USE  PGS  STATUS\n",
            );
            for row in &rows {
                let _ = writeln!(
                    text,
                    "{}  {}  {}  {}  {}  {}  {}  {:.2}  {}  {}",
                    row["id"],
                    row["device_class"].as_str().unwrap_or_default(),
                    row["crush_weight"],
                    row["reweight"],
                    row["kb"],
                    row["kb_used"],
                    row["kb_avail"],
                    row["utilization"].as_f64().unwrap_or(0.0),
                    row["pgs"],
                    row["status"].as_str().unwrap_or_default()
                );
            }
            text
        },
    )
}

pub(super) fn utilization(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let pgs = pgs_by_osd(mon);
    let total: u32 = pgs.values().sum();
    let average = f64::from(total) / pgs.len().max(1) as f64;
    call.show(
        || json!({"utilization": {"avg": average, "pgs": pgs}}),
        || {
            let each = pgs.iter().map(|(id, n)| format!("osd.{id} with {n} pgs\n"));
            format!("avg {average:.2}\n{}", each.collect::<String>())
        },
    )
}

pub(super) fn perf(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let row = |id: i32| {
        json!({"id": id, "perf_stats": {"commit_latency_ms": 0, "apply_latency_ms": 0,
            "commit_latency_ns": 0, "apply_latency_ns": 0}})
    };
    let infos: Vec<Value> = ids(mon).map(row).collect();
    call.show(
        || json!({"osdstats": {"osd_perf_infos": infos}}),
        || {
            let each =
                ids(mon).map(|id| format!("{id:>3}                   0                  0\n"));
            format!(
                "osd  commit_latency(ms)  apply_latency(ms)\n{}",
                each.collect::<String>()
            )
        },
    )
}

pub(super) fn get_min_compat(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = release::name(mon.map().require_min_compat_client());
    call.show(
        || json!({"min_compat_client": name}),
        || format!("{name}\n"),
    )
}

pub(super) fn set_min_compat(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let wanted = call.string("version")?;
    let number = (release::JEWEL..=release::TENTACLE).find(|n| release::name(*n) == wanted);
    let Some(number) = number else {
        return Err(refuse(
            EINVAL,
            format!("{wanted} is not a recognized release name"),
        ));
    };
    let inc = Incremental {
        new_require_min_compat_client: Some(number),
        ..Incremental::default()
    };
    mon.propose(inc, call.now)?;
    Ok(Answer::status(format!(
        "set require_min_compat_client to {wanted}"
    )))
}

fn flag_bits(name: &str) -> Option<u32> {
    if name == "pause" {
        return Some(flag::PAUSERD | flag::PAUSEWR);
    }
    let settable = [
        "full",
        "noup",
        "nodown",
        "noout",
        "noin",
        "nobackfill",
        "norebalance",
        "norecover",
        "noscrub",
        "nodeep-scrub",
        "notieragent",
        "nosnaptrim",
        "pglog_hardlimit",
        "noautoscale",
    ];
    let at = flag::NAMES.iter().position(|n| *n == name)?;
    settable.contains(&name).then_some(1 << at)
}

fn change_flag(mon: &mut Mon, call: &Call<'_>, on: bool) -> Outcome {
    let key = call.string("key")?;
    let bits =
        flag_bits(&key).ok_or_else(|| refuse(EINVAL, format!("unrecognized flag '{key}'")))?;
    if key == "full" && on && !call.flag("yes_i_really_mean_it") {
        let why = "Are you SURE? This will prevent all writes; pass --yes-i-really-mean-it";
        return Err(refuse(EPERM, why));
    }
    let flags = mon.map().flags();
    let inc = Incremental {
        new_flags: Some(if on { flags | bits } else { flags & !bits }),
        ..Incremental::default()
    };
    mon.propose(inc, call.now)?;
    let shown = if key == "pause" {
        "pauserd,pausewr"
    } else {
        &key
    };
    let word = if on { "set" } else { "unset" };
    Ok(Answer::status(format!("{shown} is {word}")))
}

pub(super) fn set_flag(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    change_flag(mon, call, true)
}

pub(super) fn unset(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    change_flag(mon, call, false)
}

/// OSDs named in a command; `all` and `any` are all of them.
fn named(mon: &Mon, call: &Call<'_>) -> Result<Vec<i32>, Refusal> {
    let words = call.list("ids");
    if words.is_empty() {
        return Err(refuse(EINVAL, "no osd ids given"));
    }
    if words
        .iter()
        .any(|w| matches!(w.as_str(), "all" | "any" | "*"))
    {
        return Ok(ids(mon).collect());
    }
    words.iter().map(|w| osd_id(mon, w)).collect()
}

pub(super) fn down(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let mut inc = Incremental {
        new_last_up_change: UTime::from_nanos(call.now.wall),
        ..Incremental::default()
    };
    let mut status = Vec::new();
    for id in named(mon, call)? {
        status.push(match mon.map().is_up(id) {
            true => {
                inc.new_state.insert(id, state::UP);
                format!("marked down osd.{id}.")
            }
            false => format!("osd.{id} is already down."),
        });
    }
    if !inc.new_state.is_empty() {
        mon.propose(inc, call.now)?;
    }
    Ok(Answer::status(status.join(" ")))
}

fn weigh(mon: &mut Mon, call: &Call<'_>, weight: u32, word: &str) -> Outcome {
    let mut inc = Incremental {
        new_last_in_change: UTime::from_nanos(call.now.wall),
        ..Incremental::default()
    };
    let mut status = Vec::new();
    for id in named(mon, call)? {
        status.push(match mon.map().is_out(id) == (weight == 0) {
            true => format!("osd.{id} is already {word}."),
            false => {
                inc.new_weight.insert(id, weight);
                format!("marked {word} osd.{id}.")
            }
        });
    }
    if !inc.new_weight.is_empty() {
        mon.propose(inc, call.now)?;
    }
    Ok(Answer::status(status.join(" ")))
}

pub(super) fn mark_out(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    weigh(mon, call, 0, "out")
}

pub(super) fn mark_in(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    weigh(mon, call, osd::IN, "in")
}

pub(super) fn reweight(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let id = osd_id(mon, &call.string("id")?)?;
    let weight = call.optional_float("weight")?;
    let Some(weight) = weight.filter(|w| (0.0..=1.0).contains(w)) else {
        return Err(refuse(EINVAL, "weight must be in the range [0..1]"));
    };
    let fixed = (weight * 65536.0) as u32;
    let inc = Incremental {
        new_weight: [(id, fixed)].into(),
        ..Incremental::default()
    };
    mon.propose(inc, call.now)?;
    Ok(Answer::status(format!(
        "reweighted osd.{id} to {weight} ({fixed:x})"
    )))
}

/// `[v2:|v1:|any:]IP[:PORT][/NONCE]`, as an entry of any type; or a network, `IP/PREFIX`.
fn entity_addr(text: &str, range: bool) -> Option<EntityAddr> {
    let text = ["v2:", "v1:", "any:"]
        .iter()
        .find_map(|p| text.strip_prefix(p))
        .unwrap_or(text);
    let (socket, nonce) = match text.rsplit_once('/') {
        Some((socket, nonce)) => (socket, nonce.parse().ok()?),
        None => (text, 0),
    };
    let addr: SocketAddr = match socket.parse() {
        Ok(addr) => addr,
        Err(_) => {
            let ip: IpAddr = socket.trim_matches(['[', ']']).parse().ok()?;
            (ip, 0).into()
        }
    };
    let most = if addr.is_ipv4() { 32 } else { 128 };
    if range && (nonce > most || addr.port() != 0) {
        return None;
    }
    Some(EntityAddr {
        kind: if range { AddrType::CIDR } else { AddrType::ANY },
        nonce,
        addr: Some(addr),
    })
}

/// `10.0.0.1:0/77`; of a network `cidr:10.0.0.0:0/8`.
fn addr_text(addr: &EntityAddr) -> String {
    let text = addr.to_string();
    text.strip_prefix("any:").map(str::to_owned).unwrap_or(text)
}

pub(super) fn blocklist(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let op = match call.optional("blocklistop") {
        Some(op) => op,
        None => call.string("blacklistop")?,
    };
    let range = call.optional("range").is_some_and(|r| r == "range");
    let text = call.string("addr")?;
    let Some(addr) = entity_addr(&text, range) else {
        return Err(refuse(EINVAL, format!("unable to parse address {text}")));
    };
    let shown = addr_text(&addr);
    let list = mon.map().blocklist();
    let there = match range {
        true => list.ranges().any(|(a, _)| *a == addr),
        false => list.addrs().any(|(a, _)| *a == addr),
    };
    let mut inc = Incremental::default();
    match op.as_str() {
        "add" => {
            let seconds = call.optional_float("expire")?.unwrap_or(BLOCKLIST_SECONDS);
            if seconds.is_nan() || seconds < 0.0 {
                return Err(refuse(EINVAL, "expire must not be negative"));
            }
            let nanos = (seconds.min(MAX_EXPIRE) * 1e9) as u64;
            let until = UTime::from_nanos(call.now.wall.saturating_add(nanos));
            match range {
                true => inc.new_range_blocklist.push((addr, until)),
                false => inc.new_blocklist.push((addr, until)),
            }
            mon.propose(inc, call.now)?;
            let text = format!("blocklisting {shown} until {} ({seconds} sec)", iso(until));
            Ok(Answer::status(text))
        }
        "rm" if there => {
            match range {
                true => inc.old_range_blocklist.push(addr),
                false => inc.old_blocklist.push(addr),
            }
            mon.propose(inc, call.now)?;
            Ok(Answer::status(format!("un-blocklisting {shown}")))
        }
        "rm" => Ok(Answer::status(format!("{shown} isn't blocklisted"))),
        other => Err(refuse(EINVAL, format!("unrecognized operation '{other}'"))),
    }
}

pub(super) fn blocklist_ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let list = mon.map().blocklist();
    let rows: Vec<(String, String)> = list
        .addrs()
        .chain(list.ranges())
        .map(|(addr, until)| (addr_text(addr), iso(until)))
        .collect();
    let answer = call.show(
        || {
            let row = |(addr, until): &(String, String)| json!({"addr": addr, "until": until});
            rows.iter().map(row).collect()
        },
        || {
            rows.iter()
                .map(|(addr, until)| format!("{addr} {until}\n"))
                .collect()
        },
    )?;
    Ok(answer.with_status(format!("listed {} entries", rows.len())))
}

pub(super) fn blocklist_clear(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let list = mon.map().blocklist();
    if !list.is_empty() {
        let inc = Incremental {
            old_blocklist: list.addrs().map(|(a, _)| *a).collect(),
            old_range_blocklist: list.ranges().map(|(a, _)| *a).collect(),
            ..Incremental::default()
        };
        mon.propose(inc, call.now)?;
    }
    Ok(Answer::status(" removed all blocklist entries"))
}

pub(super) fn rule_ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let crush = mon.map().crush();
    let names: Vec<&str> = crush
        .rules()
        .filter_map(|(id, _)| crush.rule_name(id as i32))
        .collect();
    call.show(
        || json!(names),
        || names.iter().map(|n| format!("{n}\n")).collect(),
    )
}

pub(super) fn rule_dump(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let crush = mon.map().crush();
    let wanted = call.optional("name").filter(|n| !n.is_empty());
    let rules: Vec<Value> = crush
        .rules()
        .filter(|(id, _)| {
            let name = crush.rule_name(*id as i32);
            wanted.as_deref().is_none_or(|w| name == Some(w))
        })
        .map(|(id, rule)| dump::rule(crush, id, rule))
        .collect();
    match wanted {
        None => Ok(call.json(&json!(rules))),
        Some(name) => match rules.first() {
            Some(rule) => Ok(call.json(rule)),
            None => Err(refuse(ENOENT, format!("unknown crush rule '{name}'"))),
        },
    }
}

pub(super) fn class_ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let classes = json!([mon.config.device_class]);
    Ok(call.json(&classes))
}

pub(super) fn profile_ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let names: Vec<&String> = mon.map().erasure_code_profiles().keys().collect();
    call.show(
        || json!(names),
        || names.iter().map(|n| format!("{n}\n")).collect(),
    )
}

pub(super) fn profile_get(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = call.string("name")?;
    match mon.map().erasure_code_profile(&name) {
        None => Err(refuse(
            ENOENT,
            format!("unknown erasure code profile '{name}'"),
        )),
        Some(profile) => call.show(
            || json!(profile),
            || profile.iter().map(|(k, v)| format!("{k}={v}\n")).collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_clients_write_them() {
        let text = |t: &str, range| entity_addr(t, range).map(|a| addr_text(&a));
        assert_eq!(text("10.0.0.1:0/77", false).unwrap(), "10.0.0.1:0/77");
        assert_eq!(
            text("v2:10.0.0.1:6800/1", false).unwrap(),
            "10.0.0.1:6800/1"
        );
        assert_eq!(text("10.0.0.1", false).unwrap(), "10.0.0.1:0/0");
        assert_eq!(text("[fd00::1]:0/5", false).unwrap(), "[fd00::1]:0/5");
        assert_eq!(text("10.0.0.0/8", true).unwrap(), "cidr:10.0.0.0:0/8");
        for bad in ["", "x", "10.0.0.1:x", "10.0.0.1/x", "10.0.0"] {
            assert_eq!(text(bad, false), None, "{bad}");
        }
        assert_eq!(text("10.0.0.0/33", true), None);
    }
}
