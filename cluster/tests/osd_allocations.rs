//! How often an OSD asks for memory to serve requests of 4 KiB, once it has its working size.
//!
//! `cargo test --release -p cluster --test osd_allocations -- --ignored --nocapture` measures how
//! long they take; under `perf stat -e instructions:u`, how many instructions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cluster::auth::AuthName;
use cluster::auth::server::Caps;
use cluster::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now, UTime};
use cluster::msgr::{Message, MsgHeader};
use cluster::objecter::ObjectOp;
use cluster::objecter::msg::{
    Locator, MOsdOp, NOSNAP, OSD_OP, OsdFlags, PgId, ReqId, SpgId, WireList,
};
use cluster::osd::outbox::Step;
use cluster::osd::store::memory::MemoryStore;
use cluster::osd::{Link, MapHistory, Osd, OsdConfig, Outbox, Peer, cls};
use cluster::osdmap::{Incremental, OsdMap};
use cluster::payload::Payload;

/// Counts allocations of the thread that asks for it.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator as they come; counting touches a cell without a
// destructor, which does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const POOL: i64 = 1;
const LINK: Link = Link(1);
const OBJECT: &[u8] = b"rbd_data.10a2b3c4d5e6.0000000000000001";
const SIZE: u64 = 4 << 20;
const BLOCK: u64 = 4096;

struct NoHistory;

impl MapHistory for NoHistory {
    fn full(&self, _: u32) -> Option<Arc<[u8]>> {
        None
    }
    fn incremental(&self, _: u32) -> Option<Arc<[u8]>> {
        None
    }
}

struct Bench {
    osd: Osd<MemoryStore>,
    out: Outbox,
    map: Arc<OsdMap>,
    now: Now,
    tid: u64,
    front: Vec<u8>,
    answers: u64,
    bytes: u64,
}

fn addrs(port: u16) -> EntityAddrVec {
    EntityAddrVec(vec![EntityAddr::msgr2(([10, 0, 0, 1], port).into(), 7)])
}

impl Bench {
    fn new() -> Bench {
        let golden = include_bytes!("../../tests/golden/v20/simple.osdmap");
        let map = OsdMap::decode(golden).unwrap();
        let mut pool = map.pool(POOL).unwrap().clone();
        (pool.size, pool.min_size) = (1, 1);
        let place = |seed| (PgId { pool: POOL, seed }, vec![0]);
        let inc = Incremental {
            fsid: map.fsid(),
            epoch: map.epoch() + 1,
            new_pg_temp: (0..pool.pg_num).map(place).collect(),
            new_pools: BTreeMap::from([(POOL, pool)]),
            new_up_client: BTreeMap::from([(0, addrs(6800))]),
            old_pools: vec![2],
            ..Incremental::default()
        };
        let map = Arc::new(map.next(&inc).unwrap());
        let config = OsdConfig {
            id: 0,
            addrs: addrs(6800),
            elsewhere: Default::default(),
            method: cls::find,
            backoff_on_peering: false,
        };
        let mut bench = Bench {
            osd: Osd::new(config, MemoryStore::new(), Arc::new(NoHistory), 5),
            out: Outbox::new(),
            map: Arc::clone(&map),
            now: Now {
                mono: 1,
                wall: 1_700_000_000_000_000_000,
            },
            tid: 0,
            front: Vec::new(),
            answers: 0,
            bytes: 0,
        };
        bench.osd.map(map, bench.now, &mut bench.out);
        let peer = Peer {
            name: EntityName::new(EntityType::CLIENT, 4100),
            auth: AuthName::client("admin"),
            addrs: addrs(1),
            caps: Caps::new("profile rbd"),
            features: u64::MAX,
        };
        bench.osd.opened(LINK, peer, bench.now, &mut bench.out);
        let whole = vec![7; SIZE as usize];
        bench.ask(
            &ObjectOp::new().write_full(Payload::from(whole.clone())),
            &whole,
        );
        bench
    }

    fn ask(&mut self, op: &ObjectOp, data: &[u8]) {
        self.tid += 1;
        let pool = self.map.pool(POOL).unwrap();
        let hash = pool.hash_key(b"", OBJECT);
        let raw = cluster::osdmap::RawPg {
            pool: POOL,
            seed: hash,
        };
        let writes = op.ops().iter().any(|o| o.code.is_write());
        let mode = if writes {
            OsdFlags::WRITE
        } else {
            OsdFlags::READ
        };
        let m = MOsdOp {
            pgid: SpgId {
                pg: pool.raw_pg_to_pg(raw),
                ..SpgId::default()
            },
            hash,
            epoch: self.map.epoch(),
            flags: mode | OsdFlags::ONDISK,
            reqid: ReqId::default(),
            trace: [0; 24],
            otel: None,
            client_inc: 0,
            mtime: UTime { sec: 5, nsec: 6 },
            locator: Locator {
                pool: POOL,
                key: b"",
                namespace: b"",
                hash: -1,
            },
            oid: OBJECT,
            ops: WireList::Native(op.ops()),
            snap_id: NOSNAP,
            snap_seq: 0,
            snaps: WireList::Native(&[]),
            retry_attempt: 0,
            features: 0,
        };
        self.front.clear();
        m.encode(MOsdOp::VERSION, &mut self.front);
        let m = Message {
            header: MsgHeader {
                tid: self.tid,
                ..MsgHeader::new(OSD_OP, MOsdOp::VERSION, MOsdOp::COMPAT)
            },
            front: &self.front,
            middle: &[],
            data,
        };
        self.osd.message(LINK, &m, self.now, &mut self.out);
        let (answers, bytes) = (&mut self.answers, &mut self.bytes);
        self.out.drain(|_, step| {
            if let Step::Send { header, data, .. } = step
                && header.kind == 43
            {
                *answers += 1;
                *bytes += data.iter().map(|d| d.len() as u64).sum::<u64>();
            }
        });
    }

    /// Allocations and nanoseconds of a request, on average.
    fn measure(&mut self, times: u64, op: impl Fn(u64) -> ObjectOp, data: &[u8]) -> (f64, f64) {
        // Making a request may allocate; that is the client's affair.
        let ops: Vec<ObjectOp> = (0..1024).map(|i| op(i * 77 % 1024 * BLOCK)).collect();
        for op in ops.iter().cycle().take(8192) {
            self.ask(op, data);
        }
        let (answers, before, start) = (self.answers, COUNT.get(), Instant::now());
        for op in ops.iter().cycle().take(times as usize) {
            self.ask(op, data);
        }
        assert_eq!(self.answers - answers, times);
        let each = |n: u128| n as f64 / times as f64;
        let allocated = u128::from(COUNT.get() - before);
        (each(allocated), each(start.elapsed().as_nanos()))
    }

    fn reads(&mut self, times: u64) -> (f64, f64) {
        let before = self.bytes;
        let measured = self.measure(times, |at| ObjectOp::new().read(at, BLOCK), &[]);
        assert_eq!(self.bytes - before, (times + 8192) * BLOCK);
        measured
    }

    fn writes(&mut self, times: u64) -> (f64, f64) {
        let data = vec![3; BLOCK as usize];
        let payload = Payload::from(data.clone());
        self.measure(
            times,
            |at| ObjectOp::new().write(at, payload.clone()),
            &data,
        )
    }
}

#[test]
fn a_read_allocates_nothing() {
    let (each, _) = Bench::new().reads(10_000);
    assert!(each == 0.0, "{each} allocations for a read");
}

#[test]
fn a_write_allocates_little() {
    let (each, _) = Bench::new().writes(10_000);
    assert!(each <= MOST_OF_A_WRITE, "{each} allocations for a write");
}

/// The object's name and its info in the transaction, its steps, and what grows now and then.
const MOST_OF_A_WRITE: f64 = 6.0;

#[test]
#[ignore = "measures"]
fn speed() {
    let which = std::env::var("BENCH").unwrap_or_default();
    let times = 1_000_000;
    if which != "write" {
        println!("read (allocations, ns): {:?}", Bench::new().reads(times));
    }
    if which != "read" {
        println!("write (allocations, ns): {:?}", Bench::new().writes(times));
    }
}
