//! What an OSD remembers of a client's connection (`src/osd/Session.h`).

use std::collections::VecDeque;

use crate::codec::EntityType;
use crate::msgr::{Message, MsgHeader};
use crate::objecter::msg::{
    BackoffOp, HObject, HObjectRef, MOsdBackoff, NO_SHARD, OSD_BACKOFF, PgId, SpgId,
};

use super::caps::OsdCaps;
use super::outbox::{Link, Outbox, Peer};

/// `CEPH_FEATURE_RADOS_BACKOFF`, which shares its bit with `CEPH_FEATURE_RESEND_ON_SPLIT`.
const RADOS_BACKOFF: u64 = 1 << 21;

/// Bytes and number of requests of one connection that may wait. A client that sends more is
/// disconnected; it sends again what was not answered.
const MAX_PARKED_BYTES: usize = 256 << 20;
const MAX_PARKED: usize = 4096;

/// Nothing more is read from a client while so many of its requests wait for the store
/// (`osd_client_message_cap`), or so many bytes of requests and answers do; of the latter Ceph
/// allows 500 MiB, for all clients together.
const MAX_HELD: usize = 256;
const MAX_HELD_BYTES: usize = 128 << 20;

/// A request that waits: for a map, a pg, or the end of a fault.
#[derive(Debug)]
pub(super) struct Parked {
    pub link: Link,
    pub header: MsgHeader,
    pub front: Vec<u8>,
    pub data: Vec<u8>,
    /// No fault strikes it again.
    pub struck: bool,
}

impl Parked {
    pub(super) fn new(link: Link, m: &Message<'_>, struck: bool) -> Parked {
        Parked {
            link,
            header: m.header,
            front: m.front.to_vec(),
            data: m.data.to_vec(),
            struck,
        }
    }

    pub(super) fn message(&self) -> Message<'_> {
        Message {
            header: self.header,
            front: &self.front,
            middle: &[],
            data: &self.data,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.front.len() + self.data.len()
    }
}

#[derive(Debug)]
struct Backoff {
    id: u64,
    pg: PgId,
    begin: HObject,
    end: HObject,
    acked: bool,
    /// Lifted before it was acknowledged.
    deleting: bool,
}

#[derive(Debug)]
pub(super) struct Session {
    pub peer: Peer,
    /// What the peer may do, as its service ticket says.
    pub caps: OsdCaps,
    /// The newest epoch that the client is known to have, or will have when it has read what it was
    /// sent.
    pub projected: u32,
    /// Watches made over it since they were counted last, with what there was then.
    pub watches: usize,
    /// Requests of an epoch that the OSD has not seen, and what came after them.
    pub waiting: VecDeque<Parked>,
    parked: usize,
    parked_bytes: usize,
    held: usize,
    held_bytes: usize,
    backoffs: Vec<Backoff>,
    last_backoff: u64,
}

impl Session {
    pub(super) fn new(peer: Peer, caps: OsdCaps) -> Session {
        Session {
            peer,
            caps,
            projected: 0,
            watches: 0,
            waiting: VecDeque::new(),
            parked: 0,
            parked_bytes: 0,
            held: 0,
            held_bytes: 0,
            backoffs: Vec::new(),
            last_backoff: 0,
        }
    }

    pub(super) fn is_client(&self) -> bool {
        self.peer.name.kind == EntityType::CLIENT
    }

    /// Accounts for a request that has to wait; false when it is one too many.
    pub(super) fn park(&mut self, bytes: usize) -> bool {
        self.parked += 1;
        self.parked_bytes += bytes;
        self.parked <= MAX_PARKED && self.parked_bytes <= MAX_PARKED_BYTES
    }

    pub(super) fn unpark(&mut self, bytes: usize) {
        self.parked -= 1;
        self.parked_bytes -= bytes;
    }

    /// An answer waits for the store.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held += 1;
        self.held_bytes += bytes;
    }

    pub(super) fn let_go(&mut self, bytes: usize) {
        self.held -= 1;
        self.held_bytes -= bytes;
    }

    /// It has so much under way that it is to wait.
    pub(super) fn busy(&self) -> bool {
        self.held >= MAX_HELD || self.held_bytes >= MAX_HELD_BYTES
    }

    pub(super) fn can_back_off(&self) -> bool {
        self.peer.features & RADOS_BACKOFF != 0
    }

    /// `Session::have_backoff`.
    pub(super) fn held_back(&self, pg: PgId, object: &HObjectRef<'_>) -> bool {
        self.backoffs
            .iter()
            .any(|b| b.pg == pg && object.within(&b.begin.as_ref(), &b.end.as_ref()))
    }

    /// `PG::add_backoff`.
    pub(super) fn block(
        &mut self,
        link: Link,
        pg: PgId,
        epoch: u32,
        (begin, end): (HObjectRef<'_>, HObjectRef<'_>),
        out: &mut Outbox,
    ) {
        self.last_backoff += 1;
        let backoff = Backoff {
            id: self.last_backoff,
            pg,
            begin: begin.into(),
            end: end.into(),
            acked: false,
            deleting: false,
        };
        backoff.send(link, BackoffOp::Block, epoch, out);
        self.backoffs.push(backoff);
    }

    /// `PG::release_backoffs`, of all of a pg.
    pub(super) fn unblock(&mut self, link: Link, pg: PgId, epoch: u32, out: &mut Outbox) {
        for b in self.backoffs.iter_mut().filter(|b| b.pg == pg) {
            if !b.deleting {
                b.deleting = true;
                b.send(link, BackoffOp::Unblock, epoch, out);
            }
        }
        self.backoffs.retain(|b| !(b.deleting && b.acked));
    }

    /// `Session::ack_backoff`.
    pub(super) fn acked(&mut self, ack: &MOsdBackoff<'_>) {
        let same =
            |b: &Backoff| b.id == ack.id && b.pg == ack.pgid.pg && b.begin.as_ref() == ack.begin;
        self.backoffs.retain(|b| !(b.deleting && same(b)));
        for b in self.backoffs.iter_mut().filter(|b| same(b)) {
            b.acked = true;
        }
    }
}

impl Backoff {
    fn send(&self, link: Link, op: BackoffOp, epoch: u32, out: &mut Outbox) {
        let header = MsgHeader::new(OSD_BACKOFF, MOsdBackoff::VERSION, MOsdBackoff::COMPAT);
        let m = MOsdBackoff {
            pgid: SpgId {
                pg: self.pg,
                shard: NO_SHARD,
            },
            epoch,
            op: op as u8,
            id: self.id,
            begin: self.begin.as_ref(),
            end: self.end.as_ref(),
        };
        out.send(link, header, |b| m.encode(b), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::AuthName;
    use crate::auth::server::Caps;
    use crate::codec::{EntityAddrVec, EntityName};
    use crate::osd::outbox::Step;

    fn session() -> Session {
        let peer = Peer {
            name: EntityName::new(EntityType::CLIENT, 4),
            auth: AuthName::client("admin"),
            addrs: EntityAddrVec::default(),
            caps: Caps::all(),
            features: RADOS_BACKOFF,
        };
        Session::new(peer, OsdCaps::all())
    }

    fn sent(out: &mut Outbox) -> Vec<(u8, u64)> {
        let mut all = Vec::new();
        out.drain(|_, step| {
            if let Step::Send { front, .. } = step {
                let m = MOsdBackoff::decode(front).unwrap();
                all.push((m.op, m.id));
            }
        });
        all
    }

    #[test]
    fn a_backoff_ends_when_lifted_and_acknowledged_in_either_order() {
        let (mut s, mut out) = (session(), Outbox::new());
        let pg = PgId { pool: 1, seed: 0 };
        let object = HObjectRef::head(1, b"", b"", b"o", 5);
        for ack_first in [true, false] {
            s.block(Link(1), pg, 3, (HObjectRef::MIN, HObjectRef::MAX), &mut out);
            let id = s.last_backoff;
            assert_eq!(sent(&mut out), [(1, id)]);
            assert!(s.held_back(pg, &object));
            assert!(!s.held_back(PgId { pool: 1, seed: 1 }, &object));
            let ack = MOsdBackoff {
                pgid: SpgId {
                    pg,
                    shard: NO_SHARD,
                },
                epoch: 3,
                op: BackoffOp::AckBlock as u8,
                id,
                begin: HObjectRef::MIN,
                end: HObjectRef::MAX,
            };
            if ack_first {
                s.acked(&ack);
                assert!(s.held_back(pg, &object));
            }
            s.unblock(Link(1), pg, 4, &mut out);
            s.unblock(Link(1), pg, 4, &mut out);
            assert_eq!(sent(&mut out), [(3, id)]);
            if !ack_first {
                // As in Ceph: what the client sends before it knows is dropped, and sent again.
                assert!(s.held_back(pg, &object));
                s.acked(&ack);
            }
            assert!(s.backoffs.is_empty());
        }
    }

    #[test]
    fn what_may_wait_is_bounded() {
        let mut s = session();
        assert!((0..MAX_PARKED).all(|_| s.park(1)));
        assert!(!s.park(1));
        s.unpark(1);
        s.unpark(1);
        assert!(!s.park(MAX_PARKED_BYTES));
    }
}
