//! Watching and notifying, as far as the object is concerned.

use super::rig::{CLIENT, Rig};
use crate::codec::Put;
use crate::objecter::ObjectOp;
use crate::objecter::msg::{OpCode, OsdOp, WatchArgs, WatchOp};
use crate::objecter::results::decode_watchers;
use crate::osd::exec::Effect;

fn watch(rig: &mut Rig, op: WatchOp, cookie: u64, timeout: u32) -> super::rig::Answer {
    let args = WatchArgs {
        cookie,
        op: op as u8,
        generation: 0,
        timeout,
    };
    rig.one(OsdOp::with_watch(args), b"")
}

#[test]
fn a_watch_lives_in_the_object() {
    let mut rig = Rig::new();
    assert_eq!(watch(&mut rig, WatchOp::Watch, 9, 0).result, -libc::ENOENT);
    let version = rig.done(ObjectOp::new().create(true)).user_version;
    let answer = watch(&mut rig, WatchOp::Watch, 9, 0);
    let connect = |cookie, timeout_seconds| Effect::Watch {
        cookie,
        timeout_seconds,
    };
    assert_eq!(answer.effects, [connect(9, 30)]);
    // To clients the object is as it was.
    assert_eq!((answer.changed, answer.user_version), (true, version));
    watch(&mut rig, WatchOp::Watch, 3, 60);
    let again = watch(&mut rig, WatchOp::Watch, 9, 0);
    assert_eq!(
        (again.changed, again.effects),
        (false, vec![connect(9, 30)])
    );
    let answer = watch(&mut rig, WatchOp::Reconnect, 9, 0);
    assert_eq!(answer.effects, [connect(9, 30)]);
    assert_eq!(watch(&mut rig, WatchOp::Ping, 9, 0).result, 0);
    for op in [WatchOp::Ping, WatchOp::Reconnect] {
        assert_eq!(watch(&mut rig, op, 5, 0).result, -libc::ENOTCONN);
    }

    let answer = rig.done(ObjectOp::new().list_watchers());
    let watchers = decode_watchers(answer.output()).unwrap();
    let seen: Vec<_> = watchers
        .iter()
        .map(|w| (w.name, w.cookie, w.timeout_seconds, w.addr))
        .collect();
    let addr = rig.peer.addr();
    assert_eq!(seen, [(CLIENT, 3, 60, addr), (CLIENT, 9, 30, addr)]);

    let answer = watch(&mut rig, WatchOp::Unwatch, 9, 0);
    assert_eq!(answer.effects, [Effect::Unwatch { cookie: 9 }]);
    let answer = watch(&mut rig, WatchOp::Unwatch, 9, 0);
    assert_eq!((answer.result, answer.changed), (0, false));
    // The last one goes with the object.
    let answer = rig.done(ObjectOp::new().delete());
    assert_eq!(answer.effects, [Effect::Disconnect]);
}

#[test]
fn a_ping_of_a_missing_object_is_a_read() {
    let mut rig = Rig::new();
    assert_eq!(watch(&mut rig, WatchOp::Ping, 9, 0).result, -libc::ENOENT);
}

#[test]
fn notifies_are_the_pgs_to_carry_out() {
    let mut rig = Rig::new();
    let mut asked = Vec::new();
    asked.put_u32(1);
    asked.put_u32(12);
    asked.put_blob(b"hello");
    let notify = OsdOp::with_cookie(OpCode::NOTIFY, 5);
    assert_eq!(rig.one(notify, &asked).result, -libc::ENOENT);
    rig.done(ObjectOp::new().create(true));
    let effect = |timeout_seconds, payload: &[u8]| Effect::Notify {
        cookie: 5,
        timeout_seconds,
        payload: payload.to_vec(),
    };
    let answer = rig.one(notify, &asked);
    assert_eq!(answer.effects, [effect(12, b"hello")]);
    assert_eq!(rig.one(notify, b"?").effects, [effect(30, b"")]);

    let mut ack = Vec::new();
    ack.put_u64(77);
    ack.put_u64(9);
    let effect = |notify_id, cookie, payload: &[u8]| Effect::NotifyAck {
        notify_id,
        cookie,
        payload: payload.to_vec(),
    };
    let op = OsdOp::with_cookie(OpCode::NOTIFY_ACK, 66);
    assert_eq!(rig.one(op, &ack).effects, [effect(77, 9, b"")]);
    ack.put_blob(b"yes");
    assert_eq!(rig.one(op, &ack).effects, [effect(77, 9, b"yes")]);
    assert_eq!(rig.one(op, b"").effects, [effect(66, 0, b"")]);
}

#[test]
fn an_object_that_is_watched_is_not_rolled_back_to_nothing() {
    let mut rig = Rig::new();
    rig.snap_context = (4, vec![4]);
    rig.done(ObjectOp::new().create(true));
    watch(&mut rig, WatchOp::Watch, 9, 0);
    assert_eq!(rig.ask(ObjectOp::new().rollback(3)).result, -libc::EBUSY);
    watch(&mut rig, WatchOp::Unwatch, 9, 0);
    rig.done(ObjectOp::new().rollback(3));
    assert_eq!(rig.ask(ObjectOp::new().stat()).result, -libc::ENOENT);
}
