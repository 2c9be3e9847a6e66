//! The NBD front end.
//!
//! [`negotiate`] and [`transmit`] are the protocol, sans-IO; [`request`] judges what clients ask,
//! [`reply`] encodes what they get.

pub mod negotiate;
pub mod reply;
pub mod request;
pub mod transmit;
pub mod wire;
