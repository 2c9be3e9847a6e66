//! A store whose commits come when the test says so.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::objecter::msg::{HObject, HObjectRef, PgId};
use crate::osd::object::ObjectInfo;
use crate::osd::store::memory::MemoryStore;
use crate::osd::store::{Page, PgState, Result, Seq, Store, Transaction, Usage};

#[derive(Default)]
pub struct SlowStore {
    inner: MemoryStore,
    /// Transactions up to this one are durable, as far as anybody is told.
    pub durable: Rc<Cell<Seq>>,
    applied: BTreeMap<PgId, Seq>,
}

impl SlowStore {
    pub fn has(&self, pg: PgId) -> bool {
        self.inner.pgs().contains(&pg)
    }

    /// Transactions that are there, durable or not.
    pub fn applied(&self) -> Seq {
        self.inner.committed()
    }
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
        assert!(
            seq <= self.durable.get(),
            "{pg} leaves before it is durable"
        );
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
    fn omap_size(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<(u64, u64)> {
        self.inner.omap_size(pg, oid)
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
