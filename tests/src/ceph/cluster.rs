//! A running cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use super::builder::Builder;
use super::conf::Settings;
use super::daemon::{Daemon, DaemonId};
use super::state::{TempCluster, Turn, reserve_ports};
use super::{Mgr, Version};
use crate::tools::{self, Output, cpu_time, resident_bytes};

/// How long a command of [`Cluster::run`] may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// How long a daemon may take to end when asked to; a memstore has to write itself to disk.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A longer path would leave no room for the names of admin sockets (`sun_path` has 108 bytes).
const MAX_DIR: usize = 80;

/// A cluster of real Ceph daemons.
///
/// Dropped, its daemons are killed and its temporary directory is removed; should this process die
/// first, the kernel kills the daemons. (Of a detached cluster neither is true.) The environment
/// variable `UBLK_RBD_KEEP` keeps the directory, with all logs.
#[derive(Debug)]
pub struct Cluster {
    home: Home,
    pub(super) settings: Settings,
    pub(super) daemons: BTreeMap<DaemonId, Daemon>,
    pub(super) paused: BTreeSet<usize>,
    detached: bool,
    ready_after: Duration,
    _turn: Option<Turn>,
}

#[derive(Debug)]
enum Home {
    Temp(TempCluster),
    Kept(PathBuf),
}

impl Cluster {
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(super) fn create(builder: Builder) -> Result<Cluster> {
        let mut settings = builder.settle()?;
        let turn = if builder.concurrent {
            None
        } else {
            Some(Turn::wait()?)
        };
        let started = Instant::now();
        let home = match &builder.dir {
            None => Home::Temp(TempCluster::new()?),
            Some(dir) => Home::Kept(new_dir(dir)?),
        };
        settings.port = reserve_ports(home.path())?;
        let mut cluster = Cluster {
            home,
            settings,
            daemons: BTreeMap::new(),
            paused: BTreeSet::new(),
            detached: builder.detached,
            ready_after: Duration::ZERO,
            _turn: turn,
        };
        let end = started + builder.time_limit();
        if let Err(error) = cluster.make(end).and_then(|()| cluster.save()) {
            let logs = cluster.log_tails();
            cluster.end_all(Signal::SIGKILL);
            bail!("the cluster did not start: {error:#}\n{logs}");
        }
        cluster.ready_after = started.elapsed();
        Ok(cluster)
    }

    /// The detached cluster that was started in `dir`, in whatever state it is.
    pub fn open(dir: &Path) -> Result<Cluster> {
        let dir = fs::canonicalize(dir).with_context(|| format!("no {}", dir.display()))?;
        let file = dir.join("settings.json");
        let text =
            fs::read(&file).with_context(|| format!("{} holds no cluster", dir.display()))?;
        let settings = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not understood", file.display()))?;
        let mut cluster = Cluster {
            home: Home::Kept(dir),
            settings,
            daemons: BTreeMap::new(),
            paused: BTreeSet::new(),
            detached: true,
            ready_after: Duration::ZERO,
            _turn: None,
        };
        for id in cluster.all_daemons() {
            if let Some(daemon) = Daemon::adopt(cluster.pid_file(id), &cluster.conf_path()) {
                cluster.daemons.insert(id, daemon);
            }
        }
        Ok(cluster)
    }

    fn save(&self) -> Result<()> {
        let file = self.dir().join("settings.json");
        let text = serde_json::to_vec_pretty(&self.settings)?;
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    }

    pub fn version(&self) -> Version {
        self.settings.version
    }

    /// The cluster's own directory. Files in it can be named to commands of [`Cluster::run`], as
    /// can files in /tmp.
    pub fn dir(&self) -> &Path {
        self.home.path()
    }

    pub fn conf_path(&self) -> PathBuf {
        self.dir().join("ceph.conf")
    }

    /// The keyring of `client.admin`.
    pub fn keyring_path(&self) -> PathBuf {
        self.dir().join("keyring")
    }

    pub fn fsid(&self) -> &str {
        &self.settings.fsid
    }

    /// The msgr2 addresses of the monitors.
    pub fn mon_addrs(&self) -> Vec<SocketAddr> {
        (0..self.settings.mons)
            .map(|i| self.settings.mon_addr(i))
            .collect()
    }

    pub fn osds(&self) -> usize {
        self.settings.osds.len()
    }

    pub fn mons(&self) -> usize {
        self.settings.mons
    }

    /// The time from nothing to ready.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// A program of the cluster's version as a command, with its ceph.conf.
    pub fn command<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Command> {
        let mut argv = argv.into_iter();
        let program = argv.next().context("no command given")?;
        let program = program
            .as_ref()
            .to_str()
            .context("a program's name is not UTF-8")?;
        let mut command = self.settings.sandbox.command(program, self.dir())?;
        command.env("CEPH_CONF", self.conf_path()).args(argv);
        Ok(command)
    }

    /// Runs a program of the cluster's version (`rbd`, `rados`, `ceph`, ...) against it and returns
    /// what it printed. Failure is an error with the end of its stderr.
    pub fn run<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<String> {
        tools::run(self.command(argv)?, COMMAND_LIMIT)
    }

    /// Likewise, however it ends, with a limit of its own.
    pub fn output<S: AsRef<OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
        timeout: Duration,
    ) -> Result<Output> {
        tools::output(self.command(argv)?, timeout)
    }

    /// The answer of the monitors (or the manager) to a command of the `ceph` tool.
    pub fn ceph_json<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<Value> {
        let argv = ["ceph", "--connect-timeout", "20", "-f", "json"]
            .into_iter()
            .chain(words);
        let command = self.command(argv)?;
        let line = tools::command_line(&command);
        let text = tools::run(command, Duration::from_secs(30))?;
        serde_json::from_str(&text).with_context(|| format!("`{line}` printed no JSON: {text}"))
    }

    /// Gives several commands to one run of the `ceph` tool, whose start is most of its time.
    pub fn ceph_batch(&self, commands: &[impl AsRef<str>]) -> Result<String> {
        let mut input = String::new();
        for command in commands {
            input.push_str(command.as_ref());
            input.push('\n');
        }
        let argv = ["ceph", "--connect-timeout", "60"];
        let out = tools::output_with_input(self.command(argv)?, input.into_bytes(), COMMAND_LIMIT)?;
        // It reports errors of single commands, goes on, and ends with success.
        let stderr = out.stderr_str();
        let failed = stderr
            .lines()
            .find(|line| line.to_ascii_lowercase().starts_with("error"));
        match failed {
            Some(line) => bail!("ceph: {line}"),
            None if !out.status.success() => bail!("ceph ({}): {stderr}", out.status),
            None => Ok(out.stdout_str()),
        }
    }

    pub(super) fn all_daemons(&self) -> Vec<DaemonId> {
        let mgr = (self.settings.mgr != Mgr::None).then_some(DaemonId::Mgr);
        (0..self.mons())
            .map(DaemonId::Mon)
            .chain(mgr)
            .chain((0..self.osds()).map(DaemonId::Osd))
            .collect()
    }

    fn pid_file(&self, id: DaemonId) -> PathBuf {
        self.dir().join("run").join(format!("{id}.pid"))
    }

    /// Starts a daemon; nothing happens if it runs.
    pub(super) fn launch(&mut self, id: DaemonId) -> Result<()> {
        if !self.all_daemons().contains(&id) {
            bail!("this cluster has no {id}");
        }
        if self.is_running(id) {
            return Ok(());
        }
        let conf = self.conf_path();
        // A killed daemon leaves its socket behind, which must not be taken for the new one's.
        let _ = fs::remove_file(super::conf::socket_path(self.dir(), &id.to_string()));
        let mut command = self.command([id.program(), "-f", "-i", &id.short(), "-c"])?;
        command.arg(&conf);
        let log = self.dir().join("log").join(format!("{id}.out"));
        let daemon = Daemon::start(command, &conf, &log, self.pid_file(id), self.detached)?;
        self.daemons.insert(id, daemon);
        Ok(())
    }

    pub fn is_running(&mut self, id: DaemonId) -> bool {
        self.daemons.get_mut(&id).is_some_and(Daemon::is_running)
    }

    /// The process id of a daemon that was started.
    pub fn pid(&self, id: DaemonId) -> Option<Pid> {
        self.daemons.get(&id).map(Daemon::pid)
    }

    fn end(&mut self, id: DaemonId, signal: Signal) -> Result<()> {
        let daemon = self.running(id)?;
        daemon.signal(signal)?;
        daemon
            .wait_gone(END_LIMIT)
            .with_context(|| format!("{id} does not end"))?;
        self.daemons.remove(&id);
        Ok(())
    }

    /// Kills an OSD and waits until its process is gone. The monitors notice a moment later: see
    /// [`Cluster::wait_osd_down`].
    pub fn kill_osd(&mut self, osd: usize) -> Result<()> {
        self.signal_osd(osd, Signal::SIGKILL)
    }

    /// Ends an OSD by a signal of choice (SIGTERM shuts it down in order).
    pub fn signal_osd(&mut self, osd: usize, signal: Signal) -> Result<()> {
        self.paused.remove(&osd);
        self.end(DaemonId::Osd(osd), signal)
    }

    /// Starts a killed OSD. See [`Cluster::wait_osd_up`] and [`Cluster::wait_clean`].
    pub fn revive_osd(&mut self, osd: usize) -> Result<()> {
        self.launch(DaemonId::Osd(osd))
    }

    /// Stops an OSD in its tracks: its connections stay, nothing is answered.
    pub fn pause_osd(&mut self, osd: usize) -> Result<()> {
        self.running(DaemonId::Osd(osd))?.signal(Signal::SIGSTOP)?;
        self.paused.insert(osd);
        Ok(())
    }

    pub fn resume_osd(&mut self, osd: usize) -> Result<()> {
        self.running(DaemonId::Osd(osd))?.signal(Signal::SIGCONT)?;
        self.paused.remove(&osd);
        Ok(())
    }

    pub fn kill_mon(&mut self, mon: usize) -> Result<()> {
        self.end(DaemonId::Mon(mon), Signal::SIGKILL)
    }

    /// Starts a killed monitor. See [`Cluster::wait_quorum`].
    pub fn revive_mon(&mut self, mon: usize) -> Result<()> {
        self.launch(DaemonId::Mon(mon))
    }

    fn running(&mut self, id: DaemonId) -> Result<&mut Daemon> {
        self.daemons
            .get_mut(&id)
            .and_then(|daemon| daemon.is_running().then_some(daemon))
            .with_context(|| format!("{id} does not run"))
    }

    /// User and system time that an OSD's process has used since it started.
    pub fn osd_cpu_time(&self, osd: usize) -> Result<Duration> {
        let id = DaemonId::Osd(osd);
        cpu_time(self.pid(id).with_context(|| format!("{id} does not run"))?)
    }

    /// The sum of [`Cluster::osd_cpu_time`] over the OSDs that run.
    pub fn osds_cpu_time(&self) -> Result<Duration> {
        self.daemons
            .iter()
            .filter(|(id, _)| matches!(id, DaemonId::Osd(_)))
            .map(|(_, daemon)| cpu_time(daemon.pid()))
            .sum()
    }

    /// Ends all daemons and keeps the data: with SIGTERM in order, with SIGKILL as a power cut does.
    pub fn shut_down(&mut self, signal: Signal) -> Result<()> {
        if !self.end_all(signal) {
            bail!(
                "some daemons had to be killed; logs are in {}/log",
                self.dir().display()
            );
        }
        Ok(())
    }

    /// Starts what does not run and waits until the cluster is ready again.
    pub fn restart(&mut self, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        for id in self.all_daemons() {
            self.launch(id)?;
        }
        self.wait_ready(end).map_err(|error| {
            let logs = self.log_tails();
            anyhow!("the cluster did not come back: {error:#}\n{logs}")
        })
    }

    /// Ends the cluster and removes its directory if that is temporary. Like dropping it, but says
    /// what went wrong.
    pub fn stop(mut self) -> Result<()> {
        self.end_all(Signal::SIGKILL);
        match &mut self.home {
            Home::Temp(temp) => {
                let dir = temp.path().to_owned();
                drop(self);
                if dir.exists() && !keep_dirs() {
                    return Err(anyhow!("{} could not be removed", dir.display()));
                }
                Ok(())
            }
            Home::Kept(_) => Ok(()),
        }
    }

    /// True when the signal was enough for all.
    fn end_all(&mut self, signal: Signal) -> bool {
        let mut in_order = true;
        // OSDs first: they save themselves only while the monitors answer.
        let is_osd = |id: &DaemonId| matches!(id, DaemonId::Osd(_));
        for osds in [true, false] {
            let mut batch: Vec<_> = self
                .daemons
                .iter_mut()
                .filter(|(id, _)| is_osd(id) == osds)
                .collect();
            for (_, daemon) in &mut batch {
                // A stopped process takes no SIGTERM before it goes on.
                let _ = daemon.signal(signal);
                let _ = daemon.signal(Signal::SIGCONT);
            }
            for (_, daemon) in &mut batch {
                if daemon.wait_gone(END_LIMIT).is_err() {
                    in_order = false;
                    let _ = daemon.signal(Signal::SIGKILL);
                    let _ = daemon.wait_gone(END_LIMIT);
                }
            }
        }
        self.daemons.clear();
        self.paused.clear();
        in_order
    }

    /// One line for each daemon: whether it runs, its pid, memory and CPU time.
    pub fn status(&mut self) -> Vec<(DaemonId, String)> {
        let mut lines = Vec::new();
        for id in self.all_daemons() {
            let line = if self.is_running(id) {
                let pid = self.daemons[&id].pid();
                format!(
                    "up    pid {pid}  rss {} MiB  cpu {:.2} s",
                    resident_bytes(pid).unwrap_or(0) >> 20,
                    cpu_time(pid).unwrap_or_default().as_secs_f64()
                )
            } else {
                "down".to_owned()
            };
            lines.push((id, line));
        }
        lines
    }

    /// The last words of every daemon: what a failed start is explained by.
    pub fn log_tails(&mut self) -> String {
        let mut text = String::new();
        for id in self.all_daemons() {
            if !self.daemons.contains_key(&id) {
                continue;
            }
            let (state, file, lines) = match self.is_running(id) {
                true => ("runs", format!("{id}.log"), 3),
                false => ("has ended", format!("{id}.out"), 15),
            };
            let log = fs::read(self.dir().join("log").join(file)).unwrap_or_default();
            let tail = tools::last_lines(&String::from_utf8_lossy(&log), lines);
            text.push_str(&format!("-- {id} {state}\n{tail}\n"));
        }
        text
    }
}

impl Home {
    fn path(&self) -> &Path {
        match self {
            Home::Temp(temp) => temp.path(),
            Home::Kept(dir) => dir,
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        self.end_all(Signal::SIGKILL);
        if let Home::Temp(temp) = &mut self.home
            && keep_dirs()
        {
            eprintln!("the cluster's logs are kept in {}", temp.path().display());
            temp.keep();
        }
    }
}

fn keep_dirs() -> bool {
    std::env::var_os("UBLK_RBD_KEEP").is_some()
}

/// Makes (or takes an empty) directory for a cluster that is to be kept.
fn new_dir(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let dir = fs::canonicalize(dir)?;
    if dir.as_os_str().len() > MAX_DIR {
        bail!(
            "{} is too long for unix sockets in it ({MAX_DIR} characters)",
            dir.display()
        );
    }
    if fs::read_dir(&dir)?.next().is_some() {
        bail!("{} is not empty", dir.display());
    }
    Ok(dir)
}
