//! Which requests are taken, held back, dropped and refused (`PG::can_discard_op`,
//! `PrimaryLogPG::do_request` and the first half of `PrimaryLogPG::do_op`).

use crate::codec::Now;
use crate::mon::kind;
use crate::msgr::Message;
use crate::objecter::msg::{
    BackoffOp, HObjectRef, MOsdBackoff, MOsdOp, NOSNAP, OSD_BACKOFF, OSD_OP, OsdFlags, PgId,
};
use crate::osdmap::pool::flag;

use super::super::caps::OsdRequest;
use super::super::faults::{Action, When};
use super::super::limits;
use super::super::outbox::{Link, Outbox};
use super::super::pg::{bounds, contains};
use super::super::session::Parked;
use super::super::store::Store;
use super::info::{EINVAL, OpInfo, Unfit};
use super::perform::object_key;
use super::reply::{Reply, Way};
use super::{Osd, OsdEvent};

const EPERM: i32 = 1;
const EIO: i32 = 5;
const ENAMETOOLONG: i32 = 36;
/// `OSD_WRITETOOBIG`.
const EMSGSIZE: i32 = 90;
/// `EBLOCKLISTED` is `ESHUTDOWN`.
const EBLOCKLISTED: i32 = 108;
const EUSERS: i32 = 87;
const ENOBUFS: i32 = 105;

/// Requests that wait for one pg. Further ones are backed off, where the client knows how.
const MAX_WAITING: usize = 1024;
/// `CEPH_OSD_FLAG_PARALLELEXEC`.
const PARALLELEXEC: OsdFlags = OsdFlags(0x200);

impl<S: Store> Osd<S> {
    pub fn message(&mut self, link: Link, m: &Message<'_>, now: Now, out: &mut Outbox) {
        if self.failed || !self.sessions.contains_key(&link) {
            return;
        }
        self.commit(now, out);
        match m.header.kind {
            OSD_OP => self.request(link, m, false, now, out),
            OSD_BACKOFF => match MOsdBackoff::decode(m.front) {
                Ok(ack) if ack.op == BackoffOp::AckBlock as u8 => {
                    if let Some(session) = self.sessions.get_mut(&link) {
                        session.acked(&ack);
                    }
                }
                _ => self.reset(link, now, out),
            },
            kind::COMMAND => self.tell(link, m, now, out),
            // Pings, and what only daemons send to each other.
            _ => {}
        }
    }

    /// A request as it came, or for another time after a fault held it back.
    pub(super) fn request(
        &mut self,
        link: Link,
        m: &Message<'_>,
        struck: bool,
        now: Now,
        out: &mut Outbox,
    ) {
        let Ok(op) = MOsdOp::decode(m.header.version, m.front) else {
            return self.reset(link, now, out);
        };
        let carried = op.ops.iter().map(|o| u64::from(o.payload_len)).sum::<u64>();
        if carried > m.data.len() as u64 || op.ops.is_empty() {
            return self.reset(link, now, out);
        }
        let epoch = self.epoch();
        if !struck && !self.behind.is_empty() {
            let key = (link, object_key(&op.hobject()));
            if self.behind.contains_key(&key) {
                if self.park(link, m, now, out)
                    && let Some(behind) = self.behind.get_mut(&key)
                {
                    behind.push_back(Parked::new(link, m, false));
                }
                return;
            }
        }
        if !struck && !self.faults.is_empty() && self.strike(link, m, &op, now, out) {
            return;
        }
        let Some(session) = self.sessions.get(&link) else {
            return;
        };
        if op.epoch > epoch || !session.waiting.is_empty() {
            if self.park(link, m, now, out)
                && let Some(session) = self.sessions.get_mut(&link)
            {
                session.waiting.push_back(Parked::new(link, m, true));
            }
            if op.epoch > self.wanted.max(epoch) {
                self.wanted = op.epoch;
                self.events.push_back(OsdEvent::WantMap { epoch: op.epoch });
            }
            return;
        }
        self.admit(link, m, &op, now, out);
    }

    /// Accounts for a request that has to wait. A client that has too many is disconnected.
    pub(super) fn park(&mut self, link: Link, m: &Message<'_>, now: Now, out: &mut Outbox) -> bool {
        let size = m.front.len() + m.data.len();
        let fits = self.sessions.get_mut(&link).is_some_and(|s| s.park(size));
        if !fits {
            self.reset(link, now, out);
        }
        fits
    }

    /// It waits no longer.
    pub(super) fn unpark(&mut self, parked: &Parked) -> bool {
        match self.sessions.get_mut(&parked.link) {
            Some(session) => {
                session.unpark(parked.size());
                true
            }
            None => false,
        }
    }

    /// Requests of epochs that were not known, up to the first whose epoch still is not.
    pub(super) fn take_waiting_for_map(&mut self, now: Now, out: &mut Outbox) {
        let links: Vec<Link> = self
            .sessions
            .iter()
            .filter(|(_, s)| !s.waiting.is_empty())
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            let Some(session) = self.sessions.get_mut(&link) else {
                continue;
            };
            let mut waiting = std::mem::take(&mut session.waiting);
            while let Some(parked) = waiting.pop_front() {
                let m = parked.message();
                let Ok(op) = MOsdOp::decode(m.header.version, m.front) else {
                    break;
                };
                if op.epoch > self.epoch() {
                    waiting.push_front(parked);
                    break;
                }
                if !self.unpark(&parked) {
                    break;
                }
                self.admit(link, &m, &op, now, out);
            }
            if let Some(session) = self.sessions.get_mut(&link) {
                session.waiting = waiting;
            }
        }
    }

    /// Requests that waited for a pg.
    pub(super) fn take_waiting_for_pg(&mut self, id: PgId, now: Now, out: &mut Outbox) {
        let Some(pg) = self.pgs.get_mut(&id).filter(|p| p.active()) else {
            return;
        };
        for parked in std::mem::take(&mut pg.waiting) {
            if !self.unpark(&parked) {
                continue;
            }
            let m = parked.message();
            if let Ok(op) = MOsdOp::decode(m.header.version, m.front) {
                self.admit(parked.link, &m, &op, now, out);
            }
        }
    }

    /// `PG::can_discard_op`, and what an OSD does not have a pg for.
    fn discards(&self, op: &MOsdOp<'_>) -> bool {
        let id = op.pgid.pg;
        let pool = self.map.as_ref().and_then(|m| m.pool(id.pool));
        let (Some(pool), Some(pg)) = (pool, self.pgs.get(&id)) else {
            return true;
        };
        !pg.acting
            || op.epoch < pg.primary_since
            || op.epoch < pool.last_force_op_resend
            || op.epoch < pg.split
    }

    fn admit(&mut self, link: Link, m: &Message<'_>, op: &MOsdOp<'_>, now: Now, out: &mut Outbox) {
        self.share_map(link, op.epoch, now, out);
        if self.discards(op) {
            return;
        }
        let epoch = self.epoch();
        let id = op.pgid.pg;
        let (Some(pg), Some(session)) = (self.pgs.get_mut(&id), self.sessions.get_mut(&link))
        else {
            return;
        };
        let range = bounds(id, pg.pg_num);
        let can_back_off = session.can_back_off();
        if can_back_off && session.held_back(id, &range.0) {
            return;
        }
        if !pg.active() {
            let full = pg.waiting.len() >= MAX_WAITING;
            if can_back_off && (full || self.config.backoff_on_peering) {
                session.block(link, id, epoch, range, out);
            } else if full {
                self.reset(link, now, out);
            } else if self.park(link, m, now, out)
                && let Some(pg) = self.pgs.get_mut(&id)
            {
                pg.waiting.push_back(Parked::new(link, m, true));
            }
            return;
        }
        self.judge(link, m, op, now, out);
    }

    pub(super) fn refuse(
        &mut self,
        link: Link,
        m: &Message<'_>,
        op: &MOsdOp<'_>,
        errno: i32,
        now: Now,
        out: &mut Outbox,
    ) {
        let way = Way {
            link,
            tid: m.header.tid,
            after: self.after_object(&op.hobject()),
            now,
        };
        self.answer(way, op, Reply::error(op, -errno), None, None, out);
    }

    /// The checks of `PrimaryLogPG::do_op`, in its order.
    fn judge(&mut self, link: Link, m: &Message<'_>, op: &MOsdOp<'_>, now: Now, out: &mut Outbox) {
        let Some(map) = self.map.clone() else {
            return;
        };
        let id = op.pgid.pg;
        let head = HObjectRef {
            snap: NOSNAP,
            ..op.hobject()
        };
        let (Some(pool), Some(pg)) = (map.pool(id.pool), self.pgs.get(&id)) else {
            return;
        };
        let marked_full = pg.marked_full;
        if !contains(id.seed, head.hash, pool.pg_num) {
            return;
        }
        let Some(session) = self.sessions.get(&link) else {
            return;
        };
        if session.can_back_off() && session.held_back(id, &head) {
            return;
        }
        if op.flags.has(PARALLELEXEC) {
            return self.refuse(link, m, op, EINVAL, now, out);
        }
        let info = match OpInfo::of(op, m.data, self.config.method) {
            Ok(info) => info,
            Err(Unfit::Errno(errno)) => return self.refuse(link, m, op, errno, now, out),
            Err(Unfit::Malformed) => return self.reset(link, now, out),
        };
        let ask = OsdRequest {
            pool: map.pool_name(id.pool).unwrap_or_default(),
            applications: &pool.application_metadata,
            namespace: head.namespace,
            object: if head.key.is_empty() {
                head.name
            } else {
                head.key
            },
            read: info.reads,
            write: info.writes,
            classes: &info.calls,
            peer: session.peer.addr().addr.map(|a| a.ip()),
        };
        if !session.caps.allows(&ask) {
            return self.refuse(link, m, op, EPERM, now, out);
        }
        if info.of_pg {
            return self.pg_op(link, m, op, now, out);
        }
        if op.oid.len() > limits::NAME
            || op.locator.key.len() > limits::NAME
            || op.locator.namespace.len() > limits::NAMESPACE
        {
            return self.refuse(link, m, op, ENAMETOOLONG, now, out);
        }
        if op.oid.is_empty() {
            return self.refuse(link, m, op, EINVAL, now, out);
        }
        if map.is_blocklisted(&session.peer.addrs) {
            return self.refuse(link, m, op, EBLOCKLISTED, now, out);
        }
        // Whoever sent it did not know that the pool is full, and sends it again.
        let full_flags = OsdFlags::FULL_TRY | OsdFlags::FULL_FORCE;
        if info.write_ordered() && !op.flags.has(full_flags) && marked_full > op.epoch {
            return;
        }
        if pool.has_flag(flag::EIO) {
            if !op.flags.has(OsdFlags::SUPPORTS_POOL_EIO) {
                self.refuse(link, m, op, EIO, now, out);
            }
            return;
        }
        if info.may_write() && m.data.len() > limits::WRITE {
            return self.refuse(link, m, op, EMSGSIZE, now, out);
        }
        if info.may_write() && self.answer_dup(link, m, op, now, out) {
            return;
        }
        if info.watches && !self.may_watch(link) {
            return self.refuse(link, m, op, EUSERS, now, out);
        }
        if info.has_notify && self.notify_bytes() >= limits::NOTIFIES {
            return self.refuse(link, m, op, ENOBUFS, now, out);
        }
        self.perform(link, m, op, &info, now, out);
    }

    /// What a fault rule does to a request; true when it has dealt with it.
    fn strike(
        &mut self,
        link: Link,
        m: &Message<'_>,
        op: &MOsdOp<'_>,
        now: Now,
        out: &mut Outbox,
    ) -> bool {
        let Some((rule, action)) = self.faults.strike(When::Before, op, m.data) else {
            return false;
        };
        match action {
            Action::Drop => {}
            Action::Reset => self.reset(link, now, out),
            Action::Error(errno) => self.refuse(link, m, op, errno, now, out),
            Action::Delay(_) | Action::Stall => {
                if !self.park(link, m, now, out) {
                    return true;
                }
                let key = (link, object_key(&op.hobject()));
                self.behind.entry(key).or_default();
                let parked = Parked::new(link, m, true);
                if let Action::Delay(by) = action {
                    self.last_delayed += 1;
                    let at = (now.after(by), self.last_delayed);
                    self.delayed.insert(at, parked);
                } else {
                    self.stalled.push((rule, parked));
                }
            }
        }
        true
    }

    /// Requests whose fault is over, and those behind them.
    pub(super) fn go_on_after_faults(&mut self, now: Now, out: &mut Outbox) {
        let mut free = Vec::new();
        let released = self.faults.take_released();
        if !released.is_empty() {
            let (go, stay) = std::mem::take(&mut self.stalled)
                .into_iter()
                .partition::<Vec<_>, _>(|(rule, _)| released.contains(rule));
            self.stalled = stay;
            free.extend(go.into_iter().map(|(_, parked)| parked));
        }
        while let Some(entry) = self.delayed.first_entry()
            && entry.key().0 <= now.mono
        {
            free.push(entry.remove());
        }
        for parked in free {
            if !self.unpark(&parked) {
                continue;
            }
            let m = parked.message();
            let Ok(op) = MOsdOp::decode(m.header.version, m.front) else {
                continue;
            };
            let key = (parked.link, object_key(&op.hobject()));
            let behind = self.behind.remove(&key).unwrap_or_default();
            self.request(parked.link, &m, true, now, out);
            // One of these may be struck in turn; the rest stays behind it then.
            for next in behind {
                if self.unpark(&next) {
                    self.request(next.link, &next.message(), next.struck, now, out);
                }
            }
        }
    }
}
