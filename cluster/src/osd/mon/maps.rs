//! The epochs of the map: proposed, saved, kept, sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::codec::{Now, UTime};
use crate::msgr::MsgHeader;
use crate::objecter::msg::{MOsdMap, OSD_MAP};
use crate::osdmap::{Incremental, OsdMap};

use super::store::{Change, MonStore, MonStoreError};
use super::{Link, Mon, MonEvent, Outbox};

const FULL: &str = "osdmap/full/";
const INCREMENTAL: &str = "osdmap/inc/";

/// Epochs kept; older ones are asked for by nobody who does not take a full map as well
/// (`mon_min_osdmap_epochs`).
const KEEP: usize = 500;
/// `osd_map_message_max` and `osd_map_message_max_bytes`.
const MESSAGE_MAPS: u32 = 40;
const MESSAGE_BYTES: usize = 10 << 20;

/// Features by which maps are encoded: all that we know.
pub(super) const FEATURES: u64 = crate::msgr::features::SUPPORTED;

/// The kept epochs.
pub(super) struct Maps {
    kept: BTreeMap<u32, Kept>,
    current: Arc<OsdMap>,
}

#[derive(Clone)]
struct Kept {
    full: Arc<[u8]>,
    incremental: Option<Arc<[u8]>>,
}

impl Maps {
    pub(super) fn load(store: &dyn MonStore) -> Result<Maps, MonStoreError> {
        let damaged = |key: &str, why: String| MonStoreError::Damaged {
            what: key.to_owned(),
            why,
        };
        let mut kept = BTreeMap::new();
        let mut current = OsdMap::new_empty();
        for key in store.keys(FULL) {
            let epoch: u32 = key[FULL.len()..]
                .parse()
                .map_err(|_| damaged(&key, "no epoch".to_owned()))?;
            let full = store.get(&key).unwrap_or_default();
            let incremental = store.get(&key_of(INCREMENTAL, epoch)).map(Arc::from);
            kept.insert(
                epoch,
                Kept {
                    full: full.into(),
                    incremental,
                },
            );
        }
        if let Some((epoch, newest)) = kept.last_key_value() {
            let key = key_of(FULL, *epoch);
            current = OsdMap::decode(&newest.full).map_err(|e| damaged(&key, e.to_string()))?;
            if current.epoch() != *epoch {
                return Err(damaged(&key, format!("it has epoch {}", current.epoch())));
            }
        }
        Ok(Maps {
            kept,
            current: Arc::new(current),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(super) fn current(&self) -> &Arc<OsdMap> {
        &self.current
    }

    pub(super) fn epoch(&self) -> u32 {
        self.current.epoch()
    }

    /// The oldest epoch that is kept.
    pub(super) fn oldest(&self) -> u32 {
        self.kept.first_key_value().map_or(0, |(e, _)| *e)
    }

    pub(super) fn full(&self, epoch: u32) -> Option<Arc<[u8]>> {
        Some(Arc::clone(&self.kept.get(&epoch)?.full))
    }

    /// What to save for a new epoch, and to forget.
    fn changes(&self, epoch: u32, kept: &Kept) -> Vec<Change> {
        let mut changes = vec![Change::Put(key_of(FULL, epoch), kept.full.to_vec())];
        if let Some(incremental) = &kept.incremental {
            let key = key_of(INCREMENTAL, epoch);
            changes.push(Change::Put(key, incremental.to_vec()));
        }
        for old in self.outdated() {
            changes.push(Change::Remove(key_of(FULL, old)));
            changes.push(Change::Remove(key_of(INCREMENTAL, old)));
        }
        changes
    }

    fn outdated(&self) -> Vec<u32> {
        let many = (self.kept.len() + 1).saturating_sub(KEEP);
        self.kept.keys().take(many).copied().collect()
    }

    fn insert(&mut self, map: Arc<OsdMap>, kept: Kept) {
        for old in self.outdated() {
            self.kept.remove(&old);
        }
        self.kept.insert(map.epoch(), kept);
        self.current = map;
    }

    /// Sends epochs from `from` on; returns the one to send next. 0 asks for the newest map alone.
    /// Of epochs no longer kept the oldest map stands in (`OSDMonitor::send_incremental`).
    pub(super) fn send(&self, link: Link, from: u32, onetime: bool, out: &mut Outbox) -> u32 {
        let newest = self.epoch();
        let full = |epoch: u32| (epoch, &*self.kept[&epoch].full);
        let mut message = MOsdMap {
            fsid: self.current.fsid(),
            incrementals: Vec::new(),
            full: Vec::new(),
            trim_lower_bound: self.oldest(),
            newest,
        };
        if from == 0 {
            message.full.push(full(newest));
            send(&message, link, out);
            return newest + 1;
        }
        let mut next = from.max(self.oldest());
        if next > from
            || self
                .kept
                .get(&next)
                .is_some_and(|k| k.incremental.is_none())
        {
            message.full.push(full(next));
            next += 1;
        }
        loop {
            let mut bytes = 0;
            let last = newest.min(next.saturating_add(MESSAGE_MAPS - 1));
            while next <= last && bytes < MESSAGE_BYTES {
                match &self.kept[&next].incremental {
                    Some(incremental) => {
                        bytes += incremental.len();
                        message.incrementals.push((next, incremental));
                    }
                    None => message.full.push(full(next)),
                }
                next += 1;
            }
            send(&message, link, out);
            message.incrementals.clear();
            message.full.clear();
            if onetime || next > newest {
                return next;
            }
        }
    }
}

fn send(message: &MOsdMap<'_>, link: Link, out: &mut Outbox) {
    let header = MsgHeader::new(OSD_MAP, MOsdMap::VERSION, MOsdMap::COMPAT);
    out.send(link, header, |front| message.encode(front), []);
}

fn key_of(prefix: &str, epoch: u32) -> String {
    format!("{prefix}{epoch:010}")
}

impl Mon {
    /// Makes the next epoch of a change: applies it, saves it, tells of it.
    pub(super) fn propose(&mut self, inc: Incremental, now: Now) -> Result<u32, MonStoreError> {
        self.propose_with(inc, &[], now)
    }

    /// The same, and saves `extra` with it.
    pub(super) fn propose_with(
        &mut self,
        mut inc: Incremental,
        extra: &[Change],
        now: Now,
    ) -> Result<u32, MonStoreError> {
        let current = self.maps.current();
        inc.fsid = self.config.fsid;
        inc.epoch = current.epoch() + 1;
        inc.modified = UTime::from_nanos(now.wall);
        inc.encode_features = FEATURES;
        let map = current.next(&inc).map_err(|error| MonStoreError::Damaged {
            what: format!("change to epoch {}", inc.epoch),
            why: error.to_string(),
        })?;
        let full = map.encode();
        // The checksum of a full map is its last field.
        inc.full_crc = full.last_chunk().map(|crc| u32::from_le_bytes(*crc));
        let incremental = inc.encode(map.require_osd_release());
        let was = |id: &i64| current.pool(*id).map(|p| p.pg_num);
        let reshaped = inc.new_pools.iter();
        let reshaped: Vec<i64> = reshaped
            .filter(|(id, pool)| was(id).is_some_and(|n| n != pool.pg_num))
            .map(|(id, _)| *id)
            .collect();
        let epoch = self.accept(map, full, Some(incremental), extra)?;
        self.forget_reports(&reshaped, epoch);
        Ok(epoch)
    }

    /// Saves a map and makes it the current one.
    pub(super) fn accept(
        &mut self,
        map: OsdMap,
        full: Vec<u8>,
        incremental: Option<Vec<u8>>,
        extra: &[Change],
    ) -> Result<u32, MonStoreError> {
        let map = Arc::new(map);
        let epoch = map.epoch();
        let kept = Kept {
            full: full.into(),
            incremental: incremental.map(Arc::from),
        };
        let mut changes = self.maps.changes(epoch, &kept);
        changes.extend_from_slice(extra);
        self.store.commit(&changes)?;
        self.events.push_back(MonEvent::Map {
            epoch,
            map: Arc::clone(&map),
            full: Arc::clone(&kept.full),
            incremental: kept.incremental.clone(),
        });
        self.maps.insert(map, kept);
        Ok(epoch)
    }

    /// Announces the map that was loaded, as the first there is.
    pub(super) fn announce_current(&mut self) {
        let map = Arc::clone(self.maps.current());
        let epoch = map.epoch();
        if let Some(full) = self.maps.full(epoch) {
            self.events.push_back(MonEvent::Map {
                epoch,
                map,
                full,
                incremental: None,
            });
        }
    }
}
