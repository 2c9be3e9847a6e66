//! Object classes: methods that run inside an OSD, on one object, in one transaction with the rest
//! of the request.

use std::sync::LazyLock;

use crate::codec::{EntityAddr, EntityName, UTime};

use super::object::WatchRecord;

mod hello;
mod journal;
mod lock;
mod rbd;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod testing;
mod value;

/// A result for the wire: minus an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const NOENT: Errno = Errno(-libc::ENOENT);
    pub const IO: Errno = Errno(-libc::EIO);
    pub const NXIO: Errno = Errno(-libc::ENXIO);
    pub const NOEXEC: Errno = Errno(-libc::ENOEXEC);
    pub const BADF: Errno = Errno(-libc::EBADF);
    pub const BUSY: Errno = Errno(-libc::EBUSY);
    pub const EXIST: Errno = Errno(-libc::EEXIST);
    pub const XDEV: Errno = Errno(-libc::EXDEV);
    pub const INVAL: Errno = Errno(-libc::EINVAL);
    pub const RANGE: Errno = Errno(-libc::ERANGE);
    pub const NOSYS: Errno = Errno(-libc::ENOSYS);
    pub const NODATA: Errno = Errno(-libc::ENODATA);
    pub const OPNOTSUPP: Errno = Errno(-libc::EOPNOTSUPP);
    pub const STALE: Errno = Errno(-libc::ESTALE);
    pub const OVERFLOW: Errno = Errno(-libc::EOVERFLOW);
    pub const DQUOT: Errno = Errno(-libc::EDQUOT);
}

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

impl Method {
    const fn new(
        class: &'static str,
        name: &'static str,
        (reads, writes): (bool, bool),
        call: fn(&mut dyn Context, &[u8]) -> Result<Vec<u8>>,
    ) -> Method {
        Method {
            class,
            name,
            reads,
            writes,
            call,
        }
    }
}

/// `CLS_METHOD_RD`, `CLS_METHOD_WR` and both.
const READ: (bool, bool) = (true, false);
const WRITE: (bool, bool) = (false, true);
const READ_WRITE: (bool, bool) = (true, true);

/// All methods, ordered by class and name.
static METHODS: LazyLock<Vec<&'static Method>> = LazyLock::new(|| {
    let mut all: Vec<_> = [hello::METHODS, journal::METHODS, lock::METHODS]
        .iter()
        .chain(rbd::METHODS)
        .flat_map(|family| family.iter())
        .collect();
    all.sort_unstable_by_key(|m| (m.class, m.name));
    all
});

/// All methods.
pub fn all() -> &'static [&'static Method] {
    &METHODS
}

pub fn find(class: &str, method: &str) -> Option<&'static Method> {
    METHODS
        .binary_search_by_key(&(class, method), |m| (m.class, m.name))
        .ok()
        .map(|at| METHODS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_found_by_class_and_name() {
        let create = find("rbd", "create").unwrap();
        assert!(create.reads && create.writes);
        assert!(!find("lock", "get_info").unwrap().writes);
        assert!(find("rbd", "lock").is_none());
        assert!(find("nosuch", "create").is_none());
    }

    #[test]
    fn no_method_is_listed_twice() {
        for pair in METHODS.windows(2) {
            assert_ne!((pair[0].class, pair[0].name), (pair[1].class, pair[1].name));
        }
    }
}
