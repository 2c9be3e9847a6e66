//! OSDs, the maps they get and the connections they have, on a clock that the test drives.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use crate::auth::AuthName;
use crate::auth::server::Caps;
use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now, UTime};
use crate::msgr::{Message, MsgHeader};
use crate::objecter::ObjectOp;
use crate::objecter::msg::{
    HObjectRef, Locator, MOsdMap, MOsdOp, MOsdOpReply, MWatchNotify, NOSNAP, OSD_BACKOFF, OSD_MAP,
    OSD_OP, OSD_OPREPLY, OsdFlags, PgId, ReqId, SpgId, WATCH_NOTIFY, WireList,
};
use crate::osd::cls::Method;
use crate::osd::outbox::{Link, Outbox, Peer, Step};
use crate::osd::serve::{MapHistory, Osd, OsdConfig, OsdEvent};
use crate::osd::store::Seq;
use crate::osd::store::slow::SlowStore;
use crate::osdmap::{Incremental, OsdMap, Pool};

pub(super) const POOL: i64 = 1;
pub(super) const SECOND: u64 = 1_000_000_000;
/// Shares its bit with the backoff feature.
const FEATURES: u64 = 1 << 21 | 1 << 2;

pub(super) type TestOsd = Osd<SlowStore>;

/// Incremental and full maps by epoch.
type Stored = BTreeMap<u32, (Arc<[u8]>, Arc<[u8]>)>;

#[derive(Default)]
pub(super) struct History(Mutex<Stored>);

impl MapHistory for History {
    fn full(&self, epoch: u32) -> Option<Arc<[u8]>> {
        Some(Arc::clone(&self.0.lock().unwrap().get(&epoch)?.1))
    }
    fn incremental(&self, epoch: u32) -> Option<Arc<[u8]>> {
        Some(Arc::clone(&self.0.lock().unwrap().get(&epoch)?.0))
    }
}

/// A class of the tests' own: one method returns its input, the other makes the object, too.
pub(super) fn method(class: &str, name: &str) -> Option<&'static Method> {
    static METHODS: [Method; 2] = [
        Method {
            class: "test",
            name: "echo",
            reads: true,
            writes: false,
            call: |_, input| Ok(input.to_vec()),
        },
        Method {
            class: "test",
            name: "put",
            reads: true,
            writes: true,
            call: |cx, input| {
                cx.create(false)?;
                Ok(input.to_vec())
            },
        },
    ];
    METHODS.iter().find(|m| (m.class, m.name) == (class, name))
}

/// What an OSD sent.
#[derive(Debug, Clone)]
pub(super) enum Got {
    Reply {
        tid: u64,
        result: i32,
        rvals: Vec<i32>,
        outs: Vec<Vec<u8>>,
        user_version: u64,
        flags: i64,
        data_off: u16,
    },
    Notify {
        opcode: u8,
        cookie: u64,
        id: u64,
        code: i32,
        payload: Vec<u8>,
        data: Vec<u8>,
    },
    /// Epochs of incremental and full maps.
    Map(Vec<u32>, Vec<u32>),
    Backoff(u8),
    Closed,
}

/// A request, with what most of them have.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) tid: u64,
    pub(super) name: Vec<u8>,
    pub(super) op: ObjectOp,
    pub(super) flags: OsdFlags,
    pub(super) epoch: u32,
    pub(super) retry: i32,
    pub(super) snap: u64,
    pub(super) snap_seq: u64,
    pub(super) snaps: Vec<u64>,
    pub(super) namespace: Vec<u8>,
    /// Instead of the object's pg.
    pub(super) pg: Option<u32>,
}

pub(super) struct Rig {
    pub(super) map: Arc<OsdMap>,
    /// By epoch.
    pub(super) maps: BTreeMap<u32, Arc<OsdMap>>,
    pub(super) history: Arc<History>,
    pub(super) osds: Vec<TestOsd>,
    durable: Vec<Rc<Cell<Seq>>>,
    pub(super) now: Now,
    links: BTreeMap<Link, usize>,
    last_link: u64,
    inbox: BTreeMap<Link, VecDeque<Got>>,
    pub(super) events: Vec<(usize, OsdEvent<SlowStore>)>,
    /// Released pgs that the test hands over itself.
    pub(super) keep_released: bool,
}

fn addr(n: u8, port: u16) -> EntityAddrVec {
    let sock = std::net::SocketAddr::from(([10, 0, n, 1], port));
    EntityAddrVec(vec![EntityAddr::msgr2(sock, 7)])
}

pub(super) fn client_addr(gid: u64) -> EntityAddrVec {
    addr(9, gid as u16)
}

pub(super) fn pg(seed: u32) -> PgId {
    PgId { pool: POOL, seed }
}

impl Rig {
    /// Three OSDs and a pool; `place` says who serves its pgs. Commits are immediate until
    /// [`Rig::slow`].
    pub(super) fn new(pg_num: u32, place: impl Fn(u32) -> i32) -> Rig {
        let golden = include_bytes!("../../../../../tests/golden/v20/simple.osdmap");
        let map = OsdMap::decode(golden).unwrap();
        let mut pool: Pool = map.pool(POOL).unwrap().clone();
        set_pg_num(&mut pool, pg_num);
        (pool.size, pool.min_size) = (1, 1);
        let mut rig = Rig {
            map: Arc::new(map),
            maps: BTreeMap::new(),
            history: Arc::default(),
            osds: Vec::new(),
            durable: Vec::new(),
            now: Now {
                mono: 1000 * SECOND,
                wall: 1_700_000_000 * SECOND,
            },
            links: BTreeMap::new(),
            last_link: 0,
            inbox: BTreeMap::new(),
            events: Vec::new(),
            keep_released: false,
        };
        let mut inc = Incremental {
            new_pools: BTreeMap::from([(POOL, pool)]),
            new_up_client: (0..3).map(|i| (i, addr(i as u8, 6800))).collect(),
            old_pools: vec![2],
            ..Incremental::default()
        };
        inc.new_pg_temp = (0..pg_num).map(|s| (pg(s), vec![place(s)])).collect();
        rig.next_map(inc);
        for id in 0..3 {
            let store = SlowStore::default();
            store.durable.set(Seq::MAX);
            rig.durable.push(Rc::clone(&store.durable));
            let config = OsdConfig {
                id,
                addrs: addr(id as u8, 6800),
                elsewhere: Default::default(),
                method,
                backoff_on_peering: false,
            };
            let history = Arc::clone(&rig.history);
            rig.osds.push(Osd::new(config, store, history, 5));
        }
        rig.publish();
        rig
    }

    pub(super) fn epoch(&self) -> u32 {
        self.map.epoch()
    }

    /// Makes the next map; no OSD has it yet.
    pub(super) fn next_map(&mut self, mut inc: Incremental) {
        inc.fsid = self.map.fsid();
        inc.epoch = self.map.epoch() + 1;
        let bytes = inc.encode(self.map.require_osd_release());
        self.map = Arc::new(self.map.next(&inc).unwrap());
        self.maps.insert(inc.epoch, Arc::clone(&self.map));
        let full = self.map.encode();
        let mut stored = self.history.0.lock().unwrap();
        stored.insert(inc.epoch, (bytes.into(), full.into()));
    }

    pub(super) fn give_map(&mut self, osd: usize) {
        while self.give_next_map(osd) {}
    }

    /// False when the OSD has the newest.
    pub(super) fn give_next_map(&mut self, osd: usize) -> bool {
        let next = self.osds[osd].epoch() + 1;
        let Some((_, map)) = self.maps.range(next..).next() else {
            return false;
        };
        let map = Arc::clone(map);
        self.run(osd, |o, now, out| o.map(map, now, out));
        true
    }

    pub(super) fn publish(&mut self) {
        for osd in 0..self.osds.len() {
            self.give_map(osd);
        }
    }

    pub(super) fn change(&mut self, inc: Incremental) {
        self.next_map(inc);
        self.publish();
    }

    pub(super) fn change_pool(&mut self, change: impl FnOnce(&mut Pool)) {
        let inc = self.pool_change(change);
        self.change(inc);
    }

    pub(super) fn pool_change(&self, change: impl FnOnce(&mut Pool)) -> Incremental {
        let mut pool = self.map.pool(POOL).unwrap().clone();
        change(&mut pool);
        Incremental {
            new_pools: BTreeMap::from([(POOL, pool)]),
            ..Incremental::default()
        }
    }

    pub(super) fn place(&mut self, seed: u32, osd: i32) {
        self.change(Incremental {
            new_pg_temp: BTreeMap::from([(pg(seed), vec![osd])]),
            ..Incremental::default()
        });
    }

    /// From now on nothing is durable before [`Rig::commit`].
    pub(super) fn slow(&mut self) {
        self.durable.iter().for_each(|d| d.set(0));
        // What was durable stays so, as the stores' numbers say.
        for (osd, durable) in self.osds.iter().zip(&self.durable) {
            durable.set(osd.committed);
        }
    }

    pub(super) fn commit(&mut self, osd: usize, up_to: Seq) {
        self.durable[osd].set(up_to);
        self.run(osd, |o, now, out| o.commit(now, out));
    }

    pub(super) fn durable(&self, osd: usize) -> Seq {
        self.durable[osd].get()
    }

    pub(super) fn advance(&mut self, by: u64) {
        let end = self.now.mono + by;
        loop {
            let due = self.osds.iter().filter_map(|o| o.next_deadline()).min();
            let next = due.map_or(end, |d| d.max(self.now.mono + 1).min(end));
            self.now.wall += next - self.now.mono;
            self.now.mono = next;
            for osd in 0..self.osds.len() {
                self.run(osd, |o, now, out| o.tick(now, out));
            }
            if next == end {
                return;
            }
        }
    }

    /// Runs a step of an OSD, delivers what it sends and does what it wants.
    pub(super) fn run<T>(
        &mut self,
        osd: usize,
        step: impl FnOnce(&mut TestOsd, Now, &mut Outbox) -> T,
    ) -> T {
        let mut out = Outbox::new();
        let result = step(&mut self.osds[osd], self.now, &mut out);
        self.deliver(out);
        self.take_events(osd);
        result
    }

    fn take_events(&mut self, osd: usize) {
        while let Some(event) = self.osds[osd].poll_event() {
            match event {
                OsdEvent::Released { pg, to, state } if !self.keep_released => {
                    let mut out = Outbox::new();
                    self.osds[to as usize].adopt(pg, state, self.now, &mut out);
                    self.deliver(out);
                    self.take_events(to as usize);
                }
                other => self.events.push((osd, other)),
            }
        }
    }

    fn deliver(&mut self, mut out: Outbox) {
        let (inbox, links) = (&mut self.inbox, &mut self.links);
        out.drain(|link, step| {
            let got = match step {
                Step::Close => {
                    links.remove(&link);
                    Got::Closed
                }
                Step::Send {
                    header,
                    front,
                    data,
                } => {
                    let data: Vec<u8> = data.iter().flat_map(|d| d.iter().copied()).collect();
                    received(header, front, data)
                }
            };
            inbox.entry(link).or_default().push_back(got);
        });
    }

    pub(super) fn open(&mut self, osd: usize, gid: u64) -> Link {
        self.open_as(osd, gid, Caps::all())
    }

    pub(super) fn open_as(&mut self, osd: usize, gid: u64, caps: Caps) -> Link {
        self.last_link += 1;
        let link = Link(self.last_link);
        let peer = Peer {
            name: EntityName::new(EntityType::CLIENT, gid as i64),
            auth: AuthName::client("admin"),
            addrs: client_addr(gid),
            caps,
            features: FEATURES,
        };
        self.links.insert(link, osd);
        self.run(osd, |o, now, out| o.opened(link, peer, now, out));
        link
    }

    pub(super) fn close(&mut self, link: Link) {
        self.inbox.remove(&link);
        if let Some(osd) = self.links.remove(&link) {
            self.run(osd, |o, now, out| o.closed(link, now, out));
        }
    }

    pub(super) fn take(&mut self, link: Link) -> Vec<Got> {
        let inbox = self.inbox.remove(&link).unwrap_or_default();
        inbox.into_iter().collect()
    }

    pub(super) fn ask(&self, tid: u64, name: &str, op: ObjectOp) -> Ask {
        let writes = op.ops().iter().any(|o| o.code.is_write());
        let mode = if writes {
            OsdFlags::WRITE
        } else {
            OsdFlags::READ
        };
        Ask {
            tid,
            name: name.into(),
            op,
            flags: mode | OsdFlags::ONDISK,
            epoch: self.epoch(),
            retry: 0,
            snap: NOSNAP,
            snap_seq: 0,
            snaps: Vec::new(),
            namespace: Vec::new(),
            pg: None,
        }
    }

    pub(super) fn pg_of(&self, name: &[u8]) -> u32 {
        let raw = self.map.object_to_pg(POOL, b"", b"", name).unwrap();
        self.map.pool(POOL).unwrap().raw_pg_to_pg(raw).seed
    }

    /// A name whose object lies in a pg.
    pub(super) fn name_in(&self, seed: u32) -> String {
        let mut names = (0..).map(|i| format!("o{i}"));
        names.find(|n| self.pg_of(n.as_bytes()) == seed).unwrap()
    }

    pub(super) fn send(&mut self, link: Link, ask: &Ask) {
        let (header, front, data) = self.encode(ask);
        self.send_raw(link, header, &front, &data);
    }

    pub(super) fn send_raw(&mut self, link: Link, header: MsgHeader, front: &[u8], data: &[u8]) {
        let Some(&osd) = self.links.get(&link) else {
            return;
        };
        let m = Message {
            header,
            front,
            middle: &[],
            data,
        };
        self.run(osd, |o, now, out| o.message(link, &m, now, out));
    }

    pub(super) fn encode(&self, ask: &Ask) -> (MsgHeader, Vec<u8>, Vec<u8>) {
        let pool = self.map.pool(POOL).unwrap();
        let hash = match ask.pg {
            Some(seed) => seed,
            None => pool.hash_key(&ask.namespace, &ask.name),
        };
        let raw = crate::osdmap::RawPg {
            pool: POOL,
            seed: hash,
        };
        let m = MOsdOp {
            pgid: SpgId {
                pg: pool.raw_pg_to_pg(raw),
                ..SpgId::default()
            },
            hash,
            epoch: ask.epoch,
            flags: ask.flags,
            reqid: ReqId::default(),
            trace: [0; 24],
            otel: None,
            client_inc: 0,
            mtime: UTime::default(),
            locator: Locator {
                pool: POOL,
                key: b"",
                namespace: &ask.namespace,
                hash: -1,
            },
            oid: &ask.name,
            ops: WireList::Native(ask.op.ops()),
            snap_id: ask.snap,
            snap_seq: ask.snap_seq,
            snaps: WireList::Native(&ask.snaps),
            retry_attempt: ask.retry,
            features: 0,
        };
        let mut front = Vec::new();
        m.encode(MOsdOp::VERSION, &mut front);
        let data = ask.op.data().iter().flat_map(|p| p.iter().copied());
        let header = MsgHeader {
            tid: ask.tid,
            ..MsgHeader::new(OSD_OP, MOsdOp::VERSION, MOsdOp::COMPAT)
        };
        (header, front, data.collect())
    }

    /// Sends and takes the one answer.
    pub(super) fn call(&mut self, link: Link, ask: &Ask) -> (i32, Vec<u8>) {
        self.send(link, ask);
        let got = self.take(link);
        let mut replies = got.iter().filter_map(|g| match g {
            Got::Reply {
                tid, result, outs, ..
            } if *tid == ask.tid => Some((*result, outs.concat())),
            _ => None,
        });
        let reply = replies.next();
        assert!(replies.next().is_none(), "two answers");
        reply.unwrap_or_else(|| panic!("no answer but {got:?}"))
    }

    /// Like [`Rig::call`], but leaves what else arrives.
    pub(super) fn call_keeping(&mut self, link: Link, ask: &Ask) -> (i32, Vec<u8>) {
        let before = self.take(link);
        self.send(link, ask);
        let mut reply = None;
        let mut rest = before;
        for got in self.take(link) {
            match got {
                Got::Reply { result, outs, .. } => reply = Some((result, outs.concat())),
                other => rest.push(other),
            }
        }
        self.inbox.insert(link, rest.into());
        reply.expect("an answer")
    }

    /// The head of an object in the pool, without a namespace.
    pub(super) fn head<'n>(&self, name: &'n str) -> HObjectRef<'n> {
        let hash = self.map.pool(POOL).unwrap().hash_key(b"", name.as_bytes());
        HObjectRef::head(POOL, b"", b"", name.as_bytes(), hash)
    }
}

pub(super) fn set_pg_num(pool: &mut Pool, n: u32) {
    pool.pg_num = n;
    pool.pgp_num = n;
    pool.pg_num_target = n;
    pool.pgp_num_target = n;
    pool.pg_num_pending = n;
}

fn received(header: &MsgHeader, front: &[u8], data: Vec<u8>) -> Got {
    match header.kind {
        OSD_OPREPLY => {
            let m = MOsdOpReply::decode(header.version, front).unwrap();
            let mut rest = &data[..];
            let mut outs = Vec::new();
            for op in m.ops.iter() {
                let (head, tail) = rest.split_at(op.payload_len as usize);
                outs.push(head.to_vec());
                rest = tail;
            }
            assert!(rest.is_empty(), "data that no operation returned");
            Got::Reply {
                tid: header.tid,
                result: m.result,
                rvals: m.rvals.iter().collect(),
                outs,
                user_version: m.user_version,
                flags: m.flags,
                data_off: header.data_off,
            }
        }
        WATCH_NOTIFY => {
            let m = MWatchNotify::decode(header.version, front).unwrap();
            Got::Notify {
                opcode: m.opcode,
                cookie: m.cookie,
                id: m.notify_id,
                code: m.return_code,
                payload: m.payload.to_vec(),
                data,
            }
        }
        OSD_MAP => {
            let m = MOsdMap::decode(header.version, front).unwrap();
            let epochs = |maps: &[(u32, &[u8])]| maps.iter().map(|(e, _)| *e).collect();
            Got::Map(epochs(&m.incrementals), epochs(&m.full))
        }
        OSD_BACKOFF => {
            let m = crate::objecter::msg::MOsdBackoff::decode(front).unwrap();
            Got::Backoff(m.op)
        }
        kind => panic!("message {kind}"),
    }
}
