//! Prepared submissions of other rooms: single ones that are awaited, and sets of long-lived
//! commands that are told apart by a tag instead of a future each.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use io_uring::squeue;

use crate::core::{COMMAND, Core, current};
use crate::ops::{Cqe, Op, OpData};
use crate::ring::Sqe;

struct Raw<T>(T);

impl<T: 'static> OpData for Raw<T> {}

/// Submits a prepared entry and awaits its completion. `resources` come back with it; when the
/// future is dropped instead, they live until the kernel is done. For an entry that completes
/// more than once, this gives the first completion and cancels the rest.
///
/// # Safety
/// The memory and descriptors that `entry` names must be valid for any use the kernel makes of
/// them until its last completion. Those owned by `resources` are, if moving `resources` does not
/// move them.
pub async unsafe fn submit_raw<T: 'static>(entry: squeue::Entry, resources: T) -> (Cqe, Option<T>) {
    // SAFETY: forwarded to our caller.
    unsafe { submit(Sqe::Plain(entry), resources).await }
}

/// As [`submit_raw`], for a 128-byte entry; the ring must have
/// [`wide_sqe`](crate::Config::wide_sqe), else it fails with `EINVAL`.
///
/// # Safety
/// As for [`submit_raw`].
pub async unsafe fn submit_raw128<T: 'static>(
    entry: squeue::Entry128,
    resources: T,
) -> (Cqe, Option<T>) {
    if !current().wide {
        let refused = Cqe {
            result: -libc::EINVAL,
            flags: 0,
        };
        return (refused, Some(resources));
    }
    // SAFETY: forwarded to our caller.
    unsafe { submit(Sqe::Wide(entry), resources).await }
}

/// # Safety
/// As for [`submit_raw`].
async unsafe fn submit<T: 'static>(sqe: Sqe, resources: T) -> (Cqe, Option<T>) {
    // SAFETY: our caller promises it.
    let mut op = unsafe { Op::submit_multi(&current(), Raw(resources), 0, |_| sqe) };
    let cqe = op.done().await;
    if op.is_over() {
        (cqe, Some(op.into_data().0))
    } else {
        (cqe, None)
    }
}

/// Receives the completions of a [`Commands`] set. It runs inside the loop's drain: note the
/// result and wake someone, no more.
pub trait CommandSink: 'static {
    fn complete(&self, tag: u32, cqe: Cqe);
}

struct Entry {
    /// Owns what the commands point to, so it stays until the last of them has completed.
    sink: Rc<dyn CommandSink>,
    in_flight: usize,
    /// The set was dropped.
    orphan: bool,
}

/// All command sets of a ring. Their number is bounded by the disks it serves.
#[derive(Default)]
pub(crate) struct Sinks(Vec<Option<Entry>>);

impl Sinks {
    pub(crate) fn in_flight(&self) -> usize {
        self.0.iter().flatten().map(|e| e.in_flight).sum()
    }

    pub(crate) fn complete(core: &Core, user_data: u64, cqe: Cqe) {
        let index = ((user_data & !COMMAND) >> 32) as usize;
        let (sink, dead) = {
            let mut sinks = core.sinks.borrow_mut();
            let Some(slot) = sinks.0.get_mut(index) else {
                debug_assert!(false, "completion for an unknown command set");
                return;
            };
            let Some(entry) = slot else {
                debug_assert!(false, "completion for a command set that is over");
                return;
            };
            let sink = Rc::clone(&entry.sink);
            if !cqe.more() {
                entry.in_flight -= 1;
            }
            let over = entry.orphan && entry.in_flight == 0;
            (sink, if over { slot.take() } else { None })
        };
        sink.complete(user_data as u32, cqe);
        drop(dead);
    }
}

/// A set of commands that complete into one sink, each under a tag of the caller's choice: for
/// front ends that keep hundreds in flight and submit each again when it completes.
pub struct Commands {
    core: Rc<Core>,
    index: u32,
    pushed: Cell<u64>,
}

impl Commands {
    pub fn new(sink: Rc<dyn CommandSink>) -> Commands {
        let core = current();
        let entry = Entry {
            sink,
            in_flight: 0,
            orphan: false,
        };
        let index = {
            let mut sinks = core.sinks.borrow_mut();
            match sinks.0.iter().position(Option::is_none) {
                Some(free) => {
                    sinks.0[free] = Some(entry);
                    free
                }
                None => {
                    sinks.0.push(Some(entry));
                    sinks.0.len() - 1
                }
            }
        };
        Commands {
            core,
            index: index as u32,
            pushed: Cell::new(0),
        }
    }

    fn user_data(&self, tag: u32) -> u64 {
        COMMAND | (u64::from(self.index) << 32) | u64::from(tag)
    }

    /// Queues a command for submission at the end of the turn. Fails only after shutdown.
    ///
    /// # Safety
    /// The memory and descriptors that `entry` names must be valid until its last completion. The
    /// sink lives that long, also if this set is dropped; what it owns and does not move is safe.
    pub unsafe fn push(&self, entry: squeue::Entry, tag: u32) -> io::Result<()> {
        // SAFETY: forwarded.
        unsafe { self.submit(Sqe::Plain(entry), tag) }
    }

    /// As [`push`](Commands::push), for a 128-byte entry on a ring with
    /// [`wide_sqe`](crate::Config::wide_sqe).
    ///
    /// # Safety
    /// As for `push`.
    pub unsafe fn push128(&self, entry: squeue::Entry128, tag: u32) -> io::Result<()> {
        if !self.core.wide {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: forwarded.
        unsafe { self.submit(Sqe::Wide(entry), tag) }
    }

    /// # Safety
    /// As for `push`.
    unsafe fn submit(&self, sqe: Sqe, tag: u32) -> io::Result<()> {
        if self.core.is_closed() {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        if let Some(Some(entry)) = self.core.sinks.borrow_mut().0.get_mut(self.index as usize) {
            entry.in_flight += 1;
        }
        self.pushed.set(self.pushed.get() + 1);
        // SAFETY: the caller's promise, and the sink is kept in the table until the last
        // completion.
        unsafe { self.core.push(sqe, self.user_data(tag)) };
        Ok(())
    }

    /// Asks the kernel to end the command under `tag`; it then completes, usually with
    /// `ECANCELED`.
    pub fn cancel(&self, tag: u32) {
        self.core.cancel(self.user_data(tag));
    }

    pub fn in_flight(&self) -> usize {
        match self.core.sinks.borrow().0.get(self.index as usize) {
            Some(Some(entry)) => entry.in_flight,
            _ => 0,
        }
    }

    /// How many commands were ever pushed.
    pub fn pushed(&self) -> u64 {
        self.pushed.get()
    }
}

impl Drop for Commands {
    /// The sink stays until all commands have completed; cancel them to hurry that.
    fn drop(&mut self) {
        let dead = {
            let mut sinks = self.core.sinks.borrow_mut();
            match sinks.0.get_mut(self.index as usize) {
                Some(slot) => match slot {
                    Some(entry) if entry.in_flight > 0 => {
                        entry.orphan = true;
                        None
                    }
                    _ => slot.take(),
                },
                // After shutdown.
                None => None,
            }
        };
        drop(dead);
    }
}
