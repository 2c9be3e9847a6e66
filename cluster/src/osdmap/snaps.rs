//! Sets of snapshot ids as intervals (`interval_set<snapid_t>` of `src/include/interval_set.h`).

use std::collections::BTreeMap;

use super::wire::{put_map, read_map};
use crate::codec::{Put, Reader, Result};

/// Start to length, neither overlapping nor touching.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapIntervals(BTreeMap<u64, u64>);

impl SnapIntervals {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Start and length of each interval.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(s, l)| (*s, *l))
    }

    pub fn contains(&self, snap: u64) -> bool {
        self.0
            .range(..=snap)
            .next_back()
            .is_some_and(|(start, len)| snap - start < *len)
    }

    pub fn insert(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut from, mut to) = (start, start.saturating_add(len));
        // Swallow everything that overlaps or touches.
        while let Some((&s, &l)) = self.0.range(..=to).next_back() {
            let end = s.saturating_add(l);
            if end < from {
                break;
            }
            self.0.remove(&s);
            from = from.min(s);
            to = to.max(end);
        }
        self.0.insert(from, to - from);
    }

    pub fn remove(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = start.saturating_add(len);
        while let Some((&s, &l)) = self.0.range(..end).next_back() {
            let old_end = s.saturating_add(l);
            if old_end <= start {
                break;
            }
            self.0.remove(&s);
            if old_end > end {
                self.0.insert(end, old_end - end);
            }
            if s < start {
                self.0.insert(s, start - s);
                break;
            }
        }
    }

    pub(super) fn union(&mut self, other: &SnapIntervals) {
        other.iter().for_each(|(s, l)| self.insert(s, l));
    }

    pub(super) fn subtract(&mut self, other: &SnapIntervals) {
        other.iter().for_each(|(s, l)| self.remove(s, l));
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<SnapIntervals> {
        let raw = read_map(r, 16, |r| Ok((r.u64()?, r.u64()?)))?;
        let mut set = SnapIntervals::default();
        raw.into_iter().for_each(|(s, l)| set.insert(s, l));
        Ok(set)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_map(out, &self.0, |out, start, len| {
            out.put_u64(*start);
            out.put_u64(*len);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn intervals_agree_with_a_plain_set(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..12), 0..40),
        ) {
            let (mut set, mut plain) = (SnapIntervals::default(), BTreeSet::new());
            for (add, start, len) in steps {
                if add {
                    set.insert(start, len);
                    plain.extend(start..start + len);
                } else {
                    set.remove(start, len);
                    plain.retain(|s| !(start..start + len).contains(s));
                }
                for snap in 0..80 {
                    prop_assert_eq!(set.contains(snap), plain.contains(&snap));
                }
                let mut last = None;
                for (s, l) in set.iter() {
                    prop_assert!(l > 0 && last.is_none_or(|end| end < s));
                    last = Some(s + l);
                }
            }
        }
    }
}
