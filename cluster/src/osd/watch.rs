//! Watches and notifies of a pg's objects (`src/osd/Watch.cc`).
//!
//! What an object remembers of its watchers is in its `ObjectInfo`. Here is who of them is
//! connected, until when it must ping, and which notifies wait for its answer.

use std::collections::{BTreeMap, BTreeSet};

use crate::codec::{EntityAddr, EntityName, Put};
use crate::msgr::MsgHeader;
use crate::objecter::msg::{HObject, HObjectRef, MWatchNotify, NotifyEvent, WATCH_NOTIFY};
use crate::payload::Payload;

use super::object::WatchRecord;
use super::outbox::{Link, Outbox};

/// `osd_client_watch_timeout` and `osd_default_notify_timeout`.
pub(super) const DEFAULT_TIMEOUT: u32 = 30;
const SECOND: u64 = 1_000_000_000;
const ETIMEDOUT: i32 = 110;

pub(super) fn nanos(seconds: u32) -> u64 {
    u64::from(seconds) * SECOND
}

/// Which watch of an object: who, and its cookie.
pub(super) type WatchKey = (EntityName, u64);

/// An object by namespace, key and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name(Box<[u8]>);

impl Name {
    fn of(oid: &HObjectRef<'_>) -> Name {
        let len = oid.namespace.len() + oid.key.len() + oid.name.len() + 12;
        let mut bytes = Vec::with_capacity(len);
        bytes.put_blob(oid.namespace);
        bytes.put_blob(oid.key);
        bytes.put_blob(oid.name);
        Name(bytes.into())
    }
}

#[derive(Debug)]
struct Watch {
    addr: EntityAddr,
    timeout: u64,
    link: Option<Link>,
    last_ping: u64,
    deadline: u64,
    /// Notifies that wait for it.
    notifies: BTreeSet<u64>,
}

#[derive(Debug)]
struct Object {
    oid: HObject,
    watches: BTreeMap<WatchKey, Watch>,
}

#[derive(Debug)]
struct Notify {
    /// Of the notifier.
    link: Link,
    gid: u64,
    cookie: u64,
    version: u64,
    payload: Vec<u8>,
    deadline: u64,
    object: Name,
    waits_for: BTreeSet<WatchKey>,
    replies: BTreeMap<(u64, u64), Vec<u8>>,
    /// What it takes in memory, more or less.
    bytes: usize,
}

/// Of a notify, and of each watcher's part in it, besides what they bring.
const NOTIFY: usize = 512;
const PART: usize = 128;

/// A notify as it begins.
#[derive(Debug)]
pub(super) struct NewNotify {
    pub id: u64,
    pub link: Link,
    pub gid: u64,
    pub cookie: u64,
    pub version: u64,
    pub timeout_seconds: u32,
    pub payload: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Watches {
    objects: BTreeMap<Name, Object>,
    notifies: BTreeMap<u64, Notify>,
    /// Of all notifies.
    notify_bytes: usize,
}

fn send(out: &mut Outbox, link: Link, m: &MWatchNotify<'_>, data: Option<Payload>) {
    let header = MsgHeader::new(WATCH_NOTIFY, MWatchNotify::VERSION, MWatchNotify::COMPAT);
    out.send(link, header, |b| m.encode(b), data);
}

impl Notify {
    fn tell(&self, cookie: u64, id: u64, to: Link, out: &mut Outbox) {
        let m = MWatchNotify {
            opcode: NotifyEvent::Notify as u8,
            cookie,
            version: self.version,
            notify_id: id,
            payload: &self.payload,
            return_code: 0,
            notifier: self.gid,
        };
        send(out, to, &m, None);
    }

    /// `Notify::maybe_complete_notify`.
    fn complete(self, id: u64, timed_out: bool, out: &mut Outbox) {
        let mut data = Vec::new();
        data.put_list(self.replies.iter(), |b, (&(gid, cookie), reply)| {
            b.put_u64(gid);
            b.put_u64(cookie);
            b.put_blob(reply);
        });
        data.put_list(self.waits_for.iter(), |b, (entity, cookie)| {
            b.put_u64(entity.num as u64);
            b.put_u64(*cookie);
        });
        let m = MWatchNotify {
            opcode: NotifyEvent::Complete as u8,
            cookie: self.cookie,
            version: self.version,
            notify_id: id,
            payload: &[],
            return_code: if timed_out { -ETIMEDOUT } else { 0 },
            notifier: self.gid,
        };
        send(out, self.link, &m, Some(Payload::from(data)));
    }
}

impl Watches {
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.notifies.is_empty()
    }

    /// Watches there are, or those of a connection.
    pub(super) fn count(&self, of: Option<Link>) -> usize {
        let watches = self.objects.values().flat_map(|o| o.watches.values());
        watches.filter(|w| of.is_none() || w.link == of).count()
    }

    /// What notifies under way take in memory.
    pub(super) fn notify_bytes(&self) -> usize {
        self.notify_bytes
    }

    fn end(&mut self, id: u64) -> Option<Notify> {
        let notify = self.notifies.remove(&id)?;
        self.notify_bytes -= notify.bytes;
        Some(notify)
    }

    /// Takes up what an object remembers, unless its watches are known; they expire unless their
    /// owners come back (`PrimaryLogPG::populate_obc_watchers`).
    pub(super) fn load(&mut self, oid: &HObjectRef<'_>, records: &[WatchRecord], since: u64) {
        if records.is_empty() {
            return;
        }
        let name = Name::of(oid);
        if self.objects.contains_key(&name) {
            return;
        }
        let watch = |r: &WatchRecord| {
            let timeout = nanos(r.timeout_seconds);
            let watch = Watch {
                addr: r.addr,
                timeout,
                link: None,
                last_ping: since,
                deadline: since.saturating_add(timeout),
                notifies: BTreeSet::new(),
            };
            ((r.entity, r.cookie), watch)
        };
        let object = Object {
            oid: (*oid).into(),
            watches: records.iter().map(watch).collect(),
        };
        self.objects.insert(name, object);
    }

    /// `Watch::connect`: notifies under way are told to whoever comes back. Without a link the watch
    /// begins to run out: its owner was gone before it was made.
    pub(super) fn connect(
        &mut self,
        oid: &HObjectRef<'_>,
        record: &WatchRecord,
        link: Option<Link>,
        now: u64,
        out: &mut Outbox,
    ) {
        let object = self.objects.entry(Name::of(oid)).or_insert_with(|| Object {
            oid: (*oid).into(),
            watches: BTreeMap::new(),
        });
        let timeout = nanos(record.timeout_seconds);
        let key = (record.entity, record.cookie);
        let watch = object.watches.entry(key).or_insert_with(|| Watch {
            addr: record.addr,
            timeout,
            link: None,
            last_ping: now,
            deadline: 0,
            notifies: BTreeSet::new(),
        });
        let Some(link) = link else {
            if watch.link.is_none() {
                watch.deadline = now.saturating_add(watch.timeout);
            }
            return;
        };
        if watch.link == Some(link) {
            return;
        }
        watch.link = Some(link);
        watch.last_ping = now;
        watch.deadline = now.saturating_add(watch.timeout);
        for id in &watch.notifies {
            if let Some(n) = self.notifies.get(id) {
                n.tell(record.cookie, *id, link, out);
            }
        }
    }

    /// Whether the watch is connected; then it lives on (`Watch::got_ping`).
    pub(super) fn ping(&mut self, oid: &HObjectRef<'_>, key: WatchKey, now: u64) -> bool {
        let object = self.objects.get_mut(&Name::of(oid));
        let watch = object.and_then(|o| o.watches.get_mut(&key));
        let Some(watch) = watch.filter(|w| w.link.is_some()) else {
            return false;
        };
        watch.last_ping = now;
        watch.deadline = now.saturating_add(watch.timeout);
        true
    }

    /// `Watch::remove`.
    pub(super) fn remove(
        &mut self,
        oid: &HObjectRef<'_>,
        key: WatchKey,
        tell: bool,
        out: &mut Outbox,
    ) {
        let name = Name::of(oid);
        let Some(object) = self.objects.get_mut(&name) else {
            return;
        };
        let Some(watch) = object.watches.remove(&key) else {
            return;
        };
        if object.watches.is_empty() {
            self.objects.remove(&name);
        }
        if tell && let Some(link) = watch.link {
            let m = MWatchNotify {
                opcode: NotifyEvent::Disconnect as u8,
                cookie: key.1,
                version: 0,
                notify_id: 0,
                payload: &[],
                return_code: 0,
                notifier: 0,
            };
            send(out, link, &m, None);
        }
        for id in watch.notifies {
            self.answered(id, key, None, out);
        }
    }

    /// The object is gone: all of its watchers are told.
    pub(super) fn remove_all(&mut self, oid: &HObjectRef<'_>, out: &mut Outbox) {
        let keys: Vec<WatchKey> = match self.objects.get(&Name::of(oid)) {
            Some(object) => object.watches.keys().copied().collect(),
            None => return,
        };
        for key in keys {
            self.remove(oid, key, true, out);
        }
    }

    fn answered(&mut self, id: u64, key: WatchKey, reply: Option<Vec<u8>>, out: &mut Outbox) {
        let Some(notify) = self.notifies.get_mut(&id) else {
            return;
        };
        if !notify.waits_for.remove(&key) {
            return;
        }
        if let Some(reply) = reply {
            notify.bytes += reply.len();
            self.notify_bytes += reply.len();
            notify.replies.insert((key.0.num as u64, key.1), reply);
        }
        if notify.waits_for.is_empty()
            && let Some(notify) = self.end(id)
        {
            notify.complete(id, false, out);
        }
    }

    pub(super) fn notify(
        &mut self,
        oid: &HObjectRef<'_>,
        new: NewNotify,
        now: u64,
        out: &mut Outbox,
    ) {
        let id = new.id;
        let name = Name::of(oid);
        let mut notify = Notify {
            link: new.link,
            gid: new.gid,
            cookie: new.cookie,
            version: new.version,
            payload: new.payload,
            deadline: now.saturating_add(nanos(new.timeout_seconds)),
            object: name.clone(),
            waits_for: BTreeSet::new(),
            replies: BTreeMap::new(),
            bytes: 0,
        };
        let watches = self.objects.get_mut(&name).map(|o| &mut o.watches);
        for (key, watch) in watches.into_iter().flatten() {
            if watch.last_ping < now.saturating_sub(watch.timeout) {
                watch.link = None;
                continue;
            }
            watch.notifies.insert(id);
            notify.waits_for.insert(*key);
            if let Some(link) = watch.link {
                notify.tell(key.1, id, link, out);
            }
        }
        if notify.waits_for.is_empty() {
            notify.complete(id, false, out);
        } else {
            notify.bytes = NOTIFY + notify.payload.len() + PART * notify.waits_for.len();
            self.notify_bytes += notify.bytes;
            self.notifies.insert(id, notify);
        }
    }

    /// `Watch::notify_ack`. A cookie of zero stands for all of the client's watches. A reply for
    /// which there is no room is not taken.
    pub(super) fn ack(
        &mut self,
        oid: &HObjectRef<'_>,
        key: WatchKey,
        id: u64,
        reply: Vec<u8>,
        mut room: usize,
        out: &mut Outbox,
    ) {
        let Some(object) = self.objects.get_mut(&Name::of(oid)) else {
            return;
        };
        let whose = |k: &WatchKey| k.0 == key.0 && (key.1 == 0 || k.1 == key.1);
        let mut answered = Vec::new();
        for (k, watch) in object.watches.iter_mut().filter(|(k, _)| whose(k)) {
            if reply.len() <= room && watch.notifies.remove(&id) {
                room -= reply.len();
                answered.push(*k);
            }
        }
        for key in answered {
            self.answered(id, key, Some(reply.clone()), out);
        }
    }

    /// A connection is gone. Its watches stay until their time is over.
    pub(super) fn closed(&mut self, link: Link) {
        let watches = self
            .objects
            .values_mut()
            .flat_map(|o| o.watches.values_mut());
        for watch in watches.filter(|w| w.link == Some(link)) {
            watch.link = None;
        }
    }

    /// Ends notifies whose time is over, and names the watches whose time is.
    pub(super) fn expire(&mut self, now: u64, out: &mut Outbox) -> Vec<(HObject, WatchKey)> {
        let over = |n: &Notify| n.deadline <= now;
        let due: Vec<u64> = self
            .notifies
            .iter()
            .filter(|(_, n)| over(n))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let Some(notify) = self.end(id) else {
                continue;
            };
            let watches = self.objects.get_mut(&notify.object).map(|o| &mut o.watches);
            for (_, watch) in watches.into_iter().flatten() {
                watch.notifies.remove(&id);
            }
            notify.complete(id, true, out);
        }
        self.pick(|w| w.deadline <= now)
    }

    /// Watches of refused clients (`PrimaryLogPG::check_blocklisted_watchers`).
    pub(super) fn of_addrs(
        &self,
        refused: impl Fn(&EntityAddr) -> bool,
    ) -> Vec<(HObject, WatchKey)> {
        self.pick(|w| refused(&w.addr))
    }

    fn pick(&self, which: impl Fn(&Watch) -> bool) -> Vec<(HObject, WatchKey)> {
        let mut picked = Vec::new();
        for object in self.objects.values() {
            for (key, _) in object.watches.iter().filter(|(_, w)| which(w)) {
                picked.push((object.oid.clone(), *key));
            }
        }
        picked
    }

    /// A watch's removal is on its way; it need not be looked at again soon.
    pub(super) fn postpone(&mut self, oid: &HObjectRef<'_>, key: WatchKey, until: u64) {
        let object = self.objects.get_mut(&Name::of(oid));
        if let Some(watch) = object.and_then(|o| o.watches.get_mut(&key)) {
            watch.deadline = until;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let watches = self.objects.values().flat_map(|o| o.watches.values());
        let notifies = self.notifies.values().map(|n| n.deadline);
        watches.map(|w| w.deadline).chain(notifies).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::EntityType;
    use crate::objecter::results::NotifyReplies;
    use crate::osd::outbox::Step;

    const OID: HObjectRef<'static> = HObjectRef {
        name: b"image",
        snap: crate::objecter::msg::NOSNAP,
        pool: 1,
        ..HObjectRef::MIN
    };

    fn entity(num: i64) -> EntityName {
        EntityName::new(EntityType::CLIENT, num)
    }

    fn record(num: i64, cookie: u64) -> WatchRecord {
        WatchRecord {
            entity: entity(num),
            cookie,
            timeout_seconds: 30,
            addr: EntityAddr::default(),
        }
    }

    /// Link, opcode, cookie, return code, and data.
    fn sent(out: &mut Outbox) -> Vec<(u64, u8, u64, i32, Vec<u8>)> {
        let mut all = Vec::new();
        out.drain(|link, step| {
            let Step::Send {
                header,
                front,
                data,
            } = step
            else {
                panic!("closed");
            };
            let m = MWatchNotify::decode(header.version, front).unwrap();
            let data = data.iter().flat_map(|d| d.iter().copied()).collect();
            all.push((link.0, m.opcode, m.cookie, m.return_code, data));
        });
        all
    }

    fn new_notify(id: u64) -> NewNotify {
        NewNotify {
            id,
            link: Link(9),
            gid: 99,
            cookie: 5,
            version: 3,
            timeout_seconds: 10,
            payload: b"hello".to_vec(),
        }
    }

    #[test]
    fn a_notify_without_watchers_is_over_at_once() {
        let (mut w, mut out) = (Watches::default(), Outbox::new());
        w.notify(&OID, new_notify(1), 0, &mut out);
        let all = sent(&mut out);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].0, all[0].1, all[0].2, all[0].3), (9, 2, 5, 0));
        assert_eq!(
            NotifyReplies::decode(&all[0].4).unwrap(),
            NotifyReplies::default()
        );
        assert!(w.is_empty());
    }

    #[test]
    fn answers_and_missing_watchers_are_reported() {
        let (mut w, mut out) = (Watches::default(), Outbox::new());
        w.connect(&OID, &record(1, 11), Some(Link(1)), 0, &mut out);
        w.connect(&OID, &record(2, 22), Some(Link(2)), 0, &mut out);
        w.notify(&OID, new_notify(7), SECOND, &mut out);
        let told: Vec<_> = sent(&mut out).iter().map(|m| (m.0, m.1, m.2)).collect();
        assert_eq!(told, [(1, 1, 11), (2, 1, 22)]);
        w.ack(
            &OID,
            (entity(1), 11),
            7,
            b"yes".to_vec(),
            usize::MAX,
            &mut out,
        );
        w.ack(
            &OID,
            (entity(1), 11),
            7,
            b"again".to_vec(),
            usize::MAX,
            &mut out,
        );
        assert!(sent(&mut out).is_empty());
        assert_eq!(w.next_deadline(), Some(11 * SECOND));
        assert!(w.expire(11 * SECOND, &mut out).is_empty());
        let all = sent(&mut out);
        assert_eq!((all[0].1, all[0].3), (2, -ETIMEDOUT));
        let replies = NotifyReplies::decode(&all[0].4).unwrap();
        assert_eq!(replies.missing, [(2, 22)]);
        assert_eq!(
            (replies.replies[0].watcher, replies.replies[0].reply),
            (1, &b"yes"[..])
        );
        // A late answer is nobody's.
        w.ack(&OID, (entity(2), 22), 7, Vec::new(), usize::MAX, &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn whoever_comes_back_hears_of_notifies_under_way() {
        let (mut w, mut out) = (Watches::default(), Outbox::new());
        w.connect(&OID, &record(1, 11), Some(Link(1)), 0, &mut out);
        w.closed(Link(1));
        w.notify(&OID, new_notify(7), SECOND, &mut out);
        assert!(out.is_empty());
        assert!(!w.ping(&OID, (entity(1), 11), SECOND));
        w.connect(&OID, &record(1, 11), Some(Link(3)), 2 * SECOND, &mut out);
        assert_eq!(sent(&mut out)[0].0, 3);
        // Connecting again over the same link tells nothing.
        w.connect(&OID, &record(1, 11), Some(Link(3)), 2 * SECOND, &mut out);
        assert!(out.is_empty());
        w.remove(&OID, (entity(1), 11), false, &mut out);
        let all = sent(&mut out);
        assert_eq!((all.len(), all[0].1, all[0].3), (1, 2, 0));
    }

    #[test]
    fn time_runs_from_the_last_ping_or_the_load() {
        let (mut w, mut out) = (Watches::default(), Outbox::new());
        w.load(&OID, &[record(1, 11), record(2, 22)], SECOND);
        w.connect(&OID, &record(1, 11), Some(Link(1)), 20 * SECOND, &mut out);
        assert!(w.ping(&OID, (entity(1), 11), 25 * SECOND));
        assert!(w.expire(30 * SECOND, &mut out).is_empty());
        let due = w.expire(31 * SECOND, &mut out);
        assert_eq!(due[0].1, (entity(2), 22));
        assert_eq!(due.len(), 1);
        w.remove(&OID, due[0].1, true, &mut out);
        assert!(out.is_empty(), "it is not connected");
        assert_eq!(w.next_deadline(), Some(55 * SECOND));
    }

    #[test]
    fn a_deletion_tells_all_watchers() {
        let (mut w, mut out) = (Watches::default(), Outbox::new());
        w.connect(&OID, &record(1, 11), Some(Link(1)), 0, &mut out);
        w.connect(&OID, &record(2, 22), Some(Link(2)), 0, &mut out);
        w.notify(&OID, new_notify(7), 0, &mut out);
        sent(&mut out);
        w.remove_all(&OID, &mut out);
        let kinds: Vec<_> = sent(&mut out).iter().map(|m| (m.0, m.1)).collect();
        assert_eq!(kinds, [(1, 3), (2, 3), (9, 2)]);
        assert!(w.is_empty());
    }
}
