//! The answering side: the single-node server's listener with a service that answers and counts.

use std::net::SocketAddr;
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use cluster::auth::server::{KeyServer, KeyServerConfig, MonAuth, Policy, Step};
use cluster::auth::{AuthName, ConMode, CryptoKey, KeyType, Keyring, Method, Secret};
use cluster::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now, UTime};
use cluster::msgr::{self, Message, MsgHeader};
use cluster::osd::{Link, Outbox, Peer};
use cluster::transport::listen::{Acceptor, Ask, Limits, Service};
use iothread::{IoThread, Listener, Signal};

use super::{Costs, Mode, Plan, cpu_time, this_thread};

/// Kind of the answer, of no meaning to Ceph.
const ANSWER: u16 = 1001;

pub(super) fn user() -> AuthName {
    "client.bench".parse().expect("a name")
}

/// The secret of both sides: this is about speed.
pub(super) fn key() -> CryptoKey {
    let secret = Secret::new(vec![7; KeyType::Aes.secret_len()]);
    CryptoKey::new(KeyType::Aes, UTime::default(), secret).expect("16 bytes are a key")
}

fn entropy(bytes: &mut [u8]) {
    // The caller has drawn once before; a system that can do it then can do it now.
    cluster::random_seed(bytes).expect("random numbers");
}

struct Answers {
    addr: SocketAddr,
    crc: bool,
    keys: KeyServer,
    policy: Policy,
    auth: Option<(Link, MonAuth)>,
}

impl Service for Answers {
    fn config(&mut self) -> msgr::Config {
        let me = EntityName::new(EntityType::MON, 0);
        let addrs = EntityAddrVec(vec![EntityAddr::msgr2(self.addr, 0)]);
        let mut config = msgr::Config::server(me, addrs);
        config.crc_data = self.crc;
        config
    }

    fn authenticate(&mut self, link: Link, ask: Ask<'_>, now: Now) -> Step {
        let fresh = || (link, MonAuth::new(self.policy.clone()));
        let side = match &mut self.auth {
            Some((of, side)) if *of == link => side,
            slot => &mut slot.insert(fresh()).1,
        };
        match ask {
            Ask::Request {
                method,
                modes,
                payload,
            } => side.request(&mut self.keys, method, modes, payload, &mut entropy),
            Ask::More(payload) => side.more(&mut self.keys, payload, now, &mut entropy),
        }
    }

    fn opened(&mut self, _: Link, _: Peer, _: Now, _: &mut Outbox) {}

    fn closed(&mut self, _: Link, _: Now, _: &mut Outbox) {}

    fn message(&mut self, link: Link, message: &Message<'_>, _: Now, out: &mut Outbox) {
        let header = MsgHeader {
            tid: message.header.tid,
            ..MsgHeader::new(ANSWER, 1, 1)
        };
        out.send(link, header, |_| (), []);
    }

    fn next_deadline(&self) -> Option<u64> {
        None
    }

    fn tick(&mut self, _: Now, _: &mut Outbox) {}
}

/// The server's thread.
pub(super) struct Server {
    thread: IoThread<()>,
    pub(super) addr: SocketAddr,
    id: libc::pid_t,
}

thread_local! {
    static STOP: Signal = Signal::new();
}

impl Server {
    pub(super) fn start(plan: &Plan) -> Result<Server> {
        let mut probe = [0; 8];
        cluster::random_seed(&mut probe)?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let now = Now {
            mono: 1,
            wall: u64::try_from(now.as_nanos())?,
        };
        let mut users = Keyring::default();
        users.insert(user(), key(), &[("mon", "allow *")]);
        let keys = KeyServer::new(KeyServerConfig::default(), users, now, &mut entropy);
        let secure = plan.mode == Mode::Secure;
        let policy = Policy {
            methods: vec![if secure { Method::Cephx } else { Method::None }],
            modes: vec![if secure {
                ConMode::Secure
            } else {
                ConMode::Crc
            }],
        };
        let crc = plan.mode != Mode::NoCrc;
        let (tell, told) = mpsc::channel();
        let config = plan.ring("bench-server", plan.server_cpu);
        let thread = IoThread::spawn(config, move || async move {
            let listener = Listener::bind(([127, 0, 0, 1], 0).into());
            let bound = listener.and_then(|l| Ok((l.local_addr()?, l)));
            let (addr, listener) = match bound {
                Ok(bound) => bound,
                Err(e) => {
                    let _ = tell.send(Err(e));
                    return;
                }
            };
            let service = Answers {
                addr,
                crc,
                keys,
                policy,
                auth: None,
            };
            let acceptor = Acceptor::new(service, Limits::default());
            acceptor.listen(listener);
            let _ = tell.send(Ok((addr, this_thread())));
            let stop = STOP.with(Signal::clone);
            stop.wait().await;
        })?;
        let (addr, id) = told.recv().context("the server's thread ended")??;
        Ok(Server { thread, addr, id })
    }

    pub(super) fn costs(&self) -> Result<Costs> {
        Ok(Costs {
            cpu: cpu_time(self.id)?,
            calls: self.thread.remote().stats().enters,
        })
    }

    pub(super) fn stop(self) -> Result<()> {
        // It may have ended by itself.
        let _ = self.thread.remote().spawn(|| STOP.with(Signal::raise));
        match self.thread.join() {
            Ok(()) => Ok(()),
            Err(_) => bail!("the server's thread panicked"),
        }
    }
}
