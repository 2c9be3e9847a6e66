//! `/dev/ublk-control`: adds, starts, stops and recovers devices.
//!
//! A command may sleep in the kernel for as long as its device's requests take, so each has a
//! thread and a small ring of its own; there are a handful of them in the life of a disk. Some
//! kernels (6.17, 6.18.40, 7.0) lose a command that runs beside another: so the next one begins
//! only when the last is done, or has taken [`SLOW`] already, and whoever waits for one stops
//! waiting when its patience ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use iothread::io_uring;
use tokio::sync::oneshot;

use super::uapi::{CtrlCmd, CtrlOp, DevInfo, Features, Params};

const PATH: &str = "/dev/ublk-control";

/// How long one command keeps the next from beginning.
const SLOW: Duration = Duration::from_secs(2);

/// How long a command may take that waits for nobody.
const PROMPT: Duration = Duration::from_secs(10);

/// How long one may take whose outcome is not waited for.
const IMPATIENT: Duration = Duration::from_millis(200);

/// How long one may take that waits for requests of the device.
const PATIENT: Duration = Duration::from_secs(60);

/// How long a server that was killed may take to be gone.
const EXIT: Duration = Duration::from_secs(30);

/// Why there is no device. Each message says in one line what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(
        "this kernel offers no ublk ({PATH} is missing): `modprobe ublk_drv`, or use --frontend nbd"
    )]
    Missing,
    #[error("no right to use {PATH}: run as root, or use --frontend nbd")]
    Forbidden,
    #[error("the ublk driver of this kernel is too old (Linux 6.5 is needed): use --frontend nbd")]
    TooOld,
    #[error("/dev/ublkb{0} exists already: name another device, or none")]
    Exists(u32),
    #[error("the kernel makes no more ublk devices: unmap one, or raise ublk_drv's ublks_max")]
    Full,
    #[error("device {0} is not there any more")]
    Gone(u32),
    #[error("the ublk driver refuses {}: {error}", .op.name())]
    Refused { op: CtrlOp, error: io::Error },
    #[error("the ublk driver does not answer {} (waited {} s)", .op.name(), .waited.as_secs())]
    Lost { op: CtrlOp, waited: Duration },
    #[error("cannot {what}: {error}")]
    Os {
        what: &'static str,
        error: io::Error,
    },
}

impl ControlError {
    fn errno(&self) -> Option<i32> {
        match self {
            ControlError::Refused { error, .. } => error.raw_os_error(),
            _ => None,
        }
    }
}

type Result<T> = std::result::Result<T, ControlError>;

/// Commands take turns, over all disks of the process.
static TURN: Mutex<()> = Mutex::new(());

/// The way to the driver. Clones share it.
#[derive(Debug, Clone)]
pub struct Control {
    file: Arc<File>,
    features: Features,
}

/// A command with all that the kernel may touch on its account.
struct Job {
    file: Arc<File>,
    op: CtrlOp,
    dev_id: u32,
    data: u64,
    /// The path of the character device, where the driver wants it, then the payload.
    buffer: Vec<u8>,
    path_len: u16,
}

impl Control {
    /// Opens the driver and asks what it can do.
    pub async fn open() -> Result<Control> {
        let file = OpenOptions::new().read(true).write(true).open(PATH);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ControlError::Missing,
            io::ErrorKind::PermissionDenied => ControlError::Forbidden,
            _ => match error.raw_os_error() {
                // The node is there, the module is not.
                Some(libc::ENODEV | libc::ENXIO) => ControlError::Missing,
                _ => os("open /dev/ublk-control")(error),
            },
        })?;
        let mut control = Control {
            file: Arc::new(file),
            features: Features(0),
        };
        let asked = control.send(CtrlOp::GetFeatures, 0, 0, &[0; 8], PROMPT);
        let answer = match asked.await {
            Ok(bytes) => bytes,
            Err(ControlError::Refused { error, .. }) => match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => return Err(ControlError::Forbidden),
                _ => return Err(ControlError::TooOld),
            },
            Err(e) => return Err(e),
        };
        let answer: [u8; 8] = answer.try_into().map_err(|_| ControlError::TooOld)?;
        control.features = Features(u64::from_ne_bytes(answer));
        if !control.features.has(Features::IOCTL_ENCODE) {
            return Err(ControlError::TooOld);
        }
        Ok(control)
    }

    /// What the driver can do.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Makes a device of this description, as the driver then has it.
    pub async fn add(&self, info: &DevInfo) -> Result<DevInfo> {
        let bytes = info.encode();
        match self.send(CtrlOp::Add, info.id, 0, &bytes, PROMPT).await {
            Ok(bytes) => device(&bytes),
            Err(e) => Err(match e.errno() {
                Some(libc::EEXIST) => ControlError::Exists(info.id),
                Some(libc::ENOSPC) => ControlError::Full,
                Some(libc::EACCES) if !is_root() => ControlError::Full,
                Some(libc::EPERM) => ControlError::Forbidden,
                _ => e,
            }),
        }
    }

    pub async fn info(&self, id: u32) -> Result<DevInfo> {
        let empty = [0; DevInfo::LEN];
        device(
            &self
                .send(CtrlOp::GetDevInfo2, id, 0, &empty, PROMPT)
                .await?,
        )
    }

    pub async fn set_params(&self, id: u32, params: &Params) -> Result<()> {
        let bytes = params.encode();
        self.plain(CtrlOp::SetParams, id, 0, &bytes, PROMPT).await
    }

    /// Makes the block device. Waits until all queues of this process have fetched; the kernel may
    /// read the partition table meanwhile.
    pub async fn start(&self, id: u32) -> Result<()> {
        let pid = u64::from(std::process::id());
        self.plain(CtrlOp::Start, id, pid, &[], PATIENT).await
    }

    /// Removes the block device, after its requests in flight; what is dirty in the page cache is
    /// written first.
    pub async fn stop(&self, id: u32) -> Result<()> {
        self.plain(CtrlOp::Stop, id, 0, &[], PATIENT).await
    }

    /// As [`Control::stop`], unless somebody has it open: then false. Where the driver has
    /// [`Features::SAFE_STOP`].
    pub async fn try_stop(&self, id: u32) -> Result<bool> {
        match self.plain(CtrlOp::TryStop, id, 0, &[], PATIENT).await {
            Ok(()) => Ok(true),
            Err(e) if e.errno() == Some(libc::EBUSY) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Removes what is left of a stopped device, and waits until its number is free, unless some
    /// user still has it open: then that is when they close it.
    pub async fn delete(&self, id: u32, used: bool) -> Result<()> {
        let asked = if used {
            self.plain(CtrlOp::DelAsync, id, 0, &[], PROMPT).await
        } else {
            self.plain(CtrlOp::Del, id, 0, &[], PROMPT).await
        };
        match asked {
            Err(ControlError::Gone(_)) => Ok(()),
            // A driver that always waits (before Linux 6.9) goes on to do so.
            Err(e) if used && e.errno() == Some(libc::EOPNOTSUPP) => {
                match self.plain(CtrlOp::Del, id, 0, &[], IMPATIENT).await {
                    Err(ControlError::Lost { .. } | ControlError::Gone(_)) => Ok(()),
                    done => done,
                }
            }
            done => done,
        }
    }

    /// Asks for a device whose server is gone. Waits for the last of that server to go away.
    pub async fn start_recovery(&self, id: u32) -> Result<()> {
        self.plain(CtrlOp::StartRecovery, id, 0, &[], EXIT).await
    }

    /// Hands the device to this process, whose queues have fetched.
    pub async fn end_recovery(&self, id: u32) -> Result<()> {
        let pid = u64::from(std::process::id());
        self.plain(CtrlOp::EndRecovery, id, pid, &[], PATIENT).await
    }

    /// Where the driver has [`Features::UPDATE_SIZE`].
    pub async fn update_size(&self, id: u32, sectors: u64) -> Result<()> {
        self.plain(CtrlOp::UpdateSize, id, sectors, &[], PATIENT)
            .await
    }

    /// Ends this server's commands; requests wait for the next server. Fails when all tags of a
    /// queue stay busy for the time given. Where the device has [`Features::QUIESCE`].
    pub async fn quiesce(&self, id: u32, within: Duration) -> Result<()> {
        let ms = within.as_millis().max(1) as u64;
        let patience = within + PROMPT;
        self.plain(CtrlOp::Quiesce, id, ms, &[], patience).await
    }

    async fn plain(
        &self,
        op: CtrlOp,
        id: u32,
        data: u64,
        payload: &[u8],
        patience: Duration,
    ) -> Result<()> {
        self.send(op, id, data, payload, patience).await.map(|_| ())
    }

    /// Sends a command and gives back the payload as the kernel has left it.
    async fn send(
        &self,
        op: CtrlOp,
        dev_id: u32,
        data: u64,
        payload: &[u8],
        patience: Duration,
    ) -> Result<Vec<u8>> {
        let mut buffer = Vec::new();
        // Devices of users without privileges are reached through their node's permissions, and
        // this query through its name in any case (`ublk_ctrl_uring_cmd_permission`).
        let by_path = op == CtrlOp::GetDevInfo2
            || (!is_root() && !matches!(op, CtrlOp::Add | CtrlOp::GetFeatures));
        if by_path {
            buffer.extend_from_slice(format!("/dev/ublkc{dev_id}\0").as_bytes());
        }
        let path_len = buffer.len() as u16;
        buffer.extend_from_slice(payload);
        let job = Job {
            file: Arc::clone(&self.file),
            op,
            dev_id,
            data,
            buffer,
            path_len,
        };
        let (tell, told) = oneshot::channel();
        std::thread::Builder::new()
            .name(format!("ublk-{dev_id}"))
            .spawn(move || job.run(patience, tell))
            .map_err(os("start a thread"))?;
        // The thread always answers.
        told.await.unwrap_or(Err(ControlError::Lost {
            op,
            waited: patience,
        }))
    }
}

impl Job {
    /// Sends the command, and again while an earlier server is still about to exit, and tells the
    /// outcome, or that there is none yet. The buffer is the kernel's until there is one.
    fn run(mut self, patience: Duration, tell: oneshot::Sender<Result<Vec<u8>>>) {
        let begin = Instant::now();
        let mut tell = Some(tell);
        let op = self.op;
        let mut late = || {
            if let Some(tell) = tell.take() {
                let waited = patience;
                let _ = tell.send(Err(ControlError::Lost { op, waited }));
            }
        };
        let result = loop {
            match command(&mut self, begin + patience, &mut late) {
                Ok(n)
                    if n == -libc::EBUSY
                        && op == CtrlOp::StartRecovery
                        && begin.elapsed() < patience =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                result => break result,
            }
        };
        let outcome = match result {
            Ok(0..) => Ok(self.buffer.split_off(self.path_len.into())),
            Ok(n) if -n == libc::ENODEV && op != CtrlOp::Add => {
                Err(ControlError::Gone(self.dev_id))
            }
            Ok(n) => Err(ControlError::Refused {
                op,
                error: io::Error::from_raw_os_error(-n),
            }),
            Err(error) => Err(os("send a command to the ublk driver")(error)),
        };
        if let Some(tell) = tell {
            let _ = tell.send(outcome);
        }
    }
}

/// One command from its submission to its completion, however long that takes; `late` is called
/// at the deadline.
fn command(job: &mut Job, deadline: Instant, late: &mut dyn FnMut()) -> io::Result<i32> {
    let mut turn = Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
    let mut ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(2)?;
    let cmd = CtrlCmd {
        dev_id: job.dev_id,
        addr: if job.buffer.is_empty() {
            0
        } else {
            job.buffer.as_mut_ptr() as u64
        },
        len: job.buffer.len() as u16,
        data: job.data,
        dev_path_len: job.path_len,
    };
    let entry = opcode::UringCmd80::new(types::Fd(job.file.as_raw_fd()), job.op.code());
    let entry = entry.cmd(cmd.encode()).build();
    // SAFETY: the file and the buffer that the entry names belong to the job, which is borrowed
    // alone until this function returns, and it does so only when the command has completed, or
    // was not taken.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit()?;
    let slow = Instant::now() + SLOW;
    loop {
        if let Some(done) = ring.completion().next() {
            return Ok(done.result());
        }
        let now = Instant::now();
        if now >= slow {
            drop(turn.take());
        }
        if now >= deadline {
            late();
        }
        let next = [slow, deadline].into_iter().filter(|t| *t > now).min();
        let wait = next.map(|t| types::Timespec::from(t - now));
        let args = match &wait {
            Some(wait) => types::SubmitArgs::new().timespec(wait),
            None => types::SubmitArgs::new(),
        };
        match ring.submitter().submit_with_args(1, &args) {
            Ok(_) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => {}
            // The buffer must stay as long as the kernel may write to it.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn os(what: &'static str) -> impl FnOnce(io::Error) -> ControlError {
    move |error| ControlError::Os { what, error }
}

fn device(bytes: &[u8]) -> Result<DevInfo> {
    let bytes = bytes.try_into().map_err(|_| ControlError::TooOld)?;
    Ok(DevInfo::decode(bytes))
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
