//! What the targets share: edits of honest bytes, and a messenger's owner that agrees to all.

pub mod maps;
pub mod osd;
pub mod server;

use std::net::SocketAddr;

use arbitrary::Unstructured;
use cluster::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now};
use cluster::msgr::accept::resolve;
use cluster::msgr::testing::{Answer, Pipe};
use cluster::msgr::{
    CON_MODE_CRC, CON_MODE_SECURE, Config, ConnError, Connection, Event, OutBatch,
};

pub const SECOND: u64 = 1_000_000_000;

/// The moment at which most inputs play.
pub const NOW: Now = Now {
    mono: 1_000 * SECOND,
    wall: 1_700_000_000 * SECOND,
};

/// Changes honest bytes as the fuzzer's input says. An input that has run out changes nothing, so
/// the empty input is the honest run.
pub struct Edits<'a> {
    pub input: Unstructured<'a>,
}

impl<'a> Edits<'a> {
    pub fn new(input: &'a [u8]) -> Edits<'a> {
        let input = Unstructured::new(input);
        Edits { input }
    }

    pub fn u8(&mut self) -> u8 {
        self.input.arbitrary().unwrap_or_default()
    }

    pub fn u16(&mut self) -> u16 {
        self.input.arbitrary().unwrap_or_default()
    }

    pub fn u32(&mut self) -> u32 {
        self.input.arbitrary().unwrap_or_default()
    }

    /// Up to `n` of the bytes that are left.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let n = n.min(self.input.len());
        self.input.bytes(n).expect("there are as many")
    }

    /// `honest` with up to four edits.
    pub fn of(&mut self, mut honest: Vec<u8>) -> Vec<u8> {
        for _ in 0..4 {
            let what = self.u8() % 8;
            if what < 3 {
                break;
            }
            let at = usize::from(self.u16()) % (honest.len() + 1);
            let cover = |honest: &mut Vec<u8>, with: &[u8]| {
                let end = honest.len().min(at + with.len());
                honest.splice(at..end, with.iter().copied());
            };
            match what {
                3 => cover(&mut honest, &[self.u8()]),
                4 => cover(&mut honest, &self.u32().to_le_bytes()),
                5 => honest.truncate(at),
                6 => {
                    let end = honest.len().min(at + usize::from(self.u8()));
                    honest.drain(at..end);
                }
                _ => {
                    let n = usize::from(self.u8());
                    let more = self.bytes(n);
                    honest.splice(at..at, more.iter().copied());
                }
            }
        }
        honest
    }
}

/// The keys both ends of a connection hold: those of secure mode, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Crc,
    Secure,
}

impl Mode {
    pub fn of(secure: bool) -> Mode {
        if secure { Mode::Secure } else { Mode::Crc }
    }

    pub fn keys(self) -> (u32, Vec<u8>, Vec<u8>) {
        match self {
            Mode::Crc => (CON_MODE_CRC, Vec::new(), Vec::new()),
            Mode::Secure => (CON_MODE_SECURE, vec![1; 16], (0..64).collect()),
        }
    }

    /// What the owner of either end answers: everybody is who they say.
    pub fn answer(self, event: &Event<'_>) -> Answer {
        let (con_mode, session_key, secret) = self.keys();
        match event {
            Event::AuthStart | Event::AuthBadMethod(_) => Answer::AuthRequest {
                method: 2,
                modes: vec![con_mode],
                payload: vec![10],
            },
            Event::AuthMore(payload) if payload.first() == Some(&1) => Answer::AuthMore(vec![2]),
            Event::AuthRequest { .. } => Answer::AuthMore(vec![1]),
            // A server's turn; a client gets an error for it, which is as good.
            Event::AuthMore(_) => Answer::AuthDone {
                global_id: 4242,
                con_mode,
                payload: vec![3],
                session_key,
                secret,
            },
            Event::AuthDone { .. } => Answer::AuthFinish {
                session_key,
                secret,
            },
            _ => Answer::Nothing,
        }
    }
}

pub fn addr(host: u8) -> EntityAddr {
    EntityAddr::msgr2(SocketAddr::from(([10, 0, 0, host], 6800)), host.into())
}

pub fn addrs(host: u8) -> EntityAddrVec {
    EntityAddrVec(vec![addr(host)])
}

pub fn client_config() -> Config {
    let blank = EntityAddr {
        nonce: 4711,
        ..EntityAddr::default()
    };
    Config {
        max_message: 1 << 20,
        ..Config::client(
            EntityName::new(EntityType::CLIENT, 4242),
            EntityAddrVec(vec![blank]),
        )
    }
}

pub fn server_config(kind: EntityType, num: i64) -> Config {
    Config {
        max_message: 1 << 20,
        ..Config::server(EntityName::new(kind, num), addrs(1))
    }
}

/// Feeds bytes in one piece, answering what is asked. Output is dropped.
pub fn feed(
    conn: &mut Connection,
    mut input: &[u8],
    mode: Mode,
    mut see: impl FnMut(&Event<'_>),
) -> Result<(), ConnError> {
    loop {
        let answer = match conn.next_event(&mut input, NOW)? {
            None => return Ok(()),
            Some(Event::SessionRequest) => {
                let verdict = resolve(None, conn);
                conn.answer(verdict)?;
                continue;
            }
            Some(event) => {
                see(&event);
                mode.answer(&event)
            }
        };
        answer.apply(conn)?;
    }
}

/// A client, a server and the stream between them.
pub struct Pair {
    pub client: Connection,
    pub server: Connection,
    pub up: Pipe,
    pub down: Pipe,
    pub mode: Mode,
}

impl Pair {
    pub fn new(client: Config, server: Config, mode: Mode) -> Pair {
        let mut pair = Pair {
            client: Connection::client(client, addr(1), EntityType::OSD),
            server: Connection::server(server, addr(2)),
            up: Pipe::new(),
            down: Pipe::new(),
            mode,
        };
        pair.client.start(NOW);
        pair.server.start(NOW);
        pair
    }

    /// Moves bytes until none are left or, of either direction, `budget` bytes have moved.
    pub fn run(&mut self, budget: usize) -> Result<(), ConnError> {
        let mut left = budget;
        let mode = self.mode;
        while left > 0 {
            self.up.fill(&mut self.client);
            self.down.fill(&mut self.server);
            if self.up.is_empty() && self.down.is_empty() {
                break;
            }
            let n = left.min(64);
            left -= n;
            self.up
                .deliver(n, &mut self.server, NOW, |e| mode.answer(&e))?;
            self.down
                .deliver(n, &mut self.client, NOW, |e| mode.answer(&e))?;
        }
        Ok(())
    }
}

/// All that a connection has to send.
pub fn output(conn: &mut Connection) -> Vec<u8> {
    let mut batch = OutBatch::new();
    conn.take_output(&mut batch);
    batch.slices().flatten().copied().collect()
}
