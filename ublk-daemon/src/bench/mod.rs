//! `ublk-rbd bench`.

pub mod image;
pub mod messenger;
