//! The runtime against the real kernel, as it is and as older ones are.

mod cancel;
mod loops;
mod sockets;

use std::time::Duration;

use crate::{Config, Runtime};

fn small() -> Config {
    Config {
        entries: 32,
        cq_entries: 256,
        recv_buf_size: 4096,
        recv_bufs: 16,
        send_coalesce: Duration::from_micros(500),
        ..Config::default()
    }
}

/// The kernel at hand, and what it can pretend to be.
fn kernels() -> Vec<(&'static str, Config)> {
    let plain = Config {
        force_plain_flags: true,
        send_coalesce: Duration::ZERO,
        ..small()
    };
    let single = Config {
        force_no_multishot: true,
        ..small()
    };
    let oldest = Config {
        force_no_multishot: true,
        force_no_pbuf_ring: true,
        ..plain.clone()
    };
    let wide = Config {
        wide_sqe: true,
        ..small()
    };
    let tiny = Config {
        entries: 8,
        cq_entries: 16,
        poll_budget: 3,
        ..small()
    };
    vec![
        ("as it is", small()),
        ("plain flags", plain),
        ("no multishot", single),
        ("nothing optional", oldest),
        ("wide entries", wide),
        ("tiny queues", tiny),
    ]
}

fn on_all_kernels(test: impl Fn(&Runtime)) {
    for (name, config) in kernels() {
        let runtime = Runtime::new(&config).unwrap_or_else(|e| panic!("{name}: {e}"));
        eprintln!("{name}: {:?}", runtime.features());
        test(&runtime);
        assert_eq!(runtime.shutdown(), 0, "{name}: the kernel kept something");
    }
}

/// A small deterministic generator (xorshift64*), so that failures name a seed.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}
