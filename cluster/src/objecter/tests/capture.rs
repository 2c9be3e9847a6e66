//! Reads the MESSAGE frames of a packet capture of msgr2 connections in crc mode. Enough for
//! captures made on a loopback interface: no retransmission, nothing missing.

use std::collections::BTreeMap;

/// One message of a captured connection.
pub(super) struct Captured {
    pub(super) kind: u16,
    pub(super) version: u16,
    pub(super) tid: u64,
    pub(super) priority: u16,
    pub(super) front: Vec<u8>,
    pub(super) data: Vec<u8>,
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().unwrap())
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

#[derive(Default)]
struct Flow {
    first: Option<u32>,
    segments: BTreeMap<u32, Vec<u8>>,
}

/// The byte stream of each direction of each connection, by (source port, destination port).
fn streams(pcap: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(u32_at(pcap, 0), 0xa1b2_c3d4, "a little-endian pcap");
    assert_eq!(u32_at(pcap, 20), 1, "Ethernet");
    let mut flows: BTreeMap<(u16, u16), Flow> = BTreeMap::new();
    let mut at = 24;
    while at + 16 <= pcap.len() {
        let len = u32_at(pcap, at + 8) as usize;
        let ip = &pcap[at + 16 + 14..at + 16 + len];
        at += 16 + len;
        let total = u16::from_be_bytes([ip[2], ip[3]]) as usize;
        let tcp = &ip[usize::from(ip[0] & 15) * 4..total];
        let port = |i: usize| u16::from_be_bytes([tcp[i], tcp[i + 1]]);
        let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        let flow = flows.entry((port(0), port(2))).or_default();
        let syn = tcp[13] & 2 != 0;
        if syn {
            flow.first = Some(seq.wrapping_add(1));
        }
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if !payload.is_empty() {
            flow.segments.insert(seq, payload.to_vec());
        }
    }
    flows
        .into_values()
        .filter_map(|flow| {
            let mut next = flow.first?;
            let mut out = Vec::new();
            while let Some(bytes) = flow.segments.get(&next) {
                out.extend_from_slice(bytes);
                next = next.wrapping_add(bytes.len() as u32);
            }
            Some(out)
        })
        .collect()
}

/// The messages of one direction (`frames_v2.h`: 32 byte preamble with up to four segment lengths,
/// first segment with its crc, the others, an epilogue when there are others).
fn messages_of(stream: &[u8], out: &mut Vec<Captured>) {
    const MESSAGE: u8 = 17;
    const EPILOGUE: usize = 13;
    if !stream.starts_with(b"ceph v2\n") {
        return;
    }
    let mut at = 10 + usize::from(u16_at(stream, 8));
    while at + 32 <= stream.len() {
        let (tag, count) = (stream[at], usize::from(stream[at + 1]));
        let lens: Vec<usize> = (0..count)
            .map(|i| u32_at(stream, at + 2 + 6 * i) as usize)
            .collect();
        at += 32;
        let mut segments = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            let Some(segment) = stream.get(at..at + len) else {
                return;
            };
            segments.push(segment);
            at += len + if i == 0 && len > 0 { 4 } else { 0 };
        }
        if count > 1 {
            at += EPILOGUE;
        }
        if tag == MESSAGE {
            let header = segments[0];
            let segment = |i: usize| segments.get(i).map_or(Vec::new(), |s| s.to_vec());
            // `ceph_msg_header2`.
            out.push(Captured {
                tid: u64_at(header, 8),
                kind: u16_at(header, 16),
                priority: u16_at(header, 18),
                version: u16_at(header, 20),
                front: segment(1),
                data: segment(3),
            });
        }
    }
}

/// All messages of a capture, connection by connection.
pub(super) fn messages(name: &str) -> Vec<Captured> {
    let path = format!(
        "{}/../tests/golden/captures/{name}.pcap",
        env!("CARGO_MANIFEST_DIR")
    );
    let pcap = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut out = Vec::new();
    for stream in streams(&pcap) {
        messages_of(&stream, &mut out);
    }
    out
}
