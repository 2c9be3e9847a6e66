//! One client watches an object, another notifies.
//!
//! A watch that an OSD counts among those to be notified has to hear of the notify; one that an OSD
//! does not count has to be told that it is lost.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use cluster::objecter::results::NotifyReplies;
use cluster::objecter::{ObjectOp, OpError, Request, Target, WatchRequest};

use super::maps::POOL;
use super::rng::Rng;
use super::work::{Cx, News, Out, Work};
use super::world::{History, MS, SECOND};

const ETIMEDOUT: i32 = 110;

/// A watch, from its registration to its end.
#[derive(Debug, Default, Clone, Copy)]
struct Span {
    since: Option<u64>,
    disconnected: Option<u64>,
    /// It was said that notifies may have been missed.
    unconfirmed: bool,
    /// The client has taken it down.
    given_up: Option<u64>,
}

#[derive(Debug)]
struct Sent {
    submitted: u64,
    done: Option<u64>,
    result: Option<Result<(), OpError>>,
    /// Cookies of those that answered, and of those that did not.
    replies: BTreeSet<u64>,
    missing: BTreeSet<u64>,
}

/// What both know.
#[derive(Default)]
pub(crate) struct Log {
    object: String,
    watches: BTreeMap<u64, Span>,
    /// Cookie and payload of what the watcher was told.
    heard: BTreeSet<(u64, Vec<u8>)>,
    sent: Vec<Sent>,
    over: bool,
}

pub(crate) type Shared = Rc<RefCell<Log>>;

pub(crate) fn log(object: &str) -> Shared {
    Rc::new(RefCell::new(Log {
        object: object.to_owned(),
        ..Log::default()
    }))
}

const CREATE: u64 = 1;
const UNWATCH: u64 = 2;
/// Tokens of answers come after this; those of registrations are their cookies.
const ACKS: u64 = 1 << 32;
const FIRST_COOKIE: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Creating,
    Registering,
    Watching,
    Unwatching,
    Over,
}

pub(crate) struct Watcher {
    log: Shared,
    stage: Stage,
    cookie: u64,
    timeout: u32,
    acks: BTreeSet<u64>,
    last_ack: u64,
    ready: bool,
}

impl Watcher {
    pub(crate) fn new(log: &Shared, rng: &mut Rng) -> Watcher {
        Watcher {
            log: Rc::clone(log),
            stage: Stage::Waiting,
            cookie: FIRST_COOKIE,
            timeout: rng.pick(&[0, 10, 15]),
            acks: BTreeSet::new(),
            last_ack: ACKS,
            ready: false,
        }
    }

    fn target(&self) -> Target {
        Target::object(POOL, &self.log.borrow().object)
    }

    fn register(&mut self, cx: &mut Cx<'_>) {
        self.cookie += 1;
        let request = WatchRequest {
            target: self.target(),
            cookie: self.cookie,
            timeout: self.timeout,
            token: self.cookie,
        };
        cx.client.watch(request, cx.now).expect("a good watch");
        self.stage = Stage::Registering;
    }

    fn unwatch(&mut self, cx: &mut Cx<'_>) {
        let span = Span {
            given_up: Some(cx.clock()),
            ..self
                .log
                .borrow()
                .watches
                .get(&self.cookie)
                .copied()
                .unwrap_or_default()
        };
        self.log.borrow_mut().watches.insert(self.cookie, span);
        cx.client
            .unwatch(self.cookie, UNWATCH, cx.now, cx.sink)
            .expect("it watches");
        self.stage = Stage::Unwatching;
    }
}

impl Work for Watcher {
    fn ready(&mut self) {
        self.ready = true;
    }

    fn step(&mut self, cx: &mut Cx<'_>, news: &mut News) {
        while let Some(out) = cx.sink.take() {
            match out {
                Out::Op { token, result, .. } => {
                    news.push(("op done", token, 0));
                    if token > ACKS {
                        assert!(self.acks.remove(&token), "an answer ended twice");
                        continue;
                    }
                    assert_eq!(result, Ok(()), "token {token}");
                    match token {
                        CREATE => self.register(cx),
                        UNWATCH if self.log.borrow().over => self.stage = Stage::Over,
                        UNWATCH => self.register(cx),
                        cookie => {
                            assert_eq!((cookie, self.stage), (self.cookie, Stage::Registering));
                            self.stage = Stage::Watching;
                            let since = Some(cx.clock());
                            let mut log = self.log.borrow_mut();
                            log.watches.entry(cookie).or_default().since = since;
                        }
                    }
                }
                Out::Notify {
                    cookie,
                    id,
                    payload,
                } => {
                    news.push(("heard", cookie, id));
                    assert_eq!(cookie, self.cookie, "a watch that was taken down hears");
                    let reply = payload.clone();
                    self.log.borrow_mut().heard.insert((cookie, payload));
                    self.last_ack += 1;
                    let token = self.last_ack;
                    let ack = Request::notify_ack(self.target(), id, cookie, &reply, token);
                    if cx.client.submit(ack, cx.now).is_ok() {
                        self.acks.insert(token);
                    }
                }
                Out::Disconnected { cookie } => {
                    news.push(("disconnected", cookie, 0));
                    assert_eq!((cookie, self.stage), (self.cookie, Stage::Watching));
                    {
                        let mut log = self.log.borrow_mut();
                        let span = log.watches.get_mut(&cookie).expect("it was registered");
                        assert!(span.disconnected.is_none(), "told twice");
                        span.disconnected = Some(cx.clock());
                    }
                    self.unwatch(cx);
                }
                Out::Unconfirmed { cookie } => {
                    news.push(("unconfirmed", cookie, 0));
                    let mut log = self.log.borrow_mut();
                    log.watches.entry(cookie).or_default().unconfirmed = true;
                }
                Out::Notified { .. } => panic!("the watcher does not notify"),
            }
        }
        if self.ready && self.stage == Stage::Waiting {
            let create = ObjectOp::new().create(false);
            let request = Request::write(self.target(), create, Rc::default(), CREATE);
            cx.client.submit(request, cx.now).expect("there is room");
            self.stage = Stage::Creating;
        }
        if self.log.borrow().over && self.stage == Stage::Watching {
            news.push(("unwatch", self.cookie, 0));
            self.unwatch(cx);
        }
    }

    fn next_wake(&self, now: u64) -> Option<u64> {
        (!self.finished()).then_some(now + SECOND)
    }

    fn finished(&self) -> bool {
        self.stage == Stage::Over && self.acks.is_empty()
    }

    fn describe(&self) -> String {
        format!(
            "watch {} {:?}, answers {:?}",
            self.cookie, self.stage, self.acks
        )
    }

    fn check(&self, _: &History, _: u64) -> u64 {
        let log = self.log.borrow();
        for (i, n) in log.sent.iter().enumerate() {
            let payload = payload(i);
            let (Some(done), Some(result)) = (n.done, n.result) else {
                panic!("notify {i} has not ended");
            };
            for &cookie in &n.replies {
                assert!(
                    log.heard.contains(&(cookie, payload.clone())),
                    "answered unheard"
                );
            }
            assert!(
                matches!(result, Ok(()) | Err(OpError::Errno(ETIMEDOUT))),
                "{result:?}"
            );
            for (&cookie, span) in &log.watches {
                let lives = span.since.is_some_and(|t| t < n.submitted)
                    && span.given_up.is_none_or(|t| t > done);
                let counted = n.replies.contains(&cookie) || n.missing.contains(&cookie);
                assert!(
                    !lives || counted || span.disconnected.is_some() || span.unconfirmed,
                    "watch {cookie} missed notify {i} and was not told"
                );
            }
        }
        log.sent.len() as u64
    }
}

fn payload(i: usize) -> Vec<u8> {
    format!("notify {i}").into_bytes()
}

pub(crate) struct Notifier {
    log: Shared,
    total: usize,
    pause: u64,
    timeout: u32,
    next_at: u64,
    ready: bool,
}

impl Notifier {
    pub(crate) fn new(log: &Shared, fault_time: u64, rng: &mut Rng) -> Notifier {
        let total = rng.within(3..20);
        Notifier {
            log: Rc::clone(log),
            total: total as usize,
            pause: rng.pick(&[100 * MS, 2 * fault_time / total]),
            timeout: rng.pick(&[5, 30]),
            next_at: 0,
            ready: false,
        }
    }
}

impl Work for Notifier {
    fn ready(&mut self) {
        self.ready = true;
    }

    fn step(&mut self, cx: &mut Cx<'_>, news: &mut News) {
        let now = cx.clock();
        let mut log = self.log.borrow_mut();
        while let Some(out) = cx.sink.take() {
            let Out::Notified {
                token,
                result,
                replies,
            } = out
            else {
                panic!("nothing but notifies: {out:?}");
            };
            news.push((
                "notified",
                token,
                result.err().map_or(0, |e| e.errno() as u64),
            ));
            let sent = &mut log.sent[token as usize];
            assert!(sent.done.is_none(), "a notify has ended twice");
            sent.done = Some(now);
            sent.result = Some(result);
            let replies = NotifyReplies::decode(&replies).expect("replies");
            for r in replies.replies {
                assert_eq!(r.reply, payload(token as usize), "another's reply");
                sent.replies.insert(r.cookie);
            }
            sent.missing.extend(replies.missing.iter().map(|m| m.1));
            self.next_at = now + cx.rng.below(self.pause);
        }
        let first = log.watches.values().any(|w| w.since.is_some());
        let idle = log.sent.last().is_none_or(|n| n.done.is_some());
        if !(self.ready && first && idle && self.next_at <= now) {
            return;
        }
        if log.sent.len() < self.total {
            let token = log.sent.len();
            let target = Target::object(POOL, &log.object);
            let sent = cx
                .client
                .notify(target, payload(token), self.timeout, token as u64, cx.now);
            sent.expect("there is room");
            news.push(("notify", token as u64, 0));
            log.sent.push(Sent {
                submitted: now,
                done: None,
                result: None,
                replies: BTreeSet::new(),
                missing: BTreeSet::new(),
            });
        } else if !cx.faulty {
            log.over = true;
        }
    }

    fn next_wake(&self, now: u64) -> Option<u64> {
        (!self.finished()).then_some(self.next_at.max(now + SECOND))
    }

    fn finished(&self) -> bool {
        self.log.borrow().over
    }

    fn describe(&self) -> String {
        format!("notifies {:?}", self.log.borrow().sent.last())
    }

    fn check(&self, _: &History, _: u64) -> u64 {
        0
    }
}
