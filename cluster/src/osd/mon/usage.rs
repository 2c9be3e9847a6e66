//! How full the OSDs are, as they report it.

use std::collections::BTreeMap;

/// What one OSD holds of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUsage {
    /// Heads and clones.
    pub objects: u64,
    pub clones: u64,
    pub bytes: u64,
    pub omap_bytes: u64,
    pub read_ops: u64,
    pub read_bytes: u64,
    pub write_ops: u64,
    pub write_bytes: u64,
}

impl PoolUsage {
    fn add(&mut self, other: &PoolUsage) {
        self.objects += other.objects;
        self.clones += other.clones;
        self.bytes += other.bytes;
        self.omap_bytes += other.omap_bytes;
        self.read_ops += other.read_ops;
        self.read_bytes += other.read_bytes;
        self.write_ops += other.write_ops;
        self.write_bytes += other.write_bytes;
    }
}

/// One OSD's report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OsdUsage {
    /// Of its store, in bytes.
    pub total: u64,
    pub used: u64,
    pub pools: BTreeMap<i64, PoolUsage>,
}

/// The newest report of each OSD.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    pub(super) osds: BTreeMap<i32, OsdUsage>,
    /// OSDs share one store: its size counts once.
    pub(super) shared: bool,
}

impl Usage {
    pub(super) fn pool(&self, id: i64) -> PoolUsage {
        let mut sum = PoolUsage::default();
        for osd in self.osds.values() {
            if let Some(pool) = osd.pools.get(&id) {
                sum.add(pool);
            }
        }
        sum
    }

    pub(super) fn total(&self) -> u64 {
        self.capacity(|o| o.total)
    }

    pub(super) fn used(&self) -> u64 {
        self.capacity(|o| o.used)
    }

    pub(super) fn available(&self) -> u64 {
        self.total().saturating_sub(self.used())
    }

    fn capacity(&self, of: impl Fn(&OsdUsage) -> u64) -> u64 {
        let all = self.osds.values().map(of);
        match self.shared {
            true => all.max().unwrap_or(0),
            false => all.fold(0, u64::saturating_add),
        }
    }
}
