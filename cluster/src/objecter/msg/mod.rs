//! The messages between a client and an OSD, in both directions.
//!
//! The client encodes requests and decodes replies; the embedded server does the opposite. Decoded
//! messages borrow the receive buffer, encoders write into the caller's vector.

mod backoff;
mod flags;
mod hobject;
mod ids;
mod list;
mod osd_map;
mod osd_op;
mod reply;
mod request;
mod watch_notify;

pub use backoff::{BackoffOp, MOsdBackoff};
pub use flags::{OpFlags, OsdFlags, OsdMapFlags};
pub use hobject::{HObject, HObjectRef, Locator, Redirect};
pub use ids::{EVersion, NO_SHARD, PgId, ReqId, SpgId};
pub use list::{Fixed, WireList};
pub use osd_map::MOsdMap;
pub use osd_op::{
    AllocHint, Checksum, ClsCall, CmpMode, CmpOp, Extent, OpCode, OsdOp, PgLs, WatchArgs, WatchOp,
    WriteSame, XattrArgs,
};
pub use reply::MOsdOpReply;
pub(crate) use request::front_len;
pub use request::{MOsdOp, OtelContext};
pub use watch_notify::{MWatchNotify, NotifyEvent};

/// Message types (`CEPH_MSG_*`, `src/include/ceph_fs.h` and `src/msg/Message.h`).
pub const OSD_MAP: u16 = 41;
pub const OSD_OP: u16 = 42;
pub const OSD_OPREPLY: u16 = 43;
pub const WATCH_NOTIFY: u16 = 44;
pub const OSD_BACKOFF: u16 = 61;

/// The newest state of an object, as a snapshot id (`CEPH_NOSNAP`).
pub const NOSNAP: u64 = u64::MAX - 1;
/// All clones of an object, for `list_snaps` (`CEPH_SNAPDIR`).
pub const SNAPDIR: u64 = u64::MAX;

/// `blkin_trace_info`: three ids, all zero when nothing is traced.
pub(crate) const TRACE_SIZE: usize = 24;
