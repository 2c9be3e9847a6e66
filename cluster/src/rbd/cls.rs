//! The methods of the OSDs' object class `rbd`, and the values they return.
//!
//! Source: `src/cls/rbd/cls_rbd.cc` (the methods), `src/cls/rbd/cls_rbd_client.cc` (their inputs
//! and outputs), `src/cls/rbd/cls_rbd_types.cc` (the structures).

use crate::codec::{Put, Reader, Result, UTime};

/// No snapshot: the head of an image (`CEPH_NOSNAP`).
pub const NO_SNAP: u64 = u64::MAX - 1;

/// A call of an object class method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub class: &'static str,
    pub method: &'static str,
    pub input: Vec<u8>,
}

fn rbd(method: &'static str, input: impl FnOnce(&mut Vec<u8>)) -> Call {
    let mut bytes = Vec::new();
    input(&mut bytes);
    Call {
        class: "rbd",
        method,
        input: bytes,
    }
}

fn no_input(_: &mut Vec<u8>) {}

/// On `rbd_id.NAME`: the image's id.
pub fn get_id() -> Call {
    rbd("get_id", no_input)
}

/// On `rbd_id.NAME`: sets the id of a new image.
pub fn set_id(id: &str) -> Call {
    rbd("set_id", |b| b.put_string(id))
}

/// On the header: order and size, of the head or a snapshot.
pub fn get_size(snap: u64) -> Call {
    rbd("get_size", |b| b.put_u64(snap))
}

/// On the header: all features, and those an opener must know.
pub fn get_features(read_only: bool) -> Call {
    rbd("get_features", |b| {
        b.put_u64(NO_SNAP);
        b.put_bool(read_only);
    })
}

/// On the header: the prefix of the data objects' names.
pub fn get_object_prefix() -> Call {
    rbd("get_object_prefix", no_input)
}

/// On the header of an image with feature striping.
pub fn get_stripe_unit_count() -> Call {
    rbd("get_stripe_unit_count", no_input)
}

pub fn set_stripe_unit_count(unit: u64, count: u64) -> Call {
    rbd("set_stripe_unit_count", |b| {
        b.put_u64(unit);
        b.put_u64(count);
    })
}

/// On the header: the id of the pool that holds the data, -1 for the header's own.
pub fn get_data_pool() -> Call {
    rbd("get_data_pool", no_input)
}

pub fn get_create_timestamp() -> Call {
    rbd("get_create_timestamp", no_input)
}

pub fn get_access_timestamp() -> Call {
    rbd("get_access_timestamp", no_input)
}

pub fn get_modify_timestamp() -> Call {
    rbd("get_modify_timestamp", no_input)
}

/// On the header: the snap context writes must carry.
pub fn get_snapcontext() -> Call {
    rbd("get_snapcontext", no_input)
}

/// On the header: one snapshot.
pub fn snapshot_get(snap: u64) -> Call {
    rbd("snapshot_get", |b| b.put_u64(snap))
}

/// On the header: the image this one is a clone of.
pub fn parent_get() -> Call {
    rbd("parent_get", no_input)
}

/// On the header: which operations (`op_features`) the image takes part in.
pub fn op_features_get() -> Call {
    rbd("op_features_get", no_input)
}

/// On the header: image flags (object map invalid and the like), of the head or a snapshot.
pub fn get_flags(snap: u64) -> Call {
    rbd("get_flags", |b| b.put_u64(snap))
}

/// On a header that does not exist yet. `data_pool` is -1 without feature data-pool.
pub fn create(size: u64, order: u8, features: u64, prefix: &str, data_pool: i64) -> Call {
    rbd("create", |b| {
        b.put_u64(size);
        b.put_u8(order);
        b.put_u64(features);
        b.put_string(prefix);
        b.put_i64(data_pool);
    })
}

/// On `rbd_directory`.
pub fn dir_add_image(name: &str, id: &str) -> Call {
    rbd("dir_add_image", |b| {
        b.put_string(name);
        b.put_string(id);
    })
}

/// On `rbd_directory`. Removes the pair only when it stands there as given.
pub fn dir_remove_image(name: &str, id: &str) -> Call {
    rbd("dir_remove_image", |b| {
        b.put_string(name);
        b.put_string(id);
    })
}

/// On `rbd_directory`: names and ids after `start`, in name order.
pub fn dir_list(start: &str, max: u64) -> Call {
    rbd("dir_list", |b| {
        b.put_string(start);
        b.put_u64(max);
    })
}

/// On `rbd_directory` of a namespace: fails when the namespace is gone or going.
pub fn dir_state_assert_ready() -> Call {
    rbd("dir_state_assert", |b| b.put_u8(0))
}

/// `get_size`: order, size in bytes.
pub fn size_reply(bytes: &[u8]) -> Result<(u8, u64)> {
    let mut r = Reader::new(bytes);
    let order = r.u8()?;
    Ok((order, r.u64()?))
}

/// `get_features`: all features, incompatible ones.
pub fn features_reply(bytes: &[u8]) -> Result<(u64, u64)> {
    let mut r = Reader::new(bytes);
    Ok((r.u64()?, r.u64()?))
}

pub fn string_reply(bytes: &[u8]) -> Result<String> {
    Reader::new(bytes).string().map(str::to_owned)
}

pub fn u64_reply(bytes: &[u8]) -> Result<u64> {
    Reader::new(bytes).u64()
}

pub fn i64_reply(bytes: &[u8]) -> Result<i64> {
    Reader::new(bytes).i64()
}

pub fn timestamp_reply(bytes: &[u8]) -> Result<UTime> {
    UTime::decode(&mut Reader::new(bytes))
}

/// `get_stripe_unit_count`: unit in bytes, count.
pub fn stripe_reply(bytes: &[u8]) -> Result<(u64, u64)> {
    let mut r = Reader::new(bytes);
    Ok((r.u64()?, r.u64()?))
}

/// `get_snapcontext`: sequence and snapshot ids, newest first.
pub fn snapcontext_reply(bytes: &[u8]) -> Result<(u64, Vec<u64>)> {
    let mut r = Reader::new(bytes);
    let seq = r.u64()?;
    Ok((seq, r.list(8, |r| r.u64())?))
}

/// `dir_list` and others that return `map<string, string>`.
pub fn names_reply(bytes: &[u8]) -> Result<Vec<(String, String)>> {
    Reader::new(bytes).list(8, |r| {
        let name = r.string()?.to_owned();
        Ok((name, r.string()?.to_owned()))
    })
}

/// `namespace_list`: a list of names.
pub fn strings_reply(bytes: &[u8]) -> Result<Vec<String>> {
    Reader::new(bytes).list(4, |r| r.string().map(str::to_owned))
}

/// The parent of a clone (`cls::rbd::ParentImageSpec`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentSpec {
    pub pool: i64,
    pub namespace: String,
    pub image_id: String,
    pub snap: u64,
}

/// `parent_get`: `None` for an image that is no clone.
pub fn parent_reply(bytes: &[u8]) -> Result<Option<ParentSpec>> {
    let mut v = Reader::new(bytes).versioned("ParentImageSpec", 1)?;
    let spec = ParentSpec {
        pool: v.body.i64()?,
        namespace: v.body.string()?.to_owned(),
        image_id: v.body.string()?.to_owned(),
        snap: v.body.u64()?,
    };
    let exists = spec.pool >= 0 && !spec.image_id.is_empty() && spec.snap != NO_SNAP;
    Ok(exists.then_some(spec))
}

/// Who made a snapshot (`cls::rbd::SnapshotNamespaceType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotKind {
    User,
    Group,
    Trash,
    Mirror,
    Unknown(u32),
}

/// A snapshot of an image (`cls::rbd::SnapshotInfo`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub id: u64,
    pub kind: SnapshotKind,
    pub name: String,
    /// Bytes of the image when it was taken.
    pub size: u64,
    pub timestamp: UTime,
    pub child_count: u32,
}

/// `snapshot_get`.
pub fn snapshot_reply(bytes: &[u8]) -> Result<Snapshot> {
    let mut v = Reader::new(bytes).versioned("SnapshotInfo", 1)?;
    let b = &mut v.body;
    let id = b.u64()?;
    let kind = match b.versioned("SnapshotNamespace", 1)?.body.u32()? {
        0 => SnapshotKind::User,
        1 => SnapshotKind::Group,
        2 => SnapshotKind::Trash,
        3 => SnapshotKind::Mirror,
        n => SnapshotKind::Unknown(n),
    };
    Ok(Snapshot {
        id,
        kind,
        name: b.string()?.to_owned(),
        size: b.u64()?,
        timestamp: UTime::decode(b)?,
        child_count: b.u32()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_missing_parent_is_none() {
        let mut out = Vec::new();
        out.versioned(1, 1, |b| {
            b.put_i64(-1);
            b.put_string("");
            b.put_string("");
            b.put_u64(NO_SNAP);
        });
        assert_eq!(parent_reply(&out), Ok(None));
    }

    #[test]
    fn a_snapshot_in_a_namespace_we_do_not_know_is_still_read() {
        let mut out = Vec::new();
        out.versioned(2, 1, |b| {
            b.put_u64(7);
            b.versioned(1, 1, |b| {
                b.put_u32(9);
                b.put_u64(1);
            });
            b.put_string("s");
            b.put_u64(4096);
            b.put_u64(0);
            b.put_u32(2);
            b.put_u8(1);
        });
        let s = snapshot_reply(&out).unwrap();
        assert_eq!((s.id, s.kind, s.size), (7, SnapshotKind::Unknown(9), 4096));
        assert_eq!((s.name.as_str(), s.child_count), ("s", 2));
    }

    proptest! {
        #[test]
        fn hostile_replies_never_panic(bytes: Vec<u8>) {
            let _ = size_reply(&bytes);
            let _ = features_reply(&bytes);
            let _ = string_reply(&bytes);
            let _ = stripe_reply(&bytes);
            let _ = snapcontext_reply(&bytes);
            let _ = names_reply(&bytes);
            let _ = strings_reply(&bytes);
            let _ = parent_reply(&bytes);
            let _ = snapshot_reply(&bytes);
        }
    }
}
