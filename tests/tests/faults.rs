//! OSDs die and come back, monitors restart, and whoever reads and writes notices nothing but time:
//! no error, no wrong byte.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::ceph::{Cluster, DaemonId, Store, Version};
use harness::product::{Mapped, Product, client, text};
use harness::tools::{Process, sha256_file, wait_for};
use harness::{Need, long, require};
use nix::sys::signal::Signal;

const MINUTE: Duration = Duration::from_secs(60);
const IMAGE: &str = "rbd/one";
const MIB: u64 = 64;

/// fio's exit code after SIGINT.
const FIO_INTERRUPTED: i32 = 128;
/// Longer than any test here takes.
const LOAD_LIMIT: Duration = Duration::from_secs(500);

/// How long faults go on at least.
fn duration() -> Duration {
    Duration::from_secs(if long() { 60 } else { 20 })
}

struct Scene {
    cluster: Cluster,
    product: Product,
    mapped: Mapped,
}

impl Scene {
    fn new(cluster: Cluster) -> Result<Scene> {
        let product = Product::new(&cluster)?;
        let size = format!("{MIB}M");
        let create = [
            "rbd",
            "create",
            "--image-feature",
            "layering",
            "--size",
            &size,
            IMAGE,
        ];
        cluster.run(create)?;
        let mapped = product.map(IMAGE, &[])?;
        Ok(Scene {
            cluster,
            product,
            mapped,
        })
    }

    /// fio, reading and writing at a pace that leaves the OSDs room to recover, until told to end.
    /// It reads each block back soon after it wrote it.
    fn load(&self) -> Result<Process> {
        let uri = format!("--uri={}", self.mapped.uri);
        let runtime = format!("--runtime={}", LOAD_LIMIT.as_secs());
        let size = format!("--size={MIB}M");
        let mut command = client::fio_command(&[
            "--ioengine=nbd",
            &uri,
            "--rw=randrw",
            "--bsrange=4k-64k",
            "--iodepth=16",
            // (Its --rate options stall the engine for NBD.)
            "--thinktime=40ms",
            "--thinktime_blocks=16",
            &size,
            "--time_based",
            &runtime,
            "--verify=crc32c",
            "--verify_backlog=64",
            "--verify_fatal=1",
            "--randseed=7",
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Process::spawn(command)
    }

    /// fio still runs and ends when told to; it found nothing wrong and did not stand still; and
    /// librbd reads what NBD does.
    fn verdict(self, mut fio: Process, duration: Duration) -> Result<()> {
        let ran = fio.is_running();
        fio.signal(Signal::SIGINT)?;
        let status = fio.wait(MINUTE)?;
        let mut said = String::new();
        fio.take_stdout()
            .context("no pipe")?
            .read_to_string(&mut said)?;
        let mut errors = String::new();
        fio.take_stderr()
            .context("no pipe")?
            .read_to_string(&mut errors)?;
        ensure!(
            ran && status.code() == Some(FIO_INTERRUPTED),
            "fio: {status}: {errors}{said}\n{}",
            self.product.log_tail()
        );
        let report = client::fio_report(&said)?;
        let job = &report["jobs"][0];
        let ios = |way: &str| job[way]["total_ios"].as_u64().unwrap_or_default();
        let slowest = job["write"]["clat_ns"]["max"].as_f64().unwrap_or_default() / 1e9;
        eprintln!(
            "  {} reads, {} writes, the slowest write took {slowest:.1} s",
            ios("read"),
            ios("write")
        );
        let least = 10 * duration.as_secs();
        ensure!(
            ios("read") > least && ios("write") > least,
            "hardly anything was done: {said}"
        );

        let sum = client::sha256(&self.mapped, &self.product.scratch("out"))?;
        let file = self.product.scratch("exported");
        self.cluster
            .run(["rbd", "export", "--no-progress", IMAGE, text(&file)])?;
        ensure!(
            sha256_file(&file)? == sum,
            "librbd reads other bytes than NBD"
        );
        self.product.unmap(IMAGE)?;
        self.product.assert_gone()
    }

    /// The monitors that have a session of the daemon's user.
    fn monitors_used(&self) -> Result<Vec<usize>> {
        let mut used = Vec::new();
        for mon in 0..self.cluster.mons() {
            let Ok(sessions) = self.cluster.ask_daemon(DaemonId::Mon(mon), "sessions") else {
                continue;
            };
            let sessions = sessions.as_array().context("no list of sessions")?;
            if sessions
                .iter()
                .any(|session| session["entity_name"] == "client.admin")
            {
                used.push(mon);
            }
        }
        Ok(used)
    }
}

/// Kills OSDs in turn, each time with the monitor that the daemon listens to, until the time is over.
fn osds_and_monitors(version: Version, store: Store, mons: usize) -> Result<()> {
    let needs = [Need::Ceph(version), Need::FIO, Need::NBDCOPY];
    if !require(&needs) {
        return Ok(());
    }
    let builder = Cluster::builder().version(version).osds(3).mons(mons);
    // One replica is enough to serve I/O, and with a memstore a killed OSD comes back empty: the
    // next is killed only when all have everything again.
    let cluster = builder.store(store).min_size(1).pg_num(16).start()?;
    let mut scene = Scene::new(cluster)?;
    let duration = duration();
    let mut fio = scene.load()?;
    let end = Instant::now() + duration;
    let least = if long() { 3 } else { 2 };
    let mut rounds = 0;
    while rounds < least || Instant::now() < end {
        std::thread::sleep(Duration::from_secs(1));
        let osd = rounds % 3;
        // Every other time there is no monitor to tell that the OSD is gone.
        let monitor_first = rounds % 2 == 1;
        if !monitor_first {
            scene.cluster.kill_osd(osd)?;
            scene.cluster.wait_osd_down(osd, MINUTE)?;
        }
        // It may still look for the monitor that the last round killed.
        let found = "a monitor session of the daemon";
        wait_for(found, MINUTE, || Ok(!scene.monitors_used()?.is_empty()))?;
        let used = scene.monitors_used()?;
        let mon = *used.first().context("the daemon lost its monitor again")?;
        scene.cluster.kill_mon(mon)?;
        if monitor_first {
            scene.cluster.kill_osd(osd)?;
        }
        if mons > 1 {
            scene.cluster.wait_quorum(mons - 1, MINUTE)?;
            let other = "a session with another monitor";
            wait_for(other, MINUTE, || Ok(!scene.monitors_used()?.is_empty()))?;
            scene.cluster.wait_osd_down(osd, MINUTE)?;
        } else {
            std::thread::sleep(Duration::from_secs(2));
        }
        scene.cluster.revive_osd(osd)?;
        scene.cluster.revive_mon(mon)?;
        scene.cluster.wait_quorum(mons, MINUTE)?;
        scene.cluster.wait_osd_up(osd, MINUTE)?;
        scene.cluster.wait_clean(2 * MINUTE)?;
        rounds += 1;
        if !fio.is_running() {
            // An error, which the verdict shows.
            break;
        }
    }
    eprintln!("  {rounds} rounds");
    scene.verdict(fio, duration)
}

#[test]
fn three_monitors_and_osds_in_memory() -> Result<()> {
    osds_and_monitors(Version::V18, Store::Memstore, 3)
}

#[test]
fn one_monitor_and_osds_on_disk() -> Result<()> {
    osds_and_monitors(Version::V16, Store::Bluestore, 1)
}

/// An OSD that hangs is reported by its peers and comes back wrongly marked down; and placement
/// groups move when the pool changes.
#[test]
fn hangs_and_changing_maps() -> Result<()> {
    let needs = [Need::Ceph(Version::V20), Need::FIO, Need::NBDCOPY];
    if !require(&needs) {
        return Ok(());
    }
    let builder = Cluster::builder().version(Version::V20).osds(3);
    let mut scene = Scene::new(builder.min_size(1).pg_num(8).start()?)?;
    // A request to an OSD that hangs waits until the others have reported it and, as librados has
    // it, for up to 15 s (`objecter_timeout`, `objecter_tick_interval`) until its client asks for
    // a new map.
    let duration = duration() + Duration::from_secs(10);
    let fio = scene.load()?;
    let end = Instant::now() + duration;
    scene.cluster.pause_osd(1)?;
    scene.cluster.wait_osd_down(1, MINUTE)?;
    scene.cluster.resume_osd(1)?;
    scene.cluster.wait_osd_up(1, MINUTE)?;
    scene.cluster.ceph_batch(&[
        // Splits placement groups under way.
        "osd pool set rbd pg_num 16",
        "osd pool set rbd pgp_num 16",
        "osd primary-affinity osd.0 0",
    ])?;
    std::thread::sleep(Duration::from_secs(2));
    scene.cluster.ceph_batch(&["osd out 2"])?;
    std::thread::sleep(Duration::from_secs(3));
    scene
        .cluster
        .ceph_batch(&["osd in 2", "osd primary-affinity osd.0 1"])?;
    // All at once, in order this time.
    while Instant::now() < end {
        scene.cluster.signal_osd(2, Signal::SIGTERM)?;
        std::thread::sleep(Duration::from_secs(2));
        scene.cluster.revive_osd(2)?;
        scene.cluster.wait_osd_up(2, MINUTE)?;
    }
    scene.cluster.wait_clean(2 * MINUTE)?;
    scene.verdict(fio, duration)
}
