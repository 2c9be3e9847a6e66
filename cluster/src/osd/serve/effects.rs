//! What requests mean for watchers (`PrimaryLogPG::do_osd_op_effects`), and what becomes of
//! watches whose owner is gone (`PrimaryLogPG::handle_watch_timeout`).

use crate::codec::Now;
use crate::objecter::msg::{HObject, HObjectRef, NOSNAP, PgId};

use super::super::exec::Effect;
use super::super::limits;
use super::super::object::WatchRecord;
use super::super::outbox::{Link, Outbox};
use super::super::pg::Place;
use super::super::store::{LogEntry, Seq, Step, Store, Transaction};
use super::super::watch::{DEFAULT_TIMEOUT, NewNotify, WatchKey, nanos};
use super::{Effects, Osd};

/// Objects whose watches are looked for in one tick, in a pg that has just become active.
const SCAN: usize = 256;
/// A watch that could not be removed is looked at again after this.
const AGAIN: u64 = 5_000_000_000;

fn or_default(seconds: u32) -> u32 {
    if seconds == 0 {
        DEFAULT_TIMEOUT
    } else {
        seconds
    }
}

impl<S: Store> Osd<S> {
    pub(super) fn take_effect(&mut self, e: Effects, link: Link, now: Now, out: &mut Outbox) {
        let acks = |e: &Effect| matches!(e, Effect::NotifyAck { .. });
        let kept = match e.list.iter().any(acks) {
            true => self.notify_bytes(),
            false => 0,
        };
        let Some(pg) = self.pgs.get_mut(&e.pg) else {
            return;
        };
        if !pg.active() || pg.interval_since != e.interval {
            // The client has to come back: the pg's watches were dropped since.
            return;
        }
        let oid = e.oid.as_ref();
        let connected = self.sessions.contains_key(&link);
        let elsewhere = kept.saturating_sub(pg.watches.notify_bytes());
        let mut ids = e.notify_ids;
        let mut wake = u64::MAX;
        // Whoever watched before the pg came here is told, too.
        if let Ok(Some(info)) = self.store.info(e.pg, &oid) {
            pg.watches.load(&oid, &info.watchers, now.mono);
        }
        // Disconnects go first.
        for effect in &e.list {
            match effect {
                Effect::Disconnect => pg.watches.remove_all(&oid, out),
                Effect::Unwatch { cookie } => {
                    pg.watches.remove(&oid, (e.peer, *cookie), false, out);
                }
                _ => {}
            }
        }
        for effect in e.list {
            match effect {
                Effect::Watch {
                    cookie,
                    timeout_seconds,
                } => {
                    let record = WatchRecord {
                        entity: e.peer,
                        cookie,
                        timeout_seconds: or_default(timeout_seconds),
                        addr: e.addr,
                    };
                    let until = now.mono.saturating_add(nanos(record.timeout_seconds));
                    wake = wake.min(until);
                    let link = connected.then_some(link);
                    pg.watches.connect(&oid, &record, link, now.mono, out);
                    if let Some(session) = link.and_then(|l| self.sessions.get_mut(&l)) {
                        session.watches += 1;
                    }
                    self.watches += 1;
                }
                Effect::Notify {
                    cookie,
                    timeout_seconds,
                    payload,
                } => {
                    let timeout_seconds = or_default(timeout_seconds);
                    wake = wake.min(now.mono.saturating_add(nanos(timeout_seconds)));
                    let notify = NewNotify {
                        id: ids.pop_front().unwrap_or_default(),
                        link,
                        gid: e.peer.num as u64,
                        cookie,
                        version: e.user_version,
                        timeout_seconds,
                        payload,
                    };
                    pg.watches.notify(&oid, notify, now.mono, out);
                }
                Effect::NotifyAck {
                    notify_id,
                    cookie,
                    payload,
                } => {
                    let key = (e.peer, cookie);
                    let kept = elsewhere + pg.watches.notify_bytes();
                    let room = limits::NOTIFIES.saturating_sub(kept);
                    pg.watches.ack(&oid, key, notify_id, payload, room, out);
                }
                Effect::Disconnect | Effect::Unwatch { .. } => {}
            }
        }
        if wake < u64::MAX {
            self.wake(wake);
        }
    }

    /// What notifications under way take, in all pgs.
    pub(super) fn notify_bytes(&self) -> usize {
        self.pgs.values().map(|pg| pg.watches.notify_bytes()).sum()
    }

    /// Whether there is room for another watch. They are counted only when there may be none: what
    /// was made is more than what is left.
    pub(super) fn may_watch(&mut self, link: Link) -> bool {
        let Some(session) = self.sessions.get_mut(&link) else {
            return false;
        };
        if session.watches >= limits::LINK_WATCHES {
            let watches = self.pgs.values().map(|pg| pg.watches.count(Some(link)));
            session.watches = watches.sum();
        }
        if self.watches >= limits::WATCHES {
            self.watches = self.pgs.values().map(|pg| pg.watches.count(None)).sum();
        }
        session.watches < limits::LINK_WATCHES && self.watches < limits::WATCHES
    }

    pub(super) fn tick_watches(&mut self, id: PgId, now: Now, out: &mut Outbox) {
        let Some(pg) = self.pgs.get_mut(&id).filter(|p| p.active()) else {
            return;
        };
        if pg.watches.is_empty() {
            return;
        }
        for (oid, key) in pg.watches.expire(now.mono, out) {
            self.remove_watch(id, &oid.as_ref(), key, now, out);
        }
    }

    /// Watches of clients that a map refuses.
    pub(super) fn remove_blocklisted(&mut self, now: Now, out: &mut Outbox) {
        let Some(map) = self.map.clone() else {
            return;
        };
        if map.blocklist().is_empty() {
            return;
        }
        let ids: Vec<PgId> = self.pgs.keys().copied().collect();
        for id in ids {
            let Some(pg) = self.pgs.get(&id).filter(|p| p.active()) else {
                continue;
            };
            let refused = pg.watches.of_addrs(|addr| map.blocklist().contains(addr));
            for (oid, key) in refused {
                self.remove_watch(id, &oid.as_ref(), key, now, out);
            }
        }
    }

    /// Takes a watch from what the object remembers; its owner is told when that is durable.
    fn remove_watch(
        &mut self,
        id: PgId,
        oid: &HObjectRef<'_>,
        key: WatchKey,
        now: Now,
        out: &mut Outbox,
    ) {
        let epoch = self.epoch();
        let Some(pg) = self.pgs.get_mut(&id) else {
            return;
        };
        let info = match self.store.info(id, oid) {
            Ok(Some(info)) => info,
            Ok(None) => return pg.watches.remove(oid, key, true, out),
            Err(error) => return self.fail(error, out),
        };
        let mut info = Box::new(info.clone());
        let before = info.watchers.len();
        info.watchers.retain(|w| (w.entity, w.cookie) != key);
        if info.watchers.len() == before {
            return pg.watches.remove(oid, key, true, out);
        }
        pg.watches
            .postpone(oid, key, now.mono.saturating_add(AGAIN));
        let version = pg.next_version(epoch);
        info.version = version;
        pg.last_update = version;
        let interval = pg.interval_since;
        let txn = Transaction {
            log: Some(LogEntry {
                version,
                ..LogEntry::default()
            }),
            objects: vec![HObject::from(*oid)],
            steps: vec![Step::SetInfo { obj: 0, info }],
            trimmed_snaps: None,
        };
        match self.apply(id, oid, txn) {
            Ok(seq) => {
                self.watch_removals
                    .push_back((seq, id, interval, HObject::from(*oid), key));
            }
            // It is tried again.
            Err(error) if error.is_full() => {}
            Err(error) => self.fail(error, out),
        }
    }

    /// Tells owners of watches whose removal is durable, up to this transaction.
    pub(super) fn finish_removals(&mut self, up_to: Seq, out: &mut Outbox) {
        while let Some((seq, ..)) = self.watch_removals.front()
            && *seq <= up_to
        {
            let Some((_, id, interval, oid, key)) = self.watch_removals.pop_front() else {
                return;
            };
            if let Some(pg) = self.pgs.get_mut(&id)
                && pg.interval_since == interval
            {
                pg.watches.remove(&oid.as_ref(), key, true, out);
            }
        }
    }

    /// Looks for stored watches in a part of a pg, so that those expire whose owners do not come
    /// back.
    pub(super) fn scan_slice(&mut self, id: PgId, now: Now, out: &mut Outbox) {
        let Some(pg) = self.pgs.get_mut(&id).filter(|p| p.active()) else {
            return;
        };
        let Some(from) = pg.scan.take() else {
            return;
        };
        let page = match self.store.list(id, &from.as_ref(), SCAN + 1) {
            Ok(page) => page,
            Err(error) => return self.fail(error, out),
        };
        let mut found = Vec::new();
        for object in page.items.iter().take(SCAN) {
            let oid = object.as_ref();
            if oid.snap != NOSNAP {
                continue;
            }
            if let Ok(Some(info)) = self.store.info(id, &oid)
                && !info.watchers.is_empty()
            {
                let records = info.watchers.clone();
                pg.watches.load(&oid, &records, now.mono);
                found.push(object.clone());
            }
        }
        pg.scan = page.items.into_iter().nth(SCAN);
        if pg.scan.is_some() {
            self.wake(now.mono);
        }
        let Some(map) = self.map.clone().filter(|_| !found.is_empty()) else {
            return;
        };
        if !map.blocklist().is_empty() {
            self.remove_blocklisted(now, out);
        }
    }

    /// A pg has become active, perhaps after a time elsewhere: its watches are those that its
    /// objects remember, and their owners have yet to come back (`PrimaryLogPG::on_change`).
    pub(super) fn restart_watches(&mut self, id: PgId, now: Now) {
        let Some(pg) = self.pgs.get_mut(&id) else {
            return;
        };
        pg.watches = Default::default();
        if pg.place == Place::Here {
            pg.scan = Some(HObject::from(HObjectRef::MIN));
            self.wake(now.mono);
        }
    }
}
