use crate::codec::{Put, Reader};

/// `CEPH_MSG_PRIO_DEFAULT`.
const PRIO_DEFAULT: u16 = 127;
/// `CEPH_MSG_FOOTER_COMPLETE | CEPH_MSG_FOOTER_NOCRC`, what every sender of msgr2 writes.
const FLAGS: u8 = 3;

/// `ceph_msg_header2` (`src/include/msgr.h`): the first segment of a MESSAGE frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MsgHeader {
    /// Number of the message in its session. [`super::Connection::send`] fills it in.
    pub seq: u64,
    pub tid: u64,
    /// `CEPH_MSG_*` or `MSG_*`: what the front holds.
    pub kind: u16,
    pub priority: u16,
    pub version: u16,
    pub data_pre_padding_len: u32,
    /// Offset of the data in its object, so that a receiver could align its buffer likewise.
    pub data_off: u16,
    /// The last message its sender has received. [`super::Connection::send`] fills it in.
    pub ack_seq: u64,
    pub flags: u8,
    /// The oldest decoder that understands this version.
    pub compat: u16,
    pub reserved: u16,
}

impl MsgHeader {
    pub const SIZE: usize = 41;

    pub fn new(kind: u16, version: u16, compat: u16) -> MsgHeader {
        MsgHeader {
            kind,
            version,
            compat,
            priority: PRIO_DEFAULT,
            flags: FLAGS,
            ..MsgHeader::default()
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.seq);
        out.put_u64(self.tid);
        out.put_u16(self.kind);
        out.put_u16(self.priority);
        out.put_u16(self.version);
        out.put_u32(self.data_pre_padding_len);
        out.put_u16(self.data_off);
        out.put_u64(self.ack_seq);
        out.put_u8(self.flags);
        out.put_u16(self.compat);
        out.put_u16(self.reserved);
    }

    pub fn decode(bytes: &[u8; MsgHeader::SIZE]) -> MsgHeader {
        let mut r = Reader::new(bytes);
        let mut read = || -> crate::codec::Result<MsgHeader> {
            Ok(MsgHeader {
                seq: r.u64()?,
                tid: r.u64()?,
                kind: r.u16()?,
                priority: r.u16()?,
                version: r.u16()?,
                data_pre_padding_len: r.u32()?,
                data_off: r.u16()?,
                ack_seq: r.u64()?,
                flags: r.u8()?,
                compat: r.u16()?,
                reserved: r.u16()?,
            })
        };
        read().expect("the fields fill SIZE bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_header_and_survive(bytes: [u8; 32], more: [u8; 9]) {
            let mut raw = [0; MsgHeader::SIZE];
            raw[..32].copy_from_slice(&bytes);
            raw[32..].copy_from_slice(&more);
            let mut out = Vec::new();
            MsgHeader::decode(&raw).encode(&mut out);
            prop_assert_eq!(&out[..], &raw[..]);
        }
    }
}
