//! The control socket: how `map`, `unmap` and `list` talk to the daemon.
//!
//! One connection carries one request and one answer, each a line of JSON, over a unix socket
//! that only its owner can open.

pub mod client;
pub mod server;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cli::Frontend;
use crate::spec::ImageSpec;

/// Longest line either side reads.
pub const MAX_LINE: u64 = 1 << 20;

/// How to reach a cluster, resolved by the caller: paths are absolute and its environment is
/// carried along, since the daemon may run with another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    pub conf: Option<PathBuf>,
    pub keyring: Option<PathBuf>,
    pub name: Option<String>,
    pub mon_host: Option<String>,
    pub cluster: Option<String>,
    /// Seconds for finding the cluster.
    pub connect_timeout: Option<u64>,
    /// `CEPH_CONF`, `CEPH_ARGS` and `CEPH_KEYRING` of the caller, where set.
    pub env: Vec<(String, String)>,
}

/// What `map` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapSpec {
    pub image: ImageSpec,
    pub cluster: ClusterSpec,
    pub frontend: Frontend,
    pub socket: Option<PathBuf>,
    pub tcp: Option<std::net::SocketAddr>,
    pub allow_remote: bool,
    pub read_only: bool,
    pub request_timeout: Option<u64>,
    pub cpu: Option<usize>,
    /// The number of the ublk device; else the first that is free.
    pub device: Option<u32>,
    pub queues: u16,
    pub queue_depth: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Map(Box<MapSpec>),
    Unmap {
        target: String,
        force: bool,
    },
    List,
    /// Wait until devices that a dead daemon has left are served again, or cannot be.
    Attach,
    /// Detach everything and exit.
    Stop {
        force: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Mapped(DiskInfo),
    Unmapped,
    Disks { disks: Vec<DiskInfo> },
    Stopping,
    Error { message: String },
}

/// One attached image, as `list` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskInfo {
    pub id: u32,
    pub pool: String,
    pub namespace: String,
    pub image: String,
    pub snap: Option<String>,
    pub frontend: Frontend,
    /// What to hand to a client: a block device or an NBD URI.
    pub device: String,
    pub socket: Option<PathBuf>,
    pub size: u64,
    pub read_only: bool,
    /// `ok`, or what the disk waits for.
    pub state: String,
}

impl DiskInfo {
    /// The image as the user writes it.
    pub fn spec(&self) -> ImageSpec {
        ImageSpec {
            pool: Some(self.pool.clone()),
            namespace: self.namespace.clone(),
            image: self.image.clone(),
            snap: self.snap.clone(),
        }
    }
}
