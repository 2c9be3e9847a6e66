//! What quickstart does to the disk: writes and verifies, then short runs of random requests.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;

use super::{block, nbd};

const CHUNK: u32 = 1 << 20;
const BLOCK: u32 = 4096;
const CHUNK_QD: u64 = 8;

/// The disk as its users have it.
pub(super) enum Client {
    Block(block::Client),
    Nbd(nbd::Client),
}

macro_rules! either {
    ($self:expr, $client:ident => $call:expr) => {
        match $self {
            Client::Block($client) => $call,
            Client::Nbd($client) => $call,
        }
    };
}

impl Client {
    /// Opens what `map` has printed.
    pub(super) fn open(device: &str) -> Result<Client> {
        match device.strip_prefix("nbd+unix:///?socket=") {
            Some(socket) => Ok(Client::Nbd(nbd::Client::connect(Path::new(socket))?)),
            None => Ok(Client::Block(block::Client::open(Path::new(device))?)),
        }
    }

    fn size(&self) -> u64 {
        either!(self, c => c.size())
    }

    fn send_read(&mut self, token: u64, offset: u64, len: u32) -> Result<()> {
        either!(self, c => c.send_read(token, offset, len))
    }

    fn send_write(&mut self, token: u64, offset: u64, data: &[u8]) -> Result<()> {
        either!(self, c => c.send_write(token, offset, data))
    }

    fn flush(&mut self) -> Result<()> {
        either!(self, c => c.flush())
    }

    /// The token of the next request that is done; of a read, [`Client::data`] has the bytes.
    fn reply(&mut self) -> Result<u64> {
        either!(self, c => c.reply())
    }

    fn data(&mut self, into: &mut [u8]) -> Result<()> {
        either!(self, c => c.data(into))
    }

    pub(super) fn close(self) {
        if let Client::Nbd(client) = self {
            client.disconnect();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) name: &'static str,
    kind: Kind,
    qd: u64,
}

impl Job {
    pub(super) fn random(name: &'static str, kind: Kind, qd: u64) -> Job {
        Job { name, kind, qd }
    }
}

/// A line of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) size: u64,
    pub(super) qd: u64,
    pub(super) iops: f64,
    pub(super) bytes_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Writes a pattern over the first `len` bytes, flushes, reads it back and compares.
pub(super) fn write_and_verify(disk: &mut Client, len: u64, bar: &ProgressBar) -> Result<[Row; 2]> {
    let len = len.min(disk.size());
    let chunks = len / u64::from(CHUNK);
    bar.set_length(2 * chunks);
    let mut data = vec![0; CHUNK as usize];
    let written = pipeline("write", CHUNK, CHUNK_QD, chunks, |disk, step| {
        match step {
            Step::Send(n) => {
                pattern(n, &mut data);
                disk.send_write(n, n * u64::from(CHUNK), &data)?;
            }
            Step::Reply(_) => bar.inc(1),
        }
        Ok(())
    })
    .run(disk)?;
    disk.flush()?;
    let (mut got, mut want) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    let read = pipeline("read", CHUNK, CHUNK_QD, chunks, |disk, step| {
        match step {
            Step::Send(n) => disk.send_read(n, n * u64::from(CHUNK), CHUNK)?,
            Step::Reply(n) => {
                disk.data(&mut got)?;
                pattern(n, &mut want);
                ensure!(
                    got == want,
                    "the disk gives back other bytes than were written"
                );
                bar.inc(1);
            }
        }
        Ok(())
    })
    .run(disk)?;
    Ok([written, read])
}

/// Random 4K requests over the first `len` bytes for so many seconds.
pub(super) fn run(
    disk: &mut Client,
    job: &Job,
    len: u64,
    seconds: f64,
    bar: &ProgressBar,
) -> Result<Row> {
    let blocks = len.min(disk.size()) / u64::from(BLOCK);
    let time = Duration::from_secs_f64(seconds);
    bar.set_length(1000);
    let begin = Instant::now();
    let mut random = 1;
    let mut data = vec![0; BLOCK as usize];
    pattern(u64::MAX, &mut data);
    let mut got = vec![0; BLOCK as usize];
    let mut pipeline = pipeline(job.name, BLOCK, job.qd, u64::MAX, |disk, step| {
        match (step, job.kind) {
            (Step::Send(n), kind) => {
                let offset = draw(&mut random) % blocks * u64::from(BLOCK);
                match kind {
                    Kind::Read => disk.send_read(n, offset, BLOCK)?,
                    Kind::Write => disk.send_write(n, offset, &data)?,
                }
            }
            (Step::Reply(n), kind) => {
                if kind == Kind::Read {
                    disk.data(&mut got)?;
                }
                if n % 256 == 0 {
                    let share = begin.elapsed().as_secs_f64() / seconds;
                    bar.set_position((share * 1000.0) as u64);
                }
            }
        }
        Ok(())
    });
    pipeline.until = Some(begin + time);
    pipeline.run(disk)
}

enum Step {
    Send(u64),
    Reply(u64),
}

/// Keeps `qd` requests in flight until `count` are done or the time is over. A request's token is
/// its number.
struct Pipeline<F> {
    name: &'static str,
    size: u32,
    qd: u64,
    count: u64,
    until: Option<Instant>,
    step: F,
}

fn pipeline<F: FnMut(&mut Client, Step) -> Result<()>>(
    name: &'static str,
    size: u32,
    qd: u64,
    count: u64,
    step: F,
) -> Pipeline<F> {
    Pipeline {
        name,
        size,
        qd,
        count,
        until: None,
        step,
    }
}

impl<F: FnMut(&mut Client, Step) -> Result<()>> Pipeline<F> {
    fn run(mut self, disk: &mut Client) -> Result<Row> {
        let begin = Instant::now();
        let mut started = vec![begin; self.qd as usize];
        // Which of those slots a request in flight has, as replies come in any order.
        let mut slots: Vec<(u64, usize)> = Vec::with_capacity(self.qd as usize);
        let mut free: Vec<usize> = (0..self.qd as usize).collect();
        let mut latencies = Histogram::<u64>::new_with_bounds(1, 600_000_000, 3)?;
        let mut next = 0;
        loop {
            while let Some(slot) = free.pop() {
                let now = Instant::now();
                if next == self.count || self.until.is_some_and(|end| now >= end) {
                    free.push(slot);
                    break;
                }
                started[slot] = now;
                slots.push((next, slot));
                (self.step)(disk, Step::Send(next))?;
                next += 1;
            }
            if slots.is_empty() {
                break;
            }
            let token = disk.reply()?;
            let at = slots.iter().position(|(n, _)| *n == token);
            let Some(at) = at else {
                anyhow::bail!("a reply to no request");
            };
            let (_, slot) = slots.swap_remove(at);
            (self.step)(disk, Step::Reply(token))?;
            let took = started[slot].elapsed().as_micros();
            latencies.saturating_record(u64::try_from(took).unwrap_or(u64::MAX).max(1));
            free.push(slot);
        }
        let seconds = begin.elapsed().as_secs_f64();
        let ios = latencies.len() as f64;
        Ok(Row {
            name: self.name,
            size: self.size.into(),
            qd: self.qd,
            iops: ios / seconds,
            bytes_per_s: ios * f64::from(self.size) / seconds,
            p50_us: latencies.value_at_quantile(0.5) as f64,
            p99_us: latencies.value_at_quantile(0.99) as f64,
        })
    }
}

/// Bytes that no other chunk has.
fn pattern(chunk: u64, out: &mut [u8]) {
    let mut state = chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&draw(&mut state).to_le_bytes());
    }
}

/// xorshift64* (Vigna 2016).
fn draw(state: &mut u64) -> u64 {
    let mut x = (*state).max(1);
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    x.wrapping_mul(0x2545_f491_4f6c_dd1d)
}
