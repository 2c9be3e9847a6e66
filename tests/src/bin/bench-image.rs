//! Our client beside librbd on one cluster, in one run: `ublk-rbd bench image` and
//! `fio --ioengine=rbd` by turns, medians and their ratio.
//!
//! CPU is the whole client process's, per I/O; from fio's a run of one request is taken off, which
//! leaves out its start. Both read an image that is filled and fits the OSD's memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use harness::ceph::{Auth, Cluster, Version};
use harness::tools::{self, median};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

#[derive(Parser)]
#[command(about = "Compare ublk-rbd with librbd (fio's rbd engine) on one memstore cluster")]
struct Args {
    /// The release build of ublk-rbd
    #[arg(long, default_value = "target/release/ublk-rbd")]
    binary: PathBuf,
    /// Version of Ceph: 16, 18 or 20
    #[arg(long, default_value = "16")]
    ceph: String,
    /// Seconds of one run
    #[arg(long, default_value_t = 4)]
    runtime: u64,
    /// Runs of each client in each row
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rows: pattern:block size:queue depth
    #[arg(long, value_delimiter = ',', default_values = [
        "randread:4k:1", "randread:4k:32", "randwrite:4k:1", "randwrite:4k:32", "randread:64k:16",
    ])]
    rows: Vec<String>,
    /// Leave librbd's write-back cache on, as it is by default. Off compares like with like: our
    /// client has no cache, and a write is only done when it is on the OSD
    #[arg(long)]
    rbd_cache: bool,
    /// No authentication instead of cephx
    #[arg(long)]
    no_auth: bool,
}

#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

const IMAGE: &str = "rbd/bench";
const SIZE: &str = "512M";

fn main() -> Result<()> {
    let args = Args::parse();
    let version = match args.ceph.as_str() {
        "16" => Version::V16,
        "18" => Version::V18,
        "20" => Version::V20,
        other => bail!("there is no test cluster of Ceph {other}: use 16, 18 or 20"),
    };
    if !args.binary.exists() {
        bail!(
            "{} is missing: cargo build --release",
            args.binary.display()
        );
    }
    let auth = if args.no_auth {
        Auth::None
    } else {
        Auth::Cephx
    };
    let cluster = Cluster::builder()
        .version(version)
        .osds(1)
        .auth(auth)
        .start()?;
    cluster.run([
        "rbd",
        "create",
        "--size",
        SIZE,
        "--image-feature",
        "layering",
        IMAGE,
    ])?;
    ours(&args.binary, &cluster, "write", "4M", "4", 5)?;

    println!("| row | client | IOPS | p50 us | p99 us | CPU us per I/O |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for row in &args.rows {
        let parts: Vec<&str> = row.split(':').collect();
        let [rw, bs, qd] = parts[..] else {
            bail!("'{row}' is no row: write pattern:block size:queue depth");
        };
        let (mut us, mut them, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let a = ours(&args.binary, &cluster, rw, bs, qd, args.runtime)?;
            let b = librbd(&cluster, rw, bs, qd, &args)?;
            cpu.push(a.cpu_us / b.cpu_us);
            us.push(a);
            them.push(b);
        }
        for (name, samples) in [("ublk-rbd", &us), ("librbd", &them)] {
            let m = |f: fn(&Sample) -> f64| median(samples.iter().map(f).collect());
            println!(
                "| {rw} {bs} qd {qd} | {name} | {:.0} | {:.0} | {:.0} | {:.2} |",
                m(|s| s.iops),
                m(|s| s.p50_us),
                m(|s| s.p99_us),
                m(|s| s.cpu_us),
            );
        }
        println!(
            "| {rw} {bs} qd {qd} | ratio of CPU, median of pairs | | | | {:.3} |",
            median(cpu)
        );
    }
    cluster.stop()
}

fn ours(
    binary: &Path,
    cluster: &Cluster,
    rw: &str,
    bs: &str,
    qd: &str,
    seconds: u64,
) -> Result<Sample> {
    let mut command = Command::new(binary);
    command.arg("--conf").arg(cluster.conf_path());
    command.arg("--keyring").arg(cluster.keyring_path());
    command.args([
        "--format",
        "json",
        "bench",
        "image",
        "--destroy-data",
        "--rw",
        rw,
    ]);
    command.args([
        "--bs",
        bs,
        "--qd",
        qd,
        "--runtime",
        &seconds.to_string(),
        IMAGE,
    ]);
    let text = tools::run(command, Duration::from_secs(seconds + 60))?;
    let v: Value = serde_json::from_str(&text).context("bench image printed no JSON")?;
    let get = |key: &str| {
        v[key]
            .as_f64()
            .with_context(|| format!("no {key} in {text}"))
    };
    Ok(Sample {
        iops: get("iops")?,
        p50_us: get("p50_us")?,
        p99_us: get("p99_us")?,
        cpu_us: get("cpu_us_per_io")?,
    })
}

fn librbd(cluster: &Cluster, rw: &str, bs: &str, qd: &str, args: &Args) -> Result<Sample> {
    let seconds = args.runtime;
    let fio = |extra: &[String]| -> Result<(Value, Duration)> {
        let mut command = cluster.command(["fio"])?;
        let (pool, image) = IMAGE.split_once('/').expect("a pool and an image");
        command.args([
            "--name=x",
            "--ioengine=rbd",
            "--clientname=admin",
            "--output-format=json",
        ]);
        command.args([format!("--pool={pool}"), format!("--rbdname={image}")]);
        command.args([
            format!("--rw={rw}"),
            format!("--bs={bs}"),
            format!("--iodepth={qd}"),
        ]);
        command.env("CEPH_CONF", cluster.conf_path()).args(extra);
        command.env("CEPH_ARGS", format!("--rbd_cache={}", args.rbd_cache));
        let before = children()?;
        let text = tools::run(command, Duration::from_secs(seconds + 60))?;
        let used = children()?.saturating_sub(before);
        // librbd may print before the JSON.
        let start = text.find('{').context("fio printed no JSON")?;
        Ok((serde_json::from_str(&text[start..])?, used))
    };
    let (_, start) = fio(&["--number_ios=1".to_owned()])?;
    let (v, used) = fio(&["--time_based".to_owned(), format!("--runtime={seconds}")])?;
    let side = &v["jobs"][0][if rw.contains("write") {
        "write"
    } else {
        "read"
    }];
    let ios = side["total_ios"].as_f64().context("no total_ios")?;
    let latency = &side["clat_ns"]["percentile"];
    let at = |p: &str| latency[p].as_f64().map_or(0.0, |ns| ns / 1e3);
    Ok(Sample {
        iops: side["iops"].as_f64().context("no iops")?,
        p50_us: at("50.000000"),
        p99_us: at("99.000000"),
        cpu_us: used.saturating_sub(start).as_secs_f64() * 1e6 / ios.max(1.0),
    })
}

/// CPU time of children that have ended.
fn children() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let time = |t: nix::sys::time::TimeVal| {
        Duration::from_secs(t.tv_sec().unsigned_abs())
            + Duration::from_micros(t.tv_usec().unsigned_abs())
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}
