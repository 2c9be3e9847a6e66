//! The messages between a client and a monitor, in both directions: the client sends one half and
//! reads the other, the single-node server does the reverse.
//!
//! A message's layout is that of `encode_payload` in `src/messages/NAME.h`; `VERSION` and
//! `COMPAT` are its `HEAD_VERSION` and `COMPAT_VERSION`; where a message has none of its own,
//! `Message::encode` (`src/msg/Message.cc`) makes `COMPAT` the version.

use std::collections::BTreeMap;

use super::kind;
use crate::codec::{DecodeError, Put, Reader, Result};

/// How the front of a message is written and read.
pub trait Message: Sized {
    const KIND: u16;
    const VERSION: u16;
    const COMPAT: u16;

    fn encode(&self, out: &mut Vec<u8>);

    /// Reads the front that a header of `version` announced.
    fn read(version: u16, r: &mut Reader<'_>) -> Result<Self>;

    /// Reads a whole front. What a newer sender has added at its end is passed over.
    fn decode(version: u16, front: &[u8]) -> Result<Self> {
        Self::read(version, &mut Reader::new(front))
    }
}

/// Text for people: what is not UTF-8 in it must not cost the session.
fn lossy(r: &mut Reader<'_>) -> Result<String> {
    Ok(String::from_utf8_lossy(r.blob()?).into_owned())
}

/// The fields that every message to a Paxos service starts with (`PaxosServiceMessage.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paxos {
    /// The monitor answers when its own state is at least this new.
    pub version: u64,
    pub session_mon: i16,
    pub session_mon_tid: u64,
}

impl Default for Paxos {
    fn default() -> Paxos {
        Paxos {
            version: 0,
            session_mon: -1,
            session_mon_tid: 0,
        }
    }
}

impl Paxos {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.version);
        out.put_i16(self.session_mon);
        out.put_u64(self.session_mon_tid);
    }

    fn read(r: &mut Reader<'_>) -> Result<Paxos> {
        Ok(Paxos {
            version: r.u64()?,
            session_mon: r.i16()?,
            session_mon_tid: r.u64()?,
        })
    }
}

/// Asks for the monitor map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MMonGetMap;

impl Message for MMonGetMap {
    const KIND: u16 = kind::MON_GET_MAP;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, _: &mut Vec<u8>) {}

    fn read(_: u16, _: &mut Reader<'_>) -> Result<MMonGetMap> {
        Ok(MMonGetMap)
    }
}

/// A monitor map, encoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MMonMap {
    pub monmap: Vec<u8>,
}

impl Message for MMonMap {
    const KIND: u16 = kind::MON_MAP;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_blob(&self.monmap);
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MMonMap> {
        Ok(MMonMap {
            monmap: r.blob()?.to_vec(),
        })
    }
}

/// What a client wants to be told (`ceph_mon_subscribe_item`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscribeItem {
    /// The first version it lacks; 0 is the newest.
    pub start: u64,
    pub flags: u8,
}

impl SubscribeItem {
    /// `CEPH_SUBSCRIBE_ONETIME`: tell once, then no more.
    pub const ONETIME: u8 = 1;

    pub fn onetime(&self) -> bool {
        self.flags & SubscribeItem::ONETIME != 0
    }
}

/// Subscribes to maps by name: `monmap`, `osdmap`, `config`, ...
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MMonSubscribe {
    pub what: BTreeMap<String, SubscribeItem>,
    /// Of the client, for people.
    pub hostname: String,
}

impl Message for MMonSubscribe {
    const KIND: u16 = kind::MON_SUBSCRIBE;
    const VERSION: u16 = 3;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_list(self.what.iter(), |out, (name, item)| {
            out.put_string(name);
            out.put_u64(item.start);
            out.put_u8(item.flags);
        });
        out.put_string(&self.hostname);
    }

    fn read(version: u16, r: &mut Reader<'_>) -> Result<MMonSubscribe> {
        // Older clients wrote other items; none of them speaks msgr2.
        if version < 2 {
            return Err(DecodeError::malformed("MMonSubscribe version"));
        }
        let items = r.list(4 + 9, |r| {
            let name = r.string()?.to_string();
            let item = SubscribeItem {
                start: r.u64()?,
                flags: r.u8()?,
            };
            Ok((name, item))
        })?;
        Ok(MMonSubscribe {
            what: items.into_iter().collect(),
            hostname: if version >= 3 {
                lossy(r)?
            } else {
                String::new()
            },
        })
    }
}

/// Acknowledges a subscription, to clients that must renew it (none of today's need to).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MMonSubscribeAck {
    pub interval: u32,
    pub fsid: [u8; 16],
}

impl Message for MMonSubscribeAck {
    const KIND: u16 = kind::MON_SUBSCRIBE_ACK;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.interval);
        out.put_bytes(&self.fsid);
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MMonSubscribeAck> {
        Ok(MMonSubscribeAck {
            interval: r.u32()?,
            fsid: r.fixed()?,
        })
    }
}

/// Asks how new a map is, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MMonGetVersion {
    pub handle: u64,
    pub what: String,
}

impl Message for MMonGetVersion {
    const KIND: u16 = kind::MON_GET_VERSION;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.handle);
        out.put_string(&self.what);
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MMonGetVersion> {
        Ok(MMonGetVersion {
            handle: r.u64()?,
            what: r.string()?.to_string(),
        })
    }
}

/// Tells the newest version of a map and the oldest that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MMonGetVersionReply {
    pub handle: u64,
    pub version: u64,
    pub oldest: u64,
}

impl Message for MMonGetVersionReply {
    const KIND: u16 = kind::MON_GET_VERSION_REPLY;
    const VERSION: u16 = 2;
    const COMPAT: u16 = 2;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.handle);
        out.put_u64(self.version);
        out.put_u64(self.oldest);
    }

    fn read(version: u16, r: &mut Reader<'_>) -> Result<MMonGetVersionReply> {
        Ok(MMonGetVersionReply {
            handle: r.u64()?,
            version: r.u64()?,
            oldest: if version >= 2 { r.u64()? } else { 0 },
        })
    }
}

/// The options that the monitors hold for this client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MConfig {
    pub config: BTreeMap<String, String>,
}

impl Message for MConfig {
    const KIND: u16 = kind::CONFIG;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_list(self.config.iter(), |out, (name, value)| {
            out.put_string(name);
            out.put_string(value);
        });
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MConfig> {
        let items = r.list(8, |r| Ok((lossy(r)?, lossy(r)?)))?;
        Ok(MConfig {
            config: items.into_iter().collect(),
        })
    }
}

/// A command to the monitors as a body. Its input is the message's data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MMonCommand {
    pub paxos: Paxos,
    pub fsid: [u8; 16],
    /// One JSON object.
    pub cmd: Vec<String>,
}

impl Message for MMonCommand {
    const KIND: u16 = kind::MON_COMMAND;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        self.paxos.encode(out);
        out.put_bytes(&self.fsid);
        out.put_list(self.cmd.iter(), |out, word| out.put_string(word));
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MMonCommand> {
        Ok(MMonCommand {
            paxos: Paxos::read(r)?,
            fsid: r.fixed()?,
            cmd: r.list(4, lossy)?,
        })
    }
}

/// The answer to a command. Its output is the message's data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MMonCommandAck {
    pub paxos: Paxos,
    /// A negative errno, or success.
    pub code: i32,
    pub status: String,
    pub cmd: Vec<String>,
}

impl Message for MMonCommandAck {
    const KIND: u16 = kind::MON_COMMAND_ACK;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        self.paxos.encode(out);
        out.put_i32(self.code);
        out.put_string(&self.status);
        out.put_list(self.cmd.iter(), |out, word| out.put_string(word));
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MMonCommandAck> {
        Ok(MMonCommandAck {
            paxos: Paxos::read(r)?,
            code: r.i32()?,
            status: lossy(r)?,
            cmd: r.list(4, lossy)?,
        })
    }
}

/// A step of an authentication protocol on an open session: renewal of tickets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MAuth {
    pub paxos: Paxos,
    /// `CEPH_AUTH_*`.
    pub protocol: u32,
    pub payload: Vec<u8>,
    pub monmap_epoch: u32,
}

impl Message for MAuth {
    const KIND: u16 = kind::AUTH;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        self.paxos.encode(out);
        out.put_u32(self.protocol);
        out.put_blob(&self.payload);
        out.put_u32(self.monmap_epoch);
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MAuth> {
        Ok(MAuth {
            paxos: Paxos::read(r)?,
            protocol: r.u32()?,
            payload: r.blob()?.to_vec(),
            monmap_epoch: if r.is_empty() { 0 } else { r.u32()? },
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MAuthReply {
    pub protocol: u32,
    /// A negative errno, or success.
    pub result: i32,
    pub global_id: u64,
    pub payload: Vec<u8>,
    pub message: String,
}

impl Message for MAuthReply {
    const KIND: u16 = kind::AUTH_REPLY;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.protocol);
        out.put_i32(self.result);
        out.put_u64(self.global_id);
        out.put_blob(&self.payload);
        out.put_string(&self.message);
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MAuthReply> {
        Ok(MAuthReply {
            protocol: r.u32()?,
            result: r.i32()?,
            global_id: r.u64()?,
            payload: r.blob()?.to_vec(),
            message: lossy(r)?,
        })
    }
}

/// What an [`MPoolOp`] does (`POOL_OP_*`, `src/include/ceph_fs.h`).
pub mod pool_op {
    pub const CREATE: u32 = 0x01;
    pub const DELETE: u32 = 0x02;
    pub const CREATE_SNAP: u32 = 0x11;
    pub const DELETE_SNAP: u32 = 0x12;
    pub const CREATE_UNMANAGED_SNAP: u32 = 0x21;
    pub const DELETE_UNMANAGED_SNAP: u32 = 0x22;
}

/// An operation on a pool; of these RBD needs the ids of self-managed snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MPoolOp {
    pub paxos: Paxos,
    pub fsid: [u8; 16],
    pub pool: u32,
    pub name: String,
    /// One of [`pool_op`].
    pub op: u32,
    pub snapid: u64,
    pub crush_rule: i16,
}

impl Message for MPoolOp {
    const KIND: u16 = kind::POOL_OP;
    const VERSION: u16 = 4;
    const COMPAT: u16 = 2;

    fn encode(&self, out: &mut Vec<u8>) {
        self.paxos.encode(out);
        out.put_bytes(&self.fsid);
        out.put_u32(self.pool);
        out.put_u32(self.op);
        // An owner once, no longer used.
        out.put_u64(0);
        out.put_u64(self.snapid);
        out.put_string(&self.name);
        out.put_u8(0);
        out.put_i16(self.crush_rule);
    }

    fn read(version: u16, r: &mut Reader<'_>) -> Result<MPoolOp> {
        let mut op = MPoolOp {
            paxos: Paxos::read(r)?,
            fsid: r.fixed()?,
            pool: r.u32()?,
            ..MPoolOp::default()
        };
        if version < 2 {
            op.name = r.string()?.to_string();
        }
        op.op = r.u32()?;
        r.skip(8)?;
        op.snapid = r.u64()?;
        if version >= 2 {
            op.name = r.string()?.to_string();
        }
        op.crush_rule = -1;
        if version >= 3 {
            op.crush_rule = r.u8()?.into();
        }
        if version >= 4 {
            op.crush_rule = r.i16()?;
        }
        Ok(op)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MPoolOpReply {
    pub paxos: Paxos,
    pub fsid: [u8; 16],
    /// A negative errno, or success.
    pub code: i32,
    /// The OSD map that has the change.
    pub epoch: u32,
    /// The encoded id of a new snapshot.
    pub response: Vec<u8>,
}

impl Message for MPoolOpReply {
    const KIND: u16 = kind::POOL_OP_REPLY;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        self.paxos.encode(out);
        out.put_bytes(&self.fsid);
        out.put_i32(self.code);
        out.put_u32(self.epoch);
        out.put_bool(!self.response.is_empty());
        if !self.response.is_empty() {
            out.put_blob(&self.response);
        }
    }

    fn read(_: u16, r: &mut Reader<'_>) -> Result<MPoolOpReply> {
        Ok(MPoolOpReply {
            paxos: Paxos::read(r)?,
            fsid: r.fixed()?,
            code: r.i32()?,
            epoch: r.u32()?,
            response: r.option(|r| Ok(r.blob()?.to_vec()))?.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Debug;

    fn survives<M: Message + PartialEq + Debug>(message: M) -> Result<(), TestCaseError> {
        let mut out = Vec::new();
        message.encode(&mut out);
        let mut r = Reader::new(&out);
        prop_assert_eq!(M::read(M::VERSION, &mut r).unwrap(), message);
        prop_assert!(r.is_empty());
        Ok(())
    }

    fn feed<M: Message>(bytes: &[u8]) {
        for version in 0..=M::VERSION + 1 {
            let _ = M::decode(version, bytes);
        }
    }

    #[test]
    fn text_that_is_not_utf8_does_not_lose_the_answer() {
        let mut front = Vec::new();
        Paxos::default().encode(&mut front);
        front.put_i32(-22);
        front.put_blob(b"bad \xff");
        front.put_u32(0);
        let ack = MMonCommandAck::decode(1, &front).unwrap();
        assert_eq!((ack.code, ack.status.as_str()), (-22, "bad \u{fffd}"));
    }

    proptest! {
        #[test]
        fn messages_survive_a_round_trip(
            n: (u64, u64, u64, u32, i32), id: [u8; 16], bytes: Vec<u8>, text in "\\PC{0,20}",
            items in prop::collection::btree_map("[a-z]{0,8}", (any::<u64>(), any::<u8>()), 0..4),
            texts in prop::collection::btree_map("[a-z]{0,8}", "\\PC{0,8}", 0..4),
            words in prop::collection::vec("\\PC{0,8}", 0..4), short: i16,
        ) {
            let paxos = Paxos { version: n.0, session_mon: short, session_mon_tid: n.1 };
            survives(MMonGetMap)?;
            survives(MMonMap { monmap: bytes.clone() })?;
            survives(MMonSubscribe {
                what: items.into_iter()
                    .map(|(k, (start, flags))| (k, SubscribeItem { start, flags })).collect(),
                hostname: text.clone(),
            })?;
            survives(MMonSubscribeAck { interval: n.3, fsid: id })?;
            survives(MMonGetVersion { handle: n.0, what: text.clone() })?;
            survives(MMonGetVersionReply { handle: n.0, version: n.1, oldest: n.2 })?;
            survives(MConfig { config: texts })?;
            survives(MMonCommand { paxos, fsid: id, cmd: words.clone() })?;
            survives(MMonCommandAck { paxos, code: n.4, status: text.clone(), cmd: words })?;
            survives(MAuth { paxos, protocol: n.3, payload: bytes.clone(), monmap_epoch: n.3 })?;
            survives(MAuthReply {
                protocol: n.3, result: n.4, global_id: n.0, payload: bytes.clone(),
                message: text.clone(),
            })?;
            survives(MPoolOp {
                paxos, fsid: id, pool: n.3, name: text, op: n.3, snapid: n.0, crush_rule: short,
            })?;
            survives(MPoolOpReply { paxos, fsid: id, code: n.4, epoch: n.3, response: bytes })?;
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            feed::<MMonGetMap>(&bytes);
            feed::<MMonMap>(&bytes);
            feed::<MMonSubscribe>(&bytes);
            feed::<MMonSubscribeAck>(&bytes);
            feed::<MMonGetVersion>(&bytes);
            feed::<MMonGetVersionReply>(&bytes);
            feed::<MConfig>(&bytes);
            feed::<MMonCommand>(&bytes);
            feed::<MMonCommandAck>(&bytes);
            feed::<MAuth>(&bytes);
            feed::<MAuthReply>(&bytes);
            feed::<MPoolOp>(&bytes);
            feed::<MPoolOpReply>(&bytes);
        }
    }
}
