//! An RBD image as the disk that front ends serve.
//!
//! [`Engine`] turns requests into object operations; this hands them to the cluster at the end of
//! each turn of the loop and brings the results back. Nothing here waits or allocates per request
//! once its tables have grown.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::rc::Rc;

use cluster::codec::Reader;
use cluster::objecter::{Access, ObjectOp, OpReply, Request as RadosRequest, Target, WatchEvent};
use cluster::objecter::{SnapContext, msg::NOSNAP};
use cluster::rados::{IoCtx, OpSink, Rados, RadosError, SinkId};
use cluster::rbd::engine::{
    Action, Done, Engine, Expected, Kind, ObjectOp as EngineOp, Outcome, ReadBuffer,
    Request as EngineRequest,
};
use cluster::rbd::image::Image;
use iothread::Signal;
use slab::Slab;
use smallvec::SmallVec;

use crate::frontend::disk::{
    Allocation, Completion, Discard, Disk, DiskInfo, Errno, Extents, Op, ReadBuf, Reply, Request,
    Token,
};

/// Announced as the longest discard; front ends with narrower fields clamp it.
const MAX_DISCARD: u64 = 1 << 30;
/// The largest read or write, as NBD clients know it by convention.
const MAX_IO: u32 = 32 << 20;

/// `ceph_osd_op.alloc_hint.flags` that librbd sends for images without special hints.
const ALLOC_HINT_FLAGS: u32 = 0;

/// What a watch on the header has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Somebody has changed the header and waits for our answer.
    Changed { notify_id: u64, cookie: u64 },
    /// The watch is gone: changes may have been missed, and none is heard of any more.
    Lost,
}

/// Unanswered notifications that are kept.
const MAX_NOTICES: usize = 64;

struct Reading(ReadBuf);

impl ReadBuffer for Reading {
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.0.fill(at, bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.0.hole(at, len);
    }
}

struct Live {
    token: Token,
    sink: Rc<dyn Completion>,
    /// The list that a block status request came with.
    extents: Option<Extents>,
}

/// See the module.
pub struct ImageDisk {
    rados: Rados,
    sink: Cell<Option<SinkId>>,
    engine: RefCell<Engine<Reading>>,
    live: RefCell<Slab<Live>>,
    /// A data object of the image, less its name.
    place: Target,
    prefix: String,
    access: Access,
    /// What writes must preserve. Changes when a snapshot is made.
    snapc: RefCell<Rc<SnapContext>>,
    /// Notifications on the header that have not been answered: id and cookie.
    notices: RefCell<Vec<(u64, u64)>>,
    watch_lost: Cell<bool>,
    noticed: Signal,
    /// The data pool cannot say which parts of an object are stored.
    erasure: bool,
    lost: Cell<Option<Errno>>,
}

impl ImageDisk {
    /// Serves `image`, whose header is in `io`, on the current iothread.
    pub fn start(io: &IoCtx, image: &Image, read_only: bool) -> Rc<ImageDisk> {
        let pool = image.data_pool.unwrap_or(io.pool());
        let data = io.in_pool(pool);
        let disk = Rc::new(ImageDisk {
            rados: io.rados().clone(),
            sink: Cell::new(None),
            engine: RefCell::new(Engine::new(image.geometry(read_only))),
            live: RefCell::default(),
            place: data.target(""),
            prefix: image.prefix.clone(),
            access: Access::Read(image.snap.unwrap_or(NOSNAP)),
            snapc: RefCell::new(snap_context(image)),
            notices: RefCell::default(),
            watch_lost: Cell::new(false),
            noticed: Signal::default(),
            erasure: io.pool_info(pool).is_some_and(|p| p.erasure),
            lost: Cell::new(None),
        });
        let sink: Rc<dyn OpSink> = Rc::clone(&disk) as Rc<dyn OpSink>;
        disk.sink.set(Some(io.rados().register(sink)));
        disk
    }

    /// Ends it: what is in flight fails with `errno`, and the cluster is no longer asked.
    pub fn stop(&self, errno: Errno) {
        self.lost.set(Some(errno));
        self.engine.borrow_mut().fail_all(errno.0);
        self.finish_done();
        if let Some(sink) = self.sink.take() {
            self.rados.unregister(sink);
        }
    }

    /// Requests that have not completed.
    pub fn in_flight(&self) -> usize {
        self.engine.borrow().in_flight()
    }

    /// Takes over what has changed in the header.
    pub fn refresh(&self, image: &Image) {
        self.engine.borrow_mut().set_size(image.size);
        *self.snapc.borrow_mut() = snap_context(image);
    }

    /// Waits until all writes that were submitted before are done.
    pub async fn written(&self) {
        let flushed = Rc::new(Flushed::default());
        let request = Request {
            token: Token(0),
            offset: 0,
            len: 0,
            fua: false,
            op: Op::Flush,
        };
        self.submit(request, &(Rc::clone(&flushed) as Rc<dyn Completion>));
        flushed.0.wait().await;
    }

    /// What the watch on the header tells next.
    pub async fn notice(&self) -> Notice {
        loop {
            if self.watch_lost.take() {
                return Notice::Lost;
            }
            let first = self.notices.borrow_mut().pop();
            match first {
                Some((notify_id, cookie)) => return Notice::Changed { notify_id, cookie },
                None => self.noticed.wait().await,
            }
        }
    }

    fn request(&self, op: EngineOp) -> RadosRequest {
        let EngineOp {
            token,
            object,
            action,
        } = op;
        let mut target = self.place.clone();
        target.name = SmallVec::from_slice(self.prefix.as_bytes());
        // Writing to a vector cannot fail.
        let _ = write!(target.name, ".{object:016x}");
        let (ops, writes) = match action {
            Action::Read { offset, len } => (ObjectOp::new().read(offset, len), false),
            Action::Map { .. } if self.erasure => (ObjectOp::new().stat(), false),
            Action::Map { offset, len } => (ObjectOp::new().map_extents(offset, len), false),
            Action::Write { offset, data } => {
                let size = self.engine.borrow().geometry().layout.object_size();
                let hint = ObjectOp::new().set_alloc_hint(size, size, ALLOC_HINT_FLAGS);
                (hint.write_pieces(offset, data), true)
            }
            Action::Remove => (ObjectOp::new().delete(), true),
            Action::Truncate { size } => (ObjectOp::new().truncate(size), true),
            Action::Zero { offset, len } => (ObjectOp::new().zero(offset, len), true),
        };
        let access = match writes {
            true => Access::Write(Rc::clone(&self.snapc.borrow())),
            false => self.access.clone(),
        };
        RadosRequest {
            access,
            ..RadosRequest::read(target, ops, token)
        }
    }

    /// Tells front ends of finished requests. No borrow is held while they hear of it, since they
    /// may submit the next one right away.
    fn finish_done(&self) {
        loop {
            let done = self.engine.borrow_mut().poll_done();
            let Some(done) = done else { break };
            let Done {
                token,
                result,
                buffer,
                extents,
            } = done;
            let live = self.live.borrow_mut().remove(token as usize);
            let reply = match result {
                Err(errno) => Err(Errno(errno)),
                Ok(()) => Ok(match (buffer, live.extents) {
                    (Some(Reading(buffer)), _) => Reply::Read(buffer),
                    (None, Some(mut list)) => {
                        for e in extents {
                            let state = if e.data {
                                Allocation::Data
                            } else {
                                Allocation::Hole
                            };
                            if !list.push(e.len, state) {
                                break;
                            }
                        }
                        Reply::Extents(list)
                    }
                    (None, None) => Reply::Done,
                }),
            };
            live.sink.done(live.token, reply);
        }
    }
}

impl Disk for ImageDisk {
    fn info(&self) -> DiskInfo {
        let engine = self.engine.borrow();
        let g = engine.geometry();
        let io_opt = g.layout.set_size().min(u64::from(MAX_IO));
        DiskInfo {
            size: g.size,
            block_size: 1,
            preferred_io: u32::try_from(prev_power_of_two(io_opt))
                .unwrap_or(MAX_IO)
                .max(4096),
            max_io: MAX_IO,
            read_only: g.read_only,
            discard: Some(Discard {
                granularity: u32::try_from(g.discard_granularity).unwrap_or(u32::MAX),
                max_len: MAX_DISCARD,
            }),
            fast_zero: true,
        }
    }

    fn submit(&self, request: Request, sink: &Rc<dyn Completion>) {
        let Request {
            token,
            offset,
            len,
            op,
            ..
        } = request;
        if let Some(errno) = self.lost.get() {
            sink.done(token, Err(errno));
            return;
        }
        let mut extents = None;
        let kind = match op {
            Op::Read(buffer) => Kind::Read(Reading(buffer)),
            Op::Write(payload) => Kind::Write(payload),
            Op::Flush => Kind::Flush,
            Op::Discard => Kind::Discard,
            // Removing an object or punching a hole is quick whatever was asked.
            Op::WriteZeroes { .. } => Kind::WriteZeroes,
            Op::BlockStatus(list) => {
                extents = Some(list);
                Kind::Status
            }
            Op::Cache => {
                sink.done(token, Ok(Reply::Done));
                return;
            }
        };
        let live = Live {
            token,
            sink: Rc::clone(sink),
            extents,
        };
        let key = self.live.borrow_mut().insert(live) as u64;
        self.engine.borrow_mut().submit(EngineRequest {
            kind,
            offset,
            len,
            token: key,
        });
        self.finish_done();
    }
}

impl OpSink for ImageDisk {
    /// Hands the operations that requests of this turn need to the cluster.
    fn pump(&self) {
        let Some(sink) = self.sink.get() else { return };
        loop {
            let op = self.engine.borrow_mut().poll_op();
            let Some(op) = op else { break };
            self.rados.submit(sink, self.request(op));
        }
    }

    fn op_done(&self, token: u64, reply: OpReply<'_>) {
        {
            let mut engine = self.engine.borrow_mut();
            let first = || reply.results.get(0).map_or(&[][..], |r| r.data);
            match (reply.result, engine.expects(token)) {
                (_, None) => return,
                (Err(e), _) => engine.op_done(token, Outcome::Result(Err(e.errno()))),
                (Ok(()), Some(Expected::Nothing)) => {
                    engine.op_done(token, Outcome::Result(Ok(())));
                }
                (Ok(()), Some(Expected::Data)) => engine.op_done(token, Outcome::Data(first())),
                // What is stored where, an erasure-coded pool does not say.
                (Ok(()), Some(Expected::Extents)) if self.erasure => {
                    engine.op_done(token, Outcome::Extents(&[(0, u64::MAX)]));
                }
                (Ok(()), Some(Expected::Extents)) => {
                    let stored = Reader::new(first()).list(16, |r| Ok((r.u64()?, r.u64()?)));
                    match stored {
                        Ok(stored) => engine.op_done(token, Outcome::Extents(&stored)),
                        Err(_) => engine.op_done(token, Outcome::Result(Err(libc::EIO))),
                    }
                }
            }
        }
        self.finish_done();
    }

    fn lost(&self, why: &RadosError) {
        tracing::error!("the image cannot be served any more: {why}");
        let errno = match why {
            RadosError::Blocklisted => Errno::SHUTDOWN,
            _ => Errno::IO,
        };
        self.lost.set(Some(errno));
        self.engine.borrow_mut().fail_all(errno.0);
        self.finish_done();
    }

    fn watch_event(&self, cookie: u64, event: WatchEvent<'_>) {
        match event {
            WatchEvent::Notify { notify_id, .. } => {
                let mut notices = self.notices.borrow_mut();
                // A flood of them says no more than one does: look at the header again.
                if notices.len() < MAX_NOTICES {
                    notices.push((notify_id, cookie));
                }
                self.noticed.raise();
            }
            WatchEvent::Disconnected(errno) => {
                let why = Errno(errno);
                tracing::warn!("the watch on the image's header is lost: {why}");
                self.watch_lost.set(true);
                self.noticed.raise();
            }
            WatchEvent::Unconfirmed => {
                tracing::warn!(
                    "the watch on the image's header has not been confirmed for a while"
                );
            }
        }
    }
}

/// Hears of a flush of our own.
#[derive(Default)]
struct Flushed(Signal);

impl Completion for Flushed {
    fn done(&self, _: Token, _: Result<Reply, Errno>) {
        self.0.raise();
    }
}

fn snap_context(image: &Image) -> Rc<SnapContext> {
    Rc::new(SnapContext {
        seq: image.snap_seq,
        snaps: image.snap_ids.clone(),
    })
}

fn prev_power_of_two(n: u64) -> u64 {
    1 << (u64::BITS - 1 - n.max(1).leading_zeros())
}
