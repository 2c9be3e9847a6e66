//! Requests, watches and notifies under maps, OSDs and connections that do anything.

#![no_main]

use std::rc::Rc;
use std::time::Duration;

use arbitrary::Arbitrary;
use cluster::codec::{EntityAddrVec, Now};
use cluster::objecter::msg::{
    HObjectRef, MOsdBackoff, MWatchNotify, NO_SHARD, OSD_BACKOFF, OSD_OP, OSD_OPREPLY, OsdMapFlags,
    PgId, SpgId, WATCH_NOTIFY,
};
use cluster::objecter::{
    Action, Incoming, Mapped, Objecter, ObjecterConfig, OpError, OpId, Placement, PoolShape,
    PoolView, Request, SessionId, SnapContext, Target, WatchRequest,
};
use cluster::payload::Payload;
use fuzz::osd::{Answer, Asked, Ledger, ops};
use fuzz::{NOW, SECOND, addrs};
use libfuzzer_sys::fuzz_target;

const POOL: i64 = 3;

#[derive(Debug, Arbitrary)]
struct Input {
    op_timeout: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
enum Step {
    Submit {
        kind: u8,
        object: u8,
        len: u16,
        timeout: bool,
        write: bool,
    },
    Watch(u8, u8),
    Unwatch(u8),
    Notify(u8, Vec<u8>),
    Cancel(u8),
    Opened(u8),
    Lost(u8),
    Reply(u8, Answer),
    Raw {
        session: u8,
        kind: u8,
        version: u8,
        tid: u8,
        front: Vec<u8>,
        data: Vec<u8>,
    },
    Backoff {
        request: u8,
        op: u8,
        id: u8,
        one: bool,
    },
    Event {
        session: u8,
        opcode: u8,
        cookie: u8,
        ours: bool,
        id: u8,
    },
    Map(MapChange),
    LatestMap(u8),
    Wait(u16),
}

#[derive(Debug, Clone, Arbitrary)]
struct MapChange {
    skip: u8,
    flags: u32,
    no_pool: bool,
    pg_bits: u8,
    pending: u8,
    full: bool,
    eio: bool,
    resend: bool,
    up: u8,
    moved: u8,
    blocklisted: bool,
    removed: Option<u8>,
    erasure: bool,
    tier: bool,
}

struct Map {
    epoch: u32,
    change: MapChange,
    addrs: Vec<EntityAddrVec>,
}

impl Map {
    fn pg_num(&self) -> u32 {
        1 << (self.change.pg_bits % 4)
    }
}

impl Placement for Map {
    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn flags(&self) -> OsdMapFlags {
        OsdMapFlags(self.change.flags)
    }

    fn pool(&self, id: i64) -> Option<PoolView> {
        let c = &self.change;
        let pool = PoolView {
            pg_num: self.pg_num(),
            pg_num_pending: self.pg_num().min(u32::from(c.pending) + 1),
            shape: PoolShape {
                size: 3,
                min_size: 2,
                ..PoolShape::default()
            },
            erasure: c.erasure,
            full: c.full,
            eio: c.eio,
            last_force_op_resend: if c.resend { self.epoch } else { 0 },
            read_tier: (c.tier && id == POOL).then_some(POOL + 1),
            write_tier: (c.tier && id == POOL).then_some(POOL + 1),
        };
        ((POOL..POOL + 2).contains(&id) && !c.no_pool).then_some(pool)
    }

    fn any_pool_full(&self) -> bool {
        self.change.full
    }

    fn object_hash(&self, pool: i64, _: &[u8], key: &[u8], name: &[u8]) -> Option<u32> {
        self.pool(pool)?;
        let named = if key.is_empty() { name } else { key };
        Some(named.iter().map(|b| u32::from(*b)).sum())
    }

    fn map_pg(&self, pg: PgId) -> Mapped {
        assert!(pg.seed < self.pg_num(), "a pg beyond the pool's");
        let first = (pg.seed as i32 + i32::from(self.change.moved)) % 3;
        let all = (0..3).map(|i| (first + i) % 3);
        let up = all.filter(|osd| self.change.up >> osd & 1 == 0);
        let up: Vec<i32> = up.collect();
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
        let up = self.change.up >> osd & 1 == 0;
        self.addrs.get(osd as usize).filter(|_| up)
    }

    fn is_blocklisted(&self, _: &EntityAddrVec) -> bool {
        self.change.blocklisted
    }

    fn newly_removed_snap(&self, _: i64, snap: u64) -> bool {
        self.change.removed.map(u64::from) == Some(snap)
    }
}

struct Run {
    objecter: Objecter<Map>,
    ledger: Ledger,
    sessions: Vec<SessionId>,
    asked: Vec<(SessionId, Asked)>,
    ids: Vec<OpId>,
    latest: Vec<u64>,
    epoch: u32,
    now: Now,
}

fuzz_target!(|input: Input| {
    let mut run = Run {
        objecter: Objecter::new(ObjecterConfig {
            max_ops: 64,
            max_bytes: 1 << 20,
            op_timeout: input.op_timeout.then_some(Duration::from_secs(30)),
            ..ObjecterConfig::default()
        }),
        ledger: Ledger::default(),
        sessions: Vec::new(),
        asked: Vec::new(),
        ids: Vec::new(),
        latest: Vec::new(),
        epoch: 10,
        now: NOW,
    };
    run.objecter.set_addrs(addrs(9));
    for (token, step) in input.steps.into_iter().enumerate() {
        run.step(token as u64, step);
        run.poll();
        assert!(run.objecter.next_deadline().is_none_or(|at| at >= NOW.mono));
    }
    run.objecter.cancel_all(OpError::Cancelled, &mut run.ledger);
    run.poll();
    run.ledger.assert_empty();
    assert_eq!(run.objecter.in_flight(), 0);
});

impl Run {
    fn step(&mut self, token: u64, step: Step) {
        let now = self.now;
        let object = |n: u8| Target::object(POOL, [b'o', n % 8]);
        let cookie = |n: u8| u64::from(n % 4);
        match step {
            Step::Submit {
                kind,
                object: n,
                len,
                timeout,
                write,
            } => {
                let ops = ops(kind, len);
                let snapc = SnapContext {
                    seq: 9,
                    snaps: vec![9, 5, 1],
                };
                let mut request = match write {
                    true => Request::write(object(n), ops, Rc::new(snapc), token),
                    false => Request::read(object(n), ops, token),
                };
                if timeout {
                    request = request.with_timeout(Duration::from_millis(len.into()));
                }
                if let Ok(id) = self.objecter.submit(request, now) {
                    self.ledger.took(token);
                    self.ids.push(id);
                }
            }
            Step::Watch(n, c) => {
                let request = WatchRequest {
                    target: object(n),
                    cookie: cookie(c),
                    timeout: 30,
                    token,
                };
                if self.objecter.watch(request, now).is_ok() {
                    self.ledger.took(token);
                }
            }
            Step::Unwatch(c) => {
                let taken = self
                    .objecter
                    .unwatch(cookie(c), token, now, &mut self.ledger);
                if taken.is_ok() {
                    self.ledger.took(token);
                }
            }
            Step::Notify(n, payload) => {
                let taken = self.objecter.notify(object(n), payload, 5, token, now);
                if taken.is_ok() {
                    self.ledger.took_notify(token);
                }
            }
            Step::Cancel(n) => {
                if let Some(id) = pick(&self.ids, n) {
                    let before = self.ledger.open();
                    let ended = self.objecter.cancel(id, &mut self.ledger);
                    assert_eq!(before - self.ledger.open(), usize::from(ended));
                }
            }
            Step::Opened(n) => {
                if let Some(session) = pick(&self.sessions, n) {
                    self.objecter.session_open(session, now);
                }
            }
            Step::Lost(n) => {
                if let Some(session) = pick(&self.sessions, n) {
                    self.objecter.session_lost(session, now);
                }
            }
            Step::Reply(n, how) => {
                if let Some((session, asked)) = pick(&self.asked, n) {
                    let (front, data) = asked.answer(&how);
                    self.message(session, OSD_OPREPLY, 8, asked.tid, &front, &data);
                }
            }
            Step::Raw {
                session,
                kind,
                version,
                tid,
                front,
                data,
            } => {
                if let Some(session) = pick(&self.sessions, session) {
                    let kind = [OSD_OPREPLY, OSD_BACKOFF, WATCH_NOTIFY, 41][usize::from(kind) % 4];
                    let tid = pick(&self.asked, tid).map_or(u64::from(tid), |(_, a)| a.tid);
                    self.message(session, kind, version.into(), tid, &front, &data);
                }
            }
            Step::Backoff {
                request,
                op,
                id,
                one,
            } => {
                if let Some((session, asked)) = pick(&self.asked, request) {
                    let begin = HObjectRef {
                        name: &asked.oid,
                        pool: asked.pgid.pool,
                        ..HObjectRef::MIN
                    };
                    let end = if one { begin } else { HObjectRef::MAX };
                    let mut front = Vec::new();
                    MOsdBackoff {
                        pgid: SpgId {
                            pg: asked.pgid,
                            shard: NO_SHARD,
                        },
                        epoch: asked.epoch,
                        op: op % 4,
                        id: (id % 4).into(),
                        begin,
                        end,
                    }
                    .encode(&mut front);
                    self.message(session, OSD_BACKOFF, 1, 0, &front, &[]);
                }
            }
            Step::Event {
                session,
                opcode,
                cookie: c,
                ours,
                id,
            } => {
                if let Some(session) = pick(&self.sessions, session) {
                    let mut front = Vec::new();
                    MWatchNotify {
                        opcode: opcode % 5,
                        cookie: cookie(c) | u64::from(ours) << 63,
                        version: 1,
                        notify_id: (id % 4).into(),
                        payload: b"news",
                        return_code: 0,
                        notifier: 5,
                    }
                    .encode(&mut front);
                    self.message(session, WATCH_NOTIFY, 3, 0, &front, &[0; 8]);
                }
            }
            Step::Map(change) => {
                self.epoch += 1 + u32::from(change.skip % 3);
                let map = Map {
                    epoch: self.epoch,
                    change,
                    addrs: (1..4).map(addrs).collect(),
                };
                self.objecter
                    .handle_map(std::sync::Arc::new(map), now, &mut self.ledger);
            }
            Step::LatestMap(n) => {
                if let Some(token) = pick(&self.latest, n) {
                    let epoch = self.epoch;
                    self.objecter
                        .latest_map(token, epoch, now, &mut self.ledger);
                }
            }
            Step::Wait(millis) => {
                self.now.mono += u64::from(millis) * (SECOND / 1000);
                self.objecter.tick(self.now, &mut self.ledger);
            }
        }
    }

    fn message(
        &mut self,
        session: SessionId,
        kind: u16,
        version: u16,
        tid: u64,
        front: &[u8],
        data: &[u8],
    ) {
        let message = Incoming {
            kind,
            version,
            tid,
            front,
            data,
        };
        let took = self
            .objecter
            .message(session, &message, self.now, &mut self.ledger);
        if took.is_err() {
            self.objecter.session_lost(session, self.now);
        }
    }

    fn poll(&mut self) {
        while let Some(action) = self.objecter.poll() {
            match action {
                Action::OpenSession { session, .. } => {
                    assert!(!self.sessions.contains(&session));
                    self.sessions.push(session);
                }
                Action::CloseSession { session } => self.sessions.retain(|s| *s != session),
                Action::Send { session, message } => {
                    assert!(self.sessions.contains(&session), "sent to nobody");
                    let mut front = Vec::new();
                    message.encode_front(&mut front);
                    if message.header.kind == OSD_OP {
                        let data = message.data().iter().map(Payload::len).sum();
                        let asked = Asked::of(message.header.tid, &front, data);
                        if self.asked.len() >= 64 {
                            self.asked.remove(0);
                        }
                        self.asked.push((session, asked));
                    } else {
                        MOsdBackoff::decode(&front).expect("our own acknowledgement");
                    }
                }
                Action::WantLatestEpoch { token } => self.latest.push(token),
                Action::Ping { .. } | Action::WantMap { .. } | Action::Blocklisted => {}
            }
        }
    }
}

fn pick<T: Clone>(from: &[T], n: u8) -> Option<T> {
    from.get(usize::from(n) % from.len().max(1)).cloned()
}
