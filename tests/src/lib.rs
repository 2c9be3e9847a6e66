//! Harness for tests and benchmarks against real Ceph.
//!
//! [`ceph::Cluster`] runs small clusters of Ceph's own daemons on 127.0.0.1, in several versions
//! and configurations, and breaks them on demand. [`product::Product`] runs `ublk-rbd` against
//! them. [`guest`] gives tests a kernel with the drivers they need. [`disk`]
//! has its block devices. [`tools`] has what such tests share. A test says what it cannot do without through
//! [`require`]:
//!
//! ```no_run
//! use harness::ceph::{Cluster, Version};
//! use harness::{Need, require};
//!
//! # fn main() -> anyhow::Result<()> {
//! if !require(&[Need::Ceph(Version::V18), Need::FIO]) {
//!     return Ok(());
//! }
//! let mut cluster = Cluster::builder().version(Version::V18).osds(3).start()?;
//! cluster.run(["rbd", "create", "--size", "64M", "rbd/image"])?;
//! cluster.kill_osd(1)?;
//! # Ok(())
//! # }
//! ```
//!
//! The binary `ceph-cluster` offers the same to a shell.

pub mod ceph;
pub mod disk;
pub mod fsx;
pub mod guest;
pub mod product;
pub mod suites;
pub mod tools;

mod need;

pub use need::{Need, in_ci, long, require};
