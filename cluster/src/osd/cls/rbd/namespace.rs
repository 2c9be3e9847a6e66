//! Namespaces of a pool, in its `rbd_namespace`.

use crate::codec::Put;

use super::super::value::{self, DONE, collect, found, input, page};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::method;

pub(super) const METHODS: &[Method] = &[
    method("namespace_add", READ_WRITE, namespace_add),
    method("namespace_remove", READ_WRITE, namespace_remove),
    method("namespace_list", READ, namespace_list),
];

const PREFIX: &str = "name_";

fn key(bytes: &[u8]) -> Result<Vec<u8>> {
    Ok(value::key(PREFIX, input(bytes, |r| r.blob())?))
}

fn namespace_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let key = key(bytes)?;
    if found(ctx.omap_get(&key))?.is_some() {
        return Err(Errno::EXIST);
    }
    ctx.omap_set(&key, b"")?;
    DONE
}

fn namespace_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let key = key(bytes)?;
    ctx.omap_get(&key)?;
    ctx.omap_remove(&key)?;
    DONE
}

fn namespace_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    let names = collect(ctx, PREFIX, after, max, |_| Ok(()))?;
    let mut out = Vec::new();
    out.put_list(names.keys(), |out, name| out.put_blob(name));
    Ok(out)
}
