//! The NBD front end.
//!
//! [`negotiate`] is the handshake, sans-IO.

pub mod negotiate;
pub mod wire;
