//! `ublk-rbd bench messenger`: how many messages one thread sends to another, through a socket of
//! 127.0.0.1, beside a loop that moves the same bytes and does nothing else.
//!
//! The client keeps a number of messages in flight, each a header and a payload; the server answers
//! each with a header. Both sides are what production runs: the listener of the single-node
//! server, and a connection on an iothread's ring. The bare loop sends as many bytes each way, with
//! one send and one receive in flight on a ring of its own, and looks at none of them. All cases
//! take turns, so that what else the machine does meets them alike.

mod bare;
mod client;
mod server;

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::msgr::MsgHeader;
use cluster::msgr::frame::{Preamble, Tag};
use serde::Serialize;

use crate::cli::{BenchMessengerArgs, Format};
use crate::{output, spec};

/// Runs before what is measured: the sockets' windows open, buffers grow to their size.
const WARM_UP: Duration = Duration::from_millis(200);

/// How the bytes are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// No messenger.
    Bare,
    /// Checksums of everything, as Ceph's default is.
    Crc,
    /// Checksums of preambles only (`ms_crc_data=false`).
    NoCrc,
    /// AES-128-GCM.
    Secure,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Bare, Mode::Crc, Mode::NoCrc, Mode::Secure];

    fn name(self) -> &'static str {
        match self {
            Mode::Bare => "bare socket",
            Mode::Crc => "crc",
            Mode::NoCrc => "no crc",
            Mode::Secure => "secure",
        }
    }
}

/// What one run is to do.
#[derive(Debug, Clone, Copy)]
struct Plan {
    mode: Mode,
    bs: usize,
    qd: usize,
    runtime: Duration,
    server_cpu: Option<usize>,
    client_cpu: Option<usize>,
}

impl Plan {
    /// Bytes of a message and of its answer on the wire, without encryption.
    fn wire_lens(&self) -> (usize, usize) {
        let len = |data: usize| {
            let lens = [MsgHeader::SIZE as u32, 0, 0, data as u32];
            Preamble::new(Tag::Message, lens).wire_len(false) as usize
        };
        (len(self.bs), len(0))
    }

    fn ring(&self, name: &str, cpu: Option<usize>) -> iothread::Config {
        iothread::Config {
            name: name.to_owned(),
            cpu,
            ..iothread::Config::default()
        }
    }
}

/// A thread's costs up to a moment.
#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    cpu: Duration,
    calls: u64,
}

impl Costs {
    fn since(self, before: Costs) -> Costs {
        Costs {
            cpu: self.cpu.saturating_sub(before.cpu),
            calls: self.calls - before.calls,
        }
    }
}

/// CPU time of a thread of this process (`Documentation/scheduler/sched-stats.rst`).
fn cpu_time(thread: libc::pid_t) -> Result<Duration> {
    let path = format!("/proc/self/task/{thread}/schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
    Ok(Duration::from_nanos(
        nanos.with_context(|| format!("{path} makes no sense"))?,
    ))
}

fn this_thread() -> libc::pid_t {
    nix::unistd::gettid().as_raw()
}

/// What one run found.
#[derive(Debug, Clone, Copy)]
struct Run {
    messages: u64,
    seconds: f64,
    server: Costs,
    client: Costs,
}

/// The median of several runs, and the lowest and highest.
#[derive(Debug, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        let n = values.len();
        Spread {
            median: (at(n.saturating_sub(1) / 2) + at(n / 2)) / 2.0,
            min: at(0),
            max: at(n.saturating_sub(1)),
        }
    }
}

/// One line of the table, by the names its JSON has.
#[derive(Debug, Serialize)]
struct Line {
    mode: Mode,
    bs: usize,
    qd: usize,
    messages_per_s: Spread,
    /// Of the bare loop's.
    ratio: f64,
    server_cpu_us_per_message: f64,
    client_cpu_us_per_message: f64,
    server_syscalls_per_message: f64,
    client_syscalls_per_message: f64,
}

impl Line {
    fn of(plan: &Plan, runs: &[Run], bare: f64) -> Line {
        let median = |f: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(f).collect()).median;
        let per = |what: f64, r: &Run| what / r.messages.max(1) as f64;
        let rate = Spread::of(rates(runs));
        Line {
            mode: plan.mode,
            bs: plan.bs,
            qd: plan.qd,
            ratio: rate.median / bare,
            messages_per_s: rate,
            server_cpu_us_per_message: median(&|r| per(r.server.cpu.as_secs_f64() * 1e6, r)),
            client_cpu_us_per_message: median(&|r| per(r.client.cpu.as_secs_f64() * 1e6, r)),
            server_syscalls_per_message: median(&|r| per(r.server.calls as f64, r)),
            client_syscalls_per_message: median(&|r| per(r.client.calls as f64, r)),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            spec::human(self.bs as u64),
            self.mode.name().to_owned(),
            format!("{:.0}", self.messages_per_s.median),
            format!(
                "{:.0}-{:.0}",
                self.messages_per_s.min, self.messages_per_s.max
            ),
            format!("{:.2}", self.ratio),
            format!("{:.2}", self.server_cpu_us_per_message),
            format!("{:.2}", self.client_cpu_us_per_message),
            format!("{:.3}", self.server_syscalls_per_message),
            format!("{:.3}", self.client_syscalls_per_message),
        ]
    }
}

fn rates(runs: &[Run]) -> Vec<f64> {
    runs.iter().map(|r| r.messages as f64 / r.seconds).collect()
}

/// Runs the benchmark and prints what it found.
pub fn run(args: &BenchMessengerArgs, format: Format) -> Result<()> {
    if args.bs.iter().any(|&bs| bs == 0 || bs > 4 << 20) {
        bail!("--bs must be from 1 byte to 4M");
    }
    if args.qd == 0 || args.qd > 4096 {
        bail!("--qd must be from 1 to 4096");
    }
    if !(args.runtime > 0.0 && args.runtime <= 3600.0) {
        bail!("--runtime must be above 0 and at most 3600 seconds");
    }
    if !(1..=1000).contains(&args.rounds) {
        bail!("--rounds must be from 1 to 1000");
    }
    let plan = |bs, mode| Plan {
        mode,
        bs: bs as usize,
        qd: args.qd,
        runtime: Duration::from_secs_f64(args.runtime),
        server_cpu: args.server_cpu,
        client_cpu: args.client_cpu,
    };
    let mut cases: Vec<(Plan, Vec<Run>)> = Vec::new();
    for &bs in &args.bs {
        cases.extend(Mode::ALL.map(|mode| (plan(bs, mode), Vec::new())));
    }
    for _ in 0..args.rounds {
        for (plan, runs) in &mut cases {
            let found = match plan.mode {
                Mode::Bare => bare::run(plan),
                _ => messages(plan),
            };
            runs.push(found.with_context(|| format!("{} at {}", plan.mode.name(), plan.bs))?);
        }
    }
    let mut lines: Vec<Line> = Vec::new();
    for of_size in cases.chunks(Mode::ALL.len()) {
        let bare = Spread::of(rates(&of_size[0].1)).median;
        lines.extend(of_size.iter().map(|(p, runs)| Line::of(p, runs, bare)));
    }
    output::print(format, &lines, |out| {
        let _ = writeln!(
            out,
            "one thread each side, {} in flight, {} rounds of {} s",
            args.qd, args.rounds, args.runtime
        );
        let header = [
            "size",
            "mode",
            "messages/s",
            "spread",
            "of bare",
            "server us",
            "client us",
            "server calls",
            "client calls",
        ];
        let rows: Vec<_> = lines.iter().map(Line::row).collect();
        output::table(out, &header, &rows);
    })
}

/// One run of the messenger.
fn messages(plan: &Plan) -> Result<Run> {
    let server = server::Server::start(plan)?;
    let run = client::run(plan, &server);
    server.stop()?;
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_moves_messages() {
        for mode in Mode::ALL {
            let plan = Plan {
                mode,
                bs: 4096,
                qd: 16,
                runtime: Duration::from_millis(50),
                server_cpu: None,
                client_cpu: None,
            };
            let run = match mode {
                Mode::Bare => bare::run(&plan),
                _ => messages(&plan),
            };
            let run = run.unwrap();
            assert!(run.messages > 100, "{mode:?}: {run:?}");
            assert!(run.client.calls > 0 && run.server.calls > 0, "{mode:?}");
            // Batching: less than a call for each message.
            assert!(run.client.calls < run.messages, "{mode:?}: {run:?}");
        }
    }

    #[test]
    fn a_median_lies_between() {
        let s = Spread::of(vec![3.0, 1.0, 2.0, 10.0]);
        assert_eq!((s.median, s.min, s.max), (2.5, 1.0, 10.0));
        assert_eq!(Spread::of(vec![7.0]).median, 7.0);
    }
}
