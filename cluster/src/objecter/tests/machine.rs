//! The life of requests under everything that happens to them.

use std::time::Duration;

use super::rig::{Did, Event, FakeMap, HEADER, POOL, Rig, addrs, done, failed, pool_of, write};
use crate::codec::EntityAddrVec;
use crate::objecter::msg::{
    BackoffOp, HObjectRef, Locator, NOSNAP, OpCode, OsdFlags, OsdMapFlags, Redirect,
};
use crate::objecter::{ObjectOp, ObjecterConfig, OpError, Request, SubmitError, Target};

#[test]
fn a_request_goes_to_the_primary_and_comes_back() {
    let mut rig = Rig::new();
    rig.write("obj1", 42);
    let sent = rig.one_sent();
    assert_eq!(sent.session.osd, 1);
    assert_eq!((sent.pool, sent.hash, sent.pgid.pg.seed), (POOL, 1, 1));
    assert_eq!((sent.epoch, sent.retry, sent.snap_id), (10, 0, NOSNAP));
    assert_eq!(sent.snaps, [7, 4]);
    assert_eq!(sent.data, b"data of 42");
    assert_eq!(sent.code(), OpCode::WRITE);
    // What librados 18 and 20 set on a write.
    assert_eq!(sent.flags, OsdFlags(0x840_0024));
    assert_eq!(HEADER, 38);
    rig.answer(&sent, 0, &[]);
    assert_eq!(rig.take_events(), [done(42)]);
    assert_eq!(rig.obj.in_flight(), 0);
    // A second copy of the reply is nobody's.
    rig.answer(&sent, 0, &[]);
    assert_eq!(rig.take_events(), []);
    assert_eq!(rig.obj.stats().stray_replies, 1);
}

#[test]
fn results_are_told_per_operation() {
    let mut rig = Rig::new();
    let ops = ObjectOp::new().stat().read(0, 4);
    rig.submit(Request::read(Target::object(POOL, "o0"), ops, 1).at_snap(9));
    let sent = rig.one_sent();
    assert_eq!((sent.snap_id, sent.snaps.len()), (9, 0));
    assert_eq!(sent.flags, OsdFlags(0x840_0014));
    rig.answer(&sent, 0, &[b"0123456789abcdef", b"abcd"]);
    let data = vec![b"0123456789abcdef".to_vec(), b"abcd".to_vec()];
    assert_eq!(rig.take_events(), [Event::Done(1, Ok(()), data)]);
}

#[test]
fn an_error_of_the_osd_is_told() {
    let mut rig = Rig::new();
    rig.read("o0", 1);
    let sent = rig.one_sent();
    rig.answer(&sent, -2, &[]);
    rig.read("o0", 2);
    let sent = rig.one_sent();
    rig.answer(&sent, -108, &[]);
    let events = rig.take_events();
    assert!(matches!(
        events[0],
        Event::Done(1, Err(OpError::Errno(2)), _)
    ));
    assert!(matches!(
        events[1],
        Event::Done(2, Err(OpError::Blocklisted), _)
    ));
}

#[test]
fn requests_wait_for_the_first_map() {
    let mut rig = Rig::new();
    rig.obj = crate::objecter::Objecter::new(ObjecterConfig::default());
    rig.read("o1", 1);
    rig.read("o2", 2);
    assert!(rig.sent.is_empty());
    assert!(rig.take_did().contains(&Did::WantMap {
        have: 0,
        continuous: false
    }));
    rig.publish();
    let osds: Vec<i32> = rig.take_sent().iter().map(|s| s.session.osd).collect();
    assert_eq!(osds, [1, 2]);
}

#[test]
fn a_new_primary_gets_what_the_old_one_had() {
    let mut rig = Rig::new();
    rig.write("a1", 1);
    rig.write("b1", 2);
    rig.read("c0", 3);
    let old = rig.take_sent();
    rig.change(|m| m.pool_mut().pgs[1] = vec![2, 0, 1]);
    let sent = rig.take_sent();
    let names: Vec<&str> = sent.iter().map(|s| &s.name[..]).collect();
    assert_eq!(names, ["a1", "b1"]);
    for (s, o) in sent.iter().zip(&old) {
        assert_eq!((s.session.osd, s.epoch, s.retry), (2, 11, 1));
        assert_eq!(s.tid, o.tid);
        assert!(s.flags.has(OsdFlags::RETRY));
    }
    // The old primary's answer is too late.
    rig.answer(&old[0], 0, &[]);
    assert_eq!(rig.take_events(), []);
    rig.answer(&sent[1], 0, &[]);
    rig.answer(&sent[0], 0, &[]);
    assert_eq!(rig.take_events(), [done(2), done(1)]);
}

#[test]
fn a_change_of_replicas_alone_resends_nothing() {
    let mut rig = Rig::new();
    rig.write("a1", 1);
    rig.take_sent();
    rig.change(|m| m.pool_mut().pgs[1] = vec![1, 0, 2]);
    assert!(rig.sent.is_empty());
    // Nor does a change elsewhere.
    rig.change(|m| m.pool_mut().pgs[0] = vec![2, 1, 0]);
    assert!(rig.sent.is_empty());
}

#[test]
fn a_split_resends_what_is_in_the_pg_and_renames_it() {
    let mut rig = Rig::new();
    rig.write("a1", 1);
    rig.write("b5", 2);
    rig.write("c2", 3);
    let sent = rig.take_sent();
    assert_eq!(sent[1].pgid.pg.seed, 1);
    // From four to six pgs: pgs 0 and 1 split, the others do not.
    rig.change(|m| {
        let mut pgs = m.pool_mut().pgs.clone();
        pgs.push(pgs[0].clone());
        pgs.push(pgs[1].clone());
        *m.pool_mut() = pool_of(pgs);
    });
    let sent = rig.take_sent();
    let what: Vec<(&str, u32)> = sent.iter().map(|s| (&s.name[..], s.pgid.pg.seed)).collect();
    assert_eq!(what, [("a1", 1), ("b5", 5)]);
    // And back.
    rig.change(|m| {
        let pgs = m.pool_mut().pgs[..4].to_vec();
        *m.pool_mut() = pool_of(pgs);
    });
    let sent = rig.take_sent();
    let what: Vec<(&str, u32)> = sent.iter().map(|s| (&s.name[..], s.pgid.pg.seed)).collect();
    assert_eq!(what, [("a1", 1), ("b5", 1)]);
    assert_eq!(sent[0].retry, 2);
}

#[test]
fn a_pool_may_demand_that_everything_is_sent_again() {
    let mut rig = Rig::new();
    rig.write("a1", 1);
    rig.take_sent();
    rig.change(|m| m.pool_mut().view.last_force_op_resend = m.epoch);
    assert_eq!(rig.one_sent().retry, 1);
    rig.change(|_| {});
    assert!(rig.sent.is_empty());
}

#[test]
fn left_out_epochs_resend_everything_in_order() {
    let mut rig = Rig::new();
    for token in 1..=6 {
        rig.write(&format!("o{}", token % 3), token);
    }
    rig.take_sent();
    rig.map.epoch += 2;
    rig.publish();
    let mut sent = rig.take_sent();
    assert_eq!(sent.len(), 6);
    for osd in 0..3 {
        let tids: Vec<u64> = sent
            .iter()
            .filter(|s| s.session.osd == osd)
            .map(|s| s.tid)
            .collect();
        assert!(tids.is_sorted() && tids.len() == 2);
    }
    sent.sort_by_key(|s| s.tid);
    for s in &sent {
        rig.answer(s, 0, &[]);
    }
    assert_eq!(rig.take_events(), (1..=6).map(done).collect::<Vec<_>>());
}

#[test]
fn pauses_hold_back_what_they_name() {
    let mut rig = Rig::new();
    rig.change(|m| m.flags |= OsdMapFlags::PAUSEWR);
    rig.take_did();
    rig.write("o1", 1);
    rig.read("o1", 2);
    assert_eq!(rig.one_sent().code(), OpCode::READ);
    assert!(rig.take_did().contains(&Did::WantMap {
        have: 11,
        continuous: true
    }));
    rig.change(|m| m.flags = OsdMapFlags::SORTBITWISE | OsdMapFlags::PAUSERD);
    assert_eq!(rig.one_sent().code(), OpCode::WRITE);
    rig.read("o1", 3);
    assert!(rig.sent.is_empty());
    rig.change(|m| m.flags = OsdMapFlags::SORTBITWISE);
    // The read that was under way when the pause began as well: it may have been dropped.
    assert_eq!(rig.take_sent().len(), 2);
}

#[test]
fn writes_wait_for_room_and_are_repeated_when_there_is() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    rig.take_sent();
    rig.change(|m| m.pool_mut().view.full = true);
    rig.write("o1", 2);
    rig.submit(write("o1", 3).with_flags(OsdFlags::FULL_TRY));
    rig.read("o1", 4);
    let codes: Vec<OpCode> = rig.take_sent().iter().map(|s| s.code()).collect();
    assert_eq!(codes, [OpCode::WRITE, OpCode::READ]);
    rig.change(|m| m.pool_mut().view.full = false);
    let sent = rig.take_sent();
    let retries: Vec<(u8, i32)> = sent
        .iter()
        .map(|s| (*s.data.last().unwrap(), s.retry))
        .collect();
    assert_eq!(retries, [(b'1', 1), (b'2', 0)]);
}

#[test]
fn a_pool_that_was_deleted_fails_its_requests() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    rig.change(|m| {
        m.pools.clear();
    });
    assert_eq!(rig.take_events(), [failed(1, OpError::PoolGone)]);
    assert_eq!(rig.obj.in_flight(), 0);
}

#[test]
fn a_pool_that_is_not_there_yet_is_asked_for() {
    let mut rig = Rig::new();
    let other = |token| Request::read(Target::object(9, "o1"), ObjectOp::new().stat(), token);
    rig.submit(other(1));
    rig.submit(other(2));
    let asked = |did: Vec<Did>| -> Vec<u64> {
        did.into_iter()
            .filter_map(|d| match d {
                Did::WantLatestEpoch(t) => Some(t),
                _ => None,
            })
            .collect()
    };
    let first = asked(rig.take_did());
    assert_eq!(first.len(), 1);
    // The newest epoch is one we do not have: the pool may be in there.
    rig.obj.latest_map(first[0], 11, rig.now, &mut rig.sink);
    rig.pump();
    let second = asked(rig.take_did());
    assert_eq!(second.len(), 1);
    rig.obj.latest_map(second[0], 12, rig.now, &mut rig.sink);
    rig.pump();
    assert_eq!(rig.take_events(), []);
    rig.change(|_| {});
    assert_eq!(rig.take_events(), [failed(1, OpError::PoolGone)]);
    rig.change(|m| {
        m.pools.insert(9, pool_of(vec![vec![0, 1, 2]; 4]));
    });
    let sent = rig.one_sent();
    assert_eq!(sent.pool, 9);
    rig.answer(&sent, 0, &[]);
    assert_eq!(rig.take_events(), [done(2)]);
}

#[test]
fn a_pool_may_fail_everything() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    rig.change(|m| m.pool_mut().view.eio = true);
    assert_eq!(rig.take_events(), [failed(1, OpError::PoolEio)]);
    let refused = rig.obj.submit(write("o1", 2), rig.now);
    assert!(matches!(refused, Err(SubmitError::PoolEio)));
    assert_eq!(rig.obj.in_flight(), 0);
}

#[test]
fn without_a_primary_a_request_waits() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    let old = rig.one_sent();
    rig.take_did();
    rig.change(|m| m.up.clear());
    assert!(rig.sent.is_empty());
    let did = rig.take_did();
    assert!(did.contains(&Did::Close(old.session)));
    assert!(did.iter().any(|d| matches!(d, Did::WantMap { .. })));
    // The map goes on being asked for.
    rig.sleep(5);
    assert!(
        rig.take_did()
            .iter()
            .any(|d| matches!(d, Did::WantMap { .. }))
    );
    rig.change(|m| {
        m.up.insert(0, addrs(0, 2));
    });
    let sent = rig.one_sent();
    assert_eq!(sent.session.osd, 0);
    rig.answer(&sent, 0, &[]);
    assert_eq!(rig.take_events(), [done(1)]);
}

#[test]
fn an_osd_that_moved_gets_a_new_session() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    let old = rig.one_sent();
    rig.take_did();
    rig.change(|m| {
        m.up.insert(1, addrs(1, 2));
    });
    let sent = rig.one_sent();
    assert_eq!(sent.session.osd, 1);
    assert_ne!(sent.session, old.session);
    let did = rig.take_did();
    assert!(did.contains(&Did::Close(old.session)));
    assert!(did.contains(&Did::Open(sent.session, addrs(1, 2))));
}

#[test]
fn a_lost_connection_is_made_again_and_everything_repeated() {
    let mut rig = Rig::new();
    for token in 1..=4 {
        rig.write("o1", token);
    }
    let first = rig.take_sent();
    rig.answer(&first[2], 0, &[]);
    rig.lose(first[0].session);
    let again = rig.take_sent();
    let tids: Vec<u64> = again.iter().map(|s| s.tid).collect();
    assert_eq!(tids, [first[0].tid, first[1].tid, first[3].tid]);
    assert!(again.iter().all(|s| s.retry == 1));
    // What the old connection still says does not count.
    rig.answer(&first[0], 0, &[]);
    rig.lose(first[0].session);
    assert!(rig.sent.is_empty());
    // Nor does an answer to the first attempt on the new one.
    let late = super::rig::Sent {
        session: again[0].session,
        ..first[0].clone()
    };
    rig.answer(&late, 0, &[]);
    assert_eq!(rig.take_events(), [done(3)]);
    rig.answer(&again[0], 0, &[]);
    assert_eq!(rig.take_events(), [done(1)]);
}

#[test]
fn an_osd_that_cannot_be_reached_is_tried_less_and_less() {
    let mut rig = Rig::new();
    rig.auto_open = false;
    rig.write("o1", 1);
    let opened = |rig: &mut Rig| -> Vec<crate::objecter::SessionId> {
        rig.take_did()
            .into_iter()
            .filter_map(|d| match d {
                Did::Open(s, _) => Some(s),
                _ => None,
            })
            .collect()
    };
    let mut session = opened(&mut rig)[0];
    rig.lose(session);
    session = opened(&mut rig)[0];
    let mut waits = Vec::new();
    for _ in 0..9 {
        rig.lose(session);
        assert_eq!(opened(&mut rig), []);
        let start = rig.now.mono;
        loop {
            let next = rig.obj.next_deadline().unwrap();
            assert!(next > rig.now.mono);
            rig.now.mono = next;
            rig.obj.tick(rig.now, &mut rig.sink);
            rig.pump();
            if let [s] = opened(&mut rig)[..] {
                session = s;
                break;
            }
        }
        waits.push((rig.now.mono - start) / 1_000_000);
    }
    assert_eq!(
        waits,
        [200, 400, 800, 1600, 3200, 6400, 12800, 15000, 15000]
    );
}

#[test]
fn backoffs_hold_back_their_objects_and_end_with_their_session() {
    let mut rig = Rig::new();
    rig.write("a1", 1);
    let first = rig.one_sent();
    let (session, pgid) = (first.session, first.pgid);
    let at = |name: &'static [u8]| HObjectRef::head(POOL, b"", b"", name, 1);
    rig.backoff(session, BackoffOp::Block, pgid, 77, at(b"a1"), at(b"c1"));
    assert!(rig.take_did().contains(&Did::BackoffAck(77)));
    rig.write("b1", 2);
    rig.write("c1", 3);
    assert_eq!(rig.one_sent().name, "c1");
    // An unblock that nobody knows does nothing.
    rig.backoff(session, BackoffOp::Unblock, pgid, 78, at(b"a1"), at(b"c1"));
    assert!(rig.sent.is_empty());
    rig.backoff(session, BackoffOp::Unblock, pgid, 77, at(b"a1"), at(b"c1"));
    let sent = rig.take_sent();
    let what: Vec<(&str, i32)> = sent.iter().map(|s| (&s.name[..], s.retry)).collect();
    assert_eq!(what, [("a1", 1), ("b1", 0)]);

    rig.backoff(
        session,
        BackoffOp::Block,
        pgid,
        79,
        at(b"a1"),
        HObjectRef::MAX,
    );
    rig.write("b1", 4);
    assert!(rig.sent.is_empty());
    rig.lose(session);
    let names: Vec<String> = rig.take_sent().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["a1", "b1", "c1", "b1"]);
}

#[test]
fn an_osd_that_dies_while_it_holds_requests_back_is_noticed() {
    let mut rig = Rig::new();
    rig.read("a1", 1);
    let first = rig.one_sent();
    let (session, pgid) = (first.session, first.pgid);
    let all = |name: &'static [u8]| HObjectRef::head(POOL, b"", b"", name, 1);
    rig.backoff(session, BackoffOp::Block, pgid, 1, all(b"a1"), all(b"z1"));
    rig.answer(&first, 0, &[]);
    // Never sent, and nothing else is under way.
    rig.write("b1", 2);
    assert!(rig.sent.is_empty());
    rig.take_did();
    rig.sleep(5);
    rig.sleep(6);
    let did = rig.take_did();
    assert!(did.contains(&Did::Ping(session)));
    assert!(did.iter().any(|d| matches!(d, Did::WantMap { .. })));
}

#[test]
fn redirects_are_followed() {
    let mut rig = Rig::new();
    rig.change(|m| {
        m.pools.insert(5, pool_of(vec![vec![0, 1, 2]; 4]));
    });
    rig.write("o1", 1);
    let first = rig.one_sent();
    let locator = Locator {
        pool: 5,
        key: b"",
        namespace: b"ns",
        hash: -1,
    };
    let redirect = Redirect {
        locator,
        object: b"p2",
    };
    let (front, data) = first.answer(0, &[], Some(redirect));
    rig.deliver_reply(&first, &front, &data);
    let sent = rig.one_sent();
    assert_eq!(
        (&sent.name[..], &sent.namespace[..], sent.pool),
        ("p2", "ns", 5)
    );
    assert!(sent.flags.has(OsdFlags::REDIRECTED));
    assert_ne!(sent.tid, first.tid);
    rig.answer(&sent, 0, &[]);
    assert_eq!(rig.take_events(), [done(1)]);
}

#[test]
fn a_bounced_replica_read_goes_to_the_primary() {
    let mut rig = Rig::new();
    let ops = || ObjectOp::new().read(0, 16);
    let near =
        Request::read(Target::object(POOL, "o1"), ops(), 1).with_flags(OsdFlags::LOCALIZE_READS);
    rig.submit(near);
    let first = rig.one_sent();
    // The map has osd.2 nearest.
    assert_eq!(first.session.osd, 2);
    rig.answer(&first, -11, &[]);
    let second = rig.one_sent();
    assert_eq!((second.session.osd, second.retry), (1, 1));
    assert!(!second.flags.has(OsdFlags::LOCALIZE_READS));
    // The replica's answer to the first id is nobody's.
    rig.answer(&first, 0, &[]);
    rig.answer(&second, 0, &[b"x"]);
    assert_eq!(
        rig.take_events(),
        [Event::Done(1, Ok(()), vec![b"x".to_vec()])]
    );

    let mut osds = [0; 3];
    for token in 0..60 {
        let balanced = Request::read(Target::object(POOL, "o1"), ops(), token)
            .with_flags(OsdFlags::BALANCE_READS);
        rig.submit(balanced);
        let sent = rig.one_sent();
        osds[sent.session.osd as usize] += 1;
        rig.answer(&sent, 0, &[]);
    }
    assert!(osds.iter().all(|&n| n > 5), "{osds:?}");
}

#[test]
fn replica_reads_notice_a_change_of_replicas() {
    let mut rig = Rig::new();
    let near = Request::read(Target::object(POOL, "o1"), ObjectOp::new().read(0, 16), 1)
        .with_flags(OsdFlags::LOCALIZE_READS);
    rig.submit(near);
    rig.take_sent();
    rig.change(|m| m.pool_mut().pgs[1] = vec![1, 0]);
    assert_eq!(rig.one_sent().session.osd, 1);
}

#[test]
fn timeouts_end_requests_and_late_answers_are_ignored() {
    let config = ObjecterConfig {
        op_timeout: Some(Duration::from_secs(60)),
        ..ObjecterConfig::default()
    };
    let mut rig = Rig::with(config);
    rig.read("o1", 1);
    rig.submit(write("o1", 2).with_timeout(Duration::from_secs(7)));
    let sent = rig.take_sent();
    rig.sleep(6);
    assert_eq!(rig.take_events(), []);
    rig.sleep(1);
    assert_eq!(rig.take_events(), [failed(2, OpError::TimedOut)]);
    rig.answer(&sent[1], 0, &[]);
    rig.sleep(53);
    assert_eq!(rig.take_events(), [failed(1, OpError::TimedOut)]);
    // The slot's next user is not taken for the former one.
    rig.read("o1", 3);
    rig.answer(&sent[0], 0, &[]);
    assert_eq!(rig.take_events(), []);
}

#[test]
fn a_request_can_be_cancelled_once() {
    let mut rig = Rig::new();
    let id = rig.write("o1", 1);
    assert!(rig.obj.cancel(id, &mut rig.sink));
    assert!(!rig.obj.cancel(id, &mut rig.sink));
    assert_eq!(rig.take_events(), [failed(1, OpError::Cancelled)]);
    let sent = rig.one_sent();
    rig.answer(&sent, 0, &[]);
    assert_eq!(rig.take_events(), []);
    rig.write("o1", 2);
    rig.read("o2", 3);
    rig.obj.cancel_all(OpError::Cancelled, &mut rig.sink);
    let all = [failed(2, OpError::Cancelled), failed(3, OpError::Cancelled)];
    assert_eq!(rig.take_events(), all);
    assert_eq!(rig.obj.ops.len(), 0);
}

#[test]
fn the_number_of_requests_and_their_bytes_are_bounded() {
    let config = ObjecterConfig {
        max_ops: 2,
        max_bytes: 1000,
        ..ObjecterConfig::default()
    };
    let mut rig = Rig::with(config);
    let read = |bytes, token| {
        let ops = ObjectOp::new().read(0, bytes);
        Request::read(Target::object(POOL, "o1"), ops, token)
    };
    // One is taken whatever its size.
    rig.submit(read(5000, 1));
    assert!(!rig.obj.has_room(1));
    match rig.obj.submit(read(10, 2), rig.now) {
        Err(SubmitError::Busy(back)) => assert_eq!(back.token, 2),
        other => panic!("{other:?}"),
    }
    let sent = rig.one_sent();
    rig.answer(&sent, 0, &[]);
    rig.submit(read(10, 3));
    rig.submit(read(10, 4));
    let third = rig.obj.submit(read(10, 5), rig.now);
    assert!(matches!(third, Err(SubmitError::Busy(_))));
    assert!(matches!(
        rig.obj.submit(
            Request::read(Target::object(POOL, "o1"), ObjectOp::new(), 6),
            rig.now
        ),
        Err(SubmitError::Empty)
    ));
}

#[test]
fn a_fenced_client_fails_everything_and_says_so_once() {
    let mut rig = Rig::new();
    let me: EntityAddrVec = addrs(100, 4711);
    rig.obj.set_addrs(me.clone());
    rig.write("o1", 1);
    rig.change(|m| m.blocklist.push(me.clone()));
    assert_eq!(rig.take_events(), [failed(1, OpError::Blocklisted)]);
    assert!(rig.obj.is_blocklisted());
    rig.change(|_| {});
    let told = rig
        .take_did()
        .iter()
        .filter(|d| **d == Did::Blocklisted)
        .count();
    assert_eq!(told, 1);
    let refused = rig.obj.submit(write("o1", 2), rig.now);
    assert!(matches!(refused, Err(SubmitError::Blocklisted)));
    rig.change(|m| m.blocklist.clear());
    rig.take_sent();
    rig.write("o1", 3);
    assert_eq!(rig.take_sent().len(), 1);
}

#[test]
fn slow_requests_make_it_probe_and_idle_sessions_are_closed() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    let sent = rig.one_sent();
    rig.take_did();
    rig.sleep(5);
    assert_eq!(rig.take_did(), []);
    rig.sleep(6);
    let did = rig.take_did();
    assert!(did.contains(&Did::Ping(sent.session)));
    assert!(did.iter().any(|d| matches!(d, Did::WantMap { .. })));
    rig.answer(&sent, 0, &[]);
    rig.sleep(5);
    assert_eq!(rig.take_did(), []);
    rig.sleep(900);
    assert_eq!(rig.take_did(), [Did::Close(sent.session)]);
    assert_eq!(rig.obj.next_deadline(), None);
    rig.write("o1", 2);
    assert_ne!(rig.one_sent().session, sent.session);
}

#[test]
fn an_idle_session_that_breaks_is_not_made_again() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    let sent = rig.one_sent();
    rig.answer(&sent, 0, &[]);
    rig.take_did();
    rig.lose(sent.session);
    assert!(!rig.take_did().iter().any(|d| matches!(d, Did::Open(..))));
}

#[test]
fn removed_snapshots_leave_the_contexts_of_waiting_writes() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    rig.take_sent();
    rig.change(|m| {
        m.removed_snaps = vec![4];
        m.pool_mut().pgs[1] = vec![0, 1];
    });
    assert_eq!(rig.one_sent().snaps, [7]);
}

#[test]
fn a_pg_is_listed_by_its_seed() {
    let mut rig = Rig::new();
    rig.submit(Request::pg_list(
        Target::pg(POOL, 2),
        100,
        HObjectRef::MIN,
        1,
    ));
    let sent = rig.one_sent();
    assert_eq!((sent.session.osd, sent.hash, &sent.name[..]), (2, 2, ""));
    // As librados sends it: see the captures.
    assert_eq!(sent.flags, OsdFlags(0x842_0014));
    assert_eq!(sent.ops[0].pgls().count, 100);
    assert_eq!(sent.data.len(), 39);
}

#[test]
fn cache_tiers_serve_in_their_pools_place() {
    let mut rig = Rig::new();
    rig.change(|m| {
        m.pools.insert(5, pool_of(vec![vec![0, 1, 2]; 4]));
        m.pool_mut().view.write_tier = Some(5);
    });
    rig.write("o1", 1);
    rig.read("o1", 2);
    let pools: Vec<i64> = rig.take_sent().iter().map(|s| s.pool).collect();
    assert_eq!(pools, [5, POOL]);
}

#[test]
fn malformed_messages_are_errors_and_change_nothing() {
    let mut rig = Rig::new();
    rig.write("o1", 1);
    let sent = rig.one_sent();
    let (front, _) = sent.answer(0, &[b"claims data"], None);
    for (kind, front) in [(43, &front[..]), (43, &front[..9]), (61, b"x"), (44, b"yy")] {
        let m = crate::objecter::Incoming {
            kind,
            version: 8,
            tid: sent.tid,
            front,
            data: &[],
        };
        let error = rig.obj.message(sent.session, &m, rig.now, &mut rig.sink);
        assert!(error.is_err(), "{kind}");
    }
    assert_eq!(rig.take_events(), []);
    rig.answer(&sent, 0, &[]);
    assert_eq!(rig.take_events(), [done(1)]);
}

#[test]
fn ids_grow_from_the_given_base() {
    let config = ObjecterConfig {
        first_tid: 1 << 32,
        ..ObjecterConfig::default()
    };
    let mut rig = Rig::with(config);
    let mut last = 1 << 32;
    for token in 0..100 {
        let id = rig.read("o1", token);
        assert!(id.0 > last);
        last = id.0;
        let sent = rig.one_sent();
        rig.answer(&sent, 0, &[]);
    }
    assert_eq!(FakeMap::new().primary("o1"), 1);
}

#[test]
fn an_osd_without_an_address_gets_its_requests_once_it_has_one() {
    let mut rig = Rig::new();
    rig.change(|m| m.hidden = vec![1]);
    rig.write("o1", 1);
    assert!(rig.sent.is_empty());
    rig.change(|m| m.hidden.clear());
    assert_eq!(rig.one_sent().session.osd, 1);
}
