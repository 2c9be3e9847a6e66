//! The class `rbd`: what is known about images, beside their data.
//!
//! Source: `src/cls/rbd/cls_rbd.cc`; what is stored is laid out in `cls_rbd.h` and
//! `cls_rbd_types.{h,cc}` beside it. Methods check in the same order as there, so that a call with
//! several things wrong fails in the same way.

mod bit_vector;
mod children;
mod copyup;
mod dir;
mod group;
mod group_types;
mod header;
mod metadata;
mod migration;
mod mirror;
mod namespace;
mod object_map;
mod old_format;
mod parent;
mod snapshot;
mod timestamps;
mod trash;
mod types;

use crate::osd::uuid;
use crate::rbd::Features;

use super::value::{forget, load, look, save};
use super::{Context, Errno, Method, Result};

pub(super) const METHODS: &[&[Method]] = &[
    children::METHODS,
    copyup::METHODS,
    dir::METHODS,
    group::METHODS,
    header::METHODS,
    metadata::METHODS,
    migration::METHODS,
    mirror::image::METHODS,
    mirror::map::METHODS,
    mirror::peer::METHODS,
    mirror::status::METHODS,
    namespace::METHODS,
    object_map::METHODS,
    old_format::METHODS,
    parent::METHODS,
    snapshot::METHODS,
    timestamps::METHODS,
    trash::METHODS,
];

const fn method(
    name: &'static str,
    access: (bool, bool),
    call: fn(&mut dyn Context, &[u8]) -> Result<Vec<u8>>,
) -> Method {
    Method::new("rbd", name, access, call)
}

/// `RBD_FEATURES_ALL`.
const ALL_FEATURES: u64 = (Features::DIRTY_CACHE.0 << 1) - 1;

/// `CEPH_RELEASE_NAUTILUS`: from there on OSDs store parents normalised.
const NAUTILUS: u8 = 14;

/// `RBD_OPERATION_FEATURE_*`: what an image takes part in.
mod op_feature {
    pub(super) const CLONE_PARENT: u64 = 1 << 0;
    pub(super) const CLONE_CHILD: u64 = 1 << 1;
    pub(super) const GROUP: u64 = 1 << 2;
    pub(super) const SNAP_TRASH: u64 = 1 << 3;
    pub(super) const ALL: u64 = CLONE_PARENT | CLONE_CHILD | GROUP | SNAP_TRASH;
}

/// Whether what we write may be read by OSDs since Nautilus only (`get_encode_features`).
fn normalised(ctx: &dyn Context) -> bool {
    ctx.releases().0 >= NAUTILUS
}

fn check_exists(ctx: &mut dyn Context) -> Result<()> {
    ctx.stat().map(drop)
}

/// ENOEXEC for an image without the feature.
fn require_feature(ctx: &mut dyn Context, need: Features) -> Result<()> {
    match look::<u64>(ctx, "features")? {
        Some(have) if have & need.0 == need.0 => Ok(()),
        _ => Err(Errno::NOEXEC),
    }
}

/// Sets the operation features within `mask`, and with them the feature that says there are some.
fn set_op_features(ctx: &mut dyn Context, set: u64, mask: u64) -> Result<()> {
    let features: u64 = load(ctx, "features")?;
    let old = look::<u64>(ctx, "op_features")?.unwrap_or(0);
    let new = (old & !mask) | (set & mask);
    if new == old {
        return Ok(());
    }
    let with = if new == 0 {
        forget(ctx, "op_features")?;
        features & !Features::OPERATIONS.0
    } else {
        save(ctx, "op_features", &new)?;
        features | Features::OPERATIONS.0
    };
    if with != features {
        save(ctx, "features", &with)?;
    }
    Ok(())
}

fn is_valid_id(id: &[u8]) -> bool {
    !id.is_empty() && id.iter().all(u8::is_ascii_alphanumeric)
}

/// A random UUID in its usual notation (`uuid_d::generate_random`).
fn random_uuid(ctx: &mut dyn Context) -> String {
    let mut b = [0; 16];
    ctx.random(&mut b);
    uuid::text(&uuid::of_random(b))
}
