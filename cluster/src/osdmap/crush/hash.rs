//! The hash that drives every draw: Bob Jenkins' 32-bit mix over one to four words.
//!
//! Constants and word order are those of `src/crush/hash.c` (`crush_hash32_rjenkins1_*`).

const SEED: u32 = 1_315_423_911;
const X: u32 = 231_232;
const Y: u32 = 1_232;

/// The hash selector of a bucket (`CRUSH_HASH_RJENKINS1`), the only one that exists.
pub const RJENKINS1: u8 = 0;

/// Mixes three words in place (<http://burtleburtle.net/bob/hash/evahash.html>, public domain).
#[inline(always)]
pub(in crate::osdmap) fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    macro_rules! step {
        ($p:ident, $q:ident, $r:ident, << $n:literal) => {
            *$p = $p.wrapping_sub(*$q).wrapping_sub(*$r) ^ (*$r << $n)
        };
        ($p:ident, $q:ident, $r:ident, >> $n:literal) => {
            *$p = $p.wrapping_sub(*$q).wrapping_sub(*$r) ^ (*$r >> $n)
        };
    }
    step!(a, b, c, >> 13);
    step!(b, c, a, << 8);
    step!(c, a, b, >> 13);
    step!(a, b, c, >> 12);
    step!(b, c, a, << 16);
    step!(c, a, b, >> 5);
    step!(a, b, c, >> 3);
    step!(b, c, a, << 10);
    step!(c, a, b, >> 15);
}

#[inline]
pub fn hash2(mut a: u32, mut b: u32) -> u32 {
    let mut h = SEED ^ a ^ b;
    let (mut x, mut y) = (X, Y);
    mix(&mut a, &mut b, &mut h);
    mix(&mut x, &mut a, &mut h);
    mix(&mut b, &mut y, &mut h);
    h
}

#[inline]
pub fn hash3(mut a: u32, mut b: u32, mut c: u32) -> u32 {
    let mut h = SEED ^ a ^ b ^ c;
    let (mut x, mut y) = (X, Y);
    mix(&mut a, &mut b, &mut h);
    mix(&mut c, &mut x, &mut h);
    mix(&mut y, &mut a, &mut h);
    mix(&mut b, &mut x, &mut h);
    mix(&mut y, &mut c, &mut h);
    h
}

#[inline]
pub fn hash4(mut a: u32, mut b: u32, mut c: u32, mut d: u32) -> u32 {
    let mut h = SEED ^ a ^ b ^ c ^ d;
    let (mut x, mut y) = (X, Y);
    mix(&mut a, &mut b, &mut h);
    mix(&mut c, &mut d, &mut h);
    mix(&mut a, &mut x, &mut h);
    mix(&mut y, &mut b, &mut h);
    mix(&mut c, &mut x, &mut h);
    mix(&mut y, &mut d, &mut h);
    h
}
