//! Sessions that outlive their streams: whatever breaks when, every message arrives once, in order.

use proptest::prelude::*;

use super::super::accept::{Reply, TakeOver, Verdict, resolve};
use super::super::{MsgHeader, SendError};
use super::*;

/// A client, and a server that keeps sessions.
struct World {
    client: Connection,
    /// The session that the server keeps.
    kept: Option<Connection>,
    /// A new stream that has not become a session yet.
    incoming: Option<Connection>,
    up: Pipe,
    down: Pipe,
    mode: Mode,
    global_seq: u64,
    verdicts: Vec<Verdict>,
    /// Numbers of messages that arrived.
    at_server: Vec<u64>,
    at_client: Vec<u64>,
    resets: usize,
    resumed: usize,
}

fn now() -> Now {
    Now { mono: 9, wall: 9 }
}

impl World {
    fn new(mode: Mode) -> World {
        let mut cfg = client_config();
        cfg.policy = Policy::LOSSLESS_CLIENT;
        cfg.cookie_seed = 1;
        let mut world = World {
            client: Connection::client(cfg, server_addr(), EntityType::OSD),
            kept: None,
            incoming: None,
            up: Pipe::new(),
            down: Pipe::new(),
            mode,
            global_seq: 1,
            verdicts: Vec::new(),
            at_server: Vec::new(),
            at_client: Vec::new(),
            resets: 0,
            resumed: 0,
        };
        world.client.start(now());
        world.listen();
        world
    }

    fn listen(&mut self) {
        let mut cfg = server_config();
        cfg.policy = Policy::STATEFUL_SERVER;
        cfg.cookie_seed = 1000 + self.global_seq;
        let mut conn = Connection::server(cfg, client_socket());
        conn.start(now());
        self.incoming = Some(conn);
    }

    /// The stream breaks and the client dials again. The server may or may not notice.
    fn cut(&mut self, server_notices: bool) {
        self.up.cut();
        self.down.cut();
        if let Some(mut conn) = self.incoming.take() {
            assert!(!conn.lost());
        }
        if let Some(kept) = self.kept.as_mut().filter(|_| server_notices) {
            assert!(kept.lost());
        }
        self.global_seq = self.global_seq.max(self.client.global_seq()) + 1;
        self.client.reconnect(self.global_seq, now()).unwrap();
        self.listen();
    }

    /// Who holds the server's end of the stream.
    fn server(&mut self) -> Option<&mut Connection> {
        self.incoming.as_mut().or(self.kept.as_mut())
    }

    fn up(&mut self, n: usize) {
        self.up.fill(&mut self.client);
        let mode = self.mode;
        // One byte at a time where a stream may change hands, so that nothing is read ahead.
        let step = if self.incoming.is_some() { 1 } else { n };
        let Some(to) = self.incoming.as_mut().or(self.kept.as_mut()) else {
            return;
        };
        let mut asked = false;
        let mut left = n.min(self.up.len());
        loop {
            let piece = step.min(left);
            left -= piece;
            let (at_server, resets) = (&mut self.at_server, &mut self.resets);
            self.up
                .deliver(piece, to, now(), |e| {
                    match &e {
                        Event::Message(m) => at_server.push(m.header.tid),
                        Event::SessionRequest => asked = true,
                        Event::SessionReset => *resets += 1,
                        _ => {}
                    }
                    mode.answer(&e)
                })
                .unwrap();
            if left == 0 || asked {
                break;
            }
        }
        if asked {
            self.decide();
            // A decision has events of its own.
            self.up(0);
        }
    }

    fn decide(&mut self) {
        let mut incoming = self.incoming.take().unwrap();
        let verdict = resolve(self.kept.as_ref(), &incoming);
        self.verdicts.push(verdict);
        match verdict {
            Verdict::TakeOver(how) => {
                self.kept
                    .as_mut()
                    .unwrap()
                    .take_over(incoming, how)
                    .unwrap();
            }
            Verdict::Accept | Verdict::Supersede => {
                incoming.answer(verdict).unwrap();
                self.kept = Some(incoming);
            }
            Verdict::Reply(_) => {
                incoming.answer(verdict).unwrap();
                self.incoming = Some(incoming);
            }
            Verdict::Stale => panic!("stale"),
        }
    }

    fn down(&mut self, n: usize) {
        let mode = self.mode;
        let Some(from) = self.incoming.as_mut().or(self.kept.as_mut()) else {
            return;
        };
        self.down.fill(from);
        let (at_client, resets, resumed) =
            (&mut self.at_client, &mut self.resets, &mut self.resumed);
        self.down
            .deliver(n, &mut self.client, now(), |e| {
                match &e {
                    Event::Message(m) => at_client.push(m.header.tid),
                    Event::SessionReset => *resets += 1,
                    Event::Ready(r) => *resumed += usize::from(r.resumed),
                    _ => {}
                }
                mode.answer(&e)
            })
            .unwrap();
    }

    /// Until nothing is on its way.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.up(usize::MAX);
            self.down(usize::MAX);
            let server_quiet = self.server().is_none_or(|s| !s.has_output());
            if self.up.is_empty()
                && self.down.is_empty()
                && server_quiet
                && !self.client.has_output()
            {
                return;
            }
        }
        panic!("never quiet");
    }
}

fn send(conn: &mut Connection, tid: u64) {
    let header = MsgHeader {
        tid,
        ..MsgHeader::new(7, 1, 1)
    };
    let front = vec![tid as u8; 3 + (tid as usize * 37) % 200];
    conn.send(&header, |b| b.extend_from_slice(&front), &[], &[])
        .unwrap();
}

#[derive(Debug, Clone, Copy)]
enum Action {
    ClientSends,
    ServerSends,
    Up(usize),
    Down(usize),
    Cut { server_notices: bool },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => Just(Action::ClientSends),
        3 => Just(Action::ServerSends),
        4 => (1usize..700).prop_map(Action::Up),
        4 => (1usize..700).prop_map(Action::Down),
        1 => any::<bool>().prop_map(|server_notices| Action::Cut { server_notices }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_message_arrives_once_and_in_order(
        secure: bool,
        actions in proptest::collection::vec(action(), 0..120),
    ) {
        let mut w = World::new(if secure { Mode::Secure } else { Mode::Crc });
        let (mut to_server, mut to_client) = (0, 0);
        for a in actions {
            match a {
                Action::ClientSends => {
                    to_server += 1;
                    send(&mut w.client, to_server);
                }
                Action::ServerSends => {
                    if let Some(kept) = &mut w.kept {
                        to_client += 1;
                        send(kept, to_client);
                    }
                }
                Action::Up(n) => w.up(n),
                Action::Down(n) => w.down(n),
                Action::Cut { server_notices } => w.cut(server_notices),
            }
        }
        w.settle();
        prop_assert!(w.client.is_ready());
        prop_assert_eq!(w.resets, 0);
        prop_assert_eq!(w.at_server, (1..=to_server).collect::<Vec<_>>());
        prop_assert_eq!(w.at_client, (1..=to_client).collect::<Vec<_>>());
        prop_assert_eq!(w.client.unacked(), 0);
        prop_assert_eq!(w.kept.map_or(0, |k| k.unacked()), 0);
    }
}

#[test]
fn a_session_is_resumed_and_only_the_rest_is_replayed() {
    let mut w = World::new(Mode::Crc);
    w.settle();
    assert_eq!(w.verdicts, [Verdict::Accept]);
    (1..=3).for_each(|n| send(&mut w.client, n));
    w.up(usize::MAX);
    // The acknowledgement is lost, and so are the next messages.
    (4..=5).for_each(|n| send(&mut w.client, n));
    w.up.fill(&mut w.client);
    assert_eq!(w.client.unacked(), 5);
    w.cut(true);
    send(w.kept.as_mut().unwrap(), 1);
    w.settle();
    assert_eq!(w.at_server, [1, 2, 3, 4, 5]);
    assert_eq!(w.at_client, [1]);
    assert_eq!((w.resumed, w.client.unacked()), (1, 0));
    let resume = Verdict::TakeOver(TakeOver {
        resume: true,
        reset: false,
    });
    assert_eq!(w.verdicts[1..], [resume]);
}

#[test]
fn acks_are_coalesced() {
    let mut w = World::new(Mode::Crc);
    w.settle();
    (1..=9).for_each(|n| send(&mut w.client, n));
    w.up(usize::MAX);
    w.down.fill(w.kept.as_mut().unwrap());
    // One frame for nine messages: preamble, number, crc.
    assert_eq!(w.down.len(), 32 + 8 + 4);
    w.down(usize::MAX);
    assert_eq!(w.client.unacked(), 0);
    // A message carries the acknowledgement by itself.
    send(&mut w.client, 10);
    w.up(usize::MAX);
    send(w.kept.as_mut().unwrap(), 1);
    w.down(usize::MAX);
    assert!(!w.kept.as_ref().unwrap().has_output());
    assert_eq!(w.client.unacked(), 0);
}

#[test]
fn a_server_that_forgot_the_session_resets_it() {
    let mut w = World::new(Mode::Secure);
    w.settle();
    send(&mut w.client, 1);
    w.kept = None;
    w.cut(false);
    w.settle();
    let full = Verdict::Reply(Reply::Reset { full: true });
    assert_eq!(w.verdicts[1..], [full, Verdict::Accept]);
    assert_eq!(w.resets, 1);
    assert!(w.at_server.is_empty());
    send(&mut w.client, 2);
    w.settle();
    assert_eq!(w.at_server, [2]);
}

#[test]
fn a_client_that_restarted_starts_a_new_session() {
    let mut w = World::new(Mode::Crc);
    w.settle();
    send(w.kept.as_mut().unwrap(), 1);
    let mut cfg = client_config();
    cfg.policy = Policy::LOSSLESS_CLIENT;
    cfg.cookie_seed = 2;
    cfg.global_seq = 5;
    w.client = Connection::client(cfg, server_addr(), EntityType::OSD);
    w.client.start(now());
    w.listen();
    w.up.cut();
    w.down.cut();
    w.settle();
    let fresh = Verdict::TakeOver(TakeOver {
        resume: false,
        reset: true,
    });
    assert_eq!(w.verdicts[1..], [fresh]);
    // What waited for the old client is dropped, and the server is told.
    assert_eq!((w.resets, w.at_client.len()), (1, 0));
    send(w.kept.as_mut().unwrap(), 2);
    w.settle();
    assert_eq!(w.at_client, [2]);
}

#[test]
fn a_stale_number_makes_the_client_retry() {
    let mut w = World::new(Mode::Crc);
    w.settle();
    w.global_seq = 40;
    w.cut(true);
    w.settle();
    w.verdicts.clear();
    // The client's counter went back.
    w.up.cut();
    w.kept.as_mut().unwrap().lost();
    w.client.reconnect(3, now()).unwrap();
    w.listen();
    w.settle();
    let resume = Verdict::TakeOver(TakeOver {
        resume: true,
        reset: false,
    });
    let retry = Verdict::Reply(Reply::RetryGlobal { global_seq: 41 });
    assert_eq!(w.verdicts, [retry, resume]);
    assert_eq!(w.client.global_seq(), 42);

    w.verdicts.clear();
    w.client.session.connect_seq = 0;
    w.cut(true);
    w.settle();
    let retry = Verdict::Reply(Reply::Retry { connect_seq: 2 });
    assert_eq!(w.verdicts, [retry, resume]);
    assert_eq!(w.client.session.connect_seq, 3);
}

#[test]
fn a_reset_without_full_keeps_what_waits() {
    let mut w = World::new(Mode::Crc);
    w.settle();
    send(&mut w.client, 1);
    // As if the server had been the client and never seen the ident.
    w.kept.as_mut().unwrap().session.server_cookie = 0;
    w.cut(true);
    w.settle();
    let half = Verdict::Reply(Reply::Reset { full: false });
    assert_eq!(w.verdicts[1], half);
    assert_eq!(w.resets, 0);
    assert_eq!(w.at_server, [1]);
}

#[test]
fn when_both_dial_the_lower_address_waits() {
    let peer = |addr: EntityAddr| {
        let mut cfg = server_config();
        cfg.my_addrs = EntityAddrVec(vec![addr]);
        cfg.policy = Policy::LOSSLESS_PEER;
        cfg.cookie_seed = u64::from(addr.nonce);
        cfg
    };
    let (low, high) = (
        server_addr(),
        EntityAddr {
            nonce: 78,
            ..server_addr()
        },
    );
    // The stream that `from` dials to `to`, up to the server's decision, while `to` dials too.
    let dial = |from: EntityAddr, to: EntityAddr| {
        let mut client = Connection::client(peer(from), to, EntityType::OSD);
        let mut server = Connection::server(peer(to), from);
        let mut own = Connection::client(peer(to), from, EntityType::OSD);
        client.start(now());
        server.start(now());
        own.start(now());
        let (mut up, mut down) = (Pipe::new(), Pipe::new());
        let mut asked = false;
        while !asked {
            up.fill(&mut client);
            down.fill(&mut server);
            up.deliver(1, &mut server, now(), |e| {
                asked |= matches!(e, Event::SessionRequest);
                Mode::Crc.answer(&e)
            })
            .unwrap();
            down.deliver(1, &mut client, now(), |e| Mode::Crc.answer(&e))
                .unwrap();
        }
        let verdict = resolve(Some(&own), &server);
        if let Verdict::Reply(_) = verdict {
            server.answer(verdict).unwrap();
            down.fill(&mut server);
            let end = down.deliver(usize::MAX, &mut client, now(), |_| Answer::Nothing);
            assert_eq!(end, Err(ConnError::Wait));
        }
        verdict
    };
    assert!(matches!(dial(low, high), Verdict::TakeOver(_)));
    assert_eq!(dial(high, low), Verdict::Reply(Reply::Wait));
}

#[test]
fn the_queue_of_a_lossless_session_is_bounded() {
    let mut cfg = client_config();
    cfg.policy = Policy::LOSSLESS_CLIENT;
    cfg.max_unacked = 3;
    let mut conn = Connection::client(cfg, server_addr(), EntityType::OSD);
    let header = MsgHeader::new(1, 1, 1);
    for _ in 0..3 {
        assert_eq!(conn.send(&header, |_| (), &[], &[]), Ok(0));
    }
    let sent = conn.send(&header, |_| (), &[], &[]);
    assert_eq!(sent, Err(SendError::QueueFull(3)));
    conn.mark_down();
    assert_eq!(conn.unacked(), 0);
}
