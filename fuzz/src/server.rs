//! What targets ask of the embedded server: operations of any kind, and a look at what they leave.

use arbitrary::Arbitrary;
use cluster::auth::AuthName;
use cluster::auth::server::Caps;
use cluster::codec::{EntityName, EntityType, Put, Reader, UTime};
use cluster::objecter::msg::{
    Fixed, HObject, HObjectRef, Locator, MOsdOp, NOSNAP, OpCode, OsdFlags, OsdOp, PgId, ReqId,
    SpgId, WireList,
};
use cluster::osd::Peer;
use cluster::osd::cls;
use cluster::osd::store::Store;

use crate::addrs;

/// Numbers near zero, near the end of objects, and near overflow.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Number {
    Small(u8),
    Page(u8, i8),
    Object(i8),
    Large(u8),
    Any(u64),
}

impl Number {
    pub fn get(self) -> u64 {
        match self {
            Number::Small(n) => u64::from(n % 16),
            Number::Page(n, by) => (u64::from(n % 32) * 4096).saturating_add_signed(by.into()),
            Number::Object(by) => (128u64 << 20).saturating_add_signed(by.into()),
            Number::Large(n) => u64::MAX - u64::from(n),
            Number::Any(n) => n,
        }
    }
}

/// An operation of any kind.
#[derive(Debug, Clone, Arbitrary)]
pub enum Op {
    /// Of a known code.
    Known {
        code: u8,
        flags: u8,
        args: [Number; 3],
        data: Vec<u8>,
    },
    /// A class method with its input.
    Call(u8, Vec<u8>),
    /// An operation on an attribute: name, value, and what to compare by.
    Attr(u8, u8, Vec<u8>, u16),
    /// Pairs of an omap.
    Pairs(Vec<(u8, u8)>),
    Keys(Vec<u8>),
    Write(Number, u16),
    Wild([u8; 38], Vec<u8>),
}

/// All codes that have a name.
fn codes() -> &'static [OpCode] {
    static CODES: std::sync::OnceLock<Vec<OpCode>> = std::sync::OnceLock::new();
    CODES.get_or_init(|| {
        let all = (0..=u16::MAX).map(OpCode);
        all.filter(|c| c.name().is_some()).collect()
    })
}

impl Op {
    /// The operation and its data.
    pub fn make(&self) -> (OsdOp, Vec<u8>) {
        let (mut raw, data) = match self {
            Op::Known {
                code,
                flags,
                args,
                data,
            } => {
                let code = codes()[usize::from(*code) % codes().len()];
                (raw(code, *flags, &args.map(Number::get)), data.clone())
            }
            Op::Call(which, input) => {
                let method = cls::all()[usize::from(*which) % cls::all().len()];
                let mut args = vec![method.class.len() as u8, method.name.len() as u8, 0];
                args.put_u32(input.len() as u32);
                let names = [method.class.as_bytes(), method.name.as_bytes()].concat();
                (head(OpCode::CALL, 0, &args), [&names[..], input].concat())
            }
            Op::Attr(what, name, value, how) => {
                let code = match what % 4 {
                    0 => OpCode::SETXATTR,
                    1 => OpCode::CMPXATTR,
                    2 => OpCode::RMXATTR,
                    _ => OpCode::GETXATTR,
                };
                let mut args = Vec::new();
                args.put_u32(1);
                args.put_u32(value.len() as u32);
                args.put_u16(*how);
                (head(code, 0, &args), [&[*name][..], value].concat())
            }
            Op::Pairs(pairs) => {
                let mut data = Vec::new();
                data.put_list(pairs.iter(), |out, (key, value)| {
                    out.put_blob(&[*key]);
                    out.put_blob(&[*value; 3]);
                });
                (head(OpCode::OMAP_SET_VALS, 0, &[]), data)
            }
            Op::Keys(keys) => {
                let mut data = Vec::new();
                data.put_list(keys.iter(), |out, key| out.put_blob(&[*key]));
                (head(OpCode::OMAP_RM_KEYS, 0, &[]), data)
            }
            Op::Write(at, length) => {
                let length = usize::from(*length) % 9000;
                let args = [at.get(), length as u64, 0];
                (raw(OpCode::WRITE, 0, &args), vec![length as u8; length])
            }
            Op::Wild(bytes, data) => (bytes.to_vec(), data.clone()),
        };
        raw[34..38].copy_from_slice(&(data.len() as u32).to_le_bytes());
        let op = OsdOp::read(&mut Reader::new(&raw)).expect("an operation of any bytes");
        (op, data)
    }
}

fn raw(code: OpCode, flags: u8, args: &[u64; 3]) -> Vec<u8> {
    let mut bytes = Vec::new();
    args.iter().for_each(|a| bytes.put_u64(*a));
    head(code, flags, &bytes)
}

fn head(code: OpCode, flags: u8, args: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u16(code.0);
    out.put_u32(u32::from(flags % 4));
    out.put_bytes(args);
    out.resize(38, 0);
    out
}

/// Operations and the data of all.
pub fn make(ops: &[Op]) -> (Vec<OsdOp>, Vec<u8>) {
    let (ops, data): (Vec<_>, Vec<_>) = ops.iter().map(Op::make).unzip();
    (ops, data.concat())
}

/// A request as a client would make it, for a part of it to be spoiled.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    pub pg: PgId,
    pub epoch: u32,
    pub flags: OsdFlags,
    pub hash: u32,
    pub namespace: &'a [u8],
    pub key: &'a [u8],
    pub oid: &'a [u8],
    pub ops: &'a [OsdOp],
    pub snap: u64,
    pub snap_seq: u64,
    pub snaps: &'a [u64],
    pub reqid: ReqId,
}

impl<'a> Ask<'a> {
    pub fn message(&self) -> MOsdOp<'a> {
        MOsdOp {
            pgid: SpgId {
                pg: self.pg,
                ..SpgId::default()
            },
            hash: self.hash,
            epoch: self.epoch,
            flags: self.flags,
            reqid: self.reqid,
            trace: [0; 24],
            otel: None,
            client_inc: 0,
            mtime: UTime { sec: 1, nsec: 2 },
            locator: Locator {
                pool: self.pg.pool,
                key: self.key,
                namespace: self.namespace,
                hash: -1,
            },
            oid: self.oid,
            ops: WireList::Native(self.ops),
            snap_id: self.snap,
            snap_seq: self.snap_seq,
            snaps: WireList::Native(self.snaps),
            retry_attempt: 0,
            features: 0,
        }
    }
}

pub fn peer(gid: u8, caps: Caps, features: u64) -> Peer {
    Peer {
        name: EntityName::new(EntityType::CLIENT, gid.into()),
        auth: AuthName::client("vm"),
        addrs: addrs(gid),
        caps,
        features,
    }
}

/// What must hold of the objects of a pg whatever was asked: sizes are those of the data, clones
/// are what their heads say, and overlaps are true.
pub fn check_objects<S: Store>(store: &mut S, pg: PgId) {
    let all = store
        .list(pg, &HObjectRef::MIN, usize::MAX)
        .expect("a list");
    assert!(!all.more);
    let mut clones = 0;
    for object in &all.items {
        let oid = object.as_ref();
        let info = store.info(pg, &oid).expect("a pg").expect("it is listed");
        let info = info.clone();
        let data = bytes(store, pg, object);
        assert!(data.len() as u64 <= info.size, "{info:?}");
        assert!(info.size <= 128 << 20, "{info:?}");
        for (offset, length) in store.extents(pg, &oid, 0, u64::MAX).expect("extents") {
            assert!(length > 0 && offset + length <= data.len() as u64);
        }
        if oid.snap != NOSNAP {
            clones += 1;
            continue;
        }
        let mut newer = data;
        newer.resize(info.size as usize, 0);
        let ids: Vec<u64> = info.snaps.clones.iter().map(|c| c.id).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        assert!(ids.last().is_none_or(|id| *id <= info.snaps.seq));
        for clone in info.snaps.clones.iter().rev() {
            assert!(!clone.snaps.is_empty(), "a clone that serves nothing");
            assert!(clone.snaps.is_sorted_by(|a, b| a > b));
            assert!(clone.snaps[0] <= clone.id);
            let name = HObject::from(HObjectRef {
                snap: clone.id,
                ..oid
            });
            let there = store.info(pg, &name.as_ref()).expect("a pg");
            assert_eq!(there.expect("a clone that is listed").size, clone.size);
            clones -= 1;
            let mut older = bytes(store, pg, &name);
            older.resize(clone.size as usize, 0);
            let mut end = 0;
            for &(offset, length) in &clone.overlap {
                assert!(length > 0 && offset >= end, "{:?}", clone.overlap);
                end = offset + length;
                let range = offset as usize..end as usize;
                assert_eq!(older.get(range.clone()), newer.get(range), "{clone:?}");
            }
            newer = older;
        }
    }
    assert_eq!(clones, 0, "clones of which no head knows");
    let usage = store.usage(pg);
    assert_eq!(usage.objects, all.items.len() as u64);
}

fn bytes<S: Store>(store: &mut S, pg: PgId, object: &HObject) -> Vec<u8> {
    let mut out = Vec::new();
    let n = store
        .read(pg, &object.as_ref(), 0, u64::MAX, &mut out)
        .expect("a pg");
    assert_eq!(n, out.len());
    out
}
