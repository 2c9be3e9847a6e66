//! A seeded simulator of everything between a block request and an OSD.
//!
//! The client is the one that production drives: monitor session, maps, OSD sessions, requests,
//! authentication and messenger, without I/O. Here its driver is virtual time and a network that
//! delays, cuts into pieces, breaks and stalls; its peers are monitors and OSDs that speak the real
//! encodings and follow the rules of Ceph's. One seed decides everything, so that a failing run can
//! be repeated:
//!
//! ```text
//! cargo test -p cluster --test sim                          a few hundred seeds
//! SIM_SEEDS=10000 cargo test --release -p cluster --test sim -- --nocapture
//! SIM_SEED=4711 cargo test -p cluster --test sim -- --nocapture   one seed, with its trace
//! ```
//!
//! What is checked of every run: no request ends twice or never once the trouble is over; writes on
//! an object are carried out once and in the order of submission; reads see a state that was there;
//! an image reads back as it was written, and a flush waits for the writes before it; a watch hears
//! of every notify or is told that it is lost; no request goes where its map does not send it or
//! while that map says to wait; connections without work are closed.

mod faults;
mod image;
mod maps;
mod mon;
mod notify;
mod objects;
mod osd;
mod rng;
mod server;
mod store;
mod watch;
mod work;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use image::Image;
use notify::{Notifier, Watcher};
use objects::Objects;
use world::{SECOND, World};

/// Seeds that a plain run of the tests goes through.
const SEEDS: u64 = 200;
/// How long the work may take once nothing goes wrong any more: silent connections have to be
/// noticed, by keepalives and timeouts of tens of seconds one after the other.
const DRAIN: u64 = 600 * SECOND;

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    trace: u64,
    events: u64,
    requests: u64,
}

fn run(seed: u64, print: bool) -> Outcome {
    let mut world = World::new(seed, print);
    let fault_time = world.plan.fault_time;
    let kind = world.rng.below(6);
    if kind != 4 && kind != 5 {
        let work = Objects::new("data", world.plan.pauses, fault_time, &mut world.rng);
        world.add_client(Box::new(work));
    }
    if kind >= 2 && kind != 5 {
        let work = Image::new("image", fault_time, &mut world.rng);
        world.add_client(Box::new(work));
    }
    if kind == 5 || kind == 3 {
        let log = notify::log("watched");
        let work = Watcher::new(&log, &mut world.rng);
        world.add_client(Box::new(work));
        let work = Notifier::new(&log, fault_time, &mut world.rng);
        world.add_client(Box::new(work));
    }
    world.run(fault_time + DRAIN, true);
    let requests = world.check();
    Outcome {
        trace: world.trace,
        events: world.events,
        requests,
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number")),
    )
}

#[test]
fn every_request_ends_once_and_right() {
    if let Some(seed) = variable("SIM_SEED") {
        println!("{:?}", run(seed, true));
        return;
    }
    let seeds = variable("SIM_SEEDS").unwrap_or(SEEDS);
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    let (events, requests) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            match catch_unwind(AssertUnwindSafe(|| run(seed, false))) {
                Ok(outcome) => {
                    events.fetch_add(outcome.events, Ordering::Relaxed);
                    requests.fetch_add(outcome.requests, Ordering::Relaxed);
                }
                Err(_) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    eprintln!(
                        "seed {seed} failed; see it with\n  \
                         SIM_SEED={seed} cargo test -p cluster --test sim -- --nocapture"
                    );
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner();
    println!(
        "{seeds} seeds, {} requests, {} events in {:.1} s; {failed} failed",
        requests.into_inner(),
        events.into_inner(),
        started.elapsed().as_secs_f64()
    );
    assert_eq!(failed, 0);
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..12 {
        assert_eq!(run(seed, false), run(seed, false), "seed {seed}");
    }
}
