//! Full OSD maps, placements included.

#![no_main]

use cluster::osdmap::OsdMap;
use fuzz::maps::{map_pgs, seal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    seal(&mut bytes, 0);
    if let Ok(map) = OsdMap::decode(&bytes) {
        map_pgs(&map);
        map.encode();
    }
});
