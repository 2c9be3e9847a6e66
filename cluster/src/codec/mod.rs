//! Ceph's encoding: little-endian integers, length-prefixed blobs, versioned structures.
//!
//! Source of the layouts: `src/include/encoding.h` (`ENCODE_START`, `DECODE_START`) and
//! `src/msg/msg_types.h`. Decoders take bytes from the network: they never panic, and never
//! allocate more than the input can fill.

mod addr;
mod read;
mod write;

pub use addr::{AddrType, EntityAddr, EntityAddrVec, EntityName, EntityType};
pub use read::{Reader, Versioned};
pub use write::Put;

/// Why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ended inside a field.
    #[error("input ends {missing} bytes early in {what}")]
    Short { what: &'static str, missing: usize },
    /// The encoder demands a newer decoder (`struct_compat` above what we know).
    #[error("{what} needs a decoder of version {compat}, we have {ours}")]
    Incompatible {
        what: &'static str,
        compat: u8,
        ours: u8,
    },
    /// A field has a value that no encoder writes.
    #[error("malformed {what}")]
    Malformed { what: &'static str },
}

impl DecodeError {
    pub const fn malformed(what: &'static str) -> DecodeError {
        DecodeError::Malformed { what }
    }
}

pub type Result<T, E = DecodeError> = std::result::Result<T, E>;

/// A moment as the driver saw it: it reads the clocks once per turn of its loop and hands them in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Monotonic nanoseconds from an arbitrary origin of the process.
    pub mono: u64,
    /// Wall-clock nanoseconds since 1970-01-01 UTC.
    pub wall: u64,
}

impl Now {
    /// The monotonic moment `d` from now, saturating.
    pub fn after(&self, d: std::time::Duration) -> u64 {
        self.mono
            .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Seconds and nanoseconds, as `utime_t` (`src/include/utime.h`): two le32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UTime {
    pub sec: u32,
    pub nsec: u32,
}

impl UTime {
    pub const SIZE: usize = 8;

    pub fn from_nanos(ns: u64) -> UTime {
        UTime {
            sec: (ns / 1_000_000_000) as u32,
            nsec: (ns % 1_000_000_000) as u32,
        }
    }

    pub fn as_nanos(self) -> u64 {
        u64::from(self.sec) * 1_000_000_000 + u64::from(self.nsec)
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<UTime> {
        Ok(UTime {
            sec: r.u32()?,
            nsec: r.u32()?,
        })
    }

    pub fn encode(self, out: &mut Vec<u8>) {
        out.put_u32(self.sec);
        out.put_u32(self.nsec);
    }
}
