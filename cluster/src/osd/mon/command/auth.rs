//! Users and their keys (`AuthMonitor`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::auth::{AuthName, CryptoKey, KeyType, Keyring};
use crate::osd::caps::{MonCaps, OsdCaps};
use crate::osd::mon::state;

use super::{Answer, Call, EEXIST, EINVAL, ENOENT, Mon, Outcome, Refusal, refuse};

type Caps = BTreeMap<String, String>;

fn entity(call: &Call<'_>) -> Result<AuthName, Refusal> {
    let text = call.string("entity")?;
    let name: AuthName = text
        .parse()
        .map_err(|_| refuse(EINVAL, format!("bad entity name '{text}'")))?;
    // Names live in keyring files, where these would end them.
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '[' | ']');
    match state::may_be_user(&name) && !name.id.is_empty() && !name.id.contains(odd) {
        true => Ok(name),
        false => Err(refuse(EINVAL, format!("bad entity name '{text}'"))),
    }
}

fn existing(mon: &Mon, name: &AuthName) -> Result<CryptoKey, Refusal> {
    mon.keys
        .users()
        .get(name)
        .cloned()
        .ok_or_else(|| refuse(ENOENT, format!("failed to find {name} in keyring")))
}

fn caps_of(mon: &Mon, name: &AuthName) -> Caps {
    let caps = mon.keys.users().caps(name);
    caps.map(|(s, c)| (s.to_owned(), c.to_owned())).collect()
}

/// Pairs of service and caps. What would grant nothing because it does not parse is refused.
fn wanted_caps(call: &Call<'_>) -> Result<Caps, Refusal> {
    let words = call.list("caps");
    if !words.len().is_multiple_of(2) {
        let why = "bad capabilities request; number of args must be even";
        return Err(refuse(EINVAL, why));
    }
    let mut caps = Caps::new();
    for pair in words.chunks_exact(2) {
        let (service, text) = (pair[0].as_str(), pair[1].as_str());
        let parsed = match service {
            "mon" => MonCaps::parse(text).map(drop),
            "osd" => OsdCaps::parse(text).map(drop),
            // Nobody here reads these.
            "mds" | "mgr" => Ok(()),
            other => {
                return Err(refuse(EINVAL, format!("unknown cap type '{other}'")));
            }
        };
        parsed.map_err(|e| refuse(EINVAL, e.to_string()))?;
        if text.contains(['\n', '\r']) {
            return Err(refuse(EINVAL, "caps are one line"));
        }
        caps.insert(service.to_owned(), text.to_owned());
    }
    Ok(caps)
}

fn wanted_key(mon: &mut Mon, call: &Call<'_>) -> Result<CryptoKey, Refusal> {
    let kind = match call.optional("key_type").as_deref() {
        None | Some("") => mon.config.key_type,
        Some("aes") => KeyType::Aes,
        Some("aes256k") => KeyType::Aes256k,
        Some(other) => return Err(refuse(EINVAL, format!("unknown key type '{other}'"))),
    };
    Ok(state::new_key(kind, call.now, &mut *mon.entropy))
}

/// Saves users as they are to be, then takes them over.
fn replace_users(mon: &mut Mon, users: Keyring) -> Result<(), Refusal> {
    let old = std::mem::replace(mon.keys.users_mut(), users);
    if let Err(error) = mon.save_keys() {
        *mon.keys.users_mut() = old;
        return Err(error.into());
    }
    Ok(())
}

fn put_user(mon: &mut Mon, name: &AuthName, key: CryptoKey, caps: &Caps) -> Result<(), Refusal> {
    let caps: Vec<(&str, &str)> = caps.iter().map(|(s, c)| (s.as_str(), c.as_str())).collect();
    let mut users = mon.keys.users().clone();
    users.insert(name.clone(), key, &caps);
    replace_users(mon, users)
}

fn user_json(mon: &Mon, name: &AuthName) -> Value {
    let key = mon.keys.users().get(name).map(CryptoKey::to_base64);
    json!({
        "entity": name.to_string(),
        "key": key.as_ref().map_or("", |k| k.as_str()),
        "caps": caps_of(mon, name),
    })
}

fn show_keyring(mon: &Mon, call: &Call<'_>, name: &AuthName) -> Outcome {
    call.show(
        || json!([user_json(mon, name)]),
        || {
            mon.keyring_text(name)
                .map_or_else(String::new, |t| t.to_string())
        },
    )
}

fn show_key(mon: &Mon, call: &Call<'_>, name: &AuthName) -> Outcome {
    let key = existing(mon, name)?.to_base64();
    call.show(|| json!({"key": key.as_str()}), || key.to_string())
}

pub(super) fn ls(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let users = mon.keys.users();
    call.show(
        || {
            let all: Vec<Value> = users.names().map(|n| user_json(mon, n)).collect();
            json!({"auth_dump": all})
        },
        || {
            let mut text = String::new();
            for name in users.names() {
                let key = users.get(name).map(CryptoKey::to_base64);
                let key = key.as_ref().map_or("", |k| k.as_str());
                text.push_str(&format!("{name}\n\tkey: {key}\n"));
                for (service, caps) in users.caps(name) {
                    text.push_str(&format!("\tcaps: [{service}] {caps}\n"));
                }
            }
            text
        },
    )
}

pub(super) fn get(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = entity(call)?;
    existing(mon, &name)?;
    show_keyring(mon, call, &name)
}

pub(super) fn export(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    match call.optional("entity") {
        Some(_) => get(mon, call),
        None => {
            let users = mon.keys.users();
            call.show(
                || users.names().map(|n| user_json(mon, n)).collect(),
                || users.to_text().to_string(),
            )
        }
    }
}

pub(super) fn get_key(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = entity(call)?;
    show_key(mon, call, &name)
}

/// `get-or-create` and `get-or-create-key`.
pub(super) fn get_or_create(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, caps) = (entity(call)?, wanted_caps(call)?);
    match mon.keys.users().get(&name) {
        Some(_) => {
            let have = caps_of(mon, &name);
            let differs = caps
                .iter()
                .find(|(service, c)| have.get(*service) != Some(c));
            if let Some((service, _)) = differs {
                let why = format!("key for {name} exists but cap {service} does not match");
                return Err(refuse(EINVAL, why));
            }
        }
        None => {
            let key = wanted_key(mon, call)?;
            put_user(mon, &name, key, &caps)?;
        }
    }
    if call.prefix() == "auth get-or-create-key" {
        return show_key(mon, call, &name);
    }
    // Made or found: the key without its caps, as for a keyring file.
    let key = existing(mon, &name)?.to_base64();
    call.show(
        || json!([{"entity": name.to_string(), "key": key.as_str()}]),
        || format!("[{name}]\n\tkey = {}\n", key.as_str()),
    )
}

/// With the key of a keyring that is given, or a new one.
pub(super) fn add(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, mut caps) = (entity(call)?, wanted_caps(call)?);
    let given = match call.input.is_empty() {
        true => None,
        false => {
            let ring = Keyring::parse("input", call.input)
                .map_err(|e| refuse(EINVAL, format!("error decoding keyring: {e}")))?;
            let key = ring.get(&name).cloned();
            let key = key.ok_or_else(|| refuse(ENOENT, format!("keyring has no {name}")))?;
            if caps.is_empty() {
                caps = ring
                    .caps(&name)
                    .map(|(s, c)| (s.to_owned(), c.to_owned()))
                    .collect();
            }
            Some(key)
        }
    };
    if let Some(old) = mon.keys.users().get(&name) {
        let same_key = given
            .as_ref()
            .is_none_or(|k| k.to_base64() == old.to_base64());
        if !same_key || caps_of(mon, &name) != caps {
            let why = format!("entity {name} exists but key or caps do not match");
            return Err(refuse(EEXIST, why));
        }
        return Ok(Answer::status(format!("added key for {name}")));
    }
    let key = match given {
        Some(key) => key,
        None => wanted_key(mon, call)?,
    };
    put_user(mon, &name, key, &caps)?;
    Ok(Answer::status(format!("added key for {name}")))
}

pub(super) fn set_caps(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let (name, caps) = (entity(call)?, wanted_caps(call)?);
    let key =
        existing(mon, &name).map_err(|_| refuse(ENOENT, format!("couldn't find entry {name}")))?;
    put_user(mon, &name, key, &caps)?;
    Ok(Answer::status(format!("updated caps for {name}")))
}

pub(super) fn import(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    if call.input.is_empty() {
        return Err(refuse(EINVAL, "auth import: no data supplied"));
    }
    let ring = Keyring::parse("input", call.input)
        .map_err(|e| refuse(EINVAL, format!("error decoding keyring: {e}")))?;
    let mut users = mon.keys.users().clone();
    for name in ring.names() {
        if let Some(key) = ring.get(name) {
            let caps: Vec<(&str, &str)> = ring.caps(name).collect();
            users.insert(name.clone(), key.clone(), &caps);
        }
    }
    replace_users(mon, users)?;
    Ok(Answer::status("imported keyring"))
}

/// Removing nobody succeeds.
pub(super) fn rm(mon: &mut Mon, call: &Call<'_>) -> Outcome {
    let name = entity(call)?;
    let mut users = mon.keys.users().clone();
    users.remove(&name);
    replace_users(mon, users)?;
    Ok(Answer::default())
}
