//! Watches and notifies at the OSD (`src/osd/Watch.cc`).

use std::collections::{BTreeMap, BTreeSet};

use cluster::codec::{Put, Reader};
use cluster::objecter::msg::{MWatchNotify, NotifyEvent, OpCode, WATCH_NOTIFY, WatchOp};

use super::osd::Op;
use super::store::{EINVAL, ENOENT, Outcome};
use super::world::{SECOND, World};

const ENOTCONN: i32 = 107;
const ETIMEDOUT: i32 = 110;

/// Global id and cookie.
type Name = (u64, u64);

#[derive(Default)]
pub(crate) struct Watched {
    watchers: BTreeMap<Name, Watcher>,
    notifies: BTreeMap<u64, Notify>,
}

struct Watcher {
    /// In seconds.
    timeout: u32,
    link: Option<u64>,
    deadline: u64,
}

struct Notify {
    link: u64,
    cookie: u64,
    gid: u64,
    payload: Vec<u8>,
    waits_for: BTreeSet<Name>,
    replies: Vec<(Name, Vec<u8>)>,
    deadline: u64,
}

impl World {
    pub(crate) fn watch_op(&mut self, op: &Op) -> Outcome {
        let (osd_op, data) = &op.ops[0];
        let mut out = Vec::new();
        let result = if self.objects.get(&op.oid).is_none_or(Option::is_none) {
            Err(ENOENT)
        } else {
            match osd_op.code {
                OpCode::WATCH => self.watch(op),
                OpCode::NOTIFY => self.notify(op, data, &mut out),
                _ => self.notify_ack(op, data),
            }
        };
        let rval = result.err().map_or(0, |errno| -errno);
        Outcome {
            result: rval,
            rvals: vec![rval],
            outs: vec![out],
        }
    }

    fn watch(&mut self, op: &Op) -> Result<(), i32> {
        let w = op.ops[0].0.watch();
        let name = (op.gid, w.cookie);
        let now = self.clock;
        let there = self.links.get(&op.link).is_some_and(|l| l.peer.is_some());
        let watched = self.watched.entry(op.oid.clone()).or_default();
        let connect = |watcher: &mut Watcher| {
            watcher.link = there.then_some(op.link);
            watcher.deadline = now + u64::from(watcher.timeout) * SECOND;
        };
        match WatchOp::from_wire(w.op) {
            Some(WatchOp::Watch) => {
                let watcher = watched.watchers.entry(name).or_insert(Watcher {
                    timeout: if w.timeout == 0 { 30 } else { w.timeout },
                    link: None,
                    deadline: 0,
                });
                connect(watcher);
            }
            Some(WatchOp::Reconnect) => {
                connect(watched.watchers.get_mut(&name).ok_or(ENOTCONN)?);
            }
            Some(WatchOp::Ping) => {
                let watcher = watched.watchers.get_mut(&name).ok_or(ENOTCONN)?;
                if watcher.link.is_none() {
                    return Err(ETIMEDOUT);
                }
                connect(watcher);
                return Ok(());
            }
            Some(WatchOp::Unwatch) => {
                self.drop_watcher(&op.oid, name);
                return Ok(());
            }
            None => return Err(EINVAL),
        }
        self.note("watch", op.gid, w.op.into());
        let pending: Vec<u64> = self.watched[&op.oid]
            .notifies
            .iter()
            .filter(|(_, n)| n.waits_for.contains(&name))
            .map(|(&id, _)| id)
            .collect();
        for id in pending {
            self.tell_watcher(&op.oid, id, name);
        }
        Ok(())
    }

    fn notify(&mut self, op: &Op, data: &[u8], out: &mut Vec<u8>) -> Result<(), i32> {
        let mut r = Reader::new(data);
        let args = (|| Ok((r.u32()?, r.u32()?, r.blob()?.to_vec())))();
        let (_, timeout, payload) = args.map_err(|_: cluster::codec::DecodeError| EINVAL)?;
        self.last_notify += 1;
        let id = self.last_notify;
        out.put_u64(id);
        let watched = self.watched.entry(op.oid.clone()).or_default();
        let waits_for: BTreeSet<Name> = watched.watchers.keys().copied().collect();
        let notify = Notify {
            link: op.link,
            cookie: op.ops[0].0.cookie(),
            gid: op.gid,
            payload,
            waits_for: waits_for.clone(),
            replies: Vec::new(),
            deadline: self.clock + u64::from(timeout.max(1)) * SECOND,
        };
        watched.notifies.insert(id, notify);
        self.note("notify", op.gid, id);
        for name in waits_for {
            self.tell_watcher(&op.oid, id, name);
        }
        self.maybe_complete(&op.oid.clone(), id, false);
        Ok(())
    }

    fn notify_ack(&mut self, op: &Op, data: &[u8]) -> Result<(), i32> {
        let mut r = Reader::new(data);
        let args = (|| Ok((r.u64()?, r.u64()?, r.blob()?.to_vec())))();
        let (id, cookie, reply) = args.map_err(|_: cluster::codec::DecodeError| EINVAL)?;
        let name = (op.gid, cookie);
        let watched = self.watched.entry(op.oid.clone()).or_default();
        if let Some(n) = watched.notifies.get_mut(&id)
            && n.waits_for.remove(&name)
        {
            n.replies.push((name, reply));
        }
        self.maybe_complete(&op.oid, id, false);
        Ok(())
    }

    fn tell_watcher(&mut self, oid: &[u8], id: u64, name: Name) {
        let watched = &self.watched[oid];
        let Some(link) = watched.watchers.get(&name).and_then(|w| w.link) else {
            return;
        };
        let n = &watched.notifies[&id];
        let front = message(NotifyEvent::Notify, name.1, id, &n.payload, 0, n.gid);
        self.send_notify(link, &front, Vec::new());
    }

    fn send_notify(&mut self, link: u64, front: &[u8], data: Vec<u8>) {
        let versions = (MWatchNotify::VERSION, MWatchNotify::COMPAT);
        self.send(link, WATCH_NOTIFY, versions, 0, front, data);
    }

    /// `Notify::maybe_complete_notify`.
    fn maybe_complete(&mut self, oid: &[u8], id: u64, timed_out: bool) {
        let Some(watched) = self.watched.get_mut(oid) else {
            return;
        };
        let done = |n: &Notify| n.waits_for.is_empty() || timed_out;
        if !watched.notifies.get(&id).is_some_and(done) {
            return;
        }
        let n = watched.notifies.remove(&id).expect("looked at before");
        let mut data = Vec::new();
        data.put_list(n.replies.iter(), |out, ((gid, cookie), reply)| {
            out.put_u64(*gid);
            out.put_u64(*cookie);
            out.put_blob(reply);
        });
        data.put_list(n.waits_for.iter(), |out, (gid, cookie)| {
            out.put_u64(*gid);
            out.put_u64(*cookie);
        });
        let code = if n.waits_for.is_empty() {
            0
        } else {
            -ETIMEDOUT
        };
        let front = message(NotifyEvent::Complete, n.cookie, id, &[], code, n.gid);
        self.send_notify(n.link, &front, data);
    }

    fn drop_watcher(&mut self, oid: &[u8], name: Name) -> Option<Watcher> {
        let watched = self.watched.get_mut(oid)?;
        let watcher = watched.watchers.remove(&name)?;
        let mut freed = Vec::new();
        for (&id, n) in &mut watched.notifies {
            if n.waits_for.remove(&name) {
                freed.push(id);
            }
        }
        for id in freed {
            self.maybe_complete(oid, id, false);
        }
        Some(watcher)
    }

    /// Looks for watchers and notifies whose time is over.
    pub(crate) fn look_at_watches(&mut self) {
        let now = self.clock;
        let oids: Vec<Vec<u8>> = self.watched.keys().cloned().collect();
        for oid in oids {
            let watched = &self.watched[&oid];
            let late = |w: &Watcher| w.deadline <= now;
            let names: Vec<Name> = watched
                .watchers
                .iter()
                .filter(|(_, w)| late(w))
                .map(|(&name, _)| name)
                .collect();
            let ids: Vec<u64> = watched
                .notifies
                .iter()
                .filter(|(_, n)| n.deadline <= now)
                .map(|(&id, _)| id)
                .collect();
            for name in names {
                self.note("watch over", name.0, name.1);
                let dropped = self.drop_watcher(&oid, name);
                if let Some(link) = dropped.and_then(|w| w.link) {
                    let front = message(NotifyEvent::Disconnect, name.1, 0, &[], 0, 0);
                    self.send_notify(link, &front, Vec::new());
                }
            }
            for id in ids {
                self.maybe_complete(&oid, id, true);
            }
        }
    }

    /// A connection to an OSD is gone: its watchers have until their timeout to come back.
    pub(crate) fn watchers_lost(&mut self, link: u64) {
        let now = self.clock;
        for watched in self.watched.values_mut() {
            for w in watched.watchers.values_mut() {
                if w.link == Some(link) {
                    w.link = None;
                    w.deadline = now + u64::from(w.timeout) * SECOND;
                }
            }
        }
    }

    /// A new primary knows the watchers, none of which is connected, and no notifies.
    pub(crate) fn watches_moved(&mut self, osd: usize, pg: u32) {
        let epoch = self.osds[osd].epoch;
        let now = self.clock;
        let maps = &self.maps;
        let map = maps.map(epoch);
        for (oid, watched) in &mut self.watched {
            let hash = map.object_to_pg(super::maps::POOL, b"", b"", oid);
            if hash.is_none_or(|h| maps.fold(h.seed, epoch) != pg) {
                continue;
            }
            watched.notifies.clear();
            for w in watched.watchers.values_mut() {
                w.link = None;
                w.deadline = now + u64::from(w.timeout) * SECOND;
            }
        }
    }
}

fn message(
    event: NotifyEvent,
    cookie: u64,
    notify_id: u64,
    payload: &[u8],
    return_code: i32,
    notifier: u64,
) -> Vec<u8> {
    let mut front = Vec::new();
    MWatchNotify {
        opcode: event as u8,
        cookie,
        version: 0,
        notify_id,
        payload,
        return_code,
        notifier,
    }
    .encode(&mut front);
    front
}
