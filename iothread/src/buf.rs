//! Buffers that operations own while they are in flight.

use std::ops::Range;

/// Bytes whose address does not depend on where the owner is.
///
/// # Safety
/// `as_slice` must return the same memory until the value is dropped or mutably borrowed, also
/// after the value was moved.
pub unsafe trait IoBuf: 'static {
    fn as_slice(&self) -> &[u8];
}

/// As [`IoBuf`], and the bytes may be overwritten.
///
/// # Safety
/// `as_mut_slice` must return the memory of `as_slice`, referred to by nobody else.
pub unsafe trait IoBufMut: IoBuf {
    fn as_mut_slice(&mut self) -> &mut [u8];
}

// SAFETY: a vector's elements are on the heap; moving the vector leaves them.
unsafe impl IoBuf for Vec<u8> {
    fn as_slice(&self) -> &[u8] {
        self
    }
}

// SAFETY: a vector owns its elements.
unsafe impl IoBufMut for Vec<u8> {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: as for a vector.
unsafe impl IoBuf for Box<[u8]> {
    fn as_slice(&self) -> &[u8] {
        self
    }
}

// SAFETY: as for a vector.
unsafe impl IoBufMut for Box<[u8]> {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: static memory stays.
unsafe impl IoBuf for &'static [u8] {
    fn as_slice(&self) -> &[u8] {
        self
    }
}

/// Address and length of a part of a buffer about to be submitted. Panics when it lies outside.
pub(crate) fn part<B: IoBuf>(buf: &B, range: &Range<usize>) -> (*const u8, u32) {
    let part = &buf.as_slice()[range.clone()];
    (part.as_ptr(), clamp(part.len()))
}

pub(crate) fn part_mut<B: IoBufMut>(buf: &mut B, range: &Range<usize>) -> (*mut u8, u32) {
    let part = &mut buf.as_mut_slice()[range.clone()];
    (part.as_mut_ptr(), clamp(part.len()))
}

/// The kernel moves at most about 2 GiB at once; the loops around continue.
fn clamp(len: usize) -> u32 {
    len.min(1 << 30) as u32
}
