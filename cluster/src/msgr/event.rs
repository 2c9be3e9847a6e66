//! What a connection reports to its owner, and whose turn it is.

use crate::codec::{EntityAddr, EntityName, EntityType, UTime};

use super::control::{AuthBadMethod, Hello};
use super::header::MsgHeader;
use super::input::Frame;

/// A received message. It lives in the driver's input or in the connection's buffer, until the next
/// call of [`super::Connection::next_event`].
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub header: MsgHeader,
    pub front: &'a [u8],
    pub middle: &'a [u8],
    pub data: &'a [u8],
}

/// The session is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    pub peer: EntityName,
    /// Features that both sides have.
    pub features: u64,
    pub lossy: bool,
    /// An earlier session goes on; messages were replayed, none is lost.
    pub resumed: bool,
}

/// What [`super::Connection::next_event`] reports.
#[derive(Debug)]
pub enum Event<'a> {
    /// The peer has said hello and where it sees us.
    Hello {
        peer_type: EntityType,
        my_addr: EntityAddr,
    },
    /// Client: call [`super::Connection::auth_request`].
    AuthStart,
    /// Client: call [`super::Connection::auth_request`] again with something the peer allows, or give up.
    AuthBadMethod(AuthBadMethod),
    /// Either side: call [`super::Connection::auth_more`]; a server may also call
    /// [`super::Connection::auth_done`] or [`super::Connection::auth_bad_method`].
    AuthMore(&'a [u8]),
    /// Client: call [`super::Connection::auth_finish`].
    AuthDone {
        global_id: u64,
        con_mode: u32,
        payload: &'a [u8],
    },
    /// Server: call [`super::Connection::auth_more`], [`super::Connection::auth_done`] or
    /// [`super::Connection::auth_bad_method`].
    AuthRequest {
        method: u32,
        modes: Vec<u32>,
        payload: &'a [u8],
    },
    /// Server with a policy that keeps sessions: look for the peer's earlier session and act on what
    /// [`super::accept::resolve`] says.
    SessionRequest,
    /// The peer has lost the session: messages that waited were dropped, a new session begins.
    SessionReset,
    Ready(Ready),
    Message(Message<'a>),
    /// The peer has answered the keepalive that was sent at this time of our clock.
    KeepaliveAck(UTime),
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Banner,
    Hello,
    /// Client: the owner has to say how to authenticate.
    AskAuth,
    /// Client: the peer has to answer our authentication.
    Auth,
    /// Client: the owner has to accept the peer's AUTH_DONE.
    FinishAuth,
    /// Server: the peer has to authenticate; `more` after AUTH_REPLY_MORE.
    AcceptAuth {
        more: bool,
    },
    /// Server: the owner has to judge the peer's authentication.
    AnswerAuth,
    Sign,
    /// Client: CLIENT_IDENT is out.
    Identify,
    /// Client: SESSION_RECONNECT is out.
    Reconnect,
    /// Server: waits for either.
    Accept,
    /// Server: the owner has to find the peer's earlier session.
    Decide,
    Ready,
    /// A lossless session without a stream.
    Standby,
    Down,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            State::Idle => "not started",
            State::Banner => "waiting for the banner",
            State::Hello => "waiting for HELLO",
            State::AskAuth => "choosing an authentication",
            State::Auth => "waiting for the peer's authentication",
            State::FinishAuth => "finishing authentication",
            State::AcceptAuth { more: false } => "waiting for AUTH_REQUEST",
            State::AcceptAuth { more: true } => "waiting for AUTH_REQUEST_MORE",
            State::AnswerAuth => "judging the peer's authentication",
            State::Sign => "waiting for AUTH_SIGNATURE",
            State::Identify => "waiting for SERVER_IDENT",
            State::Reconnect => "waiting for SESSION_RECONNECT_OK",
            State::Accept => "waiting for CLIENT_IDENT",
            State::Decide => "looking for an earlier session",
            State::Ready => "the session is open",
            State::Standby => "waiting for a new stream",
            State::Down => "down",
        }
    }

    /// The owner has to act before more input is looked at.
    pub(super) const fn owners_turn(self) -> bool {
        matches!(
            self,
            State::AskAuth | State::FinishAuth | State::AnswerAuth | State::Decide
        )
    }

    pub(super) const fn in_handshake(self) -> bool {
        !matches!(
            self,
            State::Idle | State::Ready | State::Standby | State::Down
        )
    }
}

/// Events that no frame carries.
#[derive(Debug, Default)]
pub(super) struct Notices {
    pub(super) auth_start: bool,
    pub(super) reset: bool,
    pub(super) session_request: bool,
    /// With whether it resumed an earlier session.
    pub(super) ready: Option<bool>,
}

/// What a step found, without a borrow of the connection.
pub(super) enum Found<'i> {
    Hello(Hello),
    AuthStart,
    SessionRequest,
    SessionReset,
    Ready(bool),
    KeepaliveAck(UTime),
    Message(MsgHeader, Frame<'i>),
    /// An authentication frame whose payload the owner must see.
    Auth(Frame<'i>),
}
