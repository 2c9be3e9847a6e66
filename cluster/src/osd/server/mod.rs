//! A cluster in this process: a monitor and OSDs, each on an iothread of its own.
//!
//! The threads share nothing that a request touches. The monitor's thread tells the OSDs' threads
//! of maps and secrets; they tell it what they hold and have trimmed; a placement group that a map
//! gives to another OSD goes from thread to thread as a value. All of that goes through
//! [`iothread::Remote`], in order.
//!
//! ```text
//! clients --- mon --- map, secrets --> osd.0 --- clients
//!              ^                       |  ^
//!              +-- usage, trimmed -----+  | pgs
//!              |                          v
//!              +---------------------- osd.1 --- clients
//! ```

mod files;
mod history;
mod monitor;
mod shard;
mod worker;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use iothread::Remote;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::auth::server::{KeyServerConfig, Policy};
use crate::auth::{AuthName, ConMode, KeyType, Method};
use crate::osdmap::Pg;

use super::cls;
use super::faults::{Faults, Rule, RuleError, RuleId};
use super::mon::{DirMonStore, MemoryMonStore, MonConfig, MonStore, MonStoreError};
use super::serve::OsdConfig;
use super::store::StoreError;
use super::store::file::{FileBackend, Options};
use super::store::memory::MemoryStore;
use super::uuid;
use history::History;
use monitor::MonThread;
use shard::{OsdThread, Threads};

/// Where objects and maps are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Gone when the server ends.
    Memory,
    /// Durable, in this directory.
    Dir(PathBuf),
}

/// What a server is made from.
#[derive(Debug, Clone)]
pub struct Config {
    pub place: Place,
    /// Of the cluster; a directory belongs to one.
    pub fsid: [u8; 16],
    pub osds: u32,
    /// Of the monitor; port 0 picks a free one. OSDs take free ports of the same address.
    pub listen: SocketAddr,
    pub auth: Method,
    /// `osd_pool_default_pg_num`.
    pub pg_num: u32,
    /// Data files that the store may have open in all; each OSD gets its share.
    pub open_files: usize,
}

impl Config {
    /// A new cluster.
    pub fn new(place: Place, listen: SocketAddr) -> Config {
        let mut fsid = [0; 16];
        draw(&mut fsid);
        let fsid = uuid::of_random(fsid);
        Config {
            place,
            fsid,
            osds: 1,
            listen,
            auth: Method::Cephx,
            pg_num: 32,
            open_files: 512,
        }
    }
}

/// Why a server does not start, or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {addr}: {error}")]
    Bind {
        addr: SocketAddr,
        error: std::io::Error,
    },
    #[error("cannot {what}: {error}")]
    Os {
        what: &'static str,
        error: std::io::Error,
    },
    #[error(transparent)]
    Ring(#[from] iothread::SetupError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Mon(#[from] MonStoreError),
    #[error("a cluster has from 1 to {MAX_OSDS} OSDs here, not {0}")]
    Osds(u32),
    #[error("there is no osd.{0}")]
    NoOsd(u32),
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error("the server has stopped")]
    Stopped,
    #[error("the thread of {0} panicked")]
    Panicked(&'static str),
}

/// Each OSD has a thread; more than this is no single machine.
const MAX_OSDS: u32 = 64;

/// Random bytes of the system. What starts a server has drawn some before anything depends on it.
pub(crate) fn draw(bytes: &mut [u8]) {
    crate::random_bytes(bytes).expect("the system has random numbers");
}

/// How much room the store has.
#[derive(Debug, Clone)]
pub(super) enum Capacity {
    /// So much memory.
    Memory(u64),
    /// Of the file system at this place.
    Disk(PathBuf),
}

impl Capacity {
    /// Bytes in all, and those of them in use when an OSD holds `held`.
    fn of(&self, held: u64) -> (u64, u64) {
        match self {
            Capacity::Memory(total) => ((*total).max(held), held),
            Capacity::Disk(path) => {
                let total = files::disk_size(path).unwrap_or(0);
                (total.max(held), held)
            }
        }
    }
}

/// A running cluster. Dropping it without [`Server::stop`] stops it, too.
#[derive(Debug)]
pub struct Server {
    config: Config,
    addr: SocketAddr,
    running: Option<Running>,
}

struct Running {
    mon: MonThread,
    osds: Vec<OsdThread>,
    /// Closed after the shards on the OSDs' threads.
    backend: Option<Arc<FileBackend>>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Running({} OSDs)", self.osds.len())
    }
}

/// How long an address may stay in use by a server that is no more.
const BIND_PATIENCE: Duration = Duration::from_secs(1);

fn bind(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    let at = |error| ServerError::Bind { addr, error };
    // Sockets of a process that was killed with requests in its ring outlive it for a moment.
    let patience = Instant::now() + BIND_PATIENCE;
    let listener = loop {
        match TcpListener::bind(addr) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(10));
            }
            bound => break bound.map_err(at)?,
        }
    };
    let bound = listener.local_addr().map_err(at)?;
    Ok((listener, bound))
}

impl Server {
    /// Starts all threads. Clients are served when it returns.
    pub fn start(config: Config) -> Result<Server, ServerError> {
        if !(1..=MAX_OSDS).contains(&config.osds) {
            return Err(ServerError::Osds(config.osds));
        }
        let (listener, addr) = bind(config.listen)?;
        let policy = Policy {
            methods: vec![config.auth],
            modes: vec![ConMode::Crc, ConMode::Secure],
        };
        let (backend, mon_store, capacity): (_, Box<dyn MonStore>, _) = match &config.place {
            Place::Memory => {
                let memory = files::memory_size().unwrap_or(0);
                (
                    None,
                    Box::new(MemoryMonStore::new()),
                    Capacity::Memory(memory),
                )
            }
            Place::Dir(dir) => {
                let options = Options {
                    // One share is for what brings data into the files.
                    open_files: config.open_files / (config.osds as usize + 1),
                    ..Options::default()
                };
                let store = FileBackend::open(&dir.join("osd"), options)?;
                let mon = DirMonStore::open(&dir.join("mon"))?;
                (Some(store), Box::new(mon), Capacity::Disk(dir.clone()))
            }
        };
        let history = Arc::new(History::default());
        let threads: Arc<OnceLock<Threads>> = Arc::default();
        let owned = owners(backend.as_deref(), config.osds);
        let mut osds = Vec::new();
        for id in 0..config.osds {
            let (listener, addr) = bind(SocketAddr::new(addr.ip(), 0))?;
            let id = id as i32;
            let elsewhere = owned.iter().filter(|(o, _)| *o != id).map(|(_, pg)| *pg);
            let setup = shard::Setup {
                config: OsdConfig {
                    id,
                    addrs: shard::listed(addr),
                    elsewhere: elsewhere.collect::<BTreeSet<Pg>>(),
                    method: cls::find,
                    backoff_on_peering: false,
                },
                listener,
                policy: policy.clone(),
                history: Arc::clone(&history) as _,
                threads: Arc::clone(&threads),
                capacity: capacity.clone(),
            };
            osds.push(match &backend {
                None => OsdThread::start(setup, |_| Ok(MemoryStore::new()))?,
                Some(backend) => {
                    let backend = Arc::clone(backend);
                    OsdThread::start(setup, move |remote| {
                        Ok(backend.shard(id, Box::new(move || remote.wake())))
                    })?
                }
            });
        }
        let remotes: Vec<Remote> = osds.iter().map(|o| o.remote().clone()).collect();
        let mon = MonThread::start(monitor::Setup {
            config: mon_config(&config, addr, policy),
            store: mon_store,
            listener,
            osds: remotes,
            threads,
            history,
        })?;
        let running = Running { mon, osds, backend };
        running.boot()?;
        Ok(Server {
            config,
            addr,
            running: Some(running),
        })
    }

    fn running(&self) -> Result<&Running, ServerError> {
        self.running.as_ref().ok_or(ServerError::Stopped)
    }

    fn osd(&self, id: u32) -> Result<&OsdThread, ServerError> {
        let osd = self.running()?.osds.get(id as usize);
        osd.ok_or(ServerError::NoOsd(id))
    }

    /// Of the monitor.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn fsid(&self) -> String {
        uuid::text(&self.config.fsid)
    }

    /// A configuration file for clients, which names this keyring.
    pub fn conf_text(&self, keyring: Option<&std::path::Path>) -> String {
        files::conf(&self.fsid(), self.addr, self.config.auth, keyring)
    }

    /// The keyring of `client.admin`.
    pub fn keyring_text(&self) -> Result<Zeroizing<String>, ServerError> {
        let admin: AuthName = "client.admin".parse().expect("a name");
        let text = self
            .running()?
            .mon
            .ask(move |mon, _, _| mon.keyring_text(&admin))?;
        Ok(text.unwrap_or_default())
    }

    /// A monitor command, as `ceph` sends it: JSON words and an input. Returns code, status line and
    /// output.
    pub fn command(&self, words: &str, input: &[u8]) -> Result<Reply, ServerError> {
        let (words, input) = (words.to_owned(), input.to_vec());
        self.running()?.mon.ask(move |mon, now, out| {
            let (code, status, output) = mon.command(&words, &input, now, out);
            Reply {
                code,
                status,
                output,
            }
        })
    }

    /// The number of a pool.
    pub fn pool_id(&self, name: &str) -> Result<Option<i64>, ServerError> {
        let newest = self.running()?.mon.newest()?;
        Ok(newest.and_then(|map| map.pool_by_name(name)))
    }

    /// Adds a fault to one OSD, or to all. Returns its number on each.
    pub fn add_fault(&self, osd: Option<u32>, rule: &Rule) -> Result<Vec<(u32, u64)>, ServerError> {
        let mut added = Vec::new();
        for (id, thread) in self.chosen(osd)? {
            let rule = rule.clone();
            let rule_id = thread.ask(move |osd| {
                let mut added = None;
                osd.faults(&mut |f: &mut Faults| added = Some(f.add(rule.clone())));
                added
            })?;
            let RuleId(n) = rule_id.ok_or(ServerError::Stopped)??;
            added.push((id, n));
        }
        Ok(added)
    }

    /// All faults: OSD, number, rule.
    pub fn faults(&self) -> Result<Vec<(u32, u64, Rule)>, ServerError> {
        let mut all = Vec::new();
        for (id, thread) in self.chosen(None)? {
            let rules = thread.ask(|osd| {
                let mut rules = Vec::new();
                osd.faults(&mut |f: &mut Faults| {
                    rules = f.list().map(|(RuleId(n), r)| (n, r.clone())).collect();
                });
                rules
            })?;
            all.extend(rules.into_iter().map(|(n, rule)| (id, n, rule)));
        }
        Ok(all)
    }

    /// Removes one fault of an OSD, or all of them, or all of all OSDs.
    pub fn clear_faults(&self, osd: Option<u32>, rule: Option<u64>) -> Result<(), ServerError> {
        for (_, thread) in self.chosen(osd)? {
            thread.ask(move |osd| {
                osd.faults(&mut |f: &mut Faults| match rule {
                    Some(n) => {
                        f.remove(RuleId(n));
                    }
                    None => f.clear(),
                });
            })?;
        }
        Ok(())
    }

    fn chosen(&self, osd: Option<u32>) -> Result<Vec<(u32, &OsdThread)>, ServerError> {
        Ok(match osd {
            Some(id) => vec![(id, self.osd(id)?)],
            None => (0..).zip(&self.running()?.osds).collect(),
        })
    }

    /// An OSD goes: its connections break, its port is closed, the map says that it is down. What it
    /// holds stays.
    pub fn stop_osd(&self, id: u32) -> Result<(), ServerError> {
        self.osd(id)?.ask(|osd| osd.shut())?;
        let running = self.running()?;
        let marked = running
            .mon
            .ask(move |mon, now, out| mon.osd_failed(id as i32, now, out));
        marked??;
        running.settle()
    }

    /// It comes back, at the same address.
    pub fn start_osd(&self, id: u32) -> Result<(), ServerError> {
        let thread = self.osd(id)?;
        let (listener, _) = bind(thread.addr)?;
        let opened = thread.ask(move |osd| osd.reopen(listener))?;
        opened.map_err(|error| ServerError::Os {
            what: "listen",
            error,
        })?;
        let running = self.running()?;
        running.boot_osd(id as i32, thread)?;
        running.settle()
    }

    pub fn status(&self) -> Result<Status, ServerError> {
        let running = self.running()?;
        let newest = running.mon.newest()?;
        let up = |id| newest.as_ref().is_some_and(|m| m.is_up(id));
        let mut osds = Vec::new();
        for (id, thread) in (0..).zip(&running.osds) {
            let state = thread.ask(|osd| osd.state())?;
            let served = |f: fn(&super::mon::PoolUsage) -> u64| {
                state.usage.pools.values().map(f).sum::<u64>()
            };
            osds.push(OsdStatus {
                id,
                addr: thread.addr.to_string(),
                up: up(id as i32),
                epoch: state.epoch,
                clients: state.links.open,
                waiting: state.waiting,
                objects: served(|p| p.objects),
                bytes: served(|p| p.bytes),
                reads: served(|p| p.read_ops),
                writes: served(|p| p.write_ops),
                failed: state.failed,
                ring: RingStatus::of(thread.remote()),
            });
        }
        Ok(Status {
            fsid: self.fsid(),
            addr: self.addr.to_string(),
            auth: self.config.auth.to_string(),
            store: match &self.config.place {
                Place::Memory => "memory".to_owned(),
                Place::Dir(dir) => dir.display().to_string(),
            },
            pid: std::process::id(),
            epoch: newest.as_ref().map_or(0, |m| m.epoch()),
            mon: MonStatus {
                clients: running.mon.counts()?.open,
                ring: RingStatus::of(running.mon.remote()),
            },
            osds,
        })
    }

    /// Stops serving and brings everything to rest.
    pub fn stop(mut self) -> Result<(), ServerError> {
        match self.running.take() {
            Some(running) => running.stop(),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.running.take().map(Running::stop) {
            tracing::error!(%error, "the server did not stop in order");
        }
    }
}

impl Running {
    fn boot(&self) -> Result<(), ServerError> {
        for (id, osd) in (0..).zip(&self.osds) {
            self.boot_osd(id, osd)?;
        }
        self.settle()
    }

    fn boot_osd(&self, id: i32, osd: &OsdThread) -> Result<(), ServerError> {
        let addrs = osd.addrs.clone();
        let booted = self
            .mon
            .ask(move |mon, now, out| mon.osd_boot(id, &addrs, now, out));
        Ok(booted??)
    }

    /// Waits until all OSDs have the maps that the monitor has made so far. It passes a map on at
    /// the end of the turn that made it, so before a later call; and OSDs take what they are told in
    /// order.
    fn settle(&self) -> Result<(), ServerError> {
        self.mon.ask(|_, _, _| ())?;
        self.osds.iter().try_for_each(|osd| osd.ask(|_| ()))
    }

    /// Clients first hear nothing more, then the OSDs' threads let go of the store.
    fn stop(self) -> Result<(), ServerError> {
        let mut result = self.mon.stop();
        for osd in self.osds {
            result = result.and(osd.stop());
        }
        drop(self.backend);
        result
    }
}

/// Pgs of a store that is opened, and the OSDs that have them.
fn owners(backend: Option<&FileBackend>, osds: u32) -> Vec<(i32, Pg)> {
    let mut owned = backend.map(FileBackend::unclaimed).unwrap_or_default();
    // Of an OSD that is no more: whoever is to serve them takes them when it opens.
    owned.retain(|(osd, _)| u32::try_from(*osd).is_ok_and(|osd| osd < osds));
    owned
}

fn mon_config(config: &Config, addr: SocketAddr, policy: Policy) -> MonConfig {
    MonConfig {
        fsid: config.fsid,
        name: "a".to_owned(),
        // A monitor has no nonce: clients know it by its address alone.
        addrs: crate::codec::EntityAddrVec(vec![crate::codec::EntityAddr::msgr2(addr, 0)]),
        host: files::hostname(),
        osds: config.osds,
        device_class: "ssd".to_owned(),
        osd_weight: 0x1_0000,
        shared_store: true,
        pg_num: config.pg_num,
        policy,
        keys: KeyServerConfig {
            // Clients before Ceph 20 know no other.
            service_cipher: KeyType::Aes,
            ..KeyServerConfig::default()
        },
        key_type: KeyType::Aes,
        version: format!("ublk-rbd {}", env!("CARGO_PKG_VERSION")),
    }
}

/// What a monitor command returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Zero, or minus an errno.
    pub code: i32,
    pub status: String,
    pub output: Vec<u8>,
}

/// What a server is doing, by the names its JSON has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    pub fsid: String,
    pub addr: String,
    pub auth: String,
    pub store: String,
    pub pid: u32,
    pub epoch: u32,
    pub mon: MonStatus,
    pub osds: Vec<OsdStatus>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MonStatus {
    pub clients: usize,
    pub ring: RingStatus,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OsdStatus {
    pub id: u32,
    pub addr: String,
    pub up: bool,
    pub epoch: u32,
    pub clients: usize,
    /// Requests that are not answered yet.
    pub waiting: usize,
    pub objects: u64,
    pub bytes: u64,
    /// Requests served.
    pub reads: u64,
    pub writes: u64,
    pub failed: Option<String>,
    pub ring: RingStatus,
}

/// Counters of an iothread since it began.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RingStatus {
    /// System calls of its loop.
    pub enters: u64,
    pub turns: u64,
    pub submissions: u64,
    pub completions: u64,
    /// Receives that found no free buffer.
    pub starved: u64,
}

impl RingStatus {
    fn of(remote: &Remote) -> RingStatus {
        let stats = remote.stats();
        RingStatus {
            enters: stats.enters,
            turns: stats.turns,
            submissions: stats.sqes,
            completions: stats.cqes,
            starved: stats.starved,
        }
    }
}
