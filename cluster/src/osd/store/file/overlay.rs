//! What has been written to an object and is not in its file yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::osd::store::Seq;

/// Pieces by their offset; they do not overlap.
#[derive(Debug, Clone, Default)]
pub(super) struct Overlay {
    pieces: BTreeMap<u64, Piece>,
    newest: Seq,
}

#[derive(Debug, Clone)]
struct Piece {
    end: u64,
    seq: Seq,
    /// What was written and where in it the piece's bytes begin; zeros without it.
    data: Option<(Arc<[u8]>, usize)>,
}

impl Piece {
    /// The part from `offset` on, for a piece that begins at `start`.
    fn tail(&self, start: u64, offset: u64) -> Piece {
        let mut piece = self.clone();
        if let Some((_, at)) = &mut piece.data {
            *at += (offset - start) as usize;
        }
        piece
    }
}

impl Overlay {
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.newest = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets what the file has by now.
    pub(super) fn settle(&mut self, applied: Seq) {
        if self.pieces.is_empty() {
            return;
        }
        if self.newest <= applied {
            self.clear();
        } else {
            self.pieces.retain(|_, piece| piece.seq > applied);
        }
    }

    pub(super) fn write(&mut self, offset: u64, seq: Seq, data: Arc<[u8]>) {
        self.put(offset, data.len() as u64, seq, Some((data, 0)));
    }

    pub(super) fn zero(&mut self, offset: u64, length: u64, seq: Seq) {
        self.put(offset, length, seq, None);
    }

    fn put(&mut self, offset: u64, length: u64, seq: Seq, data: Option<(Arc<[u8]>, usize)>) {
        if length == 0 {
            return;
        }
        let end = offset + length;
        self.newest = self.newest.max(seq);
        if let Some((&start, piece)) = self.pieces.range_mut(..offset).next_back()
            && piece.end > offset
        {
            let behind = (piece.end > end).then(|| piece.tail(start, end));
            piece.end = offset;
            if let Some(behind) = behind {
                self.pieces.insert(end, behind);
            }
        }
        while let Some((&start, piece)) = self.pieces.range(offset..end).next() {
            let behind = (piece.end > end).then(|| piece.tail(start, end));
            self.pieces.remove(&start);
            if let Some(behind) = behind {
                self.pieces.insert(end, behind);
            }
        }
        self.pieces.insert(offset, Piece { end, seq, data });
    }

    fn from(&self, offset: u64) -> impl Iterator<Item = (u64, &Piece)> {
        let first = self.pieces.range(..offset).next_back();
        first
            .into_iter()
            .chain(self.pieces.range(offset..))
            .map(|(start, piece)| (*start, piece))
            .skip_while(move |(_, piece)| piece.end <= offset)
    }

    /// Whether the file need not be asked about a range.
    pub(super) fn covers(&self, offset: u64, length: u64) -> bool {
        let mut at = offset;
        for (start, piece) in self.from(offset) {
            if start > at {
                break;
            }
            at = piece.end;
            if at >= offset + length {
                return true;
            }
        }
        length == 0
    }

    /// Lays the pieces over bytes that were read at `offset`.
    pub(super) fn copy_into(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        for (start, piece) in self.from(offset) {
            if start >= end {
                break;
            }
            let (a, b) = (start.max(offset), piece.end.min(end));
            let to = &mut out[(a - offset) as usize..(b - offset) as usize];
            match &piece.data {
                Some((data, at)) => {
                    let at = at + (a - start) as usize;
                    to.copy_from_slice(&data[at..at + to.len()]);
                }
                None => to.fill(0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const LEN: usize = 64;

    proptest! {
        /// A file that lags behind by any number of steps, with the overlay on top, reads as one
        /// that has them all.
        #[test]
        fn an_overlay_hides_the_lag(steps in vec((any::<bool>(), 0..LEN, 0..LEN), 1..40), lag in 0..40usize) {
            let mut file = [1u8; LEN];
            let mut model = file;
            let mut overlay = Overlay::default();
            for (i, (zero, a, b)) in steps.iter().enumerate() {
                let (a, b) = (*a.min(b), *a.max(b));
                let seq = i as u64 + 1;
                let data: Arc<[u8]> = (a..b).map(|n| (n as u8).wrapping_mul(i as u8 + 3)).collect();
                if *zero {
                    model[a..b].fill(0);
                    overlay.zero(a as u64, (b - a) as u64, seq);
                } else {
                    model[a..b].copy_from_slice(&data);
                    overlay.write(a as u64, seq, data);
                }
                if i == steps.len().saturating_sub(lag) {
                    file = model;
                    overlay.settle(seq);
                    prop_assert!(overlay.is_empty());
                }
            }
            for (a, b) in [(0, LEN), (10, 30)] {
                let mut seen = file[a..b].to_vec();
                if overlay.covers(a as u64, (b - a) as u64) {
                    seen.fill(0xee);
                }
                overlay.copy_into(a as u64, &mut seen);
                prop_assert_eq!(&seen[..], &model[a..b]);
            }
            overlay.settle(steps.len() as u64);
            prop_assert!(overlay.is_empty());
        }
    }
}
