//! CRUSH maps, and what their rules choose.

#![no_main]

use cluster::osdmap::crush::Map;
use fuzz::maps::map_rules;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(map) = Map::decode(bytes) {
        map_rules(&map);
    }
});
