//! The daemon behind `ublk-rbd`.

pub mod cli;
pub mod control;
pub mod frontend;
pub mod run_dir;
pub mod spec;
