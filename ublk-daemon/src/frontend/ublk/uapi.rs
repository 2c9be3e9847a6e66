//! What a ublk server and the driver say to each other (Linux, `include/uapi/linux/ublk_cmd.h`).
//!
//! The structures are written and read byte by byte in the machine's order: they live in buffers
//! of ours that the kernel copies from or to, so nothing depends on how Rust lays them out.

use std::fmt;

use nix::{request_code_read, request_code_readwrite};

/// `sizeof(struct ublksrv_ctrl_cmd)`, which all control codes are made with.
const CTRL_CMD: usize = 32;
/// `sizeof(struct ublksrv_io_cmd)`.
pub const IO_CMD: usize = 16;

/// A command for `/dev/ublk-control`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtrlOp {
    GetDevInfo2,
    Add,
    Del,
    DelAsync,
    Start,
    Stop,
    SetParams,
    StartRecovery,
    EndRecovery,
    GetFeatures,
    UpdateSize,
    Quiesce,
    TryStop,
}

impl CtrlOp {
    /// The `UBLK_U_CMD_*` code.
    pub fn code(self) -> u32 {
        let code = match self {
            CtrlOp::GetDevInfo2 => request_code_read!(b'u', 0x12, CTRL_CMD),
            CtrlOp::Add => request_code_readwrite!(b'u', 0x04, CTRL_CMD),
            CtrlOp::Del => request_code_readwrite!(b'u', 0x05, CTRL_CMD),
            CtrlOp::DelAsync => request_code_read!(b'u', 0x14, CTRL_CMD),
            CtrlOp::Start => request_code_readwrite!(b'u', 0x06, CTRL_CMD),
            CtrlOp::Stop => request_code_readwrite!(b'u', 0x07, CTRL_CMD),
            CtrlOp::SetParams => request_code_readwrite!(b'u', 0x08, CTRL_CMD),
            CtrlOp::StartRecovery => request_code_readwrite!(b'u', 0x10, CTRL_CMD),
            CtrlOp::EndRecovery => request_code_readwrite!(b'u', 0x11, CTRL_CMD),
            CtrlOp::GetFeatures => request_code_read!(b'u', 0x13, CTRL_CMD),
            CtrlOp::UpdateSize => request_code_readwrite!(b'u', 0x15, CTRL_CMD),
            CtrlOp::Quiesce => request_code_readwrite!(b'u', 0x16, CTRL_CMD),
            CtrlOp::TryStop => request_code_readwrite!(b'u', 0x17, CTRL_CMD),
        };
        code as u32
    }

    /// Its name in messages, the kernel's less the prefix.
    pub fn name(self) -> &'static str {
        match self {
            CtrlOp::GetDevInfo2 => "GET_DEV_INFO2",
            CtrlOp::Add => "ADD_DEV",
            CtrlOp::Del => "DEL_DEV",
            CtrlOp::DelAsync => "DEL_DEV_ASYNC",
            CtrlOp::Start => "START_DEV",
            CtrlOp::Stop => "STOP_DEV",
            CtrlOp::SetParams => "SET_PARAMS",
            CtrlOp::StartRecovery => "START_USER_RECOVERY",
            CtrlOp::EndRecovery => "END_USER_RECOVERY",
            CtrlOp::GetFeatures => "GET_FEATURES",
            CtrlOp::UpdateSize => "UPDATE_SIZE",
            CtrlOp::Quiesce => "QUIESCE_DEV",
            CtrlOp::TryStop => "TRY_STOP_DEV",
        }
    }
}

/// `UBLK_U_IO_FETCH_REQ`.
pub fn fetch_code() -> u32 {
    request_code_readwrite!(b'u', 0x20, IO_CMD) as u32
}

/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`.
pub fn commit_and_fetch_code() -> u32 {
    request_code_readwrite!(b'u', 0x21, IO_CMD) as u32
}

/// `struct ublksrv_ctrl_cmd`, in the 80 bytes that a wide submission has for it.
#[derive(Debug, Clone, Copy)]
pub struct CtrlCmd {
    pub dev_id: u32,
    pub addr: u64,
    pub len: u16,
    pub data: u64,
    pub dev_path_len: u16,
}

impl CtrlCmd {
    pub fn encode(&self) -> [u8; 80] {
        /// No command of ours is for one queue.
        const NO_QUEUE: u16 = u16::MAX;
        let mut out = [0; 80];
        out[0..4].copy_from_slice(&self.dev_id.to_ne_bytes());
        out[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
        out[6..8].copy_from_slice(&self.len.to_ne_bytes());
        out[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        out[16..24].copy_from_slice(&self.data.to_ne_bytes());
        out[24..26].copy_from_slice(&self.dev_path_len.to_ne_bytes());
        out
    }
}

/// `struct ublksrv_io_cmd`.
pub fn io_cmd(queue: u16, tag: u16, result: i32, addr: u64) -> [u8; IO_CMD] {
    let mut out = [0; IO_CMD];
    out[0..2].copy_from_slice(&queue.to_ne_bytes());
    out[2..4].copy_from_slice(&tag.to_ne_bytes());
    out[4..8].copy_from_slice(&result.to_ne_bytes());
    out[8..16].copy_from_slice(&addr.to_ne_bytes());
    out
}

/// What a driver or a device can do: the `UBLK_F_*` bits that we know how to use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// The device outlives its server, and another may take it over.
    pub const USER_RECOVERY: Features = Features(1 << 3);
    /// What the dead server had in hand is handed to the next one.
    pub const REISSUE: Features = Features(1 << 4);
    /// Made by a user without privileges.
    pub const UNPRIVILEGED: Features = Features(1 << 5);
    pub const IOCTL_ENCODE: Features = Features(1 << 6);
    pub const UPDATE_SIZE: Features = Features(1 << 10);
    pub const QUIESCE: Features = Features(1 << 12);
    /// `TRY_STOP_DEV`, which refuses while somebody has the device open.
    pub const SAFE_STOP: Features = Features(1 << 17);

    pub fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// `other`, as far as it is there.
    #[must_use]
    pub fn of(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// `UBLK_S_DEV_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Dead,
    Live,
    /// Its server is gone; requests wait for the next one.
    Quiesced,
    /// Its server is gone; requests fail.
    FailIo,
    Other(u16),
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: State,
    pub max_io: u32,
    /// [`DevInfo::ANY`] lets the driver choose.
    pub id: u32,
    pub server_pid: i32,
    pub features: Features,
    /// `ublksrv_flags`: kept by the driver for the server, which knows its device by it.
    pub cookie: u64,
}

impl DevInfo {
    pub const LEN: usize = 64;
    pub const ANY: u32 = u32::MAX;

    pub fn encode(&self) -> [u8; DevInfo::LEN] {
        let mut out = [0; DevInfo::LEN];
        out[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        out[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        out[8..12].copy_from_slice(&self.max_io.to_ne_bytes());
        out[12..16].copy_from_slice(&self.id.to_ne_bytes());
        out[16..20].copy_from_slice(&self.server_pid.to_ne_bytes());
        out[24..32].copy_from_slice(&self.features.0.to_ne_bytes());
        out[32..40].copy_from_slice(&self.cookie.to_ne_bytes());
        out
    }

    pub fn decode(bytes: &[u8; DevInfo::LEN]) -> DevInfo {
        let u16_at = |at| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        DevInfo {
            queues: u16_at(0),
            depth: u16_at(2),
            state: match u16_at(4) {
                0 => State::Dead,
                1 => State::Live,
                2 => State::Quiesced,
                3 => State::FailIo,
                other => State::Other(other),
            },
            max_io: u32_at(8),
            id: u32_at(12),
            server_pid: u32_at(16) as i32,
            features: Features(u64_at(24)),
            cookie: u64_at(32),
        }
    }
}

/// `struct ublk_params`, as far as we set it: `basic` and `discard`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    pub read_only: bool,
    pub logical_shift: u8,
    pub physical_shift: u8,
    pub io_min_shift: u8,
    pub io_opt_shift: u8,
    /// Of 512 bytes, here and below.
    pub max_sectors: u32,
    pub sectors: u64,
    pub discard: Option<DiscardParams>,
}

/// `struct ublk_param_discard`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiscardParams {
    /// Bytes.
    pub granularity: u32,
    pub max_discard_sectors: u32,
    pub max_write_zeroes_sectors: u32,
}

impl Params {
    /// Up to the end of `discard`; the driver takes a shorter structure than its own.
    pub const LEN: usize = 60;

    pub fn encode(&self) -> [u8; Params::LEN] {
        const TYPE_BASIC: u32 = 1 << 0;
        const TYPE_DISCARD: u32 = 1 << 1;
        const ATTR_READ_ONLY: u32 = 1 << 0;
        let mut out = [0; Params::LEN];
        let mut put = |at: usize, n: u32| out[at..at + 4].copy_from_slice(&n.to_ne_bytes());
        put(0, Params::LEN as u32);
        put(8, if self.read_only { ATTR_READ_ONLY } else { 0 });
        put(16, self.max_sectors);
        let mut types = TYPE_BASIC;
        if let Some(discard) = &self.discard {
            types |= TYPE_DISCARD;
            put(44, discard.granularity);
            put(48, discard.max_discard_sectors);
            put(52, discard.max_write_zeroes_sectors);
        }
        put(4, types);
        if self.discard.is_some_and(|d| d.max_discard_sectors > 0) {
            // `max_discard_segments`: the driver takes no more than one.
            out[56..58].copy_from_slice(&1u16.to_ne_bytes());
        }
        out[12] = self.logical_shift;
        out[13] = self.physical_shift;
        out[14] = self.io_opt_shift;
        out[15] = self.io_min_shift;
        out[24..32].copy_from_slice(&self.sectors.to_ne_bytes());
        out
    }
}

/// `struct ublksrv_io_desc`: a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoDesc {
    pub op: u8,
    flags: u32,
    pub sectors: u32,
    pub start_sector: u64,
}

impl IoDesc {
    pub const LEN: usize = 24;

    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const FLUSH: u8 = 2;
    pub const DISCARD: u8 = 3;
    pub const WRITE_ZEROES: u8 = 5;

    pub fn decode(words: [u64; 3]) -> IoDesc {
        let first = words[0].to_ne_bytes();
        let op_flags = u32::from_ne_bytes([first[0], first[1], first[2], first[3]]);
        IoDesc {
            op: op_flags as u8,
            flags: op_flags,
            sectors: u32::from_ne_bytes([first[4], first[5], first[6], first[7]]),
            start_sector: words[1],
        }
    }

    pub fn fua(&self) -> bool {
        self.flags & (1 << 13) != 0
    }

    /// Of a write of zeroes: the range must stay allocated.
    pub fn no_unmap(&self) -> bool {
        self.flags & (1 << 15) != 0
    }
}

/// The most a queue may hold (`UBLK_MAX_QUEUE_DEPTH`); the driver spaces its queues' descriptors
/// by it, whatever their depth.
pub const MAX_DEPTH: u16 = 4096;

/// What a command completes with when its device stops (`UBLK_IO_RES_ABORT`).
pub const ABORT: i32 = -libc::ENODEV;

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes as the kernel's header gives them where ioctl codes are laid out as on x86 and arm.
    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn codes_are_the_kernels() {
        assert_eq!(CtrlOp::Add.code(), 0xc020_7504);
        assert_eq!(CtrlOp::GetDevInfo2.code(), 0x8020_7512);
        assert_eq!(CtrlOp::GetFeatures.code(), 0x8020_7513);
        assert_eq!(CtrlOp::TryStop.code(), 0xc020_7517);
        assert_eq!(fetch_code(), 0xc010_7520);
        assert_eq!(commit_and_fetch_code(), 0xc010_7521);
    }

    #[test]
    fn a_device_is_read_back() {
        let info = DevInfo {
            queues: 3,
            depth: 128,
            state: State::Dead,
            max_io: 512 << 10,
            id: 7,
            server_pid: -1,
            features: Features::USER_RECOVERY.with(Features::REISSUE),
            cookie: 0x0123_4567_89ab_cdef,
        };
        assert_eq!(DevInfo::decode(&info.encode()), info);
        let mut bytes = info.encode();
        bytes[4..6].copy_from_slice(&2u16.to_ne_bytes());
        assert_eq!(DevInfo::decode(&bytes).state, State::Quiesced);
    }

    #[test]
    fn parameters_lie_where_the_driver_reads_them() {
        let params = Params {
            read_only: true,
            logical_shift: 9,
            physical_shift: 12,
            io_min_shift: 16,
            io_opt_shift: 22,
            max_sectors: 1024,
            sectors: 1 << 33,
            discard: Some(DiscardParams {
                granularity: 65536,
                max_discard_sectors: 0x20_0000,
                max_write_zeroes_sectors: 0x10_0000,
            }),
        };
        let bytes = params.encode();
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((u32_at(0), u32_at(4), u32_at(8)), (60, 3, 1));
        assert_eq!(bytes[12..16], [9, 12, 22, 16]);
        assert_eq!((u32_at(16), u32_at(20)), (1024, 0));
        assert_eq!(
            u64::from_ne_bytes(bytes[24..32].try_into().unwrap()),
            1 << 33
        );
        // `virt_boundary_mask` and `discard_alignment`.
        assert_eq!((u32_at(32), u32_at(36), u32_at(40)), (0, 0, 0));
        assert_eq!(
            (u32_at(44), u32_at(48), u32_at(52)),
            (65536, 0x20_0000, 0x10_0000)
        );
        assert_eq!(u16::from_ne_bytes([bytes[56], bytes[57]]), 1);
        let plain = Params {
            discard: None,
            ..params
        };
        assert_eq!(plain.encode()[4], 1);
        assert!(plain.encode()[40..].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_request_is_read() {
        let mut bytes = [0; IoDesc::LEN];
        let op_flags = u32::from(IoDesc::WRITE_ZEROES) | 1 << 13 | 1 << 15;
        bytes[0..4].copy_from_slice(&op_flags.to_ne_bytes());
        bytes[4..8].copy_from_slice(&24u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&99u64.to_ne_bytes());
        let word = |n: usize| u64::from_ne_bytes(bytes[n * 8..n * 8 + 8].try_into().unwrap());
        let desc = IoDesc::decode([word(0), word(1), word(2)]);
        assert_eq!((desc.op, desc.sectors, desc.start_sector), (5, 24, 99));
        assert!(desc.fua() && desc.no_unmap());
    }
}
