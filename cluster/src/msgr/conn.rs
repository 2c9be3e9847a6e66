use std::time::Duration;

use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now, Reader, UTime};
use crate::payload::Payload;

use super::accept::Request;
use super::config::{Config, Side};
use super::control::{AuthDone, AuthMore, AuthRequest, Control, Number};
use super::error::{ConnError, SendError};
use super::event::{Event, Found, Message, Notices, Ready, State};
use super::frame::{FrameError, Tag};
use super::handshake::Transcript;
use super::header::MsgHeader;
use super::input::{Frame, Rx};
use super::output::{OutBatch, Tx};
use super::session::Session;

/// One session with one peer, over one stream at a time. See the [module](super) for how to drive
/// it, [`Event`] for what it wants of its owner.
#[derive(Debug)]
pub struct Connection {
    pub(super) cfg: Config,
    pub(super) side: Side,
    pub(super) state: State,
    pub(super) broken: Option<ConnError>,

    pub(super) rx: Rx,
    pub(super) tx: Tx,
    pub(super) out: OutBatch,
    /// What the handshake's signatures cover; gone once authenticated.
    pub(super) transcript: Option<Transcript>,

    /// A server learns it from HELLO.
    pub(super) peer_type: Option<EntityType>,
    /// The address that was dialled, or that the peer's socket has.
    pub(super) peer_addr: EntityAddr,
    pub(super) peer_addrs: EntityAddrVec,
    pub(super) peer_num: i64,
    pub(super) features: u64,
    pub(super) request: Option<Request>,
    pub(super) notices: Notices,

    pub(super) session: Session,
    pub(super) started: u64,
    pub(super) last_rx: u64,
    /// When a keepalive went out that nothing has been received since.
    pub(super) probe: Option<u64>,
    last_keepalive_ack: Option<UTime>,
    /// The peer's newest keepalive, to be answered with the next output. Only the newest: a peer
    /// that sends many and reads nothing must not make the output grow.
    pub(super) keepalive_reply: Option<UTime>,
}

impl Connection {
    /// A connection that dials `peer`, which must be a `peer_type`.
    pub fn client(cfg: Config, peer: EntityAddr, peer_type: EntityType) -> Connection {
        Connection::new(cfg, Side::Client, peer, Some(peer_type))
    }

    /// A connection that was accepted from the socket address in `peer`.
    pub fn server(cfg: Config, peer: EntityAddr) -> Connection {
        Connection::new(cfg, Side::Server, peer, None)
    }

    fn new(cfg: Config, side: Side, peer: EntityAddr, kind: Option<EntityType>) -> Connection {
        Connection {
            side,
            state: State::Idle,
            broken: None,
            rx: Rx::new(cfg.crc_data, cfg.max_message),
            tx: Tx::Crc { data: cfg.crc_data },
            out: OutBatch::new(),
            transcript: None,
            peer_type: kind,
            peer_addr: peer,
            peer_addrs: EntityAddrVec::default(),
            peer_num: -1,
            features: 0,
            request: None,
            notices: Notices::default(),
            session: Session::new(cfg.global_seq),
            started: 0,
            last_rx: 0,
            probe: None,
            last_keepalive_ack: None,
            keepalive_reply: None,
            cfg,
        }
    }

    /// The stream is there: queues our banner and starts the handshake's clock.
    pub fn start(&mut self, now: Now) {
        debug_assert_eq!(self.state, State::Idle);
        self.started = now.mono;
        self.last_rx = now.mono;
        self.probe = None;
        self.begin_handshake();
    }

    /// Takes bytes from the front of `input` and reports the first thing of interest in them.
    ///
    /// Call it until it returns `None`. Bytes left in `input` then wait for the owner's answer to
    /// the last event: answer, and call again with the same bytes (or with none: an answer may have
    /// events of its own, such as `Ready`). After an error the stream is of no use.
    pub fn next_event<'c, 'i: 'c>(
        &'c mut self,
        input: &mut &'i [u8],
        now: Now,
    ) -> Result<Option<Event<'c>>, ConnError> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        if !input.is_empty() {
            self.last_rx = now.mono;
            self.probe = None;
        }
        match self.advance(input) {
            Ok(None) => Ok(None),
            Ok(Some(found)) => self.event(found).map(Some),
            Err(e) => Err(self.fail(e)),
        }
    }

    fn advance<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Found<'i>>, ConnError> {
        loop {
            if let Some(found) = self.notice() {
                return Ok(Some(found));
            }
            match self.state {
                State::Ready => {}
                s if s.owners_turn() => return Ok(None),
                State::Banner => {
                    if !self.banner(input)? {
                        return Ok(None);
                    }
                    continue;
                }
                State::Idle | State::Standby | State::Down if input.is_empty() => return Ok(None),
                State::Idle | State::Standby | State::Down => return Err(ConnError::Down),
                _ => {}
            }
            let before = *input;
            let frame = self.rx.next(input)?;
            if let Some(t) = &mut self.transcript {
                t.received(&before[..before.len() - input.len()])?;
            }
            let Some(frame) = frame else {
                return Ok(None);
            };
            if frame.aborted {
                continue;
            }
            let found = match frame.tag {
                Tag::Message => self.message(frame)?,
                _ => self.control_frame(frame)?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    fn notice<'i>(&mut self) -> Option<Found<'i>> {
        if std::mem::take(&mut self.notices.auth_start) {
            Some(Found::AuthStart)
        } else if std::mem::take(&mut self.notices.session_request) {
            Some(Found::SessionRequest)
        } else if std::mem::take(&mut self.notices.reset) {
            Some(Found::SessionReset)
        } else {
            self.notices.ready.take().map(Found::Ready)
        }
    }

    /// `ProtocolV2::handle_message`.
    fn message<'i>(&mut self, frame: Frame<'i>) -> Result<Option<Found<'i>>, ConnError> {
        if self.state != State::Ready {
            return Err(self.unexpected(Tag::Message));
        }
        let bytes = self.rx.bytes(frame.bytes);
        let header = bytes[frame.segments[0].clone()]
            .first_chunk()
            .expect("the receiver has checked the header's length");
        let header = MsgHeader::decode(header);
        // A replay may repeat what had arrived just before the stream broke. Numbers may skip ahead:
        // senders pull messages out of their queue.
        if header.seq <= self.session.in_seq {
            return Ok(None);
        }
        self.session.in_seq = header.seq;
        if !self.cfg.policy.lossy {
            self.session.ack_left += 1;
            self.session.acked(header.ack_seq);
        }
        Ok(Some(Found::Message(header, frame)))
    }

    /// Frames of an open session; the handshake's are in `handshake`.
    fn control_frame<'i>(&mut self, frame: Frame<'i>) -> Result<Option<Found<'i>>, ConnError> {
        if self.state != State::Ready {
            return self.handshake_frame(frame);
        }
        match frame.tag {
            Tag::Keepalive2 => {
                self.keepalive_reply = Some(self.decode(&frame)?);
                Ok(None)
            }
            Tag::Keepalive2Ack => {
                let sent = self.decode::<UTime>(&frame)?;
                self.last_keepalive_ack = Some(sent);
                Ok(Some(Found::KeepaliveAck(sent)))
            }
            Tag::Ack => {
                let Number(seq) = self.decode(&frame)?;
                if !self.cfg.policy.lossy {
                    self.session.acked(seq);
                }
                Ok(None)
            }
            tag => Err(self.unexpected(tag)),
        }
    }

    /// Decodes a control frame into something that borrows nothing.
    pub(super) fn decode<C: for<'a> Control<'a>>(&self, f: &Frame<'_>) -> Result<C, ConnError> {
        decode_as(f.tag, self.payload(f))
    }

    pub(super) fn payload<'s>(&'s self, f: &'s Frame<'_>) -> &'s [u8] {
        &self.rx.bytes(f.bytes)[f.segments[0].clone()]
    }

    fn event<'c, 'i: 'c>(&'c mut self, found: Found<'i>) -> Result<Event<'c>, ConnError> {
        Ok(match found {
            Found::Hello(h) => Event::Hello {
                peer_type: h.entity_type,
                my_addr: h.peer_addr,
            },
            Found::AuthStart => Event::AuthStart,
            Found::SessionRequest => Event::SessionRequest,
            Found::SessionReset => Event::SessionReset,
            Found::KeepaliveAck(sent) => Event::KeepaliveAck(sent),
            Found::Ready(resumed) => Event::Ready(Ready {
                peer: self.peer(),
                features: self.features,
                lossy: self.cfg.policy.lossy,
                resumed,
            }),
            Found::Message(header, frame) => {
                let bytes = self.rx.bytes(frame.bytes);
                let [_, front, middle, data] = frame.segments;
                Event::Message(Message {
                    header,
                    front: &bytes[front],
                    middle: &bytes[middle],
                    data: &bytes[data],
                })
            }
            Found::Auth(frame) => {
                let Frame { tag, .. } = frame;
                let [first, ..] = frame.segments;
                let payload = &self.rx.bytes(frame.bytes)[first];
                match tag {
                    Tag::AuthBadMethod => Event::AuthBadMethod(decode_as(tag, payload)?),
                    Tag::AuthDone => {
                        let done: AuthDone<'c> = decode_as(tag, payload)?;
                        Event::AuthDone {
                            global_id: done.global_id,
                            con_mode: done.con_mode,
                            payload: done.payload,
                        }
                    }
                    Tag::AuthRequest => {
                        let request: AuthRequest<'c> = decode_as(tag, payload)?;
                        Event::AuthRequest {
                            method: request.method,
                            modes: request.modes,
                            payload: request.payload,
                        }
                    }
                    _ => Event::AuthMore(decode_as::<AuthMore<'c>>(tag, payload)?.0),
                }
            }
        })
    }

    /// Sends a message and returns its number in the session.
    ///
    /// `front` writes the front straight into the output. A lossy session must be open. A lossless
    /// one keeps the message until the peer has acknowledged it, and sends it when it can; its
    /// number is then only known once sent, and 0 is returned.
    pub fn send(
        &mut self,
        header: &MsgHeader,
        front: impl FnOnce(&mut Vec<u8>),
        middle: &[u8],
        data: &[Payload],
    ) -> Result<u64, SendError> {
        if let Some(e) = &self.broken {
            // A lossless session outlives this stream.
            if self.cfg.policy.lossy || self.state == State::Down {
                return Err(SendError::Broken(e.clone()));
            }
        }
        let limit = u64::from(self.cfg.max_message);
        let len = data.iter().map(|p| p.len() as u64).sum::<u64>() + middle.len() as u64;
        if len > limit {
            return Err(SendError::TooLong { len, limit });
        }
        let ready = self.state == State::Ready && self.broken.is_none();
        let sent = if !self.cfg.policy.lossy {
            if self.state == State::Down {
                return Err(SendError::Broken(ConnError::Down));
            }
            if self.session.queued() >= self.cfg.max_unacked {
                return Err(SendError::QueueFull(self.session.queued()));
            }
            self.session.store(header, front, middle, data);
            if !ready {
                return Ok(0);
            }
            self.session.transmit(&mut self.tx, &mut self.out, false)
        } else if ready {
            let header = MsgHeader {
                seq: self.session.out_seq + 1,
                ack_seq: self.session.in_seq,
                ..*header
            };
            let sent = self.tx.message(&mut self.out, &header, front, middle, data);
            self.session.out_seq += u64::from(sent.is_ok());
            sent
        } else {
            return Err(SendError::NotReady);
        };
        match sent {
            Ok(()) => Ok(self.session.out_seq),
            Err(e) => Err(SendError::Broken(self.fail(e.into()))),
        }
    }

    /// Sends a keepalive now; nothing happens unless the session is open.
    pub fn keepalive(&mut self, now: Now) {
        if self.state != State::Ready || self.broken.is_some() {
            return;
        }
        self.probe.get_or_insert(now.mono);
        let stamp = UTime::from_nanos(now.wall);
        let write = |b: &mut Vec<u8>| stamp.encode(b);
        let sent = self.tx.control(&mut self.out, Tag::Keepalive2, write);
        self.note(sent);
    }

    /// Swaps what is to be sent into `batch`, which must be empty: an earlier batch that was sent
    /// and cleared.
    pub fn take_output(&mut self, batch: &mut OutBatch) {
        assert!(batch.is_empty(), "the batch still holds unsent bytes");
        if let Some(stamp) = self.keepalive_reply.take().filter(|_| self.is_ready()) {
            let write = |b: &mut Vec<u8>| stamp.encode(b);
            let sent = self.tx.control(&mut self.out, Tag::Keepalive2Ack, write);
            self.note(sent);
        }
        if self.acks_due() {
            self.session.ack_left = 0;
            let seq = Number(self.session.in_seq);
            let write = |b: &mut Vec<u8>| seq.encode(b);
            let sent = self.tx.control(&mut self.out, Tag::Ack, write);
            self.note(sent);
        }
        std::mem::swap(&mut self.out, batch);
    }

    pub fn has_output(&self) -> bool {
        let reply = self.keepalive_reply.is_some() && self.is_ready();
        !self.out.is_empty() || reply || self.acks_due()
    }

    /// Bytes that [`Connection::take_output`] would hand over. An owner that must bound them stops
    /// reading from a peer that does not take what it asked for.
    pub fn output_len(&self) -> usize {
        self.out.len()
    }

    /// Lossy peers neither send nor expect acknowledgements. Lossless ones get one for all that was
    /// received since the last output, unless a message carried it.
    fn acks_due(&self) -> bool {
        self.session.ack_left > 0 && self.is_ready()
    }

    /// Lets time pass: fails on a deadline that has expired, sends the keepalive that is due.
    pub fn tick(&mut self, now: Now) -> Result<(), ConnError> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        if self.next_deadline().is_none_or(|at| now.mono < at) {
            return Ok(());
        }
        if self.state.in_handshake() {
            let limit = self.cfg.handshake_timeout;
            return Err(self.fail(ConnError::HandshakeTimeout(limit)));
        }
        if self.probe.is_some() {
            let limit = self.cfg.keepalive_timeout;
            return Err(self.fail(ConnError::PeerSilent(limit)));
        }
        self.keepalive(now);
        Ok(())
    }

    /// The monotonic moment at which [`Connection::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.broken.is_some() {
            return None;
        }
        if self.state.in_handshake() {
            return Some(later(self.started, self.cfg.handshake_timeout));
        }
        if self.state != State::Ready {
            return None;
        }
        match (self.probe, self.cfg.keepalive_interval) {
            (Some(sent), _) => Some(later(sent, self.cfg.keepalive_timeout)),
            (None, Some(interval)) => Some(later(self.last_rx, interval)),
            (None, None) => None,
        }
    }

    /// Ends the session: nothing more is sent or reported.
    pub fn mark_down(&mut self) {
        self.state = State::Down;
        self.broken = Some(ConnError::Down);
        self.out.clear();
        self.rx.reset();
        self.transcript = None;
        self.notices = Notices::default();
        self.session.reset();
    }

    /// The stream is gone. A lossless session stays, with the messages that were not acknowledged,
    /// until [`Connection::reconnect`] or [`Connection::take_over`] gives it a new stream; a lossy
    /// one is down. Says whether the session lives.
    pub fn lost(&mut self) -> bool {
        // A server that had no session yet has nothing to keep (`ProtocolV2::_fault`).
        let half_open = self.side == Side::Server && self.state.in_handshake();
        if self.cfg.policy.lossy || half_open || self.state == State::Down {
            self.mark_down();
            return false;
        }
        self.out.clear();
        self.rx.reset();
        self.tx = Tx::Crc {
            data: self.cfg.crc_data,
        };
        self.transcript = None;
        self.request = None;
        self.probe = None;
        self.keepalive_reply = None;
        self.broken = None;
        self.notices = Notices {
            reset: self.notices.reset,
            ..Notices::default()
        };
        self.session.requeue();
        self.state = State::Standby;
        true
    }

    /// Dials again for a lossless session whose stream was lost: call it when the new stream is
    /// there, with the number of this connection among all that our entity opened. Messages that the
    /// peer has not received are sent again once the session is open.
    pub fn reconnect(&mut self, global_seq: u64, now: Now) -> Result<(), ConnError> {
        if self.cfg.policy.lossy || self.cfg.policy.server || !self.lost() {
            return Err(ConnError::Down);
        }
        self.side = Side::Client;
        self.session.global_seq = global_seq;
        if self.session.server_cookie != 0 {
            self.session.connect_seq += 1;
        }
        self.state = State::Idle;
        self.start(now);
        Ok(())
    }

    /// Remembers an error that the caller cannot be told; the next call reports it.
    fn note(&mut self, done: Result<(), FrameError>) {
        if let Err(e) = done {
            self.fail(e.into());
        }
    }

    pub(super) fn fail(&mut self, e: ConnError) -> ConnError {
        self.broken = Some(e.clone());
        e
    }

    pub(super) fn unexpected(&self, tag: Tag) -> ConnError {
        let state = self.state.name();
        ConnError::Unexpected { tag, state }
    }

    /// Our addresses, with what the peer's HELLO has added.
    pub fn my_addrs(&self) -> &EntityAddrVec {
        &self.cfg.my_addrs
    }

    /// For a server that learns from HELLO what kind of peer it has.
    pub fn set_policy(&mut self, policy: super::Policy) {
        self.cfg.policy = policy;
    }

    /// For a client that a monitor has given a global_id.
    pub fn set_num(&mut self, num: i64) {
        self.cfg.me.num = num;
    }

    pub fn peer(&self) -> EntityName {
        EntityName::new(self.peer_type.unwrap_or_default(), self.peer_num)
    }

    /// As the peer gave them in its ident; empty before.
    pub fn peer_addrs(&self) -> &EntityAddrVec {
        &self.peer_addrs
    }

    pub fn features(&self) -> u64 {
        self.features
    }

    pub fn is_ready(&self) -> bool {
        self.state == State::Ready && self.broken.is_none()
    }

    pub fn is_lossy(&self) -> bool {
        self.cfg.policy.lossy
    }

    pub fn is_secure(&self) -> bool {
        matches!(self.tx, Tx::Secure(_))
    }

    /// The number of this connection, which the peer may have asked to raise: an owner that numbers
    /// its connections goes on from there.
    pub fn global_seq(&self) -> u64 {
        self.session.global_seq
    }

    /// When the last keepalive was sent that the peer has answered, by our clock.
    pub fn last_keepalive_ack(&self) -> Option<UTime> {
        self.last_keepalive_ack
    }

    /// The monotonic moment at which the peer was last heard.
    pub fn last_received(&self) -> u64 {
        self.last_rx
    }

    /// Messages of a lossless session that the peer has not acknowledged.
    pub fn unacked(&self) -> usize {
        self.session.queued()
    }

    /// Bytes that the frame being received still lacks, as far as is known; 0 between two frames.
    /// A driver may size its next read by it.
    pub fn missing(&self) -> usize {
        self.rx.missing()
    }
}

fn later(from: u64, by: Duration) -> u64 {
    Now {
        mono: from,
        wall: 0,
    }
    .after(by)
}

pub(super) fn decode_as<'a, C: Control<'a>>(tag: Tag, payload: &'a [u8]) -> Result<C, ConnError> {
    C::decode(&mut Reader::new(payload)).map_err(|error| ConnError::Decode { tag, error })
}
