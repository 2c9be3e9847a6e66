//! What librados 16, 18 and 20 said to OSDs, and what these answered.

use std::rc::Rc;
use std::sync::Arc;

use super::capture::{Captured, messages};
use super::rig::Sink;
use crate::codec::Now;
use crate::objecter::msg::{
    self, MOsdMap, MOsdOp, MOsdOpReply, MWatchNotify, OpCode, OsdFlags, OsdOp,
};
use crate::objecter::{
    Access, Action, ObjectOp, Objecter, ObjecterConfig, Request, SnapContext, Target,
};
use crate::osdmap::OsdMap;
use crate::payload::Payload;

fn each(kind: u16, mut f: impl FnMut(&str, &Captured)) -> usize {
    let mut seen = 0;
    for version in ["v16", "v18", "v20"] {
        for what in ["rbd-io", "rbd-admin", "rados"] {
            let name = format!("{version}-none-crc-{what}");
            let mut here = 0;
            for m in messages(&name).iter().filter(|m| m.kind == kind) {
                f(&name, m);
                here += 1;
            }
            assert!(
                here > 0 || (kind == msg::WATCH_NOTIFY && what == "rados"),
                "{name}: no message {kind}"
            );
            seen += here;
        }
    }
    seen
}

#[test]
fn requests_are_decoded_and_encoded_to_the_same_bytes() {
    let seen = each(msg::OSD_OP, |name, m| {
        let op = MOsdOp::decode(m.version, &m.front)
            .unwrap_or_else(|e| panic!("{name} tid {}: {e}", m.tid));
        let mut out = Vec::new();
        op.encode(m.version, &mut out);
        assert_eq!(out, m.front, "{name} tid {}", m.tid);
        let used: usize = op.split(&m.data).map(|part| part.unwrap().1.len()).sum();
        assert_eq!(used, m.data.len(), "{name} tid {}", m.tid);
        assert_eq!(m.priority, ObjecterConfig::default().priority);
    });
    assert!(seen > 1000, "{seen}");
}

#[test]
fn replies_are_decoded_and_encoded_to_the_same_bytes() {
    let seen = each(msg::OSD_OPREPLY, |name, m| {
        let reply = MOsdOpReply::decode(m.version, &m.front)
            .unwrap_or_else(|e| panic!("{name} tid {}: {e}", m.tid));
        let mut out = Vec::new();
        reply.encode(&mut out);
        assert_eq!(out, m.front, "{name} tid {}", m.tid);
        let returned: usize = reply.ops.iter().map(|op| op.payload_len as usize).sum();
        assert_eq!(returned, m.data.len(), "{name} tid {}", m.tid);
    });
    assert!(seen > 1000, "{seen}");
}

#[test]
fn notifications_are_decoded_and_encoded_to_the_same_bytes() {
    each(msg::WATCH_NOTIFY, |name, m| {
        let notify = MWatchNotify::decode(m.version, &m.front).unwrap();
        let mut out = Vec::new();
        notify.encode(&mut out);
        assert_eq!(out, m.front, "{name}");
    });
}

#[test]
fn map_messages_are_decoded_and_encoded_to_the_same_bytes() {
    each(msg::OSD_MAP, |name, m| {
        let maps = MOsdMap::decode(m.version, &m.front).unwrap();
        let mut out = Vec::new();
        maps.encode(&mut out);
        assert_eq!(out, m.front, "{name}");
        assert!(maps.last() > 0 && maps.last() <= maps.newest.max(maps.last()));
    });
}

/// The last full map of a capture.
fn map_of(messages: &[Captured]) -> Arc<OsdMap> {
    let full = messages.iter().filter(|m| m.kind == msg::OSD_MAP);
    let full = full.filter_map(|m| {
        let maps = MOsdMap::decode(m.version, &m.front).unwrap();
        let (epoch, bytes) = maps.full.last().copied()?;
        Some((epoch, OsdMap::decode(bytes).unwrap()))
    });
    let (_, map) = full.max_by_key(|(epoch, _)| *epoch).unwrap();
    Arc::new(map)
}

/// Takes librados's operations, names and snap context, and gives what the objecter sends for it.
fn sent_by_us(map: &Arc<OsdMap>, m: &Captured, theirs: &MOsdOp<'_>) -> (i32, Vec<u8>, Vec<u8>) {
    let config = ObjecterConfig {
        features: theirs.features,
        ..ObjecterConfig::default()
    };
    let now = Now {
        mono: 1,
        wall: theirs.mtime.as_nanos(),
    };
    let mut objecter = Objecter::new(config);
    let mut sink = Sink::default();
    objecter.handle_map(std::sync::Arc::clone(map), now, &mut sink);
    let ops: Vec<OsdOp> = theirs.ops.iter().collect();
    let ops = ObjectOp::from_parts(&ops, Payload::from(m.data.clone()));
    let target = if theirs.oid.is_empty() {
        Target::pg(theirs.locator.pool, theirs.hash)
    } else {
        Target::object(theirs.locator.pool, theirs.oid)
    };
    let target = target.in_namespace(theirs.locator.namespace);
    let mut request = Request::read(target, ops, 1).at_snap(theirs.snap_id);
    if theirs.flags.has(OsdFlags::WRITE) {
        request.access = Access::Write(Rc::new(SnapContext {
            seq: theirs.snap_seq,
            snaps: theirs.snaps.iter().collect(),
        }));
    }
    request.flags = theirs.flags;
    objecter.submit(request, now).unwrap();
    loop {
        match objecter.poll().expect("a message to send") {
            Action::OpenSession { session, .. } => objecter.session_open(session, now),
            Action::Send { session, message } => {
                let mut front = Vec::new();
                message.encode_front(&mut front);
                let data = message.data().iter().flat_map(|p| p.to_vec()).collect();
                return (session.osd, front, data);
            }
            _ => {}
        }
    }
}

#[test]
fn the_objecter_sends_what_librados_sent() {
    let mut same = 0;
    for version in ["v16", "v18", "v20"] {
        for what in ["rbd-io", "rbd-admin", "rados"] {
            let name = format!("{version}-none-crc-{what}");
            let messages = messages(&name);
            let map = map_of(&messages);
            for m in messages.iter().filter(|m| m.kind == msg::OSD_OP) {
                let theirs = MOsdOp::decode(m.version, &m.front).unwrap();
                let (osd, front, data) = sent_by_us(&map, m, &theirs);
                assert_eq!(osd, 0, "the cluster's only OSD");
                assert_eq!(data, m.data);
                let mut want = theirs.clone();
                want.epoch = map.epoch();
                // Releases before 17 do not know this flag.
                want.flags |= OsdFlags::SUPPORTS_POOL_EIO;
                // A ping and an unwatch say no time, which does not matter.
                let mut ours = MOsdOp::decode(MOsdOp::VERSION, &front).unwrap();
                if want.ops.get(0).is_some_and(|op| op.code == OpCode::WATCH) {
                    ours.mtime = want.mtime;
                }
                assert_eq!(ours, want, "{name} tid {}", m.tid);
                let mut bytes = Vec::new();
                want.encode(MOsdOp::VERSION, &mut bytes);
                let mut again = Vec::new();
                ours.encode(MOsdOp::VERSION, &mut again);
                assert_eq!(again, bytes);
                same += 1;
            }
        }
    }
    assert!(same > 1000, "{same}");
}
