//! Listening sockets: who may connect, and what is left behind.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};

/// `sun_path` less its terminating zero (`include/uapi/linux/un.h`, `UNIX_PATH_MAX`).
const MAX_PATH: usize = 107;
const BACKLOG: i32 = 128;

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("socket path {} is longer than {MAX_PATH} bytes", .0.display())]
    PathTooLong(PathBuf),
    #[error("socket {} is in use by another process", .0.display())]
    InUse(PathBuf),
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    #[error(
        "refusing to listen on {0}: NBD asks nobody for a password, so only loopback addresses \
         are used unless told otherwise"
    )]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {addr}: {error}")]
    Listen { addr: String, error: io::Error },
}

/// A listening socket, ready for a ring. A Unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    address: String,
    _file: Option<SocketFile>,
}

impl Socket {
    /// Listens on a Unix socket that only those may open whom `mode` admits. A socket file that
    /// nobody listens on any more is replaced.
    pub fn unix(path: &Path, mode: u32) -> Result<Socket, SocketError> {
        if path.as_os_str().len() > MAX_PATH {
            return Err(SocketError::PathTooLong(path.to_owned()));
        }
        let failed = |error| SocketError::Listen {
            addr: path.display().to_string(),
            error,
        };
        let fd = socket::socket(
            AddressFamily::Unix,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .map_err(|e| failed(e.into()))?;
        let addr = UnixAddr::new(path).map_err(|e| failed(e.into()))?;
        let bind = || socket::bind(fd.as_raw_fd(), &addr);
        // Two daemons that find the same stale socket must not remove each other's new one.
        let lock = lock_directory(path);
        if let Err(e) = bind() {
            if e != nix::Error::EADDRINUSE {
                return Err(failed(e.into()));
            }
            remove_stale(path)?;
            bind().map_err(|e| failed(e.into()))?;
        }
        let file = SocketFile::of(path).map_err(failed)?;
        // Nobody gets in before `listen`, so there is no moment of a wider mode.
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        Backlog::new(BACKLOG)
            .and_then(|backlog| socket::listen(&fd, backlog))
            .map_err(|e| failed(e.into()))?;
        drop(lock);
        Ok(Socket {
            fd,
            address: path.display().to_string(),
            _file: Some(file),
        })
    }

    /// Listens on a TCP address, which must be a loopback one unless `anywhere`.
    pub fn tcp(addr: SocketAddr, anywhere: bool) -> Result<Socket, SocketError> {
        if !anywhere && !addr.ip().to_canonical().is_loopback() {
            return Err(SocketError::NotLoopback(addr));
        }
        let failed = |error| SocketError::Listen {
            addr: addr.to_string(),
            error,
        };
        let listener = TcpListener::bind(addr).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?.to_string();
        Ok(Socket {
            fd: listener.into(),
            address,
            _file: None,
        })
    }

    /// The path, or the address with the port the kernel chose.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A descriptor of the same socket, for the ring.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

/// Serialises daemons that set up sockets in one directory, as far as that can be had: a
/// directory we may not open, or one that somebody keeps locked, is used without.
fn lock_directory(path: &Path) -> Option<Flock<fs::File>> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let mut dir = fs::File::open(parent.unwrap_or(Path::new("."))).ok()?;
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Some(lock),
            Err((_, nix::Error::EWOULDBLOCK)) if Instant::now() > deadline => return None,
            Err((back, nix::Error::EWOULDBLOCK)) => dir = back,
            Err(_) => return None,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Removes a socket file that nobody listens on; refuses anything else.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |error| SocketError::Listen {
        addr: path.display().to_string(),
        error,
    };
    let is_socket = match fs::symlink_metadata(path) {
        Ok(meta) => meta.file_type().is_socket(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
    };
    if !is_socket {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(failed(e)),
        // Somebody answers, or would if its backlog were not full.
        Ok(_) | Err(_) => Err(SocketError::InUse(path.to_owned())),
    }
}

/// The file of a Unix socket, by what makes it ours.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let meta = fs::symlink_metadata(path)?;
        Ok(SocketFile {
            // The working directory may be another one by the time it is removed.
            path: std::path::absolute(path)?,
            dev: meta.dev(),
            ino: meta.ino(),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have replaced it by a socket of their own.
        if let Ok(meta) = fs::symlink_metadata(&self.path)
            && (meta.dev(), meta.ino()) == (self.dev, self.ino)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_socket_is_private_and_gone_afterwards() {
        let dir = dir();
        let path = dir.path().join("s");
        let socket = Socket::unix(&path, 0o600).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_socket_is_left_alone() {
        let dir = dir();
        let path = dir.path().join("s");
        let _live = UnixListener::bind(&path).unwrap();
        let error = Socket::unix(&path, 0o600).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("socket {} is in use by another process", path.display())
        );
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let dir = dir();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _ours = Socket::unix(&path, 0o600).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn other_files_are_not_touched() {
        let dir = dir();
        let path = dir.path().join("s");
        fs::write(&path, "precious").unwrap();
        let error = Socket::unix(&path, 0o600).unwrap_err();
        assert!(matches!(error, SocketError::NotASocket(_)), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn what_replaced_our_socket_stays() {
        let dir = dir();
        let path = dir.path().join("s");
        let ours = Socket::unix(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(path.exists());
    }

    #[test]
    fn long_paths_are_refused_by_name() {
        let dir = dir();
        let path = dir.path().join("x".repeat(120));
        let error = Socket::unix(&path, 0o600).unwrap_err();
        assert!(error.to_string().contains("longer than 107 bytes"));
        let exact = MAX_PATH - dir.path().as_os_str().len() - 1;
        Socket::unix(&dir.path().join("y".repeat(exact)), 0o600).unwrap();
    }

    #[test]
    fn tcp_is_loopback_unless_told_otherwise() {
        for addr in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let error = Socket::tcp(addr.parse().unwrap(), false).unwrap_err();
            assert!(matches!(error, SocketError::NotLoopback(_)), "{error}");
        }
        let socket = Socket::tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
        assert!(!socket.address().ends_with(":0"));
        Socket::tcp("0.0.0.0:0".parse().unwrap(), true).unwrap();
    }
}
