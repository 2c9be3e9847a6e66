use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign};

macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $flag:ident = $bit:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            pub const NONE: $name = $name(0);
            $($(#[$fdoc])* pub const $flag: $name = $name($bit);)*

            #[inline]
            pub const fn has(self, other: $name) -> bool {
                self.0 & other.0 != 0
            }

            #[inline]
            pub const fn without(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = $name;
            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }

        impl BitAnd for $name {
            type Output = $name;
            fn bitand(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

flag_set! {
    /// Flags of a whole request (`CEPH_OSD_FLAG_*`, `src/include/rados.h`).
    OsdFlags {
        ACK = 0x1;
        ONDISK = 0x4;
        /// Not the first attempt.
        RETRY = 0x8;
        READ = 0x10;
        WRITE = 0x20;
        /// Fail with EOLDSNAPC when the object has seen a newer snap context.
        ORDERSNAP = 0x40;
        /// Any member of the acting set may serve the read.
        BALANCE_READS = 0x100;
        /// The request names a pg, no object.
        PGOP = 0x400;
        /// The nearest member of the acting set may serve the read.
        LOCALIZE_READS = 0x2000;
        /// Order the read with the object's writes.
        RWORDERED = 0x4000;
        IGNORE_CACHE = 0x8000;
        SKIPRWLOCKS = 0x1_0000;
        /// Do not follow the pool's cache tier.
        IGNORE_OVERLAY = 0x2_0000;
        ENFORCE_SNAPC = 0x10_0000;
        REDIRECTED = 0x20_0000;
        /// The REDIRECTED bit can be relied on.
        KNOWN_REDIR = 0x40_0000;
        /// Try although the pool is full, fail with ENOSPC.
        FULL_TRY = 0x80_0000;
        /// Go on although the pool is full.
        FULL_FORCE = 0x100_0000;
        IGNORE_REDIRECT = 0x200_0000;
        /// A write may return data and values above zero.
        RETURNVEC = 0x400_0000;
        SUPPORTS_POOL_EIO = 0x800_0000;
    }
}

flag_set! {
    /// Flags of one operation of a request (`CEPH_OSD_OP_FLAG_*`, `src/include/rados.h`).
    OpFlags {
        /// `create` fails when the object exists.
        EXCL = 0x1;
        /// Go on with the next operation when this one fails.
        FAILOK = 0x2;
        FADVISE_RANDOM = 0x4;
        FADVISE_SEQUENTIAL = 0x8;
        FADVISE_WILLNEED = 0x10;
        FADVISE_DONTNEED = 0x20;
        FADVISE_NOCACHE = 0x40;
    }
}

flag_set! {
    /// Flags of an OSD map that a client obeys (`CEPH_OSDMAP_*`, `src/include/rados.h`).
    OsdMapFlags {
        FULL = 1 << 1;
        PAUSERD = 1 << 2;
        PAUSEWR = 1 << 3;
        SORTBITWISE = 1 << 15;
        RECOVERY_DELETES = 1 << 19;
    }
}
