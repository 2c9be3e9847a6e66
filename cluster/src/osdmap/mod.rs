//! Cluster maps: decoding, increments, placement.

pub mod crush;
mod wire;
