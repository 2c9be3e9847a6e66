//! What a connection is for, and its way through the handshake.

use crate::auth::{AuthError, AuthRequest, MonHandshake, Secrets, ServiceHandshake};
use crate::codec::{EntityType, Now};
use crate::msgr::{ConnError, Connection, Event};
use crate::objecter::SessionId;

pub(super) enum Peer {
    /// The handshake is taken when it is done.
    Mon {
        attempt: u64,
        handshake: Option<MonHandshake>,
    },
    Osd {
        session: SessionId,
        handshake: Option<ServiceHandshake>,
    },
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Conn(#[from] ConnError),
}

impl Peer {
    pub(super) fn kind(&self) -> EntityType {
        match self {
            Peer::Mon { .. } => EntityType::MON,
            Peer::Osd { .. } => EntityType::OSD,
        }
    }

    /// Answers an event of the handshake. True once the session is open.
    pub(super) fn handshake(
        &mut self,
        step: Step,
        msgr: &mut Connection,
        now: Now,
    ) -> Result<bool, Refusal> {
        match step {
            Step::Start => {
                let request = self.request()?;
                msgr.auth_request(request.method.raw(), &request.raw_modes(), &request.payload)?;
            }
            Step::BadMethod {
                method,
                result,
                methods,
                modes,
            } => {
                let request = self.bad_method(method, result, &methods, &modes)?;
                msgr.auth_request(request.method.raw(), &request.raw_modes(), &request.payload)?;
            }
            Step::More(payload) => {
                let answer = self.more(&payload, now)?;
                msgr.auth_more(&answer)?;
            }
            Step::Done {
                global_id,
                con_mode,
                payload,
            } => {
                let secrets = self.done(global_id, con_mode, &payload, now)?;
                if let Peer::Mon { .. } = self {
                    msgr.set_num(global_id as i64);
                }
                msgr.auth_finish(
                    secrets.session_key.as_bytes(),
                    secrets.connection_secret.as_bytes(),
                )?;
            }
            Step::Ready => return Ok(true),
            Step::Other => {}
        }
        Ok(false)
    }

    fn request(&self) -> Result<AuthRequest, AuthError> {
        match self {
            Peer::Mon {
                handshake: Some(hs),
                ..
            } => Ok(hs.request()),
            Peer::Osd {
                handshake: Some(hs),
                ..
            } => Ok(hs.request()),
            _ => Err(over()),
        }
    }

    fn bad_method(
        &mut self,
        method: u32,
        result: i32,
        methods: &[u32],
        modes: &[u32],
    ) -> Result<AuthRequest, AuthError> {
        match self {
            Peer::Mon {
                handshake: Some(hs),
                ..
            } => hs.bad_method(method, result, methods, modes),
            Peer::Osd {
                handshake: Some(hs),
                ..
            } => Err(hs.bad_method(method, result, methods, modes)),
            _ => Err(over()),
        }
    }

    fn more(&mut self, payload: &[u8], now: Now) -> Result<Vec<u8>, AuthError> {
        match self {
            Peer::Mon {
                handshake: Some(hs),
                ..
            } => hs.more(payload, now),
            Peer::Osd {
                handshake: Some(hs),
                ..
            } => hs.more(payload),
            _ => Err(over()),
        }
    }

    fn done(
        &mut self,
        global_id: u64,
        con_mode: u32,
        payload: &[u8],
        now: Now,
    ) -> Result<Secrets, AuthError> {
        match self {
            Peer::Mon {
                handshake: Some(hs),
                ..
            } => hs.done(global_id, con_mode, payload, now),
            Peer::Osd {
                handshake: Some(hs),
                ..
            } => hs.done(con_mode, payload),
            _ => Err(over()),
        }
    }
}

/// Whether the peer answered in a way that another try will not change.
pub(super) fn is_final(error: &ConnError) -> bool {
    matches!(
        error,
        ConnError::MsgrV1
            | ConnError::BadBanner(_)
            | ConnError::Revision0
            | ConnError::CompressionRequired
            | ConnError::UnknownMsgr2Features(_)
            | ConnError::PeerType { .. }
            | ConnError::PeerLacksFeatures(_)
            | ConnError::FeaturesRequired(_)
    )
}

fn over() -> AuthError {
    AuthError::OutOfOrder {
        what: "the peer goes on authenticating in an open session",
    }
}

/// An event of the handshake, without a borrow of the connection that the answer goes to.
/// Handshakes are rare, so its payload is copied.
pub(super) enum Step {
    Start,
    BadMethod {
        method: u32,
        result: i32,
        methods: Vec<u32>,
        modes: Vec<u32>,
    },
    More(Vec<u8>),
    Done {
        global_id: u64,
        con_mode: u32,
        payload: Vec<u8>,
    },
    Ready,
    Other,
}

impl Step {
    pub(super) fn of(event: Event<'_>) -> Step {
        match event {
            Event::AuthStart => Step::Start,
            Event::AuthBadMethod(bad) => Step::BadMethod {
                method: bad.method,
                result: bad.result,
                methods: bad.allowed_methods,
                modes: bad.allowed_modes,
            },
            Event::AuthMore(payload) => Step::More(payload.to_vec()),
            Event::AuthDone {
                global_id,
                con_mode,
                payload,
            } => Step::Done {
                global_id,
                con_mode,
                payload: payload.to_vec(),
            },
            Event::Ready(_) => Step::Ready,
            _ => Step::Other,
        }
    }
}
