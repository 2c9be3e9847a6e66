//! What a pool knows of its mirroring, in `rbd_mirroring`, and the mirror daemons' leader in
//! `rbd_mirror_leader`.
//!
//! Nothing here mirrors: the methods keep what `rbd mirror` and its daemon store.

pub(super) mod image;
pub(super) mod map;
pub(super) mod peer;
pub(super) mod status;
