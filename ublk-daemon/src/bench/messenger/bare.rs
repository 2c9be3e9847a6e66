//! The loop that everything is compared with: io_uring, a socket, no messenger. One send and one
//! receive in flight, one system call a turn, no byte looked at.

use std::mem::ManuallyDrop;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use iothread::io_uring::{IoUring, opcode, types};

use super::{Costs, Plan, Run, WARM_UP, cpu_time, this_thread};

/// What one receive may bring.
const RECV: usize = 512 << 10;
/// What one send may carry at most; it is the same memory each time.
const SEND: usize = 4 << 20;

const SENT: u64 = 1;
const RECEIVED: u64 = 2;

/// What a loop's thread shows to the one that measures.
#[derive(Default)]
struct Gauge {
    thread: AtomicI32,
    units: AtomicU64,
    calls: AtomicU64,
}

impl Gauge {
    fn costs(&self) -> Result<Costs> {
        Ok(Costs {
            cpu: cpu_time(self.thread.load(Ordering::Acquire))?,
            calls: self.calls.load(Ordering::Relaxed),
        })
    }
}

/// One side: for every `takes` bytes that come, `gives` bytes go.
struct Side {
    socket: TcpStream,
    takes: usize,
    gives: usize,
    /// Bytes that go before any have come.
    first: usize,
    cpu: Option<usize>,
}

/// Ends both loops, whatever ends the measurement.
struct HangUp<'a>(TcpStream, &'a AtomicBool);

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        // It fails when the other end is gone, and then there is nothing to end.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

pub(super) fn run(plan: &Plan) -> Result<Run> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let stop = AtomicBool::new(false);
    let hang_up = HangUp(near.try_clone()?, &stop);
    let (message, answer) = plan.wire_lens();
    let client = Side {
        socket: near,
        takes: answer,
        gives: message,
        first: message * plan.qd,
        cpu: plan.client_cpu,
    };
    let server = Side {
        socket: far,
        takes: message,
        gives: answer,
        first: 0,
        cpu: plan.server_cpu,
    };
    let (asked, answered) = <(Gauge, Gauge)>::default();
    std::thread::scope(|scope| {
        let hang_up = hang_up;
        let run = |name: &str, side: Side, gauge| {
            let builder = std::thread::Builder::new().name(name.to_owned());
            let stop = &stop;
            builder.spawn_scoped(scope, move || side.turn(gauge, stop))
        };
        let server = run("bare-server", server, &answered)?;
        let client = run("bare-client", client, &asked)?;
        let measured = (|| {
            std::thread::sleep(WARM_UP);
            let costs = || -> Result<_> { Ok((answered.costs()?, asked.costs()?)) };
            let (from, start) = (asked.units.load(Ordering::Relaxed), Instant::now());
            let before = costs()?;
            std::thread::sleep(plan.runtime);
            let (to, seconds) = (
                asked.units.load(Ordering::Relaxed),
                start.elapsed().as_secs_f64(),
            );
            let after = costs()?;
            Ok(Run {
                messages: to - from,
                seconds,
                server: after.0.since(before.0),
                client: after.1.since(before.1),
            })
        })();
        drop(hang_up);
        for thread in [server, client] {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        measured
    })
}

impl Side {
    fn turn(self, gauge: &Gauge, stop: &AtomicBool) -> Result<()> {
        if let Some(cpu) = self.cpu {
            iothread::pin_to_cpu(cpu)?;
        }
        gauge.thread.store(this_thread(), Ordering::Release);
        let mut ring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(8)
            .or_else(|_| IoUring::new(8))
            .context("cannot set up io_uring")?;
        let fd = types::Fd(self.socket.as_raw_fd());
        // Not freed on an error: then the kernel may still be using them.
        let out = ManuallyDrop::new(vec![0x5a_u8; SEND]);
        let mut input = ManuallyDrop::new(vec![0_u8; RECV]);
        let (mut to_send, mut sending, mut receiving) = (self.first, false, false);
        let mut have = 0;
        loop {
            if !sending && to_send > 0 {
                let len = to_send.min(SEND) as u32;
                let entry = opcode::Send::new(fd, out.as_ptr(), len)
                    .flags(libc::MSG_NOSIGNAL)
                    .build()
                    .user_data(SENT);
                // SAFETY: the buffer is not written to, and is freed only when nothing is in flight.
                unsafe { ring.submission().push(&entry)? };
                sending = true;
            }
            if !receiving {
                let entry = opcode::Recv::new(fd, input.as_mut_ptr(), RECV as u32)
                    .build()
                    .user_data(RECEIVED);
                // SAFETY: as above; nobody looks into the buffer.
                unsafe { ring.submission().push(&entry)? };
                receiving = true;
            }
            gauge.calls.fetch_add(1, Ordering::Relaxed);
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("io_uring_enter failed"),
            }
            let mut over = false;
            for cqe in ring.completion() {
                let sent = cqe.user_data() == SENT;
                if sent {
                    sending = false;
                } else {
                    receiving = false;
                }
                match cqe.result() {
                    n @ 1.. if sent => to_send -= n as usize,
                    n @ 1.. => {
                        have += n as usize;
                        let units = have / self.takes;
                        have %= self.takes;
                        to_send += units * self.gives;
                        gauge.units.fetch_add(units as u64, Ordering::Relaxed);
                    }
                    _ => over = true,
                }
            }
            if over {
                // The other side has hung up, which ends what is in flight on this socket, too.
                while sending || receiving {
                    ring.submit_and_wait(1)?;
                    for cqe in ring.completion() {
                        match cqe.user_data() {
                            SENT => sending = false,
                            _ => receiving = false,
                        }
                    }
                }
                drop((
                    ManuallyDrop::into_inner(out),
                    ManuallyDrop::into_inner(input),
                ));
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                bail!("the bare loop's socket broke");
            }
        }
    }
}
