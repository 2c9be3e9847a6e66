//! Who is a clone of an image: of format 1 in the pool's `rbd_children`, of format 2 in the header
//! of the parent.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::codec::Put;

use super::super::value::{DONE, Text, Value, forget, input, load, look, reply, save};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::types::ChildSpec;
use super::{method, op_feature, set_op_features, snapshot};

pub(super) const METHODS: &[Method] = &[
    method("add_child", READ_WRITE, add_child),
    method("remove_child", READ_WRITE, remove_child),
    method("get_children", READ, get_children),
    method("child_attach", READ_WRITE, child_attach),
    method("child_detach", READ_WRITE, child_detach),
    method("children_list", READ, children_list),
];

/// The key of a parent in `rbd_children`: its encoding itself.
fn parent_key(pool: u64, image_id: &[u8], snap: u64) -> Vec<u8> {
    let mut key = Vec::new();
    key.put_u64(pool);
    key.put_blob(image_id);
    key.put_u64(snap);
    key
}

/// The parent's key and the child's id.
fn pair(bytes: &[u8]) -> Result<(Vec<u8>, Text)> {
    input(bytes, |r| {
        Ok((parent_key(r.u64()?, r.blob()?, r.u64()?), Text::decode(r)?))
    })
}

fn add_child(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (key, child) = pair(bytes)?;
    let mut children = look::<BTreeSet<Text>>(ctx, &key)?.unwrap_or_default();
    if !children.insert(child) {
        return Err(Errno::EXIST);
    }
    save(ctx, &key, &children)?;
    DONE
}

fn remove_child(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (key, child) = pair(bytes)?;
    let mut children: BTreeSet<Text> = load(ctx, &key)?;
    if !children.remove(&child) {
        return Err(Errno::NOENT);
    }
    if children.is_empty() {
        ctx.omap_remove(&key)?;
    } else {
        save(ctx, &key, &children)?;
    }
    DONE
}

fn get_children(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let key = input(bytes, |r| Ok(parent_key(r.u64()?, r.blob()?, r.u64()?)))?;
    reply(&load::<BTreeSet<Text>>(ctx, key)?)
}

fn children_key(snap: u64) -> String {
    format!("snap_children_{snap:016x}")
}

fn child_attach(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, child) = input(bytes, |r| Ok((r.u64()?, ChildSpec::decode(r)?)))?;
    let mut snap = snapshot::load_snap(ctx, id)?;
    if snap.namespace.is_trash() {
        return Err(Errno::NOENT);
    }
    let key = children_key(id);
    let mut children = look::<BTreeSet<ChildSpec>>(ctx, &key)?.unwrap_or_default();
    if !children.insert(child) {
        return Err(Errno::EXIST);
    }
    save(ctx, &key, &children)?;
    snap.children = snap.children.wrapping_add(1);
    snapshot::save_snap(ctx, id, snap)?;
    set_op_features(ctx, op_feature::CLONE_PARENT, op_feature::CLONE_PARENT)?;
    DONE
}

fn child_detach(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, child) = input(bytes, |r| Ok((r.u64()?, ChildSpec::decode(r)?)))?;
    let mut snap = snapshot::load_snap(ctx, id)?;
    let key = children_key(id);
    let mut children = look::<BTreeSet<ChildSpec>>(ctx, &key)?.unwrap_or_default();
    if snap.children as usize != children.len() {
        return Err(Errno::INVAL);
    }
    if !children.remove(&child) {
        return Err(Errno::NOENT);
    }
    if children.is_empty() {
        forget(ctx, &key)?;
    } else {
        save(ctx, &key, &children)?;
    }
    snap.children -= 1;
    snapshot::save_snap(ctx, id, snap)?;
    if children.is_empty() {
        let mut others = false;
        snapshot::each(ctx, |snap| {
            others |= snap.id != id && snap.children > 0;
            Ok(ControlFlow::Continue(()))
        })?;
        if !others {
            set_op_features(ctx, 0, op_feature::CLONE_PARENT)?;
        }
    }
    DONE
}

fn children_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.u64())?;
    snapshot::load_snap(ctx, id)?;
    reply(&load::<BTreeSet<ChildSpec>>(ctx, children_key(id))?)
}
