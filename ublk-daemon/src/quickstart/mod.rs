//! `ublk-rbd quickstart`: a disk from nothing, by the commands that a user would type.
//!
//! Every step runs this program again and is printed, so that what it shows can be done by hand.

mod block;
mod load;
mod nbd;

use std::io::IsTerminal;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use crate::cli::QuickstartArgs;
use crate::run_dir::RunDir;
use load::{Client, Job, Kind, Row};

const POOL: &str = "rbd";
const IMAGE: &str = "quickstart";
/// What is written and verified; the rest of the image is for the user.
const VERIFIED: u64 = 64 << 20;
/// Longest path of the directory: unix sockets have names in it.
const MAX_DIR: usize = 70;
/// How long a cluster may take to start or to give up, and how often that is looked at.
const STARTING: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(50);

/// Sets everything up and shows the disk, or removes it all.
pub fn run(args: &QuickstartArgs) -> Result<()> {
    let home = Home::new(args.dir.as_deref())?;
    if args.clean {
        return home.clean();
    }
    let made = home.prepare()?;
    let shown = home.show(args);
    if shown.is_err() && made {
        // Nothing half made: what this run has begun goes away with its error.
        let _ = home.undo();
    }
    shown
}

/// The directory with all that quickstart makes.
struct Home {
    dir: PathBuf,
    program: PathBuf,
}

impl Home {
    fn new(given: Option<&Path>) -> Result<Home> {
        let dir = match given {
            Some(dir) => std::path::absolute(dir)?,
            None => format!("/var/tmp/ublk-rbd-quickstart-{}", nix::unistd::geteuid()).into(),
        };
        if dir.as_os_str().len() > MAX_DIR {
            let shown = dir.display();
            bail!("{shown} is too long for the unix sockets in it: name another with --dir");
        }
        Ok(Home {
            dir,
            program: std::env::current_exe().context("cannot find this program's own file")?,
        })
    }

    fn cluster(&self) -> PathBuf {
        self.dir.join("cluster")
    }

    fn conf(&self) -> PathBuf {
        self.cluster().join("ceph.conf")
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// The mark of a directory that quickstart may remove.
    fn mark(&self) -> PathBuf {
        self.dir.join("made-by-quickstart")
    }

    /// Makes the directory, or finds the one of an earlier run. Returns whether it made it.
    fn prepare(&self) -> Result<bool> {
        let shown = self.dir.display();
        if let Ok(meta) = std::fs::symlink_metadata(&self.dir) {
            let ours = meta.is_dir() && meta.uid() == nix::unistd::geteuid().as_raw();
            ensure!(
                ours && self.mark().exists(),
                "{shown} is not a directory that quickstart has made: name another with --dir"
            );
            return Ok(false);
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .with_context(|| format!("cannot create {shown}"))?;
        std::fs::write(self.mark(), "").with_context(|| format!("cannot write to {shown}"))?;
        Ok(true)
    }

    fn show(&self, args: &QuickstartArgs) -> Result<()> {
        let cluster = self.cluster();
        let cluster = cluster.display().to_string();
        if self
            .answer(&["cluster", "status", "--dir", &cluster])
            .is_err()
        {
            let memory: &[&str] = if args.memory { &["--memory"] } else { &[] };
            let mut start = vec!["cluster", "start", "--dir", &cluster];
            // One that is there comes back where its disks look for it.
            if !self.has_files()? {
                self.detach()?;
                start.extend(["--listen", "127.0.0.1:0"]);
            }
            self.step(&[&start[..], memory].concat())?;
        }
        let image = format!("{POOL}/{IMAGE}");
        let new = !self.images()?.iter().any(|name| name == IMAGE);
        if new {
            self.step(&["image", "create", "--size", "1G", &image])?;
        }
        let device = match self.device()? {
            Some(device) => device,
            None if has_ublk() => self.step(&["map", &image])?,
            None => self.step(&["map", "--frontend", "nbd", &image])?,
        };
        println!("{device}");
        self.measure(args, &device, new)?;
        let filesystem = new && device.starts_with("/dev/") && self.make_filesystem(&device)?;
        self.farewell(&device, filesystem)
    }

    /// Where there is a program for it. What the measurements wrote is overwritten.
    fn make_filesystem(&self, device: &str) -> Result<bool> {
        let args = ["-q", "-F", device];
        let made = Command::new("mkfs.ext4")
            .args(args)
            .stdin(Stdio::null())
            .output();
        match made {
            Ok(out) if out.status.success() => {
                println!("$ mkfs.ext4 {}", args.join(" "));
                Ok(true)
            }
            Ok(out) => {
                let said = String::from_utf8_lossy(&out.stderr);
                bail!(
                    "mkfs.ext4 fails: {}",
                    said.lines().last().unwrap_or_default()
                )
            }
            Err(_) => Ok(false),
        }
    }

    fn measure(&self, args: &QuickstartArgs, device: &str, new: bool) -> Result<()> {
        let mut disk = Client::open(device)?;
        let mut rows = Vec::new();
        if new {
            let bar = bar("write and verify");
            rows.extend(load::write_and_verify(&mut disk, VERIFIED, &bar)?);
            bar.finish_and_clear();
            println!("wrote and verified {} MiB", VERIFIED >> 20);
        }
        let mut jobs = vec![
            Job::random("random read", Kind::Read, 1),
            Job::random("random read", Kind::Read, 32),
        ];
        // What an earlier run has left in the image is the user's.
        if new {
            jobs.push(Job::random("random write", Kind::Write, 32));
        }
        for job in jobs {
            let bar = bar(job.name);
            rows.push(load::run(&mut disk, &job, VERIFIED, args.runtime, &bar)?);
            bar.finish_and_clear();
        }
        disk.close();
        print_rows(&rows);
        Ok(())
    }

    fn farewell(&self, device: &str, filesystem: bool) -> Result<()> {
        let env = self.dir.join("env");
        let bin = self.program.parent().unwrap_or(Path::new("/"));
        let text = format!(
            "export CEPH_CONF={}\nexport UBLK_RBD_RUN_DIR={}\nPATH={}:$PATH\n",
            self.conf().display(),
            self.run_dir().display(),
            bin.display()
        );
        std::fs::write(&env, text).with_context(|| format!("cannot write {}", env.display()))?;
        let dir = match self.dir == Home::new(None)?.dir {
            true => String::new(),
            false => format!(" --dir {}", self.dir.display()),
        };
        println!(
            "go on:   . {}; ublk-rbd image create --size 10G {POOL}/disk2; ublk-rbd map {POOL}/disk2",
            env.display()
        );
        let hint = match (device.starts_with("/dev/"), filesystem) {
            (true, true) => format!("mount {device} /mnt   (umount it before the end)"),
            (true, false) => {
                format!("mkfs.ext4 {device}   (or fio, LVM, a VM: docs/user-guide.md)")
            }
            (false, _) => format!(
                "qemu-img info '{device}'   (or nbdinfo, nbd-client, fio: docs/user-guide.md)"
            ),
        };
        println!("use it:  {hint}");
        println!(
            "stop:    {} quickstart --clean{dir}",
            self.program.display()
        );
        Ok(())
    }

    /// Runs a command of this program that is part of the show: prints it, and returns its line.
    fn step(&self, args: &[&str]) -> Result<String> {
        println!("$ ublk-rbd {}", args.join(" "));
        self.answer(args)
    }

    fn answer(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        for name in ["CEPH_ARGS", "CEPH_KEYRING"] {
            command.env_remove(name);
        }
        let out = command
            .env("CEPH_CONF", self.conf())
            .arg("--run-dir")
            .arg(self.run_dir())
            .args(args)
            .stdin(Stdio::null())
            .output()
            .context("cannot run this program again")?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            let last = said.lines().last().unwrap_or_default();
            bail!("{}", last.strip_prefix("ublk-rbd: ").unwrap_or(last));
        }
        Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned())
    }

    fn images(&self) -> Result<Vec<String>> {
        let said = self.answer(&["--format", "json", "image", "ls", POOL])?;
        serde_json::from_str(&said).with_context(|| format!("image ls says {said}"))
    }

    /// What the image is attached as, where it is.
    fn device(&self) -> Result<Option<String>> {
        let said = self.answer(&["--format", "json", "list"])?;
        let disks: Value =
            serde_json::from_str(&said).with_context(|| format!("list says {said}"))?;
        let mut disks = disks.as_array().into_iter().flatten();
        let device = disks.find_map(|disk| {
            let ours = disk["pool"] == POOL && disk["image"] == IMAGE && disk["snap"].is_null();
            disk["device"].as_str().filter(|_| ours)
        });
        Ok(device.map(str::to_owned))
    }

    fn clean(&self) -> Result<()> {
        let shown = self.dir.display();
        if !self.dir.exists() {
            println!("there is nothing at {shown}");
            return Ok(());
        }
        ensure!(
            self.mark().exists(),
            "{shown} is not a directory that quickstart has made"
        );
        self.undo()?;
        println!("removed {shown}");
        Ok(())
    }

    /// Whether there is a cluster that keeps its objects when it is down.
    fn has_files(&self) -> Result<bool> {
        let path = self.cluster().join("cluster.json");
        match std::fs::read(&path) {
            Ok(text) => {
                let found: Value = serde_json::from_slice(&text).unwrap_or_default();
                Ok(found["memory"] == false)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Detaches what is attached, whether or not its cluster is still there.
    fn detach(&self) -> Result<()> {
        if self.run_dir().join("control.sock").exists() {
            let said = self.answer(&["--format", "json", "list"])?;
            let disks: Value = serde_json::from_str(&said).unwrap_or_default();
            for disk in disks.as_array().into_iter().flatten() {
                self.answer(&["unmap", "--force", &disk["id"].to_string()])?;
            }
        }
        Ok(())
    }

    /// Detaches, ends the cluster and removes the directory, in whatever state it is.
    fn undo(&self) -> Result<()> {
        self.detach()?;
        let cluster = self.cluster();
        let cluster = cluster.display().to_string();
        let end = Instant::now() + STARTING;
        loop {
            let status = self.answer(&["cluster", "status", "--dir", &cluster]);
            if status.is_ok() {
                self.answer(&["cluster", "stop", "--dir", &cluster])?;
            }
            // A run that was killed may have left a cluster that is about to start.
            let late = Instant::now() >= end;
            if self.is_starting() && !late {
                std::thread::sleep(AGAIN);
                continue;
            }
            match std::fs::remove_dir_all(&self.dir) {
                Ok(()) => return Ok(()),
                Err(e) if late => {
                    let shown = self.dir.display();
                    return Err(e).with_context(|| format!("cannot remove {shown}"));
                }
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// A process holds the cluster's directory.
    fn is_starting(&self) -> bool {
        let cluster = RunDir::new(Some(&self.cluster()));
        cluster.and_then(|dir| dir.is_locked()).unwrap_or(false)
    }
}

/// Whether a block device can be made.
fn has_ublk() -> bool {
    std::env::var_os("UBLK_RBD_FRONTEND").is_none_or(|f| f != "nbd")
        && nix::unistd::geteuid().is_root()
        && Path::new("/dev/ublk-control").exists()
}

fn bar(what: &'static str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(100), target).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{msg:20} [{bar:40}] {percent:>3}%") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

fn print_rows(rows: &[Row]) {
    println!(
        "{:<18} {:>5} {:>3} {:>9} {:>9} {:>9} {:>9}",
        "", "size", "qd", "IOPS", "MB/s", "p50 us", "p99 us"
    );
    for row in rows {
        println!(
            "{:<18} {:>5} {:>3} {:>9.0} {:>9.1} {:>9.0} {:>9.0}",
            row.name,
            crate::spec::human(row.size),
            row.qd,
            row.iops,
            row.bytes_per_s / 1e6,
            row.p50_us,
            row.p99_us
        );
    }
}
