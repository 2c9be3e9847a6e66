//! What happens to a transaction behind the shards' backs, in three steps, a thread for each:
//! the committer makes it durable in the journal, the applier brings data into files, and now and
//! then a checkpoint brings rows into the database and lets go of journal and files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::codec::DecodeError;
use crate::osd::store::{Result, Seq, StoreError};

use super::batch::Batch;
use super::core::{AGAIN, Core, DATABASE, FILES, JOURNAL, Order};
use super::db::Meta;
use super::files::{self, Files};
use super::journal::{Journal, Record, Shelf};
use super::op::Op;
use super::vfs::{self, File, Vfs};
use super::{io_error, lock};

/// For the applier.
#[derive(Debug)]
pub(super) enum Job {
    Apply(Vec<Record>),
    /// A checkpoint is done.
    Idle,
    Close,
}

/// More files than this are synced all at once.
const FEW_FILES: usize = 32;

pub(super) struct Committer {
    pub(super) core: Arc<Core>,
    pub(super) orders: Receiver<Order>,
    pub(super) journal: Journal,
    pub(super) jobs: Sender<Job>,
    /// Taken from the queue before a transaction with a lower number: shards draw their numbers
    /// first and hand in the transaction a moment later.
    pub(super) early: BTreeMap<Seq, Record>,
    /// Next to be committed. They stay here while there is no room for them.
    pub(super) group: Vec<Record>,
    pub(super) closing: bool,
}

impl Committer {
    pub(super) fn run(mut self) {
        while !self.closing {
            let patience = match self.group.is_empty() {
                true => Duration::MAX,
                false => AGAIN,
            };
            match self.orders.recv_timeout(patience) {
                Ok(order) => self.take(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if !self.turn() {
                break;
            }
        }
        let _ = self.jobs.send(Job::Close);
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Commit(record) => {
                self.early.insert(record.seq, record);
            }
            Order::Close => self.closing = true,
        }
    }

    /// Commits all that is there as one group; returns whether to go on.
    pub(super) fn turn(&mut self) -> bool {
        while let Ok(order) = self.orders.try_recv() {
            self.take(order);
        }
        let before = self.core.committed.load(Ordering::Relaxed);
        let mut next = before + 1 + self.group.len() as u64;
        while let Some(record) = self.early.remove(&next) {
            self.group.push(record);
            next += 1;
        }
        if self.group.is_empty() {
            return true;
        }
        if self.core.alive().is_err() {
            return false;
        }
        let mut durable = before;
        let done = self.journal.append(&self.group, &mut durable);
        let group: Vec<Record> = self.group.drain(..(durable - before) as usize).collect();
        if !group.is_empty() && !self.tell(group, durable) {
            return false;
        }
        match done.map_err(io_error("write the journal".to_owned())) {
            Ok(()) => self.core.go_on(JOURNAL),
            Err(e) if self.core.hold(JOURNAL, &e) => {}
            Err(e) => {
                self.core.fail(&e);
                return false;
            }
        }
        true
    }

    /// These are durable, up to `last`.
    fn tell(&self, group: Vec<Record>, last: Seq) -> bool {
        self.core.committed.store(last, Ordering::Release);
        let shards: BTreeSet<usize> = group.iter().map(|record| record.shard).collect();
        let wakes = lock(&self.core.wakes);
        for wake in shards.iter().filter_map(|shard| wakes.get(*shard)) {
            wake();
        }
        drop(wakes);
        self.core.moved();
        self.jobs.send(Job::Apply(group)).is_ok()
    }
}

/// Brings changes of files into the files, and collects the rest for a checkpoint.
pub(super) struct Hands {
    vfs: Arc<dyn Vfs>,
    files: Files,
    pub(super) batch: Batch,
    /// Files that are there may have been made by a process that died before it synced their names.
    recovering: bool,
}

impl Hands {
    pub(super) fn new(vfs: Arc<dyn Vfs>, open_files: usize, recovering: bool) -> Hands {
        Hands {
            vfs,
            files: Files::new(open_files),
            batch: Batch::default(),
            recovering,
        }
    }

    fn file(&mut self, id: u64) -> io::Result<&dyn File> {
        let (file, made) = self.files.make(&*self.vfs, id)?;
        self.batch.files.insert(id);
        if made || self.recovering {
            self.batch.folders.insert(files::folder(id));
        }
        Ok(file)
    }

    /// Carries a change out; recovery does nothing but this.
    pub(super) fn apply(&mut self, op: &Op<'_>) -> Result<()> {
        self.change_file(op)?;
        self.batch.add(op);
        Ok(())
    }

    /// May be done again after it has failed.
    fn change_file(&mut self, op: &Op<'_>) -> Result<()> {
        let done = match op {
            Op::Write { file, offset, data } => {
                self.file(*file).and_then(|f| f.write_at(data, *offset))
            }
            Op::Zero {
                file,
                offset,
                length,
            } => self.file(*file).and_then(|f| f.punch(*offset, *length)),
            Op::Truncate { file, size } => self.file(*file).and_then(|f| {
                if f.len()? > *size {
                    f.set_len(*size)?;
                }
                Ok(())
            }),
            Op::Copy { from, to, ranges } => self.copy(*from, *to, ranges),
            Op::Unref(file) => {
                self.files.forget(*file);
                Ok(())
            }
            Op::RemovePg { .. } => {
                self.files.clear();
                Ok(())
            }
            _ => Ok(()),
        };
        done.map_err(io_error("write an object's file".to_owned()))
    }

    fn copy(&mut self, from: u64, to: u64, ranges: &[(u64, u64)]) -> io::Result<()> {
        let target = self.file(to)?;
        target.set_len(0)?;
        if ranges.is_empty() {
            return Ok(());
        }
        let source = self.vfs.open(&files::path(from))?;
        let target = self.file(to)?;
        for (offset, length) in ranges {
            vfs::copy(&*source, target, *offset, *length)?;
        }
        Ok(())
    }

    /// Notes that all changes of a transaction have been handed in.
    pub(super) fn finish(&mut self, seq: Seq, bytes: u64) {
        self.batch.last = seq;
        self.batch.bytes += bytes;
    }
}

/// What of a file's past is not settled yet, and what the database says of the store.
pub(super) struct Checkpoints {
    pub(super) vfs: Arc<dyn Vfs>,
    pub(super) meta: Meta,
    /// Removed from their folders, perhaps not durably.
    pub(super) unlinked: Vec<u64>,
}

impl Checkpoints {
    /// Makes a batch durable: first the files, then the rows and with them the number from which
    /// the journal is needed; only then may files go that no row names any more.
    pub(super) fn write(&mut self, db: &super::db::Db, mut batch: Batch) -> Result<()> {
        let sync = || io_error("sync objects' files".to_owned());
        batch
            .folders
            .extend(self.unlinked.iter().map(|id| files::folder(*id)));
        if batch.files.len() + batch.folders.len() > FEW_FILES {
            self.vfs.sync_all().map_err(sync())?;
        } else {
            for id in &batch.files {
                let file = self.vfs.open(&files::path(*id)).map_err(sync())?;
                file.sync().map_err(sync())?;
            }
            for folder in &batch.folders {
                let path = files::folder_path(*folder);
                self.vfs.sync_dir(&path).map_err(sync())?;
            }
        }
        let meta = Meta {
            checkpoint: batch.last.max(self.meta.checkpoint),
            next_id: batch.next_id.max(self.meta.next_id),
            ..self.meta
        };
        let doomed = db.commit(&batch, &meta, &self.unlinked)?;
        self.meta = meta;
        self.unlink(doomed)
    }

    pub(super) fn unlink(&mut self, doomed: Vec<u64>) -> Result<()> {
        for id in &doomed {
            match self.vfs.remove(&files::path(*id)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove an object's file".to_owned())(e));
                }
                _ => {}
            }
        }
        self.unlinked = doomed;
        Ok(())
    }
}

pub(super) struct Applier {
    pub(super) core: Arc<Core>,
    pub(super) jobs: Receiver<Job>,
    pub(super) hands: Hands,
    pub(super) checkpoints: Option<Sender<Batch>>,
    /// A checkpoint is being written.
    pub(super) busy: Arc<AtomicBool>,
    pub(super) backlog: VecDeque<Record>,
    /// When the oldest change of the batch came, and bytes since free space was looked at.
    pub(super) since: Option<Instant>,
    pub(super) written: u64,
    /// Changes of the first record in the backlog that are done, and whether there is no room for
    /// the next one.
    pub(super) carried: usize,
    pub(super) stuck: bool,
    pub(super) closing: bool,
}

/// Data between two looks at the free space.
const LOOK_EVERY: u64 = 16 << 20;

impl Applier {
    pub(super) fn run(mut self) {
        while self.checkpoints.is_some() {
            let patience = match self.since {
                _ if self.stuck => AGAIN,
                Some(_) => Duration::from_millis(500),
                None => Duration::MAX,
            };
            let job = match self.jobs.recv_timeout(patience) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !self.turn(job) {
                return;
            }
        }
    }

    /// Returns whether to go on.
    pub(super) fn turn(&mut self, job: Option<Job>) -> bool {
        match job {
            Some(Job::Apply(records)) => self.backlog.extend(records),
            Some(Job::Close) => self.closing = true,
            Some(Job::Idle) | None => {}
        }
        if let Err(e) = self.work() {
            self.core.fail(&e);
        }
        self.core.alive().is_ok()
    }

    fn work(&mut self) -> Result<()> {
        self.stuck = false;
        loop {
            // Nothing comes behind a move in one batch.
            if !self.stuck
                && self.hands.batch.moves.is_none()
                && let Some(record) = self.backlog.pop_front()
            {
                match self.apply(&record) {
                    Err(e) if self.core.hold(FILES, &e) => {
                        self.backlog.push_front(record);
                        self.stuck = true;
                    }
                    done => done?,
                }
                continue;
            }
            // A checkpoint may make room: it removes files.
            if !(self.stuck || self.due()) || self.busy.load(Ordering::Acquire) {
                break;
            }
            self.since = None;
            // One without a whole record may name files to be synced all the same.
            if !self.hands.batch.is_empty() {
                let batch = std::mem::take(&mut self.hands.batch);
                self.busy.store(true, Ordering::Release);
                if let Some(checkpoints) = &self.checkpoints {
                    let _ = checkpoints.send(batch);
                }
            }
            if self.stuck || self.backlog.is_empty() {
                break;
            }
        }
        let idle = !self.busy.load(Ordering::Acquire) && self.hands.batch.is_empty();
        if self.closing && self.backlog.is_empty() && idle {
            self.checkpoints = None;
        }
        Ok(())
    }

    fn due(&self) -> bool {
        let batch = &self.hands.batch;
        self.closing
            || batch.moves.is_some()
            || batch.bytes > self.core.options.journal / 4
            || self
                .since
                .is_some_and(|since| since.elapsed() > self.core.options.interval)
    }

    fn apply(&mut self, record: &Record) -> Result<()> {
        if self.since.is_none() {
            self.since = Some(Instant::now());
        }
        let hands = &mut self.hands;
        let (before, mut at) = (self.carried, 0);
        record.changes.each::<Broken>(|op| {
            at += 1;
            if at > before {
                hands.change_file(&op)?;
                self.carried = at;
            }
            Ok(())
        })?;
        // Only all of a record may be in a checkpoint.
        let batch = &mut hands.batch;
        record.changes.each::<Broken>(|op| {
            batch.add(&op);
            Ok(())
        })?;
        self.carried = 0;
        self.core.go_on(FILES);
        self.core
            .copying
            .fetch_sub(record.changes.copied, Ordering::Relaxed);
        hands.finish(record.seq, record.size());
        self.core.applied.store(record.seq, Ordering::Release);
        self.core
            .unapplied
            .fetch_sub(record.size(), Ordering::Relaxed);
        self.core.moved();
        self.written += record.size();
        if self.written > LOOK_EVERY {
            self.written = 0;
            self.core
                .look_for_room()
                .map_err(io_error("ask for free space".to_owned()))?;
        }
        Ok(())
    }
}

/// An error of ours, or one in a record.
pub(super) struct Broken(StoreError);

impl From<DecodeError> for Broken {
    fn from(e: DecodeError) -> Broken {
        Broken(StoreError::Damaged(format!("a journal record: {e}")))
    }
}

impl From<StoreError> for Broken {
    fn from(e: StoreError) -> Broken {
        Broken(e)
    }
}

impl From<Broken> for StoreError {
    fn from(e: Broken) -> StoreError {
        e.0
    }
}

pub(super) struct Checkpointer {
    pub(super) core: Arc<Core>,
    pub(super) batches: Receiver<Batch>,
    pub(super) jobs: Sender<Job>,
    pub(super) checkpoints: Checkpoints,
    pub(super) shelf: Arc<Mutex<Shelf>>,
    pub(super) busy: Arc<AtomicBool>,
    /// Waits for room.
    pub(super) pending: Option<Batch>,
}

impl Checkpointer {
    pub(super) fn run(mut self) {
        loop {
            let patience = match self.pending {
                Some(_) => AGAIN,
                None => Duration::MAX,
            };
            match self.batches.recv_timeout(patience) {
                Ok(batch) => self.pending = Some(batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.turn() {
                return;
            }
        }
    }

    /// Returns whether to go on.
    pub(super) fn turn(&mut self) -> bool {
        if self.core.alive().is_err() {
            return false;
        }
        let Some(batch) = self.pending.take() else {
            return true;
        };
        // A commit that finds no room halfway would be the end: the database cannot be used any
        // more then.
        if let Err(e) = self.look_for_room(&batch)
            && self.core.hold(DATABASE, &e)
        {
            self.pending = Some(batch);
            return true;
        }
        self.core.go_on(DATABASE);
        let done = self.checkpoint(batch);
        match &done {
            Ok(()) => self.busy.store(false, Ordering::Release),
            Err(e) => self.core.fail(e),
        }
        self.core.moved();
        // The applier may be gone when the store closes.
        let _ = self.jobs.send(Job::Idle);
        done.is_ok()
    }

    fn look_for_room(&self, batch: &Batch) -> Result<()> {
        let what = || "write the database".to_owned();
        let core = &self.core;
        let free = core.vfs.free().map_err(io_error(what()))?;
        if free < batch.room().min(core.options.reserve / 2) {
            return Err(io_error(what())(io::ErrorKind::StorageFull.into()));
        }
        Ok(())
    }

    fn checkpoint(&mut self, batch: Batch) -> Result<()> {
        let (last, bytes) = (batch.last, batch.bytes);
        self.checkpoints.write(&self.core.db, batch)?;
        self.core.checkpointed.store(last, Ordering::Release);
        self.core.unchecked.fetch_sub(bytes, Ordering::Relaxed);
        let core = &self.core;
        lock(&self.shelf)
            .release(&*core.vfs, last, core.options.segment)
            .map_err(io_error("release the journal".to_owned()))?;
        core.look_for_room()
            .map_err(io_error("ask for free space".to_owned()))
    }
}

/// Stops the store when its thread panics, so that nobody waits for it.
struct Alarm(Arc<Core>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = "a thread of it has panicked".to_owned();
            self.0.fail(&StoreError::Stopped(why));
        }
    }
}

/// All that works behind the shards' backs.
pub(super) struct Machine {
    pub(super) committer: Committer,
    pub(super) applier: Applier,
    pub(super) checkpointer: Checkpointer,
}

impl Machine {
    /// One thread for each of the three.
    pub(super) fn start(self) -> io::Result<Vec<std::thread::JoinHandle<()>>> {
        let Machine {
            committer,
            applier,
            checkpointer,
        } = self;
        let core = Arc::clone(&committer.core);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let alarm = Alarm(Arc::clone(&core));
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    let _alarm = alarm;
                    run();
                })
        };
        Ok(vec![
            spawn("store-commit", Box::new(move || committer.run()))?,
            spawn("store-apply", Box::new(move || applier.run()))?,
            spawn("store-check", Box::new(move || checkpointer.run()))?,
        ])
    }
}

/// In tests it is turned by hand.
#[cfg(any(test, feature = "testing"))]
impl Machine {
    pub(super) fn commit(&mut self) {
        self.committer.turn();
    }

    pub(super) fn apply(&mut self) {
        let job = self.applier.jobs.try_recv();
        self.applier.turn(job.ok());
    }

    pub(super) fn checkpoint(&mut self) {
        if let Ok(batch) = self.checkpointer.batches.try_recv() {
            self.checkpointer.pending = Some(batch);
        }
        self.checkpointer.turn();
    }

    pub(super) fn turn(&mut self) {
        self.commit();
        self.apply();
        self.checkpoint();
    }
}
