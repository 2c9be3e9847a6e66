//! Images that wait for their end, in the pool's `rbd_trash`.

use crate::codec::{self, Put, Reader, UTime};

use super::super::value::{
    self, DONE, Text, Value, collect, input, load, look, page, reply, save, stored,
};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::{is_valid_id, method};

pub(super) const METHODS: &[Method] = &[
    method("trash_add", READ_WRITE, trash_add),
    method("trash_remove", READ_WRITE, trash_remove),
    method("trash_list", READ, trash_list),
    method("trash_get", READ, trash_get),
    method("trash_state_set", READ_WRITE, trash_state_set),
];

const PREFIX: &str = "id_";

fn key(id: &[u8]) -> Vec<u8> {
    value::key(PREFIX, id)
}

/// `cls::rbd::TrashImageSpec`.
struct Spec {
    source: u8,
    name: Text,
    deleted: UTime,
    deferred_until: UTime,
    state: u8,
}

impl Value for Spec {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Spec> {
        let mut v = r.versioned("TrashImageSpec", 2)?;
        let b = &mut v.body;
        Ok(Spec {
            source: b.u8()?,
            name: Value::decode(b)?,
            deleted: UTime::decode(b)?,
            deferred_until: UTime::decode(b)?,
            state: if v.version >= 2 { b.u8()? } else { 0 },
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(2, 1, |b| {
            b.put_u8(self.source);
            b.put_blob(&self.name);
            self.deleted.encode(b);
            self.deferred_until.encode(b);
            b.put_u8(self.state);
        });
    }
}

fn trash_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    ctx.create(false)?;
    let (id, spec) = input(bytes, |r| Ok((r.blob()?, Spec::decode(r)?)))?;
    if !is_valid_id(id) {
        return Err(Errno::INVAL);
    }
    if look::<Spec>(ctx, key(id))?.is_some() {
        return Err(Errno::EXIST);
    }
    save(ctx, key(id), &spec)?;
    DONE
}

fn trash_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let key = key(input(bytes, |r| r.blob())?);
    ctx.omap_get(&key)?;
    ctx.omap_remove(&key)?;
    DONE
}

fn trash_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    reply(&collect(ctx, PREFIX, after, max, stored::<Spec>)?)
}

fn trash_get(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    ctx.omap_get(&key(input(bytes, |r| r.blob())?))
}

fn trash_state_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, new, expected) = input(bytes, |r| Ok((r.blob()?, r.u8()?, r.u8()?)))?;
    let mut spec: Spec = load(ctx, key(id))?;
    if spec.state == expected {
        spec.state = new;
        save(ctx, key(id), &spec)?;
    } else if spec.state != new {
        return Err(Errno::STALE);
    }
    DONE
}
