//! The file system as the store uses it.
//!
//! All I/O of the store, the metadata database's included, goes through these two traits, so that
//! tests can run it on a disk that loses or tears what was not synced.

use std::fmt::Debug;
use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, copy_file_range, fallocate};

/// Files below one directory, by paths relative to it.
pub(super) trait Vfs: Send + Sync + Debug {
    /// Makes a directory where there is none.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Names of what is in a directory.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>>;
    /// Makes a file, or opens the one that is there.
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>>;
    fn remove(&self, path: &str) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes creations, removals and renames in a directory durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    /// Makes everything durable, data and names, and fails when any of it has failed to be written
    /// since the store was opened.
    fn sync_all(&self) -> io::Result<()>;
    /// Bytes that can still be written.
    fn free(&self) -> io::Result<u64>;
}

pub(super) trait File: Send + Sync + Debug {
    fn len(&self) -> io::Result<u64>;
    /// Fewer bytes than asked for only at the end of the file.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Takes room for the whole file in advance.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Zeroes a range and gives its space back; does not lengthen the file.
    fn punch(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Makes data and length durable.
    fn sync(&self) -> io::Result<()>;
    /// For copies within the kernel.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
    /// Takes the lock that keeps other processes away, or says that one of them has it.
    fn try_lock(&self) -> io::Result<bool>;
}

/// Copies a range between files at the same offset, sharing blocks where the file system can.
pub(super) fn copy(from: &dyn File, to: &dyn File, offset: u64, length: u64) -> io::Result<()> {
    let (mut at, end) = (offset, offset + length);
    if let (Some(source), Some(target)) = (from.fd(), to.fd()) {
        while at < end {
            let (mut a, mut b) = (at as i64, at as i64);
            match copy_file_range(
                source,
                Some(&mut a),
                target,
                Some(&mut b),
                (end - at) as usize,
            ) {
                Ok(0) => return Ok(()),
                Ok(n) => at += n as u64,
                Err(nix::Error::EINTR) => {}
                // Not every file system can; reading and writing says what is wrong otherwise.
                Err(_) => break,
            }
        }
    }
    let mut buffer = vec![0; (end - at).min(1 << 20) as usize];
    while at < end {
        let want = ((end - at) as usize).min(buffer.len());
        let n = from.read_at(&mut buffer[..want], at)?;
        if n == 0 {
            break;
        }
        to.write_at(&buffer[..n], at)?;
        at += n as u64;
    }
    Ok(())
}

/// A directory of the machine's file system.
#[derive(Debug)]
pub(super) struct Dir {
    root: PathBuf,
    /// Held from the beginning on: `syncfs` reports what went wrong since its file was opened.
    handle: fs::File,
}

impl Dir {
    pub(super) fn open(root: PathBuf) -> io::Result<Dir> {
        fs::create_dir_all(&root)?;
        let handle = fs::File::open(&root)?;
        if !handle.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Dir { root, handle })
    }
}

impl Vfs for Dir {
    fn create_dir(&self, path: &str) -> io::Result<()> {
        match fs::create_dir(self.root.join(path)) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        fs::read_dir(self.root.join(path))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(self.root.join(path))?;
        Ok(Arc::new(file))
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.root.join(path))?;
        Ok(Arc::new(file))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        fs::File::open(self.root.join(path))?.sync_all()
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(nix::unistd::syncfs(&self.handle)?)
    }

    fn free(&self) -> io::Result<u64> {
        let stat = nix::sys::statvfs::fstatvfs(&self.handle)?;
        Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
    }
}

impl File for fs::File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() {
            match FileExt::read_at(self, &mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, data, offset)
    }

    fn write_all_at(&self, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        /// Most parts that one call takes (`UIO_MAXIOV`).
        const MAX: usize = 1024;
        while !parts.is_empty() {
            let at = i64::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
            match nix::sys::uio::pwritev(self, &parts[..parts.len().min(MAX)], at) {
                Ok(0) if parts.iter().all(|p| p.is_empty()) => break,
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    offset += n as u64;
                    IoSlice::advance_slices(&mut parts, n);
                }
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        fs::File::set_len(self, len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::empty(), 0, len as i64) {
            // Not every file system can; then the file is a sparse one.
            Err(nix::Error::EOPNOTSUPP) => fs::File::set_len(self, len),
            result => Ok(result?),
        }
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = (offset + length).min(self.metadata()?.len());
        if offset >= end {
            return Ok(());
        }
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match fallocate(self, flags, offset as i64, (end - offset) as i64) {
            Err(nix::Error::EOPNOTSUPP) => {
                let zeros = vec![0; (end - offset).min(1 << 20) as usize];
                let mut at = offset;
                while at < end {
                    let n = ((end - at) as usize).min(zeros.len());
                    FileExt::write_all_at(self, &zeros[..n], at)?;
                    at += n as u64;
                }
                Ok(())
            }
            result => Ok(result?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn try_lock(&self) -> io::Result<bool> {
        match fs::File::try_lock(self) {
            Ok(()) => Ok(true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(e)) => Err(e),
        }
    }
}
