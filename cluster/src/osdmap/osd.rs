//! What a map says of one OSD besides its state and weights.

use crate::codec::{EntityAddrVec, Put, Reader, Result, UTime};

/// Bits of an OSD's state (`CEPH_OSD_*` of `src/include/rados.h`).
pub mod state {
    pub const EXISTS: u32 = 1 << 0;
    pub const UP: u32 = 1 << 1;
    pub const AUTOOUT: u32 = 1 << 2;
    pub const NEW: u32 = 1 << 3;
    pub const FULL: u32 = 1 << 4;
    pub const NEARFULL: u32 = 1 << 5;
    pub const BACKFILLFULL: u32 = 1 << 6;
    pub const DESTROYED: u32 = 1 << 7;
    pub const NOUP: u32 = 1 << 8;
    pub const NODOWN: u32 = 1 << 9;
    pub const NOIN: u32 = 1 << 10;
    pub const NOOUT: u32 = 1 << 11;
    pub const STOP: u32 = 1 << 12;
}

/// Weight of an OSD that is wholly in, and affinity of one that may always be primary.
pub const IN: u32 = 0x10000;
pub const MAX_PRIMARY_AFFINITY: u32 = 0x10000;

pub(super) const UUID: usize = 16;

/// Addresses and history of one OSD.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Osd {
    /// Where clients reach it.
    pub client_addrs: EntityAddrVec,
    pub cluster_addrs: EntityAddrVec,
    pub hb_back_addrs: EntityAddrVec,
    pub hb_front_addrs: EntityAddrVec,
    pub uuid: [u8; UUID],
    pub info: Info,
    pub xinfo: XInfo,
}

/// Epochs of an OSD's comings and goings (`osd_info_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Info {
    pub last_clean_begin: u32,
    pub last_clean_end: u32,
    pub up_from: u32,
    pub up_thru: u32,
    pub down_at: u32,
    pub lost_at: u32,
}

/// More of the same (`osd_xinfo_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XInfo {
    pub down_stamp: UTime,
    /// Of 0xffffffff.
    pub laggy_probability: u32,
    pub laggy_interval: u32,
    /// What the OSD's messenger supports.
    pub features: u64,
    /// Weight before it was marked out automatically.
    pub old_weight: u32,
    pub last_purged_snaps_scrub: UTime,
    pub dead_epoch: u32,
}

impl Info {
    pub(super) const SIZE: usize = 25;

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Info> {
        let _version = r.u8()?;
        Ok(Info {
            last_clean_begin: r.u32()?,
            last_clean_end: r.u32()?,
            up_from: r.u32()?,
            up_thru: r.u32()?,
            down_at: r.u32()?,
            lost_at: r.u32()?,
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        out.put_u32(self.last_clean_begin);
        out.put_u32(self.last_clean_end);
        out.put_u32(self.up_from);
        out.put_u32(self.up_thru);
        out.put_u32(self.down_at);
        out.put_u32(self.lost_at);
    }
}

impl XInfo {
    pub(super) const MIN_SIZE: usize = 22;

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<XInfo> {
        let v = r.versioned("osd_xinfo_t", 4)?;
        let mut b = v.body;
        let mut x = XInfo {
            down_stamp: UTime::decode(&mut b)?,
            laggy_probability: b.u32()?,
            laggy_interval: b.u32()?,
            ..XInfo::default()
        };
        if v.version >= 2 {
            x.features = b.u64()?;
        }
        if v.version >= 3 {
            x.old_weight = b.u32()?;
        }
        if v.version >= 4 {
            x.last_purged_snaps_scrub = UTime::decode(&mut b)?;
            x.dead_epoch = b.u32()?;
        }
        Ok(x)
    }

    /// As Octopus and later write it.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(4, 1, |out| {
            self.down_stamp.encode(out);
            out.put_u32(self.laggy_probability);
            out.put_u32(self.laggy_interval);
            out.put_u64(self.features);
            out.put_u32(self.old_weight);
            self.last_purged_snaps_scrub.encode(out);
            out.put_u32(self.dead_epoch);
        });
    }
}
