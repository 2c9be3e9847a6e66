use std::collections::BTreeMap;
use std::sync::Arc;

use super::crush;
use super::osd::{self, Osd, state};
use super::{Blocklist, Pg, Pool, SnapIntervals, flag};
use crate::codec::{EntityAddrVec, UTime};

/// One epoch of the cluster map (`OSDMap` of `src/osd/OSDMap.h`).
///
/// Large parts sit behind `Arc`, so that the copy each epoch makes shares what did not change.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OsdMap {
    pub(super) epoch: u32,
    pub(super) fsid: [u8; 16],
    pub(super) created: UTime,
    pub(super) modified: UTime,
    pub(super) flags: u32,

    pub(super) pools: BTreeMap<i64, Arc<Pool>>,
    pub(super) pool_names: BTreeMap<i64, String>,
    pub(super) pools_by_name: BTreeMap<String, i64>,
    pub(super) pool_max: i32,

    /// These four have one entry for each id below `max_osd`; affinity may be absent.
    pub(super) states: Vec<u32>,
    pub(super) weights: Vec<u32>,
    pub(super) affinity: Option<Vec<u32>>,
    pub(super) osds: Vec<Arc<Osd>>,

    pub(super) pg_temp: BTreeMap<Pg, Vec<i32>>,
    pub(super) primary_temp: BTreeMap<Pg, i32>,
    pub(super) pg_upmap: BTreeMap<Pg, Vec<i32>>,
    pub(super) pg_upmap_items: BTreeMap<Pg, Vec<(i32, i32)>>,
    pub(super) pg_upmap_primary: BTreeMap<Pg, i32>,

    pub(super) crush: Arc<crush::Map>,
    pub(super) crush_version: u32,
    pub(super) erasure_code_profiles: BTreeMap<String, BTreeMap<String, String>>,

    pub(super) new_removed_snaps: BTreeMap<i64, SnapIntervals>,
    pub(super) new_purged_snaps: BTreeMap<i64, SnapIntervals>,
    pub(super) removed_snaps_queue: BTreeMap<i64, SnapIntervals>,
    pub(super) last_up_change: UTime,
    pub(super) last_in_change: UTime,

    pub(super) blocklist: Blocklist,
    pub(super) cluster_snapshot_epoch: u32,
    pub(super) cluster_snapshot: String,
    pub(super) nearfull_ratio: f32,
    pub(super) full_ratio: f32,
    pub(super) backfillfull_ratio: f32,
    pub(super) require_min_compat_client: u8,
    pub(super) require_osd_release: u8,
    pub(super) crush_node_flags: BTreeMap<i32, u32>,
    pub(super) device_class_flags: BTreeMap<i32, u32>,
    pub(super) stretch: Stretch,
    pub(super) allow_crimson: bool,
}

/// A cluster stretched over two sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stretch {
    pub enabled: bool,
    pub bucket_count: u32,
    pub degraded: u32,
    pub recovering: u32,
    pub mode_bucket: i32,
}

impl OsdMap {
    /// The map before any was received: epoch 0, no pools, no OSDs.
    pub fn new_empty() -> OsdMap {
        OsdMap::default()
    }

    /// The same map, of a cluster made at that time. Incrementals do not carry it.
    pub fn with_created(mut self, created: UTime) -> OsdMap {
        self.created = created;
        self
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub fn fsid(&self) -> [u8; 16] {
        self.fsid
    }

    pub fn created(&self) -> UTime {
        self.created
    }

    pub fn modified(&self) -> UTime {
        self.modified
    }

    /// Bits of [`flag`].
    pub fn flags(&self) -> u32 {
        self.flags
    }

    pub fn has_flag(&self, flag: u32) -> bool {
        self.flags & flag != 0
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

    pub fn pools(&self) -> impl ExactSizeIterator<Item = (i64, &Pool)> {
        self.pools.iter().map(|(id, pool)| (*id, &**pool))
    }

    #[inline]
    pub fn pool(&self, id: i64) -> Option<&Pool> {
        self.pools.get(&id).map(|p| &**p)
    }

    pub fn pool_by_name(&self, name: &str) -> Option<i64> {
        self.pools_by_name.get(name).copied()
    }

    pub fn pool_name(&self, id: i64) -> Option<&str> {
        self.pool_names.get(&id).map(String::as_str)
    }

    /// Highest pool id ever given out.
    pub fn pool_max(&self) -> i32 {
        self.pool_max
    }

    /// One more than the highest OSD id.
    pub fn max_osd(&self) -> usize {
        self.states.len()
    }

    /// How many OSDs exist.
    pub fn osd_count(&self) -> usize {
        self.states
            .iter()
            .filter(|s| *s & state::EXISTS != 0)
            .count()
    }

    pub fn up_osd_count(&self) -> usize {
        let up = state::EXISTS | state::UP;
        self.states.iter().filter(|s| *s & up == up).count()
    }

    /// Bits of [`osd::state`]; none for an id out of range.
    #[inline]
    pub fn osd_state(&self, id: i32) -> u32 {
        index(id)
            .and_then(|i| self.states.get(i))
            .copied()
            .unwrap_or(0)
    }

    #[inline]
    pub fn exists(&self, id: i32) -> bool {
        self.osd_state(id) & state::EXISTS != 0
    }

    #[inline]
    pub fn is_up(&self, id: i32) -> bool {
        let up = state::EXISTS | state::UP;
        self.osd_state(id) & up == up
    }

    /// Not there, or of weight 0.
    pub fn is_out(&self, id: i32) -> bool {
        !self.exists(id) || self.weight(id) == Some(0)
    }

    /// In/out weight, [`osd::IN`] being wholly in.
    #[inline]
    pub fn weight(&self, id: i32) -> Option<u32> {
        self.weights.get(index(id)?).copied()
    }

    pub fn primary_affinity(&self, id: i32) -> Option<u32> {
        let i = index(id).filter(|i| *i < self.max_osd())?;
        Some(match &self.affinity {
            Some(affinity) => affinity[i],
            None => osd::MAX_PRIMARY_AFFINITY,
        })
    }

    /// Addresses and history of an OSD below `max_osd`.
    #[inline]
    pub fn osd(&self, id: i32) -> Option<&Osd> {
        self.osds.get(index(id)?).map(|o| &**o)
    }

    /// Where clients reach an OSD.
    pub fn osd_addrs(&self, id: i32) -> Option<&EntityAddrVec> {
        Some(&self.osd(id)?.client_addrs)
    }

    /// Features of an OSD's messenger, as it told at boot.
    pub fn osd_features(&self, id: i32) -> u64 {
        self.osd(id).map_or(0, |o| o.xinfo.features)
    }

    pub fn crush(&self) -> &crush::Map {
        &self.crush
    }

    pub fn crush_version(&self) -> u32 {
        self.crush_version
    }

    pub fn erasure_code_profile(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.erasure_code_profiles.get(name)
    }

    pub fn erasure_code_profiles(&self) -> &BTreeMap<String, BTreeMap<String, String>> {
        &self.erasure_code_profiles
    }

    pub fn blocklist(&self) -> &Blocklist {
        &self.blocklist
    }

    /// Whether OSDs refuse the entity at these addresses.
    pub fn is_blocklisted(&self, addrs: &EntityAddrVec) -> bool {
        self.blocklist.contains_any(addrs)
    }

    /// Snapshots removed in this very epoch, by pool.
    pub fn new_removed_snaps(&self) -> &BTreeMap<i64, SnapIntervals> {
        &self.new_removed_snaps
    }

    /// Snapshots removed and not yet trimmed, by pool.
    pub fn removed_snaps_queue(&self) -> &BTreeMap<i64, SnapIntervals> {
        &self.removed_snaps_queue
    }

    /// Number of the oldest release the OSDs may be of; see [`super::release`].
    pub fn require_osd_release(&self) -> u8 {
        self.require_osd_release
    }

    /// Number of the oldest release clients may be of.
    pub fn require_min_compat_client(&self) -> u8 {
        self.require_min_compat_client
    }

    pub fn nearfull_ratio(&self) -> f32 {
        self.nearfull_ratio
    }

    pub fn full_ratio(&self) -> f32 {
        self.full_ratio
    }

    pub fn backfillfull_ratio(&self) -> f32 {
        self.backfillfull_ratio
    }

    pub fn stretch(&self) -> Stretch {
        self.stretch
    }

    /// PGs that are served elsewhere for the time being.
    pub fn pg_temp(&self) -> &BTreeMap<Pg, Vec<i32>> {
        &self.pg_temp
    }

    pub fn primary_temp(&self) -> &BTreeMap<Pg, i32> {
        &self.primary_temp
    }

    pub fn pg_upmap(&self) -> &BTreeMap<Pg, Vec<i32>> {
        &self.pg_upmap
    }

    pub fn pg_upmap_items(&self) -> &BTreeMap<Pg, Vec<(i32, i32)>> {
        &self.pg_upmap_items
    }

    pub fn pg_upmap_primary(&self) -> &BTreeMap<Pg, i32> {
        &self.pg_upmap_primary
    }
}

#[inline]
pub(super) fn index(id: i32) -> Option<usize> {
    usize::try_from(id).ok()
}
