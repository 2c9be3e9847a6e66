//! Snapshots: random programs against a model, and what requests may say about them.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::rig::{PG, Rig, head, payload};
use crate::objecter::ObjectOp;
use crate::objecter::msg::{HObjectRef, NOSNAP, OsdFlags, SNAPDIR};
use crate::objecter::results::SnapSet;
use crate::osd::store::Store;
use crate::osdmap::pool::{PoolSnap, flag};

fn ops() -> ObjectOp {
    ObjectOp::new()
}

#[derive(Debug, Clone)]
enum Change {
    Write(u16, u16),
    WriteFull(u16),
    Append(u16),
    Zero(u16, u16),
    Truncate(u16),
    Delete,
    Create,
    SetAttr,
    /// To one of the snapshots that exist.
    RollBack(usize),
    /// To a snapshot that never was, or is gone.
    RollBackToNothing,
}

#[derive(Debug, Clone)]
enum Step {
    Change(Vec<Change>),
    Snapshot,
    Remove(usize),
    Trim,
}

const REACH: u16 = 20_000;

fn change() -> impl Strategy<Value = Change> {
    let at = || prop_oneof![0u16..40, (0u16..5).prop_map(|p| p * 4096), 0..REACH];
    prop_oneof![
        4 => (at(), 1u16..9000).prop_map(|(at, len)| Change::Write(at, len)),
        1 => at().prop_map(Change::WriteFull),
        1 => (1u16..50).prop_map(Change::Append),
        2 => (at(), 1u16..9000).prop_map(|(at, len)| Change::Zero(at, len)),
        2 => at().prop_map(Change::Truncate),
        2 => Just(Change::Delete),
        1 => Just(Change::Create),
        1 => Just(Change::SetAttr),
        3 => (0usize..9).prop_map(Change::RollBack),
        1 => Just(Change::RollBackToNothing),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => vec(change(), 1..4).prop_map(Step::Change),
        4 => Just(Step::Snapshot),
        1 => (0usize..9).prop_map(Step::Remove),
        1 => Just(Step::Trim),
    ]
}

/// Data and the value of an attribute.
type Content = Option<(Vec<u8>, Option<u8>)>;

struct World {
    rig: Rig,
    head: Content,
    /// Of the snapshots that exist.
    snaps: BTreeMap<u64, Content>,
    newest: u64,
    /// Of the next bytes that are written.
    mark: u8,
}

impl World {
    fn new() -> World {
        World {
            rig: Rig::new(),
            head: None,
            snaps: BTreeMap::new(),
            newest: 0,
            mark: 0,
        }
    }

    fn fill(&mut self, len: u16) -> Vec<u8> {
        self.mark = self.mark % 250 + 1;
        vec![self.mark; usize::from(len)]
    }

    /// Adds a change to a request and does it to the content; false when it would fail.
    fn plan(&mut self, change: &Change, all: ObjectOp, head: &mut Content) -> Option<ObjectOp> {
        let there = head.is_some();
        let mut made = head.clone().unwrap_or_default();
        let data = &mut made.0;
        Some(match *change {
            Change::Write(at, len) => {
                let bytes = self.fill(len);
                let (from, to) = (usize::from(at), usize::from(at) + bytes.len());
                data.resize(data.len().max(to), 0);
                data[from..to].copy_from_slice(&bytes);
                *head = Some(made);
                all.write(at.into(), payload(&bytes))
            }
            Change::WriteFull(len) => {
                *data = self.fill(len);
                let all = all.write_full(payload(data));
                *head = Some(made);
                all
            }
            Change::Append(len) => {
                let bytes = self.fill(len);
                data.extend(&bytes);
                *head = Some(made);
                all.append(payload(&bytes))
            }
            Change::Zero(at, len) => {
                let (from, to) = (usize::from(at), usize::from(at) + usize::from(len));
                if from < data.len() && to >= data.len() {
                    data.truncate(from);
                } else if to < data.len() {
                    data[from..to].fill(0);
                }
                *head = there.then_some(made);
                all.zero(at.into(), len.into())
            }
            Change::Truncate(size) => {
                data.resize(size.into(), 0);
                *head = there.then_some(made);
                all.truncate(size.into())
            }
            Change::Delete => {
                head.take()?;
                all.delete()
            }
            Change::Create => {
                *head = Some(made);
                all.create(false)
            }
            Change::SetAttr => {
                self.mark = self.mark % 250 + 1;
                made.1 = Some(self.mark);
                *head = Some(made);
                all.setxattr("a", &[self.mark])
            }
            Change::RollBack(n) => {
                let i = n.checked_rem(self.snaps.len())?;
                let (snap, content) = self.snaps.iter().nth(i)?;
                // A snapshot newer than the object's last write has the object as it was before
                // the request, so that going back to it is not for the middle of one.
                if !all.is_empty() {
                    return None;
                }
                head.clone_from(content);
                all.rollback(*snap)
            }
            Change::RollBackToNothing => {
                if !all.is_empty() || self.rig.ask_size().is_none() {
                    return None;
                }
                let gone = (1..=self.newest).find(|s| !self.snaps.contains_key(s))?;
                // As long as no write has heard of it the object is its state.
                if self.rig.seq() < gone {
                    return None;
                }
                *head = None;
                all.rollback(gone)
            }
        })
    }

    fn change(&mut self, changes: &[Change]) {
        let mut all = ops();
        let mut content = self.head.clone();
        for change in changes {
            match self.plan(change, all.clone(), &mut content) {
                Some(more) => all = more,
                None => break,
            }
        }
        if all.is_empty() {
            return;
        }
        let snaps = self.snaps.keys().rev().copied().collect();
        self.rig.snap_context = (self.newest, snaps);
        let answer = self.rig.ask(all);
        assert!(answer.result >= 0, "{changes:?}: {answer:?}");
        self.head = content;
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Change(changes) => self.change(changes),
            Step::Snapshot => {
                self.newest += 1;
                self.snaps.insert(self.newest, self.head.clone());
            }
            Step::Remove(n) => {
                if let Some(i) = n.checked_rem(self.snaps.len()) {
                    let snap = *self.snaps.keys().nth(i).unwrap();
                    self.snaps.remove(&snap);
                    self.rig.removed.insert(snap, 1);
                }
            }
            Step::Trim => {
                self.rig.trim();
            }
        }
    }

    fn content(&mut self, snap: u64) -> Content {
        let data = self.rig.bytes(snap)?;
        self.rig.snap = snap;
        let attr = self.rig.ask(ops().getxattr("a"));
        self.rig.snap = NOSNAP;
        Some((data, (attr.result == 0).then(|| attr.output()[0])))
    }

    fn check(&mut self) {
        let expect = |what: &str, have: Content, want: &Content| {
            assert!(have == *want, "the content of {what} is not what it was");
        };
        let have = self.content(NOSNAP);
        expect("the head", have, &self.head.clone());
        for (snap, want) in self.snaps.clone() {
            let have = self.content(snap);
            expect(&format!("snapshot {snap}"), have, &want);
        }
        let removed = (1..=self.newest).filter(|s| !self.snaps.contains_key(s));
        for snap in removed.collect::<Vec<_>>() {
            // Before any write has heard of a snapshot the object itself is its state.
            if self.rig.seq() >= snap {
                assert_eq!(self.rig.bytes(snap), None, "snapshot {snap} is gone");
            }
        }
        self.check_clones();
    }

    /// Sizes are those of the clones, and what the next newer state is told to have unchanged is
    /// the same in both.
    fn check_clones(&mut self) {
        self.rig.snap = SNAPDIR;
        let answer = self.rig.ask(ops().list_snaps());
        self.rig.snap = NOSNAP;
        let stored = self.rig.store.usage(PG);
        if answer.result == -libc::ENOENT {
            assert_eq!(stored.objects, 0);
            return;
        }
        let set = SnapSet::decode(answer.output()).unwrap();
        let clones: Vec<_> = set.clones.iter().filter(|c| c.id != NOSNAP).collect();
        assert_eq!(stored.clones, clones.len() as u64);
        let mut state = |id: u64| {
            let oid = HObjectRef { snap: id, ..head() };
            let mut out = Vec::new();
            self.rig
                .store
                .read(PG, &oid, 0, u64::MAX, &mut out)
                .unwrap();
            out
        };
        let states: Vec<Vec<u8>> = clones.iter().map(|c| state(c.id)).collect();
        let current = self.head.clone().unwrap_or_default().0;
        let newer = states.iter().skip(1).chain([&current]);
        for ((clone, old), new) in clones.iter().zip(&states).zip(newer) {
            assert_eq!(clone.size, old.len() as u64);
            assert!(clone.snaps.windows(2).all(|w| w[0] < w[1]));
            for &(offset, length) in &clone.overlap {
                let range = offset as usize..(offset + length) as usize;
                let same = old.get(range.clone()) == new.get(range.clone());
                assert!(same && old.len() >= range.end, "{range:?} of {clone:?}");
            }
        }
    }
}

impl Rig {
    fn seq(&mut self) -> u64 {
        let info = self.store.info(PG, &head()).unwrap();
        info.map_or(u64::MAX, |i| i.snaps.seq)
    }

    fn ask_size(&mut self) -> Option<u64> {
        let info = self.store.info(PG, &head()).unwrap();
        info.map(|i| i.size)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_snapshot_keeps_its_content(steps in vec(step(), 1..40)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
        }
        // Without snapshots nothing but the object is left.
        while !world.snaps.is_empty() {
            world.step(&Step::Remove(0));
        }
        world.rig.trim();
        world.check();
        prop_assert_eq!(world.rig.store.usage(PG).clones, 0);
    }
}

fn rig_with_clone() -> Rig {
    let mut rig = Rig::new();
    rig.done(ops().write_full(payload(b"one")));
    rig.snap_context = (4, vec![4, 2]);
    rig.done(ops().write(1, payload(b"N")));
    rig
}

fn list(rig: &mut Rig) -> SnapSet {
    rig.snap = SNAPDIR;
    let answer = rig.done(ops().list_snaps());
    rig.snap = NOSNAP;
    SnapSet::decode(answer.output()).unwrap()
}

#[test]
fn clones_are_listed() {
    let mut rig = rig_with_clone();
    let set = list(&mut rig);
    assert_eq!(set.seq, 4);
    let [clone, head] = &set.clones[..] else {
        panic!("{set:?}")
    };
    assert_eq!((clone.id, clone.size), (4, 3));
    assert_eq!(clone.snaps, [2, 4]);
    assert_eq!(clone.overlap, [(0, 1), (2, 1)]);
    assert_eq!((head.id, head.size), (NOSNAP, 3));
    rig.done(ops().delete());
    assert_eq!(list(&mut rig).clones.len(), 1);
    // The object is a whiteout now.
    assert_eq!(rig.ask(ops().delete()).result, -libc::ENOENT);
    assert_eq!(rig.ask(ops().stat()).result, -libc::ENOENT);
    rig.done(ops().create(true));
    assert_eq!(list(&mut rig).clones.len(), 2);
}

#[test]
fn which_snapshot_is_read() {
    let mut rig = rig_with_clone();
    assert_eq!(rig.bytes(2).unwrap(), b"one");
    assert_eq!(rig.bytes(4).unwrap(), b"one");
    // Not one of those that the clone is for.
    assert_eq!(rig.bytes(3), None);
    // No write has heard of it.
    assert_eq!(rig.bytes(5).unwrap(), b"oNe");
    rig.removed.insert(2, 1);
    assert_eq!(rig.bytes(2), None);
}

#[test]
fn a_clone_goes_with_its_last_snapshot() {
    let mut rig = rig_with_clone();
    rig.removed.insert(2, 1);
    assert_eq!(rig.trim(), 1);
    assert_eq!(list(&mut rig).clones[0].snaps, [4]);
    assert_eq!(rig.trim(), 0);
    rig.done(ops().delete());
    rig.removed.insert(4, 1);
    assert_eq!(rig.trim(), 1);
    // And the whiteout with the last clone.
    assert_eq!(rig.store.usage(PG).objects, 0);
}

#[test]
fn snap_contexts() {
    let mut rig = rig_with_clone();
    for (seq, snaps) in [
        (3, vec![4]),
        (9, vec![4, 4]),
        (9, vec![2, 4]),
        (NOSNAP, vec![]),
    ] {
        rig.snap_context = (seq, snaps);
        let answer = rig.ask(ops().create(false));
        assert_eq!((answer.result, answer.changed), (-libc::EINVAL, false));
    }
    rig.flags = OsdFlags::ORDERSNAP;
    rig.snap_context = (3, vec![2]);
    assert_eq!(rig.ask(ops().create(false)).result, -85);
    rig.snap_context = (4, vec![2]);
    rig.done(ops().create(false));
    // Without the flag an old context is taken, and preserves nothing.
    rig.flags = OsdFlags::NONE;
    rig.snap_context = (3, vec![2]);
    rig.done(ops().create(false));
    assert_eq!(list(&mut rig).clones.len(), 2);
    // Snapshots that are gone are none.
    rig.removed.insert(7, 1);
    rig.trimmed.insert(6, 1);
    rig.snap_context = (7, vec![7, 6]);
    rig.done(ops().create(false));
    let set = list(&mut rig);
    assert_eq!((set.clones.len(), set.seq), (2, 7));
}

#[test]
fn a_pool_may_have_the_snapshots() {
    let mut rig = Rig::new();
    rig.done(ops().write_full(payload(b"one")));
    rig.pool.flags = flag::POOL_SNAPS;
    rig.pool.snap_seq = 3;
    for id in [1, 3] {
        let snap = PoolSnap {
            stamp: Default::default(),
            name: format!("s{id}"),
        };
        rig.pool.snaps.insert(id, snap);
    }
    rig.done(ops().write_full(payload(b"two")));
    assert_eq!(rig.bytes(1).unwrap(), b"one");
    assert_eq!(rig.bytes(3).unwrap(), b"one");
}

#[test]
fn snapshots_are_not_written() {
    let mut rig = rig_with_clone();
    rig.snap = 4;
    assert_eq!(rig.ask(ops().create(false)).result, -libc::EINVAL);
    rig.snap = SNAPDIR;
    assert_eq!(rig.ask(ops().read(0, 0)).result, -libc::EINVAL);
    rig.snap = NOSNAP;
    assert_eq!(rig.ask(ops().list_snaps()).result, -libc::EINVAL);
}

#[test]
fn going_back() {
    let mut rig = rig_with_clone();
    rig.done(ops().rollback(4));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"one");
    // Back to what it is: only the version is new.
    let before = rig.user_version;
    assert!(rig.done(ops().rollback(9)).user_version > before);
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"one");
    // To before it was.
    rig.done(ops().rollback(1));
    assert_eq!(rig.bytes(NOSNAP), None);
    rig.done(ops().rollback(4));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"one");
    // What never was stays nothing.
    let mut rig = Rig::new();
    let answer = rig.ask(ops().rollback(4));
    assert_eq!((answer.result, answer.changed), (0, false));
}
