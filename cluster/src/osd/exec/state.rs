//! The state of a request while its operations are carried out (`PrimaryLogPG::OpContext`).

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::ranges::{self, Range};
use super::{Done, Effect, ExecEnv, Outcome, Request, errno};
use crate::codec::UTime;
use crate::objecter::msg::{HObjectRef, NOSNAP, OsdFlags, SNAPDIR};
use crate::osd::cls::Errno;
use crate::osd::limits;
use crate::osd::object::ObjectInfo;
use crate::osd::store::{Obj, Step, Store, StoreError, Transaction};
use crate::osdmap::pool::flag;

/// `CEPH_MAXSNAP`.
const MAX_SNAP: u64 = u64::MAX - 2;

/// Places of objects in the transaction.
pub(super) const HEAD: Obj = 0;

pub(super) struct State<'s, 'e, 'a, S> {
    pub store: &'s mut S,
    pub env: &'s mut ExecEnv<'e>,
    pub req: &'s Request<'a>,
    /// The head, or the clone that a snapshot is read from.
    pub target: HObjectRef<'a>,
    pub writes: bool,
    /// The store has the object, were it only as a whiteout.
    pub stored: bool,
    /// It was there for clients.
    pub was_there: bool,
    /// As it is after the operations so far. Snapshots and watchers are here only in a write.
    pub info: ObjectInfo,
    pub exists: bool,
    /// The snap context of a write: the newest snapshot, and those that exist, newest first.
    pub snap_seq: u64,
    pub snaps: SmallVec<[u64; 4]>,

    txn: Transaction<'a>,
    /// The transaction does something, if only to the info.
    dirty: bool,
    /// A change that shows in nothing but the object's version.
    pub modify: bool,
    /// A change that clients see, so that the object gets a new version for them.
    pub user_modify: bool,
    /// The size of the state that a clone was made of.
    pub preserved: Option<u64>,
    /// The store failed where no result could say so.
    pub broken: bool,
    /// An operation gave the object omap.
    pub omap_made: bool,
    /// What operations changed of the data, for the overlap with the newest clone.
    pub modified: Vec<Range>,
    pub effects: Vec<Effect>,
    /// Operations so far that read or write, for the rules of class methods.
    pub reads: u32,
    pub changes: u32,

    /// Bytes as [`limits::WORK`] counts them.
    work: u64,
    /// Sizes of the object's attributes, as far as the operations so far tell, once one of them has
    /// made some.
    pub attr_sizes: Option<BTreeMap<Vec<u8>, u64>>,
    /// Likewise of its omap, as [`limits::OMAP`] counts it.
    pub omap_size: Option<u64>,
}

/// What the client is told of a store that fails.
pub(super) fn io(_: StoreError) -> Errno {
    errno(libc::EIO)
}

/// `check_offset_and_length`.
pub(super) fn check_size(offset: u64, length: u64) -> Result<(), Errno> {
    let max = limits::OBJECT;
    if offset >= max || length > max || offset + length > max {
        return Err(errno(libc::EFBIG));
    }
    Ok(())
}

/// Everything but snapshots and watchers, so that nothing is allocated.
fn scalars(info: &ObjectInfo) -> ObjectInfo {
    ObjectInfo {
        size: info.size,
        mtime: info.mtime,
        version: info.version,
        user_version: info.user_version,
        last_reqid: info.last_reqid,
        truncate_seq: info.truncate_seq,
        truncate_size: info.truncate_size,
        expected_object_size: info.expected_object_size,
        expected_write_size: info.expected_write_size,
        alloc_hint_flags: info.alloc_hint_flags,
        whiteout: info.whiteout,
        ..ObjectInfo::default()
    }
}

impl<'s, 'e, 'a, S: Store> State<'s, 'e, 'a, S> {
    /// Finds the object (`PrimaryLogPG::find_object_context` and the end of `do_op`).
    pub(super) fn open(
        store: &'s mut S,
        env: &'s mut ExecEnv<'e>,
        req: &'s Request<'a>,
        writes: bool,
    ) -> Result<State<'s, 'e, 'a, S>, Errno> {
        let missing = errno(libc::ENOENT);
        let target = match req.op.snap_id {
            NOSNAP | SNAPDIR => req.head,
            snap => {
                let head = store.info(req.pg, &req.head).map_err(io)?;
                super::snaps::find(head.ok_or(missing)?, env, &req.head, snap)?
            }
        };
        let found = store.info(req.pg, &target).map_err(io)?;
        let stored = found.is_some();
        let info = match found {
            Some(info) if writes => info.clone(),
            Some(info) => scalars(info),
            None => ObjectInfo::default(),
        };
        let was_there = stored && !info.whiteout;
        // What is left of a deleted object may only be asked for its clones.
        let askable = was_there || stored && req.op.snap_id == SNAPDIR;
        if !writes && !askable {
            return Err(missing);
        }
        Ok(State {
            store,
            env,
            req,
            target,
            writes,
            stored,
            was_there,
            info,
            exists: stored,
            snap_seq: 0,
            snaps: SmallVec::new(),
            txn: Transaction::default(),
            dirty: false,
            modify: false,
            user_modify: false,
            preserved: None,
            broken: false,
            omap_made: false,
            modified: Vec::new(),
            effects: Vec::new(),
            reads: 0,
            changes: 0,
            work: 0,
            attr_sizes: None,
            omap_size: None,
        })
    }

    /// The snap context of a write, and whether it is one (`PrimaryLogPG::execute_ctx`,
    /// `SnapContext::is_valid`).
    pub(super) fn check_snap_context(&mut self) -> Result<(), Errno> {
        if !self.writes {
            return Ok(());
        }
        let (op, pool) = (self.req.op, self.env.pool);
        let flags = self.req.flags;
        if pool.flags & flag::POOL_SNAPS != 0 && !flags.has(OsdFlags::ENFORCE_SNAPC) {
            self.snap_seq = pool.snap_seq;
            self.snaps.extend(pool.snaps.keys().rev().copied());
        } else {
            self.snap_seq = op.snap_seq;
            if op.snaps.len() > limits::SNAPS {
                return Err(errno(libc::E2BIG));
            }
            let env = &*self.env;
            let there = |s: &u64| !env.removed(*s) && !env.trimmed(*s);
            self.snaps.extend(op.snaps.iter().filter(there));
        }
        if flags.has(OsdFlags::ORDERSNAP) && self.snap_seq < self.info.snaps.seq {
            // EOLDSNAPC is the number of ERESTART.
            return Err(errno(libc::ERESTART));
        }
        let falling = self.snaps.windows(2).all(|w| w[0] > w[1]);
        let newest = self.snaps.first().is_none_or(|s| *s <= self.snap_seq);
        if self.snap_seq > MAX_SNAP || !newest || !falling {
            return Err(errno(libc::EINVAL));
        }
        Ok(())
    }

    /// The object exists from here on (`PrimaryLogPG::maybe_create_new_object`). In Ceph a whiteout
    /// stays one, although the client is told otherwise, when nothing but this happens to it.
    pub(super) fn make(&mut self) {
        if !self.exists || self.info.whiteout {
            self.exists = true;
            self.info.whiteout = false;
            self.touch_info();
        }
    }

    /// Counts what an operation makes, copies or looks at.
    pub(super) fn spend(&mut self, bytes: u64) -> Result<(), Errno> {
        self.work = self.work.saturating_add(bytes);
        if self.work > limits::WORK {
            return Err(errno(libc::E2BIG));
        }
        Ok(())
    }

    /// Something changes, if only the info.
    pub(super) fn touch_info(&mut self) {
        self.begin();
        self.dirty = true;
    }

    fn begin(&mut self) {
        if self.txn.objects.is_empty() {
            self.txn.objects.push(self.req.head.into());
            self.preserve();
        }
    }

    pub(super) fn step(&mut self, step: Step<'a>) {
        self.touch_info();
        self.txn.steps.push(step);
    }

    /// The place of another object in the transaction.
    pub(super) fn other(&mut self, oid: HObjectRef<'_>) -> Obj {
        self.begin();
        self.txn.objects.push(oid.into());
        self.txn.objects.len() - 1
    }

    /// A step before all others.
    pub(super) fn early_step(&mut self, step: Step<'a>) {
        self.txn.steps.push(step);
    }

    pub(super) fn change_data(&mut self, offset: u64, length: u64) {
        ranges::insert(&mut self.modified, offset, length);
    }

    pub(super) fn stat(&mut self, out: &mut Vec<u8>) -> Done {
        use crate::codec::Put;
        if !self.exists || self.info.whiteout {
            return Err(errno(libc::ENOENT));
        }
        out.put_u64(self.info.size);
        self.info.mtime.encode(out);
        Ok(None)
    }

    pub(super) fn assert_version(&mut self, version: u64) -> Done {
        self.reads += 1;
        match version.cmp(&self.info.user_version) {
            _ if version == 0 => Err(errno(libc::EINVAL)),
            std::cmp::Ordering::Less => Err(errno(libc::ERANGE)),
            std::cmp::Ordering::Greater => Err(errno(libc::EOVERFLOW)),
            std::cmp::Ordering::Equal => Ok(None),
        }
    }

    /// Makes the transaction of what was done (`PrimaryLogPG::prepare_transaction` after the
    /// operations, and `finish_ctx`).
    pub(super) fn finish(mut self, outcome: &mut Outcome<'a>) -> Result<(), Errno> {
        outcome.user_version = self.info.user_version;
        outcome.effects = std::mem::take(&mut self.effects);
        if !self.dirty && !self.modify {
            return Ok(());
        }
        self.check_full()?;
        self.begin();
        if self.broken {
            return Err(errno(libc::EIO));
        }
        self.account_to_clones()?;
        let req = self.req;
        if self.user_modify {
            // No less than the pg's version, which is all that old clients see.
            let next = req.last_user_version.max(self.info.user_version) + 1;
            self.info.user_version = next.max(req.version.version);
        }
        outcome.user_version = self.info.user_version;
        if self.exists {
            self.info.version = req.version;
            self.info.last_reqid = req.reqid;
            if req.mtime != UTime::default() {
                self.info.mtime = req.mtime;
            }
            let info = Box::new(std::mem::take(&mut self.info));
            self.txn.steps.push(Step::SetInfo { obj: HEAD, info });
        }
        outcome.txn = Some(self.txn);
        Ok(())
    }

    /// A full pool takes nothing that makes it fuller.
    fn check_full(&mut self) -> Result<(), Errno> {
        let (req, pool) = (self.req, self.env.pool);
        if pool.flags & flag::FULL == 0 || req.flags.has(OsdFlags::FULL_FORCE) {
            return Ok(());
        }
        let old = self.store.info(req.pg, &req.head).map_err(io)?;
        let (old_size, new_size) = (
            old.map_or(0, |i| i.size),
            if self.exists { self.info.size } else { 0 },
        );
        if new_size <= old_size && (self.stored || !self.exists) {
            return Ok(());
        }
        Err(errno(if !req.flags.has(OsdFlags::FULL_TRY) {
            libc::EAGAIN
        } else if pool.flags & flag::FULL_QUOTA != 0 {
            libc::EDQUOT
        } else {
            libc::ENOSPC
        }))
    }
}
