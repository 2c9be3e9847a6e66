//! What the monitors tell us.

use super::{Incoming, MonClient, MonEvent, State};
use crate::codec::{self, Now};
use crate::mon::message::{
    MAuthReply, MConfig, MMonCommandAck, MMonGetVersionReply, MMonMap, MPoolOpReply, Message,
};
use crate::mon::request::{Answer, PoolOpReply, Versions};
use crate::mon::{MonMap, kind};

impl MonClient {
    /// Takes a message that came on the connection of `attempt`. Returns false when it is none of
    /// ours (an OSD map, say) and the owner's to handle. What did not come in the open session is
    /// dropped. A message that cannot be decoded costs the session: another monitor may do better.
    pub fn message(&mut self, attempt: u64, m: &Incoming<'_>, now: Now) -> codec::Result<bool> {
        let State::Open(session) = &mut self.state else {
            return Ok(true);
        };
        if session.id != attempt {
            return Ok(true);
        }
        session.last_heard = now.mono;
        let handled = self.dispatch(m, now);
        if let Err(error) = &handled
            && self.session() == Some(attempt)
        {
            self.hang_up();
            self.lost(attempt, &error.to_string(), now);
        }
        handled
    }

    fn dispatch(&mut self, m: &Incoming<'_>, now: Now) -> codec::Result<bool> {
        match m.kind {
            kind::MON_MAP => {
                let map = MMonMap::decode(m.version, m.front)?;
                self.handle_monmap(MonMap::decode(&map.monmap)?, now);
            }
            kind::CONFIG => {
                let config = MConfig::decode(m.version, m.front)?;
                self.config_seen = true;
                self.events.push_back(MonEvent::Config(config.config));
                self.check_ready();
            }
            kind::AUTH_REPLY => {
                let reply = MAuthReply::decode(m.version, m.front)?;
                self.events.push_back(MonEvent::Auth(reply));
            }
            kind::MON_COMMAND_ACK => {
                let ack = MMonCommandAck::decode(m.version, m.front)?;
                let reply = Answer::Command {
                    code: ack.code,
                    status: ack.status,
                    output: m.data.to_vec(),
                };
                self.answer(m.tid, reply);
            }
            kind::MON_GET_VERSION_REPLY => {
                let reply = MMonGetVersionReply::decode(m.version, m.front)?;
                let versions = Versions {
                    newest: reply.version,
                    oldest: reply.oldest,
                };
                self.answer(reply.handle, Answer::Version(versions));
            }
            kind::POOL_OP_REPLY => {
                let reply = MPoolOpReply::decode(m.version, m.front)?;
                self.osdmap_seen = self.osdmap_seen.max(reply.paxos.version);
                let answer = Answer::PoolOp {
                    code: reply.code,
                    reply: PoolOpReply {
                        epoch: reply.epoch,
                        response: reply.response,
                    },
                };
                self.answer(m.tid, answer);
            }
            // Nothing to do: subscriptions last as long as the session.
            kind::MON_SUBSCRIBE_ACK | kind::PING => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn handle_monmap(&mut self, map: MonMap, now: Now) {
        let State::Open(session) = &self.state else {
            return;
        };
        let (dial, opened) = (session.dial, session.opened);
        let ours = self.monmap.as_ref().map(|m| m.fsid).or(self.config.fsid);
        if ours.is_some_and(|fsid| fsid != map.fsid) {
            self.note_error(dial, "is a monitor of another cluster".to_string());
            self.denied = true;
            self.hang_up();
            self.reopen(dial, opened, now);
            return;
        }
        let (old_epoch, old_auth) = match &self.monmap {
            Some(old) => (old.epoch, old.auth.as_ref().map_or(0, |a| a.epoch)),
            None => (0, u32::MAX),
        };
        let first = self.monmap.is_none();
        let epoch = map.epoch;
        let tickets_void = map.auth.as_ref().is_some_and(|a| a.epoch > old_auth);
        let still_there = map.name_at(dial).is_some();
        self.monmap = Some(map);
        self.subs.got("monmap", epoch.into());
        if epoch != old_epoch {
            self.start_over();
        }
        self.events.push_back(MonEvent::MonMap { epoch });
        if tickets_void {
            self.events.push_back(MonEvent::TicketsVoid);
        }
        if !still_there {
            // Removed from the map, or reached by an address that is not in it.
            self.note_error(dial, "is not in the monitor map".to_string());
            self.hang_up();
            self.reopen(dial, opened, now);
            return;
        }
        if first {
            self.resend();
        }
        self.check_ready();
    }

    fn check_ready(&mut self) {
        if !self.ready && self.config_seen && self.monmap.is_some() {
            self.ready = true;
            self.events.push_back(MonEvent::Ready);
        }
    }

    /// Ends the request `tid` if there still is one and the answer is of its sort.
    fn answer(&mut self, tid: u64, answer: Answer) {
        if let Some(request) = self.requests.get(&tid)
            && let Some(event) = request.answered(answer)
        {
            self.requests.remove(&tid);
            self.events.push_back(event);
        }
    }
}
