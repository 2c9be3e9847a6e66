//! A client and a server of ours: handshake, messages, keepalives, in both modes.

use std::time::Duration;

use proptest::prelude::*;

use crate::codec::{AddrType, UTime};
use crate::payload::Payload;

use super::super::control::AuthBadMethod;
use super::super::features::Names;
use super::super::{MsgHeader, SendError, features};
use super::*;

const MODES: [Mode; 2] = [Mode::Crc, Mode::Secure];

/// A message as it was sent or received.
type Sent = (u64, Vec<u8>, Vec<u8>, Vec<u8>);

fn send(conn: &mut Connection, m: &Sent) {
    let header = MsgHeader {
        tid: m.0,
        ..MsgHeader::new(42, 8, 1)
    };
    // In two payloads, so that large and small ones mix.
    let cut = m.3.len() / 3;
    let data = [
        Payload::from(m.3[..cut].to_vec()),
        Payload::from(m.3[cut..].to_vec()),
    ];
    conn.send(&header, |b| b.extend_from_slice(&m.1), &m.2, &data)
        .unwrap();
}

fn received(e: &Event<'_>) -> Option<Sent> {
    match e {
        Event::Message(m) => Some((
            m.header.tid,
            m.front.to_vec(),
            m.middle.to_vec(),
            m.data.to_vec(),
        )),
        _ => None,
    }
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    (0..max, any::<u8>()).prop_map(|(n, b)| (0..n).map(|i| b.wrapping_add(i as u8)).collect())
}

fn messages() -> impl Strategy<Value = Vec<Sent>> {
    let data = prop_oneof![Just(vec![]), bytes(300), bytes(40_000)];
    let middle = prop_oneof![4 => Just(vec![]), 1 => bytes(40)];
    proptest::collection::vec((any::<u64>(), bytes(400), middle, data), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn messages_arrive_whole_however_the_stream_is_cut(
        secure: bool,
        up in messages(),
        down in messages(),
        pieces in proptest::collection::vec(prop_oneof![1usize..40, 1usize..3000, 1usize..100_000], 1..20),
    ) {
        let mode = MODES[usize::from(secure)];
        let mut pair = Pair::lossy(mode);
        let mut turn = 0;
        let mut piece = move || {
            turn += 1;
            pieces[turn % pieces.len()]
        };
        pair.run(&mut piece, |_, _| ()).unwrap();
        prop_assert!(pair.client.is_ready() && pair.server.is_ready());
        prop_assert_eq!(pair.client.is_secure(), secure);
        up.iter().for_each(|m| send(&mut pair.client, m));
        down.iter().for_each(|m| send(&mut pair.server, m));
        let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
        pair.run(&mut piece, |server, e| {
            let to = if server { &mut at_server } else { &mut at_client };
            to.extend(received(e));
        }).unwrap();
        prop_assert_eq!(at_server, up);
        prop_assert_eq!(at_client, down);
        prop_assert_eq!(pair.client.missing(), 0);
    }

    #[test]
    fn a_flipped_bit_ends_the_connection(
        secure: bool, at in any::<prop::sample::Index>(), bit in 0u8..8, before in 0usize..3,
    ) {
        let mut pair = Pair::lossy(MODES[usize::from(secure)]);
        pair.open();
        for tid in 0..before as u64 {
            send(&mut pair.client, &(tid, vec![1; 50], vec![], vec![2; 5000]));
        }
        send(&mut pair.client, &(99, vec![3; 77], vec![4; 5], vec![5; 10_000]));
        pair.up.fill(&mut pair.client);
        let byte = at.index(pair.up.len());
        pair.up.flip(byte, bit);
        let mut got = Vec::new();
        let end = pair.run(|| 1000, |_, e| got.extend(received(e)));
        if end.is_ok() {
            // No crc covers the late status: four of its bits have no meaning, and no single flip
            // turns complete into aborted. A flip there loses nothing.
            prop_assert!(!secure);
            prop_assert_eq!(got.len(), before + 1);
            prop_assert!(bit >= 4);
        } else {
            prop_assert!(got.len() <= before);
            // The error stays.
            prop_assert!(pair.server.next_event(&mut &b"x"[..], pair.now).is_err());
        }
    }
}

#[test]
fn the_handshake_tells_each_side_about_the_other() {
    for mode in MODES {
        let mut pair = Pair::lossy(mode);
        let mut seen = Vec::new();
        pair.run(
            || 7,
            |server, e| match e {
                Event::Hello { peer_type, my_addr } => {
                    seen.push(format!("{server} hello {peer_type} {my_addr}"));
                }
                Event::Ready(r) => {
                    assert_eq!(r.features, features::SUPPORTED);
                    seen.push(format!(
                        "{server} ready {} {} {}",
                        r.peer, r.lossy, r.resumed
                    ));
                }
                _ => {}
            },
        )
        .unwrap();
        seen.sort();
        assert_eq!(
            seen,
            [
                "false hello osd v2:127.0.0.1:50000/0",
                "false ready osd.3 true false",
                "true hello client v2:127.0.0.1:6800/77",
                "true ready client.4242 true false",
            ]
        );
        let me = pair.client.my_addrs().0[0];
        assert_eq!(me.to_string(), "any:127.0.0.1:0/4711");
        assert_eq!(me.kind, AddrType::ANY);
        assert_eq!(pair.server.peer_addrs(), pair.client.my_addrs());
        assert_eq!(pair.client.peer_addrs().0, [server_addr()]);
    }
}

#[test]
fn a_wrong_key_is_found_by_the_signature() {
    let mut pair = Pair::lossy(Mode::Crc);
    let end = loop {
        pair.up.fill(&mut pair.client);
        pair.down.fill(&mut pair.server);
        let answer = |e: Event<'_>, key: u8| match Mode::Crc.answer(&e) {
            Answer::AuthDone {
                global_id,
                con_mode,
                payload,
                ..
            } => Answer::AuthDone {
                global_id,
                con_mode,
                payload,
                session_key: vec![key; 16],
                secret: vec![],
            },
            Answer::AuthFinish { .. } => Answer::AuthFinish {
                session_key: vec![key; 16],
                secret: vec![],
            },
            other => other,
        };
        let up = pair
            .up
            .deliver(9999, &mut pair.server, pair.now, |e| answer(e, 1));
        let down = pair
            .down
            .deliver(9999, &mut pair.client, pair.now, |e| answer(e, 2));
        if let Err(e) = up.and(down) {
            break e;
        }
    };
    assert_eq!(end, ConnError::Signature);
}

#[test]
fn a_server_cannot_choose_a_mode_that_was_not_offered() {
    let mut pair = Pair::lossy(Mode::Secure);
    let end = loop {
        pair.up.fill(&mut pair.client);
        pair.down.fill(&mut pair.server);
        pair.up
            .deliver(9999, &mut pair.server, pair.now, |e| {
                match Mode::Crc.answer(&e) {
                    Answer::AuthMore(_) => Mode::Crc.answer(&Event::AuthMore(b"proof")),
                    other => other,
                }
            })
            .unwrap();
        if let Err(e) = pair.down.deliver(9999, &mut pair.client, pair.now, |e| {
            Mode::Secure.answer(&e)
        }) {
            break e;
        }
    };
    assert_eq!(end, ConnError::ConMode { got: CON_MODE_CRC });
}

#[test]
fn a_refused_method_can_be_replaced() {
    let mut pair = Pair::lossy(Mode::Crc);
    let refusal = AuthBadMethod {
        method: 2,
        result: -95,
        allowed_methods: vec![1],
        allowed_modes: vec![1, 2],
    };
    let mut asked = Vec::new();
    while !pair.client.is_ready() {
        pair.up.fill(&mut pair.client);
        let server = |e: Event<'_>| match e {
            Event::AuthRequest { method, .. } => {
                asked.push(method);
                if method == 2 {
                    Answer::AuthBadMethod(refusal.clone())
                } else {
                    Mode::Crc.answer(&Event::AuthMore(b"proof"))
                }
            }
            _ => Answer::Nothing,
        };
        let n = pair.up.len();
        pair.up
            .deliver(n, &mut pair.server, pair.now, server)
            .unwrap();
        pair.down.fill(&mut pair.server);
        let client = |e: Event<'_>| match e {
            Event::AuthBadMethod(got) => {
                assert_eq!(got, refusal);
                Answer::AuthRequest {
                    method: 1,
                    modes: vec![CON_MODE_CRC],
                    payload: vec![],
                }
            }
            e => Mode::Crc.answer(&e),
        };
        let n = pair.down.len();
        pair.down
            .deliver(n, &mut pair.client, pair.now, client)
            .unwrap();
    }
    assert_eq!(asked, [2, 1]);
}

#[test]
fn missing_features_are_named() {
    let mut old = client_config();
    old.features_supported &= !(1 << 48);
    let mut pair = Pair::new(old, server_config(), Mode::Crc);
    let end = pair.run(|| 9999, |_, _| ()).unwrap_err();
    assert_eq!(end.to_string(), "peer requires features we lack: CRUSH_V4");

    let mut demanding = client_config();
    demanding.features_required |= 1 << 51;
    let mut pair = Pair::new(demanding, server_config(), Mode::Crc);
    let end = pair.run(|| 9999, |_, _| ()).unwrap_err();
    assert_eq!(end, ConnError::PeerLacksFeatures(1 << 51));
    assert!(end.to_string().ends_with(&Names(1 << 51).to_string()));
}

#[test]
fn peers_that_cannot_be_talked_to_get_one_clear_line() {
    let now = Now::default();
    let client = || {
        let mut c = Connection::client(client_config(), server_addr(), EntityType::OSD);
        c.start(now);
        c
    };
    let banner = |supported: u64, required: u64| {
        let mut b = b"ceph v2\n\x10\0".to_vec();
        b.extend_from_slice(&supported.to_le_bytes());
        b.extend_from_slice(&required.to_le_bytes());
        b
    };
    let cases = [
        (b"ceph v027".to_vec(), "peer speaks messenger v1 only"),
        (
            b"HTTP/1.1 400\r\n".to_vec(),
            "peer does not speak messenger v2 (its banner is \"HTTP/1.1\")",
        ),
        (
            b"SS".to_vec(),
            "peer does not speak messenger v2 (its banner is \"SS\")",
        ),
        (
            banner(0, 0),
            "peer lacks msgr2.1, which came with Ceph 14.2.11 and 15.2.5",
        ),
        (
            banner(3, 2),
            "peer requires on-wire compression, which is not supported",
        ),
        (banner(7, 4), "peer requires unknown msgr2 features 0x4"),
    ];
    for (bytes, want) in cases {
        let err = client().next_event(&mut &bytes[..], now).unwrap_err();
        assert_eq!(err.to_string(), want);
    }
    // Cut anywhere, a good banner is waited for.
    let mut c = client();
    for b in banner(3, 0) {
        assert!(c.next_event(&mut &[b][..], now).unwrap().is_none());
    }
    assert!(c.has_output());
}

#[test]
fn a_peer_of_another_kind_or_address_is_refused() {
    let mut pair = Pair::lossy(Mode::Crc);
    pair.client = Connection::client(client_config(), server_addr(), EntityType::MON);
    pair.client.start(pair.now);
    let end = pair.run(|| 9999, |_, _| ()).unwrap_err();
    assert_eq!(end.to_string(), "peer is a osd, not a mon");

    let mut pair = Pair::lossy(Mode::Crc);
    let other = EntityAddr {
        nonce: 78,
        ..server_addr()
    };
    pair.client = Connection::client(client_config(), other, EntityType::OSD);
    pair.client.start(pair.now);
    let end = pair.run(|| 9999, |_, _| ()).unwrap_err();
    assert_eq!(end, ConnError::NotUs { want: other });
}

#[test]
fn keepalives_are_answered_and_silence_is_noticed() {
    let mut cfg = client_config();
    cfg.keepalive_interval = Some(Duration::from_secs(10));
    cfg.keepalive_timeout = Duration::from_secs(30);
    let mut pair = Pair::new(cfg, server_config(), Mode::Secure);
    pair.open();
    let secs = |s: u64| Now {
        mono: s * 1_000_000_000,
        wall: (s + 1000) * 1_000_000_000,
    };
    assert_eq!(
        pair.client.next_deadline(),
        Some(pair.now.mono + secs(10).mono)
    );
    pair.client.tick(secs(5)).unwrap();
    assert!(!pair.client.has_output());
    pair.client.tick(secs(11)).unwrap();
    assert!(pair.client.has_output());
    pair.now = secs(12);
    let mut acks = 0;
    pair.run(
        || 9999,
        |server, e| {
            assert!(!server, "the server's owner need not know");
            assert!(matches!(
                e,
                Event::KeepaliveAck(UTime { sec: 1011, nsec: 0 })
            ));
            acks += 1;
        },
    )
    .unwrap();
    assert_eq!(acks, 1);
    assert_eq!(
        pair.client.last_keepalive_ack(),
        Some(UTime { sec: 1011, nsec: 0 })
    );
    assert_eq!(pair.client.next_deadline(), Some(secs(22).mono));
    pair.client.tick(secs(22)).unwrap();
    assert_eq!(pair.client.next_deadline(), Some(secs(52).mono));
    pair.client.tick(secs(51)).unwrap();
    let end = pair.client.tick(secs(52)).unwrap_err();
    assert_eq!(end.to_string(), "peer silent for 30s");
    assert_eq!(pair.client.next_deadline(), None);
}

#[test]
fn a_handshake_that_stalls_times_out() {
    let mut pair = Pair::lossy(Mode::Crc);
    let at = pair.client.next_deadline().unwrap();
    assert_eq!(at, pair.now.mono + 10_000_000_000);
    pair.client
        .tick(Now {
            mono: at - 1,
            wall: 0,
        })
        .unwrap();
    let end = pair.client.tick(Now { mono: at, wall: 0 }).unwrap_err();
    assert_eq!(end.to_string(), "handshake not done after 10s");
    let header = MsgHeader::new(1, 1, 1);
    let sent = pair.client.send(&header, |_| (), &[], &[]);
    assert_eq!(sent, Err(SendError::Broken(end)));
}

#[test]
fn lossy_peers_exchange_no_acks_and_keep_nothing() {
    let mut pair = Pair::lossy(Mode::Crc);
    let header = MsgHeader::new(1, 1, 1);
    let early = pair.client.send(&header, |_| (), &[], &[]);
    assert_eq!(early, Err(SendError::NotReady));
    pair.open();
    for i in 1..=5 {
        assert_eq!(pair.client.send(&header, |b| b.push(1), &[], &[]), Ok(i));
    }
    pair.run(|| 9999, |_, _| ()).unwrap();
    assert!(!pair.server.has_output());
    assert_eq!(pair.client.unacked(), 0);
    assert!(!pair.client.lost());
    assert!(pair.client.reconnect(2, pair.now).is_err());
}

#[test]
fn messages_of_the_limit_pass_and_larger_ones_do_not() {
    let mut cfg = server_config();
    cfg.max_message = 1000;
    let mut pair = Pair::new(client_config(), cfg, Mode::Crc);
    pair.open();
    send(&mut pair.client, &(1, vec![0; 500], vec![], vec![0; 459]));
    pair.run(|| 9999, |_, _| ()).unwrap();
    send(&mut pair.client, &(2, vec![0; 500], vec![], vec![0; 460]));
    let end = pair.run(|| 9999, |_, _| ()).unwrap_err();
    assert_eq!(
        end.to_string(),
        "Message frame of 1001 bytes is above the limit of 1000"
    );
    let big = [Payload::from(vec![0; 1001])];
    let sent = pair
        .server
        .send(&MsgHeader::new(1, 1, 1), |_| (), &[], &big);
    assert_eq!(sent, Err(SendError::Broken(end)));
}
