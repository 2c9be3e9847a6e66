//! Buffers allocated before the first request: page-aligned, optionally locked in memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::buf::{IoBuf, IoBufMut};
use crate::memory::{PAGE, Region};

/// How to build a [`BufPool`].
#[derive(Debug, Clone, Copy)]
pub struct BufPoolConfig {
    /// Size of one buffer, rounded up to whole pages.
    pub buf_size: usize,
    pub count: usize,
    /// Keep the buffers in memory; refusal is an error.
    pub lock: bool,
    /// Ask for huge pages. A hint.
    pub huge_pages: bool,
}

struct Pool {
    region: Region,
    size: usize,
    count: usize,
    free: RefCell<Vec<u32>>,
    /// Who waits for a buffer, first come first served.
    waiting: RefCell<VecDeque<(u64, Option<Waker>)>>,
    next_ticket: Cell<u64>,
}

/// A fixed set of equal buffers. Cloning gives another handle to the same set.
#[derive(Clone)]
pub struct BufPool {
    pool: Rc<Pool>,
}

impl BufPool {
    pub fn new(config: BufPoolConfig) -> io::Result<BufPool> {
        let size = config.buf_size.max(1).next_multiple_of(PAGE);
        let count = u32::try_from(config.count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let len = size
            .checked_mul(config.count)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let region = Region::new(len, config.huge_pages)?;
        if config.lock {
            region.lock()?;
        }
        Ok(BufPool {
            pool: Rc::new(Pool {
                region,
                size,
                count: config.count,
                free: RefCell::new((0..count).rev().collect()),
                waiting: RefCell::default(),
                next_ticket: Cell::new(0),
            }),
        })
    }

    /// A buffer, if one is free that nobody waits for.
    pub fn try_get(&self) -> Option<PoolBuf> {
        if !self.pool.waiting.borrow().is_empty() {
            return None;
        }
        self.pop()
    }

    fn pop(&self) -> Option<PoolBuf> {
        let index = self.pool.free.borrow_mut().pop()?;
        Some(PoolBuf {
            pool: Rc::clone(&self.pool),
            index,
            len: self.pool.size,
        })
    }

    /// Waits for a buffer; waiters are served in order.
    pub fn get(&self) -> Get {
        Get {
            pool: self.clone(),
            ticket: None,
        }
    }

    pub fn buf_size(&self) -> usize {
        self.pool.size
    }

    pub fn count(&self) -> usize {
        self.pool.count
    }

    pub fn free(&self) -> usize {
        self.pool.free.borrow().len()
    }
}

impl Pool {
    /// Wakes whoever is first in line, if there is something to have.
    fn wake_first(&self) {
        if self.free.borrow().is_empty() {
            return;
        }
        let waker = match self.waiting.borrow_mut().front_mut() {
            Some((_, waker)) => waker.take(),
            None => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The future of [`BufPool::get`].
pub struct Get {
    pool: BufPool,
    ticket: Option<u64>,
}

impl Get {
    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let left = {
            let mut waiting = self.pool.pool.waiting.borrow_mut();
            let place = waiting.iter().position(|w| w.0 == ticket);
            place.and_then(|place| waiting.remove(place))
        };
        drop(left);
        // A wake that was meant for us goes on to the next in line.
        self.pool.pool.wake_first();
    }
}

impl Future for Get {
    type Output = PoolBuf;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PoolBuf> {
        let pool = Rc::clone(&self.pool.pool);
        let first = match (self.ticket, pool.waiting.borrow().front()) {
            (_, None) => true,
            (Some(ticket), Some(front)) => front.0 == ticket,
            (None, Some(_)) => false,
        };
        if first && let Some(buf) = self.pool.pop() {
            self.leave();
            return Poll::Ready(buf);
        }
        let waker = Some(cx.waker().clone());
        let old = match self.ticket {
            Some(ticket) => {
                let mut waiting = pool.waiting.borrow_mut();
                let entry = waiting.iter_mut().find(|w| w.0 == ticket);
                entry.and_then(|e| std::mem::replace(&mut e.1, waker))
            }
            None => {
                let ticket = pool.next_ticket.get();
                pool.next_ticket.set(ticket + 1);
                self.ticket = Some(ticket);
                pool.waiting.borrow_mut().push_back((ticket, waker));
                None
            }
        };
        drop(old);
        Poll::Pending
    }
}

impl Drop for Get {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A buffer of a [`BufPool`]; it goes back when dropped. The bytes are what the last user left.
pub struct PoolBuf {
    pool: Rc<Pool>,
    index: u32,
    len: usize,
}

impl PoolBuf {
    pub fn capacity(&self) -> usize {
        self.pool.size
    }

    /// Shows only the first `len` bytes, or more again. Panics beyond the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.pool.size);
        self.len = len;
    }

    fn ptr(&self) -> std::ptr::NonNull<u8> {
        self.pool.region.at(self.index as usize * self.pool.size)
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the region, initialised from the start, and ours alone while we hold it.
        unsafe { std::slice::from_raw_parts(self.ptr().as_ptr(), self.len) }
    }
}

impl DerefMut for PoolBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.ptr().as_ptr(), self.len) }
    }
}

// SAFETY: the buffer is in the pool's region, wherever the guard is.
unsafe impl IoBuf for PoolBuf {
    fn as_slice(&self) -> &[u8] {
        self
    }
}

// SAFETY: a buffer has one guard at a time.
unsafe impl IoBufMut for PoolBuf {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().push(self.index);
        self.pool.wake_first();
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuf({} of {} bytes)", self.len, self.pool.size)
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, count) = (self.free(), self.count());
        write!(f, "BufPool({free} of {count} free)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: usize) -> BufPool {
        BufPool::new(BufPoolConfig {
            buf_size: 5000,
            count,
            lock: false,
            huge_pages: false,
        })
        .unwrap()
    }

    fn poll(get: &mut Get) -> Poll<PoolBuf> {
        Pin::new(get).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn buffers_are_distinct_and_come_back() {
        let pool = pool(3);
        assert_eq!(pool.buf_size(), 8192);
        let mut all: Vec<_> = std::iter::from_fn(|| pool.try_get()).collect();
        assert_eq!(all.len(), 3);
        for (i, buf) in all.iter_mut().enumerate() {
            assert_eq!(buf.as_ptr() as usize % PAGE, 0);
            buf.fill(i as u8);
        }
        for (i, buf) in all.iter().enumerate() {
            assert!(buf.iter().all(|&b| b == i as u8));
        }
        assert!(pool.try_get().is_none());
        all.pop();
        assert_eq!(pool.free(), 1);
        assert!(pool.try_get().is_some());
    }

    #[test]
    fn waiters_are_served_in_order_and_may_leave() {
        let pool = pool(1);
        let held = pool.try_get().unwrap();
        let (mut a, mut b, mut c) = (pool.get(), pool.get(), pool.get());
        assert!(poll(&mut a).is_pending());
        assert!(poll(&mut b).is_pending());
        assert!(poll(&mut c).is_pending());
        drop(held);
        assert!(pool.try_get().is_none(), "no overtaking");
        assert!(poll(&mut b).is_pending(), "not b's turn");
        drop(a);
        let Poll::Ready(buf) = poll(&mut b) else {
            panic!("b is first now");
        };
        drop(b);
        assert!(poll(&mut c).is_pending());
        drop(buf);
        assert!(poll(&mut c).is_ready());
        drop(c);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn a_wake_lost_by_its_receiver_reaches_the_next() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let pool = pool(1);
        let held = pool.try_get().unwrap();
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&woken));
        let (mut a, mut b) = (pool.get(), pool.get());
        assert!(poll(&mut a).is_pending());
        assert!(
            Pin::new(&mut b)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        drop(held);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        drop(a);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(poll(&mut b).is_ready());
    }
}
