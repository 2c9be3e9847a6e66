//! Methods of object classes on an object of any content.

#![no_main]

use arbitrary::Arbitrary;
use cluster::auth::server::Caps;
use cluster::codec::UTime;
use cluster::objecter::ObjectOp;
use cluster::objecter::msg::{EVersion, HObjectRef, NOSNAP, OpCode, OsdFlags, OsdOp, PgId, ReqId};
use cluster::osd::Peer;
use cluster::osd::cls::{self, Method};
use cluster::osd::exec::{ExecEnv, Request, execute};
use cluster::osd::store::memory::MemoryStore;
use cluster::osd::store::{LogEntry, Store};
use cluster::osdmap::Pool;
use cluster::payload::Payload;
use fuzz::NOW;
use fuzz::server::{Ask, check_objects, peer};
use libfuzzer_sys::fuzz_target;

const PG: PgId = PgId { pool: 1, seed: 0 };

#[derive(Debug, Arbitrary)]
struct Input {
    /// What somebody wrote by other means.
    data: Vec<u8>,
    pairs: Vec<(u8, Vec<u8>)>,
    lock: Vec<u8>,
    calls: Vec<(u16, Vec<u8>)>,
}

/// Keys that methods look for.
const KEYS: [&str; 24] = [
    "features",
    "size",
    "order",
    "object_prefix",
    "parent",
    "migration",
    "snap_seq",
    "snapshot_0000000000000001",
    "snap_children_0000000000000001",
    "name_a",
    "id_a",
    "image_a",
    "global_a",
    "status_global_a",
    "mirror_peer_a",
    "image_0000000000000002_a",
    "snap_order_a",
    "rbd_group_ref",
    "client_a",
    "tag_0000000000000001",
    "minimum_set",
    "active_set",
    "metadata_a",
    "op_features",
];

struct Run {
    store: MemoryStore,
    peer: Peer,
    version: u64,
}

fuzz_target!(|input: Input| {
    let mut run = Run {
        store: MemoryStore::new(),
        peer: peer(7, Caps::all(), u64::MAX),
        version: 0,
    };
    run.store.create_pg(PG).expect("a new pg");
    if !input.data.is_empty() {
        run.ask(ObjectOp::new().write_full(Payload::from(input.data)));
    }
    if !input.pairs.is_empty() {
        let key = |n: u8| KEYS[usize::from(n) % KEYS.len()].as_bytes();
        let pairs = input.pairs.iter().map(|(n, value)| (key(*n), &value[..]));
        run.ask(ObjectOp::new().omap_set(pairs));
    }
    if !input.lock.is_empty() {
        run.ask(ObjectOp::new().setxattr("lock.a", &input.lock));
    }
    for (which, call) in input.calls.into_iter().take(16) {
        let method = cls::all()[usize::from(which) % cls::all().len()];
        let op = ObjectOp::new().call(method.class, method.name, Payload::from(call));
        let changed = run.ask(op);
        assert!(
            !changed || method.writes,
            "{} changed something",
            method.name
        );
    }
    check_objects(&mut run.store, PG);
});

/// Every class's methods and no others.
fn find(class: &str, name: &str) -> Option<&'static Method> {
    let found = cls::find(class, name);
    assert_eq!(
        found.map(|m| (m.class, m.name)),
        found.and(Some((class, name)))
    );
    found
}

impl Run {
    /// Whether it changed the object.
    fn ask(&mut self, op: ObjectOp) -> bool {
        let data: Vec<u8> = op.data().iter().flat_map(|p| p.to_vec()).collect();
        let ops: &[OsdOp] = op.ops();
        self.version += 1;
        let version = EVersion {
            epoch: 1,
            version: self.version,
        };
        let reqid = ReqId {
            name: self.peer.name,
            tid: self.version,
            inc: 0,
        };
        let asked = Ask {
            pg: PG,
            epoch: 1,
            flags: OsdFlags::RETURNVEC,
            hash: 1,
            namespace: b"",
            key: b"",
            oid: b"rbd_header.a",
            ops,
            snap: NOSNAP,
            snap_seq: 0,
            snaps: &[],
            reqid,
        };
        let m = asked.message();
        let request = Request {
            pg: PG,
            peer: &self.peer,
            reqid,
            head: HObjectRef {
                snap: NOSNAP,
                ..m.hobject()
            },
            op: &m,
            data: &data,
            flags: m.flags,
            mtime: UTime::default(),
            version,
            last_user_version: self.version,
            now: NOW,
        };
        let pool = Pool::default();
        let mut env = ExecEnv {
            method: find,
            random: &mut |out| out.fill(4),
            pool: &pool,
            removed_snaps: None,
            trimmed_snaps: None,
            releases: (20, 12),
        };
        let mut reply = Vec::new();
        let outcome = execute(&mut self.store, &mut env, &request, &mut reply);
        assert!(reply.len() <= 256 << 20);
        if ops[0].code != OpCode::CALL {
            assert!(outcome.result >= 0);
        }
        let Some(mut txn) = outcome.txn else {
            return false;
        };
        assert!(outcome.result >= 0);
        txn.log = Some(LogEntry {
            version,
            ..LogEntry::default()
        });
        self.store.apply(PG, txn).expect("a pg");
        true
    }
}
