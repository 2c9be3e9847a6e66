//! What single operations on objects return.

#![no_main]

use cluster::objecter::results::{
    NotifyReplies, OmapKeys, OmapVals, PgListing, SnapSet, SparseRead, Stat, decode_map,
    decode_watchers,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((what, bytes)) = data.split_first() else {
        return;
    };
    match what % 9 {
        0 => drop(Stat::decode(bytes)),
        1 => {
            if let Ok(read) = SparseRead::decode(bytes) {
                let (mut end, mut total) = (0, 0);
                for (offset, data) in read.iter() {
                    assert!(offset >= end);
                    end = offset + data.len() as u64;
                    total += data.len();
                }
                assert!(total <= bytes.len());
            }
        }
        2 => drop(decode_map(bytes)),
        3 => drop(OmapVals::decode(bytes)),
        4 => drop(OmapKeys::decode(bytes)),
        5 => drop(decode_watchers(bytes)),
        6 => drop(SnapSet::decode(bytes)),
        7 => drop(NotifyReplies::decode(bytes)),
        _ => drop(PgListing::decode(bytes)),
    }
});
