//! Pools (`OSDMonitor::prepare_command_pool_*`).

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::osdmap::pool::{PoolOpt, flag};
use crate::osdmap::{Incremental, Pool};

use super::super::reshape::{PG_NUM_MAX, PG_NUM_MIN, aim_pgp_num};
use super::status::{rate_json, rate_text};
use super::{Answer, Call, EEXIST, EINVAL, ENOENT, ENOTSUP, EPERM, Mon, Outcome, Refusal};
use super::{dump, refuse};

/// Most applications of a pool, and longest of their keys and values (`MAX_POOL_APPLICATION_*`).
const MAX_APPLICATIONS: usize = 4;
const MAX_APP_KEYS: usize = 64;
const MAX_APP_LENGTH: usize = 128;

/// Flags that `set` and `get` know by name.
const FLAGS: [(&str, u64); 9] = [
    ("hashpspool", flag::HASHPSPOOL),
    ("nodelete", flag::NODELETE),
    ("nopgchange", flag::NOPGCHANGE),
    ("nosizechange", flag::NOSIZECHANGE),
    ("write_fadvise_dontneed", flag::WRITE_FADVISE_DONTNEED),
    ("noscrub", flag::NOSCRUB),
    ("nodeep-scrub", flag::NODEEP_SCRUB),
    ("eio", flag::EIO),
    ("bulk", flag::BULK),
];

/// Options kept for those who read them back: the store compresses nothing, and nobody scales by
/// himself. Number of `pool_opts_t::key_t` and whether it is text, a number or a fraction.
const OPTIONS: [(&str, i32, char); 10] = [
    ("compression_mode", 6, 's'),
    ("compression_algorithm", 7, 's'),
    ("compression_required_ratio", 8, 'd'),
    ("compression_max_blob_size", 9, 'i'),
    ("compression_min_blob_size", 10, 'i'),
    ("pg_num_min", PG_NUM_MIN, 'i'),
    ("target_size_bytes", 16, 'i'),
    ("target_size_ratio", 17, 'd'),
    ("pg_autoscale_bias", 18, 'd'),
    ("pg_num_max", PG_NUM_MAX, 'i'),
];

pub(super) fn option_name(key: i32) -> Option<&'static str> {
    let found = OPTIONS.iter().find(|(_, k, _)| *k == key);
    found.map(|(name, ..)| *name)
}

fn set_option(pool: &mut Pool, var: &str, val: &str) -> Result<(), Refusal> {
    let bad = || refuse(EINVAL, format!("error parsing value '{val}'"));
    let (_, key, kind) = OPTIONS
        .iter()
        .find(|(name, ..)| *name == var)
        .ok_or_else(|| refuse(EINVAL, format!("unrecognized variable '{var}'")))?;
    if val == "unset" {
        pool.opts.remove(key);
        return Ok(());
    }
    let opt = match kind {
        's' => PoolOpt::Str(val.to_owned()),
        'i' => PoolOpt::Int(i64::try_from(size(val).ok_or_else(bad)?).map_err(|_| bad())?),
        _ => PoolOpt::Double(val.parse().map_err(|_| bad())?),
    };
    let target = pool.pg_num_target;
    match (var, &opt) {
        ("pg_num_min", PoolOpt::Int(n)) if *n > i64::from(target) => {
            let why = format!("specified pg_num_min {n} > pg_num {target}");
            return Err(refuse(EINVAL, why));
        }
        ("pg_num_max", PoolOpt::Int(n)) if *n != 0 && *n < i64::from(target) => {
            let why = format!("specified pg_num_max {n} < pg_num {target}");
            return Err(refuse(EINVAL, why));
        }
        (_, PoolOpt::Double(x)) if *x < 0.0 => {
            return Err(refuse(EINVAL, format!("{var} cannot be negative")));
        }
        _ => {}
    }
    pool.opts.insert(*key, opt);
    Ok(())
}

fn set_autoscale(pool: &mut Pool, mode: &str) -> Result<(), Refusal> {
    pool.pg_autoscale_mode = match mode {
        "off" => 0,
        "warn" => 1,
        "on" => 2,
        _ => return Err(refuse(EINVAL, format!("specified invalid mode {mode}"))),
    };
    Ok(())
}

pub(super) fn named(mon: &Mon, name: &str) -> Result<(i64, Pool), Refusal> {
    let id = mon.map().pool_by_name(name);
    let pool = id.and_then(|id| Some((id, mon.map().pool(id)?.clone())));
    pool.ok_or_else(|| refuse(ENOENT, format!("unrecognized pool '{name}'")))
}

fn asked(mon: &Mon, call: &Call<'_>) -> Result<(String, i64, Pool), Refusal> {
    let name = call.string("pool")?;
    let (id, pool) = named(mon, &name)?;
    Ok((name, id, pool))
}

fn replace(mon: &mut Mon, call: &Call<'_>, id: i64, pool: Pool) -> Result<(), Refusal> {
    let mut inc = Incremental::default();
    inc.new_pools.insert(id, pool);
    mon.propose(inc, call.now)?;
    Ok(())
}

pub(super) fn lspools(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.map();
    let pools: Vec<(i64, &str)> = map
        .pools()
        .map(|(id, _)| (id, map.pool_name(id).unwrap_or_default()))
        .collect();
    call.show(
        || {
            let pool = |(id, name): &(i64, &str)| json!({"poolnum": id, "poolname": name});
            pools.iter().map(pool).collect()
        },
        || {
            pools
                .iter()
                .map(|(id, name)| format!("{id} {name}\n"))
                .collect()
        },
    )
}

pub(super) fn ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.map();
    let detail = call.optional("detail").is_some_and(|d| d == "detail");
    call.show(
        || {
            let pool = |(id, pool): (i64, &Pool)| match detail {
                true => dump::pool(map, id, pool),
                false => json!(map.pool_name(id)),
            };
            map.pools().map(pool).collect()
        },
        || {
            let pool = |(id, pool): (i64, &Pool)| match detail {
                true => dump::pool_line(map, id, pool),
                false => format!("{}\n", map.pool_name(id).unwrap_or_default()),
            };
            map.pools().map(pool).collect()
        },
    )
}

pub(super) fn create(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = call.string("pool")?;
    if call
        .optional("pool_type")
        .is_some_and(|t| t != "replicated")
    {
        return Err(refuse(ENOTSUP, "this server has no erasure coded pools"));
    }
    // In place of the profile older clients put the rule.
    let rule = match call.optional("rule") {
        Some(rule) => Some(rule),
        None => call.optional("erasure_code_profile"),
    };
    if let Some(rule) = rule.filter(|r| !r.is_empty())
        && mon.map().crush().rule_name(0) != Some(rule.as_str())
    {
        return Err(refuse(
            ENOENT,
            format!("specified rule {rule} doesn't exist"),
        ));
    }
    if call.optional_int("size")?.is_some_and(|size| size > 1) {
        return Err(refuse(
            EINVAL,
            "this server keeps one copy: pool size must be 1",
        ));
    }
    let number = |name| -> Result<Option<u32>, Refusal> {
        let n = call.optional_int(name)?;
        n.map(|n| u32::try_from(n).map_err(|_| refuse(EINVAL, format!("bad {name} {n}"))))
            .transpose()
    };
    let (pg_num, pgp_num) = (number("pg_num")?, number("pgp_num")?);
    let mut options = Vec::new();
    for name in ["pg_num_min", "pg_num_max", "target_size_bytes"] {
        options.extend(call.optional_int(name)?.map(|n| (name, n.to_string())));
    }
    let ratio = call.optional_float("target_size_ratio")?;
    options.extend(ratio.map(|x| ("target_size_ratio", x.to_string())));
    let mode = call.optional("autoscale_mode");
    let bulk = call.flag("bulk");
    let more = |pool: &mut Pool| {
        if let Some(mode) = &mode {
            set_autoscale(pool, mode)?;
        }
        if bulk {
            pool.flags |= flag::BULK;
        }
        let mut options = options.iter();
        options.try_for_each(|(name, value)| set_option(pool, name, value))
    };
    match mon.create_pool(&name, pg_num, pgp_num, call.now, more) {
        Ok(_) => Ok(Answer::status(format!("pool '{name}' created"))),
        Err(refusal) if refusal.code == -EEXIST => {
            Ok(Answer::status(format!("pool '{name}' already exists")))
        }
        Err(refusal) => Err(refusal),
    }
}

pub(super) fn delete(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = call.string("pool")?;
    let Some(id) = mon.map().pool_by_name(&name) else {
        return Ok(Answer::status(format!("pool '{name}' does not exist")));
    };
    let sure = call.flag("yes_i_really_really_mean_it")
        || call.flag("yes_i_really_really_mean_it_not_faking")
        // As clients before booleans sent it.
        || call.optional("sure").is_some_and(|s| s.starts_with("--yes-i-really-really-mean-it"));
    if call.optional("pool2").as_deref() != Some(name.as_str()) || !sure {
        let why = format!(
            "WARNING: this will *PERMANENTLY DESTROY* all data stored in pool {name}.  If you are *ABSOLUTELY CERTAIN* that is what you want, pass the pool name *twice*, followed by --yes-i-really-really-mean-it."
        );
        return Err(refuse(EPERM, why));
    }
    mon.delete_pool(id, call.now)?;
    Ok(Answer::status(format!("pool '{name}' removed")))
}

pub(super) fn rename(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (from, to) = (call.string("srcpool")?, call.string("destpool")?);
    if mon.map().pool_by_name(&to).is_some() {
        // Renaming twice is no error.
        return match mon.map().pool_by_name(&from) {
            None => Ok(Answer::status(format!(
                "pool '{from}' does not exist; pool '{to}' does -- assuming successful rename"
            ))),
            Some(_) => Err(refuse(EEXIST, format!("pool '{to}' already exists"))),
        };
    }
    let (id, _) = named(mon, &from)?;
    let mut inc = Incremental::default();
    inc.new_pool_names.insert(id, to.clone());
    mon.propose(inc, call.now)?;
    Ok(Answer::status(format!("pool '{from}' renamed to '{to}'")))
}

/// A parameter's value, if it is one and set.
fn value(pool: &Pool, var: &str, rule: &str) -> Option<Value> {
    if let Some((_, bit)) = FLAGS.iter().find(|(name, _)| *name == var) {
        return Some(json!(pool.has_flag(*bit)));
    }
    if let Some((_, key, _)) = OPTIONS.iter().find(|(name, ..)| *name == var) {
        return pool.opts.get(key).map(|opt| match opt {
            PoolOpt::Str(s) => json!(s),
            PoolOpt::Int(n) => json!(n),
            PoolOpt::Double(x) => json!(x),
        });
    }
    Some(match var {
        "size" => json!(pool.size),
        "min_size" => json!(pool.min_size),
        "pg_num" => json!(pool.pg_num),
        "pgp_num" => json!(pool.pgp_num),
        "crush_rule" => json!(rule),
        "use_gmt_hitset" => json!(pool.hit_set.use_gmt),
        "fast_read" => json!(u8::from(pool.fast_read)),
        "pg_autoscale_mode" => json!(dump::autoscale(pool)),
        _ => return None,
    })
}

pub(super) fn get(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, pool) = asked(mon, call)?;
    let var = call.string("var")?;
    let all = [
        "size",
        "min_size",
        "pg_num",
        "pgp_num",
        "crush_rule",
        "hashpspool",
        "nodelete",
        "nopgchange",
        "nosizechange",
        "write_fadvise_dontneed",
        "noscrub",
        "nodeep-scrub",
        "use_gmt_hitset",
        "fast_read",
        "pg_autoscale_mode",
        "eio",
        "bulk",
        "compression_mode",
        "compression_algorithm",
        "compression_required_ratio",
        "compression_max_blob_size",
        "compression_min_blob_size",
        "pg_num_min",
        "pg_num_max",
        "target_size_bytes",
        "target_size_ratio",
        "pg_autoscale_bias",
    ];
    let rule = mon
        .map()
        .crush()
        .rule_name(pool.crush_rule.into())
        .unwrap_or_default();
    let values: Vec<(&str, Value)> = match var.as_str() {
        "all" => all
            .iter()
            .filter_map(|v| Some((*v, value(&pool, v, rule)?)))
            .collect(),
        one if all.contains(&one) => {
            let value = value(&pool, one, rule).ok_or_else(|| {
                refuse(
                    ENOENT,
                    format!("option '{one}' is not set on pool '{name}'"),
                )
            })?;
            vec![(one, value)]
        }
        "erasure_code_profile" | "allow_ec_overwrites" => {
            let why = format!("pool '{name}' is not a erasure pool: variable not applicable");
            return Err(refuse(super::EACCES, why));
        }
        other => {
            return Err(refuse(
                EINVAL,
                format!("pool '{name}': invalid variable: '{other}'"),
            ));
        }
    };
    call.show(
        || {
            let mut shown = Map::new();
            shown.insert("pool".to_owned(), json!(name));
            shown.insert("pool_id".to_owned(), json!(id));
            shown.extend(
                values
                    .iter()
                    .map(|(v, value)| ((*v).to_owned(), value.clone())),
            );
            Value::Object(shown)
        },
        || {
            let text = |value: &Value| match value {
                Value::String(s) => s.clone(),
                other => other.to_string(),
            };
            values
                .iter()
                .map(|(v, value)| format!("{v}: {}\n", text(value)))
                .collect()
        },
    )
}

pub(super) fn set(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (_, id, mut pool) = asked(mon, call)?;
    let (var, val) = (call.string("var")?, call.string("val")?);
    let number = || -> Result<u32, Refusal> {
        val.parse()
            .map_err(|_| refuse(EINVAL, format!("error parsing integer value '{val}'")))
    };
    if let Some((_, bit)) = FLAGS.iter().find(|(name, _)| *name == var) {
        match val.as_str() {
            "true" | "1" | "yes" => pool.flags |= bit,
            "false" | "0" | "no" => pool.flags &= !bit,
            _ => {
                let why = "expecting value 'true', 'false', '0', or '1'";
                return Err(refuse(EINVAL, why));
            }
        }
    } else if option_name_is(&var) {
        set_option(&mut pool, &var, &val)?;
    } else {
        match var.as_str() {
            "size" | "min_size" => {
                if number()? != 1 {
                    let why = format!("this server keeps one copy: pool {var} must be 1");
                    return Err(refuse(EINVAL, why));
                }
            }
            "pg_num" => mon.aim_pg_num(id, &mut pool, number()?)?,
            "pgp_num" | "pgp_num_actual" => aim_pgp_num(&mut pool, number()?)?,
            "pg_autoscale_mode" => set_autoscale(&mut pool, &val)?,
            "crush_rule" => {
                if mon.map().crush().rule_name(0) != Some(val.as_str()) {
                    return Err(refuse(ENOENT, format!("crush rule {val} does not exist")));
                }
            }
            other => return Err(refuse(EINVAL, format!("unrecognized variable '{other}'"))),
        }
    }
    replace(mon, call, id, pool)?;
    mon.begin_reshape(call.now)?;
    Ok(Answer::status(format!("set pool {id} {var} to {val}")))
}

fn option_name_is(var: &str) -> bool {
    OPTIONS.iter().any(|(name, ..)| *name == var)
}

pub(super) fn mksnap(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, pool) = asked(mon, call)?;
    let snap = call.string("snap")?;
    let there = pool.snaps.values().any(|s| s.name == snap);
    mon.create_pool_snap(id, pool, &snap, call.now)?;
    Ok(Answer::status(match there {
        true => format!("pool {name} snap {snap} already exists"),
        false => format!("created pool {name} snap {snap}"),
    }))
}

pub(super) fn rmsnap(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, pool) = asked(mon, call)?;
    let snap = call.string("snap")?;
    let there = pool.snaps.values().any(|s| s.name == snap);
    mon.delete_pool_snap(id, pool, &snap, call.now)?;
    Ok(Answer::status(match there {
        true => format!("removed pool {name} snap {snap}"),
        false => format!("pool {name} snap {snap} does not exist"),
    }))
}

/// A number with an IEC or SI suffix, both powers of 1024 as Ceph reads bytes.
fn size(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let shift = match suffix.trim_end_matches(['i', 'B', 'b']) {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        "P" | "p" => 50,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

pub(super) fn set_quota(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, mut pool) = asked(mon, call)?;
    let (field, val) = (call.string("field")?, call.string("val")?);
    let bad = || refuse(EINVAL, format!("error parsing value '{val}'"));
    match field.as_str() {
        "max_objects" => pool.quota_max_objects = size(&val).ok_or_else(bad)?,
        "max_bytes" => pool.quota_max_bytes = size(&val).ok_or_else(bad)?,
        other => return Err(refuse(EINVAL, format!("unrecognized option '{other}'"))),
    }
    replace(mon, call, id, pool)?;
    // A pool that is over its new quota is full at once.
    let mut inc = Incremental::default();
    if mon.watch_quotas(&mut inc) {
        mon.propose(inc, call.now)?;
    }
    Ok(Answer::status(format!(
        "set-quota {field} = {val} for pool {name}"
    )))
}

pub(super) fn get_quota(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, pool) = asked(mon, call)?;
    let used = mon.usage.pool(id);
    call.show(
        || {
            json!({
                "pool_name": name, "pool_id": id,
                "quota_max_objects": pool.quota_max_objects,
                "current_num_objects": used.objects,
                "quota_max_bytes": pool.quota_max_bytes,
                "current_num_bytes": used.bytes,
            })
        },
        || {
            let limit = |n: u64, unit: &str| match n {
                0 => "N/A".to_owned(),
                n => format!("{n} {unit}"),
            };
            format!(
                "quotas for pool '{name}':\n  max objects: {}\n  max bytes  : {}",
                limit(pool.quota_max_objects, "objects"),
                limit(pool.quota_max_bytes, "B"),
            )
        },
    )
}

pub(super) fn stats(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let map = mon.map();
    let wanted = match call.optional("pool_name").filter(|n| !n.is_empty()) {
        Some(name) => vec![named(mon, &name)?.0],
        None => map.pools().map(|(id, _)| id).collect(),
    };
    call.show(
        || {
            let pool = |id: &i64| {
                json!({"pool_name": map.pool_name(*id), "pool_id": id,
                    "recovery": {}, "recovery_rate": {},
                    "client_io_rate": rate_json(&mon.rates.of(*id))})
            };
            wanted.iter().map(pool).collect()
        },
        || {
            let mut text = String::new();
            for id in &wanted {
                let name = map.pool_name(*id).unwrap_or_default();
                let rate = rate_text(&mon.rates.of(*id));
                let doing = match rate.is_empty() {
                    true => "nothing is going on".to_owned(),
                    false => format!("client io {rate}"),
                };
                let _ = write!(text, "pool {name} id {id}\n  {doing}\n\n");
            }
            text
        },
    )
}

pub(super) fn app_enable(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, mut pool) = asked(mon, call)?;
    let app = application(call)?;
    if !pool.has_application(&app) {
        if !pool.application_metadata.is_empty() && !call.flag("yes_i_really_mean_it") {
            let why = format!(
                "Are you SURE? Pool '{name}' already has an enabled application; pass --yes-i-really-mean-it to proceed anyway"
            );
            return Err(refuse(EPERM, why));
        }
        if pool.application_metadata.len() >= MAX_APPLICATIONS {
            let why =
                format!("too many enabled applications on pool '{name}'; max {MAX_APPLICATIONS}");
            return Err(refuse(EINVAL, why));
        }
        pool.application_metadata.entry(app.clone()).or_default();
        replace(mon, call, id, pool)?;
    }
    Ok(Answer::status(format!(
        "enabled application '{app}' on pool '{name}'"
    )))
}

fn application(call: &Call<'_>) -> Result<String, Refusal> {
    let app = call.string("app")?;
    match !app.is_empty() && app.len() <= MAX_APP_LENGTH {
        true => Ok(app),
        false => Err(refuse(EINVAL, "application name must be provided")),
    }
}

pub(super) fn app_disable(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, mut pool) = asked(mon, call)?;
    let app = application(call)?;
    if !pool.has_application(&app) {
        let text = format!("application '{app}' is not enabled on pool '{name}'");
        return Ok(Answer::status(text));
    }
    if !call.flag("yes_i_really_mean_it") {
        let why = "Are you SURE? Disabling an application within a pool might result in loss of application functionality; pass --yes-i-really-mean-it to proceed anyway";
        return Err(refuse(EPERM, why));
    }
    pool.application_metadata.remove(&app);
    replace(mon, call, id, pool)?;
    Ok(Answer::status(format!(
        "disable application '{app}' on pool '{name}'"
    )))
}

pub(super) fn app_set(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, mut pool) = asked(mon, call)?;
    let (app, key, value) = (
        application(call)?,
        call.string("key")?,
        call.string("value")?,
    );
    let Some(values) = pool.application_metadata.get_mut(&app) else {
        let why = format!("application '{app}' is not enabled on pool '{name}'");
        return Err(refuse(ENOENT, why));
    };
    if key.is_empty() || key.len() > MAX_APP_LENGTH || value.len() > MAX_APP_LENGTH {
        let why = format!("key and value must have at most {MAX_APP_LENGTH} bytes");
        return Err(refuse(EINVAL, why));
    }
    if values.len() >= MAX_APP_KEYS && !values.contains_key(&key) {
        let why = format!(
            "too many keys set for application '{app}' on pool '{name}'; max {MAX_APP_KEYS}"
        );
        return Err(refuse(EINVAL, why));
    }
    let text = format!("set application '{app}' key '{key}' to '{value}' on pool '{name}'");
    values.insert(key, value);
    replace(mon, call, id, pool)?;
    Ok(Answer::status(text))
}

pub(super) fn app_rm(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, id, mut pool) = asked(mon, call)?;
    let (app, key) = (application(call)?, call.string("key")?);
    let Some(values) = pool.application_metadata.get_mut(&app) else {
        let text = format!("application '{app}' is not enabled on pool '{name}'");
        return Ok(Answer::status(text));
    };
    if values.remove(&key).is_none() {
        let text = format!("application '{app}' on pool '{name}' does not have key '{key}'");
        return Ok(Answer::status(text));
    }
    replace(mon, call, id, pool)?;
    let text = format!("removed application '{app}' key '{key}' on pool '{name}'");
    Ok(Answer::status(text))
}

/// JSON whatever the format, but for a single value.
pub(super) fn app_get(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let Some(name) = call.optional("pool").filter(|n| !n.is_empty()) else {
        let map = mon.map();
        let all: Map<String, Value> = map
            .pools()
            .map(|(id, pool)| {
                let name = map.pool_name(id).unwrap_or_default().to_owned();
                (name, json!(pool.application_metadata))
            })
            .collect();
        return Ok(call.json(&Value::Object(all)));
    };
    let (_, pool) = named(mon, &name)?;
    let Some(app) = call.optional("app").filter(|a| !a.is_empty()) else {
        return Ok(call.json(&json!(pool.application_metadata)));
    };
    let Some(values) = pool.application_metadata.get(&app) else {
        let why = format!("pool '{name}' has no application '{app}'");
        return Err(refuse(ENOENT, why));
    };
    match call.optional("key").filter(|k| !k.is_empty()) {
        None => Ok(call.json(&json!(values))),
        Some(key) => match values.get(&key) {
            Some(value) => call.show(|| json!({&key: value}), || format!("{value}\n")),
            None => {
                let why = format!("application '{app}' on pool '{name}' does not have key '{key}'");
                Err(refuse(ENOENT, why))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn quotas_may_have_suffixes() {
        assert_eq!(size("10"), Some(10));
        assert_eq!(size("10K"), Some(10240));
        assert_eq!(size("1GiB"), Some(1 << 30));
        assert_eq!(size("x"), None);
        assert_eq!(size("99999999999P"), None);
    }
}
