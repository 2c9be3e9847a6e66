//! An image's snapshots: one key of its header for each.

use std::ops::ControlFlow;

use crate::codec::{Put, Reader};
use crate::rbd::Features;
use crate::rbd::cls::NO_SNAP;

use super::super::value::{
    self, DONE, Text, Value, forget, input, load, look, or_default, reply, save,
};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::old_format;
use super::types::{Parent, Snap, SnapNamespace, protection};
use super::{
    check_exists, method, normalised, op_feature, parent, random_uuid, require_feature,
    set_op_features,
};

pub(super) const METHODS: &[Method] = &[
    method("get_snapcontext", READ, get_snapcontext),
    method("get_snapshot_name", READ, get_snapshot_name),
    method("get_snapshot_timestamp", READ, get_snapshot_timestamp),
    method("snapshot_get", READ, snapshot_get),
    method("snapshot_add", READ_WRITE, snapshot_add),
    method("snapshot_remove", READ_WRITE, snapshot_remove),
    method("snapshot_rename", READ_WRITE, snapshot_rename),
    method("snapshot_trash_add", READ_WRITE, snapshot_trash_add),
    method("get_protection_status", READ, get_protection_status),
    method("set_protection_status", READ_WRITE, set_protection_status),
    method("snapshot_get_limit", READ, snapshot_get_limit),
    method("snapshot_set_limit", READ_WRITE, snapshot_set_limit),
];

const PREFIX: &str = "snapshot_";
/// `CEPH_MAXSNAP`: the greatest id that a snapshot can have.
const MAX_SNAP: u64 = u64::MAX - 2;

fn key(id: u64) -> String {
    format!("{PREFIX}{id:016x}")
}

fn decode(bytes: &[u8]) -> Result<Snap> {
    Snap::decode(&mut Reader::new(bytes)).map_err(|_| Errno::IO)
}

pub(super) fn load_snap(ctx: &mut dyn Context, id: u64) -> Result<Snap> {
    decode(&ctx.omap_get(key(id).as_bytes())?)
}

/// A snapshot of what is not the head; EINVAL for the head.
fn load_real(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Snap> {
    let id = input(bytes, |r| r.u64())?;
    if id == NO_SNAP {
        return Err(Errno::INVAL);
    }
    load_snap(ctx, id)
}

/// Stores a snapshot; a parent in a record of the old kind moves to the image.
pub(super) fn save_snap(ctx: &mut dyn Context, id: u64, mut snap: Snap) -> Result<()> {
    let normalised = normalised(ctx);
    if normalised && snap.parent.spec.exists() {
        let of_image = parent::look(ctx)?.unwrap_or_default();
        let of_snap = std::mem::take(&mut snap.parent);
        snap.overlap = of_snap.overlap;
        if !of_image.spec.exists() {
            let link = Parent {
                overlap: None,
                ..of_snap
            };
            parent::save(ctx, &link)?;
        }
    }
    let mut bytes = Vec::new();
    snap.encode(&mut bytes, normalised);
    ctx.omap_set(key(id).as_bytes(), &bytes)
}

/// Visits all snapshots, oldest first.
pub(super) fn each(
    ctx: &mut dyn Context,
    mut visit: impl FnMut(&Snap) -> Result<ControlFlow<()>>,
) -> Result<()> {
    value::each(ctx, PREFIX, b"", |_, bytes| visit(&decode(bytes)?))
}

fn get_snapcontext(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let mut ids = Vec::new();
    value::each(ctx, PREFIX, b"", |id, _| {
        let id = std::str::from_utf8(id)
            .ok()
            .and_then(|id| u64::from_str_radix(id, 16).ok())
            .unwrap_or(0);
        ids.push(id);
        Ok(ControlFlow::Continue(()))
    })?;
    let seq: u64 = load(ctx, "snap_seq")?;
    let mut out = Vec::new();
    out.put_u64(seq);
    out.put_list(ids.iter().rev(), |out, id| out.put_u64(*id));
    Ok(out)
}

fn get_snapshot_name(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    reply(&load_real(ctx, bytes)?.name)
}

fn get_snapshot_timestamp(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    reply(&load_real(ctx, bytes)?.timestamp)
}

/// Answers with `cls::rbd::SnapshotInfo`.
fn snapshot_get(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let snap = load_real(ctx, bytes)?;
    let mut out = Vec::new();
    out.versioned(1, 1, |b| {
        b.put_u64(snap.id);
        snap.namespace.encode(b);
        b.put_blob(&snap.name);
        b.put_u64(snap.size);
        snap.timestamp.encode(b);
        b.put_u32(snap.children);
    });
    Ok(out)
}

fn snapshot_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (name, id, namespace) = input(bytes, |r| {
        Ok((
            Text::decode(r)?,
            r.u64()?,
            or_default(r, SnapNamespace::User)?,
        ))
    })?;
    if matches!(namespace, SnapNamespace::Unknown) || id > MAX_SNAP {
        return Err(Errno::INVAL);
    }
    let seq: u64 = load(ctx, "snap_seq")?;
    if id < seq {
        // Another client has made a snapshot since this one got its id.
        return Err(Errno::STALE);
    }
    let size = load(ctx, "size")?;
    let flags = look(ctx, "flags")?.unwrap_or(0);
    let limit = look(ctx, LIMIT)?.unwrap_or(u64::MAX);
    let mut count = 0_u64;
    each(ctx, |old| {
        count += 1;
        if count >= limit {
            return Err(Errno::DQUOT);
        }
        if old.id == id || (old.name == name && old.namespace.same(&namespace)) {
            return Err(Errno::EXIST);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let parent = parent::look(ctx)?.unwrap_or_default();
    if namespace.is_trash() {
        set_op_features(ctx, op_feature::SNAP_TRASH, op_feature::SNAP_TRASH)?;
    }
    save(ctx, "snap_seq", &id)?;
    let snap = Snap {
        id,
        name,
        size,
        protection: protection::UNPROTECTED,
        parent,
        flags,
        timestamp: ctx.now(),
        namespace,
        children: 0,
        overlap: None,
    };
    save_snap(ctx, id, snap)?;
    DONE
}

fn snapshot_rename(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, name) = input(bytes, |r| Ok((r.u64()?, Text::decode(r)?)))?;
    each(ctx, |snap| {
        if matches!(snap.namespace, SnapNamespace::User) && snap.name == name {
            return Err(Errno::EXIST);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let mut snap = load_snap(ctx, id)?;
    if !matches!(snap.namespace, SnapNamespace::User) {
        return Err(Errno::INVAL);
    }
    snap.name = name;
    save_snap(ctx, id, snap)?;
    DONE
}

/// Takes with it what no other snapshot needs: the parent of a flattened image, and operation
/// features.
fn snapshot_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.u64())?;
    let snap = load_snap(ctx, id)?;
    if snap.protection != protection::UNPROTECTED || snap.children > 0 {
        return Err(Errno::BUSY);
    }
    forget(ctx, key(id))?;
    let (mut clones, mut trashed) = (false, false);
    each(ctx, |other| {
        if other.id != id {
            clones |= other.has_parent();
            trashed |= other.namespace.is_trash();
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let link = parent::look(ctx)?.filter(|p| p.spec.exists());
    let head_is_clone = link.as_ref().is_some_and(|p| p.overlap.is_some());
    if link.is_some() && !head_is_clone && !clones && normalised(ctx) {
        parent::remove(ctx)?;
    }
    let mut mask = 0;
    if !clones && !head_is_clone {
        mask |= op_feature::CLONE_CHILD;
    }
    if !trashed {
        mask |= op_feature::SNAP_TRASH;
    }
    if mask != 0 {
        set_op_features(ctx, 0, mask)?;
    }
    DONE
}

/// A snapshot that clones still need gives its name free.
fn snapshot_trash_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.u64())?;
    let mut snap = load_snap(ctx, id)?;
    if snap.protection != protection::UNPROTECTED {
        return Err(Errno::BUSY);
    }
    if snap.namespace.is_trash() {
        return Err(Errno::EXIST);
    }
    set_op_features(ctx, op_feature::SNAP_TRASH, op_feature::SNAP_TRASH)?;
    let uuid = random_uuid(ctx).into_bytes();
    snap.namespace = SnapNamespace::Trash {
        kind: snap.namespace.kind(),
        name: std::mem::replace(&mut snap.name, uuid),
    };
    save_snap(ctx, id, snap)?;
    DONE
}

fn get_protection_status(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let snap = load_real(ctx, bytes)?;
    if snap.protection >= protection::LAST {
        return Err(Errno::IO);
    }
    reply(&snap.protection)
}

fn set_protection_status(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, status) = input(bytes, |r| Ok((r.u64()?, r.u8()?)))?;
    check_exists(ctx)?;
    require_feature(ctx, Features::LAYERING)?;
    if id == NO_SNAP || status >= protection::LAST {
        return Err(Errno::INVAL);
    }
    let mut snap = load_snap(ctx, id)?;
    snap.protection = status;
    save_snap(ctx, id, snap)?;
    DONE
}

const LIMIT: &str = "snap_limit";

fn snapshot_get_limit(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&look(ctx, LIMIT)?.unwrap_or(u64::MAX))
}

fn snapshot_set_limit(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let limit = input(bytes, |r| r.u64())?;
    if limit == u64::MAX {
        ctx.omap_remove(LIMIT.as_bytes())?;
        return DONE;
    }
    let count = match old_format::snap_count(ctx) {
        Err(Errno::INVAL) => {
            let mut count = 0_u64;
            value::each(ctx, PREFIX, b"", |_, _| {
                count += 1;
                Ok(ControlFlow::Continue(()))
            })?;
            count
        }
        other => other?,
    };
    if limit < count {
        return Err(Errno::RANGE);
    }
    save(ctx, LIMIT, &limit)?;
    DONE
}
