//! `ublk-rbd bench image`: I/O on an image from inside this process, so that what is measured is
//! the client and the cluster, without a front end.
//!
//! One iothread keeps a fixed number of requests in flight. CPU time is the whole process's from
//! the first request to the last; system calls are the ring's, which are all that the data path
//! makes.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::client::{Client, ClientConfig};
use cluster::conf::{Conf, options};
use cluster::payload::Payload;
use cluster::rbd::image::{Access, Image};
use cluster::transport::ring::Driver;
use hdrhistogram::Histogram;
use iothread::{IoThread, Signal};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use crate::cli::{BenchImageArgs, Format, Pattern};
use crate::frontend::arena::Arena;
use crate::frontend::disk::{Completion, Disk, Errno, Op, ReadBuf, Reply, Request, Token};
use crate::image_disk::ImageDisk;
use crate::output;

/// Longest latency that is told apart from longer ones.
const MAX_LATENCY_NS: u64 = 600_000_000_000;

/// What a run gives, by the names its JSON has.
#[derive(Debug, Serialize)]
pub struct Report {
    pub rw: String,
    pub bs: u64,
    pub qd: u32,
    pub runtime_s: f64,
    pub ios: u64,
    pub iops: f64,
    pub bytes_per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub cpu_us_per_io: f64,
    pub syscalls_per_io: f64,
}

/// Runs the benchmark and prints what it found.
pub fn run(conf: &Conf, args: BenchImageArgs, format: Format) -> Result<()> {
    if args.rw.writes() && !args.destroy_data {
        bail!("this pattern overwrites what is in the image: say --destroy-data to allow it");
    }
    if args.bs == 0 || args.bs > 32 << 20 {
        bail!("--bs must be from 1 byte to 32M");
    }
    if args.qd == 0 || args.qd > 4096 {
        bail!("--qd must be from 1 to 4096");
    }
    if !(args.runtime > 0.0 && args.runtime <= 86_400.0) {
        bail!("--runtime must be above 0 and at most 86400 seconds");
    }
    let client = ClientConfig::from_conf(conf)?;
    let pool = match &args.image.pool {
        Some(pool) => pool.clone(),
        None => conf.get(&options::RBD_DEFAULT_POOL)?,
    };
    let config = iothread::Config {
        name: "bench".into(),
        cpu: args.cpu,
        ..iothread::Config::default()
    };
    let thread = IoThread::spawn(config, move || bench(client, pool, args))?;
    let report = match thread.join() {
        Ok(report) => report?,
        Err(_) => bail!("the benchmark's thread panicked"),
    };
    output::print(format, &report, |out| {
        let _ = writeln!(
            out,
            "{} bs {} qd {}: {:.0} IOPS, {:.1} MB/s, p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, \
             {:.2} us CPU and {:.3} system calls per I/O",
            report.rw,
            report.bs,
            report.qd,
            report.iops,
            report.bytes_per_s / 1e6,
            report.p50_us,
            report.p99_us,
            report.p999_us,
            report.cpu_us_per_io,
            report.syscalls_per_io,
        );
    })
}

async fn bench(client: ClientConfig, pool: String, args: BenchImageArgs) -> Result<Report> {
    let mut seed = [0; 32];
    cluster::random_seed(&mut seed)?;
    let driver = Driver::start(Client::new(client, Arc::default(), &seed)?);
    let rados = driver.rados().clone();
    rados.ready().await?;
    let io = rados.io_ctx(&pool, &args.image.namespace).await?;
    let image = Image::open(&io, &args.image.image, args.image.snap.as_deref()).await?;
    let access = if args.rw.writes() {
        Access::ReadWrite
    } else {
        Access::ReadOnly
    };
    image.check(&args.image.to_string(), access)?;
    if args.rw.writes() && image.snap.is_some() {
        bail!("{} is a snapshot, which cannot be written", args.image);
    }
    if image.size < args.bs {
        bail!("{} is smaller than one request", args.image);
    }
    let disk = ImageDisk::start(&io, &image, !args.rw.writes());
    let load = Load::new(Rc::clone(&disk), image.size, &args)?;
    let report = load.run(Duration::from_secs_f64(args.runtime)).await;
    disk.stop(Errno::SHUTDOWN);
    rados.shutdown().await;
    iothread::yield_now().await;
    report
}

/// A fixed number of requests in flight: each that completes is followed by the next at once.
struct Load {
    disk: Rc<ImageDisk>,
    pattern: Pattern,
    bs: u64,
    blocks: u64,
    qd: u32,
    reads_percent: u64,
    random: Cell<u64>,
    next: Cell<u64>,
    arena: Arena,
    /// What writes write: the same bytes each time, which are no less work to send.
    data: Payload,
    buffers: RefCell<Vec<ReadBuf>>,
    /// By slot, when its request was submitted.
    started: RefCell<Vec<u64>>,
    latencies: RefCell<Histogram<u64>>,
    stop_at: Cell<u64>,
    in_flight: Cell<u32>,
    failed: Cell<Option<Errno>>,
    done: Signal,
    /// Itself, as the disk knows it; empty outside a run.
    sink: RefCell<Option<Rc<dyn Completion>>>,
}

impl Load {
    fn new(disk: Rc<ImageDisk>, size: u64, args: &BenchImageArgs) -> Result<Rc<Load>> {
        let piece = usize::try_from(args.bs)?.next_power_of_two().max(4096);
        let bytes = piece
            .checked_mul(args.qd as usize)
            .context("too much in flight")?;
        if bytes > 2 << 30 {
            bail!("--bs times --qd is above 2G: use less");
        }
        let arena = Arena::new(bytes, args.qd as usize).context("no memory for requests")?;
        let mut random = args.seed;
        let data: Vec<u8> = (0..args.bs.div_ceil(8))
            .flat_map(|_| draw(&mut random).to_le_bytes())
            .collect();
        Ok(Rc::new(Load {
            disk,
            pattern: args.rw,
            bs: args.bs,
            blocks: size / args.bs,
            qd: args.qd,
            reads_percent: u64::from(args.rwmixread),
            random: Cell::new(random),
            next: Cell::new(0),
            arena,
            data: Payload::from(data).slice(0..args.bs as usize),
            buffers: RefCell::default(),
            started: RefCell::new(vec![0; args.qd as usize]),
            latencies: RefCell::new(Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3)?),
            stop_at: Cell::new(0),
            in_flight: Cell::new(0),
            failed: Cell::new(None),
            done: Signal::default(),
            sink: RefCell::default(),
        }))
    }

    async fn run(self: &Rc<Load>, runtime: Duration) -> Result<Report> {
        for _ in 0..self.qd {
            let buffer = self
                .arena
                .alloc(self.bs as usize)
                .context("no memory for requests")?;
            self.buffers.borrow_mut().push(ReadBuf::new(buffer));
        }
        *self.sink.borrow_mut() = Some(Rc::clone(self) as Rc<dyn Completion>);
        let cpu = cpu_time()?;
        let enters = iothread::stats().enters;
        let start = iothread::now().mono;
        self.stop_at
            .set(start + u64::try_from(runtime.as_nanos()).unwrap_or(u64::MAX / 2));
        self.in_flight.set(self.qd);
        for slot in 0..self.qd {
            self.submit(Token(slot.into()));
        }
        while self.in_flight.get() > 0 {
            self.done.wait().await;
        }
        self.sink.borrow_mut().take();
        if let Some(errno) = self.failed.get() {
            bail!("a request failed: {errno}");
        }
        let seconds = (iothread::now().mono - start) as f64 / 1e9;
        let cpu = cpu_time()?.saturating_sub(cpu);
        let enters = iothread::stats().enters - enters;
        let latencies = self.latencies.borrow();
        let ios = latencies.len();
        let at = |q: f64| latencies.value_at_quantile(q) as f64 / 1e3;
        Ok(Report {
            rw: format!("{:?}", self.pattern).to_lowercase(),
            bs: self.bs,
            qd: self.qd,
            runtime_s: seconds,
            ios,
            iops: ios as f64 / seconds,
            bytes_per_s: ios as f64 * self.bs as f64 / seconds,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            cpu_us_per_io: cpu.as_secs_f64() * 1e6 / ios.max(1) as f64,
            syscalls_per_io: enters as f64 / ios.max(1) as f64,
        })
    }

    fn draw(&self) -> u64 {
        let mut random = self.random.get();
        let n = draw(&mut random);
        self.random.set(random);
        n
    }

    fn submit(&self, token: Token) {
        let block = if self.pattern.is_random() {
            // The bias of a remainder is below 2^-30 for any image.
            self.draw() % self.blocks
        } else {
            let block = self.next.get();
            self.next.set((block + 1) % self.blocks);
            block
        };
        let read = match self.pattern {
            Pattern::Randread | Pattern::Read => true,
            Pattern::Randwrite | Pattern::Write => false,
            Pattern::Randrw => self.draw() % 100 < self.reads_percent,
        };
        let op = if read {
            let buffer = self.buffers.borrow_mut().pop().expect("one buffer a slot");
            Op::Read(buffer)
        } else {
            Op::Write(self.data.clone())
        };
        self.started.borrow_mut()[token.0 as usize] = iothread::now().mono;
        let request = Request {
            token,
            offset: block * self.bs,
            len: self.bs,
            fua: false,
            op,
        };
        let sink = self.sink.borrow().clone().expect("a run is under way");
        self.disk.submit(request, &sink);
    }
}

impl Completion for Load {
    fn done(&self, token: Token, result: Result<Reply, Errno>) {
        let now = iothread::now().mono;
        let latency = now - self.started.borrow()[token.0 as usize];
        match result {
            Ok(reply) => {
                if let Reply::Read(buffer) = reply {
                    self.buffers
                        .borrow_mut()
                        .push(ReadBuf::new(buffer.into_buffer()));
                }
                self.latencies
                    .borrow_mut()
                    .saturating_record(latency.max(1));
            }
            Err(errno) => self.failed.set(Some(errno)),
        }
        if now < self.stop_at.get() && self.failed.get().is_none() {
            self.submit(token);
            return;
        }
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 {
            self.done.raise();
        }
    }
}

fn cpu_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("cannot read the CPU time used")?;
    let time = |t: nix::sys::time::TimeVal| {
        Duration::from_secs(t.tv_sec().unsigned_abs())
            + Duration::from_micros(t.tv_usec().unsigned_abs())
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
