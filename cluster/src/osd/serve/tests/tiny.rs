//! A store whose commits come when the test says so, and an engine that knows a handful of
//! operations.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::auth::server::Caps;
use crate::codec::{Now, Put, Reader};
use crate::objecter::msg::{
    EVersion, HObject, HObjectRef, NOSNAP, OpCode, OpFlags, PgId, WatchOp,
};
use crate::osd::exec::{Effect, Outcome, Request};
use crate::osd::object::{ObjectInfo, WatchRecord};
use crate::osd::serve::{Ask, Engine, MethodFlags};
use crate::osd::store::memory::MemoryStore;
use crate::osd::store::{Page, PgState, Result, Seq, Step, Store, Transaction, Usage};
use crate::osdmap::OsdMap;

#[derive(Default)]
pub(super) struct SlowStore {
    inner: MemoryStore,
    /// Transactions up to this one are durable, as far as anybody is told.
    pub(super) durable: Rc<Cell<Seq>>,
    applied: BTreeMap<PgId, Seq>,
}

impl Store for SlowStore {
    type Detached = <MemoryStore as Store>::Detached;

    fn pgs(&self) -> Vec<PgId> {
        self.inner.pgs()
    }
    fn create_pg(&mut self, pg: PgId) -> Result<()> {
        self.inner.create_pg(pg)
    }
    fn remove_pg(&mut self, pg: PgId) -> Result<()> {
        self.inner.remove_pg(pg)
    }
    fn pg_state(&mut self, pg: PgId) -> Result<PgState> {
        self.inner.pg_state(pg)
    }
    fn usage(&self, pg: PgId) -> Usage {
        self.inner.usage(pg)
    }
    fn move_objects(&mut self, from: PgId, to: PgId, pg_num: u32) -> Result<()> {
        let seq = self.applied.get(&from).copied().unwrap_or(0);
        let there = self.applied.entry(to).or_default();
        *there = (*there).max(seq);
        self.inner.move_objects(from, to, pg_num)
    }
    fn detach_pg(&mut self, pg: PgId) -> Result<Self::Detached> {
        let seq = self.applied.remove(&pg).unwrap_or(0);
        assert!(seq <= self.durable.get(), "{pg} leaves before it is durable");
        self.inner.detach_pg(pg)
    }
    fn attach_pg(&mut self, pg: PgId, detached: Self::Detached) -> Result<()> {
        self.inner.attach_pg(pg, detached)
    }
    fn info(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Option<&ObjectInfo>> {
        self.inner.info(pg, oid)
    }
    fn read(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        offset: u64,
        length: u64,
        out: &mut Vec<u8>,
    ) -> Result<usize> {
        self.inner.read(pg, oid, offset, length, out)
    }
    fn extents(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>> {
        self.inner.extents(pg, oid, offset, length)
    }
    fn attr(&mut self, pg: PgId, oid: &HObjectRef<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.attr(pg, oid, name)
    }
    fn attrs(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.inner.attrs(pg, oid)
    }
    fn omap_header(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Vec<u8>> {
        self.inner.omap_header(pg, oid)
    }
    fn omap_get(&mut self, pg: PgId, oid: &HObjectRef<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.omap_get(pg, oid, key)
    }
    fn omap_list(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        after: &[u8],
        prefix: &[u8],
        max: usize,
    ) -> Result<Page<(Vec<u8>, Vec<u8>)>> {
        self.inner.omap_list(pg, oid, after, prefix, max)
    }
    fn list(&mut self, pg: PgId, from: &HObjectRef<'_>, max: usize) -> Result<Page<HObject>> {
        self.inner.list(pg, from, max)
    }
    fn apply(&mut self, pg: PgId, txn: Transaction<'_>) -> Result<Seq> {
        let seq = self.inner.apply(pg, txn)?;
        self.applied.insert(pg, seq);
        Ok(seq)
    }
    fn committed(&self) -> Seq {
        self.durable.get().min(self.inner.committed())
    }
}

/// Knows appends, reads, stats, deletions, watches and notifies; `test.echo` and `test.put` too.
#[derive(Default)]
pub(super) struct Tiny;

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTCONN: i32 = 107;
const EOPNOTSUPP: i32 = 95;

impl Engine<SlowStore> for Tiny {
    type Access = bool;

    fn access(&self, caps: &Caps) -> bool {
        caps.allow_all
    }

    fn allows(&self, access: &bool, ask: &Ask<'_>) -> bool {
        *access || !ask.writes
    }

    fn method(&self, class: &str, method: &str) -> Option<MethodFlags> {
        (class == "test").then_some(MethodFlags {
            reads: method == "echo",
            writes: method == "put",
        })
    }

    fn execute<'a>(
        &mut self,
        store: &mut SlowStore,
        _: &OsdMap,
        req: &Request<'a>,
        reply: &mut Vec<u8>,
    ) -> Outcome<'a> {
        let old = store.info(req.pg, &req.head).unwrap().cloned();
        let mut exists = old.is_some();
        let mut info = old.unwrap_or_default();
        let mut outcome = Outcome {
            user_version: info.user_version,
            version: req.version,
            ..Outcome::default()
        };
        let mut steps = Vec::new();
        let mut user_change = false;
        let who = req.peer.name;
        for part in req.op.split(req.data) {
            let (op, data) = part.unwrap();
            let before = reply.len();
            let watch = op.watch();
            let key = |w: &WatchRecord| (w.entity, w.cookie) == (who, watch.cookie);
            let result = match op.code {
                OpCode::CREATE if exists && op.flags.has(OpFlags::EXCL) => -EEXIST,
                OpCode::CREATE => {
                    (exists, user_change) = (true, true);
                    steps.push(Step::Touch(0));
                    0
                }
                OpCode::APPEND => {
                    (exists, user_change) = (true, true);
                    let offset = info.size;
                    info.size += data.len() as u64;
                    let data = Cow::Borrowed(data);
                    steps.push(Step::Write {
                        obj: 0,
                        offset,
                        data,
                    });
                    0
                }
                OpCode::CALL if data.starts_with(b"testput") => {
                    (exists, user_change) = (true, true);
                    steps.push(Step::Touch(0));
                    reply.extend_from_slice(&data[7..]);
                    7
                }
                OpCode::CALL => {
                    reply.extend_from_slice(&data[8..]);
                    0
                }
                _ if !exists => -ENOENT,
                OpCode::READ => {
                    let e = op.extent();
                    let n = store.read(req.pg, &req.head, e.offset, e.length, reply);
                    n.unwrap() as i32
                }
                OpCode::STAT => {
                    reply.put_u64(info.size);
                    reply.put_u64(0);
                    0
                }
                OpCode::DELETE => {
                    (exists, user_change) = (false, true);
                    steps.push(Step::Remove(0));
                    outcome.effects.push(Effect::Disconnect);
                    0
                }
                OpCode::WATCH if watch.op == WatchOp::Ping as u8 => {
                    if info.watchers.iter().any(key) {
                        0
                    } else {
                        -ENOTCONN
                    }
                }
                OpCode::WATCH if watch.op == WatchOp::Unwatch as u8 => {
                    info.watchers.retain(|w| !key(w));
                    steps.push(Step::Touch(0));
                    let cookie = watch.cookie;
                    outcome.effects.push(Effect::Unwatch { cookie });
                    0
                }
                OpCode::WATCH => {
                    let record = WatchRecord {
                        entity: who,
                        cookie: watch.cookie,
                        timeout_seconds: watch.timeout,
                        addr: req.peer.addr(),
                    };
                    if !info.watchers.iter().any(key) {
                        info.watchers.push(record);
                        steps.push(Step::Touch(0));
                    }
                    outcome.effects.push(Effect::Watch {
                        cookie: watch.cookie,
                        timeout_seconds: watch.timeout,
                    });
                    0
                }
                OpCode::NOTIFY => {
                    let mut r = Reader::new(data);
                    r.u32().unwrap();
                    outcome.effects.push(Effect::Notify {
                        cookie: op.cookie(),
                        timeout_seconds: r.u32().unwrap(),
                        payload: r.blob().unwrap().to_vec(),
                    });
                    0
                }
                OpCode::NOTIFY_ACK => {
                    let mut r = Reader::new(data);
                    outcome.effects.push(Effect::NotifyAck {
                        notify_id: r.u64().unwrap(),
                        cookie: r.u64().unwrap(),
                        payload: r.blob().unwrap().to_vec(),
                    });
                    0
                }
                _ => -EOPNOTSUPP,
            };
            let len = (reply.len() - before) as u32;
            outcome.ops.push((result, len));
            outcome.result = result;
            if result < 0 {
                return outcome;
            }
        }
        if steps.is_empty() {
            return outcome;
        }
        if user_change {
            info.user_version = info.user_version.max(req.last_user_version) + 1;
            outcome.user_version = info.user_version;
        }
        if exists {
            info.version = req.version;
            info.last_reqid = req.reqid;
            let info = Box::new(info);
            steps.push(Step::SetInfo { obj: 0, info });
        }
        outcome.txn = Some(Transaction {
            objects: vec![HObject::from(req.head)],
            steps,
            ..Transaction::default()
        });
        outcome
    }

    /// A clone goes when its snapshot does.
    fn trim(
        &mut self,
        store: &mut SlowStore,
        pg: PgId,
        clone: &HObject,
        removed: &dyn Fn(u64) -> bool,
        _: EVersion,
        _: Now,
    ) -> Option<Transaction<'static>> {
        let oid = clone.as_ref();
        assert_ne!(oid.snap, NOSNAP);
        assert!(store.info(pg, &oid).unwrap().is_some());
        removed(oid.snap).then(|| Transaction {
            objects: vec![clone.clone()],
            steps: vec![Step::Remove(0)],
            ..Transaction::default()
        })
    }
}
