//! Numbers of the NBD protocol.
//!
//! Source: `doc/proto.md` of github.com/NetworkBlockDevice/nbd, "Values", and of its branch
//! `extension-ext-header` for the extended headers. All integers on the wire are big-endian.

/// Handshake phase.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
pub const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Handshake flags (server) and client flags share their values.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

pub mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_SHUTDOWN: u32 = 1 << 31 | 7;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
    pub const ERR_EXT_HEADER_REQD: u32 = 1 << 31 | 10;
}

pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub mod flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

pub const REQUEST_SIZE: usize = 28;
pub const EXTENDED_REQUEST_SIZE: usize = 32;

pub mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;

    pub const FLAG_FUA: u16 = 1 << 0;
    pub const FLAG_NO_HOLE: u16 = 1 << 1;
    pub const FLAG_DF: u16 = 1 << 2;
    pub const FLAG_REQ_ONE: u16 = 1 << 3;
    pub const FLAG_FAST_ZERO: u16 = 1 << 4;
    pub const FLAG_PAYLOAD_LEN: u16 = 1 << 5;
}

pub mod chunk {
    pub const FLAG_DONE: u16 = 1 << 0;

    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// Flags of an extent in `base:allocation`.
pub const STATE_HOLE: u32 = 1 << 0;
pub const STATE_ZERO: u32 = 1 << 1;

pub const CONTEXT_ALLOCATION: &str = "base:allocation";
/// The id we give to `base:allocation`.
pub const CONTEXT_ALLOCATION_ID: u32 = 1;

/// The longest string of the protocol: export names, descriptions, error messages.
pub const MAX_STRING: usize = 4096;
/// The payload every server must take unless it announced less.
pub const DEFAULT_MAX_PAYLOAD: u32 = 32 << 20;

/// The errors the protocol knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdError {
    Perm = 1,
    Io = 5,
    NoMem = 12,
    Inval = 22,
    NoSpc = 28,
    Overflow = 75,
    NotSup = 95,
    Shutdown = 108,
}

impl NbdError {
    /// The protocol's error for a disk's.
    pub fn from_errno(errno: i32) -> NbdError {
        match errno {
            libc::EPERM | libc::EROFS | libc::EACCES => NbdError::Perm,
            libc::ENOMEM => NbdError::NoMem,
            libc::EINVAL => NbdError::Inval,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => NbdError::NoSpc,
            libc::EOPNOTSUPP => NbdError::NotSup,
            libc::ESHUTDOWN => NbdError::Shutdown,
            _ => NbdError::Io,
        }
    }

    /// What a structured reply says beside the number.
    pub fn message(self) -> &'static str {
        match self {
            NbdError::Perm => "the disk does not permit it",
            NbdError::Io => "I/O error on the disk",
            NbdError::NoMem => "out of memory",
            NbdError::Inval => "the disk refuses the request",
            NbdError::NoSpc => "no space left",
            NbdError::Overflow => "too large",
            NbdError::NotSup => "not faster than writing zeroes",
            NbdError::Shutdown => "the disk is going down",
        }
    }
}

/// Big-endian integers at the end of a vector.
pub trait PutBe {
    fn put16(&mut self, v: u16);
    fn put32(&mut self, v: u32);
    fn put64(&mut self, v: u64);
}

impl PutBe for Vec<u8> {
    #[inline]
    fn put16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_be_bytes());
    }
    #[inline]
    fn put32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_be_bytes());
    }
    #[inline]
    fn put64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_be_bytes());
    }
}

/// A cursor over received big-endian fields. `None` when the input is too short.
#[derive(Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    /// A 32-bit length and that many bytes.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()? as usize;
        self.bytes(n)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
