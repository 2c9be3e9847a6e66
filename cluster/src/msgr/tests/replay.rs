//! Our ends in the place of real ones: a captured stream of one side goes in, and what comes out is
//! compared with what the real other side sent.

use crate::codec::{EntityAddr, Now};
use crate::payload::Payload;

use super::super::control::*;
use super::super::features;
use super::super::frame::Tag;
use super::super::{Config, Connection, Event, OutBatch, Policy, testing::Answer};
use super::captures::{Seen, banner, frames};
use super::pcap;

const NOW: Now = Now { mono: 5, wall: 5 };

fn output(conn: &mut Connection) -> Vec<u8> {
    let mut batch = OutBatch::new();
    conn.take_output(&mut batch);
    batch.slices().flatten().copied().collect()
}

/// Feeds `bytes` and answers as auth none wants; returns how many messages came out.
fn feed(conn: &mut Connection, bytes: &[u8], answer: &Answer) -> usize {
    let mut input = bytes;
    let mut messages = 0;
    loop {
        let wanted = match conn.next_event(&mut input, NOW).unwrap() {
            None => break,
            Some(Event::AuthStart | Event::AuthRequest { .. }) => true,
            Some(Event::AuthDone { .. }) => {
                conn.auth_finish(&[], &[]).unwrap();
                false
            }
            Some(Event::Message(_)) => {
                messages += 1;
                false
            }
            Some(Event::Hello { .. } | Event::Ready(_)) => false,
            Some(e) => panic!("{e:?}"),
        };
        match answer {
            Answer::AuthRequest {
                method,
                modes,
                payload,
            } if wanted => {
                conn.auth_request(*method, modes, payload).unwrap();
            }
            Answer::AuthDone {
                global_id,
                con_mode,
                ..
            } if wanted => {
                conn.auth_done(*global_id, *con_mode, &[], &[], &[])
                    .unwrap();
            }
            _ => {}
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

fn captures() -> Vec<(String, bool)> {
    let mut out = Vec::new();
    for v in [16, 18, 20] {
        out.push((format!("v{v}-none-crc-rbd-info"), true));
        out.push((format!("v{v}-none-crcoff-rbd-info"), v == 16));
    }
    out.push(("v20-none-crc-rados".to_owned(), true));
    out
}

#[test]
fn our_client_says_to_real_daemons_what_librados_said() {
    for (name, crc) in captures() {
        for stream in pcap::streams(&name) {
            let (server_banner, _, _) = banner(&stream.server);
            let client = without_compression(frames(&stream.client, crc, usize::MAX).0);
            let server = without_compression(frames(&stream.server, crc, usize::MAX).0);
            if !client.iter().any(|f| f.tag == Tag::ClientIdent) {
                continue; // hung up early
            }
            let ident: ClientIdent = find(&client, Tag::ClientIdent).decode();
            let hello: Hello = find(&server, Tag::Hello).decode();
            let lossy = ident.flags & FLAG_LOSSY != 0;
            let blank = EntityAddr {
                nonce: ident.addrs.0[0].nonce,
                ..EntityAddr::default()
            };
            let me = crate::codec::EntityName::new(crate::codec::EntityType::CLIENT, ident.gid);
            let mut cfg = Config::client(me, crate::codec::EntityAddrVec(vec![blank]));
            cfg.features_supported = ident.features_supported;
            cfg.global_seq = ident.global_seq;
            cfg.crc_data = crc;
            if !lossy {
                cfg.policy = Policy::LOSSLESS_CLIENT;
                cfg.features_required = features::MSG_ADDR2;
            }
            let mut conn = Connection::client(cfg, ident.target, hello.entity_type);
            conn.start(NOW);
            assert_eq!(output(&mut conn), OUR_BANNER, "{name}");

            let request: AuthRequest<'_> = find(&client, Tag::AuthRequest).decode();
            let answer = Answer::AuthRequest {
                method: request.method,
                modes: request.modes.clone(),
                payload: request.payload.to_vec(),
            };
            let handshake: Vec<u8> = stream.server[..26]
                .iter()
                .copied()
                .chain(wire(
                    &server,
                    &[Tag::Hello, Tag::AuthDone, Tag::AuthSignature],
                ))
                .collect();
            assert_eq!(feed(&mut conn, &handshake, &answer), 0);
            let mut tags = vec![Tag::Hello, Tag::AuthRequest, Tag::AuthSignature];
            let mut said = output(&mut conn);
            if lossy {
                tags.push(Tag::ClientIdent);
            } else {
                // The cookie is random: the last frame differs in it and in its crc.
                said.truncate(said.len() - find(&client, Tag::ClientIdent).wire.len());
            }
            assert_eq!(said, wire(&client, &tags), "{name}");

            feed(&mut conn, &wire(&server, &[Tag::ServerIdent]), &answer);
            assert!(conn.is_ready() && conn.is_lossy() && server_banner & 1 == 1);
            assert_eq!(conn.peer().kind, hello.entity_type);

            // Messages leave with the bytes they had, when the same ones had come in before.
            let mut came = server.iter().filter(|f| f.tag == Tag::Message);
            let mut in_seq = 0;
            for m in client.iter().filter(|f| f.tag == Tag::Message) {
                while in_seq < m.header().ack_seq {
                    let next = came.next().unwrap();
                    assert_eq!(feed(&mut conn, &next.wire, &answer), 1);
                    in_seq = next.header().seq;
                }
                send(&mut conn, m);
                assert_eq!(output(&mut conn), m.wire, "{name}");
            }
            for m in came {
                assert_eq!(feed(&mut conn, &m.wire, &answer), 1);
            }
            assert!(!conn.has_output());
        }
    }
}

#[test]
fn our_server_says_to_librados_what_real_daemons_said() {
    for (name, crc) in captures() {
        for stream in pcap::streams(&name) {
            let client = without_compression(frames(&stream.client, crc, usize::MAX).0);
            let server = without_compression(frames(&stream.server, crc, usize::MAX).0);
            if !server.iter().any(|f| f.tag == Tag::ServerIdent) {
                continue;
            }
            let ident: ServerIdent = find(&server, Tag::ServerIdent).decode();
            let hello: Hello = find(&server, Tag::Hello).decode();
            let done: AuthDone<'_> = find(&server, Tag::AuthDone).decode();
            let me = crate::codec::EntityName::new(hello.entity_type, ident.gid);
            let mut cfg = Config::server(me, ident.addrs.clone());
            cfg.features_supported = ident.features_supported;
            cfg.global_seq = ident.global_seq;
            cfg.crc_data = crc;
            let mut conn = Connection::server(cfg, hello.peer_addr);
            conn.start(NOW);
            assert_eq!(output(&mut conn), OUR_BANNER);
            let answer = Answer::AuthDone {
                global_id: done.global_id,
                con_mode: done.con_mode,
                payload: vec![],
                session_key: vec![],
                secret: vec![],
            };
            let tags = [
                Tag::Hello,
                Tag::AuthRequest,
                Tag::AuthSignature,
                Tag::ClientIdent,
            ];
            feed(&mut conn, &stream.client[..26], &answer);
            feed(&mut conn, &wire(&client, &tags), &answer);
            let tags = [
                Tag::Hello,
                Tag::AuthDone,
                Tag::AuthSignature,
                Tag::ServerIdent,
            ];
            assert_eq!(output(&mut conn), wire(&server, &tags), "{name}");
            assert!(conn.is_ready() && conn.is_lossy());
            assert_eq!(conn.features(), ident.features_supported);

            let mut came = client.iter().filter(|f| f.tag == Tag::Message);
            let mut in_seq = 0;
            for m in server.iter().filter(|f| f.tag == Tag::Message) {
                while in_seq < m.header().ack_seq {
                    let next = came.next().unwrap();
                    assert_eq!(feed(&mut conn, &next.wire, &answer), 1);
                    in_seq = next.header().seq;
                }
                send(&mut conn, m);
                assert_eq!(output(&mut conn), m.wire, "{name}");
            }
        }
    }
}
