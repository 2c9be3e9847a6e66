//! Carrying out a request's operations on one object (`PrimaryLogPG::do_op`, `execute_ctx` and
//! `do_osd_ops`, `src/osd/PrimaryLogPG.cc`).
//!
//! Nothing is changed here: what a request changes is handed over as one transaction. So, as in
//! Ceph, reads of data, attributes and omap see the object as it was before the request; only its
//! existence, size and other facts of its info follow the operations before.

mod attrs;
mod class;
mod data;
mod omap;
mod ranges;
mod snaps;
mod state;
#[cfg(test)]
mod tests;
mod tmap;
mod watch;
mod xxhash;

use smallvec::SmallVec;

use crate::codec::{Now, Reader, UTime};
use crate::objecter::msg::{
    EVersion, HObjectRef, MOsdOp, NOSNAP, OpCode, OpFlags, OsdFlags, OsdOp, PgId, ReqId, SNAPDIR,
    WatchOp,
};
use crate::osdmap::{Pool, SnapIntervals};

use super::cls::{Errno, Method};
use super::limits;
use super::outbox::Peer;
use super::store::{Store, Transaction};
pub use snaps::trim_object;
use state::State;
pub(super) use watch::LEGACY_WATCH;

/// A request on one object, as the pg hands it over.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub pg: PgId,
    pub peer: &'a Peer,
    pub reqid: ReqId,
    /// The object's head.
    pub head: HObjectRef<'a>,
    /// Operations, snapshot to read and snap context.
    pub op: &'a MOsdOp<'a>,
    /// All operations' data, one after the other.
    pub data: &'a [u8],
    pub flags: OsdFlags,
    pub mtime: UTime,
    /// The version a change gets.
    pub version: EVersion,
    /// The pg's newest.
    pub last_user_version: u64,
    pub now: Now,
}

/// What a request may need to know besides its object.
pub struct ExecEnv<'e> {
    pub method: fn(&str, &str) -> Option<&'static Method>,
    pub random: &'e mut dyn FnMut(&mut [u8]),
    pub pool: &'e Pool,
    /// Snapshots of the pool that are removed and not trimmed everywhere.
    pub removed_snaps: Option<&'e SnapIntervals>,
    /// Snapshots that the pg has trimmed.
    pub trimmed_snaps: Option<&'e SnapIntervals>,
    /// `CEPH_RELEASE_*` that the map requires of OSDs, and that of the oldest client it allows.
    pub releases: (u8, u8),
}

impl ExecEnv<'_> {
    fn removed(&self, snap: u64) -> bool {
        self.removed_snaps.is_some_and(|s| s.contains(snap))
    }

    fn trimmed(&self, snap: u64) -> bool {
        self.trimmed_snaps.is_some_and(|s| s.contains(snap))
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome<'a> {
    /// Zero or above on success, minus an errno otherwise. Minus EAGAIN means that the client is
    /// not answered: the pool is full, and it will send the request again.
    pub result: i32,
    /// Per operation: its result and the length of its part of the output.
    pub ops: SmallVec<[(i32, u32); 4]>,
    /// What to make durable, without an entry of the log; absent when nothing changes.
    pub txn: Option<Transaction<'a>>,
    /// Of the object as it is now.
    pub user_version: u64,
    /// Of the change.
    pub version: EVersion,
    /// What a change means for watchers; to be done once it is durable.
    pub effects: Vec<Effect>,
}

/// What is beyond one object's store. Effects are in the order in which they are to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The peer watches from now on, or has come back to its watch.
    Watch {
        cookie: u64,
        timeout_seconds: u32,
    },
    Unwatch {
        cookie: u64,
    },
    /// The object is gone: its watchers are told.
    Disconnect,
    Notify {
        cookie: u64,
        timeout_seconds: u32,
        payload: Vec<u8>,
    },
    NotifyAck {
        notify_id: u64,
        /// Zero from a client that does not say which of its watches answers.
        cookie: u64,
        payload: Vec<u8>,
    },
}

impl Effect {
    /// `PrimaryLogPG::do_osd_op_effects` takes them by kind.
    fn rank(&self) -> u8 {
        match self {
            Effect::Unwatch { .. } | Effect::Disconnect => 0,
            Effect::Watch { .. } => 1,
            Effect::Notify { .. } => 2,
            Effect::NotifyAck { .. } => 3,
        }
    }
}

/// An operation's result: nothing when it leaves that of the operation before it, which is what a
/// read does in Ceph that does not fail.
type Done = Result<Option<i32>, Errno>;

const OK: Done = Ok(Some(0));

const fn errno(code: i32) -> Errno {
    Errno(-code)
}

/// Whether a request is a write (`OpInfo::may_write`), or the errno of what cannot be understood.
fn may_write(req: &Request<'_>, env: &ExecEnv<'_>) -> Result<bool, Errno> {
    let mut writes = false;
    for part in req.op.split(req.data) {
        let (op, input) = part.map_err(|_| errno(libc::EINVAL))?;
        let ping = op.code == OpCode::WATCH && op.watch().op == WatchOp::Ping as u8;
        writes |= op.code.is_write() && !ping;
        if op.code == OpCode::CALL {
            writes |= class::find(env, &op, input)?.0.writes;
        }
    }
    Ok(writes)
}

/// Carries out a request. Appends what the operations return to `reply`, one after the other.
pub fn execute<'a, S: Store>(
    store: &mut S,
    env: &mut ExecEnv<'_>,
    req: &Request<'a>,
    reply: &mut Vec<u8>,
) -> Outcome<'a> {
    let failed = |e: Errno| Outcome {
        result: e.0,
        ops: req.op.ops.iter().map(|_| (0, 0)).collect(),
        ..Outcome::default()
    };
    let writes = match may_write(req, env) {
        Ok(writes) => writes,
        Err(e) => return failed(e),
    };
    if let Err(e) = check_snap(req, writes) {
        return failed(e);
    }
    match State::open(store, env, req, writes) {
        Ok(state) => run(state, reply),
        Err(e) => failed(e),
    }
}

/// Which snapshots a request can be about (`PrimaryLogPG::do_op`).
fn check_snap(req: &Request<'_>, writes: bool) -> Result<(), Errno> {
    let snap = req.op.snap_id;
    let fits = |op: OsdOp| (op.code == OpCode::LIST_SNAPS) == (snap == SNAPDIR);
    if (writes && snap != NOSNAP) || !req.op.ops.iter().all(fits) {
        return Err(errno(libc::EINVAL));
    }
    Ok(())
}

fn run<'a, S: Store>(mut state: State<'_, '_, 'a, S>, reply: &mut Vec<u8>) -> Outcome<'a> {
    let req = state.req;
    let mut outcome = Outcome {
        version: req.version,
        ..Outcome::default()
    };
    if let Err(e) = state.check_snap_context() {
        outcome.result = e.0;
        outcome.ops = req.op.ops.iter().map(|_| (0, 0)).collect();
        return outcome;
    }
    // An operation that does not set its result has that of the one before.
    let mut result = 0;
    let mut parts = req.op.split(req.data);
    for part in parts.by_ref() {
        let start = reply.len();
        let mut done = match part {
            Ok((op, input)) => operate(&mut state, &op, input, reply),
            Err(_) => Err(errno(libc::EINVAL)),
        };
        if reply.len() as u64 > limits::REPLY {
            reply.truncate(start);
            done = Err(errno(libc::E2BIG));
        }
        match done {
            Ok(Some(code)) => result = code,
            Ok(None) => {}
            Err(e) => result = e.0,
        }
        outcome.ops.push((result, (reply.len() - start) as u32));
        let flags = part.map_or(OpFlags::NONE, |(op, _)| op.flags);
        if result < 0 && flags.has(OpFlags::FAILOK) && result != -libc::EAGAIN {
            result = 0;
        }
        if result < 0 {
            break;
        }
    }
    // What comes after a failure is not tried.
    outcome.ops.resize(req.op.ops.len(), (0, 0));
    outcome.result = result;
    if result >= 0 {
        match state.finish(&mut outcome) {
            Ok(()) => outcome.effects.sort_by_key(Effect::rank),
            Err(e) => outcome.result = e.0,
        }
    }
    if outcome.result < 0 {
        outcome.txn = None;
        outcome.effects.clear();
        // The floor for what the object's version will be.
        outcome.user_version = req.last_user_version;
    }
    outcome
}

/// One operation (`PrimaryLogPG::do_osd_ops`).
fn operate<'a, S: Store>(
    state: &mut State<'_, '_, 'a, S>,
    op: &OsdOp,
    input: &'a [u8],
    out: &mut Vec<u8>,
) -> Done {
    if op.code.is_write() && op.code != OpCode::WATCH {
        state.user_modify = true;
    }
    let mut extent = op.extent();
    if op.code.uses_extent() && extent.truncate_seq == 1 && extent.truncate_size == u64::MAX {
        // How old clients say that nothing was truncated.
        (extent.truncate_seq, extent.truncate_size) = (0, 0);
    }
    match op.code {
        OpCode::READ | OpCode::SYNC_READ => state.read(extent, out),
        OpCode::SPARSE_READ => state.sparse_read(extent, out),
        OpCode::MAPEXT => state.map_extents(extent, out),
        OpCode::CMPEXT => state.compare_extent(extent, input),
        OpCode::CHECKSUM => state.checksum(op.checksum(), input, out),
        OpCode::STAT => state.stat(out),
        OpCode::ASSERT_VER => state.assert_version(op.version()),
        OpCode::ISDIRTY => {
            // What is not in a cache tier was never cleaned; what this request makes is not yet
            // dirty.
            out.push(u8::from(state.stored));
            OK
        }

        OpCode::WRITE => state.write(extent, input.into()),
        OpCode::WRITEFULL => state.write_full(extent.length, input.into()),
        OpCode::WRITESAME => state.write_same(op.writesame(), input),
        OpCode::APPEND => state.append(extent.length, input),
        OpCode::ZERO => state.zero(extent.offset, extent.length),
        OpCode::TRUNCATE => state.truncate(extent),
        OpCode::CREATE => {
            // A category that has no meaning any more.
            if !input.is_empty() && Reader::new(input).blob().is_err() {
                return Err(errno(libc::EINVAL));
            }
            state.create(op.flags.has(OpFlags::EXCL))
        }
        OpCode::DELETE => state.delete(),
        OpCode::ROLLBACK => state.roll_back(op.snap()),
        OpCode::SET_ALLOC_HINT => state.set_alloc_hint(op.alloc_hint()),
        OpCode::STARTSYNC => {
            state.touch_info();
            OK
        }

        OpCode::GETXATTR => state.get_attr(op.xattr(), input, out),
        OpCode::GETXATTRS => state.get_attrs(out),
        OpCode::CMPXATTR => state.compare_attr(op.xattr(), input),
        OpCode::SETXATTR => state.set_attr_op(op.xattr(), input),
        OpCode::RMXATTR => state.remove_attr_op(op.xattr(), input),

        OpCode::OMAP_GET_KEYS => state.omap_keys(input, out),
        OpCode::OMAP_GET_VALS => state.omap_values(input, out),
        OpCode::OMAP_GET_HEADER => state.omap_header_op(out),
        OpCode::OMAP_GET_VALS_BY_KEYS => state.omap_by_keys(input, out),
        OpCode::OMAP_CMP => state.omap_compare(input),
        OpCode::OMAP_SET_VALS => state.omap_set_op(input),
        OpCode::OMAP_SET_HEADER => state.omap_set_header(input.into()),
        OpCode::OMAP_CLEAR => state.omap_clear(),
        OpCode::OMAP_RM_KEYS => state.omap_remove_op(input),
        OpCode::OMAP_RM_KEY_RANGE => state.omap_remove_range_op(input),

        OpCode::TMAPGET => state.map_get(out),
        OpCode::TMAPPUT => state.map_put(input),
        OpCode::TMAPUP => state.map_update(input),

        OpCode::WATCH => state.watch(op.watch()),
        OpCode::NOTIFY => state.notify(op.cookie(), input),
        OpCode::NOTIFY_ACK => state.notify_ack(op.cookie(), input),
        OpCode::LIST_WATCHERS => state.list_watchers(out),
        OpCode::LIST_SNAPS => state.list_snaps(out),
        OpCode::CALL => state.call(op, input, out),

        // Pools here are no cache tiers.
        OpCode::CACHE_TRY_FLUSH
        | OpCode::CACHE_FLUSH
        | OpCode::CACHE_EVICT
        | OpCode::CACHE_PIN
        | OpCode::CACHE_UNPIN => Err(errno(libc::EINVAL)),
        // Copies from other objects and manifests are not to be had here.
        _ => Err(errno(libc::EOPNOTSUPP)),
    }
}
