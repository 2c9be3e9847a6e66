//! Sockets: echoes, short sends, starvation, pauses, hand-over.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::*;
use crate::*;

const ANY: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

async fn pair() -> (Stream, Stream) {
    let mut listener = Listener::bind(ANY.into()).unwrap();
    let addr = listener.local_addr().unwrap();
    let dialled = spawn(async move { Stream::connect(addr).await.unwrap() });
    let accepted = listener.accept().await.unwrap();
    (dialled.await.unwrap(), accepted)
}

/// Reads `len` bytes from a stream.
async fn gather(recv: &mut RecvStream, len: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(len);
    while all.len() < len {
        let piece = recv
            .next()
            .await
            .unwrap()
            .expect("no end before the length");
        all.extend_from_slice(&piece);
    }
    assert_eq!(all.len(), len);
    all
}

async fn echo(stream: Stream) {
    let mut recv = stream.recv_stream();
    while let Some(piece) = recv.next().await.unwrap() {
        let (sent, _) = stream.send_batch(piece.to_vec()).await;
        sent.unwrap();
    }
}

#[test]
fn echo_over_many_connections() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let mut listener = Listener::bind(ANY.into()).unwrap();
            let addr = listener.local_addr().unwrap();
            let server = spawn(async move {
                loop {
                    let stream = listener.accept().await.unwrap();
                    drop(spawn(echo(stream)));
                }
            });
            let clients: Vec<_> = (0..60u64)
                .map(|seed| {
                    spawn(async move {
                        let stream = Stream::connect(addr).await.unwrap();
                        let mut recv = stream.recv_stream();
                        let mut rng = Rng::new(seed);
                        for _ in 0..10 {
                            let len = 1 + rng.below(9000) as usize;
                            let byte = rng.next() as u8;
                            let (sent, batch) = stream.send_batch(vec![byte; len]).await;
                            assert_eq!(sent.unwrap(), len);
                            assert_eq!(gather(&mut recv, len).await, batch);
                        }
                        stream.shutdown(Shutdown::Write).await.unwrap();
                        assert!(recv.next().await.unwrap().is_none());
                        assert!(recv.next().await.unwrap().is_none(), "the end stays");
                    })
                })
                .collect();
            for c in clients {
                c.await.unwrap();
            }
            server.abort();
        });
    });
}

fn set_buf(stream: &Stream, option: i32, size: i32) {
    // SAFETY: the option's value is an int.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const size).cast(),
            4,
        )
    };
    assert_eq!(done, 0);
}

#[test]
fn short_sends_continue_in_order() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let (a, b) = pair().await;
            set_buf(&a, libc::SO_SNDBUF, 1);
            set_buf(&b, libc::SO_RCVBUF, 16 << 10);
            // More pieces than one call takes, of odd sizes, some empty.
            let mut rng = Rng::new(1);
            let batch: Vec<Vec<u8>> = (0..3000)
                .map(|i| vec![i as u8; rng.below(200) as usize])
                .collect();
            let flat = batch.concat();
            let len = flat.len();
            let reader = spawn(async move { gather(&mut b.recv_stream(), len).await });
            let (sent, back) = a.send_batch(batch).await;
            assert_eq!(sent.unwrap(), len);
            assert_eq!(back.concat(), flat);
            assert_eq!(reader.await.unwrap(), flat);
            // And through the loop of plain sends.
            let (c, d) = pair().await;
            set_buf(&c, libc::SO_SNDBUF, 1);
            let expect = flat.clone();
            let reader = spawn(async move {
                let (done, got) = d.recv_exact(vec![0; len + 1], 0..len).await;
                done.unwrap();
                assert_eq!(got[..len], expect[..]);
            });
            c.send(flat, 0..len).await.0.unwrap();
            reader.await.unwrap();
        });
    });
}

#[test]
fn an_empty_batch_sends_nothing() {
    let rt = Runtime::new(&small()).unwrap();
    rt.block_on(async {
        let (a, _b) = pair().await;
        let before = stats().sqes;
        let (sent, _) = a.send_batch(vec![Vec::new(), Vec::new()]).await;
        assert_eq!(sent.unwrap(), 0);
        assert_eq!(stats().sqes, before);
    });
}

#[test]
fn sending_to_the_gone_is_an_error_not_a_signal() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let (a, b) = pair().await;
            b.close().await.unwrap();
            let failed = loop {
                let (sent, _) = a.send_batch(vec![1u8; 1000]).await;
                if let Err(e) = sent {
                    break e;
                }
            };
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
            assert!(matches!(failed.kind(), BrokenPipe | ConnectionReset));
        });
    });
}

#[test]
fn starved_receivers_go_on_when_buffers_return() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let total = 400_000;
            let (a, b) = pair().await;
            let (c, d) = pair().await;
            for (stream, byte) in [(a, 1u8), (c, 2)] {
                drop(spawn(async move {
                    stream.send(vec![byte; total], 0..total).await.0.unwrap();
                    std::future::pending::<()>().await;
                }));
            }
            // One receiver hoards all 16 buffers, dozes, lets them go.
            let mut hog = b.recv_stream();
            let mut held = Vec::new();
            while held.len() < 16 {
                match timeout(Duration::from_millis(50), hog.next()).await {
                    Ok(piece) => held.push(piece.unwrap().unwrap()),
                    Err(Elapsed) => break,
                }
            }
            assert!(held.len() >= 8, "only {} pieces", held.len());
            let mut other = d.recv_stream();
            if held.len() == 16 {
                let starved = timeout(Duration::from_millis(20), other.next()).await;
                assert!(starved.is_err(), "no buffer was free");
            }
            let mut got = held.iter().map(|p| p.len()).sum::<usize>();
            assert!(held.iter().all(|p| p.iter().all(|&b| b == 1)));
            drop(held);
            let theirs = spawn(async move { gather(&mut other, total).await });
            while got < total {
                let piece = hog.next().await.unwrap().unwrap();
                assert!(piece.iter().all(|&b| b == 1));
                got += piece.len();
            }
            assert_eq!(got, total);
            assert_eq!(theirs.await.unwrap(), vec![2; total]);
        });
    });
}

#[test]
fn a_socket_without_multishot_takes_no_more_than_is_asked_for() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let (a, b) = pair().await;
            let (c, d) = pair().await;
            let lazy_total = 500_000;
            let sender = spawn(async move {
                a.send(vec![9; lazy_total], 0..lazy_total).await.0.unwrap();
            });
            let mut lazy = b.recv_stream();
            lazy.set_multishot(false);
            assert!(lazy.try_next().is_none(), "nothing there yet, but armed");
            sleep(Duration::from_millis(5)).await;
            // Meanwhile the other socket works.
            let mut busy = d.recv_stream();
            for i in 0..50u8 {
                c.send(vec![i; 3000], 0..3000).await.0.unwrap();
                assert_eq!(gather(&mut busy, 3000).await, vec![i; 3000]);
            }
            assert_eq!(gather(&mut lazy, lazy_total).await, vec![9; lazy_total]);
            sender.await.unwrap();
        });
    });
}

#[test]
fn pausing_hands_the_socket_over_without_losing_a_byte() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let (a, b) = pair().await;
            let mut rng = Rng::new(5);
            let data: Vec<u8> = (0..300_000).map(|_| rng.next() as u8).collect();
            let expect = data.clone();
            let sender = spawn(async move {
                let mut at = 0;
                let mut data = data;
                let mut rng = Rng::new(6);
                while at < data.len() {
                    let end = (at + 1 + rng.below(20_000) as usize).min(data.len());
                    let (sent, back) = a.send(data, at..end).await;
                    sent.unwrap();
                    (data, at) = (back, end);
                    if rng.below(3) == 0 {
                        yield_now().await;
                    }
                }
                a
            });
            let mut recv = b.recv_stream();
            let mut got = Vec::new();
            let mut round = 0;
            while got.len() < expect.len() {
                round += 1;
                recv.set_multishot(round % 2 == 0);
                got.extend_from_slice(&recv.next().await.unwrap().unwrap());
                recv.pause().await;
                while let Some(piece) = recv.try_next() {
                    got.extend_from_slice(&piece.unwrap().unwrap());
                }
                let left = (expect.len() - got.len()).min(7000);
                let (done, direct) = b.recv_exact(vec![0; left + 5], 5..left + 5).await;
                done.unwrap();
                got.extend_from_slice(&direct[5..]);
            }
            assert!(got == expect);
            drop(sender.await.unwrap());
            assert!(recv.next().await.unwrap().is_none());
        });
    });
}

#[test]
fn unix_sockets_and_std_peers() {
    on_all_kernels(|rt| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        rt.block_on(async {
            let mut listener = Listener::bind_unix(&path).unwrap();
            let client = Stream::connect_unix(&path).await.unwrap();
            let server = listener.accept().await.unwrap();
            client.send(b"ping".to_vec(), 0..4).await.0.unwrap();
            let (n, buf) = server.recv(vec![0; 16], 2..16).await;
            assert_eq!((n.unwrap(), &buf[2..6]), (4, &b"ping"[..]));
            let missing = Stream::connect_unix(dir.path().join("nothing")).await;
            assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
            let long = "x".repeat(200);
            let refused = Stream::connect_unix(long).await.unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
        });
    });
}

#[test]
fn a_non_blocking_socket_can_be_adopted() {
    on_all_kernels(|rt| {
        let listener = std::net::TcpListener::bind(SocketAddr::from(ANY)).unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            peer.write_all(b"hello").unwrap();
            let mut answer = [0; 5];
            peer.read_exact(&mut answer).unwrap();
            answer
        });
        rt.block_on(async {
            let stream = Stream::from_fd(ours.into()).unwrap();
            let mut recv = stream.recv_stream();
            let mut piece = recv.next().await.unwrap().unwrap();
            assert_eq!(*piece, *b"hello");
            piece.advance(2);
            assert_eq!(*piece, *b"llo");
            stream.send(b"world".to_vec(), 0..5).await.0.unwrap();
        });
        assert_eq!(&thread.join().unwrap(), b"world");
    });
}

#[test]
fn connecting_to_nobody_fails() {
    on_all_kernels(|rt| {
        let unused = std::net::TcpListener::bind(SocketAddr::from(ANY)).unwrap();
        let addr = unused.local_addr().unwrap();
        drop(unused);
        let refused = rt.block_on(Stream::connect(addr)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_send_queue_collects_during_a_send() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let (a, b) = pair().await;
            let queue = SendQueue::<Vec<u8>>::new();
            let running = queue.clone();
            let driver = spawn(async move { running.run(&a).await });
            let hook = {
                let queue = queue.clone();
                on_turn_end(move || queue.flush())
            };
            let before = stats().sqes;
            let mut expect = Vec::new();
            // A hundred tasks write in one turn; their bytes leave together.
            for i in 0..100u8 {
                let queue = queue.clone();
                drop(spawn(async move {
                    queue.with(|batch| batch.extend_from_slice(&[i; 50]));
                }));
                expect.extend_from_slice(&[i; 50]);
            }
            let mut recv = b.recv_stream();
            assert_eq!(gather(&mut recv, expect.len()).await, expect);
            assert!(stats().sqes - before < 40, "a send for each write?");
            queue.with(|batch| batch.extend_from_slice(b"last"));
            queue.close();
            driver.await.unwrap().unwrap();
            assert_eq!(*recv.next().await.unwrap().unwrap(), *b"last");
            assert!(
                recv.next().await.unwrap().is_none(),
                "the driver held the stream"
            );
            drop(hook);
        });
    });
}

#[test]
fn a_request_and_its_reply_cost_one_call_where_the_kernel_can_wait_for_both() {
    let rt = Runtime::new(&small()).unwrap();
    let peer = std::net::TcpListener::bind(SocketAddr::from(ANY)).unwrap();
    let addr = peer.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut s, _) = peer.accept().unwrap();
        s.set_nodelay(true).unwrap();
        let mut buf = [0; 64];
        while s.read_exact(&mut buf).is_ok() {
            s.write_all(&buf).unwrap();
        }
    });
    let per_request = rt.block_on(async {
        let stream = Stream::connect(addr).await.unwrap();
        let mut recv = stream.recv_stream();
        let n = 300;
        let before = stats().enters;
        for _ in 0..n {
            stream.send_batch(vec![0u8; 64]).await.0.unwrap();
            gather(&mut recv, 64).await;
        }
        (stats().enters - before) as f64 / f64::from(n)
    });
    // Our side closes when the receive in flight is reaped.
    let min_wait = rt.features().min_wait;
    drop(rt);
    server.join().unwrap();
    eprintln!("{per_request} enters per request");
    // Slow machines run into the end of the minimum wait now and then.
    if min_wait {
        assert!(per_request < 1.6, "{per_request} enters per request");
    }
}
