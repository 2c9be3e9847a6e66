//! Where requests live: a table of reused slots and lists threaded through it.

use std::ops::{Index, IndexMut};
use std::rc::Rc;

use super::msg::OsdFlags;
use super::op::ObjectOp;
use super::request::SnapContext;
use super::target::{OpTarget, Target};
use crate::codec::UTime;

/// Low bits of a transaction id that say which slot its request has, so that a reply finds it
/// without a search. The bits above count up: a larger id is a later one.
const SLOT_BITS: u32 = 16;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
pub(super) const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// Whom the outcome of a request concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    User {
        token: u64,
    },
    /// Registers the watch or notify of this cookie.
    Register {
        cookie: u64,
    },
    /// Registers a watch again after its pg moved.
    Reconnect {
        cookie: u64,
        generation: u32,
    },
    Ping {
        cookie: u64,
        generation: u32,
        sent: u64,
    },
}

impl Owner {
    /// A request of a watch is not sent twice: the watch makes a new one instead
    /// (`Op::should_resend`).
    pub(super) fn cookie(self) -> Option<u64> {
        match self {
            Owner::User { .. } => None,
            Owner::Register { cookie }
            | Owner::Reconnect { cookie, .. }
            | Owner::Ping { cookie, .. } => Some(cookie),
        }
    }
}

/// What is known about a pool that the map does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolCheck {
    None,
    /// The answer to the question of this number will say which epoch decides.
    Asked(u64),
    /// A map of this epoch without the pool means that there is none.
    Bound(u32),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    prev: u32,
    next: u32,
    linked: bool,
}

const UNLINKED: Link = Link {
    prev: NONE,
    next: NONE,
    linked: false,
};

pub(super) struct Op {
    /// The first transaction id: the caller's name for the request, and its place in the order.
    /// Zero in a free slot.
    pub(super) id: u64,
    /// What goes on the wire. Differs from `id` after a redirect or a bounced replica read.
    pub(super) tid: u64,
    pub(super) attempts: u32,
    pub(super) owner: Owner,
    pub(super) body: ObjectOp,
    pub(super) target: OpTarget,
    pub(super) snap_id: u64,
    pub(super) snapc: Option<Rc<SnapContext>>,
    pub(super) mtime: UTime,
    pub(super) budget: u64,
    /// Monotonic nanoseconds, or `u64::MAX`.
    pub(super) deadline: u64,
    /// When it was last sent, or `u64::MAX` while it waits to be.
    pub(super) sent: u64,
    /// The session it belongs to, or `NONE`.
    pub(super) session: u32,
    pub(super) check: PoolCheck,
    links: [Link; 3],
}

/// The slots. A freed slot keeps its memory and is used again, last freed first.
pub(super) struct Table {
    slots: Vec<Op>,
    free: Vec<u32>,
    /// The last transaction id's counter.
    counter: u64,
}

impl Table {
    /// All ids will be above `base`.
    pub(super) fn new(base: u64) -> Table {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            counter: base >> SLOT_BITS,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn next_tid(&mut self, slot: u32) -> u64 {
        self.counter += 1;
        self.counter << SLOT_BITS | u64::from(slot)
    }

    /// A slot for a new request, or `None` when all are taken.
    pub(super) fn insert(&mut self, owner: Owner, body: ObjectOp, target: OpTarget) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_SLOTS => {
                self.slots.push(Op::blank());
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let tid = self.next_tid(slot);
        let op = &mut self[slot];
        op.id = tid;
        op.tid = tid;
        op.attempts = 0;
        op.owner = owner;
        op.body = body;
        op.target = target;
        op.snap_id = super::msg::NOSNAP;
        op.snapc = None;
        op.mtime = UTime::default();
        op.budget = 0;
        op.deadline = u64::MAX;
        op.sent = u64::MAX;
        op.session = NONE;
        op.check = PoolCheck::None;
        debug_assert!(op.links.iter().all(|l| !l.linked));
        Some(slot)
    }

    /// Frees a slot that is in no list any more.
    pub(super) fn remove(&mut self, slot: u32) {
        let op = &mut self[slot];
        debug_assert!(op.id != 0 && op.links.iter().all(|l| !l.linked));
        op.id = 0;
        op.tid = 0;
        op.body.clear();
        op.snapc = None;
        self.free.push(slot);
    }

    /// Gives a request a new transaction id, so that answers to the old one are none of its.
    pub(super) fn renumber(&mut self, slot: u32) {
        let tid = self.next_tid(slot);
        self[slot].tid = tid;
    }

    pub(super) fn by_tid(&self, tid: u64) -> Option<u32> {
        let slot = (tid & SLOT_MASK) as u32;
        let op = self.slots.get(slot as usize)?;
        (op.tid == tid && op.id != 0).then_some(slot)
    }

    pub(super) fn by_id(&self, id: u64) -> Option<u32> {
        let slot = (id & SLOT_MASK) as u32;
        let op = self.slots.get(slot as usize)?;
        (op.id == id && id != 0).then_some(slot)
    }
}

impl Index<u32> for Table {
    type Output = Op;
    fn index(&self, slot: u32) -> &Op {
        &self.slots[slot as usize]
    }
}

impl IndexMut<u32> for Table {
    fn index_mut(&mut self, slot: u32) -> &mut Op {
        &mut self.slots[slot as usize]
    }
}

impl Op {
    fn blank() -> Op {
        Op {
            id: 0,
            tid: 0,
            attempts: 0,
            owner: Owner::User { token: 0 },
            body: ObjectOp::default(),
            target: OpTarget::new(Target::default(), OsdFlags::NONE),
            snap_id: 0,
            snapc: None,
            mtime: UTime::default(),
            budget: 0,
            deadline: u64::MAX,
            sent: u64::MAX,
            session: NONE,
            check: PoolCheck::None,
            links: [UNLINKED; 3],
        }
    }
}

/// Which of a request's three links a list uses.
#[derive(Debug, Clone, Copy)]
pub(super) enum Use {
    /// All requests of a session, or those without one. By id.
    Home = 0,
    /// Requests of a session that wait to be sent. By id.
    Send = 1,
    /// Requests with a deadline. By deadline.
    Timer = 2,
}

/// A sorted, doubly linked list through the slots. Nearly everything is added at its end.
pub(super) struct List {
    link: usize,
    key: fn(&Op) -> u64,
    pub(super) head: u32,
    tail: u32,
}

impl List {
    pub(super) fn new(used: Use) -> List {
        List {
            link: used as usize,
            key: match used {
                Use::Home | Use::Send => |op| op.id,
                Use::Timer => |op| op.deadline,
            },
            head: NONE,
            tail: NONE,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(super) fn holds(&self, ops: &Table, slot: u32) -> bool {
        ops[slot].links[self.link].linked
    }

    pub(super) fn next(&self, ops: &Table, slot: u32) -> u32 {
        ops[slot].links[self.link].next
    }

    /// Inserts behind all that come before or are equal. Nothing to do when it is in the list.
    pub(super) fn insert(&mut self, ops: &mut Table, slot: u32) {
        if self.holds(ops, slot) {
            return;
        }
        let key = (self.key)(&ops[slot]);
        let mut prev = self.tail;
        while prev != NONE && (self.key)(&ops[prev]) > key {
            prev = ops[prev].links[self.link].prev;
        }
        let next = if prev == NONE {
            std::mem::replace(&mut self.head, slot)
        } else {
            std::mem::replace(&mut ops[prev].links[self.link].next, slot)
        };
        if next == NONE {
            self.tail = slot;
        } else {
            ops[next].links[self.link].prev = slot;
        }
        ops[slot].links[self.link] = Link {
            prev,
            next,
            linked: true,
        };
    }

    /// Nothing to do when it is not in the list.
    pub(super) fn remove(&mut self, ops: &mut Table, slot: u32) {
        let Link { prev, next, linked } = ops[slot].links[self.link];
        if !linked {
            return;
        }
        if prev == NONE {
            self.head = next;
        } else {
            ops[prev].links[self.link].next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            ops[next].links[self.link].prev = prev;
        }
        ops[slot].links[self.link] = UNLINKED;
    }

    pub(super) fn pop(&mut self, ops: &mut Table) -> Option<u32> {
        let slot = self.head;
        if slot == NONE {
            return None;
        }
        self.remove(ops, slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn insert(table: &mut Table) -> u32 {
        let target = OpTarget::new(Target::default(), OsdFlags::READ);
        let owner = Owner::User { token: 0 };
        table.insert(owner, ObjectOp::new(), target).unwrap()
    }

    fn collect(list: &List, table: &Table) -> Vec<u32> {
        let mut out = Vec::new();
        let mut at = list.head;
        while at != NONE {
            out.push(at);
            at = list.next(table, at);
        }
        out
    }

    #[test]
    fn ids_grow_and_find_their_slot() {
        let mut table = Table::new(1 << 40);
        let a = insert(&mut table);
        let first = table[a].id;
        assert!(first > 1 << 40);
        assert_eq!(table.by_tid(first), Some(a));
        table.remove(a);
        assert_eq!(table.by_tid(first), None);
        let b = insert(&mut table);
        assert_eq!(b, a);
        assert!(table[b].id > first);
        assert_eq!(table.by_id(first), None);
        let before = table[b].tid;
        table.renumber(b);
        assert_eq!(table.by_tid(before), None);
        assert_eq!(table.by_tid(table[b].tid), table.by_id(before));
        assert_eq!(table.by_tid(u64::MAX), None);
    }

    #[test]
    fn the_table_ends_where_the_slot_bits_do() {
        let mut table = Table::new(0);
        for _ in 0..MAX_SLOTS {
            insert(&mut table);
        }
        let target = OpTarget::new(Target::default(), OsdFlags::READ);
        let owner = Owner::User { token: 0 };
        assert_eq!(table.insert(owner, ObjectOp::new(), target), None);
    }

    proptest! {
        #[test]
        fn a_list_stays_sorted(steps in vec((0usize..12, any::<bool>(), 0u64..6), 1..60)) {
            let mut table = Table::new(0);
            let slots: Vec<u32> = (0..12).map(|_| insert(&mut table)).collect();
            let mut list = List::new(Use::Timer);
            let mut model: Vec<u32> = Vec::new();
            for (i, add, deadline) in steps {
                let slot = slots[i];
                if add && !list.holds(&table, slot) {
                    table[slot].deadline = deadline;
                    list.insert(&mut table, slot);
                    let at = model.iter().rposition(|&s| table[s].deadline <= deadline);
                    model.insert(at.map_or(0, |at| at + 1), slot);
                } else if !add {
                    list.remove(&mut table, slot);
                    model.retain(|&s| s != slot);
                }
                prop_assert_eq!(collect(&list, &table), model.clone());
            }
            while let Some(slot) = list.pop(&mut table) {
                prop_assert_eq!(slot, model.remove(0));
            }
            prop_assert!(model.is_empty() && list.is_empty());
        }
    }
}
