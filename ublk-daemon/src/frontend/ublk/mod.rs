//! The ublk front end: an image as `/dev/ublkbN`.
//!
//! `uapi` is what the kernel's driver speaks, [`Control`] sends commands about devices,
//! `queue` serves a device's requests on the disk's ring, and [`Device`] is its life from one
//! server to the next. `limits` is what the block layer is told.
//!
//! Requests are copied by the driver between the pages of whoever made them and buffers of ours,
//! one per tag: the copy is what the checksums are taken over, and what a cache may keep.

mod control;
mod device;
pub mod limits;
mod queue;
pub mod uapi;
mod usage;

pub use control::{Control, ControlError};
pub use device::{Device, Options, in_use, path};
pub use uapi::{DevInfo, Features, State};
pub use usage::of as usage_of;
