//! What all parts of a runtime share. Every field has its own cell, borrowed for a few lines and
//! never while foreign code (a waker, a destructor, a future) runs.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use io_uring::{opcode, squeue, types};

use crate::command::Sinks;
use crate::config::{Config, Features, SetupError};
use crate::memory::BlockPool;
use crate::ops::{self, Cqe, OpTable};
use crate::recv::BufGroup;
use crate::remote::{Job, Shared};
use crate::ring::{Ring, Sqe, Wait};
use crate::task::{self, TaskTable};
use crate::timer::{Now, Timers};

/// `user_data` of cancel requests: their own result does not matter.
const IGNORE: u64 = u64::MAX - 1;
/// `user_data` of the read on the eventfd.
const WAKE: u64 = u64::MAX;
/// Set in the `user_data` of commands; see [`crate::command`].
pub(crate) const COMMAND: u64 = 1 << 63;

/// How long the wall clock's distance from the monotonic one is trusted.
const WALL_REFRESH: u64 = 1_000_000_000;

pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    /// `None` after shutdown.
    ring: RefCell<Option<Ring>>,
    /// Submissions that found the queue full, in order.
    backlog: RefCell<VecDeque<Sqe>>,
    pub(crate) ops: RefCell<OpTable>,
    pub(crate) sinks: RefCell<Sinks>,
    pub(crate) blocks: RefCell<BlockPool>,
    pub(crate) tasks: RefCell<TaskTable>,
    pub(crate) ready: RefCell<VecDeque<u32>>,
    /// Woken at the start of the next turn.
    pub(crate) deferred: RefCell<Vec<Waker>>,
    pub(crate) timers: RefCell<Timers>,
    hooks: RefCell<Vec<(u64, Option<Hook>)>>,
    next_hook: Cell<u64>,
    now: Cell<Now>,
    wall_read_at: Cell<u64>,
    pub(crate) features: Cell<Features>,
    pub(crate) wide: bool,
    /// The receive buffers; gone after shutdown.
    pub(crate) group: RefCell<Option<Rc<BufGroup>>>,
    pub(crate) iovecs: RefCell<Vec<Vec<libc::iovec>>>,
    /// Submissions since the last enter that should complete inside the next.
    pub(crate) prompt: Cell<u32>,
    send_coalesce: Duration,
    /// Where the eventfd is read to, and whether that read is in flight.
    wake_buf: Box<std::cell::UnsafeCell<u64>>,
    wake_armed: Cell<bool>,
    inbox: Cell<(Vec<u32>, Vec<Job>)>,
    closing: Cell<bool>,
    closed: Cell<bool>,
    pub(crate) running: Cell<bool>,
}

type Hook = Box<dyn FnMut()>;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// Looks at the runtime whose `block_on` runs on this thread.
pub(crate) fn with_current<R>(f: impl FnOnce(Option<&Rc<Core>>) -> R) -> R {
    let mut f = Some(f);
    let found = CURRENT.try_with(|c| f.take().map(|f| f(c.borrow().as_ref())));
    match (found, f) {
        (Ok(Some(r)), _) => r,
        // The thread is ending.
        (_, Some(f)) => f(None),
        _ => unreachable!("taken only where a result was made"),
    }
}

pub(crate) fn current() -> Rc<Core> {
    with_current(|c| c.cloned()).expect("called outside of an iothread runtime")
}

/// Makes a core the current one until dropped.
pub(crate) struct Enter {
    before: Option<Rc<Core>>,
}

impl Enter {
    pub(crate) fn new(core: &Rc<Core>) -> Enter {
        let before = CURRENT.with(|c| c.borrow_mut().replace(Rc::clone(core)));
        Enter { before }
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        let before = self.before.take();
        let left = CURRENT.try_with(|c| std::mem::replace(&mut *c.borrow_mut(), before));
        drop(left);
    }
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is writable; the call cannot fail for the two clocks used here.
    unsafe { libc::clock_gettime(id, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

impl Core {
    pub(crate) fn new(config: &Config) -> Result<Rc<Core>, SetupError> {
        let (ring, mut features) = Ring::new(config)?;
        if config.force_no_multishot {
            features.multishot_recv = false;
            features.multishot_accept = false;
        }
        if config.force_no_pbuf_ring {
            features.pbuf_ring = false;
        }
        let shared = Shared::new().map_err(SetupError::os("create an eventfd"))?;
        let group = BufGroup::new(
            features.pbuf_ring.then_some(&ring),
            config.recv_bufs,
            config.recv_buf_size,
            config.lock_memory,
        )?;
        features.pbuf_ring = group.is_ring();
        // A multishot receive needs a buffer per completion, which only a ring can provide.
        features.multishot_recv &= features.pbuf_ring;
        let core = Rc::new(Core {
            shared: Arc::new(shared),
            wide: ring.is_wide(),
            ring: RefCell::new(Some(ring)),
            backlog: RefCell::default(),
            ops: RefCell::new(OpTable::new()),
            sinks: RefCell::default(),
            blocks: RefCell::default(),
            tasks: TaskTable::new(),
            ready: RefCell::new(VecDeque::with_capacity(256)),
            deferred: RefCell::default(),
            timers: RefCell::default(),
            hooks: RefCell::default(),
            next_hook: Cell::new(0),
            now: Cell::default(),
            wall_read_at: Cell::new(0),
            features: Cell::new(features),
            group: RefCell::new(Some(group)),
            iovecs: RefCell::default(),
            prompt: Cell::new(0),
            send_coalesce: config.send_coalesce,
            wake_buf: Box::default(),
            wake_armed: Cell::new(false),
            inbox: Cell::default(),
            closing: Cell::new(false),
            closed: Cell::new(false),
            running: Cell::new(false),
        });
        core.refresh_clock();
        core.arm_wake();
        Ok(core)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(crate) fn now(&self) -> Now {
        self.now.get()
    }

    pub(crate) fn refresh_clock(&self) {
        let before = self.now.get();
        let mono = clock(libc::CLOCK_MONOTONIC);
        let wall = if before.mono == 0 || mono >= self.wall_read_at.get() + WALL_REFRESH {
            self.wall_read_at.set(mono);
            clock(libc::CLOCK_REALTIME)
        } else {
            before.wall + (mono - before.mono)
        };
        self.now.set(Now { mono, wall });
    }

    // ---- submission ----

    /// Queues a submission under `user_data`.
    ///
    /// # Safety
    /// What the entry points to stays valid until its last completion was dispatched.
    pub(crate) unsafe fn push(&self, mut sqe: Sqe, user_data: u64) {
        match &mut sqe {
            Sqe::Plain(e) => e.set_user_data(user_data),
            Sqe::Wide(e) => squeue::EntryMarker::set_user_data(e, user_data),
        }
        self.shared.counters.sqes.add(1);
        let mut backlog = self.backlog.borrow_mut();
        if !backlog.is_empty() {
            backlog.push_back(sqe);
            return;
        }
        let mut ring = self.ring.borrow_mut();
        let Some(ring) = ring.as_mut() else {
            debug_assert!(false, "submission after shutdown");
            return;
        };
        // SAFETY: the caller's promise; an entry in the backlog is not with the kernel yet.
        let Err(sqe) = (unsafe { ring.push(sqe) }) else {
            return;
        };
        self.shared.counters.enters.add(1);
        // What goes wrong here goes wrong again, and is judged, at the end of the turn.
        let _ = ring.enter(Wait::No);
        self.prompt.set(0);
        // SAFETY: as above.
        if let Err(sqe) = unsafe { ring.push(sqe) } {
            backlog.push_back(sqe);
        }
    }

    /// Asks for the cancellation of what was submitted under `user_data`.
    pub(crate) fn cancel(&self, user_data: u64) {
        if self.ring.borrow().is_none() {
            return;
        }
        let entry = opcode::AsyncCancel::new(user_data).build();
        // SAFETY: a cancel request refers to no memory.
        unsafe { self.push(Sqe::Plain(entry), IGNORE) };
    }

    fn arm_wake(&self) {
        if self.closed.get() || self.wake_armed.replace(true) {
            return;
        }
        let fd = types::Fd(self.shared.event_fd());
        let entry = opcode::Read::new(fd, self.wake_buf.get().cast(), 8).build();
        // SAFETY: buffer and eventfd belong to the core, which reaps this read before it goes,
        // or leaks them when it cannot.
        unsafe { self.push(Sqe::Plain(entry), WAKE) };
    }

    // ---- the turn ----

    /// Completions, timers, the inbox: everything that makes tasks ready.
    pub(crate) fn begin_turn(&self) {
        self.shared.counters.turns.add(1);
        self.refresh_clock();
        let kicked = self.drain();
        if kicked {
            self.arm_wake();
            self.take_inbox();
        }
        self.fire_timers();
        let mut deferred = self.deferred.take();
        for waker in deferred.drain(..) {
            waker.wake();
        }
        // Give the capacity back, unless someone was faster.
        let mut now = self.deferred.borrow_mut();
        if now.is_empty() {
            *now = deferred;
        }
    }

    /// Dispatches completions; true when another thread knocked.
    fn drain(&self) -> bool {
        let mut kicked = false;
        let mut batch = [(0, Cqe::default()); 64];
        // Bounded, since without deferred task work completions may keep coming.
        for _ in 0..64 {
            let n = match self.ring.borrow_mut().as_mut() {
                Some(ring) => ring.take(&mut batch),
                None => 0,
            };
            self.shared.counters.cqes.add(n as u64);
            for &(user_data, cqe) in &batch[..n] {
                match user_data {
                    IGNORE => {}
                    WAKE => {
                        self.wake_armed.set(false);
                        kicked = true;
                    }
                    command if command & COMMAND != 0 => Sinks::complete(self, command, cqe),
                    op => {
                        if cqe.buffer().is_some()
                            && let Some(group) = &*self.group.borrow()
                        {
                            group.claim();
                        }
                        ops::complete(self, op, cqe);
                    }
                }
            }
            if n < batch.len() {
                break;
            }
        }
        kicked
    }

    fn take_inbox(&self) {
        let (mut woken, mut jobs) = self.inbox.take();
        self.shared.take(&mut woken, &mut jobs);
        self.ready.borrow_mut().extend(woken.drain(..));
        for job in jobs.drain(..) {
            job();
        }
        self.inbox.set((woken, jobs));
    }

    fn fire_timers(&self) {
        let now = self.now.get().mono;
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            let Some(waker) = due else { break };
            self.shared.counters.timers.add(1);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    pub(crate) fn pop_ready(&self) -> Option<u32> {
        self.ready.borrow_mut().pop_front()
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    pub(crate) fn add_hook(&self, hook: Hook) -> u64 {
        let id = self.next_hook.get();
        self.next_hook.set(id + 1);
        self.hooks.borrow_mut().push((id, Some(hook)));
        id
    }

    pub(crate) fn remove_hook(&self, id: u64) {
        let hook = {
            let mut hooks = self.hooks.borrow_mut();
            let at = hooks.iter().position(|h| h.0 == id);
            at.map(|at| hooks.remove(at))
        };
        drop(hook);
    }

    /// Runs the end-of-turn hooks. A hook may add and remove hooks, itself included.
    pub(crate) fn run_hooks(&self) {
        let mut at = 0;
        loop {
            let (id, hook) = {
                let mut hooks = self.hooks.borrow_mut();
                match hooks.get_mut(at) {
                    Some((id, hook)) => (*id, hook.take()),
                    None => return,
                }
            };
            at += 1;
            let Some(mut hook) = hook else { continue };
            hook();
            let mut hooks = self.hooks.borrow_mut();
            // Ids grow along the list, so removals before it are found by search.
            match hooks.binary_search_by_key(&id, |h| h.0) {
                Ok(place) => {
                    hooks[place].1 = Some(hook);
                    at = place + 1;
                }
                Err(place) => {
                    at = place;
                    drop(hooks);
                    drop(hook);
                }
            }
        }
    }

    /// Ends the turn: submits, and sleeps if there is nothing to do.
    pub(crate) fn submit(&self, may_sleep: bool) {
        let timeout = if may_sleep && self.deferred.borrow().is_empty() {
            let next = self.timers.borrow().next_deadline();
            let now = self.now.get().mono;
            Some(next.map(|at| Duration::from_nanos(at.saturating_sub(now))))
        } else {
            None
        };
        let mut slot = self.ring.borrow_mut();
        let Some(ring) = slot.as_mut() else { return };
        let mut backlog = self.backlog.borrow_mut();
        while let Some(sqe) = backlog.pop_front() {
            // SAFETY: whoever queued it promised that its memory stays.
            if let Err(sqe) = unsafe { ring.push(sqe) } {
                backlog.push_front(sqe);
                break;
            }
        }
        let prompt = self.prompt.replace(0);
        let wait = match timeout {
            Some(timeout) if timeout != Some(Duration::ZERO) && backlog.is_empty() => {
                if ring.queued() == 0 && ring.has_completions() {
                    return;
                }
                let mut min_wait = Duration::ZERO;
                let mut want = 1;
                if prompt > 0 && self.features.get().min_wait {
                    min_wait = timeout
                        .unwrap_or(self.send_coalesce)
                        .min(self.send_coalesce);
                    if !min_wait.is_zero() {
                        want += prompt;
                    }
                }
                Wait::For {
                    want,
                    min_wait,
                    timeout,
                }
            }
            _ => {
                // With work left, completions are welcome but not worth a call of their own.
                if ring.queued() == 0 && !ring.needs_enter() {
                    return;
                }
                Wait::Reap
            }
        };
        self.shared.counters.enters.add(1);
        if let Err(e) = ring.enter(wait) {
            match e.raw_os_error() {
                // The wait's timeout, or a signal: the next turn looks.
                Some(libc::ETIME | libc::EINTR) => {}
                // The completion queue is full, or the kernel short of memory: take
                // completions, try again.
                Some(libc::EBUSY) => {}
                Some(libc::EAGAIN | libc::ENOMEM) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Anything else is a broken ring or a broken entry; there is no going on.
                _ => panic!("io_uring_enter failed: {e}"),
            }
        }
    }

    // ---- the end ----

    /// Drops all tasks, cancels and reaps what is in flight, and closes the ring. Returns how
    /// many operations the kernel did not give back in time; their memory is leaked.
    pub(crate) fn shut_down(self: &Rc<Core>, timeout: Duration) -> usize {
        if self.closed.get() {
            return 0;
        }
        let _enter = Enter::new(self);
        self.closing.set(true);
        drop(self.shared.close());
        task::drop_all(self);
        loop {
            let hook = self.hooks.borrow_mut().pop();
            if hook.is_none() {
                break;
            }
        }
        self.closed.set(true);
        // The read on the eventfd ends by being answered.
        self.shared.kick();
        self.refresh_clock();
        let give_up = self.now().after(timeout);
        let mut cancel_at = 0;
        let left = loop {
            self.drain();
            let commands = self.sinks.borrow().in_flight();
            let ops = self.ops.borrow().in_flight;
            let left = ops + commands + usize::from(self.wake_armed.get());
            self.refresh_clock();
            let now = self.now().mono;
            if left == 0 || now >= give_up {
                break left;
            }
            // Again from time to time: a cancel misses what a worker thread just picked up.
            if now >= cancel_at {
                let outstanding = self.ops.borrow().outstanding();
                for user_data in outstanding {
                    self.cancel(user_data);
                }
                if commands > 0 {
                    let any = types::CancelBuilder::any();
                    let entry = opcode::AsyncCancel2::new(any).build();
                    // SAFETY: a cancel request refers to no memory.
                    unsafe { self.push(Sqe::Plain(entry), IGNORE) };
                }
                cancel_at = now + 100_000_000;
            }
            self.flush_and_wait(Duration::from_millis(20));
        };
        self.finish(left);
        left
    }

    fn flush_and_wait(&self, timeout: Duration) {
        let mut slot = self.ring.borrow_mut();
        let Some(ring) = slot.as_mut() else { return };
        let mut backlog = self.backlog.borrow_mut();
        while let Some(sqe) = backlog.pop_front() {
            // SAFETY: whoever queued it promised that its memory stays.
            if let Err(sqe) = unsafe { ring.push(sqe) } {
                backlog.push_front(sqe);
                break;
            }
        }
        self.shared.counters.enters.add(1);
        // Errors end the wait early; the loop around has a deadline of its own.
        let _ = ring.enter(Wait::For {
            want: 1,
            min_wait: Duration::ZERO,
            timeout: Some(timeout),
        });
    }

    fn finish(self: &Rc<Core>, left: usize) {
        let group = self.group.take();
        if left > 0 {
            // The kernel may still write to all this. A leak is the price of not crashing.
            std::mem::forget(group);
            std::mem::forget(self.sinks.take());
            std::mem::forget(Rc::clone(self));
        } else {
            drop(group);
            let sinks = self.sinks.take();
            drop(sinks);
        }
        let ring = self.ring.take();
        drop(ring);
        let iovecs = self.iovecs.take();
        drop(iovecs);
    }

    /// What the kernel has not given back yet.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.ops.borrow().in_flight
    }
}
