//! Small clusters of real Ceph for a shell: what [`harness::ceph`] gives to tests.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use harness::ceph::{
    Auth, Cipher, Cluster, DaemonId, Installed, Mgr, Mode, Store, Version, install, install_tools,
};
use nix::sys::signal::Signal;

/// Runs small clusters of real Ceph on 127.0.0.1, for tests and benchmarks.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Install a version of Ceph, or the tools that tests use besides
    Install {
        /// 16, 18, 20 or tools; all of them if none is named
        what: Vec<String>,
    },
    /// Show which versions of Ceph are installed, and where
    Versions,
    /// Make a cluster in DIR (or start again the one that is there) and wait until it serves I/O
    Start(Start),
    /// End the daemons; the data stays
    Stop {
        /// Kill them, as a power cut does
        #[arg(long)]
        kill: bool,
        dir: PathBuf,
    },
    /// Kill the daemons and remove DIR
    Destroy { dir: PathBuf },
    /// Show the daemons; fails unless all run
    Status { dir: PathBuf },
    /// Print the shell variables CONF, KEYRING and MON_HOST
    Conf { dir: PathBuf },
    /// Run a program of the cluster's version against it (rbd, rados, ceph, ...)
    Run {
        dir: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Kill an OSD
    KillOsd {
        osd: usize,
        dir: PathBuf,
        /// Another signal, such as TERM
        #[arg(long, default_value = "KILL")]
        signal: String,
    },
    /// Start a killed OSD and wait until it is up
    ReviveOsd { osd: usize, dir: PathBuf },
    /// Stop an OSD in its tracks
    PauseOsd { osd: usize, dir: PathBuf },
    /// Let a paused OSD go on
    ResumeOsd { osd: usize, dir: PathBuf },
    /// Kill a monitor (a, b, c...)
    KillMon { mon: char, dir: PathBuf },
    /// Start a killed monitor
    ReviveMon { mon: char, dir: PathBuf },
    /// Wait until all placement groups are active+clean
    WaitClean {
        dir: PathBuf,
        /// Seconds to wait
        #[arg(long, default_value_t = 120)]
        timeout: u64,
    },
}

#[derive(Args)]
struct Start {
    #[arg(long, default_value = "16")]
    version: Version,
    #[arg(long, default_value_t = 1)]
    osds: usize,
    #[arg(long, default_value_t = 1)]
    mons: usize,
    #[arg(long, value_enum, default_value = "memstore")]
    store: StoreArg,
    /// Capacity of each OSD in GiB (memstore 4, bluestore 10)
    #[arg(long, value_name = "GIB")]
    store_size: Option<u64>,
    #[arg(long, value_enum, default_value = "cephx")]
    auth: AuthArg,
    /// Type of cephx keys (default: the version's own)
    #[arg(long, value_enum)]
    cipher: Option<CipherArg>,
    /// msgr2 mode of all connections (default: Ceph's own)
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// No msgr1 addresses
    #[arg(long)]
    v2_only: bool,
    /// Replicas of pool rbd (default: as many as there are OSDs, at most 3)
    #[arg(long)]
    pool_size: Option<usize>,
    /// Replicas that I/O needs (default: one less)
    #[arg(long)]
    min_size: Option<usize>,
    /// Placement groups of pool rbd (default: 8 with one OSD, else 32)
    #[arg(long)]
    pg_num: Option<u32>,
    /// Also make the erasure coded pool rbd-ec (bluestore only)
    #[arg(long, value_name = "K,M", value_parser = parse_ec)]
    ec: Option<(usize, usize)>,
    /// No manager
    #[arg(long)]
    no_mgr: bool,
    /// A line for ceph.conf's [global]; may be repeated
    #[arg(long = "conf", value_name = "KEY = VALUE")]
    extra_conf: Vec<String>,
    /// Stay in the foreground; the cluster ends with this process
    #[arg(long)]
    foreground: bool,
    /// Seconds to wait for the cluster
    #[arg(long, default_value_t = 120)]
    timeout: u64,
    dir: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum StoreArg {
    Memstore,
    Bluestore,
}

#[derive(Clone, Copy, ValueEnum)]
enum AuthArg {
    Cephx,
    None,
}

#[derive(Clone, Copy, ValueEnum)]
enum CipherArg {
    Aes,
    Aes256k,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    Crc,
    Secure,
}

fn parse_ec(text: &str) -> Result<(usize, usize), String> {
    let (k, m) = text.split_once(',').ok_or("not K,M")?;
    let number = |text: &str| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
    Ok((number(k)?, number(m)?))
}

fn main() -> ExitCode {
    match act(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ceph-cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(action: Action) -> Result<ExitCode> {
    match action {
        Action::Install { what } => install_all(&what)?,
        Action::Versions => {
            for version in Version::ALL {
                match Installed::find(version) {
                    Ok(installed) => println!("{version}  {}", installed.place()),
                    Err(error) => println!("{version}  -  {error}"),
                }
            }
        }
        Action::Start(start) => start.go()?,
        Action::Stop { kill, dir } => {
            let signal = if kill {
                Signal::SIGKILL
            } else {
                Signal::SIGTERM
            };
            Cluster::open(&dir)?.shut_down(signal)?;
        }
        Action::Destroy { dir } => {
            let mut cluster = Cluster::open(&dir)?;
            cluster.shut_down(Signal::SIGKILL)?;
            let dir = cluster.dir();
            std::fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
        }
        Action::Status { dir } => return status(&mut Cluster::open(&dir)?),
        Action::Conf { dir } => print_conf(&Cluster::open(&dir)?),
        Action::Run { dir, command } => return run(&Cluster::open(&dir)?, &command),
        Action::KillOsd { osd, dir, signal } => {
            let signal: Signal = format!("SIG{}", signal.trim_start_matches("SIG"))
                .parse()
                .with_context(|| format!("no signal {signal}"))?;
            Cluster::open(&dir)?.signal_osd(osd, signal)?;
        }
        Action::ReviveOsd { osd, dir } => {
            let mut cluster = Cluster::open(&dir)?;
            cluster.revive_osd(osd)?;
            cluster.wait_osd_up(osd, Duration::from_secs(60))?;
        }
        Action::PauseOsd { osd, dir } => Cluster::open(&dir)?.pause_osd(osd)?,
        Action::ResumeOsd { osd, dir } => Cluster::open(&dir)?.resume_osd(osd)?,
        Action::KillMon { mon, dir } => Cluster::open(&dir)?.kill_mon(mon_index(mon)?)?,
        Action::ReviveMon { mon, dir } => Cluster::open(&dir)?.revive_mon(mon_index(mon)?)?,
        Action::WaitClean { dir, timeout } => {
            Cluster::open(&dir)?.wait_clean(Duration::from_secs(timeout))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn mon_index(name: char) -> Result<usize> {
    match format!("mon.{name}").parse() {
        Ok(DaemonId::Mon(index)) => Ok(index),
        _ => bail!("no monitor {name}"),
    }
}

fn install_all(what: &[String]) -> Result<()> {
    let everything = ["tools", "16", "18", "20"].map(str::to_owned);
    let what = if what.is_empty() {
        &everything[..]
    } else {
        what
    };
    for name in what {
        if name == "tools" {
            install_tools()?;
            println!("tools are installed");
        } else {
            let version: Version = name.parse().map_err(anyhow::Error::msg)?;
            println!("Ceph {version} is in {}", install(version)?.place());
        }
    }
    Ok(())
}

impl Start {
    fn go(self) -> Result<()> {
        let timeout = Duration::from_secs(self.timeout);
        if self.dir.join("settings.json").exists() {
            if self.foreground {
                bail!("{} holds a detached cluster", self.dir.display());
            }
            let mut cluster = Cluster::open(&self.dir)?;
            cluster.restart(timeout)?;
            print_conf(&cluster);
            return Ok(());
        }
        let mut builder = Cluster::builder()
            .version(self.version)
            .osds(self.osds)
            .mons(self.mons)
            .store(match self.store {
                StoreArg::Memstore => Store::Memstore,
                StoreArg::Bluestore => Store::Bluestore,
            })
            .auth(match self.auth {
                AuthArg::Cephx => Auth::Cephx,
                AuthArg::None => Auth::None,
            })
            .cipher(match self.cipher {
                None => Cipher::Default,
                Some(CipherArg::Aes) => Cipher::Aes,
                Some(CipherArg::Aes256k) => Cipher::Aes256k,
            })
            .mode(match self.mode {
                None => Mode::Default,
                Some(ModeArg::Crc) => Mode::Crc,
                Some(ModeArg::Secure) => Mode::Secure,
            })
            .mgr(if self.no_mgr { Mgr::None } else { Mgr::Lite })
            .msgr1(!self.v2_only)
            .timeout(timeout)
            .dir(&self.dir);
        if let Some(gib) = self.store_size {
            builder = builder.store_bytes(gib << 30);
        }
        if let Some(size) = self.pool_size {
            builder = builder.pool_size(size);
        }
        if let Some(size) = self.min_size {
            builder = builder.min_size(size);
        }
        if let Some(count) = self.pg_num {
            builder = builder.pg_num(count);
        }
        if let Some((k, m)) = self.ec {
            builder = builder.ec(k, m);
        }
        for line in self.extra_conf {
            builder = builder.extra_conf(line);
        }
        if !self.foreground {
            let cluster = builder.detached().start()?;
            eprintln!("ready after {:.2} s", cluster.ready_after().as_secs_f64());
            print_conf(&cluster);
            return Ok(());
        }
        let cluster = builder.concurrent().start()?;
        eprintln!("ready after {:.2} s", cluster.ready_after().as_secs_f64());
        print_conf(&cluster);
        // Whatever signal ends this process, the kernel passes it on to the daemons as a SIGKILL.
        loop {
            std::thread::park();
        }
    }
}

fn print_conf(cluster: &Cluster) {
    let mons: Vec<_> = cluster
        .mon_addrs()
        .iter()
        .map(ToString::to_string)
        .collect();
    println!("CONF={}", cluster.conf_path().display());
    println!("KEYRING={}", cluster.keyring_path().display());
    println!("MON_HOST={}", mons.join(","));
}

fn status(cluster: &mut Cluster) -> Result<ExitCode> {
    let mut all_up = true;
    for (id, line) in cluster.status() {
        println!("{id:<6} {line}");
        all_up &= line != "down";
    }
    if let Ok(out) = cluster.output(["ceph", "--connect-timeout", "5", "-s"], COMMAND_LIMIT) {
        print!("{}", out.stdout_str());
    }
    Ok(if all_up {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// Unlike [`Cluster::run`], with this process's own input and output and no time limit.
fn run(cluster: &Cluster, command: &[String]) -> Result<ExitCode> {
    let status = cluster
        .command(command)?
        .status()
        .with_context(|| format!("cannot run {}", command[0]))?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, Into::into))
}
