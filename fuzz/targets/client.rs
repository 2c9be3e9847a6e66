//! A whole client against monitors and OSDs that shake hands honestly and then say anything, or
//! send bytes that are no protocol at all.

#![no_main]

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arbitrary::Arbitrary;
use cluster::auth::{self, AuthName, Method};
use cluster::client::{Action, Client, ClientConfig, ClientEvent, ConnId, MapCache};
use cluster::codec::{EntityType, Now};
use cluster::mon::message::{MConfig, MMonGetVersionReply, MMonMap, Message};
use cluster::mon::{MonConfig, MonInfo, MonMap, command};
use cluster::msgr::{Connection, Event, MsgHeader, OutBatch};
use cluster::objecter::msg::{MOsdMap, OSD_OP, OSD_OPREPLY};
use cluster::objecter::{ObjecterConfig, OpId, Request, Target, WatchRequest};
use cluster::osdmap::OsdMap;
use cluster::payload::Payload;
use fuzz::maps::golden;
use fuzz::osd::{Answer, Asked, Ledger, ops};
use fuzz::{NOW, SECOND, addr, addrs, server_config};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Step {
    Connected(u8),
    /// Honest bytes both ways, on all connections.
    Talk,
    Raw(u8, Vec<u8>),
    Message {
        conn: u8,
        kind: u8,
        version: u8,
        tid: u8,
        front: Vec<u8>,
        data: Vec<u8>,
    },
    MonMap(u8, u8),
    Config(u8, String, String),
    /// A run of real maps, full or incremental.
    Maps {
        conn: u8,
        from: u8,
        count: u8,
        full: bool,
    },
    Version(u8, u8, u64),
    Reply(u8, Answer),
    Keepalive(u8),
    Closed(u8),
    Wait(u16),
    Submit {
        kind: u8,
        object: u8,
        len: u16,
        write: bool,
    },
    Watch(u8),
    Unwatch(u8),
    Cancel(u8),
    Command,
    PoolOp,
    LatestMap,
}

/// Connection of the client, and who plays its peer.
struct Link {
    id: ConnId,
    up: bool,
    server: Connection,
    asked: Vec<Asked>,
}

struct Run {
    client: Client,
    ledger: Ledger,
    links: Vec<Link>,
    ids: Vec<OpId>,
    told: BTreeSet<u64>,
    batch: OutBatch,
    now: Now,
}

/// Full and incremental maps of a real cluster, by epoch from 1.
static MAPS: OnceLock<Vec<(Vec<u8>, Vec<u8>)>> = OnceLock::new();

const KINDS: [u16; 14] = [4, 16, 18, 20, 41, 43, 44, 48, 51, 53, 61, 62, 98, 0x704];

fuzz_target!(|steps: Vec<Step>| {
    let auth = auth::ClientConfig {
        methods: vec![Method::None],
        ..auth::ClientConfig::new(AuthName::client("vm"), None)
    };
    let mons = (1..4).map(addrs).collect();
    let mut config = ClientConfig::new(auth, MonConfig::new(mons, "node7".into()));
    config.objecter = ObjecterConfig {
        max_ops: 64,
        op_timeout: Some(Duration::from_secs(60)),
        ..config.objecter
    };
    let client = Client::new(config, Arc::new(MapCache::default()), &[7; 32]);
    let mut run = Run {
        client: client.expect("no key is needed"),
        ledger: Ledger::default(),
        links: Vec::new(),
        ids: Vec::new(),
        told: BTreeSet::new(),
        batch: OutBatch::new(),
        now: NOW,
    };
    run.client.start(NOW);
    run.settle();
    for (token, step) in steps.into_iter().enumerate() {
        run.step(token as u64, step);
        run.settle();
    }
    run.client.close(&mut run.ledger);
    run.settle();
    run.ledger.assert_empty();
    assert!(run.links.is_empty(), "sockets left open");
});

fn maps() -> &'static [(Vec<u8>, Vec<u8>)] {
    MAPS.get_or_init(|| {
        let file = |n, what| golden(&format!("v20/incr/simple.{n}.{what}"));
        (1..=25)
            .map(|n| (file(n, "full"), file(n, "inc")))
            .collect()
    })
}

impl Run {
    fn step(&mut self, token: u64, step: Step) {
        let now = self.now;
        let pool = self.client.map().and_then(|m| Some(m.pools().next()?.0));
        let target = |n: u8| Target::object(pool.unwrap_or(1), [b'o', n % 8]);
        match step {
            Step::Connected(n) => {
                let Some(link) = pick(&mut self.links, n).filter(|l| !l.up) else {
                    return;
                };
                link.up = true;
                link.server.start(now);
                self.client.connected(link.id, now);
            }
            Step::Talk => self.talk(),
            Step::Raw(n, bytes) => {
                if let Some(link) = pick(&mut self.links, n).filter(|l| l.up) {
                    self.client.received(link.id, &bytes, now, &mut self.ledger);
                }
            }
            Step::Message {
                conn,
                kind,
                version,
                tid,
                front,
                data,
            } => {
                let kind = KINDS[usize::from(kind) % KINDS.len()];
                self.say(conn, kind, version.into(), tid.into(), &front, data);
            }
            Step::MonMap(conn, epoch) => {
                let mon = |n: u8| {
                    let info = MonInfo {
                        addrs: addrs(n),
                        ..MonInfo::default()
                    };
                    (format!("m{n}"), info)
                };
                let map = MonMap {
                    epoch: epoch.into(),
                    mons: (1..4).map(mon).collect(),
                    ..MonMap::default()
                };
                let mut monmap = Vec::new();
                map.encode(&mut monmap);
                self.tell(conn, 0, &MMonMap { monmap });
            }
            Step::Config(conn, name, value) => {
                let config = [(name, value)].into();
                self.tell(conn, 0, &MConfig { config });
            }
            Step::Maps {
                conn,
                from,
                count,
                full,
            } => {
                let from = usize::from(from) % maps().len();
                let these = maps().iter().enumerate().skip(from);
                let these = these.take(usize::from(count) % 4 + 1);
                let list = these.map(|(n, (f, i))| (n as u32 + 1, &(if full { f } else { i })[..]));
                let list: Vec<_> = list.collect();
                let first = OsdMap::decode(&maps()[0].0).expect("a real map");
                let (full, incrementals) = match full {
                    true => (list, Vec::new()),
                    false => (Vec::new(), list),
                };
                let message = MOsdMap {
                    fsid: first.fsid(),
                    incrementals,
                    full,
                    trim_lower_bound: 1,
                    newest: maps().len() as u32,
                };
                let mut front = Vec::new();
                message.encode(&mut front);
                self.say(conn, 41, MOsdMap::VERSION, 0, &front, Vec::new());
            }
            Step::Version(conn, tid, newest) => {
                let reply = MMonGetVersionReply {
                    handle: tid.into(),
                    version: newest,
                    oldest: 1,
                };
                self.tell(conn, tid.into(), &reply);
            }
            Step::Reply(n, how) => {
                let all = self.links.iter().enumerate();
                let asked = all.flat_map(|(at, l)| l.asked.iter().map(move |a| (at, a)));
                let asked: Vec<_> = asked.collect();
                let Some(&(at, asked)) = asked.get(usize::from(n) % asked.len().max(1)) else {
                    return;
                };
                let (tid, (front, data)) = (asked.tid, asked.answer(&how));
                self.say(at as u8, OSD_OPREPLY, 8, tid, &front, data);
            }
            Step::Keepalive(n) => {
                if let Some(link) = pick(&mut self.links, n) {
                    link.server.keepalive(now);
                }
            }
            Step::Closed(n) => {
                if let Some(link) = pick(&mut self.links, n) {
                    let id = link.id;
                    self.client.closed(id, "gone", now, &mut self.ledger);
                }
            }
            Step::Wait(millis) => {
                self.now.mono += u64::from(millis) * (SECOND / 1000);
                self.client.tick(self.now, &mut self.ledger);
            }
            Step::Submit {
                kind,
                object,
                len,
                write,
            } => {
                let ops = ops(kind, len);
                let request = match write {
                    true => Request::write(target(object), ops, Default::default(), token),
                    false => Request::read(target(object), ops, token),
                };
                if let Ok(id) = self.client.submit(request, now) {
                    self.ledger.took(token);
                    self.ids.push(id);
                }
            }
            Step::Watch(n) => {
                let request = WatchRequest {
                    target: target(n),
                    cookie: u64::from(n % 4),
                    timeout: 30,
                    token,
                };
                if self.client.watch(request, now).is_ok() {
                    self.ledger.took(token);
                }
            }
            Step::Unwatch(n) => {
                let cookie = u64::from(n % 4);
                let taken = self.client.unwatch(cookie, token, now, &mut self.ledger);
                if taken.is_ok() {
                    self.ledger.took(token);
                }
            }
            Step::Cancel(n) => {
                if let Some(id) = self.ids.get(usize::from(n) % self.ids.len().max(1)) {
                    self.client.cancel(*id, &mut self.ledger);
                }
            }
            Step::Command => {
                let taken =
                    self.client
                        .mon_command(token, command::status(), Payload::default(), now);
                if taken.is_ok() {
                    self.told.insert(token);
                }
            }
            Step::PoolOp => {
                if self.client.pool_op(token, 1, 0x11, 0, now).is_ok() {
                    self.told.insert(token);
                }
            }
            Step::LatestMap => {
                if self.client.wait_for_latest_map(token, now).is_ok() {
                    self.told.insert(token);
                }
            }
        }
    }

    /// Does what the client asks of its driver, until it asks no more.
    fn settle(&mut self) {
        self.client.flush(self.now, &mut self.ledger);
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Connect { conn, addr: to } => {
                    let mon = (1..4).any(|n| addr(n).addr == Some(to));
                    let kind = if mon {
                        EntityType::MON
                    } else {
                        EntityType::OSD
                    };
                    let server = Connection::server(server_config(kind, 0), addr(9));
                    self.links.push(Link {
                        id: conn,
                        up: false,
                        server,
                        asked: Vec::new(),
                    });
                }
                Action::Close { conn } => self.links.retain(|l| l.id != conn),
            }
        }
        while let Some(event) = self.client.poll_event() {
            if let ClientEvent::CommandDone { token, .. }
            | ClientEvent::PoolOpDone { token, .. }
            | ClientEvent::LatestMap { token, .. } = event
            {
                assert!(self.told.remove(&token), "answer {token} came twice");
            }
        }
        let _ = (self.client.trouble(), self.client.next_deadline());
    }

    fn talk(&mut self) {
        // A handshake takes four turns; what comes of it (requests, maps) a few more.
        for _ in 0..8 {
            while let Some(id) = self.client.poll_dirty() {
                self.client.take_output(id, &mut self.batch);
                let bytes: Vec<u8> = self.batch.slices().flatten().copied().collect();
                self.batch.clear();
                if let Some(link) = self.links.iter_mut().find(|l| l.id == id && l.up) {
                    link.hear(&bytes, self.now);
                }
            }
            for at in 0..self.links.len() {
                let Some(link) = self.links.get_mut(at).filter(|l| l.up) else {
                    continue;
                };
                let bytes = fuzz::output(&mut link.server);
                let id = link.id;
                if !bytes.is_empty() {
                    self.client.received(id, &bytes, self.now, &mut self.ledger);
                }
            }
            self.settle();
        }
    }

    fn tell<M: Message>(&mut self, conn: u8, tid: u64, message: &M) {
        let mut front = Vec::new();
        message.encode(&mut front);
        self.say(conn, M::KIND, M::VERSION, tid, &front, Vec::new());
    }

    fn say(&mut self, conn: u8, kind: u16, version: u16, tid: u64, front: &[u8], data: Vec<u8>) {
        if let Some(link) = pick(&mut self.links, conn) {
            let header = MsgHeader {
                tid,
                ..MsgHeader::new(kind, version, 1)
            };
            let front = |out: &mut Vec<u8>| out.extend_from_slice(front);
            let _ = link.server.send(&header, front, &[], &[data.into()]);
        }
    }
}

impl Link {
    /// A peer that lets everybody in and remembers what it is asked.
    fn hear(&mut self, mut bytes: &[u8], now: Now) {
        loop {
            match self.server.next_event(&mut bytes, now) {
                Err(_) | Ok(None) => return,
                Ok(Some(Event::AuthRequest { .. })) => {
                    if self.server.auth_done(4242, 1, &[], &[], &[]).is_err() {
                        return;
                    }
                }
                Ok(Some(Event::Message(m))) => {
                    if m.header.kind == OSD_OP {
                        let asked = Asked::of(m.header.tid, m.front, m.data.len());
                        self.asked.push(asked);
                    }
                }
                Ok(Some(_)) => {}
            }
        }
    }
}

fn pick(links: &mut [Link], n: u8) -> Option<&mut Link> {
    let n = usize::from(n) % links.len().max(1);
    links.get_mut(n)
}
