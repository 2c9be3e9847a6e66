//! Carrying out a request, once (`PrimaryLogPG::execute_ctx`).

use smallvec::SmallVec;

use crate::codec::Now;
use crate::msgr::Message;
use crate::objecter::msg::{
    EVersion, HObject, HObjectRef, MOsdOp, NOSNAP, OpCode, OsdFlags, PgId, ReqId, WatchOp,
};

use super::super::exec::{self, ExecEnv, Outcome, Request};
use super::super::faults::{Action, When};
use super::super::limits;
use super::super::outbox::{Link, Outbox, Peer};
use super::super::store::{LogEntry, Seq, Store, StoreError, Transaction};
use super::info::OpInfo;
use super::reply::{BOTH_ACKS, Reply, Way};
use super::{Effects, Osd};

const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EOVERFLOW: i32 = 75;
const ETIMEDOUT: i32 = 110;

/// A hash of an object's names, whatever its snapshot.
pub(super) fn object_key(oid: &HObjectRef<'_>) -> u64 {
    // FNV-1a over words: quick, and collisions are harmless.
    let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ (oid.pool as u64) << 32 ^ u64::from(oid.hash);
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    for name in [oid.namespace, oid.key, oid.name] {
        mix(name.len() as u64);
        for chunk in name.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix(u64::from_le_bytes(word));
        }
    }
    hash
}

/// `MOSDOp::get_reqid`.
fn reqid(op: &MOsdOp<'_>, peer: &Peer, tid: u64) -> ReqId {
    if op.reqid.name != Default::default() || op.reqid.tid != 0 {
        return op.reqid;
    }
    ReqId {
        name: peer.name,
        tid,
        inc: op.client_inc as i32,
    }
}

impl<S: Store> Osd<S> {
    /// The newest transaction on an object, when that is not durable.
    pub(super) fn after_object(&self, oid: &HObjectRef<'_>) -> Seq {
        if self.dirty.is_empty() {
            return 0;
        }
        self.dirty.get(&object_key(oid)).copied().unwrap_or(0)
    }

    /// Applies a transaction of a pg, on one object.
    pub(super) fn apply(
        &mut self,
        id: PgId,
        head: &HObjectRef<'_>,
        txn: Transaction<'_>,
    ) -> Result<Seq, StoreError> {
        let seq = self.store.apply(id, txn)?;
        self.note_applied(id, head, seq);
        Ok(seq)
    }

    fn note_applied(&mut self, id: PgId, head: &HObjectRef<'_>, seq: Seq) {
        if seq > self.committed {
            let key = object_key(head);
            self.dirty.insert(key, seq);
            self.dirty_order.push_back((seq, key));
        }
        if let Some(pg) = self.pgs.get_mut(&id) {
            pg.last_seq = seq;
        }
    }

    /// A request that was answered before gets the same answer, once that is durable.
    pub(super) fn answer_dup(
        &mut self,
        link: Link,
        m: &Message<'_>,
        op: &MOsdOp<'_>,
        now: Now,
        out: &mut Outbox,
    ) -> bool {
        let (Some(pg), Some(session)) = (self.pgs.get(&op.pgid.pg), self.sessions.get(&link))
        else {
            return false;
        };
        let reqid = reqid(op, &session.peer, m.header.tid);
        let Some((entry, seq)) = pg.dups.find(&reqid) else {
            return false;
        };
        let mut ops: SmallVec<[(i32, u32); 4]> = SmallVec::new();
        let mut buffer = self.buffers.take();
        let wants = op.flags.has(OsdFlags::RETURNVEC);
        for (rval, bytes) in &entry.returns {
            ops.push((*rval, if wants { bytes.len() as u32 } else { 0 }));
            if wants {
                buffer.vec().extend_from_slice(bytes);
            }
        }
        let data = self.buffers.give(buffer);
        let way = Way {
            link,
            tid: m.header.tid,
            after: (*seq).max(self.after_object(&op.hobject())),
            now,
        };
        let reply = Reply {
            acks: op.flags & BOTH_ACKS,
            ..Reply::of(entry.result, &ops).versions(entry.version, entry.user_version)
        };
        self.answer(way, op, reply, data, None, out);
        true
    }

    pub(super) fn perform(
        &mut self,
        link: Link,
        m: &Message<'_>,
        op: &MOsdOp<'_>,
        info: &OpInfo<'_>,
        now: Now,
        out: &mut Outbox,
    ) {
        let id = op.pgid.pg;
        let head = HObjectRef {
            snap: NOSNAP,
            ..op.hobject()
        };
        let (Some(map), Some(session)) = (&self.map, self.sessions.get(&link)) else {
            return;
        };
        let (Some(pg), Some(pool)) = (self.pgs.get_mut(&id), map.pool(id.pool)) else {
            return;
        };
        let epoch = map.epoch();
        let version = pg.next_version(epoch);
        let (last_update, last_user_version) = (pg.last_update, pg.last_user_version);
        let reqid = reqid(op, &session.peer, m.header.tid);
        let request = Request {
            pg: id,
            peer: &session.peer,
            reqid,
            head,
            op,
            data: m.data,
            flags: op.flags,
            mtime: op.mtime,
            version,
            last_user_version,
            now,
        };
        let mut buffer = self.buffers.take();
        let random = &mut self.random;
        let mut env = ExecEnv {
            method: self.config.method,
            random: &mut |bytes| random.fill(bytes),
            pool,
            removed_snaps: map.removed_snaps_queue().get(&id.pool),
            trimmed_snaps: Some(&pg.trimmed),
            releases: (map.require_osd_release(), map.require_min_compat_client()),
        };
        let mut outcome = exec::execute(&mut self.store, &mut env, &request, buffer.vec());
        if outcome.result == -EAGAIN {
            // The client is to send it again, when a map tells it to.
            self.buffers.give(buffer);
            return;
        }
        if info.has_ping && outcome.result >= 0 {
            for (i, o) in op.ops.iter().enumerate() {
                let w = o.watch();
                if o.code == OpCode::WATCH
                    && w.op == WatchOp::Ping as u8
                    && !pg.watches.ping(&head, (reqid.name, w.cookie), now.mono)
                {
                    outcome.result = -ETIMEDOUT;
                    if let Some(rval) = outcome.ops.get_mut(i) {
                        rval.0 = -ETIMEDOUT;
                    }
                    break;
                }
            }
        }
        let writes = info.may_write();
        let mut log = writes;
        if writes && outcome.result >= 0 && outcome.txn.is_some() {
            log = bound_returns(op, &mut outcome, buffer.vec());
        }
        if outcome.result < 0 {
            outcome.txn = None;
            outcome.effects.clear();
        }
        let mut notify_ids = std::collections::VecDeque::new();
        if info.has_notify && outcome.result >= 0 {
            let next = &mut self.next_notify;
            number_notifies(op, &mut outcome, buffer.vec(), || {
                let n = u64::from(epoch) << 32 | u64::from(*next);
                *next = next.wrapping_add(1);
                notify_ids.push_back(n);
                n
            });
        }
        let effects = (!outcome.effects.is_empty()).then(|| {
            Box::new(Effects {
                pg: id,
                interval: pg.interval_since,
                oid: HObject::from(head),
                peer: reqid.name,
                addr: session.peer.addr(),
                user_version: outcome.user_version,
                notify_ids,
                list: std::mem::take(&mut outcome.effects),
                of_write: log && outcome.txn.is_some(),
            })
        });

        let modified = outcome.txn.is_some();
        let (result, object_version) = (outcome.result, outcome.version);
        let user_version = outcome.user_version;
        let mut applied = None;
        if log {
            pg.served.writes += 1;
            pg.served.written_bytes += m.data.len() as u64;
            let entry = LogEntry {
                version: if modified { object_version } else { version },
                user_version: if modified { user_version } else { 0 },
                reqid,
                result,
                returns: returns(op, &outcome, buffer.vec()),
            };
            let mut txn = outcome.txn.take().unwrap_or_default();
            txn.log = Some(entry.clone());
            let done = self.store.apply(id, txn);
            if done.is_ok() {
                pg.last_update = entry.version;
                pg.last_user_version = last_user_version.max(entry.user_version);
            }
            applied = Some((done, entry));
        } else {
            pg.served.reads += 1;
            pg.served.read_bytes += buffer.vec().len() as u64;
        }

        let ops = outcome.ops;
        match applied {
            Some((Ok(seq), entry)) => {
                pg.dups.add(entry, seq);
                self.note_applied(id, &head, seq);
            }
            Some((Err(error), _)) => {
                self.buffers.give(buffer);
                if !error.is_full() {
                    return self.fail(error, out);
                }
                // Not logged: when there is room again, the same request may be carried out.
                let way = Way {
                    link,
                    tid: m.header.tid,
                    after: self.after_object(&head),
                    now,
                };
                let reply = Reply::error(op, -libc::ENOSPC);
                return self.answer(way, op, reply, None, None, out);
            }
            None => {}
        }

        let mut reply = Reply::of(result, &ops);
        if modified {
            reply = reply.versions(object_version, user_version);
        } else if result == -ENOENT {
            if !writes && self.is_missing(id, op, &head) {
                reply.acks = op.flags & BOTH_ACKS;
            } else {
                reply = reply.enoent(last_update, last_user_version);
            }
        } else if result >= 0 && !log {
            reply = reply.versions(EVersion::default(), user_version);
        }
        let way = Way {
            link,
            tid: m.header.tid,
            after: self.after_object(&head),
            now,
        };
        let data = self.buffers.give(buffer);
        if !self.faults.is_empty()
            && let Some((_, action)) = self.faults.strike(When::After, op, m.data)
        {
            match action {
                Action::Reset => {
                    self.effects_only(way, effects, out);
                    self.reset(link, now, out);
                }
                Action::Error(errno) => {
                    let reply = Reply::error(op, -errno);
                    self.answer(way, op, reply, None, effects, out);
                }
                _ => self.effects_only(way, effects, out),
            }
            return;
        }
        self.answer(way, op, reply, data, effects, out);
    }

    /// A read failed because there is no such object; then the answer tells no version.
    fn is_missing(&mut self, id: PgId, op: &MOsdOp<'_>, head: &HObjectRef<'_>) -> bool {
        match self.store.info(id, head) {
            Ok(Some(info)) => info.whiteout || op.snap_id != NOSNAP,
            _ => true,
        }
    }
}

/// A write may return data only if its request says that the client expects that, and little of
/// it. False when it returns too much and therefore fails, unlogged.
fn bound_returns(op: &MOsdOp<'_>, outcome: &mut Outcome<'_>, bytes: &mut Vec<u8>) -> bool {
    if !op.flags.has(OsdFlags::RETURNVEC) {
        outcome.result = 0;
        outcome.ops.iter_mut().for_each(|(_, len)| *len = 0);
        bytes.clear();
        return true;
    }
    let mut at = 0;
    let mut fits = outcome.ops.len() <= limits::RETURNS;
    for (rval, len) in &mut outcome.ops {
        let end = at + *len as usize;
        if *len > limits::WRITE_REPLY {
            bytes.drain(at..end);
            (*rval, *len) = (-EOVERFLOW, 0);
            fits = false;
        } else {
            at = end;
        }
    }
    if !fits {
        outcome.result = -EOVERFLOW;
        outcome.txn = None;
    }
    fits
}

/// What a repetition of the request must be told of each operation: of a failed one how far it came,
/// of one that asked for it what it returned, as long as that is little.
fn returns(op: &MOsdOp<'_>, outcome: &Outcome<'_>, bytes: &[u8]) -> Vec<(i32, Vec<u8>)> {
    let wants = op.flags.has(OsdFlags::RETURNVEC);
    if outcome.result >= 0 && !wants || outcome.ops.len() > limits::RETURNS {
        return Vec::new();
    }
    let mut at = 0;
    let mut part = |len: u32| {
        let end = at + len as usize;
        let part = bytes.get(at..end).unwrap_or_default();
        at = end;
        if wants && len <= limits::WRITE_REPLY {
            part.to_vec()
        } else {
            Vec::new()
        }
    };
    let ops = outcome.ops.iter();
    ops.map(|&(rval, len)| (rval, part(len))).collect()
}

/// A notify returns its id (`PrimaryLogPG::do_osd_ops`), which is the OSD's to give.
fn number_notifies(
    op: &MOsdOp<'_>,
    outcome: &mut Outcome<'_>,
    bytes: &mut Vec<u8>,
    mut next: impl FnMut() -> u64,
) {
    let mut at = 0;
    for (o, (rval, len)) in op.ops.iter().zip(&mut outcome.ops) {
        let end = at + *len as usize;
        if o.code == OpCode::NOTIFY && *rval >= 0 && end <= bytes.len() {
            bytes.splice(at..end, next().to_le_bytes());
            *len = 8;
            at += 8;
        } else {
            at = end;
        }
    }
}
