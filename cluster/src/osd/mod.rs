//! The single-node server: a monitor and OSDs that speak Ceph's protocol, in one process.
//!
//! It exists for the first run, for tests and for benchmarks. It has one monitor, keeps one copy of
//! each object and says so in its maps; whoever outgrows it points the client at a Ceph cluster.
//!
//! Like the client, the core is sans-IO: [`mon`] and the OSD take messages and moments, and leave
//! what they want sent in an [`Outbox`]. An OSD and the placement groups it serves live on one
//! iothread; no operation takes a lock or changes thread.

mod buffers;
pub mod caps;
pub mod cls;
mod dups;
pub mod exec;
pub mod faults;
mod limits;
pub mod mon;
pub mod object;
pub mod outbox;
mod pg;
mod random;
pub mod serve;
pub mod server;
mod session;
pub mod store;
mod uuid;
mod watch;

pub use object::{CloneState, ObjectInfo, SnapSet, WatchRecord};
pub use outbox::{Link, Outbox, Peer};
pub use pg::Served;
pub use serve::{DetachedPg, MapHistory, Osd, OsdConfig, OsdEvent, PoolUsage};
