//! The transmission phase, sans-IO: bytes in, requests to the disk, replies out.
//!
//! Two ends of a [`Session`] are driven by its connection. The receiving end feeds bytes to
//! [`Session::poll_receive`], which stops taking them while the client has enough in flight or
//! request memory is used up: that is all the flow control there is, and all that is needed. The
//! sending end takes what has been answered from [`Session::poll_output`]. Completions are encoded
//! where they arrive; [`Session::flush`] at the end of a turn has all of them leave in one send.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use iothread::{IoBuf, IoBufMut};
use slab::Slab;

use super::super::arena::{Arena, Buffer, Ticket};
use super::super::disk::{
    Allocation, Completion, Disk, DiskInfo, Errno, Extent, Extents, Op, ReadBuf, Reply, Request,
    Token,
};
use super::negotiate::{Agreement, ReplyStyle};
use super::reply::Batch;
use super::request::{
    self, FILTER_SIZE, Header, Limits, Refusal, TransmitError, Verdict, payload_len,
};
use super::wire::{EXTENDED_REQUEST_SIZE, NbdError, cmd};

/// Requests of one connection in flight. The kernel client uses 128, QEMU 16, libnbd 64.
pub const MAX_IN_FLIGHT: usize = 256;
/// Reply headers waiting for a client that does not read them. Data is bounded by the arena.
const MAX_BACKLOG: usize = 256 << 10;
/// Extents in one reply; clients ask again from where it ends.
const MAX_EXTENTS: usize = 8192;

/// What the receiving end is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All input was consumed.
    Hungry,
    /// The client said goodbye, or the session was closed: read no more.
    Over,
}

enum State {
    Header,
    /// A read, or a write whose payload has not begun, waits for request memory.
    Memory(Header),
    Payload(Header, Buffer, usize),
    /// The buffer of a payload is out for a receive straight into it.
    Lent(Header),
    Filter(Header),
    Skip(Header, Refusal, u64),
    Over,
}

struct Receiver {
    state: State,
    /// A header (or filter payload) that came in parts.
    partial: [u8; EXTENDED_REQUEST_SIZE],
    have: usize,
    ticket: Option<Ticket>,
    limits: Limits,
}

/// The rest of a write's payload, to be received straight into its place.
pub struct Direct {
    buffer: Buffer,
    filled: usize,
}

impl Direct {
    /// Where in the buffer the missing bytes go.
    pub fn missing(&self) -> Range<usize> {
        self.filled..self.buffer.len()
    }
}

// SAFETY: the buffer's memory is a piece of its arena's mapping, wherever the handle is.
unsafe impl IoBuf for Direct {
    fn as_slice(&self) -> &[u8] {
        &self.buffer
    }
}

// SAFETY: a buffer is the only way to its piece while it exists.
unsafe impl IoBufMut for Direct {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

/// The disk as announced to clients: no request is longer than the arena has memory for, or it
/// would wait for ever.
pub fn served_info(disk: &dyn Disk, arena: &Arena) -> DiskInfo {
    let mut info = disk.info();
    let largest = u32::try_from(arena.largest()).unwrap_or(u32::MAX);
    assert!(info.block_size <= largest, "an arena smaller than a block");
    info.max_io = info.max_io.min(largest);
    info
}

/// One connection in the transmission phase.
pub struct Session {
    disk: Rc<dyn Disk>,
    arena: Rc<Arena>,
    style: ReplyStyle,
    receiver: RefCell<Receiver>,
    in_flight: RefCell<Slab<Header>>,
    out: RefCell<Batch>,
    /// Extent lists not in use.
    lists: RefCell<Vec<Vec<Extent>>>,
    /// Woken by [`Session::flush`] when there is output.
    sender: Cell<Option<Waker>>,
    dirty: Cell<bool>,
    /// Woken when a stalled receive may go on.
    stalled: Cell<Option<Waker>>,
    /// No more input will come.
    ended: Cell<bool>,
    closed: Cell<bool>,
    draining: Cell<bool>,
    /// Bytes of requests consumed, for whoever watches for stuck peers.
    consumed: Cell<u64>,
}

impl Session {
    pub fn new(disk: Rc<dyn Disk>, arena: Rc<Arena>, agreement: &Agreement) -> Rc<Session> {
        let limits = Limits::new(&served_info(&*disk, &arena), agreement);
        Rc::new(Session {
            disk,
            arena,
            style: limits.style,
            receiver: RefCell::new(Receiver {
                state: State::Header,
                partial: [0; EXTENDED_REQUEST_SIZE],
                have: 0,
                ticket: None,
                limits,
            }),
            in_flight: RefCell::new(Slab::with_capacity(MAX_IN_FLIGHT)),
            out: RefCell::new(Batch::default()),
            lists: RefCell::new(Vec::new()),
            sender: Cell::new(None),
            dirty: Cell::new(false),
            stalled: Cell::new(None),
            ended: Cell::new(false),
            closed: Cell::new(false),
            draining: Cell::new(false),
            consumed: Cell::new(0),
        })
    }

    /// Takes received bytes. `Pending` leaves the rest of the input unconsumed, and wakes when it
    /// is worth another attempt.
    pub fn poll_receive(
        self: &Rc<Self>,
        input: &mut &[u8],
        waker: &Waker,
    ) -> Poll<Result<Progress, TransmitError>> {
        let before = input.len();
        let mut receiver = self.receiver.borrow_mut();
        receiver.limits.size = self.disk.info().size;
        let sink: Rc<dyn Completion> = Rc::<Session>::clone(self);
        let result = self.receive(&mut receiver, input, &sink, waker);
        self.consumed
            .set(self.consumed.get() + (before - input.len()) as u64);
        result
    }

    fn receive(
        &self,
        rx: &mut Receiver,
        input: &mut &[u8],
        sink: &Rc<dyn Completion>,
        waker: &Waker,
    ) -> Poll<Result<Progress, TransmitError>> {
        loop {
            match std::mem::replace(&mut rx.state, State::Header) {
                State::Over => {
                    rx.state = State::Over;
                    *input = &[];
                    return Poll::Ready(Ok(Progress::Over));
                }
                State::Header => {
                    if input.is_empty() {
                        return Poll::Ready(Ok(Progress::Hungry));
                    }
                    if rx.have == 0 && self.is_full() {
                        self.stalled.set(Some(waker.clone()));
                        return Poll::Pending;
                    }
                    let size = Header::size(self.style);
                    let Some(bytes) = rx.collect(input, size) else {
                        return Poll::Ready(Ok(Progress::Hungry));
                    };
                    let header = Header::parse(&bytes[..size], self.style)?;
                    self.begin(rx, header, sink)?;
                }
                State::Memory(h) => {
                    // Reads and writes are checked against the maximum payload, a u32.
                    let len = h.len as usize;
                    match self.arena.poll_alloc(len, &mut rx.ticket, waker) {
                        Poll::Pending => {
                            rx.state = State::Memory(h);
                            return Poll::Pending;
                        }
                        Poll::Ready(buffer) if h.kind == cmd::READ => {
                            self.submit(h, Op::Read(ReadBuf::new(buffer)), sink);
                        }
                        Poll::Ready(buffer) => rx.state = State::Payload(h, buffer, 0),
                    }
                }
                State::Payload(h, mut buffer, filled) => {
                    let n = input.len().min(buffer.len() - filled);
                    buffer[filled..filled + n].copy_from_slice(&input[..n]);
                    *input = &input[n..];
                    if filled + n < buffer.len() {
                        rx.state = State::Payload(h, buffer, filled + n);
                        return Poll::Ready(Ok(Progress::Hungry));
                    }
                    self.submit(h, Op::Write(buffer.freeze().into_payload()), sink);
                }
                State::Lent(_) => unreachable!("bytes fed while a payload is being received"),
                State::Filter(mut h) => {
                    let Some(bytes) = rx.collect(input, FILTER_SIZE) else {
                        rx.state = State::Filter(h);
                        return Poll::Ready(Ok(Progress::Hungry));
                    };
                    let payload = bytes.first_chunk().expect("collected that many");
                    match request::check_filter(&mut h, payload, &rx.limits) {
                        Ok(()) => self.submit(h, self.status_op(&h), sink),
                        Err(refusal) => self.refuse(&h, refusal),
                    }
                }
                State::Skip(h, refusal, left) => {
                    let n = left.min(input.len() as u64);
                    *input = &input[n as usize..];
                    if n < left {
                        rx.state = State::Skip(h, refusal, left - n);
                        return Poll::Ready(Ok(Progress::Hungry));
                    }
                    self.refuse(&h, refusal);
                }
            }
        }
    }

    /// Acts on a header; leaves the state that its payload wants.
    fn begin(
        &self,
        rx: &mut Receiver,
        h: Header,
        sink: &Rc<dyn Completion>,
    ) -> Result<(), TransmitError> {
        let mut verdict = request::check(&h, &rx.limits)?;
        if self.draining.get() && verdict != Verdict::Disconnect {
            let refusal = Refusal {
                error: NbdError::Shutdown,
                message: "the server is going down",
            };
            verdict = Verdict::Refuse(refusal, payload_len(&h, self.style));
        }
        match verdict {
            Verdict::Run => match h.kind {
                cmd::READ | cmd::WRITE => rx.state = State::Memory(h),
                cmd::FLUSH => self.submit(h, Op::Flush, sink),
                cmd::TRIM => self.submit(h, Op::Discard, sink),
                cmd::CACHE => self.submit(h, Op::Cache, sink),
                cmd::WRITE_ZEROES => {
                    let op = Op::WriteZeroes {
                        may_unmap: !h.has(cmd::FLAG_NO_HOLE),
                        fast: h.has(cmd::FLAG_FAST_ZERO),
                    };
                    self.submit(h, op, sink);
                }
                _ => self.submit(h, self.status_op(&h), sink),
            },
            Verdict::Trivial => {
                self.out.borrow_mut().success(self.style, &h);
                self.dirty.set(true);
            }
            Verdict::Filter => rx.state = State::Filter(h),
            Verdict::Refuse(refusal, 0) => self.refuse(&h, refusal),
            Verdict::Refuse(refusal, skip) => rx.state = State::Skip(h, refusal, skip),
            Verdict::Disconnect => {
                rx.state = State::Over;
                self.end();
            }
        }
        Ok(())
    }

    fn status_op(&self, h: &Header) -> Op {
        let list = self.lists.borrow_mut().pop().unwrap_or_default();
        let limit = match h.has(cmd::FLAG_REQ_ONE) {
            true => 1,
            false => MAX_EXTENTS,
        };
        Op::BlockStatus(Extents::reuse(list, limit))
    }

    fn submit(&self, h: Header, op: Op, sink: &Rc<dyn Completion>) {
        let key = self.in_flight.borrow_mut().insert(h);
        let request = Request {
            token: Token(key as u64),
            offset: h.offset,
            len: h.len,
            fua: h.has(cmd::FLAG_FUA) && !h.wants_chunks(),
            op,
        };
        self.disk.submit(request, sink);
    }

    fn refuse(&self, h: &Header, refusal: Refusal) {
        let mut out = self.out.borrow_mut();
        out.failure(self.style, h, refusal.error, refusal.message);
        drop(out);
        self.dirty.set(true);
    }

    fn is_full(&self) -> bool {
        self.in_flight.borrow().len() >= MAX_IN_FLIGHT
            || self.out.borrow().own_bytes() > MAX_BACKLOG
    }

    /// The buffer of the current payload, when at least `min` bytes of it are missing. Until it
    /// is given back no bytes may be fed.
    pub fn take_direct(&self, min: usize) -> Option<Direct> {
        let state = &mut self.receiver.borrow_mut().state;
        match std::mem::replace(state, State::Header) {
            State::Payload(h, buffer, filled) if buffer.len() - filled >= min => {
                *state = State::Lent(h);
                Some(Direct { buffer, filled })
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Gives the buffer back with `received` more bytes in it. The payload may be complete:
    /// [`Session::poll_receive`] comes next, with whatever input there is.
    pub fn give_direct(&self, direct: Direct, received: usize) {
        self.consumed.set(self.consumed.get() + received as u64);
        let state = &mut self.receiver.borrow_mut().state;
        // A session closed meanwhile has no use for it.
        if let State::Lent(h) = *state {
            let filled = direct.filled + received;
            *state = State::Payload(h, direct.buffer, filled);
        }
    }

    /// Whether a request has begun that the client has not finished sending, though we would take
    /// it: the mark of a stuck peer, if [`Session::consumed`] stands still.
    pub fn awaits_peer(&self) -> bool {
        let rx = self.receiver.borrow();
        match rx.state {
            State::Header => rx.have > 0,
            State::Memory(_) | State::Over => false,
            _ => true,
        }
    }

    pub fn consumed(&self) -> u64 {
        self.consumed.get()
    }

    /// Swaps the output into `batch`, which must be empty. `Ready(false)`: nothing more will
    /// come, everything is answered.
    pub fn poll_output(&self, batch: &mut Batch, waker: &Waker) -> Poll<bool> {
        debug_assert!(batch.is_empty());
        if !self.out.borrow().is_empty() {
            std::mem::swap(&mut *self.out.borrow_mut(), batch);
            self.wake_stalled();
            return Poll::Ready(true);
        }
        if self.closed.get() || self.ended.get() && self.in_flight.borrow().is_empty() {
            return Poll::Ready(false);
        }
        self.sender.set(Some(waker.clone()));
        Poll::Pending
    }

    /// Empties a batch that was sent, which frees the request memory in it.
    pub fn sent(&self, batch: &mut Batch) {
        batch.clear();
        self.arena.freed();
    }

    /// No more input comes. What is in flight is still answered.
    pub fn end(&self) {
        self.ended.set(true);
        self.dirty.set(true);
    }

    /// Refuses further requests; what is in flight is still answered.
    pub fn drain(&self) {
        self.draining.set(true);
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.borrow().len()
    }

    /// The connection is gone: forget output and input. Completions still due are swallowed.
    pub fn close(&self) {
        self.closed.set(true);
        self.out.borrow_mut().clear();
        let ticket = {
            let mut rx = self.receiver.borrow_mut();
            rx.state = State::Over;
            rx.ticket.take()
        };
        if let Some(ticket) = ticket {
            self.arena.forget(ticket);
        }
        self.arena.freed();
        self.wake_stalled();
        self.end();
    }

    /// Wakes the sending end if there is something for it. Called at the end of a turn, so that
    /// what completes in one turn leaves in one send.
    pub fn flush(&self) {
        if self.dirty.replace(false)
            && let Some(waker) = self.sender.take()
        {
            waker.wake();
        }
    }

    fn wake_stalled(&self) {
        if let Some(waker) = self.stalled.take() {
            waker.wake();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A connection that is dropped rather than ended leaves the queue for memory, too.
        if let Some(ticket) = self.receiver.get_mut().ticket.take() {
            self.arena.forget(ticket);
        }
        *self.out.get_mut() = Batch::default();
        self.receiver.get_mut().state = State::Over;
        self.arena.freed();
    }
}

impl Receiver {
    /// The next `size` bytes of input, gathered when they come in parts.
    fn collect(&mut self, input: &mut &[u8], size: usize) -> Option<[u8; EXTENDED_REQUEST_SIZE]> {
        let n = (size - self.have).min(input.len());
        self.partial[self.have..self.have + n].copy_from_slice(&input[..n]);
        *input = &input[n..];
        self.have += n;
        if self.have < size {
            return None;
        }
        self.have = 0;
        Some(self.partial)
    }
}

impl Completion for Session {
    fn done(&self, token: Token, result: Result<Reply, Errno>) {
        let Some(h) = self.in_flight.borrow_mut().try_remove(token.0 as usize) else {
            debug_assert!(false, "a request completed twice");
            return;
        };
        let list = if self.closed.get() {
            None
        } else {
            self.answer(&h, result)
        };
        if let Some(list) = list {
            self.lists.borrow_mut().push(list);
        }
        self.dirty.set(true);
        self.wake_stalled();
        self.arena.freed();
    }
}

impl Session {
    /// Encodes the reply; returns the extent list for the next one.
    fn answer(&self, h: &Header, result: Result<Reply, Errno>) -> Option<Vec<Extent>> {
        let mut out = self.out.borrow_mut();
        match result {
            Ok(Reply::Done) => out.success(self.style, h),
            Ok(Reply::Read(read)) => out.data(self.style, h, read),
            Ok(Reply::Extents(mut extents)) => {
                if extents.as_slice().is_empty() {
                    // To call everything data is always true.
                    extents.push(h.len, Allocation::Data);
                }
                out.extents(self.style, h, &extents);
                return Some(extents.into_vec());
            }
            Err(errno) => {
                let mut error = NbdError::from_errno(errno.0);
                if error == NbdError::NotSup && !h.has(cmd::FLAG_FAST_ZERO) {
                    // Reserved for fast zeroes that would not be fast.
                    error = NbdError::Inval;
                }
                out.failure(self.style, h, error, error.message());
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "transmit_tests.rs"]
mod tests;
