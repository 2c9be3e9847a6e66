//! From the banner to an open session, for both sides: the handlers of `ProtocolV2.cc` by name.

use ring::hmac;

use crate::codec::{AddrType, EntityAddr, Put};

use super::accept::Request;
use super::config::Side;
use super::conn::Connection;
use super::control::{
    AuthBadMethod, AuthDone, AuthMore, AuthRequest, AuthSignature, ClientIdent, Control,
    FLAG_LOSSY, Hello, Number, Reconnect, Reset, ServerIdent,
};
use super::crypto::{Cipher, SECRET_LEN};
use super::error::ConnError;
use super::event::{Found, State};
use super::features::{MSG_ADDR2, MSGR2_COMPRESSION, MSGR2_REVISION_1, MSGR2_SUPPORTED};
use super::frame::Tag;
use super::input::Frame;
use super::output::Tx;
use super::session::cookie;
use super::{CON_MODE_CRC, CON_MODE_SECURE};

/// `CEPH_BANNER_V2_PREFIX` and the start of `CEPH_BANNER`.
const BANNER: &[u8; 8] = b"ceph v2\n";
const BANNER_V1: &[u8] = b"ceph v0";
/// Supported and required features of msgr2 itself. Longer payloads are fine, up to a limit.
const BANNER_PAYLOAD: usize = 16;
const MAX_BANNER_PAYLOAD: usize = 256;
/// Limit on what a peer may send before it is authenticated, and on what a handshake may make us
/// say to a peer that does not read.
const MAX_TRANSCRIPT: usize = 1 << 20;

/// All bytes in both directions until AUTH_DONE (`pre_auth` in ProtocolV2), for the signatures.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    rx: Vec<u8>,
    tx: Vec<u8>,
    /// Key of the signatures, once authenticated; empty for auth none.
    session_key: Vec<u8>,
    /// Connection modes that we offered or were offered.
    modes: Vec<u32>,
    /// Both halves are complete: what goes over the wire now is not covered.
    closed: bool,
}

impl Transcript {
    pub(super) fn received(&mut self, bytes: &[u8]) -> Result<(), ConnError> {
        if self.closed {
            return Ok(());
        }
        self.rx.extend_from_slice(bytes);
        if self.rx.len() > MAX_TRANSCRIPT {
            let limit = MAX_TRANSCRIPT;
            return Err(ConnError::HandshakeTooLong { limit });
        }
        Ok(())
    }

    /// Without a key, the signature is all zeros.
    fn key(&self) -> Option<hmac::Key> {
        let key = &self.session_key;
        (!key.is_empty()).then(|| hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// Our signature: of what we received.
    fn sign(&self) -> [u8; 32] {
        let mut out = [0; 32];
        if let Some(key) = self.key() {
            out.copy_from_slice(hmac::sign(&key, &self.rx).as_ref());
        }
        out
    }

    /// The peer's signature must be of what we sent.
    fn verify(&self, signature: &[u8; 32]) -> Result<(), ConnError> {
        let good = match self.key() {
            Some(key) => hmac::verify(&key, &self.tx, signature).is_ok(),
            None => *signature == [0; 32],
        };
        if good {
            Ok(())
        } else {
            Err(ConnError::Signature)
        }
    }
}

impl Connection {
    /// `_banner_exchange`.
    pub(super) fn begin_handshake(&mut self) {
        let mut t = Transcript::default();
        let out = self.out.raw();
        let start = out.len();
        out.put_bytes(BANNER);
        out.put_u16(BANNER_PAYLOAD as u16);
        out.put_u64(MSGR2_SUPPORTED);
        out.put_u64(0);
        t.tx.extend_from_slice(&out[start..]);
        self.transcript = Some(t);
        self.state = State::Banner;
    }

    /// `_handle_peer_banner` and `_handle_peer_banner_payload`. Says whether the banner is complete.
    pub(super) fn banner(&mut self, input: &mut &[u8]) -> Result<bool, ConnError> {
        const PREFIX: usize = BANNER.len() + 2;
        let before = *input;
        let complete = self.rx.take_start(input, PREFIX).is_some();
        let got = self.rx.start();
        let n = got.len().min(BANNER.len());
        if got[..n] != BANNER[..n] {
            // A wrong peer is known by its first bytes; it may never send more.
            let v1 = n == BANNER.len() && got.starts_with(BANNER_V1);
            return Err(if v1 {
                ConnError::MsgrV1
            } else {
                ConnError::BadBanner(got[..n].escape_ascii().to_string())
            });
        }
        let mut done = false;
        if complete {
            let len = usize::from(u16::from_le_bytes([got[8], got[9]]));
            if !(BANNER_PAYLOAD..=MAX_BANNER_PAYLOAD).contains(&len) {
                let text = format!("{} with {len} bytes", BANNER.escape_ascii());
                return Err(ConnError::BadBanner(text));
            }
            if let Some(banner) = self.rx.take_start(input, PREFIX + len) {
                let features = |at: usize| {
                    let at = PREFIX + at;
                    banner[at..at + 8]
                        .first_chunk()
                        .map(|b| u64::from_le_bytes(*b))
                };
                check_banner(features(0).unwrap_or(0), features(8).unwrap_or(0))?;
                done = true;
            }
        }
        if let Some(t) = &mut self.transcript {
            t.received(&before[..before.len() - input.len()])?;
        }
        if done {
            self.rx.end_start();
            let hello = Hello {
                entity_type: self.cfg.me.kind,
                peer_addr: self.peer_addr,
            };
            self.state = State::Hello;
            self.send_control(Tag::Hello, &hello)?;
        }
        Ok(done)
    }

    /// Sends a control frame; as long as the transcript is open, the frame is part of it.
    pub(super) fn send_control<'a>(
        &mut self,
        tag: Tag,
        frame: &impl Control<'a>,
    ) -> Result<(), ConnError> {
        let start = self.out.raw().len();
        if start > MAX_TRANSCRIPT {
            let limit = MAX_TRANSCRIPT;
            return Err(ConnError::HandshakeTooLong { limit });
        }
        let write = |b: &mut Vec<u8>| frame.encode(b);
        self.tx.control(&mut self.out, tag, write)?;
        if let Some(t) = self.transcript.as_mut().filter(|t| !t.closed) {
            t.tx.extend_from_slice(&self.out.raw()[start..]);
        }
        Ok(())
    }

    /// Frames before the session is open.
    pub(super) fn handshake_frame<'i>(
        &mut self,
        frame: Frame<'i>,
    ) -> Result<Option<Found<'i>>, ConnError> {
        match (self.state, frame.tag) {
            (State::Hello, Tag::Hello) => {
                let hello = self.decode(&frame)?;
                self.hello(hello).map(Some)
            }
            (State::Auth, Tag::AuthBadMethod) => {
                self.decode::<AuthBadMethod>(&frame)?;
                self.state = State::AskAuth;
                Ok(Some(Found::Auth(frame)))
            }
            (State::Auth, Tag::AuthReplyMore) => {
                self.state = State::AskAuth;
                Ok(Some(Found::Auth(frame)))
            }
            (State::Auth, Tag::AuthDone) => {
                self.auth_done_received(&frame)?;
                Ok(Some(Found::Auth(frame)))
            }
            (State::AcceptAuth { more: false }, Tag::AuthRequest)
            | (State::AcceptAuth { more: true }, Tag::AuthRequestMore) => {
                self.state = State::AnswerAuth;
                Ok(Some(Found::Auth(frame)))
            }
            (State::Sign, Tag::AuthSignature) => {
                let signature = self.decode(&frame)?;
                self.signature(signature)?;
                Ok(None)
            }
            (State::Identify, Tag::ServerIdent) => {
                let ident = self.decode(&frame)?;
                self.server_ident(ident)?;
                Ok(None)
            }
            (State::Identify, Tag::IdentMissingFeatures) => {
                let Number(missing) = self.decode(&frame)?;
                Err(ConnError::FeaturesRequired(missing))
            }
            (State::Identify | State::Reconnect, Tag::Wait) => Err(ConnError::Wait),
            (State::Reconnect, Tag::SessionReset) => {
                let Reset { full } = self.decode(&frame)?;
                if full {
                    self.session.reset();
                    self.notices.reset = true;
                } else {
                    self.session.server_cookie = 0;
                    self.session.connect_seq = 0;
                    self.session.in_seq = 0;
                }
                self.send_client_ident()?;
                Ok(None)
            }
            (State::Reconnect, Tag::SessionRetry) => {
                let Number(connect_seq) = self.decode(&frame)?;
                self.session.connect_seq = connect_seq.saturating_add(1);
                self.send_reconnect()?;
                Ok(None)
            }
            (State::Reconnect, Tag::SessionRetryGlobal) => {
                let Number(theirs) = self.decode(&frame)?;
                self.session.global_seq = self.session.global_seq.max(theirs).saturating_add(1);
                self.send_reconnect()?;
                Ok(None)
            }
            (State::Reconnect, Tag::SessionReconnectOk) => {
                let Number(msg_seq) = self.decode(&frame)?;
                self.session.discard_up_to(msg_seq);
                self.ready(true)?;
                Ok(None)
            }
            (State::Accept, Tag::ClientIdent) => {
                let ident = self.decode(&frame)?;
                self.client_ident(ident)?;
                Ok(None)
            }
            (State::Accept, Tag::SessionReconnect) => {
                let reconnect = self.decode(&frame)?;
                self.reconnect_request(reconnect)?;
                Ok(None)
            }
            (_, tag) => Err(self.unexpected(tag)),
        }
    }

    /// `handle_hello`.
    fn hello<'i>(&mut self, hello: Hello) -> Result<Found<'i>, ConnError> {
        match self.peer_type {
            None => self.peer_type = Some(hello.entity_type),
            Some(want) if want != hello.entity_type => {
                let got = hello.entity_type;
                return Err(ConnError::PeerType { want, got });
            }
            Some(_) => {}
        }
        match self.side {
            Side::Client => {
                self.learn_addr(hello.peer_addr);
                self.state = State::AskAuth;
                self.notices.auth_start = true;
            }
            Side::Server => self.state = State::AcceptAuth { more: false },
        }
        Ok(Found::Hello(hello))
    }

    /// A client does not listen: its address is the IP that the peer sees, without a port, of type
    /// any (what librados sends, and what blocklists name).
    fn learn_addr(&mut self, seen: EntityAddr) {
        let addrs = &mut self.cfg.my_addrs.0;
        if addrs.is_empty() {
            addrs.push(EntityAddr::default());
        }
        let blank = |a: &EntityAddr| a.addr.is_none_or(|s| s.ip().is_unspecified());
        if let (Some(mine), Some(mut ip)) = (addrs.first_mut().filter(|a| blank(a)), seen.addr) {
            ip.set_port(0);
            mine.kind = AddrType::ANY;
            mine.addr = Some(ip);
        }
    }

    fn owner_answers(&self, call: &'static str, turn: State) -> Result<(), ConnError> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        if self.state == turn {
            return Ok(());
        }
        let state = self.state.name();
        Err(ConnError::Misuse { call, state })
    }

    /// Client: authenticate by `method`, with the connection modes we take in order of preference.
    pub fn auth_request(
        &mut self,
        method: u32,
        modes: &[u32],
        payload: &[u8],
    ) -> Result<(), ConnError> {
        self.owner_answers("auth_request", State::AskAuth)?;
        let modes = modes.to_vec();
        if let Some(t) = &mut self.transcript {
            t.modes.clone_from(&modes);
        }
        self.state = State::Auth;
        let request = AuthRequest {
            method,
            modes,
            payload,
        };
        self.send_control(Tag::AuthRequest, &request)
    }

    /// The next step of a longer authentication, of either side.
    pub fn auth_more(&mut self, payload: &[u8]) -> Result<(), ConnError> {
        let (turn, next, tag) = match self.side {
            Side::Client => (State::AskAuth, State::Auth, Tag::AuthRequestMore),
            Side::Server => (
                State::AnswerAuth,
                State::AcceptAuth { more: true },
                Tag::AuthReplyMore,
            ),
        };
        self.owner_answers("auth_more", turn)?;
        self.state = next;
        self.send_control(tag, &AuthMore(payload))
    }

    /// `handle_auth_done`, up to where the owner is needed. Nothing received later is covered by the
    /// signatures.
    fn auth_done_received(&mut self, frame: &Frame<'_>) -> Result<(), ConnError> {
        let done: AuthDone<'_> = super::conn::decode_as(frame.tag, self.payload(frame))?;
        let got = done.con_mode;
        let modes = self.transcript.as_ref().map_or(&[][..], |t| &t.modes);
        if !modes.contains(&got) {
            return Err(ConnError::ConMode { got });
        }
        if let Some(t) = &mut self.transcript {
            t.modes = vec![got];
        }
        self.state = State::FinishAuth;
        Ok(())
    }

    /// Client: the peer's AUTH_DONE is genuine. Keys are empty for auth none.
    pub fn auth_finish(
        &mut self,
        session_key: &[u8],
        connection_secret: &[u8],
    ) -> Result<(), ConnError> {
        self.owner_answers("auth_finish", State::FinishAuth)?;
        let modes = self.transcript.as_ref().map_or(&[][..], |t| &t.modes);
        let con_mode = modes.first().copied().unwrap_or(CON_MODE_CRC);
        self.secure(con_mode, session_key, connection_secret)
    }

    /// Server: refuse the method or mode and say what is allowed.
    pub fn auth_bad_method(&mut self, refusal: &AuthBadMethod) -> Result<(), ConnError> {
        self.owner_answers("auth_bad_method", State::AnswerAuth)?;
        // The peer starts over (ProtocolV2 stays in AUTH_ACCEPTING).
        self.state = State::AcceptAuth { more: false };
        self.send_control(Tag::AuthBadMethod, refusal)
    }

    /// Server: the peer is who it claims to be. Keys are empty for auth none.
    pub fn auth_done(
        &mut self,
        global_id: u64,
        con_mode: u32,
        payload: &[u8],
        session_key: &[u8],
        connection_secret: &[u8],
    ) -> Result<(), ConnError> {
        self.owner_answers("auth_done", State::AnswerAuth)?;
        let done = AuthDone {
            global_id,
            con_mode,
            payload,
        };
        self.send_control(Tag::AuthDone, &done)?;
        self.secure(con_mode, session_key, connection_secret)
    }

    /// `finish_auth`: switches to the agreed mode and signs what was received so far.
    fn secure(&mut self, con_mode: u32, key: &[u8], secret: &[u8]) -> Result<(), ConnError> {
        match con_mode {
            CON_MODE_CRC => {}
            CON_MODE_SECURE => {
                let got = secret.len();
                let used = secret.get(..SECRET_LEN);
                let pair = used.and_then(|s| Cipher::pair(s, self.side == Side::Server));
                let Some((rx, tx)) = pair else {
                    return Err(self.fail(ConnError::ConnectionSecret { got }));
                };
                self.rx.set_cipher(rx);
                self.tx = Tx::Secure(Box::new(tx));
            }
            got => return Err(self.fail(ConnError::ConMode { got })),
        }
        let mut signature = AuthSignature([0; 32]);
        if let Some(t) = &mut self.transcript {
            t.session_key = key.to_vec();
            t.closed = true;
            signature.0 = t.sign();
            t.rx = Vec::new();
        }
        self.state = State::Sign;
        self.send_control(Tag::AuthSignature, &signature)
    }

    /// `handle_auth_signature`: the peer received what we sent, and knows the key.
    fn signature(&mut self, theirs: AuthSignature) -> Result<(), ConnError> {
        let t = self.transcript.take().unwrap_or_default();
        t.verify(&theirs.0)?;
        match self.side {
            Side::Server => self.state = State::Accept,
            // `start_session_connect`.
            Side::Client if self.session.server_cookie == 0 => self.send_client_ident()?,
            Side::Client => self.send_reconnect()?,
        }
        Ok(())
    }

    fn send_client_ident(&mut self) -> Result<(), ConnError> {
        let lossy = self.cfg.policy.lossy;
        if !lossy && self.session.client_cookie == 0 {
            self.session.client_cookie = cookie(&mut self.cfg.cookie_seed);
        }
        let ident = ClientIdent {
            addrs: self.cfg.my_addrs.clone(),
            target: self.peer_addr,
            gid: self.cfg.me.num,
            global_seq: self.session.global_seq,
            features_supported: self.cfg.features_supported,
            features_required: self.cfg.features_required | MSG_ADDR2,
            flags: if lossy { FLAG_LOSSY } else { 0 },
            cookie: self.session.client_cookie,
        };
        self.state = State::Identify;
        self.send_control(Tag::ClientIdent, &ident)
    }

    fn send_reconnect(&mut self) -> Result<(), ConnError> {
        let reconnect = Reconnect {
            addrs: self.cfg.my_addrs.clone(),
            client_cookie: self.session.client_cookie,
            server_cookie: self.session.server_cookie,
            global_seq: self.session.global_seq,
            connect_seq: self.session.connect_seq,
            msg_seq: self.session.in_seq,
        };
        self.state = State::Reconnect;
        self.send_control(Tag::SessionReconnect, &reconnect)
    }

    /// `handle_server_ident`, and Linux's `process_server_ident` for the features.
    fn server_ident(&mut self, ident: ServerIdent) -> Result<(), ConnError> {
        if !ident.addrs.0.contains(&self.peer_addr) {
            return Err(ConnError::PeerAddr {
                want: self.peer_addr,
                got: ident.addrs,
            });
        }
        let lacks = (self.cfg.features_required | MSG_ADDR2) & !ident.features_supported;
        if lacks != 0 {
            return Err(ConnError::PeerLacksFeatures(lacks));
        }
        let required = ident.features_required & !self.cfg.features_supported;
        if required != 0 {
            return Err(ConnError::FeaturesRequired(required));
        }
        self.session.server_cookie = ident.cookie;
        self.session.peer_global_seq = ident.global_seq;
        self.peer_addrs = ident.addrs;
        self.peer_num = ident.gid;
        self.features = ident.features_supported & self.cfg.features_supported;
        self.cfg.policy.lossy = ident.flags & FLAG_LOSSY != 0;
        self.ready(false)
    }

    /// `handle_client_ident`.
    fn client_ident(&mut self, ident: ClientIdent) -> Result<(), ConnError> {
        if ident
            .addrs
            .0
            .first()
            .is_none_or(|a| *a == EntityAddr::default())
        {
            return Err(ConnError::NoPeerAddr);
        }
        if !self.cfg.my_addrs.0.contains(&ident.target) {
            return Err(ConnError::NotUs { want: ident.target });
        }
        let required = self.cfg.features_required | MSG_ADDR2;
        let missing = required & !ident.features_supported;
        if missing != 0 {
            // The peer hangs up when it reads this.
            return self.send_control(Tag::IdentMissingFeatures, &Number(missing));
        }
        self.peer_addrs = ident.addrs.clone();
        self.peer_num = ident.gid;
        self.features = ident.features_supported & self.cfg.features_supported;
        self.session.client_cookie = ident.cookie;
        self.session.peer_global_seq = ident.global_seq;
        self.request = Some(Request::Ident(ident));
        let policy = self.cfg.policy;
        if policy.server && policy.lossy && !policy.register_lossy {
            return self.send_server_ident();
        }
        self.state = State::Decide;
        self.notices.session_request = true;
        Ok(())
    }

    /// `handle_reconnect`.
    fn reconnect_request(&mut self, reconnect: Reconnect) -> Result<(), ConnError> {
        self.peer_addrs = reconnect.addrs.clone();
        self.session.peer_global_seq = reconnect.global_seq;
        if self.cfg.policy.lossy {
            // Lossy sessions are never kept, so there is none to resume.
            return self.send_control(Tag::SessionReset, &Reset { full: true });
        }
        self.request = Some(Request::Reconnect(reconnect));
        self.state = State::Decide;
        self.notices.session_request = true;
        Ok(())
    }

    pub(super) fn send_server_ident(&mut self) -> Result<(), ConnError> {
        let lossy = self.cfg.policy.lossy;
        self.session.in_seq = 0;
        if !lossy {
            self.session.server_cookie = cookie(&mut self.cfg.cookie_seed);
        }
        let ident = ServerIdent {
            addrs: self.cfg.my_addrs.clone(),
            gid: self.cfg.me.num,
            global_seq: self.session.global_seq,
            features_supported: self.cfg.features_supported,
            features_required: self.cfg.features_required | MSG_ADDR2,
            flags: if lossy { FLAG_LOSSY } else { 0 },
            cookie: self.session.server_cookie,
        };
        self.send_control(Tag::ServerIdent, &ident)?;
        self.ready(false)
    }

    /// `ready`: the session is open, and what waited goes out.
    pub(super) fn ready(&mut self, resumed: bool) -> Result<(), ConnError> {
        self.state = State::Ready;
        self.request = None;
        self.notices.ready = Some(resumed);
        let lossy = self.cfg.policy.lossy;
        self.session
            .transmit(&mut self.tx, &mut self.out, lossy)
            .map_err(ConnError::from)
    }
}

fn check_banner(supported: u64, required: u64) -> Result<(), ConnError> {
    let unknown = required & !MSGR2_SUPPORTED;
    if unknown & MSGR2_COMPRESSION != 0 {
        return Err(ConnError::CompressionRequired);
    }
    if unknown != 0 {
        return Err(ConnError::UnknownMsgr2Features(unknown));
    }
    if supported & MSGR2_REVISION_1 == 0 {
        return Err(ConnError::Revision0);
    }
    Ok(())
}
