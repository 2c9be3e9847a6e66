//! What placement costs. Not a test: run with
//! `cargo test --release -p cluster osdmap::speed -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::*;

/// Nanoseconds per call, the best of many rounds, each too short to be interrupted often.
fn measure(mut call: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..200 {
        let (start, mut calls) = (Instant::now(), 0u32);
        while start.elapsed() < Duration::from_micros(500) {
            (0..10).for_each(|_| call());
            calls += 10;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    best
}

#[test]
#[ignore = "measures"]
fn placement() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/v20");
    for name in ["racks", "racks-upmap-affinity", "racks-weightset"] {
        let bytes = std::fs::read(format!("{root}/{name}.osdmap")).unwrap();
        let map = OsdMap::decode(&bytes).unwrap();
        let decode = measure(|| drop(black_box(OsdMap::decode(&bytes).unwrap())));
        println!("{name}: decode {:.1} us", decode / 1000.0);
        let mut ws = Workspace::default();
        let mut mapping = PgMapping::default();
        for (id, pool) in map.pools() {
            let mut seed = 0;
            let mut next = || {
                seed = (seed + 1) % pool.pg_num;
                Pg { pool: id, seed }
            };
            let into = measure(|| map.map_pg_into(next(), &mut ws, &mut mapping).unwrap());
            let fresh = measure(|| drop(black_box(map.map_pg(next()))));
            println!(
                "  {} x{}: map_pg_into {into:.0} ns, map_pg {fresh:.0} ns",
                map.pool_name(id).unwrap(),
                pool.size
            );
        }
        let object = b"rbd_data.1019ea2573af.00000000000003ff";
        let hash = measure(|| {
            black_box(map.object_to_pg(1, b"", b"", black_box(object)));
        });
        println!("  object_to_pg {hash:.1} ns");
    }
    let full = std::fs::read(format!("{root}/incr/simple.19.full")).unwrap();
    let inc = std::fs::read(format!("{root}/incr/simple.20.inc")).unwrap();
    let map = OsdMap::decode(&full).unwrap();
    let apply = measure(|| {
        let inc = Incremental::decode(&inc).unwrap();
        drop(black_box(map.next(&inc).unwrap()));
    });
    println!(
        "simple: decode and apply an increment {:.1} us",
        apply / 1000.0
    );
}
