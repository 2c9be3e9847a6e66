//! The bytes of an object in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Room is taken up and given back in pages.
pub(super) const PAGE: u64 = 4096;
/// Pages are kept in chunks of this many bytes.
const CHUNK: u64 = 16 * PAGE;

/// A run of pages. It is as long as its last stored byte needs; what follows is zero.
#[derive(Debug, Clone, Default)]
struct Chunk {
    /// A bit for each page that holds data.
    valid: u16,
    bytes: Vec<u8>,
}

/// Sparse bytes. Chunks are shared by clones until one of them writes; they are `Arc` because a pg
/// may change thread with all that is in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Data {
    len: u64,
    chunks: BTreeMap<u64, Arc<Chunk>>,
    pages: u64,
}

/// The pages that a part of a chunk touches.
fn touched(from: u64, to: u64) -> u16 {
    mask(from / PAGE, to.div_ceil(PAGE))
}

/// The pages that lie wholly in a part of a chunk.
fn covered(from: u64, to: u64) -> u16 {
    mask(from.div_ceil(PAGE), to / PAGE)
}

/// Bits from `first` up to, without, `last`.
fn mask(first: u64, last: u64) -> u16 {
    if first >= last {
        return 0;
    }
    let below = |n: u64| ((1u32 << n) - 1) as u16;
    below(last) & !below(first)
}

impl Chunk {
    fn write(&mut self, from: usize, data: &[u8]) {
        if self.bytes.len() <= from {
            self.bytes.resize(from, 0);
            self.bytes.extend_from_slice(data);
        } else {
            let inside = data.len().min(self.bytes.len() - from);
            self.bytes[from..from + inside].copy_from_slice(&data[..inside]);
            self.bytes.extend_from_slice(&data[inside..]);
        }
        self.valid |= touched(from as u64, (from + data.len()) as u64);
    }

    /// Makes a part zero. `end` is where the object ends within the chunk: a page whose bytes up to
    /// there all become zero is given back.
    fn zero(&mut self, from: u64, to: u64, end: u64) {
        let gone = if to >= end { CHUNK } else { to };
        self.valid &= !covered(from, gone);
        let last = u64::from(16 - self.valid.leading_zeros()) * PAGE;
        if (last as usize) < self.bytes.len() {
            self.bytes.truncate(last as usize);
            if self.bytes.capacity() > 2 * self.bytes.len() {
                self.bytes.shrink_to_fit();
            }
        }
        let stored = self.bytes.len();
        let (from, to) = ((from as usize).min(stored), (to as usize).min(stored));
        self.bytes[from..to].fill(0);
    }
}

impl Data {
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Appends what there is of a range to `out`.
    pub(super) fn read(&self, offset: u64, length: u64, out: &mut Vec<u8>) -> usize {
        let end = offset.saturating_add(length).min(self.len);
        if offset >= end {
            return 0;
        }
        out.reserve((end - offset) as usize);
        let mut at = offset;
        while at < end {
            let from = (at % CHUNK) as usize;
            let n = (CHUNK - at % CHUNK).min(end - at) as usize;
            let stored = match self.chunks.get(&(at / CHUNK)) {
                Some(c) => c.bytes.get(from..c.bytes.len().min(from + n)),
                None => None,
            };
            let stored = stored.unwrap_or_default();
            out.extend_from_slice(stored);
            out.resize(out.len() + n - stored.len(), 0);
            at += n as u64;
        }
        (end - offset) as usize
    }

    /// Calls `f` with each chunk's number, the part of it that lies in a range, and whether the
    /// part is the whole chunk.
    fn split(offset: u64, end: u64, mut f: impl FnMut(u64, u64, u64)) {
        let mut at = offset;
        while at < end {
            let n = (CHUNK - at % CHUNK).min(end - at);
            f(at / CHUNK, at % CHUNK, at % CHUNK + n);
            at += n;
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let Data { chunks, pages, .. } = self;
        let mut rest = data;
        Data::split(offset, end, |i, from, to| {
            let (part, left) = rest.split_at((to - from) as usize);
            rest = left;
            let chunk = chunks.entry(i).or_default();
            if part.len() as u64 == CHUNK && Arc::get_mut(chunk).is_none() {
                // Nothing of a shared chunk stays: no need to copy it first.
                *pages -= u64::from(chunk.valid.count_ones());
                *chunk = Arc::default();
            }
            let chunk = Arc::make_mut(chunk);
            *pages -= u64::from(chunk.valid.count_ones());
            chunk.write(from as usize, part);
            *pages += u64::from(chunk.valid.count_ones());
        });
        self.len = self.len.max(end);
    }

    pub(super) fn zero(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.len);
        if offset >= end {
            return;
        }
        let Data { chunks, pages, len } = self;
        // Only what is stored is visited: a range may be huge and empty.
        let mut empty = Vec::new();
        for (&i, chunk) in chunks.range_mut(offset / CHUNK..end.div_ceil(CHUNK)) {
            let start = i * CHUNK;
            let part = |at: u64| at.saturating_sub(start).min(CHUNK);
            let (from, to, last) = (part(offset), part(end), part(*len));
            *pages -= u64::from(chunk.valid.count_ones());
            if from == 0 && to >= last {
                empty.push(i);
                continue;
            }
            let chunk = Arc::make_mut(chunk);
            chunk.zero(from, to, last);
            *pages += u64::from(chunk.valid.count_ones());
            if chunk.valid == 0 {
                empty.push(i);
            }
        }
        for i in empty {
            chunks.remove(&i);
        }
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.len {
            self.zero(size, self.len - size);
        }
        self.len = size;
    }

    /// What is stored in a range.
    pub(super) fn extents(&self, offset: u64, length: u64) -> Vec<(u64, u64)> {
        let end = offset.saturating_add(length).min(self.len);
        let mut out: Vec<(u64, u64)> = Vec::new();
        if offset >= end {
            return out;
        }
        for (&i, chunk) in self.chunks.range(offset / CHUNK..end.div_ceil(CHUNK)) {
            for page in (0..16).filter(|p| chunk.valid & 1 << p != 0) {
                let start = i * CHUNK + page * PAGE;
                let (from, to) = (start.max(offset), (start + PAGE).min(end));
                if from >= to {
                    continue;
                }
                match out.last_mut() {
                    Some((o, l)) if *o + *l == from => *l += to - from,
                    _ => out.push((from, to - from)),
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_object_holds_what_was_written() {
        let mut d = Data::default();
        d.write(100 << 20, b"x");
        assert_eq!((d.len, d.pages()), ((100 << 20) + 1, 1));
        assert_eq!(d.extents(0, u64::MAX), [(100 << 20, 1)]);
        let mut out = vec![7];
        assert_eq!(d.read((100 << 20) - 2, 10, &mut out), 3);
        assert_eq!(out, [7, 0, 0, b'x']);
    }

    #[test]
    fn zeroed_pages_are_given_back() {
        let mut d = Data::default();
        d.write(0, &vec![1; 3 * CHUNK as usize]);
        assert_eq!(d.pages(), 48);
        // Parts of the first and the last page stay.
        d.zero(10, 2 * CHUNK);
        assert_eq!(d.pages(), 1 + 16);
        assert_eq!(d.extents(0, u64::MAX), [(0, PAGE), (2 * CHUNK, CHUNK)]);
        // The end of the object counts as the end of its last page.
        d.truncate(2 * CHUNK + 10);
        assert_eq!(d.pages(), 2);
        d.zero(2 * CHUNK, 10);
        assert_eq!(d.extents(0, u64::MAX), [(0, PAGE)]);
        d.truncate(0);
        assert!(d.chunks.is_empty());
        assert_eq!(d.pages(), 0);
    }

    #[test]
    fn what_lay_beyond_a_truncation_does_not_come_back() {
        let mut d = Data::default();
        d.write(0, &[1; 100]);
        d.truncate(10);
        d.truncate(20);
        let mut out = Vec::new();
        d.read(0, 100, &mut out);
        assert_eq!(out, [&[1; 10][..], &[0; 10]].concat());
    }

    #[test]
    fn a_clone_does_not_see_later_writes() {
        let mut d = Data::default();
        d.write(0, &vec![1; CHUNK as usize]);
        let old = d.clone();
        d.write(0, &vec![2; CHUNK as usize]);
        d.write(5, b"x");
        d.zero(0, 3);
        let mut out = Vec::new();
        old.read(0, CHUNK, &mut out);
        assert!(out.iter().all(|b| *b == 1));
        assert_eq!((d.pages(), old.pages()), (16, 16));
    }
}
