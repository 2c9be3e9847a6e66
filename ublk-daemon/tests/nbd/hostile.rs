//! Clients that are slow, confused or malicious, and a server that stops.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::fixture::{Options, Raw, TestServer};

const MIB: u64 = 1 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const ESHUTDOWN: u32 = 108;

/// Requests stay with the disk until the test completes them.
fn held(size: u64) -> Options {
    Options {
        automatic: false,
        ..Options::shuffled(size, 1)
    }
}

#[test]
fn replies_leave_in_the_order_of_completion() {
    let server = TestServer::start(held(MIB));
    let mut raw = Raw::open(&server);
    for cookie in 0..30 {
        raw.request(WRITE, cookie, cookie * 512, 512, &[cookie as u8; 512]);
    }
    server.eventually("all requests arrive", |i| i.disk.pending() == 30);
    server.inside(|i| i.disk.complete(30));
    let cookies: Vec<u64> = (0..30).map(|_| raw.reply().1).collect();
    let mut sorted = cookies.clone();
    sorted.sort_unstable();
    assert_ne!(cookies, sorted);
    assert_eq!(sorted, (0..30).collect::<Vec<_>>());
    server.inside(|i| {
        i.disk
            .with_bytes(|b| assert!((0..30 * 512).all(|n| b[n] == (n / 512) as u8)));
    });
}

#[test]
fn goodbye_is_said_after_the_last_reply() {
    let server = TestServer::start(held(MIB));
    let mut raw = Raw::open(&server);
    raw.request(WRITE, 5, 0, 512, &[1; 512]);
    raw.request(DISC, 0, 0, 0, &[]);
    server.eventually("the write arrives", |i| i.disk.pending() == 1);
    server.inside(|i| i.disk.complete(1));
    assert_eq!(raw.reply(), (0, 5));
    assert_eq!(raw.until_closed(), 0);
    server.assert_clean();
}

#[test]
fn nobody_holds_a_handshake_open() {
    let mut options = Options::new(MIB);
    options.config.handshake_timeout = Duration::from_millis(200);
    let server = TestServer::start(options);
    let begun = Instant::now();
    let mut silent = Raw::connect(&server);
    let mut slow = Raw::connect(&server);
    slow.send(&[0, 0]);
    assert_eq!(silent.until_closed(), 18);
    assert_eq!(slow.until_closed(), 18);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    server.assert_clean();
}

#[test]
fn who_stops_in_the_middle_of_a_request_is_cut_off() {
    let mut options = Options::new(MIB);
    options.config.stuck_timeout = Duration::from_millis(100);
    let server = TestServer::start(options);
    // In a header, in a short payload, in a payload that is received in place, in one skipped.
    for (len, offset) in [
        (None, 0),
        (Some(4096), 0),
        (Some(512 << 10), 0),
        (Some(4096), MIB),
    ] {
        let mut raw = Raw::open(&server);
        match len {
            None => raw.send(&0x2560_9513u32.to_be_bytes()),
            Some(len) => raw.request(WRITE, 1, offset, len, &[0; 100]),
        }
        assert_eq!(raw.until_closed(), 0);
        server.assert_clean();
    }
    // Who is merely idle stays.
    let mut idle = Raw::open(&server);
    std::thread::sleep(Duration::from_millis(500));
    idle.request(FLUSH, 3, 0, 0, &[]);
    assert_eq!(idle.reply(), (0, 3));
}

#[test]
fn a_client_that_reads_no_replies_holds_bounded_memory() {
    let mut options = Options::new(64 * MIB);
    options.arena = 8 << 20;
    let server = TestServer::start(options);
    server.inside(|i| i.disk.with_bytes(|b| b.fill(1)));
    let mut greedy = Raw::open(&server);
    greedy
        .0
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
    request.extend([0, 0, 0, READ as u8]);
    request.extend([0; 16]);
    request.extend((1u32 << 20).to_be_bytes());
    let mut sent = 0usize;
    while sent < 100_000 && greedy.0.write_all(&request).is_ok() {
        sent += 1;
    }
    assert!(sent < 100_000, "the server never stopped reading");
    server.inside(|i| assert!(i.arena.in_use() <= 8));
    drop(greedy);
    server.assert_clean();
}

#[test]
fn noise_is_survived() {
    let server = TestServer::start(Options::new(MIB));
    let mut seed = 1u64;
    for round in 0..60 {
        let mut raw = if round % 2 == 0 {
            Raw::connect(&server)
        } else {
            Raw::open(&server)
        };
        let noise: Vec<u8> = (0..round * 23)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        // The server may hang up before it has read all.
        let _ = raw.0.write_all(&noise);
        drop(raw);
    }
    server.assert_clean();
    let mut raw = Raw::open(&server);
    raw.request(FLUSH, 1, 0, 0, &[]);
    assert_eq!(raw.reply(), (0, 1));
}

#[test]
fn connections_are_bounded() {
    let mut options = Options::new(MIB);
    options.config.max_connections = 2;
    let server = TestServer::start(options);
    let (first, _second) = (Raw::open(&server), Raw::open(&server));
    assert_eq!(Raw::connect(&server).until_closed(), 0);
    drop(first);
    server.eventually("there is room again", |i| i.server.connections().0 == 1);
    Raw::open(&server);
}

#[test]
fn memory_is_shared_without_starving_anyone() {
    let mut options = Options::shuffled(64 * MIB, 3);
    options.arena = 1 << 20;
    let server = TestServer::start(options);
    std::thread::scope(|scope| {
        for n in 0..4u64 {
            let server = &server;
            scope.spawn(move || {
                let mut raw = Raw::open(server);
                let len = if n == 0 { 1 << 20 } else { 64 << 10 };
                for round in 0..40u64 {
                    let data = vec![round as u8; len as usize];
                    raw.request(WRITE, round, n * 16 * MIB, len, &data);
                    assert_eq!(raw.reply(), (0, round));
                    raw.request(READ, round, n * 16 * MIB, len, &[]);
                    assert_eq!(raw.reply(), (0, round));
                    assert!(raw.read(len as usize) == data);
                }
            });
        }
    });
    server.assert_clean();
}

#[test]
fn a_stopping_server_answers_what_it_took() {
    let mut server = TestServer::start(held(MIB));
    let path = server.path();
    let mut raw = Raw::open(&server);
    let mut idle = Raw::open(&server);
    let mut young = Raw::connect(&server);
    raw.request(WRITE, 8, 0, 512, &[1; 512]);
    server.eventually("the write arrives", |i| i.disk.pending() == 1);
    server.begin_stop();
    raw.request(FLUSH, 9, 0, 0, &[]);
    assert_eq!(raw.reply(), (ESHUTDOWN, 9));
    assert!(!path.exists(), "the socket is still there");
    server.inside(|i| i.disk.complete(1));
    assert_eq!(raw.reply(), (0, 8));
    assert_eq!(raw.until_closed(), 0);
    assert_eq!(idle.until_closed(), 0);
    assert_eq!(young.until_closed(), 18);
    server.join();
}

#[test]
fn a_stopping_server_does_not_wait_for_ever() {
    let mut options = held(MIB);
    options.config.drain_timeout = Duration::from_millis(200);
    let mut server = TestServer::start(options);
    let mut raw = Raw::open(&server);
    raw.request(WRITE, 8, 0, 512, &[1; 512]);
    server.eventually("the write arrives", |i| i.disk.pending() == 1);
    server.begin_stop();
    assert_eq!(raw.until_closed(), 0);
    server.join();
}

#[test]
fn a_withdrawn_export_is_gone() {
    let server = TestServer::start(Options::new(MIB));
    let mut raw = Raw::open(&server);
    server.withdraw();
    assert_eq!(raw.until_closed(), 0);
    let mut late = Raw::connect(&server);
    late.read(18);
    late.send(&3u32.to_be_bytes());
    late.send(b"IHAVEOPT\0\0\0\x07\0\0\0\x09\0\0\0\x03vm1\0\0");
    assert_eq!(late.read(16)[12..], (1u32 << 31 | 6).to_be_bytes());
}
