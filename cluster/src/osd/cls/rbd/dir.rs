//! Which images a pool has: `rbd_directory`, and `rbd_id.NAME` for each name.

use super::super::value::{
    self, DONE, Text, Value, collect, input, load, page, reply, save, stored,
};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::{check_exists, is_valid_id, method};

pub(super) const METHODS: &[Method] = &[
    method("get_id", READ, get_id),
    method("set_id", READ_WRITE, set_id),
    method("dir_get_id", READ, dir_get_id),
    method("dir_get_name", READ, dir_get_name),
    method("dir_list", READ, dir_list),
    method("dir_add_image", READ_WRITE, dir_add),
    method("dir_remove_image", READ_WRITE, dir_remove),
    method("dir_rename_image", READ_WRITE, dir_rename),
    method("dir_state_assert", READ, dir_state_assert),
    method("dir_state_set", READ_WRITE, dir_state_set),
];

const NAME: &str = "name_";
const ID: &str = "id_";
const STATE: &str = "state";

fn name_key(name: &[u8]) -> Vec<u8> {
    value::key(NAME, name)
}

fn id_key(id: &[u8]) -> Vec<u8> {
    value::key(ID, id)
}

fn get_id(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let (size, _) = ctx.stat()?;
    if size == 0 {
        return Err(Errno::NOENT);
    }
    reply(&stored::<Text>(&ctx.read(0, size)?)?)
}

fn set_id(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    check_exists(ctx)?;
    let id = input(bytes, Text::decode)?;
    if !is_valid_id(&id) {
        return Err(Errno::INVAL);
    }
    let (size, _) = ctx.stat()?;
    if size != 0 {
        return Err(Errno::EXIST);
    }
    ctx.write(0, &reply(&id)?)?;
    DONE
}

/// Adds a pair of name and id, of an image or a group.
fn add(ctx: &mut dyn Context, name: &[u8], id: &[u8], unique_id: bool) -> Result<Vec<u8>> {
    if name.is_empty() || !is_valid_id(id) {
        return Err(Errno::INVAL);
    }
    let (by_name, by_id) = (name_key(name), id_key(id));
    if load::<Text>(ctx, &by_name) != Err(Errno::NOENT) {
        return Err(Errno::EXIST);
    }
    if unique_id && load::<Text>(ctx, &by_id) != Err(Errno::NOENT) {
        return Err(Errno::BADF);
    }
    save(ctx, &by_name, &id.to_vec())?;
    save(ctx, &by_id, &name.to_vec())?;
    DONE
}

/// Removes a pair, unless name and id have other partners now.
fn remove(ctx: &mut dyn Context, name: &[u8], id: &[u8]) -> Result<Vec<u8>> {
    let (by_name, by_id) = (name_key(name), id_key(id));
    let stored_id: Text = load(ctx, &by_name)?;
    let stored_name: Text = load(ctx, &by_id)?;
    if stored_name != name || stored_id != id {
        return Err(Errno::STALE);
    }
    ctx.omap_remove(&by_name)?;
    ctx.omap_remove(&by_id)?;
    DONE
}

/// `dir_add_image` and `group_dir_add`.
pub(super) fn dir_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    ctx.create(false)?;
    let (name, id) = input(bytes, |r| Ok((r.blob()?, r.blob()?)))?;
    add(ctx, name, id, true)
}

/// `dir_remove_image` and `group_dir_remove`.
pub(super) fn dir_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (name, id) = input(bytes, |r| Ok((r.blob()?, r.blob()?)))?;
    remove(ctx, name, id)
}

/// `dir_rename_image` and `group_dir_rename`.
pub(super) fn dir_rename(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (from, to, id) = input(bytes, |r| Ok((r.blob()?, r.blob()?, r.blob()?)))?;
    remove(ctx, from, id)?;
    // The id still seems to be there: reads do not see what this call has removed.
    add(ctx, to, id, false)
}

fn dir_get_id(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let name = input(bytes, |r| r.blob())?;
    reply(&load::<Text>(ctx, name_key(name))?)
}

fn dir_get_name(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.blob())?;
    reply(&load::<Text>(ctx, id_key(id))?)
}

/// `dir_list` and `group_dir_list`: ids by name.
pub(super) fn dir_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    reply(&collect(ctx, NAME, after, max, stored::<Text>)?)
}

/// `cls::rbd::DirectoryState`.
const READY: u8 = 0;
const ADD_DISABLED: u8 = 1;

fn dir_state_assert(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let expected = input(bytes, |r| r.u8())?;
    if load::<u8>(ctx, STATE)? != expected {
        return Err(Errno::NOENT);
    }
    DONE
}

fn dir_state_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let state = input(bytes, |r| r.u8())?;
    match state {
        READY => {}
        ADD_DISABLED => {
            check_exists(ctx)?;
            let (names, _) = ctx.omap_list(NAME.as_bytes(), NAME.as_bytes(), 1)?;
            if !names.is_empty() {
                return Err(Errno::BUSY);
            }
        }
        _ => return Err(Errno::INVAL),
    }
    save(ctx, STATE, &state)?;
    DONE
}
