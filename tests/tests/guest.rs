//! The guest itself, and devices of its kernel on our server and on real Ceph: the kernel's NBD client
//! on `ublk-rbd map`, and krbd, an RBD client that has nothing in common with us.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::ceph::{Client, Cluster, Version};
use harness::disk::{self, Fs, NbdDevice};
use harness::guest::{Driver, Guest};
use harness::product::{Product, Server, client, text};
use harness::tools::{self, Output, sha256_file, write_pattern};
use harness::{Need, require};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);

/// What the object map and the rest of `rbd create`'s defaults keep krbd busy with.
const FEATURES: &str = "layering,exclusive-lock,object-map,fast-diff,deep-flatten";

fn guest(options: &[&str], script: &str) -> Result<Output> {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/guest/run"));
    command.args(options).args(["--", "bash", "-c", script]);
    tools::output(command, 5 * MINUTE)
}

#[test]
fn a_command_runs_apart_from_the_host() -> Result<()> {
    if !require(&[Need::Guest]) {
        return Ok(());
    }
    let shared = tempfile::Builder::new().prefix("ug.").tempdir_in("/tmp")?;
    let dir = text(shared.path());
    fs::write(shared.path().join("there"), "to be read\n")?;
    let script = "\
        cat there && echo \"$WORDS\" && echo complaint >&2
        touch /etc/of-the-guest && echo written >back
        ls /dev/ublk-control /dev/nbd0 /dev/mapper/control
        seq 100000
        exit 42";
    let out = guest(&["--share", dir, "--env", "WORDS=a  'b' $c"], script)?;
    let said = out.stdout_str();
    ensure!(out.status.code() == Some(42), "{out:?}");
    ensure!(said.starts_with("to be read\na  'b' $c\n/dev/"), "{said}");
    ensure!(out.stderr_str().contains("complaint\n"), "{out:?}");
    // All of what was written last arrives, however fast the guest is turned off.
    ensure!(said.ends_with("\n99999\n100000\n"), "{said}");
    ensure!(fs::read_to_string(shared.path().join("back"))? == "written\n");
    ensure!(!Path::new("/etc/of-the-guest").exists());
    Ok(())
}

#[test]
fn a_guest_that_hangs_or_dies_is_told_from_one_that_fails() -> Result<()> {
    if !require(&[Need::Guest]) {
        return Ok(());
    }
    let started = Instant::now();
    let out = guest(&["--timeout", "5"], "echo on; sleep 1000")?;
    ensure!(out.status.code() == Some(124), "{out:?}");
    ensure!(out.stdout_str() == "on\n", "{out:?}");
    ensure!(out.stderr_str().contains("not ended within 5 s"), "{out:?}");
    ensure!(started.elapsed() < MINUTE);

    let out = guest(&[], "echo c >/proc/sysrq-trigger")?;
    ensure!(out.status.code() == Some(125), "{out:?}");
    let said = out.stderr_str();
    ensure!(said.contains("sysrq triggered crash"), "{said}");
    ensure!(said.contains("the guest has died"), "{said}");
    Ok(())
}

/// Debian's stock kernel in emulation, which takes half a minute to boot and halt.
#[test]
fn a_stock_kernel_has_the_driver() -> Result<()> {
    if !require(&[Need::EmulatedGuest]) {
        return Ok(());
    }
    let script = "modprobe ublk_drv && test -c /dev/ublk-control && uname -r";
    let out = guest(&["--engine", "tcg", "--timeout", "240"], script)?;
    ensure!(out.status.success(), "{out:?}");
    ensure!(out.stdout_str().starts_with("6.12."), "{out:?}");
    Ok(())
}

/// A directory for files, seen by Ceph's programs of every version.
fn scratch() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("ug.").tempdir_in("/tmp")?)
}

#[test]
fn file_systems_on_nbd() -> Result<()> {
    let tools = [Need::Ceph(Version::V18), NbdDevice::NEED];
    let guest = Guest::with(&[Driver::Nbd]).needs(&tools).needs(&Fs::NEEDS);
    guest.run(|| {
        let server = Server::start(&["--memory"])?;
        let product = Product::with_conf(server.conf_path())?;
        let scratch = scratch()?;
        product.run(["image", "create", "--size", "512M", "rbd/disk"])?;
        let mapped = product.map("rbd/disk", &[])?;
        let device = NbdDevice::connect(&mapped)?;
        for fs in Fs::ALL {
            fs.exercise(&device.path, scratch.path())?;
        }
        let ceph = server.client(Version::V18)?;
        disk::same_for_librbd(&ceph, "rbd/disk", &device.path, scratch.path())?;
        // In use it is not detached.
        let why = product.refused(["unmap", "rbd/disk"])?;
        ensure!(why.contains("connected"), "{why}");
        device.disconnect()?;
        product.unmap("rbd/disk")
    })
}

/// An image that krbd has mapped. Dropped, it is unmapped.
struct Krbd<'a> {
    client: &'a Client,
    device: PathBuf,
}

impl<'a> Krbd<'a> {
    /// Without udevd, nobody would tell `rbd map` that the device is there.
    fn map(client: &'a Client, image: &str, options: &str) -> Result<Krbd<'a>> {
        let printed = client.run(["rbd", "map", "-o", options, image])?;
        let device = PathBuf::from(printed.trim_end());
        ensure!(device.exists(), "rbd map printed {printed}");
        Ok(Krbd { client, device })
    }

    fn unmap(self) -> Result<()> {
        let device = self.device.clone();
        drop(self);
        ensure!(!device.exists(), "{} is still there", device.display());
        Ok(())
    }
}

impl Drop for Krbd<'_> {
    fn drop(&mut self) {
        let _ = self.client.run(["rbd", "unmap", text(&self.device)]);
    }
}

fn fio(device: &Path) -> Result<()> {
    let filename = format!("--filename={}", device.display());
    let args = [
        "--ioengine=libaio",
        "--direct=1",
        &filename,
        "--rw=randrw",
        "--bssplit=4k/60:64k/30:1m/10",
        "--iodepth=16",
        "--size=32M",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--randseed=7",
    ];
    client::fio(&args, &[], 2 * MINUTE).map(drop)
}

/// What people do with krbd, on the cluster of `client`.
fn krbd(client: &Client, modes: &[&str]) -> Result<()> {
    let scratch = scratch()?;
    let rbd = |argv: &[&str]| client.run(["rbd"].iter().chain(argv));
    rbd(&[
        "create",
        "--size",
        "512M",
        "--image-feature",
        FEATURES,
        "rbd/disk",
    ])?;
    for mode in modes {
        let options = format!("ms_mode={mode}");
        let mapped = Krbd::map(client, "rbd/disk", &options)?;
        fio(&mapped.device)?;
        mapped.unmap()?;
    }
    let options = format!("ms_mode={}", modes[0]);
    let mapped = Krbd::map(client, "rbd/disk", &options)?;
    let device = mapped.device.clone();
    for fs in Fs::ALL {
        fs.exercise(&device, scratch.path())?;
    }
    disk::same_for_librbd(client, "rbd/disk", &device, scratch.path())?;
    rbd(&["object-map", "check", "--no-progress", "rbd/disk"])?;

    // The watch of the header tells it of a new size and of a snapshot.
    rbd(&["resize", "--no-progress", "--size", "640M", "rbd/disk"])?;
    tools::wait_for("the new size", MINUTE, || {
        Ok(disk::attribute(&device, "size")? * 512 == 640 * MIB)
    })?;
    let file = scratch.path().join("pattern");
    let before = write_pattern(&file, 16, 3)?;
    let copy = || -> Result<()> {
        let mut dd = Command::new("dd");
        dd.args(["bs=1M", "seek=600", "oflag=direct", "status=none"]);
        dd.args([
            format!("if={}", text(&file)),
            format!("of={}", text(&device)),
        ]);
        tools::run(dd, MINUTE).map(drop)
    };
    copy()?;
    rbd(&["snap", "create", "--no-progress", "rbd/disk@kept"])?;
    write_pattern(&file, 16, 4)?;
    copy()?;
    disk::same_for_librbd(client, "rbd/disk", &device, scratch.path())?;

    let kept = Krbd::map(client, "rbd/disk@kept", &options)?;
    disk::same_for_librbd(client, "rbd/disk@kept", &kept.device, scratch.path())?;
    let mut dd = Command::new("dd");
    dd.args(["bs=1M", "skip=600", "count=16", "status=none"]);
    dd.args([
        format!("if={}", text(&kept.device)),
        format!("of={}", text(&file)),
    ]);
    tools::run(dd, MINUTE)?;
    ensure!(sha256_file(&file)? == before, "the snapshot has changed");
    kept.unmap()?;

    // A clone is written to over its parent.
    rbd(&["snap", "protect", "rbd/disk@kept"])?;
    rbd(&[
        "clone",
        "--image-feature",
        FEATURES,
        "rbd/disk@kept",
        "rbd/clone",
    ])?;
    let clone = Krbd::map(client, "rbd/clone", &options)?;
    fio(&clone.device)?;
    Fs::Ext4.exercise(&clone.device, scratch.path())?;
    disk::same_for_librbd(client, "rbd/clone", &clone.device, scratch.path())?;
    clone.unmap()?;
    mapped.unmap()?;
    let status = rbd(&["status", "rbd/disk"])?;
    ensure!(status.contains("Watchers: none"), "{status}");
    let locks = rbd(&["lock", "ls", "rbd/disk"])?;
    ensure!(locks.trim().is_empty(), "{locks}");
    Ok(())
}

fn krbd_guest(version: Version) -> Guest {
    Guest::with(&[Driver::Rbd])
        .needs(&[Need::Ceph(version), Need::FIO])
        .needs(&Fs::NEEDS)
        .memory_mib(4096)
        .udev()
}

#[test]
fn krbd_on_real_ceph() -> Result<()> {
    krbd_guest(Version::V18).run(|| {
        let cluster = Cluster::builder().version(Version::V18).start()?;
        let client = Client::new(Version::V18, &cluster.conf_path())?;
        krbd(&client, &["crc", "secure"])
    })
}

fn copy_to(file: &Path, device: &Path) -> Result<()> {
    let mut dd = Command::new("dd");
    dd.args(["bs=1M", "oflag=direct", "status=none"]);
    dd.args([format!("if={}", text(file)), format!("of={}", text(device))]);
    tools::run(dd, MINUTE).map(drop)
}

/// Two clients of one image, without a lock, taking turns.
#[test]
fn krbd_and_ours_read_what_the_other_has_written() -> Result<()> {
    let guest = Guest::with(&[Driver::Rbd, Driver::Nbd])
        .needs(&[Need::Ceph(Version::V20), NbdDevice::NEED])
        .memory_mib(4096)
        .udev();
    guest.run(|| {
        let cluster = Cluster::builder().version(Version::V20).osds(2).start()?;
        let ceph = Client::new(Version::V20, &cluster.conf_path())?;
        let create = [
            "rbd",
            "create",
            "--size",
            "40M",
            "--image-feature",
            "layering",
        ];
        ceph.run(create.iter().chain(&["rbd/disk"]))?;
        let product = Product::new(&cluster)?;
        let ours = NbdDevice::connect(&product.map("rbd/disk", &[])?)?;
        let theirs = Krbd::map(&ceph, "rbd/disk", "ms_mode=secure")?;
        let scratch = scratch()?;
        let file = scratch.path().join("pattern");
        for (seed, writer, reader) in [
            (5, &theirs.device, &ours.path),
            (6, &ours.path, &theirs.device),
            (7, &theirs.device, &ours.path),
        ] {
            let sum = write_pattern(&file, 40, seed)?;
            copy_to(&file, writer)?;
            disk::forget_cached(reader)?;
            ensure!(
                sha256_file(reader)? == sum,
                "{} reads other bytes than {} has written",
                reader.display(),
                writer.display()
            );
        }
        let mut discard = Command::new("blkdiscard");
        discard.args(["--offset", "4M", "--length", "8M"]);
        discard.arg(&ours.path);
        tools::run(discard, MINUTE)?;
        for device in [&ours.path, &theirs.device] {
            disk::forget_cached(device)?;
        }
        ensure!(
            sha256_file(&ours.path)? == sha256_file(&theirs.device)?,
            "a discard of ours is not seen by krbd"
        );
        theirs.unmap()?;
        ours.disconnect()?;
        product.unmap("rbd/disk")
    })
}

#[test]
fn krbd_on_our_server() -> Result<()> {
    krbd_guest(Version::V18).run(|| {
        let server = Server::start(&["--memory", "--osds", "2"])?;
        krbd(&server.client(Version::V18)?, &["crc", "secure"])
    })
}

#[test]
fn krbd_on_our_server_without_authentication() -> Result<()> {
    krbd_guest(Version::V18).run(|| {
        let server = Server::start(&["--memory", "--auth", "none"])?;
        let client = server.client(Version::V18)?;
        client.run(["rbd", "create", "--size", "64M", "rbd/disk"])?;
        let mapped = Krbd::map(&client, "rbd/disk", "ms_mode=crc").context("mapping")?;
        fio(&mapped.device)?;
        mapped.unmap()
    })
}
