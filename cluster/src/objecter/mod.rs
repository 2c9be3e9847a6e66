//! Operations to placement groups to OSDs, without I/O.
//!
//! The [`Objecter`] owns every request from the moment it is taken until it has ended: it finds
//! the OSD that serves the object, has the request sent there, and has it sent again whenever the
//! map, the OSD or the connection says so. The rules are those of `src/osdc/Objecter.cc`, so that
//! an OSD cannot tell this client from librados.
//!
//! Its owner drives it:
//! - requests go in through [`Objecter::submit`], [`Objecter::watch`] and [`Objecter::notify`];
//! - maps through [`Objecter::handle_map`], messages through [`Objecter::message`], the fate of
//!   connections through [`Objecter::session_open`] and [`Objecter::session_lost`], the passage of
//!   time through [`Objecter::tick`];
//! - after any of these, [`Objecter::poll`] says what to do until it says `None`;
//! - outcomes arrive in the [`Completions`] that the calls are given.
//!
//! Once its tables have grown to the number of requests in flight, a request on a data object
//! costs no allocation: slots are reused, lists run through the slots, names lie inline, and the
//! transaction id says which slot a reply is for.

pub mod msg;
pub mod results;

mod incoming;
mod map_change;
mod op;
mod osd_map;
mod placement;
mod poll;
mod request;
mod session;
mod submit;
mod table;
mod target;
mod time;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use slab::Slab;

pub use op::ObjectOp;
pub use placement::{Mapped, Placement, PoolShape, PoolView};
#[cfg(test)]
pub(crate) use placement::{is_merge_source, is_merge_target, is_split};
pub use request::{
    Access, Action, Completions, Incoming, MessageError, OpError, OpId, OpReply, OpResult,
    OpResults, OutHeader, Outgoing, Request, SessionId, SnapContext, SubmitError, WatchEvent,
};
pub use target::Target;
pub use watch::WatchRequest;

use crate::codec::{EntityAddrVec, Now};
use session::Session;
use table::{List, Table, Use};
use target::Mapper;
use watch::Linger;

/// How an objecter behaves. The defaults are Ceph's where Ceph has such an option.
#[derive(Debug, Clone)]
pub struct ObjecterConfig {
    /// `objecter_inflight_ops`. At most 60000.
    pub max_ops: usize,
    /// `objecter_inflight_op_bytes`, of data in either direction.
    pub max_bytes: u64,
    /// `rados_osd_op_timeout`; `None` waits for ever.
    pub op_timeout: Option<Duration>,
    /// `objecter_tick_interval`: how often watches are pinged and slow requests looked for.
    pub tick: Duration,
    /// `objecter_timeout`: a request that takes longer makes us ask for a map and probe the OSD.
    pub laggy_after: Duration,
    /// Sessions without work are closed after this time; `None` keeps them.
    pub idle_close: Option<Duration>,
    /// How long to wait before the second of successive attempts to reach an OSD; doubles up to
    /// `reconnect_max`. The first follows at once.
    pub reconnect_initial: Duration,
    pub reconnect_max: Duration,
    /// Transaction ids are above this. Requests with an id that this client (global id) has used
    /// before would be taken for repetitions.
    pub first_tid: u64,
    /// `osd_client_op_priority`.
    pub priority: u16,
    /// The features this client supports, for the OSD to know how to answer.
    pub features: u64,
    /// Whether writes wait while the cluster or their pool is full, as librbd's do.
    pub honor_full: bool,
    /// Seeds the choice of replicas for balanced reads.
    pub seed: u64,
}

impl Default for ObjecterConfig {
    fn default() -> ObjecterConfig {
        ObjecterConfig {
            max_ops: 1024,
            max_bytes: 100 << 20,
            op_timeout: None,
            tick: Duration::from_secs(5),
            laggy_after: Duration::from_secs(10),
            idle_close: Some(Duration::from_secs(900)),
            reconnect_initial: Duration::from_millis(200),
            reconnect_max: Duration::from_secs(15),
            first_tid: 0,
            priority: 63,
            features: 0x3f01_cfbf_fffd_ffff,
            honor_full: true,
            seed: 1,
        }
    }
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    pub submitted: u64,
    pub sent: u64,
    /// Of those sent, repetitions.
    pub resent: u64,
    /// Replies that ended a request.
    pub replies: u64,
    /// Replies to requests that had ended, or to attempts that did not count any more.
    pub stray_replies: u64,
    pub timed_out: u64,
    pub maps: u64,
    pub sessions_opened: u64,
}

/// See the module.
pub struct Objecter<M> {
    config: ObjecterConfig,
    mapper: Mapper<M>,
    now: Now,
    addrs: EntityAddrVec,
    blocklisted: bool,
    ops: Table,
    sessions: Slab<Session>,
    /// Slab keys by OSD, sorted.
    by_osd: Vec<(i32, u32)>,
    /// Requests without an OSD.
    homeless: List,
    timers: List,
    lingers: BTreeMap<u64, Linger>,
    /// For the cookies of notifies.
    notifies: u64,
    /// For the incarnations of sessions.
    incarnations: u64,
    in_flight_ops: usize,
    in_flight_bytes: u64,
    todo: VecDeque<poll::Todo>,
    /// Sessions with messages to send.
    ready: VecDeque<u32>,
    /// Ask for maps; the last answer was not enough.
    want_map: bool,
    latest: map_change::LatestCheck,
    next_tick: u64,
    /// When the first of the waiting sessions is to be connected.
    next_connect: u64,
    /// Requests to send again, collected while a map is looked at.
    resend: Vec<(u64, u32)>,
    stats: Stats,
}

impl<M: Placement> Objecter<M> {
    pub fn new(config: ObjecterConfig) -> Objecter<M> {
        let config = ObjecterConfig {
            max_ops: config.max_ops.clamp(1, submit::MAX_OPS),
            ..config
        };
        Objecter {
            mapper: Mapper::new(config.honor_full, config.seed),
            now: Now::default(),
            addrs: EntityAddrVec::default(),
            blocklisted: false,
            ops: Table::new(config.first_tid),
            sessions: Slab::new(),
            by_osd: Vec::new(),
            homeless: List::new(Use::Home),
            timers: List::new(Use::Timer),
            lingers: BTreeMap::new(),
            notifies: 0,
            incarnations: 0,
            in_flight_ops: 0,
            in_flight_bytes: 0,
            todo: VecDeque::new(),
            ready: VecDeque::new(),
            want_map: false,
            latest: map_change::LatestCheck::default(),
            next_tick: u64::MAX,
            next_connect: u64::MAX,
            resend: Vec::new(),
            stats: Stats::default(),
            config,
        }
    }

    /// The addresses by which this client is known, to find it on the blocklist.
    pub fn set_addrs(&mut self, addrs: EntityAddrVec) {
        self.addrs = addrs;
    }

    /// The epoch of the current map, or zero.
    pub fn epoch(&self) -> u32 {
        self.mapper.epoch()
    }

    /// Requests that were taken and have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight_ops
    }

    pub fn is_blocklisted(&self) -> bool {
        self.blocklisted
    }

    pub fn stats(&self) -> Stats {
        self.stats
    }
}
