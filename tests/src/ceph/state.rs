//! What the clusters of one user share: a directory in /tmp with the temporary clusters, the
//! reservations of ports, and the lock that keeps heavy tests apart.

use std::fs::{self, DirBuilder};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use anyhow::{Context, Result, bail};
use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::tools::FileLock;

/// Ports per cluster: two for each of up to 5 monitors, then the daemons.
pub(crate) const PORTS: u16 = 100;
pub(crate) const DAEMON_PORTS: u16 = 10;

/// Where the blocks of ports are: below the ephemeral range (32768), above the usual services.
const FIRST_PORT: u16 = 20000;
const BLOCKS: u16 = 120;

/// The user's directory. Not below `TMPDIR`, which may be too long for the path of a unix socket.
fn user_dir() -> Result<PathBuf> {
    let uid = geteuid();
    let dir = PathBuf::from(format!("/tmp/ublk-rbd-{uid}"));
    match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e).with_context(|| format!("creating {}", dir.display())),
    }
    let meta = fs::symlink_metadata(&dir)?;
    if !meta.is_dir() || meta.uid() != uid.as_raw() {
        bail!("{} belongs to another user", dir.display());
    }
    Ok(dir)
}

/// A directory of its own for a cluster that ends with its test.
#[derive(Debug)]
pub(crate) struct TempCluster {
    dir: TempDir,
    _lock: FileLock,
}

impl TempCluster {
    pub(crate) fn new() -> Result<TempCluster> {
        let base = user_dir()?;
        // The lock on the directory of clusters closes the gap between making and locking one.
        let _base_lock = FileLock::wait(&base.join("dirs.lock"), "another start")?;
        sweep(&base)?;
        let dir = tempfile::Builder::new().prefix("c.").tempdir_in(&base)?;
        let lock = FileLock::wait(&dir.path().join("lock"), "nobody")?;
        Ok(TempCluster { dir, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Leaves the directory in place.
    pub(crate) fn keep(&mut self) {
        self.dir.disable_cleanup(true);
    }
}

/// Removes what tests that were killed left behind: their daemons died with them, their
/// directories did not. The lock of a living test's directory is held.
fn sweep(base: &Path) -> Result<()> {
    for entry in fs::read_dir(base)? {
        let dir = entry?.path();
        let is_cluster = dir
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("c."));
        if is_cluster && FileLock::try_take(&dir.join("lock")).is_ok_and(|lock| lock.is_some()) {
            // Its owner may be removing it at this moment.
            let _ = fs::remove_dir_all(&dir);
        }
    }
    Ok(())
}

/// Reserves a block of ports for the cluster in `dir` for as long as `dir` exists.
pub(crate) fn reserve_ports(dir: &Path) -> Result<u16> {
    let base = user_dir()?;
    let ports = base.join("ports");
    fs::create_dir_all(&ports)?;
    let _lock = FileLock::wait(&base.join("ports.lock"), "another start")?;
    // Different starting points make clashes with other users' clusters unlikely.
    let first = (std::process::id() % u32::from(BLOCKS)) as u16;
    for i in 0..BLOCKS {
        let port = FIRST_PORT + (first + i) % BLOCKS * PORTS;
        let file = ports.join(port.to_string());
        let taken = fs::read_to_string(&file).is_ok_and(|owner| Path::new(&owner).exists());
        if !taken && is_free(port) {
            let owner = dir.to_str().context("the cluster's path is not UTF-8")?;
            fs::write(&file, owner).with_context(|| format!("writing {}", file.display()))?;
            return Ok(port);
        }
    }
    bail!(
        "all port blocks from {FIRST_PORT} on are taken (see {})",
        ports.display()
    )
}

fn is_free(first: u16) -> bool {
    (first..first + PORTS).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
}

/// The right to run a heavy cluster; one at a time for a user.
#[derive(Debug)]
pub(crate) struct Turn {
    _lock: FileLock,
}

/// The thread of this process that has the turn.
static HOLDER: Mutex<Option<ThreadId>> = Mutex::new(None);

fn set_holder(thread: Option<ThreadId>) {
    *HOLDER.lock().unwrap_or_else(PoisonError::into_inner) = thread;
}

impl Turn {
    pub(crate) fn wait() -> Result<Turn> {
        let me = thread::current().id();
        if *HOLDER.lock().unwrap_or_else(PoisonError::into_inner) == Some(me) {
            bail!("this test has a cluster already and would wait for itself: use .concurrent()");
        }
        let lock = FileLock::wait(
            &user_dir()?.join("turn.lock"),
            "the clusters of another test",
        )?;
        set_holder(Some(me));
        Ok(Turn { _lock: lock })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        set_holder(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_last_as_long_as_the_directory() {
        let one = TempCluster::new().unwrap();
        let two = TempCluster::new().unwrap();
        let first = reserve_ports(one.path()).unwrap();
        let second = reserve_ports(two.path()).unwrap();
        assert_ne!(first, second);
        assert!(first.abs_diff(second) >= PORTS);

        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
        let three = TempCluster::new().unwrap();
        let again = reserve_ports(three.path()).unwrap();
        assert_ne!(again, second);
    }

    #[test]
    fn ports_in_use_are_passed_over() {
        let dir = TempCluster::new().unwrap();
        let block = reserve_ports(dir.path()).unwrap();
        assert!(is_free(block));
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, block + 42)).unwrap();
        assert!(!is_free(block));
    }

    #[test]
    fn abandoned_directories_are_swept() {
        let base = tempfile::tempdir().unwrap();
        let abandoned = base.path().join("c.abandoned");
        let living = base.path().join("c.living");
        let other = base.path().join("ports");
        for dir in [&abandoned, &living, &other] {
            fs::create_dir(dir).unwrap();
        }
        let _lock = FileLock::wait(&living.join("lock"), "nobody").unwrap();
        sweep(base.path()).unwrap();
        assert!(!abandoned.exists() && living.exists() && other.exists());
    }
}
