//! Threads that run a runtime, and their place in the machine.

use std::io;
use std::sync::mpsc;

use crate::config::{Config, SetupError};
use crate::remote::Remote;
use crate::runtime::Runtime;

/// A thread with a runtime of its own.
#[derive(Debug)]
pub struct IoThread<T> {
    remote: Remote,
    /// `None` only when the runtime could not be built, which `spawn` reports.
    handle: std::thread::JoinHandle<Option<T>>,
}

impl<T: Send + 'static> IoThread<T> {
    /// Starts a thread, builds the runtime there, and runs the future that `main` returns. The
    /// runtime ends with the future.
    pub fn spawn<F, Fut>(config: Config, main: F) -> Result<IoThread<T>, SetupError>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (tell, built) = mpsc::sync_channel(1);
        let handle = std::thread::Builder::new()
            .name(config.name.clone())
            .spawn(move || {
                let runtime = match Runtime::new(&config) {
                    Ok(runtime) => runtime,
                    Err(e) => {
                        // The other side waits for it; if it is gone, nobody cares.
                        let _ = tell.send(Err(e));
                        return None;
                    }
                };
                let _ = tell.send(Ok(runtime.remote()));
                Some(runtime.block_on(async move { main().await }))
            })
            .map_err(SetupError::os("start a thread"))?;
        let remote = match built.recv() {
            Ok(Ok(remote)) => remote,
            Ok(Err(e)) => return Err(e),
            Err(_) => {
                return Err(SetupError::Os {
                    what: "build the runtime",
                    error: io::Error::other("its thread panicked"),
                });
            }
        };
        Ok(IoThread { remote, handle })
    }

    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// Waits for the thread's end; a panic in it is the error.
    pub fn join(self) -> std::thread::Result<T> {
        self.handle
            .join()
            .map(|output| output.expect("spawn returned a handle, so there was a runtime"))
    }
}

/// Lets the calling thread run on one CPU only.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an all-zero set is the empty set; the CPU number was checked against its size; the
    // call reads the set.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `PR_SET_IO_FLUSHER` (`include/uapi/linux/prctl.h`).
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// What [`protect_from_reclaim`] could not do.
#[derive(Debug, Default)]
#[must_use = "an unprotected data path can deadlock when memory is short"]
pub struct Unprotected {
    /// The thread's allocations may wait for writeback, which may wait for this very thread.
    /// Needs `CAP_SYS_RESOURCE`.
    pub io_flusher: Option<io::Error>,
    /// The process may be paged out. Needs `CAP_IPC_LOCK` or a large enough `RLIMIT_MEMLOCK`.
    pub memory_lock: Option<io::Error>,
}

impl Unprotected {
    /// Nothing failed.
    pub fn is_empty(&self) -> bool {
        self.io_flusher.is_none() && self.memory_lock.is_none()
    }
}

/// Keeps memory reclaim from waiting for the device that the calling thread serves: marks the
/// thread as an I/O flusher (for each thread of the data path), and keeps every page of the process
/// in memory that is touched once. What must be there before its first use is to be touched early.
pub fn protect_from_reclaim() -> Unprotected {
    // Without the last, each thread's stack would be there in full.
    const LOCKED: libc::c_int = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    let check = |done: libc::c_int| (done != 0).then(io::Error::last_os_error);
    // SAFETY: neither call takes a pointer.
    unsafe {
        Unprotected {
            io_flusher: check(libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0)),
            memory_lock: check(libc::mlockall(LOCKED)),
        }
    }
}
