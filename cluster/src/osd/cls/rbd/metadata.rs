//! Keys and values that users attach to an image or a pool.

use std::collections::BTreeMap;

use super::super::value::{self, DONE, Text, Value, collect, input, page, reply};
use super::super::{Context, Method, READ, READ_WRITE, Result};
use super::method;

pub(super) const METHODS: &[Method] = &[
    method("metadata_list", READ, metadata_list),
    method("metadata_set", READ_WRITE, metadata_set),
    method("metadata_remove", READ_WRITE, metadata_remove),
    method("metadata_get", READ, metadata_get),
];

const PREFIX: &str = "metadata_";
/// What a listing of no pairs gets, for old clients.
const DEFAULT_MAX: u64 = 64;

fn key(name: &[u8]) -> Vec<u8> {
    value::key(PREFIX, name)
}

fn metadata_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    let max = if max == 0 { DEFAULT_MAX } else { max };
    reply(&collect(ctx, PREFIX, after, max, |v| Ok(v.to_vec()))?)
}

fn metadata_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let pairs = input(bytes, BTreeMap::<Text, Text>::decode)?;
    if pairs.is_empty() {
        ctx.create(false)?;
    }
    for (name, value) in &pairs {
        ctx.omap_set(&key(name), value)?;
    }
    DONE
}

fn metadata_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let name = input(bytes, |r| r.blob())?;
    ctx.omap_remove(&key(name))?;
    DONE
}

fn metadata_get(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let name = input(bytes, |r| r.blob())?;
    reply(&ctx.omap_get(&key(name))?)
}
