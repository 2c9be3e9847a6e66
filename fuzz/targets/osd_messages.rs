//! The front of any message between client and OSD.

#![no_main]

use cluster::objecter::msg::{MOsdBackoff, MOsdMap, MOsdOp, MOsdOpReply, MWatchNotify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [kind, version, front @ ..] = data else {
        return;
    };
    let version = u16::from(*version);
    // What was written once is written the same way for ever.
    let mut once = Vec::new();
    let mut twice = Vec::new();
    match kind {
        0 => {
            let Ok(m) = MOsdOp::decode(version, front) else {
                return;
            };
            for op in m.ops.iter() {
                let _ = (op.extent(), op.xattr(), op.call(), op.watch(), op.pgls());
                let _ = (op.alloc_hint(), op.writesame(), op.snap(), op.cookie());
                let _ = (op.code.name(), format!("{op:?}"));
            }
            m.encode(version, &mut once);
            let again = MOsdOp::decode(version, &once).expect("our own encoding");
            again.encode(version, &mut twice);
        }
        1 => {
            let Ok(m) = MOsdOpReply::decode(version, front) else {
                return;
            };
            assert_eq!(m.ops.len(), m.rvals.len());
            m.encode(&mut once);
            let again = MOsdOpReply::decode(MOsdOpReply::VERSION, &once).expect("our own");
            again.encode(&mut twice);
        }
        2 => {
            let Ok(m) = MOsdBackoff::decode(front) else {
                return;
            };
            m.encode(&mut once);
            let again = MOsdBackoff::decode(&once).expect("our own encoding");
            again.encode(&mut twice);
        }
        3 => {
            let Ok(m) = MWatchNotify::decode(version, front) else {
                return;
            };
            m.encode(&mut once);
            let again = MWatchNotify::decode(MWatchNotify::VERSION, &once).expect("our own");
            again.encode(&mut twice);
        }
        4 => {
            let Ok(m) = MOsdMap::decode(version, front) else {
                return;
            };
            let last = m.last();
            let _ = (m.full(last), m.incremental(last));
            m.encode(&mut once);
            let again = MOsdMap::decode(MOsdMap::VERSION, &once).expect("our own encoding");
            again.encode(&mut twice);
        }
        _ => {}
    }
    assert_eq!(once, twice);
});
