//! An object as a shard remembers it: its row, and what is newer than files and database.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound::{Included, Unbounded};
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::osd::store::{Page, Result, Seq, StoreError};

use super::batch::Change;
use super::core::Core;
use super::db::Db;
use super::files::Files;
use super::overlay::Overlay;
use super::row::ObjectRow;

/// First byte of a pair's key.
pub(super) const ATTR: u8 = 0;
pub(super) const HEADER: u8 = 1;
pub(super) const OMAP: u8 = 2;

#[derive(Debug, Clone, Default)]
pub(super) struct Object {
    pub(super) row: ObjectRow,
    /// Data that is not in the file yet.
    pub(super) overlay: Overlay,
    /// Where the data lies until a transaction has reached the files: of the first entry whose
    /// transaction has not, no file being 0. Behind the last one, `row.file` has it.
    pub(super) bases: SmallVec<[(u64, Seq); 1]>,
    /// Attributes and omap that the database may not have; without a value they are gone.
    pub(super) pairs: BTreeMap<Vec<u8>, (Seq, Change)>,
}

/// The key of a pair.
pub(super) fn pair_key(kind: u8, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + key.len());
    out.push(kind);
    out.extend_from_slice(key);
    out
}

impl Object {
    /// Forgets what has reached the files.
    pub(super) fn settle(&mut self, applied: Seq) {
        self.overlay.settle(applied);
        if self.bases.last().is_some_and(|(_, seq)| *seq <= applied) {
            self.bases.clear();
        }
    }

    /// Reads data within the object's size.
    pub(super) fn read(
        &mut self,
        core: &Core,
        files: &mut Files,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        for (from, length) in self.row.blocks.within(offset, out.len() as u64) {
            if self.overlay.covers(from, length) {
                continue;
            }
            let at = (from - offset) as usize;
            self.read_file(core, files, from, &mut out[at..at + length as usize])?;
        }
        self.overlay.copy_into(offset, out);
        Ok(())
    }

    /// What lies behind the file's end stays as it is.
    fn read_file(&self, core: &Core, files: &mut Files, offset: u64, out: &mut [u8]) -> Result<()> {
        loop {
            let applied = core.applied.load(Ordering::Acquire);
            let base = self.bases.iter().find(|(_, until)| applied < *until);
            let id = base.map_or(self.row.file, |(file, _)| *file);
            if id == 0 {
                return Ok(());
            }
            // One that the object is about to leave is opened for this read alone.
            let read = match id == self.row.file {
                true => files
                    .get(&*core.vfs, id)
                    .map(|file| file.read_at(out, offset)),
                false => core
                    .vfs
                    .open(&super::files::path(id))
                    .map(|file| file.read_at(out, offset)),
            };
            match read {
                Ok(read) => return read.map(drop).map_err(|e| read_error(id, e)),
                // The file may have gone because this object has another by now.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    let now = core.applied.load(Ordering::Acquire);
                    if base.is_some_and(|(_, until)| *until <= now) {
                        continue;
                    }
                    let id = super::files::path(id);
                    return Err(StoreError::Damaged(format!("{id} is missing")));
                }
                Err(e) => return Err(read_error(id, e)),
            }
        }
    }

    pub(super) fn pair(&self, db: &Db, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.pairs.get(key) {
            Some((_, value)) => Ok(value.as_ref().map(|v| v.to_vec())),
            None if self.row.has_kv => db.pair(self.row.id, key),
            None => Ok(None),
        }
    }

    /// Hands over pairs of a kind in order, keys without it, from `from` on while `take` wants more.
    pub(super) fn each_pair(
        &self,
        db: &Db,
        kind: u8,
        from: &[u8],
        mut take: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let start = pair_key(kind, from);
        let newer = self
            .pairs
            .range::<[u8], _>((Included(&start[..]), Unbounded));
        let mut newer = newer
            .take_while(|(key, _)| key[0] == kind)
            .map(|(key, (_, value))| (&key[..], value.as_deref()))
            .peekable();
        let mut go_on = true;
        if self.row.has_kv {
            db.each_pair(self.row.id, &start, |key, value| {
                if key.first() != Some(&kind) {
                    return false;
                }
                while go_on && let Some((k, v)) = newer.next_if(|(k, _)| *k < key) {
                    go_on = v.is_none_or(|v| take(&k[1..], v));
                }
                if go_on {
                    go_on = match newer.next_if(|(k, _)| *k == key) {
                        Some((k, v)) => v.is_none_or(|v| take(&k[1..], v)),
                        None => take(&key[1..], value),
                    };
                }
                go_on
            })?;
        }
        while go_on && let Some((k, v)) = newer.next() {
            go_on = v.is_none_or(|v| take(&k[1..], v));
        }
        Ok(())
    }

    /// See [`Store::omap_list`](crate::osd::store::Store::omap_list).
    pub(super) fn omap_list(
        &self,
        db: &Db,
        after: &[u8],
        prefix: &[u8],
        max: usize,
    ) -> Result<Page<(Vec<u8>, Vec<u8>)>> {
        // The smallest key behind `after`.
        let mut from = after.to_vec();
        from.push(0);
        if &from[..] < prefix {
            from = prefix.to_vec();
        }
        let mut page = Page::default();
        self.each_pair(db, OMAP, &from, |key, value| {
            if !key.starts_with(prefix) {
                return false;
            }
            page.more = page.items.len() == max;
            if !page.more {
                page.items.push((key.to_vec(), value.to_vec()));
            }
            !page.more
        })?;
        Ok(page)
    }
}

fn read_error(id: u64, source: io::Error) -> StoreError {
    StoreError::Io {
        what: format!("read {}", super::files::path(id)),
        source,
    }
}
