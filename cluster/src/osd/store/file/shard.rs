//! The store as one OSD thread sees it.
//!
//! A shard answers from its own memory and the files; it asks the database only for what it does
//! not remember. A read of a remembered object takes no lock and allocates nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::objecter::msg::{HObject, HObjectRef, PgId};
use crate::osd::ObjectInfo;
use crate::osd::store::{Page, PgState, Result, Seq, Step, Store, StoreError, Transaction, Usage};

use super::apply::carry_out;
use super::core::{Core, Wake};
use super::files::Files;
use super::lock;
use super::object::{ATTR, HEADER, OMAP, Object, pair_key};
use super::op::{Changes, Op};
use super::pg::{DetachedPg, Pg};
use super::row::PgRow;

pub struct FileShard {
    core: Arc<Core>,
    osd: i32,
    /// Place of its wake-up call.
    number: usize,
    pgs: HashMap<PgId, Box<Pg>>,
    files: Files,
    /// For keys, used again.
    scratch: Vec<u8>,
}

/// A pg remembers at least this many objects, however many pgs there are.
const FEW_OBJECTS: usize = 64;

impl FileShard {
    pub(super) fn new(core: Arc<Core>, osd: i32, wake: Wake) -> FileShard {
        let mut wakes = lock(&core.wakes);
        let number = wakes.len();
        wakes.push(wake);
        drop(wakes);
        let mut unclaimed = lock(&core.pgs);
        let mine: Vec<PgId> = unclaimed
            .iter()
            .filter(|(_, row)| row.owner == osd)
            .map(|(pg, _)| *pg)
            .collect();
        let mut pgs = HashMap::new();
        for pg in mine {
            if let Some(row) = unclaimed.remove(&pg) {
                pgs.insert(pg, Box::new(Pg::new(row)));
            }
        }
        drop(unclaimed);
        let files = Files::new(core.options.open_files);
        FileShard {
            core,
            osd,
            number,
            pgs,
            files,
            scratch: Vec::new(),
        }
    }

    fn pg(&self, pg: PgId) -> Result<&Pg> {
        self.pgs.get(&pg).map(|p| &**p).ok_or(StoreError::NoPg(pg))
    }

    /// The object, where there is one, and what reading it takes.
    fn object(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
    ) -> Result<Option<(&mut Object, &Core, &mut Files)>> {
        let max = self.most_objects();
        let core = &*self.core;
        let pg = self.pgs.get_mut(&pg).ok_or(StoreError::NoPg(pg))?;
        tidy(core, pg, max);
        let place = pg.find(&core.db, oid, &mut self.scratch)?;
        let object = pg.slots[place].object.as_mut();
        Ok(object.map(|object| (object, core, &mut self.files)))
    }

    fn most_objects(&self) -> usize {
        FEW_OBJECTS.max(self.core.options.objects / self.pgs.len().max(1))
    }

    /// Hands in changes that are about pgs as a whole.
    fn submit(&self, ops: &[Op<'_>]) -> Result<Seq> {
        self.core.admit_own()?;
        let mut changes = Changes::default();
        ops.iter().for_each(|op| changes.push(op));
        let next_id = self.core.next_id.load(Ordering::Relaxed);
        changes.push(&Op::NextId(next_id));
        let seq = self.core.next.fetch_add(1, Ordering::Relaxed);
        self.core.submit(seq, self.number, changes)?;
        Ok(seq)
    }

    fn put_pg(&self, pg: PgId, row: &PgRow) -> Result<Seq> {
        let mut bytes = Vec::new();
        row.encode(&mut bytes);
        self.submit(&[Op::PutPg { pg, row: &bytes }])
    }

    /// Waits until everything that was applied is in files and database. For tests and tools.
    pub fn rest(&mut self) -> Result<()> {
        let last = self.core.next.load(Ordering::Relaxed) - 1;
        self.core
            .wait(|core| core.checkpointed.load(Ordering::Acquire) >= last)
    }

    /// Waits until everything that was applied is durable.
    pub fn sync(&mut self) -> Result<()> {
        let last = self.core.next.load(Ordering::Relaxed) - 1;
        self.core
            .wait(|core| core.committed.load(Ordering::Acquire) >= last)
    }
}

fn tidy(core: &Core, pg: &mut Pg, max: usize) {
    // In this order: what is in the database is in the files.
    let checkpointed = core.checkpointed.load(Ordering::Acquire);
    let applied = core.applied.load(Ordering::Acquire);
    pg.tidy(applied, checkpointed, max);
}

impl Store for FileShard {
    type Detached = DetachedPg;

    fn pgs(&self) -> Vec<PgId> {
        self.pgs.keys().copied().collect()
    }

    fn create_pg(&mut self, pg: PgId) -> Result<()> {
        if self.pgs.contains_key(&pg) {
            return Ok(());
        }
        // One that an OSD had which is no more still has its objects.
        let there = lock(&self.core.pgs).remove(&pg);
        if let Some(row) = there {
            return self.attach_pg(pg, DetachedPg::new(row));
        }
        let row = PgRow {
            no: self.core.new_id(),
            owner: self.osd,
            ..PgRow::default()
        };
        self.put_pg(pg, &row)?;
        self.pgs.insert(pg, Box::new(Pg::new(row)));
        Ok(())
    }

    fn remove_pg(&mut self, pg: PgId) -> Result<()> {
        let no = self.pg(pg)?.row.no;
        self.submit(&[Op::RemovePg { pg, no }])?;
        self.pgs.remove(&pg);
        self.files.clear();
        Ok(())
    }

    fn pg_state(&mut self, pg: PgId) -> Result<PgState> {
        self.pg(pg)?.state(&self.core.db)
    }

    fn usage(&self, pg: PgId) -> Usage {
        self.pg(pg).map(|pg| pg.row.usage).unwrap_or_default()
    }

    /// Happens in the database, and waits for that: it is rare, and touches every object.
    fn move_objects(&mut self, from: PgId, to: PgId, pg_num: u32) -> Result<()> {
        self.pg(from)?;
        if from == to {
            return Ok(());
        }
        let fresh = !self.pgs.contains_key(&to);
        let moves = Op::Move {
            from,
            to,
            pg_num,
            fresh,
        };
        let seq = if fresh {
            let row = PgRow {
                no: self.core.new_id(),
                owner: self.osd,
                ..PgRow::default()
            };
            let mut bytes = Vec::new();
            row.encode(&mut bytes);
            let row = &bytes;
            self.submit(&[Op::PutPg { pg: to, row }, moves])?
        } else {
            self.submit(&[moves])?
        };
        self.core
            .wait(|core| core.checkpointed.load(Ordering::Acquire) >= seq)?;
        for pg in [from, to] {
            let row = self.core.db.pg(&pg)?;
            self.pgs.insert(pg, Box::new(Pg::new(row)));
        }
        Ok(())
    }

    fn detach_pg(&mut self, pg: PgId) -> Result<DetachedPg> {
        self.files.clear();
        self.pgs
            .remove(&pg)
            .map(DetachedPg)
            .ok_or(StoreError::NoPg(pg))
    }

    fn attach_pg(&mut self, pg: PgId, detached: DetachedPg) -> Result<()> {
        let DetachedPg(mut state) = detached;
        if state.row.owner != self.osd {
            state.row.owner = self.osd;
            self.put_pg(pg, &state.row)?;
        }
        self.pgs.insert(pg, state);
        Ok(())
    }

    fn info(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Option<&ObjectInfo>> {
        let object = self.object(pg, oid)?;
        Ok(object.map(|(object, _, _)| &object.row.info))
    }

    fn read(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        offset: u64,
        length: u64,
        out: &mut Vec<u8>,
    ) -> Result<usize> {
        let Some((object, core, files)) = self.object(pg, oid)? else {
            return Ok(0);
        };
        let end = offset.saturating_add(length).min(object.row.size);
        if offset >= end {
            return Ok(0);
        }
        let (at, n) = (out.len(), (end - offset) as usize);
        out.resize(at + n, 0);
        let done = object.read(core, files, offset, &mut out[at..]);
        if done.is_err() {
            out.truncate(at);
        }
        done.map(|()| n)
    }

    fn extents(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>> {
        let Some((object, ..)) = self.object(pg, oid)? else {
            return Ok(Vec::new());
        };
        let length = length.min(object.row.size.saturating_sub(offset));
        Ok(object.row.blocks.within(offset, length).collect())
    }

    fn attr(&mut self, pg: PgId, oid: &HObjectRef<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.object(pg, oid)? {
            Some((object, core, _)) => object.pair(&core.db, &pair_key(ATTR, name)),
            None => Ok(None),
        }
    }

    fn attrs(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut out = Vec::new();
        if let Some((object, core, _)) = self.object(pg, oid)? {
            object.each_pair(&core.db, ATTR, &[], |name, value| {
                out.push((name.to_vec(), value.to_vec()));
                true
            })?;
        }
        Ok(out)
    }

    fn omap_header(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Vec<u8>> {
        match self.object(pg, oid)? {
            Some((object, core, _)) => Ok(object.pair(&core.db, &[HEADER])?.unwrap_or_default()),
            None => Ok(Vec::new()),
        }
    }

    fn omap_get(&mut self, pg: PgId, oid: &HObjectRef<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.object(pg, oid)? {
            Some((object, core, _)) => object.pair(&core.db, &pair_key(OMAP, key)),
            None => Ok(None),
        }
    }

    fn omap_size(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<(u64, u64)> {
        let object = self.object(pg, oid)?;
        Ok(object.map_or((0, 0), |(o, ..)| (o.row.omap_keys, o.row.omap_bytes)))
    }

    fn omap_list(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        after: &[u8],
        prefix: &[u8],
        max: usize,
    ) -> Result<Page<(Vec<u8>, Vec<u8>)>> {
        match self.object(pg, oid)? {
            Some((object, core, _)) => object.omap_list(&core.db, after, prefix, max),
            None => Ok(Page::default()),
        }
    }

    fn list(&mut self, pg: PgId, from: &HObjectRef<'_>, max: usize) -> Result<Page<HObject>> {
        self.pg(pg)?.list(&self.core.db, from, max)
    }

    fn apply(&mut self, pg_id: PgId, txn: Transaction<'_>) -> Result<Seq> {
        let max = self.most_objects();
        let core = &*self.core;
        let pg = self.pgs.get_mut(&pg_id).ok_or(StoreError::NoPg(pg_id))?;
        tidy(core, pg, max);
        // What can fail without harm comes before the transaction has its number.
        let mut places: SmallVec<[usize; 4]> = SmallVec::new();
        for oid in &txn.objects {
            places.push(pg.find(&core.db, &oid.as_ref(), &mut self.scratch)?);
        }
        // A file that is shared is copied first.
        let copy = |obj: usize| match &pg.slots[places[obj]].object {
            Some(object) if object.row.sealed => object.row.blocks.stored(),
            _ => 0,
        };
        let (mut bytes, mut grows) = (0, false);
        for step in &txn.steps {
            match step {
                Step::Write { obj, data, .. } => bytes += data.len() as u64 + copy(*obj),
                Step::OmapSet { .. } | Step::OmapSetHeader { .. } | Step::SetAttr { .. } => {}
                _ => continue,
            }
            grows = true;
        }
        core.admit(bytes, grows)?;
        let seq = core.next.fetch_add(1, Ordering::Relaxed);
        match carry_out(core, pg_id, pg, &places, txn, seq) {
            Ok(changes) => {
                for file in &changes.unrefs {
                    self.files.forget(*file);
                }
                core.submit(seq, self.number, changes)?;
                Ok(seq)
            }
            Err(e) => {
                // Half of it is in memory, and its number is missing in the journal.
                core.fail(&e);
                Err(e)
            }
        }
    }

    fn committed(&self) -> Seq {
        self.core.committed.load(Ordering::Acquire)
    }
}
