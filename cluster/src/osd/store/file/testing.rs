//! Damaged journals and rows, for the fuzzers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::codec::{DecodeError, Put};
use crate::objecter::msg::HObjectRef;
use crate::osd::store::{Store, StoreError};

use super::journal::{self, Journal};
use super::op::{self, Changes};
use super::open::{self, Opened};
use super::row::{self, ObjectRow, PgRow};
use super::shard::FileShard;
use super::sim::Disk;
use super::vfs::Vfs;
use super::{Options, lock};

fn small() -> Options {
    Options {
        segment: 64 << 10,
        journal: 256 << 10,
        unapplied: 1 << 20,
        interval: Duration::from_secs(3600),
        objects: 64,
        open_files: 3,
        cache: 1 << 20,
        reserve: 1 << 20,
    }
}

/// Bytes as rows of each kind. What was written once is written the same way for ever.
pub fn rows(bytes: &[u8]) {
    let mut out = Vec::new();
    if let Ok(row) = ObjectRow::decode(bytes) {
        row.encode(&mut out);
        assert_eq!(ObjectRow::decode(&out), Ok(row));
    }
    if let Ok(row) = PgRow::decode(bytes) {
        out.clear();
        row.encode(&mut out);
        assert_eq!(PgRow::decode(&out), Ok(row));
    }
    if let Ok(entry) = row::decode_log(bytes) {
        out.clear();
        row::encode_log(&entry, &mut out);
        assert_eq!(row::decode_log(&out), Ok(entry));
    }
}

/// Reads a segment of these bytes; `sealed` repairs the checksums that stand where a header and a
/// first record have them.
pub fn replay(bytes: &[u8], sealed: bool) {
    let disk = Disk::new(1);
    let mut segment = vec![0; 8192];
    let (head, body) = bytes.split_at(bytes.len().min(64));
    segment[..head.len()].copy_from_slice(head);
    let body = &body[..body.len().min(4096)];
    segment[4096..4096 + body.len()].copy_from_slice(body);
    if sealed {
        journal::seal(&mut segment);
    }
    let write = || -> std::io::Result<()> {
        disk.create_dir(journal::FOLDER)?;
        let file = disk.create(&format!("{}/00000000", journal::FOLDER))?;
        file.write_at(&segment, 0)
    };
    write().expect("a disk that works");
    let mut last = 0;
    let _ = journal::replay(&disk, 0, 0, 0, |seq, record| {
        assert_eq!(seq, last + 1);
        last = seq;
        op::each::<DecodeError>(record, |_| Ok(())).map_err(|e| StoreError::Damaged(e.to_string()))
    });
}

/// An empty store, with its number and how often it was opened.
fn template() -> (Disk, u64, u32) {
    static MADE: OnceLock<(Disk, u64, u32)> = OnceLock::new();
    let (disk, store, boot) = MADE.get_or_init(|| {
        let disk = Disk::new(1);
        let opened = open::open("sim".to_owned(), Arc::new(disk.clone()), small());
        let opened = opened.expect("a new store");
        let meta = opened.core.db.meta().expect("a new store");
        drop(opened);
        disk.restart(false);
        (disk, meta.store, meta.boot as u32)
    });
    (disk.copy(), *store, *boot)
}

/// Opens a store whose journal has these records, each its changes and the data of their writes,
/// and reads all that it says it has.
pub fn recover(records: &[(&[u8], &[u8])]) {
    let (disk, store, boot) = template();
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let records: Vec<journal::Record> = (1..)
        .zip(records)
        .map(|(seq, (ops, data))| {
            let mut changes = Changes::default();
            changes.ops.put_bytes(ops);
            changes.data.push((*data).into());
            journal::Record::new(seq, 0, changes)
        })
        .collect();
    let mut journal =
        Journal::start(vfs, store, boot, 64 << 10, Arc::default()).expect("a disk that works");
    journal.append(&records, &mut 0).expect("a disk that works");
    drop(journal);
    let Ok(Opened { core, machine, .. }) = open::open("sim".to_owned(), Arc::new(disk), small())
    else {
        return;
    };
    *lock(&core.machine) = Some(machine);
    let mut shard = FileShard::new(Arc::clone(&core), 0, Box::new(|| {}));
    read_all(&mut shard);
    drop(shard);
    // The two hold each other.
    let machine = lock(&core.machine).take();
    drop(machine);
}

fn read_all(shard: &mut FileShard) {
    for pg in shard.pgs() {
        let _ = (shard.pg_state(pg), shard.usage(pg));
        let Ok(page) = shard.list(pg, &HObjectRef::MIN, 100) else {
            continue;
        };
        for object in &page.items {
            let oid = object.as_ref();
            let mut out = Vec::new();
            let _ = shard.info(pg, &oid).map(|i| i.cloned());
            let _ = shard.read(pg, &oid, 0, 1 << 20, &mut out);
            assert!(out.len() <= 1 << 20);
            let _ = shard.extents(pg, &oid, 0, 1 << 20);
            let _ = shard.attrs(pg, &oid);
            let _ = shard.omap_header(pg, &oid);
            let _ = shard.omap_list(pg, &oid, b"", b"", 100);
        }
    }
}
