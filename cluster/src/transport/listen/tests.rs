use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use iothread::IoThread;

use super::*;
use crate::auth::server::{KeyServer, KeyServerConfig, MonAuth, Policy as AuthPolicy};
use crate::auth::{self, AuthName, ConMode, CryptoKey, KeyType, Keyring, Method, Secret};
use crate::codec::{AddrType, EntityAddrVec, EntityName, EntityType, Put, Reader, UTime};
use crate::msgr::{Connection, Event, MsgHeader, OutBatch, Policy, Ready};
use crate::payload::Payload;

/// The message comes back.
const ECHO: u16 = 1000;
/// The answer has as many bytes as the front says.
const BIG: u16 = 1001;
/// The answer is the last thing that is sent.
const CLOSE: u16 = 1002;
/// No answer.
const COUNT: u16 = 1003;

/// The answer comes some turns later.
const LATER: u16 = 1004;
/// Most of these at a time.
const MOST: usize = 8;

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Opened(Link, String),
    Closed(Link),
    Message(Link, u64),
}

/// A monitor that knows how to authenticate and nothing else.
struct Echo {
    addr: SocketAddr,
    policy: Policy,
    handshake: Duration,
    keys: KeyServer,
    auth: AuthPolicy,
    pending: std::collections::HashMap<Link, MonAuth>,
    seen: mpsc::Sender<Seen>,
    /// To be answered, and turns that have passed meanwhile.
    later: Vec<(Link, MsgHeader)>,
    turns: u32,
}

fn draw(bytes: &mut [u8]) {
    crate::random_bytes(bytes).unwrap();
}

impl Service for Echo {
    fn config(&mut self) -> msgr::Config {
        let me = EntityName::new(EntityType::MON, 0);
        let addrs = EntityAddrVec(vec![EntityAddr::msgr2(self.addr, 0)]);
        let mut config = msgr::Config::server(me, addrs);
        config.policy = self.policy;
        config.handshake_timeout = self.handshake;
        config
    }

    fn authenticate(&mut self, link: Link, ask: Ask<'_>, now: Now) -> Step {
        let auth = self.auth.clone();
        let side = self.pending.entry(link);
        let side = side.or_insert_with(|| MonAuth::new(auth));
        match ask {
            Ask::Request {
                method,
                modes,
                payload,
            } => side.request(&mut self.keys, method, modes, payload, &mut draw),
            Ask::More(payload) => side.more(&mut self.keys, payload, now, &mut draw),
        }
    }

    fn opened(&mut self, link: Link, peer: Peer, _: Now, _: &mut Outbox) {
        let _ = self.seen.send(Seen::Opened(link, peer.auth.to_string()));
    }

    fn closed(&mut self, link: Link, _: Now, _: &mut Outbox) {
        assert!(self.pending.remove(&link).is_some());
        let _ = self.seen.send(Seen::Closed(link));
    }

    fn message(&mut self, link: Link, m: &Message<'_>, _: Now, out: &mut Outbox) {
        match m.header.kind {
            ECHO => {
                let data = Payload::from(m.data.to_vec());
                out.send(link, m.header, |b| b.extend_from_slice(m.front), [data]);
            }
            BIG => {
                let len = Reader::new(m.front).u32().unwrap() as usize;
                let data = Payload::new(Rc::new(&ZEROS[..]), 0..len);
                out.send(link, m.header, |_| (), [data]);
            }
            CLOSE => {
                out.send(link, m.header, |_| (), []);
                out.close(link);
            }
            LATER => {
                assert!(self.later.len() < MOST, "more than it is ready for");
                self.later.push((link, m.header));
            }
            _ => {}
        }
        let _ = self.seen.send(Seen::Message(link, m.header.tid));
    }

    fn busy(&self, _: Link) -> bool {
        self.later.len() >= MOST
    }

    fn turn(&mut self, _: Now, out: &mut Outbox) {
        self.turns += 1;
        if self.turns.is_multiple_of(3) {
            for (link, header) in self.later.drain(..) {
                out.send(link, header, |_| (), []);
            }
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        None
    }

    fn tick(&mut self, _: Now, _: &mut Outbox) {}
}

struct Server {
    thread: Option<IoThread<()>>,
    addr: SocketAddr,
    seen: mpsc::Receiver<Seen>,
    stop: mpsc::Sender<()>,
}

struct Setup {
    method: Method,
    policy: Policy,
    limits: Limits,
    handshake: Duration,
    recv_bufs: u16,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            method: Method::None,
            policy: Policy {
                register_lossy: true,
                ..Policy::STATELESS_SERVER
            },
            limits: Limits::default(),
            handshake: Duration::from_secs(10),
            recv_bufs: 16,
        }
    }
}

fn admin() -> (AuthName, CryptoKey) {
    let key = CryptoKey::new(KeyType::Aes, UTime::default(), Secret::new(vec![7; 16]));
    ("client.admin".parse().unwrap(), key.unwrap())
}

fn wall() -> Now {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Now {
        mono: 1,
        wall: wall.unwrap().as_nanos() as u64,
    }
}

impl Server {
    fn start(setup: Setup) -> Server {
        let (tell_addr, addr) = mpsc::channel();
        let (tell_seen, seen) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let config = iothread::Config {
            recv_bufs: setup.recv_bufs,
            ..iothread::Config::default()
        };
        let main = move || async move {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let addr = listener.local_addr().unwrap();
            let (name, key) = admin();
            let mut users = Keyring::default();
            users.insert(name, key, &[("mon", "allow *")]);
            let config = KeyServerConfig::default();
            let service = Echo {
                addr,
                policy: setup.policy,
                handshake: setup.handshake,
                keys: KeyServer::new(config, users, wall(), &mut draw),
                auth: AuthPolicy {
                    methods: vec![setup.method],
                    modes: vec![ConMode::Crc, ConMode::Secure],
                },
                pending: Default::default(),
                seen: tell_seen,
                later: Vec::new(),
                turns: 0,
            };
            let acceptor = Acceptor::new(service, setup.limits);
            acceptor.listen(listener);
            tell_addr.send(addr).unwrap();
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                iothread::sleep(Duration::from_millis(5)).await;
            }
            drop(acceptor);
            iothread::yield_now().await;
        };
        let thread = IoThread::spawn(config, main).unwrap();
        Server {
            thread: Some(thread),
            addr: addr.recv().unwrap(),
            seen,
            stop,
        }
    }

    fn wait(&self, what: impl Fn(&Seen) -> bool) -> Seen {
        loop {
            let seen = self.seen.recv_timeout(Duration::from_secs(10)).unwrap();
            if what(&seen) {
                return seen;
            }
        }
    }

    fn opened(&self) -> Link {
        match self.wait(|s| matches!(s, Seen::Opened(..))) {
            Seen::Opened(link, _) => link,
            _ => unreachable!(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// A client on a blocking socket.
struct Dial {
    addr: SocketAddr,
    socket: TcpStream,
    conn: Connection,
    auth: auth::Client,
    handshake: Option<auth::MonHandshake>,
    batch: OutBatch,
    began: Instant,
    got: Vec<(u64, usize)>,
    ready: Option<Ready>,
}

impl Dial {
    fn try_new(
        addr: SocketAddr,
        nonce: u32,
        policy: Policy,
        mode: ConMode,
    ) -> Result<Dial, String> {
        Dial::with_number(addr, nonce, policy, mode, 1)
    }

    fn with_number(
        addr: SocketAddr,
        nonce: u32,
        policy: Policy,
        mode: ConMode,
        global_seq: u64,
    ) -> Result<Dial, String> {
        let (name, key) = admin();
        let mut config = auth::ClientConfig::new(name, Some(key));
        config.mon_modes = vec![mode];
        let me = EntityName::new(EntityType::CLIENT, -1);
        let mine = EntityAddr {
            kind: AddrType::ANY,
            nonce,
            addr: Some("127.0.0.1:0".parse().unwrap()),
        };
        let mut msgr = msgr::Config::client(me, EntityAddrVec(vec![mine]));
        msgr.policy = policy;
        msgr.cookie_seed = (u64::from(nonce) << 32) + global_seq;
        msgr.global_seq = global_seq;
        let peer = EntityAddr::msgr2(addr, 0);
        let mut dial = Dial {
            addr,
            socket: connect(addr),
            conn: Connection::client(msgr, peer, EntityType::MON),
            auth: auth::Client::new(config).unwrap(),
            handshake: None,
            batch: OutBatch::new(),
            began: Instant::now(),
            got: Vec::new(),
            ready: None,
        };
        dial.conn.start(dial.now());
        dial.until(|d| d.ready.is_some())?;
        Ok(dial)
    }

    fn new(server: &Server, nonce: u32) -> Dial {
        let policy = Policy::LOSSY_CLIENT;
        Dial::try_new(server.addr, nonce, policy, ConMode::Crc).unwrap()
    }

    /// The stream breaks, and the session goes on over another.
    fn again(&mut self, global_seq: u64) {
        self.socket = connect(self.addr);
        self.ready = None;
        self.conn.reconnect(global_seq, self.now()).unwrap();
        self.until(|d| d.ready.is_some()).unwrap();
    }

    fn now(&self) -> Now {
        Now {
            mono: 1 + self.began.elapsed().as_nanos() as u64,
            ..wall()
        }
    }

    fn send(&mut self, kind: u16, tid: u64, front: u32, data: &[u8]) {
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(kind, 1, 1)
        };
        let data = Payload::from(data.to_vec());
        let front = |b: &mut Vec<u8>| b.put_u32(front);
        self.conn.send(&header, front, &[], &[data]).unwrap();
    }

    fn flush(&mut self) -> Result<(), String> {
        self.conn.take_output(&mut self.batch);
        let sent = self
            .batch
            .slices()
            .try_for_each(|s| self.socket.write_all(s));
        self.batch.clear();
        sent.map_err(|e| e.to_string())
    }

    fn until(&mut self, done: impl Fn(&Dial) -> bool) -> Result<(), String> {
        let mut buf = vec![0; 256 << 10];
        while !done(self) {
            self.flush()?;
            let n = self.socket.read(&mut buf).map_err(|e| e.to_string())?;
            if n == 0 {
                return Err("hung up".to_owned());
            }
            self.take(&buf[..n])?;
        }
        self.flush()
    }

    fn take(&mut self, mut input: &[u8]) -> Result<(), String> {
        loop {
            let now = self.now();
            let event = self.conn.next_event(&mut input, now);
            let Some(event) = event.map_err(|e| e.to_string())? else {
                return Ok(());
            };
            let done = match event {
                Event::AuthStart => {
                    let hs = self.auth.mon_handshake(&[3; 40]);
                    let request = hs.request();
                    self.handshake = Some(hs);
                    let modes = request.raw_modes();
                    let method = request.method.raw();
                    self.conn.auth_request(method, &modes, &request.payload)
                }
                Event::AuthBadMethod(bad) => {
                    let hs = self.handshake.as_mut().unwrap();
                    let (methods, modes) = (&bad.allowed_methods, &bad.allowed_modes);
                    let next = hs.bad_method(bad.method, bad.result, methods, modes);
                    let next = next.map_err(|e| e.to_string())?;
                    let modes = next.raw_modes();
                    self.conn
                        .auth_request(next.method.raw(), &modes, &next.payload)
                }
                Event::AuthMore(payload) => {
                    let hs = self.handshake.as_mut().unwrap();
                    let answer = hs.more(payload, now).map_err(|e| e.to_string())?;
                    self.conn.auth_more(&answer)
                }
                Event::AuthDone {
                    global_id,
                    con_mode,
                    payload,
                } => {
                    let hs = self.handshake.as_mut().unwrap();
                    let secrets = hs.done(global_id, con_mode, payload, now);
                    let secrets = secrets.map_err(|e| e.to_string())?;
                    let (key, secret) = (&secrets.session_key, &secrets.connection_secret);
                    self.conn.auth_finish(key.as_bytes(), secret.as_bytes())
                }
                Event::Ready(ready) => {
                    self.ready = Some(ready);
                    Ok(())
                }
                Event::Message(m) => {
                    self.got.push((m.header.tid, m.data.len()));
                    Ok(())
                }
                _ => Ok(()),
            };
            done.map_err(|e| e.to_string())?;
        }
    }

    /// Sends a message and waits for its answer.
    fn call(&mut self, kind: u16, tid: u64, front: u32, data: &[u8]) -> Result<usize, String> {
        self.send(kind, tid, front, data);
        let had = self.got.len();
        self.until(|d| d.got.len() > had)?;
        let (got, len) = self.got[had];
        assert_eq!(got, tid);
        Ok(len)
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(addr).unwrap();
    let limit = Some(Duration::from_secs(10));
    socket.set_read_timeout(limit).unwrap();
    socket.set_write_timeout(limit).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

#[test]
fn messages_go_both_ways_in_every_mode() {
    for (method, mode) in [
        (Method::None, ConMode::Crc),
        (Method::Cephx, ConMode::Crc),
        (Method::Cephx, ConMode::Secure),
    ] {
        let server = Server::start(Setup {
            method,
            ..Setup::default()
        });
        let policy = Policy::LOSSY_CLIENT;
        let mut dial = Dial::try_new(server.addr, 1, policy, mode).unwrap();
        assert_eq!(dial.conn.is_secure(), mode == ConMode::Secure);
        let seen = server.wait(|s| matches!(s, Seen::Opened(..)));
        assert!(matches!(&seen, Seen::Opened(_, name) if name == "client.admin"));
        for (tid, len) in [(1, 0), (2, 4096), (3, 300_000)] {
            assert_eq!(dial.call(ECHO, tid, 0, &vec![5; len]).unwrap(), len);
        }
        for tid in 10..1000 {
            dial.send(ECHO, tid, 0, &[1; 4096]);
        }
        dial.until(|d| d.got.len() == 3 + 990).unwrap();
        assert!(dial.got[3..].iter().map(|g| g.0).eq(10..1000));
    }
}

#[test]
fn noise_and_silence_cost_their_own_connection_only() {
    let server = Server::start(Setup {
        handshake: Duration::from_millis(300),
        ..Setup::default()
    });
    let mut good = Dial::new(&server, 1);
    let mut silent = connect(server.addr);
    let mut banner = connect(server.addr);
    banner.write_all(b"ceph v2\n").unwrap();
    let mut noise = connect(server.addr);
    noise.write_all(&[0x55; 100]).unwrap();
    let mut rest = Vec::new();
    // It is told apart by its first bytes, long before any timeout.
    let _ = noise.read_to_end(&mut rest);
    assert_eq!(good.call(ECHO, 1, 0, b"x").unwrap(), 1);
    for socket in [&mut silent, &mut banner] {
        let _ = socket.read_to_end(&mut rest);
    }
    assert_eq!(good.call(ECHO, 2, 0, b"x").unwrap(), 1);

    // An open session that turns to noise.
    let mut other = Dial::new(&server, 2);
    server.opened();
    let link = server.opened();
    other.socket.write_all(&[0xff; 64]).unwrap();
    server.wait(|s| *s == Seen::Closed(link));
    assert_eq!(good.call(ECHO, 3, 0, b"x").unwrap(), 1);
}

#[test]
fn handshakes_that_hang_keep_nobody_out() {
    let server = Server::start(Setup {
        limits: Limits {
            half_open: 4,
            ..Limits::default()
        },
        ..Setup::default()
    });
    let mut hanging: Vec<TcpStream> = (0..20).map(|_| connect(server.addr)).collect();
    let mut dial = Dial::new(&server, 1);
    assert_eq!(dial.call(ECHO, 1, 0, b"x").unwrap(), 1);
    // The oldest were let go.
    let ended = hanging[..16].iter_mut().all(|s| {
        let mut rest = Vec::new();
        s.read_to_end(&mut rest).is_ok()
    });
    assert!(ended);
    hanging[19]
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let mut rest = Vec::new();
    let still = hanging[19].read_to_end(&mut rest).unwrap_err();
    assert_eq!(still.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_server_refuses_more_links_than_it_may_have() {
    let server = Server::start(Setup {
        limits: Limits {
            links: 3,
            ..Limits::default()
        },
        ..Setup::default()
    });
    let mut dials: Vec<Dial> = (1..=3).map(|n| Dial::new(&server, n)).collect();
    let policy = Policy::LOSSY_CLIENT;
    assert!(Dial::try_new(server.addr, 9, policy, ConMode::Crc).is_err());
    for dial in &mut dials {
        assert_eq!(dial.call(ECHO, 1, 0, b"x").unwrap(), 1);
    }
    drop(dials.pop());
    server.wait(|s| matches!(s, Seen::Closed(_)));
    Dial::new(&server, 9);
}

#[test]
fn many_connections_are_served_side_by_side() {
    let server = Server::start(Setup::default());
    let mut dials: Vec<Dial> = (1..=200).map(|n| Dial::new(&server, n)).collect();
    for round in 0..5 {
        for dial in &mut dials {
            dial.send(ECHO, round, 0, &[9; 5000]);
            dial.flush().unwrap();
        }
        for dial in &mut dials {
            dial.until(|d| d.got.len() > round as usize).unwrap();
        }
    }
}

#[test]
fn a_peer_that_does_not_read_is_not_read_from() {
    let server = Server::start(Setup {
        limits: Limits {
            output: 4 << 20,
            ..Limits::default()
        },
        recv_bufs: 8,
        ..Setup::default()
    });
    let mut good = Dial::new(&server, 1);
    let slow: Vec<Dial> = (2..6)
        .map(|nonce| {
            let mut dial = Dial::new(&server, nonce);
            // Answers of 1 GiB in all.
            for tid in 0..256 {
                dial.send(BIG, tid, 1 << 20, &[]);
            }
            dial.flush().unwrap();
            dial
        })
        .collect();
    // Others are served as before, though there are fewer receive buffers than what waits fills.
    for tid in 0..200 {
        assert_eq!(good.call(ECHO, tid, 0, &[1; 4096]).unwrap(), 4096);
    }
    let mut handled = [0; 6];
    let mut links = Vec::new();
    for seen in server.seen.try_iter() {
        match seen {
            Seen::Opened(link, _) => links.push(link),
            Seen::Message(link, _) => {
                handled[links.iter().position(|l| *l == link).unwrap()] += 1;
            }
            Seen::Closed(_) => panic!("nobody has left"),
        }
    }
    assert_eq!(handled[0], 200);
    // What the socket takes, what is allowed to wait, and one message more.
    assert!(
        handled[1..5].iter().all(|n| (4..32).contains(n)),
        "{handled:?}"
    );
    // Who reads at last gets everything.
    for mut dial in slow {
        dial.until(|d| d.got.len() == 256).unwrap();
        assert!(dial.got.iter().all(|g| g.1 == 1 << 20));
    }
}

#[test]
fn no_more_is_read_than_the_service_is_ready_for() {
    let server = Server::start(Setup::default());
    let mut dial = Dial::new(&server, 1);
    for tid in 1..=100 {
        dial.send(LATER, tid, 0, b"");
    }
    dial.until(|d| d.got.len() == 100).unwrap();
    assert!(dial.got.iter().map(|(tid, _)| *tid).eq(1..=100));
}

#[test]
fn a_peer_that_takes_nothing_unasked_is_given_up() {
    let server = Server::start(Setup {
        limits: Limits {
            output: 64 << 20,
            output_max: 8 << 20,
            ..Limits::default()
        },
        ..Setup::default()
    });
    let mut dial = Dial::new(&server, 1);
    let link = server.opened();
    for tid in 0..64 {
        dial.send(BIG, tid, 1 << 20, &[]);
    }
    dial.flush().unwrap();
    server.wait(|s| *s == Seen::Closed(link));
}

#[test]
fn a_silent_peer_is_given_up() {
    let server = Server::start(Setup {
        limits: Limits {
            idle: Duration::from_millis(1200),
            ..Limits::default()
        },
        ..Setup::default()
    });
    let _quiet = Dial::new(&server, 1);
    let quiet = server.opened();
    let mut busy = Dial::new(&server, 2);
    let started = Instant::now();
    let mut tid = 0;
    loop {
        tid += 1;
        busy.call(ECHO, tid, 0, &[]).unwrap();
        if server.seen.try_iter().any(|s| s == Seen::Closed(quiet)) {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(started.elapsed() > Duration::from_millis(1000));
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    let server = Server::start(Setup::default());
    let mut dial = Dial::new(&server, 1);
    dial.send(BIG, 1, 1 << 20, &[]);
    dial.send(CLOSE, 2, 0, &[]);
    dial.send(ECHO, 3, 0, &[]);
    let end = dial.until(|_| false);
    assert_eq!(end, Err("hung up".to_owned()));
    assert_eq!(dial.got, [(1, 1 << 20), (2, 0)]);
    drop(dial);
    let closed = server.wait(|s| matches!(s, Seen::Closed(_) | Seen::Message(_, 3)));
    assert!(matches!(closed, Seen::Closed(_)));
}

#[test]
fn a_lossy_peer_that_connects_anew_replaces_itself() {
    let server = Server::start(Setup::default());
    let mut old = Dial::new(&server, 7);
    let first = server.opened();
    let mut new = Dial::new(&server, 7);
    let next = server.wait(|s| !matches!(s, Seen::Message(..)));
    assert_eq!(next, Seen::Closed(first));
    assert_eq!(new.call(ECHO, 1, 0, b"x").unwrap(), 1);
    assert!(old.call(ECHO, 1, 0, b"x").is_err());
}

#[test]
fn a_lossless_session_outlives_its_stream() {
    let server = Server::start(Setup {
        policy: Policy::STATEFUL_SERVER,
        ..Setup::default()
    });
    let policy = Policy::LOSSLESS_CLIENT;
    let mut dial = Dial::try_new(server.addr, 1, policy, ConMode::Crc).unwrap();
    let link = server.opened();
    assert_eq!(dial.call(ECHO, 1, 0, b"x").unwrap(), 1);
    // Once the server has noticed that the stream is gone, once before it could.
    for round in 0..2 {
        let old = dial.socket.try_clone().unwrap();
        if round == 0 {
            dial.socket.shutdown(std::net::Shutdown::Both).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        dial.conn.lost();
        dial.send(ECHO, 10 + round, 0, b"late");
        dial.again(2 + round);
        assert!(dial.ready.unwrap().resumed);
        dial.until(|d| d.got.last() == Some(&(10 + round, 4)))
            .unwrap();
        drop(old);
    }
    let seen: Vec<Seen> = server.seen.try_iter().collect();
    assert!(seen.contains(&Seen::Message(link, 10)), "{seen:?}");
    // The link of the new stream is closed in favour of the session's own; that one lives.
    assert!(!seen.contains(&Seen::Closed(link)), "{seen:?}");
    drop(dial);

    // A client that has restarted, and has connected to others meanwhile, gets a new session in
    // place of the old one.
    let mut dial = Dial::with_number(server.addr, 1, policy, ConMode::Crc, 9).unwrap();
    server.wait(|s| *s == Seen::Closed(link));
    let new = server.opened();
    assert_ne!(new, link);
    dial.send(COUNT, 5, 0, &[]);
    dial.flush().unwrap();
    server.wait(|s| *s == Seen::Message(new, 5));
}

#[test]
fn a_client_without_the_key_is_refused_and_told_why() {
    let server = Server::start(Setup {
        method: Method::Cephx,
        ..Setup::default()
    });
    let bytes = server.addr;
    let policy = Policy::LOSSY_CLIENT;
    let mut config = auth::ClientConfig::new("client.other".parse().unwrap(), Some(admin().1));
    config.mon_modes = vec![ConMode::Crc];
    let mut dial = Dial::try_new(bytes, 1, policy, ConMode::Crc).unwrap();
    dial.auth = auth::Client::new(config).unwrap();
    dial.conn.lost();
    let me = EntityName::new(EntityType::CLIENT, -1);
    let mine = dial.conn.my_addrs().clone();
    let msgr = msgr::Config::client(me, mine);
    dial.conn = Connection::client(msgr, EntityAddr::msgr2(bytes, 0), EntityType::MON);
    dial.socket = connect(bytes);
    dial.conn.start(dial.now());
    dial.ready = None;
    let why = dial.until(|d| d.ready.is_some()).unwrap_err();
    assert!(why.contains("client.other"), "{why}");
}
