//! The caller's side of the control socket.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Answer, MAX_LINE, Request};
use crate::run_dir::RunDir;

/// How long a daemon may take from its start to an open control socket.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a daemon that was killed may take to be gone.
const DYING: Duration = Duration::from_secs(2);

/// Sends a request to the running daemon. `Ok(None)` when none is running.
pub fn ask(run_dir: &RunDir, request: &Request) -> Result<Option<Answer>> {
    let begin = Instant::now();
    while let Some(stream) = connect(run_dir)? {
        if let Some(answer) = exchange(stream, request)? {
            return Ok(Some(answer));
        }
        // One that was killed may be reached until the last of it is gone.
        if begin.elapsed() > DYING {
            bail!(
                "the daemon ended before it answered: see {}",
                run_dir.log_file().display()
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(None)
}

pub(crate) fn connect(run_dir: &RunDir) -> Result<Option<UnixStream>> {
    let path = run_dir.control_socket();
    match UnixStream::connect(&path) {
        Ok(stream) => Ok(Some(stream)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(e) => Err(e).with_context(|| format!("cannot reach the daemon at {}", path.display())),
    }
}

/// `Ok(None)` when the daemon went away without an answer.
fn exchange(stream: UnixStream, request: &Request) -> Result<Option<Answer>> {
    match talk(stream, request)? {
        Some(Answer::Error { message }) => Err(anyhow!(message)),
        answer => Ok(answer),
    }
}

/// One request and its answer. `Ok(None)` when the other side went away without one.
pub(crate) fn talk<Q: Serialize, A: DeserializeOwned>(
    mut stream: UnixStream,
    request: &Q,
) -> Result<Option<A>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    let mut answer = String::new();
    let sent = stream.write_all(&line);
    match sent.and_then(|()| BufReader::new(stream).take(MAX_LINE).read_line(&mut answer)) {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            return Ok(None);
        }
        Err(e) => return Err(e).context("cannot talk to the daemon"),
    }
    let answer = serde_json::from_str(&answer).context("the daemon's answer makes no sense")?;
    Ok(Some(answer))
}

/// Sends a request, starting a daemon when none is running. The daemon it starts exits once it has
/// no image left, so a request that fails leaves nothing behind.
pub fn ask_or_start(run_dir: &RunDir, verbose: u8, request: &Request) -> Result<Answer> {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut child = None;
    let mut again = false;
    loop {
        // A daemon that was just about to exit for want of images may hang up: then the next turn
        // starts another.
        if let Some(stream) = connect(run_dir)?
            && let Some(answer) = exchange(stream, request)?
        {
            return Ok(answer);
        }
        match &mut child {
            None => child = Some(start(run_dir, verbose)?),
            Some(running) => match running.try_wait()? {
                None => {}
                Some(status) if status.success() => child = None,
                // Another `map` may have started one first; then ours ended at its lock, and the
                // next turn connects to the other.
                Some(_) if connect(run_dir)?.is_some() => {}
                // Or one that was killed had not quite gone, and has by now.
                Some(_) if run_dir.is_locked().unwrap_or(false) && Instant::now() < deadline => {
                    child = None;
                }
                Some(_) if !std::mem::replace(&mut again, true) => child = None,
                Some(_) => bail!("the daemon does not start: {}", last_log_line(run_dir)),
            },
        }
        if Instant::now() >= deadline {
            bail!("the daemon does not answer: {}", last_log_line(run_dir));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn start(run_dir: &RunDir, verbose: u8) -> Result<std::process::Child> {
    run_dir.create()?;
    let log = open_log(run_dir)?;
    let mut cmd = Command::new(std::env::current_exe().context("cannot find this program")?);
    cmd.arg("--run-dir").arg(run_dir.path());
    for _ in 0..verbose {
        cmd.arg("-v");
    }
    cmd.args(["daemon", "--exit-when-idle"]);
    cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    // A process group of its own: a Ctrl-C meant for `map` must not end the disks. The root
    // directory as its own, so that it pins no mount.
    cmd.process_group(0).current_dir("/");
    cmd.spawn().context("cannot start the daemon")
}

fn open_log(run_dir: &RunDir) -> Result<File> {
    let path = run_dir.log_file();
    let mut opts = OpenOptions::new();
    opts.create(true).append(true).mode(0o600);
    opts.open(&path)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn last_log_line(run_dir: &RunDir) -> String {
    let path = run_dir.log_file();
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    match text.lines().rev().find(|l| !l.trim().is_empty()) {
        Some(line) => line.trim().to_owned(),
        None => format!("nothing in {}", path.display()),
    }
}
