//! `OSDMap::encode` and its incremental's (`src/osd/OSDMap.cc`) for clusters of Nautilus and later, by the release their
//! OSDs are required to be of.

use std::collections::BTreeMap;

use super::blocklist::put_addrs;
use super::osd::Osd;
use super::wire::{put_map, put_strings};
use super::{Incremental, OsdMap, Pg, SnapIntervals, Stretch, release};
use crate::codec::{EntityAddr, EntityAddrVec, Put, UTime};

impl OsdMap {
    /// The full map with its checksum, byte for byte as a monitor would write it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.versioned(8, 7, |out| {
            self.encode_client(out);
            self.encode_osd_only(out);
            out.put_u32(0);
        });
        let at = out.len() - 4;
        let crc = !crc32c::crc32c(&out[..at]);
        out[at..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn encode_client(&self, out: &mut Vec<u8>) {
        let v = if self.require_osd_release >= release::REEF {
            10
        } else {
            9
        };
        out.versioned(v, 1, |out| {
            out.put_bytes(&self.fsid);
            out.put_u32(self.epoch);
            self.created.encode(out);
            self.modified.encode(out);
            put_map(out, &self.pools, |out, id, pool| {
                out.put_i64(*id);
                pool.encode(out, self.require_osd_release);
            });
            put_map(out, &self.pool_names, |out, id, name| {
                out.put_i64(*id);
                out.put_string(name);
            });
            out.put_i32(self.pool_max);
            out.put_u32(self.flags);
            out.put_i32(self.max_osd() as i32);
            put_u32s(out, &self.states);
            put_u32s(out, &self.weights);
            self.put_addrs(out, |o| &o.client_addrs);
            put_pg_map(out, &self.pg_temp, |out, osds| put_osds(out, osds));
            put_pg_map(out, &self.primary_temp, |out, osd| out.put_i32(*osd));
            put_u32s(out, self.affinity.as_deref().unwrap_or_default());
            let mut crush = Vec::new();
            self.crush.encode(&mut crush, false);
            out.put_blob(&crush);
            put_profiles(out, &self.erasure_code_profiles);
            put_pg_map(out, &self.pg_upmap, |out, osds| put_osds(out, osds));
            put_pg_map(out, &self.pg_upmap_items, |out, p| put_pairs(out, p));
            out.put_u32(self.crush_version);
            put_snaps(out, &self.new_removed_snaps);
            put_snaps(out, &self.new_purged_snaps);
            self.last_up_change.encode(out);
            self.last_in_change.encode(out);
            if v >= 10 {
                put_pg_map(out, &self.pg_upmap_primary, |out, osd| out.put_i32(*osd));
            }
        });
    }

    fn encode_osd_only(&self, out: &mut Vec<u8>) {
        // Newer versions are written only where there is something new to say.
        let v = if self.allow_crimson {
            12
        } else if !self.blocklist.ranges.is_empty() {
            11
        } else if self.stretch.enabled {
            10
        } else {
            9
        };
        out.versioned(v, 1, |out| {
            self.put_addrs(out, |o| &o.hb_back_addrs);
            out.put_list(self.osds.iter(), |out, o| o.info.encode(out));
            put_addrs(out, &self.blocklist.addrs);
            self.put_addrs(out, |o| &o.cluster_addrs);
            out.put_u32(self.cluster_snapshot_epoch);
            out.put_string(&self.cluster_snapshot);
            out.put_list(self.osds.iter(), |out, o| out.put_bytes(&o.uuid));
            out.put_list(self.osds.iter(), |out, o| o.xinfo.encode(out));
            self.put_addrs(out, |o| &o.hb_front_addrs);
            for ratio in [
                self.nearfull_ratio,
                self.full_ratio,
                self.backfillfull_ratio,
            ] {
                out.put_u32(ratio.to_bits());
            }
            out.put_u8(self.require_min_compat_client);
            out.put_u8(self.require_osd_release);
            put_snaps(out, &self.removed_snaps_queue);
            put_osd_u32s(out, &self.crush_node_flags);
            put_osd_u32s(out, &self.device_class_flags);
            if v >= 10 {
                out.put_bool(self.stretch.enabled);
                put_stretch(out, &self.stretch);
            }
            if v >= 11 {
                put_addrs(out, &self.blocklist.ranges);
            }
            if v >= 12 {
                out.put_bool(self.allow_crimson);
            }
        });
    }

    fn put_addrs(&self, out: &mut Vec<u8>, addrs: impl Fn(&Osd) -> &EntityAddrVec) {
        out.put_list(self.osds.iter(), |out, o| addrs(o).encode(out));
    }
}

impl Incremental {
    /// The incremental map with its checksum, byte for byte as a monitor of a cluster whose OSDs
    /// must be of `osd_release` would write it.
    pub fn encode(&self, osd_release: u8) -> Vec<u8> {
        let mut out = Vec::new();
        let mut at = 0;
        out.versioned(8, 7, |out| {
            self.encode_client(out, osd_release);
            self.encode_osd_only(out);
            at = out.len();
            out.put_u32(0);
            out.put_u32(self.full_crc.unwrap_or(0));
        });
        let crc = !crc32c::crc32c_append(crc32c::crc32c(&out[..at]), &out[at + 4..]);
        out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn encode_client(&self, out: &mut Vec<u8>, osd_release: u8) {
        let v = if osd_release >= release::REEF { 9 } else { 8 };
        out.versioned(v, 1, |out| {
            out.put_bytes(&self.fsid);
            out.put_u32(self.epoch);
            self.modified.encode(out);
            out.put_i64(self.new_pool_max.unwrap_or(-1));
            out.put_i32(self.new_flags.map_or(-1, |flags| flags as i32));
            out.put_blob(&self.full_map);
            out.put_blob(&self.crush);
            out.put_i32(self.new_max_osd.unwrap_or(-1));
            put_map(out, &self.new_pools, |out, id, pool| {
                out.put_i64(*id);
                pool.encode(out, osd_release);
            });
            put_map(out, &self.new_pool_names, |out, id, name| {
                out.put_i64(*id);
                out.put_string(name);
            });
            out.put_list(self.old_pools.iter(), |out, id| out.put_i64(*id));
            put_addrvecs(out, &self.new_up_client);
            put_osd_u32s(out, &self.new_state);
            put_osd_u32s(out, &self.new_weight);
            put_pg_map(out, &self.new_pg_temp, |out, osds| put_osds(out, osds));
            put_pg_map(out, &self.new_primary_temp, |out, osd| out.put_i32(*osd));
            put_osd_u32s(out, &self.new_primary_affinity);
            put_profiles(out, &self.new_erasure_code_profiles);
            out.put_list(self.old_erasure_code_profiles.iter(), |out, name| {
                out.put_string(name);
            });
            put_pg_map(out, &self.new_pg_upmap, |out, osds| put_osds(out, osds));
            put_pgs(out, &self.old_pg_upmap);
            put_pg_map(out, &self.new_pg_upmap_items, |out, p| put_pairs(out, p));
            put_pgs(out, &self.old_pg_upmap_items);
            put_snaps(out, &self.new_removed_snaps);
            put_snaps(out, &self.new_purged_snaps);
            self.new_last_up_change.encode(out);
            self.new_last_in_change.encode(out);
            if v >= 9 {
                put_pg_map(out, &self.new_pg_upmap_primary, |out, osd| {
                    out.put_i32(*osd)
                });
                put_pgs(out, &self.old_pg_upmap_primary);
            }
        });
    }

    fn encode_osd_only(&self, out: &mut Vec<u8>) {
        let ranges = &self.new_range_blocklist;
        let v = if self.new_allow_crimson.is_some() {
            12
        } else if !ranges.is_empty() || !self.old_range_blocklist.is_empty() {
            11
        } else if self.new_stretch.is_some() {
            10
        } else {
            9
        };
        out.versioned(v, 1, |out| {
            put_addrvecs(out, &self.new_hb_back_up);
            put_osd_u32s(out, &self.new_up_thru);
            put_map(out, &self.new_last_clean_interval, |out, osd, interval| {
                out.put_i32(*osd);
                out.put_u32(interval.0);
                out.put_u32(interval.1);
            });
            put_osd_u32s(out, &self.new_lost);
            put_expiring(out, &self.new_blocklist);
            out.put_list(self.old_blocklist.iter(), |out, a| a.encode(out));
            put_addrvecs(out, &self.new_up_cluster);
            out.put_string(&self.cluster_snapshot);
            put_map(out, &self.new_uuid, |out, osd, uuid| {
                out.put_i32(*osd);
                out.put_bytes(uuid);
            });
            put_map(out, &self.new_xinfo, |out, osd, xinfo| {
                out.put_i32(*osd);
                xinfo.encode(out);
            });
            put_addrvecs(out, &self.new_hb_front_up);
            out.put_u64(self.encode_features);
            for ratio in [
                self.new_nearfull_ratio,
                self.new_full_ratio,
                self.new_backfillfull_ratio,
            ] {
                out.put_u32(ratio.to_bits());
            }
            out.put_u8(self.new_require_min_compat_client.unwrap_or(0xff));
            out.put_u8(self.new_require_osd_release.unwrap_or(0xff));
            put_osd_u32s(out, &self.new_crush_node_flags);
            put_osd_u32s(out, &self.new_device_class_flags);
            if v >= 10 {
                let stretch = self.new_stretch.unwrap_or_default();
                out.put_bool(self.new_stretch.is_some());
                put_stretch(out, &stretch);
                out.put_bool(stretch.enabled);
            }
            if v >= 11 {
                put_expiring(out, ranges);
                out.put_list(self.old_range_blocklist.iter(), |out, a| a.encode(out));
            }
            if v >= 12 {
                out.put_u8(match self.new_allow_crimson {
                    None => 0,
                    Some(true) => 1,
                    Some(false) => 2,
                });
            }
        });
    }
}

fn put_stretch(out: &mut Vec<u8>, stretch: &Stretch) {
    out.put_u32(stretch.bucket_count);
    out.put_u32(stretch.degraded);
    out.put_u32(stretch.recovering);
    out.put_i32(stretch.mode_bucket);
}

fn put_addrvecs(out: &mut Vec<u8>, addrs: &BTreeMap<i32, EntityAddrVec>) {
    put_map(out, addrs, |out, osd, addrs| {
        out.put_i32(*osd);
        addrs.encode(out);
    });
}

fn put_osd_u32s(out: &mut Vec<u8>, values: &BTreeMap<i32, u32>) {
    put_map(out, values, |out, id, value| {
        out.put_i32(*id);
        out.put_u32(*value);
    });
}

fn put_expiring(out: &mut Vec<u8>, addrs: &[(EntityAddr, UTime)]) {
    out.put_list(addrs.iter(), |out, (addr, until)| {
        addr.encode(out);
        until.encode(out);
    });
}

fn put_profiles(out: &mut Vec<u8>, profiles: &BTreeMap<String, BTreeMap<String, String>>) {
    put_map(out, profiles, |out, name, profile| {
        out.put_string(name);
        put_strings(out, profile);
    });
}

fn put_pgs(out: &mut Vec<u8>, pgs: &[Pg]) {
    out.put_list(pgs.iter(), |out, pg| pg.encode(out));
}

fn put_pairs(out: &mut Vec<u8>, pairs: &[(i32, i32)]) {
    out.put_list(pairs.iter(), |out, (from, to)| {
        out.put_i32(*from);
        out.put_i32(*to);
    });
}

fn put_u32s(out: &mut Vec<u8>, values: &[u32]) {
    out.put_list(values.iter(), |out, v| out.put_u32(*v));
}

fn put_osds(out: &mut Vec<u8>, osds: &[i32]) {
    out.put_list(osds.iter(), |out, o| out.put_i32(*o));
}

fn put_pg_map<V>(
    out: &mut Vec<u8>,
    map: &BTreeMap<Pg, V>,
    mut value: impl FnMut(&mut Vec<u8>, &V),
) {
    put_map(out, map, |out, pg, v| {
        pg.encode(out);
        value(out, v);
    });
}

fn put_snaps(out: &mut Vec<u8>, snaps: &BTreeMap<i64, SnapIntervals>) {
    put_map(out, snaps, |out, pool, snaps| {
        out.put_i64(*pool);
        snaps.encode(out);
    });
}
