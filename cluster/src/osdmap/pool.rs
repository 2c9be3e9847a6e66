//! Pools (`pg_pool_t` of `src/osd/osd_types.{h,cc}`).

use std::collections::{BTreeMap, BTreeSet};

use super::crush::hash::hash2;
use super::objhash::{mask_of, object_hash, stable_mod};
use super::snaps::SnapIntervals;
use super::wire::{put_map, put_strings, read_map, read_string, read_strings};
use super::{Pg, RawPg, release};
use crate::codec::{DecodeError, Put, Reader, Result, UTime};

/// Bits of [`Pool::flags`] (`pg_pool_t::FLAG_*`).
pub mod flag {
    pub const HASHPSPOOL: u64 = 1 << 0;
    pub const FULL: u64 = 1 << 1;
    pub const EC_OVERWRITES: u64 = 1 << 2;
    pub const INCOMPLETE_CLONES: u64 = 1 << 3;
    pub const NODELETE: u64 = 1 << 4;
    pub const NOPGCHANGE: u64 = 1 << 5;
    pub const NOSIZECHANGE: u64 = 1 << 6;
    pub const WRITE_FADVISE_DONTNEED: u64 = 1 << 7;
    pub const NOSCRUB: u64 = 1 << 8;
    pub const NODEEP_SCRUB: u64 = 1 << 9;
    pub const FULL_QUOTA: u64 = 1 << 10;
    pub const NEARFULL: u64 = 1 << 11;
    pub const BACKFILLFULL: u64 = 1 << 12;
    pub const SELFMANAGED_SNAPS: u64 = 1 << 13;
    pub const POOL_SNAPS: u64 = 1 << 14;
    pub const CREATING: u64 = 1 << 15;
    pub const EIO: u64 = 1 << 16;
    pub const BULK: u64 = 1 << 17;
    pub const CRIMSON: u64 = 1 << 18;
    pub const EC_OPTIMIZATIONS: u64 = 1 << 19;

    /// Names by bit.
    pub const NAMES: [&str; 20] = [
        "hashpspool",
        "full",
        "ec_overwrites",
        "incomplete_clones",
        "nodelete",
        "nopgchange",
        "nosizechange",
        "write_fadvise_dontneed",
        "noscrub",
        "nodeep-scrub",
        "full_quota",
        "nearfull",
        "backfillfull",
        "selfmanaged_snaps",
        "pool_snaps",
        "creating",
        "eio",
        "bulk",
        "crimson",
        "ec_optimizations",
    ];
}

/// How a pool protects its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolKind {
    #[default]
    Replicated,
    Erasure,
}

/// A value of [`Pool::opts`].
#[derive(Debug, Clone, PartialEq)]
pub enum PoolOpt {
    Str(String),
    Int(i64),
    Double(f64),
}

/// A snapshot of a whole pool; RBD never makes these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSnap {
    pub stamp: UTime,
    pub name: String,
}

/// The last PG that was merged away (`pg_merge_meta_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MergeMeta {
    pub source: Pg,
    pub ready_epoch: u32,
    pub last_epoch_started: u32,
    pub last_epoch_clean: u32,
    /// Version and epoch.
    pub source_version: (u64, u32),
    pub target_version: (u64, u32),
}

/// CRUSH buckets a stretched pool's PGs must span to peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeeringCrush {
    pub bucket_count: u32,
    pub bucket_target: u32,
    pub bucket_barrier: u32,
    pub mandatory_member: u32,
}

impl Default for PeeringCrush {
    fn default() -> PeeringCrush {
        PeeringCrush {
            bucket_count: 0,
            bucket_target: 0,
            bucket_barrier: 0,
            mandatory_member: super::crush::ITEM_NONE as u32,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pool {
    pub kind: PoolKind,
    pub size: u8,
    pub min_size: u8,
    pub crush_rule: u8,
    pub object_hash: u8,
    pub pg_num: u32,
    pub pgp_num: u32,
    pub last_change: u32,
    pub snap_seq: u64,
    pub snap_epoch: u32,
    pub snaps: BTreeMap<u64, PoolSnap>,
    pub removed_snaps: SnapIntervals,
    pub auid: u64,
    pub flags: u64,
    pub quota_max_bytes: u64,
    pub quota_max_objects: u64,
    pub tiers: BTreeSet<u64>,
    pub tier_of: i64,
    pub cache_mode: u8,
    /// -1: none.
    pub read_tier: i64,
    pub write_tier: i64,
    pub properties: BTreeMap<String, String>,
    pub hit_set: HitSet,
    pub stripe_width: u32,
    pub cache: CacheTargets,
    pub erasure_code_profile: String,
    pub last_force_op_resend_preluminous: u32,
    pub last_force_op_resend_prenautilus: u32,
    pub last_force_op_resend: u32,
    pub expected_num_objects: u64,
    pub fast_read: bool,
    /// By `pool_opts_t::key_t`.
    pub opts: BTreeMap<i32, PoolOpt>,
    /// Application to its keys and values.
    pub application_metadata: BTreeMap<String, BTreeMap<String, String>>,
    pub create_time: UTime,
    pub pg_num_target: u32,
    pub pgp_num_target: u32,
    pub pg_num_pending: u32,
    pub pg_autoscale_mode: u8,
    pub last_pg_merge: MergeMeta,
    pub peering_crush: PeeringCrush,
    /// Shards that may not be primary, by bit (since Tentacle).
    pub nonprimary_shards: u128,
}

/// How a cache tier samples accesses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HitSet {
    /// `HitSet::Params` as it came.
    pub params: Vec<u8>,
    pub period: u32,
    pub count: u32,
    pub min_read_recency_for_promote: u32,
    pub min_write_recency_for_promote: u32,
    pub use_gmt: bool,
    pub grade_decay_rate: u32,
    pub search_last_n: u32,
}

/// When a cache tier flushes and evicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheTargets {
    pub max_bytes: u64,
    pub max_objects: u64,
    pub dirty_ratio_micro: u32,
    pub dirty_high_ratio_micro: u32,
    pub full_ratio_micro: u32,
    pub min_flush_age: u32,
    pub min_evict_age: u32,
}

impl Pool {
    /// Bytes of the shortest encoding, well below what any release writes.
    pub(super) const MIN_SIZE: usize = 64;

    pub fn has_flag(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    pub fn is_erasure(&self) -> bool {
        self.kind == PoolKind::Erasure
    }

    /// Replicas are interchangeable: a missing one is dropped and the rest move up
    /// (`can_shift_osds`).
    pub fn can_shift_osds(&self) -> bool {
        self.kind == PoolKind::Replicated
    }

    /// Clients number the pool's snapshots themselves, as RBD does.
    pub fn is_unmanaged_snaps(&self) -> bool {
        self.has_flag(flag::SELFMANAGED_SNAPS)
    }

    pub fn is_pool_snaps(&self) -> bool {
        self.has_flag(flag::POOL_SNAPS)
    }

    /// Objects may be overwritten in part: always but in plain erasure-coded pools.
    pub fn allows_overwrites(&self) -> bool {
        !self.is_erasure() || self.has_flag(flag::EC_OVERWRITES)
    }

    pub fn is_tier(&self) -> bool {
        self.tier_of >= 0
    }

    pub fn has_read_tier(&self) -> bool {
        self.read_tier >= 0
    }

    pub fn has_write_tier(&self) -> bool {
        self.write_tier >= 0
    }

    pub fn pg_num_mask(&self) -> u32 {
        mask_of(self.pg_num)
    }

    pub fn pgp_num_mask(&self) -> u32 {
        mask_of(self.pgp_num)
    }

    pub fn has_application(&self, name: &str) -> bool {
        self.application_metadata.contains_key(name)
    }

    /// Names of the flags set.
    pub fn flag_names(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.flags;
        flag::NAMES
            .iter()
            .enumerate()
            .filter(move |(bit, _)| flags >> bit & 1 != 0)
            .map(|(_, name)| *name)
    }

    /// Placement seed of an object by name or locator key (`hash_key`).
    #[inline]
    pub fn hash_key(&self, namespace: &[u8], key: &[u8]) -> u32 {
        object_hash(self.object_hash, namespace, key)
    }

    /// The PG that holds a raw PG.
    #[inline]
    pub fn raw_pg_to_pg(&self, raw: RawPg) -> Pg {
        Pg {
            pool: raw.pool,
            seed: stable_mod(raw.seed, self.pg_num, self.pg_num_mask()),
        }
    }

    /// CRUSH's input for a PG (`raw_pg_to_pps`). With `hashpspool` the PGs of different pools do
    /// not lie on top of each other.
    pub(super) fn placement_seed(&self, pg: Pg) -> u32 {
        let seed = stable_mod(pg.seed, self.pgp_num, self.pgp_num_mask());
        if self.has_flag(flag::HASHPSPOOL) {
            hash2(seed, pg.pool as u32)
        } else {
            seed.wrapping_add(pg.pool as u32)
        }
    }

    pub(super) fn is_nonprimary_shard(&self, shard: usize) -> bool {
        shard < 128 && self.nonprimary_shards >> shard & 1 != 0
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Pool> {
        let v = r.versioned("pg_pool_t", 32)?;
        let (version, mut body) = (v.version, v.body);
        if version < 5 {
            return Err(DecodeError::malformed("pg_pool_t older than Bobtail"));
        }
        Pool::decode_body(&mut body, version)
    }

    fn decode_body(r: &mut Reader<'_>, v: u8) -> Result<Pool> {
        let mut p = Pool {
            kind: match r.u8()? {
                1 => PoolKind::Replicated,
                3 => PoolKind::Erasure,
                _ => return Err(DecodeError::malformed("pool type")),
            },
            size: r.u8()?,
            crush_rule: r.u8()?,
            object_hash: r.u8()?,
            pg_num: r.u32()?,
            pgp_num: r.u32()?,
            ..Pool::default()
        };
        // Localized PGs, gone since Dumpling.
        r.skip(8)?;
        p.last_change = r.u32()?;
        p.snap_seq = r.u64()?;
        p.snap_epoch = r.u32()?;
        p.snaps = read_map(r, 14, read_snap)?;
        p.removed_snaps = SnapIntervals::decode(r)?;
        p.auid = r.u64()?;
        p.flags = r.u64()?;
        let _crash_replay_interval = r.u32()?;
        if p.snap_seq > 0 && !p.is_unmanaged_snaps() && !p.is_pool_snaps() {
            p.flags |= if p.removed_snaps.is_empty() {
                flag::POOL_SNAPS
            } else {
                flag::SELFMANAGED_SNAPS
            };
        }
        p.min_size = if v >= 7 { r.u8()? } else { p.size - p.size / 2 };
        if v >= 8 {
            p.quota_max_bytes = r.u64()?;
            p.quota_max_objects = r.u64()?;
        }
        (p.tier_of, p.read_tier, p.write_tier) = (-1, -1, -1);
        if v >= 9 {
            p.tiers = r.list(8, Reader::u64)?.into_iter().collect();
            p.tier_of = r.i64()?;
            p.cache_mode = r.u8()?;
            p.read_tier = r.i64()?;
            p.write_tier = r.i64()?;
        }
        if v >= 10 {
            p.properties = read_strings(r)?;
        }
        p.decode_tiering(r, v)?;
        if v >= 22 {
            p.fast_read = r.bool()?;
        }
        if v >= 23 {
            p.hit_set.grade_decay_rate = r.u32()?;
            p.hit_set.search_last_n = r.u32()?;
        } else {
            p.hit_set.search_last_n = 1;
        }
        p.decode_recent(r, v)?;
        Ok(p)
    }

    /// Versions 11 to 21, mostly about cache tiers.
    fn decode_tiering(&mut self, r: &mut Reader<'_>, v: u8) -> Result<()> {
        if v >= 11 {
            let start = r.rest();
            r.versioned("HitSet::Params", 1)?;
            self.hit_set.params = start[..start.len() - r.remaining()].to_vec();
            self.hit_set.period = r.u32()?;
            self.hit_set.count = r.u32()?;
        }
        if v >= 12 {
            self.stripe_width = r.u32()?;
        }
        let cache = &mut self.cache;
        if v >= 13 {
            cache.max_bytes = r.u64()?;
            cache.max_objects = r.u64()?;
            cache.dirty_ratio_micro = r.u32()?;
            cache.full_ratio_micro = r.u32()?;
            cache.min_flush_age = r.u32()?;
            cache.min_evict_age = r.u32()?;
        }
        if v >= 14 {
            self.erasure_code_profile = read_string(r)?;
        }
        if v >= 15 {
            self.last_force_op_resend_preluminous = r.u32()?;
        }
        self.hit_set.min_read_recency_for_promote = if v >= 16 { r.u32()? } else { 1 };
        if v >= 17 {
            self.expected_num_objects = r.u64()?;
        }
        cache.dirty_high_ratio_micro = if v >= 19 {
            r.u32()?
        } else {
            cache.dirty_ratio_micro
        };
        self.hit_set.min_write_recency_for_promote = if v >= 20 { r.u32()? } else { 1 };
        if v >= 21 {
            self.hit_set.use_gmt = r.bool()?;
        }
        Ok(())
    }

    /// Versions 24 (Infernalis) to 32 (Tentacle).
    fn decode_recent(&mut self, r: &mut Reader<'_>, v: u8) -> Result<()> {
        if v >= 24 {
            self.opts = read_opts(r)?;
        }
        self.last_force_op_resend_prenautilus = if v >= 25 {
            r.u32()?
        } else {
            self.last_force_op_resend_preluminous
        };
        if v >= 26 {
            self.application_metadata =
                read_map(r, 8, |r| Ok((read_string(r)?, read_strings(r)?)))?;
        }
        if v >= 27 {
            self.create_time = UTime::decode(r)?;
        }
        if v >= 28 {
            self.pg_num_target = r.u32()?;
            self.pgp_num_target = r.u32()?;
            self.pg_num_pending = r.u32()?;
            self.last_pg_merge.last_epoch_started = r.u32()?;
            self.last_pg_merge.last_epoch_clean = r.u32()?;
            self.last_force_op_resend = r.u32()?;
            self.pg_autoscale_mode = r.u8()?;
        } else {
            self.pg_num_target = self.pg_num;
            self.pgp_num_target = self.pgp_num;
            self.pg_num_pending = self.pg_num;
            self.last_force_op_resend = self.last_force_op_resend_prenautilus;
            self.pg_autoscale_mode = AUTOSCALE_WARN;
        }
        if v >= 29 {
            self.last_pg_merge = MergeMeta::decode(r)?;
        }
        if v == 30 {
            self.peering_crush = PeeringCrush::decode(r)?;
        } else if v >= 31
            && let Some(p) = r.option(PeeringCrush::decode)?
        {
            self.peering_crush = p;
        }
        if v >= 32 {
            let (low, high) = (read_varint(r)?, read_varint(r)?);
            self.nonprimary_shards = u128::from(low) | u128::from(high) << 64;
        }
        Ok(())
    }

    /// `pg_pool_t::encode` for a cluster whose OSDs are all of `osd_release`, Nautilus or later.
    pub(super) fn encode(&self, out: &mut Vec<u8>, osd_release: u8) {
        let stretched = self.peering_crush.bucket_count != 0;
        let v = match osd_release {
            release::TENTACLE.. => 32,
            _ if stretched => 30,
            _ => 29,
        };
        out.versioned(v, 5, |out| self.encode_body(out, v));
    }

    fn encode_body(&self, out: &mut Vec<u8>, v: u8) {
        out.put_u8(match self.kind {
            PoolKind::Replicated => 1,
            PoolKind::Erasure => 3,
        });
        out.put_u8(self.size);
        out.put_u8(self.crush_rule);
        out.put_u8(self.object_hash);
        out.put_u32(self.pg_num);
        out.put_u32(self.pgp_num);
        out.put_u64(0);
        out.put_u32(self.last_change);
        out.put_u64(self.snap_seq);
        out.put_u32(self.snap_epoch);
        put_map(out, &self.snaps, |out, id, snap| {
            out.put_u64(*id);
            out.versioned(2, 2, |out| {
                out.put_u64(*id);
                snap.stamp.encode(out);
                out.put_string(&snap.name);
            });
        });
        self.removed_snaps.encode(out);
        out.put_u64(self.auid);
        out.put_u64(self.flags);
        out.put_u32(0);
        out.put_u8(self.min_size);
        out.put_u64(self.quota_max_bytes);
        out.put_u64(self.quota_max_objects);
        out.put_list(self.tiers.iter(), |out, t| out.put_u64(*t));
        out.put_i64(self.tier_of);
        out.put_u8(self.cache_mode);
        out.put_i64(self.read_tier);
        out.put_i64(self.write_tier);
        put_strings(out, &self.properties);
        let hits = &self.hit_set;
        if hits.params.is_empty() {
            // `HitSet::TYPE_NONE`
            out.versioned(1, 1, |out| out.put_u8(0));
        } else {
            out.put_bytes(&hits.params);
        }
        out.put_u32(hits.period);
        out.put_u32(hits.count);
        out.put_u32(self.stripe_width);
        out.put_u64(self.cache.max_bytes);
        out.put_u64(self.cache.max_objects);
        out.put_u32(self.cache.dirty_ratio_micro);
        out.put_u32(self.cache.full_ratio_micro);
        out.put_u32(self.cache.min_flush_age);
        out.put_u32(self.cache.min_evict_age);
        out.put_string(&self.erasure_code_profile);
        out.put_u32(self.last_force_op_resend_preluminous);
        out.put_u32(hits.min_read_recency_for_promote);
        out.put_u64(self.expected_num_objects);
        out.put_u32(self.cache.dirty_high_ratio_micro);
        out.put_u32(hits.min_write_recency_for_promote);
        out.put_bool(hits.use_gmt);
        out.put_bool(self.fast_read);
        out.put_u32(hits.grade_decay_rate);
        out.put_u32(hits.search_last_n);
        put_opts(out, &self.opts);
        out.put_u32(self.last_force_op_resend_prenautilus);
        put_map(out, &self.application_metadata, |out, app, keys| {
            out.put_string(app);
            put_strings(out, keys);
        });
        self.create_time.encode(out);
        out.put_u32(self.pg_num_target);
        out.put_u32(self.pgp_num_target);
        out.put_u32(self.pg_num_pending);
        // Moved into the merge metadata.
        out.put_u64(0);
        out.put_u32(self.last_force_op_resend);
        out.put_u8(self.pg_autoscale_mode);
        self.last_pg_merge.encode(out);
        let peering = self.peering_crush;
        if v == 30 {
            peering.encode(out);
        } else if v > 30 {
            out.put_bool(peering.bucket_count != 0);
            if peering.bucket_count != 0 {
                peering.encode(out);
            }
            put_varint(out, self.nonprimary_shards as u64);
            put_varint(out, (self.nonprimary_shards >> 64) as u64);
        }
    }
}

/// `pg_autoscale_mode_t::WARN`.
const AUTOSCALE_WARN: u8 = 1;

impl PeeringCrush {
    fn decode(r: &mut Reader<'_>) -> Result<PeeringCrush> {
        Ok(PeeringCrush {
            bucket_count: r.u32()?,
            bucket_target: r.u32()?,
            bucket_barrier: r.u32()?,
            mandatory_member: r.u32()?,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.bucket_count);
        out.put_u32(self.bucket_target);
        out.put_u32(self.bucket_barrier);
        out.put_u32(self.mandatory_member);
    }
}

impl MergeMeta {
    fn decode(r: &mut Reader<'_>) -> Result<MergeMeta> {
        let mut b = r.versioned("pg_merge_meta_t", 1)?.body;
        Ok(MergeMeta {
            source: Pg::decode(&mut b)?,
            ready_epoch: b.u32()?,
            last_epoch_started: b.u32()?,
            last_epoch_clean: b.u32()?,
            source_version: (b.u64()?, b.u32()?),
            target_version: (b.u64()?, b.u32()?),
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |out| {
            self.source.encode(out);
            out.put_u32(self.ready_epoch);
            out.put_u32(self.last_epoch_started);
            out.put_u32(self.last_epoch_clean);
            for (version, epoch) in [self.source_version, self.target_version] {
                out.put_u64(version);
                out.put_u32(epoch);
            }
        });
    }
}

fn read_snap(r: &mut Reader<'_>) -> Result<(u64, PoolSnap)> {
    let id = r.u64()?;
    let mut b = r.versioned("pool_snap_info_t", 2)?.body;
    let _id = b.u64()?;
    let stamp = UTime::decode(&mut b)?;
    let name = read_string(&mut b)?;
    Ok((id, PoolSnap { stamp, name }))
}

/// `pool_opts_t::type_t`.
const OPT_STR: i32 = 0;
const OPT_INT: i32 = 1;
const OPT_DOUBLE: i32 = 2;

fn read_opts(r: &mut Reader<'_>) -> Result<BTreeMap<i32, PoolOpt>> {
    let v = r.versioned("pool_opts_t", 2)?;
    let wide = v.version >= 2;
    let mut body = v.body;
    read_map(&mut body, 12, |r| {
        let key = r.i32()?;
        let value = match r.i32()? {
            OPT_STR => PoolOpt::Str(read_string(r)?),
            OPT_INT if wide => PoolOpt::Int(r.i64()?),
            OPT_INT => PoolOpt::Int(i64::from(r.i32()?)),
            OPT_DOUBLE => PoolOpt::Double(f64::from_bits(r.u64()?)),
            _ => return Err(DecodeError::malformed("pool option type")),
        };
        Ok((key, value))
    })
}

fn put_opts(out: &mut Vec<u8>, opts: &BTreeMap<i32, PoolOpt>) {
    out.versioned(2, 1, |out| {
        put_map(out, opts, |out, key, value| {
            out.put_i32(*key);
            match value {
                PoolOpt::Str(s) => {
                    out.put_i32(OPT_STR);
                    out.put_string(s);
                }
                PoolOpt::Int(i) => {
                    out.put_i32(OPT_INT);
                    out.put_i64(*i);
                }
                PoolOpt::Double(d) => {
                    out.put_i32(OPT_DOUBLE);
                    out.put_u64(d.to_bits());
                }
            }
        });
    });
}

/// Seven bits a byte, low ones first, the top bit meaning more (`denc_varint`).
fn read_varint(r: &mut Reader<'_>) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = r.u8()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::malformed("varint"))
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}
