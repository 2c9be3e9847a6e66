//! `ublk-rbd cluster`: a cluster of one machine, in a process of its own.
//!
//! Its directory holds what it is (`cluster.json`), the files that clients read (`ceph.conf` and a
//! keyring), its control socket, and its objects where they are kept in files.

mod fault;
mod home;
mod serve;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use cluster::osd::server::Status;
use serde::{Deserialize, Serialize};

use crate::cli::{AuthArg, EmbeddedCommand, FaultCommand, Format, StartArgs};
use crate::control::client;
use crate::{output, spec};
use fault::FaultLine;
use home::Home;

/// How long a cluster may take to bring its store to rest.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// What is asked of a running cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
enum Request {
    Status,
    Stop,
    FaultAdd(fault::Spec),
    FaultLs,
    FaultClear {
        osd: Option<u32>,
        number: Option<u64>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum Answer {
    Status(Box<Status>),
    Stopped,
    Added { numbers: Vec<(u32, u64)> },
    Faults { faults: Vec<FaultLine> },
    Cleared,
    Error { message: String },
}

/// What a cluster says once it serves.
#[derive(Debug, Serialize, Deserialize)]
struct Started {
    conf: String,
    keyring: String,
    monitor: String,
    fsid: String,
    store: String,
    osds: u32,
    pool: String,
}

/// Carries out a command on the cluster in `dir`.
pub fn run(
    dir: Option<&Path>,
    default_dir: impl FnOnce() -> Result<std::path::PathBuf>,
    command: EmbeddedCommand,
    verbose: u8,
    format: Format,
) -> Result<()> {
    let path = match dir {
        Some(dir) => std::path::absolute(dir).context("bad path")?,
        None => default_dir()?,
    };
    let home = Home::new(&path)?;
    match command {
        EmbeddedCommand::Start(mut args) => {
            // A directory that nobody named may not survive a reboot.
            args.memory |= dir.is_none();
            check(&args)?;
            if args.foreground {
                serve::run(&home, &args, format)
            } else {
                start(&home, &args, verbose, format)
            }
        }
        EmbeddedCommand::Stop => stop(&home),
        EmbeddedCommand::Status => status(&home, format),
        EmbeddedCommand::Fault(command) => fault(&home, command, format),
    }
}

/// What needs no cluster to be found wrong.
fn check(args: &StartArgs) -> Result<()> {
    if let Some(addr) = args.listen
        && addr.ip().is_unspecified()
    {
        bail!("{addr} is no address that clients can be told: name one of this machine");
    }
    if let Some(addr) = args.listen
        && !addr.ip().is_loopback()
        && !args.allow_remote
    {
        bail!(
            "{addr} can be reached from other machines, and this cluster is for one: say \
             --allow-remote to allow it"
        );
    }
    if args.osds.is_some_and(|n| !(1..=64).contains(&n)) {
        bail!("--osds must be from 1 to 64");
    }
    Ok(())
}

/// Starts a process that serves and outlives this one, and waits until it serves.
fn start(home: &Home, args: &StartArgs, verbose: u8, format: Format) -> Result<()> {
    let mut cmd = Command::new(std::env::current_exe().context("cannot find this program")?);
    for _ in 0..verbose {
        cmd.arg("-v");
    }
    cmd.args(["--format", "json", "cluster", "--dir"])
        .arg(home.path());
    cmd.args(["start", "--foreground", "--pool", &args.pool]);
    if args.memory {
        cmd.arg("--memory");
    }
    if let Some(osds) = args.osds {
        cmd.args(["--osds", &osds.to_string()]);
    }
    if let Some(addr) = args.listen {
        cmd.args(["--listen", &addr.to_string()]);
    }
    if args.allow_remote {
        cmd.arg("--allow-remote");
    }
    match args.auth {
        Some(AuthArg::Cephx) => cmd.args(["--auth", "cephx"]),
        Some(AuthArg::None) => cmd.args(["--auth", "none"]),
        None => &mut cmd,
    };
    cmd.env(serve::DETACH, "1");
    cmd.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A process group of its own: a Ctrl-C meant for this command must not end the cluster. The
    // root directory as its own, so that it pins no mount.
    cmd.process_group(0).current_dir("/");
    let mut child = cmd.spawn().context("cannot start the cluster")?;
    // Its messages are few, so that no pipe fills, until it serves; then it leaves both pipes.
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let Ok(started) = serde_json::from_str::<Started>(&line) else {
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut said)?;
        }
        child.wait()?;
        let last = said.lines().rev().find(|l| !l.trim().is_empty());
        let last = last.unwrap_or("the cluster's process ended").trim();
        bail!("{}", last.strip_prefix("ublk-rbd: ").unwrap_or(last));
    };
    print_started(format, &started)
}

fn print_started(format: Format, started: &Started) -> Result<()> {
    output::print(format, started, |out| {
        let _ = writeln!(
            out,
            "cluster {} with {} OSDs, objects in {}, pool {}\n\
             monitor {}\n\
             for clients: --conf {}",
            started.fsid, started.osds, started.store, started.pool, started.monitor, started.conf
        );
    })
}

/// Asks the running cluster.
fn ask(home: &Home, request: &Request) -> Result<Answer> {
    home.must_be_one()?;
    let not_running = || {
        anyhow!(
            "the cluster in {} is not running: `ublk-rbd cluster start --dir {}` starts it",
            home.path().display(),
            home.path().display()
        )
    };
    let stream = client::connect(home.run_dir())?.ok_or_else(not_running)?;
    match client::talk(stream, request)?.ok_or_else(not_running)? {
        Answer::Error { message } => bail!(message),
        answer => Ok(answer),
    }
}

fn other_answer<T>() -> Result<T> {
    bail!("the cluster answers another question")
}

fn stop(home: &Home) -> Result<()> {
    let Answer::Stopped = ask(home, &Request::Stop)? else {
        return other_answer();
    };
    // It has answered before its process is gone; whoever starts it again needs its lock.
    let deadline = Instant::now() + STOP_TIMEOUT;
    while home.is_locked()? {
        if Instant::now() >= deadline {
            bail!("the cluster's process does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn status(home: &Home, format: Format) -> Result<()> {
    let Answer::Status(status) = ask(home, &Request::Status)? else {
        return other_answer();
    };
    output::print(format, &*status, |out| show(out, &status))
}

fn show(out: &mut String, status: &Status) {
    let _ = writeln!(
        out,
        "cluster {}, process {}\n\
         objects in {}, epoch {}, auth {}\n\
         monitor {}, {} clients\n",
        status.fsid,
        status.pid,
        status.store,
        status.epoch,
        status.auth,
        status.addr,
        status.mon.clients
    );
    let header = [
        "osd",
        "address",
        "state",
        "clients",
        "objects",
        "size",
        "reads",
        "writes",
        "waiting",
        "system calls",
    ];
    let rows: Vec<_> = status
        .osds
        .iter()
        .map(|o| {
            let state = match (&o.failed, o.up) {
                (Some(why), _) => why.as_str(),
                (None, true) => "up",
                (None, false) => "down",
            };
            vec![
                o.id.to_string(),
                o.addr.clone(),
                state.to_owned(),
                o.clients.to_string(),
                o.objects.to_string(),
                spec::human(o.bytes),
                o.reads.to_string(),
                o.writes.to_string(),
                o.waiting.to_string(),
                o.ring.enters.to_string(),
            ]
        })
        .collect();
    output::table(out, &header, &rows);
}

fn fault(home: &Home, command: FaultCommand, format: Format) -> Result<()> {
    match command {
        FaultCommand::Add(args) => {
            let spec = fault::Spec::of(&args)?;
            let Answer::Added { numbers } = ask(home, &Request::FaultAdd(spec))? else {
                return other_answer();
            };
            output::print(format, &numbers, |out| {
                for (osd, number) in &numbers {
                    let _ = writeln!(out, "osd.{osd} {number}");
                }
            })
        }
        FaultCommand::Ls => {
            let Answer::Faults { faults } = ask(home, &Request::FaultLs)? else {
                return other_answer();
            };
            output::print(format, &faults, |out| {
                if !faults.is_empty() {
                    let rows: Vec<_> = faults.iter().map(FaultLine::row).collect();
                    output::table(out, &FaultLine::HEADER, &rows);
                }
            })
        }
        FaultCommand::Clear { osd, number } => {
            match ask(home, &Request::FaultClear { osd, number })? {
                Answer::Cleared => Ok(()),
                _ => other_answer(),
            }
        }
    }
}
