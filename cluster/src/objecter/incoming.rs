//! Messages from OSDs.

use super::Objecter;
use super::msg::{self, BackoffOp, MOsdBackoff, MOsdOpReply, MWatchNotify, OsdFlags, Redirect};
use super::placement::Placement;
use super::request::{
    Completions, EAGAIN, Incoming, MessageError, OpError, OpReply, OpResults, SessionId,
};
use super::session::{Backoffs, Link};
use super::table::{NONE, Owner};
use super::target::{Recalc, Target};
use crate::codec::{DecodeError, Now};

impl<M: Placement> Objecter<M> {
    /// Takes a message that a session received. Kinds that are not for the objecter, maps among
    /// them, are left alone.
    pub fn message(
        &mut self,
        id: SessionId,
        m: &Incoming<'_>,
        now: Now,
        sink: &mut dyn Completions,
    ) -> Result<(), MessageError> {
        self.now = now;
        let Some(key) = self.session_key(id) else {
            return Ok(());
        };
        if self.sessions[key as usize].link != Link::Open {
            return Ok(());
        }
        let done = match m.kind {
            msg::OSD_OPREPLY => self.reply(key, m, sink),
            msg::OSD_BACKOFF => return self.backoff(key, m),
            msg::WATCH_NOTIFY => MWatchNotify::decode(m.version, m.front).map(|n| {
                self.watch_notify(&n, m.data, sink);
            }),
            _ => return Ok(()),
        };
        done.map_err(|source| MessageError::Decode {
            osd: id.osd,
            source,
        })
    }

    /// `Objecter::handle_osd_op_reply`.
    fn reply(
        &mut self,
        key: u32,
        m: &Incoming<'_>,
        sink: &mut dyn Completions,
    ) -> Result<(), DecodeError> {
        let reply = MOsdOpReply::decode(m.version, m.front)?;
        self.sessions[key as usize].failures = 0;
        let slot = self.ops.by_tid(m.tid);
        let Some(slot) = slot.filter(|&slot| self.is_answered_by(slot, key, &reply)) else {
            self.stats.stray_replies += 1;
            return Ok(());
        };
        if let Some(redirect) = &reply.redirect {
            self.follow(slot, redirect, sink);
            return Ok(());
        }
        if reply.result == -EAGAIN {
            // A replica that cannot serve the read now. The primary can.
            let target = &mut self.ops[slot].target;
            let replicas = OsdFlags::BALANCE_READS | OsdFlags::LOCALIZE_READS;
            target.flags = target.flags.without(replicas);
            target.forget();
            self.submit_again(slot, sink);
            return Ok(());
        }
        let Some(results) = OpResults::new(&reply, m.data) else {
            return Err(DecodeError::malformed("osd_op_reply data"));
        };
        self.stats.replies += 1;
        let owner = self.forget(slot);
        let outcome = OpReply {
            result: OpError::from_result(reply.result),
            version: reply.user_version,
            results,
        };
        match owner {
            Owner::User { token } => sink.op_done(token, outcome),
            _ => self.linger_op_done(owner, outcome, sink),
        }
        Ok(())
    }

    /// Whether a reply is to the last attempt of a request, and from the OSD that it went to.
    fn is_answered_by(&self, slot: u32, key: u32, reply: &MOsdOpReply<'_>) -> bool {
        let op = &self.ops[slot];
        // An OSD that does not know says -1.
        let attempt = reply.retry_attempt;
        op.session == key
            && op.attempts > 0
            && (attempt < 0 || i64::from(attempt) == i64::from(op.attempts) - 1)
    }

    fn follow(&mut self, slot: u32, redirect: &Redirect<'_>, sink: &mut dyn Completions) {
        let target = &mut self.ops[slot].target;
        let to = &redirect.locator;
        let name = if redirect.object.is_empty() {
            target.object.name.clone()
        } else {
            redirect.object.into()
        };
        target.object = Target {
            pool: to.pool,
            name,
            namespace: to.namespace.into(),
            key: to.key.into(),
            pg: None,
        };
        target.flags |= OsdFlags::REDIRECTED | OsdFlags::IGNORE_CACHE | OsdFlags::IGNORE_OVERLAY;
        target.forget();
        self.submit_again(slot, sink);
    }

    /// Sends a request to where its target is now, under a new transaction id. It keeps its place
    /// in the order.
    fn submit_again(&mut self, slot: u32, sink: &mut dyn Completions) {
        self.unassign(slot);
        self.ops.renumber(slot);
        let recalc = self.mapper.calc(&mut self.ops[slot].target, false);
        self.assign(slot);
        match recalc {
            Recalc::PoolEio => self.fail(slot, OpError::PoolEio, sink),
            Recalc::PoolDne => self.ask_for_pool(slot),
            Recalc::NoAction | Recalc::NeedResend => {}
        }
    }

    /// `Objecter::handle_osd_backoff`.
    fn backoff(&mut self, key: u32, m: &Incoming<'_>) -> Result<(), MessageError> {
        let session = &mut self.sessions[key as usize];
        let osd = session.id.osd;
        let b =
            MOsdBackoff::decode(m.front).map_err(|source| MessageError::Decode { osd, source })?;
        match BackoffOp::from_wire(b.op) {
            Some(BackoffOp::Block) => {
                let limit = Backoffs::LIMIT;
                let ack = session.backoffs.block(&b);
                let ack = ack.filter(|_| session.acks.len() < limit);
                let Some(ack) = ack else {
                    return Err(MessageError::TooManyBackoffs { osd, limit });
                };
                session.acks.push_back(ack);
                self.mark_ready(key);
            }
            Some(BackoffOp::Unblock) => {
                if session.backoffs.unblock(b.id) {
                    self.send_range(key, &b);
                }
            }
            // Only clients acknowledge; unknown operations are from the future.
            Some(BackoffOp::AckBlock) | None => {}
        }
        Ok(())
    }

    /// Sends what a lifted backoff covered. The OSD has dropped what it had received of it.
    fn send_range(&mut self, key: u32, b: &MOsdBackoff<'_>) {
        let mut at = self.sessions[key as usize].ops.head;
        while at != NONE {
            let next = self.sessions[key as usize].ops.next(&self.ops, at);
            let target = &self.ops[at].target;
            if target.spg == b.pgid && target.hobject().within(&b.begin, &b.end) {
                self.send_later(at);
            }
            at = next;
        }
    }
}
