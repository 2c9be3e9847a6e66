//! An OSD: takes clients' requests, carries them out and answers.
//!
//! Sans-IO. One thread owns an [`Osd`] and the store of the pgs it serves; messages and moments go
//! in, an [`Outbox`] and [`OsdEvent`]s come out. A request is carried out when it arrives; its
//! answer is held back until the store has made durable what the answer depends on.
//!
//! The pool's size is one, so a pg has one OSD. When a map gives it to another one, its objects
//! leave this store as a [`DetachedPg`] and are adopted there.

mod effects;
mod info;
mod intake;
mod list;
mod maps;
mod perform;
mod reply;
mod reshape;
mod share;
mod tell;
mod trim;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use crate::codec::{EntityAddrVec, Now};
use crate::msgr::MsgHeader;
use crate::objecter::msg::{HObject, PgId};
use crate::osdmap::{OsdMap, Workspace};
use crate::payload::Payload;

use super::buffers::Buffers;
use super::caps::OsdCaps;
use super::cls::Method;
use super::exec::Effect;
use super::faults::{Faults, RuleId};
use super::outbox::{Link, Outbox, Peer};
use super::pg::{Pg, Served};
use super::random::Random;
use super::session::{Parked, Session};
use super::store::{Seq, Store, StoreError};
use super::watch::WatchKey;

/// Encoded maps, for clients that have older ones.
pub trait MapHistory: Send + Sync {
    fn full(&self, epoch: u32) -> Option<Arc<[u8]>>;
    fn incremental(&self, epoch: u32) -> Option<Arc<[u8]>>;
}

#[derive(Debug, Clone)]
pub struct OsdConfig {
    pub id: i32,
    /// As the map lists them when this OSD is up.
    pub addrs: EntityAddrVec,
    /// Pgs that the stores of the cluster's other OSDs hold before the first map. What nobody
    /// holds is made by whoever is to serve it.
    pub elsewhere: BTreeSet<PgId>,
    /// The object classes.
    pub method: fn(&str, &str) -> Option<&'static Method>,
    /// Clients are told to hold requests back while their pg is on its way
    /// (`osd_backoff_on_peering`); else the requests wait here.
    pub backoff_on_peering: bool,
}

/// What the owner has to know or do.
pub enum OsdEvent<S: Store> {
    /// `to` is to have this pg: [`Osd::adopt`].
    Released {
        pg: PgId,
        to: i32,
        state: DetachedPg<S>,
    },
    /// No clone in the pg serves these snapshots any more; said in the interval that began in
    /// `since`.
    Trimmed { pg: PgId, since: u32, snaps: Snaps },
    /// A request is of this epoch, which this OSD has not seen.
    WantMap { epoch: u32 },
    /// A map says that this OSD is down. Its connections are closed.
    Down { epoch: u32 },
    /// The store is of no use any more; nothing is served from here on.
    Failed(StoreError),
}

/// A pg on its way from one OSD to another.
pub struct DetachedPg<S: Store> {
    objects: S::Detached,
    /// Of the map by which it was released.
    epoch: u32,
    parts: BTreeSet<PgId>,
    is_part: bool,
    pg_num: u32,
    shaped: u32,
    split: u32,
    marked_full: u32,
    served: Served,
}

/// How much a pool holds on this OSD, and what was asked of it here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUsage {
    pub objects: u64,
    pub clones: u64,
    pub bytes: u64,
    pub stored: u64,
    pub omap_bytes: u64,
    pub omap_keys: u64,
    pub served: Served,
}

/// An answer that waits for the store.
#[derive(Debug)]
struct Held {
    link: Link,
    header: MsgHeader,
    front: Vec<u8>,
    data: Option<Payload>,
    /// What it and its request count for.
    size: usize,
    /// A fault has swallowed it.
    lost: bool,
    effects: Option<Box<Effects>>,
}

/// What a request means for watchers.
#[derive(Debug)]
struct Effects {
    pg: PgId,
    /// The pg's interval; in a later one its watches are new.
    interval: u32,
    oid: HObject,
    peer: crate::codec::EntityName,
    addr: crate::codec::EntityAddr,
    user_version: u64,
    notify_ids: VecDeque<u64>,
    list: Vec<Effect>,
    /// Reads tell watchers before they are answered, writes afterwards.
    of_write: bool,
}

/// Snapshots as start and length.
type Snaps = Vec<(u64, u64)>;

/// The newest map. Requests take a reference to it, which must not touch the count that all threads
/// share.
struct Current(Arc<OsdMap>);

impl Deref for Current {
    type Target = OsdMap;

    fn deref(&self) -> &OsdMap {
        &self.0
    }
}

/// See the [module](self).
pub struct Osd<S: Store> {
    config: OsdConfig,
    store: S,
    /// For object classes.
    random: Random,
    history: Arc<dyn MapHistory>,
    faults: Faults,

    /// Absent before the first map.
    map: Option<Rc<Current>>,
    /// The map says so.
    up: bool,
    failed: bool,
    workspace: Workspace,
    /// Who serves a pg by the newest map; -1 for nobody.
    acting: BTreeMap<PgId, i32>,
    /// Pgs that no OSD has ever made.
    unmade: BTreeSet<PgId>,
    /// By pool, the epochs in which the number of its pgs changed.
    shapes: BTreeMap<i64, Vec<(u32, u32)>>,
    pgs: HashMap<PgId, Pg>,
    /// Pgs that go to another OSD once the store lets them.
    leaving: Vec<(PgId, i32)>,
    sessions: BTreeMap<Link, Session>,

    buffers: Buffers,
    spare_fronts: Vec<Vec<u8>>,
    /// Objects, by a hash of their names, whose newest transaction is not durable. Two that collide
    /// wait for each other, nothing worse.
    dirty: HashMap<u64, Seq>,
    dirty_order: VecDeque<(Seq, u64)>,
    /// By the transaction they wait for, and the order in which they were made.
    held: BTreeMap<(Seq, u64), Held>,
    last_held: u64,
    /// Watches made here since they were counted last, with what there was then.
    watches: usize,
    /// Watches whose removal is not durable, with their pg's interval.
    watch_removals: VecDeque<(Seq, PgId, u32, HObject, WatchKey)>,
    /// What was trimmed and is not durable, with the pg's interval.
    trimmed: VecDeque<(Seq, PgId, u32, Snaps)>,
    /// What the store had made durable when answers were last let go.
    committed: Seq,

    delayed: BTreeMap<(u64, u64), Parked>,
    last_delayed: u64,
    stalled: Vec<(RuleId, Parked)>,
    /// Objects for which a fault holds back requests of a connection, and what came after them.
    behind: HashMap<(Link, u64), VecDeque<Parked>>,

    next_notify: u32,
    /// Not before then is there anything to do, as far as is known.
    deadline: Option<u64>,
    events: VecDeque<OsdEvent<S>>,
    wanted: u32,
}

impl<S: Store> Osd<S> {
    pub fn new(config: OsdConfig, store: S, history: Arc<dyn MapHistory>, seed: u64) -> Osd<S> {
        let committed = store.committed();
        Osd {
            config,
            store,
            random: Random::new(seed.rotate_left(32)),
            history,
            faults: Faults::new(seed),
            map: None,
            up: false,
            failed: false,
            workspace: Workspace::default(),
            acting: BTreeMap::new(),
            unmade: BTreeSet::new(),
            shapes: BTreeMap::new(),
            pgs: HashMap::new(),
            leaving: Vec::new(),
            sessions: BTreeMap::new(),
            buffers: Buffers::default(),
            spare_fronts: Vec::new(),
            dirty: HashMap::new(),
            dirty_order: VecDeque::new(),
            held: BTreeMap::new(),
            last_held: 0,
            watches: 0,
            watch_removals: VecDeque::new(),
            trimmed: VecDeque::new(),
            committed,
            delayed: BTreeMap::new(),
            last_delayed: 0,
            stalled: Vec::new(),
            behind: HashMap::new(),
            next_notify: 1,
            deadline: None,
            events: VecDeque::new(),
            wanted: 0,
        }
    }

    pub fn poll_event(&mut self) -> Option<OsdEvent<S>> {
        self.events.pop_front()
    }

    pub fn faults(&mut self) -> &mut Faults {
        &mut self.faults
    }

    pub fn store(&self) -> &S {
        &self.store
    }

    /// For tests that look at what requests have left.
    #[cfg(feature = "testing")]
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Zero before the first map.
    pub fn epoch(&self) -> u32 {
        self.map.as_ref().map_or(0, |m| m.epoch())
    }

    /// Requests that wait for a map, a pg, the store or the end of a fault.
    pub fn waiting(&self) -> usize {
        let sessions: usize = self.sessions.values().map(|s| s.waiting.len()).sum();
        let pgs: usize = self.pgs.values().map(|p| p.waiting.len()).sum();
        let behind: usize = self.behind.values().map(VecDeque::len).sum();
        let faults = self.delayed.len() + self.stalled.len() + behind;
        sessions + pgs + faults + self.held.len()
    }

    /// So many requests of the connection wait for the store that no more should be taken from it.
    pub fn busy(&self, link: Link) -> bool {
        !self.held.is_empty() && self.sessions.get(&link).is_some_and(Session::busy)
    }

    pub fn opened(&mut self, link: Link, peer: Peer, _now: Now, out: &mut Outbox) {
        if self.failed || (self.map.is_some() && !self.up) {
            out.close(link);
            return;
        }
        let caps = if peer.caps.allow_all {
            OsdCaps::all()
        } else {
            // What cannot be understood allows nothing (`OSD::ms_handle_authentication`).
            OsdCaps::parse(peer.caps.text()).unwrap_or_default()
        };
        self.sessions.insert(link, Session::new(peer, caps));
    }

    /// Requests of the connection that are not carried out yet never will be; its watches stay
    /// until their time is over.
    pub fn closed(&mut self, link: Link, _now: Now, _out: &mut Outbox) {
        let Some(session) = self.sessions.remove(&link) else {
            return;
        };
        if session.watches > 0 {
            self.pgs.values_mut().for_each(|p| p.watches.closed(link));
        }
        for pg in self.pgs.values_mut() {
            pg.waiting.retain(|p| p.link != link);
        }
        self.delayed.retain(|_, p| p.link != link);
        self.stalled.retain(|(_, p)| p.link != link);
        self.behind.retain(|(l, _), _| *l != link);
    }

    /// The connection is of no use any more.
    fn reset(&mut self, link: Link, now: Now, out: &mut Outbox) {
        self.closed(link, now, out);
        out.close(link);
    }

    pub fn next_deadline(&self) -> Option<u64> {
        if self.faults.any_released() {
            return Some(0);
        }
        let delayed = self.delayed.keys().next().map(|(at, _)| *at);
        self.deadline.into_iter().chain(delayed).min()
    }

    /// There is something to do then.
    fn wake(&mut self, at: u64) {
        self.deadline = Some(self.deadline.map_or(at, |d| d.min(at)));
    }

    pub fn tick(&mut self, now: Now, out: &mut Outbox) {
        self.commit(now, out);
        self.go_on_after_faults(now, out);
        if self.deadline.is_none_or(|d| d > now.mono) {
            return;
        }
        self.deadline = None;
        let ids: Vec<PgId> = self.pgs.keys().copied().collect();
        for id in ids {
            self.tick_watches(id, now, out);
            self.scan_slice(id, now, out);
            self.trim_slice(id, now, out);
        }
        let watches = self.pgs.values().filter_map(|p| p.watches.next_deadline());
        if let Some(next) = watches.min() {
            self.wake(next);
        }
        self.commit(now, out);
    }

    /// The store has made more durable: answers that waited for it leave, and so do pgs.
    pub fn commit(&mut self, now: Now, out: &mut Outbox) {
        let committed = self.store.committed();
        if committed == self.committed {
            return;
        }
        self.committed = committed;
        while let Some(&(seq, key)) = self.dirty_order.front()
            && seq <= committed
        {
            self.dirty_order.pop_front();
            if self.dirty.get(&key) == Some(&seq) {
                self.dirty.remove(&key);
            }
        }
        while let Some(entry) = self.held.first_entry()
            && entry.key().0 <= committed
        {
            let seq = entry.key().0;
            let held = entry.remove();
            if let Some(session) = self.sessions.get_mut(&held.link) {
                session.let_go(held.size);
            }
            self.finish_removals(seq, out);
            self.let_go(held, now, out);
        }
        self.finish_removals(committed, out);
        self.report_trimmed();
        self.release_pgs(out);
    }

    pub fn usage(&self) -> BTreeMap<i64, PoolUsage> {
        let mut pools = BTreeMap::<i64, PoolUsage>::new();
        for (id, pg) in &self.pgs {
            let pool = pools.entry(id.pool).or_default();
            pool.served.add(pg.served);
            if pg.place == super::pg::Place::Here {
                let u = self.store.usage(*id);
                pool.objects += u.objects;
                pool.clones += u.clones;
                pool.bytes += u.bytes;
                pool.stored += u.stored;
                pool.omap_bytes += u.omap_bytes;
                pool.omap_keys += u.omap_keys;
            }
        }
        pools
    }

    /// The store does not do what it must: nobody is told anything any more.
    fn fail(&mut self, error: StoreError, out: &mut Outbox) {
        if self.failed {
            return;
        }
        self.failed = true;
        self.held.clear();
        for (link, _) in std::mem::take(&mut self.sessions) {
            out.close(link);
        }
        for pg in self.pgs.values_mut() {
            pg.waiting.clear();
            pg.acting = false;
        }
        self.events.push_back(OsdEvent::Failed(error));
    }
}
