//! What the methods of object class `rbd` return.

#![no_main]

use cluster::rbd::cls;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((what, bytes)) = data.split_first() else {
        return;
    };
    match what % 12 {
        0 => drop(cls::size_reply(bytes)),
        1 => drop(cls::features_reply(bytes)),
        2 => drop(cls::string_reply(bytes)),
        3 => drop(cls::u64_reply(bytes)),
        4 => drop(cls::i64_reply(bytes)),
        5 => drop(cls::timestamp_reply(bytes)),
        6 => drop(cls::stripe_reply(bytes)),
        7 => drop(cls::snapcontext_reply(bytes)),
        8 => drop(cls::names_reply(bytes)),
        9 => drop(cls::strings_reply(bytes)),
        10 => drop(cls::parent_reply(bytes)),
        _ => drop(cls::snapshot_reply(bytes)),
    }
});
