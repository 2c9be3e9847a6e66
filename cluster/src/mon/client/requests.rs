//! What we ask of the monitors: subscriptions and requests.

use super::{MonAction, MonClient, Outgoing, State, after};
use crate::codec::Now;
use crate::mon::message::{
    MAuth, MMonCommand, MMonGetVersion, MMonSubscribe, MPoolOp, Message, Paxos, SubscribeItem,
};
use crate::mon::request::{Request, What};
use crate::mon::{Command, MonError};
use crate::payload::Payload;

/// More requests than this do not wait for an answer at a time.
const MAX_REQUESTS: usize = 1024;

impl MonClient {
    /// Wants OSD maps from epoch `start` on (0: the newest), one answer or all to come.
    pub fn subscribe_osdmap(&mut self, start: u32, onetime: bool) {
        let item = SubscribeItem {
            start: start.into(),
            flags: if onetime { SubscribeItem::ONETIME } else { 0 },
        };
        self.subs.want("osdmap", item);
        self.renew_subscriptions();
    }

    /// The owner has OSD maps up to `epoch`.
    pub fn got_osdmap(&mut self, epoch: u32) {
        self.subs.got("osdmap", epoch.into());
    }

    pub(super) fn renew_subscriptions(&mut self) {
        if self.session().is_none() {
            return;
        }
        let what = self.subs.take_fresh();
        if !what.is_empty() {
            let hostname = self.config.hostname.clone();
            self.send(0, &MMonSubscribe { what, hostname }, Payload::default());
        }
    }

    /// Asks the monitors to do `command`. [`CommandDone`](super::MonEvent::CommandDone) with `token` will tell. When
    /// the session is lost before, the command is sent again in the next: it may be done twice.
    pub fn command(
        &mut self,
        token: u64,
        command: Command,
        input: Payload,
        now: Now,
    ) -> Result<(), MonError> {
        let cmd = command.words();
        self.request(token, What::Command { cmd, input }, now)
    }

    /// Asks how new the map called `map` is. [`Version`](super::MonEvent::Version) with `token` will tell.
    pub fn get_version(&mut self, token: u64, map: &str, now: Now) -> Result<(), MonError> {
        let map = map.to_string();
        self.request(token, What::Version { map }, now)
    }

    /// Asks for an operation of [`pool_op`](crate::mon::message::pool_op) on a pool.
    /// [`PoolOpDone`](super::MonEvent::PoolOpDone) with `token` will tell.
    pub fn pool_op(
        &mut self,
        token: u64,
        pool: u32,
        op: u32,
        snapid: u64,
        now: Now,
    ) -> Result<(), MonError> {
        self.request(token, What::PoolOp { pool, op, snapid }, now)
    }

    /// Forgets the requests of `token`. What was sent may still be done.
    pub fn cancel(&mut self, token: u64) {
        self.requests.retain(|_, r| r.token != token);
    }

    /// Sends a step of the authentication protocol. Without a session nothing is sent, and
    /// nothing need be: the next session's handshake brings new tickets. Returns whether it went.
    pub fn send_auth(&mut self, protocol: u32, payload: Vec<u8>) -> bool {
        let auth = MAuth {
            protocol,
            payload,
            ..MAuth::default()
        };
        self.send(0, &auth, Payload::default())
    }

    fn request(&mut self, token: u64, what: What, now: Now) -> Result<(), MonError> {
        if matches!(self.state, State::Closed) {
            return Err(MonError::Closed);
        }
        if self.requests.len() >= MAX_REQUESTS {
            return Err(MonError::Busy);
        }
        self.last_tid += 1;
        let deadline = after(now, self.config.op_timeout);
        let request = Request {
            token,
            what,
            deadline,
        };
        self.requests.insert(self.last_tid, request);
        self.send_request(self.last_tid);
        Ok(())
    }

    pub(super) fn resend(&mut self) {
        let tids: Vec<_> = self.requests.keys().copied().collect();
        for tid in tids {
            self.send_request(tid);
        }
    }

    /// Sends a request if there is a session and the cluster's id, which commands must name, is
    /// known. Else it goes out when both are there.
    fn send_request(&mut self, tid: u64) {
        let Some(fsid) = self.monmap.as_ref().map(|m| m.fsid) else {
            return;
        };
        let Some(request) = self.requests.get(&tid) else {
            return;
        };
        match &request.what {
            What::Command { cmd, input } => {
                let input = input.clone();
                let message = MMonCommand {
                    paxos: Paxos::default(),
                    fsid,
                    cmd: cmd.clone(),
                };
                self.send(tid, &message, input);
            }
            What::Version { map } => {
                let message = MMonGetVersion {
                    handle: tid,
                    what: map.clone(),
                };
                self.send(0, &message, Payload::default());
            }
            What::PoolOp { pool, op, snapid } => {
                let message = MPoolOp {
                    paxos: Paxos {
                        version: self.osdmap_seen,
                        ..Paxos::default()
                    },
                    fsid,
                    pool: *pool,
                    op: *op,
                    snapid: *snapid,
                    ..MPoolOp::default()
                };
                self.send(tid, &message, Payload::default());
            }
        }
    }

    pub(super) fn send<M: Message>(&mut self, tid: u64, message: &M, data: Payload) -> bool {
        let Some(attempt) = self.session() else {
            return false;
        };
        let mut front = Vec::new();
        message.encode(&mut front);
        let message = Outgoing {
            kind: M::KIND,
            version: M::VERSION,
            compat: M::COMPAT,
            tid,
            front,
            data,
        };
        self.actions.push_back(MonAction::Send { attempt, message });
        true
    }
}
