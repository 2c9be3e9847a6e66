//! Answers: how they are encoded, and until when they are held back.

use crate::codec::Now;
use crate::msgr::MsgHeader;
use crate::objecter::msg::{
    EVersion, MOsdOp, MOsdOpReply, OSD_OPREPLY, OpCode, OsdFlags, OsdOp, WireList,
};
use crate::payload::Payload;
use smallvec::SmallVec;

use super::super::outbox::{Link, Outbox};
use super::super::store::{Seq, Store};
use super::{Effects, Held, Osd};

/// What an answer says besides the data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reply<'r> {
    pub result: i32,
    /// `ACK` and `ONDISK`, as far as it has them.
    pub acks: OsdFlags,
    pub replay_version: EVersion,
    pub bad_replay_version: EVersion,
    pub user_version: u64,
    /// Per operation: its result and how many bytes it returns. Shorter when none returned anything.
    pub ops: &'r [(i32, u32)],
}

pub(super) const BOTH_ACKS: OsdFlags = OsdFlags(OsdFlags::ACK.0 | OsdFlags::ONDISK.0);

impl<'r> Reply<'r> {
    /// `PrimaryLogPG::execute_ctx`.
    pub(super) fn of(result: i32, ops: &'r [(i32, u32)]) -> Reply<'r> {
        Reply {
            result,
            acks: BOTH_ACKS,
            replay_version: EVersion::default(),
            bad_replay_version: EVersion::default(),
            user_version: 0,
            ops,
        }
    }

    /// `OSDService::reply_op_error`.
    pub(super) fn error(op: &MOsdOp<'_>, result: i32) -> Reply<'static> {
        Reply {
            acks: op.flags & BOTH_ACKS,
            ..Reply::of(result, &[])
        }
    }

    /// `MOSDOpReply::set_reply_versions`.
    pub(super) fn versions(self, version: EVersion, user_version: u64) -> Reply<'r> {
        let mut bad = version;
        if user_version != 0 {
            bad.version = user_version;
        }
        Reply {
            replay_version: version,
            bad_replay_version: bad,
            user_version,
            ..self
        }
    }

    /// `MOSDOpReply::set_enoent_reply_versions`.
    pub(super) fn enoent(self, last_update: EVersion, last_user_version: u64) -> Reply<'r> {
        Reply {
            bad_replay_version: last_update,
            user_version: last_user_version,
            ..self
        }
    }

    fn encode(&self, op: &MOsdOp<'_>, epoch: u32, out: &mut Vec<u8>) {
        let mut ops: SmallVec<[OsdOp; 4]> = SmallVec::new();
        let mut rvals: SmallVec<[i32; 4]> = SmallVec::new();
        for (i, mut o) in op.ops.iter().enumerate() {
            let (rval, len) = self.ops.get(i).copied().unwrap_or_default();
            o.payload_len = len;
            ops.push(o);
            rvals.push(rval);
        }
        MOsdOpReply {
            oid: op.oid,
            pgid: op.pgid.pg,
            flags: MOsdOpReply::flags_for(op.flags, self.acks),
            result: self.result,
            bad_replay_version: self.bad_replay_version,
            epoch,
            ops: WireList::Native(&ops),
            retry_attempt: op.retry_attempt,
            rvals: WireList::Native(&rvals),
            replay_version: self.replay_version,
            user_version: self.user_version,
            redirect: None,
            trace: [0; 24],
        }
        .encode(out);
    }
}

/// Where an answer goes, and what it waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub link: Link,
    pub tid: u64,
    /// The transaction it depends on.
    pub after: Seq,
    pub now: Now,
}

/// Where the data of a read began, for the receiver to align it likewise. Only a plain read tells.
fn data_off(op: &MOsdOp<'_>) -> u16 {
    let reads = |o: &OsdOp| matches!(o.code, OpCode::READ | OpCode::SYNC_READ);
    let first = op.ops.iter().find(reads);
    first.map_or(0, |o| o.extent().offset as u16)
}

impl<S: Store> Osd<S> {
    /// Sends an answer, or holds it back until what it depends on is durable.
    pub(super) fn answer(
        &mut self,
        way: Way,
        op: &MOsdOp<'_>,
        reply: Reply<'_>,
        data: Option<Payload>,
        effects: Option<Box<Effects>>,
        out: &mut Outbox,
    ) {
        let header = MsgHeader {
            tid: way.tid,
            data_off: data_off(op),
            ..MsgHeader::new(OSD_OPREPLY, MOsdOpReply::VERSION, MOsdOpReply::COMPAT)
        };
        let epoch = self.epoch();
        // Whatever became durable meanwhile leaves first.
        self.commit(way.now, out);
        if way.after <= self.committed && effects.is_none() {
            out.send(way.link, header, |b| reply.encode(op, epoch, b), data);
            return;
        }
        let mut front = self.spare_fronts.pop().unwrap_or_default();
        front.clear();
        reply.encode(op, epoch, &mut front);
        let asked: usize = op.ops.iter().map(|o| o.payload_len as usize).sum();
        let held = Held {
            size: asked + front.len() + data.as_ref().map_or(0, |d| d.len()),
            link: way.link,
            header,
            front,
            data,
            lost: false,
            effects,
        };
        self.hold(way.after, held, way.now, out);
    }

    /// Effects whose answer a fault has swallowed.
    pub(super) fn effects_only(
        &mut self,
        way: Way,
        effects: Option<Box<Effects>>,
        out: &mut Outbox,
    ) {
        if effects.is_none() {
            return;
        }
        let held = Held {
            link: way.link,
            header: MsgHeader::default(),
            size: 0,
            front: Vec::new(),
            data: None,
            lost: true,
            effects,
        };
        self.commit(way.now, out);
        self.hold(way.after, held, way.now, out);
    }

    fn hold(&mut self, after: Seq, held: Held, now: Now, out: &mut Outbox) {
        if after <= self.committed {
            return self.let_go(held, now, out);
        }
        self.last_held += 1;
        if let Some(session) = self.sessions.get_mut(&held.link) {
            session.hold(held.size);
        }
        self.held.insert((after, self.last_held), held);
    }

    pub(super) fn let_go(&mut self, held: Held, now: Now, out: &mut Outbox) {
        const SPARE: usize = 256;
        let Held {
            link,
            header,
            front,
            data,
            lost,
            effects,
            ..
        } = held;
        let (before, after) = match effects {
            Some(e) if e.of_write => (None, Some(e)),
            other => (other, None),
        };
        if let Some(effects) = before {
            self.take_effect(*effects, link, now, out);
        }
        if !lost && self.sessions.contains_key(&link) {
            out.send(link, header, |b| b.extend_from_slice(&front), data);
        }
        if self.spare_fronts.len() < SPARE {
            self.spare_fronts.push(front);
        }
        if let Some(effects) = after {
            self.take_effect(*effects, link, now, out);
        }
    }
}
