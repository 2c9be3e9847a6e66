//! `cargo test --release -p cluster exec::tests::speed -- --ignored --nocapture`

use std::time::Instant;

use super::rig::{Rig, payload};
use crate::objecter::ObjectOp;

/// Nanoseconds for one request of 4 KiB on an object of 4 MiB, in the best of five rounds. The rig
/// around it copies and splits what a pg does not.
fn measure(request: impl Fn(u64) -> ObjectOp) -> f64 {
    let mut rig = Rig::new();
    let whole = payload(&vec![7; 4 << 20]);
    rig.done(ObjectOp::new().write_full(whole));
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for i in 0..20_000u64 {
            rig.done(request(i.wrapping_mul(77) % 1024 * 4096));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / 20_000.0);
    }
    best
}

#[test]
#[ignore = "measures"]
fn requests_of_4k() {
    println!(
        "read:  {:.0} ns",
        measure(|at| ObjectOp::new().read(at, 4096))
    );
    let data = payload(&[3; 4096]);
    let write = |at| ObjectOp::new().write(at, data.clone());
    println!("write: {:.0} ns", measure(write));
}
