use super::hobject::Redirect;
use super::ids::{EVersion, PgId};
use super::list::WireList;
use super::osd_op::OsdOp;
use super::{OsdFlags, TRACE_SIZE};
use crate::codec::{DecodeError, Put, Reader, Result};

/// `MOSDOpReply` (`src/messages/MOSDOpReply.h`): the outcome of a request and of each of its
/// operations.
#[derive(Debug, Clone, PartialEq)]
pub struct MOsdOpReply<'a> {
    pub oid: &'a [u8],
    pub pgid: PgId,
    pub flags: i64,
    /// Zero or above on success, minus an errno otherwise.
    pub result: i32,
    /// What clients older than user versions take for the object's version.
    pub bad_replay_version: EVersion,
    pub epoch: u32,
    /// The request's operations; `payload_len` is now the size of what each of them returned.
    pub ops: WireList<'a, OsdOp>,
    /// Of the request that this answers, or -1 from an OSD that does not say.
    pub retry_attempt: i32,
    pub rvals: WireList<'a, i32>,
    pub replay_version: EVersion,
    /// The object's version, for `assert_version`.
    pub user_version: u64,
    pub redirect: Option<Redirect<'a>>,
    pub trace: [u8; TRACE_SIZE],
}

impl<'a> MOsdOpReply<'a> {
    pub const VERSION: u16 = 8;
    pub const COMPAT: u16 = 2;

    /// Versions 7 and 8: jewel and later.
    pub fn decode(version: u16, front: &'a [u8]) -> Result<MOsdOpReply<'a>> {
        if version < 7 {
            return Err(DecodeError::malformed("osd_op_reply version"));
        }
        let r = &mut Reader::new(front);
        let oid = r.blob()?;
        let pgid = PgId::decode(r)?;
        let flags = r.i64()?;
        let result = r.i32()?;
        let bad_replay_version = EVersion::decode(r)?;
        let epoch = r.u32()?;
        let ops: WireList<'a, OsdOp> = WireList::take_counted(r)?;
        let retry_attempt = r.i32()?;
        let rvals = WireList::take(r, ops.len())?;
        let replay_version = EVersion::decode(r)?;
        let user_version = r.u64()?;
        let redirect = r.option(Redirect::decode)?;
        let trace = if version >= 8 {
            r.fixed()?
        } else {
            [0; TRACE_SIZE]
        };
        Ok(MOsdOpReply {
            oid,
            pgid,
            flags,
            result,
            bad_replay_version,
            epoch,
            ops,
            retry_attempt,
            rvals,
            replay_version,
            user_version,
            redirect,
            trace,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert_eq!(self.ops.len(), self.rvals.len());
        out.put_blob(self.oid);
        self.pgid.encode(out);
        out.put_i64(self.flags);
        out.put_i32(self.result);
        self.bad_replay_version.encode(out);
        out.put_u32(self.epoch);
        self.ops.put_counted(out);
        out.put_i32(self.retry_attempt);
        self.rvals.put(out);
        self.replay_version.encode(out);
        out.put_u64(self.user_version);
        out.put_bool(self.redirect.is_some());
        if let Some(redirect) = &self.redirect {
            redirect.encode(out);
        }
        out.put_bytes(&self.trace);
    }

    /// The flags of the reply to a request: its own, with the acknowledgement it gets
    /// (`MOSDOpReply::MOSDOpReply`).
    pub fn flags_for(request: OsdFlags, ack: OsdFlags) -> i64 {
        const ONNVRAM: u32 = 0x2;
        let acks = OsdFlags::ONDISK | OsdFlags::ACK | OsdFlags(ONNVRAM);
        // Ceph's reply holds them as a signed 32-bit number, widened.
        i64::from((request.without(acks) | ack).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objecter::msg::{Locator, OpCode};
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(oid in vec(any::<u8>(), 0..60), rvals: Vec<i32>, result: i32, version: u64, redirected: bool) {
            let ops = vec![OsdOp::plain(OpCode::STAT); rvals.len()];
            let locator = Locator { pool: 2, key: b"", namespace: b"n", hash: -1 };
            let m = MOsdOpReply {
                oid: &oid,
                pgid: PgId { pool: 1, seed: 2 },
                flags: MOsdOpReply::flags_for(OsdFlags::WRITE | OsdFlags::ACK, OsdFlags::ONDISK),
                result,
                bad_replay_version: EVersion { epoch: 1, version },
                epoch: 9,
                ops: WireList::Native(&ops),
                retry_attempt: 0,
                rvals: WireList::Native(&rvals),
                replay_version: EVersion { epoch: 1, version },
                user_version: version,
                redirect: redirected.then_some(Redirect { locator, object: b"x" }),
                trace: [0; TRACE_SIZE],
            };
            let mut out = Vec::new();
            m.encode(&mut out);
            prop_assert_eq!(MOsdOpReply::decode(8, &out).unwrap(), m);
            prop_assert!(MOsdOpReply::decode(8, &out[..out.len() - 1]).is_err());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let _ = MOsdOpReply::decode(8, &bytes);
        }
    }
}
