//! What both ends of a stream share on an iothread: clock, alarm, and how a batch is sent.

use std::cell::Cell;

use iothread::{Signal, StableBatch};

use crate::codec::Now;
use crate::msgr::OutBatch;

/// The clocks as read when this turn of the loop began.
pub(super) fn now() -> Now {
    let now = iothread::now();
    Now {
        mono: now.mono,
        wall: now.wall,
    }
}

/// The moment of the next deadline (`u64::MAX` for none), and whether it has moved forward.
pub(super) struct Alarm {
    at: Cell<u64>,
    moved: Signal,
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm {
            at: Cell::new(u64::MAX),
            moved: Signal::default(),
        }
    }
}

impl Alarm {
    pub(super) fn set(&self, at: Option<u64>) {
        let at = at.unwrap_or(u64::MAX);
        // A later deadline needs no wake-up now: the timer finds it when it fires.
        if at < self.at.replace(at) {
            self.moved.raise();
        }
    }

    /// Waits for the deadline, and has none then.
    pub(super) async fn wait(&self) {
        loop {
            let at = self.at.get();
            if at == u64::MAX {
                self.moved.wait().await;
                continue;
            }
            if now().mono >= at {
                self.at.set(u64::MAX);
                return;
            }
            let sleep = async {
                iothread::sleep_until(at).await;
            };
            iothread::race(sleep, self.moved.wait()).await;
        }
    }
}

// SAFETY: a batch's own bytes are on the heap and untouched while it is not borrowed, and the
// memory of its payloads keeps to `payload::Memory`'s contract: same place, same bytes, for as
// long as the payload lives.
unsafe impl StableBatch for OutBatch {
    fn iovecs(&self, out: &mut Vec<libc::iovec>) {
        out.extend(self.slices().map(|s| libc::iovec {
            iov_base: s.as_ptr().cast_mut().cast(),
            iov_len: s.len(),
        }));
    }
}
