//! Options for clients (`ConfigMonitor`) and stored values (`KVMonitor`).

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::auth::AuthName;
use crate::osd::mon::state::{self, Options};
use crate::osd::mon::store::Change;

use super::{Answer, Call, EINVAL, ENOENT, Mon, Outcome, Refusal, refuse};

/// Longest option value, and stored value (`mon_config_key_max_entry_size`).
const MAX_VALUE: usize = 64 << 10;

/// What applies to a user, the most specific section last (`ConfigMap::generate_entity_map`).
pub(in super::super) fn options_of(options: &Options, name: &AuthName) -> BTreeMap<String, String> {
    let kind = name.kind.to_string();
    let mut sections = vec!["global".to_owned(), kind.clone()];
    // client.a.b inherits from client.a.
    let mut section = kind;
    for part in name.id.split('.') {
        section = format!("{section}.{part}");
        sections.push(section.clone());
    }
    let mut all = BTreeMap::new();
    for section in sections {
        if let Some(own) = options.get(&section) {
            all.extend(own.clone());
        }
    }
    all
}

/// `global`, a type, or a type and an id.
fn section(call: &Call<'_>) -> Result<String, Refusal> {
    let who = call.string("who")?;
    let kind = who.split('.').next().unwrap_or_default();
    let known = ["global", "mon", "mgr", "osd", "mds", "client"].contains(&kind);
    // Masks such as `osd/class:ssd` select by facts that this server has none of.
    if !known || who.contains('/') || kind == "global" && who != kind {
        return Err(refuse(
            EINVAL,
            format!("unrecognized config target '{who}'"),
        ));
    }
    Ok(who)
}

/// Blanks and dashes in names are underscores.
fn option_name(name: &str) -> Result<String, Refusal> {
    let name = name.replace([' ', '-'], "_");
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.');
    match !name.is_empty() && name.len() < 256 && name.chars().all(good) {
        true => Ok(name),
        false => Err(refuse(
            EINVAL,
            format!("unrecognized config option '{name}'"),
        )),
    }
}

fn commit(mon: &mut Mon, change: Change) -> Result<(), Refusal> {
    mon.store.commit(&[change])?;
    mon.settings_version += 1;
    Ok(())
}

pub(super) fn config_set(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (who, name) = (section(call)?, option_name(&call.string("name")?)?);
    let value = call.string("value")?;
    if value.len() > MAX_VALUE {
        return Err(refuse(EINVAL, "value too long"));
    }
    let key = state::option_key(&who, &name);
    commit(mon, Change::Put(key, value.clone().into_bytes()))?;
    mon.options.entry(who).or_default().insert(name, value);
    Ok(Answer::default())
}

pub(super) fn config_rm(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (who, name) = (section(call)?, option_name(&call.string("name")?)?);
    commit(mon, Change::Remove(state::option_key(&who, &name)))?;
    if let Some(own) = mon.options.get_mut(&who) {
        own.remove(&name);
        if own.is_empty() {
            mon.options.remove(&who);
        }
    }
    Ok(Answer::default())
}

pub(super) fn config_get(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let who = section(call)?;
    let sections: Vec<String> = match who.parse::<AuthName>() {
        Ok(name) => {
            let mut all = vec!["global".to_owned(), name.kind.to_string()];
            all.push(who);
            all
        }
        Err(_) if who == "global" => vec![who],
        Err(_) => vec!["global".to_owned(), who],
    };
    // Name to section and value; the most specific one wins.
    let mut found: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for section in &sections {
        for (name, value) in mon.options.get(section).into_iter().flatten() {
            found.insert(name, (section, value));
        }
    }
    if let Some(key) = call.optional("key") {
        let key = option_name(&key)?;
        return match found.get(key.as_str()) {
            Some((_, value)) => call.show(|| json!(value), || format!("{value}\n")),
            None => Err(refuse(ENOENT, format!("option '{key}' is not set"))),
        };
    }
    call.show(
        || {
            let entry = |(name, (section, value)): (&&str, &(&str, &str))| {
                let entry = json!({"value": value, "section": section, "mask": {},
                    "can_update_at_runtime": true});
                ((*name).to_owned(), entry)
            };
            Value::Object(found.iter().map(entry).collect())
        },
        || {
            table(
                found
                    .iter()
                    .map(|(name, (section, value))| (*section, *name, *value)),
            )
        },
    )
}

pub(super) fn config_dump(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let all = || {
        let own = |(section, own): (&'_ String, &'_ BTreeMap<String, String>)| {
            let section = section.clone();
            own.iter()
                .map(move |(n, v)| (section.clone(), n.clone(), v.clone()))
                .collect::<Vec<_>>()
        };
        mon.options.iter().flat_map(own).collect::<Vec<_>>()
    };
    call.show(
        || {
            let entry = |(section, name, value): (String, String, String)| {
                json!({"section": section, "name": name, "value": value, "level": "advanced",
                    "can_update_at_runtime": true, "mask": ""})
            };
            all().into_iter().map(entry).collect()
        },
        || {
            let all = all();
            table(
                all.iter()
                    .map(|(s, n, v)| (s.as_str(), n.as_str(), v.as_str())),
            )
        },
    )
}

fn table<'a>(rows: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> String {
    let mut text = String::from("WHO  MASK  LEVEL  OPTION  VALUE  RO\n");
    for (section, name, value) in rows {
        let _ = writeln!(text, "{section}  advanced  {name}  {value}");
    }
    text
}

pub(super) fn key_get(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let key = call.string("key")?;
    match mon.values.get(&key) {
        Some(value) => Ok(Answer {
            status: format!("obtained '{key}'"),
            data: value.clone(),
        }),
        None => Err(missing(&key)),
    }
}

fn missing(key: &str) -> Refusal {
    refuse(
        ENOENT,
        format!("error obtaining '{key}': (2) No such file or directory"),
    )
}

/// The value is an argument or the command's input.
pub(super) fn key_set(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let key = call.string("key")?;
    let value = match call.optional("val") {
        Some(value) => value.into_bytes(),
        None => call.input.to_vec(),
    };
    if value.len() > MAX_VALUE {
        let why = format!("error: entry size limited to {MAX_VALUE} bytes");
        return Err(refuse(super::ERANGE, why));
    }
    commit(mon, Change::Put(state::value_key(&key), value.clone()))?;
    mon.values.insert(key.clone(), value);
    Ok(Answer::status(format!("set {key}")))
}

pub(super) fn key_rm(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let key = call.string("key")?;
    if !mon.values.contains_key(&key) {
        return Ok(Answer::status(format!("no such key '{key}'")));
    }
    commit(mon, Change::Remove(state::value_key(&key)))?;
    mon.values.remove(&key);
    Ok(Answer::status("key deleted"))
}

pub(super) fn key_exists(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let key = call.string("key")?;
    match mon.values.contains_key(&key) {
        true => Ok(Answer::status(format!("key '{key}' exists"))),
        false => Err(refuse(ENOENT, format!("key '{key}' doesn't exist"))),
    }
}

/// JSON whatever the format, as Ceph prints it.
pub(super) fn key_ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let keys: Vec<&String> = mon.values.keys().collect();
    Ok(call.json(&json!(keys)))
}

pub(super) fn key_dump(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let prefix = call.optional("key").unwrap_or_default();
    let mut all = Map::new();
    for (key, value) in mon.values.iter().filter(|(k, _)| k.starts_with(&prefix)) {
        let shown = match std::str::from_utf8(value) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("<<< binary blob of length {} >>>", value.len()),
        };
        all.insert(key.clone(), json!(shown));
    }
    Ok(call.json(&Value::Object(all)))
}
