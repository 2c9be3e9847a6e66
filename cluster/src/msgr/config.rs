use std::time::Duration;

use crate::codec::{EntityAddrVec, EntityName};

use super::features;

/// Who dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// What a lost stream means for the session (`src/msg/Policy.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The session dies with its stream: nothing is kept for resending, nothing is acknowledged.
    pub lossy: bool,
    /// Never dials; after a fault it waits for the peer to come back.
    pub server: bool,
    /// A peer that lost its session is told to its owner, and what was queued for it is dropped.
    pub resetcheck: bool,
    /// A lossy server takes part in the search for an existing session of the same peer.
    pub register_lossy: bool,
}

impl Policy {
    const fn new(lossy: bool, server: bool, resetcheck: bool, register_lossy: bool) -> Policy {
        Policy {
            lossy,
            server,
            resetcheck,
            register_lossy,
        }
    }

    /// A client towards monitors and OSDs.
    pub const LOSSY_CLIENT: Policy = Policy::new(true, false, false, true);
    /// A client whose session survives its streams (towards an MDS or a manager).
    pub const LOSSLESS_CLIENT: Policy = Policy::new(false, false, true, true);
    /// A monitor or an OSD towards clients.
    pub const STATELESS_SERVER: Policy = Policy::new(true, true, false, false);
    /// The other end of `LOSSLESS_CLIENT`.
    pub const STATEFUL_SERVER: Policy = Policy::new(false, true, true, true);
    /// Either end between two daemons.
    pub const LOSSLESS_PEER: Policy = Policy::new(false, false, false, true);
}

/// How a connection behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Our name; `num` is -1 until a monitor has given out a global_id.
    pub me: EntityName,
    /// Our addresses. A client that does not know its IP gives one blank address with its nonce;
    /// the peer's HELLO completes it (see [`super::Connection::my_addrs`]).
    pub my_addrs: EntityAddrVec,
    pub policy: Policy,
    pub features_supported: u64,
    pub features_required: u64,
    /// `ms_crc_data`. Not negotiated: with `false` segment crcs are sent as 0 and not checked, as
    /// Ceph 18 and later do; 16 always sends and checks them.
    pub crc_data: bool,
    /// The number of this connection among all that our entity opened, counted from 1. A peer
    /// tells a newer connection from an older one by it.
    pub global_seq: u64,
    /// Where session cookies come from. Must be random and not shared by two connections.
    pub cookie_seed: u64,
    /// Limit on all segments of a received message together.
    pub max_message: u32,
    /// Limit on messages that wait for transmission or acknowledgement in a lossless session.
    pub max_unacked: usize,
    /// `ms_connection_ready_timeout`: from [`super::Connection::start`] until the session is open.
    pub handshake_timeout: Duration,
    /// Sends a keepalive after so long a silence of the peer.
    pub keepalive_interval: Option<Duration>,
    /// Gives the peer up when it stays silent so long after a keepalive.
    pub keepalive_timeout: Duration,
}

/// Above `osd_max_write_size` (90 MiB), the largest payload a real OSD takes, and what no read that
/// we ask for reaches. Buffers grow with the bytes that arrive, so the limit is not an allocation.
const MAX_MESSAGE: u32 = 96 << 20;

impl Config {
    fn new(me: EntityName, my_addrs: EntityAddrVec, policy: Policy, required: u64) -> Config {
        Config {
            me,
            my_addrs,
            policy,
            features_supported: features::SUPPORTED,
            features_required: required,
            crc_data: true,
            global_seq: 1,
            cookie_seed: 0,
            max_message: MAX_MESSAGE,
            max_unacked: 4096,
            handshake_timeout: Duration::from_secs(10),
            keepalive_interval: None,
            keepalive_timeout: Duration::from_secs(30),
        }
    }

    /// A client of monitors and OSDs.
    pub fn client(me: EntityName, my_addrs: EntityAddrVec) -> Config {
        let required = features::CLIENT_REQUIRED;
        Config::new(me, my_addrs, Policy::LOSSY_CLIENT, required)
    }

    /// A monitor or an OSD towards clients.
    pub fn server(me: EntityName, my_addrs: EntityAddrVec) -> Config {
        let required = features::SERVER_REQUIRED;
        Config::new(me, my_addrs, Policy::STATELESS_SERVER, required)
    }
}
