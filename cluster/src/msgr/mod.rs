//! Messenger v2.1, sans-IO: bytes and events in, bytes and events out, in both roles.
//!
//! Layers, from the wire up, each usable alone:
//! - [`frame`]: preamble, segments, epilogue (`src/msg/async/frames_v2.h`);
//! - [`crypto`]: AES-128-GCM of secure mode (`src/msg/async/crypto_onwire.cc`);
//! - [`control`]: payloads of all frames but MESSAGE;
//! - [`output`] and [`input`]: frames into an output batch, frames out of received bytes.
//!
//! Revision 2.0 of the protocol (Ceph before 14.2.11 and 15.2.5) and on-wire compression are not
//! spoken: a peer that insists gets one clear error.

pub mod control;
pub mod crypto;
pub mod features;
pub mod frame;
mod header;
pub mod input;
pub mod output;
mod shrink;

pub use frame::FrameError;
pub use header::MsgHeader;
pub use output::OutBatch;

/// `CEPH_CON_MODE_*` (`src/include/ceph_fs.h`).
pub const CON_MODE_CRC: u32 = 1;
pub const CON_MODE_SECURE: u32 = 2;

/// `ceph_crc32c`: Castagnoli without the inversions that the `crc32c` crate does before and after.
#[inline]
pub fn ceph_crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

#[cfg(test)]
mod tests;
