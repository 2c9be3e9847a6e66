//! Messenger v2.1, sans-IO: bytes and events in, bytes and events out, in both roles.
//!
//! A [`Connection`] is one session with one peer. Its driver owns the socket: it hands received
//! bytes to [`Connection::next_event`] until that returns `None`, and takes what is to be sent with
//! [`Connection::take_output`]. The connection reads no clock (the driver says when it is `now`) and
//! draws no random numbers (cookies come from a seed in [`Config`]).
//!
//! Layers, from the wire up, each usable alone:
//! - [`frame`]: preamble, segments, epilogue (`src/msg/async/frames_v2.h`);
//! - [`crypto`]: AES-128-GCM of secure mode (`src/msg/async/crypto_onwire.cc`);
//! - [`control`]: payloads of all frames but MESSAGE;
//! - [`output`] and [`input`]: frames into an output batch, frames out of received bytes;
//! - [`Connection`]: handshake, session, acks, reconnect (`src/msg/async/ProtocolV2.cc`).
//!
//! Revision 2.0 of the protocol (Ceph before 14.2.11 and 15.2.5) and on-wire compression are not
//! spoken: a peer that insists gets one clear error.

pub mod accept;
mod config;
mod conn;
pub mod control;
pub mod crypto;
mod error;
mod event;
pub mod features;
pub mod frame;
mod handshake;
mod header;
pub mod input;
pub mod output;
mod session;
mod shrink;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use config::{Config, Policy, Side};
pub use conn::Connection;
pub use error::{ConnError, SendError};
pub use event::{Event, Message, Ready};
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
