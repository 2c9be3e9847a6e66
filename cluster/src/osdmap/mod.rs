//! Cluster maps: decoding, increments, placement.
//!
//! An [`OsdMap`] says which pools and OSDs exist and where every placement group lives. It is
//! decoded once per process and shared; [`OsdMap::apply`] makes the next epoch's map out of it.
//! Objects go to OSDs in three steps: [`OsdMap::object_to_pg`] hashes the name,
//! [`Pool::raw_pg_to_pg`] folds the hash into the pool's PGs, and [`OsdMap::map_pg`] asks CRUSH and
//! the exceptions the map lists.

mod apply;
mod blocklist;
pub mod crush;
mod decode;
mod encode;
mod incremental;
mod map;
mod mapping;
pub mod objhash;
pub mod osd;
pub mod pool;
mod snaps;
mod wire;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod roundtrip;
#[cfg(test)]
mod speed;

use std::fmt;

pub use apply::ApplyError;
pub use blocklist::Blocklist;
pub use crush::{ITEM_NONE, MapError, OsdSet, Workspace};
pub use incremental::Incremental;
pub use map::{OsdMap, Stretch};
pub use mapping::PgMapping;
pub use osd::Osd;
pub use pool::{Pool, PoolKind};
pub use snaps::SnapIntervals;

use crate::codec::{DecodeError, Put, Reader, Result};

/// Bits of a map's flags (`CEPH_OSDMAP_*` of `src/include/rados.h`).
pub mod flag {
    pub const NEARFULL: u32 = 1 << 0;
    pub const FULL: u32 = 1 << 1;
    pub const PAUSERD: u32 = 1 << 2;
    pub const PAUSEWR: u32 = 1 << 3;
    pub const PAUSEREC: u32 = 1 << 4;
    pub const NOUP: u32 = 1 << 5;
    pub const NODOWN: u32 = 1 << 6;
    pub const NOOUT: u32 = 1 << 7;
    pub const NOIN: u32 = 1 << 8;
    pub const NOBACKFILL: u32 = 1 << 9;
    pub const NORECOVER: u32 = 1 << 10;
    pub const NOSCRUB: u32 = 1 << 11;
    pub const NODEEP_SCRUB: u32 = 1 << 12;
    pub const NOTIERAGENT: u32 = 1 << 13;
    pub const NOREBALANCE: u32 = 1 << 14;
    pub const SORTBITWISE: u32 = 1 << 15;
    pub const REQUIRE_JEWEL: u32 = 1 << 16;
    pub const REQUIRE_KRAKEN: u32 = 1 << 17;
    pub const REQUIRE_LUMINOUS: u32 = 1 << 18;
    pub const RECOVERY_DELETES: u32 = 1 << 19;
    pub const PURGED_SNAPDIRS: u32 = 1 << 20;
    pub const NOSNAPTRIM: u32 = 1 << 21;
    pub const PGLOG_HARDLIMIT: u32 = 1 << 22;
    pub const NOAUTOSCALE: u32 = 1 << 23;

    pub(super) const LEGACY_REQUIRE: u32 = REQUIRE_JEWEL | REQUIRE_KRAKEN | REQUIRE_LUMINOUS;

    /// Names by bit, as `ceph osd dump` prints them.
    pub const NAMES: [&str; 24] = [
        "nearfull",
        "full",
        "pauserd",
        "pausewr",
        "pauserec",
        "noup",
        "nodown",
        "noout",
        "noin",
        "nobackfill",
        "norecover",
        "noscrub",
        "nodeep-scrub",
        "notieragent",
        "norebalance",
        "sortbitwise",
        "require_jewel_osds",
        "require_kraken_osds",
        "require_luminous_osds",
        "recovery_deletes",
        "purged_snapdirs",
        "nosnaptrim",
        "pglog_hardlimit",
        "noautoscale",
    ];
}

/// Numbers of Ceph's releases (`ceph_release_t`).
pub mod release {
    pub const JEWEL: u8 = 10;
    pub const KRAKEN: u8 = 11;
    pub const LUMINOUS: u8 = 12;
    pub const MIMIC: u8 = 13;
    pub const NAUTILUS: u8 = 14;
    pub const OCTOPUS: u8 = 15;
    pub const PACIFIC: u8 = 16;
    pub const QUINCY: u8 = 17;
    pub const REEF: u8 = 18;
    pub const SQUID: u8 = 19;
    pub const TENTACLE: u8 = 20;

    const NAMES: [&str; 21] = [
        "unknown",
        "argonaut",
        "bobtail",
        "cuttlefish",
        "dumpling",
        "emperor",
        "firefly",
        "giant",
        "hammer",
        "infernalis",
        "jewel",
        "kraken",
        "luminous",
        "mimic",
        "nautilus",
        "octopus",
        "pacific",
        "quincy",
        "reef",
        "squid",
        "tentacle",
    ];

    pub fn name(release: u8) -> &'static str {
        NAMES
            .get(usize::from(release))
            .copied()
            .unwrap_or("unknown")
    }
}

/// Most OSDs a map may announce; monitors stop at ten thousand unless told otherwise.
pub const MAX_OSDS: usize = 1 << 18;

/// A pool and the full 32-bit hash of an object in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RawPg {
    pub pool: i64,
    pub seed: u32,
}

/// A placement group: its pool and its number below the pool's `pg_num` (`pg_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pg {
    pub pool: i64,
    pub seed: u32,
}

impl Pg {
    pub const SIZE: usize = 17;

    pub fn decode(r: &mut Reader<'_>) -> Result<Pg> {
        let _version = r.u8()?;
        let (pool, seed) = (r.i64()?, r.u32()?);
        let _preferred = r.i32()?;
        Ok(Pg { pool, seed })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        out.put_i64(self.pool);
        out.put_u32(self.seed);
        out.put_i32(-1);
    }
}

impl fmt::Display for Pg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool, self.seed)
    }
}

/// `DECODE_START_LEGACY_COMPAT_LEN(8, 7, 7)` of both kinds of map: yields the version, the body,
/// and the bytes the checksum covers. `r` moves past the map.
fn open_wrapper<'a>(r: &mut Reader<'a>, what: &'static str) -> Result<(u8, Reader<'a>, &'a [u8])> {
    let whole = r.rest();
    // Before version 7 there was no length; no release since Firefly sends that.
    if whole.first().is_some_and(|v| *v < 7) {
        return Err(DecodeError::malformed(what));
    }
    let v = r.versioned(what, 8)?;
    Ok((v.version, v.body, &whole[..whole.len() - r.remaining()]))
}
