//! The links of a listener and what happens to them, without their sockets.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::rc::Rc;

use iothread::{JoinHandle, Refill, Signal};

use crate::auth::server::{Granted, Step};
use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now};
use crate::msgr::accept::{TakeOver, Verdict, resolve};
use crate::msgr::control::AuthBadMethod;
use crate::msgr::{ConnError, Connection, Event, OutBatch};
use crate::osd::{Link, Outbox, Peer, outbox};

use super::{Ask, Counts, Limits, SWEEP, Service};

/// What a connection's task and its link share.
pub(super) struct Wire {
    /// Which link the stream carries. A peer that comes back makes the stream carry its earlier
    /// one.
    link: Cell<Link>,
    /// There is something to send, or nothing ever again.
    pub(super) output: Signal,
    /// What waits for the peer has become little.
    pub(super) room: Signal,
    /// Bytes that the socket has not taken yet.
    sending: Cell<usize>,
}

/// Links are places in a table, with a number that tells who has the place.
const PLACES: usize = 1 << 16;

fn place(link: Link) -> usize {
    link.0 as usize % PLACES
}

struct Slot {
    link: Link,
    conn: Connection,
    /// Gone while a lossless session waits for its peer.
    stream: Option<(Rc<Wire>, Option<JoinHandle<()>>)>,
    stage: Stage,
    /// The service has heard of the link.
    known: bool,
    /// Who it is, until the link is open.
    granted: Option<Box<Granted>>,
    /// The peer's addresses, while they lead here.
    key: Option<EntityAddrVec>,
    dirty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    HalfOpen,
    Open,
    /// The service is done with it; it may send what is left until then.
    Closing(u64),
    /// A session without a stream; it may be taken up until then.
    Standby(u64),
}

pub(super) struct Links<S> {
    service: S,
    limits: Limits,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    next_serial: u64,
    /// Those whose peer may come back, or must not be there twice.
    by_addrs: HashMap<EntityAddrVec, Link>,
    /// In the order in which they came; some have opened or ended since.
    half_open: VecDeque<Link>,
    counts: Counts,
    out: Outbox,
    /// To be ended for what they did or did not take.
    doomed: Vec<(Link, &'static str)>,
    /// Have something to send.
    dirty: Vec<Link>,
    /// Are not read, as the service is busy with what they sent before.
    throttled: Vec<Link>,
    sweep_at: u64,
}

impl<S: Service> Links<S> {
    pub(super) fn new(service: S, mut limits: Limits) -> Links<S> {
        limits.links = limits.links.clamp(1, PLACES);
        Links {
            service,
            limits,
            slots: Vec::new(),
            free: Vec::new(),
            next_serial: 0,
            by_addrs: HashMap::new(),
            half_open: VecDeque::new(),
            counts: Counts::default(),
            out: Outbox::new(),
            doomed: Vec::new(),
            dirty: Vec::new(),
            throttled: Vec::new(),
            sweep_at: u64::MAX,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn with<R>(&mut self, now: Now, f: impl FnOnce(&mut S, Now, &mut Outbox) -> R) -> R {
        let result = f(&mut self.service, now, &mut self.out);
        self.settle(now);
        result
    }

    fn get(&mut self, link: Link) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(place(link))?.as_mut();
        slot.filter(|s| s.link == link)
    }

    fn number(&mut self, place: usize) -> Link {
        self.next_serial += 1;
        Link(self.next_serial * PLACES as u64 + place as u64)
    }

    /// A new connection, or `None` when there are too many.
    pub(super) fn accept(&mut self, from: EntityAddr, now: Now) -> Option<Rc<Wire>> {
        self.make_room(now);
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.slots.len() < self.limits.links => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => {
                self.counts.refused += 1;
                return None;
            }
        };
        let link = self.number(place);
        self.counts.accepted += 1;
        let mut seed = [0; 8];
        // Without random numbers there are no cookies, and nobody can be let in.
        if crate::random_bytes(&mut seed).is_err() {
            self.free.push(place);
            return None;
        }
        let mut config = self.service.config();
        config.global_seq = self.counts.accepted;
        config.cookie_seed = u64::from_le_bytes(seed);
        let mut conn = Connection::server(config, from);
        conn.start(now);
        let wire = Rc::new(Wire {
            link: Cell::new(link),
            output: Signal::new(),
            room: Signal::new(),
            sending: Cell::new(0),
        });
        self.slots[place] = Some(Slot {
            link,
            conn,
            stream: Some((Rc::clone(&wire), None)),
            stage: Stage::HalfOpen,
            known: false,
            granted: None,
            key: None,
            dirty: false,
        });
        self.counts.half_open += 1;
        self.half_open.push_back(link);
        if self.sweep_at == u64::MAX {
            self.sweep_at = now.after(SWEEP);
        }
        Some(wire)
    }

    pub(super) fn set_task(&mut self, wire: &Wire, task: JoinHandle<()>) {
        if let Some(Some(stream)) = self.get(wire.link.get()).map(|s| s.stream.as_mut()) {
            stream.1 = Some(task);
        }
    }

    /// Ends the oldest handshake when there are too many.
    fn make_room(&mut self, now: Now) {
        while let Some(&link) = self.half_open.front() {
            let waits = self.get(link).is_some_and(|s| s.stage == Stage::HalfOpen);
            if waits && self.counts.half_open < self.limits.half_open {
                return;
            }
            self.half_open.pop_front();
            if waits {
                self.end(link, &"too many handshakes at once", now);
                return;
            }
        }
    }

    /// Lets a link's peer have its say. Bytes that remain in `input` have to wait until the peer
    /// has taken what it asked for.
    pub(super) fn received(
        &mut self,
        wire: &Wire,
        input: &mut &[u8],
        now: Now,
    ) -> Result<(), ConnError> {
        loop {
            let link = wire.link.get();
            let limit = self.limits.output;
            let slot = match self.slots.get_mut(place(link)) {
                Some(Some(slot)) if slot.link == link => slot,
                _ => return Err(ConnError::Down),
            };
            if matches!(slot.stage, Stage::Closing(_)) {
                *input = &[];
                return Ok(());
            }
            if slot.conn.output_len() + wire.sending.get() > limit {
                slot.touch(&mut self.dirty);
                return Ok(());
            }
            if !input.is_empty() && self.service.busy(link) {
                if !self.throttled.contains(&link) {
                    self.throttled.push(link);
                }
                return Ok(());
            }
            let Some(event) = slot.conn.next_event(input, now)? else {
                if slot.conn.has_output() {
                    slot.touch(&mut self.dirty);
                }
                return Ok(());
            };
            match event {
                Event::Message(message) => {
                    self.service.message(link, &message, now, &mut self.out);
                }
                Event::AuthRequest {
                    method,
                    modes,
                    payload,
                } => {
                    slot.known = true;
                    let modes = &modes;
                    let ask = Ask::Request {
                        method,
                        modes,
                        payload,
                    };
                    let step = self.service.authenticate(link, ask, now);
                    slot.answer(step)?;
                }
                Event::AuthMore(payload) => {
                    slot.known = true;
                    let step = self.service.authenticate(link, Ask::More(payload), now);
                    slot.answer(step)?;
                }
                Event::SessionRequest => self.decide(link, now)?,
                Event::Ready(_) => self.open(link, now),
                // The service learns of a reset when the old link is closed.
                Event::Hello { .. } | Event::KeepaliveAck(_) | Event::SessionReset => {}
                // A server is asked; it does not ask.
                Event::AuthStart | Event::AuthBadMethod(_) | Event::AuthDone { .. } => {}
            }
            self.settle(now);
        }
    }

    /// The peer's session is open.
    fn open(&mut self, link: Link, now: Now) {
        let Some(slot) = self.get(link) else { return };
        // A session that goes on is nothing new to the service.
        let Some(granted) = slot.granted.take() else {
            return;
        };
        let kind = slot.conn.peer().kind;
        let num = match kind {
            // What a client calls itself before it has its id is of no use, and could be another's.
            EntityType::CLIENT => granted.global_id as i64,
            _ => slot.conn.peer().num,
        };
        let peer = Peer {
            name: EntityName::new(kind, num),
            auth: granted.name,
            addrs: slot.conn.peer_addrs().clone(),
            caps: granted.caps,
            features: slot.conn.features(),
        };
        let half_open = std::mem::replace(&mut slot.stage, Stage::Open) == Stage::HalfOpen;
        if half_open {
            self.counts.half_open -= 1;
            self.counts.open += 1;
        }
        self.service.opened(link, peer, now, &mut self.out);
    }

    /// Looks for the peer's earlier session and obeys [`resolve`].
    fn decide(&mut self, link: Link, now: Now) -> Result<(), ConnError> {
        let Some(slot) = self.slots[place(link)].as_ref() else {
            return Ok(());
        };
        let addrs = slot.conn.peer_addrs();
        let earlier = self.by_addrs.get(addrs).copied().filter(|e| *e != link);
        let existing = earlier.and_then(|e| self.slots[place(e)].as_ref());
        let verdict = resolve(existing.map(|s| &s.conn), &slot.conn);
        if let (Verdict::TakeOver(how), Some(earlier)) = (verdict, earlier) {
            return self.take_over(earlier, link, how, now);
        }
        if let (Verdict::Supersede, Some(earlier)) = (verdict, earlier) {
            self.end(earlier, &"the peer has connected anew", now);
        }
        let Some(slot) = self.get(link) else {
            return Ok(());
        };
        slot.conn.answer(verdict)?;
        match verdict {
            Verdict::Accept | Verdict::Supersede => {
                let key = slot.conn.peer_addrs().clone();
                slot.key = Some(key.clone());
                self.by_addrs.insert(key, link);
            }
            Verdict::Reply(_) => {}
            Verdict::Stale | Verdict::TakeOver(_) => return Err(ConnError::Down),
        }
        Ok(())
    }

    /// The earlier session goes on over the stream of `incoming`. The service keeps the link that
    /// it knows, unless the peer has forgotten the session: then that is closed, and the new one
    /// opened in its place.
    fn take_over(
        &mut self,
        earlier: Link,
        incoming: Link,
        how: TakeOver,
        now: Now,
    ) -> Result<(), ConnError> {
        let (stays, goes) = match how.reset {
            true => (incoming, earlier),
            false => (earlier, incoming),
        };
        let (Some(mut old), Some(new)) = (
            self.slots[place(earlier)].take(),
            self.slots[place(incoming)].take(),
        ) else {
            return Err(ConnError::Down);
        };
        self.counts.half_open -= 1;
        match old.stage {
            Stage::HalfOpen => {
                self.counts.half_open -= 1;
                self.counts.open += 1;
            }
            Stage::Standby(_) => self.counts.open += 1,
            Stage::Open | Stage::Closing(_) => {}
        }
        if let Some((_, Some(task))) = &old.stream {
            task.abort();
        }
        let taken = old.conn.take_over(new.conn, how);
        if let Some((wire, _)) = &new.stream {
            wire.link.set(stays);
        }
        if let Some(key) = &old.key {
            self.by_addrs.insert(key.clone(), stays);
        }
        let (granted, known) = match how.reset {
            true => (new.granted, new.known),
            false => (old.granted, old.known),
        };
        self.slots[place(stays)] = Some(Slot {
            link: stays,
            conn: old.conn,
            stream: new.stream,
            stage: Stage::Open,
            known,
            granted,
            key: old.key,
            dirty: false,
        });
        self.free.push(place(goes));
        self.service.closed(goes, now, &mut self.out);
        taken
    }

    /// Carries out what the service wants, and what comes of that.
    fn settle(&mut self, now: Now) {
        loop {
            if !self.out.is_empty() {
                let Links {
                    slots,
                    out,
                    doomed,
                    dirty,
                    limits,
                    ..
                } = self;
                out.drain(|link, step| {
                    let slot = slots.get_mut(place(link)).and_then(|s| s.as_mut());
                    let Some(slot) = slot.filter(|s| s.link == link) else {
                        return;
                    };
                    if let Err(why) = slot.step(step, limits, now) {
                        doomed.push((link, why));
                    }
                    slot.touch(dirty);
                });
            }
            match self.doomed.pop() {
                Some((link, why)) => self.end(link, &why, now),
                None if self.out.is_empty() => return,
                None => {}
            }
        }
    }

    /// Swaps in what waits for the wire.
    pub(super) fn take_output(&mut self, wire: &Wire, batch: &mut OutBatch) -> Refill {
        let limit = self.limits.output;
        let Some(slot) = self.get(wire.link.get()) else {
            return Refill::Done;
        };
        slot.conn.take_output(batch);
        wire.sending.set(batch.len());
        if batch.len() <= limit / 2 {
            wire.room.raise();
        }
        match (batch.is_empty(), slot.stage) {
            (false, _) => Refill::Send,
            (true, Stage::Closing(_)) => Refill::Done,
            (true, _) => Refill::Idle,
        }
    }

    /// A stream has ended.
    pub(super) fn lost(&mut self, wire: &Wire, why: &dyn fmt::Display, now: Now) {
        let until = now.after(self.limits.standby);
        let link = wire.link.get();
        let Some(slot) = self.get(link) else { return };
        // What waits for a link that is being closed has nobody to go to.
        if slot.stage == Stage::Open && slot.conn.lost() {
            slot.stream = None;
            slot.stage = Stage::Standby(until);
            self.counts.open -= 1;
            return;
        }
        self.end(link, why, now);
    }

    /// Ends a link at once.
    pub(super) fn end(&mut self, link: Link, why: &dyn fmt::Display, now: Now) {
        if self.get(link).is_none() {
            return;
        }
        let Some(slot) = self.slots[place(link)].take() else {
            return;
        };
        let peer = slot.conn.peer();
        tracing::debug!(link = link.0, %peer, %why, "connection ended");
        self.free.push(place(link));
        if let Some((_, Some(task))) = slot.stream {
            task.abort();
        }
        if let Some(key) = slot.key
            && self.by_addrs.get(&key) == Some(&link)
        {
            self.by_addrs.remove(&key);
        }
        match slot.stage {
            Stage::HalfOpen => {
                self.counts.half_open -= 1;
                self.counts.failed += 1;
            }
            Stage::Open | Stage::Closing(_) => self.counts.open -= 1,
            Stage::Standby(_) => {}
        }
        if slot.known {
            self.service.closed(link, now, &mut self.out);
            self.settle(now);
        }
    }

    pub(super) fn end_all(&mut self, now: Now) {
        for place in 0..self.slots.len() {
            if let Some(link) = self.slots[place].as_ref().map(|s| s.link) {
                self.end(link, &"the listener has ended", now);
            }
        }
    }

    /// The last thing in a turn: wakes the tasks that have something to send, or may read again.
    pub(super) fn end_turn(&mut self, now: Now) {
        self.service.turn(now, &mut self.out);
        self.settle(now);
        let mut throttled = std::mem::take(&mut self.throttled);
        throttled.retain(|link| {
            let busy = self.service.busy(*link);
            match self.get(*link) {
                Some(slot) if !busy => {
                    if let Some((wire, _)) = &slot.stream {
                        wire.room.raise();
                    }
                    false
                }
                slot => slot.is_some(),
            }
        });
        self.throttled = throttled;
        while let Some(link) = self.dirty.pop() {
            let Some(slot) = self.get(link) else { continue };
            slot.dirty = false;
            if let Some((wire, _)) = &slot.stream {
                wire.output.raise();
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let service = self.service.next_deadline().unwrap_or(u64::MAX);
        let next = service.min(self.sweep_at);
        (next != u64::MAX).then_some(next)
    }

    pub(super) fn tick(&mut self, now: Now) {
        if self
            .service
            .next_deadline()
            .is_some_and(|at| at <= now.mono)
        {
            self.service.tick(now, &mut self.out);
            self.settle(now);
        }
        if self.sweep_at <= now.mono {
            self.sweep(now);
        }
    }

    /// Ends what has taken too long.
    fn sweep(&mut self, now: Now) {
        for place in 0..self.slots.len() {
            let Some(slot) = &mut self.slots[place] else {
                continue;
            };
            let link = slot.link;
            let silent = now.mono.saturating_sub(slot.conn.last_received());
            match slot.stage {
                Stage::Closing(until) | Stage::Standby(until) => {
                    if now.mono >= until {
                        self.end(link, &"nobody came for what was left", now);
                    }
                }
                _ if u128::from(silent) > self.limits.idle.as_nanos() => {
                    self.end(link, &"the peer was silent for too long", now);
                }
                _ => match slot.conn.tick(now) {
                    Ok(()) if slot.conn.has_output() => slot.touch(&mut self.dirty),
                    Ok(()) => {}
                    Err(why) => self.end(link, &why, now),
                },
            }
        }
        let empty = self.free.len() == self.slots.len();
        self.sweep_at = if empty { u64::MAX } else { now.after(SWEEP) };
    }
}

impl Slot {
    /// Notes that there is something to send.
    fn touch(&mut self, dirty: &mut Vec<Link>) {
        if !std::mem::replace(&mut self.dirty, true) {
            dirty.push(self.link);
        }
    }

    /// Tells the peer what came of its authentication.
    fn answer(&mut self, step: Step) -> Result<(), ConnError> {
        match step {
            Step::BadMethod {
                method,
                result,
                allowed_methods,
                allowed_modes,
            } => self.conn.auth_bad_method(&AuthBadMethod {
                method,
                result,
                allowed_methods,
                allowed_modes,
            }),
            Step::More(payload) => self.conn.auth_more(&payload),
            Step::Done(granted) => {
                self.conn.auth_done(
                    granted.global_id,
                    granted.con_mode.raw(),
                    &granted.payload,
                    granted.secrets.session_key.as_bytes(),
                    granted.secrets.connection_secret.as_bytes(),
                )?;
                self.granted = Some(granted);
                Ok(())
            }
        }
    }

    /// One step of what the service wants; the error is why the link cannot go on.
    fn step(
        &mut self,
        step: outbox::Step<'_>,
        limits: &Limits,
        now: Now,
    ) -> Result<(), &'static str> {
        if matches!(self.stage, Stage::Closing(_)) {
            return Ok(());
        }
        match step {
            outbox::Step::Send {
                header,
                front,
                data,
            } => {
                let copy = |b: &mut Vec<u8>| b.extend_from_slice(front);
                if self.conn.send(header, copy, &[], data).is_err() {
                    return Err("a message could not be sent");
                }
                let sending = self.stream.as_ref().map_or(0, |(w, _)| w.sending.get());
                if self.conn.output_len() + sending > limits.output_max {
                    return Err("the peer does not take what is sent to it");
                }
            }
            outbox::Step::Close if self.stage == Stage::Open => {
                self.stage = Stage::Closing(now.after(limits.linger));
            }
            outbox::Step::Close => return Err("closed by the service"),
        }
        Ok(())
    }
}
