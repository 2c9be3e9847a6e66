//! The metadata database: redb on a file of the store.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use redb::{
    Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, WriteTransaction,
};

use crate::codec::DecodeError;
use crate::osd::store::{LOG_LEN, LogEntry, PgState, Result, Seq, StoreError};
use crate::osdmap::Pg;
use crate::osdmap::objhash::{mask_of, stable_mod};

use super::batch::{Batch, Move, numbered};
use super::key;
use super::row::{ObjectRow, PgRow, add, decode_log, encode_log, subtract};
use super::vfs::File;

pub(super) const FILE: &str = "meta.redb";

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const PGS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pgs");
const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
const PAIRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pairs");
const LOG: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("log");
const REFS: TableDefinition<'_, u64, u64> = TableDefinition::new("refs");
const DOOMED: TableDefinition<'_, u64, ()> = TableDefinition::new("doomed");

/// The numbers that the database keeps of the store itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Meta {
    /// Drawn at random when the store was made.
    pub(super) store: u64,
    /// How often it has been opened.
    pub(super) boot: u64,
    /// Transactions up to this one are in here and in the files.
    pub(super) checkpoint: Seq,
    /// Ids from here on were never used.
    pub(super) next_id: u64,
}

#[derive(Debug)]
struct Backend(Arc<dyn File>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.0.read_at(out, offset)? == out.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(data, offset)
    }
}

pub(super) struct Db(Database);

fn broken(e: impl Into<redb::Error>) -> StoreError {
    match e.into() {
        redb::Error::Corrupted(what) => StoreError::Damaged(format!("{FILE}: {what}")),
        redb::Error::Io(source) => StoreError::Io {
            what: format!("use {FILE}"),
            source,
        },
        other => StoreError::Io {
            what: format!("use {FILE}"),
            source: io::Error::other(other),
        },
    }
}

fn damaged(e: DecodeError) -> StoreError {
    StoreError::Damaged(format!("{FILE}: {e}"))
}

fn pg_key(pg: &Pg) -> [u8; 12] {
    let mut out = [0; 12];
    out[..8].copy_from_slice(&pg.pool.to_be_bytes());
    out[8..].copy_from_slice(&pg.seed.to_be_bytes());
    out
}

/// The end of the keys that begin with a number.
fn behind(number: u64) -> [u8; 8] {
    number.saturating_add(1).to_be_bytes()
}

impl Db {
    pub(super) fn open(file: Arc<dyn File>, cache: usize) -> Result<Db> {
        let mut builder = Database::builder();
        builder.set_cache_size(cache);
        let db = builder.create_with_backend(Backend(file)).map_err(broken)?;
        Ok(Db(db))
    }

    /// Fills a new database.
    pub(super) fn format(&self, meta: &Meta) -> Result<()> {
        let txn = self.begin()?;
        for table in [PGS, OBJECTS, PAIRS] {
            txn.open_table(table).map_err(broken)?;
        }
        txn.open_table(LOG).map_err(broken)?;
        txn.open_table(REFS).map_err(broken)?;
        txn.open_table(DOOMED).map_err(broken)?;
        put_meta(&txn, meta)?;
        txn.commit().map_err(broken)
    }

    fn begin(&self) -> Result<WriteTransaction> {
        let mut txn = self.0.begin_write().map_err(broken)?;
        // A store of any size is open again at once after a crash, and a commit that was reported
        // never depends on a checksum of what it wrote.
        txn.set_quick_repair(true);
        Ok(txn)
    }

    pub(super) fn meta(&self) -> Result<Meta> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(META).map_err(broken)?;
        let get = |name: &str| -> Result<u64> {
            let row = table.get(name).map_err(broken)?;
            let row = row.map(|v| v.value());
            row.ok_or_else(|| StoreError::Damaged(format!("{FILE}: no {name}")))
        };
        Ok(Meta {
            store: get("store")?,
            boot: get("boot")?,
            checkpoint: get("checkpoint")?,
            next_id: get("next_id")?,
        })
    }

    pub(super) fn pgs(&self) -> Result<BTreeMap<Pg, PgRow>> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(PGS).map_err(broken)?;
        let mut out = BTreeMap::new();
        for row in table.iter().map_err(broken)? {
            let (key, value) = row.map_err(broken)?;
            let malformed = || damaged(DecodeError::malformed("pg key"));
            let (pool, seed) = key.value().split_first_chunk().ok_or_else(malformed)?;
            let seed = seed.try_into().map_err(|_| malformed())?;
            let pg = Pg {
                pool: i64::from_be_bytes(*pool),
                seed: u32::from_be_bytes(seed),
            };
            out.insert(pg, PgRow::decode(value.value()).map_err(damaged)?);
        }
        Ok(out)
    }

    pub(super) fn pg(&self, pg: &Pg) -> Result<PgRow> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(PGS).map_err(broken)?;
        let row = table.get(&pg_key(pg)[..]).map_err(broken)?;
        let row = row.ok_or(StoreError::NoPg(*pg))?;
        PgRow::decode(row.value()).map_err(damaged)
    }

    pub(super) fn object(&self, pg: u64, key: &[u8]) -> Result<Option<ObjectRow>> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(OBJECTS).map_err(broken)?;
        let row = table.get(&numbered(pg, key)[..]).map_err(broken)?;
        row.map(|row| ObjectRow::decode(row.value()).map_err(damaged))
            .transpose()
    }

    /// Hands over the keys of a pg's objects in order, from `from` on, while `take` wants more.
    pub(super) fn each_object(
        &self,
        pg: u64,
        from: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<bool>,
    ) -> Result<()> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(OBJECTS).map_err(broken)?;
        let range = table.range(&numbered(pg, from)[..]..&behind(pg)[..]);
        for row in range.map_err(broken)? {
            let (key, _) = row.map_err(broken)?;
            if !take(&key.value()[8..])? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn pair(&self, id: u64, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(PAIRS).map_err(broken)?;
        let row = table.get(&numbered(id, key)[..]).map_err(broken)?;
        Ok(row.map(|row| row.value().to_vec()))
    }

    /// Hands over an object's pairs in order, from `from` on, while `take` wants more.
    pub(super) fn each_pair(
        &self,
        id: u64,
        from: &[u8],
        mut take: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(PAIRS).map_err(broken)?;
        let range = table.range(&numbered(id, from)[..]..&behind(id)[..]);
        for row in range.map_err(broken)? {
            let (key, value) = row.map_err(broken)?;
            if !take(&key.value()[8..], value.value()) {
                break;
            }
        }
        Ok(())
    }

    /// A pg's log by index.
    pub(super) fn log(&self, pg: u64) -> Result<BTreeMap<u64, LogEntry>> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(LOG).map_err(broken)?;
        read_log(&table, pg)
    }

    /// Brings a batch in, durably. `unlinked` are files that are gone for good; what is returned
    /// are those that are to go now.
    pub(super) fn commit(&self, batch: &Batch, meta: &Meta, unlinked: &[u64]) -> Result<Vec<u64>> {
        let txn = self.begin()?;
        let mut doomed = Vec::new();
        pairs(&txn, batch)?;
        objects(&txn, batch)?;
        logs(&txn, batch)?;
        for (file, more) in &batch.refs {
            count(&txn, *file, *more, &mut doomed)?;
        }
        for pg in &batch.removed {
            remove_pg(&txn, *pg, &mut doomed)?;
        }
        let mut table = txn.open_table(PGS).map_err(broken)?;
        for (pg, row) in &batch.pgs {
            let key = pg_key(pg);
            match row {
                Some(row) => table.insert(&key[..], &row[..]).map(drop),
                None => table.remove(&key[..]).map(drop),
            }
            .map_err(broken)?;
        }
        drop(table);
        if let Some(moves) = &batch.moves {
            relocate(&txn, moves)?;
        }
        let mut table = txn.open_table(DOOMED).map_err(broken)?;
        for file in unlinked {
            table.remove(file).map_err(broken)?;
        }
        for file in &doomed {
            table.insert(file, ()).map_err(broken)?;
        }
        drop(table);
        put_meta(&txn, meta)?;
        txn.commit().map_err(broken)?;
        Ok(doomed)
    }

    /// Files that no object has, and that may still be there.
    pub(super) fn doomed(&self) -> Result<Vec<u64>> {
        let txn = self.0.begin_read().map_err(broken)?;
        let table = txn.open_table(DOOMED).map_err(broken)?;
        let rows = table.iter().map_err(broken)?;
        rows.map(|row| Ok(row.map_err(broken)?.0.value())).collect()
    }
}

fn put_meta(txn: &WriteTransaction, meta: &Meta) -> Result<()> {
    let mut table = txn.open_table(META).map_err(broken)?;
    for (name, value) in [
        ("store", meta.store),
        ("boot", meta.boot),
        ("checkpoint", meta.checkpoint),
        ("next_id", meta.next_id),
    ] {
        table.insert(name, value).map_err(broken)?;
    }
    Ok(())
}

fn pairs(txn: &WriteTransaction, batch: &Batch) -> Result<()> {
    let mut table = txn.open_table(PAIRS).map_err(broken)?;
    for id in &batch.bare {
        let range = &id.to_be_bytes()[..]..&behind(*id)[..];
        table.retain_in(range, |_, _| false).map_err(broken)?;
    }
    for (key, value) in &batch.pairs {
        match value {
            Some(value) => table.insert(&key[..], &value[..]).map(drop),
            None => table.remove(&key[..]).map(drop),
        }
        .map_err(broken)?;
    }
    Ok(())
}

fn objects(txn: &WriteTransaction, batch: &Batch) -> Result<()> {
    let mut table = txn.open_table(OBJECTS).map_err(broken)?;
    for (key, row) in &batch.objects {
        match row {
            Some(row) => table.insert(&key[..], &row[..]).map(drop),
            None => table.remove(&key[..]).map(drop),
        }
        .map_err(broken)?;
    }
    Ok(())
}

/// Adds the entries, and drops what falls out of the window behind the newest.
fn logs(txn: &WriteTransaction, batch: &Batch) -> Result<()> {
    let mut table = txn.open_table(LOG).map_err(broken)?;
    for (pg, entries) in &batch.logs {
        for (index, entry) in entries {
            table.insert((*pg, *index), &entry[..]).map_err(broken)?;
        }
        if let Some((newest, _)) = entries.back() {
            let keep = (newest + 1).saturating_sub(LOG_LEN as u64);
            table
                .retain_in((*pg, 0)..(*pg, keep), |_, _| false)
                .map_err(broken)?;
        }
    }
    Ok(())
}

/// Counts the objects that have a file. One that was never shared has no row.
fn count(txn: &WriteTransaction, file: u64, more: bool, doomed: &mut Vec<u64>) -> Result<()> {
    let mut table = txn.open_table(REFS).map_err(broken)?;
    let had = table.get(file).map_err(broken)?.map_or(1, |n| n.value());
    let has = if more { had + 1 } else { had.saturating_sub(1) };
    if has == 0 {
        table.remove(file).map_err(broken)?;
        doomed.push(file);
    } else {
        table.insert(file, has).map_err(broken)?;
    }
    Ok(())
}

fn remove_pg(txn: &WriteTransaction, pg: u64, doomed: &mut Vec<u64>) -> Result<()> {
    let mut rows = Vec::new();
    let mut table = txn.open_table(OBJECTS).map_err(broken)?;
    let range = &pg.to_be_bytes()[..]..&behind(pg)[..];
    for row in table.extract_from_if(range, |_, _| true).map_err(broken)? {
        let (_, row) = row.map_err(broken)?;
        let row = ObjectRow::decode(row.value()).map_err(damaged)?;
        rows.push((row.file, row.has_kv.then_some(row.id)));
    }
    drop(table);
    let mut table = txn.open_table(PAIRS).map_err(broken)?;
    for id in rows.iter().filter_map(|(_, id)| *id) {
        let range = &id.to_be_bytes()[..]..&behind(id)[..];
        table.retain_in(range, |_, _| false).map_err(broken)?;
    }
    drop(table);
    for (file, _) in rows.into_iter().filter(|(file, _)| *file != 0) {
        count(txn, file, false, doomed)?;
    }
    let mut table = txn.open_table(LOG).map_err(broken)?;
    let range = (pg, 0)..=(pg, u64::MAX);
    table.retain_in(range, |_, _| false).map_err(broken)
}

fn read_log(
    table: &impl ReadableTable<(u64, u64), &'static [u8]>,
    pg: u64,
) -> Result<BTreeMap<u64, LogEntry>> {
    let mut out = BTreeMap::new();
    for row in table.range((pg, 0)..=(pg, u64::MAX)).map_err(broken)? {
        let (key, value) = row.map_err(broken)?;
        let entry = decode_log(value.value()).map_err(damaged)?;
        out.insert(key.value().1, entry);
    }
    Ok(out)
}

fn relocate(txn: &WriteTransaction, moves: &Move) -> Result<()> {
    let mut pgs = txn.open_table(PGS).map_err(broken)?;
    let get = |pg: &Pg| -> Result<PgRow> {
        let row = pgs.get(&pg_key(pg)[..]).map_err(broken)?;
        let row = row.ok_or(StoreError::NoPg(*pg))?;
        PgRow::decode(row.value()).map_err(damaged)
    };
    let (mut from, mut to) = (get(&moves.from)?, get(&moves.to)?);

    let mut table = txn.open_table(OBJECTS).map_err(broken)?;
    let mask = mask_of(moves.pg_num);
    let goes = |k: &[u8]| {
        key::hash(&k[8..]).is_ok_and(|h| stable_mod(h, moves.pg_num, mask) == moves.to.seed)
    };
    let range = &from.no.to_be_bytes()[..]..&behind(from.no)[..];
    let mut moved = Vec::new();
    for row in table
        .extract_from_if(range, |k, _| goes(k))
        .map_err(broken)?
    {
        let (key, row) = row.map_err(broken)?;
        moved.push((key.value()[8..].to_vec(), row.value().to_vec()));
    }
    for (key, row) in &moved {
        let decoded = ObjectRow::decode(row).map_err(damaged)?;
        let usage = decoded.usage(key::snap(key));
        subtract(&mut from.usage, &usage);
        add(&mut to.usage, &usage);
        table
            .insert(&numbered(to.no, key)[..], &row[..])
            .map_err(broken)?;
    }

    let mut table = txn.open_table(LOG).map_err(broken)?;
    let state = |row: &PgRow| -> Result<PgState> {
        let mut log: Vec<LogEntry> = read_log(&table, row.no)?.into_values().collect();
        log.drain(..log.len().saturating_sub(LOG_LEN));
        Ok(PgState {
            last_update: row.last_update,
            last_user_version: row.last_user_version,
            log,
            trimmed_snaps: row.trimmed_snaps.clone(),
        })
    };
    let theirs = state(&from)?;
    let merged = if moves.fresh {
        theirs
    } else {
        let mut ours = state(&to)?;
        ours.merge(theirs);
        ours
    };
    table
        .retain_in((to.no, 0)..=(to.no, u64::MAX), |_, _| false)
        .map_err(broken)?;
    let mut bytes = Vec::new();
    for (index, entry) in merged.log.iter().enumerate() {
        bytes.clear();
        encode_log(entry, &mut bytes);
        table
            .insert((to.no, index as u64), &bytes[..])
            .map_err(broken)?;
    }
    to.next_log = merged.log.len() as u64;
    to.last_update = merged.last_update;
    to.last_user_version = merged.last_user_version;
    to.trimmed_snaps = merged.trimmed_snaps;

    for (pg, row) in [(&moves.from, &from), (&moves.to, &to)] {
        bytes.clear();
        row.encode(&mut bytes);
        pgs.insert(&pg_key(pg)[..], &bytes[..]).map_err(broken)?;
    }
    Ok(())
}
