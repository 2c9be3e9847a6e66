//! Requests on a few objects, and whether the outcomes can be.
//!
//! The order in which OSDs carried out the writes on an object is known. It has to be the order of
//! submission, leaving out writes that were given up: those may come later, or not at all. A model
//! of the object is taken through that order; every write must have had the model's result, and
//! every read must have seen a state that the object had while the read was under way.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use cluster::codec::Put;
use cluster::objecter::msg::OsdFlags;
use cluster::objecter::{ObjectOp, OpError, OpId, Request, SubmitError, Target};
use cluster::payload::Payload;

use super::maps::POOL;
use super::rng::Rng;
use super::store::{EEXIST, ENODATA, ENOENT, MAX_ERRNO, Object, put, slice};
use super::work::{Cx, News, Out, Work};
use super::world::{Applied, History, MS, SECOND};

/// Objects grow to a few times this.
const REACH: u64 = 600;

#[derive(Debug, Clone)]
enum Step {
    Write(u64, Vec<u8>),
    WriteFull(Vec<u8>),
    Append(Vec<u8>),
    Zero(u64, u64),
    Truncate(u64),
    Delete,
    Create(bool),
    SetAttr(u8, Vec<u8>),
    OmapSet(BTreeMap<Vec<u8>, Vec<u8>>),
    OmapRemove(Vec<u8>),
    Compare(u64, Vec<u8>),
    Read(u64, u64),
    Stat,
    GetAttr(u8),
    OmapGet(u64),
}

fn attr(n: u8) -> String {
    format!("attr{n}")
}

impl Step {
    fn random_write(rng: &mut Rng) -> Step {
        let len = rng.pick(&[1, 7, 60, 300]);
        let data = |rng: &mut Rng| rng.bytes(len);
        let key = |rng: &mut Rng| vec![b'k', rng.below(5) as u8];
        match rng.below(18) {
            0..5 => Step::Write(rng.below(REACH), data(rng)),
            5 => Step::WriteFull(data(rng)),
            6..9 => Step::Append(data(rng)),
            9 => Step::Zero(rng.below(REACH), rng.below(REACH)),
            10 => Step::Truncate(rng.below(REACH)),
            11 => Step::Delete,
            12 | 13 => Step::Create(rng.one_in(2)),
            14 => Step::SetAttr(rng.below(3) as u8, data(rng)),
            15 | 16 => {
                let pairs = (0..rng.within(1..4)).map(|_| (key(rng), rng.bytes(4)));
                Step::OmapSet(pairs.collect())
            }
            _ => Step::OmapRemove(key(rng)),
        }
    }

    fn random_read(rng: &mut Rng) -> Step {
        match rng.below(8) {
            0..4 => Step::Read(rng.below(REACH), rng.within(1..2 * REACH)),
            4 | 5 => Step::Stat,
            6 => Step::GetAttr(rng.below(3) as u8),
            _ => Step::OmapGet(rng.within(1..6)),
        }
    }

    fn add_to(&self, ops: ObjectOp) -> ObjectOp {
        let payload = |data: &Vec<u8>| Payload::from(data.clone());
        match self {
            Step::Write(at, data) => ops.write(*at, payload(data)),
            Step::WriteFull(data) => ops.write_full(payload(data)),
            Step::Append(data) => ops.append(payload(data)),
            Step::Zero(at, len) => ops.zero(*at, *len),
            Step::Truncate(size) => ops.truncate(*size),
            Step::Delete => ops.delete(),
            Step::Create(exclusive) => ops.create(*exclusive),
            Step::SetAttr(n, value) => ops.setxattr(&attr(*n), value),
            Step::OmapSet(pairs) => ops.omap_set(pairs.iter().map(|(k, v)| (&k[..], &v[..]))),
            Step::OmapRemove(key) => ops.omap_rm_keys([&key[..]].into_iter()),
            Step::Compare(at, data) => ops.cmpext(*at, payload(data)),
            Step::Read(at, len) => ops.read(*at, *len),
            Step::Stat => ops.stat(),
            Step::GetAttr(n) => ops.getxattr(&attr(*n)),
            Step::OmapGet(max) => ops.omap_get_vals(b"", b"", *max),
        }
    }

    /// What the step means; an errno when it fails the request.
    fn model(&self, slot: &mut Option<Object>) -> Result<Vec<u8>, i32> {
        let mut out = Vec::new();
        let there = slot.is_some();
        match self {
            Step::Write(at, data) => put(&mut fresh(slot).data, *at as usize, data),
            Step::WriteFull(data) => fresh(slot).data = data.clone(),
            Step::Append(data) => fresh(slot).data.extend(data),
            Step::Zero(at, len) => {
                if let Some(o) = slot {
                    let bytes = o.data.iter_mut().skip(*at as usize);
                    bytes.take(*len as usize).for_each(|b| *b = 0);
                }
            }
            Step::Truncate(size) => {
                if let Some(o) = slot {
                    o.data.resize(*size as usize, 0);
                }
            }
            Step::Delete if !there => return Err(ENOENT),
            Step::Delete => *slot = None,
            Step::Create(true) if there => return Err(EEXIST),
            Step::Create(_) => drop(fresh(slot)),
            Step::SetAttr(n, value) => {
                fresh(slot)
                    .attrs
                    .insert(attr(*n).into_bytes(), value.clone());
            }
            Step::OmapSet(pairs) => fresh(slot).omap.extend(pairs.clone()),
            Step::OmapRemove(key) => {
                slot.as_mut().ok_or(ENOENT)?.omap.remove(key);
            }
            Step::Compare(at, data) => {
                for (i, byte) in data.iter().enumerate() {
                    let stored = slot.as_ref().and_then(|o| o.data.get(*at as usize + i));
                    if stored.unwrap_or(&0) != byte {
                        return Err(MAX_ERRNO + i as i32);
                    }
                }
            }
            _ if !there => return Err(ENOENT),
            Step::Read(at, len) => out.extend(slice(&fresh(slot).data, *at, *len)),
            Step::Stat => {
                out.put_u64(fresh(slot).data.len() as u64);
                out.put_u64(0);
            }
            Step::GetAttr(n) => {
                let value = fresh(slot).attrs.get(attr(*n).as_bytes());
                out.extend(value.ok_or(ENODATA)?);
            }
            Step::OmapGet(max) => {
                let omap = &fresh(slot).omap;
                let some: Vec<_> = omap.iter().take(*max as usize).collect();
                out.put_list(some.iter(), |o, (key, value)| {
                    o.put_blob(key);
                    o.put_blob(value);
                });
                out.put_bool(some.len() < omap.len());
            }
        }
        Ok(out)
    }
}

fn fresh(slot: &mut Option<Object>) -> &mut Object {
    slot.get_or_insert_default()
}

/// What all steps of a request mean.
fn model(steps: &[Step], slot: &mut Option<Object>) -> Result<Vec<Vec<u8>>, i32> {
    let mut work = slot.clone();
    let outs: Result<Vec<_>, i32> = steps.iter().map(|s| s.model(&mut work)).collect();
    if outs.is_ok() {
        *slot = work;
    }
    outs
}

/// When a request ended, how, and what it returned.
type End = (u64, Result<(), OpError>, Vec<Vec<u8>>);

#[derive(Debug)]
struct Record {
    object: usize,
    steps: Vec<Step>,
    writes: bool,
    balanced: bool,
    submitted: u64,
    id: OpId,
    done: Option<End>,
}

impl Record {
    /// Nobody knows whether it was carried out.
    fn given_up(&self) -> bool {
        let unknown = Err(OpError::TimedOut);
        let done = self.done.as_ref().map(|(_, result, _)| *result);
        done == Some(unknown) || done == Some(Err(OpError::Cancelled))
    }
}

pub(crate) struct Objects {
    names: Vec<String>,
    total: usize,
    window: usize,
    /// The longest pause between two requests.
    pause: u64,
    impatient: bool,
    balance: bool,
    /// Whether flags stop writes while reads go on.
    pauses: bool,
    started: bool,
    records: Vec<Record>,
    live: Vec<u64>,
    next_at: u64,
    /// The objects are read a last time, from this record on.
    last: Option<usize>,
}

impl Objects {
    pub(crate) fn new(name: &str, pauses: bool, fault_time: u64, rng: &mut Rng) -> Objects {
        let total = rng.within(20..100) as usize;
        Objects {
            names: (0..rng.within(1..6))
                .map(|i| format!("{name}.{i}"))
                .collect(),
            total,
            window: rng.pick(&[1, 4, 16, 64]),
            pause: rng.pick(&[MS, 3 * fault_time / total as u64]),
            impatient: rng.one_in(3),
            balance: rng.one_in(3),
            pauses,
            started: rng.one_in(3),
            records: Vec::new(),
            live: Vec::new(),
            next_at: 0,
            last: None,
        }
    }

    fn random(&self, rng: &mut Rng) -> Record {
        let writes = rng.below(5) < 3;
        let count = rng.pick(&[1, 1, 1, 2, 3]);
        let mut steps: Vec<Step> = (0..count)
            .map(|_| match writes {
                true => Step::random_write(rng),
                false => Step::random_read(rng),
            })
            .collect();
        if writes && rng.one_in(5) {
            // Often right: where nothing was written there are zeroes.
            let data = if rng.one_in(2) {
                vec![0; 4]
            } else {
                rng.bytes(1)
            };
            steps.insert(0, Step::Compare(rng.below(2 * REACH), data));
        }
        Record {
            object: rng.index(self.names.len()),
            steps,
            writes,
            balanced: !writes && self.balance && rng.one_in(2),
            submitted: 0,
            id: OpId(0),
            done: None,
        }
    }

    fn submit(&mut self, mut r: Record, cx: &mut Cx<'_>) -> bool {
        let token = self.records.len() as u64;
        let target = Target::object(POOL, &self.names[r.object]);
        let ops = r.steps.iter().fold(ObjectOp::new(), |ops, s| s.add_to(ops));
        let mut request = match r.writes {
            true => Request::write(target, ops, Rc::default(), token),
            false => Request::read(target, ops, token),
        };
        if r.balanced {
            request = request.with_flags(OsdFlags::BALANCE_READS);
        }
        if self.impatient && cx.faulty && cx.rng.one_in(4) {
            request.timeout = Some(Duration::from_nanos(cx.rng.within(MS..20 * SECOND)));
        }
        match cx.client.submit(request, cx.now) {
            Ok(id) => {
                r.id = id;
                r.submitted = cx.clock();
                self.live.push(token);
                self.records.push(r);
                true
            }
            Err(SubmitError::Busy(_)) if !self.live.is_empty() => false,
            Err(e) => panic!("refused: {e}"),
        }
    }

    fn take(&mut self, cx: &mut Cx<'_>, news: &mut News) {
        while let Some(out) = cx.sink.take() {
            let Out::Op {
                token,
                result,
                outs,
            } = out
            else {
                panic!("nothing is watched: {out:?}");
            };
            let code = result.err().map_or(0, |e| e.errno() as u64);
            news.push(("done", token, code));
            let record = &mut self.records[token as usize];
            assert!(record.done.is_none(), "request {token} has ended twice");
            record.done = Some((cx.now.mono - 1, result, outs));
            self.live.retain(|&t| t != token);
        }
    }

    fn check_object(&self, object: usize, applied: &[Applied], gid: u64) {
        let mine = |r: &&Record| r.object == object;
        let by_tid: BTreeMap<u64, &Record> = self
            .records
            .iter()
            .filter(mine)
            .map(|r| (r.id.0, r))
            .collect();
        // The states, and since when.
        let mut states = vec![(0, None)];
        // For each state the writes, not given up, that it has.
        let mut kept = Vec::new();
        let mut seen = BTreeMap::new();
        for a in applied {
            assert_eq!(a.gid, gid, "another client writes our object");
            let r = by_tid.get(&a.tid).expect("a write that nobody submitted");
            assert!(r.writes);
            assert!(
                seen.insert(a.tid, ()).is_none(),
                "{:?} carried out twice",
                r.steps
            );
            assert!(a.at >= r.submitted, "carried out before it was submitted");
            let mut state = states.last().expect("the first").1.clone();
            let outcome = model(&r.steps, &mut state);
            states.push((a.at, state));
            if r.given_up() {
                continue;
            }
            let (at, result, _) = r.done.as_ref().expect("all have ended");
            assert!(a.at <= *at, "answered before it was carried out");
            let want = outcome.err().map_or(Ok(()), |e| Err(OpError::Errno(e)));
            assert_eq!(*result, want, "result of {:?}", r.steps);
            if let Some(&(before, _)) = kept.last() {
                assert!(before < a.tid, "writes changed places: {:?}", r.steps);
            }
            kept.push((a.tid, states.len() - 1));
        }
        for r in by_tid.values() {
            let (at, result, outs) = r.done.as_ref().expect("all have ended");
            if r.given_up() {
                continue;
            }
            if r.writes {
                assert!(
                    seen.contains_key(&r.id.0),
                    "{result:?} for what was not done"
                );
                continue;
            }
            // A read waits for the writes before it, unless something holds back writes alone.
            let earlier = kept.iter().rev().find(|(tid, _)| *tid < r.id.0);
            let least = match earlier {
                Some(&(_, state)) if !self.pauses && !r.balanced => state,
                _ => 0,
            };
            let fits = states
                .iter()
                .enumerate()
                .skip(least)
                .any(|(i, (since, state))| {
                    let until = states.get(i + 1).map_or(u64::MAX, |s| s.0);
                    if *since > *at || until < r.submitted {
                        return false;
                    }
                    match model(&r.steps, &mut state.clone()) {
                        Ok(want) => result.is_ok() && want == *outs,
                        Err(errno) => *result == Err(OpError::Errno(errno)),
                    }
                });
            assert!(
                fits,
                "no state had what {:?} saw: {result:?} {outs:?}",
                r.steps
            );
        }
    }
}

impl Work for Objects {
    fn ready(&mut self) {
        self.started = true;
    }

    fn step(&mut self, cx: &mut Cx<'_>, news: &mut News) {
        self.take(cx, news);
        if !self.started {
            return;
        }
        let now = cx.clock();
        while self.records.len() < self.total
            && self.live.len() < self.window
            && self.next_at <= now
        {
            let record = self.random(cx.rng);
            if !self.submit(record, cx) {
                self.next_at = now + 100 * MS;
                break;
            }
            news.push(("submit", self.records.len() as u64 - 1, 0));
            if cx.rng.one_in(2) {
                self.next_at = now + cx.rng.below(self.pause);
            }
        }
        if self.impatient && cx.faulty && !self.live.is_empty() && cx.rng.one_in(20) {
            let token = cx.rng.pick(&self.live);
            let id = self.records[token as usize].id;
            news.push(("cancel", token, 0));
            assert!(
                cx.client.cancel(id, cx.sink),
                "a live request was not known"
            );
            assert!(!cx.client.cancel(id, cx.sink), "it ended twice");
        }
        if self.records.len() >= self.total && self.live.is_empty() && !cx.faulty {
            let first = *self.last.get_or_insert(self.records.len());
            let object = self.records.len() - first;
            if object < self.names.len() {
                let steps = vec![Step::Stat, Step::Read(0, 1 << 20), Step::OmapGet(100)];
                let record = Record {
                    object,
                    steps,
                    ..self.random(cx.rng)
                };
                let record = Record {
                    writes: false,
                    balanced: false,
                    ..record
                };
                if self.submit(record, cx) {
                    news.push(("last", object as u64, 0));
                }
            }
        }
    }

    fn next_wake(&self, now: u64) -> Option<u64> {
        if !self.started {
            return None;
        }
        if self.records.len() < self.total {
            return (self.live.len() < self.window).then_some(self.next_at);
        }
        // The end is not announced.
        (self.live.is_empty() && !self.finished()).then_some(now + SECOND)
    }

    fn finished(&self) -> bool {
        let all = |first: usize| self.records.len() == first + self.names.len();
        self.last.is_some_and(all) && self.live.is_empty()
    }

    fn describe(&self) -> String {
        let live: Vec<_> = self
            .live
            .iter()
            .map(|&t| (t, &self.records[t as usize]))
            .collect();
        format!(
            "{} requests of {}, {live:?}",
            self.records.len(),
            self.total
        )
    }

    fn check(&self, history: &History, gid: u64) -> u64 {
        assert!(self.records.iter().all(|r| r.done.is_some()));
        for (i, name) in self.names.iter().enumerate() {
            let applied = history.get(name.as_bytes()).map_or(&[][..], Vec::as_slice);
            self.check_object(i, applied, gid);
        }
        self.records.len() as u64
    }
}
