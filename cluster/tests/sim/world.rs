//! Virtual time, the network and everybody in it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster::auth::server::{KeyServer, KeyServerConfig, MonAuth, Policy, ServiceAuth};
use cluster::auth::{self, AuthName, ConMode, CryptoKey, KeyType, Keyring, Method, Secret};
use cluster::client::{Action, Client, ClientConfig, ClientEvent, ConnId, MapCache};
use cluster::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now, UTime};
use cluster::mon::MonConfig;
use cluster::msgr::{MsgHeader, OutBatch};
use cluster::objecter::ObjecterConfig;
use cluster::osdmap::{Incremental, OsdMap};
use cluster::payload::Payload;

use super::maps::{Maps, POOL};
use super::mon::Mon;
use super::osd::{Osd, Session};
use super::rng::Rng;
use super::server::{Gate, Judge, Peer};
use super::store::{Object, Outcome};
use super::watch::Watched;
use super::work::{Cx, Sink, Work};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;
const WALL: u64 = 1_800_000_000 * SECOND;
/// How long connections without requests stay.
const IDLE: u64 = 40 * SECOND;
/// From one piece of what was sent to the next.
const NEXT_CHUNK: u64 = MS / 20;
/// More than any sound run needs.
const MAX_EVENTS: u64 = 2_000_000;

/// What kind of cluster, network and trouble a run has.
pub(crate) struct Plan {
    pub(crate) osds: usize,
    cephx: bool,
    crc_data: bool,
    mon_modes: Vec<ConMode>,
    osd_modes: Vec<ConMode>,
    /// Base latency and jitter.
    latency: u64,
    jitter: u64,
    /// Bytes delivered at a time, at most.
    chunk: u64,
    /// The longest that an OSD works at a request.
    pub(crate) service: u64,
    pub(crate) peering: u64,
    /// OSDs answer requests that they cannot serve with backoffs rather than to keep them.
    pub(crate) backoffs: bool,
    /// The mean time between two faults.
    pub(crate) fault_every: u64,
    /// How long there are faults.
    pub(crate) fault_time: u64,
    /// Flags that stop requests come and go.
    pub(crate) pauses: bool,
}

impl Plan {
    fn new(rng: &mut Rng) -> Plan {
        let both = vec![ConMode::Crc, ConMode::Secure];
        let modes = [vec![ConMode::Crc], vec![ConMode::Secure], both];
        let cephx = rng.one_in(2);
        // Without a key there is nothing to encrypt with.
        let choices = if cephx { 3 } else { 1 };
        Plan {
            osds: if rng.one_in(3) { 12 } else { 3 },
            cephx,
            crc_data: !rng.one_in(4),
            mon_modes: modes[rng.index(choices)].clone(),
            osd_modes: modes[rng.index(choices)].clone(),
            latency: rng.pick(&[MS / 10, MS, 20 * MS]),
            jitter: rng.pick(&[MS / 10, 5 * MS, 300 * MS]),
            chunk: rng.pick(&[40, 700, 1 << 20, 1 << 20]),
            service: rng.pick(&[MS, 30 * MS, 800 * MS]),
            peering: rng.pick(&[5 * MS, 500 * MS, 8 * SECOND]),
            backoffs: rng.one_in(2),
            fault_every: rng.pick(&[200 * MS, SECOND, 5 * SECOND, 30 * SECOND]),
            fault_time: rng.within(10..90) * SECOND,
            pauses: rng.one_in(2),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Mon(usize),
    Osd(usize),
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// The stream ends behind the bytes.
    fin: bool,
    scheduled: bool,
}

/// A connection.
pub(crate) struct Link {
    pub(crate) client: usize,
    conn: ConnId,
    pub(crate) to: Server,
    /// The server's end, once the connection is made and until it is gone.
    pub(crate) peer: Option<Peer>,
    up: Direction,
    down: Direction,
    client_open: bool,
    /// Nothing arrives any more, in either direction, and nobody is told.
    pub(crate) stalled: bool,
    latency: u64,
    /// A subscription to OSD maps: the next epoch, and whether it is the last.
    pub(crate) sub: Option<(u32, bool)>,
    pub(crate) session: Session,
}

pub(crate) enum Ev {
    Connect(u64),
    Refuse(u64),
    Up(u64),
    Down(u64),
    /// The server of a stalled connection loses patience.
    GiveUp(u64),
    Tick {
        client: usize,
        at: u64,
    },
    Poke {
        client: usize,
        at: u64,
    },
    MonMap {
        mon: usize,
        epoch: u32,
    },
    OsdMap {
        osd: usize,
        run: u64,
        epoch: u32,
    },
    MonStart(usize),
    /// The monitors notice that an OSD is dead.
    OsdDown {
        osd: usize,
        run: u64,
    },
    OsdStart {
        osd: usize,
        run: u64,
    },
    Run {
        osd: usize,
        run: u64,
        pg: u32,
    },
    Activate {
        osd: usize,
        run: u64,
        pg: u32,
        interval: u32,
    },
    Unblock {
        link: u64,
        id: u64,
    },
    Send {
        link: u64,
        kind: u16,
        versions: (u16, u16),
        tid: u64,
        front: Vec<u8>,
        data: Vec<u8>,
    },
    Fault,
    Calm,
    Rotate,
    Secrets {
        osd: usize,
    },
    Watches,
}

struct Due {
    at: u64,
    order: u64,
    what: Ev,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The soonest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Due) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// A write that an OSD carried out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Applied {
    pub(crate) at: u64,
    pub(crate) gid: u64,
    pub(crate) tid: u64,
}

/// What OSDs carried out, by object, in order.
pub(crate) type History = BTreeMap<Vec<u8>, Vec<Applied>>;

struct SimClient {
    client: Client,
    sink: Sink,
    work: Box<dyn Work>,
    conns: HashMap<ConnId, u64>,
    batch: OutBatch,
    tick_at: Option<u64>,
    poke_at: Option<u64>,
    /// How late the driver notices that time has passed.
    sluggish: u64,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) clock: u64,
    queue: BinaryHeap<Due>,
    order: u64,
    /// A hash over all that happened.
    pub(crate) trace: u64,
    print: bool,
    pub(crate) events: u64,
    pub(crate) faulty: bool,

    pub(crate) keys: KeyServer,
    user_key: CryptoKey,
    pub(crate) maps: Maps,
    pub(crate) mons: Vec<Mon>,
    pub(crate) osds: Vec<Osd>,
    clients: Vec<Option<SimClient>>,
    pub(crate) links: BTreeMap<u64, Link>,
    last_link: u64,

    pub(crate) objects: BTreeMap<Vec<u8>, Option<Object>>,
    /// The interval of each pg that was activated last.
    pub(crate) active: BTreeMap<u32, u32>,
    /// Outcomes of writes by global id and transaction id (the pg log).
    pub(crate) done: BTreeMap<(u64, u64), Outcome>,
    pub(crate) history: History,
    pub(crate) last_reply: BTreeMap<Vec<u8>, u64>,
    pub(crate) watched: BTreeMap<Vec<u8>, Watched>,
    pub(crate) last_notify: u64,
}

fn client_name() -> AuthName {
    AuthName::client("sim")
}

impl World {
    pub(crate) fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(&mut rng);
        let kind = rng.pick(&[KeyType::Aes, KeyType::Aes256k]);
        let secret = Secret::new(rng.bytes(if kind == KeyType::Aes { 16 } else { 32 }));
        let user_key = CryptoKey::new(kind, UTime::default(), secret).expect("a key");
        let mut users = Keyring::default();
        let caps = [("mon", "allow *"), ("osd", "allow *")];
        users.insert(client_name(), user_key.clone(), &caps);
        let config = KeyServerConfig {
            // Renewed within a run, and longer than any outage: who loses it is another client.
            auth_ttl: Duration::from_secs(600),
            service_ttl: Duration::from_secs(rng.within(15..80)),
            service_cipher: rng.pick(&[KeyType::Aes, KeyType::Aes256k]),
            ..KeyServerConfig::default()
        };
        let now = Now {
            mono: 0,
            wall: WALL,
        };
        let keys = KeyServer::new(config, users, now, &mut |b| rng.fill(b));
        let mons = (0..rng.within(1..4))
            .map(|i| Mon {
                addr: SocketAddr::from(([10, 0, 0, 1 + i as u8], 3300)),
                alive: true,
                epoch: 0,
            })
            .collect();
        let golden: &[u8] = match plan.osds {
            3 => include_bytes!("../../../tests/golden/v20/simple.osdmap"),
            _ => include_bytes!("../../../tests/golden/v20/racks.osdmap"),
        };
        let maps = Maps::new(OsdMap::decode(golden).expect("a golden map"));
        let mut world = World {
            plan,
            rng,
            clock: 0,
            queue: BinaryHeap::new(),
            order: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            print,
            events: 0,
            faulty: true,
            keys,
            user_key,
            maps,
            mons,
            osds: Vec::new(),
            clients: Vec::new(),
            links: BTreeMap::new(),
            last_link: 0,
            objects: BTreeMap::new(),
            active: BTreeMap::new(),
            done: BTreeMap::new(),
            history: BTreeMap::new(),
            last_reply: BTreeMap::new(),
            watched: BTreeMap::new(),
            last_notify: 0,
        };
        world.build();
        world
    }

    /// From a real cluster's map to one with our OSDs, monitors and pool.
    fn build(&mut self) {
        self.maps.per_message = self.rng.pick(&[1, 3, 40]);
        self.osds = (0..self.plan.osds)
            .map(|i| Osd {
                addr: SocketAddr::from(([10, 0, 1, i as u8], 6800)),
                nonce: 1,
                alive: true,
                booted: true,
                run: 0,
                epoch: 0,
                secrets: self.keys.service_secrets(EntityType::OSD),
                pgs: BTreeMap::new(),
                waiting: VecDeque::new(),
            })
            .collect();
        let mut pool = self.maps.latest().pool(POOL).expect("the pool").clone();
        pool.pg_num = self.rng.pick(&[1, 3, 4, 8]);
        pool.pgp_num = pool.pg_num;
        pool.pg_num_target = pool.pg_num;
        pool.pgp_num_target = pool.pg_num;
        pool.pg_num_pending = pool.pg_num;
        pool.size = self.rng.pick(&[1, 2, 3, 3]);
        pool.min_size = self.rng.within(1..u64::from(pool.size) + 1) as u8;
        let up = self.osds.iter().enumerate();
        self.maps.commit(Incremental {
            new_pools: BTreeMap::from([(POOL, pool)]),
            new_up_client: up.map(|(i, o)| (i as i32, o.addrs())).collect(),
            ..Incremental::default()
        });
        let epoch = self.maps.newest();
        // Nobody has a map of before.
        self.maps.trimmed_to = epoch;
        for mon in &mut self.mons {
            mon.epoch = epoch;
        }
        for osd in 0..self.osds.len() {
            self.osds[osd].epoch = epoch;
            self.pgs_change(osd, epoch);
        }
        let first = self.after(0, 2 * self.plan.fault_every);
        self.at(first, Ev::Fault);
        self.at(self.plan.fault_time, Ev::Calm);
        self.at(SECOND, Ev::Rotate);
        self.at(SECOND, Ev::Watches);
    }

    pub(crate) fn add_client(&mut self, work: Box<dyn Work>) {
        let key = self.plan.cephx.then(|| self.user_key.clone());
        let methods = match self.plan.cephx {
            true => vec![Method::Cephx],
            false => vec![Method::None],
        };
        let all = vec![ConMode::Secure, ConMode::Crc];
        let auth = auth::ClientConfig {
            methods,
            mon_modes: all.clone(),
            client_modes: all,
            ..auth::ClientConfig::new(client_name(), key)
        };
        let monitors: Vec<EntityAddrVec> = self.mons.iter().map(Mon::addrs).collect();
        let mon = MonConfig {
            mount_timeout: Duration::ZERO,
            ..MonConfig::new(monitors, "sim".to_owned())
        };
        let mut config = ClientConfig::new(auth, mon);
        config.crc_data = self.plan.crc_data;
        config.objecter = ObjecterConfig {
            max_ops: self.rng.pick(&[4, 32, 1024]),
            max_bytes: self.rng.pick(&[20_000, 100 << 20]),
            idle_close: Some(Duration::from_nanos(IDLE)),
            ..config.objecter
        };
        let mut seed = [0; 32];
        self.rng.fill(&mut seed);
        let client = Client::new(config, Arc::new(MapCache::default()), &seed);
        let index = self.clients.len();
        self.clients.push(Some(SimClient {
            client: client.expect("a good configuration"),
            sink: Sink::default(),
            work,
            conns: HashMap::new(),
            batch: OutBatch::new(),
            tick_at: None,
            poke_at: None,
            sluggish: self.rng.pick(&[1, MS, 50 * MS]),
        }));
        self.drive(index, |c, now, _| c.client.start(now));
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            mono: 1 + self.clock,
            wall: WALL + self.clock,
        }
    }

    pub(crate) fn at(&mut self, at: u64, what: Ev) {
        self.order += 1;
        self.queue.push(Due {
            at: at.max(self.clock),
            order: self.order,
            what,
        });
    }

    /// A moment between `least` and `most` more from now.
    pub(crate) fn after(&mut self, least: u64, most: u64) -> u64 {
        self.clock + least + self.rng.below(most.max(1))
    }

    /// Makes something a part of the trace.
    pub(crate) fn note(&mut self, what: &'static str, a: u64, b: u64) {
        let mut add = |word: u64| {
            self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        };
        what.bytes().for_each(|byte| add(byte.into()));
        [self.clock, a, b].into_iter().for_each(add);
        if self.print {
            eprintln!("{:>16.6} {what} {a} {b}", self.clock as f64 / 1e9);
        }
    }

    /// Runs until `until`, or until nobody has work left.
    pub(crate) fn run(&mut self, until: u64, stop_when_done: bool) {
        while let Some(due) = self.queue.peek() {
            if due.at > until || (stop_when_done && !self.faulty && self.finished()) {
                return;
            }
            let due = self.queue.pop().expect("it was there");
            self.clock = due.at;
            self.events += 1;
            assert!(self.events < MAX_EVENTS, "something goes round in circles");
            self.handle(due.what);
        }
    }

    pub(crate) fn finished(&self) -> bool {
        let done = |c: &Option<SimClient>| c.as_ref().is_some_and(|c| c.work.finished());
        self.clients.iter().all(done)
    }

    fn handle(&mut self, what: Ev) {
        match what {
            Ev::Connect(link) => self.connect(link),
            Ev::Refuse(link) => self.client_closed(link, "refused"),
            Ev::Up(link) => self.deliver_up(link),
            Ev::Down(link) => self.deliver_down(link),
            Ev::GiveUp(link) => self.server_closed(link),
            Ev::Tick { client, at } => {
                let due = |c: &SimClient| c.tick_at == Some(at);
                if self.clients[client].as_ref().is_some_and(due) {
                    self.drive(client, |c, now, _| {
                        c.tick_at = None;
                        c.client.tick(now, &mut c.sink);
                    });
                }
            }
            Ev::Poke { client, at } => {
                let due = |c: &SimClient| c.poke_at == Some(at);
                if self.clients[client].as_ref().is_some_and(due) {
                    self.drive(client, |c, _, _| c.poke_at = None);
                }
            }
            Ev::MonMap { mon, epoch } => self.mon_learns(mon, epoch),
            Ev::OsdMap { osd, run, epoch } => self.osd_learns(osd, run, epoch),
            Ev::MonStart(mon) => self.mon_start(mon),
            Ev::OsdDown { osd, run } => self.osd_down(osd, run),
            Ev::OsdStart { osd, run } => self.osd_start(osd, run),
            Ev::Run { osd, run, pg } => self.run_pg(osd, run, pg),
            Ev::Activate {
                osd,
                run,
                pg,
                interval,
            } => self.activate(osd, run, pg, interval),
            Ev::Unblock { link, id } => self.lift(link, id),
            Ev::Send {
                link,
                kind,
                versions,
                tid,
                front,
                data,
            } => self.send(link, kind, versions, tid, &front, data),
            Ev::Fault => self.fault(),
            Ev::Calm => self.calm(),
            Ev::Rotate => self.rotate(),
            Ev::Secrets { osd } => {
                self.osds[osd].secrets = self.keys.service_secrets(EntityType::OSD);
            }
            Ev::Watches => {
                self.look_at_watches();
                self.at(self.clock + SECOND, Ev::Watches);
            }
        }
    }

    fn rotate(&mut self) {
        let now = self.now();
        let rng = &mut self.rng;
        if self.keys.rotate(now, &mut |b| rng.fill(b)) {
            for osd in 0..self.osds.len() {
                let at = self.after(0, 5 * SECOND);
                self.at(at, Ev::Secrets { osd });
            }
        }
        self.at(self.clock + SECOND, Ev::Rotate);
    }

    // ---- clients ----

    /// Lets something happen to a client, then does what a driver does until it wants no more.
    fn drive(&mut self, index: usize, happens: impl FnOnce(&mut SimClient, Now, &mut Rng)) {
        let now = self.now();
        let mut c = self.clients[index].take().expect("not while it is driven");
        happens(&mut c, now, &mut self.rng);
        loop {
            c.client.flush(now, &mut c.sink);
            while let Some(action) = c.client.poll_action() {
                match action {
                    Action::Connect { conn, addr } => {
                        let link = self.dial(index, conn, addr);
                        c.conns.insert(conn, link);
                    }
                    Action::Close { conn } => {
                        if let Some(link) = c.conns.remove(&conn) {
                            self.hang_up(link);
                        }
                    }
                }
            }
            while let Some(conn) = c.client.poll_dirty() {
                c.client.take_output(conn, &mut c.batch);
                if let Some(&link) = c.conns.get(&conn) {
                    let l = self.links.get_mut(&link).expect("the client has it open");
                    for slice in c.batch.slices().take_while(|_| !l.up.fin) {
                        l.up.bytes.extend(slice);
                    }
                    self.schedule_up(link);
                }
                c.batch.clear();
            }
            while let Some(event) = c.client.poll_event() {
                match event {
                    ClientEvent::Failed(why) => panic!("the client gave up: {why}"),
                    ClientEvent::Blocklisted => panic!("another client was blocklisted"),
                    ClientEvent::Ready => c.work.ready(),
                    ClientEvent::Map { epoch } => self.note("map", index as u64, epoch.into()),
                    _ => {}
                }
            }
            let mut cx = Cx {
                client: &mut c.client,
                sink: &mut c.sink,
                now,
                rng: &mut self.rng,
                faulty: self.faulty,
            };
            let mut news = Vec::new();
            c.work.step(&mut cx, &mut news);
            let idle = news.is_empty() && c.sink.is_empty();
            for (what, a, b) in news {
                self.note(what, a, b);
            }
            if idle {
                break;
            }
        }
        if let Some(deadline) = c.client.next_deadline() {
            // Time in `now` is one ahead of the clock.
            let at = (deadline - 1).max(self.clock) + self.rng.below(c.sluggish);
            if c.tick_at.is_none_or(|t| t > at) {
                c.tick_at = Some(at);
                self.at(at, Ev::Tick { client: index, at });
            }
        }
        if let Some(wake) = c.work.next_wake(self.clock) {
            let at = wake.max(self.clock + 1);
            if c.poke_at.is_none_or(|t| t > at) {
                c.poke_at = Some(at);
                self.at(at, Ev::Poke { client: index, at });
            }
        }
        self.clients[index] = Some(c);
    }

    // ---- network ----

    fn dial(&mut self, client: usize, conn: ConnId, addr: SocketAddr) -> u64 {
        self.last_link += 1;
        let link = self.last_link;
        let mon = self.mons.iter().position(|m| m.addr == addr);
        let osd = self.osds.iter().position(|o| o.addr == addr);
        let to = mon.map(Server::Mon).or(osd.map(Server::Osd));
        let reach = match to {
            Some(Server::Mon(i)) => self.mons[i].alive,
            Some(Server::Osd(i)) => self.osds[i].alive,
            None => false,
        };
        let latency = self.after(self.plan.latency, self.plan.jitter) - self.clock;
        self.note("dial", client as u64, link);
        self.links.insert(
            link,
            Link {
                client,
                conn,
                to: to.unwrap_or(Server::Osd(usize::MAX)),
                peer: None,
                up: Direction::default(),
                down: Direction::default(),
                client_open: true,
                stalled: false,
                latency,
                sub: None,
                session: Session::default(),
            },
        );
        let soon = self.after(latency, latency);
        if self.faulty && self.rng.one_in(40) {
            // The kernel gives up when nobody answers.
            let late = self.after(5 * SECOND, 20 * SECOND);
            self.at(late, Ev::Refuse(link));
        } else if !reach || (self.faulty && self.rng.one_in(30)) {
            self.at(soon, Ev::Refuse(link));
        } else {
            self.at(soon, Ev::Connect(link));
        }
        link
    }

    fn connect(&mut self, link: u64) {
        let now = self.now();
        let Some(l) = self.links.get(&link).filter(|l| l.client_open) else {
            return self.tidy(link);
        };
        let policy = |modes: &[ConMode]| Policy {
            methods: vec![if self.plan.cephx {
                Method::Cephx
            } else {
                Method::None
            }],
            modes: modes.to_vec(),
        };
        let (me, addrs, gate, alive) = match l.to {
            Server::Mon(i) => {
                let mon = &self.mons[i];
                let gate = Gate::Mon(MonAuth::new(policy(&self.plan.mon_modes)));
                let me = EntityName::new(EntityType::MON, i as i64);
                (me, mon.addrs(), gate, mon.alive)
            }
            Server::Osd(i) => {
                let osd = &self.osds[i];
                let gate = Gate::Osd(ServiceAuth::new(policy(&self.plan.osd_modes)));
                let me = EntityName::new(EntityType::OSD, i as i64);
                (me, osd.addrs(), gate, osd.alive)
            }
        };
        if !alive {
            return self.client_closed(link, "refused");
        }
        let port = 1024 + (link % 60_000) as u16;
        let from = SocketAddr::from(([10, 9, 0, l.client as u8], port));
        let from = EntityAddr::msgr2(from, 0);
        let crc_data = self.plan.crc_data;
        let peer = Peer::new(me, addrs, from, crc_data, gate, now);
        let (client, conn) = (l.client, l.conn);
        self.links.get_mut(&link).expect("looked at").peer = Some(peer);
        self.pump(link);
        self.drive(client, |c, now, _| c.client.connected(conn, now));
    }

    /// Sends a server's message.
    pub(crate) fn send(
        &mut self,
        link: u64,
        kind: u16,
        (version, compat): (u16, u16),
        tid: u64,
        front: &[u8],
        data: Vec<u8>,
    ) {
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        let Some(peer) = &mut l.peer else { return };
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(kind, version, compat)
        };
        let write = |out: &mut Vec<u8>| out.extend_from_slice(front);
        let data = [Payload::from(data)];
        peer.conn
            .send(&header, write, &[], &data)
            .expect("an open session");
        self.pump(link);
    }

    /// Puts on the wire what a server has to send.
    fn pump(&mut self, link: u64) {
        if let Some(l) = self.links.get_mut(&link)
            && let Some(peer) = &mut l.peer
        {
            peer.output((!l.down.fin).then_some(&mut l.down.bytes));
            self.schedule_down(link);
        }
    }

    fn schedule_up(&mut self, link: u64) {
        let latency = self.links[&link].latency;
        self.schedule_up_in(link, latency);
    }

    fn schedule_up_in(&mut self, link: u64, latency: u64) {
        let l = self.links.get_mut(&link).expect("it is there");
        let wanted = !l.up.bytes.is_empty() || l.up.fin;
        if wanted && !l.up.scheduled && !l.stalled {
            l.up.scheduled = true;
            let at = self.after(latency, latency);
            self.at(at, Ev::Up(link));
        }
    }

    fn schedule_down(&mut self, link: u64) {
        let latency = self.links[&link].latency;
        self.schedule_down_in(link, latency);
    }

    fn schedule_down_in(&mut self, link: u64, latency: u64) {
        let l = self.links.get_mut(&link).expect("it is there");
        let wanted = !l.down.bytes.is_empty() || l.down.fin;
        if wanted && !l.down.scheduled && !l.stalled {
            l.down.scheduled = true;
            let at = self.after(latency, latency);
            self.at(at, Ev::Down(link));
        }
    }

    fn chunk(&mut self) -> usize {
        1 + self.rng.below(self.plan.chunk) as usize
    }

    fn deliver_up(&mut self, link: u64) {
        let n = self.chunk();
        let now = self.now();
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        l.up.scheduled = false;
        if l.stalled {
            return;
        }
        if l.up.bytes.is_empty() {
            if l.up.fin {
                self.server_closed(link);
            }
            return;
        }
        let n = n.min(l.up.bytes.len());
        let bytes: Vec<u8> = l.up.bytes.drain(..n).collect();
        let to = l.to;
        let mut received = Vec::new();
        let taken = match &mut l.peer {
            None => Ok(()),
            Some(peer) => {
                let secrets = match to {
                    Server::Osd(i) => Some(&self.osds[i].secrets),
                    Server::Mon(_) => None,
                };
                let mut judge = Judge {
                    keys: &mut self.keys,
                    secrets,
                    rng: &mut self.rng,
                    now,
                };
                peer.take(&bytes, &mut judge, &mut received)
            }
        };
        for m in received {
            if self.links.get(&link).is_none_or(|l| l.peer.is_none()) {
                break;
            }
            match to {
                Server::Mon(i) => self.mon_message(i, link, &m),
                Server::Osd(i) => self.osd_message(i, link, &m),
            }
        }
        if let Err(why) = taken {
            panic!("a server rejects what the client sent: {why}");
        }
        if self.links.contains_key(&link) {
            self.pump(link);
            self.schedule_up_in(link, NEXT_CHUNK);
        }
    }

    fn deliver_down(&mut self, link: u64) {
        let n = self.chunk();
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        l.down.scheduled = false;
        if l.stalled {
            return;
        }
        if l.down.bytes.is_empty() {
            if l.down.fin {
                self.client_closed(link, "reset");
            }
            return;
        }
        let n = n.min(l.down.bytes.len());
        let bytes: Vec<u8> = l.down.bytes.drain(..n).collect();
        let (client, conn, open) = (l.client, l.conn, l.client_open);
        self.note("down", link, bytes.len() as u64);
        if open {
            self.drive(client, |c, now, _| {
                c.client.received(conn, &bytes, now, &mut c.sink);
            });
        }
        if self.links.contains_key(&link) {
            self.schedule_down_in(link, NEXT_CHUNK);
        }
    }

    /// The client's end is closed by the client. What it has sent may or may not arrive.
    fn hang_up(&mut self, link: u64) {
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        l.client_open = false;
        l.down.bytes.clear();
        let keep = self.rng.index(l.up.bytes.len() + 1);
        if self.rng.one_in(2) {
            l.up.bytes.truncate(keep);
        }
        l.up.fin = true;
        if l.stalled {
            let at = self.after(SECOND, 40 * SECOND);
            self.at(at, Ev::GiveUp(link));
        } else {
            self.schedule_up(link);
        }
        self.tidy(link);
    }

    /// The client hears that its socket is gone.
    fn client_closed(&mut self, link: u64, why: &'static str) {
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        if std::mem::replace(&mut l.client_open, false) {
            let (client, conn) = (l.client, l.conn);
            self.note(why, link, 0);
            self.drive(client, |c, now, _| {
                c.conns.remove(&conn);
                c.client.closed(conn, why, now, &mut c.sink);
            });
        }
        self.tidy(link);
    }

    /// The server's end is gone.
    pub(crate) fn server_closed(&mut self, link: u64) {
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        if l.peer.take().is_some() {
            self.watchers_lost(link);
        }
        self.tidy(link);
    }

    fn tidy(&mut self, link: u64) {
        let gone = |l: &Link| !l.client_open && l.peer.is_none();
        if self.links.get(&link).is_some_and(gone) {
            self.links.remove(&link);
        }
    }

    /// A connection breaks: each side gets some of what was on its way, then an error, or never
    /// learns of it.
    pub(crate) fn cut(&mut self, link: u64) {
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        let keep = self.rng.index(l.up.bytes.len() + 1);
        l.up.bytes.truncate(keep);
        l.up.fin = true;
        let keep = self.rng.index(l.down.bytes.len() + 1);
        l.down.bytes.truncate(keep);
        l.down.fin = true;
        if l.stalled {
            let at = self.after(SECOND, 40 * SECOND);
            self.at(at, Ev::GiveUp(link));
        } else {
            self.schedule_up(link);
            self.schedule_down(link);
        }
    }

    /// All connections of a process die with it.
    pub(crate) fn cut_all(&mut self, server: Server) {
        let its = |l: &Link| l.to == server;
        let links: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, l)| its(l))
            .map(|(&id, _)| id)
            .collect();
        for link in links {
            self.server_closed(link);
            self.cut(link);
        }
    }

    // ---- the end ----

    /// Checks what can only be told when all is over; returns how many requests there were.
    pub(crate) fn check(&mut self) -> u64 {
        assert!(self.finished(), "not done: {}", self.unfinished());
        // Sessions without work are closed; that with a monitor stays.
        self.run(self.clock + 2 * IDLE + 60 * SECOND, false);
        let mut total = 0;
        for (i, c) in self.clients.iter().enumerate() {
            let c = c.as_ref().expect("nobody is driven");
            let open: Vec<Server> = self
                .links
                .values()
                .filter(|l| l.client == i && l.client_open)
                .map(|l| l.to)
                .collect();
            assert!(
                matches!(open[..], [Server::Mon(_)]),
                "client {i} has connections open: {open:?}"
            );
            total += c.work.check(&self.history, c.client.global_id());
        }
        for i in 0..self.clients.len() {
            self.drive(i, |c, _, _| c.client.close(&mut c.sink));
        }
        let closed = |l: &Link| !l.client_open;
        assert!(
            self.links.values().all(closed),
            "connections outlive their client"
        );
        total
    }

    fn unfinished(&self) -> String {
        let all = self.clients.iter().flatten();
        let each: Vec<String> = all
            .filter(|c| !c.work.finished())
            .map(|c| {
                let (s, epoch) = (c.client.stats(), c.client.map().map_or(0, |m| m.epoch()));
                format!(
                    "{} (map {epoch}, {s:?}, {:?})",
                    c.work.describe(),
                    c.client.trouble()
                )
            })
            .collect();
        format!("{} at map {}", each.join("; "), self.maps.newest())
    }
}
