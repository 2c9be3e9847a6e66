//! The feature bits of a format-2 image.
//!
//! Source: `src/include/rbd/features.h`.

use std::fmt;

/// A set of image features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u64);

impl Features {
    pub const LAYERING: Features = Features(1 << 0);
    pub const STRIPING: Features = Features(1 << 1);
    pub const EXCLUSIVE_LOCK: Features = Features(1 << 2);
    pub const OBJECT_MAP: Features = Features(1 << 3);
    pub const FAST_DIFF: Features = Features(1 << 4);
    pub const DEEP_FLATTEN: Features = Features(1 << 5);
    pub const JOURNALING: Features = Features(1 << 6);
    pub const DATA_POOL: Features = Features(1 << 7);
    pub const OPERATIONS: Features = Features(1 << 8);
    pub const MIGRATING: Features = Features(1 << 9);
    pub const NON_PRIMARY: Features = Features(1 << 10);
    pub const DIRTY_CACHE: Features = Features(1 << 11);

    /// What a writer need not maintain beyond the data itself.
    pub const WRITABLE: Features = Features(
        Self::LAYERING.0
            | Self::STRIPING.0
            | Self::DEEP_FLATTEN.0
            | Self::DATA_POOL.0
            | Self::OPERATIONS.0,
    );

    /// What leaves the data readable by plain object reads, even while another client writes it.
    pub const READABLE: Features = Features(
        Self::WRITABLE.0
            | Self::EXCLUSIVE_LOCK.0
            | Self::OBJECT_MAP.0
            | Self::FAST_DIFF.0
            | Self::JOURNALING.0
            | Self::NON_PRIMARY.0,
    );

    const NAMES: [(Features, &'static str); 12] = [
        (Self::LAYERING, "layering"),
        (Self::STRIPING, "striping"),
        (Self::EXCLUSIVE_LOCK, "exclusive-lock"),
        (Self::OBJECT_MAP, "object-map"),
        (Self::FAST_DIFF, "fast-diff"),
        (Self::DEEP_FLATTEN, "deep-flatten"),
        (Self::JOURNALING, "journaling"),
        (Self::DATA_POOL, "data-pool"),
        (Self::OPERATIONS, "operations"),
        (Self::MIGRATING, "migrating"),
        (Self::NON_PRIMARY, "non-primary"),
        (Self::DIRTY_CACHE, "dirty-cache"),
    ];

    pub fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    pub fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of the bits that are set, in bit order; unknown bits as `bit-N`.
    pub fn names(self) -> Vec<String> {
        (0..64)
            .filter(|bit| self.0 >> bit & 1 == 1)
            .map(|bit| {
                let known = Self::NAMES.iter().find(|(f, _)| f.0 == 1 << bit);
                known.map_or_else(|| format!("bit-{bit}"), |(_, name)| (*name).to_string())
            })
            .collect()
    }

    /// The feature of that name, as `rbd` spells it.
    pub fn from_name(name: &str) -> Option<Features> {
        Self::NAMES
            .iter()
            .find(|(_, n)| *n == name)
            .map(|(f, _)| *f)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits_are_those_of_rbd_info() {
        // `rbd info` of a default image: features value 0x3d.
        let f = Features(0x3d);
        assert_eq!(
            f.to_string(),
            "layering, exclusive-lock, object-map, fast-diff, deep-flatten"
        );
        assert_eq!(Features::from_name("data-pool"), Some(Features::DATA_POOL));
        assert_eq!(Features(1 << 40).to_string(), "bit-40");
    }

    #[test]
    fn nothing_with_a_lock_is_writable() {
        for f in [
            Features::EXCLUSIVE_LOCK,
            Features::OBJECT_MAP,
            Features::JOURNALING,
        ] {
            assert!(!Features::WRITABLE.contains(f));
            assert!(Features::READABLE.contains(f));
        }
        assert!(!Features::READABLE.contains(Features::MIGRATING));
    }
}
