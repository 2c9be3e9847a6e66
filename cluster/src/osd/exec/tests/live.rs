//! The same random requests to a real OSD and to ours, which have to answer alike.
//!
//! ```text
//! CEPH_TEST_OSD=127.0.0.1:6800/NONCE CEPH_TEST_POOL=1 CEPH_TEST_PG_NUM=8 CEPH_TEST_EPOCH=12 \
//!     cargo test -p cluster exec::tests::live -- --ignored
//! ```
//! The OSD must be the only one, of a cluster without authentication. `SEED` begins elsewhere.
//! It is to be of Ceph 20 with BlueStore: 16 takes a late write's offset for the object's size.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use super::rig::{CLIENT, Rig, payload};
use crate::codec::{EntityAddr, EntityAddrVec, EntityType, Now, Put};
use crate::msgr::{Config, Connection, Event, MsgHeader, OutBatch};
use crate::objecter::ObjectOp;
use crate::objecter::msg::{
    Checksum, CmpMode, CmpOp, Extent, Locator, MOsdOp, MOsdOpReply, NOSNAP, OSD_OP, OSD_OPREPLY,
    OpCode, OpFlags, OsdFlags, OsdOp, PgId, ReqId, SNAPDIR, SpgId, WatchArgs, WatchOp, WireList,
};
use crate::objecter::results::SparseRead;
use crate::osdmap::Pool;
use crate::osdmap::objhash::{RJENKINS, mask_of, stable_mod};

/// `AUTH_MODE_AUTHORIZER`, which is also the version of a `none` authorizer.
const AUTHORIZER: u8 = 1;
const AUTH_NONE: u32 = 1;
const MODE_CRC: u32 = 1;

struct Osd {
    conn: Connection,
    socket: TcpStream,
    batch: OutBatch,
    start: Instant,
    pool: i64,
    pg_num: u32,
    epoch: u32,
    tid: u64,
}

fn number<T: std::str::FromStr>(name: &str) -> T {
    let text = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    text.parse()
        .unwrap_or_else(|_| panic!("{name} is no number"))
}

#[derive(Debug)]
struct Reply {
    result: i32,
    ops: Vec<(i32, Vec<u8>)>,
    user_version: u64,
}

impl Osd {
    fn dial() -> Osd {
        let text: String = number("CEPH_TEST_OSD");
        let (addr, nonce) = text.split_once('/').expect("address and nonce");
        let addr: SocketAddr = addr.parse().unwrap();
        let nonce = nonce.parse().unwrap();
        let socket = TcpStream::connect(addr).unwrap();
        let timeout = Some(Duration::from_secs(20));
        socket.set_read_timeout(timeout).unwrap();
        socket.set_nodelay(true).unwrap();
        let blank = EntityAddr {
            nonce: 4711,
            ..EntityAddr::default()
        };
        let config = Config::client(CLIENT, EntityAddrVec(vec![blank]));
        let peer = EntityAddr::msgr2(addr, nonce);
        let mut osd = Osd {
            conn: Connection::client(config, peer, EntityType::OSD),
            socket,
            batch: OutBatch::new(),
            start: Instant::now(),
            pool: number("CEPH_TEST_POOL"),
            pg_num: number("CEPH_TEST_PG_NUM"),
            epoch: number("CEPH_TEST_EPOCH"),
            tid: 0,
        };
        let now = osd.now();
        // Numbers of an earlier run would make these requests repetitions of those.
        osd.tid = now.wall;
        osd.conn.start(now);
        osd.until(|e| matches!(e, Event::Ready(_)).then_some(()));
        osd
    }

    fn now(&self) -> Now {
        let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        Now {
            mono: self.start.elapsed().as_nanos() as u64,
            wall: wall.as_nanos() as u64,
        }
    }

    fn until<T>(&mut self, mut take: impl FnMut(&Event<'_>) -> Option<T>) -> T {
        let mut buf = vec![0; 1 << 16];
        loop {
            self.conn.take_output(&mut self.batch);
            for slice in self.batch.slices() {
                self.socket.write_all(slice).unwrap();
            }
            self.batch.clear();
            let n = self.socket.read(&mut buf).unwrap();
            assert!(n > 0, "the OSD hung up");
            let now = self.now();
            let mut input = &buf[..n];
            let mut taken = None;
            loop {
                let (request, finish) = match self.conn.next_event(&mut input, now).unwrap() {
                    None => break,
                    Some(e) => {
                        taken = taken.or(take(&e));
                        let request = matches!(e, Event::AuthStart);
                        (request, matches!(e, Event::AuthDone { .. }))
                    }
                };
                if request {
                    let mut payload = vec![AUTHORIZER];
                    payload.put_u32(u32::from(EntityType::CLIENT.0));
                    payload.put_string("admin");
                    payload.put_u64(CLIENT.num as u64);
                    self.conn
                        .auth_request(AUTH_NONE, &[MODE_CRC], &payload)
                        .unwrap();
                }
                if finish {
                    self.conn.auth_finish(&[], &[]).unwrap();
                }
            }
            if let Some(taken) = taken {
                return taken;
            }
        }
    }

    fn ask(&mut self, name: &str, rig: &Rig, ops: &[OsdOp], data: &[u8]) -> Reply {
        self.tid += 1;
        let pool = Pool {
            object_hash: RJENKINS,
            ..Pool::default()
        };
        let hash = pool.hash_key(b"", name.as_bytes());
        let writes = ops.iter().any(|o| o.code.is_write());
        let access = if writes {
            OsdFlags::WRITE
        } else {
            OsdFlags::READ
        };
        let op = MOsdOp {
            pgid: SpgId {
                pg: PgId {
                    pool: self.pool,
                    seed: stable_mod(hash, self.pg_num, mask_of(self.pg_num)),
                },
                ..SpgId::default()
            },
            hash,
            epoch: self.epoch,
            flags: rig.flags | access | OsdFlags::ONDISK,
            reqid: ReqId::default(),
            trace: [0; 24],
            otel: None,
            client_inc: 0,
            mtime: rig.mtime(),
            locator: Locator {
                pool: self.pool,
                key: b"",
                namespace: b"",
                hash: -1,
            },
            oid: name.as_bytes(),
            ops: WireList::Native(ops),
            snap_id: rig.snap,
            snap_seq: rig.snap_context.0,
            snaps: WireList::Native(&rig.snap_context.1),
            retry_attempt: 0,
            features: 0,
        };
        let header = MsgHeader {
            tid: self.tid,
            ..MsgHeader::new(OSD_OP, MOsdOp::VERSION, MOsdOp::COMPAT)
        };
        let front = |b: &mut Vec<u8>| op.encode(MOsdOp::VERSION, b);
        self.conn
            .send(&header, front, &[], &[payload(data)])
            .unwrap();
        let tid = self.tid;
        self.until(|e| match e {
            Event::Message(m) if m.header.kind == OSD_OPREPLY && m.header.tid == tid => {
                let reply = MOsdOpReply::decode(m.header.version, m.front).unwrap();
                let mut rest = m.data;
                let parts = reply.ops.iter().zip(reply.rvals.iter()).map(|(op, rval)| {
                    let (part, left) = rest.split_at(op.payload_len as usize);
                    rest = left;
                    (rval, part.to_vec())
                });
                Some(Reply {
                    result: reply.result,
                    ops: parts.collect(),
                    user_version: reply.user_version,
                })
            }
            _ => None,
        })
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn bytes(&mut self, max: u64) -> Vec<u8> {
        let byte = b'a' + self.below(26) as u8;
        vec![byte; self.below(max) as usize + 1]
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn offset(&mut self) -> u64 {
        match self.below(20) {
            0 => (128 << 20) - 2 + self.below(4),
            1 => u64::MAX - self.below(3),
            2..6 => self.below(20) * 1000,
            _ => self.below(60),
        }
    }

    fn extent(&mut self, code: OpCode, length: u64) -> OsdOp {
        let truncate_seq = if self.one_in(4) {
            self.below(5) as u32
        } else {
            0
        };
        OsdOp::with_extent(
            code,
            Extent {
                offset: self.offset(),
                length,
                truncate_size: self.below(60),
                truncate_seq,
            },
        )
    }

    fn raw(&mut self, op: OsdOp, data: &[u8]) -> ObjectOp {
        let mut op = op;
        op.payload_len = data.len() as u32;
        ObjectOp::from_parts(&[op], payload(data))
    }

    fn key(&mut self) -> &'static [u8] {
        self.pick(&[b"a", b"b", b"ba", b"bb", b"\xff", b"c"])
    }

    fn read(&mut self) -> ObjectOp {
        let new = ObjectOp::new();
        let name = self.pick(&["x", "y", "z"]);
        match self.below(19) {
            0 | 1 => new.read(self.offset(), self.below(90)),
            2 => {
                let op = self.extent(OpCode::READ, 50);
                self.raw(op, b"")
            }
            3 => new.stat(),
            4 => new.sparse_read(self.offset(), self.below(30_000)),
            5 => {
                let data = self.bytes(3);
                new.cmpext(self.below(30), payload(&data))
            }
            6 => {
                let data = self.bytes(5);
                let op = self.extent(OpCode::CMPEXT, data.len() as u64);
                self.raw(op, &data)
            }
            7 => new.getxattr(name),
            8 => new.getxattrs(),
            9 | 10 => {
                let op = self.pick(&[
                    CmpOp::Eq,
                    CmpOp::Ne,
                    CmpOp::Gt,
                    CmpOp::Gte,
                    CmpOp::Lt,
                    CmpOp::Lte,
                ]);
                if self.one_in(2) {
                    let value = self.pick(&[&b"1"[..], b"20", b"z"]);
                    new.cmpxattr(name, op, CmpMode::String, value)
                } else {
                    let value = self.pick(&[0u64, 1, 20]).to_le_bytes();
                    new.cmpxattr(name, op, CmpMode::U64, &value)
                }
            }
            11 => new.omap_get_keys(self.key(), self.below(4)),
            12 => new.omap_get_vals(b"", self.key(), self.below(4)),
            13 => new.omap_get_header(),
            14 => new.omap_get_vals_by_keys([self.key(), self.key()].into_iter()),
            15 => {
                let op = self.pick(&[CmpOp::Eq, CmpOp::Lt, CmpOp::Gt, CmpOp::Lte]);
                let value = self.pick(&[&b""[..], b"m", b"\xff"]);
                new.omap_cmp([(self.key(), value, op)].into_iter())
            }
            16 => {
                let sum = Checksum {
                    offset: self.below(10),
                    length: self.below(4) * 4,
                    chunk_size: self.pick(&[0, 4, 5]),
                    kind: self.pick(&[0, 1, 2]),
                };
                self.raw(OsdOp::with_checksum(sum), &[1, 2, 3, 4, 5, 6, 7, 8][..])
            }
            17 => {
                let code = self.pick(&[
                    OpCode::OMAP_GET_KEYS,
                    OpCode::OMAP_GET_VALS,
                    OpCode::OMAP_GET_VALS_BY_KEYS,
                    OpCode::OMAP_CMP,
                    OpCode::ISDIRTY,
                ]);
                self.raw(OsdOp::plain(code), &[7, 0, 0, 0])
            }
            _ => new.assert_version(0),
        }
    }

    fn write(&mut self, snaps: &[u64]) -> ObjectOp {
        let new = ObjectOp::new();
        let name = self.pick(&["x", "y", "z"]);
        let data = self.bytes(40);
        match self.below(26) {
            0..4 => new.write(self.offset(), payload(&data)),
            4 => {
                let op = self.extent(OpCode::WRITE, data.len() as u64);
                self.raw(op, &data)
            }
            5 => {
                let op = self.extent(OpCode::WRITE, 0);
                self.raw(op, b"")
            }
            6 => new.write_full(payload(&data)),
            7 => new.append(payload(&data)),
            8 => {
                let length = self.below(4) * data.len() as u64 + self.below(2);
                new.write_same(self.offset(), length, payload(&data))
            }
            9 | 10 => new.zero(self.offset(), self.offset()),
            11 => new.truncate(self.offset()),
            12 => {
                let size = self.below(60);
                let e = Extent {
                    offset: size,
                    truncate_size: size,
                    truncate_seq: self.below(5) as u32,
                    ..Extent::default()
                };
                self.raw(OsdOp::with_extent(OpCode::TRUNCATE, e), b"")
            }
            13 | 14 => new.delete(),
            15 => new.create(self.one_in(2)),
            16 | 17 => {
                let snap = self.pick(&[snaps, &[1, 3, 1000]].concat());
                new.rollback(snap)
            }
            18 => new.set_alloc_hint(1 << 22, 4096, 0),
            19 => {
                let value = self.pick(&[&b"1"[..], b"20", b"z", b""]);
                new.setxattr(name, value)
            }
            20 => new.rmxattr(name),
            21 => new.omap_set([(self.key(), &data[..]), (self.key(), b"m")].into_iter()),
            22 => match self.below(4) {
                // An object whose omap has become empty is cleared in Ceph, one that never had any
                // is not; here neither is, so that something else has to change it.
                0 => new.create(false).omap_clear(),
                1 => new.omap_set_header(payload(&data)),
                2 => new.omap_rm_range(self.key(), self.key()),
                _ => new.omap_rm_keys([self.key()].into_iter()),
            },
            23 => {
                let code = self.pick(&[
                    OpCode::OMAP_SET_VALS,
                    OpCode::OMAP_RM_KEYS,
                    OpCode::OMAP_RM_KEY_RANGE,
                    OpCode::CREATE,
                    OpCode::CACHE_PIN,
                    OpCode(0x2200 | 63),
                ]);
                self.raw(OsdOp::plain(code), &[7, 0, 0, 0])
            }
            24 => {
                let e = Extent {
                    length: 3,
                    ..Extent::default()
                };
                let code = self.pick(&[OpCode::WRITE, OpCode::WRITEFULL, OpCode::APPEND]);
                self.raw(OsdOp::with_extent(code, e), &data)
            }
            _ => {
                let op = self.pick(&[WatchOp::Watch, WatchOp::Unwatch, WatchOp::Reconnect]);
                let args = WatchArgs {
                    cookie: 1 + self.below(2),
                    op: op as u8,
                    ..WatchArgs::default()
                };
                self.raw(OsdOp::with_watch(args), b"")
            }
        }
    }
}

/// What a sparse read found, as the bytes from zero on.
fn plain(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (offset, data) in SparseRead::decode(bytes).unwrap().iter() {
        if data.iter().any(|b| *b != 0) {
            out.resize(offset as usize, 0);
            out.extend_from_slice(data);
        }
    }
    while out.last() == Some(&0) {
        out.pop();
    }
    out
}

#[test]
#[ignore = "needs a real OSD, named by CEPH_TEST_OSD"]
fn a_real_osd_answers_alike() {
    let mut osd = Osd::dial();
    let begin = std::env::var("SEED").map_or(1, |s| s.parse().unwrap());
    let run = osd.now().wall;
    let mut different = 0;
    for seed in begin..begin + 300 {
        let mut rng = Rng(seed);
        let mut rig = Rig::new();
        let name = format!("object-{run}-{seed}");
        let mut snaps: Vec<u64> = Vec::new();
        let mut versions = (0, 0);
        let mut last = String::new();
        for step in 0..120 {
            if rng.one_in(8) {
                snaps.insert(0, snaps.first().unwrap_or(&3) + 1 + rng.below(3));
            }
            rig.flags = OsdFlags::NONE;
            rig.snap = NOSNAP;
            rig.snap_context = (0, Vec::new());
            let mut all = Vec::new();
            let writing = rng.one_in(2);
            for _ in 0..1 + rng.below(4) {
                let op = if writing && !rng.one_in(3) {
                    rng.write(&snaps)
                } else {
                    rng.read()
                };
                let flags = if rng.one_in(6) {
                    OpFlags::FAILOK
                } else {
                    OpFlags::NONE
                };
                all.push(op.with_flags(flags));
            }
            let mut ops: Vec<OsdOp> = all.iter().flat_map(|o| o.ops().to_vec()).collect();
            let parts = all.iter().flat_map(|o| o.data());
            let mut data: Vec<u8> = parts.flat_map(|p| p.to_vec()).collect();
            if ops.iter().any(|o| o.code.is_write()) {
                let from = if rng.one_in(10) { 1 } else { 0 };
                let seen = snaps.get(from..).unwrap_or_default().to_vec();
                rig.snap_context = (seen.first().copied().unwrap_or(0), seen);
                if rng.one_in(20) {
                    rig.snap_context.1.push(1 << 40);
                }
                if rng.one_in(4) {
                    rig.flags = OsdFlags::ORDERSNAP;
                }
            } else if rng.one_in(6) {
                ops = vec![OsdOp::plain(OpCode::LIST_SNAPS)];
                data.clear();
                rig.snap = if rng.one_in(9) { NOSNAP } else { SNAPDIR };
            } else if rng.one_in(2) && !snaps.is_empty() {
                rig.snap = rng.pick(&snaps) - rng.below(2);
            }

            // Ceph forgets that it has to remove an object which one request removes, makes and
            // removes again (`PGTransaction::remove`), and sees no change in one that it makes and
            // removes.
            let gone = |o: &&OsdOp| matches!(o.code, OpCode::DELETE | OpCode::ROLLBACK);
            let gone = ops.iter().filter(gone).count();
            if gone > 1 || (gone > 0 && !rig.is_stored()) {
                continue;
            }

            let has = |code| ops.iter().any(|o| o.code == code);
            // It aborts over keys of an object that has omap and is not there yet, and what is
            // removed as a range is what was there before the request.
            if has(OpCode::OMAP_SET_VALS) && has(OpCode::OMAP_RM_KEY_RANGE)
                || has(OpCode::OMAP_SET_VALS) && has(OpCode::OMAP_CLEAR)
                || has(OpCode::OMAP_GET_KEYS) && !rig.is_stored()
            {
                continue;
            }

            let theirs = osd.ask(&name, &rig, &ops, &data);
            let whiteout = rig.is_whiteout();
            let context = rig.snap_context.clone();
            let snap = rig.snap;
            let mut ours = rig.ask_raw(&ops, &data);
            if ours.changed {
                // A write returns nothing.
                ours.result = 0;
                ours.ops.iter_mut().for_each(|o| o.1.clear());
            }
            let revived = whiteout && ours.changed && theirs.user_version <= versions.0;
            let case = format!(
                "seed {seed}, step {step}: {ops:?}\nat {snap}, {context:?}\ntheirs {theirs:?}\nours {ours:?}"
            );
            let mut alike = theirs.result == ours.result;
            for ((op, a), b) in ops.iter().zip(&theirs.ops).zip(&ours.ops) {
                let sparse = op.code == OpCode::SPARSE_READ && !a.1.is_empty();
                alike &= a.0 == b.0
                    && if sparse && !b.1.is_empty() {
                        plain(&a.1) == plain(&b.1)
                    } else {
                        a.1 == b.1
                    };
            }
            // Both have a new version, or none has.
            if ours.result >= 0 && ours.user_version > 0 && snap >= NOSNAP {
                let now = (theirs.user_version, ours.user_version);
                let grown = (now.0 > versions.0, now.1 > versions.1);
                alike &= grown.0 == grown.1 || versions.0 == 0;
                versions = now;
            }
            if ours.changed {
                last = format!("{step} {ops:?} {whiteout} {versions:?} {theirs:?} {ours:?}");
            }
            if revived {
                // Where nothing else happened to it the object now is there only with us.
                break;
            }
            if !alike {
                println!("{case}\nafter {last}");
                different += 1;
                break;
            }
        }
    }
    assert_eq!(different, 0);
}
