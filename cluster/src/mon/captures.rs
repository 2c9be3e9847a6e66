//! Every monitor message of recorded sessions of `rbd` 16.2, 18.2 and 20.2 with a real monitor:
//! read to its last byte, and written back as it was.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{self as m, Message};
use super::{MonMap, kind};
use crate::codec::Reader;

const MON_PORT: u16 = 16300;
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

fn recorded(release: &str) -> Vec<Recorded> {
    let path = format!(
        "{}/../tests/golden/captures/{release}-none-crc-rbd-admin.pcap",
        env!("CARGO_MANIFEST_DIR")
    );
    let pcap = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    streams(&pcap)
        .into_iter()
        .filter(|((from, to), _)| [*from, *to].contains(&MON_PORT))
        .flat_map(|((_, to), stream)| messages(&stream, to == MON_PORT))
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
    assert!(r.middle.is_empty() && r.data.is_empty());
    message
}

#[test]
fn recorded_messages_are_read_and_written_back() {
    for (release, monmap_version) in [("v16", 9), ("v18", 9), ("v20", 10)] {
        let mut seen = BTreeSet::new();
        let mut snap_tids = (None, None);
        for r in recorded(release) {
            seen.insert((r.to_mon, r.kind));
            match (r.to_mon, r.kind) {
                (true, kind::MON_GET_MAP) => {
                    exact::<m::MMonGetMap>(&r);
                }
                (true, kind::MON_SUBSCRIBE) => {
                    let sub = exact::<m::MMonSubscribe>(&r);
                    assert!(!sub.what.is_empty() && !sub.hostname.is_empty());
                }
                (true, kind::POOL_OP) => {
                    let op = exact::<m::MPoolOp>(&r);
                    assert_eq!(op.op, m::pool_op::CREATE_UNMANAGED_SNAP);
                    snap_tids.0 = Some(r.tid);
                }
                (false, kind::POOL_OP_REPLY) => {
                    let reply = exact::<m::MPoolOpReply>(&r);
                    assert_eq!((reply.code, reply.response.len()), (0, 8));
                    snap_tids.1 = Some(r.tid);
                }
                (false, kind::MON_MAP) => {
                    let bytes = exact::<m::MMonMap>(&r).monmap;
                    assert_eq!(bytes[0], monmap_version);
                    let mut reader = Reader::new(&bytes);
                    let map = MonMap::read(&mut reader).unwrap();
                    assert!(reader.is_empty());
                    assert_eq!(map.ranks, ["a"]);
                    let mut out = Vec::new();
                    map.encode(&mut out);
                    assert_eq!(out, bytes);
                }
                (false, kind::CONFIG) => {
                    exact::<m::MConfig>(&r);
                }
                // For others to read.
                (false, kind::OSD_MAP | kind::MGR_MAP) => {}
                other => panic!("{release}: unexpected message {other:?}"),
            }
        }
        assert_eq!(snap_tids.0, snap_tids.1);
        for wanted in [
            (true, kind::MON_GET_MAP),
            (true, kind::MON_SUBSCRIBE),
            (true, kind::POOL_OP),
            (false, kind::POOL_OP_REPLY),
            (false, kind::MON_MAP),
            (false, kind::CONFIG),
            (false, kind::OSD_MAP),
        ] {
            assert!(seen.contains(&wanted), "{release}: no {wanted:?}");
        }
    }
}
