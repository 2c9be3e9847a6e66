//! A cluster in memory that loses connections, moves pgs, splits and merges them, backs off and
//! restarts, chosen by a seed. Whatever happens, each request ends exactly once, writes to an
//! object take effect exactly once and in order, and reads see what was acknowledged before.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::rig::{Event, FakeMap, POOL, Rig, SECOND, Sent, addrs, pool_of, write};
use crate::objecter::msg::{
    BackoffOp, HObjectRef, MOsdOpReply, OSD_OPREPLY, OpCode, OsdFlags, OsdMapFlags, SpgId,
};
use crate::objecter::placement::{is_merge_target, is_split};
use crate::objecter::{Incoming, ObjectOp, ObjecterConfig, OpId, Request, SessionId, Target};

const OBJECTS: u64 = 24;
const SEEDS: u64 = 40;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What the OSDs hold together; as if replication were perfect.
#[derive(Default)]
struct Objects {
    /// Tokens of the writes to each object, in the order they took effect.
    logs: HashMap<String, Vec<u64>>,
    /// Writes by transaction id, as an OSD's log of requests knows them.
    known: HashMap<u64, ()>,
}

/// What a session has received, in order.
enum In {
    Request(Box<Sent>),
    BackoffAck(u64),
}

/// What was asked, and front and data of the answer.
type Answer = (Sent, Vec<u8>, Vec<u8>);

/// A backoff in force. An OSD lifts it only after the client has acknowledged it: by then, all
/// requests sent without knowing of it have been dropped (`PG::release_backoffs`).
struct Held {
    session: SessionId,
    pgid: SpgId,
    id: u64,
    acked: bool,
}

struct Expected {
    object: String,
    is_write: bool,
    /// Writes to the object that had been acknowledged when a read was submitted.
    at_least: usize,
}

struct World {
    rig: Rig,
    random: Random,
    objects: Objects,
    /// Since when each pg is where it is: requests from before are dropped.
    since: Vec<u32>,
    /// Since when reads and writes are served, for the same reason.
    reads_since: u32,
    writes_since: u32,
    /// What each session has received and not executed, and answers on their way.
    inbox: BTreeMap<SessionId, VecDeque<In>>,
    outbox: BTreeMap<SessionId, VecDeque<Answer>>,
    backoffs: Vec<Held>,
    connected: BTreeMap<i32, SessionId>,
    expected: HashMap<u64, Expected>,
    submitted: HashMap<String, Vec<u64>>,
    acknowledged: HashMap<String, usize>,
    ids: VecDeque<OpId>,
    next_token: u64,
    nonce: u32,
    ended: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let config = ObjecterConfig {
            idle_close: Some(Duration::from_secs(20)),
            max_ops: 64,
            seed,
            ..ObjecterConfig::default()
        };
        let mut rig = Rig::with(config);
        rig.auto_open = false;
        World {
            rig,
            random: Random(seed),
            objects: Objects::default(),
            since: vec![0; 4],
            reads_since: 0,
            writes_since: 0,
            inbox: BTreeMap::new(),
            outbox: BTreeMap::new(),
            backoffs: Vec::new(),
            connected: BTreeMap::new(),
            expected: HashMap::new(),
            submitted: HashMap::new(),
            acknowledged: HashMap::new(),
            ids: VecDeque::new(),
            next_token: 1,
            nonce: 10,
            ended: 0,
        }
    }

    /// Does what the objecter asks for, and takes note of what it tells.
    fn settle(&mut self) {
        use super::rig::Did;
        loop {
            self.rig.pump();
            let did = self.rig.take_did();
            let quiet = did.is_empty();
            for did in did {
                match did {
                    Did::Open(session, to) => {
                        // Connecting to where no OSD is any more fails.
                        if self.rig.map.up.get(&session.osd) == Some(&to) {
                            self.connected.insert(session.osd, session);
                        }
                    }
                    Did::Close(session) => self.disconnect(session),
                    Did::Ping(_) | Did::WantMap { .. } | Did::BackoffAck(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            if quiet {
                break;
            }
        }
        for sent in self.rig.take_sent() {
            let inbox = self.inbox.entry(sent.session).or_default();
            inbox.push_back(In::Request(Box::new(sent)));
        }
        for event in self.rig.take_events() {
            self.check(event);
        }
    }

    fn disconnect(&mut self, session: SessionId) {
        self.connected.retain(|_, s| *s != session);
        self.inbox.remove(&session);
        self.outbox.remove(&session);
        self.backoffs.retain(|b| b.session != session);
    }

    fn check(&mut self, event: Event) {
        let Event::Done(token, result, data) = event else {
            panic!("{event:?}");
        };
        let expected = self.expected.remove(&token);
        let expected = expected.unwrap_or_else(|| panic!("{token} ended twice"));
        self.ended += 1;
        assert_eq!(result, Ok(()), "{token}");
        let object = expected.object;
        if expected.is_write {
            assert!(self.objects.logs[&object].contains(&token));
            *self.acknowledged.entry(object).or_default() += 1;
        } else {
            let seen = u64::from_le_bytes(data[0][..].try_into().unwrap());
            assert!(seen as usize >= expected.at_least, "{token} on {object}");
        }
    }

    fn submit(&mut self) {
        if !self.rig.obj.has_room(4096) {
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        // The last character is the hash; see `FakeMap::object_hash`.
        let n = self.random.below(OBJECTS);
        let hash = char::from(b'0' + (n % 10) as u8);
        let object = format!("object{n}.{hash}");
        let is_write = self.random.below(2) == 0;
        let request = if is_write {
            let order = self.submitted.entry(object.clone()).or_default();
            order.push(token);
            write(&object, token)
        } else {
            let ops = ObjectOp::new().read(0, 8);
            let read = Request::read(Target::object(POOL, &object), ops, token);
            match self.random.below(4) {
                0 => read.with_flags(OsdFlags::BALANCE_READS),
                1 => read.with_flags(OsdFlags::LOCALIZE_READS),
                _ => read,
            }
        };
        let at_least = self.acknowledged.get(&object).copied().unwrap_or(0);
        let expected = Expected {
            object,
            is_write,
            at_least,
        };
        self.expected.insert(token, expected);
        let now = self.rig.now;
        let id = self.rig.obj.submit(request, now).unwrap();
        assert!(self.ids.back().is_none_or(|last| *last < id));
        self.ids.push_back(id);
    }

    /// An OSD takes its next request.
    fn execute(&mut self, session: SessionId) {
        let sent = match self.inbox.get_mut(&session).and_then(VecDeque::pop_front) {
            None => return,
            Some(In::Request(sent)) => *sent,
            Some(In::BackoffAck(id)) => {
                for held in self.backoffs.iter_mut().filter(|b| b.id == id) {
                    held.acked = true;
                }
                return;
            }
        };
        let map = &self.rig.map;
        let pool = &map.pools[&POOL];
        let seed = sent.pgid.pg.seed;
        let write = sent.code() == OpCode::WRITE;
        let up: Vec<i32> = pool.pgs.get(seed as usize).map_or(Vec::new(), |osds| {
            osds.iter()
                .copied()
                .filter(|o| map.up.contains_key(o))
                .collect()
        });
        let replica = sent
            .flags
            .has(OsdFlags::BALANCE_READS | OsdFlags::LOCALIZE_READS);
        let primary = up.first() == Some(&session.osd);
        let serves = primary || (replica && up.contains(&session.osd));
        let stale = self
            .since
            .get(seed as usize)
            .is_none_or(|&e| sent.epoch < e);
        let since = if write {
            self.writes_since
        } else {
            self.reads_since
        };
        let paused = sent.epoch < since;
        let held = |b: &Held| b.session == session && b.pgid == sent.pgid;
        let backed_off = self.backoffs.iter().any(held);
        if !serves || stale || paused || backed_off {
            // The client finds out from the map or the end of the backoff.
            return;
        }
        if self.random.below(50) == 0 {
            let (id, pgid) = (self.random.next(), sent.pgid);
            self.backoffs.push(Held {
                session,
                pgid,
                id,
                acked: false,
            });
            let (begin, end) = (HObjectRef::MIN, HObjectRef::MAX);
            self.rig
                .backoff(session, BackoffOp::Block, pgid, id, begin, end);
            // The acknowledgement is the first thing the client says after that.
            let inbox = self.inbox.entry(session).or_default();
            inbox.push_back(In::BackoffAck(id));
            return;
        }
        let log = self.objects.logs.entry(sent.name.clone()).or_default();
        let mut result = 0;
        let mut out = Vec::new();
        if write {
            let text = std::str::from_utf8(&sent.data).unwrap();
            let token: u64 = text.strip_prefix("data of ").unwrap().parse().unwrap();
            if self.objects.known.insert(sent.tid, ()).is_none() {
                log.push(token);
            }
        } else if replica && !primary && self.random.below(3) == 0 {
            result = -11;
        } else {
            out = (log.len() as u64).to_le_bytes().to_vec();
        }
        let (front, data) = sent.answer(result, &[&out], None);
        let outbox = self.outbox.entry(session).or_default();
        outbox.push_back((sent, front, data));
    }

    /// The client receives an answer; they may overtake each other.
    fn deliver(&mut self, session: SessionId) {
        let Some(outbox) = self.outbox.get_mut(&session).filter(|o| !o.is_empty()) else {
            return;
        };
        let i = self.random.below(outbox.len() as u64) as usize;
        let (sent, front, data) = outbox.remove(i).unwrap();
        let m = Incoming {
            kind: OSD_OPREPLY,
            version: MOsdOpReply::VERSION,
            tid: sent.tid,
            front: &front,
            data: &data,
        };
        let now = self.rig.now;
        self.rig
            .obj
            .message(session, &m, now, &mut self.rig.sink)
            .unwrap();
    }

    /// A new map. OSDs know it at once, the client now or when the next one comes too.
    fn change_map(&mut self) {
        let before = self.rig.map.clone();
        let map = &mut self.rig.map;
        map.epoch += 1;
        let osd = self.random.below(3) as i32;
        let stopped = map.flags != OsdMapFlags::SORTBITWISE || map.pool_mut().view.full;
        match self.random.below(12) {
            // Or hardly anything would ever be served.
            0..=5 if stopped => {
                map.flags = OsdMapFlags::SORTBITWISE;
                map.pool_mut().view.full = false;
            }
            0..=3 => {
                let pgs = map.pool_mut().pgs.len() as u64;
                let i = self.random.below(pgs) as usize;
                map.pool_mut().pgs[i].rotate_left(1);
            }
            4 => {
                map.up.remove(&osd);
            }
            5 | 6 => {
                self.nonce += 1;
                map.up.insert(osd, addrs(osd, self.nonce));
            }
            7 => {
                let n = 1 + self.random.below(9) as usize;
                let mut pgs = map.pool_mut().pgs.clone();
                pgs.resize(n, vec![2, 0, 1]);
                let full = map.pool_mut().view.full;
                *map.pool_mut() = pool_of(pgs);
                map.pool_mut().view.full = full;
            }
            8 => map.flags = OsdMapFlags(map.flags.0 ^ OsdMapFlags::PAUSERD.0),
            9 => map.flags = OsdMapFlags(map.flags.0 ^ OsdMapFlags::PAUSEWR.0),
            10 => map.pool_mut().view.full ^= true,
            _ => map.pool_mut().view.last_force_op_resend = map.epoch,
        }
        self.adopt(&before);
        if self.random.below(4) > 0 {
            self.rig.publish();
        }
    }

    /// What a new map does to the OSDs and their connections.
    fn adopt(&mut self, before: &FakeMap) {
        let map = &self.rig.map;
        let (old, new) = (&before.pools[&POOL], &map.pools[&POOL]);
        let up = |m: &FakeMap, osds: &[i32]| -> Vec<i32> {
            osds.iter()
                .copied()
                .filter(|o| m.up.contains_key(o))
                .collect()
        };
        let (had, has) = (old.pgs.len() as u32, new.pgs.len() as u32);
        let forced = new.view.last_force_op_resend == map.epoch;
        let mut since = Vec::new();
        for (i, osds) in new.pgs.iter().enumerate() {
            // An OSD drops what is older than the pg's primary, or than its split or merge.
            let first = |m: &FakeMap, o: &[i32]| up(m, o).first().copied();
            let was = old.pgs.get(i).and_then(|o| first(before, o));
            let moved = was != first(map, osds);
            let seed = i as u32;
            let resized =
                seed >= had || is_split(seed, had, has) || is_merge_target(seed, had, has);
            let fresh = resized || forced || moved;
            since.push(match self.since.get(i) {
                Some(&e) if !fresh => e,
                _ => map.epoch,
            });
        }
        self.since = since;
        // Nothing is served in this epoch or before: the next is the first that may be.
        let no_room = new.view.full || old.view.full;
        if no_room || map.flags.has(OsdMapFlags::PAUSEWR) || before.flags.has(OsdMapFlags::PAUSEWR)
        {
            self.writes_since = map.epoch;
        }
        if map.flags.has(OsdMapFlags::PAUSERD) || before.flags.has(OsdMapFlags::PAUSERD) {
            self.reads_since = map.epoch;
        }
        let gone: Vec<SessionId> = self
            .connected
            .iter()
            .filter(|(osd, _)| map.up.get(osd) != before.up.get(osd))
            .map(|(_, s)| *s)
            .collect();
        for session in gone {
            self.lose(session);
        }
    }

    fn lose(&mut self, session: SessionId) {
        self.disconnect(session);
        let now = self.rig.now;
        self.rig.obj.session_lost(session, now);
    }

    fn pick_session(&mut self) -> Option<SessionId> {
        let n = self.connected.len() as u64;
        let i = if n == 0 { 0 } else { self.random.below(n) };
        self.connected.values().nth(i as usize).copied()
    }

    fn lift_backoff(&mut self) {
        let acked = self.backoffs.iter().filter(|b| b.acked).count() as u64;
        if acked == 0 {
            return;
        }
        let pick = self.random.below(acked) as usize;
        let mut acked = self.backoffs.iter().enumerate().filter(|(_, b)| b.acked);
        let (i, _) = acked.nth(pick).unwrap();
        let held = self.backoffs.swap_remove(i);
        let (begin, end) = (HObjectRef::MIN, HObjectRef::MAX);
        let (session, pgid, id) = (held.session, held.pgid, held.id);
        self.rig
            .backoff(session, BackoffOp::Unblock, pgid, id, begin, end);
    }

    fn step(&mut self) {
        let session = self.pick_session();
        match (self.random.below(100), session) {
            (0..=29, _) => self.submit(),
            (30..=57, Some(s)) => self.execute(s),
            (58..=84, Some(s)) => self.deliver(s),
            (85..=88, Some(s)) => self.rig.obj.session_open(s, self.rig.now),
            (89, Some(s)) => self.lose(s),
            (90, _) => self.change_map(),
            (91..=93, _) => self.lift_backoff(),
            (94..=96, _) => {
                self.rig.now.mono += self.random.below(3 * SECOND);
                self.rig.obj.tick(self.rig.now, &mut self.rig.sink);
            }
            _ => {}
        }
        self.settle();
    }

    /// Nothing goes wrong any more: everything must end.
    fn finish(&mut self) {
        let before = self.rig.map.clone();
        self.rig.map.epoch += 1;
        self.rig.map.flags = OsdMapFlags::SORTBITWISE;
        self.rig.map.pool_mut().view.full = false;
        for osd in 0..3 {
            self.rig
                .map
                .up
                .entry(osd)
                .or_insert_with(|| addrs(osd, 9999));
        }
        self.adopt(&before);
        self.rig.publish();
        for _ in 0..4000 {
            if self.expected.is_empty() {
                return;
            }
            self.lift_backoff();
            let sessions: Vec<SessionId> = self.connected.values().copied().collect();
            for s in sessions {
                self.rig.obj.session_open(s, self.rig.now);
                self.execute(s);
                self.deliver(s);
            }
            self.rig.now.mono += SECOND / 10;
            self.rig.obj.tick(self.rig.now, &mut self.rig.sink);
            self.settle();
        }
        panic!("{} requests never ended", self.expected.len());
    }
}

fn run(seed: u64, steps: u32) -> u64 {
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step();
    }
    world.finish();
    for (object, order) in &world.submitted {
        assert_eq!(&world.objects.logs[object], order, "seed {seed}: {object}");
    }
    assert_eq!(world.rig.obj.in_flight(), 0, "seed {seed}");
    assert_eq!(world.rig.obj.ops.len(), 0, "seed {seed}");
    world.ended
}

#[test]
fn whatever_happens_each_request_ends_once_and_in_order() {
    let mut ended = 0;
    for seed in 0..SEEDS {
        ended += run(seed, 10_000);
    }
    assert!(ended > 25_000, "{ended}");
}
