//! Objects in memory: nothing survives, and every transaction is committed as soon as it is
//! applied.

mod data;

use std::cmp::Ordering;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use smallvec::SmallVec;

use super::{
    LOG_LEN, LogEntry, Obj, Page, PgState, Result, Seq, Step, Store, StoreError, Transaction, Usage,
};
use crate::objecter::msg::{HObject, HObjectRef, NOSNAP, PgId};
use crate::osd::object::ObjectInfo;
use crate::osdmap::objhash::{mask_of, stable_mod};
use data::Data;

type Bytes = Box<[u8]>;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct MemoryStore {
    pgs: BTreeMap<PgId, Box<Pg>>,
    applied: Seq,
}

/// A pg of a [`MemoryStore`] with everything in it.
#[derive(Debug, Default)]
pub struct Pg {
    /// Without the log.
    state: PgState,
    log: VecDeque<LogEntry>,
    /// By the reversed bits of the hash, which decide the order of objects but for a few that share
    /// them: an object's clones, and what happens to collide. Those are kept sorted.
    objects: BTreeMap<u32, Bucket>,
    usage: Usage,
}

type Bucket = SmallVec<[Box<Object>; 1]>;

#[derive(Debug, Clone)]
struct Object {
    name: HObject,
    info: ObjectInfo,
    data: Data,
    attrs: BTreeMap<Bytes, Bytes>,
    omap_header: Bytes,
    omap: BTreeMap<Bytes, Bytes>,
    omap_bytes: u64,
}

impl Object {
    fn new(name: HObject) -> Object {
        Object {
            name,
            info: ObjectInfo::default(),
            data: Data::default(),
            attrs: BTreeMap::new(),
            omap_header: Bytes::default(),
            omap: BTreeMap::new(),
            omap_bytes: 0,
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            objects: 1,
            clones: u64::from(self.name.as_ref().snap != NOSNAP),
            bytes: self.info.size,
            stored: self.data.pages() * data::PAGE,
            omap_bytes: self.omap_bytes,
            omap_keys: self.omap.len() as u64,
        }
    }

    fn omap_set(&mut self, key: &[u8], value: &[u8]) {
        self.omap_bytes += value.len() as u64;
        match self.omap.get_mut(key) {
            Some(old) => {
                self.omap_bytes -= old.len() as u64;
                *old = value.into();
            }
            None => {
                self.omap_bytes += key.len() as u64;
                self.omap.insert(key.into(), value.into());
            }
        }
    }

    fn omap_remove(&mut self, key: &[u8]) {
        if let Some(old) = self.omap.remove(key) {
            self.omap_bytes -= (key.len() + old.len()) as u64;
        }
    }
}

fn add(to: &mut Usage, u: Usage) {
    to.objects += u.objects;
    to.clones += u.clones;
    to.bytes += u.bytes;
    to.stored += u.stored;
    to.omap_bytes += u.omap_bytes;
    to.omap_keys += u.omap_keys;
}

fn subtract(from: &mut Usage, u: Usage) {
    from.objects -= u.objects;
    from.clones -= u.clones;
    from.bytes -= u.bytes;
    from.stored -= u.stored;
    from.omap_bytes -= u.omap_bytes;
    from.omap_keys -= u.omap_keys;
}

fn place(oid: &HObjectRef<'_>) -> u32 {
    oid.hash.reverse_bits()
}

fn search(bucket: &Bucket, oid: &HObjectRef<'_>) -> Result<usize, usize> {
    bucket.binary_search_by(|o| o.name.as_ref().order(oid))
}

impl Pg {
    fn get(&self, oid: &HObjectRef<'_>) -> Option<&Object> {
        let bucket = self.objects.get(&place(oid))?;
        let at = search(bucket, oid).ok()?;
        Some(&bucket[at])
    }

    fn entry(&mut self, name: &HObject) -> &mut Object {
        let oid = name.as_ref();
        let bucket = self.objects.entry(place(&oid)).or_default();
        let at = search(bucket, &oid).unwrap_or_else(|at| {
            let object = Box::new(Object::new(name.clone()));
            add(&mut self.usage, object.usage());
            bucket.insert(at, object);
            at
        });
        &mut bucket[at]
    }

    /// Changes an object, which is made where it is missing, and accounts for it.
    fn change(&mut self, name: &HObject, f: impl FnOnce(&mut Object)) {
        let object = self.entry(name);
        let before = object.usage();
        f(object);
        let after = object.usage();
        subtract(&mut self.usage, before);
        add(&mut self.usage, after);
    }

    fn remove(&mut self, oid: &HObjectRef<'_>) {
        let Some(bucket) = self.objects.get_mut(&place(oid)) else {
            return;
        };
        if let Ok(at) = search(bucket, oid) {
            subtract(&mut self.usage, bucket.remove(at).usage());
            if bucket.is_empty() {
                self.objects.remove(&place(oid));
            }
        }
    }

    fn put(&mut self, object: Box<Object>) {
        self.remove(&object.name.as_ref());
        add(&mut self.usage, object.usage());
        let oid = object.name.as_ref();
        let bucket = self.objects.entry(place(&oid)).or_default();
        let at = search(bucket, &oid).unwrap_or_else(|at| at);
        bucket.insert(at, object);
    }

    fn step(&mut self, objects: &[HObject], step: Step<'_>) {
        let name = |obj: Obj| &objects[obj];
        match step {
            Step::Touch(obj) => drop(self.entry(name(obj))),
            Step::Write { obj, offset, data } => {
                self.change(name(obj), |o| o.data.write(offset, &data));
            }
            Step::Zero {
                obj,
                offset,
                length,
            } => self.change(name(obj), |o| o.data.zero(offset, length)),
            Step::Truncate { obj, size } => self.change(name(obj), |o| o.data.truncate(size)),
            Step::Remove(obj) => self.remove(&name(obj).as_ref()),
            Step::Clone { from, to } => {
                let mut copy = Box::new(self.entry(name(from)).clone());
                copy.name = name(to).clone();
                self.put(copy);
            }
            Step::SetInfo { obj, info } => self.change(name(obj), |o| o.info = *info),
            Step::SetAttr {
                obj,
                name: attr,
                value,
            } => self.change(name(obj), |o| {
                o.attrs.insert((&*attr).into(), (&*value).into());
            }),
            Step::RemoveAttr { obj, name: attr } => self.change(name(obj), |o| {
                o.attrs.remove(&*attr);
            }),
            Step::RemoveAttrs(obj) => self.change(name(obj), |o| o.attrs.clear()),
            Step::OmapSetHeader { obj, header } => {
                self.change(name(obj), |o| o.omap_header = (&*header).into());
            }
            Step::OmapSet { obj, pairs } => self.change(name(obj), |o| {
                for (key, value) in &pairs {
                    o.omap_set(key, value);
                }
            }),
            Step::OmapRemove { obj, keys } => self.change(name(obj), |o| {
                for key in &keys {
                    o.omap_remove(key);
                }
            }),
            Step::OmapRemoveRange { obj, begin, end } => self.change(name(obj), |o| {
                if begin >= end {
                    return;
                }
                let range = (Bound::Included(&*begin), Bound::Excluded(&*end));
                let keys: Vec<Bytes> = o
                    .omap
                    .range::<[u8], _>(range)
                    .map(|(k, _)| k.clone())
                    .collect();
                for key in keys {
                    o.omap_remove(&key);
                }
            }),
            Step::OmapClear(obj) => self.change(name(obj), |o| {
                o.omap.clear();
                o.omap_bytes = 0;
                o.omap_header = Bytes::default();
            }),
        }
    }

    fn log(&mut self, entry: LogEntry) {
        self.state.last_update = entry.version;
        self.state.last_user_version = self.state.last_user_version.max(entry.user_version);
        if self.log.len() == LOG_LEN {
            self.log.pop_front();
        }
        self.log.push_back(entry);
    }

    fn state(&self) -> PgState {
        PgState {
            log: self.log.iter().cloned().collect(),
            ..self.state.clone()
        }
    }

    fn set_state(&mut self, mut state: PgState) {
        self.log = std::mem::take(&mut state.log).into();
        self.state = state;
    }
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn pg(&self, pg: PgId) -> Result<&Pg> {
        self.pgs.get(&pg).map(|p| &**p).ok_or(StoreError::NoPg(pg))
    }

    fn object(&self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Option<&Object>> {
        Ok(self.pg(pg)?.get(oid))
    }
}

impl Store for MemoryStore {
    type Detached = Box<Pg>;

    fn pgs(&self) -> Vec<PgId> {
        self.pgs.keys().copied().collect()
    }

    fn create_pg(&mut self, pg: PgId) -> Result<()> {
        self.pgs.entry(pg).or_default();
        Ok(())
    }

    fn remove_pg(&mut self, pg: PgId) -> Result<()> {
        self.pgs.remove(&pg).map(drop).ok_or(StoreError::NoPg(pg))
    }

    fn pg_state(&mut self, pg: PgId) -> Result<PgState> {
        Ok(self.pg(pg)?.state())
    }

    fn usage(&self, pg: PgId) -> Usage {
        self.pg(pg).map(|p| p.usage).unwrap_or_default()
    }

    fn move_objects(&mut self, from: PgId, to: PgId, pg_num: u32) -> Result<()> {
        let source = self.pgs.get_mut(&from).ok_or(StoreError::NoPg(from))?;
        if from == to {
            return Ok(());
        }
        let mask = mask_of(pg_num);
        let mut moved = Vec::new();
        source.objects.retain(|place, bucket| {
            let hash = place.reverse_bits();
            let goes = stable_mod(hash, pg_num, mask) == to.seed;
            if goes {
                moved.extend(bucket.drain(..));
            }
            !goes
        });
        for object in &moved {
            subtract(&mut source.usage, object.usage());
        }
        let history = source.state();
        let target = match self.pgs.entry(to) {
            Entry::Occupied(there) => {
                let target = there.into_mut();
                let mut state = target.state();
                state.merge(history);
                target.set_state(state);
                target
            }
            Entry::Vacant(place) => {
                let target = place.insert(Box::default());
                target.set_state(history);
                target
            }
        };
        for object in moved {
            target.put(object);
        }
        Ok(())
    }

    fn detach_pg(&mut self, pg: PgId) -> Result<Box<Pg>> {
        self.pgs.remove(&pg).ok_or(StoreError::NoPg(pg))
    }

    fn attach_pg(&mut self, pg: PgId, detached: Box<Pg>) -> Result<()> {
        self.pgs.insert(pg, detached);
        Ok(())
    }

    fn info(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Option<&ObjectInfo>> {
        Ok(self.object(pg, oid)?.map(|o| &o.info))
    }

    fn read(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        offset: u64,
        length: u64,
        out: &mut Vec<u8>,
    ) -> Result<usize> {
        let object = self.object(pg, oid)?;
        Ok(object.map_or(0, |o| o.data.read(offset, length, out)))
    }

    fn extents(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>> {
        let object = self.object(pg, oid)?;
        Ok(object.map_or(Vec::new(), |o| o.data.extents(offset, length)))
    }

    fn attr(&mut self, pg: PgId, oid: &HObjectRef<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let object = self.object(pg, oid)?;
        Ok(object.and_then(|o| o.attrs.get(name)).map(|v| v.to_vec()))
    }

    fn attrs(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let object = self.object(pg, oid)?;
        let attrs = object.into_iter().flat_map(|o| &o.attrs);
        Ok(attrs.map(|(k, v)| (k.to_vec(), v.to_vec())).collect())
    }

    fn omap_header(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<Vec<u8>> {
        let object = self.object(pg, oid)?;
        Ok(object.map_or(Vec::new(), |o| o.omap_header.to_vec()))
    }

    fn omap_get(&mut self, pg: PgId, oid: &HObjectRef<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let object = self.object(pg, oid)?;
        Ok(object.and_then(|o| o.omap.get(key)).map(|v| v.to_vec()))
    }

    fn omap_size(&mut self, pg: PgId, oid: &HObjectRef<'_>) -> Result<(u64, u64)> {
        let object = self.object(pg, oid)?;
        Ok(object.map_or((0, 0), |o| (o.omap.len() as u64, o.omap_bytes)))
    }

    fn omap_list(
        &mut self,
        pg: PgId,
        oid: &HObjectRef<'_>,
        after: &[u8],
        prefix: &[u8],
        max: usize,
    ) -> Result<Page<(Vec<u8>, Vec<u8>)>> {
        let mut page = Page::default();
        let Some(object) = self.object(pg, oid)? else {
            return Ok(page);
        };
        let from = if prefix > after {
            Bound::Included(prefix)
        } else {
            Bound::Excluded(after)
        };
        let range = object.omap.range::<[u8], _>((from, Bound::Unbounded));
        for (key, value) in range.take_while(|(k, _)| k.starts_with(prefix)) {
            if page.items.len() == max {
                page.more = true;
                break;
            }
            page.items.push((key.to_vec(), value.to_vec()));
        }
        Ok(page)
    }

    fn list(&mut self, pg: PgId, from: &HObjectRef<'_>, max: usize) -> Result<Page<HObject>> {
        let held = self.pg(pg)?;
        let mut page = Page {
            items: Vec::new(),
            more: false,
        };
        // The pool comes before the hash in the order, and a pg has objects of its own pool only.
        let first = match from.pool.cmp(&pg.pool) {
            _ if from.max => return Ok(page),
            Ordering::Less => 0,
            Ordering::Equal => place(from),
            Ordering::Greater => return Ok(page),
        };
        let objects = held.objects.range(first..).flat_map(|(_, bucket)| bucket);
        for object in objects.skip_while(|o| o.name.as_ref().order(from).is_lt()) {
            if page.items.len() == max {
                page.more = true;
                break;
            }
            page.items.push(object.name.clone());
        }
        Ok(page)
    }

    fn apply(&mut self, pg: PgId, txn: Transaction<'_>) -> Result<Seq> {
        let held = self.pgs.get_mut(&pg).ok_or(StoreError::NoPg(pg))?;
        for step in txn.steps {
            held.step(&txn.objects, step);
        }
        if let Some(entry) = txn.log {
            held.log(entry);
        }
        if let Some(trimmed) = txn.trimmed_snaps {
            held.state.trimmed_snaps = trimmed;
        }
        self.applied += 1;
        Ok(self.applied)
    }

    fn committed(&self) -> Seq {
        self.applied
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance;
    use super::*;

    impl conformance::Subject for MemoryStore {
        type Store = MemoryStore;

        fn store(&mut self) -> &mut MemoryStore {
            self
        }
    }

    #[test]
    fn does_what_every_store_does() {
        for seed in 0..10 {
            conformance::run(&mut MemoryStore::new(), seed, 200);
        }
    }

    #[test]
    fn objects_that_share_a_hash_stay_apart() {
        let pg = PgId { pool: 1, seed: 0 };
        let mut store = MemoryStore::new();
        store.create_pg(pg).unwrap();
        let names: Vec<HObject> = [b"a", b"b", b"c"]
            .map(|n| HObjectRef::head(1, b"", b"", n, 8).into())
            .to_vec();
        let steps = (0..3).map(|obj| Step::Write {
            obj,
            offset: 0,
            data: vec![obj as u8].into(),
        });
        let txn = Transaction {
            objects: names.clone(),
            steps: steps.collect(),
            ..Transaction::default()
        };
        assert_eq!(store.apply(pg, txn).unwrap(), 1);
        for (i, name) in names.iter().enumerate() {
            let mut out = Vec::new();
            store.read(pg, &name.as_ref(), 0, 9, &mut out).unwrap();
            assert_eq!(out, [i as u8]);
        }
        let page = store.list(pg, &names[1].as_ref(), 9).unwrap();
        assert_eq!(page.items, names[1..]);
    }
}
