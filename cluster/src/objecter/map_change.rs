//! What a new map means for everything in flight.

use std::rc::Rc;
use std::sync::Arc;

use super::Objecter;
use super::placement::Placement;
use super::poll::Todo;
use super::request::{Completions, OpError};
use super::table::{NONE, PoolCheck};
use super::target::{Recalc, full_in};
use crate::codec::Now;

/// The questions to the monitors for their newest epoch. One is asked at a time; a request that
/// comes while one is under way needs the answer to the next, since its pool may be younger.
#[derive(Debug, Default)]
pub(super) struct LatestCheck {
    number: u64,
    under_way: bool,
    again: bool,
}

impl LatestCheck {
    /// The number of the question whose answer counts, and whether it is to be asked now.
    pub(super) fn ask(&mut self) -> (u64, bool) {
        if self.under_way {
            self.again = true;
            return (self.number + 1, false);
        }
        self.number += 1;
        self.under_way = true;
        (self.number, true)
    }

    /// Whether this is the answer to the open question.
    fn answered(&mut self, number: u64) -> bool {
        let right = self.under_way && number == self.number;
        if right {
            self.under_way = false;
        }
        right
    }

    fn next(&mut self) -> Option<u64> {
        std::mem::take(&mut self.again).then(|| self.ask().0)
    }
}

impl<M: Placement> Objecter<M> {
    /// Takes a newer map (`Objecter::handle_osd_map`).
    ///
    /// Every epoch should be handed in. Where some were left out, a pg may have moved away and
    /// back unseen, so everything is sent again; OSDs recognise what they have done already.
    pub fn handle_map(&mut self, map: Arc<M>, now: Now, sink: &mut dyn Completions) {
        self.now = now;
        let had = self.mapper.epoch();
        if map.epoch() <= had {
            return;
        }
        let skipped = had != 0 && map.epoch() != had + 1;
        let was_paused = self.mapper.pauses();
        let fenced = map.is_blocklisted(&self.addrs);
        let old = self.mapper.map.replace(map);
        self.stats.maps += 1;

        if fenced && !self.blocklisted {
            self.blocklisted = true;
            self.todo.push_back(Todo::Blocklisted);
            self.cancel_all(OpError::Blocklisted, sink);
        } else if !fenced {
            self.blocklisted = false;
        }

        self.mark_gone_sessions();
        let mut lingers = self.changed_lingers(skipped, old.as_deref(), sink);
        let mut list = std::mem::take(&mut self.resend);
        self.collect_all(&mut list);
        list.retain(|&(id, slot)| {
            // Ending one request may have ended others: those of its watch.
            self.ops[slot].id == id && self.must_resend(slot, skipped, old.as_deref(), sink)
        });
        list.retain(|&(id, slot)| {
            if self.ops[slot].id != id {
                return false;
            }
            match self.ops[slot].owner.cookie() {
                Some(cookie) => {
                    self.forget(slot);
                    lingers.push(cookie);
                    false
                }
                None => {
                    self.unassign(slot);
                    true
                }
            }
        });
        self.remove_gone_sessions();
        // In the order of submission, so that requests on one object keep theirs.
        for &(_, slot) in &list {
            self.ops[slot].check = PoolCheck::None;
            self.assign(slot);
        }
        list.clear();
        self.resend = list;
        self.resend_lingers(lingers);
        if was_paused || self.mapper.pauses() {
            self.want_map = true;
        }
        self.arm_tick();
    }

    /// The cluster has a newer map than ours: it is to be asked for.
    pub fn expect_newer_map(&mut self) {
        self.want_map = true;
    }

    /// Decides over one request; ends it when its pool is no more (`Objecter::_scan_requests`).
    fn must_resend(
        &mut self,
        slot: u32,
        skipped: bool,
        old: Option<&M>,
        sink: &mut dyn Completions,
    ) -> bool {
        self.prune_snaps(slot);
        let op = &mut self.ops[slot];
        let pool = op.target.object.pool;
        let recalc = self.mapper.calc(&mut op.target, false);
        match recalc {
            Recalc::NoAction => {
                // An OSD drops writes that find no room: they are for us to repeat.
                let full = op.target.respects_full()
                    && (self.mapper.full(pool)
                        || self.config.honor_full && old.is_some_and(|m| full_in(m, pool)));
                let astray = match op.session {
                    NONE => op.target.osd >= 0,
                    key => self.sessions[key as usize].gone,
                };
                skipped || full || astray
            }
            Recalc::NeedResend => true,
            Recalc::PoolDne => {
                self.pool_missing(slot, sink);
                false
            }
            Recalc::PoolEio => {
                self.fail(slot, OpError::PoolEio, sink);
                false
            }
        }
    }

    /// `Objecter::_check_op_pool_dne`.
    fn pool_missing(&mut self, slot: u32, sink: &mut dyn Completions) {
        let op = &self.ops[slot];
        let bound = match op.check {
            _ if op.target.pool_ever_existed => 0,
            PoolCheck::Bound(epoch) => epoch,
            PoolCheck::Asked(_) => return,
            PoolCheck::None => return self.ask_for_pool(slot),
        };
        if self.mapper.epoch() >= bound {
            self.fail(slot, OpError::PoolGone, sink);
        } else {
            self.want_map = true;
        }
    }

    /// The answer to [`WantLatestEpoch`](super::Action::WantLatestEpoch).
    pub fn latest_map(&mut self, token: u64, epoch: u32, now: Now, sink: &mut dyn Completions) {
        self.now = now;
        if !self.latest.answered(token) {
            return;
        }
        let mut at = self.homeless.head;
        while at != NONE {
            let next = self.homeless.next(&self.ops, at);
            if matches!(self.ops[at].check, PoolCheck::Asked(n) if n <= token) {
                self.ops[at].check = PoolCheck::Bound(epoch);
                self.pool_missing(at, sink);
            }
            at = next;
        }
        if let Some(number) = self.latest.next() {
            self.todo.push_back(Todo::WantLatestEpoch(number));
        }
    }

    /// A snapshot that was removed must not be preserved any more (`Objecter::_prune_snapc`).
    fn prune_snaps(&mut self, slot: u32) {
        let (Some(map), Some(snapc)) = (&self.mapper.map, &self.ops[slot].snapc) else {
            return;
        };
        let pool = self.ops[slot].target.object.pool;
        let gone = |snap| map.newly_removed_snap(pool, snap);
        if snapc.snaps.iter().any(|&s| gone(s)) {
            let pruned = Rc::new(snapc.without(gone));
            self.ops[slot].snapc = Some(pruned);
        }
    }

    /// OSDs that went down, or came back at another address.
    fn mark_gone_sessions(&mut self) {
        let Some(map) = &self.mapper.map else {
            return;
        };
        for (_, session) in &mut self.sessions {
            session.gone = map.osd_addrs(session.id.osd) != Some(&session.addrs);
        }
    }

    fn remove_gone_sessions(&mut self) {
        let mut i = 0;
        while let Some(&(_, key)) = self.by_osd.get(i) {
            if self.sessions[key as usize].gone {
                self.remove_session(key);
            } else {
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_is_open_at_a_time() {
        let mut check = LatestCheck::default();
        assert_eq!(check.ask(), (1, true));
        assert_eq!(check.ask(), (2, false));
        assert_eq!(check.ask(), (2, false));
        assert!(!check.answered(2));
        assert!(check.answered(1));
        assert!(!check.answered(1));
        assert_eq!(check.next(), Some(2));
        assert!(check.answered(2));
        assert_eq!(check.next(), None);
    }
}
