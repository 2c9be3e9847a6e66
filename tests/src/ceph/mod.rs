//! Small clusters of real Ceph daemons on 127.0.0.1.
//!
//! * [`Cluster`] makes, runs, breaks and ends one; [`Builder`] holds what can be chosen.
//! * [`Installed`] finds a version of Ceph on this machine, [`install`] puts it there.
//!
//! Several clusters may exist at once: each has its own directory and block of ports. Tests wait
//! for each other all the same (one lock per user), since two clusters on a small machine make
//! each other's timing meaningless; [`Builder::concurrent`] opts out.

mod apt;
mod asok;
mod builder;
mod client;
mod cluster;
mod conf;
mod daemon;
mod health;
mod install;
mod keyring;
mod make;
mod sandbox;
mod state;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use builder::Builder;
pub use client::Client;
pub use cluster::Cluster;
pub use daemon::DaemonId;
pub use install::{Installed, install, install_tools};
pub(crate) use state::Turn;

/// A version of Ceph that Debian packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Version {
    /// Pacific, in Debian 12.
    V16,
    /// Reef, in Debian 13.
    V18,
    /// Tentacle, in Debian unstable.
    V20,
}

impl Version {
    pub const ALL: [Version; 3] = [Version::V16, Version::V18, Version::V20];

    pub fn major(self) -> u32 {
        match self {
            Version::V16 => 16,
            Version::V18 => 18,
            Version::V20 => 20,
        }
    }

    /// The Debian suite that has it.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Version::V16 => "bookworm",
            Version::V18 => "trixie",
            Version::V20 => "sid",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.major())
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        Version::ALL
            .into_iter()
            .find(|version| version.to_string() == text)
            .ok_or_else(|| format!("no Ceph version {text} here, only 16, 18 and 20"))
    }
}

/// Where an OSD keeps objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Store {
    /// In memory: fast, saved to disk only by a clean shutdown. A killed OSD comes back empty and
    /// is filled again by its peers.
    #[default]
    Memstore,
    /// In a sparse file, as in production on a disk.
    Bluestore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Auth {
    #[default]
    Cephx,
    None,
}

/// The msgr2 connection modes that all daemons and clients are configured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Mode {
    /// Ceph's own: secure with the monitors, crc elsewhere.
    #[default]
    Default,
    Crc,
    Secure,
}

/// The type of the cluster's cephx keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Cipher {
    /// The version's own: AES-128 up to 18, AES256KRB5 in 20.
    #[default]
    Default,
    /// AES-128, the only one that clients before 19.2.6 and 20.2.4 know.
    Aes,
    /// AES256KRB5, from 20 on.
    Aes256k,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Mgr {
    /// A manager without its Python modules: it knows the state of PGs and little else, but is up
    /// at once and takes a tenth of the memory.
    #[default]
    Lite,
    /// No manager. I/O works; nothing can be known about the state of PGs.
    None,
}
