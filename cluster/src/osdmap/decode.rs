//! `OSDMap::decode` (`src/osd/OSDMap.cc`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blocklist::read_addrs;
use super::osd::{Info, Osd, UUID, XInfo};
use super::wire::{crc_matches, read_f32, read_map, read_string, read_strings};
use super::{
    MAX_OSDS, OsdMap, Pg, Pool, SnapIntervals, Stretch, crush, flag, open_wrapper, release,
};
use crate::codec::{DecodeError, EntityAddrVec, Reader, Result, UTime};

impl OsdMap {
    /// Decodes a full map and verifies its checksum.
    pub fn decode(bytes: &[u8]) -> Result<OsdMap> {
        let (version, mut body, encoded) = open_wrapper(&mut Reader::new(bytes), "OSDMap")?;
        let mut map = OsdMap::default();
        map.decode_client(&mut body)?;
        map.decode_osd_only(&mut body)?;
        if version >= 8 {
            let at = encoded.len() - body.remaining();
            if !crc_matches(encoded, at, body.u32()?) {
                return Err(DecodeError::malformed("OSDMap: wrong checksum"));
            }
        }
        map.index_pool_names();
        Ok(map)
    }

    /// What clients need.
    fn decode_client(&mut self, r: &mut Reader<'_>) -> Result<()> {
        let section = r.versioned("OSDMap client data", 10)?;
        let (v, r) = (section.version, &mut { section.body });
        self.fsid = r.fixed()?;
        self.epoch = r.u32()?;
        self.created = UTime::decode(r)?;
        self.modified = UTime::decode(r)?;
        self.pools = read_map(r, 8 + Pool::MIN_SIZE, |r| {
            Ok((r.i64()?, Arc::new(Pool::decode(r)?)))
        })?;
        self.pool_names = read_map(r, 12, |r| Ok((r.i64()?, read_string(r)?)))?;
        self.pool_max = r.i32()?;
        self.flags = r.u32()?;
        let max_osd = usize::try_from(r.i32()?).unwrap_or(usize::MAX);
        self.states = if v >= 5 {
            r.list(4, Reader::u32)?
        } else {
            r.list(1, |r| r.u8().map(u32::from))?
        };
        self.weights = r.list(4, Reader::u32)?;
        let addrs = r.list(5, EntityAddrVec::decode)?;
        let lengths = [self.states.len(), self.weights.len(), addrs.len()];
        if max_osd > MAX_OSDS || lengths != [max_osd; 3] {
            return Err(DecodeError::malformed("OSDMap max_osd"));
        }
        self.osds = addrs
            .into_iter()
            .map(|client_addrs| {
                Arc::new(Osd {
                    client_addrs,
                    ..Osd::default()
                })
            })
            .collect();
        self.pg_temp = read_pg_map(r, read_osds)?;
        self.primary_temp = read_pg_map(r, Reader::i32)?;
        if v >= 2 {
            let affinity = r.list(4, Reader::u32)?;
            if !affinity.is_empty() && affinity.len() != max_osd {
                return Err(DecodeError::malformed("OSDMap primary affinity"));
            }
            self.affinity = Some(affinity).filter(|a| !a.is_empty());
        }
        self.crush = Arc::new(crush::Map::decode(r.blob()?)?);
        if v >= 3 {
            self.erasure_code_profiles = read_profiles(r)?;
        }
        if v >= 4 {
            self.pg_upmap = read_pg_map(r, read_osds)?;
            self.pg_upmap_items = read_pg_map(r, read_pairs)?;
        }
        if v >= 6 {
            self.crush_version = r.u32()?;
        }
        if v >= 7 {
            self.new_removed_snaps = read_snaps(r)?;
            self.new_purged_snaps = read_snaps(r)?;
        }
        if v >= 9 {
            self.last_up_change = UTime::decode(r)?;
            self.last_in_change = UTime::decode(r)?;
        }
        if v >= 10 {
            self.pg_upmap_primary = read_pg_map(r, Reader::i32)?;
        }
        Ok(())
    }

    /// What OSDs need besides; clients want the blocklist and the releases of it.
    fn decode_osd_only(&mut self, r: &mut Reader<'_>) -> Result<()> {
        let section = r.versioned("OSDMap OSD data", 12)?;
        let (v, r) = (section.version, &mut { section.body });
        self.decode_osds(r, 5, EntityAddrVec::decode, |o, a| o.hb_back_addrs = a)?;
        self.decode_osds(r, Info::SIZE, Info::decode, |o, i| o.info = i)?;
        self.blocklist.addrs = read_addrs(r)?;
        self.decode_osds(r, 5, EntityAddrVec::decode, |o, a| o.cluster_addrs = a)?;
        self.cluster_snapshot_epoch = r.u32()?;
        self.cluster_snapshot = read_string(r)?;
        self.decode_osds(r, UUID, Reader::fixed, |o, u| o.uuid = u)?;
        self.decode_osds(r, XInfo::MIN_SIZE, XInfo::decode, |o, x| o.xinfo = x)?;
        self.decode_osds(r, 5, EntityAddrVec::decode, |o, a| o.hb_front_addrs = a)?;
        if v >= 2 {
            self.nearfull_ratio = read_f32(r)?;
            self.full_ratio = read_f32(r)?;
        }
        if v >= 3 {
            self.backfillfull_ratio = read_f32(r)?;
        }
        if v == 4 {
            // A release by name, for one development version only.
            r.blob()?;
        }
        if v >= 5 {
            self.require_min_compat_client = r.u8()?;
            self.require_osd_release = r.u8()?;
        } else {
            self.require_osd_release = legacy_release(self.flags);
        }
        self.imply_flags();
        if v >= 6 {
            self.removed_snaps_queue = read_snaps(r)?;
        }
        if v >= 8 {
            self.crush_node_flags = read_flags(r)?;
        }
        if v >= 9 {
            self.device_class_flags = read_flags(r)?;
        }
        if v >= 10 {
            self.stretch = Stretch {
                enabled: r.bool()?,
                bucket_count: r.u32()?,
                degraded: r.u32()?,
                recovering: r.u32()?,
                mode_bucket: r.i32()?,
            };
        }
        if v >= 11 {
            self.blocklist.ranges = read_addrs(r)?;
        }
        if v >= 12 {
            self.allow_crimson = r.bool()?;
        }
        Ok(())
    }

    /// One value for each OSD.
    fn decode_osds<'a, T>(
        &mut self,
        r: &mut Reader<'a>,
        min_size: usize,
        value: impl FnMut(&mut Reader<'a>) -> Result<T>,
        mut set: impl FnMut(&mut Osd, T),
    ) -> Result<()> {
        let values = r.list(min_size, value)?;
        if values.len() != self.osds.len() {
            return Err(DecodeError::malformed("OSDMap max_osd"));
        }
        for (osd, value) in self.osds.iter_mut().zip(values) {
            set(Arc::make_mut(osd), value);
        }
        Ok(())
    }

    /// Flags that every cluster of some release has, whether or not its monitors say so.
    pub(super) fn imply_flags(&mut self) {
        if self.require_osd_release >= release::NAUTILUS {
            self.flags |= flag::PGLOG_HARDLIMIT;
        }
        if self.require_osd_release >= release::LUMINOUS {
            self.flags &= !flag::LEGACY_REQUIRE;
            self.flags |= flag::RECOVERY_DELETES;
        }
    }

    pub(super) fn index_pool_names(&mut self) {
        let names = self.pool_names.iter();
        self.pools_by_name = names.map(|(id, name)| (name.clone(), *id)).collect();
    }
}

/// The release that OSDs had to be of, when flags still said so.
pub(super) fn legacy_release(flags: u32) -> u8 {
    let required = [
        (flag::REQUIRE_LUMINOUS, release::LUMINOUS),
        (flag::REQUIRE_KRAKEN, release::KRAKEN),
        (flag::REQUIRE_JEWEL, release::JEWEL),
    ];
    required
        .iter()
        .find(|(flag, _)| flags & flag != 0)
        .map_or(0, |(_, release)| *release)
}

pub(super) fn read_pg_map<'a, T>(
    r: &mut Reader<'a>,
    mut value: impl FnMut(&mut Reader<'a>) -> Result<T>,
) -> Result<BTreeMap<Pg, T>> {
    // Every value takes at least four bytes.
    read_map(r, Pg::SIZE + 4, |r| Ok((Pg::decode(r)?, value(r)?)))
}

pub(super) fn read_osds(r: &mut Reader<'_>) -> Result<Vec<i32>> {
    r.list(4, Reader::i32)
}

pub(super) fn read_pairs(r: &mut Reader<'_>) -> Result<Vec<(i32, i32)>> {
    r.list(8, |r| Ok((r.i32()?, r.i32()?)))
}

pub(super) fn read_profiles(
    r: &mut Reader<'_>,
) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    read_map(r, 8, |r| Ok((read_string(r)?, read_strings(r)?)))
}

pub(super) fn read_snaps(r: &mut Reader<'_>) -> Result<BTreeMap<i64, SnapIntervals>> {
    read_map(r, 12, |r| Ok((r.i64()?, SnapIntervals::decode(r)?)))
}

pub(super) fn read_flags(r: &mut Reader<'_>) -> Result<BTreeMap<i32, u32>> {
    read_map(r, 8, |r| Ok((r.i32()?, r.u32()?)))
}
