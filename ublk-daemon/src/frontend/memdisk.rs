//! A disk in memory: what front ends are tested and measured with when no cluster is wanted.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::disk::{
    Allocation, Completion, Discard, Disk, DiskInfo, Errno, Op, ReadBuf, Reply, Request,
};

/// The unit of allocation: discards free whole granules, as they do whole objects of an image.
pub const GRANULE: usize = 64 << 10;

/// When requests complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Before `submit` returns.
    Immediate,
    /// When [`MemDisk::complete`] picks them, in an order drawn from the seed.
    Shuffled { seed: u64 },
}

/// What reached the disk.
#[derive(Debug, Default)]
pub struct Counters {
    pub reads: Cell<u64>,
    pub writes: Cell<u64>,
    pub flushes: Cell<u64>,
    pub discards: Cell<u64>,
    pub zeroes: Cell<u64>,
    pub statuses: Cell<u64>,
    pub caches: Cell<u64>,
    pub fua: Cell<u64>,
    /// Requests that completed after one that came later.
    pub overtaken: Cell<u64>,
}

fn count(c: &Cell<u64>) {
    c.set(c.get() + 1);
}

struct Pending {
    request: Request,
    sink: Rc<dyn Completion>,
    arrival: u64,
}

pub struct MemDisk {
    info: DiskInfo,
    order: Order,
    bytes: RefCell<Vec<u8>>,
    allocated: RefCell<Vec<bool>>,
    pending: RefCell<Vec<Pending>>,
    random: Cell<u64>,
    arrivals: Cell<u64>,
    latest_done: Cell<u64>,
    /// Requests that touch this range fail with this errno.
    bad: RefCell<Option<(Range<u64>, Errno)>>,
    pub counters: Counters,
}

impl MemDisk {
    pub fn new(size: u64, order: Order) -> MemDisk {
        MemDisk::with_info(
            DiskInfo {
                size,
                block_size: 1,
                preferred_io: GRANULE as u32,
                max_io: 32 << 20,
                read_only: false,
                discard: Some(Discard {
                    granularity: GRANULE as u32,
                    max_len: u64::MAX,
                }),
                fast_zero: true,
            },
            order,
        )
    }

    pub fn with_info(info: DiskInfo, order: Order) -> MemDisk {
        let size = usize::try_from(info.size).expect("a disk that fits in memory");
        let seed = match order {
            Order::Immediate => 0,
            Order::Shuffled { seed } => seed,
        };
        MemDisk {
            info,
            order,
            bytes: RefCell::new(vec![0; size]),
            allocated: RefCell::new(vec![false; size.div_ceil(GRANULE)]),
            pending: RefCell::new(Vec::new()),
            random: Cell::new(seed | 1),
            arrivals: Cell::new(0),
            latest_done: Cell::new(0),
            bad: RefCell::new(None),
            counters: Counters::default(),
        }
    }

    /// From now on requests that touch `range` fail.
    pub fn break_range(&self, range: Range<u64>, errno: Errno) {
        *self.bad.borrow_mut() = Some((range, errno));
    }

    /// The contents, for comparison.
    pub fn with_bytes<T>(&self, f: impl FnOnce(&mut [u8]) -> T) -> T {
        f(&mut self.bytes.borrow_mut())
    }

    /// Writes the whole disk.
    pub fn fill(&self, byte: u8) {
        self.bytes.borrow_mut().fill(byte);
        self.allocated.borrow_mut().fill(true);
    }

    pub fn pending(&self) -> usize {
        self.pending.borrow().len()
    }

    /// Completes up to `n` pending requests, picked at random. Returns how many.
    pub fn complete(&self, n: usize) -> usize {
        for done in 0..n {
            let picked = {
                let mut pending = self.pending.borrow_mut();
                if pending.is_empty() {
                    return done;
                }
                let at = (self.draw() % pending.len() as u64) as usize;
                pending.swap_remove(at)
            };
            if picked.arrival < self.latest_done.get() {
                count(&self.counters.overtaken);
            }
            self.latest_done
                .set(self.latest_done.get().max(picked.arrival));
            self.run(picked.request, &picked.sink);
        }
        n
    }

    /// The next number of an xorshift generator (Marsaglia, 2003).
    pub fn draw(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }

    fn run(&self, request: Request, sink: &Rc<dyn Completion>) {
        let Request {
            token,
            offset,
            len,
            fua,
            op,
        } = request;
        if fua {
            count(&self.counters.fua);
        }
        let broken = match &*self.bad.borrow() {
            Some((bad, errno)) if offset < bad.end && bad.start < offset + len => Some(*errno),
            _ => None,
        };
        let result = match broken {
            // The request's memory goes before the sink hears of it, as the interface demands.
            Some(errno) => {
                drop(op);
                Err(errno)
            }
            None => self.execute(offset as usize, len as usize, op),
        };
        sink.done(token, result);
    }

    fn execute(&self, at: usize, len: usize, op: Op) -> Result<Reply, Errno> {
        match op {
            Op::Read(mut into) => {
                count(&self.counters.reads);
                self.read(at, &mut into);
                return Ok(Reply::Read(into));
            }
            Op::Write(payload) => {
                count(&self.counters.writes);
                self.bytes.borrow_mut()[at..at + len].copy_from_slice(&payload);
                self.allocate(at, len);
            }
            Op::Flush => count(&self.counters.flushes),
            Op::Discard => {
                count(&self.counters.discards);
                self.unmap(whole_granules(at, len));
            }
            Op::WriteZeroes { may_unmap, fast } => {
                count(&self.counters.zeroes);
                let whole = whole_granules(at, len);
                if fast && (!may_unmap || whole.is_empty()) {
                    return Err(Errno::NOT_SUPPORTED);
                }
                self.bytes.borrow_mut()[at..at + len].fill(0);
                if may_unmap {
                    self.unmap(whole);
                } else {
                    self.allocate(at, len);
                }
            }
            Op::Cache => count(&self.counters.caches),
            Op::BlockStatus(mut extents) => {
                count(&self.counters.statuses);
                for (run, allocated) in self.runs(at, len) {
                    let state = if allocated {
                        Allocation::Data
                    } else {
                        Allocation::Hole
                    };
                    if !extents.push(run.len() as u64, state) {
                        break;
                    }
                }
                return Ok(Reply::Extents(extents));
            }
        }
        Ok(Reply::Done)
    }

    fn read(&self, at: usize, into: &mut ReadBuf) {
        let bytes = self.bytes.borrow();
        for (run, allocated) in self.runs(at, into.len()) {
            if allocated {
                into.fill(run.start - at, &bytes[run]);
            } else {
                into.hole(run.start - at, run.len());
            }
        }
    }

    /// The range cut at granule borders, with the allocation of each part.
    fn runs(&self, at: usize, len: usize) -> impl Iterator<Item = (Range<usize>, bool)> {
        let (mut at, end) = (at, at + len);
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let granule = at / GRANULE;
            let stop = ((granule + 1) * GRANULE).min(end);
            let run = at..stop;
            at = stop;
            Some((run, self.allocated.borrow()[granule]))
        })
    }

    fn allocate(&self, at: usize, len: usize) {
        if len > 0 {
            self.allocated.borrow_mut()[at / GRANULE..=(at + len - 1) / GRANULE].fill(true);
        }
    }

    fn unmap(&self, granules: Range<usize>) {
        if granules.is_empty() {
            return;
        }
        let bytes = &mut *self.bytes.borrow_mut();
        let end = (granules.end * GRANULE).min(bytes.len());
        bytes[granules.start * GRANULE..end].fill(0);
        self.allocated.borrow_mut()[granules].fill(false);
    }
}

/// The granules that lie wholly inside the range.
fn whole_granules(at: usize, len: usize) -> Range<usize> {
    let (first, end) = (at.div_ceil(GRANULE), (at + len) / GRANULE);
    first..end.max(first)
}

impl Disk for MemDisk {
    fn info(&self) -> DiskInfo {
        self.info
    }

    fn submit(&self, request: Request, sink: &Rc<dyn Completion>) {
        match self.order {
            Order::Immediate => self.run(request, sink),
            Order::Shuffled { .. } => {
                let arrival = self.arrivals.get() + 1;
                self.arrivals.set(arrival);
                self.pending.borrow_mut().push(Pending {
                    request,
                    sink: Rc::clone(sink),
                    arrival,
                });
            }
        }
    }
}
