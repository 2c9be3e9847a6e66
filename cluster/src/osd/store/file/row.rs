//! Values of the metadata database. `docs/store-format.md` has the fields in words.

use crate::codec::{DecodeError, EntityAddr, EntityName, EntityType, Put, Reader, Result, UTime};
use crate::objecter::msg::{EVersion, ReqId};
use crate::osd::store::{LogEntry, Usage};
use crate::osd::{CloneState, ObjectInfo, SnapSet, WatchRecord};

use super::blocks::{Blocks, unvarint, varint};

const OBJECT: u8 = 1;
const PG: u8 = 1;
const LOG: u8 = 1;

/// What the database holds of an object, apart from attributes and omap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ObjectRow {
    /// Begins the keys of its attributes and omap.
    pub(super) id: u64,
    /// Name of its data file, 0 while it has none.
    pub(super) file: u64,
    /// The file is, or was, shared with a clone, and changes no more.
    pub(super) sealed: bool,
    /// It has, or had, attributes or omap.
    pub(super) has_kv: bool,
    /// Bytes of data, holes included.
    pub(super) size: u64,
    pub(super) omap_keys: u64,
    pub(super) omap_bytes: u64,
    pub(super) blocks: Blocks,
    pub(super) info: ObjectInfo,
}

const SEALED: u8 = 1;
const HAS_KV: u8 = 2;

impl ObjectRow {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(OBJECT);
        let sealed = if self.sealed { SEALED } else { 0 };
        out.put_u8(sealed | if self.has_kv { HAS_KV } else { 0 });
        for v in [
            self.id,
            self.file,
            self.size,
            self.omap_keys,
            self.omap_bytes,
        ] {
            varint(v, out);
        }
        self.blocks.encode(out);
        encode_info(&self.info, out);
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<ObjectRow> {
        let r = &mut Reader::new(bytes);
        version(r, OBJECT, "object row")?;
        let flags = r.u8()?;
        let row = ObjectRow {
            sealed: flags & SEALED != 0,
            has_kv: flags & HAS_KV != 0,
            id: unvarint(r)?,
            file: unvarint(r)?,
            size: unvarint(r)?,
            omap_keys: unvarint(r)?,
            omap_bytes: unvarint(r)?,
            blocks: Blocks::decode(r)?,
            info: decode_info(r)?,
        };
        end(r, row)
    }

    /// What it adds to its pg's usage; `snap` is that of its name.
    pub(super) fn usage(&self, snap: u64) -> Usage {
        Usage {
            objects: 1,
            clones: u64::from(snap != crate::objecter::msg::NOSNAP),
            bytes: self.info.size,
            stored: self.blocks.stored(),
            omap_bytes: self.omap_bytes,
            omap_keys: self.omap_keys,
        }
    }
}

pub(super) fn add(to: &mut Usage, u: &Usage) {
    to.objects += u.objects;
    to.clones += u.clones;
    to.bytes += u.bytes;
    to.stored += u.stored;
    to.omap_bytes += u.omap_bytes;
    to.omap_keys += u.omap_keys;
}

pub(super) fn subtract(from: &mut Usage, u: &Usage) {
    from.objects = from.objects.saturating_sub(u.objects);
    from.clones = from.clones.saturating_sub(u.clones);
    from.bytes = from.bytes.saturating_sub(u.bytes);
    from.stored = from.stored.saturating_sub(u.stored);
    from.omap_bytes = from.omap_bytes.saturating_sub(u.omap_bytes);
    from.omap_keys = from.omap_keys.saturating_sub(u.omap_keys);
}

fn version(r: &mut Reader<'_>, ours: u8, what: &'static str) -> Result<()> {
    match r.u8()? {
        v if v == ours => Ok(()),
        compat => Err(DecodeError::Incompatible { what, compat, ours }),
    }
}

fn end<T>(r: &Reader<'_>, value: T) -> Result<T> {
    if r.is_empty() {
        Ok(value)
    } else {
        Err(DecodeError::malformed("end of a row"))
    }
}

fn encode_version(v: &EVersion, out: &mut Vec<u8>) {
    varint(v.epoch.into(), out);
    varint(v.version, out);
}

fn narrow(r: &mut Reader<'_>) -> Result<u32> {
    u32::try_from(unvarint(r)?).map_err(|_| DecodeError::malformed("32-bit number"))
}

fn decode_version(r: &mut Reader<'_>) -> Result<EVersion> {
    Ok(EVersion {
        epoch: narrow(r)?,
        version: unvarint(r)?,
    })
}

fn encode_reqid(id: &ReqId, out: &mut Vec<u8>) {
    out.put_u8(id.name.kind.0);
    varint(id.name.num as u64, out);
    varint(id.tid, out);
    varint(id.inc as u32 as u64, out);
}

fn decode_reqid(r: &mut Reader<'_>) -> Result<ReqId> {
    Ok(ReqId {
        name: EntityName::new(EntityType(r.u8()?), unvarint(r)? as i64),
        tid: unvarint(r)?,
        inc: narrow(r)? as i32,
    })
}

fn list<T>(
    r: &mut Reader<'_>,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut out = Vec::new();
    for _ in 0..unvarint(r)? {
        out.push(item(r)?);
    }
    Ok(out)
}

fn encode_pairs(pairs: &[(u64, u64)], out: &mut Vec<u8>) {
    varint(pairs.len() as u64, out);
    for (a, b) in pairs {
        varint(*a, out);
        varint(*b, out);
    }
}

fn decode_pairs(r: &mut Reader<'_>) -> Result<Vec<(u64, u64)>> {
    list(r, |r| Ok((unvarint(r)?, unvarint(r)?)))
}

fn encode_info(info: &ObjectInfo, out: &mut Vec<u8>) {
    varint(info.size, out);
    info.mtime.encode(out);
    encode_version(&info.version, out);
    varint(info.user_version, out);
    encode_reqid(&info.last_reqid, out);
    varint(info.truncate_seq.into(), out);
    varint(info.truncate_size, out);
    varint(info.expected_object_size, out);
    varint(info.expected_write_size, out);
    varint(info.alloc_hint_flags.into(), out);
    out.put_bool(info.whiteout);
    varint(info.snaps.seq, out);
    varint(info.snaps.clones.len() as u64, out);
    for clone in &info.snaps.clones {
        varint(clone.id, out);
        varint(clone.snaps.len() as u64, out);
        for snap in &clone.snaps {
            varint(*snap, out);
        }
        encode_pairs(&clone.overlap, out);
        varint(clone.size, out);
    }
    varint(info.watchers.len() as u64, out);
    for watch in &info.watchers {
        watch.entity.encode(out);
        varint(watch.cookie, out);
        varint(watch.timeout_seconds.into(), out);
        watch.addr.encode(out);
    }
}

fn decode_info(r: &mut Reader<'_>) -> Result<ObjectInfo> {
    Ok(ObjectInfo {
        size: unvarint(r)?,
        mtime: UTime::decode(r)?,
        version: decode_version(r)?,
        user_version: unvarint(r)?,
        last_reqid: decode_reqid(r)?,
        truncate_seq: narrow(r)?,
        truncate_size: unvarint(r)?,
        expected_object_size: unvarint(r)?,
        expected_write_size: unvarint(r)?,
        alloc_hint_flags: narrow(r)?,
        whiteout: r.bool()?,
        snaps: SnapSet {
            seq: unvarint(r)?,
            clones: list(r, |r| {
                Ok(CloneState {
                    id: unvarint(r)?,
                    snaps: list(r, unvarint)?,
                    overlap: decode_pairs(r)?,
                    size: unvarint(r)?,
                })
            })?,
        },
        watchers: list(r, |r| {
            Ok(WatchRecord {
                entity: EntityName::decode(r)?,
                cookie: unvarint(r)?,
                timeout_seconds: narrow(r)?,
                addr: EntityAddr::decode(r)?,
            })
        })?,
    })
}

/// What the database holds of a pg, apart from its objects and log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PgRow {
    /// Begins the keys of its objects and log entries. A pg that is made anew gets a new one.
    pub(super) no: u64,
    /// The OSD that has it.
    pub(super) owner: i32,
    pub(super) last_update: EVersion,
    pub(super) last_user_version: u64,
    /// Number of the next log entry.
    pub(super) next_log: u64,
    pub(super) usage: Usage,
    pub(super) trimmed_snaps: Vec<(u64, u64)>,
}

impl PgRow {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(PG);
        varint(self.no, out);
        out.put_i32(self.owner);
        encode_version(&self.last_update, out);
        varint(self.last_user_version, out);
        varint(self.next_log, out);
        let u = &self.usage;
        for v in [
            u.objects,
            u.clones,
            u.bytes,
            u.stored,
            u.omap_bytes,
            u.omap_keys,
        ] {
            varint(v, out);
        }
        encode_pairs(&self.trimmed_snaps, out);
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<PgRow> {
        let r = &mut Reader::new(bytes);
        version(r, PG, "pg row")?;
        let row = PgRow {
            no: unvarint(r)?,
            owner: r.i32()?,
            last_update: decode_version(r)?,
            last_user_version: unvarint(r)?,
            next_log: unvarint(r)?,
            usage: Usage {
                objects: unvarint(r)?,
                clones: unvarint(r)?,
                bytes: unvarint(r)?,
                stored: unvarint(r)?,
                omap_bytes: unvarint(r)?,
                omap_keys: unvarint(r)?,
            },
            trimmed_snaps: decode_pairs(r)?,
        };
        end(r, row)
    }
}

pub(super) fn encode_log(entry: &LogEntry, out: &mut Vec<u8>) {
    out.put_u8(LOG);
    encode_version(&entry.version, out);
    varint(entry.user_version, out);
    encode_reqid(&entry.reqid, out);
    out.put_i32(entry.result);
    varint(entry.returns.len() as u64, out);
    for (result, data) in &entry.returns {
        out.put_i32(*result);
        out.put_blob(data);
    }
}

pub(super) fn decode_log(bytes: &[u8]) -> Result<LogEntry> {
    let r = &mut Reader::new(bytes);
    version(r, LOG, "log entry")?;
    let entry = LogEntry {
        version: decode_version(r)?,
        user_version: unvarint(r)?,
        reqid: decode_reqid(r)?,
        result: r.i32()?,
        returns: list(r, |r| Ok((r.i32()?, r.blob()?.to_vec())))?,
    };
    end(r, entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    prop_compose! {
        fn info()(n in vec(any::<u64>(), 8), small in vec(any::<u32>(), 6), whiteout: bool, inc: i32, num: i64,
                  clones in vec((any::<u64>(), vec(any::<u64>(), 0..3), vec(any::<(u64, u64)>(), 0..3), any::<u64>()), 0..3),
                  watches in vec((any::<u64>(), any::<u32>(), any::<Option<std::net::SocketAddrV4>>()), 0..3)) -> ObjectInfo {
            let name = EntityName::new(EntityType::CLIENT, num);
            ObjectInfo {
                size: n[0],
                mtime: UTime { sec: small[0], nsec: small[1] },
                version: EVersion { epoch: small[2], version: n[1] },
                user_version: n[2],
                last_reqid: ReqId { name, tid: n[3], inc },
                truncate_seq: small[3],
                truncate_size: n[4],
                expected_object_size: n[5],
                expected_write_size: n[6],
                alloc_hint_flags: small[4],
                whiteout,
                snaps: SnapSet {
                    seq: n[7],
                    clones: clones.into_iter().map(|(id, snaps, overlap, size)| CloneState { id, snaps, overlap, size }).collect(),
                },
                watchers: watches.into_iter().map(|(cookie, timeout_seconds, addr)| WatchRecord {
                    entity: name, cookie, timeout_seconds,
                    addr: addr.map_or_else(EntityAddr::default, |a| EntityAddr::msgr2(a.into(), 7)),
                }).collect(),
            }
        }
    }

    proptest! {
        #[test]
        fn rows_survive_a_round_trip(info in info(), n in vec(any::<u64>(), 12), owner: i32, sealed: bool,
                                     pairs in vec(any::<(u64, u64)>(), 0..3), returns in vec((any::<i32>(), any::<Vec<u8>>()), 0..3)) {
            let mut blocks = Blocks::default();
            blocks.insert(n[0] >> 20, n[1] >> 40);
            let log = LogEntry { version: info.version, user_version: n[2], reqid: info.last_reqid, result: owner, returns };
            let row = ObjectRow { id: n[0], file: n[1], sealed, has_kv: !sealed, size: n[2], omap_keys: n[3], omap_bytes: n[4], blocks, info };
            let mut out = Vec::new();
            row.encode(&mut out);
            prop_assert_eq!(ObjectRow::decode(&out), Ok(row.clone()));
            out.pop();
            prop_assert!(ObjectRow::decode(&out).is_err());

            let usage = Usage { objects: n[5], clones: n[6], bytes: n[7], stored: n[8], omap_bytes: n[9], omap_keys: n[10] };
            let pg = PgRow { no: n[11], owner, last_update: row.info.version, last_user_version: n[0], next_log: n[1], usage, trimmed_snaps: pairs };
            out.clear();
            pg.encode(&mut out);
            prop_assert_eq!(PgRow::decode(&out), Ok(pg));

            out.clear();
            encode_log(&log, &mut out);
            prop_assert_eq!(decode_log(&out), Ok(log));
        }

        #[test]
        fn hostile_bytes_never_panic(mut bytes: Vec<u8>) {
            for version in [false, true] {
                if version && !bytes.is_empty() {
                    bytes[0] = 1;
                }
                let _ = ObjectRow::decode(&bytes);
                let _ = PgRow::decode(&bytes);
                let _ = decode_log(&bytes);
            }
        }
    }
}
