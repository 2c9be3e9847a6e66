//! Groups of images that are snapshotted together: the pool's `rbd_group_directory`, a header for
//! each group, and a reference in each image's header.

use std::ops::ControlFlow;

use crate::codec::Put;

use super::super::value::{
    self, DONE, Value, collect, each, forget, found, input, load, look, page, reply, save, stored,
};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::group_types::{Group, GroupSnap, IMAGE, Image, Member};
use super::{dir, method, op_feature, set_op_features};

pub(super) const METHODS: &[Method] = &[
    method("group_dir_list", READ, dir::dir_list),
    method("group_dir_add", READ_WRITE, dir::dir_add),
    method("group_dir_remove", READ_WRITE, dir::dir_remove),
    method("group_dir_rename", READ_WRITE, dir::dir_rename),
    method("group_image_set", READ_WRITE, group_image_set),
    method("group_image_remove", READ_WRITE, group_image_remove),
    method("group_image_list", READ, group_image_list),
    method("image_group_add", READ_WRITE, image_group_add),
    method("image_group_remove", READ_WRITE, image_group_remove),
    method("image_group_get", READ, image_group_get),
    method("group_snap_set", READ_WRITE, group_snap_set),
    method("group_snap_remove", READ_WRITE, group_snap_remove),
    method("group_snap_get_by_id", READ, group_snap_get_by_id),
    method("group_snap_list", READ, group_snap_list),
    method("group_snap_list_order", READ, group_snap_list_order),
];

fn group_image_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let member = input(bytes, Member::decode)?;
    save(ctx, member.image.key(), &member.state)?;
    DONE
}

fn group_image_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let image = input(bytes, Image::decode)?;
    ctx.omap_remove(&image.key())?;
    DONE
}

fn group_image_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = input(bytes, |r| Ok((Image::decode(r)?, r.u64()?)))?;
    let after = after.key();
    let after = after.strip_prefix(IMAGE.as_bytes()).unwrap_or_default();
    let mut members = Vec::new();
    if max > 0 {
        each(ctx, IMAGE, after, |key, state| {
            members.push(Member {
                image: Image::from_key(key)?,
                state: stored(state)?,
            });
            Ok(until(members.len(), max))
        })?;
    }
    let mut out = Vec::new();
    out.put_list(members.iter(), |out, m| m.encode(out));
    Ok(out)
}

fn until(count: usize, max: u64) -> ControlFlow<()> {
    if count as u64 >= max {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// In the image's header (`RBD_GROUP_REF`).
const GROUP_REF: &str = "rbd_group_ref";

/// The group of an image; EINVAL when it cannot be understood.
fn group_of(ctx: &mut dyn Context) -> Result<Group> {
    let bytes = ctx.omap_get(GROUP_REF.as_bytes())?;
    input(&bytes, Group::decode)
}

fn image_group_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let group = input(bytes, Group::decode)?;
    match found(group_of(ctx))? {
        Some(old) if old == group => return DONE,
        Some(_) => return Err(Errno::EXIST),
        None => {}
    }
    set_op_features(ctx, op_feature::GROUP, op_feature::GROUP)?;
    save(ctx, GROUP_REF, &group)?;
    DONE
}

fn image_group_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let group = input(bytes, Group::decode)?;
    if group_of(ctx)? != group {
        return Err(Errno::BADF);
    }
    ctx.omap_remove(GROUP_REF.as_bytes())?;
    set_op_features(ctx, 0, op_feature::GROUP)?;
    DONE
}

fn image_group_get(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&found(group_of(ctx))?.unwrap_or_default())
}

const SNAP: &str = "snapshot_";
/// Which snapshot came first: a number under this and the snapshot's id.
const ORDER: &str = "snap_order_";
/// The greatest such number.
const MAX_ORDER: &str = "snap_max_order";

fn snap_key(id: &[u8]) -> Vec<u8> {
    value::key(SNAP, id)
}

fn order_key(id: &[u8]) -> Vec<u8> {
    value::key(ORDER, id)
}

fn group_snap_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let snap = input(bytes, GroupSnap::decode)?;
    if snap.name.is_empty() || snap.id.is_empty() {
        return Err(Errno::INVAL);
    }
    each(ctx, SNAP, b"", |_, bytes| {
        let other: GroupSnap = stored(bytes)?;
        if other.name == snap.name && other.id != snap.id {
            return Err(Errno::EXIST);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let key = snap_key(&snap.id);
    if snap.state == GroupSnap::INCOMPLETE {
        let order = order_key(&snap.id);
        if found(ctx.omap_get(&key))?.is_some() || found(ctx.omap_get(&order))?.is_some() {
            return Err(Errno::EXIST);
        }
        let next = look::<u64>(ctx, MAX_ORDER)?.unwrap_or(0).wrapping_add(1);
        save(ctx, MAX_ORDER, &next)?;
        save(ctx, order, &next)?;
    }
    save(ctx, key, &snap)?;
    DONE
}

fn group_snap_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.blob())?;
    ctx.omap_remove(&snap_key(id))?;
    forget(ctx, order_key(id))?;
    DONE
}

fn group_snap_get_by_id(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.blob())?;
    reply(&load::<GroupSnap>(ctx, snap_key(id))?)
}

fn group_snap_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = input(bytes, |r| Ok((GroupSnap::decode(r)?, r.u64()?)))?;
    let snaps = collect(ctx, SNAP, &after.id, max, stored::<GroupSnap>)?;
    let mut out = Vec::new();
    out.put_list(snaps.values(), |out, snap| snap.encode(out));
    Ok(out)
}

fn group_snap_list_order(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    reply(&collect::<u64>(ctx, ORDER, after, max, stored)?)
}
