//! Which 4 KiB blocks of an object hold data.
//!
//! The store keeps this itself rather than asking the file system for holes: it is known before the
//! data has reached the file, it is exact, and a read of a hole costs no system call.

use crate::codec::{DecodeError, Put, Reader, Result};

pub(super) const BLOCK: u64 = 4096;

/// Ascending runs of blocks, first and end, neither overlapping nor touching.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Blocks {
    runs: Vec<(u64, u64)>,
}

const RUNS: u8 = 0;
const BITMAP: u8 = 1;

impl Blocks {
    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Bytes that the blocks take up.
    pub(super) fn stored(&self) -> u64 {
        self.runs.iter().map(|(a, b)| (b - a) * BLOCK).sum()
    }

    /// Adds the blocks that a range touches.
    pub(super) fn insert(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (mut first, mut end) = (offset / BLOCK, (offset + length).div_ceil(BLOCK));
        let from = self.runs.partition_point(|run| run.1 < first);
        let to = self.runs.partition_point(|run| run.0 <= end);
        if let [only] = self.runs[from..to]
            && only.0 <= first
            && end <= only.1
        {
            return;
        }
        if from < to {
            first = first.min(self.runs[from].0);
            end = end.max(self.runs[to - 1].1);
        }
        self.runs.splice(from..to, [(first, end)]);
    }

    /// Takes out the blocks that lie within a range as a whole.
    pub(super) fn remove(&mut self, offset: u64, length: u64) {
        self.cut(
            offset.div_ceil(BLOCK),
            offset.saturating_add(length) / BLOCK,
        );
    }

    /// Takes out all blocks behind the one that holds the last byte of `size`.
    pub(super) fn truncate(&mut self, size: u64) {
        self.cut(size.div_ceil(BLOCK), u64::MAX);
    }

    fn cut(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let from = self.runs.partition_point(|run| run.1 <= first);
        let to = self.runs.partition_point(|run| run.0 < end);
        if from >= to {
            return;
        }
        let left = (self.runs[from].0, first);
        let right = (end, self.runs[to - 1].1);
        let rest = [left, right].into_iter().filter(|run| run.0 < run.1);
        self.runs.splice(from..to, rest);
    }

    /// The parts of a range that hold data, as offset and length.
    pub(super) fn within(&self, offset: u64, length: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = offset.saturating_add(length);
        let from = self.runs.partition_point(|run| run.1 * BLOCK <= offset);
        self.runs[from..]
            .iter()
            .map(move |run| ((run.0 * BLOCK).max(offset), (run.1 * BLOCK).min(end)))
            .take_while(|(a, b)| a < b)
            .map(|(a, b)| (a, b - a))
    }

    /// As runs or as a bitmap, whichever is shorter.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.put_u8(RUNS);
        varint(self.runs.len() as u64, out);
        let mut last = 0;
        for (first, end) in &self.runs {
            varint(first - last, out);
            varint(end - first, out);
            last = *end;
        }
        let bits = last.div_ceil(8);
        if 1 + 5 + bits < (out.len() - at) as u64 {
            out.truncate(at);
            out.put_u8(BITMAP);
            out.put_u32(bits as u32);
            let map = out.len();
            out.resize(map + bits as usize, 0);
            for block in self.runs.iter().flat_map(|(a, b)| *a..*b) {
                out[map + (block / 8) as usize] |= 1 << (block % 8);
            }
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Blocks> {
        let mut runs = Vec::new();
        match r.u8()? {
            RUNS => {
                let mut last = 0u64;
                for i in 0..unvarint(r)? {
                    let gap = unvarint(r)?;
                    let first = last.checked_add(gap).ok_or(MALFORMED)?;
                    let end = first.checked_add(unvarint(r)?).ok_or(MALFORMED)?;
                    if first == end || (i > 0 && gap == 0) || end > u64::MAX / BLOCK {
                        return Err(MALFORMED);
                    }
                    runs.push((first, end));
                    last = end;
                }
            }
            BITMAP => {
                let bytes = r.blob()?;
                for block in 0..bytes.len() as u64 * 8 {
                    if bytes[(block / 8) as usize] & (1 << (block % 8)) == 0 {
                        continue;
                    }
                    match runs.last_mut() {
                        Some((_, end)) if *end == block => *end += 1,
                        _ => runs.push((block, block + 1)),
                    }
                }
            }
            _ => return Err(MALFORMED),
        }
        Ok(Blocks { runs })
    }
}

const MALFORMED: DecodeError = DecodeError::malformed("block list");

/// Seven bits a byte, the lowest first; the top bit says that more follow.
pub(super) fn varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

pub(super) fn unvarint(r: &mut Reader<'_>) -> Result<u64> {
    let mut v = 0;
    for shift in (0..64).step_by(7) {
        let byte = r.u8()?;
        if shift == 63 && byte > 1 {
            break;
        }
        v |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(v);
        }
    }
    Err(DecodeError::malformed("varint"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn blocks_are_the_set_that_the_steps_make(steps in vec((0u8..3, 0u64..80 * BLOCK, 0u64..20 * BLOCK), 0..60)) {
            let mut blocks = Blocks::default();
            let mut model = BTreeSet::new();
            for (kind, offset, length) in steps {
                match kind {
                    0 => {
                        blocks.insert(offset, length);
                        if length > 0 {
                            model.extend(offset / BLOCK..(offset + length).div_ceil(BLOCK));
                        }
                    }
                    1 => {
                        blocks.remove(offset, length);
                        model.retain(|b| b * BLOCK < offset || (b + 1) * BLOCK > offset + length);
                    }
                    _ => {
                        blocks.truncate(offset);
                        model.retain(|b| b * BLOCK < offset);
                    }
                }
                let have: Vec<u64> = blocks.runs.iter().flat_map(|(a, b)| *a..*b).collect();
                prop_assert_eq!(&have, &model.iter().copied().collect::<Vec<_>>());
                prop_assert!(blocks.runs.windows(2).all(|w| w[0].1 < w[1].0));
                let mut within = 0;
                for (o, l) in blocks.within(offset, length) {
                    prop_assert!(o >= offset && o + l <= offset + length);
                    within += l;
                }
                let expect: u64 = model.iter().map(|b| ((b + 1) * BLOCK).min(offset + length).saturating_sub((b * BLOCK).max(offset))).sum();
                prop_assert_eq!(within, expect);
            }
            let mut out = Vec::new();
            blocks.encode(&mut out);
            let mut r = Reader::new(&out);
            prop_assert_eq!(Blocks::decode(&mut r), Ok(blocks));
            prop_assert!(r.is_empty());
        }

        #[test]
        fn varints_survive(v: u64) {
            let mut out = Vec::new();
            varint(v, &mut out);
            prop_assert_eq!(unvarint(&mut Reader::new(&out)), Ok(v));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            if let Ok(b) = Blocks::decode(&mut Reader::new(&bytes)) {
                b.within(0, u64::MAX).count();
            }
        }
    }

    #[test]
    fn a_scattered_object_is_kept_as_a_bitmap() {
        let mut blocks = Blocks::default();
        for i in 0..512 {
            blocks.insert(i * 2 * BLOCK, 1);
        }
        let mut out = Vec::new();
        blocks.encode(&mut out);
        assert_eq!(out.len(), 1 + 4 + 128);
        assert_eq!(Blocks::decode(&mut Reader::new(&out)), Ok(blocks));
    }
}
