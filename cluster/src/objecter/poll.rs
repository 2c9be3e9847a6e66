//! What the owner is to do next.

use super::Objecter;
use super::msg::OsdFlags;
use super::placement::Placement;
use super::request::{Action, OutBody, Outgoing, SessionId};
use super::session::Link;
use super::table::NONE;
use crate::codec::Now;

#[derive(Debug)]
pub(super) enum Todo {
    Open(SessionId),
    Close(SessionId),
    Ping(SessionId),
    WantLatestEpoch(u64),
    Blocklisted,
}

impl<M: Placement> Objecter<M> {
    /// The next thing to do. To be called until it returns `None`.
    pub fn poll(&mut self) -> Option<Action<'_>> {
        while let Some(todo) = self.todo.pop_front() {
            match todo {
                Todo::Open(session) => {
                    // It may have been given up since.
                    let Some(key) = self.session_key(session) else {
                        continue;
                    };
                    let s = &mut self.sessions[key as usize];
                    s.announced = true;
                    let addrs = s.addrs.clone();
                    self.stats.sessions_opened += 1;
                    return Some(Action::OpenSession { session, addrs });
                }
                Todo::Close(session) => return Some(Action::CloseSession { session }),
                Todo::Ping(session) => return Some(Action::Ping { session }),
                Todo::WantLatestEpoch(token) => return Some(Action::WantLatestEpoch { token }),
                Todo::Blocklisted => return Some(Action::Blocklisted),
            }
        }
        if std::mem::take(&mut self.want_map) {
            return Some(Action::WantMap {
                have: self.mapper.epoch(),
                continuous: self.mapper.watch_map(),
            });
        }
        let (key, body) = self.next_message()?;
        let session = self.sessions[key as usize].id;
        let body = match body {
            Next::Ack(ack) => OutBody::Ack(ack),
            Next::Op(slot) => OutBody::Op {
                op: &self.ops[slot],
                flags: self.wire_flags(slot),
                epoch: self.mapper.epoch(),
                features: self.config.features,
            },
        };
        let message = Outgoing::new(self.config.priority, body);
        Some(Action::Send { session, message })
    }

    fn next_message(&mut self) -> Option<(u32, Next)> {
        while let Some(&key) = self.ready.front() {
            let Some(session) = self.sessions.get_mut(key as usize).filter(|s| s.ready) else {
                self.ready.pop_front();
                continue;
            };
            if let Some(ack) = session.acks.pop_front() {
                return Some((key, Next::Ack(ack)));
            }
            while let Some(slot) = session.unsent.pop(&mut self.ops) {
                let op = &mut self.ops[slot];
                if op.target.paused {
                    // Since it was put in line. The map that ends the pause puts it there again.
                    continue;
                }
                // Held back until the OSD lifts the backoff and asks for it again. An OSD that has
                // died meanwhile never will: the wait counts as one for an answer.
                if !session.backoffs.is_empty()
                    && session.backoffs.covers(op.target.spg, &op.target.hobject())
                {
                    op.sent = op.sent.min(self.now.mono);
                    continue;
                }
                self.stats.sent += 1;
                self.stats.resent += u64::from(op.attempts > 0);
                op.attempts += 1;
                op.sent = self.now.mono;
                return Some((key, Next::Op(slot)));
            }
            session.ready = false;
            self.ready.pop_front();
        }
        None
    }

    /// `Objecter::_prepare_osd_op`.
    fn wire_flags(&self, slot: u32) -> OsdFlags {
        let op = &self.ops[slot];
        let mut flags = op.target.flags
            | OsdFlags::KNOWN_REDIR
            | OsdFlags::SUPPORTS_POOL_EIO
            // Nothing looks at it since luminous, and librados still sets it.
            | OsdFlags::ONDISK;
        if op.attempts > 1 {
            flags |= OsdFlags::RETRY;
        }
        if !self.config.honor_full {
            flags |= OsdFlags::FULL_FORCE;
        }
        flags
    }

    pub(super) fn session_key(&self, id: SessionId) -> Option<u32> {
        let i = self.by_osd.binary_search_by_key(&id.osd, |&(osd, _)| osd);
        let key = self.by_osd[i.ok()?].1;
        (self.sessions[key as usize].id == id).then_some(key)
    }

    /// The session's connection is ready for messages.
    pub fn session_open(&mut self, id: SessionId, now: Now) {
        self.now = now;
        let Some(key) = self.session_key(id) else {
            return;
        };
        let session = &mut self.sessions[key as usize];
        if session.link == Link::Open {
            return;
        }
        session.link = Link::Open;
        session.busy = now.mono;
        self.send_all(key);
    }

    fn send_all(&mut self, key: u32) {
        let mut at = self.sessions[key as usize].ops.head;
        while at != NONE {
            let next = self.sessions[key as usize].ops.next(&self.ops, at);
            self.send_later(at);
            at = next;
        }
    }

    /// The session's connection failed, was reset or cannot be made. What it had in flight is sent
    /// again when a new one is there (`Objecter::ms_handle_reset`).
    pub fn session_lost(&mut self, id: SessionId, now: Now) {
        self.now = now;
        let Some(key) = self.session_key(id) else {
            return;
        };
        self.want_map = true;
        let session = &mut self.sessions[key as usize];
        session.announced = false;
        session.link = Link::Connecting;
        session.ready = false;
        session.acks.clear();
        session.backoffs.clear();
        while session.unsent.pop(&mut self.ops).is_some() {}
        session.failures = session.failures.saturating_add(1);
        let delay = match session.failures {
            // It did serve us: likely it just restarted.
            1 => std::time::Duration::ZERO,
            n => {
                let factor = 1u32 << (n - 2).min(16);
                let delay = self.config.reconnect_initial.saturating_mul(factor);
                delay.min(self.config.reconnect_max)
            }
        };
        let until = now.after(delay);
        session.link = Link::Waiting { until };
        let osd = session.id.osd;

        let mut lingers = Vec::new();
        let mut at = self.sessions[key as usize].ops.head;
        while at != NONE {
            let next = self.sessions[key as usize].ops.next(&self.ops, at);
            self.ops[at].sent = u64::MAX;
            if let Some(cookie) = self.ops[at].owner.cookie() {
                self.forget(at);
                lingers.push(cookie);
            }
            at = next;
        }
        self.lingers_on(osd, &mut lingers);
        let id = self.new_session_id(osd);
        self.sessions[key as usize].id = id;
        self.resend_lingers(lingers);
        if self.sessions[key as usize].ops.is_empty() {
            self.remove_session(key);
        } else {
            self.connect(key);
        }
    }

    /// Has a waiting session connected, now or when its time comes.
    pub(super) fn connect(&mut self, key: u32) {
        let now = self.now.mono;
        let session = &mut self.sessions[key as usize];
        if let Link::Waiting { until } = session.link {
            if until <= now {
                session.link = Link::Connecting;
                self.todo.push_back(Todo::Open(session.id));
            } else {
                self.next_connect = self.next_connect.min(until);
            }
        }
        self.arm_tick();
    }

    /// Forgets a session that has no requests, and has its connection dropped.
    pub(super) fn remove_session(&mut self, key: u32) {
        let session = self.sessions.remove(key as usize);
        debug_assert!(session.ops.is_empty() && session.unsent.is_empty());
        let osd = session.id.osd;
        if let Ok(i) = self.by_osd.binary_search_by_key(&osd, |&(osd, _)| osd) {
            self.by_osd.remove(i);
        }
        if session.announced {
            self.todo.push_back(Todo::Close(session.id));
        }
    }
}

enum Next {
    Ack(super::session::BackoffAck),
    Op(u32),
}
