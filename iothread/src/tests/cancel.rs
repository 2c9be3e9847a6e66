//! Dropping futures at any moment: nothing is used after free (run with the address sanitizer),
//! nothing is lost that should be given back, and everything ends.

use std::cell::{Cell, RefCell};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::*;
use crate::*;

/// Polls once with a waker that does nothing.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Bytes that tell when they are freed.
struct Tracked {
    bytes: Vec<u8>,
    freed: Rc<Cell<usize>>,
}

impl Tracked {
    fn new(len: usize, freed: &Rc<Cell<usize>>) -> Tracked {
        Tracked {
            bytes: vec![0; len],
            freed: Rc::clone(freed),
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        // Scribble, so that a kernel that still sends from here is found out.
        self.bytes.fill(0xee);
        self.freed.set(self.freed.get() + 1);
    }
}

// SAFETY: a vector's elements are on the heap.
unsafe impl IoBuf for Tracked {
    fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
}

// SAFETY: as above, and the vector owns them.
unsafe impl IoBufMut for Tracked {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

// SAFETY: as above.
unsafe impl StableBatch for Tracked {
    fn iovecs(&self, out: &mut Vec<libc::iovec>) {
        self.bytes.iovecs(out);
    }
}

async fn unix_pair() -> (Stream, Stream) {
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    (
        Stream::from_fd(a.into()).unwrap(),
        Stream::from_fd(b.into()).unwrap(),
    )
}

#[test]
fn a_dropped_receive_keeps_its_buffer_until_the_kernel_is_done() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let freed = Rc::new(Cell::new(0));
            let (a, b) = unix_pair().await;
            for submitted in [false, true] {
                let mut recv = Box::pin(b.recv(Tracked::new(4096, &freed), 0..4096));
                assert!(poll_once(recv.as_mut()).is_pending());
                if submitted {
                    yield_now().await;
                    sleep(Duration::from_micros(200)).await;
                }
                freed.set(0);
                drop(recv);
                assert_eq!(freed.get(), 0, "the kernel has not let go yet");
                while freed.get() == 0 {
                    sleep(Duration::from_micros(100)).await;
                }
                assert_eq!(freed.get(), 1);
            }
            // The socket works on.
            a.send(b"x".to_vec(), 0..1).await.0.unwrap();
            assert_eq!(b.recv(vec![0; 4], 0..4).await.0.unwrap(), 1);
        });
    });
}

#[test]
fn a_dropped_blocked_send_keeps_its_batch() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let freed = Rc::new(Cell::new(0));
            let (a, _b) = unix_pair().await;
            let len = 4 << 20;
            let mut send = Box::pin(a.send_batch(Tracked::new(len, &freed)));
            assert!(poll_once(send.as_mut()).is_pending());
            sleep(Duration::from_millis(1)).await;
            assert!(poll_once(send.as_mut()).is_pending());
            drop(send);
            assert_eq!(freed.get(), 0);
            while freed.get() == 0 {
                sleep(Duration::from_micros(100)).await;
            }
        });
    });
}

#[test]
fn a_completed_but_untaken_operation_gives_back_what_it_carries() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let mut listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let addr = listener.local_addr().unwrap();
            {
                let mut accept = Box::pin(listener.accept());
                assert!(poll_once(accept.as_mut()).is_pending());
            }
            let first = Stream::connect(addr).await.unwrap();
            sleep(Duration::from_millis(1)).await;
            // Accepted by the kernel into our queue, taken by nobody.
            drop(listener);
            let (end, _) = first.recv(vec![0; 1], 0..1).await;
            assert!(matches!(end, Ok(0) | Err(_)), "the connection was closed");
            // Received into a buffer of the ring, taken by nobody.
            for _ in 0..50 {
                let (a, b) = unix_pair().await;
                let mut recv = b.recv_stream();
                assert!(recv.try_next().is_none());
                a.send(vec![1; 100], 0..100).await.0.unwrap();
                yield_now().await;
                drop(recv);
            }
            let (a, b) = unix_pair().await;
            a.send(vec![1; 100], 0..100).await.0.unwrap();
            let mut recv = b.recv_stream();
            let piece = timeout(Duration::from_secs(5), recv.next()).await;
            assert_eq!(piece.expect("buffers leaked").unwrap().unwrap().len(), 100);
        });
    });
}

#[test]
fn shutdown_with_everything_in_flight() {
    for (name, config) in kernels() {
        let rt = Runtime::new(&config).unwrap();
        let freed = Rc::new(Cell::new(0));
        let (a, b, recv, op, event) = rt.block_on(async {
            let (a, b) = unix_pair().await;
            let mut recv = b.recv_stream();
            assert!(recv.try_next().is_none());
            let (c, d) = unix_pair().await;
            // In tasks, detached and not.
            for _ in 0..40 {
                let d = d.clone();
                let buf = Tracked::new(64, &freed);
                drop(spawn(async move { d.recv(buf, 0..64).await }));
            }
            let big = Tracked::new(4 << 20, &freed);
            drop(spawn(async move { c.send_batch(big).await }));
            let mut listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            drop(spawn(async move { listener.accept().await.map(drop) }));
            drop(spawn(sleep(Duration::from_secs(1000))));
            // In a future that outlives the runtime.
            let event = EventFd::new().unwrap();
            let held = event.clone();
            let mut op = Box::pin(async move { held.read().await });
            assert!(poll_once(op.as_mut()).is_pending());
            yield_now().await;
            (a, b, recv, op, event)
        });
        assert!(rt.in_flight() > 0);
        assert_eq!(rt.shutdown(), 0, "{name}");
        assert_eq!(freed.get(), 41);
        // What is left says that it is over, and never hangs or crashes.
        let mut op = op;
        let Poll::Ready(Err(e)) = poll_once(op.as_mut()) else {
            panic!("{name}: cancelled operations complete");
        };
        assert_eq!(e.raw_os_error(), Some(libc::ECANCELED));
        let mut recv = recv;
        assert!(matches!(recv.try_next(), Some(Err(_))));
        let mut late = Box::pin(a.send(vec![0; 3], 0..3));
        assert!(matches!(poll_once(late.as_mut()), Poll::Ready((Err(_), _))));
        drop((late, event, b));
    }
}

#[test]
fn received_buffers_outlive_the_runtime() {
    for (_, config) in kernels() {
        let rt = Runtime::new(&config).unwrap();
        let piece = rt.block_on(async {
            let (a, b) = unix_pair().await;
            a.send(b"still here".to_vec(), 0..10).await.0.unwrap();
            b.recv_stream().next().await.unwrap().unwrap()
        });
        drop(rt);
        assert_eq!(*piece, *b"still here");
    }
}

#[test]
fn a_bad_range_panics_without_harm() {
    let rt = Runtime::new(&small()).unwrap();
    rt.block_on(async {
        let (a, b) = unix_pair().await;
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut recv = Box::pin(b.recv(vec![0; 4], 2..9));
            poll_once(recv.as_mut()).is_pending()
        }));
        assert!(caught.is_err());
        a.send(b"ok".to_vec(), 0..2).await.0.unwrap();
        assert_eq!(b.recv(vec![0; 4], 0..4).await.0.unwrap(), 2);
    });
    assert_eq!(rt.in_flight(), 0);
    assert_eq!(rt.shutdown(), 0);
}

/// Many tasks do random things to random sockets and are cut off at random moments: by timeouts
/// around operations, by aborts, by the end of the runtime. Data that arrives must be what was
/// sent. The seed is in the panic message.
fn storm(seed: u64, config: &Config) {
    let rt = Runtime::new(config).unwrap();
    let freed = Rc::new(Cell::new(0));
    let made = Rc::new(Cell::new(0));
    rt.block_on(async {
        let rng = Rc::new(RefCell::new(Rng::new(seed)));
        let mut listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = listener.local_addr().unwrap();
        let acceptor = spawn(async move {
            loop {
                let Ok(stream) = listener.accept().await else {
                    continue;
                };
                drop(spawn(async move {
                    let mut recv = stream.recv_stream();
                    while let Ok(Some(piece)) = recv.next().await {
                        if stream.send_batch(piece.to_vec()).await.0.is_err() {
                            break;
                        }
                    }
                }));
            }
        });
        let mut tasks = Vec::new();
        for id in 0..12u8 {
            let (rng, freed, made) = (Rc::clone(&rng), Rc::clone(&freed), Rc::clone(&made));
            tasks.push(spawn(async move {
                let below = |n: u64| rng.borrow_mut().below(n);
                loop {
                    let Ok(stream) = Stream::connect(addr).await else {
                        continue;
                    };
                    let mut recv = stream.recv_stream();
                    let mut byte = id;
                    for _ in 0..below(12) {
                        byte = byte.wrapping_add(16);
                        let patience = Duration::from_micros(below(400));
                        let len = 1 + below(if below(8) == 0 { 200_000 } else { 3000 }) as usize;
                        made.set(made.get() + 1);
                        let mut batch = Tracked::new(len, &freed);
                        batch.bytes.fill(byte);
                        let sent = timeout(patience, stream.send_batch(batch)).await;
                        match below(6) {
                            // A direct receive, perhaps cut off: the stream is spoilt.
                            0 => {
                                recv.pause().await;
                                made.set(made.get() + 1);
                                let buf = Tracked::new(2000, &freed);
                                let _ = timeout(patience, stream.recv(buf, 0..2000)).await;
                                break;
                            }
                            1 => {
                                let _ = timeout(patience, recv.pause()).await;
                            }
                            2 => recv.set_multishot(below(2) == 0),
                            3 => break,
                            _ => {}
                        }
                        if !matches!(sent, Ok((Ok(_), _))) {
                            break;
                        }
                        let mut left = len;
                        let mut held = Vec::new();
                        while left > 0 {
                            let wait = patience + Duration::from_millis(2);
                            let Ok(Ok(Some(piece))) = timeout(wait, recv.next()).await else {
                                break;
                            };
                            assert!(piece.iter().all(|&b| b == byte), "foreign bytes");
                            assert!(piece.len() <= left, "more than was sent");
                            left -= piece.len();
                            if below(3) == 0 && held.len() < 2 {
                                held.push(piece);
                            }
                        }
                        assert!(held.iter().all(|p| p.iter().all(|&b| b == byte)));
                        if left > 0 {
                            break;
                        }
                    }
                }
            }));
        }
        for _ in 0..15 {
            let pause = rng.borrow_mut().below(3000);
            sleep(Duration::from_micros(pause)).await;
            if rng.borrow_mut().below(3) == 0
                && let Some(task) = tasks.pop()
            {
                task.abort();
            }
        }
        if rng.borrow_mut().below(2) == 0 {
            acceptor.abort();
        }
    });
    assert_eq!(rt.shutdown(), 0, "seed {seed}: the kernel kept something");
    assert_eq!(
        freed.get(),
        made.get(),
        "seed {seed}: each buffer is freed once"
    );
}

#[test]
fn storms() {
    let seeds = std::env::var("IOTHREAD_STORMS")
        .ok()
        .and_then(|s| s.parse().ok());
    let count: u64 = seeds.unwrap_or(6);
    for seed in 0..count {
        for (name, config) in kernels() {
            let result = std::panic::catch_unwind(|| storm(seed, &config));
            assert!(result.is_ok(), "seed {seed}, {name}");
        }
    }
}

#[test]
fn descriptors_are_closed_after_the_last_operation() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let (a, b) = unix_pair().await;
            let fd = b.as_raw_fd();
            let mut recv = b.recv_stream();
            assert!(recv.try_next().is_none());
            sleep(Duration::from_micros(100)).await;
            drop(b);
            // SAFETY: F_GETFD takes no pointer and changes nothing.
            let open = || unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
            assert!(open());
            drop(recv);
            let (end, _) = a.recv(vec![0; 1], 0..1).await;
            assert_eq!(end.unwrap(), 0, "our peer sees the end");
        });
    });
}
