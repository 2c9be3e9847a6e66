//! How many 4 KiB messages per second one iothread moves over loopback, and with how many system
//! calls: through tasks, hooks and send queues, and for comparison through a bare io_uring loop.
//!
//! A client keeps `depth` requests of 64 bytes in flight on each connection; a server thread
//! answers each with 4096 bytes and a header. Usage: `echo_bench [seconds] [connections] [depth]`

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use iothread::io_uring::{IoUring, opcode, types};
use iothread::{Config, Runtime, SendQueue, Stream, on_turn_end, spawn};

const REQUEST: usize = 64;
const REPLY: usize = 4096 + 64;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A plain server: reads what is there, answers all complete requests with one write.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let replies = vec![7u8; REPLY * 256];
    let mut buf = [0u8; REQUEST * 256];
    let mut have = 0;
    loop {
        let n = stream.read(&mut buf[have..])?;
        if n == 0 {
            return Ok(());
        }
        have += n;
        let complete = have / REQUEST;
        stream.write_all(&replies[..complete * REPLY])?;
        have %= REQUEST;
    }
}

fn server() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(addr)
}

fn thread_cpu() -> Duration {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) };
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}

struct Score {
    messages: u64,
    calls: u64,
    wall: Duration,
    cpu: Duration,
}

fn report(name: &str, s: &Score) {
    println!(
        "{name:<28} {:>8.0} messages/s  {:>6.3} us cpu/message  {:.3} system calls/message",
        s.messages as f64 / s.wall.as_secs_f64(),
        s.cpu.as_secs_f64() * 1e6 / s.messages as f64,
        s.calls as f64 / s.messages as f64,
    );
}

/// Tasks, one receiver per connection; requests collect in queues that a hook flushes.
fn through_runtime(
    config: &Config,
    addr: SocketAddr,
    seconds: u64,
    conns: usize,
    depth: usize,
) -> Result<Score> {
    let runtime = Runtime::new(config)?;
    runtime.block_on(async {
        let messages = Rc::new(Cell::new(0u64));
        let mut hooks = Vec::new();
        for _ in 0..conns {
            let stream = Stream::connect(addr).await?;
            let queue = SendQueue::<Vec<u8>>::new();
            let mut recv = stream.recv_stream();
            let sender = queue.clone();
            drop(spawn(async move { sender.run(&stream).await }));
            let flusher = queue.clone();
            hooks.push(on_turn_end(move || flusher.flush()));
            let messages = Rc::clone(&messages);
            drop(spawn(async move {
                queue.with(|b| b.resize(REQUEST * depth, 1));
                let mut have = 0;
                while let Ok(Some(piece)) = recv.next().await {
                    have += piece.len();
                    let complete = have / REPLY;
                    have %= REPLY;
                    messages.set(messages.get() + complete as u64);
                    queue.with(|b| b.resize(b.len() + REQUEST * complete, 1));
                }
            }));
        }
        // Warm up, then count.
        iothread::sleep(Duration::from_millis(200)).await;
        let (m, e) = (messages.get(), iothread::stats().enters);
        let (wall, cpu) = (Instant::now(), thread_cpu());
        iothread::sleep(Duration::from_secs(seconds)).await;
        Ok(Score {
            messages: messages.get() - m,
            calls: iothread::stats().enters - e,
            wall: wall.elapsed(),
            cpu: thread_cpu() - cpu,
        })
    })
}

/// The same traffic with nothing between it and the ring: single receives into one buffer per
/// connection and plain sends, all submitted by one call per round.
fn through_bare_ring(addr: SocketAddr, seconds: u64, conns: usize, depth: usize) -> Result<Score> {
    use std::os::fd::AsRawFd;
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(256)?;
    let mut streams = Vec::new();
    let mut bufs = vec![vec![0u8; 64 << 10]; conns];
    let requests = vec![1u8; REQUEST * depth * 4];
    let mut queued = vec![REQUEST * depth; conns];
    let mut sending = vec![false; conns];
    let mut have = vec![0usize; conns];
    const SEND: u64 = 1 << 32;
    for (i, buf) in bufs.iter_mut().enumerate() {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let fd = types::Fd(stream.as_raw_fd());
        let recv = opcode::Recv::new(fd, buf.as_mut_ptr(), 64 << 10).build();
        // SAFETY: the buffers outlive the ring's use of them: they are dropped after it.
        unsafe { ring.submission().push(&recv.user_data(i as u64)) }?;
        streams.push(stream);
    }
    let (mut messages, mut calls) = (0u64, 0u64);
    let mut start = None;
    let begun = Instant::now();
    loop {
        for i in 0..conns {
            if queued[i] > 0 && !sending[i] {
                let fd = types::Fd(streams[i].as_raw_fd());
                let len = queued[i].min(requests.len());
                let send = opcode::Send::new(fd, requests.as_ptr(), len as u32)
                    .flags(libc::MSG_NOSIGNAL)
                    .build();
                // SAFETY: as above.
                unsafe { ring.submission().push(&send.user_data(SEND | i as u64)) }?;
                sending[i] = true;
            }
        }
        ring.submit_and_wait(1)?;
        calls += 1;
        let done: Vec<_> = ring
            .completion()
            .map(|c| (c.user_data(), c.result()))
            .collect();
        for (user_data, result) in done {
            let i = user_data as u32 as usize;
            let n = usize::try_from(result).map_err(|_| "a transfer failed")?;
            if user_data & SEND != 0 {
                queued[i] -= n;
                sending[i] = false;
                continue;
            }
            have[i] += n;
            let complete = have[i] / REPLY;
            have[i] %= REPLY;
            messages += complete as u64;
            queued[i] += REQUEST * complete;
            let fd = types::Fd(streams[i].as_raw_fd());
            let recv = opcode::Recv::new(fd, bufs[i].as_mut_ptr(), 64 << 10).build();
            // SAFETY: as above.
            unsafe { ring.submission().push(&recv.user_data(i as u64)) }?;
        }
        let elapsed = begun.elapsed();
        match start {
            None if elapsed > Duration::from_millis(200) => {
                start = Some((messages, calls, Instant::now(), thread_cpu()));
            }
            Some((m, c, wall, cpu)) if elapsed > Duration::from_millis(200 + seconds * 1000) => {
                let score = Score {
                    messages: messages - m,
                    calls: calls - c,
                    wall: wall.elapsed(),
                    cpu: thread_cpu() - cpu,
                };
                drop(ring);
                return Ok(score);
            }
            _ => {}
        }
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut arg = |default: u64| -> Result<u64> {
        Ok(args
            .next()
            .map(|a| a.parse())
            .transpose()?
            .unwrap_or(default))
    };
    let (seconds, conns, depth) = (arg(3)?, arg(3)? as usize, arg(32)? as usize);
    let addr = server()?;
    println!("{conns} connections, {depth} requests in flight on each, {seconds} s");
    let plain = Config::default();
    let patient = Config {
        send_coalesce: Duration::from_millis(20),
        ..Config::default()
    };
    let best = Config {
        send_coalesce: Duration::from_micros(500),
        ..Config::default()
    };
    let oldest = Config {
        force_plain_flags: true,
        force_no_multishot: true,
        force_no_pbuf_ring: true,
        ..plain.clone()
    };
    for (name, config) in [
        ("iothread", &plain),
        ("iothread, waits >= 0.5 ms", &best),
        ("iothread, waits >= 20 ms", &patient),
        ("iothread, old kernel", &oldest),
    ] {
        report(name, &through_runtime(config, addr, seconds, conns, depth)?);
    }
    report(
        "bare ring",
        &through_bare_ring(addr, seconds, conns, depth)?,
    );
    Ok(())
}
