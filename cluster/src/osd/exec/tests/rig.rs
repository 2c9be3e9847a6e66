//! One pg in memory that carries out requests.

use smallvec::SmallVec;

use crate::auth::AuthName;
use crate::auth::server::Caps;
use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now, UTime};
use crate::objecter::ObjectOp;
use crate::objecter::msg::{
    EVersion, HObjectRef, Locator, MOsdOp, NOSNAP, OpCode, OsdFlags, OsdOp, PgId, ReqId, SpgId,
    WireList,
};
use crate::osd::cls::Method;
use crate::osd::exec::{Effect, ExecEnv, Request, execute, trim_object};
use crate::osd::outbox::Peer;
use crate::osd::store::memory::MemoryStore;
use crate::osd::store::{LogEntry, Store};
use crate::osdmap::{Pool, SnapIntervals};
use crate::payload::Payload;

pub(super) const PG: PgId = PgId { pool: 1, seed: 0 };
pub(super) const CLIENT: EntityName = EntityName::new(EntityType::CLIENT, 4100);

pub(super) fn head() -> HObjectRef<'static> {
    HObjectRef::head(PG.pool, b"", b"", b"object", 77)
}

pub(super) struct Rig {
    pub store: MemoryStore,
    pub pool: Pool,
    pub removed: SnapIntervals,
    pub trimmed: SnapIntervals,
    pub method: fn(&str, &str) -> Option<&'static Method>,
    pub peer: Peer,
    /// Of the requests to come.
    pub snap: u64,
    pub snap_context: (u64, Vec<u64>),
    pub flags: OsdFlags,
    pub version: u64,
    pub user_version: u64,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub result: i32,
    pub ops: Vec<(i32, Vec<u8>)>,
    pub user_version: u64,
    pub effects: Vec<Effect>,
    pub changed: bool,
}

impl Answer {
    /// What the last operation returned.
    pub(super) fn output(&self) -> &[u8] {
        &self.ops.last().expect("an operation").1
    }

    pub(super) fn rvals(&self) -> Vec<i32> {
        self.ops.iter().map(|o| o.0).collect()
    }
}

pub(super) fn payload(bytes: &[u8]) -> Payload {
    Payload::from(bytes.to_vec())
}

impl Rig {
    pub(super) fn new() -> Rig {
        let mut store = MemoryStore::new();
        store.create_pg(PG).unwrap();
        let addr = EntityAddr::msgr2("10.0.0.1:1000".parse().unwrap(), 7);
        Rig {
            store,
            pool: Pool::default(),
            removed: SnapIntervals::default(),
            trimmed: SnapIntervals::default(),
            method: |_, _| None,
            peer: Peer {
                name: CLIENT,
                auth: AuthName::client("admin"),
                addrs: EntityAddrVec(vec![addr]),
                caps: Caps::default(),
                features: 5,
            },
            snap: NOSNAP,
            snap_context: (0, Vec::new()),
            flags: OsdFlags::NONE,
            version: 0,
            user_version: 0,
        }
    }

    pub(super) fn ask(&mut self, ops: ObjectOp) -> Answer {
        let mut data = Vec::new();
        for part in ops.data() {
            data.extend_from_slice(part);
        }
        self.ask_raw(ops.ops(), &data)
    }

    pub(super) fn one(&mut self, mut op: OsdOp, data: &[u8]) -> Answer {
        op.payload_len = data.len() as u32;
        self.ask_raw(&[op], data)
    }

    pub(super) fn plain(&mut self, code: OpCode, data: &[u8]) -> Answer {
        self.one(OsdOp::plain(code), data)
    }

    /// The time of the next request.
    pub(super) fn mtime(&self) -> UTime {
        UTime {
            sec: 1000 + self.version as u32,
            nsec: 0,
        }
    }

    pub(super) fn ask_raw(&mut self, ops: &[OsdOp], data: &[u8]) -> Answer {
        let mtime = self.mtime();
        let reqid = ReqId {
            name: CLIENT,
            tid: self.version,
            inc: 0,
        };
        let op = MOsdOp {
            pgid: SpgId {
                pg: PG,
                ..SpgId::default()
            },
            hash: 77,
            epoch: 1,
            flags: self.flags,
            reqid,
            trace: [0; 24],
            otel: None,
            client_inc: 0,
            mtime,
            locator: Locator {
                pool: PG.pool,
                key: b"",
                namespace: b"",
                hash: -1,
            },
            oid: b"object",
            ops: WireList::Native(ops),
            snap_id: self.snap,
            snap_seq: self.snap_context.0,
            snaps: WireList::Native(&self.snap_context.1),
            retry_attempt: 0,
            features: 0,
        };
        let version = EVersion {
            epoch: 1,
            version: self.version + 1,
        };
        let request = Request {
            pg: PG,
            peer: &self.peer,
            reqid,
            head: head(),
            op: &op,
            data,
            flags: self.flags,
            mtime,
            version,
            last_user_version: self.user_version,
            now: Now::default(),
        };
        let mut env = ExecEnv {
            method: self.method,
            random: &mut |out| out.fill(4),
            pool: &self.pool,
            removed_snaps: Some(&self.removed),
            trimmed_snaps: Some(&self.trimmed),
            releases: (16, 12),
        };
        let mut reply = b"kept".to_vec();
        let outcome = execute(&mut self.store, &mut env, &request, &mut reply);
        assert_eq!(&reply[..4], b"kept");
        let mut rest = &reply[4..];
        let ops: SmallVec<[(i32, Vec<u8>); 4]> = outcome
            .ops
            .iter()
            .map(|&(rval, len)| {
                let (part, left) = rest.split_at(len as usize);
                rest = left;
                (rval, part.to_vec())
            })
            .collect();
        assert!(rest.is_empty() && ops.len() == op.ops.len());
        let changed = outcome.txn.is_some();
        assert!(!changed || outcome.result >= 0);
        if let Some(mut txn) = outcome.txn {
            self.version = outcome.version.version;
            self.user_version = self.user_version.max(outcome.user_version);
            txn.log = Some(LogEntry {
                version: outcome.version,
                user_version: outcome.user_version,
                ..LogEntry::default()
            });
            self.store.apply(PG, txn).unwrap();
        }
        Answer {
            result: outcome.result,
            ops: ops.into_vec(),
            user_version: outcome.user_version,
            effects: outcome.effects,
            changed,
        }
    }

    /// Carries out what has to succeed.
    pub(super) fn done(&mut self, ops: ObjectOp) -> Answer {
        let answer = self.ask(ops);
        assert!(answer.result >= 0, "{answer:?}");
        answer
    }

    /// Takes removed snapshots from all clones; how many it changed.
    pub(super) fn trim(&mut self) -> usize {
        let all = self.store.list(PG, &HObjectRef::MIN, usize::MAX).unwrap();
        let mut changed = 0;
        for object in all.items {
            self.version += 1;
            let version = EVersion {
                epoch: 1,
                version: self.version,
            };
            let removed = |s| self.removed.contains(s);
            let txn = trim_object(&mut self.store, PG, &object, removed, version).unwrap();
            if let Some(txn) = txn {
                self.store.apply(PG, txn).unwrap();
                changed += 1;
            }
        }
        changed
    }

    pub(super) fn is_stored(&mut self) -> bool {
        self.store.info(PG, &head()).unwrap().is_some()
    }

    pub(super) fn is_whiteout(&mut self) -> bool {
        let info = self.store.info(PG, &head()).unwrap();
        info.is_some_and(|i| i.whiteout)
    }

    pub(super) fn bytes(&mut self, snap: u64) -> Option<Vec<u8>> {
        let before = std::mem::replace(&mut self.snap, snap);
        let answer = self.ask(ObjectOp::new().read(0, 0));
        self.snap = before;
        match answer.result {
            0 => Some(answer.output().to_vec()),
            e => {
                assert_eq!(e, -libc::ENOENT);
                None
            }
        }
    }
}
