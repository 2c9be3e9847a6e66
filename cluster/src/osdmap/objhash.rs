//! Object names to placement seeds (`src/common/ceph_hash.cc`, `src/include/rados.h`).

use super::crush::hash::mix;

/// `CEPH_STR_HASH_LINUX` and `CEPH_STR_HASH_RJENKINS`, as pools name their hash.
pub const LINUX: u8 = 1;
pub const RJENKINS: u8 = 2;

/// A name as the hash sees it: namespace, separator, key. It is never put together in memory.
pub(super) fn object_hash(kind: u8, namespace: &[u8], key: &[u8]) -> u32 {
    let parts = if namespace.is_empty() {
        [key, &[], &[]]
    } else {
        [namespace, &[0x1f], key]
    };
    match kind {
        LINUX => linux(parts),
        RJENKINS => rjenkins(parts),
        // `ceph_str_hash` of an unknown kind
        _ => u32::MAX,
    }
}

/// The hash of Linux's dentry cache.
fn linux(parts: [&[u8]; 3]) -> u32 {
    parts.iter().copied().flatten().fold(0u32, |hash, &c| {
        let c = u32::from(c);
        hash.wrapping_add(c << 4)
            .wrapping_add(c >> 4)
            .wrapping_mul(11)
    })
}

/// Bob Jenkins' string hash: twelve bytes a turn; the last turn takes what is left and the length.
fn rjenkins(parts: [&[u8]; 3]) -> u32 {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let (mut a, mut b, mut c) = (0x9e37_79b9u32, 0x9e37_79b9u32, 0u32);
    let mut block = [0u8; 12];
    let mut filled = 0;
    for mut part in parts {
        while !part.is_empty() {
            let n = part.len().min(12 - filled);
            let (head, rest) = part.split_at(n);
            block[filled..filled + n].copy_from_slice(head);
            filled += n;
            part = rest;
            if filled == 12 {
                let [x, y, z] = words(&block);
                a = a.wrapping_add(x);
                b = b.wrapping_add(y);
                c = c.wrapping_add(z);
                mix(&mut a, &mut b, &mut c);
                filled = 0;
            }
        }
    }
    block[filled..].fill(0);
    let [x, y, z] = words(&block);
    a = a.wrapping_add(x);
    b = b.wrapping_add(y);
    // The lowest byte of `c` is kept for the length, so its bytes sit one higher.
    c = c.wrapping_add(len as u32).wrapping_add(z << 8);
    mix(&mut a, &mut b, &mut c);
    c
}

fn words(block: &[u8; 12]) -> [u32; 3] {
    let word = |i: usize| u32::from_le_bytes([block[i], block[i + 1], block[i + 2], block[i + 3]]);
    [word(0), word(4), word(8)]
}

/// `ceph_stable_mod`: `x` modulo `n`, chosen so that growing `n` only splits. `mask` is the
/// smallest 2^k - 1 that is no less than `n - 1`.
#[inline]
pub(crate) fn stable_mod(x: u32, n: u32, mask: u32) -> u32 {
    if x & mask < n {
        x & mask
    } else {
        x & (mask >> 1)
    }
}

/// The mask for [`stable_mod`] (`pg_pool_t::calc_pg_masks`).
pub(crate) fn mask_of(n: u32) -> u32 {
    match n.saturating_sub(1) {
        0 => 0,
        top => u32::MAX >> top.leading_zeros(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_linux_hash_is_the_kernels() {
        // By hand: (0 + ('a' << 4) + ('a' >> 4)) * 11.
        assert_eq!(object_hash(LINUX, b"", b"a"), (0x610 + 6) * 11);
        let ab = (((0x610u32 + 6) * 11) + 0x620 + 6).wrapping_mul(11);
        assert_eq!(object_hash(LINUX, b"", b"ab"), ab);
    }

    #[test]
    fn masks_cover_the_number() {
        let masks: Vec<u32> = [0, 1, 2, 3, 4, 5, 12, 16, 17].map(mask_of).to_vec();
        assert_eq!(masks, [0, 0, 1, 3, 3, 7, 15, 15, 31]);
    }

    proptest! {
        #[test]
        fn a_namespace_hashes_as_one_string(ns in "[a-z]{1,30}", key in ".{0,60}") {
            let whole = [ns.as_bytes(), b"\x1f", key.as_bytes()].concat();
            for kind in [LINUX, RJENKINS] {
                prop_assert_eq!(
                    object_hash(kind, ns.as_bytes(), key.as_bytes()),
                    object_hash(kind, b"", &whole)
                );
            }
        }

        #[test]
        fn stable_mod_stays_below_and_splits_cleanly(x: u32, n in 1u32..100_000) {
            let at = stable_mod(x, n, mask_of(n));
            prop_assert!(at < n);
            // One more PG takes from a single parent.
            let more = stable_mod(x, n + 1, mask_of(n + 1));
            prop_assert!(more == at || (more == n && stable_mod(n, n, mask_of(n)) == at));
        }
    }
}
