//! The store as a whole, on a disk that loses power and on real files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::open::{self, Opened};
use super::pipeline::Machine;
use super::shard::FileShard;
use super::sim::Disk;
use super::{FileBackend, Options, lock};
use crate::objecter::msg::{EVersion, HObject, HObjectRef, NOSNAP};
use crate::osd::ObjectInfo;
use crate::osd::store::{LogEntry, Result, Step, Store, StoreError, Transaction, conformance};
use crate::osdmap::Pg as PgId;

/// Small enough for segments to wrap and files to be closed all the time.
fn small() -> Options {
    Options {
        segment: 64 << 10,
        journal: 256 << 10,
        unapplied: 1 << 20,
        interval: Duration::from_secs(3600),
        objects: 64,
        open_files: 3,
        cache: 1 << 20,
        reserve: 1 << 20,
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A store on a simulated disk whose background advances as the dice fall.
struct Rig {
    disk: Disk,
    options: Options,
    rng: u64,
    shard: Option<FileShard>,
    core: Option<Arc<super::core::Core>>,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        Rig::with(seed, small())
    }

    fn with(seed: u64, options: Options) -> Rig {
        let mut rig = Rig {
            disk: Disk::new(seed),
            options,
            rng: seed,
            shard: None,
            core: None,
        };
        rig.open().expect("a new store");
        rig
    }

    fn open(&mut self) -> Result<()> {
        let vfs = Arc::new(self.disk.clone());
        let Opened { core, machine, .. } = open::open("sim".to_owned(), vfs, self.options.clone())?;
        *lock(&core.machine) = Some(machine);
        self.shard = Some(FileShard::new(Arc::clone(&core), 0, Box::new(|| {})));
        self.core = Some(core);
        Ok(())
    }

    fn shard(&mut self) -> &mut FileShard {
        self.shard.as_mut().expect("an open store")
    }

    fn below(&mut self, n: u64) -> u64 {
        random(&mut self.rng) % n
    }

    /// Lets the background do something, or nothing.
    fn chance(&mut self) {
        let steps: [fn(&mut Machine); 3] = [Machine::commit, Machine::apply, Machine::checkpoint];
        for step in steps {
            if self.below(3) == 0
                && let Some(core) = &self.core
                && let Some(machine) = lock(&core.machine).as_mut()
            {
                step(machine);
            }
        }
    }

    /// Ends the store without letting it do anything more.
    fn crash(&mut self, power_cut: bool) {
        self.disk.fuse(0);
        self.shard = None;
        if let Some(core) = self.core.take() {
            // The two hold each other.
            let machine = lock(&core.machine).take();
            drop(machine);
        }
        self.disk.restart(power_cut);
    }
}

impl conformance::Subject for Rig {
    type Store = FileShard;

    fn store(&mut self) -> &mut FileShard {
        self.chance();
        self.shard()
    }

    fn settle(&mut self) {
        self.shard().sync().expect("commit");
    }

    fn reopen(&mut self) {
        let power_cut = self.below(2) == 0;
        self.crash(power_cut);
        self.open().expect("open again");
    }
}

/// Found wrong once.
const KNOWN: u64 = 922;

/// So many seeds by default, `STORE_SEEDS` on demand, or the one that `STORE_SEED` names.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let asked = |name: &str| std::env::var(name).ok()?.parse().ok();
    match asked("STORE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..asked("STORE_SEEDS").unwrap_or(default),
    }
}

/// Says which seed it was when a test fails.
struct Telltale(u64);

impl Drop for Telltale {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("STORE_SEED={} repeats this", self.0);
        }
    }
}

#[test]
fn conforms_whatever_the_background_does_and_after_power_cuts() {
    for seed in seeds(40) {
        let _telltale = Telltale(seed);
        conformance::run(&mut Rig::new(seed), seed, 60);
    }
}

/// Real files and threads.
struct Real {
    dir: tempfile::TempDir,
    backend: Option<Arc<FileBackend>>,
    shard: Option<FileShard>,
}

impl Real {
    fn new() -> Real {
        let dir = tempfile::tempdir().expect("a directory");
        let mut real = Real {
            dir,
            backend: None,
            shard: None,
        };
        real.open();
        real
    }

    fn open(&mut self) {
        let backend = FileBackend::open(self.dir.path(), small()).expect("open the store");
        self.shard = Some(backend.shard(0, Box::new(|| {})));
        self.backend = Some(backend);
    }
}

impl conformance::Subject for Real {
    type Store = FileShard;

    fn store(&mut self) -> &mut FileShard {
        self.shard.as_mut().expect("an open store")
    }

    fn settle(&mut self) {
        self.store().sync().expect("commit");
    }

    fn reopen(&mut self) {
        self.shard = None;
        self.backend = None;
        self.open();
    }
}

#[test]
fn conforms_on_real_files() {
    for seed in 0..4 {
        conformance::run(&mut Real::new(), seed, 150);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Thing {
    user_version: u64,
    data: Vec<u8>,
    attrs: BTreeMap<Vec<u8>, Vec<u8>>,
    omap: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Things = BTreeMap<(PgId, HObject), Thing>;

#[derive(Debug, Clone)]
struct State {
    /// The pg that objects with a hash belong to.
    homes: [u32; HASHES as usize],
    things: Things,
}

/// Random transactions against a model of every state the store went through.
struct World {
    rig: Rig,
    /// By the number of the transaction that led to it.
    states: Vec<State>,
    /// Numbers of transactions in the store, by ours.
    seqs: Vec<u64>,
    /// Hashes of objects.
    hashes: u32,
    /// What the newest state is if the move that the crash cut short has happened.
    moved: Option<State>,
    crashes: u64,
    lost: u64,
}

const PGS: u32 = 2;
/// Splits may bring each its own pg.
const HASHES: u32 = 8;

fn pg_of(seed: u32) -> PgId {
    PgId { pool: 1, seed }
}

fn pg(n: u64) -> PgId {
    pg_of(n as u32 % PGS)
}

fn name(pg: PgId, n: u64) -> HObject {
    hashed(pg.seed, n)
}

fn hashed(hash: u32, n: u64) -> HObject {
    let name = format!("o{}", n / 2);
    let head = HObjectRef::head(1, b"", b"", name.as_bytes(), hash);
    HObjectRef {
        snap: if n.is_multiple_of(2) { NOSNAP } else { 3 },
        ..head
    }
    .into()
}

impl World {
    fn new(mut rig: Rig, hashes: u32) -> World {
        for n in 0..PGS {
            rig.shard().create_pg(pg(n.into())).expect("create a pg");
        }
        rig.shard().sync().expect("commit");
        World {
            rig,
            states: vec![State {
                homes: std::array::from_fn(|hash| hash as u32 % PGS),
                things: Things::default(),
            }],
            seqs: vec![0],
            hashes,
            moved: None,
            crashes: 0,
            lost: 0,
        }
    }

    fn transaction(&mut self) -> Result<(), StoreError> {
        let rig = &mut self.rig;
        let mut after = self.states[self.states.len() - 1].clone();
        let hash = rig.below(9) as u32 % self.hashes;
        let pg = pg_of(after.homes[hash as usize]);
        let state = &mut after.things;
        let mut txn = Transaction::default();
        let mut picked = vec![rig.below(8)];
        let other = rig.below(8);
        if other != picked[0] {
            picked.push(other);
        }
        txn.objects = picked.iter().map(|n| hashed(hash, *n)).collect();
        for _ in 0..rig.below(3) + 1 {
            let obj = rig.below(picked.len() as u64) as usize;
            let oid = (pg, txn.objects[obj].clone());
            let key = vec![b'a' + rig.below(4) as u8];
            let value = vec![rig.below(256) as u8; rig.below(40) as usize];
            let kind = rig.below(12);
            let step = match kind {
                0 => {
                    state.remove(&oid);
                    Step::Remove(obj)
                }
                1 | 2 if picked.len() == 2 => {
                    let thing = state.entry(oid).or_default().clone();
                    let to = 1 - obj;
                    state.insert((pg, txn.objects[to].clone()), thing);
                    Step::Clone { from: obj, to }
                }
                3 => {
                    state
                        .entry(oid)
                        .or_default()
                        .attrs
                        .insert(key.clone(), value.clone());
                    Step::SetAttr {
                        obj,
                        name: key.into(),
                        value: value.into(),
                    }
                }
                4 => {
                    state
                        .entry(oid)
                        .or_default()
                        .omap
                        .insert(key.clone(), value.clone());
                    Step::OmapSet {
                        obj,
                        pairs: vec![(key.into(), value.into())],
                    }
                }
                5 => {
                    state.entry(oid).or_default().omap.clear();
                    Step::OmapClear(obj)
                }
                6 => {
                    let size = rig.below(40_000);
                    state.entry(oid).or_default().data.resize(size as usize, 0);
                    Step::Truncate { obj, size }
                }
                7 => {
                    let (offset, length) = (rig.below(30_000), rig.below(20_000));
                    let data = &mut state.entry(oid).or_default().data;
                    let end = (offset + length).min(data.len() as u64);
                    if offset < end {
                        data[offset as usize..end as usize].fill(0);
                    }
                    Step::Zero {
                        obj,
                        offset,
                        length,
                    }
                }
                8 => {
                    let info = ObjectInfo {
                        user_version: rig.below(99),
                        ..ObjectInfo::default()
                    };
                    state.entry(oid).or_default().user_version = info.user_version;
                    Step::SetInfo {
                        obj,
                        info: Box::new(info),
                    }
                }
                _ => {
                    let offset = rig.below(20_000) as usize;
                    let bytes = vec![rig.below(256) as u8; rig.below(9000) as usize + 1];
                    let data = &mut state.entry(oid).or_default().data;
                    data.resize(data.len().max(offset + bytes.len()), 0);
                    data[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    Step::Write {
                        obj,
                        offset: offset as u64,
                        data: bytes.into(),
                    }
                }
            };
            txn.steps.push(step);
        }
        txn.log = Some(LogEntry {
            version: EVersion {
                epoch: 1,
                version: self.states.len() as u64,
            },
            ..LogEntry::default()
        });
        let seq = rig.shard().apply(pg, txn)?;
        self.states.push(after);
        self.seqs.push(seq);
        rig.chance();
        Ok(())
    }

    /// Splits a pg or merges two, as when the number of a pool's pgs is doubled or halved.
    fn reshape(&mut self) -> Result<(), StoreError> {
        let half = PGS << self.rig.below(2);
        let low = self.rig.below(half.into()) as u32;
        let split = self.rig.below(2) == 0;
        let (from, to, pg_num) = match split {
            true => (low, low + half, 2 * half),
            false => (low + half, low, half),
        };
        let last = self.states.len() - 1;
        if !self.rig.shard().pgs().contains(&pg_of(from)) {
            return Ok(());
        }
        let mut after = self.states[last].clone();
        for (hash, home) in (0..).zip(&mut after.homes) {
            if *home == from && hash % pg_num == to {
                *home = to;
            }
        }
        let things = std::mem::take(&mut after.things).into_iter();
        after.things = things
            .map(|((_, o), thing)| ((pg_of(after.homes[o.as_ref().hash as usize]), o), thing))
            .collect();
        self.moved = Some(after);
        let (from, to) = (pg_of(from), pg_of(to));
        self.rig.shard().move_objects(from, to, pg_num)?;
        if let Some(moved) = self.moved.take() {
            self.states[last] = moved;
        }
        Ok(())
    }

    fn crash(&mut self, power_cut: bool) {
        self.crashes += 1;
        let committed = self.rig.shard().committed();
        let acknowledged = self.seqs.iter().rposition(|seq| *seq <= committed);
        self.rig.crash(power_cut);
        // Power may go again while the store recovers.
        while self.rig.below(3) == 0 {
            let changes = self.rig.below(60);
            self.rig.disk.fuse(changes);
            let _ = self.rig.open();
            let power_cut = self.rig.below(2) == 0;
            self.rig.crash(power_cut);
        }
        self.rig.open().expect("open after a crash");
        let shard = self.rig.shard();
        let pgs = shard.pgs();
        let newest = |pg: PgId| {
            let state = shard.pg_state(pg).expect("the state of a pg");
            state.last_update.version as usize
        };
        let newest = pgs.into_iter().map(newest).max().unwrap_or(0);
        assert!(
            newest >= acknowledged.unwrap_or(0),
            "transaction {acknowledged:?} was acknowledged, {newest} is the newest there"
        );
        self.lost += (self.states.len() - 1 - newest) as u64;
        if newest + 1 < self.states.len() {
            // The move came behind what was lost.
            self.moved = None;
        }
        self.states.truncate(newest + 1);
        self.seqs.truncate(newest + 1);
        // Numbers of transactions that are there are below all that come.
        self.seqs.fill(0);
        self.check();
    }

    fn check(&mut self) {
        let seen = self.seen();
        if let Some(moved) = self.moved.take()
            && let Some(state) = self.states.last_mut()
            && !seen.keys().eq(state.things.keys())
        {
            *state = moved;
        }
        let model = &self.states[self.states.len() - 1].things;
        assert!(
            seen.keys().eq(model.keys()),
            "there are {:?}, not {:?}",
            seen.keys(),
            model.keys()
        );
        for (oid, thing) in &seen {
            if let Some(what) = thing.difference(&model[oid]) {
                panic!("{oid:?}: {what}");
            }
        }
    }

    fn seen(&mut self) -> Things {
        let shard = self.rig.shard();
        let mut seen = Things::default();
        for pg in shard.pgs() {
            let page = shard.list(pg, &HObjectRef::MIN, 1000).expect("list");
            for object in page.items {
                let oid = &object.as_ref();
                let mut thing = Thing {
                    user_version: shard
                        .info(pg, oid)
                        .expect("info")
                        .expect("it is listed")
                        .user_version,
                    attrs: shard.attrs(pg, oid).expect("attrs").into_iter().collect(),
                    ..Thing::default()
                };
                let omap = shard.omap_list(pg, oid, b"", b"", 1000).expect("omap");
                thing.omap = omap.items.into_iter().collect();
                shard
                    .read(pg, oid, 0, u64::MAX, &mut thing.data)
                    .expect("read");
                seen.insert((pg, object), thing);
            }
        }
        seen
    }
}

impl Thing {
    /// What is not as it should be.
    fn difference(&self, model: &Thing) -> Option<String> {
        let (here, there) = (&self.data, &model.data);
        if here.len() != there.len() {
            return Some(format!("{} bytes, not {}", here.len(), there.len()));
        }
        let differ = |at: &usize| here[*at] != there[*at];
        if let Some(first) = (0..here.len()).find(differ) {
            let last = (0..here.len()).rfind(differ).unwrap_or(first);
            return Some(format!(
                "bytes {first} to {last} of {} differ: {} is there and not {}",
                here.len(),
                here[first],
                there[first]
            ));
        }
        (self != model).then(|| format!("{self:?} is there and not {model:?}"))
    }
}

/// Four times some transactions and an end of power or process, perhaps while there is more to do.
fn live_through(world: &mut World, reshape: bool) {
    for _ in 0..4 {
        let changes = world.rig.below(400);
        world.rig.disk.fuse(changes);
        let most = world.rig.below(120);
        for _ in 0..most {
            let done = match reshape && world.rig.below(12) == 0 {
                true => world.reshape(),
                false => world.transaction(),
            };
            if done.is_err() {
                break;
            }
        }
        let power_cut = world.rig.below(3) > 0;
        world.crash(power_cut);
    }
    world.rig.crash(true);
}

#[test]
fn a_crash_leaves_what_was_acknowledged_and_nothing_half_done() {
    let (mut crashes, mut lost) = (0, 0);
    // A process dies between writing and syncing its journal, and power goes in the recovery.
    let known = std::iter::once(KNOWN);
    for seed in seeds(150).chain(known) {
        let _telltale = Telltale(seed);
        let mut world = World::new(Rig::new(seed), PGS);
        live_through(&mut world, false);
        crashes += world.crashes;
        lost += world.lost;
    }
    // Otherwise the crashes came when nothing was under way.
    assert!(
        lost > crashes / 4 || crashes < 100,
        "{lost} transactions in {crashes} crashes"
    );
}

#[test]
fn a_crash_does_no_harm_with_a_small_journal_while_pgs_split_and_merge() {
    let (mut crashes, mut moves) = (0, 0);
    for seed in seeds(150) {
        let _telltale = Telltale(seed);
        let mut dice = !seed;
        let mut one_of = |choice: &[u64]| choice[random(&mut dice) as usize % choice.len()];
        let options = Options {
            segment: one_of(&[6 << 10, 12 << 10, 40 << 10]),
            journal: one_of(&[4 << 10, 32 << 10, 128 << 10]),
            unapplied: one_of(&[4 << 10, 1 << 20]),
            interval: Duration::from_secs(one_of(&[0, 3600])),
            open_files: one_of(&[1, 2, 100]) as usize,
            ..small()
        };
        let mut world = World::new(Rig::with(seed, options), HASHES);
        live_through(&mut world, true);
        crashes += world.crashes;
        moves += u64::from(
            world
                .states
                .iter()
                .any(|s| s.homes.iter().any(|h| *h >= PGS)),
        );
    }
    assert!(moves > 0 || crashes < 100, "no pg was ever split");
}

/// Some transactions while the disk is short of room, which then comes back or not.
fn live_with_little_room(world: &mut World, count: &mut [u64; 3]) {
    let [refused, went_on, stopped] = count;
    for _ in 0..4 {
        let disk = world.rig.disk.clone();
        let much = world.rig.below(400_000);
        match world.rig.below(4) {
            0 => disk.starve("objects", 1 + much % 5),
            1 => disk.starve("journal", 1 + much % 5),
            2 => disk.starve("", 1 + much % 40),
            _ => disk.leave_room(much),
        }
        let mut alive = true;
        for _ in 0..world.rig.below(120) {
            match world.transaction() {
                Ok(()) => {}
                Err(e) if e.is_full() => {
                    *refused += 1;
                    world.rig.chance();
                }
                Err(e) => {
                    assert!(!e.to_string().contains('\n'), "{e}");
                    alive = false;
                    break;
                }
            }
        }
        let core = world.rig.core.clone().expect("an open store");
        alive &= core.alive().is_ok();
        drop(core);
        if alive {
            world.check();
        }
        if alive && world.rig.below(2) == 0 {
            disk.feed();
            world.rig.shard().rest().expect("there is room again");
            world.check();
            world.transaction().expect("there is room again");
            *went_on += 1;
        }
        *stopped += u64::from(!alive);
        let power_cut = world.rig.below(3) > 0;
        world.crash(power_cut);
    }
    world.rig.crash(true);
}

#[test]
fn a_disk_without_room_loses_nothing_and_the_store_goes_on_when_there_is_some() {
    let mut count = [0; 3];
    for seed in seeds(60) {
        let _telltale = Telltale(seed);
        let options = Options {
            segment: 16 << 10,
            journal: 64 << 10,
            interval: Duration::ZERO,
            reserve: [0, 40_000, 200_000][seed as usize % 3],
            ..small()
        };
        live_with_little_room(&mut World::new(Rig::with(seed, options), PGS), &mut count);
    }
    let [refused, went_on, stopped] = count;
    println!("{refused} refused, {went_on} times on, {stopped} times stopped");
    assert!(refused > 1000 && went_on > 20 && stopped > 0 || seeds(60).count() < 60);
}

#[test]
fn a_commit_of_the_database_that_finds_no_room_is_the_end_and_loses_nothing() {
    let options = Options {
        interval: Duration::ZERO,
        ..small()
    };
    let mut rig = Rig::with(1, options);
    rig.shard().create_pg(pg(0)).unwrap();
    let first = rig.shard().apply(pg(0), write(1)).unwrap();
    rig.shard().sync().unwrap();
    // As if somebody took the room between the look and the commit.
    rig.disk.starve("meta", 1);
    let error = loop {
        if let Err(e) = rig.shard().apply(pg(0), write(2)) {
            break e;
        }
        let core = rig.core.clone().unwrap();
        lock(&core.machine).as_mut().unwrap().turn();
    };
    assert!(matches!(error, StoreError::Stopped(_)), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    let committed = rig.shard().committed();
    rig.crash(true);
    rig.open().unwrap();
    let mut out = Vec::new();
    let oid = name(pg(0), 0);
    let n = rig.shard().read(pg(0), &oid.as_ref(), 0, 5000, &mut out);
    assert_eq!(n.unwrap(), 5000);
    assert!(out[0] == 2 || committed == first);
    rig.crash(false);
}

fn write(n: u8) -> Transaction<'static> {
    Transaction {
        objects: vec![name(pg(0), 0)],
        steps: vec![Step::Write {
            obj: 0,
            offset: 0,
            data: vec![n; 5000].into(),
        }],
        ..Transaction::default()
    }
}

#[test]
fn a_failed_sync_stops_the_store_and_takes_back_nothing() {
    for (kind, prefix) in [
        ("sync", "journal"),
        ("write", "journal"),
        ("sync", "objects"),
        ("sync", "meta"),
    ] {
        let mut rig = Rig::new(1);
        rig.shard().create_pg(pg(0)).unwrap();
        let first = rig.shard().apply(pg(0), write(1)).unwrap();
        rig.shard().sync().unwrap();
        rig.disk.break_it(kind, prefix, std::io::ErrorKind::Other);
        let error = loop {
            if let Err(e) = rig.shard().apply(pg(0), write(2)) {
                break e;
            }
            let core = rig.core.clone().unwrap();
            lock(&core.machine).as_mut().unwrap().turn();
        };
        assert!(matches!(error, StoreError::Stopped(_)), "{error}");
        assert!(!error.to_string().contains('\n'));
        if prefix == "journal" {
            assert_eq!(rig.shard().committed(), first);
        }
        let committed = rig.shard().committed();
        assert!(rig.shard().sync().is_err() || rig.shard().committed() == committed);
        rig.crash(true);
        rig.open().unwrap();
        let mut out = Vec::new();
        rig.shard()
            .read(pg(0), &name(pg(0), 0).as_ref(), 0, 5000, &mut out)
            .unwrap();
        assert!(out.iter().all(|b| *b == out[0]) && out.len() == 5000);
        assert!(out[0] == 2 || committed == first);
    }
}

#[test]
fn a_full_disk_refuses_writes_and_lets_removals_through() {
    let mut rig = Rig::new(1);
    rig.shard().create_pg(pg(0)).unwrap();
    rig.shard().apply(pg(0), write(1)).unwrap();
    rig.disk.set_full(true);
    let core = rig.core.clone().unwrap();
    core.look_for_room().unwrap();
    let error = rig.shard().apply(pg(0), write(2)).unwrap_err();
    assert!(error.to_string().contains("write to sim"), "{error}");
    let StoreError::Io { source, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    // There is some room left for those, as far as the store is concerned.
    rig.disk.set_full(false);
    let remove = Transaction {
        objects: vec![name(pg(0), 0)],
        steps: vec![Step::Remove(0)],
        ..Transaction::default()
    };
    rig.shard().apply(pg(0), remove).unwrap();
    rig.shard().apply(pg(0), write(3)).unwrap();
    rig.crash(false);
}

#[test]
fn a_place_that_is_no_store_is_refused_in_one_line() {
    let refused = |dir: &std::path::Path, what: &str| match FileBackend::open(dir, small()) {
        Ok(_) => panic!("{what} was accepted"),
        Err(e) => {
            let text = e.to_string();
            assert!(text.contains(what) && !text.contains('\n'), "{text}");
        }
    };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("letter.txt"), "dear").unwrap();
    refused(dir.path(), "is not a store: it has \"letter.txt\" in it");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    refused(&dir.path().join("letter.txt"), "letter.txt");

    let dir = tempfile::tempdir().unwrap();
    let open = FileBackend::open(dir.path(), small()).unwrap();
    refused(dir.path(), "is in use by another process");
    drop(open);
    drop(FileBackend::open(dir.path(), small()).unwrap());
    std::fs::write(dir.path().join("format"), "ublk-rbd store 7\n").unwrap();
    refused(dir.path(), "has format 7, and this program knows format 1");
    std::fs::write(dir.path().join("format"), "something else").unwrap();
    refused(dir.path(), "another program's");
}

#[test]
fn pgs_go_from_shard_to_shard_and_are_found_where_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::open(dir.path(), small()).unwrap();
    let (woken, wakes) = std::sync::mpsc::channel();
    let mut a = backend.shard(0, Box::new(move || woken.send(()).unwrap_or_default()));
    let mut b = backend.shard(1, Box::new(|| {}));
    a.create_pg(pg(0)).unwrap();
    a.create_pg(pg(1)).unwrap();
    let seq = a.apply(pg(0), write(7)).unwrap();
    while a.committed() < seq {
        wakes.recv_timeout(Duration::from_secs(10)).unwrap();
    }
    let moved = a.detach_pg(pg(0)).unwrap();
    assert!(matches!(a.apply(pg(0), write(1)), Err(StoreError::NoPg(_))));
    let moved = std::thread::spawn(move || {
        b.attach_pg(pg(0), moved).unwrap();
        let mut out = Vec::new();
        b.read(pg(0), &name(pg(0), 0).as_ref(), 0, 9, &mut out)
            .unwrap();
        assert_eq!(out, [7; 9]);
        b.apply(pg(0), write(8)).unwrap();
        b
    });
    drop(moved.join().unwrap());
    drop((a, backend));

    let backend = FileBackend::open(dir.path(), small()).unwrap();
    let mut a = backend.shard(0, Box::new(|| {}));
    assert_eq!(a.pgs(), [pg(1)]);
    assert_eq!(backend.unclaimed(), [(1, pg(0))]);
    a.attach_pg(pg(0), backend.claim(pg(0)).unwrap()).unwrap();
    assert!(backend.claim(pg(0)).is_none());
    let mut out = Vec::new();
    a.read(pg(0), &name(pg(0), 0).as_ref(), 0, 9, &mut out)
        .unwrap();
    assert_eq!(out, [8; 9]);
}

#[test]
fn files_that_nothing_names_any_more_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let count = || -> usize {
        let folders = std::fs::read_dir(dir.path().join("objects")).unwrap();
        folders
            .map(|f| std::fs::read_dir(f.unwrap().path()).unwrap().count())
            .sum()
    };
    let options = Options {
        interval: Duration::from_millis(1),
        ..small()
    };
    let backend = FileBackend::open(dir.path(), options).unwrap();
    let mut shard = backend.shard(0, Box::new(|| {}));
    shard.create_pg(pg(0)).unwrap();
    shard.apply(pg(0), write(1)).unwrap();
    let two = vec![name(pg(0), 0), name(pg(0), 1)];
    let clone = Transaction {
        objects: two.clone(),
        steps: vec![Step::Clone { from: 0, to: 1 }],
        ..Transaction::default()
    };
    shard.apply(pg(0), clone).unwrap();
    shard.rest().unwrap();
    assert_eq!(count(), 1, "a clone shares the file");
    shard.apply(pg(0), write(2)).unwrap();
    shard.rest().unwrap();
    assert_eq!(count(), 2, "a write makes another");
    let remove = Transaction {
        objects: two,
        steps: vec![Step::Remove(1)],
        ..Transaction::default()
    };
    shard.apply(pg(0), remove).unwrap();
    shard.rest().unwrap();
    drop((shard, backend));
    assert_eq!(count(), 1);
    let backend = FileBackend::open(dir.path(), small()).unwrap();
    let mut shard = backend.shard(0, Box::new(|| {}));
    shard.remove_pg(pg(0)).unwrap();
    drop((shard, backend));
    assert_eq!(count(), 0);
}
