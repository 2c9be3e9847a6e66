//! Watches and notifies.

use super::rig::{Did, Event, POOL, Rig, Sent, done, failed};
use crate::objecter::msg::{MWatchNotify, NotifyEvent, OpCode, OsdFlags, WatchOp};
use crate::objecter::{OpError, Request, SubmitError, Target, WatchRequest};

const COOKIE: u64 = 1234;

fn request(cookie: u64, token: u64) -> WatchRequest {
    WatchRequest {
        target: Target::object(POOL, "head1"),
        cookie,
        timeout: 30,
        token,
    }
}

fn event(opcode: NotifyEvent, cookie: u64, notify_id: u64) -> MWatchNotify<'static> {
    MWatchNotify {
        opcode: opcode as u8,
        cookie,
        version: 0,
        notify_id,
        payload: b"hello",
        return_code: 0,
        notifier: 4100,
    }
}

/// A rig with a registered watch.
fn watching() -> (Rig, Sent) {
    let mut rig = Rig::new();
    rig.obj.watch(request(COOKIE, 1), rig.now).unwrap();
    rig.pump();
    let sent = rig.one_sent();
    let args = sent.ops[0].watch();
    assert_eq!(sent.code(), OpCode::WATCH);
    assert_eq!(
        (args.op, args.cookie, args.timeout),
        (WatchOp::Watch as u8, COOKIE, 30)
    );
    assert!(sent.flags.has(OsdFlags::READ) && sent.flags.has(OsdFlags::WRITE));
    rig.answer(&sent, 0, &[]);
    assert_eq!(rig.take_events(), [done(1)]);
    rig.take_did();
    (rig, sent)
}

#[test]
fn a_watch_hears_notifications_until_it_is_taken_down() {
    let (mut rig, sent) = watching();
    rig.notify_message(sent.session, &event(NotifyEvent::Notify, COOKIE, 55), &[]);
    let heard = Event::Notified(COOKIE, 55, b"hello".to_vec());
    assert_eq!(rig.take_events(), [heard]);

    let target = Target::object(POOL, "head1");
    rig.submit(Request::notify_ack(target, 55, COOKIE, b"ok", 2));
    let ack = rig.one_sent();
    assert_eq!(ack.code(), OpCode::NOTIFY_ACK);
    assert_eq!(ack.data.len(), 8 + 8 + 4 + 2);
    rig.answer(&ack, 0, &[]);
    assert_eq!(rig.take_events(), [done(2)]);

    rig.unwatch(COOKIE, 3).unwrap();
    rig.pump();
    let unwatch = rig.one_sent();
    assert_eq!(unwatch.ops[0].watch().op, WatchOp::Unwatch as u8);
    rig.notify_message(sent.session, &event(NotifyEvent::Notify, COOKIE, 56), &[]);
    assert_eq!(rig.take_events(), []);
    rig.answer(&unwatch, 0, &[]);
    assert_eq!(rig.take_events(), [done(3)]);
    assert!(matches!(
        rig.unwatch(COOKIE, 4),
        Err(SubmitError::NoWatch(COOKIE))
    ));
}

#[test]
fn a_watch_is_pinged_and_its_validity_known() {
    let (mut rig, _) = watching();
    let registered = rig.now.mono;
    assert_eq!(rig.obj.watch_valid_thru(COOKIE), Some(registered));
    rig.sleep(5);
    let ping = rig.one_sent();
    assert_eq!(ping.ops[0].watch().op, WatchOp::Ping as u8);
    let pinged = rig.now.mono;
    // One ping at a time.
    rig.sleep(5);
    assert!(rig.sent.is_empty());
    rig.answer(&ping, 0, &[]);
    assert_eq!(rig.obj.watch_valid_thru(COOKIE), Some(pinged));
    rig.sleep(5);
    let ping = rig.one_sent();
    rig.sleep(30);
    assert_eq!(rig.take_events(), [Event::Unconfirmed(COOKIE)]);
    rig.sleep(5);
    assert_eq!(rig.take_events(), []);
    rig.answer(&ping, 0, &[]);
    // Being watched, a session is not idle, and maps are asked for.
    rig.take_did();
    for _ in 0..200 {
        rig.sleep(5);
        for ping in rig.take_sent() {
            rig.answer(&ping, 0, &[]);
        }
    }
    let did = rig.take_did();
    assert!(
        did.iter()
            .all(|d| matches!(d, Did::WantMap { .. } | Did::Ping(_)))
            && !did.is_empty()
    );
    assert_eq!(rig.take_events(), []);
}

#[test]
fn a_watch_reconnects_after_a_reset_and_a_new_interval() {
    let (mut rig, sent) = watching();
    rig.lose(sent.session);
    let again = rig.one_sent();
    let args = again.ops[0].watch();
    assert_eq!(
        (args.op, args.generation, again.retry),
        (WatchOp::Reconnect as u8, 1, 0)
    );
    assert_ne!(again.tid, sent.tid);
    rig.answer(&again, 0, &[]);
    // A change of replicas is a new interval too.
    rig.change(|m| m.pool_mut().pgs[1] = vec![1, 0, 2]);
    let third = rig.one_sent();
    assert_eq!(third.ops[0].watch().generation, 2);
    rig.change(|m| m.pool_mut().pgs[1] = vec![0, 1, 2]);
    let fourth = rig.one_sent();
    assert_eq!(
        (fourth.session.osd, fourth.ops[0].watch().generation),
        (0, 3)
    );
    // The answer to the third came too late to mean anything.
    rig.answer(&third, -2, &[]);
    assert_eq!(rig.take_events(), []);
    rig.answer(&fourth, 0, &[]);
    assert_eq!(rig.take_events(), []);
    assert_eq!(rig.obj.ops.len(), 0);
}

#[test]
fn a_watch_that_is_lost_is_told_once_and_left_alone() {
    let (mut rig, sent) = watching();
    rig.lose(sent.session);
    let again = rig.one_sent();
    rig.answer(&again, -2, &[]);
    assert_eq!(rig.take_events(), [Event::Disconnected(COOKIE, 107)]);
    assert_eq!(rig.obj.watch_valid_thru(COOKIE), None);
    rig.notify_message(
        again.session,
        &event(NotifyEvent::Disconnect, COOKIE, 0),
        &[],
    );
    rig.lose(again.session);
    rig.sleep(5);
    assert!(rig.sent.is_empty());
    assert_eq!(rig.take_events(), []);
    // Taken down and set up again under another cookie, as librbd does it.
    rig.unwatch(COOKIE, 5).unwrap();
    rig.obj.watch(request(COOKIE + 1, 6), rig.now).unwrap();
    rig.pump();
    for sent in rig.take_sent() {
        rig.answer(&sent, 0, &[]);
    }
    assert_eq!(rig.take_events(), [done(5), done(6)]);
}

#[test]
fn a_disconnect_and_a_failed_ping_end_a_watch() {
    let (mut rig, sent) = watching();
    rig.notify_message(
        sent.session,
        &event(NotifyEvent::Disconnect, COOKIE, 0),
        &[],
    );
    assert_eq!(rig.take_events(), [Event::Disconnected(COOKIE, 107)]);
    let (mut rig, _) = watching();
    rig.sleep(5);
    let ping = rig.one_sent();
    rig.answer(&ping, -107, &[]);
    assert_eq!(rig.take_events(), [Event::Disconnected(COOKIE, 107)]);
}

#[test]
fn a_registration_is_repeated_as_such_until_it_is_answered() {
    let mut rig = Rig::new();
    rig.obj.watch(request(COOKIE, 1), rig.now).unwrap();
    rig.pump();
    let first = rig.one_sent();
    rig.lose(first.session);
    let second = rig.one_sent();
    assert_eq!(second.ops[0].watch().op, WatchOp::Watch as u8);
    assert_ne!(second.tid, first.tid);
    rig.answer(&second, -13, &[]);
    let events = rig.take_events();
    assert!(matches!(
        events[..],
        [Event::Done(1, Err(OpError::Errno(13)), _)]
    ));
    assert!(matches!(
        rig.unwatch(COOKIE, 2),
        Err(SubmitError::NoWatch(_))
    ));
}

#[test]
fn taking_a_watch_down_ends_a_registration_without_an_answer() {
    let mut rig = Rig::new();
    rig.obj.watch(request(COOKIE, 1), rig.now).unwrap();
    rig.pump();
    let register = rig.one_sent();
    rig.unwatch(COOKIE, 2).unwrap();
    let cancelled = Event::Done(1, Err(OpError::Cancelled), vec![]);
    assert_eq!(rig.take_events(), [cancelled]);
    rig.pump();
    let unwatch = rig.one_sent();
    // The answer to the registration is late.
    rig.answer(&register, 0, &[]);
    assert_eq!(rig.take_events(), []);
    rig.answer(&unwatch, 0, &[]);
    assert_eq!(rig.take_events(), [done(2)]);
}

#[test]
fn a_registration_outlives_the_disconnect_of_an_earlier_one() {
    let mut rig = Rig::new();
    rig.obj.watch(request(COOKIE, 1), rig.now).unwrap();
    rig.pump();
    let first = rig.one_sent();
    rig.lose(first.session);
    let again = rig.one_sent();
    rig.notify_message(
        again.session,
        &event(NotifyEvent::Disconnect, COOKIE, 0),
        &[],
    );
    assert_eq!(rig.take_events(), []);
    rig.lose(again.session);
    rig.sleep(1);
    let last = rig.one_sent();
    rig.answer(&last, 0, &[]);
    assert_eq!(rig.take_events(), [done(1)]);
}

#[test]
fn a_connection_that_a_notify_waits_on_is_probed() {
    let mut rig = Rig::new();
    let target = Target::object(POOL, "o1");
    rig.obj
        .notify(target, b"x".to_vec(), 5, 1, rig.now)
        .unwrap();
    rig.pump();
    let sent = rig.one_sent();
    rig.answer(&sent, 0, &[&7u64.to_le_bytes()]);
    rig.take_did();
    rig.sleep(5);
    assert!(rig.take_did().contains(&Did::Ping(sent.session)));
}

#[test]
fn cookies_are_unique() {
    let (mut rig, _) = watching();
    for cookie in [0, COOKIE, 1 << 63] {
        let refused = rig.obj.watch(request(cookie, 2), rig.now);
        assert!(matches!(refused, Err(SubmitError::BadCookie(c)) if c == cookie));
    }
}

#[test]
fn a_notify_ends_with_the_answers_of_the_watchers() {
    let mut rig = Rig::new();
    let target = || Target::object(POOL, "head1");
    rig.obj
        .notify(target(), b"ping".to_vec(), 10, 1, rig.now)
        .unwrap();
    rig.pump();
    let sent = rig.one_sent();
    assert_eq!(sent.code(), OpCode::NOTIFY);
    assert_eq!(sent.flags, OsdFlags(0x840_0014));
    let cookie = sent.ops[0].cookie();
    rig.answer(&sent, 0, &[&99u64.to_le_bytes()]);
    assert_eq!(rig.take_events(), []);
    // The end of another notify.
    rig.notify_message(
        sent.session,
        &event(NotifyEvent::Complete, cookie, 98),
        b"other",
    );
    assert_eq!(rig.take_events(), []);
    rig.notify_message(
        sent.session,
        &event(NotifyEvent::Complete, cookie, 99),
        b"acks",
    );
    assert_eq!(
        rig.take_events(),
        [Event::NotifyDone(1, Ok(()), b"acks".to_vec())]
    );

    // The end may overtake the reply, and may be an error with what has been collected.
    rig.obj
        .notify(target(), Vec::new(), 10, 2, rig.now)
        .unwrap();
    rig.pump();
    let sent = rig.one_sent();
    let mut end = event(NotifyEvent::Complete, sent.ops[0].cookie(), 100);
    end.return_code = -110;
    rig.notify_message(sent.session, &end, b"partial");
    let late = Err(OpError::Errno(110));
    assert_eq!(
        rig.take_events(),
        [Event::NotifyDone(2, late, b"partial".to_vec())]
    );
    rig.answer(&sent, 0, &[&100u64.to_le_bytes()]);
    assert_eq!(rig.take_events(), []);
    assert_eq!(rig.obj.ops.len(), 0);
}

#[test]
fn a_notify_starts_over_at_a_new_connection_and_can_fail() {
    let mut rig = Rig::new();
    let target = || Target::object(POOL, "head1");
    rig.obj
        .notify(target(), b"x".to_vec(), 10, 1, rig.now)
        .unwrap();
    rig.pump();
    let sent = rig.one_sent();
    rig.answer(&sent, 0, &[&99u64.to_le_bytes()]);
    rig.lose(sent.session);
    let again = rig.one_sent();
    assert_eq!(again.code(), OpCode::NOTIFY);
    rig.answer(&again, -2, &[]);
    let gone = Err(OpError::Errno(2));
    assert_eq!(rig.take_events(), [Event::NotifyDone(1, gone, Vec::new())]);
}

#[test]
fn the_end_of_everything_ends_watches_and_notifies() {
    let (mut rig, _) = watching();
    rig.obj.watch(request(COOKIE + 1, 8), rig.now).unwrap();
    let target = Target::object(POOL, "head1");
    rig.obj.notify(target, Vec::new(), 10, 9, rig.now).unwrap();
    rig.pump();
    rig.obj.cancel_all(OpError::Blocklisted, &mut rig.sink);
    let want = [
        Event::Disconnected(COOKIE, 108),
        failed(8, OpError::Blocklisted),
        Event::NotifyDone(9, Err(OpError::Blocklisted), Vec::new()),
    ];
    assert_eq!(rig.take_events(), want);
    assert_eq!(rig.obj.ops.len(), 0);
}

#[test]
fn a_deleted_pool_ends_its_watches() {
    let (mut rig, _) = watching();
    rig.change(|m| m.pools.clear());
    assert_eq!(rig.take_events(), [Event::Disconnected(COOKIE, 107)]);
    let mut rig = Rig::new();
    let target = Target::object(9, "head1");
    let watch = WatchRequest {
        target,
        ..request(COOKIE, 1)
    };
    rig.obj.watch(watch, rig.now).unwrap();
    rig.pump();
    let token = rig.take_did().into_iter().find_map(|d| match d {
        Did::WantLatestEpoch(token) => Some(token),
        _ => None,
    });
    rig.obj
        .latest_map(token.unwrap(), 10, rig.now, &mut rig.sink);
    assert_eq!(rig.take_events(), [failed(1, OpError::PoolGone)]);
}
