//! Requests of any operations on a few objects, with snapshots that come and go.

#![no_main]

use arbitrary::Arbitrary;
use cluster::auth::server::Caps;
use cluster::codec::UTime;
use cluster::objecter::msg::{EVersion, HObjectRef, NOSNAP, OsdFlags, PgId, ReqId, SNAPDIR};
use cluster::osd::exec::{ExecEnv, Request, execute, trim_object};
use cluster::osd::store::memory::MemoryStore;
use cluster::osd::store::{LogEntry, Store};
use cluster::osd::{Peer, cls};
use cluster::osdmap::{Pool, SnapIntervals};
use fuzz::NOW;
use fuzz::server::{Ask, Number, Op, check_objects, make, peer};
use libfuzzer_sys::fuzz_target;

const PG: PgId = PgId { pool: 1, seed: 0 };

#[derive(Debug, Arbitrary)]
enum Step {
    Ask {
        object: u8,
        flags: u32,
        snap: Option<Number>,
        ops: Vec<Op>,
    },
    /// The image's next snapshot.
    Snapshot,
    /// A snap context that nobody has.
    Context(Number, Vec<u64>),
    Remove(u8),
    Full(bool),
}

struct Run {
    store: MemoryStore,
    pool: Pool,
    removed: SnapIntervals,
    peer: Peer,
    context: (u64, Vec<u64>),
    version: u64,
    user_version: u64,
}

fuzz_target!(|steps: Vec<Step>| {
    let mut run = Run {
        store: MemoryStore::new(),
        pool: Pool::default(),
        removed: SnapIntervals::default(),
        peer: peer(7, Caps::all(), 5),
        context: (0, Vec::new()),
        version: 0,
        user_version: 0,
    };
    run.store.create_pg(PG).expect("a new pg");
    for step in steps.iter().take(64) {
        run.step(step);
    }
    check_objects(&mut run.store, PG);
    // Once all snapshots are gone, so are all clones.
    for id in std::mem::take(&mut run.context.1) {
        run.remove(id);
    }
    check_objects(&mut run.store, PG);
});

impl Run {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Ask {
                object,
                flags,
                snap,
                ops,
            } => self.ask(*object, *flags, *snap, ops),
            Step::Snapshot => {
                self.context.0 = self.context.0.saturating_add(1);
                let id = self.context.0;
                self.context.1.insert(0, id);
            }
            Step::Context(seq, snaps) => self.context = (seq.get(), snaps.clone()),
            Step::Remove(n) => {
                let snaps = &mut self.context.1;
                if !snaps.is_empty() {
                    let id = snaps.remove(usize::from(*n) % snaps.len());
                    self.remove(id);
                }
            }
            Step::Full(full) => {
                let flag = cluster::osdmap::pool::flag::FULL;
                self.pool.flags = if *full { flag } else { 0 };
            }
        }
    }

    fn remove(&mut self, id: u64) {
        if self.removed.contains(id) || id >= NOSNAP - 2 {
            return;
        }
        self.removed.insert(id, 1);
        let all = self.store.list(PG, &HObjectRef::MIN, usize::MAX);
        for object in all.expect("a list").items {
            self.version += 1;
            let version = self.version();
            let removed = |s| self.removed.contains(s);
            let txn = trim_object(&mut self.store, PG, &object, removed, version);
            if let Some(txn) = txn.expect("a pg") {
                self.store.apply(PG, txn).expect("a pg");
            }
        }
    }

    fn version(&self) -> EVersion {
        EVersion {
            epoch: 1,
            version: self.version,
        }
    }

    fn ask(&mut self, object: u8, flags: u32, snap: Option<Number>, ops: &[Op]) {
        let (ops, data) = make(ops);
        let name = [b'o', object % 3];
        let flags = OsdFlags(flags);
        let reqid = ReqId {
            name: self.peer.name,
            tid: self.version,
            inc: 0,
        };
        let asked = Ask {
            pg: PG,
            epoch: 1,
            flags,
            hash: u32::from(object % 3 / 2),
            namespace: b"",
            key: b"",
            oid: &name,
            ops: &ops,
            snap: match snap {
                None => NOSNAP,
                Some(Number::Large(1)) => SNAPDIR,
                Some(n) => n.get(),
            },
            snap_seq: self.context.0,
            snaps: &self.context.1,
            reqid,
        };
        let op = asked.message();
        self.version += 1;
        let version = self.version();
        let request = Request {
            pg: PG,
            peer: &self.peer,
            reqid,
            head: HObjectRef {
                snap: NOSNAP,
                ..op.hobject()
            },
            op: &op,
            data: &data,
            flags,
            mtime: UTime::default(),
            version,
            last_user_version: self.user_version,
            now: NOW,
        };
        let mut env = ExecEnv {
            method: cls::find,
            random: &mut |out| out.fill(4),
            pool: &self.pool,
            removed_snaps: Some(&self.removed),
            trimmed_snaps: None,
            releases: (20, 12),
        };
        let mut reply = b"kept".to_vec();
        let outcome = execute(&mut self.store, &mut env, &request, &mut reply);
        let lengths: usize = outcome.ops.iter().map(|(_, len)| *len as usize).sum();
        assert_eq!(lengths, reply.len() - 4);
        assert_eq!(&reply[..4], b"kept");
        assert_eq!(outcome.ops.len(), ops.len());
        assert!(outcome.result >= 0 || (outcome.txn.is_none() && outcome.effects.is_empty()));
        let writes = ops
            .iter()
            .zip(&outcome.ops)
            .any(|(o, _)| o.code.is_write() || o.code == cluster::objecter::msg::OpCode::CALL);
        assert!(writes || outcome.txn.is_none(), "a read changed something");
        if let Some(mut txn) = outcome.txn {
            self.user_version = self.user_version.max(outcome.user_version);
            txn.log = Some(LogEntry {
                version,
                ..LogEntry::default()
            });
            self.store.apply(PG, txn).expect("a pg");
        }
    }
}
