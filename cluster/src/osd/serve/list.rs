//! Requests about a pg: listing its objects (`PrimaryLogPG::do_pg_op`).

use std::cmp::Ordering;

use crate::codec::{Now, Put, Reader};
use crate::msgr::Message;
use crate::objecter::msg::{HObject, HObjectRef, MOsdOp, NOSNAP, OpCode, OsdOp, PgId};
use smallvec::SmallVec;

use super::super::outbox::{Link, Outbox};
use super::super::pg::bounds;
use super::super::store::{Store, StoreError};
use super::Osd;
use super::info::EINVAL;
use super::reply::{Reply, Way};

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EOPNOTSUPP: i32 = 95;

/// Codes that only a pg takes (`src/include/rados.h`).
const PGLS: OpCode = OpCode(0x1501);
const PGLS_FILTER: OpCode = OpCode(0x1502);
const HITSET_LS: OpCode = OpCode(0x1503);
const HITSET_GET: OpCode = OpCode(0x1504);
const PGNLS_FILTER: OpCode = OpCode(0x1506);

/// `osd_max_pgls`.
const MAX_ENTRIES: u64 = 1024;
/// Objects looked at for one reply: a pg full of clones or of another namespace must not hold up
/// the thread.
const MAX_LOOK: usize = 4096;
/// Stands for every namespace (`librados::all_nspaces`).
const ALL_NAMESPACES: &[u8] = b"\x01";

/// A part of a listing.
struct Listing {
    objects: Vec<HObject>,
    /// Where to go on; absent at the end of the pg.
    next: Option<HObject>,
}

impl<S: Store> Osd<S> {
    pub(super) fn pg_op(
        &mut self,
        link: Link,
        m: &Message<'_>,
        op: &MOsdOp<'_>,
        now: Now,
        out: &mut Outbox,
    ) {
        let mut buffer = self.buffers.take();
        let mut rvals: SmallVec<[(i32, u32); 4]> = SmallVec::new();
        let mut result = 0;
        for part in op.split(m.data) {
            let Ok((o, input)) = part else {
                return self.reset(link, now, out);
            };
            let before = buffer.vec().len();
            result = match self.pg_op_one(op, &o, input, buffer.vec()) {
                Ok(result) => result,
                Err(StoreError::Damaged(_) | StoreError::NoPg(_)) => -EIO,
                Err(error) => return self.fail(error, out),
            };
            rvals.push((0, (buffer.vec().len() - before) as u32));
            if result < 0 {
                break;
            }
        }
        let Some(pg) = self.pgs.get_mut(&op.pgid.pg) else {
            return;
        };
        pg.served.reads += 1;
        let reply = Reply::of(result, &rvals).versions(pg.last_update, pg.last_user_version);
        // It may show objects of any transaction so far.
        let way = Way {
            link,
            tid: m.header.tid,
            after: pg.last_seq,
            now,
        };
        let data = self.buffers.give(buffer);
        self.answer(way, op, reply, data, None, out);
    }

    fn pg_op_one(
        &mut self,
        op: &MOsdOp<'_>,
        o: &OsdOp,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<i32, StoreError> {
        match o.code {
            OpCode::PGNLS | PGLS => {}
            PGNLS_FILTER | PGLS_FILTER => return Ok(-EOPNOTSUPP),
            // There are no cache tiers, so no pg has ever recorded a hit set.
            HITSET_LS => {
                out.put_u32(0);
                return Ok(0);
            }
            HITSET_GET => return Ok(-ENOENT),
            _ => return Ok(-EINVAL),
        }
        let id = op.pgid.pg;
        let Ok(from) = HObjectRef::decode(&mut Reader::new(input)) else {
            return Ok(-EINVAL);
        };
        if op.snap_id != NOSNAP {
            return Ok(-EINVAL);
        }
        let Some(pg) = self.pgs.get(&id) else {
            return Ok(-EINVAL);
        };
        let (start, end) = bounds(id, pg.pg_num);
        let new = o.code == OpCode::PGNLS;
        if new {
            let beyond = !from.max && from.order(&end) != Ordering::Less;
            let ahead = !is_default(&from) && from.order(&start) == Ordering::Less;
            if beyond || ahead {
                return Ok(-EINVAL);
            }
        }
        let count = o.pgls().count.min(MAX_ENTRIES) as usize;
        let namespace = op.locator.namespace;
        let all = new && namespace == ALL_NAMESPACES;
        let listing = self.list(id, &from, count, |n| all || n == namespace)?;
        let done = listing.next.is_none();
        // The newer kind goes on where the next pg begins.
        let last = if new { end } else { HObjectRef::MAX };
        let next = listing.next.as_ref().map_or(last, HObject::as_ref);
        let entries = listing.objects.iter().map(HObject::as_ref);
        if new {
            // `pg_nls_response_t`.
            out.versioned(1, 1, |b| {
                next.encode(b);
                b.put_list(entries, |b, e| {
                    b.put_blob(e.namespace);
                    b.put_blob(e.name);
                    b.put_blob(e.key);
                });
            });
        } else {
            // `pg_ls_response_t`.
            out.put_u8(1);
            next.encode(out);
            out.put_list(entries, |b, e| {
                b.put_blob(e.name);
                b.put_blob(e.key);
            });
        }
        Ok(i32::from(done))
    }

    /// Heads that are no whiteouts.
    fn list(
        &mut self,
        id: PgId,
        from: &HObjectRef<'_>,
        count: usize,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Listing, StoreError> {
        const PAGE: usize = 256;
        let mut listing = Listing {
            objects: Vec::new(),
            next: Some((*from).into()),
        };
        let mut looked = 0;
        while let Some(next) = listing.next.take() {
            if listing.objects.len() >= count || looked >= MAX_LOOK {
                listing.next = Some(next);
                break;
            }
            let page = self.store.list(id, &next.as_ref(), PAGE + 1)?;
            let mut items = page.items.into_iter();
            for object in items.by_ref().take(PAGE) {
                if listing.objects.len() >= count {
                    listing.next = Some(object);
                    break;
                }
                looked += 1;
                let oid = object.as_ref();
                if oid.snap != NOSNAP || !wanted(oid.namespace) {
                    continue;
                }
                if self.store.info(id, &oid)?.is_some_and(|i| !i.whiteout) {
                    listing.objects.push(object);
                }
            }
            listing.next = listing.next.or_else(|| items.next());
        }
        Ok(listing)
    }
}

/// `hobject_t()`: where a client begins that does not know the pg's bounds.
fn is_default(o: &HObjectRef<'_>) -> bool {
    let blank = o.key.is_empty() && o.name.is_empty() && o.namespace.is_empty();
    blank && o.snap == 0 && o.hash == 0 && !o.max && o.pool == HObjectRef::MIN.pool
}
