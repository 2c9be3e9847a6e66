//! Object classes: methods that run inside an OSD, on one object, in one transaction with the rest
//! of the request.

use crate::codec::{EntityAddr, EntityName, UTime};

use super::object::WatchRecord;

/// A result for the wire: minus an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// Pairs of an omap in ascending order, and whether more would follow.
pub type Pairs = (Vec<(Vec<u8>, Vec<u8>)>, bool);

/// What a method can do to its object (`src/objclass/objclass.h`).
///
/// As in Ceph, reads of data, attributes and omap see the object as it was before the request;
/// only its existence and size follow what the request has changed.
pub trait Context {
    /// Size and time of the last change; ENOENT where there is no object.
    fn stat(&mut self) -> Result<(u64, UTime)>;
    /// The version a client sees.
    fn user_version(&mut self) -> u64;
    fn create(&mut self, exclusive: bool) -> Result<()>;
    fn remove(&mut self) -> Result<()>;
    /// Shorter where the object ends earlier.
    fn read(&mut self, offset: u64, length: u64) -> Result<Vec<u8>>;
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()>;
    /// Replaces the data.
    fn write_full(&mut self, data: &[u8]) -> Result<()>;
    fn truncate(&mut self, size: u64) -> Result<()>;
    fn zero(&mut self, offset: u64, length: u64) -> Result<()>;

    /// ENODATA where there is none.
    fn attr(&mut self, name: &str) -> Result<Vec<u8>>;
    fn attrs(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    fn set_attr(&mut self, name: &str, value: &[u8]) -> Result<()>;
    fn remove_attr(&mut self, name: &str) -> Result<()>;

    /// ENOENT where there is no such key.
    fn omap_get(&mut self, key: &[u8]) -> Result<Vec<u8>>;
    /// Up to `max` pairs after `after` whose keys begin with `prefix`.
    fn omap_list(&mut self, after: &[u8], prefix: &[u8], max: usize) -> Result<Pairs>;
    fn omap_header(&mut self) -> Result<Vec<u8>>;
    fn omap_set(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    fn omap_set_header(&mut self, header: &[u8]) -> Result<()>;
    fn omap_remove(&mut self, key: &[u8]) -> Result<()>;
    fn omap_remove_range(&mut self, begin: &[u8], end: &[u8]) -> Result<()>;
    fn omap_clear(&mut self) -> Result<()>;

    /// The object's `SnapSet::seq`, and its clones' ids ascending.
    fn snap_set(&mut self) -> (u64, Vec<u64>);
    /// The snap context of the request: the newest snapshot, and all newest first.
    fn snap_context(&self) -> (u64, Vec<u64>);
    /// Who watches the object.
    fn watchers(&mut self) -> Result<Vec<WatchRecord>>;
    /// Has the call return a number above zero instead of zero.
    fn set_code(&mut self, code: i32);
    /// Who asks (`cls_get_request_origin`).
    fn origin(&self) -> (EntityName, EntityAddr);
    /// The OSD's wall clock.
    fn now(&self) -> UTime;
    /// `cls_gen_random_bytes`.
    fn random(&mut self, out: &mut [u8]);
    /// `CEPH_RELEASE_*` that the map requires of OSDs, and that of the oldest client it allows.
    fn releases(&self) -> (u8, u8);
    /// Features of the asking client's connection.
    fn client_features(&self) -> u64;
}

/// A method of a class.
#[derive(Clone, Copy)]
pub struct Method {
    pub class: &'static str,
    pub name: &'static str,
    /// It reads the object (`CLS_METHOD_RD`).
    pub reads: bool,
    /// It may change the object (`CLS_METHOD_WR`).
    pub writes: bool,
    pub call: fn(&mut dyn Context, &[u8]) -> Result<Vec<u8>>,
}
