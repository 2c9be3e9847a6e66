use super::flags::OsdFlags;
use super::hobject::Locator;
use super::ids::{ReqId, SpgId};
use super::list::{Fixed, WireList};
use super::osd_op::OsdOp;
use super::{HObjectRef, TRACE_SIZE};
use crate::codec::{DecodeError, Put, Reader, Result, UTime};

/// The span a request belongs to (`jspan_context`, `src/common/tracer.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtelContext {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub flags: u8,
}

/// `MOSDOp` (`src/messages/MOSDOp.h`): operations on one object, executed in one transaction.
///
/// Version 8 is what every OSD since luminous understands and what we send. Version 9 adds a span
/// context that squid and later clients send to squid and later OSDs.
#[derive(Debug, Clone, PartialEq)]
pub struct MOsdOp<'a> {
    pub pgid: SpgId,
    /// The object's whole hash; the seed of `pgid` is that hash folded to the number of pgs.
    pub hash: u32,
    pub epoch: u32,
    pub flags: OsdFlags,
    pub reqid: ReqId,
    pub trace: [u8; TRACE_SIZE],
    pub otel: Option<OtelContext>,
    pub client_inc: u32,
    pub mtime: UTime,
    pub locator: Locator<'a>,
    pub oid: &'a [u8],
    pub ops: WireList<'a, OsdOp>,
    /// The snapshot to read, or `NOSNAP`.
    pub snap_id: u64,
    /// The snap context of a write: the newest snapshot and all that exist, newest first.
    pub snap_seq: u64,
    pub snaps: WireList<'a, u64>,
    /// Zero for the first attempt.
    pub retry_attempt: i32,
    pub features: u64,
}

impl<'a> MOsdOp<'a> {
    pub const VERSION: u16 = 8;
    pub const VERSION_OTEL: u16 = 9;
    pub const COMPAT: u16 = 3;

    pub fn decode(version: u16, front: &'a [u8]) -> Result<MOsdOp<'a>> {
        if version != MOsdOp::VERSION && version != MOsdOp::VERSION_OTEL {
            return Err(DecodeError::malformed("osd_op version"));
        }
        let r = &mut Reader::new(front);
        let pgid = SpgId::decode(r)?;
        let hash = r.u32()?;
        let epoch = r.u32()?;
        let flags = OsdFlags(r.u32()?);
        let reqid = ReqId::decode(r)?;
        let trace = r.fixed()?;
        let otel = if version >= MOsdOp::VERSION_OTEL {
            decode_otel(r)?
        } else {
            None
        };
        let client_inc = r.u32()?;
        let mtime = UTime::decode(r)?;
        let locator = Locator::decode(r)?;
        let oid = r.blob()?;
        let n = usize::from(r.u16()?);
        let ops = WireList::take(r, n)?;
        let snap_id = r.u64()?;
        let snap_seq = r.u64()?;
        let snaps = WireList::take_counted(r)?;
        let retry_attempt = r.i32()?;
        let features = r.u64()?;
        Ok(MOsdOp {
            pgid,
            hash,
            epoch,
            flags,
            reqid,
            trace,
            otel,
            client_inc,
            mtime,
            locator,
            oid,
            ops,
            snap_id,
            snap_seq,
            snaps,
            retry_attempt,
            features,
        })
    }

    pub fn encode(&self, version: u16, out: &mut Vec<u8>) {
        self.pgid.encode(out);
        out.put_u32(self.hash);
        out.put_u32(self.epoch);
        out.put_u32(self.flags.0);
        self.reqid.encode(out);
        out.put_bytes(&self.trace);
        // An OSD reads everything up to here before it picks the thread that does the rest.
        if version >= MOsdOp::VERSION_OTEL {
            encode_otel(self.otel, out);
        }
        out.put_u32(self.client_inc);
        self.mtime.encode(out);
        self.locator.encode(out);
        out.put_blob(self.oid);
        out.put_u16(u16::try_from(self.ops.len()).expect("more than 65535 operations"));
        self.ops.put(out);
        out.put_u64(self.snap_id);
        out.put_u64(self.snap_seq);
        self.snaps.put_counted(out);
        out.put_i32(self.retry_attempt);
        out.put_u64(self.features);
    }

    /// The object the request is for, in the order of its pg.
    pub fn hobject(&self) -> HObjectRef<'a> {
        HObjectRef {
            snap: self.snap_id,
            ..HObjectRef::head(
                self.pgid.pg.pool,
                self.locator.namespace,
                self.locator.key,
                self.oid,
                self.hash,
            )
        }
    }

    /// Each operation with its part of the message's data
    /// (`OSDOp::split_osd_op_vector_in_data`).
    pub fn split<'d>(
        &self,
        data: &'d [u8],
    ) -> impl Iterator<Item = Result<(OsdOp, &'d [u8])>> + use<'a, 'd> {
        let mut r = Reader::new(data);
        self.ops
            .iter()
            .map(move |op| Ok((op, r.bytes(op.payload_len as usize)?)))
    }
}

fn decode_otel(r: &mut Reader<'_>) -> Result<Option<OtelContext>> {
    let mut v = r.versioned("jspan_context", 1)?;
    v.body.option(|b| {
        Ok(OtelContext {
            trace_id: b.fixed()?,
            span_id: b.fixed()?,
            flags: b.u8()?,
        })
    })
}

fn encode_otel(otel: Option<OtelContext>, out: &mut Vec<u8>) {
    out.versioned(1, 1, |b| {
        b.put_bool(otel.is_some());
        if let Some(o) = otel {
            b.put_bytes(&o.trace_id);
            b.put_bytes(&o.span_id);
            b.put_u8(o.flags);
        }
    });
}

/// The size of a v8 front apart from names, operations and snapshots; to reserve room with.
pub(crate) const FRONT_FIXED: usize = 240;

/// Room that the front of a request needs.
pub(crate) fn front_len(names: usize, ops: usize, snaps: usize) -> usize {
    FRONT_FIXED + names + ops * <OsdOp as Fixed>::SIZE + snaps * 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objecter::msg::{Extent, NOSNAP, OpCode};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn sample<'a>(oid: &'a [u8], ops: &'a [OsdOp], snaps: &'a [u64]) -> MOsdOp<'a> {
        MOsdOp {
            pgid: SpgId::default(),
            hash: 0xdead_beef,
            epoch: 12,
            flags: OsdFlags::WRITE | OsdFlags::ONDISK,
            reqid: ReqId::default(),
            trace: [0; TRACE_SIZE],
            otel: None,
            client_inc: 0,
            mtime: UTime { sec: 1, nsec: 2 },
            locator: Locator {
                pool: 3,
                key: b"",
                namespace: b"ns",
                hash: -1,
            },
            oid,
            ops: WireList::Native(ops),
            snap_id: NOSNAP,
            snap_seq: 4,
            snaps: WireList::Native(snaps),
            retry_attempt: 1,
            features: u64::MAX,
        }
    }

    proptest! {
        #[test]
        fn round_trip(oid in vec(any::<u8>(), 0..120), lens in vec(0u32..50, 0..6), snaps: Vec<u64>, traced: bool) {
            let ops: Vec<OsdOp> = lens.iter().map(|&n| {
                let mut op = OsdOp::with_extent(OpCode::WRITE, Extent { length: n.into(), ..Extent::default() });
                op.payload_len = n;
                op
            }).collect();
            let mut m = sample(&oid, &ops, &snaps);
            if traced {
                m.otel = Some(OtelContext { trace_id: [1; 16], span_id: [2; 8], flags: 3 });
            }
            for version in [8, 9] {
                let mut out = Vec::new();
                m.encode(version, &mut out);
                let names = oid.len() + m.locator.namespace.len();
                prop_assert!(version == 9 || out.len() <= front_len(names, ops.len(), snaps.len()));
                let mut want = m.clone();
                if version == 8 {
                    want.otel = None;
                }
                prop_assert_eq!(MOsdOp::decode(version, &out).unwrap(), want);
            }
            let total: u32 = lens.iter().sum();
            let data = vec![7; total as usize];
            let parts: Vec<_> = m.split(&data).map(|p| p.unwrap().1.len() as u32).collect();
            prop_assert_eq!(parts, lens);
            if total > 0 {
                prop_assert!(m.split(&data[1..]).any(|p| p.is_err()));
            }
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>, at: usize, value: u8) {
            let _ = MOsdOp::decode(8, &bytes);
            let ops = [OsdOp::plain(OpCode::STAT)];
            let mut out = Vec::new();
            sample(b"o", &ops, &[1, 2]).encode(9, &mut out);
            let at = at % out.len();
            out[at] = value;
            if let Ok(m) = MOsdOp::decode(9, &out) {
                m.split(&bytes).for_each(drop);
            }
        }
    }
}
