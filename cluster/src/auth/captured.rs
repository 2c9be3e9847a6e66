//! Handshakes of real Ceph 16, 18 and 20: `rbd info` against a monitor and an OSD, with the user's
//! keyring beside each capture.
//!
//! The captured client's random numbers are read back with the keys, ours is given the same, and
//! must say the same to the byte. The captured servers' answers must open, to their last byte, and
//! the keys found in them must sign the transcript and decrypt the frames that follow.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::key::Usage;
use super::ticket::bit;
use super::wire::{self, Authenticate, Authorize};
use super::*;
use crate::codec::{EntityType, Now, Reader};

const NOW: Now = Now {
    mono: 1_000,
    wall: 1_000,
};

const AUTH_REQUEST: u8 = 2;
const AUTH_REPLY_MORE: u8 = 4;
const AUTH_REQUEST_MORE: u8 = 5;
const AUTH_DONE: u8 = 6;
const AUTH_SIGNATURE: u8 = 7;

fn golden(name: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/captures");
    let path = PathBuf::from(root).join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Both directions of a TCP connection, whole.
struct Connection {
    client: Vec<u8>,
    server: Vec<u8>,
}

/// The connections of a pcap file of Ethernet frames with IPv4 and TCP, in order of their SYN.
fn connections(pcap: &[u8]) -> Vec<Connection> {
    #[derive(Default)]
    struct Flow {
        start: Option<u32>,
        opener: bool,
        segments: BTreeMap<u32, Vec<u8>>,
    }
    assert_eq!(pcap[..4], [0xd4, 0xc3, 0xb2, 0xa1], "little-endian pcap");
    assert_eq!(pcap[20], 1, "Ethernet");
    let be16 = |b: &[u8]| u16::from_be_bytes([b[0], b[1]]);
    let be32 = |b: &[u8]| u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
    let mut flows: BTreeMap<(u16, u16), Flow> = BTreeMap::new();
    let mut order = Vec::new();
    let mut r = Reader::new(&pcap[24..]);
    while !r.is_empty() {
        r.skip(8).unwrap();
        let len = r.u32().unwrap() as usize;
        r.skip(4).unwrap();
        let ip = &r.bytes(len).unwrap()[14..];
        let tcp = &ip[usize::from(ip[0] & 15) * 4..usize::from(be16(&ip[2..]))];
        let key = (be16(tcp), be16(&tcp[2..]));
        let (seq, flags) = (be32(&tcp[4..]), tcp[13]);
        let flow = flows.entry(key).or_default();
        if flags & 2 != 0 {
            flow.start = Some(seq.wrapping_add(1));
            flow.opener = flags & 16 == 0;
            if flow.opener {
                order.push(key);
            }
        }
        let data = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if !data.is_empty() {
            flow.segments.entry(seq).or_insert_with(|| data.to_vec());
        }
    }
    let stream = |key: &(u16, u16)| {
        let flow = &flows[key];
        let mut at = flow.start.unwrap();
        let mut out = Vec::new();
        while let Some(data) = flow.segments.get(&at) {
            out.extend_from_slice(data);
            at = at.wrapping_add(data.len() as u32);
        }
        out
    };
    let both = |(c, s): &(u16, u16)| Connection {
        client: stream(&(*c, *s)),
        server: stream(&(*s, *c)),
    };
    order.iter().map(both).collect()
}

/// The one-segment frames of a msgr2.1 stream in the clear, with the offset where each ends.
fn plain_frames(stream: &[u8]) -> Vec<(u8, &[u8], usize)> {
    assert_eq!(&stream[..8], b"ceph v2\n");
    let mut at = 10 + usize::from(u16::from_le_bytes([stream[8], stream[9]]));
    let mut out = Vec::new();
    while let Some(preamble) = stream[at..].first_chunk::<32>() {
        let crc = u32::from_le_bytes(preamble[28..].try_into().unwrap());
        // Ceph's CRC is seeded with 0 and not inverted.
        if !crc32c::crc32c_append(!0, &preamble[..28]) != crc || preamble[1] != 1 {
            break;
        }
        let len = u32::from_le_bytes(preamble[2..6].try_into().unwrap()) as usize;
        let end = at + 32 + len + 4;
        out.push((preamble[0], &stream[at + 32..at + 32 + len], end));
        at = end;
        if preamble[0] == AUTH_SIGNATURE {
            break;
        }
    }
    out
}

/// One connection's authentication, as captured.
struct Captured<'a> {
    connection: &'a Connection,
    method: u32,
    modes: Vec<u32>,
    request: &'a [u8],
    challenge: Option<&'a [u8]>,
    answer: Option<&'a [u8]>,
    global_id: u64,
    con_mode: u32,
    done: &'a [u8],
    /// Offsets where the signed part of each direction ends.
    signed: (usize, usize),
}

impl<'a> Captured<'a> {
    fn new(connection: &'a Connection) -> Captured<'a> {
        let client = plain_frames(&connection.client);
        let server = plain_frames(&connection.server);
        let find = |frames: &[(u8, &'a [u8], usize)], tag| {
            frames
                .iter()
                .find(|(t, ..)| *t == tag)
                .map(|(_, body, end)| (*body, *end))
        };
        let blob = |body: &'a [u8]| Reader::new(body).blob().unwrap();
        let (request, request_end) = find(&client, AUTH_REQUEST).unwrap();
        let more = find(&client, AUTH_REQUEST_MORE);
        let (done, done_end) = find(&server, AUTH_DONE).unwrap();
        let mut r = Reader::new(request);
        let method = r.u32().unwrap();
        let modes = r.list(4, |r| r.u32()).unwrap();
        let request = r.blob().unwrap();
        let mut r = Reader::new(done);
        Captured {
            connection,
            method,
            modes,
            request,
            challenge: find(&server, AUTH_REPLY_MORE).map(|(body, _)| blob(body)),
            answer: more.map(|(body, _)| blob(body)),
            global_id: r.u64().unwrap(),
            con_mode: r.u32().unwrap(),
            done: r.blob().unwrap(),
            signed: (more.map_or(request_end, |(_, end)| end), done_end),
        }
    }

    fn is_mon(&self) -> bool {
        self.request[0] == wire::MODE_MON
    }

    fn modes(&self) -> Vec<ConMode> {
        self.modes
            .iter()
            .map(|m| ConMode::from_raw(*m).unwrap())
            .collect()
    }

    fn check_request(&self, request: &AuthRequest) {
        assert_eq!(request.method.raw(), self.method);
        assert_eq!(request.raw_modes(), self.modes);
        assert_eq!(request.payload, self.request);
    }

    /// Each side signs what it received: the first thing that the session key is used for, and in
    /// secure mode the first thing that the connection secret hides.
    fn check_secrets(&self, secrets: &Secrets) {
        let (client_end, server_end) = self.signed;
        let Connection { client, server } = self.connection;
        let sign = |bytes: &[u8]| {
            let key = secrets.session_key.as_bytes();
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
            ring::hmac::sign(&key, bytes).as_ref().to_vec()
        };
        let secret = secrets.connection_secret.as_bytes();
        for (stream, end, signed, nonce) in [
            (server, server_end, &client[..client_end], 16..28),
            (client, client_end, &server[..server_end], 28..40),
        ] {
            let signature = match ConMode::from_raw(self.con_mode).unwrap() {
                // Auth none has no key and signs with zeros.
                ConMode::Crc => stream[end + 32..end + 64].to_vec(),
                ConMode::Secure => {
                    // The preamble and 48 bytes of the segment are one encrypted block.
                    let key = UnboundKey::new(&AES_128_GCM, &secret[..16]).unwrap();
                    let nonce = Nonce::try_assume_unique_for_key(&secret[nonce]).unwrap();
                    let mut block = stream[end..end + 96].to_vec();
                    LessSafeKey::new(key)
                        .open_in_place(nonce, Aad::empty(), &mut block)
                        .expect("the connection secret fits");
                    assert_eq!(block[..2], [AUTH_SIGNATURE, 1]);
                    block[32..64].to_vec()
                }
            };
            match secrets.session_key.is_empty() {
                true => assert_eq!(signature, [0; 32]),
                false => assert_eq!(signature, sign(signed)),
            }
        }
    }
}

fn config(capture: &str) -> ClientConfig {
    let name = AuthName::client("admin");
    let ring = Keyring::parse("keyring", &golden(&format!("{capture}.keyring"))).unwrap();
    let key = ring.get(&name).unwrap().clone();
    ClientConfig::new(name, Some(key))
}

/// Replays a capture's monitor connections, then its OSD connection with the tickets of the last.
fn replay(capture: &str, method: Method) {
    let pcap = golden(&format!("{capture}.pcap"));
    let connections = connections(&pcap);
    let captured: Vec<_> = connections.iter().map(Captured::new).collect();
    let (mons, osds): (Vec<_>, Vec<_>) = captured.iter().partition(|c| c.is_mon());
    assert_eq!((mons.len(), osds.len()), (2, 1), "{capture}");
    let mut client = None;
    for mon in mons {
        client = Some(replay_mon(capture, mon, osds[0].modes(), method));
    }
    replay_osd(&client.unwrap(), osds[0]);
}

fn replay_mon(
    capture: &str,
    mon: &Captured<'_>,
    client_modes: Vec<ConMode>,
    method: Method,
) -> Client {
    let mut config = config(capture);
    config.methods = vec![method];
    config.mon_modes = mon.modes();
    config.client_modes = client_modes;
    let mut seed = [0; 40];
    let mut wanted = 0;
    if let Some(answer) = mon.answer {
        let captured = Authenticate::decode(&mut Reader::new(&answer[2..])).unwrap();
        seed[..8].copy_from_slice(&captured.client_challenge.to_le_bytes());
        wanted = captured.other_keys;
        config
            .services
            .retain(|s| captured.other_keys & bit(*s) != 0);
    }
    let mut client = Client::new(config).unwrap();
    let mut hs = client.mon_handshake(&seed);
    mon.check_request(&hs.request());
    if let Some(challenge) = mon.challenge {
        assert_eq!(hs.more(challenge, NOW).unwrap(), mon.answer.unwrap());
    }
    let cut = mon.done.len().saturating_sub(1);
    if method == Method::Cephx {
        let mut short = client.mon_handshake(&seed);
        short.more(mon.challenge.unwrap(), NOW).unwrap();
        let result = short.done(mon.global_id, mon.con_mode, &mon.done[..cut], NOW);
        assert!(result.is_err(), "the last byte is read");
    }
    let secrets = hs
        .done(mon.global_id, mon.con_mode, mon.done, NOW)
        .unwrap_or_else(|e| panic!("{capture}: {e}"));
    mon.check_secrets(&secrets);
    for service in [EntityType::AUTH, EntityType::MON, EntityType::OSD] {
        let have = hs.tickets.usable(service).is_some();
        assert_eq!(have, wanted & bit(service) != 0, "{capture} {service}");
    }
    client.adopt(hs);
    assert!(!client.renewal_due(NOW));
    if method == Method::Cephx {
        // The clusters' defaults: an hour for services, twelve or 72 for the auth ticket.
        let deadline = (client.next_deadline(NOW).unwrap() - NOW.mono) / 1_000_000_000;
        let expected: &[u64] = match wanted {
            0x20 => &[9 * 3600, 54 * 3600],
            _ => &[2700],
        };
        assert!(expected.contains(&deadline), "{capture}: {deadline}");
    }
    client
}

fn replay_osd(client: &Client, osd: &Captured<'_>) {
    let mut seed = [0; 40];
    if let Some(ticket) = client.service_ticket(EntityType::OSD) {
        for (payload, range) in [(osd.request, 8..24), (osd.answer.unwrap(), 24..40)] {
            let mut r = Reader::new(payload);
            r.skip(1 + 8 + 4).unwrap();
            wire::TicketBlob::decode(&mut r).unwrap();
            let sealed = r.blob().unwrap();
            assert!(r.is_empty());
            let key = &ticket.session_key;
            let opened = envelope::open(key, Usage::Authorize, sealed, "authorizer").unwrap();
            let message = Authorize::decode(&mut opened.reader()).unwrap();
            seed[..8].copy_from_slice(&message.nonce.to_le_bytes());
            seed[range].copy_from_slice(&key.confounder(Usage::Authorize, sealed).unwrap());
        }
    }
    let mut hs = client.service_handshake(EntityType::OSD, &seed).unwrap();
    osd.check_request(&hs.request());
    if let Some(challenge) = osd.challenge {
        assert_eq!(hs.more(challenge).unwrap(), osd.answer.unwrap());
        let cut = osd.done.len() - 1;
        assert!(hs.done(osd.con_mode, &osd.done[..cut]).is_err());
    }
    let secrets = hs.done(osd.con_mode, osd.done).unwrap();
    osd.check_secrets(&secrets);
    assert_eq!(osd.global_id, client.global_id());
}

macro_rules! captures {
    ($($test:ident: $file:literal, $method:ident;)*) => {
        $(#[test]
        fn $test() {
            replay($file, Method::$method);
        })*
    };
}

captures! {
    v16_cephx: "v16-cephx-default-rbd-info", Cephx;
    v16_cephx_crc: "v16-cephx-crc-rbd-info", Cephx;
    v16_cephx_secure: "v16-cephx-secure-rbd-info", Cephx;
    v16_none: "v16-none-default-rbd-info", None;
    v18_cephx: "v18-cephx-default-rbd-info", Cephx;
    v18_cephx_crc: "v18-cephx-crc-rbd-info", Cephx;
    v18_cephx_secure: "v18-cephx-secure-rbd-info", Cephx;
    v18_none: "v18-none-default-rbd-info", None;
    v20_cephx_aes256k: "v20-cephx-default-rbd-info", Cephx;
    v20_cephx_aes256k_crc: "v20-cephx-crc-rbd-info", Cephx;
    v20_cephx_aes256k_secure: "v20-cephx-secure-rbd-info", Cephx;
    v20_cephx_aes: "v20-cephxaes-default-rbd-info", Cephx;
    v20_cephx_aes_secure: "v20-cephxaes-secure-rbd-info", Cephx;
    v20_none: "v20-none-default-rbd-info", None;
}

/// A real monitor's reply opens with no other key.
#[test]
fn a_wrong_key_opens_nothing() {
    for (capture, other) in [
        ("v18-cephx-default-rbd-info", "v16-cephx-default-rbd-info"),
        ("v20-cephx-default-rbd-info", "v20-cephx-crc-rbd-info"),
    ] {
        let pcap = golden(&format!("{capture}.pcap"));
        let connections = connections(&pcap);
        let mon = Captured::new(&connections[0]);
        let client = Client::new(config(other)).unwrap();
        let mut hs = client.mon_handshake(&[1; 40]);
        hs.more(mon.challenge.unwrap(), NOW).unwrap();
        let result = hs.done(mon.global_id, mon.con_mode, mon.done, NOW);
        assert_eq!(result.err(), Some(AuthError::Decrypt { what: "ticket" }));
    }
}
