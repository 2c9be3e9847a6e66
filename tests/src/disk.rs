//! Block devices of the kernel, and file systems on them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::Need;
use crate::ceph::Client;
use crate::product::{Mapped, text};
use crate::tools::{self, sha256_file, wait_for, write_pattern};

const LIMIT: Duration = Duration::from_secs(120);

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fs {
    Ext4,
    Xfs,
    Btrfs,
}

impl Fs {
    pub const ALL: [Fs; 3] = [Fs::Ext4, Fs::Xfs, Fs::Btrfs];

    /// The programs that make and check them.
    pub const NEEDS: [Need; 3] = [
        Need::MKFS_EXT4,
        Need::Tool {
            program: "mkfs.xfs",
            package: "xfsprogs",
        },
        Need::Tool {
            program: "mkfs.btrfs",
            package: "btrfs-progs",
        },
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fs::Ext4 => "ext4",
            Fs::Xfs => "xfs",
            Fs::Btrfs => "btrfs",
        }
    }

    /// Makes one on a device of 300 MiB or more, whatever is there.
    pub fn make(self, device: &Path) -> Result<()> {
        let quietly = match self {
            Fs::Ext4 => ["-q", "-F"],
            Fs::Xfs | Fs::Btrfs => ["-q", "-f"],
        };
        let mut command = Command::new(format!("mkfs.{}", self.name()));
        command.args(quietly).arg(device);
        tools::run(command, LIMIT).map(drop)
    }

    pub fn mount(self, device: &Path, at: &Path) -> Result<Mounted> {
        fs::create_dir_all(at)?;
        let no_data: Option<&str> = None;
        mount(
            Some(device),
            at,
            Some(self.name()),
            MsFlags::empty(),
            no_data,
        )
        .with_context(|| format!("mounting {} as {}", device.display(), self.name()))?;
        Ok(Mounted { at: at.to_owned() })
    }

    /// Checks the unmounted one on `device`; any complaint is an error.
    pub fn check(self, device: &Path) -> Result<()> {
        let mut command = match self {
            Fs::Ext4 => Command::new("e2fsck"),
            Fs::Xfs => Command::new("xfs_repair"),
            Fs::Btrfs => Command::new("btrfs"),
        };
        match self {
            Fs::Ext4 => command.args(["-f", "-n"]),
            Fs::Xfs => command.arg("-n"),
            Fs::Btrfs => command.args(["check", "--check-data-csum"]),
        };
        command.arg(device);
        tools::run(command, LIMIT).map(drop)
    }

    /// The life of a file system on `device`: made, filled, unmounted, read again, trimmed, checked.
    pub fn exercise(self, device: &Path, scratch: &Path) -> Result<()> {
        self.live(device, scratch)
            .with_context(|| format!("{} on {}", self.name(), device.display()))
    }

    fn live(self, device: &Path, scratch: &Path) -> Result<()> {
        self.make(device)?;
        let at = scratch.join(self.name());
        let kept = at.join("kept");
        let mounted = self.mount(device, &at)?;
        let sum = write_pattern(&kept, 24, 1)?;
        write_pattern(&at.join("removed"), 16, 2)?;
        mounted.unmount()?;

        let mounted = self.mount(device, &at)?;
        ensure!(sha256_file(&kept)? == sum, "another file came back");
        fs::remove_file(at.join("removed"))?;
        let mut trim = Command::new("fstrim");
        trim.arg(&at);
        tools::run(trim, LIMIT)?;
        mounted.unmount()?;

        let mounted = self.mount(device, &at)?;
        ensure!(sha256_file(&kept)? == sum, "trimming changed a file");
        mounted.unmount()?;
        self.check(device)
    }
}

/// A mounted file system. Dropped, it is unmounted as soon as nobody uses it.
#[derive(Debug)]
pub struct Mounted {
    at: PathBuf,
}

impl Mounted {
    pub fn path(&self) -> &Path {
        &self.at
    }

    pub fn unmount(self) -> Result<()> {
        let done = umount2(&self.at, MntFlags::empty());
        done.with_context(|| format!("unmounting {}", self.at.display()))?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// A device of the kernel's NBD client. Dropped, it is disconnected.
#[derive(Debug)]
pub struct NbdDevice {
    pub path: PathBuf,
}

impl NbdDevice {
    pub const NEED: Need = Need::Tool {
        program: "nbd-client",
        package: "nbd-client",
    };

    /// Connects the first free device.
    pub fn connect(mapped: &Mapped) -> Result<NbdDevice> {
        let free = (0..16).find(|i| !Path::new(&format!("/sys/block/nbd{i}/pid")).exists());
        let free = free.context("no free NBD device")?;
        let path = PathBuf::from(format!("/dev/nbd{free}"));
        let mut command = Command::new("nbd-client");
        command.args(["-unix", text(&mapped.socket), text(&path)]);
        tools::run(command, LIMIT)?;
        Ok(NbdDevice { path })
    }

    pub fn disconnect(self) -> Result<()> {
        let path = self.path.clone();
        drop(self);
        let pid = Path::new("/sys/block").join(path.file_name().context("no name")?);
        wait_for("the end of the NBD connection", LIMIT, || {
            Ok(!pid.join("pid").exists())
        })
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        let mut command = Command::new("nbd-client");
        command.arg("-d").arg(&self.path);
        let _ = tools::run(command, LIMIT);
    }
}

/// Waits until the kernel and udev are done with a device that has just come or changed.
pub fn settle() -> Result<()> {
    let mut command = Command::new("udevadm");
    command.args(["settle", "--timeout=30"]);
    tools::run(command, LIMIT).map(drop)
}

/// Processes that wait uninterruptibly, for a device most likely: those of `/proc` in state D twice
/// in a row.
pub fn stuck_processes() -> Result<Vec<String>> {
    let look = || -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let stat = fs::read_to_string(entry?.path().join("stat")).unwrap_or_default();
            if let Some((who, rest)) = stat.rsplit_once(") ")
                && rest.starts_with('D')
            {
                found.push(format!("{who})"));
            }
        }
        Ok(found)
    };
    let first = look()?;
    std::thread::sleep(Duration::from_secs(1));
    let second = look()?;
    Ok(second.into_iter().filter(|p| first.contains(p)).collect())
}

/// A file of `/sys/block/NAME` as a number.
pub fn attribute(device: &Path, name: &str) -> Result<u64> {
    let block = device.file_name().context("no name")?;
    let path = Path::new("/sys/block").join(block).join(name);
    let value = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let number = value.trim().parse();
    number.with_context(|| format!("{}: {value}", path.display()))
}

/// What librbd reads of the image is what the device has.
pub fn same_for_librbd(ceph: &Client, image: &str, device: &Path, scratch: &Path) -> Result<()> {
    let file = scratch.join("exported");
    ceph.run(["rbd", "export", "--no-progress", image, text(&file)])?;
    forget_cached(device)?;
    ensure!(
        sha256_file(device)? == sha256_file(&file)?,
        "{} and {image} differ",
        device.display()
    );
    Ok(fs::remove_file(file)?)
}

/// Drops what the kernel has cached of a device, so that it is read again.
pub fn forget_cached(device: &Path) -> Result<()> {
    let mut command = Command::new("blockdev");
    command.arg("--flushbufs").arg(device);
    tools::run(command, LIMIT).map(drop)
}
