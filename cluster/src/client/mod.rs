//! One RADOS identity, without I/O: monitor session, maps, OSD sessions and requests.
//!
//! A [`Client`] composes the state machines below it: [`MonClient`](crate::mon::MonClient),
//! [`auth::Client`](crate::auth::Client), [`Objecter`](crate::objecter::Objecter) and one
//! [`Connection`](crate::msgr::Connection) per peer. All sessions of a client share one global id
//! and one address, since fencing works by address; two images are two clients.
//!
//! Its driver owns the sockets:
//! - [`Client::poll_action`] says which to open and close;
//! - what they bring goes into [`Client::connected`], [`Client::received`] and [`Client::closed`];
//! - [`Client::poll_dirty`] names the connections that have something to send, and
//!   [`Client::take_output`] hands it out;
//! - [`Client::tick`] is due at [`Client::next_deadline`].
//!
//! Outcomes of requests go to the [`Completions`] that the calls are given, other news to
//! [`Client::poll_event`].

mod config;
mod entropy;
mod maps;
mod peers;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use slab::Slab;

use crate::auth::{self, AuthError};
use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now};
use crate::mon::{Command, Incoming as MonIncoming, MonAction, MonClient, MonError, MonEvent};
use crate::msgr::{self, Connection, Event, MsgHeader, OutBatch};
use crate::objecter::{
    Action as OsdAction, Completions, Incoming as OsdIncoming, Objecter, ObjecterConfig, OpError,
    OpId, Request, SessionId, Stats, SubmitError, Target, WatchRequest,
};
use crate::osdmap::OsdMap;
use crate::payload::Payload;

pub use config::{ClientConfig, ConfigError};
use entropy::Entropy;
pub use maps::MapCache;
use peers::{Peer, Refusal, Step};

/// A connection, by a number that is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    key: u32,
    generation: u32,
}

/// What the driver is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Connect a TCP socket, then tell [`Client::connected`] or [`Client::closed`].
    Connect { conn: ConnId, addr: SocketAddr },
    /// Close the socket. Nothing about it need be told any more.
    Close { conn: ConnId },
}

/// News that no request waits for.
#[derive(Debug)]
pub enum ClientEvent {
    /// A monitor session, the monitors' configuration and an OSD map are there.
    Ready,
    /// A newer OSD map is in use.
    Map { epoch: u32 },
    CommandDone {
        token: u64,
        result: Result<crate::mon::CommandReply, MonError>,
    },
    PoolOpDone {
        token: u64,
        result: Result<crate::mon::PoolOpReply, MonError>,
    },
    /// The map that was the newest when [`Client::wait_for_latest_map`] was called is in use.
    LatestMap {
        token: u64,
        result: Result<(), MonError>,
    },
    /// The cluster has fenced this client. Every request fails from now on.
    Blocklisted,
    /// There will be no session with this cluster. Every request fails from now on.
    Failed(String),
}

struct Conn {
    generation: u32,
    msgr: Connection,
    peer: Peer,
    /// In the list of those with something to send.
    dirty: bool,
}

impl Conn {
    fn serves(&self, id: ConnId, session: SessionId) -> bool {
        self.generation == id.generation
            && matches!(&self.peer, Peer::Osd { session: s, .. } if *s == session)
    }
}

/// The connection that an OSD's sessions had last.
fn find_osd(osd_conns: &[Option<ConnId>], session: SessionId) -> Option<ConnId> {
    *osd_conns.get(usize::try_from(session.osd).ok()?)?
}

/// What a version request to the monitors was made for.
enum VersionFor {
    Objecter { token: u64 },
    Caller { token: u64 },
}

/// See the module.
pub struct Client {
    config: ClientConfig,
    entropy: Entropy,
    auth: auth::Client,
    mon: MonClient,
    objecter: Objecter<OsdMap>,
    maps: Arc<MapCache>,
    map: Option<Arc<OsdMap>>,
    conns: Slab<Conn>,
    /// The connection to each OSD, by its number.
    osd_conns: Vec<Option<ConnId>>,
    generation: u32,
    /// Connections opened so far, which peers tell newer from older ones by.
    global_seq: u64,
    addrs: EntityAddrVec,
    actions: VecDeque<Action>,
    events: VecDeque<ClientEvent>,
    dirty: VecDeque<ConnId>,
    versions: Slab<VersionFor>,
    /// Callers that wait for the OSD map of an epoch.
    waiting: Vec<(u32, u64)>,
    /// OSD sessions that wait for a ticket.
    ticketless: Vec<(SessionId, EntityAddrVec)>,
    mon_ready: bool,
    announced: bool,
    failed: bool,
    now: Now,
}

impl Client {
    /// `seed` must be random and used once: nonces, challenges and the client's address nonce come
    /// from it.
    pub fn new(
        config: ClientConfig,
        maps: Arc<MapCache>,
        seed: &[u8; 32],
    ) -> Result<Client, AuthError> {
        let mut entropy = Entropy::new(seed);
        let auth = auth::Client::new(config.auth.clone())?;
        let mon = MonClient::new(config.mon.clone(), entropy.word());
        let objecter = ObjecterConfig {
            seed: entropy.word(),
            ..config.objecter.clone()
        };
        // The nonce tells clients of one host apart, for fencing above all: never zero.
        let nonce = (entropy.word() as u32).max(1);
        let blank = EntityAddr {
            nonce,
            ..EntityAddr::default()
        };
        Ok(Client {
            entropy,
            auth,
            mon,
            objecter: Objecter::new(objecter),
            maps,
            map: None,
            conns: Slab::new(),
            osd_conns: Vec::new(),
            generation: 0,
            global_seq: 0,
            addrs: EntityAddrVec(vec![blank]),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            dirty: VecDeque::new(),
            versions: Slab::new(),
            waiting: Vec::new(),
            ticketless: Vec::new(),
            mon_ready: false,
            announced: false,
            failed: false,
            now: Now::default(),
            config,
        })
    }

    /// Looks for a monitor.
    pub fn start(&mut self, now: Now) {
        self.now = now;
        self.mon.start(now);
        self.run_mon(&mut Nobody);
    }

    /// Ends all sessions; requests in flight fail.
    pub fn close(&mut self, sink: &mut dyn Completions) {
        self.mon.close();
        self.objecter.cancel_all(OpError::Cancelled, sink);
        self.run_mon(sink);
        self.run_osd(sink);
        let open: Vec<usize> = self.conns.iter().map(|(key, _)| key).collect();
        for key in open {
            self.drop_conn(key);
        }
    }

    pub fn global_id(&self) -> u64 {
        self.auth.global_id()
    }

    /// The addresses under which the cluster knows this client, for fencing.
    pub fn addrs(&self) -> &EntityAddrVec {
        &self.addrs
    }

    pub fn map(&self) -> Option<&Arc<OsdMap>> {
        self.map.as_ref()
    }

    pub fn stats(&self) -> Stats {
        self.objecter.stats()
    }

    /// What the client waits for, in a few words; `None` while all is well.
    pub fn trouble(&self) -> Option<String> {
        if self.mon.session().is_none() {
            return Some(format!("no monitor ({})", self.mon.troubles()));
        }
        None
    }

    /// Random bytes for the owner's own needs.
    pub fn random(&mut self) -> u64 {
        self.entropy.word()
    }

    // ---- requests ----

    pub fn has_room(&self, bytes: u64) -> bool {
        self.objecter.has_room(bytes)
    }

    pub fn submit(&mut self, request: Request, now: Now) -> Result<OpId, SubmitError> {
        self.now = now;
        self.objecter.submit(request, now)
    }

    pub fn cancel(&mut self, id: OpId, sink: &mut dyn Completions) -> bool {
        self.objecter.cancel(id, sink)
    }

    pub fn watch(&mut self, request: WatchRequest, now: Now) -> Result<(), SubmitError> {
        self.now = now;
        self.objecter.watch(request, now)
    }

    pub fn unwatch(
        &mut self,
        cookie: u64,
        token: u64,
        now: Now,
        sink: &mut dyn Completions,
    ) -> Result<OpId, SubmitError> {
        self.now = now;
        self.objecter.unwatch(cookie, token, now, sink)
    }

    /// Notifies the watchers of an object and waits for their answers, as long as `timeout`
    /// seconds at the OSD.
    pub fn notify(
        &mut self,
        target: Target,
        payload: Vec<u8>,
        timeout: u32,
        token: u64,
        now: Now,
    ) -> Result<(), SubmitError> {
        self.now = now;
        self.objecter.notify(target, payload, timeout, token, now)
    }

    pub fn mon_command(
        &mut self,
        token: u64,
        command: Command,
        input: Payload,
        now: Now,
    ) -> Result<(), MonError> {
        self.now = now;
        self.mon.command(token, command, input, now)
    }

    pub fn pool_op(
        &mut self,
        token: u64,
        pool: u32,
        op: u32,
        snapid: u64,
        now: Now,
    ) -> Result<(), MonError> {
        self.now = now;
        self.mon.pool_op(token, pool, op, snapid, now)
    }

    /// Has the newest OSD map fetched. [`ClientEvent::LatestMap`] with `token` tells.
    pub fn wait_for_latest_map(&mut self, token: u64, now: Now) -> Result<(), MonError> {
        self.now = now;
        let id = self.versions.insert(VersionFor::Caller { token });
        self.mon.get_version(id as u64, "osdmap", now)
    }

    // ---- the driver's side ----

    /// Carries out what requests and events have brought about. Call it after any of the other
    /// calls and before looking at actions and output; many calls may share one.
    pub fn flush(&mut self, now: Now, sink: &mut dyn Completions) {
        self.now = now;
        self.run_mon(sink);
        self.run_osd(sink);
    }

    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// A connection that has something to send.
    pub fn poll_dirty(&mut self) -> Option<ConnId> {
        while let Some(id) = self.dirty.pop_front() {
            if let Some(conn) = self.conn(id) {
                conn.dirty = false;
                if conn.msgr.has_output() {
                    return Some(id);
                }
            }
        }
        None
    }

    /// Takes what a connection has to send. `batch` must be empty.
    pub fn take_output(&mut self, id: ConnId, batch: &mut OutBatch) {
        if let Some(conn) = self.conn(id) {
            conn.msgr.take_output(batch);
        }
    }

    /// The socket is connected.
    pub fn connected(&mut self, id: ConnId, now: Now) {
        self.now = now;
        if let Some(conn) = self.conn(id) {
            conn.msgr.start(now);
            self.mark_dirty(id);
        }
    }

    /// Bytes have come in on a connection.
    pub fn received(&mut self, id: ConnId, bytes: &[u8], now: Now, sink: &mut dyn Completions) {
        self.now = now;
        let mut input = bytes;
        loop {
            // The connection goes on only if no event has closed it.
            let Some(conn) = self.conns.get_mut(id.key as usize) else {
                return;
            };
            if conn.generation != id.generation {
                return;
            }
            let event = match conn.msgr.next_event(&mut input, now) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(e) => {
                    let denied = peers::is_final(&e);
                    return self.fail_conn(id, &e.to_string(), denied, sink);
                }
            };
            match (event, &mut conn.peer) {
                (Event::Message(m), Peer::Osd { session, .. }) => {
                    if m.header.kind == crate::objecter::msg::OSD_MAP {
                        let version = m.header.version;
                        let (map, maps) = (self.map.clone(), Arc::clone(&self.maps));
                        let news = maps.advance(map, version, m.front);
                        self.take_maps(id, news, sink);
                        continue;
                    }
                    let incoming = OsdIncoming {
                        kind: m.header.kind,
                        version: m.header.version,
                        tid: m.header.tid,
                        front: m.front,
                        data: m.data,
                    };
                    let session = *session;
                    if let Err(e) = self.objecter.message(session, &incoming, now, sink) {
                        return self.fail_conn(id, &e.to_string(), false, sink);
                    }
                }
                (Event::Message(m), Peer::Mon { attempt, .. }) => {
                    let attempt = *attempt;
                    let incoming = MonIncoming {
                        kind: m.header.kind,
                        version: m.header.version,
                        tid: m.header.tid,
                        front: m.front,
                        data: m.data,
                    };
                    if m.header.kind == auth::MSG_AUTH_REPLY {
                        // Whether more is to be asked for, `run_mon` finds out.
                        if let Err(e) = self.auth.renewal_reply(m.front, now) {
                            return self.fail_conn(id, &e.to_string(), false, sink);
                        }
                        self.retry_ticketless();
                    } else if m.header.kind == crate::objecter::msg::OSD_MAP {
                        let version = m.header.version;
                        let news = self.maps.advance(self.map.clone(), version, m.front);
                        self.take_maps(id, news, sink);
                    } else {
                        // A message that does not decode has cost the session already.
                        let _ = self.mon.message(attempt, &incoming, now);
                        self.run_mon(sink);
                    }
                }
                (Event::KeepaliveAck(_), Peer::Mon { attempt, .. }) => {
                    let attempt = *attempt;
                    self.mon.keepalive_ack(attempt, now);
                }
                (event, peer) => {
                    let step = Step::of(event);
                    match peer.handshake(step, &mut conn.msgr, now) {
                        Ok(false) => self.mark_dirty(id),
                        Ok(true) => {
                            self.opened(id);
                            self.mark_dirty(id);
                        }
                        Err(e) => return self.refused(id, &e, sink),
                    }
                }
            }
        }
        if self.conn(id).is_some_and(|c| c.msgr.has_output()) {
            self.mark_dirty(id);
        }
    }

    /// The socket is gone, or could not be connected; `why` in a few words.
    pub fn closed(&mut self, id: ConnId, why: &str, now: Now, sink: &mut dyn Completions) {
        self.now = now;
        if self.conn(id).is_some() {
            self.fail_conn(id, why, false, sink);
        }
    }

    /// The monotonic moment at which [`Client::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<u64> {
        let conns = self
            .conns
            .iter()
            .filter_map(|(_, c)| c.msgr.next_deadline())
            .min();
        let parts = [
            self.mon.next_deadline(),
            self.objecter.next_deadline(),
            self.auth.next_deadline(self.now),
            conns,
        ];
        parts.into_iter().flatten().min()
    }

    pub fn tick(&mut self, now: Now, sink: &mut dyn Completions) {
        self.now = now;
        let due = |c: &Conn| c.msgr.next_deadline().is_some_and(|at| at <= now.mono);
        let late: Vec<ConnId> = self
            .conns
            .iter()
            .filter(|(_, c)| due(c))
            .map(|(key, c)| ConnId {
                key: key as u32,
                generation: c.generation,
            })
            .collect();
        for id in late {
            let Some(conn) = self.conn(id) else { continue };
            match conn.msgr.tick(now) {
                Ok(()) => self.mark_dirty(id),
                Err(e) => self.fail_conn(id, &e.to_string(), false, sink),
            }
        }
        self.mon.tick(now);
        self.objecter.tick(now, sink);
        self.flush(now, sink);
    }

    // ---- inside ----

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns
            .get_mut(id.key as usize)
            .filter(|c| c.generation == id.generation)
    }

    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push_back(id);
        }
    }

    fn open(&mut self, peer: Peer, addr: EntityAddr) -> ConnId {
        self.generation = self.generation.wrapping_add(1);
        self.global_seq += 1;
        let kind = peer.kind();
        let num = match self.auth.global_id() {
            0 => -1,
            id => id as i64,
        };
        let me = EntityName::new(EntityType::CLIENT, num);
        let config = msgr::Config {
            crc_data: self.config.crc_data,
            global_seq: self.global_seq,
            cookie_seed: self.entropy.word(),
            handshake_timeout: self.config.handshake_timeout,
            ..msgr::Config::client(me, self.addrs.clone())
        };
        let generation = self.generation;
        let msgr = Connection::client(config, addr, kind);
        let key = self.conns.insert(Conn {
            generation,
            msgr,
            peer,
            dirty: false,
        }) as u32;
        let id = ConnId { key, generation };
        if let Some(addr) = addr.addr {
            self.actions.push_back(Action::Connect { conn: id, addr });
        }
        id
    }

    /// Forgets a connection and has its socket closed.
    fn drop_conn(&mut self, key: usize) -> Conn {
        let conn = self.conns.remove(key);
        let id = ConnId {
            key: key as u32,
            generation: conn.generation,
        };
        self.actions.push_back(Action::Close { conn: id });
        conn
    }

    fn mon_conn(&self, attempt: u64) -> Option<ConnId> {
        self.find(|p| matches!(p, Peer::Mon { attempt: a, .. } if *a == attempt))
    }

    fn osd_conn(&self, session: SessionId) -> Option<ConnId> {
        let id = find_osd(&self.osd_conns, session)?;
        self.conns
            .get(id.key as usize)
            .is_some_and(|c| c.serves(id, session))
            .then_some(id)
    }

    fn find(&self, is: impl Fn(&Peer) -> bool) -> Option<ConnId> {
        let (key, conn) = self.conns.iter().find(|(_, c)| is(&c.peer))?;
        Some(ConnId {
            key: key as u32,
            generation: conn.generation,
        })
    }

    /// A handshake is done: the session is open.
    fn opened(&mut self, id: ConnId) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id.key as usize) else {
            return;
        };
        match &mut conn.peer {
            Peer::Mon { attempt, handshake } => {
                let attempt = *attempt;
                // Only the first of several monitors dialled becomes the session.
                if self.mon.session().is_some() {
                    self.mon.dialed_ok(attempt, now);
                    return;
                }
                let Some(handshake) = handshake.take() else {
                    return;
                };
                self.auth.adopt(handshake);
                self.addrs = conn.msgr.my_addrs().clone();
                self.objecter.set_addrs(self.addrs.clone());
                self.mon.dialed_ok(attempt, now);
                self.retry_ticketless();
            }
            Peer::Osd { session, handshake } => {
                *handshake = None;
                let session = *session;
                self.objecter.session_open(session, now);
            }
        }
    }

    /// The peer, or we, found fault with the authentication.
    fn refused(&mut self, id: ConnId, error: &Refusal, sink: &mut dyn Completions) {
        let denied = match error {
            Refusal::Auth(AuthError::ReclaimRefused { .. }) => {
                // To the cluster we are another client from here on.
                self.auth.forget();
                false
            }
            Refusal::Auth(AuthError::NotReady) => false,
            Refusal::Auth(AuthError::TicketRefused { .. }) => {
                if let Some(Conn {
                    peer:
                        Peer::Osd {
                            handshake: Some(hs),
                            ..
                        },
                    ..
                }) = self.conns.get(id.key as usize)
                {
                    self.auth.service_refused(hs);
                }
                false
            }
            Refusal::Auth(_) => true,
            Refusal::Conn(e) => peers::is_final(e),
        };
        self.fail_conn(id, &error.to_string(), denied, sink);
    }

    /// A connection came to its end. `denied`: the peer answered and does not want us, so that
    /// trying again is of little use.
    fn fail_conn(&mut self, id: ConnId, why: &str, denied: bool, sink: &mut dyn Completions) {
        if self.conn(id).is_none() {
            return;
        }
        let conn = self.drop_conn(id.key as usize);
        match conn.peer {
            Peer::Mon { attempt, .. } => {
                if self.mon.session() == Some(attempt) {
                    tracing::debug!("monitor session lost: {why}");
                    self.auth.session_lost();
                    self.mon.lost(attempt, why, self.now);
                } else {
                    let why = why.to_owned();
                    self.mon.dial_failed(
                        attempt,
                        &if denied {
                            crate::mon::DialError::Denied(why)
                        } else {
                            crate::mon::DialError::Unreachable(why)
                        },
                    );
                }
                self.run_mon(sink);
            }
            Peer::Osd { session, .. } => {
                tracing::debug!(osd = session.osd, "session lost: {why}");
                self.objecter.session_lost(session, self.now);
            }
        }
    }

    fn run_mon(&mut self, sink: &mut dyn Completions) {
        loop {
            while let Some(action) = self.mon.poll() {
                self.do_mon(action);
            }
            let Some(event) = self.mon.poll_event() else {
                break;
            };
            self.mon_event(event, sink);
        }
        if self.auth.renewal_due(self.now)
            && let Some(attempt) = self.mon.session()
            && let Some(id) = self.mon_conn(attempt)
        {
            let seed = self.entropy.bytes();
            if let Some(front) = self.auth.renewal_request(&seed, self.now) {
                let header = MsgHeader::new(auth::MSG_AUTH, 1, 1);
                self.send(id, &header, &front, &[]);
            }
        }
    }

    fn do_mon(&mut self, action: MonAction) {
        match action {
            MonAction::Dial { attempt, addrs } => {
                let Some(addr) = addrs.msgr2().copied() else {
                    let why = "it has no msgr2 address".to_owned();
                    self.mon
                        .dial_failed(attempt, &crate::mon::DialError::Unreachable(why));
                    return;
                };
                let seed = self.entropy.bytes();
                let handshake = Some(self.auth.mon_handshake(&seed));
                self.open(Peer::Mon { attempt, handshake }, addr);
            }
            MonAction::Hangup { attempt } => {
                if let Some(id) = self.mon_conn(attempt) {
                    let conn = self.drop_conn(id.key as usize);
                    // The session itself, given up for its silence, not one of several attempts.
                    if let Peer::Mon {
                        handshake: None, ..
                    } = conn.peer
                    {
                        self.auth.session_lost();
                    }
                }
            }
            MonAction::Send { attempt, message } => {
                if let Some(id) = self.mon_conn(attempt) {
                    let mut header = MsgHeader::new(message.kind, message.version, message.compat);
                    header.tid = message.tid;
                    self.send(id, &header, &message.front, &[message.data]);
                }
            }
            MonAction::Keepalive { attempt } => {
                if let Some(id) = self.mon_conn(attempt) {
                    let now = self.now;
                    if let Some(conn) = self.conn(id) {
                        conn.msgr.keepalive(now);
                    }
                    self.mark_dirty(id);
                }
            }
        }
    }

    /// A failure to send shows up as the connection's own error with its next event.
    fn send(&mut self, id: ConnId, header: &MsgHeader, front: &[u8], data: &[Payload]) {
        if let Some(conn) = self.conn(id) {
            let _ = conn
                .msgr
                .send(header, |out| out.extend_from_slice(front), &[], data);
        }
        self.mark_dirty(id);
    }

    fn mon_event(&mut self, event: MonEvent, sink: &mut dyn Completions) {
        match event {
            MonEvent::Ready => {
                self.mon_ready = true;
                // Not before: the monitors' configuration decides how to talk to OSDs.
                if self.map.is_none() {
                    self.mon.subscribe_osdmap(0, true);
                }
                self.announce();
            }
            MonEvent::Config(values) => self.configure(values),
            MonEvent::MonMap { .. } | MonEvent::Auth(_) => {}
            MonEvent::TicketsVoid => self.auth.invalidate_tickets(),
            MonEvent::CommandDone { token, result } => {
                self.events
                    .push_back(ClientEvent::CommandDone { token, result });
            }
            MonEvent::PoolOpDone { token, result } => {
                self.events
                    .push_back(ClientEvent::PoolOpDone { token, result });
            }
            MonEvent::Version { token, result } => {
                let asked = self.versions.try_remove(token as usize);
                match (asked, result) {
                    (Some(VersionFor::Objecter { token }), Ok(v)) => {
                        let epoch = u32::try_from(v.newest).unwrap_or(u32::MAX);
                        self.objecter.latest_map(token, epoch, self.now, sink);
                    }
                    (Some(VersionFor::Caller { token }), Ok(v)) => {
                        let epoch = u32::try_from(v.newest).unwrap_or(u32::MAX);
                        self.wait_for_epoch(epoch, token);
                    }
                    (Some(VersionFor::Caller { token }), Err(e)) => {
                        let result = Err(e);
                        self.events
                            .push_back(ClientEvent::LatestMap { token, result });
                    }
                    // Asked again when the request is looked at the next time.
                    (Some(VersionFor::Objecter { token }), Err(_)) => {
                        let epoch = self.objecter.epoch();
                        self.objecter.latest_map(token, epoch, self.now, sink);
                    }
                    (None, _) => {}
                }
            }
            MonEvent::Failed(e) => {
                self.failed = true;
                self.objecter.cancel_all(OpError::Cancelled, sink);
                self.events.push_back(ClientEvent::Failed(e.to_string()));
            }
        }
    }

    /// Takes the options that the monitors hold for us. Those of OSD sessions count from the start;
    /// a change of them later takes effect with the next client.
    fn configure(&mut self, values: std::collections::BTreeMap<String, String>) {
        for name in self.config.set_from_monitors(values) {
            tracing::warn!("the monitors' value of {name} makes no sense and is passed over");
        }
        if self.map.is_none() && self.objecter.in_flight() == 0 {
            let seed = self.entropy.word();
            let config = ObjecterConfig {
                seed,
                ..self.config.objecter.clone()
            };
            self.objecter = Objecter::new(config);
            self.objecter.set_addrs(self.addrs.clone());
        }
    }

    fn wait_for_epoch(&mut self, epoch: u32, token: u64) {
        if self.objecter.epoch() >= epoch {
            self.events.push_back(ClientEvent::LatestMap {
                token,
                result: Ok(()),
            });
            return;
        }
        self.waiting.push((epoch, token));
        self.mon.subscribe_osdmap(self.objecter.epoch() + 1, true);
    }

    fn announce(&mut self) {
        if self.mon_ready && self.map.is_some() && !self.announced {
            self.announced = true;
            self.events.push_back(ClientEvent::Ready);
        }
    }

    /// Puts newer maps to use, one epoch after the other.
    fn take_maps(
        &mut self,
        id: ConnId,
        news: Result<maps::News, maps::MapError>,
        sink: &mut dyn Completions,
    ) {
        let news = match news {
            Ok(news) => news,
            Err(e) => return self.fail_conn(id, &e.to_string(), false, sink),
        };
        for map in news.maps {
            let epoch = map.epoch();
            self.map = Some(Arc::clone(&map));
            self.objecter.handle_map(map, self.now, sink);
            self.mon.got_osdmap(epoch);
            self.events.push_back(ClientEvent::Map { epoch });
        }
        if let Some(have) = news.gap_after {
            self.mon.subscribe_osdmap(have + 1, true);
        }
        let epoch = self.objecter.epoch();
        // A monitor answers with so many epochs at a time (`osd_map_message_max`); an OSD sends
        // all it has by itself.
        let from_mon = |c: &mut Conn| matches!(c.peer, Peer::Mon { .. });
        if news.newest > epoch && self.conn(id).is_some_and(from_mon) {
            self.objecter.expect_newer_map();
        }
        let events = &mut self.events;
        self.waiting.retain(|&(wanted, token)| {
            if wanted > epoch {
                return true;
            }
            events.push_back(ClientEvent::LatestMap {
                token,
                result: Ok(()),
            });
            false
        });
        self.announce();
    }

    fn run_osd(&mut self, sink: &mut dyn Completions) {
        // A message is encoded straight into its connection's output, while the objecter still
        // holds it.
        while let Some(action) = self.objecter.poll() {
            match action {
                OsdAction::Send { session, message } => {
                    let Some(id) = find_osd(&self.osd_conns, session) else {
                        continue;
                    };
                    let Some(conn) = self.conns.get_mut(id.key as usize) else {
                        continue;
                    };
                    if !conn.serves(id, session) {
                        continue;
                    }
                    let h = message.header;
                    let header = MsgHeader {
                        tid: h.tid,
                        priority: h.priority,
                        ..MsgHeader::new(h.kind, h.version, h.compat)
                    };
                    // A failure shows up as the connection's own error with its next event.
                    let _ = conn.msgr.send(
                        &header,
                        |out| message.encode_front(out),
                        &[],
                        message.data(),
                    );
                    if !conn.dirty {
                        conn.dirty = true;
                        self.dirty.push_back(id);
                    }
                }
                OsdAction::OpenSession { session, addrs } => self.dial_osd(session, addrs),
                OsdAction::CloseSession { session } => {
                    self.ticketless.retain(|(s, _)| *s != session);
                    if let Some(id) = self.osd_conn(session) {
                        self.drop_conn(id.key as usize);
                    }
                }
                OsdAction::Ping { session } => {
                    if let Some(id) = self.osd_conn(session) {
                        let now = self.now;
                        if let Some(conn) = self.conn(id) {
                            conn.msgr.keepalive(now);
                        }
                        self.mark_dirty(id);
                    }
                }
                OsdAction::WantMap { have, continuous } => {
                    let start = if have == 0 { 0 } else { have + 1 };
                    self.mon.subscribe_osdmap(start, !continuous);
                    self.run_mon(sink);
                }
                OsdAction::WantLatestEpoch { token } => {
                    let id = self.versions.insert(VersionFor::Objecter { token });
                    if self.mon.get_version(id as u64, "osdmap", self.now).is_err() {
                        self.versions.remove(id);
                    }
                    self.run_mon(sink);
                }
                OsdAction::Blocklisted => self.events.push_back(ClientEvent::Blocklisted),
            }
        }
    }

    fn dial_osd(&mut self, session: SessionId, addrs: EntityAddrVec) {
        let Some(addr) = addrs.msgr2().copied() else {
            // Not before the cluster publishes another address: the objecter looks again with
            // the next map.
            tracing::warn!(osd = session.osd, "has no msgr2 address");
            self.objecter.session_lost(session, self.now);
            return;
        };
        let seed = self.entropy.bytes();
        match self.auth.service_handshake(EntityType::OSD, &seed) {
            Ok(handshake) => {
                let id = self.open(
                    Peer::Osd {
                        session,
                        handshake: Some(handshake),
                    },
                    addr,
                );
                let at = usize::try_from(session.osd).expect("an OSD of the map");
                if self.osd_conns.len() <= at {
                    self.osd_conns.resize(at + 1, None);
                }
                self.osd_conns[at] = Some(id);
            }
            Err(_) => self.ticketless.push((session, addrs)),
        }
    }

    fn retry_ticketless(&mut self) {
        for (session, addrs) in std::mem::take(&mut self.ticketless) {
            self.dial_osd(session, addrs);
        }
    }
}

/// For calls that complete nothing.
struct Nobody;

impl Completions for Nobody {
    fn op_done(&mut self, _: u64, _: crate::objecter::OpReply<'_>) {}
    fn watch_event(&mut self, _: u64, _: crate::objecter::WatchEvent<'_>) {}
    fn notify_done(&mut self, _: u64, _: Result<(), OpError>, _: &[u8]) {}
}
