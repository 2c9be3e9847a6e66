//! The ring itself: setup with the best flags the kernel has, submission, the wait.

use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, squeue};

use crate::config::{Config, Features, SetupError};
use crate::ops::Cqe;

/// A submission on its way to the ring.
pub(crate) enum Sqe {
    Plain(squeue::Entry),
    Wide(squeue::Entry128),
}

enum Kind {
    Plain(IoUring<squeue::Entry, cqueue::Entry>),
    Wide(IoUring<squeue::Entry128, cqueue::Entry>),
}

pub(crate) struct Ring {
    kind: Kind,
}

macro_rules! each {
    ($ring:expr, $r:ident => $e:expr) => {
        match $ring {
            Kind::Plain($r) => $e,
            Kind::Wide($r) => $e,
        }
    };
}

/// What one `io_uring_enter` should do besides submitting.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// Only submit.
    No,
    /// Run the kernel's pending completion work, but do not sleep.
    Reap,
    /// Sleep until `want` completions, or one after `min_wait`, or the timeout.
    For {
        want: u32,
        min_wait: Duration,
        timeout: Option<Duration>,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    /// Linux 6.1.
    Defer,
    /// Linux 6.0.
    Single,
    /// Linux 5.19.
    Coop,
    /// Linux 5.18.
    SubmitAll,
    Plain,
}

fn build<S, C>(config: &Config, level: Level) -> io::Result<IoUring<S, C>>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    let mut b = IoUring::<S, C>::builder();
    let entries = config.entries.clamp(8, 32768);
    b.dontfork().setup_clamp();
    b.setup_cqsize(config.cq_entries.max(entries * 2));
    if level != Level::Plain {
        b.setup_submit_all();
    }
    if matches!(level, Level::Defer | Level::Single | Level::Coop) {
        b.setup_coop_taskrun().setup_taskrun_flag();
    }
    if matches!(level, Level::Defer | Level::Single) {
        b.setup_single_issuer();
    }
    if level == Level::Defer {
        b.setup_defer_taskrun();
    }
    b.build(entries)
}

impl Ring {
    pub(crate) fn new(config: &Config) -> Result<(Ring, Features), SetupError> {
        let all = [
            Level::Defer,
            Level::Single,
            Level::Coop,
            Level::SubmitAll,
            Level::Plain,
        ];
        let levels = if config.force_plain_flags {
            &all[4..]
        } else {
            &all[..]
        };
        let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
        for &level in levels {
            let built = if config.wide_sqe {
                build(config, level).map(Kind::Wide)
            } else {
                build(config, level).map(Kind::Plain)
            };
            match built {
                Ok(kind) => return Ring::check(kind, level),
                // A kernel that does not know a flag says EINVAL: try with fewer.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => refused = e,
                Err(e) => return Err(SetupError::ring(e)),
            }
        }
        if config.wide_sqe {
            return Err(SetupError::TooOld("128-byte submission entries"));
        }
        Err(SetupError::ring(refused))
    }

    fn check(kind: Kind, level: Level) -> Result<(Ring, Features), SetupError> {
        let params = each!(&kind, r => r.params());
        if !params.is_feature_ext_arg() {
            return Err(SetupError::TooOld("waits with a timeout"));
        }
        if !params.is_feature_nodrop() {
            return Err(SetupError::TooOld("lossless completions"));
        }
        if !params.is_feature_fast_poll() {
            return Err(SetupError::TooOld("poll-driven socket operations"));
        }
        let features = Features {
            single_issuer: matches!(level, Level::Defer | Level::Single),
            coop_taskrun: matches!(level, Level::Defer | Level::Single | Level::Coop),
            defer_taskrun: level == Level::Defer,
            pbuf_ring: true,
            multishot_recv: true,
            multishot_accept: true,
            min_wait: params.is_feature_min_timeout(),
        };
        Ok((Ring { kind }, features))
    }

    /// Puts an entry into the submission queue; gives it back when the queue is full. By value,
    /// since boxing it would allocate where nothing may.
    ///
    /// # Safety
    /// What the entry points to must stay valid until its last completion was taken.
    #[allow(clippy::result_large_err)]
    pub(crate) unsafe fn push(&mut self, sqe: Sqe) -> Result<(), Sqe> {
        match (&mut self.kind, sqe) {
            // SAFETY: the caller's promise is the one `push` asks for.
            (Kind::Plain(r), Sqe::Plain(e)) => match unsafe { r.submission().push(&e) } {
                Ok(()) => Ok(()),
                Err(_) => Err(Sqe::Plain(e)),
            },
            (Kind::Wide(r), sqe) => {
                let wide = match sqe {
                    Sqe::Plain(e) => squeue::Entry128::from(e),
                    Sqe::Wide(e) => e,
                };
                // SAFETY: as above.
                match unsafe { r.submission().push(&wide) } {
                    Ok(()) => Ok(()),
                    Err(_) => Err(Sqe::Wide(wide)),
                }
            }
            (Kind::Plain(_), Sqe::Wide(_)) => {
                unreachable!("wide entries are refused before they are queued on a plain ring")
            }
        }
    }

    pub(crate) fn is_wide(&self) -> bool {
        matches!(self.kind, Kind::Wide(_))
    }

    /// Copies completions out of the queue; returns how many.
    pub(crate) fn take(&mut self, out: &mut [(u64, Cqe)]) -> usize {
        each!(&mut self.kind, r => {
            let mut taken = 0;
            let mut cq = r.completion();
            while taken < out.len() {
                let Some(c) = cq.next() else { break };
                out[taken] = (c.user_data(), Cqe { result: c.result(), flags: c.flags() });
                taken += 1;
            }
            taken
        })
    }

    /// Entries waiting to be submitted.
    pub(crate) fn queued(&mut self) -> u32 {
        each!(&mut self.kind, r => r.submission().len() as u32)
    }

    pub(crate) fn has_completions(&mut self) -> bool {
        each!(&mut self.kind, r => !r.completion().is_empty())
    }

    /// Whether the kernel holds completions that only an `io_uring_enter` brings.
    pub(crate) fn needs_enter(&mut self) -> bool {
        each!(&mut self.kind, r => {
            let sq = r.submission();
            sq.taskrun() || sq.cq_overflow()
        })
    }

    /// One `io_uring_enter`.
    pub(crate) fn enter(&mut self, wait: Wait) -> io::Result<usize> {
        let queued = self.queued();
        let (want, mut flags, min_wait, timeout) = match wait {
            Wait::No => (0, EnterFlags::empty(), Duration::ZERO, None),
            Wait::Reap => (0, EnterFlags::GETEVENTS, Duration::ZERO, None),
            Wait::For {
                want,
                min_wait,
                timeout,
            } => (want, EnterFlags::GETEVENTS, min_wait, timeout),
        };
        let ts = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if !min_wait.is_zero() {
            args = args.min_wait_usec(min_wait.as_micros().min(u128::from(u32::MAX)) as u32);
        }
        let args = match &ts {
            Some(ts) => args.timespec(ts),
            None => args,
        };
        let args = if want > 0 {
            flags |= EnterFlags::EXT_ARG;
            Some(&args)
        } else {
            None
        };
        each!(&self.kind, r => {
            // SAFETY: `args` is the structure that EXT_ARG announces, and it and the timespec it
            // points to outlive the call; the entries' memory is covered by `push`'s contract.
            unsafe { r.submitter().enter(queued, want, flags.bits(), args) }
        })
    }

    /// Registers a ring of provided buffers.
    ///
    /// # Safety
    /// `addr` must point to `entries` buffer descriptors that outlive this ring.
    pub(crate) unsafe fn register_buf_ring(
        &self,
        addr: *mut u8,
        entries: u16,
        group: u16,
    ) -> io::Result<()> {
        each!(&self.kind, r => {
            // SAFETY: the caller's promise.
            unsafe { r.submitter().register_buf_ring_with_flags(addr as u64, entries, group, 0) }
        })
    }
}
