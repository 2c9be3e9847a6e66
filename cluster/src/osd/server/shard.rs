//! An OSD's thread: one OSD, its connections, its placement groups.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use iothread::{Listener, Remote};

use crate::auth::server::{Policy, RotatingSecrets, ServiceAuth, Step};
use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now};
use crate::msgr::{self, Message};
use crate::objecter::msg::PgId;
use crate::osdmap::{OsdMap, Pg, SnapIntervals};
use crate::transport::listen::{Acceptor, Ask, Counts, Limits, Service};

use super::super::faults::Faults;
use super::super::mon::{Mon, OsdUsage, PoolUsage};
use super::super::outbox::{Link, Outbox, Peer};
use super::super::serve::{DetachedPg, MapHistory, Osd, OsdConfig, OsdEvent};
use super::super::store::{Store, StoreError};
use super::worker::Worker;
use super::{Capacity, ServerError, draw, monitor};

/// How often an OSD tells the monitor what it holds.
const REPORT: Duration = Duration::from_secs(1);

/// All threads of the server, known to each once they run.
#[derive(Debug)]
pub(super) struct Threads {
    pub(super) mon: Remote,
    pub(super) osds: Vec<Remote>,
}

/// What an OSD's thread starts from.
pub(super) struct Setup {
    pub(super) config: OsdConfig,
    pub(super) listener: TcpListener,
    pub(super) policy: Policy,
    pub(super) history: Arc<dyn MapHistory>,
    pub(super) threads: Arc<OnceLock<Threads>>,
    pub(super) capacity: Capacity,
}

/// What others may ask of the OSD on its own thread, whatever its store is.
pub(super) trait Local {
    fn map(&self, map: Arc<OsdMap>);
    fn secrets(&self, secrets: RotatingSecrets);
    fn adopt(&self, pg: PgId, state: Box<dyn Any>);
    fn faults(&self, f: &mut dyn FnMut(&mut Faults));
    fn state(&self) -> State;
    fn shut(&self);
    fn reopen(&self, listener: TcpListener) -> std::io::Result<()>;
}

/// How an OSD is.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) epoch: u32,
    pub(super) waiting: usize,
    pub(super) usage: OsdUsage,
    pub(super) links: Counts,
    /// Why its store is of no use any more.
    pub(super) failed: Option<String>,
}

thread_local! {
    static HERE: RefCell<Option<Rc<dyn Local>>> = const { RefCell::new(None) };
}

/// Uses the OSD of this thread. Nothing happens where it has ended.
pub(super) fn here<R>(f: impl FnOnce(&dyn Local) -> R) -> Option<R> {
    let local = HERE.with_borrow(Clone::clone)?;
    Some(f(&*local))
}

struct Shard<S: Store + 'static> {
    osd: Osd<S>,
    id: i32,
    addrs: EntityAddrVec,
    policy: Policy,
    secrets: RotatingSecrets,
    /// Handshakes under way.
    auths: HashMap<Link, ServiceAuth>,
    threads: Arc<OnceLock<Threads>>,
    capacity: Capacity,
    /// When to report usage next, and what was reported last.
    report_at: u64,
    reported: OsdUsage,
    failed: Option<String>,
    /// It was stopped on purpose, and does not come back by itself.
    stopped: Cell<bool>,
}

impl<S: Store> Shard<S> {
    fn to_mon(&self, f: impl FnOnce(&mut Mon, Now, &mut Outbox) + Send + 'static) {
        if let Some(threads) = self.threads.get() {
            // When the monitor has ended, so has the cluster.
            let _ = threads.mon.spawn(move || {
                monitor::here(f);
            });
        }
    }

    /// Does what the OSD cannot do itself.
    fn carry_out(&mut self) {
        while let Some(event) = self.osd.poll_event() {
            match event {
                OsdEvent::Released { pg, to, state } => self.hand_over(pg, to, state),
                OsdEvent::Trimmed { pg, since, snaps } => {
                    let pg = Pg {
                        pool: pg.pool,
                        seed: pg.seed,
                    };
                    let mut trimmed = SnapIntervals::default();
                    snaps.iter().for_each(|&(s, len)| trimmed.insert(s, len));
                    self.to_mon(move |mon, _, _| mon.pg_trimmed(pg, since, &trimmed));
                }
                // It is on its way: the monitor tells OSDs before clients.
                OsdEvent::WantMap { .. } => {}
                OsdEvent::Down { .. } if self.stopped.get() || self.failed.is_some() => {}
                OsdEvent::Down { epoch } => {
                    tracing::info!(osd = self.id, epoch, "marked down; coming back");
                    self.boot();
                }
                OsdEvent::Failed(error) => self.give_up(&error),
            }
        }
    }

    fn boot(&self) {
        let (id, addrs) = (self.id, self.addrs.clone());
        self.to_mon(move |mon, now, out| {
            if let Err(error) = mon.osd_boot(id, &addrs, now, out) {
                tracing::error!(osd = id, %error, "cannot come back");
            }
        });
    }

    fn give_up(&mut self, error: &StoreError) {
        tracing::error!(osd = self.id, %error, "the store failed; this OSD serves no more");
        self.failed = Some(error.to_string());
        let id = self.id;
        self.to_mon(move |mon, now, out| {
            if let Err(error) = mon.osd_failed(id, now, out) {
                tracing::error!(osd = id, %error, "cannot be marked down");
            }
        });
    }

    fn hand_over(&self, pg: PgId, to: i32, state: DetachedPg<S>) {
        let osds = self.threads.get().map_or(&[][..], |t| &t.osds);
        let Some(to) = usize::try_from(to).ok().and_then(|i| osds.get(i)) else {
            tracing::error!(%pg, to, "there is no such OSD to hand a pg to");
            return;
        };
        // When that thread has ended, the server is stopping.
        let _ = to.spawn(move || {
            here(|osd| osd.adopt(pg, Box::new(state)));
        });
    }

    fn usage(&self) -> OsdUsage {
        let pools: BTreeMap<i64, PoolUsage> = self
            .osd
            .usage()
            .into_iter()
            .map(|(pool, u)| {
                let usage = PoolUsage {
                    objects: u.objects,
                    clones: u.clones,
                    bytes: u.bytes,
                    omap_bytes: u.omap_bytes,
                    read_ops: u.served.reads,
                    read_bytes: u.served.read_bytes,
                    write_ops: u.served.writes,
                    write_bytes: u.served.written_bytes,
                };
                (pool, usage)
            })
            .collect();
        let held: u64 = self
            .osd
            .usage()
            .values()
            .map(|u| u.stored + u.omap_bytes)
            .sum();
        let (total, used) = self.capacity.of(held);
        OsdUsage { total, used, pools }
    }

    fn report(&mut self, now: Now) {
        self.report_at = now.after(REPORT);
        if self.threads.get().is_none() {
            return;
        }
        let usage = self.usage();
        if usage != self.reported {
            self.reported.clone_from(&usage);
            let id = self.id;
            self.to_mon(move |mon, _, _| mon.usage(id, usage));
        }
    }
}

impl<S: Store + 'static> Service for Shard<S> {
    fn config(&mut self) -> msgr::Config {
        let me = EntityName::new(EntityType::OSD, i64::from(self.id));
        let mut config = msgr::Config::server(me, self.addrs.clone());
        // `Policy::stateless_registered_server`: a client that dials anew replaces its old
        // connection.
        config.policy.register_lossy = true;
        config
    }

    fn authenticate(&mut self, link: Link, ask: Ask<'_>, _: Now) -> Step {
        let policy = &self.policy;
        let auth = self.auths.entry(link);
        let auth = auth.or_insert_with(|| ServiceAuth::new(policy.clone()));
        match ask {
            Ask::Request {
                method,
                modes,
                payload,
            } => auth.request(&self.secrets, method, modes, payload, &mut draw),
            Ask::More(payload) => auth.more(&self.secrets, payload, &mut draw),
        }
    }

    fn opened(&mut self, link: Link, peer: Peer, now: Now, out: &mut Outbox) {
        self.auths.remove(&link);
        self.osd.opened(link, peer, now, out);
    }

    fn closed(&mut self, link: Link, now: Now, out: &mut Outbox) {
        self.auths.remove(&link);
        self.osd.closed(link, now, out);
    }

    fn message(&mut self, link: Link, message: &Message<'_>, now: Now, out: &mut Outbox) {
        self.osd.message(link, message, now, out);
    }

    fn busy(&self, link: Link) -> bool {
        self.osd.busy(link)
    }

    fn turn(&mut self, now: Now, out: &mut Outbox) {
        self.osd.commit(now, out);
        self.carry_out();
    }

    fn next_deadline(&self) -> Option<u64> {
        let osd = self.osd.next_deadline().unwrap_or(u64::MAX);
        Some(osd.min(self.report_at))
    }

    fn tick(&mut self, now: Now, out: &mut Outbox) {
        self.osd.tick(now, out);
        if now.mono >= self.report_at {
            self.report(now);
        }
    }
}

struct Thread<S: Store + 'static>(Acceptor<Shard<S>>);

impl<S> Local for Thread<S>
where
    S: Store + 'static,
{
    fn map(&self, map: Arc<OsdMap>) {
        self.0.with(|shard, now, out| shard.osd.map(map, now, out));
    }

    fn secrets(&self, secrets: RotatingSecrets) {
        self.0.with(|shard, _, _| shard.secrets = secrets);
    }

    fn adopt(&self, pg: PgId, state: Box<dyn Any>) {
        let Ok(state) = state.downcast::<DetachedPg<S>>() else {
            unreachable!("the OSDs of a server have stores of one kind");
        };
        self.0
            .with(|shard, now, out| shard.osd.adopt(pg, *state, now, out));
    }

    fn faults(&self, f: &mut dyn FnMut(&mut Faults)) {
        self.0.with(|shard, _, _| f(shard.osd.faults()));
    }

    fn state(&self) -> State {
        let links = self.0.counts();
        self.0.with(|shard, _, _| State {
            epoch: shard.osd.epoch(),
            waiting: shard.osd.waiting(),
            usage: shard.usage(),
            links,
            failed: shard.failed.clone(),
        })
    }

    fn shut(&self) {
        self.0.with(|shard, _, _| shard.stopped.set(true));
        self.0.shut();
    }

    fn reopen(&self, listener: TcpListener) -> std::io::Result<()> {
        self.0.listen(Listener::from_fd(listener.into())?);
        self.0.with(|shard, _, _| shard.stopped.set(false));
        Ok(())
    }
}

pub(super) struct OsdThread {
    worker: Worker,
    pub(super) addr: SocketAddr,
    pub(super) addrs: EntityAddrVec,
}

impl OsdThread {
    /// `make` opens the store, on the thread that will use it.
    pub(super) fn start<S, F>(setup: Setup, make: F) -> Result<OsdThread, ServerError>
    where
        S: Store + 'static,
        F: FnOnce(Remote) -> Result<S, StoreError> + Send + 'static,
    {
        let os = |what| move |error| ServerError::Os { what, error };
        let addr = setup.listener.local_addr().map_err(os("listen"))?;
        let addrs = setup.config.addrs.clone();
        let name = format!("osd.{}", setup.config.id);
        let config = iothread::Config {
            name,
            ..iothread::Config::default()
        };
        let open = move || {
            let store = make(iothread::remote())?;
            HERE.set(Some(open(setup, store)?));
            Ok(())
        };
        let close = |()| drop(HERE.take());
        Ok(OsdThread {
            worker: Worker::start("osd", config, open, close)?,
            addr,
            addrs,
        })
    }

    /// Uses the OSD from another thread, and waits for the result.
    pub(super) fn ask<R: Send + 'static>(
        &self,
        f: impl FnOnce(&dyn Local) -> R + Send + 'static,
    ) -> Result<R, ServerError> {
        self.worker
            .call(move || here(f))?
            .ok_or(ServerError::Stopped)
    }

    pub(super) fn stop(self) -> Result<(), ServerError> {
        self.worker.stop()
    }

    pub(super) fn remote(&self) -> &Remote {
        self.worker.remote()
    }
}

fn open<S: Store + 'static>(setup: Setup, store: S) -> Result<Rc<dyn Local>, ServerError> {
    let mut seed = [0; 8];
    draw(&mut seed);
    let (id, addrs) = (setup.config.id, setup.config.addrs.clone());
    let seed = u64::from_le_bytes(seed);
    let osd = Osd::new(setup.config, store, setup.history, seed);
    let listener = Listener::from_fd(setup.listener.into()).map_err(|error| ServerError::Os {
        what: "listen",
        error,
    })?;
    let service = Shard {
        osd,
        id,
        addrs,
        policy: setup.policy,
        secrets: RotatingSecrets::default(),
        auths: HashMap::new(),
        threads: setup.threads,
        capacity: setup.capacity,
        report_at: 0,
        reported: OsdUsage::default(),
        failed: None,
        stopped: Cell::new(false),
    };
    let acceptor = Acceptor::new(service, Limits::default());
    acceptor.listen(listener);
    Ok(Rc::new(Thread(acceptor)))
}

/// The address that the map lists for a socket of this process.
pub(super) fn listed(addr: SocketAddr) -> EntityAddrVec {
    EntityAddrVec(vec![EntityAddr::msgr2(addr, std::process::id())])
}
