//! Replies: encoded into a batch that leaves in one vectored send.

use cluster::payload::Payload;
use iothread::StableBatch;

use super::super::disk::{Allocation, Extents, HOLES, ReadBuf};
use super::negotiate::ReplyStyle;
use super::request::Header;
use super::wire::{self, NbdError, PutBe, chunk, cmd};

/// A smaller hole is not worth a chunk of its own: it is sent as zeroes.
const MIN_HOLE: usize = 4096;

/// Output on its way to the socket: headers in one vector, read data where the disk put it.
#[derive(Default)]
pub struct Batch {
    heads: Vec<u8>,
    parts: Vec<Part>,
    len: usize,
}

// SAFETY: headers are in a vector, data in payloads that the batch holds; both stay where they are
// until the batch is cleared, which takes a mutable borrow.
unsafe impl StableBatch for Batch {
    fn iovecs(&self, out: &mut Vec<libc::iovec>) {
        out.extend(self.slices().map(|s| libc::iovec {
            iov_base: s.as_ptr().cast_mut().cast(),
            iov_len: s.len(),
        }));
    }
}

enum Part {
    /// The bytes of `heads` from the previous part's end up to this one.
    Heads(usize),
    Data(Payload),
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes to send.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of it that are held by the batch itself, not by request memory.
    pub fn own_bytes(&self) -> usize {
        self.heads.len()
    }

    /// The pieces in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.parts.iter().map(move |part| match part {
            Part::Heads(end) => &self.heads[std::mem::replace(&mut from, *end)..*end],
            Part::Data(payload) => &payload[..],
        })
    }

    /// Empties it, keeping its memory for the next batch.
    pub fn clear(&mut self) {
        self.heads.clear();
        self.parts.clear();
        self.len = 0;
    }

    /// Appends raw bytes, as the handshake writes them.
    pub fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.heads.len();
        write(&mut self.heads);
        let end = self.heads.len();
        self.len += end - before;
        match self.parts.last_mut() {
            Some(Part::Heads(last)) => *last = end,
            _ if end > before => self.parts.push(Part::Heads(end)),
            _ => {}
        }
    }

    fn put_data(&mut self, data: Payload) {
        self.len += data.len();
        self.parts.push(Part::Data(data));
    }

    /// A header of a chunk with `len` bytes of payload.
    fn chunk(&mut self, style: ReplyStyle, h: &Header, done: bool, kind: u16, len: usize) {
        let flags = if done { chunk::FLAG_DONE } else { 0 };
        self.put(|out| match style {
            ReplyStyle::Extended => {
                out.put32(wire::EXTENDED_REPLY_MAGIC);
                out.put16(flags);
                out.put16(kind);
                out.put64(h.cookie);
                out.put64(h.offset);
                out.put64(len as u64);
            }
            _ => {
                out.put32(wire::STRUCTURED_REPLY_MAGIC);
                out.put16(flags);
                out.put16(kind);
                out.put64(h.cookie);
                out.put32(len as u32);
            }
        });
    }

    fn simple(&mut self, h: &Header, error: u32) {
        self.put(|out| {
            out.put32(wire::SIMPLE_REPLY_MAGIC);
            out.put32(error);
            out.put64(h.cookie);
        });
    }

    /// Success without data.
    pub fn success(&mut self, style: ReplyStyle, h: &Header) {
        // The simple form is shorter, and allowed wherever nothing is carried.
        if style == ReplyStyle::Simple || (style == ReplyStyle::Structured && !h.wants_chunks()) {
            self.simple(h, 0);
        } else {
            self.chunk(style, h, true, chunk::NONE, 0);
        }
    }

    pub fn failure(&mut self, style: ReplyStyle, h: &Header, error: NbdError, message: &str) {
        if style == ReplyStyle::Simple {
            return self.simple(h, error as u32);
        }
        self.chunk(style, h, true, chunk::ERROR, 6 + message.len());
        self.put(|out| {
            out.put32(error as u32);
            out.put16(message.len() as u16);
            out.extend_from_slice(message.as_bytes());
        });
    }

    /// The data of a successful read.
    pub fn data(&mut self, style: ReplyStyle, h: &Header, mut read: ReadBuf) {
        if style == ReplyStyle::Simple {
            self.simple(h, 0);
            self.put_data(read.flatten().freeze().into_payload());
            return;
        }
        let len = read.len();
        // Unfragmented means one content chunk: data, or a hole from end to end.
        let min = if h.has(cmd::FLAG_DF) { len } else { MIN_HOLE };
        let mut holes = [(0, 0); HOLES];
        let found = read.holes(min);
        let count = found.len();
        holes[..count].copy_from_slice(found);
        let frozen = read.into_buffer().freeze();
        let mut at = 0;
        for &(start, end) in &holes[..count] {
            let (start, end) = (start as usize, end as usize);
            if at < start {
                self.data_chunk(style, h, false, at, frozen.payload(at..start));
            }
            self.chunk(style, h, end == len, chunk::OFFSET_HOLE, 12);
            self.put(|out| {
                out.put64(h.offset + start as u64);
                out.put32((end - start) as u32);
            });
            at = end;
        }
        if at < len {
            self.data_chunk(style, h, true, at, frozen.payload(at..len));
        }
    }

    fn data_chunk(&mut self, style: ReplyStyle, h: &Header, done: bool, at: usize, data: Payload) {
        self.chunk(style, h, done, chunk::OFFSET_DATA, 8 + data.len());
        self.put(|out| out.put64(h.offset + at as u64));
        self.put_data(data);
    }

    /// The extents of a range in `base:allocation`, cut to the `len` bytes that were asked for.
    pub fn extents(&mut self, style: ReplyStyle, h: &Header, extents: &Extents) {
        let list = extents.as_slice();
        // How many extents begin inside the range.
        let mut covered = 0u64;
        let count = list
            .iter()
            .take_while(|e| {
                let inside = covered < h.len;
                covered = covered.saturating_add(e.len);
                inside
            })
            .count();
        let extended = style == ReplyStyle::Extended;
        let (kind, size) = if extended {
            (chunk::BLOCK_STATUS_EXT, 8 + 16 * count)
        } else {
            (chunk::BLOCK_STATUS, 4 + 8 * count)
        };
        self.chunk(style, h, true, kind, size);
        self.put(|out| {
            out.put32(wire::CONTEXT_ALLOCATION_ID);
            if extended {
                out.put32(count as u32);
            }
            let mut left = h.len;
            for extent in &list[..count] {
                let len = extent.len.min(left);
                left -= len;
                let state = match extent.state {
                    Allocation::Data => 0,
                    Allocation::Zero => wire::STATE_ZERO,
                    Allocation::Hole => wire::STATE_HOLE | wire::STATE_ZERO,
                };
                if extended {
                    out.put64(len);
                    out.put64(u64::from(state));
                } else {
                    // The range of a compact request fits 32 bits, so does every part of it.
                    out.put32(len as u32);
                    out.put32(state);
                }
            }
        });
    }
}
