//! Timers: a heap of deadlines in which any entry can be removed.
//!
//! Every request may have a timeout and nearly none fire, so cancelling must be cheap and leave
//! nothing behind: an entry knows its place in the heap.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::core::Core;

/// The clocks, as they stood when this turn of the loop began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub mono: u64,
    /// Nanoseconds since 1970-01-01 UTC.
    pub wall: u64,
}

impl Now {
    /// The monotonic moment `d` from now, saturating.
    pub fn after(&self, d: Duration) -> u64 {
        self.mono
            .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

struct Entry {
    deadline: u64,
    /// Equal deadlines fire in the order of their registration.
    seq: u64,
    /// Index in the heap, or `NONE` when fired.
    place: u32,
    waker: Option<Waker>,
}

const NONE: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct Timers {
    entries: Vec<Entry>,
    free: Vec<u32>,
    heap: Vec<u32>,
    seq: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, deadline: u64, waker: Waker) -> u32 {
        let entry = Entry {
            deadline,
            seq: self.seq,
            place: self.heap.len() as u32,
            waker: Some(waker),
        };
        self.seq += 1;
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.heap.push(id);
        self.up(self.heap.len() - 1);
        id
    }

    /// Forgets a timer, fired or not.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Waker> {
        let place = self.entries[id as usize].place;
        if place != NONE {
            self.unlink(place as usize);
        }
        self.free.push(id);
        self.entries[id as usize].waker.take()
    }

    /// Takes the waker out, so that it can be replaced outside of a borrow.
    fn waker(&mut self, id: u32) -> &mut Option<Waker> {
        &mut self.entries[id as usize].waker
    }

    fn fired(&self, id: u32) -> bool {
        self.entries[id as usize].place == NONE
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.heap
            .first()
            .map(|&id| self.entries[id as usize].deadline)
    }

    /// Fires the earliest timer if it is due; its owner removes it. The waker may be absent.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<Option<Waker>> {
        let id = *self.heap.first()?;
        if self.entries[id as usize].deadline > now {
            return None;
        }
        self.unlink(0);
        Some(self.entries[id as usize].waker.take())
    }

    fn unlink(&mut self, place: usize) {
        let id = self.heap.swap_remove(place);
        self.entries[id as usize].place = NONE;
        if place < self.heap.len() {
            self.entries[self.heap[place] as usize].place = place as u32;
            let place = self.up(place);
            self.down(place);
        }
    }

    fn key(&self, place: usize) -> (u64, u64) {
        let e = &self.entries[self.heap[place] as usize];
        (e.deadline, e.seq)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.entries[self.heap[a] as usize].place = a as u32;
        self.entries[self.heap[b] as usize].place = b as u32;
    }

    fn up(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / 4;
            if self.key(parent) <= self.key(place) {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
        place
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let first = place * 4 + 1;
            let last = (first + 4).min(self.heap.len());
            let Some(least) = (first..last).min_by_key(|&c| self.key(c)) else {
                return;
            };
            if self.key(place) <= self.key(least) {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}

/// Completes once its moment has come, never before. Dropping it cancels it.
pub struct Sleep {
    core: Rc<Core>,
    deadline: u64,
    timer: Option<u32>,
}

impl Sleep {
    pub(crate) fn new(core: &Rc<Core>, deadline: u64) -> Sleep {
        Sleep {
            core: Rc::clone(core),
            deadline,
            timer: None,
        }
    }

    /// The monotonic nanoseconds it waits for.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Makes it wait for another moment, completed or not.
    pub fn reset(&mut self, deadline: u64) {
        self.clear();
        self.deadline = deadline;
    }

    fn clear(&mut self) {
        if let Some(id) = self.timer.take() {
            let waker = self.core.timers.borrow_mut().remove(id);
            drop(waker);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.deadline <= self.core.now().mono {
            self.clear();
            return Poll::Ready(());
        }
        let waker = cx.waker();
        match self.timer {
            None => {
                let waker = waker.clone();
                let id = self.core.timers.borrow_mut().insert(self.deadline, waker);
                self.timer = Some(id);
            }
            Some(id) => {
                let old = {
                    let mut timers = self.core.timers.borrow_mut();
                    debug_assert!(!timers.fired(id), "fired before its deadline");
                    match timers.waker(id) {
                        Some(old) if old.will_wake(waker) => return Poll::Pending,
                        slot => slot.take(),
                    }
                };
                drop(old);
                let waker = waker.clone();
                *self.core.timers.borrow_mut().waker(id) = Some(waker);
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The future did not complete in time; it was dropped, which cancels what it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

pub(crate) async fn with_deadline<F: Future>(
    sleep: Sleep,
    future: F,
) -> Result<F::Output, Elapsed> {
    let mut sleep = pin!(sleep);
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(v) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(v));
        }
        sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// The heap against an ordered map: same deadlines, same order, whatever is removed.
        #[test]
        fn heap_agrees_with_an_ordered_map(
            steps in prop::collection::vec((0u8..4, 0u64..50), 1..400),
        ) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            let mut seq = 0;
            let mut now = 0;
            for (what, n) in steps {
                match what {
                    0 | 1 => {
                        let id = timers.insert(now + n, Waker::noop().clone());
                        model.insert((now + n, seq), id);
                        seq += 1;
                    }
                    2 => {
                        let key = model.keys().nth(n as usize % model.len().max(1)).copied();
                        if let Some(key) = key {
                            let id = model.remove(&key).unwrap();
                            prop_assert!(!timers.fired(id));
                            timers.remove(id);
                        }
                    }
                    _ => {
                        now += n;
                        while timers.pop_due(now).is_some() {
                            let (key, id) = model.pop_first().unwrap();
                            prop_assert!(key.0 <= now);
                            prop_assert!(timers.fired(id), "earliest first");
                            timers.remove(id);
                        }
                    }
                }
                prop_assert_eq!(timers.next_deadline(), model.keys().next().map(|k| k.0));
                prop_assert_eq!(timers.heap.len(), model.len());
            }
        }
    }
}
