//! The daemon behind `ublk-rbd`.

pub mod frontend;
