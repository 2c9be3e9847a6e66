//! From block requests to object operations and back, without I/O.
//!
//! [`Engine::submit`] takes a request, [`Engine::poll_op`] yields the object operations it needs,
//! [`Engine::op_done`] takes their results and [`Engine::poll_done`] yields finished requests.
//! Requests complete in any order. In steady state nothing is allocated: requests and operations
//! live in slabs, and payload is shared by reference.
//!
//! A RADOS write is acknowledged when it is durable on the acting set, so forced unit access costs
//! nothing extra, and a flush waits for the writes that were in flight before it.

use std::collections::VecDeque;

use slab::Slab;
use smallvec::SmallVec;

use super::layout::{Layout, ObjectExtent};
use crate::payload::Payload;

/// Errno values the engine itself gives out.
pub const EIO: i32 = 5;
pub const EINVAL: i32 = 22;
pub const EROFS: i32 = 30;
const ENOENT: i32 = 2;

/// The memory a read fills. It travels with the request and comes back in [`Done`]. Offsets are
/// into the request; each byte is either filled or declared zero, once.
pub trait ReadBuffer {
    fn fill(&mut self, at: usize, bytes: &[u8]);
    fn zero(&mut self, at: usize, len: usize);
}

/// What a request does to its range of the image.
pub enum Kind<B> {
    Read(B),
    Write(Payload),
    /// May leave parts as they are where freeing them would gain nothing.
    Discard,
    /// Every byte reads as zero afterwards.
    WriteZeroes,
    /// Completes once every write submitted before it has completed.
    Flush,
    /// Which parts hold data. Answered for a leading part of the range at least.
    Status,
}

pub struct Request<B> {
    pub kind: Kind<B>,
    pub offset: u64,
    pub len: u64,
    /// The front end's name for the request, given back in [`Done`].
    pub token: u64,
}

/// A finished request.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<B> {
    pub token: u64,
    /// An errno on failure.
    pub result: Result<(), i32>,
    /// The memory a read came with.
    pub buffer: Option<B>,
    /// For [`Kind::Status`]: lengths from the request's offset on, and whether they hold data.
    pub extents: Vec<StatusExtent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusExtent {
    pub len: u64,
    pub data: bool,
}

/// An operation on data object number `object` of the image.
#[derive(Debug)]
pub struct ObjectOp {
    pub token: u64,
    pub object: u64,
    pub action: Action,
}

#[derive(Debug)]
pub enum Action {
    Read {
        offset: u64,
        len: u64,
    },
    /// The parts follow one another in the object.
    Write {
        offset: u64,
        data: SmallVec<[Payload; 1]>,
    },
    Remove,
    Truncate {
        size: u64,
    },
    Zero {
        offset: u64,
        len: u64,
    },
    /// Which bytes of the range are stored: a list of offset and length.
    Map {
        offset: u64,
        len: u64,
    },
}

/// What came back for an [`ObjectOp`].
#[derive(Debug)]
pub enum Outcome<'a> {
    /// Writing actions, and failures of all (an errno).
    Result(Result<(), i32>),
    /// Bytes read; fewer than asked for where the object ends.
    Data(&'a [u8]),
    /// Stored ranges, ascending, as offset in the object and length.
    Extents(&'a [(u64, u64)]),
}

/// The outcome that an operation's success needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// [`Outcome::Data`]
    Data,
    /// [`Outcome::Extents`]
    Extents,
    /// [`Outcome::Result`]
    Nothing,
}

/// What the engine must know of the image.
#[derive(Debug, Clone)]
pub struct Geometry {
    pub layout: Layout,
    /// Bytes.
    pub size: u64,
    pub read_only: bool,
    /// Discards of less are dropped, as krbd and librbd do (`alloc_size`,
    /// `rbd_discard_granularity_bytes`). A power of two.
    pub discard_granularity: u64,
}

/// Objects of one discard or write-zeroes that are worked on at a time, so that one request for
/// terabytes neither fills memory nor keeps others waiting.
const CLEAR_OBJECTS: u64 = 64;

/// Objects that one status request looks at; the client asks again for the rest.
const STATUS_OBJECTS: u64 = 64;

/// Tokens of operations leave their top byte to whoever shares a token space between engines.
const GENERATIONS: u32 = 0xff_ffff;

struct Live<B> {
    token: u64,
    offset: u64,
    pending: u32,
    result: Result<(), i32>,
    kind: LiveKind<B>,
}

enum LiveKind<B> {
    Read(B),
    Write {
        epoch: u64,
    },
    /// The part from `next` on has not been looked at.
    Clear {
        epoch: u64,
        next: u64,
        end: u64,
        granularity: u64,
    },
    Flush,
    Status {
        end: u64,
        found: Vec<(u64, u64, bool)>,
    },
}

#[derive(Clone, Copy)]
struct Part {
    request: usize,
    extent: ObjectExtent,
    verb: Verb,
}

#[derive(Clone, Copy, PartialEq)]
enum Verb {
    Read,
    Write,
    Clear,
    Map,
}

/// See the module's documentation.
pub struct Engine<B> {
    geometry: Geometry,
    requests: Slab<Live<B>>,
    parts: Slab<Part>,
    generation: u32,
    ops: VecDeque<ObjectOp>,
    done: VecDeque<Done<B>>,
    /// Writes in flight by epoch, the oldest first; a flush begins a new epoch.
    epochs: VecDeque<u32>,
    first_epoch: u64,
    /// Flushes in order, with the epoch up to which all writes must be done.
    flushes: VecDeque<(u64, usize)>,
}

impl<B: ReadBuffer> Engine<B> {
    pub fn new(geometry: Geometry) -> Engine<B> {
        assert!(geometry.discard_granularity.is_power_of_two());
        Engine {
            geometry,
            requests: Slab::new(),
            parts: Slab::new(),
            generation: 0,
            ops: VecDeque::new(),
            done: VecDeque::new(),
            epochs: VecDeque::from([0]),
            first_epoch: 0,
            flushes: VecDeque::new(),
        }
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The image was resized. Requests in flight keep the range they were checked against.
    pub fn set_size(&mut self, size: u64) {
        self.geometry.size = size;
    }

    /// Requests that have not completed.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    pub fn submit(&mut self, request: Request<B>) {
        let Request {
            kind,
            offset,
            len,
            token,
        } = request;
        if let Err(errno) = self.check(&kind, offset, len) {
            let buffer = match kind {
                Kind::Read(buffer) => Some(buffer),
                _ => None,
            };
            self.finish(token, Err(errno), buffer, Vec::new());
            return;
        }
        match kind {
            Kind::Read(buffer) => {
                let id = self.begin(token, offset, LiveKind::Read(buffer));
                self.each_extent(id, offset, len, |engine, id, extent| {
                    let ObjectExtent { offset, len, .. } = extent;
                    engine.push(id, extent, Verb::Read, Action::Read { offset, len });
                });
                self.settle(id);
            }
            Kind::Write(payload) => {
                let id = self.begin_write(token, offset);
                self.each_extent(id, offset, len, |engine, id, extent| {
                    let data = engine.gather(&payload, offset, extent);
                    let action = Action::Write {
                        offset: extent.offset,
                        data,
                    };
                    engine.push(id, extent, Verb::Write, action);
                });
                self.settle(id);
            }
            Kind::Discard => self.clear(token, offset, len, self.geometry.discard_granularity),
            Kind::WriteZeroes => self.clear(token, offset, len, 1),
            Kind::Flush => self.flush(token),
            Kind::Status => {
                let layout = self.geometry.layout;
                let reach = layout.set_size() * STATUS_OBJECTS.div_ceil(layout.stripe_count());
                let len = len.min(reach - offset % layout.set_size());
                let kind = LiveKind::Status {
                    end: offset + len,
                    found: Vec::new(),
                };
                let id = self.begin(token, offset, kind);
                self.each_extent(id, offset, len, |engine, id, extent| {
                    let ObjectExtent { offset, len, .. } = extent;
                    engine.push(id, extent, Verb::Map, Action::Map { offset, len });
                });
                self.settle(id);
            }
        }
    }

    fn check(&self, kind: &Kind<B>, offset: u64, len: u64) -> Result<(), i32> {
        let changes = matches!(kind, Kind::Write(_) | Kind::Discard | Kind::WriteZeroes);
        if changes && self.geometry.read_only {
            return Err(EROFS);
        }
        if matches!(kind, Kind::Flush) {
            return Ok(());
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.geometry.size => {}
            _ => return Err(EINVAL),
        }
        match kind {
            Kind::Write(payload) if payload.len() as u64 != len => Err(EINVAL),
            _ => Ok(()),
        }
    }

    fn clear(&mut self, token: u64, offset: u64, len: u64, granularity: u64) {
        let epoch = self.note_write();
        let granularity = granularity.min(self.geometry.layout.object_size());
        let (next, end) = (offset, offset + len);
        let kind = LiveKind::Clear {
            epoch,
            next,
            end,
            granularity,
        };
        let id = self.begin(token, offset, kind);
        self.clear_more(id);
        self.settle(id);
    }

    /// Frees or zeroes the next part of a range, by the cheapest operation each object allows:
    /// removing it whole, cutting its tail, or punching a hole. A range may be the whole image, so
    /// it is done a bounded number of objects at a time.
    fn clear_more(&mut self, id: usize) {
        let layout = self.geometry.layout;
        let object_size = layout.object_size();
        while self.requests[id].pending == 0 && self.requests[id].result.is_ok() {
            let LiveKind::Clear {
                next,
                end,
                granularity,
                ..
            } = &mut self.requests[id].kind
            else {
                return;
            };
            let (from, granularity) = (*next, *granularity);
            let sets = CLEAR_OBJECTS.div_ceil(layout.stripe_count());
            let reach = layout.set_size().saturating_mul(sets) - from % layout.set_size();
            let len = reach.min(*end - from);
            if len == 0 {
                return;
            }
            *next = from + len;
            self.each_extent(id, from, len, |engine, id, extent| {
                let start = extent.offset.next_multiple_of(granularity);
                let mut end = extent.offset + extent.len;
                if end != object_size {
                    end -= end % granularity;
                }
                if start >= end {
                    return;
                }
                let action = match (start == 0, end == object_size) {
                    (true, true) => Action::Remove,
                    (false, true) => Action::Truncate { size: start },
                    _ => Action::Zero {
                        offset: start,
                        len: end - start,
                    },
                };
                engine.push(id, extent, Verb::Clear, action);
            });
        }
    }

    fn flush(&mut self, token: u64) {
        let id = self.begin(token, 0, LiveKind::Flush);
        let epoch = self.first_epoch + self.epochs.len() as u64 - 1;
        if *self.epochs.back().expect("there is always an epoch") > 0 {
            self.epochs.push_back(0);
            self.flushes.push_back((epoch, id));
        } else if self.epochs.len() > 1 {
            self.flushes.push_back((epoch - 1, id));
        } else {
            self.complete(id);
        }
    }

    /// The parts of a write's payload that go to one object range, in object order.
    fn gather(
        &self,
        payload: &Payload,
        offset: u64,
        extent: ObjectExtent,
    ) -> SmallVec<[Payload; 1]> {
        let pieces = self.geometry.layout.pieces(extent);
        pieces
            .map(|p| payload.slice((p.start - offset) as usize..(p.end - offset) as usize))
            .collect()
    }

    /// Calls `f` for each object range, with the request held open so that it cannot complete
    /// before all its operations are queued.
    fn each_extent(
        &mut self,
        id: usize,
        offset: u64,
        len: u64,
        mut f: impl FnMut(&mut Engine<B>, usize, ObjectExtent),
    ) {
        let layout = self.geometry.layout;
        for extent in layout.extents(offset, len) {
            f(self, id, extent);
        }
    }

    fn begin(&mut self, token: u64, offset: u64, kind: LiveKind<B>) -> usize {
        self.requests.insert(Live {
            token,
            offset,
            pending: 0,
            result: Ok(()),
            kind,
        })
    }

    fn begin_write(&mut self, token: u64, offset: u64) -> usize {
        let epoch = self.note_write();
        self.begin(token, offset, LiveKind::Write { epoch })
    }

    /// Counts a write for the flushes to come.
    fn note_write(&mut self) -> u64 {
        *self.epochs.back_mut().expect("there is always an epoch") += 1;
        self.first_epoch + self.epochs.len() as u64 - 1
    }

    fn push(&mut self, request: usize, extent: ObjectExtent, verb: Verb, action: Action) {
        self.requests[request].pending += 1;
        let part = self.parts.insert(Part {
            request,
            extent,
            verb,
        });
        let token = u64::from(self.generation) << 32 | part as u64;
        self.ops.push_back(ObjectOp {
            token,
            object: extent.object,
            action,
        });
    }

    /// Completes a request that has no operation under way.
    fn settle(&mut self, id: usize) {
        if self.requests[id].pending == 0 {
            self.complete(id);
        }
    }

    pub fn poll_op(&mut self) -> Option<ObjectOp> {
        self.ops.pop_front()
    }

    pub fn poll_done(&mut self) -> Option<Done<B>> {
        self.done.pop_front()
    }

    /// What a successful operation has to bring; `None` for one that was given up.
    pub fn expects(&self, token: u64) -> Option<Expected> {
        if token >> 32 != u64::from(self.generation) {
            return None;
        }
        let part = self.parts.get((token & u64::from(u32::MAX)) as usize)?;
        Some(match part.verb {
            Verb::Read => Expected::Data,
            Verb::Map => Expected::Extents,
            Verb::Write | Verb::Clear => Expected::Nothing,
        })
    }

    /// Takes the result of an operation. Results of operations given up by [`Engine::fail_all`]
    /// are ignored.
    pub fn op_done(&mut self, token: u64, outcome: Outcome<'_>) {
        if token >> 32 != u64::from(self.generation) {
            return;
        }
        let part = self.parts.remove((token & u64::from(u32::MAX)) as usize);
        let live = &mut self.requests[part.request];
        let result = match outcome {
            // An object that was never written: it reads as zeroes and needs no freeing.
            Outcome::Result(Err(ENOENT)) => match part.verb {
                Verb::Read => fill(live, &self.geometry.layout, part.extent, &[]),
                Verb::Map => mapped(live, &self.geometry.layout, part.extent, &[]),
                Verb::Clear => Ok(()),
                Verb::Write => Err(ENOENT),
            },
            Outcome::Result(Ok(())) if matches!(part.verb, Verb::Read | Verb::Map) => Err(EIO),
            Outcome::Result(result) => result,
            Outcome::Data(bytes) => fill(live, &self.geometry.layout, part.extent, bytes),
            Outcome::Extents(found) => mapped(live, &self.geometry.layout, part.extent, found),
        };
        if live.result.is_ok() {
            live.result = result;
        }
        live.pending -= 1;
        if live.pending == 0 {
            self.clear_more(part.request);
            self.settle(part.request);
        }
    }

    fn complete(&mut self, id: usize) {
        let Live {
            token,
            offset,
            result,
            kind,
            ..
        } = self.requests.remove(id);
        match kind {
            LiveKind::Status { end, found } if result.is_ok() => {
                self.finish(token, result, None, status_extents(offset, end, found));
            }
            LiveKind::Write { epoch } | LiveKind::Clear { epoch, .. } => {
                self.finish(token, result, None, Vec::new());
                self.epochs[(epoch - self.first_epoch) as usize] -= 1;
                self.retire();
            }
            LiveKind::Read(buffer) => self.finish(token, result, Some(buffer), Vec::new()),
            _ => self.finish(token, result, None, Vec::new()),
        }
    }

    /// Drops epochs whose writes are all done and completes the flushes that waited for them.
    fn retire(&mut self) {
        while self.epochs.len() > 1 && self.epochs[0] == 0 {
            self.epochs.pop_front();
            self.first_epoch += 1;
        }
        while let Some(&(epoch, id)) = self.flushes.front() {
            if epoch >= self.first_epoch {
                break;
            }
            self.flushes.pop_front();
            self.complete(id);
        }
    }

    fn finish(
        &mut self,
        token: u64,
        result: Result<(), i32>,
        buffer: Option<B>,
        extents: Vec<StatusExtent>,
    ) {
        self.done.push_back(Done {
            token,
            result,
            buffer,
            extents,
        });
    }

    /// Gives up on everything in flight: each request completes with `errno`, and what comes back
    /// for its operations later is ignored.
    pub fn fail_all(&mut self, errno: i32) {
        self.generation = (self.generation + 1) & GENERATIONS;
        self.ops.clear();
        self.parts.clear();
        self.flushes.clear();
        self.first_epoch += self.epochs.len() as u64;
        self.epochs.clear();
        self.epochs.push_back(0);
        let mut requests = std::mem::take(&mut self.requests);
        for Live { token, kind, .. } in requests.drain() {
            let buffer = match kind {
                LiveKind::Read(buffer) => Some(buffer),
                _ => None,
            };
            self.finish(token, Err(errno), buffer, Vec::new());
        }
    }
}

/// Hands the bytes of one object range to the request's buffer; what the object is too short for
/// reads as zeroes.
fn fill<B: ReadBuffer>(
    live: &mut Live<B>,
    layout: &Layout,
    extent: ObjectExtent,
    bytes: &[u8],
) -> Result<(), i32> {
    let LiveKind::Read(buffer) = &mut live.kind else {
        return Err(EIO);
    };
    if bytes.len() as u64 > extent.len {
        return Err(EIO);
    }
    let mut rest = bytes;
    for piece in layout.pieces(extent) {
        let at = (piece.start - live.offset) as usize;
        let len = (piece.end - piece.start) as usize;
        let (now, later) = rest.split_at(len.min(rest.len()));
        rest = later;
        if !now.is_empty() {
            buffer.fill(at, now);
        }
        if now.len() < len {
            buffer.zero(at + now.len(), len - now.len());
        }
    }
    Ok(())
}

/// Notes which pieces of the image an object range's stored bytes are.
fn mapped<B>(
    live: &mut Live<B>,
    layout: &Layout,
    extent: ObjectExtent,
    stored: &[(u64, u64)],
) -> Result<(), i32> {
    let LiveKind::Status { found, .. } = &mut live.kind else {
        return Err(EIO);
    };
    let end = extent.offset + extent.len;
    let mut at = extent.offset;
    let mut note = |from: u64, to: u64, data: bool| {
        let part = ObjectExtent {
            object: extent.object,
            offset: from,
            len: to - from,
        };
        found.extend(
            layout
                .pieces(part)
                .map(|p| (p.start, p.end - p.start, data)),
        );
    };
    for &(offset, len) in stored {
        let from = offset.max(at);
        let to = offset.saturating_add(len).min(end);
        if from >= to {
            continue;
        }
        if from > at {
            note(at, from, false);
        }
        note(from, to, true);
        at = to;
    }
    if at < end {
        note(at, end, false);
    }
    Ok(())
}

/// Sorts what the objects said into one run from `offset` to `end`, neighbours merged.
fn status_extents(offset: u64, end: u64, mut found: Vec<(u64, u64, bool)>) -> Vec<StatusExtent> {
    found.sort_unstable();
    let mut out: Vec<StatusExtent> = Vec::new();
    let mut at = offset;
    for (start, len, data) in found {
        debug_assert_eq!(start, at);
        at += len;
        match out.last_mut() {
            Some(last) if last.data == data => last.len += len,
            _ => out.push(StatusExtent { len, data }),
        }
    }
    debug_assert_eq!(at, end);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    impl ReadBuffer for Vec<u8> {
        fn fill(&mut self, at: usize, bytes: &[u8]) {
            self[at..at + bytes.len()].copy_from_slice(bytes);
        }
        fn zero(&mut self, at: usize, len: usize) {
            self[at..at + len].fill(0);
        }
    }

    fn buffer(len: u64) -> Vec<u8> {
        vec![0xee; len as usize]
    }

    /// Objects as an OSD keeps them: sparse bytes up to a length.
    #[derive(Default)]
    struct Store(HashMap<u64, Vec<u8>>);

    impl Store {
        fn apply(&mut self, engine: &mut Engine<Vec<u8>>, op: ObjectOp) {
            let ObjectOp {
                token,
                object,
                action,
            } = op;
            let missing = !self.0.contains_key(&object);
            match action {
                Action::Read { .. } | Action::Map { .. } | Action::Remove if missing => {
                    engine.op_done(token, Outcome::Result(Err(ENOENT)));
                }
                Action::Read { offset, len } => {
                    let bytes = &self.0[&object];
                    let from = (offset as usize).min(bytes.len());
                    let to = ((offset + len) as usize).min(bytes.len());
                    engine.op_done(token, Outcome::Data(&bytes[from..to]));
                }
                Action::Map { offset, len } => {
                    let size = self.0[&object].len() as u64;
                    let end = (offset + len).min(size);
                    let found = [(offset, end.saturating_sub(offset))];
                    engine.op_done(token, Outcome::Extents(&found));
                }
                Action::Write { offset, data } => {
                    let bytes = self.0.entry(object).or_default();
                    let mut at = offset as usize;
                    for part in data {
                        bytes.resize(bytes.len().max(at + part.len()), 0);
                        bytes[at..at + part.len()].copy_from_slice(&part);
                        at += part.len();
                    }
                    engine.op_done(token, Outcome::Result(Ok(())));
                }
                Action::Remove => {
                    self.0.remove(&object);
                    engine.op_done(token, Outcome::Result(Ok(())));
                }
                Action::Truncate { size } => {
                    if let Some(bytes) = self.0.get_mut(&object) {
                        bytes.truncate(size as usize);
                    }
                    engine.op_done(token, Outcome::Result(Ok(())));
                }
                Action::Zero { offset, len } => {
                    if let Some(bytes) = self.0.get_mut(&object) {
                        let to = ((offset + len) as usize).min(bytes.len());
                        let from = (offset as usize).min(to);
                        bytes[from..to].fill(0);
                    }
                    engine.op_done(token, Outcome::Result(Ok(())));
                }
            }
        }
    }

    fn engine(layout: Layout, size: u64) -> Engine<Vec<u8>> {
        Engine::new(Geometry {
            layout,
            size,
            read_only: false,
            discard_granularity: 1024,
        })
    }

    fn run(engine: &mut Engine<Vec<u8>>, store: &mut Store) -> Vec<Done<Vec<u8>>> {
        while let Some(op) = engine.poll_op() {
            store.apply(engine, op);
        }
        std::iter::from_fn(|| engine.poll_done()).collect()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        Zero(u64, u64),
        Discard(u64, u64),
        Read(u64, u64),
        Status(u64, u64),
    }

    const SIZE: u64 = 200_000;

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0u64..SIZE, 0u64..40_000).prop_map(|(o, l)| (o, l.min(SIZE - o)));
        prop_oneof![
            (range(), any::<u8>()).prop_map(|((o, l), b)| Step::Write(o, vec![b | 1; l as usize])),
            range().prop_map(|(o, l)| Step::Zero(o, l)),
            range().prop_map(|(o, l)| Step::Discard(o, l)),
            range().prop_map(|(o, l)| Step::Read(o, l)),
            range().prop_map(|(o, l)| Step::Status(o, l)),
        ]
    }

    proptest! {
        #[test]
        fn the_image_reads_as_a_flat_model(
            unit_shift in 0u32..3, count in 1u64..5, steps in proptest::collection::vec(step(), 1..40),
        ) {
            let layout = Layout::new(14, 16384 >> unit_shift, count).unwrap();
            let mut engine = engine(layout, SIZE);
            let mut store = Store::default();
            let mut model = vec![0u8; SIZE as usize];
            for (token, step) in steps.into_iter().enumerate() {
                let token = token as u64;
                let (kind, offset, len) = match &step {
                    Step::Write(o, data) => {
                        (Kind::Write(Payload::from(data.clone())), *o, data.len() as u64)
                    }
                    Step::Zero(o, l) => (Kind::WriteZeroes, *o, *l),
                    Step::Discard(o, l) => (Kind::Discard, *o, *l),
                    Step::Status(o, l) => (Kind::Status, *o, *l),
                    Step::Read(o, l) => (Kind::Read(buffer(*l)), *o, *l),
                };
                engine.submit(Request { kind, offset, len, token });
                let done = run(&mut engine, &mut store);
                prop_assert_eq!(done.len(), 1);
                prop_assert_eq!((done[0].token, done[0].result), (token, Ok(())));
                let range = offset as usize..(offset + len) as usize;
                match step {
                    Step::Write(_, data) => model[range].copy_from_slice(&data),
                    Step::Zero(..) => model[range].fill(0),
                    Step::Read(..) => {
                        prop_assert_eq!(done[0].buffer.as_deref(), Some(&model[range]));
                    }
                    Step::Discard(..) => {
                        // Each byte is as before or zero, and outside nothing changes.
                        let kind = Kind::Read(buffer(SIZE));
                        engine.submit(Request { kind, offset: 0, len: SIZE, token });
                        let now = run(&mut engine, &mut store)[0].buffer.take().unwrap();
                        for (i, (now, before)) in now.iter().zip(&mut model).enumerate() {
                            prop_assert!(now == before || (*now == 0 && range.contains(&i)));
                            *before = *now;
                        }
                    }
                    Step::Status(..) => {
                        let extents = &done[0].extents;
                        prop_assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), len);
                        let mut at = offset as usize;
                        for e in extents {
                            let part = &model[at..at + e.len as usize];
                            prop_assert!(e.data || part.iter().all(|b| *b == 0));
                            at += e.len as usize;
                        }
                    }
                }
            }
            prop_assert_eq!(engine.in_flight(), 0);
            prop_assert!(engine.parts.is_empty());
        }

        #[test]
        fn a_flush_waits_for_the_writes_before_it_and_no_others(order in Just(()).prop_perturb(|(), mut rng| {
            (0..64).map(|_| rng.random::<u32>()).collect::<Vec<_>>()
        })) {
            let mut engine = engine(Layout::new(12, 0, 0).unwrap(), 1 << 20);
            let mut open: Vec<u64> = Vec::new();
            let mut writes = Vec::new();
            let mut waits: Vec<(u64, Vec<u64>)> = Vec::new();
            for (token, n) in order.into_iter().enumerate() {
                let token = token as u64;
                match n % 3 {
                    0 => {
                        let kind = Kind::Write(Payload::from(vec![1; 16]));
                        engine.submit(Request { kind, offset: 0, len: 16, token });
                        let op = engine.poll_op().unwrap();
                        open.push(token);
                        writes.push((token, op.token));
                    }
                    1 if !writes.is_empty() => {
                        let (w, op) = writes.swap_remove(n as usize / 3 % writes.len());
                        engine.op_done(op, Outcome::Result(Ok(())));
                        open.retain(|t| *t != w);
                    }
                    _ => {
                        engine.submit(Request { kind: Kind::Flush, offset: 0, len: 0, token });
                        waits.push((token, open.clone()));
                    }
                }
                let mut finished: Vec<u64> = Vec::new();
                while let Some(done) = engine.poll_done() {
                    finished.push(done.token);
                }
                waits.retain(|(flush, before)| {
                    let ready = !before.iter().any(|t| open.contains(t));
                    assert_eq!(finished.contains(flush), ready, "flush {flush}");
                    !ready
                });
            }
        }
    }

    #[test]
    fn whole_objects_are_removed_tails_cut_and_middles_zeroed() {
        let mut e = engine(Layout::new(12, 0, 0).unwrap(), 1 << 20);
        e.submit(Request {
            kind: Kind::WriteZeroes,
            offset: 100,
            len: 3 * 4096,
            token: 1,
        });
        let seen: Vec<_> = std::iter::from_fn(|| e.poll_op())
            .map(|op| (op.object, format!("{:?}", op.action)))
            .collect();
        assert_eq!(
            seen,
            [
                (0, "Truncate { size: 100 }".into()),
                (1, "Remove".into()),
                (2, "Remove".into()),
                (3, "Zero { offset: 0, len: 100 }".into()),
            ]
        );
    }

    #[test]
    fn a_huge_range_is_cleared_a_bounded_number_of_objects_at_a_time() {
        let mut e = engine(Layout::new(12, 0, 0).unwrap(), 1 << 30);
        e.submit(Request {
            kind: Kind::WriteZeroes,
            offset: 100,
            len: (1 << 30) - 100,
            token: 1,
        });
        let mut cleared = 0;
        loop {
            let ops: Vec<_> = std::iter::from_fn(|| e.poll_op()).collect();
            assert!(ops.len() as u64 <= CLEAR_OBJECTS);
            if ops.is_empty() {
                break;
            }
            cleared += ops.len();
            assert!(e.poll_done().is_none());
            ops.iter()
                .for_each(|op| e.op_done(op.token, Outcome::Result(Ok(()))));
        }
        assert_eq!(cleared, 1 << 18);
        assert_eq!(e.poll_done().unwrap().result, Ok(()));
        assert_eq!(e.in_flight(), 0);
    }

    #[test]
    fn a_failure_ends_a_clearing_early() {
        let mut e = engine(Layout::new(12, 0, 0).unwrap(), 1 << 30);
        e.submit(Request {
            kind: Kind::WriteZeroes,
            offset: 0,
            len: 1 << 30,
            token: 1,
        });
        let ops: Vec<_> = std::iter::from_fn(|| e.poll_op()).collect();
        ops.iter()
            .for_each(|op| e.op_done(op.token, Outcome::Result(Err(28))));
        assert!(e.poll_op().is_none());
        assert_eq!(e.poll_done().unwrap().result, Err(28));
    }

    #[test]
    fn small_discards_complete_without_an_operation() {
        let mut e = engine(Layout::new(22, 0, 0).unwrap(), 1 << 24);
        e.submit(Request {
            kind: Kind::Discard,
            offset: 512,
            len: 1400,
            token: 1,
        });
        assert!(e.poll_op().is_none());
        assert_eq!(e.poll_done().unwrap().result, Ok(()));
    }

    #[test]
    fn what_lies_outside_or_may_not_be_written_is_refused() {
        let mut e = engine(Layout::new(12, 0, 0).unwrap(), 8192);
        for (offset, len) in [(8192, 1), (0, 8193), (u64::MAX, 2)] {
            e.submit(Request {
                kind: Kind::WriteZeroes,
                offset,
                len,
                token: 1,
            });
            assert_eq!(e.poll_done().unwrap().result, Err(EINVAL));
        }
        e.geometry.read_only = true;
        e.submit(Request {
            kind: Kind::Discard,
            offset: 0,
            len: 1,
            token: 1,
        });
        assert_eq!(e.poll_done().unwrap().result, Err(EROFS));
        assert!(e.poll_op().is_none());
    }

    #[test]
    fn giving_up_completes_everything_and_ignores_what_comes_late() {
        let mut e = engine(Layout::new(12, 0, 0).unwrap(), 1 << 20);
        let payload = || Payload::from(vec![1; 16]);
        e.submit(Request {
            kind: Kind::Write(payload()),
            offset: 0,
            len: 16,
            token: 1,
        });
        let late = e.poll_op().unwrap();
        e.submit(Request {
            kind: Kind::Flush,
            offset: 0,
            len: 0,
            token: 2,
        });
        e.fail_all(EIO);
        let done: Vec<_> = std::iter::from_fn(|| e.poll_done())
            .map(|d| (d.token, d.result))
            .collect();
        assert_eq!(done, [(1, Err(EIO)), (2, Err(EIO))]);
        e.submit(Request {
            kind: Kind::Write(payload()),
            offset: 0,
            len: 16,
            token: 3,
        });
        e.op_done(late.token, Outcome::Result(Ok(())));
        assert!(e.poll_done().is_none());
        let op = e.poll_op().unwrap();
        e.op_done(op.token, Outcome::Result(Err(28)));
        assert_eq!(e.poll_done().unwrap().result, Err(28));
    }

    #[test]
    fn an_osd_that_returns_too_much_is_an_error() {
        let mut e = engine(Layout::new(12, 0, 0).unwrap(), 8192);
        let b = buffer(512);
        e.submit(Request {
            kind: Kind::Read(b),
            offset: 0,
            len: 512,
            token: 9,
        });
        let op = e.poll_op().unwrap();
        e.op_done(op.token, Outcome::Data(&[0; 513]));
        assert_eq!(e.poll_done().unwrap().result, Err(EIO));
    }
}
