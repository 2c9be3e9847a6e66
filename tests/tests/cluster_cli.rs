//! `ublk-rbd cluster` and `quickstart` as a user types them. They need nothing but the binary; what
//! goes wrong ends in one line, exit code 1 and nothing half made.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::product::{binary, refusal_of, text};
use harness::tools::{self, Process, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

const MINUTE: Duration = Duration::from_secs(60);
const LOCAL: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// A place for directories of clusters. Dropped, whatever runs there is killed.
struct Desk(TempDir);

impl Desk {
    fn new() -> Result<Desk> {
        // Paths of unix sockets are short.
        let dir = tempfile::Builder::new().prefix("uc.").tempdir_in("/tmp")?;
        Ok(Desk(dir))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary()?);
        for name in ["CEPH_ARGS", "CEPH_CONF", "CEPH_KEYRING", "UBLK_RBD_LOG"] {
            command.env_remove(name);
        }
        command.arg("--run-dir").arg(self.path("run")).args(args);
        Ok(command)
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        let command = self.command(args)?;
        let line = tools::command_line(&command);
        let out = tools::output(command, MINUTE)?;
        let said = out.stderr_str();
        ensure!(
            out.status.success() && said.is_empty(),
            "`{line}`: {}: {said}",
            out.status
        );
        Ok(out.stdout_str())
    }

    fn json(&self, args: &[&str]) -> Result<Value> {
        let said = self.run(&[&["--format", "json"], args].concat())?;
        serde_json::from_str(&said).with_context(|| format!("{args:?}: {said}"))
    }

    /// Fails with one line that has all of `words`.
    fn refused(&self, args: &[&str], words: &[&str]) -> Result<()> {
        let command = self.command(args)?;
        let line = tools::command_line(&command);
        let why = refusal_of(command)?;
        eprintln!("  {why}");
        for word in words {
            ensure!(why.contains(word), "`{line}` says {why:?} without {word:?}");
        }
        Ok(())
    }

    fn start(&self, dir: &Path, more: &[&str]) -> Result<Value> {
        let args = ["cluster", "--dir", text(dir), "start"];
        self.json(&[&args[..], more].concat())
    }

    fn stop(&self, dir: &Path) -> Result<()> {
        let said = self.run(&["cluster", "--dir", text(dir), "stop"])?;
        ensure!(said.is_empty(), "{said}");
        Ok(())
    }

    fn status(&self, dir: &Path) -> Result<Value> {
        self.json(&["cluster", "--dir", text(dir), "status"])
    }

    fn pid(&self, dir: &Path) -> Result<Pid> {
        let pid = self.status(dir)?["pid"].as_i64().context("no pid")?;
        Ok(Pid::from_raw(i32::try_from(pid)?))
    }

    fn image(&self, dir: &Path, args: &[&str]) -> Result<String> {
        let conf = dir.join("ceph.conf");
        self.run(&[&["--conf", text(&conf), "image"], args].concat())
    }

    /// Processes that name a path below this desk.
    fn processes(&self) -> Result<Vec<Pid>> {
        let own = self.0.path().as_os_str().as_encoded_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // Processes end while /proc is read; those that have ended have no command line.
            let Ok(line) = fs::read(entry.path().join("cmdline")) else {
                continue;
            };
            if line.windows(own.len()).any(|w| w == own) {
                found.push(Pid::from_raw(pid));
            }
        }
        Ok(found)
    }

    fn nothing_runs(&self) -> Result<()> {
        wait_for("the end of all processes", MINUTE, || {
            Ok(self.processes()?.is_empty())
        })
    }

    fn kill(&self, pid: Pid) -> Result<()> {
        kill(pid, Signal::SIGKILL)?;
        wait_for("the end of a killed cluster", MINUTE, || {
            Ok(!self.processes()?.contains(&pid))
        })
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for pid in self.processes().unwrap_or_default() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

#[test]
fn start_stop_and_start_again() -> Result<()> {
    let desk = Desk::new()?;
    let dir = desk.path("c");
    let first = desk.start(&dir, &LOCAL)?;
    let status = desk.status(&dir)?;
    ensure!(status["fsid"] == first["fsid"], "{first} {status}");
    ensure!(
        desk.run(&["cluster", "--dir", text(&dir), "status"])?
            .contains("up")
    );
    desk.image(&dir, &["create", "--size", "8M", "rbd/one"])?;
    desk.stop(&dir)?;
    desk.nothing_runs()?;
    let stopped: &[&str] = &["not running", text(&dir)];
    for what in ["status", "stop"] {
        desk.refused(&["cluster", "--dir", text(&dir), what], stopped)?;
    }
    desk.refused(&["cluster", "--dir", text(&dir), "fault", "ls"], stopped)?;

    // Again, at the same address and with all that was in it; and after a kill.
    let again = desk.start(&dir, &[])?;
    ensure!(again["fsid"] == first["fsid"] && again["monitor"] == first["monitor"]);
    desk.image(&dir, &["create", "--size", "8M", "rbd/two"])?;
    desk.kill(desk.pid(&dir)?)?;
    desk.refused(&["cluster", "--dir", text(&dir), "status"], stopped)?;
    desk.start(&dir, &[])?;
    let listed = desk.image(&dir, &["ls", "rbd"])?;
    let names: Vec<&str> = listed.split_whitespace().collect();
    ensure!(names == ["one", "two"], "{listed}");

    // The directory of a running cluster, and its address for another one.
    let pid = desk.pid(&dir)?;
    let running = ["cluster", "--dir", text(&dir), "start"];
    desk.refused(&running, &["runs in", "already", text(&dir)])?;
    let addr = again["monitor"].as_str().context("no address")?;
    let other = desk.path("other");
    let args = ["cluster", "--dir", text(&other), "start", "--listen", addr];
    desk.refused(&args, &[addr, "in use"])?;
    ensure!(!other.exists(), "a failed start leaves its directory");
    ensure!(desk.pid(&dir)? == pid);

    // Two at once do not meet.
    let second = desk.start(
        &other,
        &[&LOCAL[..], &["--osds", "1", "--auth", "none"]].concat(),
    )?;
    ensure!(second["fsid"] != first["fsid"] && second["monitor"] != first["monitor"]);
    desk.image(&other, &["create", "--size", "8M", "rbd/elsewhere"])?;
    ensure!(!desk.image(&dir, &["ls", "rbd"])?.contains("elsewhere"));
    desk.refused(&[&args[..4], &["--osds", "2"]].concat(), &["already"])?;
    desk.stop(&other)?;
    desk.refused(&[&args[..4], &["--osds", "2"]].concat(), &["has 1 OSDs"])?;
    desk.refused(&[&args[..4], &["--memory"]].concat(), &["in files"])?;
    desk.stop(&dir)?;
    desk.nothing_runs()
}

#[test]
fn clusters_that_do_not_start() -> Result<()> {
    let desk = Desk::new()?;
    let dir = desk.path("c");
    let start = ["cluster", "--dir", text(&dir), "start"];
    let with = |more: &[&'static str]| [&start[..], more].concat();
    for (more, words) in [
        (&["--osds", "0"][..], &["--osds", "from 1 to 64"][..]),
        (&["--osds", "65"], &["--osds", "from 1 to 64"]),
        (
            &["--listen", "192.0.2.1:0"],
            &["192.0.2.1", "--allow-remote"],
        ),
        (&["--listen", "0.0.0.0:0"], &["0.0.0.0"]),
        (&["--listen", "0.0.0.0:0", "--allow-remote"], &["0.0.0.0"]),
        (
            &["--listen", "192.0.2.1:0", "--allow-remote"],
            &["192.0.2.1", "listen"],
        ),
        (&["--pool", ""], &["pool"]),
    ] {
        for foreground in [&[][..], &["--foreground"]] {
            desk.refused(&[&with(more)[..], foreground].concat(), words)?;
            ensure!(!dir.exists(), "{more:?} leaves {}", dir.display());
        }
    }
    for args in [
        &["--osds", "-1"][..],
        &["--osds", "many"],
        &["--osds", "99999999999"],
        &["--listen", "nonsense"],
        &["--auth", "kerberos"],
    ] {
        let args = [&start[..], args].concat();
        let out = tools::output(desk.command(&args)?, MINUTE)?;
        ensure!(out.status.code() == Some(2), "{args:?}: {out:?}");
    }
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let addr = taken.local_addr()?.to_string();
    desk.refused(
        &[&start[..], &["--listen", &addr]].concat(),
        &[&addr, "in use"],
    )?;
    ensure!(!dir.exists());

    // What is no cluster's directory stays as it is.
    let refused_in = |dir: &Path, words: &[&str]| {
        let args = ["cluster", "--dir", text(dir), "start"];
        desk.refused(&[&args[..], &LOCAL].concat(), words)
    };
    let full = desk.path("full");
    fs::create_dir(&full)?;
    fs::write(full.join("letter"), "kept")?;
    refused_in(&full, &[text(&full), "not empty"])?;
    ensure!(fs::read_dir(&full)?.count() == 1);
    for what in ["status", "stop"] {
        let args = ["cluster", "--dir", text(&full), what];
        desk.refused(&args, &["no cluster", text(&full)])?;
        let args = ["cluster", "--dir", text(&dir), what];
        desk.refused(&args, &["no cluster", text(&dir)])?;
    }
    let file = desk.path("file");
    fs::write(&file, "kept")?;
    refused_in(&file, &[text(&file)])?;
    refused_in(&file.join("below"), &[text(&file)])?;
    ensure!(fs::read_to_string(&file)? == "kept");
    // Root may write anywhere, but not where nothing can be made.
    refused_in(Path::new("/proc/self/c"), &["/proc/self/c"])?;
    refused_in(&desk.path(&"x".repeat(120)), &["too long"])?;
    // An empty one that fails is empty again.
    let empty = desk.path("empty");
    fs::create_dir(&empty)?;
    let args = ["cluster", "--dir", text(&empty), "start", "--listen", &addr];
    desk.refused(&args, &[&addr])?;
    ensure!(empty.is_dir() && fs::read_dir(&empty)?.next().is_none());

    // A description that is damaged, or of a later version.
    let begin = [&LOCAL[..], &["--osds", "1"]].concat();
    desk.start(&dir, &begin)?;
    desk.stop(&dir)?;
    let json = dir.join("cluster.json");
    let good = fs::read_to_string(&json)?;
    for (bad, words) in [
        ("{", &["cluster.json", "damaged"][..]),
        (
            &good.replace("\"version\": 1", "\"version\": 7"),
            &["version 7"],
        ),
        (&good.replace("cephx", "magic"), &["auth"]),
    ] {
        fs::write(&json, bad)?;
        desk.refused(&start, words)?;
    }
    fs::write(&json, good)?;
    desk.start(&dir, &[])?;
    desk.stop(&dir)?;
    desk.nothing_runs()
}

/// A cluster in memory leaves nothing to start again, and says so.
#[test]
fn what_is_kept_in_memory_is_gone() -> Result<()> {
    let desk = Desk::new()?;
    let dir = desk.path("m");
    let memory = [&LOCAL[..], &["--memory"]].concat();
    desk.start(&dir, &memory)?;
    desk.image(&dir, &["create", "--size", "8M", "rbd/one"])?;
    desk.stop(&dir)?;
    ensure!(!dir.join("ceph.conf").exists(), "its ceph.conf is left");
    desk.start(&dir, &memory)?;
    ensure!(desk.image(&dir, &["ls", "rbd"])?.is_empty());
    desk.kill(desk.pid(&dir)?)?;
    desk.start(&dir, &memory)?;
    desk.stop(&dir)?;
    desk.nothing_runs()
}

#[test]
fn quickstart_shows_a_disk_and_cleans_up() -> Result<()> {
    let desk = Desk::new()?;
    let dir = desk.path("q");
    let quick = ["quickstart", "--dir", text(&dir), "--runtime", "1"];
    let clean = ["quickstart", "--dir", text(&dir), "--clean"];
    // Nothing there: nothing to do.
    ensure!(desk.run(&clean)?.contains("nothing"));
    // Nothing of the system is needed: no ceph.conf, no path, no home.
    let mut command = desk.command(&quick)?;
    command.env_clear();
    let said = tools::run(command, 2 * MINUTE)?;
    for word in [
        "wrote and verified",
        "random read",
        "random write",
        "--clean",
    ] {
        ensure!(said.contains(word), "{word:?} is not in {said}");
    }
    let device = said.lines().find(|l| l.starts_with("nbd+unix:"));
    let device = device.context("no device")?.to_owned();
    // Again: the same disk, which is not written to.
    let said = desk.run(&quick)?;
    ensure!(
        said.contains(&device) && !said.contains("random write"),
        "{said}"
    );
    // It goes on after its cluster, or its daemon, was killed.
    desk.kill(desk.pid(&dir.join("cluster"))?)?;
    let said = desk.run(&quick)?;
    ensure!(said.contains(&device), "{said}");
    ensure!(desk.run(&clean)?.contains("removed"));
    ensure!(!dir.exists());
    desk.nothing_runs()?;

    // Others' directories.
    let theirs = desk.path("theirs");
    fs::create_dir(&theirs)?;
    fs::write(theirs.join("letter"), "kept")?;
    let words = [text(&theirs), "quickstart has made"];
    desk.refused(&["quickstart", "--dir", text(&theirs)], &words)?;
    desk.refused(&["quickstart", "--dir", text(&theirs), "--clean"], &words)?;
    ensure!(fs::read_to_string(theirs.join("letter"))? == "kept");
    let file = theirs.join("letter").join("q");
    desk.refused(&["quickstart", "--dir", text(&file)], &[text(&file)])?;
    desk.refused(&["quickstart", "--dir", "/proc/self/q"], &["/proc/self/q"])?;
    let long = desk.path(&"x".repeat(80));
    desk.refused(&["quickstart", "--dir", text(&long)], &["too long"])
}

/// Whenever quickstart is killed, the next one goes on, and cleaning up leaves nothing.
#[test]
fn quickstart_killed_and_run_again() -> Result<()> {
    let desk = Desk::new()?;
    for (n, millis) in [5u64, 40, 150, 300, 600, 1200].into_iter().enumerate() {
        let dir = desk.path(&format!("q{n}"));
        let quick = ["quickstart", "--dir", text(&dir), "--runtime", "1"];
        let clean = ["quickstart", "--dir", text(&dir), "--clean"];
        let mut command = desk.command(&quick)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Process::spawn(command)?;
        std::thread::sleep(Duration::from_millis(millis));
        process.signal(Signal::SIGKILL)?;
        process.wait(MINUTE)?;
        if n % 2 == 0 {
            desk.run(&quick)
                .with_context(|| format!("killed after {millis} ms"))?;
        }
        desk.run(&clean)
            .with_context(|| format!("killed after {millis} ms, then cleaned up"))?;
        ensure!(!dir.exists());
        desk.nothing_runs()?;
    }
    Ok(())
}
