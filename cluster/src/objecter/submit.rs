//! Taking requests, and finding them a session.

use super::msg::OsdFlags;
use super::placement::Placement;
use super::poll::Todo;
use super::request::{
    Access, Completions, OpError, OpId, OpReply, Request, SessionId, SubmitError,
};
use super::session::{Link, Session};
use super::table::{MAX_SLOTS, NONE, Owner, PoolCheck};
use super::target::{OpTarget, Recalc};
use super::{ObjectOp, Objecter};
use crate::codec::{Now, UTime};

/// Requests of callers; the other slots are for registrations and pings of watches.
pub(super) const MAX_OPS: usize = 60_000;
const _: () = assert!(MAX_OPS < MAX_SLOTS);

impl<M: Placement> Objecter<M> {
    /// Whether a request of that many bytes would be taken now. One request is always taken, so
    /// that a limit below its size does not stop it for ever.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.in_flight_ops < self.config.max_ops
            && (self.in_flight_bytes == 0
                || self.in_flight_bytes.saturating_add(bytes) <= self.config.max_bytes)
    }

    /// Takes a request. It ends with `op_done`, exactly once.
    pub fn submit(&mut self, request: Request, now: Now) -> Result<OpId, SubmitError> {
        self.now = now;
        if self.blocklisted {
            return Err(SubmitError::Blocklisted);
        }
        if request.ops.is_empty() {
            return Err(SubmitError::Empty);
        }
        let budget = request.ops.budget();
        if !self.has_room(budget) {
            return Err(SubmitError::Busy(Box::new(request)));
        }
        let deadline = request.timeout.or(self.config.op_timeout);
        let owner = Owner::User {
            token: request.token,
        };
        let mut flags = request.flags;
        flags |= match request.access {
            Access::Read(_) => OsdFlags::READ,
            Access::Write(_) => OsdFlags::WRITE,
        };
        let target = OpTarget::new(request.target, flags);
        let Some(slot) = self.ops.insert(owner, request.ops, target) else {
            unreachable!("fewer requests than slots");
        };
        let op = &mut self.ops[slot];
        op.budget = budget;
        match request.access {
            Access::Read(snap) => op.snap_id = snap,
            Access::Write(snapc) => {
                op.snapc = Some(snapc);
                op.mtime = UTime::from_nanos(now.wall);
            }
        }
        let recalc = self.mapper.calc(&mut op.target, false);
        if recalc == Recalc::PoolEio {
            self.ops.remove(slot);
            return Err(SubmitError::PoolEio);
        }
        if let Some(timeout) = deadline {
            self.ops[slot].deadline = now.after(timeout);
            self.timers.insert(&mut self.ops, slot);
        }
        self.in_flight_ops += 1;
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(budget);
        self.stats.submitted += 1;
        self.assign(slot);
        if recalc == Recalc::PoolDne {
            self.ask_for_pool(slot);
        }
        self.arm_tick();
        Ok(OpId(self.ops[slot].id))
    }

    /// Takes a request of a watch. It is not counted and has no deadline.
    pub(super) fn submit_internal(
        &mut self,
        owner: Owner,
        body: ObjectOp,
        target: OpTarget,
        fill: impl FnOnce(&mut super::table::Op),
    ) -> Option<u32> {
        let slot = self.ops.insert(owner, body, target)?;
        fill(&mut self.ops[slot]);
        let recalc = self.mapper.calc(&mut self.ops[slot].target, false);
        self.assign(slot);
        if recalc == Recalc::PoolDne {
            self.ask_for_pool(slot);
        }
        self.arm_tick();
        Some(slot)
    }

    /// Ends a request before its time. `false` when it has ended already.
    pub fn cancel(&mut self, id: OpId, sink: &mut dyn Completions) -> bool {
        let Some(slot) = self.ops.by_id(id.0) else {
            return false;
        };
        if self.ops[slot].owner.cookie().is_some() {
            return false;
        }
        self.fail(slot, OpError::Cancelled, sink);
        true
    }

    /// Ends everything: requests, watches and notifies. Sessions stay.
    pub fn cancel_all(&mut self, error: OpError, sink: &mut dyn Completions) {
        self.fail_lingers(error, sink);
        let mut slots = std::mem::take(&mut self.resend);
        self.collect_all(&mut slots);
        for &(_, slot) in &slots {
            self.fail(slot, error, sink);
        }
        slots.clear();
        self.resend = slots;
    }

    /// All requests, in the order of their ids.
    pub(super) fn collect_all(&self, out: &mut Vec<(u64, u32)>) {
        let lists = self.sessions.iter().map(|(_, s)| &s.ops);
        for list in lists.chain([&self.homeless]) {
            let mut at = list.head;
            while at != NONE {
                out.push((self.ops[at].id, at));
                at = list.next(&self.ops, at);
            }
        }
        out.sort_unstable();
    }

    /// Ends a request with an error that no OSD has sent.
    pub(super) fn fail(&mut self, slot: u32, error: OpError, sink: &mut dyn Completions) {
        let owner = self.forget(slot);
        match owner {
            Owner::User { token } => sink.op_done(token, OpReply::failed(error)),
            _ => self.linger_op_done(owner, OpReply::failed(error), sink),
        }
    }

    /// Frees a request's slot and whatever else it holds.
    pub(super) fn forget(&mut self, slot: u32) -> Owner {
        self.unassign(slot);
        self.timers.remove(&mut self.ops, slot);
        let op = &self.ops[slot];
        let owner = op.owner;
        if owner.cookie().is_none() {
            self.in_flight_ops -= 1;
            self.in_flight_bytes -= op.budget.min(self.in_flight_bytes);
        }
        self.ops.remove(slot);
        owner
    }

    /// Gives a request whose target is known to the session of its OSD.
    pub(super) fn assign(&mut self, slot: u32) {
        let osd = self.ops[slot].target.osd;
        let Some(key) = self.session_of(osd) else {
            self.ops[slot].session = NONE;
            self.homeless.insert(&mut self.ops, slot);
            self.want_map = true;
            return;
        };
        self.ops[slot].session = key;
        let session = &mut self.sessions[key as usize];
        session.ops.insert(&mut self.ops, slot);
        session.busy = self.now.mono;
        self.send_later(slot);
    }

    /// Takes a request from its session.
    pub(super) fn unassign(&mut self, slot: u32) {
        let op = &mut self.ops[slot];
        op.sent = u64::MAX;
        let key = std::mem::replace(&mut op.session, NONE);
        if key == NONE {
            self.homeless.remove(&mut self.ops, slot);
        } else {
            let session = &mut self.sessions[key as usize];
            session.unsent.remove(&mut self.ops, slot);
            session.ops.remove(&mut self.ops, slot);
            session.busy = self.now.mono;
        }
    }

    /// Puts a request of a session in line to be sent, if nothing holds it back.
    pub(super) fn send_later(&mut self, slot: u32) {
        let op = &self.ops[slot];
        if op.target.paused {
            self.want_map = true;
            return;
        }
        let key = op.session;
        if key == NONE || self.sessions[key as usize].link != Link::Open {
            // Opening the session sends everything it has.
            return;
        }
        let session = &mut self.sessions[key as usize];
        session.unsent.insert(&mut self.ops, slot);
        self.mark_ready(key);
    }

    pub(super) fn mark_ready(&mut self, key: u32) {
        let session = &mut self.sessions[key as usize];
        if !session.ready {
            session.ready = true;
            self.ready.push_back(key);
        }
    }

    /// The session of an OSD, new if need be; `None` when the OSD cannot be reached.
    fn session_of(&mut self, osd: i32) -> Option<u32> {
        if osd < 0 {
            return None;
        }
        match self.by_osd.binary_search_by_key(&osd, |&(osd, _)| osd) {
            Ok(i) => Some(self.by_osd[i].1),
            Err(i) => {
                let map = self.mapper.map.as_ref()?;
                let addrs = map.osd_addrs(osd)?.clone();
                let id = self.new_session_id(osd);
                let session = Session::new(id, addrs, self.now.mono);
                let key = self.sessions.insert(session) as u32;
                self.by_osd.insert(i, (osd, key));
                self.connect(key);
                Some(key)
            }
        }
    }

    pub(super) fn new_session_id(&mut self, osd: i32) -> SessionId {
        self.incarnations += 1;
        SessionId {
            osd,
            incarnation: self.incarnations,
        }
    }

    /// Asks whether the pool that the map lacks exists in a newer one.
    pub(super) fn ask_for_pool(&mut self, slot: u32) {
        let (number, due) = self.latest.ask();
        if due {
            self.todo.push_back(Todo::WantLatestEpoch(number));
        }
        self.ops[slot].check = PoolCheck::Asked(number);
    }
}
