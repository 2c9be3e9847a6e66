//! What a runtime is built from, what the kernel granted, and why it could not be built.

use std::io;
use std::time::Duration;

/// How to build a [`Runtime`](crate::Runtime). `Config::default()` suits one disk.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the thread started by [`IoThread::spawn`](crate::IoThread::spawn).
    pub name: String,
    /// Submission queue entries; a fuller queue costs an extra system call, never an error.
    pub entries: u32,
    /// Completion queue entries. Multishot operations can complete many times per turn.
    pub cq_entries: u32,
    /// Pin the thread that builds the runtime to this CPU.
    pub cpu: Option<usize>,
    /// Size of one receive buffer, rounded up to whole pages.
    pub recv_buf_size: usize,
    /// How many receive buffers the ring has; at most 32768.
    pub recv_bufs: u16,
    /// Keep the receive buffers in memory with `mlock`. Refusal fails the build.
    pub lock_memory: bool,
    /// 128-byte submission entries, which commands with 80 bytes of payload need.
    pub wide_sqe: bool,
    /// How long an idle wait may hold back a first completion in the hope of a better one. A small
    /// send completes while it is submitted, and its completion ends the wait for the reply that
    /// it asks for. With this, a lone request costs one system call instead of two, but the wait
    /// arms a timer, which in a guest cost more than the call it saves (6 against 4 us of CPU per
    /// request at depth 1), and a send that does block delays others this long. Zero, the
    /// default, turns it off; it takes effect on Linux 6.12 and later.
    pub send_coalesce: Duration,
    /// How long dropping the runtime waits for the kernel to give back what is in flight.
    pub shutdown_timeout: Duration,
    /// Polls of tasks per turn before completions are looked at again.
    pub poll_budget: u32,
    /// Behave as on a kernel without `IORING_SETUP_{SINGLE_ISSUER,DEFER_TASKRUN,COOP_TASKRUN}`.
    pub force_plain_flags: bool,
    /// Behave as on a kernel without multishot accept and receive (before 5.19 and 6.0).
    pub force_no_multishot: bool,
    /// Behave as on a kernel without provided-buffer rings (before 5.19).
    pub force_no_pbuf_ring: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "iothread".to_owned(),
            entries: 256,
            cq_entries: 4096,
            cpu: None,
            recv_buf_size: 64 << 10,
            recv_bufs: 64,
            lock_memory: false,
            wide_sqe: false,
            send_coalesce: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(5),
            poll_budget: 4096,
            force_plain_flags: false,
            force_no_multishot: false,
            force_no_pbuf_ring: false,
        }
    }
}

/// What the kernel under a runtime can do. Multishot support is found out at the first use, so
/// the flags may turn false once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    pub single_issuer: bool,
    pub coop_taskrun: bool,
    pub defer_taskrun: bool,
    pub pbuf_ring: bool,
    pub multishot_recv: bool,
    pub multishot_accept: bool,
    /// The wait can ask for several completions at first, for one later (Linux 6.12).
    pub min_wait: bool,
}

/// Why there is no runtime. Each message says in one line what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("this kernel has no io_uring: run Linux 5.19 or later with CONFIG_IO_URING")]
    Missing,
    #[error(
        "io_uring is forbidden here: set sysctl kernel.io_uring_disabled=0 and allow io_uring_setup in the container's seccomp profile"
    )]
    Forbidden,
    #[error("no memory for io_uring: raise the locked-memory limit (ulimit -l, LimitMEMLOCK=)")]
    Memory,
    #[error("io_uring of this kernel lacks {0}: run Linux 5.19 or later")]
    TooOld(&'static str),
    #[error("cannot {what}: {error}")]
    Os {
        what: &'static str,
        error: io::Error,
    },
}

impl SetupError {
    pub(crate) fn ring(error: io::Error) -> SetupError {
        match error.raw_os_error() {
            Some(libc::ENOSYS) => SetupError::Missing,
            Some(libc::EPERM | libc::EACCES) => SetupError::Forbidden,
            Some(libc::ENOMEM) => SetupError::Memory,
            _ => SetupError::Os {
                what: "set up io_uring",
                error,
            },
        }
    }

    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> SetupError {
        move |error| SetupError::Os { what, error }
    }
}
