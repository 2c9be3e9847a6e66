use std::collections::VecDeque;

use super::msg::{BackoffOp, HObject, HObjectRef, MOsdBackoff, SpgId};
use super::request::SessionId;
use super::table::{List, Use};
use crate::codec::EntityAddrVec;

/// A range of objects that an OSD wants no requests for.
struct Backoff {
    id: u64,
    pgid: SpgId,
    begin: HObject,
    end: HObject,
}

/// The answer to a `BackoffOp::Block`.
pub(super) struct BackoffAck {
    pgid: SpgId,
    /// The epoch of the block, by which the OSD discards it after a split.
    epoch: u32,
    id: u64,
    begin: HObject,
    end: HObject,
}

impl BackoffAck {
    pub(super) fn message(&self) -> MOsdBackoff<'_> {
        MOsdBackoff {
            pgid: self.pgid,
            epoch: self.epoch,
            op: BackoffOp::AckBlock as u8,
            id: self.id,
            begin: self.begin.as_ref(),
            end: self.end.as_ref(),
        }
    }
}

/// The backoffs of a session. An OSD has one per pg that is peering or object that is recovering:
/// few, so a list does.
#[derive(Default)]
pub(super) struct Backoffs(Vec<Backoff>);

impl Backoffs {
    pub(super) const LIMIT: usize = 1 << 14;

    /// `None` when there are too many.
    pub(super) fn block(&mut self, m: &MOsdBackoff<'_>) -> Option<BackoffAck> {
        let same = |b: &Backoff| b.pgid == m.pgid && b.begin.as_ref() == m.begin;
        // A second block from the same object on takes the first one's place.
        self.0.retain(|b| !same(b));
        if self.0.len() >= Backoffs::LIMIT {
            return None;
        }
        self.0.push(Backoff {
            id: m.id,
            pgid: m.pgid,
            begin: m.begin.into(),
            end: m.end.into(),
        });
        Some(BackoffAck {
            pgid: m.pgid,
            epoch: m.epoch,
            id: m.id,
            begin: m.begin.into(),
            end: m.end.into(),
        })
    }

    /// Whether there was such a backoff.
    pub(super) fn unblock(&mut self, id: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|b| b.id != id);
        self.0.len() < before
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn covers(&self, pgid: SpgId, object: &HObjectRef<'_>) -> bool {
        self.0
            .iter()
            .any(|b| b.pgid == pgid && object.within(&b.begin.as_ref(), &b.end.as_ref()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// The owner is asked to connect at this moment.
    Waiting {
        until: u64,
    },
    Connecting,
    Open,
}

/// What binds requests to a connection.
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) addrs: EntityAddrVec,
    pub(super) link: Link,
    /// The owner has been told to connect and has to be told when that is off.
    pub(super) announced: bool,
    /// All requests that this OSD is to serve.
    pub(super) ops: List,
    /// Those of them that are to be sent.
    pub(super) unsent: List,
    /// The session is in the queue of those that have something to send.
    pub(super) ready: bool,
    pub(super) acks: VecDeque<BackoffAck>,
    pub(super) backoffs: Backoffs,
    /// Connections lost since the last reply.
    pub(super) failures: u32,
    /// When it was last seen with work.
    pub(super) busy: u64,
    /// The current map has the OSD down or elsewhere.
    pub(super) gone: bool,
}

impl Session {
    pub(super) fn new(id: SessionId, addrs: EntityAddrVec, now: u64) -> Session {
        Session {
            id,
            addrs,
            link: Link::Waiting { until: now },
            announced: false,
            ops: List::new(Use::Home),
            unsent: List::new(Use::Send),
            ready: false,
            acks: VecDeque::new(),
            backoffs: Backoffs::default(),
            failures: 0,
            busy: now,
            gone: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objecter::msg::PgId;

    fn block<'a>(id: u64, begin: HObjectRef<'a>, end: HObjectRef<'a>) -> MOsdBackoff<'a> {
        MOsdBackoff {
            pgid: pg(1),
            epoch: 5,
            op: BackoffOp::Block as u8,
            id,
            begin,
            end,
        }
    }

    fn pg(seed: u32) -> SpgId {
        SpgId {
            pg: PgId { pool: 1, seed },
            ..SpgId::default()
        }
    }

    fn at(name: &[u8]) -> HObjectRef<'_> {
        HObjectRef::head(1, b"", b"", name, 1)
    }

    #[test]
    fn a_backoff_covers_its_range_of_its_pg_until_it_is_lifted() {
        let mut backoffs = Backoffs::default();
        assert!(!backoffs.covers(pg(1), &at(b"b")));
        let ack = backoffs.block(&block(7, at(b"b"), at(b"d"))).unwrap();
        let m = ack.message();
        assert_eq!((m.op, m.id, m.epoch), (BackoffOp::AckBlock as u8, 7, 5));
        assert!(backoffs.covers(pg(1), &at(b"c")));
        assert!(!backoffs.covers(pg(1), &at(b"d")));
        assert!(!backoffs.covers(pg(2), &at(b"c")));
        assert!(!backoffs.unblock(8));
        assert!(backoffs.unblock(7));
        assert!(!backoffs.covers(pg(1), &at(b"c")));
    }

    #[test]
    fn the_number_of_backoffs_is_bounded() {
        let full = (0..Backoffs::LIMIT as u64)
            .map(|id| Backoff {
                id,
                pgid: pg(9),
                begin: at(b"o").into(),
                end: at(b"o").into(),
            })
            .collect();
        let mut backoffs = Backoffs(full);
        assert!(
            backoffs
                .block(&block(1 << 20, at(b"x"), at(b"y")))
                .is_none()
        );
        assert!(backoffs.unblock(0));
        assert!(
            backoffs
                .block(&block(1 << 20, at(b"x"), at(b"y")))
                .is_some()
        );
    }
}
