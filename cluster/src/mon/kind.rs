//! Message types that a client meets (`CEPH_MSG_*` in `src/include/ceph_fs.h`, `MSG_*` in
//! `src/msg/Message.h`).

pub const PING: u16 = 2;
pub const MON_MAP: u16 = 4;
pub const MON_GET_MAP: u16 = 5;
pub const STATFS: u16 = 13;
pub const STATFS_REPLY: u16 = 14;
pub const MON_SUBSCRIBE: u16 = 15;
pub const MON_SUBSCRIBE_ACK: u16 = 16;
pub const AUTH: u16 = 17;
pub const AUTH_REPLY: u16 = 18;
pub const MON_GET_VERSION: u16 = 19;
pub const MON_GET_VERSION_REPLY: u16 = 20;
pub const OSD_MAP: u16 = 41;
pub const OSD_OP: u16 = 42;
pub const OSD_OP_REPLY: u16 = 43;
pub const WATCH_NOTIFY: u16 = 44;
pub const POOL_OP_REPLY: u16 = 48;
pub const POOL_OP: u16 = 49;
pub const MON_COMMAND: u16 = 50;
pub const MON_COMMAND_ACK: u16 = 51;
pub const LOG: u16 = 52;
pub const LOG_ACK: u16 = 53;
pub const GET_POOL_STATS: u16 = 58;
pub const GET_POOL_STATS_REPLY: u16 = 59;
pub const OSD_BACKOFF: u16 = 61;
pub const CONFIG: u16 = 62;
/// To a daemon rather than to the monitors as a body.
pub const COMMAND: u16 = 97;
pub const COMMAND_REPLY: u16 = 98;
pub const MGR_MAP: u16 = 0x704;
