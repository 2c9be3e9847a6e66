//! Receiving a byte stream into buffers of the ring.
//!
//! One multishot receive per socket stays armed; the kernel picks a buffer from a ring of
//! provided ones for each piece that arrives, so many pieces cost no system call of their own.
//! Kernels without multishot get single receives; those without buffer rings get a poll first and
//! then a receive that names its buffer, so that no buffer is tied up by an idle socket.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll, Waker};

use io_uring::{opcode, squeue, types};

use crate::config::SetupError;
use crate::core::Core;
use crate::memory::{PAGE, Region};
use crate::ops::{Cqe, Op, OpData};
use crate::ring::{Ring, Sqe};

/// Layout of `struct io_uring_buf` (`include/uapi/linux/io_uring.h`). In the first descriptor
/// of a ring, `tail` is the ring's tail; in all others it is reserved.
#[repr(C)]
struct Descriptor {
    addr: u64,
    len: u32,
    bid: u16,
    tail: AtomicU16,
}

const GROUP: u16 = 0;

/// The receive buffers of a ring.
pub(crate) struct BufGroup {
    /// The descriptors shared with the kernel; `None` where it has no buffer rings.
    ring: Option<Region>,
    mask: u16,
    tail: Cell<u16>,
    bufs: Region,
    size: usize,
    count: u16,
    /// Without a ring: who is free.
    free: RefCell<Vec<u16>>,
    available: Cell<usize>,
    starved: RefCell<Vec<Waker>>,
}

impl BufGroup {
    /// `ring` is where to register; without, or if it refuses, receives name their buffer.
    pub(crate) fn new(
        ring: Option<&Ring>,
        count: u16,
        size: usize,
        lock: bool,
    ) -> Result<Rc<BufGroup>, SetupError> {
        let count = count.clamp(1, 1 << 15);
        let size = size.clamp(1, 1 << 30).next_multiple_of(PAGE);
        let bufs = Region::new(size * usize::from(count), false)
            .map_err(SetupError::os("allocate receive buffers"))?;
        if lock {
            bufs.lock()
                .map_err(SetupError::os("lock receive buffers in memory"))?;
        }
        let entries = count.next_power_of_two();
        let mut descriptors = None;
        if let Some(ring) = ring {
            let region = Region::new(usize::from(entries) * size_of::<Descriptor>(), false)
                .map_err(SetupError::os("allocate the receive buffer ring"))?;
            // SAFETY: the region has room for `entries` descriptors. The group that owns it
            // outlives the ring, or is leaked.
            let done = unsafe { ring.register_buf_ring(region.at(0).as_ptr(), entries, GROUP) };
            match done.map_err(|e| (e.kind(), e)) {
                Ok(()) => descriptors = Some(region),
                // Before 5.19.
                Err((io::ErrorKind::InvalidInput, _)) => {}
                Err((_, error)) => {
                    return Err(SetupError::Os {
                        what: "register receive buffers",
                        error,
                    });
                }
            }
        }
        let group = BufGroup {
            ring: descriptors,
            mask: entries - 1,
            tail: Cell::new(0),
            bufs,
            size,
            count,
            free: RefCell::new(Vec::with_capacity(usize::from(count))),
            available: Cell::new(0),
            starved: RefCell::default(),
        };
        for bid in 0..count {
            group.give(bid);
        }
        Ok(Rc::new(group))
    }

    pub(crate) fn is_ring(&self) -> bool {
        self.ring.is_some()
    }

    fn ptr(&self, bid: u16) -> *mut u8 {
        self.bufs.at(usize::from(bid) * self.size).as_ptr()
    }

    /// The kernel has used up a buffer of the ring.
    pub(crate) fn claim(&self) {
        self.available.set(self.available.get().saturating_sub(1));
    }

    /// Without a ring: a buffer for a receive.
    fn pick(&self) -> Option<u16> {
        let bid = self.free.borrow_mut().pop()?;
        self.claim();
        Some(bid)
    }

    /// A buffer is free again. Whoever waited for one is woken.
    fn give(&self, bid: u16) {
        match &self.ring {
            Some(ring) => {
                let tail = self.tail.get();
                let base = ring.at(0).cast::<Descriptor>();
                // SAFETY: the index is masked to the ring. The kernel reads descriptors only
                // between head and tail, and this one is outside until the tail moves. Its fields
                // are written one by one, since the first descriptor holds the tail.
                unsafe {
                    let slot = base.add(usize::from(tail & self.mask)).as_ptr();
                    (&raw mut (*slot).addr).write(self.ptr(bid) as u64);
                    (&raw mut (*slot).len).write(self.size as u32);
                    (&raw mut (*slot).bid).write(bid);
                }
                let tail = tail.wrapping_add(1);
                self.tail.set(tail);
                // SAFETY: an aligned atomic inside the region.
                unsafe { &(*base.as_ptr()).tail }.store(tail, Ordering::Release);
            }
            None => self.free.borrow_mut().push(bid),
        }
        self.available.set(self.available.get() + 1);
        let waiting = self.starved.borrow().len();
        for _ in 0..waiting {
            let waker = self.starved.borrow_mut().pop();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn wait(&self, cx: &mut Context<'_>) {
        let known = |w: &Waker| w.will_wake(cx.waker());
        if !self.starved.borrow().iter().any(known) {
            let waker = cx.waker().clone();
            self.starved.borrow_mut().push(waker);
        }
    }
}

/// Received bytes in a buffer of the ring; the buffer goes back when this is dropped. While all
/// buffers are held, nothing is received on any socket of the ring.
pub struct RecvBuf {
    group: Rc<BufGroup>,
    bid: u16,
    start: u32,
    end: u32,
}

impl RecvBuf {
    /// Forgets the first `n` bytes. Panics when there are fewer.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len());
        self.start += n as u32;
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let len = (self.end - self.start) as usize;
        // SAFETY: inside buffer `bid`, which is ours alone until given back in `drop`; the region
        // was zeroed at first and is kept by the group.
        unsafe {
            std::slice::from_raw_parts(self.group.ptr(self.bid).add(self.start as usize), len)
        }
    }
}

impl Drop for RecvBuf {
    fn drop(&mut self) {
        self.group.give(self.bid);
    }
}

impl fmt::Debug for RecvBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvBuf({} bytes)", self.len())
    }
}

struct RecvData {
    fd: Rc<OwnedFd>,
    group: Rc<BufGroup>,
    /// The buffer that this receive names, where the kernel does not pick one.
    named: Option<u16>,
}

impl OpData for RecvData {
    fn discard(&mut self, cqe: Cqe) {
        if let Some(bid) = cqe.buffer() {
            self.group.give(bid);
        }
    }
}

impl Drop for RecvData {
    fn drop(&mut self) {
        if let Some(bid) = self.named.take() {
            self.group.give(bid);
        }
    }
}

enum Step {
    Got(io::Result<Option<RecvBuf>>),
    /// A receive is in flight.
    Wait,
    /// All buffers are in use.
    Starved,
    /// Paused and drained.
    Idle,
}

/// Receives from one socket. At most one of these per socket may be receiving.
pub struct RecvStream {
    core: Rc<Core>,
    fd: Rc<OwnedFd>,
    group: Rc<BufGroup>,
    op: Option<Op<RecvData>>,
    /// The operation in flight is a multishot one that has delivered nothing yet.
    untried: bool,
    /// The operation in flight is a poll.
    polling: bool,
    /// Without a ring of buffers: a receive is likely to find something.
    readable: bool,
    multishot: bool,
    limit: u32,
    paused: bool,
    ended: bool,
}

impl RecvStream {
    pub(crate) fn new(core: &Rc<Core>, fd: &Rc<OwnedFd>) -> RecvStream {
        let group = core.group.borrow().clone();
        let group = group.expect("a socket was used after its runtime ended");
        RecvStream {
            core: Rc::clone(core),
            fd: Rc::clone(fd),
            op: None,
            untried: false,
            polling: false,
            readable: true,
            multishot: true,
            // A burst may exceed it before the kernel hears of it.
            limit: u32::from(group.count / 2).max(1),
            group,
            paused: false,
            ended: false,
        }
    }

    /// Whether the next receive may be a multishot one (the default). Without, nothing is in
    /// flight between calls, and data that nobody asked for stays in the socket.
    pub fn set_multishot(&mut self, on: bool) {
        self.multishot = on;
    }

    /// The next piece, of one buffer at most; `None` at the end of the stream.
    pub async fn next(&mut self) -> io::Result<Option<RecvBuf>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.paused = false;
        match self.step() {
            Step::Got(got) => return Poll::Ready(got),
            Step::Wait => {
                if let Some(op) = &mut self.op {
                    op.register(cx);
                }
            }
            Step::Starved => self.group.wait(cx),
            Step::Idle => unreachable!("not paused"),
        }
        Poll::Pending
    }

    /// A piece that has arrived already; `None` if none has. Keeps the receive armed, but wakes
    /// nobody: after `None`, await [`next`](RecvStream::next).
    pub fn try_next(&mut self) -> Option<io::Result<Option<RecvBuf>>> {
        match self.step() {
            Step::Got(got) => Some(got),
            Step::Wait | Step::Starved | Step::Idle => None,
        }
    }

    /// Stops receiving, so that the socket can be read directly. When it returns, no receive is
    /// in flight; what came before is still to be had from [`try_next`](RecvStream::try_next),
    /// in order. [`next`](RecvStream::next) starts again.
    pub async fn pause(&mut self) {
        self.paused = true;
        let Some(op) = &mut self.op else { return };
        op.cancel();
        poll_fn(|cx| {
            if op.is_finished() {
                return Poll::Ready(());
            }
            op.register(cx);
            Poll::Pending
        })
        .await;
    }

    fn step(&mut self) -> Step {
        loop {
            let Some(op) = &mut self.op else {
                if self.ended {
                    return Step::Got(Ok(None));
                }
                if self.paused {
                    return Step::Idle;
                }
                if !self.arm() {
                    return Step::Starved;
                }
                continue;
            };
            let Some(cqe) = op.try_next() else {
                return Step::Wait;
            };
            let named = if op.is_over() {
                // Took the last completion: the operation is done with.
                self.op.take().and_then(|op| op.into_data().named.take())
            } else {
                None
            };
            if let Some(got) = self.judge(cqe, named) {
                return Step::Got(got);
            }
        }
    }

    /// What a completion means to the caller; `None` for those that only end an operation.
    fn judge(&mut self, cqe: Cqe, named: Option<u16>) -> Option<io::Result<Option<RecvBuf>>> {
        let untried = std::mem::replace(&mut self.untried, false);
        if std::mem::replace(&mut self.polling, false) && cqe.result >= 0 {
            self.readable = true;
            return None;
        }
        let buf = cqe.buffer().or(named).map(|bid| RecvBuf {
            group: Rc::clone(&self.group),
            bid,
            start: 0,
            end: cqe.result.max(0) as u32,
        });
        match (cqe.result, buf) {
            (1.., Some(buf)) => {
                self.readable = buf.len() == self.group.size;
                Some(Ok(Some(buf)))
            }
            (0, _) => {
                self.ended = true;
                Some(Ok(None))
            }
            (error, _) => match -error {
                libc::ENOBUFS => {
                    self.core.shared.counters.starved.add(1);
                    None
                }
                libc::ECANCELED if !self.core.is_closed() => None,
                libc::EINTR => None,
                libc::EAGAIN if named.is_some() => {
                    self.readable = false;
                    None
                }
                libc::EINVAL if untried => {
                    // Before 6.0.
                    let mut features = self.core.features.get();
                    features.multishot_recv = false;
                    self.core.features.set(features);
                    None
                }
                errno => Some(Err(io::Error::from_raw_os_error(errno))),
            },
        }
    }

    /// Submits a receive; false if there is no buffer for it.
    fn arm(&mut self) -> bool {
        let ring = self.group.is_ring();
        self.polling = !ring && !self.readable;
        if self.group.available.get() == 0 && !self.polling && !self.core.is_closed() {
            return false;
        }
        let multishot = ring && self.multishot && self.core.features.get().multishot_recv;
        let named = if ring || self.polling {
            None
        } else {
            self.group.pick()
        };
        let data = RecvData {
            fd: Rc::clone(&self.fd),
            group: Rc::clone(&self.group),
            named,
        };
        let polling = self.polling;
        let build = |d: &mut RecvData| {
            let fd = types::Fd(d.fd.as_raw_fd());
            let len = d.group.size as u32;
            Sqe::Plain(if polling {
                opcode::PollAdd::new(fd, (libc::POLLIN | libc::POLLRDHUP) as u32).build()
            } else if multishot {
                opcode::RecvMulti::new(fd, GROUP).build()
            } else if let Some(bid) = d.named {
                opcode::Recv::new(fd, d.group.ptr(bid), len)
                    .flags(libc::MSG_DONTWAIT)
                    .build()
            } else {
                opcode::Recv::new(fd, std::ptr::null_mut(), len)
                    .buf_group(GROUP)
                    .build()
                    .flags(squeue::Flags::BUFFER_SELECT)
            })
        };
        let limit = if multishot { self.limit } else { 0 };
        // SAFETY: the data owns the fd and, through the group, all receive buffers.
        self.op = Some(unsafe { Op::submit_multi(&self.core, data, limit, build) });
        self.untried = multishot;
        true
    }
}

impl fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvStream")
            .field("fd", &self.fd.as_raw_fd())
            .field("armed", &self.op.is_some())
            .field("ended", &self.ended)
            .finish()
    }
}
