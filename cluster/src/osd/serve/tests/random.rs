//! Clients that send, lose links and send again, while maps change, pgs split, merge and move, OSDs
//! go down, and commits come late; by seed.
//!
//! Each append carries a number of its own. In the end, an object's data is a list of numbers: each
//! at most once, those that were acknowledged exactly once, of each client in the order sent. A
//! read shows a beginning of that list, with everything acknowledged before it was sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::rig::{Got, POOL, Rig, SECOND, pg, set_pg_num};
use crate::objecter::msg::{PgId, WatchOp};
use crate::objecter::{ObjectOp, is_merge_source, is_merge_target, is_split};
use crate::osd::faults::{Action, OpClass, Rule, When};
use crate::osd::outbox::Link;
use crate::osd::random::Random;
use crate::osd::serve::OsdEvent;
use crate::osd::store::Store;
use crate::osdmap::{Incremental, OsdMap};
use crate::payload::Payload;

const OBJECTS: u64 = 10;
const CLIENTS: u64 = 4;

struct Pending {
    name: String,
    read: bool,
    /// Numbers acknowledged when it was first sent.
    known: BTreeSet<u64>,
    retry: i32,
    /// It may have to be sent once the map lets it.
    sent: bool,
}

struct Client {
    gid: u64,
    epoch: u32,
    links: BTreeMap<i32, Link>,
    pending: BTreeMap<u64, Pending>,
    last_tid: u64,
}

struct World {
    rig: Rig,
    rng: Random,
    clients: Vec<Client>,
    released: VecDeque<OsdEvent<crate::osd::store::slow::SlowStore>>,
    acked: BTreeMap<String, BTreeSet<u64>>,
    reads: Vec<(String, Vec<u64>, BTreeSet<u64>)>,
    down: BTreeSet<i32>,
}

fn name_of(i: u64) -> String {
    format!("o{i}")
}

fn target(map: &OsdMap, name: &str) -> (u32, i32) {
    let raw = map.object_to_pg(POOL, b"", b"", name.as_bytes()).unwrap();
    let id: PgId = map.pool(POOL).unwrap().raw_pg_to_pg(raw);
    (id.seed, map.map_pg(id).acting_primary.unwrap_or(-1))
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    assert_eq!(bytes.len() % 8, 0, "half an append");
    let words = bytes.chunks(8).map(|c| c.try_into().unwrap());
    words.map(u64::from_le_bytes).collect()
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Random::new(seed);
        let pg_num = 1 + (rng.next() % 6) as u32;
        let at = rng.next();
        let mut rig = Rig::new(pg_num, |s| ((u64::from(s) + at) % 3) as i32);
        rig.keep_released = true;
        rig.slow();
        let epoch = rig.epoch();
        let clients = (0..CLIENTS).map(|i| Client {
            gid: 100 + i,
            epoch,
            links: BTreeMap::new(),
            pending: BTreeMap::new(),
            last_tid: 0,
        });
        World {
            clients: clients.collect(),
            rig,
            rng,
            released: VecDeque::new(),
            acked: BTreeMap::new(),
            reads: Vec::new(),
            down: BTreeSet::new(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next() % n
    }

    /// Sends what a client has pending on an object's pg in its map, in the order of tids.
    fn send(&mut self, c: usize, tid: u64) {
        let client = &self.clients[c];
        let map = std::sync::Arc::clone(&self.rig.maps[&client.epoch]);
        let p = &client.pending[&tid];
        let (_, osd) = target(&map, &p.name);
        if osd < 0 {
            return;
        }
        let gid = client.gid;
        let link = match client.links.get(&osd) {
            Some(link) => *link,
            None => {
                let link = self.rig.open(osd as usize, gid);
                self.clients[c].links.insert(osd, link);
                link
            }
        };
        let client = &mut self.clients[c];
        let p = client.pending.get_mut(&tid).unwrap();
        let op = if p.read {
            ObjectOp::new().read(0, 1 << 20)
        } else {
            let number = gid << 32 | tid;
            ObjectOp::new().append(Payload::from(number.to_le_bytes().to_vec()))
        };
        let mut ask = self.rig.ask(tid, &p.name, op);
        ask.epoch = client.epoch;
        ask.retry = p.retry;
        p.retry += 1;
        p.sent = true;
        // The pg is that of the client's own map.
        let newest = std::mem::replace(&mut self.rig.map, map);
        let (header, front, data) = self.rig.encode(&ask);
        self.rig.map = newest;
        self.rig.send_raw(link, header, &front, &data);
    }

    /// The client learns of the next epoch, and sends again whatever that concerns
    /// (`Objecter::_scan_requests`).
    fn learn(&mut self, c: usize) -> bool {
        let client = &self.clients[c];
        let (Some(old), Some(new)) = (
            self.rig.maps.get(&client.epoch).cloned(),
            self.rig.maps.get(&(client.epoch + 1)).cloned(),
        ) else {
            return false;
        };
        self.clients[c].epoch += 1;
        let shape = |m: &OsdMap| m.pool(POOL).unwrap().pg_num;
        let (had, has) = (shape(&old), shape(&new));
        // Of pgs that others are split from or merged into, too, though their objects stay there.
        let reshaped = |seed| {
            is_split(seed, had, has)
                || is_merge_source(seed, had, has)
                || is_merge_target(seed, had, has)
        };
        let tids: Vec<u64> = self.clients[c].pending.keys().copied().collect();
        for tid in tids {
            let Some(p) = self.clients[c].pending.get(&tid) else {
                continue;
            };
            let before = target(&old, &p.name);
            let moved = before != target(&new, &p.name);
            if moved || reshaped(before.0) || !p.sent {
                self.send(c, tid);
            }
        }
        true
    }

    /// Takes what has arrived for everybody.
    fn receive(&mut self) {
        for c in 0..self.clients.len() {
            let links: Vec<(i32, Link)> = self.clients[c]
                .links
                .iter()
                .map(|(o, l)| (*o, *l))
                .collect();
            for (osd, link) in links {
                for got in self.rig.take(link) {
                    self.got(c, osd, link, got);
                }
            }
        }
    }

    fn got(&mut self, c: usize, osd: i32, link: Link, got: Got) {
        match got {
            Got::Reply {
                tid, result, outs, ..
            } => {
                let Some(p) = self.clients[c].pending.remove(&tid) else {
                    return;
                };
                let gid = self.clients[c].gid;
                if p.read {
                    assert!(result >= 0 || result == -2, "read: {result}");
                    let seen = if result == -2 {
                        Vec::new()
                    } else {
                        numbers(&outs[0])
                    };
                    self.reads.push((p.name, seen, p.known));
                } else {
                    assert_eq!(result, 0);
                    let acked = self.acked.entry(p.name).or_default();
                    assert!(acked.insert(gid << 32 | tid));
                }
            }
            Got::Closed => {
                if self.clients[c].links.get(&osd) == Some(&link) {
                    self.clients[c].links.remove(&osd);
                    self.again(c, osd);
                }
            }
            Got::Map(..) | Got::Notify { .. } => {}
            Got::Backoff(op) => panic!("backoff {op}"),
        }
    }

    /// The link to an OSD is lost: what was sent over it is sent again. Where that OSD is down, only
    /// a newer map helps.
    fn again(&mut self, c: usize, osd: i32) {
        let map = std::sync::Arc::clone(&self.rig.maps[&self.clients[c].epoch]);
        let tids: Vec<u64> = self.clients[c].pending.keys().copied().collect();
        for tid in tids {
            let Some(p) = self.clients[c].pending.get_mut(&tid) else {
                continue;
            };
            if target(&map, &p.name).1 != osd {
                continue;
            }
            p.sent = false;
            if self.rig.osds[osd as usize].up {
                self.send(c, tid);
            }
        }
    }

    fn submit(&mut self) {
        let c = self.below(CLIENTS) as usize;
        let name = name_of(self.below(OBJECTS));
        let read = self.below(3) == 0;
        let known = self.acked.get(&name).cloned().unwrap_or_default();
        let client = &mut self.clients[c];
        if client.pending.len() > 30 {
            return;
        }
        client.last_tid += 1;
        let tid = client.last_tid;
        let pending = Pending {
            name,
            read,
            known,
            retry: 0,
            sent: false,
        };
        client.pending.insert(tid, pending);
        // What an OSD that was down did not take goes first.
        let unsent = client.pending.iter().filter(|(_, p)| !p.sent);
        for tid in unsent.map(|(tid, _)| *tid).collect::<Vec<u64>>() {
            self.send(c, tid);
        }
    }

    fn change_map(&mut self) {
        let pg_num = self.rig.map.pool(POOL).unwrap().pg_num;
        let osd = self.below(3) as i32;
        let seed = self.below(u64::from(pg_num)) as u32;
        let mut inc = match self.below(8) {
            0 | 1 => {
                let n = 1 + self.below(12) as u32;
                self.rig.pool_change(|p| set_pg_num(p, n))
            }
            2 if self.down.len() < 2 && self.down.insert(osd) => Incremental {
                new_state: BTreeMap::from([(osd, 0)]),
                ..Incremental::default()
            },
            3 | 4 if self.down.remove(&osd) => {
                let addrs = self.rig.osds[osd as usize].config.addrs.clone();
                Incremental {
                    new_up_client: BTreeMap::from([(osd, addrs)]),
                    ..Incremental::default()
                }
            }
            _ => Incremental::default(),
        };
        let to = self.below(3) as i32;
        inc.new_pg_temp = BTreeMap::from([(pg(seed), vec![to])]);
        self.rig.next_map(inc);
    }

    fn take_released(&mut self) {
        for (_, event) in std::mem::take(&mut self.rig.events) {
            match event {
                OsdEvent::Released { .. } => self.released.push_back(event),
                OsdEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }

    fn adopt(&mut self, i: usize) {
        if let Some(OsdEvent::Released { pg, to, state }) = self.released.remove(i) {
            self.rig
                .run(to as usize, |o, now, out| o.adopt(pg, state, now, out));
        }
    }

    fn fault(&mut self) {
        let osd = self.below(3) as usize;
        let (when, action) = match self.below(4) {
            0 => (When::Before, Action::Reset),
            1 => (When::After, Action::Reset),
            _ => (When::Before, Action::Delay(Duration::from_millis(300))),
        };
        let rule = Rule {
            class: OpClass::Any,
            pool: None,
            prefix: Vec::new(),
            per_million: 300_000,
            count: Some(3),
            when,
            action,
        };
        self.rig.osds[osd].faults().add(rule).unwrap();
    }

    fn commit(&mut self, all: bool) {
        for osd in 0..3 {
            let some = 1 + self.below(4);
            let to = if all {
                u64::MAX
            } else {
                self.rig.durable(osd).saturating_add(some)
            };
            self.rig.commit(osd, to);
        }
    }

    fn step(&mut self) {
        match self.below(30) {
            0..=11 => self.submit(),
            12..=16 => self.commit(false),
            17 => self.change_map(),
            18..=20 => {
                let osd = self.below(3) as usize;
                self.rig.give_next_map(osd);
            }
            21..=23 => {
                let c = self.below(CLIENTS) as usize;
                self.learn(c);
            }
            24 => {
                let c = self.below(CLIENTS) as usize;
                let osd = self.below(3) as i32;
                if let Some(link) = self.clients[c].links.remove(&osd) {
                    self.rig.close(link);
                    self.again(c, osd);
                }
            }
            25 | 26 => self.rig.advance(SECOND / 10),
            27 => self.fault(),
            _ => {
                if !self.released.is_empty() {
                    let i = self.below(self.released.len() as u64) as usize;
                    self.adopt(i);
                }
            }
        }
        self.receive();
        self.take_released();
    }

    /// No more faults: everything ends.
    fn finish(&mut self) {
        for osd in 0..3 {
            self.rig.osds[osd].faults().clear();
        }
        let addrs = |w: &World, i: i32| w.rig.osds[i as usize].config.addrs.clone();
        let up = self.down.iter().map(|&i| (i, addrs(self, i))).collect();
        self.rig.next_map(Incremental {
            new_up_client: up,
            ..Incremental::default()
        });
        for _ in 0..200 {
            self.rig.publish();
            self.take_released();
            while !self.released.is_empty() {
                self.adopt(0);
                self.take_released();
            }
            self.commit(true);
            self.rig.advance(SECOND);
            self.receive();
            for c in 0..self.clients.len() {
                while self.learn(c) {}
                // An OSD may have been down when this was last tried.
                let unsent = self.clients[c].pending.iter().filter(|(_, p)| !p.sent);
                let unsent: Vec<u64> = unsent.map(|(tid, _)| *tid).collect();
                for tid in unsent {
                    if self.clients[c].pending.contains_key(&tid) {
                        self.send(c, tid);
                    }
                }
            }
            self.receive();
            self.take_released();
        }
        for c in &self.clients {
            assert!(
                c.pending.is_empty(),
                "client {} waits for {:?}",
                c.gid,
                c.pending.keys()
            );
        }
        assert!(self.rig.osds.iter().all(|o| o.waiting() == 0));
    }

    fn check(&mut self) {
        let mut full = BTreeMap::new();
        for i in 0..OBJECTS {
            let name = name_of(i);
            let (seed, osd) = target(&self.rig.map, &name);
            let head = self.rig.head(&name);
            let mut bytes = Vec::new();
            let store = &mut self.rig.osds[osd as usize].store;
            if store.info(pg(seed), &head).unwrap().is_some() {
                store.read(pg(seed), &head, 0, 1 << 20, &mut bytes).unwrap();
            }
            let list = numbers(&bytes);
            let set: BTreeSet<u64> = list.iter().copied().collect();
            assert_eq!(set.len(), list.len(), "{name}: something was done twice");
            let acked = self.acked.remove(&name).unwrap_or_default();
            assert_eq!(set, acked, "{name}");
            let mut last = BTreeMap::new();
            for n in &list {
                let before = last.insert(n >> 32, *n);
                assert!(before.is_none_or(|b| b < *n), "{name}: out of order");
            }
            full.insert(name, list);
        }
        for (name, seen, known) in &self.reads {
            let all = &full[name];
            assert!(all.starts_with(seen), "{name}: {seen:?} of {all:?}");
            assert!(
                known.iter().all(|n| seen.contains(n)),
                "{name}: a read misses what was acknowledged"
            );
        }
        let mut held: Vec<PgId> = self.rig.osds.iter().flat_map(|o| o.store.pgs()).collect();
        held.sort();
        let pg_num = self.rig.map.pool(POOL).unwrap().pg_num;
        let pgs = held.into_iter().filter(|p| p.pool == POOL);
        assert!(pgs.eq((0..pg_num).map(pg)));
    }
}

fn run(seed: u64, steps: usize) -> usize {
    let mut w = World::new(seed);
    for _ in 0..steps {
        w.step();
    }
    w.finish();
    let done = w.reads.len() + w.acked.values().map(BTreeSet::len).sum::<usize>();
    w.check();
    done
}

#[test]
fn everything_is_done_once_whatever_happens() {
    let mut done = 0;
    for seed in 0..100 {
        let result = std::panic::catch_unwind(|| run(seed, 400));
        match result {
            Ok(n) => done += n,
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(done > 8_000, "{done} requests are too few to show anything");
}

/// Watches beside moving pgs: whoever comes back in time keeps its watch, whoever does not loses it.
#[test]
fn watches_survive_moves_and_end_in_time() {
    for seed in 0..40u64 {
        let mut rng = Random::new(seed);
        let mut r = Rig::new(2, |_| 0);
        let mut link = r.open(0, 10);
        let create = r.ask(1, "o", ObjectOp::new().create(false));
        assert_eq!(r.call(link, &create).0, 0);
        let mut tid = 1;
        let mut osd = target(&r.map, "o").1;
        let mut watch = |r: &mut Rig, link, how| {
            tid += 1;
            let op = ObjectOp::new().watch(how, 5, 0, 30);
            let ask = r.ask(tid, "o", op);
            r.call_keeping(link, &ask).0
        };
        assert_eq!(watch(&mut r, link, WatchOp::Watch), 0);
        for _ in 0..20 {
            match rng.next() % 4 {
                0 => {
                    let seed = r.pg_of(b"o");
                    r.place(seed, (rng.next() % 3) as i32);
                }
                1 => {
                    let n = 1 + (rng.next() % 5) as u32;
                    r.change_pool(|p| set_pg_num(p, n));
                }
                2 => r.close(link),
                _ => {}
            }
            r.advance(rng.next() % 25 * SECOND);
            osd = target(&r.map, "o").1;
            r.close(link);
            link = r.open(osd as usize, 10);
            assert_eq!(watch(&mut r, link, WatchOp::Reconnect), 0, "seed {seed}");
            assert_eq!(watch(&mut r, link, WatchOp::Ping), 0);
        }
        r.close(link);
        r.advance(31 * SECOND);
        link = r.open(osd as usize, 10);
        assert_eq!(watch(&mut r, link, WatchOp::Reconnect), -107);
    }
}
