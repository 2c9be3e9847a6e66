use std::fmt;

use super::flags::OpFlags;
use super::list::Fixed;
use crate::codec::{Put, Reader, Result};

const MODE_RD: u16 = 0x1000;
const MODE_WR: u16 = 0x2000;
const MODE_CACHE: u16 = 0x8000;
const TYPE_MASK: u16 = 0x0f00;
const DATA: u16 = 0x0200;
const ATTR: u16 = 0x0300;
const EXEC: u16 = 0x0400;
const PG: u16 = 0x0500;

/// What an operation does: mode, type and number (`__CEPH_FORALL_OSD_OPS`, `src/include/rados.h`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OpCode(pub u16);

macro_rules! codes {
    ($($name:ident = $code:expr, $text:literal;)*) => {
        impl OpCode {
            $(pub const $name: OpCode = OpCode($code);)*

            /// Ceph's name of the operation.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(OpCode::$name => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    READ = MODE_RD | DATA | 1, "read";
    STAT = MODE_RD | DATA | 2, "stat";
    MAPEXT = MODE_RD | DATA | 3, "mapext";
    SPARSE_READ = MODE_RD | DATA | 5, "sparse-read";
    NOTIFY = MODE_RD | DATA | 6, "notify";
    NOTIFY_ACK = MODE_RD | DATA | 7, "notify-ack";
    ASSERT_VER = MODE_RD | DATA | 8, "assert-version";
    LIST_WATCHERS = MODE_RD | DATA | 9, "list-watchers";
    LIST_SNAPS = MODE_RD | DATA | 10, "list-snaps";
    SYNC_READ = MODE_RD | DATA | 11, "sync_read";
    WRITE = MODE_WR | DATA | 1, "write";
    WRITEFULL = MODE_WR | DATA | 2, "writefull";
    TRUNCATE = MODE_WR | DATA | 3, "truncate";
    ZERO = MODE_WR | DATA | 4, "zero";
    DELETE = MODE_WR | DATA | 5, "delete";
    APPEND = MODE_WR | DATA | 6, "append";
    CREATE = MODE_WR | DATA | 13, "create";
    ROLLBACK = MODE_WR | DATA | 14, "rollback";
    WATCH = MODE_WR | DATA | 15, "watch";
    TMAPUP = MODE_RD | MODE_WR | DATA | 10, "tmapup";
    TMAPPUT = MODE_WR | DATA | 11, "tmapput";
    TMAPGET = MODE_RD | DATA | 12, "tmapget";
    OMAP_GET_KEYS = MODE_RD | DATA | 17, "omap-get-keys";
    OMAP_GET_VALS = MODE_RD | DATA | 18, "omap-get-vals";
    OMAP_GET_HEADER = MODE_RD | DATA | 19, "omap-get-header";
    OMAP_GET_VALS_BY_KEYS = MODE_RD | DATA | 20, "omap-get-vals-by-keys";
    OMAP_SET_VALS = MODE_WR | DATA | 21, "omap-set-vals";
    OMAP_SET_HEADER = MODE_WR | DATA | 22, "omap-set-header";
    OMAP_CLEAR = MODE_WR | DATA | 23, "omap-clear";
    OMAP_RM_KEYS = MODE_WR | DATA | 24, "omap-rm-keys";
    OMAP_CMP = MODE_RD | DATA | 25, "omap-cmp";
    STARTSYNC = MODE_WR | DATA | 7, "startsync";
    ISDIRTY = MODE_RD | DATA | 29, "isdirty";
    CHECKSUM = MODE_RD | DATA | 31, "checksum";
    CACHE_FLUSH = MODE_CACHE | DATA | 31, "cache-flush";
    CACHE_EVICT = MODE_CACHE | DATA | 32, "cache-evict";
    CACHE_TRY_FLUSH = MODE_CACHE | DATA | 33, "cache-try-flush";
    CACHE_PIN = MODE_WR | DATA | 36, "cache-pin";
    CACHE_UNPIN = MODE_WR | DATA | 37, "cache-unpin";
    CMPEXT = MODE_RD | DATA | 32, "cmpext";
    SET_ALLOC_HINT = MODE_WR | DATA | 35, "set-alloc-hint";
    WRITESAME = MODE_WR | DATA | 38, "write-same";
    OMAP_RM_KEY_RANGE = MODE_WR | DATA | 44, "omap-rm-key-range";
    GETXATTR = MODE_RD | ATTR | 1, "getxattr";
    GETXATTRS = MODE_RD | ATTR | 2, "getxattrs";
    CMPXATTR = MODE_RD | ATTR | 3, "cmpxattr";
    SETXATTR = MODE_WR | ATTR | 1, "setxattr";
    RMXATTR = MODE_WR | ATTR | 4, "rmxattr";
    CALL = MODE_RD | EXEC | 1, "call";
    PGNLS = MODE_RD | PG | 5, "pgnls";
}

impl OpCode {
    /// A call's mode bit says read whatever the method does (`ceph_osd_op_mode_read`).
    pub fn is_read(self) -> bool {
        self.0 & MODE_RD != 0 && self != OpCode::CALL
    }

    pub fn is_write(self) -> bool {
        self.0 & MODE_WR != 0
    }

    pub fn is_attr(self) -> bool {
        self.0 & TYPE_MASK == ATTR
    }

    /// `ceph_osd_op_uses_extent`.
    pub fn uses_extent(self) -> bool {
        matches!(
            self,
            OpCode::READ
                | OpCode::MAPEXT
                | OpCode::SPARSE_READ
                | OpCode::SYNC_READ
                | OpCode::WRITE
                | OpCode::WRITEFULL
                | OpCode::TRUNCATE
                | OpCode::ZERO
                | OpCode::APPEND
                | OpCode::CMPEXT
        )
    }
}

impl fmt::Debug for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "op {:#06x}", self.0),
        }
    }
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $value,)*
        }

        impl $name {
            pub fn from_wire(v: u8) -> Option<$name> {
                match v {
                    $($value => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(super) use numbered;

numbered! {
    /// `CEPH_OSD_WATCH_OP_*`.
    WatchOp {
        Unwatch = 0,
        Watch = 3,
        Reconnect = 5,
        Ping = 7,
    }
}

numbered! {
    /// How an attribute or omap value is compared (`CEPH_OSD_CMPXATTR_OP_*`).
    CmpOp {
        Eq = 1,
        Ne = 2,
        Gt = 3,
        Gte = 4,
        Lt = 5,
        Lte = 6,
    }
}

numbered! {
    /// What an attribute is compared as (`CEPH_OSD_CMPXATTR_MODE_*`).
    CmpMode {
        String = 1,
        U64 = 2,
    }
}

/// The arguments of reads, writes and their like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
    pub truncate_size: u64,
    pub truncate_seq: u32,
}

/// The arguments of operations on attributes; name and value follow in the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XattrArgs {
    pub name_len: u32,
    pub value_len: u32,
    /// A [`CmpOp`] or zero.
    pub cmp_op: u8,
    /// A [`CmpMode`] or zero.
    pub cmp_mode: u8,
}

/// The arguments of a call; class, method and input follow in the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClsCall {
    pub class_len: u8,
    pub method_len: u8,
    pub input_len: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WatchArgs {
    pub cookie: u64,
    /// A [`WatchOp`].
    pub op: u8,
    pub generation: u32,
    pub timeout: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocHint {
    pub expected_object_size: u64,
    pub expected_write_size: u64,
    pub flags: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteSame {
    pub offset: u64,
    pub length: u64,
    pub data_length: u64,
}

/// The arguments of a checksum; the seed follows in the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checksum {
    pub offset: u64,
    pub length: u64,
    /// One checksum for each so many bytes, or zero for one of all.
    pub chunk_size: u32,
    /// `CEPH_OSD_CHECKSUM_OP_TYPE_*`.
    pub kind: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PgLs {
    pub count: u64,
    pub start_epoch: u32,
}

/// `struct ceph_osd_op`: code, flags, 28 bytes of arguments whose meaning depends on the code, and
/// the number of bytes that belong to the operation in the message's data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OsdOp {
    pub code: OpCode,
    pub flags: OpFlags,
    args: [u8; OsdOp::ARGS],
    pub payload_len: u32,
}

/// Writes arguments one after the other; what is left stays zero, as `memset` leaves it in Ceph.
struct Args {
    bytes: [u8; OsdOp::ARGS],
    at: usize,
}

impl Args {
    fn new() -> Args {
        Args {
            bytes: [0; OsdOp::ARGS],
            at: 0,
        }
    }

    fn put<const N: usize>(mut self, v: [u8; N]) -> Args {
        self.bytes[self.at..self.at + N].copy_from_slice(&v);
        self.at += N;
        self
    }

    fn u8(self, v: u8) -> Args {
        self.put([v])
    }

    fn u32(self, v: u32) -> Args {
        self.put(v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Args {
        self.put(v.to_le_bytes())
    }
}

impl OsdOp {
    pub const SIZE: usize = 38;
    const ARGS: usize = 28;

    fn new(code: OpCode, args: Args) -> OsdOp {
        OsdOp {
            code,
            flags: OpFlags::NONE,
            args: args.bytes,
            payload_len: 0,
        }
    }

    /// An operation without arguments.
    pub fn plain(code: OpCode) -> OsdOp {
        OsdOp::new(code, Args::new())
    }

    pub fn with_extent(code: OpCode, e: Extent) -> OsdOp {
        let args = Args::new()
            .u64(e.offset)
            .u64(e.length)
            .u64(e.truncate_size)
            .u32(e.truncate_seq);
        OsdOp::new(code, args)
    }

    pub fn with_xattr(code: OpCode, x: XattrArgs) -> OsdOp {
        let args = Args::new()
            .u32(x.name_len)
            .u32(x.value_len)
            .u8(x.cmp_op)
            .u8(x.cmp_mode);
        OsdOp::new(code, args)
    }

    pub fn with_call(c: ClsCall) -> OsdOp {
        // The third byte is an argument count that was never used.
        let args = Args::new()
            .u8(c.class_len)
            .u8(c.method_len)
            .u8(0)
            .u32(c.input_len);
        OsdOp::new(OpCode::CALL, args)
    }

    pub fn with_watch(w: WatchArgs) -> OsdOp {
        // The second number is a version that is no longer used.
        let args = Args::new()
            .u64(w.cookie)
            .u64(0)
            .u8(w.op)
            .u32(w.generation)
            .u32(w.timeout);
        OsdOp::new(OpCode::WATCH, args)
    }

    pub fn with_alloc_hint(h: AllocHint) -> OsdOp {
        let args = Args::new()
            .u64(h.expected_object_size)
            .u64(h.expected_write_size)
            .u32(h.flags);
        OsdOp::new(OpCode::SET_ALLOC_HINT, args)
    }

    pub fn with_writesame(w: WriteSame) -> OsdOp {
        let args = Args::new().u64(w.offset).u64(w.length).u64(w.data_length);
        OsdOp::new(OpCode::WRITESAME, args)
    }

    pub fn with_checksum(c: Checksum) -> OsdOp {
        let args = Args::new()
            .u64(c.offset)
            .u64(c.length)
            .u32(c.chunk_size)
            .u8(c.kind);
        OsdOp::new(OpCode::CHECKSUM, args)
    }

    pub fn with_pgls(p: PgLs) -> OsdOp {
        OsdOp::new(OpCode::PGNLS, Args::new().u64(p.count).u32(p.start_epoch))
    }

    /// `snap.snapid` of a rollback.
    pub fn with_snap(code: OpCode, snap: u64) -> OsdOp {
        OsdOp::new(code, Args::new().u64(snap))
    }

    /// `notify.cookie` of a notify.
    pub fn with_cookie(code: OpCode, cookie: u64) -> OsdOp {
        OsdOp::new(code, Args::new().u64(cookie))
    }

    pub fn with_version(version: u64) -> OsdOp {
        OsdOp::new(OpCode::ASSERT_VER, Args::new().u64(0).u64(version))
    }

    fn arg<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut v = [0; N];
        v.copy_from_slice(&self.args[at..at + N]);
        v
    }

    fn arg_u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.arg(at))
    }

    fn arg_u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.arg(at))
    }

    pub fn extent(&self) -> Extent {
        Extent {
            offset: self.arg_u64(0),
            length: self.arg_u64(8),
            truncate_size: self.arg_u64(16),
            truncate_seq: self.arg_u32(24),
        }
    }

    pub fn xattr(&self) -> XattrArgs {
        XattrArgs {
            name_len: self.arg_u32(0),
            value_len: self.arg_u32(4),
            cmp_op: self.args[8],
            cmp_mode: self.args[9],
        }
    }

    pub fn call(&self) -> ClsCall {
        ClsCall {
            class_len: self.args[0],
            method_len: self.args[1],
            input_len: self.arg_u32(3),
        }
    }

    pub fn watch(&self) -> WatchArgs {
        WatchArgs {
            cookie: self.arg_u64(0),
            op: self.args[16],
            generation: self.arg_u32(17),
            timeout: self.arg_u32(21),
        }
    }

    pub fn alloc_hint(&self) -> AllocHint {
        AllocHint {
            expected_object_size: self.arg_u64(0),
            expected_write_size: self.arg_u64(8),
            flags: self.arg_u32(16),
        }
    }

    pub fn writesame(&self) -> WriteSame {
        WriteSame {
            offset: self.arg_u64(0),
            length: self.arg_u64(8),
            data_length: self.arg_u64(16),
        }
    }

    pub fn checksum(&self) -> Checksum {
        Checksum {
            offset: self.arg_u64(0),
            length: self.arg_u64(8),
            chunk_size: self.arg_u32(16),
            kind: self.args[20],
        }
    }

    pub fn pgls(&self) -> PgLs {
        PgLs {
            count: self.arg_u64(0),
            start_epoch: self.arg_u32(8),
        }
    }

    pub fn snap(&self) -> u64 {
        self.arg_u64(0)
    }

    pub fn cookie(&self) -> u64 {
        self.arg_u64(0)
    }

    pub fn version(&self) -> u64 {
        self.arg_u64(8)
    }
}

impl Fixed for OsdOp {
    const SIZE: usize = OsdOp::SIZE;

    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<OsdOp> {
        Ok(OsdOp {
            code: OpCode(r.u16()?),
            flags: OpFlags(r.u32()?),
            args: r.fixed()?,
            payload_len: r.u32()?,
        })
    }

    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        out.put_u16(self.code.0);
        out.put_u32(self.flags.0);
        out.put_bytes(&self.args);
        out.put_u32(self.payload_len);
    }
}

impl fmt::Debug for OsdOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code.fmt(f)?;
        if self.code.uses_extent() {
            let e = self.extent();
            write!(f, " {}~{}", e.offset, e.length)?;
        }
        if self.payload_len > 0 {
            write!(f, " +{}", self.payload_len)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn codes_are_those_of_the_wire() {
        assert_eq!(OpCode::READ.0, 0x1201);
        assert_eq!(OpCode::SPARSE_READ.0, 0x1205);
        assert_eq!(OpCode::WRITE.0, 0x2201);
        assert_eq!(OpCode::CALL.0, 0x1401);
        assert_eq!(OpCode::SET_ALLOC_HINT.0, 0x2223);
        assert_eq!(OpCode::PGNLS.0, 0x1505);
        assert!(!OpCode::CALL.is_read() && OpCode::STAT.is_read() && OpCode::WATCH.is_write());
    }

    proptest! {
        #[test]
        fn arguments_survive_a_round_trip(a: u64, b: u64, c: u64, d: u32, e: u8, f: u8, flags: u32, len: u32) {
            let check = |op: OsdOp| {
                let mut op = op;
                op.flags = OpFlags(flags);
                op.payload_len = len;
                let mut out = Vec::new();
                op.write(&mut out);
                assert_eq!(out.len(), OsdOp::SIZE);
                let back = OsdOp::read(&mut Reader::new(&out)).unwrap();
                assert_eq!(back, op);
                back
            };
            let extent = Extent { offset: a, length: b, truncate_size: c, truncate_seq: d };
            prop_assert_eq!(check(OsdOp::with_extent(OpCode::WRITE, extent)).extent(), extent);
            let xattr = XattrArgs { name_len: d, value_len: len, cmp_op: e, cmp_mode: f };
            prop_assert_eq!(check(OsdOp::with_xattr(OpCode::CMPXATTR, xattr)).xattr(), xattr);
            let call = ClsCall { class_len: e, method_len: f, input_len: d };
            prop_assert_eq!(check(OsdOp::with_call(call)).call(), call);
            let watch = WatchArgs { cookie: a, op: e, generation: d, timeout: len };
            prop_assert_eq!(check(OsdOp::with_watch(watch)).watch(), watch);
            let hint = AllocHint { expected_object_size: a, expected_write_size: b, flags: d };
            prop_assert_eq!(check(OsdOp::with_alloc_hint(hint)).alloc_hint(), hint);
            let same = WriteSame { offset: a, length: b, data_length: c };
            prop_assert_eq!(check(OsdOp::with_writesame(same)).writesame(), same);
            let sum = Checksum { offset: a, length: b, chunk_size: d, kind: e };
            prop_assert_eq!(check(OsdOp::with_checksum(sum)).checksum(), sum);
            let pgls = PgLs { count: a, start_epoch: d };
            prop_assert_eq!(check(OsdOp::with_pgls(pgls)).pgls(), pgls);
            prop_assert_eq!(check(OsdOp::with_snap(OpCode::ROLLBACK, a)).snap(), a);
            prop_assert_eq!(check(OsdOp::with_cookie(OpCode::NOTIFY, a)).cookie(), a);
            prop_assert_eq!(check(OsdOp::with_version(a)).version(), a);
        }
    }
}
