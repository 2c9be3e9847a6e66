//! The directory of the daemon's sockets.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Longest path of a unix socket (`sun_path` less its final NUL).
pub const MAX_SOCKET_PATH: usize = 107;

/// Where the daemon keeps its control socket and, unless told otherwise, the disks' sockets.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// The directory of `--run-dir`, or the default for this user. Nothing is created.
    pub fn new(given: Option<&Path>) -> Result<RunDir> {
        let path = match given {
            Some(dir) => std::path::absolute(dir)?,
            None if nix::unistd::geteuid().is_root() => PathBuf::from("/run/ublk-rbd"),
            None => match std::env::var_os("XDG_RUNTIME_DIR") {
                Some(dir) => Path::new(&dir).join("ublk-rbd"),
                None => bail!("XDG_RUNTIME_DIR is not set: name a directory with --run-dir"),
            },
        };
        let longest = path.join("control.sock");
        if longest.as_os_str().len() > MAX_SOCKET_PATH {
            bail!(
                "{} is too long for a unix socket: give a shorter --run-dir",
                longest.display()
            );
        }
        Ok(RunDir { path })
    }

    /// Makes the directory, readable by its owner alone, or checks that the one there is ours.
    pub fn create(&self) -> Result<()> {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path);
        made.with_context(|| format!("cannot create {}", self.path.display()))?;
        let meta = std::fs::metadata(&self.path)?;
        if meta.uid() != nix::unistd::geteuid().as_raw() {
            bail!(
                "{} belongs to another user: give another --run-dir",
                self.path.display()
            );
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn control_socket(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    pub fn lock_file(&self) -> PathBuf {
        self.path.join("daemon.lock")
    }

    /// Whether a process has the directory. One that may not be read is not ours to judge. The lock
    /// tried is a shared one: those who look do not keep each other out.
    pub fn is_locked(&self) -> Result<bool> {
        let path = self.lock_file();
        match File::open(&path) {
            Ok(file) => Ok(matches!(
                file.try_lock_shared(),
                Err(TryLockError::WouldBlock)
            )),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e).with_context(|| format!("cannot open {}", path.display())),
        }
    }

    pub fn log_file(&self) -> PathBuf {
        self.path.join("daemon.log")
    }

    /// What is kept of `/dev/ublkbN`.
    pub fn device_record(&self, device: u32) -> PathBuf {
        self.path.join(format!("ublk-{device}.json"))
    }

    /// The socket of a disk: its image's name with the separators made harmless.
    pub fn disk_socket(&self, image: &str) -> PathBuf {
        let name: String = image
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "._@".contains(c) {
                    c
                } else {
                    '-'
                }
            })
            .collect();
        self.path.join(format!("{name}.sock"))
    }
}
