//! What the harness promises: clusters that serve images, break and heal on demand, and leave
//! nothing behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::ceph::{Auth, Cipher, Cluster, DaemonId, Mgr, Mode, Store, Version};
use harness::tools::{self, Process, sha256_file, wait_for, write_pattern};
use harness::{Need, require};

const MINUTE: Duration = Duration::from_secs(60);

/// The processes of this machine that were started with a file below `dir`.
fn processes_of(dir: &Path) -> Result<Vec<String>> {
    let dir = dir.to_str().context("not UTF-8")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // Processes end while /proc is read.
        let Ok(line) = fs::read(entry?.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&format!("{dir}/")) {
            found.push(line);
        }
    }
    Ok(found)
}

/// Creates an image and asks for it in the ways of every day.
fn serves_images(cluster: &Cluster) -> Result<()> {
    cluster.run(["rbd", "create", "--size", "64M", "rbd/one"])?;
    cluster.run([
        "rbd",
        "create",
        "--size",
        "1G",
        "--object-size",
        "1M",
        "rbd/two",
    ])?;
    ensure!(cluster.run(["rbd", "ls"])?.lines().eq(["one", "two"]));
    let info = cluster.run(["rbd", "info", "--format", "json", "rbd/two"])?;
    let info: serde_json::Value = serde_json::from_str(&info)?;
    ensure!(
        info["size"] == 1u64 << 30 && info["object_size"] == 1 << 20,
        "{info}"
    );
    let missing = cluster
        .run(["rbd", "info", "rbd/none"])
        .unwrap_err()
        .to_string();
    ensure!(missing.contains("No such file or directory"), "{missing}");
    Ok(())
}

/// Starts a cluster, uses it, ends it, and looks for what is left.
fn lives_and_ends(version: Version) -> Result<()> {
    if !require(&[Need::Ceph(version)]) {
        return Ok(());
    }
    let cluster = Cluster::builder().version(version).start()?;
    eprintln!(
        "Ceph {version} was ready after {:.2} s",
        cluster.ready_after().as_secs_f64()
    );
    let running = cluster.run(["ceph", "version"])?;
    ensure!(
        running.contains(&format!("ceph version {version}.")),
        "{running}"
    );
    ensure!(cluster.ceph_json(["fsid"])?["fsid"] == cluster.fsid());
    serves_images(&cluster)?;
    ensure!(cluster.osds_cpu_time()? > Duration::ZERO);

    let dir = cluster.dir().to_owned();
    // A monitor, a manager and an OSD.
    ensure!(processes_of(&dir)?.len() == 3, "{:?}", processes_of(&dir));
    cluster.stop()?;
    ensure!(
        processes_of(&dir)?.is_empty(),
        "left: {:?}",
        processes_of(&dir)
    );
    ensure!(!dir.exists());
    Ok(())
}

#[test]
fn ceph_16_lives_and_ends() -> Result<()> {
    lives_and_ends(Version::V16)
}

#[test]
fn ceph_18_lives_and_ends() -> Result<()> {
    lives_and_ends(Version::V18)
}

#[test]
fn ceph_20_lives_and_ends() -> Result<()> {
    lives_and_ends(Version::V20)
}

/// Kills, revives and pauses OSDs of three; what was written stays.
fn osds_break_and_heal(version: Version, store: Store) -> Result<()> {
    if !require(&[Need::Ceph(version)]) {
        return Ok(());
    }
    let mut cluster = Cluster::builder()
        .version(version)
        .osds(3)
        .store(store)
        .start()?;
    let data = cluster.dir().join("data");
    let sum = write_pattern(&data, 8, 1)?;
    let data = data.to_str().context("not UTF-8")?;
    cluster.run(["rbd", "import", "--no-progress", data, "rbd/kept"])?;

    cluster.kill_osd(1)?;
    ensure!(!cluster.is_running(DaemonId::Osd(1)) && cluster.is_running(DaemonId::Osd(0)));
    ensure!(cluster.kill_osd(1).is_err(), "killed twice");
    cluster.wait_osd_down(1, MINUTE)?;
    cluster.run(["rbd", "import", "--no-progress", data, "rbd/degraded"])?;
    ensure!(
        cluster.wait_clean(Duration::from_secs(2)).is_err(),
        "clean without an OSD"
    );
    cluster.revive_osd(1)?;
    cluster.wait_clean(MINUTE)?;

    // Only the revived OSD and one other have the newer image now.
    cluster.kill_osd(0)?;
    cluster.wait_osd_down(0, MINUTE)?;
    for image in ["kept", "degraded"] {
        let out = cluster.dir().join(image);
        let path = out.to_str().context("not UTF-8")?;
        cluster.run([
            "rbd",
            "export",
            "--no-progress",
            &format!("rbd/{image}"),
            path,
        ])?;
        ensure!(sha256_file(&out)? == sum, "{image} differs");
    }
    cluster.revive_osd(0)?;
    cluster.wait_clean(MINUTE)?;

    cluster.pause_osd(2)?;
    cluster.wait_osd_down(2, MINUTE)?;
    ensure!(cluster.is_running(DaemonId::Osd(2)));
    cluster.resume_osd(2)?;
    cluster.wait_osd_up(2, MINUTE)?;
    cluster.wait_clean(MINUTE)
}

#[test]
fn osds_in_memory_break_and_heal() -> Result<()> {
    osds_break_and_heal(Version::V18, Store::Memstore)
}

#[test]
fn osds_on_disk_break_and_heal() -> Result<()> {
    osds_break_and_heal(Version::V20, Store::Bluestore)
}

#[test]
fn two_monitors_of_three_are_enough() -> Result<()> {
    if !require(&[Need::Ceph(Version::V18)]) {
        return Ok(());
    }
    let mut cluster = Cluster::builder().version(Version::V18).mons(3).start()?;
    ensure!(cluster.mon_addrs().len() == 3);
    // The first has the lowest address and so leads.
    cluster.kill_mon(0)?;
    cluster.wait_quorum(2, MINUTE)?;
    serves_images(&cluster)?;
    cluster.revive_mon(0)?;
    cluster.wait_quorum(3, MINUTE)?;

    // One of three is no quorum.
    cluster.kill_mon(0)?;
    cluster.kill_mon(1)?;
    ensure!(cluster.wait_quorum(2, Duration::from_secs(3)).is_err());
    wait_for("commands to go unanswered", MINUTE, || {
        let ls = cluster.output(["ceph", "osd", "ls"], Duration::from_secs(5));
        Ok(!ls.is_ok_and(|ls| ls.status.success()))
    })?;
    cluster.revive_mon(1)?;
    cluster.wait_quorum(2, MINUTE)
}

#[test]
fn a_lone_monitor_comes_back_and_clusters_restart() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16)]) {
        return Ok(());
    }
    let mut cluster = Cluster::builder().version(Version::V16).start()?;
    cluster.kill_mon(0)?;
    cluster.revive_mon(0)?;
    cluster.wait_quorum(1, MINUTE)?;
    serves_images(&cluster)?;
    cluster.shut_down(nix::sys::signal::Signal::SIGTERM)?;
    ensure!(processes_of(cluster.dir())?.is_empty());
    cluster.restart(MINUTE)?;
    ensure!(cluster.run(["rbd", "ls"])?.lines().eq(["one", "two"]));
    Ok(())
}

#[test]
fn erasure_coded_data_pool() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16)]) {
        return Ok(());
    }
    let builder = Cluster::builder()
        .version(Version::V16)
        .osds(3)
        .store(Store::Bluestore);
    let cluster = builder.ec(2, 1).pg_num(8).start()?;
    cluster.run([
        "rbd",
        "create",
        "--size",
        "64M",
        "--data-pool",
        "rbd-ec",
        "rbd/wide",
    ])?;
    let bench = [
        "rbd",
        "bench",
        "--io-type",
        "write",
        "--io-total",
        "1M",
        "rbd/wide",
    ];
    cluster.run(bench)?;
    let objects = cluster.run(["rados", "-p", "rbd-ec", "ls"])?;
    ensure!(objects.contains("rbd_data."), "{objects}");
    Ok(())
}

/// Two clusters at once, of different versions and with the rarer choices.
#[test]
fn unlike_clusters_side_by_side() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16), Need::Ceph(Version::V20)]) {
        return Ok(());
    }
    let open = Cluster::builder()
        .version(Version::V16)
        .auth(Auth::None)
        .mode(Mode::Crc);
    let open = open
        .mgr(Mgr::None)
        .msgr1(false)
        .extra_conf("debug_ms = 1")
        .start()?;
    let second = Cluster::builder().start().unwrap_err().to_string();
    ensure!(second.contains("use .concurrent()"), "{second}");
    let secret = Cluster::builder()
        .version(Version::V20)
        .mode(Mode::Secure)
        .cipher(Cipher::Aes);
    let secret = secret.concurrent().start()?;

    serves_images(&open)?;
    serves_images(&secret)?;
    ensure!(open.mon_addrs() != secret.mon_addrs());
    ensure!(open.dir() != secret.dir() && open.fsid() != secret.fsid());
    let addrs = open.ceph_json(["mon", "dump"])?["mons"][0]["public_addrs"]["addrvec"].clone();
    ensure!(addrs.as_array().is_some_and(|a| a.len() == 1), "{addrs}");
    // Keys of type 1, which older clients understand, though this is Ceph 20.
    ensure!(fs::read_to_string(secret.keyring_path())?.contains("key = AQ"));
    let log = fs::read_to_string(open.dir().join("log/osd.0.log"))?;
    ensure!(log.contains(" <== "), "debug_ms did not arrive");
    Ok(())
}

/// A test that is killed cannot end its cluster: the kernel does.
#[test]
fn a_killed_test_takes_its_cluster_along() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16)]) {
        return Ok(());
    }
    let base = tempfile::tempdir_in("/tmp")?;
    let dir = base.path().join("c");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ceph-cluster"));
    command
        .args(["start", "--foreground", "--version", "16"])
        .arg(&dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut owner = Process::spawn(command)?;
    let mut line = String::new();
    BufReader::new(owner.take_stdout().context("no pipe")?).read_line(&mut line)?;
    ensure!(line.starts_with("CONF="), "{line}");
    ensure!(processes_of(&dir)?.len() >= 3);
    owner.signal(nix::sys::signal::Signal::SIGKILL)?;
    owner.wait(MINUTE)?;
    wait_for("the daemons' end", MINUTE, || {
        Ok(processes_of(&dir)?.is_empty())
    })
}

/// The shell's way: a cluster that stays when its maker ends.
#[test]
fn detached_clusters() -> Result<()> {
    if !require(&[Need::Ceph(Version::V18)]) {
        return Ok(());
    }
    let base = tempfile::tempdir_in("/tmp")?;
    let dir = base.path().join("c");
    let cli = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ceph-cluster"));
        command.arg(words[0]).args(&words[1..]);
        command
    };
    let path = dir.to_str().context("not UTF-8")?;
    let ok = |words: &[&str]| tools::run(cli(words), 2 * MINUTE);
    let started = Instant::now();
    let conf = ok(&["start", "--version", "18", "--osds", "2", path])?;
    eprintln!("detached after {:.2} s", started.elapsed().as_secs_f64());
    let guard = EndAll(&dir);
    ensure!(conf.contains(&format!("CONF={path}/ceph.conf\n")), "{conf}");
    ok(&["run", path, "rbd", "create", "--size", "1M", "rbd/one"])?;
    ensure!(ok(&["run", path, "rbd", "ls"])? == "one\n");
    let failed = tools::output(cli(&["run", path, "rbd", "info", "rbd/none"]), MINUTE)?;
    ensure!(failed.status.code() == Some(2), "{}", failed.status);

    ok(&["kill-osd", "1", path])?;
    let status = tools::output(cli(&["status", path]), MINUTE)?;
    ensure!(!status.status.success() && status.stdout_str().contains("osd.1  down"));
    ok(&["revive-osd", "1", path])?;
    ok(&["wait-clean", path])?;
    ok(&["status", path])?;

    ok(&["stop", path])?;
    ensure!(processes_of(&dir)?.is_empty());
    ok(&["start", path])?;
    ensure!(ok(&["run", path, "rbd", "ls"])? == "one\n");
    ok(&["destroy", path])?;
    ensure!(processes_of(&dir)?.is_empty() && !dir.exists());
    drop(guard);
    Ok(())
}

/// Ends a detached cluster when a test about it fails half-way.
struct EndAll<'a>(&'a Path);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        if let Ok(mut cluster) = Cluster::open(self.0) {
            let _ = cluster.shut_down(nix::sys::signal::Signal::SIGKILL);
        }
    }
}
