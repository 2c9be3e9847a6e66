//! The state machine against monitors that refuse, hang, die, move and lie, under a virtual clock.

use super::message::{
    MAuthReply, MConfig, MMonCommand, MMonCommandAck, MMonGetVersion, MMonGetVersionReply, MMonMap,
    MMonSubscribe, MPoolOp, MPoolOpReply, Message, Paxos, pool_op,
};
use super::*;
use crate::codec::{EntityAddr, EntityAddrVec, Now, Put};
use crate::payload::Payload;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// Between cause and effect.
const DELAY: u64 = 1_000_000;
const FSID: [u8; 16] = [7; 16];

fn addr(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 3300))
}

fn addrs(n: u8) -> EntityAddrVec {
    EntityAddrVec(vec![EntityAddr::msgr2(addr(n), 0)])
}

fn config(mons: &[u8]) -> MonConfig {
    MonConfig::new(mons.iter().map(|n| addrs(*n)).collect(), "node7".into())
}

fn monmap(epoch: u32, mons: &[u8]) -> MonMap {
    MonMap {
        fsid: FSID,
        epoch,
        mons: mons
            .iter()
            .map(|n| {
                let info = MonInfo {
                    addrs: addrs(*n),
                    ..MonInfo::default()
                };
                (format!("m{n}"), info)
            })
            .collect(),
        ..MonMap::default()
    }
}

/// What a monitor does with those who dial it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    Refuses,
    Denies,
    /// Accepts and says nothing.
    Hangs,
    /// Opens a session and drops it at the first command.
    DiesAtCommand,
    /// Opens sessions, answers nothing, not even keepalives.
    Deaf,
}

#[derive(Debug)]
enum Due {
    Opened,
    Failed(DialError),
    Lost,
    Message {
        kind: u16,
        version: u16,
        tid: u64,
        front: Vec<u8>,
        data: Vec<u8>,
    },
    KeepaliveAck,
}

/// Monitors and the network, in front of one client.
struct Sim {
    client: MonClient,
    now: u64,
    moods: BTreeMap<SocketAddr, Mood>,
    map: MonMap,
    options: BTreeMap<String, String>,
    /// Connections by attempt.
    live: BTreeMap<u64, SocketAddr>,
    due: BTreeMap<(u64, u64), (u64, Due)>,
    order: u64,
    dials: Vec<(u64, SocketAddr)>,
    events: Vec<MonEvent>,
    commands: Vec<(SocketAddr, String)>,
    subscriptions: Vec<BTreeMap<String, (u64, bool)>>,
}

impl Sim {
    fn new(config: MonConfig, seed: u64, moods: &[(u8, Mood)], map: MonMap) -> Sim {
        let mut sim = Sim {
            client: MonClient::new(config, seed),
            now: 100 * SECOND,
            moods: moods.iter().map(|(n, m)| (addr(*n), *m)).collect(),
            map,
            options: BTreeMap::new(),
            live: BTreeMap::new(),
            due: BTreeMap::new(),
            order: 0,
            dials: Vec::new(),
            events: Vec::new(),
            commands: Vec::new(),
            subscriptions: Vec::new(),
        };
        sim.client.start(sim.at());
        sim.obey();
        sim
    }

    fn at(&self) -> Now {
        Now {
            mono: self.now,
            wall: 0,
        }
    }

    fn later(&mut self, attempt: u64, what: Due) {
        self.order += 1;
        let when = (self.now + DELAY, self.order);
        self.due.insert(when, (attempt, what));
    }

    fn reply<M: Message>(&mut self, attempt: u64, tid: u64, message: &M, data: &[u8]) {
        let mut front = Vec::new();
        message.encode(&mut front);
        let what = Due::Message {
            kind: M::KIND,
            version: M::VERSION,
            tid,
            front,
            data: data.to_vec(),
        };
        self.later(attempt, what);
    }

    fn send_map(&mut self, attempt: u64) {
        let mut monmap = Vec::new();
        self.map.encode(&mut monmap);
        self.reply(attempt, 0, &MMonMap { monmap }, &[]);
    }

    /// Does what the client asks for, and checks that it may ask it.
    fn obey(&mut self) {
        while let Some(action) = self.client.poll() {
            match action {
                MonAction::Dial { attempt, addrs } => {
                    let to = addrs.msgr2().unwrap().addr.unwrap();
                    self.dials.push((self.now, to));
                    assert!(
                        self.live.insert(attempt, to).is_none(),
                        "attempt used twice"
                    );
                    match self.moods.get(&to).copied().unwrap_or(Mood::Refuses) {
                        Mood::Well | Mood::DiesAtCommand | Mood::Deaf => {
                            self.later(attempt, Due::Opened);
                        }
                        Mood::Refuses => {
                            let error = DialError::Unreachable("connection refused".into());
                            self.later(attempt, Due::Failed(error));
                        }
                        Mood::Denies => {
                            let error = DialError::Denied("permission denied".into());
                            self.later(attempt, Due::Failed(error));
                        }
                        Mood::Hangs => {}
                    }
                }
                MonAction::Hangup { attempt } => {
                    assert!(self.live.remove(&attempt).is_some(), "hung up twice");
                }
                MonAction::Keepalive { attempt } => {
                    assert_eq!(self.client.session(), Some(attempt));
                    if self.mood(attempt) != Mood::Deaf {
                        self.later(attempt, Due::KeepaliveAck);
                    }
                }
                MonAction::Send { attempt, message } => {
                    assert!(self.live.contains_key(&attempt), "sent into the void");
                    self.serve(attempt, &message);
                }
            }
        }
        while let Some(event) = self.client.poll_event() {
            self.events.push(event);
        }
    }

    /// Changes a monitor's mood. One that was deaf has lost what it did not hear: it is restarted.
    fn turn(&mut self, n: u8, mood: Mood) {
        if self.moods.insert(addr(n), mood) == Some(Mood::Deaf) {
            let live: Vec<_> = self.live.iter().map(|(id, a)| (*id, *a)).collect();
            for (attempt, at) in live {
                if at == addr(n) {
                    self.later(attempt, Due::Lost);
                }
            }
        }
    }

    fn mood(&self, attempt: u64) -> Mood {
        self.moods[&self.live[&attempt]]
    }

    fn serve(&mut self, attempt: u64, m: &Outgoing) {
        let mood = self.mood(attempt);
        if mood == Mood::Deaf {
            return;
        }
        match m.kind {
            kind::MON_GET_MAP => self.send_map(attempt),
            kind::MON_SUBSCRIBE => {
                let sub = MMonSubscribe::decode(m.version, &m.front).unwrap();
                assert_eq!(sub.hostname, "node7");
                if sub
                    .what
                    .get("monmap")
                    .is_some_and(|i| i.start <= self.map.epoch.into())
                {
                    self.send_map(attempt);
                }
                if sub.what.contains_key("config") {
                    let config = self.options.clone();
                    self.reply(attempt, 0, &MConfig { config }, &[]);
                }
                let items = sub.what.iter();
                let items = items.map(|(k, i)| (k.clone(), (i.start, i.onetime())));
                self.subscriptions.push(items.collect());
            }
            kind::MON_COMMAND => {
                let command = MMonCommand::decode(m.version, &m.front).unwrap();
                assert_eq!(command.fsid, FSID);
                let at = self.live[&attempt];
                self.commands.push((at, command.cmd[0].clone()));
                if mood == Mood::DiesAtCommand {
                    self.later(attempt, Due::Lost);
                    return;
                }
                let ack = MMonCommandAck {
                    code: if command.cmd[0].contains("bad") {
                        -22
                    } else {
                        0
                    },
                    status: "done".into(),
                    cmd: command.cmd,
                    ..MMonCommandAck::default()
                };
                self.reply(attempt, m.tid, &ack, &m.data);
            }
            kind::MON_GET_VERSION => {
                let ask = MMonGetVersion::decode(m.version, &m.front).unwrap();
                let reply = MMonGetVersionReply {
                    handle: ask.handle,
                    version: 42,
                    oldest: 1,
                };
                self.reply(attempt, 0, &reply, &[]);
            }
            kind::POOL_OP => {
                let op = MPoolOp::decode(m.version, &m.front).unwrap();
                let mut response = Vec::new();
                response.put_u64(99);
                let reply = MPoolOpReply {
                    paxos: Paxos {
                        version: op.paxos.version + 5,
                        ..Paxos::default()
                    },
                    fsid: FSID,
                    epoch: 12,
                    response,
                    ..MPoolOpReply::default()
                };
                self.reply(attempt, m.tid, &reply, &[]);
            }
            kind::AUTH => {
                let reply = MAuthReply {
                    protocol: 2,
                    payload: m.front.clone(),
                    ..MAuthReply::default()
                };
                self.reply(attempt, 0, &reply, &[]);
            }
            other => panic!("unexpected message {other}"),
        }
    }

    /// Runs until `end` seconds have passed, or nothing is to come.
    fn run(&mut self, seconds: u64) {
        let end = self.now + seconds * SECOND;
        for _ in 0..10_000 {
            let due = self.due.keys().next().map(|(when, _)| *when);
            let deadline = self.client.next_deadline();
            let Some(next) = due.into_iter().chain(deadline).min().filter(|n| *n <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            if due == Some(next) {
                let (_, (attempt, what)) = self.due.pop_first().unwrap();
                self.happen(attempt, what);
            } else {
                self.client.tick(self.at());
            }
            self.obey();
        }
        panic!("the client is never at rest");
    }

    fn happen(&mut self, attempt: u64, what: Due) {
        if !self.live.contains_key(&attempt) {
            return;
        }
        let now = self.at();
        match what {
            Due::Opened => self.client.dialed_ok(attempt, now),
            Due::Failed(error) => {
                self.live.remove(&attempt);
                self.client.dial_failed(attempt, &error);
            }
            Due::Lost => {
                self.live.remove(&attempt);
                self.client.lost(attempt, "connection reset", now);
            }
            Due::KeepaliveAck => self.client.keepalive_ack(attempt, now),
            Due::Message {
                kind,
                version,
                tid,
                front,
                data,
            } => {
                let m = Incoming {
                    kind,
                    version,
                    tid,
                    front: &front,
                    data: &data,
                };
                let _ = self.client.message(attempt, &m, now);
            }
        }
    }

    fn lose_session(&mut self) {
        let attempt = self.client.session().unwrap();
        self.live.remove(&attempt);
        self.client.lost(attempt, "connection reset", self.at());
        self.obey();
    }

    fn ready(&self) -> bool {
        self.events.contains(&MonEvent::Ready)
    }

    fn failure(&self) -> Option<String> {
        self.events.iter().find_map(|e| match e {
            MonEvent::Failed(e) => Some(e.to_string()),
            _ => None,
        })
    }

    fn command(&mut self, token: u64, name: &str) {
        self.client
            .command(
                token,
                Command::new(name),
                Payload::from(b"in".to_vec()),
                self.at(),
            )
            .unwrap();
        self.obey();
    }

    fn results(&self, token: u64) -> Vec<Result<CommandReply, MonError>> {
        self.events
            .iter()
            .filter_map(|e| match e {
                MonEvent::CommandDone { token: t, result } if *t == token => Some(result.clone()),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn the_first_session_wins_and_brings_map_and_options() {
    let moods = [(1, Mood::Hangs), (2, Mood::Well), (3, Mood::Refuses)];
    let mut sim = Sim::new(config(&[1, 2, 3]), 1, &moods, monmap(4, &[1, 2, 3]));
    sim.options.insert("rbd_default_pool".into(), "vms".into());
    assert_eq!(sim.dials.len(), 3, "dialed at once");
    sim.run(1);
    assert!(sim.ready());
    assert_eq!(sim.client.session_addr(), Some(addr(2)));
    assert_eq!(sim.live.len(), 1, "the others are hung up");
    assert!(sim.events.contains(&MonEvent::MonMap { epoch: 4 }));
    assert!(sim.events.contains(&MonEvent::Config(sim.options.clone())));
    assert_eq!(sim.client.troubles(), "");
    // As Ceph's own client asks: everything, in one message.
    let want = BTreeMap::from([("config".into(), (0, false)), ("monmap".into(), (0, false))]);
    assert_eq!(sim.subscriptions, [want]);
}

#[test]
fn more_monitors_than_are_dialed_at_once_are_all_reached() {
    for seed in 0..50 {
        let mut moods: Vec<_> = (1..=7).map(|n| (n, Mood::Refuses)).collect();
        moods[(seed % 7) as usize].1 = Mood::Well;
        let all: Vec<u8> = (1..=7).collect();
        let mut sim = Sim::new(config(&all), seed, &moods, monmap(1, &all));
        assert_eq!(sim.dials.len(), 3);
        // Refusals make room at once; no hunt interval is waited out.
        sim.run(1);
        assert!(sim.ready(), "seed {seed}");
    }
}

#[test]
fn monitors_that_hang_are_left_after_the_hunt_interval() {
    let moods: Vec<_> = (1..=4).map(|n| (n, Mood::Hangs)).collect();
    let mut sim = Sim::new(config(&[1, 2, 3, 4]), 3, &moods, monmap(1, &[1, 2, 3, 4]));
    let first: BTreeSet<_> = sim.dials.iter().map(|(_, a)| *a).collect();
    sim.run(4);
    assert_eq!(sim.dials.len(), 4);
    let (when, last) = sim.dials[3];
    assert!(!first.contains(&last));
    assert_eq!(when, 103 * SECOND);
    assert_eq!(sim.live.len(), 1);
    // Then all over again.
    sim.run(3);
    assert_eq!(sim.dials.len(), 7);
}

#[test]
fn a_monitor_that_always_refuses_is_dialed_once_per_interval() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Refuses)], monmap(1, &[1]));
    sim.run(29);
    assert_eq!(sim.dials.len(), 10);
    assert!(sim.failure().is_none());
}

#[test]
fn connecting_ends_with_the_mount_timeout_and_says_whom_it_tried() {
    let moods = [(1, Mood::Refuses), (2, Mood::Hangs)];
    let mut c = config(&[1, 2]);
    c.mount_timeout = Duration::from_secs(20);
    c.op_timeout = Duration::from_secs(60);
    let mut sim = Sim::new(c, 1, &moods, monmap(1, &[1, 2]));
    sim.command(5, "status");
    sim.run(30);
    assert_eq!(
        sim.failure().unwrap(),
        "no session with a monitor within 20 s (10.0.0.1:3300: connection refused; \
         10.0.0.2:3300: no answer)"
    );
    assert_eq!(sim.results(5), [Err(MonError::Closed)]);
    assert!(sim.live.is_empty());
    assert_eq!(sim.client.next_deadline(), None);
    let refused = sim.client.get_version(6, "osdmap", sim.at());
    assert_eq!(refused, Err(MonError::Closed));
}

#[test]
fn a_session_without_map_or_options_is_not_ready() {
    let mut c = config(&[1]);
    c.mount_timeout = Duration::from_secs(20);
    let mut sim = Sim::new(c, 1, &[(1, Mood::Deaf)], monmap(1, &[1]));
    sim.run(30);
    assert!(!sim.ready());
    let failure = sim.failure().unwrap();
    assert!(failure.ends_with("(10.0.0.1:3300: no answer)"), "{failure}");
}

#[test]
fn denial_by_all_is_final_only_before_the_first_session() {
    let moods = [(1, Mood::Denies), (2, Mood::Refuses)];
    let mut sim = Sim::new(config(&[1, 2]), 1, &moods, monmap(1, &[1, 2]));
    sim.run(1);
    assert_eq!(
        sim.failure().unwrap(),
        "the monitors refuse us (10.0.0.1:3300: permission denied; \
         10.0.0.2:3300: connection refused)"
    );

    let moods = [(1, Mood::Denies), (2, Mood::Well)];
    let mut sim = Sim::new(config(&[1, 2]), 1, &moods, monmap(1, &[1, 2]));
    sim.run(60);
    assert!(sim.ready());
    sim.moods.insert(addr(2), Mood::Denies);
    sim.lose_session();
    sim.run(3600);
    assert!(sim.failure().is_none(), "a mounted image waits");
    assert_eq!(sim.client.session(), None);
    sim.moods.insert(addr(1), Mood::Well);
    sim.run(60);
    assert_eq!(sim.client.session_addr(), Some(addr(1)));
}

#[test]
fn no_address_to_dial_is_an_error_at_once() {
    let sim = Sim::new(config(&[]), 1, &[], monmap(1, &[]));
    assert!(sim.failure().unwrap().starts_with("no monitor to dial"));
}

#[test]
fn silence_costs_the_session_and_another_monitor_takes_over() {
    let moods = [(1, Mood::Well), (2, Mood::Well)];
    let mut sim = Sim::new(config(&[1, 2]), 5, &moods, monmap(1, &[1, 2]));
    sim.run(100);
    assert_eq!(sim.dials.len(), 2, "answered keepalives keep the session");
    let first = sim.client.session_addr().unwrap();
    sim.moods.insert(first, Mood::Deaf);
    sim.run(60);
    let second = sim.client.session_addr().unwrap();
    assert_ne!(first, second);
    sim.client.subscribe_osdmap(0, true);
    sim.obey();
    let last = sim.subscriptions.last().unwrap();
    assert_eq!(last.keys().collect::<Vec<_>>(), ["osdmap"]);
}

#[test]
fn requests_and_subscriptions_move_to_the_next_session() {
    let moods = [(1, Mood::DiesAtCommand), (2, Mood::Hangs)];
    let mut sim = Sim::new(config(&[1, 2]), 1, &moods, monmap(3, &[1, 2]));
    sim.run(10);
    sim.client.subscribe_osdmap(7, false);
    sim.client.got_osdmap(9);
    sim.client.get_version(20, "osdmap", sim.at()).unwrap();
    sim.command(21, "osd pool ls");
    sim.moods.insert(addr(2), Mood::Well);
    sim.run(10);
    assert_eq!(sim.client.session_addr(), Some(addr(2)));
    let at: Vec<_> = sim.commands.iter().map(|(a, _)| *a).collect();
    assert_eq!(at, [addr(1), addr(2)], "sent again, to the other");
    let done = sim.results(21);
    assert_eq!(done.len(), 1, "answered once");
    assert_eq!(done[0].as_ref().unwrap().output, b"in");
    let versions = Versions {
        newest: 42,
        oldest: 1,
    };
    let answered = MonEvent::Version {
        token: 20,
        result: Ok(versions),
    };
    assert_eq!(sim.events.iter().filter(|e| **e == answered).count(), 1);
    let last = sim.subscriptions.last().unwrap();
    assert_eq!(last["osdmap"], (10, false), "from what is lacking now");
    assert_eq!(last["monmap"], (4, false));
    assert_eq!(last["config"], (0, false));
}

#[test]
fn a_monitor_that_drops_every_session_is_not_dialed_without_pause() {
    let mut sim = Sim::new(
        config(&[1]),
        1,
        &[(1, Mood::DiesAtCommand)],
        monmap(1, &[1]),
    );
    sim.command(1, "status");
    sim.run(30);
    assert!(sim.dials.len() <= 11, "{} dials in 30 s", sim.dials.len());
    sim.moods.insert(addr(1), Mood::Well);
    sim.run(60);
    assert_eq!(sim.results(1).len(), 1);
}

#[test]
fn an_old_session_is_replaced_at_once() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], monmap(1, &[1]));
    sim.run(60);
    let before = sim.now;
    sim.lose_session();
    sim.run(1);
    assert_eq!(sim.dials.last(), Some(&(before, addr(1))));
    assert!(sim.client.session().is_some());
}

#[test]
fn hunts_take_longer_and_longer_while_the_cluster_is_gone() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], monmap(1, &[1]));
    sim.run(60);
    sim.moods.insert(addr(1), Mood::Hangs);
    sim.lose_session();
    let first = sim.dials.len();
    sim.run(600);
    let times: Vec<_> = sim.dials[first - 1..].iter().map(|(t, _)| *t).collect();
    let gaps: Vec<_> = times
        .windows(2)
        .map(|w| (w[1] - w[0]) as f64 / 1e9)
        .collect();
    assert!(
        (gaps[0] - 4.5).abs() < 0.01 && (gaps[1] - 6.75).abs() < 0.01,
        "{gaps:?}"
    );
    assert!(gaps.iter().all(|g| *g < 30.01), "{gaps:?}");
    assert!((gaps.last().unwrap() - 30.0).abs() < 0.01, "{gaps:?}");
    assert!(sim.failure().is_none());
}

#[test]
fn the_map_replaces_the_addresses_we_started_from() {
    // The seed answers, but the map says the monitors are elsewhere.
    let moods = [(1, Mood::Well), (5, Mood::Well), (6, Mood::Hangs)];
    let mut sim = Sim::new(config(&[1]), 1, &moods, monmap(8, &[5, 6]));
    sim.run(2);
    assert!(sim.ready());
    assert_eq!(sim.client.session_addr(), Some(addr(5)));
    assert_eq!(sim.dials.len(), 3);
}

#[test]
fn a_monitor_removed_from_the_map_is_left() {
    let moods = [(1, Mood::Well), (2, Mood::Hangs), (3, Mood::Well)];
    let mut sim = Sim::new(config(&[1, 2]), 1, &moods, monmap(1, &[1, 2]));
    sim.run(30);
    assert_eq!(sim.client.session_addr(), Some(addr(1)));
    sim.map = monmap(2, &[2, 3]);
    sim.send_map(sim.client.session().unwrap());
    sim.command(1, "status");
    sim.run(2);
    assert_eq!(sim.client.session_addr(), Some(addr(3)));
    assert_eq!(sim.results(1).len(), 1);
    assert!(sim.events.contains(&MonEvent::MonMap { epoch: 2 }));
    // A later loss hunts among those of the new map only.
    let before = sim.dials.len();
    sim.moods.insert(addr(2), Mood::Well);
    sim.run(10);
    sim.lose_session();
    sim.run(5);
    assert!(sim.dials[before..].iter().all(|(_, a)| *a != addr(1)));
}

#[test]
fn a_monitor_of_another_cluster_is_refused() {
    let mut c = config(&[1]);
    c.fsid = Some([9; 16]);
    let mut sim = Sim::new(c, 1, &[(1, Mood::Well)], monmap(1, &[1]));
    sim.run(2);
    assert_eq!(
        sim.failure().unwrap(),
        "the monitors refuse us (10.0.0.1:3300: is a monitor of another cluster)"
    );
    // Later, too: an address may come to lead elsewhere.
    let moods = [(1, Mood::Well), (2, Mood::Hangs)];
    let mut sim = Sim::new(config(&[1, 2]), 1, &moods, monmap(1, &[1, 2]));
    sim.run(30);
    sim.map.fsid = [9; 16];
    sim.send_map(sim.client.session().unwrap());
    sim.run(1);
    assert_eq!(sim.client.session(), None);
    assert_eq!(sim.client.monmap().unwrap().fsid, FSID);
    assert!(sim.client.troubles().contains("another cluster"));
    assert!(sim.failure().is_none());
}

#[test]
fn void_tickets_are_told_of_once() {
    let mut map = monmap(1, &[1]);
    map.auth = Some(AuthCiphers {
        epoch: 3,
        ..AuthCiphers::default()
    });
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], map);
    sim.run(1);
    assert!(!sim.events.contains(&MonEvent::TicketsVoid));
    sim.map.epoch = 2;
    sim.map.auth.as_mut().unwrap().epoch = 4;
    sim.send_map(sim.client.session().unwrap());
    sim.send_map(sim.client.session().unwrap());
    sim.run(1);
    let told = sim.events.iter().filter(|e| **e == MonEvent::TicketsVoid);
    assert_eq!(told.count(), 1);
}

#[test]
fn requests_time_out_only_when_told_to() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], monmap(1, &[1]));
    sim.run(1);
    sim.moods.insert(addr(1), Mood::Deaf);
    sim.command(1, "status");
    sim.run(3600);
    assert!(sim.results(1).is_empty());

    let mut c = config(&[1]);
    c.op_timeout = Duration::from_secs(7);
    let mut sim = Sim::new(c, 1, &[(1, Mood::Well)], monmap(1, &[1]));
    sim.run(1);
    sim.moods.insert(addr(1), Mood::Deaf);
    sim.command(1, "status");
    sim.client.get_version(2, "osdmap", sim.at()).unwrap();
    sim.run(8);
    let error = sim.results(1)[0].clone().unwrap_err();
    let want = "no answer from the monitors to command \"status\" within 7 s";
    assert_eq!(error.to_string(), want);
    assert!(sim.events.iter().any(|e| matches!(
        e,
        MonEvent::Version {
            token: 2,
            result: Err(MonError::TimedOut { .. })
        }
    )));
}

#[test]
fn errors_of_the_monitors_name_the_command() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], monmap(1, &[1]));
    sim.command(1, "bad");
    sim.run(1);
    let error = sim.results(1)[0].clone().unwrap_err();
    assert_eq!(
        error.to_string(),
        "command \"bad\" failed: done (error -22)"
    );
}

#[test]
fn pool_operations_carry_the_version_last_seen() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], monmap(1, &[1]));
    let make = |sim: &mut Sim, token| {
        let op = pool_op::CREATE_UNMANAGED_SNAP;
        sim.client.pool_op(token, 2, op, 0, sim.at()).unwrap();
        sim.obey();
        sim.run(1);
    };
    make(&mut sim, 1);
    make(&mut sim, 2);
    let done: Vec<_> = sim
        .events
        .iter()
        .filter_map(|e| match e {
            MonEvent::PoolOpDone { result, .. } => Some(result.clone().unwrap()),
            _ => None,
        })
        .collect();
    assert_eq!(done.len(), 2);
    assert_eq!((done[0].epoch, done[0].snapid()), (12, Ok(99)));
    assert_eq!(sim.client.osdmap_seen(), 10);
}

#[test]
fn tickets_are_renewed_in_the_open_session_only() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], monmap(1, &[1]));
    assert!(!sim.client.send_auth(2, vec![1]));
    sim.run(1);
    assert!(sim.client.send_auth(2, vec![1]));
    sim.obey();
    sim.run(1);
    assert!(sim.events.iter().any(|e| matches!(e, MonEvent::Auth(_))));
}

#[test]
fn what_is_not_ours_is_the_owner_s_and_garbage_costs_the_session() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], monmap(1, &[1]));
    sim.run(30);
    let attempt = sim.client.session().unwrap();
    let incoming = |kind, front| Incoming {
        kind,
        version: 1,
        tid: 0,
        front,
        data: &[],
    };
    let now = sim.at();
    let osdmap = incoming(kind::OSD_MAP, &[]);
    assert_eq!(sim.client.message(attempt, &osdmap, now), Ok(false));
    let stray = incoming(kind::MON_MAP, &[]);
    assert_eq!(sim.client.message(attempt + 100, &stray, now), Ok(true));
    assert!(sim.client.message(attempt, &stray, now).is_err());
    assert_ne!(sim.client.session(), Some(attempt));
    sim.obey();
    sim.run(1);
    assert!(sim.client.session().is_some());
}

#[test]
fn what_was_not_sent_in_time_is_sent_in_the_next_session_only() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Well)], monmap(1, &[1]));
    sim.run(10);
    let attempt = sim.client.session().unwrap();
    let now = sim.at();
    sim.client.get_version(1, "osdmap", now).unwrap();
    sim.client.lost(attempt, "connection reset", now);
    sim.live.remove(&attempt);
    sim.obey();
    sim.run(1);
    let answers = |e: &&MonEvent| matches!(e, MonEvent::Version { token: 1, .. });
    assert_eq!(sim.events.iter().filter(answers).count(), 1);
}

#[test]
fn a_closed_client_stays_silent() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Hangs)], monmap(1, &[1]));
    sim.client.close();
    sim.obey();
    sim.now += 3600 * SECOND;
    sim.client.tick(sim.at());
    sim.client.start(sim.at());
    sim.obey();
    assert!(sim.events.is_empty() && sim.live.is_empty());
    assert_eq!(sim.dials.len(), 1);
}

#[test]
fn waiting_requests_are_bounded_and_can_be_cancelled() {
    let mut sim = Sim::new(config(&[1]), 1, &[(1, Mood::Hangs)], monmap(1, &[1]));
    let now = sim.at();
    let full = (0..2000).find(|i| sim.client.get_version(*i, "osdmap", now).is_err());
    assert_eq!(full, Some(1024));
    assert_eq!(sim.client.get_version(0, "x", now), Err(MonError::Busy));
    sim.client.cancel(3);
    assert_eq!(sim.client.get_version(0, "x", now), Ok(()));
    sim.client.close();
    sim.obey();
    assert_eq!(sim.events.len(), 1024);
    assert!(sim.live.is_empty());
}

proptest! {
    /// Monitors change their moods and the map its members at random; then all are well, and the
    /// client must be ready and have done every command.
    #[test]
    fn it_always_finds_its_way_back(
        seed: u64,
        steps in prop::collection::vec((0u8..6, 0u8..6, 1u64..40), 1..20),
    ) {
        let mut c = config(&[0, 1, 2]);
        c.mount_timeout = Duration::ZERO;
        let moods: Vec<_> = (0..6).map(|n| (n, Mood::Well)).collect();
        let mut sim = Sim::new(c, seed, &moods, monmap(1, &[0, 1, 2]));
        sim.run(5);
        let mut sent = 0;
        for (who, how, wait) in steps {
            let mood = [
                Mood::Well, Mood::Refuses, Mood::Hangs, Mood::DiesAtCommand, Mood::Deaf,
                Mood::Denies,
            ][usize::from(how)];
            sim.turn(who, mood);
            if how == 0 {
                sim.map = monmap(sim.map.epoch + 1, &[who, (who + 1) % 6, (who + 2) % 6]);
                if let Some(attempt) = sim.client.session() {
                    sim.send_map(attempt);
                }
            }
            sent += 1;
            sim.command(sent, "status");
            sim.run(wait);
        }
        // Those of the map the client knows must still lead on: a cluster that moves away whole
        // while a client is cut off is not found again from its map.
        for n in 0..6 {
            sim.turn(n, Mood::Well);
        }
        sim.run(300);
        prop_assert!(sim.failure().is_none());
        prop_assert!(sim.client.session().is_some());
        prop_assert_eq!(sim.live.len(), 1);
        for token in 1..=sent {
            prop_assert_eq!(sim.results(token).len(), 1);
        }
    }

    #[test]
    fn hostile_messages_never_panic(
        messages in prop::collection::vec((0u16..70, 0u16..5, any::<u64>(), any::<Vec<u8>>()), 1..20),
    ) {
        let mut sim = Sim::new(config(&[1, 2]), 1, &[(1, Mood::Well)], monmap(1, &[1, 2]));
        sim.command(1, "status");
        for (kind, version, tid, front) in messages {
            sim.run(5);
            let m = Incoming { kind, version, tid, front: &front, data: &front };
            if let Some(attempt) = sim.client.session() {
                let _ = sim.client.message(attempt, &m, sim.at());
            }
            sim.obey();
        }
    }
}
