//! What clients do, and how outcomes reach them.

use std::collections::VecDeque;

use cluster::client::Client;
use cluster::codec::Now;
use cluster::objecter::{Completions, OpError, OpReply, WatchEvent};

use super::rng::Rng;
use super::world::History;

/// What a client was told.
#[derive(Debug)]
pub(crate) enum Out {
    Op {
        token: u64,
        result: Result<(), OpError>,
        outs: Vec<Vec<u8>>,
    },
    Notify {
        cookie: u64,
        id: u64,
        payload: Vec<u8>,
    },
    Disconnected {
        cookie: u64,
    },
    Unconfirmed {
        cookie: u64,
    },
    Notified {
        result: Result<(), OpError>,
        token: u64,
        replies: Vec<u8>,
    },
}

#[derive(Default)]
pub(crate) struct Sink(VecDeque<Out>);

impl Sink {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<Out> {
        self.0.pop_front()
    }
}

impl Completions for Sink {
    fn op_done(&mut self, token: u64, reply: OpReply<'_>) {
        self.0.push_back(Out::Op {
            token,
            result: reply.result,
            outs: reply.results.iter().map(|r| r.data.to_vec()).collect(),
        });
    }

    fn watch_event(&mut self, cookie: u64, event: WatchEvent<'_>) {
        self.0.push_back(match event {
            WatchEvent::Notify {
                notify_id, payload, ..
            } => Out::Notify {
                cookie,
                id: notify_id,
                payload: payload.to_vec(),
            },
            WatchEvent::Disconnected(_) => Out::Disconnected { cookie },
            WatchEvent::Unconfirmed => Out::Unconfirmed { cookie },
        });
    }

    fn notify_done(&mut self, token: u64, result: Result<(), OpError>, replies: &[u8]) {
        let replies = replies.to_vec();
        self.0.push_back(Out::Notified {
            result,
            token,
            replies,
        });
    }
}

/// What a client's work needs to go on.
pub(crate) struct Cx<'a> {
    pub(crate) client: &'a mut Client,
    pub(crate) sink: &'a mut Sink,
    pub(crate) now: Now,
    pub(crate) rng: &'a mut Rng,
    /// Things still go wrong.
    pub(crate) faulty: bool,
}

impl Cx<'_> {
    /// The time by the world's clock.
    pub(crate) fn clock(&self) -> u64 {
        self.now.mono - 1
    }
}

pub(crate) type News = Vec<(&'static str, u64, u64)>;

pub(crate) trait Work {
    /// The client has a monitor session and a map.
    fn ready(&mut self);
    /// Takes what the sink holds and submits more. `news` says what happened.
    fn step(&mut self, cx: &mut Cx<'_>, news: &mut News);
    fn next_wake(&self, now: u64) -> Option<u64>;
    fn finished(&self) -> bool;
    /// Where it is stuck.
    fn describe(&self) -> String;
    /// Panics when what happened must not happen; counts requests.
    fn check(&self, history: &History, gid: u64) -> u64;
}
