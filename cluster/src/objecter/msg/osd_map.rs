use crate::codec::{Put, Reader, Result};

/// `MOSDMap` (`src/messages/MOSDMap.h`): maps of some epochs, undecoded. Monitors and OSDs send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MOsdMap<'a> {
    pub fsid: [u8; 16],
    /// In ascending order of epochs, as are the full maps.
    pub incrementals: Vec<(u32, &'a [u8])>,
    pub full: Vec<(u32, &'a [u8])>,
    /// The sender has every map from here on; older ones may be gone everywhere.
    pub trim_lower_bound: u32,
    pub newest: u32,
}

impl<'a> MOsdMap<'a> {
    pub const VERSION: u16 = 4;
    pub const COMPAT: u16 = 3;

    pub fn decode(version: u16, front: &'a [u8]) -> Result<MOsdMap<'a>> {
        let r = &mut Reader::new(front);
        let fsid = r.fixed()?;
        let incrementals = decode_maps(r)?;
        let full = decode_maps(r)?;
        let (trim_lower_bound, newest) = if version >= 2 {
            (r.u32()?, r.u32()?)
        } else {
            (0, 0)
        };
        // Removed snapshots of skipped epochs may follow; nobody has written any since octopus.
        Ok(MOsdMap {
            fsid,
            incrementals,
            full,
            trim_lower_bound,
            newest,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_bytes(&self.fsid);
        for maps in [&self.incrementals, &self.full] {
            out.put_list(maps.iter(), |out, (epoch, bytes)| {
                out.put_u32(*epoch);
                out.put_blob(bytes);
            });
        }
        out.put_u32(self.trim_lower_bound);
        out.put_u32(self.newest);
        out.put_u32(0);
    }

    pub fn incremental(&self, epoch: u32) -> Option<&'a [u8]> {
        find(&self.incrementals, epoch)
    }

    pub fn full(&self, epoch: u32) -> Option<&'a [u8]> {
        find(&self.full, epoch)
    }

    /// The newest epoch that a map in this message leads to.
    pub fn last(&self) -> u32 {
        let last = |maps: &[(u32, &[u8])]| maps.last().map_or(0, |(e, _)| *e);
        last(&self.incrementals).max(last(&self.full))
    }
}

fn decode_maps<'a>(r: &mut Reader<'a>) -> Result<Vec<(u32, &'a [u8])>> {
    let mut maps = r.list(8, |r| Ok((r.u32()?, r.blob()?)))?;
    // Ceph sends a std::map; sorting costs nothing then, and spares the look-ups any doubt.
    maps.sort_by_key(|(epoch, _)| *epoch);
    Ok(maps)
}

fn find<'a>(maps: &[(u32, &'a [u8])], epoch: u32) -> Option<&'a [u8]> {
    let i = maps.binary_search_by_key(&epoch, |(e, _)| *e).ok()?;
    Some(maps[i].1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(incs in btree_map(any::<u32>(), vec(any::<u8>(), 0..20), 0..5),
                      full in btree_map(any::<u32>(), vec(any::<u8>(), 0..20), 0..5), trim: u32) {
            let m = MOsdMap {
                fsid: [7; 16],
                incrementals: incs.iter().map(|(e, b)| (*e, &b[..])).collect(),
                full: full.iter().map(|(e, b)| (*e, &b[..])).collect(),
                trim_lower_bound: trim,
                newest: 3,
            };
            let mut out = Vec::new();
            m.encode(&mut out);
            let back = MOsdMap::decode(4, &out).unwrap();
            prop_assert_eq!(&back, &m);
            for (e, b) in &incs {
                prop_assert_eq!(back.incremental(*e), Some(&b[..]));
            }
            prop_assert_eq!(back.last(), incs.keys().chain(full.keys()).max().copied().unwrap_or(0));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let _ = MOsdMap::decode(4, &bytes);
        }
    }
}
