//! Running programs of a Ceph that is unpacked in a directory of its own: chroot in a private
//! mount namespace, so that nothing stays mounted and the host is not touched.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, chroot};
use serde::{Deserialize, Serialize};

/// Directories of the host that a program sees in the same place inside the root.
const SHARED: [&str; 4] = ["/proc", "/dev", "/sys", "/tmp"];

/// Where programs are run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sandbox {
    Host,
    /// A file tree to chroot into.
    Root(PathBuf),
}

impl Sandbox {
    /// A command that runs `program` with a plain environment. In a root it sees the host's /tmp
    /// and `dir` under their own names.
    pub(crate) fn command(&self, program: &str, dir: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .current_dir("/");
        for name in [
            "CEPH_ARGS",
            "CEPH_CONF",
            "CEPH_KEYRING",
            "LD_LIBRARY_PATH",
            "PYTHONPATH",
        ] {
            command.env_remove(name);
        }
        if let Sandbox::Root(root) = self {
            enter(&mut command, root, dir)?;
        }
        Ok(command)
    }
}

fn enter(command: &mut Command, root: &Path, dir: &Path) -> Result<()> {
    let mut binds = Vec::new();
    let mut bind = |path: &Path| -> Result<()> {
        let inside = root.join(path.strip_prefix("/").context("not an absolute path")?);
        fs::create_dir_all(&inside).with_context(|| format!("creating {}", inside.display()))?;
        // Removing the directory below a mount detaches the mount in every namespace: whoever
        // tidies up the root would take /tmp from running daemons. rmdir spares what is not empty.
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(inside.join(".keep"))?;
        binds.push((c_path(path)?, c_path(&inside)?));
        Ok(())
    };
    for shared in SHARED {
        bind(Path::new(shared))?;
    }
    if !SHARED.iter().any(|shared| dir.starts_with(shared)) {
        bind(dir)?;
    }
    let root = c_path(root)?;
    let go_in = move || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none: Option<&std::ffi::CStr> = None;
        mount(
            none,
            c"/",
            none,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            none,
        )?;
        for (from, to) in &binds {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(from.as_c_str()), to.as_c_str(), none, flags, none)?;
        }
        chroot(root.as_c_str())?;
        chdir(c"/")?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls on paths prepared above; as C
    // strings they are passed on as they are. It neither allocates nor takes a lock.
    unsafe { command.pre_exec(go_in) };
    Ok(())
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).with_context(|| format!("NUL in {}", path.display()))
}
