//! The two-bit states of an image's objects, with checksums over them.
//!
//! Source: `BitVector<2>` in `src/common/bit_vector.hpp`. Encoded it is a header (a blob with the
//! number of elements), the elements, four in a byte from the high bits down, and a footer (a blob
//! with the checksum of the header and those of the blocks of elements; empty without checksums).

use std::ops::Range;

use crate::codec::{DecodeError, Put, Reader, Result};
use crate::msgr::ceph_crc32c;

/// Bytes of the encoded header.
pub(super) const HEADER: usize = 18;
/// Bytes of elements under one checksum.
pub(super) const BLOCK: usize = 4096;
const PER_BYTE: u64 = 4;

pub(super) fn crc(bytes: &[u8]) -> u32 {
    ceph_crc32c(0, bytes)
}

/// Bytes that so many elements fill.
pub(super) fn data_len(elements: u64) -> u64 {
    elements.div_ceil(PER_BYTE)
}

fn put_header(out: &mut Vec<u8>, elements: u64) {
    let mut header = Vec::with_capacity(HEADER - 4);
    header.versioned(1, 1, |b| b.put_u64(elements));
    out.put_blob(&header);
}

/// The number of elements, and the header's checksum.
pub(super) fn read_header(r: &mut Reader<'_>) -> Result<(u64, u32)> {
    let header = r.blob()?;
    let elements = Reader::new(header).versioned("BitVector", 1)?.body.u64()?;
    Ok((elements, crc(header)))
}

pub(super) fn get(data: &[u8], at: u64) -> u8 {
    (data[(at / PER_BYTE) as usize] >> shift(at)) & 3
}

pub(super) fn set(data: &mut [u8], at: u64, state: u8) {
    let byte = &mut data[(at / PER_BYTE) as usize];
    *byte = (*byte & !(3 << shift(at))) | ((state & 3) << shift(at));
}

fn shift(at: u64) -> u32 {
    (3 - (at % PER_BYTE) as u32) * 2
}

/// The blocks in which a range of elements lies. The range must not be empty.
pub(super) fn blocks(elements: Range<u64>) -> Range<u64> {
    let block = |at: u64| at / PER_BYTE / BLOCK as u64;
    block(elements.start)..block(elements.end - 1) + 1
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct BitVector {
    len: u64,
    data: Vec<u8>,
}

impl BitVector {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn get(&self, at: u64) -> u8 {
        get(&self.data, at)
    }

    pub(super) fn set(&mut self, at: u64, state: u8) {
        set(&mut self.data, at, state);
    }

    pub(super) fn resize(&mut self, len: u64) {
        self.data.resize(data_len(len) as usize, 0);
        self.len = len;
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<BitVector> {
        let (len, header_crc) = read_header(r)?;
        let bytes = usize::try_from(data_len(len))
            .map_err(|_| DecodeError::malformed("BitVector length"))?;
        let data = r.bytes(bytes)?;
        let mut footer = Reader::new(r.blob()?);
        if !footer.is_empty() {
            if footer.u32()? != header_crc {
                return Err(DecodeError::malformed("BitVector header checksum"));
            }
            footer.u32()?; // how many follow
            for block in data.chunks(BLOCK) {
                if footer.u32()? != crc(block) {
                    return Err(DecodeError::malformed("BitVector block checksum"));
                }
            }
            if footer.remaining() >= 4 {
                return Err(DecodeError::malformed("BitVector footer"));
            }
        }
        Ok(BitVector {
            len,
            data: data.to_vec(),
        })
    }

    pub(super) fn encode(&self, checksums: bool) -> Vec<u8> {
        let blocks = self.data.chunks(BLOCK);
        let mut out = Vec::with_capacity(HEADER + self.data.len() + 12 + blocks.len() * 4);
        put_header(&mut out, self.len);
        let header_crc = crc(&out[4..]);
        out.put_bytes(&self.data);
        if checksums {
            out.put_count(8 + blocks.len() * 4);
            out.put_u32(header_crc);
            out.put_list(blocks, |out, block| out.put_u32(crc(block)));
        } else {
            out.put_u32(0);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vector(states: &[u8]) -> BitVector {
        let mut v = BitVector::default();
        v.resize(states.len() as u64);
        for (at, state) in (0..).zip(states) {
            v.set(at, *state);
        }
        v
    }

    #[test]
    fn the_header_has_its_size() {
        let bytes = vector(&[1, 2, 3]).encode(false);
        assert_eq!(bytes.len(), HEADER + 1 + 4);
        assert_eq!(bytes[HEADER], 0b0110_1100);
    }

    #[test]
    fn blocks_hold_sixteen_thousand_elements_each() {
        assert_eq!(blocks(0..16384), 0..1);
        assert_eq!(blocks(16383..16385), 0..2);
        assert_eq!(blocks(16384..16385), 1..2);
    }

    #[test]
    fn a_changed_bit_is_seen() {
        let mut bytes = vector(&[1; 40000]).encode(true);
        bytes[HEADER + 5000] ^= 1;
        assert!(BitVector::decode(&mut Reader::new(&bytes)).is_err());
    }

    #[test]
    fn a_length_that_is_not_there_is_refused() {
        let mut bytes = Vec::new();
        put_header(&mut bytes, u64::MAX);
        bytes.put_u32(0);
        assert!(BitVector::decode(&mut Reader::new(&bytes)).is_err());
    }

    proptest! {
        #[test]
        fn states_survive_a_round_trip(states in proptest::collection::vec(0u8..4, 0..70000), checksums: bool) {
            let v = vector(&states);
            let bytes = v.encode(checksums);
            let mut r = Reader::new(&bytes);
            let back = BitVector::decode(&mut r).unwrap();
            prop_assert!(r.is_empty());
            prop_assert_eq!(back.len(), states.len() as u64);
            for (at, state) in (0..).zip(&states) {
                prop_assert_eq!(back.get(at), *state);
            }
        }
    }
}
