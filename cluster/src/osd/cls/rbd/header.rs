//! Size, features and layout of an image: the keys of its header object.

use crate::codec::Put;
use crate::rbd::Features;
use crate::rbd::cls::NO_SNAP;

use super::super::value::{DONE, Text, input, load, look, or_default, reply, save};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::timestamps::{ACCESSED, CREATED, MODIFIED};
use super::{
    ALL_FEATURES, check_exists, method, op_feature, parent, require_feature, set_op_features,
    snapshot,
};

pub(super) const METHODS: &[Method] = &[
    method("create", READ_WRITE, create),
    method("get_features", READ, get_features),
    method("set_features", READ_WRITE, set_features),
    method("get_size", READ, get_size),
    method("set_size", READ_WRITE, set_size),
    method("get_object_prefix", READ, get_object_prefix),
    method("get_data_pool", READ, get_data_pool),
    method("get_stripe_unit_count", READ, get_stripe_unit_count),
    method("set_stripe_unit_count", READ_WRITE, set_stripe_unit_count),
    method("get_flags", READ, get_flags),
    method("set_flags", READ_WRITE, set_flags),
    method("op_features_get", READ, op_features_get),
    method("op_features_set", READ_WRITE, op_features_set),
    method("get_all_features", READ, get_all_features),
];

/// `RBD_FEATURES_INCOMPATIBLE`: who does not know one of these cannot even read the image.
const READ_INCOMPATIBLE: u64 =
    Features::LAYERING.0 | Features::STRIPING.0 | Features::DATA_POOL.0 | Features::DIRTY_CACHE.0;
/// `RBD_FEATURES_RW_INCOMPATIBLE`: that is all there are.
const WRITE_INCOMPATIBLE: u64 = ALL_FEATURES;
/// `RBD_FEATURES_MUTABLE`.
const MUTABLE: u64 = Features::EXCLUSIVE_LOCK.0
    | Features::OBJECT_MAP.0
    | Features::FAST_DIFF.0
    | Features::JOURNALING.0
    | Features::NON_PRIMARY.0
    | Features::DIRTY_CACHE.0;
/// `RBD_FEATURES_DISABLE_ONLY`.
const DISABLE_ONLY: u64 = Features::DEEP_FLATTEN.0;
/// `RBD_FEATURES_INTERNAL`.
const INTERNAL: u64 = Features::OPERATIONS.0 | Features::MIGRATING.0;

fn create(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (size, order, features, prefix, data_pool) = input(bytes, |r| {
        Ok((
            r.u64()?,
            r.u8()?,
            r.u64()?,
            r.blob()?,
            or_default(r, -1_i64)?,
        ))
    })?;
    if features & !ALL_FEATURES != 0 {
        return Err(Errno::NOSYS);
    }
    if prefix.is_empty() {
        return Err(Errno::INVAL);
    }
    if ctx.omap_get(b"object_prefix") != Err(Errno::NOENT) {
        return Err(Errno::EXIST);
    }
    let pooled = features & Features::DATA_POOL.0 != 0;
    if features & Features::OPERATIONS.0 != 0 || pooled != (data_pool != -1) {
        return Err(Errno::INVAL);
    }
    save(ctx, "size", &size)?;
    save(ctx, "order", &order)?;
    save(ctx, "features", &features)?;
    save(ctx, "object_prefix", &prefix.to_vec())?;
    save(ctx, "snap_seq", &0_u64)?;
    if pooled {
        save(ctx, "data_pool_id", &data_pool)?;
    }
    let now = ctx.now();
    for key in [CREATED, ACCESSED, MODIFIED] {
        save(ctx, key, &now)?;
    }
    DONE
}

fn get_features(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let read_only = input(bytes, |r| {
        r.u64()?; // a snapshot's id: all have the head's features
        or_default(r, false)
    })?;
    let features: u64 = load(ctx, "features")?;
    let mask = if read_only {
        READ_INCOMPATIBLE
    } else {
        WRITE_INCOMPATIBLE
    };
    let mut out = Vec::new();
    out.put_u64(features);
    out.put_u64(features & mask);
    Ok(out)
}

fn set_features(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (features, mask) = input(bytes, |r| Ok((r.u64()?, r.u64()?)))?;
    let old = look::<u64>(ctx, "features")?.unwrap_or(0);
    if mask & INTERNAL != 0 {
        return Err(Errno::INVAL);
    }
    // Clients newer than we are may mask out what we do not know.
    let mask = mask & ALL_FEATURES;
    let (enabled, disabled) = (features & mask, !features & mask);
    if enabled & !MUTABLE != 0 || disabled & !(MUTABLE | DISABLE_ONLY) != 0 {
        return Err(Errno::INVAL);
    }
    save(ctx, "features", &((old & !mask) | enabled))?;
    DONE
}

fn get_size(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let snap = input(bytes, |r| r.u64())?;
    let order: u8 = load(ctx, "order")?;
    let size = if snap == NO_SNAP {
        load(ctx, "size")?
    } else {
        snapshot::load_snap(ctx, snap)?.size
    };
    let mut out = Vec::new();
    out.put_u8(order);
    out.put_u64(size);
    Ok(out)
}

/// A smaller image overlaps less with its parent.
fn set_size(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let size = input(bytes, |r| r.u64())?;
    let old: u64 = load(ctx, "size")?;
    save(ctx, "size", &size)?;
    if size < old {
        let mut link = parent::look(ctx)?.unwrap_or_default();
        if link.spec.exists() && link.overlap.unwrap_or(0) > size {
            link.overlap = Some(size);
            parent::save(ctx, &link)?;
        }
    }
    DONE
}

fn get_object_prefix(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&load::<Text>(ctx, "object_prefix")?)
}

fn get_data_pool(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&look::<i64>(ctx, "data_pool_id")?.unwrap_or(-1))
}

/// Bytes of an object of this order; EIO for what no image can have.
fn object_size(order: u8) -> Result<u64> {
    1_u64.checked_shl(order.into()).ok_or(Errno::IO)
}

fn get_stripe_unit_count(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    check_exists(ctx)?;
    require_feature(ctx, Features::STRIPING)?;
    let unit = match look(ctx, "stripe_unit")? {
        Some(unit) => unit,
        None => object_size(load(ctx, "order").map_err(|_| Errno::IO)?)?,
    };
    let count = look(ctx, "stripe_count")?.unwrap_or(1);
    let mut out = Vec::new();
    out.put_u64(unit);
    out.put_u64(count);
    Ok(out)
}

fn set_stripe_unit_count(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (unit, count) = input(bytes, |r| Ok((r.u64()?, r.u64()?)))?;
    if unit == 0 || count == 0 {
        return Err(Errno::INVAL);
    }
    check_exists(ctx)?;
    require_feature(ctx, Features::STRIPING)?;
    if !object_size(load(ctx, "order")?)?.is_multiple_of(unit) {
        return Err(Errno::INVAL);
    }
    save(ctx, "stripe_unit", &unit)?;
    save(ctx, "stripe_count", &count)?;
    DONE
}

fn get_flags(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let snap = input(bytes, |r| r.u64())?;
    let flags = if snap == NO_SNAP {
        look(ctx, "flags")?.unwrap_or(0)
    } else {
        snapshot::load_snap(ctx, snap)?.flags
    };
    reply(&flags)
}

fn set_flags(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (flags, mask, id) = input(bytes, |r| Ok((r.u64()?, r.u64()?, or_default(r, NO_SNAP)?)))?;
    if id == NO_SNAP {
        let old = look::<u64>(ctx, "flags")?.unwrap_or(0);
        save(ctx, "flags", &((old & !mask) | (flags & mask)))?;
    } else {
        let mut snap = snapshot::load_snap(ctx, id)?;
        snap.flags = (snap.flags & !mask) | (flags & mask);
        snapshot::save_snap(ctx, id, snap)?;
    }
    DONE
}

fn op_features_get(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&look::<u64>(ctx, "op_features")?.unwrap_or(0))
}

fn op_features_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (set, mask) = input(bytes, |r| Ok((r.u64()?, r.u64()?)))?;
    if mask & !op_feature::ALL != 0 {
        return Err(Errno::INVAL);
    }
    set_op_features(ctx, set, mask)?;
    DONE
}

fn get_all_features(_: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&ALL_FEATURES)
}
