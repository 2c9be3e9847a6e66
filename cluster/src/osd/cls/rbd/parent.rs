//! What an image is a clone of.

use std::ops::ControlFlow;

use crate::codec::{Put, Reader};
use crate::rbd::Features;
use crate::rbd::cls::NO_SNAP;

use super::super::value::{self, DONE, Value, forget, found, input, load, or_default, reply};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::types::{Parent, ParentSpec};
use super::{
    check_exists, method, normalised, op_feature, require_feature, set_op_features, snapshot,
};

pub(super) const METHODS: &[Method] = &[
    method("get_parent", READ, get_parent),
    method("set_parent", READ_WRITE, set_parent),
    method("remove_parent", READ_WRITE, |ctx, _| detach(ctx, true)),
    method("parent_get", READ, parent_get),
    method("parent_overlap_get", READ, parent_overlap_get),
    method("parent_attach", READ_WRITE, parent_attach),
    method("parent_detach", READ_WRITE, |ctx, _| detach(ctx, false)),
];

const KEY: &str = "parent";

pub(super) fn look(ctx: &mut dyn Context) -> Result<Option<Parent>> {
    let Some(bytes) = found(ctx.omap_get(KEY.as_bytes()))? else {
        return Ok(None);
    };
    Parent::decode(&mut Reader::new(&bytes))
        .map(Some)
        .map_err(|_| Errno::IO)
}

pub(super) fn save(ctx: &mut dyn Context, parent: &Parent) -> Result<()> {
    let mut bytes = Vec::new();
    parent.encode(&mut bytes, normalised(ctx));
    ctx.omap_set(KEY.as_bytes(), &bytes)
}

pub(super) fn remove(ctx: &mut dyn Context) -> Result<()> {
    forget(ctx, KEY)
}

/// Whether the image can be a clone at all.
fn can_have_parent(ctx: &mut dyn Context) -> bool {
    require_feature(ctx, Features::LAYERING).is_ok()
}

/// The call of clients before Nautilus, which know no namespaces.
fn get_parent(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.u64())?;
    check_exists(ctx)?;
    let mut parent = Parent::default();
    if can_have_parent(ctx) {
        parent = look(ctx)?.unwrap_or_default();
        if !parent.spec.namespace.is_empty() {
            return Err(Errno::XDEV);
        }
        if id != NO_SNAP {
            parent = match found(snapshot::load_snap(ctx, id))? {
                Some(snap) if snap.parent.spec.exists() => snap.parent,
                Some(snap) if snap.overlap.is_some() => {
                    if !parent.spec.exists() {
                        return Err(Errno::INVAL);
                    }
                    Parent {
                        overlap: snap.overlap,
                        ..parent
                    }
                }
                _ => Parent::default(),
            };
        }
    }
    let mut out = Vec::new();
    out.put_i64(parent.spec.pool);
    out.put_blob(&parent.spec.image_id);
    out.put_u64(parent.spec.snap);
    out.put_u64(parent.overlap.unwrap_or(0));
    Ok(out)
}

fn set_parent(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let parent = input(bytes, |r| {
        Ok(Parent {
            spec: ParentSpec {
                pool: r.i64()?,
                image_id: Value::decode(r)?,
                snap: r.u64()?,
                ..ParentSpec::default()
            },
            overlap: Some(r.u64()?),
        })
    })?;
    attach(ctx, parent, false)
}

fn parent_get(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    check_exists(ctx)?;
    let mut spec = ParentSpec::default();
    if can_have_parent(ctx) {
        match look(ctx)? {
            Some(parent) => spec = parent.spec,
            // Snapshots from before Nautilus carry the parent of an image that was flattened.
            None => snapshot::each(ctx, |snap| {
                if snap.parent.spec.exists() {
                    spec = snap.parent.spec.clone();
                }
                Ok(ControlFlow::Continue(()))
            })?,
        }
    }
    reply(&spec)
}

fn parent_overlap_get(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.u64())?;
    let mut overlap = None;
    if can_have_parent(ctx) {
        overlap = if id == NO_SNAP {
            look(ctx)?.and_then(|parent| parent.overlap)
        } else {
            let snap = snapshot::load_snap(ctx, id)?;
            match snap.overlap {
                None if snap.parent.spec.exists() => snap.parent.overlap,
                overlap => overlap,
            }
        };
    }
    reply(&overlap)
}

fn parent_attach(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (parent, reattach) = input(bytes, |r| {
        let parent = Parent {
            spec: Value::decode(r)?,
            overlap: Some(r.u64()?),
        };
        Ok((parent, or_default(r, false)?))
    })?;
    attach(ctx, parent, reattach)
}

/// Links an image to its parent. One that only its snapshots still need may become the head's
/// again.
fn attach(ctx: &mut dyn Context, mut parent: Parent, reattach: bool) -> Result<Vec<u8>> {
    check_exists(ctx)?;
    require_feature(ctx, Features::LAYERING)?;
    let overlap = parent.overlap.unwrap_or(0);
    if !parent.spec.exists() || overlap == 0 {
        return Err(Errno::INVAL);
    }
    if let Some(old) = look(ctx)?
        && (old.overlap.is_some() || old.spec != parent.spec)
        && !reattach
    {
        return Err(Errno::EXIST);
    }
    let size: u64 = load(ctx, "size")?;
    parent.overlap = Some(overlap.min(size));
    save(ctx, &parent)?;
    DONE
}

/// Unlinks an image from its parent, and with deep-flatten its snapshots, too.
fn detach(ctx: &mut dyn Context, legacy: bool) -> Result<Vec<u8>> {
    check_exists(ctx)?;
    let features = value::look::<u64>(ctx, "features")?.unwrap_or(0);
    if features & Features::LAYERING.0 == 0 {
        return Err(Errno::NOEXEC);
    }
    let mut parent = look(ctx)?.ok_or(Errno::NOENT)?;
    if legacy && !parent.spec.namespace.is_empty() {
        return Err(Errno::XDEV);
    }
    if parent.overlap.is_none() {
        return Err(Errno::NOENT);
    }
    let mut clones = Vec::new();
    snapshot::each(ctx, |snap| {
        if snap.has_parent() {
            clones.push(snap.id);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let keep_snaps = !clones.is_empty() && features & Features::DEEP_FLATTEN.0 == 0;
    if !keep_snaps {
        for id in clones {
            let mut snap = snapshot::load_snap(ctx, id)?;
            snap.parent = Parent::default();
            snap.overlap = None;
            snapshot::save_snap(ctx, id, snap)?;
        }
    }
    if keep_snaps && normalised(ctx) {
        parent.overlap = None;
        save(ctx, &parent)?;
    } else {
        remove(ctx)?;
    }
    if !keep_snaps {
        set_op_features(ctx, 0, op_feature::CLONE_CHILD)?;
    }
    DONE
}
