//! Encoded maps, for clients that have older ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::serve::MapHistory;

/// Epochs that are kept (`mon_min_osdmap_epochs`). A client that has an older one gets a full map.
const KEPT: usize = 500;

#[derive(Debug, Clone)]
struct Epoch {
    full: Arc<[u8]>,
    incremental: Option<Arc<[u8]>>,
}

/// The newest epochs, for all OSDs' threads. It is locked when a client lacks a map, never for a
/// request.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<BTreeMap<u32, Epoch>>);

impl History {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Epoch>> {
        // No step under the lock leaves the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, epoch: u32, full: Arc<[u8]>, incremental: Option<Arc<[u8]>>) {
        let mut epochs = self.lock();
        epochs.insert(epoch, Epoch { full, incremental });
        while epochs.len() > KEPT {
            epochs.pop_first();
        }
    }
}

impl MapHistory for History {
    fn full(&self, epoch: u32) -> Option<Arc<[u8]>> {
        self.lock().get(&epoch).map(|e| Arc::clone(&e.full))
    }

    fn incremental(&self, epoch: u32) -> Option<Arc<[u8]>> {
        self.lock().get(&epoch)?.incremental.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_epochs_go() {
        let history = History::default();
        let bytes: Arc<[u8]> = Arc::from([1, 2]);
        for epoch in 1..=KEPT as u32 + 7 {
            let inc = (epoch > 1).then(|| Arc::clone(&bytes));
            history.add(epoch, Arc::clone(&bytes), inc);
        }
        assert!(history.full(7).is_none() && history.incremental(7).is_none());
        assert!(history.full(8).is_some() && history.incremental(8).is_some());
    }
}
