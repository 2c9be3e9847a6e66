//! A queue of a ublk device: fetches requests, hands them to the disk, commits their results.
//!
//! Each tag has one command in the kernel or one request at the disk, never both. A command brings
//! a request: its description lies in memory shared with the driver, and a write's data in the
//! buffer that the command named. The commit of the result carries the next fetch. All commands of
//! a turn of the loop go out in its one system call.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

use iothread::io_uring::{opcode, squeue, types};
use iothread::{CommandSink, Commands, Cqe, JoinHandle, Signal};

use super::super::arena::{Arena, Buffer, Frozen};
use super::super::disk::{Completion, Disk, Errno, Op, ReadBuf, Reply, Request, Token};
use super::limits::SECTOR;
use super::uapi::{self, ABORT, IoDesc, MAX_DEPTH};

/// How soon memory is asked for again that a failed request has left in use.
const RETRY: Duration = Duration::from_millis(5);

/// The descriptions of a queue's requests, written by the driver.
struct Descriptors {
    base: NonNull<u8>,
    len: usize,
    depth: u16,
}

impl Descriptors {
    fn map(device: &File, queue: u16, depth: u16) -> io::Result<Descriptors> {
        // SAFETY: no pointer is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // `ublk_queue_cmd_buf_size` and `ublk_max_cmd_buf_size`.
        let size = |depth: u16| (usize::from(depth) * IoDesc::LEN).next_multiple_of(page);
        let (len, offset) = (size(depth), usize::from(queue) * size(MAX_DEPTH));
        // SAFETY: a new mapping at an address of the kernel's choosing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                device.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap returned the null page");
        Ok(Descriptors { base, len, depth })
    }

    /// The request under `tag`, which the driver has handed over.
    fn read(&self, tag: u16) -> IoDesc {
        assert!(tag < self.depth);
        let at = usize::from(tag) * IoDesc::LEN;
        // SAFETY: inside the mapping, which is page-aligned, so the words are aligned. The driver
        // writes a description before it completes the fetch, and not again before the commit;
        // volatile, since that is another writer all the same.
        let words = unsafe {
            let first = self.base.add(at).cast::<u64>();
            [0, 1, 2].map(|n| first.add(n).read_volatile())
        };
        IoDesc::decode(words)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `map`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Memory of a tag. While its command is in the kernel, the buffer is the kernel's to write to.
#[derive(Default)]
struct Tag {
    buffer: Option<Buffer>,
    /// The data of a write that the disk has.
    frozen: Option<Frozen>,
    /// What a success commits: bytes of a read or a write.
    len: i32,
}

struct Shared {
    descriptors: Descriptors,
    device: Rc<File>,
    queue: u16,
    max_io: usize,
    disk: Rc<dyn Disk>,
    arena: Arena,
    tags: RefCell<Vec<Tag>>,
    /// Emptied when the queue ends: its table entry holds us, and we hold it.
    commands: RefCell<Option<Commands>>,
    /// Tags whose command has completed, with the result.
    fetched: RefCell<Vec<(u16, i32)>>,
    /// Requests that are done but have no memory for the next fetch yet, with their result.
    stuck: RefCell<Vec<(u16, i32)>>,
    wake: Signal,
    /// Commands in the kernel.
    armed: Cell<usize>,
    /// Requests at the disk, or stuck.
    busy: Cell<usize>,
    failed: Cell<Option<Errno>>,
    /// Raised when nothing is armed or busy any more, or a fetch has failed.
    over: Signal,
}

/// A running queue. Dropping it ends the process's part in it; commands that are still in the
/// kernel keep their memory until they complete.
pub(super) struct Queue {
    shared: Rc<Shared>,
    task: JoinHandle<()>,
}

impl Queue {
    /// Fetches for all tags of a queue; requests go to `disk`. Memory for `depth` requests of
    /// `max_io` bytes is taken and locked here.
    pub(super) fn start(
        device: Rc<File>,
        queue: u16,
        depth: u16,
        max_io: u32,
        disk: Rc<dyn Disk>,
    ) -> io::Result<Queue> {
        let tags = usize::from(depth);
        let max_io = max_io as usize;
        let arena = Arena::new(tags * max_io.next_power_of_two(), tags)?;
        if let Err(e) = arena.lock() {
            tracing::warn!(
                "request memory may be paged out: {e} (raise `ulimit -l` or LimitMEMLOCK=)"
            );
        }
        let shared = Rc::new(Shared {
            descriptors: Descriptors::map(&device, queue, depth)?,
            device,
            queue,
            max_io,
            disk,
            arena,
            tags: RefCell::new((0..depth).map(|_| Tag::default()).collect()),
            commands: RefCell::new(None),
            fetched: RefCell::new(Vec::with_capacity(tags)),
            stuck: RefCell::new(Vec::with_capacity(tags)),
            wake: Signal::new(),
            armed: Cell::new(0),
            busy: Cell::new(0),
            failed: Cell::new(None),
            over: Signal::new(),
        });
        let commands = Commands::new(Rc::clone(&shared) as Rc<dyn CommandSink>);
        *shared.commands.borrow_mut() = Some(commands);
        for tag in 0..depth {
            shared.tags.borrow_mut()[usize::from(tag)].buffer = shared.arena.alloc(max_io);
            shared.push(uapi::fetch_code(), tag, 0);
        }
        let task = iothread::spawn(Rc::clone(&shared).run());
        Ok(Queue { shared, task })
    }

    /// Waits until the device has stopped and every request is answered, or the driver refuses to
    /// go on.
    pub(super) async fn ended(&self) -> Result<(), Errno> {
        loop {
            if let Some(errno) = self.shared.failed.get() {
                return Err(errno);
            }
            if self.shared.armed.get() == 0 && self.shared.busy.get() == 0 {
                return Ok(());
            }
            self.shared.over.wait().await;
        }
    }

    /// Waits until no request is at the disk.
    pub(super) async fn idle(&self) {
        while self.shared.busy.get() > 0 {
            iothread::sleep(RETRY).await;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.task.abort();
        let commands = self.shared.commands.borrow_mut().take();
        drop(commands);
    }
}

impl Shared {
    async fn run(self: Rc<Self>) {
        let sink: Rc<dyn Completion> = Rc::clone(&self) as Rc<dyn Completion>;
        let mut batch = Vec::with_capacity(usize::from(self.descriptors.depth));
        loop {
            if self.stuck.borrow().is_empty() {
                self.wake.wait().await;
            } else {
                iothread::race(self.wake.wait(), iothread::sleep(RETRY)).await;
            }
            std::mem::swap(&mut *self.fetched.borrow_mut(), &mut batch);
            for (tag, result) in batch.drain(..) {
                match result {
                    0 => self.begin(tag, &sink),
                    ABORT => {}
                    error => self.fail(Errno(-error)),
                }
            }
            // Those that still find none come back to the list.
            std::mem::swap(&mut *self.stuck.borrow_mut(), &mut batch);
            for (tag, result) in batch.drain(..) {
                if !self.commit(tag, result) {
                    self.stuck.borrow_mut().push((tag, result));
                }
            }
            if self.armed.get() == 0 && self.busy.get() == 0 {
                self.over.raise();
            }
        }
    }

    fn fail(&self, errno: Errno) {
        if self.failed.replace(Some(errno)).is_none() {
            tracing::error!(
                queue = self.queue,
                "the ublk driver takes no more fetches: {errno}"
            );
        }
        self.over.raise();
    }

    /// Hands the request under `tag` to the disk.
    fn begin(&self, tag: u16, sink: &Rc<dyn Completion>) {
        let desc = self.descriptors.read(tag);
        self.busy.set(self.busy.get() + 1);
        match self.request(tag, &desc) {
            Ok(request) => self.disk.submit(request, sink),
            Err(errno) => self.finish(tag, -errno.0),
        }
    }

    fn finish(&self, tag: u16, result: i32) {
        if !self.commit(tag, result) {
            self.stuck.borrow_mut().push((tag, result));
            self.wake.raise();
        }
    }

    fn request(&self, tag: u16, desc: &IoDesc) -> Result<Request, Errno> {
        let len = u64::from(desc.sectors) * SECTOR;
        let offset = desc.start_sector.saturating_mul(SECTOR);
        let info = self.disk.info();
        let mut tags = self.tags.borrow_mut();
        let slot = &mut tags[usize::from(tag)];
        slot.len = 0;
        if desc.op != IoDesc::FLUSH {
            // A disk that has shrunk meanwhile is asked for what it was.
            if len == 0 || offset.checked_add(len).is_none_or(|end| end > info.size) {
                return Err(Errno::IO);
            }
            if desc.op != IoDesc::READ && info.read_only {
                return Err(Errno::READ_ONLY);
            }
        }
        let op = match desc.op {
            IoDesc::READ | IoDesc::WRITE => {
                if len > self.max_io as u64 {
                    return Err(Errno::IO);
                }
                let mut buffer = slot.buffer.take().ok_or(Errno::IO)?;
                buffer.set_len(len as usize);
                slot.len = len as i32;
                if desc.op == IoDesc::READ {
                    Op::Read(ReadBuf::new(buffer))
                } else {
                    let frozen = buffer.freeze();
                    let payload = frozen.payload(0..len as usize);
                    slot.frozen = Some(frozen);
                    Op::Write(payload)
                }
            }
            IoDesc::FLUSH => Op::Flush,
            IoDesc::DISCARD => Op::Discard,
            IoDesc::WRITE_ZEROES => Op::WriteZeroes {
                may_unmap: !desc.no_unmap(),
                fast: false,
            },
            _ => return Err(Errno::NOT_SUPPORTED),
        };
        Ok(Request {
            token: Token(u64::from(tag)),
            offset,
            len,
            fua: desc.fua(),
            op,
        })
    }

    /// Commits a result and fetches the next request, if there is memory for it.
    fn commit(&self, tag: u16, result: i32) -> bool {
        {
            let mut tags = self.tags.borrow_mut();
            let slot = &mut tags[usize::from(tag)];
            if let Some(frozen) = slot.frozen.take() {
                match frozen.thaw() {
                    Ok(buffer) => slot.buffer = Some(buffer),
                    // A request that failed may have left its data with a connection.
                    Err(frozen) => drop(frozen),
                }
            }
            let buffer = slot.buffer.take().or_else(|| self.arena.alloc(self.max_io));
            let Some(mut buffer) = buffer else {
                return false;
            };
            buffer.set_len(self.max_io);
            slot.buffer = Some(buffer);
        }
        self.busy.set(self.busy.get() - 1);
        self.push(uapi::commit_and_fetch_code(), tag, result);
        true
    }

    fn push(&self, code: u32, tag: u16, result: i32) {
        let addr = {
            let mut tags = self.tags.borrow_mut();
            let slot = &mut tags[usize::from(tag)];
            let buffer = slot.buffer.as_mut().expect("memory before a fetch");
            buffer.as_mut_ptr() as u64
        };
        let entry = self.entry(code, uapi::io_cmd(self.queue, tag, result, addr));
        let commands = self.commands.borrow();
        let Some(commands) = &*commands else { return };
        // SAFETY: the kernel writes at most `max_io` bytes (what ADD_DEV was told) to the tag's
        // buffer, which is this long, stays in the table of tags untouched until the command has
        // completed, and lives in a mapping that the arena, and so this sink, keeps. The file is
        // the sink's, too.
        if unsafe { commands.push(entry, tag.into()) }.is_ok() {
            self.armed.set(self.armed.get() + 1);
        }
    }

    fn entry(&self, code: u32, cmd: [u8; uapi::IO_CMD]) -> squeue::Entry {
        let fd = types::Fd(self.device.as_raw_fd());
        opcode::UringCmd16::new(fd, code).cmd(cmd).build()
    }
}

impl CommandSink for Shared {
    fn complete(&self, tag: u32, cqe: Cqe) {
        self.armed.set(self.armed.get() - 1);
        self.fetched.borrow_mut().push((tag as u16, cqe.result));
        self.wake.raise();
    }
}

impl Completion for Shared {
    fn done(&self, token: Token, result: Result<Reply, Errno>) {
        let tag = token.0 as u16;
        let result = {
            let mut tags = self.tags.borrow_mut();
            let slot = &mut tags[usize::from(tag)];
            match result {
                Ok(reply) => {
                    if let Reply::Read(read) = reply {
                        slot.buffer = Some(read.flatten());
                    }
                    slot.len
                }
                Err(errno) => -errno.0,
            }
        };
        self.finish(tag, result);
    }
}
