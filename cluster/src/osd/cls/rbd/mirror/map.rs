//! Mirror daemons, and which of them handles which image.

use crate::codec::{self, Put, Reader, UTime};

use super::super::super::value::{
    self, DONE, Text, Value, collect, forget, input, page, reply, save, stored,
};
use super::super::super::{Context, Errno, Method, READ, READ_WRITE, Result, WRITE};
use super::super::method;

pub(in super::super) const METHODS: &[Method] = &[
    method("mirror_instances_list", READ, mirror_instances_list),
    method("mirror_instances_add", READ_WRITE, mirror_instances_add),
    method(
        "mirror_instances_remove",
        READ_WRITE,
        mirror_instances_remove,
    ),
    method("mirror_image_map_list", READ, mirror_image_map_list),
    method("mirror_image_map_update", WRITE, mirror_image_map_update),
    method("mirror_image_map_remove", WRITE, mirror_image_map_remove),
];

const INSTANCE: &str = "instance_";
const MAP: &str = "image_map_";

fn mirror_instances_list(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let ids = collect(ctx, INSTANCE, b"", u64::MAX, |_| Ok(()))?;
    let mut out = Vec::new();
    out.put_list(ids.keys(), |out, id| out.put_blob(id));
    Ok(out)
}

fn instance_key(bytes: &[u8]) -> Result<Vec<u8>> {
    Ok(value::key(INSTANCE, input(bytes, |r| r.blob())?))
}

fn mirror_instances_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    ctx.omap_set(&instance_key(bytes)?, b"")?;
    DONE
}

fn mirror_instances_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    ctx.omap_remove(&instance_key(bytes)?)?;
    DONE
}

/// `cls::rbd::MirrorImageMap`.
struct Mapping {
    instance: Text,
    since: UTime,
    data: Text,
}

impl Value for Mapping {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Mapping> {
        let b = &mut r.versioned("MirrorImageMap", 1)?.body;
        Ok(Mapping {
            instance: Value::decode(b)?,
            since: UTime::decode(b)?,
            data: Value::decode(b)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_blob(&self.instance);
            self.since.encode(b);
            b.put_blob(&self.data);
        });
    }
}

fn mirror_image_map_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    reply(&collect(ctx, MAP, after, max, |v| {
        stored::<Mapping>(v).map_err(|_| Errno::INVAL)
    })?)
}

fn mirror_image_map_update(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (global_id, mapping) = input(bytes, |r| Ok((r.blob()?, Mapping::decode(r)?)))?;
    save(ctx, value::key(MAP, global_id), &mapping)?;
    DONE
}

fn mirror_image_map_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let global_id = input(bytes, |r| r.blob())?;
    forget(ctx, value::key(MAP, global_id))?;
    DONE
}
