//! Watches and notifies: registrations that outlive a request (`Objecter::LingerOp`).

use super::msg::{MWatchNotify, NotifyEvent, OsdFlags, OsdMapFlags, WatchOp};
use super::placement::Placement;
use super::request::{
    Access, Completions, OpError, OpId, OpReply, Request, SubmitError, WatchEvent,
};
use super::session::Link;
use super::table::Owner;
use super::target::{OpTarget, Recalc, Target, full_in};
use super::{ObjectOp, Objecter};
use crate::codec::{Now, Reader, UTime};

const ENOENT: i32 = 2;
const ENOTCONN: i32 = 107;
/// How long an OSD keeps a watch that is not pinged (`osd_client_watch_timeout`).
const DEFAULT_TIMEOUT: u32 = 30;
/// Cookies from here on are ours, for notifies.
const NOTIFY_COOKIES: u64 = 1 << 63;

/// A watch to be set up.
#[derive(Debug, Clone)]
pub struct WatchRequest {
    pub target: Target,
    /// This client's name for the watch; unique among its watches, above zero and below 2^63.
    pub cookie: u64,
    /// Seconds after which the OSD may drop a silent watch; zero for the OSD's default.
    pub timeout: u32,
    /// Comes back with the completion of the registration.
    pub token: u64,
}

enum Kind {
    Watch { timeout: u32 },
    Notify { timeout: u32, payload: Vec<u8> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its first registration has not been answered.
    Registering,
    Active,
    /// It was lost and the caller has been told.
    Broken,
}

pub(super) struct Linger {
    kind: Kind,
    target: OpTarget,
    token: u64,
    state: State,
    /// Counts registrations; the OSD tells a reconnect from an older connection by it.
    generation: u32,
    /// The registration under way.
    register: Option<u64>,
    ping: Option<u64>,
    /// The watch was known to be there when the last answered ping was sent.
    valid_thru: u64,
    unconfirmed: bool,
    /// Of a notify: the OSD's name for it, zero until known; and when it is to be given up.
    notify_id: u64,
    deadline: u64,
}

impl Linger {
    fn new(kind: Kind, target: Target, flags: OsdFlags, token: u64, now: Now) -> Linger {
        Linger {
            kind,
            target: OpTarget::new(target, flags),
            token,
            state: State::Registering,
            generation: 0,
            register: None,
            ping: None,
            valid_thru: now.mono,
            unconfirmed: false,
            notify_id: 0,
            deadline: u64::MAX,
        }
    }

    fn is_watch(&self) -> bool {
        matches!(self.kind, Kind::Watch { .. })
    }

    /// Notes that the watch is lost. An object that is gone and a watch that is gone look the same
    /// to the caller (`Objecter::_normalize_watch_error`).
    fn broke(&mut self, cookie: u64, error: OpError, sink: &mut dyn Completions) {
        if self.state == State::Broken {
            return;
        }
        self.state = State::Broken;
        let errno = match error.errno() {
            ENOENT => ENOTCONN,
            errno => errno,
        };
        sink.watch_event(cookie, WatchEvent::Disconnected(errno));
    }
}

impl<M: Placement> Objecter<M> {
    /// Sets up a watch and keeps it up. `op_done` tells when it is registered or has failed;
    /// events come after that, until `unwatch`.
    pub fn watch(&mut self, request: WatchRequest, now: Now) -> Result<(), SubmitError> {
        let WatchRequest {
            target,
            cookie,
            timeout,
            token,
        } = request;
        if cookie == 0 || cookie >= NOTIFY_COOKIES || self.lingers.contains_key(&cookie) {
            return Err(SubmitError::BadCookie(cookie));
        }
        let flags = OsdFlags::READ | OsdFlags::WRITE;
        let linger = Linger::new(Kind::Watch { timeout }, target, flags, token, now);
        self.start(cookie, linger, now)
    }

    /// Takes a watch down. `op_done` tells when the OSD has; no event comes any more. A registration
    /// that has not been answered ends as cancelled.
    pub fn unwatch(
        &mut self,
        cookie: u64,
        token: u64,
        now: Now,
        sink: &mut dyn Completions,
    ) -> Result<OpId, SubmitError> {
        let linger = self.lingers.get(&cookie).filter(|l| l.is_watch());
        let Some(linger) = linger else {
            return Err(SubmitError::NoWatch(cookie));
        };
        let ops = ObjectOp::new().watch(WatchOp::Unwatch, cookie, 0, 0);
        let request = Request {
            access: Access::Write(Default::default()),
            ..Request::read(linger.target.object.clone(), ops, token)
        };
        let done = self.submit(request, now);
        if !matches!(done, Err(SubmitError::Busy(_)))
            && let Some(linger) = self.drop_linger(cookie)
            && linger.state == State::Registering
        {
            sink.op_done(linger.token, OpReply::failed(OpError::Cancelled));
        }
        done
    }

    /// Notifies the watchers of an object and waits for their answers, as long as `timeout`
    /// seconds at the OSD. Ends with `notify_done`.
    pub fn notify(
        &mut self,
        target: Target,
        payload: Vec<u8>,
        timeout: u32,
        token: u64,
        now: Now,
    ) -> Result<(), SubmitError> {
        self.notifies += 1;
        let cookie = NOTIFY_COOKIES | self.notifies;
        let kind = Kind::Notify { timeout, payload };
        let mut linger = Linger::new(kind, target, OsdFlags::READ, token, now);
        if let Some(timeout) = self.config.op_timeout {
            linger.deadline = now.after(timeout);
        }
        self.start(cookie, linger, now)
    }

    /// The monotonic moment up to which a watch is known not to have missed anything.
    pub fn watch_valid_thru(&self, cookie: u64) -> Option<u64> {
        let linger = self.lingers.get(&cookie)?;
        (linger.state == State::Active).then_some(linger.valid_thru)
    }

    fn start(&mut self, cookie: u64, mut linger: Linger, now: Now) -> Result<(), SubmitError> {
        self.now = now;
        if self.blocklisted {
            return Err(SubmitError::Blocklisted);
        }
        if self.lingers.len() >= MAX_LINGERS {
            let ops = ObjectOp::new();
            let request = Request::read(linger.target.object, ops, linger.token);
            return Err(SubmitError::Busy(Box::new(request)));
        }
        if self.mapper.calc(&mut linger.target, true) == Recalc::PoolEio {
            return Err(SubmitError::PoolEio);
        }
        self.lingers.insert(cookie, linger);
        self.send_linger(cookie);
        Ok(())
    }

    /// Sends the registration, or asks a new primary to take the watch over
    /// (`Objecter::_send_linger`).
    fn send_linger(&mut self, cookie: u64) {
        let Some(linger) = self.lingers.get_mut(&cookie) else {
            return;
        };
        if linger.state == State::Broken {
            return;
        }
        let stale = [linger.register.take(), linger.ping.take()];
        let reconnect = linger.state == State::Active && linger.is_watch();
        linger.generation += u32::from(reconnect);
        let generation = linger.generation;
        let owner = if reconnect {
            Owner::Reconnect { cookie, generation }
        } else {
            Owner::Register { cookie }
        };
        let body = match &linger.kind {
            Kind::Watch { .. } if reconnect => {
                ObjectOp::new().watch(WatchOp::Reconnect, cookie, generation, 0)
            }
            Kind::Watch { timeout } => ObjectOp::new().watch(WatchOp::Watch, cookie, 0, *timeout),
            Kind::Notify { timeout, payload } => {
                linger.notify_id = 0;
                ObjectOp::new().notify(cookie, *timeout, payload)
            }
        };
        let target = OpTarget::new(linger.target.object.clone(), linger.target.flags);
        let is_watch = linger.is_watch();
        self.forget_ids(stale);
        let wall = self.now.wall;
        let slot = self.submit_internal(owner, body, target, |op| {
            if is_watch {
                op.mtime = UTime::from_nanos(wall);
            }
        });
        let id = slot.map(|slot| self.ops[slot].id);
        if let Some(linger) = self.lingers.get_mut(&cookie) {
            linger.register = id;
        }
    }

    fn forget_ids(&mut self, ids: [Option<u64>; 2]) {
        for id in ids.into_iter().flatten() {
            if let Some(slot) = self.ops.by_id(id) {
                self.forget(slot);
            }
        }
    }

    fn drop_linger(&mut self, cookie: u64) -> Option<Linger> {
        let linger = self.lingers.remove(&cookie)?;
        self.forget_ids([linger.register, linger.ping]);
        Some(linger)
    }

    /// A registration, reconnect or ping has ended.
    pub(super) fn linger_op_done(
        &mut self,
        owner: Owner,
        reply: OpReply<'_>,
        sink: &mut dyn Completions,
    ) {
        let Some(cookie) = owner.cookie() else {
            return;
        };
        let now = self.now.mono;
        let Some(linger) = self.lingers.get_mut(&cookie) else {
            return;
        };
        match owner {
            Owner::User { .. } => {}
            Owner::Register { .. } => {
                linger.register = None;
                match (reply.result, linger.is_watch()) {
                    (Ok(()), true) => {
                        linger.state = State::Active;
                        linger.valid_thru = now;
                        sink.op_done(linger.token, reply);
                    }
                    (Ok(()), false) => {
                        // The end comes in a message that names the notify by this id.
                        let data = reply.results.get(0).map_or(&[][..], |r| r.data);
                        linger.notify_id = Reader::new(data).u64().unwrap_or(0);
                        linger.state = State::Active;
                    }
                    (Err(error), watch) => {
                        let token = linger.token;
                        self.drop_linger(cookie);
                        if watch {
                            sink.op_done(token, reply);
                        } else {
                            sink.notify_done(token, Err(error), &[]);
                        }
                    }
                }
            }
            Owner::Reconnect { generation, .. } => {
                linger.register = None;
                if let (Err(error), true) = (reply.result, linger.generation == generation) {
                    linger.broke(cookie, error, sink);
                }
            }
            Owner::Ping {
                generation, sent, ..
            } => {
                linger.ping = None;
                if linger.generation != generation {
                    return;
                }
                match reply.result {
                    Ok(()) => linger.valid_thru = linger.valid_thru.max(sent),
                    Err(error) => linger.broke(cookie, error, sink),
                }
            }
        }
    }

    /// `Objecter::handle_watch_notify`.
    pub(super) fn watch_notify(
        &mut self,
        m: &MWatchNotify<'_>,
        data: &[u8],
        sink: &mut dyn Completions,
    ) {
        let cookie = m.cookie;
        let Some(linger) = self.lingers.get_mut(&cookie) else {
            return;
        };
        match (NotifyEvent::from_wire(m.opcode), linger.is_watch()) {
            // The end of an earlier registration: one that is under way makes up for it, and its
            // outcome is still to be told.
            (Some(NotifyEvent::Disconnect), true) if linger.state == State::Registering => {}
            (Some(NotifyEvent::Disconnect), true) => {
                linger.broke(cookie, OpError::Errno(ENOTCONN), sink);
            }
            (Some(NotifyEvent::Notify), true) if linger.state != State::Broken => {
                let event = WatchEvent::Notify {
                    notify_id: m.notify_id,
                    notifier: m.notifier,
                    payload: m.payload,
                };
                sink.watch_event(cookie, event);
            }
            (Some(NotifyEvent::Complete), false) => {
                // After a reconnect the end of the former notify may still arrive.
                if linger.notify_id != 0 && linger.notify_id != m.notify_id {
                    return;
                }
                let token = linger.token;
                self.drop_linger(cookie);
                sink.notify_done(token, OpError::from_result(m.return_code), data);
            }
            _ => {}
        }
    }

    /// Watches and notifies to register again under a new map.
    pub(super) fn changed_lingers(
        &mut self,
        skipped: bool,
        old: Option<&M>,
        sink: &mut dyn Completions,
    ) -> Vec<u64> {
        let mut changed = Vec::new();
        for (&cookie, linger) in &mut self.lingers {
            let pool = linger.target.object.pool;
            let gone = |osd| {
                let i = self.by_osd.binary_search_by_key(&osd, |&(osd, _)| osd);
                i.is_ok_and(|i| self.sessions[self.by_osd[i].1 as usize].gone)
            };
            let astray = gone(linger.target.osd);
            match self.mapper.calc(&mut linger.target, true) {
                Recalc::NoAction => {
                    let full = linger.target.respects_full()
                        && (self.mapper.full(pool)
                            || self.config.honor_full && old.is_some_and(|m| full_in(m, pool)));
                    if skipped || full || astray {
                        changed.push(cookie);
                    }
                }
                Recalc::NeedResend => changed.push(cookie),
                // A registration under way finds out by itself.
                Recalc::PoolDne if linger.state == State::Active && linger.is_watch() => {
                    linger.broke(cookie, OpError::PoolGone, sink);
                }
                Recalc::PoolEio if linger.state == State::Active && linger.is_watch() => {
                    linger.broke(cookie, OpError::PoolEio, sink);
                }
                Recalc::PoolDne | Recalc::PoolEio => {}
            }
        }
        changed
    }

    /// Cookies of what is registered at an OSD, added to `out`.
    pub(super) fn lingers_on(&self, osd: i32, out: &mut Vec<u64>) {
        let here = self.lingers.iter().filter(|(_, l)| l.target.osd == osd);
        out.extend(here.map(|(&cookie, _)| cookie));
    }

    /// Whether anything is registered at an OSD.
    pub(super) fn watches(&self, osd: i32) -> bool {
        let live = |l: &Linger| l.state != State::Broken && l.target.osd == osd;
        self.lingers.values().any(live)
    }

    pub(super) fn resend_lingers(&mut self, mut cookies: Vec<u64>) {
        cookies.sort_unstable();
        cookies.dedup();
        for cookie in cookies {
            self.send_linger(cookie);
        }
    }

    /// Pings watches and notices those that stay silent (`Objecter::_send_linger_ping`).
    pub(super) fn look_after_lingers(&mut self, sink: &mut dyn Completions) {
        if self.lingers.is_empty() {
            return;
        }
        let now = self.now.mono;
        let late: Vec<u64> = self
            .lingers
            .iter()
            .filter(|(_, l)| l.deadline <= now)
            .map(|(&cookie, _)| cookie)
            .collect();
        for cookie in late {
            if let Some(linger) = self.drop_linger(cookie) {
                sink.notify_done(linger.token, Err(OpError::TimedOut), &[]);
            }
        }
        let mut due = Vec::new();
        for (&cookie, linger) in &mut self.lingers {
            let Kind::Watch { timeout } = linger.kind else {
                continue;
            };
            if linger.state != State::Active {
                continue;
            }
            let timeout = if timeout == 0 {
                DEFAULT_TIMEOUT
            } else {
                timeout
            };
            let silent = now.saturating_sub(linger.valid_thru) / 1_000_000_000;
            let lapsed = silent >= u64::from(timeout);
            if lapsed && !linger.unconfirmed {
                sink.watch_event(cookie, WatchEvent::Unconfirmed);
            }
            linger.unconfirmed = lapsed;
            if linger.register.is_none() && linger.ping.is_none() {
                due.push((cookie, linger.target.osd));
            }
        }
        let map = self.mapper.map.as_ref();
        if map.is_some_and(|m| m.flags().has(OsdMapFlags::PAUSERD)) {
            return;
        }
        due.retain(|&(_, osd)| self.is_open(osd));
        for (cookie, _) in due {
            self.send_ping(cookie);
        }
    }

    fn is_open(&self, osd: i32) -> bool {
        let i = self.by_osd.binary_search_by_key(&osd, |&(osd, _)| osd);
        i.is_ok_and(|i| self.sessions[self.by_osd[i].1 as usize].link == Link::Open)
    }

    fn send_ping(&mut self, cookie: u64) {
        let Some(linger) = self.lingers.get(&cookie) else {
            return;
        };
        let generation = linger.generation;
        let body = ObjectOp::new().watch(WatchOp::Ping, cookie, generation, 0);
        let target = OpTarget::new(linger.target.object.clone(), linger.target.flags);
        let owner = Owner::Ping {
            cookie,
            generation,
            sent: self.now.mono,
        };
        let slot = self.submit_internal(owner, body, target, |_| {});
        let id = slot.map(|slot| self.ops[slot].id);
        if let Some(linger) = self.lingers.get_mut(&cookie) {
            linger.ping = id;
        }
    }

    /// Ends all watches and notifies.
    pub(super) fn fail_lingers(&mut self, error: OpError, sink: &mut dyn Completions) {
        while let Some((&cookie, _)) = self.lingers.first_key_value() {
            let Some(mut linger) = self.drop_linger(cookie) else {
                return;
            };
            match (linger.is_watch(), linger.state) {
                (true, State::Registering) => {
                    sink.op_done(linger.token, OpReply::failed(error));
                }
                (true, _) => linger.broke(cookie, error, sink),
                (false, _) => sink.notify_done(linger.token, Err(error), &[]),
            }
        }
    }
}

/// Each holds at most a registration and a ping, for which the table keeps slots.
const MAX_LINGERS: usize = (super::table::MAX_SLOTS - super::submit::MAX_OPS) / 2;
