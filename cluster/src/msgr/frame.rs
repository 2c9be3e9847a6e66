//! The frame: preamble, up to four segments, epilogue, as revision 1 of msgr2 lays them out
//! (`src/msg/async/frames_v2.h`, `FrameAssembler::asm_crc_rev1` and `asm_secure_rev1`).
//!
//! ```text
//! crc mode     preamble(32) | segment 0 | crc(4) | segments 1..3 | late status, 3 crcs (13)
//! secure mode  [preamble(32), first 48 bytes of segment 0] tag(16)
//!              | [rest of segment 0] tag(16) | [segments 1..3, late status (16)] tag(16)
//! ```
//!
//! The crc after segment 0 and the rest of segment 0 are there only when there is something to
//! cover; the last part only when there is more than one segment. Secure mode pads each segment
//! with zeros to 16 bytes. Brackets are what one AES-GCM nonce covers.

use super::ceph_crc32c;
use super::crypto::TAG_LEN;

/// `sizeof(preamble_block_t)`.
pub const PREAMBLE: usize = 32;
/// `FRAME_PREAMBLE_INLINE_SIZE`.
pub const INLINE: usize = 48;
/// A secure preamble on the wire: the block, the inline buffer and its tag.
pub const SECURE_PREAMBLE: usize = PREAMBLE + INLINE + TAG_LEN;
/// `FRAME_CRC_SIZE`.
pub const CRC: usize = 4;
/// `sizeof(epilogue_crc_rev1_block_t)`.
pub const EPILOGUE_CRC: usize = 1 + (MAX_SEGMENTS - 1) * CRC;
/// `sizeof(epilogue_secure_rev1_block_t)`.
pub const EPILOGUE_SECURE: usize = BLOCK;
/// `CRYPTO_BLOCK_SIZE`: segments are padded to it in secure mode.
pub const BLOCK: usize = 16;
/// `MAX_NUM_SEGMENTS`.
pub const MAX_SEGMENTS: usize = 4;
/// `segment_t::DEFAULT_ALIGNMENT` and `PAGE_SIZE_ALIGNMENT`: advice for the receiver's buffers.
const ALIGN: u16 = 8;
const ALIGN_DATA: u16 = 4096;

/// `FRAME_LATE_STATUS_*`: two code words far apart, since no crc covers the byte in crc mode.
pub const LATE_ABORTED: u8 = 0x1;
pub const LATE_COMPLETE: u8 = 0xe;
const LATE_MASK: u8 = 0xf;
/// `FRAME_EARLY_DATA_COMPRESSED`.
const FLAG_COMPRESSED: u8 = 1;

/// What is wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("preamble crc is {got:#010x}, the frame says {want:#010x}")]
    PreambleCrc { got: u32, want: u32 },
    #[error("crc of segment {segment} is {got:#010x}, the frame says {want:#010x}")]
    SegmentCrc { segment: usize, got: u32, want: u32 },
    #[error("{what} fails authentication")]
    AuthTag { what: &'static str },
    #[error("frame has unknown tag {0}")]
    Tag(u8),
    #[error("{tag:?} frame has {segments} segments")]
    Segments { tag: Tag, segments: u8 },
    #[error("last segment of a {0:?} frame is empty")]
    LastSegmentEmpty(Tag),
    #[error("{0:?} frame is compressed, which was not negotiated")]
    Compressed(Tag),
    #[error("{tag:?} frame of {len} bytes is above the limit of {limit}")]
    TooLong { tag: Tag, len: u64, limit: u64 },
    #[error("message header has {0} bytes instead of 41")]
    HeaderLength(u32),
    #[error("frame ends with late status {0:#04x}")]
    LateStatus(u8),
    #[error("all nonces of the connection's key are used up")]
    OutOfNonces,
}

macro_rules! tags {
    ($($name:ident = $n:literal),* $(,)?) => {
        /// `Tag` (`src/msg/async/frames_v2.h`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Tag { $($name = $n),* }

        impl Tag {
            pub const ALL: &[Tag] = &[$(Tag::$name),*];

            pub const fn from_u8(n: u8) -> Option<Tag> {
                match n {
                    $($n => Some(Tag::$name),)*
                    _ => None,
                }
            }
        }
    };
}

tags! {
    Hello = 1,
    AuthRequest = 2,
    AuthBadMethod = 3,
    AuthReplyMore = 4,
    AuthRequestMore = 5,
    AuthDone = 6,
    AuthSignature = 7,
    ClientIdent = 8,
    ServerIdent = 9,
    IdentMissingFeatures = 10,
    SessionReconnect = 11,
    SessionReset = 12,
    SessionRetry = 13,
    SessionRetryGlobal = 14,
    SessionReconnectOk = 15,
    Wait = 16,
    Message = 17,
    Keepalive2 = 18,
    Keepalive2Ack = 19,
    Ack = 20,
    CompressionRequest = 21,
    CompressionDone = 22,
}

/// `preamble_block_t`: what the frame is and how long its segments are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    pub tag: Tag,
    /// How many of `lens` count: trailing empty segments are not sent, except the first.
    pub segments: usize,
    pub lens: [u32; MAX_SEGMENTS],
}

impl Preamble {
    /// The preamble of a frame with these segment lengths.
    pub fn new(tag: Tag, lens: [u32; MAX_SEGMENTS]) -> Preamble {
        let segments = (1..MAX_SEGMENTS).rev().find(|&i| lens[i] > 0);
        Preamble {
            tag,
            segments: segments.map_or(1, |i| i + 1),
            lens,
        }
    }

    pub fn encode(&self) -> [u8; PREAMBLE] {
        let mut b = [0; PREAMBLE];
        b[0] = self.tag as u8;
        b[1] = self.segments as u8;
        for i in 0..self.segments {
            let align = if i == MAX_SEGMENTS - 1 {
                ALIGN_DATA
            } else {
                ALIGN
            };
            let at = 2 + 6 * i;
            b[at..at + 4].copy_from_slice(&self.lens[i].to_le_bytes());
            b[at + 4..at + 6].copy_from_slice(&align.to_le_bytes());
        }
        let crc = ceph_crc32c(0, &b[..PREAMBLE - CRC]);
        b[PREAMBLE - CRC..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Checks the crc before anything is believed, then what `FrameAssembler::disassemble_preamble`
    /// and Linux (`decode_preamble`, net/ceph/messenger_v2.c) check.
    pub fn decode(b: &[u8; PREAMBLE]) -> Result<Preamble, FrameError> {
        let want = le32(b, PREAMBLE - CRC);
        let got = ceph_crc32c(0, &b[..PREAMBLE - CRC]);
        if got != want {
            return Err(FrameError::PreambleCrc { got, want });
        }
        let tag = Tag::from_u8(b[0]).ok_or(FrameError::Tag(b[0]))?;
        // Only messages have more than one segment.
        let most = if tag == Tag::Message { MAX_SEGMENTS } else { 1 };
        let segments = usize::from(b[1]);
        if !(1..=most).contains(&segments) {
            let segments = b[1];
            return Err(FrameError::Segments { tag, segments });
        }
        let mut lens = [0; MAX_SEGMENTS];
        for (i, len) in lens.iter_mut().enumerate().take(segments) {
            *len = le32(b, 2 + 6 * i);
        }
        if segments > 1 && lens[segments - 1] == 0 {
            return Err(FrameError::LastSegmentEmpty(tag));
        }
        if b[26] & FLAG_COMPRESSED != 0 {
            return Err(FrameError::Compressed(tag));
        }
        Ok(Preamble {
            tag,
            segments,
            lens,
        })
    }

    /// Bytes of all segments.
    pub fn payload_len(&self) -> u64 {
        self.lens.iter().map(|&l| u64::from(l)).sum()
    }

    /// Bytes of the whole frame on the wire. Fits a `usize` once [`Preamble::payload_len`] is
    /// within a limit.
    pub fn wire_len(&self, secure: bool) -> u64 {
        let rest = self.lens[1..self.segments].iter();
        if secure {
            let first = pad(self.lens[0] as usize);
            let mut len = SECURE_PREAMBLE;
            if first > INLINE {
                len += first - INLINE + TAG_LEN;
            }
            if self.segments > 1 {
                len += EPILOGUE_SECURE + TAG_LEN;
            }
            len as u64 + rest.map(|&l| pad(l as usize) as u64).sum::<u64>()
        } else {
            let mut len = PREAMBLE as u64 + u64::from(self.lens[0]);
            if self.lens[0] > 0 {
                len += CRC as u64;
            }
            if self.segments > 1 {
                len += EPILOGUE_CRC as u64;
            }
            len + rest.map(|&l| u64::from(l)).sum::<u64>()
        }
    }
}

/// `check_epilogue_late_status`: whether the sender completed the frame or gave it up.
pub fn late_status(byte: u8) -> Result<bool, FrameError> {
    match byte & LATE_MASK {
        LATE_COMPLETE => Ok(true),
        LATE_ABORTED => Ok(false),
        _ => Err(FrameError::LateStatus(byte)),
    }
}

/// `len` rounded up to the cipher's block.
#[inline]
pub(super) const fn pad(len: usize) -> usize {
    len.next_multiple_of(BLOCK)
}

#[inline]
pub(super) fn le32(b: &[u8], at: usize) -> u32 {
    let mut n = [0; 4];
    n.copy_from_slice(&b[at..at + 4]);
    u32::from_le_bytes(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_tag_has_its_number() {
        for (i, tag) in Tag::ALL.iter().enumerate() {
            assert_eq!(*tag as usize, i + 1);
            assert_eq!(Tag::from_u8(*tag as u8), Some(*tag));
        }
        assert_eq!(Tag::from_u8(0), None);
        assert_eq!(Tag::from_u8(23), None);
    }

    #[test]
    fn wire_lengths_of_the_corner_cases() {
        let p = |lens| Preamble::new(Tag::Message, lens);
        // No crc for an empty first segment, no epilogue for a lone one.
        assert_eq!(p([0; 4]).wire_len(false), 32);
        assert_eq!(p([41, 0, 0, 0]).wire_len(false), 32 + 41 + 4);
        assert_eq!(p([41, 7, 0, 9]).wire_len(false), 32 + 41 + 4 + 7 + 9 + 13);
        assert_eq!(p([0; 4]).wire_len(true), 96);
        assert_eq!(p([48, 0, 0, 0]).wire_len(true), 96);
        assert_eq!(p([49, 0, 0, 0]).wire_len(true), 96 + 16 + 16);
        assert_eq!(p([41, 17, 0, 1]).wire_len(true), 96 + 32 + 16 + 32);
    }

    #[test]
    fn a_preamble_that_no_sender_writes_is_refused() {
        let good = Preamble::new(Tag::Message, [41, 1, 0, 5]);
        let forge = |change: &dyn Fn(&mut [u8; PREAMBLE])| {
            let mut b = good.encode();
            change(&mut b);
            let crc = ceph_crc32c(0, &b[..28]);
            b[28..].copy_from_slice(&crc.to_le_bytes());
            Preamble::decode(&b)
        };
        assert_eq!(forge(&|_| ()), Ok(good));
        assert_eq!(forge(&|b| b[0] = 77), Err(FrameError::Tag(77)));
        let segments = |tag, segments| Err(FrameError::Segments { tag, segments });
        assert_eq!(forge(&|b| b[1] = 0), segments(Tag::Message, 0));
        assert_eq!(forge(&|b| b[1] = 5), segments(Tag::Message, 5));
        assert_eq!(forge(&|b| b[0] = 20), segments(Tag::Ack, 4));
        assert_eq!(
            forge(&|b| b[20] = 0),
            Err(FrameError::LastSegmentEmpty(Tag::Message))
        );
        assert_eq!(
            forge(&|b| b[26] = 1),
            Err(FrameError::Compressed(Tag::Message))
        );
    }

    proptest! {
        #[test]
        fn preambles_survive_a_round_trip(lens: [u32; 4]) {
            let p = Preamble::new(Tag::Message, lens);
            prop_assert_eq!(Preamble::decode(&p.encode()), Ok(p));
        }

        #[test]
        fn a_flipped_bit_is_noticed(lens: [u32; 4], bit in 0usize..256) {
            let mut b = Preamble::new(Tag::Message, lens).encode();
            b[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Preamble::decode(&b).is_err());
        }
    }
}
