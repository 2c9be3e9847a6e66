//! The NBD server on its ring, against the clients people use.
//!
//! A client that is not installed skips its tests with a line saying so; in CI it fails them.

mod clients;
mod fixture;
mod hostile;
