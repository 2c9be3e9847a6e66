//! ceph.conf, and what the environment and the command line say beside it.
