//! Harnesses for the tests against real Ceph.
