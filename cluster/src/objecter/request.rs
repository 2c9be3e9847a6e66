use std::rc::Rc;
use std::time::Duration;

use super::msg::{HObjectRef, MOsdOp, MOsdOpReply, NOSNAP, OSD_BACKOFF, OSD_OP, OsdFlags};
use super::msg::{MOsdBackoff, OsdOp, WireList};
use super::op::ObjectOp;
use super::session::BackoffAck;
use super::table::Op;
use super::target::Target;
use crate::codec::EntityAddrVec;
use crate::payload::Payload;

/// The caller's name for a request in flight. Ids grow from request to request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// One connection to one OSD. A new connection to the same OSD is another session, so that news of
/// an old one cannot be mistaken for news of the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    pub osd: i32,
    pub incarnation: u64,
}

/// The snapshots that a write must preserve: of the image, newest first, never those of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapContext {
    pub seq: u64,
    pub snaps: Vec<u64>,
}

/// Whether a request reads or writes, and which state of the object.
#[derive(Debug, Clone)]
pub enum Access {
    /// Reads at a snapshot, or at [`NOSNAP`].
    Read(u64),
    Write(Rc<SnapContext>),
}

/// Operations on one target, with everything that says how to go about them.
#[derive(Debug, Clone)]
pub struct Request {
    pub target: Target,
    pub ops: ObjectOp,
    pub access: Access,
    /// Beyond those that follow from the access.
    pub flags: OsdFlags,
    /// Comes back with the completion.
    pub token: u64,
    /// Overrides the objecter's.
    pub timeout: Option<Duration>,
}

impl Request {
    pub fn read(target: Target, ops: ObjectOp, token: u64) -> Request {
        Request {
            target,
            ops,
            access: Access::Read(NOSNAP),
            flags: OsdFlags::NONE,
            token,
            timeout: None,
        }
    }

    pub fn write(target: Target, ops: ObjectOp, snapc: Rc<SnapContext>, token: u64) -> Request {
        Request {
            access: Access::Write(snapc),
            ..Request::read(target, ops, token)
        }
    }

    /// Lists objects of the pg that `target` names, following no cache tier, as librados does.
    pub fn pg_list(target: Target, count: u64, after: HObjectRef<'_>, token: u64) -> Request {
        let ops = ObjectOp::new().pg_list(count, after, 0);
        Request::read(target, ops, token).with_flags(OsdFlags::IGNORE_OVERLAY)
    }

    /// Answers a notification that a watch delivered.
    pub fn notify_ack(
        target: Target,
        notify_id: u64,
        cookie: u64,
        reply: &[u8],
        token: u64,
    ) -> Request {
        let ops = ObjectOp::new().notify_ack(notify_id, cookie, reply);
        Request::read(target, ops, token)
    }

    pub fn at_snap(mut self, snap: u64) -> Request {
        self.access = Access::Read(snap);
        self
    }

    pub fn with_flags(mut self, flags: OsdFlags) -> Request {
        self.flags |= flags;
        self
    }

    pub fn with_timeout(mut self, timeout: Duration) -> Request {
        self.timeout = Some(timeout);
        self
    }
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Too much is in flight. The request comes back; [`Objecter::has_room`](super::Objecter)
    /// tells beforehand and without an allocation.
    #[error("too many operations in flight")]
    Busy(Box<Request>),
    #[error("this client is blocklisted")]
    Blocklisted,
    #[error("pool is marked to fail every operation")]
    PoolEio,
    #[error("request has no operations")]
    Empty,
    #[error("watch cookie {0} is in use or out of range")]
    BadCookie(u64),
    #[error("no watch has cookie {0}")]
    NoWatch(u64),
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The OSD's answer, as a positive errno. A failed `cmpext` gives 4095 plus the offset of the
    /// first byte that differs.
    #[error("OSD answered with error {0}")]
    Errno(i32),
    /// A write that timed out may still be carried out.
    #[error("operation timed out")]
    TimedOut,
    #[error("operation was cancelled")]
    Cancelled,
    #[error("pool does not exist")]
    PoolGone,
    #[error("pool is marked to fail every operation")]
    PoolEio,
    #[error("this client is blocklisted")]
    Blocklisted,
}

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ETIMEDOUT: i32 = 110;
const ECANCELED: i32 = 125;
/// What OSDs tell a fenced client (`EBLOCKLISTED`, `src/include/rados.h`).
pub(super) const EBLOCKLISTED: i32 = 108;
pub(super) const EAGAIN: i32 = 11;

impl OpError {
    pub(super) fn from_result(result: i32) -> Result<(), OpError> {
        match result {
            0.. => Ok(()),
            r if r == -EBLOCKLISTED => Err(OpError::Blocklisted),
            r => Err(OpError::Errno(r.saturating_neg())),
        }
    }

    /// The errno that librados gives for this.
    pub fn errno(self) -> i32 {
        match self {
            OpError::Errno(e) => e,
            OpError::TimedOut => ETIMEDOUT,
            OpError::Cancelled => ECANCELED,
            OpError::PoolGone => ENOENT,
            OpError::PoolEio => EIO,
            OpError::Blocklisted => EBLOCKLISTED,
        }
    }
}

/// What one operation of a request returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpResult<'a> {
    /// Zero or above on success, minus an errno otherwise.
    pub rval: i32,
    pub data: &'a [u8],
}

/// The results of the single operations, borrowed from the receive buffer.
#[derive(Debug, Clone, Copy)]
pub struct OpResults<'a> {
    ops: WireList<'a, OsdOp>,
    rvals: WireList<'a, i32>,
    data: &'a [u8],
}

impl<'a> OpResults<'a> {
    pub(super) const NONE: OpResults<'static> = OpResults {
        ops: WireList::Wire(&[]),
        rvals: WireList::Wire(&[]),
        data: &[],
    };

    /// `None` when the operations claim more data than there is.
    pub(super) fn new(reply: &MOsdOpReply<'a>, data: &'a [u8]) -> Option<OpResults<'a>> {
        let claimed = reply.ops.iter().map(|op| u64::from(op.payload_len)).sum();
        (data.len() as u64 >= claimed).then_some(OpResults {
            ops: reply.ops,
            rvals: reply.rvals,
            data,
        })
    }

    pub fn len(&self) -> usize {
        self.ops.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = OpResult<'a>> + use<'a> {
        let mut rest = self.data;
        self.ops
            .iter()
            .zip(self.rvals.iter())
            .map(move |(op, rval)| {
                // `new` made sure that the data suffices.
                let (data, tail) = rest.split_at(op.payload_len as usize);
                rest = tail;
                OpResult { rval, data }
            })
    }

    pub fn get(&self, i: usize) -> Option<OpResult<'a>> {
        self.iter().nth(i)
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy)]
pub struct OpReply<'a> {
    pub result: Result<(), OpError>,
    /// The object's version, for `assert_version`.
    pub version: u64,
    pub results: OpResults<'a>,
}

impl OpReply<'_> {
    pub(crate) fn failed(error: OpError) -> OpReply<'static> {
        OpReply {
            result: Err(error),
            version: 0,
            results: OpResults::NONE,
        }
    }
}

/// What a watch has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEvent<'a> {
    /// Somebody notifies; to be answered with [`Request::notify_ack`].
    Notify {
        notify_id: u64,
        /// The global id of who notifies.
        notifier: u64,
        payload: &'a [u8],
    },
    /// The watch is gone and will not come back by itself: an errno, ENOTCONN when the object or
    /// the OSD's record of the watch has disappeared. To be answered with `unwatch` and a new
    /// watch.
    Disconnected(i32),
    /// No ping has been answered for as long as an OSD keeps a silent watch: notifications may
    /// have been missed. The watch still tries to recover.
    Unconfirmed,
}

/// Where outcomes go. Called while the objecter is busy, so an implementation notes and returns.
pub trait Completions {
    /// A request has ended. Called exactly once for each that was taken.
    fn op_done(&mut self, token: u64, reply: OpReply<'_>);

    fn watch_event(&mut self, cookie: u64, event: WatchEvent<'_>);

    /// A notify has ended. `replies` are for
    /// [`results::NotifyReplies`](super::results::NotifyReplies), and partial when the error is
    /// ETIMEDOUT.
    fn notify_done(&mut self, token: u64, result: Result<(), OpError>, replies: &[u8]);
}

/// What the owner is to do.
#[derive(Debug)]
pub enum Action<'a> {
    /// Connect, then tell `session_open` or `session_lost`.
    OpenSession {
        session: SessionId,
        addrs: EntityAddrVec,
    },
    /// Drop the connection; nothing about it is to be told any more.
    CloseSession { session: SessionId },
    /// Write a message to the session's connection, right away and in the order given.
    Send {
        session: SessionId,
        message: Outgoing<'a>,
    },
    /// Requests have waited for long: send a keepalive, so that a dead connection is noticed.
    Ping { session: SessionId },
    /// Get maps newer than `have` from the monitors; once, or as they come.
    WantMap { have: u32, continuous: bool },
    /// Ask the monitors for their newest epoch and tell `latest_map`, with this token.
    WantLatestEpoch { token: u64 },
    /// This client's address is on the blocklist. Everything in flight has failed, new requests
    /// are refused.
    Blocklisted,
}

/// The part of a message header that depends on the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutHeader {
    pub tid: u64,
    pub kind: u16,
    pub version: u16,
    pub compat: u16,
    pub priority: u16,
}

/// A message to be sent.
pub struct Outgoing<'a> {
    pub header: OutHeader,
    pub(super) body: OutBody<'a>,
}

pub(super) enum OutBody<'a> {
    Op {
        op: &'a Op,
        flags: OsdFlags,
        epoch: u32,
        features: u64,
    },
    Ack(BackoffAck),
}

impl std::fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.header.fmt(f)
    }
}

impl<'a> Outgoing<'a> {
    /// `osd_client_op_priority`, for backoff acknowledgements too: they must not overtake or lag
    /// behind requests.
    pub(super) fn new(priority: u16, body: OutBody<'a>) -> Outgoing<'a> {
        let (tid, kind, version, compat) = match &body {
            OutBody::Op { op, .. } => (op.tid, OSD_OP, MOsdOp::VERSION, MOsdOp::COMPAT),
            OutBody::Ack(_) => (0, OSD_BACKOFF, MOsdBackoff::VERSION, MOsdBackoff::COMPAT),
        };
        Outgoing {
            header: OutHeader {
                tid,
                kind,
                version,
                compat,
                priority,
            },
            body,
        }
    }

    /// Appends the message's front.
    pub fn encode_front(&self, out: &mut Vec<u8>) {
        match &self.body {
            OutBody::Op {
                op,
                flags,
                epoch,
                features,
            } => encode_op(op, *flags, *epoch, *features, out),
            OutBody::Ack(ack) => ack.message().encode(out),
        }
    }

    /// The message's data, in pieces.
    pub fn data(&self) -> &'a [Payload] {
        match self.body {
            OutBody::Op { op, .. } => op.body.data(),
            OutBody::Ack(_) => &[],
        }
    }
}

/// `Objecter::_prepare_osd_op`.
fn encode_op(op: &Op, flags: OsdFlags, epoch: u32, features: u64, out: &mut Vec<u8>) {
    let object = &op.target.object;
    let (snap_seq, snaps) = match &op.snapc {
        Some(snapc) => (snapc.seq, &snapc.snaps[..]),
        None => (0, &[][..]),
    };
    let names = object.name.len() + object.namespace.len() + object.key.len();
    let ops = op.body.ops();
    out.reserve(super::msg::front_len(names, ops.len(), snaps.len()));
    // `attempts` counts the one that is on its way.
    let retry = op.attempts.saturating_sub(1);
    MOsdOp {
        pgid: op.target.spg,
        hash: op.target.hash(),
        epoch,
        flags,
        reqid: Default::default(),
        trace: [0; super::msg::TRACE_SIZE],
        otel: None,
        client_inc: 0,
        mtime: op.mtime,
        locator: op.target.locator(),
        oid: &object.name,
        ops: WireList::Native(ops),
        snap_id: op.snap_id,
        snap_seq,
        snaps: WireList::Native(snaps),
        retry_attempt: i32::try_from(retry).unwrap_or(i32::MAX),
        features,
    }
    .encode(MOsdOp::VERSION, out);
}

/// A message that a session received.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'a> {
    pub kind: u16,
    pub version: u16,
    pub tid: u64,
    pub front: &'a [u8],
    pub data: &'a [u8],
}

/// Why a received message makes its connection useless. To be answered with `session_lost`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("bad message from osd.{osd}: {source}")]
    Decode {
        osd: i32,
        source: crate::codec::DecodeError,
    },
    #[error("osd.{osd} asked for more than {limit} backoffs")]
    TooManyBackoffs { osd: i32, limit: usize },
}

impl SnapContext {
    /// Without the snapshots that `gone` names.
    pub(super) fn without(&self, gone: impl Fn(u64) -> bool) -> SnapContext {
        SnapContext {
            seq: self.seq,
            snaps: self.snaps.iter().copied().filter(|&s| !gone(s)).collect(),
        }
    }
}
