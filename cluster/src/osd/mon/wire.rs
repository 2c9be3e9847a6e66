//! Messages that only the server's side of a monitor session needs. Layouts: `encode_payload` in
//! `src/messages/NAME.h`.

use crate::codec::{EntityAddrVec, Put, Reader, Result, UTime};
use crate::mon::kind;
use crate::mon::message::{Message, Paxos};

use super::usage::PoolUsage;

/// `MSG_SERVICE_MAP`, `CEPH_MSG_FS_MAP_USER` (`src/msg/Message.h`, `src/include/ceph_fs.h`).
pub(super) const SERVICE_MAP: u16 = 0x707;
pub(super) const FS_MAP_USER: u16 = 103;
pub(super) const KV_DATA: u16 = 54;

/// Asks how full the cluster, or one pool, is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MStatfs {
    pub paxos: Paxos,
    pub fsid: [u8; 16],
    pub pool: Option<i64>,
}

fn put_paxos(out: &mut Vec<u8>, paxos: &Paxos) {
    out.put_u64(paxos.version);
    out.put_i16(paxos.session_mon);
    out.put_u64(paxos.session_mon_tid);
}

fn read_paxos(r: &mut Reader<'_>) -> Result<Paxos> {
    Ok(Paxos {
        version: r.u64()?,
        session_mon: r.i16()?,
        session_mon_tid: r.u64()?,
    })
}

impl Message for MStatfs {
    const KIND: u16 = kind::STATFS;
    const VERSION: u16 = 2;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        put_paxos(out, &self.paxos);
        out.put_bytes(&self.fsid);
        out.put_bool(self.pool.is_some());
        if let Some(pool) = self.pool {
            out.put_i64(pool);
        }
    }

    fn read(version: u16, r: &mut Reader<'_>) -> Result<MStatfs> {
        Ok(MStatfs {
            paxos: read_paxos(r)?,
            fsid: r.fixed()?,
            pool: match version {
                2.. => r.option(Reader::i64)?,
                _ => None,
            },
        })
    }
}

/// The answer (`ceph_mon_statfs_reply`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MStatfsReply {
    pub fsid: [u8; 16],
    pub version: u64,
    pub kb: u64,
    pub kb_used: u64,
    pub kb_avail: u64,
    pub objects: u64,
}

impl Message for MStatfsReply {
    const KIND: u16 = kind::STATFS_REPLY;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bytes(&self.fsid);
        for n in [
            self.version,
            self.kb,
            self.kb_used,
            self.kb_avail,
            self.objects,
        ] {
            out.put_u64(n);
        }
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MStatfsReply> {
        Ok(MStatfsReply {
            fsid: r.fixed()?,
            version: r.u64()?,
            kb: r.u64()?,
            kb_used: r.u64()?,
            kb_avail: r.u64()?,
            objects: r.u64()?,
        })
    }
}

/// Asks for the statistics of pools, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MGetPoolStats {
    pub paxos: Paxos,
    pub fsid: [u8; 16],
    pub pools: Vec<String>,
}

impl Message for MGetPoolStats {
    const KIND: u16 = kind::GET_POOL_STATS;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        put_paxos(out, &self.paxos);
        out.put_bytes(&self.fsid);
        out.put_list(self.pools.iter(), |out, name| out.put_string(name));
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MGetPoolStats> {
        Ok(MGetPoolStats {
            paxos: read_paxos(r)?,
            fsid: r.fixed()?,
            pools: r.list(4, |r| Ok(r.string()?.to_owned()))?,
        })
    }
}

/// The front of `MGetPoolStatsReply`, version 2.
pub(super) fn put_pool_stats(
    out: &mut Vec<u8>,
    fsid: &[u8; 16],
    version: u64,
    pools: &[(String, PoolUsage)],
) {
    put_paxos(
        out,
        &Paxos {
            version,
            ..Paxos::default()
        },
    );
    out.put_bytes(fsid);
    out.put_list(pools.iter(), |out, (name, usage)| {
        out.put_string(name);
        put_pool_stat(out, usage);
    });
    // Statistics are of pools, not of OSDs.
    out.put_bool(true);
}

/// `pool_stat_t::encode` (`src/osd/osd_types.cc`).
fn put_pool_stat(out: &mut Vec<u8>, usage: &PoolUsage) {
    out.versioned(7, 5, |out| {
        // `object_stat_collection_t`.
        out.versioned(2, 2, |out| {
            put_object_stats(out, usage);
            out.put_u32(0);
        });
        // Sizes of logs, then up and acting.
        out.put_u64(0);
        out.put_u64(0);
        out.put_i32(0);
        out.put_i32(0);
        // `store_statfs_t`.
        out.versioned(1, 1, |out| {
            out.put_i64(0);
            out.put_i64(0);
            out.put_i64(0);
            out.put_u64(usage.bytes);
            out.put_u64(usage.bytes);
            for _ in 0..3 {
                out.put_i64(0);
            }
            out.put_u64(usage.omap_bytes);
            out.put_i64(0);
        });
        out.put_u32(1);
    });
}

/// `object_stat_sum_t::encode`: forty counters, of which few mean anything here.
fn put_object_stats(out: &mut Vec<u8>, usage: &PoolUsage) {
    out.versioned(20, 14, |out| {
        let head = [
            usage.bytes,
            usage.objects,
            usage.clones,
            // Copies: there is one of each.
            usage.objects,
            // Missing, degraded, unfound.
            0,
            0,
            0,
            usage.read_ops,
            usage.read_bytes / 1024,
            usage.write_ops,
            usage.write_bytes / 1024,
        ];
        for n in head {
            out.put_u64(n);
        }
        // Seventeen from `num_scrub_errors` to `num_promote`, four of 32 bits about tiering, five from
        // `num_objects_pinned` to `num_objects_manifest`.
        out.put_bytes(&[0; 17 * 8 + 4 * 4 + 5 * 8]);
        out.put_u64(usage.omap_bytes);
        // Keys, repaired objects.
        out.put_u64(0);
        out.put_u64(0);
    });
}

/// A manager map without a manager (`MgrMap::encode`, `src/mon/MgrMap.h`): clients that ask for one
/// learn that they need not wait.
pub(super) fn put_empty_mgrmap(out: &mut Vec<u8>, epoch: u32) {
    out.versioned(11, 6, |out| {
        out.put_u32(epoch);
        EntityAddrVec::default().encode(out);
        out.put_u64(0);
        out.put_bool(false);
        out.put_string("");
        // Standbys, modules, services, available modules.
        for _ in 0..4 {
            out.put_u32(0);
        }
        UTime::default().encode(out);
        // Always-on modules, features of the active one, epoch of its last failure, clients.
        out.put_u32(0);
        out.put_u64(0);
        out.put_u32(0);
        out.put_u32(0);
    });
}

/// A service map without services (`ServiceMap::encode`, `src/mgr/ServiceMap.cc`).
pub(super) fn put_empty_servicemap(out: &mut Vec<u8>) {
    out.versioned(1, 1, |out| {
        out.put_u32(1);
        UTime::default().encode(out);
        out.put_u32(0);
    });
}

/// A map of file systems without any (`MFSMapUser`, `FSMapUser::encode`).
pub(super) fn put_empty_fsmap_user(out: &mut Vec<u8>) {
    out.put_u32(1);
    out.versioned(1, 1, |out| {
        out.put_u32(1);
        out.put_i32(-1);
        out.put_u32(0);
    });
}

/// `MKVData`: stored values under a prefix.
pub(super) fn put_kv_data<'a>(
    out: &mut Vec<u8>,
    version: u64,
    prefix: &str,
    entries: impl ExactSizeIterator<Item = (&'a String, &'a Vec<u8>)>,
) {
    out.put_u64(version);
    out.put_string(prefix);
    out.put_bool(false);
    out.put_list(entries, |out, (key, value)| {
        out.put_string(key);
        out.put_bool(true);
        out.put_blob(value);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_survive_a_round_trip(fsid: [u8; 16], pool: Option<i64>, names: Vec<String>, n: u64) {
            let mut out = Vec::new();
            let statfs = MStatfs { fsid, pool, ..MStatfs::default() };
            statfs.encode(&mut out);
            prop_assert_eq!(MStatfs::decode(2, &out).unwrap(), statfs);
            out.clear();
            let reply = MStatfsReply { fsid, version: n, kb: n / 2, ..MStatfsReply::default() };
            reply.encode(&mut out);
            prop_assert_eq!(MStatfsReply::decode(1, &out).unwrap(), reply);
            out.clear();
            let stats = MGetPoolStats { fsid, pools: names, ..MGetPoolStats::default() };
            stats.encode(&mut out);
            prop_assert_eq!(MGetPoolStats::decode(1, &out).unwrap(), stats);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>, version in 0u16..4) {
            let _ = MStatfs::decode(version, &bytes);
            let _ = MStatfsReply::decode(version, &bytes);
            let _ = MGetPoolStats::decode(version, &bytes);
        }
    }
}
