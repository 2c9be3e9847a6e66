//! Metadata of an image: what opening reads, and what creating, listing and removing do.
//!
//! Source: `src/librbd/image/OpenRequest.cc`, `CreateRequest.cc`, `RemoveRequest.cc`; names of
//! the objects from `src/include/rbd_types.h`.

use super::cls::{self, NO_SNAP, ParentSpec, Snapshot};
use super::engine::Geometry;
use super::{Features, Layout, LayoutError};
use crate::codec::{DecodeError, UTime};
use crate::objecter::results::{Watcher, decode_watchers};
use crate::rados::{IoCtx, RadosError, Write};

/// Names and ids of a pool's images.
pub const DIRECTORY: &str = "rbd_directory";
/// Discards of less are dropped: krbd's `alloc_size`, librbd's `rbd_discard_granularity_bytes`.
pub const DISCARD_GRANULARITY: u64 = 64 << 10;
/// Data objects removed at a time (`rbd_concurrent_management_ops`).
const REMOVE_AT_ONCE: usize = 10;
/// Names one `dir_list` call returns at most.
const LIST_CHUNK: u64 = 1024;

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("there is no image '{image}' in {place}: `ublk-rbd image ls` shows what is there")]
    NotFound { image: String, place: String },
    #[error("there is no snapshot '{snap}' of {image}")]
    NoSnapshot { image: String, snap: String },
    #[error("{place} has an image '{image}' already")]
    Exists { image: String, place: String },
    #[error("there is no namespace '{0}': create it with `rbd namespace create`")]
    NoNamespace(String),
    #[error("{0} has format 1, which is not supported: convert it with `rbd migration`")]
    Format1(String),
    #[error(
        "{image} has features that this version does not maintain ({features}): \
         map it with --read-only, or disable them with `rbd feature disable`"
    )]
    NotWritable { image: String, features: Features },
    #[error("{image} has features that this version cannot read ({features})")]
    NotReadable { image: String, features: Features },
    #[error(
        "{0} is a clone, and this version does not read parents: flatten it with `rbd flatten`"
    )]
    Clone(String),
    #[error("{image} takes part in operations that this version does not know ({bits:#x})")]
    Operations { image: String, bits: u64 },
    #[error("{image} is in use by {watcher}")]
    InUse { image: String, watcher: String },
    #[error("{image} has snapshots: remove them first with `rbd snap purge`")]
    HasSnapshots { image: String },
    #[error("features {0} cannot be set when an image is created here")]
    CreateFeatures(Features),
    #[error("pool '{0}' has snapshots of its own, which RBD images do not go with")]
    PoolSnapshots(String),
    #[error(
        "pool '{0}' is erasure-coded and does not allow overwrites: \
         set allow_ec_overwrites, and keep the header in a replicated pool"
    )]
    NoOverwrites(String),
    #[error("'{0}' is no name for an image: it must not be empty or hold '/' or '@'")]
    Name(String),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("{image}: {what}: {error}")]
    Rados {
        image: String,
        what: &'static str,
        error: RadosError,
    },
    #[error("{image}: its metadata makes no sense: {error}")]
    Decode { image: String, error: DecodeError },
    #[error(transparent)]
    Cluster(#[from] RadosError),
}

/// An opened image: what its header says.
#[derive(Debug, Clone)]
pub struct Image {
    pub name: String,
    pub id: String,
    /// Bytes of the head, or of the snapshot it was opened at.
    pub size: u64,
    pub order: u8,
    pub layout: Layout,
    pub features: Features,
    pub op_features: u64,
    pub flags: u64,
    pub prefix: String,
    /// Where the data objects are, when not beside the header.
    pub data_pool: Option<i64>,
    pub parent: Option<ParentSpec>,
    /// The snap context writes carry: sequence, and ids from the newest on.
    pub snap_seq: u64,
    pub snap_ids: Vec<u64>,
    pub snapshots: Vec<Snapshot>,
    /// The snapshot it was opened at.
    pub snap: Option<u64>,
    pub created: UTime,
    pub accessed: UTime,
    pub modified: UTime,
}

/// What may be done with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

pub fn header_oid(id: &str) -> String {
    format!("rbd_header.{id}")
}

fn id_oid(name: &str) -> String {
    format!("rbd_id.{name}")
}

fn object_map_oid(id: &str) -> String {
    format!("rbd_object_map.{id}")
}

/// An image's name that `rbd` would take, too.
fn check_name(name: &str) -> Result<(), ImageError> {
    if name.is_empty() || name.contains(['/', '@']) {
        return Err(ImageError::Name(name.to_owned()));
    }
    Ok(())
}

impl Image {
    /// Reads the metadata of an image, of a snapshot of it if one is named.
    pub async fn open(io: &IoCtx, name: &str, snap: Option<&str>) -> Result<Image, ImageError> {
        check_name(name)?;
        let place = io.place();
        let label = format!("{place}/{name}");
        let decode = |error| ImageError::Decode {
            image: label.clone(),
            error,
        };
        let rados = |what| {
            let image = label.clone();
            move |error| ImageError::Rados { image, what, error }
        };
        let id = match io.call(&id_oid(name), cls::get_id()).await {
            Ok(bytes) => cls::string_reply(&bytes).map_err(decode)?,
            Err(RadosError::Errno(ENOENT)) => {
                let v1 = io
                    .exists(&format!("{name}.rbd"))
                    .await
                    .map_err(rados("cannot look it up"))?;
                return Err(if v1 {
                    ImageError::Format1(label)
                } else {
                    ImageError::NotFound {
                        image: name.to_owned(),
                        place,
                    }
                });
            }
            Err(e) => return Err(rados("cannot look it up")(e)),
        };
        Image::read(io, name, id, snap).await
    }

    /// Reads the metadata again. The image is found by its id: another may have its name by now.
    pub async fn reopen(&self, io: &IoCtx) -> Result<Image, ImageError> {
        Image::read(io, &self.name, self.id.clone(), None).await
    }

    async fn read(
        io: &IoCtx,
        name: &str,
        id: String,
        snap: Option<&str>,
    ) -> Result<Image, ImageError> {
        let label = format!("{}/{name}", io.place());
        let decode = |error| ImageError::Decode {
            image: label.clone(),
            error,
        };
        let rados = |what| {
            let image = label.clone();
            move |error| ImageError::Rados { image, what, error }
        };
        let header = header_oid(&id);
        let calls = vec![
            cls::get_size(NO_SNAP),
            cls::get_object_prefix(),
            cls::get_features(true),
            cls::get_flags(NO_SNAP),
            cls::get_snapcontext(),
            cls::op_features_get(),
        ];
        let out = io
            .calls(&header, calls)
            .await
            .map_err(rados("cannot read its header"))?;
        let (order, size) = cls::size_reply(&out[0]).map_err(decode)?;
        let prefix = cls::string_reply(&out[1]).map_err(decode)?;
        let features = Features(cls::features_reply(&out[2]).map_err(decode)?.0);
        let flags = cls::u64_reply(&out[3]).map_err(decode)?;
        let (snap_seq, snap_ids) = cls::snapcontext_reply(&out[4]).map_err(decode)?;
        let op_features = cls::u64_reply(&out[5]).map_err(decode)?;

        // What depends on a feature fails where the feature is missing, so it is asked only now.
        let mut calls = vec![
            cls::get_create_timestamp(),
            cls::get_access_timestamp(),
            cls::get_modify_timestamp(),
        ];
        let striped = features.contains(Features::STRIPING);
        let layered = features.contains(Features::LAYERING);
        let elsewhere = features.contains(Features::DATA_POOL);
        calls.extend(striped.then(cls::get_stripe_unit_count));
        calls.extend(layered.then(cls::parent_get));
        calls.extend(elsewhere.then(cls::get_data_pool));
        calls.extend(snap_ids.iter().map(|id| cls::snapshot_get(*id)));
        let out = io
            .calls(&header, calls)
            .await
            .map_err(rados("cannot read its header"))?;
        let mut out = out.iter();
        let mut next = || out.next().expect("one output a call").as_slice();
        let created = cls::timestamp_reply(next()).map_err(decode)?;
        let accessed = cls::timestamp_reply(next()).map_err(decode)?;
        let modified = cls::timestamp_reply(next()).map_err(decode)?;
        let (unit, count) = if striped {
            cls::stripe_reply(next()).map_err(decode)?
        } else {
            (0, 0)
        };
        let parent = if layered {
            cls::parent_reply(next()).map_err(decode)?
        } else {
            None
        };
        let data_pool = if elsewhere {
            Some(cls::i64_reply(next()).map_err(decode)?)
        } else {
            None
        };
        let snapshots = snap_ids
            .iter()
            .map(|_| cls::snapshot_reply(next()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(decode)?;

        let mut image = Image {
            name: name.to_owned(),
            id,
            size,
            order,
            layout: Layout::new(order, unit, count)?,
            features,
            op_features,
            flags,
            prefix,
            data_pool: data_pool.filter(|p| *p >= 0),
            parent,
            snap_seq,
            snap_ids,
            snapshots,
            snap: None,
            created,
            accessed,
            modified,
        };
        if let Some(snap) = snap {
            let user = |s: &&Snapshot| s.name == snap && s.kind == cls::SnapshotKind::User;
            let Some(found) = image.snapshots.iter().find(user) else {
                return Err(ImageError::NoSnapshot {
                    image: label,
                    snap: snap.to_owned(),
                });
            };
            image.size = found.size;
            image.snap = Some(found.id);
        }
        Ok(image)
    }

    /// Whether data can be read, or read and written, without breaking what other clients of the
    /// image rely on. `label` names the image in the error.
    pub fn check(&self, label: &str, access: Access) -> Result<(), ImageError> {
        let image = label.to_owned();
        let unreadable = self.features.without(Features::READABLE);
        if !unreadable.is_empty() {
            return Err(ImageError::NotReadable {
                image,
                features: unreadable,
            });
        }
        if self.parent.is_some() {
            return Err(ImageError::Clone(image));
        }
        if access == Access::ReadOnly {
            return Ok(());
        }
        let unkept = self.features.without(Features::WRITABLE);
        if !unkept.is_empty() {
            return Err(ImageError::NotWritable {
                image,
                features: unkept,
            });
        }
        // RBD_OPERATION_FEATURES_ALL: clone-parent, clone-child, group, snap-trash.
        let unknown = self.op_features & !0xf;
        if unknown != 0 {
            return Err(ImageError::Operations {
                image,
                bits: unknown,
            });
        }
        Ok(())
    }

    /// What the data path must know.
    pub fn geometry(&self, read_only: bool) -> Geometry {
        Geometry {
            layout: self.layout,
            size: self.size,
            read_only: read_only || self.snap.is_some(),
            discard_granularity: DISCARD_GRANULARITY.min(self.layout.object_size()),
        }
    }
}

/// What `create` needs to know.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    pub size: u64,
    pub order: u8,
    /// Bytes; 0 with `stripe_count` 0 for the default.
    pub stripe_unit: u64,
    pub stripe_count: u64,
    pub features: Features,
    pub data_pool: Option<i64>,
}

/// Creates an image. What was made before a failure is removed again. `random` makes the id unique
/// together with the client's own id, as in `util::generate_image_id`.
pub async fn create(
    io: &IoCtx,
    name: &str,
    options: &CreateOptions,
    random: u32,
) -> Result<(), ImageError> {
    check_name(name)?;
    let &CreateOptions {
        size,
        order,
        stripe_unit,
        stripe_count,
        ..
    } = options;
    let layout = Layout::new(order, stripe_unit, stripe_count)?;
    let striped = !layout.is_linear() || layout.stripe_unit() != layout.object_size();
    let mut features = options.features;
    if striped {
        features = features.with(Features::STRIPING);
    }
    if options.data_pool.is_some() {
        features = features.with(Features::DATA_POOL);
    }
    let settable = Features::WRITABLE.without(Features::OPERATIONS);
    let refused = features.without(settable);
    if !refused.is_empty() {
        return Err(ImageError::CreateFeatures(refused));
    }
    check_pool(io, io.pool(), options.data_pool.is_none())?;
    if let Some(pool) = options.data_pool {
        check_pool(io, pool, true)?;
    }
    let id = new_id(io.client_id(), random);
    let prefix = match options.data_pool {
        Some(_) => format!("rbd_data.{}.{id}", io.pool()),
        None => format!("rbd_data.{id}"),
    };
    let label = format!("{}/{name}", io.place());
    let failed = |what| {
        let image = label.clone();
        move |error| ImageError::Rados { image, what, error }
    };
    let exists = || ImageError::Exists {
        image: name.to_owned(),
        place: io.place(),
    };

    let mut entry = Write::new();
    if !io.namespace().is_empty() {
        entry.call(cls::dir_state_assert_ready());
    }
    entry.call(cls::dir_add_image(name, &id));
    match io.write(DIRECTORY, entry).await {
        Ok(()) => {}
        Err(RadosError::Errno(EEXIST)) => return Err(exists()),
        Err(RadosError::Errno(ENOENT)) if !io.namespace().is_empty() => {
            return Err(ImageError::NoNamespace(io.namespace().to_owned()));
        }
        Err(e) => return Err(failed("cannot add it to the directory")(e)),
    }
    let mut made = Made {
        io,
        name,
        id: &id,
        id_object: false,
        header: false,
    };
    let mut op = Write::new();
    op.create(true);
    op.call(cls::set_id(&id));
    match io.write(&id_oid(name), op).await {
        Ok(()) => made.id_object = true,
        Err(e) => {
            made.undo().await;
            return Err(match e {
                RadosError::Errno(EEXIST) => exists(),
                e => failed("cannot write its id")(e),
            });
        }
    }
    let mut op = Write::new();
    op.create(true);
    op.call(cls::create(
        size,
        order,
        features.0,
        &prefix,
        options.data_pool.unwrap_or(-1),
    ));
    if let Err(e) = io.write(&header_oid(&id), op).await {
        made.undo().await;
        return Err(failed("cannot write its header")(e));
    }
    made.header = true;
    // The method looks at the features, and sees only what is stored already.
    if striped {
        let mut op = Write::new();
        op.call(cls::set_stripe_unit_count(
            layout.stripe_unit(),
            layout.stripe_count(),
        ));
        if let Err(e) = io.write(&header_oid(&id), op).await {
            made.undo().await;
            return Err(failed("cannot write its striping")(e));
        }
    }
    Ok(())
}

/// What a half-made image consists of, so that it can be taken back.
struct Made<'a> {
    io: &'a IoCtx,
    name: &'a str,
    id: &'a str,
    id_object: bool,
    header: bool,
}

impl Made<'_> {
    /// Best effort: the error that led here is the one to report.
    async fn undo(self) {
        if self.header {
            let _ = self.io.remove(&header_oid(self.id)).await;
        }
        if self.id_object {
            let _ = self.io.remove(&id_oid(self.name)).await;
        }
        let mut op = Write::new();
        op.call(cls::dir_remove_image(self.name, self.id));
        let _ = self.io.write(DIRECTORY, op).await;
    }
}

/// `util::generate_image_id`: the client's id and a random word in hex, cut from the left to
/// `RBD_MAX_IMAGE_ID_LENGTH`.
fn new_id(client: u64, random: u32) -> String {
    let id = format!("{client:x}{random:x}");
    id[id.len().saturating_sub(14)..].to_owned()
}

/// Refuses pools that cannot hold images (`ValidatePoolRequest` finds out by trying).
fn check_pool(io: &IoCtx, pool: i64, holds_data: bool) -> Result<(), ImageError> {
    let Some(info) = io.pool_info(pool) else {
        return Ok(());
    };
    if info.pool_snapshots {
        return Err(ImageError::PoolSnapshots(info.name));
    }
    if info.erasure && (!info.overwrites || (pool == io.pool() && holds_data)) {
        return Err(ImageError::NoOverwrites(info.name));
    }
    Ok(())
}

/// The names of the images of a pool and namespace, in order.
pub async fn list(io: &IoCtx) -> Result<Vec<String>, ImageError> {
    let mut names: Vec<String> = Vec::new();
    loop {
        let start = names.last().map_or("", String::as_str);
        let chunk = match io.call(DIRECTORY, cls::dir_list(start, LIST_CHUNK)).await {
            Ok(bytes) => cls::names_reply(&bytes).map_err(|error| ImageError::Decode {
                image: io.place(),
                error,
            })?,
            // No image was ever made here.
            Err(RadosError::Errno(ENOENT)) => return Ok(names),
            Err(e) => return Err(e.into()),
        };
        let full = chunk.len() as u64 >= LIST_CHUNK;
        names.extend(chunk.into_iter().map(|(name, _)| name));
        if !full {
            return Ok(names);
        }
    }
}

/// Who watches an image's header: the clients that have it open.
pub async fn watchers(io: &IoCtx, image: &Image) -> Result<Vec<Watcher>, ImageError> {
    let bytes = io.list_watchers(&header_oid(&image.id)).await?;
    decode_watchers(&bytes).map_err(|error| ImageError::Decode {
        image: image.name.clone(),
        error,
    })
}

/// Removes an image: its data first, then what names it, so that a removal cut short can be
/// repeated. `progress` hears how many of how many objects are gone.
pub async fn remove(
    io: &IoCtx,
    data: &IoCtx,
    image: &Image,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), ImageError> {
    let label = format!("{}/{}", io.place(), image.name);
    image.check(&label, Access::ReadWrite)?;
    if !image.snap_ids.is_empty() {
        return Err(ImageError::HasSnapshots { image: label });
    }
    if let Some(w) = watchers(io, image).await?.first() {
        let watcher = format!("{} at {}", w.name, w.addr);
        return Err(ImageError::InUse {
            image: label,
            watcher,
        });
    }
    let failed = |what| {
        let image = label.clone();
        move |error| ImageError::Rados { image, what, error }
    };
    let total = image.layout.object_count(image.size);
    let mut next = 0;
    while next < total {
        let end = total.min(next + REMOVE_AT_ONCE as u64);
        let pending: Vec<_> = (next..end)
            .map(|n| data.start_remove(&format!("{}.{n:016x}", image.prefix)))
            .collect();
        for op in pending {
            match op.await {
                Ok(()) | Err(RadosError::Errno(ENOENT)) => {}
                Err(e) => return Err(failed("cannot remove its data")(e)),
            }
        }
        next = end;
        progress(next, total);
    }
    for oid in [
        object_map_oid(&image.id),
        header_oid(&image.id),
        id_oid(&image.name),
    ] {
        match io.remove(&oid).await {
            Ok(()) | Err(RadosError::Errno(ENOENT)) => {}
            Err(e) => return Err(failed("cannot remove its metadata")(e)),
        }
    }
    let mut op = Write::new();
    op.call(cls::dir_remove_image(&image.name, &image.id));
    match io.write(DIRECTORY, op).await {
        Ok(()) | Err(RadosError::Errno(ENOENT)) => Ok(()),
        Err(e) => Err(failed("cannot take it off the directory")(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_fit_the_data_objects_names() {
        assert_eq!(new_id(0x1019, 0xea2573af), "1019ea2573af");
        assert_eq!(new_id(0x123456789a, 0xffff_ffff).len(), 14);
        assert_eq!(new_id(4, 0), "40");
    }

    #[test]
    fn names_rbd_refuses_are_refused() {
        for bad in ["", "a/b", "a@b"] {
            assert!(check_name(bad).is_err());
        }
        assert!(check_name("vm-1.img").is_ok());
    }
}
