//! The file store's journal and rows, as a damaged disk, or one that lies, may have them.

#![no_main]

use cluster::osd::store::file::testing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [kind, data @ ..] = data else {
        return;
    };
    match kind % 4 {
        // Rows of each kind; what was written reads back the same.
        0 => testing::rows(data),
        // A segment of any bytes.
        1 => testing::replay(data, false),
        // One whose checksums fit.
        2 => testing::replay(data, true),
        // Whole records of any content: changes, a zero byte, and the data of their writes.
        _ => {
            let mut records = Vec::new();
            let mut rest = data;
            while let [a, b, tail @ ..] = rest
                && records.len() < 8
            {
                let (ops, tail) = tail.split_at(tail.len().min((*a).into()));
                let (data, tail) = tail.split_at(tail.len().min((*b).into()));
                records.push((ops, data));
                rest = tail;
            }
            testing::recover(&records);
        }
    }
});
