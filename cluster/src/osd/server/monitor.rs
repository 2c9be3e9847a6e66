//! The monitor's thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use iothread::{Listener, Remote};

use crate::auth::server::Step;
use crate::codec::{EntityAddrVec, EntityName, EntityType, Now};
use crate::msgr::{self, Message};
use crate::osdmap::OsdMap;
use crate::transport::listen::{Acceptor, Ask, Counts, Limits, Service};

use super::super::mon::{self, Mon, MonConfig, MonEvent, MonStore, MonStoreError};
use super::super::outbox::{Link, Outbox, Peer};
use super::history::History;
use super::shard::{self, Threads};
use super::worker::Worker;
use super::{ServerError, draw};

/// Largest message to a monitor: commands carry keyrings and maps.
const MAX_MESSAGE: u32 = 16 << 20;

/// The monitor, its connections, and the OSDs' threads that want its maps.
struct Monitor {
    mon: Mon,
    addrs: EntityAddrVec,
    osds: Vec<Remote>,
    history: Arc<History>,
    /// For an OSD that starts: the newest map.
    newest: Option<Arc<OsdMap>>,
}

impl Monitor {
    /// Tells the OSDs' threads what the monitor has decided.
    fn spread(&mut self) {
        while let Some(event) = self.mon.poll_event() {
            match event {
                MonEvent::Map {
                    epoch,
                    map,
                    full,
                    incremental,
                } => {
                    self.history.add(epoch, full, incremental);
                    self.newest = Some(Arc::clone(&map));
                    for osd in &self.osds {
                        let map = Arc::clone(&map);
                        // A thread that has ended wants no map.
                        let _ = osd.spawn(move || {
                            shard::here(|osd| osd.map(map));
                        });
                    }
                }
                MonEvent::Secrets(secrets) => {
                    for osd in &self.osds {
                        let secrets = secrets.clone();
                        let _ = osd.spawn(move || {
                            shard::here(|osd| osd.secrets(secrets));
                        });
                    }
                }
            }
        }
    }
}

impl Service for Monitor {
    fn config(&mut self) -> msgr::Config {
        let me = EntityName::new(EntityType::MON, 0);
        msgr::Config {
            max_message: MAX_MESSAGE,
            ..msgr::Config::server(me, self.addrs.clone())
        }
    }

    fn authenticate(&mut self, link: Link, ask: Ask<'_>, now: Now) -> Step {
        let ask = match ask {
            Ask::Request {
                method,
                modes,
                payload,
            } => mon::Ask::Request {
                method,
                modes,
                payload,
            },
            Ask::More(payload) => mon::Ask::More(payload),
        };
        self.mon.authenticate(link, ask, now)
    }

    fn opened(&mut self, link: Link, peer: Peer, now: Now, out: &mut Outbox) {
        self.mon.opened(link, peer, now, out);
    }

    fn closed(&mut self, link: Link, _: Now, _: &mut Outbox) {
        self.mon.closed(link);
    }

    fn message(&mut self, link: Link, message: &Message<'_>, now: Now, out: &mut Outbox) {
        self.mon.message(link, message, now, out);
    }

    fn turn(&mut self, _: Now, _: &mut Outbox) {
        self.spread();
    }

    fn next_deadline(&self) -> Option<u64> {
        self.mon.next_deadline()
    }

    fn tick(&mut self, now: Now, out: &mut Outbox) {
        self.mon.tick(now, out);
    }
}

thread_local! {
    static HERE: RefCell<Option<Rc<Acceptor<Monitor>>>> = const { RefCell::new(None) };
}

/// Uses the monitor, on its own thread. Nothing happens where it has ended.
pub(super) fn here<R>(f: impl FnOnce(&mut Mon, Now, &mut Outbox) -> R) -> Option<R> {
    let acceptor = HERE.with_borrow(Clone::clone)?;
    Some(acceptor.with(|monitor, now, out| f(&mut monitor.mon, now, out)))
}

/// What the monitor's thread starts from.
pub(super) struct Setup {
    pub(super) config: MonConfig,
    pub(super) store: Box<dyn MonStore>,
    pub(super) listener: std::net::TcpListener,
    pub(super) osds: Vec<Remote>,
    /// Filled in before the first map goes out, so that an OSD which that map concerns knows whom
    /// to tell.
    pub(super) threads: Arc<OnceLock<Threads>>,
    pub(super) history: Arc<History>,
}

pub(super) struct MonThread(Worker);

impl MonThread {
    pub(super) fn start(setup: Setup) -> Result<MonThread, ServerError> {
        let config = iothread::Config {
            name: "mon".to_owned(),
            recv_bufs: 32,
            ..iothread::Config::default()
        };
        let open = move || {
            let _ = setup.threads.set(Threads {
                mon: iothread::remote(),
                osds: setup.osds.clone(),
            });
            HERE.set(Some(open(setup)?));
            Ok(())
        };
        let close = |()| drop(HERE.take());
        Worker::start("mon", config, open, close).map(MonThread)
    }

    /// Uses the monitor from another thread, and waits for the result.
    pub(super) fn ask<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Mon, Now, &mut Outbox) -> R + Send + 'static,
    ) -> Result<R, ServerError> {
        self.0.call(move || here(f))?.ok_or(ServerError::Stopped)
    }

    pub(super) fn newest(&self) -> Result<Option<Arc<OsdMap>>, ServerError> {
        self.0.call(|| {
            let acceptor = HERE.with_borrow(Clone::clone)?;
            acceptor.with(|monitor, _, _| monitor.newest.clone())
        })
    }

    pub(super) fn counts(&self) -> Result<Counts, ServerError> {
        self.0
            .call(|| HERE.with_borrow(|here| here.as_ref().map(|a| a.counts()).unwrap_or_default()))
    }

    pub(super) fn stop(self) -> Result<(), ServerError> {
        self.0.stop()
    }

    pub(super) fn remote(&self) -> &Remote {
        self.0.remote()
    }
}

fn open(setup: Setup) -> Result<Rc<Acceptor<Monitor>>, ServerError> {
    let addrs = setup.config.addrs.clone();
    let now = iothread::now();
    let now = Now {
        mono: now.mono,
        wall: now.wall,
    };
    let mon: Result<Mon, MonStoreError> = Mon::new(setup.config, setup.store, now, Box::new(draw));
    let mon = mon?;
    let newest = mon.map().epoch();
    for epoch in 1..=newest {
        if let Some(full) = mon.full_map(epoch) {
            setup.history.add(epoch, full, None);
        }
    }
    let listener = Listener::from_fd(setup.listener.into()).map_err(|error| ServerError::Os {
        what: "listen",
        error,
    })?;
    let service = Monitor {
        mon,
        addrs,
        osds: setup.osds,
        history: setup.history,
        newest: None,
    };
    let acceptor = Rc::new(Acceptor::new(service, Limits::default()));
    acceptor.listen(listener);
    Ok(acceptor)
}
