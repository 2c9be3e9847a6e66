//! What every store must do: a program of random steps runs against a store and against plain maps,
//! and every accessor has to tell the same of both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use super::{LOG_LEN, LogEntry, Pair, PgState, Seq, Step, Store, Transaction};
use crate::codec::{EntityAddr, EntityName, EntityType, UTime};
use crate::objecter::msg::{EVersion, HObject, HObjectRef, NOSNAP, PgId, ReqId};
use crate::osd::object::{CloneState, ObjectInfo, SnapSet, WatchRecord};
use crate::osdmap::objhash::{mask_of, stable_mod};

/// A store under test.
pub trait Subject {
    type Store: Store;

    fn store(&mut self) -> &mut Self::Store;

    /// Waits until everything that was applied has been committed.
    fn settle(&mut self) {}

    /// Takes the store down and brings it up again, if it is one that outlives that; everything
    /// that was committed must still be there.
    fn reopen(&mut self) {}
}

const POOL: i64 = 3;
/// Objects end before this.
const REACH: u64 = 300_000;
/// A store may keep and give back room in units up to this.
const GRAIN: u64 = 65_536;

/// Runs a random program of `steps` transactions and other changes. Panics at the first difference.
pub fn run<T: Subject>(subject: &mut T, seed: u64, steps: usize) {
    let mut world = World {
        subject,
        rng: Rng(seed),
        pgs: BTreeMap::new(),
        pg_num: 2,
        applied: 0,
        version: 0,
    };
    for seed in 0..2 {
        world.create(PgId { pool: POOL, seed });
    }
    for _ in 0..steps {
        world.step();
    }
    world.subject.settle();
    world.check_all();
    world.subject.reopen();
    world.check_all();
}

struct Rng(u64);

impl Rng {
    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn bytes(&mut self, max: u64) -> Vec<u8> {
        let len = self.below(max + 1);
        let mut out: Vec<u8> = (0..len.div_ceil(8))
            .flat_map(|_| self.next().to_le_bytes())
            .collect();
        out.truncate(len as usize);
        out
    }

    /// Small, page-sized or anything, so that the edges of pages and chunks are met.
    fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(100),
            1 => self.below(REACH / 4096) * 4096,
            2 => (self.below(REACH / 4096 - 1) + 1) * 4096 - 1 + self.below(3),
            _ => self.below(REACH),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        const KEYS: [&[u8]; 8] = [
            b"a",
            b"a.b",
            b"ab",
            b"b",
            b"\xff\xff",
            b"\0",
            b"a\0",
            b"ab\xff",
        ];
        KEYS[self.below(8) as usize].to_vec()
    }
}

#[derive(Debug, Clone, Default)]
struct Object {
    info: ObjectInfo,
    data: Vec<u8>,
    /// 4 KiB blocks that were written and not made zero as a whole since.
    written: BTreeSet<u64>,
    attrs: BTreeMap<Vec<u8>, Vec<u8>>,
    header: Vec<u8>,
    omap: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Object {
    fn zero(&mut self, from: u64, to: u64) {
        let end = self.data.len() as u64;
        let to = to.min(end);
        if from >= to {
            return;
        }
        self.data[from as usize..to as usize].fill(0);
        let gone = if to == end { u64::MAX } else { to / 4096 };
        self.written
            .retain(|b| *b < from.div_ceil(4096) || *b >= gone);
    }

    fn truncate(&mut self, size: u64) {
        self.zero(size, u64::MAX);
        self.data.resize(size as usize, 0);
    }
}

#[derive(Debug, Default)]
struct Pg {
    state: PgState,
    objects: BTreeMap<HObject, Object>,
}

struct World<'t, T> {
    subject: &'t mut T,
    rng: Rng,
    pgs: BTreeMap<PgId, Pg>,
    pg_num: u32,
    applied: Seq,
    version: u64,
}

fn same<V: PartialEq + Debug>(what: &str, store: V, model: V) {
    assert!(
        store == model,
        "{what}: the store says {store:?}, not {model:?}"
    );
}

impl<T: Subject> World<'_, T> {
    fn create(&mut self, pg: PgId) {
        self.subject.store().create_pg(pg).expect("create a pg");
        self.pgs.insert(pg, Pg::default());
    }

    fn step(&mut self) {
        match self.rng.below(40) {
            0 => self.split_or_merge(),
            1 => self.replace_pg(),
            2 => self.move_around(),
            3 => {
                self.subject.settle();
                self.subject.reopen();
                self.check_all();
            }
            4 | 5 => self.check_all(),
            _ => self.transaction(),
        }
    }

    fn any_pg(&mut self) -> PgId {
        PgId {
            pool: POOL,
            seed: self.rng.below(u64::from(self.pg_num)) as u32,
        }
    }

    /// Names whose hashes collide, agree in their low bits, or are far apart; heads and clones.
    fn any_object(&mut self, pg: PgId) -> HObject {
        let n = self.rng.below(12) as u32;
        let hash = ((n / 2) << 8) | (n % 4) | (n.wrapping_mul(0x9e37_79b9) & 0xffff_0000);
        let hash = if n >= 10 { 0x1000 } else { hash };
        let hash = hash & !(self.pg_num - 1) | pg.seed;
        let name = format!("object{n}");
        let head = HObjectRef::head(
            POOL,
            if n == 7 { b"space" } else { b"" },
            if n == 8 { b"key" } else { b"" },
            name.as_bytes(),
            hash,
        );
        let snap = [NOSNAP, NOSNAP, 4, 7][self.rng.below(4) as usize];
        HObjectRef { snap, ..head }.into()
    }

    fn transaction(&mut self) {
        let pg = self.any_pg();
        let mut objects: Vec<HObject> = Vec::new();
        for _ in 0..self.rng.below(3) + 1 {
            let object = self.any_object(pg);
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        let mut steps = Vec::new();
        for _ in 0..self.rng.below(4) + 1 {
            steps.push(self.any_step(objects.len()));
        }
        let model = self.pgs.get_mut(&pg).expect("a pg that is there");
        for step in &steps {
            apply(&mut model.objects, &objects, step);
        }
        let log = (!self.rng.one_in(10)).then(|| self.any_entry());
        let model = self.pgs.get_mut(&pg).expect("a pg that is there");
        if let Some(entry) = &log {
            let state = &mut model.state;
            state.last_update = entry.version;
            state.last_user_version = state.last_user_version.max(entry.user_version);
            state.log.push(entry.clone());
            let excess = state.log.len().saturating_sub(LOG_LEN);
            state.log.drain(..excess);
        }
        let trimmed_snaps = self
            .rng
            .one_in(10)
            .then(|| vec![(self.rng.below(9) + 1, self.rng.below(20) + 1)]);
        if let Some(trimmed) = &trimmed_snaps {
            model.state.trimmed_snaps.clone_from(trimmed);
        }
        let txn = Transaction {
            log,
            objects: objects.clone(),
            steps,
            trimmed_snaps,
        };
        let store = self.subject.store();
        let seq = store.apply(pg, txn).expect("apply a transaction");
        assert!(seq > self.applied, "numbers of transactions only grow");
        assert!(store.committed() <= seq, "nothing is durable before it is");
        self.applied = seq;
        for object in &objects {
            self.check(pg, object);
        }
    }

    fn any_entry(&mut self) -> LogEntry {
        self.version += 1;
        let returns = (0..self.rng.below(3)).map(|i| (i as i32 - 1, self.rng.bytes(20)));
        let returns = returns.collect();
        LogEntry {
            version: EVersion {
                epoch: 5,
                version: self.version,
            },
            user_version: self.rng.below(1000),
            reqid: ReqId {
                name: EntityName::new(EntityType::CLIENT, self.rng.below(9) as i64),
                tid: self.rng.next(),
                inc: 2,
            },
            result: -(self.rng.below(40) as i32),
            returns,
        }
    }

    fn any_info(&mut self) -> ObjectInfo {
        let n = self.rng.next();
        let clones = (0..self.rng.below(3)).map(|i| CloneState {
            id: 4 + i,
            snaps: (0..self.rng.below(4)).map(|s| 40 - s).collect(),
            overlap: (0..self.rng.below(4)).map(|s| (s * 100, 50)).collect(),
            size: self.rng.below(REACH),
        });
        let clones = clones.collect();
        let watchers = (0..self.rng.below(3)).map(|cookie| WatchRecord {
            entity: EntityName::new(EntityType::CLIENT, cookie as i64),
            cookie,
            timeout_seconds: 30,
            addr: EntityAddr::msgr2("10.1.2.3:4567".parse().expect("an address"), n as u32),
        });
        ObjectInfo {
            size: self.rng.below(REACH),
            mtime: UTime::from_nanos(n >> 4),
            version: EVersion {
                epoch: 3,
                version: n >> 9,
            },
            user_version: n >> 8,
            last_reqid: ReqId {
                tid: n,
                ..ReqId::default()
            },
            truncate_seq: n as u32,
            truncate_size: n >> 3,
            expected_object_size: n >> 40,
            expected_write_size: n >> 50,
            alloc_hint_flags: n as u32 & 7,
            whiteout: n & 1 == 1,
            snaps: SnapSet {
                seq: n >> 20,
                clones,
            },
            watchers: watchers.collect(),
        }
    }

    fn any_step(&mut self, objects: usize) -> Step<'static> {
        let obj = self.rng.below(objects as u64) as usize;
        let bytes = |rng: &mut Rng, max| rng.bytes(max).into();
        match self.rng.below(24) {
            0 => Step::Touch(obj),
            1..8 => {
                let offset = self.rng.offset();
                let max = *[10, 5000, REACH]
                    .get(self.rng.below(3) as usize)
                    .expect("three of them");
                let mut data = self.rng.bytes(max.min(REACH - offset.min(REACH)));
                if self.rng.one_in(6) {
                    data.fill(0);
                }
                if data.is_empty() {
                    return Step::Touch(obj);
                }
                Step::Write {
                    obj,
                    offset,
                    data: data.into(),
                }
            }
            8..10 => Step::Zero {
                obj,
                offset: self.rng.offset(),
                length: self.rng.offset(),
            },
            10 | 11 => Step::Truncate {
                obj,
                size: self.rng.offset(),
            },
            12 => Step::Remove(obj),
            13 | 14 => {
                let to = self.rng.below(objects as u64) as usize;
                if to == obj {
                    return Step::Touch(obj);
                }
                Step::Clone { from: obj, to }
            }
            15 => Step::SetInfo {
                obj,
                info: Box::new(self.any_info()),
            },
            16 => Step::SetAttr {
                obj,
                name: self.rng.key().into(),
                value: bytes(&mut self.rng, 100),
            },
            17 => Step::RemoveAttr {
                obj,
                name: self.rng.key().into(),
            },
            18 if self.rng.one_in(3) => Step::RemoveAttrs(obj),
            18 | 19 => Step::OmapSetHeader {
                obj,
                header: bytes(&mut self.rng, 50),
            },
            20 | 21 => {
                let pairs = (0..self.rng.below(6)).map(|_| -> Pair<'static> {
                    (self.rng.key().into(), bytes(&mut self.rng, 30))
                });
                Step::OmapSet {
                    obj,
                    pairs: pairs.collect(),
                }
            }
            22 => Step::OmapRemove {
                obj,
                keys: (0..self.rng.below(3))
                    .map(|_| self.rng.key().into())
                    .collect(),
            },
            _ if self.rng.one_in(3) => Step::OmapClear(obj),
            _ => Step::OmapRemoveRange {
                obj,
                begin: self.rng.key().into(),
                end: self.rng.key().into(),
            },
        }
    }

    /// Doubles the pool's pgs, or makes them two again.
    fn split_or_merge(&mut self) {
        let pg = |seed| PgId { pool: POOL, seed };
        self.subject.settle();
        if self.pg_num == 2 {
            self.pg_num = 4;
            for seed in 0..2 {
                self.relocate(pg(seed), pg(seed + 2));
            }
        } else {
            self.pg_num = 2;
            for seed in 0..2 {
                self.relocate(pg(seed + 2), pg(seed));
                let store = self.subject.store();
                store.remove_pg(pg(seed + 2)).expect("remove a pg");
                let left = self.pgs.remove(&pg(seed + 2)).expect("a pg that is there");
                assert!(left.objects.is_empty());
            }
        }
        self.check_all();
    }

    fn relocate(&mut self, from: PgId, to: PgId) {
        let store = self.subject.store();
        store
            .move_objects(from, to, self.pg_num)
            .expect("move objects");
        let mask = mask_of(self.pg_num);
        let source = self.pgs.get_mut(&from).expect("a pg that is there");
        let goes = |o: &HObject| stable_mod(o.as_ref().hash, self.pg_num, mask) == to.seed;
        let (moved, kept) = std::mem::take(&mut source.objects)
            .into_iter()
            .partition(|(o, _)| goes(o));
        source.objects = kept;
        let state = source.state.clone();
        match self.pgs.get_mut(&to) {
            Some(target) => {
                target.state.merge(state);
                target.objects.extend(moved);
            }
            None => {
                let objects = moved;
                self.pgs.insert(to, Pg { state, objects });
            }
        }
    }

    fn replace_pg(&mut self) {
        if !self.rng.one_in(3) {
            return;
        }
        let pg = self.any_pg();
        self.subject.settle();
        self.subject.store().remove_pg(pg).expect("remove a pg");
        assert!(self.subject.store().pg_state(pg).is_err());
        self.create(pg);
        self.check_all();
    }

    fn move_around(&mut self) {
        let pg = self.any_pg();
        self.subject.settle();
        let store = self.subject.store();
        let detached = store.detach_pg(pg).expect("detach a pg");
        assert!(!store.pgs().contains(&pg));
        store.attach_pg(pg, detached).expect("attach a pg");
        self.check_all();
    }

    fn check_all(&mut self) {
        let store = self.subject.store();
        let mut pgs = store.pgs();
        pgs.sort();
        let have: Vec<PgId> = self.pgs.keys().copied().collect();
        same("pgs", &pgs, &have);
        for pg in have {
            self.check_pg(pg);
            let objects: Vec<HObject> = self.pgs[&pg].objects.keys().cloned().collect();
            for object in objects {
                self.check(pg, &object);
            }
        }
    }

    fn check_pg(&mut self, pg: PgId) {
        let model = &self.pgs[&pg];
        let store = self.subject.store();
        let state = store.pg_state(pg).expect("the state of a pg");
        same("state of a pg", &state, &model.state);
        let usage = store.usage(pg);
        let objects = model.objects.values();
        let sum = |f: fn(&Object) -> u64| -> u64 { objects.clone().map(f).sum() };
        same("objects", usage.objects, model.objects.len() as u64);
        let clones = model.objects.keys().filter(|o| o.as_ref().snap != NOSNAP);
        same("clones", usage.clones, clones.count() as u64);
        same("bytes", usage.bytes, sum(|o| o.info.size));
        same("omap keys", usage.omap_keys, sum(|o| o.omap.len() as u64));
        let omap = |o: &Object| o.omap.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        let omap: usize = objects.clone().map(omap).sum();
        same("bytes of omap", usage.omap_bytes, omap as u64);

        let all: Vec<HObject> = model.objects.keys().cloned().collect();
        let page = store.list(pg, &HObjectRef::MIN, usize::MAX).expect("list");
        same("list", (&page.items, page.more), (&all, false));
        let page = store.list(pg, &HObjectRef::MAX, 9).expect("list");
        same("list from the end", page.items.len(), 0);
        // From an object that is there, or not.
        let from = self.any_object(pg);
        let max = self.rng.below(5) as usize + 1;
        let after: Vec<HObject> = all.iter().filter(|o| **o >= from).cloned().collect();
        let page = self.subject.store().list(pg, &from.as_ref(), max);
        let page = page.expect("list");
        let want = &after[..max.min(after.len())];
        same("list from an object", &page.items[..], want);
        same("more to list", page.more, after.len() > max);

        let mut stored = 0;
        for object in &all {
            let extents = self
                .subject
                .store()
                .extents(pg, &object.as_ref(), 0, u64::MAX);
            stored += extents.expect("extents").iter().map(|e| e.1).sum::<u64>();
        }
        assert!(usage.stored >= stored, "what is stored takes up room");
    }

    fn check(&mut self, pg: PgId, name: &HObject) {
        let World {
            subject, rng, pgs, ..
        } = self;
        let store = subject.store();
        let oid = &name.as_ref();
        let Some(model) = pgs[&pg].objects.get(name) else {
            assert!(store.info(pg, oid).expect("info").is_none());
            return;
        };
        let info = store.info(pg, oid).expect("info");
        same("info", info, Some(&model.info));

        let (offset, length) = match rng.below(3) {
            0 => (0, u64::MAX),
            1 => (rng.offset(), u64::MAX - 5),
            _ => (rng.offset(), rng.offset()),
        };
        let end = model.data.len() as u64;
        let to = offset.saturating_add(length).min(end);
        let range = offset.min(to) as usize..to as usize;
        let mut out = b"before".to_vec();
        let n = store.read(pg, oid, offset, length, &mut out).expect("read");
        same("length of a read", n, range.len());
        assert!(
            out[..6] == *b"before" && out[6..] == model.data[range.clone()],
            "{name:?}: the data differ in {range:?}"
        );

        let extents = store.extents(pg, oid, offset, length).expect("extents");
        check_extents(model, range, &extents);

        let attrs = store.attrs(pg, oid).expect("attrs");
        let want: Vec<_> = model.attrs.clone().into_iter().collect();
        same("attributes", attrs, want);
        let attr = rng.key();
        let value = store.attr(pg, oid, &attr).expect("attr");
        same("an attribute", value.as_ref(), model.attrs.get(&attr));

        let header = store.omap_header(pg, oid).expect("omap_header");
        same("omap header", &header, &model.header);
        let key = rng.key();
        let value = store.omap_get(pg, oid, &key).expect("omap_get");
        same("an omap value", value.as_ref(), model.omap.get(&key));
        let after = if rng.one_in(2) { Vec::new() } else { rng.key() };
        let prefix = if rng.one_in(2) { Vec::new() } else { rng.key() };
        let max = rng.below(6) as usize;
        let page = store.omap_list(pg, oid, &after, &prefix, max);
        let page = page.expect("omap_list");
        let matching = model.omap.iter();
        let matching = matching.filter(|(k, _)| **k > after && k.starts_with(&prefix));
        let want: Vec<_> = matching.clone().take(max).collect();
        let items: Vec<_> = page.items.iter().map(|(k, v)| (k, v)).collect();
        same("omap", items, want);
        same("more omap", page.more, matching.count() > max);
    }
}

/// What a step means.
fn apply(objects: &mut BTreeMap<HObject, Object>, names: &[HObject], step: &Step<'_>) {
    let mut change = |obj: usize, f: &mut dyn FnMut(&mut Object)| {
        f(objects.entry(names[obj].clone()).or_default());
    };
    match step {
        Step::Touch(obj) => change(*obj, &mut |_| {}),
        Step::Write { obj, offset, data } => change(*obj, &mut |o| {
            let (from, to) = (*offset as usize, *offset as usize + data.len());
            o.data.resize(o.data.len().max(to), 0);
            o.data[from..to].copy_from_slice(data);
            if !data.is_empty() {
                o.written
                    .extend(from as u64 / 4096..to.div_ceil(4096) as u64);
            }
        }),
        Step::Zero {
            obj,
            offset,
            length,
        } => change(*obj, &mut |o| o.zero(*offset, offset + length)),
        Step::Truncate { obj, size } => change(*obj, &mut |o| o.truncate(*size)),
        Step::Remove(obj) => {
            objects.remove(&names[*obj]);
        }
        Step::Clone { from, to } => {
            let copy = objects.entry(names[*from].clone()).or_default().clone();
            objects.insert(names[*to].clone(), copy);
        }
        Step::SetInfo { obj, info } => change(*obj, &mut |o| o.info = (**info).clone()),
        Step::SetAttr { obj, name, value } => change(*obj, &mut |o| {
            o.attrs.insert(name.to_vec(), value.to_vec());
        }),
        Step::RemoveAttr { obj, name } => change(*obj, &mut |o| {
            o.attrs.remove(&name.to_vec());
        }),
        Step::RemoveAttrs(obj) => change(*obj, &mut |o| o.attrs.clear()),
        Step::OmapSetHeader { obj, header } => change(*obj, &mut |o| o.header = header.to_vec()),
        Step::OmapSet { obj, pairs } => change(*obj, &mut |o| {
            let pairs = pairs.iter().map(|(k, v)| (k.to_vec(), v.to_vec()));
            o.omap.extend(pairs);
        }),
        Step::OmapRemove { obj, keys } => change(*obj, &mut |o| {
            o.omap.retain(|k, _| !keys.iter().any(|key| **key == **k));
        }),
        Step::OmapRemoveRange { obj, begin, end } => change(*obj, &mut |o| {
            o.omap.retain(|k, _| **k < **begin || **k >= **end);
        }),
        Step::OmapClear(obj) => change(*obj, &mut |o| {
            o.omap.clear();
            o.header.clear();
        }),
    }
}

/// What is told to be stored lies in the range, in order, and is what may be stored; everything else
/// is zero.
fn check_extents(model: &Object, range: std::ops::Range<usize>, extents: &[(u64, u64)]) {
    let mut zero_from = range.start;
    for &(offset, length) in extents {
        let (from, to) = (offset as usize, (offset + length) as usize);
        assert!(length > 0 && from >= zero_from && to <= range.end);
        assert!(
            from > zero_from || from == range.start,
            "extents touch each other"
        );
        assert!(model.data[zero_from..from].iter().all(|b| *b == 0));
        zero_from = to;
        for grain in offset / GRAIN..(offset + length).div_ceil(GRAIN) {
            let blocks = grain * GRAIN / 4096..(grain + 1) * GRAIN / 4096;
            assert!(
                model.written.range(blocks).next().is_some(),
                "nothing was written where {offset}~{length} is told to be stored"
            );
        }
    }
    assert!(model.data[zero_from..range.end].iter().all(|b| *b == 0));
}
