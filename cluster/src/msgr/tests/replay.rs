//! Our ends in the place of real ones: a captured stream of one side goes in, and what comes out is
//! compared with what the real other side sent.

use std::collections::VecDeque;

use crate::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now};
use crate::payload::Payload;

use super::super::control::*;
use super::super::features;
use super::super::frame::Tag;
use super::super::{Config, Connection, Event, OutBatch, Policy, testing::Answer};
use super::captures::{Seen, all_frames, secrets};
use super::pcap;

const NOW: Now = Now { mono: 5, wall: 5 };

fn output(conn: &mut Connection) -> Vec<u8> {
    let mut batch = OutBatch::new();
    conn.take_output(&mut batch);
    batch.slices().flatten().copied().collect()
}

/// Feeds `bytes` and answers the handshake's questions in turn; returns how many messages came out.
fn feed(conn: &mut Connection, bytes: &[u8], answers: &mut VecDeque<Answer>) -> usize {
    let mut input = bytes;
    let mut messages = 0;
    loop {
        let asks = match conn.next_event(&mut input, NOW).unwrap() {
            None => break,
            Some(Event::Message(_)) => {
                messages += 1;
                false
            }
            Some(Event::Hello { .. } | Event::Ready(_)) => false,
            Some(
                Event::AuthStart
                | Event::AuthRequest { .. }
                | Event::AuthMore(_)
                | Event::AuthDone { .. },
            ) => true,
            Some(e) => panic!("{e:?}"),
        };
        if asks {
            answers.pop_front().unwrap().apply(conn).unwrap();
        }
    }
    assert!(input.is_empty());
    messages
}

fn send(conn: &mut Connection, m: &Seen) {
    let [_, front, middle, data] = &m.segments;
    let data = [Payload::from(data.clone())];
    let write = |b: &mut Vec<u8>| b.extend_from_slice(front);
    conn.send(&m.header(), write, middle, &data).unwrap();
}

fn find(frames: &[Seen], tag: Tag) -> &Seen {
    frames.iter().find(|f| f.tag == tag).unwrap()
}

/// Without on-wire compression, which only real clients offer.
fn without_compression(frames: Vec<Seen>) -> Vec<Seen> {
    let compression = [Tag::CompressionRequest, Tag::CompressionDone];
    frames
        .into_iter()
        .filter(|f| !compression.contains(&f.tag))
        .collect()
}

fn wire(frames: &[Seen], tags: &[Tag]) -> Vec<u8> {
    let wanted = frames.iter().filter(|f| tags.contains(&f.tag));
    wanted.flat_map(|f| f.wire.clone()).collect()
}

const OUR_BANNER: [u8; 26] = *b"ceph v2\n\x10\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// A stream of a capture, and what its two sides do.
struct Scene {
    name: String,
    crc: bool,
    client: Vec<Seen>,
    server: Vec<Seen>,
    /// Session key and connection secret; empty for auth none.
    keys: (Vec<u8>, Vec<u8>),
    banners: [Vec<u8>; 2],
}

/// Streams that end with a session. Of authenticated ones only those of Ceph 16: signatures cover the
/// banner, and later clients offer on-wire compression in it.
fn scenes() -> Vec<Scene> {
    let mut names = Vec::new();
    for v in [16, 18, 20] {
        names.push((format!("v{v}-none-crc-rbd-info"), true));
        names.push((format!("v{v}-none-crcoff-rbd-info"), v == 16));
    }
    names.push(("v20-none-crc-rados".to_owned(), true));
    names.push(("v16-cephx-secure-rbd-info".to_owned(), true));
    let mut out = Vec::new();
    for (name, crc) in names {
        let keys = if name.contains("secure") {
            secrets(&name)
        } else {
            Vec::new()
        };
        for (i, stream) in pcap::streams(&name).iter().enumerate() {
            let keys = keys.get(i).cloned().unwrap_or_default();
            let [(client, _), (server, _)] = all_frames(stream, crc, Some(&keys.1));
            if server.iter().any(|f| f.tag == Tag::ServerIdent) {
                out.push(Scene {
                    name: name.clone(),
                    crc,
                    client: without_compression(client),
                    server: without_compression(server),
                    keys,
                    banners: [&stream.client, &stream.server].map(|s| s[..26].to_vec()),
                });
            }
        }
    }
    assert!(out.len() >= 24);
    out
}

const HANDSHAKE: [Tag; 9] = [
    Tag::Hello,
    Tag::AuthRequest,
    Tag::AuthBadMethod,
    Tag::AuthReplyMore,
    Tag::AuthRequestMore,
    Tag::AuthDone,
    Tag::AuthSignature,
    Tag::ClientIdent,
    Tag::ServerIdent,
];

/// Sends the messages of `ours` and compares their bytes, when the same messages of `theirs` have
/// come in before as they had in the capture.
fn exchange(conn: &mut Connection, ours: &[Seen], theirs: &[Seen], name: &str) {
    let messages = |f: &&Seen| f.tag == Tag::Message;
    let mut came = theirs.iter().filter(messages);
    let mut in_seq = 0;
    let mut none = VecDeque::new();
    for m in ours.iter().filter(messages) {
        while in_seq < m.header().ack_seq {
            let next = came.next().unwrap();
            assert_eq!(feed(conn, &next.wire, &mut none), 1);
            in_seq = next.header().seq;
        }
        send(conn, m);
        assert_eq!(output(conn), m.wire, "{name}");
    }
    for m in came {
        assert_eq!(feed(conn, &m.wire, &mut none), 1);
    }
    assert!(!conn.has_output());
}

#[test]
fn our_client_says_to_real_daemons_what_librados_said() {
    for s in scenes() {
        let name = &s.name;
        let client_ident = find(&s.client, Tag::ClientIdent);
        let ident: ClientIdent = client_ident.decode();
        let hello: Hello = find(&s.server, Tag::Hello).decode();
        let lossy = ident.flags & FLAG_LOSSY != 0;
        let blank = EntityAddr {
            nonce: ident.addrs.0[0].nonce,
            ..EntityAddr::default()
        };
        let me = EntityName::new(EntityType::CLIENT, ident.gid);
        let mut cfg = Config::client(me, EntityAddrVec(vec![blank]));
        cfg.features_supported = ident.features_supported;
        cfg.global_seq = ident.global_seq;
        cfg.crc_data = s.crc;
        if !lossy {
            cfg.policy = Policy::LOSSLESS_CLIENT;
            cfg.features_required = features::MSG_ADDR2;
        }
        let mut conn = Connection::client(cfg, ident.target, hello.entity_type);
        conn.start(NOW);
        assert_eq!(output(&mut conn), OUR_BANNER, "{name}");

        let mut answers = VecDeque::new();
        for f in &s.client {
            match f.tag {
                Tag::AuthRequest => {
                    let request: AuthRequest<'_> = f.decode();
                    answers.push_back(Answer::AuthRequest {
                        method: request.method,
                        modes: request.modes,
                        payload: request.payload.to_vec(),
                    });
                }
                Tag::AuthRequestMore => {
                    let AuthMore(payload) = f.decode();
                    answers.push_back(Answer::AuthMore(payload.to_vec()));
                }
                _ => {}
            }
        }
        answers.push_back(Answer::AuthFinish {
            session_key: s.keys.0.clone(),
            secret: s.keys.1.clone(),
        });
        let mut bytes = s.banners[1].clone();
        bytes.extend(wire(&s.server, &HANDSHAKE));
        assert_eq!(feed(&mut conn, &bytes, &mut answers), 0);
        assert!(answers.is_empty());
        let mut said = output(&mut conn);
        let mut want = wire(&s.client, &HANDSHAKE);
        if !lossy {
            // The cookie is random, so the last frame differs.
            said.truncate(said.len() - client_ident.wire.len());
            want.truncate(want.len() - client_ident.wire.len());
        }
        assert_eq!(said, want, "{name}");
        assert!(conn.is_ready() && conn.is_lossy());
        assert_eq!(conn.is_secure(), !s.keys.1.is_empty());
        assert_eq!(conn.peer().kind, hello.entity_type);
        exchange(&mut conn, &s.client, &s.server, name);
    }
}

#[test]
fn our_server_says_to_librados_what_real_daemons_said() {
    for s in scenes() {
        let name = &s.name;
        let ident: ServerIdent = find(&s.server, Tag::ServerIdent).decode();
        let hello: Hello = find(&s.server, Tag::Hello).decode();
        let me = EntityName::new(hello.entity_type, ident.gid);
        let mut cfg = Config::server(me, ident.addrs.clone());
        cfg.features_supported = ident.features_supported;
        cfg.global_seq = ident.global_seq;
        cfg.crc_data = s.crc;
        let mut conn = Connection::server(cfg, hello.peer_addr);
        conn.start(NOW);
        assert_eq!(output(&mut conn), OUR_BANNER);

        let mut answers = VecDeque::new();
        for f in &s.server {
            match f.tag {
                Tag::AuthReplyMore => {
                    let AuthMore(payload) = f.decode();
                    answers.push_back(Answer::AuthMore(payload.to_vec()));
                }
                Tag::AuthBadMethod => answers.push_back(Answer::AuthBadMethod(f.decode())),
                Tag::AuthDone => {
                    let done: AuthDone<'_> = f.decode();
                    answers.push_back(Answer::AuthDone {
                        global_id: done.global_id,
                        con_mode: done.con_mode,
                        payload: done.payload.to_vec(),
                        session_key: s.keys.0.clone(),
                        secret: s.keys.1.clone(),
                    });
                }
                _ => {}
            }
        }
        let mut bytes = s.banners[0].clone();
        bytes.extend(wire(&s.client, &HANDSHAKE));
        assert_eq!(feed(&mut conn, &bytes, &mut answers), 0);
        assert_eq!(output(&mut conn), wire(&s.server, &HANDSHAKE), "{name}");
        assert!(conn.is_ready() && conn.is_lossy() && answers.is_empty());
        assert_eq!(conn.features(), ident.features_supported);
        exchange(&mut conn, &s.server, &s.client, name);
    }
}
