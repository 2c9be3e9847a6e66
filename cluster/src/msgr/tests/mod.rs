//! Tests of the whole room: against streams captured from real clusters, and of our two ends
//! against each other.

mod captures;
mod hostile;
mod live;
mod lossless;
mod pair;
mod pcap;
mod replay;
mod speed;

use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now};

use super::testing::{Answer, Pipe};
use super::{CON_MODE_CRC, CON_MODE_SECURE, Config, ConnError, Connection, Event, Policy};

/// The address that clients of these tests dial.
fn server_addr() -> EntityAddr {
    EntityAddr::msgr2("127.0.0.1:6800".parse().unwrap(), 77)
}

fn client_socket() -> EntityAddr {
    EntityAddr::msgr2("127.0.0.1:50000".parse().unwrap(), 0)
}

fn client_config() -> Config {
    let blank = EntityAddr {
        nonce: 4711,
        ..EntityAddr::default()
    };
    let me = EntityName::new(EntityType::CLIENT, 4242);
    Config::client(me, EntityAddrVec(vec![blank]))
}

fn server_config() -> Config {
    let me = EntityName::new(EntityType::OSD, 3);
    Config::server(me, EntityAddrVec(vec![server_addr()]))
}

/// Either crc mode without keys, or secure mode with fixed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Crc,
    Secure,
}

impl Mode {
    fn keys(self) -> (u32, Vec<u8>, Vec<u8>) {
        match self {
            Mode::Crc => (CON_MODE_CRC, Vec::new(), Vec::new()),
            Mode::Secure => (CON_MODE_SECURE, vec![1; 16], (0..64).collect()),
        }
    }

    /// What the owner of either end answers during the handshake.
    fn answer(self, event: &Event<'_>) -> Answer {
        let (con_mode, session_key, secret) = self.keys();
        match event {
            Event::AuthStart => Answer::AuthRequest {
                method: 2,
                modes: vec![con_mode],
                payload: b"who I am".to_vec(),
            },
            Event::AuthRequest { .. } => Answer::AuthMore(b"prove it".to_vec()),
            Event::AuthMore(b"prove it") => Answer::AuthMore(b"proof".to_vec()),
            Event::AuthMore(b"proof") => Answer::AuthDone {
                global_id: 4242,
                con_mode,
                payload: b"welcome".to_vec(),
                session_key,
                secret,
            },
            Event::AuthDone {
                payload: b"welcome",
                global_id: 4242,
                ..
            } => Answer::AuthFinish {
                session_key,
                secret,
            },
            _ => Answer::Nothing,
        }
    }
}

/// Two ends and the stream between them.
struct Pair {
    client: Connection,
    server: Connection,
    /// From client to server, and back.
    up: Pipe,
    down: Pipe,
    mode: Mode,
    now: Now,
}

impl Pair {
    fn new(client: Config, server: Config, mode: Mode) -> Pair {
        let mut pair = Pair {
            client: Connection::client(client, server_addr(), EntityType::OSD),
            server: Connection::server(server, client_socket()),
            up: Pipe::new(),
            down: Pipe::new(),
            mode,
            now: Now {
                mono: 1,
                wall: 1_000_000_000,
            },
        };
        pair.client.start(pair.now);
        pair.server.start(pair.now);
        pair
    }

    fn lossy(mode: Mode) -> Pair {
        Pair::new(client_config(), server_config(), mode)
    }

    /// Moves bytes until none are left, in pieces of sizes that `piece` gives. Events are shown to
    /// `see` with whether the server saw them.
    fn run(
        &mut self,
        mut piece: impl FnMut() -> usize,
        mut see: impl FnMut(bool, &Event<'_>),
    ) -> Result<(), ConnError> {
        let mode = self.mode;
        loop {
            self.up.fill(&mut self.client);
            self.down.fill(&mut self.server);
            if self.up.is_empty() && self.down.is_empty() {
                return Ok(());
            }
            let n = piece().max(1);
            self.up.deliver(n, &mut self.server, self.now, |e| {
                see(true, &e);
                mode.answer(&e)
            })?;
            let n = piece().max(1);
            self.down.deliver(n, &mut self.client, self.now, |e| {
                see(false, &e);
                mode.answer(&e)
            })?;
        }
    }

    fn open(&mut self) {
        self.run(|| usize::MAX, |_, _| ()).unwrap();
        assert!(self.client.is_ready() && self.server.is_ready());
    }
}
