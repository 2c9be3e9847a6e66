//! Requests as futures, over whichever driver runs the client.
//!
//! A [`Rados`] is the handle of one identity: futures of its calls run on any executor of its
//! thread. The data path does not use futures: a [`OpSink`] is registered once and hears of its
//! operations by token.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::client::{Client, ClientEvent, ConfigError};
use crate::codec::Now;
use crate::mon::{Command, CommandReply, MonError};
use crate::objecter::msg::NOSNAP;
use crate::objecter::{
    Access, Completions, ObjectOp, OpError, OpId, OpReply, Request, SnapContext, SubmitError,
    Target, WatchEvent, WatchRequest,
};
use crate::osdmap::OsdMap;
use crate::payload::Payload;
use crate::rbd::cls::Call as ClassCall;

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RadosError {
    /// An OSD's answer.
    #[error("{}", Errno(*.0))]
    Errno(i32),
    #[error("the cluster did not answer in time")]
    TimedOut,
    #[error("this client was fenced: its address is on the cluster's blocklist")]
    Blocklisted,
    #[error("the connection to the cluster was closed")]
    Closed,
    #[error("there is no pool '{0}': `ceph osd pool ls` shows what is there")]
    NoPool(String),
    #[error("the pool is gone")]
    PoolGone,
    #[error(transparent)]
    Mon(#[from] MonError),
    #[error("cannot connect to the cluster: {0}")]
    Connect(String),
    #[error("{0}")]
    Config(Arc<ConfigError>),
    #[error(transparent)]
    Auth(Arc<crate::auth::AuthError>),
    #[error("an OSD's reply makes no sense: {0}")]
    Decode(#[from] crate::codec::DecodeError),
}

/// An errno in words.
struct Errno(i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("not permitted: this user's OSD capabilities do not allow it"),
            13 => f.write_str("permission denied"),
            28 => f.write_str("the cluster or the pool is full"),
            122 => f.write_str("the pool's quota is reached"),
            n => std::io::Error::from_raw_os_error(n).fmt(f),
        }
    }
}

impl From<OpError> for RadosError {
    fn from(e: OpError) -> RadosError {
        match e {
            OpError::Errno(n) => RadosError::Errno(n),
            OpError::TimedOut => RadosError::TimedOut,
            OpError::Cancelled => RadosError::Closed,
            OpError::PoolGone => RadosError::PoolGone,
            OpError::PoolEio => RadosError::Errno(5),
            OpError::Blocklisted => RadosError::Blocklisted,
        }
    }
}

/// Hears of the operations it submitted. Called while the client is busy: it may note results and
/// finish requests, but submit only later.
pub trait OpSink {
    /// Submit what has gathered: called once per turn of the driver's loop, before output leaves.
    fn pump(&self);

    /// `token` is the one given at submission, less its top byte.
    fn op_done(&self, token: u64, reply: OpReply<'_>);

    /// The client was fenced, or will never have a session.
    fn lost(&self, why: &RadosError);

    fn watch_event(&self, cookie: u64, event: WatchEvent<'_>);
}

/// Names a registered [`OpSink`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkId(u8);

/// Tokens of sinks have the sink's number plus one in their top byte, those of futures zero.
const SINK_SHIFT: u32 = 56;

/// Tokens of futures: a key in the lower half, a number of 24 bits above.
const BEGUN_MASK: u32 = 0xff_ffff;

fn pending_of(pending: &mut Slab<Pending>, token: u64) -> Option<&mut Pending> {
    let key = token & u64::from(u32::MAX);
    pending.get_mut(key as usize).filter(|p| p.token == token)
}

/// What an operation returned: its object's version, and of each part a result and data.
#[derive(Debug, Clone, Default)]
pub struct OpOutput {
    pub version: u64,
    pub parts: Vec<(i32, Vec<u8>)>,
}

enum Outcome {
    Op(Result<OpOutput, RadosError>),
    Command(Result<CommandReply, MonError>),
    PoolOp(Result<crate::mon::PoolOpReply, MonError>),
    Map(Result<(), MonError>),
    /// The client ended first.
    Ended(RadosError),
}

#[derive(Default)]
struct Pending {
    /// The whole token, since keys are used again.
    token: u64,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    op: Option<OpId>,
}

enum Health {
    Connecting,
    Ready,
    Lost(RadosError),
}

struct Inner {
    client: RefCell<Client>,
    pending: RefCell<Slab<Pending>>,
    /// Futures begun so far.
    begun: Cell<u32>,
    sinks: RefCell<Vec<Option<Rc<dyn OpSink>>>>,
    /// Requests for which there was no room.
    backlog: RefCell<VecDeque<Request>>,
    health: RefCell<Health>,
    waiting: RefCell<Vec<Waker>>,
    now: Box<dyn Fn() -> Now>,
    /// Tells the driver that there is something to carry out.
    kick: Box<dyn Fn()>,
}

/// The handle of one RADOS identity.
#[derive(Clone)]
pub struct Rados(Rc<Inner>);

impl Rados {
    /// Wraps a client for a driver that reads the clock by `now` and is told by `kick` when to
    /// call [`Rados::flush`].
    pub(crate) fn new(
        client: Client,
        now: impl Fn() -> Now + 'static,
        kick: impl Fn() + 'static,
    ) -> Rados {
        Rados(Rc::new(Inner {
            client: RefCell::new(client),
            pending: RefCell::default(),
            begun: Cell::default(),
            sinks: RefCell::default(),
            backlog: RefCell::default(),
            health: RefCell::new(Health::Connecting),
            waiting: RefCell::default(),
            now: Box::new(now),
            kick: Box::new(kick),
        }))
    }

    /// Lets the driver at the client.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Client, Now, &mut dyn Completions) -> R) -> R {
        let now = (self.0.now)();
        let mut sink = Dispatch(&self.0);
        f(&mut self.0.client.borrow_mut(), now, &mut sink)
    }

    /// Carries out what has gathered. The driver calls it before it looks at actions and output.
    pub(crate) fn flush(&self) {
        let mut at = 0;
        while let Some(sink) = self.sink(at) {
            if let Some(sink) = sink {
                sink.pump();
            }
            at += 1;
        }
        self.drain_backlog();
        self.with(|client, now, sink| client.flush(now, sink));
        loop {
            let event = self.0.client.borrow_mut().poll_event();
            match event {
                Some(event) => self.event(event),
                None => break,
            }
        }
    }

    fn event(&self, event: ClientEvent) {
        match event {
            ClientEvent::Ready => self.set_health(Health::Ready),
            ClientEvent::Map { .. } => {}
            ClientEvent::CommandDone { token, result } => {
                self.finish(token, Outcome::Command(result));
            }
            ClientEvent::PoolOpDone { token, result } => {
                self.finish(token, Outcome::PoolOp(result));
            }
            ClientEvent::LatestMap { token, result } => self.finish(token, Outcome::Map(result)),
            ClientEvent::Blocklisted => self.lose(RadosError::Blocklisted),
            ClientEvent::Failed(why) => {
                let why = RadosError::Connect(why);
                self.lose(why.clone());
                self.end_pending(&why);
            }
        }
    }

    fn lose(&self, why: RadosError) {
        let sinks = self.0.sinks.borrow().clone();
        for sink in sinks.into_iter().flatten() {
            sink.lost(&why);
        }
        let backlog = std::mem::take(&mut *self.0.backlog.borrow_mut());
        for request in backlog {
            self.fail(request.token, OpError::Cancelled);
        }
        self.set_health(Health::Lost(why));
    }

    /// Ends every future that still waits: there is nobody left who could answer.
    fn end_pending(&self, why: &RadosError) {
        let waiting: Vec<u64> = {
            let pending = self.0.pending.borrow();
            let open = pending.iter().filter(|(_, p)| p.outcome.is_none());
            open.map(|(_, p)| p.token).collect()
        };
        for token in waiting {
            self.finish(token, Outcome::Ended(why.clone()));
        }
    }

    fn set_health(&self, health: Health) {
        *self.0.health.borrow_mut() = health;
        for waker in std::mem::take(&mut *self.0.waiting.borrow_mut()) {
            waker.wake();
        }
    }

    fn finish(&self, token: u64, outcome: Outcome) {
        finish(&self.0, token, outcome);
    }

    // ---- requests of sinks ----

    /// The sink with this number, if there ever was one.
    fn sink(&self, at: usize) -> Option<Option<Rc<dyn OpSink>>> {
        self.0.sinks.borrow().get(at).cloned()
    }

    /// Registers who hears of operations submitted under the id that this returns.
    pub fn register(&self, sink: Rc<dyn OpSink>) -> SinkId {
        let mut sinks = self.0.sinks.borrow_mut();
        let free = sinks.iter().position(Option::is_none);
        let at = free.unwrap_or(sinks.len());
        assert!(at < 255, "more sinks than a token can name");
        if at == sinks.len() {
            sinks.push(Some(sink));
        } else {
            sinks[at] = Some(sink);
        }
        SinkId(at as u8)
    }

    pub fn unregister(&self, id: SinkId) {
        let gone = self.0.sinks.borrow_mut()[usize::from(id.0)].take();
        drop(gone);
    }

    /// Submits an operation of a sink, under `request.token`, whose top byte must be free. What
    /// finds no room waits in order.
    pub fn submit(&self, id: SinkId, mut request: Request) {
        debug_assert_eq!(request.token >> SINK_SHIFT, 0);
        request.token |= (u64::from(id.0) + 1) << SINK_SHIFT;
        self.enqueue(request);
    }

    fn enqueue(&self, request: Request) -> Option<OpId> {
        if !self.0.backlog.borrow().is_empty() {
            self.0.backlog.borrow_mut().push_back(request);
            return None;
        }
        self.try_submit(request)
    }

    fn try_submit(&self, request: Request) -> Option<OpId> {
        let token = request.token;
        let submitted = self.with(|client, now, _| client.submit(request, now));
        let error = match submitted {
            Ok(id) => return Some(id),
            Err(SubmitError::Busy(request)) => {
                self.0.backlog.borrow_mut().push_front(*request);
                return None;
            }
            Err(SubmitError::Blocklisted) => OpError::Blocklisted,
            Err(SubmitError::PoolEio) => OpError::PoolEio,
            Err(SubmitError::Empty | SubmitError::BadCookie(_) | SubmitError::NoWatch(_)) => {
                OpError::Errno(22)
            }
        };
        self.fail(token, error);
        None
    }

    fn fail(&self, token: u64, error: OpError) {
        Dispatch(&self.0).op_done(token, OpReply::failed(error));
    }

    fn drain_backlog(&self) {
        loop {
            let Some(request) = self.0.backlog.borrow_mut().pop_front() else {
                return;
            };
            let room = self.0.client.borrow().has_room(request.ops.budget());
            if !room {
                self.0.backlog.borrow_mut().push_front(request);
                return;
            }
            let token = request.token;
            let id = self.try_submit(request);
            if let Some(id) = id
                && token >> SINK_SHIFT == 0
                && let Some(p) = pending_of(&mut self.0.pending.borrow_mut(), token)
            {
                p.op = Some(id);
            }
        }
    }

    // ---- requests as futures ----

    fn begin(&self) -> (u64, Reply) {
        // What was given up may still have an outcome, which must not reach whoever has its key
        // now: a number that is not soon used again makes the difference.
        let number = self.0.begun.get().wrapping_add(1) & BEGUN_MASK;
        self.0.begun.set(number);
        let mut pending = self.0.pending.borrow_mut();
        let entry = pending.vacant_entry();
        let key = entry.key();
        let token = u64::from(number) << 32 | key as u64;
        entry.insert(Pending {
            token,
            ..Pending::default()
        });
        (
            token,
            Reply {
                inner: Rc::clone(&self.0),
                key,
            },
        )
    }

    /// Runs operations on one object.
    pub fn operate(
        &self,
        target: Target,
        ops: ObjectOp,
        access: Access,
    ) -> impl Future<Output = Result<OpOutput, RadosError>> + use<> {
        let (token, reply) = self.begin();
        let lost = match &*self.0.health.borrow() {
            Health::Lost(why) => Some(why.clone()),
            _ => None,
        };
        if let Some(why) = lost {
            self.finish(token, Outcome::Op(Err(why)));
        } else {
            let request = Request {
                access,
                ..Request::read(target, ops, token)
            };
            let id = self.enqueue(request);
            if let Some(p) = self.0.pending.borrow_mut().get_mut(reply.key) {
                p.op = id;
            }
            (self.0.kick)();
        }
        async move {
            match reply.await {
                Outcome::Op(result) => result,
                Outcome::Ended(why) => Err(why),
                _ => unreachable!("an operation has the outcome of one"),
            }
        }
    }

    /// Has the monitors do something.
    pub async fn command(
        &self,
        command: Command,
        input: Payload,
    ) -> Result<CommandReply, RadosError> {
        let (token, reply) = self.begin();
        self.with(|client, now, _| client.mon_command(token, command, input, now))?;
        (self.0.kick)();
        match reply.await {
            Outcome::Command(result) => Ok(result?),
            Outcome::Ended(why) => Err(why),
            _ => unreachable!("a command has the outcome of one"),
        }
    }

    /// Has the monitors change a pool, and waits until the change is in our map.
    pub async fn pool_op(
        &self,
        pool: u32,
        op: u32,
        snapid: u64,
    ) -> Result<crate::mon::PoolOpReply, RadosError> {
        let (token, reply) = self.begin();
        self.with(|client, now, _| client.pool_op(token, pool, op, snapid, now))?;
        (self.0.kick)();
        let done = match reply.await {
            Outcome::PoolOp(result) => result?,
            Outcome::Ended(why) => return Err(why),
            _ => unreachable!("a pool operation has the outcome of one"),
        };
        self.latest_map().await?;
        Ok(done)
    }

    /// Waits until the OSD map that is the cluster's newest now is in use.
    pub async fn latest_map(&self) -> Result<(), RadosError> {
        let (token, reply) = self.begin();
        self.with(|client, now, _| client.wait_for_latest_map(token, now))?;
        (self.0.kick)();
        match reply.await {
            Outcome::Map(result) => Ok(result?),
            Outcome::Ended(why) => Err(why),
            _ => unreachable!("a wait for a map has the outcome of one"),
        }
    }

    /// Waits for a session with the cluster and its maps.
    pub async fn ready(&self) -> Result<(), RadosError> {
        poll_fn(|cx| match &*self.0.health.borrow() {
            Health::Ready => Poll::Ready(Ok(())),
            Health::Lost(why) => Poll::Ready(Err(why.clone())),
            Health::Connecting => {
                self.0.waiting.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Keeps a watch on an object. Its events go to the sink.
    pub async fn watch(&self, target: Target, cookie: u64) -> Result<(), RadosError> {
        let (token, reply) = self.begin();
        let request = WatchRequest {
            target,
            cookie,
            timeout: 0,
            token,
        };
        let submitted = self.with(|client, now, _| client.watch(request, now));
        match submitted {
            Ok(()) => {}
            Err(SubmitError::Blocklisted) => return Err(RadosError::Blocklisted),
            Err(_) => return Err(RadosError::Errno(22)),
        }
        (self.0.kick)();
        reply.op().await
    }

    pub async fn unwatch(&self, cookie: u64) -> Result<(), RadosError> {
        let (token, reply) = self.begin();
        let submitted = self.with(|client, now, sink| client.unwatch(cookie, token, now, sink));
        match submitted {
            Ok(_) => {}
            Err(SubmitError::Blocklisted) => return Err(RadosError::Blocklisted),
            Err(_) => return Err(RadosError::Errno(22)),
        }
        (self.0.kick)();
        reply.op().await
    }

    /// Answers a notification that a watch delivered.
    pub async fn notify_ack(
        &self,
        target: Target,
        notify_id: u64,
        cookie: u64,
        payload: &[u8],
    ) -> Result<(), RadosError> {
        let (token, reply) = self.begin();
        let request = Request::notify_ack(target, notify_id, cookie, payload, token);
        let id = self.enqueue(request);
        if let Some(p) = self.0.pending.borrow_mut().get_mut(reply.key) {
            p.op = id;
        }
        (self.0.kick)();
        reply.op().await
    }

    // ---- what is known of the cluster ----

    pub fn map(&self) -> Option<Arc<OsdMap>> {
        self.0.client.borrow().map().cloned()
    }

    pub fn client_id(&self) -> u64 {
        self.0.client.borrow().global_id()
    }

    /// `ADDRESS:PORT/NONCE` of this client, as the monitors' blocklist commands take it. Empty
    /// before the first session.
    pub fn address(&self) -> String {
        let client = self.0.client.borrow();
        let mut known = client.addrs().0.iter();
        let addr = known.find_map(|a| Some(format!("{}/{}", a.addr?, a.nonce)));
        addr.unwrap_or_default()
    }

    pub fn random(&self) -> u64 {
        self.0.client.borrow_mut().random()
    }

    pub fn stats(&self) -> crate::objecter::Stats {
        self.0.client.borrow().stats()
    }

    /// What the client waits for, in a few words; `None` while all is well.
    pub fn trouble(&self) -> Option<String> {
        match &*self.0.health.borrow() {
            Health::Lost(why) => Some(why.to_string()),
            Health::Connecting | Health::Ready => self.0.client.borrow().trouble(),
        }
    }

    pub fn pool_name(&self, id: i64) -> Option<String> {
        self.map()?.pool_name(id).map(str::to_owned)
    }

    /// The id of a pool; a name that the map lacks is looked for in the newest map, too.
    pub async fn pool_id(&self, name: &str) -> Result<i64, RadosError> {
        let find = || self.map().and_then(|m| m.pool_by_name(name));
        if let Some(id) = find() {
            return Ok(id);
        }
        self.latest_map().await?;
        find().ok_or_else(|| RadosError::NoPool(name.to_owned()))
    }

    /// A pool and a namespace in it to work in.
    pub async fn io_ctx(&self, pool: &str, namespace: &str) -> Result<IoCtx, RadosError> {
        let pool = self.pool_id(pool).await?;
        Ok(IoCtx {
            rados: self.clone(),
            pool,
            namespace: namespace.into(),
        })
    }

    /// Ends all sessions.
    pub async fn shutdown(&self) {
        self.with(|client, _, sink| client.close(sink));
        self.end_pending(&RadosError::Closed);
        (self.0.kick)();
    }
}

/// A future of one outcome. Dropped before, it cancels its operation.
struct Reply {
    inner: Rc<Inner>,
    key: usize,
}

impl Reply {
    async fn op(self) -> Result<(), RadosError> {
        match self.await {
            Outcome::Op(result) => result.map(drop),
            Outcome::Ended(why) => Err(why),
            _ => unreachable!("an operation has the outcome of one"),
        }
    }
}

impl Future for Reply {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut pending = self.inner.pending.borrow_mut();
        let entry = &mut pending[self.key];
        match entry.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                entry.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let entry = self.inner.pending.borrow_mut().remove(self.key);
        if entry.outcome.is_some() {
            return;
        }
        let mut backlog = self.inner.backlog.borrow_mut();
        backlog.retain(|request| request.token != entry.token);
        drop(backlog);
        if let Some(op) = entry.op {
            self.inner
                .client
                .borrow_mut()
                .cancel(op, &mut Dispatch(&self.inner));
        }
    }
}

fn finish(inner: &Inner, token: u64, outcome: Outcome) {
    let waker = match pending_of(&mut inner.pending.borrow_mut(), token) {
        Some(entry) => {
            entry.outcome = Some(outcome);
            entry.waker.take()
        }
        None => None,
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Brings outcomes to the future or the sink they are for.
struct Dispatch<'a>(&'a Rc<Inner>);

impl Dispatch<'_> {
    fn sink(&self, token: u64) -> Option<Rc<dyn OpSink>> {
        let at = (token >> SINK_SHIFT).checked_sub(1)?;
        self.0.sinks.borrow().get(at as usize)?.clone()
    }
}

impl Completions for Dispatch<'_> {
    fn op_done(&mut self, token: u64, reply: OpReply<'_>) {
        if token >> SINK_SHIFT != 0 {
            if let Some(sink) = self.sink(token) {
                sink.op_done(token & ((1 << SINK_SHIFT) - 1), reply);
            }
            return;
        }
        let output = || OpOutput {
            version: reply.version,
            parts: reply
                .results
                .iter()
                .map(|p| (p.rval, p.data.to_vec()))
                .collect(),
        };
        let result = reply.result.map(|()| output()).map_err(RadosError::from);
        finish(self.0, token, Outcome::Op(result));
    }

    fn watch_event(&mut self, cookie: u64, event: WatchEvent<'_>) {
        let sinks = self.0.sinks.borrow().clone();
        for sink in sinks.into_iter().flatten() {
            sink.watch_event(cookie, event);
        }
    }

    fn notify_done(&mut self, token: u64, result: Result<(), OpError>, replies: &[u8]) {
        let output = OpOutput {
            version: 0,
            parts: vec![(0, replies.to_vec())],
        };
        let result = result.map(|()| output).map_err(RadosError::from);
        finish(self.0, token, Outcome::Op(result));
    }
}

/// A compound of writing operations.
#[derive(Default)]
pub struct Write(ObjectOp);

impl Write {
    pub fn new() -> Write {
        Write::default()
    }

    fn add(&mut self, f: impl FnOnce(ObjectOp) -> ObjectOp) {
        self.0 = f(std::mem::take(&mut self.0));
    }

    pub fn create(&mut self, exclusive: bool) {
        self.add(|op| op.create(exclusive));
    }

    pub fn call(&mut self, call: ClassCall) {
        self.add(|op| op.call(call.class, call.method, Payload::from(call.input)));
    }
}

/// What of a pool matters to images.
#[derive(Debug, Clone)]
pub struct PoolInfo {
    pub name: String,
    pub erasure: bool,
    pub overwrites: bool,
    pub pool_snapshots: bool,
}

/// A pool and a namespace of it.
#[derive(Clone)]
pub struct IoCtx {
    rados: Rados,
    pool: i64,
    namespace: Rc<str>,
}

impl IoCtx {
    pub fn rados(&self) -> &Rados {
        &self.rados
    }

    pub fn pool(&self) -> i64 {
        self.pool
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The same namespace of another pool.
    pub fn in_pool(&self, pool: i64) -> IoCtx {
        IoCtx {
            pool,
            ..self.clone()
        }
    }

    /// `POOL` or `POOL/NAMESPACE`.
    pub fn place(&self) -> String {
        let pool = self
            .rados
            .pool_name(self.pool)
            .unwrap_or_else(|| self.pool.to_string());
        if self.namespace.is_empty() {
            pool
        } else {
            format!("{pool}/{}", self.namespace)
        }
    }

    pub fn client_id(&self) -> u64 {
        self.rados.client_id()
    }

    pub fn pool_info(&self, id: i64) -> Option<PoolInfo> {
        let map = self.rados.map()?;
        let pool = map.pool(id)?;
        Some(PoolInfo {
            name: map.pool_name(id).unwrap_or_default().to_owned(),
            erasure: pool.is_erasure(),
            overwrites: pool.allows_overwrites(),
            pool_snapshots: pool.is_pool_snaps(),
        })
    }

    pub fn target(&self, oid: &str) -> Target {
        Target::object(self.pool, oid).in_namespace(self.namespace.as_bytes())
    }

    pub fn read(
        &self,
        oid: &str,
        ops: ObjectOp,
    ) -> impl Future<Output = Result<OpOutput, RadosError>> + use<> {
        self.rados
            .operate(self.target(oid), ops, Access::Read(NOSNAP))
    }

    fn start_write(
        &self,
        oid: &str,
        ops: ObjectOp,
    ) -> impl Future<Output = Result<(), RadosError>> + use<> {
        // Metadata objects have no snapshots.
        let access = Access::Write(Rc::new(SnapContext::default()));
        let done = self.rados.operate(self.target(oid), ops, access);
        async move { done.await.map(drop) }
    }

    pub async fn write(&self, oid: &str, op: Write) -> Result<(), RadosError> {
        self.start_write(oid, op.0).await
    }

    pub async fn remove(&self, oid: &str) -> Result<(), RadosError> {
        self.start_remove(oid).await
    }

    /// Removes an object; the operation is under way whether or not the future is polled.
    pub fn start_remove(&self, oid: &str) -> impl Future<Output = Result<(), RadosError>> + use<> {
        self.start_write(oid, ObjectOp::new().delete())
    }

    pub async fn exists(&self, oid: &str) -> Result<bool, RadosError> {
        match self.read(oid, ObjectOp::new().stat()).await {
            Ok(_) => Ok(true),
            Err(RadosError::Errno(2)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Calls one method of an object class.
    pub async fn call(&self, oid: &str, call: ClassCall) -> Result<Vec<u8>, RadosError> {
        let mut out = self.calls(oid, vec![call]).await?;
        Ok(out.swap_remove(0))
    }

    /// Calls several reading methods in one operation: all of them see the same state.
    pub async fn calls(
        &self,
        oid: &str,
        calls: Vec<ClassCall>,
    ) -> Result<Vec<Vec<u8>>, RadosError> {
        let count = calls.len();
        let ops = calls.into_iter().fold(ObjectOp::new(), |ops, c| {
            ops.call(c.class, c.method, Payload::from(c.input))
        });
        let output = self.read(oid, ops).await?;
        if output.parts.len() != count {
            return Err(crate::codec::DecodeError::malformed("number of results").into());
        }
        Ok(output.parts.into_iter().map(|(_, data)| data).collect())
    }

    /// The undecoded reply to `LIST_WATCHERS`.
    pub async fn list_watchers(&self, oid: &str) -> Result<Vec<u8>, RadosError> {
        let mut output = self.read(oid, ObjectOp::new().list_watchers()).await?;
        Ok(output.parts.pop().map(|(_, data)| data).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{self, AuthName, Method};
    use crate::client::ClientConfig;
    use crate::mon::MonConfig;

    /// A client that has reached nobody, with room for one request.
    fn rados() -> Rados {
        let auth = auth::ClientConfig {
            methods: vec![Method::None],
            ..auth::ClientConfig::new(AuthName::client("vm"), None)
        };
        let mut config = ClientConfig::new(auth, MonConfig::new(vec![], "node7".into()));
        config.objecter.max_ops = 1;
        let client = Client::new(config, Arc::default(), &[7; 32]).unwrap();
        Rados::new(client, || Now { mono: 1, wall: 1 }, || ())
    }

    fn poll(reply: &mut Reply) -> Poll<Outcome> {
        Pin::new(reply).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_client_that_ends_leaves_nobody_waiting() {
        let rados = rados();
        let (_, mut map) = rados.begin();
        let (_, mut watch) = rados.begin();
        assert!(poll(&mut map).is_pending());
        rados.event(ClientEvent::Failed("no monitor".into()));
        for reply in [&mut map, &mut watch] {
            let Poll::Ready(Outcome::Ended(RadosError::Connect(why))) = poll(reply) else {
                panic!("it still waits");
            };
            assert_eq!(why, "no monitor");
        }
    }

    #[test]
    fn an_outcome_that_comes_late_reaches_nobody_else() {
        let rados = rados();
        let (old, given_up) = rados.begin();
        let key = given_up.key;
        drop(given_up);
        let (new, mut reply) = rados.begin();
        assert_eq!(reply.key, key);
        rados.finish(old, Outcome::Map(Ok(())));
        assert!(poll(&mut reply).is_pending());
        rados.finish(new, Outcome::Map(Ok(())));
        assert!(matches!(
            poll(&mut reply),
            Poll::Ready(Outcome::Map(Ok(())))
        ));
    }

    #[test]
    fn a_future_given_up_leaves_no_request_behind() {
        let rados = rados();
        let read = || {
            let target = Target::object(1, "o");
            rados.operate(target, ObjectOp::new().stat(), Access::Read(NOSNAP))
        };
        let running = read();
        let waiting = read();
        assert_eq!(rados.0.backlog.borrow().len(), 1);
        drop(waiting);
        assert!(rados.0.backlog.borrow().is_empty());
        drop(running);
        assert!(rados.0.client.borrow().has_room(0));
        assert!(rados.0.pending.borrow().is_empty());
    }
}
