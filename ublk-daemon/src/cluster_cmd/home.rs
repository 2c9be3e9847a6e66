//! The directory of a cluster.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::run_dir::{MAX_SOCKET_PATH, RunDir};

/// Of `cluster.json`.
const VERSION: u32 = 1;
const FILE: &str = "cluster.json";

/// What a cluster is, from its first start on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) version: u32,
    /// As hexadecimal digits.
    pub(super) fsid: String,
    pub(super) osds: u32,
    /// `cephx` or `none`.
    pub(super) auth: String,
    /// Where the monitor was last.
    pub(super) listen: SocketAddr,
    /// Objects are gone when it stops.
    pub(super) memory: bool,
}

pub(super) struct Home {
    dir: RunDir,
}

impl Home {
    pub(super) fn new(path: &Path) -> Result<Home> {
        if path.join("control.sock").as_os_str().len() > MAX_SOCKET_PATH {
            bail!(
                "{} is too long for the unix socket in it: name another --dir",
                path.display()
            );
        }
        let dir = RunDir::new(Some(path)).with_context(|| "the cluster's directory")?;
        Ok(Home { dir })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where its control socket, lock and log are.
    pub(super) fn run_dir(&self) -> &RunDir {
        &self.dir
    }

    pub(super) fn conf(&self) -> PathBuf {
        self.path().join("ceph.conf")
    }

    pub(super) fn keyring(&self) -> PathBuf {
        self.path().join("ceph.client.admin.keyring")
    }

    /// `None` where there is no cluster.
    pub(super) fn load(&self) -> Result<Option<Description>> {
        let path = self.path().join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let found: Description = serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged", path.display()))?;
        if found.version != VERSION {
            bail!(
                "{} is of version {}, and this program knows {VERSION}",
                path.display(),
                found.version
            );
        }
        Ok(Some(found))
    }

    pub(super) fn must_be_one(&self) -> Result<()> {
        if self.load()?.is_none() {
            bail!("there is no cluster in {}", self.path().display());
        }
        Ok(())
    }

    /// Whether a process has it.
    pub(super) fn is_locked(&self) -> Result<bool> {
        self.dir.is_locked()
    }

    pub(super) fn save(&self, description: &Description) -> Result<()> {
        let text = serde_json::to_vec_pretty(description)?;
        self.write(&self.path().join(FILE), &text, 0o644)
    }

    /// Writes a file as a whole or not at all, also if the machine loses power.
    pub(super) fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        let temporary = path.with_extension("new");
        let write = || {
            // A file that an earlier process left could have another mode.
            match fs::remove_file(&temporary) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, path)?;
            File::open(self.path())?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Takes the directory for a cluster. Says what is to be taken back should the start fail.
    pub(super) fn prepare(&self) -> Result<Undo> {
        let path = self.path();
        let there = match fs::read_dir(path) {
            Ok(entries) => Some(entries.count()),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        if there.is_some_and(|n| n > 0) {
            // What lies beside it is none of a cluster's.
            let only_ours = self.load()?.is_some() || self.leftovers_only()?;
            if !only_ours {
                bail!(
                    "{} is not empty and holds no cluster: name another --dir",
                    path.display()
                );
            }
            return Ok(Undo::Nothing);
        }
        if there.is_some() {
            return Ok(Undo::Empty(path.to_owned()));
        }
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path);
        made.with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Undo::Remove(path.to_owned()))
    }

    /// A process that was killed while it made a cluster leaves its socket and lock.
    fn leftovers_only(&self) -> Result<bool> {
        let ours = [
            self.dir.lock_file(),
            self.dir.control_socket(),
            self.dir.log_file(),
            self.path().join(FILE).with_extension("new"),
        ];
        for entry in fs::read_dir(self.path())? {
            if !ours.contains(&entry?.path()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes what a cluster in memory leaves.
    pub(super) fn forget(&self) {
        for path in [self.conf(), self.keyring(), self.path().join(FILE)] {
            let _ = fs::remove_file(path);
        }
    }
}

/// What a failed start takes back.
#[derive(Debug)]
#[must_use]
pub(super) enum Undo {
    Nothing,
    /// The directory was there and empty.
    Empty(PathBuf),
    Remove(PathBuf),
}

impl Undo {
    pub(super) fn undo(self) {
        match self {
            Undo::Nothing => {}
            Undo::Remove(path) => {
                let _ = fs::remove_dir_all(path);
            }
            Undo::Empty(path) => {
                let entries = fs::read_dir(path).into_iter().flatten().flatten();
                for entry in entries {
                    let path = entry.path();
                    let _ = match entry.file_type() {
                        Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
                        _ => fs::remove_file(path),
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        Description {
            version: VERSION,
            fsid: "00".repeat(16),
            osds: 2,
            auth: "cephx".into(),
            listen: "127.0.0.1:6700".parse().unwrap(),
            memory: false,
        }
    }

    #[test]
    fn a_cluster_is_found_where_it_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(&dir.path().join("a/b")).unwrap();
        assert!(home.must_be_one().is_err());
        let undo = home.prepare().unwrap();
        home.save(&description()).unwrap();
        assert_eq!(home.load().unwrap(), Some(description()));
        assert!(matches!(home.prepare().unwrap(), Undo::Nothing));
        undo.undo();
        assert!(!home.path().exists());
    }

    #[test]
    fn a_directory_with_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path()).unwrap();
        fs::write(dir.path().join("daemon.lock"), "").unwrap();
        assert!(matches!(home.prepare().unwrap(), Undo::Nothing));
        fs::write(dir.path().join("thesis.tex"), "").unwrap();
        let err = home.prepare().unwrap_err().to_string();
        assert!(err.contains("holds no cluster"), "{err}");
    }

    #[test]
    fn an_empty_directory_is_empty_again_after_a_failed_start() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path()).unwrap();
        let undo = home.prepare().unwrap();
        home.save(&description()).unwrap();
        fs::create_dir(dir.path().join("osd")).unwrap();
        undo.undo();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_keyring_is_for_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path()).unwrap();
        home.write(&home.keyring(), b"key", 0o600).unwrap();
        home.write(&home.keyring(), b"new", 0o600).unwrap();
        let mode = fs::metadata(home.keyring()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read(home.keyring()).unwrap(), b"new");
    }
}
