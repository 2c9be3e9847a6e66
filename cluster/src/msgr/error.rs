use crate::codec::{DecodeError, EntityAddr, EntityAddrVec, EntityType};

use super::features::Names;
use super::frame::{FrameError, Tag};

/// Why a connection ended. After any of these the stream is of no use; see
/// [`super::Connection::lost`] for what becomes of the session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    #[error("peer speaks messenger v1 only")]
    MsgrV1,
    #[error("peer does not speak messenger v2 (its banner is {0:?})")]
    BadBanner(String),
    #[error("peer lacks msgr2.1, which came with Ceph 14.2.11 and 15.2.5")]
    Revision0,
    #[error("peer requires on-wire compression, which is not supported")]
    CompressionRequired,
    #[error("peer requires unknown msgr2 features {0:#x}")]
    UnknownMsgr2Features(u64),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{tag:?} frame: {error}")]
    Decode { tag: Tag, error: DecodeError },
    #[error("peer sent {tag:?} while {state}")]
    Unexpected { tag: Tag, state: &'static str },
    #[error("{call} called while {state}")]
    Misuse {
        call: &'static str,
        state: &'static str,
    },
    #[error("peer is a {got}, not a {want}")]
    PeerType { want: EntityType, got: EntityType },
    #[error("peer calls itself {got}, which lacks the address {want} that was dialled")]
    PeerAddr {
        want: EntityAddr,
        got: EntityAddrVec,
    },
    #[error("peer wants to reach {want}, which is none of our addresses")]
    NotUs { want: EntityAddr },
    #[error("peer gives no address of its own")]
    NoPeerAddr,
    #[error("peer chose connection mode {got}, which was not offered")]
    ConMode { got: u32 },
    #[error("authentication gave a connection secret of {got} bytes, secure mode needs 40")]
    ConnectionSecret { got: usize },
    #[error("handshake grew beyond {limit} bytes")]
    HandshakeTooLong { limit: usize },
    #[error("signature of the handshake is wrong: wrong key, or it was tampered with")]
    Signature,
    #[error("peer lacks required features: {}", Names(*.0))]
    PeerLacksFeatures(u64),
    #[error("peer requires features we lack: {}", Names(*.0))]
    FeaturesRequired(u64),
    #[error("peer is connecting to us at this moment, and its connection wins")]
    Wait,
    #[error("handshake not done after {0:?}")]
    HandshakeTimeout(std::time::Duration),
    #[error("peer silent for {0:?}")]
    PeerSilent(std::time::Duration),
    #[error("connection is down")]
    Down,
}

/// Why a message was not taken. The connection goes on, except after `Broken`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("session is not open")]
    NotReady,
    #[error("{0} messages wait for the peer's acknowledgement")]
    QueueFull(usize),
    #[error("message of {len} bytes is above the limit of {limit}")]
    TooLong { len: u64, limit: u64 },
    #[error(transparent)]
    Broken(#[from] ConnError),
}
