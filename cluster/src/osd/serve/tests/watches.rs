use super::rig::{Got, Rig, SECOND, client_addr};
use crate::codec::{AddrType, EntityAddr, UTime};
use crate::objecter::ObjectOp;
use crate::objecter::msg::WatchOp;
use crate::objecter::results::NotifyReplies;
use crate::osd::limits;
use crate::osd::outbox::Link;
use crate::osd::store::Store;
use crate::osdmap::Incremental;

const COOKIE: u64 = 77;

fn watch(r: &mut Rig, link: Link, tid: u64, how: WatchOp) -> i32 {
    let op = ObjectOp::new().watch(how, COOKIE, 0, 30);
    let ask = r.ask(tid, "o", op);
    r.call(link, &ask).0
}

fn rig() -> Rig {
    let mut r = Rig::new(1, |_| 0);
    let link = r.open(0, 99);
    let create = r.ask(1, "o", ObjectOp::new().create(false));
    assert_eq!(r.call(link, &create).0, 0);
    r
}

fn notify(r: &mut Rig, link: Link, tid: u64) -> u64 {
    let ask = r.ask(tid, "o", ObjectOp::new().notify(5, 10, b"news"));
    let (result, out) = r.call_keeping(link, &ask);
    assert_eq!(result, 0);
    u64::from_le_bytes(out.try_into().unwrap())
}

/// Opcode, cookie, return code and data of the notices a client got.
fn notices(got: Vec<Got>) -> Vec<(u8, u64, i32, Vec<u8>)> {
    got.into_iter()
        .filter_map(|g| match g {
            Got::Notify {
                opcode,
                cookie,
                code,
                data,
                ..
            } => Some((opcode, cookie, code, data)),
            _ => None,
        })
        .collect()
}

/// How many watchers the object remembers.
fn watchers(r: &mut Rig) -> usize {
    let head = r.head("o");
    let info = r.osds[0].store.info(super::rig::pg(0), &head).unwrap();
    info.map_or(0, |i| i.watchers.len())
}

#[test]
fn a_notify_goes_round() {
    let mut r = rig();
    let (watcher, notifier) = (r.open(0, 10), r.open(0, 11));
    assert_eq!(watch(&mut r, watcher, 1, WatchOp::Watch), 0);
    let id = notify(&mut r, notifier, 1);
    assert_eq!(id >> 32, u64::from(r.epoch()));
    let got = r.take(watcher);
    let [
        Got::Notify {
            opcode: 1,
            cookie: COOKIE,
            id: told,
            payload,
            ..
        },
    ] = &got[..]
    else {
        panic!("{got:?}");
    };
    assert_eq!((*told, &payload[..]), (id, &b"news"[..]));
    let ack = r.ask(2, "o", ObjectOp::new().notify_ack(id, COOKIE, b"ok"));
    assert_eq!(r.call(watcher, &ack).0, 0);
    let all = notices(r.take(notifier));
    assert_eq!((all.len(), all[0].0, all[0].1, all[0].2), (1, 2, 5, 0));
    let replies = NotifyReplies::decode(&all[0].3).unwrap();
    assert_eq!(
        (replies.replies[0].watcher, replies.replies[0].reply),
        (10, &b"ok"[..])
    );
    assert!(replies.missing.is_empty());
}

#[test]
fn a_notify_that_nobody_hears_is_over_at_once() {
    let mut r = rig();
    let notifier = r.open(0, 11);
    let ask = r.ask(1, "o", ObjectOp::new().notify(5, 10, b"news"));
    r.send(notifier, &ask);
    let got = r.take(notifier);
    // As in Ceph, the end comes before the answer.
    assert!(matches!(
        got[..],
        [Got::Notify { opcode: 2, .. }, Got::Reply { result: 0, .. }]
    ));
}

#[test]
fn a_notify_times_out() {
    let mut r = rig();
    let (watcher, notifier) = (r.open(0, 10), r.open(0, 11));
    watch(&mut r, watcher, 1, WatchOp::Watch);
    notify(&mut r, notifier, 1);
    r.advance(9 * SECOND);
    assert!(notices(r.take(notifier)).is_empty());
    r.advance(2 * SECOND);
    let all = notices(r.take(notifier));
    assert_eq!(all[0].2, -110);
    assert_eq!(
        NotifyReplies::decode(&all[0].3).unwrap().missing,
        [(10, COOKIE)]
    );
}

#[test]
fn a_watch_lives_by_its_pings() {
    let mut r = rig();
    let watcher = r.open(0, 10);
    assert_eq!(watch(&mut r, watcher, 1, WatchOp::Ping), -107);
    assert_eq!(watch(&mut r, watcher, 2, WatchOp::Watch), 0);
    for tid in 3..8 {
        r.advance(20 * SECOND);
        assert_eq!(watch(&mut r, watcher, tid, WatchOp::Ping), 0);
    }
    assert_eq!(watchers(&mut r), 1);
    r.advance(31 * SECOND);
    assert_eq!(watchers(&mut r), 0);
    assert_eq!(notices(r.take(watcher)), [(3, COOKIE, 0, vec![])]);
    assert_eq!(watch(&mut r, watcher, 9, WatchOp::Ping), -107);
}

#[test]
fn a_client_that_comes_back_in_time_keeps_its_watch() {
    let mut r = rig();
    let (watcher, notifier) = (r.open(0, 10), r.open(0, 11));
    watch(&mut r, watcher, 1, WatchOp::Watch);
    r.close(watcher);
    notify(&mut r, notifier, 1);
    let back = r.open(0, 10);
    // It is not connected yet.
    assert_eq!(watch(&mut r, back, 2, WatchOp::Ping), -110);
    let again = r.ask(
        3,
        "o",
        ObjectOp::new().watch(WatchOp::Reconnect, COOKIE, 0, 30),
    );
    r.send(back, &again);
    assert_eq!(notices(r.take(back)).len(), 1);
    assert_eq!(watch(&mut r, back, 4, WatchOp::Ping), 0);
    r.close(back);
    r.advance(31 * SECOND);
    assert_eq!(watchers(&mut r), 0);
}

#[test]
fn an_unwatch_ends_notifies_that_waited_for_it() {
    let mut r = rig();
    let (watcher, notifier) = (r.open(0, 10), r.open(0, 11));
    watch(&mut r, watcher, 1, WatchOp::Watch);
    notify(&mut r, notifier, 1);
    r.take(watcher);
    assert_eq!(watch(&mut r, watcher, 2, WatchOp::Unwatch), 0);
    let all = notices(r.take(notifier));
    assert_eq!((all[0].0, all[0].2), (2, 0));
    assert_eq!(watchers(&mut r), 0);
    r.advance(60 * SECOND);
    assert!(notices(r.take(watcher)).is_empty());
}

#[test]
fn a_deletion_disconnects() {
    let mut r = rig();
    let (watcher, other) = (r.open(0, 10), r.open(0, 11));
    watch(&mut r, watcher, 1, WatchOp::Watch);
    let delete = r.ask(1, "o", ObjectOp::new().delete());
    assert_eq!(r.call(other, &delete).0, 0);
    assert_eq!(notices(r.take(watcher)), [(3, COOKIE, 0, vec![])]);
}

#[test]
fn nothing_takes_effect_before_it_is_durable() {
    let mut r = rig();
    let (watcher, notifier) = (r.open(0, 10), r.open(0, 11));
    r.slow();
    let base = r.durable(0);
    let ask = r.ask(1, "o", ObjectOp::new().watch(WatchOp::Watch, COOKIE, 0, 30));
    r.send(watcher, &ask);
    let ask = r.ask(1, "o", ObjectOp::new().notify(5, 10, b"news"));
    r.send(notifier, &ask);
    assert!(r.take(watcher).is_empty() && r.take(notifier).is_empty());
    r.commit(0, base + 1);
    let got = r.take(watcher);
    assert!(matches!(
        got[..],
        [Got::Reply { .. }, Got::Notify { opcode: 1, .. }]
    ));
    assert!(matches!(r.take(notifier)[..], [Got::Reply { .. }]));
    // The same of a watch that runs out.
    r.advance(31 * SECOND);
    assert_eq!(watchers(&mut r), 0);
    assert!(notices(r.take(watcher)).is_empty());
    r.commit(0, base + 2);
    assert_eq!(notices(r.take(watcher)), [(3, COOKIE, 0, vec![])]);
}

#[test]
fn blocklisted_watchers_are_dropped() {
    let mut r = rig();
    let watcher = r.open(0, 10);
    watch(&mut r, watcher, 1, WatchOp::Watch);
    let entry = EntityAddr {
        kind: AddrType::ANY,
        ..client_addr(10).0[0]
    };
    let forever = UTime {
        sec: u32::MAX,
        nsec: 0,
    };
    r.change(Incremental {
        new_blocklist: vec![(entry, forever)],
        ..Incremental::default()
    });
    assert_eq!(watchers(&mut r), 0);
    assert_eq!(notices(r.take(watcher)), [(3, COOKIE, 0, vec![])]);
}

#[test]
fn watches_move_with_their_pg_and_wait_for_their_owner() {
    let mut r = rig();
    let (watcher, gone) = (r.open(0, 10), r.open(0, 12));
    watch(&mut r, watcher, 1, WatchOp::Watch);
    watch(&mut r, gone, 1, WatchOp::Watch);
    assert_eq!(watchers(&mut r), 2);
    r.place(0, 1);
    let moved = r.open(1, 10);
    r.advance(20 * SECOND);
    assert_eq!(watch(&mut r, moved, 2, WatchOp::Ping), -110);
    assert_eq!(watch(&mut r, moved, 3, WatchOp::Reconnect), 0);
    // The other one did not come back.
    r.advance(11 * SECOND);
    assert_eq!(watch(&mut r, moved, 4, WatchOp::Ping), 0);
    r.place(0, 0);
    assert_eq!(watchers(&mut r), 1);
}

#[test]
fn watches_of_a_connection_have_a_limit() {
    let mut r = rig();
    let watcher = r.open(0, 10);
    let per = limits::OBJECT_WATCHES as u64;
    let objects = (limits::LINK_WATCHES / limits::OBJECT_WATCHES) as u64;
    let name = |n: u64| format!("w{n}");
    let all =
        |op: WatchOp| (0..per).fold(ObjectOp::new(), |ops, cookie| ops.watch(op, cookie, 0, 30));
    let mut tid = 1;
    let mut call = |r: &mut Rig, name: &str, op: ObjectOp| {
        tid += 1;
        let ask = r.ask(tid, name, op);
        r.call(watcher, &ask).0
    };
    for n in 0..objects {
        assert_eq!(call(&mut r, &name(n), ObjectOp::new().create(true)), 0);
        assert_eq!(call(&mut r, &name(n), all(WatchOp::Watch)), 0);
    }
    let one = |op: WatchOp| ObjectOp::new().watch(op, 5, 0, 30);
    assert_eq!(call(&mut r, "o", one(WatchOp::Watch)), -87);
    // What it has goes on.
    assert_eq!(call(&mut r, "w0", one(WatchOp::Ping)), 0);
    assert_eq!(call(&mut r, "w0", one(WatchOp::Reconnect)), 0);
    // Another's do not count.
    let other = r.open(0, 11);
    assert_eq!(watch(&mut r, other, 1, WatchOp::Watch), 0);
    assert_eq!(call(&mut r, "w0", one(WatchOp::Unwatch)), 0);
    assert_eq!(call(&mut r, "o", one(WatchOp::Watch)), 0);
}

#[test]
fn notifications_under_way_have_a_limit() {
    let mut r = rig();
    let (watcher, notifier) = (r.open(0, 10), r.open(0, 11));
    watch(&mut r, watcher, 1, WatchOp::Watch);
    let payload = vec![1; limits::NOTIFY];
    let mut ids = Vec::new();
    for tid in 1..200 {
        let ask = r.ask(tid, "o", ObjectOp::new().notify(5, 10, &payload));
        match r.call_keeping(notifier, &ask) {
            (0, out) => ids.push(u64::from_le_bytes(out.try_into().unwrap())),
            (result, _) => {
                assert_eq!(result, -105);
                break;
            }
        }
    }
    assert_eq!(ids.len(), limits::NOTIFIES / limits::NOTIFY);
    // There is no room for this answer; the watcher has then not answered.
    let big = vec![2; limits::NOTIFY];
    let ack = |r: &mut Rig, tid, id, reply: &[u8]| {
        let ask = r.ask(tid, "o", ObjectOp::new().notify_ack(id, COOKIE, reply));
        assert_eq!(r.call_keeping(watcher, &ask).0, 0);
    };
    ack(&mut r, 2, ids[0], &big);
    assert!(notices(r.take(notifier)).is_empty());
    ack(&mut r, 3, ids[0], b"");
    assert_eq!(notices(r.take(notifier)).len(), 1);
    let ask = r.ask(300, "o", ObjectOp::new().notify(5, 10, &payload));
    assert_eq!(r.call_keeping(notifier, &ask).0, 0);
    r.advance(11 * SECOND);
    let ended = notices(r.take(notifier));
    assert_eq!(ended.len(), ids.len());
    assert!(ended.iter().all(|n| n.2 == -110));
    for tid in 400..410 {
        let ask = r.ask(tid, "o", ObjectOp::new().notify(5, 10, &payload));
        assert_eq!(r.call_keeping(notifier, &ask).0, 0);
    }
}
