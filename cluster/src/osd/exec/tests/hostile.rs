//! Requests that nobody in their right mind would send.

use proptest::collection::vec;
use proptest::prelude::*;

use super::rig::Rig;
use crate::codec::Reader;
use crate::objecter::msg::{Fixed, NOSNAP, OpCode, OsdFlags, OsdOp, SNAPDIR};

/// Small numbers and huge ones, so that limits and sums are met from both sides.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..12,
        (0u64..12).prop_map(|n| u64::MAX - n),
        (0u64..4).prop_map(|n| (128 << 20) - 2 + n),
        any::<u64>(),
    ]
}

fn code() -> impl Strategy<Value = u16> {
    let known: Vec<u16> = (0..=u16::MAX)
        .filter(|c| OpCode(*c).name().is_some())
        .collect();
    prop_oneof![9 => proptest::sample::select(known), 1 => any::<u16>()]
}

fn operation() -> impl Strategy<Value = (OsdOp, Vec<u8>)> {
    let data = prop_oneof![
        vec(any::<u8>(), 0..40),
        // Counts and lengths that fit.
        vec(0u8..3, 0..40),
    ];
    let args = [number(), number(), number()];
    (code(), 0u32..4, args, 0u32..9, data, -2i32..3).prop_map(
        |(code, flags, args, last, data, lie)| {
            let mut raw = code.to_le_bytes().to_vec();
            raw.extend(flags.to_le_bytes());
            args.iter().for_each(|a| raw.extend(a.to_le_bytes()));
            raw.extend(last.to_le_bytes());
            let length = (data.len() as i32 + if lie == 2 { 1 } else { 0 }).max(0);
            raw.extend(length.to_le_bytes());
            let op = OsdOp::read(&mut Reader::new(&raw)).unwrap();
            (op, data)
        },
    )
}

proptest! {
    #[test]
    fn never_panic(requests in vec((vec(operation(), 1..5), number(), number(), vec(number(), 0..3)), 1..12), flags: u32) {
        let mut rig = Rig::new();
        for (ops, snap, seq, snaps) in requests {
            let (ops, data): (Vec<OsdOp>, Vec<Vec<u8>>) = ops.into_iter().unzip();
            rig.flags = OsdFlags(flags);
            rig.snap = match snap % 4 {
                0 | 1 => NOSNAP,
                2 => SNAPDIR,
                _ => snap,
            };
            rig.snap_context = (seq, snaps);
            rig.ask_raw(&ops, &data.concat());
        }
    }
}
