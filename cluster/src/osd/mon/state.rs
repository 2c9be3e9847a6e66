//! The monitor's state in its store.
//!
//! ```text
//! keyring               users, as a keyring file
//! secrets               rotating secrets and the next global id (`KeyServer::save`)
//! osdmap/full/EPOCH     encoded map; EPOCH has ten digits
//! osdmap/inc/EPOCH      what led to it
//! config/WHO/NAME       an option
//! kv/KEY                a value of `config-key`
//! purged/POOL           le32 count, then le64 start and length of each interval
//! ```

use std::collections::BTreeMap;

use crate::auth::server::{Entropy, KeyServer};
use crate::auth::{AuthName, CryptoKey, KeyType, Keyring, Secret};
use crate::codec::{EntityType, Now, Put, Reader, UTime};
use crate::osdmap::SnapIntervals;

use super::MonConfig;
use super::store::{Change, MonStore, MonStoreError};

const KEYRING: &str = "keyring";
const SECRETS: &str = "secrets";
const CONFIG: &str = "config/";
const VALUES: &str = "kv/";
const PURGED: &str = "purged/";

fn damaged(what: &str, why: impl ToString) -> MonStoreError {
    MonStoreError::Damaged {
        what: what.to_owned(),
        why: why.to_string(),
    }
}

/// A new key of the wanted kind.
pub(super) fn new_key(kind: KeyType, now: Now, entropy: Entropy<'_>) -> CryptoKey {
    let mut secret = vec![0; kind.secret_len()];
    entropy(&mut secret);
    CryptoKey::new(kind, UTime::from_nanos(now.wall), Secret::new(secret))
        .expect("a secret of the right length")
}

/// The key server of the store, or one that knows the administrator.
pub(super) fn load_keys(
    config: &MonConfig,
    store: &dyn MonStore,
    now: Now,
    entropy: Entropy<'_>,
) -> Result<KeyServer, MonStoreError> {
    let users = match store.get(KEYRING) {
        Some(text) => Keyring::parse(KEYRING, text).map_err(|e| damaged(KEYRING, e))?,
        None => {
            let mut users = Keyring::default();
            let key = new_key(config.key_type, now, entropy);
            let caps = ["mds", "mgr", "mon", "osd"].map(|s| (s, "allow *"));
            users.insert(AuthName::client("admin"), key, &caps);
            users
        }
    };
    let mut keys = KeyServer::new(config.keys.clone(), users, now, entropy);
    if let Some(saved) = store.get(SECRETS) {
        keys.restore(saved).map_err(|e| damaged(SECRETS, e))?;
        keys.rotate(now, entropy);
    }
    Ok(keys)
}

pub(super) fn keys_changes(keys: &KeyServer, ids: u64) -> [Change; 2] {
    [
        Change::Put(
            KEYRING.to_owned(),
            keys.users().to_text().as_bytes().to_vec(),
        ),
        Change::Put(SECRETS.to_owned(), keys.save_ahead(ids).to_vec()),
    ]
}

pub(super) type Options = BTreeMap<String, BTreeMap<String, String>>;

pub(super) fn load_options(store: &dyn MonStore) -> Result<Options, MonStoreError> {
    let mut options = Options::new();
    for key in store.keys(CONFIG) {
        let (who, name) = key[CONFIG.len()..]
            .split_once('/')
            .ok_or_else(|| damaged(&key, "no option name"))?;
        let value = String::from_utf8_lossy(store.get(&key).unwrap_or_default()).into_owned();
        options
            .entry(who.to_owned())
            .or_default()
            .insert(name.to_owned(), value);
    }
    Ok(options)
}

pub(super) fn option_key(who: &str, name: &str) -> String {
    format!("{CONFIG}{who}/{name}")
}

pub(super) fn load_values(store: &dyn MonStore) -> BTreeMap<String, Vec<u8>> {
    let value = |key: &String| store.get(key).unwrap_or_default().to_vec();
    store
        .keys(VALUES)
        .into_iter()
        .map(|key| (key[VALUES.len()..].to_owned(), value(&key)))
        .collect()
}

pub(super) fn value_key(key: &str) -> String {
    format!("{VALUES}{key}")
}

pub(super) fn load_purged(
    store: &dyn MonStore,
) -> Result<BTreeMap<i64, SnapIntervals>, MonStoreError> {
    let mut all = BTreeMap::new();
    for key in store.keys(PURGED) {
        let pool = key[PURGED.len()..].parse().map_err(|e| damaged(&key, e))?;
        let bytes = store.get(&key).unwrap_or_default();
        let intervals = Reader::new(bytes)
            .list(16, |r| Ok((r.u64()?, r.u64()?)))
            .map_err(|e| damaged(&key, e))?;
        let mut set = SnapIntervals::default();
        intervals.into_iter().for_each(|(s, l)| set.insert(s, l));
        all.insert(pool, set);
    }
    Ok(all)
}

/// Saves which snapshots of one pool are gone.
pub(super) fn purged_change((pool, set): (&i64, &SnapIntervals)) -> Change {
    let mut out = Vec::new();
    let intervals: Vec<_> = set.iter().collect();
    out.put_list(intervals.into_iter(), |out, (start, len)| {
        out.put_u64(start);
        out.put_u64(len);
    });
    Change::Put(format!("{PURGED}{pool}"), out)
}

pub(super) fn purged_removal(pool: i64) -> Change {
    Change::Remove(format!("{PURGED}{pool}"))
}

/// Whose keys the monitor keeps: types that can be users (`EntityName`).
pub(super) fn may_be_user(name: &AuthName) -> bool {
    name.kind != EntityType::AUTH
}
