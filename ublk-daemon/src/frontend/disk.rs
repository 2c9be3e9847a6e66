//! The disk as front ends see it.
//!
//! A disk and its front ends live on one thread. A front end submits a [`Request`] with a token of
//! its own choosing and a [`Completion`] to call; the disk calls it exactly once per request, in
//! any order, possibly before [`Disk::submit`] returns (a cache hit). Neither side blocks.
//!
//! Memory travels with the request: a write brings its bytes as a [`Payload`], a read brings the
//! [`ReadBuf`] to fill and gets it back in the [`Reply`].

use std::rc::Rc;

use cluster::payload::Payload;

use super::arena::Buffer;

/// What a disk is, as announced to clients. Only `size` may change while the disk is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskInfo {
    /// Bytes.
    pub size: u64,
    /// Every offset and length is a multiple of it. A power of two up to 64 KiB; 1 when the disk
    /// takes any byte range.
    pub block_size: u32,
    /// The size and alignment from which on requests need no read-modify-write and are not cut
    /// (`io_opt`). A power of two, at least `block_size` and 512.
    pub preferred_io: u32,
    /// The largest read or write. At least `preferred_io`.
    pub max_io: u32,
    pub read_only: bool,
    /// `None`: the disk has no use for discards.
    pub discard: Option<Discard>,
    /// Whether [`Op::WriteZeroes`] with `fast` ever does better than a refusal.
    pub fast_zero: bool,
}

/// The limits of a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discard {
    /// Parts of a discard that do not cover a whole granule may be ignored.
    pub granularity: u32,
    /// What to announce where a protocol has a field for it. The disk cuts longer discards itself.
    pub max_len: u64,
}

/// The front end's name for a request. The disk only hands it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// One request. The front end has checked it against [`DiskInfo`]: it lies inside the disk, is
/// aligned, not empty (but for [`Op::Flush`]) and no write when the disk is read-only.
#[derive(Debug)]
pub struct Request {
    pub token: Token,
    pub offset: u64,
    /// Of reads and writes: the length of the buffer, at most `max_io`. Of other operations: any.
    pub len: u64,
    /// A write (zeroes, discard) must be durable before it completes.
    pub fua: bool,
    pub op: Op,
}

#[derive(Debug)]
pub enum Op {
    /// Fill every byte of the buffer, or declare it a hole.
    Read(ReadBuf),
    /// The disk may keep clones of the payload as long as it likes before it completes the
    /// request, and drops them all before that.
    Write(Payload),
    /// Everything completed before this is durable when it completes.
    Flush,
    Discard,
    WriteZeroes {
        /// The range may become a hole.
        may_unmap: bool,
        /// Fail with [`Errno::NOT_SUPPORTED`], touching nothing, unless faster than writing.
        fast: bool,
    },
    /// Bring the range into a cache, if there is one.
    Cache,
    /// Report the allocation of the range from its start on. At least one extent must be reported;
    /// the list may end before the range does.
    BlockStatus(Extents),
}

/// What a successful request brings back: the memory it came with.
#[derive(Debug)]
pub enum Reply {
    Done,
    Read(ReadBuf),
    Extents(Extents),
}

/// Why a request failed, as a Linux errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const IO: Errno = Errno(libc::EIO);
    pub const INVALID: Errno = Errno(libc::EINVAL);
    pub const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    pub const NO_SPACE: Errno = Errno(libc::ENOSPC);
    pub const READ_ONLY: Errno = Errno(libc::EROFS);
    pub const SHUTDOWN: Errno = Errno(libc::ESHUTDOWN);
    pub const TIMED_OUT: Errno = Errno(libc::ETIMEDOUT);
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Where a disk reports completions. Called on the disk's thread, once per submitted request.
pub trait Completion {
    fn done(&self, token: Token, result: Result<Reply, Errno>);
}

/// What front ends serve.
pub trait Disk {
    fn info(&self) -> DiskInfo;

    /// Starts a request. `sink` hears of it once, perhaps before this returns, so callers hold no
    /// borrow that [`Completion::done`] takes.
    fn submit(&self, request: Request, sink: &Rc<dyn Completion>);
}

/// One run of equal allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub len: u64,
    pub state: Allocation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    Data,
    /// Allocated, and known to read as zeroes.
    Zero,
    /// Not allocated: reads as zeroes.
    Hole,
}

/// The answer to [`Op::BlockStatus`], in a list the front end reuses.
#[derive(Debug, Default)]
pub struct Extents {
    list: Vec<Extent>,
    limit: usize,
}

impl Extents {
    /// An empty list for at most `limit` extents (at least one).
    pub fn new(limit: usize) -> Extents {
        Extents::reuse(Vec::new(), limit)
    }

    /// As [`Extents::new`], in the memory of an earlier list.
    pub fn reuse(mut list: Vec<Extent>, limit: usize) -> Extents {
        list.clear();
        Extents {
            list,
            limit: limit.max(1),
        }
    }

    /// Appends a run; equal neighbours merge. False when the list is full: the rest of the range
    /// stays unreported.
    pub fn push(&mut self, len: u64, state: Allocation) -> bool {
        if len == 0 {
            return true;
        }
        let full = self.list.len() == self.limit;
        match self.list.last_mut() {
            Some(last) if last.state == state => last.len = last.len.saturating_add(len),
            _ if full => return false,
            _ => self.list.push(Extent { len, state }),
        }
        true
    }

    pub fn as_slice(&self) -> &[Extent] {
        &self.list
    }

    pub fn into_vec(self) -> Vec<Extent> {
        self.list
    }
}

/// How many separate holes a [`ReadBuf`] remembers. A read touches few objects; a read with more
/// holes than that has the surplus zeroed in memory.
pub const HOLES: usize = 8;

/// The memory a read fills. Holes are remembered rather than written, so that a protocol with
/// sparse replies need not touch them.
#[derive(Debug)]
pub struct ReadBuf {
    buffer: Buffer,
    /// Sorted, disjoint, not adjacent.
    holes: [(u32, u32); HOLES],
    count: usize,
}

impl ReadBuf {
    pub fn new(buffer: Buffer) -> ReadBuf {
        ReadBuf {
            buffer,
            holes: [(0, 0); HOLES],
            count: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Copies `bytes` to `at`. Panics when they lie outside, as slices do.
    pub fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.buffer[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The memory itself, for a receive straight into it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Declares `len` bytes from `at` on to be zeroes. No byte may be both filled and a hole.
    pub fn hole(&mut self, at: usize, len: usize) {
        assert!(at <= self.len() && len <= self.len() - at);
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (at as u32, (at + len) as u32);
        let holes = &mut self.holes[..self.count];
        // The remembered holes that touch the new one, and so become one with it.
        let first = holes.partition_point(|h| h.1 < start);
        let last = holes.partition_point(|h| h.0 <= end);
        if first < last {
            start = start.min(holes[first].0);
            end = end.max(holes[last - 1].1);
            holes[first] = (start, end);
            self.holes.copy_within(last..self.count, first + 1);
            self.count -= last - first - 1;
        } else if self.count < HOLES {
            self.holes.copy_within(first..self.count, first + 1);
            self.holes[first] = (start, end);
            self.count += 1;
        } else {
            self.buffer[at..at + len].fill(0);
        }
    }

    /// The remembered holes of at least `min` bytes, after zeroing the others in memory.
    pub fn holes(&mut self, min: usize) -> &[(u32, u32)] {
        let mut kept = 0;
        for i in 0..self.count {
            let (start, end) = self.holes[i];
            if ((end - start) as usize) < min {
                self.buffer[start as usize..end as usize].fill(0);
            } else {
                self.holes[kept] = (start, end);
                kept += 1;
            }
        }
        self.count = kept;
        &self.holes[..kept]
    }

    /// The bytes, all holes zeroed.
    pub fn flatten(mut self) -> Buffer {
        self.holes(usize::MAX);
        self.buffer
    }

    /// The memory, holes left as they are.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::arena::Arena;
    use proptest::prelude::*;

    #[test]
    fn equal_neighbours_merge_and_a_full_list_says_so() {
        let mut e = Extents::new(2);
        assert!(e.push(10, Allocation::Data));
        assert!(e.push(0, Allocation::Hole));
        assert!(e.push(5, Allocation::Data));
        assert!(e.push(7, Allocation::Hole));
        assert!(!e.push(1, Allocation::Data));
        assert!(e.push(3, Allocation::Hole));
        assert_eq!(
            e.as_slice(),
            &[
                Extent {
                    len: 15,
                    state: Allocation::Data
                },
                Extent {
                    len: 10,
                    state: Allocation::Hole
                },
            ]
        );
    }

    proptest! {
        /// Holes in any order, remembered or not, read as zeroes; the rest keeps its bytes.
        #[test]
        fn holes_read_as_zeroes(
            mut runs in proptest::collection::vec((1usize..40, any::<bool>()), 1..40),
            order in any::<u64>(),
            min in 0usize..60,
        ) {
            let len: usize = runs.iter().map(|r| r.0).sum();
            let arena = Arena::new(1 << 20, 4).unwrap();
            let mut read = ReadBuf::new(arena.alloc(len).unwrap());
            read.bytes_mut().fill(0xee);
            let mut model = vec![0u8; len];
            let mut placed = Vec::new();
            let mut at = 0;
            for (n, hole) in runs.drain(..) {
                placed.push((at, n, hole));
                at += n;
            }
            let mut seed = order;
            while !placed.is_empty() {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let (at, n, hole) = placed.swap_remove((seed >> 33) as usize % placed.len());
                if hole {
                    read.hole(at, n);
                } else {
                    read.fill(at, &vec![0x55; n]);
                    model[at..at + n].fill(0x55);
                }
            }
            let holes = read.holes(min).to_vec();
            for pair in holes.windows(2) {
                prop_assert!(pair[0].1 < pair[1].0);
            }
            for &(start, end) in &holes {
                prop_assert!((end - start) as usize >= min);
                prop_assert!(model[start as usize..end as usize].iter().all(|&b| b == 0));
            }
            prop_assert_eq!(&read.flatten()[..], &model[..]);
        }
    }
}
