//! Stream sockets: TCP and Unix.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::{opcode, squeue, types};

use crate::buf::{IoBuf, IoBufMut, part, part_mut};
use crate::core::Core;
use crate::fd::{Fd, Transfer, all, bare, once};
use crate::ops::{Cqe, Op, OpData};
use crate::recv::RecvStream;
use crate::ring::Sqe;
use crate::send::{self, StableBatch};

/// A connected stream socket. Clones are the same socket; the last one, or the last operation in
/// flight, closes it.
#[derive(Clone)]
pub struct Stream(Fd);

struct ConnectData {
    fd: Rc<OwnedFd>,
    addr: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl OpData for ConnectData {}

impl Stream {
    /// Connects over TCP, with `TCP_NODELAY` set.
    pub async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        let (storage, len) = inet(addr);
        let family = if addr.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let stream = Stream::dial(family, storage, len).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Connects to a Unix socket.
    pub async fn connect_unix(path: impl AsRef<Path>) -> io::Result<Stream> {
        let (storage, len) = unix(path.as_ref())?;
        Stream::dial(libc::AF_UNIX, storage, len).await
    }

    async fn dial(
        family: i32,
        addr: libc::sockaddr_storage,
        len: libc::socklen_t,
    ) -> io::Result<Stream> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let stream = Stream::from_fd(unsafe { OwnedFd::from_raw_fd(fd) })?;
        let fd = Rc::clone(&stream.0.fd);
        let data = ConnectData { fd, addr, len };
        let entry = |d: &mut ConnectData| {
            let fd = types::Fd(d.fd.as_raw_fd());
            opcode::Connect::new(fd, (&raw const d.addr).cast(), d.len).build()
        };
        // SAFETY: fd and address belong to the data.
        let mut op = unsafe { Op::submit(&stream.0.core, data, entry) };
        op.done().await.check()?;
        Ok(stream)
    }

    /// Adopts a connected socket made elsewhere.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Stream> {
        Fd::new(fd).map(Stream)
    }

    pub fn fd(&self) -> &Fd {
        &self.0
    }

    /// Receives into the ring's buffers. One receiver per socket at a time.
    pub fn recv_stream(&self) -> RecvStream {
        RecvStream::new(&self.0.core, &self.0.fd)
    }

    fn transfer<B>(&self, buf: B, range: Range<usize>) -> Transfer<B> {
        Transfer {
            fd: Rc::clone(&self.0.fd),
            buf,
            range,
            offset: u64::MAX,
        }
    }

    /// Receives directly into `range` of the buffer, maybe less; 0 at the end of the stream. No
    /// [`RecvStream`] may be receiving meanwhile.
    pub async fn recv<B: IoBufMut>(&self, buf: B, range: Range<usize>) -> (io::Result<usize>, B) {
        let entry = |t: &mut Transfer<B>| recv_entry(t, 0);
        // SAFETY: the entry names the range and nothing else.
        unsafe { once(&self.0.core, self.transfer(buf, range), entry).await }
    }

    /// Fills `range` of the buffer, or fails with `UnexpectedEof`.
    pub async fn recv_exact<B: IoBufMut>(
        &self,
        buf: B,
        range: Range<usize>,
    ) -> (io::Result<()>, B) {
        let transfer = self.transfer(buf, range);
        let entry = |t: &mut Transfer<B>| recv_entry(t, libc::MSG_WAITALL);
        let eof = io::ErrorKind::UnexpectedEof;
        // SAFETY: as above.
        unsafe { all(&self.0.core, transfer, eof, entry).await }
    }

    /// Sends all of `range`. After an error an unknown part was sent.
    pub async fn send<B: IoBuf>(&self, buf: B, range: Range<usize>) -> (io::Result<()>, B) {
        let transfer = self.transfer(buf, range);
        let entry = |t: &mut Transfer<B>| {
            let fd = t.raw();
            let (ptr, len) = part(&t.buf, &t.range);
            opcode::Send::new(fd, ptr, len)
                .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                .build()
        };
        // SAFETY: as above.
        unsafe { all(&self.0.core, transfer, io::ErrorKind::WriteZero, entry).await }
    }

    /// Sends all of a batch in as few calls as the kernel allows, and gives it back. Dropping the
    /// future stops the send somewhere; only closing the socket makes sense then.
    pub async fn send_batch<B: StableBatch>(&self, batch: B) -> (io::Result<usize>, B) {
        send::send_batch(&self.0.core, &self.0.fd, batch).await
    }

    pub async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        let entry = |fd| opcode::Shutdown::new(fd, how).build();
        bare(&self.0.core, &self.0.fd, entry).await.map(drop)
    }

    /// Closes the socket if this is its last handle.
    pub async fn close(self) -> io::Result<()> {
        self.0.close().await
    }

    /// The socket as the standard library sees it, for options and addresses.
    fn std(&self) -> ManuallyDrop<TcpStream> {
        // SAFETY: the descriptor is open as long as `self`, and the value is never dropped.
        ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(self.0.as_raw_fd()) })
    }

    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.std().set_nodelay(on)
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.std().peer_addr()
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std().local_addr()
    }
}

fn recv_entry<B: IoBufMut>(t: &mut Transfer<B>, flags: i32) -> squeue::Entry {
    let fd = t.raw();
    let (ptr, len) = part_mut(&mut t.buf, &t.range);
    opcode::Recv::new(fd, ptr, len).flags(flags).build()
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream(fd {})", self.as_raw_fd())
    }
}

struct AcceptData(Rc<OwnedFd>);

impl OpData for AcceptData {
    /// A connection that nobody will take.
    fn discard(&mut self, cqe: Cqe) {
        if let Ok(fd) = accepted(cqe) {
            drop(fd);
        }
    }
}

fn accepted(cqe: Cqe) -> io::Result<OwnedFd> {
    let fd = cqe.check()?;
    // SAFETY: the completion of an accept hands a new descriptor over, once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Connections accepted ahead of being asked for.
const ACCEPT_AHEAD: u32 = 64;

/// A listening socket.
pub struct Listener {
    fd: Fd,
    op: Option<Op<AcceptData>>,
    untried: Cell<bool>,
}

impl Listener {
    /// Listens on a TCP address, with `SO_REUSEADDR` set.
    pub fn bind(addr: SocketAddr) -> io::Result<Listener> {
        Listener::from_fd(TcpListener::bind(addr)?.into())
    }

    /// Listens on a Unix socket, which is created at `path`.
    pub fn bind_unix(path: impl AsRef<Path>) -> io::Result<Listener> {
        Listener::from_fd(UnixListener::bind(path)?.into())
    }

    /// Adopts a listening socket made elsewhere.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Listener> {
        Ok(Listener {
            fd: Fd::new(fd)?,
            op: None,
            untried: Cell::new(false),
        })
    }

    /// The next connection. An error (too many open files) does not end the listening.
    pub async fn accept(&mut self) -> io::Result<Stream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        loop {
            let op = match &mut self.op {
                Some(op) => op,
                None => self.op.insert(Self::arm(&self.fd, &self.untried)),
            };
            let Poll::Ready(cqe) = op.poll_next(cx) else {
                return Poll::Pending;
            };
            if op.is_over() {
                self.op = None;
            }
            let Some(cqe) = cqe else { continue };
            let untried = self.untried.replace(false);
            match accepted(cqe) {
                Ok(fd) => return Poll::Ready(Stream::adopt(&self.fd.core, fd)),
                Err(e) => match e.raw_os_error() {
                    // Before 5.19.
                    Some(libc::EINVAL) if untried => {
                        let mut features = self.fd.core.features.get();
                        features.multishot_accept = false;
                        self.fd.core.features.set(features);
                    }
                    Some(libc::ECANCELED) if !self.fd.core.is_closed() => {}
                    // The peer was faster to leave than we to take it.
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    _ => return Poll::Ready(Err(e)),
                },
            }
        }
    }

    fn arm(fd: &Fd, untried: &Cell<bool>) -> Op<AcceptData> {
        let core = &fd.core;
        let multishot = core.features.get().multishot_accept;
        untried.set(multishot);
        let limit = if multishot { ACCEPT_AHEAD } else { 0 };
        let build = |d: &mut AcceptData| {
            let fd = types::Fd(d.0.as_raw_fd());
            let null = std::ptr::null_mut();
            Sqe::Plain(if multishot {
                opcode::AcceptMulti::new(fd)
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            } else {
                opcode::Accept::new(fd, null, null.cast())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            })
        };
        // SAFETY: the entry names the fd, which the data holds, and no memory.
        unsafe { Op::submit_multi(core, AcceptData(Rc::clone(&fd.fd)), limit, build) }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        // SAFETY: the descriptor is open as long as `self`, and the value is never dropped.
        let std = ManuallyDrop::new(unsafe { TcpListener::from_raw_fd(self.fd.as_raw_fd()) });
        std.local_addr()
    }
}

impl Stream {
    /// An accepted socket is blocking already.
    fn adopt(core: &Rc<Core>, fd: OwnedFd) -> io::Result<Stream> {
        let core = Rc::clone(core);
        let fd = Rc::new(fd);
        Ok(Stream(Fd { core, fd }))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener(fd {})", self.fd.as_raw_fd())
    }
}

fn zeroed() -> libc::sockaddr_storage {
    // SAFETY: all-zero is a valid address of no family.
    unsafe { std::mem::zeroed() }
}

fn inet(addr: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut storage = zeroed();
    let len = match addr {
        SocketAddr::V4(v4) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is made to hold any socket address, aligned for each.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(sin) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(sin6) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as libc::socklen_t)
}

fn unix(path: &Path) -> io::Result<(libc::sockaddr_storage, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    let mut storage = zeroed();
    // SAFETY: the storage is made to hold any socket address, aligned for each.
    let un = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_un>() };
    // One byte is for the terminating zero.
    if bytes.is_empty() || bytes.len() >= un.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a path for a Unix socket: empty, too long, or with a zero byte",
        ));
    }
    un.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in un.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((storage, len as libc::socklen_t))
}
