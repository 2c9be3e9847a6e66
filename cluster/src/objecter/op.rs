use smallvec::SmallVec;

use super::msg::{
    AllocHint, ClsCall, CmpMode, CmpOp, Extent, HObjectRef, OpCode, OpFlags, OsdOp, PgLs,
    WatchArgs, WatchOp, WriteSame, XattrArgs,
};
use crate::codec::Put;
use crate::payload::Payload;

/// The operations of one request, executed in order and in one transaction on one object.
///
/// The arguments are laid out as `ObjectOperation` of `src/osdc/Objecter.h` lays them out. Three
/// operations and three payloads fit without an allocation, which covers every read and write of
/// an image's data.
#[derive(Debug, Clone, Default)]
pub struct ObjectOp {
    ops: SmallVec<[OsdOp; 3]>,
    /// What the operations carry, in their order. One operation may own several pieces.
    data: SmallVec<[Payload; 3]>,
}

impl ObjectOp {
    pub fn new() -> ObjectOp {
        ObjectOp::default()
    }

    #[cfg(test)]
    pub(crate) fn from_parts(ops: &[OsdOp], data: Payload) -> ObjectOp {
        ObjectOp {
            ops: SmallVec::from_slice(ops),
            data: SmallVec::from_iter([data]),
        }
    }

    pub fn ops(&self) -> &[OsdOp] {
        &self.ops
    }

    pub fn data(&self) -> &[Payload] {
        &self.data
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Drops the operations and their payloads, keeps the room.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.data.clear();
    }

    /// Adds flags to the operation added last.
    pub fn with_flags(mut self, flags: OpFlags) -> ObjectOp {
        if let Some(op) = self.ops.last_mut() {
            op.flags |= flags;
        }
        self
    }

    /// Bytes that this request takes up on its way there or back (`Objecter::calc_op_budget`).
    pub fn budget(&self) -> u64 {
        let cost = |op: &OsdOp| {
            if op.code.is_write() {
                u64::from(op.payload_len)
            } else if op.code.is_read() && op.code.uses_extent() {
                op.extent().length
            } else if op.code.is_read() && op.code.is_attr() {
                let x = op.xattr();
                u64::from(x.name_len) + u64::from(x.value_len)
            } else {
                0
            }
        };
        self.ops
            .iter()
            .map(cost)
            .fold(0, |sum, n| sum.saturating_add(n))
    }

    fn push(mut self, mut op: OsdOp, pieces: impl IntoIterator<Item = Payload>) -> ObjectOp {
        let mut len = 0usize;
        for piece in pieces {
            if !piece.is_empty() {
                len += piece.len();
                self.data.push(piece);
            }
        }
        op.payload_len = u32::try_from(len).expect("operation carries 4 GiB");
        self.ops.push(op);
        self
    }

    fn extent(
        self,
        code: OpCode,
        offset: u64,
        length: u64,
        data: impl IntoIterator<Item = Payload>,
    ) -> ObjectOp {
        let extent = Extent {
            offset,
            length,
            ..Extent::default()
        };
        self.push(OsdOp::with_extent(code, extent), data)
    }

    /// An operation whose arguments are encoded in its data, whose length `extent.length` repeats.
    fn encoded(self, code: OpCode, args: Vec<u8>) -> ObjectOp {
        let len = args.len() as u64;
        self.extent(code, 0, len, [Payload::from(args)])
    }

    // Data.

    pub fn read(self, offset: u64, length: u64) -> ObjectOp {
        self.extent(OpCode::READ, offset, length, [])
    }

    /// A read that tells holes from data; decoded by [`results::SparseRead`](super::results).
    pub fn sparse_read(self, offset: u64, length: u64) -> ObjectOp {
        self.extent(OpCode::SPARSE_READ, offset, length, [])
    }

    /// Which parts of a range are stored; the answer is a map of offsets to lengths. Pools that are
    /// erasure-coded refuse it.
    pub fn map_extents(self, offset: u64, length: u64) -> ObjectOp {
        self.extent(OpCode::MAPEXT, offset, length, [])
    }

    /// Writes pieces that follow one another.
    pub fn write_pieces(
        self,
        offset: u64,
        pieces: impl IntoIterator<Item = Payload, IntoIter: Clone>,
    ) -> ObjectOp {
        let pieces = pieces.into_iter();
        let length = pieces.clone().map(|p| p.len() as u64).sum();
        self.extent(OpCode::WRITE, offset, length, pieces)
    }

    pub fn write(self, offset: u64, data: Payload) -> ObjectOp {
        let len = data.len() as u64;
        self.extent(OpCode::WRITE, offset, len, [data])
    }

    /// Replaces the whole object.
    pub fn write_full(self, data: Payload) -> ObjectOp {
        let len = data.len() as u64;
        self.extent(OpCode::WRITEFULL, 0, len, [data])
    }

    pub fn append(self, data: Payload) -> ObjectOp {
        let len = data.len() as u64;
        self.extent(OpCode::APPEND, 0, len, [data])
    }

    /// Fills `length` bytes with repetitions of `data`, whose length must divide `length`.
    pub fn write_same(self, offset: u64, length: u64, data: Payload) -> ObjectOp {
        let args = WriteSame {
            offset,
            length,
            data_length: data.len() as u64,
        };
        self.push(OsdOp::with_writesame(args), [data])
    }

    pub fn zero(self, offset: u64, length: u64) -> ObjectOp {
        self.extent(OpCode::ZERO, offset, length, [])
    }

    pub fn truncate(self, size: u64) -> ObjectOp {
        self.extent(OpCode::TRUNCATE, size, 0, [])
    }

    pub fn delete(self) -> ObjectOp {
        self.extent(OpCode::DELETE, 0, 0, [])
    }

    /// Decoded by [`results::Stat`](super::results).
    pub fn stat(self) -> ObjectOp {
        self.push(OsdOp::plain(OpCode::STAT), [])
    }

    pub fn create(self, exclusive: bool) -> ObjectOp {
        let op = self.push(OsdOp::plain(OpCode::CREATE), []);
        if exclusive {
            op.with_flags(OpFlags::EXCL)
        } else {
            op
        }
    }

    /// Fails the request unless the object has `data` at `offset`. On a difference the result is
    /// -4095 minus the offset of the first differing byte.
    pub fn cmpext(self, offset: u64, data: Payload) -> ObjectOp {
        let len = data.len() as u64;
        self.extent(OpCode::CMPEXT, offset, len, [data])
    }

    /// Fails with ENOENT when the object does not exist (`librados::ObjectOperation::assert_exists`
    /// is a stat too).
    pub fn assert_exists(self) -> ObjectOp {
        self.stat()
    }

    /// Fails with ERANGE or EOVERFLOW unless this is the object's version.
    pub fn assert_version(self, version: u64) -> ObjectOp {
        self.push(OsdOp::with_version(version), [])
    }

    /// Tells the store how the object will grow. OSDs that do not know hints ignore it: it never
    /// fails a request.
    pub fn set_alloc_hint(self, object_size: u64, write_size: u64, flags: u32) -> ObjectOp {
        let hint = AllocHint {
            expected_object_size: object_size,
            expected_write_size: write_size,
            flags,
        };
        self.push(OsdOp::with_alloc_hint(hint), [])
            .with_flags(OpFlags::FAILOK)
    }

    /// Brings back the object as it was at a snapshot.
    pub fn rollback(self, snap: u64) -> ObjectOp {
        self.push(OsdOp::with_snap(OpCode::ROLLBACK, snap), [])
    }

    /// Clones of the object; the request must read [`SNAPDIR`](super::msg::SNAPDIR). Decoded by
    /// [`results::SnapSet`](super::results).
    pub fn list_snaps(self) -> ObjectOp {
        self.push(OsdOp::plain(OpCode::LIST_SNAPS), [])
    }

    // Attributes.

    fn xattr(self, code: OpCode, name: &str, value: &[u8], cmp: Option<(CmpOp, CmpMode)>) -> Self {
        let args = XattrArgs {
            name_len: name.len() as u32,
            value_len: value.len() as u32,
            cmp_op: cmp.map_or(0, |(op, _)| op as u8),
            cmp_mode: cmp.map_or(0, |(_, mode)| mode as u8),
        };
        let data = [name.as_bytes(), value].concat();
        self.push(OsdOp::with_xattr(code, args), [Payload::from(data)])
    }

    pub fn getxattr(self, name: &str) -> ObjectOp {
        self.xattr(OpCode::GETXATTR, name, &[], None)
    }

    /// All attributes; decoded by [`results::decode_map`](super::results::decode_map).
    pub fn getxattrs(self) -> ObjectOp {
        self.push(OsdOp::plain(OpCode::GETXATTRS), [])
    }

    pub fn setxattr(self, name: &str, value: &[u8]) -> ObjectOp {
        self.xattr(OpCode::SETXATTR, name, value, None)
    }

    pub fn rmxattr(self, name: &str) -> ObjectOp {
        self.xattr(OpCode::RMXATTR, name, &[], None)
    }

    /// Fails the request with ECANCELED unless the attribute compares so to `value`.
    pub fn cmpxattr(self, name: &str, op: CmpOp, mode: CmpMode, value: &[u8]) -> ObjectOp {
        self.xattr(OpCode::CMPXATTR, name, value, Some((op, mode)))
    }

    // Omap.

    /// Keys after `start_after`; decoded by [`results::OmapKeys`](super::results).
    pub fn omap_get_keys(self, start_after: &[u8], max: u64) -> ObjectOp {
        let mut args = Vec::new();
        args.put_blob(start_after);
        args.put_u64(max);
        self.encoded(OpCode::OMAP_GET_KEYS, args)
    }

    /// Keys after `start_after` that begin with `prefix`, and their values; decoded by
    /// [`results::OmapVals`](super::results).
    pub fn omap_get_vals(self, start_after: &[u8], prefix: &[u8], max: u64) -> ObjectOp {
        let mut args = Vec::new();
        args.put_blob(start_after);
        args.put_u64(max);
        args.put_blob(prefix);
        self.encoded(OpCode::OMAP_GET_VALS, args)
    }

    /// Decoded by [`results::decode_map`](super::results::decode_map). Keys must be sorted.
    pub fn omap_get_vals_by_keys<'k>(
        self,
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
    ) -> ObjectOp {
        self.encoded(OpCode::OMAP_GET_VALS_BY_KEYS, encode_keys(keys))
    }

    pub fn omap_get_header(self) -> ObjectOp {
        self.push(OsdOp::plain(OpCode::OMAP_GET_HEADER), [])
    }

    pub fn omap_set_header(self, header: Payload) -> ObjectOp {
        let len = header.len() as u64;
        self.extent(OpCode::OMAP_SET_HEADER, 0, len, [header])
    }

    /// Keys must be sorted.
    pub fn omap_set<'k>(
        self,
        pairs: impl ExactSizeIterator<Item = (&'k [u8], &'k [u8])>,
    ) -> ObjectOp {
        let mut args = Vec::new();
        args.put_list(pairs, |out, (key, value)| {
            out.put_blob(key);
            out.put_blob(value);
        });
        self.encoded(OpCode::OMAP_SET_VALS, args)
    }

    /// Keys must be sorted.
    pub fn omap_rm_keys<'k>(self, keys: impl ExactSizeIterator<Item = &'k [u8]>) -> ObjectOp {
        self.encoded(OpCode::OMAP_RM_KEYS, encode_keys(keys))
    }

    /// Removes the keys from `begin` up to, without, `end`.
    pub fn omap_rm_range(self, begin: &[u8], end: &[u8]) -> ObjectOp {
        let mut args = Vec::new();
        args.put_blob(begin);
        args.put_blob(end);
        self.encoded(OpCode::OMAP_RM_KEY_RANGE, args)
    }

    pub fn omap_clear(self) -> ObjectOp {
        self.push(OsdOp::plain(OpCode::OMAP_CLEAR), [])
    }

    /// Fails the request with ECANCELED unless every key's value compares so. Keys must be sorted.
    pub fn omap_cmp<'k>(
        self,
        assertions: impl ExactSizeIterator<Item = (&'k [u8], &'k [u8], CmpOp)>,
    ) -> ObjectOp {
        let mut args = Vec::new();
        args.put_list(assertions, |out, (key, value, op)| {
            out.put_blob(key);
            out.put_blob(value);
            out.put_i32(op as i32);
        });
        self.encoded(OpCode::OMAP_CMP, args)
    }

    // Object classes.

    /// Calls a method of an object class. Panics when a name is longer than 255 bytes.
    pub fn call(self, class: &str, method: &str, input: Payload) -> ObjectOp {
        let byte = |name: &str| u8::try_from(name.len()).expect("class or method name too long");
        let args = ClsCall {
            class_len: byte(class),
            method_len: byte(method),
            input_len: input.len() as u32,
        };
        // The input may be a whole object (copyup), so it stays a piece of its own.
        let names = Payload::from([class.as_bytes(), method.as_bytes()].concat());
        self.push(OsdOp::with_call(args), [names, input])
    }

    // Watch and notify. Watches are kept alive by `Objecter::watch`; these are the bare operations.

    pub(crate) fn watch(self, op: WatchOp, cookie: u64, generation: u32, timeout: u32) -> ObjectOp {
        let args = WatchArgs {
            cookie,
            op: op as u8,
            generation,
            timeout,
        };
        self.push(OsdOp::with_watch(args), [])
    }

    pub(crate) fn notify(self, cookie: u64, timeout: u32, payload: &[u8]) -> ObjectOp {
        let mut args = Vec::new();
        // A protocol version that OSDs ignore.
        args.put_u32(1);
        args.put_u32(timeout);
        args.put_blob(payload);
        self.push(
            OsdOp::with_cookie(OpCode::NOTIFY, cookie),
            [Payload::from(args)],
        )
    }

    pub(crate) fn notify_ack(self, notify_id: u64, cookie: u64, reply: &[u8]) -> ObjectOp {
        let mut args = Vec::new();
        args.put_u64(notify_id);
        args.put_u64(cookie);
        args.put_blob(reply);
        self.push(OsdOp::plain(OpCode::NOTIFY_ACK), [Payload::from(args)])
    }

    /// Decoded by [`results::decode_watchers`](super::results::decode_watchers).
    pub fn list_watchers(self) -> ObjectOp {
        self.push(OsdOp::plain(OpCode::LIST_WATCHERS), [])
    }

    /// Objects of the pg that the request's target names, from `after` on; decoded by
    /// [`results::PgListing`](super::results).
    pub fn pg_list(self, count: u64, after: HObjectRef<'_>, start_epoch: u32) -> ObjectOp {
        let mut args = Vec::new();
        after.encode(&mut args);
        let op = OsdOp::with_pgls(PgLs { count, start_epoch });
        self.push(op, [Payload::from(args)])
    }
}

fn encode_keys<'k>(keys: impl ExactSizeIterator<Item = &'k [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_list(keys, |out, key| out.put_blob(key));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Reader;

    fn payload(bytes: &[u8]) -> Payload {
        Payload::from(bytes.to_vec())
    }

    #[test]
    fn a_data_write_allocates_no_list() {
        let op = ObjectOp::new()
            .set_alloc_hint(4 << 20, 4 << 20, 0)
            .write(4096, payload(&[1; 512]));
        assert!(!op.ops.spilled() && !op.data.spilled());
        assert_eq!(op.ops()[1].extent().offset, 4096);
        assert_eq!(op.ops()[1].payload_len, 512);
        assert!(op.ops()[0].flags.has(OpFlags::FAILOK));
        assert_eq!(op.budget(), 512);
    }

    #[test]
    fn payloads_follow_the_order_of_the_operations() {
        let op = ObjectOp::new()
            .call("rbd", "copyup", payload(b"input"))
            .write(0, payload(b"data"))
            .setxattr("k", b"v");
        let all: Vec<u8> = op.data().iter().flat_map(|p| p.iter().copied()).collect();
        assert_eq!(all, b"rbdcopyupinputdatakv");
        let lens: Vec<u32> = op.ops().iter().map(|op| op.payload_len).collect();
        assert_eq!(lens, [14, 4, 2]);
        assert_eq!(op.ops()[0].call().method_len, 6);
    }

    #[test]
    fn omap_arguments_are_encoded_with_their_length_in_the_extent() {
        let pairs: [(&[u8], &[u8]); 2] = [(b"a", b"1"), (b"b", b"")];
        let op = ObjectOp::new().omap_set(pairs.iter().copied());
        let args = &op.data()[0];
        assert_eq!(op.ops()[0].extent().length, args.len() as u64);
        let mut r = Reader::new(args);
        assert_eq!(r.u32(), Ok(2));
        assert_eq!(
            (r.blob().unwrap(), r.blob().unwrap()),
            (&b"a"[..], &b"1"[..])
        );
        assert_eq!(
            (r.blob().unwrap(), r.blob().unwrap()),
            (&b"b"[..], &b""[..])
        );
        assert!(r.is_empty());
    }

    #[test]
    fn a_read_is_charged_for_what_it_asks_and_never_overflows() {
        assert_eq!(ObjectOp::new().read(0, 8192).getxattr("abc").budget(), 8195);
        let op = ObjectOp::new().read(0, u64::MAX).read(0, u64::MAX);
        assert_eq!(op.budget(), u64::MAX);
    }
}
