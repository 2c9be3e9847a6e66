//! A map made by hand, and an objecter whose every action is noted.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::codec::{EntityAddr, EntityAddrVec, Now};
use crate::objecter::msg::{
    self, EVersion, Fixed, HObjectRef, MOsdBackoff, MOsdOp, MOsdOpReply, MWatchNotify, NO_SHARD,
    OpCode, OsdFlags, OsdMapFlags, OsdOp, PgId, Redirect, SpgId, WireList,
};
use crate::objecter::{
    Action, Completions, Incoming, Mapped, ObjectOp, Objecter, ObjecterConfig, OpError, OpId,
    OpReply, Placement, PoolShape, PoolView, Request, SessionId, SnapContext, SubmitError, Target,
    WatchEvent,
};
use crate::payload::Payload;

pub(super) const POOL: i64 = 3;
pub(super) const SECOND: u64 = 1_000_000_000;

#[derive(Clone)]
pub(super) struct FakePool {
    pub(super) view: PoolView,
    /// The OSDs of each pg; those that are down are left out of the mapping.
    pub(super) pgs: Vec<Vec<i32>>,
}

#[derive(Clone)]
pub(super) struct FakeMap {
    pub(super) epoch: u32,
    pub(super) flags: OsdMapFlags,
    pub(super) pools: BTreeMap<i64, FakePool>,
    pub(super) up: BTreeMap<i32, EntityAddrVec>,
    pub(super) blocklist: Vec<EntityAddrVec>,
    pub(super) removed_snaps: Vec<u64>,
    /// Up, but without an address.
    pub(super) hidden: Vec<i32>,
}

pub(super) fn addrs(osd: i32, nonce: u32) -> EntityAddrVec {
    let addr = format!("10.0.0.{}:6800", osd + 1).parse().unwrap();
    EntityAddrVec(vec![EntityAddr::msgr2(addr, nonce)])
}

pub(super) fn pool_of(pgs: Vec<Vec<i32>>) -> FakePool {
    FakePool {
        view: PoolView {
            pg_num: pgs.len() as u32,
            pg_num_pending: pgs.len() as u32,
            shape: PoolShape {
                size: 3,
                min_size: 2,
                ..PoolShape::default()
            },
            erasure: false,
            full: false,
            eio: false,
            last_force_op_resend: 0,
            read_tier: None,
            write_tier: None,
        },
        pgs,
    }
}

impl FakeMap {
    /// Three OSDs and a pool of four pgs: pg `n` is on OSDs `n`, `n + 1`, `n + 2` modulo three.
    pub(super) fn new() -> FakeMap {
        let pgs = (0..4).map(|n| (0..3).map(|i| (n + i) % 3).collect());
        FakeMap {
            epoch: 10,
            flags: OsdMapFlags::SORTBITWISE,
            pools: BTreeMap::from([(POOL, pool_of(pgs.collect()))]),
            up: (0..3).map(|osd| (osd, addrs(osd, 1))).collect(),
            blocklist: Vec::new(),
            removed_snaps: Vec::new(),
            hidden: Vec::new(),
        }
    }

    pub(super) fn pool_mut(&mut self) -> &mut FakePool {
        self.pools.get_mut(&POOL).unwrap()
    }

    pub(super) fn primary(&self, name: &str) -> i32 {
        let hash = self.object_hash(POOL, b"", b"", name.as_bytes()).unwrap();
        let pool = &self.pools[&POOL];
        let pg = hash % pool.view.pg_num;
        let seed = pg;
        self.map_pg(PgId { pool: POOL, seed }).acting_primary
    }
}

impl Placement for FakeMap {
    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn flags(&self) -> OsdMapFlags {
        self.flags
    }

    fn pool(&self, id: i64) -> Option<PoolView> {
        self.pools.get(&id).map(|p| p.view)
    }

    fn any_pool_full(&self) -> bool {
        self.pools.values().any(|p| p.view.full)
    }

    /// Small numbers, so that tests pick the pg by the name: its last byte.
    fn object_hash(&self, _: i64, _: &[u8], key: &[u8], name: &[u8]) -> Option<u32> {
        let named = if key.is_empty() { name } else { key };
        Some(u32::from(*named.last()? - b'0'))
    }

    fn map_pg(&self, pg: PgId) -> Mapped {
        let all = &self.pools[&pg.pool].pgs[pg.seed as usize];
        let up: Vec<i32> = all
            .iter()
            .copied()
            .filter(|o| self.up.contains_key(o))
            .collect();
        let primary = up.first().copied().unwrap_or(-1);
        Mapped {
            up: up.clone().into(),
            acting: up.into(),
            up_primary: primary,
            acting_primary: primary,
            shard: NO_SHARD,
        }
    }

    fn osd_addrs(&self, osd: i32) -> Option<&EntityAddrVec> {
        self.up.get(&osd).filter(|_| !self.hidden.contains(&osd))
    }

    fn is_blocklisted(&self, addrs: &EntityAddrVec) -> bool {
        self.blocklist.contains(addrs)
    }

    fn newly_removed_snap(&self, _: i64, snap: u64) -> bool {
        self.removed_snaps.contains(&snap)
    }

    fn distance(&self, osd: i32) -> Option<u32> {
        Some(10 - osd as u32)
    }
}

/// What the objecter told its owner's caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    Done(u64, Result<(), OpError>, Vec<Vec<u8>>),
    Notified(u64, u64, Vec<u8>),
    Disconnected(u64, i32),
    Unconfirmed(u64),
    NotifyDone(u64, Result<(), OpError>, Vec<u8>),
}

#[derive(Default)]
pub(super) struct Sink(pub(super) Vec<Event>);

impl Completions for Sink {
    fn op_done(&mut self, token: u64, reply: OpReply<'_>) {
        let data = reply.results.iter().map(|r| r.data.to_vec()).collect();
        self.0.push(Event::Done(token, reply.result, data));
    }

    fn watch_event(&mut self, cookie: u64, event: WatchEvent<'_>) {
        self.0.push(match event {
            WatchEvent::Notify {
                notify_id, payload, ..
            } => Event::Notified(cookie, notify_id, payload.to_vec()),
            WatchEvent::Disconnected(errno) => Event::Disconnected(cookie, errno),
            WatchEvent::Unconfirmed => Event::Unconfirmed(cookie),
        });
    }

    fn notify_done(&mut self, token: u64, result: Result<(), OpError>, replies: &[u8]) {
        self.0
            .push(Event::NotifyDone(token, result, replies.to_vec()));
    }
}

/// A request as it left the objecter.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) session: SessionId,
    pub(super) tid: u64,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) pool: i64,
    pub(super) pgid: SpgId,
    pub(super) hash: u32,
    pub(super) epoch: u32,
    pub(super) flags: OsdFlags,
    pub(super) retry: i32,
    pub(super) ops: Vec<OsdOp>,
    pub(super) snap_id: u64,
    pub(super) snaps: Vec<u64>,
    pub(super) data: Vec<u8>,
}

impl Sent {
    pub(super) fn code(&self) -> OpCode {
        self.ops[0].code
    }

    fn decode(session: SessionId, tid: u64, front: &[u8], data: Vec<u8>) -> Sent {
        let m = MOsdOp::decode(MOsdOp::VERSION, front).unwrap();
        Sent {
            session,
            tid,
            name: String::from_utf8(m.oid.to_vec()).unwrap(),
            namespace: String::from_utf8(m.locator.namespace.to_vec()).unwrap(),
            pool: m.locator.pool,
            pgid: m.pgid,
            hash: m.hash,
            epoch: m.epoch,
            flags: m.flags,
            retry: m.retry_attempt,
            ops: m.ops.iter().collect(),
            snap_id: m.snap_id,
            snaps: m.snaps.iter().collect(),
            data,
        }
    }

    /// The front of an OSD's answer.
    pub(super) fn answer(
        &self,
        result: i32,
        outs: &[&[u8]],
        redirect: Option<Redirect<'_>>,
    ) -> (Vec<u8>, Vec<u8>) {
        let mut ops = self.ops.clone();
        let mut data = Vec::new();
        for (i, op) in ops.iter_mut().enumerate() {
            let out = outs.get(i).copied().unwrap_or(&[]);
            op.payload_len = out.len() as u32;
            data.extend_from_slice(out);
        }
        let rvals = vec![result; ops.len()];
        let mut front = Vec::new();
        MOsdOpReply {
            oid: self.name.as_bytes(),
            pgid: self.pgid.pg,
            flags: MOsdOpReply::flags_for(self.flags, OsdFlags::ONDISK),
            result,
            bad_replay_version: EVersion::default(),
            epoch: self.epoch,
            ops: WireList::Native(&ops),
            retry_attempt: self.retry,
            rvals: WireList::Native(&rvals),
            replay_version: EVersion::default(),
            user_version: 1,
            redirect,
            trace: [0; 24],
        }
        .encode(&mut front);
        (front, data)
    }
}

/// Everything but the requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Did {
    Open(SessionId, EntityAddrVec),
    Close(SessionId),
    Ping(SessionId),
    WantMap { have: u32, continuous: bool },
    WantLatestEpoch(u64),
    Blocklisted,
    BackoffAck(u64),
}

pub(super) struct Rig {
    pub(super) obj: Objecter<FakeMap>,
    pub(super) map: FakeMap,
    pub(super) now: Now,
    pub(super) sink: Sink,
    pub(super) sent: Vec<Sent>,
    pub(super) did: Vec<Did>,
    /// Connections are made as soon as they are asked for.
    pub(super) auto_open: bool,
}

impl Rig {
    pub(super) fn unwatch(&mut self, cookie: u64, token: u64) -> Result<OpId, SubmitError> {
        self.obj.unwatch(cookie, token, self.now, &mut self.sink)
    }

    pub(super) fn new() -> Rig {
        Rig::with(ObjecterConfig::default())
    }

    pub(super) fn with(config: ObjecterConfig) -> Rig {
        let mut rig = Rig {
            obj: Objecter::new(config),
            map: FakeMap::new(),
            now: Now {
                mono: 1000 * SECOND,
                wall: 1_700_000_000 * SECOND,
            },
            sink: Sink::default(),
            sent: Vec::new(),
            did: Vec::new(),
            auto_open: true,
        };
        rig.publish();
        rig
    }

    /// Hands the map to the objecter.
    pub(super) fn publish(&mut self) {
        let map = std::sync::Arc::new(self.map.clone());
        self.obj.handle_map(map, self.now, &mut self.sink);
        self.pump();
    }

    pub(super) fn change(&mut self, change: impl FnOnce(&mut FakeMap)) {
        self.map.epoch += 1;
        change(&mut self.map);
        self.publish();
    }

    pub(super) fn pump(&mut self) {
        loop {
            let mut opened = None;
            match self.obj.poll() {
                None => break,
                Some(Action::OpenSession { session, addrs }) => {
                    self.did.push(Did::Open(session, addrs));
                    opened = self.auto_open.then_some(session);
                }
                Some(Action::CloseSession { session }) => self.did.push(Did::Close(session)),
                Some(Action::Ping { session }) => self.did.push(Did::Ping(session)),
                Some(Action::WantMap { have, continuous }) => {
                    self.did.push(Did::WantMap { have, continuous });
                }
                Some(Action::WantLatestEpoch { token }) => {
                    self.did.push(Did::WantLatestEpoch(token));
                }
                Some(Action::Blocklisted) => self.did.push(Did::Blocklisted),
                Some(Action::Send { session, message }) => {
                    let mut front = Vec::new();
                    message.encode_front(&mut front);
                    let data = message.data().iter().flat_map(|p| p.to_vec()).collect();
                    match message.header.kind {
                        msg::OSD_OP => {
                            let tid = message.header.tid;
                            self.sent.push(Sent::decode(session, tid, &front, data));
                        }
                        msg::OSD_BACKOFF => {
                            let ack = MOsdBackoff::decode(&front).unwrap();
                            assert_eq!(ack.op, msg::BackoffOp::AckBlock as u8);
                            self.did.push(Did::BackoffAck(ack.id));
                        }
                        kind => panic!("message {kind}"),
                    }
                }
            }
            if let Some(session) = opened {
                self.obj.session_open(session, self.now);
            }
        }
    }

    pub(super) fn submit(&mut self, request: Request) -> OpId {
        let id = self.obj.submit(request, self.now).unwrap();
        self.pump();
        id
    }

    pub(super) fn read(&mut self, name: &str, token: u64) -> OpId {
        let ops = ObjectOp::new().read(0, 16);
        self.submit(Request::read(Target::object(POOL, name), ops, token))
    }

    pub(super) fn write(&mut self, name: &str, token: u64) -> OpId {
        self.submit(write(name, token))
    }

    pub(super) fn take_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    /// The only request sent since.
    pub(super) fn one_sent(&mut self) -> Sent {
        let mut sent = self.take_sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.sink.0)
    }

    pub(super) fn take_did(&mut self) -> Vec<Did> {
        std::mem::take(&mut self.did)
    }

    pub(super) fn deliver(&mut self, session: SessionId, m: &Incoming<'_>) {
        self.obj
            .message(session, m, self.now, &mut self.sink)
            .unwrap();
        self.pump();
    }

    pub(super) fn answer(&mut self, sent: &Sent, result: i32, outs: &[&[u8]]) {
        let (front, data) = sent.answer(result, outs, None);
        self.deliver_reply(sent, &front, &data);
    }

    pub(super) fn deliver_reply(&mut self, sent: &Sent, front: &[u8], data: &[u8]) {
        let m = Incoming {
            kind: msg::OSD_OPREPLY,
            version: MOsdOpReply::VERSION,
            tid: sent.tid,
            front,
            data,
        };
        self.deliver(sent.session, &m);
    }

    pub(super) fn backoff(
        &mut self,
        session: SessionId,
        op: msg::BackoffOp,
        pgid: SpgId,
        id: u64,
        begin: HObjectRef<'_>,
        end: HObjectRef<'_>,
    ) {
        let mut front = Vec::new();
        MOsdBackoff {
            pgid,
            epoch: self.map.epoch,
            op: op as u8,
            id,
            begin,
            end,
        }
        .encode(&mut front);
        let m = Incoming {
            kind: msg::OSD_BACKOFF,
            version: 1,
            tid: 0,
            front: &front,
            data: &[],
        };
        self.deliver(session, &m);
    }

    pub(super) fn notify_message(&mut self, session: SessionId, n: &MWatchNotify<'_>, data: &[u8]) {
        let mut front = Vec::new();
        n.encode(&mut front);
        let m = Incoming {
            kind: msg::WATCH_NOTIFY,
            version: MWatchNotify::VERSION,
            tid: 0,
            front: &front,
            data,
        };
        self.deliver(session, &m);
    }

    pub(super) fn lose(&mut self, session: SessionId) {
        self.obj.session_lost(session, self.now);
        self.pump();
    }

    pub(super) fn sleep(&mut self, seconds: u64) {
        self.now.mono += seconds * SECOND;
        self.now.wall += seconds * SECOND;
        self.obj.tick(self.now, &mut self.sink);
        self.pump();
    }
}

pub(super) fn write(name: &str, token: u64) -> Request {
    let data = Payload::from(format!("data of {token}").into_bytes());
    let ops = ObjectOp::new().write(0, data);
    let snapc = Rc::new(SnapContext {
        seq: 7,
        snaps: vec![7, 4],
    });
    Request::write(Target::object(POOL, name), ops, snapc, token)
}

pub(super) fn done(token: u64) -> Event {
    Event::Done(token, Ok(()), vec![Vec::new()])
}

pub(super) fn failed(token: u64, error: OpError) -> Event {
    Event::Done(token, Err(error), Vec::new())
}

/// What a real OSD would find in an operation's header is what was put there.
pub(super) const HEADER: usize = <OsdOp as Fixed>::SIZE;
