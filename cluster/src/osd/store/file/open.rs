//! Making a store, and finding it again as a crash has left it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, mpsc};

use crate::osd::store::{Result, StoreError};

use super::core::Core;
use super::db::{self, Db, Meta};
use super::files;
use super::journal::{self, Journal, Shelf};
use super::op;
use super::pipeline::{Applier, Broken, Checkpointer, Checkpoints, Committer, Hands, Machine};
use super::vfs::{File, Vfs};
use super::{Options, io_error, lock};

/// Its presence says that the store was made to the end.
const FORMAT: &str = "format";
const NEW_FORMAT: &str = "format.new";
const LOCK: &str = "lock";
const TITLE: &str = "ublk-rbd store ";
const VERSION: u32 = 1;

pub(super) struct Opened {
    pub(super) core: Arc<Core>,
    pub(super) machine: Machine,
    pub(super) lock: Arc<dyn File>,
}

fn refused(name: &str, why: impl std::fmt::Display) -> StoreError {
    StoreError::Refused(format!("{name} {why}"))
}

pub(super) fn open(name: String, vfs: Arc<dyn Vfs>, options: Options) -> Result<Opened> {
    let error = || io_error(format!("open {name}"));
    let names = vfs.list("").map_err(error())?;
    let ours = [
        FORMAT,
        NEW_FORMAT,
        LOCK,
        db::FILE,
        journal::FOLDER,
        files::FOLDER,
    ];
    let made = names.iter().any(|n| n == FORMAT);
    if !made && let Some(other) = names.iter().find(|n| !ours.contains(&n.as_str())) {
        return Err(refused(
            &name,
            format!("is not a store: it has {other:?} in it"),
        ));
    }
    let guard = vfs.create(LOCK).map_err(error())?;
    if !guard.try_lock().map_err(error())? {
        return Err(refused(&name, "is in use by another process"));
    }
    if made {
        check_version(&name, &*vfs)?;
        // Whoever made it may have died just before doing this.
        vfs.sync_dir("").map_err(error())?;
    } else {
        make(&*vfs, &options)?;
    }

    let file = vfs.open(db::FILE).map_err(error())?;
    let db = Db::open(file, options.cache)?;
    let meta = recover(&*vfs, &vfs, &db, &options)?;

    let shelf: Arc<Mutex<Shelf>> = Arc::default();
    let boot = meta.boot as u32;
    let size = options.segment;
    let journal = Journal::start(Arc::clone(&vfs), meta.store, boot, size, Arc::clone(&shelf))
        .map_err(error())?;

    let (orders, taken) = mpsc::channel();
    let (jobs, todo) = mpsc::channel();
    let (batches, full) = mpsc::channel();
    let pgs = db.pgs()?;
    let core = Arc::new(Core::new(
        name,
        Arc::clone(&vfs),
        options,
        db,
        meta.checkpoint,
        meta.next_id,
        orders,
    ));
    *lock(&core.pgs) = pgs;
    core.look_for_room()
        .map_err(io_error("ask for free space".to_owned()))?;
    let busy = Arc::new(AtomicBool::new(false));
    let committer = Committer {
        core: Arc::clone(&core),
        orders: taken,
        journal,
        jobs: jobs.clone(),
        early: BTreeMap::new(),
        group: Vec::new(),
        closing: false,
    };
    let applier = Applier {
        core: Arc::clone(&core),
        jobs: todo,
        hands: Hands::new(Arc::clone(&vfs), core.options.open_files, false),
        checkpoints: Some(batches),
        busy: Arc::clone(&busy),
        backlog: VecDeque::new(),
        since: None,
        written: 0,
        carried: 0,
        stuck: false,
        closing: false,
    };
    let checkpointer = Checkpointer {
        core: Arc::clone(&core),
        batches: full,
        jobs,
        checkpoints: Checkpoints {
            vfs,
            meta,
            unlinked: Vec::new(),
        },
        shelf,
        busy,
        pending: None,
    };
    Ok(Opened {
        core,
        machine: Machine {
            committer,
            applier,
            checkpointer,
        },
        lock: guard,
    })
}

fn check_version(name: &str, vfs: &dyn Vfs) -> Result<()> {
    let mut text = [0; 64];
    let n = vfs
        .open(FORMAT)
        .and_then(|file| file.read_at(&mut text, 0))
        .map_err(io_error(format!("read {name}/{FORMAT}")))?;
    let text = String::from_utf8_lossy(&text[..n]);
    match text.trim_end().strip_prefix(TITLE).map(str::parse::<u32>) {
        Some(Ok(VERSION)) => Ok(()),
        Some(Ok(other)) => Err(refused(
            name,
            format!("has format {other}, and this program knows format {VERSION}"),
        )),
        _ => Err(refused(
            name,
            format!("is not a store: its file {FORMAT:?} is another program's"),
        )),
    }
}

/// Makes an empty store, or again one whose making was interrupted.
fn make(vfs: &dyn Vfs, options: &Options) -> Result<()> {
    let mut seed = [0; 8];
    crate::random_seed(&mut seed).map_err(|e| StoreError::Io {
        what: "draw a number for the store".to_owned(),
        source: io::Error::other(e),
    })?;
    let error = || io_error("make the store".to_owned());
    vfs.create_dir(journal::FOLDER).map_err(error())?;
    vfs.create_dir(files::FOLDER).map_err(error())?;
    for folder in 0..=u8::MAX {
        vfs.create_dir(&files::folder_path(folder))
            .map_err(error())?;
    }
    vfs.sync_dir(files::FOLDER).map_err(error())?;
    if vfs.open(db::FILE).is_ok() {
        vfs.remove(db::FILE).map_err(error())?;
    }
    let file = vfs.create(db::FILE).map_err(error())?;
    let meta = Meta {
        store: u64::from_le_bytes(seed),
        boot: 0,
        checkpoint: 0,
        next_id: 1,
    };
    let db = Db::open(Arc::clone(&file), options.cache)?;
    db.format(&meta)?;
    drop(db);
    file.sync().map_err(error())?;
    let file = vfs.create(NEW_FORMAT).map_err(error())?;
    file.set_len(0).map_err(error())?;
    file.write_at(format!("{TITLE}{VERSION}\n").as_bytes(), 0)
        .map_err(error())?;
    file.sync().map_err(error())?;
    vfs.sync_dir("").map_err(error())?;
    vfs.rename(NEW_FORMAT, FORMAT).map_err(error())?;
    vfs.sync_dir("").map_err(error())
}

/// Carries the journal out from the last checkpoint on, makes the outcome durable, and counts the
/// opening.
fn recover(vfs: &dyn Vfs, shared: &Arc<dyn Vfs>, db: &Db, options: &Options) -> Result<Meta> {
    let meta = db.meta()?;
    let mut checkpoints = Checkpoints {
        vfs: Arc::clone(shared),
        meta,
        unlinked: Vec::new(),
    };
    let mut hands = Hands::new(Arc::clone(shared), options.open_files, true);
    let boot = u32::try_from(meta.boot)
        .map_err(|_| StoreError::Damaged("the store was opened too often".to_owned()))?;
    let write = |checkpoints: &mut Checkpoints, hands: &mut Hands| {
        checkpoints.write(db, std::mem::take(&mut hands.batch))
    };
    journal::replay(vfs, meta.store, boot, meta.checkpoint, |seq, record| {
        // Nothing comes behind a move in one batch.
        if hands.batch.moves.is_some() || hands.batch.bytes > options.journal / 4 {
            write(&mut checkpoints, &mut hands)?;
        }
        op::each::<Broken>(record, |op| Ok(hands.apply(&op)?))?;
        hands.finish(seq, record.len() as u64);
        Ok(())
    })?;
    write(&mut checkpoints, &mut hands)?;
    // Only now: the database may have been read as a process left it that died before it synced.
    checkpoints.unlink(db.doomed()?)?;
    // By itself, so that everything of the last run is in before its journal is void.
    checkpoints.meta.boot += 1;
    write(&mut checkpoints, &mut hands)?;
    Ok(checkpoints.meta)
}
