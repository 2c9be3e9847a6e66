//! What a client that may use the cluster can make it hold.
//!
//! The rule: a request takes memory by the bytes that it brought, plus what these constants say,
//! whatever it asks for. Where Ceph has an option, the limit is its default and has its name, and
//! what goes beyond gets the errno that an OSD gives. Where Ceph has none, a client could make it
//! take all memory; there the limit is ours, and far above what RBD needs. Requests of one link that
//! are under way are bounded by [`session`](super::session), what waits to be sent to it by
//! `transport::listen::Limits`.
//!
//! Ceph limits neither the operations of a request (a 16-bit number) nor do we: each takes bytes of
//! the request, and what all of them do is counted together.

/// `osd_max_object_name_len`, of names and locators (ENAMETOOLONG).
pub(super) const NAME: usize = 2048;
/// `osd_max_object_namespace_len` (ENAMETOOLONG).
pub(super) const NAMESPACE: usize = 256;
/// `osd_max_write_size` (EMSGSIZE, which is `OSD_WRITETOOBIG`).
pub(super) const WRITE: usize = 90 << 20;
/// `osd_max_object_size` (EFBIG).
pub(super) const OBJECT: u64 = 128 << 20;

/// `osd_max_attr_name_len` (ENAMETOOLONG).
pub(super) const ATTR_NAME: usize = 100;
/// All attributes of an object, names and values, and its omap's header (EFBIG). The likeness of
/// `osd_max_attr_size`, which is about one value and off by default.
pub(super) const ATTRS: u64 = 4 << 20;
/// Keys and values of an object's omap, each pair for [`PAIR`] bytes more (EFBIG): a snapshot copies
/// them. Ceph has no such limit.
pub(super) const OMAP: u64 = OBJECT;
/// What a pair takes besides its bytes while it is being changed.
pub(super) const PAIR: u64 = 192;
/// `osd_max_omap_entries_per_request`; a longer listing is cut.
pub(super) const OMAP_ENTRIES: u64 = 1024;

/// What one request may return (E2BIG; a listing of an omap is cut, as with
/// `osd_max_omap_bytes_per_request`, which is 1 GiB).
pub(super) const REPLY: u64 = 256 << 20;
/// Bytes that a request's operations may make, copy, or look at without returning them (E2BIG):
/// one that writes the same bytes a thousand times, or asks for a thousand checksums.
pub(super) const WORK: u64 = 256 << 20;
/// The map of RBD's first format that TMAPUP takes apart (E2BIG).
pub(super) const TMAP: u64 = 16 << 20;

/// Snapshots in a snap context, and those that an object's clones have together (E2BIG).
pub(super) const SNAPS: usize = 4096;
/// Pieces of an object that its clones share with what came after them. Where they are more, a clone
/// counts as sharing nothing.
pub(super) const OVERLAPS: usize = 65_536;

/// `osd_max_write_op_reply_len` (EOVERFLOW).
pub(super) const WRITE_REPLY: u32 = 64;
/// Operations whose results the pg's log keeps for a repetition; a write with more of them cannot
/// ask for results (EOVERFLOW), and of a failed one only the failure is kept.
pub(super) const RETURNS: usize = 256;

/// Watches of an object, of a connection, and of an OSD (EUSERS).
pub(super) const OBJECT_WATCHES: usize = 4096;
pub(super) const LINK_WATCHES: usize = 16_384;
pub(super) const WATCHES: usize = 65_536;
/// Bytes that a notification brings, and an answer to one (EMSGSIZE).
pub(super) const NOTIFY: usize = 1 << 20;
/// Bytes that all watchers together are told by one (EMSGSIZE).
pub(super) const FAN_OUT: usize = 64 << 20;
/// Notifications under way in an OSD with the answers to them (ENOBUFS). An answer beyond it is
/// lost, so that its watcher is among those that have not answered.
pub(super) const NOTIFIES: usize = 64 << 20;
/// Seconds that a notification waits at most, whatever it says.
pub(super) const NOTIFY_TIMEOUT: u32 = 3600;
