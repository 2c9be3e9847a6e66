//! What a server's state machine wants sent.

use std::ops::Range;

use smallvec::SmallVec;

use crate::auth::AuthName;
use crate::auth::server::Caps;
use crate::codec::{EntityAddr, EntityAddrVec, EntityName};
use crate::msgr::MsgHeader;
use crate::payload::Payload;

/// An accepted connection. Numbers are not used again within one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link(pub u64);

/// Who is at the other end of an open connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Type and global id.
    pub name: EntityName,
    /// Whose key it was, such as `client.admin`.
    pub auth: AuthName,
    /// As the peer gave them in its ident.
    pub addrs: EntityAddrVec,
    /// What it may do here.
    pub caps: Caps,
    /// Features that both sides have.
    pub features: u64,
}

impl Peer {
    /// The address by which watchers and lock owners are known: the first one
    /// (`Connection::get_peer_addr`). Of librados' clients it is of kind `any`.
    pub fn addr(&self) -> EntityAddr {
        self.addrs.0.first().copied().unwrap_or_default()
    }
}

/// Messages and closings, in the order in which they are to happen.
///
/// Fronts are encoded into one vector that is used again, so that sending allocates nothing once
/// it has its working size. A message to a link that is gone is dropped by the owner.
#[derive(Debug, Default)]
pub struct Outbox {
    fronts: Vec<u8>,
    items: Vec<(Link, Item)>,
}

#[derive(Debug)]
enum Item {
    Send {
        header: MsgHeader,
        front: Range<usize>,
        data: SmallVec<[Payload; 1]>,
    },
    Close,
}

/// One step of an [`Outbox`].
#[derive(Debug)]
pub enum Step<'a> {
    Send {
        header: &'a MsgHeader,
        front: &'a [u8],
        data: &'a [Payload],
    },
    Close,
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox::default()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn send(
        &mut self,
        link: Link,
        header: MsgHeader,
        front: impl FnOnce(&mut Vec<u8>),
        data: impl IntoIterator<Item = Payload>,
    ) {
        let start = self.fronts.len();
        front(&mut self.fronts);
        let item = Item::Send {
            header,
            front: start..self.fronts.len(),
            data: data.into_iter().collect(),
        };
        self.items.push((link, item));
    }

    /// Closes the connection once all that was sent before has left.
    pub fn close(&mut self, link: Link) {
        self.items.push((link, Item::Close));
    }

    /// Hands over everything, in order, and is empty then.
    pub fn drain(&mut self, mut take: impl FnMut(Link, Step<'_>)) {
        for (link, item) in self.items.drain(..) {
            match &item {
                Item::Send {
                    header,
                    front,
                    data,
                } => take(
                    link,
                    Step::Send {
                        header,
                        front: &self.fronts[front.clone()],
                        data,
                    },
                ),
                Item::Close => take(link, Step::Close),
            }
        }
        self.fronts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Put;

    #[test]
    fn order_and_bytes_are_kept() {
        let mut out = Outbox::new();
        let header = |tid| MsgHeader {
            tid,
            ..MsgHeader::new(43, 8, 2)
        };
        out.send(Link(1), header(7), |b| b.put_u32(1), []);
        out.close(Link(2));
        out.send(
            Link(1),
            header(8),
            |b| b.put_u16(2),
            [Payload::from(vec![9])],
        );
        let mut seen = Vec::new();
        out.drain(|link, step| {
            seen.push(match step {
                Step::Send {
                    header,
                    front,
                    data,
                } => (link.0, header.tid, front.len(), data.len()),
                Step::Close => (link.0, 0, 0, 0),
            });
        });
        assert_eq!(seen, [(1, 7, 4, 0), (2, 0, 0, 0), (1, 8, 2, 1)]);
        assert!(out.is_empty());
    }
}
