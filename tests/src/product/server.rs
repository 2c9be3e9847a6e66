//! Our single-node server, as `ublk-rbd cluster start` runs it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tempfile::TempDir;

use super::{binary, text};
use crate::ceph::{Client, Version};
use crate::tools::{self, Process};

const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// A server in the foreground of a process of its own, on free ports of 127.0.0.1. Dropped, it is
/// killed and its directory removed.
#[derive(Debug)]
pub struct Server {
    process: Process,
    home: TempDir,
    program: PathBuf,
    options: Vec<String>,
}

impl Server {
    /// `--memory`, or what else is to be said besides the directory; with neither `--memory` nor
    /// anything else the store is in files.
    pub fn start(options: &[&str]) -> Result<Server> {
        Server::of(&binary()?, options)
    }

    /// Likewise with a program of the caller's choice.
    pub fn of(program: &Path, options: &[&str]) -> Result<Server> {
        // Programs of every version of Ceph see /tmp, and paths of unix sockets are short.
        let home = tempfile::Builder::new().prefix("us.").tempdir_in("/tmp")?;
        let mut options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        if !options.iter().any(|o| o == "--listen") {
            let port = match options.iter().any(|o| o == "--memory") {
                true => 0,
                false => lasting_port()?,
            };
            options.extend(["--listen".to_owned(), format!("127.0.0.1:{port}")]);
        }
        let process = launch(program, home.path(), &options)?;
        Ok(Server {
            process,
            home,
            program: program.to_owned(),
            options,
        })
    }

    pub fn dir(&self) -> PathBuf {
        self.home.path().join("cluster")
    }

    pub fn conf_path(&self) -> PathBuf {
        self.dir().join("ceph.conf")
    }

    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Client programs of a version of Ceph.
    pub fn client(&self, version: Version) -> Result<Client> {
        Client::new(version, &self.conf_path())
    }

    /// A subcommand of `ublk-rbd cluster` for this server.
    pub fn command(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(["cluster"]).args(args);
        command.args(["--dir", text(&self.dir())]);
        Ok(command)
    }

    pub fn run(&self, args: &[&str]) -> Result<String> {
        tools::run(self.command(args)?, COMMAND_LIMIT)
    }

    /// Ends it as a power cut does.
    pub fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait(COMMAND_LIMIT).map(drop)
    }

    /// Starts it again, after it has ended. One that is kept in files comes back at its monitor's
    /// address, where clients look for it.
    pub fn restart(&mut self) -> Result<()> {
        self.process = launch(&self.program, self.home.path(), &self.options)?;
        Ok(())
    }

    /// Likewise, without waiting until it serves.
    pub fn start_only(&mut self) -> Result<()> {
        let command = command(&self.program, self.home.path(), &self.options);
        self.process = Process::spawn(command)?;
        Ok(())
    }

    /// Ends it in order.
    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.wait(COMMAND_LIMIT)?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }
}

/// A free port that no client gets for its own end of a connection. From the range of those, one that
/// looks for a killed server could take the server's port, and even connect to itself.
fn lasting_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests of other processes look elsewhere first.
    let start = (std::process::id() % 200) as u16 * 50;
    for _ in 0..1000 {
        let port = 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from 20000 on is free")
}

/// Starts a server and waits until it says that it serves.
fn launch(program: &Path, home: &Path, options: &[String]) -> Result<Process> {
    let command = command(program, home, options);
    let line = tools::command_line(&command);
    let mut process = Process::spawn(command)?;
    let mut said = String::new();
    BufReader::new(process.take_stdout().context("no pipe")?).read_line(&mut said)?;
    ensure!(!said.is_empty(), "`{line}` said nothing and ended");
    Ok(process)
}

fn command(program: &Path, home: &Path, options: &[String]) -> Command {
    let dir = home.join("cluster");
    let mut command = Command::new(program);
    command
        .args(["cluster", "start", "--foreground", "--dir", text(&dir)])
        .args(options);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}
