//! The durable store: objects in sparse files, what is known of them in a database, and a journal
//! in front of both.
//!
//! A transaction is carried out at once in the memory of the shard that has the pg, and its outcome
//! (bytes for files, rows for the database) is handed to the committer. That writes what all
//! shards have handed in as one group to the journal, syncs it, and wakes them: from then on the
//! transaction is durable. Data goes to the files next, and rows go to the database in checkpoints;
//! until then, reads look into the memory of the shard first. After a crash the journal is carried
//! out again from the last checkpoint on. Files and records are described in
//! `docs/store-format.md`.
//!
//! - [`shard`]: the [`Store`](super::Store) of one thread; `apply`: what the steps mean
//! - `journal`, `op`, `batch`: the way of a change to the disk; `pipeline`: the threads on that way
//! - `db`, `row`, `key`, `blocks`: rows of the database; `overlay`: data that is not in files yet
//! - `vfs`, `files`: the file system; `sim`: one that loses power

mod apply;
mod batch;
mod blocks;
mod core;
mod db;
mod files;
mod journal;
mod key;
mod object;
mod op;
mod open;
mod overlay;
mod pg;
mod pipeline;
mod row;
pub mod shard;
#[cfg(any(test, feature = "testing"))]
mod sim;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod vfs;

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Result, StoreError};
use crate::osdmap::Pg;

pub use pg::DetachedPg;
pub use shard::FileShard;

/// Sizes and limits.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of a journal segment.
    pub segment: u64,
    /// Most bytes of transactions that no checkpoint has; one is made at a quarter.
    pub journal: u64,
    /// Most bytes of transactions whose data is not in the files.
    pub unapplied: u64,
    /// How long a change waits for a checkpoint.
    pub interval: Duration,
    /// Objects that each shard remembers.
    pub objects: usize,
    /// Files that each shard, and the applier, has open.
    pub open_files: usize,
    /// Bytes of the database in memory.
    pub cache: usize,
    /// Bytes on the disk that writes leave free for journal and database.
    pub reserve: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment: 32 << 20,
            journal: 256 << 20,
            unapplied: 64 << 20,
            interval: Duration::from_secs(5),
            objects: 65_536,
            open_files: 256,
            cache: 64 << 20,
            reserve: 512 << 20,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes here guard is whole at every moment.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn io_error(what: String) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { what, source }
}

/// An open store, of which each OSD thread takes a [`FileShard`]. Dropping it brings everything to
/// rest; shards that are left refuse writes then.
pub struct FileBackend {
    core: Arc<core::Core>,
    threads: Vec<JoinHandle<()>>,
    /// Held locked.
    _lock: Arc<dyn vfs::File>,
}

impl FileBackend {
    /// Opens the store in `dir`, and makes one where there is nothing.
    pub fn open(dir: &Path, options: Options) -> Result<Arc<FileBackend>> {
        let name = dir.display().to_string();
        let vfs = vfs::Dir::open(dir.to_owned()).map_err(io_error(format!("open {name}")))?;
        let opened = open::open(name, Arc::new(vfs), options)?;
        let threads = opened
            .machine
            .start()
            .map_err(io_error("start threads".to_owned()))?;
        Ok(Arc::new(FileBackend {
            core: opened.core,
            threads,
            _lock: opened.lock,
        }))
    }

    /// The part of an OSD, with the pgs that it had last. `wake` is called, from another thread,
    /// when [`Store::committed`](super::Store::committed) has advanced or the store has stopped.
    pub fn shard(&self, osd: i32, wake: Box<dyn Fn() + Send + Sync>) -> FileShard {
        FileShard::new(Arc::clone(&self.core), osd, wake)
    }

    /// Pgs that no shard has, and the OSDs that had them last.
    pub fn unclaimed(&self) -> Vec<(i32, Pg)> {
        let pgs = lock(&self.core.pgs);
        pgs.iter().map(|(pg, row)| (row.owner, *pg)).collect()
    }

    /// Takes a pg that no shard has, to be attached to one.
    pub fn claim(&self, pg: Pg) -> Option<DetachedPg> {
        let row = lock(&self.core.pgs).remove(&pg)?;
        Some(DetachedPg::new(row))
    }

    /// Why nothing is acknowledged any more.
    pub fn failure(&self) -> Option<&str> {
        self.core.failure.get().map(String::as_str)
    }

    /// Transactions that are durable, in the files, and in the database.
    pub fn progress(&self) -> (u64, u64, u64) {
        let load = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Acquire);
        let core = &self.core;
        (
            load(&core.committed),
            load(&core.applied),
            load(&core.checkpointed),
        )
    }
}

impl Drop for FileBackend {
    fn drop(&mut self) {
        self.core.closing.store(true, Ordering::Release);
        let _ = self.core.orders.send(core::Order::Close);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
