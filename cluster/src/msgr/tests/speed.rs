//! `cargo test --release -p cluster msgr::tests::speed -- --ignored --nocapture`

use std::time::Instant;

use crate::payload::Payload;

use super::super::{MsgHeader, OutBatch};
use super::*;

/// Nanoseconds for one message of a 4 KiB write: encoded, taken, parsed.
fn measure(mode: Mode, batch_size: usize) -> f64 {
    let mut pair = Pair::lossy(mode);
    pair.open();
    let payload = [Payload::from(vec![7; 4096])];
    let front = [3; 220];
    let header = MsgHeader::new(42, 8, 1);
    let mut batch = OutBatch::new();
    let rounds = 400_000 / batch_size;
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let mut got = 0;
        for _ in 0..rounds / 5 {
            for _ in 0..batch_size {
                pair.client
                    .send(&header, |b| b.extend_from_slice(&front), &[], &payload)
                    .unwrap();
            }
            pair.client.take_output(&mut batch);
            let mut input = batch.contiguous().expect("small payloads are copied");
            while let Some(e) = pair.server.next_event(&mut input, pair.now).unwrap() {
                match e {
                    Event::Message(m) => got += usize::from(m.data[4095] == 7),
                    other => panic!("{other:?}"),
                }
            }
            batch.clear();
        }
        assert_eq!(got, rounds / 5 * batch_size);
        best = best.min(start.elapsed().as_nanos() as f64 / got as f64);
    }
    best
}

/// What of it the checksum (once on either side) and the cipher cost.
fn floor() {
    let mut bytes = vec![7; 4096 + 16];
    let rounds = 200_000;
    let start = Instant::now();
    let mut crc = 0;
    for _ in 0..rounds {
        crc = super::super::ceph_crc32c(crc, std::hint::black_box(&bytes[..4096]));
    }
    std::hint::black_box(crc);
    let crc = start.elapsed().as_nanos() / rounds;
    let (_, mut tx) = super::super::crypto::Cipher::pair(&[1; 40], false).unwrap();
    let start = Instant::now();
    for _ in 0..rounds {
        std::hint::black_box(tx.seal(&mut bytes[..4096]).unwrap());
    }
    let seal = start.elapsed().as_nanos() / rounds;
    println!("of 4096 bytes: crc {crc} ns, seal {seal} ns");
}

#[test]
#[ignore = "a measurement, for release builds"]
fn encode_and_decode_of_4k() {
    floor();
    for batch in [1, 16] {
        for mode in [Mode::Crc, Mode::Secure] {
            println!(
                "{mode:?}, {batch} in a batch: {:.0} ns",
                measure(mode, batch)
            );
        }
    }
}

#[test]
fn a_steady_stream_does_not_grow_buffers() {
    for mode in [Mode::Crc, Mode::Secure] {
        let mut pair = Pair::lossy(mode);
        pair.open();
        let payload = [Payload::from(vec![7; 4096])];
        let header = MsgHeader::new(42, 8, 1);
        let mut batch = OutBatch::new();
        let mut sizes = Vec::new();
        for _ in 0..50 {
            for _ in 0..8 {
                pair.client
                    .send(&header, |b| b.push(1), &[], &payload)
                    .unwrap();
            }
            pair.client.take_output(&mut batch);
            sizes.push((batch.capacity(), pair.server.rx.capacity()));
            let mut input = batch.contiguous().unwrap();
            while pair
                .server
                .next_event(&mut input, pair.now)
                .unwrap()
                .is_some()
            {}
            batch.clear();
        }
        // Two buffers swap places; after that nothing moves.
        assert_eq!(sizes[3..25], sizes[25..47]);
    }
}
