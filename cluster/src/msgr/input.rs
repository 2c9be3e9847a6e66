//! Frames out of received bytes.
//!
//! A frame that lies whole in the input is checked and used where it lies (crc mode). One that
//! straddles two inputs, and every encrypted one, is assembled in a buffer that is reused, grows
//! with the bytes that arrive (never by what a frame announces) and shrinks after huge frames.
//!
//! Receiving large data straight into a request's buffer fits here later: once the head and the
//! front of a message are in, [`Rx::missing`] says what is still to come, and the crc of the data
//! can be taken where the driver has put it.

use std::ops::Range;

use super::ceph_crc32c;
use super::crypto::{Cipher, TAG_LEN};
use super::frame::{
    CRC, EPILOGUE_CRC, EPILOGUE_SECURE, FrameError, INLINE, MAX_SEGMENTS, PREAMBLE, Preamble,
    SECURE_PREAMBLE, Tag, late_status, le32, pad,
};
use super::header::MsgHeader;
use super::shrink::Shrink;

/// Limit on a control frame. The largest carry tickets and address lists of a few KiB.
const MAX_CONTROL: u64 = 1 << 20;

/// A received frame: its kind, and where its segments lie.
#[derive(Debug)]
pub struct Frame<'i> {
    pub tag: Tag,
    /// The sender gave the frame up half-way; it must be ignored.
    pub aborted: bool,
    /// The frame's bytes in the input, or `None` when they are in the receiver's own buffer.
    pub(super) bytes: Option<&'i [u8]>,
    pub(super) segments: [Range<usize>; MAX_SEGMENTS],
}

/// The receiving half of a stream.
#[derive(Debug)]
pub struct Rx {
    cipher: Option<Box<Cipher>>,
    /// Whether segment crcs are checked (`ms_crc_data`).
    check_crc: bool,
    max_message: u32,
    buf: Vec<u8>,
    /// Of the frame under assembly, once its first bytes are in.
    preamble: Option<Preamble>,
    /// `buf` holds a frame that was handed out.
    delivered: bool,
    shrink: Shrink,
}

impl Rx {
    pub fn new(check_crc: bool, max_message: u32) -> Rx {
        Rx {
            cipher: None,
            check_crc,
            max_message,
            buf: Vec::new(),
            preamble: None,
            delivered: false,
            shrink: Shrink::default(),
        }
    }

    /// All frames from here on are encrypted. Called between two frames.
    pub fn set_cipher(&mut self, cipher: Cipher) {
        debug_assert!(self.buf.is_empty() || self.delivered);
        self.cipher = Some(Box::new(cipher));
    }

    /// Starts over for a new stream.
    pub fn reset(&mut self) {
        self.cipher = None;
        self.delivered = true;
        self.recycle();
    }

    /// Bytes that the frame under assembly lacks as far as is known; 0 between two frames.
    pub fn missing(&self) -> usize {
        if self.delivered || self.buf.is_empty() {
            return 0;
        }
        let need = match self.preamble {
            Some(p) => self.wire_len(&p),
            None => self.head_len(),
        };
        need.saturating_sub(self.buf.len())
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.buf.capacity()
    }

    /// Takes the fixed-size start of a stream: returns it once `len` bytes are in.
    pub fn take_start<'s>(&'s mut self, input: &mut &[u8], len: usize) -> Option<&'s [u8]> {
        self.fill(input, len).then_some(&self.buf[..])
    }

    /// What has arrived of the start of a stream.
    pub fn start(&self) -> &[u8] {
        &self.buf
    }

    /// The start of the stream is done with; frames follow.
    pub fn end_start(&mut self) {
        self.buf.clear();
    }

    /// Takes the next frame from `input`, or all of `input` when the frame does not end in it.
    pub fn next<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Frame<'i>>, FrameError> {
        if self.delivered {
            self.recycle();
        }
        if input.is_empty() {
            return Ok(None);
        }
        let head = input.first_chunk::<PREAMBLE>();
        if let (Some(head), None, true) = (head, &self.cipher, self.buf.is_empty()) {
            let preamble = self.admit(Preamble::decode(head)?)?;
            let len = self.wire_len(&preamble);
            if let Some((bytes, rest)) = input.split_at_checked(len) {
                let (segments, aborted) = check_crc(bytes, &preamble, self.check_crc)?;
                *input = rest;
                return Ok(Some(Frame {
                    tag: preamble.tag,
                    aborted,
                    bytes: Some(bytes),
                    segments,
                }));
            }
            self.preamble = Some(preamble);
        }
        self.assemble(input)
    }

    /// The bytes a frame's segments are ranges of.
    pub(super) fn bytes<'s>(&'s self, frame_bytes: Option<&'s [u8]>) -> &'s [u8] {
        frame_bytes.unwrap_or(&self.buf)
    }

    fn assemble<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Frame<'i>>, FrameError> {
        let preamble = match self.preamble {
            Some(p) => p,
            None => {
                let len = self.head_len();
                if !self.fill(input, len) {
                    return Ok(None);
                }
                if let Some(cipher) = &mut self.cipher {
                    cipher.open(&mut self.buf, "preamble")?;
                }
                let head = self.buf.first_chunk::<PREAMBLE>().expect("head is longer");
                let preamble = self.admit(Preamble::decode(head)?)?;
                self.preamble = Some(preamble);
                preamble
            }
        };
        let len = self.wire_len(&preamble);
        if !self.fill(input, len) {
            return Ok(None);
        }
        let (segments, aborted) = match &mut self.cipher {
            None => check_crc(&self.buf, &preamble, self.check_crc)?,
            Some(cipher) => open_rest(&mut self.buf, &preamble, cipher)?,
        };
        self.delivered = true;
        Ok(Some(Frame {
            tag: preamble.tag,
            aborted,
            bytes: None,
            segments,
        }))
    }

    /// Moves bytes from `input` until `buf` has `len`; says whether it has.
    fn fill(&mut self, input: &mut &[u8], len: usize) -> bool {
        let lack = len.saturating_sub(self.buf.len());
        let (taken, rest) = input.split_at(lack.min(input.len()));
        self.buf.extend_from_slice(taken);
        *input = rest;
        self.buf.len() >= len
    }

    fn recycle(&mut self) {
        let used = self.buf.len();
        self.shrink.recycle(&mut self.buf, used);
        self.preamble = None;
        self.delivered = false;
    }

    /// Refuses lengths that we will not take, before any byte of them is kept.
    fn admit(&self, p: Preamble) -> Result<Preamble, FrameError> {
        let limit = match p.tag {
            Tag::Message => u64::from(self.max_message),
            _ => MAX_CONTROL,
        };
        let (tag, len) = (p.tag, p.payload_len());
        if len > limit {
            return Err(FrameError::TooLong { tag, len, limit });
        }
        if tag == Tag::Message && p.lens[0] as usize != MsgHeader::SIZE {
            return Err(FrameError::HeaderLength(p.lens[0]));
        }
        Ok(p)
    }

    fn head_len(&self) -> usize {
        if self.cipher.is_some() {
            SECURE_PREAMBLE
        } else {
            PREAMBLE
        }
    }

    /// The length is within the limits of `admit`, so that it fits.
    fn wire_len(&self, p: &Preamble) -> usize {
        p.wire_len(self.cipher.is_some()) as usize
    }
}

type Segments = ([Range<usize>; MAX_SEGMENTS], bool);

/// `disasm_first_crc_rev1` and `disasm_remaining_crc_rev1` over a whole frame.
fn check_crc(bytes: &[u8], p: &Preamble, check: bool) -> Result<Segments, FrameError> {
    let mut segments = [const { 0..0 }; MAX_SEGMENTS];
    let first = PREAMBLE..PREAMBLE + p.lens[0] as usize;
    let mut at = first.end;
    segments[0] = first.clone();
    if !first.is_empty() {
        if check {
            compare(0, &bytes[first], le32(bytes, at))?;
        }
        at += CRC;
    }
    if p.segments == 1 {
        return Ok((segments, false));
    }
    let epilogue = bytes.len() - EPILOGUE_CRC;
    // An aborted frame is filled up with zeros, whose crcs are not worth a fault.
    let aborted = !late_status(bytes[epilogue])?;
    for i in 1..p.segments {
        let end = at + p.lens[i] as usize;
        segments[i] = at..end;
        if check && !aborted {
            let want = le32(bytes, epilogue + 1 + (i - 1) * CRC);
            compare(i, &bytes[at..end], want)?;
        }
        at = end;
    }
    Ok((segments, aborted))
}

fn compare(segment: usize, bytes: &[u8], want: u32) -> Result<(), FrameError> {
    let got = ceph_crc32c(!0, bytes);
    if got == want {
        Ok(())
    } else {
        Err(FrameError::SegmentCrc { segment, got, want })
    }
}

/// `disasm_first_secure_rev1` and `disasm_remaining_secure_rev1` over a whole frame whose preamble
/// block is decrypted already.
fn open_rest(b: &mut [u8], p: &Preamble, cipher: &mut Cipher) -> Result<Segments, FrameError> {
    let mut segments = [const { 0..0 }; MAX_SEGMENTS];
    let len = p.lens[0] as usize;
    let padded = pad(len);
    let mut at = SECURE_PREAMBLE;
    if padded > INLINE {
        let end = at + padded - INLINE + TAG_LEN;
        cipher.open(&mut b[at..end], "first segment")?;
        // The inlined part moves over the preamble's tag, next to the rest of its segment.
        b.copy_within(PREAMBLE..PREAMBLE + INLINE, SECURE_PREAMBLE - INLINE);
        segments[0] = SECURE_PREAMBLE - INLINE..SECURE_PREAMBLE - INLINE + len;
        at = end;
    } else {
        segments[0] = PREAMBLE..PREAMBLE + len;
    }
    if p.segments == 1 {
        return Ok((segments, false));
    }
    let epilogue = b.len() - EPILOGUE_SECURE - TAG_LEN;
    cipher.open(&mut b[at..], "message body")?;
    for i in 1..p.segments {
        let len = p.lens[i] as usize;
        segments[i] = at..at + len;
        at += pad(len);
    }
    debug_assert_eq!(at, epilogue);
    Ok((segments, !late_status(b[epilogue])?))
}
