//! What shards and the background share: how far things are, and how much is under way.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use crate::osd::store::{Result, Seq, StoreError};
use crate::osdmap::Pg;

use super::db::Db;
use super::journal::Record;
use super::op::Changes;
use super::row::PgRow;
use super::vfs::Vfs;
use super::{Options, lock};

/// Called when something of a shard has become durable.
pub(super) type Wake = Box<dyn Fn() + Send + Sync>;

/// Who has no room to go on, as bits of [`Core::full`].
pub(super) const JOURNAL: u8 = 1;
pub(super) const FILES: u8 = 2;
pub(super) const DATABASE: u8 = 4;
/// How long they wait before they try again.
pub(super) const AGAIN: Duration = Duration::from_millis(200);

/// For the committer.
#[derive(Debug)]
pub(super) enum Order {
    Commit(Record),
    Close,
}

pub(super) struct Core {
    /// For messages.
    pub(super) name: String,
    pub(super) vfs: Arc<dyn Vfs>,
    pub(super) options: Options,
    pub(super) db: Db,
    /// The number that the next transaction gets.
    pub(super) next: AtomicU64,
    /// The id that the next object, file or pg gets.
    pub(super) next_id: AtomicU64,
    /// In the journal; in the files, too; in the database, too.
    pub(super) committed: AtomicU64,
    pub(super) applied: AtomicU64,
    pub(super) checkpointed: AtomicU64,
    /// Bytes on their way to the files, and to the next checkpoints.
    pub(super) unapplied: AtomicU64,
    pub(super) unchecked: AtomicU64,
    /// Bytes that files will take when they are copied, before their first change.
    pub(super) copying: AtomicU64,
    /// Room on the disk, as last seen.
    pub(super) free: AtomicU64,
    /// Of what is acknowledged or will be, something waits for room on the disk.
    pub(super) full: AtomicU8,
    /// Nobody waits for room any more.
    pub(super) closing: AtomicBool,
    pub(super) failure: OnceLock<String>,
    pub(super) orders: Sender<Order>,
    pub(super) wakes: Mutex<Vec<Wake>>,
    /// Pgs that no shard has.
    pub(super) pgs: Mutex<BTreeMap<Pg, PgRow>>,
    progress: (Mutex<()>, Condvar),
    waiting: AtomicUsize,
    /// In tests, the background is a machine that is turned by hand.
    #[cfg(any(test, feature = "testing"))]
    pub(super) machine: Mutex<Option<super::pipeline::Machine>>,
}

impl Core {
    pub(super) fn new(
        name: String,
        vfs: Arc<dyn Vfs>,
        options: Options,
        db: Db,
        last: Seq,
        next_id: u64,
        orders: Sender<Order>,
    ) -> Core {
        Core {
            name,
            vfs,
            options,
            db,
            next: AtomicU64::new(last + 1),
            next_id: AtomicU64::new(next_id),
            committed: AtomicU64::new(last),
            applied: AtomicU64::new(last),
            checkpointed: AtomicU64::new(last),
            unapplied: AtomicU64::new(0),
            unchecked: AtomicU64::new(0),
            copying: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX),
            full: AtomicU8::new(0),
            closing: AtomicBool::new(false),
            failure: OnceLock::new(),
            orders,
            wakes: Mutex::default(),
            pgs: Mutex::default(),
            progress: Default::default(),
            waiting: AtomicUsize::new(0),
            #[cfg(any(test, feature = "testing"))]
            machine: Mutex::default(),
        }
    }

    /// From now on nothing is acknowledged: what is on the disk may differ from what we think.
    pub(super) fn fail(&self, error: &StoreError) {
        if self.failure.set(error.to_string()).is_ok() {
            tracing::error!("the store {} stops: {error}", self.name);
        }
        self.moved();
        for wake in lock(&self.wakes).iter() {
            wake();
        }
    }

    pub(super) fn alive(&self) -> Result<()> {
        match self.failure.get() {
            None => Ok(()),
            Some(why) => Err(StoreError::Stopped(why.clone())),
        }
    }

    /// Whether what failed is to wait for room. Until then no write is taken.
    pub(super) fn hold(&self, who: u8, error: &StoreError) -> bool {
        if !error.is_full() || self.closing.load(Ordering::Acquire) {
            return false;
        }
        if self.full.fetch_or(who, Ordering::AcqRel) == 0 {
            tracing::warn!(
                "the store {} takes no more writes until there is room: {error}",
                self.name
            );
        }
        // Whoever waits for progress is to look again.
        self.moved();
        true
    }

    /// There was room.
    pub(super) fn go_on(&self, who: u8) {
        if self.full.load(Ordering::Relaxed) & who != 0
            && self.full.fetch_and(!who, Ordering::AcqRel) == who
        {
            tracing::info!("the store {} takes writes again", self.name);
        }
    }

    fn no_room(&self) -> StoreError {
        StoreError::Io {
            what: format!("write to {}", self.name),
            source: io::ErrorKind::StorageFull.into(),
        }
    }

    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn look_for_room(&self) -> io::Result<()> {
        self.free.store(self.vfs.free()?, Ordering::Relaxed);
        Ok(())
    }

    /// Waits while too much is under way, and refuses what the disk might not hold. Everything that
    /// is acknowledged must find its place later: so room is kept for all of it, and then some.
    /// Where that was not enough, what makes no data is taken as long as the journal takes it.
    pub(super) fn admit(&self, bytes: u64, grows: bool) -> Result<()> {
        self.alive()?;
        let options = &self.options;
        let full = self.full.load(Ordering::Acquire);
        if full & JOURNAL != 0 || (grows && full != 0) {
            return Err(self.no_room());
        }
        if grows {
            let full = || {
                let under_way =
                    self.unapplied.load(Ordering::Relaxed) + self.copying.load(Ordering::Relaxed);
                self.free.load(Ordering::Relaxed) < bytes + under_way + options.reserve
            };
            // What was seen may be old.
            if full() {
                self.look_for_room()
                    .map_err(super::io_error("ask for free space".to_owned()))?;
                if full() {
                    return Err(self.no_room());
                }
            }
        }
        if self.wait_for_turn()? {
            Ok(())
        } else {
            Err(self.no_room())
        }
    }

    /// For changes that are not a client's, few and small: they are taken on a full disk, too.
    pub(super) fn admit_own(&self) -> Result<()> {
        self.alive()?;
        self.wait_for_turn().map(drop)
    }

    /// Waits while too much is under way; false when that is because of a full disk.
    fn wait_for_turn(&self) -> Result<bool> {
        let options = &self.options;
        let ready = |core: &Core| {
            core.unapplied.load(Ordering::Relaxed) < options.unapplied
                && core.unchecked.load(Ordering::Relaxed) < options.journal
        };
        if !ready(self) {
            self.wait(|core| ready(core) || core.full.load(Ordering::Acquire) != 0)?;
        }
        Ok(ready(self))
    }

    /// Hands a transaction with an already taken number to the committer.
    pub(super) fn submit(&self, seq: Seq, shard: usize, changes: Changes) -> Result<()> {
        let record = Record::new(seq, shard, changes);
        self.unapplied.fetch_add(record.size(), Ordering::Relaxed);
        self.unchecked.fetch_add(record.size(), Ordering::Relaxed);
        self.copying
            .fetch_add(record.changes.copied, Ordering::Relaxed);
        self.orders
            .send(Order::Commit(record))
            .map_err(|_| match self.alive() {
                Err(e) => e,
                Ok(()) => StoreError::Stopped("it was closed".to_owned()),
            })
    }

    /// Something got further.
    pub(super) fn moved(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.progress.0));
            self.progress.1.notify_all();
        }
    }

    /// Blocks until the background has got that far.
    pub(super) fn wait(&self, until: impl Fn(&Core) -> bool) -> Result<()> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(machine) = lock(&self.machine).as_mut() {
            while !until(self) {
                self.alive()?;
                machine.turn();
            }
            return Ok(());
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.progress.0);
        let result = loop {
            if until(self) {
                break Ok(());
            }
            if let Err(e) = self.alive() {
                break Err(e);
            }
            // With a limit, as a wake-up may fall between the look and the wait.
            let waited = self
                .progress
                .1
                .wait_timeout(guard, Duration::from_millis(50));
            guard = match waited {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }
}
