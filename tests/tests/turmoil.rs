//! Everything that can happen to our single-node server happens while clients read and verify what
//! they wrote: librbd by fio's driver, our own by NBD, and with Ceph 20 its librbd by Ceph's own fsx.
//! Nothing is lost, nothing hangs, and errors come only where they were ordered.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::ceph::{Client, Version};
use harness::product::{Mapped, Product, Server, client, text};
use harness::suites::{Fsx, SUITES_OF};
use harness::tools::{Process, sha256_file, wait_for, write_pattern};
use harness::{Need, long, require};
use nix::sys::signal::Signal;
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const MIB: u64 = 32;
const NEEDS: [Need; 3] = [Need::FIO, Need::NBDCOPY, Need::QEMU_IO];
/// fio's exit code after SIGINT.
const FIO_INTERRUPTED: i32 = 128;
/// Longer than any test here takes.
const LOAD_LIMIT: Duration = Duration::from_secs(900);
/// The pool of fsx, so that objects and writes of the other clients can be counted.
const FSX_POOL: &str = "fsx";
/// Images under load: of fio's driver, and of NBD.
const THEIRS: &str = "rbd/theirs";
const OURS: &str = "rbd/ours";

struct Scene {
    /// First, so that it ends before the server does.
    fsx: Option<Fsx>,
    server: Server,
    conf: PathBuf,
    ceph: Client,
    product: Product,
    mapped: Mapped,
    loads: Vec<Process>,
    snaps: u32,
}

impl Scene {
    /// A server with `options`, commands of `version`, and loads whose configuration ends with
    /// `more`.
    fn start(version: Version, options: &[&str], more: &str) -> Result<Scene> {
        let server = Server::start(options)?;
        let conf = server.dir().join("client.conf");
        let own = fs::read_to_string(server.conf_path())?;
        fs::write(&conf, own + more)?;
        let ceph = Client::new(version, &conf)?;
        let product = Product::with_conf(conf.clone())?;
        let size = format!("{MIB}M");
        ceph.run(["ceph", "osd", "pool", "set", "rbd", "pg_num", "8"])?;
        ceph.run(["rbd", "create", "--size", &size, THEIRS])?;
        let plain = ["rbd", "create", "--image-feature", "layering", "--size"];
        ceph.run(plain.iter().chain(&[&size[..], OURS]))?;
        let mapped = product.map(OURS, &[])?;
        let mut scene = Scene {
            fsx: None,
            server,
            conf,
            ceph,
            product,
            mapped,
            loads: Vec::new(),
            snaps: 0,
        };
        scene.wait_pgs(8)?;
        let name = THEIRS.strip_prefix("rbd/").unwrap_or(THEIRS);
        let theirs = scene.load(&[
            "--ioengine=rbd",
            "--clientname=admin",
            "--pool=rbd",
            &format!("--rbdname={name}"),
        ])?;
        let ours = scene.load(&["--ioengine=nbd", &format!("--uri={}", scene.mapped.uri)])?;
        scene.loads = vec![theirs, ours];
        if version == SUITES_OF {
            scene.ceph(&format!("osd pool create {FSX_POOL} 8"))?;
            scene.rbd(&format!("pool init {FSX_POOL}"))?;
            scene.start_fsx();
        }
        Ok(scene)
    }

    /// fio, until told to end. It reads each block back soon after it wrote it.
    fn load(&self, engine: &[&str]) -> Result<Process> {
        let mut command = client::fio_command(engine);
        command
            .args(["--rw=randrw", "--bsrange=4k-64k", "--iodepth=16"])
            .args(["--thinktime=20ms", "--thinktime_blocks=16", "--time_based"])
            .arg(format!("--size={MIB}M"))
            .arg(format!("--runtime={}", LOAD_LIMIT.as_secs()))
            .args(["--verify=crc32c", "--verify_backlog=64"])
            .args(["--verify_fatal=1", "--randseed=7"])
            .env("CEPH_CONF", &self.conf)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Process::spawn(command)
    }

    fn start_fsx(&mut self) {
        let dir = self.product.scratch("fsx");
        self.fsx = Some(Fsx::start(self.ceph.clone(), FSX_POOL, dir));
    }

    fn end_fsx(&mut self) -> Result<()> {
        if let Some(fsx) = self.fsx.take() {
            eprintln!("  {} runs of fsx", fsx.end()?);
        }
        Ok(())
    }

    fn ceph(&self, line: &str) -> Result<String> {
        self.ceph
            .run(std::iter::once("ceph").chain(line.split(' ')))
    }

    fn json(&self, line: &str) -> Result<Value> {
        let said = self.ceph(&format!("{line} --format json"))?;
        serde_json::from_str(&said).with_context(|| format!("{line}: {said}"))
    }

    fn rbd(&self, line: &str) -> Result<String> {
        self.ceph.run(std::iter::once("rbd").chain(line.split(' ')))
    }

    fn fault(&self, line: &str) -> Result<()> {
        let words: Vec<&str> = ["fault", "add"]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        self.server.run(&words).map(drop)
    }

    fn clear_faults(&self) -> Result<()> {
        self.server.run(&["fault", "clear"]).map(drop)
    }

    /// Reads and writes that the OSDs have served so far.
    fn served(&self) -> Result<(u64, u64)> {
        let said = self.server.run(&["status", "--format", "json"])?;
        let status: Value = serde_json::from_str(&said)?;
        let sum = |what: &str| {
            let osds = status["osds"].as_array().into_iter().flatten();
            osds.filter_map(|osd| osd[what].as_u64()).sum::<u64>()
        };
        Ok((sum("reads"), sum("writes")))
    }

    fn running(&mut self, after: &str) -> Result<()> {
        for load in &mut self.loads {
            if !load.is_running() {
                let (status, said, errors) = ending(load)?;
                anyhow::bail!("{after}: a load has ended, {status}: {errors}{said}");
            }
        }
        if self.fsx.as_ref().is_some_and(|fsx| !fsx.is_running()) {
            self.end_fsx().with_context(|| after.to_owned())?;
        }
        Ok(())
    }

    /// The loads go on: both ways.
    fn goes_on(&mut self, after: &str) -> Result<()> {
        let (reads, writes) = self.served()?;
        let what = format!("reads and writes after {after}");
        wait_for(&what, MINUTE, || {
            let (r, w) = self.served()?;
            Ok(r > reads + 100 && w > writes + 100)
        })?;
        self.running(after)
    }

    fn pgs(&self) -> Result<(u64, u64)> {
        let pool = self.json("osd pool get rbd all")?;
        let number = |name: &str| pool[name].as_u64().context("no number");
        Ok((number("pg_num")?, number("pgp_num")?))
    }

    fn wait_pgs(&self, n: u64) -> Result<()> {
        let what = format!("{n} placement groups");
        wait_for(&what, MINUTE, || Ok(self.pgs()? == (n, n)))
    }

    /// Takes a snapshot of each image and removes the one before, so that there is always one to
    /// keep and one to trim.
    fn snapshots(&mut self) -> Result<()> {
        self.snaps += 1;
        for image in [THEIRS, OURS] {
            self.rbd(&format!(
                "snap create --no-progress {image}@s{}",
                self.snaps
            ))?;
            if self.snaps > 1 {
                let old = self.snaps - 1;
                self.rbd(&format!("snap rm --no-progress {image}@s{old}"))?;
            }
        }
        Ok(())
    }

    fn placement_groups(&mut self) -> Result<()> {
        for _ in 0..if long() { 5 } else { 2 } {
            for n in [32, 4, 8] {
                self.ceph(&format!("osd pool set rbd pg_num {n}"))?;
                if self.fsx.is_some() {
                    self.ceph(&format!("osd pool set {FSX_POOL} pg_num {n}"))?;
                }
                self.snapshots()?;
                self.wait_pgs(n)?;
                self.goes_on(&format!("pg_num {n}"))?;
            }
        }
        self.ceph("osd pool set rbd pgp_num 3")?;
        self.ceph("osd pool set rbd pg_num 13")?;
        wait_for(
            "pg_num 13, pgp_num 3",
            MINUTE,
            || Ok(self.pgs()? == (13, 3)),
        )?;
        self.goes_on("pgp_num below pg_num")?;
        self.ceph("osd pool set rbd pgp_num 13")?;
        self.wait_pgs(13)
    }

    fn osds(&mut self) -> Result<()> {
        for osd in [0, 1] {
            self.ceph(&format!("osd out {osd}"))?;
            self.goes_on("out")?;
            self.ceph(&format!("osd in {osd}"))?;
            self.goes_on("in")?;
            self.ceph(&format!("osd down {osd}"))?;
            self.goes_on("down")?;
        }
        Ok(())
    }

    fn faults(&mut self) -> Result<()> {
        self.fault("delay=30 --op write --probability 0.2")?;
        self.fault("delay=10 --op read --probability 0.2")?;
        self.fault("delay=50 --op call")?;
        self.snapshots()?;
        self.goes_on("delays")?;
        self.clear_faults()?;

        self.fault("reset --op any --probability 0.02")?;
        self.fault("reset --op write --probability 0.02 --after")?;
        std::thread::sleep(3 * SECOND);
        self.clear_faults()?;
        self.goes_on("resets")?;

        // A request that is lost with its connection intact is sent again when the map gives
        // reason to.
        for way in ["--op write", "--op read", "--op write --after"] {
            self.fault(&format!("drop --count 3 {way}"))?;
            std::thread::sleep(SECOND);
            self.clear_faults()?;
            self.ceph("osd down 0 1")?;
            self.goes_on("drops")?;
        }

        self.fault("stall --op write --count 4")?;
        self.fault("stall --op read --count 4")?;
        std::thread::sleep(2 * SECOND);
        self.running("stalls")?;
        self.ceph("osd pool set rbd pg_num 6")?;
        self.clear_faults()?;
        self.wait_pgs(6)?;
        self.goes_on("stalls")
    }

    /// Errors reach whom they are meant for, and nobody else.
    fn errors(&mut self) -> Result<()> {
        let file = self.product.scratch("file");
        let sum = write_pattern(&file, 4, 1)?;
        self.rbd(&format!("import --no-progress {} rbd/third", text(&file)))?;
        let info: Value = serde_json::from_str(&self.rbd("info rbd/third --format json")?)?;
        let prefix = info["block_name_prefix"].as_str().context("no prefix")?;
        self.fault(&format!("error=EIO --op read --object {prefix}"))?;
        let out = self.product.scratch("third");
        let export = ["rbd", "export", "--no-progress", "rbd/third", text(&out)];
        let refused = self.ceph.output(export, MINUTE)?;
        let said = refused.stderr_str();
        ensure!(
            !refused.status.success() && said.contains("(5) Input/output error"),
            "export with EIO: {} {said}",
            refused.status
        );
        self.goes_on("errors of another image")?;
        self.clear_faults()?;
        let _ = fs::remove_file(&out);
        self.ceph.run(export)?;
        ensure!(sha256_file(&out)? == sum, "other bytes after an error");
        self.rbd("rm --no-progress rbd/third").map(drop)
    }

    fn pause(&mut self) -> Result<()> {
        self.ceph("osd set pause")?;
        std::thread::sleep(SECOND);
        let before = self.served()?;
        std::thread::sleep(2 * SECOND);
        let after = self.served()?;
        // Watches are kept alive by pings, which are no writes.
        ensure!(after == before, "{before:?} to {after:?} while paused");
        self.running("pause")?;
        self.ceph("osd unset pause")?;
        self.goes_on("pause")
    }

    fn quota(&mut self) -> Result<()> {
        let with_fsx = self.fsx.is_some();
        self.end_fsx()?;
        self.ceph("osd pool set-quota rbd max_objects 1")?;
        wait_for("a full pool", MINUTE, || {
            Ok(self.ceph("health detail")?.contains("POOL_FULL"))
        })?;
        std::thread::sleep(SECOND);
        let (_, before) = self.served()?;
        std::thread::sleep(2 * SECOND);
        let (_, after) = self.served()?;
        ensure!(after == before, "{} writes to a full pool", after - before);
        self.running("a full pool")?;
        self.ceph("osd pool set-quota rbd max_objects 0")?;
        if with_fsx {
            self.start_fsx();
        }
        self.goes_on("a full pool")
    }

    fn watchers(&self, image: &str) -> Result<Vec<String>> {
        let said = self.rbd(&format!("status {image} --format json"))?;
        let status: Value = serde_json::from_str(&said)?;
        let list = status["watchers"].as_array().context("no watchers")?;
        let addr = |w: &Value| w["address"].as_str().map(str::to_owned);
        Ok(list.iter().filter_map(addr).collect())
    }

    /// A client that is shut out: its requests fail, its watch is gone, the others go on.
    fn blocklist(&mut self) -> Result<()> {
        let victim = Product::with_conf(self.conf.clone())?;
        self.rbd("create --image-feature layering --size 8M rbd/victim")?;
        let mapped = victim.map("rbd/victim", &[])?;
        client::qemu(&mapped.uri, &["write -P 1 0 64k", "read -P 1 0 64k"])?;
        let watchers = self.watchers("rbd/victim")?;
        let [addr] = &watchers[..] else {
            anyhow::bail!("not one watcher: {watchers:?}");
        };
        self.ceph(&format!("osd blocklist add {addr}"))?;
        for request in ["write -P 2 0 64k", "read 0 64k"] {
            let said = client::qemu_says(&mapped.uri, &[], request)?;
            ensure!(
                said.contains("transport endpoint shutdown"),
                "{request} of a blocklisted client: {said}"
            );
        }
        let left = self.watchers("rbd/victim")?;
        ensure!(left.is_empty(), "a blocklisted client watches: {left:?}");
        victim.run(["unmap", "--force", "rbd/victim"])?;
        self.ceph(&format!("osd blocklist rm {addr}"))?;
        let mapped = victim.map("rbd/victim", &[])?;
        client::qemu(&mapped.uri, &["read -P 1 0 64k"])?;
        victim.unmap("rbd/victim")?;

        // librbd's turn.
        let bench = "bench --io-type write --io-size 4K --io-total 10G rbd/victim";
        let argv = std::iter::once("rbd").chain(bench.split(' '));
        let mut command = self.ceph.command(argv)?;
        // To a file: a pipe that nobody reads would fill with its complaints.
        let log = self.product.scratch("bench.log");
        command
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?);
        let bench = Process::spawn(command)?;
        wait_for("rbd bench to watch", MINUTE, || {
            Ok(!self.watchers("rbd/victim")?.is_empty())
        })?;
        let addr = self.watchers("rbd/victim")?.remove(0);
        self.ceph(&format!("osd blocklist add {addr}"))?;
        wait_for("rbd bench to fail", MINUTE, || {
            Ok(fs::read_to_string(&log)?.contains("(108)"))
        })?;
        // Whether it ends by itself is for librbd.
        drop(bench);
        ensure!(self.watchers("rbd/victim")?.is_empty());
        self.ceph("osd blocklist clear")?;
        self.rbd("rm --no-progress rbd/victim")?;
        self.goes_on("the others' blocklisting")
    }

    /// What monitors say while there is load.
    fn statistics(&mut self) -> Result<()> {
        let number = |v: &Value, name: &str| v[name].as_u64().unwrap_or(0);
        wait_for("rates", MINUTE, || {
            let stats = self.json("osd pool stats rbd")?;
            let rate = &stats[0]["client_io_rate"];
            let names = ["read_op_per_sec", "write_op_per_sec", "read_bytes_sec"];
            Ok(names.iter().all(|name| number(rate, name) > 0))
        })?;
        let status = self.json("status")?;
        ensure!(number(&status["pgmap"], "write_op_per_sec") > 0, "{status}");
        let shown = self.ceph("status")?;
        ensure!(shown.contains("op/s wr"), "{shown}");
        let stats = |scene: &Scene| -> Result<Value> {
            let df = scene.json("df detail")?;
            let pools = df["pools"].as_array().context("no pools")?;
            let pool = pools.iter().find(|p| p["name"] == "rbd");
            Ok(pool.context("no pool")?["stats"].clone())
        };
        let before = stats(self)?;
        let file = self.product.scratch("file");
        write_pattern(&file, 16, 2)?;
        self.rbd(&format!("import --no-progress {} rbd/counted", text(&file)))?;
        wait_for("objects to be counted", MINUTE, || {
            let now = stats(self)?;
            let more = |name: &str| number(&now, name).saturating_sub(number(&before, name));
            Ok(more("objects") >= 4 && more("stored") >= 16 << 20 && more("wr") > 0)
        })?;
        self.rbd("rm --no-progress rbd/counted").map(drop)
    }

    /// Ends the loads: both found nothing wrong and no request is left. Returns the SHA-256 of both
    /// images.
    fn verdict(&mut self) -> Result<[String; 2]> {
        self.end_fsx()?;
        for mut load in std::mem::take(&mut self.loads) {
            let ran = load.is_running();
            load.signal(Signal::SIGINT)?;
            let (status, said, errors) = ending(&mut load)?;
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
        }
        let said = self.server.run(&["status", "--format", "json"])?;
        let status: Value = serde_json::from_str(&said)?;
        for osd in status["osds"].as_array().context("no OSDs")? {
            ensure!(osd["waiting"] == 0, "requests are left: {status}");
        }
        let sum = client::sha256(&self.mapped, &self.product.scratch("out"))?;
        self.product.unmap(OURS)?;
        self.product.assert_gone()?;
        let exported = self.sums()?;
        ensure!(exported[1] == sum, "librbd reads other bytes than NBD");

        // All snapshots go, and so do their clones.
        for image in [THEIRS, OURS] {
            self.rbd(&format!("snap purge --no-progress {image}"))?;
        }
        wait_for("the end of trimming", MINUTE, || {
            let dump = self.json("osd dump")?;
            let queue = dump["removed_snaps_queue"].as_array();
            let said = self.ceph.run(["rados", "df", "--format", "json"])?;
            let df: Value = serde_json::from_str(&said)?;
            let pools = df["pools"].as_array().context("no pools")?;
            let clones = pools.iter().filter(|p| p["name"] == "rbd");
            let clones: u64 = clones.filter_map(|p| p["num_object_clones"].as_u64()).sum();
            Ok(queue.is_some_and(Vec::is_empty) && clones == 0)
        })?;
        ensure!(self.sums()? == exported, "trimming has changed an image");
        Ok(exported)
    }

    fn sums(&self) -> Result<[String; 2]> {
        let sum = |image: &str| -> Result<String> {
            let file = self.product.scratch("exported");
            self.rbd(&format!("export --no-progress {image} {}", text(&file)))?;
            let sum = sha256_file(&file)?;
            fs::remove_file(&file)?;
            Ok(sum)
        };
        Ok([sum(THEIRS)?, sum(OURS)?])
    }
}

/// How a load ended, and what it said.
fn ending(load: &mut Process) -> Result<(std::process::ExitStatus, String, String)> {
    let status = load.wait(MINUTE)?;
    let (mut said, mut errors) = (String::new(), String::new());
    load.take_stdout()
        .context("no pipe")?
        .read_to_string(&mut said)?;
    load.take_stderr()
        .context("no pipe")?
        .read_to_string(&mut errors)?;
    Ok((status, said, errors))
}

fn turmoil(version: Version, options: &[&str], more: &str) -> Result<()> {
    if !require(&NEEDS) || !require(&[Need::Ceph(version)]) {
        return Ok(());
    }
    let begun = Instant::now();
    let mut scene = Scene::start(version, options, more)?;
    let mut step = |what: &str, f: fn(&mut Scene) -> Result<()>| {
        eprintln!("  {:4.0} s {what}", begun.elapsed().as_secs_f64());
        f(&mut scene).with_context(|| what.to_owned())
    };
    step("placement groups", Scene::placement_groups)?;
    step("statistics", Scene::statistics)?;
    step("OSDs", Scene::osds)?;
    step("faults", Scene::faults)?;
    step("errors", Scene::errors)?;
    step("pause", Scene::pause)?;
    step("quota", Scene::quota)?;
    step("blocklist", Scene::blocklist)?;
    step("placement groups again", Scene::placement_groups)?;
    let sums = scene.verdict()?;
    if options.contains(&"--memory") {
        return Ok(());
    }
    // Whatever was done to it, it is all there after a restart.
    let counted = |scene: &Scene| -> Result<(Value, Value)> {
        let df = scene.json("df")?;
        let stats = &df["pools"][0]["stats"];
        Ok((stats["objects"].clone(), stats["stored"].clone()))
    };
    let before = counted(&scene)?;
    for way in [Server::stop, Server::kill] {
        way(&mut scene.server)?;
        scene.server.restart()?;
        let own = fs::read_to_string(scene.server.conf_path())?;
        fs::write(&scene.conf, own + more)?;
        ensure!(scene.sums()? == sums, "a restart has changed an image");
        wait_for("the same objects as before", MINUTE, || {
            Ok(counted(&scene)? == before)
        })?;
        ensure!(scene.pgs()? == (13, 13));
    }
    Ok(())
}

#[test]
fn in_memory_with_cephx() -> Result<()> {
    turmoil(Version::V16, &["--memory", "--osds", "2"], "")
}

#[test]
fn in_memory_without_authentication() -> Result<()> {
    turmoil(
        Version::V16,
        &["--memory", "--osds", "2", "--auth", "none"],
        "",
    )
}

#[test]
fn in_files_with_cephx() -> Result<()> {
    turmoil(Version::V16, &["--osds", "2"], "")
}

#[test]
fn in_files_in_secure_mode() -> Result<()> {
    let secure = "\nms_client_mode = secure\nms_mon_client_mode = secure\n";
    turmoil(Version::V16, &["--osds", "2"], secure)
}

#[test]
fn in_memory_with_ceph_18() -> Result<()> {
    turmoil(Version::V18, &["--memory", "--osds", "2"], "")
}

#[test]
fn in_files_with_ceph_20_and_fsx() -> Result<()> {
    turmoil(Version::V20, &["--osds", "2"], "")
}

/// A pool is made within Ceph's limits, and `ceph` shows why not.
#[test]
fn numbers_of_groups_have_limits() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16), Need::Ceph(Version::V20)]) {
        return Ok(());
    }
    let server = Server::start(&["--memory", "--osds", "2"])?;
    for version in [Version::V16, Version::V20] {
        let c = server.client(version)?;
        let refused = |argv: &str, words: &[&str]| -> Result<()> {
            let argv: Vec<&str> = std::iter::once("ceph").chain(argv.split(' ')).collect();
            let out = c.output(&argv, MINUTE)?;
            let said = out.stderr_str();
            ensure!(
                out.status.code() == Some(34) && words.iter().all(|w| said.contains(w)),
                "{argv:?}: {} {said}",
                out.status
            );
            Ok(())
        };
        refused(
            "osd pool create many 1000",
            &["mon_max_pg_per_osd value of 250"],
        )?;
        refused("osd pool create many 70000", &["'pg_num' must be"])?;
        refused("osd pool create many 8 9", &["'pgp_num' must be"])?;
        refused("osd pool set rbd pg_num 1000", &["mon_max_pg_per_osd"])?;
        let name = format!("made-{version}");
        let create = ["ceph", "osd", "pool", "create", &name, "8"];
        c.run(create.iter().chain(&["--autoscale-mode=warn"]))?;
        let mode = c.run(["ceph", "osd", "pool", "get", &name, "pg_autoscale_mode"])?;
        ensure!(mode.contains("warn"), "{mode}");
        c.run([
            "ceph",
            "osd",
            "pool",
            "set",
            &name,
            "pg_autoscale_mode",
            "off",
        ])?;
        let dump = c.run(["ceph", "osd", "pool", "ls", "detail"])?;
        ensure!(dump.contains("autoscale_mode off"), "{dump}");
    }
    Ok(())
}
