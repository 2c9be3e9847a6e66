//! Objects, and the operations on them as an OSD carries them out
//! (`PrimaryLogPG::do_osd_ops`).

use std::collections::BTreeMap;

use cluster::codec::{Put, Reader, UTime};
use cluster::objecter::msg::{OpCode, OpFlags, OsdOp};

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENODATA: i32 = 61;
pub(crate) const EOPNOTSUPP: i32 = 95;
/// `MAX_ERRNO`; a failed comparison says where it failed below it.
pub(crate) const MAX_ERRNO: i32 = 4095;

#[derive(Debug, Clone, Default)]
pub(crate) struct Object {
    pub(crate) data: Vec<u8>,
    pub(crate) omap: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) attrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) result: i32,
    pub(crate) rvals: Vec<i32>,
    pub(crate) outs: Vec<Vec<u8>>,
}

/// Carries out all operations or, when one fails, none.
pub(crate) fn execute(object: &mut Option<Object>, ops: &[(OsdOp, Vec<u8>)]) -> Outcome {
    let mut work = object.clone();
    let writes = ops.iter().any(|(op, _)| op.code.is_write());
    let mut outcome = Outcome {
        result: 0,
        rvals: vec![0; ops.len()],
        outs: vec![Vec::new(); ops.len()],
    };
    for (i, (op, data)) in ops.iter().enumerate() {
        match one(&mut work, op, data) {
            Ok(out) => outcome.outs[i] = out,
            Err(errno) => {
                outcome.rvals[i] = -errno;
                if !op.flags.has(OpFlags::FAILOK) {
                    outcome.result = -errno;
                    break;
                }
            }
        }
    }
    if writes {
        // Without RETURNVEC nothing but the result comes back from a request that writes.
        outcome.outs.iter_mut().for_each(Vec::clear);
        if outcome.result == 0 {
            outcome.rvals.fill(0);
            *object = work;
        }
    }
    outcome
}

fn one(object: &mut Option<Object>, op: &OsdOp, data: &[u8]) -> Result<Vec<u8>, i32> {
    if op.code.is_write() {
        write(object, op, data).map(|()| Vec::new())
    } else {
        read(object.as_ref(), op, data)
    }
}

fn write(slot: &mut Option<Object>, op: &OsdOp, data: &[u8]) -> Result<(), i32> {
    let e = op.extent();
    let (offset, length) = (e.offset as usize, e.length as usize);
    match op.code {
        OpCode::SET_ALLOC_HINT => {
            slot.get_or_insert_default();
        }
        OpCode::WRITE => {
            if length != data.len() {
                return Err(EINVAL);
            }
            put(&mut slot.get_or_insert_default().data, offset, data);
        }
        OpCode::WRITEFULL => slot.get_or_insert_default().data = data.to_vec(),
        OpCode::APPEND => slot.get_or_insert_default().data.extend_from_slice(data),
        OpCode::ZERO => {
            if let Some(object) = slot {
                let end = (offset + length).min(object.data.len());
                object.data[offset.min(end)..end].fill(0);
            }
        }
        OpCode::TRUNCATE => {
            if let Some(object) = slot {
                object.data.resize(offset, 0);
            }
        }
        OpCode::DELETE => {
            slot.take().ok_or(ENOENT)?;
        }
        OpCode::CREATE => {
            if slot.is_some() && op.flags.has(OpFlags::EXCL) {
                return Err(EEXIST);
            }
            slot.get_or_insert_default();
        }
        OpCode::SETXATTR => {
            let x = op.xattr();
            let (name, value) = data.split_at_checked(x.name_len as usize).ok_or(EINVAL)?;
            let object = slot.get_or_insert_default();
            object.attrs.insert(name.to_vec(), value.to_vec());
        }
        OpCode::OMAP_SET_VALS => {
            let pairs = Reader::new(data).list(8, |r| Ok((r.blob()?.to_vec(), r.blob()?.to_vec())));
            let object = slot.get_or_insert_default();
            object.omap.extend(pairs.map_err(|_| EINVAL)?);
        }
        OpCode::OMAP_RM_KEYS => {
            let keys = Reader::new(data).list(4, |r| Ok(r.blob()?.to_vec()));
            let object = slot.as_mut().ok_or(ENOENT)?;
            for key in keys.map_err(|_| EINVAL)? {
                object.omap.remove(&key);
            }
        }
        _ => return Err(EOPNOTSUPP),
    }
    Ok(())
}

fn read(object: Option<&Object>, op: &OsdOp, data: &[u8]) -> Result<Vec<u8>, i32> {
    let e = op.extent();
    if op.code == OpCode::CMPEXT {
        let stored = object.map_or(&[][..], |o| &o.data);
        let byte = |at: usize| stored.get(at).copied().unwrap_or(0);
        let differs = |i: &usize| byte(e.offset as usize + i) != data[*i];
        return match (0..data.len()).find(differs) {
            None => Ok(Vec::new()),
            Some(i) => Err(MAX_ERRNO + i as i32),
        };
    }
    let object = object.ok_or(ENOENT)?;
    let mut out = Vec::new();
    match op.code {
        OpCode::READ => out.extend_from_slice(slice(&object.data, e.offset, e.length)),
        OpCode::SPARSE_READ => {
            let bytes = slice(&object.data, e.offset, e.length);
            let extents = usize::from(!bytes.is_empty());
            out.put_list(
                std::iter::repeat_n((e.offset, bytes.len()), extents),
                |o, x| {
                    o.put_u64(x.0);
                    o.put_u64(x.1 as u64);
                },
            );
            out.put_blob(bytes);
        }
        OpCode::STAT => {
            out.put_u64(object.data.len() as u64);
            UTime::default().encode(&mut out);
        }
        OpCode::GETXATTR => {
            let name = &data[..(op.xattr().name_len as usize).min(data.len())];
            out.extend_from_slice(object.attrs.get(name).ok_or(ENODATA)?);
        }
        OpCode::OMAP_GET_VALS => {
            let mut r = Reader::new(data);
            let args = (|| Ok((r.blob()?, r.u64()?, r.blob()?)))();
            let (after, max, prefix) = args.map_err(|_: cluster::codec::DecodeError| EINVAL)?;
            let wanted = |k: &&Vec<u8>| k[..] > *after && k.starts_with(prefix);
            let keys: Vec<_> = object.omap.keys().filter(wanted).collect();
            let some = &keys[..keys.len().min(max as usize)];
            out.put_list(some.iter(), |o, key| {
                o.put_blob(key);
                o.put_blob(&object.omap[*key]);
            });
            out.put_bool(some.len() < keys.len());
        }
        _ => return Err(EOPNOTSUPP),
    }
    Ok(out)
}

/// What there is of a range.
pub(crate) fn slice(data: &[u8], offset: u64, length: u64) -> &[u8] {
    let start = data.len().min(offset as usize);
    let end = data.len().min(offset.saturating_add(length) as usize);
    &data[start..end]
}

pub(crate) fn put(data: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if data.len() < offset + bytes.len() {
        data.resize(offset + bytes.len(), 0);
    }
    data[offset..offset + bytes.len()].copy_from_slice(bytes);
}
