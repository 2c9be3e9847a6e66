//! What the steps of a transaction do to a shard's memory, and what they come to on the disk.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::osd::store::{Result, Seq, Step, Transaction};
use crate::osdmap::Pg as PgId;

use super::core::Core;
use super::key;
use super::object::{ATTR, HEADER, OMAP, Object, pair_key};
use super::op::{Changes, Op};
use super::pg::Pg;
use super::row::{ObjectRow, add, encode_log, subtract};

/// Carries a transaction out on objects that are in memory already, at `places`.
pub(super) fn carry_out(
    core: &Core,
    pg_id: PgId,
    pg: &mut Pg,
    places: &[usize],
    txn: Transaction<'_>,
    seq: Seq,
) -> Result<Changes> {
    let mut work = Work {
        core,
        pg,
        places,
        seq,
        changes: Changes::default(),
    };
    // An object may have been named twice.
    let mut each: SmallVec<[usize; 4]> = places.into();
    each.sort_unstable();
    each.dedup();
    let had: SmallVec<[bool; 4]> = each
        .iter()
        .map(|place| work.pg.slots[*place].object.is_some())
        .collect();
    for place in &each {
        work.account(*place, subtract);
    }
    let first_id = core.next_id.load(std::sync::atomic::Ordering::Relaxed);
    for step in txn.steps {
        work.step(step)?;
    }
    for place in &each {
        work.account(*place, add);
    }
    let mut bytes = Vec::new();
    for (place, had) in each.iter().zip(had) {
        let slot = &work.pg.slots[*place];
        let (pg, key) = (work.pg.row.no, &slot.key[..]);
        match &slot.object {
            Some(object) => {
                bytes.clear();
                object.row.encode(&mut bytes);
                let row = &bytes;
                work.changes.push(&Op::PutObject { pg, key, row });
            }
            None if had => work.changes.push(&Op::RemoveObject { pg, key }),
            None => {}
        }
        work.pg.touch(*place, seq);
    }
    let Work { pg, changes, .. } = &mut work;
    if let Some(entry) = txn.log {
        pg.row.last_update = entry.version;
        pg.row.last_user_version = pg.row.last_user_version.max(entry.user_version);
        bytes.clear();
        encode_log(&entry, &mut bytes);
        let index = pg.log(seq, entry);
        changes.push(&Op::Log {
            pg: pg.row.no,
            index,
            entry: &bytes,
        });
    }
    if let Some(trimmed) = txn.trimmed_snaps {
        pg.row.trimmed_snaps = trimmed;
    }
    bytes.clear();
    pg.row.encode(&mut bytes);
    changes.push(&Op::PutPg {
        pg: pg_id,
        row: &bytes,
    });
    let next_id = core.next_id.load(std::sync::atomic::Ordering::Relaxed);
    if next_id != first_id {
        changes.push(&Op::NextId(next_id));
    }
    Ok(work.changes)
}

struct Work<'a> {
    core: &'a Core,
    pg: &'a mut Pg,
    places: &'a [usize],
    seq: Seq,
    changes: Changes,
}

impl Work<'_> {
    fn account(
        &mut self,
        place: usize,
        how: fn(&mut crate::osd::store::Usage, &crate::osd::store::Usage),
    ) {
        let slot = &self.pg.slots[place];
        if let Some(object) = &slot.object {
            how(
                &mut self.pg.row.usage,
                &object.row.usage(key::snap(&slot.key)),
            );
        }
    }

    /// An object that is made where it is missing, and where its changes go.
    fn object(&mut self, obj: usize) -> (&mut Object, &mut Changes) {
        let slot = &mut self.pg.slots[self.places[obj]];
        let object = slot.object.get_or_insert_with(|| Object {
            row: ObjectRow {
                id: self.core.new_id(),
                ..ObjectRow::default()
            },
            ..Object::default()
        });
        (object, &mut self.changes)
    }

    fn step(&mut self, step: Step<'_>) -> Result<()> {
        let (core, seq) = (self.core, self.seq);
        match step {
            Step::Touch(obj) => {
                self.object(obj);
            }
            Step::Write { obj, offset, data } => {
                let (object, changes) = self.object(obj);
                write(core, object, changes, seq, offset, &data);
            }
            Step::Zero {
                obj,
                offset,
                length,
            } => {
                let (object, changes) = self.object(obj);
                zero(core, object, changes, seq, offset, length);
            }
            Step::Truncate { obj, size } => {
                let (object, changes) = self.object(obj);
                truncate(core, object, changes, seq, size);
            }
            Step::Remove(obj) => self.remove(obj),
            Step::Clone { from, to } => self.clone(from, to)?,
            Step::SetInfo { obj, info } => self.object(obj).0.row.info = *info,
            Step::SetAttr { obj, name, value } => {
                let (object, changes) = self.object(obj);
                put_pair(object, changes, seq, pair_key(ATTR, &name), &value);
            }
            Step::RemoveAttr { obj, name } => {
                let (object, changes) = self.object(obj);
                remove_pair(object, changes, seq, pair_key(ATTR, &name));
            }
            Step::RemoveAttrs(obj) => {
                let (object, changes) = self.object(obj);
                for (name, _) in some_pairs(core, object, ATTR, &[], |_| true)? {
                    remove_pair(object, changes, seq, pair_key(ATTR, &name));
                }
            }
            Step::OmapSetHeader { obj, header } => {
                let (object, changes) = self.object(obj);
                put_pair(object, changes, seq, vec![HEADER], &header);
            }
            Step::OmapSet { obj, pairs } => {
                let (object, changes) = self.object(obj);
                for (key, value) in pairs {
                    omap_remove(core, object, changes, seq, &key)?;
                    object.row.omap_keys += 1;
                    object.row.omap_bytes += (key.len() + value.len()) as u64;
                    put_pair(object, changes, seq, pair_key(OMAP, &key), &value);
                }
            }
            Step::OmapRemove { obj, keys } => {
                let (object, changes) = self.object(obj);
                for key in keys {
                    omap_remove(core, object, changes, seq, &key)?;
                }
            }
            Step::OmapRemoveRange { obj, begin, end } => {
                let (object, changes) = self.object(obj);
                for (key, _) in some_pairs(core, object, OMAP, &begin, |k| *k < *end)? {
                    omap_remove(core, object, changes, seq, &key)?;
                }
            }
            Step::OmapClear(obj) => {
                let (object, changes) = self.object(obj);
                for (key, _) in some_pairs(core, object, OMAP, &[], |_| true)? {
                    omap_remove(core, object, changes, seq, &key)?;
                }
                if object.row.has_kv {
                    remove_pair(object, changes, seq, vec![HEADER]);
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, obj: usize) {
        let slot = &mut self.pg.slots[self.places[obj]];
        if let Some(object) = slot.object.take() {
            if object.row.file != 0 {
                self.changes.push(&Op::Unref(object.row.file));
            }
            if object.row.has_kv {
                self.changes.push(&Op::RemovePairs(object.row.id));
            }
        }
    }

    /// Data is shared: the file changes no more, and whoever writes first gets one of its own.
    fn clone(&mut self, from: usize, to: usize) -> Result<()> {
        let core = self.core;
        if self.places[from] == self.places[to] {
            self.object(from);
            return Ok(());
        }
        self.remove(to);
        let seq = self.seq;
        let (source, changes) = self.object(from);
        if source.row.file != 0 {
            source.row.sealed = true;
            changes.push(&Op::Ref(source.row.file));
        }
        let mut copy = Object {
            row: ObjectRow {
                id: core.new_id(),
                has_kv: false,
                ..source.row.clone()
            },
            overlay: source.overlay.clone(),
            bases: source.bases.clone(),
            ..Object::default()
        };
        for kind in [ATTR, HEADER, OMAP] {
            for (key, value) in some_pairs(core, source, kind, &[], |_| true)? {
                put_pair(&mut copy, changes, seq, pair_key(kind, &key), &value);
            }
        }
        self.pg.slots[self.places[to]].object = Some(copy);
        Ok(())
    }
}

/// What becomes of the data that an object has when it gets a file of its own.
#[derive(PartialEq)]
enum Old {
    Keep,
    Drop,
}

/// Sees to it that the object has a file that may be written.
fn own_file(core: &Core, object: &mut Object, changes: &mut Changes, seq: Seq, old: Old) {
    let row = &mut object.row;
    if row.file != 0 && !row.sealed {
        return;
    }
    let from = std::mem::replace(&mut row.file, core.new_id());
    row.sealed = false;
    if from == 0 || old == Old::Drop {
        object.overlay.clear();
        object.bases.clear();
        object.bases.push((0, seq));
        row.blocks.clear();
    } else {
        changes.push(&Op::Copy {
            from,
            to: row.file,
            ranges: row.blocks.within(0, u64::MAX).collect(),
        });
        object.bases.push((from, seq));
    }
    if from != 0 {
        changes.push(&Op::Unref(from));
    }
}

fn write(
    core: &Core,
    object: &mut Object,
    changes: &mut Changes,
    seq: Seq,
    offset: u64,
    data: &[u8],
) {
    let end = offset + data.len() as u64;
    if !data.is_empty() {
        let whole = offset == 0 && end >= object.row.size;
        let old = if whole { Old::Drop } else { Old::Keep };
        own_file(core, object, changes, seq, old);
        let data: Arc<[u8]> = data.into();
        changes.write(object.row.file, offset, Arc::clone(&data));
        object.row.blocks.insert(offset, data.len() as u64);
        object.overlay.write(offset, seq, data);
    }
    object.row.size = object.row.size.max(end);
}

fn zero(
    core: &Core,
    object: &mut Object,
    changes: &mut Changes,
    seq: Seq,
    offset: u64,
    length: u64,
) {
    let end = offset.saturating_add(length).min(object.row.size);
    if end <= offset
        || object
            .row
            .blocks
            .within(offset, end - offset)
            .next()
            .is_none()
    {
        return;
    }
    own_file(core, object, changes, seq, Old::Keep);
    changes.push(&Op::Zero {
        file: object.row.file,
        offset,
        length: end - offset,
    });
    object.overlay.zero(offset, end - offset, seq);
    if end == object.row.size {
        object.row.blocks.truncate(offset);
    } else {
        object.row.blocks.remove(offset, end - offset);
    }
}

fn truncate(core: &Core, object: &mut Object, changes: &mut Changes, seq: Seq, size: u64) {
    let old = std::mem::replace(&mut object.row.size, size);
    if size >= old || object.row.file == 0 {
        return;
    }
    object.row.blocks.truncate(size);
    if size == 0 {
        // The next write makes another.
        changes.push(&Op::Unref(object.row.file));
        object.row.file = 0;
        object.row.sealed = false;
        object.overlay.clear();
        object.bases.clear();
        return;
    }
    own_file(core, object, changes, seq, Old::Keep);
    changes.push(&Op::Truncate {
        file: object.row.file,
        size,
    });
    object.overlay.zero(size, old - size, seq);
}

fn put_pair(object: &mut Object, changes: &mut Changes, seq: Seq, key: Vec<u8>, value: &[u8]) {
    changes.push(&Op::PutPair {
        id: object.row.id,
        key: &key,
        value,
    });
    object.row.has_kv = true;
    object.pairs.insert(key, (seq, Some(value.into())));
}

fn remove_pair(object: &mut Object, changes: &mut Changes, seq: Seq, key: Vec<u8>) {
    if !object.row.has_kv {
        return;
    }
    changes.push(&Op::RemovePair {
        id: object.row.id,
        key: &key,
    });
    object.pairs.insert(key, (seq, None));
}

fn omap_remove(
    core: &Core,
    object: &mut Object,
    changes: &mut Changes,
    seq: Seq,
    key: &[u8],
) -> Result<()> {
    if object.row.omap_keys == 0 {
        return Ok(());
    }
    let place = pair_key(OMAP, key);
    if let Some(value) = object.pair(&core.db, &place)? {
        object.row.omap_keys = object.row.omap_keys.saturating_sub(1);
        let bytes = (key.len() + value.len()) as u64;
        object.row.omap_bytes = object.row.omap_bytes.saturating_sub(bytes);
        remove_pair(object, changes, seq, place);
    }
    Ok(())
}

/// The pairs of a kind from `from` on, up to the first whose key is not `wanted`.
fn some_pairs(
    core: &Core,
    object: &Object,
    kind: u8,
    from: &[u8],
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut out = Vec::new();
    object.each_pair(&core.db, kind, from, |key, value| {
        let wanted = wanted(key);
        if wanted {
            out.push((key.to_vec(), value.to_vec()));
        }
        wanted
    })?;
    Ok(out)
}
