//! Snapshots of format-1 images, which keep all they know in the data of one object.
//!
//! Source: `rbd_obj_header_ondisk` in `src/include/rbd_types.h`.

use crate::codec::{Put, Reader};

use super::super::value::{DONE, found, input, look};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::method;

pub(super) const METHODS: &[Method] = &[
    method("snap_list", READ, snap_list),
    method("snap_add", READ_WRITE, snap_add),
    method("snap_remove", READ_WRITE, snap_remove),
    method("snap_rename", READ_WRITE, snap_rename),
];

/// Bytes before the snapshots.
const FIXED: usize = 112;
/// Where these fields lie; between them are four bytes that nothing uses.
const IMAGE_SIZE: usize = 80;
const SNAP_SEQ: usize = 88;
const SNAP_COUNT: usize = 96;
const SNAP_NAMES_LEN: usize = 104;
/// Id and size of a snapshot.
const SNAP: usize = 16;

struct Snap {
    id: u64,
    size: u64,
    name: Vec<u8>,
}

struct Header {
    fixed: [u8; FIXED],
    image_size: u64,
    snap_seq: u64,
    /// Newest first.
    snaps: Vec<Snap>,
}

impl Header {
    /// EINVAL where there is no such header.
    fn load(ctx: &mut dyn Context) -> Result<Header> {
        let fixed = read(ctx, 0, FIXED as u64)?;
        let fixed: [u8; FIXED] = fixed.try_into().map_err(|_| Errno::INVAL)?;
        let field = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().unwrap_or([0; 8]));
        let count = field(SNAP_COUNT) & u64::from(u32::MAX);
        let names_len = field(SNAP_NAMES_LEN);
        let length = (count * SNAP as u64).saturating_add(names_len);
        let rest = read(ctx, FIXED as u64, length)?;
        if rest.len() as u64 != length {
            return Err(Errno::INVAL);
        }
        let mut ids = Reader::new(&rest);
        let mut names = &rest[count as usize * SNAP..];
        let mut snaps = Vec::new();
        for _ in 0..count {
            let end = names.iter().position(|b| *b == 0).ok_or(Errno::IO)?;
            let id = ids.u64().map_err(|_| Errno::IO)?;
            let size = ids.u64().map_err(|_| Errno::IO)?;
            let name = names[..end].to_vec();
            snaps.push(Snap { id, size, name });
            names = &names[end + 1..];
        }
        Ok(Header {
            fixed,
            image_size: field(IMAGE_SIZE),
            snap_seq: field(SNAP_SEQ),
            snaps,
        })
    }

    fn save(&self, ctx: &mut dyn Context) -> Result<Vec<u8>> {
        let mut out = self.fixed.to_vec();
        for snap in &self.snaps {
            out.put_u64(snap.id);
            out.put_u64(snap.size);
        }
        let names = out.len();
        for snap in &self.snaps {
            out.put_bytes(&snap.name);
            out.put_u8(0);
        }
        let names_len = (out.len() - names) as u64;
        let count = self.snaps.len() as u32;
        out[SNAP_SEQ..SNAP_SEQ + 8].copy_from_slice(&self.snap_seq.to_le_bytes());
        out[SNAP_COUNT..SNAP_COUNT + 4].copy_from_slice(&count.to_le_bytes());
        out[SNAP_NAMES_LEN..SNAP_NAMES_LEN + 8].copy_from_slice(&names_len.to_le_bytes());
        ctx.write_full(&out)?;
        DONE
    }

    fn has_name(&self, name: &[u8]) -> bool {
        self.snaps.iter().any(|snap| snap.name == name)
    }
}

/// A missing object reads as an empty one.
fn read(ctx: &mut dyn Context, offset: u64, length: u64) -> Result<Vec<u8>> {
    if length == 0 {
        return Ok(Vec::new());
    }
    Ok(found(ctx.read(offset, length))?.unwrap_or_default())
}

/// Stored names end at their first zero byte.
fn c_string(name: &[u8]) -> &[u8] {
    name.split(|b| *b == 0).next().unwrap_or_default()
}

/// How many snapshots an image of format 1 has; EINVAL for an image of format 2.
pub(super) fn snap_count(ctx: &mut dyn Context) -> Result<u64> {
    Ok(Header::load(ctx)?.snaps.len() as u64)
}

fn snap_list(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let header = Header::load(ctx)?;
    let mut out = Vec::new();
    out.put_u64(header.snap_seq);
    out.put_list(header.snaps.iter(), |out, snap| {
        out.put_u64(snap.id);
        out.put_u64(snap.size);
        out.put_blob(&snap.name);
    });
    Ok(out)
}

fn snap_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut header = Header::load(ctx)?;
    let (name, id) = input(bytes, |r| Ok((r.blob()?, r.u64()?)))?;
    let name = c_string(name);
    if header.snap_seq > id {
        return Err(Errno::STALE);
    }
    let limit = look(ctx, "snap_limit")?.unwrap_or(u64::MAX);
    if header.snaps.len() as u64 >= limit {
        return Err(Errno::DQUOT);
    }
    if header.has_name(name) {
        return Err(Errno::EXIST);
    }
    header.snap_seq = id;
    let snap = Snap {
        id,
        size: header.image_size,
        name: name.to_vec(),
    };
    header.snaps.insert(0, snap);
    header.save(ctx)
}

fn snap_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut header = Header::load(ctx)?;
    let name = c_string(input(bytes, |r| r.blob())?);
    let at = header.snaps.iter().position(|snap| snap.name == name);
    header.snaps.remove(at.ok_or(Errno::NOENT)?);
    header.save(ctx)
}

fn snap_rename(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut header = Header::load(ctx)?;
    let (id, name) = input(bytes, |r| Ok((r.u64()?, r.blob()?)))?;
    let name = c_string(name);
    if header.has_name(name) {
        return Err(Errno::EXIST);
    }
    let snap = header.snaps.iter_mut().find(|snap| snap.id == id);
    snap.ok_or(Errno::NOENT)?.name = name.to_vec();
    header.save(ctx)
}
