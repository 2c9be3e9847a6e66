//! Secure mode: ciphertext that was tampered with, and well sealed blocks of any content.

#![no_main]

use cluster::codec::EntityType;
use cluster::msgr::crypto::Cipher;
use cluster::msgr::frame::{BLOCK, EPILOGUE_SECURE, INLINE, PREAMBLE, Preamble, Tag};
use cluster::msgr::input::Rx;
use cluster::msgr::{Event, MsgHeader, ceph_crc32c};
use cluster::payload::Payload;
use fuzz::{Edits, Mode, Pair, client_config, feed, output, server_config};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((how, rest)) = data.split_first() else {
        return;
    };
    if how & 1 == 0 {
        tampered(Edits::new(rest), how & 2 != 0);
    } else {
        sealed(Edits::new(rest));
    }
});

/// What is delivered is a prefix of what was sent, whatever happens on the way.
fn tampered(mut edits: Edits<'_>, to_server: bool) {
    let server = server_config(EntityType::OSD, 3);
    let mut pair = Pair::new(client_config(), server, Mode::Secure);
    pair.run(usize::MAX).expect("an honest handshake");
    let (from, to) = match to_server {
        true => (&mut pair.client, &mut pair.server),
        false => (&mut pair.server, &mut pair.client),
    };
    assert!(from.is_ready() && to.is_ready());
    let mut sent = Vec::new();
    for tid in 0..u64::from(edits.u8() % 4) {
        let front = edits.u8();
        let data = usize::from(edits.u16() % 2048);
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(1, 1, 1)
        };
        let front = vec![tid as u8; front.into()];
        let data = vec![0xda; data];
        let payload = [Payload::from(data.clone())];
        from.send(&header, |b| b.extend_from_slice(&front), &[], &payload)
            .expect("an open session");
        sent.push((tid, front, data));
    }
    let piece = usize::from(edits.u8()) + 1;
    let bytes = edits.of(output(from));
    let mut got = Vec::new();
    for piece in bytes.chunks(piece) {
        let fed = feed(to, piece, Mode::Secure, |e| {
            if let Event::Message(m) = e {
                got.push((m.header.tid, m.front.to_vec(), m.data.to_vec()));
            }
        });
        if fed.is_err() {
            break;
        }
    }
    assert!(sent.starts_with(&got), "a message that was never sent");
}

/// Frames of any content from a peer that holds the keys. Checksum and seals are right.
fn sealed(mut edits: Edits<'_>) {
    let (_, _, secret) = Mode::Secure.keys();
    let (cipher, _) = Cipher::pair(&secret, false).expect("64 bytes of secret");
    let (_, mut peer) = Cipher::pair(&secret, true).expect("64 bytes of secret");
    let mut rx = Rx::new(true, 1 << 20);
    rx.set_cipher(cipher);
    while !edits.input.is_empty() {
        let tag = Tag::ALL[usize::from(edits.u8()) % Tag::ALL.len()];
        let lens = [(); 4].map(|()| u32::from(edits.u8()));
        let mut block = edits.of(Preamble::new(tag, lens).encode().to_vec());
        block.resize(PREAMBLE, 0);
        let crc = ceph_crc32c(0, &block[..PREAMBLE - 4]);
        block[PREAMBLE - 4..].copy_from_slice(&crc.to_le_bytes());
        let head: &[u8; PREAMBLE] = block.first_chunk().expect("resized to it");
        let preamble = Preamble::decode(head);

        let mut wire = Vec::new();
        block.extend_from_slice(edits.bytes(INLINE));
        block.resize(PREAMBLE + INLINE, 0);
        seal(&mut peer, block, &mut wire);
        if let Ok(p) = preamble
            && p.payload_len() < 1 << 16
        {
            let pad = |len: u32| (len as usize).next_multiple_of(BLOCK);
            let mut body = |len: usize, wire: &mut Vec<u8>| {
                let mut block = edits.bytes(len).to_vec();
                block.resize(len, 0);
                seal(&mut peer, block, wire);
            };
            if let Some(rest @ 1..) = pad(p.lens[0]).checked_sub(INLINE) {
                body(rest, &mut wire);
            }
            if p.segments > 1 {
                let rest = p.lens[1..].iter().map(|len| pad(*len)).sum::<usize>();
                body(rest + EPILOGUE_SECURE, &mut wire);
            }
        }
        let mut input = &wire[..];
        loop {
            match rx.next(&mut input) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fn seal(cipher: &mut Cipher, mut plain: Vec<u8>, wire: &mut Vec<u8>) {
    let tag = cipher.seal(&mut plain).expect("few blocks");
    wire.append(&mut plain);
    wire.extend_from_slice(&tag);
}
