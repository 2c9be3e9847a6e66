//! Our single-node server beside a real memstore OSD, in one run: the same client (`ublk-rbd bench
//! image`) drives both by turns; medians and their ratio.
//!
//! What counts is the server's CPU per request: the OSD's process for Ceph; for ours the whole
//! process, monitor included. "Per core" is what one core would do if it did nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use harness::ceph::{Auth, Cluster, Version};
use harness::product::Server;
use harness::tools::{self, cpu_time, median};
use nix::unistd::Pid;
use serde_json::Value;

#[derive(Parser)]
#[command(about = "Compare the embedded server with a memstore OSD of Ceph")]
struct Args {
    /// The release build of ublk-rbd
    #[arg(long, default_value = "target/release/ublk-rbd")]
    binary: PathBuf,
    /// Version of Ceph: 16, 18 or 20
    #[arg(long, default_value = "16")]
    ceph: Version,
    /// Seconds of one run
    #[arg(long, default_value_t = 4)]
    runtime: u64,
    /// Runs on each server in each row
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rows: pattern:block size:queue depth
    #[arg(long, value_delimiter = ',', default_values = [
        "randread:4k:1", "randread:4k:32", "randwrite:4k:1", "randwrite:4k:32", "randread:64k:16",
        "randwrite:64k:16",
    ])]
    rows: Vec<String>,
    /// No authentication instead of cephx
    #[arg(long)]
    no_auth: bool,
    /// Keep our server's objects in files
    #[arg(long)]
    files: bool,
}

const IMAGE: &str = "rbd/bench";

/// What one run gave.
#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    client_us: f64,
    server_us: f64,
}

/// A cluster to be measured.
struct Target<'a> {
    name: &'static str,
    binary: &'a Path,
    conf: PathBuf,
    server: Pid,
}

impl Target<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(self.binary);
        for name in ["CEPH_ARGS", "CEPH_CONF", "CEPH_KEYRING"] {
            command.env_remove(name);
        }
        command.arg("--conf").arg(&self.conf);
        command
    }

    fn prepare(&self) -> Result<()> {
        let mut create = self.command();
        create.args(["image", "create", "--size", "512M", IMAGE]);
        tools::run(create, Duration::from_secs(60))?;
        self.sample("write", "4M", "4", 5).map(drop)
    }

    fn sample(&self, rw: &str, bs: &str, qd: &str, seconds: u64) -> Result<Sample> {
        let mut command = self.command();
        command.args(["--format", "json", "bench", "image", "--destroy-data"]);
        command.args(["--rw", rw, "--bs", bs, "--qd", qd]);
        command.args(["--runtime", &seconds.to_string(), IMAGE]);
        let before = cpu_time(self.server)?;
        let text = tools::run(command, Duration::from_secs(seconds + 60))?;
        let used = cpu_time(self.server)? - before;
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
            client_us: get("cpu_us_per_io")?,
            server_us: used.as_secs_f64() * 1e6 / get("ios")?.max(1.0),
        })
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if !args.binary.exists() {
        bail!(
            "{} is missing: cargo build --release",
            args.binary.display()
        );
    }
    let (auth, auth_name) = if args.no_auth {
        (Auth::None, "none")
    } else {
        (Auth::Cephx, "cephx")
    };
    let cluster = Cluster::builder()
        .version(args.ceph)
        .osds(1)
        .auth(auth)
        .start()?;
    let mut options = vec!["--osds", "1", "--auth", auth_name];
    if !args.files {
        options.push("--memory");
    }
    let server = Server::of(&args.binary, &options)?;
    let osd = cluster
        .pid("osd.0".parse().map_err(anyhow::Error::msg)?)
        .context("no OSD")?;
    let ours = Target {
        name: "ublk-rbd",
        binary: &args.binary,
        conf: server.conf_path(),
        server: server.pid(),
    };
    let theirs = Target {
        name: "ceph-osd",
        binary: &args.binary,
        conf: cluster.conf_path(),
        server: osd,
    };
    ours.prepare()?;
    theirs.prepare()?;

    println!(
        "| row | server | IOPS | p50 us | p99 us | client CPU us | server CPU us | per core |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for row in &args.rows {
        let parts: Vec<&str> = row.split(':').collect();
        let [rw, bs, qd] = parts[..] else {
            bail!("'{row}' is no row: write pattern:block size:queue depth");
        };
        let (mut us, mut them, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let a = ours.sample(rw, bs, qd, args.runtime)?;
            let b = theirs.sample(rw, bs, qd, args.runtime)?;
            ratios.push(b.server_us / a.server_us);
            us.push(a);
            them.push(b);
        }
        for (name, samples) in [(ours.name, &us), (theirs.name, &them)] {
            let m = |f: fn(&Sample) -> f64| median(samples.iter().map(f).collect());
            println!(
                "| {rw} {bs} qd {qd} | {name} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.0} |",
                m(|s| s.iops),
                m(|s| s.p50_us),
                m(|s| s.p99_us),
                m(|s| s.client_us),
                m(|s| s.server_us),
                1e6 / m(|s| s.server_us),
            );
        }
        println!(
            "| {rw} {bs} qd {qd} | requests per server core, ours to Ceph's, median of pairs | | | | | | {:.1} |",
            median(ratios)
        );
    }
    cluster.stop()
}
