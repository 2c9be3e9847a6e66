//! Request memory: one mapping per disk, cut in powers of two.
//!
//! All of it is mapped before the first request, so no request waits for memory that only the
//! disk could free. Its size is the bound on bytes in flight: when it is used up, a front end stops reading
//! its clients until a request completes. Requests from one page to 32 MiB share it (a buddy
//! allocator: Knuth, The Art of Computer Programming, vol. 1, 2.5).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Poll, Waker};

use cluster::payload::{Memory, Payload};

/// The smallest piece, and the alignment of all.
const PAGE: usize = 4096;
/// The largest piece: 4 KiB << 13 = 32 MiB.
const ORDERS: usize = 14;
pub const MAX_BUFFER: usize = PAGE << (ORDERS - 1);

struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> std::io::Result<Mapping> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choosing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap returned the null page");
        Ok(Mapping { base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; the slots that point into it held it alive.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A handle on one piece. There are as many as requests may be in flight; they are made once.
///
/// Invariant: while a [`Buffer`] of the slot exists, its arena's clone and the buffer's are the
/// only ones, so no [`Payload`] reads what the buffer writes.
struct Slot {
    mapping: Rc<Mapping>,
    start: Cell<usize>,
    order: Cell<usize>,
}

impl Slot {
    fn ptr(&self) -> NonNull<u8> {
        // SAFETY: `start` is the start of a piece the allocator handed out, inside the mapping.
        unsafe { self.mapping.base.add(self.start.get()) }
    }
}

// SAFETY: the mapping stays where it is, and no `Buffer` that could change the piece exists while a
// payload of it does (the invariant of `Slot`).
unsafe impl Memory for Slot {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the piece lies inside the mapping, which is readable and zeroed by the kernel.
        // `bytes` is only reached through a `Payload` or `Frozen`, and while one of those lives
        // no `Buffer` does, and the arena does not reuse the piece.
        unsafe { std::slice::from_raw_parts(self.ptr().as_ptr(), PAGE << self.order.get()) }
    }
}

/// Memory for one request, owned alone and writable.
pub struct Buffer {
    slot: Rc<Slot>,
    len: usize,
}

impl Buffer {
    /// Changes the length, within the piece that the buffer has.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= PAGE << self.slot.order.get());
        self.len = len;
    }

    /// Ends writing: the bytes may now be shared.
    pub fn freeze(self) -> Frozen {
        Frozen {
            slot: self.slot,
            len: self.len,
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`, for reading.
        unsafe { std::slice::from_raw_parts(self.slot.ptr().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` is within the piece, the piece within the mapping, and this buffer is the
        // only access to the piece while it exists (the invariant of `Slot`).
        unsafe { std::slice::from_raw_parts_mut(self.slot.ptr().as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// A buffer whose bytes are shared and no longer change.
pub struct Frozen {
    slot: Rc<Slot>,
    len: usize,
}

impl Frozen {
    pub fn payload(&self, range: Range<usize>) -> Payload {
        assert!(range.end <= self.len);
        let slot: Rc<dyn Memory> = Rc::<Slot>::clone(&self.slot);
        Payload::new(slot, range)
    }

    pub fn into_payload(self) -> Payload {
        let len = self.len;
        Payload::new(self.slot, 0..len)
    }

    /// Writable again, once every payload is gone. For front ends whose buffers belong to a tag.
    pub fn thaw(self) -> Result<Buffer, Frozen> {
        // One count is ours, one the arena's.
        if Rc::strong_count(&self.slot) > 2 {
            return Err(self);
        }
        Ok(Buffer {
            slot: self.slot,
            len: self.len,
        })
    }
}

impl std::fmt::Debug for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frozen({} bytes)", self.len)
    }
}

/// A place in the queue for memory. Give it back with [`Arena::forget`] when no longer wanted.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(u64);

pub struct Arena {
    inner: RefCell<Inner>,
    mapping: Rc<Mapping>,
    largest: usize,
}

struct Inner {
    buddies: Buddies,
    idle: Vec<Rc<Slot>>,
    /// Handed out, oldest first. A slot whose only owner is this list is free again.
    lent: VecDeque<Rc<Slot>>,
    /// Who waits, first come first served: a large request is not starved by small ones.
    waiting: VecDeque<(u64, Waker)>,
    next_ticket: u64,
}

impl Arena {
    /// Brings all of it into memory and keeps it there. Needs `CAP_IPC_LOCK` or a large enough
    /// `RLIMIT_MEMLOCK`.
    pub fn lock(&self) -> std::io::Result<()> {
        let mapping = &self.mapping;
        // SAFETY: the range is the mapping, which neither call changes the contents of.
        let (locked, error) = unsafe {
            let locked = libc::mlock(mapping.base.as_ptr().cast(), mapping.len);
            let error = std::io::Error::last_os_error();
            if locked != 0 {
                let advice = libc::MADV_POPULATE_WRITE;
                libc::madvise(mapping.base.as_ptr().cast(), mapping.len, advice);
            }
            (locked, error)
        };
        if locked == 0 { Ok(()) } else { Err(error) }
    }

    /// `len` bytes for up to `requests` buffers. `len` is rounded up to whole [`MAX_BUFFER`]s when
    /// above one, and to a power of two below.
    pub fn new(len: usize, requests: usize) -> std::io::Result<Arena> {
        let len = if len > MAX_BUFFER {
            len.next_multiple_of(MAX_BUFFER)
        } else {
            len.max(PAGE).next_power_of_two()
        };
        let mapping = Rc::new(Mapping::new(len)?);
        let idle: Vec<_> = (0..requests.max(1))
            .map(|_| {
                Rc::new(Slot {
                    mapping: Rc::clone(&mapping),
                    start: Cell::new(0),
                    order: Cell::new(0),
                })
            })
            .collect();
        Ok(Arena {
            mapping,
            largest: len.min(MAX_BUFFER),
            inner: RefCell::new(Inner {
                buddies: Buddies::new(len),
                idle,
                lent: VecDeque::with_capacity(requests.max(1)),
                waiting: VecDeque::new(),
                next_ticket: 0,
            }),
        })
    }

    /// A buffer of `len` bytes, unless there is no room or somebody has been waiting for it.
    /// Its contents are whatever it held before.
    pub fn alloc(&self, len: usize) -> Option<Buffer> {
        let mut inner = self.inner.borrow_mut();
        if inner.waiting.is_empty() {
            inner.take(len)
        } else {
            None
        }
    }

    /// As [`Arena::alloc`], queueing when there is no room; `waker` is called when it is worth
    /// another attempt with the same ticket. More than [`Arena::largest`] never comes.
    pub fn poll_alloc(
        &self,
        len: usize,
        ticket: &mut Option<Ticket>,
        waker: &Waker,
    ) -> Poll<Buffer> {
        let mut inner = self.inner.borrow_mut();
        match ticket {
            None if inner.waiting.is_empty() => {
                if let Some(buffer) = inner.take(len) {
                    return Poll::Ready(buffer);
                }
            }
            Some(Ticket(id)) if inner.waiting.front().is_some_and(|w| w.0 == *id) => {
                if let Some(buffer) = inner.take(len) {
                    *ticket = None;
                    inner.waiting.pop_front();
                    if let Some((_, next)) = inner.waiting.front() {
                        next.wake_by_ref();
                    }
                    return Poll::Ready(buffer);
                }
            }
            _ => {}
        }
        if let Some(Ticket(id)) = ticket {
            if let Some(place) = inner.waiting.iter_mut().find(|w| w.0 == *id) {
                place.1.clone_from(waker);
            }
        } else {
            let id = inner.next_ticket;
            inner.next_ticket += 1;
            inner.waiting.push_back((id, waker.clone()));
            *ticket = Some(Ticket(id));
        }
        Poll::Pending
    }

    /// Leaves the queue.
    pub fn forget(&self, ticket: Ticket) {
        let mut inner = self.inner.borrow_mut();
        inner.waiting.retain(|w| w.0 != ticket.0);
        if let Some((_, next)) = inner.waiting.front() {
            next.wake_by_ref();
        }
    }

    /// The longest buffer that can be had when nothing else is in use.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Says that buffers or payloads were dropped, which the arena cannot see by itself.
    pub fn freed(&self) {
        if let Some((_, next)) = self.inner.borrow().waiting.front() {
            next.wake_by_ref();
        }
    }

    /// Buffers somebody still holds.
    pub fn in_use(&self) -> usize {
        let mut inner = self.inner.borrow_mut();
        inner.sweep();
        inner.lent.len()
    }
}

impl Inner {
    fn take(&mut self, len: usize) -> Option<Buffer> {
        // Requests complete in about the order they came: a look at the oldest keeps the memory
        // in use small and warm without a walk over all.
        for _ in 0..2 {
            match self.lent.front() {
                Some(slot) if Rc::strong_count(slot) == 1 => {
                    let slot = self.lent.pop_front().expect("just seen");
                    self.recycle(slot);
                }
                _ => break,
            }
        }
        let order = order_of(len)?;
        let mut swept = false;
        loop {
            if !self.idle.is_empty()
                && let Some(start) = self.buddies.take(order)
            {
                let slot = self.idle.pop().expect("just seen");
                slot.start.set(start);
                slot.order.set(order);
                self.lent.push_back(Rc::clone(&slot));
                return Some(Buffer { slot, len });
            }
            if std::mem::replace(&mut swept, true) {
                return None;
            }
            self.sweep();
        }
    }

    fn recycle(&mut self, slot: Rc<Slot>) {
        self.buddies.give(slot.start.get(), slot.order.get());
        self.idle.push(slot);
    }

    fn sweep(&mut self) {
        for _ in 0..self.lent.len() {
            let slot = self.lent.pop_front().expect("counted");
            if Rc::strong_count(&slot) == 1 {
                self.recycle(slot);
            } else {
                self.lent.push_back(slot);
            }
        }
    }
}

/// The smallest order that holds `len` bytes.
fn order_of(len: usize) -> Option<usize> {
    let pages = len.max(1).div_ceil(PAGE);
    let order = pages.next_power_of_two().trailing_zeros() as usize;
    (order < ORDERS).then_some(order)
}

/// Free pieces per order, as bitmaps: bit `n` of order `k` stands for the piece at `n * PAGE << k`.
struct Buddies {
    free: [Vec<u64>; ORDERS],
    /// No word below this index has a bit set.
    hint: [usize; ORDERS],
}

impl Buddies {
    fn new(len: usize) -> Buddies {
        let mut buddies = Buddies {
            free: std::array::from_fn(|order| vec![0; (len / (PAGE << order)).div_ceil(64)]),
            hint: [0; ORDERS],
        };
        let top = order_of(len.min(MAX_BUFFER)).expect("bounded by MAX_BUFFER");
        for n in 0..len / (PAGE << top) {
            buddies.set(top, n);
        }
        buddies
    }

    fn set(&mut self, order: usize, n: usize) {
        self.free[order][n / 64] |= 1 << (n % 64);
        self.hint[order] = self.hint[order].min(n / 64);
    }

    /// Clears a bit and says whether it was set.
    fn clear(&mut self, order: usize, n: usize) -> bool {
        let Some(word) = self.free[order].get_mut(n / 64) else {
            return false;
        };
        let was = *word & (1 << (n % 64)) != 0;
        *word &= !(1 << (n % 64));
        was
    }

    fn first(&mut self, order: usize) -> Option<usize> {
        let words = &self.free[order];
        while let Some(&word) = words.get(self.hint[order]) {
            if word != 0 {
                return Some(self.hint[order] * 64 + word.trailing_zeros() as usize);
            }
            self.hint[order] += 1;
        }
        None
    }

    fn take(&mut self, order: usize) -> Option<usize> {
        let (from, mut n) = (order..ORDERS).find_map(|k| self.first(k).map(|n| (k, n)))?;
        self.clear(from, n);
        // Halve until it fits; the upper halves become free pieces of their own.
        for k in (order..from).rev() {
            n *= 2;
            self.set(k, n + 1);
        }
        Some(n * (PAGE << order))
    }

    fn give(&mut self, start: usize, mut order: usize) {
        let mut n = start / (PAGE << order);
        while order + 1 < ORDERS && self.clear(order, n ^ 1) {
            n /= 2;
            order += 1;
        }
        self.set(order, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_memory_comes_back_as_one_piece() {
        let arena = Arena::new(MAX_BUFFER, 64).unwrap();
        let small: Vec<_> = (0..40).map(|n| arena.alloc(n * 3000).unwrap()).collect();
        assert_eq!(arena.in_use(), 40);
        assert!(arena.alloc(MAX_BUFFER).is_none());
        drop(small);
        assert!(arena.alloc(MAX_BUFFER).is_some());
        assert!(arena.alloc(MAX_BUFFER + 1).is_none());
        for len in [1, 5000, 1 << 20, MAX_BUFFER, MAX_BUFFER + 1, 100 << 20] {
            let arena = Arena::new(len, 2).unwrap();
            assert!(arena.largest() >= len.min(MAX_BUFFER));
            assert!(arena.alloc(arena.largest()).is_some());
        }
    }

    #[test]
    fn handles_are_a_bound_of_their_own() {
        let arena = Arena::new(1 << 20, 2).unwrap();
        let a = arena.alloc(1).unwrap();
        let _b = arena.alloc(1).unwrap();
        assert!(arena.alloc(1).is_none());
        drop(a);
        assert!(arena.alloc(1).is_some());
    }

    #[test]
    fn memory_is_not_reused_while_a_payload_lives() {
        let arena = Arena::new(PAGE, 4).unwrap();
        let mut buffer = arena.alloc(PAGE).unwrap();
        buffer.fill(7);
        let payload = buffer.freeze().into_payload();
        assert!(arena.alloc(PAGE).is_none());
        assert!(payload.iter().all(|&b| b == 7));
        drop(payload);
        assert!(arena.alloc(PAGE).is_some());
    }

    #[test]
    fn thawing_waits_for_the_last_payload() {
        let arena = Arena::new(PAGE, 1).unwrap();
        let frozen = arena.alloc(8).unwrap().freeze();
        let payload = frozen.payload(2..4);
        let frozen = frozen.thaw().unwrap_err();
        drop(payload);
        assert_eq!(frozen.thaw().unwrap().len(), 8);
    }

    #[test]
    fn who_waits_is_served_in_order() {
        let arena = Arena::new(4 * PAGE, 4).unwrap();
        let (a, b) = (arena.alloc(PAGE).unwrap(), arena.alloc(PAGE).unwrap());
        let waker = Waker::noop();
        let (mut large, mut small) = (None, None);
        assert!(arena.poll_alloc(4 * PAGE, &mut large, waker).is_pending());
        // There is room for it, but the large one came first.
        assert!(arena.poll_alloc(PAGE, &mut small, waker).is_pending());
        assert!(arena.alloc(PAGE).is_none());
        drop((a, b));
        assert!(arena.poll_alloc(PAGE, &mut small, waker).is_pending());
        let Poll::Ready(got) = arena.poll_alloc(4 * PAGE, &mut large, waker) else {
            panic!("the first in the queue was refused");
        };
        assert!(large.is_none());
        drop(got);
        assert!(arena.poll_alloc(PAGE, &mut small, waker).is_ready());
        assert!(arena.alloc(PAGE).is_some());
    }

    #[test]
    fn leaving_the_queue_lets_the_next_one_through() {
        let arena = Arena::new(2 * PAGE, 4).unwrap();
        let _a = arena.alloc(PAGE).unwrap();
        let mut large = None;
        assert!(
            arena
                .poll_alloc(2 * PAGE, &mut large, Waker::noop())
                .is_pending()
        );
        arena.forget(large.unwrap());
        assert!(arena.alloc(PAGE).is_some());
    }

    proptest! {
        #[test]
        fn live_buffers_never_overlap(steps in proptest::collection::vec((0usize..60_000, any::<u8>(), any::<bool>()), 1..120)) {
            let arena = Arena::new(1 << 20, 32).unwrap();
            let mut live: Vec<(Buffer, u8)> = Vec::new();
            for (len, mark, drop_one) in steps {
                if drop_one && !live.is_empty() {
                    live.swap_remove(len % live.len());
                } else if let Some(mut buffer) = arena.alloc(len) {
                    prop_assert_eq!(buffer.len(), len);
                    buffer.fill(mark);
                    live.push((buffer, mark));
                }
                for (buffer, mark) in &live {
                    prop_assert!(buffer.iter().all(|b| b == mark));
                }
            }
            prop_assert_eq!(arena.in_use(), live.len());
            live.clear();
            prop_assert!(arena.alloc(1 << 20).is_some());
        }
    }
}
