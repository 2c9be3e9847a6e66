//! Trivial maps: a header and sorted pairs kept in an object's data. The directory of images in
//! RBD's first format is one (`PrimaryLogPG::do_tmapup`).

use std::collections::BTreeMap;

use super::state::State;
use super::{Done, OK, errno};
use crate::codec::{Put, Reader, Result as Decoded};
use crate::objecter::msg::Extent;
use crate::osd::cls::Errno;
use crate::osd::limits;
use crate::osd::store::Store;

/// `CEPH_OSD_TMAP_*` (`src/include/rados.h`).
const HEADER: u8 = b'h';
const SET: u8 = b's';
const CREATE: u8 = b'c';
const REMOVE: u8 = b'r';
const REMOVE_SLOPPY: u8 = b'R';

#[derive(Default)]
struct Map<'a> {
    header: &'a [u8],
    pairs: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Map<'a> {
    /// An object without data is an empty map.
    fn decode(bytes: &'a [u8]) -> Decoded<Map<'a>> {
        let mut map = Map::default();
        if bytes.is_empty() {
            return Ok(map);
        }
        let mut r = Reader::new(bytes);
        map.header = r.blob()?;
        map.pairs = r
            .list(8, |r| Ok((r.blob()?, r.blob()?)))?
            .into_iter()
            .collect();
        Ok(map)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_blob(self.header);
        out.put_list(self.pairs.iter(), |out, (key, value)| {
            out.put_blob(key);
            out.put_blob(value);
        });
        out
    }

    /// Carries out commands; the header's must be the first.
    fn update(&mut self, commands: &'a [u8]) -> Result<(), Errno> {
        let invalid = |_| errno(libc::EINVAL);
        let mut r = Reader::new(commands);
        let mut first = true;
        while !r.is_empty() {
            let command = r.u8().map_err(invalid)?;
            let key = r.blob().map_err(invalid)?;
            match command {
                HEADER if first => self.header = key,
                SET | CREATE => {
                    if command == CREATE && self.pairs.contains_key(key) {
                        return Err(errno(libc::EEXIST));
                    }
                    let value = r.blob().map_err(invalid)?;
                    self.pairs.insert(key, value);
                }
                REMOVE | REMOVE_SLOPPY => {
                    if self.pairs.remove(key).is_none() && command == REMOVE {
                        return Err(errno(libc::ENOENT));
                    }
                }
                _ => return Err(errno(libc::EINVAL)),
            }
            first = false;
        }
        Ok(())
    }
}

impl<'a, S: Store> State<'_, '_, 'a, S> {
    pub(super) fn map_get(&mut self, out: &mut Vec<u8>) -> Done {
        self.read(Extent::default(), out)
    }

    /// Replaces the map, if it is one.
    pub(super) fn map_put(&mut self, input: &'a [u8]) -> Done {
        if input.len() as u64 > limits::TMAP {
            return Err(errno(libc::E2BIG));
        }
        let map = Map::decode(input).map_err(|_| errno(libc::EINVAL))?;
        let data = map.encode();
        self.write_full(data.len() as u64, data.into())
    }

    pub(super) fn map_update(&mut self, input: &'a [u8]) -> Done {
        if input.is_empty() {
            return OK;
        }
        if self.info.size > limits::TMAP {
            return Err(errno(libc::E2BIG));
        }
        let mut old = Vec::new();
        self.read(Extent::default(), &mut old)?;
        let mut map = Map::decode(&old).map_err(|_| errno(libc::EINVAL))?;
        map.update(input)?;
        let data = map.encode();
        self.write_full(data.len() as u64, data.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(code: u8, key: &str, value: Option<&str>) -> Vec<u8> {
        let mut out = vec![code];
        out.put_string(key);
        if let Some(value) = value {
            out.put_string(value);
        }
        out
    }

    #[test]
    fn commands_change_pairs() {
        let commands = [
            command(HEADER, "head", None),
            command(SET, "b", Some("2")),
            command(CREATE, "a", Some("1")),
            command(REMOVE_SLOPPY, "none", None),
        ]
        .concat();
        let mut map = Map::default();
        map.update(&commands).unwrap();
        let bytes = map.encode();
        let again = command(CREATE, "a", Some("3"));
        let absent = command(REMOVE, "none", None);
        let late = [command(REMOVE, "a", None), command(HEADER, "x", None)].concat();
        for (commands, want) in [
            (&again, libc::EEXIST),
            (&absent, libc::ENOENT),
            (&late, libc::EINVAL),
        ] {
            let mut map = Map::decode(&bytes).unwrap();
            assert_eq!(map.update(commands), Err(errno(want)));
        }
        let map = Map::decode(&bytes).unwrap();
        assert_eq!(map.header, b"head");
        let pairs: Vec<_> = map.pairs.into_iter().collect();
        assert_eq!(pairs, [(&b"a"[..], &b"1"[..]), (b"b", b"2")]);
        assert!(Map::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}
