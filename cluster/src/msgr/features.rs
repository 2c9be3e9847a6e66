//! Feature bits, of the protocol (in the banner) and of the peers (in CLIENT_IDENT, SERVER_IDENT).

use std::fmt;

/// `CEPH_MSGR2_FEATURE_REVISION_1`: msgr2.1.
pub const MSGR2_REVISION_1: u64 = 1 << 0;
/// `CEPH_MSGR2_FEATURE_COMPRESSION`.
pub const MSGR2_COMPRESSION: u64 = 1 << 1;
/// What we say in our banner.
pub const MSGR2_SUPPORTED: u64 = MSGR2_REVISION_1;

/// `CEPH_FEATURE_MSG_ADDR2`: any peer of msgr2 has it (`msgr2_required` in frames_v2.h).
pub const MSG_ADDR2: u64 = 1 << 59;
/// `CEPH_FEATURE_OSDREPLYMUX`, which librados requires of its peers.
pub const OSDREPLYMUX: u64 = 1 << 12;

/// What librados 20.2 announces: `CEPH_FEATURES_ALL` as seen in its CLIENT_IDENT.
pub const SUPPORTED: u64 = 0x3f07_ffff_fffd_ffff;
/// What librados requires of monitors and OSDs, and what they require of clients.
pub const CLIENT_REQUIRED: u64 = MSG_ADDR2 | OSDREPLYMUX;
/// What monitors and OSDs of 16.2 to 20.2 require of their clients.
pub const SERVER_REQUIRED: u64 = 0x0c01_0200_4204_0000;

/// Bits of a feature mask, shown by name. Names: `src/include/ceph_features.h`; where several
/// features share a bit, the one that says most to an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names(pub u64);

const NAMES: [&str; 62] = [
    "UID",
    "NOSRCADDR",
    "SERVER_NAUTILUS",
    "FLOCK",
    "SUBSCRIBE2",
    "MONNAMES",
    "RECONNECT_SEQ",
    "DIRLAYOUTHASH",
    "OBJECTLOCATOR",
    "PGID64",
    "INCSUBOSDMAP",
    "PGPOOL3",
    "OSDREPLYMUX",
    "OSDENC",
    "SERVER_KRAKEN",
    "MONENC",
    "SERVER_OCTOPUS",
    "OS_PERF_STAT_NS",
    "CRUSH_TUNABLES",
    "OSD_PGLOG_HARDLIMIT",
    "SERVER_PACIFIC",
    "SERVER_LUMINOUS",
    "OSD_FIXED_COLLECTION_LIST",
    "MSG_AUTH",
    "RECOVERY_RESERVATION_2",
    "CRUSH_TUNABLES2",
    "CREATEPOOLID",
    "REPLY_CREATE_INODE",
    "SERVER_MIMIC",
    "MDSENC",
    "OSDHASHPSPOOL",
    "SERVER_REEF",
    "STRETCH_MODE",
    "SERVER_QUINCY",
    "RANGE_BLOCKLIST",
    "OSD_CACHEPOOL",
    "CRUSH_V2",
    "EXPORT_PEER",
    "CRUSH_MSR",
    "OSDMAP_ENC",
    "MDS_INLINE_DATA",
    "CRUSH_TUNABLES3",
    "MSGR_KEEPALIVE2",
    "OSD_POOLRESEND",
    "NVMEOFHA",
    "NVMEOFHAMAP",
    "OSD_FADVISE_FLAGS",
    "MDS_QUOTA",
    "CRUSH_V4",
    "SERVER_SQUID",
    "SERVER_TENTACLE",
    "bit51",
    "bit52",
    "bit53",
    "bit54",
    "bit55",
    "NEW_OSDOP_ENCODING",
    "SERVER_JEWEL",
    "CRUSH_TUNABLES5",
    "MSG_ADDR2",
    "OSD_RECOVERY_DELETES",
    "CEPHX_V2",
];

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut first = true;
        while rest != 0 {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if !first {
                f.write_str(", ")?;
            }
            first = false;
            match NAMES.get(bit) {
                Some(name) => f.write_str(name)?,
                None => write!(f, "bit{bit}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_their_bits() {
        assert_eq!(
            Names(CLIENT_REQUIRED | 1 << 63).to_string(),
            "OSDREPLYMUX, MSG_ADDR2, bit63"
        );
        // The bits that SERVER_REQUIRED has, by the table of ceph_features.h.
        assert_eq!(
            Names(SERVER_REQUIRED).to_string(),
            "CRUSH_TUNABLES, CRUSH_TUNABLES2, OSDHASHPSPOOL, CRUSH_TUNABLES3, CRUSH_V4, \
             CRUSH_TUNABLES5, MSG_ADDR2"
        );
        assert_eq!(SUPPORTED & SERVER_REQUIRED, SERVER_REQUIRED);
    }
}
