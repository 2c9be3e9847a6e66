//! Every frame of streams between real clients and daemons of Ceph 16, 18 and 20: decoded, and
//! encoded again to the same bytes.

use std::collections::BTreeMap;

use crate::codec::{Reader, UTime};
use crate::payload::Payload;

use super::super::control::*;
use super::super::crypto::Cipher;
use super::super::frame::Tag;
use super::super::header::MsgHeader;
use super::super::input::Rx;
use super::super::output::{OutBatch, Tx};
use super::super::{CON_MODE_SECURE, ceph_crc32c};
use super::pcap;

/// Splits off the banner: supported features, required features, rest.
pub(super) fn banner(stream: &[u8]) -> (u64, u64, &[u8]) {
    let mut r = Reader::new(stream.strip_prefix(b"ceph v2\n").unwrap());
    assert_eq!(r.u16().unwrap(), 16);
    (r.u64().unwrap(), r.u64().unwrap(), r.rest())
}

/// A frame of a captured stream.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) tag: Tag,
    pub(super) segments: [Vec<u8>; 4],
    /// As it was on the wire.
    pub(super) wire: Vec<u8>,
}

impl Seen {
    pub(super) fn decode<'a, C: Control<'a>>(&'a self) -> C {
        C::decode(&mut Reader::new(&self.segments[0])).unwrap()
    }

    pub(super) fn header(&self) -> MsgHeader {
        MsgHeader::decode(self.segments[0][..].try_into().unwrap())
    }

    fn encode(&self, tx: &mut Tx) -> Vec<u8> {
        let mut out = OutBatch::new();
        if self.tag == Tag::Message {
            let [_, front, middle, data] = &self.segments;
            let data = [Payload::from(data.clone())];
            let write = |b: &mut Vec<u8>| b.extend_from_slice(front);
            tx.message(&mut out, &self.header(), write, middle, &data)
                .unwrap();
        } else {
            tx.control(&mut out, self.tag, |b| self.encode_control(b))
                .unwrap();
        }
        out.slices().flatten().copied().collect()
    }

    /// The payload decoded and encoded by type.
    fn encode_control(&self, out: &mut Vec<u8>) {
        match self.tag {
            Tag::Hello => self.decode::<Hello>().encode(out),
            Tag::AuthRequest => self.decode::<AuthRequest<'_>>().encode(out),
            Tag::AuthBadMethod => self.decode::<AuthBadMethod>().encode(out),
            Tag::AuthReplyMore | Tag::AuthRequestMore => self.decode::<AuthMore<'_>>().encode(out),
            Tag::AuthDone => self.decode::<AuthDone<'_>>().encode(out),
            Tag::AuthSignature => self.decode::<AuthSignature>().encode(out),
            Tag::ClientIdent => self.decode::<ClientIdent>().encode(out),
            Tag::ServerIdent => self.decode::<ServerIdent>().encode(out),
            Tag::CompressionRequest => self.decode::<CompressionRequest>().encode(out),
            Tag::CompressionDone => self.decode::<CompressionDone>().encode(out),
            Tag::Keepalive2 | Tag::Keepalive2Ack => Control::encode(&self.decode::<UTime>(), out),
            Tag::Ack => self.decode::<Number>().encode(out),
            tag => panic!("{tag:?} in a capture"),
        }
    }
}

/// All frames after the banner that are not encrypted, and whether encrypted ones follow. A client
/// knows that its stream is encrypted from AUTH_DONE of the other direction: `plain` limits how many
/// frames are looked at.
pub(super) fn frames(stream: &[u8], check_crc: bool, plain: usize) -> (Vec<Seen>, bool) {
    let (_, required, mut input) = banner(stream);
    assert_eq!(required, 0);
    let mut rx = Rx::new(check_crc, 1 << 20);
    let mut seen = Vec::new();
    while !input.is_empty() && seen.len() < plain {
        let frame = next(&mut rx, &mut input);
        let done = frame.tag == Tag::AuthDone;
        let secure = done && frame.decode::<AuthDone<'_>>().con_mode == CON_MODE_SECURE;
        seen.push(frame);
        if secure {
            return (seen, true);
        }
    }
    (seen, !input.is_empty())
}

fn next(rx: &mut Rx, input: &mut &[u8]) -> Seen {
    let before = *input;
    let frame = rx.next(input).unwrap();
    let frame = frame.expect("the stream ends inside a frame");
    assert!(!frame.aborted);
    let segments = frame.segments.clone();
    Seen {
        tag: frame.tag,
        segments: segments.map(|s| rx.bytes(frame.bytes)[s].to_vec()),
        wire: before[..before.len() - input.len()].to_vec(),
    }
}

/// The frames of both directions of a stream, client's first, those that are encrypted with `secret`
/// too; and how many of each are not encrypted.
pub(super) fn all_frames(
    stream: &pcap::Stream,
    crc: bool,
    secret: Option<&[u8]>,
) -> [(Vec<Seen>, usize); 2] {
    let (mut server, encrypted) = frames(&stream.server, crc, usize::MAX);
    // A client's last plain frame is the one that AUTH_DONE answers.
    let plain = if encrypted { server.len() } else { usize::MAX };
    let (mut client, client_encrypted) = frames(&stream.client, crc, plain);
    assert_eq!(client_encrypted, encrypted);
    let plain = (client.len(), server.len());
    if let Some(secret) = secret.filter(|_| encrypted) {
        let sides = [
            (&stream.client, &mut client, true),
            (&stream.server, &mut server, false),
        ];
        for (stream, seen, receiver_is_server) in sides {
            let plain: usize = seen.iter().map(|f| f.wire.len()).sum();
            let mut rx = Rx::new(true, 1 << 20);
            rx.set_cipher(Cipher::pair(secret, receiver_is_server).unwrap().0);
            let (_, _, mut input) = banner(stream);
            input = &input[plain..];
            while !input.is_empty() {
                seen.push(next(&mut rx, &mut input));
            }
        }
    }
    [(client, plain.0), (server, plain.1)]
}

/// Session key and connection secret of each stream of a capture, which the authentication that it
/// shows gives with the client's key.
pub(super) fn secrets(name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/captures");
    let hex = |s: &str| -> Vec<u8> {
        let byte = |i| u8::from_str_radix(&s[i..i + 2], 16).unwrap();
        (0..s.len()).step_by(2).map(byte).collect()
    };
    std::fs::read_to_string(format!("{dir}/{name}.secrets"))
        .unwrap()
        .lines()
        .map(|l| l.split_once(' ').unwrap())
        .map(|(key, secret)| (hex(key), hex(secret)))
        .collect()
}

/// Checks the plain frames of a capture and says how many of its streams are encrypted.
fn check(name: &str, crc: bool, count: &mut BTreeMap<u8, usize>) -> usize {
    let streams = pcap::streams(name);
    assert!(streams.len() >= 3, "{name}");
    let mut encrypted = 0;
    for stream in &streams {
        let sides = all_frames(stream, crc, None);
        let mut tx = Tx::Crc { data: crc };
        for frame in sides.iter().flat_map(|(frames, _)| frames) {
            assert_eq!(frame.encode(&mut tx), frame.wire, "{name}: {:?}", frame.tag);
            *count.entry(frame.tag as u8).or_default() += 1;
        }
        encrypted += usize::from(!sides[0].0.iter().any(|f| f.tag == Tag::ClientIdent));
    }
    encrypted
}

#[test]
fn every_plain_frame_of_real_streams_is_understood_and_reproduced() {
    let mut count = BTreeMap::new();
    for v in [16, 18, 20] {
        let plain = ["none-crc-rbd-info", "cephx-crc-rbd-info"];
        for name in plain {
            assert_eq!(check(&format!("v{v}-{name}"), true, &mut count), 0);
        }
        // Ceph 16 ignores the option.
        let crc_off = format!("v{v}-none-crcoff-rbd-info");
        assert_eq!(check(&crc_off, v == 16, &mut count), 0);
        // By default only the monitors' sessions are encrypted.
        let default = check(&format!("v{v}-cephx-default-rbd-info"), true, &mut count);
        assert_eq!(default, 2);
        let secure = check(&format!("v{v}-cephx-secure-rbd-info"), true, &mut count);
        assert!(secure >= 3);
    }
    check("v20-none-crc-rados", true, &mut count);
    let messages = count[&(Tag::Message as u8)];
    assert!(messages > 300, "{messages} messages");
    for tag in [
        Tag::Hello,
        Tag::AuthRequest,
        Tag::AuthReplyMore,
        Tag::AuthRequestMore,
        Tag::AuthDone,
    ] {
        assert!(count[&(tag as u8)] > 20, "{tag:?}");
    }
}

#[test]
fn the_streams_of_ceph_18_and_20_without_crc_carry_zeros() {
    for v in [18, 20] {
        let streams = pcap::streams(&format!("v{v}-none-crcoff-rbd-info"));
        let (frames, _) = frames(&streams[2].server, false, usize::MAX);
        let hello = &frames[0];
        assert_eq!(hello.tag, Tag::Hello);
        assert_eq!(hello.wire[hello.wire.len() - 4..], [0; 4]);
        // With checks on, the very same bytes are refused.
        let mut rx = Rx::new(true, 1 << 20);
        let want = ceph_crc32c(!0, &hello.segments[0]);
        let err = rx.next(&mut &hello.wire[..]).unwrap_err().to_string();
        assert_eq!(
            err,
            format!("crc of segment 0 is {want:#010x}, the frame says 0x00000000")
        );
    }
}

#[test]
fn every_encrypted_frame_of_real_streams_is_understood_and_reproduced() {
    for name in [
        "v16-cephx-secure",
        "v18-cephx-secure",
        "v20-cephxaes-secure",
    ] {
        let name = &format!("{name}-rbd-info");
        let streams = pcap::streams(name);
        let secrets = secrets(name);
        assert_eq!(streams.len(), secrets.len());
        let mut messages = 0;
        for (stream, (_, secret)) in streams.iter().zip(&secrets) {
            let sides = all_frames(stream, true, Some(secret));
            for ((frames, plain), server) in sides.iter().zip([false, true]) {
                let cipher = Cipher::pair(secret, server).unwrap().1;
                let mut tx = Tx::Secure(Box::new(cipher));
                assert_eq!(frames[*plain].tag, Tag::AuthSignature);
                for f in &frames[*plain..] {
                    assert_eq!(f.encode(&mut tx), f.wire, "{name}: {:?}", f.tag);
                    messages += usize::from(f.tag == Tag::Message);
                }
            }
        }
        assert!(messages > 30, "{name}: {messages} messages");
    }
}
