//! Whole frames with right checksums, at any point of a handshake or session.

#![no_main]

use arbitrary::Arbitrary;
use cluster::codec::EntityType;
use cluster::msgr::frame::Tag;
use cluster::msgr::output::{OutBatch, Tx};
use cluster::msgr::{MsgHeader, Policy};
use cluster::payload::Payload;
use fuzz::{Mode, Pair, client_config, feed, server_config};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Input {
    to_server: bool,
    lossless: bool,
    /// How far the honest handshake goes: a whole one takes about a thousand bytes each way.
    honest: u16,
    frames: Vec<Frame>,
}

#[derive(Debug, Arbitrary)]
enum Frame {
    Control(u8, Vec<u8>),
    Message {
        seq: u8,
        ack_seq: u64,
        front: Vec<u8>,
        middle: Vec<u8>,
        data: Vec<u8>,
        /// Overwrites the late status.
        late: Option<u8>,
    },
    /// From the victim, so that there is something to acknowledge.
    Send(Vec<u8>),
    Lost,
}

fuzz_target!(|input: Input| {
    let (mut client, mut server) = (client_config(), server_config(EntityType::OSD, 3));
    if input.lossless {
        client.policy = Policy::LOSSLESS_PEER;
        server.policy = Policy::LOSSLESS_PEER;
    }
    let mut pair = Pair::new(client, server, Mode::Crc);
    // A lossless server stops to ask for earlier sessions, which is an error of `deliver`'s owner
    // here: such an input starts where it stopped.
    let _ = pair.run(input.honest.into());
    let victim = match input.to_server {
        true => &mut pair.server,
        false => &mut pair.client,
    };
    let mut tx = Tx::Crc { data: true };
    for frame in &input.frames {
        let mut out = OutBatch::new();
        let sealed = match frame {
            Frame::Control(tag, payload) => {
                let tag = Tag::ALL[usize::from(*tag) % Tag::ALL.len()];
                tx.control(&mut out, tag, |b| b.extend_from_slice(payload))
            }
            Frame::Message {
                seq,
                ack_seq,
                front,
                middle,
                data,
                ..
            } => {
                let header = MsgHeader {
                    seq: (*seq).into(),
                    ack_seq: *ack_seq,
                    ..MsgHeader::new(1, 1, 1)
                };
                let data = Payload::from(data.clone());
                let front = |b: &mut Vec<u8>| b.extend_from_slice(front);
                tx.message(&mut out, &header, front, middle, &[data])
            }
            Frame::Send(front) => {
                let header = MsgHeader::new(1, 1, 1);
                let _ = victim.send(&header, |b| b.extend_from_slice(front), &[], &[]);
                continue;
            }
            Frame::Lost => {
                victim.lost();
                let _ = victim.reconnect(9, fuzz::NOW);
                continue;
            }
        };
        sealed.expect("crc mode runs out of nothing");
        let mut bytes: Vec<u8> = out.slices().flatten().copied().collect();
        if let Frame::Message {
            late: Some(late), ..
        } = frame
        {
            let at = bytes.len() - 13;
            bytes[at] = *late;
        }
        let fed = feed(victim, &bytes, Mode::Crc, |_| ());
        assert!(fuzz::output(victim).len() < 4 << 20);
        if fed.is_err() && !input.lossless {
            break;
        }
    }
});
