//! Monitor maps.

#![no_main]

use cluster::mon::MonMap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(map) = MonMap::decode(bytes) else {
        return;
    };
    let mut out = Vec::new();
    map.encode(&mut out);
    let again = MonMap::decode(&out).expect("our own encoding");
    assert_eq!(again.mons.len(), map.mons.len());
    for (name, mon) in &map.mons {
        for addr in mon.addrs.0.iter().filter_map(|a| a.addr) {
            assert!(again.name_at(addr).is_some(), "{name}");
        }
    }
});
