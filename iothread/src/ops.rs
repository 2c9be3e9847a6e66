//! Operations in flight, and why nothing the kernel may still touch is ever freed.
//!
//! Everything an operation points the kernel at (buffers, fds, addresses, iovecs) is moved into a
//! block of its own before submission. The [`Op`] future owns the block. Dropped early, it hands
//! the block to the operation's table slot, asks the kernel to cancel, and the block is dropped
//! when the last completion has arrived: never sooner, whatever the caller does.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use io_uring::squeue;

use crate::core::Core;
use crate::ring::Sqe;

const F_BUFFER: u32 = 1;
const F_MORE: u32 = 1 << 1;
const BUFFER_SHIFT: u32 = 16;

/// A completion: what the operation returned, and the ring's flags (`IORING_CQE_F_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cqe {
    pub result: i32,
    pub flags: u32,
}

impl Cqe {
    /// The result as the system call would have given it.
    pub fn check(self) -> io::Result<u32> {
        if self.result < 0 {
            Err(io::Error::from_raw_os_error(-self.result))
        } else {
            Ok(self.result as u32)
        }
    }

    /// Whether the operation will complete again.
    pub fn more(self) -> bool {
        self.flags & F_MORE != 0
    }

    /// The provided buffer that the kernel used up for this completion.
    pub(crate) fn buffer(self) -> Option<u16> {
        (self.flags & F_BUFFER != 0).then_some((self.flags >> BUFFER_SHIFT) as u16)
    }

    pub(crate) fn cancelled() -> Cqe {
        Cqe {
            result: -libc::ECANCELED,
            flags: 0,
        }
    }
}

/// What an operation owns while it is in flight.
pub(crate) trait OpData: 'static {
    /// Takes back what a completion carries (a buffer, an fd) when nobody waits for it any more.
    fn discard(&mut self, _cqe: Cqe) {}
}

/// Resources without type, in the keeping of a table slot.
#[derive(Clone, Copy)]
struct Erased {
    ptr: NonNull<u8>,
    calls: &'static Calls,
}

struct Calls {
    discard: unsafe fn(NonNull<u8>, Cqe),
    drop: unsafe fn(NonNull<u8>),
    layout: Layout,
}

struct CallsOf<T>(std::marker::PhantomData<T>);

impl<T: OpData> CallsOf<T> {
    const CALLS: Calls = Calls {
        discard: discard::<T>,
        drop: drop_data::<T>,
        layout: Layout::new::<T>(),
    };
}

/// # Safety
/// `p` holds a live T, and the caller is its only owner.
unsafe fn discard<T: OpData>(p: NonNull<u8>, cqe: Cqe) {
    // SAFETY: promised by the caller.
    unsafe { p.cast::<T>().as_mut() }.discard(cqe);
}

/// # Safety
/// As for `discard`; the T is gone afterwards.
unsafe fn drop_data<T: OpData>(p: NonNull<u8>) {
    // SAFETY: promised by the caller.
    unsafe { p.cast::<T>().drop_in_place() };
}

enum Life {
    Free { next: u32 },
    Live,
    Orphan(Erased),
}

struct Slot {
    generation: u32,
    life: Life,
    /// Nothing is in flight: the last completion has arrived, or nothing was submitted yet.
    finished: bool,
    cancel_sent: bool,
    /// Completions that may queue up before a multishot operation is stopped; 0 is no limit.
    limit: u32,
    waker: Option<Waker>,
    /// Kept when the slot is reused, so that a steady state allocates nothing.
    queue: VecDeque<Cqe>,
}

const NONE: u32 = u32::MAX;
const GENERATION: u32 = 0x7fff_ffff;

/// All operations of a ring, by the index that travels in `user_data`.
pub(crate) struct OpTable {
    slots: Vec<Slot>,
    free: u32,
    /// Operations whose last completion is outstanding.
    pub(crate) in_flight: usize,
}

/// What is left to do once the table's borrow is released.
enum After {
    Nothing,
    Wake(Waker),
    Cancel(u64, Option<Waker>),
    Discard(Erased, Cqe, bool),
}

impl OpTable {
    pub(crate) fn new() -> OpTable {
        OpTable {
            slots: Vec::with_capacity(256),
            free: NONE,
            in_flight: 0,
        }
    }

    fn insert(&mut self, limit: u32) -> u32 {
        let key = if self.free == NONE {
            self.slots.push(Slot {
                generation: 0,
                life: Life::Live,
                finished: true,
                cancel_sent: false,
                limit,
                waker: None,
                queue: VecDeque::with_capacity(4),
            });
            (self.slots.len() - 1) as u32
        } else {
            let key = self.free;
            let slot = &mut self.slots[key as usize];
            let Life::Free { next } = slot.life else {
                unreachable!("the free list holds free slots");
            };
            self.free = next;
            slot.life = Life::Live;
            slot.finished = true;
            slot.cancel_sent = false;
            slot.limit = limit;
            key
        };
        debug_assert!(self.slots[key as usize].queue.is_empty());
        key
    }

    fn release(&mut self, key: u32) -> Option<Waker> {
        let next = self.free;
        let slot = &mut self.slots[key as usize];
        slot.life = Life::Free { next };
        slot.generation = (slot.generation + 1) & GENERATION;
        slot.queue.clear();
        self.free = key;
        slot.waker.take()
    }

    fn user_data(&self, key: u32) -> u64 {
        (u64::from(self.slots[key as usize].generation) << 32) | u64::from(key)
    }

    /// The `user_data` of everything whose last completion is outstanding.
    pub(crate) fn outstanding(&self) -> Vec<u64> {
        let live = |s: &Slot| !matches!(s.life, Life::Free { .. }) && !s.finished;
        (0..self.slots.len())
            .filter(|&k| live(&self.slots[k]))
            .map(|k| self.user_data(k as u32))
            .collect()
    }
}

/// Delivers a completion to its operation.
pub(crate) fn complete(core: &Core, user_data: u64, cqe: Cqe) {
    let key = user_data as u32;
    let last = !cqe.more();
    let after = {
        let mut ops = core.ops.borrow_mut();
        let Some(slot) = ops.slots.get_mut(key as usize) else {
            debug_assert!(false, "completion for an unknown slot");
            return;
        };
        if slot.generation != (user_data >> 32) as u32 {
            debug_assert!(false, "completion for an operation that is over");
            return;
        }
        match slot.life {
            Life::Free { .. } => unreachable!("a free slot's generation was never handed out"),
            Life::Live => {
                slot.queue.push_back(cqe);
                slot.finished = last;
                let full = slot.limit != 0 && slot.queue.len() >= slot.limit as usize;
                let waker = slot.waker.take();
                if last {
                    ops.in_flight -= 1;
                    waker.map_or(After::Nothing, After::Wake)
                } else if full && !slot.cancel_sent {
                    slot.cancel_sent = true;
                    After::Cancel(user_data, waker)
                } else {
                    waker.map_or(After::Nothing, After::Wake)
                }
            }
            Life::Orphan(erased) => {
                if last {
                    ops.in_flight -= 1;
                    ops.release(key);
                }
                After::Discard(erased, cqe, last)
            }
        }
    };
    match after {
        After::Nothing => {}
        After::Wake(waker) => waker.wake(),
        After::Cancel(user_data, waker) => {
            core.cancel(user_data);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        After::Discard(erased, cqe, last) => {
            // SAFETY: the orphan's block is alive until its last completion, and the slot that
            // owned it was either kept (not last) or just released (last), so it is dropped once.
            unsafe {
                (erased.calls.discard)(erased.ptr, cqe);
                if last {
                    (erased.calls.drop)(erased.ptr);
                    core.blocks
                        .borrow_mut()
                        .give(erased.ptr, erased.calls.layout);
                }
            }
        }
    }
}

/// An operation, from submission to its last completion.
pub(crate) struct Op<T: OpData> {
    core: Rc<Core>,
    key: u32,
    /// The block with the resources; `None` once they were taken out.
    data: Option<NonNull<T>>,
}

impl<T: OpData> Op<T> {
    /// Moves `data` to its place and submits what `build` makes of it.
    ///
    /// # Safety
    /// All memory and fds that the entry names must be owned by `data`, directly or through
    /// pointers that stay valid until `data` is dropped.
    pub(crate) unsafe fn submit(
        core: &Rc<Core>,
        data: T,
        build: impl FnOnce(&mut T) -> squeue::Entry,
    ) -> Op<T> {
        // SAFETY: forwarded.
        unsafe { Op::submit_multi(core, data, 0, |d| Sqe::Plain(build(d))) }
    }

    /// As [`submit`](Op::submit), for an operation that completes many times and is stopped when
    /// `limit` completions wait to be looked at.
    ///
    /// # Safety
    /// As for `submit`.
    pub(crate) unsafe fn submit_multi(
        core: &Rc<Core>,
        data: T,
        limit: u32,
        build: impl FnOnce(&mut T) -> Sqe,
    ) -> Op<T> {
        let block = core
            .blocks
            .borrow_mut()
            .take(Layout::new::<T>())
            .cast::<T>();
        // SAFETY: a fresh block with T's layout.
        unsafe { block.write(data) };
        let key = core.ops.borrow_mut().insert(limit);
        let mut op = Op {
            core: Rc::clone(core),
            key,
            data: Some(block),
        };
        // SAFETY: forwarded.
        unsafe { op.push(build) };
        op
    }

    /// # Safety
    /// As for `submit`. Nothing of this operation may be in flight.
    unsafe fn push(&mut self, build: impl FnOnce(&mut T) -> Sqe) {
        let Some(mut block) = self.data else {
            unreachable!("an operation without data is over");
        };
        // SAFETY: the block holds a live T and nothing is in flight, so we alone refer to it.
        let sqe = build(unsafe { block.as_mut() });
        if self.core.is_closed() {
            let mut ops = self.core.ops.borrow_mut();
            let slot = &mut ops.slots[self.key as usize];
            slot.queue.push_back(Cqe::cancelled());
            slot.finished = true;
            return;
        }
        let user_data = {
            let mut ops = self.core.ops.borrow_mut();
            ops.in_flight += 1;
            let slot = &mut ops.slots[self.key as usize];
            slot.finished = false;
            slot.cancel_sent = false;
            ops.user_data(self.key)
        };
        // SAFETY: the caller promises that T owns what the entry names, and T lives in the block
        // until the last completion: here, in `Drop` and in `complete`.
        unsafe { self.core.push(sqe, user_data) };
    }

    /// Submits again, after the last completion, from the same resources.
    ///
    /// # Safety
    /// As for `submit`.
    pub(crate) unsafe fn resubmit(&mut self, build: impl FnOnce(&mut T) -> squeue::Entry) {
        assert!(self.is_over(), "resubmitted while in flight");
        // SAFETY: forwarded; nothing is in flight.
        unsafe { self.push(|d| Sqe::Plain(build(d))) }
    }

    /// The next completion; `None` after the last one.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cqe>> {
        if let Some(cqe) = self.try_next() {
            return Poll::Ready(Some(cqe));
        }
        if self.is_finished() {
            return Poll::Ready(None);
        }
        self.register(cx);
        Poll::Pending
    }

    /// Wakes the task of `cx` at the next completion.
    pub(crate) fn register(&mut self, cx: &mut Context<'_>) {
        let replaced = {
            let mut ops = self.core.ops.borrow_mut();
            let slot = &mut ops.slots[self.key as usize];
            match &slot.waker {
                Some(old) if old.will_wake(cx.waker()) => return,
                _ => slot.waker.take(),
            }
        };
        // Foreign wakers may run code when cloned or dropped: not under the borrow.
        drop(replaced);
        let waker = cx.waker().clone();
        self.core.ops.borrow_mut().slots[self.key as usize].waker = Some(waker);
    }

    /// A completion that has arrived already.
    pub(crate) fn try_next(&mut self) -> Option<Cqe> {
        self.core.ops.borrow_mut().slots[self.key as usize]
            .queue
            .pop_front()
    }

    /// Whether the last completion has arrived and all were taken.
    pub(crate) fn is_over(&self) -> bool {
        let ops = self.core.ops.borrow();
        let slot = &ops.slots[self.key as usize];
        slot.finished && slot.queue.is_empty()
    }

    /// Whether the last completion has arrived, looked at or not.
    pub(crate) fn is_finished(&self) -> bool {
        self.core.ops.borrow().slots[self.key as usize].finished
    }

    /// Asks the kernel to end it; completions still arrive.
    pub(crate) fn cancel(&mut self) {
        let user_data = {
            let mut ops = self.core.ops.borrow_mut();
            let slot = &mut ops.slots[self.key as usize];
            if slot.finished || slot.cancel_sent {
                return;
            }
            slot.cancel_sent = true;
            ops.user_data(self.key)
        };
        self.core.cancel(user_data);
    }

    /// The resources, between completions that end one submission and the next.
    pub(crate) fn data(&mut self) -> &mut T {
        assert!(self.is_over(), "resources touched while in flight");
        let Some(mut block) = self.data else {
            unreachable!("an operation without data is over");
        };
        // SAFETY: the kernel is done with it, and `&mut self` makes us its only user.
        unsafe { block.as_mut() }
    }

    /// Ends the operation and gives the resources back.
    pub(crate) fn into_data(mut self) -> T {
        assert!(self.is_over(), "resources taken while in flight");
        let Some(block) = self.data.take() else {
            unreachable!("an operation without data is over");
        };
        // SAFETY: the block holds a live T, which moves out here; the block is then empty.
        let data = unsafe { block.read() };
        // SAFETY: allocated in `submit_multi` with this layout, emptied above.
        unsafe {
            self.core
                .blocks
                .borrow_mut()
                .give(block.cast(), Layout::new::<T>());
        }
        let waker = self.core.ops.borrow_mut().release(self.key);
        drop(waker);
        data
    }

    /// Waits for the only completion of this submission.
    pub(crate) async fn done(&mut self) -> Cqe {
        std::future::poll_fn(|cx| self.poll_next(cx))
            .await
            .expect("polled once per submission")
    }
}

impl<T: OpData> Drop for Op<T> {
    fn drop(&mut self) {
        let Some(mut block) = self.data.take() else {
            return;
        };
        let key = self.key;
        // Completions that arrived and were not looked at. One at a time: `discard` may run
        // code that needs the table.
        while let Some(cqe) = self.try_next() {
            // SAFETY: resources are alive; discarding touches what the completion handed over,
            // not memory the kernel may still write.
            unsafe { block.as_mut().discard(cqe) };
        }
        if self.is_finished() {
            let waker = self.core.ops.borrow_mut().release(key);
            drop(waker);
            // SAFETY: the last completion has arrived; nobody else refers to the block.
            unsafe {
                block.drop_in_place();
                self.core
                    .blocks
                    .borrow_mut()
                    .give(block.cast(), Layout::new::<T>());
            }
            return;
        }
        self.cancel();
        let waker = {
            let mut ops = self.core.ops.borrow_mut();
            let slot = &mut ops.slots[key as usize];
            slot.life = Life::Orphan(Erased {
                ptr: block.cast(),
                calls: &CallsOf::<T>::CALLS,
            });
            slot.waker.take()
        };
        drop(waker);
    }
}

impl<T: OpData> Future for Op<T> {
    type Output = Cqe;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Cqe> {
        self.poll_next(cx)
            .map(|cqe| cqe.expect("polled once per submission"))
    }
}
