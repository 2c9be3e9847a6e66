//! Which objects of an image exist, as `rbd_object_map.ID` keeps it.

use std::ops::Range;

use crate::codec::{Put, Reader};

use super::super::value::{DONE, Value, found, input};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::bit_vector::{self as bits, BLOCK, BitVector, HEADER};
use super::method;

pub(super) const METHODS: &[Method] = &[
    method("object_map_load", READ, object_map_load),
    method("object_map_save", READ_WRITE, object_map_save),
    method("object_map_resize", READ_WRITE, object_map_resize),
    method("object_map_update", READ_WRITE, object_map_update),
    method("object_map_snap_add", READ_WRITE, object_map_snap_add),
    method("object_map_snap_remove", READ_WRITE, object_map_snap_remove),
];

/// `OBJECT_EXISTS` and `OBJECT_EXISTS_CLEAN`, unchanged since the newest snapshot
/// (`src/include/rbd/object_map_types.h`).
const EXISTS: u8 = 1;
const EXISTS_CLEAN: u8 = 3;

/// `MAX_OBJECT_MAP_OBJECT_COUNT`.
const MAX_OBJECTS: u64 = 256_000_000;

/// ENOENT for an empty object, too.
fn load(ctx: &mut dyn Context) -> Result<BitVector> {
    let (size, _) = ctx.stat()?;
    if size == 0 {
        return Err(Errno::NOENT);
    }
    let bytes = ctx.read(0, size)?;
    input(&bytes, BitVector::decode)
}

fn object_map_load(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    Ok(load(ctx)?.encode(false))
}

fn object_map_save(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let map = input(bytes, BitVector::decode)?;
    ctx.write_full(&map.encode(true))?;
    DONE
}

fn object_map_resize(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (count, default) = input(bytes, |r| Ok((r.u64()?, r.u8()?)))?;
    if count > MAX_OBJECTS {
        return Err(Errno::INVAL);
    }
    let mut map = found(load(ctx))?.unwrap_or_default();
    let old = map.len();
    if (count..old).any(|at| map.get(at) != default) {
        // It says that objects beyond the new end still exist.
        return Err(Errno::STALE);
    }
    map.resize(count);
    for at in old..count {
        map.set(at, default);
    }
    ctx.write_full(&map.encode(true))?;
    DONE
}

/// The part of a map that an update touches.
struct Blocks {
    /// The element with which the first block begins.
    first: u64,
    data: Vec<u8>,
    /// Where data and its checksums lie in the object.
    data_at: u64,
    crcs_at: u64,
}

impl Blocks {
    fn load(ctx: &mut dyn Context, elements: &Range<u64>) -> Result<Blocks> {
        let header = ctx.read(0, HEADER as u64)?;
        let (len, _) = input(&header, bits::read_header)?;
        if elements.is_empty() || elements.end > len {
            return Err(Errno::RANGE);
        }
        let block = BLOCK as u64;
        let blocks = bits::blocks(elements.clone());
        let total = bits::data_len(len);
        let start = blocks.start * block;
        let length = (blocks.end * block).min(total) - start;
        let data_at = HEADER as u64 + start;
        // A footer is its length, the header's checksum, the number of others, and those.
        let crcs_at = HEADER as u64 + total + 12 + blocks.start * 4;
        let data = ctx.read(data_at, length)?;
        if data.len() as u64 != length {
            return Err(Errno::INVAL);
        }
        let crcs = ctx.read(crcs_at, (blocks.end - blocks.start) * 4)?;
        let mut crcs = Reader::new(&crcs);
        if !data.chunks(BLOCK).all(|b| crcs.u32() == Ok(bits::crc(b))) {
            return Err(Errno::INVAL);
        }
        Ok(Blocks {
            first: start * 4,
            data,
            data_at,
            crcs_at,
        })
    }

    fn save(&self, ctx: &mut dyn Context) -> Result<()> {
        ctx.write(self.data_at, &self.data)?;
        let mut crcs = Vec::new();
        for block in self.data.chunks(BLOCK) {
            crcs.put_u32(bits::crc(block));
        }
        ctx.write(self.crcs_at, &crcs)
    }
}

fn object_map_update(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (start, end, new, expected) = input(bytes, |r| {
        Ok((r.u64()?, r.u64()?, r.u8()?, Option::<u8>::decode(r)?))
    })?;
    ctx.stat()?;
    let mut blocks = Blocks::load(ctx, &(start..end))?;
    let mut changed = false;
    for at in start - blocks.first..end - blocks.first {
        let state = bits::get(&blocks.data, at);
        let matches = expected.is_none_or(|e| state == e || (e == EXISTS && state == EXISTS_CLEAN));
        if matches && state != new {
            bits::set(&mut blocks.data, at, new);
            changed = true;
        }
    }
    if changed {
        blocks.save(ctx)?;
    }
    DONE
}

/// Gives every object a new state, or none; writes what changed.
fn transform(
    ctx: &mut dyn Context,
    mut map: BitVector,
    mut state: impl FnMut(u64, u8) -> Option<u8>,
) -> Result<Vec<u8>> {
    let mut changed = false;
    for at in 0..map.len() {
        if let Some(new) = state(at, map.get(at)) {
            map.set(at, new);
            changed = true;
        }
    }
    if changed {
        ctx.write_full(&map.encode(true))?;
    }
    DONE
}

fn object_map_snap_add(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let map = load(ctx)?;
    transform(ctx, map, |_, state| {
        (state == EXISTS).then_some(EXISTS_CLEAN)
    })
}

/// What was clean against a snapshot that goes counts as changed, unless the snapshot's own map
/// says that it had not changed there, either.
fn object_map_snap_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let of_snap = input(bytes, BitVector::decode)?;
    let map = load(ctx)?;
    transform(ctx, map, |at, state| {
        let changed = at >= of_snap.len() || of_snap.get(at) == EXISTS;
        (state == EXISTS_CLEAN && changed).then_some(EXISTS)
    })
}
