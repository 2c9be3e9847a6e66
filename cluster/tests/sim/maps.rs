//! Every epoch of the cluster map, encoded as monitors encode it, and what OSDs remember of each pg
//! (`pg_history_t`).

use std::sync::Arc;

use cluster::objecter::msg::MOsdMap;
use cluster::osdmap::pool::flag;
use cluster::osdmap::{Incremental, OsdMap, Pg};

/// The pool that the workloads use.
pub(crate) const POOL: i64 = 1;

/// Where a pg is and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PgInfo {
    up: Vec<i32>,
    up_primary: i32,
    pub(crate) acting: Vec<i32>,
    /// -1: nobody serves it.
    pub(crate) primary: i32,
    /// `same_interval_since`.
    pub(crate) interval: u32,
    /// `same_primary_since`.
    pub(crate) primary_since: u32,
    /// `last_epoch_split`.
    pub(crate) split: u32,
    /// The pg that it was split from, and in which epoch.
    pub(crate) parent: Option<(u32, u32)>,
}

struct Epoch {
    map: Arc<OsdMap>,
    inc: Vec<u8>,
    full: Vec<u8>,
    pgs: Vec<PgInfo>,
    /// `last_epoch_marked_full` of the pool's pgs.
    marked_full: u32,
}

pub(crate) struct Maps {
    epochs: Vec<Epoch>,
    first: u32,
    /// The oldest epoch that anybody still has.
    pub(crate) trimmed_to: u32,
    /// `osd_map_message_max`.
    pub(crate) per_message: u32,
}

fn mask(n: u32) -> u32 {
    n.next_power_of_two() - 1
}

/// `ceph_stable_mod`.
fn stable_mod(x: u32, n: u32) -> u32 {
    let mask = mask(n);
    if x & mask < n {
        x & mask
    } else {
        x & (mask >> 1)
    }
}

impl Maps {
    pub(crate) fn new(map: OsdMap) -> Maps {
        let first = map.epoch();
        let mut maps = Maps {
            epochs: Vec::new(),
            first,
            trimmed_to: first,
            per_message: 40,
        };
        maps.add(map, Vec::new());
        maps
    }

    pub(crate) fn newest(&self) -> u32 {
        self.first + self.epochs.len() as u32 - 1
    }

    fn at(&self, epoch: u32) -> &Epoch {
        &self.epochs[(epoch - self.first) as usize]
    }

    pub(crate) fn has(&self, epoch: u32) -> bool {
        (self.first..=self.newest()).contains(&epoch)
    }

    pub(crate) fn map(&self, epoch: u32) -> &Arc<OsdMap> {
        &self.at(epoch).map
    }

    pub(crate) fn latest(&self) -> &Arc<OsdMap> {
        self.map(self.newest())
    }

    pub(crate) fn pg(&self, seed: u32, epoch: u32) -> Option<&PgInfo> {
        self.at(epoch).pgs.get(seed as usize)
    }

    pub(crate) fn pg_num(&self, epoch: u32) -> u32 {
        self.at(epoch).pgs.len() as u32
    }

    pub(crate) fn marked_full(&self, epoch: u32) -> u32 {
        self.at(epoch).marked_full
    }

    /// The pg of a hash.
    pub(crate) fn fold(&self, hash: u32, epoch: u32) -> u32 {
        stable_mod(hash, self.pg_num(epoch))
    }

    /// Makes the next epoch.
    pub(crate) fn commit(&mut self, mut inc: Incremental) {
        let now = self.latest();
        inc.fsid = now.fsid();
        inc.epoch = now.epoch() + 1;
        let bytes = inc.encode(now.require_osd_release());
        let map = now.next(&inc).expect("it follows");
        self.add(map, bytes);
    }

    fn add(&mut self, map: OsdMap, inc: Vec<u8>) {
        let epoch = map.epoch();
        let before = self.epochs.last();
        let pool = map.pool(POOL).expect("the pool is there");
        let full = pool.has_flag(flag::FULL);
        let marked_full = match before {
            Some(b) if full && !b.map.pool(POOL).is_some_and(|p| p.has_flag(flag::FULL)) => epoch,
            Some(b) => b.marked_full,
            None => 0,
        };
        let pgs = (0..pool.pg_num)
            .map(|seed| pg_info(&map, seed, pool.pg_num, before))
            .collect();
        let full = map.encode();
        self.epochs.push(Epoch {
            map: Arc::new(map),
            inc,
            full,
            pgs,
            marked_full,
        });
    }

    /// CEPH_MSG_OSD_MAP with the newest full map up to `newest`.
    pub(crate) fn full_message(&self, newest: u32) -> Vec<u8> {
        self.encode(Vec::new(), vec![newest], newest)
    }

    /// CEPH_MSG_OSD_MAP that leads on from `from - 1`, or else from the oldest epoch that is kept
    /// (`OSDMonitor::send_incremental`). Returns also the last epoch in it.
    pub(crate) fn message(&self, from: u32, newest: u32) -> (Vec<u8>, u32) {
        let mut full = Vec::new();
        let mut from = from;
        if from <= self.trimmed_to {
            from = self.trimmed_to + 1;
            full.push(self.trimmed_to);
        }
        let last = newest.min(from.saturating_add(self.per_message - 1));
        let front = self.encode((from..=last).collect(), full, newest);
        (front, last.max(from - 1))
    }

    fn encode(&self, incs: Vec<u32>, full: Vec<u32>, newest: u32) -> Vec<u8> {
        let mut front = Vec::new();
        MOsdMap {
            fsid: self.latest().fsid(),
            incrementals: incs.iter().map(|&e| (e, &self.at(e).inc[..])).collect(),
            full: full.iter().map(|&e| (e, &self.at(e).full[..])).collect(),
            trim_lower_bound: self.trimmed_to,
            newest,
        }
        .encode(&mut front);
        front
    }
}

fn pg_info(map: &OsdMap, seed: u32, pg_num: u32, before: Option<&Epoch>) -> PgInfo {
    let epoch = map.epoch();
    let m = map.map_pg(Pg { pool: POOL, seed });
    let mut info = PgInfo {
        up: m.up.to_vec(),
        up_primary: m.up_primary.unwrap_or(-1),
        acting: m.acting.to_vec(),
        primary: m.acting_primary.unwrap_or(-1),
        interval: epoch,
        primary_since: epoch,
        split: 0,
        parent: None,
    };
    let Some(before) = before else {
        return info;
    };
    let old_num = before.pgs.len() as u32;
    let source = stable_mod(seed, old_num);
    let old = &before.pgs[source as usize];
    let is_child = seed >= old_num;
    let splits = is_child || (old_num..pg_num).any(|child| stable_mod(child, old_num) == seed);
    let (was, is) = (before.map.pool(POOL), map.pool(POOL));
    let shape = |p: &cluster::osdmap::Pool| (p.size, p.min_size);
    let same = !splits
        && old.up == info.up
        && old.up_primary == info.up_primary
        && old.acting == info.acting
        && old.primary == info.primary
        && was.map(shape) == is.map(shape);
    if same {
        info.interval = old.interval;
    }
    if old.primary == info.primary {
        info.primary_since = old.primary_since;
    }
    info.split = if splits { epoch } else { old.split };
    info.parent = if is_child {
        Some((source, epoch))
    } else {
        old.parent
    };
    info
}
