//! A flag that one task waits for and others of the same thread raise.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Default)]
struct Inner {
    set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Raised any number of times, it lets one [`wait`](Signal::wait) pass. Clones are the same flag.
#[derive(Clone, Default)]
pub struct Signal(Rc<Inner>);

impl Signal {
    pub fn new() -> Signal {
        Signal::default()
    }

    pub fn raise(&self) {
        if !self.0.set.replace(true) {
            let waker = self.0.waker.borrow_mut().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Whether a `wait` would pass at once.
    pub fn is_raised(&self) -> bool {
        self.0.set.get()
    }

    /// Waits until raised, and lowers it. One task waits at a time: a second replaces the first.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.0.set.replace(false) {
                return Poll::Ready(());
            }
            let old = match &mut *self.0.waker.borrow_mut() {
                Some(old) if old.will_wake(cx.waker()) => return Poll::Pending,
                slot => slot.take(),
            };
            drop(old);
            let waker = cx.waker().clone();
            *self.0.waker.borrow_mut() = Some(waker);
            Poll::Pending
        })
        .await;
    }
}
