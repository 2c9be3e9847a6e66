use super::rig::{Got, POOL, Rig, client_addr, set_pg_num};
use crate::auth::server::Caps;
use crate::codec::{EntityAddr, Reader, UTime};
use crate::objecter::ObjectOp;
use crate::objecter::msg::{HObject, HObjectRef, OpCode, OsdFlags, OsdOp, PgLs, SNAPDIR};
use crate::objecter::results::PgListing;
use crate::osd::limits;
use crate::osd::serve::OsdEvent;
use crate::osd::store::Store;
use crate::osdmap::Incremental;
use crate::osdmap::pool::flag;
use crate::payload::Payload;

fn rig() -> Rig {
    Rig::new(4, |_| 0)
}

fn append(bytes: &[u8]) -> ObjectOp {
    ObjectOp::new().append(Payload::from(bytes.to_vec()))
}

fn results(got: &[Got]) -> Vec<(u64, i32)> {
    got.iter()
        .filter_map(|g| match g {
            Got::Reply { tid, result, .. } => Some((*tid, *result)),
            _ => None,
        })
        .collect()
}

#[test]
fn what_was_written_is_read() {
    let mut r = rig();
    let link = r.open(0, 10);
    let write = r.ask(1, "o", append(b"hello"));
    assert_eq!(r.call(link, &write), (0, vec![]));
    let read = r.ask(2, "o", ObjectOp::new().read(1, 99));
    r.send(link, &read);
    let got = r.take(link);
    let [
        Got::Reply {
            result,
            outs,
            user_version,
            flags,
            data_off,
            ..
        },
    ] = &got[..]
    else {
        panic!("{got:?}");
    };
    assert_eq!((*result, &outs[0][..], *user_version), (0, &b"ello"[..], 1));
    assert_eq!(*data_off, 1);
    let acks = OsdFlags::ACK | OsdFlags::ONDISK | OsdFlags::READ;
    assert_eq!(*flags, i64::from(acks.0));
    let missing = r.ask(3, "none", ObjectOp::new().read(0, 1));
    assert_eq!(r.call(link, &missing).0, -2);
    let usage = r.osds[0].usage()[&POOL];
    assert_eq!((usage.objects, usage.bytes), (1, 5));
    assert_eq!((usage.served.writes, usage.served.reads), (1, 2));
    assert_eq!(
        (usage.served.written_bytes, usage.served.read_bytes),
        (5, 4)
    );
}

#[test]
fn a_repeated_write_is_not_carried_out_again() {
    let mut r = rig();
    let link = r.open(0, 10);
    let mut write = r.ask(1, "o", append(b"x"));
    r.call(link, &write);
    r.close(link);
    let link = r.open(0, 10);
    write.retry = 1;
    assert_eq!(r.call(link, &write).0, 0);
    // Another client's request of that number is another request.
    let other = r.open(0, 11);
    assert_eq!(r.call(other, &write).0, 0);
    let read = r.ask(2, "o", ObjectOp::new().read(0, 99));
    assert_eq!(r.call(link, &read).1, b"xx");
    // A failure is remembered as well: the object is there by now.
    let excl = r.ask(
        3,
        "p",
        ObjectOp::new().create(true).append(Payload::from(vec![1])),
    );
    assert_eq!(r.call(link, &excl).0, 0);
    let again = r.ask(4, "p", ObjectOp::new().create(true));
    assert_eq!(r.call(link, &again).0, -17);
    let delete = r.ask(5, "p", ObjectOp::new().delete());
    assert_eq!(r.call(link, &delete).0, 0);
    assert_eq!(r.call(link, &again).0, -17);
    assert_eq!(r.call(link, &excl).0, 0);
    let stat = r.ask(6, "p", ObjectOp::new().stat());
    assert_eq!(r.call(link, &stat).0, -2);
}

#[test]
fn answers_wait_for_the_store_and_keep_their_order() {
    let mut r = rig();
    let link = r.open(0, 10);
    r.slow();
    let base = r.durable(0);
    let mut asks = Vec::new();
    for (tid, name, op) in [
        (1, "a", append(b"1")),
        (2, "b", append(b"2")),
        (3, "a", ObjectOp::new().read(0, 9)),
        (4, "c", ObjectOp::new().stat()),
        (5, "a", append(b"3")),
        (6, "a", ObjectOp::new().read(0, 9)),
    ] {
        let ask = r.ask(tid, name, op);
        r.send(link, &ask);
        asks.push(ask);
    }
    // Nothing was written to c.
    assert_eq!(results(&r.take(link)), [(4, -2)]);
    // A repetition waits with the first.
    r.send(link, &asks[0]);
    assert!(r.take(link).is_empty());
    r.commit(0, base + 1);
    assert_eq!(results(&r.take(link)), [(1, 0), (3, 0)]);
    r.commit(0, base + 2);
    assert_eq!(results(&r.take(link)), [(2, 0)]);
    r.commit(0, base + 3);
    assert_eq!(results(&r.take(link)), [(5, 0), (6, 0), (1, 0)]);
    assert_eq!(r.osds[0].waiting(), 0);
}

#[test]
fn a_client_with_too_much_under_way_is_busy_until_the_store_catches_up() {
    let mut r = rig();
    let (link, other) = (r.open(0, 10), r.open(0, 11));
    r.slow();
    let base = r.durable(0);
    for tid in 1..=256 {
        assert!(!r.osds[0].busy(link));
        let ask = r.ask(tid, "a", append(b"1"));
        r.send(link, &ask);
    }
    assert!(r.osds[0].busy(link) && !r.osds[0].busy(other));
    r.commit(0, base + 1);
    assert!(!r.osds[0].busy(link));
    let large = vec![7; 64 << 20];
    for tid in 1..=2 {
        assert!(!r.osds[0].busy(other));
        let write = ObjectOp::new().write_full(Payload::from(large.clone()));
        let ask = r.ask(tid, "b", write);
        r.send(other, &ask);
    }
    assert!(r.osds[0].busy(other));
    r.close(link);
    r.commit(0, base + 258);
    assert!(!r.osds[0].busy(other));
    assert_eq!(results(&r.take(other)), [(1, 0), (2, 0)]);
    assert_eq!(r.osds[0].waiting(), 0);
}

#[test]
fn an_answer_made_durable_unnoticed_does_not_overtake() {
    let mut r = rig();
    let link = r.open(0, 10);
    r.slow();
    let write = r.ask(1, "a", append(b"1"));
    r.send(link, &write);
    // The store is done, and nobody has said so, when a read arrives.
    let durable = r.durable(0) + 1;
    r.run(0, |o, _, _| o.store().durable.set(durable));
    let read = r.ask(2, "a", ObjectOp::new().read(0, 9));
    r.send(link, &read);
    assert_eq!(results(&r.take(link)), [(1, 0), (2, 0)]);
}

#[test]
fn only_requests_that_ask_for_it_get_data_from_writes() {
    let mut r = rig();
    let link = r.open(0, 10);
    let put = |len| ObjectOp::new().call("test", "put", Payload::from(vec![7; len]));
    let mut ask = r.ask(1, "o", put(64));
    assert_eq!(r.call(link, &ask), (0, vec![]));
    (ask.tid, ask.flags) = (2, ask.flags | OsdFlags::RETURNVEC);
    for _ in 0..2 {
        // The repetition returns the same.
        r.send(link, &ask);
        let got = r.take(link);
        let [Got::Reply { rvals, outs, .. }] = &got[..] else {
            panic!("{got:?}");
        };
        assert_eq!((&rvals[..], outs[0].len()), (&[0][..], 64));
    }
    let mut big = r.ask(3, "o", put(65));
    big.flags |= OsdFlags::RETURNVEC;
    assert_eq!(r.call(link, &big), (-75, vec![]));
    let echo = ObjectOp::new().call("test", "echo", Payload::from(b"hi".to_vec()));
    let echo = r.ask(4, "o", echo);
    assert_eq!(r.call(link, &echo), (0, b"hi".to_vec()));
    let nonsense = ObjectOp::new().call("no", "such", Payload::default());
    let nonsense = r.ask(5, "o", nonsense);
    assert_eq!(r.call(link, &nonsense).0, -95);
}

#[test]
fn whoever_may_not_write_is_told() {
    let mut r = rig();
    let link = r.open_as(0, 10, Caps::new("allow r"));
    let write = r.ask(1, "o", append(b"x"));
    assert_eq!(r.call(link, &write).0, -1);
    let read = r.ask(2, "o", ObjectOp::new().read(0, 1));
    assert_eq!(r.call(link, &read).0, -2);
    let nobody = r.open_as(0, 11, Caps::default());
    assert_eq!(r.call(nobody, &read).0, -1);
}

#[test]
fn malformed_messages_cost_their_sender_the_link() {
    let mut r = rig();
    let other = r.open(0, 11);
    let good = r.ask(1, "o", append(b"x"));
    let (header, front, data) = r.encode(&good);
    for n in [0, 1, front.len() / 2, front.len() - 1] {
        let link = r.open(0, 10);
        r.send_raw(link, header, &front[..n], &data);
        assert!(matches!(r.take(link)[..], [Got::Closed]));
    }
    let link = r.open(0, 10);
    r.send_raw(link, header, &front, &[]);
    assert!(matches!(r.take(link)[..], [Got::Closed]));
    let link = r.open(0, 10);
    let empty = r.ask(1, "o", ObjectOp::new());
    r.send(link, &empty);
    assert!(matches!(r.take(link)[..], [Got::Closed]));
    assert_eq!(r.call(other, &good).0, 0);
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let mut r = rig();
    let link = r.open(0, 10);
    let read = |r: &Rig, tid| r.ask(tid, "o", ObjectOp::new().read(0, 1));
    let write = |r: &Rig, tid| r.ask(tid, "o", append(b"x"));
    let cases: Vec<(super::rig::Ask, i32)> = vec![
        (r.ask(1, &"n".repeat(2049), ObjectOp::new().read(0, 1)), -36),
        (r.ask(2, "", ObjectOp::new().read(0, 1)), -22),
        (
            super::rig::Ask {
                snap: 3,
                ..write(&r, 3)
            },
            -22,
        ),
        (
            super::rig::Ask {
                snap: SNAPDIR,
                ..read(&r, 4)
            },
            -22,
        ),
        (r.ask(5, "o", ObjectOp::new().list_snaps()), -22),
        (
            super::rig::Ask {
                snap_seq: 4,
                snaps: vec![5],
                ..write(&r, 6)
            },
            -22,
        ),
        (
            super::rig::Ask {
                snap_seq: 5,
                snaps: vec![4, 4],
                ..write(&r, 7)
            },
            -22,
        ),
        (
            super::rig::Ask {
                snap_seq: 5,
                snaps: vec![5, 4],
                ..write(&r, 8)
            },
            0,
        ),
        (
            super::rig::Ask {
                flags: OsdFlags(0x200) | OsdFlags::READ,
                ..read(&r, 9)
            },
            -22,
        ),
        (
            super::rig::Ask {
                namespace: vec![b'n'; 257],
                ..read(&r, 10)
            },
            -36,
        ),
    ];
    for (ask, want) in cases {
        assert_eq!(r.call(link, &ask).0, want, "tid {}", ask.tid);
    }
}

#[test]
fn old_epochs_are_told_of_maps_and_new_ones_wait() {
    let mut r = rig();
    let link = r.open(0, 10);
    let old = r.ask(1, "o", append(b"1"));
    for _ in 0..3 {
        r.change(Incremental::default());
    }
    let now = r.epoch();
    r.send(link, &old);
    let got = r.take(link);
    assert!(matches!(&got[0], Got::Map(incs, full)
        if *incs == [now - 2, now - 1, now] && full.is_empty()));
    assert_eq!(results(&got), [(1, 0)]);
    // It is not told twice.
    let again = r.ask(2, "o", append(b"2"));
    r.send(link, &again);
    assert_eq!(r.take(link).len(), 1);

    let mut ahead = r.ask(3, "o", append(b"3"));
    ahead.epoch = now + 1;
    r.send(link, &ahead);
    let behind = r.ask(4, "o", ObjectOp::new().read(0, 9));
    r.send(link, &behind);
    assert!(r.take(link).is_empty());
    let wanted = |(osd, e): &(usize, OsdEvent<_>)| {
        *osd == 0 && matches!(e, OsdEvent::WantMap { epoch } if *epoch == now + 1)
    };
    assert_eq!(r.events.iter().filter(|e| wanted(e)).count(), 1);
    r.change(Incremental::default());
    assert_eq!(results(&r.take(link)), [(3, 0), (4, 0)]);
}

#[test]
fn a_client_far_behind_gets_the_newest_maps_only() {
    let mut r = rig();
    let link = r.open(0, 10);
    let old = r.ask(1, "o", append(b"1"));
    for _ in 0..50 {
        r.change(Incremental::default());
    }
    r.send(link, &old);
    let got = r.take(link);
    assert!(matches!(&got[0], Got::Map(incs, _)
        if incs.len() == 41 && incs.last() == Some(&r.epoch())));
}

#[test]
fn what_was_sent_before_the_pool_was_full_is_dropped() {
    let mut r = rig();
    let link = r.open(0, 10);
    let before = r.ask(1, "o", append(b"1"));
    r.change_pool(|p| p.flags |= flag::FULL);
    r.send(link, &before);
    assert!(results(&r.take(link)).is_empty());
    let tries = [(2, OsdFlags::FULL_TRY, -28), (3, OsdFlags::FULL_FORCE, 0)];
    for (tid, how, want) in tries {
        let mut ask = before.clone();
        (ask.tid, ask.flags) = (tid, ask.flags | how);
        assert_eq!(r.call(link, &ask).0, want);
    }
    // Whoever knows and writes all the same is not answered.
    let knowing = r.ask(5, "o", append(b"1"));
    r.send(link, &knowing);
    assert!(results(&r.take(link)).is_empty());
    let mut read = r.ask(4, "o", ObjectOp::new().read(0, 9));
    read.epoch = before.epoch;
    assert_eq!(r.call(link, &read).1, b"1");
    read.flags |= OsdFlags::RWORDERED;
    r.send(link, &read);
    assert!(results(&r.take(link)).is_empty());
}

#[test]
fn a_pool_that_fails_on_purpose() {
    let mut r = rig();
    let link = r.open(0, 10);
    r.change_pool(|p| p.flags |= flag::EIO);
    let mut ask = r.ask(1, "o", append(b"1"));
    assert_eq!(r.call(link, &ask).0, -5);
    ask.flags |= OsdFlags::SUPPORTS_POOL_EIO;
    r.send(link, &ask);
    assert!(results(&r.take(link)).is_empty());
}

#[test]
fn blocklisted_clients_are_refused() {
    let mut r = rig();
    let link = r.open(0, 10);
    let entry = EntityAddr {
        kind: crate::codec::AddrType::ANY,
        ..client_addr(10).0[0]
    };
    r.change(Incremental {
        new_blocklist: vec![(
            entry,
            UTime {
                sec: u32::MAX,
                nsec: 0,
            },
        )],
        ..Incremental::default()
    });
    let ask = r.ask(1, "o", append(b"1"));
    assert_eq!(r.call(link, &ask).0, -108);
    let other = r.open(0, 11);
    assert_eq!(r.call(other, &ask).0, 0);
}

#[test]
fn requests_to_the_wrong_place_are_dropped() {
    let mut r = Rig::new(4, |seed| (seed % 2) as i32);
    let link = r.open(0, 10);
    // Not ours.
    let elsewhere = r.name_in(1);
    let ask = r.ask(1, &elsewhere, append(b"1"));
    r.send(link, &ask);
    assert!(r.take(link).is_empty());
    // Sent before the pg came here.
    let mine = r.name_in(1);
    let stale = r.ask(2, &mine, append(b"1"));
    r.place(1, 0);
    r.send(link, &stale);
    assert!(matches!(r.take(link)[..], [Got::Map(..)]));
    let fresh = r.ask(3, &mine, append(b"1"));
    assert_eq!(r.call(link, &fresh).0, 0);
    // Sent before a split.
    let stale = r.ask(4, &mine, append(b"1"));
    r.change_pool(|p| set_pg_num(p, 8));
    r.send(link, &stale);
    assert!(results(&r.take(link)).is_empty());
    // In force because the map says so.
    let stale = r.ask(5, &r.name_in(0), append(b"1"));
    let next = r.epoch() + 1;
    r.change_pool(|p| p.last_force_op_resend = next);
    r.send(link, &stale);
    assert!(results(&r.take(link)).is_empty());
    // The pool is gone.
    let stale = r.ask(6, &r.name_in(0), append(b"1"));
    let (header, front, data) = r.encode(&stale);
    r.change(Incremental {
        old_pools: vec![POOL],
        ..Incremental::default()
    });
    r.send_raw(link, header, &front, &data);
    assert!(results(&r.take(link)).is_empty());
    assert!(r.osds.iter().all(|o| o.usage().is_empty()));
}

fn pgnls(count: u64, from: HObjectRef<'_>) -> ObjectOp {
    ObjectOp::new().pg_list(count, from, 0)
}

#[test]
fn a_listing_names_every_head_once() {
    let mut r = rig();
    let link = r.open(0, 10);
    let mut want = Vec::new();
    for i in 0..60u64 {
        let mut ask = r.ask(i + 1, &format!("o{i}"), append(b"x"));
        if i % 3 == 0 {
            ask.namespace = b"ns".to_vec();
        }
        assert_eq!(r.call(link, &ask).0, 0);
        want.push((ask.namespace.clone(), ask.name.clone()));
    }
    let list = |r: &mut Rig, namespace: &[u8], count| {
        let mut found = Vec::new();
        let mut tid = 1000;
        let mut from = HObject::from(HObjectRef::MIN);
        // Pgs in the order of objects.
        for seed in [0, 2, 1, 3] {
            loop {
                tid += 1;
                let mut ask = r.ask(tid, "", pgnls(count, from.as_ref()));
                ask.namespace = namespace.to_vec();
                ask.flags |= OsdFlags::PGOP;
                ask.pg = Some(seed);
                let (result, bytes) = r.call(link, &ask);
                let listing = PgListing::decode(&bytes).unwrap();
                assert!(listing.objects.len() <= count as usize);
                for o in &listing.objects {
                    found.push((o.namespace.to_vec(), o.name.to_vec()));
                }
                from = listing.next.into();
                if result == 1 {
                    break;
                }
                assert_eq!(result, 0);
            }
        }
        assert!(from.as_ref().max);
        found.sort();
        found
    };
    want.sort();
    assert_eq!(list(&mut r, b"\x01", 7), want);
    let plain = |w: &(Vec<u8>, Vec<u8>)| w.0.is_empty();
    let (no_ns, ns): (Vec<_>, Vec<_>) = want.into_iter().partition(plain);
    assert_eq!(list(&mut r, b"", 1000), no_ns);
    assert_eq!(list(&mut r, b"ns", 1), ns);

    // Outside of the pg.
    let mut ask = r.ask(
        5000,
        "",
        pgnls(5, HObjectRef::head(POOL, b"", b"", b"o", 2)),
    );
    ask.pg = Some(0);
    assert_eq!(r.call(link, &ask).0, -22);
    let mut old = OsdOp::with_pgls(PgLs {
        count: 1000,
        start_epoch: 0,
    });
    old.code = OpCode(0x1501);
    let mut bytes = Vec::new();
    HObjectRef::MIN.encode(&mut bytes);
    old.payload_len = bytes.len() as u32;
    let mut ask = r.ask(5001, "", ObjectOp::from_parts(&[old], Payload::from(bytes)));
    ask.pg = Some(0);
    let (result, bytes) = r.call(link, &ask);
    assert_eq!(result, 1);
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.u8(), Ok(1));
    assert!(HObjectRef::decode(&mut reader).unwrap().max);
    let names = reader.list(8, |r| Ok((r.blob()?, r.blob()?))).unwrap();
    let in_pg = |n: &Vec<u8>| r.pg_of(n) == 0;
    assert_eq!(names.len(), no_ns.iter().filter(|(_, n)| in_pg(n)).count());
    let mut bad = OsdOp::plain(OpCode(0x1507));
    bad.payload_len = 0;
    let mut ask = r.ask(5002, "", ObjectOp::from_parts(&[bad], Payload::default()));
    ask.pg = Some(0);
    assert_eq!(r.call(link, &ask).0, -22);
}

fn kept_log(r: &mut Rig) -> Vec<crate::osd::store::LogEntry> {
    let pg = super::rig::pg(r.pg_of(b"o"));
    r.osds[0].store.pg_state(pg).unwrap().log
}

#[test]
fn what_the_log_keeps_of_a_request_is_little() {
    let mut r = rig();
    let link = r.open(0, 10);
    let content = vec![7; 1 << 20];
    let write = r.ask(1, "o", ObjectOp::new().write_full(Payload::from(content)));
    assert_eq!(r.call(link, &write).0, 0);
    // It reads much, and fails then: the failure is remembered, not what was read.
    let reads = (0..10).fold(ObjectOp::new(), |ops, _| ops.read(0, 1 << 20));
    let read_and_fail = r.ask(2, "o", reads.create(true));
    assert_eq!(r.call(link, &read_and_fail).0, -17);
    assert_eq!(r.call(link, &read_and_fail).0, -17);
    let kept = kept_log(&mut r);
    let bytes = |e: &crate::osd::store::LogEntry| -> usize {
        e.returns.iter().map(|(_, bytes)| 32 + bytes.len()).sum()
    };
    assert_eq!(kept.last().unwrap().result, -17);
    assert!(kept.iter().all(|e| bytes(e) < 1000));

    let many = |n| (0..n).fold(ObjectOp::new(), |ops, _| ops.append(Payload::from(vec![1])));
    let fits = r.ask(3, "o", many(limits::RETURNS));
    let mut over = r.ask(4, "o", many(limits::RETURNS + 1));
    assert_eq!((r.call(link, &fits).0, r.call(link, &over).0), (0, 0));
    over.flags |= OsdFlags::RETURNVEC;
    over.tid = 5;
    assert_eq!(r.call(link, &over).0, -75);
    let fails = r.ask(6, "o", many(limits::RETURNS + 1).create(true));
    for _ in 0..2 {
        assert_eq!(r.call(link, &fails).0, -17);
    }
    let kept = kept_log(&mut r);
    assert!(kept.iter().all(|e| bytes(e) < 64 * limits::RETURNS));
}
