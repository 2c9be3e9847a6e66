//! Descriptors, files, and the transfers that all of them share.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;

use io_uring::{opcode, squeue, types};

use crate::buf::{IoBuf, IoBufMut, part, part_mut};
use crate::core::{Core, current};
use crate::ops::{Op, OpData};

/// A part of a buffer on its way to or from a descriptor.
pub(crate) struct Transfer<B> {
    pub(crate) fd: Rc<OwnedFd>,
    pub(crate) buf: B,
    pub(crate) range: Range<usize>,
    /// In the file; -1 for what has no position.
    pub(crate) offset: u64,
}

impl<B: 'static> OpData for Transfer<B> {}

impl<B> Transfer<B> {
    pub(crate) fn raw(&self) -> types::Fd {
        types::Fd(self.fd.as_raw_fd())
    }

    fn advance(&mut self, n: usize) {
        self.range.start += n;
        if self.offset != u64::MAX {
            self.offset += n as u64;
        }
    }
}

pub(crate) type Build<B> = fn(&mut Transfer<B>) -> squeue::Entry;

/// # Safety
/// The entry that `build` makes must name memory of `transfer` only, within its range.
pub(crate) async unsafe fn once<B: 'static>(
    core: &Rc<Core>,
    transfer: Transfer<B>,
    build: Build<B>,
) -> (io::Result<usize>, B) {
    // SAFETY: the transfer owns buffer and fd; the caller promises the rest.
    let mut op = unsafe { Op::submit(core, transfer, build) };
    let result = op.done().await.check().map(|n| n as usize);
    (result, op.into_data().buf)
}

/// Repeats until the whole range is moved. `none` is the error for a transfer of nothing.
///
/// # Safety
/// As for `once`.
pub(crate) async unsafe fn all<B: 'static>(
    core: &Rc<Core>,
    transfer: Transfer<B>,
    none: io::ErrorKind,
    build: Build<B>,
) -> (io::Result<()>, B) {
    if transfer.range.is_empty() {
        return (Ok(()), transfer.buf);
    }
    // SAFETY: as in `once`.
    let mut op = unsafe { Op::submit(core, transfer, build) };
    let result = loop {
        match op.done().await.check() {
            Ok(0) => break Err(none.into()),
            Ok(n) => op.data().advance(n as usize),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => break Err(e),
        }
        if op.data().range.is_empty() {
            break Ok(());
        }
        // SAFETY: as in `once`.
        unsafe { op.resubmit(build) };
    };
    (result, op.into_data().buf)
}

struct Held(#[allow(dead_code)] Rc<OwnedFd>);

impl OpData for Held {}

/// An operation on a descriptor that involves no memory.
pub(crate) async fn bare(
    core: &Rc<Core>,
    fd: &Rc<OwnedFd>,
    build: impl FnOnce(types::Fd) -> squeue::Entry,
) -> io::Result<u32> {
    let raw = types::Fd(fd.as_raw_fd());
    // SAFETY: the entry names the fd, which the data holds, and no memory.
    let mut op = unsafe { Op::submit(core, Held(Rc::clone(fd)), |_| build(raw)) };
    op.done().await.check()
}

/// Any descriptor, kept open by the handles and by the operations in flight on it.
#[derive(Clone)]
pub struct Fd {
    pub(crate) core: Rc<Core>,
    pub(crate) fd: Rc<OwnedFd>,
}

impl Fd {
    /// Adopts a descriptor for the current runtime and makes it blocking: on a non-blocking one
    /// the ring would report `EAGAIN` instead of waiting.
    pub fn new(fd: OwnedFd) -> io::Result<Fd> {
        let raw = fd.as_raw_fd();
        // SAFETY: both calls take an open descriptor and no pointers.
        let done = unsafe {
            let flags = libc::fcntl(raw, libc::F_GETFL);
            flags >= 0
                && (flags & libc::O_NONBLOCK == 0
                    || libc::fcntl(raw, libc::F_SETFL, flags & !libc::O_NONBLOCK) >= 0)
        };
        if !done {
            return Err(io::Error::last_os_error());
        }
        Ok(Fd {
            core: current(),
            fd: Rc::new(fd),
        })
    }

    /// Waits for one of `events` (`POLLIN`, ...); returns those that hold.
    pub async fn poll(&self, events: i16) -> io::Result<i16> {
        let events = u32::from(events as u16);
        bare(&self.core, &self.fd, |fd| {
            opcode::PollAdd::new(fd, events).build()
        })
        .await
        .map(|events| events as i16)
    }

    /// Closes on the ring if this is the last handle; otherwise the last one closes.
    pub async fn close(self) -> io::Result<()> {
        struct Closing(RawFd);
        impl OpData for Closing {}
        let Fd { core, fd } = self;
        let Ok(fd) = Rc::try_unwrap(fd) else {
            return Ok(());
        };
        if core.is_closed() {
            return Ok(());
        }
        let raw = fd.into_raw_fd();
        let entry = |c: &mut Closing| opcode::Close::new(types::Fd(c.0)).build();
        // SAFETY: no memory is named, and the descriptor has no other owner.
        let mut op = unsafe { Op::submit(&core, Closing(raw), entry) };
        let result = op.done().await.check();
        if result
            .as_ref()
            .is_err_and(|e| e.raw_os_error() == Some(libc::ECANCELED))
        {
            // SAFETY: a cancelled close has not touched it, and we are still its only owner.
            drop(unsafe { OwnedFd::from_raw_fd(raw) });
            return Ok(());
        }
        result.map(drop)
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A file or block device, read and written at offsets.
#[derive(Clone)]
pub struct File(Fd);

impl File {
    /// Opens with plain, blocking system calls.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> io::Result<File> {
        File::from_fd(options.open(path)?.into())
    }

    pub fn from_fd(fd: OwnedFd) -> io::Result<File> {
        Fd::new(fd).map(File)
    }

    pub fn fd(&self) -> &Fd {
        &self.0
    }

    fn transfer<B>(&self, buf: B, range: Range<usize>, offset: u64) -> Transfer<B> {
        Transfer {
            fd: Rc::clone(&self.0.fd),
            buf,
            range,
            offset,
        }
    }

    /// Reads into `range` of the buffer, maybe less; 0 at the end of the file.
    pub async fn read_at<B: IoBufMut>(
        &self,
        buf: B,
        range: Range<usize>,
        offset: u64,
    ) -> (io::Result<usize>, B) {
        // SAFETY: `read_entry` names the range and nothing else.
        unsafe {
            once(
                &self.0.core,
                self.transfer(buf, range, offset),
                read_entry::<B>,
            )
            .await
        }
    }

    /// Fills `range` of the buffer, or fails with `UnexpectedEof`.
    pub async fn read_exact_at<B: IoBufMut>(
        &self,
        buf: B,
        range: Range<usize>,
        offset: u64,
    ) -> (io::Result<()>, B) {
        let transfer = self.transfer(buf, range, offset);
        // SAFETY: as above.
        unsafe {
            all(
                &self.0.core,
                transfer,
                io::ErrorKind::UnexpectedEof,
                read_entry::<B>,
            )
            .await
        }
    }

    /// Writes `range` of the buffer, maybe less.
    pub async fn write_at<B: IoBuf>(
        &self,
        buf: B,
        range: Range<usize>,
        offset: u64,
    ) -> (io::Result<usize>, B) {
        // SAFETY: `write_entry` names the range and nothing else.
        unsafe {
            once(
                &self.0.core,
                self.transfer(buf, range, offset),
                write_entry::<B>,
            )
            .await
        }
    }

    /// Writes all of `range`.
    pub async fn write_all_at<B: IoBuf>(
        &self,
        buf: B,
        range: Range<usize>,
        offset: u64,
    ) -> (io::Result<()>, B) {
        let transfer = self.transfer(buf, range, offset);
        // SAFETY: as above.
        unsafe {
            all(
                &self.0.core,
                transfer,
                io::ErrorKind::WriteZero,
                write_entry::<B>,
            )
            .await
        }
    }

    pub async fn fsync(&self) -> io::Result<()> {
        self.sync(types::FsyncFlags::empty()).await
    }

    /// Data, and the metadata that reading it back needs.
    pub async fn fdatasync(&self) -> io::Result<()> {
        self.sync(types::FsyncFlags::DATASYNC).await
    }

    async fn sync(&self, flags: types::FsyncFlags) -> io::Result<()> {
        let entry = |fd| opcode::Fsync::new(fd).flags(flags).build();
        bare(&self.0.core, &self.0.fd, entry).await.map(drop)
    }
}

fn read_entry<B: IoBufMut>(t: &mut Transfer<B>) -> squeue::Entry {
    let fd = t.raw();
    let (ptr, len) = part_mut(&mut t.buf, &t.range);
    opcode::Read::new(fd, ptr, len).offset(t.offset).build()
}

fn write_entry<B: IoBuf>(t: &mut Transfer<B>) -> squeue::Entry {
    let fd = t.raw();
    let (ptr, len) = part(&t.buf, &t.range);
    opcode::Write::new(fd, ptr, len).offset(t.offset).build()
}

/// A counter that the kernel or another process raises and this runtime awaits.
#[derive(Clone)]
pub struct EventFd(Fd);

impl EventFd {
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        EventFd::from_fd(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub fn from_fd(fd: OwnedFd) -> io::Result<EventFd> {
        Fd::new(fd).map(EventFd)
    }

    pub fn fd(&self) -> &Fd {
        &self.0
    }

    /// Waits until the counter is not zero, and takes it.
    pub async fn read(&self) -> io::Result<u64> {
        struct Count {
            fd: Rc<OwnedFd>,
            // Boxed by the operation's block, which does not move.
            value: u64,
        }
        impl OpData for Count {}
        let data = Count {
            fd: Rc::clone(&self.0.fd),
            value: 0,
        };
        let entry = |c: &mut Count| {
            let fd = types::Fd(c.fd.as_raw_fd());
            opcode::Read::new(fd, (&raw mut c.value).cast(), 8).build()
        };
        // SAFETY: fd and memory belong to the data.
        let mut op = unsafe { Op::submit(&self.0.core, data, entry) };
        op.done().await.check()?;
        Ok(op.into_data().value)
    }
}
