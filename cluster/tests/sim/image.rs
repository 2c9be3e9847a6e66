//! Block requests through the engine, against a flat image.
//!
//! Requests in flight never overlap, so that every byte of the image is known but for those of a
//! discard, which may be zero or what they were until somebody reads them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use cluster::objecter::results::SparseRead;
use cluster::objecter::{ObjectOp, OpError, Request as OpRequest, Target};
use cluster::payload::Payload;
use cluster::rbd::Layout;
use cluster::rbd::engine::{
    Action, Done, Engine, Geometry, Kind, ObjectOp as EngineOp, Outcome, ReadBuffer, Request,
};

use super::maps::POOL;
use super::rng::Rng;
use super::store::{ENOENT, MAX_ERRNO};
use super::work::{Cx, News, Out, Work};
use super::world::{History, MS, SECOND};

/// Memory for a read that notices what is filled twice or not at all.
struct Buffer {
    bytes: Vec<u8>,
    filled: Vec<bool>,
}

impl Buffer {
    fn mark(&mut self, at: usize, len: usize) {
        for filled in &mut self.filled[at..at + len] {
            assert!(!std::mem::replace(filled, true), "filled twice");
        }
    }
}

impl ReadBuffer for Buffer {
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.mark(at, bytes.len());
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.mark(at, len);
        self.bytes[at..at + len].fill(0);
    }
}

#[derive(Clone, Copy, Default)]
struct Byte {
    value: u8,
    maybe_zero: bool,
}

#[derive(Debug, Clone)]
enum What {
    Read,
    Write(Vec<u8>),
    Discard,
    WriteZeroes,
    Status,
    /// Writes that were in flight when it was submitted.
    Flush(BTreeSet<u64>),
}

struct Live {
    what: What,
    offset: u64,
    len: u64,
}

/// What an operation of the engine does, for its outcome.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Change,
    Read,
    Map,
}

pub(crate) struct Image {
    name: String,
    engine: Engine<Buffer>,
    bytes: Vec<Byte>,
    total: u64,
    window: usize,
    pause: u64,
    ready: bool,
    issued: u64,
    live: BTreeMap<u64, Live>,
    /// Operations that the client has no room for.
    waiting: VecDeque<EngineOp>,
    verbs: BTreeMap<u64, Verb>,
    next_at: u64,
    ops: u64,
    /// The whole image was read again after the trouble.
    last: Option<u64>,
}

impl Image {
    pub(crate) fn new(name: &str, fault_time: u64, rng: &mut Rng) -> Image {
        let striping = rng.pick(&[(0, 0), (1024, 3), (512, 2), (4096, 4)]);
        let layout = Layout::new(12, striping.0, striping.1).expect("a good layout");
        let size = rng.within(3..12) * 4096 + rng.pick(&[0, 512]);
        let total = rng.within(20..80);
        Image {
            name: name.to_owned(),
            engine: Engine::new(Geometry {
                layout,
                size,
                read_only: false,
                discard_granularity: rng.pick(&[512, 4096]),
            }),
            bytes: vec![Byte::default(); size as usize],
            total,
            window: rng.pick(&[1, 4, 16]),
            pause: rng.pick(&[MS, 3 * fault_time / total]),
            ready: false,
            issued: 0,
            live: BTreeMap::new(),
            waiting: VecDeque::new(),
            verbs: BTreeMap::new(),
            next_at: 0,
            ops: 0,
            last: None,
        }
    }

    fn begin(&mut self, what: What, offset: u64, len: u64) {
        let token = self.issued;
        self.issued += 1;
        let kind = match &what {
            What::Read => Kind::Read(Buffer {
                bytes: vec![0xee; len as usize],
                filled: vec![false; len as usize],
            }),
            What::Write(data) => Kind::Write(Payload::from(data.clone())),
            What::Discard => Kind::Discard,
            What::WriteZeroes => Kind::WriteZeroes,
            What::Status => Kind::Status,
            What::Flush(_) => Kind::Flush,
        };
        self.live.insert(token, Live { what, offset, len });
        self.engine.submit(Request {
            kind,
            offset,
            len,
            token,
        });
    }

    /// Begins a request that overlaps none in flight; not every attempt finds one.
    fn begin_random(&mut self, rng: &mut Rng) -> bool {
        let size = self.bytes.len() as u64;
        if rng.one_in(10) {
            let writes = |l: &Live| !matches!(l.what, What::Read | What::Status | What::Flush(_));
            let before = self.live.iter().filter(|(_, l)| writes(l));
            let before = before.map(|(&token, _)| token).collect();
            self.begin(What::Flush(before), 0, 0);
            return true;
        }
        let longest = rng.pick(&[512, 5000, 20_000]);
        let len = rng.within(1..longest.min(size) + 1);
        let offset = rng.below(size - len + 1);
        let overlaps = |l: &Live| l.offset < offset + len && offset < l.offset + l.len;
        if self.live.values().any(overlaps) {
            return false;
        }
        let what = match rng.below(10) {
            0..4 => What::Write(rng.bytes(len as usize)),
            4..7 => What::Read,
            7 => What::Discard,
            8 => What::WriteZeroes,
            _ => What::Status,
        };
        self.begin(what, offset, len);
        true
    }

    /// Gives the client what the engine wants done.
    fn forward(&mut self, cx: &mut Cx<'_>, news: &mut News) {
        while let Some(op) = self.engine.poll_op() {
            self.waiting.push_back(op);
        }
        while let Some(op) = self.waiting.front() {
            let budget = match &op.action {
                Action::Read { len, .. } | Action::Map { len, .. } => *len,
                Action::Write { data, .. } => data.iter().map(|p| p.len() as u64).sum(),
                _ => 0,
            };
            if !cx.client.has_room(budget) {
                return;
            }
            let op = self.waiting.pop_front().expect("looked at");
            let target = Target::object(POOL, format!("{}.{:016x}", self.name, op.object));
            let ops = ObjectOp::new();
            let (ops, verb) = match op.action {
                Action::Read { offset, len } => (ops.read(offset, len), Verb::Read),
                Action::Map { offset, len } => (ops.sparse_read(offset, len), Verb::Map),
                Action::Write { mut offset, data } => {
                    let mut ops = ops;
                    for part in data {
                        let len = part.len() as u64;
                        ops = ops.write(offset, part);
                        offset += len;
                    }
                    (ops, Verb::Change)
                }
                Action::Remove => (ops.delete(), Verb::Change),
                Action::Truncate { size } => (ops.truncate(size), Verb::Change),
                Action::Zero { offset, len } => (ops.zero(offset, len), Verb::Change),
            };
            let request = match verb {
                Verb::Change => OpRequest::write(target, ops, Rc::default(), op.token),
                _ => OpRequest::read(target, ops, op.token),
            };
            cx.client.submit(request, cx.now).expect("there is room");
            let before = self.verbs.insert(op.token, verb);
            assert!(before.is_none(), "two operations of one name");
            self.ops += 1;
            news.push(("object op", op.token, op.object));
        }
    }

    fn op_done(&mut self, token: u64, result: Result<(), OpError>, outs: &[Vec<u8>]) {
        let verb = self.verbs.remove(&token).expect("ended twice");
        match (result, verb) {
            (Err(OpError::Errno(ENOENT)), _) => {
                self.engine.op_done(token, Outcome::Result(Err(ENOENT)));
            }
            (Err(e), _) => panic!("an operation failed: {e} (below {MAX_ERRNO}?)"),
            (Ok(()), Verb::Change) => self.engine.op_done(token, Outcome::Result(Ok(()))),
            (Ok(()), Verb::Read) => self.engine.op_done(token, Outcome::Data(&outs[0])),
            (Ok(()), Verb::Map) => {
                let sparse = SparseRead::decode(&outs[0]).expect("extents");
                let extents: Vec<_> = sparse.extents.iter().collect();
                self.engine.op_done(token, Outcome::Extents(&extents));
            }
        }
    }

    fn done(&mut self, done: Done<Buffer>) {
        assert_eq!(done.result, Ok(()));
        let live = self.live.remove(&done.token).expect("ended twice");
        let range = live.offset as usize..(live.offset + live.len) as usize;
        let bytes = &mut self.bytes[range];
        match live.what {
            What::Read => {
                let buffer = done.buffer.expect("a read's memory comes back");
                assert!(buffer.filled.iter().all(|f| *f), "a part was not filled");
                for (i, (byte, &got)) in bytes.iter_mut().zip(&buffer.bytes).enumerate() {
                    let right = got == byte.value || (byte.maybe_zero && got == 0);
                    let at = live.offset + i as u64;
                    assert!(right, "byte {at} is {got}, not {}", byte.value);
                    *byte = Byte {
                        value: got,
                        maybe_zero: false,
                    };
                }
            }
            What::Write(data) => {
                for (byte, value) in bytes.iter_mut().zip(data) {
                    *byte = Byte {
                        value,
                        maybe_zero: false,
                    };
                }
            }
            What::Discard => bytes.iter_mut().for_each(|b| b.maybe_zero = true),
            What::WriteZeroes => bytes.fill(Byte::default()),
            What::Status => {
                let mut at = 0;
                for extent in &done.extents {
                    let part = &bytes[at..at + extent.len as usize];
                    let data = |b: &Byte| b.value != 0 && !b.maybe_zero;
                    assert!(extent.data || !part.iter().any(data), "a hole has data");
                    at += extent.len as usize;
                }
                assert!(at > 0, "no status");
            }
            What::Flush(before) => {
                let open = before.iter().find(|t| self.live.contains_key(t));
                assert_eq!(open, None, "a flush overtook a write");
            }
        }
    }
}

impl Work for Image {
    fn ready(&mut self) {
        self.ready = true;
    }

    fn step(&mut self, cx: &mut Cx<'_>, news: &mut News) {
        while let Some(out) = cx.sink.take() {
            let Out::Op {
                token,
                result,
                outs,
            } = out
            else {
                panic!("nothing is watched: {out:?}");
            };
            news.push(("object op done", token, 0));
            self.op_done(token, result, &outs);
        }
        while let Some(done) = self.engine.poll_done() {
            news.push(("block done", done.token, 0));
            self.done(done);
        }
        if !self.ready {
            return;
        }
        let now = cx.clock();
        while self.issued < self.total && self.live.len() < self.window && self.next_at <= now {
            if !self.begin_random(cx.rng) {
                self.next_at = now + 20 * MS;
                break;
            }
            news.push(("block", self.issued - 1, 0));
            if cx.rng.one_in(2) {
                self.next_at = now + cx.rng.below(self.pause);
            }
        }
        if self.issued == self.total && self.live.is_empty() && !cx.faulty {
            self.last = Some(self.issued);
            self.begin(What::Read, 0, self.bytes.len() as u64);
        }
        self.forward(cx, news);
        // Some requests need no operation.
        while let Some(done) = self.engine.poll_done() {
            news.push(("block done", done.token, 0));
            self.done(done);
        }
    }

    fn next_wake(&self, now: u64) -> Option<u64> {
        if !self.ready {
            return None;
        }
        if self.issued < self.total {
            return (self.live.len() < self.window).then_some(self.next_at);
        }
        (self.live.is_empty() && !self.finished()).then_some(now + SECOND)
    }

    fn finished(&self) -> bool {
        self.last.is_some() && self.live.is_empty()
    }

    fn describe(&self) -> String {
        let live: Vec<_> = self
            .live
            .iter()
            .map(|(t, l)| (t, l.offset, l.len))
            .collect();
        format!("block requests {live:?}, operations {:?}", self.verbs)
    }

    fn check(&self, _: &History, _: u64) -> u64 {
        assert_eq!(self.engine.in_flight(), 0);
        assert!(self.verbs.is_empty() && self.waiting.is_empty());
        self.ops
    }
}
