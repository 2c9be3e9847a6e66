//! Sets of bytes as ranges: offset and length, ascending, neither overlapping nor touching
//! (`interval_set`, `src/include/interval_set.h`).

pub(super) type Range = (u64, u64);

/// Adds a range.
pub(super) fn insert(set: &mut Vec<Range>, offset: u64, length: u64) {
    if length == 0 {
        return;
    }
    let (mut from, mut to) = (offset, offset + length);
    // What overlaps or touches the range is between `first` and `last`.
    let first = set.partition_point(|r| r.0 + r.1 < from);
    let last = set.partition_point(|r| r.0 <= to);
    if let Some(r) = set[first..last].first() {
        from = from.min(r.0);
    }
    if let Some(r) = set[first..last].last() {
        to = to.max(r.0 + r.1);
    }
    set.splice(first..last, [(from, to - from)]);
}

/// What is in both.
pub(super) fn intersection(a: &[Range], b: &[Range]) -> Vec<Range> {
    let mut out = Vec::new();
    let (mut i, mut j) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let (from, to) = (x.0.max(y.0), (x.0 + x.1).min(y.0 + y.1));
        if from < to {
            out.push((from, to - from));
        }
        if x.0 + x.1 < y.0 + y.1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    out
}

/// What is in `a` and not in `b`.
pub(super) fn difference(a: &[Range], b: &[Range]) -> Vec<Range> {
    let mut out = Vec::new();
    let mut j = 0;
    for &(offset, length) in a {
        let (mut from, to) = (offset, offset + length);
        while let Some(y) = b.get(j).filter(|y| y.0 < to) {
            if y.0 > from {
                out.push((from, y.0 - from));
            }
            from = from.max(y.0 + y.1);
            if from >= to {
                break;
            }
            j += 1;
        }
        if from < to {
            out.push((from, to - from));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    type Bits = [bool; 64];

    fn bits(set: &[Range]) -> Bits {
        let mut out = [false; 64];
        for &(from, len) in set {
            out[from as usize..(from + len) as usize].fill(true);
        }
        out
    }

    fn sound(set: &[Range]) -> bool {
        set.iter().all(|r| r.1 > 0) && set.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0)
    }

    proptest! {
        #[test]
        fn sets_of_ranges_are_sets_of_bytes(a in vec((0u64..56, 0u64..8), 0..9), b in vec((0u64..56, 0u64..8), 0..9)) {
            let build = |parts: &[Range]| {
                let (mut set, mut model) = (Vec::new(), [false; 64]);
                for &(from, len) in parts {
                    insert(&mut set, from, len);
                    model[from as usize..(from + len) as usize].fill(true);
                }
                assert!(sound(&set) && bits(&set) == model, "{parts:?} became {set:?}");
                (set, model)
            };
            let ((a, x), (b, y)) = (build(&a), build(&b));
            let both = intersection(&a, &b);
            let left = difference(&a, &b);
            prop_assert!(sound(&both) && sound(&left));
            let (both, left) = (bits(&both), bits(&left));
            for i in 0..64 {
                prop_assert_eq!(both[i], x[i] && y[i]);
                prop_assert_eq!(left[i], x[i] && !y[i]);
            }
        }
    }
}
