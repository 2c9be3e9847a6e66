//! Incremental OSD maps, applied to the real map before them where there is one.

#![no_main]

use std::sync::OnceLock;

use cluster::osdmap::{Incremental, OsdMap};
use fuzz::maps::{golden, map_pgs, seal};
use libfuzzer_sys::fuzz_target;

static MAPS: OnceLock<Vec<OsdMap>> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let maps = MAPS.get_or_init(|| {
        let full = |epoch| golden(&format!("v20/incr/simple.{epoch}.full"));
        let map = |epoch| OsdMap::decode(&full(epoch)).expect("a real map");
        (1..=25).map(map).collect()
    });
    let mut bytes = bytes.to_vec();
    seal(&mut bytes, 4);
    let Ok(inc) = Incremental::decode(&bytes) else {
        return;
    };
    let _ = inc.encode(20);
    let before = inc.epoch.checked_sub(2).and_then(|n| maps.get(n as usize));
    if let Some(map) = before
        && let Ok(next) = map.next(&inc)
    {
        assert_eq!(next.epoch(), map.epoch() + 1);
        map_pgs(&next);
        next.encode();
    }
});
