//! The read cache of a disk. It holds no I/O, no clock and nothing of Ceph.
