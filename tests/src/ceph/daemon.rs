//! One daemon of a cluster, and how to be sure that a pid is still its.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::conf::mon_name;
use crate::tools::{command_line, raise_open_files, spawn_detached, spawn_tied, wait_for};

/// Which daemon of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DaemonId {
    Mon(usize),
    Mgr,
    Osd(usize),
}

impl DaemonId {
    pub(crate) fn program(self) -> &'static str {
        match self {
            DaemonId::Mon(_) => "ceph-mon",
            DaemonId::Mgr => "ceph-mgr",
            DaemonId::Osd(_) => "ceph-osd",
        }
    }

    /// The daemon's id without its type.
    pub(crate) fn short(self) -> String {
        match self {
            DaemonId::Mon(index) => mon_name(index).to_string(),
            DaemonId::Mgr => "x".to_owned(),
            DaemonId::Osd(number) => number.to_string(),
        }
    }
}

impl fmt::Display for DaemonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            DaemonId::Mon(_) => "mon",
            DaemonId::Mgr => "mgr",
            DaemonId::Osd(_) => "osd",
        };
        f.pad(&format!("{kind}.{}", self.short()))
    }
}

impl FromStr for DaemonId {
    type Err = String;

    fn from_str(text: &str) -> Result<DaemonId, String> {
        let unknown = || format!("no such daemon: {text}");
        match text.split_once('.').ok_or_else(unknown)? {
            ("mgr", "x") => Ok(DaemonId::Mgr),
            ("osd", number) => number.parse().map(DaemonId::Osd).map_err(|_| unknown()),
            ("mon", name) => match name.as_bytes() {
                [letter @ b'a'..=b'z'] => Ok(DaemonId::Mon(usize::from(letter - b'a'))),
                _ => Err(unknown()),
            },
            _ => Err(unknown()),
        }
    }
}

/// A daemon that was started.
#[derive(Debug)]
pub(crate) struct Daemon {
    pid: Pid,
    /// Our own child; otherwise it was started by an earlier process.
    child: Option<Child>,
    /// What its command line must show for a pid that is not our child's to be believed.
    conf: PathBuf,
    pid_file: PathBuf,
}

impl Daemon {
    /// Starts a daemon, its output going to `log`, its pid to `pid_file`.
    pub(crate) fn start(
        mut command: Command,
        conf: &Path,
        log: &Path,
        pid_file: PathBuf,
        detached: bool,
    ) -> Result<Daemon> {
        let line = command_line(&command);
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out);
        // tcmalloc's default cache of 32 MiB makes OSDs slow with many threads.
        command.env("TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES", "134217728");
        raise_open_files(&mut command);
        let spawn = if detached { spawn_detached } else { spawn_tied };
        let child = spawn(command).with_context(|| format!("cannot run `{line}`"))?;
        let pid = Pid::from_raw(child.id() as i32);
        let daemon = Daemon {
            pid,
            child: Some(child),
            conf: conf.to_owned(),
            pid_file,
        };
        fs::write(&daemon.pid_file, pid.to_string())
            .with_context(|| format!("writing {}", daemon.pid_file.display()))?;
        Ok(daemon)
    }

    /// The daemon whose pid an earlier process wrote to `pid_file`, if it still runs.
    pub(crate) fn adopt(pid_file: PathBuf, conf: &Path) -> Option<Daemon> {
        let pid = fs::read_to_string(&pid_file)
            .ok()?
            .trim()
            .parse()
            .ok()
            .filter(|&pid| pid > 1)?;
        let mut daemon = Daemon {
            pid: Pid::from_raw(pid),
            child: None,
            conf: conf.to_owned(),
            pid_file,
        };
        daemon.is_running().then_some(daemon)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn is_running(&mut self) -> bool {
        match &mut self.child {
            // While it is not reaped, nobody else can have its pid.
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => runs_with(self.pid, &self.conf),
        }
    }

    /// Sends a signal if the daemon still runs.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.is_running() {
            kill(self.pid, signal).with_context(|| format!("{signal} to pid {}", self.pid))?;
        }
        Ok(())
    }

    /// Waits until the daemon is gone; then its pid file goes too.
    pub(crate) fn wait_gone(&mut self, timeout: Duration) -> Result<()> {
        let what = format!("end of pid {}", self.pid);
        wait_for(&what, timeout, || Ok(!self.is_running()))?;
        let _ = fs::remove_file(&self.pid_file);
        Ok(())
    }
}

/// Whether process `pid` runs (is no zombie) and was started with the configuration file `conf`.
fn runs_with(pid: Pid, conf: &Path) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else {
        return false;
    };
    // A zombie has no command line any more.
    line.split(|&b| b == 0)
        .any(|arg| arg == conf.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for id in [
            DaemonId::Mon(0),
            DaemonId::Mon(2),
            DaemonId::Mgr,
            DaemonId::Osd(12),
        ] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        assert_eq!(format!("{:<6}|", DaemonId::Mon(2)), "mon.c |");
        for bad in ["", "osd", "osd.", "osd.x", "mon.1", "mon.ab", "mds.a"] {
            assert!(bad.parse::<DaemonId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_processes_of_the_cluster_are_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("ceph.conf");
        let pid_file = dir.path().join("osd.0.pid");
        fs::write(&conf, "").unwrap();
        let mut command = Command::new("tail");
        command.arg("-f").arg(&conf);
        let mut daemon = Daemon::start(
            command,
            &conf,
            &dir.path().join("log"),
            pid_file.clone(),
            false,
        )
        .unwrap();
        // The name of the file appears with exec.
        wait_for("exec", Duration::from_secs(10), || {
            Ok(runs_with(daemon.pid(), &conf))
        })
        .unwrap();
        let mut adopted = Daemon::adopt(pid_file.clone(), &conf).unwrap();
        assert_eq!(adopted.pid(), daemon.pid());
        assert!(Daemon::adopt(pid_file.clone(), Path::new("/else/ceph.conf")).is_none());

        daemon.signal(Signal::SIGKILL).unwrap();
        daemon.wait_gone(Duration::from_secs(10)).unwrap();
        assert!(!adopted.is_running() && !pid_file.exists());

        // Somebody else's pid in the file: ours.
        fs::write(&pid_file, std::process::id().to_string()).unwrap();
        assert!(Daemon::adopt(pid_file, &conf).is_none());
    }
}
