//! A whole OSD: requests of any kind from several peers, maps, commits that come late.

#![no_main]

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use cluster::auth::server::Caps;
use cluster::codec::Now;
use cluster::msgr::{Message, MsgHeader};
use cluster::objecter::msg::{MOsdOp, NOSNAP, OSD_OP, OsdFlags, PgId, ReqId};
use cluster::osd::outbox::Step as Sent;
use cluster::osd::store::Seq;
use cluster::osd::store::slow::SlowStore;
use cluster::osd::{Link, MapHistory, Osd, OsdConfig, Outbox, cls};
use cluster::osdmap::{Incremental, OsdMap, Pool};
use fuzz::maps::golden;
use fuzz::server::{Ask, Number, Op, check_objects, make, peer};
use fuzz::{NOW, SECOND, addrs};
use libfuzzer_sys::fuzz_target;

const POOL: i64 = 1;
const PGS: u32 = 2;

#[derive(Debug, Arbitrary)]
enum Step {
    Open {
        caps: u8,
        backoff: bool,
    },
    Close(u8),
    Ask {
        link: u8,
        tid: u8,
        object: u8,
        flags: u32,
        /// Of a map that is still to come.
        ahead: u8,
        other_pg: bool,
        snap: Option<Number>,
        snaps: Vec<u8>,
        ops: Vec<Op>,
        /// A byte of the front to be changed, and into what.
        spoil: Option<(u16, u8)>,
    },
    Raw {
        link: u8,
        kind: u8,
        version: u8,
        front: Vec<u8>,
        data: Vec<u8>,
    },
    Map(u8),
    Commit(u8),
    Wait(u16),
}

struct History;

impl MapHistory for History {
    fn full(&self, epoch: u32) -> Option<Arc<[u8]>> {
        (epoch % 3 == 0).then(|| vec![0; 64].into())
    }
    fn incremental(&self, epoch: u32) -> Option<Arc<[u8]>> {
        (epoch % 2 == 0).then(|| vec![0; 32].into())
    }
}

struct Run {
    osd: Osd<SlowStore>,
    durable: Rc<std::cell::Cell<Seq>>,
    map: Arc<OsdMap>,
    links: Vec<Link>,
    last: u64,
    now: Now,
    /// Requests that were sent on a link and not answered.
    asked: BTreeMap<Link, u64>,
}

const CAPS: [&str; 5] = [
    "",
    "profile rbd",
    "allow r",
    "allow rw pool=rbd namespace=a",
    "profile rbd-read-only pool=rbd",
];

/// Two pgs, both on the one OSD that is looked at.
fn first_map() -> Arc<OsdMap> {
    static MAP: OnceLock<Arc<OsdMap>> = OnceLock::new();
    let make = || {
        let map = OsdMap::decode(&golden("v20/simple.osdmap")).expect("a real map");
        let mut pool: Pool = map.pool(POOL).expect("it has this pool").clone();
        for n in [
            &mut pool.pg_num,
            &mut pool.pgp_num,
            &mut pool.pg_num_target,
            &mut pool.pgp_num_target,
            &mut pool.pg_num_pending,
        ] {
            *n = PGS;
        }
        (pool.size, pool.min_size) = (1, 1);
        let inc = Incremental {
            fsid: map.fsid(),
            epoch: map.epoch() + 1,
            new_pools: BTreeMap::from([(POOL, pool)]),
            new_up_client: (0..3).map(|i| (i, addrs(100 + i as u8))).collect(),
            old_pools: vec![2],
            new_pg_temp: (0..PGS).map(|seed| (pg(seed), vec![0])).collect(),
            ..Incremental::default()
        };
        Arc::new(map.next(&inc).expect("the next map"))
    };
    Arc::clone(MAP.get_or_init(make))
}

fn pg(seed: u32) -> PgId {
    PgId { pool: POOL, seed }
}

fuzz_target!(|steps: Vec<Step>| {
    let store = SlowStore::default();
    let durable = Rc::clone(&store.durable);
    durable.set(Seq::MAX);
    let config = OsdConfig {
        id: 0,
        addrs: addrs(100),
        elsewhere: Default::default(),
        method: cls::find,
        backoff_on_peering: false,
    };
    let mut run = Run {
        osd: Osd::new(config, store, Arc::new(History), 5),
        durable,
        map: first_map(),
        links: Vec::new(),
        last: 0,
        now: NOW,
        asked: BTreeMap::new(),
    };
    let map = Arc::clone(&run.map);
    run.step(|osd, now, out| osd.map(map, now, out));
    run.open(Caps::all(), true);
    for step in steps.into_iter().take(64) {
        run.take(step);
    }
    run.durable.set(Seq::MAX);
    run.step(|osd, now, out| osd.commit(now, out));
    for link in std::mem::take(&mut run.links) {
        run.step(|osd, now, out| osd.closed(link, now, out));
    }
    assert_eq!(run.osd.waiting(), 0, "requests of nobody wait");
    for seed in 0..PGS {
        let store = run.osd.store_mut();
        if store.has(pg(seed)) {
            check_objects(store, pg(seed));
        }
    }
});

impl Run {
    fn take(&mut self, step: Step) {
        match step {
            Step::Open { caps, backoff } => {
                let text = CAPS[usize::from(caps) % CAPS.len()];
                self.open(Caps::new(text), backoff);
            }
            Step::Close(n) => {
                if let Some(link) = self.pick(n) {
                    self.links.retain(|l| *l != link);
                    self.step(|osd, now, out| osd.closed(link, now, out));
                }
            }
            Step::Ask {
                link,
                tid,
                object,
                flags,
                ahead,
                other_pg,
                snap,
                snaps,
                ops,
                spoil,
            } => {
                let Some(link) = self.pick(link) else { return };
                let (ops, data) = make(&ops);
                let name = [b'o', object % 4];
                let snaps: Vec<u64> = snaps.iter().map(|s| (*s).into()).collect();
                let pool = self.map.pool(POOL).expect("it stays");
                let hash = pool.hash_key(b"", &name);
                let seed = (hash % PGS + u32::from(other_pg)) % PGS;
                let asked = Ask {
                    pg: pg(seed),
                    epoch: self.map.epoch() + u32::from(ahead % 8 / 7),
                    flags: OsdFlags(flags),
                    hash,
                    namespace: b"",
                    key: b"",
                    oid: &name,
                    ops: &ops,
                    snap: snap.map_or(NOSNAP, Number::get),
                    snap_seq: snaps.first().copied().unwrap_or(0),
                    snaps: &snaps,
                    reqid: ReqId::default(),
                };
                let mut front = Vec::new();
                asked.message().encode(MOsdOp::VERSION, &mut front);
                if let Some((at, into)) = spoil {
                    let at = usize::from(at) % front.len();
                    front[at] = into;
                }
                let header = MsgHeader {
                    tid: tid.into(),
                    ..MsgHeader::new(OSD_OP, MOsdOp::VERSION, MOsdOp::COMPAT)
                };
                self.message(link, header, &front, &data);
            }
            Step::Raw {
                link,
                kind,
                version,
                front,
                data,
            } => {
                let Some(link) = self.pick(link) else { return };
                let kind = [OSD_OP, 61, 41, 43, 44, 2][usize::from(kind) % 6];
                let header = MsgHeader::new(kind, version.into(), 1);
                self.message(link, header, &front, &data);
            }
            Step::Map(what) => {
                let mut inc = Incremental {
                    fsid: self.map.fsid(),
                    epoch: self.map.epoch() + 1,
                    ..Incremental::default()
                };
                match what % 6 {
                    0 => inc.new_pg_temp = BTreeMap::from([(pg(0), vec![1])]),
                    1 => inc.new_pg_temp = BTreeMap::from([(pg(0), vec![0])]),
                    n => {
                        let mut pool = self.map.pool(POOL).expect("it stays").clone();
                        let flag = match n {
                            2 => cluster::osdmap::pool::flag::FULL,
                            3 => cluster::osdmap::pool::flag::EIO,
                            _ => 0,
                        };
                        pool.flags = pool.flags & 1 | flag;
                        inc.new_pools = BTreeMap::from([(POOL, pool)]);
                    }
                }
                self.map = Arc::new(self.map.next(&inc).expect("the next map"));
                let map = Arc::clone(&self.map);
                self.step(|osd, now, out| osd.map(map, now, out));
            }
            Step::Commit(n) => {
                // What was durable once is so for ever.
                let store = self.osd.store();
                let at = self.durable.get().min(store.applied());
                self.durable.set(at + u64::from(n));
                self.step(|osd, now, out| osd.commit(now, out));
            }
            Step::Wait(millis) => {
                let by = u64::from(millis) * (SECOND / 1000);
                self.now.mono += by;
                self.now.wall += by;
                self.step(|osd, now, out| osd.tick(now, out));
                assert!(self.osd.next_deadline().is_none_or(|at| at >= NOW.mono));
            }
        }
    }

    fn open(&mut self, caps: Caps, backoff: bool) {
        self.last += 1;
        let link = Link(self.last);
        let features = if backoff { 1 << 21 } else { 0 };
        let peer = peer(self.last as u8, caps, features);
        self.links.push(link);
        self.step(|osd, now, out| osd.opened(link, peer, now, out));
    }

    fn pick(&self, n: u8) -> Option<Link> {
        let at = usize::from(n) % self.links.len().max(1);
        self.links.get(at).copied()
    }

    fn message(&mut self, link: Link, header: MsgHeader, front: &[u8], data: &[u8]) {
        if header.kind == OSD_OP {
            *self.asked.entry(link).or_default() += 1;
        }
        let m = Message {
            header,
            front,
            middle: &[],
            data,
        };
        self.step(|osd, now, out| osd.message(link, &m, now, out));
    }

    /// What is sent goes to those who are there, and answers are no more than requests.
    fn step(&mut self, f: impl FnOnce(&mut Osd<SlowStore>, Now, &mut Outbox)) {
        let mut out = Outbox::new();
        f(&mut self.osd, self.now, &mut out);
        while self.osd.poll_event().is_some() {}
        let (links, asked) = (&mut self.links, &mut self.asked);
        out.drain(|link, step| match step {
            Sent::Close => links.retain(|l| *l != link),
            Sent::Send {
                header,
                front,
                data,
            } => {
                assert!(links.contains(&link), "sent to nobody");
                if header.kind == 43 {
                    let open = asked.get_mut(&link).expect("an answer to nothing");
                    *open = open.checked_sub(1).expect("two answers to one request");
                }
                assert!(front.len() < 1 << 20);
                assert!(data.iter().map(|d| d.len()).sum::<usize>() <= 257 << 20);
            }
        });
    }
}
