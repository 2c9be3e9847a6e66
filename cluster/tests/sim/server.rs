//! The far end of a connection: a monitor's or an OSD's messenger and its side of the
//! authentication.

use std::collections::VecDeque;

use cluster::auth::server::{KeyServer, MonAuth, RotatingSecrets, ServiceAuth, Step};
use cluster::codec::{EntityAddr, EntityAddrVec, EntityName, Now};
use cluster::msgr::control::AuthBadMethod;
use cluster::msgr::{Config, Connection, Event, MsgHeader, OutBatch};

use super::rng::Rng;

pub(crate) enum Gate {
    Mon(MonAuth),
    Osd(ServiceAuth),
}

/// What is needed to judge who dials.
pub(crate) struct Judge<'a> {
    pub(crate) keys: &'a mut KeyServer,
    pub(crate) secrets: Option<&'a RotatingSecrets>,
    pub(crate) rng: &'a mut Rng,
    pub(crate) now: Now,
}

pub(crate) struct Received {
    pub(crate) header: MsgHeader,
    pub(crate) front: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Peer {
    pub(crate) conn: Connection,
    pub(crate) gate: Gate,
    /// The global id of the client.
    pub(crate) gid: u64,
    batch: OutBatch,
}

enum Asked {
    Request(u32, Vec<u32>, Vec<u8>),
    More(Vec<u8>),
    Message(Received),
    Nothing,
}

impl Asked {
    fn of(event: Event<'_>) -> Asked {
        match event {
            Event::AuthRequest {
                method,
                modes,
                payload,
            } => Asked::Request(method, modes, payload.to_vec()),
            Event::AuthMore(payload) => Asked::More(payload.to_vec()),
            Event::Message(m) => Asked::Message(Received {
                header: m.header,
                front: m.front.to_vec(),
                data: m.data.to_vec(),
            }),
            _ => Asked::Nothing,
        }
    }
}

impl Peer {
    pub(crate) fn new(
        me: EntityName,
        addrs: EntityAddrVec,
        from: EntityAddr,
        crc_data: bool,
        gate: Gate,
        now: Now,
    ) -> Peer {
        let config = Config {
            crc_data,
            ..Config::server(me, addrs)
        };
        let mut conn = Connection::server(config, from);
        conn.start(now);
        Peer {
            conn,
            gate,
            gid: 0,
            batch: OutBatch::new(),
        }
    }

    /// Takes bytes of the client; hands out its messages.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        judge: &mut Judge<'_>,
        out: &mut Vec<Received>,
    ) -> Result<(), String> {
        let mut input = bytes;
        loop {
            let event = self.conn.next_event(&mut input, judge.now);
            let asked = match event.map_err(|e| e.to_string())? {
                None => return Ok(()),
                Some(event) => Asked::of(event),
            };
            let step = match asked {
                Asked::Nothing => continue,
                Asked::Message(m) => {
                    out.push(m);
                    continue;
                }
                Asked::Request(method, modes, payload) => {
                    self.request(method, &modes, &payload, judge)
                }
                Asked::More(payload) => self.more(&payload, judge),
            };
            self.answer(step)?;
        }
    }

    fn request(&mut self, method: u32, modes: &[u32], payload: &[u8], j: &mut Judge<'_>) -> Step {
        let rng = &mut *j.rng;
        let entropy = &mut |b: &mut [u8]| rng.fill(b);
        match &mut self.gate {
            Gate::Mon(auth) => auth.request(j.keys, method, modes, payload, entropy),
            Gate::Osd(auth) => {
                let secrets = j.secrets.expect("an OSD has secrets");
                auth.request(secrets, method, modes, payload, entropy)
            }
        }
    }

    fn more(&mut self, payload: &[u8], j: &mut Judge<'_>) -> Step {
        let rng = &mut *j.rng;
        let entropy = &mut |b: &mut [u8]| rng.fill(b);
        match &mut self.gate {
            Gate::Mon(auth) => auth.more(j.keys, payload, j.now, entropy),
            Gate::Osd(auth) => {
                let secrets = j.secrets.expect("an OSD has secrets");
                auth.more(secrets, payload, entropy)
            }
        }
    }

    fn answer(&mut self, step: Step) -> Result<(), String> {
        let done = match step {
            Step::BadMethod {
                method,
                result,
                allowed_methods,
                allowed_modes,
            } => self.conn.auth_bad_method(&AuthBadMethod {
                method,
                result,
                allowed_methods,
                allowed_modes,
            }),
            Step::More(payload) => self.conn.auth_more(&payload),
            Step::Done(granted) => {
                self.gid = granted.global_id;
                self.conn.auth_done(
                    granted.global_id,
                    granted.con_mode.raw(),
                    &granted.payload,
                    granted.secrets.session_key.as_bytes(),
                    granted.secrets.connection_secret.as_bytes(),
                )
            }
        };
        done.map_err(|e| e.to_string())
    }

    /// Puts what is to be sent at the end of `to`; without a stream it is lost.
    pub(crate) fn output(&mut self, to: Option<&mut VecDeque<u8>>) {
        self.conn.take_output(&mut self.batch);
        if let Some(to) = to {
            for slice in self.batch.slices() {
                to.extend(slice);
            }
        }
        self.batch.clear();
    }
}
