//! Reads the TCP streams out of a capture of the loopback interface.

use std::collections::BTreeMap;

/// Both directions of a connection, in the order in which connections appear.
pub(super) struct Stream {
    pub(super) client: Vec<u8>,
    pub(super) server: Vec<u8>,
}

/// The golden capture `name`.
pub(super) fn streams(name: &str) -> Vec<Stream> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/captures");
    let file = std::fs::read(format!("{dir}/{name}.pcap")).unwrap();
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1], "a little-endian pcap");
    let link = le32(&file[20..]);
    // Keyed by the two ports; the client is who sent the SYN without ACK.
    let mut order = Vec::new();
    let mut halves: BTreeMap<(u16, u16), Half> = BTreeMap::new();
    let mut rest = &file[24..];
    while !rest.is_empty() {
        let (len, full) = (le32(&rest[8..]) as usize, le32(&rest[12..]) as usize);
        assert_eq!(len, full, "capture is cut");
        let packet = &rest[16..16 + len];
        rest = &rest[16 + len..];
        let ip = match link {
            1 => &packet[14..],
            101 => packet,
            _ => panic!("link type {link}"),
        };
        let ip_len = usize::from(be16(&ip[2..]));
        let tcp = &ip[usize::from(ip[0] & 15) * 4..ip_len];
        let ports = (be16(tcp), be16(&tcp[2..]));
        let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        let data = &tcp[usize::from(tcp[12] >> 4) * 4..];
        let (syn, ack) = (tcp[13] & 2 != 0, tcp[13] & 16 != 0);
        let half = halves.entry(ports).or_default();
        if syn {
            half.first = seq.wrapping_add(1);
            if !ack {
                order.push(ports);
            }
        }
        if !data.is_empty() {
            half.segments.push((seq, data.to_vec()));
        }
    }
    let mut take = |ports| halves.remove(&ports).unwrap_or_default().assemble();
    order
        .into_iter()
        .map(|(c, s)| Stream {
            client: take((c, s)),
            server: take((s, c)),
        })
        .filter(|s| !s.client.is_empty() && !s.server.is_empty())
        .collect()
}

#[derive(Default)]
struct Half {
    first: u32,
    segments: Vec<(u32, Vec<u8>)>,
}

impl Half {
    fn assemble(mut self) -> Vec<u8> {
        let first = self.first;
        self.segments
            .sort_by_key(|(seq, _)| seq.wrapping_sub(first));
        let mut out: Vec<u8> = Vec::new();
        for (seq, data) in self.segments {
            let at = seq.wrapping_sub(first) as usize;
            assert!(at <= out.len(), "capture has a hole");
            // What was sent twice is taken once.
            let fresh = (out.len() - at).min(data.len());
            out.extend_from_slice(&data[fresh..]);
        }
        out
    }
}

fn le32(b: &[u8]) -> u32 {
    u32::from_le_bytes(b[..4].try_into().unwrap())
}

fn be16(b: &[u8]) -> u16 {
    u16::from_be_bytes(b[..2].try_into().unwrap())
}
