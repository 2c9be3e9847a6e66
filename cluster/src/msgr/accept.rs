//! A server's search for a peer's earlier session, and what to do about it.
//!
//! The owner keeps its sessions by peer address. On [`Event::SessionRequest`] it looks the peer up,
//! asks [`resolve`] and obeys: [`Connection::answer`] on the new connection, or
//! [`Connection::take_over`] on the earlier one.
//!
//! [`Event::SessionRequest`]: super::Event::SessionRequest

use super::config::Side;
use super::conn::Connection;
use super::control::{ClientIdent, Number, Reconnect, Reset};
use super::error::ConnError;
use super::event::State;
use super::frame::Tag;

/// What the peer asked for on a new stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Ident(ClientIdent),
    Reconnect(Reconnect),
}

/// What is to happen with a new connection of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A new session: `incoming.answer(verdict)`.
    Accept,
    /// A new session in place of the earlier one: mark that down, then `incoming.answer(verdict)`.
    Supersede,
    /// The earlier session goes on over the new stream: `existing.take_over(incoming, how)`.
    TakeOver(TakeOver),
    /// The peer has to ask differently: `incoming.answer(verdict)`, and wait for its next request.
    Reply(Reply),
    /// An old connection that arrives late: mark it down.
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeOver {
    /// The peer resumes the session; otherwise it starts a new one on the same connection.
    pub resume: bool,
    /// The peer has restarted: what waits for it is of no use to it.
    pub reset: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Reset { full: bool },
    Retry { connect_seq: u64 },
    RetryGlobal { global_seq: u64 },
    Wait,
}

/// `handle_existing_connection` and `handle_reconnect` of ProtocolV2.cc.
///
/// Their cases of a session that is being replaced at this moment cannot occur here: a take-over is
/// one step.
pub fn resolve(existing: Option<&Connection>, incoming: &Connection) -> Verdict {
    match &incoming.request {
        Some(Request::Ident(_)) => on_ident(existing, incoming),
        Some(Request::Reconnect(r)) => on_reconnect(existing, incoming, r),
        None => Verdict::Stale,
    }
}

fn on_ident(existing: Option<&Connection>, incoming: &Connection) -> Verdict {
    let Some(ex) = existing.filter(|ex| ex.state != State::Down) else {
        return Verdict::Accept;
    };
    let take_over = |reset| {
        let resume = false;
        Verdict::TakeOver(TakeOver { resume, reset })
    };
    let (old, new) = (&ex.session, &incoming.session);
    let settled = matches!(ex.state, State::Ready | State::Standby);
    let other_cookie = old.client_cookie != 0 && old.client_cookie != new.client_cookie;
    if old.peer_global_seq > new.peer_global_seq {
        // The peer has clearly restarted, if its counter and its cookie are new.
        return if other_cookie && new.client_cookie != 0 && !settled {
            Verdict::Supersede
        } else {
            Verdict::Stale
        };
    }
    if ex.cfg.policy.lossy {
        return Verdict::Supersede;
    }
    if old.server_cookie != 0 && other_cookie {
        return take_over(incoming.cfg.policy.resetcheck);
    }
    // The same cookie: the stream broke between the two idents.
    if old.client_cookie == new.client_cookie || settled {
        return take_over(false);
    }
    // Both sides dial at the same time: the higher address waits.
    if incoming.peer_addrs.msgr2() < incoming.cfg.my_addrs.msgr2() || ex.cfg.policy.server {
        take_over(false)
    } else {
        Verdict::Reply(Reply::Wait)
    }
}

fn on_reconnect(existing: Option<&Connection>, incoming: &Connection, r: &Reconnect) -> Verdict {
    let reset = |full| Verdict::Reply(Reply::Reset { full });
    let Some(ex) = existing.filter(|ex| ex.state != State::Down) else {
        return reset(true);
    };
    let old = &ex.session;
    if old.client_cookie != r.client_cookie {
        // It is we who have restarted.
        return reset(incoming.cfg.policy.resetcheck);
    }
    if old.server_cookie == 0 {
        // We were the client and never saw the peer's SERVER_IDENT.
        return reset(false);
    }
    if old.peer_global_seq > r.global_seq {
        let global_seq = old.peer_global_seq;
        return Verdict::Reply(Reply::RetryGlobal { global_seq });
    }
    if old.connect_seq > r.connect_seq {
        let connect_seq = old.connect_seq;
        return Verdict::Reply(Reply::Retry { connect_seq });
    }
    // Both sides reconnect at the same time.
    let existing_wins =
        ex.peer_addrs.msgr2() > incoming.cfg.my_addrs.msgr2() && !ex.cfg.policy.server;
    if old.connect_seq == r.connect_seq && existing_wins {
        return Verdict::Reply(Reply::Wait);
    }
    Verdict::TakeOver(TakeOver {
        resume: true,
        reset: false,
    })
}

impl Connection {
    /// What the peer asked for, while the owner decides about it.
    pub fn request(&self) -> Option<&Request> {
        self.request.as_ref()
    }

    /// Obeys a verdict that is about this, the new connection.
    pub fn answer(&mut self, verdict: Verdict) -> Result<(), ConnError> {
        if self.state != State::Decide {
            let (call, state) = ("answer", self.state.name());
            return Err(ConnError::Misuse { call, state });
        }
        let reply = match verdict {
            Verdict::Accept | Verdict::Supersede => return self.send_server_ident(),
            Verdict::Reply(reply) => reply,
            Verdict::Stale | Verdict::TakeOver(_) => {
                self.mark_down();
                return Ok(());
            }
        };
        self.request = None;
        self.state = State::Accept;
        match reply {
            Reply::Reset { full } => self.send_control(Tag::SessionReset, &Reset { full }),
            Reply::Retry { connect_seq } => {
                self.send_control(Tag::SessionRetry, &Number(connect_seq))
            }
            Reply::RetryGlobal { global_seq } => {
                self.send_control(Tag::SessionRetryGlobal, &Number(global_seq))
            }
            Reply::Wait => self.send_control(Tag::Wait, &()),
        }
    }

    /// `reuse_connection`: this session goes on over the stream of `incoming`, which the driver from
    /// now on runs for this connection.
    pub fn take_over(&mut self, incoming: Connection, how: TakeOver) -> Result<(), ConnError> {
        if self.state == State::Down || incoming.state != State::Decide {
            let (call, state) = ("take_over", incoming.state.name());
            return Err(ConnError::Misuse { call, state });
        }
        self.session.requeue();
        if how.reset {
            self.session.reset();
            self.notices.reset = true;
        }
        self.side = Side::Server;
        self.broken = None;
        self.rx = incoming.rx;
        self.tx = incoming.tx;
        self.out = incoming.out;
        self.transcript = None;
        self.last_rx = incoming.last_rx;
        self.probe = None;
        self.keepalive_reply = None;
        self.peer_addr = incoming.peer_addr;
        self.peer_addrs = incoming.peer_addrs;
        self.peer_type = incoming.peer_type;
        self.session.peer_global_seq = incoming.session.peer_global_seq;
        match incoming.request {
            Some(Request::Reconnect(r)) if how.resume => {
                self.session.connect_seq = r.connect_seq;
                self.session.discard_up_to(r.msg_seq);
                let have = Number(self.session.in_seq);
                self.send_control(Tag::SessionReconnectOk, &have)?;
                self.ready(true)
            }
            _ => {
                self.session.client_cookie = incoming.session.client_cookie;
                self.session.global_seq = incoming.session.global_seq;
                self.peer_num = incoming.peer_num;
                self.features = incoming.features;
                self.send_server_ident()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType};
    use crate::msgr::{Config, Policy};

    fn addr(nonce: u32) -> EntityAddr {
        EntityAddr::msgr2("10.0.0.1:6800".parse().unwrap(), nonce)
    }

    fn conn(policy: Policy, state: State, cookies: (u64, u64), peer_global_seq: u64) -> Connection {
        let me = EntityName::new(EntityType::OSD, 1);
        let mut cfg = Config::server(me, EntityAddrVec(vec![addr(5)]));
        cfg.policy = policy;
        let mut conn = Connection::server(cfg, addr(0));
        conn.state = state;
        conn.session.client_cookie = cookies.0;
        conn.session.server_cookie = cookies.1;
        conn.session.peer_global_seq = peer_global_seq;
        conn.session.connect_seq = 3;
        conn.peer_addrs = EntityAddrVec(vec![addr(6)]);
        conn
    }

    /// What happens to a peer with cookie 1 and number 10 that asks for a new session.
    fn ident(policy: Policy, state: State, cookies: (u64, u64), seq: u64) -> Verdict {
        let mut new = conn(policy, State::Decide, (1, 0), 10);
        new.request = Some(Request::Ident(ClientIdent {
            addrs: new.peer_addrs.clone(),
            target: addr(5),
            gid: 1,
            global_seq: 10,
            features_supported: 0,
            features_required: 0,
            flags: 0,
            cookie: 1,
        }));
        resolve(Some(&conn(policy, state, cookies, seq)), &new)
    }

    /// Likewise for one that wants to resume, with connect_seq 3.
    fn resume(policy: Policy, state: State, cookies: (u64, u64), seq: u64) -> Verdict {
        let mut new = conn(policy, State::Decide, (0, 0), 10);
        new.request = Some(Request::Reconnect(Reconnect {
            addrs: new.peer_addrs.clone(),
            client_cookie: 1,
            server_cookie: 2,
            global_seq: 10,
            connect_seq: 3,
            msg_seq: 0,
        }));
        resolve(Some(&conn(policy, state, cookies, seq)), &new)
    }

    #[test]
    fn verdicts_are_those_of_protocol_v2() {
        let (server, peer) = (Policy::STATEFUL_SERVER, Policy::LOSSLESS_PEER);
        let over = |resume, reset| Verdict::TakeOver(TakeOver { resume, reset });
        let wait = Verdict::Reply(Reply::Wait);

        assert_eq!(ident(server, State::Down, (1, 2), 1), Verdict::Accept);
        // An older connection of a peer that is there, and a new life of one that is not.
        assert_eq!(ident(server, State::Ready, (9, 2), 11), Verdict::Stale);
        assert_eq!(ident(server, State::Standby, (9, 2), 11), Verdict::Stale);
        assert_eq!(ident(server, State::Accept, (9, 2), 11), Verdict::Supersede);
        assert_eq!(ident(server, State::Accept, (1, 2), 11), Verdict::Stale);
        let lossy = Policy::STATELESS_SERVER;
        assert_eq!(ident(lossy, State::Ready, (0, 0), 9), Verdict::Supersede);
        assert_eq!(ident(server, State::Ready, (9, 2), 9), over(false, true));
        assert_eq!(ident(server, State::Ready, (1, 2), 9), over(false, false));
        assert_eq!(ident(peer, State::Identify, (1, 0), 9), over(false, false));
        assert_eq!(ident(peer, State::Standby, (9, 0), 9), over(false, false));
        // The peer's address is the higher one.
        assert_eq!(ident(peer, State::Identify, (9, 0), 9), wait);
        assert_eq!(ident(server, State::Accept, (9, 0), 9), over(false, false));

        let reset = |full| Verdict::Reply(Reply::Reset { full });
        assert_eq!(resume(server, State::Down, (1, 2), 1), reset(true));
        assert_eq!(resume(server, State::Ready, (9, 2), 1), reset(true));
        assert_eq!(resume(peer, State::Ready, (9, 2), 1), reset(false));
        assert_eq!(resume(server, State::Ready, (1, 0), 1), reset(false));
        assert_eq!(resume(server, State::Ready, (1, 2), 1), over(true, false));
        assert_eq!(resume(peer, State::Reconnect, (1, 2), 1), wait);
        let global = Verdict::Reply(Reply::RetryGlobal { global_seq: 11 });
        assert_eq!(resume(server, State::Ready, (1, 2), 11), global);
    }
}
