//! Decoders of what single operations return.

use super::msg::{HObjectRef, WireList};
use crate::codec::{DecodeError, EntityAddr, EntityName, Reader, Result, UTime};

/// What `stat` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub size: u64,
    pub mtime: UTime,
}

impl Stat {
    pub fn decode(bytes: &[u8]) -> Result<Stat> {
        let mut r = Reader::new(bytes);
        Ok(Stat {
            size: r.u64()?,
            mtime: UTime::decode(&mut r)?,
        })
    }
}

/// What `sparse_read` returns: the extents that hold data, in ascending order, and that data.
#[derive(Debug, Clone, Copy)]
pub struct SparseRead<'a> {
    /// Offset and length of each extent.
    pub extents: WireList<'a, (u64, u64)>,
    data: &'a [u8],
}

impl<'a> SparseRead<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<SparseRead<'a>> {
        if bytes.is_empty() {
            // The operation was not executed, or the object does not exist.
            let extents = WireList::Wire(&[]);
            return Ok(SparseRead { extents, data: &[] });
        }
        let mut r = Reader::new(bytes);
        let extents: WireList<'a, (u64, u64)> = WireList::take_counted(&mut r)?;
        let data = r.blob()?;
        let mut end = 0;
        let mut total = 0u64;
        for (offset, len) in extents.iter() {
            let next = offset.checked_add(len);
            let Some(next) = next.filter(|_| offset >= end) else {
                return Err(DecodeError::malformed("sparse read extents"));
            };
            end = next;
            total = total.saturating_add(len);
        }
        if total != data.len() as u64 {
            return Err(DecodeError::malformed("sparse read length"));
        }
        Ok(SparseRead { extents, data })
    }

    /// Each extent's offset and bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        let mut rest = self.data;
        self.extents.iter().map(move |(offset, len)| {
            // `decode` made sure that the lengths add up to the data.
            let (head, tail) = rest.split_at(len as usize);
            rest = tail;
            (offset, head)
        })
    }
}

/// A map of byte strings, in the order the OSD sent it.
pub type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// A `map<string, bufferlist>`: what `getxattrs` and `omap_get_vals_by_keys` return.
pub fn decode_map(bytes: &[u8]) -> Result<Pairs<'_>> {
    read_map(&mut Reader::new(bytes))
}

fn read_map<'a>(r: &mut Reader<'a>) -> Result<Pairs<'a>> {
    r.list(8, |r| Ok((r.blob()?, r.blob()?)))
}

/// What `omap_get_vals` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OmapVals<'a> {
    pub pairs: Pairs<'a>,
    /// Keys after the last one were left out.
    pub more: bool,
}

impl<'a> OmapVals<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<OmapVals<'a>> {
        let mut r = Reader::new(bytes);
        Ok(OmapVals {
            pairs: read_map(&mut r)?,
            more: r.bool()?,
        })
    }
}

/// What `omap_get_keys` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OmapKeys<'a> {
    pub keys: Vec<&'a [u8]>,
    /// Keys after the last one were left out.
    pub more: bool,
}

impl<'a> OmapKeys<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<OmapKeys<'a>> {
        let mut r = Reader::new(bytes);
        Ok(OmapKeys {
            keys: r.list(4, Reader::blob)?,
            more: r.bool()?,
        })
    }
}

/// `watch_item_t` (`src/osd/osd_types.h`): who watches an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watcher {
    pub name: EntityName,
    pub cookie: u64,
    pub timeout_seconds: u32,
    pub addr: EntityAddr,
}

/// `obj_list_watch_response_t`: what `list_watchers` returns.
pub fn decode_watchers(bytes: &[u8]) -> Result<Vec<Watcher>> {
    let mut r = Reader::new(bytes);
    let mut v = r.versioned("obj_list_watch_response_t", 1)?;
    v.body.list(6 + EntityName::SIZE + 12, |r| {
        let mut v = r.versioned("watch_item_t", 2)?;
        Ok(Watcher {
            name: EntityName::decode(&mut v.body)?,
            cookie: v.body.u64()?,
            timeout_seconds: v.body.u32()?,
            addr: if v.version >= 2 {
                EntityAddr::decode(&mut v.body)?
            } else {
                EntityAddr::default()
            },
        })
    })
}

/// `clone_info`: a state of the object that snapshots preserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneInfo {
    /// The newest snapshot of the clone, or [`NOSNAP`](super::msg::NOSNAP) for the object itself.
    pub id: u64,
    /// Ascending.
    pub snaps: Vec<u64>,
    /// Offsets and lengths that the next newer clone shares.
    pub overlap: Vec<(u64, u64)>,
    pub size: u64,
}

/// `obj_list_snap_response_t`: what `list_snaps` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapSet {
    /// Ascending.
    pub clones: Vec<CloneInfo>,
    pub seq: u64,
}

impl SnapSet {
    pub fn decode(bytes: &[u8]) -> Result<SnapSet> {
        let mut r = Reader::new(bytes);
        let mut v = r.versioned("obj_list_snap_response_t", 2)?;
        let clones = v.body.list(6 + 24, |r| {
            let mut v = r.versioned("clone_info", 1)?;
            Ok(CloneInfo {
                id: v.body.u64()?,
                snaps: v.body.list(8, Reader::u64)?,
                overlap: v.body.list(16, |r| Ok((r.u64()?, r.u64()?)))?,
                size: v.body.u64()?,
            })
        })?;
        let seq = if v.version >= 2 {
            v.body.u64()?
        } else {
            super::msg::NOSNAP
        };
        Ok(SnapSet { clones, seq })
    }
}

/// What a notify collected from one watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotifyReply<'a> {
    pub watcher: u64,
    pub cookie: u64,
    pub reply: &'a [u8],
}

/// What the end of a notify brings (`Notify::maybe_complete_notify`, `src/osd/Watch.cc`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotifyReplies<'a> {
    pub replies: Vec<NotifyReply<'a>>,
    /// Global id and cookie of the watchers that did not answer in time.
    pub missing: Vec<(u64, u64)>,
}

impl<'a> NotifyReplies<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<NotifyReplies<'a>> {
        if bytes.is_empty() {
            return Ok(NotifyReplies::default());
        }
        let mut r = Reader::new(bytes);
        let replies = r.list(20, |r| {
            Ok(NotifyReply {
                watcher: r.u64()?,
                cookie: r.u64()?,
                reply: r.blob()?,
            })
        })?;
        let missing = r.list(16, |r| Ok((r.u64()?, r.u64()?)))?;
        Ok(NotifyReplies { replies, missing })
    }
}

/// An object of a pg's listing (`librados::ListObjectImpl`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedObject<'a> {
    pub namespace: &'a [u8],
    pub name: &'a [u8],
    pub key: &'a [u8],
}

/// `pg_nls_response_t`: what `pg_list` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgListing<'a> {
    /// Where to go on; [`HObjectRef::MAX`] at the end of the pg.
    pub next: HObjectRef<'a>,
    pub objects: Vec<ListedObject<'a>>,
}

impl<'a> PgListing<'a> {
    pub fn decode(bytes: &'a [u8]) -> Result<PgListing<'a>> {
        let mut r = Reader::new(bytes);
        let mut v = r.versioned("pg_nls_response_t", 1)?;
        let next = HObjectRef::decode(&mut v.body)?;
        let objects = v.body.list(12, |r| {
            Ok(ListedObject {
                namespace: r.blob()?,
                name: r.blob()?,
                key: r.blob()?,
            })
        })?;
        Ok(PgListing { next, objects })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{EntityType, Put};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn blobs() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
        vec((vec(any::<u8>(), 0..9), vec(any::<u8>(), 0..9)), 0..8)
    }

    fn put_pairs(out: &mut Vec<u8>, pairs: &[(Vec<u8>, Vec<u8>)]) {
        out.put_list(pairs.iter(), |out, (k, v)| {
            out.put_blob(k);
            out.put_blob(v);
        });
    }

    proptest! {
        #[test]
        fn a_sparse_read_gives_back_extents_and_bytes(parts in vec((1u64..50, vec(any::<u8>(), 1..20)), 0..6)) {
            let mut at = 0;
            let mut want = Vec::new();
            for (gap, bytes) in &parts {
                at += gap;
                want.push((at, &bytes[..]));
                at += bytes.len() as u64;
            }
            let mut out = Vec::new();
            out.put_list(want.iter(), |out, (offset, bytes)| {
                out.put_u64(*offset);
                out.put_u64(bytes.len() as u64);
            });
            out.put_blob(&want.iter().flat_map(|(_, b)| b.iter().copied()).collect::<Vec<u8>>());
            let got = SparseRead::decode(&out).unwrap();
            prop_assert_eq!(got.iter().collect::<Vec<_>>(), want);
        }

        #[test]
        fn omap_results_survive_a_round_trip(pairs in blobs(), more: bool) {
            let want: Vec<(&[u8], &[u8])> = pairs.iter().map(|(k, v)| (&k[..], &v[..])).collect();
            let mut out = Vec::new();
            put_pairs(&mut out, &pairs);
            prop_assert_eq!(&decode_map(&out).unwrap(), &want);
            out.put_bool(more);
            let vals = OmapVals::decode(&out).unwrap();
            prop_assert_eq!((vals.pairs, vals.more), (want, more));

            let mut out = Vec::new();
            out.put_list(pairs.iter(), |out, (k, _)| out.put_blob(k));
            out.put_bool(more);
            let keys = OmapKeys::decode(&out).unwrap();
            prop_assert_eq!(keys.keys, pairs.iter().map(|(k, _)| &k[..]).collect::<Vec<_>>());
            prop_assert_eq!(keys.more, more);
        }

        #[test]
        fn watchers_and_notify_replies_survive_a_round_trip(items in vec((any::<i64>(), any::<u64>(), any::<u32>()), 0..5), nonce: u32) {
            let addr = EntityAddr::msgr2("10.0.0.1:6800".parse().unwrap(), nonce);
            let mut out = Vec::new();
            out.versioned(1, 1, |b| b.put_list(items.iter(), |b, &(num, cookie, timeout)| {
                b.versioned(2, 1, |b| {
                    EntityName::new(EntityType::CLIENT, num).encode(b);
                    b.put_u64(cookie);
                    b.put_u32(timeout);
                    addr.encode(b);
                });
            }));
            let got = decode_watchers(&out).unwrap();
            prop_assert_eq!(got.len(), items.len());
            for (w, &(num, cookie, timeout_seconds)) in got.iter().zip(&items) {
                let name = EntityName::new(EntityType::CLIENT, num);
                prop_assert_eq!(w, &Watcher { name, cookie, timeout_seconds, addr });
            }

            let mut out = Vec::new();
            out.put_list(items.iter(), |out, &(num, cookie, _)| {
                out.put_u64(num as u64);
                out.put_u64(cookie);
                out.put_blob(b"ack");
            });
            out.put_list(items.iter(), |out, &(num, cookie, _)| {
                out.put_u64(num as u64);
                out.put_u64(cookie);
            });
            let got = NotifyReplies::decode(&out).unwrap();
            let missing: Vec<_> = items.iter().map(|&(n, c, _)| (n as u64, c)).collect();
            prop_assert!(got.replies.iter().all(|r| r.reply == b"ack"));
            prop_assert_eq!(got.replies.iter().map(|r| (r.watcher, r.cookie)).collect::<Vec<_>>(), missing.clone());
            prop_assert_eq!(got.missing, missing);
        }

        #[test]
        fn snap_sets_and_listings_survive_a_round_trip(clones in vec((any::<u64>(), vec(any::<u64>(), 0..4), vec(any::<(u64, u64)>(), 0..4), any::<u64>()), 0..4),
                                                       seq: u64, names in blobs()) {
            let mut out = Vec::new();
            out.versioned(2, 1, |b| {
                b.put_list(clones.iter(), |b, (id, snaps, overlap, size)| b.versioned(1, 1, |b| {
                    b.put_u64(*id);
                    b.put_list(snaps.iter(), |b, s| b.put_u64(*s));
                    b.put_list(overlap.iter(), |b, (o, l)| {
                        b.put_u64(*o);
                        b.put_u64(*l);
                    });
                    b.put_u64(*size);
                }));
                b.put_u64(seq);
            });
            let want: Vec<_> = clones.iter().cloned()
                .map(|(id, snaps, overlap, size)| CloneInfo { id, snaps, overlap, size })
                .collect();
            prop_assert_eq!(SnapSet::decode(&out).unwrap(), SnapSet { clones: want, seq });

            let mut out = Vec::new();
            out.versioned(1, 1, |b| {
                HObjectRef::MAX.encode(b);
                b.put_list(names.iter(), |b, (namespace, name)| {
                    b.put_blob(namespace);
                    b.put_blob(name);
                    b.put_blob(b"");
                });
            });
            let got = PgListing::decode(&out).unwrap();
            prop_assert_eq!(got.next, HObjectRef::MAX);
            let want: Vec<_> = names.iter().map(|(namespace, name)| ListedObject { namespace, name, key: b"" }).collect();
            prop_assert_eq!(got.objects, want);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Stat::decode(&bytes);
            if let Ok(sparse) = SparseRead::decode(&bytes) {
                sparse.iter().for_each(drop);
            }
            let _ = decode_map(&bytes);
            let _ = OmapVals::decode(&bytes);
            let _ = OmapKeys::decode(&bytes);
            let _ = decode_watchers(&bytes);
            let _ = SnapSet::decode(&bytes);
            let _ = NotifyReplies::decode(&bytes);
            let _ = PgListing::decode(&bytes);
        }
    }

    #[test]
    fn a_sparse_read_whose_extents_do_not_add_up_is_refused() {
        let encode = |extents: &[(u64, u64)], data: &[u8]| {
            let mut out = Vec::new();
            WireList::Native(extents).put_counted(&mut out);
            out.put_blob(data);
            out
        };
        assert!(SparseRead::decode(&encode(&[(0, 4)], b"abc")).is_err());
        assert!(SparseRead::decode(&encode(&[(8, 2), (0, 2)], b"abcd")).is_err());
        assert!(SparseRead::decode(&encode(&[(u64::MAX, 2)], b"ab")).is_err());
        assert!(SparseRead::decode(&encode(&[(0, 2), (8, 2)], b"abcd")).is_ok());
    }
}
