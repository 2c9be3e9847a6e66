//! Real clients of Ceph on our single-node server: `rbd`, `rados`, `ceph`, fio's and QEMU's rbd
//! drivers, of each version at hand.
//!
//! With `UBLK_RBD_TEST_CONF` set to a ceph.conf the same runs against that cluster: what is expected
//! here is what real Ceph does.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ceph::{Client, Version};
use harness::product::{Server, text};
use harness::tools::{self, sha256_file, write_pattern};
use harness::{Need, require};
use serde_json::Value;
use tempfile::TempDir;

const MINUTE: Duration = Duration::from_secs(60);

/// A cluster, and a directory for files.
struct Rig {
    _server: Option<Server>,
    conf: PathBuf,
    scratch: TempDir,
}

impl Rig {
    fn start(options: &[&str]) -> Result<Rig> {
        let scratch = tempfile::Builder::new().prefix("ue.").tempdir_in("/tmp")?;
        if let Some(conf) = std::env::var_os("UBLK_RBD_TEST_CONF") {
            return Ok(Rig {
                _server: None,
                conf: conf.into(),
                scratch,
            });
        }
        let server = Server::start(options)?;
        Ok(Rig {
            conf: server.conf_path(),
            _server: Some(server),
            scratch,
        })
    }

    fn client(&self, version: Version) -> Result<Client> {
        Client::new(version, &self.conf)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

fn json(client: &Client, argv: &[&str]) -> Result<Value> {
    let argv = argv.iter().copied().chain(["--format", "json"]);
    let said = client.run(argv)?;
    serde_json::from_str(&said).with_context(|| format!("not JSON: {said}"))
}

/// What a command that must fail says, and its exit code.
fn refused(client: &Client, argv: &[&str]) -> Result<(i32, String)> {
    let out = client.output(argv, MINUTE)?;
    ensure!(!out.status.success(), "{argv:?} succeeds");
    Ok((out.status.code().unwrap_or(-1), out.stderr_str()))
}

fn sum_of(client: &Client, rig: &Rig, image: &str) -> Result<String> {
    let file = rig.file("exported");
    client.run(["rbd", "export", "--no-progress", image, text(&file)])?;
    let sum = sha256_file(&file)?;
    fs::remove_file(&file)?;
    Ok(sum)
}

fn import(client: &Client, rig: &Rig, image: &str, mib: u64, seed: u64) -> Result<String> {
    let file = rig.file("imported");
    let sum = write_pattern(&file, mib, seed)?;
    client.run(["rbd", "import", "--no-progress", text(&file), image])?;
    fs::remove_file(&file)?;
    Ok(sum)
}

/// Overwrites all of an image through librbd.
fn rewrite(client: &Client, image: &str, mib: u64) -> Result<()> {
    let total = format!("{mib}M");
    let mut argv = vec!["rbd", "bench", "--io-type", "write", "--io-size", "1M"];
    argv.extend(["--io-threads", "4", "--io-total", &total, image]);
    client.run(argv).map(drop)
}

fn rbd_commands(version: Version) -> Result<()> {
    if !require(&[Need::Ceph(version)]) {
        return Ok(());
    }
    let rig = Rig::start(&["--memory", "--osds", "2"])?;
    let c = rig.client(version)?;

    c.run(["rbd", "create", "--size", "64M", "rbd/plain"])?;
    let info = json(&c, &["rbd", "info", "rbd/plain"])?;
    ensure!(
        info["size"] == 64 << 20 && info["objects"] == 16 && info["order"] == 22,
        "{info}"
    );
    let (code, _) = refused(&c, &["rbd", "create", "--size", "64M", "rbd/plain"])?;
    ensure!(code == 17, "creating it again: exit code {code}");
    let (code, _) = refused(&c, &["rbd", "info", "rbd/absent"])?;
    ensure!(code == 2, "info of an absent image: exit code {code}");

    let first = import(&c, &rig, "rbd/a", 24, 1)?;
    ensure!(
        sum_of(&c, &rig, "rbd/a")? == first,
        "import and export differ"
    );
    let names = json(&c, &["rbd", "ls", "rbd"])?;
    ensure!(names == serde_json::json!(["a", "plain"]), "{names}");

    // Snapshots.
    c.run(["rbd", "snap", "create", "--no-progress", "rbd/a@one"])?;
    rewrite(&c, "rbd/a", 24)?;
    let second = sum_of(&c, &rig, "rbd/a")?;
    ensure!(second != first, "nothing was written");
    ensure!(
        sum_of(&c, &rig, "rbd/a@one")? == first,
        "the snapshot has changed"
    );
    c.run(["rbd", "snap", "create", "--no-progress", "rbd/a@two"])?;
    let snaps = json(&c, &["rbd", "snap", "ls", "rbd/a"])?;
    let listed: Vec<_> = snaps.as_array().context("no list")?.iter().collect();
    ensure!(
        listed.len() == 2 && listed[0]["name"] == "one" && listed[0]["size"] == 24 << 20,
        "{snaps}"
    );
    c.run(["rbd", "snap", "rollback", "--no-progress", "rbd/a@one"])?;
    ensure!(
        sum_of(&c, &rig, "rbd/a")? == first,
        "rollback brings other bytes"
    );
    ensure!(
        sum_of(&c, &rig, "rbd/a@two")? == second,
        "rollback has changed the newer snapshot"
    );
    c.run(["rbd", "snap", "protect", "rbd/a@two"])?;
    let (code, _) = refused(&c, &["rbd", "snap", "rm", "--no-progress", "rbd/a@two"])?;
    ensure!(
        code == 16,
        "removing a protected snapshot: exit code {code}"
    );
    let diff = json(&c, &["rbd", "diff", "--from-snap", "one", "rbd/a@two"])?;
    let changed: u64 = diff
        .as_array()
        .context("no list")?
        .iter()
        .filter_map(|extent| extent["length"].as_u64())
        .sum();
    ensure!(changed == 24 << 20, "rbd diff: {changed} bytes changed");

    // Clones.
    c.run(["rbd", "clone", "rbd/a@two", "rbd/child"])?;
    let info = json(&c, &["rbd", "info", "rbd/child"])?;
    ensure!(info["parent"]["image"] == "a", "{info}");
    ensure!(
        sum_of(&c, &rig, "rbd/child")? == second,
        "the clone differs"
    );
    rewrite(&c, "rbd/child", 8)?;
    let child = sum_of(&c, &rig, "rbd/child")?;
    let children = c.run(["rbd", "children", "rbd/a@two"])?;
    ensure!(children.trim() == "rbd/child", "children: {children}");
    let (code, _) = refused(&c, &["rbd", "snap", "unprotect", "rbd/a@two"])?;
    ensure!(code == 16, "unprotecting with a clone: exit code {code}");
    c.run(["rbd", "flatten", "--no-progress", "rbd/child"])?;
    ensure!(
        sum_of(&c, &rig, "rbd/child")? == child,
        "flatten has changed the clone"
    );
    ensure!(
        sum_of(&c, &rig, "rbd/a@two")? == second,
        "the clone has changed its parent"
    );
    c.run(["rbd", "snap", "unprotect", "rbd/a@two"])?;

    // The rest of an image's life.
    let du = json(&c, &["rbd", "du", "rbd/child"])?;
    ensure!(du["images"][0]["used_size"] == 24 << 20, "{du}");
    c.run(["rbd", "lock", "add", "rbd/plain", "mine"])?;
    let locks = c.run(["rbd", "lock", "ls", "rbd/plain"])?;
    ensure!(locks.contains("mine"), "lock ls: {locks}");
    let locks = json(&c, &["rbd", "lock", "ls", "rbd/plain"])?;
    let locker = locks[0]["locker"].as_str().context("no locker")?;
    c.run(["rbd", "lock", "rm", "rbd/plain", "mine", locker])?;
    let status = c.run(["rbd", "status", "rbd/plain"])?;
    ensure!(status.contains("Watchers: none"), "{status}");
    c.run([
        "rbd",
        "resize",
        "--no-progress",
        "--size",
        "100M",
        "rbd/plain",
    ])?;
    c.run([
        "rbd",
        "resize",
        "--no-progress",
        "--allow-shrink",
        "--size",
        "10M",
        "rbd/plain",
    ])?;
    c.run(["rbd", "image-meta", "set", "rbd/plain", "key", "value"])?;
    let value = c.run(["rbd", "image-meta", "get", "rbd/plain", "key"])?;
    ensure!(value.trim() == "value", "image-meta: {value}");
    c.run(["rbd", "rename", "rbd/plain", "rbd/other"])?;
    c.run(["rbd", "feature", "disable", "rbd/other", "fast-diff"])?;
    c.run(["rbd", "feature", "enable", "rbd/other", "fast-diff"])?;
    c.run(["rbd", "namespace", "create", "rbd/ns"])?;
    c.run(["rbd", "create", "--size", "8M", "rbd/ns/inside"])?;
    let names = json(&c, &["rbd", "ls", "rbd/ns"])?;
    ensure!(names == serde_json::json!(["inside"]), "{names}");
    c.run(["rbd", "trash", "mv", "rbd/other"])?;
    let trash = json(&c, &["rbd", "trash", "ls", "rbd"])?;
    let id = trash[0]["id"].as_str().context("no id in the trash")?;
    c.run(["rbd", "trash", "restore", "-p", "rbd", id])?;
    c.run(["rbd", "copy", "--no-progress", "rbd/a@two", "rbd/copied"])?;
    ensure!(
        sum_of(&c, &rig, "rbd/copied")? == second,
        "the copy differs"
    );
    c.run(["rbd", "deep", "copy", "--no-progress", "rbd/a", "rbd/deep"])?;
    ensure!(
        sum_of(&c, &rig, "rbd/deep@two")? == second,
        "the deep copy differs"
    );
    for image in ["rbd/a", "rbd/child", "rbd/deep"] {
        c.run(["rbd", "object-map", "check", "--no-progress", image])?;
    }
    for image in ["rbd/a", "rbd/deep"] {
        c.run(["rbd", "snap", "purge", "--no-progress", image])?;
    }
    for image in ["a", "child", "other", "ns/inside", "copied", "deep"] {
        let image = format!("rbd/{image}");
        c.run(["rbd", "rm", "--no-progress", &image])?;
    }
    c.run(["rbd", "namespace", "rm", "rbd/ns"])?;
    let names = json(&c, &["rbd", "ls", "rbd"])?;
    ensure!(names == serde_json::json!([]), "{names}");
    Ok(())
}

#[test]
fn rbd_16() -> Result<()> {
    rbd_commands(Version::V16)
}

#[test]
fn rbd_18() -> Result<()> {
    rbd_commands(Version::V18)
}

#[test]
fn rbd_20() -> Result<()> {
    rbd_commands(Version::V20)
}

fn rados_commands(version: Version) -> Result<()> {
    if !require(&[Need::Ceph(version)]) {
        return Ok(());
    }
    let rig = Rig::start(&["--memory", "--osds", "2"])?;
    let c = rig.client(version)?;
    c.run(["ceph", "osd", "pool", "create", "scratch", "8"])?;
    let pools = json(&c, &["ceph", "osd", "pool", "ls"])?;
    ensure!(
        pools
            .as_array()
            .is_some_and(|p| p.iter().any(|p| p == "scratch")),
        "{pools}"
    );
    let rados = |argv: &[&str]| c.run(["rados", "-p", "scratch"].iter().chain(argv));

    let (file, back) = (rig.file("put"), rig.file("got"));
    let sum = write_pattern(&file, 9, 5)?;
    rados(&["put", "object", text(&file)])?;
    rados(&["get", "object", text(&back)])?;
    ensure!(sha256_file(&back)? == sum, "rados get brings other bytes");
    let stat = rados(&["stat", "object"])?;
    ensure!(stat.contains("size 9437184"), "{stat}");

    rados(&["setxattr", "object", "colour", "green"])?;
    ensure!(
        rados(&["getxattr", "object", "colour"])?.trim() == "green",
        "getxattr"
    );
    rados(&["setomapval", "object", "key", "value"])?;
    rados(&["setomapval", "object", "other", "word"])?;
    let vals = rados(&["listomapvals", "object"])?;
    ensure!(
        vals.contains("key") && vals.contains("value (5 bytes)"),
        "{vals}"
    );
    rados(&["rmomapkey", "object", "other"])?;
    ensure!(
        rados(&["listomapkeys", "object"])? == "key\n",
        "listomapkeys"
    );

    for i in 0..40 {
        rados(&["create", &format!("many-{i}")])?;
    }
    let listed = rados(&["ls"])?;
    ensure!(listed.lines().count() == 41, "rados ls: {listed}");
    rados(&["-N", "ns", "put", "inside", text(&file)])?;
    ensure!(
        rados(&["-N", "ns", "ls"])? == "inside\n",
        "ls of a namespace"
    );
    ensure!(
        rados(&["--all", "ls"])?.lines().count() == 42,
        "ls of all namespaces"
    );

    // Snapshots of a pool.
    rados(&["mksnap", "first"])?;
    rados(&["truncate", "object", "4096"])?;
    rados(&["-s", "first", "get", "object", text(&back)])?;
    ensure!(sha256_file(&back)? == sum, "the snapshot has changed");
    let clones = rados(&["listsnaps", "object"])?;
    ensure!(clones.contains("9437184"), "{clones}");
    rados(&["rollback", "object", "first"])?;
    rados(&["get", "object", text(&back)])?;
    ensure!(sha256_file(&back)? == sum, "rollback brings other bytes");
    rados(&["rmsnap", "first"])?;

    rados(&["rm", "object"])?;
    let gone = c.output(["rados", "-p", "scratch", "stat", "object"], MINUTE)?;
    ensure!(!gone.status.success(), "a removed object is still there");

    let bench = rados(&[
        "bench",
        "3",
        "write",
        "-t",
        "16",
        "-b",
        "65536",
        "--no-cleanup",
    ])?;
    ensure!(bench.contains("Bandwidth (MB/sec)"), "{bench}");
    let bench = rados(&["bench", "3", "rand", "-t", "16"])?;
    ensure!(bench.contains("Average IOPS"), "{bench}");
    rados(&["cleanup"])?;
    Ok(())
}

#[test]
fn rados_16() -> Result<()> {
    rados_commands(Version::V16)
}

#[test]
fn rados_18() -> Result<()> {
    rados_commands(Version::V18)
}

#[test]
fn rados_20() -> Result<()> {
    rados_commands(Version::V20)
}

fn ceph_commands(version: Version) -> Result<()> {
    if !require(&[Need::Ceph(version)]) {
        return Ok(());
    }
    let rig = Rig::start(&["--memory", "--osds", "3"])?;
    let c = rig.client(version)?;
    let status = json(&c, &["ceph", "status"])?;
    ensure!(status["health"]["status"].is_string(), "{status}");
    ensure!(status["osdmap"]["num_up_osds"] == 3, "{status}");
    let dump = json(&c, &["ceph", "osd", "dump"])?;
    ensure!(
        dump["osds"].as_array().is_some_and(|osds| osds.len() == 3),
        "{dump}"
    );
    for argv in [
        &["ceph", "df"][..],
        &["ceph", "osd", "tree"],
        &["ceph", "osd", "pool", "stats"],
        &["ceph", "health", "detail"],
        &["ceph", "mon", "dump"],
        &["ceph", "osd", "df"],
        &["ceph", "pg", "stat"],
        &["ceph", "auth", "ls"],
        &["ceph", "config", "dump"],
        &["rados", "df"],
    ] {
        json(&c, argv).with_context(|| argv.join(" "))?;
    }
    c.run(["ceph", "osd", "blocklist", "add", "127.0.0.1:0/4711"])?;
    let listed = c.run(["ceph", "osd", "blocklist", "ls"])?;
    ensure!(listed.contains("127.0.0.1:0/4711"), "{listed}");
    c.run(["ceph", "osd", "blocklist", "rm", "127.0.0.1:0/4711"])?;

    // A user with fewer rights has them, and no more.
    let key = c.run([
        "ceph",
        "auth",
        "get-or-create",
        "client.reader",
        "mon",
        "profile rbd-read-only",
        "osd",
        "profile rbd-read-only pool=rbd",
    ])?;
    let keyring = rig.file("reader.keyring");
    fs::write(&keyring, key)?;
    c.run(["rbd", "create", "--size", "8M", "rbd/image"])?;
    let reader = ["--id", "reader", "--keyring", text(&keyring)];
    let as_reader = |argv: &[&str]| {
        let argv: Vec<_> = argv.iter().chain(&reader).copied().collect();
        c.output(argv, MINUTE)
    };
    let out = as_reader(&["rbd", "info", "rbd/image"])?;
    ensure!(
        out.status.success(),
        "a reader may read: {}",
        out.stderr_str()
    );
    let out = as_reader(&["rbd", "create", "--size", "8M", "rbd/another"])?;
    ensure!(!out.status.success(), "a reader may not create");
    Ok(())
}

#[test]
fn ceph_16() -> Result<()> {
    ceph_commands(Version::V16)
}

#[test]
fn ceph_18() -> Result<()> {
    ceph_commands(Version::V18)
}

#[test]
fn ceph_20() -> Result<()> {
    ceph_commands(Version::V20)
}

/// fio's rbd engine and QEMU's driver are built against the host's librbd.
fn fio_on(rig: &Rig, image: &str, mib: u64) -> Result<()> {
    let c = rig.client(Version::V16)?;
    let size = format!("{mib}M");
    c.run(["rbd", "create", "--size", &size, image])?;
    let image = image.strip_prefix("rbd/").unwrap_or(image);
    let mut command = std::process::Command::new("fio");
    command.env("CEPH_CONF", &rig.conf).args([
        "--name=verify",
        "--ioengine=rbd",
        "--clientname=admin",
        "--pool=rbd",
        &format!("--rbdname={image}"),
        "--rw=randrw",
        "--bssplit=4k/60:64k/30:1m/10",
        "--iodepth=16",
        &format!("--size={size}"),
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=7",
        "--output-format=json",
    ]);
    let said = tools::run(command, Duration::from_secs(300))?;
    let said: Value = serde_json::from_str(&said).context("fio's JSON")?;
    ensure!(said["jobs"][0]["error"] == 0, "{said}");
    Ok(())
}

#[test]
fn fio_with_verify() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16), Need::FIO]) {
        return Ok(());
    }
    fio_on(&Rig::start(&["--memory", "--osds", "2"])?, "rbd/fio", 128)
}

#[test]
fn fio_with_verify_on_files() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16), Need::FIO]) {
        return Ok(());
    }
    fio_on(&Rig::start(&[])?, "rbd/fio", 64)
}

fn qemu_io(conf: &Path, image: &str, commands: &[&str]) -> Result<()> {
    let mut command = std::process::Command::new("qemu-io");
    command.args(["-f", "raw", "-d", "unmap"]);
    for each in commands {
        command.args(["-c", each]);
    }
    command.arg(format!("rbd:{image}:conf={}", conf.display()));
    let out = tools::output(command, MINUTE)?;
    let said = out.stdout_str() + &out.stderr_str();
    let bad = ["failed", "Pattern verification", "rror", "nvalid"];
    ensure!(
        out.status.success() && !bad.iter().any(|word| said.contains(word)),
        "qemu-io: {}: {said}",
        out.status
    );
    Ok(())
}

#[test]
fn qemu() -> Result<()> {
    let needs = [
        Need::Ceph(Version::V16),
        Need::QEMU_IMG,
        Need::QEMU_IO,
        Need::QemuRbd,
    ];
    if !require(&needs) {
        return Ok(());
    }
    let rig = Rig::start(&["--memory"])?;
    let c = rig.client(Version::V16)?;
    let file = rig.file("disk");
    let sum = write_pattern(&file, 24, 3)?;
    let target = format!("rbd:rbd/disk:conf={}", rig.conf.display());
    let run = |argv: &[&str]| {
        let mut command = std::process::Command::new("qemu-img");
        command.args(argv);
        tools::run(command, 2 * MINUTE)
    };
    run(&["convert", "-f", "raw", "-O", "raw", text(&file), &target])?;
    ensure!(
        sum_of(&c, &rig, "rbd/disk")? == sum,
        "qemu-img convert differs"
    );
    let info: Value = serde_json::from_str(&run(&["info", "--output=json", &target])?)?;
    ensure!(info["virtual-size"] == 24 << 20, "{info}");
    run(&["resize", "-f", "raw", &target, "32M"])?;
    run(&["compare", "-f", "raw", "-F", "raw", text(&file), &target])?;
    qemu_io(
        &rig.conf,
        "rbd/disk",
        &[
            "write -P 0x5a 1M 3M",
            "read -P 0x5a 1M 3M",
            "discard 4M 4M",
            "read -P 0 4M 4M",
            "write -z 9M 1M",
            "read -P 0 9M 1M",
            "writev -P 0x33 12345 512 1024",
            "flush",
            "read -P 0x33 12345 1536",
            "read -P 0 24M 8M",
        ],
    )?;
    Ok(())
}
