//! Groups of images and their snapshots.
//!
//! Source: `src/cls/rbd/cls_rbd_types.{h,cc}`.

use crate::codec::{self, Put, Reader};

use super::super::value::{Text, Value};
use super::super::{Errno, Result};

/// What the key of a group's image begins with (`RBD_GROUP_IMAGE_KEY_PREFIX`).
pub(super) const IMAGE: &str = "image_";

/// An image of a group (`GroupImageSpec`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    pub id: Text,
    pub pool: i64,
}

impl Image {
    /// Empty for an image of no pool, with which listings begin.
    pub(super) fn key(&self) -> Vec<u8> {
        if self.pool == -1 {
            return Vec::new();
        }
        [format!("{IMAGE}{:016x}_", self.pool).as_bytes(), &self.id].concat()
    }

    /// From a key without [`IMAGE`].
    pub(super) fn from_key(key: &[u8]) -> Result<Image> {
        let at = key.iter().position(|b| *b == b'_').ok_or(Errno::IO)?;
        let pool = std::str::from_utf8(&key[..at])
            .ok()
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .ok_or(Errno::IO)?;
        Ok(Image {
            id: key[at + 1..].to_vec(),
            pool: pool as i64,
        })
    }
}

impl Value for Image {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Image> {
        let b = &mut r.versioned("GroupImageSpec", 1)?.body;
        Ok(Image {
            id: Value::decode(b)?,
            pool: b.i64()?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_blob(&self.id);
            b.put_i64(self.pool);
        });
    }
}

/// How far an image is a member (`GroupImageStatus`).
pub(super) struct Member {
    pub image: Image,
    pub state: u8,
}

impl Value for Member {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Member> {
        let b = &mut r.versioned("GroupImageStatus", 1)?.body;
        Ok(Member {
            image: Value::decode(b)?,
            state: b.u8()?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            self.image.encode(b);
            b.put_u8(self.state);
        });
    }
}

/// The group an image belongs to (`GroupSpec`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub pool: i64,
    pub id: Text,
}

impl Default for Group {
    fn default() -> Group {
        Group {
            pool: -1,
            id: Text::new(),
        }
    }
}

impl Value for Group {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Group> {
        let b = &mut r.versioned("GroupSpec", 1)?.body;
        Ok(Group {
            pool: b.i64()?,
            id: Value::decode(b)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_i64(self.pool);
            b.put_blob(&self.id);
        });
    }
}

/// One image's part in a group's snapshot (`ImageSnapshotSpec`).
pub(super) struct ImageSnap {
    pool: i64,
    image_id: Text,
    snap: u64,
}

impl Value for ImageSnap {
    fn decode(r: &mut Reader<'_>) -> codec::Result<ImageSnap> {
        let b = &mut r.versioned("ImageSnapshotSpec", 1)?.body;
        Ok(ImageSnap {
            pool: b.i64()?,
            image_id: Value::decode(b)?,
            snap: b.u64()?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_i64(self.pool);
            b.put_blob(&self.image_id);
            b.put_u64(self.snap);
        });
    }
}

/// A snapshot of all images of a group (`GroupSnapshot`).
pub(super) struct GroupSnap {
    pub id: Text,
    pub name: Text,
    pub state: u8,
    pub snaps: Vec<ImageSnap>,
}

impl GroupSnap {
    /// `GROUP_SNAPSHOT_STATE_INCOMPLETE`.
    pub(super) const INCOMPLETE: u8 = 0;
}

impl Value for GroupSnap {
    fn decode(r: &mut Reader<'_>) -> codec::Result<GroupSnap> {
        let b = &mut r.versioned("GroupSnapshot", 1)?.body;
        Ok(GroupSnap {
            id: Value::decode(b)?,
            name: Value::decode(b)?,
            state: b.u8()?,
            // An encoded one takes 26 bytes at least.
            snaps: b.list(26, ImageSnap::decode)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_blob(&self.id);
            b.put_blob(&self.name);
            b.put_u8(self.state);
            b.put_list(self.snaps.iter(), |b, snap| snap.encode(b));
        });
    }
}
