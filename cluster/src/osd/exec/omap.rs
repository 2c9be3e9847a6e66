//! Operations on an object's omap.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::state::{HEAD, State, io};
use super::{Done, OK, errno};
use crate::codec::{DecodeError, Put, Reader};
use crate::objecter::msg::{CmpOp, HObjectRef};
use crate::osd::cls::{Errno, Pairs};
use crate::osd::limits;
use crate::osd::store::{Pair, Step, Store};

/// Pairs that are taken from the store at a time.
const BATCH: usize = 128;

fn pair_size(key: &[u8], value: &[u8]) -> u64 {
    limits::PAIR + key.len() as u64 + value.len() as u64
}

fn malformed(_: DecodeError) -> Errno {
    errno(libc::EINVAL)
}

/// `operator<` of `bufferlist`, whose bytes are signed on the machines that Ceph runs on.
fn order(a: &[u8], b: &[u8]) -> Ordering {
    let signed = |s: &'_ [u8]| s.iter().map(|b| *b as i8).collect::<Vec<i8>>();
    signed(a).cmp(&signed(b))
}

impl<'a, S: Store> State<'_, '_, 'a, S> {
    /// Up to `max` pairs after `after` whose keys begin with `prefix`, as many as fit in an answer,
    /// and whether more would follow.
    pub(super) fn omap_page(
        &mut self,
        after: &[u8],
        prefix: &[u8],
        max: u64,
    ) -> Result<Pairs, Errno> {
        self.reads += 1;
        let max = max.min(limits::OMAP_ENTRIES) as usize;
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        if !self.stored {
            return Ok((pairs, false));
        }
        let mut bytes = 0;
        loop {
            let from = pairs.last().map_or(after, |(key, _)| key);
            let batch = BATCH.min(max - pairs.len());
            let page = self
                .store
                .omap_list(self.req.pg, &self.target, from, prefix, batch)
                .map_err(io)?;
            for pair in page.items {
                if bytes as u64 >= limits::REPLY {
                    return Ok((pairs, true));
                }
                bytes += pair.0.len() + pair.1.len() + 8;
                pairs.push(pair);
            }
            if !page.more || pairs.len() == max {
                return Ok((pairs, page.more));
            }
        }
    }

    pub(super) fn omap_keys(&mut self, input: &[u8], out: &mut Vec<u8>) -> Done {
        let r = &mut Reader::new(input);
        let after = r.blob().map_err(malformed)?;
        let max = r.u64().map_err(malformed)?;
        let (pairs, more) = self.omap_page(after, b"", max)?;
        out.put_list(pairs.iter(), |out, (key, _)| out.put_blob(key));
        out.put_bool(more);
        Ok(None)
    }

    pub(super) fn omap_values(&mut self, input: &[u8], out: &mut Vec<u8>) -> Done {
        let r = &mut Reader::new(input);
        let after = r.blob().map_err(malformed)?;
        let max = r.u64().map_err(malformed)?;
        let prefix = r.blob().map_err(malformed)?;
        let (pairs, more) = self.omap_page(after, prefix, max)?;
        out.put_list(pairs.iter(), |out, (key, value)| {
            out.put_blob(key);
            out.put_blob(value);
        });
        out.put_bool(more);
        Ok(None)
    }

    pub(super) fn omap_header(&mut self) -> Result<Vec<u8>, Errno> {
        self.reads += 1;
        if !self.stored {
            return Ok(Vec::new());
        }
        self.store
            .omap_header(self.req.pg, &self.target)
            .map_err(io)
    }

    pub(super) fn omap_header_op(&mut self, out: &mut Vec<u8>) -> Done {
        out.put_bytes(&self.omap_header()?);
        Ok(None)
    }

    pub(super) fn omap_value(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        self.reads += 1;
        if !self.stored {
            return Ok(None);
        }
        let value = self.store.omap_get(self.req.pg, &self.target, key);
        value.map_err(io)
    }

    pub(super) fn omap_by_keys(&mut self, input: &[u8], out: &mut Vec<u8>) -> Done {
        let keys = Reader::new(input)
            .list(4, |r| r.blob())
            .map_err(malformed)?;
        let keys: BTreeSet<&[u8]> = keys.into_iter().collect();
        let at = out.len();
        out.put_u32(0);
        let mut found = 0u32;
        for key in keys {
            if let Some(value) = self.omap_value(key)? {
                if out.len() as u64 + value.len() as u64 > limits::REPLY {
                    return Err(errno(libc::E2BIG));
                }
                out.put_blob(key);
                out.put_blob(&value);
                found += 1;
            }
        }
        out[at..at + 4].copy_from_slice(&found.to_le_bytes());
        Ok(None)
    }

    /// The stored value is on the left; a key that is not there has an empty one.
    pub(super) fn omap_compare(&mut self, input: &[u8]) -> Done {
        self.reads += 1;
        if !self.exists || self.info.whiteout {
            return Err(errno(libc::ENOENT));
        }
        let assertions = Reader::new(input)
            .list(12, |r| Ok((r.blob()?, (r.blob()?, r.i32()?))))
            .map_err(malformed)?;
        let assertions: BTreeMap<_, _> = assertions.into_iter().collect();
        if self.omap_made && !self.stored {
            return Err(errno(libc::ENOENT));
        }
        for (key, (value, op)) in assertions {
            let stored = self.omap_value(key)?.unwrap_or_default();
            let op = u8::try_from(op).ok().and_then(CmpOp::from_wire);
            let holds = match op {
                Some(CmpOp::Eq) => stored == value,
                Some(CmpOp::Lt) => order(&stored, value).is_lt(),
                Some(CmpOp::Gt) => order(&stored, value).is_gt(),
                _ => return Err(errno(libc::EINVAL)),
            };
            if !holds {
                return Err(errno(libc::ECANCELED));
            }
        }
        Ok(None)
    }

    pub(super) fn omap_set_op(&mut self, input: &'a [u8]) -> Done {
        self.changes += 1;
        let pairs = Reader::new(input).list(8, |r| -> Result<Pair<'a>, DecodeError> {
            Ok((r.blob()?.into(), r.blob()?.into()))
        });
        self.make();
        self.omap_set(pairs.map_err(malformed)?)
    }

    pub(super) fn omap_set(&mut self, pairs: Vec<Pair<'a>>) -> Done {
        self.changes += 1;
        self.make();
        let more = pairs.iter().map(|(k, v)| pair_size(k, v)).sum();
        self.spend(limits::PAIR * pairs.len() as u64)?;
        // Those that are there already count twice until the next request.
        let size = self.omap_size()?.saturating_add(more);
        if size > limits::OMAP {
            return Err(errno(libc::EFBIG));
        }
        self.omap_size = Some(size);
        self.omap_made = true;
        self.step(Step::OmapSet { obj: HEAD, pairs });
        OK
    }

    pub(super) fn omap_set_header(&mut self, header: Cow<'a, [u8]>) -> Done {
        self.changes += 1;
        if header.len() as u64 > limits::ATTRS {
            return Err(errno(libc::EFBIG));
        }
        self.make();
        self.omap_made = true;
        self.step(Step::OmapSetHeader { obj: HEAD, header });
        OK
    }

    fn need_object(&mut self) -> Result<(), Errno> {
        self.changes += 1;
        if !self.exists || self.info.whiteout {
            return Err(errno(libc::ENOENT));
        }
        Ok(())
    }

    /// No change where there is nothing.
    pub(super) fn omap_clear(&mut self) -> Done {
        self.need_object()?;
        if self.omap_made || self.has_omap()? {
            let size = self.omap_size()?;
            self.spend(size)?;
            self.omap_size = Some(0);
            self.omap_made = false;
            self.step(Step::OmapClear(HEAD));
        }
        OK
    }

    /// What the omap comes to, with what the operations so far have set.
    fn omap_size(&mut self) -> Result<u64, Errno> {
        if let Some(size) = self.omap_size {
            return Ok(size);
        }
        let target = self.target;
        self.stored_omap_size(&target)
    }

    pub(super) fn stored_omap_size(&mut self, oid: &HObjectRef<'_>) -> Result<u64, Errno> {
        let size = self.store.omap_size(self.req.pg, oid);
        let (keys, bytes) = size.map_err(io)?;
        Ok(bytes.saturating_add(keys.saturating_mul(limits::PAIR)))
    }

    fn has_omap(&mut self) -> Result<bool, Errno> {
        let (pg, target) = (self.req.pg, self.target);
        let header = self.store.omap_header(pg, &target).map_err(io)?;
        let first = self.store.omap_list(pg, &target, b"", b"", 1);
        Ok(!header.is_empty() || !first.map_err(io)?.items.is_empty())
    }

    pub(super) fn omap_remove_op(&mut self, input: &'a [u8]) -> Done {
        self.need_object()?;
        let keys = Reader::new(input)
            .list(4, |r| Ok(Cow::from(r.blob()?)))
            .map_err(malformed)?;
        self.omap_remove(keys)
    }

    pub(super) fn omap_remove(&mut self, keys: Vec<Cow<'a, [u8]>>) -> Done {
        self.need_object()?;
        self.spend(limits::PAIR * keys.len() as u64)?;
        self.step(Step::OmapRemove { obj: HEAD, keys });
        OK
    }

    pub(super) fn omap_remove_range_op(&mut self, input: &'a [u8]) -> Done {
        self.need_object()?;
        let r = &mut Reader::new(input);
        let begin = r.blob().map_err(malformed)?;
        let end = r.blob().map_err(malformed)?;
        self.omap_remove_range(begin.into(), end.into())
    }

    pub(super) fn omap_remove_range(&mut self, begin: Cow<'a, [u8]>, end: Cow<'a, [u8]>) -> Done {
        self.need_object()?;
        let size = self.omap_size()?;
        self.spend(size)?;
        self.step(Step::OmapRemoveRange {
            obj: HEAD,
            begin,
            end,
        });
        OK
    }
}
