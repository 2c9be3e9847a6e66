//! Parents, children and snapshots as an image's header stores them.
//!
//! Source: `cls_rbd_parent` and `cls_rbd_snap` in `src/cls/rbd/cls_rbd.h`, the others in
//! `cls_rbd_types.{h,cc}`.

use std::collections::{BTreeMap, BTreeSet};

use crate::codec::{self, DecodeError, Put, Reader, UTime};
use crate::rbd::cls::NO_SNAP;

use super::super::value::{Text, Value};

/// An image's snapshot that clones hang on (`cls::rbd::ParentImageSpec`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParentSpec {
    pub pool: i64,
    pub namespace: Text,
    pub image_id: Text,
    pub snap: u64,
}

impl Default for ParentSpec {
    fn default() -> ParentSpec {
        ParentSpec {
            pool: -1,
            namespace: Text::new(),
            image_id: Text::new(),
            snap: NO_SNAP,
        }
    }
}

impl ParentSpec {
    pub(super) fn exists(&self) -> bool {
        self.pool >= 0 && !self.image_id.is_empty() && self.snap != NO_SNAP
    }
}

impl Value for ParentSpec {
    fn decode(r: &mut Reader<'_>) -> codec::Result<ParentSpec> {
        let b = &mut r.versioned("ParentImageSpec", 1)?.body;
        Ok(ParentSpec {
            pool: b.i64()?,
            namespace: Value::decode(b)?,
            image_id: Value::decode(b)?,
            snap: b.u64()?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_i64(self.pool);
            b.put_blob(&self.namespace);
            b.put_blob(&self.image_id);
            b.put_u64(self.snap);
        });
    }
}

/// A clone's link to its parent (`cls_rbd_parent`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Parent {
    pub spec: ParentSpec,
    /// Bytes of the head that may come from the parent; absent when only snapshots need it.
    pub overlap: Option<u64>,
}

impl Parent {
    pub(super) fn decode(r: &mut Reader<'_>) -> codec::Result<Parent> {
        let mut v = r.versioned("cls_rbd_parent", 2)?;
        let b = &mut v.body;
        let pool = b.i64()?;
        let namespace = if v.version >= 2 {
            Text::decode(b)?
        } else {
            Text::new()
        };
        let image_id = Text::decode(b)?;
        let snap = b.u64()?;
        let overlap = if v.version == 1 {
            Some(b.u64()?)
        } else {
            Value::decode(b)?
        };
        Ok(Parent {
            spec: ParentSpec {
                pool,
                namespace,
                image_id,
                snap,
            },
            overlap,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>, normalised: bool) {
        let version = if normalised { 2 } else { 1 };
        out.versioned(version, version, |b| {
            b.put_i64(self.spec.pool);
            if normalised {
                b.put_blob(&self.spec.namespace);
            }
            b.put_blob(&self.spec.image_id);
            b.put_u64(self.spec.snap);
            if normalised {
                self.overlap.encode(b);
            } else {
                b.put_u64(self.overlap.unwrap_or(0));
            }
        });
    }
}

/// A clone (`cls::rbd::ChildImageSpec`), in the order in which Ceph stores several.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChildSpec {
    pub pool: i64,
    pub namespace: Text,
    pub image_id: Text,
}

impl Value for ChildSpec {
    fn decode(r: &mut Reader<'_>) -> codec::Result<ChildSpec> {
        let mut v = r.versioned("ChildImageSpec", 2)?;
        let pool = v.body.i64()?;
        let image_id = Value::decode(&mut v.body)?;
        let namespace = if v.version >= 2 {
            Value::decode(&mut v.body)?
        } else {
            Text::new()
        };
        Ok(ChildSpec {
            pool,
            namespace,
            image_id,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(2, 1, |b| {
            b.put_i64(self.pool);
            b.put_blob(&self.image_id);
            b.put_blob(&self.namespace);
        });
    }
}

/// Of a snapshot that mirroring made (`MirrorSnapshotNamespace`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MirrorNamespace {
    pub state: u8,
    pub complete: bool,
    pub peers: BTreeSet<Text>,
    pub primary: Text,
    pub primary_snap: u64,
    pub last_copied: u64,
    pub snap_seqs: BTreeMap<u64, u64>,
}

impl MirrorNamespace {
    /// `MIRROR_SNAPSHOT_STATE_NON_PRIMARY` and `..._NON_PRIMARY_DEMOTED`.
    pub(super) fn is_non_primary(&self) -> bool {
        matches!(self.state, 2 | 3)
    }
}

/// Who made a snapshot and why (`cls::rbd::SnapshotNamespace`).
#[derive(Debug, Clone, Default)]
pub(super) enum SnapNamespace {
    #[default]
    User,
    Group {
        pool: i64,
        group_id: Text,
        snap_id: Text,
    },
    Trash {
        name: Text,
        kind: u32,
    },
    Mirror(MirrorNamespace),
    Unknown,
}

impl SnapNamespace {
    /// `SNAPSHOT_NAMESPACE_TYPE_*`.
    pub(super) fn kind(&self) -> u32 {
        match self {
            SnapNamespace::User => 0,
            SnapNamespace::Group { .. } => 1,
            SnapNamespace::Trash { .. } => 2,
            SnapNamespace::Mirror(_) => 3,
            SnapNamespace::Unknown => u32::MAX,
        }
    }

    pub(super) fn is_trash(&self) -> bool {
        matches!(self, SnapNamespace::Trash { .. })
    }

    /// Whether two snapshots of one name would be the same one. As in Ceph, all of the trash is
    /// one namespace.
    pub(super) fn same(&self, other: &SnapNamespace) -> bool {
        match (self, other) {
            (
                SnapNamespace::Group {
                    pool,
                    group_id,
                    snap_id,
                },
                SnapNamespace::Group {
                    pool: p,
                    group_id: g,
                    snap_id: s,
                },
            ) => (pool, group_id, snap_id) == (p, g, s),
            (SnapNamespace::Mirror(a), SnapNamespace::Mirror(b)) => a == b,
            (a, b) => a.kind() == b.kind(),
        }
    }
}

impl Value for SnapNamespace {
    fn decode(r: &mut Reader<'_>) -> codec::Result<SnapNamespace> {
        let b = &mut r.versioned("SnapshotNamespace", 1)?.body;
        Ok(match b.u32()? {
            0 => SnapNamespace::User,
            1 => SnapNamespace::Group {
                pool: b.i64()?,
                group_id: Value::decode(b)?,
                snap_id: Value::decode(b)?,
            },
            2 => SnapNamespace::Trash {
                name: Value::decode(b)?,
                kind: b.u32()?,
            },
            3 => SnapNamespace::Mirror(MirrorNamespace {
                state: b.u8()?,
                complete: b.bool()?,
                peers: Value::decode(b)?,
                primary: Value::decode(b)?,
                primary_snap: b.u64()?,
                last_copied: b.u64()?,
                snap_seqs: Value::decode(b)?,
            }),
            _ => SnapNamespace::Unknown,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_u32(self.kind());
            match self {
                SnapNamespace::User | SnapNamespace::Unknown => {}
                SnapNamespace::Group {
                    pool,
                    group_id,
                    snap_id,
                } => {
                    b.put_i64(*pool);
                    b.put_blob(group_id);
                    b.put_blob(snap_id);
                }
                SnapNamespace::Trash { name, kind } => {
                    b.put_blob(name);
                    b.put_u32(*kind);
                }
                SnapNamespace::Mirror(m) => {
                    b.put_u8(m.state);
                    b.put_bool(m.complete);
                    m.peers.encode(b);
                    b.put_blob(&m.primary);
                    b.put_u64(m.primary_snap);
                    b.put_u64(m.last_copied);
                    m.snap_seqs.encode(b);
                }
            }
        });
    }
}

/// `RBD_PROTECTION_STATUS_*`.
pub(super) mod protection {
    pub(in super::super) const UNPROTECTED: u8 = 0;
    pub(in super::super) const LAST: u8 = 3;
}

/// A snapshot (`cls_rbd_snap`).
#[derive(Debug, Clone)]
pub(super) struct Snap {
    pub id: u64,
    pub name: Text,
    pub size: u64,
    pub protection: u8,
    /// Only in records that OSDs before Nautilus can read; since then the image has one parent for
    /// all, and a snapshot only its overlap.
    pub parent: Parent,
    pub flags: u64,
    pub timestamp: UTime,
    pub namespace: SnapNamespace,
    pub children: u32,
    pub overlap: Option<u64>,
}

impl Snap {
    pub(super) fn has_parent(&self) -> bool {
        self.parent.spec.pool != -1 || self.overlap.is_some()
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> codec::Result<Snap> {
        let compat = *r.rest().get(1).ok_or(DecodeError::malformed("snapshot"))?;
        let mut v = r.versioned("cls_rbd_snap", 8)?;
        let b = &mut v.body;
        let mut snap = Snap {
            id: b.u64()?,
            name: Value::decode(b)?,
            size: b.u64()?,
            protection: protection::UNPROTECTED,
            parent: Parent::default(),
            flags: 0,
            timestamp: UTime::default(),
            namespace: SnapNamespace::User,
            children: 0,
            overlap: None,
        };
        if compat < 8 {
            b.u64()?; // features, once
            if v.version >= 2 {
                snap.parent = Parent::decode(b)?;
            }
        }
        if v.version >= 3 {
            snap.protection = b.u8()?;
        }
        if v.version >= 4 {
            snap.flags = b.u64()?;
        }
        if v.version >= 5 {
            snap.namespace = Value::decode(b)?;
        }
        if v.version >= 6 {
            snap.timestamp = UTime::decode(b)?;
        }
        if v.version >= 7 {
            snap.children = b.u32()?;
        }
        if v.version >= 8 {
            snap.overlap = Value::decode(b)?;
        }
        Ok(snap)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>, normalised: bool) {
        out.versioned(8, if normalised { 8 } else { 1 }, |b| {
            b.put_u64(self.id);
            b.put_blob(&self.name);
            b.put_u64(self.size);
            if !normalised {
                b.put_u64(0);
                self.parent.encode(b, false);
            }
            b.put_u8(self.protection);
            b.put_u64(self.flags);
            self.namespace.encode(b);
            self.timestamp.encode(b);
            b.put_u32(self.children);
            self.overlap.encode(b);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_for_old_osds_keeps_its_parent() {
        let snap = Snap {
            id: 4,
            name: b"s".to_vec(),
            size: 1 << 20,
            protection: 2,
            parent: Parent {
                spec: ParentSpec {
                    pool: 3,
                    namespace: Text::new(),
                    image_id: b"abc".to_vec(),
                    snap: 9,
                },
                overlap: Some(512),
            },
            flags: 1,
            timestamp: UTime { sec: 5, nsec: 6 },
            namespace: SnapNamespace::Trash {
                name: b"old".to_vec(),
                kind: 0,
            },
            children: 2,
            overlap: None,
        };
        let mut old = Vec::new();
        snap.encode(&mut old, false);
        let back = Snap::decode(&mut Reader::new(&old)).unwrap();
        assert_eq!(back.parent, snap.parent);
        assert_eq!((back.protection, back.flags, back.children), (2, 1, 2));
        assert!(back.namespace.is_trash());

        let mut new = Vec::new();
        snap.encode(&mut new, true);
        let back = Snap::decode(&mut Reader::new(&new)).unwrap();
        assert_eq!(back.parent, Parent::default());
        assert_eq!(back.timestamp, snap.timestamp);
    }
}
