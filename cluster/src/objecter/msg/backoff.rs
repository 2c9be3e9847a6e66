use super::hobject::HObjectRef;
use super::ids::SpgId;
use super::osd_op::numbered;
use crate::codec::{Put, Reader, Result};

numbered! {
    /// `CEPH_OSD_BACKOFF_OP_*`.
    BackoffOp {
        Block = 1,
        AckBlock = 2,
        Unblock = 3,
    }
}

/// `MOSDBackoff` (`src/messages/MOSDBackoff.h`): an OSD asks for requests to a range of objects to
/// be held back, until it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MOsdBackoff<'a> {
    pub pgid: SpgId,
    pub epoch: u32,
    /// A [`BackoffOp`].
    pub op: u8,
    /// Unique within the session.
    pub id: u64,
    /// From here (inclusive) ...
    pub begin: HObjectRef<'a>,
    /// ... to here (exclusive); equal bounds mean that one object.
    pub end: HObjectRef<'a>,
}

impl<'a> MOsdBackoff<'a> {
    pub const VERSION: u16 = 1;
    pub const COMPAT: u16 = 1;

    pub fn decode(front: &'a [u8]) -> Result<MOsdBackoff<'a>> {
        let r = &mut Reader::new(front);
        Ok(MOsdBackoff {
            pgid: SpgId::decode(r)?,
            epoch: r.u32()?,
            op: r.u8()?,
            id: r.u64()?,
            begin: HObjectRef::decode(r)?,
            end: HObjectRef::decode(r)?,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        self.pgid.encode(out);
        out.put_u32(self.epoch);
        out.put_u8(self.op);
        out.put_u64(self.id);
        self.begin.encode(out);
        self.end.encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(epoch: u32, op: u8, id: u64, hash: u32, name: [u8; 5]) {
            let m = MOsdBackoff {
                pgid: SpgId::default(),
                epoch,
                op,
                id,
                begin: HObjectRef::head(1, b"", b"", &name, hash),
                end: HObjectRef::MAX,
            };
            let mut out = Vec::new();
            m.encode(&mut out);
            prop_assert_eq!(MOsdBackoff::decode(&out).unwrap(), m);
            prop_assert!(MOsdBackoff::decode(&out[..out.len() - 1]).is_err());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let _ = MOsdBackoff::decode(&bytes);
        }
    }
}
