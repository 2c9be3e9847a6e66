//! What turns requests from outside into image I/O.

pub mod nbd;
