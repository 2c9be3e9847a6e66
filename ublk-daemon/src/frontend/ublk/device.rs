//! The life of a ublk device: made, started, handed from a server that died to the next, stopped.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::super::disk::Disk;
use super::control::{Control, ControlError};
use super::limits::{self, SECTOR};
use super::queue::Queue;
use super::uapi::{DevInfo, Features, State};
use super::usage;

/// The largest request, which each tag has memory for.
const MAX_IO: u32 = 512 << 10;

/// How long a device node may take to appear.
const NODE: Duration = Duration::from_secs(5);

/// How long a polite stop waits for those who look at every device for a moment, udev above all.
const GLANCE: Duration = Duration::from_secs(2);

/// How long a stopping server waits for its requests and for the driver's word.
const DRAIN: Duration = Duration::from_secs(5);

const POLL: Duration = Duration::from_millis(10);

/// How to make a device.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// `None`: the first that is free.
    pub id: Option<u32>,
    pub queues: u16,
    pub depth: u16,
    /// By which the device is known as ours.
    pub cookie: u64,
}

/// A device that this process serves, or is about to. Its memory and commands end with it, but only
/// [`Device::stop`] removes it from the kernel.
pub struct Device {
    control: Control,
    info: DevInfo,
    disk: Rc<dyn Disk>,
    queues: RefCell<Vec<Rc<Queue>>>,
}

/// The block device's path.
pub fn path(id: u32) -> PathBuf {
    format!("/dev/ublkb{id}").into()
}

/// Why a device is not removed.
pub fn in_use(id: u32, by: &str) -> anyhow::Error {
    let path = path(id);
    anyhow!(
        "{} is in use ({by}): release it, or use --force",
        path.display()
    )
}

impl Device {
    /// Makes a device without a disk yet: nobody sees it before [`Device::start`].
    pub async fn add(control: Control, disk: Rc<dyn Disk>, options: &Options) -> Result<Device> {
        let sectors = disk.info().size / SECTOR;
        if sectors == 0 {
            bail!("an image of less than {SECTOR} bytes cannot be a block device");
        }
        let root = nix::unistd::geteuid().is_root();
        let wanted = Features::UPDATE_SIZE
            .with(Features::IOCTL_ENCODE)
            .with(if root {
                // The driver offers no recovery to devices of users.
                Features::USER_RECOVERY
                    .with(Features::REISSUE)
                    .with(Features::QUIESCE)
            } else {
                Features::UNPRIVILEGED
            });
        let mut info = DevInfo {
            queues: options.queues,
            depth: options.depth,
            state: State::Dead,
            max_io: MAX_IO.min(disk.info().max_io),
            id: options.id.unwrap_or_else(|| free_from(0)),
            server_pid: -1,
            features: control.features().of(wanted),
            cookie: options.cookie,
        };
        let info = loop {
            match control.add(&info).await {
                Ok(made) => break made,
                Err(ControlError::Exists(id)) if options.id.is_none() => {
                    info.id = free_from(id + 1)
                }
                // An answer that was lost is asked for.
                Err(e @ ControlError::Lost { .. }) => match control.info(info.id).await {
                    Ok(made) if made.cookie == options.cookie => break made,
                    _ => return Err(e.into()),
                },
                Err(e) => return Err(e.into()),
            }
        };
        let device = Device {
            control,
            info,
            disk,
            queues: RefCell::default(),
        };
        let params = limits::params(&device.disk.info(), device.info.max_io);
        if let Err(e) = device.control.set_params(device.info.id, &params).await {
            device.remove(false).await;
            return Err(e.into());
        }
        Ok(device)
    }

    /// The number in its path.
    pub fn id(&self) -> u32 {
        self.info.id
    }

    /// Whether another server can take it over when this one dies.
    pub fn is_recoverable(&self) -> bool {
        self.info.features.has(Features::USER_RECOVERY)
    }

    /// Serves the device and makes it visible. When this fails, nothing is left of it.
    pub async fn start(&self) -> Result<()> {
        let started = match self.fetch().await {
            Ok(()) => self.publish().await,
            Err(e) => Err(e),
        };
        if started.is_err() {
            self.end(true).await;
        }
        started
    }

    /// Takes over a device whose server is gone. When this fails, the device stays as it was.
    pub async fn recover(control: Control, disk: Rc<dyn Disk>, info: DevInfo) -> Result<Device> {
        control.start_recovery(info.id).await?;
        let device = Device {
            control,
            info,
            disk,
            queues: RefCell::default(),
        };
        device.fetch().await?;
        let id = info.id;
        device
            .unless_refused(device.control.end_recovery(id))
            .await?;
        device.wait_for_node().await?;
        Ok(device)
    }

    async fn fetch(&self) -> Result<()> {
        let file = Rc::new(self.open().await?);
        for queue in 0..self.info.queues {
            let (depth, max_io) = (self.info.depth, self.info.max_io);
            let disk = Rc::clone(&self.disk);
            let started = Queue::start(Rc::clone(&file), queue, depth, max_io, disk);
            let started = started.context("cannot serve the ublk device")?;
            self.queues.borrow_mut().push(Rc::new(started));
        }
        Ok(())
    }

    async fn publish(&self) -> Result<()> {
        let id = self.info.id;
        match self.unless_refused(self.control.start(id)).await {
            // Asked for, as an answer that was lost.
            Err(e) if matches!(e.downcast_ref(), Some(ControlError::Lost { .. })) => {
                let live = self.control.info(id).await;
                if !live.is_ok_and(|info| info.state == State::Live) {
                    return Err(e);
                }
            }
            started => started?,
        }
        self.wait_for_node().await
    }

    /// The outcome of a command that waits for our queues, unless the driver has refused them.
    async fn unless_refused(
        &self,
        command: impl Future<Output = Result<(), ControlError>>,
    ) -> Result<()> {
        let refused = async {
            // The first is as good as any: they are all served alike.
            let first = self.queues.borrow().first().cloned();
            let Some(queue) = first else {
                return std::future::pending().await;
            };
            match queue.ended().await {
                Err(errno) => anyhow!("the ublk driver refuses our requests: {errno}"),
                Ok(()) => anyhow!("the ublk device was stopped"),
            }
        };
        iothread::race(async { command.await.map_err(Into::into) }, async {
            Err(refused.await)
        })
        .await
    }

    async fn open(&self) -> Result<File> {
        let path = format!("/dev/ublkc{}", self.info.id);
        let begin = Instant::now();
        loop {
            match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(file) => return Ok(file),
                Err(e) if begin.elapsed() > NODE => {
                    return Err(e).with_context(|| format!("cannot open {path}"));
                }
                Err(_) => iothread::sleep(POLL).await,
            }
        }
    }

    async fn wait_for_node(&self) -> Result<()> {
        let path = path(self.info.id);
        let begin = Instant::now();
        while !std::fs::metadata(&path).is_ok_and(|m| m.file_type().is_block_device()) {
            if begin.elapsed() > NODE {
                let path = path.display();
                bail!("{path} does not appear: is devtmpfs mounted on /dev?");
            }
            iothread::sleep(POLL).await;
        }
        Ok(())
    }

    /// Tells the kernel of a new size, in bytes.
    pub async fn resize(&self, size: u64) -> Result<()> {
        if !self.info.features.has(Features::UPDATE_SIZE) {
            bail!("this kernel cannot resize a ublk device: unmap and map the image");
        }
        let id = self.info.id;
        Ok(self.control.update_size(id, size / SECTOR).await?)
    }

    /// Fails with who uses the device, if somebody does; else removes it. Afterwards no request
    /// comes any more, but [`Device::end`] is still needed.
    pub async fn stop_unless_used(&self) -> Result<()> {
        let id = self.info.id;
        let begin = Instant::now();
        loop {
            let used = usage::of(&format!("ublkb{id}"));
            let stopped = match &used {
                Some(_) => false,
                None if self.control.features().has(Features::SAFE_STOP) => {
                    self.control.try_stop(id).await?
                }
                None => match exclusive(id) {
                    // Held open, so that nobody mounts it in between.
                    Ok(_held) => {
                        self.control.stop(id).await?;
                        true
                    }
                    Err(_) => false,
                },
            };
            if stopped {
                return Ok(());
            }
            if used.is_some() || begin.elapsed() > GLANCE {
                let by = used.unwrap_or_else(|| {
                    "a program has it open, or another mount namespace".to_owned()
                });
                return Err(in_use(id, &by));
            }
            iothread::sleep(POLL).await;
        }
    }

    /// Removes the device. `used`: somebody may have it open, which is not waited for. The disk must
    /// answer its requests, be it with errors.
    pub async fn end(&self, used: bool) {
        if let Err(e) = self.control.stop(self.info.id).await
            && !matches!(e, ControlError::Gone(_))
        {
            tracing::error!("{e}");
        }
        let queues = self.queues.borrow().clone();
        for queue in queues {
            let _ = iothread::timeout(DRAIN, queue.ended()).await;
        }
        self.remove(used).await;
    }

    async fn remove(&self, used: bool) {
        // The driver waits for whoever has the character device.
        self.queues.borrow_mut().clear();
        iothread::yield_now().await;
        if let Err(e) = self.control.delete(self.info.id, used).await {
            tracing::error!("{e}");
        }
    }

    /// Leaves the device to the next server. True if nothing was in flight in the end.
    pub async fn leave(&self) -> bool {
        if self.info.features.has(Features::QUIESCE)
            && let Err(e) = self.control.quiesce(self.info.id, DRAIN).await
        {
            tracing::warn!("{e}");
            return false;
        }
        let queues = self.queues.borrow().clone();
        let idle = async {
            for queue in &queues {
                queue.idle().await;
            }
        };
        iothread::timeout(DRAIN, idle).await.is_ok() && self.info.features.has(Features::QUIESCE)
    }
}

/// The first number from `from` on that has no device. Another process may take it first.
fn free_from(from: u32) -> u32 {
    let taken =
        |id: &u32| std::fs::symlink_metadata(format!("/sys/class/ublk-char/ublkc{id}")).is_ok();
    (from..).find(|id| !taken(id)).unwrap_or(from)
}

/// Opens a block device that nobody else claims.
fn exclusive(id: u32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(path(id))
}
