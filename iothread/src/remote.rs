//! The way in from other threads: an inbox and an eventfd that the ring reads.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counters of one ring. Its thread alone writes them, so no read-modify-write is needed; any
/// thread may read.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) turns: Counter,
    pub(crate) enters: Counter,
    pub(crate) sqes: Counter,
    pub(crate) cqes: Counter,
    pub(crate) polls: Counter,
    pub(crate) timers: Counter,
    pub(crate) starved: Counter,
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a ring has done since it was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Turns of the loop.
    pub turns: u64,
    /// `io_uring_enter` calls: the loop's only system calls.
    pub enters: u64,
    /// Operations submitted.
    pub sqes: u64,
    /// Completions taken.
    pub cqes: u64,
    /// Polls of spawned tasks.
    pub polls: u64,
    /// Timers that fired.
    pub timers: u64,
    /// Times a receive found no free buffer.
    pub starved: u64,
}

impl Counters {
    pub(crate) fn read(&self) -> Stats {
        Stats {
            turns: self.turns.get(),
            enters: self.enters.get(),
            sqes: self.sqes.get(),
            cqes: self.cqes.get(),
            polls: self.polls.get(),
            timers: self.timers.get(),
            starved: self.starved.get(),
        }
    }
}

pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) woken: Vec<u32>,
    pub(crate) jobs: Vec<Job>,
    closed: bool,
}

/// The part of a runtime that other threads may touch.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    /// The eventfd was written and the loop has not looked yet.
    kicked: AtomicBool,
    event: OwnedFd,
    pub(crate) counters: Counters,
}

impl Shared {
    pub(crate) fn new() -> io::Result<Shared> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared {
            inbox: Mutex::default(),
            kicked: AtomicBool::new(false),
            // SAFETY: the descriptor is new and nobody else's.
            event: unsafe { OwnedFd::from_raw_fd(fd) },
            counters: Counters::default(),
        })
    }

    pub(crate) fn event_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Nothing under the lock can panic half-way, so a poisoned inbox is still whole.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kick(&self) {
        if self.kicked.swap(true, Ordering::SeqCst) {
            return;
        }
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. It cannot fail or block: one kick is outstanding at most.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub(crate) fn wake_task(&self, index: u32) {
        let mut inbox = self.lock();
        if inbox.closed {
            return;
        }
        inbox.woken.push(index);
        drop(inbox);
        self.kick();
    }

    fn push(&self, job: Job) -> Result<(), Closed> {
        let mut inbox = self.lock();
        if inbox.closed {
            return Err(Closed);
        }
        inbox.jobs.push(job);
        drop(inbox);
        self.kick();
        Ok(())
    }

    /// Swaps the inbox's contents into empty vectors; capacities circulate.
    pub(crate) fn take(&self, woken: &mut Vec<u32>, jobs: &mut Vec<Job>) {
        // Before the lock: what comes after this kicks again.
        self.kicked.store(false, Ordering::SeqCst);
        let mut inbox = self.lock();
        std::mem::swap(&mut inbox.woken, woken);
        std::mem::swap(&mut inbox.jobs, jobs);
    }

    /// Refuses everything from now on, and returns what was waiting.
    pub(crate) fn close(&self) -> Vec<Job> {
        let mut inbox = self.lock();
        inbox.closed = true;
        inbox.woken.clear();
        std::mem::take(&mut inbox.jobs)
    }
}

/// The runtime that a [`Remote`] leads to is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the iothread has ended")]
pub struct Closed;

/// Reaches a runtime from any thread. Each use may cost a lock and a system call, so it is for
/// control, never for a request.
#[derive(Clone)]
pub struct Remote {
    pub(crate) shared: Arc<Shared>,
}

impl Remote {
    /// Runs `job` on the runtime's thread, where it may [`spawn`](crate::spawn) and open sockets.
    /// Jobs run in the order of these calls.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Closed> {
        self.shared.push(Box::new(job))
    }

    /// Makes the loop turn, end-of-turn hooks included.
    pub fn wake(&self) {
        self.shared.kick();
    }

    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
