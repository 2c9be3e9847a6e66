//! The state machine (`src/mon/MonClient.cc`): one session with one monitor, found by dialing
//! several at once.

mod answers;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::error::{DialError, MonError};
use super::hunt::{self, Candidate, SplitMix64};
use super::message::{MAuthReply, MMonGetMap, SubscribeItem};
use super::request::{CommandReply, PoolOpReply, Request, Versions};
use super::subscribe::Subscriptions;
use super::{MonConfig, MonMap};
use crate::codec::{EntityAddrVec, Now};
use crate::payload::Payload;

/// Monitors whose last error is remembered.
const MAX_ERRORS: usize = 64;

/// A message to the monitor of the open session.
#[derive(Debug, Clone)]
pub struct Outgoing {
    pub kind: u16,
    pub version: u16,
    pub compat: u16,
    pub tid: u64,
    pub front: Vec<u8>,
    pub data: Payload,
}

/// A message from a monitor.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'a> {
    pub kind: u16,
    pub version: u16,
    pub tid: u64,
    pub front: &'a [u8],
    pub data: &'a [u8],
}

/// What the owner has to do.
#[derive(Debug)]
pub enum MonAction {
    /// Connect and authenticate, then say [`MonClient::dialed_ok`] or [`MonClient::dial_failed`].
    Dial { attempt: u64, addrs: EntityAddrVec },
    /// Close that connection, whatever its state. Nothing more need be said of it.
    Hangup { attempt: u64 },
    /// Send this in the open session.
    Send { attempt: u64, message: Outgoing },
    /// Send a keepalive in the open session; say [`MonClient::keepalive_ack`] when it is answered.
    Keepalive { attempt: u64 },
}

/// What the owner should know.
#[derive(Debug, Clone, PartialEq)]
pub enum MonEvent {
    /// The first map and configuration are in.
    Ready,
    /// [`MonClient::monmap`] is a new one.
    MonMap {
        epoch: u32,
    },
    /// The cluster has voided all tickets: renew them.
    TicketsVoid,
    /// All options that the monitors hold for us, in place of those before.
    Config(BTreeMap<String, String>),
    Auth(MAuthReply),
    CommandDone {
        token: u64,
        result: Result<CommandReply, MonError>,
    },
    Version {
        token: u64,
        result: Result<Versions, MonError>,
    },
    PoolOpDone {
        token: u64,
        result: Result<PoolOpReply, MonError>,
    },
    /// There will be no session. All is over.
    Failed(MonError),
}

#[derive(Debug)]
struct Attempt {
    id: u64,
    dial: SocketAddr,
}

#[derive(Debug)]
enum State {
    Idle,
    Hunting {
        attempts: Vec<Attempt>,
        /// When to give up on them and dial others.
        deadline: u64,
    },
    Open(Session),
    Closed,
}

#[derive(Debug)]
struct Session {
    id: u64,
    dial: SocketAddr,
    opened: u64,
    last_heard: u64,
    next_ping: u64,
}

/// The client's end of the monitors. After every call, take what [`MonClient::poll`] and
/// [`MonClient::poll_event`] have until both are empty.
#[derive(Debug)]
pub struct MonClient {
    config: MonConfig,
    random: SplitMix64,
    state: State,
    next_attempt: u64,
    /// Monitors dialed since all had been.
    tried: BTreeSet<SocketAddr>,
    /// One of those said no.
    denied: bool,
    last_errors: BTreeMap<SocketAddr, String>,
    /// How many hunt intervals a hunt lasts.
    multiple: f64,
    had_session: bool,
    ready: bool,
    config_seen: bool,
    mount_deadline: Option<u64>,
    monmap: Option<MonMap>,
    subs: Subscriptions,
    /// By tid, in the order they were made.
    requests: BTreeMap<u64, Request>,
    last_tid: u64,
    /// The newest version of the OSD map's service that an answer told us of.
    osdmap_seen: u64,
    actions: VecDeque<MonAction>,
    events: VecDeque<MonEvent>,
}

impl MonClient {
    /// `seed` decides which monitors are dialed first; equal seeds make equal choices.
    pub fn new(config: MonConfig, seed: u64) -> MonClient {
        let config = config.sane();
        MonClient {
            random: SplitMix64(seed),
            state: State::Idle,
            next_attempt: 1,
            tried: BTreeSet::new(),
            denied: false,
            last_errors: BTreeMap::new(),
            multiple: config.hunt_interval_min_multiple,
            had_session: false,
            ready: false,
            config_seen: false,
            mount_deadline: None,
            monmap: None,
            subs: Subscriptions::default(),
            requests: BTreeMap::new(),
            last_tid: 0,
            osdmap_seen: 0,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            config,
        }
    }

    /// Starts the hunt for a first session.
    pub fn start(&mut self, now: Now) {
        if !matches!(self.state, State::Idle) {
            return;
        }
        if self.candidates().is_empty() {
            self.fail(MonError::NoMonitors);
            return;
        }
        self.subs.want("config", SubscribeItem::default());
        self.subs.want("monmap", SubscribeItem::default());
        self.mount_deadline = after(now, self.config.mount_timeout);
        self.hunt(now, true);
    }

    /// Ends the session. What still waits for an answer fails.
    pub fn close(&mut self) {
        self.end(MonError::Closed);
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self) -> Option<MonAction> {
        self.actions.pop_front()
    }

    /// The next thing to know, until there is none.
    pub fn poll_event(&mut self) -> Option<MonEvent> {
        self.events.pop_front()
    }

    pub fn monmap(&self) -> Option<&MonMap> {
        self.monmap.as_ref()
    }

    /// The attempt whose connection is the session.
    pub fn session(&self) -> Option<u64> {
        match &self.state {
            State::Open(s) => Some(s.id),
            _ => None,
        }
    }

    /// The monitor that we have a session with.
    pub fn session_addr(&self) -> Option<SocketAddr> {
        match &self.state {
            State::Open(s) => Some(s.dial),
            _ => None,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.ready
    }

    #[cfg(test)]
    pub(super) fn osdmap_seen(&self) -> u64 {
        self.osdmap_seen
    }

    /// What each monitor that gave us no session said last, on one line; empty while all is well.
    pub fn troubles(&self) -> String {
        let errors = self.last_errors.iter();
        let errors: Vec<_> = errors.map(|(addr, e)| format!("{addr}: {e}")).collect();
        errors.join("; ")
    }

    /// The connection of `attempt` is authenticated and open. The first to say so is the session,
    /// the others are hung up.
    pub fn dialed_ok(&mut self, attempt: u64, now: Now) {
        let State::Hunting { attempts, .. } = &self.state else {
            return;
        };
        let Some(won) = attempts.iter().find(|a| a.id == attempt) else {
            return;
        };
        let session = Session {
            id: attempt,
            dial: won.dial,
            opened: now.mono,
            last_heard: now.mono,
            next_ping: now.after(self.config.ping_interval),
        };
        for other in attempts.iter().filter(|a| a.id != attempt) {
            self.actions
                .push_back(MonAction::Hangup { attempt: other.id });
        }
        self.state = State::Open(session);
        self.had_session = true;
        self.denied = false;
        self.last_errors.clear();
        self.un_backoff();
        self.send(0, &MMonGetMap, Payload::default());
        self.subs.reload();
        self.renew_subscriptions();
        self.resend();
    }

    /// The connection of `attempt` came to nothing.
    pub fn dial_failed(&mut self, attempt: u64, error: &DialError) {
        let State::Hunting { attempts, .. } = &mut self.state else {
            return;
        };
        let Some(at) = attempts.iter().position(|a| a.id == attempt) else {
            return;
        };
        let failed = attempts.swap_remove(at);
        let none_left = attempts.is_empty();
        self.note_error(failed.dial, error.to_string());
        self.denied |= matches!(error, DialError::Denied(_));
        if none_left {
            self.dial_next(false);
        }
    }

    /// The connection of `attempt`, which had been open, is gone.
    pub fn lost(&mut self, attempt: u64, why: &str, now: Now) {
        match &self.state {
            State::Open(s) if s.id == attempt => {
                let (dial, opened) = (s.dial, s.opened);
                self.note_error(dial, why.to_string());
                self.reopen(dial, opened, now);
            }
            State::Hunting { .. } => {
                self.dial_failed(attempt, &DialError::Unreachable(why.to_string()));
            }
            _ => {}
        }
    }

    /// Gives up the open session with `dial` and looks for another: with other monitors first, and
    /// at once unless the session was so short that a monitor which drops every session would be
    /// dialed without end.
    fn reopen(&mut self, dial: SocketAddr, opened: u64, now: Now) {
        // What was not sent yet goes out in the next session, from where it is kept.
        self.actions
            .retain(|a| !matches!(a, MonAction::Send { .. } | MonAction::Keepalive { .. }));
        let lived = Duration::from_nanos(now.mono.saturating_sub(opened));
        let at_once = lived >= self.config.hunt_interval;
        let all = self.candidates();
        if at_once && all.iter().all(|c| self.tried.contains(&c.dial)) {
            self.start_over();
            if all.len() > 1 {
                self.tried.insert(dial);
            }
        }
        self.hunt(now, at_once);
    }

    fn candidates(&self) -> Vec<Candidate> {
        hunt::candidates(self.monmap.as_ref(), &self.config.monitors)
    }

    fn start_over(&mut self) {
        self.tried.clear();
        self.denied = false;
    }

    fn hang_up(&mut self) {
        let attempts = match &self.state {
            State::Hunting { attempts, .. } => attempts.iter().map(|a| a.id).collect(),
            State::Open(s) => vec![s.id],
            State::Idle | State::Closed => Vec::new(),
        };
        for attempt in attempts {
            self.actions.push_back(MonAction::Hangup { attempt });
        }
    }

    /// Dials monitors not tried yet; when all have been, `again` starts over with all.
    fn hunt(&mut self, now: Now, again: bool) {
        if self.had_session {
            self.multiple = (self.multiple * self.config.hunt_interval_backoff)
                .min(self.config.hunt_interval_max_multiple);
        }
        let interval = self.config.hunt_interval;
        let wait =
            Duration::try_from_secs_f64(interval.as_secs_f64() * self.multiple).unwrap_or(interval);
        self.state = State::Hunting {
            attempts: Vec::new(),
            deadline: now.after(wait),
        };
        self.dial_next(again);
    }

    fn dial_next(&mut self, again: bool) {
        let all = self.candidates();
        let n = self.config.hunt_parallel;
        let mut batch = hunt::next_batch(&all, &self.tried, n, &mut self.random);
        if batch.is_empty() && again {
            self.start_over();
            batch = hunt::next_batch(&all, &self.tried, n, &mut self.random);
        }
        if batch.is_empty() && self.denied && !self.ready {
            let tried = self.troubles();
            self.fail(MonError::Denied { tried });
            return;
        }
        let State::Hunting { attempts, .. } = &mut self.state else {
            return;
        };
        for mon in batch {
            let id = self.next_attempt;
            self.next_attempt += 1;
            self.tried.insert(mon.dial);
            attempts.push(Attempt { id, dial: mon.dial });
            self.actions.push_back(MonAction::Dial {
                attempt: id,
                addrs: mon.addrs,
            });
        }
    }

    fn un_backoff(&mut self) {
        self.multiple = (self.multiple / self.config.hunt_interval_backoff)
            .max(self.config.hunt_interval_min_multiple);
    }

    fn note_error(&mut self, dial: SocketAddr, what: String) {
        if self.last_errors.len() < MAX_ERRORS || self.last_errors.contains_key(&dial) {
            self.last_errors.insert(dial, what);
        }
    }

    fn fail(&mut self, error: MonError) {
        self.end(MonError::Closed);
        self.events.push_back(MonEvent::Failed(error));
    }

    fn end(&mut self, error: MonError) {
        self.hang_up();
        self.state = State::Closed;
        for (_, request) in std::mem::take(&mut self.requests) {
            self.events.push_back(request.failed(error.clone()));
        }
    }

    /// When [`MonClient::tick`] has something to do next, as monotonic nanoseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        let state = match &self.state {
            State::Hunting { deadline, .. } => Some(*deadline),
            State::Open(s) => Some(self.ping_deadline(s).min(s.next_ping)),
            State::Idle | State::Closed => None,
        };
        let requests = self.requests.values().filter_map(|r| r.deadline).min();
        [state, requests, self.mount_deadline.filter(|_| !self.ready)]
            .into_iter()
            .flatten()
            .min()
            .filter(|_| !matches!(self.state, State::Closed))
    }

    fn ping_deadline(&self, session: &Session) -> u64 {
        match self.config.ping_timeout {
            Duration::ZERO => u64::MAX,
            timeout => session.last_heard.saturating_add(nanos(timeout)),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Now) {
        if matches!(self.state, State::Closed) {
            return;
        }
        self.expire_requests(now);
        if !self.ready && self.mount_deadline.is_some_and(|d| d <= now.mono) {
            self.note_pending("no answer");
            let error = MonError::MountTimeout {
                after: self.config.mount_timeout,
                tried: self.troubles(),
            };
            self.fail(error);
            return;
        }
        match &mut self.state {
            State::Hunting { deadline, .. } if *deadline <= now.mono => {
                self.note_pending("no answer");
                self.hang_up();
                self.hunt(now, true);
            }
            State::Open(s) => {
                let (id, dial, opened) = (s.id, s.dial, s.opened);
                let ping = s.next_ping <= now.mono;
                if ping {
                    s.next_ping = now.after(self.config.ping_interval);
                }
                let overdue = match &self.state {
                    State::Open(s) => self.ping_deadline(s) <= now.mono,
                    _ => false,
                };
                if overdue {
                    let silent = self.config.ping_timeout.as_secs_f64();
                    self.note_error(dial, format!("no keepalive answered for {silent} s"));
                    self.hang_up();
                    self.reopen(dial, opened, now);
                } else if ping {
                    self.actions.push_back(MonAction::Keepalive { attempt: id });
                    self.un_backoff();
                }
            }
            _ => {}
        }
    }

    /// Notes `what` of every monitor that has said nothing yet.
    fn note_pending(&mut self, what: &str) {
        let silent: Vec<_> = match &self.state {
            State::Hunting { attempts, .. } => attempts.iter().map(|a| a.dial).collect(),
            State::Open(s) => vec![s.dial],
            State::Idle | State::Closed => Vec::new(),
        };
        for dial in silent {
            self.note_error(dial, what.to_string());
        }
    }

    fn expire_requests(&mut self, now: Now) {
        let due: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, r)| r.deadline.is_some_and(|d| d <= now.mono))
            .map(|(tid, _)| *tid)
            .collect();
        for tid in due {
            if let Some(request) = self.requests.remove(&tid) {
                let error = MonError::TimedOut {
                    what: request.what.describe(),
                    after: self.config.op_timeout,
                };
                self.events.push_back(request.failed(error));
            }
        }
    }

    /// The peer of `attempt` has answered a keepalive.
    pub fn keepalive_ack(&mut self, attempt: u64, now: Now) {
        if let State::Open(s) = &mut self.state
            && s.id == attempt
        {
            s.last_heard = now.mono;
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The moment `d` from now; none when `d` is zero, which means never.
fn after(now: Now, d: Duration) -> Option<u64> {
    (!d.is_zero()).then(|| now.after(d))
}
