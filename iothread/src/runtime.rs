//! The runtime and its loop.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::config::{Config, Features, SetupError};
use crate::core::{Core, Enter, current, with_current};
use crate::remote::{Remote, Stats};
use crate::task::{self, JoinHandle, MAIN, WakeCell};
use crate::thread;
use crate::timer::{Elapsed, Now, Sleep, with_deadline};

/// An executor and its ring, bound to the thread that made it.
///
/// Dropping it drops all tasks, cancels what is in flight and waits for the kernel to let go of
/// it, at most for [`Config::shutdown_timeout`]; what the kernel keeps beyond that is leaked.
pub struct Runtime {
    core: Rc<Core>,
    main: Arc<WakeCell>,
    poll_budget: u32,
    shutdown_timeout: Duration,
}

impl Runtime {
    pub fn new(config: &Config) -> Result<Runtime, SetupError> {
        if let Some(cpu) = config.cpu {
            thread::pin_to_cpu(cpu).map_err(SetupError::os("pin the thread to its cpu"))?;
        }
        let core = Core::new(config)?;
        let main = WakeCell::new(MAIN, Arc::clone(&core.shared));
        Ok(Runtime {
            core,
            main,
            poll_budget: config.poll_budget.max(1),
            shutdown_timeout: config.shutdown_timeout,
        })
    }

    pub fn features(&self) -> Features {
        self.core.features.get()
    }

    pub fn stats(&self) -> Stats {
        self.core.shared.counters.read()
    }

    pub fn remote(&self) -> Remote {
        Remote {
            shared: Arc::clone(&self.core.shared),
        }
    }

    /// Adds a task; it runs while `block_on` does.
    pub fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        task::spawn(&self.core, future)
    }

    /// Turns the loop until the future is ready. A panic in a task comes out here.
    ///
    /// Panics when called from within itself.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        struct Running<'a>(&'a Cell<bool>);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        let core = &self.core;
        assert!(!core.running.replace(true), "block_on inside block_on");
        let _running = Running(&core.running);
        let _enter = Enter::new(core);
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(&self.main));
        let mut cx = Context::from_waker(&waker);
        self.main.enqueue();
        loop {
            core.begin_turn();
            let mut budget = self.poll_budget;
            loop {
                while budget > 0
                    && let Some(index) = core.pop_ready()
                {
                    budget -= 1;
                    if index != MAIN {
                        task::run(core, index);
                        continue;
                    }
                    self.main.taken();
                    if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                        core.run_hooks();
                        core.submit(false);
                        return output;
                    }
                }
                // Hooks see what all tasks of the turn have left, and may wake some.
                core.run_hooks();
                if budget == 0 || !core.is_ready() {
                    break;
                }
            }
            core.submit(!core.is_ready());
        }
    }

    /// Ends the runtime as dropping it does, and tells how many operations the kernel did not
    /// give back.
    pub fn shutdown(self) -> usize {
        self.core.shut_down(self.shutdown_timeout)
    }

    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    #[cfg(test)]
    pub(crate) fn is_wide(&self) -> bool {
        self.core.wide
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.core.shut_down(self.shutdown_timeout);
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("features", &self.features())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Adds a task to the current runtime. The handle may be dropped; the task goes on.
///
/// This and the other free functions panic outside of [`Runtime::block_on`].
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    task::spawn(&current(), future)
}

/// The clocks as read when this turn of the loop began.
pub fn now() -> Now {
    with_current(|core| core.map(|c| c.now())).expect("called outside of an iothread runtime")
}

/// Completes after `d`, counted from this turn's clock.
pub fn sleep(d: Duration) -> Sleep {
    let core = current();
    let deadline = core.now().after(d);
    Sleep::new(&core, deadline)
}

/// Completes at a moment of the monotonic clock, in nanoseconds.
pub fn sleep_until(mono: u64) -> Sleep {
    Sleep::new(&current(), mono)
}

/// Runs a future for at most `d`, counted from this turn's clock.
pub async fn timeout<F: Future>(d: Duration, future: F) -> Result<F::Output, Elapsed> {
    with_deadline(sleep(d), future).await
}

/// Runs a future until a moment of the monotonic clock at most.
pub async fn timeout_at<F: Future>(mono: u64, future: F) -> Result<F::Output, Elapsed> {
    with_deadline(sleep_until(mono), future).await
}

/// Lets the loop turn once: others run, completions are taken.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        current().deferred.borrow_mut().push(waker);
        Poll::Pending
    })
    .await;
}

/// Runs two futures until the first of them is ready; the other is dropped.
pub async fn race<T>(a: impl Future<Output = T>, b: impl Future<Output = T>) -> T {
    let (mut a, mut b) = (pin!(a), pin!(b));
    std::future::poll_fn(|cx| match a.as_mut().poll(cx) {
        Poll::Pending => b.as_mut().poll(cx),
        ready => ready,
    })
    .await
}

/// Has `hook` called at the end of every turn, after the tasks and before the submission: the
/// place to flush what they have queued. It must be cheap when there is nothing. Runs until the
/// guard is dropped.
pub fn on_turn_end(hook: impl FnMut() + 'static) -> TurnHook {
    let core = current();
    let id = core.add_hook(Box::new(hook));
    TurnHook { core, id }
}

/// Keeps an end-of-turn hook registered.
#[must_use = "dropping it removes the hook"]
pub struct TurnHook {
    core: Rc<Core>,
    id: u64,
}

impl Drop for TurnHook {
    fn drop(&mut self) {
        self.core.remove_hook(self.id);
    }
}

/// The current runtime's counters.
pub fn stats() -> Stats {
    current().shared.counters.read()
}

/// What the current runtime's kernel can do.
pub fn features() -> Features {
    current().features.get()
}

/// A way into the current runtime for other threads.
pub fn remote() -> Remote {
    Remote {
        shared: Arc::clone(&current().shared),
    }
}
