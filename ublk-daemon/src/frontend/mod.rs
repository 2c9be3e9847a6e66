//! What turns requests from outside into image I/O.
//!
//! A front end (NBD, ublk) speaks its protocol on one side and [`disk::Disk`] on the other. It
//! lives on the iothread of the disk it serves, takes request memory from an [`arena::Arena`] and
//! hands requests over by token; nothing in between allocates, locks or spawns per request.

pub mod arena;
pub mod disk;
pub mod memdisk;
pub mod nbd;
pub mod ublk;
