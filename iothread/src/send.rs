//! Sending: a batch of memory pieces leaves in one vectored send.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{opcode, squeue, types};

use crate::core::Core;
use crate::net::Stream;
use crate::ops::{Op, OpData};
use crate::signal::Signal;

/// Bytes to send that stay where they are while the send is in flight.
///
/// # Safety
/// Until the batch is dropped or mutably borrowed, the memory that `iovecs` names must stay
/// valid and unchanged, also when the batch itself is moved.
pub unsafe trait StableBatch: 'static {
    /// Appends the pieces in the order they are to be sent.
    fn iovecs(&self, out: &mut Vec<libc::iovec>);
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

// SAFETY: the elements are on the heap and not touched while the vector is not borrowed.
unsafe impl StableBatch for Vec<u8> {
    fn iovecs(&self, out: &mut Vec<libc::iovec>) {
        out.push(iovec(self));
    }
}

// SAFETY: as above, one level deeper.
unsafe impl StableBatch for Vec<Vec<u8>> {
    fn iovecs(&self, out: &mut Vec<libc::iovec>) {
        out.extend(self.iter().map(|v| iovec(v)));
    }
}

/// `UIO_MAXIOV` (`include/uapi/linux/uio.h`): pieces in one system call.
const MAX_PIECES: usize = 1024;

/// A send of up to this much is expected to fit the socket's buffer and complete while it is
/// submitted.
const PROMPT: usize = 64 << 10;

/// Iovec arrays kept for reuse.
const KEPT: usize = 64;

struct SendData<B> {
    fd: Rc<OwnedFd>,
    batch: B,
    pieces: Vec<libc::iovec>,
    /// The first piece not sent completely.
    next: usize,
    header: libc::msghdr,
}

impl<B: 'static> OpData for SendData<B> {}

impl<B> SendData<B> {
    fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let piece = &mut self.pieces[self.next];
            if n < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(n);
                piece.iov_len -= n;
                return;
            }
            n -= piece.iov_len;
            self.next += 1;
        }
    }

    fn entry(&mut self) -> squeue::Entry {
        let rest = &mut self.pieces[self.next..];
        self.header.msg_iov = rest.as_mut_ptr();
        self.header.msg_iovlen = rest.len().min(MAX_PIECES) as _;
        // The kernel repeats a short send of its own accord where it knows MSG_WAITALL for
        // sends (6.0); the loop below does it elsewhere.
        opcode::SendMsg::new(types::Fd(self.fd.as_raw_fd()), &raw const self.header)
            .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
            .build()
    }
}

/// Sends all of a batch and gives it back. After an error an unknown part was sent.
pub(crate) async fn send_batch<B: StableBatch>(
    core: &Rc<Core>,
    fd: &Rc<OwnedFd>,
    batch: B,
) -> (io::Result<usize>, B) {
    let mut pieces = core.iovecs.borrow_mut().pop().unwrap_or_default();
    pieces.clear();
    batch.iovecs(&mut pieces);
    pieces.retain(|p| p.iov_len > 0);
    let total: usize = pieces.iter().map(|p| p.iov_len).sum();
    if total == 0 {
        keep(core, pieces);
        return (Ok(0), batch);
    }
    if total <= PROMPT {
        core.prompt.set(core.prompt.get() + 1);
    }
    let data = SendData {
        fd: Rc::clone(fd),
        batch,
        pieces,
        next: 0,
        // SAFETY: all-zero is an empty header: null pointers with zero lengths.
        header: unsafe { std::mem::zeroed() },
    };
    // SAFETY: header and pieces live in the data, the bytes by the batch's own promise.
    let mut op = unsafe { Op::submit(core, data, SendData::entry) };
    let mut sent = 0;
    let result = loop {
        match op.done().await.check() {
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                sent += n as usize;
                if sent >= total {
                    break Ok(total);
                }
                op.data().advance(n as usize);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => break Err(e),
        }
        // SAFETY: as above.
        unsafe { op.resubmit(SendData::entry) };
    };
    let data = op.into_data();
    keep(core, data.pieces);
    (result, data.batch)
}

fn keep(core: &Core, mut pieces: Vec<libc::iovec>) {
    pieces.clear();
    let mut kept = core.iovecs.borrow_mut();
    if kept.len() < KEPT {
        kept.push(pieces);
    }
}

/// What the refill of a [`pump`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refill {
    /// The batch holds something to send.
    Send,
    /// Nothing now; ask again when the signal is raised.
    Idle,
    /// Nothing ever again.
    Done,
}

/// Keeps one send in flight on a stream: sends what `refill` puts into the batch, asks again when
/// it is sent, and waits for the signal when there is nothing. What accumulates during a send
/// leaves in the next one. `refill` gets the batch back as it was sent, to be recycled.
pub async fn pump<B: StableBatch>(
    stream: &Stream,
    signal: &Signal,
    mut batch: B,
    mut refill: impl FnMut(&mut B) -> Refill,
) -> io::Result<()> {
    loop {
        match refill(&mut batch) {
            Refill::Send => {
                let (result, back) = stream.send_batch(batch).await;
                batch = back;
                result?;
            }
            Refill::Idle => signal.wait().await,
            Refill::Done => return Ok(()),
        }
    }
}

/// A batch that a [`SendQueue`] can collect into.
pub trait Batch: StableBatch + Default {
    fn is_empty(&self) -> bool;
    /// Empties it; capacity should stay.
    fn clear(&mut self);
}

impl Batch for Vec<u8> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn clear(&mut self) {
        self.clear();
    }
}

#[derive(Default)]
struct Queue<B> {
    collecting: RefCell<B>,
    signal: Signal,
    closed: Cell<bool>,
}

/// Collects into one batch while another is being sent. Clones are the same queue.
pub struct SendQueue<B>(Rc<Queue<B>>);

impl<B> Clone for SendQueue<B> {
    fn clone(&self) -> SendQueue<B> {
        SendQueue(Rc::clone(&self.0))
    }
}

impl<B: Batch> Default for SendQueue<B> {
    fn default() -> SendQueue<B> {
        SendQueue(Rc::default())
    }
}

impl<B: Batch> SendQueue<B> {
    pub fn new() -> SendQueue<B> {
        SendQueue::default()
    }

    /// Adds to what is collected. It is sent after the next [`flush`](SendQueue::flush), or with
    /// what a send in flight leaves behind.
    pub fn with<R>(&self, add: impl FnOnce(&mut B) -> R) -> R {
        add(&mut self.0.collecting.borrow_mut())
    }

    /// Has the collected bytes sent: call it once per turn, from a hook.
    pub fn flush(&self) {
        if self.0.closed.get() || !self.0.collecting.borrow().is_empty() {
            self.0.signal.raise();
        }
    }

    /// Lets [`run`](SendQueue::run) end once all is sent.
    pub fn close(&self) {
        self.0.closed.set(true);
        self.0.signal.raise();
    }

    /// Does the sending, until closed or failed.
    pub async fn run(&self, stream: &Stream) -> io::Result<()> {
        let queue = &self.0;
        pump(stream, &queue.signal, B::default(), |batch| {
            batch.clear();
            let mut collecting = queue.collecting.borrow_mut();
            std::mem::swap(&mut *collecting, batch);
            match (batch.is_empty(), queue.closed.get()) {
                (false, _) => Refill::Send,
                (true, true) => Refill::Done,
                (true, false) => Refill::Idle,
            }
        })
        .await
    }
}
