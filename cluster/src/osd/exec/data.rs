//! Operations on an object's data.

use std::borrow::Cow;

use super::state::{HEAD, State, check_size, io};
use super::xxhash::{xxh32, xxh64};
use super::{Done, OK, errno};
use crate::codec::{Put, Reader};
use crate::msgr::ceph_crc32c;
use crate::objecter::msg::{AllocHint, Checksum, Extent, WriteSame};
use crate::osd::cls::Errno;
use crate::osd::limits;
use crate::osd::store::{Step, Store};

/// A comparison that fails at a byte returns minus this and the byte's place (`MAX_ERRNO`).
const MAX_ERRNO: i32 = 4095;
/// `CEPH_OSD_CHECKSUM_OP_TYPE_*`.
const XXHASH32: u8 = 0;
const XXHASH64: u8 = 1;
const CRC32C: u8 = 2;

impl<'a, S: Store> State<'_, '_, 'a, S> {
    /// The object's end as a reader sees it that knows of a truncation the object has not heard of.
    fn size_for(&self, e: Extent) -> u64 {
        let size = self.info.size;
        let beyond = e.offset.saturating_add(e.length) > e.truncate_size;
        if self.info.truncate_seq < e.truncate_seq && beyond {
            size.min(e.truncate_size)
        } else {
            size
        }
    }

    fn reserve(&self, out: &[u8], length: u64) -> Result<(), Errno> {
        if out.len() as u64 + length > limits::REPLY {
            return Err(errno(libc::E2BIG));
        }
        Ok(())
    }

    /// `PrimaryLogPG::do_read`.
    pub(super) fn read(&mut self, e: Extent, out: &mut Vec<u8>) -> Done {
        self.reads += 1;
        let size = self.size_for(e);
        // No length means the whole object.
        let length = if e.length == 0 { size } else { e.length };
        if e.offset >= size {
            return OK;
        }
        let length = length.min(size - e.offset);
        if !self.stored {
            return Err(errno(libc::ENOENT));
        }
        self.reserve(out, length)?;
        self.store
            .read(self.req.pg, &self.target, e.offset, length, out)
            .map_err(io)?;
        OK
    }

    /// The ranges that hold data, and the data (`PrimaryLogPG::do_sparse_read`).
    pub(super) fn sparse_read(&mut self, e: Extent, out: &mut Vec<u8>) -> Done {
        self.reads += 1;
        let size = self.size_for(e);
        let length = e.length.min(size.saturating_sub(e.offset));
        if !self.stored {
            return Err(errno(libc::ENOENT));
        }
        let (pg, target) = (self.req.pg, self.target);
        let extents = self.store.extents(pg, &target, e.offset, length);
        let extents = extents.map_err(io)?;
        let stored: u64 = extents.iter().map(|r| r.1).sum();
        self.reserve(out, stored + 16 * extents.len() as u64)?;
        out.put_list(extents.iter(), |out, r| {
            out.put_u64(r.0);
            out.put_u64(r.1);
        });
        let at = out.len();
        out.put_u32(0);
        for (offset, length) in extents {
            self.store
                .read(pg, &target, offset, length, out)
                .map_err(io)?;
        }
        let read = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&read.to_le_bytes());
        OK
    }

    pub(super) fn map_extents(&mut self, e: Extent, out: &mut Vec<u8>) -> Done {
        self.reads += 1;
        if !self.stored {
            return Err(errno(libc::ENOENT));
        }
        let extents = self
            .store
            .extents(self.req.pg, &self.target, e.offset, e.length)
            .map_err(io)?;
        out.put_list(extents.iter(), |out, r| {
            out.put_u64(r.0);
            out.put_u64(r.1);
        });
        Ok(None)
    }

    /// Bytes that are not there count as zero (`PrimaryLogPG::do_extent_cmp`).
    pub(super) fn compare_extent(&mut self, e: Extent, input: &[u8]) -> Done {
        self.reads += 1;
        let mut size = self.info.size;
        let beyond = e.offset.saturating_add(e.length) > e.truncate_size;
        if self.info.truncate_seq < e.truncate_seq && beyond {
            size = e.truncate_size;
        }
        let length = e.length.min(size.saturating_sub(e.offset));
        // No more than there is to compare with.
        let length = length.min(input.len() as u64);
        let mut there = Vec::new();
        if length > 0 && self.was_there {
            self.read(Extent { length, ..e }, &mut there)?;
        }
        let stored = there.iter().chain(std::iter::repeat(&0));
        match input.iter().zip(stored).position(|(a, b)| a != b) {
            Some(at) => Err(Errno(
                -MAX_ERRNO - i32::try_from(at).unwrap_or(i32::MAX - MAX_ERRNO),
            )),
            None => OK,
        }
    }

    /// `PrimaryLogPG::do_checksum`.
    pub(super) fn checksum(&mut self, c: Checksum, input: &[u8], out: &mut Vec<u8>) -> Done {
        self.reads += 1;
        let chunk = u64::from(c.chunk_size);
        let aligned = |length: u64| chunk == 0 || length.is_multiple_of(chunk);
        let invalid = errno(libc::EINVAL);
        if (chunk > 0 && c.length == 0) || !aligned(c.length) {
            return Err(invalid);
        }
        let size = self.info.size;
        let length = if c.offset == 0 && c.length == 0 {
            size
        } else if c.offset >= size {
            return OK;
        } else {
            c.length.min(size - c.offset)
        };
        if !aligned(length) || c.kind > CRC32C {
            return Err(invalid);
        }
        let mut input = Reader::new(input);
        let seed = match c.kind {
            XXHASH64 => input.u64(),
            _ => input.u32().map(u64::from),
        };
        let seed = seed.map_err(|_| invalid)?;
        let chunk = if chunk > 0 { chunk } else { length };
        let count = length.checked_div(chunk).unwrap_or(0);
        let width = if c.kind == XXHASH64 { 8 } else { 4 };
        self.reserve(out, width * count)?;
        self.spend(length)?;
        let start = out.len();
        out.put_count(count as usize);
        let done = match c.kind {
            CRC32C => self.crcs(c.offset, length, chunk, seed as u32, out),
            _ => self.xxhashes(&c, length, chunk, seed, out),
        };
        if done.is_err() {
            out.truncate(start);
        }
        done
    }

    /// One hash for each chunk of a range that is a number of them.
    fn xxhashes(
        &mut self,
        c: &Checksum,
        length: u64,
        chunk: u64,
        seed: u64,
        out: &mut Vec<u8>,
    ) -> Done {
        const PIECE: u64 = 1 << 20;
        let most = chunk * (PIECE / chunk.max(1)).max(1);
        let mut piece = Vec::new();
        let mut at = 0;
        while at < length {
            let n = most.min(length - at);
            piece.clear();
            let e = Extent {
                offset: c.offset + at,
                length: n,
                ..Extent::default()
            };
            self.read(e, &mut piece)?;
            if piece.len() as u64 != n {
                return Err(errno(libc::EINVAL));
            }
            for part in piece.chunks_exact(chunk as usize) {
                match c.kind {
                    XXHASH32 => out.put_u32(xxh32(seed as u32, part)),
                    _ => out.put_u64(xxh64(seed, part)),
                }
            }
            at += n;
        }
        OK
    }

    /// One checksum for each chunk of a range that is a number of them.
    fn crcs(&mut self, offset: u64, length: u64, chunk: u64, seed: u32, out: &mut Vec<u8>) -> Done {
        const PIECE: u64 = 1 << 20;
        let mut piece = Vec::new();
        let (mut at, mut left, mut crc) = (0, chunk, seed);
        while at < length {
            let n = PIECE.min(length - at);
            piece.clear();
            let e = Extent {
                offset: offset + at,
                length: n,
                ..Extent::default()
            };
            self.read(e, &mut piece)?;
            if piece.len() as u64 != n {
                return Err(errno(libc::EINVAL));
            }
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let (part, behind) = rest.split_at(rest.len().min(left as usize));
                crc = ceph_crc32c(crc, part);
                left -= part.len() as u64;
                rest = behind;
                if left == 0 {
                    out.put_u32(crc);
                    (left, crc) = (chunk, seed);
                }
            }
            at += n;
        }
        OK
    }

    pub(super) fn write(&mut self, e: Extent, mut data: Cow<'a, [u8]>) -> Done {
        self.changes += 1;
        if e.length != data.len() as u64 {
            return Err(errno(libc::EINVAL));
        }
        let seq = self.info.truncate_seq;
        let size = self.info.size;
        // A write that was sent before a truncation and comes after it.
        let late = seq > e.truncate_seq;
        if late && e.offset.saturating_add(e.length) > size {
            let keep = size.saturating_sub(e.offset) as usize;
            match &mut data {
                Cow::Borrowed(d) => *d = &d[..keep],
                Cow::Owned(d) => d.truncate(keep),
            }
        }
        let length = data.len() as u64;
        if e.truncate_seq > seq {
            self.hear_of_truncation(e)?;
        }
        check_size(e.offset, length)?;
        self.make();
        let size = self.info.size;
        if length > 0 {
            self.step(Step::Write {
                obj: HEAD,
                offset: e.offset,
                data,
            });
            self.change_data(e.offset, length);
            self.info.size = size.max(e.offset + length);
        } else if e.offset <= size {
            self.touch_info();
        } else if !late {
            self.lengthen(e.offset);
        }
        OK
    }

    /// A write that was sent after a truncation and comes before it.
    fn hear_of_truncation(&mut self, e: Extent) -> Result<(), Errno> {
        // Ceph would take any size here, and the object would then claim to have it.
        if e.truncate_size > limits::OBJECT {
            return Err(errno(libc::EFBIG));
        }
        if self.exists && !self.info.whiteout {
            self.cut(e.truncate_size);
        }
        self.info.truncate_seq = e.truncate_seq;
        self.info.truncate_size = e.truncate_size;
        Ok(())
    }

    fn lengthen(&mut self, size: u64) {
        self.step(Step::Truncate { obj: HEAD, size });
        self.info.size = size;
    }

    /// Makes the data end at `size`, whether they ended before or after.
    fn cut(&mut self, size: u64) {
        self.step(Step::Truncate { obj: HEAD, size });
        if size < self.info.size {
            self.change_data(size, self.info.size - size);
        }
        self.info.size = size;
    }

    pub(super) fn write_full(&mut self, length: u64, data: Cow<'a, [u8]>) -> Done {
        self.changes += 1;
        if length != data.len() as u64 {
            return Err(errno(libc::EINVAL));
        }
        check_size(0, length)?;
        self.make();
        let old = self.info.size;
        if length < old {
            self.step(Step::Truncate {
                obj: HEAD,
                size: length,
            });
        }
        if length > 0 {
            self.step(Step::Write {
                obj: HEAD,
                offset: 0,
                data,
            });
        }
        self.change_data(0, old);
        self.info.size = length;
        OK
    }

    /// `PrimaryLogPG::do_writesame`.
    pub(super) fn write_same(&mut self, w: WriteSame, input: &[u8]) -> Done {
        self.changes += 1;
        if w.length == 0 {
            return OK;
        }
        if w.data_length == 0
            || !w.length.is_multiple_of(w.data_length)
            || w.data_length != input.len() as u64
        {
            return Err(errno(libc::EINVAL));
        }
        if w.length > limits::OBJECT {
            return Err(errno(libc::EFBIG));
        }
        let e = Extent {
            offset: w.offset,
            length: w.length,
            ..Extent::default()
        };
        self.spend(w.length)?;
        let times = (w.length / w.data_length) as usize;
        self.write(e, input.repeat(times).into())
    }

    pub(super) fn append(&mut self, length: u64, input: &'a [u8]) -> Done {
        let e = Extent {
            offset: self.info.size,
            length,
            truncate_seq: self.info.truncate_seq,
            truncate_size: 0,
        };
        self.write(e, input.into())
    }

    pub(super) fn zero(&mut self, offset: u64, length: u64) -> Done {
        let inside = offset < limits::OBJECT && (1..=limits::OBJECT).contains(&length);
        if self.exists && inside && offset + length >= self.info.size {
            if offset >= self.info.size {
                return Ok(None);
            }
            // What is zero up to the end may as well end earlier.
            return self.truncate(Extent {
                offset,
                length,
                ..Extent::default()
            });
        }
        self.changes += 1;
        check_size(offset, length)?;
        if length > 0 && self.exists && !self.info.whiteout {
            self.step(Step::Zero {
                obj: HEAD,
                offset,
                length,
            });
            self.change_data(offset, length);
        }
        OK
    }

    pub(super) fn truncate(&mut self, e: Extent) -> Done {
        self.changes += 1;
        if !self.exists || self.info.whiteout {
            return OK;
        }
        check_size(e.offset, e.length)?;
        if e.truncate_seq > 0 {
            if e.offset != e.truncate_size {
                // Ceph asserts that.
                return Err(errno(libc::EINVAL));
            }
            if e.truncate_seq <= self.info.truncate_seq {
                return OK;
            }
            self.info.truncate_seq = e.truncate_seq;
            self.info.truncate_size = e.truncate_size;
        }
        self.cut(e.offset);
        OK
    }

    pub(super) fn create(&mut self, exclusive: bool) -> Done {
        self.changes += 1;
        if exclusive && self.exists && !self.info.whiteout {
            return Err(errno(libc::EEXIST));
        }
        self.make();
        self.touch_info();
        OK
    }

    pub(super) fn set_alloc_hint(&mut self, hint: AllocHint) -> Done {
        self.changes += 1;
        self.make();
        self.touch_info();
        self.info.expected_object_size = hint.expected_object_size;
        self.info.expected_write_size = hint.expected_write_size;
        self.info.alloc_hint_flags = hint.flags;
        OK
    }
}
