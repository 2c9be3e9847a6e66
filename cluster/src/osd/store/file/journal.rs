//! The redo journal: what makes a transaction durable.
//!
//! Segments are files of a fixed size that are written from front to back and used again once a
//! checkpoint has made what they hold superfluous; so in steady state a commit changes no metadata
//! of the file system, and costs one write and one sync. Layout: `docs/store-format.md`.
//!
//! A group of records never spans segments, and a segment is synced before the next one is begun.
//! Where one segment follows another, the first is thus whole, and a record missing in it is damage;
//! in the last segment it is the end, unless a later record says that it had been acknowledged.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use crate::codec::{Put, Reader};
use crate::osd::store::{Result, Seq, StoreError};

use super::op::Changes;
use super::vfs::{File, Vfs};
use super::{io_error, lock};

pub(super) const FOLDER: &str = "journal";

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"ublkrbdJ");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"rec\x01");
/// Where the first record of a segment stands.
const FIRST: u64 = 4096;
const SEGMENT_HEADER: usize = 44;
const RECORD_HEADER: usize = 40;
/// Records begin at multiples of this.
const ALIGN: u64 = 8;

/// A transaction on its way to the disk.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) seq: Seq,
    /// Who is to be woken.
    pub(super) shard: usize,
    pub(super) changes: Changes,
    /// Of the payload.
    pub(super) crc: u32,
}

impl Record {
    pub(super) fn new(seq: Seq, shard: usize, changes: Changes) -> Record {
        let length = (changes.ops.len() as u32).to_le_bytes();
        let mut crc = crc32c::crc32c(&length);
        crc = crc32c::crc32c_append(crc, &changes.ops);
        for data in &changes.data {
            crc = crc32c::crc32c_append(crc, data);
        }
        Record {
            seq,
            shard,
            changes,
            crc,
        }
    }

    /// Bytes in the journal.
    pub(super) fn size(&self) -> u64 {
        (RECORD_HEADER as u64 + self.changes.len() as u64).next_multiple_of(ALIGN)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SegmentHeader {
    store: u64,
    generation: u64,
    first: Seq,
    capacity: u64,
}

impl SegmentHeader {
    fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.put_u64(SEGMENT_MAGIC);
        for v in [self.store, self.generation, self.first, self.capacity] {
            out.put_u64(v);
        }
        let crc = crc32c::crc32c(&out[at..]);
        out.put_u32(crc);
    }

    fn decode(bytes: &[u8]) -> Option<SegmentHeader> {
        let (body, crc) = bytes.get(..SEGMENT_HEADER)?.split_at(SEGMENT_HEADER - 4);
        let r = &mut Reader::new(body);
        if r.u64().ok()? != SEGMENT_MAGIC || Reader::new(crc).u32() != Ok(crc32c::crc32c(body)) {
            return None;
        }
        Some(SegmentHeader {
            store: r.u64().ok()?,
            generation: r.u64().ok()?,
            first: r.u64().ok()?,
            capacity: r.u64().ok()?,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecordHeader {
    length: u32,
    seq: Seq,
    generation: u64,
    /// Every record up to this one had been synced when this one was written.
    durable: Seq,
    crc: u32,
}

impl RecordHeader {
    fn encode(&self) -> [u8; RECORD_HEADER] {
        let mut out = Vec::with_capacity(RECORD_HEADER);
        out.put_u32(RECORD_MAGIC);
        out.put_u32(self.length);
        for v in [self.seq, self.generation, self.durable] {
            out.put_u64(v);
        }
        out.put_u32(self.crc);
        out.put_u32(crc32c::crc32c(&out));
        let mut fixed = [0; RECORD_HEADER];
        fixed.copy_from_slice(&out);
        fixed
    }

    /// The record at the beginning of `bytes`, when it is whole and of this generation.
    fn decode(bytes: &[u8], generation: u64) -> Option<(RecordHeader, &[u8])> {
        let (head, rest) = bytes.split_at_checked(RECORD_HEADER)?;
        let (body, crc) = head.split_at(RECORD_HEADER - 4);
        let r = &mut Reader::new(body);
        if r.u32().ok()? != RECORD_MAGIC || Reader::new(crc).u32() != Ok(crc32c::crc32c(body)) {
            return None;
        }
        let header = RecordHeader {
            length: r.u32().ok()?,
            seq: r.u64().ok()?,
            generation: r.u64().ok()?,
            durable: r.u64().ok()?,
            crc: r.u32().ok()?,
        };
        let payload = rest.get(..header.length as usize)?;
        if header.generation != generation || crc32c::crc32c(payload) != header.crc {
            return None;
        }
        Some((header, payload))
    }

    fn size(&self) -> u64 {
        (RECORD_HEADER as u64 + u64::from(self.length)).next_multiple_of(ALIGN)
    }
}

#[derive(Debug)]
struct Segment {
    name: String,
    file: Arc<dyn File>,
    capacity: u64,
}

/// Segments that are not being written.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// With the newest record that each holds.
    full: VecDeque<(Seq, Segment)>,
    free: Vec<Segment>,
}

impl Shelf {
    fn give_back(&mut self, vfs: &dyn Vfs, segment: Segment, size: u64) {
        if segment.capacity == size {
            self.free.push(segment);
        } else {
            // Else the next opening removes it.
            let _ = vfs.remove(&segment.name);
        }
    }

    /// Lets the segments be used again whose records are all below a checkpoint.
    pub(super) fn release(&mut self, vfs: &dyn Vfs, checkpoint: Seq, size: u64) -> io::Result<()> {
        while self
            .full
            .front()
            .is_some_and(|(last, _)| *last <= checkpoint)
        {
            let Some((_, segment)) = self.full.pop_front() else {
                break;
            };
            if segment.capacity == size {
                self.free.push(segment);
            } else {
                vfs.remove(&segment.name)?;
            }
        }
        Ok(())
    }
}

/// The segment being written.
#[derive(Debug)]
struct Current {
    segment: Segment,
    generation: u64,
    at: u64,
    last: Seq,
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Journal {
    vfs: Arc<dyn Vfs>,
    store: u64,
    size: u64,
    current: Option<Current>,
    shelf: Arc<Mutex<Shelf>>,
    generation: u64,
    next_name: u64,
}

/// How often the store has been opened is the upper half of its generations: a record left behind by
/// an earlier run never passes for one of this.
fn first_generation(boot: u32) -> u64 {
    u64::from(boot) << 32
}

impl Journal {
    /// `boot` is durable in the database already, and all segments that are there are free.
    pub(super) fn start(
        vfs: Arc<dyn Vfs>,
        store: u64,
        boot: u32,
        size: u64,
        shelf: Arc<Mutex<Shelf>>,
    ) -> io::Result<Journal> {
        let mut next_name = 0;
        let mut free = Vec::new();
        for name in vfs.list(FOLDER)? {
            let Ok(number) = u64::from_str_radix(&name, 16) else {
                continue;
            };
            next_name = next_name.max(number + 1);
            let name = path(number);
            let file = vfs.open(&name)?;
            if file.len()? == size {
                let capacity = size;
                free.push(Segment {
                    name,
                    file,
                    capacity,
                });
            } else {
                vfs.remove(&name)?;
            }
        }
        // Whoever made them may have died just before doing this.
        vfs.sync_dir(FOLDER)?;
        lock(&shelf).free = free;
        Ok(Journal {
            vfs,
            store,
            size,
            current: None,
            shelf,
            generation: first_generation(boot),
            next_name,
        })
    }

    /// Writes records with consecutive numbers and makes them durable; `durable` is the newest one
    /// that is so already, and becomes the newest that is so then. After an error for want of room,
    /// those behind it may be handed in again, with more behind them, and are written to the same
    /// place.
    pub(super) fn append(&mut self, mut records: &[Record], durable: &mut Seq) -> io::Result<()> {
        while let Some(first) = records.first() {
            if self.room() < first.size() {
                self.next_segment(first.seq, FIRST + first.size())?;
            }
            let Some(current) = &mut self.current else {
                return Err(io::ErrorKind::NotFound.into());
            };
            let room = current.segment.capacity - current.at;
            let mut total = 0;
            let fits = records.iter().take_while(|record| {
                total += record.size();
                total <= room
            });
            let (group, rest) = records.split_at(fits.count());
            current.write(group, *durable)?;
            current.segment.file.sync().map_err(unsynced)?;
            *durable = current.last;
            records = rest;
        }
        Ok(())
    }

    fn room(&self) -> u64 {
        self.current
            .as_ref()
            .map_or(0, |c| c.segment.capacity - c.at)
    }

    fn new_segment(&mut self, capacity: u64) -> io::Result<Segment> {
        let name = path(self.next_name);
        self.next_name += 1;
        let file = self.vfs.create(&name)?;
        let made = file
            .allocate(capacity)
            .and_then(|()| file.sync())
            .and_then(|()| self.vfs.sync_dir(FOLDER));
        match made {
            Ok(()) => Ok(Segment {
                name,
                file,
                capacity,
            }),
            Err(e) => {
                // Part of it may take up what room there is.
                let _ = self.vfs.remove(&name);
                Err(e)
            }
        }
    }

    /// All of the one before has been synced, as every group is.
    fn next_segment(&mut self, first: Seq, least: u64) -> io::Result<()> {
        let free = {
            let mut shelf = lock(&self.shelf);
            if let Some(full) = self.current.take() {
                shelf.full.push_back((full.last, full.segment));
            }
            if least <= self.size {
                shelf.free.pop()
            } else {
                None
            }
        };
        let segment = match free {
            Some(segment) => segment,
            None => self.new_segment(self.size.max(least))?,
        };
        self.generation += 1;
        let header = SegmentHeader {
            store: self.store,
            generation: self.generation,
            first,
            capacity: segment.capacity,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        if let Err(e) = segment.file.write_at(&bytes, 0) {
            // Nothing follows a header that is not whole, and another try has another generation.
            lock(&self.shelf).give_back(&*self.vfs, segment, self.size);
            return Err(e);
        }
        self.current = Some(Current {
            segment,
            generation: self.generation,
            at: FIRST,
            last: first - 1,
        });
        Ok(())
    }
}

/// After a failed sync it is not known what of the file has been lost. To write the same again would
/// do, but not to the part that was synced before.
fn unsynced(e: io::Error) -> io::Error {
    io::Error::other(format!("sync: {e}"))
}

impl Current {
    fn write(&mut self, group: &[Record], durable: Seq) -> io::Result<()> {
        let heads: Vec<([u8; RECORD_HEADER], [u8; 4])> = group
            .iter()
            .map(|record| {
                let header = RecordHeader {
                    length: record.changes.len() as u32,
                    seq: record.seq,
                    generation: self.generation,
                    durable,
                    crc: record.crc,
                };
                let ops = record.changes.ops.len() as u32;
                (header.encode(), ops.to_le_bytes())
            })
            .collect();
        let mut parts = Vec::with_capacity(group.len() * 5);
        let mut total = 0;
        for (record, (header, ops)) in group.iter().zip(&heads) {
            parts.push(IoSlice::new(header));
            parts.push(IoSlice::new(ops));
            parts.push(IoSlice::new(&record.changes.ops));
            parts.extend(record.changes.data.iter().map(|d| IoSlice::new(d)));
            let bytes = RECORD_HEADER + record.changes.len();
            let pad = (record.size() - bytes as u64) as usize;
            parts.push(IoSlice::new(&[0; ALIGN as usize][..pad]));
            total += record.size();
        }
        self.segment.file.write_all_at(&mut parts, self.at)?;
        self.at += total;
        self.last = group.last().map_or(self.last, |record| record.seq);
        Ok(())
    }
}

fn path(number: u64) -> String {
    format!("{FOLDER}/{number:08x}")
}

/// Reads the journal of the run `boot` back: hands over every record behind `checkpoint`, in order and
/// durable, and returns the number of the last one.
pub(super) fn replay(
    vfs: &dyn Vfs,
    store: u64,
    boot: u32,
    checkpoint: Seq,
    mut take: impl FnMut(Seq, &[u8]) -> Result<()>,
) -> Result<Seq> {
    let what = || "read the journal".to_owned();
    let mut segments = Vec::new();
    for name in vfs.list(FOLDER).map_err(io_error(what()))? {
        let name = format!("{FOLDER}/{name}");
        let file = vfs.open(&name).map_err(io_error(what()))?;
        let mut header = [0; SEGMENT_HEADER];
        file.read_at(&mut header, 0).map_err(io_error(what()))?;
        if let Some(header) = SegmentHeader::decode(&header)
            && header.store == store
            && header.generation >> 32 == u64::from(boot)
        {
            segments.push((header, file));
        }
    }
    segments.sort_by_key(|(header, _)| header.generation);

    let mut next = checkpoint + 1;
    for (i, (header, file)) in segments.iter().enumerate() {
        if header.first > next {
            return Err(StoreError::Damaged(format!(
                "journal record {next} is missing, though {} follows",
                header.first
            )));
        }
        let length = file.len().map_err(io_error(what()))?;
        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0).map_err(io_error(what()))?;
        let mut seq = header.first;
        let mut at = FIRST;
        let mut synced = false;
        while let Some(rest) = bytes.get(at as usize..)
            && let Some((record, payload)) = RecordHeader::decode(rest, header.generation)
            && record.seq == seq
        {
            if seq >= next {
                // Whoever wrote it may have died before syncing it, and what a record does must not
                // outlast the record.
                if !std::mem::replace(&mut synced, true) {
                    file.sync()
                        .map_err(io_error("sync the journal".to_owned()))?;
                }
                take(seq, payload)?;
            }
            seq += 1;
            at += record.size();
        }
        // Only a group that was never synced may be incomplete.
        if i + 1 == segments.len()
            && let Some(after) = acknowledged_after(&bytes, at, header.generation, seq)
        {
            return Err(StoreError::Damaged(format!(
                "journal record {seq} is broken, though it was synced before {after}"
            )));
        }
        next = next.max(seq);
    }
    Ok(next - 1)
}

/// A whole record behind `at` that was written when `missing` was durable.
fn acknowledged_after(bytes: &[u8], at: u64, generation: u64, missing: Seq) -> Option<Seq> {
    let mut at = at as usize;
    while let Some(rest) = bytes.get(at..)
        && !rest.is_empty()
    {
        if let Some((record, _)) = RecordHeader::decode(rest, generation)
            && record.seq > missing
            && record.durable >= missing
        {
            return Some(record.seq);
        }
        at += ALIGN as usize;
    }
    None
}

/// Repairs the checksums of a segment's header and first record.
#[cfg(feature = "testing")]
pub(super) fn seal(segment: &mut [u8]) {
    let header = SEGMENT_HEADER - 4;
    let crc = crc32c::crc32c(&segment[..header]);
    segment[header..header + 4].copy_from_slice(&crc.to_le_bytes());
    let first = FIRST as usize;
    let length = u32::from_le_bytes(
        segment[first + 4..first + 8]
            .try_into()
            .expect("four bytes"),
    );
    let payload = first + RECORD_HEADER;
    let end = payload.saturating_add(length as usize);
    if end <= segment.len() {
        let crc = crc32c::crc32c(&segment[payload..end]);
        segment[payload - 8..payload - 4].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c::crc32c(&segment[first..payload - 4]);
    segment[payload - 4..payload].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::sim::Disk;
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const SIZE: u64 = 16384;

    fn record(seq: Seq, length: usize) -> Record {
        let mut changes = Changes::default();
        changes.write(seq, 0, vec![seq as u8; length].into());
        Record::new(seq, 0, changes)
    }

    fn journal(disk: &Disk, boot: u32) -> (Journal, Arc<Mutex<Shelf>>) {
        let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
        vfs.create_dir(FOLDER).unwrap();
        let shelf = Arc::default();
        let journal = Journal::start(vfs, 7, boot, SIZE, Arc::clone(&shelf)).unwrap();
        (journal, shelf)
    }

    fn read(disk: &Disk, boot: u32, checkpoint: Seq) -> Result<Vec<Seq>> {
        let mut seen = Vec::new();
        let last = replay(disk, 7, boot, checkpoint, |seq, payload| {
            assert_eq!(payload.last(), Some(&(seq as u8)));
            seen.push(seq);
            Ok(())
        })?;
        assert_eq!(last, seen.last().copied().unwrap_or(checkpoint));
        Ok(seen)
    }

    #[test]
    fn records_are_read_back_across_segments_of_any_size() {
        let disk = Disk::new(1);
        let (mut journal, shelf) = journal(&disk, 1);
        let mut next = 1;
        let mut checkpoint = 0;
        for (i, length) in [10, 5000, 40_000, 1, 9000, 8000, 100, 3]
            .into_iter()
            .enumerate()
        {
            let group: Vec<Record> = (next..next + 3).map(|seq| record(seq, length)).collect();
            journal.append(&group, &mut (next - 1)).unwrap();
            next += 3;
            if i == 4 {
                checkpoint = next - 2;
                lock(&shelf).release(&disk, checkpoint, SIZE).unwrap();
            }
            let want: Vec<Seq> = (checkpoint + 1..next).collect();
            assert_eq!(read(&disk, 1, checkpoint).unwrap(), want);
        }
        assert!(read(&disk, 2, next).unwrap().is_empty());
    }

    #[test]
    fn what_an_earlier_run_left_is_not_read_again() {
        let disk = Disk::new(1);
        let (mut first, _) = journal(&disk, 1);
        let group: Vec<Record> = (1..9).map(|seq| record(seq, 100)).collect();
        first.append(&group, &mut 0).unwrap();
        // The second run took it that only three were there, and writes as many bytes.
        let (mut second, _) = journal(&disk, 2);
        second.append(&[record(4, 100)], &mut 3).unwrap();
        assert_eq!(read(&disk, 2, 3).unwrap(), [4]);
    }

    #[test]
    fn a_broken_record_is_the_end_or_damage() {
        for (synced, broken) in [(true, 2), (false, 2), (true, 3)] {
            let disk = Disk::new(1);
            let (mut journal, _) = journal(&disk, 1);
            let all: Vec<Record> = (1..4).map(|seq| record(seq, 100)).collect();
            if synced {
                for r in all {
                    let seq = r.seq;
                    journal.append(&[r], &mut (seq - 1)).unwrap();
                }
            } else {
                journal.append(&all, &mut 0).unwrap();
            }
            let file = disk.open(&path(0)).unwrap();
            let at = FIRST + (broken - 1) * record(1, 100).size() + 60;
            file.write_at(&[0xee], at).unwrap();
            match read(&disk, 1, 0) {
                Ok(seen) => {
                    assert!(!synced || broken == 3);
                    assert_eq!(seen, (1..broken).collect::<Vec<_>>());
                }
                Err(e) => {
                    assert!(synced && broken == 2);
                    assert!(e.to_string().contains("journal record 2 is broken"), "{e}");
                }
            }
        }
    }

    #[test]
    fn a_record_is_durable_before_it_is_carried_out() {
        for seed in 0..20 {
            let disk = Disk::new(seed);
            let (mut journal, _) = journal(&disk, 1);
            journal.append(&[record(1, 100)], &mut 0).unwrap();
            // The process ends between the write and the sync.
            let current = journal.current.as_mut().unwrap();
            current.write(&[record(2, 100)], 1).unwrap();
            disk.restart(false);
            assert_eq!(read(&disk, 1, 0).unwrap(), [1, 2]);
            disk.restart(true);
            assert_eq!(read(&disk, 1, 0).unwrap(), [1, 2]);
        }
    }

    proptest! {
        #[test]
        fn hostile_segments_never_panic(garbage in vec(any::<u8>(), 0..200), at in 0u64..400, length in 0u64..9000) {
            let disk = Disk::new(1);
            let (mut journal, _) = journal(&disk, 1);
            let group: Vec<Record> = (1..5).map(|seq| record(seq, 50)).collect();
            journal.append(&group, &mut 0).unwrap();
            let file = disk.open(&path(0)).unwrap();
            file.write_at(&garbage, FIRST + at).unwrap();
            if length > 8000 {
                file.set_len(length).unwrap();
            }
            if let Ok(seen) = read(&disk, 1, 0) {
                prop_assert!(seen.iter().copied().eq(1..=seen.len() as u64));
            }
            let _ = SegmentHeader::decode(&garbage);
            let _ = RecordHeader::decode(&garbage, 0);
        }
    }
}
