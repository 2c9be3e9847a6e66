//! The program under test: `ublk-rbd` as a user runs it.
//!
//! * [`Product`] runs its commands in a run directory of its own and sees what they leave behind.
//! * [`binary`] is the program, built from this source.
//! * [`client`] has the NBD clients that tests drive it with.

mod build;
pub mod client;
mod server;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::ceph::Cluster;
use crate::tools::{self, Output, Process, wait_for};

pub use build::binary;
pub use server::Server;

/// How long a command may take unless told otherwise: longer than its own limits.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(10);

/// Files that a daemon leaves in its run directory on purpose.
const KEPT: [&str; 2] = ["daemon.log", "daemon.lock"];

/// `ublk-rbd` with one run directory. Dropped, its daemon is killed and the directory removed.
#[derive(Debug)]
pub struct Product {
    program: PathBuf,
    base: TempDir,
    conf: PathBuf,
}

/// An attached image.
#[derive(Debug, Clone)]
pub struct Mapped {
    /// What `map` printed: an NBD URI.
    pub uri: String,
    /// The socket in it.
    pub socket: PathBuf,
}

impl Product {
    /// For use with `cluster`, as its `client.admin`.
    pub fn new(cluster: &Cluster) -> Result<Product> {
        Product::with_conf(cluster.conf_path())
    }

    /// For use with the cluster that a configuration file describes.
    pub fn with_conf(conf: PathBuf) -> Result<Product> {
        // Below /tmp whatever TMPDIR is: paths of unix sockets are short, and the programs of
        // every version of Ceph see it.
        let base = tempfile::Builder::new().prefix("up.").tempdir_in("/tmp")?;
        Ok(Product {
            program: binary()?,
            base,
            conf,
        })
    }

    pub fn run_dir(&self) -> PathBuf {
        self.base.path().join("run")
    }

    /// A path for a file of the test that goes with this.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// A command that sees nothing of the caller's Ceph but what its arguments name.
    pub fn bare_command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        for name in ["CEPH_ARGS", "CEPH_CONF", "CEPH_KEYRING", "UBLK_RBD_LOG"] {
            command.env_remove(name);
        }
        // Most tests are about what is behind a front end, and run on kernels that lack ublk.
        command.env("UBLK_RBD_FRONTEND", "nbd");
        command.arg("--run-dir").arg(self.run_dir()).args(args);
        command
    }

    /// A command for the cluster.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.bare_command(["--conf"]);
        command.arg(&self.conf).args(args);
        command
    }

    /// Runs a command that must succeed and say nothing but its result.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let command = self.command(args);
        let line = tools::command_line(&command);
        let out = tools::output(command, COMMAND_LIMIT)?;
        let said = out.stderr_str();
        ensure!(
            out.status.success() && said.is_empty(),
            "`{line}` ended with {}: {said}\n{}",
            out.status,
            self.log_tail()
        );
        Ok(out.stdout_str())
    }

    /// Likewise, and reads the JSON it prints.
    pub fn json<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Result<serde_json::Value> {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        let text = self.run(["--format".into(), "json".into()].into_iter().chain(args))?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    /// Runs a command that must fail as all of them do: with one line on standard error, none on
    /// standard output, and exit code 1. Returns that line without the program's name.
    pub fn refused<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        refusal_of(self.command(args))
    }

    /// Attaches an image with the options given.
    pub fn map(&self, image: &str, options: &[&str]) -> Result<Mapped> {
        let printed = self.run(["map", image].iter().chain(options))?;
        Mapped::of(&printed)
    }

    /// Attaches an image as a block device.
    pub fn map_device(&self, image: &str, options: &[&str]) -> Result<PathBuf> {
        let args = ["map", "--frontend", "ublk", image];
        let printed = self.run(args.iter().chain(options))?;
        let device = PathBuf::from(printed.trim_end());
        let is_block = fs::metadata(&device).map(|m| m.file_type().is_block_device());
        ensure!(
            printed.starts_with("/dev/ublkb") && is_block.unwrap_or(false),
            "map printed {printed:?}"
        );
        Ok(device)
    }

    /// `map --foreground`: the process and, once it serves, what it serves.
    pub fn map_foreground(&self, image: &str, options: &[&str]) -> Result<(Process, Mapped)> {
        use std::io::{BufRead, BufReader};
        let mut command = self.command(["map", "--foreground", image].iter().chain(options));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::spawn(command)?;
        let mut line = String::new();
        BufReader::new(process.take_stdout().context("no pipe")?).read_line(&mut line)?;
        Ok((process, Mapped::of(&line)?))
    }

    pub fn unmap(&self, target: &str) -> Result<()> {
        let said = self.run(["unmap", target])?;
        ensure!(said.is_empty(), "unmap printed {said:?}");
        Ok(())
    }

    /// The processes that run with this run directory.
    pub fn processes(&self) -> Result<Vec<Pid>> {
        let dir = self.run_dir();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // Processes end while /proc is read.
            let Ok(line) = fs::read(entry.path().join("cmdline")) else {
                continue;
            };
            let mut words = line.split(|&b| b == 0);
            let ours = words.next() == Some(self.program.as_os_str().as_encoded_bytes());
            if ours && words.any(|word| word == dir.as_os_str().as_encoded_bytes()) {
                found.push(Pid::from_raw(pid));
            }
        }
        Ok(found)
    }

    /// The daemon that `map` has started.
    pub fn daemon(&self) -> Result<Pid> {
        match self.processes()?[..] {
            [pid] => Ok(pid),
            ref other => bail!("not one daemon but {other:?}"),
        }
    }

    /// Kills the daemon as the kernel does when memory runs out.
    pub fn kill_daemon(&self) -> Result<()> {
        kill(self.daemon()?, Signal::SIGKILL)?;
        wait_for("the end of the killed daemon", END_LIMIT, || {
            Ok(self.processes()?.is_empty())
        })
    }

    /// Checks that no process, no socket and no file is left, within the moment that a daemon
    /// takes to end after it has answered.
    pub fn assert_gone(&self) -> Result<()> {
        let gone = wait_for("the end of all that served", END_LIMIT, || {
            Ok(self.processes()?.is_empty())
        });
        gone.with_context(|| format!("{:?}: {}", self.processes(), self.log_tail()))?;
        let Ok(entries) = fs::read_dir(self.run_dir()) else {
            return Ok(());
        };
        for entry in entries {
            let name = entry?.file_name();
            let kept = KEPT.iter().any(|kept| name == *kept);
            ensure!(kept, "{name:?} is left in the run directory");
        }
        Ok(())
    }

    /// The block devices that are recorded in the run directory.
    fn left_devices(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run_dir()).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .filter_map(|name| {
                let number = name.strip_prefix("ublk-")?.strip_suffix(".json")?;
                Some(format!("/dev/ublkb{number}"))
            })
            .collect()
    }

    /// The end of the daemon's log.
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.run_dir().join("daemon.log")).unwrap_or_default();
        tools::last_lines(&String::from_utf8_lossy(&log), 12)
    }
}

/// Runs a command of the program that must fail as all of them do: see [`Product::refused`].
pub fn refusal_of(command: Command) -> Result<String> {
    let line = tools::command_line(&command);
    let Output {
        status,
        stdout,
        stderr,
    } = tools::output(command, COMMAND_LIMIT)?;
    let said = String::from_utf8_lossy(&stderr);
    let why = said
        .strip_prefix("ublk-rbd: ")
        .and_then(|rest| rest.strip_suffix('\n'))
        .filter(|rest| !rest.is_empty() && !rest.contains('\n'));
    match why {
        Some(why) if status.code() == Some(1) && stdout.is_empty() => Ok(why.to_owned()),
        _ => bail!(
            "`{line}` does not fail as it should: {status}, stdout {:?}, stderr {said:?}",
            String::from_utf8_lossy(&stdout)
        ),
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        for pid in self.processes().unwrap_or_default() {
            let _ = kill(pid, Signal::SIGKILL);
        }
        // Block devices outlive their daemon.
        for device in self.left_devices() {
            let _ = tools::output(self.command(["unmap", "--force", &device]), COMMAND_LIMIT);
        }
    }
}

impl Mapped {
    fn of(printed: &str) -> Result<Mapped> {
        let uri = printed.strip_suffix('\n').context("map printed no line")?;
        let socket = uri
            .strip_prefix("nbd+unix:///?socket=")
            .with_context(|| format!("not the URI of a unix socket: {uri:?}"))?;
        // The one character in the names of tests that URIs have to write otherwise.
        let socket = socket.replace("%40", "@");
        ensure!(!socket.contains(['%', '\n']), "an odd path: {socket}");
        Ok(Mapped {
            uri: uri.to_owned(),
            socket: PathBuf::from(socket),
        })
    }
}

/// The path as a string, for command lines.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are ASCII")
}
