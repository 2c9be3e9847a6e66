//! What librados 16, 18 and 20 said to OSDs, and what these answered.

use super::capture::{Captured, messages};
use crate::objecter::ObjecterConfig;
use crate::objecter::msg::{self, MOsdMap, MOsdOp, MOsdOpReply, MWatchNotify};

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
