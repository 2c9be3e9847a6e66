//! A stream between two connections, for tests and the simulator: it cuts what is sent into pieces
//! of any size and can break.

use std::collections::VecDeque;

use crate::codec::Now;

use super::conn::Connection;
use super::control::AuthBadMethod;
use super::error::ConnError;
use super::event::Event;
use super::output::OutBatch;

/// One direction of a byte stream.
#[derive(Debug, Default)]
pub struct Pipe {
    bytes: VecDeque<u8>,
    batch: OutBatch,
    piece: Vec<u8>,
}

impl Pipe {
    pub fn new() -> Pipe {
        Pipe::default()
    }

    /// Takes all that `from` wants to send.
    pub fn fill(&mut self, from: &mut Connection) {
        from.take_output(&mut self.batch);
        for slice in self.batch.slices() {
            self.bytes.extend(slice);
        }
        self.batch.clear();
    }

    /// Bytes on their way.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Inverts one bit of a byte on its way.
    pub fn flip(&mut self, byte: usize, bit: u8) {
        self.bytes[byte] ^= 1 << (bit % 8);
    }

    /// The stream breaks: what is on its way is lost.
    pub fn cut(&mut self) {
        self.bytes.clear();
    }

    /// Delivers up to `n` bytes to `to`, in one piece, and hands each event to `on_event`.
    pub fn deliver(
        &mut self,
        n: usize,
        to: &mut Connection,
        now: Now,
        mut on_event: impl FnMut(Event<'_>) -> Answer,
    ) -> Result<(), ConnError> {
        let n = n.min(self.bytes.len());
        self.piece.clear();
        self.piece.extend(self.bytes.drain(..n));
        let mut input = &self.piece[..];
        loop {
            let answer = match to.next_event(&mut input, now)? {
                None => break,
                Some(event) => on_event(event),
            };
            answer.apply(to)?;
        }
        assert!(input.is_empty(), "an event was not answered");
        Ok(())
    }
}

/// What the owner does about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Nothing,
    AuthRequest {
        method: u32,
        modes: Vec<u32>,
        payload: Vec<u8>,
    },
    AuthMore(Vec<u8>),
    AuthBadMethod(AuthBadMethod),
    AuthFinish {
        session_key: Vec<u8>,
        secret: Vec<u8>,
    },
    AuthDone {
        global_id: u64,
        con_mode: u32,
        payload: Vec<u8>,
        session_key: Vec<u8>,
        secret: Vec<u8>,
    },
}

impl Answer {
    /// Gives the answer to the connection that asked.
    pub fn apply(self, to: &mut Connection) -> Result<(), ConnError> {
        match self {
            Answer::Nothing => Ok(()),
            Answer::AuthRequest {
                method,
                modes,
                payload,
            } => to.auth_request(method, &modes, &payload),
            Answer::AuthMore(payload) => to.auth_more(&payload),
            Answer::AuthBadMethod(refusal) => to.auth_bad_method(&refusal),
            Answer::AuthFinish {
                session_key,
                secret,
            } => to.auth_finish(&session_key, &secret),
            Answer::AuthDone {
                global_id,
                con_mode,
                payload,
                session_key,
                secret,
            } => to.auth_done(global_id, con_mode, &payload, &session_key, &secret),
        }
    }
}
