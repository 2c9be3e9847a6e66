//! xxHash in 32 and 64 bits, for the checksums of an object's data.
//!
//! Source: the specification of xxHash (`doc/xxhash_spec.md`).

const P32: [u32; 5] = [
    0x9e37_79b1,
    0x85eb_ca77,
    0xc2b2_ae3d,
    0x27d4_eb2f,
    0x1656_67b1,
];
const P64: [u64; 5] = [
    0x9e37_79b1_85eb_ca87,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0x85eb_ca77_c2b2_ae63,
    0x27d4_eb2f_1656_67c5,
];

fn word32(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b))
}

fn word64(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn round32(lane: u32, word: u32) -> u32 {
    let sum = lane.wrapping_add(word.wrapping_mul(P32[1]));
    sum.rotate_left(13).wrapping_mul(P32[0])
}

fn round64(lane: u64, word: u64) -> u64 {
    let sum = lane.wrapping_add(word.wrapping_mul(P64[1]));
    sum.rotate_left(31).wrapping_mul(P64[0])
}

pub(super) fn xxh32(seed: u32, data: &[u8]) -> u32 {
    let mut lanes = [
        seed.wrapping_add(P32[0]).wrapping_add(P32[1]),
        seed.wrapping_add(P32[1]),
        seed,
        seed.wrapping_sub(P32[0]),
    ];
    let stripes = data.chunks_exact(16);
    let rest = stripes.remainder();
    for stripe in stripes {
        for (lane, word) in lanes.iter_mut().zip(stripe.chunks_exact(4)) {
            *lane = round32(*lane, word32(word));
        }
    }
    let mut hash = if data.len() < 16 {
        seed.wrapping_add(P32[4])
    } else {
        let turned = lanes.iter().zip([1, 7, 12, 18]);
        turned.fold(0, |sum: u32, (lane, by)| {
            sum.wrapping_add(lane.rotate_left(by))
        })
    };
    hash = hash.wrapping_add(data.len() as u32);

    let words = rest.chunks_exact(4);
    let bytes = words.remainder();
    for word in words {
        hash = hash.wrapping_add(word32(word).wrapping_mul(P32[2]));
        hash = hash.rotate_left(17).wrapping_mul(P32[3]);
    }
    for byte in bytes {
        hash = hash.wrapping_add(u32::from(*byte).wrapping_mul(P32[4]));
        hash = hash.rotate_left(11).wrapping_mul(P32[0]);
    }
    hash = (hash ^ hash >> 15).wrapping_mul(P32[1]);
    hash = (hash ^ hash >> 13).wrapping_mul(P32[2]);
    hash ^ hash >> 16
}

pub(super) fn xxh64(seed: u64, data: &[u8]) -> u64 {
    let mut lanes = [
        seed.wrapping_add(P64[0]).wrapping_add(P64[1]),
        seed.wrapping_add(P64[1]),
        seed,
        seed.wrapping_sub(P64[0]),
    ];
    let stripes = data.chunks_exact(32);
    let rest = stripes.remainder();
    for stripe in stripes {
        for (lane, word) in lanes.iter_mut().zip(stripe.chunks_exact(8)) {
            *lane = round64(*lane, word64(word));
        }
    }
    let mut hash = if data.len() < 32 {
        seed.wrapping_add(P64[4])
    } else {
        let turned = lanes.iter().zip([1, 7, 12, 18]);
        let sum = turned.fold(0, |sum: u64, (lane, by)| {
            sum.wrapping_add(lane.rotate_left(by))
        });
        lanes.iter().fold(sum, |hash, lane| {
            let merged = hash ^ round64(0, *lane);
            merged.wrapping_mul(P64[0]).wrapping_add(P64[3])
        })
    };
    hash = hash.wrapping_add(data.len() as u64);

    let words = rest.chunks_exact(8);
    let mut bytes = words.remainder();
    for word in words {
        hash ^= round64(0, word64(word));
        hash = hash.rotate_left(27).wrapping_mul(P64[0]);
        hash = hash.wrapping_add(P64[3]);
    }
    if let Some((half, last)) = bytes.split_at_checked(4) {
        hash ^= u64::from(word32(half)).wrapping_mul(P64[0]);
        hash = hash.rotate_left(23).wrapping_mul(P64[1]);
        hash = hash.wrapping_add(P64[2]);
        bytes = last;
    }
    for byte in bytes {
        hash ^= u64::from(*byte).wrapping_mul(P64[4]);
        hash = hash.rotate_left(11).wrapping_mul(P64[0]);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(P64[1]);
    hash = (hash ^ hash >> 29).wrapping_mul(P64[2]);
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes by libxxhash 0.8, of bytes 0, 7, 14 and so on.
    #[test]
    fn hashes_are_those_of_libxxhash() {
        let data: Vec<u8> = (0..200u32).map(|i| (i * 7) as u8).collect();
        for (length, seed, want32, want64) in VECTORS {
            let data = &data[..length];
            assert_eq!(xxh32(seed as u32, data), want32, "{length} {seed:#x}");
            assert_eq!(xxh64(seed, data), want64, "{length} {seed:#x}");
        }
    }

    const VECTORS: [(usize, u64, u32, u64); 12] = [
        (0, 0, 0x02cc_5d05, 0xef46_db37_51d8_e999),
        (1, 0x9e37_79b9_7f4a_7c15, 0x43b1_bd57, 0x126b_b57a_1236_4aa5),
        (4, 0, 0xc8f6_0fc5, 0xae5a_cdc0_0a55_ac41),
        (7, 0x9e37_79b9_7f4a_7c15, 0xd1e4_0701, 0x60bf_31ab_f53f_85dd),
        (
            15,
            0x9e37_79b9_7f4a_7c15,
            0x9ab2_7410,
            0x778b_ed27_9107_df97,
        ),
        (16, 0, 0xb59b_7e13, 0xed1d_d2fa_c0a3_1fbc),
        (
            31,
            0x9e37_79b9_7f4a_7c15,
            0x6ad0_a661,
            0x74a5_c408_b232_704d,
        ),
        (32, 0, 0xd7f7_0f45, 0x91b0_cb09_31a8_c629),
        (
            63,
            0x9e37_79b9_7f4a_7c15,
            0xef2f_6f1d,
            0x3d33_bc4b_fd4d_217f,
        ),
        (100, 0, 0xaa19_e8b7, 0x8e22_72c0_8247_d5db),
        (
            199,
            0x9e37_79b9_7f4a_7c15,
            0x0589_2b51,
            0x698a_dc50_b5f0_6a46,
        ),
        (200, 0, 0xe4a5_c3a5, 0x6daa_a525_0558_7dd5),
    ];
}
