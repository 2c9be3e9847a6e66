//! `OSDMap::encode` (`src/osd/OSDMap.cc`) for clusters of Nautilus and later, by the release their
//! OSDs are required to be of.

use std::collections::BTreeMap;

use super::blocklist::put_addrs;
use super::osd::Osd;
use super::wire::{put_map, put_strings};
use super::{OsdMap, Pg, SnapIntervals, release};
use crate::codec::{EntityAddrVec, Put};

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
            put_map(out, &self.erasure_code_profiles, |out, name, profile| {
                out.put_string(name);
                put_strings(out, profile);
            });
            put_pg_map(out, &self.pg_upmap, |out, osds| put_osds(out, osds));
            put_pg_map(out, &self.pg_upmap_items, |out, pairs| {
                out.put_list(pairs.iter(), |out, (from, to)| {
                    out.put_i32(*from);
                    out.put_i32(*to);
                });
            });
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
            for flags in [&self.crush_node_flags, &self.device_class_flags] {
                put_map(out, flags, |out, id, bits| {
                    out.put_i32(*id);
                    out.put_u32(*bits);
                });
            }
            if v >= 10 {
                out.put_bool(self.stretch.enabled);
                out.put_u32(self.stretch.bucket_count);
                out.put_u32(self.stretch.degraded);
                out.put_u32(self.stretch.recovering);
                out.put_i32(self.stretch.mode_bucket);
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
