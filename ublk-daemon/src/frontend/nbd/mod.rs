//! The NBD front end.
//!
//! [`negotiate`] and [`transmit`] are the protocol, sans-IO; [`request`] judges what clients ask,
//! [`reply`] encodes what they get. [`server`] runs them on an iothread's ring, over the sockets
//! of [`socket`].

mod connection;
pub mod negotiate;
pub mod reply;
pub mod request;
pub mod server;
pub mod socket;
pub mod transmit;
pub mod wire;
