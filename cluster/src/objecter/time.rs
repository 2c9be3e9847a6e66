//! What the passage of time brings.

use super::Objecter;
use super::placement::Placement;
use super::poll::Todo;
use super::request::{Completions, OpError};
use super::session::Link;
use super::table::NONE;
use crate::codec::Now;

impl<M: Placement> Objecter<M> {
    /// The monotonic moment at which `tick` is due, if any.
    pub fn next_deadline(&self) -> Option<u64> {
        let timer = match self.timers.head {
            NONE => u64::MAX,
            slot => self.ops[slot].deadline,
        };
        let next = timer.min(self.next_tick).min(self.next_connect);
        (next != u64::MAX).then_some(next)
    }

    /// To be called at `next_deadline`; does no harm at other times.
    pub fn tick(&mut self, now: Now, sink: &mut dyn Completions) {
        self.now = now;
        while self.timers.head != NONE && self.ops[self.timers.head].deadline <= now.mono {
            let slot = self.timers.head;
            self.stats.timed_out += 1;
            self.fail(slot, OpError::TimedOut, sink);
        }
        if self.next_connect <= now.mono {
            self.connect_waiting();
        }
        if self.next_tick <= now.mono {
            self.next_tick = u64::MAX;
            self.look_after_sessions();
            self.look_after_lingers(sink);
            if !self.homeless.is_empty() {
                self.want_map = true;
            }
            self.arm_tick();
        }
    }

    /// Sets the next tick, as long as there is something to look after.
    pub(super) fn arm_tick(&mut self) {
        let idle = self.sessions.is_empty() && self.homeless.is_empty() && self.lingers.is_empty();
        if self.next_tick == u64::MAX && !idle {
            self.next_tick = self.now.after(self.config.tick);
        }
    }

    fn connect_waiting(&mut self) {
        self.next_connect = u64::MAX;
        for i in 0..self.by_osd.len() {
            self.connect(self.by_osd[i].1);
        }
    }

    /// Probes sessions whose requests take long and closes those that had none for long
    /// (`Objecter::tick`).
    fn look_after_sessions(&mut self) {
        let now = self.now.mono;
        let laggy_after = self.config.laggy_after.as_nanos() as u64;
        let mut i = 0;
        while let Some(&(osd, key)) = self.by_osd.get(i) {
            let watched = self.watches(osd);
            let session = &self.sessions[key as usize];
            let mut laggy = false;
            let mut at = session.ops.head;
            while at != NONE {
                let sent = self.ops[at].sent;
                laggy |= sent != u64::MAX && now.saturating_sub(sent) > laggy_after;
                at = session.ops.next(&self.ops, at);
            }
            if laggy || watched {
                // A map may say why. With a watch we follow the maps anyway: one of them may
                // fence this client.
                self.want_map = true;
            }
            // A notify waits for news without a request under way.
            if (laggy || watched) && session.link == Link::Open {
                self.todo.push_back(Todo::Ping(session.id));
            }
            let idle = now.saturating_sub(session.busy);
            let expired = |limit: std::time::Duration| u128::from(idle) >= limit.as_nanos();
            if session.ops.is_empty() && !watched && self.config.idle_close.is_some_and(expired) {
                self.remove_session(key);
            } else {
                i += 1;
            }
        }
    }
}
