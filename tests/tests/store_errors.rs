//! The server's store where it cannot do its work: on a full disk, on one that fails, and in
//! directories that are not for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::conf::{Conf, Environment, Options};
use cluster::objecter::{Access, ObjectOp, SnapContext};
use cluster::payload::Payload;
use cluster::rados::{IoCtx, Rados, RadosError};
use cluster::rbd::cls::NO_SNAP;
use harness::product::{Server, binary, text};
use harness::tools::{self, Process};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use tokio::task::LocalSet;

const LIMIT: Duration = Duration::from_secs(60);
const ENOSPC: i32 = 28;
const OBJECT: usize = 4 << 20;

/// A small file system in memory.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` where one may not mount.
    fn new(mib: u64) -> Result<Option<SmallDisk>> {
        let dir = tempfile::Builder::new().prefix("ud.").tempdir_in("/tmp")?;
        let size = format!("size={mib}m");
        let mounted = mount(
            Some("tmpfs"),
            dir.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some(&size[..]),
        );
        match mounted {
            Ok(()) => Ok(Some(SmallDisk(dir))),
            Err(nix::Error::EPERM) => {
                eprintln!("skipped: mounting is not permitted");
                Ok(None)
            }
            Err(e) => Err(e).context("mount a tmpfs"),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// A server with its directory where we want it, whose messages are kept.
struct Daemon {
    process: Process,
    dir: PathBuf,
    log: PathBuf,
}

impl Daemon {
    fn start(dir: &Path, log: &Path, listen: &[&str]) -> Result<Daemon> {
        let mut command = Command::new(binary()?);
        command.args(["cluster", "start", "--foreground", "--osds", "1"]);
        command.args(["--dir", text(dir)]).args(listen);
        let messages = fs::File::options().create(true).append(true).open(log)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(messages);
        let mut process = Process::spawn(command)?;
        let mut said = String::new();
        BufReader::new(process.take_stdout().context("no pipe")?).read_line(&mut said)?;
        ensure!(!said.is_empty(), "no start: {}", fs::read_to_string(log)?);
        Ok(Daemon {
            process,
            dir: dir.to_owned(),
            log: log.to_owned(),
        })
    }

    fn kill_and_restart(mut self) -> Result<Daemon> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait(LIMIT)?;
        Daemon::start(&self.dir, &self.log, &[])
    }

    async fn connect(&self) -> Result<Rados> {
        let conf = Conf::load(&Options {
            conf: Some(text(&self.dir.join("ceph.conf")).to_owned()),
            env: Environment::of_process(),
            ..Options::default()
        })?;
        Ok(cluster::transport::tokio::connect(&conf).await?)
    }
}

fn content(n: usize) -> Vec<u8> {
    let word = (n as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_le_bytes();
    word.into_iter().cycle().take(OBJECT).collect()
}

async fn write(io: &IoCtx, n: usize) -> Result<(), RadosError> {
    let ops = ObjectOp::new().write_full(Payload::from(content(n)));
    let access = Access::Write(std::rc::Rc::new(SnapContext::default()));
    let target = io.target(&format!("o{n}"));
    io.rados().operate(target, ops, access).await.map(drop)
}

async fn check(io: &IoCtx, n: usize) -> Result<()> {
    let ops = ObjectOp::new().read(0, OBJECT as u64 + 1);
    let target = io.target(&format!("o{n}"));
    let mut read = io
        .rados()
        .operate(target, ops, Access::Read(NO_SNAP))
        .await?;
    let data = read.parts.pop().unwrap_or_default().1;
    ensure!(data == content(n), "o{n} is not what was acknowledged");
    Ok(())
}

fn run(test: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() -> Result<()> {
    let Some(disk) = SmallDisk::new(900)? else {
        return Ok(());
    };
    let scratch = tempfile::tempdir()?;
    let dir = disk.0.path().join("cluster");
    run(async {
        let listen = ["--listen", "127.0.0.1:0"];
        let daemon = Daemon::start(&dir, &scratch.path().join("log"), &listen)?;
        let rados = daemon.connect().await?;
        let io = rados.io_ctx("rbd", "").await?;
        let mut there = Vec::new();
        let mut refused = false;
        for n in 0..400 {
            match write(&io, n).await {
                Ok(()) => there.push(n),
                Err(RadosError::Errno(ENOSPC)) => {
                    refused = true;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        ensure!(refused && there.len() > 8, "{} written", there.len());
        for n in &there {
            check(&io, *n).await?;
        }
        // Removing makes room, once a checkpoint has let go of the files.
        let rest = there.split_off(there.len() / 2);
        for n in rest {
            io.remove(&format!("o{n}")).await?;
        }
        let since = Instant::now();
        loop {
            match write(&io, 1000).await {
                Ok(()) => break,
                Err(RadosError::Errno(ENOSPC)) if since.elapsed() < LIMIT => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(e) => return Err(e.into()),
            }
        }
        there.push(1000);
        let daemon = daemon.kill_and_restart()?;
        for n in &there {
            check(&io, *n).await?;
        }
        println!(
            "{} objects, room again after {:?}",
            there.len(),
            since.elapsed()
        );
        rados.shutdown().await;
        drop(daemon);
        Ok(())
    })
}

#[test]
fn a_disk_that_somebody_else_has_filled_is_read_and_written_again_when_there_is_room() -> Result<()>
{
    let Some(disk) = SmallDisk::new(900)? else {
        return Ok(());
    };
    let scratch = tempfile::tempdir()?;
    let (dir, log) = (disk.0.path().join("cluster"), scratch.path().join("log"));
    run(async {
        let daemon = Daemon::start(&dir, &log, &["--listen", "127.0.0.1:0"])?;
        let rados = daemon.connect().await?;
        let io = rados.io_ctx("rbd", "").await?;
        for n in 0..10 {
            write(&io, n).await?;
        }
        // Somebody else takes all that is left, against which the store's reserve is no help.
        let hog = disk.0.path().join("hog");
        let mut file = fs::File::create(&hog)?;
        let zeros = vec![0; 1 << 20];
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
        drop(file);
        // The first may be taken before the store has noticed; it stays in the journal then.
        let mut n = 10;
        loop {
            match tokio::time::timeout(LIMIT, write(&io, n)).await? {
                Ok(()) => n += 1,
                Err(RadosError::Errno(ENOSPC)) => break,
                Err(e) => return Err(e.into()),
            }
        }
        // What needs no room is taken, and waits for a checkpoint that finds none.
        let since = Instant::now();
        let mut touched = 0;
        loop {
            touch(&io, touched).await?;
            touched += 1;
            if fs::read_to_string(&log)?.contains("takes no more writes") {
                break;
            }
            ensure!(since.elapsed() < LIMIT, "the store has not noticed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for n in 0..n {
            check(&io, n).await?;
        }
        fs::remove_file(&hog)?;
        let freed = Instant::now();
        while let Err(e) = write(&io, n).await {
            ensure!(freed.elapsed() < LIMIT, "{e}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let again = freed.elapsed();
        while !fs::read_to_string(&log)?.contains("takes writes again") {
            ensure!(freed.elapsed() < LIMIT, "the store has said nothing");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let said = fs::read_to_string(&log)?;
        ensure!(!said.contains("stops: "), "{said}");
        let daemon = daemon.kill_and_restart()?;
        for n in 0..=n {
            check(&io, n).await?;
        }
        for n in 0..touched {
            let target = io.target(&format!("touched{n}"));
            let stat = ObjectOp::new().stat();
            io.rados()
                .operate(target, stat, Access::Read(NO_SNAP))
                .await?;
        }
        println!("{touched} objects made without room, room again after {again:?}");
        rados.shutdown().await;
        drop(daemon);
        Ok(())
    })
}

/// Changes metadata without adding any: the store takes such requests on a full disk, too.
async fn touch(io: &IoCtx, n: usize) -> Result<(), RadosError> {
    let ops = ObjectOp::new().create(false);
    let access = Access::Write(std::rc::Rc::new(SnapContext::default()));
    let target = io.target(&format!("touched{n}"));
    io.rados().operate(target, ops, access).await.map(drop)
}

/// What `cluster start` says where it must fail, which is one line.
fn refusal(dir: &Path) -> Result<String> {
    let mut command = Command::new(binary()?);
    command.args(["cluster", "start", "--foreground", "--dir", text(dir)]);
    let out = tools::output(command, LIMIT)?;
    let said = out.stderr_str();
    ensure!(out.status.code() == Some(1), "{}: {said}", out.status);
    ensure!(out.stdout.is_empty(), "{}", out.stdout_str());
    let why = said.strip_prefix("ublk-rbd: ").unwrap_or_default();
    ensure!(why.trim_end().lines().count() == 1, "{said:?}");
    println!("{why}");
    Ok(why.to_owned())
}

#[test]
fn a_directory_that_is_not_for_us_is_refused_in_one_line() -> Result<()> {
    let mut server = Server::start(&["--osds", "1"])?;
    let dir = server.dir();
    ensure!(refusal(&dir)?.contains("runs in"), "in use");
    server.stop()?;

    let spoil = |path: &str, bytes: &[u8], expected: &str| -> Result<()> {
        let path = dir.join(path);
        let kept = fs::read(&path).with_context(|| format!("{}", path.display()))?;
        fs::write(&path, bytes)?;
        let said = refusal(&dir)?;
        ensure!(said.contains(expected), "{}: {said}", path.display());
        Ok(fs::write(&path, kept)?)
    };
    spoil("osd/format", b"ublk-rbd store 7\n", "format 7")?;
    spoil("osd/format", b"\x00\xffsomething", "not a store")?;
    spoil("osd/meta.redb", &[0xee; 100_000], "")?;
    spoil("osd/meta.redb", b"", "")?;
    spoil("cluster.json", b"{", "damaged")?;
    // Nothing of that has done any harm.
    server.restart()?;
    server.stop()?;

    let other = tempfile::tempdir()?;
    fs::write(other.path().join("letter.txt"), "dear")?;
    ensure!(
        refusal(other.path())?.contains("holds no cluster"),
        "somebody's letters"
    );
    ensure!(
        fs::read_dir(other.path())?.count() == 1,
        "it left something"
    );
    Ok(())
}
