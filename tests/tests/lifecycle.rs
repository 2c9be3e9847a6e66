//! The life of an attached image: listing, detaching, dying and coming back, changes by others,
//! and a cluster that goes away.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::ceph::{Cluster, DaemonId, Store, Version};
use harness::product::{Mapped, Product, client, text};
use harness::tools::{Process, sha256_file, wait_for};
use harness::{Need, long, require};
use nix::sys::signal::{Signal, kill};

const MIB: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);

fn create(cluster: &Cluster, image: &str, mib: u64) -> Result<()> {
    let size = format!("{mib}M");
    let argv = [
        "rbd",
        "create",
        "--size",
        &size,
        "--image-feature",
        "layering",
        image,
    ];
    cluster.run(argv).map(drop)
}

fn exported(cluster: &Cluster, product: &Product, image: &str) -> Result<String> {
    let file = product.scratch("exported");
    cluster.run(["rbd", "export", "--no-progress", image, text(&file)])?;
    let sum = sha256_file(&file)?;
    fs::remove_file(&file)?;
    Ok(sum)
}

/// fio in the background, writing and reading over NBD until killed or out of time.
fn load(mapped: &Mapped, rw: &str, seconds: u64, more: &[&str]) -> Result<Process> {
    let uri = format!("--uri={}", mapped.uri);
    let rw = format!("--rw={rw}");
    let runtime = format!("--runtime={seconds}");
    let args = [
        "--ioengine=nbd",
        &uri,
        &rw,
        "--time_based",
        &runtime,
        "--iodepth=8",
    ];
    let mut command = client::fio_command(&[&args[..], more].concat());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process::spawn(command)
}

#[test]
fn disks_are_listed_and_detached_by_their_names() -> Result<()> {
    if !require(&[Need::Ceph(Version::V18), Need::NBDINFO, Need::FIO]) {
        return Ok(());
    }
    let cluster = Cluster::builder().version(Version::V18).start()?;
    let product = Product::new(&cluster)?;
    cluster.run(["rbd", "namespace", "create", "rbd/tenant"])?;
    for (image, mib) in [("rbd/one", 64), ("rbd/two", 16), ("rbd/tenant/one", 8)] {
        create(&cluster, image, mib)?;
    }
    cluster.run(["rbd", "snap", "create", "--no-progress", "rbd/two@s"])?;

    // One daemon for all.
    let one = product.map("rbd/one", &[])?;
    let two = product.map("rbd/two", &["--read-only"])?;
    let inner = product.map("rbd/tenant/one", &[])?;
    let snap = product.map("rbd/two@s", &[])?;
    let daemon = product.daemon()?;
    let sizes = [(&one, 64), (&two, 16), (&inner, 8), (&snap, 16)];
    for (mapped, mib) in sizes {
        ensure!(client::size(mapped)? == mib * MIB);
        ensure!(mapped.socket.starts_with(product.run_dir()));
    }
    let disks = product.json(["list"])?;
    let field = |name: &str| -> Vec<String> {
        let disks = disks.as_array().into_iter().flatten();
        disks
            .map(|disk| disk[name].to_string().replace('"', ""))
            .collect()
    };
    ensure!(field("id") == ["0", "1", "2", "3"], "{disks}");
    ensure!(field("pool") == ["rbd"; 4], "{disks}");
    ensure!(field("namespace") == ["", "", "tenant", ""], "{disks}");
    ensure!(field("image") == ["one", "two", "one", "two"], "{disks}");
    ensure!(field("snap") == ["null", "null", "null", "s"], "{disks}");
    ensure!(
        field("read_only") == ["false", "true", "false", "true"],
        "{disks}"
    );
    ensure!(field("state") == ["ok"; 4], "{disks}");
    ensure!(
        field("device") == [&*one.uri, &two.uri, &inner.uri, &snap.uri],
        "{disks}"
    );
    let sizes = [64, 16, 8, 16].map(|mib| (mib * MIB).to_string());
    ensure!(field("size") == sizes, "{disks}");
    let plain = product.run(["list"])?;
    let lines: Vec<_> = plain.lines().collect();
    ensure!(lines.len() == 5 && lines[0].starts_with("id"), "{plain}");
    ensure!(
        lines[1].contains("64 MiB") && lines[1].contains(&one.uri),
        "{plain}"
    );

    // Names that mean none, or more than one.
    for name in ["rbd/three", "7", "one/two"] {
        let why = product.refused(["unmap", name])?;
        ensure!(why.contains(name) && why.contains("not attached"), "{why}");
    }
    let again = product.scratch("again");
    product.map("rbd/one", &["--read-only", "--socket", text(&again)])?;
    let why = product.refused(["unmap", "rbd/one"])?;
    ensure!(why.contains("more than once"), "{why}");
    product.unmap(text(&again))?;
    ensure!(!again.exists());

    let uri = product.run(["map", "--tcp", "127.0.0.1:0", "rbd/tenant/one"])?;
    let tcp = Mapped {
        uri: uri.trim_end().to_owned(),
        socket: Default::default(),
    };
    ensure!(tcp.uri.starts_with("nbd://127.0.0.1:") && client::size(&tcp)? == 8 * MIB);
    product.unmap(&tcp.uri)?;

    // While a client is connected, only by force.
    let mut fio = load(&one, "randread", 60, &["--size=64M"])?;
    product.unmap("rbd/two")?;
    ensure!(!two.socket.exists());
    std::thread::sleep(Duration::from_secs(2));
    ensure!(fio.is_running());
    let why = product.refused(["unmap", "rbd/one"])?;
    ensure!(
        why.contains("connected") && why.contains("--force"),
        "{why}"
    );
    ensure!(fio.is_running(), "the refused unmap hurt its client");
    ensure!(product.run(["unmap", "--force", "rbd/one"])?.is_empty());
    let status = fio.wait(MINUTE)?;
    ensure!(!status.success(), "fio did not notice");
    ensure!(!one.socket.exists());

    // By socket and by id; the daemon goes with the last.
    product.unmap(text(&inner.socket))?;
    ensure!(product.daemon()? == daemon);
    product.unmap("3")?;
    product.assert_gone()?;
    for image in ["rbd/one", "rbd/two", "rbd/tenant/one"] {
        let status = cluster.run(["rbd", "status", image])?;
        ensure!(status.contains("Watchers: none"), "{image}: {status}");
    }
    Ok(())
}

#[test]
fn a_killed_daemon_is_followed_by_another() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16), Need::FIO, Need::NBDCOPY]) {
        return Ok(());
    }
    let cluster = Cluster::builder().version(Version::V16).start()?;
    let product = Product::new(&cluster)?;
    create(&cluster, "rbd/one", 32)?;
    let rounds = if long() { 5 } else { 2 };
    let verify = [
        "--size=32M",
        "--bs=4k",
        "--verify=crc32c",
        "--verify_fatal=1",
    ];
    let mut before = None;
    for _ in 0..rounds {
        let mapped = product.map("rbd/one", &[])?;
        if let Some(before) = before.replace(mapped.uri.clone()) {
            ensure!(mapped.uri == before, "{} after {before}", mapped.uri);
        }
        // All of it is sound before the next blow.
        let uri = format!("--uri={}", mapped.uri);
        let args = ["--ioengine=nbd", &uri, "--rw=randwrite", "--iodepth=16"];
        client::fio(&[&args[..], &verify].concat(), &[], 3 * MINUTE)?;
        let sum = client::sha256(&mapped, &product.scratch("out"))?;
        ensure!(exported(&cluster, &product, "rbd/one")? == sum);

        let mut fio = load(&mapped, "randwrite", 60, &["--size=32M", "--bs=64k"])?;
        std::thread::sleep(Duration::from_secs(2));
        ensure!(fio.is_running());
        product.kill_daemon()?;
        ensure!(!fio.wait(MINUTE)?.success(), "fio did not notice");
        ensure!(mapped.socket.exists(), "a killed daemon tidied up");
        let none = product.json(["list"])?;
        ensure!(none == serde_json::json!([]), "{none}");
    }
    // What was in flight is there or not, but for every reader alike.
    let mapped = product.map("rbd/one", &[])?;
    let sum = client::sha256(&mapped, &product.scratch("out"))?;
    ensure!(exported(&cluster, &product, "rbd/one")? == sum);
    product.unmap("rbd/one")?;
    product.assert_gone()
}

#[test]
fn in_the_foreground_and_without_an_answer() -> Result<()> {
    if !require(&[Need::Ceph(Version::V20), Need::NBDINFO]) {
        return Ok(());
    }
    let mut cluster = Cluster::builder().version(Version::V20).start()?;
    let product = Product::new(&cluster)?;
    create(&cluster, "rbd/one", 8)?;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (mut process, mapped) = product.map_foreground("rbd/one", &[])?;
        ensure!(client::size(&mapped)? == 8 * MIB);
        process.signal(signal)?;
        let status = process.wait(Duration::from_secs(10))?;
        ensure!(status.success(), "{signal}: {status}");
        product.assert_gone()?;
        let status = cluster.run(["rbd", "status", "rbd/one"])?;
        ensure!(status.contains("Watchers: none"), "{signal}: {status}");
    }

    // A monitor that answers nothing: `map` waits, and whoever kills it ends the attempt.
    let mon = cluster.pid(DaemonId::Mon(0)).context("no monitor")?;
    kill(mon, Signal::SIGSTOP)?;
    for foreground in [false, true] {
        let args = ["map", "rbd/one", "--foreground"];
        let mut command = product.command(&args[..2 + usize::from(foreground)]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut map = Process::spawn(command)?;
        std::thread::sleep(Duration::from_secs(1));
        ensure!(map.is_running());
        let signal = if foreground {
            Signal::SIGINT
        } else {
            Signal::SIGKILL
        };
        map.signal(signal)?;
        map.wait(Duration::from_secs(5))?;
        product.assert_gone()?;
    }
    kill(mon, Signal::SIGCONT)?;
    cluster.wait_quorum(1, MINUTE)?;

    // The same with an OSD, whose answer about the image's header is waited for.
    cluster.pause_osd(0)?;
    let mut command = product.command(["map", "rbd/one"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut map = Process::spawn(command)?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(map.is_running());
    map.signal(Signal::SIGKILL)?;
    map.wait(Duration::from_secs(5))?;
    product.assert_gone()?;
    cluster.resume_osd(0)?;
    let mapped = product.map("rbd/one", &[])?;
    ensure!(client::size(&mapped)? == 8 * MIB);
    product.unmap("rbd/one")?;
    product.assert_gone()
}

/// qemu-io in the background, for a request that may wait.
fn request(mapped: &Mapped, command: &str) -> Result<Process> {
    let mut qemu = std::process::Command::new("qemu-io");
    qemu.args(["-f", "raw", "-c", command, &mapped.uri]);
    qemu.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Process::spawn(qemu)
}

fn said(process: &mut Process) -> Result<String> {
    use std::io::Read;
    let mut text = String::new();
    process
        .take_stdout()
        .context("no pipe")?
        .read_to_string(&mut text)?;
    process
        .take_stderr()
        .context("no pipe")?
        .read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn a_cluster_that_goes_away() -> Result<()> {
    if !require(&[Need::Ceph(Version::V18), Need::QEMU_IO, Need::NBDINFO]) {
        return Ok(());
    }
    let builder = Cluster::builder()
        .version(Version::V18)
        .store(Store::Bluestore);
    let mut cluster = builder.start()?;
    let product = Product::new(&cluster)?;
    for image in ["rbd/patient", "rbd/hasty"] {
        create(&cluster, image, 16)?;
    }
    let patient = product.map("rbd/patient", &[])?;
    let hasty = product.map("rbd/hasty", &["--request-timeout", "5"])?;
    for mapped in [&patient, &hasty] {
        client::qemu(&mapped.uri, &["write -P 7 0 1M", "flush"])?;
    }

    // The whole cluster is gone: one disk waits, the other gives up in time.
    cluster.shut_down(Signal::SIGKILL)?;
    let begun = Instant::now();
    let mut reads = Vec::new();
    for command in ["read -P 7 0 4k", "write -P 8 8k 4k"] {
        reads.push(request(&patient, command)?);
        let mut hasty = request(&hasty, command)?;
        hasty.wait(Duration::from_secs(12))?;
        let text = said(&mut hasty)?;
        ensure!(text.contains("Input/output error"), "{command}: {text}");
    }
    let waited = begun.elapsed();
    ensure!(waited > Duration::from_secs(9), "failed after {waited:?}");
    ensure!(
        reads.iter_mut().all(Process::is_running),
        "a request did not wait"
    );
    // The daemon answers all the while.
    let asked = Instant::now();
    let disks = product.json(["list"])?;
    ensure!(
        asked.elapsed() < Duration::from_secs(3),
        "list took {:?}",
        asked.elapsed()
    );
    ensure!(
        disks[0]["state"] != "ok",
        "the disk's trouble is not told: {disks}"
    );

    // It comes back, and what waited goes on.
    cluster.restart(2 * MINUTE)?;
    for read in &mut reads {
        read.wait(MINUTE)?;
        let text = said(read)?;
        ensure!(!text.contains("rror") && !text.contains("failed"), "{text}");
    }
    for mapped in [&patient, &hasty] {
        client::qemu(
            &mapped.uri,
            &["read -P 7 0 4k", "write -P 9 64k 64k", "flush"],
        )?;
    }
    client::qemu(&patient.uri, &["read -P 8 8k 4k"])?;
    wait_for("all well", MINUTE, || {
        let disks = product.json(["list"])?;
        Ok(disks[0]["state"] == "ok" && disks[1]["state"] == "ok")
    })?;

    // And away for good: unmap --force needs no cluster, with requests in flight or none.
    cluster.shut_down(Signal::SIGKILL)?;
    let mut stuck = request(&patient, "write -P 1 0 64k")?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(stuck.is_running());
    for image in ["rbd/patient", "rbd/hasty"] {
        let begun = Instant::now();
        ensure!(product.run(["unmap", "--force", image])?.is_empty());
        ensure!(
            begun.elapsed() < Duration::from_secs(5),
            "{image}: {:?}",
            begun.elapsed()
        );
    }
    stuck.wait(Duration::from_secs(10))?;
    product.assert_gone()?;
    ensure!(!patient.socket.exists() && !hasty.socket.exists());
    Ok(())
}

#[test]
fn changes_by_others_are_noticed() -> Result<()> {
    if !require(&[
        Need::Ceph(Version::V18),
        Need::NBDCOPY,
        Need::FIO,
        Need::QEMU_IO,
    ]) {
        return Ok(());
    }
    let cluster = Cluster::builder().version(Version::V18).start()?;
    let product = Product::new(&cluster)?;
    create(&cluster, "rbd/one", 16)?;
    let mapped = product.map("rbd/one", &[])?;
    client::qemu(&mapped.uri, &["write -P 1 0 16M"])?;

    // Larger and smaller.
    cluster.run(["rbd", "resize", "--no-progress", "--size", "24M", "rbd/one"])?;
    ensure!(client::size(&mapped)? == 24 * MIB, "growth went unnoticed");
    client::qemu(
        &mapped.uri,
        &["read -P 1 0 16M", "read -P 0 16M 8M", "write -P 2 23M 1M"],
    )?;
    let shrink = [
        "rbd",
        "resize",
        "--no-progress",
        "--allow-shrink",
        "--size",
        "6M",
        "rbd/one",
    ];
    cluster.run(shrink)?;
    ensure!(
        client::size(&mapped)? == 6 * MIB,
        "shrinking went unnoticed"
    );
    cluster.run(["rbd", "resize", "--no-progress", "--size", "16M", "rbd/one"])?;
    client::qemu(&mapped.uri, &["read -P 1 0 6M", "read -P 0 6M 10M"])?;

    // Snapshots while we write: each stays as it was from the moment it was made.
    let mut fio = load(&mapped, "randwrite", 120, &["--size=16M", "--bs=16k"])?;
    let rounds = if long() { 20 } else { 4 };
    let mut sums = Vec::new();
    for n in 0..rounds {
        std::thread::sleep(Duration::from_millis(500));
        let snap = format!("rbd/one@s{n}");
        cluster.run(["rbd", "snap", "create", "--no-progress", &snap])?;
        sums.push((exported(&cluster, &product, &snap)?, snap));
    }
    ensure!(fio.is_running(), "fio ended early");
    fio.signal(Signal::SIGINT)?;
    fio.wait(MINUTE)?;
    let different: std::collections::HashSet<_> = sums.iter().map(|(sum, _)| sum).collect();
    ensure!(
        different.len() == rounds,
        "nothing was written between the snapshots"
    );
    client::qemu(&mapped.uri, &["write -P 3 0 16M", "flush"])?;
    for (sum, snap) in &sums {
        ensure!(
            exported(&cluster, &product, snap)? == *sum,
            "{snap} changed"
        );
    }
    let snap = product.map(&sums[0].1, &[])?;
    ensure!(client::sha256(&snap, &product.scratch("out"))? == sums[0].0);
    product.unmap(&sums[0].1)?;

    // Under another name it is the same image, also when the name is another's.
    cluster.run(["rbd", "rename", "rbd/one", "rbd/renamed"])?;
    create(&cluster, "rbd/one", 3)?;
    cluster.run([
        "rbd",
        "snap",
        "create",
        "--no-progress",
        "rbd/renamed@after",
    ])?;
    let sum = exported(&cluster, &product, "rbd/renamed@after")?;
    client::qemu(&mapped.uri, &["write -P 9 0 16M", "flush"])?;
    ensure!(
        exported(&cluster, &product, "rbd/renamed@after")? == sum,
        "the snapshot changed"
    );
    cluster.run(["rbd", "rm", "--no-progress", "rbd/one"])?;
    cluster.run(["rbd", "rename", "rbd/renamed", "rbd/one"])?;
    client::qemu(&mapped.uri, &["write -P 3 0 16M", "flush"])?;

    // Snapshots that go while the image is attached.
    cluster.run(["rbd", "snap", "purge", "--no-progress", "rbd/one"])?;
    client::qemu(
        &mapped.uri,
        &["read -P 3 0 16M", "write -P 4 0 16M", "flush"],
    )?;
    let sum = client::sha256(&mapped, &product.scratch("out"))?;
    ensure!(exported(&cluster, &product, "rbd/one")? == sum);
    product.unmap("rbd/one")?;
    product.assert_gone()?;
    // No clone of an object is left of all of it.
    let rm = product.run(["image", "rm", "--no-progress", "rbd/one"])?;
    ensure!(rm.is_empty(), "{rm}");
    Ok(())
}

/// A daemon that does not run for a while loses its watch, and misses what happens meanwhile.
#[test]
fn a_lost_watch_is_taken_up_again() -> Result<()> {
    if !require(&[Need::Ceph(Version::V18), Need::NBDINFO, Need::QEMU_IO]) {
        return Ok(());
    }
    let builder = Cluster::builder().version(Version::V18);
    let cluster = builder.extra_conf("osd_client_watch_timeout = 8").start()?;
    let product = Product::new(&cluster)?;
    create(&cluster, "rbd/one", 8)?;
    let mapped = product.map("rbd/one", &[])?;
    client::qemu(&mapped.uri, &["write -P 1 0 8M", "flush"])?;
    let watched = || -> Result<bool> {
        let status = cluster.run(["rbd", "status", "rbd/one"])?;
        Ok(status.contains("watcher="))
    };
    ensure!(watched()?);
    let daemon = product.daemon()?;
    kill(daemon, Signal::SIGSTOP)?;
    wait_for("the end of the watch", MINUTE, || Ok(!watched()?))?;
    cluster.run(["rbd", "resize", "--no-progress", "--size", "9M", "rbd/one"])?;
    cluster.run(["rbd", "snap", "create", "--no-progress", "rbd/one@s"])?;
    let sum = exported(&cluster, &product, "rbd/one@s")?;
    kill(daemon, Signal::SIGCONT)?;
    wait_for("a new watch", MINUTE, watched)?;
    wait_for("the new size", MINUTE, || {
        Ok(client::size(&mapped)? == 9 * MIB)
    })?;
    client::qemu(&mapped.uri, &["write -P 2 0 9M", "flush"])?;
    ensure!(
        exported(&cluster, &product, "rbd/one@s")? == sum,
        "the snapshot changed"
    );
    // The new watch hears as the old one did.
    cluster.run(["rbd", "resize", "--no-progress", "--size", "10M", "rbd/one"])?;
    ensure!(client::size(&mapped)? == 10 * MIB);
    product.unmap("rbd/one")?;
    product.assert_gone()?;
    ensure!(!watched()?, "a watch is left");
    Ok(())
}

/// The OSD that an object of pool `rbd` is on, where there is one replica.
fn osd_of(cluster: &Cluster, object: &str) -> Result<u64> {
    let placed = cluster.ceph_json(["osd", "map", "rbd", object])?;
    let osd = placed["acting_primary"].as_u64();
    osd.with_context(|| format!("{object} is nowhere: {placed}"))
}

/// `rbd snap create` does not return while a write is under way that does not know the snapshot:
/// landing later, it would change what the snapshot shows.
#[test]
fn snapshots_wait_for_writes_under_way() -> Result<()> {
    if !require(&[Need::Ceph(Version::V18), Need::QEMU_IO]) {
        return Ok(());
    }
    let builder = Cluster::builder().version(Version::V18).osds(3);
    let mut cluster = builder.pool_size(1).start()?;
    let product = Product::new(&cluster)?;
    // An image whose metadata leaves an OSD to data.
    let mut found = None;
    for n in 0..20 {
        let name = format!("i{n}");
        create(&cluster, &format!("rbd/{name}"), 64)?;
        let info = product.json(["image", "info", &format!("rbd/{name}")])?;
        let id = info["id"].as_str().context("no id")?;
        let metadata = [
            format!("rbd_id.{name}"),
            format!("rbd_header.{id}"),
            "rbd_info".into(),
        ];
        let taken: Vec<u64> = metadata
            .iter()
            .map(|object| osd_of(&cluster, object))
            .collect::<Result<_>>()?;
        let prefix = info["block_name_prefix"].as_str().context("no prefix")?;
        for object in 0..16u64 {
            let osd = osd_of(&cluster, &format!("{prefix}.{object:016x}"))?;
            if !taken.contains(&osd) {
                found = Some((format!("rbd/{name}"), object, osd as usize));
                break;
            }
        }
        if found.is_some() {
            break;
        }
    }
    let (image, object, osd) = found.context("no image lies as it should")?;
    let offset = object * 4 * MIB;
    let mapped = product.map(&image, &[])?;
    client::qemu(&mapped.uri, &[&format!("write -P 1 {offset} 1M"), "flush"])?;

    cluster.pause_osd(osd)?;
    let mut write = request(&mapped, &format!("write -P 2 {offset} 64k"))?;
    std::thread::sleep(Duration::from_millis(500));
    let snap = format!("{image}@s");
    let mut command = cluster.command(["rbd", "snap", "create", "--no-progress", &snap])?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut snapping = Process::spawn(command)?;
    // It waits for our answer for 5 s (Ceph: `librbd/watcher/Notifier.cc`, `NOTIFY_TIMEOUT`).
    std::thread::sleep(Duration::from_secs(2));
    ensure!(write.is_running(), "a paused OSD answered");
    ensure!(
        snapping.is_running(),
        "the snapshot did not wait for the write"
    );
    cluster.resume_osd(osd)?;
    write.wait(MINUTE)?;
    ensure!(snapping.wait(MINUTE)?.success());
    let sum = exported(&cluster, &product, &snap)?;
    client::qemu(&mapped.uri, &[&format!("write -P 3 {offset} 1M"), "flush"])?;
    ensure!(
        exported(&cluster, &product, &snap)? == sum,
        "the snapshot changed"
    );
    ensure!(exported(&cluster, &product, &image)? != sum);
    product.unmap(&image)?;
    product.assert_gone()
}
