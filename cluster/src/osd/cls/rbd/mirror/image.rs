//! Which images are mirrored, and the snapshots that carry mirroring.

use crate::codec::{self, Put, Reader};

use super::super::super::value::{
    self, DONE, Text, Value, collect, found, input, load, look, page, reply, save, stored,
};
use super::super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::super::types::{MirrorNamespace, Snap, SnapNamespace};
use super::super::{method, snapshot};
use super::status;

pub(in super::super) const METHODS: &[Method] = &[
    method("mirror_image_list", READ, mirror_image_list),
    method("mirror_image_get_image_id", READ, mirror_image_get_image_id),
    method("mirror_image_get", READ, mirror_image_get),
    method("mirror_image_set", READ_WRITE, mirror_image_set),
    method("mirror_image_remove", READ_WRITE, mirror_image_remove),
    method("mirror_image_snapshot_unlink_peer", READ_WRITE, unlink_peer),
    method(
        "mirror_image_snapshot_set_copy_progress",
        READ_WRITE,
        set_copy_progress,
    ),
];

pub(super) const IMAGE: &str = "image_";
const GLOBAL: &str = "global_";

/// `cls::rbd::MirrorImage`.
pub(super) struct Image {
    pub global_id: Text,
    pub state: u8,
    pub mode: u8,
}

/// `cls::rbd::MirrorImageState`.
pub(super) mod state {
    pub(in super::super) const DISABLING: u8 = 0;
    pub(in super::super) const ENABLED: u8 = 1;
    pub(in super::super) const CREATING: u8 = 3;
}

impl Value for Image {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Image> {
        let mut v = r.versioned("MirrorImage", 2)?;
        let b = &mut v.body;
        Ok(Image {
            global_id: Value::decode(b)?,
            state: b.u8()?,
            mode: if v.version >= 2 { b.u8()? } else { 0 },
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(2, 1, |b| {
            b.put_blob(&self.global_id);
            b.put_u8(self.state);
            b.put_u8(self.mode);
        });
    }
}

fn key(id: &[u8]) -> Vec<u8> {
    value::key(IMAGE, id)
}

fn global_key(global_id: &[u8]) -> Vec<u8> {
    value::key(GLOBAL, global_id)
}

pub(super) fn by_global_id(ctx: &mut dyn Context, global_id: &[u8]) -> Result<Image> {
    let id: Text = load(ctx, global_key(global_id))?;
    load(ctx, key(&id))
}

fn mirror_image_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    let ids = collect(
        ctx,
        IMAGE,
        after,
        max,
        |v| Ok(stored::<Image>(v)?.global_id),
    )?;
    reply(&ids)
}

fn mirror_image_get_image_id(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let global_id = input(bytes, |r| r.blob())?;
    reply(&load::<Text>(ctx, global_key(global_id))?)
}

fn mirror_image_get(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.blob())?;
    reply(&load::<Image>(ctx, key(id))?)
}

fn mirror_image_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, image) = input(bytes, |r| Ok((Text::decode(r)?, Image::decode(r)?)))?;
    match look::<Image>(ctx, key(&id))? {
        Some(old) if old.global_id != image.global_id => return Err(Errno::INVAL),
        Some(_) => {}
        None => {
            if look::<Text>(ctx, global_key(&image.global_id))?.is_some() {
                return Err(Errno::EXIST);
            }
            if image.state == state::DISABLING {
                // Somebody else was faster to disable it.
                return Err(Errno::NOENT);
            }
        }
    }
    save(ctx, key(&id), &image)?;
    save(ctx, global_key(&image.global_id), &id)?;
    DONE
}

fn mirror_image_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.blob())?;
    let image: Image = load(ctx, key(id))?;
    if image.state != state::DISABLING {
        return Err(Errno::BUSY);
    }
    ctx.omap_remove(&key(id))?;
    found(ctx.omap_remove(&global_key(&image.global_id)))?;
    status::remove(ctx, &image.global_id)
}

/// Changes what a snapshot says of mirroring; EINVAL for one that mirroring did not make.
fn change(
    ctx: &mut dyn Context,
    id: u64,
    edit: impl FnOnce(&mut MirrorNamespace) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut snap: Snap = snapshot::load_snap(ctx, id)?;
    let SnapNamespace::Mirror(mirror) = &mut snap.namespace else {
        return Err(Errno::INVAL);
    };
    edit(mirror)?;
    snapshot::save_snap(ctx, id, snap)?;
    DONE
}

fn unlink_peer(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, peer) = input(bytes, |r| Ok((r.u64()?, r.blob()?)))?;
    change(ctx, id, |mirror| {
        if mirror.peers.remove(peer) {
            Ok(())
        } else {
            Err(Errno::NOENT)
        }
    })
}

fn set_copy_progress(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, complete, last) = input(bytes, |r| Ok((r.u64()?, r.bool()?, r.u64()?)))?;
    change(ctx, id, |mirror| {
        mirror.complete = complete;
        if mirror.is_non_primary() {
            mirror.last_copied = last;
        }
        Ok(())
    })
}
