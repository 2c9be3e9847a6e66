//! Every monitor message of recorded sessions with real monitors: read to its last byte, and
//! written back as it was.
//!
//! `*-rbd-admin` are sessions of the `rbd` tool (16.2, 18.2, 20.2); `*-mon-command` and
//! `*-mon-renewal` are librados 16.2 with three commands, a version request, an option in the
//! monitors' database, and cephx tickets that last 20 s.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{self as m, Message};
use super::*;
use crate::codec::{EntityAddr, EntityAddrVec, Now, Reader};
use crate::payload::Payload;

/// Of the monitors recorded.
const MON_PORTS: [u16; 2] = [16300, 17300];
const BANNER: &[u8] = b"ceph v2\n";
const TAG_MESSAGE: u8 = 17;

/// One message as it went over the wire.
struct Recorded {
    to_mon: bool,
    kind: u16,
    version: u16,
    compat: u16,
    tid: u64,
    front: Vec<u8>,
    middle: Vec<u8>,
    data: Vec<u8>,
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}

/// The byte streams of a capture by their ports, put together by sequence number.
fn streams(pcap: &[u8]) -> BTreeMap<(u16, u16), Vec<u8>> {
    assert_eq!(pcap[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    let ethernet = u32_at(pcap, 20) == 1;
    let mut segments: BTreeMap<(u16, u16), BTreeMap<u32, &[u8]>> = BTreeMap::new();
    let mut starts = BTreeMap::new();
    let mut at = 24;
    while at < pcap.len() {
        let len = u32_at(pcap, at + 8) as usize;
        let packet = &pcap[at + 16..at + 16 + len];
        at += 16 + len;
        let ip = if ethernet { &packet[14..] } else { packet };
        let total = u16::from_be_bytes([ip[2], ip[3]]) as usize;
        let tcp = &ip[usize::from(ip[0] & 15) * 4..total];
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let ports = (port(0), port(2));
        let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        if tcp[13] & 2 != 0 {
            starts.insert(ports, seq.wrapping_add(1));
        }
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if !payload.is_empty() {
            let start = starts[&ports];
            let by_offset = segments.entry(ports).or_default();
            by_offset.entry(seq.wrapping_sub(start)).or_insert(payload);
        }
    }
    let whole = |parts: BTreeMap<u32, &[u8]>| {
        parts.into_iter().fold(Vec::new(), |mut out, (at, part)| {
            assert_eq!(at as usize, out.len(), "a gap in the capture");
            out.extend(part);
            out
        })
    };
    segments.into_iter().map(|(k, v)| (k, whole(v))).collect()
}

/// The messages of one direction of a connection: msgr2.1 frames in crc mode (`frames_v2.h`).
fn messages(stream: &[u8], to_mon: bool) -> Vec<Recorded> {
    assert!(stream.starts_with(BANNER));
    let mut at = BANNER.len() + 2 + usize::from(u16_at(stream, BANNER.len()));
    let mut out = Vec::new();
    while at < stream.len() {
        let preamble = &stream[at..at + 32];
        let count = usize::from(preamble[1]);
        let mut parts = Vec::new();
        at += 32;
        for i in 0..count {
            let len = u32_at(preamble, 2 + 6 * i) as usize;
            parts.push(stream[at..at + len].to_vec());
            // The first segment is followed by its checksum, the last by an epilogue.
            at += len + if i == 0 { 4 } else { 0 };
        }
        at += if count > 1 { 13 } else { 0 };
        if preamble[0] == TAG_MESSAGE {
            let mut parts = parts.into_iter();
            let header = parts.next().unwrap();
            let mut part = || parts.next().unwrap_or_default();
            out.push(Recorded {
                to_mon,
                tid: u64::from_le_bytes(header[8..16].try_into().unwrap()),
                kind: u16_at(&header, 16),
                version: u16_at(&header, 20),
                compat: u16_at(&header, 37),
                front: part(),
                middle: part(),
                data: part(),
            });
        }
    }
    out
}

/// The connections of a capture with monitors, by the client's port: both directions, the
/// client's first.
fn connections(name: &str) -> Vec<[Vec<Recorded>; 2]> {
    let path = format!(
        "{}/../tests/golden/captures/{name}.pcap",
        env!("CARGO_MANIFEST_DIR")
    );
    let pcap = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let streams = streams(&pcap);
    let to_mon = streams.iter().filter(|((_, to), _)| MON_PORTS.contains(to));
    to_mon
        .map(|((from, to), stream)| {
            [
                messages(stream, true),
                messages(&streams[&(*to, *from)], false),
            ]
        })
        .collect()
}

/// Reads a front to its end and demands that writing it gives the same bytes and header.
fn exact<M: Message>(r: &Recorded) -> M {
    let mut reader = Reader::new(&r.front);
    let message = M::read(r.version, &mut reader).unwrap();
    assert!(
        reader.is_empty(),
        "{} bytes left of {}",
        reader.remaining(),
        r.kind
    );
    let mut out = Vec::new();
    message.encode(&mut out);
    assert_eq!(out, r.front, "message {}", r.kind);
    assert_eq!((r.kind, r.version), (M::KIND, M::VERSION));
    assert_eq!(r.compat, M::COMPAT, "compat of message {}", r.kind);
    assert!(r.middle.is_empty());
    message
}

/// Checks one message and says what it is.
fn check(r: &Recorded) -> &'static str {
    match (r.to_mon, r.kind) {
        (true, kind::MON_GET_MAP) => {
            exact::<m::MMonGetMap>(r);
            "get map"
        }
        (true, kind::MON_SUBSCRIBE) => {
            let sub = exact::<m::MMonSubscribe>(r);
            assert!(!sub.what.is_empty() && !sub.hostname.is_empty());
            "subscribe"
        }
        (true, kind::POOL_OP) => {
            let op = exact::<m::MPoolOp>(r);
            assert_eq!(op.op, m::pool_op::CREATE_UNMANAGED_SNAP);
            "pool op"
        }
        (false, kind::POOL_OP_REPLY) => {
            let reply = exact::<m::MPoolOpReply>(r);
            assert_eq!((reply.code, reply.response.len()), (0, 8));
            "pool op reply"
        }
        (true, kind::MON_COMMAND) => {
            let command = exact::<m::MMonCommand>(r);
            assert_eq!(command.cmd.len(), 1);
            assert_eq!(r.data, b"some input");
            "command"
        }
        (false, kind::MON_COMMAND_ACK) => {
            let ack = exact::<m::MMonCommandAck>(r);
            let (code, output): (i32, &[u8]) = match r.tid {
                1 => (0, b""),
                2 => (0, b"\n[\"rbd\"]"),
                _ => (-22, b""),
            };
            assert_eq!((ack.code, r.data.trim_ascii()), (code, output.trim_ascii()));
            "command ack"
        }
        (true, kind::MON_GET_VERSION) => {
            let ask = exact::<m::MMonGetVersion>(r);
            assert_eq!((ask.handle, ask.what.as_str()), (1, "osdmap"));
            "get version"
        }
        (false, kind::MON_GET_VERSION_REPLY) => {
            let reply = exact::<m::MMonGetVersionReply>(r);
            assert!(reply.handle == 1 && reply.version > reply.oldest && reply.oldest > 0);
            "version"
        }
        (true, kind::AUTH) => {
            let auth = exact::<m::MAuth>(r);
            assert_eq!(auth.protocol, 2);
            "auth"
        }
        (false, kind::AUTH_REPLY) => {
            let reply = exact::<m::MAuthReply>(r);
            assert_eq!((reply.protocol, reply.result), (2, 0));
            "auth reply"
        }
        (false, kind::MON_MAP) => {
            let bytes = exact::<m::MMonMap>(r).monmap;
            let mut reader = Reader::new(&bytes);
            let map = MonMap::read(&mut reader).unwrap();
            assert!(reader.is_empty());
            assert_eq!(map.ranks, ["a"]);
            let mut out = Vec::new();
            map.encode(&mut out);
            assert_eq!(out, bytes);
            "map"
        }
        (false, kind::CONFIG) => {
            exact::<m::MConfig>(r);
            "config"
        }
        // For others to read.
        (false, kind::OSD_MAP | kind::MGR_MAP) => "other map",
        other => panic!("unexpected message {other:?}"),
    }
}

fn check_all(name: &str, wanted: &[&str]) {
    let connections = connections(name);
    let all = connections.iter().flatten().flatten();
    let seen: BTreeSet<_> = all.map(check).collect();
    let wanted: BTreeSet<_> = ["get map", "subscribe", "map", "config", "other map"]
        .iter()
        .chain(wanted)
        .copied()
        .collect();
    assert_eq!(seen, wanted, "{name}");
}

#[test]
fn recorded_messages_are_read_and_written_back() {
    for release in ["v16", "v18", "v20"] {
        let name = format!("{release}-none-crc-rbd-admin");
        check_all(&name, &["pool op", "pool op reply"]);
    }
    let commands = ["command", "command ack", "get version", "version"];
    check_all("v16-none-crc-mon-command", &commands);
    let renewal = [&commands[..], &["auth", "auth reply"]].concat();
    check_all("v16-cephx-crc-mon-renewal", &renewal);
}

/// Our client in the place of librados: what it sends first is the same to the byte, and what the
/// monitor sent makes it ready and answers its commands.
#[test]
fn a_recorded_monitor_serves_our_client() {
    let now = Now::default();
    for [theirs, monitor] in connections("v16-none-crc-mon-command") {
        let hostname = theirs
            .iter()
            .find(|r| r.kind == kind::MON_SUBSCRIBE)
            .map(|r| exact::<m::MMonSubscribe>(r).hostname)
            .unwrap();
        let addr = EntityAddr::msgr2("127.0.0.1:17300".parse().unwrap(), 0);
        let config = MonConfig::new(vec![EntityAddrVec(vec![addr])], hostname);
        let mut client = MonClient::new(config, 1);
        client.start(now);
        let Some(MonAction::Dial { attempt, .. }) = client.poll() else {
            panic!("no dial");
        };
        client.dialed_ok(attempt, now);
        for want in &theirs[..2] {
            let Some(MonAction::Send { message, .. }) = client.poll() else {
                panic!("nothing sent");
            };
            assert_eq!(message.front, want.front);
            assert_eq!(
                (message.kind, message.version, message.compat, message.tid),
                (want.kind, want.version, want.compat, want.tid)
            );
        }
        let commands = [
            command::blocklist_add("10.0.0.1:0/42", Some(60.0)),
            command::pool_ls(),
            command::blocklist_add("nonsense", None),
        ];
        for (token, command) in (1..).zip(commands) {
            let input = Payload::from(b"some input".to_vec());
            client.command(token, command, input, now).unwrap();
        }
        assert!(
            client.poll().is_none(),
            "commands wait for the cluster's id"
        );
        let mut passed_on = 0;
        for r in &monitor {
            let incoming = Incoming {
                kind: r.kind,
                version: r.version,
                tid: r.tid,
                front: &r.front,
                data: &r.data,
            };
            passed_on += usize::from(!client.message(attempt, &incoming, now).unwrap());
        }
        let mut events = Vec::new();
        while let Some(event) = client.poll_event() {
            events.push(event);
        }
        assert!(events.contains(&MonEvent::Ready));
        let options = BTreeMap::from([
            ("debug_ms".to_string(), "0/0".to_string()),
            ("rbd_default_pool".to_string(), "vms".to_string()),
        ]);
        assert!(events.contains(&MonEvent::Config(options)));
        let results: Vec<_> = events
            .iter()
            .filter_map(|e| match e {
                MonEvent::CommandDone { result, .. } => Some(result),
                _ => None,
            })
            .collect();
        // Of the two sessions that librados opens, the lasting one.
        if passed_on > 0 {
            assert!(
                results[0]
                    .as_ref()
                    .unwrap()
                    .status
                    .starts_with("blocklisting 10.0.0.1:0/42")
            );
            let pools: Vec<String> =
                serde_json::from_slice(&results[1].as_ref().unwrap().output).unwrap();
            assert_eq!(pools, ["rbd"]);
            assert_eq!(
                results[2].as_ref().unwrap_err().to_string(),
                "command \"osd blocklist\" failed: unable to parse address nonsense (error -22)"
            );
        }
        assert_eq!(results.is_empty(), passed_on == 0);
    }
}
