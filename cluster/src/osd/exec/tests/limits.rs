//! What a client cannot have: each limit from both sides.

use super::rig::{PG, Rig, head, payload};
use crate::codec::Put;
use crate::msgr::ceph_crc32c;
use crate::objecter::ObjectOp;
use crate::objecter::msg::{
    Checksum, Extent, NOSNAP, OpCode, OsdOp, SNAPDIR, WatchArgs, WatchOp, WriteSame,
};
use crate::objecter::results::SnapSet;
use crate::osd::exec::Effect;
use crate::osd::limits;
use crate::osd::store::Store;

fn ops() -> ObjectOp {
    ObjectOp::new()
}

fn carrying(mut op: OsdOp, bytes: u32) -> OsdOp {
    op.payload_len = bytes;
    op
}

#[test]
fn attributes_together_have_a_limit() {
    let mut rig = Rig::new();
    let half = vec![7; limits::ATTRS as usize / 2 - 100];
    let whole = vec![7; limits::ATTRS as usize];
    assert_eq!(rig.ask(ops().setxattr("a", &whole)).result, -libc::EFBIG);
    rig.done(ops().setxattr("a", &half).setxattr("b", &half));
    let both = ops().setxattr("c", b"small").setxattr("d", &half);
    assert_eq!(rig.ask(both).result, -libc::EFBIG);
    assert_eq!(rig.ask(ops().getxattr("c")).result, -libc::ENODATA);
    // What replaces another takes the place of it.
    rig.done(ops().setxattr("a", &half).setxattr("a", &half));
    rig.done(ops().setxattr("b", b"").setxattr("c", &half));
    assert_eq!(rig.ask(ops().setxattr("d", &half)).result, -libc::EFBIG);
    rig.done(ops().rmxattr("a").setxattr("d", &half));
    let name = "n".repeat(limits::ATTR_NAME + 1);
    assert_eq!(
        rig.ask(ops().setxattr(&name, b"")).result,
        -libc::ENAMETOOLONG
    );
    rig.done(ops().setxattr(&name[1..], b""));

    rig.done(ops().omap_set_header(payload(&whole)));
    let more = [&whole[..], b"x"].concat();
    let answer = rig.ask(ops().omap_set_header(payload(&more)));
    assert_eq!(answer.result, -libc::EFBIG);
}

#[test]
fn an_omap_has_the_limit_of_data() {
    let mut rig = Rig::new();
    let value = vec![1; 8 << 20];
    let set = |ops: ObjectOp, key: &[u8]| ops.omap_set([(key, &value[..])].into_iter());
    for key in 0..15 {
        rig.done(set(ops(), &[key]));
    }
    assert_eq!(rig.ask(set(ops(), b"x")).result, -libc::EFBIG);
    rig.done(ops().omap_set([(&b"x"[..], &b"small"[..])].into_iter()));
    // What is cleared first makes room.
    rig.done(set(ops().omap_clear(), b"x"));
    rig.done(ops().delete());
    // Small pairs take more than their bytes.
    let keys: Vec<[u8; 4]> = (0..700_000u32).map(u32::to_be_bytes).collect();
    let many = |n: usize| ops().omap_set(keys[..n].iter().map(|k| (&k[..], &b""[..])));
    assert_eq!(rig.ask(many(700_000)).result, -libc::EFBIG);
    rig.done(many(600_000));
    assert_eq!(
        rig.store.omap_size(PG, &head()).unwrap(),
        (600_000, 2_400_000)
    );
}

#[test]
fn what_a_request_makes_has_a_limit() {
    let mut rig = Rig::new();
    let same = |length| {
        OsdOp::with_writesame(WriteSame {
            offset: 0,
            length,
            data_length: 1 << 20,
        })
    };
    let data = vec![1; 3 << 20];
    let ask = |rig: &mut Rig, lengths: &[u64]| {
        let ops: Vec<OsdOp> = lengths
            .iter()
            .map(|length| carrying(same(*length), 1 << 20))
            .collect();
        rig.ask_raw(&ops, &data[..ops.len() << 20])
    };
    let most = limits::OBJECT;
    assert_eq!(ask(&mut rig, &[most + (1 << 20)]).result, -libc::EFBIG);
    assert_eq!(ask(&mut rig, &[most, most, 1 << 20]).result, -libc::E2BIG);
    assert!(!rig.is_stored());
    assert_eq!(ask(&mut rig, &[1 << 20, 4 << 20]).result, 0);
}

#[test]
fn checksums_are_counted_before_they_are_made() {
    let mut rig = Rig::new();
    let content: Vec<u8> = (0..3_000_000u32)
        .map(|i| (i.wrapping_mul(i) >> 7) as u8)
        .collect();
    rig.done(ops().write_full(payload(&content)));
    let sum = |rig: &mut Rig, length, chunk_size| {
        let op = OsdOp::with_checksum(Checksum {
            offset: 0,
            length,
            chunk_size,
            kind: 2,
        });
        rig.one(op, &77u32.to_le_bytes())
    };
    // Chunks that no piece of the reading fits.
    let answer = sum(&mut rig, 3_000_000, 12_000);
    let mut want = Vec::new();
    want.put_list(content.chunks(12_000), |out, part| {
        out.put_u32(ceph_crc32c(77, part));
    });
    assert_eq!(answer.output(), want);
    let answer = sum(&mut rig, 3_000_000, 0);
    assert_eq!(
        answer.output()[4..],
        ceph_crc32c(77, &content).to_le_bytes()
    );

    let big = limits::REPLY / 4 + 1;
    rig.done(ops().truncate(big));
    let answer = sum(&mut rig, big, 1);
    assert_eq!((answer.result, answer.output()), (-libc::E2BIG, &[][..]));
    let all = Checksum {
        length: big,
        kind: 2,
        ..Checksum::default()
    };
    let op = carrying(OsdOp::with_checksum(all), 4);
    let data = [0; 20];
    assert_eq!(rig.ask_raw(&[op; 3], &data[..12]).result, 0);
    assert_eq!(rig.ask_raw(&[op; 5], &data).result, -libc::E2BIG);
}

#[test]
fn a_comparison_reads_what_it_compares_with() {
    let mut rig = Rig::new();
    rig.done(ops().write_full(payload(b"abcdef")));
    let op = OsdOp::with_extent(
        OpCode::CMPEXT,
        Extent {
            offset: 1,
            length: 1 << 40,
            ..Extent::default()
        },
    );
    assert_eq!(rig.one(op, b"bcd").result, 0);
    assert_eq!(rig.one(op, b"bcx").result, -4097);
}

#[test]
fn what_a_request_returns_has_a_limit() {
    let mut rig = Rig::new();
    let value = vec![1; 4_000_000];
    rig.done(ops().setxattr("a", &value));
    let fits = limits::REPLY as usize / value.len();
    let ask = |n: usize| (0..n).fold(ops(), |ops, _| ops.getxattr("a"));
    assert_eq!(rig.ask(ask(fits)).result, 0);
    let answer = rig.ask(ask(fits + 2));
    assert_eq!(answer.result, -libc::E2BIG);
    let lengths: Vec<usize> = answer.ops.iter().map(|o| o.1.len()).collect();
    assert_eq!(lengths[fits - 1..], [value.len(), 0, 0]);
}

#[test]
fn snapshots_of_an_object_have_a_limit() {
    let mut rig = Rig::new();
    rig.done(ops().create(true));
    let context = |first: u64, n: u64| (first + n, (first..first + n).rev().collect());
    rig.snap_context = context(1, limits::SNAPS as u64 + 1);
    assert_eq!(rig.ask(ops().append(payload(b"x"))).result, -libc::E2BIG);
    for round in 0..4 {
        rig.snap_context = context(1 + 5000 * round, 1000);
        rig.done(ops().append(payload(b"x")));
    }
    rig.snap_context = context(50_000, 1000);
    assert_eq!(rig.ask(ops().append(payload(b"x"))).result, -libc::E2BIG);
    rig.snap_context = context(50_000, 96);
    rig.done(ops().append(payload(b"x")));
    rig.snap_context = context(60_000, 1);
    assert_eq!(rig.ask(ops().append(payload(b"x"))).result, -libc::E2BIG);
}

#[test]
fn a_clone_that_shares_too_many_pieces_counts_as_sharing_none() {
    let mut rig = Rig::new();
    rig.done(ops().write_full(payload(&[1; 200_000])));
    rig.snap_context = (4, vec![4]);
    let write = |n: usize| -> Vec<OsdOp> {
        let at = |i| Extent {
            offset: 1 + 2 * i as u64,
            length: 1,
            ..Extent::default()
        };
        let op = |i| carrying(OsdOp::with_extent(OpCode::WRITE, at(i)), 1);
        (0..n).map(op).collect()
    };
    let mut shared = |n: usize| {
        assert_eq!(rig.ask_raw(&write(n), &vec![9; n]).result, 0);
        rig.snap = SNAPDIR;
        let answer = rig.ask(ops().list_snaps());
        rig.snap = NOSNAP;
        let set = SnapSet::decode(answer.output()).unwrap();
        set.clones[0].overlap.len()
    };
    assert_eq!(shared(100), 101);
    assert_eq!(shared(limits::OVERLAPS - 1), limits::OVERLAPS);
    assert_eq!(shared(limits::OVERLAPS), 0);
}

#[test]
fn watches_and_notifications_have_limits() {
    let mut rig = Rig::new();
    rig.done(ops().create(true));
    let watch = |cookie| {
        OsdOp::with_watch(WatchArgs {
            cookie,
            op: WatchOp::Watch as u8,
            generation: 0,
            timeout: 30,
        })
    };
    let most = limits::OBJECT_WATCHES as u64;
    let some: Vec<OsdOp> = (0..65).map(watch).collect();
    rig.ask_raw(&some, b"");
    let notify = |rig: &mut Rig, timeout: u32, length: usize| {
        let mut asked = Vec::new();
        asked.put_u32(1);
        asked.put_u32(timeout);
        asked.put_blob(&vec![1; length]);
        rig.one(OsdOp::with_cookie(OpCode::NOTIFY, 5), &asked)
    };
    assert_eq!(notify(&mut rig, 0, limits::NOTIFY).result, -libc::EMSGSIZE);
    let fits = limits::FAN_OUT / 65;
    assert_eq!(notify(&mut rig, 0, fits + 1).result, -libc::EMSGSIZE);
    let answer = notify(&mut rig, u32::MAX, fits);
    assert!(matches!(
        answer.effects[..],
        [Effect::Notify {
            timeout_seconds: limits::NOTIFY_TIMEOUT,
            ..
        }]
    ));
    let mut ack = Vec::new();
    ack.put_u64(1);
    ack.put_u64(2);
    ack.put_blob(&vec![0; limits::NOTIFY + 1]);
    let answer = rig.plain(OpCode::NOTIFY_ACK, &ack);
    assert_eq!(answer.result, -libc::EMSGSIZE);

    let all: Vec<OsdOp> = (65..most).map(watch).collect();
    assert_eq!(rig.ask_raw(&all, b"").result, 0);
    assert_eq!(rig.one(watch(most), b"").result, -libc::EUSERS);
    assert_eq!(rig.one(watch(3), b"").result, 0, "it is there already");
    rig.done(ops().delete().create(true));
    assert_eq!(rig.one(watch(most), b"").result, 0);
}
