//! Striping: which bytes of which object hold a range of the image.
//!
//! Source: `src/osdc/Striper.cc` (`Striper::file_to_extents`). The image is cut into stripe units,
//! dealt round-robin over the `stripe_count` objects of an object set; when the objects of a set
//! are full the next set begins.

use std::ops::Range;

/// The order of objects librbd accepts: 4 KiB to 32 MiB (`CreateRequest::validate_order`).
pub const ORDERS: std::ops::RangeInclusive<u8> = 12..=25;

/// How an image is cut into objects. Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    object_size: u64,
    stripe_unit: u64,
    stripe_count: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("object size 2^{0} is out of range: use 4K to 32M (order 12 to 25)")]
    Order(u8),
    #[error("stripe unit {unit} does not divide the object size {object_size}")]
    Unit { unit: u64, object_size: u64 },
    #[error("stripe unit {0} is too small: use at least 512")]
    SmallUnit(u64),
    #[error("stripe count {0} is too large")]
    Count(u64),
    #[error("give both stripe unit and stripe count, or neither")]
    Half,
}

/// A contiguous range of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectExtent {
    pub object: u64,
    pub offset: u64,
    pub len: u64,
}

impl Layout {
    /// `stripe_unit` and `stripe_count` 0 mean the default: one object after the other.
    pub fn new(order: u8, stripe_unit: u64, stripe_count: u64) -> Result<Layout, LayoutError> {
        if !ORDERS.contains(&order) {
            return Err(LayoutError::Order(order));
        }
        let object_size = 1u64 << order;
        let (stripe_unit, stripe_count) = match (stripe_unit, stripe_count) {
            (0, 0) => (object_size, 1),
            (0, _) | (_, 0) => return Err(LayoutError::Half),
            both => both,
        };
        if stripe_unit > object_size || !object_size.is_multiple_of(stripe_unit) {
            return Err(LayoutError::Unit {
                unit: stripe_unit,
                object_size,
            });
        }
        Ok(Layout {
            object_size,
            stripe_unit,
            stripe_count,
        })
    }

    pub fn object_size(&self) -> u64 {
        self.object_size
    }

    pub fn stripe_unit(&self) -> u64 {
        self.stripe_unit
    }

    pub fn stripe_count(&self) -> u64 {
        self.stripe_count
    }

    /// Bytes of image data in one object set.
    pub fn set_size(&self) -> u64 {
        self.object_size * self.stripe_count
    }

    /// Whether objects follow one another, so that a piece of one object is a piece of the image.
    pub fn is_linear(&self) -> bool {
        self.stripe_count == 1
    }

    /// How many objects an image of `size` bytes has (`Striper::get_num_objects`).
    pub fn object_count(&self, size: u64) -> u64 {
        let sets = size / self.set_size();
        let rest = size % self.set_size();
        let last = rest.div_ceil(self.stripe_unit).min(self.stripe_count);
        sets * self.stripe_count + last
    }

    /// Bytes of object position `pos` of a set that lie before byte `x` of the set.
    fn share(&self, pos: u64, x: u64) -> u64 {
        if self.is_linear() {
            return x;
        }
        let stripe = self.stripe_unit * self.stripe_count;
        let part = (x % stripe)
            .saturating_sub(pos * self.stripe_unit)
            .min(self.stripe_unit);
        x / stripe * self.stripe_unit + part
    }

    /// The object ranges that hold `len` bytes of the image from `offset`: one range per object.
    pub fn extents(&self, offset: u64, len: u64) -> Extents<'_> {
        Extents {
            layout: self,
            next: offset,
            end: offset + len,
            visited: 0,
        }
    }

    /// Where byte `offset` of object `object` lies in the image.
    pub fn image_offset(&self, object: u64, offset: u64) -> u64 {
        let set = object / self.stripe_count;
        let pos = object % self.stripe_count;
        if self.is_linear() {
            return object * self.object_size + offset;
        }
        let stripe = offset / self.stripe_unit;
        set * self.set_size()
            + (stripe * self.stripe_count + pos) * self.stripe_unit
            + offset % self.stripe_unit
    }

    /// The pieces of the image, as offsets into it, that make up an object range, in object order.
    pub fn pieces(&self, extent: ObjectExtent) -> Pieces<'_> {
        Pieces {
            layout: self,
            rest: extent,
        }
    }
}

/// See [`Layout::extents`].
#[derive(Debug, Clone)]
pub struct Extents<'a> {
    layout: &'a Layout,
    next: u64,
    end: u64,
    /// Objects of the current set already yielded.
    visited: u64,
}

impl Iterator for Extents<'_> {
    type Item = ObjectExtent;

    #[inline]
    fn next(&mut self) -> Option<ObjectExtent> {
        if self.next >= self.end {
            return None;
        }
        let l = self.layout;
        let set = self.next / l.set_size();
        let base = set * l.set_size();
        let from = self.next - base;
        let to = (self.end - base).min(l.set_size());
        // Only the objects that the range touches are visited, so that the work is bounded by the
        // range and not by the stripe count.
        let first = from / l.stripe_unit;
        let touched = (to.div_ceil(l.stripe_unit) - first).min(l.stripe_count);
        let touched = if l.is_linear() { 1 } else { touched };
        let pos = (first + self.visited) % l.stripe_count;
        self.visited += 1;
        if self.visited == touched {
            self.visited = 0;
            self.next = base + to;
        }
        let (a, b) = (l.share(pos, from), l.share(pos, to));
        debug_assert!(a < b);
        Some(ObjectExtent {
            object: set * l.stripe_count + pos,
            offset: a,
            len: b - a,
        })
    }
}

/// See [`Layout::pieces`].
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    layout: &'a Layout,
    rest: ObjectExtent,
}

impl Iterator for Pieces<'_> {
    type Item = Range<u64>;

    #[inline]
    fn next(&mut self) -> Option<Range<u64>> {
        let e = &mut self.rest;
        if e.len == 0 {
            return None;
        }
        let l = self.layout;
        let room = if l.is_linear() {
            l.object_size - e.offset
        } else {
            l.stripe_unit - e.offset % l.stripe_unit
        };
        let n = room.min(e.len);
        let at = l.image_offset(e.object, e.offset);
        e.offset += n;
        e.len -= n;
        Some(at..at + n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One byte at a time, straight from the definition.
    fn place(l: &Layout, byte: u64) -> (u64, u64) {
        let block = byte / l.stripe_unit;
        let stripe = block / l.stripe_count;
        let pos = block % l.stripe_count;
        let per_object = l.object_size / l.stripe_unit;
        let object = stripe / per_object * l.stripe_count + pos;
        (
            object,
            stripe % per_object * l.stripe_unit + byte % l.stripe_unit,
        )
    }

    #[test]
    fn what_librbd_refuses_is_refused() {
        assert_eq!(Layout::new(11, 0, 0), Err(LayoutError::Order(11)));
        assert_eq!(Layout::new(26, 0, 0), Err(LayoutError::Order(26)));
        assert_eq!(Layout::new(22, 65536, 0), Err(LayoutError::Half));
        assert!(matches!(
            Layout::new(22, 3 << 20, 2),
            Err(LayoutError::Unit { .. })
        ));
        assert!(matches!(
            Layout::new(22, 8 << 20, 2),
            Err(LayoutError::Unit { .. })
        ));
    }

    #[test]
    fn a_linear_request_inside_an_object_is_one_extent() {
        let l = Layout::new(22, 0, 0).unwrap();
        let e: Vec<_> = l.extents((5 << 22) + 4096, 8192).collect();
        assert_eq!(
            e,
            [ObjectExtent {
                object: 5,
                offset: 4096,
                len: 8192
            }]
        );
        assert_eq!(l.object_count((5 << 22) + 1), 6);
    }

    proptest! {
        #[test]
        fn extents_and_pieces_agree_with_the_definition(
            unit_shift in 0u32..4, count in 1u64..6, offset in 0u64..200_000, len in 0u64..70_000,
        ) {
            let l = Layout::new(12, 4096 >> unit_shift, count).unwrap();
            let mut seen = vec![false; len as usize];
            for e in l.extents(offset, len) {
                prop_assert!(e.len > 0 && e.offset + e.len <= l.object_size());
                let mut at = e.offset;
                for piece in l.pieces(e) {
                    for byte in piece {
                        prop_assert_eq!(place(&l, byte), (e.object, at));
                        let i = (byte - offset) as usize;
                        prop_assert!(!std::mem::replace(&mut seen[i], true));
                        at += 1;
                    }
                }
                prop_assert_eq!(at, e.offset + e.len);
            }
            prop_assert!(seen.into_iter().all(|s| s));
        }

        #[test]
        fn object_count_covers_the_last_byte(unit_shift in 0u32..4, count in 1u64..6, size in 1u64..200_000) {
            let l = Layout::new(12, 4096 >> unit_shift, count).unwrap();
            let highest = l.extents(0, size).map(|e| e.object).max().unwrap();
            prop_assert_eq!(l.object_count(size), highest + 1);
        }
    }
}
