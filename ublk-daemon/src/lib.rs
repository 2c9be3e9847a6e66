//! The daemon behind `ublk-rbd`.

pub mod cli;
pub mod frontend;
pub mod spec;
