//! Fixed-point binary logarithm for straw2 draws (`crush_ln` of `src/crush/mapper.c`).
//!
//! Placement depends on every bit of it, so the tables must equal Ceph's, flaws included. Two of
//! the three are exact and computed here; the third is not what its formula says and is stated.

/// ceil(2^48 / (1 + k/128)) for k in 0..=128.
const RECIPROCAL: [u64; 129] = reciprocals();
/// floor(2^48 * log2(1 + k/128)) for k in 0..=128, but for the last.
const LOG_HIGH: [u64; 129] = logs();

const fn reciprocals() -> [u64; 129] {
    let mut t = [0; 129];
    let mut k = 0;
    while k < 129 {
        t[k] = (1u64 << 55).div_ceil(128 + k as u64);
        k += 1;
    }
    t
}

const fn logs() -> [u64; 129] {
    let mut t = [0; 129];
    let mut k = 0;
    while k < 128 {
        t[k] = log2_48((128 + k as u64) << 55);
        k += 1;
    }
    // Ceph's table ends below the formula's 2^48; inputs of 0x10000 take this entry.
    t[128] = 0xffff_0000_0000;
    t
}

/// 48 fractional bits of log2 of a number in [1, 2) with 62 fractional bits, by squaring.
const fn log2_48(mut x: u64) -> u64 {
    let mut bits = 0;
    let mut i = 0;
    while i < 48 {
        let mut square = ((x as u128 * x as u128) >> 62) as u64;
        bits <<= 1;
        if square >> 63 != 0 {
            bits |= 1;
            square >>= 1;
        }
        x = square;
        i += 1;
    }
    bits
}

/// `__LL_tbl` of `src/crush/crush_ln_table.h`. Meant as 2^48 * log2(1 + k/2^15), yet most entries
/// lie 0x147700000 above that and some elsewhere; placement has depended on them since Hammer.
#[rustfmt::skip]
const LOG_LOW: [u64; 256] = [
    0x0000000000, 0x02e2a60a00, 0x070cb64ec5, 0x09ef50ce67, 0x0cd1e588fd, 0x0fb4747e9c,
    0x1296fdaf5e, 0x1579811b58, 0x185bfec2a1, 0x1b3e76a552, 0x1e20e8c380, 0x2103551d43,
    0x23e5bbb2b2, 0x26c81c83e4, 0x29aa7790f0, 0x2c8cccd9ed, 0x2f6f1c5ef2, 0x3251662017,
    0x3533aa1d71, 0x3815e8571a, 0x3af820cd26, 0x3dda537fae, 0x40bc806ec8, 0x439ea79a8c,
    0x4680c90310, 0x4962e4a86c, 0x4c44fa8ab6, 0x4f270aaa06, 0x5209150672, 0x54eb19a013,
    0x57cd1876fd, 0x5aaf118b4a, 0x5d9104dd0f, 0x6072f26c64, 0x6354da3960, 0x6636bc441a,
    0x6918988ca8, 0x6bfa6f1322, 0x6edc3fd79f, 0x71be0ada35, 0x749fd01afd, 0x77818f9a0c,
    0x7a6349577a, 0x7d44fd535e, 0x8026ab8dce, 0x83085406e3, 0x85e9f6beb2, 0x88cb93b552,
    0x8bad2aeadc, 0x8e8ebc5f65, 0x9170481305, 0x9451ce05d3, 0x97334e37e5, 0x9a14c8a953,
    0x9cf63d5a33, 0x9fd7ac4a9d, 0xa2b07f3458, 0xa59a78ea6a, 0xa87bd699fb, 0xab5d2e8970,
    0xae3e80b8e3, 0xb11fcd2869, 0xb40113d818, 0xb6e254c80a, 0xb9c38ff853, 0xbca4c5690c,
    0xbf85f51a4a, 0xc2671f0c26, 0xc548433eb6, 0xc82961b211, 0xcb0a7a664d, 0xcdeb8d5b82,
    0xd0cc9a91c8, 0xd3ada20933, 0xd68ea3c1dd, 0xd96f9fbbdb, 0xdc5095f744, 0xdf31867430,
    0xe2127132b5, 0xe4f35632ea, 0xe7d43574e6, 0xeab50ef8c1, 0xed95e2be90, 0xf076b0c66c,
    0xf35779106a, 0xf6383b9ca2, 0xf918f86b2a, 0xfbf9af7c1a, 0xfeda60cf88, 0x101bb0c658c,
    0x1049bb23e3c, 0x1077c5259af, 0x10a5cecb7fc, 0x10d3d81593a, 0x1101e103d7f, 0x112fe9964e4,
    0x115df1ccf7e, 0x118bf9a7d64, 0x11ba0126ead, 0x11e8084a371, 0x12160f11bc6, 0x1244157d7c3,
    0x12721b8d77f, 0x12a02141b10, 0x12ce269a28e, 0x12fc2b96e0f, 0x132a3037daa, 0x1358347d177,
    0x1386386698c, 0x13b43bf45ff, 0x13e23f266e9, 0x141041fcc5e, 0x143e4477678, 0x146c469654b,
    0x149a48598f0, 0x14c849c117c, 0x14f64accf08, 0x15244b7d1a9, 0x15524bd1976, 0x15804bca687,
    0x15ae4b678f2, 0x15dc4aa90ce, 0x160a498ee31, 0x16384819134, 0x166646479ec, 0x1694441a870,
    0x16c24191cd7, 0x16df6ca19bd, 0x171e3b6d7aa, 0x174c37d1e44, 0x177a33dab1c, 0x17a82f87e49,
    0x17d62ad97e2, 0x180425cf7fe, 0x182b07f3458, 0x18601aa8c19, 0x188e148c046, 0x18bc0e13b52,
    0x18ea073fd52, 0x1918001065d, 0x1945f88568b, 0x1973f09edf2, 0x19a1e85ccaa, 0x19cfdfbf2c8,
    0x19fdd6c6063, 0x1a2bcd71593, 0x1a59c3c126e, 0x1a87b9b570b, 0x1ab5af4e380, 0x1ae3a48b7e5,
    0x1b11996d450, 0x1b3f8df38d9, 0x1b6d821e595, 0x1b9b75eda9b, 0x1bc96961803, 0x1bf75c79de3,
    0x1c254f36c51, 0x1c534198365, 0x1c81339e336, 0x1caf2548bd9, 0x1cdd1697d67, 0x1d0b078b7f5,
    0x1d38f823b9a, 0x1d66e86086d, 0x1d94d841e86, 0x1dc2c7c7df9, 0x1df0b6f26df, 0x1e1ea5c194e,
    0x1e4c943555d, 0x1e7a824db23, 0x1ea8700aab5, 0x1ed65d6c42b, 0x1f044a7279d, 0x1f32371d51f,
    0x1f60236ccca, 0x1f8e0f60eb3, 0x1fbbfaf9af3, 0x1fe9e63719e, 0x2017d1192cc, 0x2045bb9fe94,
    0x2073a5cb50d, 0x209c06e6212, 0x20cf791026a, 0x20fd622997c, 0x212b07f3458, 0x2159334a8d8,
    0x21871b52150, 0x21b502fe517, 0x21d6a73a78f, 0x2210d144eee, 0x223eb7df52c, 0x226c9e1e713,
    0x229a84024bb, 0x22c23679b4e, 0x22f64eb83a8, 0x2324338a51b, 0x235218012a9, 0x237ffc1cc69,
    0x23a2c3b0ea4, 0x23d13ee805b, 0x24035e9221f, 0x243788faf25, 0x24656b4e735, 0x247ed646bfe,
    0x24c12ee3d98, 0x24ef1025c1a, 0x251cf10c799, 0x25492644d65, 0x2578b1c85ee, 0x25a6919d8f0,
    0x25d13ee805b, 0x26025036716, 0x26296453882, 0x265e0d62b53, 0x268beb701f3, 0x26b9c92265e,
    0x26d32f798a9, 0x271583758eb, 0x2743601673b, 0x27713c5c3b0, 0x279f1846e5f, 0x27ccf3d6761,
    0x27e6580aecb, 0x2828a9e44b3, 0x28568462932, 0x287bdbf5255, 0x28b2384de4a, 0x28d13ee805b,
    0x29035e9221f, 0x29296453882, 0x29699bdfb61, 0x29902a37aab, 0x29c54b864c9, 0x29deabd1083,
    0x2a20f9c0bb5, 0x2a4c7605d61, 0x2a7bdbf5255, 0x2a96056dafc, 0x2ac3daf14ef, 0x2af1b019eca,
    0x2b296453882, 0x2b5d022d80f, 0x2b8fa471cb3, 0x2ba9012e713, 0x2bd6d4901cc, 0x2c04a796cf6,
    0x2c327a428a6, 0x2c61a5e8f4c, 0x2c8e1e891f6, 0x2cbbf023fc2, 0x2ce9c163e6e, 0x2d179248e13,
    0x2d4562d2ec6, 0x2d73330209d, 0x2da102d63b0, 0x2dced24f814,
];

/// 2^44 * log2(x + 1) for x up to 0xffff.
#[inline]
pub(super) fn ln(x: u32) -> u64 {
    let mut x = x + 1;
    let mut exponent = 15;
    if x & 0x18000 == 0 {
        let bits = (x & 0x1ffff).leading_zeros() - 16;
        x <<= bits;
        exponent = 15 - bits;
    }
    let k = ((x >> 8) - 128) as usize;
    let low = (u64::from(x).wrapping_mul(RECIPROCAL[k]) >> 48) & 0xff;
    (u64::from(exponent) << 44) + ((LOG_HIGH[k] + LOG_LOW[low as usize]) >> 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(table: &[u64]) -> u32 {
        let bytes: Vec<u8> = table.iter().flat_map(|v| v.to_le_bytes()).collect();
        crc32c::crc32c(&bytes)
    }

    #[test]
    fn the_tables_are_cephs() {
        let mut high = Vec::new();
        for k in 0..129 {
            high.push(RECIPROCAL[k]);
            high.push(LOG_HIGH[k]);
        }
        // Checksums of the le64 entries of `__RH_LH_tbl` and `__LL_tbl`.
        assert_eq!(checksum(&high), 0x8ecdce70);
        assert_eq!(checksum(&LOG_LOW), 0x7593123a);
    }

    #[test]
    fn the_logarithm_is_near_the_real_one() {
        for x in 0..=0xffffu32 {
            let real = f64::from(x + 1).log2() * 2f64.powi(44);
            let err = (ln(x) as f64 - real).abs() / 2f64.powi(44);
            assert!(err < 1e-4, "x {x}: off by {err}");
        }
    }
}
