//! When an image was made, read and written last.

use crate::codec::UTime;

use super::super::value::{DONE, look, reply, save};
use super::super::{Context, Method, READ, READ_WRITE, Result};
use super::{check_exists, method};

pub(super) const METHODS: &[Method] = &[
    method("get_create_timestamp", READ, |ctx, _| get(ctx, CREATED)),
    method("get_access_timestamp", READ, |ctx, _| get(ctx, ACCESSED)),
    method("get_modify_timestamp", READ, |ctx, _| get(ctx, MODIFIED)),
    method("set_access_timestamp", READ_WRITE, |ctx, _| {
        set(ctx, ACCESSED)
    }),
    method("set_modify_timestamp", READ_WRITE, |ctx, _| {
        set(ctx, MODIFIED)
    }),
];

pub(super) const CREATED: &str = "create_timestamp";
pub(super) const ACCESSED: &str = "access_timestamp";
pub(super) const MODIFIED: &str = "modify_timestamp";

/// Zero for an image that is older than timestamps.
fn get(ctx: &mut dyn Context, key: &str) -> Result<Vec<u8>> {
    reply(&look::<UTime>(ctx, key)?.unwrap_or_default())
}

fn set(ctx: &mut dyn Context, key: &str) -> Result<Vec<u8>> {
    check_exists(ctx)?;
    let now = ctx.now();
    save(ctx, key, &now)?;
    DONE
}
