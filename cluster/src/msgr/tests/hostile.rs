//! Bytes that no honest peer sends: an error at worst, never a panic, never memory by their say-so.

use proptest::prelude::*;

use super::super::frame::{Preamble, Tag};
use super::super::input::Rx;
use super::super::output::{OutBatch, Tx};
use super::super::{FrameError, MsgHeader};
use super::*;

/// Feeds bytes to a connection in any state; the owner answers what it is asked.
fn feed(conn: &mut Connection, mut input: &[u8], mode: Mode) {
    let now = Now { mono: 3, wall: 3 };
    loop {
        let answer = match conn.next_event(&mut input, now) {
            Ok(Some(e)) => mode.answer(&e),
            _ => return,
        };
        let _ = answer.apply(conn);
    }
}

/// A well-formed frame with any payload.
fn frame(tag: u8, payload: &[u8]) -> Vec<u8> {
    let tag = Tag::from_u8(1 + tag % 22).unwrap();
    let mut out = OutBatch::new();
    let write = |b: &mut Vec<u8>| b.extend_from_slice(payload);
    Tx::Crc { data: true }
        .control(&mut out, tag, write)
        .unwrap();
    out.slices().flatten().copied().collect()
}

proptest! {
    #[test]
    fn noise_at_any_point_never_panics(
        server: bool, secure: bool, good in 0usize..4000, noise: Vec<u8>,
        tags in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..150)), 0..4),
    ) {
        let mode = if secure { Mode::Secure } else { Mode::Crc };
        let mut pair = Pair::lossy(mode);
        let mut left = good;
        while left > 0 {
            pair.up.fill(&mut pair.client);
            pair.down.fill(&mut pair.server);
            if pair.up.is_empty() && pair.down.is_empty() {
                break;
            }
            let n = left.min(13);
            left -= n;
            pair.up.deliver(n, &mut pair.server, pair.now, |e| mode.answer(&e)).unwrap();
            pair.down.deliver(n, &mut pair.client, pair.now, |e| mode.answer(&e)).unwrap();
        }
        let victim = if server { &mut pair.server } else { &mut pair.client };
        for (tag, payload) in &tags {
            feed(victim, &frame(*tag, payload), mode);
        }
        feed(victim, &noise, mode);
        let _ = victim.tick(Now { mono: u64::MAX, wall: 0 });
        let _ = victim.has_output();
        victim.lost();
    }

    #[test]
    fn a_receiver_of_noise_never_panics(noise: Vec<u8>, crc: bool, lens: [u32; 4]) {
        let mut rx = Rx::new(crc, 4096);
        let _ = rx.next(&mut &noise[..]);
        // A valid preamble before the noise.
        let mut bytes = Preamble::new(Tag::Message, lens.map(|l| l % 64)).encode().to_vec();
        bytes.extend_from_slice(&noise);
        let mut rx = Rx::new(crc, 4096);
        let mut input = &bytes[..];
        while let Ok(Some(_)) = rx.next(&mut input) {}
    }
}

#[test]
fn an_announced_length_allocates_nothing() {
    let mut rx = Rx::new(true, 96 << 20);
    let mut bytes = Preamble::new(Tag::Message, [41, 0, 0, 90 << 20])
        .encode()
        .to_vec();
    bytes.extend_from_slice(&[0; 1000]);
    assert!(rx.next(&mut &bytes[..]).unwrap().is_none());
    assert_eq!(rx.missing(), 32 + 41 + 4 + (90 << 20) + 13 - bytes.len());
    assert!(rx.start().len() == bytes.len() && rx.capacity() < 8192);
}

#[test]
fn a_header_of_another_size_is_refused() {
    let mut rx = Rx::new(true, 4096);
    let bytes = Preamble::new(Tag::Message, [40, 0, 0, 0]).encode();
    let err = rx.next(&mut &bytes[..]).unwrap_err();
    assert_eq!(err, FrameError::HeaderLength(40));
}

#[test]
fn an_aborted_message_is_dropped_and_the_stream_goes_on() {
    let mut pair = Pair::lossy(Mode::Crc);
    pair.open();
    let mut out = OutBatch::new();
    let mut tx = Tx::Crc { data: true };
    let header = |seq| MsgHeader {
        seq,
        tid: seq,
        ..MsgHeader::new(1, 1, 1)
    };
    tx.message(&mut out, &header(1), |b| b.push(1), &[], &[])
        .unwrap();
    let mut bytes: Vec<u8> = out.slices().flatten().copied().collect();
    let late = bytes.len() - 13;
    bytes[late] = 0x1;
    bytes[late - 1] = 0;
    out.clear();
    tx.message(&mut out, &header(2), |b| b.push(2), &[], &[])
        .unwrap();
    bytes.extend(out.slices().flatten());
    let mut input = &bytes[..];
    match pair.server.next_event(&mut input, pair.now).unwrap() {
        Some(Event::Message(m)) => assert_eq!((m.header.tid, m.front), (2, &[2][..])),
        other => panic!("{other:?}"),
    }
    bytes[late] = 0x7;
    let end = pair
        .server
        .next_event(&mut &bytes[..], pair.now)
        .unwrap_err();
    assert_eq!(end, ConnError::Frame(FrameError::LateStatus(7)));
}

#[test]
fn frames_in_the_wrong_state_are_named() {
    let mut pair = Pair::lossy(Mode::Crc);
    pair.open();
    let bytes = frame(Tag::Hello as u8 - 1, &[]);
    let end = pair
        .server
        .next_event(&mut &bytes[..], pair.now)
        .unwrap_err();
    assert_eq!(end.to_string(), "peer sent Hello while the session is open");

    let mut pair = Pair::lossy(Mode::Crc);
    let mut bytes = b"ceph v2\n\x10\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend(frame(Tag::Ack as u8 - 1, &[0; 8]));
    let end = pair
        .server
        .next_event(&mut &bytes[..], pair.now)
        .unwrap_err();
    assert_eq!(end.to_string(), "peer sent Ack while waiting for HELLO");
}

#[test]
fn a_lossy_server_resets_who_wants_to_resume() {
    use super::super::control::{Control, Reconnect, Reset};
    let mut pair = Pair::lossy(Mode::Crc);
    // As a client with a session from before.
    pair.client.session.server_cookie = 5;
    pair.client.session.client_cookie = 6;
    let mut resets = 0;
    pair.run(
        || 9999,
        |_, e| resets += usize::from(matches!(e, Event::SessionReset)),
    )
    .unwrap();
    assert!(pair.client.is_ready() && resets == 1);
    let mut bytes = Vec::new();
    Reconnect {
        addrs: EntityAddrVec::default(),
        client_cookie: 1,
        server_cookie: 2,
        global_seq: 3,
        connect_seq: 4,
        msg_seq: 5,
    }
    .encode(&mut bytes);
    Reset { full: true }.encode(&mut bytes);
    feed(&mut pair.server, &bytes, Mode::Crc);
}

#[test]
fn floods_do_not_make_the_output_grow() {
    let mut pair = Pair::lossy(Mode::Crc);
    pair.open();
    let keepalive = frame(Tag::Keepalive2 as u8 - 1, &[9; 8]);
    for _ in 0..1000 {
        feed(&mut pair.server, &keepalive, Mode::Crc);
    }
    pair.down.fill(&mut pair.server);
    assert_eq!(pair.down.len(), keepalive.len());

    // A peer that keeps asking for a session we do not have, and reads no answer.
    let mut pair = Pair::lossy(Mode::Crc);
    while !pair.client.is_ready() {
        pair.up.fill(&mut pair.client);
        let answer = |e: Event<'_>| Mode::Crc.answer(&e);
        pair.up
            .deliver(1, &mut pair.server, pair.now, answer)
            .unwrap();
        if pair.server.state == super::super::event::State::Accept {
            break;
        }
        pair.down.fill(&mut pair.server);
        let n = pair.down.len();
        pair.down
            .deliver(n, &mut pair.client, pair.now, answer)
            .unwrap();
    }
    let mut bytes = Vec::new();
    EntityAddrVec::default().encode(&mut bytes);
    bytes.extend_from_slice(&[1; 40]);
    let reconnect = frame(Tag::SessionReconnect as u8 - 1, &bytes);
    let end = (0..100_000).find_map(|_| {
        let mut input = &reconnect[..];
        pair.server.next_event(&mut input, pair.now).err()
    });
    assert_eq!(end, Some(ConnError::HandshakeTooLong { limit: 1 << 20 }));
}

#[test]
fn a_message_that_comes_twice_is_seen_once() {
    let mut pair = Pair::lossy(Mode::Crc);
    pair.open();
    for tid in 1..=2 {
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(1, 1, 1)
        };
        pair.client.send(&header, |b| b.push(1), &[], &[]).unwrap();
    }
    let mut batch = OutBatch::new();
    pair.client.take_output(&mut batch);
    let once = batch.contiguous().unwrap();
    let mut tids = Vec::new();
    for _ in 0..2 {
        let mut input = once;
        while let Some(e) = pair.server.next_event(&mut input, pair.now).unwrap() {
            match e {
                Event::Message(m) => tids.push(m.header.tid),
                e => panic!("{e:?}"),
            }
        }
    }
    assert_eq!(tids, [1, 2]);
}
