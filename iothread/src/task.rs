//! Tasks: local futures in a table, their wakers, and the handles that await them.
//!
//! A slot of the table keeps one waker for all the tasks that ever live in it. A late wake for a
//! task that is gone polls its successor once for nothing, which a future must tolerate anyway;
//! in return spawning and waking allocate nothing.

use std::alloc::Layout;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::core::{Core, with_current};
use crate::remote::Shared;

/// The index that stands for the future given to `block_on`.
pub(crate) const MAIN: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

/// What a waker points to.
pub(crate) struct WakeCell {
    index: u32,
    /// In a ready queue already; a second wake changes nothing.
    queued: AtomicBool,
    shared: Arc<Shared>,
}

impl WakeCell {
    pub(crate) fn new(index: u32, shared: Arc<Shared>) -> Arc<WakeCell> {
        Arc::new(WakeCell {
            index,
            queued: AtomicBool::new(false),
            shared,
        })
    }

    /// To be called right before the poll, so that a wake during it counts.
    pub(crate) fn taken(&self) {
        self.queued.store(false, Ordering::Release);
    }

    pub(crate) fn enqueue(&self) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let local = with_current(|core| match core {
            Some(core) if Arc::ptr_eq(&core.shared, &self.shared) => {
                core.ready.borrow_mut().push_back(self.index);
                true
            }
            _ => false,
        });
        if !local {
            self.shared.wake_task(self.index);
        }
    }
}

impl Wake for WakeCell {
    fn wake(self: Arc<Self>) {
        self.enqueue();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.enqueue();
    }
}

enum Stage<F: Future> {
    Running(F),
    Finished(F::Output),
    Consumed,
}

struct Calls {
    /// Polls the future; true when the output is in place.
    poll: unsafe fn(NonNull<u8>, &mut Context<'_>) -> bool,
    /// Moves the output to the address given, which must hold an `Option<Output>`.
    take: unsafe fn(NonNull<u8>, *mut u8),
    drop: unsafe fn(NonNull<u8>),
    layout: Layout,
}

struct CallsOf<F>(PhantomData<F>);

impl<F: Future + 'static> CallsOf<F> {
    const CALLS: Calls = Calls {
        poll: poll::<F>,
        take: take::<F>,
        // SAFETY: called once, with a block that holds a live stage.
        drop: |p| unsafe { p.cast::<Stage<F>>().drop_in_place() },
        layout: Layout::new::<Stage<F>>(),
    };
}

/// # Safety
/// `p` holds a live `Stage<F>` that nobody else refers to and that never moves.
unsafe fn poll<F: Future>(p: NonNull<u8>, cx: &mut Context<'_>) -> bool {
    // SAFETY: promised by the caller.
    let stage = unsafe { p.cast::<Stage<F>>().as_mut() };
    let Stage::Running(future) = stage else {
        return true;
    };
    // SAFETY: the block does not move and the future is dropped in place.
    match unsafe { Pin::new_unchecked(future) }.poll(cx) {
        Poll::Pending => false,
        Poll::Ready(output) => {
            *stage = Stage::Finished(output);
            true
        }
    }
}

/// # Safety
/// As for `poll`; `out` points to an `Option<F::Output>`.
unsafe fn take<F: Future>(p: NonNull<u8>, out: *mut u8) {
    // SAFETY: promised by the caller.
    let stage = unsafe { p.cast::<Stage<F>>().as_mut() };
    if let Stage::Finished(output) = std::mem::replace(stage, Stage::Consumed) {
        // SAFETY: promised by the caller.
        unsafe { *out.cast::<Option<F::Output>>() = Some(output) };
    }
}

#[derive(Clone, Copy)]
struct Raw {
    ptr: NonNull<u8>,
    calls: &'static Calls,
}

impl Raw {
    /// # Safety
    /// Called once, by the owner of the task, outside all borrows of the core.
    unsafe fn destroy(self, core: &Core) {
        // SAFETY: the block holds a live stage of the type the calls are for.
        unsafe {
            (self.calls.drop)(self.ptr);
            core.blocks.borrow_mut().give(self.ptr, self.calls.layout);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Free { next: u32 },
    Idle,
    Running,
    Done,
    Aborted,
}

struct Slot {
    generation: u32,
    state: State,
    raw: Option<Raw>,
    cell: Arc<WakeCell>,
    /// Out of the slot while the task runs.
    waker: Option<Waker>,
    /// A handle exists.
    joined: bool,
    join_waker: Option<Waker>,
    /// Abort as soon as the poll in progress returns.
    abort: bool,
}

pub(crate) struct TaskTable {
    slots: Vec<Slot>,
    free: u32,
}

impl TaskTable {
    pub(crate) fn new() -> RefCell<TaskTable> {
        RefCell::new(TaskTable {
            slots: Vec::with_capacity(64),
            free: NONE,
        })
    }

    fn insert(&mut self, shared: &Arc<Shared>, raw: Option<Raw>, state: State) -> u32 {
        let index = if self.free == NONE {
            let index = self.slots.len() as u32;
            let cell = WakeCell::new(index, Arc::clone(shared));
            let waker = Some(Waker::from(Arc::clone(&cell)));
            self.slots.push(Slot {
                generation: 0,
                state,
                raw,
                cell,
                waker,
                joined: true,
                join_waker: None,
                abort: false,
            });
            return index;
        } else {
            self.free
        };
        let slot = &mut self.slots[index as usize];
        let State::Free { next } = slot.state else {
            unreachable!("the free list holds free slots");
        };
        self.free = next;
        slot.state = state;
        slot.raw = raw;
        slot.joined = true;
        slot.abort = false;
        index
    }

    /// Frees the slot when nobody needs it any more.
    fn collect(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.joined || slot.raw.is_some() {
            return;
        }
        slot.state = State::Free { next: self.free };
        slot.generation = slot.generation.wrapping_add(1);
        self.free = index;
    }
}

pub(crate) fn spawn<F: Future + 'static>(core: &Rc<Core>, future: F) -> JoinHandle<F::Output> {
    if core.is_closing() {
        drop(future);
        let index = core
            .tasks
            .borrow_mut()
            .insert(&core.shared, None, State::Aborted);
        return JoinHandle::new(core, index);
    }
    let layout = Layout::new::<Stage<F>>();
    let ptr = core.blocks.borrow_mut().take(layout);
    // SAFETY: a fresh block with the stage's layout.
    unsafe { ptr.cast::<Stage<F>>().write(Stage::Running(future)) };
    let raw = Raw {
        ptr,
        calls: &CallsOf::<F>::CALLS,
    };
    let (index, cell) = {
        let mut tasks = core.tasks.borrow_mut();
        let index = tasks.insert(&core.shared, Some(raw), State::Idle);
        (index, Arc::clone(&tasks.slots[index as usize].cell))
    };
    cell.enqueue();
    JoinHandle::new(core, index)
}

/// Polls the task at `index`, if one is there and wants it.
pub(crate) fn run(core: &Core, index: u32) {
    let (raw, waker) = {
        let mut tasks = core.tasks.borrow_mut();
        let Some(slot) = tasks.slots.get_mut(index as usize) else {
            return;
        };
        slot.cell.taken();
        let (State::Idle, Some(raw)) = (slot.state, slot.raw) else {
            return;
        };
        slot.state = State::Running;
        let waker = slot.waker.take();
        (raw, waker.expect("only a running task's waker is out"))
    };
    // SAFETY: state Running keeps everyone else away from the block, which does not move.
    let done = unsafe { (raw.calls.poll)(raw.ptr, &mut Context::from_waker(&waker)) };
    core.shared.counters.polls.add(1);
    let (dead, join_waker) = {
        let mut tasks = core.tasks.borrow_mut();
        let slot = &mut tasks.slots[index as usize];
        slot.waker = Some(waker);
        if done {
            slot.state = State::Done;
        } else if slot.abort {
            slot.state = State::Aborted;
        } else {
            slot.state = State::Idle;
            return;
        }
        let dead = (!slot.joined || slot.state == State::Aborted) && slot.raw.take().is_some();
        let join_waker = slot.join_waker.take();
        tasks.collect(index);
        (dead, join_waker)
    };
    if dead {
        // SAFETY: taken out of the slot, so this is its only owner.
        unsafe { raw.destroy(core) };
    }
    if let Some(waker) = join_waker {
        waker.wake();
    }
}

/// Drops every task, running or not; their handles report an abort.
pub(crate) fn drop_all(core: &Core) {
    let count = core.tasks.borrow().slots.len();
    for index in 0..count {
        abort(core, index as u32, None, true);
    }
}

/// Ends a task. `force` also takes one that is marked as running, which outside of its poll can
/// only be one whose poll panicked.
fn abort(core: &Core, index: u32, generation: Option<u32>, force: bool) {
    let (raw, join_waker) = {
        let mut tasks = core.tasks.borrow_mut();
        let slot = &mut tasks.slots[index as usize];
        if generation.is_some_and(|g| g != slot.generation) {
            return;
        }
        match slot.state {
            State::Idle => {}
            State::Running if force => {}
            State::Running => {
                slot.abort = true;
                return;
            }
            State::Free { .. } | State::Done | State::Aborted => return,
        }
        slot.state = State::Aborted;
        let raw = slot.raw.take();
        let join_waker = slot.join_waker.take();
        tasks.collect(index);
        (raw, join_waker)
    };
    if let Some(raw) = raw {
        // SAFETY: taken out of the slot, so this is its only owner.
        unsafe { raw.destroy(core) };
    }
    if let Some(waker) = join_waker {
        waker.wake();
    }
}

/// The task was aborted before it had a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted")]
pub struct Aborted;

/// Awaits a task's output. Dropping it lets the task go on alone.
pub struct JoinHandle<T> {
    core: Rc<Core>,
    index: u32,
    generation: u32,
    over: bool,
    output: PhantomData<fn() -> T>,
}

impl<T> JoinHandle<T> {
    fn new(core: &Rc<Core>, index: u32) -> JoinHandle<T> {
        let generation = core.tasks.borrow().slots[index as usize].generation;
        JoinHandle {
            core: Rc::clone(core),
            index,
            generation,
            over: false,
            output: PhantomData,
        }
    }

    /// Drops the task's future: now, or when the poll in progress returns. A finished task's
    /// output stays.
    pub fn abort(&self) {
        if !self.over {
            abort(&self.core, self.index, Some(self.generation), false);
        }
    }

    pub fn is_finished(&self) -> bool {
        if self.over {
            return true;
        }
        let tasks = self.core.tasks.borrow();
        matches!(
            tasks.slots[self.index as usize].state,
            State::Done | State::Aborted
        )
    }

    /// Lets go of the slot; what is left of the task comes back to be destroyed.
    fn leave(&mut self) -> (Option<Raw>, Option<Waker>) {
        self.over = true;
        let mut tasks = self.core.tasks.borrow_mut();
        let slot = &mut tasks.slots[self.index as usize];
        debug_assert_eq!(slot.generation, self.generation);
        slot.joined = false;
        let waker = slot.join_waker.take();
        let raw = if slot.state == State::Done {
            slot.raw.take()
        } else {
            None
        };
        tasks.collect(self.index);
        (raw, waker)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.over, "a join handle was polled after its result");
        let state = self.core.tasks.borrow().slots[self.index as usize].state;
        match state {
            State::Done => {
                let (raw, waker) = self.leave();
                drop(waker);
                let mut output = None::<T>;
                if let Some(raw) = raw {
                    // SAFETY: the stage is finished and taken out of the slot; T is the output of
                    // the future that this handle was made for.
                    unsafe {
                        (raw.calls.take)(raw.ptr, (&raw mut output).cast());
                        raw.destroy(&self.core);
                    }
                }
                Poll::Ready(output.ok_or(Aborted))
            }
            State::Aborted => {
                let (_, waker) = self.leave();
                drop(waker);
                Poll::Ready(Err(Aborted))
            }
            State::Free { .. } | State::Idle | State::Running => {
                let waker = cx.waker().clone();
                let old = self.core.tasks.borrow_mut().slots[self.index as usize]
                    .join_waker
                    .replace(waker);
                drop(old);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (raw, waker) = self.leave();
        drop(waker);
        if let Some(raw) = raw {
            // SAFETY: taken out of the slot, so this is its only owner.
            unsafe { raw.destroy(&self.core) };
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("task", &self.index)
            .field("finished", &self.is_finished())
            .finish()
    }
}
