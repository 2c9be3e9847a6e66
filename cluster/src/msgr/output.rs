//! Frames into bytes to send.
//!
//! Everything is written straight into the batch that the driver will send: no intermediate buffer,
//! and no allocation once the batch has its working size. In crc mode large payloads are not copied
//! but stay as shared parts between the bytes; secure mode copies and encrypts in place.

use crate::payload::Payload;

use super::ceph_crc32c;
use super::crypto::{Cipher, TAG_LEN};
use super::frame::{
    BLOCK, CRC, EPILOGUE_SECURE, FrameError, INLINE, LATE_COMPLETE, PREAMBLE, Preamble,
    SECURE_PREAMBLE, Tag, pad,
};
use super::header::MsgHeader;
use super::shrink::Shrink;

/// Payloads up to this size are copied into the batch. The 4 KiB writes that dominate then leave
/// with their headers in one contiguous send, without an iovec each; their copy is in the cache for
/// the crc anyway. For larger payloads the copy would cost more than the iovec does.
pub const INLINE_LIMIT: usize = 8 * 1024;

/// Bytes to send, in order: `bytes`, with large payloads between them.
#[derive(Debug, Default)]
pub struct OutBatch {
    bytes: Vec<u8>,
    parts: Vec<Part>,
    parts_len: usize,
    shrink: Shrink,
}

#[derive(Debug)]
struct Part {
    /// Where in `bytes` the payload goes.
    at: usize,
    payload: Payload,
}

impl OutBatch {
    pub fn new() -> OutBatch {
        OutBatch::default()
    }

    pub fn len(&self) -> usize {
        self.bytes.len() + self.parts_len
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is to be sent, piece by piece; no piece is empty.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let last = self.parts.last().map_or(0, |p| p.at);
        let starts = std::iter::once(0).chain(self.parts.iter().map(|p| p.at));
        self.parts
            .iter()
            .zip(starts)
            .flat_map(|(p, start)| [&self.bytes[start..p.at], &p.payload[..]])
            .chain(std::iter::once(&self.bytes[last..]))
            .filter(|s| !s.is_empty())
    }

    /// All bytes, when no large payload is among them.
    pub fn contiguous(&self) -> Option<&[u8]> {
        self.parts.is_empty().then_some(&self.bytes[..])
    }

    /// Forgets what was sent and keeps the memory for the next round.
    pub fn clear(&mut self) {
        let used = self.bytes.len();
        self.shrink.recycle(&mut self.bytes, used);
        self.parts.clear();
        self.parts_len = 0;
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub(super) fn raw(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    fn push_part(&mut self, payload: &Payload) {
        self.parts_len += payload.len();
        self.parts.push(Part {
            at: self.bytes.len(),
            payload: payload.clone(),
        });
    }

    fn truncate(&mut self, bytes: usize, parts: usize) {
        self.bytes.truncate(bytes);
        for p in self.parts.drain(parts..) {
            self.parts_len -= p.payload.len();
        }
    }
}

/// How frames are protected on their way out.
#[derive(Debug, Clone)]
pub enum Tx {
    Crc {
        /// Whether segments carry their crcs, or zeros (`ms_crc_data`).
        data: bool,
    },
    Secure(Box<Cipher>),
}

impl Tx {
    /// Appends a control frame: one segment, written by `payload`.
    pub fn control(
        &mut self,
        out: &mut OutBatch,
        tag: Tag,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), FrameError> {
        let start = out.bytes.len();
        let sealed = match self {
            Tx::Crc { data } => {
                control_crc(&mut out.bytes, *data, tag, payload);
                Ok(())
            }
            Tx::Secure(cipher) => control_secure(&mut out.bytes, cipher, tag, payload),
        };
        if sealed.is_err() {
            out.bytes.truncate(start);
        }
        sealed
    }

    /// Appends a MESSAGE frame.
    pub fn message(
        &mut self,
        out: &mut OutBatch,
        header: &MsgHeader,
        front: impl FnOnce(&mut Vec<u8>),
        middle: &[u8],
        data: &[Payload],
    ) -> Result<(), FrameError> {
        let (start, parts) = (out.bytes.len(), out.parts.len());
        let sealed = match self {
            Tx::Crc { data: crc } => {
                message_crc(out, *crc, header, front, middle, data);
                Ok(())
            }
            Tx::Secure(cipher) => {
                message_secure(&mut out.bytes, cipher, header, front, middle, data)
            }
        };
        if sealed.is_err() {
            out.truncate(start, parts);
        }
        sealed
    }
}

fn segment_crc(on: bool, bytes: &[u8]) -> u32 {
    if on { ceph_crc32c(!0, bytes) } else { 0 }
}

/// Segments of 4 GiB cannot be described, and no caller makes them: limits are far below.
fn seg_len(n: usize) -> u32 {
    u32::try_from(n).expect("segment above 4 GiB")
}

/// `asm_crc_rev1` for one segment.
fn control_crc(b: &mut Vec<u8>, crc: bool, tag: Tag, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = b.len();
    b.extend_from_slice(&[0; PREAMBLE]);
    payload(b);
    let body = start + PREAMBLE;
    let len = b.len() - body;
    if len > 0 {
        let crc = segment_crc(crc, &b[body..]);
        b.extend_from_slice(&crc.to_le_bytes());
    }
    let preamble = Preamble::new(tag, [seg_len(len), 0, 0, 0]);
    b[start..body].copy_from_slice(&preamble.encode());
}

/// `asm_secure_rev1` for one segment.
fn control_secure(
    b: &mut Vec<u8>,
    cipher: &mut Cipher,
    tag: Tag,
    payload: impl FnOnce(&mut Vec<u8>),
) -> Result<(), FrameError> {
    let start = b.len();
    b.extend_from_slice(&[0; PREAMBLE]);
    payload(b);
    let body = start + PREAMBLE;
    let len = b.len() - body;
    let padded = pad(len).max(INLINE);
    // Room for the tag between the inlined part and the rest.
    b.resize(body + padded + TAG_LEN, 0);
    b.copy_within(body + INLINE..body + padded, body + INLINE + TAG_LEN);
    let preamble = Preamble::new(tag, [seg_len(len), 0, 0, 0]);
    seal_preamble(b, start, cipher, &preamble)?;
    if padded > INLINE {
        let sealed = cipher.seal(&mut b[start + SECURE_PREAMBLE..])?;
        b.extend_from_slice(&sealed);
    }
    Ok(())
}

fn seal_preamble(
    b: &mut [u8],
    start: usize,
    cipher: &mut Cipher,
    preamble: &Preamble,
) -> Result<(), FrameError> {
    let block = &mut b[start..start + SECURE_PREAMBLE];
    block[..PREAMBLE].copy_from_slice(&preamble.encode());
    let (plain, tag) = block.split_at_mut(PREAMBLE + INLINE);
    tag.copy_from_slice(&cipher.seal(plain)?);
    Ok(())
}

/// `asm_crc_rev1` for a message.
fn message_crc(
    out: &mut OutBatch,
    crc: bool,
    header: &MsgHeader,
    front: impl FnOnce(&mut Vec<u8>),
    middle: &[u8],
    data: &[Payload],
) {
    let start = out.bytes.len();
    let b = &mut out.bytes;
    b.extend_from_slice(&[0; PREAMBLE]);
    header.encode(b);
    let header_crc = segment_crc(crc, &b[start + PREAMBLE..]);
    b.extend_from_slice(&header_crc.to_le_bytes());
    let at = b.len();
    front(b);
    let front_len = b.len() - at;
    let front_crc = segment_crc(crc, &b[at..]);
    b.extend_from_slice(middle);

    let mut data_len = 0;
    let mut data_crc = segment_crc(crc, &[]);
    for payload in data {
        data_len += payload.len();
        let copy = if payload.len() <= INLINE_LIMIT {
            let at = out.bytes.len();
            out.bytes.extend_from_slice(payload);
            &out.bytes[at..]
        } else {
            out.push_part(payload);
            &payload[..]
        };
        if crc {
            data_crc = ceph_crc32c(data_crc, copy);
        }
    }

    let lens = [
        MsgHeader::SIZE as u32,
        seg_len(front_len),
        seg_len(middle.len()),
        seg_len(data_len),
    ];
    let preamble = Preamble::new(Tag::Message, lens);
    let b = &mut out.bytes;
    b[start..start + PREAMBLE].copy_from_slice(&preamble.encode());
    if preamble.segments > 1 {
        b.push(LATE_COMPLETE);
        let crcs = [front_crc, segment_crc(crc, middle), data_crc];
        for (i, crc) in crcs.into_iter().enumerate() {
            // Segments that are not sent have no crc, not even that of nothing.
            let crc = if i + 1 < preamble.segments { crc } else { 0 };
            b.extend_from_slice(&crc.to_le_bytes());
        }
    }
}

/// `asm_secure_rev1` for a message: the header fits the inline buffer.
fn message_secure(
    b: &mut Vec<u8>,
    cipher: &mut Cipher,
    header: &MsgHeader,
    front: impl FnOnce(&mut Vec<u8>),
    middle: &[u8],
    data: &[Payload],
) -> Result<(), FrameError> {
    const { assert!(MsgHeader::SIZE <= INLINE) };
    let start = b.len();
    b.extend_from_slice(&[0; PREAMBLE]);
    header.encode(b);
    let rest = start + SECURE_PREAMBLE;
    b.resize(rest, 0);
    front(b);
    let front_len = b.len() - rest;
    b.resize(rest + pad(front_len), 0);
    b.extend_from_slice(middle);
    b.resize(rest + pad(front_len) + pad(middle.len()), 0);
    let at = b.len();
    let data_len = data.iter().map(|p| p.len()).sum();
    // Exact, so that one write of 4 MiB does not double a buffer.
    b.reserve(pad(data_len) + EPILOGUE_SECURE + TAG_LEN);
    for payload in data {
        b.extend_from_slice(payload);
    }
    b.resize(at + pad(data_len), 0);

    let lens = [
        MsgHeader::SIZE as u32,
        seg_len(front_len),
        seg_len(middle.len()),
        seg_len(data_len),
    ];
    let preamble = Preamble::new(Tag::Message, lens);
    seal_preamble(b, start, cipher, &preamble)?;
    if preamble.segments > 1 {
        let mut epilogue = [0; BLOCK];
        epilogue[0] = LATE_COMPLETE;
        b.extend_from_slice(&epilogue);
        let tag = cipher.seal(&mut b[rest..])?;
        b.extend_from_slice(&tag);
    }
    Ok(())
}

const _: () = assert!(CRC == 4 && EPILOGUE_SECURE == BLOCK);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_payloads_stay_shared_and_in_their_place() {
        let mut out = OutBatch::new();
        let mut tx = Tx::Crc { data: true };
        let small = Payload::from(vec![1; 10]);
        let large = Payload::from(vec![2; INLINE_LIMIT + 1]);
        let header = MsgHeader::new(42, 8, 1);
        tx.message(
            &mut out,
            &header,
            |b| b.push(9),
            &[],
            &[small.clone(), large.clone(), small],
        )
        .unwrap();
        let preamble = Preamble::new(Tag::Message, [41, 1, 0, 21 + INLINE_LIMIT as u32]);
        assert_eq!(out.len() as u64, preamble.wire_len(false));
        assert!(out.contiguous().is_none());
        let slices: Vec<&[u8]> = out.slices().collect();
        assert_eq!(slices.len(), 3);
        assert_eq!(slices[1].as_ptr(), large.as_ptr());
        assert_eq!(slices.iter().map(|s| s.len()).sum::<usize>(), out.len());
        out.clear();
        assert_eq!((out.len(), out.slices().count()), (0, 0));
    }

    #[test]
    fn nothing_of_a_frame_remains_when_nonces_run_out() {
        let (_, mut cipher) = Cipher::pair(&[5; 40], false).unwrap();
        cipher.exhaust(1);
        let mut tx = Tx::Secure(Box::new(cipher));
        let mut out = OutBatch::new();
        let header = MsgHeader::new(42, 8, 1);
        let sent = tx.message(&mut out, &header, |b| b.push(9), &[], &[]);
        assert_eq!(sent, Err(FrameError::OutOfNonces));
        assert!(out.is_empty());
        let sent = tx.control(&mut out, Tag::Ack, |b| b.push(0));
        assert_eq!(sent, Err(FrameError::OutOfNonces));
        assert!(out.is_empty());
    }
}
