//! What each operation returns, and when it fails.

use super::rig::{Rig, head, payload};
use crate::codec::Put;
use crate::objecter::ObjectOp;
use crate::objecter::msg::{
    Checksum, CmpMode, CmpOp, Extent, NOSNAP, OpCode, OpFlags, OsdFlags, OsdOp, SNAPDIR,
};
use crate::objecter::results::{OmapKeys, OmapVals, SparseRead, Stat, decode_map};
use crate::osd::limits::OBJECT as MAX_OBJECT;
use crate::osd::store::Store;
use crate::osdmap::pool::flag;

fn ops() -> ObjectOp {
    ObjectOp::new()
}

fn extent(offset: u64, length: u64, truncate_seq: u32, truncate_size: u64) -> Extent {
    Extent {
        offset,
        length,
        truncate_size,
        truncate_seq,
    }
}

fn with(content: &[u8]) -> Rig {
    let mut rig = Rig::new();
    rig.done(ops().write_full(payload(content)));
    rig
}

#[test]
fn reads_of_what_is_not_there() {
    let mut rig = Rig::new();
    for op in [
        ops().read(0, 1),
        ops().stat(),
        ops().getxattr("a"),
        ops().omap_get_header(),
        ops().list_watchers(),
        ops().sparse_read(0, 1),
    ] {
        let answer = rig.ask(op);
        assert_eq!((answer.result, answer.user_version), (-libc::ENOENT, 0));
    }
    rig.snap = 3;
    assert_eq!(rig.ask(ops().read(0, 1)).result, -libc::ENOENT);
    rig.snap = SNAPDIR;
    assert_eq!(rig.ask(ops().list_snaps()).result, -libc::ENOENT);
}

#[test]
fn in_a_write_some_reads_do_without_the_object() {
    let mut rig = Rig::new();
    let answer = rig.done(ops().read(0, 9).omap_get_header().create(true));
    assert_eq!(answer.rvals(), [0, 0, 0]);
    rig.done(ops().delete());
    for op in [ops().stat(), ops().getxattr("a"), ops().sparse_read(0, 9)] {
        let answer = rig.ask(op.create(false));
        assert_eq!(answer.rvals(), [-libc::ENOENT, 0]);
        assert!(!answer.changed);
    }
    // A failed write tells the version below which the object's will not be.
    let answer = rig.ask(ops().stat().create(false));
    assert_eq!(answer.user_version, rig.user_version);
}

#[test]
fn reads_end_where_the_object_ends() {
    let mut rig = with(b"0123456789");
    for (offset, length, want) in [
        (0, 0, "0123456789"),
        (2, 3, "234"),
        (8, 100, "89"),
        (10, 5, ""),
        (4, 0, "456789"),
        (u64::MAX, u64::MAX, ""),
        (1, u64::MAX, "123456789"),
    ] {
        let answer = rig.done(ops().read(offset, length));
        assert_eq!(answer.output(), want.as_bytes(), "{offset}~{length}");
    }
    let answer = rig.done(ops().stat());
    let stat = Stat::decode(answer.output()).unwrap();
    assert_eq!((stat.size, stat.mtime.sec), (10, 1000));
}

#[test]
fn sparse_reads_leave_out_holes() {
    let mut rig = Rig::new();
    rig.done(ops().write(1 << 20, payload(b"tail")));
    rig.done(ops().write(0, payload(b"head")));
    let answer = rig.done(ops().sparse_read(0, 2 << 20));
    let read = SparseRead::decode(answer.output()).unwrap();
    let parts: Vec<_> = read.iter().collect();
    assert_eq!(parts.len(), 2);
    assert_eq!((parts[1].0, parts[1].1), (1 << 20, &b"tail"[..]));
    assert!(parts[0].1.starts_with(b"head\0") && parts[0].1.len() <= 65536);
    let answer = rig.done(ops().map_extents(1 << 19, 1 << 20));
    let mut want = Vec::new();
    want.put_u32(1);
    want.put_u64(1 << 20);
    want.put_u64(4);
    assert_eq!(answer.output(), want);
    let answer = rig.done(ops().sparse_read(5 << 20, 10));
    assert_eq!(answer.output(), [0; 8]);
}

#[test]
fn reads_in_a_write_see_the_object_as_it_was() {
    let mut rig = with(b"old");
    rig.flags = OsdFlags::RETURNVEC;
    let set = [(&b"k"[..], &b"v"[..])];
    let answer = rig.done(
        ops()
            .write(0, payload(b"newer"))
            .read(0, 0)
            .stat()
            .setxattr("a", b"1")
            .omap_set(set.into_iter())
            .omap_get_vals(b"", b"", 9),
    );
    assert_eq!(answer.ops[1].1, b"old");
    // The size is not read, it is known.
    assert_eq!(Stat::decode(&answer.ops[2].1).unwrap().size, 5);
    let vals = OmapVals::decode(answer.output()).unwrap();
    assert!(vals.pairs.is_empty() && !vals.more);
    let answer = rig.ask(ops().delete().stat());
    assert_eq!(answer.rvals(), [0, -libc::ENOENT]);
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"newer");
}

#[test]
fn writes_past_the_largest_object_are_refused() {
    let mut rig = with(b"x");
    let big = MAX_OBJECT;
    let two = payload(b"xy");
    for op in [
        ops().write(big, two.clone()),
        ops().write(big - 1, two.clone()),
        ops().write(u64::MAX, two.clone()),
        ops().write_same(big - 2, 4, two.clone()),
        ops().write_same(0, big * 4, two.clone()),
        ops().truncate(big),
        ops().zero(big, 1),
        ops().zero(0, big + 1),
        ops().zero(u64::MAX, u64::MAX),
    ] {
        let answer = rig.ask(op);
        assert_eq!((answer.result, answer.changed), (-libc::EFBIG, false));
    }
    rig.done(ops().write(big - 2, two.clone()));
    assert_eq!(rig.ask(ops().append(two)).result, -libc::EFBIG);
    let mut lying = OsdOp::with_extent(OpCode::WRITE, extent(0, 1, 5, u64::MAX));
    lying.payload_len = 1;
    assert_eq!(rig.ask_raw(&[lying], b"x").result, -libc::EFBIG);
}

#[test]
fn arguments_that_contradict_the_data() {
    let mut rig = with(b"x");
    for code in [OpCode::WRITE, OpCode::WRITEFULL, OpCode::APPEND] {
        let op = OsdOp::with_extent(code, extent(0, 3, 0, 0));
        assert_eq!(rig.one(op, b"xy").result, -libc::EINVAL);
    }
    assert_eq!(
        rig.ask(ops().write_same(0, 5, payload(b"xy"))).result,
        -libc::EINVAL
    );
    let mut op = OsdOp::plain(OpCode::STAT);
    op.payload_len = 9;
    assert_eq!(rig.ask_raw(&[op], b"").result, -libc::EINVAL);
    for code in [
        OpCode::OMAP_SET_VALS,
        OpCode::OMAP_RM_KEYS,
        OpCode::OMAP_RM_KEY_RANGE,
        OpCode::OMAP_GET_KEYS,
        OpCode::OMAP_GET_VALS,
        OpCode::OMAP_GET_VALS_BY_KEYS,
        OpCode::OMAP_CMP,
    ] {
        let answer = rig.plain(code, &[9, 0, 0, 0]);
        assert_eq!(answer.result, -libc::EINVAL, "{code:?}");
        assert!(!answer.changed);
    }
}

#[test]
fn a_failure_undoes_the_request() {
    let mut rig = with(b"before");
    let version = rig.user_version;
    let answer = rig.ask(
        ops()
            .write_full(payload(b"after"))
            .setxattr("a", b"1")
            .cmpext(0, payload(b"x"))
            .delete(),
    );
    assert_eq!(answer.rvals(), [0, 0, -4095, 0]);
    assert_eq!(answer.result, -4095);
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"before");
    assert_eq!(rig.done(ops().stat()).user_version, version);
}

#[test]
fn failures_that_are_allowed_let_the_request_go_on() {
    let mut rig = Rig::new();
    let answer = rig.done(
        ops()
            .delete()
            .with_flags(OpFlags::FAILOK)
            .write(0, payload(b"x")),
    );
    assert_eq!((answer.rvals(), answer.result), (vec![-libc::ENOENT, 0], 0));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"x");
}

#[test]
fn exclusive_creation() {
    let mut rig = Rig::new();
    rig.done(ops().create(true));
    assert_eq!(rig.ask(ops().create(true)).result, -libc::EEXIST);
    let before = rig.user_version;
    // Nothing is new about the object, but its version.
    assert!(rig.done(ops().create(false)).user_version > before);
    rig.done(ops().delete());
    assert_eq!(rig.ask(ops().delete()).result, -libc::ENOENT);
    rig.done(ops().create(true));
}

#[test]
fn comparing_bytes() {
    let mut rig = with(b"abc");
    assert_eq!(rig.done(ops().cmpext(1, payload(b"bc"))).result, 0);
    assert_eq!(rig.ask(ops().cmpext(1, payload(b"bx"))).result, -4096);
    // What is not there is zero.
    assert_eq!(rig.done(ops().cmpext(1, payload(b"bc\0\0"))).result, 0);
    assert_eq!(rig.ask(ops().cmpext(1, payload(b"bc\0x"))).result, -4098);
    assert_eq!(rig.done(ops().cmpext(100, payload(b"\0"))).result, 0);
    let mut rig = Rig::new();
    let answer = rig.done(ops().cmpext(0, payload(b"\0\0")).write(0, payload(b"x")));
    assert_eq!(answer.result, 0);
    let answer = rig.ask(ops().delete().create(true).cmpext(0, payload(b"y")));
    assert_eq!(answer.result, -4095);
}

#[test]
fn truncations_that_a_write_has_not_heard_of() {
    let mut rig = with(b"0123456789");
    let truncate = OsdOp::with_extent(OpCode::TRUNCATE, extent(4, 0, 5, 4));
    rig.one(truncate, b"");
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"0123");
    // An older write only has what lies before the end.
    let old = OsdOp::with_extent(OpCode::WRITE, extent(2, 4, 3, 100));
    rig.one(old, b"abcd");
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"01ab");
    let old = OsdOp::with_extent(OpCode::WRITE, extent(50, 4, 3, 100));
    rig.one(old, b"abcd");
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"01ab");
    // A newer one truncates first.
    let new = OsdOp::with_extent(OpCode::WRITE, extent(6, 2, 6, 1));
    rig.one(new, b"xy");
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"0\0\0\0\0\0xy");
    // And truncating again is an old story.
    let answer = rig.one(truncate, b"");
    assert_eq!((answer.result, answer.changed), (0, false));
    let other = OsdOp::with_extent(OpCode::TRUNCATE, extent(4, 0, 9, 5));
    assert_eq!(rig.one(other, b"").result, -libc::EINVAL);
    // A reader that knows of a newer truncation sees the object end there.
    let read = OsdOp::with_extent(OpCode::READ, extent(0, 100, 7, 3));
    assert_eq!(rig.one(read, b"").output(), b"0\0\0");
    // Number one with the largest size means no truncation.
    let read = OsdOp::with_extent(OpCode::READ, extent(0, 100, 1, u64::MAX));
    assert_eq!(rig.one(read, b"").output().len(), 8);
}

#[test]
fn an_empty_write_may_lengthen() {
    let mut rig = with(b"ab");
    let write = |at| OsdOp::with_extent(OpCode::WRITE, extent(at, 0, 0, 0));
    assert!(rig.one(write(1), b"").changed);
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"ab");
    rig.one(write(4), b"");
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"ab\0\0");
}

#[test]
fn zeroing() {
    let mut rig = with(b"0123456789");
    rig.done(ops().zero(2, 3));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"01\x00\x00\x0056789");
    // Up to the end it is a truncation, beyond it nothing.
    rig.done(ops().zero(8, 100));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"01\x00\x00\x00567");
    assert!(!rig.done(ops().zero(8, 100)).changed);
    rig.done(ops().delete());
    assert!(!rig.done(ops().zero(0, 100)).changed);
    assert!(!rig.done(ops().truncate(100)).changed);
    assert_eq!(rig.bytes(NOSNAP), None);
}

#[test]
fn repeating_and_appending() {
    let mut rig = Rig::new();
    rig.done(ops().write_same(1, 6, payload(b"ab")));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"\0ababab");
    rig.done(ops().append(payload(b"c")).append(payload(b"d")));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"\0abababcd");
    rig.done(ops().write_full(payload(b"e")));
    assert_eq!(rig.bytes(NOSNAP).unwrap(), b"e");
}

#[test]
fn attributes() {
    let mut rig = Rig::new();
    rig.done(ops().setxattr("a", b"12").setxattr("b", b""));
    assert_eq!(rig.done(ops().getxattr("a")).output(), b"12");
    assert_eq!(rig.ask(ops().getxattr("c")).result, -libc::ENODATA);
    let answer = rig.done(ops().getxattrs());
    let attrs = decode_map(answer.output()).unwrap();
    assert_eq!(attrs, [(&b"a"[..], &b"12"[..]), (b"b", b"")]);
    rig.done(ops().setxattr(&"n".repeat(100), b""));
    let long = rig.ask(ops().setxattr(&"n".repeat(101), b""));
    assert_eq!(long.result, -libc::ENAMETOOLONG);
    rig.done(ops().rmxattr("a").rmxattr("absent"));
    assert_eq!(rig.ask(ops().getxattr("a")).result, -libc::ENODATA);
    rig.done(ops().delete());
    assert_eq!(rig.ask(ops().rmxattr("a")).result, -libc::ENOENT);
}

#[test]
fn comparing_attributes() {
    let mut rig = Rig::new();
    rig.done(ops().setxattr("n", b"12").setxattr("s", b"abc"));
    let mut text = |op, value: &[u8]| {
        let answer = rig.ask(ops().cmpxattr("s", op, CmpMode::String, value).stat());
        // The result of a comparison stays until an operation has one of its own.
        assert!(answer.result < 0 || answer.rvals() == [1, 1]);
        answer.result
    };
    assert_eq!(text(CmpOp::Eq, b"abc"), 1);
    assert_eq!(text(CmpOp::Eq, b"abd"), -libc::ECANCELED);
    // The request's value stands on the left.
    assert_eq!(text(CmpOp::Gt, b"abd"), 1);
    assert_eq!(text(CmpOp::Lt, b"abd"), -libc::ECANCELED);
    let mut number = |op, value: u64, name| {
        let value = value.to_le_bytes();
        rig.ask(ops().cmpxattr(name, op, CmpMode::U64, &value))
            .result
    };
    assert_eq!(number(CmpOp::Gte, 12, "n"), 1);
    assert_eq!(number(CmpOp::Gt, 12, "n"), -libc::ECANCELED);
    assert_eq!(number(CmpOp::Eq, 12, "s"), -libc::EINVAL);
    // What is not there is zero.
    assert_eq!(number(CmpOp::Eq, 0, "absent"), 1);
    // A write has its own result.
    let mode = CmpMode::String;
    let answer = rig.done(ops().cmpxattr("s", CmpOp::Eq, mode, b"abc").create(false));
    assert_eq!((answer.result, answer.rvals()), (0, vec![1, 0]));
}

#[test]
fn omap() {
    let mut rig = Rig::new();
    let pairs: [(&[u8], &[u8]); 4] = [(b"a", b"1"), (b"b.1", b"2"), (b"b.2", b"3"), (b"c", b"4")];
    rig.done(ops().omap_set(pairs.into_iter()));
    let answer = rig.done(ops().omap_get_vals(b"", b"b.", 1));
    let vals = OmapVals::decode(answer.output()).unwrap();
    assert_eq!((vals.pairs, vals.more), (pairs[1..2].to_vec(), true));
    let answer = rig.done(ops().omap_get_vals(b"b.1", b"b.", 9));
    let vals = OmapVals::decode(answer.output()).unwrap();
    assert_eq!((vals.pairs, vals.more), (pairs[2..3].to_vec(), false));
    let answer = rig.done(ops().omap_get_keys(b"b.1", 9));
    let keys = OmapKeys::decode(answer.output()).unwrap();
    assert_eq!((keys.keys, keys.more), (vec![&b"b.2"[..], b"c"], false));
    let wanted: [&[u8]; 4] = [b"c", b"x", b"a", b"c"];
    let answer = rig.done(ops().omap_get_vals_by_keys(wanted.into_iter()));
    let found = decode_map(answer.output()).unwrap();
    assert_eq!(found, [pairs[0], pairs[3]]);

    let mut compare = |key: &[u8], value: &[u8], op| {
        let assertion = [(key, value, op)];
        rig.ask(ops().omap_cmp(assertion.into_iter())).result
    };
    assert_eq!(compare(b"a", b"1", CmpOp::Eq), 0);
    assert_eq!(compare(b"a", b"2", CmpOp::Eq), -libc::ECANCELED);
    // Here the stored value stands on the left.
    assert_eq!(compare(b"a", b"2", CmpOp::Lt), 0);
    assert_eq!(compare(b"a", b"\xff", CmpOp::Gt), 0);
    assert_eq!(compare(b"x", b"", CmpOp::Eq), 0);
    assert_eq!(compare(b"a", b"1", CmpOp::Gte), -libc::EINVAL);

    rig.done(ops().omap_set_header(payload(b"header")));
    assert_eq!(rig.done(ops().omap_get_header()).output(), b"header");
    rig.done(ops().omap_rm_range(b"b", b"c"));
    rig.done(ops().omap_rm_keys([&b"a"[..]].into_iter()));
    let answer = rig.done(ops().omap_get_keys(b"", 9));
    assert_eq!(OmapKeys::decode(answer.output()).unwrap().keys, [b"c"]);
    rig.done(ops().omap_clear());
    assert_eq!(rig.done(ops().omap_get_header()).output(), b"");
    rig.done(ops().delete());
    for op in [
        ops().omap_clear(),
        ops().omap_rm_range(b"b", b"c"),
        ops().omap_rm_keys([&b"a"[..]].into_iter()),
    ] {
        assert_eq!(rig.ask(op).result, -libc::ENOENT);
    }
}

#[test]
fn an_answer_has_only_so_many_keys() {
    let mut rig = Rig::new();
    let keys: Vec<Vec<u8>> = (0..1500).map(|i| format!("{i:05}").into_bytes()).collect();
    rig.done(ops().omap_set(keys.iter().map(|k| (&k[..], &b"v"[..]))));
    let answer = rig.done(ops().omap_get_keys(b"", u64::MAX));
    let page = OmapKeys::decode(answer.output()).unwrap();
    assert_eq!((page.keys.len(), page.more), (1024, true));
    assert_eq!(page.keys[1023], keys[1023]);
}

#[test]
fn versions() {
    let mut rig = Rig::new();
    rig.version = 40;
    // No less than the pg's own version.
    assert_eq!(rig.done(ops().create(true)).user_version, 41);
    rig.user_version = 70;
    assert_eq!(rig.done(ops().create(false)).user_version, 71);
    assert_eq!(rig.done(ops().assert_version(71)).result, 0);
    assert_eq!(rig.ask(ops().assert_version(70)).result, -libc::ERANGE);
    assert_eq!(rig.ask(ops().assert_version(72)).result, -libc::EOVERFLOW);
    assert_eq!(rig.ask(ops().assert_version(0)).result, -libc::EINVAL);
    let info = rig.store.info(super::rig::PG, &head()).unwrap().unwrap();
    assert_eq!((info.user_version, info.mtime.sec), (71, 1041));
}

#[test]
fn hints_are_kept() {
    let mut rig = Rig::new();
    rig.done(ops().set_alloc_hint(4 << 20, 4096, 5));
    let info = rig.store.info(super::rig::PG, &head()).unwrap().unwrap();
    assert_eq!(
        (info.expected_object_size, info.expected_write_size),
        (4 << 20, 4096)
    );
    assert_eq!(info.alloc_hint_flags, 5);
}

#[test]
fn checksums() {
    let mut rig = with(b"123456789abcdefghi");
    let sum = |length, chunk_size, kind| {
        OsdOp::with_checksum(Checksum {
            offset: 0,
            length,
            chunk_size,
            kind,
        })
    };
    let seed = u32::MAX.to_le_bytes();
    // The check value of crc32c, without the inversion at the end.
    let answer = rig.one(sum(18, 9, 2), &seed);
    assert_eq!(answer.output()[..4], [2, 0, 0, 0]);
    assert_eq!(answer.output()[4..8], (!0xe306_9283u32).to_le_bytes());
    assert_eq!(answer.output().len(), 12);
    assert_eq!(rig.one(sum(18, 5, 2), &seed).result, -libc::EINVAL);
    // No length means all; what lies beyond the end is left out.
    for length in [0, 19] {
        assert_eq!(rig.one(sum(length, 0, 2), &seed).output().len(), 8);
    }
    assert_eq!(rig.one(sum(27, 9, 2), &seed).output().len(), 12);
    assert_eq!(rig.one(sum(20, 10, 2), &seed).result, -libc::EINVAL);
    assert_eq!(rig.one(sum(18, 9, 2), &seed[..3]).result, -libc::EINVAL);
    // xxHash in 32 and 64 bits, whose seeds are as long as their sums.
    assert_eq!(rig.one(sum(18, 9, 0), &seed).output().len(), 4 + 2 * 4);
    assert_eq!(rig.one(sum(18, 9, 1), &seed).result, -libc::EINVAL);
    assert_eq!(rig.one(sum(18, 9, 1), &[0; 8]).output().len(), 4 + 2 * 8);
    assert_eq!(rig.one(sum(18, 9, 3), &seed).result, -libc::EINVAL);
}

#[test]
fn what_is_not_done_here() {
    let mut rig = with(b"x");
    for (code, want) in [
        (OpCode::CACHE_PIN, libc::EINVAL),
        (OpCode::CACHE_FLUSH, libc::EINVAL),
        (OpCode(0x2200 | 45), libc::EOPNOTSUPP),
        (OpCode(0x3200 | 34), libc::EOPNOTSUPP),
        (OpCode(0xffff), libc::EOPNOTSUPP),
    ] {
        assert_eq!(rig.plain(code, b"").result, -want, "{code:?}");
    }
    assert_eq!(rig.plain(OpCode::ISDIRTY, b"").output(), [1]);
    assert!(rig.plain(OpCode::STARTSYNC, b"").changed);
}

#[test]
fn a_full_pool_takes_no_more() {
    let mut rig = with(b"0123");
    rig.pool.flags = flag::FULL;
    assert_eq!(rig.ask(ops().append(payload(b"x"))).result, -libc::EAGAIN);
    rig.flags = OsdFlags::FULL_TRY;
    assert_eq!(rig.ask(ops().append(payload(b"x"))).result, -libc::ENOSPC);
    rig.pool.flags |= flag::FULL_QUOTA;
    assert_eq!(rig.ask(ops().append(payload(b"x"))).result, -libc::EDQUOT);
    rig.flags = OsdFlags::NONE;
    rig.done(ops().write(0, payload(b"ab")));
    rig.done(ops().delete());
    assert_eq!(rig.ask(ops().create(true)).result, -libc::EAGAIN);
    rig.flags = OsdFlags::FULL_FORCE;
    rig.done(ops().append(payload(b"x")));
}
