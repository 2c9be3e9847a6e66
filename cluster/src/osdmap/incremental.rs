//! The difference between two epochs (`OSDMap::Incremental` of `src/osd/OSDMap.{h,cc}`).

use std::collections::BTreeMap;

use super::blocklist::{Key, read_addrs};
use super::decode::{legacy_release, read_flags, read_osds, read_pairs, read_pg_map};
use super::decode::{read_profiles, read_snaps};
use super::osd::{UUID, XInfo};
use super::wire::{crc_matches, read_f32, read_map, read_string};
use super::{Pg, Pool, SnapIntervals, Stretch, flag, open_wrapper, release};
use crate::codec::{DecodeError, EntityAddr, EntityAddrVec, Reader, Result, UTime};

/// Changes that lead from epoch `epoch - 1` to `epoch`.
#[derive(Debug, Clone, PartialEq)]
pub struct Incremental {
    pub fsid: [u8; 16],
    pub epoch: u32,
    pub modified: UTime,
    /// An encoded map to take instead of all else, when not empty.
    pub full_map: Vec<u8>,
    /// An encoded CRUSH map that replaces the old one, when not empty.
    pub crush: Vec<u8>,
    pub new_flags: Option<u32>,
    pub new_max_osd: Option<i32>,

    pub new_pool_max: Option<i64>,
    pub new_pools: BTreeMap<i64, Pool>,
    pub new_pool_names: BTreeMap<i64, String>,
    pub old_pools: Vec<i64>,

    pub new_up_client: BTreeMap<i32, EntityAddrVec>,
    pub new_up_cluster: BTreeMap<i32, EntityAddrVec>,
    pub new_hb_back_up: BTreeMap<i32, EntityAddrVec>,
    pub new_hb_front_up: BTreeMap<i32, EntityAddrVec>,
    /// State bits to flip; none means `UP`.
    pub new_state: BTreeMap<i32, u32>,
    pub new_weight: BTreeMap<i32, u32>,
    pub new_primary_affinity: BTreeMap<i32, u32>,
    pub new_up_thru: BTreeMap<i32, u32>,
    pub new_last_clean_interval: BTreeMap<i32, (u32, u32)>,
    pub new_lost: BTreeMap<i32, u32>,
    pub new_uuid: BTreeMap<i32, [u8; UUID]>,
    pub new_xinfo: BTreeMap<i32, XInfo>,

    /// An empty set removes the entry.
    pub new_pg_temp: BTreeMap<Pg, Vec<i32>>,
    /// -1 removes the entry.
    pub new_primary_temp: BTreeMap<Pg, i32>,
    pub new_pg_upmap: BTreeMap<Pg, Vec<i32>>,
    pub old_pg_upmap: Vec<Pg>,
    pub new_pg_upmap_items: BTreeMap<Pg, Vec<(i32, i32)>>,
    pub old_pg_upmap_items: Vec<Pg>,
    pub new_pg_upmap_primary: BTreeMap<Pg, i32>,
    pub old_pg_upmap_primary: Vec<Pg>,

    pub new_erasure_code_profiles: BTreeMap<String, BTreeMap<String, String>>,
    pub old_erasure_code_profiles: Vec<String>,
    pub new_removed_snaps: BTreeMap<i64, SnapIntervals>,
    pub new_purged_snaps: BTreeMap<i64, SnapIntervals>,
    /// Zero means unchanged.
    pub new_last_up_change: UTime,
    pub new_last_in_change: UTime,

    pub new_blocklist: Vec<(EntityAddr, UTime)>,
    pub old_blocklist: Vec<EntityAddr>,
    pub new_range_blocklist: Vec<(EntityAddr, UTime)>,
    pub old_range_blocklist: Vec<EntityAddr>,
    pub cluster_snapshot: String,
    /// Negative means unchanged.
    pub new_nearfull_ratio: f32,
    pub new_full_ratio: f32,
    pub new_backfillfull_ratio: f32,
    pub new_require_min_compat_client: Option<u8>,
    pub new_require_osd_release: Option<u8>,
    pub new_crush_node_flags: BTreeMap<i32, u32>,
    pub new_device_class_flags: BTreeMap<i32, u32>,
    pub new_stretch: Option<Stretch>,
    pub new_allow_crimson: Option<bool>,

    /// Features the map's encoders had.
    pub encode_features: u64,
    /// Checksum of the encoding of the map that results, when known.
    pub full_crc: Option<u32>,
}

impl Default for Incremental {
    fn default() -> Incremental {
        Incremental {
            fsid: [0; 16],
            epoch: 0,
            modified: UTime::default(),
            full_map: Vec::new(),
            crush: Vec::new(),
            new_flags: None,
            new_max_osd: None,
            new_pool_max: None,
            new_pools: BTreeMap::new(),
            new_pool_names: BTreeMap::new(),
            old_pools: Vec::new(),
            new_up_client: BTreeMap::new(),
            new_up_cluster: BTreeMap::new(),
            new_hb_back_up: BTreeMap::new(),
            new_hb_front_up: BTreeMap::new(),
            new_state: BTreeMap::new(),
            new_weight: BTreeMap::new(),
            new_primary_affinity: BTreeMap::new(),
            new_up_thru: BTreeMap::new(),
            new_last_clean_interval: BTreeMap::new(),
            new_lost: BTreeMap::new(),
            new_uuid: BTreeMap::new(),
            new_xinfo: BTreeMap::new(),
            new_pg_temp: BTreeMap::new(),
            new_primary_temp: BTreeMap::new(),
            new_pg_upmap: BTreeMap::new(),
            old_pg_upmap: Vec::new(),
            new_pg_upmap_items: BTreeMap::new(),
            old_pg_upmap_items: Vec::new(),
            new_pg_upmap_primary: BTreeMap::new(),
            old_pg_upmap_primary: Vec::new(),
            new_erasure_code_profiles: BTreeMap::new(),
            old_erasure_code_profiles: Vec::new(),
            new_removed_snaps: BTreeMap::new(),
            new_purged_snaps: BTreeMap::new(),
            new_last_up_change: UTime::default(),
            new_last_in_change: UTime::default(),
            new_blocklist: Vec::new(),
            old_blocklist: Vec::new(),
            new_range_blocklist: Vec::new(),
            old_range_blocklist: Vec::new(),
            cluster_snapshot: String::new(),
            new_nearfull_ratio: -1.0,
            new_full_ratio: -1.0,
            new_backfillfull_ratio: -1.0,
            new_require_min_compat_client: None,
            new_require_osd_release: None,
            new_crush_node_flags: BTreeMap::new(),
            new_device_class_flags: BTreeMap::new(),
            new_stretch: None,
            new_allow_crimson: None,
            encode_features: 0,
            full_crc: None,
        }
    }
}

impl Incremental {
    /// Decodes an incremental map and verifies its checksum.
    pub fn decode(bytes: &[u8]) -> Result<Incremental> {
        let what = "OSDMap::Incremental";
        let (version, mut body, encoded) = open_wrapper(&mut Reader::new(bytes), what)?;
        let mut inc = Incremental::default();
        inc.decode_client(&mut body)?;
        inc.decode_osd_only(&mut body)?;
        if version >= 8 {
            let at = encoded.len() - body.remaining();
            let crc = body.u32()?;
            inc.full_crc = Some(body.u32()?);
            if !crc_matches(encoded, at, crc) {
                return Err(DecodeError::malformed(
                    "OSDMap::Incremental: wrong checksum",
                ));
            }
        }
        Ok(inc)
    }

    fn decode_client(&mut self, r: &mut Reader<'_>) -> Result<()> {
        let section = r.versioned("OSDMap::Incremental client data", 9)?;
        let (v, r) = (section.version, &mut { section.body });
        self.fsid = r.fixed()?;
        self.epoch = r.u32()?;
        self.modified = UTime::decode(r)?;
        self.new_pool_max = Some(r.i64()?).filter(|n| *n != -1);
        self.new_flags = u32::try_from(r.i32()?).ok();
        self.full_map = r.blob()?.to_vec();
        self.crush = r.blob()?.to_vec();
        self.new_max_osd = Some(r.i32()?).filter(|n| *n >= 0);
        self.new_pools = read_map(r, 8 + Pool::MIN_SIZE, |r| Ok((r.i64()?, Pool::decode(r)?)))?;
        self.new_pool_names = read_map(r, 12, |r| Ok((r.i64()?, read_string(r)?)))?;
        self.old_pools = r.list(8, Reader::i64)?;
        self.new_up_client = read_addrvecs(r)?;
        self.new_state = if v >= 5 {
            read_flags(r)?
        } else {
            read_map(r, 5, |r| Ok((r.i32()?, u32::from(r.u8()?))))?
        };
        self.new_weight = read_flags(r)?;
        self.new_pg_temp = read_pg_map(r, read_osds)?;
        self.new_primary_temp = read_pg_map(r, Reader::i32)?;
        if v >= 2 {
            self.new_primary_affinity = read_flags(r)?;
        }
        if v >= 3 {
            self.new_erasure_code_profiles = read_profiles(r)?;
            self.old_erasure_code_profiles = r.list(4, read_string)?;
        }
        if v >= 4 {
            self.new_pg_upmap = read_pg_map(r, read_osds)?;
            self.old_pg_upmap = r.list(Pg::SIZE, Pg::decode)?;
            self.new_pg_upmap_items = read_pg_map(r, read_pairs)?;
            self.old_pg_upmap_items = r.list(Pg::SIZE, Pg::decode)?;
        }
        if v >= 6 {
            self.new_removed_snaps = read_snaps(r)?;
            self.new_purged_snaps = read_snaps(r)?;
        }
        if v >= 8 {
            self.new_last_up_change = UTime::decode(r)?;
            self.new_last_in_change = UTime::decode(r)?;
        }
        if v >= 9 {
            self.new_pg_upmap_primary = read_pg_map(r, Reader::i32)?;
            self.old_pg_upmap_primary = r.list(Pg::SIZE, Pg::decode)?;
        }
        Ok(())
    }

    fn decode_osd_only(&mut self, r: &mut Reader<'_>) -> Result<()> {
        let section = r.versioned("OSDMap::Incremental OSD data", 12)?;
        let (v, r) = (section.version, &mut { section.body });
        self.new_hb_back_up = read_addrvecs(r)?;
        self.new_up_thru = read_flags(r)?;
        self.new_last_clean_interval = read_map(r, 12, |r| Ok((r.i32()?, (r.u32()?, r.u32()?))))?;
        self.new_lost = read_flags(r)?;
        self.new_blocklist = unkeyed(read_addrs(r)?);
        self.old_blocklist = r.list(EntityAddr::MIN_SIZE, EntityAddr::decode)?;
        self.new_up_cluster = read_addrvecs(r)?;
        self.cluster_snapshot = read_string(r)?;
        self.new_uuid = read_map(r, 4 + UUID, |r| Ok((r.i32()?, r.fixed()?)))?;
        self.new_xinfo = read_map(r, 4 + XInfo::MIN_SIZE, |r| {
            Ok((r.i32()?, XInfo::decode(r)?))
        })?;
        self.new_hb_front_up = read_addrvecs(r)?;
        if v >= 2 {
            self.encode_features = r.u64()?;
        }
        if v >= 3 {
            self.new_nearfull_ratio = read_f32(r)?;
            self.new_full_ratio = read_f32(r)?;
        }
        if v >= 4 {
            self.new_backfillfull_ratio = read_f32(r)?;
        }
        if v == 5 {
            r.blob()?;
        }
        if v >= 6 {
            self.new_require_min_compat_client = Some(r.u8()?).filter(|n| (1..0x80).contains(n));
            self.new_require_osd_release = Some(r.u8()?).filter(|n| *n < 0x80);
        } else if let Some(flags) = self.new_flags {
            let required = legacy_release(flags);
            self.new_require_osd_release = Some(required);
            if required == release::LUMINOUS {
                self.new_flags = Some(flags & !flag::LEGACY_REQUIRE);
            }
        }
        if v >= 8 {
            self.new_crush_node_flags = read_flags(r)?;
        }
        if v >= 9 {
            self.new_device_class_flags = read_flags(r)?;
        }
        if v >= 10 {
            let change = r.bool()?;
            let mut stretch = Stretch {
                enabled: false,
                bucket_count: r.u32()?,
                degraded: r.u32()?,
                recovering: r.u32()?,
                mode_bucket: r.i32()?,
            };
            stretch.enabled = r.bool()?;
            self.new_stretch = Some(stretch).filter(|_| change);
        }
        if v >= 11 {
            self.new_range_blocklist = unkeyed(read_addrs(r)?);
            self.old_range_blocklist = r.list(EntityAddr::MIN_SIZE, EntityAddr::decode)?;
        }
        if v >= 12 {
            // `mutate_allow_crimson_t`
            self.new_allow_crimson = match r.u8()? {
                1 => Some(true),
                2 => Some(false),
                _ => None,
            };
        }
        Ok(())
    }
}

fn read_addrvecs(r: &mut Reader<'_>) -> Result<BTreeMap<i32, EntityAddrVec>> {
    read_map(r, 9, |r| Ok((r.i32()?, EntityAddrVec::decode(r)?)))
}

fn unkeyed(addrs: BTreeMap<Key, UTime>) -> Vec<(EntityAddr, UTime)> {
    addrs.into_iter().map(|(k, t)| (k.0, t)).collect()
}
